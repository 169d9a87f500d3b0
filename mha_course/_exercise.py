"""An exercise of the course: what an answer must not change besides its results, and sizes of its inputs.

The page has this file too, so it uses only what its stand-in for torch has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from attention_check import _judging
from attention_check._judging import SEED, Arguments, Property
from attention_check._results import (
    IN_PLACE,
    Answer,
    Outcome,
    Wrong,
    check_callable,
    tensors_in,
)
from mha_lib import _checks

ARE_SET = {
    "set_grad_enabled": torch.is_grad_enabled,
    "set_default_dtype": getattr(torch, "get_default_dtype", bool),
    "use_deterministic_algorithms": getattr(
        torch, "are_deterministic_algorithms_enabled", bool
    ),
    "set_printoptions": lambda: repr(torch.tensor([1 / 3, 1e6])),
}
"""What sets something that holds for all of torch, and how it is set; the page has two of these."""

SEEDS = (
    "it seeds torch's own generator (`torch.manual_seed`), so whatever is drawn next, such as the weights of "
    "the next layer, is the same each time. Leave the seed to the cell that trains"
)
LASTS = (
    "then holds for all that comes after it: other cells train, compute and print. Leave it out; "
    "`with torch.no_grad():` ends by itself"
)


@dataclass(frozen=True)
class Exercise(_judging.Exercise):
    """An exercise that also watches torch's settings, and tries further cases last.

    Args:
        then: a function of a right answer, which returns a clause on what else is wrong, or "".
        seeds: accept an answer that seeds torch's own generator.
        further: cases that no sentence lists; those in which the reference fails do not count.

    Raises:
        TypeError: a function is not callable, or `wrong` contains anything other than `Wrong`.
        ValueError: there are no cases.
    """

    then: Callable[[Any], str] | None = None
    seeds: bool = True
    further: Mapping[str, Callable[[torch.Generator], Any]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(f"cases must hold at least one case, got {self.cases!r}")
        check_callable("reference", self.reference)
        check_callable("run", self.run or self.reference)
        for name in ("accept", "properties", "cases"):
            functions = getattr(self, name)
            for function in functions.values() if name == "cases" else functions:
                check_callable(name, function)
        for one in self.wrong:
            _checks.check_type("wrong", one, Wrong)

    def audit(self) -> list[str]:
        """Tell the author what is wrong with the exercise itself, in sentences."""
        rights = map(self, (self.reference, *self.accept))
        found = [f"a right answer is rejected: {one}" for one in rights if not one]
        for wrong in self.wrong:
            message = self(wrong.answer).message
            if not message.startswith(f"Not yet: {wrong.name}. "):
                found.append(f"{wrong.name!r} gets the verdict {message!r}")
        return found

    def beyond(self) -> Exercise:
        """The same exercise, whose cases are the further ones."""
        return replace(self, cases=self.further, further={})

    def _besides(self, answer: Answer, right: Answer) -> str:
        """See `Exercise`; first, the further cases are tried."""
        beyond = self.beyond() if self.further else self
        for case in self.further:
            wanted, got = beyond._try(right, case), beyond._try(answer, case)
            tensors = [one for one in wanted.results if isinstance(one, torch.Tensor)]
            if wanted.trouble or any(one.isnan().any() for one in tensors):
                continue
            problem = got.trouble or beyond._problem(case, got.results, wanted.results)
            if problem:
                given = beyond._named(beyond._arguments(case)).items()
                numbers = [f"{name} {one}" for name, one in given if type(one) is int]
                where = ", ".join([beyond._place(case), *numbers])
                return f"right in all cases, but wrong for {where}: {problem}"
        return self.then(answer) if self.then is not None else ""

    def _tried(self, answer: Answer) -> dict[str, Outcome]:
        """See `Exercise`; a grader's order of cases is its own, so that a count of calls tells nothing."""
        order = [*self.cases]
        if SEED.get():
            random.Random(SEED.get()).shuffle(order)
        found = {case: self._try(answer, case) for case in order}
        return {case: found[case] for case in self.cases}

    def _call(self, answer: Answer, arguments: Arguments) -> Any:
        """See `Exercise`; what an answer sets for all of torch is set as before, and is its trouble."""
        seed = torch.default_generator.initial_seed()
        before = {name: is_set() for name, is_set in ARE_SET.items()}
        returned = super()._call(answer, arguments)
        changed = [name for name, is_set in ARE_SET.items() if is_set() != before[name]]
        for name in changed:
            if name == "set_printoptions":
                torch.set_printoptions(profile="default")
            else:
                getattr(torch, name)(before[name])
        fault = f"it calls `torch.{changed[0]}`, which {LASTS}" if changed else ""
        if not self.seeds and torch.default_generator.initial_seed() != seed:
            fault = fault or SEEDS
        return Outcome(trouble=fault, hopeless=True) if fault else returned

    def _changed(self, used: Arguments, fresh: Arguments) -> str:
        """See `Exercise`; a dtype and `requires_grad` are compared too."""
        as_before = self._named(fresh)
        for name, one in self._named(used).items():
            after, before = (
                [(x.dtype, x.requires_grad) for _, x in tensors_in(name, argument)]
                for argument in (one, as_before[name])
            )
            if after != before:
                return f"it changes its argument `{name}` in place. {IN_PLACE}"
        return super()._changed(used, fresh)


def rows_sum_to_one(position: int = 0) -> Property:
    """A property for `Exercise`: each row of the result at `position` adds up to 1 or is all zeros.

    Raises:
        TypeError: `position` is not an int.

    Example:
        >>> rows_sum_to_one()((), (torch.tensor([[0.5, 0.25]]),))
        'its rows should add up to 1, and row [0] adds up to 0.75'
    """
    _checks.check_type("position", position, int)
    return partial(sums_to_one, position)


def sums_to_one(position: int, _: object, results: tuple[Any, ...]) -> str:
    """Say which row of a result neither adds up to 1 nor is all zeros, or ""."""
    sums = results[position].double().sum(-1)
    off = ((sums - 1).abs() > 1e-3) & results[position].any(-1)
    if not bool(off.any()):
        return ""
    place = off.nonzero()[0].tolist()
    return f"its rows should add up to 1, and row {place} adds up to {sums[tuple(place)].item():.4g}"
