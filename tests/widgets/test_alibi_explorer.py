"""The ALiBi explorer: its traits in Python, its numbers and its controls in a browser."""

import math

import pytest
import torch
from matplotlib.figure import Figure
from playwright.sync_api import expect
from widget_page import assert_copied_code_gives, assert_shows_numbers, shown, write_page

from mha_lib.widgets import AlibiExplorer

SLOPES = {
    1: [1 / 256],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    # Those of 4 heads, then every other one of 8.
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: [1 / 2**head for head in range(1, 9)],
}


def loops(slope, length, is_causal, shown_table):
    """The bias of one head, or the weights that it gives to equal scores, number by number."""
    table = torch.zeros(length, length, dtype=torch.float64)
    for q in range(length):
        for k in range(length):
            table[q, k] = -slope * abs(q - k)
    if shown_table == "bias":
        return table
    for q in range(length):
        keys = [k for k in range(length) if k <= q or not is_causal]
        total = sum(math.exp(table[q, k]) for k in keys)
        for k in range(length):
            table[q, k] = math.exp(table[q, k]) / total if k in keys else 0.0
    return table


# In Python


@pytest.mark.parametrize("shown_table", ["bias", "weights"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("num_heads", SLOPES)
def test_numbers_follow_the_definition(num_heads, is_causal, shown_table):
    head = num_heads - 1
    explorer = AlibiExplorer(num_heads=num_heads, length=5, head=head, is_causal=is_causal, shown=shown_table)
    slopes = SLOPES[num_heads]
    tables = [loops(slope, 5, is_causal, shown_table) for slope in slopes]
    expected = {
        "slopes": torch.tensor(slopes),
        "half_distances": torch.tensor([math.log(2) / slope for slope in slopes]),
        "table": tables[head],
        "by_distance": torch.stack([table[4].flip(0) for table in tables]),
    }
    numbers = explorer.numbers()
    assert numbers.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(numbers[name].double(), tensor.double(), atol=1e-6, rtol=1e-6)


def test_half_distance_is_where_the_weight_has_halved():
    numbers = AlibiExplorer(num_heads=8, length=16, head=0).numbers()
    slope, half = numbers["slopes"][0], numbers["half_distances"][0]
    assert float((-slope * half).exp()) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "value", "error", "rule"), [("head", 3, ValueError, r"head must lie in 0\.\.2, got 3")]
)
def test_wrong_settings_are_refused(name, value, error, rule):
    explorer = AlibiExplorer(num_heads=3, length=4, head=2)
    before = explorer.get_state()
    with pytest.raises(error, match=rule):
        setattr(explorer, name, value)
    assert explorer.get_state() == before
    with pytest.raises(error):
        AlibiExplorer(**{"num_heads": 3, name: value})


def test_the_chosen_head_is_one_of_the_heads():
    explorer = AlibiExplorer(num_heads=8, head=7)
    explorer.num_heads = 3
    assert explorer.head == 2


@pytest.mark.parametrize("shown_table", ["bias", "weights"])
def test_text_and_figure_stand_in_for_the_explorer(shown_table):
    explorer = AlibiExplorer(num_heads=3, length=4, head=2, shown=shown_table)
    assert repr(explorer) == "AlibiExplorer(num_heads=3, length=4, head=2)"
    figure = explorer.figure()
    assert isinstance(figure, Figure)
    maps = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    assert [array.shape for array in maps[:3]] == [(4, 4)] * 3
    torch.testing.assert_close(torch.as_tensor(maps[2].data), explorer.numbers()["table"], check_dtype=False)


# In a browser


def opened(reader, tmp_path, explorer, over="disk", **options):
    tab = reader(over, **options)
    tab.open(write_page(tmp_path, [explorer]), 1)
    return tab, tab.host()


def slider(host, name):
    return host.get_by_role("slider", name=name, exact=True)


def test_by_keyboard(reader, tmp_path):
    explorer = AlibiExplorer(num_heads=1, length=2)
    tab, host = opened(reader, tmp_path, explorer, over="http")
    press = tab.page.keyboard.press
    for name, values in (("num_heads", range(1, 17)), ("length", range(2, 17)), ("head", range(16))):
        slider(host, name).focus()
        for value in values:
            setattr(explorer, name, value)
            assert_shows_numbers(host, explorer)
            press("ArrowRight")
    status = host.get_by_role("status")
    expect(status).to_have_text("Head 15: slope 1/256, the weight halves every 177.4 tokens.")
    for is_causal in (False, True):
        host.get_by_role("checkbox", name="Causal mask").press("Space")
        explorer.is_causal = is_causal
        assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)
    host.get_by_role("radio", name="Weights").press("ArrowLeft")
    explorer.shown = "bias"
    assert_shows_numbers(host, explorer)
    expect(status).to_have_text("The map shows the bias.")
    assert_copied_code_gives(host, explorer)
    # The head follows when there are fewer of them.
    slider(host, "num_heads").press("Home")
    explorer.num_heads = 1
    assert explorer.head == 0
    assert_shows_numbers(host, explorer)
    host.get_by_role("button", name="Reset").click()
    explorer.length, explorer.shown = 2, "weights"
    assert_shows_numbers(host, explorer)
    expect(status).to_have_text("All settings are back at their initial values.")
    assert tab.errors == []


def test_a_head_is_chosen_from_the_list(reader, tmp_path):
    explorer = AlibiExplorer(num_heads=6, length=7, is_causal=False, shown="bias")
    tab, host = opened(reader, tmp_path, explorer)
    rows = host.locator(".mha-head-row")
    expect(rows.filter(visible=True)).to_have_count(6)
    rows.nth(4).click()
    explorer.head = 4
    assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)
    expect(rows.nth(4)).to_have_attribute("aria-pressed", "true")
    expect(rows.nth(0)).to_have_attribute("aria-pressed", "false")
    expect(host.locator(".mha-chosen")).to_have_count(1)
    expect(slider(host, "head")).to_have_value("4")
    rows.nth(5).press("Enter")
    explorer.head = 5
    assert_shows_numbers(host, explorer)
    expect(host.get_by_role("status")).to_have_text("Head 5: slope 1/8, the weight halves every 5.5 tokens.")
    # Head 4 is the steepest, and the scale of the colours must reach its farthest key.
    expect(host.locator(".mha-bar-ends")).to_contain_text("−3.00")
    assert tab.errors == []


def test_curves_end_where_the_numbers_say(reader, tmp_path):
    explorer = AlibiExplorer(num_heads=6, length=5, shown="bias")
    _, host = opened(reader, tmp_path, explorer)
    for head in range(6):
        path = host.locator(".mha-curve").nth(head).get_attribute("d")
        x, y = (float(number) for number in path.split("L")[-1].split())
        # The plane is 100 high from the lowest bias, that of slope 1/2 at distance 4, up to 0.
        assert (x, y) == pytest.approx((100, 100 * SLOPES[6][head] / 0.5), abs=0.01)


def test_the_map_is_read_by_keyboard(reader, tmp_path):
    explorer = AlibiExplorer(num_heads=4, length=4, head=1)
    tab, host = opened(reader, tmp_path, explorer)
    cell = host.locator("[role=gridcell][tabindex='0']")
    cell.focus()
    tab.page.keyboard.press("ArrowDown")
    number = float(shown(host, "table")[4])
    readout = host.locator(".mha-readout")
    expect(readout).to_have_text(f"query 1 → key 0: {number:.4f}")
    tab.page.keyboard.press("End")
    expect(readout).to_have_text("query 1 → key 3: 0.0000, hidden by the causal mask")
    assert tab.errors == []


@pytest.mark.parametrize(("name", "value", "message"), [("head", 8, "head must lie in 0..7, got 8")])
def test_a_state_without_sense_gives_a_message(reader, tmp_path, name, value, message):
    tab = reader("disk")
    path = write_page(tmp_path, [AlibiExplorer()], alter=lambda states: states[0].update({name: value}))
    tab.open(path, 1)
    expect(tab.host().get_by_role("alert")).to_contain_text(message)
    expect(tab.host().locator(".mha-body")).to_be_hidden()
    assert tab.errors == []
