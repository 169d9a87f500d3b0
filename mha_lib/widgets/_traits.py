"""Traits that check themselves: what is sent to the browser, and what comes back, always makes sense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import traitlets


class TraitValueError(traitlets.TraitError, ValueError):
    """A trait was given a value that breaks its rule: traitlets takes it back, callers catch a ValueError."""


class TraitTypeError(traitlets.TraitError, TypeError):
    """A trait was given a value of another type: traitlets takes it back, callers catch a TypeError."""


class _Setting(traitlets.TraitType[Any, Any]):
    """What all traits below have in common: they are synchronised, and an error names rule and value."""

    def __init__(self, default_value: Any) -> None:
        super().__init__(default_value)
        self.tag(sync=True)

    def _check(self, value: Any) -> Any:
        """The value as it is kept, or an error."""
        raise NotImplementedError

    def validate(self, obj: Any, value: Any) -> Any:  # noqa: ARG002, traitlets calls it so
        """Called by traitlets for each new value."""
        return self._check(value)

    def _insist(
        self, holds: bool, rule: str, value: Any, error: type = TraitValueError
    ) -> None:
        if not holds:
            raise error(f"{self.name} must {rule}, got {value!r}")


class Flag(_Setting):
    """True or False, nothing that merely counts as one of them."""

    def _check(self, value: Any) -> bool:
        self._insist(isinstance(value, bool), "be True or False", value, TraitTypeError)
        return bool(value)


class Choice(_Setting):
    """One of some texts."""

    def __init__(self, default_value: str, options: Sequence[str]) -> None:
        super().__init__(default_value)
        self.options = tuple(options)

    def _check(self, value: Any) -> str:
        self._insist(isinstance(value, str), "be a str", value, TraitTypeError)
        self._insist(value in self.options, f"be one of {list(self.options)}", value)
        return str(value)


class Whole(_Setting):
    """A whole number from `low` to `high`, both included."""

    def __init__(self, default_value: int, low: int, high: int) -> None:
        super().__init__(default_value)
        self.low, self.high = low, high

    def _check(self, value: Any) -> int:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        self._insist(is_whole, "be an int", value, TraitTypeError)
        self._insist(
            self.low <= value <= self.high, f"lie in {self.low}..{self.high}", value
        )
        return int(value)


class Number(_Setting):
    """A finite number from `low` to `high`, both included."""

    def __init__(self, default_value: float, low: float, high: float) -> None:
        super().__init__(default_value)
        self.low, self.high = low, high

    def _check(self, value: Any) -> float:
        is_real = isinstance(value, Real) and not isinstance(value, bool)
        self._insist(is_real, "be a number", value, TraitTypeError)
        # A NaN fails both comparisons.
        fits = self.low <= value <= self.high
        self._insist(fits, f"be a number from {self.low} to {self.high}", value)
        return float(value)


class Numbers(_Setting):
    """A list of finite numbers, each from `low` to `high`; of `length` of them, or of any number from 1."""

    def __init__(
        self,
        default_value: Sequence[float],
        low: float,
        high: float,
        length: int | None = None,
    ) -> None:
        super().__init__(list(default_value))
        self.low, self.high, self.length = low, high, length

    def _check(self, value: Any) -> list[float]:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        holds_reals = is_list and all(
            isinstance(number, Real) and not isinstance(number, bool)
            for number in value
        )
        self._insist(holds_reals, "be a list of numbers", value, TraitTypeError)
        count = len(value) if self.length is None else self.length
        fits = len(value) == count > 0 and all(
            self.low <= number <= self.high and math.isfinite(number)
            for number in value
        )
        numbers = "numbers" if self.length is None else f"{self.length} numbers"
        self._insist(fits, f"hold {numbers} from {self.low} to {self.high}", value)
        return [float(number) for number in value]
