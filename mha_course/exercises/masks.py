"""Checkers for the appendix on mask conventions.

They are exercises as data; `engine` explains how they judge an answer.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Generator, Tensor

from attention_check._results import Answer
from mha_course._exercise import randn
from mha_course._sizes import Texts
from mha_lib.multi_head import MultiHeadAttention

exercise = Texts(__name__)

# ------------------------------------------------------------------ four conventions

_CONVENTIONS = ("keep", "hidden", "added", "ones")


def _read(mask: Tensor, source: str) -> Tensor:
    """Which keys a mask shows, as bool."""
    if source == "hidden":
        return ~mask
    if source == "added":
        return mask == 0
    return mask.bool() if source == "ones" else mask


def _write(visible: Tensor, target: str) -> Tensor:
    if target == "hidden":
        return ~visible
    if target == "added":
        return torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    return visible.long() if target == "ones" else visible


def _translate(mask: Tensor, source: str, target: str) -> Tensor:
    return _write(_read(mask, source), target)


def _pair(source: str, target: str, g: Generator) -> tuple[Tensor, str, str]:
    visible = torch.rand(2, 3, 5, generator=g) > 0.4
    return _write(visible, source), source, target


check_translate = exercise(
    "check_translate",
    reference=_translate,
    returns="mask (batch, q_len, k_len)",
    cases={
        f"{a} → {b}": partial(_pair, a, b) for a in _CONVENTIONS for b in _CONVENTIONS
    },
    same_dtype=True,
)

# ------------------------------------------------------------------ padding on the left


def _left_padded(layer: MultiHeadAttention, x: Tensor, attention_mask: Tensor) -> Any:
    keep = attention_mask.bool()[:, None, :]
    return layer(x, x, x, keep, is_causal=True)


def _decoder(g: Generator, heads: int, *lengths: int, size: int) -> tuple[Any, ...]:
    """A layer, tokens, and an attention mask that is padded on the left."""
    layer = MultiHeadAttention(5 * heads, heads)
    mask = (torch.arange(size) >= size - torch.tensor(lengths)[:, None]).long()
    return layer, randn(g, len(lengths), size, 5 * heads), mask


check_left_padding = exercise(
    "check_left_padding",
    reference=_left_padded,
    returns=("output (batch, length, width)", "weights (batch, heads, length, length)"),
)

# ------------------------------------------------------------------ the unknown layer


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, hide: bool, fill: float = -torch.inf
) -> Tensor:
    scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
    return scores.masked_fill(mask == hide, fill).softmax(-1) @ v


def _layers() -> dict[str, Answer]:
    """Label -> a function attend(q, k, v, mask) with some convention."""
    attention = torch.nn.functional.scaled_dot_product_attention
    return {
        "a layer that shows where the mask is True": attention,
        "a layer that hides where the mask is True": lambda q, k, v, mask: _attend(
            q, k, v, mask, True
        ),
        "a layer that adds the mask to the scores": lambda q, k, v, mask: attention(
            q, k, v, mask.to(q.dtype)
        ),
        "a layer that ignores the mask": lambda q, k, v, mask: attention(q, k, v),
        "a layer that hides by -10000": lambda q, k, v, mask: _attend(
            q, k, v, mask, True, -1e4
        ),
    }


def _probe(attend: Answer, *mask: bool) -> Tensor:
    """The weights of one query, seen through values that are the rows of an identity matrix."""
    size = len(mask)
    query, key = torch.zeros(1, 1, 1, size), torch.zeros(1, 1, size, size)
    value = torch.eye(size)[None, None]
    weights: Tensor = attend(query, key, value, torch.tensor(mask)[None, None, None])
    return weights[0, 0, 0]


def _convention(attend: Answer) -> str:
    first = float(_probe(attend, True, False, False, False)[0])
    if first == 1:
        return "keep"
    if first == 0:
        return "hidden"
    return "ignored" if abs(first - 0.25) < 1e-3 else "added"


check_convention = exercise(
    "check_convention",
    reference=_convention,
    returns="convention",
    cases={label: lambda g, label=label: _layers()[label] for label in _layers()},
)
