"""An answer that runs in another process: the judge sees only plain results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEPT: list[
    Any
] = []  # in the process of the answer: what the judge can name by a number


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
        self.doubts: list[
            str
        ] = []  # what somebody must look at, although the numbers agree

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse: an answer is called where it is."""
        raise TypeError("an answer of another process is called by `do`")

    def __reduce__(self) -> tuple[Any, ...]:
        """Arrive as the thing itself."""
        return kept, (self._number,)
