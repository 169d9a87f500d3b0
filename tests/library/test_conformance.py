"""Somebody else's attention: what is right passes, and real faults of others are named."""

import hashlib
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_check import Finding, Report, check, check_decoding, check_results, check_rotary, main, vectors
from attention_check._aspects import ASPECTS, exercise_of, texts
from attention_check._command import FORMAT
from attention_check._contract import Contract
from attention_check._formula import Layer
from attention_check._layers import projections_of
from attention_check._texts import ITEMS
from mha_course._exercise import Exercise
from mha_course._sizes import Texts
from mha_lib import KeyValueCache, MultiHeadAttention, RotaryPositionalEncoding, dot_product_attention

LAYERS = {"one width": {}, "own widths, biases": {"kdim": 17, "vdim": 19, "bias": True}}


def said(report, *kinds):
    """Aspect -> the name of the fault; what is right or was not tried is left out."""
    return {
        name: found.message.partition(". ")[0]
        for name, found in report.findings.items()
        if found.kind in (kinds or ("wrong", "differs"))
    }


# ------------------------------------------------------------------ the checks themselves


def audited(exercise):
    """What is wrong with an exercise of the judge, as the course asks it of its own."""
    return Exercise(**vars(exercise)).audit()


@pytest.mark.parametrize("aspect", ASPECTS)
def test_every_known_fault_is_named(aspect):
    assert audited(exercise_of(aspect)) == []


@pytest.mark.parametrize("aspect", [a for a in ASPECTS if a not in ("shared keys", "sinks")])
@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_every_known_fault_of_a_layer_is_named(aspect, options):
    layer = MultiHeadAttention(48, 4, **options)
    for bias in (one for one in layer.parameters() if one.ndim == 1):
        nn.init.normal_(bias)
    assert audited(exercise_of(aspect, Layer(projections_of(layer, None), 12), 4)) == []


def test_every_known_fault_of_what_is_besides_the_formula_is_named():
    limits = {"softcap": 5.0, "window": (3, 0)}
    contract = Contract(dot_product_attention, mask="mask", declared=tuple(limits.items()))
    assert audited(exercise_of("scores", contract=contract)) == []
    linear = projections_of(MultiHeadAttention(48, 4), None)
    norm = nn.LayerNorm(48, dtype=torch.float64).requires_grad_(False)
    nn.init.normal_(norm.weight)
    assert audited(exercise_of("scores", Layer(linear, 12, norm=norm), 4)) == []


def test_every_section_of_the_text_is_used():
    check_decoding(lambda: None, rotary=True)
    check_rotary(lambda *_: None)
    for aspect in ASPECTS:
        exercise_of(aspect)
    layer = MultiHeadAttention(48, 4, bias=True, rotary=RotaryPositionalEncoding(12))
    assert check(layer, tries=["scores"])
    exercise_of("scores", Layer(projections_of(layer, None), 12, turn=lambda x: x), 4)
    always = Contract(dot_product_attention, mask="mask", causal="always")
    assert audited(exercise_of("masks", contract=always)) == []
    divided = check(dot_product_attention, scale=1.0, tries=["scores"])
    assert "although another scale is declared" in divided.findings["scores"].message
    assert texts.unused == set()
    checked = Texts("attention_check._aspects")  # which also checks the form of each item
    for name, kind in itertools.product([*checked.unused], ITEMS):
        assert [*checked._items(name, kind)] or kind == "cases"


# ------------------------------------------------------------------ what is right


def loops(query, key, value, mask=None, *, is_causal=False, sink=None):
    """Attention number by number, NumPy arrays in and out."""
    output = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, h, i in np.ndindex(*query.shape[:3]):
        shared = h // (query.shape[1] // key.shape[1])
        seen = [
            j
            for j in range(key.shape[2])
            if (mask is None or np.broadcast_to(mask, (*query.shape[:3], key.shape[2]))[b, h, i, j])
            and (not is_causal or j - (key.shape[2] - query.shape[2]) <= i)
        ]
        logits = [float(query[b, h, i] @ key[b, shared, j]) / math.sqrt(query.shape[-1]) for j in seen]
        largest = max([*logits, *([] if sink is None else [float(sink[h])])], default=0.0)
        parts = [math.exp(logit - largest) for logit in logits]
        total = sum(parts) + (0.0 if sink is None else math.exp(float(sink[h]) - largest))
        for j, part in zip(seen, parts, strict=True):
            output[b, h, i] += part / total * value[b, shared, j]
    return output


def test_explicit_loops_in_numpy_are_right():
    report = check(loops, arrays="numpy")
    assert report
    assert [name for name, found in report.findings.items() if not found] == ["gradients"]


def test_ours_is_right_as_a_function_and_as_a_layer():
    report = check(dot_product_attention)
    assert report
    assert said(report) == {}
    for options in LAYERS.values():
        layer = MultiHeadAttention(33, 3, dropout=0.5, **options).train()
        before = torch.random.get_rng_state()
        report = check(layer)
        assert report, report
        assert layer.training
        assert all(weight.grad is None for weight in layer.parameters())
        assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("mask", ["hidden", "added"])
def test_other_layouts_and_masks_are_told(mask):
    def attend(query, key, value, told=None):
        heads = (x.transpose(1, 2) for x in (query, key, value))
        visible = told if told is None else (~told if mask == "hidden" else told == 0)
        return dot_product_attention(*heads, visible)[0].transpose(1, 2), "weights"

    assert check(attend, layout="blhd", mask=mask)
    # A mask that is only asked whether it is zero may be a bool whose True is taken for hidden.
    report = check(attend)
    assert said(report, "wrong") == {"masks": "the mask is inverted"}
    shared = report.findings["shared keys"]
    assert shared == Finding("right", "but not tried for shared keys and a mask: fix this first: masks")


def test_a_mask_that_is_added_is_found():
    def attend(query, key, value, told=None):
        bias = None if told is None else told.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, bias, enable_gqa=True)

    report = check(attend)
    assert said(report, "wrong") == {}
    assert report.findings["masks"].kind == report.findings["shared keys"].kind == "right"
    assert said(check(attend, mask="visible"))["masks"]


def test_projections_that_are_kept_elsewhere():
    layer = MultiHeadAttention(33, 3, bias=True)

    def mine(*inputs):
        return layer(*inputs)[0].detach().numpy()

    kept = {
        "q_proj": layer.q_proj,
        "k_proj": (layer.k_proj.weight, layer.k_proj.bias),
        "v_proj": (layer.v_proj.weight.detach().numpy(), layer.v_proj.bias.detach().numpy()),
        "out_proj": layer.out_proj,
    }
    assert check(mine, projections=kept, num_heads=3, tries=["scores", "masks"])
    exchanged = {**kept, "q_proj": layer.k_proj}
    assert not check(mine, projections=exchanged, num_heads=3, tries=["scores"])


# ------------------------------------------------------------------ faults of others


def test_torchs_own_layer_returns_nan_for_empty_rows():
    layer = nn.MultiheadAttention(33, 3, batch_first=True)
    report = check(layer)
    assert said(report, "differs")["empty rows"] == "a query that sees nothing gets NaN"
    assert said(report, "wrong") == {}
    assert (report.status, check(layer, strict=True).status) == (0, 1)
    # With positions first, or with separate widths and biases, its numbers are also correct.
    other = nn.MultiheadAttention(33, 3, kdim=17, vdim=19, bias=False)
    assert check(other, tries=["scores", "masks"])


def test_what_builds_on_a_fault_is_not_judged():
    report = check(lambda query, key, value, mask=None: F.scaled_dot_product_attention(query, key, value))
    assert said(report) == {"masks": "the mask is ignored"}
    assert report.status == 1
    assert report.findings["empty rows"] == Finding("not tried", "fix this first: masks")
    assert report.findings["causal"] == Finding("not tried", "it takes no `is_causal`")
    assert report.findings["shared keys"] == Finding("not tried", "it takes as many key heads as query heads")
    assert report.findings["gradients"].kind == "right", "without a mask"


# ------------------------------------------------------------------ rotary positions and decoding


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_faults(interleaved):
    rotary = RotaryPositionalEncoding(14, interleaved=interleaved)
    told = {"interleaved": interleaved}
    assert check_rotary(rotary, **told)
    assert "other columns are paired" in check_rotary(rotary, interleaved=not interleaved).message

    def head_0(x, positions):
        turned = x.clone()
        turned[:, 0] = rotary(x, positions)[:, 0]
        return turned

    assert "only head 0 is rotated" in check_rotary(head_0, **told).message
    by_head = check_rotary(
        lambda x, positions: rotary(x.transpose(1, 2), positions[: x.shape[1]]).transpose(1, 2)
    )
    assert interleaved is ("the heads are taken for positions" in by_head.message)
    fixed = check_rotary(lambda x, _: rotary(x), **told)
    assert "the positions that are given are ignored" in fixed.message
    other = check_rotary(RotaryPositionalEncoding(14, base=500.0, interleaved=interleaved), **told)
    assert not other
    assert check_rotary(RotaryPositionalEncoding(14, base=500.0, interleaved=interleaved), base=500.0, **told)


def decoder(fault="", rotary=None):
    """Decoding with lists, with one place that may go wrong."""

    def start():
        keys, values = [], []

        def step(query, key, value):
            seen = sum(one.shape[2] for one in keys)
            at = torch.arange(query.shape[2]) + (0 if fault == "restart" else seen)
            if rotary is not None:
                query = rotary(query, torch.arange(query.shape[2]) if fault == "query" else at)
                key = rotary(key, at)
            (keys.clear(), values.clear()) if fault == "newest" else None
            keys.insert(0 if fault == "before" else len(keys), key)
            values.insert(0 if fault == "before" else len(values), value)
            q_len, k_len = query.shape[2], sum(one.shape[2] for one in keys)
            ahead = torch.arange(k_len) - torch.arange(q_len)[:, None]
            visible = ahead <= (0 if fault == "corner" else k_len - q_len)
            visible = torch.ones_like(visible) if fault == "open" else visible
            return dot_product_attention(query, torch.cat(keys, 2), torch.cat(values, 2), visible[None, None])

        return step

    return start


DECODING = {
    "newest": "only the newest keys are seen",
    "before": "new keys are put before the old ones",
    "corner": "in a chunk, the triangle starts in the wrong corner",
    "open": "in a chunk, later tokens are seen",
}


def test_decoding_faults():
    rotary = RotaryPositionalEncoding(14)
    assert check_decoding(decoder())
    assert check_decoding(decoder(rotary=rotary), rotary=True)
    for fault, name in DECODING.items():
        assert name in check_decoding(decoder(fault)).message
        assert name in check_decoding(decoder(fault, rotary), rotary=True).message, fault
    for fault, name in {
        "restart": "the positions begin at 0 in every call",
        "query": "the new queries are rotated as if they stood at the beginning",
    }.items():
        assert name in check_decoding(decoder(fault, rotary), rotary=True).message


def test_the_librarys_cache_decodes_right():
    layer = MultiHeadAttention(42, 3, rotary=RotaryPositionalEncoding(14))
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            getattr(layer, name).weight.copy_(torch.eye(42))

    def start():
        cache = KeyValueCache()

        def step(*new):
            merged = (layer.merge_heads(x) for x in new)
            return layer.split_heads(layer(*merged, is_causal=True, cache=cache)[0])

        return step

    with torch.no_grad():
        assert check_decoding(start, rotary=True)


# ------------------------------------------------------------------ other languages, the shell, pytest


def run_numpy(case, later=0):
    if case["aspect"] == "rotary":
        places = torch.tensor(case["positions"]) + later
        return RotaryPositionalEncoding(14)(torch.tensor(case["x"]), places).tolist()
    numbers = {
        name: np.array(case[name], dtype=float if name != "mask" else bool)
        for name in ("query", "key", "value", "mask", "sink")
        if case.get(name) is not None
    }
    if case["aspect"] == "gradients":
        three = [torch.tensor(numbers[name], requires_grad=True) for name in ("query", "key", "value")]
        mask = None if case["mask"] is None else torch.tensor(case["mask"])
        output, _ = dot_product_attention(*three, mask, is_causal=case["is_causal"])
        ramp = torch.linspace(0.5, 1.5, output.numel()).double().view(output.shape)
        return [x.tolist() for x in torch.autograd.grad(output, three, ramp)]
    return loops(**numbers, is_causal=case.get("is_causal", True)).tolist()


def test_results_of_another_language(tmp_path):
    told = json.loads(json.dumps(vectors(), allow_nan=False))
    assert told["format"] == FORMAT
    results = [run_numpy(case) for case in told["cases"]]
    assert all(check_results(results).findings.values()), check_results(results)
    changes = {
        "rotary": lambda case, _: run_numpy(case, 1),
        "gradients": lambda _, result: result[::-1],
        "decoding": lambda _, result: np.flip(result, 2).tolist(),
    }
    spoilt = [
        changes.get(case["aspect"], lambda _, result: result)(case, result)
        for case, result in zip(told["cases"], results, strict=True)
    ]
    assert {*said(check_results(spoilt))} == {"rotary", "gradients", "decoding"}
    assert said(check_results(spoilt))["rotary"] == "the positions are counted from 1"
    wrong = [
        run_numpy({**case, "mask": case["mask"] and (~np.array(case["mask"])).tolist()})
        if case["aspect"] == "masks"
        else None
        for case in told["cases"]
    ]
    assert said(check_results(wrong)) == {"masks": "the mask is inverted"}
    path = tmp_path / "results.json"
    for found, status in (
        ({"format": FORMAT, "results": results}, 0),
        ({"format": FORMAT, "results": wrong}, 1),
        ({"format": FORMAT, "results": results[:-1]}, 2),
        ({"format": "attention conformance 2", "results": results}, 2),
        (results, 2),
    ):
        path.write_text(json.dumps(found))
        assert main(["--results", str(path)]) == status


def test_other_cases_have_another_version():
    """If this fails, the cases have changed: raise the number in FORMAT, and store the new digest."""
    cases = json.dumps([[one["aspect"], one["case"]] for one in vectors()["cases"]])
    assert (FORMAT[-1], hashlib.sha256(cases.encode()).hexdigest()[:8]) == ("4", "23e7178a")


MINE = """
import torch
from mha_lib import MultiHeadAttention, RotaryPositionalEncoding
from torch.nn.functional import scaled_dot_product_attention

def inverted(query, key, value, mask=None):
    return scaled_dot_product_attention(query, key, value, None if mask is None else ~mask)

layer = torch.nn.MultiheadAttention(33, 3)

odd = MultiHeadAttention(33, 3)
turn = RotaryPositionalEncoding(14, base=500.0, interleaved=False)

def start():
    held = []
    def step(*new):
        held.append(new)
        query, key, value = new[0], *(torch.cat([one[i] for one in held], 2) for i in (1, 2))
        mask = torch.ones(query.shape[2], key.shape[2]).tril(key.shape[2] - query.shape[2]).bool()
        return scaled_dot_product_attention(query, key, value, mask)
    return step
"""
ROBUST = ["empty rows", "NaN in padding"]
PARTS = [f"{name}={name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
EXCHANGED = ["q_proj=k_proj", "k_proj=q_proj", *PARTS[2:]]


@pytest.mark.parametrize(("arguments", "status", "line"), [
    (["mine:odd", "--projections", *PARTS, "--num-heads", "3", "--tries", "scores"], 0, "right"),
    (["mine:odd", "--projections", *EXCHANGED], 1, "the projections of queries and keys are exchanged"),
    (["mine:odd", "--projections", *PARTS[:3], "out_proj=none"], 2, "must be the path of a part"),
    (["mine:odd", "--num-heads", "5"], 2, "num_heads"),
    (["rotary", "mine:turn", "--halves", "--base", "500"], 0, "right"),
    (["rotary", "mine:turn", "--base", "500"], 1, "wrong: other columns are paired"),
    (["rotary", "mine:start"], 2, "not tried: it raises TypeError"),
    (["decoding", "mine:start"], 0, "right"),
    (["decoding", "mine:start", "--rotary"], 1, "wrong: "),
    (["mine:inverted", "--accept", "masks"], 0, "accepted, wrong: the mask is inverted"),
    (["mine:inverted", "--mask", "hidden", "--strict"], 1, "differs"),
    (["mine:inverted", "--mask", "hidden", "--strict", "--accept", *ROBUST], 0, "differs"),
    (["mine:inverted", "--accept", "mask"], 2, "accept must be one of"),
    (["mine:inverted", "--scale", "0"], 2, "scale must be positive"),
    (["mine:MultiHeadAttention"], 2, "not a class"),
    (["mine:nothing"], 2, "could not be tried: AttributeError"),
    (["nowhere:nothing"], 2, "could not be tried: ModuleNotFoundError"),
])  # fmt: skip
def test_the_command_line(arguments, status, line, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert line in " ".join((printed.out + printed.err).split())


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_shell_says_it_and_exits_with_1(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    status, output, _ = run(tmp_path, "attention_check", "mine:inverted")
    assert status == 1
    assert output.startswith("judged as: function, query, key, value, ")
    assert "masks          wrong: the mask is inverted. " in output


def test_the_fixture_of_pytest(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "test_mine.py").write_text(
        "import mine\n"
        "def test_right(assert_conforms):\n"
        "    assert_conforms(mine.inverted, mask='hidden', tries=['masks'])\n"
        "def test_wrong(assert_conforms):\n    assert_conforms(mine.inverted)\n"
        "def test_more(assert_rotary, assert_decoding, assert_results):\n"
        "    assert_rotary(mine.turn, base=500.0, interleaved=False)\n    assert_decoding(mine.start)\n"
        "    assert_results([])\n"
    )
    plugin = ("-p", "attention_check.pytest_plugin", "-p", "no:cacheprovider", "--junitxml=report.xml")
    status, output, _ = run(tmp_path, "pytest", *plugin)
    assert status == 1
    assert 'failures="2"' in (written := (tmp_path / "report.xml").read_text("utf-8"))
    assert "masks          wrong" in written
    assert "2 failed, 1 passed" in output
    # With `CI` set, pytest's own summary repeats each message whole.
    told, _, _ = output.partition("short test summary info")
    assert told.count("masks          wrong: the mask is inverted") == 1
    assert "ValueError: results must hold" in output


AT_IMPORT = {
    "import sys\nsys.exit(0)": "SystemExit: 0",
    "print('loud')\nraise RuntimeError('not here')": "RuntimeError: not here",
    "while True: pass": "it takes more than 2 seconds",
    "import nowhere_at_all": "No module named 'nowhere_at_all'",
}


@pytest.mark.parametrize("source", AT_IMPORT)
def test_a_module_that_cannot_be_imported_is_one_sentence(source, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    assert main(["broken:attention", "--seconds", "2"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("could not be tried: ")
    assert AT_IMPORT[source] in printed.err
    assert printed.err.count("\n") == 1


def test_verdicts_and_status():
    right, wrong, differs = Finding("right"), Finding("wrong", "x"), Finding("differs", "x")
    not_tried = Finding("not tried", "x")
    assert Report({"a": right, "b": differs, "c": not_tried}).status == 0
    assert Report({"a": right, "b": differs}, strict=True).status == 1
    assert Report({"a": right, "b": wrong}).status == 1
    assert Report({"a": not_tried}).status == Report({}).status == 2


def test_the_report_as_json(capsys):
    kernel = "torch.nn.functional:scaled_dot_product_attention"
    assert main([kernel, "--tries", "scores", "empty rows", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["findings"]["scores"] == {"verdict": "right", "message": ""}
    assert told["status"] == 0
    assert "causal by `is_causal`" in told["contract"]


# ------------------------------------------------------------------ what else is inside a layer


# The axes of what a fused projection returns, and their order: the three, batch, heads, len, head_dim.
FUSED = {
    "p (h d)": ((3, 3, 11), (2, 0, 3, 1, 4)),
    "(h p d)": ((3, 3, 11), (3, 0, 2, 1, 4)),
    "(d p h)": ((11, 3, 3), (3, 0, 4, 1, 2)),
}


class Unusual(nn.Module):
    """A layer of one input with a norm, a residual or a fused projection; `edit` makes a mistake."""

    def __init__(self, fused="p (h d)", inside=(), edit=None):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.fused, self.inside, self.edit = 3, fused, inside, edit
        self.to_qkv = nn.Linear(33, 99)
        self.parts = nn.ModuleDict({"out_proj": nn.Linear(33, 33)})
        if {"before", "after"} & {*inside}:
            self.norm = nn.LayerNorm(33)
            nn.init.normal_(self.norm.weight)

    def forward(self, x):
        given = self.norm(x) if "before" in self.inside else x
        rows = self.to_qkv(given)
        axes, order = FUSED[self.fused]
        query, key, value = rows.unflatten(-1, axes).permute(order)
        if self.edit == "query without norm":
            query = F.linear(x, *(one[:33] for one in self.to_qkv.parameters())).unflatten(-1, (3, 11))
            query = query.transpose(1, 2)
        scale = 1.0 if self.edit == "unscaled" else 11**-0.5
        heads = (query @ key.mT * scale).softmax(-1) @ value
        output = self.parts["out_proj"](heads.transpose(1, 2).flatten(-2))
        if "residual" in self.inside:
            output = output + (2 * x if self.edit == "residual twice" else x)
        return self.norm(output) if "after" in self.inside else output


INSIDE = {
    "a norm": ({"inside": ("before",)}, "`norm` before"),
    "a residual": ({"inside": ("residual",)}, "adds its input"),
    "both": ({"inside": ("before", "residual")}, "`norm` before · adds its input"),
    "as in BERT": ({"inside": ("residual", "after")}, "adds its input · `norm` after"),
    "a norm at the end": ({"inside": ("after",)}, "`norm` after"),
    "by head": ({"fused": "(h p d)"}, "fused q, k, v head by head"),
    "by column": ({"fused": "(d p h)"}, "fused q, k, v column by column"),
    "by head, after a norm": ({"fused": "(h p d)", "inside": ("before",)}, "head by head · `norm` before"),
}


@pytest.mark.parametrize("case", INSIDE)
def test_what_is_inside_a_layer_is_found_and_said(case):
    options, said = INSIDE[case]
    report = check(Unusual(**options), tries=["scores", "gradients"])
    assert report.status == 0 and report.findings["gradients"], report
    assert said in report.contract


@pytest.mark.parametrize(("options", "edit"), [
    ({"inside": ("before",)}, "query without norm"),
    ({"inside": ("before",)}, "unscaled"),
    ({"inside": ("residual",)}, "residual twice"),
    ({"inside": ("residual", "after")}, "unscaled"),
    ({"fused": "(h p d)"}, "unscaled"),
])  # fmt: skip
def test_a_mistake_in_such_a_layer_is_wrong(options, edit):
    assert check(Unusual(**options, edit=edit), tries=["scores"]).findings["scores"].kind == "wrong"


class WithMemory(nn.Module):
    """Keys and values come from one other input, which may be required."""

    def __init__(self, wrong=False):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.wrong = nn.MultiheadAttention(33, 3, batch_first=True), wrong

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        hidden = None if mask is None else ~mask.repeat_interleave(3, 0)
        return self.attention(x, context, context.flip(1) if self.wrong else context, attn_mask=hidden)[0]


def test_keys_and_values_may_be_one_input():
    report = check(WithMemory(), tries=["scores", "masks", "gradients"])
    assert report.status == 0 and report.findings["masks"], report
    assert "queries from one input, keys and values from `context`" in report.contract
    assert check(WithMemory(wrong=True), tries=["scores"]).findings["scores"].kind == "wrong"


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: check("attention"), TypeError, "attention must be"),
    (lambda: check(nn.MultiheadAttention), TypeError, "not a class"),
    (lambda: check(F.softmax, strict=1), TypeError, "strict must be"),
    (lambda: Finding("wrongly"), ValueError, "kind must be one of"),
    (lambda: check(F.softmax, mask="seen"), ValueError, "mask must be one of"),
    (lambda: check(F.softmax, layout="bld"), ValueError, "layout must be one of"),
    (lambda: check(F.softmax, arrays="jax"), ValueError, "arrays must be one of"),
    (lambda: check(F.softmax, tries=["score"]), ValueError, "tries must be one of"),
    (lambda: check(nn.Linear(3, 3)), ValueError, "projections must hold q_proj"),
    (lambda: check(MultiHeadAttention(33, 3), num_heads=5), ValueError, "num_heads"),
    (lambda: check(MultiHeadAttention(33, 3), num_heads=0), ValueError, "num_heads must be positive"),
    (lambda: check_rotary(3), TypeError, "rotate must be"),
    (lambda: check_rotary(abs, base=0.0), ValueError, "base must be positive"),
    (lambda: check_decoding(None), TypeError, "start must be"),
    (lambda: check_results("[]"), TypeError, "results must be"),
    (lambda: check_results([]), ValueError, "results must hold"),
    (lambda: check_results([["x"], *[None] * (len(vectors()["cases"]) - 1)]), ValueError, "entry 0"),
])  # fmt: skip
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("answer", "message"), [
    (lambda *_: None, "not tried: it returns None"),
    (lambda query, key, value: {"output": query}, "not tried: it returns a dict"),
    (lambda query, key, value: "text", "not tried: it returns a str"),
    (lambda query, key, value: sys.exit(3), "not tried: it raises SystemExit"),
    (lambda query, key, value: [][0], "not tried: it raises IndexError"),
    (lambda query, key, value: query.to("meta"), "not tried: it returns a tensor on the device `meta`"),
    (lambda query, key, value: query.to_sparse(), "not tried: it returns a sparse"),
    (lambda query, key, value: torch.set_default_dtype(torch.float64) or query, "torch's default dtype"),
    (lambda query, key, value: (torch.set_grad_enabled(False), query)[1], "torch's grad mode"),
    (lambda query, key, value: torch.set_num_threads(3) or query, "torch's number of threads"),
    (lambda query, key, value: torch.manual_seed(3) and query, "torch's seed"),
    (lambda query, key, value: query / 0, "inf"),
    (lambda query, key, value: query.mul_(2), "changes its argument `query`"),
    (lambda query, key, value: torch.randn_like(query), "returns different numbers"),
])  # fmt: skip
@pytest.mark.parametrize("tries", [["scores"], None], ids=["scores", "all that it takes"])
def test_whatever_it_does_there_is_a_report(answer, message, tries):
    state = (torch.get_default_dtype, torch.is_grad_enabled, torch.get_num_threads, torch.initial_seed)
    before = [read() for read in state]
    report = check(answer, tries=tries)
    assert before == [read() for read in state]
    assert not report
    assert report.status == (2 if "not tried" in message else 1)
    assert message in " ".join(repr(report).split()), report
    calls = {found.call for found in report.findings.values()}
    assert max(len(line) for line in repr(report).splitlines() if line not in calls) <= 80
