"""Checkers for chapter 1, attention pooling: each is an `Exercise`, data for the engine to judge by.

The sizes are small, the size of every axis is another prime, and where two axes have the same size a case
says so: there a faulty broadcast raises no error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mha_lib import gaussian_score, masked_softmax
from mha_lib.exercises.engine import Exercise, Wrong, randn, rows_sum_to_one

# ------------------------------------------------------------------ exercises 1 and 2


def _pooling(scores: Tensor, value: Tensor) -> Tensor:
    return scores.softmax(-1) @ value


def _share_of(weights: Tensor) -> Tensor:
    """Each row divided by its sum."""
    return weights / weights.sum(-1, keepdim=True)


_NOT_DIVIDED = Wrong(
    "the weights do not add up to 1",
    "Divide every exponential by the sum of the exponentials of its row.",
    lambda scores, value: scores.exp() @ value,
)
_OVER_QUERIES = Wrong(
    "the softmax runs over the queries",
    "For each query, the weights of all keys must sum to 1: add up along the last axis.",
    lambda scores, value: scores.softmax(-2) @ value,
)
_NO_EXPONENTIAL = Wrong(
    "the scores are divided by their sum without taking exponentials",
    "Scores may be negative, and their sum may be near 0: take the exponentials first.",
    lambda scores, value: _share_of(scores) @ value,
)
_OVER_ALL = Wrong(
    "the exponentials are divided by the sum over all queries and keys",
    "Each query needs a sum of its own, over its row of scores.",
    lambda scores, value: (
        scores.exp() / scores.exp().sum((-2, -1), keepdim=True) @ value
    ),
)

check_pooling = Exercise(
    reference=_pooling,
    returns="output (q_len, value_dim)",
    cases={
        "three queries and five keys": lambda g: (randn(g, 3, 5), randn(g, 5, 2)),
        "one query": lambda g: (randn(g, 1, 7), randn(g, 7, 3)),
        "one key": lambda g: (randn(g, 2, 1), randn(g, 1, 5)),
    },
    wrong=(
        Wrong(
            "the sum of the exponentials runs on from one query to the next",
            "Start a new sum at 0 for each query, inside the loop over the queries.",
            lambda scores, value: (
                scores.exp() / scores.exp().sum(-1, keepdim=True).cumsum(0) @ value
            ),
        ),
        Wrong(
            "only the last key counts",
            "Each key must be added to the output, with `+=`; with `=` the next key replaces it.",
            lambda scores, value: scores.softmax(-1)[:, -1:] * value[-1],
        ),
        Wrong(
            "the weights are multiplied by the value at the place of the query",
            "There is one value for each key: the row of `value` is numbered like the key.",
            lambda scores, value: value[torch.arange(len(scores))],
        ),
        _OVER_QUERIES,
        _NOT_DIVIDED,
        _NO_EXPONENTIAL,
        _OVER_ALL,
        Wrong(
            "only the key with the largest score counts",
            "That is the look-up. Attention mixes the values of all keys.",
            lambda scores, value: value[scores.argmax(-1)],
        ),
        Wrong(
            "every key counts the same",
            "That is the mean of the values: the scores must enter the weights.",
            lambda scores, value: value.mean(0).expand(len(scores), -1),
        ),
    ),
)

check_pooling_without_loops = Exercise(
    reference=_pooling,
    returns="output (..., q_len, value_dim)",
    cases={
        "as many queries as keys": lambda g: (randn(g, 5, 5), randn(g, 5, 3)),
        "seven queries and eleven keys": lambda g: (randn(g, 7, 11), randn(g, 11, 3)),
        "two sets of scores and values": lambda g: (
            randn(g, 2, 3, 5),
            randn(g, 2, 5, 7),
        ),
    },
    wrong=(
        Wrong(
            "the sums are divided along the wrong axis",
            "`sum(-1)` removes the axis of the keys, and the sums then line up with the columns. Keep the "
            "axis with `keepdim=True`.",
            lambda scores, value: scores.exp() / scores.exp().sum(-1) @ value,
        ),
        Wrong(
            "the axes are counted from the front",
            "With one more axis in front, axis 1 holds the queries. Count from the back: `sum(-1)`.",
            lambda scores, value: (
                scores.exp() / scores.exp().sum(1, keepdim=True) @ value
            ),
        ),
        _OVER_QUERIES,
        _NOT_DIVIDED,
        _NO_EXPONENTIAL,
        _OVER_ALL,
    ),
)

# ------------------------------------------------------------------ exercise 3


def _cauchy(u: Tensor) -> Tensor:
    return 1 / (1 + u.square())


def _left_out_errors(
    kernel: Callable[[Tensor], Tensor] = _cauchy,
    *,
    weights_of: Callable[[Tensor], Tensor] = lambda closeness: closeness,
    distance: Callable[[Tensor, Tensor], Tensor] = lambda d, bandwidth: d / bandwidth,
    leave_out: bool = True,
    over: Callable[[Tensor], Tensor] = lambda squares: squares.mean((-2, -1)),
) -> Callable[..., Tensor]:
    """Leave-one-out errors, right with the defaults; each option makes one mistake."""

    def errors(x: Tensor, y: Tensor, bandwidths: Tensor) -> Tensor:
        closeness = weights_of(kernel(distance(x - x.T, bandwidths)))
        if leave_out:
            closeness = closeness * (1 - torch.eye(len(x)))
        return over((_share_of(closeness) @ y - y).square())

    return errors


def _points(
    count: int, bandwidths: list[float]
) -> Callable[[Generator], tuple[Tensor, ...]]:
    return lambda g: (
        randn(g, count, 1),
        randn(g, count, 1),
        torch.tensor(bandwidths).view(-1, 1, 1),
    )


check_left_out_errors = Exercise(
    reference=_left_out_errors(),
    returns="errors (number of bandwidths)",
    cases={
        "bandwidth 1": _points(5, [1.0]),
        "two bandwidths": _points(7, [0.5, 2.0]),
        "three bandwidths": _points(11, [0.3, 0.7, 3.0]),
    },
    wrong=(
        Wrong(
            "each point is among its own keys",
            "A point that sees its own value has an error that is too small. Hide key i from query i.",
            _left_out_errors(leave_out=False),
        ),
        Wrong(
            "the kernel was taken for the score",
            "The softmax takes exponentials, so that the score of a kernel is its logarithm.",
            _left_out_errors(weights_of=torch.exp),
        ),
        Wrong(
            "the kernel is the Gaussian one",
            "The Cauchy kernel is `1 / (1 + u**2)`.",
            _left_out_errors(lambda u: torch.exp(-u.square() / 2)),
        ),
        Wrong(
            "the distance in the kernel is not squared",
            "The Cauchy kernel is `1 / (1 + u**2)`; this one is `1 / (1 + abs(u))`.",
            _left_out_errors(lambda u: 1 / (1 + u.abs())),
        ),
        Wrong(
            "the distance is multiplied by the bandwidth",
            "A wide bandwidth makes all points near: divide by it.",
            _left_out_errors(distance=lambda d, bandwidth: d * bandwidth),
        ),
        Wrong(
            "the squared distance is divided by the bandwidth, not by its square",
            "Divide the distance by the bandwidth first, then square.",
            _left_out_errors(distance=lambda d, bandwidth: d / bandwidth.sqrt()),
        ),
        Wrong(
            "the bandwidth is not used",
            "The kernel takes the distance divided by the bandwidth.",
            _left_out_errors(
                distance=lambda d, bandwidth: d.expand(len(bandwidth), -1, -1)
            ),
        ),
        Wrong(
            "the squares are added up",
            "The error is their mean, so that it does not grow with the number of points.",
            _left_out_errors(over=lambda squares: squares.sum((-2, -1))),
        ),
        Wrong(
            "one number mixes all bandwidths",
            "Take the mean over the points alone, the last two axes: each bandwidth has its own error.",
            _left_out_errors(over=torch.mean),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 4


def _nearest(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    distance = (query - key.T).abs()
    return _share_of((distance == distance.amin(-1, keepdim=True)).to(value)) @ value


def _mean(query: Tensor, value: Tensor) -> Tensor:
    return value.mean(0).expand(len(query), -1)


def _tied(g: Generator) -> tuple[Tensor, ...]:
    """The query 2 is as far from the key 1 as from the key 3."""
    return (
        torch.tensor([[2.0], [7.0]]),
        torch.tensor([[1.0], [3.0], [11.0]]),
        randn(g, 3, 5),
    )


check_limits = Exercise(
    reference=lambda query, key, value: (
        _nearest(query, key, value),
        _mean(query, value),
    ),
    returns=("narrow (q_len, value_dim)", "wide (q_len, value_dim)"),
    cases={
        "three queries and five keys": lambda g: (
            randn(g, 3, 1),
            randn(g, 5, 1),
            randn(g, 5, 2),
        ),
        "two keys at the same distance": _tied,
    },
    wrong=(
        Wrong(
            "where two keys are equally near, only the first counts",
            "Their weights are equal for every bandwidth, so that each has one half.",
            lambda query, key, value: (
                value[(query - key.T).abs().argmin(-1)],
                _mean(query, value),
            ),
        ),
        Wrong(
            "the narrow limit is zero",
            "Each kernel goes to 0, but the weights are quotients of kernels, and still sum to 1.",
            lambda query, _, value: (
                torch.zeros(len(query), value.shape[1]),
                _mean(query, value),
            ),
        ),
        Wrong(
            "the two limits are exchanged",
            "A narrow bandwidth sees the nearest key alone, a wide one sees all keys alike.",
            lambda query, key, value: (
                _mean(query, value),
                _nearest(query, key, value),
            ),
        ),
        Wrong(
            "the narrow limit takes the key that is farthest",
            "The score is minus the squared distance: the smallest distance wins.",
            lambda query, key, value: (
                value[(query - key.T).abs().argmax(-1)],
                _mean(query, value),
            ),
        ),
        Wrong(
            "distances are compared with their signs",
            "A key far above the query has the smallest difference and is not near: take `abs()`.",
            lambda query, key, value: (
                value[(query - key.T).argmin(-1)],
                _mean(query, value),
            ),
        ),
        Wrong(
            "the wide limit is the sum of the values",
            "The weights become equal and sum to 1: each is one over the number of keys.",
            lambda query, key, value: (
                _nearest(query, key, value),
                value.sum(0).expand(len(query), -1),
            ),
        ),
        Wrong(
            "the wide limit mixes the columns of the values",
            "Take the mean over the keys alone: `value.mean(0)`.",
            lambda query, key, value: (
                _nearest(query, key, value),
                value.mean().expand(len(query), value.shape[1]),
            ),
        ),
        Wrong(
            "the wide limit is zero",
            "The exponent goes to 0, and so each kernel goes to 1: all weights become equal.",
            lambda query, key, value: (
                _nearest(query, key, value),
                torch.zeros(len(query), value.shape[1]),
            ),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 5


def _left_out_mean(y: Tensor) -> Tensor:
    return (y - (y.sum() - y) / (len(y) - 1)).square().mean()


check_noise_errors = Exercise(
    reference=lambda y: (0.0, _left_out_mean(y)),
    returns=("itself", "left_out"),
    cases={
        "five values": lambda g: randn(g, 5, 1),
        "eleven values": lambda g: 3 * randn(g, 11, 1),
    },
    wrong=(
        Wrong(
            "the left-out error is the variance around the mean of all values",
            "In leave-one-out a point is not part of its own estimate: take the mean of the others.",
            lambda y: (0.0, y.var(correction=0)),
        ),
        Wrong(
            "the left-out error is the sample variance",
            "`var` divides by n - 1. Here the estimate changes from point to point: for each, take the mean "
            "of the others, and then the mean of the n squares.",
            lambda y: (0.0, y.var()),
        ),
        Wrong(
            "both errors are 0",
            "With leave-one-out no bandwidth reproduces noise: the key at distance 0 is hidden.",
            lambda _: (0.0, 0.0),
        ),
        Wrong(
            "the two errors are exchanged",
            "A point among its own keys can return its own value: that is the error that vanishes.",
            lambda y: (_left_out_mean(y), 0.0),
        ),
        Wrong(
            "the error with itself among the keys is not 0",
            "With bandwidth 0 the whole weight lies on the nearest key, and that is the point itself.",
            lambda y: (y.var(correction=0), _left_out_mean(y)),
        ),
        Wrong(
            "the sum of the others is divided by the number of all points",
            "There are n - 1 others.",
            lambda y: (0.0, (y - (y.sum() - y) / len(y)).square().mean()),
        ),
        Wrong(
            "the left-out estimate is 0",
            "The weights of the others are equal, not zero: the estimate is their mean.",
            lambda y: (0.0, y.square().mean()),
        ),
        Wrong(
            "the squares are added up",
            "The error is the mean of the squares.",
            lambda y: (0.0, len(y) * _left_out_mean(y)),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 6


def _line(
    query: Tensor,
    weights: Tensor,
    key: Tensor,
    value: Tensor,
    around: Tensor | float | None = None,
) -> tuple[Tensor, Tensor]:
    """The weighted line: its height at `around` (at the query, unless given) and its slope."""
    weights = _share_of(weights)
    offset = key.mT - (query if around is None else around)
    s1 = (weights * offset).sum(-1, keepdim=True)
    s2 = (weights * offset**2).sum(-1, keepdim=True)
    t0, t1 = weights @ value, (weights * offset) @ value
    spread = s2 - s1**2
    return (s2 * t0 - s1 * t1) / spread, (t1 - s1 * t0) / spread


def _near(query: Tensor, key: Tensor, bandwidth: float) -> Tensor:
    return masked_softmax(gaussian_score(query, key, bandwidth))


def _line_points(*leading: int, k_len: int) -> Callable[[Generator], tuple[Any, ...]]:
    """Queries and keys within 2, in float64: a line divides by a small difference."""
    return lambda g: (
        2 * torch.rand(*leading, 3, 1, generator=g, dtype=torch.float64),
        2 * torch.rand(*leading, k_len, 1, generator=g, dtype=torch.float64),
        randn(g, *leading, k_len, 1).double(),
        0.5,
    )


def _on_a_line(g: Generator) -> tuple[Any, ...]:
    query, key, _, bandwidth = _line_points(k_len=7)(g)
    return query, key, 3 * key + 1, bandwidth


def _without_cross_terms(
    query: Tensor, key: Tensor, value: Tensor, bandwidth: float
) -> Tensor:
    """As if the keys lay evenly around the query: s1 is left out of the denominator only."""
    weights = _near(query, key, bandwidth)
    offset = key.mT - query
    s1 = (weights * offset).sum(-1, keepdim=True)
    s2 = (weights * offset**2).sum(-1, keepdim=True)
    return (s2 * (weights @ value) - s1 * ((weights * offset) @ value)) / s2


check_local_line = Exercise(
    reference=lambda query, key, value, bandwidth: _line(
        query, _near(query, key, bandwidth), key, value
    )[0],
    returns="estimate (..., q_len, 1)",
    cases={
        "values on a true line": _on_a_line,
        "five keys": _line_points(k_len=5),
        "two data sets": _line_points(2, k_len=7),
    },
    wrong=(
        Wrong(
            "this is the weighted mean, as in pooling",
            "A line has a slope too: use the sums with `key - query`.",
            lambda query, key, value, bandwidth: _near(query, key, bandwidth) @ value,
        ),
        Wrong(
            "all keys count the same in the line",
            "One straight line for all queries is not local: weigh the keys by their distance to the query.",
            lambda query, key, value, _: _line(
                query, torch.ones_like(query - key.mT), key, value
            )[0],
        ),
        Wrong(
            "the line is read at 0, not at the query",
            "With `key` in place of `key - query`, b0 is the height at 0.",
            lambda query, key, value, bandwidth: _line(
                query, _near(query, key, bandwidth), key, value, around=0.0
            )[0],
        ),
        Wrong(
            "this is the slope of the line",
            "Return b0, its height at the query.",
            lambda query, key, value, bandwidth: _line(
                query, _near(query, key, bandwidth), key, value
            )[1],
        ),
        Wrong(
            "the weights enter squared",
            "Each sum takes each weight once.",
            lambda query, key, value, bandwidth: _line(
                query, _near(query, key, bandwidth) ** 2, key, value
            )[0],
        ),
        Wrong(
            "the denominator lacks the square of s1",
            "The neighbours of a query do not lie evenly around it, and s1 is not 0: divide by `s2 - s1**2`.",
            _without_cross_terms,
        ),
    ),
)

# ------------------------------------------------------------------ exercise 7


def _in_units(
    of_query: Callable[[Tensor, Tensor], Tensor],
    of_key: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[..., Tensor]:
    """Pooling with query and key divided by what these functions of (query, key) return."""

    def pool(query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
        scaled = key / (of_key or of_query)(query, key)
        return _near(query / of_query(query, key), scaled, bandwidth) @ value

    return pool


def _patients(*units: float, k_len: int) -> Callable[[Generator], tuple[Any, ...]]:
    """Queries and keys with as many features as units, each feature in a unit of its own."""
    scale = torch.tensor(units)
    return lambda g: (
        scale * (3 + randn(g, 5, len(units))),
        scale * (3 + randn(g, k_len, len(units))),
        randn(g, k_len, 1),
        0.5,
    )


check_pooling_without_units = Exercise(
    reference=_in_units(lambda _, key: key.std(0)),
    accept=[_in_units(lambda _, key: key.std(0, correction=0))],
    returns="estimate (q_len, 1)",
    cases={
        "features with similar units": _patients(1.0, 1.5, k_len=7),
        "pressure in mmHg": _patients(1.0, 15.0, k_len=11),
        "pressure in kPa": _patients(1.0, 2.0, k_len=11),
        "three features": _patients(0.1, 1.0, 10.0, k_len=13),
    },
    wrong=(
        Wrong(
            "the features are not scaled",
            "The feature with the larger numbers decides alone what is near: divide each by its standard "
            "deviation.",
            _in_units(lambda _query, _key: torch.ones(1)),
        ),
        Wrong(
            "the queries take part in the standard deviation",
            "The queries are test patients: they must not change how the training data are prepared.",
            _in_units(lambda query, key: torch.cat([query, key]).std(0)),
        ),
        Wrong(
            "queries and keys are scaled differently",
            "Each has its own standard deviation here, so that equal patients are no longer at distance 0. "
            "Use that of the keys for both.",
            _in_units(lambda query, _: query.std(0), lambda _, key: key.std(0)),
        ),
        Wrong(
            "only the keys are scaled",
            "The queries must be in the same units as the keys.",
            _in_units(lambda _query, _key: torch.ones(1), lambda _, key: key.std(0)),
        ),
        Wrong(
            "one standard deviation serves all features",
            "It changes the bandwidth and not the balance of the features: take `key.std(0)`, one for each.",
            _in_units(lambda _, key: key.std()),
        ),
        Wrong(
            "the features are divided by their variance",
            "The variance has the squared unit; divide by the standard deviation, its root.",
            _in_units(lambda _, key: key.var(0)),
        ),
        Wrong(
            "the features are divided by their mean",
            "The mean removes the unit, but it says nothing of how widely patients differ.",
            _in_units(lambda _, key: key.mean(0)),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 8


def _kernels(flowers: Tensor, bandwidth: float) -> Tensor:
    """The kernel of each pair, 0 for a flower with itself."""
    closeness = gaussian_score(flowers, flowers, bandwidth).exp()
    return closeness * (1 - torch.eye(len(flowers)))


def _one_hot(species: Tensor) -> Tensor:
    return F.one_hot(species).float()


def _flowers(
    species: list[int], measurements: int
) -> Callable[[Generator], tuple[Any, ...]]:
    classes = torch.tensor(species)
    return lambda g: (
        randn(g, len(species), measurements) + classes[:, None],
        classes,
        0.7,
    )


check_class_shares = Exercise(
    reference=lambda flowers, species, bandwidth: (
        _share_of(_kernels(flowers, bandwidth)) @ _one_hot(species)
    ),
    returns="shares (flowers, classes)",
    properties=[rows_sum_to_one()],
    cases={
        "two classes": _flowers([0, 1, 1, 0, 1, 0, 0], 5),
        "three classes": _flowers([2, 0, 1, 1, 0, 2, 2, 2, 1, 2, 2], 5),
    },
    wrong=(
        Wrong(
            "each flower is among its own keys",
            "It votes for its own class, with the largest weight of all. Hide key i from query i.",
            lambda flowers, species, bandwidth: (
                _near(flowers, flowers, bandwidth) @ _one_hot(species)
            ),
        ),
        Wrong(
            "the values are the numbers of the classes",
            "The mean of class 0 and class 2 is then class 1. Make one-hot vectors.",
            lambda flowers, species, bandwidth: (
                _share_of(_kernels(flowers, bandwidth)) @ species.float()[:, None]
            ),
        ),
        Wrong(
            "the values are the numbers of the classes, and the last axis is gone",
            "The mean of class 0 and class 2 is then class 1. Make one-hot vectors.",
            lambda flowers, species, bandwidth: (
                _share_of(_kernels(flowers, bandwidth)) @ species.float()
            ),
        ),
        Wrong(
            "only the most likely class is returned",
            "The shares themselves say how sure the answer is: return them before any `argmax`.",
            lambda flowers, species, bandwidth: F.one_hot(
                (_kernels(flowers, bandwidth) @ _one_hot(species)).argmax(-1),
                int(species.max()) + 1,
            ).float(),
        ),
        Wrong(
            "the weights do not add up to 1",
            "Sums of kernels are not probabilities: use the softmax of the scores.",
            lambda flowers, species, bandwidth: (
                _kernels(flowers, bandwidth) @ _one_hot(species)
            ),
        ),
        Wrong(
            "each class is divided by its number of flowers",
            "A weighted mean gives every flower the same say; a large class therefore counts more.",
            lambda flowers, species, bandwidth: _share_of(
                _kernels(flowers, bandwidth)
                @ (_one_hot(species) / _one_hot(species).sum(0))
            ),
        ),
        Wrong(
            "the shares went through another softmax",
            "They are probabilities already: not negative, and their sum is 1.",
            lambda flowers, species, bandwidth: (
                _share_of(_kernels(flowers, bandwidth)) @ _one_hot(species)
            ).softmax(-1),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 9


def _jacobian(
    query: Tensor, key: Tensor, value: Tensor, centre: Tensor | float | None = None
) -> Tensor:
    """The sum over i of weight, value and key less `centre`, which is the weighted mean key."""
    weights = (key @ query).softmax(-1)
    middle = weights @ key if centre is None else centre
    return (weights[:, None] * value).T @ (key - middle)


check_jacobian = Exercise(
    reference=lambda query, key, value: _jacobian(query, key, value),
    returns="jacobian (value_dim, query_dim)",
    cases={
        "five keys": lambda g: (randn(g, 3), randn(g, 5, 3), randn(g, 5, 2)),
        "seven keys": lambda g: (randn(g, 2), randn(g, 7, 2), randn(g, 7, 5)),
        "equal keys": lambda g: (
            randn(g, 3),
            randn(g, 1, 3).expand(7, 3),
            randn(g, 7, 2),
        ),
    },
    wrong=(
        Wrong(
            "the mean key is not subtracted",
            "A weight that grows takes from all the others, because the weights sum to 1: that is what the "
            "mean key stands for.",
            lambda query, key, value: _jacobian(query, key, value, centre=0.0),
        ),
        Wrong(
            "the mean of the keys is not weighted",
            "The mean key is the mean under the weights: `weights @ key`.",
            lambda query, key, value: _jacobian(query, key, value, centre=key.mean(0)),
        ),
        Wrong(
            "the axes are exchanged",
            "One row for each entry of the output, one column for each entry of the query.",
            lambda query, key, value: _jacobian(query, key, value).T,
        ),
        Wrong(
            "all keys have the same weight in the covariance",
            "Draw key i with a probability that is its weight.",
            lambda _, key, value: value.T @ (key - key.mean(0)) / len(key),
        ),
        Wrong(
            "the scores are divided by the root of the width",
            "The score here is the plain product of query and key.",
            lambda query, key, value: _jacobian(query / len(query) ** 0.5, key, value),
        ),
        Wrong(
            "this is the product of the mean value and the mean key",
            "That is only the part to be subtracted: the mean of the products comes before it.",
            lambda query, key, value: torch.outer(
                (key @ query).softmax(-1) @ value, (key @ query).softmax(-1) @ key
            ),
        ),
        Wrong(
            "the sign is wrong",
            "A key that fits better gets more weight.",
            lambda query, key, value: -_jacobian(query, key, value),
        ),
    ),
)
