"""Checkers for chapter 2: masks by comparison, the scale, scores, and an attention that obeys a mask.

They are exercises as data; `engine` says how they judge an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mha_lib.attention import dot_product_attention
from mha_lib.exercises.engine import Answer, Exercise, Wrong, randn
from mha_lib.masking import causal_mask, valid_lens_mask
from mha_lib.scores import gaussian_score

# ------------------------------------------------------------------ padding on the left


def _last_keys(valid_lens: Tensor, k_len: int) -> Tensor:
    visible = torch.arange(k_len) >= k_len - valid_lens[..., None]
    return visible[:, None, :] if valid_lens.ndim == 1 else visible


check_left_lens_mask = Exercise(
    reference=_last_keys,
    returns="mask (batch, 1 or q_len, k_len)",
    cases={
        "three samples of seven keys": lambda g: (torch.tensor([0, 2, 7]), 7),
        "three samples of three keys": lambda g: (torch.tensor([1, 2, 3]), 3),
        "a length for each query": lambda g: (
            torch.tensor([[1, 2], [0, 5], [3, 3]]),
            5,
        ),
    },
    wrong=(
        Wrong(
            "the lengths have no axis for the keys",
            "Key j is compared with the length of sample j, which raises an error unless there are as many "
            "samples as keys; `valid_lens[..., None]` adds the axis.",
            lambda valid_lens, k_len: torch.arange(k_len) >= k_len - valid_lens,
        ),
        Wrong(
            "the first keys are visible",
            "That is padding on the right; here the tokens stand at the end, from position "
            "`k_len - valid_lens` on.",
            lambda valid_lens, k_len: _last_keys(valid_lens, k_len).flip(-1),
        ),
        Wrong(
            "one key too few is visible",
            "With a length of 2 and 7 keys, the keys 5 and 6 are visible: position `k_len - valid_lens` "
            "itself belongs to the tokens, so compare with `>=`.",
            lambda valid_lens, k_len: _last_keys((valid_lens - 1).clamp(min=0), k_len),
        ),
        Wrong(
            "one key too many is visible",
            "With a length of 0 no key may be visible; counted from 0, the first token is at "
            "`k_len - valid_lens`.",
            lambda valid_lens, k_len: _last_keys(valid_lens + 1, k_len),
        ),
        Wrong(
            "the mask is inverted",
            "True means that the key may be attended to, and the last keys are the real ones.",
            lambda valid_lens, k_len: ~_last_keys(valid_lens, k_len),
        ),
        Wrong(
            "with one length for each sample, the axis of the queries is missing",
            "The mask needs the shape (batch, 1, k_len), whose axis of size 1 broadcasts over the queries.",
            lambda valid_lens, k_len: (
                torch.arange(k_len) >= k_len - valid_lens[..., None]
            ),
        ),
        Wrong(
            "with one length for each query, there is an axis too many",
            "These lengths have an axis for the queries already; only lengths of shape (batch,) need "
            "another one.",
            lambda valid_lens, k_len: (
                torch.arange(k_len) >= k_len - valid_lens[..., None]
            )[:, None],
        ),
    ),
)

# ------------------------------------------------------------------ a causal mask from a triangle


def _triangle(q_len: int, k_len: int, diagonal: int) -> Tensor:
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal)


check_triangle = Exercise(
    reference=causal_mask,
    returns="mask (q_len, k_len)",
    cases={
        "5 queries, 5 keys": lambda g: (5, 5),
        "2 queries, 7 keys": lambda g: (2, 7),
        "1 query, 11 keys": lambda g: (1, 11),
        "5 queries, 3 keys": lambda g: (5, 3),
    },
    wrong=(
        Wrong(
            "the triangle starts at the first key",
            "Queries and keys end together: the last query belongs to the last key, so the diagonal must "
            "move by the difference of the two lengths.",
            lambda q_len, k_len: _triangle(q_len, k_len, 0),
        ),
        Wrong(
            "the diagonal moves the wrong way",
            "A positive `diagonal` shows more keys; with more keys than queries the last query must still "
            "see all of them.",
            lambda q_len, k_len: _triangle(q_len, k_len, q_len - k_len),
        ),
        Wrong(
            "no query sees its own key",
            "Query i is at the place of key i + k_len - q_len, and may attend to it.",
            lambda q_len, k_len: _triangle(q_len, k_len, k_len - q_len - 1),
        ),
        Wrong(
            "each query sees one key of the future",
            "The diagonal is too high by 1.",
            lambda q_len, k_len: _triangle(q_len, k_len, k_len - q_len + 1),
        ),
        Wrong(
            "the mask shows the future and hides the past",
            "`triu` keeps the upper triangle, which holds the later keys; `tril` keeps the lower one.",
            lambda q_len, k_len: torch.ones(q_len, k_len, dtype=torch.bool).triu(
                k_len - q_len
            ),
        ),
        Wrong(
            "the mask is inverted",
            "True means that the query may attend to the key.",
            lambda q_len, k_len: ~causal_mask(q_len, k_len),
        ),
        Wrong(
            "the mask shows earlier keys only where there are at least as many keys as queries",
            "With more queries than keys, the difference of the lengths is negative, and the first queries "
            "see nothing; do not cut it off at 0.",
            lambda q_len, k_len: _triangle(q_len, k_len, max(k_len - q_len, 0)),
        ),
        Wrong(
            "the mask holds numbers",
            "The triangle is right, but a mask is bool: pass `dtype=torch.bool` to `torch.ones`.",
            lambda q_len, k_len: causal_mask(q_len, k_len).float(),
        ),
    ),
)

# ------------------------------------------------------------------ the variance of other entries


def _moments(
    d: int, mu_q: float, mu_k: float, sigma_q: float, sigma_k: float
) -> tuple[float, float, float]:
    """Mean and variance of q · k, and the divisor that the softmax needs."""
    square_q, square_k = sigma_q**2 + mu_q**2, sigma_k**2 + mu_k**2
    variance = d * (square_q * square_k - (mu_q * mu_k) ** 2)
    return d * mu_q * mu_k, variance, sqrt(d * square_q * sigma_k**2)


def _replace(
    position: int, part: Callable[..., float]
) -> Callable[..., tuple[float, ...]]:
    """The right answer, with another number in one place."""

    def answer(
        d: int, mu_q: float, mu_k: float, sigma_q: float, sigma_k: float
    ) -> tuple[float, ...]:
        right = list(_moments(d, mu_q, mu_k, sigma_q, sigma_k))
        right[position] = part(d, mu_q, mu_k, sigma_q, sigma_k)
        return tuple(right)

    return answer


check_score_moments = Exercise(
    reference=_moments,
    returns=("mean", "variance", "divisor"),
    cases={
        "means of 0 and variances of 1": lambda g: (7, 0.0, 0.0, 1.0, 1.0),
        "keys with a common offset": lambda g: (11, 0.0, 3.0, 2.0, 0.7),
        "queries with a common offset": lambda g: (13, 0.5, 0.0, 2.0, 0.7),
        "entries of any mean and variance": lambda g: (17, 0.5, -1.0, 1.3, 0.6),
    },
    wrong=(
        Wrong(
            "the divisor is the square root of the full variance",
            "Part of the variance comes from the offset of the keys: mu_k times the sum of the query is the "
            "same for all keys of a query, and the softmax cancels it. Divide by what is left.",
            _replace(2, lambda *a: sqrt(_moments(*a)[1])),
        ),
        Wrong(
            "the divisor is the square root of the width",
            "That is right for means of 0 and variances of 1 only.",
            _replace(2, lambda d, *_: sqrt(d)),
        ),
        Wrong(
            "the divisor is a variance",
            "Dividing by a number divides the variance by its square, so take the square root.",
            _replace(2, lambda *a: _moments(*a)[2] ** 2),
        ),
        Wrong(
            "the divisor leaves out the mean of the query",
            "For a fixed query the scores have variance ‖q‖² sigma_k², and the mean of q_i² is "
            "sigma_q² + mu_q².",
            _replace(
                2, lambda d, mu_q, mu_k, sigma_q, sigma_k: sqrt(d) * sigma_q * sigma_k
            ),
        ),
        Wrong(
            "the divisor exchanges query and key",
            "The query is fixed and the keys vary, so the variance of the *keys* counts.",
            _replace(
                2,
                lambda d, mu_q, mu_k, sigma_q, sigma_k: sqrt(
                    d * sigma_q**2 * (sigma_k**2 + mu_k**2)
                ),
            ),
        ),
        Wrong(
            "the variance leaves out the means",
            "The mean of q_i² is sigma_q² + mu_q², not sigma_q².",
            _replace(
                1, lambda d, mu_q, mu_k, sigma_q, sigma_k: d * (sigma_q * sigma_k) ** 2
            ),
        ),
        Wrong(
            "the variance is the mean of the square",
            "Subtract the square of the mean, once for each of the products.",
            _replace(
                1,
                lambda d, mu_q, mu_k, sigma_q, sigma_k: (
                    d * (sigma_q**2 + mu_q**2) * (sigma_k**2 + mu_k**2)
                ),
            ),
        ),
        Wrong(
            "the variance subtracts the square of the mean of the whole sum",
            "The variances of the products add up; each of them subtracts (mu_q mu_k)², which makes d times "
            "(mu_q mu_k)², not (d mu_q mu_k)².",
            _replace(
                1,
                lambda d, mu_q, mu_k, sigma_q, sigma_k: (
                    d * (sigma_q**2 + mu_q**2) * (sigma_k**2 + mu_k**2)
                    - (d * mu_q * mu_k) ** 2
                ),
            ),
        ),
        Wrong(
            "the mean is that of one product",
            "There are d products, and their means add up.",
            _replace(0, lambda d, mu_q, mu_k, sigma_q, sigma_k: mu_q * mu_k),
        ),
    ),
)

# ------------------------------------------------------------------ three masks at once


def _rules(
    valid_lens: Tensor, length: int, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What is real, what is not in the future, what is in the window; each (batch, length, length)."""
    position = torch.arange(length)
    back = (position[:, None] - position).expand(len(valid_lens), length, length)
    real = valid_lens_mask(valid_lens, length).expand_as(back)
    return real, back >= 0, back < window


def _three(valid_lens: Tensor, length: int, window: int) -> Tensor:
    real, past, near = _rules(valid_lens, length, window)
    return real & past & near


def _by_or(valid_lens: Tensor, length: int, window: int) -> Tensor:
    real, past, near = _rules(valid_lens, length, window)
    return real | past | near


def _without(rule: int) -> Answer:
    def answer(valid_lens: Tensor, length: int, window: int) -> Tensor:
        rules = list(_rules(valid_lens, length, window))
        del rules[rule]
        return rules[0] & rules[1]

    return answer


def _both_sides(valid_lens: Tensor, length: int, window: int) -> Tensor:
    real, _, near = _rules(valid_lens, length, window)
    return real & near & near.transpose(-2, -1)


def _far_only(valid_lens: Tensor, length: int, window: int) -> Tensor:
    real, past, near = _rules(valid_lens, length, window)
    return real & past & ~near


def _own_hidden(valid_lens: Tensor, length: int, window: int) -> Tensor:
    return _three(valid_lens, length, window) & ~torch.eye(length, dtype=torch.bool)


def _padding_queries_hidden(valid_lens: Tensor, length: int, window: int) -> Tensor:
    mask = _three(valid_lens, length, window)
    return mask & valid_lens_mask(valid_lens, length).transpose(-2, -1)


check_three_masks = Exercise(
    reference=_three,
    returns="mask (batch, length, length)",
    cases={
        "seven tokens without padding, a window of three": lambda g: (
            torch.tensor([7, 7]),
            7,
            3,
        ),
        "lengths of 6, 3 and 4": lambda g: (torch.tensor([6, 3, 4]), 7, 3),
        "a window of two": lambda g: (torch.tensor([5, 2]), 5, 2),
    },
    wrong=(
        Wrong(
            'the rules are joined by "or"',
            "A key is *hidden* if it is padding or future or too far; it may be *seen* only if all three "
            "rules allow it, so join the masks with `&`.",
            _by_or,
        ),
        Wrong(
            "the future is visible",
            "The window is a rule about the past only: a negative distance is smaller than the window too. "
            "The causal mask is missing.",
            _without(1),
        ),
        Wrong(
            "the window reaches into the future",
            "It holds the latest keys; a causal rule must hide the keys after the query.",
            _both_sides,
        ),
        Wrong(
            "the window is one key too wide",
            "A window of three shows the query's own key and two before it, so the distance must be "
            "*smaller* than the window.",
            lambda valid_lens, length, window: _three(valid_lens, length, window + 1),
        ),
        Wrong(
            "the window is one key too narrow",
            "A window of three shows three keys, and the query's own key is one of them.",
            lambda valid_lens, length, window: _three(valid_lens, length, window - 1),
        ),
        Wrong(
            "the padding is visible",
            "The mask from the lengths is missing.",
            _without(0),
        ),
        Wrong(
            "there is no window",
            "Keys that are `window` or more places back must be hidden.",
            _without(2),
        ),
        Wrong(
            "only keys outside the window are visible",
            "The comparison with the window is the wrong way round.",
            _far_only,
        ),
        Wrong(
            "no query sees its own key",
            "The window includes the query's own key, at distance 0.",
            _own_hidden,
        ),
        Wrong(
            "padding queries see nothing",
            "The lengths say which *keys* are padding; what a padding query returns is ignored later.",
            _padding_queries_hidden,
        ),
        Wrong(
            "the mask is inverted",
            "True means that the query may attend to the key.",
            lambda valid_lens, length, window: ~_three(valid_lens, length, window),
        ),
    ),
)

# ------------------------------------------------------------------ the tutorial, repaired


def _by_filling(x: Tensor, mask: Tensor, number: float) -> tuple[Tensor, Tensor]:
    scores = x @ x.transpose(-2, -1) / sqrt(x.shape[-1])
    weights = scores.masked_fill(~mask, number).softmax(-1)
    return weights @ x, weights


def _tutorial_mask(x: Tensor, valid_lens: Tensor | None, is_causal: bool) -> Tensor:
    length = x.shape[1]
    mask = torch.ones(len(x), length, length, dtype=torch.bool)
    if valid_lens is not None:
        mask &= valid_lens_mask(valid_lens, length)
    return mask & causal_mask(length) if is_causal else mask


def _repaired(
    x: Tensor, valid_lens: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    return dot_product_attention(x, x, x, valid_lens=valid_lens, is_causal=is_causal)


def _on_padding(
    x: Tensor, valid_lens: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    mask = _tutorial_mask(x, None, is_causal)
    if valid_lens is not None:
        mask &= ~valid_lens_mask(valid_lens, x.shape[1])
    return dot_product_attention(x, x, x, mask)


def _by_or_in_attention(
    x: Tensor, valid_lens: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    if valid_lens is None or not is_causal:
        return _repaired(x, valid_lens, is_causal)
    mask = valid_lens_mask(valid_lens, x.shape[1]) | causal_mask(x.shape[1])
    return dot_product_attention(x, x, x, mask)


def _queries_hidden(
    x: Tensor, valid_lens: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    mask = _tutorial_mask(x, None, is_causal)
    if valid_lens is not None:
        mask &= valid_lens_mask(valid_lens, x.shape[1]).transpose(-2, -1)
    return dot_product_attention(x, x, x, mask)


check_repaired = Exercise(
    reference=_repaired,
    returns=("output (batch, length, width)", "weights (batch, length, length)"),
    cases={
        "the tokens alone": lambda g: (randn(g, 2, 5, 3),),
        "lengths of 5 and 2": lambda g: (randn(g, 2, 7, 3), torch.tensor([5, 2])),
        "a causal mask": lambda g: (randn(g, 2, 5, 3), None, True),
        "a causal mask with lengths": lambda g: (
            randn(g, 2, 7, 3),
            torch.tensor([5, 2]),
            True,
        ),
        "a sample that is all padding": lambda g: (
            randn(g, 3, 5, 2),
            torch.tensor([4, 0, 5]),
        ),
    },
    wrong=(
        Wrong(
            "a sample that is all padding gives NaN",
            "A row of scores that are all -inf is 0 / 0 in the softmax; `my_attention` returns zeros there.",
            lambda x, valid_lens=None, is_causal=False: _by_filling(
                x, _tutorial_mask(x, valid_lens, is_causal), -torch.inf
            ),
        ),
        Wrong(
            "a sample that is all padding attends to all of it",
            "If every score is filled with the same finite number, the weights of the row are uniform; "
            "multiply them by the mask, as `my_masked_softmax` does.",
            lambda x, valid_lens=None, is_causal=False: _by_filling(
                x, _tutorial_mask(x, valid_lens, is_causal), -1e9
            ),
        ),
        Wrong(
            "the tokens are hidden and the padding is seen",
            "The mask from the lengths is inverted: the first `valid_lens` keys are the real ones.",
            _on_padding,
        ),
        Wrong(
            'lengths and causal mask are joined by "or"',
            "A key may be seen only if both rules allow it.",
            _by_or_in_attention,
        ),
        Wrong(
            "the lengths hide queries instead of keys",
            "The comparison with the lengths belongs on the last axis, which is that of the keys.",
            _queries_hidden,
        ),
        Wrong(
            "the lengths are ignored",
            "Keys after the length of their sample must have weight 0.",
            lambda x, valid_lens=None, is_causal=False: _repaired(x, None, is_causal),
        ),
        Wrong(
            "`is_causal` is ignored",
            "With `is_causal=True` no token may see a later one.",
            lambda x, valid_lens=None, is_causal=False: _repaired(x, valid_lens),
        ),
        Wrong(
            "the scores are not scaled",
            "They are divided by the square root of the width; `my_attention` does so.",
            lambda x, valid_lens=None, is_causal=False: dot_product_attention(
                x, x, x, valid_lens=valid_lens, is_causal=is_causal, scale=1.0
            ),
        ),
    ),
)

# ------------------------------------------------------------------ queries and keys of different widths


def _bilinear(query_matrix: Tensor, key_matrix: Tensor) -> tuple[Tensor, int]:
    rank = min(*query_matrix.shape, *key_matrix.shape)
    return query_matrix @ key_matrix.T, rank


check_bilinear_matrix = Exercise(
    reference=_bilinear,
    returns=("W (query_dim, key_dim)", "highest_rank"),
    cases={
        "widths of 3 and 5, r = 2": lambda g: (randn(g, 3, 2), randn(g, 5, 2)),
        "widths of 7 and 5, r = 3": lambda g: (randn(g, 7, 3), randn(g, 5, 3)),
        "widths of 3 and 5, r = 11": lambda g: (randn(g, 3, 11), randn(g, 5, 11)),
    },
    wrong=(
        Wrong(
            "W is transposed",
            "The score is q W kᵀ, so the rows of W belong to the query and its columns to the key.",
            lambda a, b: (b @ a.T, _bilinear(a, b)[1]),
        ),
        Wrong(
            "the highest rank is r, even where r is larger than a width",
            "A matrix cannot have a higher rank than it has rows or columns.",
            lambda a, b: (a @ b.T, a.shape[1]),
        ),
        Wrong(
            "the highest rank is that of any matrix of this shape",
            "W is a product of matrices with r columns, so its rank is at most r.",
            lambda a, b: (a @ b.T, min(len(a), len(b))),
        ),
        Wrong(
            "W is scaled",
            "The exercise takes the plain dot product; the factor 1 / √r comes in the next chapter.",
            lambda a, b: (a @ b.T / sqrt(a.shape[1]), _bilinear(a, b)[1]),
        ),
        Wrong(
            "W compares the r projected numbers with each other",
            "Its shape is (r, r), and it multiplies the wrong sides; (q A) (k B)ᵀ = q A Bᵀ kᵀ.",
            lambda a, b: (a.T @ a, _bilinear(a, b)[1]),
        ),
    ),
)

# ------------------------------------------------------------------ distances from dot products


class _Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor holds that is made inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def _distances(
    answer: Answer, query: Tensor, key: Tensor, bandwidth: float
) -> tuple[Any, ...] | None:
    """The scores, whether they change far from 0, and whether all differences were built."""
    with _Largest() as largest:
        scores = answer(query, key, bandwidth)
    if scores is None:
        return None
    no = torch.tensor(
        False
    )  # the two other questions are asked only about right scores
    right = gaussian_score(query, key, bandwidth)
    if not isinstance(scores, Tensor) or scores.shape != right.shape:
        return scores, no, no
    if not torch.allclose(scores.to(right), right, atol=1e-3):
        return scores, no, no
    moved = answer(query + 1000, key + 1000, bandwidth) - right
    differences = torch.tensor(largest.numbers >= query.numel() * len(key))
    return scores, moved.abs().max() > 0.02, differences


def _expanded(
    query: Tensor,
    key: Tensor,
    bandwidth: float = 1.0,
    *,
    products: float = 2.0,
    centre: bool = True,
) -> Tensor:
    """Half the negative squared distances, by the expansion of the square."""
    middle = key.mean(0) if centre else 0.0
    query, key = query - middle, key - middle
    squares = query.square().sum(-1)[:, None] + key.square().sum(-1)
    return -(squares - products * query @ key.T) / (2 * bandwidth**2)


check_distance_score = Exercise(
    reference=_expanded,
    run=_distances,
    returns=("scores (q_len, k_len)", "wrong far from 0", "all differences built"),
    cases={
        "three queries, five keys, a bandwidth of 1": lambda g: (
            randn(g, 3, 11),
            randn(g, 5, 11),
            1.0,
        ),
        "seven queries, two keys, a bandwidth of 1.7": lambda g: (
            randn(g, 7, 13),
            randn(g, 2, 13),
            1.7,
        ),
    },
    arrays=False,
    atol=1e-3,
    wrong=(
        Wrong(
            "the scores are right around 0, but wrong around 1000",
            "There the squares are in the millions, float32 keeps seven digits, and their difference is "
            "wrong in the first decimal place. Distances stay the same when queries and keys are moved by "
            "the same vector: centre them first.",
            lambda query, key, bandwidth=1.0: _expanded(
                query, key, bandwidth, centre=False
            ),
        ),
        Wrong(
            "the scores are right, but all differences are built",
            "A tensor of q_len · k_len · width numbers is made on the way; expand the square, and use "
            "one matrix product.",
            lambda query, key, bandwidth=1.0: gaussian_score(query, key, bandwidth),
        ),
        Wrong(
            "the dot product is not doubled",
            "‖q - k‖² = ‖q‖² + ‖k‖² - 2 q·k.",
            lambda query, key, bandwidth=1.0: _expanded(
                query, key, bandwidth, products=1.0, centre=False
            ),
        ),
        Wrong(
            "the sign of the dot product is wrong",
            "‖q - k‖² = ‖q‖² + ‖k‖² - 2 q·k; with a plus it is ‖q + k‖².",
            lambda query, key, bandwidth=1.0: _expanded(query, -key, bandwidth),
        ),
        Wrong(
            "the squares are missing",
            "The dot product alone gives the same weights only if all keys have the same norm.",
            lambda query, key, bandwidth=1.0: query @ key.T / bandwidth**2,
        ),
        Wrong(
            "the query term is missing",
            "The softmax would cancel it, but these are scores; the checker compares them with "
            "`gaussian_score`.",
            lambda query, key, bandwidth=1.0: (
                (query @ key.T - key.square().sum(-1) / 2) / bandwidth**2
            ),
        ),
        Wrong(
            "the score grows with the distance",
            "The sign is missing: a near key has the higher score.",
            lambda query, key, bandwidth=1.0: -_expanded(query, key, bandwidth),
        ),
        Wrong(
            "the bandwidth is not squared",
            "The score is -‖q - k‖² / (2 · bandwidth²).",
            lambda query, key, bandwidth=1.0: _expanded(query, key, sqrt(bandwidth)),
        ),
        Wrong(
            "the bandwidth is ignored",
            "The score is -‖q - k‖² / (2 · bandwidth²).",
            lambda query, key, bandwidth=1.0: _expanded(query, key),
        ),
        Wrong(
            "the score is divided by bandwidth², not by twice that",
            "The score is -‖q - k‖² / (2 · bandwidth²).",
            lambda query, key, bandwidth=1.0: _expanded(
                query, key, bandwidth / sqrt(2)
            ),
        ),
        Wrong(
            "the score is a distance, not its square",
            "The Gaussian score takes the squared distance; there is no root.",
            lambda query, key, bandwidth=1.0: (
                -torch.cdist(query, key) / (2 * bandwidth**2)
            ),
        ),
    ),
)
