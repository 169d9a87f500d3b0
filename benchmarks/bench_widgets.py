"""How fast widgets follow the hand, how soon a page of the built book is there, and how heavy it is.

    python benchmarks/bench_widgets.py [--quick] [--book FOLDER] [--output FILE]
    python benchmarks/bench_widgets.py --heights FILE [--book FOLDER]

Measured in headless Chromium, from a server on the loopback address, without any other network.

A step of a slider is measured to the painted frame. The clock starts when the input event is sent, in an
animation frame, which is when browsers deliver the events of a moving finger. It stops in the first task
after that frame. In Chromium an animation frame is one task: the callbacks, the widget's code with its
microtasks, then styles, layout and painting of the whole page, and its division into layers for the
compositor. A message posted before all this therefore arrives when the frame is painted, and not, as
the end of a script would, when the work of the page has only begun. Not included are the wait for the screen
and the rasterisation by other threads.

Steps are measured where readers make them: on the landing page and in the chapters of the built book, whose
text, equations and other widgets are styled, laid out and painted with the widget; on the landing page once
more with the processor slowed down four-fold, as on a cheap phone. A letter typed into a field, such as that
of the translator, is measured in the same way.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "widgets")]

from bench_attention import machine, stored  # noqa: E402
from widget_page import write_page  # noqa: E402

from mha_course.widgets import HeadTraining  # noqa: E402

VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]'
SCREENS = {"phone": (360, 740), "tablet": (768, 1024), "desktop": (1280, 900)}
ALREADY_COMPRESSED = (".png", ".woff", ".woff2")
# Every name but the loopback address fails to resolve.
OPTIONS = [
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--disable-gpu",
    "--disable-background-networking",
]
LANDING, THROTTLE = "index.html", 4
TYPED = ["3. März 2021", "Wednesday, March 3, 2021"]  # into the field of the translator

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

CONTROLS = "input[type=range]:not([disabled]), input[type=text]:not([disabled])"

# Moves a slider there and back, one frame a step, as the browser does it, or types texts into a field, letter
# by letter: milliseconds of main thread for each step.
MOVE = """async ([steps, control, texts]) => {
  let value;
  if (texts.length) {
    const typed = texts.flatMap((text) => Array.from(text, (_, index) => text.slice(0, index + 1)));
    value = (step) => typed[step % typed.length];
  } else {
    const [min, max, size] = [Number(control.min), Number(control.max), Number(control.step) || 1];
    const count = Math.round((max - min) / size);
    let way = Math.max(1, Math.floor(count / 24));
    let at = Math.round((Number(control.value) - min) / size);
    value = () => {
      if (at + way < 0 || at + way > count) way = -way;
      at = Math.min(count, Math.max(0, at + way));
      return String(min + at * size);
    };
  }
  const times = [];
  for (let step = 0; step < steps + 5; step++) {
    times.push(await new Promise((resolve) => requestAnimationFrame(() => {
      const channel = new MessageChannel();
      const start = performance.now();
      channel.port1.onmessage = () => resolve(performance.now() - start);
      control.value = value(step);
      control.dispatchEvent(new Event("input", { bubbles: true }));
      channel.port2.postMessage(null);
    })));
  }
  const name = control.labels[0]?.querySelector(".mha-name")?.textContent;
  const moved = texts.length ? "a letter typed" : control.ariaLabel || name || control.name;
  return { control: moved, times: times.slice(5) };
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
        "longest_gap_ms": round(found["gap"], 1),
        "frames": found["frames"],
        "in_a_worker": workers == 1,
    }
    print(json.dumps(row), flush=True)
    return row


# --------------------------------------------------------------------------------
# Steps in the pages of the book


def measure_in_page(page: Page, steps: int, every: bool) -> list[dict[str, Any]]:
    """Steps of the sliders and the fields of all widgets of an open page, or of the first of each widget."""
    rows = []
    for root in page.query_selector_all(".widget-host .mha-widget"):
        controls = root.query_selector_all(CONTROLS)
        visible = [control for control in controls if control.is_visible()]
        for control in visible if every else visible[:1]:
            control.scroll_into_view_if_needed()
            page.wait_for_timeout(300)
            typed = TYPED if control.get_attribute("type") == "text" else []
            moved = page.evaluate(MOVE, [steps, control, typed])
            times = moved["times"]
            rows.append(
                {
                    "widget": root.get_attribute("aria-label"),
                    "control": moved["control"],
                    "steps": len(times),
                    "median": round(statistics.median(times), 2),
                    "p95": round(percentile(times, 0.95), 2),
                }
            )
    return rows


def in_page_rows(browser: Browser, book: Path, steps: int) -> list[dict[str, Any]]:
    """Steps on the landing page, at full speed and slowed down, and in each chapter with controls."""
    chapters = [name for name in pages_of(book) if name.startswith("chapters/")]
    cases = [(LANDING, 1), (LANDING, THROTTLE), *((name, 1) for name in chapters)]
    rows = []
    with serving(book) as address:
        for name, throttle in cases:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}/{name}")
            all_ready(page)
            client = page.context.new_cdp_session(page)
            client.send("Emulation.setCPUThrottlingRate", {"rate": throttle})
            for row in measure_in_page(page, steps, name == LANDING):
                rows.append({"page": name, "throttle": throttle, **row})
                print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
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


NAMES = """hosts => hosts.map(host => JSON.parse(host.nextElementSibling.textContent).model_id)"""


def measure_heights(browser: Browser, address: str) -> dict[str, list[int]]:
    """How high each widget of a page is at first, on each of the screens, by the widget's name."""
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
    names = page.locator(".widget-host").evaluate_all(NAMES)
    page.close()
    rows = map(list, zip(*columns, strict=True))
    return dict(zip(names, rows, strict=True))


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
    """Store how high the widgets of all pages are, one widget a line."""
    pages = []
    with serving(book) as address:
        for name in pages_of(book):
            if "widget-view+json" in (book / name).read_text(encoding="utf-8"):
                found = measure_heights(browser, f"{address}/{name}")
                rows = [
                    f"    {json.dumps(n)}: {json.dumps(row)}"
                    for n, row in found.items()
                ]
                pages.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
    path.write_text("{\n" + ",\n".join(pages) + "\n}\n", encoding="utf-8")


# --------------------------------------------------------------------------------
# From the command line


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    book = ROOT / "_build" / "html"
    parser.add_argument("--book", type=Path, default=book, help="the built book")
    parser.add_argument("--quick", action="store_true", help="few steps: does it run?")
    parser.add_argument("--output", type=Path, help="where the results go")
    parser.add_argument("--heights", type=Path, help="measure heights only, for _ext")
    options = parser.parse_args(arguments)
    steps, training, rounds = (10, 20, 1) if options.quick else (100, 300, 5)
    with chromium() as browser:
        if options.heights:
            write_heights(browser, options.book, options.heights)
            return
        versions = {"clock": "wall time", "chromium": browser.version}
        results = {
            "machine": machine() | versions,
            "in_pages": in_page_rows(browser, options.book, steps),
            "training": measure_training(browser, training),
            "pages": book_rows(browser, options.book, rounds),
        }
    if options.output:
        options.output.write_text(stored(results), encoding="utf-8")


if __name__ == "__main__":
    main()
