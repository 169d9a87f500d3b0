"""axe-core over every page of the built book and over every widget, light and dark, wide and narrow.

Two things would cost most of its time and find nothing, so they are left out: the glyphs of equations, which
are hidden from screen readers and have MathML beside them, and the contrast of what looks like other text.
"""

import importlib.util
from pathlib import Path

import pytest
from playwright.sync_api import expect
from test_book import HOST, PAGES, VIEW
from widget_page import write_page
from widget_samples import SAMPLES

[PACKAGE] = importlib.util.find_spec("axe_playwright_python").submodule_search_locations
AXE = Path(PACKAGE, "axe.min.js").read_text(encoding="utf-8")

# Rules in addition to axe's default ones.
MORE_RULES = ("label-content-name-mismatch", "target-size")

CHECK = """async (moreRules) => {
  const rules = { "color-contrast": { enabled: false } };
  for (const rule of moreRules) rules[rule] = { enabled: true };
  const options = { resultTypes: ["violations"], elementRef: true, rules };
  const { violations } = await axe.run({ exclude: [["mjx-container"]] }, options);
  // A header that is an equation or has a label is not empty, but axe looks for plain text only. And the
  // label of a cell says in full what the cell shows rounded or as a colour: nobody calls a cell by that.
  const isNamed = (element) => element.ariaLabel || element.querySelector("mjx-assistive-mml math");
  const isReal = (id, element) => !(id === "empty-table-header" && isNamed(element))
    && !(id === "label-content-name-mismatch" && element.role === "gridcell");
  const text = (id, { html, target }) => `${id}: ${target} ${html.slice(0, 200)}`;
  return violations.flatMap(({ id, nodes }) =>
    nodes.filter(({ element }) => isReal(id, element)).map((node) => text(id, node)));
}"""

# Unfolded parts fade in, here at once. The page also needs time to notice what can now be scrolled.
OPEN_ALL = """async () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  await new Promise(requestAnimationFrame);
  for (const animation of document.getAnimations()) animation.finish();
  await new Promise(requestAnimationFrame);
}"""

# The contrast of a text depends on its colour, its size and what is behind it, so one of each kind is enough.
CONTRAST = """async () => {
  const kinds = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("script, style, mjx-container")) continue;
    const { color, fontSize, fontWeight } = getComputedStyle(element);
    const kind = [color, fontSize, fontWeight];
    for (let node = element; node; node = node.parentElement) {
      const { backgroundColor, backgroundImage, opacity } = getComputedStyle(node);
      kind.push(`${backgroundColor} ${backgroundImage} ${opacity}`);
    }
    const key = kind.filter((part) => part !== "rgba(0, 0, 0, 0) none 1").join("|");
    if (element.checkVisibility() && !kinds.has(key)) kinds.set(key, element);
  }
  const only = { runOnly: ["color-contrast"], resultTypes: ["violations", "passes"] };
  const { violations, passes } = await axe.run({ include: [...kinds.values()] }, only);
  if (passes.length === 0) return ["no text was looked at"];
  return violations.flatMap(({ nodes }) =>
    nodes.map(({ html, failureSummary }) => `${html.slice(0, 200)} ${failureSummary}`));
}"""


@pytest.fixture
def open_page(browser):
    """Return a function that opens an address as somebody with a screen and a preference sees it."""
    pages = []

    def open_address(address, width, scheme="light"):
        options = {"color_scheme": scheme, "reduced_motion": "reduce"}
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.goto(address, wait_until="load")
        expect(page.locator(HOST)).to_have_count(page.locator(VIEW).count())
        page.evaluate(OPEN_ALL)
        page.evaluate(AXE)
        return page

    yield open_address
    for page in pages:
        page.close()


every_page = pytest.mark.parametrize("page_name", [*PAGES, "genindex.html", "search.html"])


@every_page
def test_page_has_no_violation_and_enough_contrast(open_page, book, page_name):
    page = open_page((book / page_name).as_uri(), 1280)
    assert page.evaluate(CHECK, MORE_RULES) == []
    assert page.evaluate(CONTRAST) == []
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.evaluate(OPEN_ALL)  # the colours fade too
    assert page.evaluate(CONTRAST) == []


@every_page
def test_page_has_no_violation_on_a_phone(open_page, book, page_name):
    assert open_page((book / page_name).as_uri(), 360).evaluate(CHECK, MORE_RULES) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SAMPLES)
def test_widget_has_no_violation(open_page, tmp_path, name, scheme):
    """By itself, too: what a page hides or names round it may not be there in a notebook."""
    page = open_page(write_page(tmp_path, [SAMPLES[name]()], theme=scheme).as_uri(), 1280, scheme)
    if scheme == "dark":
        page.add_style_tag(content="body { background: #121212; color: #ced6dd }")
    # A page that contains only a widget has neither heading nor landmark.
    outside = ("region: ", "page-has-heading-one: ", "landmark-one-main: ")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(OPEN_ALL)
        found = page.evaluate(CHECK, MORE_RULES)
        assert [line for line in found if not line.startswith(outside)] == []
        assert page.evaluate(CONTRAST) == []


def test_violations_are_found(open_page, book):
    page = open_page((book / PAGES[0]).as_uri(), 1280)
    page.evaluate(
        """() => document.querySelector("article section").insertAdjacentHTML("beforeend",
          '<p style="color: #999; background: white">pale</p><img src="data:,"><button></button>')"""
    )
    found = page.evaluate(CHECK, MORE_RULES)
    assert {line.split(":")[0] for line in found} == {"button-name", "image-alt"}
    [pale] = page.evaluate(CONTRAST)
    assert "pale" in pale
