"""The mask painter: its numbers against slow loops in Python, and against torch in a browser."""

import itertools
import math
import random
import re

import pytest
import torch
from matplotlib import colormaps
from playwright.sync_api import expect
from seen import CELLS, assert_colors
from widget_looks import contrast
from widget_page import assert_copied_code_gives, assert_shows_numbers, finger

from mha_course.widgets import MaskPainter

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
    """All numbers of the page under the chosen policy, one by one."""
    mask = slow_mask(painter)
    scores, value = painter.scores, painter.value
    weights = [slow_weights(s, visible, painter.policy) for s, visible in zip(scores, mask, strict=True)]
    dims = range(len(value[0]))
    outputs = [[sum(w * row[i] for w, row in zip(ws, value, strict=True)) for i in dims] for ws in weights]
    projection = [[float(i == j) for j in dims] for i in dims]
    numbers = {
        "scores": [
            [s if sees else -math.inf for s, sees in zip(row, visible, strict=True)]
            for row, visible in zip(scores, mask, strict=True)
        ],
        "weights": weights,
    }
    if painter.is_trained:
        # With W as the identity, the gradient of the sum of (b W)_i ** 2 is 2 b_i b_j.
        none = lambda visible: not any(visible)  # noqa: E731
        for name, takes_part in (("step_of_seeing", any), ("step_of_empty", none)):
            rows = [b for b, visible in zip(outputs, mask, strict=True) if takes_part(visible)]
            numbers[name] = [[-0.1 * 2 * sum(b[i] * b[j] for b in rows) for j in dims] for i in dims]
        for i, j in itertools.product(dims, dims):
            projection[i][j] += numbers["step_of_seeing"][i][j] + numbers["step_of_empty"][i][j]
    numbers["projection"] = projection
    numbers["output"] = [[sum(b[i] * projection[i][j] for i in dims) for j in dims] for b in outputs]
    return {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}


def assert_right(numbers, painter):
    expected = slow_numbers(painter)
    assert set(numbers) == set(expected)
    for name, tensor in numbers.items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(tensor, expected[name], atol=1e-12, rtol=1e-12, equal_nan=True)


def trained_by_torch(painter):
    """W after one step of torch's optimiser on a layer of torch, and the outputs before and after it.

    Nothing here is of the library: the mask is `slow_mask`, the policies are written out.
    """
    scores = torch.tensor(painter.scores, dtype=torch.float64)
    value = torch.tensor(painter.value, dtype=torch.float64)
    mask = torch.tensor(slow_mask(painter))
    filled = scores.masked_fill(~mask, -math.inf if painter.policy == "nan" else -1e300)
    weights = torch.nn.functional.softmax(filled, dim=-1)
    if painter.policy == "zeros":
        weights = weights * mask
    layer = torch.nn.Linear(value.shape[1], value.shape[1], bias=False, dtype=torch.float64)
    torch.nn.init.eye_(layer.weight)
    before = (weights @ layer(value)).detach()
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    (weights @ layer(value)).square().sum().backward()
    optimiser.step()
    # torch's layer multiplies by the transpose of its weight.
    return layer.weight.detach().T, before, (weights @ layer(value)).detach()


def test_numbers_are_those_of_the_definitions():
    draw = random.Random(0)
    for q_len, k_len, value_dim in ((1, 4, 1), (3, 4, 2), (4, 3, 3), (5, 5, 2), (6, 6, 3)):
        for is_causal, policy in itertools.product((False, True), ("zeros", "nan", "uniform")):
            scores, value = torch.randn(q_len, k_len), torch.randn(k_len, value_dim)
            painter = MaskPainter(scores, value, is_causal=is_causal, policy=policy)
            for valid_len in range(k_len + 1):
                painter.valid_len, painter.is_trained = valid_len, bool(valid_len % 2)
                rows = (draw.choices("01", k=k_len) for _ in range(q_len))
                painter.painted = " ".join(map("".join, rows))
                assert_right(painter.numbers(), painter)


@pytest.mark.parametrize("policy", ["zeros", "nan", "uniform"])
@pytest.mark.parametrize("painted", ["1101 0000 1011", "1111 1111 1111", "0000 0000 0000", "0000 1110 0000"])
def test_the_training_step_is_that_of_torchs_layer_and_optimiser(policy, painted):
    painter = MaskPainter(SCORES, VALUE, painted=painted, policy=policy, is_trained=True)
    projection, before, after = trained_by_torch(painter)
    with torch.no_grad():  # the step has its own gradient
        numbers = painter.numbers()
    torch.testing.assert_close(numbers["projection"], projection, equal_nan=True)
    torch.testing.assert_close(numbers["output"], after, equal_nan=True)
    painter.is_trained = False
    numbers = painter.numbers()
    torch.testing.assert_close(numbers["projection"], torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(numbers["output"], before, equal_nan=True)
    assert "step_of_empty" not in numbers


def test_values_are_found_where_none_are_given():
    painter = MaskPainter(torch.zeros(2, 6))
    assert len(painter.value) == 6
    assert painter.valid_len == 6
    assert painter.painted == "111111 000000"


@pytest.mark.parametrize(("scores", "value", "error", "message"), [
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
])  # fmt: skip
def test_wrong_tensors_are_refused(scores, value, error, message):
    with pytest.raises(error, match=message):
        MaskPainter(scores, value)


READ = """root => {
  const all = (node, names) => [...node.querySelectorAll(names)];
  const texts = (nodes) => nodes.map((node) => node.textContent);
  const isFramed = (node) => getComputedStyle(node).outlineStyle === "solid";
  const seen = (names) => all(root, names).filter((node) => node.checkVisibility());
  const rows = seen("tbody tr");
  return {
    paper: all(root, "[role=row]").slice(1).map((row) => texts(all(row, "[role=gridcell]"))),
    weights: rows.map((row) => texts(all(row, ".mha-weight"))),
    colors: rows.map((row) => all(row, ".mha-weight").map((cell) => getComputedStyle(cell).backgroundColor)),
    output: rows.map((row) => texts(all(row, ".mha-output"))),
    value: seen("tfoot tr").map((row) => texts(all(row, "td"))),
    framed: rows.map(isFramed),
    outputsFramed: rows.map((row) => all(row, ".mha-output").every(isFramed)),
    matrices: seen("figure").map((figure) => [
      figure.querySelector(".mha-hint").textContent, texts(all(figure, ".mha-matrix > span"))]),
    signs: texts(seen(".mha-sign")),
  };
}"""


def flat(rows):
    """One list of the entries of all rows."""
    return [entry for row in rows for entry in row]


def assert_written(texts, numbers, digits=2):
    """Texts of the page, row by row, are these numbers, rounded; a number that is not finite is a word."""
    assert [len(row) for row in texts] == [len(row) for row in numbers.tolist()]
    for text, number in zip(flat(texts), flat(numbers.tolist()), strict=True):
        if math.isfinite(number):
            assert re.fullmatch(rf"−?\d+\.\d{{{digits}}}", text)
            assert abs(float(text.replace("−", "-")) - number) <= 0.5 / 10**digits + 1e-9
        else:
            assert text == ("NaN" if math.isnan(number) else "−∞")


def assert_painted(host, painter, scores):
    """The scale of the scores covers those that are hidden too, and goes as far below 0 as above."""
    grounds = [ground for ground, _ in paper(host).get_by_role("gridcell").evaluate_all(CELLS)]
    most = torch.tensor(painter.scores).abs().max().item() or 1
    assert len(grounds) == scores.numel()
    for ground, score in zip(grounds, scores.flatten().tolist(), strict=True):
        if math.isinf(score):
            assert ground == [0, 0, 0, 0], "minus infinity has no colour"
        else:
            assert_colors(ground, score, most, is_signed=True)


def assert_shows(host, painter):
    """Everything that a reader sees is what the slow loops give: texts, colours, frames and matrices."""
    assert_shows_numbers(host, painter)
    expected = slow_numbers(painter)
    empty = [not any(visible) for visible in slow_mask(painter)]
    seen = host.evaluate(READ)
    digits = 1 if len(painter.scores[0]) + len(painter.value[0]) > 7 else 2
    assert_written(seen["paper"], expected["scores"], 1)
    assert_written(seen["weights"], expected["weights"])
    assert_written(seen["output"], expected["output"], digits)
    assert_written(seen["value"], torch.tensor(painter.value, dtype=torch.float64).T, digits)
    assert_painted(host, painter, expected["scores"])
    for colors, weights in zip(seen["colors"], expected["weights"], strict=True):
        for color, weight in zip(colors, weights.tolist(), strict=True):
            if math.isnan(weight):
                assert color == "rgba(0, 0, 0, 0)"
            else:
                drawn = torch.tensor([int(number) for number in re.findall(r"\d+", color)]) / 255
                expected_color = torch.tensor(colormaps["viridis"](weight)[:3])
                assert (drawn - expected_color).abs().max() < 0.03
    # Frames mark what depends on the policy: rows without a key, and after the step all other outputs.
    assert seen["framed"] == empty
    others = painter.is_trained and any(empty)
    assert seen["outputsFramed"] == [others and not row for row in empty]
    names = [name for name, _ in seen["matrices"]]
    if painter.is_trained:
        assert (names[0], names[3]) == ("W before", "W after")
        assert names[1].startswith("from no query" if all(empty) else "from quer")
        assert names[2].startswith("from quer" if any(empty) else "from no query")
        assert seen["signs"] == ["+", "+", "="]
        parts = [torch.eye(len(painter.value[0])), expected["step_of_seeing"], expected["step_of_empty"]]
    else:
        assert names == ["W before the step"]
        assert seen["signs"] == []
        parts = []
    for (_, entries), matrix in zip(seen["matrices"], [*parts, expected["projection"]], strict=True):
        assert_written([entries], matrix.flatten()[None])


def paper(host):
    return host.get_by_role("grid", name="Scores: queries")


def cell(host, query, key):
    return paper(host).locator(f"[data-row='{query}'][data-column='{key}']")


def turned(painted, *cells):
    rows = [list(row) for row in painted.split()]
    for query, key in cells:
        rows[query][key] = "10"[int(rows[query][key])]
    return " ".join("".join(row) for row in rows)


def test_by_keyboard(show):
    painter = MaskPainter(SCORES, VALUE)
    host = show(painter)
    assert_shows(host, painter)
    told = "Query 1 sees no key: only there do the weights depend on the policy."
    expect(host.locator(".mha-mask-summary")).to_have_text(told)
    # Visit all cells, toggling every second one, with Space and Enter.
    cell(host, 0, 0).focus()
    for query in range(3):
        for key in range(4):
            expect(cell(host, query, key)).to_be_focused()
            if (query + key) % 2 == 0:
                host.page.keyboard.press("Space" if query % 2 else "Enter")
                painter.painted = turned(painter.painted, (query, key))
                assert_shows(host, painter)
            if key < 3:
                host.page.keyboard.press("ArrowRight")
        host.page.keyboard.press("Home")
        host.page.keyboard.press("ArrowDown")
    host.get_by_role("checkbox").press("Space")
    host.get_by_role("slider").press("Home")
    painter.is_causal, painter.valid_len = True, 0
    assert_shows(host, painter)
    expect(host.get_by_role("status")).to_have_text(
        "0 of 12 cells may attend. Queries 0–2 see no key: only there do the weights depend on the policy."
    )


def test_a_cell_says_what_hides_it(show):
    painter = MaskPainter(SCORES, VALUE, valid_len=3, is_causal=True)
    host = show(painter)
    for query, key, words in (
        (2, 0, "score 1.00"), (1, 0, "hidden by the painted mask"), (0, 2, "hidden by is_causal"),
        (2, 3, "hidden by valid_len"), (1, 3, "hidden by the painted mask and valid_len and is_causal"),
    ):  # fmt: skip
        expect(cell(host, query, key)).to_have_accessible_name(f"query {query} → key {key}: {words}")
    # Hatched cells are those that a colour cannot represent.
    hatched = paper(host).locator(".mha-hidden")
    expect(hatched).to_have_count(4)
    cell(host, 2, 3).click()
    cell(host, 2, 3).click()
    assert_shows(host, painter)
    expect(hatched).to_have_count(4)


def test_a_stroke_paints_what_its_first_cell_became(show):
    painter = MaskPainter()
    host = show(painter)
    mouse = host.page.mouse

    def move(query, key):
        box = cell(host, query, key).bounding_box()
        mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=2)

    move(0, 1)
    mouse.down()
    for place in ((0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (3, 2), (3, 3)):
        move(*place)
    mouse.up()
    move(4, 4)
    # Row 2 was hidden before, and stays hidden.
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
    told = "Every query sees a key, so the three policies agree."
    expect(host.locator(".mha-mask-summary")).to_have_text(told)
    assert_copied_code_gives(host, painter)

    host.get_by_role("button", name="Invert").click()
    painter.painted = painter.painted.translate({48: "1", 49: "0"})
    assert_shows(host, painter)
    host.get_by_role("button", name="Show all").click()
    painter.painted = " ".join(["11111"] * 5)
    assert_shows(host, painter)


def test_a_finger_paints(show):
    painter = MaskPainter()
    host = show(painter, width=360)
    cell(host, 0, 0).scroll_into_view_if_needed()
    touch = finger(host.page)
    for kind, place in (("touchStart", (0, 0)), ("touchMove", (0, 1)), ("touchMove", (1, 1))):
        box = cell(host, *place).bounding_box()
        touch(kind, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    touch("touchEnd")
    painter.painted = turned(painter.painted, (0, 0), (0, 1), (1, 1))
    expect(cell(host, 1, 1)).to_have_text("−∞")
    assert_shows(host, painter)


VERDICTS = {
    "zeros": "Query 1 sees no key and did not change W: W is what the other queries made of it.",
    "nan": "NaN spreads through the layer: 9 of the 9 numbers of W are lost, "
    "and with them the output of every query.",
    "uniform": "A leak: query 1 sees no key, yet hidden values changed W. Nothing raises an error.",
}


def test_one_training_step_under_each_policy(show):
    painter = MaskPainter(SCORES / 3, VALUE, painted="1110 0000 1111")
    host = show(painter)
    step = host.get_by_role("button", name="One training step")
    result = host.locator(".mha-training .mha-title")
    expect(result).to_have_text("Predict: which numbers of W will change, and which will be lost?")
    expect(step).to_have_attribute("aria-pressed", "false")
    for is_trained in (False, True):
        if is_trained:
            step.click()
            painter.is_trained = True
            expect(step).to_have_attribute("aria-pressed", "true")
        for policy, title in (("zeros", "Zeros"), ("nan", "NaN"), ("uniform", "Uniform")):
            host.get_by_role("radio", name=title).check(force=True)
            painter.policy = policy
            assert_shows(host, painter)
            assert_copied_code_gives(host, painter)
            if is_trained:
                expect(result).to_have_text(VERDICTS[policy])
                expect(host.get_by_role("status")).to_contain_text(VERDICTS[policy])
                # The oracle, which uses neither the library nor the module.
                projection, _, after = trained_by_torch(painter)
                seen = host.evaluate(READ)
                assert_written([seen["matrices"][3][1]], projection.flatten()[None])
                assert_written(seen["output"], after)
    # Once each query sees a key, the step is the same whatever the policy.
    host.get_by_role("button", name="Show all").click()
    painter.painted = "1111 1111 1111"
    assert_shows(host, painter)
    expect(result).to_have_text("Every query sees a key: this step is the same under all three policies.")
    same = host.evaluate(READ)["matrices"]
    host.get_by_role("radio", name="Zeros").check(force=True)
    assert host.evaluate(READ)["matrices"] == same
    host.get_by_role("button", name="Invert").click()
    expect(result).to_have_text("Queries 0–2 see no key and did not change W: W stays as it was.")
    step.press("Space")
    expect(step).to_have_attribute("aria-pressed", "false")
    expect(result).to_contain_text("Predict")


def test_the_three_way_switch_by_keyboard(show):
    host = show(MaskPainter())
    expect(host.locator(".mha-body > :first-child")).to_have_text(
        "Suppose a query sees no key. Under which policy does one training step destroy the layer, "
        "and under which does the layer learn from hidden values?"
    )
    about = host.locator(".mha-policy > p")
    expect(about).to_have_text("masked_softmax: a query without a key gives no weight to any value.")
    host.get_by_role("radio", name="Zeros").press("ArrowRight")
    told = "Hidden scores are filled with −∞, so the softmax of a query without a key is 0 / 0."
    expect(about).to_have_text(told)
    expect(host.get_by_role("radio", name="NaN")).to_be_checked()
    host.get_by_role("radio", name="NaN").press("ArrowRight")
    expect(about).to_have_text(
        "What shows as −∞ is the lowest finite number here, "
        "so the scores of a query without a key are all equal."
    )
    assert host.evaluate(READ)["weights"][2] == ["0.20"] * 5


def test_paper_and_results_are_on_one_screen_of_a_phone(show):
    host = show(MaskPainter(), width=360)
    page = host.page
    page.set_viewport_size({"width": 360, "height": 640})
    paper(host).evaluate("node => node.scrollIntoView({ block: 'start' })")
    cell(host, 0, 0).click()
    parts = host.locator("tbody tr").last, host.locator(".mha-mask-summary")
    for seen in (cell(host, 0, 0), cell(host, 4, 4), *parts):
        box = seen.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 640
    # Five flat rows leave room for the rest.
    rows = [cell(host, row, 0).bounding_box()["y"] for row in range(5)]
    assert max(b - a for a, b in itertools.pairwise(rows)) < 32
    assert host.bounding_box()["height"] < 1250
    host.get_by_role("button", name="One training step").click()
    button, after = (
        host.get_by_role("button", name="One training step").bounding_box(),
        host.locator(".mha-training .mha-title").bounding_box(),
    )
    assert after["y"] + after["height"] - button["y"] < 400
    page.set_viewport_size({"width": 800, "height": 900})
    assert host.bounding_box()["height"] < 800


def test_its_largest_tables_fit_a_phone(show):
    painter = MaskPainter(torch.randn(6, 6), torch.randn(6, 3), policy="uniform", is_trained=True)
    host = show(painter, width=360)
    assert_shows(host, painter)
    assert host.page.evaluate("document.documentElement.scrollWidth") <= 360
    # No number is wider than its cell, where it would run into the next one.
    too_wide = host.locator("td:visible, [role=gridcell]:visible").evaluate_all(
        """cells => cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1)
          .map((cell) => cell.outerHTML)"""
    )
    assert too_wide == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_of_the_scores_stay_when_keys_are_hidden(show, theme):
    """The largest scores are hidden, one of each sign, and the others keep their colours and their ink."""
    scores = torch.tensor([[2.0, -1.0, 0.5], [-3.5, 4.0, -0.25], [1.0, 0.0, 3.0]])
    painter = MaskPainter(scores, VALUE[:3], painted="111 001 111")
    host = show(painter, theme=theme)
    assert_shows(host, painter)
    for ground, ink in paper(host).get_by_role("gridcell").evaluate_all(CELLS):
        assert ground[3:] == [0] or contrast(ground, ink) >= 4.5
