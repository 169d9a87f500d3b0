"""How fast widgets follow the hand in the pages of the built book, how heavy its pages are, how high widgets.

    python benchmarks/bench_widgets.py [--heights FILE]

A step of a slider is measured to the painted frame. The clock starts when the input event is sent, in an
animation frame, which is when browsers deliver the events of a moving finger. It stops in the first task
after that frame. In Chromium an animation frame is one task: the callbacks, the widget's code with its
microtasks, then styles, layout and painting of the whole page, and its division into layers for the
compositor. A message posted before all this therefore arrives when the frame is painted, and not, as
the end of a script would, when the work of the page has only begun. Not included are the wait for the screen
and the rasterisation by other threads. A letter typed into a field is measured in the same way. The first
control of each widget is measured on a desktop; every one on the screen of a cheap phone, with the processor
slowed down four-fold. Some widgets draw large maps only when the frame is painted, so the time from one step
to the next is printed too: in it, everything is drawn.

A page's bytes are those of all files that it loads, gzipped where a web server would.

--heights measures no time: it stores how high each widget is at first, for which the built pages keep room.
"""

import argparse
import gzip
import json
import re
import statistics
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rounds import processor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from stills import open_browser  # noqa: E402

BOOK = ROOT / "_build" / "html"
VIEW = "widget-view+json"
THROTTLE = 4
SIZES = {"phone": (360, 740), "tablet": (768, 1024), "desktop": (1280, 900)}
SCREENS = {name: {"width": w, "height": h} for name, (w, h) in SIZES.items()}
ALREADY_COMPRESSED = (".png", ".woff", ".woff2")
TYPED = ["3. März 2021", "Wednesday, March 3, 2021"]  # into the field of the translator
CONTROLS = "input[type=range]:not([disabled]), input[type=text]:not([disabled])"

# Moves a slider there and back, one frame a step, as the browser does it, or types texts into a field, letter
# by letter: milliseconds of main thread for each step. The first five steps do not count.
MOVE = """async (control, [steps, texts]) => {
  const typed = texts.flatMap((text) => Array.from(text, (_, index) => text.slice(0, index + 1)));
  const [min, max, size] = [Number(control.min), Number(control.max), Number(control.step) || 1];
  const count = Math.round((max - min) / size);
  let way = Math.max(1, Math.floor(count / 24));
  let at = Math.round((Number(control.value) - min) / size);
  const moved = () => {
    if (at + way < 0 || at + way > count) way = -way;
    at = Math.min(count, Math.max(0, at + way));
    return String(min + at * size);
  };
  const isText = control.type === "text";
  const [times, starts] = [[], []];
  for (let step = 0; step < steps + 5; step++) {
    times.push(await new Promise((resolve) => requestAnimationFrame(() => {
      const channel = new MessageChannel();
      const start = performance.now();
      starts.push(start);
      channel.port1.onmessage = () => resolve(performance.now() - start);
      control.value = isText ? typed[step % typed.length] : moved();
      control.dispatchEvent(new Event("input", { bubbles: true }));
      channel.port2.postMessage(null);
    })));
  }
  const name = control.labels[0]?.querySelector(".mha-name")?.textContent;
  const pace = (starts.at(-1) - starts[5]) / (steps - 1);
  return [isText ? "a letter typed" : control.ariaLabel || name || control.name, times.slice(5), pace];
}"""
MODEL_IDS = "hosts => hosts.map(host => JSON.parse(host.nextElementSibling.textContent).model_id)"
HIGH = "hosts => hosts.map(host => Math.round(host.getBoundingClientRect().height))"


def pages():
    """The names of all pages of the built book."""
    names = [path.relative_to(BOOK) for path in sorted(BOOK.rglob("*.html"))]
    return [name.as_posix() for name in names if name.parts[0] != "_static"]


def opened(browser, name):
    """A page whose widgets have all started, and the files that it has loaded."""
    page, files = browser.new_page(), set()
    page.set_viewport_size(SCREENS["desktop"])
    page.on("request", lambda request: files.add(urlsplit(request.url)))
    page.goto((BOOK / name).as_uri())
    views = page.locator(f'script[type$="{VIEW}"]').count()
    for place in range(views):
        page.locator(".widget-host[data-widget=ready]").nth(place).wait_for()
    return page, [Path(unquote(url.path)) for url in files if url.scheme == "file"]


def steps_of(page, steps, every):
    """Steps of the controls of all widgets of a page, or of the first of each widget: a row for each."""
    for root in page.query_selector_all(".widget-host .mha-widget"):
        controls = root.query_selector_all(CONTROLS)
        visible = [control for control in controls if control.is_visible()]
        for control in visible if every else visible[:1]:
            control.scroll_into_view_if_needed()
            page.wait_for_timeout(300)
            name, times, pace = control.evaluate(MOVE, [steps, TYPED])
            yield {
                "widget": root.get_attribute("aria-label"),
                "control": name,
                "median_ms": round(statistics.median(times), 2),
                "p95_ms": round(statistics.quantiles(times, n=20)[-1], 2),
                "from_step_to_step_ms": round(pace, 2),
            }


def measure(browser, name, steps=100):
    """The weight of a page, and the steps of its widgets: a row for each."""
    page, files = opened(browser, name)
    raw, packed = 0, 0
    for path in files:
        content = path.read_bytes()
        raw += len(content)
        is_packed = path.suffix in ALREADY_COMPRESSED
        packed += len(content if is_packed else gzip.compress(content))
    yield {"page": name, "files": len(files), "bytes": raw, "gzip": packed}
    client = page.context.new_cdp_session(page)
    for screen, throttle in (("desktop", 1), ("phone", THROTTLE)):
        page.set_viewport_size(SCREENS[screen])
        client.send("Emulation.setCPUThrottlingRate", {"rate": throttle})
        for row in steps_of(page, steps, every=screen == "phone"):
            yield {"page": name, "screen": screen, "throttle": throttle, **row}
    page.close()


def heights(browser, name):
    """How high each widget of a page is at first, on each of the screens, by the widget's name."""
    page, _ = opened(browser, name)
    # A widget that was never on the screen would only have the height that was measured the last time.
    rule = ".widget-host { content-visibility: visible !important }"
    page.add_style_tag(content=rule)
    hosts, columns = page.locator(".widget-host"), []
    for screen in SCREENS.values():
        page.set_viewport_size(screen)
        page.wait_for_timeout(500)  # the theme's side bars slide in
        columns.append(hosts.evaluate_all(HIGH))
    names = hosts.evaluate_all(MODEL_IDS)
    page.close()
    return dict(zip(names, zip(*columns, strict=True), strict=True))


def main():
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heights", type=Path, help="measure heights only, for _ext")
    options = parser.parse_args()
    with open_browser() as browser:
        if not options.heights:
            print(json.dumps({"chromium": browser.version, "processor": processor()}))
            for name in pages():
                for row in measure(browser, name):
                    print(json.dumps(row, ensure_ascii=False), flush=True)
            return
        found = {
            name: heights(browser, name)
            for name in pages()
            if VIEW in (BOOK / name).read_text(encoding="utf-8")
        }
    text = json.dumps(found, indent=2)
    text = re.sub(r"\[\s+(\d+),\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2, \3]", text)
    options.heights.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
