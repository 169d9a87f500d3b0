"""The ablation lab: its numbers against a slow loop, its switches in a browser."""

from itertools import combinations
from math import exp, sqrt

import pytest
import torch
from playwright.sync_api import expect
from seen import map_colors, map_pixels, shares_of_bars
from torch import nn
from widget_page import assert_shows_numbers, shown

from mha_course.data import pointer_batch
from mha_course.experiments import load_experiment
from mha_course.training import fit
from mha_course.widgets import AblationLab
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, cosine_score

TASKS = ("previous", "mirrored")


class Pointer(nn.Module):
    def __init__(self, num_heads, *, embed_dim=16, bias=False, **options):
        super().__init__()
        self.embedding = nn.Embedding(8, embed_dim)
        self.positions = LearnedPositionalEncoding(embed_dim, max_len=12)
        self.attention = MultiHeadAttention(embed_dim, num_heads, bias=bias, **options)
        self.read_out = nn.Linear(embed_dim, 2 * 8, bias=not bias)

    def forward(self, tokens):
        x = self.positions(self.embedding(tokens))
        return self.read_out(self.attention(x, x, x)[0]).unflatten(-1, (-1, 8))


@pytest.fixture(scope="module")
def models():
    """Three models of 2, 4 and 8 heads, a little trained; the second has its biases elsewhere."""
    made = []
    for num_heads in (2, 4, 8):
        torch.manual_seed(num_heads)
        model = Pointer(num_heads, bias=num_heads == 4)
        if num_heads == 4:
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    nn.init.normal_(parameter)
        fit(model, lambda generator: pointer_batch(16, generator=generator), steps=40, lr=3e-2)
        made.append(model)
    return made


def batch(samples=20, seed=3):
    return pointer_batch(samples, generator=torch.Generator().manual_seed(seed))


def make_lab(models, **settings):
    return AblationLab(models, *batch(), tasks=TASKS, **settings)


def logits_by_loop(model, tokens, gates):
    """One sequence, one number at a time, in Python floats: (len, tasks * 8) and the maps."""
    layer = model.attention
    width, head_dim = layer.embed_dim, layer.head_dim
    weight = {name: p.tolist() for name, p in model.named_parameters()}
    encoding = model.positions(torch.zeros(1, 12, width))[0].tolist()
    summands = [(weight["embedding.weight"][t], encoding[i]) for i, t in enumerate(tokens.tolist())]
    x = [[a + b for a, b in zip(*pair, strict=True)] for pair in summands]

    def linear(name, row):
        bias = weight.get(f"{name}.bias", [0.0] * len(weight[f"{name}.weight"]))
        return [
            bias[j] + sum(w * v for w, v in zip(weights, row, strict=True))
            for j, weights in enumerate(weight[f"{name}.weight"])
        ]

    q, k, v = ([linear(f"attention.{n}_proj", row) for row in x] for n in "qkv")
    maps, merged = [], [[] for _ in x]
    for head in range(layer.num_heads):
        part = slice(head * head_dim, (head + 1) * head_dim)
        maps.append([])
        for i, query in enumerate(q):
            scores = [sum(a * b for a, b in zip(query[part], key[part], strict=True)) for key in k]
            exponentials = [exp(score / sqrt(head_dim)) for score in scores]
            weights = [e / sum(exponentials) for e in exponentials]
            maps[-1].append(weights)
            for j in range(part.start, part.stop):
                pooled = sum(w * value[j] for w, value in zip(weights, v, strict=True))
                merged[i].append(gates[head] * pooled)
    logits = [linear("read_out", linear("attention.out_proj", row)) for row in merged]
    return logits, maps


@pytest.mark.parametrize("index", [0, 1, 2])
def test_numbers_equal_a_slow_loop(models, index):
    num_heads = (2, 4, 8)[index]
    tokens, targets = batch(3)
    gates = [float(head != 1) for head in range(num_heads)]
    lab = AblationLab(models[index], tokens, targets, tasks=TASKS, gates=gates, sample=2)
    numbers = lab.numbers()
    right = []
    for sample in range(3):
        with torch.no_grad():
            logits, maps = logits_by_loop(models[index], tokens[sample], gates)
        answers = torch.tensor(logits).unflatten(-1, (2, 8)).argmax(-1)
        right.append(answers == targets[sample])
    assert torch.equal(numbers["answers"], answers.T)
    torch.testing.assert_close(numbers["maps"], torch.tensor(maps, dtype=torch.float64), atol=1e-6, rtol=0)
    right = torch.stack(right).double()
    assert numbers["accuracy"].tolist() == [
        right[..., 0].mean().item(), right[..., 1].mean().item(), right.prod(-1).mean().item(),
    ]  # fmt: skip


def test_table_holds_all_subsets_of_few_heads(models):
    lab = make_lab(models, num_heads=4)
    table = lab.numbers()["subsets"]
    off = [(), (0,), (1,), (2,), (3,), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    off += [(2, 3), (0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2, 3)]
    assert table.shape == (16, 3)
    for row, heads in zip(table, off, strict=True):
        lab.gates = [float(head not in heads) for head in range(4)]
        assert torch.equal(row, lab.numbers()["accuracy"])
    lab.num_heads = 8
    assert lab.numbers()["subsets"].shape == (9, 3)


def test_models_are_left_alone(models):
    before = {n: p.clone() for n, p in models[1].named_parameters()}
    make_lab(models, num_heads=4, gates=[0, 0, 1, 1]).numbers()
    for name, parameter in models[1].named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32


def test_wrong_models_and_batches_are_refused(models):
    tokens, targets = batch()
    model = models[0]

    def refused(error, rule, models=model, tokens=tokens, targets=targets, tasks=TASKS):
        with pytest.raises(error, match=rule):
            AblationLab(models, tokens, targets, tasks=tasks)

    refused(TypeError, "models must be", models=3)
    refused(TypeError, r"models\[0\] must be", models=[3])
    refused(ValueError, "at least one model", models=[])
    refused(ValueError, r"numbers of heads must differ, got \[2, 2\]", [model, model])
    refused(TypeError, r"models\[0\].embedding must be", nn.Linear(2, 2))
    refused(ValueError, "own", Pointer(4, num_kv_heads=2))
    refused(ValueError, "scaled dot product alone", Pointer(4, score=cosine_score))
    refused(ValueError, "at most 8 heads", Pointer(16))
    refused(TypeError, "float32", Pointer(2).double())
    odd = Pointer(2)
    odd.read_out = nn.Linear(16, 15)
    refused(ValueError, "the same number of logits", odd)
    refused(TypeError, "tokens must be int64", tokens=tokens.float())
    refused(ValueError, r"shape \(samples, len\)", tokens=tokens[0])
    refused(ValueError, "tokens must lie below .* 8 tokens", tokens=tokens + 1)
    refused(ValueError, r"tokens must lie in 0\.\.255", tokens=tokens - 1)
    refused(ValueError, "targets must have shape", targets=targets[..., :1])
    refused(TypeError, "tasks must be a sequence of str", tasks="ab")
    refused(ValueError, "targets must have shape", tasks=["one"])

    class Shuffled(nn.Module):
        def forward(self, x):
            return 2 * x

    strange = Pointer(2)
    strange.positions = Shuffled()
    refused(ValueError, "add one vector to each position", strange)


def test_settings_that_depend_on_each_other(models):
    lab = make_lab(models)
    assert (lab.num_heads, lab.gates) == (2, [1.0, 1.0])
    lab.gates = [0, 1]
    lab.num_heads = 8
    assert lab.gates == [1.0] * 8
    with lab.hold_trait_notifications():  # in the form in which a browser sends both
        lab.num_heads, lab.gates = 4, [1, 0, 0, 1]
    assert (lab.num_heads, lab.gates) == (4, [1.0, 0.0, 0.0, 1.0])


def test_repr(models):
    lab = make_lab(models, num_heads=4, gates=[1, 0, 1, 0])
    assert repr(lab) == "AblationLab(num_heads=4, off=[1, 3], samples=20)"


SHOWN = ("accuracy", "subsets", "answers")  # all except the maps, which are pixels


def switches(host):
    return host.locator(".mha-switch input")


def assert_maps(host, lab):
    """The canvases that are seen hold torch's weights, one pixel each, in the colours of viridis."""
    canvases = host.locator(".mha-heads canvas:visible").all()
    for canvas, weights in zip(canvases, lab.numbers()["maps"], strict=True):
        colors = map_pixels(canvas)
        assert colors.shape[:2] == weights.shape
        assert (colors[..., 3] == 255).all()
        # The module interpolates between sixteen stops, and rounds to 1024 shades.
        assert (colors[..., :3] - map_colors(weights, 1, is_signed=False)).abs().max() < 6


class Stored(nn.Module):
    """A stored model of the two pointers, as chapter 8 loads it."""

    def __init__(self, num_heads):
        super().__init__()
        self.embedding = nn.Embedding(8, 32)
        self.positions = LearnedPositionalEncoding(32, max_len=12)
        self.attention = MultiHeadAttention(32, num_heads)
        self.read_out = nn.Linear(32, 16)
        arm = f"linear, {num_heads} head{'s' * (num_heads > 1)}"
        self.load_state_dict(load_experiment("two_pointers").state(arm))


def right_without(model, off, tokens, targets):
    """Share of positions where both answers are right, with the columns of some heads set to zero."""
    layer, width = model.attention, model.attention.head_dim
    with torch.no_grad():
        x = model.positions(model.embedding(tokens))
        q, k, v = (proj(x) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
        merged = torch.zeros_like(x)
        for head in set(range(layer.num_heads)) - set(off):
            part = slice(width * head, width * head + width)
            scores = q[..., part] @ k[..., part].mT / sqrt(width)
            merged[..., part] = scores.softmax(-1) @ v[..., part]
        answers = model.read_out(layer.out_proj(merged)).unflatten(-1, (2, 8)).argmax(-1)
    return (answers == targets).all(-1).double().mean().item()


@pytest.fixture(scope="module")
def pointers():
    """The models of chapter 8, and its sequences."""
    tokens, targets = pointer_batch(512, generator=torch.Generator().manual_seed(98))
    return [Stored(n) for n in (1, 2, 4, 8)], tokens[:256], targets[:256]


def test_the_challenge_has_one_solution_in_the_stored_model_of_four_heads(pointers):
    models, tokens, targets = pointers
    kept = {pair: right_without(models[2], pair, tokens, targets) for pair in combinations(range(4), 2)}
    assert [pair for pair, share in kept.items() if share >= 0.75] == [(0, 2)]
    assert 0.79 < kept[0, 2] < 0.82
    assert sorted(kept.values())[-2] < 0.7  # no other pair comes close


def test_the_challenge_is_met_by_the_right_pair_alone(show, pointers):
    models, tokens, targets = pointers
    lab = AblationLab(models, tokens, targets, tasks=TASKS, num_heads=4)
    host = show(lab)
    task, verdict = host.locator(".mha-challenge p").all()
    first = host.locator(".mha-body > *").first
    expect(first).to_contain_text("Challenge: switch off two of the 4 heads and keep both answers right")
    expect(first).to_contain_text("at least 75% of the positions")
    expect(verdict).to_contain_text("All heads are on.")
    quiet = verdict.evaluate("node => getComputedStyle(node).color")
    for pair in combinations(range(4), 2):
        for head in pair:
            switches(host).nth(head).press("Space")
            if head == pair[0]:
                expect(verdict).to_contain_text("switch off one more")
        share = right_without(models[2], pair, tokens, targets)
        is_met = share >= 0.75
        percent = f"{100 * share:.1f}% of the positions"
        words = f"Without heads {pair[0]} and {pair[1]}, both answers are right in {percent}"
        expect(verdict).to_have_text(f"✓ Met! {words}." if is_met else f"{words}, which is too few.")
        expect(host.get_by_role("status")).to_contain_text(words)
        assert (verdict.evaluate("node => getComputedStyle(node).color") != quiet) is is_met
        host.get_by_role("button", name="All heads on").click()
        expect(verdict).to_contain_text("All heads are on.")
    # Eight heads: two heads or more may be switched off.
    slider = host.locator("input[type=range]").first
    slider.press("End")
    expect(task).to_contain_text("two of the 8 heads")
    for head in (1, 2, 4):
        switches(host).nth(head).press("Space")
    share = right_without(models[3], (1, 2, 4), tokens, targets)
    told = f"Met! Without heads 1, 2 and 4, both answers are right in {100 * share:.1f}%"
    expect(verdict).to_contain_text(told)
    expect(verdict).to_contain_text("How many more can go?")
    # Neither one head nor two can spare any, each for its own reason.
    slider.press("Home")
    expect(verdict).to_contain_text("Not with this model: even with every head on")
    expect(verdict).to_contain_text(f"only {100 * right_without(models[0], (), tokens, targets):.1f}%")
    slider.press("ArrowRight")
    expect(verdict).to_have_text("Not with this model: it has no head to spare. Choose one with more heads.")


def test_a_map_is_read_by_pointer_and_by_keyboard(show, models):
    lab = make_lab(models, num_heads=4, sample=3)
    host = show(lab)
    card = host.locator(".mha-head").nth(2)
    area, readout = card.locator(".mha-pixels"), card.locator(".mha-readout")
    box, weights = area.bounding_box(), lab.numbers()["maps"][2]
    for query, key in ((0, 11), (7, 2), (11, 0)):
        cell = {"x": box["width"] * (key + 0.5) / 12, "y": box["height"] * (query + 0.5) / 12}
        area.hover(position=cell)
        expect(readout).to_have_text(f"query {query} → key {key}: {weights[query, key]:.4f}")
    host.page.mouse.move(0, 0)
    expect(readout).to_have_text("")
    cursor = card.get_by_role("gridcell")
    cursor.focus()
    for key_name, (query, key) in (
        ("Home", (11, 0)),
        ("ArrowUp", (10, 0)),
        ("ArrowRight", (10, 1)),
        ("End", (10, 11)),
        ("ArrowRight", (10, 11)),  # the end of the map
    ):
        cursor.press(key_name)
        expect(readout).to_have_text(f"query {query} → key {key}: {weights[query, key]:.4f}")
        tokens, _ = batch()
        said = f"from token {tokens[3, query]} to token {tokens[3, key]}"
        expect(cursor).to_have_accessible_name(f"{readout.inner_text()}, {said}")
        expect(host.get_by_role("status")).to_have_text(readout.inner_text())
        ring, map_box = cursor.bounding_box(), area.bounding_box()
        middle = ring["x"] + ring["width"] / 2 - map_box["x"], ring["y"] + ring["height"] / 2 - map_box["y"]
        assert [int(12 * place / map_box["width"]) for place in middle] == [key, query]


def test_all_sequences_by_keyboard(show, models):
    lab = make_lab(models, num_heads=4, gates=[0, 1, 1, 0])
    host = show(lab)
    slider = host.locator("input[type=range]").nth(1)
    for sample in range(20):
        lab.sample = sample
        assert_shows_numbers(host, lab, ["answers"] if sample else SHOWN)
        assert_maps(host, lab)
        slider.press("ArrowRight")
    slider.press("Home")
    lab.sample = 0
    assert_shows_numbers(host, lab, SHOWN)


def test_wrong_answers_are_marked(show, models):
    lab = make_lab(models, gates=[0, 0])
    host = show(lab)
    cells = host.locator("[data-number=answers]")
    marked = cells.evaluate_all("cells => cells.map(cell => cell.classList.contains('mha-missed'))")
    _, targets = batch()
    assert marked == (lab.numbers()["answers"] != targets[0].T).flatten().tolist()
    wanted = [cell.split("✗")[1] for cell in cells.all_inner_texts() if "✗" in cell]
    assert [int(text) for text in wanted] == [
        int(target) for target, wrong in zip(targets[0].T.flatten(), marked, strict=True) if wrong
    ]


def test_table_sets_the_switches(show, models):
    lab = make_lab(models, num_heads=4)
    host = show(lab)
    page = host.page
    cells = host.locator("[data-number=subsets]")
    expect(cells.first).to_be_hidden()  # it would reveal the answer to the challenge
    host.get_by_text("The accuracy without each of the 16 subsets of heads").click()
    # Row 9 is 1, 3: select it with a click, and the first row with the keyboard.
    cells.nth(9 * 3).click()
    lab.gates = [1, 0, 1, 0]
    assert_shows_numbers(host, lab, SHOWN)
    checked = switches(host).evaluate_all("all => all.map(one => one.checked)")
    assert checked == [True, False, True, False]
    expect(host.locator(".mha-current")).to_have_text("1, 3")
    status = host.locator("[role=status]")
    expect(status).to_contain_text("Heads off: 1, 3. Accuracy: previous")
    torch.testing.assert_close(shown(host, "subsets")[27:30], shown(host, "accuracy"))
    host.locator(".mha-subsets [tabindex='0']").press("Home")
    for _ in range(9):
        host.locator(".mha-subsets [role=gridcell]:focus").press("ArrowUp")
    host.locator(".mha-subsets [role=gridcell]:focus").press("Space")
    expect(status).to_contain_text("All heads on.")
    lab.gates = [1, 1, 1, 1]
    assert_shows_numbers(host, lab, SHOWN)
    cells.nth(4 * 3 + 1).hover()
    number = lab.numbers()["subsets"][4, 1].item()
    readout = host.locator(".mha-subsets .mha-readout")
    expect(readout).to_have_text(f"heads off: 3; mirrored: accuracy {number:.4f}")
    page.mouse.move(0, 0)
    cells.last.click()
    host.get_by_role("button", name="All heads on").click()
    assert_shows_numbers(host, lab, SHOWN)


def test_bars_texts_and_the_rate_of_guessing(show, models):
    lab = make_lab(models, num_heads=4, gates=[1, 0, 1, 1])
    host = show(lab)
    accuracy = lab.numbers()["accuracy"]
    rows = host.locator(".mha-bars li")
    names = [text.split("\n")[0] for text in rows.all_inner_texts()]
    assert names == [*TASKS, "all at once"]
    assert rows.locator("b").all_inner_texts() == [f"{number:.3f}" for number in accuracy]
    assert shares_of_bars(rows) == pytest.approx(accuracy.tolist(), abs=0.01)
    assert len({f"{number:.3f}" for number in accuracy}) == 3
    # The batch has eight tokens, and each of them may be the answer.
    told = "Guessing one of 8 answers gives accuracy 0.125 on each task."
    expect(host.get_by_text("Guessing one of 8 answers")).to_have_text(told)
    states = host.locator(".mha-switch .mha-hint:visible").all_inner_texts()
    assert states == ["on", "off", "on", "on"]
    assert_maps(host, lab)
    tokens, _ = batch()
    rows = host.locator(".mha-answers [role=row]").all()
    answers = [row.locator("[role=cell]").all_inner_texts() for row in rows]
    assert [int(text) for text in answers[0]] == tokens[0].tolist()
    found = [[int(text.split("✗")[0]) for text in row] for row in answers[1:]]
    assert found == lab.numbers()["answers"].tolist()
