"""The mask painter: its numbers against slow loops in Python, and against torch in a browser."""

import math
import random

import pytest
import torch
from playwright.sync_api import expect
from widget_page import assert_copied_code_gives, assert_shows_numbers, run_copied_code, shown, write_page

from mha_lib.widgets import MaskPainter

SCORES = torch.tensor([[2.0, 1, 0, 1], [0, 2, 1, 0], [1, 0, 2, 3]])
VALUE = torch.tensor([[1.0, 0, 2], [0, 1, 0], [3, 1, 0], [-1, 0.5, 1]])


# The numbers, one cell at a time


def slow_mask(painter):
    q_len, k_len = len(painter.scores), len(painter.scores[0])
    rows = painter.painted.split()
    return [
        [
            rows[q][k] == "1"
            and k < painter.valid_len
            and (not painter.is_causal or q_len == 1 or k <= q + k_len - q_len)
            for k in range(k_len)
        ]
        for q in range(q_len)
    ]


def slow_weights(scores, visible, policy):
    if not any(visible):
        empty = {"zeros": 0.0, "nan": math.nan, "uniform": 1 / len(scores)}
        return [empty[policy]] * len(scores)
    exponentials = [math.exp(score) if sees else 0.0 for score, sees in zip(scores, visible, strict=True)]
    return [number / sum(exponentials) for number in exponentials]


def slow_numbers(painter):
    """All numbers of the page, those of the NaN policy too."""
    mask = slow_mask(painter)
    numbers = {"scores": painter.scores, "value": painter.value, "mask": mask}
    for policy in ("zeros", "nan", "uniform"):
        weights = [
            slow_weights(scores, visible, policy)
            for scores, visible in zip(painter.scores, mask, strict=True)
        ]
        numbers[f"weights_{policy}"] = weights
        numbers[f"output_{policy}"] = [
            [
                sum(w * row[i] for w, row in zip(ws, painter.value, strict=True))
                for i in range(len(painter.value[0]))
            ]
            for ws in weights
        ]
    numbers["nan_rows"] = [not any(visible) for visible in mask]
    return {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}


def assert_right(numbers, painter):
    expected = slow_numbers(painter)
    assert set(numbers) <= set(expected)
    for name, tensor in numbers.items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(tensor, expected[name], atol=1e-12, rtol=1e-12, equal_nan=True)


def test_numbers_are_those_of_the_definitions():
    draw = random.Random(0)
    for q_len, k_len in ((1, 4), (3, 4), (4, 3), (5, 5), (6, 6)):
        for is_causal in (False, True):
            painter = MaskPainter(torch.randn(q_len, k_len), torch.randn(k_len, 2), is_causal=is_causal)
            for valid_len in range(k_len + 1):
                painter.valid_len = valid_len
                painter.painted = " ".join(
                    "".join(draw.choice("01") for _ in range(k_len)) for _ in range(q_len)
                )
                numbers = painter.numbers()
                assert all(number.isfinite().all() for number in numbers.values())
                assert len(numbers) == 8
                assert_right(numbers, painter)
                assert painter.mask().tolist() == slow_mask(painter)


def test_one_row_is_hidden_at_the_start():
    painter = MaskPainter()
    assert painter.painted == "11111 11111 00000 11111 11111"
    numbers = painter.numbers()
    assert numbers["nan_rows"].tolist() == [0, 0, 1, 0, 0]
    # The three policies agree wherever a key is seen.
    for what in ("weights", "output"):
        zeros, uniform = numbers[f"{what}_zeros"], numbers[f"{what}_uniform"]
        assert (zeros - uniform).abs().amax(-1).gt(1e-12).tolist() == [*[False, False, True, False, False]]
    mean = torch.tensor(painter.value, dtype=torch.float64).mean(0)
    torch.testing.assert_close(numbers["output_uniform"][2], mean)


def test_values_are_found_where_none_are_given():
    painter = MaskPainter(torch.zeros(2, 6))
    assert len(painter.value) == 6
    assert painter.valid_len == 6
    assert painter.painted == "111111 000000"


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("painted", "1111 1111", ValueError, "painted must be 3 groups of 4 digits"),
        ("painted", "1111 1111 111", ValueError, "painted must be 3 groups of 4"),
        ("painted", "1111 1112 1111", ValueError, "painted must be 3 groups of 4"),
        ("painted", "1111 1111 1111\n", ValueError, "painted must be 3 groups of 4"),
        ("valid_len", 5, ValueError, r"valid_len must lie in 0\.\.4, got 5"),
    ],
)
def test_a_wrong_setting_is_refused(name, value, error, message):
    with pytest.raises(error, match=message):
        MaskPainter(SCORES, VALUE, **{name: value})
    painter = MaskPainter(SCORES, VALUE)
    before = getattr(painter, name)
    with pytest.raises(error, match=message):
        setattr(painter, name, value)
    assert getattr(painter, name) == before


@pytest.mark.parametrize(
    ("scores", "value", "error", "message"),
    [
        ([[1.0]], None, TypeError, "scores must be a Tensor"),
        (SCORES.int(), None, TypeError, "scores must have a floating-point dtype"),
        (SCORES[0], None, ValueError, "scores must have shape"),
        (torch.zeros(7, 4), None, ValueError, "1 to 6 rows and 1 to 6 columns"),
        (torch.zeros(4, 7), None, ValueError, "1 to 6 rows and 1 to 6 columns"),
        (torch.zeros(0, 4), None, ValueError, "1 to 6 rows and 1 to 6 columns"),
        (SCORES / 0, None, ValueError, "scores must be finite"),
        (SCORES, VALUE[:3], ValueError, r"for each of 4 keys, got shape \(3, 3\)"),
        (SCORES, VALUE.repeat(1, 2), ValueError, "1 to 6 rows and 1 to 3 columns"),
        (SCORES, VALUE * math.nan, ValueError, "value must be finite"),
        (SCORES, 3, TypeError, "value must be a Tensor, got int"),
    ],
)
def test_wrong_tensors_are_refused(scores, value, error, message):
    with pytest.raises(error, match=message):
        MaskPainter(scores, value)


def test_tensors_stay_as_they_were_given():
    painter = MaskPainter(SCORES)
    with pytest.raises(TypeError, match="scores"):
        painter.scores = [[1.0]]
    assert painter.scores == SCORES.tolist()


def test_text_and_figure():
    painter = MaskPainter(SCORES, VALUE, painted="1110 0000 1111", valid_len=3)
    assert repr(painter) == "MaskPainter(painted='1110 0000 1111', valid_len=3, is_causal=False)"
    mask, zeros, nan, uniform = painter.figure().axes[:4]
    assert [axis.get_title() for axis in (mask, zeros, nan, uniform)] == [
        *["mask", "zeros", "NaN", "uniform"]
    ]
    expected = slow_numbers(painter)
    for axis, name in (
        (mask, "mask"),
        (zeros, "weights_zeros"),
        (nan, "weights_nan"),
        (uniform, "weights_uniform"),
    ):
        drawn = torch.tensor(axis.images[0].get_array().filled(math.nan).tolist())
        torch.testing.assert_close(drawn.double(), expected[name], equal_nan=True, check_stride=False)
    assert [text.get_text() for text in nan.texts[4:8]] == ["NaN"] * 4


# The widget in a page


@pytest.fixture
def page_of(reader, tmp_path):
    """A function that shows a painter and returns the tab and the widget in it."""

    def show(painter, **options):
        width = options.pop("width", 900)
        tab = reader("disk", width=width)
        tab.open(write_page(tmp_path, [painter], **options), 1)
        return tab, tab.host()

    return show


def assert_shows(host, painter):
    """The numbers that torch computes too, and those that are not finite."""
    assert_shows_numbers(host, painter)
    expected = slow_numbers(painter)
    for name in ("weights_nan", "output_nan"):
        torch.testing.assert_close(
            shown(host, name), expected[name].flatten(), equal_nan=True, atol=1e-6, rtol=0
        )


def paper(host):
    return host.get_by_role("grid", name="Mask: queries")


def cell(host, query, key):
    return paper(host).locator(f"[data-row='{query}'][data-column='{key}']")


def turned(painted, *cells):
    rows = [list(row) for row in painted.split()]
    for query, key in cells:
        rows[query][key] = "10"[int(rows[query][key])]
    return " ".join("".join(row) for row in rows)


def test_by_keyboard(page_of):
    painter = MaskPainter(SCORES, VALUE)
    tab, host = page_of(painter)
    assert_shows(host, painter)
    expect(host.locator(".mha-mask-summary")).to_have_text(
        "Query 1 may attend to no key: the policies differ there and only there."
    )
    # Through all cells, turning every second one, with Space and Enter.
    cell(host, 0, 0).focus()
    for query in range(3):
        for key in range(4):
            expect(cell(host, query, key)).to_be_focused()
            if (query + key) % 2 == 0:
                tab.page.keyboard.press("Space" if query % 2 else "Enter")
                painter.painted = turned(painter.painted, (query, key))
                assert_shows(host, painter)
            if key < 3:
                tab.page.keyboard.press("ArrowRight")
        tab.page.keyboard.press("Home")
        tab.page.keyboard.press("ArrowDown")
    assert_copied_code_gives(host, painter)

    valid_len, causal = host.get_by_role("slider"), host.get_by_role("checkbox")
    for is_causal in (False, True):
        if is_causal:
            causal.press("Space")
            painter.is_causal = True
        valid_len.press("End")
        for length in (4, 3, 2, 1, 0):
            painter.valid_len = length
            assert_shows(host, painter)
            valid_len.press("ArrowLeft")
        assert_copied_code_gives(host, painter)
    expect(host.locator(".mha-mask-summary")).to_have_text(
        "Queries 0, 1, 2 may attend to no key: the policies differ there and only there."
    )
    expect(host.get_by_role("status")).to_have_text(
        "0 of 12 cells may attend. Queries 0, 1, 2 may attend to no key: "
        "the policies differ there and only there."
    )
    host.get_by_role("button", name="Reset").click()
    assert_shows(host, MaskPainter(SCORES, VALUE))
    assert tab.errors == []


def test_a_cell_says_what_hides_it(page_of):
    painter = MaskPainter(SCORES, VALUE, valid_len=3, is_causal=True)
    tab, host = page_of(painter)
    for query, key, words in (
        (2, 0, "may attend"),
        (1, 0, "hidden by the painted mask"),
        (0, 2, "hidden by is_causal"),
        (2, 3, "hidden by valid_len"),
        (1, 3, "hidden by the painted mask and valid_len and is_causal"),
    ):
        expect(cell(host, query, key)).to_have_accessible_name(f"query {query} → key {key}: {words}")
    # Hatched is what no paint can show.
    hatched = paper(host).locator(".mha-hidden")
    expect(hatched).to_have_count(4)
    cell(host, 2, 3).click()
    cell(host, 2, 3).click()
    assert_shows(host, painter)
    expect(hatched).to_have_count(4)
    assert tab.errors == []


def test_a_stroke_paints_what_its_first_cell_became(page_of):
    painter = MaskPainter()
    tab, host = page_of(painter)
    mouse = tab.page.mouse

    def move(query, key):
        box = cell(host, query, key).bounding_box()
        mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=2)

    move(0, 1)
    mouse.down()
    for place in ((0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (3, 2), (3, 3)):
        move(*place)
    mouse.up()
    move(4, 4)
    # Row 2 was hidden before, and stays so.
    hidden = [(0, 1), (0, 2), (0, 3), (1, 3), (3, 3), (3, 2)]
    painter.painted = turned(painter.painted, *hidden)
    assert_shows(host, painter)
    move(2, 0)
    mouse.down()
    for place in ((2, 1), (3, 1), (3, 2)):
        move(*place)
    mouse.up()
    painter.painted = turned(painter.painted, (2, 0), (2, 1), (3, 2))
    assert_shows(host, painter)
    expect(host.locator(".mha-mask-summary")).to_have_text(
        "Every query sees a key, so the three policies agree."
    )
    assert_copied_code_gives(host, painter)

    host.get_by_role("button", name="Invert").click()
    painter.painted = painter.painted.translate({48: "1", 49: "0"})
    assert_shows(host, painter)
    host.get_by_role("button", name="Show all").click()
    painter.painted = " ".join(["11111"] * 5)
    assert_shows(host, painter)
    assert tab.errors == []


def test_a_finger_paints(page_of):
    painter = MaskPainter()
    tab, host = page_of(painter, width=360)
    cell(host, 0, 0).scroll_into_view_if_needed()
    devtools = tab.page.context.new_cdp_session(tab.page)

    def touch(kind, *place):
        points = []
        if place:
            box = cell(host, *place).bounding_box()
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            points = [{"x": x, "y": y}]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 0, 0)
    touch("touchMove", 0, 1)
    touch("touchMove", 1, 1)
    touch("touchEnd")
    painter.painted = turned(painter.painted, (0, 0), (0, 1), (1, 1))
    expect(cell(host, 1, 1)).to_have_text("0")
    assert_shows(host, painter)
    assert tab.errors == []


def test_the_copied_program_has_the_policy_that_is_not_finite(page_of):
    painter = MaskPainter(SCORES / 3, VALUE, painted="1110 0000 1111")
    tab, host = page_of(painter)
    assert_copied_code_gives(host, painter)
    variables = run_copied_code(host)
    expected = slow_numbers(painter)
    for name in ("weights_nan", "output_nan"):
        torch.testing.assert_close(variables[name], expected[name], equal_nan=True, atol=1e-6, rtol=0)
    assert tab.errors == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"painted": "11111"}, "painted must be 5 groups of 5 digits 0 or 1"),
        ({"valid_len": 6}, "valid_len must lie in 0..5, got 6"),
        ({"scores": [[1, 2], [3]]}, "scores must hold rows of finite numbers"),
        ({"scores": None}, "scores must hold rows of finite numbers"),
        ({"value": [["NaN"]] * 5}, "value must hold rows of finite numbers"),
        ({"value": [[1.0]]}, "value must have a row for each of 5 keys, got 1"),
    ],
)
def test_a_state_that_makes_no_sense_gives_a_message(page_of, changes, message):
    tab, host = page_of(MaskPainter(), alter=lambda states: states[0].update(changes))
    expect(host.get_by_role("alert")).to_contain_text(message)
    expect(host.locator(".mha-body")).to_be_hidden()
    assert tab.errors == []


def test_fits_a_phone(page_of):
    painter = MaskPainter(torch.randn(6, 6), torch.randn(6, 3))
    tab, _ = page_of(painter, width=360)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
    too_wide = tab.page.locator(".mha-widget *:visible").evaluate_all(
        """nodes => nodes.filter(node => !node.closest(".mha-unseen")
          && node.getBoundingClientRect().right > innerWidth).map(node => node.outerHTML)"""
    )
    assert too_wide == []
