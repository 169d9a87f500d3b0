"""Checkers for parts of the layer: the masked softmax, positions, rotation, the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mha_lib import _checks
from mha_lib.attention import masked_softmax
from mha_lib.exercises.engine import (
    Answer,
    Exercise,
    Verdict,
    Wrong,
    randn,
    rows_sum_to_one,
)
from mha_lib.positional import sinusoidal_encoding
from mha_lib.rotary import apply_rotary

# ------------------------------------------------------------------ masked softmax


def _scores_and_mask(
    visible: str, *, scale: float = 3.0, shift: float = 0.0, half: bool = False
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """A case of scores (2, 3, 5); `visible` says which keys are seen: "all", "three", "random", "none"."""

    def make(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        scores = scale * randn(generator, 2, 3, 5) + shift
        mask = torch.ones(2, 3, 5, dtype=torch.bool)
        if visible != "all":
            mask &= torch.tensor([True, True, False, True, False])
        if visible == "random":
            mask = torch.rand(2, 3, 5, generator=generator) > 0.4
            mask[..., 1] = True
        if visible == "none":
            mask[0, 1] = False
        if visible == "a large hidden score":
            scores[..., 2] = 300.0
        return scores.half() if half else scores, mask

    return make


def _rows_at_levels(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    scores, mask = _scores_and_mask("three")(generator)
    return scores + 300.0 * torch.arange(3.0)[:, None], mask


def _filled(number: float) -> Answer:
    return lambda scores, mask: scores.masked_fill(~mask, number).softmax(-1)


def _without_shift(scores: Tensor, mask: Tensor) -> Tensor:
    powers = scores.exp() * mask
    return powers / powers.sum(-1, keepdim=True)


def _one_shift_for_all(scores: Tensor, mask: Tensor) -> Tensor:
    powers = (scores - scores[mask].max()).exp() * mask
    total = powers.sum(-1, keepdim=True)
    return torch.where(mask.any(-1, keepdim=True), powers / total, 0.0)


def _divided_again(scores: Tensor, mask: Tensor) -> Tensor:
    weights = scores.softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


def _hidden_weigh_nothing(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    """A property: hidden keys have weight 0."""
    mask, weights = arguments[1], results[0]
    seen = weights.masked_fill(mask, 0.0).abs()
    if not bool((seen > 1e-6).any()):
        return ""
    place = (seen > 1e-6).nonzero()[0].tolist()
    return f"a hidden key has weight {float(weights[tuple(place)]):.2g}, at {place}"


_SOFTMAX = Exercise(
    reference=lambda scores, mask: masked_softmax(scores, mask),
    returns="weights (batch, q_len, k_len)",
    cases={
        "a mask that hides nothing": _scores_and_mask("all"),
        "three visible keys": _scores_and_mask("three"),
        "a mask with other keys for each query": _scores_and_mask("random"),
        "a large score of a hidden key": _scores_and_mask("a large hidden score"),
        "rows of scores around 0, 300 and 600": _rows_at_levels,
        "scores around -10,000,000": _scores_and_mask("three", shift=-1e7),
        "a query that sees nothing": _scores_and_mask("none"),
        "scores in float16": _scores_and_mask("none", half=True),
    },
    wrong=(
        Wrong(
            "the softmax runs over the queries",
            "Axis -2 holds the queries; the weights of one query, along the last axis, must add up to 1.",
            lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(-2) * m,
        ),
        Wrong(
            "the softmax runs over the heads or samples",
            "`dim=0` is the first axis; the keys are the last one, `dim=-1`.",
            lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(0) * m,
        ),
        Wrong(
            "the mask is inverted",
            "True means that the query may attend to the key; fill where the mask is False, at `~mask`.",
            lambda s, m: masked_softmax(s, ~m),
        ),
        Wrong(
            "the mask is not used",
            "Hidden keys still get weight; set their scores to -inf before the softmax.",
            lambda s, _: s.softmax(-1),
        ),
        Wrong(
            "the mask comes after the softmax",
            "The weights of the visible keys no longer add up to 1; hide the scores before the softmax.",
            lambda s, m: s.softmax(-1) * m,
        ),
        Wrong(
            "the weights are masked after the softmax and divided again",
            "If a hidden score is large, the visible weights underflow to 0 and are divided by 0; hide the "
            "scores before the softmax.",
            _divided_again,
        ),
        Wrong(
            "hidden scores are set to 0",
            "A score of 0 still has the weight exp(0) = 1 before the division; only -inf has none.",
            lambda s, m: (s * m).softmax(-1),
        ),
        Wrong(
            "hidden scores are set to 0, and their weights too",
            "The hidden keys still count in the sum, with exp(0) = 1 each, so the rows do not add up to 1.",
            lambda s, m: (s * m).softmax(-1) * m,
        ),
        Wrong(
            "the mask is added to the scores as 0 and 1",
            "That raises the visible scores by 1 only; replace the hidden scores by -inf.",
            lambda s, m: (s + m).softmax(-1),
        ),
        Wrong(
            "a query that sees nothing gets NaN",
            "A row of only -inf is 0 / 0 in the softmax; set the weights of such a row to 0.",
            lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1),
        ),
        Wrong(
            "a query that sees nothing gets equal weights",
            "The fill is the same for all keys of that row, and the softmax spreads the weight evenly; "
            "multiply the weights by the mask.",
            lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(-1),
        ),
        *(
            Wrong(
                "the hidden scores are filled with a number that is not low enough",
                "Where the visible scores are lower than the fill, the hidden keys win; fill with -inf or "
                "the smallest number of the dtype.",
                answer,
            )
            for number in (-1e4, -1e5, -1e6, -1e3, -1e2)
            for answer in (
                _filled(number),
                lambda s, m, number=number: _filled(number)(s, m) * m,
            )
        ),
        Wrong(
            "the fill of -1e9 is too small",
            "A query that sees nothing spreads its weight evenly, and float16 ends at 65,504; fill with the "
            "smallest number of the dtype, and multiply the weights by the mask.",
            _filled(-1e9),
        ),
        Wrong(
            "the exponentials overflow or vanish",
            "exp(89) is infinite in float32, and exp(-104) is 0; subtract the largest score of each row "
            "first. A query that sees nothing also needs care: its sum is 0.",
            _without_shift,
        ),
        Wrong(
            "the largest of all scores is subtracted",
            "In rows with much lower scores every exponential becomes 0; subtract the largest score of each "
            "row, with `dim=-1, keepdim=True`.",
            _one_shift_for_all,
        ),
        Wrong(
            "the weights are not divided by their sum",
            "Exponentials are not weights yet; divide by their sum over the keys.",
            lambda s, m: s.exp() * m,
        ),
        Wrong(
            "the weights are not divided by their sum",
            "Exponentials are not weights yet; divide by their sum over the keys.",
            lambda s, m: s.exp().masked_fill(~m, 0.0),
        ),
        Wrong(
            "the result is the logarithm of the weights",
            "`log_softmax` returns logarithms; use `softmax`.",
            lambda s, m: s.masked_fill(~m, -torch.inf).log_softmax(-1),
        ),
        Wrong(
            "the best key gets all the weight",
            "That is a maximum; a softmax gives some weight to every visible key.",
            lambda s, m: (
                torch.nn.functional.one_hot(s.masked_fill(~m, -torch.inf).argmax(-1), 5)
                * m
            ).to(s.dtype),
        ),
    ),
    properties=(_hidden_weigh_nothing, rows_sum_to_one()),
    gradients=True,
)


def check_masked_softmax(answer: Answer) -> Verdict:
    """Check a softmax over the keys that a mask shows.

    Tried are scores of shape (2, 3, 5), three axes of different sizes so that a wrong axis shows, with masks
    of the same shape: one that hides nothing, the same three keys for all, other keys for each query; a
    hidden score of 300, rows around 0, 300 and 600, and scores around -10,000,000, which a fixed fill or an
    exponential without a shift does not survive; a query that sees nothing, which must get zeros; the same
    in float16. The gradients are compared too.

    Args:
        answer: function of (scores, mask), both (batch, q_len, k_len), the mask bool, True = may attend; it
            returns the weights, of the shape of `scores`.

    Returns:
        Whether the answer is right; if not, the cause.

    Raises:
        KeyboardInterrupt: a reader interrupted an endless loop; nothing else that `answer` raises.

    Example:
        >>> check_masked_softmax(lambda scores, mask: scores.softmax(-1) * mask).message[:45]
        'Not yet: the mask comes after the softmax. Th'
    """
    return _SOFTMAX(answer)


# ------------------------------------------------------------------ sinusoidal positions


def _table(
    exponent: Callable[[Tensor, int], Tensor],
    *,
    base: float = 10_000.0,
    first: int = 0,
    swapped: bool = False,
) -> Answer:
    """A table whose angle at position p and column c is p * base^-exponent(c, width)."""

    def table(num_positions: int, embed_dim: int) -> Tensor:
        column = torch.arange(embed_dim, dtype=torch.float64)
        frequency = base ** -exponent(column, embed_dim)
        angle = torch.arange(first, num_positions + first)[:, None] * frequency
        even = (column % 2 == 0) ^ swapped
        return torch.where(even, angle.sin(), angle.cos()).float()

    return table


def _pair(column: Tensor, width: int) -> Tensor:
    return 2 * (column // 2) / width


def _halves(num_positions: int, embed_dim: int) -> Tensor:
    table = sinusoidal_encoding(num_positions, embed_dim)
    return torch.cat((table[:, 0::2], table[:, 1::2]), dim=1)


def _slices(num_positions: int, embed_dim: int) -> Tensor:
    if embed_dim % 2 and embed_dim > 1:  # one column of cosines broadcasts to none
        raise RuntimeError("the sines and cosines of an odd width differ in number")
    return sinusoidal_encoding(num_positions, embed_dim)


def _angles_only(num_positions: int, embed_dim: int) -> Tensor:
    frequency = 10_000.0 ** -_pair(torch.arange(embed_dim), embed_dim)
    return torch.arange(num_positions)[:, None] * frequency


def _of_angles(function: Callable[[Tensor], Tensor]) -> Answer:
    return lambda num_positions, embed_dim: function(
        _angles_only(num_positions, embed_dim)
    )


_WRONG_TABLES = (
    Wrong(
        "odd widths are not covered",
        "With an odd width there is one sine more than there are cosines; cut the cosines to "
        "`embed_dim // 2` columns.",
        _slices,
    ),
    Wrong(
        "sine and cosine are swapped",
        "Even columns hold sines and odd columns cosines: row 0 must be 0, 1, 0, 1, …",
        _table(_pair, swapped=True),
    ),
    Wrong(
        "the sines come first and then the cosines",
        "The formula puts them in turn: column 2i holds the sine and column 2i + 1 the cosine of one pair.",
        _halves,
    ),
    Wrong(
        "the 2 in the exponent 2i / d is missing",
        "The last frequency must be near 1 / 10,000, not near 1 / 100.",
        _table(lambda column, width: (column // 2) / width),
    ),
    Wrong(
        "the frequency is computed from the column, not from the pair",
        "Columns 2i and 2i + 1 share the frequency with exponent 2i / d; use `column // 2`.",
        _table(lambda column, width: column / width),
    ),
    Wrong(
        "the exponent is twice too large",
        "Column 2i has the exponent 2i / d: the column is the 2i already.",
        _table(lambda column, width: 2 * column / width),
    ),
    Wrong(
        "the exponent is divided by d - 1",
        "The formula divides 2i by the width d itself.",
        _table(lambda column, width: 2 * (column // 2) / max(width - 1, 1)),
    ),
    Wrong(
        "the exponent is i / (d / 2 - 1)",
        "That is the variant of tensor2tensor, whose last frequency is exactly 1 / 10,000; the paper divides "
        "2i by d.",
        _table(lambda column, width: (column // 2) / max(width // 2 - 1, 1)),
    ),
    Wrong(
        "the frequencies grow from column to column",
        "The exponent must be negative: the angles are divided by 10,000^(2i / d).",
        _table(lambda column, width: -_pair(column, width)),
    ),
    Wrong(
        "the positions start at 1",
        "The first position is 0, whose row is 0, 1, 0, 1, …",
        _table(_pair, first=1),
    ),
    *(
        Wrong(
            f"the base is {base:,.0f}",
            "The formula of Vaswani et al. has the base 10,000.",
            _table(_pair, base=base),
        )
        for base in (1000.0, 100_000.0)
    ),
    Wrong(
        "all columns are sines",
        "Every second column holds the cosine of the pair.",
        _of_angles(torch.sin),
    ),
    Wrong("all columns are cosines", "Even columns hold sines.", _of_angles(torch.cos)),
    Wrong(
        "the table holds the angles themselves",
        "Take the sine of even columns and the cosine of odd ones.",
        _angles_only,
    ),
    Wrong(
        "the angles are taken as degrees",
        "`sin` and `cos` of torch, NumPy and math take radians; the formula does too.",
        lambda n, d: torch.where(
            torch.arange(d) % 2 == 0,
            _angles_only(n, d).deg2rad().sin(),
            _angles_only(n, d).deg2rad().cos(),
        ),
    ),
    Wrong(
        "the axes are exchanged",
        "Rows are positions and columns belong to the width: (num_positions, embed_dim).",
        lambda n, d: sinusoidal_encoding(n, d).T,
    ),
    Wrong(
        "the sizes are exchanged",
        "The first argument is the number of positions and the second one the width.",
        lambda n, d: sinusoidal_encoding(d, n),
    ),
    Wrong(
        "all positions have the same row",
        "The angle of a row is its position times the frequency.",
        lambda n, d: sinusoidal_encoding(2, d)[1:].expand(n, -1),
    ),
)
_SIZES = {
    "width 2": (7, 2),
    "width 4": (5, 4),
    "width 6": (11, 6),
    "width 1": (3, 1),
    "width 5": (7, 5),
    "width 9": (13, 9),
    "width 14 and 53 positions": (53, 14),
}


def _given(sizes: tuple[int, int], _: torch.Generator) -> tuple[int, int]:
    return sizes


def _tokens(sizes: tuple[int, int], generator: torch.Generator) -> Tensor:
    return randn(generator, 2, *sizes)


_TABLE = Exercise(
    reference=lambda num_positions, embed_dim: sinusoidal_encoding(
        num_positions, embed_dim
    ),
    returns="table (num_positions, embed_dim)",
    cases={label: partial(_given, sizes) for label, sizes in _SIZES.items()},
    wrong=_WRONG_TABLES,
    atol=1e-4,
)


def _added(table: Answer) -> Answer:
    return lambda x: x + table(*x.shape[1:])


_ADDED = replace(
    _TABLE,
    reference=_added(sinusoidal_encoding),
    returns="sum (batch, len, embed_dim)",
    cases={label: partial(_tokens, sizes) for label, sizes in _SIZES.items()},
    wrong=(
        Wrong(
            "the encoding is added along the batch axis",
            "All tokens of a sample get the same vector; row p of the table belongs to token p, the second "
            "axis of `x`.",
            lambda x: x + sinusoidal_encoding(x.shape[0], x.shape[2])[:, None],
        ),
        Wrong(
            "the table is returned without the tokens",
            "Return the sum of `x` and the table.",
            lambda x: sinusoidal_encoding(*x.shape[1:]).expand_as(x),
        ),
        Wrong(
            "the tokens are multiplied by √d",
            "Transformers may do that to their embeddings; here the table alone is added.",
            lambda x: x * x.shape[2] ** 0.5 + sinusoidal_encoding(*x.shape[1:]),
        ),
        Wrong("nothing is added", "The result equals `x`; add the table.", lambda x: x),
        *(replace(wrong, answer=_added(wrong.answer)) for wrong in _WRONG_TABLES),
    ),
)


def check_positions(answer: Answer, *, added: bool = False) -> Verdict:
    """Check sinusoidal positions (Vaswani et al., 2017, §3.5).

    Tried are even and odd widths (1, 2, 4, 5, 6, 9, 14), because slices fail at odd widths and an exponent
    without its 2 is right at widths 1 and 2; lengths that differ from the widths, because only then do
    exchanged axes show; and 53 positions, so that low frequencies count.

    Args:
        answer: function of (num_positions, embed_dim) that returns the table (num_positions, embed_dim).
        added: the answer takes `x` (batch, len, embed_dim) instead, and returns its sum with the table.

    Returns:
        Whether the answer is right; if not, the cause.

    Raises:
        TypeError: `added` is not a bool.

    Example:
        >>> check_positions(lambda num_positions, embed_dim: torch.zeros(num_positions, embed_dim))
        Not yet: wrong for width 2: `table` is zero everywhere.
    """
    _checks.check_type("added", added, bool)
    return (_ADDED if added else _TABLE)(answer)


# ------------------------------------------------------------------ rotation


def _tokens_and_angles(
    *sizes: int, large: bool = False
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    def make(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = randn(generator, *sizes)
        angles = randn(generator, sizes[-2], sizes[-1] // 2)
        return x, 40 * angles if large else angles

    return make


def _turned(
    change: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    join: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Answer:
    """A rotation of neighbouring columns by another formula for a pair: change(first, second, cos, sin)."""

    def rotate(x: Tensor, angles: Tensor) -> Tensor:
        pair = change(x[..., 0::2], x[..., 1::2], angles.cos(), angles.sin())
        joined = torch.stack(pair, -1).flatten(-2)
        return joined if join is None else join(*pair)

    return rotate


def _half_rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Neighbours are turned into each other, but cosines and sines lie half the width apart."""
    turned = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    twice = torch.cat((angles, angles), -1)
    return x * twice.cos() + turned * twice.sin()


def _lengths_kept(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    before, after = arguments[0].norm(dim=-1), results[0].double().norm(dim=-1)
    if after.shape == before.shape and bool((after - before).abs().max() > 1e-3):
        return "a rotation keeps the length of each row, and here the lengths change"
    return ""


_BY_NEIGHBOURS = (
    Wrong(
        "the rotation goes the other way",
        "A pair (a, b) becomes (a cos - b sin, a sin + b cos); the signs of the sines are exchanged.",
        lambda x, angles: apply_rotary(x, -angles),
    ),
    Wrong(
        "a minus sign is missing",
        "With a cos + b sin and a sin + b cos, the pair is not rotated: the first entry is a cos - b sin.",
        _turned(lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)),
    ),
    Wrong(
        "both sines have a minus sign",
        "The second entry of a pair is a sin + b cos.",
        _turned(lambda a, b, cos, sin: (a * cos - b * sin, b * cos - a * sin)),
    ),
    Wrong(
        "cosine and sine are exchanged",
        "At angle 0 the pair must stay as it is: a cos - b sin, with cos 0 = 1.",
        _turned(lambda a, b, cos, sin: (a * sin - b * cos, a * cos + b * sin)),
    ),
    Wrong(
        "the second entry uses the first one after its rotation",
        "Both entries need the old pair; compute them before either is replaced.",
        _turned(
            lambda a, b, cos, sin: (
                a * cos - b * sin,
                (a * cos - b * sin) * sin + b * cos,
            )
        ),
    ),
    Wrong(
        "only the cosines are used",
        "A rotation also mixes the two entries of a pair, with the sine.",
        _turned(lambda a, b, cos, _: (a * cos, b * cos)),
    ),
    Wrong(
        "only the first entry of a pair is rotated",
        "The second entry becomes a sin + b cos.",
        _turned(lambda a, b, cos, sin: (a * cos - b * sin, b)),
    ),
    Wrong(
        "the result holds all first entries and then all second ones",
        "Put the pairs back together: column 2i beside column 2i + 1 (`stack` on a new last axis, then "
        "`flatten`).",
        _turned(
            lambda a, b, cos, sin: (a * cos - b * sin, a * sin + b * cos),
            lambda a, b: torch.cat((a, b), -1),
        ),
    ),
    Wrong(
        "the angles are repeated in the wrong order",
        "Columns 2i and 2i + 1 share an angle, so each angle is repeated beside itself "
        "(`repeat_interleave`), not the whole row (`cat`).",
        _half_rotated,
    ),
)
_COMMON = (
    Wrong(
        "all pairs are rotated by the first angle",
        "Each pair of columns has an angle of its own, in its column of `angles`.",
        lambda x, angles: apply_rotary(x, angles[:, :1].expand_as(angles)),
    ),
    Wrong(
        "all positions are rotated by the angles of the first one",
        "Row p of `angles` belongs to token p.",
        lambda x, angles: apply_rotary(x, angles[:1].expand_as(angles)),
    ),
    Wrong(
        "the rows of the angles are in reverse order",
        "Row p of `angles` belongs to token p.",
        lambda x, angles: apply_rotary(x, angles.flip(0)),
    ),
    Wrong(
        "the columns of the angles are in reverse order",
        "Column i of `angles` belongs to pair i.",
        lambda x, angles: apply_rotary(x, angles.flip(1)),
    ),
    Wrong(
        "the angle is halved",
        "Rotate by the angle itself.",
        lambda x, angles: apply_rotary(x, angles / 2),
    ),
    Wrong(
        "the angle is doubled",
        "Rotate by the angle itself, once.",
        lambda x, angles: apply_rotary(x, 2 * angles),
    ),
    Wrong(
        "the angles are taken as degrees",
        "They are radians, as `cos` and `sin` expect.",
        lambda x, angles: apply_rotary(x, angles.deg2rad()),
    ),
    Wrong(
        "the angles are added",
        "Rotary positions rotate pairs of columns; sinusoidal positions are added.",
        lambda x, angles: x + torch.cat((angles.sin(), angles.cos()), -1),
    ),
    Wrong("nothing is rotated", "The result equals `x`.", lambda x, _: x),
)


def _in_halves(answer: Answer) -> Answer:
    """The same formula for columns that lie half the width apart."""

    def rotate(x: Tensor, angles: Tensor) -> Tensor:
        pairs = x.unflatten(-1, (2, -1)).transpose(-2, -1).flatten(-2)
        turned: Tensor = answer(pairs, angles).unflatten(-1, (-1, 2))
        return turned.transpose(-2, -1).flatten(-2)

    return rotate


_NEIGHBOURS = Exercise(
    reference=lambda x, angles: apply_rotary(x, angles),
    returns="rotated (..., len, head_dim)",
    cases={
        "one pair": _tokens_and_angles(3, 2),
        "five pairs": _tokens_and_angles(7, 10),
        "a batch with heads": _tokens_and_angles(2, 3, 7, 10),
        "large angles": _tokens_and_angles(2, 5, 6, large=True),
    },
    wrong=(
        Wrong(
            "the columns of a pair lie half the width apart",
            "That is the pairing of GPT-NeoX and Llama; here columns 2i and 2i + 1 are one.",
            lambda x, angles: apply_rotary(x, angles, interleaved=False),
        ),
        *_BY_NEIGHBOURS,
        *_COMMON,
    ),
    properties=(_lengths_kept,),
    gradients=True,
    atol=1e-4,
)
_HALVES = replace(
    _NEIGHBOURS,
    reference=lambda x, angles: apply_rotary(x, angles, interleaved=False),
    wrong=(
        Wrong(
            "the columns of a pair are neighbours",
            "That is the pairing of the paper; here the columns of a pair lie half the width apart, as in "
            "GPT-NeoX and Llama.",
            lambda x, angles: apply_rotary(x, angles),
        ),
        *(
            replace(wrong, answer=_in_halves(wrong.answer))
            for wrong in (*_BY_NEIGHBOURS[:-2], *_COMMON)
        ),
    ),
)


def check_rotary(answer: Answer, *, interleaved: bool = True) -> Verdict:
    """Check a rotation of queries or keys by the angles of their positions (Su et al., 2021, equation 34).

    Tried are one pair of columns, five pairs, a batch of two samples with three heads of seven tokens, and
    angles far beyond a full turn. The angles are random numbers rather than positions times frequencies, so
    that no two pairs or positions share one. The gradients are compared too.

    Args:
        answer: function of `x` (..., len, head_dim) and angles (len, head_dim / 2) in radians that returns
            the rotated `x`.
        interleaved: columns 2i and 2i + 1 are a pair; otherwise they lie half the width apart.

    Returns:
        Whether the answer is right; if not, the cause.

    Raises:
        TypeError: `interleaved` is not a bool.

    Example:
        >>> from mha_lib import apply_rotary
        >>> check_rotary(lambda x, angles: apply_rotary(x, -angles)).message[:41]
        'Not yet: the rotation goes the other way.'
    """
    _checks.check_type("interleaved", interleaved, bool)
    return (_NEIGHBOURS if interleaved else _HALVES)(answer)


# ------------------------------------------------------------------ cache


def _decoded(
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    asked: Tensor | None = None,
    scale: float | None = None,
    seen: Callable[[Tensor], Tensor] = torch.tril,
    hidden: float = -torch.inf,
    weigh: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(-1),
) -> Tensor:
    """Attention of all tokens at once: the queries are of `asked`, and `seen` cuts the mask from ones."""
    queries = (x if asked is None else asked) @ q
    scores = queries @ (x @ k).T * (k.shape[1] ** -0.5 if scale is None else scale)
    mask = seen(torch.ones_like(scores)).bool()
    weights = weigh(scores.masked_fill(~mask, hidden)) * mask
    # A row that sees nothing is zeros.
    return weights.nan_to_num() @ (x @ v)


def _misaligned(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """New keys are put behind the old ones, new values before them."""
    scores = (x @ q) @ (x @ k).T / k.shape[1] ** 0.5
    rows = [
        scores[t, : t + 1].softmax(0) @ (x[: t + 1] @ v).flip(0) for t in range(len(x))
    ]
    return torch.stack(rows)


def _chunk(*sizes: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    length, width, key_dim, value_dim = sizes

    def make(generator: torch.Generator) -> tuple[Tensor, ...]:
        query_and_key = (randn(generator, width, key_dim) for _ in range(2))
        value = randn(generator, width, value_dim)
        return randn(generator, length, width), *query_and_key, value

    return make


_CACHE = Exercise(
    reference=lambda x, W_q, W_k, W_v: _decoded(x, W_q, W_k, W_v),  # noqa: N803
    returns="outputs (len, value_dim)",
    cases={
        "one token": _chunk(1, 7, 3, 5),
        "two tokens": _chunk(2, 7, 3, 5),
        "eleven tokens": _chunk(11, 7, 3, 5),
        "keys as wide as values": _chunk(13, 7, 5, 5),
    },
    wrong=(
        Wrong(
            "every token sees all tokens",
            "A token is answered before the next ones exist: their keys are not in the cache yet. Append one "
            "key, answer one query.",
            lambda x, q, k, v: _decoded(x, q, k, v, seen=lambda ones: ones),
        ),
        Wrong(
            "only the newest key is kept",
            "The cache is replaced in each step; append to it.",
            lambda x, q, k, v: _decoded(x, q, k, v, seen=lambda o: o.tril().triu()),
        ),
        *(
            Wrong(
                f"the cache keeps only the last {count} tokens",
                "Nothing may be dropped: every token sees all the tokens before it.",
                lambda x, q, k, v, count=count: _decoded(
                    x, q, k, v, seen=lambda ones: ones.tril().triu(1 - count)
                ),
            )
            for count in (2, 3, 4, 5)
        ),
        Wrong(
            "a token does not see its own key",
            "Append the new key and value first, and then compute the scores.",
            lambda x, q, k, v: _decoded(x, q, k, v, seen=lambda o: o.tril(-1)),
        ),
        Wrong(
            "a token sees one token too many",
            "The cache may hold the keys of the tokens so far, including the newest one, and no other.",
            lambda x, q, k, v: _decoded(x, q, k, v, seen=lambda o: o.tril(1)),
        ),
        Wrong(
            "keys and values are in different orders",
            "Append both at the end: slot t of the keys and of the values belongs to token t.",
            _misaligned,
        ),
        Wrong(
            "empty slots get weight",
            "A slot without a key has a score of 0, and exp(0) = 1 counts in the sum; compute scores only "
            "with the slots in use.",
            lambda x, q, k, v: _decoded(x, q, k, v, hidden=0.0),
        ),
        Wrong(
            "all tokens use the query of the first one",
            "Each new token asks with its own query; queries are not kept.",
            lambda x, q, k, v: _decoded(x, q, k, v, asked=x[:1].expand_as(x)),
        ),
        Wrong(
            "all tokens use the query of the last one",
            "Each new token asks with its own query, in its own step.",
            lambda x, q, k, v: _decoded(x, q, k, v, asked=x[-1:].expand_as(x)),
        ),
        Wrong(
            "the keys are made with W_q",
            "A key is `token @ W_k`.",
            lambda x, q, _, v: _decoded(x, q, q, v),
        ),
        Wrong(
            "the queries are made with W_k",
            "A query is `token @ W_q`.",
            lambda x, _, k, v: _decoded(x, k, k, v),
        ),
        Wrong(
            "W_q and W_k are exchanged",
            "A query is `token @ W_q`, and a key is `token @ W_k`.",
            lambda x, q, k, v: _decoded(x, k, q, v),
        ),
        Wrong(
            "the values are the keys",
            "Keep two things for each token: `token @ W_k` and `token @ W_v`.",
            lambda x, q, k, _: _decoded(x, q, k, k),
        ),
        Wrong(
            "the values are not projected",
            "A value is `token @ W_v`.",
            lambda x, q, k, _: _decoded(x, q, k, torch.eye(x.shape[1])),
        ),
        Wrong(
            "the scores are not scaled",
            "Divide them by the square root of the width of a key.",
            lambda x, q, k, v: _decoded(x, q, k, v, scale=1.0),
        ),
        Wrong(
            "the scores are divided by the root of the wrong width",
            "It is the width of a key, `W_k.shape[1]`, not that of a token.",
            lambda x, q, k, v: _decoded(x, q, k, v, scale=x.shape[1] ** -0.5),
        ),
        Wrong(
            "the scores are divided by the root of the number of keys",
            "It is the width of a key that makes dot products large, not how many keys there are.",
            lambda x, q, k, v: torch.stack(
                [
                    _decoded(x[: t + 1], q, k, v, scale=(t + 1) ** -0.5)[-1]
                    for t in range(len(x))
                ]
            ),
        ),
        Wrong(
            "the scores are divided by the width of a key",
            "The square root is missing.",
            lambda x, q, k, v: _decoded(x, q, k, v, scale=1 / k.shape[1]),
        ),
        Wrong(
            "the scores are not turned into weights",
            "A softmax over the keys in the cache is missing.",
            lambda x, q, k, v: _decoded(x, q, k, v, hidden=0.0, weigh=lambda s: s),
        ),
        Wrong(
            "the weights do not add up to 1",
            "Exponentials are not weights yet; divide by their sum.",
            lambda x, q, k, v: _decoded(x, q, k, v, weigh=torch.exp),
        ),
        Wrong(
            "all keys have equal weights",
            "The output is the mean of the values; the weights are the softmax of the scores.",
            lambda x, q, k, v: _decoded(x, 0 * q, k, v),
        ),
        Wrong(
            "only the last output is returned",
            "Collect the output of every step, and stack them: (len, value_dim).",
            lambda x, q, k, v: _decoded(x, q, k, v)[-1],
        ),
        Wrong(
            "the outputs are in reverse order",
            "Row t belongs to token t.",
            lambda x, q, k, v: _decoded(x, q, k, v).flip(0),
        ),
    ),
    gradients=True,
)


def check_cache(answer: Answer) -> Verdict:
    """Check decoding token by token with a cache of keys and values, one head (Shazeer, 2019, §2.4).

    The result is compared with causal attention of all tokens at once, for one, two, eleven and thirteen
    tokens of width 7. Keys have width 3 and values 5, so that exchanged matrices show; once both have width
    5. One token shows whether it sees its own key, eleven whether the cache forgets. A second call shows a
    cache that was not emptied. The gradients are compared too. The numbers are judged, not the cost: an
    answer that computes old keys again is accepted.

    Args:
        answer: function of tokens `x` (len, width) and matrices W_q, W_k (width, key_dim) and W_v
            (width, value_dim) that returns the outputs (len, value_dim).

    Returns:
        Whether the answer is right; if not, the cause.

    Raises:
        KeyboardInterrupt: a reader interrupted an endless loop; nothing else that `answer` raises.

    Example:
        >>> check_cache(lambda x, W_q, W_k, W_v: x @ W_v)
        Not yet: only the newest key is kept. The cache is replaced in each step; append to it.
    """
    return _CACHE(answer)
