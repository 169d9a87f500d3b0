"""The head explorer: its traits in Python, its numbers in a browser."""

import base64
import json
import math
import re

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from random_tensors import generator
from seen import CELLS, assert_color_bar, assert_colors, map_pixels
from test_every_widget import too_wide
from widget_looks import contrast
from widget_page import assert_copied_code_gives, assert_shows_numbers, copied_code, run_copied_code

from mha_course.data import pointer_batch
from mha_course.experiments import load_experiment
from mha_course.widgets import HeadExample, HeadExplorer
from mha_lib import MultiHeadAttention, prune_heads

TOKENS = ["to", "be", "or", "not", "be"]


def layer(num_heads=2, embed_dim=12, **options):
    torch.manual_seed(num_heads)
    return MultiHeadAttention(embed_dim, num_heads, **options)


@pytest.fixture
def sentence():
    return HeadExample("sentence", TOKENS, torch.randn(5, 12, generator=generator()), layer())


@pytest.fixture
def trained():
    draw = generator(1)
    x = {heads: torch.randn(7, 12, generator=draw) for heads in (1, 2, 4)}
    layers = {heads: layer(heads, bias=True) for heads in x}
    return HeadExample("trained", list("abcdefg"), x, layers, "a *note*")


@pytest.fixture
def explorer(sentence, trained):
    return HeadExplorer([sentence, trained])


def weights_by_loops(layer, x, num_heads, valid_len, is_causal):
    """Attention weights of one sequence in plain Python, from the matrices of the layer."""
    project = lambda linear: (x.double() @ linear.weight.double().T).tolist()  # noqa: E731
    query, key = project(layer.q_proj), project(layer.k_proj)
    width = x.shape[-1] // num_heads
    maps = []
    for head in range(num_heads):
        own = slice(head * width, (head + 1) * width)
        rows = []
        for i in range(len(x)):
            seen = [j for j in range(valid_len) if not is_causal or j <= i]
            score = {j: sum(a * b for a, b in zip(query[i][own], key[j][own], strict=True)) for j in seen}
            power = {j: math.exp(s / math.sqrt(width)) for j, s in score.items()}
            total = sum(power.values())
            rows.append([power[j] / total if j in power else 0.0 for j in range(len(x))])
        maps.append(rows)
    return torch.tensor(maps, dtype=torch.float64)


def sharpest_first(layer, x, num_heads):
    """The heads by their mean largest weight, in plain Python."""
    maps = weights_by_loops(layer, x, num_heads, len(x), False).tolist()
    sharpness = [sum(max(row) for row in rows) / len(rows) for rows in maps]
    return sorted(range(num_heads), key=lambda head: -sharpness[head])


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize(
    ("valid_len", "is_causal"), [(5, False), (3, False), (5, True), (2, True), (0, False)]
)
def test_weights_are_those_of_the_layer_cut_into_heads(sentence, num_heads, valid_len, is_causal):
    explorer = HeadExplorer([sentence], num_heads=num_heads, valid_len=valid_len, is_causal=is_causal)
    expected = weights_by_loops(sentence.layers, sentence.x, num_heads, valid_len, is_causal)
    torch.testing.assert_close(explorer.weights().double(), expected, atol=1e-6, rtol=0)


def test_each_number_of_heads_has_its_own_trained_layer(trained):
    explorer = HeadExplorer([trained], num_heads=4)
    x = trained.x[4][None]
    torch.testing.assert_close(explorer.weights(), trained.layers[4](x, x, x)[1][0].detach())


def test_the_stored_numbers_are_torch_s_float32_projections(explorer, sentence, trained):
    first, second = explorer.get_state()["examples"]
    [version] = first["versions"]
    assert version["num_heads"] == [1, 2, 3, 4, 6, 12]
    assert version["parameters"] == 4 * 12**2
    assert [v["num_heads"] for v in second["versions"]] == [[1], [2], [4]]
    assert {v["parameters"] for v in second["versions"]} == {4 * 12**2 + 4 * 12}
    stored = np.frombuffer(base64.b64decode(version["key"]), "<f4").reshape(5, 12)
    np.testing.assert_array_equal(stored, sentence.layers.k_proj(sentence.x).detach().numpy())
    stored = np.frombuffer(base64.b64decode(second["versions"][2]["value"]), "<f4").reshape(7, 12)
    np.testing.assert_array_equal(stored, trained.layers[4].v_proj(trained.x[4]).detach().numpy())


def test_a_page_stays_small():
    x = {heads: torch.randn(12, 32) for heads in (1, 2, 4, 8)}
    trained = HeadExample("trained", list("abcdefghijkl"), x, {h: layer(h, embed_dim=32) for h in x})
    sentence = HeadExample("sentence", list("abcdefghij"), torch.randn(10, 32), layer(4, embed_dim=32))
    state = HeadExplorer([sentence, trained]).get_state()
    assert len(json.dumps(state["examples"])) < 32_000
    assert len(state["_esm"] + state["_css"]) < 92_000


def test_a_change_of_example_takes_the_nearest_setting(explorer):
    explorer.num_heads, explorer.head = 6, 5
    explorer.example = "trained"
    assert (explorer.num_heads, explorer.head) == (4, explorer._examples["trained"].order(4)[0])
    assert explorer.valid_len == 7, "all tokens stay visible"
    explorer.valid_len = 6
    explorer.example = "sentence"
    assert (explorer.num_heads, explorer.valid_len) == (4, 5)
    explorer.valid_len = 3
    explorer.example = "trained"
    assert explorer.valid_len == 3


def test_a_change_from_the_browser_arrives_as_one(explorer):
    explorer.set_state({"example": "trained", "num_heads": 4, "head": 3, "valid_len": 7})
    assert (explorer.example, explorer.num_heads, explorer.head, explorer.valid_len) == ("trained", 4, 3, 7)
    seen = []
    explorer.observe(lambda change: seen.append(change.new), "num_heads")
    explorer.set_state({"num_heads": 2})
    assert seen == [2]
    assert explorer.head == explorer._examples["trained"].order(2)[0]


@pytest.mark.parametrize("stage", ["scores", "masked", "weights", "output"])
@pytest.mark.parametrize("view", ["one", "both", "difference"])
def test_the_numbers_of_the_page_by_loops(sentence, stage, view):
    shown = {"stage": stage, "view": view, "head": 2, "other": 0}
    explorer = HeadExplorer([sentence], num_heads=3, valid_len=4, is_causal=True, **shown)
    project = lambda linear: (sentence.x.double() @ linear.weight.double().T).tolist()  # noqa: E731
    layer = sentence.layers
    query, key, value = map(project, (layer.q_proj, layer.k_proj, layer.v_proj))
    weights = weights_by_loops(layer, sentence.x, 3, 4, True).tolist()
    seen = [[k <= q and k < 4 for k in range(5)] for q in range(5)]

    def number(head, q, column):
        own = range(4 * head, 4 * head + 4)
        if stage == "output":
            place = own[column]
            return sum(weights[head][q][k] * value[k][place] for k in range(5))
        if stage == "weights":
            return weights[head][q][column]
        if stage == "masked" and not seen[q][column]:
            return -math.inf
        return sum(query[q][i] * key[column][i] for i in own) / 2

    width = 4 if stage == "output" else 5
    heads = [[[number(head, q, column) for column in range(width)] for q in range(5)] for head in range(3)]
    expected = {"head_dim": 4, "parameters": 576, "shown": heads, "table": heads[2]}
    if view != "one":
        rows = [zip(*pair, strict=True) for pair in zip(heads[2], heads[0], strict=True)]
        apart = [[abs(a - b) if a > -math.inf else a for a, b in row] for row in rows]
        finite = [number for row in apart for number in row if number > -math.inf]
        expected["max_difference"] = max(finite)
        expected["mean_difference"] = sum(finite) / len(finite)
        if view == "both":
            expected["other_table"] = heads[0]
        else:
            expected["table"] = apart
    numbers = explorer.numbers()
    assert set(numbers) == set(expected)
    for name, tensor in numbers.items():
        slow = torch.tensor(expected[name], dtype=torch.float64)
        torch.testing.assert_close(tensor.double(), slow, atol=1e-5, rtol=1e-5)


def test_where_nothing_is_visible_two_heads_do_not_differ(sentence):
    explorer = HeadExplorer([sentence], valid_len=0, stage="masked", view="both")
    numbers = explorer.numbers()
    assert numbers["max_difference"] == numbers["mean_difference"] == 0
    assert not numbers["table"].isfinite().any()


def as_sent(value):
    """Numbers as they come from a browser: JSON has no infinity."""
    if isinstance(value, list):
        return [as_sent(entry) for entry in value]
    return None if value == -math.inf else value


def test_the_difference_from_the_browser_is_that_of_what_it_drew(explorer):
    assert explorer.browser_difference() is None
    explorer.stage, explorer.valid_len, explorer.view = "masked", 3, "difference"
    settings = {name: getattr(explorer, name) for name in explorer._settings}
    numbers = {name: as_sent(tensor.tolist()) for name, tensor in explorer.numbers().items()}
    explorer.browser_report = {"settings": settings, "numbers": numbers}
    explorer.example, explorer.stage = "trained", "output"
    assert explorer.browser_difference() == 0, "it is about the state that was drawn"
    changed = {**numbers, "max_difference": numbers["max_difference"] + 0.25}
    explorer.browser_report = {"settings": settings, "numbers": changed}
    assert explorer.browser_difference() == pytest.approx(0.25)
    changed["table"] = [[None] * 5] * 5
    explorer.browser_report = {"settings": settings, "numbers": changed}
    with pytest.raises(ValueError, match="table must be -inf where torch has it"):
        explorer.browser_difference()


def test_the_two_sharpest_heads_are_shown_first(sentence):
    heads = lambda explorer: [explorer.head, explorer.other]  # noqa: E731
    for num_heads in (2, 3, 4, 6, 12):
        order = sharpest_first(sentence.layers, sentence.x, num_heads)
        assert list(sentence.order(num_heads)) == order
        assert heads(HeadExplorer([sentence], num_heads=num_heads)) == order[:2]
        third = order[2 % num_heads]
        shown = heads(HeadExplorer([sentence], num_heads=num_heads, head=third))
        assert shown == [third, order[num_heads == 2]]
    explorer = HeadExplorer([sentence], num_heads=6, head=5, other=4)
    assert heads(explorer) == [5, 4]
    for explorer.num_heads in (3, 2):
        assert heads(explorer) == sharpest_first(sentence.layers, sentence.x, explorer.num_heads)[:2]
    explorer.num_heads = 1
    assert heads(explorer) == [0, 0]
    explorer.valid_len, explorer.is_causal = 2, True
    explorer.num_heads = 12
    assert heads(explorer) == sharpest_first(sentence.layers, sentence.x, 12)[:2], "no mask counts"


# Stored models and their answers

WORDS = list("ABCDEFGH")


def stored_example(counts=(1, 2, 8), seed=3, **options):
    tokens, targets = pointer_batch(1, generator=generator(17))
    models = {n: ("two_pointers", f"linear, {n} head{'s' * (n > 1)}", seed) for n in counts}
    options = {"tasks": ("previous", "mirrored"), "targets": targets[0], "measure": "both right", **options}
    return HeadExample.stored("stored", models, tokens[0], WORDS, **options), tokens[0], targets[0]


def answers_by_loops(num_heads, tokens, valid_len=12, is_causal=False, seed=3):
    """The answers (tasks, 12) of a stored model, from its tensors, in plain Python."""
    arm = f"linear, {num_heads} head{'s' * (num_heads > 1)}"
    state = {k: v.double() for k, v in load_experiment("two_pointers").state(arm, seed).items()}
    x = state["embedding.weight"][tokens] + state["positions.encoding"]
    layer = MultiHeadAttention(32, num_heads).double()
    layer.load_state_dict({k[10:]: v for k, v in state.items() if k.startswith("attention.")})
    weights = weights_by_loops(layer, x, num_heads, valid_len, is_causal)
    value = x @ state["attention.v_proj.weight"].T
    width = 32 // num_heads
    heads = [weights[h] @ value[:, h * width : (h + 1) * width] for h in range(num_heads)]
    logits = torch.cat(heads, 1) @ state["attention.out_proj.weight"].T @ state["read_out.weight"].T
    logits = (logits + state["read_out.bias"]).tolist()
    return [[max(range(8), key=lambda w: row[8 * task + w]) for row in logits] for task in range(2)]


@pytest.mark.parametrize("num_heads", [1, 2, 8])
@pytest.mark.parametrize(("valid_len", "is_causal"), [(12, False), (7, False), (12, True)])
def test_stored_models_answer_as_by_loops(num_heads, valid_len, is_causal):
    example, tokens, _ = stored_example()
    explorer = HeadExplorer([example], num_heads=num_heads, valid_len=valid_len, is_causal=is_causal)
    numbers = explorer.numbers()
    assert numbers["answers"].tolist() == answers_by_loops(num_heads, tokens, valid_len, is_causal)
    stored = load_experiment("two_pointers")
    arms = "linear, 1 head", "linear, 2 heads", "linear, 8 heads"
    shares = [stored.results(arm, "both right")[3] for arm in arms]
    torch.testing.assert_close(numbers["shares"].float(), torch.stack(shares))
    assert abs(numbers["shares"][0] - 13 / 48) < 0.01, "one head is right where both answers are the same"


def test_only_the_places_that_are_asked_are_answered():
    _, tokens, targets = stored_example()
    asked = torch.full_like(targets, -1)
    asked[4], asked[9, 1] = targets[4], targets[9, 1]
    example, *_ = stored_example(targets=asked)
    answers = HeadExplorer([example], num_heads=2).numbers()["answers"]
    assert torch.equal(answers, torch.tensor(answers_by_loops(2, tokens))[:, [4, 9]])


def test_a_stored_layer_may_be_cut_and_lack_positions():
    tokens = torch.arange(5)
    model = ("two_pointers", "linear, 4 heads", 2)
    example = HeadExample.stored("one", model, tokens, WORDS, positions=False)
    assert example.head_counts == (1, 2, 4, 8, 16, 32)
    assert example.tokens == list("ABCDE")
    state = load_experiment("two_pointers").state("linear, 4 heads", 2)
    torch.testing.assert_close(example.x, state["embedding.weight"][:5])
    assert "answers" not in HeadExplorer([example], num_heads=4).numbers()


@pytest.mark.parametrize(("changes", "error", "rule"), [
    ({"models": {2: ("two_pointers", "linear, 2 heads")}}, TypeError, r"models\[2\] must be \(experiment"),
    ({"models": {}}, ValueError, "models must hold at least one model"),
    ({"models": ("two_pointers", "linear, 2 heads", 0)}, ValueError, "models must be a mapping where tasks"),
    ({"models": {2: ("nothing", "linear, 2 heads", 0)}}, ValueError, "name must be one of"),
    ({"models": {2: ("two_pointers", "linear", 0)}}, ValueError, "arm must be one of"),
    ({"models": {2: ("two_pointers", "linear, 2 heads", 9)}}, ValueError, "seed must be that of a model"),
    ({"tokens": torch.zeros(3)}, ValueError, r"tokens must be int64 of shape \(len,\)"),
    ({"tokens": torch.tensor([1, 8])}, ValueError, r"tokens must lie in 0\.\.7, got \[1, 8\]"),
    ({"tokens": [1, 2]}, TypeError, "tokens must be a torch.Tensor|tokens must be a Tensor"),
    ({"words": "ABCDEFGH"}, TypeError, "words must be a sequence of str"),
    ({"tasks": ("previous",)}, ValueError, r"targets must be int64 of shape \(len, tasks\)"),
    ({"targets": None}, TypeError, "targets must be"),
    ({"targets": torch.full((12, 2), 8)}, ValueError, r"targets must lie in -1\.\.7"),
    ({"targets": torch.full((12, 2), -1)}, ValueError, "not all be -1"),
    ({"measure": "all right"}, ValueError, "measure must be one of"),
    ({"positions": 1}, TypeError, "positions must be"),
])  # fmt: skip
def test_a_stored_example_that_cannot_be_shown_is_refused(changes, error, rule):
    tokens, targets = pointer_batch(1, generator=generator(17))
    arguments = {
        "models": {2: ("two_pointers", "linear, 2 heads", 0)}, "tokens": tokens[0], "words": WORDS,
        "tasks": ("previous", "mirrored"), "targets": targets[0], "measure": "both right", **changes,
    }  # fmt: skip
    with pytest.raises(error, match=rule):
        HeadExample.stored("a", **arguments)


def test_long_sequences_keep_their_report_small():
    x = torch.randn(256, 128, generator=generator(2))
    tokens = [str(place) for place in range(256)]
    example = HeadExample("long", tokens, x, layer(8, embed_dim=128))
    explorer = HeadExplorer([example], view="both")
    assert explorer.weights().shape == (8, 256, 256)
    numbers = explorer.numbers()
    assert "shown" not in numbers
    assert sum(tensor.numel() for tensor in numbers.values()) < 2 * 256**2 + 10


def test_a_pruned_layer_is_refused(sentence):
    """Its heads do not fill the width, so the browser would cut them in the wrong places."""
    pruned = prune_heads(sentence.layers, [0])
    for layers in (pruned, {pruned.num_heads: pruned}):
        with pytest.raises(ValueError, match=r"layers.*must fill embed_dim=.*got num_heads="):
            HeadExample("pruned", sentence.tokens, sentence.x, layers)


X = torch.zeros(5, 12)


@pytest.mark.parametrize(("changes", "error", "rule"), [
    ({"label": 3}, TypeError, "label must be a str, got 3"),
    ({"label": ""}, ValueError, "label must not be empty"),
    ({"note": None}, TypeError, "note must be a str, got None"),
    ({"tokens": "to be"}, TypeError, "tokens must be a sequence of str"),
    ({"tokens": [1, 2]}, TypeError, "tokens must be a sequence of str"),
    ({"tokens": []}, ValueError, "tokens must hold 1 to 256 labels, got 0"),
    ({"tokens": ["a"] * 257}, ValueError, "tokens must hold 1 to 256 labels, got 257"),
    ({"layers": torch.nn.Linear(12, 12)}, TypeError, "layers must be a MultiHeadAttention, got Linear"),
    ({"layers": {}}, ValueError, "layers must hold at least one layer"),
    ({"layers": {3: layer(2)}}, ValueError, r"layers\[3\] must have num_heads=3, got 2"),
    ({"layers": {2: layer(2), 4: layer(4, embed_dim=16)}}, ValueError, r"same embed_dim, got \[12, 16\]"),
    ({"layers": layer(4, num_kv_heads=2)}, ValueError,
     "as many key heads .* got num_kv_heads=2, num_heads=4"),
    ({"layers": layer(2, kdim=6)}, ValueError, r"equal embed_dim, kdim and vdim, got \(12, 6, 12\)"),
    ({"layers": layer(2, embed_dim=130)}, ValueError, "embed_dim of at most 128, got 130"),
    ({"x": X.tolist()}, TypeError, "x must be a torch.Tensor, got list"),
    ({"x": X.double()}, TypeError, "dtype of its layer, torch.float32, got torch.float64"),
    ({"x": X[:4]}, ValueError, r"x must have shape \(len=5, embed_dim=12\), got \(4, 12\)"),
    ({"x": X[None]}, ValueError, r"got \(1, 5, 12\)"),
    ({"x": X * math.nan}, ValueError, "x must be finite"),
    ({"x": {3: X}, "layers": {2: layer()}}, ValueError, r"x must have the keys of layers, \[2\], got \[3\]"),
])  # fmt: skip
def test_an_example_that_cannot_be_shown_is_refused(changes, error, rule):
    arguments = {"label": "a", "tokens": TOKENS, "x": X, "layers": layer(), **changes}
    with pytest.raises(error, match=rule):
        HeadExample(**arguments)


def test_an_explorer_needs_examples_with_different_labels(sentence):
    with pytest.raises(ValueError, match=r"at least one entry.*got \[\]"):
        HeadExplorer([])
    with pytest.raises(ValueError, match="labels must differ, got"):
        HeadExplorer([sentence, sentence])
    with pytest.raises(TypeError, match=r"examples\[0\] must be a HeadExample, got str"):
        HeadExplorer(["sentence"])
    with pytest.raises(ValueError, match="num_heads must be one of"):
        sentence.layer(5)


def test_where_a_widget_cannot_run_its_settings_are_named(explorer):
    data, metadata = explorer._repr_mimebundle_()
    assert metadata == {}
    assert data["text/plain"] == "HeadExplorer(example='sentence', num_heads=2, head_dim=6)"
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id


def make_explorer(**traits):
    draw = generator(5)
    x = 2 * torch.randn(5, 12, generator=draw)
    sentence = HeadExample("sentence", TOKENS, x, layer(2), "See `head_dim`.")
    x = {heads: 2 * torch.randn(7, 12, generator=draw) for heads in (1, 2, 4)}
    trained = HeadExample("trained", list("abcdefg"), x, {heads: layer(heads, bias=True) for heads in x})
    return HeadExplorer([sentence, trained], **traits)


def make_long_explorer(length=64, **traits):
    x = 2 * torch.randn(length, 16, generator=generator(7))
    tokens = [f"t{place}" for place in range(length)]
    return HeadExplorer([HeadExample("long", tokens, x, layer(8, embed_dim=16))], **traits)


def maps_of(explorer):
    """What the maps of all heads show, from torch: (num_heads, len, len), or len numbers of each output."""
    settings = {name: getattr(explorer, name) for name in explorer._settings} | {"view": "one"}
    heads = range(explorer.num_heads)
    return torch.stack([explorer._numbers_at(settings | {"head": head})["table"] for head in heads])


def facts(host):
    return host.locator(".mha-fact").all_inner_texts()


@pytest.mark.parametrize("over", ["http", "disk"])
def test_the_slider_moves_through_all_numbers_of_heads(show, over):
    explorer = make_explorer(num_heads=1)
    host = show(explorer, over=over)
    page = host.page
    slider = host.get_by_role("slider", name="num_heads")
    slider.focus()
    for num_heads in (1, 2, 3, 4, 6, 12):
        explorer.num_heads = num_heads
        head_dim = 12 // num_heads
        heads = "1 head" if num_heads == 1 else f"{num_heads} heads"
        expect(slider).to_have_attribute("aria-valuetext", f"{heads}, head_dim {head_dim}")
        sizes = [f"12 / {num_heads} = {head_dim}", "576", str(num_heads * 25)]
        assert facts(host) == sizes
        if num_heads > 1:
            news = f"{heads}, head_dim {head_dim}. 576 parameters, unchanged."
            expect(host.get_by_role("status")).to_contain_text(news)
        assert_shows_numbers(host, explorer)
        assert host.locator(".mha-maps input").count() == num_heads
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "1 head, head_dim 12")


def test_two_heads_are_compared(show):
    explorer = make_explorer(num_heads=4, valid_len=4)
    host = show(explorer)
    page = host.page
    order = sharpest_first(explorer._examples["sentence"].layers, explorer._examples["sentence"].x, 4)
    compare = host.get_by_role("group", name="Compare")
    second = host.get_by_role("combobox", name="with")
    expect(second).to_be_hidden()
    assert host.locator(".mha-map").count() == 1

    host.locator(".mha-maps input:checked").focus()
    status = host.get_by_role("status")
    for explorer.head, key in ((order[1], "ArrowRight"), (order[0], "ArrowLeft"), (order[-1], "ArrowLeft")):
        page.keyboard.press(key)
        expect(host.locator(".mha-title").first).to_have_text(f"Head {explorer.head}: weights")
        expect(status).to_have_text(f"Head {explorer.head}.")
        assert_shows_numbers(host, explorer)
    host.locator(".mha-maps input[value='2']").check(force=True)
    explorer.head = 2
    compare.locator("input:checked").focus()
    page.keyboard.press("ArrowRight")
    explorer.view, other = "both", order[1]
    expect(second).to_have_value(f"head {other}")
    assert host.locator(".mha-map").count() == 2
    assert host.locator(".mha-title").all_inner_texts() == ["Head 2: weights", f"Head {other}: weights"]
    assert_shows_numbers(host, explorer)

    second.select_option("head 3")
    explorer.other = 3
    largest = float(explorer.numbers()["max_difference"])
    expect(status).to_have_text(f"Heads 2 and 3, side by side. They differ by at most {largest:.4f}.")
    assert facts(host)[3] == f"{largest:.4f}"
    assert_shows_numbers(host, explorer)
    assert_copied_code_gives(host, explorer)

    compare.locator("input:checked").focus()
    page.keyboard.press("ArrowRight")
    explorer.view = "difference"
    assert host.locator(".mha-map").count() == 1
    for explorer.stage in ("scores", "masked", "output"):
        host.locator(f"input[value={explorer.stage}]").check(force=True)
        assert_shows_numbers(host, explorer)
        assert_copied_code_gives(host, explorer)
    a, b = (maps_of(explorer)[head][2, 1].item() for head in (2, 3))
    host.get_by_role("gridcell").nth(2 * 3 + 1).hover()
    text = f"{abs(a - b):.4f} (head 2: {a:.4f}, head 3: {b:.4f})".replace("-", "−")
    told = f"query 'or' at 2 → number 1 of each head's output: {text}"
    expect(host.locator(".mha-readout")).to_have_text(told)
    # With a different number of heads, the sharpest two are shown.
    host.get_by_role("slider", name="num_heads").focus()
    page.keyboard.press("ArrowLeft")
    explorer.num_heads = 3
    assert_shows_numbers(host, explorer)


def test_each_trained_layer_shows_its_own_numbers(show):
    explorer = make_explorer(num_heads=6, head=5)
    host = show(explorer)
    page = host.page
    host.get_by_role("combobox", name="Example").select_option("trained")
    explorer.example = "trained"
    assert explorer.num_heads == 4, "Python and the browser take the same nearest setting"
    slider = host.get_by_role("slider", name="num_heads")
    expect(slider).to_have_attribute("aria-valuetext", "4 heads, head_dim 3")
    assert host.locator(".mha-maps input:checked").input_value() == str(explorer.head)
    slider.focus()
    for explorer.num_heads in (4, 2, 1):
        assert_shows_numbers(host, explorer)
        page.keyboard.press("ArrowLeft")
    assert facts(host)[1] == "624"
    assert_copied_code_gives(host, explorer)


def test_small_maps_have_their_numbers_in_the_cells(show):
    explorer = make_explorer(valid_len=3)
    small, large = show(explorer, make_long_explorer(16), over="http")
    texts = small.get_by_role("gridcell").all_inner_texts()
    weights = explorer.weights()[explorer.head].flatten()
    assert texts == [f"{weight:.2f}" for weight in weights.tolist()]
    small.locator("input[value=masked]").check(force=True)
    assert small.get_by_role("gridcell").nth(4).inner_text() == "−∞"
    assert set(large.get_by_role("gridcell").all_inner_texts()) == {""}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("stage", ["scores", "masked", "weights", "output"])
def test_signed_numbers_are_red_and_blue_and_weights_are_not(show, stage, theme):
    """Cells, small maps and colour bar have one map, and the numbers in the cells can be read on it."""
    explorer = make_explorer(stage=stage, valid_len=3, num_heads=12)
    host = show(explorer, theme=theme)
    maps, is_signed = maps_of(explorer), stage != "weights"
    most = maps[maps.isfinite()].abs().max().item()
    shown = maps[explorer.head].flatten()
    cells = host.get_by_role("gridcell").evaluate_all(CELLS)
    assert len(cells) == len(shown)
    for (ground, ink), number in zip(cells, shown.tolist(), strict=True):
        if math.isinf(number):
            assert ground == [0, 0, 0, 0], "minus infinity has no colour"
            continue
        assert_colors(ground, number, most, is_signed=is_signed)
        assert contrast(ground, ink) >= 4.5
    for canvas, head in zip(host.locator(".mha-maps canvas").all(), order_of(host), strict=True):
        drawn, seen = map_pixels(canvas), maps[head].isfinite()
        assert torch.equal(drawn[..., 3] == 255, seen)
        assert_colors(drawn[seen], maps[head][seen], most, is_signed=is_signed)
    assert_color_bar(host.locator(".mha-bar"), most, is_signed=is_signed)


def test_the_colour_bar_and_the_pattern_follow_the_stage(show):
    """A hidden score has no colour; a pattern tells it from a score near 0, which is nearly white."""
    explorer = make_explorer(stage="scores", valid_len=3, num_heads=3)
    host = show(explorer)
    for explorer.stage in ("weights", "masked", "output", "weights", "scores"):
        host.locator(f"input[value={explorer.stage}]").check(force=True)
        maps = maps_of(explorer)
        is_signed = explorer.stage != "weights"
        most = maps[maps.isfinite()].abs().max().item()
        assert_color_bar(host.locator(".mha-bar"), most, is_signed=is_signed)
        image = "nodes => nodes.map((node) => getComputedStyle(node).backgroundImage)"
        grounds = host.locator(".mha-maps canvas").evaluate_all(image)
        patterned = [ground.startswith("repeating-linear-gradient") for ground in grounds]
        assert patterned == [explorer.stage == "masked"] * 3


def order_of(host):
    """The heads in the order of their small maps."""
    return host.locator(".mha-maps input").evaluate_all("inputs => inputs.map(({ value }) => Number(value))")


@pytest.mark.parametrize("stage", ["scores", "output"])
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_one_sign_keep_the_map_of_signed_numbers(show, stage, sign):
    """The map of a stage does not change its kind from one setting to the next."""
    one = MultiHeadAttention(4, 1)
    one.requires_grad_(False)
    for name, scale in (("q_proj", 1), ("k_proj", sign), ("v_proj", sign)):
        getattr(one, name).weight.copy_(scale * torch.eye(4))
    x = torch.rand(5, 4, generator=generator(3)) + 0.5
    explorer = HeadExplorer([HeadExample("one sign", TOKENS, x, one)], stage=stage)
    numbers = maps_of(explorer)[0]
    assert (sign * numbers > 0).all()
    host = show(explorer)
    grounds = [ground for ground, _ in host.get_by_role("gridcell").evaluate_all(CELLS)]
    most = numbers.abs().max().item()
    assert_colors(grounds, numbers.flatten(), most, is_signed=True)
    assert_color_bar(host.locator(".mha-bar"), most, is_signed=True)


def test_a_difference_starts_at_zero(show):
    explorer = make_explorer(stage="scores", view="difference", num_heads=3)
    host = show(explorer)
    scores = maps_of(explorer)
    apart = (scores[explorer.head] - scores[explorer.other]).abs()
    grounds = [ground for ground, _ in host.get_by_role("gridcell").evaluate_all(CELLS)]
    assert_colors(grounds, apart.flatten(), apart.max().item(), is_signed=False)
    assert_color_bar(host.locator(".mha-bar"), apart.max().item(), is_signed=False)
    # The small maps next to it still show the scores.
    canvas = map_pixels(host.locator(".mha-maps canvas").first)
    assert_colors(canvas, scores[order_of(host)[0]], scores.abs().max().item(), is_signed=True)


@pytest.mark.parametrize("stage", ["scores", "masked", "output"])
def test_the_pixels_of_signed_numbers_are_red_and_blue(show, stage):
    explorer = make_long_explorer(40, stage=stage, valid_len=20)
    drawn = map_pixels(show(explorer).locator(".mha-pixels canvas"))
    maps = maps_of(explorer)
    shown, seen = maps[explorer.head], maps[explorer.head].isfinite()
    assert torch.equal(drawn[..., 3] == 255, seen)
    assert_colors(drawn[seen], shown[seen], maps[maps.isfinite()].abs().max().item(), is_signed=True)


@pytest.mark.parametrize("length", [25, 80])
def test_a_long_sequence_is_drawn_in_pixels(show, length):
    explorer = make_long_explorer(length, valid_len=20, is_causal=True)
    host = show(explorer)
    page = host.page
    assert host.locator(".mha-widget *").count() < 400
    weights = explorer.weights()[explorer.head]
    image = map_pixels(host.locator(".mha-pixels canvas"))
    assert image.shape == (length, length, 4)
    seen = (torch.arange(length) < 20) & torch.ones(length, length).tril().bool()
    assert torch.equal(image[..., 3] == 255, seen), "what is hidden has no colour"
    assert_colors(image[seen], weights[seen], explorer.weights().max().item(), is_signed=False)

    expect(host.get_by_role("grid")).to_have_attribute("aria-rowcount", str(length))
    cell = host.get_by_role("gridcell")
    assert cell.count() == 1
    cell.focus()
    readout = host.locator(".mha-readout")
    row, column = 0, 0
    for key in ["ArrowDown"] * 3 + ["ArrowRight"] * 2 + ["PageDown", "ArrowUp", "ArrowLeft"]:
        page.keyboard.press(key)
        row += {"ArrowDown": 1, "PageDown": 10, "ArrowUp": -1}.get(key, 0)
        column += {"ArrowRight": 1, "ArrowLeft": -1}.get(key, 0)
        expect(readout).to_have_text(f"query 't{row}' → key 't{column}': {weights[row, column]:.4f}")
        expect(cell).to_be_focused()
        expect(cell).to_have_attribute("aria-label", readout.text_content())
        expect(cell).to_have_attribute("aria-colindex", str(column + 1))
    value = float(cell.get_attribute("data-value"))
    assert value == pytest.approx(weights[row, column].item(), abs=1e-6)
    page.keyboard.press("End")
    expect(readout).to_contain_text(f"key 't{length - 1}': 0.0000, hidden by the padding")

    box = host.locator(".mha-pixels").bounding_box()
    step = box["width"] / length
    page.mouse.move(box["x"] + 4.5 * step, box["y"] + 8.5 * step)
    expect(readout).to_have_text(f"query 't8' → key 't4': {weights[8, 4]:.4f}")
    page.mouse.move(box["x"] + 9.5 * step, box["y"] + 8.5 * step)
    expect(readout).to_contain_text("0.0000, hidden by the causal mask")
    page.mouse.click(box["x"] + 2.5 * step, box["y"] + 20.5 * step)
    page.mouse.move(0, 0)
    expect(readout).to_have_text(f"query 't20' → key 't2': {weights[20, 2]:.4f}")

    host.locator("input[value=output]").check(force=True)
    explorer.stage = "output"
    assert map_pixels(host.locator(".mha-pixels canvas")).shape == (length, 2, 4)
    cell.focus()
    page.keyboard.press("Home")
    value = maps_of(explorer)[explorer.head][0, 0]
    text = f"query 't0' → number {2 * explorer.head} of the output: {value:.4f}"
    expect(readout).to_contain_text(text.replace("-", "−"))
    variables = run_copied_code(host)
    torch.testing.assert_close(variables["weights"].float(), explorer.weights(), atol=1e-6, rtol=1e-5)


def test_the_compact_one_has_the_slider_and_the_maps(show):
    explorer = make_long_explorer(12, num_heads=2, compact=True)
    host = show(explorer, width=760)
    page = host.page
    assert host.get_by_role("slider").count() == 1
    assert host.get_by_role("checkbox").count() == 0
    assert host.locator(".mha-widget").bounding_box()["height"] <= 420
    host.get_by_role("slider", name="num_heads").focus()
    page.keyboard.press("ArrowRight")
    explorer.num_heads = 4
    assert_shows_numbers(host, explorer)
    # On a phone the slider and the small maps come first.
    page.set_viewport_size({"width": 360, "height": 740})
    parts = (".mha-kept-in-view input", ".mha-maps", ".mha-grid")
    heights = [host.locator(part).first.bounding_box()["y"] for part in parts]
    assert heights == sorted(heights)
    assert heights[1] < 250


def test_a_menu_of_one_example_is_not_shown(show):
    example = HeadExample("alone", ["a", "b"], torch.randn(2, 12), layer(2))
    hosts = show(HeadExplorer([example]), make_explorer(), over="http")
    assert [host.get_by_role("combobox").count() for host in hosts] == [0, 1]


def test_a_cell_is_read_by_pointer_and_by_keyboard(show):
    explorer = make_explorer(num_heads=2, valid_len=4, is_causal=True)
    host = show(explorer)
    page = host.page
    readout = host.locator(".mha-readout")
    weights = explorer.weights()[explorer.head]
    host.get_by_role("gridcell").nth(2 * 5 + 1).hover()
    assert readout.inner_text() == f"query 'or' at 2 → key 'be' at 1: {weights[2, 1]:.4f}"
    page.mouse.move(0, 0)
    assert "arrow keys" in readout.inner_text()
    host.locator("[role=gridcell][tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "End", "ArrowRight"):
        page.keyboard.press(key)
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert readout.inner_text() == focused
    assert focused == "query 'or' at 2 → key 'be' at 4: 0.0000, hidden by the padding mask"
    page.keyboard.press("ArrowLeft")
    assert readout.inner_text() == "query 'or' at 2 → key 'not' at 3: 0.0000, hidden by the causal mask"
    assert host.locator("[role=gridcell][tabindex='0']").count() == 1, "one stop for the Tab key"
    assert host.locator("[role=rowheader].mha-now").inner_text() == "or"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overflows_a_phone(show, theme):
    tokens, label = ["incomprehensibilities"] * 24, "a rather long name for an example, to be cut somewhere"
    long = HeadExample(label, tokens, torch.randn(24, 60), layer(4, embed_dim=60), "word " * 40)
    hosts = show(
        make_explorer(num_heads=12, stage="output"),
        make_explorer(num_heads=12, view="both", stage="scores"),
        HeadExplorer([long]),
        HeadExplorer([long], num_heads=60, view="difference"),
        make_long_explorer(256, view="both"),
        make_long_explorer(compact=True),
        width=360,
        theme=theme,
    )
    assert too_wide(hosts[0].page) == []


def test_it_shows_what_the_heads_buy(show):
    """Shares as bars, and each answer with a sign that says whether it is right."""
    example, tokens, targets = stored_example()
    explorer = HeadExplorer([example], num_heads=1)
    host = show(explorer, width=760)
    page = host.page
    slider = host.get_by_role("slider", name="num_heads")
    table = host.get_by_role("table")
    stored = load_experiment("two_pointers")
    arm = lambda n: f"linear, {n} head{'s' * (n > 1)}"  # noqa: E731
    shares = {n: stored.results(arm(n), "both right")[3].item() for n in (1, 2, 8)}
    for num_heads in (1, 2, 8):
        expect(slider).to_have_attribute("aria-valuetext", re.compile(rf"^{num_heads} head"))
        answers = answers_by_loops(num_heads, tokens)
        right = 0
        for task, name in enumerate(("previous", "mirrored")):
            row = table.get_by_role("row", name=name).get_by_role("cell")
            expected = [
                f"{WORDS[answer]}\n{'✓' if answer == targets[place, task] else '✗'}"
                for place, answer in enumerate(answers[task])
            ]
            assert row.all_inner_texts() == expected
        for place in range(12):
            right += all(answers[task][place] == targets[place, task] for task in range(2))
        title = f"The answers here: both answers right at {right} of 12 positions"
        assert table.locator("caption").inner_text() == title
        assert right == 12 or num_heads == 1
        heads = table.get_by_role("columnheader").all_inner_texts()
        assert heads == [WORDS[token] for token in tokens.tolist()]
        bars = host.locator(".mha-bars li")
        texts = [re.sub(r"\s+", " ", text) for text in bars.all_inner_texts()]
        # Each share appears when its number of heads is chosen, after the reader's prediction.
        names = {1: "1 head", 2: "2 heads", 8: "8 heads"}
        assert texts == [names[n] + f" {shares[n]:.2f}" * (n <= num_heads) for n in shares]
        widths = bars.locator("i").evaluate_all(
            "bars => bars.map(bar => bar.getBoundingClientRect().width / bar.parentNode.clientWidth)"
        )
        assert widths == pytest.approx(list(shares.values()), abs=0.01)
        is_bold = "bars => bars.map(bar => getComputedStyle(bar.lastChild).fontWeight === '700')"
        now = bars.evaluate_all(is_bold)
        assert now == [n == num_heads for n in (1, 2, 8)]
        explorer.num_heads = num_heads
        assert_shows_numbers(host, explorer)
        assert_copied_code_gives(host, explorer)
        slider.focus()
        page.keyboard.press("ArrowRight")
    # The answers follow the mask.
    host.get_by_role("checkbox", name="Causal mask").check()
    causal = answers_by_loops(8, tokens, is_causal=True)
    mirrored = table.get_by_role("row", name="mirrored").get_by_role("cell")
    expect(mirrored.first).to_contain_text(WORDS[causal[1][0]])
    right = sum(all(causal[t][p] == targets[p, t] for t in range(2)) for p in range(12))
    assert right < 12
    expect(host.get_by_role("status")).to_contain_text(f"All answers right at {right} of 12 positions.")


def test_the_program_of_a_stored_model_is_short_and_names_it(show):
    example, *_ = stored_example()
    one = HeadExample.stored("cut", ("two_pointers", "linear, 4 heads", 1), torch.arange(5), WORDS)
    explorer = HeadExplorer([one], num_heads=16)
    hosts = show(HeadExplorer([example], num_heads=8), explorer, over="http")
    models = ('["two_pointers", "linear, 8 heads", 3]', '["two_pointers", "linear, 4 heads", 1]')
    for host, model in zip(hosts, models, strict=True):
        code = copied_code(host)
        assert model in code
        assert "base64" not in code
        assert len(code.splitlines()) < 58
        assert max(map(len, code.splitlines())) <= 110
    assert_copied_code_gives(hosts[1], explorer)


def test_the_heads_are_in_the_order_of_their_sharpness(show):
    example, *_ = stored_example()
    host = show(HeadExplorer([example], num_heads=2))
    page = host.page
    host.get_by_role("slider", name="num_heads").focus()
    for num_heads in (2, 8):
        layer, x = example.layers[num_heads], example.x[num_heads]
        order = sharpest_first(layer, x, num_heads)
        slider = host.get_by_role("slider", name="num_heads")
        expect(slider).to_have_attribute("aria-valuetext", f"{num_heads} heads, head_dim {32 // num_heads}")
        labels = host.locator(".mha-maps label")
        assert labels.all_inner_texts() == [str(head) for head in order]
        boxes = [label.bounding_box() for label in labels.all()]
        places = [(box["y"], box["x"]) for box in boxes]
        assert places == sorted(places), "read as they are seen"
        expect(host.locator(".mha-title").first).to_have_text(f"Head {order[0]}: weights")
        page.keyboard.press("ArrowRight")


def test_a_strip_of_eight_heads_has_labels_that_fit(show):
    example, *_ = stored_example()
    host = show(HeadExplorer([example], num_heads=8, compact=True))
    page = host.page
    for width in (900, 360, 320):
        page.set_viewport_size({"width": width, "height": 740})
        slices = host.locator(".mha-strip > span")
        assert slices.all_inner_texts() == [str(head) for head in range(8)]
        assert slices.evaluate_all("nodes => nodes.every(n => n.scrollWidth <= n.clientWidth)")


@pytest.mark.parametrize("is_compact", [False, True])
def test_on_a_phone_the_controls_stay_in_view_while_the_maps_change(show, is_compact):
    example, *_ = stored_example()
    explorer = HeadExplorer([example], num_heads=8, compact=is_compact)
    host = show(explorer, width=360, stills=True)
    host.page.set_viewport_size({"width": 360, "height": 740})
    slider = host.get_by_role("slider", name="num_heads")
    stages = [] if is_compact else host.locator(".mha-stages label").all()
    for part in (".mha-maps", ".mha-grid", ".mha-answers"):
        host.locator(part).evaluate("node => node.scrollIntoView({ block: 'end' })")
        for control in (slider, *stages):
            seen = control.bounding_box()
            assert 0 <= seen["y"] <= 740 - seen["height"], part
            x, y = seen["x"] + seen["width"] / 2, seen["y"] + seen["height"] / 2
            on_top = "(node, [x, y]) => node.contains(document.elementFromPoint(x, y))"
            assert control.evaluate(on_top, [x, y]), "something lies over it"
    # Most of the screen is left for what changes.
    assert host.locator(".mha-kept-in-view").bounding_box()["height"] < 0.17 * 740
