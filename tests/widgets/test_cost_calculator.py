"""The cost calculator: its numbers against layers that really run, and what a reader sees of them."""

import math
import re

import pytest
import torch
from playwright.sync_api import expect
from seen import Plane
from torch.utils.flop_counter import FlopCounterMode
from widget_page import assert_copied_code_gives, assert_shows_numbers

from mha_course.widgets import CostCalculator
from mha_lib import GPT2, KeyValueCache, Llama, MultiHeadAttention


def small(**changes):
    settings = {
        "embed_dim": 48, "num_heads": 6, "num_kv_heads": 2, "length": 7, "batch_size": 2, "num_layers": 3,
        "bytes_per_number": 4,
    }  # fmt: skip
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
    for index in (1, 5, 16):  # twice the crossover, 2 * 64, in sixteen steps
        one = small(length=8 * index).numbers()
        assert projections[index] == one["projection_flops"]
        assert attention[index] == one["attention_flops"]


def test_memory_holds_the_tensors_of_the_library():
    """Parameters, scores of one layer and one user, and the cache of one user, weighed where they are."""
    calculator = small(batch_size=5, other_millions=3, memory_gb=1)
    layers = [MultiHeadAttention(48, 6, num_kv_heads=2) for _ in range(3)]
    caches = [KeyValueCache() for _ in layers]
    x = torch.randn(1, 7, 48)
    tables = [layer(x, x, x, cache=cache)[1] for layer, cache in zip(layers, caches, strict=True)]
    model = sum(p.nbytes for layer in layers for p in layer.parameters()) + 3_000_000 * 4
    user = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)
    scores = tables[0].nbytes
    numbers = calculator.numbers()
    found = [int(numbers[name]) for name in ("model_bytes", "scores_bytes", "user_bytes")]
    assert found == [model, scores, user]
    users = int(numbers["users"])
    assert model + scores + users * user <= 10**9 < model + scores + (users + 1) * user
    calculator.score_table = False
    assert calculator.numbers()["scores_bytes"] == 0


def test_users_are_whole_and_never_below_zero():
    """100 million parameters of 8 bytes, 50 MB of scores, 10 MB for each user: 1 GB holds exactly 15."""
    settings = {
        "embed_dim": 500, "num_heads": 4, "length": 1250, "num_layers": 1, "bytes_per_number": 8,
        "other_millions": 99, "memory_gb": 1,
    }  # fmt: skip
    exact = CostCalculator(**settings)
    assert exact.numbers()["user_bytes"] == 10**7
    assert exact.numbers()["users"] == 15
    assert CostCalculator(**settings | {"score_table": False}).numbers()["users"] == 20
    assert CostCalculator(**settings | {"length": 1251}).numbers()["users"] == 14
    assert CostCalculator(**settings | {"other_millions": 124}).numbers()["users"] == 0
    assert CostCalculator(**settings | {"other_millions": 100_000}).numbers()["users"] == 0


PUBLISHED = {
    "GPT-2 small": (768, 12, 12, 12, 96), "GPT-3": (12288, 96, 96, 96, 116622),
    "Llama 2 7B": (4096, 32, 32, 32, 4591), "Llama 2 70B": (8192, 64, 8, 80, 56897),
    "Mistral 7B": (4096, 32, 8, 32, 5900),
}  # fmt: skip
SIZES = ("embed_dim", "num_heads", "num_kv_heads", "num_layers", "other_millions")
# The whole models, on the meta device: vocabulary, hidden width and, for GPT, positions.
WHOLE = {
    "GPT-2 small": lambda: GPT2(50257, 768, 12, 3072, 12, max_len=1024, device="meta"),
    "GPT-3": lambda: GPT2(50257, 12288, 96, 4 * 12288, 96, max_len=2048, device="meta"),
    "Llama 2 7B": lambda: Llama(32000, 4096, 32, 11008, 32, max_len=4096, device="meta"),
    "Llama 2 70B": lambda: Llama(32000, 8192, 64, 28672, 80, max_len=16, num_kv_heads=8, device="meta"),
    "Mistral 7B": lambda: Llama(32000, 4096, 32, 14336, 32, max_len=16, num_kv_heads=8, device="meta"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_as_many_parameters_as_in_the_library(name):
    numbers = CostCalculator(**dict(zip(SIZES, PUBLISHED[name], strict=True))).numbers()
    expected = sum(parameter.numel() for parameter in WHOLE[name]().parameters())
    # The other parameters are counted in millions.
    assert numbers["model_bytes"].item() / 2 == pytest.approx(expected, abs=1e6)


def test_the_first_answers():
    """Llama 2 7B in 80 GB: 30 users; with one head of keys and values for all heads more than a thousand."""
    users = {n: int(CostCalculator(num_kv_heads=n).numbers()["users"]) for n in (32, 8, 1)}
    by_hand = {}
    for n in users:
        attention = 32 * (2 * 4096**2 + 2 * 4096 * 128 * n)
        room = 80e9 - 2 * (attention + 4591e6) - 32 * 4096**2 * 2
        by_hand[n] = math.floor(room / (2 * 32 * n * 128 * 4096 * 2))
    assert users == by_hand == {32: 30, 8: 124, 1: 1006}


def test_settings_that_depend_on_each_other():
    calculator = CostCalculator(embed_dim=768, num_heads=12)
    calculator.embed_dim = 512  # twelve heads no longer divide it
    assert (calculator.num_heads, calculator.num_kv_heads) == (8, 8)
    calculator.num_kv_heads = 4
    calculator.num_heads = 2
    assert calculator.num_kv_heads == 2
    calculator.num_heads = 16
    calculator.num_kv_heads = 8
    calculator.embed_dim = 24
    assert (calculator.num_heads, calculator.num_kv_heads) == (12, 6)


@pytest.fixture
def open_calculator(show):
    """A function that shows a calculator with its folds open."""

    def unfolded(calculator=None, **options):
        host = show(calculator or CostCalculator(), **options)
        for summary in host.locator(".mha-fold > summary").all():
            summary.click()
        return host

    return unfolded


WHOLE_NUMBERS = ["length", "num_kv_heads", "embed_dim", "num_layers", "other_millions", "memory_gb",
                 "num_heads", "batch_size"]  # fmt: skip


def sliders(host):
    return {name: host.get_by_role("slider", name=name, exact=True) for name in WHOLE_NUMBERS}


def settings_on_page(host):
    """What the controls say, as keyword arguments; the folds must be open."""
    found = {}
    for name, slider in sliders(host).items():
        said = slider.get_attribute("aria-valuetext").replace(",", "")
        found[name] = int(re.match(r"\d+", said)[0])
    for name, legend in (("bytes_per_number", "Bytes per number"), ("sweep", "Bars vary")):
        value = host.locator(f"input[name='{legend}']:checked").get_attribute("value")
        found[name] = int(value) if value.isdigit() else value
    found["score_table"] = host.get_by_role("checkbox").is_checked()
    return found


def calculator_on_page(host):
    return CostCalculator(**settings_on_page(host))


def memory_by_hand(c):
    """Bytes of the model, the scores and one cache, and the users, by the formulas of the chapters."""
    head_dim = c.embed_dim // c.num_heads
    kv_dim = c.num_kv_heads * head_dim
    attention = 2 * c.embed_dim * c.embed_dim + 2 * c.embed_dim * kv_dim
    model = (c.num_layers * attention + c.other_millions * 10**6) * c.bytes_per_number
    scores = c.score_table * c.num_heads * c.length**2 * c.bytes_per_number
    user = 2 * c.num_layers * c.num_kv_heads * head_dim * c.length * c.bytes_per_number
    users = max(0, (c.memory_gb * 10**9 - model - scores) // user)
    return model, scores, user, users


READ_BAR = """host => {
  const svg = host.querySelector(".mha-memory svg");
  const box = svg.getBoundingClientRect();
  const part = (name) => {
    const node = svg.querySelector(`.mha-${name}`);
    const { left, right, top, bottom, width } = node.getBoundingClientRect();
    const place = (x) => (x - box.left) / box.width;
    return { from: place(left), to: place(right), top: (top - box.top) / box.height,
      bottom: (bottom - box.top) / box.height, width, color: getComputedStyle(node).fill };
  };
  const limit = svg.querySelector(".mha-limit").getBoundingClientRect();
  const walls = svg.querySelector(".mha-walls").getAttribute("d").match(/M[^V]*/g) ?? [];
  return {
    limit: (limit.left + limit.width / 2 - box.left) / box.width,
    parts: Object.fromEntries(
      ["model", "scores", "keys", "values", "over"].map((name) => [name, part(name)])),
    walls: walls.map((text) => parseFloat(text.slice(1))),
    view: svg.viewBox.baseVal.width,
  };
}"""


def assert_bar_shows(host, calculator):
    """The lengths of the drawn parts, turned back into bytes, are those of the formulas."""
    model, scores, user, users = memory_by_hand(calculator)
    bar = host.evaluate(READ_BAR)
    memory = calculator.memory_gb * 1e9
    edge = memory / bar["limit"]  # the memory at the right end of the bar
    bytes_at = lambda place: place * edge  # noqa: E731
    tolerance = memory / 2000
    assert bar["limit"] == pytest.approx(1 / 1.2, abs=1e-3)
    end = model + scores + max(users, 1) * user
    corners = {
        "model": (0, model), "scores": (model, model + scores),
        "keys": (model + scores, end), "values": (model + scores, end),
    }  # fmt: skip
    for name, (low, high) in corners.items():
        part = bar["parts"][name]
        low, high = min(low, edge), min(high, edge)
        if high - low > tolerance:
            assert bytes_at(part["from"]) == pytest.approx(low, abs=tolerance), name
            assert bytes_at(part["to"]) == pytest.approx(high, abs=tolerance), name
        else:
            assert part["width"] < 2, name
    # Half of a cache is keys, half is values.
    for name, (top, bottom) in {"keys": (0, 0.5), "values": (0.5, 1), "model": (0, 1)}.items():
        part = bar["parts"][name]
        if part["width"] > 1:
            assert (part["top"], part["bottom"]) == pytest.approx((top, bottom), abs=0.02)
    # The part that does not fit is marked, from the line of the memory on.
    over = bar["parts"]["over"]
    if end > memory + tolerance:
        assert users == 0
        assert over["from"] == pytest.approx(bar["limit"], abs=1e-3)
        assert bytes_at(over["to"]) == pytest.approx(min(end, edge), abs=tolerance)
    else:
        assert over["width"] < 2
    # A wall before each user.
    if 1 <= users <= 200:
        places = [wall / bar["view"] * edge for wall in bar["walls"]]
        assert places == pytest.approx([model + scores + n * user for n in range(users)], abs=tolerance)
    return bar


def users_on_page(host):
    return int(host.locator(".mha-users").inner_text().split()[0].replace(",", ""))


def read_amount(text):
    """12.3 GB, as bytes."""
    number, unit = text.replace(",", "").split()
    return float(number) * 1000 ** " kMGTP".index(unit[0] if unit != "B" else " ")


STATES = [
    {},
    {"num_kv_heads": 8, "length": 24576, "batch_size": 5},
    {"num_kv_heads": 1, "length": 32768},  # the scores of one layer do not fit
    {"num_kv_heads": 1, "length": 65536, "score_table": False},
    {"length": 131072, "score_table": False, "num_kv_heads": 32},  # the cache of one user does not fit
    {"embed_dim": 12288, "num_heads": 96, "num_layers": 96, "other_millions": 116622, "length": 1024},
    {"embed_dim": 35, "num_heads": 7, "length": 1048576, "num_layers": 11, "bytes_per_number": 4,
     "other_millions": 13, "memory_gb": 29, "score_table": False},
    {"embed_dim": 66, "num_heads": 6, "num_kv_heads": 3, "length": 3001, "num_layers": 5,
     "bytes_per_number": 8, "other_millions": 91, "memory_gb": 2},
]  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_bar_legend_and_answer_are_the_bytes_of_the_formulas(open_calculator, state):
    calculator = CostCalculator(**state)
    host = open_calculator(calculator)
    model, scores, user, users = memory_by_hand(calculator)
    assert_bar_shows(host, calculator)
    assert users_on_page(host) == users
    amounts = host.locator(".mha-part strong").all_inner_texts()
    assert [read_amount(text) for text in amounts] == pytest.approx([model, scores, user], rel=0.006)
    texts = host.locator(".mha-memory-ticks span").all_inner_texts()
    assert texts[0] == "0"
    quarters = [calculator.memory_gb * 1e9 * n / 4 for n in (1, 2, 3, 4)]
    assert [read_amount(text) for text in texts[1:]] == pytest.approx(quarters, rel=0.006)
    expect(host.locator(".mha-question")).to_have_text(f"How many users fit in {calculator.memory_gb} GB?")
    why = host.locator(".mha-answer .mha-hint").inner_text()
    free = calculator.memory_gb * 10**9 - model - scores - users * user
    if users:
        assert f"of {calculator.length:,} tokens each" in why
        assert read_amount(re.search(r"; (.*) left", why)[1]) == pytest.approx(free, rel=0.006)
    elif model > calculator.memory_gb * 10**9:
        assert why == "The model alone does not fit."
    elif model + scores > calculator.memory_gb * 10**9:
        assert why == "The scores alone need more than is left."
    else:
        assert why.startswith("One cache needs")
    more = host.locator(".mha-more").inner_text()
    is_cut = model + scores + max(users, 1) * user > 1.2e9 * calculator.memory_gb
    assert (more != "") is is_cut
    if is_cut:
        assert read_amount(more.removesuffix("→")) == pytest.approx(model + scores + user, rel=0.006)
    # The products in the legend give the same bytes.
    products = host.locator(".mha-part .mha-hint").all_inner_texts()
    pattern = r"([\d.,]+)(?: (million|billion))? parameters · (\d+) B"
    count, unit, size = re.match(pattern, products[0]).groups()
    scale = {None: 1, "million": 1e6, "billion": 1e9}[unit]
    assert float(count.replace(",", "")) * scale * int(size) == pytest.approx(model, rel=0.006)
    factors = [int(number) for number in re.findall(r"\d+", products[2].replace(",", ""))]
    assert math.prod(factors) == user
    if calculator.score_table:
        _, heads, length, size = re.findall(r"\d+(?=[ ²])", products[1].replace(",", ""))
        assert int(heads) * int(length) ** 2 * int(size) == scores
    else:
        assert scores == 0
        assert "in pieces" in products[1]
    assert_shows_numbers(host, calculator)


def test_the_legend_has_the_colours_of_the_bar(open_calculator):
    host = open_calculator()
    for theme in ("light", "dark"):
        host.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        parts = host.evaluate(READ_BAR)["parts"]
        image = "nodes => nodes.map((node) => getComputedStyle(node).backgroundImage)"
        swatches = host.locator(".mha-part i").evaluate_all(image)
        color = r"(?:rgb|color)\([^)]*\)"
        seen = [re.findall(color, text) for text in swatches]
        expected = [["model"] * 2, ["scores"] * 2, ["keys", "values"]]
        assert seen == [[parts[name]["color"] for name in names] for names in expected]
        assert len({part["color"] for name, part in parts.items() if name != "over"}) == 4


def picture(host):
    """The centres of the heads of queries, keys and values, and the two ends of each link."""
    found = host.locator(".mha-sharing svg").evaluate(
        """svg => Object.fromEntries(["queries", "keys", "values", "links"].map((name) =>
             [name, svg.querySelector(`.mha-${name}`).getAttribute("d")]))"""
    )
    boxes = lambda d: [float(x) + 0.36 for x in re.findall(r"M(\S+) ", d)]  # noqa: E731
    links = re.findall(r"M(\S+) \S+?L(\S+) ", found["links"])
    return {name: boxes(found[name]) for name in ("queries", "keys", "values")} | {
        "links": [(float(a), float(b)) for a, b in links]
    }


def test_from_mha_over_gqa_to_mqa_in_one_drag(open_calculator):
    host = open_calculator()
    page, slider = host.page, sliders(host)["num_kv_heads"]
    shown_text = host.locator(".mha-row", has_text="num_kv_heads").locator(".mha-value")
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, middle)
    page.mouse.down()
    texts, users = [], []
    for stop in range(6):
        page.mouse.move(box["x"] + 8 + stop / 5 * (box["width"] - 16), middle)
        texts.append(shown_text.inner_text())
        calculator = calculator_on_page(host)
        assert_bar_shows(host, calculator)
        users.append(users_on_page(host))
        drawn = picture(host)
        assert drawn["queries"] == pytest.approx([head + 0.5 for head in range(32)])
        assert len(drawn["keys"]) == len(drawn["values"]) == calculator.num_kv_heads
        assert drawn["keys"] == pytest.approx(drawn["values"])
        # The library's query head h reads the key head h // group.
        group = 32 // calculator.num_kv_heads
        expected = [(head + 0.5, drawn["keys"][head // group]) for head in range(32)]
        ends = [n for link in expected for n in link]
        assert [n for link in drawn["links"] for n in link] == pytest.approx(ends)
        kind = {1: "multi-head", 32: "multi-query"}.get(group, "grouped-query")
        expect(host.locator(".mha-sharing .mha-hint")).to_contain_text(f"{kind} attention")
        expect(host.locator(".mha-sharing .mha-hint")).to_contain_text("32 query heads (top)")
    page.mouse.up()
    assert texts == ["32 · MHA", "16 · GQA", "8 · GQA", "4 · GQA", "2 · GQA", "1 · MQA"]
    assert users == sorted(users)
    assert (users[0], users[2], users[-1]) == (30, 124, 1006)
    told = "1,006 users: model 11.4 GB, scores 1.07 GB, cache 67.1 MB"
    expect(host.get_by_role("status")).to_contain_text(told)


def test_without_the_table_of_scores_longer_texts_fit(open_calculator):
    host = open_calculator(CostCalculator(length=32768, num_kv_heads=8))
    assert users_on_page(host) == 0
    host.get_by_role("checkbox", name="Store the table of scores").uncheck()
    assert users_on_page(host) == 15
    assert assert_bar_shows(host, calculator_on_page(host))["parts"]["scores"]["width"] < 1
    assert_copied_code_gives(host, CostCalculator(length=32768, num_kv_heads=8, score_table=False))


def test_it_opens_with_the_question_and_folds_the_rest(show):
    host = show(CostCalculator(), width=720)
    expect(host.locator(".mha-body > *").first).to_have_text("How many users fit in 80 GB?")
    expect(host.get_by_role("slider")).to_have_count(2)
    expect(host.locator(".mha-groups")).to_be_hidden()
    assert host.locator(".mha-widget").bounding_box()["height"] < 600
    # Controls, picture and bar are on one screen of a phone.
    host.page.set_viewport_size({"width": 360, "height": 740})
    top = host.get_by_role("slider").first.bounding_box()["y"]
    bar = host.locator(".mha-memory").bounding_box()
    assert bar["y"] + bar["height"] - top < 400
    expect(host.locator(".mha-fold > summary")).to_have_count(2)


def test_published_models(open_calculator):
    """Each choice of the menu gives the sizes of its paper, and the menu says when the sizes are others."""
    host = open_calculator(small())
    menu = host.locator("select")
    assert menu.evaluate("node => node.selectedIndex") == 0
    texts = menu.locator("option").all_inner_texts()
    assert len(texts) == 1 + len(PUBLISHED)
    for name, sizes in PUBLISHED.items():
        label = next(text for text in texts if text.startswith(f"{name} ("))
        menu.select_option(label)
        found = settings_on_page(host)
        assert tuple(found[key] for key in SIZES) == sizes
        assert_shows_numbers(host, CostCalculator(**found))
        # A longer text, or fewer key heads, does not change the model.
        sliders(host)["length"].press("ArrowRight")
        sliders(host)["num_kv_heads"].press("End")
        assert menu.evaluate("node => node.selectedOptions[0].text") == label
    sliders(host)["num_layers"].press("ArrowLeft")
    assert menu.evaluate("node => node.selectedIndex") == 0


def test_what_changes_and_what_does_not(open_calculator):
    calculator = CostCalculator(embed_dim=768, num_heads=12, length=1024, num_layers=12)
    host = open_calculator(calculator)
    titles = host.locator(".mha-groups .mha-title span")
    same, changes = (f"{text} num_heads" for text in ("the same for every", "changes with"))
    assert titles.all_inner_texts() == [same, same, same, changes]
    groups = host.locator(".mha-groups > div")
    for group, heads in ((0, None), (1, None), (2, None), (3, [1, 2, 4, 8, 12, 16, 32, 64])):
        widths = (
            groups.nth(group)
            .locator(".mha-bar-track")
            .evaluate_all(
                "tracks => tracks.map((track) => track.firstChild.getBoundingClientRect().width"
                " / track.getBoundingClientRect().width)"
            )
        )
        expected = [n / 64 for n in heads] if heads else [1] * 8
        assert widths == pytest.approx(expected, abs=1e-3)
    host.locator("input[value=num_kv_heads]").check(force=True)
    status = host.locator("[role=status]")
    sliders(host)["num_kv_heads"].press("ArrowRight")
    expect(status).to_contain_text("21.2 M parameters")
    texts = titles.all_inner_texts()
    assert [text.split()[0] for text in texts] == ["changes", "changes", "changes", "the"]
    assert host.locator(".mha-bars .mha-now > span:first-child").all_inner_texts() == ["6"] * 4


@pytest.mark.parametrize("num_kv_heads", [2, 6])
def test_the_ring_is_where_the_curves_meet(open_calculator, num_kv_heads):
    """Read off the axes: projections grow linearly, scores with the square of the length."""
    calculator = small(num_kv_heads=num_kv_heads, length=50)
    host = open_calculator(calculator)
    numbers = calculator.numbers()
    projections, attention = (numbers[f"{name}_flops"].item() for name in ("projection", "attention"))
    title = host.locator(".mha-fold .mha-title", has_text="FLOPs against length").inner_text()
    unit = 1000.0 ** ["FLOPs", "kFLOPs", "MFLOPs"].index(title.split()[0])
    plane = Plane(host.locator(".mha-fold .mha-plane"))
    close = 0.01 * numbers["attention_curve"].max().item() / unit
    meet = 48 + 8 * num_kv_heads
    places = [(meet, meet * projections / 50), (50, projections), (50, attention)]
    for (x, y, _), (length, flops) in zip(plane.dots("mha-points"), places, strict=True):
        assert (x, y) == (pytest.approx(length, abs=1), pytest.approx(flops / unit, abs=close))
    lines = ("truth", lambda n: projections * n / 50), ("solid", lambda n: attention * (n / 50) ** 2)
    for kind, flops in lines:
        points = plane.curve(f"mha-{kind}")
        assert len(points) == 17
        assert [y for _, y in points] == pytest.approx([flops(x) / unit for x, _ in points], abs=close)
    text = host.locator(".mha-fold .mha-hint", has_text="the curves meet at length").inner_text()
    assert f"meet at length {meet} =" in text
    # Products with weights: every token with every token, for scores and for values; and four projections.
    ratio = (2 * 50 * 50 * 48) / (50 * 48 * (48 + 2 * 8 * num_kv_heads + 48))
    assert f"at length 50, scores and values cost {ratio:.2f} times what the projections cost." in text


def test_sizes_from_python_are_stops_too(open_calculator):
    calculator = small(embed_dim=49, num_heads=7, num_kv_heads=1, length=11, memory_gb=31, other_millions=17)
    host = open_calculator(calculator)
    found = settings_on_page(host)
    names = ("embed_dim", "length", "batch_size", "memory_gb", "other_millions")
    assert [found[name] for name in names] == [49, 11, 2, 31, 17]
    assert_shows_numbers(host, calculator)
    sliders(host)["embed_dim"].press("ArrowRight")  # 7 does not divide 64
    assert settings_on_page(host)["num_heads"] == 4
    assert_shows_numbers(host, calculator_on_page(host))
