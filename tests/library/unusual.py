"""Attention as people write it: all of it right, each with a contract of its own; written for these tests."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class FusedCausal(nn.Module):
    """A layer of a small GPT: one input, fused projections, a triangle in a buffer, nothing to choose."""

    def __init__(self, width=33, n_head=3, longest=96):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head = n_head
        self.register_buffer("triangle", torch.ones(longest, longest).tril()[None, None])

    def forward(self, x):
        batch, length, width = x.shape
        heads = (
            part.view(batch, length, self.n_head, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        query, key, value = heads
        scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(key.size(-1)))
        scores = scores.masked_fill(self.triangle[:, :, :length, :length] == 0, float("-inf"))
        merged = (F.softmax(scores, dim=-1) @ value).transpose(1, 2).contiguous()
        return self.c_proj(merged.view(batch, length, width))


class FourLinear(nn.Module):
    """Four projections in a list, and a mask (batch, q_len, k_len) that is 0 where it hides."""

    def __init__(self, h=3, width=33):
        super().__init__()
        self.h, self.d_k = h, width // h
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        batch = query.size(0)
        mask = None if mask is None else mask.unsqueeze(1)
        query, key, value = (
            linear(x).view(batch, -1, self.h, self.d_k).transpose(1, 2)
            for linear, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), value)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(batch, -1, self.h * self.d_k))


class OfPatches(nn.Module):
    """A layer of a vision model: one input, fused projections as one axis of 3, and no mask."""

    def __init__(self, dim=33, num_heads=3):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.5)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        weights = ((query * self.scale) @ key.transpose(-2, -1)).softmax(dim=-1)
        return self.proj_drop(self.proj((weights @ value).transpose(1, 2).reshape(batch, length, width)))


class OfSequences(nn.Module):
    """One input, a mask of the tokens (batch, len) that is 1 at tokens, and names of an encoder."""

    def __init__(self, hidden=33, num_attention_heads=3):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, hidden_states, attention_mask=None):
        def split(x):
            return x.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)

        query, key, value = (split(make(hidden_states)) for make in (self.query, self.key, self.value))
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -1e30
        return self.dense((scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)), scores


def causal_only(q, k, v):
    """A function that always hides the future."""
    length = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.triu(torch.ones(length, k.shape[-2], dtype=torch.bool), k.shape[-2] - length + 1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ v


def keys_before_queries(key, query, value, *, mask=None):
    """Arguments in another order, a mask by keyword only."""
    return F.scaled_dot_product_attention(query, key, value, mask)


def added(queries, keys, values, bias_mask=None):
    """Positions before heads, and a mask that is added."""
    heads = [x.transpose(1, 2) for x in (queries, keys, values)]
    scores = heads[0] @ heads[1].mT * heads[0].shape[-1] ** -0.5
    scores = scores if bias_mask is None else scores + bias_mask
    return (scores.softmax(-1) @ heads[2]).transpose(1, 2), scores


def plain(q, k, v, dropout=0.0, scale=None):
    """No mask; the fourth argument is something else."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return F.dropout((q @ k.mT * scale).softmax(-1), dropout) @ v


def of_needed_mask(q, k, v, mask):
    """A mask that must be given."""
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def of_lengths(q, k, v, key_padding_mask=None):
    """A mask of the keys (batch, k_len), True at keys."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if key_padding_mask is not None:
        scores = scores.masked_fill(~key_padding_mask[:, None, None, :], -torch.inf)
    return scores.softmax(-1) @ v


def of_counts(q, k, v, valid_lens, one_more=0):
    """A number of visible keys for each sample, which must be given and may be None, as in d2l."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if valid_lens is not None:
        hidden = torch.arange(k.shape[-2]) >= valid_lens.view(-1, 1, 1, 1) + one_more
        scores = scores.masked_fill(hidden, -1e6)
    return scores.softmax(-1) @ v


@torch.no_grad()
def without_gradients(q, k, v):
    """Attention that is only for inference."""
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def torchs_layer():
    """Torch's own layer."""
    return nn.MultiheadAttention(33, 3, batch_first=True)


def half_layer():
    """A layer in bfloat16."""
    return FourLinear().to(torch.bfloat16)


HEADS_FIRST = "(batch, heads, len, head_dim)"
LAYER_OF_ONE = "one input, (batch, len, width) · 3 heads"

# Name -> (how it is made, a part of the contract, the aspects that are right).
RIGHT = {
    "torch's kernel": (
        lambda: F.scaled_dot_product_attention, "causal by `is_causal`", "scores masks gradients",
    ),
    "torch's layer": (torchs_layer, "layer, query, key, value", "scores masks gradients"),
    "fused, causal": (
        FusedCausal, f"{LAYER_OF_ONE} · fused q, k, v · no mask · causal always", "scores causal gradients",
    ),
    "four in a list": (FourLinear, "(batch, q_len, k_len), True = visible", "scores masks gradients"),
    "bfloat16": (half_layer, "bfloat16", "scores masks gradients"),
    "float64": (lambda: FourLinear().double(), "float64", "scores masks gradients"),
    "of patches": (OfPatches, "fused q, k, v · no mask · causal never", "scores gradients"),
    "of sequences": (OfSequences, "`attention_mask` (batch, k_len), True = visible", "scores masks"),
    "causal only": (
        lambda: causal_only, f"{HEADS_FIRST} · no mask · causal always", "scores causal gradients",
    ),
    "keys before queries": (
        lambda: keys_before_queries, "`mask` (batch, heads, q_len, k_len)", "scores masks",
    ),
    "a mask that is added": (
        lambda: added, "`bias_mask` (batch, heads, q_len, k_len), 0 or -inf", "scores masks",
    ),
    "no mask": (lambda: plain, "no mask", "scores gradients"),
    "a needed mask": (lambda: of_needed_mask, "mask `mask`", "scores masks"),
    "a mask of keys": (lambda: of_lengths, "(batch, k_len)", "scores masks"),
    "numbers of keys": (lambda: of_counts, "`valid_lens` (batch), numbers of visible keys", "scores masks"),
    "for inference": (lambda: without_gradients, "no mask", "scores"),
}  # fmt: skip
