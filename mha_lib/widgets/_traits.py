"""Traits that check their values: what goes to the browser and what comes back from it is always valid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import traitlets


class TraitValueError(traitlets.TraitError, ValueError):
    """A trait was given a value that breaks its rule; traitlets restores the old value. Also a ValueError."""


class TraitTypeError(traitlets.TraitError, TypeError):
    """A trait was given a value of the wrong type; traitlets restores the old value. Also a TypeError."""


class _Setting(traitlets.TraitType[Any, Any]):
    """Base class of the settings below: each is synchronised, and an error names the rule and the value.

    A setting whose default depends on the widget has the default None and a method with
    `@traitlets.default(name)` in its class. `.tag(in_repr=False)` leaves a setting out of the widget's repr,
    and `.tag(setting=False)` makes it a trait that only Python changes.
    """

    annotation = "Any"
    """How the type reads in the signature of the widget's constructor."""

    def __init__(self, default_value: Any) -> None:
        super().__init__(default_value)
        self.tag(sync=True, setting=True, in_repr=True)

    def limits(self) -> dict[str, Any]:
        """The parts of the rule that the browser needs: `low`, `high`, `step`, `options` or `length`."""
        return {}

    def text(self, value: Any) -> str:
        """The value as the widget's repr shows it."""
        return repr(value)

    def _check(self, value: Any) -> Any:
        """Return the value to store, or raise an error."""
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
    """True or False; other values that Python treats as true or false are refused."""

    annotation = "bool"

    def _check(self, value: Any) -> bool:
        self._insist(isinstance(value, bool), "be True or False", value, TraitTypeError)
        return bool(value)


class Text(_Setting):
    """A str; the widget itself checks which ones it accepts."""

    annotation = "str"

    def _check(self, value: Any) -> str:
        self._insist(isinstance(value, str), "be a str", value, TraitTypeError)
        return str(value)


class Choice(Text):
    """One of several strings."""

    def __init__(self, default_value: str, options: Sequence[str]) -> None:
        super().__init__(default_value)
        self.options = tuple(options)

    def limits(self) -> dict[str, Any]:
        """The strings."""
        return {"options": list(self.options)}

    def _check(self, value: Any) -> str:
        text = super()._check(value)
        self._insist(text in self.options, f"be one of {list(self.options)}", value)
        return text


class Whole(_Setting):
    """A whole number from `low` to `high`, both included.

    With `step=2` it must be even or odd, like `low`. With `options`, sorted, it must be one of them.
    """

    annotation = "int"

    def __init__(
        self,
        default_value: int | None,
        low: int = 0,
        high: int = 0,
        *,
        step: int = 1,
        options: Sequence[int] = (),
    ) -> None:
        super().__init__(default_value)
        self.options, self.step = tuple(options), step
        self.low, self.high = (options[0], options[-1]) if options else (low, high)

    def limits(self) -> dict[str, Any]:
        """The range, and what narrows it."""
        limits: dict[str, Any] = {"low": self.low, "high": self.high}
        if self.step > 1:
            limits["step"] = self.step
        if self.options:
            limits["options"] = list(self.options)
        return limits

    def _check(self, value: Any) -> int:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        self._insist(is_whole, "be an int", value, TraitTypeError)
        self._insist(
            self.low <= value <= self.high, f"lie in {self.low}..{self.high}", value
        )
        if self.options:
            self._insist(value in self.options, f"be one of {self.options}", value)
        parity = "odd" if self.low % 2 else "even"
        self._insist((value - self.low) % self.step == 0, f"be {parity}", value)
        return int(value)


class Number(_Setting):
    """A finite number from `low` to `high`, both included."""

    annotation = "float"

    def __init__(self, default_value: float, low: float, high: float) -> None:
        super().__init__(default_value)
        self.low, self.high = low, high

    def limits(self) -> dict[str, Any]:
        """The range."""
        return {"low": self.low, "high": self.high}

    def text(self, value: Any) -> str:
        """Short, without a decimal point if the number is whole."""
        return f"{value:g}"

    def _check(self, value: Any) -> float:
        is_real = isinstance(value, Real) and not isinstance(value, bool)
        self._insist(is_real, "be a number", value, TraitTypeError)
        # A NaN fails both comparisons.
        fits = self.low <= value <= self.high
        self._insist(fits, f"be a number from {self.low} to {self.high}", value)
        return float(value)


class Numbers(_Setting):
    """A list of finite numbers from `low` to `high`: `length` of them, or one or more."""

    annotation = "Sequence[float]"

    def __init__(
        self,
        default_value: Sequence[float] | None,
        low: float,
        high: float,
        length: int | None = None,
    ) -> None:
        super().__init__(None if default_value is None else list(default_value))
        self.low, self.high, self.length = low, high, length

    def limits(self) -> dict[str, Any]:
        """The range of each number, and how many there are."""
        count = {} if self.length is None else {"length": self.length}
        return {"low": self.low, "high": self.high, **count}

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
