"""Checkers for the pieces that readers write on the way to their own layer, in the order of the chapters.

Later pages use each of them, so an answer may be written in another style, but it must return what they need.
`solution` in `own` keeps it from being replaced.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from mha_lib._judging import rows_sum_to_one
from mha_lib._texts import Texts

exercise = Texts(__name__)

# ------------------------------------------------------------------ chapter 1


def _pooling(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT
    weights = scores.softmax(-1)
    return weights @ value, weights


check_my_pooling = exercise(
    "check_my_pooling",
    reference=_pooling,
    returns=("output (q_len, value_dim)", "weights (q_len, k_len)"),
    properties=(rows_sum_to_one(1),),
)

# ------------------------------------------------------------------ chapter 2


def _lens_mask(valid_lens: Tensor, k_len: int) -> Tensor:
    visible = torch.arange(k_len) < valid_lens[..., None]
    return visible[:, None, :] if valid_lens.ndim == 1 else visible


check_lens_mask = exercise(
    "check_lens_mask", reference=_lens_mask, returns="mask (batch, 1 or q_len, k_len)"
)


def _causal_mask(q_len: int, k_len: int | None = None) -> Tensor:
    k_len = q_len if k_len is None else k_len
    place = torch.arange(q_len)[:, None] + (k_len - q_len)
    return torch.arange(k_len) <= place


check_causal_mask = exercise(
    "check_causal_mask", reference=_causal_mask, returns="mask (q_len, k_len)"
)


def _masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.softmax(-1)
    hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return hidden.softmax(-1) * mask


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / sqrt(query.shape[-1])
    weights = _masked_softmax(scores, mask)
    return weights @ value, weights


check_attention = exercise(
    "check_attention",
    reference=_attention,
    returns=("output (..., q_len, value_dim)", "weights (..., q_len, k_len)"),
    properties=(rows_sum_to_one(1),),
    gradients=True,
    atol=1e-4,
)

# ------------------------------------------------------------------ chapter 3


class _Head(nn.Module):
    def __init__(
        self,
        embed_dim: int,
        head_dim: int,
        kdim: int | None = None,
        vdim: int | None = None,
    ) -> None:
        super().__init__()
        self.q_proj = nn.Linear(embed_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(kdim or embed_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(vdim or embed_dim, head_dim, bias=False)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        return _attention(q, k, v, mask)


def _run_head(
    answer: Any,
    widths: tuple[int, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
) -> Any:
    """Make a head of these widths, give its projections fixed numbers, and call it."""
    head = answer(*widths)
    generator = torch.Generator().manual_seed(0)
    for name in ("q_proj", "k_proj", "v_proj"):
        if (proj := getattr(head, name, None)) is None:
            raise NotImplementedError(f"`__init__` makes no `{name}`")
        with torch.no_grad():
            proj.weight.normal_(generator=generator)
            if proj.bias is not None:
                proj.bias.fill_(1.0)
    return head(query, key, value, mask)


check_head = exercise(
    "check_head",
    reference=_Head,
    returns=("output (batch, q_len, head_dim)", "weights (batch, q_len, k_len)"),
    run=_run_head,
    takes="class",
    atol=1e-4,
)


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    x = x.unflatten(-1, (num_heads, -1))
    return x.transpose(1, 2)


check_split_heads = exercise(
    "check_split_heads",
    reference=_split_heads,
    returns="heads (batch, num_heads, len, head_dim)",
)


def _merge_heads(x: Tensor) -> Tensor:
    x = x.transpose(1, 2)
    return x.flatten(-2)


check_merge_heads = exercise(
    "check_merge_heads",
    reference=_merge_heads,
    returns="merged (batch, len, embed_dim)",
)

# ------------------------------------------------------------------ chapter 5


def _table(max_len: int, embed_dim: int) -> Tensor:
    column = torch.arange(embed_dim)
    frequency = 10_000.0 ** (-2 * (column // 2) / embed_dim)
    angle = torch.arange(max_len)[:, None] * frequency
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


class _Positions(nn.Module):
    def __init__(self, embed_dim: int, max_len: int) -> None:
        super().__init__()
        self.encoding: Tensor
        self.register_buffer("encoding", _table(max_len, embed_dim), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.encoding[: x.shape[1]]


def _run_positions(
    answer: Any, sizes: tuple[int, int], x: Tensor, device: str = "cpu"
) -> Any:
    """Make the module and call it on a device; on "meta" there are no numbers, and zeros stand for them."""
    added = answer(*sizes).to(device)(x.to(device))
    return added if device == "cpu" else torch.zeros(added.shape)


check_my_positions = exercise(
    "check_my_positions",
    reference=_Positions,
    returns="sum (batch, len, embed_dim)",
    run=_run_positions,
    takes="class",
    atol=1e-4,
)

__all__ = [name for name in dir() if name.startswith("check_")]
