"""The texts of exercises, whose form is checked, and further cases: their own with other sizes.

Many mistakes show at a few sizes only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from random import Random
from typing import Any

import torch
from torch import Tensor

from attention_check import _texts
from mha_course._exercise import Exercise

# The form of each kind of item in words.
_IN_WORDS = {
    "mistakes": "a mistake is `**its name.** its cause`",
    "cases": "a case is a label, a colon, and `arguments`",
}
_MOST = 1_000  # numbers in all arguments; with more, a page would take too long


class Texts(_texts.Texts):
    """The Markdown file beside a module of exercises; what it makes is tried with other sizes too."""

    kind = Exercise

    def _items(self, name: str, kind: str) -> Iterator[tuple[Any, re.Match[str]]]:
        """See `attention_check._texts.Texts`; what is not in its form is said with file and line."""
        if name not in self._sections:
            raise self._error(1, f"there is no section `## {name}`")
        seen = set()
        for item in self._sections[name][1]:
            if item.text.startswith("**") != (kind == "mistakes"):
                continue
            match = re.fullmatch(_texts.ITEMS[kind], item.text)
            if match is None:
                raise self._error(item.line, _IN_WORDS[kind])
            if match[1] in seen:
                raise self._error(item.line, f"there are two {kind} {match[1]!r}")
            seen.add(match[1])
            if kind == "mistakes":
                self._check_below(item)
        yield from super()._items(name, kind)

    def _check_below(self, item: Any) -> None:
        """Check the form of what a mistake does."""
        if not item.below:
            raise self._error(item.line, "nothing below this mistake says what it does")
        if all(_texts.EDIT.fullmatch(one.text) for one in item.below):
            return
        for one in item.below:
            if not _texts.ANSWER.fullmatch(one.text) or " → " in one.text:
                form = "write edits, `old` → `new`, or answers, as code"
                raise self._error(one.line, form)

    def __call__(
        self, name: str, *, other_sizes: Sequence[int] = (), **options: Any
    ) -> Exercise:
        """See `attention_check._texts.Texts`; an answer must also be right for these other sizes.

        Only for arguments of which each size may differ alone: not for columns that make pairs, or a number
        of heads that divides a width. 1 is left out where it leaves nothing to compute.
        """
        exercise = super().__call__(name, **options)
        assert isinstance(exercise, Exercise)
        if len({one.name for one in exercise.wrong}) < 2:
            few = f"`{name}` names fewer than two mistakes"
            raise self._error(self._sections[name][0], few)
        others = with_other_sizes(exercise.cases, other_sizes)
        return replace(exercise, further={**exercise.further, **others})


def with_other_sizes(
    cases: Mapping[str, Callable[..., Any]], others: Sequence[int]
) -> dict[str, Callable[..., Any]]:
    """At most 24 further cases; in each, one of the sizes in a case is another.

    Example:
        >>> further = with_other_sizes({"3": lambda g: torch.ones(3, 3)}, [5])
        >>> further["3, with another size (0)"](None)[0].shape
        torch.Size([5, 5])
    """
    chosen = [*product(cases.items(), range(4), others)]
    Random(0).shuffle(chosen)  # the same ones each time
    return {
        f"{label}, with another size ({number})": partial(_resized, case, place, new)
        for number, ((label, case), place, new) in enumerate(chosen[:24])
    }


def _resized(
    case: Callable[..., Any], place: int, new: int, generator: torch.Generator
) -> tuple[Any, ...]:
    """The arguments of a case, one of whose sizes is another wherever it occurs.

    A size of 1 stays, since what has one row or column is often defined for one only.
    A number may grow, but becomes 1 only if an axis has this size: a text must not be longer than a table.
    """
    given = case(generator)
    given = given if isinstance(given, tuple) else (given,)
    sizes = {n for one in given if isinstance(one, Tensor) for n in one.shape}
    if new > 1 or not sizes:
        inside = [one if isinstance(one, tuple) else (one,) for one in given]
        sizes |= {n for several in inside for n in several if type(n) is int}
    sizes -= {0, 1}
    if not sizes or any(isinstance(one, list) for one in given):
        return given
    old = sorted(sizes)[place % len(sizes)]
    made = tuple(_with(one, old, new) for one in given)
    numbers = sum(one.numel() for one in made if isinstance(one, Tensor))
    return made if numbers <= _MOST else given


def _with(one: Any, old: int, new: int) -> Any:
    """An argument in which each axis of a size, and each number equal to it, has a new one."""
    if isinstance(one, tuple):
        return tuple(_with(part, old, new) for part in one)
    if type(one) is int:
        return new if one == old else one
    if not isinstance(one, Tensor):
        return one
    for axis, size in enumerate(one.shape):
        if size == old:
            places = torch.arange(new)
            # The second time, all are one place further on.
            one = one.index_select(axis, (places + places // old) % old)
            if one.is_floating_point():  # equal numbers could be chosen in any order
                factors = 1 - places.to(one) / (3 * new)
                one = one * factors.view(
                    [-1 if i == axis else 1 for i in range(one.ndim)]
                )
    return one
