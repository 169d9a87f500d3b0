"""Checkers for the exercises on efficiency: what a cache takes, tiles, halves, shared keys, slots.

What each checker tries, with which sizes, is the dictionary `cases` of its exercise; the sizes are primes
wherever one of them does not have to divide another.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mha_lib.attention import dot_product_attention
from mha_lib.exercises.engine import Answer, Exercise, Wrong, randn
from mha_lib.masking import causal_mask
from mha_lib.multi_head import MultiHeadAttention

# ------------------------------------------------------------------ exercise 1


def _cache_size(
    memory: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    length: int,
    *,
    both: int = 2,
    item: int = 2,
    to_whole: Callable[[float], int] = int,
) -> tuple[float, int]:
    size = both * num_layers * num_kv_heads * head_dim * length * item
    return size, to_whole(memory / size)


check_cache_size = Exercise(
    reference=_cache_size,
    returns=("cache_bytes", "sequences"),
    cases={
        "a small model": lambda g: (10_007, 3, 22, 2, 5, 7),
        "Llama 2 with 70 billion parameters": lambda g: (
            40 * 2**30,
            80,
            64,
            8,
            128,
            4096,
        ),
    },
    wrong=(
        Wrong(
            "the query heads are counted",
            "A query is used once and forgotten. Only keys and values are kept: count `num_kv_heads`.",
            lambda memory, layers, heads, kv, width, length: _cache_size(
                memory, layers, kv, heads, width, length
            ),
        ),
        Wrong(
            "only the keys are counted",
            "The values are kept too: twice as many numbers.",
            lambda *sizes: _cache_size(*sizes, both=1, item=2),
        ),
        Wrong(
            "queries, keys and values are counted",
            "The queries are not kept.",
            lambda *sizes: _cache_size(*sizes, both=3),
        ),
        Wrong(
            "the numbers take four bytes",
            "In half precision a number takes two bytes.",
            lambda *sizes: _cache_size(*sizes, item=4),
        ),
        Wrong(
            "one layer is counted instead of all",
            "Each layer keeps keys and values of its own.",
            lambda memory, layers, *sizes: _cache_size(memory, 1, *sizes),
        ),
        Wrong(
            "one token is counted instead of all",
            "The cache grows with each token: multiply by `length`.",
            lambda memory, layers, heads, kv, width, length: _cache_size(
                memory, layers, heads, kv, width, 1
            ),
        ),
        Wrong(
            "the number of sequences is rounded up",
            "The last one does not fit as a whole. Use `//`.",
            lambda *sizes: _cache_size(*sizes, to_whole=ceil),
        ),
        Wrong(
            "the number of sequences is no whole number",
            "A part of a sequence is of no use. Use `//`.",
            lambda *sizes: _cache_size(*sizes, to_whole=lambda share: share),  # type: ignore[arg-type, return-value]
        ),
    ),
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


def _run_in_pieces(
    in_pieces: Answer, query: Tensor, key: Tensor, value: Tensor, size: int
) -> Any:
    with _Largest() as seen:  # type: ignore[no-untyped-call]
        output = in_pieces(query, key, value, size)
    piece = query[..., 0].numel() // query.shape[-2] * size * key.shape[-2]
    # Whoever needs less than the scores of one piece is right too.
    # A copy of the inputs or of the output is no waste.
    inputs = (query.numel(), key.numel(), value.numel())
    output_size = query.shape[-2] * value[..., 0, :].numel()
    numbers = max(piece, seen.numbers, output_size, *inputs)
    return None if output is None else (output, numbers)


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) / sqrt(query.shape[-1])
    return scores.softmax(-1) @ value


def _in_pieces(query: Tensor, key: Tensor, value: Tensor, size: int) -> Tensor:
    pieces = query.split(size, dim=-2)
    return torch.cat([_plain(piece, key, value) for piece in pieces], dim=-2)


def _key_pieces(query: Tensor, key: Tensor, value: Tensor, size: int) -> Tensor:
    pieces = list(zip(key.split(size, dim=-2), value.split(size, dim=-2), strict=True))
    total = torch.zeros_like(value[..., :1, :])
    for k, v in pieces:
        total = total + _plain(query, k, v)
    return total / len(pieces)


def _both_pieces(query: Tensor, key: Tensor, value: Tensor, size: int) -> Tensor:
    parts = [x.split(size, dim=-2) for x in (query, key, value)]
    return torch.cat([_plain(*part) for part in zip(*parts, strict=False)], dim=-2)


def _whole_pieces(query: Tensor, key: Tensor, value: Tensor, size: int) -> Tensor:
    whole = query.shape[-2] // size * size
    return _in_pieces(query[..., :whole, :], key, value, size)


def _long(
    g: torch.Generator, q_len: int, k_len: int, size: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Queries, keys and values of two samples and three heads, and the size of a piece."""
    query, key = randn(g, 2, 3, q_len, 5), randn(g, 2, 3, k_len, 5)
    return query, key, randn(g, 2, 3, k_len, 7), size


check_pieces = Exercise(
    reference=_in_pieces,
    returns=("output (batch, num_heads, q_len, value_dim)", "largest_tensor"),
    run=_run_in_pieces,
    cases={
        "two equal pieces": lambda g: _long(g, 22, 29, 11),
        "pieces of which the last is shorter": lambda g: _long(g, 23, 31, 3),
    },
    wrong=(
        Wrong(
            "all scores are computed at once",
            "The output is right, but nothing is saved: cut the queries *before* you compute scores.",
            lambda query, key, value, size: _plain(query, key, value),
        ),
        Wrong(
            "`size` is used as the number of pieces",
            "`chunk(size)` makes `size` pieces. `split(size)` makes pieces of this size.",
            lambda query, key, value, size: torch.cat(
                [_plain(one, key, value) for one in query.chunk(size, dim=-2)], dim=-2
            ),
        ),
        Wrong(
            "the last, shorter piece is missing",
            "`q_len` need not be a multiple of `size`. `split` returns a shorter last piece.",
            _whole_pieces,
        ),
        Wrong(
            "the keys are cut instead of the queries",
            "The softmax of a query runs over *all* keys. Its rows do not depend on each other, so cut the "
            "queries.",
            _key_pieces,
        ),
        Wrong(
            "queries and keys are cut together",
            "Each piece of the queries needs *all* keys and values.",
            _both_pieces,
        ),
    ),
)

# ------------------------------------------------------------------ exercise 3


def _tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block: int,
    *,
    skip: bool = True,
    last: int = 1,
    mask: bool = True,
    hide: float = -torch.inf,
    shrinks: bool = True,
) -> tuple[Tensor, int]:
    """Causal attention in tiles, and how many were computed; each option spoils one thing."""
    parts = [x.split(block, -2) for x in (query, key, value)]
    outputs, done = [], 0
    for i, queries in enumerate(parts[0]):
        largest = torch.full_like(queries[..., :1], -torch.inf)
        total, mix = torch.zeros_like(largest), torch.zeros_like(parts[2][i])
        for j in range(i + last if skip else len(parts[1])):
            scores = queries @ parts[1][j].transpose(-2, -1) / sqrt(query.shape[-1])
            if mask and i <= j:
                seen = causal_mask(query.shape[-2]).split(block)[i].split(block, -1)[j]
                scores = scores.masked_fill(~seen, hide)
            larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
            shrink = (largest - larger).exp() if shrinks else 1.0
            exponentials = (scores - larger).exp()
            total = total * shrink + exponentials.sum(-1, keepdim=True)
            mix = mix * shrink + exponentials @ parts[2][j]
            largest, done = larger, done + 1
        outputs.append(mix / total)
    return torch.cat(outputs, dim=-2), done


def _same_length(g: torch.Generator, length: int, block: int) -> tuple[Any, ...]:
    inputs = randn(g, 2, 3, length, 5), randn(g, 2, 3, length, 5)
    return (*inputs, randn(g, 2, 3, length, 7), block)


check_causal_tiles = Exercise(
    reference=_tiles,
    returns=("output (batch, num_heads, len, value_dim)", "done"),
    cases={
        "one tile": lambda g: _same_length(g, 11, 11),
        "three blocks": lambda g: _same_length(g, 33, 11),
        "seven blocks of which the last is shorter": lambda g: _same_length(g, 19, 3),
    },
    wrong=(
        Wrong(
            "all tiles are counted, or none is skipped",
            "Query block `i` needs key blocks 0 to `i` only. Count a tile where you compute its scores.",
            lambda *inputs: _tiles(*inputs, skip=False),
        ),
        Wrong(
            "the tiles on the diagonal have no mask",
            "Inside such a tile the earlier queries see later keys.",
            lambda *inputs: _tiles(*inputs, mask=False),
        ),
        Wrong(
            "there is no mask, and no tile is skipped",
            "The mask is causal: a query sees no later key.",
            lambda *inputs: _tiles(*inputs, mask=False, skip=False),
        ),
        Wrong(
            "the hidden scores become 0",
            "A score of 0 still gets a weight. Fill with `-torch.inf`.",
            lambda *inputs: _tiles(*inputs, hide=0.0),
        ),
        Wrong(
            "the earlier sums are not corrected",
            "When a tile brings a larger score, multiply both sums by `exp(largest - larger)`.",
            lambda *inputs: _tiles(*inputs, shrinks=False),
        ),
        Wrong(
            "the tiles on the diagonal are skipped too",
            "They are hidden in part only, and without them the first queries see no key.",
            lambda *inputs: _tiles(*inputs, last=0),
        ),
    ),
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
    return _masked(query, key, value, k_len - q_len)


def _masked(
    query: Tensor, key: Tensor, value: Tensor, shift: int, *, invert: bool = False
) -> Tensor:
    seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(shift)
    mask = ~seen if invert else seen
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _chunk(g: torch.Generator, q_len: int, k_len: int) -> tuple[Tensor, ...]:
    query, key = randn(g, 2, 3, q_len, 5), randn(g, 2, 3, k_len, 5)
    return query, key, randn(g, 2, 3, k_len, 13)


check_torch_causal = Exercise(
    reference=_torch_causal,
    returns=("output (batch, num_heads, q_len, value_dim)", "is_causal"),
    run=_run_torch_causal,
    cases={
        "equal lengths": lambda g: _chunk(g, 7, 7),
        "one query": lambda g: _chunk(g, 1, 11),
        "a later chunk": lambda g: _chunk(g, 7, 11),
    },
    wrong=(
        Wrong(
            "torch's own triangle is used for every chunk of more than one token",
            "Torch counts from the first key, so it is wrong if there are more keys than queries. Build the "
            "mask with `tril(k_len - q_len)`.",
            lambda query, key, value: F.scaled_dot_product_attention(
                query, key, value, is_causal=query.shape[-2] > 1
            ),
        ),
        Wrong(
            "torch's own triangle is used everywhere",
            "Torch counts from the first key: a single query would see the first key only.",
            lambda query, key, value: F.scaled_dot_product_attention(
                query, key, value, is_causal=True
            ),
        ),
        Wrong(
            "the future is visible",
            "A query may not see later keys unless it is the last token.",
            lambda query, key, value: F.scaled_dot_product_attention(query, key, value),
        ),
        Wrong(
            "the mask is built even where torch's own triangle would do",
            "With equal lengths, `F.scaled_dot_product_attention` with `is_causal=True` is right, and the "
            "kernel can skip the hidden half.",
            lambda query, key, value: _masked(
                query, key, value, key.shape[-2] - query.shape[-2]
            ),
        ),
        Wrong(
            "the mask begins at the first key",
            "The last query sees every key: `tril(k_len - q_len)`.",
            lambda query, key, value: _masked(query, key, value, 0),
        ),
        Wrong(
            "a later chunk sees the first keys only",
            "With more keys than queries, the last query sees every key: `tril(k_len - q_len)`.",
            lambda query, key, value: (
                _torch_causal(query, key, value)
                if query.shape[-2] in (1, key.shape[-2])
                else _masked(query, key, value, 0)
            ),
        ),
        Wrong(
            "the mask is inverted",
            "`F.scaled_dot_product_attention` expects True where a key may be seen.",
            lambda query, key, value: (
                _torch_causal(query, key, value)
                if query.shape[-2] in (1, key.shape[-2])
                else _masked(
                    query, key, value, key.shape[-2] - query.shape[-2], invert=True
                )
            ),
        ),
    ),
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


def _mixed(share: Tensor, o1: Tensor, o2: Tensor) -> Tensor:
    return share * o1 + (1 - share) * o2


check_join = Exercise(
    reference=lambda o1, z1, o2, z2: _mixed(torch.sigmoid(z1 - z2), o1, o2),
    returns="output (batch, num_heads, q_len, value_dim)",
    cases={
        "halves of equal weight": _one_key_each,
        "seven keys and two": lambda g: _halves(g, 7, 2),
        "scores above 100": lambda g: _halves(g, 7, 2, 300.0),
    },
    wrong=(
        Wrong(
            "both halves get the same weight",
            "A half whose keys fit better has the larger sum of exponentials, and counts for more.",
            lambda o1, z1, o2, z2: (o1 + o2) / 2,
        ),
        Wrong(
            "the shares are exchanged",
            "The share of the first half is the sigmoid of `z1 - z2`.",
            lambda o1, z1, o2, z2: _mixed(torch.sigmoid(z2 - z1), o1, o2),
        ),
        Wrong(
            "the weights are the logarithms of the sums",
            "`z` is a logarithm. The shares are those of the sums, `exp(z1)` and `exp(z2)`.",
            lambda o1, z1, o2, z2: _mixed(z1 / (z1 + z2), o1, o2),
        ),
        Wrong(
            "the exponentials overflow",
            "In float32 `exp(89)` is infinite. Only the difference matters: use `torch.sigmoid(z1 - z2)`.",
            lambda o1, z1, o2, z2: _mixed(z1.exp() / (z1.exp() + z2.exp()), o1, o2),
        ),
        Wrong(
            "the sums are not divided by their total",
            "The shares of the two halves must add up to 1.",
            lambda o1, z1, o2, z2: z1.exp() * o1 + z2.exp() * o2,
        ),
        Wrong(
            "the outputs are added up",
            "Each output is a mean already. The result is a weighted mean of the two.",
            lambda o1, z1, o2, z2: o1 + o2,
        ),
    ),
)

# ------------------------------------------------------------------ exercise 6


def _run_share_keys(
    share_keys: Answer, layer: Any, num_kv_heads: int, x: Tensor
) -> Any:
    torch.manual_seed(0)  # what an answer does not copy keeps these numbers
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


def _merged(
    layer: Any,
    num_kv_heads: int,
    *,
    reduce: Callable[[Tensor], Tensor] = lambda groups: groups.mean(1),
    names: tuple[str, ...] = ("k_proj", "v_proj", "q_proj", "out_proj"),
    neighbours: bool = True,
) -> MultiHeadAttention:
    shared = MultiHeadAttention(
        layer.embed_dim, layer.num_heads, num_kv_heads=num_kv_heads
    )
    with torch.no_grad():
        for name in names:
            weight = getattr(layer, name).weight
            if name in ("k_proj", "v_proj"):
                heads = weight.unflatten(0, (layer.num_heads, layer.head_dim))
                groups = (
                    heads.unflatten(0, (num_kv_heads, -1))
                    if neighbours
                    else heads.unflatten(0, (-1, num_kv_heads)).transpose(0, 1)
                )
                weight = reduce(groups).flatten(0, 1)
            getattr(shared, name).weight.copy_(weight)
    return shared


def _grouped(g: torch.Generator, num_kv_heads: int, *, equal: bool) -> tuple[Any, ...]:
    """A layer of six heads of width 5, in which the heads of a group may be equal."""
    layer = MultiHeadAttention(30, 6).requires_grad_(False)
    if equal:
        for proj in (layer.k_proj, layer.v_proj):
            heads = proj.weight.view(num_kv_heads, -1, 5, 30)
            heads.copy_(heads[:, :1].expand_as(heads).clone())
    return layer, num_kv_heads, randn(g, 2, 7, 30)


check_share_keys = Exercise(
    reference=_merged,
    returns="output (batch, len, embed_dim)",
    run=_run_share_keys,
    cases={
        "two groups of equal heads": lambda g: _grouped(g, 2, equal=True),
        "two groups": lambda g: _grouped(g, 2, equal=False),
        "three groups": lambda g: _grouped(g, 3, equal=False),
    },
    wrong=(
        Wrong(
            "the first head of each group stands for all",
            "The shapes are right, but the other heads are ignored. Take the mean over the group.",
            lambda layer, count: _merged(
                layer, count, reduce=lambda heads: heads[:, 0]
            ),
        ),
        Wrong(
            "heads that are not neighbours are put into a group",
            "Query head `i` uses key head `i // group`, so the heads of a group are neighbours: view the "
            "rows as (groups, heads in a group, head_dim, embed_dim).",
            lambda layer, count: _merged(layer, count, neighbours=False),
        ),
        Wrong(
            "the heads of a group are added up",
            "Take their mean: a sum makes the scores as many times too large.",
            lambda layer, count: _merged(
                layer, count, reduce=lambda heads: heads.sum(1)
            ),
        ),
        Wrong(
            "the query and output projections keep their random numbers",
            "They have the same shape in both layers: copy them.",
            lambda layer, count: _merged(layer, count, names=("k_proj", "v_proj")),
        ),
        Wrong(
            "the output projection keeps its random numbers",
            "It has the same shape in both layers: copy it.",
            lambda layer, count: _merged(
                layer, count, names=("k_proj", "v_proj", "q_proj")
            ),
        ),
        Wrong(
            "the query projection keeps its random numbers",
            "It has the same shape in both layers: copy it.",
            lambda layer, count: _merged(
                layer, count, names=("k_proj", "v_proj", "out_proj")
            ),
        ),
        Wrong(
            "the value matrices keep their random numbers",
            "Take the means of `v_proj.weight` as well.",
            lambda layer, count: _merged(
                layer, count, names=("k_proj", "q_proj", "out_proj")
            ),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 7


def _run_slots(step: Answer, layer: Any, x: Tensor, slots: int) -> Any:
    """Decode a sequence with a step that gets and returns the slots."""
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
    layer: Any,
    token: Tensor,
    keys: Tensor,
    values: Tensor,
    t: int,
    *,
    slot: Callable[[int, int], int] = lambda t, slots: t % slots,
    filled: Callable[[int, int], int] = lambda t, slots: min(t + 1, slots),
    keep_value: bool = True,
    late: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    slots = keys.shape[2]
    place = torch.tensor([slot(t, slots)])
    query, key, value = (
        layer.split_heads(proj(token))
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    old = keys, values
    keys = keys.index_copy(2, place, key)
    values = values.index_copy(2, place, value) if keep_value else values
    seen = filled(t, slots)
    used = old if late else (keys, values)
    heads, _ = dot_product_attention(query, *(x[:, :, :seen] for x in used))
    return layer.out_proj(layer.merge_heads(heads)), keys, values


def _shifted(
    layer: Any, token: Tensor, keys: Tensor, values: Tensor, t: int
) -> tuple[Tensor, Tensor, Tensor]:
    """All slots move on by one: right, but more work."""
    query, key, value = (
        layer.split_heads(proj(token))
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    keys = torch.cat((keys[:, :, 1:], key), dim=2)
    values = torch.cat((values[:, :, 1:], value), dim=2)
    seen = min(t + 1, keys.shape[2])
    heads, _ = dot_product_attention(query, keys[:, :, -seen:], values[:, :, -seen:])
    return layer.out_proj(layer.merge_heads(heads)), keys, values


def _decoded(g: torch.Generator, length: int, slots: int) -> tuple[Any, ...]:
    layer = MultiHeadAttention(33, 3).requires_grad_(False)
    return layer, randn(g, 2, length, 33), slots


check_slots = Exercise(
    reference=_step,
    returns="output (batch, len, embed_dim)",
    run=_run_slots,
    accept=[_shifted],
    cases={
        "one token": lambda g: _decoded(g, 1, 5),
        "as many tokens as slots": lambda g: _decoded(g, 5, 5),
        "nineteen tokens and five slots": lambda g: _decoded(g, 19, 5),
    },
    wrong=(
        Wrong(
            "the empty slots are attended to",
            "A key of zeros has the score 0, and takes weight from the real ones. In step `t` only "
            "`min(t + 1, slots)` slots are filled.",
            lambda *inputs: _step(*inputs, filled=lambda t, slots: slots),
        ),
        Wrong(
            "the last slot is overwritten again and again",
            "Once all slots are full, the *oldest* token must go: slot `t % slots`.",
            lambda *inputs: _step(*inputs, slot=lambda t, slots: min(t, slots - 1)),
        ),
        Wrong(
            "the first slot is overwritten again and again",
            "Once all slots are full, the *oldest* token must go: slot `t % slots`.",
            lambda *inputs: _step(*inputs, slot=lambda t, slots: t * (t < slots)),
        ),
        Wrong(
            "one slot is never used",
            "Slots are counted from 0: token `t` goes into slot `t % slots`.",
            lambda *inputs: _step(*inputs, slot=lambda t, slots: t % (slots - 1)),
        ),
        Wrong(
            "the value is not kept",
            "Write the value into the same slot as its key.",
            lambda *inputs: _step(*inputs, keep_value=False),
        ),
        Wrong(
            "the new token does not see itself",
            "Write its key and value into their slot first, then attend.",
            lambda *inputs: _step(*inputs, late=True),
        ),
        Wrong(
            "only the newest token is seen",
            "All filled slots are seen: `keys[:, :, :filled]`.",
            lambda layer, token, keys, values, t: (
                layer(token, token, token)[0],
                *_step(layer, token, keys, values, t)[1:],
            ),
        ),
    ),
)
