"""Checkers for chapter 1, attention pooling: each is an `Exercise`, data for the engine to judge by.

The sizes are small, and the size of every axis is a different prime. If two axes have the same size, a case
says so, because a faulty broadcast then raises no error.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mha_course._exercise import randn, rows_sum_to_one
from mha_course._sizes import Texts
from mha_lib import attention_pooling, gaussian_score, masked_softmax

exercise = Texts(__name__)

# ------------------------------------------------------------------ exercises 1 and 2


def _pooling(scores: Tensor, value: Tensor) -> Tensor:
    exponentials = scores.exp()
    return exponentials / exponentials.sum(-1, keepdim=True) @ value


_OF_BOTH = exercise.mistakes("with and without loops", _pooling)

check_pooling = exercise(
    "check_pooling",
    reference=_pooling,
    also=_OF_BOTH,
    returns="output (q_len, value_dim)",
)

check_pooling_without_loops = exercise(
    "check_pooling_without_loops",
    reference=_pooling,
    also=_OF_BOTH,
    returns="output (..., q_len, value_dim)",
)

# ------------------------------------------------------------------ exercise 3


def _left_out_errors(x: Tensor, y: Tensor, bandwidths: Tensor) -> Tensor:
    u = (x - x.T) / bandwidths  # (b, n, n)
    closeness, others = 1 / (1 + u**2), ~torch.eye(len(x), dtype=torch.bool)
    estimate, _ = attention_pooling(closeness.log(), y, others)
    return (estimate - y).square().mean((-2, -1))


check_left_out_errors = exercise(
    "check_left_out_errors",
    reference=_left_out_errors,
    returns="errors (number of bandwidths)",
)

# ------------------------------------------------------------------ exercise 4


def _limits(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    distance = (query - key.T).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    narrow = nearest / nearest.sum(-1, keepdim=True) @ value
    wide = value.mean(0).expand(len(query), -1)
    return narrow, wide


def _tied(g: Generator) -> tuple[Tensor, ...]:
    """The query 2 is as far from the key 1 as from the key 3."""
    return (
        torch.tensor([[2.0], [7.0]]),
        torch.tensor([[1.0], [3.0], [11.0]]),
        randn(g, 3, 5),
    )


check_limits = exercise(
    "check_limits",
    reference=_limits,
    returns=("narrow (q_len, value_dim)", "wide (q_len, value_dim)"),
)

# ------------------------------------------------------------------ exercise 5


def _noise_errors(y: Tensor) -> tuple[float, Tensor]:
    mean_of_others = (y.sum() - y) / (len(y) - 1)
    itself, left_out = 0.0, (y - mean_of_others).square().mean()
    return itself, left_out


check_noise_errors = exercise(
    "check_noise_errors", reference=_noise_errors, returns=("itself", "left_out")
)

# ------------------------------------------------------------------ exercise 6


def _local_line(query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
    weights = masked_softmax(gaussian_score(query, key, bandwidth))
    offset = key.mT - query
    s1 = (weights * offset).sum(-1, keepdim=True)
    s2 = (weights * offset**2).sum(-1, keepdim=True)
    t0, t1 = weights @ value, (weights * offset) @ value
    return (s2 * t0 - s1 * t1) / (s2 - s1**2)


def _line_points(g: Generator, *leading: int, k_len: int) -> tuple[Any, ...]:
    """Queries and keys within 1 of 0, in float64, because a line divides by a small difference."""
    return (
        2 * torch.rand(*leading, 3, 1, generator=g, dtype=torch.float64) - 1,
        2 * torch.rand(*leading, k_len, 1, generator=g, dtype=torch.float64) - 1,
        randn(g, *leading, k_len, 1).double(),
        0.5,
    )


def _on_a_line(g: Generator) -> tuple[Any, ...]:
    query, key, _, bandwidth = _line_points(g, k_len=7)
    return query, key, 3 * key + 1, bandwidth


check_local_line = exercise(
    "check_local_line", reference=_local_line, returns="estimate (..., q_len, 1)"
)

# ------------------------------------------------------------------ exercise 7


def _without_units(
    query: Tensor, key: Tensor, value: Tensor, bandwidth: float, correction: int = 1
) -> Tensor:
    spread = key.std(0, correction=correction)
    scores = gaussian_score(query / spread, key / spread, bandwidth)
    return attention_pooling(scores, value)[0]


def _patients(g: Generator, *units: float, k_len: int) -> tuple[Any, ...]:
    """Queries and keys with as many features as units, each feature in a unit of its own."""
    query, key = (3 + randn(g, size, len(units)) for size in (5, k_len))
    scale = torch.tensor(units)
    return scale * query, scale * key, randn(g, k_len, 1), 0.5


check_pooling_without_units = exercise(
    "check_pooling_without_units",
    reference=_without_units,
    accept=[partial(_without_units, correction=0)],
    returns="estimate (q_len, 1)",
)

# ------------------------------------------------------------------ exercise 8


def _class_shares(flowers: Tensor, species: Tensor, bandwidth: float) -> Tensor:
    one_hot = F.one_hot(species).to(flowers.dtype)
    others = ~torch.eye(len(flowers), dtype=torch.bool)
    scores = gaussian_score(flowers, flowers, bandwidth)
    return attention_pooling(scores, one_hot, others)[0]


def _flowers(g: Generator, *species: int) -> tuple[Any, ...]:
    classes = torch.tensor(species)
    return randn(g, len(species), 5) + classes[:, None], classes, 0.7


check_class_shares = exercise(
    "check_class_shares",
    reference=_class_shares,
    returns="shares (flowers, classes)",
    properties=[rows_sum_to_one()],
)

# ------------------------------------------------------------------ exercise 9


def _jacobian(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = (key @ query).softmax(-1)
    return (weights[:, None] * value).T @ (key - weights @ key)


check_jacobian = exercise(
    "check_jacobian", reference=_jacobian, returns="jacobian (value_dim, query_dim)"
)
