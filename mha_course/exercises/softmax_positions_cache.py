"""Checkers for parts of the layer: the masked softmax, positions, the cache."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Generator, Tensor

from attention_check._results import Answer, Verdict
from mha_course._exercise import randn, rows_sum_to_one
from mha_course._pieces import narrowed
from mha_course._sizes import Texts, with_other_sizes
from mha_lib import _checks

exercise = Texts(__name__)

# ------------------------------------------------------------------ masked softmax


def _scores_and_mask(
    g: Generator, visible: str, shift: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Scores (2, 3, 5); `visible` says which keys are seen: "all", "three", "random", "none", and so on."""
    scores = 3 * randn(g, 2, 3, 5) + shift
    mask = torch.ones(2, 3, 5, dtype=torch.bool)
    if visible != "all":
        mask &= torch.tensor([True, True, False, True, False])
    if visible == "random":
        mask = torch.rand(2, 3, 5, generator=g) > 0.4
        mask[..., 1] = True
    if visible == "none":
        mask[0, 1] = False
    if visible == "nothing at all":
        mask[:] = False
    if visible == "a large hidden score":
        scores[..., 2] = 300.0
    return scores, mask


def _in_float16(g: Generator) -> tuple[Tensor, Tensor]:
    scores, mask = _scores_and_mask(g, "none")
    return scores.half(), mask


def _masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return scores.softmax(dim=-1)
    hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return hidden.softmax(-1) * mask


def _hidden_weigh_nothing(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    """A property: hidden keys have weight 0."""
    if len(arguments) < 2:
        return ""
    mask, weights = arguments[1], results[0]
    seen = weights.masked_fill(mask, 0.0).abs()
    if not bool((seen > 1e-6).any()):
        return ""
    place = (seen > 1e-6).nonzero()[0].tolist()
    return f"a hidden key has weight {float(weights[tuple(place)]):.2g}, at {place}"


_SOFTMAX = exercise(
    "_SOFTMAX",
    other_sizes=[1, 17],
    reference=_masked_softmax,
    returns="weights (batch, q_len, k_len)",
    properties=(_hidden_weigh_nothing, rows_sum_to_one()),
    gradients=True,
)
# Later pieces call the reader's own function without a mask too; an exercise on a mask need not allow that.
_CASES = {**exercise.cases("check_my_masked_softmax"), **_SOFTMAX.cases}
check_my_masked_softmax = replace(
    _SOFTMAX,
    then=partial(narrowed, [(3, 5), [3, 5]]),
    same_dtype=True,
    seeds=False,
    arrays=False,
    cases=_CASES,
    further=with_other_sizes(_CASES, [1, 17]),
    wrong=(
        *exercise.mistakes("check_my_masked_softmax", _masked_softmax),
        *_SOFTMAX.wrong,
    ),
)


def check_masked_softmax(answer: Answer) -> Verdict:
    """Check a softmax over the keys that a mask shows.

    The scores have shape (2, 3, 5), with three different sizes so that a wrong axis shows, and masks
    of the same shape: one that hides nothing, the same three keys for all, different keys for each query; a
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


def _sinusoids(num_positions: int, embed_dim: int) -> Tensor:
    column = torch.arange(embed_dim, dtype=torch.float64)
    frequency = 10_000.0 ** (-2 * (column // 2) / embed_dim)
    angle = torch.arange(num_positions)[:, None] * frequency
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()


def _with_sinusoids(x: Tensor) -> Tensor:
    return x + _sinusoids(*x.shape[1:])


_TABLE = exercise(
    "_TABLE",
    reference=_sinusoids,
    returns="table (num_positions, embed_dim)",
    atol=1e-4,
)
_ADDED = exercise(
    "_ADDED",
    reference=_with_sinusoids,
    also=exercise.mistakes("_TABLE", _with_sinusoids),
    returns="sum (batch, len, embed_dim)",
    atol=1e-4,
)


def check_positions(answer: Answer, *, added: bool = False) -> Verdict:
    """Check sinusoidal positions (Vaswani et al., 2017, §3.5).

    The cases are even and odd widths (1, 2, 4, 5, 6, 9, 14), as slices fail at odd widths, and an exponent
    without its 2 is right at widths 1 and 2; lengths that differ from the widths, because only then do
    swapped axes show; and 53 positions, so that low frequencies count.

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


# ------------------------------------------------------------------ cache


def _decoded(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor) -> Tensor:  # noqa: N803
    keys, values, outputs = [], [], []
    for token in x:
        keys.append(token @ W_k)
        values.append(token @ W_v)
        scores = torch.stack(keys) @ (token @ W_q) / sqrt(W_k.shape[1])
        outputs.append(scores.softmax(0) @ torch.stack(values))
    return torch.stack(outputs)


_CACHE = exercise(
    "_CACHE",
    other_sizes=[1],
    reference=_decoded,
    returns="outputs (len, value_dim)",
    gradients=True,
    detached=True,
    atol=1e-4,
)


def check_cache(answer: Answer) -> Verdict:
    """Check decoding token by token with a cache of keys and values, one head (Shazeer, 2019, §2.4).

    The result is compared with causal attention of all tokens at once, for one, two, eleven and thirteen
    tokens of width 7. Keys have width 3 and values 5, so that swapped matrices show; once both have width
    5. One token reveals whether it sees its own key, eleven whether the cache forgets, another call whether a
    new sequence starts with an empty cache. Gradients are compared too, unless no output has one, because
    decoding under `torch.no_grad()` is recommended. Only numbers are judged, so an answer that computes old
    keys again is accepted.

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
