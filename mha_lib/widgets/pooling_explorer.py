"""The pooling explorer: kernel regression as attention, with a query, keys and values that can be moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.attention import attention_pooling
from mha_lib.data import curve, noisy_curve
from mha_lib.scores import gaussian_score
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Number, Numbers, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = 101
"""The number of points at which the fit is drawn and compared with the true curve."""

MAX_PAIRS = 64
MAX_KEY, MAX_VALUE = 100.0, 1000.0

# Kernels of bounded support, as functions of the distance between query and key over the bandwidth. The
# Gaussian is not among them: its score is the exponent itself, which no rounding makes infinite.
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
        bandwidth: what the distance between query and key is divided by, 0.01 to 100.
        query: where the weights are shown; within `key_range`.
        pair: index of the pair whose key and value can be moved; None uses the pair whose key is about 0.8
            bandwidths away from the query.
        key: 1 to 64 numbers within `key_range`; None uses 24 noisy samples of `mha_lib.data.curve`.
        value: one number for each key.
        truth: the function without noise, for the test error; None if it is unknown. Without `key`, the
            default is the function of the noisy samples.
        key_range: lowest and highest query and key, within -100..100.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range, the numbers of keys and values differ, or only one of
            `key` and `value` is given.

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
    query = Number(2.0, -MAX_KEY, MAX_KEY)
    key = Numbers(None, -MAX_KEY, MAX_KEY).tag(in_repr=False)
    value = Numbers(None, -MAX_VALUE, MAX_VALUE).tag(in_repr=False)
    pair = Whole(None, 0, MAX_PAIRS - 1).tag(in_repr=False)

    key_range = t.List(t.Float(), [0.0, 5.0], read_only=True).tag(sync=True)
    """Lowest and highest query and key."""
    value_range = t.List(t.Float(), [-MAX_VALUE, MAX_VALUE], read_only=True).tag(
        sync=True
    )
    """Lowest and highest value: those of the first values and of the true curve, with a margin each side."""
    truth = t.List(t.Float(), read_only=True).tag(sync=True)
    """The true curve at 101 evenly spaced points of `key_range`, or empty."""
    truth_is_curve = t.Bool(False, read_only=True).tag(sync=True)
    """Whether the true curve is `mha_lib.data.curve`: the copied program then says so."""

    _num_pairs = 0

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
        # The ranges are set before the settings that must lie in them.
        self.set_trait("key_range", _checked_range(key_range))
        self._num_pairs = len(key) if isinstance(key, Sequence) else 0
        self.key = key
        if truth is not None:
            self.set_trait("truth", self._evaluate(truth))
        self.set_trait("truth_is_curve", truth is curve)
        self.value = value
        self.set_trait("value_range", _roomy([*self.value, *self.truth]))
        super().__init__(key=key, value=value, **settings)

    @t.default("pair")
    def _default_pair(self) -> int:
        """A pair whose key every kernel reaches; the nearest pair would be hidden behind the query."""
        distances = (_column(self.key) - self.query).abs()
        return int((distances - 0.8 * self.bandwidth).abs().argmin())

    @t.validate("key", "value")
    def _check_list(self, proposal: t.Bunch) -> list[float]:
        name, numbers = proposal.trait.name, proposal.value
        low, high = self.key_range if name == "key" else self.value_range
        count = self._num_pairs
        if len(numbers) != count or count > MAX_PAIRS:
            allowed = f"{count}" if count <= MAX_PAIRS else f"1 to {MAX_PAIRS}"
            raise TraitValueError(
                f"{name} must hold {allowed} numbers, got {len(numbers)}"
            )
        if not all(low <= number <= high for number in numbers):
            raise TraitValueError(
                f"{name} must lie in {low:g}..{high:g}, got {numbers}"
            )
        return list(numbers)

    @t.validate("query")
    def _check_query(self, proposal: t.Bunch) -> float:
        low, high = self.key_range
        if not low <= proposal.value <= high:
            raise TraitValueError(
                f"query must lie in {low:g}..{high:g}, got {proposal.value}"
            )
        return float(proposal.value)

    @t.validate("pair")
    def _check_pair(self, proposal: t.Bunch) -> int:
        if proposal.value >= self._num_pairs:
            raise TraitValueError(
                f"pair must lie in 0..{self._num_pairs - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    def _grid(self) -> Tensor:
        """The points where the fit is drawn: (101, 1)."""
        low, high = self.key_range
        steps = torch.arange(GRID, dtype=torch.float64).unsqueeze(-1)
        return low + (high - low) * steps / (GRID - 1)

    def _evaluate(self, truth: Callable[[Tensor], Tensor]) -> list[float]:
        if not callable(truth):
            raise TypeError(f"truth must be a function or None, got {truth!r}")
        grid = self._grid()
        numbers = truth(grid)
        if not isinstance(numbers, Tensor) or numbers.shape != grid.shape:
            raise ValueError(
                f"truth must map a tensor of shape {tuple(grid.shape)} to one of the same shape"
            )
        if not (numbers.abs() <= MAX_VALUE).all():
            raise ValueError(
                f"truth must give numbers from {-MAX_VALUE:g} to {MAX_VALUE:g} between "
                f"{self.key_range[0]:g} and {self.key_range[1]:g}"
            )
        return [float(number) for number in numbers.flatten().double()]

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        keys, values = _column(state.key), _column(state.value)

        def pool(queries: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
            if state.kernel == "Gaussian":
                scores = gaussian_score(queries, keys, state.bandwidth)
                return attention_pooling(scores, values, mask)
            distances = _in_bandwidths(queries - keys.T, state.bandwidth)
            closeness = COMPACT_KERNELS[state.kernel](distances)
            visible = closeness > 0
            return attention_pooling(
                closeness.log(), values, visible if mask is None else visible & mask
            )

        output, weights = pool(_column([state.query]))
        fit, _ = pool(self._grid())
        by_all, _ = pool(keys)
        by_others, _ = pool(keys, ~torch.eye(len(keys), dtype=torch.bool))
        numbers = {
            "output": output[0, 0],
            "weights": weights[0],
            "fit": fit[:, 0],
            "training_error": (by_all - values).square().mean(),
            "leave_one_out_error": (by_others - values).square().mean(),
        }
        if self.truth:
            numbers["test_error"] = (fit - _column(self.truth)).square().mean()
        return numbers

    def figure(self) -> Figure:
        """Pairs, true curve and fit; below them the weights for the query: a matplotlib Figure."""
        from mha_lib import plots

        numbers = self.numbers()
        weights = numbers["weights"]
        grid = self._grid().flatten()
        figure, (top, bottom) = plots.new_figure(
            2, 1, height=4.2, sharex=True, height_ratios=(3, 1)
        )
        if self.truth:
            top.plot(grid, self.truth, "--", color="black", linewidth=1)
        answered = self._answered(grid)
        top.plot(
            grid,
            numbers["fit"].masked_fill(~answered, torch.nan),
            color=plots.QUERY,
            linewidth=1.5,
        )
        top.scatter(
            self.key,
            self.value,
            s=12 + 300 * weights,
            color=plots.KEY,
            alpha=0.8,
            linewidths=0,
        )
        for axis in (top, bottom):
            axis.axvline(self.query, color=plots.QUERY, linestyle=":", linewidth=1)
        if weights.sum() > 0:
            top.plot(self.query, numbers["output"], "o", color=plots.QUERY)
        top.set_ylim(*self.value_range)
        top.set_ylabel("value")
        bottom.vlines(self.key, 0, weights, color=plots.KEY)
        bottom.set_ylim(0, None)
        bottom.set_xlim(*self.key_range)
        bottom.set_xlabel("key")
        bottom.set_ylabel("weight")
        errors = ", ".join(
            f"{label} {numbers[name]:.3f}"
            for name, label in (
                ("test_error", "true curve"),
                ("training_error", "training points"),
                ("leave_one_out_error", "leave-one-out"),
            )
            if name in numbers
        )
        top.set_title(
            f"{self.kernel} kernel, bandwidth {self.bandwidth:g}: "
            f"output {numbers['output']:.3f} at the query {self.query:g}\nerrors: {errors}"
        )
        return figure

    def _answered(self, queries: Tensor) -> Tensor:
        """Which of these queries see a key: bool (len(queries),)."""
        if self.kernel == "Gaussian":
            return torch.ones(len(queries), dtype=torch.bool)
        distances = _in_bandwidths(
            queries.unsqueeze(-1) - _column(self.key).T, self.bandwidth
        )
        return (COMPACT_KERNELS[self.kernel](distances) > 0).any(-1)

    def _details(self) -> list[str]:
        return [f"{self._num_pairs} pairs"]


def _checked_range(limits: Sequence[float]) -> list[float]:
    """Return a range of keys as two floats, or raise an error."""
    trait = Numbers([0.0, 1.0], -MAX_KEY, MAX_KEY, 2)
    trait.name = "key_range"
    low, high = trait._check(limits)
    if not low < high:
        raise TraitValueError(f"key_range must begin below its end, got {limits!r}")
    return [low, high]


def _roomy(numbers: Sequence[float]) -> list[float]:
    """A range of round numbers that holds all of these, with a margin of at least a fifth of their range."""
    low, high = min(numbers), max(numbers)
    spread = high - low or 1.0
    step = 10.0 ** math.floor(math.log10(spread)) / 2
    bottom = math.floor((low - spread / 5) / step) * step
    top = math.ceil((high + spread / 5) / step) * step
    return [max(bottom, -MAX_VALUE), min(top, MAX_VALUE)]
