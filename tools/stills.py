"""Take stills of widgets from the page, which replace them on GitHub, in print and without scripts.

    python tools/stills.py [NOTEBOOK ...]

`make notebooks` takes stills of each page that it runs. This script takes them again from stored pages.
"""

import base64
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import matplotlib
import nbformat
from drawings import put_back, store_images
from machine import browser as find_browser
from playwright.sync_api import sync_playwright
from stored_notebooks import ROOT, WIDGET_STATE, WIDGET_VIEW, notebooks, shrink_figure
from widget_code import is_ours, with_code

from mha_course.widgets import widget_files

TYPEFACES = Path(matplotlib.get_data_path()) / "fonts" / "ttf"

# The browser sees only the fonts that come with matplotlib, so the machine's fonts do not matter.
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
  <selectfont>
    <acceptfont><glob>*/DejaVuSans.ttf</glob></acceptfont>
    <acceptfont><glob>*/DejaVuSans-*.ttf</glob></acceptfont>
    <acceptfont><glob>*/DejaVuSansMono*.ttf</glob></acceptfont>
    <rejectfont><glob>*</glob></rejectfont>
  </selectfont>
  <alias binding="same"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <alias binding="same"><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <match target="font">
    <edit name="antialias" mode="assign"><bool>true</bool></edit>
    <edit name="hinting" mode="assign"><bool>false</bool></edit>
    <edit name="autohint" mode="assign"><bool>false</bool></edit>
    <edit name="rgba" mode="assign"><const>none</const></edit>
  </match>
</fontconfig>
"""
OPTIONS = [
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-gpu",
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
]

ADDRESS = "http://book.test/"
WIDTH = 740
"""The width of a page in CSS pixels, about that of a column in the book."""

PATIENCE = 300_000  # milliseconds, as a safety net

# A still leaves out the program, because nobody could unfold it there, and what its fonts lack.
PAGE = """<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">
<style>body {{ margin: 4px; font-family: sans-serif }} .mha-python, [lang="ja"] {{ display: none }}</style>
<div><script type="application/vnd.jupyter.widget-view+json">{view}</script></div>
<script type="application/vnd.jupyter.widget-state+json">{state}</script>
<script src="widget_loader.js"></script></html>"""


@contextlib.contextmanager
def open_browser():
    """A Chromium that draws the same on every machine, with fixed fonts and without hinting."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        config = Path(folder) / "fonts.conf"
        config.write_text(FONTS.format(fonts=TYPEFACES, cache=folder))
        browser = playwright.chromium.launch(
            executable_path=find_browser(),
            args=OPTIONS + sandbox,
            env={**os.environ, "FONTCONFIG_FILE": str(config)},
        )
        yield browser
        browser.close()


def at_rest(take):
    """The result of `take` once it is the same twice in a row, because some widgets compute for a while."""
    before = None
    for _ in range(50):
        if (shot := take()) == before:
            return shot
        before = shot
    raise AssertionError("the page does not come to rest")


def add_stills(notebook):
    """Store beside each widget a picture of its initial state, unless a text can replace it."""
    stored = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {"state": {}})
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        put_back(cell.outputs)
    shown = [
        output.data
        for cell in cells
        for output in cell.get("outputs", [])
        if (view := output.get("data", {}).get(WIDGET_VIEW))
        and "text/html" not in output.data
        # Widgets of other packages need a manager that the book does not have.
        and is_ours(stored["state"].get(view["model_id"], {"state": {}}))
    ]
    if shown:
        take_stills(shown, stored)
    for cell in cells:
        store_images(cell)


def take_stills(shown, stored):
    """Add to each of these outputs a picture of its widget."""
    with open_browser() as browser:
        viewport = {"width": WIDTH, "height": 2400}
        page = browser.new_page(viewport=viewport, reduced_motion="reduce")
        page.set_default_timeout(PATIENCE)
        for data in shown:
            png = base64.b64encode(still(page, data[WIDGET_VIEW], stored))
            data["image/png"] = shrink_figure(png.decode("ascii"))


def still(page, view, states):
    """A picture of one widget as a PNG file; `states` are the states of all widgets of its notebook."""
    state = json.dumps(with_code(states)).replace("</script>", r"<\/script>")
    html = PAGE.format(view=json.dumps(view), state=state)
    answers = {
        "": {"body": html, "content_type": "text/html; charset=utf-8"},
        "widget_loader.js": {"path": ROOT / "_static" / "widget_loader.js"},
    }

    def answer(route):
        name = route.request.url.removeprefix(ADDRESS)
        if name not in answers and name.endswith(
            ".js"
        ):  # large data, which few pages load
            answers[name] = {"body": widget_files()[name]}
        route.fulfill(**answers.get(name, {"status": 404}))

    page.unroute_all()
    page.route("http://**/*", answer)
    page.goto(ADDRESS)
    host = page.locator("[data-widget=ready]")
    host.wait_for()
    return at_rest(lambda: host.screenshot(animations="disabled"))


def main(arguments):
    """Run from the command line."""
    for path in map(Path, arguments) if arguments else notebooks():
        notebook = nbformat.read(path, as_version=4)
        add_stills(notebook)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
