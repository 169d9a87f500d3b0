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


class OverMemory(nn.Module):
    """Queries from a normed input, keys and values from a second one of another width, and a residual."""

    def __init__(self, width=48, other=32, fault=""):
        super().__init__()
        self.num_heads, self.fault, self.norm = 4, fault, nn.LayerNorm(width)
        self.to_q, self.to_out = nn.Linear(width, width), nn.Linear(width, width)
        self.to_k, self.to_v = nn.Linear(other, width), nn.Linear(other, width)

    def forward(self, x, context):
        query = x if self.fault else self.norm(x)
        given = (self.to_q, query), (self.to_k, context), (self.to_v, context)
        query, key, value = (part(one).unflatten(-1, (4, -1)).transpose(1, 2) for part, one in given)
        heads = F.scaled_dot_product_attention(query, key, value)
        return x + self.to_out(heads.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("other", [48, 32])
def test_a_second_input_of_another_width_is_right(other):
    report = check(OverMemory(other=other))
    assert report, report
    assert "`norm` before queries · adds its input" in report.contract


class OneNorm(FourLinear):
    """A norm before the projections, by a fault of queries alone."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(33)

    def forward(self, x):
        return super().forward(self.norm(x), x, x)


def test_keys_before_the_norm_are_a_fault():
    said = check(OneNorm()).findings["scores"].message
    assert said.startswith("keys and values come from the input before its norm."), said


def limited(fault=""):
    """Attention in a window whose scores are limited."""

    def attend(query, key, value):
        scores = query @ key.mT
        scores = scores if fault == "before" else scores / query.shape[-1] ** 0.5
        scores = 5 * torch.tanh(scores if fault == "inside" else scores / 5)
        scores = scores / query.shape[-1] ** 0.5 if fault == "before" else scores
        first = key.shape[2] - query.shape[2]  # queries and keys end together
        behind = first + torch.arange(query.shape[2]).unsqueeze(1) - torch.arange(key.shape[2])
        seen = (behind >= 0) & (behind <= 3 + (fault == "one more"))
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value

    return attend


@pytest.mark.parametrize(("fault", "name"), [
    ("before", "the scores are limited before they are scaled"),
    ("inside", "the scores are limited in another way"),
    ("one more", "the window has one key too many or too few"),
])  # fmt: skip
def test_a_limit_or_a_window_with_a_fault_is_named(fault, name):
    declared = {"softcap": 5.0, "window": (3, 0)}
    assert check(limited(), **declared)
    said = check(limited(fault), **declared).findings["scores"].message
    assert said.startswith(f"{name}."), said


def shared_by_turns(query, key, value):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat(1, group, 1, 1), value.repeat_interleave(group, 1)
    return F.scaled_dot_product_attention(query, key, value)


def hides_in_squares(query, key, value, is_causal=False):
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal and query.shape[2] == key.shape[2]
    )


def joined_masks(query, key, value, mask=None):
    mask = mask if mask is None else mask.any(1, keepdim=True)
    return F.scaled_dot_product_attention(query, key, value, mask)


def hides_queries(q, k, v, key_padding_mask=None):
    mask = None if key_padding_mask is None else key_padding_mask[:, None, :, None]
    return F.scaled_dot_product_attention(q, k, v, mask).nan_to_num()


@pytest.mark.parametrize(("attention", "aspect", "said"), [
    (shared_by_turns, "shared keys", "only the keys, or the values, are repeated in the wrong order."),
    (hides_in_squares, "causal", "for fewer queries than keys, the future is not hidden."),
    (joined_masks, "masks", "the masks of all heads are joined."),
    (hides_queries, "masks", ""),
])  # fmt: skip
def test_a_fault_of_some_cases_is_found(attention, aspect, said):
    found = check(attention).findings[aspect]
    assert found.kind == "wrong" and found.message.startswith(said), found
