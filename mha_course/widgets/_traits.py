"""Traits that check their values, so values that go to the browser and come back are always valid."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import traitlets

if TYPE_CHECKING:
    TraitType = traitlets.TraitType[Any, Any]
else:
    # Only type checkers know the parameters: traitlets before 5.10, such as Colab's, cannot be given any.
    TraitType = traitlets.TraitType


class TraitValueError(traitlets.TraitError, ValueError):
    """A trait was given a value that breaks its rule; traitlets restores the old one. Also a ValueError."""


class TraitTypeError(traitlets.TraitError, TypeError):
    """A trait was given a value of the wrong type; traitlets restores the old one. Also a TypeError."""


def unfit(name: str, rule: str, got: object) -> TraitValueError:
    """The error for a value of a trait that breaks a rule, like that of `refusal` for an argument."""
    return TraitValueError(f"{name} must {rule}, got {got}")


def within(proposal: traitlets.Bunch, low: int, high: int) -> int:
    """Return the proposed whole number if it is in a range that traits alone cannot express."""
    if not low <= proposal.value <= high:
        raise unfit(proposal.trait.name, f"lie in {low}..{high}", proposal.value)
    return int(proposal.value)


def among(proposal: traitlets.Bunch, options: Iterable[Any]) -> Any:
    """Return the proposed value if it is one of these options."""
    if proposal.value not in (listed := list(options)):
        raise unfit(proposal.trait.name, f"be one of {listed}", repr(proposal.value))
    return proposal.value


def digits(proposal: traitlets.Bunch, rows: int, columns: int) -> str:
    """Return the proposed text if it has a digit 0 or 1 for each cell of a table, one group per row."""
    group = f"[01]{{{columns}}}"
    if not re.fullmatch(f"{group}( {group}){{{rows - 1}}}", proposal.value):
        rule = f"be {rows} groups of {columns} digits 0 or 1"
        raise unfit(proposal.trait.name, rule, repr(proposal.value))
    return str(proposal.value)


# How one setting limits another: "num_heads - 1", "head_dim // 2 - 1", "batch.samples - 1".
_OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
}


def _resolve(rule: Any, obj: Any) -> Any:
    """The value of a rule in the present state of a widget; anything else is returned unchanged."""
    if not isinstance(rule, str):
        return rule
    first, *terms = rule.split()
    value = _operand(first, obj)
    for sign, operand in zip(terms[::2], terms[1::2], strict=True):
        value = _OPERATIONS[sign](value, _operand(operand, obj))
    return value


def _operand(text: str, obj: Any) -> Any:
    """A whole number, the value of a trait, or an entry of a trait that is a dict or a list."""
    if text.isdigit():
        return int(text)
    name, *keys = text.split(".")
    value = getattr(obj, name)
    for key in keys:
        value = value[int(key) if key.isdigit() else key]
    return value


class _Setting(TraitType):
    """Base class of the settings below; each is synchronised, and its errors name the rule and the value.

    A limit may be a text that says how it follows from other traits: "length - 1", "12 // length",
    "key_range.0". Such a text consists of whole numbers, names of traits, and paths to entries of traits that
    are dicts or lists, with the operators +, -, * and //, applied from left to right. The browser reads it
    too. If another trait changes, a value that no longer fits becomes the nearest one below.

    If the default of a setting depends on the widget, give the setting the default None and its class a
    method with `@traitlets.default(name)`. `.tag(in_repr=False)` leaves a setting out of the widget's repr,
    and `.tag(setting=False)` makes it a trait that only Python changes.
    """

    annotation = "Any"
    """The type as written in the signature of the widget's constructor."""

    kind = "any"
    """How the browser reads the setting."""

    def __init__(self, default_value: Any, **limits: Any) -> None:
        super().__init__(default_value)
        self._limits = {
            key: limit for key, limit in limits.items() if limit is not None
        }
        self._rules = {
            k: rule for k, rule in self._limits.items() if isinstance(rule, str)
        }
        operands = [text for rule in self._rules.values() for text in rule.split()[::2]]
        self.sources = {
            text.partition(".")[0] for text in operands if not text.isdigit()
        }
        self.tag(sync=True, setting=True, in_repr=True)

    def limits(self, obj: Any = None) -> dict[str, Any]:
        """The parts of the rule: `low`, `high`, `step`, `options`, `length` or `divides`.

        Args:
            obj: a widget, in whose present state the limits are evaluated to numbers.
        """
        if obj is None:
            return dict(self._limits)
        return {key: _resolve(limit, obj) for key, limit in self._limits.items()}

    def text(self, value: Any) -> str:
        """The value as the widget's repr shows it."""
        return repr(value)

    def fitted(self, value: Any, obj: Any) -> Any:
        """Return the value, or the nearest one that the present state of the widget allows."""
        limits = self.limits(obj)
        if whole := limits.get("divides"):
            return max(n for n in range(1, min(whole, value) + 1) if whole % n == 0)
        return min(value, limits["high"]) if isinstance(value, int) else value

    def _check(self, value: Any, limits: dict[str, Any]) -> Any:
        """Return the value to store, or raise an error; some of the limits may still be unknown."""
        raise NotImplementedError

    def validate(self, obj: Any, value: Any) -> Any:
        """Called by traitlets for each new value."""
        # If several traits change at once, the rules are applied after all of them, in `_cross_validate`.
        known = {k: limit for k, limit in self._limits.items() if k not in self._rules}
        return self._check(
            value, known if obj._cross_validation_lock else self.limits(obj)
        )

    def _cross_validate(self, obj: Any, value: Any) -> Any:
        # With the lock, all changes have been made by now; without it, `validate` has applied the rules.
        if self._rules and obj._cross_validation_lock:
            value = self._check(value, self.limits(obj))
        return super()._cross_validate(obj, value)

    def _insist(
        self, holds: bool, rule: str, value: Any, error: type = TraitValueError
    ) -> None:
        if not holds:
            raise error(f"{self.name} must {rule}, got {value!r}")


class Flag(_Setting):
    """True or False; other values that Python treats as true or false are rejected."""

    annotation, kind = "bool", "flag"

    def _check(self, value: Any, limits: dict[str, Any]) -> bool:  # noqa: ARG002
        self._insist(isinstance(value, bool), "be True or False", value, TraitTypeError)
        return bool(value)


class Text(_Setting):
    """A str; the widget itself checks its content."""

    annotation, kind = "str", "text"

    def _check(self, value: Any, limits: dict[str, Any]) -> str:  # noqa: ARG002
        self._insist(isinstance(value, str), "be a str", value, TraitTypeError)
        return str(value)


class Choice(Text):
    """One of several strings."""

    kind = "choice"

    def __init__(self, default_value: str, options: Sequence[str]) -> None:
        super().__init__(default_value, options=list(options))

    def _check(self, value: Any, limits: dict[str, Any]) -> str:
        text = super()._check(value, limits)
        options = limits["options"]
        self._insist(text in options, f"be one of {options}", value)
        return text


class Whole(_Setting):
    """A whole number from `low` to `high`, both included.

    With `step=2`, it must be even or odd, like `low`. With `options`, which are sorted, it must be one of
    them. With `divides`, it must divide the value of that setting.
    """

    annotation, kind = "int", "whole"

    def __init__(
        self,
        default_value: int | None,
        low: int = 0,
        high: int | str = 0,
        *,
        step: int | None = None,
        options: Sequence[int] = (),
        divides: str | None = None,
    ) -> None:
        (low, high) = (options[0], options[-1]) if options else (low, high)
        listed = list(options) or None
        super().__init__(
            default_value,
            low=low,
            high=high,
            step=step,
            options=listed,
            divides=divides,
        )

    def _check(self, value: Any, limits: dict[str, Any]) -> int:
        low, high = limits["low"], limits.get("high", math.inf)
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        self._insist(is_whole, "be an int", value, TraitTypeError)
        self._insist(low <= value <= high, f"lie in {low}..{high}", value)
        if options := limits.get("options"):
            self._insist(value in options, f"be one of {tuple(options)}", value)
        if step := limits.get("step"):
            parity = "odd" if low % 2 else "even"
            self._insist((value - low) % step == 0, f"be {parity}", value)
        if whole := limits.get("divides"):
            rule = f"divide {self._rules['divides']}={whole}"
            self._insist(whole % value == 0, rule, value)
        return int(value)


class Number(_Setting):
    """A finite number from `low` to `high`, both included."""

    annotation, kind = "float", "real"

    def __init__(
        self, default_value: float, low: float | str, high: float | str
    ) -> None:
        super().__init__(default_value, low=low, high=high)

    def text(self, value: Any) -> str:
        """The number in short form, without a decimal point if it is whole."""
        return f"{value:g}"

    def _check(self, value: Any, limits: dict[str, Any]) -> float:
        low, high = limits.get("low", -math.inf), limits.get("high", math.inf)
        is_real = isinstance(value, Real) and not isinstance(value, bool)
        self._insist(is_real, "be a number", value, TraitTypeError)
        # A NaN fails both comparisons; an infinity would pass while the limits are still unknown.
        self._insist(low <= value <= high, f"be a number from {low} to {high}", value)
        return float(value)


class Numbers(_Setting):
    """A list of finite numbers from `low` to `high`, either `length` of them or at least one.

    With `ends`, each must be `low` or `high`. If a rule changes the length, all numbers become `high`.
    """

    annotation, kind = "Sequence[float]", "reals"

    def __init__(
        self,
        default_value: Sequence[float] | None,
        low: float | str,
        high: float | str,
        length: int | str | None = None,
        *,
        ends: bool | None = None,
    ) -> None:
        default = None if default_value is None else list(default_value)
        super().__init__(default, low=low, high=high, length=length, ends=ends)

    def fitted(self, value: Any, obj: Any) -> Any:
        """Return the list, or one of the correct length."""
        limits = self.limits(obj)
        fits = len(value) == limits.get("length", len(value))
        return value if fits else [float(limits["high"])] * limits["length"]

    def _check(self, value: Any, limits: dict[str, Any]) -> list[float]:
        low, high = limits.get("low", -math.inf), limits.get("high", math.inf)
        length = limits.get("length")
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        holds_reals = is_list and all(
            isinstance(number, Real) and not isinstance(number, bool)
            for number in value
        )
        self._insist(holds_reals, "be a list of numbers", value, TraitTypeError)
        count = len(value) if length is None else length
        fits = len(value) == count > 0 and all(
            low <= number <= high and math.isfinite(number) for number in value
        )
        numbers = "numbers" if length is None else f"{length} numbers"
        self._insist(fits, f"hold {numbers} from {low} to {high}", value)
        at_ends = not limits.get("ends") or all(n in (low, high) for n in value)
        self._insist(at_ends, f"hold {numbers}, each {low} or {high}", value)
        return [float(number) for number in value]
