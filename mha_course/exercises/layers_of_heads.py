"""Checkers for the exercises on several heads: how the layer is built, and what its heads learn.

Chapter 3 uses the first seven, chapter 8 and its controls the last two. What each checker tries is in the
dictionary `cases` of its exercise; the sizes are primes wherever one of them does not have to divide another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from attention_check._results import Answer
from mha_course._exercise import randn
from mha_course._sizes import Texts
from mha_lib.multi_head import MultiHeadAttention

exercise = Texts(__name__)

Loss: TypeAlias = Callable[[list[int]], float]
Order: TypeAlias = list[int]

# ------------------------------------------------------------------ chapter 3, exercise 1


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) / sqrt(query.shape[-1])
    return scores.softmax(-1) @ value


def _sum_over_heads(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    rows = [proj.weight.split(layer.head_dim, dim=0) for proj in projections]
    columns = layer.out_proj.weight.split(layer.head_dim, dim=1)
    output: Any = 0
    for w_q, w_k, w_v, w_o in zip(*rows, columns, strict=True):
        head = _attend(query @ w_q.T, key @ w_k.T, value @ w_v.T)
        output = output + head @ w_o.T
    return output


check_sum_over_heads = exercise(
    "check_sum_over_heads",
    reference=_sum_over_heads,
    returns="output (batch, q_len, embed_dim)",
)

# ------------------------------------------------------------------ chapter 3, exercise 2


def _what_happens(
    checked_head_dim: Answer, embed_dim: int, num_heads: int
) -> str | None:
    """A description of what an answer does with two numbers."""
    try:
        width = checked_head_dim(embed_dim, num_heads)
    except (ValueError, ZeroDivisionError, AssertionError) as error:
        named = all(
            re.search(rf"(?<![\d-]){number}(?!\d)", str(error))
            for number in (embed_dim, num_heads)
        )
        kind = type(error).__name__
        return f"a {kind} that {'names' if named else 'does not name'} both numbers"
    return None if width is None else f"the width {width!r}"


def _head_dim(embed_dim: int, num_heads: int) -> int:
    if num_heads <= 0 or embed_dim % num_heads:
        raise ValueError(f"{num_heads} heads do not divide a width of {embed_dim}")
    return embed_dim // num_heads


check_head_dim = exercise(
    "check_head_dim", reference=_head_dim, returns="outcome", run=_what_happens
)

# ------------------------------------------------------------------ chapter 3, exercise 3


def _layer_sizes(
    embed_dim: int, num_heads: int, num_layers: int, length: int
) -> tuple[float, tuple[int, ...], float, float]:
    head_dim = embed_dim // num_heads
    weights = (1, num_heads, length, length)
    numbers = num_layers * num_heads * length**2
    return head_dim, weights, 4 * (embed_dim**2 + embed_dim), 4 * numbers / 2**20


check_layer_sizes = exercise(
    "check_layer_sizes",
    reference=_layer_sizes,
    returns=("head_dim", "weights_shape", "parameters", "mebibytes"),
)

# ------------------------------------------------------------------ chapter 3, exercise 4


def _free_widths(e: int, h: int, p: int, d_k: int, d_v: int) -> tuple[int, float]:
    return h * p * (e + d_k + d_v + e), p / 2


check_free_widths = exercise(
    "check_free_widths", reference=_free_widths, returns=("parameters", "new_width")
)

# ------------------------------------------------------------------ chapter 3, exercise 5


def _run_from_lists(
    from_lists: Answer,
    w_q: list[Tensor],
    w_k: list[Tensor],
    w_v: list[Tensor],
    w_o: Tensor,
    query: Tensor,
    memory: Tensor,
) -> Any:
    torch.manual_seed(0)  # for whatever an answer does not copy
    layer = from_lists(w_q, w_k, w_v, w_o)
    if layer is None:
        return None
    if not isinstance(layer, nn.Module):
        raise TypeError(
            f"the function should return a layer, got {type(layer).__name__}"
        )
    with torch.no_grad():
        return layer(query, memory, memory)[0]


def _from_lists(
    w_q: list[Tensor], w_k: list[Tensor], w_v: list[Tensor], w_o: Tensor
) -> MultiHeadAttention:
    layer = MultiHeadAttention(w_o.shape[1], len(w_q))
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    with torch.no_grad():
        for proj, parts in zip(projections, (w_q, w_k, w_v), strict=True):
            proj.weight.copy_(torch.cat(parts, dim=1).T)
        layer.out_proj.weight.copy_(w_o.T)
    return layer


def _matrices(g: torch.Generator, num_heads: int, head_dim: int) -> tuple[Any, ...]:
    width = num_heads * head_dim
    lists = [
        [randn(g, width, head_dim) / 3 for _ in range(num_heads)] for _ in range(3)
    ]
    inputs = randn(g, width, width) / 3, randn(g, 2, 5, width), randn(g, 2, 7, width)
    return (*lists, *inputs)


check_from_lists = exercise(
    "check_from_lists",
    reference=_from_lists,
    returns="output (batch, q_len, embed_dim)",
    run=_run_from_lists,
)

# ------------------------------------------------------------------ chapter 3, exercise 6


def _possible(weights: Tensor, valid_lens: Tensor) -> bool:
    padding = torch.arange(weights.shape[-1]) >= valid_lens.view(-1, 1, 1, 1)
    unseen = (weights.masked_select(padding) == 0).all()
    sums_to_one = ((weights.sum(-1) - 1).abs() < 1e-4).all()
    return bool(unseen & sums_to_one & (weights >= 0).all())


def _maps(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights that a layer could return, of two samples with three and two keys out of seven."""
    lens = torch.tensor([3, 2])
    scores = randn(g, 2, 3, 5, 7)
    padding = torch.arange(7) >= lens.view(-1, 1, 1, 1)
    return scores.masked_fill(padding, -torch.inf).softmax(-1), lens


def _move(weights: Tensor, start: int, end: int, amount: float) -> Tensor:
    """The same weights, except that the last query of the last head moves some weight to a different key."""
    weights = weights.clone()
    weights[-1, -1, -1, start] -= amount
    weights[-1, -1, -1, end] += amount
    return weights


def _exchanged(g: torch.Generator) -> tuple[Tensor, Tensor]:
    weights, lens = _maps(g)
    return weights.flip(0), lens


def _equal_heads(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same weights for all heads; their sums are not exactly 1, however a sum is rounded."""
    weights, lens = _maps(g)
    return weights[:, 2:].expand(2, 3, 5, 7) * (1 + 2**-22), lens


check_weight_maps = exercise(
    "check_weight_maps", reference=_possible, returns="possible"
)

# ------------------------------------------------------------------ chapter 3, exercise 7


def _run_to_torch(
    to_torch: Answer,
    layer: Any,
    valid_lens: Tensor,
    k_len: int,
    query: Tensor,
    memory: Tensor,
) -> Any:
    torch.manual_seed(0)  # for whatever an answer does not copy
    answer = to_torch(layer, valid_lens, k_len)
    if answer is None:
        return None
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError("the function should return two results, a layer and a mask")
    theirs, hidden = answer
    if not isinstance(theirs, nn.MultiheadAttention):
        kind = type(theirs).__name__
        raise TypeError(f"the layer should be an nn.MultiheadAttention, got {kind}")
    with torch.no_grad():
        output, _ = theirs.eval()(query, memory, memory, key_padding_mask=hidden)
    return output


def _to_torch(
    layer: Any, valid_lens: Tensor, k_len: int
) -> tuple[nn.MultiheadAttention, Tensor]:
    theirs = nn.MultiheadAttention(layer.embed_dim, layer.num_heads, batch_first=True)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([proj.weight for proj in projections]))
        theirs.in_proj_bias.copy_(torch.cat([proj.bias for proj in projections]))
        theirs.out_proj.weight.copy_(layer.out_proj.weight)
        theirs.out_proj.bias.copy_(layer.out_proj.bias)
    return theirs, torch.arange(k_len) >= valid_lens.unsqueeze(1)


def _with_biases(
    g: torch.Generator, num_heads: int, width: int, *sizes: int
) -> tuple[Any, ...]:
    """A layer whose biases are not zero, as they are in new layers; batch, q_len and k_len."""
    batch, q_len, k_len = sizes
    layer = MultiHeadAttention(width, num_heads, bias=True).requires_grad_(False)
    for bias in (layer.q_proj.bias, layer.k_proj.bias, layer.v_proj.bias):
        bias.copy_(randn(g, width))
    layer.out_proj.bias.copy_(randn(g, width))
    lens = torch.arange(k_len, k_len - batch, -1)
    inputs = randn(g, batch, q_len, width), randn(g, batch, k_len, width)
    return layer, lens, k_len, *inputs


check_to_torch = exercise(
    "check_to_torch",
    reference=_to_torch,
    returns="output (batch, q_len, embed_dim)",
    run=_run_to_torch,
)

# ------------------------------------------------------------------ chapter 8, exercise 2


def _greedy(loss: Loss, num_heads: int, count: int) -> Order:
    off: Order = []
    while len(off) < count:
        left = [head for head in range(num_heads) if head not in off]
        off.append(min(left, key=lambda head: loss([*off, head])))
    return off


def _losses(
    g: torch.Generator, num_heads: int, *, substitutes: bool
) -> Callable[[list[int]], float]:
    """A loss that adds up over the heads that are off; with substitutes, heads 1 and 2 do the same."""
    costs = torch.rand(num_heads, generator=g) + 1
    costs[1:3] = torch.tensor([0.5, 0.6])

    def loss(off: list[int]) -> float:
        total = float(costs[sorted(set(off))].sum()) if off else 0.0
        return total + 7.0 * (substitutes and {1, 2} <= set(off))

    return loss


def _interactions(g: torch.Generator, num_heads: int) -> Callable[[list[int]], float]:
    """A loss to which every pair of heads that are off adds a term of its own."""
    costs = torch.rand(num_heads, generator=g)
    pairs = randn(g, num_heads, num_heads).triu(1)

    def loss(off: list[int]) -> float:
        here = torch.zeros(num_heads)
        here[off] = 1.0
        return float(costs @ here + here @ pairs @ here)

    return loss


check_greedy_pruning = exercise(
    "check_greedy_pruning", reference=_greedy, returns="off (count)"
)

# ------------------------------------------------------------------ training and controls, exercise 3


def _wrong_pairs(read_a: Tensor, read_b: Tensor, p: Tensor) -> Tensor:
    tokens, share = torch.arange(len(p)), p.unsqueeze(-1)
    named_a, named_b = (
        (share * read[:, None] + (1 - share) * read[None]).argmax(-1)
        for read in (read_a, read_b)
    )
    return (named_a != tokens[:, None]) | (named_b != tokens[None])


def _mixtures(
    g: torch.Generator, tokens: int, sign: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Read-outs near the identity, and weights between 0.2 and 0.8."""
    identity = 2 * torch.eye(tokens)
    read_a, read_b = (
        randn(g, tokens, tokens) / 2 + factor * identity for factor in (1, sign)
    )
    return read_a, read_b, 0.2 + 0.6 * torch.rand(tokens, tokens, generator=g)


check_mixtures = exercise(
    "check_mixtures", reference=_wrong_pairs, returns="wrong (token a, token b)"
)
