"""Attention in the ways in which people write it: what is right is called right, without any declaration."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unusual import RIGHT, FlashCausal, FourLinear, FusedCausal, OfPatches, causal_only

from attention_check import check


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_ends_with_status_0(name):
    make, contract, aspects = RIGHT[name]
    torch.manual_seed(0)
    report = check(make())
    assert contract in report.contract
    assert [aspect for aspect in aspects.split() if not report.findings[aspect]] == [], report
    assert report.status == 0, report


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
