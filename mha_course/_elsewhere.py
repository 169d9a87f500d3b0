"""An answer that runs in another process: the judge sees only plain results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

# In the process of the answer: what the judge can name by a number.
_KEPT: list[Any] = []


def keep(thing: Any) -> int:
    """In the answer's process, keep something for the judge, who can then name it by its number."""
    _KEPT.append(thing)
    return len(_KEPT) - 1


def kept(number: int) -> Any:
    """In the answer's process, return what is kept under a number."""
    return _KEPT[number]


class Elsewhere:
    """What another process keeps under a number: in arguments that are sent there, the thing itself.

    Args:
        ask: function of (function, *arguments) that calls the function there, and returns its result as plain
            tensors, numbers, strings, lists, dicts and outcomes.
        number: the number.
        is_module: whether the other process says that it is an `nn.Module`.
    """

    def __init__(
        self, ask: Callable[..., Any], number: int, *, is_module: bool = False
    ) -> None:
        self.do, self._number, self.is_module = ask, number, is_module
        # What somebody must look at, although the numbers agree.
        self.doubts: list[str] = []

    def use_where_it_is(
        self, how: Callable[..., Any], exercise: Any, *given: Any
    ) -> Any:
        """Let a method of an exercise use the answer there, without anything that judges it."""
        empty = _empty(exercise.reference)
        nothing: Any = dict.fromkeys(("wrong", "accept", "properties"), ())
        nothing |= {"gradients": False, "further": {}}
        bare = replace(exercise, reference=empty, cases={"": empty}, **nothing)
        return self.do(how, bare, self, *given)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse: an answer is called where it is."""
        raise TypeError("an answer of another process is called by `do`")

    def __reduce__(self) -> tuple[Any, ...]:
        """Arrive as the thing itself."""
        return kept, (self._number,)


def _empty(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the same parameters, which stands for a reference where that must not be."""

    def empty(*_: Any) -> None: ...

    vars(empty)["__signature__"] = inspect.signature(reference)
    return empty
