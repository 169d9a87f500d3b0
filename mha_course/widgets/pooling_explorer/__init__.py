"""The pooling explorer: kernel regression as attention, with a query, keys and values that can be moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_course.data import curve, noisy_curve
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Choice, Number, Numbers, TraitValueError, Whole
from mha_lib.attention import attention_pooling
from mha_lib.scores import gaussian_score

GRID = 101
"""The number of points at which the fit is drawn and compared with the true curve."""

MAX_PAIRS = 64
MAX_KEY, MAX_VALUE = 100.0, 1000.0

# Kernels of bounded support, as functions of the distance between query and key over the bandwidth. The
# Gaussian is not among them, because its score is the exponent itself, which rounding never makes infinite.
COMPACT_KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "boxcar": lambda u: (u.abs() <= 1).to(u.dtype),
    "triangular": lambda u: (1 - u.abs()).clamp_min(0),
    "Epanechnikov": lambda u: (1 - u**2).clamp_min(0),
}


def _in_bandwidths(differences: Tensor, bandwidth: float) -> Tensor:
    """Differences over the bandwidth, exactly 1 or -1 where only rounding makes them differ.

    Of a key exactly one bandwidth away, rounding must not decide whether it counts: in float64,
    (2 - 1.7) / 0.3 is above 1, and (2 - 2.3) / 0.3 is above -1.
    """
    u = differences / bandwidth
    return torch.where((u.abs() - 1).abs() < 1e-9, u.sign(), u)


def _column(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def _grid_over(low: float, high: float) -> Tensor:
    steps = torch.arange(GRID, dtype=torch.float64).unsqueeze(-1)
    return low + (high - low) * steps / (GRID - 1)


def _pool(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    kernel: str,
    bandwidth: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Nadaraya-Watson regression as attention: the score is log K, and a key with K = 0 is hidden."""
    if kernel == "Gaussian":
        return attention_pooling(gaussian_score(queries, keys, bandwidth), values, mask)
    closeness = COMPACT_KERNELS[kernel](_in_bandwidths(queries - keys.T, bandwidth))
    visible = closeness > 0
    return attention_pooling(
        closeness.log(), values, visible if mask is None else visible & mask
    )


def _sample() -> tuple[list[float], list[float]]:
    """24 pairs of the noisy curve, rounded to two digits to keep the lists short; the keys are sorted."""
    data = noisy_curve(24, 1, noise=0.5, generator=torch.Generator().manual_seed(0))
    keys, values = (
        [round(number, 2) for number in part.flatten().tolist()]
        for part in (data.x_train, data.y_train)
    )
    return keys, values


class PoolingExplorer(Explorer):
    """Kernel regression as attention: fit, weights and errors follow query, keys, values and bandwidth.

    Args:
        kernel: "Gaussian", "boxcar", "triangular" or "Epanechnikov".
        bandwidth: divides the distance between query and key, 0.01 to 100.
        query: the query whose weights are shown; within `key_range`.
        pair: index of the pair whose key and value can be moved; None uses the pair whose key is about 0.8
            bandwidths away from the query.
        key: 1 to 64 numbers within `key_range`; None uses 24 noisy samples of `mha_course.data.curve`.
        value: one number for each key.
        truth: the function without noise, for the test error; None if it is unknown. Without `key`, the
            default is the function behind the noisy samples.
        key_range: lowest and highest query and key, within -100..100.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, the numbers of keys and values differ, or only one of `key`
            and `value` is given.

    Example:
        >>> explorer = PoolingExplorer(key=[1.0, 1.5, 4.0], value=[10.0, 20.0, 30.0], query=1.0,
        ...                            kernel="triangular", bandwidth=1.0)
        >>> explorer
        PoolingExplorer(kernel='triangular', bandwidth=1, query=1, 3 pairs)
        >>> round(explorer.numbers()["output"].item(), 3)
        13.333
    """

    _module: ClassVar[str] = "pooling_explorer.js"

    kernel = Choice("Gaussian", ["Gaussian", *COMPACT_KERNELS])
    bandwidth = Number(0.25, 0.01, 100.0)
    query = Number(2.0, "key_range.0", "key_range.1")
    key = Numbers(None, "key_range.0", "key_range.1", "num_pairs").tag(in_repr=False)
    value = Numbers(None, "value_range.0", "value_range.1", "num_pairs").tag(
        in_repr=False
    )
    pair = Whole(None, 0, "num_pairs - 1").tag(in_repr=False)
    num_pairs = t.Int(1, read_only=True).tag(sync=True)

    key_range = t.List(t.Float(), [0.0, 5.0], read_only=True).tag(sync=True)
    """Lowest and highest query and key."""
    value_range = t.List(t.Float(), [-MAX_VALUE, MAX_VALUE], read_only=True).tag(
        sync=True
    )
    """Lowest and highest value, from the first values and the true curve, with a margin on each side."""
    truth = t.List(t.Float(), read_only=True).tag(sync=True)
    """The true curve at 101 evenly spaced points of `key_range`, or empty."""

    def __init__(
        self,
        *,
        key: Sequence[float] | None = None,
        value: Sequence[float] | None = None,
        truth: Callable[[Tensor], Tensor] | None = None,
        key_range: Sequence[float] = (0.0, 5.0),
        **settings: Any,
    ) -> None:
        if (key is None) != (value is None):
            raise ValueError("key and value must be given together, or neither")
        if key is None or value is None:
            key, value = _sample()
            truth = curve if truth is None else truth
        # The ranges are set before the settings that must be within them.
        self.set_trait("key_range", _checked_range(key_range))
        count = len(key) if isinstance(key, Sequence) else 1
        if not 1 <= count <= MAX_PAIRS:
            raise ValueError(f"key must hold 1 to {MAX_PAIRS} numbers, got {count}")
        self.set_trait("num_pairs", count)
        self.key = key
        if truth is not None:
            self.set_trait("truth", self._evaluate(truth))
        self.value = value
        self._is_curve = truth is curve
        self.set_trait("value_range", _roomy([*self.value, *self.truth]))
        super().__init__(key=key, value=value, **settings)

    @t.default("pair")
    def _default_pair(self) -> int:
        """A pair with a key that every kernel reaches; the nearest pair would be hidden behind the query."""
        distances = (_column(self.key) - self.query).abs()
        return int((distances - 0.8 * self.bandwidth).abs().argmin())

    def _grid(self) -> Tensor:
        """The points at which the fit is drawn, (101, 1)."""
        return _grid_over(*self.key_range)

    def _evaluate(self, truth: Callable[[Tensor], Tensor]) -> list[float]:
        if not callable(truth):
            raise TypeError(f"truth must be a function or None, got {truth!r}")
        grid = self._grid()
        numbers = truth(grid)
        if not isinstance(numbers, Tensor) or numbers.shape != grid.shape:
            shape = f"a tensor of shape {tuple(grid.shape)}"
            raise ValueError(f"truth must map {shape} to one of the same shape")
        if not (numbers.abs() <= MAX_VALUE).all():
            rule = f"truth must give numbers from {-MAX_VALUE:g} to {MAX_VALUE:g}"
            low, high = self.key_range
            raise ValueError(f"{rule} between {low:g} and {high:g}")
        return [float(number) for number in numbers.flatten().double()]

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        named = "curve(_grid_over(*key_range))[:, 0].tolist()"
        return {"truth": (lambda: self.truth, named if self._is_curve else "⟨truth⟩")}

    @staticmethod
    def _compute(
        kernel: str,
        bandwidth: float,
        query: float,
        key: list[float],
        value: list[float],
        key_range: list[float],
        truth: list[float],
    ) -> dict[str, Tensor | None]:
        keys, values = _column(key), _column(value)
        output, weights = _pool(_column([query]), keys, values, kernel, bandwidth)
        fit = _pool(_grid_over(*key_range), keys, values, kernel, bandwidth)[0][:, 0]
        by_all, _ = _pool(keys, keys, values, kernel, bandwidth)
        others = ~torch.eye(len(keys), dtype=torch.bool)
        by_others, _ = _pool(keys, keys, values, kernel, bandwidth, others)
        return {
            "output": output[0, 0],
            "weights": weights[0],
            "fit": fit,
            "training_error": (by_all - values).square().mean(),
            "leave_one_out_error": (by_others - values).square().mean(),
            "test_error": (fit - _column(truth)[:, 0]).square().mean()
            if truth
            else None,
        }

    def _details(self) -> list[str]:
        return [f"{self.num_pairs} pairs"]


def _checked_range(limits: Sequence[float]) -> list[float]:
    """Return a range of keys as two floats, or raise an error."""
    trait = Numbers([0.0, 1.0], -MAX_KEY, MAX_KEY, 2)
    trait.name = "key_range"
    low, high = trait._check(limits, trait.limits())
    if not low < high:
        raise TraitValueError(f"key_range must begin below its end, got {limits!r}")
    return [low, high]


def _roomy(numbers: Sequence[float]) -> list[float]:
    """A range of round numbers around all of these, with a margin of at least a fifth of their range."""
    low, high = min(numbers), max(numbers)
    spread = high - low or 1.0
    step = 10.0 ** math.floor(math.log10(spread)) / 2
    bottom = math.floor((low - spread / 5) / step) * step
    top = math.ceil((high + spread / 5) / step) * step
    return [max(bottom, -MAX_VALUE), min(top, MAX_VALUE)]
