"""Attention in the ways in which people write it: what is right is called right, without any declaration."""

import importlib
import math
import sys
import tomllib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unusual import RIGHT, FlashCausal, FourLinear, FusedCausal, OfPatches, causal_only, of_counts

from attention_check import check, main


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


class Unscaled(OfPatches):
    def __init__(self):
        super().__init__()
        self.scale = 1.0


class MergedWrongly(FlashCausal):
    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.n_head, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        merged = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(merged.reshape(batch, length, width))


class SeesTheFuture(FusedCausal):
    def __init__(self):
        super().__init__()
        self.triangle.fill_(1.0)
        self.triangle[0, 0, 0, 1:] = 0.0  # only the first query is limited


class HidesItself(FusedCausal):
    def __init__(self):
        super().__init__()
        self.triangle.copy_(torch.ones(96, 96).tril(-1))
        self.triangle[0, 0, 0, 0] = 1.0


class MaskOfTheFirst(FourLinear):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, None if mask is None else mask[:1])


def unscaled_causal(q, k, v):
    return causal_only(q * q.shape[-1] ** 0.5, k, v)


WRONG = {
    "unscaled": (Unscaled, "scores", "the scores are not scaled"),
    "merged": (MergedWrongly, "scores", "the heads are merged without moving their axis"),
    "future": (SeesTheFuture, "scores", ""),
    "itself": (HidesItself, "scores", ""),
    "first": (MaskOfTheFirst, "masks", ""),
    "no scale": (lambda: unscaled_causal, "scores", "the scores are not scaled"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_in_them_is_found(name):
    make, aspect, said = WRONG[name]
    torch.manual_seed(0)
    report = check(make())
    assert report.status == 1, report
    assert report.findings[aspect].kind == "wrong"
    assert said in report.findings[aspect].message


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


def test_a_layer_of_unknown_names_is_told_what_to_declare():
    class Odd(nn.Module):
        def forward(self, x):
            return x

    with pytest.raises(ValueError, match="projections must hold q_proj"):
        check(Odd())


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
], ids=["more queries", "many keys", "one key", "one head", "wide heads", "not contiguous"])  # fmt: skip
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
    for options in ({}, other):
        assert not check(attend, tries=["scores"], **options)


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
    assert {name for name, found in report.findings.items() if found} == {"scores", "gradients"}


def with_weights(q, k, v, kind):
    products = q @ k.mT
    scores = products / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    beside = {
        "weights": weights, "scores": scores, "products": products, "of queries": scores.softmax(-2),
        "of another head": weights.roll(1, 1),
    }  # fmt: skip
    return weights @ v, beside[kind]


@pytest.mark.parametrize("kind", ["weights", "scores", "products", "of queries", "of another head"])
def test_the_weights_that_are_returned_are_judged(kind):
    report = check(lambda query, key, value: with_weights(query, key, value, kind), tries=["scores"])
    assert bool(report) == (not kind.startswith("of")), report
    if not report:
        assert "second result" in report.findings["scores"].message


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


def written(how, fault=""):
    """Attention in one of three ways, right or with a fault."""
    product, mean = PRODUCTS[how]

    def attend(query, key, value, mask=None, is_causal=False):
        if fault in ("last key", "first key"):
            kept = slice(0, -1) if fault == "last key" else slice(1, None)
            key, value = key[:, :, kept], value[:, :, kept]
            mask = None if mask is None else mask[..., kept]
        if fault == "queries for keys":
            query, key = key, query
        if fault == "keys for values":
            key, value = value, key
        divisor = {"√k_len": key.shape[2], "√heads": key.shape[1], "scale after": 1}
        scores = product(query, key) / math.sqrt(divisor.get(fault, query.shape[-1]))
        seen = torch.ones_like(scores, dtype=torch.bool)
        if mask is not None:
            seen = seen & (mask.roll(1, 0) if fault == "another sample" else mask)
        if is_causal:
            ahead = {"one ahead": 1, "not itself": -1}.get(fault, 0)
            seen = seen.tril(scores.shape[-1] - scores.shape[-2] + ahead)
        if fault == "times the mask":
            weights = (scores * seen).softmax(-1)
        elif fault == "mask after":
            weights = scores.softmax(-1) * seen
        elif fault == "off by one":
            raised = scores.masked_fill(~seen, -torch.inf)
            weights = raised.exp() / (1 + raised.exp().sum(-1, keepdim=True))
        else:
            weights = scores.masked_fill(~seen, LOW[how]).softmax(-1)
        if fault == "scale after":
            weights = weights / math.sqrt(query.shape[-1])
        return mean(weights, key if fault == "values are keys" else value)

    return attend


NAMED = {
    "√k_len": ("scores", "the scores are divided by the square root of the number of keys"),
    "√heads": ("scores", "the scores are divided by the square root of the number of heads"),
    "scale after": ("scores", "the weights are scaled after the softmax"),
    "queries for keys": ("scores", "queries and keys are exchanged"),
    "keys for values": ("scores", "keys and values are exchanged"),
    "values are keys": ("scores", "the keys are used as values"),
    "off by one": ("scores", "the weights are those of a softmax with 1 added to its denominator"),
    "last key": ("scores", "the last key is lost"),
    "first key": ("scores", "the first key is lost"),
    "times the mask": ("masks", "the mask is multiplied with the scores"),
    "mask after": ("masks", "the mask is applied after the softmax"),
    "another sample": ("masks", "each sample gets the mask of another one"),
    "one ahead": ("causal", "a query sees one key of the future"),
    "not itself": ("causal", "a query does not see its own position"),
}


@pytest.mark.parametrize("how", PRODUCTS)
def test_written_in_three_ways_attention_is_right(how):
    report = check(written(how))
    assert report, report


@pytest.mark.parametrize("how", PRODUCTS)
@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_is_named_however_it_is_written(fault, how):
    aspect, name = NAMED[fault]
    report = check(written(how, fault), tries=[aspect])
    assert report.findings[aspect].message.startswith(f"{name}."), report
