"""Pictures of each widget and of each diagram, on pages of the book: wide and narrow, light and dark.

A picture is a sheet with these four views side by side, as a file with a palette in `stored/`. What differs
from machine to machine is fixed here: the fonts come from matplotlib's package, nothing is hinted, nothing
moves. Chromium 147 and 156 draw every sheet alike, pixel by pixel.
"""

import contextlib
import io
import json
import mimetypes
from collections import Counter
from pathlib import Path

import compare
import nbformat
from bs4 import BeautifulSoup
from drawings import inline
from ipywidgets.embed import dependency_state, embed_data
from PIL import Image
from stills import at_rest, open_browser
from widget_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).resolve().parent / "stored"
FAILED = ROOT / "_build" / "pictures"
"""Where a failing comparison leaves the new picture and the difference."""

WIDTHS, THEMES = (1280, 360), ("light", "dark")
"""Widths of the window in CSS pixels, themes of the page. A sheet shows both themes of each width."""

VIEWS = [(width, theme) for width in WIDTHS for theme in THEMES]
GAP, GREY = 8, (128, 128, 128)
ADDRESS = "http://book.test/"
PATIENCE = 60_000  # milliseconds: a safety net


def widget(name):
    """The mark-up of a sample widget: its state, and the place where it is shown."""
    sample = SAMPLES[name]()
    # The state of this widget only, because others may still be alive.
    data = embed_data(views=[sample], state=dependency_state([sample], drop_defaults=False))
    script = lambda kind, content: (  # noqa: E731
        f'<script type="application/vnd.jupyter.widget-{kind}+json">'
        + json.dumps(content).replace("</script>", r"<\/script>")
        + "</script>"
    )
    return script("state", data["manager_state"]) + output(script("view", data["view_specs"][0]))


def diagrams():
    """The mark-up of every diagram that the chapters draw: name -> HTML with inline SVG."""
    found = {}
    for path in [ROOT / "index.ipynb", *sorted((ROOT / "chapters").glob("*.ipynb"))]:
        for cell in nbformat.read(path, as_version=4).cells:
            for stored in cell.get("outputs", []):
                html = inline(stored.get("data", {}).get("text/html", ""))
                if "<svg" in html:
                    found[f"{path.stem}.{cell.id}"] = output(f'<div class="output text_html">{html}</div>')
    return found


def output(html):
    """An output of a cell, as the book encloses it."""
    return (
        f'<div class="cell docutils container"><div class="cell_output docutils container">{html}</div></div>'
    )


DIAGRAMS = diagrams()
NAMES = [*SAMPLES, *DIAGRAMS]


def markup(name):
    return DIAGRAMS[name] if name in DIAGRAMS else widget(name)


@contextlib.contextmanager
def open_studio(book):
    """A `Studio` with a browser of its own, for the folder of the built book."""
    with open_browser() as browser:
        yield Studio(browser, book)


class Studio:
    """Takes pictures of widgets and diagrams on an emptied page of the book."""

    def __init__(self, browser, book):
        self.book, self.shell = book, empty_page(book)
        options = {"reduced_motion": "reduce", "locale": "en-US", "timezone_id": "UTC"}
        context = browser.new_context(device_scale_factor=1, **options)
        context.route("**/*", self.answer)
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.content = ""

    def answer(self, route):
        """Answer a request from the book's folder; the page itself is made here."""
        path = route.request.url.removeprefix(ADDRESS).partition("?")[0]
        if path == "chapters/picture.html":
            route.fulfill(body=self.content, content_type="text/html; charset=utf-8")
        elif (self.book / path).is_file():
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            route.fulfill(body=(self.book / path).read_bytes(), content_type=kind)
        else:
            route.fulfill(status=404, body="")

    def sheet(self, name, plant=""):
        """The four views of a subject side by side. `plant` is JavaScript that spoils the page before."""
        html, views = markup(name), []
        for width in WIDTHS:
            self.open(html, width)
            if plant:
                self.page.evaluate(plant)
            views += [self.view(theme, rests=name in DIAGRAMS) for theme in THEMES]
        return join(views)

    def open(self, html, width):
        """Show this mark-up in a window of this width; the window is so high that nothing has to scroll."""
        self.content = self.shell.replace("CONTENT", html)
        self.page.set_viewport_size({"width": width, "height": 2400})
        self.page.goto(f"{ADDRESS}chapters/picture.html")
        self.page.wait_for_function(READY)

    def view(self, theme, *, rests):
        """One view, as wide as the book's column with its margin. What `rests` does not change by itself."""
        self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        self.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        # A diagram in steps shows one panel at a time, so all panels are drawn below one another.
        shots = []
        for step in self.page.locator(".text_html input[type=radio]").all():
            step.evaluate("node => node.click()")
            shots.append(self.shot())
        return stack([picture_of(shot) for shot in shots or [self.shot() if rests else at_rest(self.shot)]])

    def shot(self):
        clip = self.page.evaluate(COLUMN)
        return self.page.screenshot(clip=clip, full_page=clip["height"] > 2300, animations="disabled")


def picture_of(png):
    return Image.open(io.BytesIO(png)).convert("RGB")


READY = """() => {
  const hosts = [...document.querySelectorAll("[data-widget]")];
  const views = document.querySelectorAll("script[type$='widget-view+json']").length;
  return document.fonts.status === "loaded" && hosts.length >= views
    && hosts.every((host) => host.dataset.widget === "ready");
}"""

# As wide as the book's column with its margin, and as high as its contents.
COLUMN = """() => {
  const MARGIN = 8;
  const { left, right, top } = document.querySelector("article").getBoundingClientRect();
  const { bottom } = document.querySelector("article").lastElementChild.getBoundingClientRect();
  const x = Math.max(0, Math.floor(left) - MARGIN);
  const y = Math.max(0, Math.floor(top + scrollY));
  const width = Math.min(innerWidth, Math.ceil(right) + MARGIN) - x;
  return { x, y, width, height: Math.ceil(bottom + scrollY) + 8 - y };
}"""


def empty_page(book):
    """A page of the book without text, contents and scripts, except the one that starts widgets."""
    path = book / "chapters" / "03_multi_head_attention.html"
    page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    for node in page.find_all(["script", "noscript"]):
        if "widget_loader.js" not in node.get("src", ""):
            node.decompose()
    for node in page.select("meta[http-equiv], link[rel=preload]"):
        node.decompose()
    for node in page.select("header, footer, .bd-sidebar-primary > *, .bd-sidebar-secondary > *"):
        node.decompose()
    page.html["data-theme"] = page.html["data-mode"] = "light"
    article = page.select_one("article.bd-article")
    article.clear()
    article.append("CONTENT")
    # Letters are placed on whole pixels. No line of text in a diagram may lie halfway between two, because
    # the last bit of a sum would decide, and it differs between processors.
    style = page.new_tag("style")
    style.string = ".text_html svg { translate: 0 0.0037px }"
    page.head.append(style)
    return str(page)


def join(images):
    """Images side by side; the sheet knows where each starts."""
    width = sum(image.width for image in images) + GAP * (len(images) - 1)
    sheet = Image.new("RGB", (width, max(image.height for image in images)), GREY)
    left, sheet.info["starts"] = 0, []
    for image in images:
        sheet.paste(image, (left, 0))
        sheet.info["starts"].append(left)
        left += image.width + GAP
    return sheet


def stack(images):
    """Images one below the other."""
    height = sum(image.height for image in images) + GAP * (len(images) - 1)
    sheet = Image.new("RGB", (max(image.width for image in images), height), GREY)
    top = 0
    for image in images:
        sheet.paste(image, (0, top))
        top += image.height + GAP
    return sheet


def stored_path(name):
    return STORED / f"{name}.png"


def save(sheet, path):
    """Write a sheet with the smallest palette in which no colour looks different."""
    for colors in (64, 128, 256):
        small = sheet.quantize(colors, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        if not compare.differing(small.convert("RGB"), sheet).any():
            break
    else:
        small = sheet
    path.parent.mkdir(parents=True, exist_ok=True)
    small.save(path, optimize=True)


def faults_of(sheet, name, stored=None, failed=FAILED):
    """Say how a new sheet differs from the stored one, or return None.

    A sheet that differs is written to the folder `failed` with a picture of what differs.
    """
    path = (stored or STORED) / f"{name}.png"
    again = f"If it should look like this, run: make pictures ONLY={name}"
    if not path.is_file():
        save(sheet, failed / f"{name}.new.png")
        return f"{name}: no picture is stored. The new one is {shown(failed / f'{name}.new.png')}. {again}"
    with Image.open(path) as image:
        found, picture = differences(sheet, image.convert("RGB"), name)
    if not found:
        return None
    save(sheet, failed / f"{name}.new.png")
    save(picture, failed / f"{name}.difference.png")
    worst = "; ".join(said(area, sheet) for area in found[:3])
    more = f" and {len(found) - 3} more places" if len(found) > 3 else ""
    return (
        f"{name} looks different: {worst}{more}. The new picture is {shown(failed / f'{name}.new.png')}, "
        f"beside it {name}.difference.png has in red what differs. {again}"
    )


def differences(sheet, stored, name):
    """What looks different, largest first, and a picture of it.

    A widget computes what it shows, and another processor may round a number to another digit. So one
    difference of the size of a digit in each view is no fault. A diagram is drawn from stored numbers.
    """
    found, picture = compare.differences(sheet, stored)
    spare = Counter() if name in DIAGRAMS else Counter(VIEWS)
    digits = Counter(view_of(area, sheet)[1] for area in found if area.may_be_digit())
    kept = [
        area for area in found
        if not area.may_be_digit() or digits[view := view_of(area, sheet)[1]] > spare[view]
    ]  # fmt: skip
    return kept, picture


def said(area, sheet):
    """A difference in words: in which view of the sheet, where, how large."""
    start, (width, theme) = view_of(area, sheet)
    return (
        f"at {width} px, {theme}, {area.pixels} pixels in {area.width} × {area.height} "
        f"at {area.left - start} from the left, {area.top} from the top"
    )


def view_of(area, sheet):
    """The view of a sheet in which a difference begins: (its left edge in the sheet, its width and theme)."""
    return max(pair for pair in zip(sheet.info["starts"], VIEWS, strict=True) if pair[0] <= area.left)


def shown(path):
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def left_over():
    """Stored pictures of what is not there any more."""
    return [path for path in sorted(STORED.glob("*")) if path.name not in {f"{name}.png" for name in NAMES}]
