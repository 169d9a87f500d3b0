"""Drawings are stored as images and built as inline graphics, and nothing is lost between the two."""

import base64
import re
import subprocess
import sys
from urllib.parse import unquote

import nbformat
import pytest
from bs4 import BeautifulSoup
from drawings import IMAGE, NOTE, WIDGET_VIEW, as_images, inline, put_back, store_images
from lxml import etree
from nbformat.v4 import new_code_cell, new_output
from stored_notebooks import ROOT, notebooks

from mha_course.pictures.drawing import svg, text

DRAWING = svg(20, 10, 'A "box" & <words>', text(5, 5, "α"), most=120)
MATRIX = '<svg width="118" height="96" viewBox="0 0 118 96"><rect fill="#eee"/></svg>'


def stored_html():
    for path in notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                if html := output.get("data", {}).get("text/html"):
                    yield path.relative_to(ROOT), cell.id, html


def test_an_image_says_what_the_drawing_says_and_is_as_large():
    html = as_images(f"<p>before</p>{DRAWING}<span>@</span>{MATRIX}")
    one, other = BeautifulSoup(html, "html.parser").find_all("img")
    assert one["alt"] == 'A "box" & <words>'
    assert (one["width"], one["style"]) == ("120", "width:100%;max-width:120px;display:block;margin:auto")
    # What draws a matrix describes the whole row of matrices around it.
    assert (other["alt"], other["width"], other["height"]) == ("", "118", "96")
    assert "<svg" not in html
    assert html.startswith("<p>before</p>")


@pytest.mark.parametrize("drawing", [DRAWING, MATRIX, f"<div>{DRAWING}{MATRIX}</div>", "<p>none</p>"])
def test_a_drawing_survives_being_stored(drawing):
    assert inline(as_images(drawing)) == drawing
    assert as_images(as_images(drawing)) == as_images(drawing)


def test_every_stored_drawing_is_an_image_that_can_be_drawn():
    found = 0
    for path, cell, html in stored_html():
        assert "<svg" not in html, f"{path}, {cell}: python tools/drawings.py {path}"
        for match in IMAGE.finditer(html):
            document = etree.fromstring(base64.b64decode(match[1]))
            assert document.tag == "{http://www.w3.org/2000/svg}svg"
            found += 1
    assert found > 90


def cut_off(document):
    """The boxes and words that do not lie inside a drawing, as far as their attributes tell."""
    left, top, width, height = map(float, document.get("viewBox").split())
    for part in document.iter("{*}rect", "{*}text"):
        sizes = [part.get(name, "0").removesuffix("px") for name in ("x", "y", "width", "height")]
        if part.get("transform") or any("%" in size for size in sizes):
            continue
        x, y, wide, high = map(float, sizes)
        if min(x - left, y - top, left + width - x - wide, top + height - y - high) < -0.5:
            yield etree.tostring(part).decode()


def test_no_box_and_no_word_of_a_drawing_is_cut_off():
    inside = svg(20, 10, "whole", '<rect x="1" y="1" width="18" height="8"/>')
    below = svg(20, 10, "cut", '<rect x="1" y="4" width="18" height="8"/>')
    for drawing, expected in ((inside, 0), (below, 1)):
        whole = base64.b64decode(IMAGE.search(as_images(drawing))[1])
        assert len(list(cut_off(etree.fromstring(whole)))) == expected
    for path, cell, html in stored_html():
        for match in IMAGE.finditer(html):
            document = etree.fromstring(base64.b64decode(match[1]))
            if document.get("viewBox"):
                assert list(cut_off(document)) == [], f"{path}, {cell}"


def test_the_book_has_every_drawing_inline(book):
    """Only an inline graphic follows the colours of the page when a reader changes them."""
    for page in {path for path, _, html in stored_html() if IMAGE.search(html)}:
        built = (book / page).with_suffix(".html").read_text(encoding="utf-8")
        assert "data:image/svg+xml;base64" not in built
        for _, cell, html in (each for each in stored_html() if each[0] == page):
            assert all(re.sub(r"\s+", " ", d[0]) in re.sub(r"\s+", " ", built)
                       for d in re.finditer(r"<svg.*?</svg>", inline(html), re.DOTALL)), cell  # fmt: skip


def test_nbconvert_shows_the_pictures_of_widgets(tmp_path):
    """With the settings that `make book` puts into the environment: no stored widget has code."""
    path = ROOT / "chapters" / "08_what_heads_learn.ipynb"
    outputs = [o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", [])]
    stored = [o.data["text/html"] for o in outputs if WIDGET_VIEW in o.get("data", {})]
    stills = sum(html.startswith(f'<img alt="{NOTE}') for html in stored)
    config = ROOT / "tools" / "jupyter_nbconvert_config.py"
    command = [sys.executable, "-m", "nbconvert", "--to", "html", f"--config={config}", "--stdout", str(path)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    page = BeautifulSoup(made, "html.parser")
    assert len(page.find_all("img", alt=re.compile(f"^{NOTE}"))) == stills > 0
    assert len(stored) > stills  # the others are stored as texts, such as questions
    assert page.find_all("script", type=WIDGET_VIEW) == []


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_the_picture_of_a_widget_says_what_it_is_until_it_is_put_back():
    made = {WIDGET_VIEW: {"model_id": "a"}, "image/png": PNG, "text/plain": "Explorer()"}
    alt = {"mystnb": {"image": {"alt": 'Two "maps"'}}}
    cell = new_code_cell("explorer", metadata=alt, outputs=[new_output("display_data", dict(made))])
    store_images(cell)
    [data] = [output.data for output in cell.outputs]
    image = BeautifulSoup(data["text/html"], "html.parser").img
    assert image["alt"] == f'{NOTE} Two "maps"'
    document = etree.fromstring(unquote(image["src"].partition(",")[2]).encode())
    assert NOTE in "".join(document.itertext())
    assert "image/png" not in data
    put_back(cell.outputs)
    assert cell.outputs[0].data == made


def test_a_figure_without_a_widget_stays_a_figure():
    cell = new_code_cell("plt.show()", outputs=[new_output("display_data", {"image/png": PNG})])
    store_images(cell)
    assert cell.outputs[0].data == {"image/png": PNG}
