"""Checkers for the exercises on several heads: how the layer is built, and what its heads learn.

Chapter 3 uses the first seven, chapter 6 the last two. What each checker tries, with which sizes, is the
dictionary `cases` of its exercise; the sizes are primes wherever one of them does not have to divide another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mha_lib.exercises.engine import Answer, Exercise, Wrong, randn
from mha_lib.multi_head import MultiHeadAttention

Loss: TypeAlias = Callable[[list[int]], float]
Order: TypeAlias = list[int]

# ------------------------------------------------------------------ chapter 3, exercise 1


def _attend(query: Tensor, key: Tensor, value: Tensor, width: int = 0) -> Tensor:
    """Scaled dot-product attention; `width` replaces that of the queries in the scale."""
    scores = query @ key.transpose(-2, -1) / sqrt(width or query.shape[-1])
    return scores.softmax(-1) @ value


def _heads(layer: Any, *inputs: Tensor, width: int = 0) -> list[Tensor]:
    """What each head of a layer returns, before the output projection."""
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    projected = [proj(x) for proj, x in zip(projections, inputs, strict=True)]
    parts = [one.split(layer.head_dim, dim=-1) for one in projected]
    return [_attend(q, k, v, width) for q, k, v in zip(*parts, strict=True)]


def _by_columns(layer: Any, *inputs: Tensor, width: int = 0) -> list[Tensor]:
    """The contributions of the heads: each owns columns of `out_proj.weight`."""
    columns = layer.out_proj.weight.split(layer.head_dim, dim=1)
    heads = _heads(layer, *inputs, width=width)
    return [head @ part.T for head, part in zip(heads, columns, strict=True)]


def _by_rows(layer: Any, *inputs: Tensor, transpose: bool) -> Any:
    """The same with rows of `out_proj.weight`; where they are transposed, the shapes do not fit."""
    rows = layer.out_proj.weight.split(layer.head_dim, dim=0)
    heads = _heads(layer, *inputs)
    pairs = zip(heads, rows, strict=True)
    return sum(head @ (part.T if transpose else part) for head, part in pairs)


def _no_transpose(layer: Any, *inputs: Tensor) -> Any:
    columns = layer.out_proj.weight.split(layer.head_dim, dim=1)
    heads = _heads(layer, *inputs)
    return sum(head @ part for head, part in zip(heads, columns, strict=True))


check_sum_over_heads = Exercise(
    reference=lambda layer, query, key, value: layer(query, key, value)[0],
    returns="output (batch, q_len, embed_dim)",
    cases={
        "one head": lambda g: (
            MultiHeadAttention(13, 1),
            *(randn(g, 2, 5, 13), randn(g, 2, 7, 13), randn(g, 2, 7, 13)),
        ),
        "three heads": lambda g: (
            MultiHeadAttention(33, 3),
            *(randn(g, 2, 5, 33), randn(g, 2, 7, 33), randn(g, 2, 7, 33)),
        ),
        "three heads, keys and values of other widths": lambda g: (
            MultiHeadAttention(33, 3, kdim=17, vdim=19),
            *(randn(g, 2, 5, 33), randn(g, 2, 7, 17), randn(g, 2, 7, 19)),
        ),
    },
    wrong=(
        Wrong(
            "each head takes rows of `out_proj.weight` and multiplies by them as they are",
            "The shapes fit by accident. A head owns columns of this matrix, so split along `dim=1`, and "
            "multiply by the transposed part.",
            lambda layer, *inputs: _by_rows(layer, *inputs, transpose=False),
        ),
        Wrong(
            "`out_proj.weight` is split into rows",
            "The other three matrices are split along `dim=0`, where their outputs are. The heads are the "
            "*inputs* of the output projection, and those lie along `dim=1`.",
            lambda layer, *inputs: _by_rows(layer, *inputs, transpose=True),
        ),
        Wrong(
            "the columns of `out_proj.weight` are not transposed",
            "`nn.Linear` keeps its matrix transposed: multiply a head by `part.T`.",
            _no_transpose,
        ),
        Wrong(
            "the heads are put side by side, without the output projection",
            "Multiply each head by its part of `out_proj.weight` before adding.",
            lambda *arguments: torch.cat(_heads(*arguments), dim=-1),
        ),
        Wrong(
            "only the last head arrives in the output",
            "Inside the loop, add to the output instead of replacing it.",
            lambda *arguments: _by_columns(*arguments)[-1],
        ),
        Wrong(
            "the contributions are averaged",
            "The output is the sum of the contributions, not their mean.",
            lambda *arguments: torch.stack(_by_columns(*arguments)).mean(0),
        ),
        Wrong(
            "the scores are divided by the square root of `embed_dim`",
            "Each head divides by the square root of its own width, `head_dim`.",
            lambda layer, *inputs: sum(
                _by_columns(layer, *inputs, width=layer.embed_dim)
            ),
        ),
    ),
    accept=[lambda *arguments: sum(_by_columns(*arguments))],
)

# ------------------------------------------------------------------ chapter 3, exercise 2


def _what_happens(
    checked_head_dim: Answer, embed_dim: int, num_heads: int
) -> str | None:
    """What an answer does with two numbers, in words."""
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


def _forgets_zero(embed_dim: int, num_heads: int) -> int:
    if embed_dim % num_heads:
        raise ValueError(f"{num_heads} does not divide {embed_dim}")
    return embed_dim // num_heads


def _forgets_negative(embed_dim: int, num_heads: int) -> int:
    if num_heads == 0 or embed_dim % num_heads:
        raise ValueError(f"{num_heads} does not divide {embed_dim}")
    return embed_dim // num_heads


def _forgets_remainder(embed_dim: int, num_heads: int) -> int:
    if num_heads <= 0 or num_heads > embed_dim:
        raise ValueError(f"{num_heads} heads for a width of {embed_dim}")
    return embed_dim // num_heads


def _says_nothing(embed_dim: int, num_heads: int) -> int:
    if num_heads <= 0 or embed_dim % num_heads:
        raise ValueError("bad number of heads")
    return embed_dim // num_heads


def _asserts(embed_dim: int, num_heads: int) -> int:
    if num_heads <= 0 or embed_dim % num_heads:
        raise AssertionError(f"{num_heads} does not divide {embed_dim}")
    return embed_dim // num_heads


def _asserts_nothing(embed_dim: int, num_heads: int) -> int:
    if num_heads <= 0 or embed_dim % num_heads:
        raise AssertionError
    return embed_dim // num_heads


_NO_ASSERT = (
    "`python -O` leaves assertions out, so a caller's mistake would pass. Raise a `ValueError` whose message "
    "names both numbers."
)
check_head_dim = Exercise(
    reference=_head_dim,
    returns="outcome",
    run=_what_happens,
    cases={
        "12 and 3": lambda g: (12, 3),
        "12 and 1": lambda g: (12, 1),
        "12 and 12": lambda g: (12, 12),
        "12 and 5": lambda g: (12, 5),
        "12 and 24": lambda g: (12, 24),
        "12 and 0": lambda g: (12, 0),
        "12 and -4": lambda g: (12, -4),
    },
    wrong=(
        Wrong(
            "the width is rounded down",
            "12 numbers and 5 heads would give heads of width 2, and two numbers would disappear without a "
            "word. Look at the remainder, `embed_dim % num_heads`.",
            lambda embed_dim, num_heads: embed_dim // num_heads,
        ),
        Wrong(
            "only the range of `num_heads` is checked",
            "5 is between 1 and 12, but does not divide 12. Look at the remainder.",
            _forgets_remainder,
        ),
        Wrong(
            "no heads at all end in a `ZeroDivisionError`",
            "`embed_dim % 0` raises it before your own check. Look at `num_heads` first.",
            _forgets_zero,
        ),
        Wrong(
            "a negative number of heads gets through",
            "In Python `12 % -4` is 0. Ask for `num_heads` to be positive.",
            _forgets_negative,
        ),
        Wrong(
            "the message does not name both numbers",
            "Whoever reads it must see what was given: put `embed_dim` and `num_heads` into the text.",
            _says_nothing,
        ),
        Wrong("the function uses `assert`", _NO_ASSERT, _asserts),
        Wrong("the function uses a bare `assert`", _NO_ASSERT, _asserts_nothing),
        Wrong(
            "the width is a floating-point number",
            "A width counts numbers, and `12 / 3` is 4.0. Use `//`.",
            lambda embed_dim, num_heads: _head_dim(embed_dim, num_heads) / 1,
        ),
    ),
)

# ------------------------------------------------------------------ chapter 3, exercise 3


def _layer_sizes(
    embed_dim: int, num_heads: int, num_layers: int, length: int
) -> tuple[float, tuple[int, ...], float, float]:
    head_dim = embed_dim // num_heads
    weights = (1, num_heads, length, length)
    numbers = num_layers * num_heads * length**2
    return head_dim, weights, 4 * (embed_dim**2 + embed_dim), 4 * numbers / 2**20


check_layer_sizes = Exercise(
    reference=_layer_sizes,
    returns=("head_dim", "weights_shape", "parameters", "mebibytes"),
    cases={
        "a small model": lambda g: (33, 3, 5, 1009),
        "GPT-2 small": lambda g: (768, 12, 12, 1024),
    },
    wrong=(
        Wrong(
            "each head is counted as a whole layer",
            "The matrices of one head have `head_dim` rows; only all heads together fill a square matrix.",
            lambda e, h, layers, n: (
                *_layer_sizes(e, h, layers, n)[:2],
                h * 4 * e**2 + 4 * e,
                _layer_sizes(e, h, layers, n)[3],
            ),
        ),
        Wrong(
            "each head is counted as a whole layer, with biases of its own",
            "The matrices of one head have `head_dim` rows; only all heads together fill a square matrix.",
            lambda e, h, layers, n: (
                *_layer_sizes(e, h, layers, n)[:2],
                h * 4 * (e**2 + e),
                _layer_sizes(e, h, layers, n)[3],
            ),
        ),
        Wrong(
            "the biases are missing from the parameters",
            "Each of the four projections also has a bias of `embed_dim` numbers.",
            lambda e, h, layers, n: (
                *_layer_sizes(e, h, layers, n)[:2],
                4 * e**2,
                _layer_sizes(e, h, layers, n)[3],
            ),
        ),
        Wrong(
            "the output projection is missing from the parameters",
            "A layer has four projections: for queries, keys, values and the output.",
            lambda e, h, layers, n: (
                *_layer_sizes(e, h, layers, n)[:2],
                3 * (e**2 + e),
                _layer_sizes(e, h, layers, n)[3],
            ),
        ),
        Wrong(
            "the weights of one layer are counted instead of all",
            "All layers keep theirs: multiply by `num_layers`.",
            lambda e, h, layers, n: (
                *_layer_sizes(e, h, layers, n)[:3],
                _layer_sizes(e, h, 1, n)[3],
            ),
        ),
        Wrong(
            "the memory counts numbers instead of bytes",
            "A number in float32 takes four bytes.",
            lambda e, h, layers, n: (
                *_layer_sizes(e, h, layers, n)[:3],
                _layer_sizes(e, h, layers, n)[3] / 4,
            ),
        ),
        Wrong(
            "the memory is in megabytes of 10⁶ bytes",
            "A MiB has 2²⁰ bytes.",
            lambda e, h, layers, n: (
                *_layer_sizes(e, h, layers, n)[:3],
                _layer_sizes(e, h, layers, n)[3] * 2**20 / 10**6,
            ),
        ),
        Wrong(
            "the weights have one map for all heads",
            "Each head has weights of its own: (batch, num_heads, q_len, k_len).",
            lambda e, h, layers, n: (
                e // h,
                (1, n, n),
                *_layer_sizes(e, h, layers, n)[2:],
            ),
        ),
    ),
)

# ------------------------------------------------------------------ chapter 3, exercise 4

check_free_widths = Exercise(
    reference=lambda e, h, p, d_k, d_v: (h * p * (e + d_k + d_v + e), p / 2),
    returns=("parameters", "new_width"),
    cases={
        "heads that fill the model": lambda g: (22, 11, 2, 22, 22),
        "free widths": lambda g: (7, 3, 10, 11, 13),
    },
    wrong=(
        Wrong(
            "the parameters are those of a layer whose widths are all `e`",
            "4e² needs h·p = d_k = d_v = e. Here each projection has a size of its own.",
            lambda e, h, p, d_k, d_v: (4 * e**2, p / 2),
        ),
        Wrong(
            "keys and values are taken to be as wide as the model",
            "Their projections start from `d_k` and `d_v`, not from `e`.",
            lambda e, h, p, d_k, d_v: (4 * e * h * p, p / 2),
        ),
        Wrong(
            "the output projection is missing",
            "One more matrix leads from h·p, all heads side by side, back to `e`.",
            lambda e, h, p, d_k, d_v: (h * p * (e + d_k + d_v), p / 2),
        ),
        Wrong(
            "the output projection has one head as its input",
            "It reads all heads side by side, h·p numbers.",
            lambda e, h, p, d_k, d_v: (h * p * (e + d_k + d_v) + p * e, p / 2),
        ),
        Wrong(
            "one head is counted instead of `h`",
            "Each head has its own three matrices and its own part of the output projection.",
            lambda e, h, p, d_k, d_v: (p * (e + d_k + d_v + e), p / 2),
        ),
        Wrong(
            "the count is to stay the same with the same `p`",
            "With `p` fixed, as in Keras, twice the heads have twice the parameters.",
            lambda e, h, p, d_k, d_v: (h * p * (e + d_k + d_v + e), p),
        ),
        Wrong(
            "the count is to stay the same with twice the width",
            "The count is proportional to h·p: if `h` doubles, `p` must not grow.",
            lambda e, h, p, d_k, d_v: (h * p * (e + d_k + d_v + e), 2 * p),
        ),
    ),
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
    torch.manual_seed(0)  # what an answer does not copy keeps these numbers
    layer = from_lists(w_q, w_k, w_v, w_o)
    if layer is None:
        return None
    if not isinstance(layer, nn.Module):
        raise TypeError(
            f"the function should return a layer, got {type(layer).__name__}"
        )
    with torch.no_grad():
        return layer(query, memory, memory)[0]


def _make_from_lists(
    w_q: list[Tensor],
    w_k: list[Tensor],
    w_v: list[Tensor],
    w_o: Tensor,
    *,
    fuse: Callable[[list[Tensor]], Tensor] = lambda parts: torch.cat(parts, dim=1).T,
    out: Callable[[Tensor], Tensor] = lambda matrix: matrix.T,
    num_heads: int = 0,
) -> MultiHeadAttention:
    layer = MultiHeadAttention(w_o.shape[1], num_heads or len(w_q))
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    with torch.no_grad():
        for proj, parts in zip(projections, (w_q, w_k, w_v), strict=True):
            proj.weight.copy_(fuse(parts))
        layer.out_proj.weight.copy_(out(w_o))
    return layer


def _leaves_the_output(*lists: Any) -> MultiHeadAttention:
    layer = MultiHeadAttention(lists[3].shape[1], len(lists[0]))
    made = _make_from_lists(*lists)
    with torch.no_grad():
        made.out_proj.weight.copy_(layer.out_proj.weight)
    return made


def _matrices(g: torch.Generator, num_heads: int, head_dim: int) -> tuple[Any, ...]:
    width = num_heads * head_dim
    lists = [
        [randn(g, width, head_dim) / 3 for _ in range(num_heads)] for _ in range(3)
    ]
    inputs = randn(g, width, width) / 3, randn(g, 2, 5, width), randn(g, 2, 7, width)
    return (*lists, *inputs)


check_from_lists = Exercise(
    reference=_make_from_lists,
    returns="output (batch, q_len, embed_dim)",
    run=_run_from_lists,
    cases={
        "one head": lambda g: _matrices(g, 1, 13),
        "three heads": lambda g: _matrices(g, 3, 11),
    },
    wrong=(
        Wrong(
            "the large matrices are not transposed",
            "They are square, so nothing complains. `nn.Linear` keeps its matrix transposed: use `.T`.",
            lambda *lists: _make_from_lists(
                *lists, fuse=lambda parts: torch.cat(parts, dim=1)
            ),
        ),
        Wrong(
            "the matrices of the heads do not fit side by side",
            "Each has shape (embed_dim, head_dim): put them side by side along `dim=1`, then transpose.",
            lambda *lists: _make_from_lists(
                *lists, fuse=lambda parts: torch.cat(parts, dim=0).T
            ),
        ),
        Wrong(
            "`w_o` is not transposed",
            "`out_proj` is an `nn.Linear` too: it keeps its matrix transposed.",
            lambda *lists: _make_from_lists(*lists, out=lambda matrix: matrix),
        ),
        Wrong(
            "nothing is transposed",
            "`nn.Linear` keeps its matrix transposed, in all four projections.",
            lambda *lists: _make_from_lists(
                *lists,
                fuse=lambda parts: torch.cat(parts, dim=1),
                out=lambda matrix: matrix,
            ),
        ),
        Wrong(
            "the columns of the heads are dealt out like cards",
            "A head owns *adjacent* columns of the large matrix. Use `torch.cat`, not `torch.stack`.",
            lambda *lists: _make_from_lists(
                *lists, fuse=lambda parts: torch.stack(parts, dim=-1).flatten(1).T
            ),
        ),
        Wrong(
            "the layer has one head",
            "It needs as many heads as there are matrices in a list: `len(w_q)`.",
            lambda *lists: _make_from_lists(*lists, num_heads=1),
        ),
        Wrong(
            "the matrices of keys and values are exchanged",
            "`w_k` belongs in `k_proj`, and `w_v` in `v_proj`.",
            lambda w_q, w_k, w_v, w_o: _make_from_lists(w_q, w_v, w_k, w_o),
        ),
        Wrong(
            "the output projection keeps its random numbers",
            "Copy `w_o` too, transposed.",
            _leaves_the_output,
        ),
    ),
)

# ------------------------------------------------------------------ chapter 3, exercise 6


def _hidden(weights: Tensor, valid_lens: Tensor) -> Tensor:
    """True where a key is padding, (batch, 1, 1, k_len)."""
    keys = torch.arange(weights.shape[-1])
    return keys >= valid_lens.view(-1, 1, 1, 1)


def _sums(weights: Tensor, dim: int = -1) -> bool:
    return bool(((weights.sum(dim) - 1).abs() < 1e-4).all())


def _padding_unseen(weights: Tensor, valid_lens: Tensor) -> bool:
    return bool((weights.masked_select(_hidden(weights, valid_lens)) == 0).all())


def _possible(weights: Tensor, valid_lens: Tensor) -> bool:
    nothing_negative = bool((weights >= 0).all())
    return nothing_negative and _sums(weights) and _padding_unseen(weights, valid_lens)


def _maps(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights that a layer could return, of two samples with three and two keys out of seven."""
    lens = torch.tensor([3, 2])
    scores = randn(g, 2, 3, 5, 7)
    scores = scores.masked_fill(_hidden(scores, lens), -torch.inf)
    return scores.softmax(-1), lens


def _move(weights: Tensor, start: int, end: int, amount: float) -> Tensor:
    """The same weights, except that the last query of the last head moves some from one key to another."""
    weights = weights.clone()
    weights[-1, -1, -1, start] -= amount
    weights[-1, -1, -1, end] += amount
    return weights


def _exchanged(g: torch.Generator) -> tuple[Tensor, Tensor]:
    weights, lens = _maps(g)
    return weights.flip(0), lens


def _equal_heads(g: torch.Generator) -> tuple[Tensor, Tensor]:
    weights, lens = _maps(g)
    return weights[:, :1].expand(2, 3, 5, 7).clone(), lens


check_weight_maps = Exercise(
    reference=_possible,
    returns="possible",
    cases={
        "weights of a layer": _maps,
        "weights that are the same for all heads": _equal_heads,
        "rows that do not sum to 1": lambda g: (_maps(g)[0] / 2, _maps(g)[1]),
        "rows of the second sample that do not sum to 1": lambda g: (
            _maps(g)[0] / torch.tensor([1.0, 2.0]).view(2, 1, 1, 1),
            _maps(g)[1],
        ),
        "a negative weight": lambda g: (_move(_maps(g)[0], 0, 1, 1.5), _maps(g)[1]),
        "weight on padding": lambda g: (_move(_maps(g)[0], 0, 2, 0.01), _maps(g)[1]),
        "lengths of the wrong sample": _exchanged,
    },
    wrong=(
        Wrong(
            "only the sums of the rows are tested",
            "Weight on padding can leave them at 1. Look at the hidden columns too.",
            lambda weights, valid_lens: _sums(weights),
        ),
        Wrong(
            "only the hidden columns are tested",
            "The weights of a query must sum to 1, and none may be negative.",
            _padding_unseen,
        ),
        Wrong(
            "negative weights pass",
            "A softmax gives none. A row with 1.5 and -0.5 also sums to 1.",
            lambda weights, lens: _sums(weights) and _padding_unseen(weights, lens),
        ),
        Wrong(
            "the sums run over the queries",
            "Rows are queries, columns are keys: sum over the last axis.",
            lambda weights, lens: (
                _sums(weights, dim=-2) and _padding_unseen(weights, lens)
            ),
        ),
        Wrong(
            "all heads are asked to look the same",
            "Equal maps come from inputs that are all ones. In general each head has its own.",
            lambda weights, lens: (
                _possible(weights, lens)
                and torch.allclose(weights, weights[:, :1].expand_as(weights))
            ),
        ),
        Wrong(
            "all samples are tested with the length of the first",
            "Sample `i` has `valid_lens[i]` real keys. Compare along the batch axis: "
            "`valid_lens.view(-1, 1, 1, 1)`.",
            lambda weights, lens: _possible(weights, lens[:1].expand_as(lens)),
        ),
        Wrong(
            "only the first sample is tested",
            "The fault may be in another one.",
            lambda weights, lens: _possible(weights[:1], lens[:1]),
        ),
        Wrong(
            "every map passes",
            "Three things are the same in all maps: no weight is negative, the rows sum to 1, and the hidden "
            "columns are 0.",
            lambda weights, lens: True,
        ),
    ),
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
    torch.manual_seed(0)  # what an answer does not copy keeps these numbers
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


def _theirs(layer: Any, **options: Any) -> nn.MultiheadAttention:
    """Torch's layer with the parameters of ours."""
    options = {"bias": True, "batch_first": True} | options
    theirs = nn.MultiheadAttention(layer.embed_dim, layer.num_heads, **options)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([proj.weight for proj in projections]))
        theirs.out_proj.weight.copy_(layer.out_proj.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([proj.bias for proj in projections]))
            theirs.out_proj.bias.copy_(layer.out_proj.bias)
    return theirs


def _pads(valid_lens: Tensor, k_len: int) -> Tensor:
    return torch.arange(k_len) >= valid_lens.unsqueeze(1)


def _spoilt(change: Callable[[Any, Any], None]) -> Answer:
    """A conversion that is right but for what `change(theirs, layer)` does."""

    def to_torch(layer: Any, valid_lens: Tensor, k_len: int) -> tuple[Any, Tensor]:
        theirs = _theirs(layer)
        with torch.no_grad():
            change(theirs, layer)
        return theirs, _pads(valid_lens, k_len)

    return to_torch


def _exchange(theirs: Any, layer: Any) -> None:
    order = (layer.q_proj, layer.v_proj, layer.k_proj)
    theirs.in_proj_weight.copy_(torch.cat([proj.weight for proj in order]))
    theirs.in_proj_bias.copy_(torch.cat([proj.bias for proj in order]))


def _transposed(theirs: Any, layer: Any) -> None:
    order = (layer.q_proj, layer.k_proj, layer.v_proj)
    theirs.in_proj_weight.copy_(torch.cat([proj.weight.T for proj in order]))
    theirs.out_proj.weight.copy_(layer.out_proj.weight.T)


def _fresh_output(theirs: Any, layer: Any) -> None:
    torch.manual_seed(0)  # as in `_run_to_torch`: what a new layer draws there
    fresh = nn.MultiheadAttention(layer.embed_dim, layer.num_heads)
    theirs.out_proj.weight.copy_(fresh.out_proj.weight)


def _no_biases(theirs: Any, layer: Any) -> None:
    theirs.in_proj_bias.zero_()
    theirs.out_proj.bias.zero_()


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


check_to_torch = Exercise(
    reference=lambda layer, valid_lens, k_len: (
        layer.to_torch(),
        _pads(valid_lens, k_len),
    ),
    returns="output (batch, q_len, embed_dim)",
    run=_run_to_torch,
    cases={
        "one head": lambda g: _with_biases(g, 1, 13, 2, 5, 7),
        "three heads": lambda g: _with_biases(g, 3, 33, 2, 5, 7),
        # Only here do the shapes fit if batch and length are exchanged.
        "as many samples as tokens": lambda g: _with_biases(g, 3, 33, 5, 5, 5),
    },
    wrong=(
        Wrong(
            "the biases are not copied",
            "In new layers they are zero, so a test on a new layer does not show it. Copy `in_proj_bias` and "
            "`out_proj.bias`.",
            _spoilt(_no_biases),
        ),
        Wrong(
            "the bias of the output projection is not copied",
            "`out_proj` has one too.",
            _spoilt(lambda theirs, layer: theirs.out_proj.bias.zero_()),
        ),
        Wrong(
            "the input biases are not copied",
            "`in_proj_bias` is the biases of q, k and v, one after another.",
            _spoilt(lambda theirs, layer: theirs.in_proj_bias.zero_()),
        ),
        Wrong(
            "the mask is not inverted",
            "For torch, `key_padding_mask` is True where a key is *hidden*; here, only the padding is seen.",
            lambda layer, lens, k_len: (_theirs(layer), ~_pads(lens, k_len)),
        ),
        Wrong(
            "the mask hides one key too few",
            "Keys are counted from 0: with three real keys, keys 0, 1 and 2 are seen.",
            lambda layer, lens, k_len: (_theirs(layer), _pads(lens + 1, k_len)),
        ),
        Wrong(
            "`batch_first=True` is missing",
            "By default torch's layer takes the length first, then the batch.",
            lambda layer, lens, k_len: (
                _theirs(layer, batch_first=False),
                _pads(lens, k_len),
            ),
        ),
        Wrong(
            "keys and values are stacked in the wrong order",
            "`in_proj_weight` and `in_proj_bias` hold q, k and v in this order.",
            _spoilt(_exchange),
        ),
        Wrong(
            "the matrices are transposed",
            "Both layers keep them as `nn.Linear` does: copy them as they are.",
            _spoilt(_transposed),
        ),
        Wrong(
            "the output projection keeps its random numbers",
            "Copy `out_proj.weight` too.",
            _spoilt(_fresh_output),
        ),
    ),
)

# ------------------------------------------------------------------ chapter 6, exercise 1


def _greedy(loss: Loss, num_heads: int, count: int) -> Order:
    off: Order = []
    while len(off) < count:
        left = [head for head in range(num_heads) if head not in off]
        off.append(min(left, key=lambda head: loss([*off, head])))
    return off


def _rank_once(loss: Loss, num_heads: int, count: int, *, sign: int = 1) -> Order:
    return sorted(range(num_heads), key=lambda head: sign * loss([head]))[:count]


def _most_costly(loss: Loss, num_heads: int, count: int) -> Order:
    return _greedy(lambda off: -loss(off), num_heads, count)


def _tries_again(loss: Loss, num_heads: int, count: int) -> Order:
    """Heads that are off stay candidates: to switch one off again costs nothing."""
    off: Order = []
    while len(off) < count:
        off.append(min(range(num_heads), key=lambda head: loss([*off, head])))
    return off


def _backwards(loss: Loss, num_heads: int, count: int) -> Order:
    """Start with all heads off, and switch on the one that helps most, until `count` are off."""
    off = list(range(num_heads))
    while len(off) > count:
        off.remove(min(off, key=lambda head: loss([o for o in off if o != head])))
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
    """A loss in which every pair of heads that are off costs something of its own."""
    costs = torch.rand(num_heads, generator=g)
    pairs = randn(g, num_heads, num_heads).triu(1)

    def loss(off: list[int]) -> float:
        here = torch.zeros(num_heads)
        here[off] = 1.0
        return float(costs @ here + here @ pairs @ here)

    return loss


check_greedy_pruning = Exercise(
    reference=_greedy,
    returns="off (count)",
    cases={
        "heads that have nothing to do with each other": lambda g: (
            _losses(g, 7, substitutes=False),
            *(7, 3),
        ),
        "two heads that replace each other": lambda g: (
            _losses(g, 7, substitutes=True),
            *(7, 3),
        ),
        "eleven heads that all depend on each other": lambda g: (
            _interactions(g, 11),
            *(11, 5),
        ),
    },
    wrong=(
        Wrong(
            "all heads are ranked once",
            "Measure again after each head that is switched off: without the first, another one may have "
            "become important.",
            _rank_once,
        ),
        Wrong(
            "the most important heads are switched off",
            "Take the head whose loss is the *smallest*.",
            _most_costly,
        ),
        Wrong(
            "all heads are ranked once, the most important first",
            "Take the head whose loss is the smallest, and measure again after each.",
            lambda loss, num_heads, count: _rank_once(loss, num_heads, count, sign=-1),
        ),
        Wrong(
            "a head is switched off twice",
            "Only heads that are still on are candidates.",
            _tries_again,
        ),
        Wrong(
            "one head too few is switched off",
            "Go on until `count` heads are off.",
            lambda loss, num_heads, count: _greedy(loss, num_heads, count - 1),
        ),
        Wrong(
            "`count` heads are kept, not switched off",
            "The list holds `count` heads that are off.",
            lambda loss, num_heads, count: _greedy(loss, num_heads, num_heads - count),
        ),
        Wrong(
            "heads are switched on one by one, not off",
            "Start with all heads on, and switch off the one that costs least now.",
            _backwards,
        ),
        Wrong(
            "the heads are sorted",
            "Return them in the order in which they were switched off.",
            lambda *arguments: sorted(_greedy(*arguments)),
        ),
    ),
)

# ------------------------------------------------------------------ chapter 6, exercise 2


def _named(read: Tensor, p: Tensor) -> Tensor:
    """The answer that a head's mixture gives to every pair (a, b), (tokens, tokens)."""
    share = p.unsqueeze(-1)
    return (share * read[:, None] + (1 - share) * read[None, :]).argmax(-1)


def _wrong_answers(
    read_a: Tensor, read_b: Tensor, p: Tensor, *, q: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Where "name a" and where "name b" is answered wrongly; `q` replaces p in the second."""
    tokens = torch.arange(len(p))
    first = _named(read_a, p) != tokens[:, None]
    second = _named(read_b, p if q is None else q) != tokens[None, :]
    return first, second


def _mixtures(
    g: torch.Generator, tokens: int, sign: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Read-outs near the identity, and weights between 0.2 and 0.8."""
    identity = 2 * torch.eye(tokens)
    read_a, read_b = (
        randn(g, tokens, tokens) / 2 + factor * identity for factor in (1, sign)
    )
    return read_a, read_b, 0.2 + 0.6 * torch.rand(tokens, tokens, generator=g)


check_mixtures = Exercise(
    reference=lambda read_a, read_b, p: torch.logical_or(
        *_wrong_answers(read_a, read_b, p)
    ),
    returns="wrong (token a, token b)",
    cases={
        "two tokens and negative read-outs": lambda g: (
            torch.eye(2),
            -torch.eye(2),
            torch.full((2, 2), 0.7),
        ),
        "five tokens": lambda g: _mixtures(g, 5, 1),
        "seven tokens and negative read-outs": lambda g: _mixtures(g, 7, -1),
    },
    wrong=(
        Wrong(
            "the table says where both answers are right",
            "It should be True where at least one of them is wrong.",
            lambda *arguments: ~torch.logical_or(*_wrong_answers(*arguments)),
        ),
        Wrong(
            "a pair counts only if both answers are wrong",
            "One wrong answer is enough: combine the tables with `|`.",
            lambda *arguments: torch.logical_and(*_wrong_answers(*arguments)),
        ),
        Wrong(
            "only the first answer is looked at",
            "The read-out `read_b` must name token b.",
            lambda *arguments: _wrong_answers(*arguments)[0],
        ),
        Wrong(
            "only the second answer is looked at",
            "The read-out `read_a` must name token a.",
            lambda *arguments: _wrong_answers(*arguments)[1],
        ),
        Wrong(
            "the two weights are exchanged",
            "`p[a, b]` is the weight on place 1, where token a stands; place 2 has `1 - p[a, b]`.",
            lambda read_a, read_b, p: torch.logical_or(
                *_wrong_answers(read_a, read_b, 1 - p)
            ),
        ),
        Wrong(
            "the second answer uses a mixture of its own, with the weights exchanged",
            "There is one head: both read-outs get the same mixture.",
            lambda read_a, read_b, p: torch.logical_or(
                *_wrong_answers(read_a, read_b, p, q=1 - p)
            ),
        ),
        Wrong(
            "both answers come from the first read-out",
            "Token b is named by `read_b`.",
            lambda read_a, read_b, p: torch.logical_or(
                *_wrong_answers(read_a, read_a, p)
            ),
        ),
        Wrong(
            "the table is transposed",
            "Row a, column b belongs to the pair with token a at place 1.",
            lambda *arguments: torch.logical_or(*_wrong_answers(*arguments)).T,
        ),
    ),
)
