"""The formula that others are compared with, in float64: of heads, of a layer, rotary positions, a cache."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Linear: TypeAlias = tuple[Tensor, Tensor | None]
Projections: TypeAlias = Mapping[str, Any]
Norm: TypeAlias = Callable[[Tensor], Tensor]
Bias: TypeAlias = Callable[[int, int, int], Tensor]

CALLED_WITH = ("query", "key", "value", "mask", "is_causal", "sink")
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


class Layer(NamedTuple):
    """What the formula uses of a layer.

    Attributes:
        linear: its projections.
        head_dim: width of a head.
        norm: normalizes the input before it is projected.
        norms_memory: whether it also normalizes an input of its own for keys and values.
        adds_input: whether a residual connection adds the input to the output.
        norm_after: normalizes this sum.
        head_norms: normalize the heads of queries and of keys.
        turn: rotates the heads of queries and keys by their positions.
        tiled: query head i uses key head i % num_kv_heads; otherwise, neighbouring heads share keys.
        null: learned keys and values, (batch or 1, heads or 1, number, head_dim), which every query sees.
        bias: what is added to the scores, by the numbers of heads, queries and keys.
    """

    linear: Mapping[str, Linear]
    head_dim: int
    norm: Norm | None = None
    adds_input: bool = False
    norm_after: Norm | None = None
    head_norms: tuple[Norm, Norm] | None = None
    turn: Norm | None = None
    tiled: bool = False
    null: tuple[Tensor, Tensor] | None = None
    bias: Bias | None = None
    norms_memory: bool = True


def widths_of(layer: Layer) -> tuple[int, ...]:
    """The widths of the inputs for queries, keys and values."""
    return tuple(layer.linear[name][0].shape[1] for name in NAMES[:3])


def attention_of_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    sink: Tensor | None = None,
    *,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    window: tuple[int | None, int | None] = (None, None),
    null: tuple[Tensor, Tensor] | None = None,
    bias: Bias | None = None,
    normalized: float | Tensor | None = None,
    only_scores: bool = False,
) -> Tensor:
    """Attention of heads in float64; keys that no query sees are cleared; neighbouring heads share keys.

    A scale takes the place of 1 / √head_dim, and a window (left, right) counts from a query's own position;
    `Layer` explains `null` and `bias`. With `normalized`, a scale, queries and keys get the length 1. With
    `only_scores`, these are returned.
    """
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    q_len, k_len = query.shape[-2], key.shape[-2]
    visible = _visible(query, k_len, mask, is_causal, window)
    if null is not None:
        more = [x.double().expand(*key.shape[:2], -1, -1) for x in null]
        key, value = (torch.cat(x, 2) for x in zip(more, (key, value), strict=True))
        visible = F.pad(visible, (key.shape[-2] - k_len, 0), value=True)
    unseen = ~visible.any(-2).unsqueeze(-1)
    key, value = key.masked_fill(unseen, 0.0), value.masked_fill(unseen, 0.0)
    query, key = _scaled(query, key, scale, normalized)
    scores: Tensor = query @ key.mT / query.shape[-1] ** 0.5
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores + (0.0 if bias is None else bias(query.shape[1], q_len, k_len))
    if only_scores:
        return scores
    fill = torch.where(visible.any(-1, keepdim=True), -torch.inf, 0.0)
    weights = torch.where(visible, scores, fill).softmax(-1) * visible
    if sink is None:
        return weights @ value
    # A softmax with an additional logit: exp(sink) joins the denominator, but has no value.
    limit = sink.double().view(-1, 1, 1)
    hidden = scores.masked_fill(~visible, -torch.inf)
    total = hidden.logsumexp(-1, keepdim=True)
    pooled: Tensor = weights * (total - limit).sigmoid() @ value
    return pooled


def _visible(
    query: Tensor, k_len: int, mask: Tensor | None, is_causal: bool, window: Any
) -> Tensor:
    """Which keys each query sees."""
    visible, q_len = query.new_ones(*query.shape[:-1], k_len).bool(), query.shape[-2]
    if mask is not None:
        visible = visible & mask
    if is_causal:
        visible = visible.tril(k_len - q_len)  # queries and keys end together
    left, right = window
    if left is not None:
        visible = visible.triu(k_len - q_len - left)
    if right is not None:
        visible = visible.tril(k_len - q_len + right)
    return visible


def _scaled(
    query: Tensor, key: Tensor, scale: Any, normalized: Any
) -> tuple[Tensor, Tensor]:
    """Queries and keys whose products, divided by √head_dim, are as a scale wants them."""
    if normalized is not None:
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        scale = normalized
    if scale is not None:
        query = query * scale * query.shape[-1] ** 0.5
    return query, key


def named_arguments(given: Sequence[Any]) -> dict[str, Any]:
    """All arguments of the formula by their names."""
    bound = inspect.signature(attention_of_heads).bind(*given)
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in CALLED_WITH}


def attention_layer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    linear: Mapping[str, Linear],
    head_dim: int,
    norm: Norm | None = None,
    adds_input: bool = False,
    norm_after: Norm | None = None,
    head_norms: tuple[Norm, Norm] | None = None,
    turn: Norm | None = None,
    tiled: bool = False,
    norms_memory: bool = True,
    **declared: Any,
) -> Tensor:
    """The formula between the projections of a layer, in float64; `Layer` explains the other arguments."""
    query, key, value = map(Tensor.double, (query, key, value))
    residual = query  # (batch, q_len, embed_dim)
    three = [
        norm(x) if norm is not None and (x is query or norms_memory) else x
        for x in (query, key, value)
    ]
    inputs = zip(NAMES[:3], three, strict=True)
    projected = [F.linear(x, *linear[name]) for name, x in inputs]
    split = (x.unflatten(-1, (-1, head_dim)).transpose(1, 2) for x in projected)
    query, key, value = split
    if head_norms is not None:
        query, key = head_norms[0](query), head_norms[1](key)
    if turn is not None:
        query, key = turn(query), turn(key)
    if tiled:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)
    heads = attention_of_heads(query, key, value, mask, is_causal, **declared)
    if declared.get("only_scores"):
        return heads
    merged = heads.transpose(1, 2).flatten(-2)
    output = F.linear(merged, *linear["out_proj"])
    if adds_input:
        output = residual + output
    return output if norm_after is None else norm_after(output)


def rotate_pairs(
    x: Tensor, positions: Tensor, base: float = 10_000.0, interleaved: bool = True
) -> Tensor:
    """Rotate pairs of columns by position * base^(-2i / head_dim), in float64."""
    x, half = x.double(), x.shape[-1] // 2
    angles = positions.double().unsqueeze(-1) * base ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, -1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned: Tensor = torch.stack(pair, -1 if interleaved else -2).flatten(-2)
    return turned


class Decoder:
    """Causal attention with a cache."""

    def __init__(self, rotated: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        self.rotated = rotated
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = sum(part.shape[2] for part in self.keys)
        places = seen + torch.arange(query.shape[2])
        if self.rotated is not None:
            query, key = self.rotated(query, places), self.rotated(key, places)
        self.keys.append(key)
        self.values.append(value)
        keys, values = torch.cat(self.keys, 2), torch.cat(self.values, 2)
        return attention_of_heads(query, keys, values, None, True)
