"""Checkers for chapter 2: masks by comparison, the scale, scores, and an attention that applies a mask.

They are exercises as data; `engine` explains how they judge an answer.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_check._results import Answer
from mha_course._sizes import Texts
from mha_lib.attention import masked_softmax
from mha_lib.masking import causal_mask, valid_lens_mask
from mha_lib.scores import gaussian_score

exercise = Texts(__name__)

# ------------------------------------------------------------------ padding on the left


def _last_keys(valid_lens: Tensor, k_len: int) -> Tensor:
    visible = torch.arange(k_len) >= k_len - valid_lens[..., None]
    return visible[:, None, :] if valid_lens.ndim == 1 else visible


check_left_lens_mask = exercise(
    "check_left_lens_mask",
    reference=_last_keys,
    returns="mask (batch, 1 or q_len, k_len)",
)

# ------------------------------------------------------------------ a causal mask from a triangle


def _triangle(q_len: int, k_len: int) -> Tensor:
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)


check_triangle = exercise(
    "check_triangle", reference=_triangle, returns="mask (q_len, k_len)"
)

# ------------------------------------------------------------------ the variance of other entries


def _moments(
    d: int, mu_q: float, mu_k: float, sigma_q: float, sigma_k: float
) -> tuple[float, float, float]:
    """Mean and variance of q · k, and the divisor that the softmax needs."""
    square_q, square_k = sigma_q**2 + mu_q**2, sigma_k**2 + mu_k**2
    variance = d * (square_q * square_k - (mu_q * mu_k) ** 2)
    return d * mu_q * mu_k, variance, sqrt(d * square_q * sigma_k**2)


check_score_moments = exercise(
    "check_score_moments", reference=_moments, returns=("mean", "variance", "divisor")
)

# ------------------------------------------------------------------ three masks at once


def _three(valid_lens: Tensor, length: int, window: int) -> Tensor:
    position = torch.arange(length)
    distance = position[:, None] - position  # how far back a key lies
    seen = (distance < window) & causal_mask(length)
    return seen & valid_lens_mask(valid_lens, length)


check_three_masks = exercise(
    "check_three_masks", reference=_three, returns="mask (batch, length, length)"
)

# ------------------------------------------------------------------ the tutorial, repaired


def _repaired(
    x: Tensor, valid_lens: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    length = x.shape[1]
    mask = torch.ones(1, length, length, dtype=torch.bool)
    if valid_lens is not None:
        mask = mask & valid_lens_mask(valid_lens, length)
    if is_causal:
        mask = mask & causal_mask(length)
    scores = x @ x.mT / sqrt(x.shape[-1])
    weights = masked_softmax(scores, mask)
    return weights @ x, weights


check_repaired = exercise(
    "check_repaired",
    reference=_repaired,
    returns=("output (batch, length, width)", "weights (batch, length, length)"),
)

# ------------------------------------------------------------------ queries and keys of different widths


def _bilinear(query_matrix: Tensor, key_matrix: Tensor) -> tuple[Tensor, int]:
    rank = min(*query_matrix.shape, *key_matrix.shape)
    return query_matrix @ key_matrix.T, rank


check_bilinear_matrix = exercise(
    "check_bilinear_matrix",
    reference=_bilinear,
    returns=("W (query_dim, key_dim)", "highest_rank"),
)

# ------------------------------------------------------------------ distances from dot products


class _Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def _distances(
    answer: Answer, query: Tensor, key: Tensor, *bandwidth: float
) -> tuple[Any, ...] | None:
    """The scores, whether they change far from 0, and whether all differences were built."""
    with _Largest() as largest:  # type: ignore[no-untyped-call]
        scores = answer(query, key, *bandwidth)
    if scores is None:
        return None
    no = torch.tensor(
        False
    )  # the other two checks are run only if the scores are correct
    right = gaussian_score(query, key, *bandwidth)
    if not isinstance(scores, Tensor) or scores.shape != right.shape:
        return scores, no, no
    if not torch.allclose(scores.to(right), right, atol=1e-3):
        return scores, no, no
    moved = answer(query + 1000, key + 1000, *bandwidth) - right
    differences = torch.tensor(largest.numbers >= query.numel() * len(key))
    return scores, moved.abs().max() > 0.02, differences


def _expanded(query: Tensor, key: Tensor, bandwidth: float = 1.0) -> Tensor:
    """Half the negative squared distances, by the expansion of the square."""
    centre = key.mean(0)
    query, key = query - centre, key - centre
    squares = query.square().sum(-1)[:, None] + key.square().sum(-1)
    return -(squares - 2 * query @ key.T) / (2 * bandwidth**2)


check_distance_score = exercise(
    "check_distance_score",
    reference=_expanded,
    run=_distances,
    returns=("scores (q_len, k_len)", "wrong far from 0", "all differences built"),
    arrays=False,
    atol=1e-3,
)
