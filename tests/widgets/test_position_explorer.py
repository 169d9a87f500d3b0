"""The position explorer: its traits in Python, its numbers and its controls in a browser."""

import math

import pytest
import torch
from playwright.sync_api import expect
from seen import Plane, assert_color_bar, assert_colors, map_pixels, slider
from widget_looks import photograph
from widget_page import assert_shows_numbers, shown

from mha_course.widgets import PositionExplorer
from mha_lib import sinusoidal_encoding


def loops(num_positions, embed_dim, base):
    """The table from its definition, number by number."""
    table = torch.zeros(num_positions, embed_dim, dtype=torch.float64)
    for p in range(num_positions):
        for c in range(embed_dim):
            angle = p / base ** (2 * (c // 2) / embed_dim)
            table[p, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return table


@pytest.mark.parametrize(("num_positions", "embed_dim", "base", "position", "column"), [
    (64, 64, 10_000.0, 63, 63), (48, 32, 10_000.0, 12, 6), (9, 7, 100.0, 4, 6), (5, 1, 10_000.0, 3, 0),
    (2, 2, 1.0, 1, 1), (30, 5, 1_000_000.0, 0, 3),
])  # fmt: skip
def test_numbers_follow_the_definition(num_positions, embed_dim, base, position, column):
    sizes = {"num_positions": num_positions, "embed_dim": embed_dim, "base": base}
    numbers = PositionExplorer(**sizes, position=position, column=column).numbers()
    table = loops(num_positions, embed_dim, base)
    pair = column // 2
    whole = 2 * pair + 1 < embed_dim
    expected = {
        "table": table,
        "frequency": torch.tensor(base ** (-2 * pair / embed_dim)),
        "wavelength": torch.tensor(2 * math.pi * base ** (2 * pair / embed_dim)),
        "encoding": table[position, column],
        "sine": table[:, 2 * pair],
        "cosine": table[:, 2 * pair + 1] if whole else torch.zeros(0),
        "similarity": torch.tensor(
            [sum(float(a) * float(b) for a, b in zip(row, table[position], strict=True)) for row in table]
        ),
    }
    assert numbers.keys() == expected.keys()
    for name, tensor in expected.items():
        assert numbers[name].shape == tensor.shape, name
        torch.testing.assert_close(numbers[name].double(), tensor.double(), atol=1e-6, rtol=1e-6, msg=name)


def test_the_marked_place_stays_in_the_table():
    explorer = PositionExplorer(num_positions=10, embed_dim=7, position=9, column=6)
    explorer.num_positions = 4
    assert (explorer.position, explorer.column) == (3, 6)
    explorer.embed_dim = 1
    assert (explorer.position, explorer.column) == (3, 0)


def test_the_box_marks_a_row_and_a_column(show):
    explorer = PositionExplorer(num_positions=9, embed_dim=7)
    host = show(explorer)
    box = host.locator(".mha-cursor")
    # Home and End move along the axis of the last arrow key.
    slider(host, "column in the table").focus()
    for key, position, column, axis in (
        ("End", 0, 6, "column"),
        ("ArrowUp", 0, 6, "position"),  # the edge
        ("ArrowDown", 1, 6, "position"),
        ("End", 8, 6, "position"),
        ("ArrowRight", 8, 6, "column"),
        ("ArrowLeft", 8, 5, "column"),
        ("Home", 8, 0, "column"),
        ("ArrowRight", 8, 1, "column"),
        ("ArrowUp", 7, 1, "position"),
        ("Home", 0, 1, "position"),
    ):
        host.page.keyboard.press(key)
        explorer.position, explorer.column = position, column
        moved = slider(host, f"{axis} in the table")
        expect(moved).to_be_focused()
        expect(moved).to_have_attribute("aria-valuenow", str(position if axis == "position" else column))
        assert_shows_numbers(host, explorer)
        expect(slider(host, "position")).to_have_value(str(position))
        expect(slider(host, "column")).to_have_value(str(column))
        top, left = box.evaluate("node => [node.style.top, node.style.left].map(parseFloat)")
        assert (top, left) == pytest.approx((position * 100 / 9, column * 100 / 7), abs=1e-3)
    number = float(sinusoidal_encoding(9, 7)[0, 1])
    expect(host.locator(".mha-readout")).to_have_text(f"Position 0, column 1, cosine of pair 0: {number:.4f}")

    # With the pointer: a click, then a drag.
    area = host.locator(".mha-picture").bounding_box()
    place = lambda row, column: (  # noqa: E731
        area["x"] + area["width"] * (column + 0.5) / 7,
        area["y"] + area["height"] * (row + 0.5) / 9,
    )
    mouse = host.page.mouse
    mouse.move(*place(4, 2))
    expect(host.locator(".mha-readout")).to_contain_text("Position 4, column 2")
    assert_shows_numbers(host, explorer)  # hovering marks nothing
    mouse.down()
    explorer.position, explorer.column = 4, 2
    assert_shows_numbers(host, explorer)
    mouse.move(*place(8, 6))
    mouse.up()
    explorer.position, explorer.column = 8, 6
    assert_shows_numbers(host, explorer)
    mouse.move(*place(0, 0))
    assert_shows_numbers(host, explorer)


def test_the_table_opens_with_waves_and_becomes_stripes_with_the_base_of_models(show):
    """Seen in the picture: how far the colours of each column reach."""
    host = show(PositionExplorer())
    greens = """node => {
      const { data } = node.getContext("2d").getImageData(0, 0, node.width, node.height);
      const column = (x) => Array.from({ length: node.height }, (_, y) => data[4 * (y * node.width + x) + 1]);
      return Array.from({ length: node.width }, (_, x) => Math.max(...column(x)) - Math.min(...column(x)));
    }"""
    reach = host.locator("canvas").evaluate(greens)
    assert len(reach) == 32
    assert min(reach) > 150  # the whole range of the colours is 230
    expect(host.locator(".mha-question")).to_contain_text("a base of 10,000")
    base = slider(host, "base")
    for _ in range(30):
        base.press("ArrowRight")
    expect(host.locator(".mha-facts")).to_contain_text("10000^")
    reach = host.locator("canvas").evaluate(greens)
    assert sum(number < 30 for number in reach) >= 12


def test_the_position_is_dragged_on_the_curves(show):
    explorer = PositionExplorer(num_positions=9, embed_dim=8, position=2)
    host = show(explorer)
    handle = slider(host, "position on the curves")
    handle.press("End")
    explorer.position = 8
    assert_shows_numbers(host, explorer)
    handle.press("ArrowLeft")
    explorer.position = 7
    assert_shows_numbers(host, explorer)
    expect(handle).to_have_attribute("aria-valuetext", "7")
    handle.scroll_into_view_if_needed()
    knob = handle.bounding_box()
    area = host.locator(".mha-area").first.bounding_box()
    host.page.mouse.move(knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2)
    host.page.mouse.down()
    host.page.mouse.move(area["x"] + area["width"] * 3 / 8, knob["y"])
    host.page.mouse.up()
    explorer.position = 3
    assert_shows_numbers(host, explorer)
    # For an even width the dot product depends on the offset alone.
    similarity = shown(host, "similarity")
    torch.testing.assert_close(similarity[2], similarity[4])
    expect(host.get_by_role("status")).to_contain_text("Position 3, column 0")

    area = host.locator(".mha-area").nth(1).bounding_box()
    host.page.mouse.move(area["x"] + area["width"] * (8 + 2) / 16, area["y"] + area["height"] / 2)
    told = f"Position 3 · position 5 (offset 2): {float(similarity[5]):.3f}"
    expect(host.locator(".mha-panes")).to_contain_text(told)


def test_the_marked_row_is_seen_on_every_colour(show):
    """Its edge is black beside white, wherever the map is red, blue or white."""
    host = show(PositionExplorer(num_positions=20, embed_dim=16, position=10))
    box = host.locator(".mha-row-mark").bounding_box()
    photo = photograph(host.page)
    top, left, width = round(box["y"]), box["x"], box["width"]
    for column in range(3, 16):
        seen = photo[top - 4 : top + 3, int(left + (column + 0.5) * width / 16)].sum(-1)
        edge = int(seen.argmin())
        assert seen[edge] < 100, "black"
        assert seen[edge + 1 :].max() > 700, "white below it"


def test_the_picture_has_the_colours_of_the_numbers(show):
    explorer = PositionExplorer(num_positions=20, embed_dim=16)
    host = show(explorer)
    pixels = map_pixels(host.locator("canvas"))
    assert pixels.shape == (20, 16, 4)
    assert (pixels[..., 3] == 255).all()
    assert_colors(pixels, explorer.numbers()["table"], 1, is_signed=True)
    # Position 0 is (0, 1, 0, 1, ...): the white middle of the map, then its red end.
    assert pixels[0, :2, :3].tolist() == [[247, 247, 247], [103, 0, 31]]
    assert_color_bar(host.locator(".mha-bar"), 1, is_signed=True)


def test_curves_are_the_sine_the_cosine_and_the_dot_products(show):
    explorer = PositionExplorer(num_positions=11, embed_dim=7, position=5, column=3)
    host = show(explorer)
    waves, alike = (Plane(host.locator(".mha-plane").nth(place)) for place in (0, 1))
    table = loops(11, 7, explorer.base)
    frequency, next_frequency = (explorer.base ** (-2 * pair / 7) for pair in (1, 2))
    places = [number / 4 for number in range(41)]
    for kind, wave in (
        ("mha-sine", lambda x: math.sin(x * frequency)),
        ("mha-cosine", lambda x: math.cos(x * frequency)),
        ("mha-next", lambda x: math.sin(x * next_frequency)),
    ):
        drawn = waves.curve(kind)
        assert [x for x, _ in drawn] == pytest.approx(places, abs=0.06)
        assert [y for _, y in drawn] == pytest.approx([wave(x) for x in places], abs=0.04), kind
    for kind, column in (("mha-sine", 2), ("mha-cosine", 3)):
        dots = waves.curve(f"mha-dotted {kind}")[::2]
        assert [x for x, _ in dots] == pytest.approx(range(11), abs=0.06)
        assert [y for _, y in dots] == pytest.approx(table[:, column].tolist(), abs=0.04)
    products = [float(row @ table[5]) for row in table]
    line = alike.curve("mha-alike")
    assert [x for x, _ in line] == pytest.approx(range(-5, 6), abs=0.12)
    assert [y for _, y in line] == pytest.approx(products, abs=0.1)
    mirrored = [float(table[0] @ table[abs(offset)]) for offset in range(-10, 11)]
    assert [y for _, y in alike.curve("mha-faint")] == pytest.approx(mirrored, abs=0.1)


def test_texts_and_marks_are_those_of_the_marked_place(show):
    explorer = PositionExplorer(num_positions=11, embed_dim=7, position=5, column=3)
    host = show(explorer)
    table, frequency = loops(11, 7, explorer.base), explorer.base ** (-2 / 7)
    wavelength, rate, entry = host.locator(".mha-facts > p").all_inner_texts()
    assert f"{2 * math.pi / frequency:.1f} positions" in wavelength
    assert "2π / frequency, pair i = 1" in wavelength  # of columns 2 and 3
    assert f"{frequency:.4f} rad" in rate and f"{explorer.base:g}^(−2 · 1 / 7)" in rate
    assert f"{table[5, 3]:.4f}".replace("-", "−") in entry
    assert f"cos(5 · {frequency:.4f})" in entry
    told = f"Pair 1, position 5: ({table[5, 2]:.3f}, {table[5, 3]:.3f})".replace("-", "−")
    expect(host.locator(".mha-pair")).to_have_text(told)
    legends = host.locator(".mha-legend:visible").all_inner_texts()
    assert legends[:3] == ["column 2, sin", "3, cos", "4, sin of pair 2"]
    # The similarity at an offset; with an odd width, it differs at the opposite offset.
    area, readout = host.locator(".mha-area").nth(1), host.locator(".mha-panes .mha-hint").last
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    for offset in (0, 2, -3):
        host.page.mouse.move(box["x"] + box["width"] * (10 + offset) / 20, box["y"] + box["height"] / 2)
        said = f"{offset}".replace("-", "−")
        product = f"{table[5] @ table[5 + offset]:.3f}".replace("-", "−")
        expect(readout).to_contain_text(f"Position 5 · position {5 + offset} (offset {said}): {product}.")
    # The marks lie on the row, and on both columns of the pair.
    picture = host.locator("canvas").bounding_box()
    row, pair = (host.locator(f".mha-{name}-mark").bounding_box() for name in ("row", "pair"))
    assert (row["y"] - picture["y"]) / picture["height"] == pytest.approx(5 / 11, abs=0.01)
    assert row["height"] / picture["height"] == pytest.approx(1 / 11, abs=0.01)
    assert (pair["x"] - picture["x"]) / picture["width"] == pytest.approx(2 / 7, abs=0.01)
    assert pair["width"] / picture["width"] == pytest.approx(2 / 7, abs=0.01)
