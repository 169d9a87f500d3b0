"""A question whose answer the reader types: a number or a shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import traitlets as t

from mha_course._checks import check_kept_name, check_text
from mha_course.widgets._base import CourseWidget
from mha_course.widgets._traits import unfit
from mha_course.widgets.quiz import _inline_html
from mha_lib._checks import check_number, check_type, refusal, wrong_type

Value: TypeAlias = int | float | tuple[int, ...]

FLOAT_ERROR, INT_ERROR = 1e-9, 2.0**-50
"""Relative tolerances for rounding in arithmetic, too small for an int to count as its neighbour."""


class TypedAnswer(CourseWidget):
    """A question with a typed answer, feedback that names the mistake, hints in steps and a solution.

    A number may be typed as 0.25, 1/4, 1e-3, 12 288, 12,288, 2^10 or 3 * 2^10, with or without its unit, and
    a share also as 75 %; a shape as (2, 3, 5), 2,3,5, 2 x 3 x 5 or 2 × 3 × 5. An unreadable answer does not
    count as an attempt. A known wrong answer gets its own feedback; for any other, the page says whether it
    is too large or too small, or which axes are wrong. The reader can open the solution after one attempt or
    after the last hint; it also appears after the correct answer. Texts may contain `code` and *emphasis*.

    Args:
        text: the question.
        answer: the correct answer, as the author declares it: a finite int or float, or a tuple of ints for a
            shape.
        computed: the correct answer, as the cell computes it; it may be a tensor, a numpy number or a
            torch.Size.
        feedback: a dict from each known wrong answer to the sentence that names its cause.
        unit: text after the input and after the answer, such as "bytes" or "%".
        tolerance: the relative error up to which a number counts as correct, such as 0.01; 0 for exact
            numbers and for shapes.
        hints: the hints, from a first nudge to one close to the answer; they open one at a time.
        solution: how to find the answer, shown below it.
        name: name under which the reader's browser stores the attempts, unique among the course's widgets of
            this class; "" if they are not stored.

    Raises:
        TypeError: an argument has the wrong type, or the answers are not all numbers or all shapes.
        ValueError: answer differs from computed, a known wrong answer is too close to the correct one or to
            another known one, or a text, the tolerance or the name breaks its rule.

    Example:
        >>> question = TypedAnswer(
        ...     "How many weights do four projections have if `embed_dim` is 64?", 16384, computed=4 * 64**2,
        ...     feedback={4096: "That is one projection; there are four."},
        ...     hints=["How many projections are there?", "Each has `embed_dim` rows and columns."],
        ... )
        >>> question
        TypedAnswer(16384)
        >>> question.attempts = [4096, 16384]
        >>> question.is_right
        True
    """

    _module: ClassVar[str] = "typed_answer.js"
    _settings: ClassVar[tuple[str, ...]] = (
        "attempts",
        "typed",
        "opened",
        "solution_shown",
    )

    question = t.Dict(read_only=True).tag(sync=True)
    name = t.Unicode(read_only=True).tag(sync=True)
    """The name under which the browser stores the attempts; "" if it does not."""
    attempts = t.List(t.Any()).tag(sync=True)
    """The answers that the reader has checked, each a number, or a list of sizes."""
    typed = t.Unicode().tag(sync=True)
    """The last attempt as the reader typed it."""
    opened = t.Int().tag(sync=True)
    """The number of open hints."""
    solution_shown = t.Bool().tag(sync=True)
    """Whether the reader has opened the solution."""

    def __init__(
        self,
        text: str,
        answer: Value,
        *,
        computed: Any,
        feedback: Mapping[Any, str] | None = None,
        unit: str = "",
        tolerance: float = 0,
        hints: Sequence[str] = (),
        solution: str = "",
        name: str = "",
    ) -> None:
        check_text("text", text)
        self._answer = _check_value("answer", answer)
        is_shape = isinstance(self._answer, tuple)
        check_type("unit", unit, str)
        self._tolerance = _check_tolerance(tolerance, self._answer)
        found = _check_value("computed", computed)
        if _kind(found) != _kind(self._answer) or not self._is_near(
            found, self._answer
        ):
            rule = f"be what the cell computes, {found!r}"
            raise refusal("answer", rule, f"{answer!r} for the question {text!r}")
        known = self._check_feedback({} if feedback is None else feedback)
        check_type("hints", hints, Sequence)
        if isinstance(hints, str):
            raise TypeError(f"hints must be a sequence of str, got {hints!r}")
        for index, hint in enumerate(hints):
            check_text(f"hints[{index}]", hint)
        check_type("solution", solution, str)
        self.set_trait("name", check_kept_name(name))
        state = {
            "text": text,
            "is_shape": is_shape,
            "answer": _plain(self._answer),
            "shown": _written(self._answer, unit),
            "unit": unit,
            "tolerance": self._tolerance,
            "percent": _percent(self._answer, unit),
            "known": [[_plain(value), why] for value, why in known],
            "hints": list(hints),
            "solution": solution,
        }
        self.set_trait("question", state)
        super().__init__()

    def _is_near(self, value: Value, other: Value) -> bool:
        """Whether two values count as equal: the same shape, or numbers within the tolerance."""
        if isinstance(value, tuple) or isinstance(other, tuple):
            return value == other
        # Allow a little more, so that 0.33 is within 10 % of 0.3.
        return abs(value - other) <= abs(other) * self._tolerance * (1 + 1e-9)

    def _check_feedback(self, feedback: object) -> list[tuple[Value, str]]:
        """The known wrong answers with their texts; raise unless all answers can be told apart."""
        check_type("feedback", feedback, Mapping)
        known: list[tuple[Value, str]] = []
        for key, why in feedback.items():  # type: ignore[attr-defined]
            value = _check_value("a key of feedback", key)
            if _kind(value) != _kind(self._answer):
                rule = f"a key of feedback must be a {_kind(self._answer)}"
                raise TypeError(f"{rule}, as answer is, got {key!r}")
            check_text(f"feedback[{key!r}]", why)
            for what, other in (
                ("answer", self._answer),
                *(("another key", value) for value, _ in known),
            ):
                if self._is_near(value, other) or self._is_near(other, value):
                    rule = f"differ from {what} {other!r} by more than the tolerance"
                    raise refusal("a key of feedback", rule, repr(key))
            known.append((value, why))
        return known

    @t.validate("attempts")
    def _check_attempts(self, proposal: t.Bunch) -> list[Any]:
        is_shape = isinstance(self._answer, tuple)
        fits = _is_sizes if is_shape else _is_finite
        if not all(fits(value) for value in proposal.value):
            entries = "a list of sizes for each shape" if is_shape else "finite numbers"
            raise unfit("attempts", f"hold {entries}", repr(proposal.value))
        return list(proposal.value)

    @t.validate("opened")
    def _check_opened(self, proposal: t.Bunch) -> int:
        count = len(self.question["hints"]) if self.question else 0
        if isinstance(proposal.value, bool) or not 0 <= proposal.value <= count:
            rule = f"lie in 0..{count}, the number of hints"
            raise unfit("opened", rule, repr(proposal.value))
        return int(proposal.value)

    @property
    def is_right(self) -> bool:
        """Whether the last attempt is right."""
        if not self.attempts:
            return False
        last = self.attempts[-1]
        value: Any = tuple(last) if isinstance(last, (list, tuple)) else last
        return self._is_near(value, self._answer)

    def fallback_html(self) -> str:
        """The question, with folded hints and answer."""
        state = self.question
        folded = [
            (f"Hint {number}", hint) for number, hint in enumerate(state["hints"], 1)
        ]
        folded.append(("Answer", f"{state['shown']}. {state['solution']}".strip()))
        details = "".join(
            f"<details><summary>{title}</summary><p>{_inline_html(text)}</p></details>"
            for title, text in folded
        )
        return f"<p>{_inline_html(state['text'])}</p>{details}"

    def __repr__(self) -> str:
        return f"TypedAnswer({self._answer!r})"


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _is_sizes(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(_is_size(size) for size in value)


def _is_size(size: Any) -> bool:
    is_whole = isinstance(size, Integral) and not isinstance(size, bool)
    return is_whole and int(size) >= 0


def _kind(value: Value) -> str:
    return "tuple of ints" if isinstance(value, tuple) else "number"


def _check_value(name: str, value: Any) -> Value:
    """Return the finite number or the shape, as a plain tuple, that `value` is or contains."""
    if hasattr(value, "item"):
        if math.prod(value.shape) != 1:
            raise refusal(name, "hold one number", f"shape {tuple(value.shape)}")
        value = value.item()
    if isinstance(value, tuple):
        if not _is_sizes(value):
            raise refusal(name, "be a tuple of ints that are not negative", repr(value))
        return tuple(int(size) for size in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(name, "a number or a tuple of ints", value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if abs(value) > 2**53 and isinstance(value, int):
        raise refusal(name, "be at most 2^53, so that a browser can hold it", value)
    return value


def _check_tolerance(tolerance: object, answer: Value) -> float:
    """The relative tolerance, at least that of the arithmetic; raise if the answer cannot have one."""
    if not 0 <= check_number("tolerance", tolerance) <= 0.5:
        raise ValueError(f"tolerance must lie in 0..0.5, got {tolerance}")
    if tolerance and (isinstance(answer, tuple) or answer == 0):
        what = "a shape" if isinstance(answer, tuple) else "0"
        raise refusal("tolerance", f"be 0 where the answer is {what}", tolerance)
    least = FLOAT_ERROR if isinstance(answer, float) else INT_ERROR
    return max(float(check_number("tolerance", tolerance)), least)


def _percent(answer: Value, unit: str) -> str:
    """The meaning of a % sign: the unit, a hundredth for a share between -1 and 1, or ambiguous."""
    if unit == "%":
        return "unit"
    is_share = isinstance(answer, float) and abs(answer) <= 1 and not unit
    return "share" if is_share else "none"


def _plain(value: Value) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _written(answer: Value, unit: str) -> str:
    """The answer as the page writes it, with its unit: 12,288 bytes."""
    if isinstance(answer, tuple):
        return str(answer)
    digits = f"{answer:,}" if isinstance(answer, int) else f"{answer:.6g}"
    digits = digits.replace("-", "−") if answer < 0 else digits
    return f"{digits} {unit}" if unit else digits
