"""The widgets in a real JupyterLab with a real kernel: traits go both ways, and torch has the last word."""

import time

import nbformat
import pytest
import torch
from lab import PATIENCE, open_jupyterlab
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Expect
from widget_page import ROOT, assert_shows_numbers

from mha_course.widgets import AlibiExplorer, HeadExample, HeadExplorer
from mha_lib import MultiHeadAttention

expect = Expect()
expect.set_options(timeout=PATIENCE)

# The widgets that the notebook makes, and those that the tests make to compare with.
MAKE_WIDGETS = """\
import torch
import mha_lib
from mha_lib import MultiHeadAttention
from mha_course.widgets import AlibiExplorer, HeadExample, HeadExplorer

generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)
x = torch.randn(5, 12, generator=generator)
example = HeadExample("five words", ["to", "be", "or", "not", "be"], x, MultiHeadAttention(12, 2))
alibi = AlibiExplorer(num_heads=4)
heads = HeadExplorer([example])"""
START = """\
alibi.num_heads, alibi.head, alibi.length, alibi.shown = 4, 0, 10, "weights"
heads.num_heads, heads.head, heads.valid_len, heads.is_causal = 2, 0, 5, False"""
ALIBI, HEADS = 0, 1  # in the order of the cells that show them


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory):
    """The address of a notebook in a JupyterLab that runs on a free port, with a token of its own."""
    home = tmp_path_factory.mktemp("jupyterlab")
    cells = [new_code_cell(source) for source in (MAKE_WIDGETS, "alibi", "heads", "")]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, home / "widgets.ipynb")
    with open_jupyterlab(home) as address:
        yield address("widgets.ipynb")


class Notebook:
    """A notebook that is open in JupyterLab; its last cell is there for what the tests want to run."""

    def __init__(self, page, address):
        self.page, self.errors, self.requests = page, [], []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._keep_error)
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        expect(page.locator("#jp-main-statusbar")).to_contain_text("(ipykernel) | Idle")
        self.cells = page.locator(".jp-Notebook .jp-CodeCell")
        expect(self.cells).to_have_count(4)
        self.runs = 0
        self.scratch = self.cells.last
        for index in range(3):
            self._execute(self.cells.nth(index))
        expect(page.locator(".mha-widget")).to_have_count(2)

    def _keep_error(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def _execute(self, cell):
        cell.locator(".cm-content").first.focus()
        self.page.keyboard.press("Control+Enter")
        self.runs += 1
        expect(cell.locator(".jp-InputArea-prompt")).to_have_text(f"[{self.runs}]:")

    def run(self, source):
        """Run a cell with this source and return what it printed."""
        self.scratch.locator(".cm-content").first.focus()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)
        self._execute(self.scratch)
        return self.scratch.locator(".jp-OutputArea").inner_text().strip()

    def expect_print(self, expression, expected):
        """Wait until Python has heard of what was done in the page: a cell prints this."""
        end = time.monotonic() + PATIENCE / 1000
        while (printed := self.run(f"print({expression})")) != expected:
            assert time.monotonic() < end, f"{expression} is {printed}, not {expected}"

    def widget(self, index):
        return self.page.locator(".mha-widget").nth(index)


@pytest.fixture(scope="module")
def notebook(browser, jupyterlab):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield Notebook(page, jupyterlab)
    page.close()


@pytest.fixture
def explorers(notebook):
    """The two widgets in the state of the start, in the kernel, on the page, and here."""
    notebook.run(START)
    torch.manual_seed(0)
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    words = ["to", "be", "or", "not", "be"]
    example = HeadExample("five words", words, x, MultiHeadAttention(12, 2))
    return AlibiExplorer(num_heads=4, length=10, shown="weights"), HeadExplorer([example])


def assert_shows(widget, heads):
    """What of the numbers stands in the page: the small maps are pictures."""
    assert_shows_numbers(widget, heads, heads.numbers().keys() - {"weights"})


def slider(widget):
    return widget.get_by_role("slider", name="num_heads")


def test_the_kernel_has_the_package_of_this_folder(notebook):
    assert notebook.run("print(mha_lib.__file__)") == str(ROOT / "mha_lib" / "__init__.py")


def test_a_slider_in_the_page_changes_the_trait(notebook, explorers):
    alibi, heads = explorers
    slider(notebook.widget(ALIBI)).focus()
    for _ in range(3):
        notebook.page.keyboard.press("ArrowRight")
    # If JupyterLab received an arrow key, it would move to a different cell.
    expect(slider(notebook.widget(ALIBI))).to_be_focused()
    notebook.expect_print("alibi.num_heads", "7")
    alibi.num_heads = 7
    assert_shows_numbers(notebook.widget(ALIBI), alibi)

    slider(notebook.widget(HEADS)).focus()
    notebook.page.keyboard.press("ArrowRight")
    notebook.expect_print("heads.num_heads, heads.head_dim", "3 4")
    heads.num_heads = 3
    assert_shows(notebook.widget(HEADS), heads)
    assert notebook.run("print(alibi.num_heads)") == "7", "one widget leaves another alone"


def test_a_trait_that_python_sets_changes_the_page(notebook, explorers):
    alibi, heads = explorers
    notebook.run("alibi.num_heads, alibi.head, alibi.shown = 6, 5, 'bias'")
    alibi.num_heads, alibi.head, alibi.shown = 6, 5, "bias"
    expect(slider(notebook.widget(ALIBI))).to_have_value("6")
    expect(notebook.widget(ALIBI).get_by_role("radio", name="Scores")).to_be_checked()
    assert_shows_numbers(notebook.widget(ALIBI), alibi)
    notebook.run("heads.num_heads, heads.valid_len, heads.is_causal = 12, 4, True")
    heads.num_heads, heads.valid_len, heads.is_causal = 12, 4, True
    expect(notebook.widget(HEADS).locator(".mha-maps input")).to_have_count(12)
    assert_shows(notebook.widget(HEADS), heads)


@pytest.mark.parametrize(("source", "message"), [
    ("alibi.num_heads = 17", "num_heads must lie in 1..16, got 17"),
    ("alibi.num_heads = float('nan')", "num_heads must be an int, got nan"),
    ("alibi.head = 4", "head must lie in 0..3, got 4"),
    ("heads.num_heads = 5", "num_heads must divide embed_dim=12"),
    ("heads.valid_len = -1", "valid_len must lie in 0.."),
])  # fmt: skip
def test_python_refuses_a_bad_value_and_the_page_stays(notebook, explorers, source, message):
    bodies = [notebook.widget(i).locator(".mha-body") for i in (ALIBI, HEADS)]
    before = [body.inner_text() for body in bodies]
    printed = notebook.run(f"try:\n    {source}\nexcept (TypeError, ValueError) as error:\n    print(error)")
    assert message in printed
    # Everything else that reached the page came earlier.
    notebook.run("alibi.length = 9")
    lengths = notebook.widget(ALIBI).get_by_role("slider", name="length")
    expect(lengths).to_have_attribute("aria-valuetext", "9 tokens")
    notebook.run("alibi.length = 10")
    expect(lengths).to_have_attribute("aria-valuetext", "10 tokens")
    assert [body.inner_text() for body in bodies] == before
    expect(notebook.page.locator(".mha-widget [role=alert]:visible")).to_have_count(0)


def test_a_cell_recomputes_in_torch_what_the_browser_computed(notebook, explorers):
    slider(notebook.widget(ALIBI)).focus()
    notebook.page.keyboard.press("End")
    slider(notebook.widget(HEADS)).focus()
    notebook.page.keyboard.press("End")
    notebook.expect_print("alibi.num_heads, heads.num_heads", "16 12")
    # Each report follows a moment after its widget was drawn.
    notebook.expect_print("alibi.browser_report['settings']['num_heads']", "16")
    notebook.expect_print("heads.browser_report['settings']['num_heads']", "12")
    for name in ("alibi", "heads"):
        assert 0 <= float(notebook.run(f"print({name}.browser_difference())")) < 1e-6
    printed = notebook.run(
        "last = mha_lib.alibi_bias(16, 10)[:, -1]\n"  # the scores of the last query, without a needle
        "needles = 8 * torch.eye(10)[:9].flip(0)\n"  # the needle lies 1, 2, … 9 tokens back
        "weights = (last[:, None] + needles).softmax(-1)[..., :9].flip(2).diagonal(0, 1, 2)\n"
        "drawn = torch.tensor(alibi.browser_report['numbers']['by_distance'])\n"
        "print((drawn - weights).abs().max().item())"
    )
    assert float(printed) < 1e-6


def test_two_views_of_a_widget_are_one_and_a_view_can_go(notebook, explorers):
    notebook.run("alibi")
    second = notebook.scratch.locator(".mha-widget")
    expect(slider(second)).to_have_value("4")
    slider(second).focus()
    notebook.page.keyboard.press("ArrowLeft")
    expect(slider(notebook.widget(ALIBI))).to_have_value("3")
    notebook.expect_print("alibi.num_heads", "3")
    expect(second).to_have_count(0)
    slider(notebook.widget(ALIBI)).focus()
    notebook.page.keyboard.press("ArrowLeft")
    notebook.expect_print("alibi.num_heads", "2")


def contrast(locator):
    """Of a text on what lies behind it, by the formula of WCAG 2."""
    return locator.evaluate(
        """node => {
          const parse = (color) => {
            const numbers = color.match(/[\\d.]+/g).map(Number);
            return color.startsWith("color(srgb") ? numbers.map((c, i) => (i < 3 ? 255 * c : c)) : numbers;
          };
          const luminance = (color) => {
            const [r, g, b] = parse(color).map((c) => c / 255)
              .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const isClear = (color) => parse(color)[3] === 0;
          let ground = node;
          while (isClear(getComputedStyle(ground).backgroundColor)) ground = ground.parentElement;
          const colors = [getComputedStyle(node).color, getComputedStyle(ground).backgroundColor];
          const pair = colors.map(luminance);
          return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        }"""
    )


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_the_widgets_follow_the_theme(notebook, explorers, theme):
    page = notebook.page
    page.locator(".lm-MenuBar-item").filter(has_text="Settings").click()
    page.locator(".lm-Menu-item").filter(has_text="Theme").first.click()
    page.locator(".lm-Menu-item").filter(has_text=f"JupyterLab {theme}").first.click()
    is_light = str(theme == "Light").lower()
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", is_light)
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
    for index, explorer in enumerate(explorers):
        widget = notebook.widget(index)
        expect(widget).to_have_css("color-scheme", theme.lower())
        texts = widget.locator(".mha-name, .mha-title, legend, summary, .mha-hint, .mha-readout")
        for text in texts.locator("visible=true").all():
            assert contrast(text) >= 4.5, text.inner_text()
        slider(widget).focus()
        page.keyboard.press("Home")
        notebook.expect_print(["alibi.num_heads", "heads.num_heads"][index], "1")
        explorer.num_heads = 1
    assert_shows_numbers(notebook.widget(ALIBI), explorers[ALIBI])
    assert_shows(notebook.widget(HEADS), explorers[HEADS])


def test_nothing_went_wrong_and_nothing_left_this_machine(notebook):
    home = notebook.page.url.split("/lab")[0]
    foreign = [u for u in notebook.requests if not u.startswith((home, "blob:", "data:"))]
    assert foreign == []
    assert notebook.errors == []
