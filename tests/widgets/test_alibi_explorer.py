"""The ALiBi explorer: its traits in Python, and what a reader sees of the needle in a browser."""

import itertools
import math
import re

import pytest
import torch
from matplotlib.figure import Figure
from playwright.sync_api import expect
from widget_page import assert_copied_code_gives, assert_shows_numbers, write_page

from mha_lib.widgets import AlibiExplorer

SLOPES = {
    1: [1 / 256],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    # Those of 4 heads, then every other one of 8.
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: [1 / 2**head for head in range(1, 9)],
}


def needle_in(slope, length, distance, score):
    """The score of the needle with its bias, and its weight, from all keys of the last query one by one."""
    scores = [-slope * place for place in range(length)]
    scores[distance] += score
    total = sum(math.exp(number) for number in scores)
    return scores[distance], math.exp(scores[distance]) / total


# In Python


@pytest.mark.parametrize("shown", ["bias", "weights"])
@pytest.mark.parametrize("num_heads", SLOPES)
@pytest.mark.parametrize(("length", "needle", "score"), [(2, 1, 3.0), (13, 7, 0.5), (211, 101, 11.0)])
def test_numbers_follow_the_definition(num_heads, length, needle, score, shown):
    explorer = AlibiExplorer(
        num_heads=num_heads, length=length, needle=needle, needle_score=score, shown=shown
    )
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


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [("head", 3, r"head must lie in 0\.\.2, got 3"), ("needle", 5, r"needle must lie in 1\.\.4, got 5")],
)
def test_wrong_settings_are_refused(name, value, rule):
    explorer = AlibiExplorer(num_heads=3, length=5, head=2)
    before = explorer.get_state()
    with pytest.raises(ValueError, match=rule):
        setattr(explorer, name, value)
    assert explorer.get_state() == before
    with pytest.raises(ValueError, match=rule):
        AlibiExplorer(**{"num_heads": 3, "length": 5, name: value})


def test_what_went_is_refused_by_name():
    with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'"):
        AlibiExplorer(is_causal=False)


def test_the_chosen_head_and_the_needle_stay_where_they_can_be():
    explorer = AlibiExplorer(num_heads=8, head=7, needle=300)
    explorer.num_heads, explorer.length = 3, 17
    assert (explorer.head, explorer.needle) == (2, 16)
    assert AlibiExplorer(length=2).needle == 1
    assert AlibiExplorer().needle == 4


@pytest.mark.parametrize("shown", ["bias", "weights"])
def test_text_and_figure_stand_in_for_the_explorer(shown):
    explorer = AlibiExplorer(num_heads=3, length=11, head=2, needle=7, shown=shown)
    assert repr(explorer) == "AlibiExplorer(num_heads=3, length=11, needle=7, needle_score=8, head=2)"
    figure = explorer.figure()
    assert isinstance(figure, Figure)
    [axis] = figure.axes
    assert axis.get_xscale() == "log"
    curves = torch.stack(
        [torch.as_tensor(line.get_ydata()) for line in axis.lines if len(line.get_xdata()) == 10]
    )
    torch.testing.assert_close(curves, explorer.numbers()["by_distance"])
    dots = [line.get_ydata() for line in axis.lines if line.get_marker() == "o"]
    assert [float(y[0]) for y in dots] == explorer.numbers()["by_distance"][:, 6].tolist()


# In a browser


@pytest.fixture
def page_of(reader, tmp_path):
    """A function that shows an explorer and returns the tab and the widget in it."""

    def show(explorer, over="disk", **options):
        tab = reader(over, **options)
        tab.open(write_page(tmp_path, [explorer]), 1)
        return tab, tab.host()

    return show


def slider(host, name):
    return host.get_by_role("slider", name=name, exact=True)


def needle_of(host):
    return slider(host, "needle: tokens before the query")


SEEN = """root => {
  const area = root.querySelector(".mha-area").getBoundingClientRect();
  const middle = (node) => {
    const box = node.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const read = (row) =>
    [...root.querySelectorAll(`${row} span`)].map((node) => [node.textContent, middle(node)]);
  return {
    area: [area.left, area.top, area.width, area.height],
    xTicks: read(".mha-x-ticks"),
    yTicks: read(".mha-y-ticks"),
    knob: middle(root.querySelector(".mha-handle")),
    dots: [...root.querySelectorAll(".mha-dots span")].map(middle),
    curves: [...root.querySelectorAll(".mha-curve")].map((path) => ({
      d: path.getAttribute("d"), dashed: path.classList.contains("mha-truth"),
      width: parseFloat(getComputedStyle(path).strokeWidth),
    })),
  };
}"""


class Picture:
    """What can be seen of the plane, turned back into distances and numbers with the help of its ticks."""

    def __init__(self, host):
        seen = host.evaluate(SEEN)
        self.left, self.top, self.width, self.height = seen["area"]
        self.xs = [(int(text), place[0]) for text, place in seen["xTicks"]]
        self.ys = [(float(text.replace("−", "-")), place[1]) for text, place in seen["yTicks"]]
        self.knob = self.data(*seen["knob"])
        self.dots = [self.data(*dot) for dot in seen["dots"]]
        self.curves = [
            [
                self.data(self.left + float(x) / 100 * self.width, self.top + float(y) / 100 * self.height)
                for x, y in (point.split() for point in curve["d"].lstrip("M").split("L"))
            ]
            for curve in seen["curves"]
            if curve["d"] and not curve["dashed"]
        ]
        self.widths = [c["width"] for c in seen["curves"] if c["d"] and not c["dashed"]]
        [dashed] = [c["d"] for c in seen["curves"] if c["dashed"]]
        self.before = self.data(0, self.top + float(dashed.split()[-1]) / 100 * self.height)[1]

    def data(self, x, y):
        """The distance and the number at a place on the screen: the ticks of x are powers of two."""
        (low, left), (high, right) = self.xs[0], self.xs[-1]
        share = (x - left) / (right - left)
        (bottom, under), (top, over) = self.ys[0], self.ys[-1]
        return (low * (high / low) ** share, bottom + (y - under) / (over - under) * (top - bottom))


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
    picture = Picture(host)
    low = -4 if explorer.shown == "bias" else 0
    step = 18 / picture.height if explorer.shown == "bias" else 1.2 / picture.height
    before = [score, needle_in(0, length, place, score)[1]]
    # The axis is logarithmic: equal steps are powers of two.
    assert [text for text, _ in picture.xs] == [2**power for power in range(10)]
    gaps = [b - a for (_, a), (_, b) in itertools.pairwise(picture.xs)]
    assert max(gaps) - min(gaps) < 0.6
    assert picture.before == pytest.approx(before[which], abs=1.5 * step)
    assert picture.knob == pytest.approx((place, before[which]), abs=1.5 * step, rel=0.02)
    curves = [curve for curve in picture.curves if len(curve) > 2 or length < 4]
    assert len(curves) >= len(slopes)
    for slope, curve in zip(slopes, curves[: len(slopes)], strict=True):
        assert (curve[0][0], curve[-1][0]) == pytest.approx((1, length - 1), rel=0.01)
        for distance, number in curve:
            exact = needle_in(slope, length, min(max(round(distance), 1), length - 1), score)[which]
            assert number == pytest.approx(exact, abs=2 * step, rel=0.01)
    assert len(picture.dots) == len(slopes)
    rows = rows_of(host)
    assert len(rows) == len(slopes)
    for h, slope in enumerate(slopes):
        after = needle_in(slope, length, place, score)
        assert picture.dots[h] == pytest.approx((place, max(after[which], low)), abs=1.5 * step, rel=0.02)
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


def test_the_reader_takes_the_needle_out_of_reach_by_keyboard(page_of):
    explorer = AlibiExplorer(num_heads=4, length=331)
    tab, host = page_of(explorer, over="http")
    press = tab.page.keyboard.press
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
        if place == 32:  # the reach of head 0, whose slope is 1/4: there it is not lost yet
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
    assert tab.errors == []


def test_both_pictures_show_score_and_weight_before_and_after(page_of):
    explorer = AlibiExplorer(num_heads=8, length=307, needle=23, needle_score=6.5)
    tab, host = page_of(explorer)
    plane = host.get_by_role("img", name="The needle in each head")
    expect(host.get_by_text("without the bias: 6.5")).to_be_visible()
    expect(host.get_by_text("query’s own token: 0")).to_be_visible()
    assert_picture(host, explorer)
    expect(plane).to_have_accessible_name(
        "The needle in each head, by its distance. 23 tokens back: scores from −5.00 to 6.41."
    )
    host.get_by_role("radio", name="Scores").press("ArrowRight")
    explorer.shown = "weights"
    expect(host.get_by_role("status")).to_have_text("The picture shows the weights.")
    expect(host.get_by_text("without the bias: 0.68")).to_be_visible()
    expect(host.get_by_text("query’s own token: 0")).to_be_hidden()
    assert_picture(host, explorer)
    assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)
    assert tab.errors == []


def test_sliders_change_heads_length_and_score(page_of):
    explorer = AlibiExplorer(num_heads=1, length=2)
    tab, host = page_of(explorer)
    press = tab.page.keyboard.press
    slider(host, "num_heads").focus()
    for value in range(1, 17):
        explorer.num_heads = value
        assert_shows_numbers(host, explorer)
        press("ArrowRight")
    # The slider of the length is logarithmic: its steps double it, twice in three steps or so.
    lengths = slider(host, "length")
    lengths.focus()
    for value in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512):
        expect(lengths).to_have_attribute("aria-valuetext", f"{value} tokens")
        press("ArrowRight")
    explorer.length = 512
    assert_picture(host, explorer)
    slider(host, "needle_score").press("End")
    explorer.needle_score = 12
    needle_of(host).press("End")
    explorer.needle = 511
    assert_picture(host, explorer)
    # The needle follows where the text gets shorter, and the head where there are fewer.
    host.locator(".mha-needle-row[aria-pressed]").nth(15).click()
    expect(host.get_by_role("status")).to_have_text("Head 15: slope 1/256, reach 3,072 tokens.")
    lengths.press("ArrowLeft")
    slider(host, "num_heads").press("Home")
    explorer.length, explorer.num_heads = 384, 1
    assert (explorer.needle, explorer.head) == (383, 0)
    expect(host.locator(".mha-verdict")).to_have_text("383 tokens back: the head finds the needle.")
    assert_picture(host, explorer)
    host.get_by_role("button", name="Reset").click()
    assert_shows_numbers(host, AlibiExplorer(num_heads=1, length=2))
    assert tab.errors == []


def test_a_length_between_the_stops_is_kept(page_of):
    explorer = AlibiExplorer(length=101, needle=100)
    tab, host = page_of(explorer)
    lengths = slider(host, "length")
    expect(lengths).to_have_attribute("aria-valuetext", "101 tokens")
    lengths.press("ArrowLeft")
    explorer.length = 96
    expect(needle_of(host)).to_have_attribute("aria-valuenow", "95")
    assert_picture(host, explorer)
    assert tab.errors == []


@pytest.mark.parametrize("by", ["mouse", "finger"])
def test_the_needle_is_dragged(page_of, by):
    explorer = AlibiExplorer(num_heads=8, length=433)
    tab, host = page_of(explorer, width=360)
    page, knob = tab.page, needle_of(host)
    knob.scroll_into_view_if_needed()
    picture = Picture(host)
    scrolled = page.evaluate("scrollY")
    devtools = page.context.new_cdp_session(page)

    def touch(kind, *place):
        points = [{"x": place[0], "y": place[1]}] if place else []
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def go(distance, down=0.0):
        x = picture.left + picture.width * math.log2(distance) / 9
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
    # Up and down do not matter.
    for distance, down in ((7, 40), (50, -40), (200, 0), (100, 0)):
        go(distance, down)
        near = range(round(0.97 * distance), round(1.03 * distance) + 1)
        expect(knob).to_have_attribute("aria-valuenow", re.compile(f"^({'|'.join(map(str, near))})$"))
    explorer.needle = int(knob.get_attribute("aria-valuenow"))
    assert_picture(host, explorer)
    # A text of 433 tokens ends before the plane does.
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
    assert tab.errors == []


def test_a_head_is_chosen_from_the_list(page_of):
    explorer = AlibiExplorer(num_heads=6, length=53)
    tab, host = page_of(explorer)
    rows = host.locator("button.mha-needle-row")
    expect(rows.filter(visible=True)).to_have_count(6)

    def widest():
        widths = Picture(host).widths[:6]
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
    assert tab.errors == []


def test_the_question_comes_first_and_the_answer_is_near_the_knob(page_of):
    tab, host = page_of(AlibiExplorer(), width=360)
    page = tab.page
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
    expect(host.locator(".mha-verdict")).to_have_text(
        "128 tokens back: heads 0–2 have lost the needle, and 5 of 8 find it."
    )
    # Not taller than the explorer was before it had a needle.
    assert host.bounding_box()["height"] < 1236
    page.set_viewport_size({"width": 1280, "height": 900})
    assert host.bounding_box()["height"] < 722
    assert tab.errors == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("head", 8, "head must lie in 0..7, got 8"),
        ("needle", 512, "needle must lie in 1..511, got 512"),
        ("needle", 0, "needle must lie in 1..511, got 0"),
    ],
)
def test_a_state_without_sense_gives_a_message(reader, tmp_path, name, value, message):
    tab = reader("disk")
    path = write_page(tmp_path, [AlibiExplorer()], alter=lambda states: states[0].update({name: value}))
    tab.open(path, 1)
    expect(tab.host().get_by_role("alert")).to_contain_text(message)
    expect(tab.host().locator(".mha-body")).to_be_hidden()
    assert tab.errors == []


def test_forced_colours_keep_the_chosen_head_the_bars_and_the_dots(page_of):
    explorer = AlibiExplorer(num_heads=4, length=97, head=2, needle=11)
    tab, host = page_of(explorer)
    tab.page.emulate_media(forced_colors="active")
    rows = host.locator("button.mha-needle-row:visible")
    borders = [row.evaluate("node => getComputedStyle(node).borderTopColor") for row in rows.all()]
    assert [head for head in range(4) if borders.count(borders[head]) == 1] == [2]
    for part in (".mha-needle-row:visible i", ".mha-dots span"):
        colors = host.locator(part).evaluate_all(
            "nodes => nodes.map((node) => getComputedStyle(node).backgroundColor)"
        )
        # Each head keeps its own colour; the list has one bar more, without the bias.
        assert len(set(colors)) == len(colors) >= 4
    assert_picture(host, explorer)
    assert tab.errors == []
