"""How fast widgets follow the hand, how soon a page of the built book is there, and how heavy it is.

    python benchmarks/bench_widgets.py [--quick] [--check] [--book FOLDER] [--output FILE]
    python benchmarks/bench_widgets.py --heights FILE [--book FOLDER]

Measured in headless Chromium, from a server on the loopback address, without any other network.

A step of a slider is measured to the painted frame. The clock starts when the input event is sent, in an
animation frame, which is when browsers deliver the events of a moving finger. It stops in the first task
after that frame. In Chromium an animation frame is one task: the callbacks, the widget's code with its
microtasks, then styles, layout and painting of the whole page, and its division into layers for the
compositor. A message posted before all this therefore arrives when the frame is painted, and not, as
the end of a script would, when the work of the page has only begun; tests/book/test_benchmarks.py reads this
order from a trace. Not included are the wait for the screen and the rasterisation by other threads.

Steps are measured where readers make them: on the landing page and in the chapters of the built book, whose
text, equations and other widgets are styled, laid out and painted with the widget; on the landing page once
more with the processor slowed down four-fold, as on a cheap phone. Chapters also get a head explorer of 64
tokens and 8 heads, planted after their first widget. Every control of every widget is measured too, on a page
of its own. A letter typed into the translator is measured in the same way.

A training in the page is measured from the press on Play to the end of its steps. The longest gap between two
animation frames meanwhile is how long the page did not follow the hand at most.

A page's times count from the start of navigation, each in a new browser context, so that nothing is cached. A
widget is ready when its render function is through; a page's bytes are those of all files that it loads,
gzipped where a web server would. Layout shift is the browser's sum (CLS) a second later.

--heights measures no time: it writes how high each widget is at first, for which the built pages keep room.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import http.server
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from playwright.sync_api import Browser, ElementHandle, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "widgets")]

from bench_attention import machine, stored  # noqa: E402
from widget_page import write_page  # noqa: E402
from widget_samples import SAMPLES  # noqa: E402

from mha_lib import EncoderDecoder, MultiHeadAttention  # noqa: E402
from mha_lib.dates import DATE_LETTERS, ISO_SYMBOLS, SOURCE_LENGTH  # noqa: E402
from mha_lib.widgets import HeadExample, HeadExplorer, HeadTraining, Translator  # noqa: E402

VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]'
SCREENS = {"phone": (360, 740), "tablet": (768, 1024), "desktop": (1280, 900)}
ALREADY_COMPRESSED = (".png", ".woff", ".woff2")
# Every name but the loopback address fails to resolve.
OPTIONS = [
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--disable-gpu",
    "--disable-background-networking",
]
LIMITS = {
    "first_paint_ms": 500,
    "ready_ms": 1000,
    "shift": 0.05,
    "raw": 3_000_000,
    "gzip": 1_000_000,
}
"""At most, for each page."""

STEP_LIMITS = {(64, 64, 8): 16, (256, 64, 8): 50}
"""Milliseconds of a step of the head explorer at the 95th percentile, by tokens, embed_dim and most heads."""

PAGE_LIMITS = {"landing": 16, "chapter": 24, "throttled": 50}
"""Milliseconds of a step at the 95th percentile: of any slider on the landing page; of the planted explorer
in a chapter; and on the landing page with a slower processor."""

LANDING, THROTTLE = "index.html", 4
LARGE = (64, 64, 8)
PLANTED = "planted head explorer, 64 tokens, 8 heads"

STILL = {"Progress"}
"""Widgets without a control whose step could be measured: a press downloads a file, or clears for good."""

TYPING_LIMIT = 100
"""Milliseconds from a letter typed into the translator to the whole new answer, at the 95th percentile."""

TRAINING_LIMIT = 20
"""Seconds from Play to the end of the 300 steps of a training with two heads."""

# Notes what the browser tells about its own work, from the first byte on.
OBSERVE = """() => {
  window.measured = { shift: 0, ready: null };
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) measured.shift += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
  const look = () => {
    const views = document.querySelectorAll('script[type="application/vnd.jupyter.widget-view+json"]').length;
    if (document.querySelectorAll(".widget-host[data-widget=ready]").length === views) {
      measured.ready ??= performance.now();
    } else measured.ready = null;
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true,
    attributeFilter: ["data-widget"] });
}"""

SLIDERS = ".mha-widget input[type=range]:not([disabled])"

# Moves a control of a widget there and back, one frame a step: milliseconds of main thread for each. A slider
# is set as the browser sets it; where there is none a handle gets arrow keys, or buttons are pressed in turn.
# Where texts are given, they are typed into the field, letter by letter.
MOVE = """async ([steps, root, range, texts]) => {
  const visible = (node) => node.checkVisibility() && !node.disabled;
  const find = (query) => [...root.querySelectorAll(query)].filter(visible);
  let act;
  let control;
  if (texts.length) {
    const [field] = find("input[type=text]");
    const typed = texts.flatMap((text) => Array.from(text, (_, index) => text.slice(0, index + 1)));
    control = "a letter typed";
    let step = 0;
    act = () => {
      field.value = typed[step++ % typed.length];
      field.dispatchEvent(new Event("input", { bubbles: true }));
    };
  } else if (range) {
    const [min, max, size] = [Number(range.min), Number(range.max), Number(range.step) || 1];
    const count = Math.round((max - min) / size);
    const stride = Math.max(1, Math.floor(count / 24));
    let at = Math.round((Number(range.value) - min) / size);
    let way = stride;
    control = range.ariaLabel || range.labels[0]?.querySelector(".mha-name")?.textContent || range.name;
    act = () => {
      if (at + way < 0 || at + way > count) way = -way;
      at = Math.min(count, Math.max(0, at + way));
      range.value = String(min + at * size);
      range.dispatchEvent(new Event("input", { bubbles: true }));
    };
  } else if (find(".mha-handle").length) {
    const [handle] = find(".mha-handle");
    control = "a handle, by arrow keys";
    let step = 0;
    act = () => {
      const key = ["ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowDown"][step++ % 6];
      handle.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    };
  } else {
    const kinds = [".mha-step", "[role=gridcell]", "input[type=checkbox], input[type=radio]", "button"];
    const nodes = kinds.map(find).find((found) => found.length > 1);
    control = "its buttons in turn";
    let step = 0;
    act = () => {
      const node = nodes[step++ % nodes.length];
      // A cell is painted with a key; a click alone does nothing to it.
      if (node.role !== "gridcell") return node.click();
      node.focus();
      node.dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true, cancelable: true }));
    };
  }
  const times = [];
  for (let step = 0; step < steps + 5; step++) {
    times.push(await new Promise((resolve) => requestAnimationFrame(() => {
      const channel = new MessageChannel();
      const start = performance.now();
      channel.port1.onmessage = () => {
        const time = performance.now() - start;
        performance.mark("painted"); // for traces
        resolve(time);
      };
      act();
      channel.port2.postMessage(null);
    })));
  }
  return { control, times: times.slice(5) };
}"""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback address."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Say nothing."""

    handler = functools.partial(Silent, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium: the system's, or else the one that Playwright installed."""
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        # Debian's browser without windows starts a page in a seventh of the time.
        system = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(
            executable_path=system, args=OPTIONS + sandbox
        )
        yield browser
        browser.close()


def all_ready(page: Page) -> None:
    """Wait until every widget of a page has started."""
    expect(page.locator(".widget-host[data-widget=ready]")).to_have_count(
        page.locator(VIEW).count(), timeout=60_000
    )


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


# --------------------------------------------------------------------------------
# Steps


def explorer(num_tokens: int, embed_dim: int, most_heads: int) -> HeadExplorer:
    """A head explorer of a size: layers with random weights for 1, 2, 4 and so on up to most heads."""
    torch.manual_seed(0)
    counts = [2**k for k in range(most_heads.bit_length())]
    example = HeadExample(
        label="random tokens",
        tokens=[f"t{index}" for index in range(num_tokens)],
        x=torch.randn(num_tokens, embed_dim),
        layers={count: MultiHeadAttention(embed_dim, count) for count in counts},
    )
    return HeadExplorer([example], num_heads=most_heads)


def full_translator() -> Translator:
    """A translator of the experiment's sizes with 8 heads, which are most maps, and random weights."""
    torch.manual_seed(0)
    sizes = (1 + len(DATE_LETTERS), len(ISO_SYMBOLS), 64, 8, 256, 2)
    return Translator(EncoderDecoder(*sizes, max_len=SOURCE_LENGTH, bias=True))


def step_row(moved: dict[str, Any]) -> dict[str, Any]:
    """What is kept of the steps of one control."""
    times = moved["times"]
    return {
        "control": moved["control"],
        "steps": len(times),
        "median": round(statistics.median(times), 2),
        "p95": round(percentile(times, 0.95), 2),
    }


def measure_steps(
    browser: Browser, make: Callable[[], Any], steps: int, texts: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Milliseconds of a step of each slider of a widget, or of another control if it has none.

    With `texts`, those of a letter typed into its field.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        address = write_page(Path(folder), [make()]).as_uri()
        place, count = 0, 1
        while place < count:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(address)
            all_ready(page)
            sliders = [s for s in page.locator(SLIDERS).all() if s.is_visible()]
            if texts:
                sliders = []
            count = max(1, len(sliders))
            slider = sliders[place].element_handle() if sliders else None
            root = page.locator(".widget-host .mha-widget").first.element_handle()
            moved = page.evaluate(MOVE, [steps, root, slider, list(texts)])
            rows.append(step_row(moved))
            page.close()
            place += 1
    return rows


def steps_rows(browser: Browser, steps: int) -> list[dict[str, Any]]:
    """Each widget at its usual size, and the head explorer at two large ones."""
    cases = [(name, make, None) for name, make in SAMPLES.items() if name not in STILL]
    for size, limit in STEP_LIMITS.items():
        name = f"HeadExplorer, {size[0]} tokens, {size[2]} heads"
        cases.append((name, functools.partial(explorer, *size), limit))
    rows = []
    for name, make, limit in cases:
        for row in measure_steps(browser, make, steps):
            rows.append({"widget": name, **row, "limit": limit})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    texts = full_translator().dates["texts"]
    [typed] = measure_steps(browser, full_translator, steps, texts)
    name = "Translator, 64 wide, 8 heads"
    rows.append({"widget": name, **typed, "limit": TYPING_LIMIT})
    print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    return rows


# --------------------------------------------------------------------------------
# Training

# Presses Play and watches the frames until so many steps are taken; a training that goes on is paused then.
TRAIN = """([root, steps]) => new Promise((resolve) => {
  const play = root.querySelector(".mha-play");
  const shown = root.querySelector(".mha-transport .mha-value");
  const start = performance.now();
  let [last, longest, frames] = [start, 0, 0];
  const look = () => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    frames += 1;
    const taken = parseInt(shown.textContent, 10);
    if (taken < steps) return requestAnimationFrame(look);
    const time = now - start;
    if (play.textContent.endsWith("Pause")) play.click();
    resolve({ steps: taken, seconds: time / 1000, gap: longest, frames });
  };
  play.click();
  requestAnimationFrame(look);
})"""


def measure_training(browser: Browser, steps: int) -> dict[str, Any]:
    """Seconds that a training of two heads takes, and the page's longest gap between two frames meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        address = write_page(Path(folder), [HeadTraining(num_heads=2)]).as_uri()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        all_ready(page)
        # What the page computes for Python comes after a pause, and is not part of the training.
        page.wait_for_timeout(1000)
        root = page.locator(".widget-host .mha-widget").first.element_handle()
        found = page.evaluate(TRAIN, [root, steps])
        workers = len(page.workers)
        page.close()
    row = {
        "widget": "HeadTraining, 2 heads",
        "steps": found["steps"],
        "seconds": round(found["seconds"], 2),
        "limit": TRAINING_LIMIT,
        "longest_gap_ms": round(found["gap"], 1),
        "frames": found["frames"],
        "in_a_worker": workers == 1,
    }
    print(json.dumps(row), flush=True)
    return row


# --------------------------------------------------------------------------------
# Steps in the pages of the book

# Hosts one more widget in a page, as widget_loader.js does, after the page's first widget; returns its root.
PLANT = """async (state) => {
  const host = document.createElement("div");
  host.className = "widget-host";
  document.querySelector(".widget-host").after(host);
  document.head.append(Object.assign(document.createElement("style"), { textContent: state._css }));
  const url = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
  const widget = (await import(url)).default;
  const listeners = [];
  const model = {
    get: (name) => state[name],
    set(name, value) {
      state[name] = value;
      for (const [event, callback] of listeners) if (event === `change:${name}`) callback();
    },
    on: (event, callback) => listeners.push([event, callback]),
    off() {},
    save_changes() {},
  };
  await widget.render({ model, el: host });
  host.dataset.widget = "ready";
  return host.querySelector(".mha-widget");
}"""


def plant(page: Page, widget: Any) -> ElementHandle:
    """Show one more widget in a page of the book, between its others; returns the root of the widget."""
    state = {
        name: value
        for name, value in widget.get_state().items()
        if not name.startswith("_model") and name != "layout"
    }
    root = page.evaluate_handle(PLANT, state).as_element()
    assert root is not None
    return root


def measure_in_page(
    page: Page,
    steps: int,
    *,
    every: bool = True,
    roots: Sequence[ElementHandle] | None = None,
) -> list[dict[str, Any]]:
    """Steps of the sliders of all widgets of an open page, or of those with these roots.

    With `every` False, only of the first slider of each.
    """
    rows = []
    if roots is None:
        roots = page.query_selector_all(".widget-host .mha-widget")
    for root in roots:
        found = root.query_selector_all("input[type=range]:not([disabled])")
        sliders = [slider for slider in found if slider.is_visible()]
        for slider in sliders if every else sliders[:1]:
            slider.scroll_into_view_if_needed()
            page.wait_for_timeout(300)
            moved = page.evaluate(MOVE, [steps, root, slider, []])
            rows.append({"widget": root.get_attribute("aria-label"), **step_row(moved)})
    return rows


def in_page_rows(browser: Browser, book: Path, steps: int) -> list[dict[str, Any]]:
    """Steps on the landing page, at full speed and slowed down, and in each chapter with sliders."""
    rows = []

    def keep(
        name: str, found: list[dict[str, Any]], limit: float | None, throttle: int = 1
    ) -> None:
        for row in found:
            rows.append({"page": name, "throttle": throttle, **row, "limit": limit})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)

    with serving(book) as address:
        for throttle in (1, THROTTLE):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}/{LANDING}")
            all_ready(page)
            client = page.context.new_cdp_session(page)
            client.send("Emulation.setCPUThrottlingRate", {"rate": throttle})
            limit = PAGE_LIMITS["landing" if throttle == 1 else "throttled"]
            keep(LANDING, measure_in_page(page, steps), limit, throttle)
            page.close()
        for name in pages_of(book):
            if not name.startswith("chapters/") or "mha-widget" not in (
                book / name
            ).read_text("utf-8"):
                continue
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}/{name}")
            all_ready(page)
            keep(name, measure_in_page(page, steps, every=False), None)
            if rows[-1]["page"] == name:
                planted = measure_in_page(
                    page, steps, roots=[plant(page, explorer(*LARGE))]
                )
                found = [{**row, "widget": PLANTED} for row in planted]
                keep(name, found, PAGE_LIMITS["chapter"])
            page.close()
    return rows


# --------------------------------------------------------------------------------
# Pages


def pages_of(book: Path) -> list[str]:
    """All pages of a built book."""
    names = (path.relative_to(book) for path in sorted(book.rglob("*.html")))
    return [name.as_posix() for name in names if name.parts[0] != "_static"]


def measure_page(browser: Browser, address: str, rounds: int) -> dict[str, Any]:
    """One page, cold: first contentful paint, all widgets ready, layout shift, bytes."""
    paints, readies, shifts, sizes = [], [], [], {}
    for _ in range(rounds):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        responses: list[Any] = []
        page.on("response", lambda response, found=responses: found.append(response))
        page.add_init_script(f"({OBSERVE})()")
        page.goto(address, wait_until="load")
        all_ready(page)
        page.wait_for_timeout(1000)
        paints.append(
            page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
        )
        count = page.locator(VIEW).count()
        if count:
            readies.append(page.evaluate("measured.ready"))
        shifts.append(page.evaluate("measured.shift"))
        for response in responses:
            path = urlsplit(response.url).path
            if response.url.startswith("http") and path not in sizes:
                body = response.body()
                packed = (
                    body if path.endswith(ALREADY_COMPRESSED) else gzip.compress(body)
                )
                sizes[path] = (len(body), len(packed))
        context.close()
    return {
        "widgets": count,
        "first_paint_ms": round(statistics.median(paints)),
        "ready_ms": round(statistics.median(readies)) if readies else None,
        "shift": round(max(shifts), 4),
        "raw": sum(raw for raw, _ in sizes.values()),
        "gzip": sum(packed for _, packed in sizes.values()),
    }


def measure_heights(browser: Browser, address: str) -> list[list[int]]:
    """How high each widget of a page is at first, on each of the screens."""
    page = browser.new_page()
    page.goto(address, wait_until="load", timeout=120_000)
    all_ready(page)
    # A widget that was never on the screen would only have the height that was measured the last time.
    page.add_style_tag(
        content=".widget-host { content-visibility: visible !important }"
    )
    columns = []
    for width, height in SCREENS.values():
        page.set_viewport_size({"width": width, "height": height})
        # The theme's side bars slide in, and the widgets follow.
        page.wait_for_timeout(500)
        columns.append(
            page.locator(".widget-host").evaluate_all(
                "hosts => hosts.map(host => Math.round(host.getBoundingClientRect().height))"
            )
        )
    page.close()
    return [list(row) for row in zip(*columns, strict=True)]


def book_rows(browser: Browser, book: Path, rounds: int) -> list[dict[str, Any]]:
    """All pages of the built book."""
    rows = []
    with serving(book) as address:
        for name in pages_of(book):
            row = measure_page(browser, f"{address}/{name}", rounds)
            rows.append({"page": name, **row})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def write_heights(browser: Browser, book: Path, path: Path) -> None:
    """Store how high the widgets of all pages are, one page a line."""
    lines = []
    with serving(book) as address:
        for name in pages_of(book):
            if "widget-view+json" in (book / name).read_text(encoding="utf-8"):
                rows = measure_heights(browser, f"{address}/{name}")
                lines.append(f"  {json.dumps(name)}: {json.dumps(rows)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


# --------------------------------------------------------------------------------
# From the command line


def missed(results: dict[str, Any]) -> list[str]:
    """What is slower, heavier or less steady than it may be."""
    found = [
        f"{row['widget']}: a step of {row['control']} takes {row['p95']} ms, at most {row['limit']}"
        for row in results["steps"]
        if row["limit"] is not None and row["p95"] > row["limit"]
    ]
    found += [
        f"{row['page']}, {row['widget']}: a step of {row['control']} takes {row['p95']} ms, "
        f"at most {row['limit']} with the processor slowed down {row['throttle']}-fold"
        for row in results["in_pages"]
        if row["limit"] is not None and row["p95"] > row["limit"]
    ]
    row = results["training"]
    if row["seconds"] > row["limit"]:
        found.append(
            f"{row['widget']}: {row['steps']} steps of training take {row['seconds']} s, "
            f"at most {row['limit']}"
        )
    for row in results["pages"]:
        found += [
            f"{row['page']}: {name} is {row[name]}, at most {limit}"
            for name, limit in LIMITS.items()
            if row[name] is not None and row[name] > limit
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; with --check the exit status is 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--book", type=Path, default=ROOT / "_build" / "html", help="the built book"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few steps, one round: does it run?"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a limit is missed"
    )
    parser.add_argument("--output", type=Path, help="where the results go")
    parser.add_argument(
        "--heights",
        type=Path,
        help="measure heights only, for _ext/widget_heights.json",
    )
    options = parser.parse_args(arguments)
    with chromium() as browser:
        if options.heights:
            write_heights(browser, options.book, options.heights)
            return 0
        results = {
            "machine": {
                **machine(torch.get_num_threads()),
                "clock": "wall time",
                "chromium": browser.version,
            },
            "steps": steps_rows(browser, 10 if options.quick else 200),
            "in_pages": in_page_rows(
                browser, options.book, 10 if options.quick else 100
            ),
            "training": measure_training(browser, 20 if options.quick else 300),
            "pages": book_rows(browser, options.book, 1 if options.quick else 5),
        }
    for line in missed(results):
        print("✗", line)
    if options.output:
        options.output.write_text(stored(results), encoding="utf-8")
    return int(options.check and bool(missed(results)))


if __name__ == "__main__":
    sys.exit(main())
