"""The ablation lab: its numbers against a slow loop, its switches in a browser."""

from math import exp, sqrt

import pytest
import torch
from playwright.sync_api import expect
from torch import nn
from widget_page import assert_copied_code_gives, assert_shows_numbers, shown, write_page

from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, cosine_score
from mha_lib.data import pointer_batch
from mha_lib.inspection import prune_heads
from mha_lib.training import fit
from mha_lib.widgets import AblationLab

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
    x = [
        [a + b for a, b in zip(weight["embedding.weight"][t], encoding[i], strict=True)]
        for i, t in enumerate(tokens.tolist())
    ]

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
        right[..., 0].mean().item(),
        right[..., 1].mean().item(),
        right.prod(-1).mean().item(),
    ]


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


def test_heads_that_are_off_could_as_well_be_pruned(models):
    tokens, targets = batch()
    lab = make_lab(models, num_heads=2, gates=[0, 1])
    pruned = Pointer(2)
    pruned.load_state_dict(models[0].state_dict())
    pruned.attention = prune_heads(pruned.attention, [0])
    with torch.no_grad():
        right = pruned(tokens).argmax(-1) == targets
    both = right.all(-1, keepdim=True)
    expected = torch.cat((right, both), dim=-1).double().mean((0, 1))
    torch.testing.assert_close(lab.numbers()["accuracy"], expected)


def test_models_are_left_alone(models):
    before = {n: p.clone() for n, p in models[1].named_parameters()}
    make_lab(models, num_heads=4, gates=[0, 0, 1, 1]).numbers()
    for name, parameter in models[1].named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32


@pytest.mark.parametrize(
    ("trait", "value", "error", "rule"),
    [
        ("num_heads", 3, ValueError, r"one of \[2, 4, 8\]"),
        ("gates", [1, 0, 1], ValueError, "hold 2 numbers"),
        ("gates", [0.5, 1], ValueError, "each 0 or 1"),
        ("sample", 20, ValueError, r"lie in 0\.\.19"),
    ],
)
def test_wrong_settings_are_refused(models, trait, value, error, rule):
    lab = make_lab(models, gates=[0, 1])
    before = lab.get_state(lab._settings)
    with pytest.raises(error, match=rule):
        setattr(lab, trait, value)
    assert lab.get_state(lab._settings) == before
    if value is not None:
        with pytest.raises(error, match=rule):
            make_lab(models, **{trait: value})


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
    with lab.hold_trait_notifications():  # as a browser sends both
        lab.num_heads, lab.gates = 4, [1, 0, 0, 1]
    assert (lab.num_heads, lab.gates) == (4, [1.0, 0.0, 0.0, 1.0])


def test_repr_figure_and_size(models):
    lab = make_lab(models, num_heads=4, gates=[1, 0, 1, 0])
    assert repr(lab) == "AblationLab(num_heads=4, off=[1, 3], samples=20)"
    figure = lab.figure()
    titles = [axis.get_title() for axis in figure.axes[:4]]
    assert titles == ["head 0", "head 1, off", "head 2", "head 3, off"]
    assert f"previous {lab.numbers()['accuracy'][0]:.3f}" in figure.get_suptitle()


# In a browser


def switches(host):
    return host.locator(".mha-switch input")


def test_all_switches_by_keyboard(reader, tmp_path, models):
    """Every subset of 2 and of 4 heads, and single heads of 8."""
    lab = make_lab(models)
    tab = reader("disk")
    tab.open(write_page(tmp_path, [lab]), 1)
    host = tab.host()
    heads = host.locator("input[type=range]").first
    for num_heads in (2, 4, 8):
        if num_heads != 2:
            heads.press("ArrowRight")
        lab.num_heads = num_heads
        expect(switches(host)).to_have_count(num_heads)
        assert_shows_numbers(host, lab)
        # Through the subsets with one switch at a time, as a Gray code does.
        for step in range(1, 2**num_heads if num_heads < 8 else 12):
            head = (step & -step).bit_length() - 1
            switches(host).nth(head).press("Space")
            gates = list(lab.gates)
            gates[head] = 1 - gates[head]
            lab.gates = gates
            names = ["accuracy", "answers"] if step > 2 else None
            assert_shows_numbers(host, lab, names)
    assert tab.errors == []


def test_all_sequences_by_keyboard(reader, tmp_path, models):
    lab = make_lab(models, num_heads=4, gates=[0, 1, 1, 0])
    tab = reader("disk")
    tab.open(write_page(tmp_path, [lab]), 1)
    host = tab.host()
    slider = host.locator("input[type=range]").nth(1)
    for sample in range(20):
        lab.sample = sample
        assert_shows_numbers(host, lab, ["maps", "answers"] if sample else None)
        slider.press("ArrowRight")
    slider.press("Home")
    lab.sample = 0
    assert_shows_numbers(host, lab)
    assert tab.errors == []


def test_wrong_answers_are_marked(reader, tmp_path, models):
    lab = make_lab(models, gates=[0, 0])
    tab = reader("disk")
    tab.open(write_page(tmp_path, [lab]), 1)
    cells = tab.host().locator("[data-number=answers]")
    marked = cells.evaluate_all("cells => cells.map(cell => cell.classList.contains('mha-missed'))")
    _, targets = batch()
    assert marked == (lab.numbers()["answers"] != targets[0].T).flatten().tolist()
    wanted = [cell.split("✗")[1] for cell in cells.all_inner_texts() if "✗" in cell]
    assert [int(text) for text in wanted] == [
        int(target) for target, wrong in zip(targets[0].T.flatten(), marked, strict=True) if wrong
    ]


def test_table_sets_the_switches(reader, tmp_path, models):
    lab = make_lab(models, num_heads=4)
    tab = reader("disk")
    page = tab.open(write_page(tmp_path, [lab]), 1)
    host = tab.host()
    cells = host.locator("[data-number=subsets]")
    # Row 9 is 1, 3: by a click of the pointer, and the first row by keyboard.
    cells.nth(9 * 3).click()
    lab.gates = [1, 0, 1, 0]
    assert_shows_numbers(host, lab)
    checked = switches(host).evaluate_all("all => all.map(one => one.checked)")
    assert checked == [True, False, True, False]
    expect(host.locator(".mha-current")).to_have_text("1, 3")
    status = host.locator("[role=status]")
    expect(status).to_contain_text("Heads off: 1, 3. Accuracy: previous")
    shares = shown(host, "accuracy")
    torch.testing.assert_close(shown(host, "subsets")[27:30], shares)
    host.locator(".mha-subsets [tabindex='0']").press("Home")
    for _ in range(9):
        host.locator(".mha-subsets [role=gridcell]:focus").press("ArrowUp")
    host.locator(".mha-subsets [role=gridcell]:focus").press("Space")
    expect(status).to_contain_text("All heads on.")
    lab.gates = [1, 1, 1, 1]
    assert_shows_numbers(host, lab)
    cells.nth(4 * 3 + 1).hover()
    number = lab.numbers()["subsets"][4, 1].item()
    readout = host.locator(".mha-subsets .mha-readout")
    expect(readout).to_have_text(f"heads off: 3; mirrored: accuracy {number:.4f}")
    page.mouse.move(0, 0)
    cells.last.click()
    host.get_by_role("button", name="All heads on").click()
    assert_shows_numbers(host, lab)
    assert tab.errors == []


def test_copied_program_and_reset(reader, tmp_path, models):
    labs = [
        make_lab(models, num_heads=2, gates=[0, 1], sample=7),
        make_lab(models, num_heads=4, gates=[1, 0, 1, 1]),
        make_lab(models, num_heads=8),
    ]
    tab = reader("disk")
    tab.open(write_page(tmp_path, labs), 3)
    for index, lab in enumerate(labs):
        host = tab.host(index)
        assert_copied_code_gives(host, lab)
        switches(host).first.press("Space")
        host.locator("input[type=range]").first.press("End")
        host.get_by_role("button", name="Reset").click()
        assert_shows_numbers(host, lab)
    assert tab.errors == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"num_heads": 3}, "num_heads must be one of 2, 4, 8, got 3"),
        ({"gates": [1, 0.5]}, "gates must be 0 or 1 each"),
        ({"gates": [1]}, "gates must hold 2 numbers from 0 to 1, got [1]"),
        ({"sample": 20}, "sample must lie in 0..19, got 20"),
    ],
)
def test_bad_state_gives_a_message(reader, tmp_path, models, state, message):
    tab = reader("disk")
    path = write_page(tmp_path, [make_lab(models)], alter=lambda states: states[0].update(state))
    tab.open(path, 1)
    expect(tab.host().locator(".mha-problem")).to_contain_text(message)
    assert tab.errors == []
