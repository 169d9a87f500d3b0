"""The pooling explorer: its traits and numbers in Python, and what a reader does with it in a browser."""

import math
import re
from fractions import Fraction

import pytest
import torch
from playwright.sync_api import expect
from seen import Plane
from widget_page import assert_copied_code_gives, assert_shows_numbers, copied_code, run_copied_code, shown

from mha_course.data import noisy_curve
from mha_course.widgets import PoolingExplorer

KERNELS = ("Gaussian", "boxcar", "triangular", "Epanechnikov")
HOURS = {"key": [6.0, 9.0, 11.0, 14.0, 16.0, 20.0], "value": [9.0, 14.0, 18.0, 21.0, 22.0, 15.0],
         "key_range": (4.0, 22.0), "query": 12.0, "bandwidth": 2.0}  # fmt: skip


# The numbers, compared with loops over plain floats


def kernel_by_hand(kernel, u):
    if kernel == "Gaussian":
        return math.exp(-u * u / 2)
    if abs(u) > 1:
        return 0.0
    return {"boxcar": 1.0, "triangular": 1 - abs(u), "Epanechnikov": 1 - u * u}[kernel]


def in_bandwidths(query, key, bandwidth):
    """The quotient of the numbers as they are written, in up to nine decimals: exactly 1 where it is 1."""
    q, k, h = (Fraction(f"{number:.9f}") for number in (query, key, bandwidth))
    return float((q - k) / h)


def pool_by_hand(query, keys, values, kernel, bandwidth, left_out=None):
    """Output and weights of one query; zeros where no key is within reach."""
    heights = [kernel_by_hand(kernel, in_bandwidths(query, key, bandwidth)) for key in keys]
    heights = [0.0 if i == left_out else height for i, height in enumerate(heights)]
    total = sum(heights)
    weights = [height / total if total else 0.0 for height in heights]
    return sum(w * v for w, v in zip(weights, values, strict=True)), weights


def numbers_by_hand(explorer):
    keys, values = explorer.key, explorer.value
    rule = (keys, values, explorer.kernel, explorer.bandwidth)
    low, high = explorer.key_range
    output, weights = pool_by_hand(explorer.query, *rule)
    fit = [pool_by_hand(low + (high - low) * i / 100, *rule)[0] for i in range(101)]

    def error(estimates, targets):
        squares = [(e - t) ** 2 for e, t in zip(estimates, targets, strict=True)]
        return sum(squares) / len(squares)

    by_all = [pool_by_hand(key, *rule)[0] for key in keys]
    by_others = [pool_by_hand(key, *rule, left_out=i)[0] for i, key in enumerate(keys)]
    numbers = {
        "output": output, "weights": weights, "fit": fit, "training_error": error(by_all, values),
        "leave_one_out_error": error(by_others, values),
    }  # fmt: skip
    if explorer.truth:
        numbers["test_error"] = error(fit, explorer.truth)
    return numbers


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bandwidth", [0.11, 0.25, 3.0])
@pytest.mark.parametrize("query", [0.0, 2.0, 2.87])
def test_numbers_are_those_of_loops(kernel, bandwidth, query):
    explorer = PoolingExplorer(kernel=kernel, bandwidth=bandwidth, query=query)
    found, expected = explorer.numbers(), numbers_by_hand(explorer)
    assert found.keys() == expected.keys()
    for name, number in expected.items():
        wanted = torch.tensor(number, dtype=torch.float64)
        torch.testing.assert_close(found[name], wanted, atol=1e-10, rtol=1e-10)


def test_default_pairs_are_the_noisy_curve_of_the_chapter():
    explorer = PoolingExplorer()
    data = noisy_curve(24, 101, noise=0.5, generator=torch.Generator().manual_seed(0))
    assert len(explorer.key) == 24
    assert explorer.key == sorted(explorer.key)
    for numbers, part in ((explorer.key, data.x_train), (explorer.value, data.y_train)):
        torch.testing.assert_close(torch.tensor(numbers), part.flatten(), atol=0.0051, rtol=0)
    torch.testing.assert_close(torch.tensor(explorer.truth), data.y_test.flatten(), atol=1e-5, rtol=0)


def test_query_that_no_key_reaches_gets_zeros():
    explorer = PoolingExplorer(kernel="boxcar", bandwidth=0.05, query=1.2)
    numbers = explorer.numbers()
    assert numbers["output"] == 0
    assert not numbers["weights"].any()
    assert all(torch.isfinite(number).all() for number in numbers.values())
    explorer.kernel = "Gaussian"  # which always answers
    assert explorer.numbers()["weights"].sum() == pytest.approx(1)


# Query, key and bandwidth as a reader writes them, with the key exactly one bandwidth away, on both sides. In
# float64 the quotient lies on the wrong side of 1 for some of them.
EXACTLY_ONE = [
    ("2", "1.7", "0.3"), ("2", "2.3", "0.3"), ("1.1", "1.4", "0.3"), ("0.7", "0.1", "0.6"),
    ("4.35", "4.12", "0.23"), ("3", "2", "1"),
]  # fmt: skip


def test_a_key_exactly_one_bandwidth_away_is_in_the_boxcar_and_at_the_zero_of_the_others():
    """Chapter 1: the boxcar is 1 where |u| <= 1, and the other two kernels fall to 0 at |u| = 1."""
    wrong = 0
    for query, key, bandwidth in EXACTLY_ONE:
        assert abs(Fraction(query) - Fraction(key)) == Fraction(bandwidth)
        wrong += abs((float(query) - float(key)) / float(bandwidth)) != 1
        for kernel in KERNELS[1:]:
            explorer = PoolingExplorer(
                key=[float(key)], value=[7.0], query=float(query), bandwidth=float(bandwidth), kernel=kernel
            )
            reached = kernel == "boxcar"
            assert explorer.numbers()["weights"].item() == reached, (query, key, bandwidth, kernel)
            assert explorer.numbers()["output"].item() == 7 * reached
    assert wrong >= 4, "rounding would decide in these cases"


def test_beyond_one_bandwidth_the_boxcar_ends():
    for key, reached in (("1.7", True), ("1.6999", False), ("2.3001", False), ("2.2999", True)):
        explorer = PoolingExplorer(key=[float(key)], value=[7.0], query=2.0, bandwidth=0.3, kernel="boxcar")
        assert explorer.numbers()["weights"].item() == reached


def test_weights_depend_on_keys_and_not_on_values():
    explorer = PoolingExplorer()
    before = explorer.numbers()
    explorer.value = [-number / 5 for number in explorer.value]
    after = explorer.numbers()
    assert torch.equal(after["weights"], before["weights"])
    torch.testing.assert_close(after["output"], -before["output"] / 5)
    explorer.key = [2.2 if i == explorer.pair else key for i, key in enumerate(explorer.key)]
    assert (explorer.numbers()["weights"] != after["weights"]).all()


def test_own_pairs_need_no_true_curve():
    explorer = PoolingExplorer(**HOURS)
    numbers = explorer.numbers()
    assert numbers["output"].item() == pytest.approx(18.4904, abs=1e-4)
    assert "test_error" not in numbers
    assert explorer.pair == 3, "14 is 2 away from 12, and 11 only 1"
    line = PoolingExplorer(**HOURS, truth=lambda x: 2 * x)
    assert line.truth[:2] == pytest.approx([8, 8.36])
    assert line.value_range[0] < 8
    assert line.value_range[1] > 44
    assert "test_error" in line.numbers()


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"key": [1.0]}, ValueError, "key and value must be given together"),
    ({"value": [1.0]}, ValueError, "key and value must be given together"),
    ({"key": [1.0, 2.0], "value": [1.0]}, ValueError, "value must hold 2 numbers"),
    ({"key": [], "value": []}, ValueError, "key must hold 1 to 64 numbers"),
    ({"key": [1.0] * 65, "value": [1.0] * 65}, ValueError, "key must hold 1 to 64 numbers, got 65"),
    ({"key": 1.0, "value": 1.0}, TypeError, "key must be a list"),
    ({"key_range": (5.0, 0.0)}, ValueError, "key_range must begin below its end"),
    ({"key_range": (0.0, math.inf)}, ValueError, "key_range must hold 2 numbers"),
    ({"key_range": 5}, TypeError, "key_range must be a list of numbers"),
    ({"key_range": (0.0, 3.0)}, ValueError, "key must hold 24 numbers from 0.0 to 3.0"),
    ({"truth": 1.0}, TypeError, "truth must be a function or None, got 1.0"),
    ({"truth": lambda x: x.sum()}, ValueError, "truth must map a tensor of shape"),
    ({"truth": lambda x: x / 0}, ValueError, "truth must give numbers"),
])  # fmt: skip
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        PoolingExplorer(**arguments)


@pytest.mark.parametrize("name", ["key_range", "value_range", "truth"])
def test_data_are_read_only(name):
    with pytest.raises(TypeError, match="read-only"):
        setattr(PoolingExplorer(), name, [])


def handle(host, name):
    return host.locator(f".mha-handle.mha-{name}")


def move_text(host):
    return host.locator(".mha-move").inner_text()


def control(host, name):
    row = host.locator(".mha-row").filter(has=host.page.get_by_text(name, exact=True))
    return row.locator("select, input")


def test_keys_and_values_move_apart_by_keyboard(show):
    explorer = PoolingExplorer()
    host = show(explorer)
    pair = control(host, "pair")
    key, value = handle(host, "key"), handle(host, "value")
    status = host.locator("[role=status]")
    assert "Drag the query" in move_text(host)

    for target in (0, 11):
        pair.press("Home")
        for _ in range(target):
            pair.press("ArrowRight")
        explorer.pair = target
        expect(key).to_have_attribute("aria-label", f"key of pair {target}")
        expect(value).to_have_attribute("aria-label", f"value of pair {target}")
        expect(status).to_contain_text(f"pair {target}: key {explorer.key[target]:.2f}")
        handle(host, "query").press("Home")
        for _ in range(round(explorer.key[target] * 2)):
            handle(host, "query").press("Shift+ArrowRight")
        explorer.query = round(explorer.key[target] * 2) / 2

        # If only the value moves, no weight changes, but the output does.
        weights, output = shown(host, "weights"), shown(host, "output")
        value.press("ArrowUp")
        for name in ("Shift+ArrowDown", "ArrowDown"):
            value.press(name)
        moved = float(value.get_attribute("aria-valuenow"))
        explorer.value = [moved if i == target else v for i, v in enumerate(explorer.value)]
        assert_shows_numbers(host, explorer)
        assert torch.equal(shown(host, "weights"), weights)
        assert shown(host, "output") != output
        expect(host.locator(".mha-move")).to_contain_text("Weights unchanged")
        assert "Output changed" in move_text(host)
        expect(status).to_contain_text(f"Value of pair {target}:")
        expect(status).to_contain_text("Weights unchanged, output changed")

        # If only the key moves, all weights change.
        weights = shown(host, "weights")
        for name in ("ArrowLeft", "Shift+ArrowRight", "ArrowUp"):
            key.press(name)
        moved = float(key.get_attribute("aria-valuenow"))
        explorer.key = [moved if i == target else k for i, k in enumerate(explorer.key)]
        assert_shows_numbers(host, explorer)
        assert (shown(host, "weights") != weights).all()
        others = weights.sum() - weights[target]
        assert (
            f"pair {target} {weights[target]:.3f} → {shown(host, 'weights')[target]:.3f}, "
            f"sum of the others {others:.3f}"
        ) in move_text(host)
        expect(status).to_contain_text("Weights changed, output changed")


def test_each_move_is_told_from_before_to_after(show):
    host = show(PoolingExplorer())
    nodes = {name: control(host, name) for name in ("bandwidth", "kernel")}
    nodes |= {name: handle(host, name) for name in ("query", "key", "value")}
    for name in ("bandwidth", "query", "key", "value", "kernel"):
        was, output = setting_of(nodes[name]), shown(host, "output").item()
        nodes[name].select_option("boxcar") if name == "kernel" else nodes[name].press("ArrowRight")
        assert f"{was} → {setting_of(nodes[name])}." in move_text(host)
        assert f"Output changed: {output:.3f} → {shown(host, 'output').item():.3f}" in move_text(host)


def setting_of(node):
    return node.evaluate("node => node.ariaValueText ?? node.value")


def drag(node, across, up):
    box, mouse = node.bounding_box(), node.page.mouse
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + across / 2, y - up / 2)
    mouse.move(x + across, y - up)
    mouse.up()


def test_by_pointer(show):
    explorer = PoolingExplorer(kernel="Epanechnikov", bandwidth=0.5)
    host = show(explorer, over="http")
    area = host.locator(".mha-fit .mha-area")
    area.scroll_into_view_if_needed()
    width, height = area.bounding_box()["width"], area.bounding_box()["height"]

    # Only along x, whatever the pointer does: 1.5 to the right.
    drag(handle(host, "query"), 1.5 / 5 * width, 40)
    explorer.query = 3.5
    expect(handle(host, "query")).to_have_attribute("aria-valuetext", "3.50")
    assert_shows_numbers(host, explorer)
    # The message describes one move from its beginning, however many steps it had.
    assert "Query: 2.00 → 3.50." in move_text(host)

    # Select the pair at (3.84, 4.61) with a click on its dot.
    low, high = explorer.value_range
    target = explorer.value.index(4.61)
    x, y = explorer.key[target] / 5 * width, (high - 4.61) / (high - low) * height
    area.hover(position={"x": x + 3, "y": y + 3})
    expect(host.locator(".mha-pair")).to_contain_text(f"pair {target}: key 3.84, value 4.61")
    area.click(position={"x": x + 3, "y": y + 3})
    explorer.pair = target
    expect(control(host, "pair")).to_have_value(str(target))
    weights = shown(host, "weights")
    assert weights[target] > 0
    drag(handle(host, "value"), -90, -1.5 / (high - low) * height)
    moved = float(handle(host, "value").get_attribute("aria-valuenow"))
    assert moved == pytest.approx(3.1, abs=0.051)
    explorer.value = [moved if i == target else v for i, v in enumerate(explorer.value)]
    assert_shows_numbers(host, explorer)
    assert torch.equal(shown(host, "weights"), weights)

    drag(handle(host, "key"), 0.5 / 5 * width, -5)
    moved = float(handle(host, "key").get_attribute("aria-valuenow"))
    assert moved == pytest.approx(4.35, abs=0.051)
    explorer.key = [moved if i == target else k for i, k in enumerate(explorer.key)]
    assert_shows_numbers(host, explorer)
    assert not torch.equal(shown(host, "weights"), weights)

    # A click on a stem selects its pair too; a click elsewhere moves the query there.
    stems = host.locator(".mha-stems .mha-area")
    stems.click(position={"x": explorer.key[0] / 5 * width + 3, "y": 30})
    explorer.pair = 0
    expect(control(host, "pair")).to_have_value("0")
    area.click(position={"x": 0.6 * width, "y": 8})
    explorer.query = 3.0
    expect(handle(host, "query")).to_have_attribute("aria-valuetext", "3.00")
    assert_shows_numbers(host, explorer)


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_at_exactly_one_bandwidth_picture_and_numbers_agree(show, kernel):
    """The window ends at the keys; the boxcar answers there with their mean, and the others with nothing."""
    data = {"key": [1.7, 2.3], "value": [3.0, 8.0], "key_range": (0.0, 5.0)}
    explorer = PoolingExplorer(**data, query=2.0, bandwidth=0.3, kernel=kernel)
    host = show(explorer)
    fact = host.locator(".mha-facts > p").first
    plane = Plane(host.locator(".mha-stems"))
    stems, window = plane.curve("mha-key"), plane.curve("mha-query mha-window")
    tops = [y for _, y in stems if y > 0.1]
    (left, *_), (right, *_) = min(window), max(window)
    assert (left, right) == pytest.approx((1.7, 2.3), abs=0.03)
    assert {round(x, 1) for x, _ in stems} == {1.7, 2.3}
    at_the_edge = max(y for x, y in window if x == left)
    if kernel == "boxcar":
        expect(fact).to_contain_text("5.500")
        assert tops == pytest.approx([0.5, 0.5], abs=0.01)
        assert at_the_edge == pytest.approx(0.5, abs=0.01), "the window is still up at its edge"
    else:
        expect(fact).to_contain_text("no key within reach")
        assert tops == []
        assert at_the_edge == pytest.approx(0, abs=0.01), "the window is down at its edge"
    assert_copied_code_gives(host, explorer)


def test_query_without_a_key_is_said_in_words(show):
    explorer = PoolingExplorer(kernel="triangular", bandwidth=0.1, query=2.0)
    host = show(explorer)
    facts = host.locator(".mha-facts > p")
    silent = sum(not any(round(abs(5 * i / 100 - key), 9) < 0.1 for key in explorer.key) for i in range(101))
    alone = sum(
        not any(round(abs(key - other), 9) < 0.1 for j, other in enumerate(explorer.key) if j != i)
        for i, key in enumerate(explorer.key)
    )  # fmt: skip
    assert silent > 10
    assert alone > 2
    expect(facts.nth(1)).to_contain_text(f"{silent} of 101 points see no key")
    expect(facts.nth(3)).to_contain_text(f"{alone} of 24 see no other")
    expect(facts.nth(0)).to_contain_text("sum of weight · value")
    for _ in range(2):
        handle(host, "query").press("Shift+ArrowLeft")
    explorer.query = 1.0
    assert explorer.numbers()["weights"].sum() == 0
    assert_shows_numbers(host, explorer)
    expect(facts.nth(0)).to_contain_text("no key within reach")
    expect(host.locator("[role=status]")).to_contain_text("No key is within reach of the query")
    assert "0 is not an estimate" in move_text(host)
    expect(host.locator(".mha-stems svg")).to_have_attribute("aria-label", re.compile("All are zero"))
    # The fit has gaps there, so its path has as many moves as there are segments.
    fit = explorer.numbers()["fit"]
    stretches = int(((fit[1:] != 0) & (fit[:-1] == 0)).sum()) + int(fit[0] != 0)
    path = host.locator("[data-number=fit]").get_attribute("d")
    assert path.count("M") == stretches > 3
    assert_copied_code_gives(host, explorer)
    # The Gaussian sees every key.
    control(host, "kernel").press("Home")
    expect(facts.nth(0)).to_contain_text("sum of weight · value")
    expect(facts.nth(1)).to_contain_text("against the true curve")
    expect(host.locator(".mha-is-nothing")).to_be_hidden()


@pytest.mark.parametrize("truth", [None, lambda x: 2 * x - 1])
def test_own_pairs_and_their_program(show, truth):
    shifted = [key - 10 for key in HOURS["key"]]
    explorer = PoolingExplorer(**{**HOURS, "key": shifted, "key_range": (-6.0, 11.5), "query": 2.0},
                               truth=truth, kernel="Epanechnikov")  # fmt: skip
    host = show(explorer)
    assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)
    assert "import curve" not in copied_code(host)
    assert (run_copied_code(host)["test_error"] is not None) is (truth is not None)
    fact = host.locator(".mha-facts > p").nth(1)
    if truth is None:
        expect(fact).to_contain_text("no true curve")
    # The slider's stops follow the range of the keys, and a number from Python may lie between two of them.
    slider = control(host, "bandwidth")
    expect(slider).to_have_attribute("aria-valuetext", "2")
    slider.press("End")
    explorer.bandwidth = float(slider.get_attribute("aria-valuetext"))
    assert explorer.bandwidth == pytest.approx(0.6 * 17.5, rel=0.05)
    assert_shows_numbers(host, explorer)


def test_program_of_the_true_curve_names_it(show):
    code = copied_code(show(PoolingExplorer()))
    assert "from mha_course.data import curve" in code
    assert "truth = [" not in code
    assert len(code) < 3000


def test_curves_dots_and_stems_are_the_data(show):
    explorer = PoolingExplorer(query=1.7, pair=5)
    host = show(explorer)
    _, weights = pool_by_hand(1.7, explorer.key, explorer.value, "Gaussian", explorer.bandwidth)
    fit = numbers_by_hand(explorer)["fit"]
    above, below = Plane(host.locator(".mha-fit")), Plane(host.locator(".mha-stems"))
    above.x = below.x  # both planes share the ticks below them
    grid = [5 * i / 100 for i in range(101)]
    close = 0.02 * (explorer.value_range[1] - explorer.value_range[0])
    for kind, heights in (("mha-query", fit), ("mha-truth", explorer.truth)):
        drawn = above.curve(kind)
        assert [x for x, _ in drawn] == pytest.approx(grid, abs=0.05)
        assert [y for _, y in drawn] == pytest.approx(heights, abs=close)
    pairs = above.dots("mha-key")
    assert [x for x, _, _ in pairs] == pytest.approx(explorer.key, abs=0.05)
    assert [y for _, y, _ in pairs] == pytest.approx(explorer.value, abs=close)
    # The area of a dot grows with the weight, starting from the smallest dot.
    smallest = 6
    assert [((width - smallest) / 16) ** 2 for *_, width in pairs] == pytest.approx(weights, abs=0.01)
    stems = below.curve("mha-key")
    assert [y for _, y in stems[::2]] == pytest.approx([0] * 24, abs=0.005)
    assert [y for _, y in stems[1::2]] == pytest.approx(weights, abs=0.02 * max(weights))
    assert [x for x, _ in stems[1::2]] == pytest.approx(explorer.key, abs=0.05)


def test_the_text_of_a_pair_says_what_it_adds(show):
    explorer = PoolingExplorer(query=3.1)
    host = show(explorer)
    output, weights = pool_by_hand(3.1, explorer.key, explorer.value, "Gaussian", explorer.bandwidth)
    near = [pair for pair, weight in enumerate(weights) if weight > 0.02]
    assert len(near) > 3
    for pair in (near[0], near[-1]):
        control(host, "pair").press("Home")
        for _ in range(pair):
            control(host, "pair").press("ArrowRight")
        key, value, weight = explorer.key[pair], explorer.value[pair], weights[pair]
        expect(host.locator(".mha-pair")).to_have_text(
            f"pair {pair}: key {key:.2f}, value {value:.2f}, weight {weight:.3f}, "
            f"adds {weight * value:.3f} to the output"
        )
    texts = host.locator(".mha-facts > p strong").all_inner_texts()
    errors = numbers_by_hand(explorer)
    names = ("test_error", "training_error", "leave_one_out_error")
    assert texts == [f"{number:.3f}" for number in (output, *(errors[name] for name in names))]
