"""The book's own typefaces, and how pages are set: short lines and titles, labels apart, nothing cut."""

import base64
import io
import re

import pytest
import typefaces
from fontTools.ttLib import TTFont
from test_book import CHAPTERS, PAGES

MOST_BYTES = 120_000  # of all typefaces together
MOST = 70  # characters in a line of text
LONG_TITLE = 50  # characters that need not fit one line

# What is wrong with a page as it is set, each thing in a line of its own.
FAULTS = """([most, longTitle]) => {
  const seen = (element) => element.checkVisibility() && !element.closest(".widget-host, .widget-still");
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const faults = [];
  const linesOf = (element) => {
    const lines = new Map(), range = document.createRange();
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      if (node.parentElement.closest(".math, .headerlink")) continue;
      for (let place = 0; place < node.length; place += 1) {
        range.setStart(node, place);
        range.setEnd(node, place + 1);
        const [box] = range.getClientRects();
        if (!box?.width) continue;
        const line = Math.round(box.bottom / 12);
        lines.set(line, (lines.get(line) ?? "") + node.data[place]);
      }
    }
    return [...lines.values()].map((text) => text.replace(/\\s+/g, " ").trim());
  };
  for (const text of all(".bd-article :is(p, li, dd, figcaption)")) {
    if (text.querySelector("p, li, table, pre, svg, div")) continue;
    faults.push(...linesOf(text).filter((line) => line.length > most).map((line) => `a long line: ${line}`));
  }
  for (const title of all(".bd-article :is(h1, h2, h3)")) {
    const text = title.textContent.slice(0, -1);
    if (linesOf(title).length > 1 && text.length <= longTitle) faults.push(`a title on two lines: ${text}`);
  }
  for (const output of all(".cell_output pre")) {
    const isCut = output.scrollWidth > output.clientWidth;
    if (isCut) faults.push(`an output is cut: ${output.textContent.slice(0, 40)}`);
  }
  for (const one of document.querySelectorAll("a, button, summary, input, select")) {
    const labels = one.labels?.length || one.ariaLabelledByElements?.length;
    const name = one.ariaLabel || one.title || one.textContent.trim() || labels;
    if (one.checkVisibility() && !name) faults.push(`nameless: ${one.outerHTML.slice(0, 80)}`);
  }
  for (const drawing of all("article svg[role=img]")) {
    const isLevel = (label) => label.textContent.trim() && !label.getCTM().b;
    const labels = [...drawing.querySelectorAll("text")].filter(isLevel);
    const boxes = labels.map((label) => [label.textContent, label.getBoundingClientRect()]);
    for (const [text, box] of boxes) for (const [other, next] of boxes) {
      const isBeside = Math.abs(box.top - next.top) < 0.5 * box.height && box.left < next.left;
      if (isBeside && next.left - box.right < 2) faults.push(`labels touch: ${text} | ${other}`);
    }
  }
  return faults;
}"""
PLANTED = """
<p style="max-width: none">{}</p><h2 style="width: 2em">A title<a class="headerlink">#</a></h2>
<button></button>
<div class="cell_output"><pre style="width: 9em; white-space: pre">a line wider than its box</pre></div>
<svg role="img" width="99" height="20"><text y="15">head 0</text><text x="20" y="15">head 1</text></svg>
""".format("a word " * 30)


@pytest.fixture(scope="module")
def faces(book):
    """The fonts of the style sheet with the names that pages use, and the bytes of each."""
    style = (book / "_static" / typefaces.STYLE).read_text(encoding="utf-8")
    found = re.findall(r'font-family: "([^"]+)".*?base64,([^"]+)"', style)
    return [(family, base64.b64decode(data)) for family, data in found]


def test_the_typefaces_are_light_and_hold_what_the_book_needs(faces):
    assert sum(len(data) for _, data in faces) <= MOST_BYTES
    assert len(faces) == 5
    for family, data in faces:
        font = TTFont(io.BytesIO(data))
        assert font.flavor == "woff2"
        needed = typefaces.TYPED | set(map(ord, "“”’–−×≤≥≈≠√∑→←αβδεθλμπσφ½²"))
        assert needed - {0xAD, 0x3A2} <= set(font.getBestCmap()), family


def test_the_licence_is_kept_and_with_it_the_name_that_it_reserves(faces, book):
    for family, data in faces:
        names = TTFont(io.BytesIO(data))["name"].names
        called = {str(record) for record in names if record.nameID in (1, 3, 4, 6, 16, 17, 18, 21, 25)}
        assert not [name for name in called if "Source" in name], called
        assert family in called
        assert "SIL Open Font License" in {record.nameID: str(record) for record in names}[13]
    for package, _ in typefaces.FAMILIES.values():
        text = (book / "_static" / f"{package}-LICENSE.md").read_text(encoding="utf-8")
        assert "SIL OPEN FONT LICENSE Version 1.1" in text


def test_a_font_is_reduced_to_its_characters_in_the_same_bytes_each_time():
    source = typefaces.MODULES / "source-sans" / "TTF" / "SourceSans3-Regular.ttf"
    one, two = (typefaces.reduced(source, {65, 0x3B1, 0x5B57}, flavor="woff2", name="Own") for _ in range(2))
    assert one == two
    assert set(TTFont(io.BytesIO(one)).getBestCmap()) == {65, 0x3B1}
    assert typefaces.characters_of(["<p>ę&le;→字</p>"]) == typefaces.TYPED | {0x119, 0x2264, 0x2192}


@pytest.mark.parametrize("way", ["http", "disk"])
def test_text_and_code_are_set_in_them(book, browser, serve, way):
    page = browser.new_page()
    page.goto(f"{serve(book) if way == 'http' else book.as_uri()}/{CHAPTERS[1]}")
    session = page.context.new_cdp_session(page)
    session.send("DOM.enable")
    session.send("CSS.enable")
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    for selector, family in (
        ("article p", "Course Text"),
        ("article h1", "Course Text"),
        ("article code.literal", "Course Code"),
    ):
        node = session.send("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
        fonts = session.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
        assert {font["familyName"] for font in fonts if font["isCustomFont"]} == {family}, (selector, fonts)
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_set_well(book, browser, name):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((book / name).as_uri())
    assert page.evaluate(FAULTS, [MOST, LONG_TITLE]) == []
    page.locator("article section").first.evaluate(
        "(node, html) => node.insertAdjacentHTML('afterbegin', html)", PLANTED
    )
    found = {fault.partition(":")[0] for fault in page.evaluate(FAULTS, [MOST, LONG_TITLE])}
    assert found == {"a long line", "a title on two lines", "an output is cut", "nameless", "labels touch"}
    page.close()
