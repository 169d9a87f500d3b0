"""What a judgement says: a verdict, and what a known wrong answer is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mha_lib import _checks

Answer: TypeAlias = Callable[..., Any]


# What is said of an answer whose numbers change from call to call, and of one that changes its arguments.
AGAIN = (
    "called again with the same arguments, it returns different numbers. Does it draw random numbers "
    "(dropout that is always on?), or keep something from the previous call?"
)
IN_PLACE = (
    "Work on a copy, or use operations that return a new tensor (no `x[...] = ...`, `x += ...`, or names "
    "that end with `_`)"
)


class UnfinishedError(NotImplementedError):
    """Raised by the `run` of an exercise; its message says what the answer lacks."""


class FaultError(UnfinishedError):
    """Raised by the `run` of an exercise; its message says what is wrong with an answer that is complete."""


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a checker returns: whether an answer is `right`, and a `message` that begins "Right" or "Not yet".

    A verdict is true if the answer is right, and a notebook shows its message.

    Raises:
        TypeError: `right` is not a bool, or `message` not a str.

    Example:
        >>> Verdict(False, "Not yet: the softmax runs over the queries.")
        Not yet: the softmax runs over the queries.
        >>> assert Verdict(True, "Right in all 3 cases.")
    """

    right: bool
    message: str
    fault: Wrong | None = field(default=None, compare=False)  # the known one that it is

    def __post_init__(self) -> None:
        _checks.check_type("right", self.right, bool)
        _checks.check_type("message", self.message, str)

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.message

    def _repr_markdown_(self) -> str:
        """The message, with characters outside code escaped, so that they do not count as formatting."""
        code_or_sign = r"(`[^`]*`)|([\\*_<>$\[\]])"
        return re.sub(code_or_sign, lambda at: at[1] or f"\\{at[2]}", self.message)


@dataclass(frozen=True)
class Wrong:
    """A known wrong answer to an exercise.

    Args:
        name: what is wrong, as a clause: "the softmax runs over the queries".
        cause: one sentence on why it is wrong and what to look at.
        answer: a function that makes this mistake.
        convention: whether it is right elsewhere, so that it only differs.

    Raises:
        TypeError: `name` or `cause` is not a str, or `answer` is not callable.

    Example:
        >>> Wrong("the mask is inverted", "True means: may attend.", lambda mask: ~mask).name
        'the mask is inverted'
    """

    name: str
    cause: str
    answer: Answer = field(repr=False)
    convention: bool = False

    def __post_init__(self) -> None:
        _checks.check_type("name", self.name, str)
        _checks.check_type("cause", self.cause, str)
        check_callable("answer", self.answer)


def check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise _checks.wrong_type(name, "callable", value)


# How a sentence ends, in English and, in a page that is translated, in Chinese.
_ENDS = (".", "?", "!", ".)", "。", "？", "！", "。）")


def not_yet(sentence: str, fault: Wrong | None = None) -> Verdict:
    whole = sentence.endswith(_ENDS)
    told = f"Not yet: {sentence}" if whole else f"Not yet: {sentence}."
    return Verdict(False, told, fault)
