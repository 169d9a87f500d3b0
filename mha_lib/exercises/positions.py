"""Checkers for the exercises about positions (chapter 5, and the appendix on rotary details).

Each is an `Exercise`: called with the reader's function, it shows a sentence. The tables and layers are
written out here once more, in few lines, so that a known mistake is one argument of the right answer.
"""

# A wrong answer has the signature of the right one, and often ignores an argument.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mha_lib.attention import dot_product_attention
from mha_lib.exercises.engine import Exercise, Wrong, randn
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.positional import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
    sinusoidal_encoding,
)
from mha_lib.rotary import RotaryPositionalEncoding, apply_rotary, rotary_angles

# ------------------------------------------------------------------ a step as a matrix


def _halves_matrix(offset: int, d: int, *, two: int = 2, sign: int = 1) -> Tensor:
    """M_k for rows (all sines, all cosines)."""
    angle = offset * 10_000.0 ** (-two * torch.arange(d // 2) / d)
    cos, sin = angle.cos().diag(), sign * angle.sin().diag()
    return torch.cat((torch.cat((cos, -sin), dim=1), torch.cat((sin, cos), dim=1)))


def _neighbours_matrix(offset: int, d: int) -> Tensor:
    order = torch.arange(d).view(2, -1).T.flatten()  # 0, d/2, 1, d/2 + 1, ...
    return _halves_matrix(offset, d)[order][:, order]


check_concatenated_step = Exercise(
    reference=lambda offset, embed_dim: _halves_matrix(offset, embed_dim),
    returns="matrix (embed_dim, embed_dim)",
    cases={
        "one step at width 2": lambda _: (1, 2),
        "three steps at width 10": lambda _: (3, 10),
        "seven steps back at width 14": lambda _: (-7, 14),
    },
    wrong=(
        Wrong(
            "it is the matrix for the other layout, with sine and cosine side by side",
            "The layout permutes the matrix too, its rows and its columns: the cosines now form two "
            "diagonal blocks.",
            _neighbours_matrix,
        ),
        Wrong(
            "it turns backwards",
            "This is the transpose, which leads k steps back. Rows stand on the left of the matrix: "
            "column 0 must hold what makes the new sine, cos kω for the old sine and +sin kω for the old "
            "cosine.",
            lambda offset, d: _halves_matrix(offset, d, sign=-1),
        ),
        Wrong(
            "the exponent lacks the 2",
            "Pair i has the frequency 10000^(-2i / d).",
            lambda offset, d: _halves_matrix(offset, d, two=1),
        ),
        Wrong(
            "all pairs turn equally fast",
            "Pair i turns by k times its own frequency, 10000^(-2i / d).",
            lambda offset, d: _halves_matrix(offset, d, two=0),
        ),
    ),
    atol=1e-4,
)


# ------------------------------------------------------------------ a learned table that starts as sinusoid


def _is_layer(layer: Any) -> None:
    if not isinstance(layer, nn.Module):
        raise TypeError(
            f"a layer is expected as the result, got {type(layer).__name__}"
        )


def _first_rows(answer: Callable[..., Any], embed_dim: int, max_len: int) -> Any:
    """What a new layer adds to zeros, and how many of its numbers are trained."""
    torch.manual_seed(0)  # so that noise is recognised
    layer = answer(embed_dim, max_len)
    if layer is None:
        return None
    _is_layer(layer)
    trained = [one.numel() for one in layer.parameters() if one.requires_grad]
    return layer(torch.zeros(1, max_len, embed_dim))[0], sum(trained)


def _started(embed_dim: int, max_len: int, start: Tensor) -> nn.Module:
    layer = LearnedPositionalEncoding(embed_dim, max_len)
    layer.encoding.data.copy_(start)
    return layer


def _on_top_of_noise(embed_dim: int, max_len: int) -> nn.Module:
    layer = LearnedPositionalEncoding(embed_dim, max_len)
    layer.encoding.data.add_(sinusoidal_encoding(max_len, embed_dim))
    return layer


def _long_noise(embed_dim: int, max_len: int) -> nn.Module:
    layer = LearnedPositionalEncoding(embed_dim, max_len)
    nn.init.normal_(layer.encoding, std=0.5**0.5)
    return layer


def _frozen(embed_dim: int, max_len: int) -> nn.Module:
    return SinusoidalPositionalEncoding(embed_dim, max_len)


check_learned_start = Exercise(
    reference=lambda embed_dim, max_len: _started(
        embed_dim, max_len, sinusoidal_encoding(max_len, embed_dim)
    ),
    run=_first_rows,
    returns=("rows added (max_len, embed_dim)", "number of trained entries"),
    cases={
        "width 6 and 5 positions": lambda _: (6, 5),
        "width 7 and 11 positions": lambda _: (7, 11),
    },
    wrong=(
        Wrong(
            "the table still starts as noise",
            "Copy the sinusoidal table into `layer.encoding`, inside `torch.no_grad()`.",
            LearnedPositionalEncoding,
        ),
        Wrong(
            "the table is not trained",
            "It must be a parameter with `requires_grad`. Copy into the parameter that the layer has.",
            _frozen,
        ),
        Wrong(
            "the sinusoid is added to the noise",
            "The noise must go: use `copy_`, not `add_`.",
            _on_top_of_noise,
        ),
        Wrong(
            "the size of the start is right, but it is noise",
            "That is the control. The start asked for is the sinusoidal table.",
            _long_noise,
        ),
    ),
)  # fmt: skip


# ------------------------------------------------------------------ all positions shifted


def _turned(layer: Any, x: Tensor, q_start: int, k_start: int) -> Tensor:
    """Output of a layer whose queries and keys are turned from these positions on."""
    parts = (layer.q_proj, layer.k_proj, layer.v_proj)
    query, key, value = (layer.split_heads(project(x)) for project in parts)
    length, angles = x.shape[1], rotary_angles(x.shape[1] + 1000, layer.head_dim)
    query = apply_rotary(query, angles[q_start : q_start + length])
    key = apply_rotary(key, angles[k_start : k_start + length])
    heads, _ = dot_product_attention(query, key, value)
    output: Tensor = layer.out_proj(layer.merge_heads(heads))
    return output


def _summed(layer: Any, x: Tensor, start: int) -> Tensor:
    rows = sinusoidal_encoding(start + x.shape[1], x.shape[2])[start:]
    output: Tensor = layer(*[x + rows] * 3)[0]
    return output


def _shift_changes(
    layer: Any,
    x: Tensor,
    shift: int,
    *,
    queries: bool = True,
    keys: bool = True,
    measure: Callable[[Tensor], Tensor] = torch.max,
) -> tuple[Tensor, Tensor]:
    rotary = _turned(layer, x, shift * queries, shift * keys) - _turned(layer, x, 0, 0)
    added = _summed(layer, x, shift) - _summed(layer, x, 0)
    return measure(rotary.abs()), measure(added.abs())


def _layer_and_tokens(
    heads: int, head_dim: int, batch: int, length: int, shift: int
) -> Callable[[torch.Generator], tuple[Any, ...]]:
    def make(g: torch.Generator) -> tuple[Any, ...]:
        layer = MultiHeadAttention(heads * head_dim, heads)
        return layer, randn(g, batch, length, heads * head_dim), shift

    return make


def _after_the_layer(layer: Any, x: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    rows = sinusoidal_encoding(shift + x.shape[1], x.shape[2])
    change = (rows[shift:] - rows[: x.shape[1]]).abs().max()
    return _shift_changes(layer, x, shift)[0], change


check_shift_changes = Exercise(
    reference=lambda layer, x, shift: _shift_changes(layer, x, shift),
    returns=("change with rotary", "change with sinusoids"),
    cases={
        "a shift by 100": _layer_and_tokens(3, 2, 2, 7, 100),
        "a shift by 17": _layer_and_tokens(5, 6, 3, 11, 17),
    },
    wrong=(
        Wrong(
            "only the queries are shifted in the rotary layer",
            "Every token moves, and a token is both query and key: both get the new angles.",
            lambda layer, x, shift: _shift_changes(layer, x, shift, keys=False),
        ),
        Wrong(
            "only the keys are shifted in the rotary layer",
            "Every token moves, and a token is both query and key: both get the new angles.",
            lambda layer, x, shift: _shift_changes(layer, x, shift, queries=False),
        ),
        Wrong(
            "nothing was shifted for the sinusoids either",
            "The scores of the sinusoids do not depend on the distance alone, because the matrices of "
            "query and key lie between the rows: compare `table[:len]` with `table[shift:shift + len]`.",
            lambda layer, x, shift: (_shift_changes(layer, x, shift)[0], torch.zeros(())),
        ),
        Wrong(
            "it is the mean change, not the largest",
            "Return the largest absolute difference: a mean can hide a single wrong entry.",
            lambda layer, x, shift: _shift_changes(layer, x, shift, measure=torch.mean),
        ),
        Wrong(
            "the sinusoids are added behind the layer",
            "Add them to the tokens, before the layer reads them.",
            _after_the_layer,
        ),
    ),
    atol=1e-4,
    rtol=1e-3,
)  # fmt: skip


# ------------------------------------------------------------------ adding and concatenating


check_tied_weight = Exercise(
    reference=lambda weight: torch.cat((weight, weight), dim=1),
    returns="weight (out, 2 * embed_dim)",
    cases={
        "a matrix (3, 5)": lambda g: randn(g, 3, 5),
        "a matrix (11, 7)": lambda g: randn(g, 11, 7),
    },
    wrong=(
        Wrong(
            "the weights are halved",
            "Adding is no mean: (x + P) W = x W + P W, each with the whole matrix.",
            lambda weight: torch.cat((weight, weight), dim=1) / 2,
        ),
        Wrong(
            "it ignores the positions",
            "Zeros in the columns of P give x W. The sum also holds P W.",
            lambda weight: torch.cat((weight, torch.zeros_like(weight)), dim=1),
        ),
        Wrong(
            "the copies are stacked along the outputs",
            "`nn.Linear` stores (out, in). Concatenating the inputs makes the second axis longer: "
            "`dim=1`.",
            lambda weight: torch.cat((weight, weight), dim=0),
        ),
        Wrong(
            "the copies are interleaved",
            "The input holds all columns of x, then all of P. So does the weight.",
            lambda weight: weight.repeat_interleave(2, dim=1),
        ),
    ),
)


# ------------------------------------------------------------------ slopes of ALiBi


def _slopes(
    n: int,
    *,
    first: int = 1,
    start: int = 0,
    step: int = 2,
    up: bool = False,
    order: bool = False,
) -> list[float]:
    """The authors' rule; the keyword arguments are mistakes."""
    power = 2 ** (math.ceil if up else math.floor)(math.log2(n))
    own = [2 ** (-8 * (h + first) / power) for h in range(min(power, n))]
    if n > power:
        own += _slopes(2 * power, first=first)[start::step][: n - power]
    return sorted(own, reverse=True) if order else own


check_slopes = Exercise(
    reference=lambda num_heads: _slopes(num_heads),
    returns="slopes (num_heads)",
    cases={
        "one head": lambda _: 1,
        "eight heads": lambda _: 8,
        "three heads": lambda _: 3,
        "thirteen heads": lambda _: 13,
    },
    wrong=(
        Wrong(
            "the slopes are 2^(-8(h + 1) / H) for every H",
            "That is the rule for powers of two. Otherwise take the slopes of the power of two below H, "
            "and fill up with every other slope of twice that power.",
            lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)],
        ),
        Wrong(
            "the additional slopes repeat slopes that are in the list",
            "Every other slope of twice the power is one of the first ones. Begin with index 0: `[0::2]`.",
            lambda n: _slopes(n, start=1),
        ),
        Wrong(
            "the additional slopes are the next ones, not every other",
            "Of the slopes for twice the power, take those at the even indices.",
            lambda n: _slopes(n, step=1),
        ),
        Wrong(
            "the power of two is rounded up",
            "Take the largest power of two that is not above the number of heads.",
            lambda n: _slopes(n, up=True),
        ),
        Wrong(
            "the slopes are sorted",
            "The values are right, but a trained head expects its own slope: the additional ones stand at "
            "the end.",
            lambda n: _slopes(n, order=True),
        ),
        Wrong(
            "the first exponent is 0",
            "Head h has the exponent -8(h + 1) / H: with h from 0 on, add 1.",
            lambda n: _slopes(n, first=0),
        ),
    ),
)


# ------------------------------------------------------------------ what a checkpoint holds


check_stored_entries = Exercise(
    reference=lambda d, n: [[0, d * n, 0], [d * n, 0, d * n]],
    returns="entries (encoding, kind)",
    cases={
        "width 5 and 7 positions": lambda _: (5, 7),
        "width 3 and 11 positions": lambda _: (3, 11),
    },
    wrong=(
        Wrong(
            "the buffer of the sinusoids is counted in the state dict",
            "By default buffers are saved. This one is made with `persistent=False`, because a formula "
            "can rebuild it.",
            lambda d, n: [[0, d * n, d * n], [d * n, 0, d * n]],
        ),
        Wrong(
            "the sinusoids are counted as parameters",
            "They are fixed: a buffer moves with the module and is not trained.",
            lambda d, n: [[d * n, 0, d * n], [d * n, 0, d * n]],
        ),
        Wrong(
            "the sinusoidal layer holds nothing",
            "Its table is not saved, but it is there, as a buffer: it moves to the device with the module.",
            lambda d, n: [[0, 0, 0], [d * n, 0, d * n]],
        ),
        Wrong(
            "the learned table is counted as a buffer as well",
            "A tensor is registered once. What is trained is a parameter.",
            lambda d, n: [[0, d * n, 0], [d * n, d * n, d * n]],
        ),
        Wrong(
            "the learned table is not saved",
            "No formula can rebuild it: parameters are always in the state dict.",
            lambda d, n: [[0, d * n, 0], [d * n, 0, 0]],
        ),
        Wrong(
            "the two rows are exchanged",
            "The first row is the sinusoidal encoding, the second the learned one.",
            lambda d, n: [[d * n, 0, d * n], [0, d * n, 0]],
        ),
    ),
)


# ------------------------------------------------------------------ token or position


def _share(token: float, position: float) -> float:
    return token / (token + position)


check_token_share = Exercise(
    reference=lambda std, d, factor: _share((factor * std) ** 2 * d, d / 2),
    returns="share",
    cases={
        "a standard deviation of 1": lambda _: (1.0, 31, 1.0),
        "a factor of √d": lambda _: (1.0, 37, math.sqrt(37)),
        "a standard deviation of 0.3 and a factor of 2": lambda _: (0.3, 29, 2.0),
    },
    wrong=(
        Wrong(
            "it compares lengths, not squared lengths",
            "The share asked for is that of the squared length: square both before you divide.",
            lambda std, d, factor: _share(factor * std * math.sqrt(d), math.sqrt(d / 2)),
        ),
        Wrong(
            "the factor is not squared",
            "The factor stretches the token, so its squared length grows with the square of the factor.",
            lambda std, d, factor: _share(factor * std**2 * d, d / 2),
        ),
        Wrong(
            "the squared length of a row of the table is taken to be d",
            "Each pair has sin² + cos² = 1, and there are d / 2 pairs.",
            lambda std, d, factor: _share((factor * std) ** 2 * d, d),
        ),
        Wrong(
            "the squared length of a token lacks the width",
            "Each of the d entries adds its variance: the sum is d times the variance.",
            lambda std, d, factor: _share((factor * std) ** 2, d / 2),
        ),
        Wrong(
            "it is the share of the position",
            "Put the token's squared length into the numerator.",
            lambda std, d, factor: _share(d / 2, (factor * std) ** 2 * d),
        ),
        Wrong(
            "it is the ratio of token to position",
            "A share is divided by the sum of both.",
            lambda std, d, factor: 2 * (factor * std) ** 2,
        ),
    ),
)  # fmt: skip


# ------------------------------------------------------------------ vectors and biases for distances


def _shaw(
    weights: Tensor,
    table: Tensor,
    *,
    sign: int = 1,
    clip: bool = True,
    offset: bool = True,
    product: str = "bhmn,mnd->bhmd",
) -> Tensor:
    """The mean of the second table; the keyword arguments are mistakes."""
    largest, places = len(table) // 2, torch.arange(weights.shape[-1])
    distance = sign * (places - places[:, None])
    if clip:
        distance = distance.clamp(-largest, largest)
    return torch.einsum(product, weights, table[distance + largest * offset])


def _weights_and_table(
    batch: int, heads: int, length: int, largest: int, head_dim: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda g: (
        randn(g, batch, heads, length, length).softmax(-1),
        randn(g, 2 * largest + 1, head_dim),
    )


check_shaw_values = Exercise(
    reference=lambda weights, table: _shaw(weights, table),
    returns="mean (batch, num_heads, len, head_dim)",
    cases={
        "a table for all distances": _weights_and_table(5, 2, 3, 3, 11),
        "a table for the distances -2 to 2": _weights_and_table(2, 3, 7, 2, 13),
    },
    wrong=(
        Wrong(
            "the distances have the wrong sign",
            "Row r of the table belongs to key minus query: `places - places[:, None]`, whose rows are "
            "queries.",
            lambda weights, table: _shaw(weights, table, sign=-1),
        ),
        Wrong(
            "the distances are not clipped",
            "Beyond the largest distance the first or the last row is used again: `clamp(-r, r)`.",
            lambda weights, table: _shaw(weights, table, clip=False),
        ),
        Wrong(
            "the offset is missing",
            "Distance -r is in row 0, so add r. A negative index takes a row from the end, without an "
            "error.",
            lambda weights, table: _shaw(weights, table, offset=False),
        ),
        Wrong(
            "the mean is taken over the queries",
            "A query gets the mean over its keys: the index of the keys goes, `bhmn,mnd->bhmd`.",
            lambda weights, table: _shaw(weights, table, product="bhmn,mnd->bhnd"),
        ),
        Wrong(
            "the vectors are added without their weights",
            "Each vector counts as much as its key does: multiply by the weights.",
            lambda weights, table: _shaw(torch.ones_like(weights), table),
        ),
    ),
)


def _past_bias(answer: Callable[..., Any], table: Tensor, length: int) -> Any:
    """The bias of the past: the causal mask hides what stands above the diagonal."""
    bias = answer(table, length)
    return None if bias is None else torch.as_tensor(bias).tril()


def _bias(
    table: Tensor, length: int, pick: Callable[[Tensor, Tensor, int], Tensor]
) -> Tensor:
    places = torch.arange(length)
    return table[:, pick(places[:, None], places, table.shape[1] - 1)]


check_distance_bias = Exercise(
    reference=lambda table, length: _bias(
        table, length, lambda m, n, last: (m - n).clamp(0, last)
    ),
    run=_past_bias,
    returns="bias (num_heads, len, len)",
    cases={
        "a text with 5 tokens and 7 numbers": lambda g: (randn(g, 2, 7), 5),
        "a text with 11 tokens and 5 numbers": lambda g: (randn(g, 3, 5), 11),
    },
    wrong=(
        Wrong(
            "the distances have the wrong sign",
            "How far back a key lies is query minus key, `places[:, None] - places`. With the other sign "
            "all of the past gets the number of distance 0.",
            lambda table, length: _bias(
                table, length, lambda m, n, last: (n - m).clamp(0, last)
            ),
        ),
        Wrong(
            "distances beyond the last one have no number",
            "They share the last number: `clamp(0, last)`.",
            lambda table, length: _bias(table, length, lambda m, n, last: m - n),
        ),
        Wrong(
            "large distances start again at the first number",
            "A remainder repeats the numbers. Larger distances share the last one: `clamp(0, last)`.",
            lambda table, length: _bias(
                table, length, lambda m, n, last: (m - n) % (last + 1)
            ),
        ),
        Wrong(
            "the numbers belong to the places of the keys, not to distances",
            "Subtract the place of the key from that of the query.",
            lambda table, length: _bias(
                table, length, lambda m, n, last: (n + 0 * m).clamp(0, last)
            ),
        ),
        Wrong(
            "the last number is never used",
            "A table of 9 columns has the distances 0 to 8: clamp at 8, not at 7.",
            lambda table, length: _bias(
                table, length, lambda m, n, last: (m - n).clamp(0, last - 1)
            ),
        ),
        Wrong(
            "all heads have the bias of the first",
            "Row h of the table is that of head h: index the second axis only, `table[:, distance]`.",
            lambda table, length: _bias(
                table[:1].expand_as(table),
                length,
                lambda m, n, last: (m - n).clamp(0, last),
            ),
        ),
    ),
)


# ------------------------------------------------------------------ a base that reaches further


check_ntk_base = Exercise(
    reference=lambda embed_dim, base, scale: (
        base * scale ** (embed_dim / (embed_dim - 2))
    ),
    returns="base",
    cases={
        "width 16, base 10000 and scale 4": lambda _: (16, 10_000.0, 4.0),
        "width 6, base 500 and scale 3": lambda _: (6, 500.0, 3.0),
    },
    wrong=(
        Wrong(
            "the base is multiplied by the scale",
            "Then the slowest frequency is divided by only s^((d-2)/d), because its exponent is "
            "-(d - 2) / d, not -1.",
            lambda d, base, scale: base * scale,
        ),
        Wrong(
            "the exponent of the scale is upside down",
            "From b'^((d-2)/d) = s b^((d-2)/d), raise both sides to the power d / (d - 2).",
            lambda d, base, scale: base * scale ** ((d - 2) / d),
        ),
        Wrong(
            "the exponent of the scale lacks parentheses",
            "`scale ** d / (d - 2)` divides the power. Write `scale ** (d / (d - 2))`.",
            lambda d, base, scale: base * scale**d / (d - 2),
        ),
        Wrong(
            "the base gets smaller",
            "A smaller base makes the slow pairs faster. Slower pairs need a larger base.",
            lambda d, base, scale: base / scale ** (d / (d - 2)),
        ),
        Wrong(
            "the slowest pair is taken to have the exponent (d - 1) / d",
            "The last pair is i = d/2 - 1, and its exponent is 2i / d = (d - 2) / d.",
            lambda d, base, scale: base * scale ** (d / (d - 1)),
        ),
        Wrong(
            "the old base is raised to a power as well",
            "Only the scale gets the exponent d / (d - 2); the powers of the base cancel.",
            lambda d, base, scale: (base * scale) ** (d / (d - 2)),
        ),
    ),
)


# ------------------------------------------------------------------ a checkpoint with the other pairing


def _pairing(answer: Callable[..., Any], layer: Any, x: Tensor) -> Any:
    """Output of the new layer, and whether its pairs are side by side."""
    new = answer(layer)
    if new is None:
        return None
    _is_layer(new)
    return new(x, x, x)[0], new.rotary.interleaved


def _halves(layer: Any, rotary_dim: int | None = None) -> Any:
    """A copy with the other pairing and the same weights."""
    old = layer.rotary
    rotary_dim = old.rotary_dim if rotary_dim is None else rotary_dim
    rotary = RotaryPositionalEncoding(
        old.head_dim, rotary_dim=rotary_dim, base=old.base, interleaved=False
    )
    new = MultiHeadAttention(layer.embed_dim, layer.num_heads, rotary=rotary)
    new.load_state_dict(layer.state_dict())
    return new


def _order(turning: int, width: int) -> Tensor:
    """Even columns of the first `turning`, then odd ones, then the rest."""
    columns = torch.arange(width)
    first = columns[:turning]
    return torch.cat((first[0::2], first[1::2], columns[turning:]))


def _reordered(
    layer: Any,
    *,
    names: tuple[str, ...] = ("q_proj", "k_proj"),
    turning: int | None = None,
    inverse: bool = False,
    rotary_dim: int | None = None,
) -> Any:
    """The right answer; the keyword arguments are mistakes."""
    new = _halves(layer, rotary_dim)
    order = _order(turning or layer.rotary.rotary_dim, layer.head_dim)
    order = order.argsort() if inverse else order
    for name in names:
        weight = getattr(new, name).weight.data
        rows = weight.unflatten(0, (layer.num_heads, layer.head_dim))[:, order]
        weight.copy_(rows.flatten(0, 1))
    return new


def _across_heads(layer: Any) -> Any:
    new = _halves(layer)
    order = _order(layer.embed_dim, layer.embed_dim)
    for proj in (new.q_proj, new.k_proj):
        proj.weight.data.copy_(proj.weight.data[order])
    return new


def _rotary_layer(
    heads: int, head_dim: int, rotary_dim: int, batch: int, length: int
) -> Callable[[torch.Generator], tuple[Any, Tensor]]:
    def make(g: torch.Generator) -> tuple[Any, Tensor]:
        rotary = RotaryPositionalEncoding(head_dim, rotary_dim=rotary_dim)
        layer = MultiHeadAttention(heads * head_dim, heads, rotary=rotary)
        return layer, 3 * randn(g, batch, length, heads * head_dim)

    return make


_ALL_FOUR = ("q_proj", "k_proj", "v_proj", "out_proj")

check_to_halves = Exercise(
    reference=lambda layer: _reordered(layer),
    run=_pairing,
    returns=("output (batch, len, embed_dim)", "interleaved"),
    cases={
        "heads that turn whole": _rotary_layer(3, 10, 10, 2, 7),
        "heads of which 6 of 14 columns turn": _rotary_layer(2, 14, 6, 3, 11),
    },
    wrong=(
        Wrong(
            "the pairs are still side by side",
            "The new layer needs `RotaryPositionalEncoding(..., interleaved=False)`.",
            lambda layer: layer,
        ),
        Wrong(
            "no weights were reordered",
            "The weights load without an error, because the shapes agree, but they belong to the other "
            "pairing. Reorder the rows of `q_proj` and `k_proj`.",
            _halves,
        ),
        Wrong(
            "all four projections were reordered",
            "Values are not turned: `v_proj` and `out_proj` keep their order.",
            lambda layer: _reordered(layer, names=_ALL_FOUR),
        ),
        Wrong(
            "only the queries were reordered",
            "A score compares column c of the query with column c of the key: reorder `k_proj` too.",
            lambda layer: _reordered(layer, names=("q_proj",)),
        ),
        Wrong(
            "the new order mixes the heads",
            "Reorder the rows within each head: `weight.unflatten(0, (num_heads, head_dim))[:, order]`.",
            _across_heads,
        ),
        Wrong(
            "columns that do not turn were reordered",
            "Only the first `rotary_dim` columns of a head form pairs. The others stay where they are.",
            lambda layer: _reordered(layer, turning=layer.head_dim),
        ),
        Wrong(
            "the new layer turns all columns",
            "Pass `rotary_dim=layer.rotary.rotary_dim` on.",
            lambda layer: _reordered(layer, rotary_dim=layer.head_dim),
        ),
        Wrong(
            "the order is the inverse one",
            "New row i takes old row `order[i]`: the even columns first, then the odd ones.",
            lambda layer: _reordered(layer, inverse=True),
        ),
    ),
    atol=1e-4,
)
