"""Attention as other people write it, with and without a fault: the judge names what is wrong."""

import numpy as np
import pytest
import torch
from test_conformance import said
from torch import nn
from torch.nn import functional as F
from unusual import FourLinear, FusedCausal, OfPatches, causal_only

from attention_check import check


class FlashCausal(FusedCausal):
    """The same with torch's kernel, which is told that it is causal; `order` says which third is which."""

    order = (0, 1, 2)

    def heads(self, x):
        thirds = [
            part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1)
        ]
        query, key, value = (thirds[place] for place in self.order)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def forward(self, x):
        return self.c_proj(self.heads(x).transpose(1, 2).reshape(x.shape))


class KeysFirst(FlashCausal):
    """A fused projection that holds keys, queries and values in this order."""

    order = (1, 0, 2)


class NamedInFull(FlashCausal):
    """Four matrices with other names, as in Build a Large Language Model (From Scratch)."""

    def __init__(self):
        super().__init__()
        del self.c_attn, self.c_proj
        self.W_query, self.W_key, self.W_value, self.W_out = (nn.Linear(33, 33) for _ in range(4))

    def forward(self, x):
        split = (
            W(x).unflatten(-1, (3, 11)).transpose(1, 2) for W in (self.W_query, self.W_key, self.W_value)
        )
        return self.W_out(causal_only(*split).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize(("make", "contract"), [
    (FlashCausal, "causal always"), (KeysFirst, "fused k, q, v"), (NamedInFull, "no mask · causal always"),
])  # fmt: skip
def test_what_is_right_is_found_to_be(make, contract):
    torch.manual_seed(0)
    report = check(make())
    assert report, report
    assert contract in report.contract


def test_a_mean_for_empty_rows_as_flax_gives_it():
    def attend(query, key, value, mask=None):
        scores = query @ np.swapaxes(key, -2, -1) / np.sqrt(query.shape[-1])
        if mask is not None:
            scores = np.where(mask, scores, np.finfo(scores.dtype).min)
        parts = np.exp(scores - scores.max(-1, keepdims=True))
        return parts / parts.sum(-1, keepdims=True) @ value

    found = said(check(attend, arrays="numpy"))
    assert found["empty rows"] == "a query that sees nothing gets a mean of all values"


def test_a_nan_in_the_gradient_is_named():
    def attend(query, key, value, mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1).nan_to_num(0.0) @ value

    found = said(check(attend, tries=["gradients"]))
    assert found == {"gradients": "the gradient of a query that sees nothing is NaN"}


class Unscaled(OfPatches):
    def __init__(self):
        super().__init__()
        self.scale = 1.0


class MergedWrongly(FlashCausal):
    def forward(self, x):
        return self.c_proj(self.heads(x).reshape(x.shape))


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
