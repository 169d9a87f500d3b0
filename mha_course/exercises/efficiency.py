"""Checkers for the exercises on efficiency: the size of a cache, tiles, halves, shared keys, slots.

The dictionary `cases` of an exercise contains what its checker tries; the sizes are primes
wherever one of them does not have to divide another.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_check._results import Answer
from mha_course._exercise import randn
from mha_course._sizes import Texts
from mha_lib.attention import dot_product_attention
from mha_lib.masking import causal_mask
from mha_lib.multi_head import MultiHeadAttention

exercise = Texts(__name__)

# ------------------------------------------------------------------ exercise 1


def _cache_size(
    memory: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    length: int,
) -> tuple[int, int]:
    size = 2 * num_layers * num_kv_heads * head_dim * length * 2
    return size, memory // size


check_cache_size = exercise(
    "check_cache_size", reference=_cache_size, returns=("cache_bytes", "sequences")
)

# ------------------------------------------------------------------ exercise 2


class _Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returned."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(result) if isinstance(one, Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


def largest_tensor(call: Answer, *inputs: Any, **options: Any) -> int:
    """The size of the largest tensor that an operation returns during a call, in numbers."""
    with _Largest() as seen, torch.no_grad():  # type: ignore[no-untyped-call]
        call(*inputs, **options)
    return int(seen.numbers)


def _run_in_pieces(
    in_pieces: Answer, query: Tensor, key: Tensor, value: Tensor, size: int
) -> Any:
    with _Largest() as seen:  # type: ignore[no-untyped-call]
        output = in_pieces(query, key, value, size)
    piece = query[..., 0].numel() // query.shape[-2] * size * key.shape[-2]
    # An answer that needs less than the scores of one piece is also right.
    # A copy of the inputs or of the output is allowed.
    inputs = (query.numel(), key.numel(), value.numel())
    output_size = query.shape[-2] * value[..., 0, :].numel()
    numbers = max(piece, seen.numbers, output_size, *inputs)
    return None if output is None else (output, numbers)


def _in_pieces(query: Tensor, key: Tensor, value: Tensor, size: int) -> Tensor:
    parts = [
        dot_product_attention(piece, key, value)[0]
        for piece in query.split(size, dim=-2)
    ]
    return torch.cat(parts, dim=-2)


def _long(
    g: torch.Generator, q_len: int, k_len: int, size: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Queries, keys and values of two samples and three heads, and the size of a piece."""
    query, key = randn(g, 2, 3, q_len, 5), randn(g, 2, 3, k_len, 5)
    return query, key, randn(g, 2, 3, k_len, 7), size


check_pieces = exercise(
    "check_pieces",
    reference=_in_pieces,
    returns=("output (batch, num_heads, q_len, value_dim)", "largest_tensor"),
    run=_run_in_pieces,
)

# ------------------------------------------------------------------ exercise 3


def _tiles(query: Tensor, key: Tensor, value: Tensor, block: int) -> tuple[Tensor, int]:
    """Causal attention in tiles, and how many were computed."""
    parts = [x.split(block, -2) for x in (query, key, value)]
    outputs, done = [], 0
    for i, queries in enumerate(parts[0]):
        largest = torch.full_like(queries[..., :1], -torch.inf)
        total, mix = torch.zeros_like(largest), torch.zeros_like(parts[2][i])
        for j in range(i + 1):
            scores = queries @ parts[1][j].transpose(-2, -1) / sqrt(query.shape[-1])
            if i <= j:
                seen = causal_mask(query.shape[-2]).split(block)[i].split(block, -1)[j]
                scores = scores.masked_fill(~seen, -torch.inf)
            larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
            shrink = (largest - larger).exp()
            exponentials = (scores - larger).exp()
            total = total * shrink + exponentials.sum(-1, keepdim=True)
            mix = mix * shrink + exponentials @ parts[2][j]
            largest, done = larger, done + 1
        outputs.append(mix / total)
    return torch.cat(outputs, dim=-2), done


def _same_length(g: torch.Generator, length: int, block: int) -> tuple[Any, ...]:
    inputs = randn(g, 2, 3, length, 5), randn(g, 2, 3, length, 5)
    return (*inputs, randn(g, 2, 3, length, 7), block)


check_causal_tiles = exercise(
    "check_causal_tiles",
    reference=_tiles,
    returns=("output (batch, num_heads, len, value_dim)", "done"),
)

# ------------------------------------------------------------------ exercise 4


class _Triangle(TorchFunctionMode):
    """Remembers whether torch's attention was called with its own causal mask."""

    used = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.used |= bool(kwargs.get("is_causal") or (len(args) > 5 and args[5]))
        return func(*args, **kwargs)


def _run_torch_causal(
    torch_causal: Answer, query: Tensor, key: Tensor, value: Tensor
) -> Any:
    with _Triangle() as seen:
        output = torch_causal(query, key, value)
    return None if output is None else (output, seen.used)


def _torch_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q_len, k_len = query.shape[-2], key.shape[-2]
    if q_len == k_len:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    if q_len == 1:
        return F.scaled_dot_product_attention(query, key, value)
    mask = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _chunk(g: torch.Generator, q_len: int, k_len: int) -> tuple[Tensor, ...]:
    query, key = randn(g, 2, 3, q_len, 5), randn(g, 2, 3, k_len, 5)
    return query, key, randn(g, 2, 3, k_len, 13)


check_torch_causal = exercise(
    "check_torch_causal",
    reference=_torch_causal,
    returns=("output (batch, num_heads, q_len, value_dim)", "is_causal"),
    run=_run_torch_causal,
)

# ------------------------------------------------------------------ exercise 5


def _halves(
    g: torch.Generator, first: int, second: int, factor: float = 1.0
) -> tuple[Tensor, ...]:
    """Outputs and sums of two halves of the keys; `factor` makes the scores large."""
    query = factor * randn(g, 2, 3, 5, 11)
    halves: list[Tensor] = []
    for length in (first, second):
        scores = query @ randn(g, 2, 3, length, 11).transpose(-2, -1) / sqrt(11)
        mean = scores.softmax(-1) @ randn(g, 2, 3, length, 13)
        halves += [mean, scores.logsumexp(-1, keepdim=True)]
    return tuple(halves)


def _one_key_each(g: torch.Generator) -> tuple[Tensor, ...]:
    """Two halves with the same sum of exponentials."""
    sums = randn(g, 2, 3, 5, 1)
    return randn(g, 2, 3, 5, 13), sums, randn(g, 2, 3, 5, 13), sums.clone()


def _join(o1: Tensor, z1: Tensor, o2: Tensor, z2: Tensor) -> Tensor:
    share = torch.sigmoid(z1 - z2)
    return share * o1 + (1 - share) * o2


check_join = exercise(
    "check_join", reference=_join, returns="output (batch, num_heads, q_len, value_dim)"
)

# ------------------------------------------------------------------ exercise 6


def _run_share_keys(
    share_keys: Answer, layer: Any, num_kv_heads: int, x: Tensor
) -> Any:
    torch.manual_seed(0)  # for whatever an answer does not copy
    shared = share_keys(layer, num_kv_heads)
    if shared is None:
        return None
    if not isinstance(shared, MultiHeadAttention):
        kind = type(shared).__name__
        raise TypeError(f"the function should return a MultiHeadAttention, got {kind}")
    if shared.num_kv_heads != num_kv_heads:
        raise ValueError(f"the layer has {shared.num_kv_heads} key heads")
    with torch.no_grad():
        return shared(x, x, x)[0]


def _share_keys(layer: Any, num_kv_heads: int) -> MultiHeadAttention:
    shared = MultiHeadAttention(
        layer.embed_dim, layer.num_heads, num_kv_heads=num_kv_heads
    )
    shape = (num_kv_heads, -1, layer.head_dim, layer.embed_dim)
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):
            mean = getattr(layer, name).weight.view(shape).mean(1)
            getattr(shared, name).weight.copy_(mean.flatten(0, 1))
        shared.q_proj.weight.copy_(layer.q_proj.weight)
        shared.out_proj.weight.copy_(layer.out_proj.weight)
    return shared


def _grouped(g: torch.Generator, num_kv_heads: int, *, equal: bool) -> tuple[Any, ...]:
    """A layer of six heads of width 5, in which the heads of a group may be equal."""
    layer = MultiHeadAttention(30, 6).requires_grad_(False)
    if equal:
        for proj in (layer.k_proj, layer.v_proj):
            heads = proj.weight.view(num_kv_heads, -1, 5, 30)
            heads.copy_(heads[:, :1].expand_as(heads).clone())
    return layer, num_kv_heads, randn(g, 2, 7, 30)


check_share_keys = exercise(
    "check_share_keys",
    reference=_share_keys,
    returns="output (batch, len, embed_dim)",
    run=_run_share_keys,
)

# ------------------------------------------------------------------ exercise 7


def _run_slots(step: Answer, layer: Any, x: Tensor, slots: int) -> Any:
    """Decode a sequence with a step that receives and returns the slots."""
    shape = (x.shape[0], layer.num_heads, slots, layer.head_dim)
    keys, values = torch.zeros(shape), torch.zeros(shape)
    outputs = []
    for t, token in enumerate(x.split(1, dim=1)):
        answer = step(layer, token, keys, values, t)
        if answer is None:
            return None
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise TypeError("a step should return three results: output, keys, values")
        output, keys, values = answer
        if keys.shape != shape or values.shape != shape:
            raise ValueError(
                f"after token {t} the keys have shape {tuple(keys.shape)}, not {shape}"
            )
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def _step(
    layer: Any, token: Tensor, keys: Tensor, values: Tensor, t: int
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (
        layer.split_heads(proj(token))
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    slots = keys.shape[2]
    slot, filled = torch.tensor([t % slots]), min(t + 1, slots)
    keys = keys.index_copy(2, slot, key)
    values = values.index_copy(2, slot, value)
    heads, _ = dot_product_attention(query, keys[:, :, :filled], values[:, :, :filled])
    return layer.out_proj(layer.merge_heads(heads)), keys, values


def _decoded(g: torch.Generator, length: int, slots: int) -> tuple[Any, ...]:
    layer = MultiHeadAttention(33, 3).requires_grad_(False)
    return layer, randn(g, 2, length, 33), slots


check_slots = exercise(
    "check_slots",
    reference=_step,
    returns="output (batch, len, embed_dim)",
    run=_run_slots,
)
