"""Exercises as data: a reference, cases, and known wrong answers, each with its cause.

An `Exercise` is itself the function that checks an answer; CONTRIBUTING.md says how.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attention_check._results import (
    AGAIN,
    IN_PLACE,
    Answer,
    Outcome,
    Verdict,
    Wrong,
    as_tensor,
    changes,
    compare,
    describe_error,
    kind_of,
    listed,
    nearly_equal,
    no_way_back,
    not_yet,
    number_of_results,
    seed_draws,
    tensors_in,
)

_SEED = 9_973  # added to the seeds of calls; an answer that seeds a generator itself takes others
Arguments: TypeAlias = tuple[Any, ...]
SEED = ContextVar("SEED", default=0)
"""What is added to the seeds of all cases. With another one, random arguments are other numbers."""


@dataclass(frozen=True)
class Exercise:
    """An exercise that checks answers; call it with the reader's function.

    Args:
        reference: the right answer. Messages use its names.
        cases: a dict from labels to functions of a `torch.Generator`, which return the arguments of a call as
            a tuple (or the only argument) and run before every call.
        wrong: known wrong answers, special ones before general ones.
        returns: name and axes of the result, such as "weights (q_len, k_len)"; a tuple for several results.
        run: run(answer, *arguments) uses the answer in a case; by default, it is called. `run` can first
            make an object of a class, or call a method several times.
        gradients: compare the gradients of the first result too, in all cases or in those with these labels.
        arrays: accept results that convert to tensors: NumPy, DLPack, lists of numbers.
        takes: what the answer is, in words.
        atol: absolute tolerance.
        rtol: relative tolerance.
    """

    reference: Answer
    cases: Mapping[str, Callable[[torch.Generator], Any]]
    wrong: Sequence[Wrong] = ()
    returns: str | tuple[str, ...] = ()
    run: Answer | None = None
    gradients: bool | Collection[str] = False
    arrays: bool = True
    takes: str = "function"
    atol: float = 1e-5
    rtol: float = 1e-4

    def __call__(self, answer: Any) -> Verdict:
        """Judge `answer`, whatever it does."""
        with torch.random.fork_rng(devices=[]):
            outcomes = self._tried(answer)
            if blunder := self._blunder(answer, outcomes):
                return not_yet(blunder)
            problems = self._problems(outcomes, self.reference)
            for right in self._rights():
                if not any(self._problems(outcomes, right).values()):
                    tried = partial(self._try, answer)
                    if changes(tried, outcomes, self.atol, self.rtol):
                        return not_yet(AGAIN)
                    if fault := self._besides(answer, right):
                        return not_yet(fault)
                    return self._judge_gradients(answer, right)
            raised = next((one.trouble for one in outcomes.values() if one.error), "")
            note = f" ({raised[0].upper()}{raised[1:]}.)" if raised else ""
            # If no case gives a number, too many wrong answers would agree.
            if not all(outcome.trouble for outcome in outcomes.values()):
                for wrong in self._known(outcomes, problems, self._try):
                    return not_yet(f"{wrong.name}. {wrong.cause}{note}", wrong)
            return not_yet(self._unknown(problems))

    def _rights(self) -> Sequence[Answer]:
        return (self.reference,)

    def _besides(self, answer: Answer, right: Answer) -> str:  # noqa: ARG002
        """A clause on what else is wrong with an answer that is right in all cases."""
        return ""

    def _arguments(self, case: str) -> tuple[Any, ...]:
        """Make the arguments of a case, the same each time."""
        number = list(self.cases).index(case) + SEED.get()
        seed_draws(number)
        made = self.cases[case](torch.Generator().manual_seed(number))
        return made if isinstance(made, tuple) else (made,)

    def _named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Arguments by the names that messages use for them."""
        names = list(inspect.signature(self.run or self.reference).parameters)
        names = names[self.run is not None :]  # the first name in `run` is the answer
        names += [f"number {i}" for i in range(len(names), len(arguments))]
        return dict(zip(names, arguments, strict=False))

    def _call(self, answer: Answer, arguments: tuple[Any, ...]) -> Any:
        """Return the result of an answer, or an outcome that says what it raises."""
        called = answer if self.run is None else partial(self.run, answer)
        try:
            return called(*arguments)
        # A KeyboardInterrupt is not caught, so that a reader can stop an endless loop.
        except (Exception, SystemExit) as error:
            return self._raised(error)

    def _raised(self, error: BaseException) -> Outcome:
        return Outcome(trouble=describe_error(error), error=type(error).__name__)

    def _tried(self, answer: Answer) -> dict[str, Outcome]:
        return {case: self._try(answer, case) for case in self.cases}

    def _try(self, answer: Answer, case: str, *, seed: int = 0) -> Outcome:
        """Use an answer in one case; `seed` is for the random numbers that it draws itself."""
        given = self._arguments(case), self._arguments(case)
        return self._used(answer, *given, seed)

    def _used(
        self, answer: Answer, arguments: Arguments, fresh: Arguments, seed: int
    ) -> Outcome:
        """Call an answer; `fresh` are the same arguments, by which a change of them is noticed."""
        seed_draws(_SEED + seed)
        returned = self._call(answer, arguments)
        if isinstance(returned, Outcome):
            return returned
        trouble = self._changed(arguments, fresh)
        if returned is None and not trouble:
            trouble = f"the {self.takes} returns None. Write the missing lines, and return the result"
        if trouble:
            return Outcome(trouble=trouble, hopeless=True)
        # A list of numbers is one result, unless the exercise asks for several; a tuple, if it asks for one.
        many = isinstance(self.returns, tuple) and len(self.returns) > 0
        one_only = isinstance(self.returns, str)
        if isinstance(returned, (list, tuple) if one_only else list):
            many = many or any(isinstance(one, Tensor) for one in returned)
            returned = tuple(returned) if many else list(returned)
        results: list[Any] = []
        try:
            for one in returned if isinstance(returned, tuple) else (returned,):
                results.append(as_tensor(one, self.arrays))
        except TypeError as error:
            trouble = f"{self._title(len(results))[0]} is {error}"
            return Outcome(trouble=trouble, hopeless=True)
        return Outcome(tuple(results))

    def _changed(self, used: tuple[Any, ...], fresh: tuple[Any, ...]) -> str:
        as_before = self._named(fresh)
        for name, one in self._named(used).items():
            after, before = (
                Outcome(tuple(tensor.detach() for _, tensor in tensors_in(name, x)))
                for x in (one, as_before[name])
            )
            if not after.agrees(before, 0.0, 0.0):
                return f"it changes its argument `{name}` in place. {IN_PLACE}"
        return ""

    def _blunder(self, answer: Answer, outcomes: Mapping[str, Outcome]) -> str:
        """A sentence on a problem that makes a closer look pointless, or ""."""
        troubles = {outcome.trouble for outcome in outcomes.values()}
        for case, outcome in outcomes.items():
            if outcome.hopeless:
                several = len(troubles) > 1
                return f"for {case}, {outcome.trouble}" if several else outcome.trouble
        fine = [case for case, outcome in outcomes.items() if not outcome.trouble]
        # The last case is seldom the simplest, and a state that an answer keeps has grown by then.
        if not fine or outcomes[fine[-1]].agrees(
            self._try(answer, fine[-1], seed=1), self.atol, self.rtol
        ):
            return ""
        return AGAIN

    def _problems(
        self, outcomes: Mapping[str, Outcome], right: Answer
    ) -> dict[str, str]:
        """A clause for each case; "" if the outcome is right."""
        wanted = self._tried(right)
        return {
            case: got.trouble or self._problem(case, got.results, wanted[case].results)
            for case, got in outcomes.items()
        }

    def _problem(self, case: str, got: tuple[Any, ...], wanted: tuple[Any, ...]) -> str:
        if len(got) != len(wanted):
            names = ", ".join(self._title(n)[0] for n in range(len(wanted)))
            found, due = (number_of_results(len(one)) for one in (got, wanted))
            if len(wanted) == 1:
                return f"it returns {found}, where {due} ({names}) is expected"
            return f"it returns {found}, where {due} ({names}) are expected"
        numbered = enumerate(wanted)
        differences = (self._difference(case, n, got, right) for n, right in numbered)
        return next(filter(None, differences), "")

    def _difference(
        self, case: str, position: int, results: tuple[Any, ...], right: Any
    ) -> str:
        """What is wrong with one result; "" if nothing is."""
        (name, axes), mine = self._title(position), results[position]
        if isinstance(mine, str) or isinstance(right, str):
            return "" if mine == right else f"{name} is {mine!r}"
        if mine.shape != right.shape:
            named = len(axes) == right.ndim > 0
            said = f", that is ({', '.join(axes)})" if named else ""
            return f"{name} has shape {tuple(mine.shape)}, expected {tuple(right.shape)}{said}"
        # A count may be 16 or 16.0.
        kinds = {kind_of(mine), kind_of(right)}
        numbers = mine.ndim == 0 and kinds <= {"float", "integer"}
        if len(kinds) > 1 and not numbers:
            return f"{name} has dtype {mine.dtype}, expected {right.dtype}"
        if nearly_equal(mine, right, self.atol, self.rtol):
            return ""
        if stray := (mine.isnan() & ~right.isnan()).nonzero().tolist():
            return f"{name} holds NaN, first at {stray[0]}"
        said = f"{name} {compare(axes, mine, right, self.atol, self.rtol)}"
        return self._unequal(case, results, said)

    def _unequal(self, case: str, results: tuple[Any, ...], said: str) -> str:  # noqa: ARG002
        """A clause on numbers that are wrong."""
        return said

    def _known(
        self, found: Mapping[str, Outcome], problems: Mapping[str, str], probe: Answer
    ) -> Iterator[Wrong]:
        """The known wrong answers with these outcomes."""
        # Most known wrong answers differ in the cases that fail, so these are compared first.
        order = sorted(found, key=lambda case: not problems[case])
        for wrong in self.wrong:
            probed = ((found[case], probe(wrong.answer, case)) for case in order)
            if all(one.agrees(other, self.atol, self.rtol) for one, other in probed):
                yield wrong

    def _unknown(self, problems: Mapping[str, str]) -> str:
        """A message about the first case that fails, and the cases that do not."""
        fails = next(case for case in problems if problems[case])
        passed = [case for case in problems if not problems[case]]
        place, problem = self._place(fails), problems[fails]
        if not passed:
            return f"wrong for {place}: {problem}"
        return f"right for {listed(passed[:3])}, wrong for {place}: {problem}"

    def _judge_gradients(self, answer: Answer, reference: Answer) -> Verdict:
        """The verdict on an answer whose numbers agree with those of a reference."""
        if not self.gradients:
            return Verdict(True, self._praise(""))
        found = {case: self._gradients(answer, case) for case in self._with_gradients()}
        judged = partial(self._gradient_problem, reference=reference)
        problems = {case: judged(case, got) for case, got in found.items()}
        if not any(problems.values()):
            return Verdict(True, self._praise(", with the right gradients"))
        for wrong in self._known(found, problems, self._gradients):
            numbers = self._problems(self._tried(wrong.answer), reference)
            if not any(numbers.values()):
                return not_yet(f"{wrong.name}. {wrong.cause}", wrong)
        case, problem = next(pair for pair in problems.items() if pair[1])
        place = self._place(case)
        return not_yet(
            f"the numbers are right, but not the gradients, for {place}: {problem}"
        )

    def _with_gradients(self) -> list[str]:
        labels = self.gradients or ()
        return [case for case in self.cases if labels is True or case in labels]

    def _gradients(self, answer: Answer, case: str) -> Outcome:
        """The gradients of the first result for all floating-point arguments."""
        return self._gradients_of(answer, self._arguments(case))

    def _gradients_of(self, answer: Answer, arguments: Arguments) -> Outcome:
        leaves = self._leaves(arguments)
        for _, leaf in leaves:
            leaf.requires_grad_()
        returned = self._call(answer, arguments)
        if isinstance(returned, Outcome):
            return returned
        first = returned[0] if isinstance(returned, (tuple, list)) else returned
        if not isinstance(first, Tensor) or not first.requires_grad:
            causes = "`.detach()`, `.data`, `.item()`, NumPy, `no_grad`"
            trouble = f"no result carries a gradient: was it detached ({causes})?"
            return Outcome(trouble=trouble, error="detached")
        # The loss is the dot product with fixed numbers, all different.
        ramp = torch.linspace(0.5, 1.5, first.numel()).to(first).view(first.shape)
        total, inputs = (first * ramp).sum(), [leaf for _, leaf in leaves]
        try:
            found = torch.autograd.grad(total, inputs, materialize_grads=True)
        except RuntimeError as error:
            return Outcome(trouble=no_way_back(error), error="no way back")
        return Outcome(found)

    def _leaves(self, arguments: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
        """The floating-point tensors in the arguments, with their names."""
        return [
            (name, tensor)
            for argument, one in self._named(arguments).items()
            for name, tensor in tensors_in(argument, one)
            if tensor.is_floating_point()
        ]

    def _gradient_problem(self, case: str, got: Outcome, reference: Answer) -> str:
        names = [name for name, _ in self._leaves(self._arguments(case))]
        wanted = self._gradients(reference, case).results
        if got.trouble:  # but a result that depends on nothing may be a new tensor
            constant = got.error == "detached" and not any(map(torch.any, wanted))
            return "" if constant else got.trouble
        for name, mine, right in zip(names, got.results, wanted, strict=True):
            if nearly_equal(mine, right, self.atol, self.rtol):
                continue
            title = f"the gradient with respect to `{name}`"
            if bool(mine.isnan().any()):
                return f"{title} holds NaN"
            if not bool(mine.any()):
                return f"no gradient reaches `{name}`: is it detached on the way?"
            return f"{title} {compare((), mine, right, self.atol, self.rtol)}"
        return ""

    def _place(self, case: str) -> str:
        """A case in words, with the sizes of its arguments."""
        shapes = [
            f"{name} {tuple(one.shape)}"
            for name, one in self._named(self._arguments(case)).items()
            if isinstance(one, Tensor)
        ]
        return f"{case} ({', '.join(shapes)})" if shapes else case

    def _title(self, position: int) -> tuple[str, tuple[str, ...]]:
        titles = (self.returns,) if isinstance(self.returns, str) else self.returns
        title = titles[position] if position < len(titles) else ""
        name, _, inside = title.partition("(")
        axes = tuple(filter(None, map(str.strip, inside.rstrip(") ").split(","))))
        if name.strip():
            return f"`{name.strip()}`", axes
        several = position or len(titles) > 1
        return f"result {position}" if several else "the result", axes

    def _praise(self, gradients: str) -> str:
        """What is said of a right answer."""
        return f"Right{gradients}."


def randn(generator: torch.Generator, *sizes: int) -> Tensor:
    """Standard normal float32 numbers of these sizes from a case's generator."""
    return torch.randn(sizes, generator=generator)
