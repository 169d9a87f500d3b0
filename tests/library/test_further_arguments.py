"""Arguments of an attention besides those of the formula are tried, or named where they are not."""

import pytest
import torch
from torch import nn

from attention_check import check


class Attention(nn.Module):
    """A layer with a second input, a norm, masks, a bias and rotary positions, right or with a fault."""

    def __init__(self, fault="", causal=False):
        super().__init__()
        self.heads, self.fault, self.causal, self.kept = 4, fault, causal, None
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(32, 32) for _ in range(4))

    def project(self, x, memory):
        given = (self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory)
        return (part(one).unflatten(-1, (4, 8)).transpose(1, 2) for part, one in given)

    def attend(self, query, key, value, added=0.0, before=0.0):
        weights = ((query @ key.mT + before) / 8**0.5 + added).softmax(-1)
        return self.out_proj((weights @ value).transpose(1, 2).flatten(-2)), weights


class WithMasks(Attention):
    def forward(self, x, context=None, mask=None, context_mask=None, attn_bias=None, temperature=None):
        added, before = 0.0, 0.0
        for name, one in (("first", mask), ("second", context_mask)):
            if one is not None:
                hidden = one[:, None, None] if self.fault == name else ~one[:, None, None]
                added = added + torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
        if attn_bias is not None and not (self.fault == "beside" and mask is not None):
            added = added - attn_bias if self.fault == "minus" else added + attn_bias
        return self.attend(*self.project(x, x if context is None else context), added, before)[0]


class WithNorm(Attention):
    def __init__(self, fault=""):
        super().__init__(fault)
        self.norm = nn.LayerNorm(32)

    def forward(self, x, context=None):
        normed = self.norm(x)
        if context is None:
            context = x if self.fault else normed
        return self.attend(*self.project(normed, context))[0]


class Idle(WithNorm):
    def forward(self, x):
        self.norm(x)
        return self.attend(*self.project(x, x))[0]


class Added(Attention):
    def forward(self, x, attention_mask=None):
        added = 0.0 if attention_mask is None else attention_mask
        place = "before" if self.fault else "added"
        return self.attend(*self.project(x, x), **{place: added})[0]


class Rotated(Attention):
    def forward(self, x, position_embeddings):
        if self.fault == "kept" and self.kept is not None and self.kept[0].shape[1] == x.shape[1]:
            position_embeddings = self.kept
        self.kept = position_embeddings
        cos, sin = (a[:1, None] if self.fault == "first" else a[:, None] for a in position_embeddings)
        query, key, value = self.project(x, x)
        query, key = (a * cos + torch.cat((-a[..., 4:], a[..., :4]), -1) * sin for a in (query, key))
        return self.attend(query, key, value)[0]


class Halves(Attention):
    def forward(self, x):
        query, key, value = self.project(x, x)
        weights = query @ key.mT / 8**0.5
        parts = list(weights)  # in halves, the middle one of three samples is left out
        parts = [part if len(x) == 3 and i == 1 else part.softmax(-1) for i, part in enumerate(parts)]
        weights = torch.stack(parts)
        return self.out_proj((weights @ value).transpose(1, 2).flatten(-2))


class Cached(Attention):
    """Keys and values are kept in a dict that the caller hands on, or returned to be given back."""

    kind = "kept"

    def forward(self, x, cache=None):
        query, key, value = self.project(x, x)
        if cache:
            old_key, old_value = cache["keys"] if self.kind == "kept" else cache
            old_key = old_key[:, :, 1:] if self.fault == "first" else old_key
            old_value = old_value[:, :, 1:] if self.fault == "first" else old_value
            if self.fault != "newest":
                pairs = (old_key, key), (old_value, value)
                pairs = ((key, old_key), pairs[1]) if self.fault == "order" else pairs
                key, value = (torch.cat(pair, 2) for pair in pairs)
        if self.kind == "kept" and cache is not None:
            cache["keys"] = key, value
        output, weights = self.attend(query, key, value)
        return (output, weights) if self.kind == "kept" else (output, (key, value))


class Handed(Cached):
    kind = "returned"


class Past(Handed):
    def forward(self, x, past_kv=None):
        return super().forward(x, past_kv)


class CachedTurned(Rotated):
    def forward(self, x, cache=None):
        start = cache["keys"].shape[2] if cache and self.fault != "start" else 0
        query, key, value = self.project(x, x)
        angles = torch.outer(torch.arange(start, start + x.shape[1]), 10_000.0 ** (-torch.arange(4) / 4))
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        query, key = (a * cos + torch.cat((-a[..., 4:], a[..., :4]), -1) * sin for a in (query, key))
        if cache:
            key, value = torch.cat((cache["keys"], key), 2), torch.cat((cache["values"], value), 2)
        if cache is not None:
            cache |= {"keys": key, "values": value}
        return self.attend(query, key, value)[0]


class Returned(Attention):
    def forward(self, x):
        output, weights = self.attend(*self.project(x, x))
        output = output.squeeze() if self.fault == "squeeze" else output
        return output, weights.mT if self.fault else weights


@pytest.mark.parametrize(("layer", "said"), [
    (WithMasks("second"), "True in `context_mask` means hidden, in `mask` visible: it is inverted"),
    (WithMasks("minus"), "`attn_bias` is subtracted"),
    (WithMasks("beside"), "`attn_bias` is ignored beside a mask"),
    (WithNorm("raw"), "without `context`, keys and values come from the input before its norm"),
    (Idle(), "the parameters of `norm` change nothing"),
    (Added("scaled"), "`attention_mask` is scaled too"),
    (Cached("newest"), "with `cache`, only the newest key is seen"),
    (Cached("order"), "with `cache`, tokens one by one give other numbers than together"),
    (Handed("first"), "with `cache`, tokens one by one give other numbers than together"),
    (Past("order"), "with `past_kv`, tokens one by one give other numbers than together"),
    (CachedTurned("start"), "with `cache`, the positions begin at 0 in every call"),
    (Rotated("kept"), "`position_embeddings` of an earlier call is used"),
    (Rotated("first"), "all samples are rotated by the positions of the first one"),
    (Halves(), "wrong with 3 samples"),
    (Returned("weights"), "its second result holds the right numbers with its axes swapped"),
    (Returned("squeeze"), "an axis of length 1 is lost"),
])  # fmt: skip
def test_a_fault_in_a_further_argument_is_named(layer, said):
    report = check(layer)
    assert report.status == 1
    assert said in " ".join(found.message for found in report.findings.values()), report


@pytest.mark.parametrize("kind", [
    WithMasks, WithNorm, Added, Cached, Handed, Past, CachedTurned, Rotated, Returned,
])  # fmt: skip
def test_right_arguments_are_right(kind):
    report = check(kind())
    assert report.status == 0, report
    untried = "but not tried for calls with `temperature`: no case sets it" if kind is WithMasks else ""
    assert report.findings["scores"].message == untried


class Strange(Attention):
    def forward(self, x, mask=None):
        assert mask is None or mask.shape == (1, 2, 3)
        output = self.attend(*self.project(x, x))[0]
        return output.relu() if self.fault else output


def test_a_mask_without_a_form_that_works_is_said():
    report = check(Strange())
    assert report.findings["masks"].message == "no form of `mask` was found that works"
    for layer in (Strange(), Strange("wrong scores"), Added("scaled")):
        unknown = "mask `mask` of an unknown form" in check(layer).contract
        assert unknown == isinstance(layer, Strange)


class Needy(Cached):
    def forward(self, x, cache=None, cache_key=None):
        return super().forward(x, {} if cache_key is None else cache)


def test_a_cache_that_needs_more_is_not_tried():
    said = check(Needy()).findings["scores"].message
    assert said.startswith("but not tried for calls with `cache`: no case has a cache"), said
