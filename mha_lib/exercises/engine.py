"""Exercises as data: a reference, cases, and known wrong answers, each with its cause.

An exercise is written in a few lines and is then the function that checks a reader's answer:

    check_pooling = Exercise(
        reference=lambda scores, value: scores.softmax(-1) @ value,
        returns="output (q_len, value_dim)",
        cases={
            "two keys": lambda g: (randn(g, 3, 2), randn(g, 2, 7)),
            "five keys": lambda g: (randn(g, 3, 5), randn(g, 5, 7)),
        },
        wrong=(
            Wrong("the softmax runs over the queries", "Use `dim=-1`, the axis of the keys.",
                  lambda scores, value: scores.softmax(-2) @ value),
            Wrong("the weights do not add up to 1", "Divide by the sum over the keys.",
                  lambda scores, value: scores.exp() @ value),
        ),
    )
    check_pooling(my_pooling)  # shows "Right in both cases: ..." or "Not yet: ..."

How an answer is judged:

1. It is called on every case, and on the last case again. Each call gets new arguments made from the same
   seed, so a check always gives the same verdict. What raises, returns None, changes its arguments or returns
   other numbers in the second call is reported at once.
2. If all results agree with the reference (or with one of `accept`), the answer is right. With `gradients`,
   the gradients of the first result for all floating-point arguments must agree too.
3. Otherwise the results are compared in float64 with those of every known wrong answer. The first one in the
   list that agrees in *all* cases is named; list the special one before the general one. A wrong answer that
   raises in a case agrees with an answer that raises there too.
4. If none agrees, `properties` are tried in order on the first case that fails, then general questions: is it
   the expected result times a number, in another order, flipped, right for some samples only?

Give cases labels that read well after "for" ("one head", "three heads", "no mask"): an unknown fault is
reported as "Right for one head, wrong for three heads". Put the simplest case first, make the size of every
axis a different prime, and let a case leave out one difficulty at a time. `exercise.audit()` returns what is
wrong with the exercise itself; the tests call it for every exercise.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mha_lib import _checks

Answer: TypeAlias = Callable[..., Any]
_OURS = str(Path(__file__).resolve().parents[1])
_INSTALLED = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")}
_NOT_THE_READERS = (_OURS, *_INSTALLED, str(Path(torch.__file__).parent), "<frozen")


@dataclass(frozen=True, repr=False)
class Verdict:
    """The answer of a checker: whether it is right, and a sentence that says why.

    It is true where the answer is right, and a notebook shows its sentence.

    Args:
        right: whether the answer is right.
        message: begins with "Right" or "Not yet".

    Raises:
        TypeError: `right` is not a bool, or `message` not a str.

    Example:
        >>> Verdict(False, "Not yet: the softmax runs over the queries.")
        Not yet: the softmax runs over the queries.
        >>> assert Verdict(True, "Right in all 3 cases.")
    """

    right: bool
    message: str

    def __post_init__(self) -> None:
        _checks.check_type("right", self.right, bool)
        _checks.check_type("message", self.message, str)

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.message

    def _repr_markdown_(self) -> str:
        """The same sentence; outside code, nothing in it is taken for formatting."""
        parts = re.split(r"(`[^`]*`)", self.message)
        plain = (re.sub(r"([\\*_<>$\[\]])", r"\\\1", part) for part in parts[::2])
        return "".join(
            text + code for text, code in zip(plain, [*parts[1::2], ""], strict=True)
        )


@dataclass(frozen=True)
class Wrong:
    """A known wrong answer to an exercise.

    Args:
        name: what is wrong, as a clause: "the softmax runs over the queries".
        cause: one sentence on why, and what to look at.
        answer: a function that makes this mistake.

    Raises:
        TypeError: `name` or `cause` is not a str, or `answer` cannot be called.

    Example:
        >>> Wrong("the mask is inverted", "True means: may attend.", lambda mask: ~mask).name
        'the mask is inverted'
    """

    name: str
    cause: str
    answer: Answer = field(repr=False)

    def __post_init__(self) -> None:
        _checks.check_type("name", self.name, str)
        _checks.check_type("cause", self.cause, str)
        _check_callable("answer", self.answer)


@dataclass(frozen=True)
class _Outcome:
    """What an answer did in one case: its results, or why there are none."""

    results: tuple[Any, ...] = ()
    trouble: str = ""  # a clause: "it raises ValueError: ..."
    error: str = ""  # the name of the exception
    hopeless: bool = False  # no known wrong answer needs to be looked for

    def agrees(self, other: _Outcome, atol: float, rtol: float) -> bool:
        """Whether both raised the same kind of exception, or returned the same numbers."""
        if self.trouble or other.trouble:
            return self.error == other.error != ""
        return len(self.results) == len(other.results) and all(
            _same(mine, theirs, atol, rtol)
            for mine, theirs in zip(self.results, other.results, strict=True)
        )


@dataclass(frozen=True)
class Exercise:
    """An exercise that checks answers; call it with the reader's function. See the top of this module.

    Args:
        reference: the right answer. The names of its parameters are used in messages.
        cases: label -> function of a `torch.Generator` that returns the arguments of a call, a tuple (or the
            only argument). It is called again for every call.
        wrong: known wrong answers, the special before the general.
        accept: other answers that are right too, such as another convention.
        returns: name and axes of the result, such as "weights (q_len, k_len)"; a tuple for several results.
        run: how the answer is used in a case, run(answer, *arguments); by default it is called. It can make
            an object of a class first, or call a method several times.
        properties: functions of (arguments, results) that return a clause on what is wrong, or "".
        gradients: compare the gradients of the first result too, in all cases or in those with these labels.
        arrays: accept what converts to a tensor: NumPy, DLPack, lists of numbers.
        same_dtype: ask for the reference's dtype, not only for its kind (bool, integer, floating-point).
        takes: what the answer is, in words.
        atol: absolute tolerance.
        rtol: relative tolerance.

    Raises:
        TypeError: what should be a function cannot be called, or `wrong` holds something else than `Wrong`.
        ValueError: there is no case.

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
        >>> check_double(lambda x: 3 * x)  # an unknown mistake
        Not yet: wrong for five numbers (x (5,)): the result is 1.5 times what is expected.
        >>> check_double.audit()
        []
    """

    reference: Answer
    cases: Mapping[str, Callable[[torch.Generator], Any]]
    wrong: Sequence[Wrong] = ()
    accept: Sequence[Answer] = ()
    returns: str | tuple[str, ...] = ()
    run: Answer | None = None
    properties: Sequence[Callable[[tuple[Any, ...], tuple[Any, ...]], str]] = ()
    gradients: bool | Collection[str] = False
    arrays: bool = True
    same_dtype: bool = False
    takes: str = "function"
    atol: float = 1e-5
    rtol: float = 1e-4

    def __post_init__(self) -> None:
        _check_callable("reference", self.reference)
        if not self.cases:
            raise ValueError(f"cases must hold at least one case, got {self.cases!r}")
        optional = () if self.run is None else (self.run,)
        several: dict[str, Iterable[object]] = {
            "cases": self.cases.values(),
            "accept": self.accept,
            "properties": self.properties,
            "run": optional,
        }
        for name, functions in several.items():
            for function in functions:
                _check_callable(name, function)
        for one in self.wrong:
            _checks.check_type("wrong", one, Wrong)

    def __call__(self, answer: Any) -> Verdict:
        """Judge `answer`; whatever it does, the result is a verdict."""
        if not callable(answer):
            return _not_yet(
                f"this checker takes a {self.takes}, and was given {_a(answer)}. Pass the {self.takes} "
                "itself, without calling it"
            )
        with torch.random.fork_rng(devices=[]):
            outcomes = [self._try(answer, number) for number in range(len(self.cases))]
            blunder = self._blunder(answer, outcomes)
            if blunder:
                return _not_yet(blunder)
            problems = self._problems(outcomes, self.reference)
            for right in (self.reference, *self.accept):
                if not any(self._problems(outcomes, right)):
                    return self._judge_gradients(answer, right)
            known = self._recognise(outcomes, problems)
            return _not_yet(known or self._unknown(problems))

    def audit(self) -> list[str]:
        """Return what is wrong with the exercise itself: an empty list, or sentences for its author."""
        found = [
            f"a right answer is refused: {verdict}"
            for verdict in map(self, (self.reference, *self.accept))
            if not verdict
        ]
        for wrong in self.wrong:
            message = self(wrong.answer).message
            if not message.startswith(f"Not yet: {wrong.name}. "):
                found.append(f"{wrong.name!r} gets the verdict {message!r}")
        return found

    # ------------------------------------------------------------------ running an answer

    def _arguments(self, number: int) -> tuple[Any, ...]:
        """New arguments of a case, the same each time."""
        _seed(number)
        made = list(self.cases.values())[number](torch.Generator().manual_seed(number))
        return made if isinstance(made, tuple) else (made,)

    def _call(self, answer: Answer, arguments: tuple[Any, ...]) -> Any:
        return answer(*arguments) if self.run is None else self.run(answer, *arguments)

    def _try(self, answer: Answer, number: int, *, seed: int = 0) -> _Outcome:
        """Use an answer in one case; `seed` is that of what it draws itself."""
        arguments = self._arguments(number)
        _seed(seed)
        try:
            returned = self._call(answer, arguments)
        except NotImplementedError as error:
            unfinished = f"the {self.takes} is not finished: {_raised(error)}"
            return _Outcome(trouble=unfinished, hopeless=True)
        # A KeyboardInterrupt is not caught, so that a reader may stop an endless loop.
        except Exception as error:
            return _Outcome(trouble=_raised(error), error=type(error).__name__)
        changed = self._changed(arguments, self._arguments(number))
        if changed:
            return _Outcome(trouble=changed, hopeless=True)
        return self._read(returned)

    def _read(self, returned: Any) -> _Outcome:
        """The results as detached tensors (or strings), or what they are instead."""
        if returned is None:
            trouble = f"the {self.takes} returns None. Write the missing lines, and return the result"
            return _Outcome(trouble=trouble, hopeless=True)
        several = isinstance(returned, (tuple, list)) and self._several(returned)
        results = []
        for position, one in enumerate(returned if several else (returned,)):
            name = self._name(position)
            if one is None:
                return _Outcome(trouble=f"{name} is None", hopeless=True)
            if not self.arrays and not isinstance(one, Tensor):
                trouble = f"{name} is {_a(one)}, where a torch.Tensor is expected"
                return _Outcome(trouble=trouble, hopeless=True)
            try:
                results.append(_as_tensor(one))
            except (TypeError, ValueError, RuntimeError, BufferError):
                trouble = f"{name} is {_a(one)}, where a torch.Tensor is expected"
                return _Outcome(trouble=trouble, hopeless=True)
        return _Outcome(tuple(results))

    def _several(self, returned: Sequence[Any]) -> bool:
        """Whether a tuple or list is several results, rather than a row of numbers for one."""
        if isinstance(self.returns, tuple) and self.returns:
            return True
        return isinstance(returned, tuple) or any(
            isinstance(one, Tensor) for one in returned
        )

    def _changed(self, used: tuple[Any, ...], fresh: tuple[Any, ...]) -> str:
        for name, one, other in zip(
            self._parameters(len(used)), used, fresh, strict=True
        ):
            before = [t.detach() for _, t in _named(name, other)]
            after = [t.detach() for _, t in _named(name, one)]
            if len(before) != len(after) or not all(
                _same(mine, theirs, 0.0, 0.0)
                for mine, theirs in zip(after, before, strict=True)
            ):
                return (
                    f"it changes its argument `{name}` in place. Work on a copy, or use operations that "
                    "return a new tensor (no `x[...] = ...`, `x += ...`, or names that end with `_`)"
                )
        return ""

    def _blunder(self, answer: Answer, outcomes: list[_Outcome]) -> str:
        """What makes a closer look useless, as a sentence."""
        for number, outcome in enumerate(outcomes):
            if outcome.hopeless:
                everywhere = all(one.trouble == outcome.trouble for one in outcomes)
                where = "" if everywhere else f"for {self._label(number)}, "
                return where + outcome.trouble
        fine = [
            number for number, outcome in enumerate(outcomes) if not outcome.trouble
        ]
        if not fine:
            return ""
        # The last case: it is seldom the simplest one, and a state that was kept has grown by then.
        again = self._try(answer, fine[-1], seed=1)
        if outcomes[fine[-1]].agrees(again, self.atol, self.rtol):
            return ""
        return (
            "called again with the same arguments, it returns other numbers. Does it draw random numbers "
            "(dropout that is always on?), or keep something from the call before?"
        )

    # ------------------------------------------------------------------ judging the results

    def _problems(self, outcomes: list[_Outcome], right: Answer) -> list[str]:
        """A clause for each case, "" where the outcome is right."""
        expected = [self._try(right, number) for number in range(len(outcomes))]
        return [
            self._problem(number, got, wanted)
            for number, (got, wanted) in enumerate(zip(outcomes, expected, strict=True))
        ]

    def _problem(self, number: int, got: _Outcome, wanted: _Outcome) -> str:
        if got.trouble:
            return got.trouble
        if len(got.results) != len(wanted.results):
            names = ", ".join(self._name(i) for i in range(len(wanted.results)))
            return (
                f"it returns {_count(len(got.results), 'result')}, where "
                f"{_count(len(wanted.results), 'result')} ({names}) {_is(len(wanted.results))} expected"
            )
        for position, (mine, right) in enumerate(
            zip(got.results, wanted.results, strict=True)
        ):
            problem = self._difference(number, position, mine, right, got.results)
            if problem:
                return problem
        return ""

    def _difference(
        self,
        number: int,
        position: int,
        mine: Any,
        right: Any,
        results: tuple[Any, ...],
    ) -> str:
        """What is wrong with one result, "" if nothing is."""
        name = self._name(position)
        if isinstance(mine, str) or isinstance(right, str):
            return "" if mine == right else f"{name} is {mine!r}"
        if mine.shape != right.shape:
            axes = self._axes(position)
            said = (
                f", that is ({', '.join(axes)})" if len(axes) == right.ndim > 0 else ""
            )
            return f"{name} has shape {tuple(mine.shape)}, expected {tuple(right.shape)}{said}"
        # A count may be 16 or 16.0.
        numbers = mine.ndim == 0 and torch.bool not in (mine.dtype, right.dtype)
        if (_kind(mine) != _kind(right) and not numbers) or (
            self.same_dtype and mine.dtype != right.dtype
        ):
            return f"{name} has dtype {mine.dtype}, expected {right.dtype}"
        if _same(mine, right, self.atol, self.rtol):
            return ""
        if bool((mine.isnan() & ~right.isnan()).any()):
            place = (mine.isnan() & ~right.isnan()).nonzero()[0].tolist()
            return f"{name} holds NaN, first at {place}"
        arguments = self._arguments(number)
        for test in self.properties:
            problem = test(arguments, results)
            if problem:
                return problem
        return _compare(name, self._axes(position), mine, right, self.atol, self.rtol)

    def _recognise(self, outcomes: list[_Outcome], problems: list[str]) -> str:
        """Name and cause of the first known wrong answer that agrees in all cases, or ""."""
        # Most known answers differ in the cases that fail, so these are compared first.
        order = sorted(range(len(outcomes)), key=lambda number: not problems[number])
        if all(outcome.trouble for outcome in outcomes):
            return ""  # without any number, too many would agree
        for wrong in self.wrong:
            if all(
                outcomes[number].agrees(
                    self._try(wrong.answer, number), self.atol, self.rtol
                )
                for number in order
            ):
                raised = [outcome.trouble for outcome in outcomes if outcome.error]
                note = f" ({raised[0][0].upper()}{raised[0][1:]}.)" if raised else ""
                return f"{wrong.name}. {wrong.cause}{note}"
        return ""

    def _unknown(self, problems: list[str]) -> str:
        """The first case that fails, and those that do not."""
        fails = next(number for number, problem in enumerate(problems) if problem)
        passed = [self._label(n) for n, problem in enumerate(problems) if not problem]
        sizes = self._sizes(fails)
        start = f"right for {_list(passed[:3])}, wrong" if passed else "wrong"
        return f"{start} for {self._label(fails)}{sizes}: {problems[fails]}"

    # ------------------------------------------------------------------ gradients

    def _judge_gradients(self, answer: Answer, reference: Answer) -> Verdict:
        """The verdict on an answer whose numbers agree with those of a reference."""
        if not self.gradients:
            return Verdict(True, self._praise())
        labels = self.cases if self.gradients is True else self.gradients
        tried = [n for n in range(len(self.cases)) if self._label(n) in labels]
        mine = [self._gradients(answer, number) for number in tried]
        right = [self._gradients(reference, number) for number in tried]
        problems = [
            self._gradient_problem(number, got, wanted)
            for number, got, wanted in zip(tried, mine, right, strict=True)
        ]
        if not any(problems):
            return Verdict(True, self._praise())
        order = sorted(range(len(tried)), key=lambda i: not problems[i])
        for wrong in self.wrong:
            if all(
                mine[i].agrees(
                    self._gradients(wrong.answer, tried[i]), self.atol, self.rtol
                )
                for i in order
            ) and self._right_numbers(wrong.answer, reference):
                return _not_yet(f"{wrong.name}. {wrong.cause}")
        first = next(i for i, problem in enumerate(problems) if problem)
        fails = tried[first]
        where = f", for {self._label(fails)}{self._sizes(fails)}"
        return _not_yet(
            f"the numbers are right, but not the gradients{where}: {problems[first]}"
        )

    def _right_numbers(self, answer: Answer, reference: Answer) -> bool:
        outcomes = [self._try(answer, number) for number in range(len(self.cases))]
        return not any(self._problems(outcomes, reference))

    def _gradients(self, answer: Answer, number: int) -> _Outcome:
        """Results and gradients of all floating-point arguments; a result without a gradient gives None."""
        arguments = self._arguments(number)
        leaves = [leaf for _, leaf in self._leaves(arguments)]
        for leaf in leaves:
            leaf.requires_grad_()
        try:
            returned = self._call(answer, arguments)
        except Exception as error:
            return _Outcome(trouble=_raised(error), error=type(error).__name__)
        first = returned[0] if isinstance(returned, (tuple, list)) else returned
        total = None
        if isinstance(first, Tensor) and first.requires_grad:
            total = (first * _ramp(first)).sum()
        if total is None:
            causes = "`.detach()`, `.data`, `.item()`, NumPy, `no_grad`"
            trouble = f"no result carries a gradient: was it detached ({causes})?"
            return _Outcome(trouble=trouble, error="detached")
        try:
            found = torch.autograd.grad(total, leaves, allow_unused=True)
        except RuntimeError as error:
            return _Outcome(trouble=_no_way_back(error), error="no way back")
        zeros = (torch.zeros_like(leaf) for leaf in leaves)
        return _Outcome(
            tuple(z if g is None else g for g, z in zip(found, zeros, strict=True))
        )

    def _leaves(self, arguments: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
        """What gradients are taken of: the floating-point tensors in the arguments, with their names."""
        names = self._parameters(len(arguments))
        return [
            (name, tensor)
            for argument, one in zip(names, arguments, strict=True)
            for name, tensor in _named(argument, one)
            if tensor.is_floating_point()
        ]

    def _gradient_problem(self, number: int, got: _Outcome, wanted: _Outcome) -> str:
        if got.trouble:
            return got.trouble
        names = [name for name, _ in self._leaves(self._arguments(number))]
        for name, mine, right in zip(names, got.results, wanted.results, strict=True):
            if _same(mine, right, self.atol, self.rtol):
                continue
            if bool(mine.isnan().any()):
                return f"the gradient with respect to `{name}` holds NaN"
            if not bool(mine.any()):
                return (
                    f"no gradient reaches `{name}`: is something detached on the way?"
                )
            title = f"the gradient with respect to `{name}`"
            return _compare(title, (), mine, right, self.atol, self.rtol)
        return ""

    # ------------------------------------------------------------------ words

    def _label(self, number: int) -> str:
        return list(self.cases)[number]

    def _parameters(self, count: int) -> list[str]:
        if self.run is not None:
            names = list(inspect.signature(self.run).parameters)[1:]
        else:
            names = list(inspect.signature(self.reference).parameters)
        return [*names[:count], *(f"number {i}" for i in range(len(names), count))]

    def _sizes(self, number: int) -> str:
        arguments = self._arguments(number)
        shapes = [
            f"{name} {tuple(one.shape)}"
            for name, one in zip(
                self._parameters(len(arguments)), arguments, strict=True
            )
            if isinstance(one, Tensor)
        ]
        return f" ({', '.join(shapes)})" if shapes else ""

    def _titles(self) -> tuple[str, ...]:
        return (self.returns,) if isinstance(self.returns, str) else self.returns

    def _name(self, position: int) -> str:
        titles = self._titles()
        name = titles[position].split("(")[0].strip() if position < len(titles) else ""
        only = (
            "the result" if len(titles) <= 1 and position == 0 else f"result {position}"
        )
        return f"`{name}`" if name else only

    def _axes(self, position: int) -> tuple[str, ...]:
        titles = self._titles()
        if position >= len(titles) or "(" not in titles[position]:
            return ()
        inside = titles[position].partition("(")[2].rstrip(") ")
        return tuple(axis.strip() for axis in inside.split(",") if axis.strip())

    def _praise(self) -> str:
        labels = list(self.cases)
        if len(labels) == 1:
            return f"Right in the case that was tried: {labels[0]}."
        count = "both" if len(labels) == 2 else f"all {len(labels)}"
        gradients = ", with the right gradients" if self.gradients else ""
        return f"Right in {count} cases{gradients}: {_list(labels)}."


def randn(generator: torch.Generator, *sizes: int) -> Float[Tensor, "..."]:
    """Standard normal numbers from a generator; short, because every case needs it.

    Args:
        generator: where the numbers come from.
        sizes: of the axes.

    Returns:
        A float32 tensor of these sizes.

    Raises:
        TypeError: a size is not an int.
        ValueError: a size is not positive.

    Example:
        >>> randn(torch.Generator().manual_seed(0), 2, 3).shape
        torch.Size([2, 3])
    """
    for size in sizes:
        _checks.check_positive_int("sizes", size)
    return torch.randn(sizes, generator=generator)


def rows_sum_to_one(
    position: int = 0,
) -> Callable[[tuple[Any, ...], tuple[Any, ...]], str]:
    """A property for `Exercise`: the rows of a result add up to 1, unless they are all zeros.

    Args:
        position: of the result.

    Returns:
        A function of (arguments, results) that returns what is wrong, or "".

    Raises:
        TypeError: `position` is not an int.

    Example:
        >>> rows_sum_to_one()((), (torch.tensor([[0.5, 0.25]]),))
        'its rows should add up to 1, and row [0] adds up to 0.75'
    """
    _checks.check_int("position", position)

    def test(_: tuple[Any, ...], results: tuple[Any, ...]) -> str:
        sums = results[position].double().sum(-1)
        off = ((sums - 1).abs() > 1e-3) & results[position].any(-1)
        if not bool(off.any()):
            return ""
        place = off.nonzero()[0].tolist()
        return f"its rows should add up to 1, and row {place} adds up to {float(sums[tuple(place)]):.4g}"

    return test


# ------------------------------------------------------------------ small parts


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(
            f"{name} must be callable, got {type(value).__name__}: {value!r}"
        )


def _seed(number: int) -> None:
    """Seed what an answer draws on a CPU; `torch.manual_seed` would look for every kind of device, slowly."""
    torch.default_generator.manual_seed(number)


def _not_yet(sentence: str) -> Verdict:
    end = "" if sentence.endswith((".", "?", "!", ".)")) else "."
    return Verdict(False, f"Not yet: {sentence}{end}")


def _a(value: object) -> str:
    """The type of a value with its article: a numpy.ndarray, an int."""
    kind = type(value)
    built_in = kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if built_in else f"{kind.__module__}.{kind.__name__}"
    name = "torch.Tensor" if kind is Tensor else name
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _list(labels: Sequence[str]) -> str:
    """Labels as in "a, b and c"; where one holds a comma, semicolons separate them."""
    if len(labels) < 2:
        return "".join(labels)
    if any("," in label for label in labels):
        return "; ".join(labels)
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors in an argument with their names: itself, those in a list, the parameters of a module."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield name, torch.from_numpy(value)
    elif callable(getattr(value, "named_parameters", None)):
        yield from value.named_parameters()
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _named(name, one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _named(name, one)
    elif isinstance(value, (int, float)):
        yield name, torch.tensor(value)


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (Tensor, str)):
        return value.detach().clone() if isinstance(value, Tensor) else value
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        return torch.utils.dlpack.from_dlpack(value).detach().clone()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"no numbers: {array.dtype}")
    return torch.tensor(array)


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "integer"


def _same(mine: Any, other: Any, atol: float, rtol: float) -> bool:
    """Equal within the tolerance, in float64; NaN equals NaN."""
    if isinstance(mine, str) or isinstance(other, str):
        return bool(isinstance(mine, str) and isinstance(other, str) and mine == other)
    if mine.shape != other.shape:
        return False
    if torch.float16 in (mine.dtype, other.dtype) or torch.bfloat16 in (
        mine.dtype,
        other.dtype,
    ):
        atol, rtol = max(atol, 2e-3), max(rtol, 1e-2)
    near = torch.isclose(
        mine.cpu().double(), other.cpu().double(), atol=atol, rtol=rtol, equal_nan=True
    )
    return bool(near.all())


def _ramp(tensor: Tensor) -> Tensor:
    """Fixed numbers of the shape of a result, all different, whose dot product with it has a gradient."""
    return (
        torch.linspace(0.5, 1.5, max(tensor.numel(), 1))
        .to(tensor)[: tensor.numel()]
        .view(tensor.shape)
    )


def _raised(error: Exception) -> str:
    kind = type(error).__name__
    number, text = _line_of(error)
    where = f" in line {number}" if number else ""
    where += f", `{text}`" if text else ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    first = re.sub(r"\b0x[0-9a-fA-F]+\b", "0x…", first)[:200].rstrip(".")
    return f"it raises {kind}{where}{': ' + first if first else ''}"


def _no_way_back(error: RuntimeError) -> str:
    """Why autograd could not compute gradients, as a clause."""
    if "inplace" in str(error):
        return (
            "the backward pass needs a tensor as it was, and it was changed in place later (`x[t] = ...`, "
            "`x += ...`). Use a copy, `x.clone()`, or join the parts with `torch.cat` or `torch.stack`"
        )
    return f"the backward pass fails: {str(error).strip().splitlines()[0][:200].rstrip('.')}"


def _line_of(error: Exception) -> tuple[int, str]:
    """Number and text of the last line of the reader's own code; (0, "") if there is none."""
    number, text, trace = 0, "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THE_READERS):
            number = trace.tb_lineno
            linecache.checkcache(file)  # the file may have been edited
            text = linecache.getline(file, number).strip().replace("`", "'")[:80]
        trace = trace.tb_next
    return number, text


def _compare(
    name: str,
    axes: tuple[str, ...],
    mine: Tensor,
    right: Tensor,
    atol: float,
    rtol: float,
) -> str:
    """How two tensors of the same shape differ, as a clause."""
    if right.dtype == torch.bool:
        if torch.equal(mine, ~right):
            return f"{name} is inverted: False where True is expected, and the reverse"
        place = (mine != right).nonzero()[0].tolist()
        there = bool(mine[tuple(place)])
        return f"{name} is {there} at {place}, where {not there} is expected"

    def same(other: Tensor) -> bool:
        return _same(other, right, atol, rtol)

    mine, right = mine.cpu().double(), right.cpu().double()
    if not bool(mine.any()):
        return f"{name} is zero everywhere"
    scale = float((mine * right).sum() / right.square().sum().clamp(min=1e-30))
    if scale and same(mine / scale):
        return f"{name} is {scale:.3g} times what is expected"
    if mine.numel() > 1 and same(mine - (mine - right).mean()):
        return f"{name} is what is expected plus {float((mine - right).mean()):.3g}"
    for order in list(permutations(range(mine.ndim)))[1:]:
        if same(mine.permute(order)):
            return f"{name} holds the right numbers with its axes exchanged"
    for axis in range(mine.ndim):
        if mine.shape[axis] > 1 and same(mine.flip(axis)):
            return f"{name} holds the right numbers in reverse order along {_axis(axes, axis, mine.ndim)}"
    if mine.numel() > 1 and _same(
        mine.flatten().sort()[0], right.flatten().sort()[0], atol, rtol
    ):
        return f"{name} holds the right numbers in another order: look at transpose, reshape and view"
    near = torch.isclose(mine, right, atol=atol, rtol=rtol, equal_nan=True)
    for axis in range(mine.ndim):
        good = near.transpose(0, axis).flatten(1).all(1) if mine.ndim > 1 else near
        if bool(good.any()):
            title = _axis(axes, axis, mine.ndim)
            return f"{name} is right at {_places(good)} of {title}, wrong at {_places(~good)}"
    distance = (mine - right).abs().nan_to_num(torch.inf)
    place = [int(i) for i in np.unravel_index(int(distance.argmax()), mine.shape)]
    at = f" at {place}" if place else ""
    got, wanted = float(mine[tuple(place)]), float(right[tuple(place)])
    return f"{name} is {got:.2g}{at}, where {wanted:.2g} is expected"


def _axis(axes: tuple[str, ...], axis: int, ndim: int) -> str:
    named = f" ({axes[axis]})" if len(axes) == ndim else ""
    return f"axis {axis}{named}"


def _places(flags: Tensor) -> str:
    places = flags.nonzero().flatten().tolist()
    return ", ".join(map(str, places[:5])) + (", …" if len(places) > 5 else "")
