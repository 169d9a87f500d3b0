"""Attention in the ways in which people write it: what is right is called right, without any declaration."""

import importlib
import math
import sys
import tomllib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unusual import RIGHT, FourLinear, OfPatches, of_counts

from attention_check import Finding, check, main


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_ends_with_status_0(name):
    make, contract, aspects = RIGHT[name]
    torch.manual_seed(0)
    report = check(make())
    assert contract in report.contract
    assert [aspect for aspect in aspects.split() if not report.findings[aspect]] == [], report
    assert report.status == 0, report


@pytest.mark.parametrize("mask", ["auto", "lengths"])
@pytest.mark.parametrize("one_more", [1, -1])
def test_a_number_of_keys_that_is_wrong_by_one_is_no_other_kind_of_mask(mask, one_more):
    def counted(q, k, v, valid_lens):
        return of_counts(q, k, v, valid_lens, one_more)

    report = check(counted, mask=mask)
    assert report.findings["scores"]
    assert report.findings["masks"].kind == "wrong"
    assert report.status == 1


def test_a_case_that_raises_spoils_no_other():
    def attend(query, key, value, mask=None):
        if mask is not None and mask.shape[1] > 1:
            raise ValueError("one mask for all heads")
        return F.scaled_dot_product_attention(query, key, value, mask)

    found = check(attend, tries=["scores", "masks"]).findings
    assert found["scores"]
    assert found["masks"].kind == "right"


def test_a_lookalike_is_no_contract():
    """An inverted mask that asks whether numbers are zero is no mask that is added."""

    def attend(query, key, value, mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return (scores if mask is None else scores.masked_fill(mask != 0, -torch.inf)).softmax(-1) @ value

    report = check(attend)
    assert "True = visible" in report.contract
    assert "the mask is inverted" in report.findings["masks"].message
    assert check(attend, mask="hidden").status == 0


class Unnamed(nn.Module):
    """Projections under names that say nothing, or one whose name says an order."""

    def __init__(self, order="qkv", fused=False, out="omega", scale=11**-0.5):
        super().__init__()
        self.num_heads, self.order, self.scale = 3, order, scale
        self.parts = nn.ModuleDict({"to_qkv": nn.Linear(33, 99)} if fused else {})
        self.parts.update({} if fused else {letter: nn.Linear(33, 33) for letter in "xyz"})
        self.last = nn.ModuleDict({out: nn.Linear(33, 33)})

    def forward(self, x):
        rows = torch.cat([part(x) for part in self.parts.values()], -1)
        heads = [one.unflatten(-1, (3, 11)).transpose(1, 2) for one in rows.chunk(3, -1)]
        query, key, value = (heads[self.order.index(letter)] for letter in "qkv")
        merged = ((query @ key.mT * self.scale).softmax(-1) @ value).transpose(1, 2).flatten(2)
        return next(iter(self.last.values()))(merged)


@pytest.mark.parametrize(("options", "kind", "said"), [
    ({}, "right", "`parts.x`, `parts.y`, `parts.z`, `last.omega` as q, k, v, output"),
    ({"order": "vqk"}, "right", "`parts.y`, `parts.z`, `parts.x`, `last.omega` as q, k, v, output"),
    ({"fused": True, "out": "proj"}, "right", "fused q, k, v"),
    ({"order": "kqv", "fused": True, "out": "proj"}, "differs", "where its name says q, k, v"),
    ({"scale": 1.0}, "wrong", "the scores are not scaled"),
])  # fmt: skip
def test_projections_are_found_by_what_they_do(options, kind, said):
    torch.manual_seed(0)
    report = check(Unnamed(**options), tries=["scores"])
    assert report.findings["scores"].kind == kind, report
    assert said in report.contract + report.findings["scores"].message


def by_distance(slopes, back=None, fault=1.0):
    def attend(q, k, v):
        ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2]).unsqueeze(1)
        scores = fault * q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores - ahead.abs() * slopes / torch.arange(1, q.shape[1] + 1).view(-1, 1, 1)
        hidden = (ahead > 0) | (ahead < -back) if back else ahead > 1000
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

    return attend


def of_length_1(scale):
    return lambda q, k, v: (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * scale).softmax(-1) @ v


class WithLengths(nn.Module):
    """Heads of length 1, times a learned number of each head."""

    def __init__(self):
        super().__init__()
        self.heads, self.qkv, self.proj = 3, nn.Linear(33, 99), nn.Linear(33, 33)
        self.log_scale = nn.Parameter(torch.rand(3, 1, 1) + 1)

    def forward(self, x):
        three = (part.unflatten(-1, (3, 11)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.proj(of_length_1(self.log_scale.exp())(*three).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("attend", "said"), [
    (by_distance(0.5), "ALiBi, slopes 0.5, 0.25, 0.167"),
    (by_distance(0.0, back=6), "window 6 back, 0 ahead"),
    (of_length_1(10.0), "queries and keys of length 1, times 10"),
    (WithLengths(), "queries and keys of length 1, times a number of each head"),
    (by_distance(0.5, fault=2.0), ""),
    (by_distance(0.0, back=6, fault=2.0), ""),
    (of_length_1(11**-0.5), ""),
    (lambda q, k, v: v, ""),
])  # fmt: skip
def test_what_nobody_declares_is_found(attend, said):
    report = check(attend, tries=["scores"])
    assert report.findings["scores"].kind == ("right" if said else "wrong"), report
    assert said in report.contract


class Exchanged(FourLinear):
    """Four projections that start as copies of one; the second and the third are exchanged."""

    def __init__(self):
        super().__init__()
        for linear in self.linears[1:]:
            linear.load_state_dict(self.linears[0].state_dict())
        self.q_proj, self.v_proj, self.k_proj, self.out_proj = self.linears


class ZeroAtFirst(OfPatches):
    """An output projection that starts at zero, behind scores without a scale."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0
        nn.init.zeros_(self.proj.weight)


class NoBias(OfPatches):
    """The bias of the output projection starts at zero, and is forgotten."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.proj.bias)

    def forward(self, x):
        return super().forward(x) - self.proj.bias


@pytest.mark.parametrize("make", [Exchanged, ZeroAtFirst, NoBias])
def test_weights_that_are_equal_or_zero_hide_nothing(make):
    torch.manual_seed(0)
    layer = make()
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    assert check(layer).findings["scores"].kind == "wrong"
    assert all(torch.equal(x, layer.state_dict()[name]) for name, x in before.items())


def test_a_layer_at_its_start_is_right():
    layer = FourLinear()
    for linear in layer.linears[1:]:
        linear.load_state_dict(layer.linears[0].state_dict())
    assert check(layer, tries=["scores", "masks"])


def in_another_dtype(q, k, v):
    return F.scaled_dot_product_attention(q, k, v).double()


def in_a_buffer(q, k, v, kept={}):  # noqa: B006, it is what is tested
    output = F.scaled_dot_product_attention(q, k, v)
    kept.setdefault(output.shape, torch.empty_like(output))
    return kept[output.shape].copy_(output)


@pytest.mark.parametrize(("attend", "said"), [
    (in_another_dtype, "its output is torch.float64, where its inputs are torch.float32"),
    (in_a_buffer, "its output is overwritten by the next call"),
])  # fmt: skip
def test_right_numbers_are_not_enough(attend, said):
    found = check(attend, tries=["scores"]).findings["scores"]
    assert found.kind == "wrong"
    assert said in found.message


@pytest.mark.parametrize("wrong_where", [
    lambda q, k: q.shape[-2] > k.shape[-2],
    lambda q, k: k.shape[-2] > 64,
    lambda q, k: k.shape[-2] == 1,
    lambda q, k: q.shape[1] == 1,
    lambda q, k: q.shape[-1] > 14,
    lambda q, k: not q.is_contiguous(),
    lambda q, k: k.shape[-2] > 512,
], ids=["queries", "many keys", "one key", "one head", "wide heads", "not contiguous", "blocks"])  # fmt: skip
def test_what_is_wrong_for_some_sizes_only_is_found(wrong_where):
    def attend(q, k, v):
        output = F.scaled_dot_product_attention(q, k, v)
        return 1.01 * output if wrong_where(q, k) else output

    assert check(attend, tries=["scores"]).status == 1


# ------------------------------------------------------------------ what a formula may have besides


def unscaled(q, k, v, mask=None):
    scores = q @ k.mT if mask is None else (q @ k.mT).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


def capped(q, k, v, attn_mask=None):
    scores = 5 * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / 5)
    scores = scores if attn_mask is None else scores.masked_fill(~attn_mask, float("-inf"))
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


def windowed(q, k, v):
    place = torch.arange(k.shape[-2] - q.shape[-2], k.shape[-2]).unsqueeze(1)
    behind = place - torch.arange(k.shape[-2])
    near = (behind >= 0) & (behind < 3)
    return torch.where(near, q @ k.mT / math.sqrt(q.shape[-1]), -1e9).softmax(-1) @ v


@pytest.mark.parametrize(("attend", "declared", "other"), [
    (unscaled, {"scale": 1.0}, {"scale": 0.5}),
    (capped, {"softcap": 5.0}, {"softcap": 9.0}),
    (windowed, {"window": (2, 0)}, {"window": (1, 0)}),
])  # fmt: skip
def test_scale_cap_and_window_are_declared(attend, declared, other):
    tries = ["scores", "masks", "causal"]
    report = check(attend, tries=tries, **declared)
    assert report, report
    [(name, value)] = declared.items()
    assert f" · {name} {value}" in report.contract
    assert not check(attend, tries=["scores"], **other)
    assert attend is windowed or not check(attend, tries=["scores"])


class OfAContext(nn.Module):
    """Queries from one projection, keys and values from another."""

    def __init__(self, first="kv"):
        super().__init__()
        self.heads, self.first = 3, first
        self.to_q, self.to_kv = nn.Linear(33, 33, bias=False), nn.Linear(33, 66)
        self.to_out = nn.Sequential(nn.Linear(33, 33), nn.Dropout(0.1))

    def forward(self, x):
        pair = dict(zip(self.first, self.to_kv(x).chunk(2, dim=-1), strict=True))
        heads = (t.unflatten(-1, (3, -1)).transpose(1, 2) for t in (self.to_q(x), pair["k"], pair["v"]))
        return self.to_out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("first", ["kv", "vk"])
def test_keys_and_values_of_one_projection(first):
    report = check(OfAContext(first))
    assert report, report
    assert f"fused {', '.join(first)}" in report.contract
    # The name of `to_kv` says the order, so that another one is said to differ.
    assert report.findings["scores"].kind == ("right" if first == "kv" else "differs")
    assert {"together", "gradients"} <= {name for name, found in report.findings.items() if found}


def with_weights(q, k, v, kind):
    products = q @ k.mT
    scores = products / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    beside = {
        "weights": weights, "scores": scores, "products": products, "of queries": scores.softmax(-2),
        "of another head": weights.roll(1, 1), "heads first": weights.transpose(0, 1),
        "of mixed samples": weights.reshape(weights.shape[1], -1, *weights.shape[2:]),
    }  # fmt: skip
    return weights @ v, beside[kind]


def test_weights_that_are_detached_are_said():
    def attend(q, k, v):
        output, weights = with_weights(q, k, v, "weights")
        return output, weights.detach()

    report = check(attend)
    assert [name for name, found in report.findings.items() if found.kind == "differs"] == ["gradients"]
    assert "are detached" in report.findings["gradients"].message


@pytest.mark.parametrize(
    "kind",
    ["weights", "scores", "products", "heads first", "of queries", "of another head", "of mixed samples"],
)
def test_the_weights_that_are_returned_are_judged(kind):
    report = check(lambda query, key, value: with_weights(query, key, value, kind), tries=["scores"])
    assert bool(report) == (not kind.startswith("of")), report
    if not report:
        assert "second result" in report.findings["scores"].message


def test_what_no_case_tries_is_said():
    def attend(q, k, v, cache=None):
        output, weights = with_weights(q, k, v, "weights")
        return output, weights.mean(1)

    report = check(attend, tries=["scores"])
    said = (
        "calls with `cache`: no case has a cache; calls that use its second result: no case knows its numbers"
    )
    assert report.findings["scores"] == Finding("right", f"but not tried for {said}")


# ------------------------------------------------------------------ a contract that is pinned


def test_a_contract_is_pinned(tmp_path, monkeypatch, capsys):
    """Another contract is a failure of its own, although the numbers are right."""
    monkeypatch.chdir(tmp_path)
    source = "def attend(q, k, v, mask=None):\n    s = q @ k.mT\n"
    source += "    s = s if mask is None else s.masked_fill({}mask, float('-inf'))\n"
    source += "    return s.softmax(-1) @ v\n"
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])

    def run(*arguments, form="~"):
        sys.modules.pop("pinned_module", None)
        importlib.invalidate_caches()
        (tmp_path / "pinned_module.py").write_text(source.format(form), encoding="utf-8")
        monkeypatch.setattr("sys.dont_write_bytecode", True)
        return main(arguments), capsys.readouterr().out

    name = "pinned_module:attend"
    status, printed = run("discover", name, "--scale", "1")
    assert status == 0
    assert "scale 1.0" in tomllib.loads(printed)[name]["contract"]
    (tmp_path / "attention_check.toml").write_text(f"{printed}scale = 1.0\n", encoding="utf-8")
    tries = ("--tries", "scores", "masks")
    assert run(name, *tries)[0] == 0
    status, said = run(name, "--mask", "hidden", *tries, form="")
    assert (status, "The contract has changed." in said) == (1, True)
    assert "masks          right" in said
    # In the file of a project, with an option that does not exist.
    (tmp_path / "attention_check.toml").unlink()
    table = f'[tool.attention_check."{name}"]\nscale = 1.0\n'
    (tmp_path / "pyproject.toml").write_text(table, encoding="utf-8")
    assert run(name, *tries)[0] == 0
    (tmp_path / "pyproject.toml").write_text(f"{table}caps = 1\n", encoding="utf-8")
    assert main([name]) == 2
    assert "is pinned with caps" in capsys.readouterr().err


# ------------------------------------------------------------------ names of faults, as people write them

PRODUCTS = {
    "products of matrices": (lambda q, k: q @ k.transpose(-2, -1), torch.matmul),
    "sums over letters": (
        lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
        lambda w, v: torch.einsum("bhij,bhjd->bhid", w, v),
    ),
    "heads in the batch": (
        lambda q, k: torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).unflatten(0, q.shape[:2]),
        lambda w, v: torch.bmm(w.flatten(0, 1), v.flatten(0, 1)).unflatten(0, w.shape[:2]),
    ),
}
LOW = {"products of matrices": -torch.inf, "sums over letters": -1e30, "heads in the batch": -1e9}


# What a fault makes of scores, and of a mask for a number of heads.
SCORES = {"tanh": torch.tanh, "square": torch.square, "sign": torch.neg, "temperature": lambda s: 3 * s}
MASKS = {
    "another sample": lambda m, _: m.roll(1, 0),
    "moved mask": lambda m, _: m.roll(1, -1),
    "head 0 alone": lambda m, heads: m | (torch.arange(heads) > 0).view(-1, 1, 1),
    "folded": lambda m, heads: (
        m if len(m) == 1 or m.shape[1] > 1 else m[:, 0].repeat(heads, 1, 1).unflatten(0, (len(m), heads))
    ),
    "folded head 0": lambda m, heads: m[:, 0].repeat(heads, 1, 1).unflatten(0, (len(m), heads)),
}


def written(how, fault=""):
    """Attention in one of three ways, right or with a fault."""
    product, mean = PRODUCTS[how]

    def attend(query, key, value, mask=None, is_causal=False, sink=None):
        heads, width = query.shape[1], query.shape[-1]
        group = heads // key.shape[1]
        if fault == "tiled":
            key, value = key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
        if fault == "stride 0":
            query, key, value = (x[:, [0] * heads] for x in (query, key, value))
        if fault in ("last key", "first key"):
            kept = slice(0, -1) if fault == "last key" else slice(1, None)
            key, value = key[:, :, kept], value[:, :, kept]
            mask = None if mask is None else mask[..., kept]
        if fault == "queries for keys":
            query, key = key, query
        if fault == "keys for values":
            key, value = value, key
        if fault == "half":
            query, key = query[..., : width // 2], key[..., : width // 2]
        divisor = {"√k_len": key.shape[2], "√heads": heads, "scale after": 1, "√width": heads * width}
        moved = key.roll(1, 2) if fault == "moved keys" else key
        scores = product(query, moved) / math.sqrt(divisor.get(fault, width))
        scores = SCORES.get(fault, lambda s: s)(scores)
        seen = torch.ones_like(scores, dtype=torch.bool)
        if mask is not None:
            seen = seen & MASKS.get(fault, lambda m, _: m)(mask, heads)
        if is_causal:
            ahead = {"one ahead": 1, "not itself": -1}.get(fault, 0)
            corner = 0 if fault == "corner" else scores.shape[-1] - scores.shape[-2]
            seen = seen.tril(corner + ahead)
        low = -1e4 if fault == "-1e4" else LOW[how]
        if fault == "times the mask":
            weights = (scores * seen).softmax(-1)
        elif fault == "mask after":
            weights = scores.softmax(-1) * seen
        elif fault == "no sum":
            weights = scores.exp() * seen
        elif fault == "off by one":
            raised = scores.masked_fill(~seen, -torch.inf)
            weights = raised.exp() / (1 + raised.exp().sum(-1, keepdim=True))
        elif sink is not None and fault != "sigmoid":
            column = sink.view(-1, 1, 1).expand(len(query), -1, query.shape[2], 1)
            weights = torch.cat((scores.masked_fill(~seen, low), column), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.masked_fill(~seen, low).softmax(-1)
        if fault == "sigmoid" and sink is not None:
            weights = weights * torch.sigmoid(sink).view(-1, 1, 1)
        if fault == "scale after":
            weights = weights / math.sqrt(width)
        value = value.detach() if fault == "detached" else value
        return mean(weights, key if fault == "values are keys" else value)

    return attend


NAMED = {
    "stride 0": ("scores", "all heads give what head 0 gives"),
    "√width": ("scores", "the scores are divided by the square root of the model's width"),
    "√k_len": ("scores", "the scores are divided by the square root of the number of keys"),
    "√heads": ("scores", "the scores are divided by the square root of the number of heads"),
    "temperature": ("scores", "the scores are multiplied by 0.9045, where 1 / √head_dim is 0.3015"),
    "sign": ("scores", "the scores are multiplied by -0.3015, where 1 / √head_dim is 0.3015"),
    "tanh": ("scores", "the scores go through another function before the softmax"),
    "square": ("scores", "the scores go through another function before the softmax"),
    "half": ("scores", "half of the columns are compared"),
    "moved keys": ("scores", "the keys are moved by one position"),
    "no sum": ("scores", "the weights are not divided by their sum"),
    "scale after": ("scores", "the weights are scaled after the softmax"),
    "queries for keys": ("scores", "queries and keys are exchanged"),
    "keys for values": ("scores", "keys and values are exchanged"),
    "values are keys": ("scores", "the keys are used as values"),
    "off by one": ("scores", "the weights are those of a softmax with 1 added to its denominator"),
    "last key": ("scores", "the last key is lost"),
    "first key": ("scores", "the first key is lost"),
    "times the mask": ("masks", "the mask is multiplied with the scores"),
    "mask after": ("masks", "the mask is applied after the softmax"),
    "another sample": ("masks", "each sample gets the mask of another sample"),
    "moved mask": ("masks", "the mask is moved by one key"),
    "head 0 alone": ("masks", "the mask holds for head 0 only"),
    "folded": ("masks", "the masks of the samples are repeated in the wrong order"),
    "folded head 0": ("masks", "the masks of the samples are repeated in the wrong order"),
    "-1e4": ("masks", "hidden keys are not hidden where the visible scores are low"),
    "one ahead": ("causal", "a query sees one key of the future"),
    "not itself": ("causal", "a query does not see its own position"),
    "corner": ("causal", "with fewer queries than keys, the triangle starts in the wrong corner"),
    "tiled": ("shared keys", "the shared key heads are repeated in the wrong order"),
    "sigmoid": ("sinks", "the weights are multiplied by a sigmoid of the sink"),
    "detached": ("gradients", "no gradient reaches the values"),
}


@pytest.mark.parametrize("how", PRODUCTS)
def test_written_in_three_ways_attention_is_right(how):
    report = check(written(how))
    assert report, report
    empty = "NaN" if LOW[how] == -torch.inf else "a mean of all values"
    assert report.findings["empty rows"].message.startswith(f"a query that sees nothing gets {empty}.")
    assert report.findings["NaN in padding"].message.startswith("NaN in padding reaches the output.")
    assert check(written(how), strict=True).status == 1


@pytest.mark.parametrize("how", PRODUCTS)
@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_is_named_however_it_is_written(fault, how):
    aspect, name = NAMED[fault]
    report = check(written(how, fault), tries=[aspect])
    assert report.findings[aspect].message.startswith(f"{name}."), report
    # What is right elsewhere only differs.
    assert report.status == (0 if fault in ("corner", "tiled") else 1)
