"""What a judgement says: a verdict, and what a known wrong answer is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from attention_check._errors import no_way_back
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


def part_of(answer: Any, made: Any, name: str) -> Any:
    """The attribute of an object that an answer has made, or an UnfinishedError that says what to write."""
    if (part := getattr(made, name, None)) is not None:
        return part
    if is_local(answer, name):
        raise UnfinishedError(
            f"`{name}` is only a local variable of `__init__`, which is gone when `forward` runs. Keep it on "
            f"the object: `self.{name} = …`"
        )
    raise UnfinishedError(
        f"`__init__` makes no `{name}`. Write it there first, then `forward`"
    )


def made_by_name(make: Any, *first: Any, **sizes: Any) -> Any:
    """What a class makes of sizes of which later cells, too, give some by name."""
    taken = inspect.signature(make).parameters
    open_ended = any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()
    )
    lacks = [name for name in sizes if name not in taken]
    if lacks and not open_ended:
        raise UnfinishedError(
            f"`__init__` takes no `{lacks[0]}`. Later cells give it by this name: keep the names of the stub"
        )
    return make(*first, **sizes)


def unlearned(module: Any, returned: Any) -> str:
    """What is saved and gets no gradient from the first result: names, or "nothing".

    That is a detached parameter, or a buffer that the stored weights of a later page lack.
    """
    first = returned[0] if isinstance(returned, (tuple, list)) else returned
    if getattr(first, "requires_grad", False):
        try:
            # The loss is the dot product with fixed numbers, all different.
            ramp = torch.linspace(0.5, 1.5, first.numel(), dtype=first.dtype)
            (first * ramp.view(first.shape)).sum().backward()
        except RuntimeError as error:
            raise UnfinishedError(no_way_back(error)) from error
    learned = {name for name, one in module.named_parameters() if one.grad is not None}
    return (
        ", ".join(name for name in module.state_dict() if name not in learned)
        or "nothing"
    )


def wrong_bias(name: str, wanted: bool) -> str:
    """A sentence on a projection that has a bias without being asked for one, or has none although asked."""
    when, has = ("with", "no") if wanted else ("without", "a")
    return f"{when} `bias=True`, `{name}` has {has} bias. Hand it on: `nn.Linear(…, bias=bias)`"


def is_local(answer: Any, name: str) -> bool:
    """Whether `__init__` of a class has a local variable of this name: a `self.` may be forgotten."""
    code = getattr(getattr(answer, "__init__", None), "__code__", None)
    return code is not None and name in code.co_varnames


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


def not_yet(sentence: str, fault: Wrong | None = None) -> Verdict:
    end = "" if sentence.endswith((".", "?", "!", ".)")) else "."
    return Verdict(False, f"Not yet: {sentence}{end}", fault)
