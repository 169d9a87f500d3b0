"""An exercise of the course: what an answer must not change besides its results, and sizes of its inputs.

The page has this file too, so it uses only what its stand-in for torch has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from attention_check import _judging
from attention_check._judging import SEED, Arguments
from attention_check._results import (
    IN_PLACE,
    Answer,
    Outcome,
    Verdict,
    Wrong,
    a_kind_of,
    at_place,
    check_callable,
    describe_error,
    listed,
    not_yet,
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


CLUES: list[Callable[[BaseException], str]] = []
"""Functions of an error that tell a newcomer what to write instead, or ""."""
Property: TypeAlias = Callable[[tuple[Any, ...], tuple[Any, ...]], str]


class UnfinishedError(NotImplementedError):
    """Raised by the `run` of an exercise; its message says what the answer lacks."""


class FaultError(UnfinishedError):
    """Raised by the `run` of an exercise; its message says what is wrong with an answer that is complete."""


@dataclass(frozen=True)
class Exercise(_judging.Exercise):
    """An exercise that also watches torch's settings, and tries further cases last.

    Args:
        accept: other right answers, such as those of another convention.
        properties: functions of (arguments, results) that return a clause on what is wrong, or "".
        detached: accept an answer whose results carry no gradient, as under `torch.no_grad()`.
        same_dtype: require the reference's dtype, not only its kind (bool, integer, floating-point).
        then: a function of a right answer, which returns a clause on what else is wrong, or "".
        seeds: accept an answer that seeds torch's own generator.
        further: cases that no sentence lists; those in which the reference fails do not count.

    Raises:
        TypeError: a function is not callable, or `wrong` contains anything other than `Wrong`.
        ValueError: there are no cases.

    Example:
        >>> check_double = Exercise(
        ...     reference=lambda x: 2 * x,
        ...     cases={"five numbers": lambda g: randn(g, 5)},
        ...     wrong=[Wrong("x is squared", "Twice x is `2 * x`.", lambda x: x**2)],
        ... )
        >>> check_double(lambda x: x + x)
        Right in the case that was tried: five numbers.
        >>> check_double(lambda x: x * x)
        Not yet: x is squared. Twice x is `2 * x`.
        >>> check_double(lambda x: 3 * x)
        Not yet: wrong for five numbers (x (5,)): the result is 1.5 times what is expected.
    """

    accept: Sequence[Answer] = ()
    properties: Sequence[Property] = ()
    detached: bool = False
    same_dtype: bool = False
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

    def __call__(self, answer: Any) -> Verdict:
        """Judge `answer`, whatever it is."""
        if callable(answer):
            return super().__call__(answer)
        kind = a_kind_of(answer)
        given = f"this checker takes a {self.takes}, and was given {kind}"
        return not_yet(f"{given}. Pass the {self.takes} itself, without calling it")

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

    def _rights(self) -> Sequence[Answer]:
        """See `Exercise`; some are right in another convention."""
        return (self.reference, *self.accept)

    def _raised(self, error: BaseException) -> Outcome:
        """See `Exercise`; a `run` says so what is wrong or missing; the answer raises all others."""
        if not isinstance(error, NotImplementedError):
            return Outcome(trouble=described(error), error=type(error).__name__)
        why = error if isinstance(error, UnfinishedError) else described(error)
        said = f"the {self.takes} is not finished: {why}"
        said = str(error) if isinstance(error, FaultError) else said
        return Outcome(trouble=said, hopeless=True)

    def _used(
        self, answer: Answer, arguments: Arguments, fresh: Arguments, seed: int
    ) -> Outcome:
        """See `Exercise`."""
        given = arguments, fresh, seed
        return self._where_it_is(answer, _judging.Exercise._used, *given)

    def _gradients_of(self, answer: Answer, arguments: Arguments) -> Outcome:
        """See `Exercise`."""
        return self._where_it_is(answer, _judging.Exercise._gradients_of, arguments)

    def _where_it_is(self, answer: Answer, how: Any, *given: Any) -> Outcome:
        """Use an answer in this process or, without any of what judges it, in its own."""
        own = getattr(type(answer), "use_where_it_is", None)
        found: Outcome = (
            own(answer, how, self, *given) if own else how(self, answer, *given)
        )
        return found

    def _difference(
        self, case: str, position: int, results: tuple[Any, ...], right: Any
    ) -> str:
        """See `Exercise`; dtypes can be compared, and results that are only true or false."""
        mine, name = results[position], self._title(position)[0]
        if isinstance(mine, str) or isinstance(right, str) or mine.shape != right.shape:
            return super()._difference(case, position, results, right)
        if self.same_dtype and mine.dtype != right.dtype:
            return f"{name} has dtype {mine.dtype}, expected {right.dtype}"
        if mine.dtype == right.dtype == torch.bool and not torch.equal(mine, right):
            said = f"{name} {differently_true(mine, right)}"
            return self._unequal(case, results, said)
        return super()._difference(case, position, results, right)

    def _unequal(self, case: str, results: tuple[Any, ...], said: str) -> str:
        """See `Exercise`; a property that is violated says more."""
        arguments = self._arguments(case)
        problems = (test(arguments, results) for test in self.properties)
        return next(filter(None, problems), said)

    def _praise(self, gradients: str) -> str:
        """See `Exercise`; the cases are listed."""
        labels = list(self.cases)
        if len(labels) == 1:
            return f"Right in the case that was tried: {labels[0]}."
        if len(labels) == 2:
            return f"Right in both cases{gradients}: {listed(labels)}."
        return f"Right in all {len(labels)} cases{gradients}: {listed(labels)}."

    def _judge_gradients(self, answer: Answer, reference: Answer) -> Verdict:
        """See `Exercise`; a result that carries no gradient can be accepted."""
        if self.gradients and self.detached:
            cases = self._with_gradients()
            found = [self._gradients(answer, case) for case in cases]
            if all(one.error == "detached" for one in found):
                return Verdict(True, self._praise(", without gradients"))
        return super()._judge_gradients(answer, reference)

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


def randn(generator: torch.Generator, *sizes: int) -> torch.Tensor:
    """Standard normal float32 numbers of these sizes from a case's generator.

    Raises:
        TypeError, ValueError: a size is not an int, or not positive.

    Example:
        >>> randn(torch.Generator().manual_seed(0), 2, 3).shape
        torch.Size([2, 3])
    """
    for size in sizes:
        _checks.check_positive_int("sizes", size)
    return _judging.randn(generator, *sizes)


def described(error: BaseException) -> str:
    """An error in words, with what to write instead."""
    clues = (f". {clue}" for one in CLUES if (clue := one(error)))
    return "".join((describe_error(error), *clues))


def differently_true(mine: torch.Tensor, right: torch.Tensor) -> str:
    """How two tensors of bool differ, as the end of a clause."""
    # A single False is not an inversion.
    if mine.numel() > 1 and torch.equal(mine, ~right):
        return "is inverted: False where True is expected, and vice versa"
    place = (mine != right).nonzero()[0].tolist()
    there = bool(mine[tuple(place)])
    return f"is {there}{at_place(place)}, where {not there} is expected"


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
