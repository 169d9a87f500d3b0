"""The score explorer: its numbers against slow loops in Python, and against torch in a browser."""

import base64
import math
import struct

import pytest
import torch
from playwright.sync_api import expect
from seen import Plane, assert_color_bar, assert_colors, map_pixels, shares_of_bars
from widget_looks import photograph
from widget_page import assert_copied_code_gives, assert_shows_numbers

from mha_course.widgets import ScoreExplorer
from mha_course.widgets.score_explorer import ADDITIVE_KEY, ADDITIVE_QUERY, ADDITIVE_SCORE, BILINEAR

SCORES = ("dot", "cosine", "gaussian", "bilinear", "additive")


def drawn_coordinates(explorer):
    """What the browser is sent: 126 coordinates beyond the plane for the query and up to six keys."""
    numbers = struct.unpack(f"<{7 * 126}f", base64.b64decode(explorer.extra))
    return [list(numbers[126 * i : 126 * (i + 1)]) for i in range(7)]


def slow_score(name, q, k, d, is_scaled):
    dot = sum(a * b for a, b in zip(q, k, strict=True))
    root = math.sqrt(d) if is_scaled else 1
    if name == "dot":
        return dot / root
    if name == "cosine":
        return dot / math.dist(q, [0] * d) / math.dist(k, [0] * d)
    if name == "gaussian":
        return -(math.dist(q, k) ** 2) / (2 * root)
    if name == "bilinear":
        total = sum(a * b for a, b in zip(q[2:], k[2:], strict=True))
        for i in range(2):
            for j in range(2):
                total += q[i] * BILINEAR[i][j] * k[j]
        return total / root
    total = 0
    for unit, weight in enumerate(ADDITIVE_SCORE):
        hidden = sum(ADDITIVE_QUERY[unit][i] * q[i] for i in range(2))
        hidden += sum(ADDITIVE_KEY[unit][i] * k[i] for i in range(2))
        for i in range(2, d):
            if (i - 2) % len(ADDITIVE_SCORE) == unit:
                hidden += (q[i] + k[i]) / math.sqrt(d)
        total += weight * math.tanh(hidden)
    return total


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("d", [2, 4, 128])
@pytest.mark.parametrize("score", SCORES)
def test_numbers_are_those_of_the_formulas(score, d, is_scaled):
    explorer = ScoreExplorer(score=score, d=d, is_scaled=is_scaled)
    extra = drawn_coordinates(explorer)
    query = explorer.query + extra[0][: d - 2]
    keys = [explorer.key[2 * i : 2 * i + 2] + extra[i + 1][: d - 2] for i in range(len(explorer.key) // 2)]
    scores = [slow_score(score, query, key, d, is_scaled) for key in keys]
    exponentials = [math.exp(score) for score in scores]
    weights = [number / sum(exponentials) for number in exponentials]
    entropy = -sum(p * math.log(p) for p in weights if p > 0)
    mean = sum(scores) / len(scores)
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores) / len(scores))

    numbers = explorer.numbers()
    assert all(tensor.dtype == torch.float64 and tensor.isfinite().all() for tensor in numbers.values())
    assert numbers["scores"].tolist() == [pytest.approx(scores, abs=1e-6)]
    assert numbers["weights"].tolist() == [pytest.approx(weights, abs=1e-6)]
    assert numbers["entropy"].item() == pytest.approx(entropy, abs=1e-6)
    assert numbers["effective_keys"].item() == pytest.approx(math.exp(entropy))
    assert numbers["spread"].item() == pytest.approx(spread, abs=1e-6)
    # Rows of the map go up, columns to the right, a quarter per step.
    for row, column in ((0, 0), (0, 32), (5, 20), (31, 7)):
        if score == "cosine" and row == column == 16:
            continue
        place = [-4 + column / 4, -4 + row / 4] + [0.0] * (d - 2)
        expected = slow_score(score, query, place, d, is_scaled)
        assert numbers["landscape"][row, column].item() == pytest.approx(expected, abs=1e-6)


def test_the_width_makes_scores_spread_unless_they_are_scaled():
    """What the widget is there to show must hold for the coordinates that it draws."""
    spreads = {
        is_scaled: [ScoreExplorer(d=d, is_scaled=is_scaled).numbers()["spread"].item() for d in (32, 64, 128)]
        for is_scaled in (True, False)
    }
    assert all(1 <= spread <= 1.4 for spread in spreads[True])
    for d, spread in zip((32, 64, 128), spreads[False], strict=True):
        assert 1 <= spread / math.sqrt(d) <= 1.4
    unscaled = ScoreExplorer(d=128, is_scaled=False).numbers()
    scaled = ScoreExplorer(d=128).numbers()
    assert unscaled["effective_keys"] < 1.01
    assert scaled["effective_keys"] > 3


def test_the_width_of_a_gaussian_follows_the_division(show):
    hosts = show(*[ScoreExplorer(score="gaussian", d=8, is_scaled=is_scaled) for is_scaled in (True, False)])
    for host, variance in zip(hosts, ("√8", "1"), strict=True):
        said = f"−|q − k|² / 2σ²σ² = {variance}. The best key equals the query."
        expect(host.locator(".mha-score-rule")).to_have_text(said)


def test_points_move_by_keyboard_and_stop_at_the_edge(show):
    explorer = ScoreExplorer(score="gaussian", d=8)
    host = show(explorer)
    status = host.get_by_role("status")
    across = host.get_by_role("slider", name="Query, first coordinate")
    up = host.get_by_role("slider", name="Query, second coordinate")
    expect(across).to_have_attribute("aria-valuetext", "1.50")
    expect(up).to_have_attribute("aria-valuetext", "1.00")
    across.focus()
    for key, place in (
        ("ArrowLeft", [1.4, 1.0]), ("ArrowDown", [1.4, 0.9]), ("Shift+ArrowUp", [1.4, 1.9]),
        ("Shift+ArrowRight", [2.4, 1.9]), ("Shift+ArrowRight", [3.4, 1.9]),
        ("Shift+ArrowRight", [4.0, 1.9]), ("ArrowRight", [4.0, 1.9]),
    ):  # fmt: skip
        host.page.keyboard.press(key)
        explorer.query = place
        assert_shows_numbers(host, explorer)
        # The focus is on the slider that the key moved, so that a screen reader reads out the new number.
        expect(across if key.endswith(("Left", "Right")) else up).to_be_focused()
        for slider, number in zip((across, up), place, strict=True):
            expect(slider).to_have_attribute("aria-valuenow", f"{number:g}")
    expect(status).to_have_text(
        "Key 1 has the largest weight, "
        f"{explorer.numbers()['weights'].max().item():.2f}. "
        f"Effective number of keys: {explorer.numbers()['effective_keys'].item():.2f}."
    )
    for index in range(5):
        host.get_by_role("slider", name=f"Key {index}, first").press("Shift+ArrowDown")
        moved = list(explorer.key)
        moved[2 * index + 1] = round(moved[2 * index + 1] - 1, 10)
        explorer.key = moved
        assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)


def test_a_point_is_dragged_by_the_pointer(show):
    explorer = ScoreExplorer()
    host = show(explorer)
    area = host.locator(".mha-area").bounding_box()

    def place(x, y):
        across, up = (x + 4) / 8, (y + 4) / 8
        return area["x"] + across * area["width"], area["y"] + (1 - up) * area["height"]

    mouse = host.page.mouse
    mouse.move(*place(-2, -1))  # key 2
    mouse.down()
    mouse.move(*place(0, 0), steps=3)
    mouse.move(*place(1, -3), steps=3)
    expect(host.get_by_role("slider", name="Key 2, first coordinate")).to_be_focused()
    # The border of the area is one pixel wide, less than half a step.
    explorer.key = [*explorer.key[:4], 1.0, -3.0, *explorer.key[6:]]
    assert_shows_numbers(host, explorer)
    mouse.move(*place(9, 9))
    mouse.up()
    mouse.move(*place(0, 0))
    explorer.key = [*explorer.key[:4], 4.0, 4.0, *explorer.key[6:]]
    assert_shows_numbers(host, explorer)


@pytest.mark.parametrize("score", SCORES)
def test_the_picture_is_the_map(show, score):
    """Each place of the plane has the colour of the score of a key there: red above 0, blue below."""
    explorer = ScoreExplorer(score=score, query=[-2.0, 3.0])
    host = show(explorer)
    numbers = explorer.numbers()
    most = max(numbers[name].abs().max().item() for name in ("landscape", "scores"))
    pixels = map_pixels(host.locator("canvas")).flip(0)
    assert pixels.shape == (33, 33, 4)
    assert_colors(pixels, numbers["landscape"], most, is_signed=True)
    assert_color_bar(host.locator(".mha-bar"), most, is_signed=True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_points_and_discs_are_seen_where_the_map_is_white(show, theme):
    """Around the query of a Gaussian score the map is nearly white: every part has a dark edge."""
    near = [0.9, 1.0, *ScoreExplorer().key[2:]]
    host = show(ScoreExplorer(score="gaussian", query=[0.0, 0.0], key=near), theme=theme)
    # The visible part of a handle begins 5 pixels inside the part that can be touched.
    parts = [(host.get_by_role("slider", name=name).first, 5) for name in ("Query", "Key 0")]
    parts.append((host.locator(".mha-weight span").first, 0))
    for part, inset in parts:
        box = part.bounding_box()
        photo = photograph(host.page)[round(box["y"] + box["height"] / 2)].sum(-1)
        left, right = round(box["x"]), round(box["x"] + box["width"])
        for seen in (photo[left - 4 : left + 16], photo[right - 16 : right + 4][::-1]):
            assert seen[0] > 600, "the map is nearly white"
            edge = int((seen < 450).nonzero()[0][0])
            assert edge <= 4 + inset, "a dark edge"
            assert max(seen[edge + 1 : edge + 4]) > 600, "white inside it"


def test_the_handle_of_the_query_lies_on_its_place_in_the_picture(show):
    explorer = ScoreExplorer(score="gaussian", query=[-2.0, 3.0])
    host = show(explorer)
    assert divmod(int(explorer.numbers()["landscape"].argmax()), 33) == (28, 8)
    white = map_pixels(host.locator("canvas")).flip(0)[..., :3].sum(-1)
    assert white[28, 8] == white.max() == 3 * 247, "the score of the best key is 0"
    # The query's handle lies at the highest point.
    box = host.get_by_role("slider", name="Query, first").bounding_box()
    canvas = host.locator("canvas").bounding_box()
    pixel = canvas["width"] / 33
    x = (box["x"] + box["width"] / 2 - canvas["x"]) / pixel
    y = (box["y"] + box["height"] / 2 - canvas["y"]) / pixel
    assert x == pytest.approx(8.5, abs=0.2)
    assert 33 - y == pytest.approx(28.5, abs=0.2)


@pytest.mark.parametrize("d", [2, 128])
@pytest.mark.parametrize("score", SCORES)
def test_the_legend_covers_the_scores_of_all_keys(show, score, d):
    """At d = 128 keys have scores that no place of the map has; a line in the legend shows each."""
    explorer = ScoreExplorer(score=score, d=d, is_scaled=False)
    host = show(explorer)
    extra = drawn_coordinates(explorer)
    query = explorer.query + extra[0][: d - 2]
    keys = [explorer.key[2 * i : 2 * i + 2] + extra[1 + i][: d - 2] for i in range(5)]
    expected = [slow_score(score, query, key, d, False) for key in keys]
    ends = host.locator(".mha-bar-ends span").all_inner_texts()
    low, high = (float(ends[i].replace("−", "-")) for i in (0, 2))
    assert low <= min(expected) + 0.005
    assert high >= max(expected) - 0.005
    scale = host.locator(".mha-scale").bounding_box()
    lines = host.locator(".mha-key-score:visible")
    found = []
    for line in lines.all():
        box = line.bounding_box()
        place = (box["x"] + box["width"] / 2 - scale["x"]) / scale["width"]
        found.append(low + place * (high - low))
    assert found == pytest.approx(expected, abs=(high - low) / scale["width"] + 0.006)
    if d == 128 and score == "dot":
        assert max(map(abs, expected)) > explorer.numbers()["landscape"].abs().max()


@pytest.mark.parametrize("count", [2, 6])
def test_as_many_keys_as_there_are(show, count):
    explorer = ScoreExplorer(key=[number / 2 for number in range(-3, 2 * count - 3)])
    host = show(explorer)
    assert_shows_numbers(host, explorer)
    expect(host.locator(".mha-handle.mha-key:visible")).to_have_count(count)
    assert_copied_code_gives(host, explorer)


def test_rows_bars_and_discs_show_the_scores_and_weights(show):
    explorer = ScoreExplorer(d=8)
    host = show(explorer)
    extra = drawn_coordinates(explorer)
    query = explorer.query + extra[0][:6]
    keys = [explorer.key[2 * i : 2 * i + 2] + extra[1 + i][:6] for i in range(5)]
    scores = torch.tensor([slow_score("dot", query, key, 8, True) for key in keys], dtype=torch.float64)
    weights = scores.softmax(0)
    rows = host.locator("tbody tr")
    for index, row in enumerate(rows.all()):
        name, score, weight = (text for text in row.locator("th, td").all_inner_texts() if text.strip())
        assert name == f"key {index}"
        assert score == f"{scores[index]:.2f}".replace("-", "−")
        assert weight == f"{weights[index]:.3f}"
    assert shares_of_bars(rows) == pytest.approx(weights.tolist(), abs=0.01)
    entropy = torch.special.entr(weights).sum()
    facts = host.locator(".mha-facts > p").all_inner_texts()
    assert f"{entropy:.3f} nats" in facts[0] and f"ln 5 = {math.log(5):.3f}" in facts[0]
    assert f"{entropy.exp():.2f}" in facts[1]
    assert f"{scores.std(correction=0):.2f}" in facts[2]
    expect(host.locator(".mha-score-rule code")).to_have_text("q · k / √8")
    # Under each key lies a disc whose area is its weight.
    discs = Plane(host.locator(".mha-plane")).dots("mha-weight")
    places = [number for x, y, _ in discs for number in (x, y)]
    assert places == pytest.approx(explorer.key, abs=0.1)
    widths = [width for *_, width in discs]
    area = [(width / max(widths)) ** 2 for width in widths]
    assert area == pytest.approx((weights / weights.max()).tolist(), abs=0.01)
