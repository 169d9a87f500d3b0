"""Each widget and each diagram looks as in its stored picture, and what spoils a layout is noticed."""

import functools
import sys

import compare
import gallery
import pytest
from PIL import Image, ImageDraw, ImageFont

own_letters = "other systems draw letters in their own way"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason=own_letters)

EVERYWHERE = set(gallery.VIEWS)
DARK = {view for view in gallery.VIEWS if view[1] == "dark"}
NARROW = {view for view in gallery.VIEWS if view[0] == 360}


@pytest.fixture(scope="module")
def studio(book):
    with gallery.open_studio(book) as studio:
        yield studio


@pytest.fixture(scope="module")
def sound(studio):
    """A function that returns the sheet of a subject as it is now, taken once."""
    return functools.cache(studio.sheet)


@pytest.mark.parametrize("name", gallery.NAMES)
def test_it_looks_as_in_the_stored_picture(studio, name):
    assert gallery.faults_of(studio.sheet(name), name) is None


def test_each_picture_belongs_to_a_widget_or_diagram_and_all_are_small():
    assert gallery.left_over() == []
    assert sum(path.stat().st_size for path in gallery.STORED.iterdir()) < 6_000_000


def css(rules):
    return f"""() => {{
      const style = document.head.appendChild(document.createElement("style"));
      style.textContent = `{rules}`;
    }}"""


def without_rule(selector):
    """Remove the rules of one selector from the style sheets of the page."""
    return f"""() => {{
      let found = 0;
      for (const sheet of document.styleSheets) {{
        for (let i = sheet.cssRules.length - 1; i >= 0; i -= 1) {{
          if (sheet.cssRules[i].selectorText !== "{selector}") continue;
          sheet.deleteRule(i);
          found += 1;
        }}
      }}
      if (!found) throw new Error("there is no such rule");
    }}"""


def change(selector, body, index=0):
    """Run JavaScript on a `node` of the page."""
    return f"""() => {{
      const node = document.querySelectorAll("{selector}")[{index}];
      {body}
    }}"""


POOLING, COST, DIAGRAM = "PoolingExplorer", "CostCalculator", "05_positional_encoding.cell-59"
ROLES, TILES = "04_self_attention.roles-picture", "appendix_efficiency.tiles-figure"
NEXT_DIGIT = "node.textContent = node.textContent.replace(/.$/, (last) => (Number(last) + 1) % 10);"
SHORTER = "node.setAttribute('width', node.getAttribute('width') * 0.8);"
EXCHANGED = """() => {
  const [one, , other] = document.querySelectorAll("svg[role=img] path[stroke-width='2']");
  const color = one.getAttribute("stroke");
  one.setAttribute("stroke", other.getAttribute("stroke"));
  other.setAttribute("stroke", color);
}"""
ON_PHONES = "@media (max-width: 400px)"
# Fault -> subject, a change that spoils the page, the views in which it is visible.
PLANTED = {
    "a rule of a widget's style sheet is gone": (POOLING, without_rule(".mha-pooling-explorer .mha-legend"),
        EVERYWHERE),
    "frames are gone": ("Quiz", css(".mha-widget * { border: 0 !important }"), EVERYWHERE),
    "the book's style sheet is gone": (DIAGRAM, change("link[href*='book.css']", "node.remove()"),
        EVERYWHERE),
    "a legend is shifted": (POOLING, css(".mha-legend { position: relative; left: 7px }"), EVERYWHERE),
    "a label lies over others": (POOLING, css(".mha-x-name { margin-top: -16px }"), EVERYWHERE),
    "a label of a diagram lies over its neighbour": (DIAGRAM,
        change("svg[role=img] text", "node.setAttribute('x', '92')"), EVERYWHERE),
    "a bar has another colour": (COST, css(".mha-memory rect.mha-model { fill: #b33 }"), EVERYWHERE),
    "a swatch has another colour": (
        COST,
        css(".mha-of-scores i { background: #b33 !important }"),
        EVERYWHERE,
    ),
    "a bar is too short": (COST, change(".mha-memory rect.mha-model", SHORTER), EVERYWHERE),
    "a dark page has light widgets": (
        COST,
        css("html[data-theme=dark] .mha-widget { background: #fff }"),
        DARK,
    ),
    "a dark page has a light page's colour": (
        COST,
        css("html[data-theme=dark] .mha-widget { --mha-query: #1f6fb5 }"),
        DARK,
    ),
    "a text is cut off on a phone": (COST,
        css(f"{ON_PHONES} {{ .mha-hint {{ overflow: hidden; white-space: nowrap }} }}"), NARROW),
    "a widget is wider than a phone": ("Quiz", css(f"{ON_PHONES} {{ .mha-widget {{ min-width: 400px }} }}"),
        NARROW),
    "a curve is missing": (POOLING, css(".mha-curve.mha-truth { display: none }"), EVERYWHERE),
    "a curve of a diagram is missing": (DIAGRAM,
        change("svg[role=img] path[stroke-width='2']", "node.remove()", 4), EVERYWHERE),
    "two curves have exchanged their colours": (DIAGRAM, EXCHANGED, EVERYWHERE),
    "a step of a diagram stays hidden": (TILES, css(".tile-steps-3 { display: none !important }"),
        EVERYWHERE),
    "arrows have lost their tips": (ROLES, change("svg marker", "node.remove()"), EVERYWHERE),
    "a handle is not there": ("RotationDial", css(".mha-handle.mha-query { visibility: hidden }"),
        EVERYWHERE),
    "two numbers are others": (
        POOLING,
        f"() => {{ for (const node of [...document.querySelectorAll('strong')].slice(0, 2)) {NEXT_DIGIT} }}",
        EVERYWHERE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen_in_the_views_that_it_spoils(studio, sound, fault):
    name, plant, views = PLANTED[fault]
    sheet = studio.sheet(name, plant)
    found, _ = gallery.differences(sheet, sound(name), name)
    assert {gallery.view_of(area, sheet)[1] for area in found} == views


@pytest.mark.parametrize("name", [COST, POOLING, DIAGRAM])
def test_the_same_subject_looks_the_same_again(studio, sound, name):
    assert gallery.differences(studio.sheet(name), sound(name), name)[0] == []


def test_one_digit_of_a_widget_may_be_rounded_otherwise(studio, sound):
    sheet = studio.sheet(POOLING, change("strong", NEXT_DIGIT))
    found, _ = compare.differences(sheet, sound(POOLING))
    assert {gallery.view_of(area, sheet)[1] for area in found} == EVERYWHERE
    assert gallery.differences(sheet, sound(POOLING), POOLING)[0] == []
    drawn_only = gallery.differences(sheet, sound(POOLING), DIAGRAM)[0]  # a diagram computes nothing
    assert set(drawn_only) == set(found)


def test_what_differs_is_written_down_and_named(tmp_path, sound):
    name = "Quiz"
    sheet = sound(name)
    assert gallery.faults_of(sheet, name, tmp_path / "none", tmp_path).startswith(
        "Quiz: no picture is stored."
    )
    assert (tmp_path / "Quiz.new.png").is_file()
    gallery.save(sheet, tmp_path / "stored" / "Quiz.png")
    assert gallery.faults_of(sheet, name, tmp_path / "stored", tmp_path) is None
    spoilt = sheet.copy()
    start = sheet.info["starts"][2]
    ImageDraw.Draw(spoilt).rectangle((start + 40, 60, start + 69, 79), fill=(200, 0, 200))
    spoilt.info["starts"] = sheet.info["starts"]
    said = gallery.faults_of(spoilt, name, tmp_path / "stored", tmp_path)
    assert "at 360 px, light, 600 pixels in 30 × 20 at 40 from the left, 60 from the top" in said
    assert "make pictures ONLY=Quiz" in said
    assert str(tmp_path / "Quiz.new.png") in said
    with Image.open(tmp_path / "Quiz.new.png") as new, Image.open(tmp_path / "Quiz.difference.png") as seen:
        assert new.convert("RGB").getpixel((start + 50, 70)) == (200, 0, 200)
        assert seen.convert("RGB").getpixel((start + 50, 70)) == (220, 0, 0)


def test_a_taller_picture_differs_where_it_is_taller(sound):
    sheet = sound("Quiz")
    taller = Image.new("RGB", (sheet.width, sheet.height + 12), "white")
    taller.paste(sheet, (0, 0))
    [area, *more] = compare.differences(taller, sheet)[0]
    assert (area.top, area.height, more) == (sheet.height, 12, [])


def drawn(word, shift):
    """A word in small dark letters, `shift` pixels to the right, in pixels of which each is a mean of 64."""
    large = Image.new("RGB", (8 * 61, 8 * 23), "white")
    font = ImageFont.load_default(8 * 10)
    ImageDraw.Draw(large).text((8 * (7 + shift), 8 * 5), word, "black", font)
    return large.reduce(8)


@pytest.mark.parametrize("word", ["24", "column", "−1.5"])
def test_letters_may_lie_a_quarter_of_a_pixel_further_and_no_more(word):
    for start in (0, 0.25, 0.5, 0.75):
        stored = drawn(word, start)
        assert compare.differing(drawn(word, start + 0.25), stored).any()
        assert compare.differences(drawn(word, start + 0.25), stored)[0] == []
        assert compare.differences(drawn(word, start + 1), stored)[0] != []
        for other in (word[:-1] + "3", word[:-1]):
            assert compare.differences(drawn(other, start), stored)[0] != []
