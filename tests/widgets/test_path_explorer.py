"""The path explorer: its counts against real layers, its mathematics and its drawing in a browser."""

import itertools
import math
import re

import pytest
import torch
from playwright.sync_api import expect
from seen import Plane, slider
from torch import nn
from widget_page import assert_copied_code_gives, assert_shows_numbers, copied_code

from mha_course.widgets import PathExplorer
from mha_lib import MultiHeadAttention

KINDS = ["attention", "convolution", "dilated", "recurrence"]


def layers_until_derivative(n, k, source, target, *, is_dilated):
    """Random convolutions, stacked until the derivative of one token by another is no longer zero."""
    torch.manual_seed(0)
    x = torch.randn(1, 2, n, dtype=torch.float64, requires_grad=True)
    y, layers = x, 0
    while True:
        spacing = ((k + 1) // 2) ** layers if is_dilated else 1
        layer = nn.Conv1d(2, 2, k, padding=spacing * (k // 2), dilation=spacing)
        y, layers = layer.double()(y), layers + 1
        (slope,) = torch.autograd.grad(y[0, :, target].sum(), x, retain_graph=True)
        if slope[0, :, source].abs().max() > 0:
            return layers


def recurrent_steps(source, target):
    """Operations that the derivative of a recurrent network's state goes through, followed in its graph."""
    x = [torch.randn(2, requires_grad=True) for _ in range(target + 1)]
    state, matrix = None, torch.randn(2, 2)
    for token in x:
        state = torch.tanh(token if state is None else token + matrix @ state)
    node, steps = state.grad_fn, 1
    for _ in range(target - source):
        assert node.name() == "TanhBackward0"
        node = node.next_functions[0][0].next_functions[1][0].next_functions[1][0]
        steps += 1
    return steps


@pytest.mark.parametrize("k", [3, 5, 7])
@pytest.mark.parametrize("n", [2, 3, 11])
def test_paths_equal_derivatives(n, k):
    explorer = PathExplorer(n=n, k=k)
    for source in range(0, n, 4):
        for target in range(source, n):
            explorer.set_trait("target", n - 1)
            explorer.source, explorer.target = source, target
            attention, plain, dilated, recurrence = explorer.numbers()["path"].tolist()
            assert attention == 1
            assert plain == layers_until_derivative(n, k, source, target, is_dilated=False)
            assert dilated == layers_until_derivative(n, k, source, target, is_dilated=True)
            assert recurrence == recurrent_steps(source, target)
            explorer.source = 0
    # The longest path leads from the first token to the last, and chapter 4 gives its formula.
    longest = explorer.numbers()["longest"].tolist()
    assert longest[1] == math.ceil(2 * (n - 1) / (k - 1))
    assert longest == PathExplorer(n=n, k=k).numbers()["path"].tolist()


def test_attention_reaches_all_in_one_layer():
    torch.manual_seed(0)
    layer = MultiHeadAttention(2, 1).double()
    x = torch.randn(1, 9, 2, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(x, x, x)[0][0, -1].sum(), x)
    assert (slope.abs().amax(-1) > 0).all()
    assert PathExplorer(n=9).numbers()["path"][0] == 1


@pytest.mark.parametrize("with_projections", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), [(5, 3, 3), (2, 1, 5), (12, 64, 3), (31, 7, 15)])  # fmt: skip
def test_costs_equal_a_loop(n, d, k, with_projections):
    explorer = PathExplorer(n=n, d=d, k=k, with_projections=with_projections)
    found = explorer.numbers()

    def count(n):
        attention = sum(2 * d for _query in range(n) for _key in range(n))
        attention += sum(4 * d * d for _token in range(n)) if with_projections else 0
        convolution = sum(d * d for _token in range(n) for _neighbour in range(k))
        return attention, convolution, sum(d * d for _state in range(1, n))

    attention, convolution, recurrence = count(n)
    costs = [attention, convolution, convolution, recurrence]
    assert found["multiplications"].tolist() == costs
    layers = [1, *found["longest"][1:3].tolist(), 1]
    assert found["total"].tolist() == [a * b for a, b in zip(costs, layers, strict=True)]
    assert found["steps"].tolist() == [1, 1, 1, n]
    names = ("attention", "convolution", "recurrence")
    for power in range(1, 6):
        curves = [found[name][power - 1].item() for name in names]
        assert curves == list(count(2**power))
    # Up to the crossover, attention needs no more multiplications; one token later, it does.
    lengths = range(40 * d * k)
    own = [2 * i * i * d + with_projections * 4 * i * d * d for i in lengths]
    others = [[(i - 1) * d * d for i in lengths], [k * i * d * d for i in lengths]]
    for crossover, other in zip(found["crossover"].tolist(), others, strict=True):
        assert crossover == 0 or own[crossover] <= other[crossover]
        assert all(a > b for a, b in list(zip(own, other, strict=True))[crossover + 1 :])


def test_the_figures_of_the_chapter():
    found = PathExplorer(n=64, d=64, k=3).numbers()
    assert found["longest"].tolist() == [1, 63, 6, 64]
    assert found["crossover"].tolist() == [30, 96]  # n = kd/2


def test_tokens_stay_inside():
    explorer = PathExplorer(n=12, source=3)
    explorer.n = 20
    assert (explorer.source, explorer.target) == (3, 19)  # the last token stays the last
    explorer.target = 10
    explorer.n = 30
    assert (explorer.source, explorer.target) == (3, 10)
    explorer.n = 3
    assert (explorer.source, explorer.target) == (2, 2)
    with pytest.raises(ValueError, match=r"target must lie in 2\.\.2, got 1"):
        explorer.target = 1
    explorer = PathExplorer(source=5)
    with pytest.raises(ValueError, match=r"target must lie in 5\.\.11, got 4"):
        explorer.target = 4


def points(host, kind, name):
    """The points of a drawn path as (x, y) in its canvas of 100 by 100."""
    drawn = host.locator(f"figure.mha-path-{kind} .mha-{name}").get_attribute("d")
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", drawn)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize(
    ("n", "k", "source", "target"), [(12, 3, 0, 11), (16, 5, 4, 9), (24, 3, 7, 20), (96, 7, 10, 80)]
)
def test_drawing(show, n, k, source, target):
    """The route goes from sender to receiver, and the dots are where a real signal has been."""
    host = show(PathExplorer(n=n, k=k, source=source, target=target))
    lengths = PathExplorer(n=n, k=k, source=source, target=target).numbers()
    longest = lengths["longest"].tolist()
    place = lambda token: pytest.approx(100 * (token + 0.5) / n, abs=0.01)  # noqa: E731
    for kind, length, depth in zip(KINDS, lengths["path"].tolist(), longest, strict=True):
        route = points(host, kind, "route")
        assert route[0] == (place(source), 94)
        assert route[-1][0] == place(target)
        if kind in ("convolution", "dilated"):
            heights = [94 - 88 * layer / depth for layer in range(len(route))]  # one step per layer
            assert [y for _, y in route] == pytest.approx(heights, abs=0.01)
            assert len(route) == length + 1
            # No step is wider than the kernel, or falls between the taps of a dilated one.
            moves = [(there - here) * n / 100 for (here, _), (there, _) in itertools.pairwise(route)]
            spacings = [((k + 1) // 2) ** layer if kind == "dilated" else 1 for layer in range(length)]
            steps = [move / spacing for move, spacing in zip(moves, spacings, strict=True)]
            assert steps == pytest.approx([round(step) for step in steps], abs=0.01 * n)
            assert all(0 <= round(step) <= k // 2 for step in steps)
            if n > 24:
                continue
            signal, expected = torch.zeros(1, 1, n), []
            signal[..., source] = 1
            for layer in range(depth - 1):
                spacing = ((k + 1) // 2) ** layer if kind == "dilated" else 1
                padding = spacing * (k // 2)
                signal = torch.conv1d(signal, torch.ones(1, 1, k), padding=padding, dilation=spacing)
                signal = (signal > 0).float()
                y = 94 - 88 * (layer + 1) / depth
                expected += [(100 * (token + 0.5) / n, y) for token in signal[0, 0].nonzero()[:, 0].tolist()]
            dots = points(host, kind, "reached")
            assert len(dots) == len(expected)
            for dot, wanted in zip(dots, expected, strict=True):
                assert dot == pytest.approx(wanted, abs=0.01)
        else:
            assert route[-1][1] == 6
        label = host.locator(f"figure.mha-path-{kind} svg").get_attribute("aria-label")
        assert f"token {source} reaches token {target} in {length} step" in label
    if n <= 16:
        wires = host.locator("figure.mha-path-attention .mha-edges").get_attribute("d")
        assert wires.count("M") == n * n
        near = sum(min(i + k // 2, n - 1) - max(i - k // 2, 0) + 1 for i in range(n))
        wires = host.locator("figure.mha-path-convolution .mha-edges").get_attribute("d")
        assert wires.count("M") == near * longest[1]


def test_pointer_reset_and_python(show):
    explorer = PathExplorer(n=20, d=48, k=5, source=2, target=17)
    host = show(explorer)
    assert_shows_numbers(host, explorer)  # d is not one of the slider's stops
    assert_copied_code_gives(host, explorer)
    box = slider(host, "to token").bounding_box()
    middle = box["y"] + box["height"] / 2
    travel = box["width"] - 16
    host.page.mouse.move(box["x"] + 8 + travel * 17 / 19, middle)
    host.page.mouse.down()
    host.page.mouse.move(box["x"] + 8 + travel * 9 / 19, middle, steps=4)
    host.page.mouse.up()
    expect(slider(host, "to token")).to_have_value("9")
    # The receiver pulls the sender along, and vice versa.
    slider(host, "to token").press("Home")
    expect(slider(host, "from token")).to_have_value("0")
    slider(host, "from token").press("End")
    expect(slider(host, "to token")).to_have_value("19")
    for name, place in (("to token", 9), ("from token", 2)):
        slider(host, name).press("Home")
        for _ in range(place):
            slider(host, name).press("ArrowRight")
    explorer.target = 9
    assert_shows_numbers(host, explorer)
    convolutions = [layers_until_derivative(20, 5, 2, 9, is_dilated=dilated) for dilated in (False, True)]
    steps = [1, *convolutions, recurrent_steps(2, 9)]
    names = ("self\u2011attention", "convolution", "dilated convolution", "recurrent network")
    walks = ", ".join(f"{name} {count}" for name, count in zip(names, steps, strict=True))
    attention, *_, recurrence = explorer.numbers()["multiplications"].tolist()
    expect(host.get_by_role("status")).to_have_text(
        f"n = 20, d = 48, k = 5. From token 2 to 9: {walks} steps. "
        f"Attention multiplies {attention / recurrence:.2f} times as often as a recurrence."
    )
    host.get_by_text("Count attention's four projections").click()
    explorer.with_projections = True
    assert "MultiHeadAttention" in copied_code(host)
    assert_copied_code_gives(host, explorer)

    host.get_by_role("button", name="Reset").click()
    expect(slider(host, "to token")).to_have_value("17")
    assert_shows_numbers(host, PathExplorer(n=20, d=48, k=5, source=2, target=17))


@pytest.mark.parametrize("width", [320, 360, 481, 760, 1280])
def test_no_word_of_the_table_breaks(show, width):
    """Each word of the headings is on one line and inside its cell."""
    host = show(PathExplorer(n=2048, d=1024, k=3, with_projections=True), width=width)
    words = host.locator(".mha-costs th").evaluate_all(
        """cells => cells.flatMap((cell) => {
          const text = cell.lastChild;
          const box = cell.getBoundingClientRect();
          return [...text.data.matchAll(/\\S+/g)].map((match) => {
            const range = document.createRange();
            range.setStart(text, match.index);
            range.setEnd(text, match.index + match[0].length);
            const rects = [...range.getClientRects()].filter(({ width }) => width > 0);
            return [match[0], new Set(rects.map(({ top }) => Math.round(top))).size,
              rects.every(({ left, right }) => left >= box.left - 0.5 && right <= box.right + 0.5)];
          });
        })"""
    )
    seen = [word for word, _, _ in words]
    assert {"work", "layer", "longest", "self\u2011attention", "convolution"} <= set(seen)
    assert len(seen) >= 15
    assert [word for word in words if word[1:] != [1, True]] == []
    assert not any("\u00ad" in word for word in seen)


def amount(text):
    """A number as the table writes it, with three digits and a prefix if it is large."""
    digits, _, prefix = text.replace("\u00a0", " ").partition(" ")
    return float(digits.replace(",", "")) * 1000 ** ("", "k", "M", "G").index(prefix)


@pytest.mark.parametrize(("n", "d", "k"), [(13, 7, 3), (96, 64, 5)])
def test_the_table_and_the_sentence_say_what_is_counted(show, n, d, k):
    host = show(PathExplorer(n=n, d=d, k=k, source=2, target=n - 3))
    attention, convolution, recurrence = 2 * n * n * d, k * n * d * d, (n - 1) * d * d
    longest = [1, -(-(n - 1) // (k // 2)), PathExplorer(n=n, d=d, k=k).numbers()["longest"][2].item(), n]
    costs = [attention, convolution, convolution, recurrence]
    whole = [attention, convolution * longest[1], convolution * longest[2], recurrence]
    rows = host.locator(".mha-costs tbody tr").all()
    names = [row.locator("th").inner_text() for row in rows]
    assert names == ["self\u2011attention", "convolution", "dilated convolution", "recurrent network"]
    for row, cost, steps, path, total in zip(rows, costs, (1, 1, 1, n), longest, whole, strict=True):
        found = [amount(text) for text in row.locator("td").all_inner_texts()]
        assert found == pytest.approx([cost, steps, path, total], rel=0.006)
    cheaper = [i for i in range(1, 9 * d * k) if 2 * i * i * d <= (i - 1) * d * d]
    crossings = (max(cheaper, default=0), k * d // 2)
    told = [f"up to n = {number}" if number else "at no length" for number in crossings]
    assert host.locator(".mha-verdict strong").all_inner_texts() == told
    distance = n - 5
    said = [text.split(": ")[1] for text in host.locator("figcaption").all_inner_texts()]
    assert [said[0], said[1], said[3]] == [
        "1 step", f"{-(-distance // (k // 2))} steps", f"{distance + 1} steps"
    ]  # fmt: skip


def test_the_chart_is_the_cost_at_every_length(show):
    host = show(PathExplorer(n=32, d=64))
    power = {digit: str(place) for place, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
    plane = Plane(
        host.locator(".mha-plane"),
        x=lambda text: math.log2(int(text)),
        y=lambda text: int("".join(power[digit] for digit in text[2:])),
    )
    # The dotted line is at d on the axis of lengths.
    assert {round(x, 1) for x, _ in plane.curve("mha-border")} == {6.0}
    expect(host.locator(".mha-border-name")).to_have_text("n = d")
    lengths = [2**i for i in range(1, 12)]
    costs = {
        "attention": [2 * n * n * 64 for n in lengths],
        "convolution": [3 * n * 64**2 for n in lengths],
        "recurrence": [(n - 1) * 64**2 for n in lengths],
    }
    for kind, numbers in costs.items():
        drawn, [dot] = plane.curve(f"mha-path-{kind}"), plane.dots(f"mha-path-{kind}")
        assert [x for x, _ in drawn] == pytest.approx(range(1, 12), abs=0.1)
        assert [y for _, y in drawn] == pytest.approx([math.log10(number) for number in numbers], abs=0.1)
        assert dot[:2] == pytest.approx((5, math.log10(numbers[4])), abs=0.12)
