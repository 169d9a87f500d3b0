"""The cost calculator: its numbers against layers that really run, its controls in a browser."""

import pytest
import torch
from playwright.sync_api import expect
from torch.utils.flop_counter import FlopCounterMode
from widget_page import assert_copied_code_gives, assert_shows_numbers, shown, write_page

from mha_lib import KeyValueCache, MultiHeadAttention
from mha_lib.widgets import CostCalculator


def small(**changes):
    settings = {
        "embed_dim": 48,
        "num_heads": 6,
        "num_kv_heads": 2,
        "length": 7,
        "batch_size": 2,
        "num_layers": 3,
        "bytes_per_number": 4,
    }
    return CostCalculator(**{**settings, **changes})


@pytest.mark.parametrize("num_heads", [1, 2, 3, 12])
@pytest.mark.parametrize("sharing", [1, "all"])
def test_numbers_equal_those_of_layers_with_real_numbers(num_heads, sharing):
    """Not on the meta device, and layer by layer: the tensors that are there at the end are weighed."""
    num_kv_heads = num_heads if sharing == 1 else 1
    calculator = small(num_heads=num_heads, num_kv_heads=num_kv_heads)
    layers = [MultiHeadAttention(48, num_heads, num_kv_heads=num_kv_heads) for _ in range(3)]
    x = torch.randn(2, 7, 48)
    caches = [KeyValueCache() for _ in layers]
    stored, projections = 0, 0
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            for layer, cache in zip(layers, caches, strict=True):
                _, weights = layer(x, x, x, cache=cache)
                stored += weights.nbytes
        with FlopCounterMode(display=False) as only_projections:
            for layer in layers:
                for proj in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
                    proj(x)
        projections = only_projections.get_total_flops()
    expected = {
        "parameters": sum(p.numel() for layer in layers for p in layer.parameters()),
        "projection_flops": projections,
        "attention_flops": counter.get_total_flops() - projections,
        "weights_bytes": stored,
        "cache_bytes": sum(c.keys.nbytes + c.values.nbytes for c in caches),
    }
    numbers = calculator.numbers()
    assert {name: int(numbers[name]) for name in expected} == expected


def test_crossing_is_where_both_cost_the_same():
    for kv_heads in (1, 2, 3, 6):
        crossing = small(num_kv_heads=kv_heads).numbers()["crossing"].item()
        assert crossing == int(crossing) == 48 + 8 * kv_heads
        there = small(num_kv_heads=kv_heads, length=int(crossing)).numbers()
        assert there["projection_flops"] == there["attention_flops"]
        before = small(num_kv_heads=kv_heads, length=int(crossing) - 1).numbers()
        assert before["projection_flops"] > before["attention_flops"]


def test_sweeps_are_made_of_the_same_numbers():
    by_heads = small(sweep="num_heads").numbers()
    counts = [1, 2, 4, 6, 8, 16]
    for index, heads in enumerate(counts):
        one = small(num_heads=heads, num_kv_heads=heads).numbers()
        assert by_heads["parameters_swept"][index] == one["parameters"]
        total = one["projection_flops"] + one["attention_flops"]
        assert by_heads["flops_swept"][index] == total
        assert by_heads["cache_swept"][index] == one["cache_bytes"]
        assert by_heads["weights_swept"][index] == one["weights_bytes"]
    assert len(by_heads["cache_swept"]) == len(counts)
    for name in ("parameters", "flops", "cache"):
        assert len(by_heads[f"{name}_swept"].unique()) == 1
    assert len(by_heads["weights_swept"].unique()) == len(counts)

    by_kv_heads = small(sweep="num_kv_heads").numbers()
    counts = [1, 2, 6]
    for index, kv_heads in enumerate(counts):
        one = small(num_kv_heads=kv_heads).numbers()
        assert by_kv_heads["cache_swept"][index] == one["cache_bytes"]
        assert by_kv_heads["parameters_swept"][index] == one["parameters"]
    assert len(by_kv_heads["weights_swept"].unique()) == 1


def test_curves_grow_linearly_and_quadratically():
    numbers = small().numbers()
    projections, attention = numbers["projection_curve"], numbers["attention_curve"]
    steps = torch.arange(17, dtype=torch.float64)
    assert torch.equal(projections, projections[1] * steps)
    assert torch.equal(attention, attention[1] * steps**2)
    for index in (1, 5, 16):  # twice the crossing, 2 * 64, in sixteen steps
        one = small(length=8 * index).numbers()
        assert projections[index] == one["projection_flops"]
        assert attention[index] == one["attention_flops"]


def test_published_sizes():
    """Numbers that can be looked up: 4 * 768² a layer of GPT-2; Llama 2 70B keeps 8 of 64 heads of 128."""
    assert CostCalculator().numbers()["parameters"] == 12 * 4 * 768**2
    llama = CostCalculator(embed_dim=8192, num_heads=64, num_kv_heads=8, num_layers=80, length=4096)
    assert llama.numbers()["cache_bytes"] == 80 * 2 * 8 * 128 * 4096 * 2


@pytest.mark.parametrize(
    ("trait", "value", "error", "rule"),
    [
        ("num_heads", 5, ValueError, "divide embed_dim=48, got 5"),
        ("num_kv_heads", 4, ValueError, "divide num_heads=6, got 4"),
    ],
)
def test_wrong_settings_are_refused(trait, value, error, rule):
    calculator = small()
    before = calculator.get_state(calculator._settings)
    with pytest.raises(error, match=rule):
        setattr(calculator, trait, value)
    assert calculator.get_state(calculator._settings) == before
    with pytest.raises(error, match=rule):
        small(**{trait: value})


def test_settings_that_depend_on_each_other():
    calculator = CostCalculator()
    calculator.embed_dim = 512  # twelve heads no longer divide it
    assert (calculator.num_heads, calculator.num_kv_heads) == (8, 8)
    calculator.num_kv_heads = 4
    calculator.num_heads = 2
    assert calculator.num_kv_heads == 2
    calculator.num_heads = 16
    calculator.num_kv_heads = 8
    calculator.embed_dim = 24
    assert (calculator.num_heads, calculator.num_kv_heads) == (12, 6)


def test_repr_and_figure():
    calculator = small()
    sizes = "embed_dim=48, num_heads=6, num_kv_heads=2, length=7"
    assert repr(calculator) == f"CostCalculator({sizes})"
    for sweep in ("num_heads", "num_kv_heads"):
        calculator.sweep = sweep
        left, right = calculator.figure().axes
        weights = next(line for line in left.lines if line.get_label() == "attention weights")
        expected = calculator.numbers()["weights_swept"]
        assert weights.get_ydata().tolist() == (expected / expected[0]).tolist()
        assert left.get_xlabel() == sweep
        assert right.lines[1].get_ydata().tolist() == calculator.numbers()["attention_curve"].tolist()


def test_largest_sizes_are_finite():
    numbers = CostCalculator(
        embed_dim=16384, num_heads=128, length=1048576, batch_size=1024, num_layers=256, bytes_per_number=8
    ).numbers()
    assert all(tensor.isfinite().all() for tensor in numbers.values())


# In a browser


def sliders(host):
    names = ["embed_dim", "num_heads", "num_kv_heads", "length", "batch_size", "num_layers"]
    return dict(zip(names, host.locator("input[type=range]").all(), strict=True))


def settings_on_page(host):
    """What the sliders say, as keyword arguments."""
    found = {
        name: int(slider.get_attribute("aria-valuetext").split()[0]) for name, slider in sliders(host).items()
    }
    for name, legend in (("bytes_per_number", "Bytes per number"), ("sweep", "Bars vary")):
        value = host.locator(f"input[name='{legend}']:checked").get_attribute("value")
        found[name] = int(value) if value.isdigit() else value
    return found


def test_whole_range_by_keyboard(reader, tmp_path):
    tab = reader("disk")
    tab.open(write_page(tmp_path, [CostCalculator()]), 1)
    host = tab.host()
    controls = sliders(host)

    def check():
        settings = settings_on_page(host)
        assert_shows_numbers(host, CostCalculator(**settings))
        return settings

    stops = {"embed_dim": 10, "num_heads": 20, "num_kv_heads": 20, "length": 14, "batch_size": 7}
    assert check()["num_heads"] == 12
    for name, most in stops.items():
        controls[name].press("Home")
        seen = [check()[name]]
        while len(seen) <= most:
            controls[name].press("ArrowRight")
            now = check()[name]
            if now == seen[-1]:
                break
            seen.append(now)
        assert 7 <= len(seen) <= most
        if name == "embed_dim":
            assert seen[-1] == 12288
            controls[name].press("ArrowLeft")
            controls[name].press("ArrowLeft")
    for key, layers in (("Home", 1), ("ArrowRight", 2), ("End", 128)):
        controls["num_layers"].press(key)
        assert check()["num_layers"] == layers
    for legend in ("Bars vary", "Bytes per number"):
        checked = host.locator(f"input[name='{legend}']:checked")
        before = checked.get_attribute("value")
        values = set()
        for _ in range(4):
            host.locator(f"input[name='{legend}']:checked").press("ArrowRight")
            values.add(host.locator(f"input[name='{legend}']:checked").get_attribute("value"))
            check()
        assert before in values
    assert tab.errors == []


def test_published_models(reader, tmp_path):
    """Each choice of the menu gives the sizes of its paper, and the menu says when the sizes are others."""
    published = {
        "GPT-2 small": (768, 12, 12, 12, 1024),
        "GPT-3": (12288, 96, 96, 96, 2048),
        "Llama 2 7B": (4096, 32, 32, 32, 4096),
        "Llama 2 70B": (8192, 64, 8, 80, 4096),
        "Mistral 7B": (4096, 32, 8, 32, 8192),
    }
    tab = reader("disk")
    tab.open(write_page(tmp_path, [small()]), 1)
    host = tab.host()
    menu = host.locator("select")
    assert menu.evaluate("node => node.selectedIndex") == 0
    texts = menu.locator("option").all_inner_texts()
    assert len(texts) == 1 + len(published)
    for name, sizes in published.items():
        label = next(text for text in texts if text.startswith(f"{name} ("))
        menu.select_option(label)
        found = settings_on_page(host)
        names = ["embed_dim", "num_heads", "num_kv_heads", "num_layers", "length"]
        assert tuple(found[key] for key in names) == sizes
        assert_shows_numbers(host, CostCalculator(**found))
        assert menu.evaluate("node => node.selectedOptions[0].text") == label
    sliders(host)["num_layers"].press("ArrowLeft")
    assert menu.evaluate("node => node.selectedIndex") == 0


def test_what_changes_and_what_does_not(reader, tmp_path):
    tab = reader("disk")
    tab.open(write_page(tmp_path, [CostCalculator()]), 1)
    host = tab.host()
    titles = host.locator(".mha-groups .mha-title span")
    same, changes = (f"{text} num_heads" for text in ("the same for every", "changes with"))
    assert titles.all_inner_texts() == [same, same, same, changes]
    widths = host.locator(".mha-groups > div:last-child i").evaluate_all(
        "bars => bars.map(bar => bar.style.width)"
    )
    assert float(widths[-1].rstrip("%")) == 100
    assert float(widths[0].rstrip("%")) == pytest.approx(100 / 64)
    host.locator("input[value=num_kv_heads]").check(force=True)
    status = host.locator("[role=status]")
    sliders(host)["num_kv_heads"].press("ArrowLeft")
    expect(status).to_contain_text("21.2 M parameters")
    expect(status).to_contain_text("cache 18.9 MB")
    texts = titles.all_inner_texts()
    assert [text.split()[0] for text in texts] == ["changes", "changes", "changes", "the"]
    marked = host.locator(".mha-bars .mha-now > span:first-child")
    assert marked.all_inner_texts() == ["6"] * 4


def test_slider_can_be_dragged(reader, tmp_path):
    tab = reader("disk")
    page = tab.open(write_page(tmp_path, [CostCalculator()]), 1)
    host = tab.host()
    box = sliders(host)["length"].bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, middle, steps=5)
    page.mouse.up()
    found = settings_on_page(host)
    assert found["length"] == 131072
    assert_shows_numbers(host, CostCalculator(**found))
    assert "times what the projections cost" in host.inner_text()


def test_copied_program_and_reset(reader, tmp_path):
    calculators = [small(), small(sweep="num_kv_heads", bytes_per_number=1, length=500)]
    tab = reader("disk")
    tab.open(write_page(tmp_path, calculators), 2)
    for index, calculator in enumerate(calculators):
        host = tab.host(index)
        assert_copied_code_gives(host, calculator)
        sliders(host)["batch_size"].press("End")
        assert shown(host, "cache_bytes") == 32 * calculator.numbers()["cache_bytes"]
        host.get_by_role("button", name="Reset").click()
        assert_shows_numbers(host, calculator)
    assert tab.errors == []


def test_sizes_from_python_are_stops_too(reader, tmp_path):
    calculator = small(embed_dim=49, num_heads=7, num_kv_heads=1, length=11)
    tab = reader("disk")
    tab.open(write_page(tmp_path, [calculator]), 1)
    found = settings_on_page(tab.host())
    assert (found["embed_dim"], found["length"], found["batch_size"]) == (49, 11, 2)
    assert_shows_numbers(tab.host(), calculator)
    controls = sliders(tab.host())
    controls["embed_dim"].press("ArrowRight")  # 64, which 7 does not divide
    assert settings_on_page(tab.host())["num_heads"] == 4
    assert_shows_numbers(tab.host(), CostCalculator(**settings_on_page(tab.host())))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"num_heads": 5}, "num_heads must divide embed_dim=48, got 5"),
        ({"num_kv_heads": 4}, "num_kv_heads must divide num_heads=6, got 4"),
    ],
)
def test_bad_state_gives_a_message(reader, tmp_path, state, message):
    tab = reader("disk")
    path = write_page(tmp_path, [small()], alter=lambda states: states[0].update(state))
    tab.open(path, 1)
    expect(tab.host().locator(".mha-problem")).to_contain_text(message)
    assert tab.errors == []


@pytest.fixture(scope="module")
def math_page(browser, serve):
    from pathlib import Path

    import mha_lib.widgets

    page = browser.new_page()
    folder = Path(mha_lib.widgets.__file__).parent / "js"
    page.goto(serve(folder) + "/cost_math.js")
    yield page
    page.close()


def test_mathematics_alone(math_page):
    """The module by itself, in float64: every number exact, for each pair of heads."""
    for num_heads in (1, 2, 3, 6, 48):
        for num_kv_heads in [n for n in (1, 2, 3, 6) if num_heads % n == 0]:
            calculator = small(num_heads=num_heads, num_kv_heads=num_kv_heads)
            found = math_page.evaluate(
                """async (sizes) => {
                  const math = await import("/cost_math.js");
                  const cost = math.attentionCost(sizes);
                  return [cost.parameters, cost.projectionFlops, cost.attentionFlops, cost.weightsBytes,
                    cost.cacheBytes, math.crossingLength(sizes)];
                }""",
                {
                    "embedDim": 48,
                    "numHeads": num_heads,
                    "numKvHeads": num_kv_heads,
                    "length": 7,
                    "batchSize": 2,
                    "numLayers": 3,
                    "bytesPerNumber": 4,
                },
            )
            numbers = calculator.numbers()
            names = ["parameters", "projection_flops", "attention_flops"]
            names += ["weights_bytes", "cache_bytes", "crossing"]
            assert found == [numbers[name].item() for name in names]
    divisors = math_page.evaluate("async () => (await import('/cost_math.js')).divisorsUpTo(48, 20)")
    assert divisors == [1, 2, 3, 4, 6, 8, 12, 16]
