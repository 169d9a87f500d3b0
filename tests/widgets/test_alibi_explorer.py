"""The ALiBi explorer: its traits in Python, and what a reader sees of the needle in a browser."""

import math
import re

import pytest
import torch
from playwright.sync_api import expect
from seen import Plane, slider
from widget_page import assert_copied_code_gives, assert_shows_numbers, finger

from mha_course.widgets import AlibiExplorer

SLOPES = {
    1: [1 / 256],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    # The slopes of 4 heads, then every second one of 8.
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: [1 / 2**head for head in range(1, 9)],
}


def needle_in(slope, length, distance, score):
    """The score of the needle with its bias, and its weight, from all keys of the last query one by one."""
    scores = [-slope * place for place in range(length)]
    scores[distance] += score
    total = sum(math.exp(number) for number in scores)
    return scores[distance], math.exp(scores[distance]) / total


@pytest.mark.parametrize("shown", ["bias", "weights"])
@pytest.mark.parametrize("num_heads", SLOPES)
@pytest.mark.parametrize(("length", "needle", "score"), [(2, 1, 3.0), (13, 7, 0.5), (211, 101, 11.0)])
def test_numbers_follow_the_definition(num_heads, length, needle, score, shown):
    sizes = {"num_heads": num_heads, "length": length, "needle": needle}
    explorer = AlibiExplorer(**sizes, needle_score=score, shown=shown)
    slopes = SLOPES[num_heads]
    now = [needle_in(slope, length, needle, score) for slope in slopes]
    which = 0 if shown == "bias" else 1
    expected = {
        "slopes": slopes,
        "reaches": [score / slope for slope in slopes],
        "score_after": [after for after, _ in now],
        "weight_before": needle_in(0, length, needle, score)[1],
        "weight_after": [weight for _, weight in now],
        "by_distance": [
            [needle_in(slope, length, distance, score)[which] for distance in range(1, length)]
            for slope in slopes
        ],
    }
    numbers = explorer.numbers()
    assert numbers.keys() == expected.keys()
    for name, number in expected.items():
        found = torch.tensor(number, dtype=torch.float64)
        torch.testing.assert_close(numbers[name], found, atol=1e-12, rtol=1e-12)


def test_at_its_reach_a_needle_has_the_weight_of_the_queries_own_token():
    explorer = AlibiExplorer(num_heads=8, needle=64, needle_score=8)
    assert explorer.numbers()["reaches"][2] == 64
    # The content of the last query's 512 keys, the needle 64 before the end; torch's own attention.
    content = torch.zeros(512, dtype=torch.float64)
    content[511 - 64] = 8
    bias = -(torch.arange(512).flip(0) / 8)
    weights = (content + bias).softmax(0)
    assert weights[511 - 64] == weights[511]
    torch.testing.assert_close(explorer.numbers()["weight_after"][2], weights[511 - 64])


def test_the_chosen_head_and_the_needle_stay_where_they_can_be():
    explorer = AlibiExplorer(num_heads=8, head=7, needle=300)
    explorer.num_heads, explorer.length = 3, 17
    assert (explorer.head, explorer.needle) == (2, 16)
    assert AlibiExplorer(length=2).needle == 1
    assert AlibiExplorer().needle == 4


def needle_of(host):
    return slider(host, "needle: tokens before the query")


def rows_of(host):
    """The visible list: for each head its texts, and the share of the track that its bar fills."""
    return host.locator(".mha-needle-list li:visible").evaluate_all(
        """rows => rows.map((row) => {
          const texts = [...row.querySelectorAll("span:not(.mha-unseen)")]
            .filter((node) => !node.querySelector("span")).map((node) => node.textContent);
          const width = (part) => row.querySelector(part).getBoundingClientRect().width;
          return { texts, bar: width("i") / width(".mha-bar-track") };
        })"""
    )


def assert_picture(host, explorer):
    """Curves, dots, knob and list show what the definition gives; the oracle is `needle_in`."""
    slopes = [2 ** (-8 * (h + 1) / explorer.num_heads) for h in range(explorer.num_heads)]
    place, score, length = explorer.needle, explorer.needle_score, explorer.length
    which = 0 if explorer.shown == "bias" else 1
    low, high = (-4, 14) if explorer.shown == "bias" else (0, 1.2)
    near = lambda x, y: (pytest.approx(math.log2(x), abs=0.06), pytest.approx(y, abs=0.01 * (high - low)))  # noqa: E731
    # The axis is logarithmic, so powers of two are equally far apart.
    picture = Plane(host.locator(".mha-plane"))
    picture.x = lambda percent: 9 * percent / 100
    ticks = [(int(text), picture.x(across)) for text, across, _ in picture.seen["x"]]
    assert ticks == [(2**power, pytest.approx(power, abs=0.05)) for power in range(10)]
    before = [score, needle_in(0, length, place, score)[1]]
    [dashed] = picture.curves("mha-truth")
    assert [y for _, y in dashed] == pytest.approx([before[which]] * 2, abs=0.01 * (high - low))
    assert picture.handles() == [near(place, before[which])]
    curves, dots = picture.curves("mha-head"), picture.dots("mha-heads")
    assert len(curves) == len(dots) == len(slopes)
    for slope, curve in zip(slopes, curves, strict=True):
        distances = [min(max(round(2**x), 1), length - 1) for x, _ in curve]
        assert (distances[0], distances[-1]) == (1, length - 1)
        exact = [needle_in(slope, length, distance, score)[which] for distance in distances]
        assert [y for _, y in curve] == pytest.approx(exact, abs=0.02 * (high - low), rel=0.02)
    rows = rows_of(host)
    assert len(rows) == len(slopes)
    for h, slope in enumerate(slopes):
        after = needle_in(slope, length, place, score)
        assert dots[h][:2] == near(place, max(after[which], low))
        head, shown_slope, reach, shown_score, lost, weight = rows[h]["texts"]
        assert head == str(h)
        assert float(shown_slope.removeprefix("1/")) == pytest.approx(1 / slope, abs=0.005)
        assert float(reach.replace(",", "")) == pytest.approx(score / slope, abs=0.51)
        assert float(shown_score.replace("−", "-")) == pytest.approx(after[0], abs=0.051)
        assert float(weight) == pytest.approx(after[1], abs=0.0051)
        assert rows[h]["bar"] == pytest.approx(after[1], abs=0.02)
        assert lost == ("lost" if after[0] < 0 else "")
    without = host.locator(".mha-needle-without").locator("..")
    expect(without).to_contain_text(f"without the bias{score:.1f}{before[1]:.2f}")


def test_the_reader_takes_the_needle_out_of_reach_by_keyboard(show):
    explorer = AlibiExplorer(num_heads=4, length=331)
    host = show(explorer, over="http")
    press = host.page.keyboard.press
    knob, status, verdict = needle_of(host), host.get_by_role("status"), host.locator(".mha-verdict")
    expect(verdict).to_have_text("4 tokens back: all 4 heads find the needle.")
    assert_picture(host, explorer)
    knob.focus()
    for key, place in (
        *[("ArrowRight", 5), ("ArrowUp", 6), ("ArrowLeft", 5), ("ArrowDown", 4)],
        *[("Shift+ArrowRight", 8), ("PageUp", 16), ("PageUp", 32), ("ArrowRight", 33)],
    ):
        press(key)
        explorer.needle = place
        expect(knob).to_have_attribute("aria-valuenow", str(place))
        if place == 32:  # the reach of head 0, whose slope is 1/4: there the needle is still found
            expect(verdict).to_have_text("32 tokens back: all 4 heads find the needle.")
    expect(verdict).to_have_text("33 tokens back: head 0 has lost the needle, and 3 of 4 find it.")
    expect(status).to_have_text("33 tokens back: head 0 has lost the needle, and 3 of 4 find it.")
    expect(knob).to_have_attribute("aria-valuetext", "33 tokens back, 1 of 4 heads have lost it")
    assert_picture(host, explorer)
    assert_shows_numbers(host, explorer)
    for key, place in (("Shift+ArrowLeft", 16), ("PageDown", 8), ("End", 330), ("ArrowRight", 330)):
        press(key)
        explorer.needle = place
        expect(knob).to_have_attribute("aria-valuenow", str(place))
    assert [knob.get_attribute(f"aria-value{end}") for end in ("min", "max")] == ["1", "330"]
    expect(verdict).to_have_text("330 tokens back: heads 0–1 have lost the needle, and 2 of 4 find it.")
    assert_picture(host, explorer)
    assert_copied_code_gives(host, explorer)
    knob.focus()
    for key in ("Home", "ArrowLeft", "PageDown"):
        press(key)
        expect(knob).to_have_attribute("aria-valuetext", "1 token back, no head has lost it")


def test_both_pictures_show_score_and_weight_before_and_after(show):
    explorer = AlibiExplorer(num_heads=8, length=307, needle=23, needle_score=6.5)
    host = show(explorer)
    plane = host.get_by_role("img", name="The needle in each head")
    expect(host.get_by_text("without the bias: 6.5")).to_be_visible()
    expect(host.get_by_text("query’s own token: 0")).to_be_visible()
    assert_picture(host, explorer)
    name = "The needle in each head, by its distance. 23 tokens back: scores from −5.00 to 6.41."
    expect(plane).to_have_accessible_name(name)
    host.get_by_role("radio", name="Scores").press("ArrowRight")
    explorer.shown = "weights"
    expect(host.get_by_role("status")).to_have_text("The picture shows the weights.")
    expect(host.get_by_text("without the bias: 0.68")).to_be_visible()
    expect(host.get_by_text("query’s own token: 0")).to_be_hidden()
    assert_picture(host, explorer)
    assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)
    host.get_by_role("radio", name="Weights").press("ArrowLeft")
    expect(host.get_by_role("status")).to_have_text("The picture shows the scores.")


def test_needle_and_head_follow_where_text_and_heads_get_fewer(show):
    explorer = AlibiExplorer(num_heads=16, length=512, needle=511, needle_score=12)
    host = show(explorer)
    assert_picture(host, explorer)
    host.locator(".mha-needle-row[aria-pressed]").nth(15).click()
    expect(host.get_by_role("status")).to_have_text("Head 15: slope 1/256, reach 3,072 tokens.")
    slider(host, "length").press("ArrowLeft")
    slider(host, "num_heads").press("Home")
    explorer.length, explorer.num_heads = 384, 1
    assert (explorer.needle, explorer.head) == (383, 0)
    expect(host.locator(".mha-verdict")).to_have_text("383 tokens back: the head finds the needle.")
    assert_picture(host, explorer)


def test_a_length_between_the_stops_is_kept(show):
    explorer = AlibiExplorer(length=101, needle=100)
    host = show(explorer)
    lengths = slider(host, "length")
    expect(lengths).to_have_attribute("aria-valuetext", "101 tokens")
    lengths.press("ArrowLeft")
    explorer.length = 96
    expect(needle_of(host)).to_have_attribute("aria-valuenow", "95")
    assert_picture(host, explorer)


@pytest.mark.parametrize("by", ["mouse", "finger"])
def test_the_needle_is_dragged(show, by):
    explorer = AlibiExplorer(num_heads=8, length=433)
    host = show(explorer, width=360)
    page, knob = host.page, needle_of(host)
    knob.scroll_into_view_if_needed()
    area = host.locator(".mha-area").bounding_box()
    scrolled = page.evaluate("scrollY")
    touch = finger(page)

    def go(distance, down=0.0):
        x = area["x"] + area["width"] * math.log2(distance) / 9
        if by == "mouse":
            page.mouse.move(x, start[1] + down)
        else:
            touch("touchMove", x, start[1] + down)

    box = knob.bounding_box()
    start = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    if by == "mouse":
        page.mouse.move(*start)
        page.mouse.down()
    else:
        touch("touchStart", *start)
    # Vertical movement does not matter.
    for distance, down in ((7, 40), (50, -40), (200, 0), (100, 0)):
        go(distance, down)
        near = range(round(0.97 * distance), round(1.03 * distance) + 1)
        expect(knob).to_have_attribute("aria-valuenow", re.compile(f"^({'|'.join(map(str, near))})$"))
    explorer.needle = int(knob.get_attribute("aria-valuenow"))
    assert_picture(host, explorer)
    # A text of 433 tokens ends before the plane's axis does.
    go(512)
    expect(knob).to_have_attribute("aria-valuenow", "432")
    go(1.01)
    expect(knob).to_have_attribute("aria-valuenow", "1")
    if by == "mouse":
        page.mouse.up()
    else:
        touch("touchEnd")
        assert page.evaluate("scrollY") == scrolled
    page.mouse.move(*start)
    expect(knob).to_have_attribute("aria-valuenow", "1")


def test_a_head_is_chosen_from_the_list(show):
    explorer = AlibiExplorer(num_heads=6, length=53)
    host = show(explorer)
    rows = host.locator("button.mha-needle-row")
    expect(rows.filter(visible=True)).to_have_count(6)

    def widest():
        width = "nodes => nodes.map((node) => parseFloat(getComputedStyle(node).strokeWidth))"
        widths = host.locator(".mha-curve.mha-head").evaluate_all(width)[:6]
        return [head for head, width in enumerate(widths) if width == max(widths)]

    assert widest() == [0]
    rows.nth(4).click()
    explorer.head = 4
    assert widest() == [4]
    assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)
    expect(rows.nth(4)).to_have_attribute("aria-pressed", "true")
    expect(rows.nth(0)).to_have_attribute("aria-pressed", "false")
    expect(rows.nth(4)).to_have_accessible_name("head 4 : slope 1/2 , reach 16 , score 6.0 , weight 0.99")
    rows.nth(5).press("Enter")
    assert widest() == [5]
    expect(host.get_by_role("status")).to_have_text("Head 5: slope 1/8, reach 64 tokens.")


def test_the_question_comes_first_and_the_answer_is_near_the_knob(show):
    host = show(AlibiExplorer(), width=360)
    page = host.page
    page.set_viewport_size({"width": 360, "height": 640})
    expect(host.locator(".mha-body > :first-child")).to_have_text(
        "One key of a long text matches the last query: the needle. A head finds it as long as its score "
        "stays above 0, the score of the query’s own token. Which heads still find it "
        "100 tokens back? "
        "Predict, then drag the orange knob there."
    )
    knob, verdict = needle_of(host).bounding_box(), host.locator(".mha-verdict").bounding_box()
    assert verdict["y"] + verdict["height"] - knob["y"] < 300
    needle_of(host).focus()
    for _ in range(5):
        page.keyboard.press("PageUp")
    told = "128 tokens back: heads 0–2 have lost the needle, and 5 of 8 find it."
    expect(host.locator(".mha-verdict")).to_have_text(told)
    # Not taller than the explorer was before it had a needle.
    assert host.bounding_box()["height"] < 1236
    page.set_viewport_size({"width": 1280, "height": 900})
    assert host.bounding_box()["height"] < 722
