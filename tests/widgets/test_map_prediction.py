"""The map that a reader predicts before it is shown: marking, seeing, and what the browser keeps."""

import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from storage import reload, stored
from widget_page import finger

from mha_course.widgets import MapPrediction
from mha_lib.masking import causal_mask

ROWS = ["`q` 0", "q 1", "q 2"]
COLUMNS = ["k 0", "k 1", "k 2", "k 3", "k 4"]
TRUTH = causal_mask(3, 5)
WHY = {"`q` 0": "The mask is aligned at the *end*.", "q 2": "The last query sees `all` keys."}


def causal(**changes):
    given = {
        "text": "Which keys does each *query* see?", "rows": ROWS, "columns": COLUMNS,
        "truth": [[key <= query + 2 for key in range(5)] for query in range(3)], "computed": TRUTH,
        "feedback": WHY,
    }  # fmt: skip
    return MapPrediction(**(given | changes))


def big(**changes):
    """Nine specimens and thirteen detectors with labels as long as those of the bug zoo."""
    rows = [f"{name} without transpose" for name in "abcdefghi"]
    columns = [f"detector {name}" for name in "abcdefghijklm"]
    truth = torch.rand(9, 13, generator=torch.Generator().manual_seed(0)) < 0.4
    task = {"states": ("passes", "finds"), "computed": truth, "feedback": dict.fromkeys(rows, "Because.")}
    return MapPrediction("What finds what?", rows, columns, truth, **(task | changes))


@pytest.mark.parametrize(
    "convert", [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.clone, list, tuple]
)
def test_truth_may_be_a_tensor_an_array_or_lists(convert):
    widget = causal(truth=convert(TRUTH), computed=TRUTH.numpy())
    assert widget.task["truth"] == "11100 11110 11111"
    assert widget.marked == "00000 00000 00000"
    assert repr(widget) == "MapPrediction(3 rows, 5 columns)"


TRUE = [[True] * 5] * 3
REFUSED = [
    ({"text": None}, TypeError, "text must be a str, got NoneType: None"),
    ({"text": " "}, ValueError, "text must not be empty, got ' '"),
    ({"rows": "abc"}, TypeError, "rows must be a sequence of str, got 'abc'"),
    ({"rows": 3}, TypeError, "rows must be a Sequence, got int: 3"),
    ({"rows": [0, 1, 2]}, TypeError, "rows must be a sequence of str, got [0, 1, 2]"),
    ({"rows": []}, ValueError, "rows must hold between 1 and 24 texts, got 0"),
    ({"rows": list(map(str, range(25)))}, ValueError, "rows must hold between 1 and 24 texts, got 25"),
    ({"rows": ["a", "a", "b"]}, ValueError, "rows must be different and not empty, got ['a', 'a', 'b']"),
    ({"columns": [*"abcd", " "]}, ValueError, "columns must be different and not empty"),
    ({"columns": list(map(str, range(17)))}, ValueError, "columns must hold between 1 and 16 texts, got 17"),
    ({"rows": ["a", "b"]}, ValueError, "truth must have 2 rows of 5, as rows and columns say, got"),
    ({"columns": ["a", "b"]}, ValueError, "truth must have 3 rows of 2, as rows and columns say"),
    ({"truth": TRUE}, ValueError, "the cell computes, False in row '`q` 0' and column 'k 3', got True"),
    ({"truth": [[1] * 5] * 3}, TypeError, "truth must hold a sequence of bools for each row, got [[1, 1"),
    ({"truth": np.ones((3, 5))}, TypeError, "truth must hold a sequence of bools for each row"),
    ({"truth": [True] * 3}, TypeError, "truth must hold a sequence of bools for each row"),
    ({"truth": None}, TypeError, "truth must be a Sequence, got NoneType: None"),
    ({"computed": None}, TypeError, "computed must be a Sequence, got NoneType: None"),
    ({"computed": TRUTH.T}, ValueError, "computed must have 3 rows of 5, as rows and columns say"),
    ({"computed": TRUTH[:, None]}, TypeError, "computed must hold a sequence of bools for each row"),
    ({"states": ("a",)}, ValueError, "states must hold two texts, got ['a']"),
    ({"states": ("a", "a")}, ValueError, "states must be different and not empty, got ['a', 'a']"),
    ({"states": "ab"}, TypeError, "states must be a sequence of str, got 'ab'"),
    ({"states": ("a", "b", "c")}, ValueError, "states must hold between 1 and 2 texts, got 3"),
    ({"feedback": ["a"]}, TypeError, "feedback must be a Mapping, got list: ['a']"),
    ({"feedback": {"q 7": "a"}}, ValueError, "must be one of ['`q` 0', 'q 1', 'q 2'], got 'q 7'"),
    ({"feedback": {"q 1": 3}}, TypeError, "feedback['q 1'] must be a str, got int: 3"),
    ({"feedback": {"q 1": " "}}, ValueError, "feedback['q 1'] must not be empty, got ' '"),
    ({"name": None}, TypeError, "name must be a str, got NoneType: None"),
    ({"name": "a/b"}, ValueError, "name must hold only letters, digits, '.', '_' and '-', got 'a/b'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "rule"), REFUSED)
def test_a_map_that_cannot_be_predicted_is_refused(changes, error, rule):
    with pytest.raises(error, match=re.escape(rule)):
        causal(**changes)


def test_right_cells_are_counted():
    widget = causal()
    assert widget.num_right == 3, "those that are hidden"
    widget.marked = "11100 11110 11111"
    assert widget.num_right == 15
    widget.set_state({"marked": "11111 11111 11111"})
    assert widget.num_right == 12
    for wrong in ("", "11100 11110", "11100 11110 11112", "11100 11110 11111 11111", "11100 11110 111111"):
        with pytest.raises(ValueError, match="marked must be 3 groups of 5 digits 0 or 1, got"):
            widget.marked = wrong
        assert widget.num_right == 12


def test_the_truth_can_be_read_without_scripts():
    html = causal()._repr_mimebundle_()[0]["text/html"]
    assert "<p>Which keys does each <em>query</em> see?</p>" in html
    assert '<th scope="col">k 3</th>' in html
    row = '<tr><th scope="row"><code>q</code> 0</th>' + 3 * "<td>visible</td>" + 2 * "<td>hidden</td>"
    assert f"{row}<td>The mask is aligned at the <em>end</em>.</td></tr>" in html


def cell(host, row, column):
    return host.get_by_role("row").nth(row + 1).get_by_role("gridcell").nth(column)


def symbols(host):
    """What is written in the cells, row by row."""
    texts = [row.get_by_role("gridcell").all_inner_texts() for row in host.get_by_role("row").all()[1:]]
    return [[text.replace("\n", "") for text in row] for row in texts]


def colours(host, row, column):
    """The background and the ink of a cell."""
    both = "node => ['backgroundColor', 'color'].map((name) => getComputedStyle(node)[name])"
    return cell(host, row, column).evaluate(both)


def see(host):
    host.get_by_role("button", name="See", exact=True).click()
    expect(host.locator(".mha-outcome")).to_be_visible()


def mark(host, places):
    for row, column in places:
        cell(host, row, column).click()


EMPTY = [["○"] * 5] * 3
IS_WHOLE = "n => n.scrollWidth <= n.clientWidth + 1 && n.scrollHeight <= n.clientHeight + 1"


@pytest.mark.parametrize("over", ["http", "disk"])
def test_cells_are_marked_and_judged(show, over):
    host = show(causal(), over=over)
    assert host.get_by_role("grid", name="Which keys does each query see?").is_visible()
    assert host.get_by_role("rowheader").all_inner_texts() == ["q 0", "q 1", "q 2"]
    assert host.get_by_role("columnheader").all_inner_texts()[1:] == COLUMNS
    assert symbols(host) == EMPTY
    assert not host.locator(".mha-outcome").is_visible()
    assert not host.get_by_role("button", name="Show the truth").is_visible()
    hidden = colours(host, 0, 3)
    mark(host, [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 3)])
    mark(host, [(2, 3)])
    drawn = ["●●○●○", "●●●●○", "○○○○●"]
    assert symbols(host) == [list(row) for row in drawn]
    assert colours(host, 0, 0) == colours(host, 0, 3) != hidden
    see(host)
    verdicts = ["✓✓✗✗✓", "✓✓✓✓✓", "✗✗✗✗✓"]
    judged = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(drawn, verdicts, strict=True)]
    assert symbols(host) == judged
    kinds = [colours(host, *place) for place in ((0, 0), (0, 4), (0, 3), (0, 2))]
    assert len({colour for colour, _ in kinds}) == 4, "marked or not, right or wrong"
    assert kinds[0] == colours(host, 1, 0)
    assert kinds[3] == colours(host, 2, 0)
    assert host.locator(".mha-outcome .mha-title").inner_text() == "9 of 15 as predicted."
    reasons = host.locator(".mha-reasons li").all_inner_texts()
    assert reasons == ["q 0: The mask is aligned at the end.", "q 2: The last query sees all keys."]
    assert host.locator(".mha-reasons em").inner_text() == "end"
    assert "✓ as predicted" in host.locator(".mha-legend").inner_text()
    cell(host, 0, 0).click()
    assert symbols(host) == judged, "who has seen the truth predicts no more"


def test_only_rows_with_a_miss_are_explained(show):
    widget = causal()
    widget.marked = "11100 11111 11111"
    host = show(widget)
    see(host)
    assert host.locator(".mha-outcome").inner_text() == "14 of 15 as predicted.", "the row has no sentence"
    host.get_by_role("button", name="Start again").click()
    expect(host.locator(".mha-outcome")).to_be_hidden()
    assert symbols(host) == EMPTY
    mark(host, [(0, 0), (0, 1), (0, 2), *((1, k) for k in range(4)), *((2, k) for k in range(5))])
    see(host)
    assert host.locator(".mha-outcome").inner_text() == "All 15 as predicted."
    assert {text[1] for row in symbols(host) for text in row} == {"✓"}


def test_the_truth_takes_the_place_of_the_prediction_and_gives_it_back(show):
    widget = causal()
    widget.marked = "11110 11110 01111"
    host = show(widget)
    before = colours(host, 1, 0), colours(host, 1, 4)
    see(host)
    judged = symbols(host)
    button = host.get_by_role("button", name="Show the truth")
    button.click()
    now = [["●", "●", "●", "○✗", "○"], ["●", "●", "●", "●", "○"], ["●✗", "●", "●", "●", "●"]]
    assert symbols(host) == now
    assert (colours(host, 1, 0), colours(host, 1, 4)) == before, "the colours of the states, not of verdicts"
    ring = lambda *place: cell(host, *place).evaluate("node => getComputedStyle(node).boxShadow")  # noqa: E731
    assert ring(0, 3) == ring(2, 0) != "none"
    assert ring(0, 0) == "none"
    assert "you predicted the other state" in host.locator(".mha-legend").inner_text()
    assert button.get_attribute("aria-pressed") == "true"
    expect(host.get_by_role("status")).to_have_text("The grid shows the truth.")
    button.click()
    assert symbols(host) == judged
    button.click()
    host.get_by_role("button", name="Start again").click()
    expect(host.locator(".mha-outcome")).to_be_hidden()
    assert symbols(host) == EMPTY
    see(host)
    assert button.get_attribute("aria-pressed") == "false", "a new prediction is shown first"


def focused(page):
    return page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")


def test_it_is_filled_in_by_keyboard(show):
    host = show(causal())
    page, status = host.page, host.get_by_role("status")
    page.keyboard.press("Tab")
    assert focused(page) == "q 0, k 0: hidden"
    page.keyboard.press("Space")
    assert focused(page) == "q 0, k 0: visible"
    expect(status).to_have_text("q 0, k 0: visible")
    for key, place in (("ArrowRight", "q 0, k 1"), ("ArrowDown", "q 1, k 1"), ("End", "q 1, k 4"),
                       ("ArrowRight", "q 1, k 4"), ("ArrowDown", "q 2, k 4"), ("ArrowDown", "q 2, k 4"),
                       ("Home", "q 2, k 0"), ("ArrowLeft", "q 2, k 0"), ("ArrowUp", "q 1, k 0")):  # fmt: skip
        page.keyboard.press(key)
        assert focused(page) == f"{place}: hidden", key
    page.keyboard.press("Enter")
    assert symbols(host) == [["●", *"○○○○"], ["●", *"○○○○"], list("○○○○○")]
    assert host.locator(".mha-readout").inner_text() == "q 1, k 0: visible"
    page.keyboard.press("Space")
    assert symbols(host)[1] == list("○○○○○")
    page.keyboard.press("Tab")
    assert focused(page) == "See"
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "q 1, k 0: hidden", "the grid remembers its cell"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(host.locator(".mha-outcome")).to_be_visible()
    assert focused(page) == "4 of 15 as predicted."
    expect(status).to_contain_text("4 of 15 as predicted.")
    expect(status).to_contain_text("The mask is aligned at the end.")
    cell(host, 0, 1).focus()
    assert focused(page) == "q 0, k 1: visible, you predicted hidden"
    page.keyboard.press("ArrowLeft")
    assert focused(page) == "q 0, k 0: visible, as predicted"
    page.keyboard.press("Space")
    assert symbols(host)[0][0] == "●✓"
    host.get_by_role("button", name="Start again").focus()
    page.keyboard.press("Enter")
    assert focused(page) == "q 0, k 0: hidden"


def test_a_screen_reader_clicks_a_cell(show):
    host = show(causal())
    cell(host, 1, 2).evaluate("node => node.click()")
    assert symbols(host)[1] == list("○○●○○")


def middle(host, row, column):
    box = cell(host, row, column).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_stroke_of_the_mouse_leaves_one_state(show):
    host = show(causal())
    mouse = host.page.mouse

    def drag(start, *places):
        mouse.move(*middle(host, *start))
        mouse.down()
        for place in places:
            mouse.move(*middle(host, *place))
        mouse.up()

    mark(host, [(0, 2)])
    drag((0, 0), *((0, column) for column in range(1, 5)), (1, 4))
    mouse.move(*middle(host, 2, 4))
    assert symbols(host) == [list("●●●●●"), list("○○○○●"), list("○○○○○")], "what was marked stays marked"
    drag((0, 4), (0, 3), (1, 3))
    assert symbols(host) == [list("●●●○○"), list("○○○○●"), list("○○○○○")]
    mouse.move(*middle(host, 2, 0))
    mouse.down(button="right")
    mouse.up(button="right")
    assert symbols(host)[2] == list("○○○○○")


@pytest.mark.parametrize("width", [320, 360])
def test_nine_by_thirteen_cells_are_usable_on_a_phone(show, width):
    host = show(big(), width=width)
    page = host.page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    boxes = [[cell(host, row, column).bounding_box() for column in range(13)] for row in range(9)]
    headers = [header.bounding_box() for header in host.get_by_role("rowheader").all()]
    for header, line in zip(headers, boxes, strict=True):
        assert header["y"] + header["height"] <= line[0]["y"] + 1, "a label stands above its row"
        assert all(box["width"] >= 20 and box["height"] >= 34 for box in line)
        assert 0 <= line[0]["x"] < line[-1]["x"] + line[-1]["width"] <= width
        assert all(a["x"] + a["width"] <= b["x"] for a, b in pairwise(line))
    for header in host.locator("[role=rowheader], [role=columnheader]").all()[1:]:
        assert header.evaluate(IS_WHOLE)

    page.add_style_tag(content="body { padding-block: 900px }")
    cell(host, 4, 6).evaluate("node => node.scrollIntoView({ block: 'center' })")
    scrolled = page.evaluate("scrollY")
    touch = finger(page)
    touch("touchStart", *middle(host, 3, 2))
    for row, column in ((3, 3), (3, 4), (4, 4), (5, 4)):
        touch("touchMove", *middle(host, row, column))
    touch("touchEnd")
    marked = np.argwhere(np.array(symbols(host)) == "●").tolist()
    assert marked == [[3, 2], [3, 3], [3, 4], [4, 4], [5, 4]]
    assert page.evaluate("scrollY") == scrolled, "the page stays where it is under the finger"


def test_labels_are_not_cut_where_there_is_room(show):
    host = show(big(), width=1280)
    for header in host.locator("[role=rowheader], [role=columnheader]").all()[1:]:
        assert header.evaluate(IS_WHOLE)
    first, label = cell(host, 0, 0).bounding_box(), host.get_by_role("rowheader").first.bounding_box()
    assert label["x"] + label["width"] <= first["x"], "a label stands beside its row"
    place = cell(host, 4, 6).bounding_box()
    for row, column in ((0, 0), (8, 12), (4, 6)):
        cell(host, row, column).hover()
        assert cell(host, 4, 6).bounding_box() == place, "nothing moves under the pointer"
    cell(host, 1, 1).click()
    see(host)
    assert cell(host, 4, 6).bounding_box() == place


def test_states_can_be_told_apart_in_forced_colours_and_in_the_dark(show):
    widget = causal()
    widget.marked = "11110 11110 01111"
    host = show(widget)
    host.page.emulate_media(forced_colors="active")
    assert colours(host, 0, 0) != colours(host, 0, 4)
    assert cell(host, 0, 4).evaluate("node => getComputedStyle(node).borderTopStyle") == "solid"
    see(host)
    assert cell(host, 0, 3).evaluate("node => getComputedStyle(node).borderTopStyle") == "double"
    assert cell(host, 0, 2).evaluate("node => getComputedStyle(node).borderTopStyle") == "solid"
    host.page.emulate_media(forced_colors="none")
    light = colours(host, 0, 0)
    host.page.evaluate("() => { document.documentElement.dataset.theme = 'dark'; }")
    assert colours(host, 0, 0) != light
    places = ((0, 0), (0, 4), (0, 3), (2, 0))
    assert len({colours(host, *place)[0] for place in places}) == 4


@pytest.mark.parametrize("over", ["http", "disk"])
def test_a_prediction_comes_back(show, over):
    host = show(causal(name="ch2.causal"), over=over)
    assert stored(host.page) == {}
    mark(host, [(0, 0), (2, 4)])
    expected = {
        "question": "Which keys does each *query* see?", "rows": ROWS, "columns": COLUMNS,
        "marked": "10000 00000 00001", "seen": False,
    }  # fmt: skip
    assert stored(host.page) == {"map-prediction/ch2.causal": expected}
    reload(host.page)
    assert symbols(host) == [["●", *"○○○○"], list("○○○○○"), list("○○○○●")]
    assert not host.locator(".mha-outcome").is_visible()
    see(host)
    reload(host.page)
    assert host.locator(".mha-outcome .mha-title").inner_text() == "5 of 15 as predicted."
    assert symbols(host)[0] == ["●✓", "○✗", "○✗", "○✓", "○✓"]
    host.get_by_role("button", name="Start again").click()
    expect(host.locator(".mha-outcome")).to_be_hidden()
    assert stored(host.page) == {}
    reload(host.page)
    assert symbols(host) == EMPTY
