"""Exercises as data: a reference, cases, and known wrong answers, each with its cause.

An `Exercise` takes a few lines, as its example shows, and is itself the function that checks a reader's
answer. Cases and mistakes may be in a Markdown file (see `_texts`). An answer is judged in four steps:

1. It is called on every case, and on the last case a second time. Each call gets new arguments made from the
   same seed, so a check always gives the same verdict. An answer that raises, returns None, changes its
   arguments, or returns different numbers in the second call is reported at once.
2. If all results agree with the reference (or with one of `accept`), the answer is right. With `gradients`,
   the gradients of the first result for all floating-point arguments must agree too.
3. Otherwise, the results are compared in float64 with those of every known wrong answer. The message names
   the first one in the list that agrees in *all* cases, so list special ones before general ones. If both
   the answer and a wrong answer raise in a case, they agree there.
4. If none agrees, `properties` are tried in order on the first case that fails, then general questions: is it
   the expected result times a number, in a different order, flipped, or right for some samples only?

Give cases labels that read well in "Right for one head, wrong for three heads". Put the simplest case first,
make the size of every axis a different prime, and leave out one difficulty at a time. `exercise.audit()`
returns what is wrong with the exercise itself; the tests call it for every exercise.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from mha_lib import _checks

Answer: TypeAlias = Callable[..., Any]
Property: TypeAlias = Callable[[tuple[Any, ...], tuple[Any, ...]], str]
_OURS = ("mha_lib", "mha_course")
COURSES = "_is_the_courses"  # an attribute of what the course has defined in place of a reader's piece
_INSTALLED = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")}
_NOT_THE_READERS = (*_INSTALLED, str(Path(torch.__file__).parent), "<frozen")


class UnfinishedError(NotImplementedError):
    """Raised by the `run` of an exercise; its message says what the answer lacks."""


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

    Raises:
        TypeError: `name` or `cause` is not a str, or `answer` is not callable.

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
    """The outcome of an answer in one case: its results, or why there are none."""

    results: tuple[Any, ...] = ()
    trouble: str = ""  # a clause: "it raises ValueError: ..."
    error: str = ""  # the name of the exception
    hopeless: bool = False  # comparing with known wrong answers is pointless

    def agrees(self, other: _Outcome, atol: float, rtol: float) -> bool:
        """Whether both raised the same kind of exception or returned the same numbers."""
        if self.trouble or other.trouble:
            return self.error == other.error != ""
        pairs = zip(self.results, other.results, strict=False)
        same = (_same(mine, theirs, atol, rtol) for mine, theirs in pairs)
        return len(self.results) == len(other.results) and all(same)


@dataclass(frozen=True)
class Exercise:
    """An exercise that checks answers; call it with the reader's function. See the top of this module.

    Args:
        reference: the right answer. The names of its parameters are used in messages.
        cases: a dict from labels to functions of a `torch.Generator`, which return the arguments of a call as
            a tuple (or the only argument) and run before every call.
        wrong: known wrong answers, special ones before general ones.
        accept: other answers that are also right, such as those of a different convention.
        returns: name and axes of the result, such as "weights (q_len, k_len)"; a tuple for several results.
        run: run(answer, *arguments) uses the answer in a case; by default, it is called. `run` can first
            make an object of a class, or call a method several times.
        properties: functions of (arguments, results) that return a clause on what is wrong, or "".
        gradients: compare the gradients of the first result too, in all cases or in those with these labels.
        detached: accept an answer whose results carry no gradient, as under `torch.no_grad()`.
        arrays: accept results that convert to tensors: NumPy, DLPack, lists of numbers.
        same_dtype: require the reference's dtype, not only its kind (bool, integer, floating-point).
        takes: what kind of object the answer is, in words.
        atol: absolute tolerance.
        rtol: relative tolerance.

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
    properties: Sequence[Property] = ()
    gradients: bool | Collection[str] = False
    detached: bool = False
    arrays: bool = True
    same_dtype: bool = False
    takes: str = "function"
    atol: float = 1e-5
    rtol: float = 1e-4

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(f"cases must hold at least one case, got {self.cases!r}")
        _check_callable("reference", self.reference)
        _check_callable("run", self.run or self.reference)
        for name in ("accept", "properties", "cases"):
            functions = getattr(self, name)
            for function in functions.values() if name == "cases" else functions:
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
            outcomes = self._tried(answer)
            if blunder := self._blunder(answer, outcomes):
                return _not_yet(blunder)
            problems = self._problems(outcomes, self.reference)
            for right in (self.reference, *self.accept):
                if not any(self._problems(outcomes, right).values()):
                    return self._judge_gradients(answer, right)
            raised = next((one.trouble for one in outcomes.values() if one.error), "")
            note = f" ({raised[0].upper()}{raised[1:]}.)" if raised else ""
            # If no case gives a number, too many wrong answers would agree.
            if not all(outcome.trouble for outcome in outcomes.values()):
                for wrong in self._known(outcomes, problems, self._try):
                    return _not_yet(f"{wrong.name}. {wrong.cause}{note}")
            return _not_yet(self._unknown(problems))

    def audit(self) -> list[str]:
        """Tell the author what is wrong with the exercise itself: a list of sentences, which may be empty."""
        rights = map(self, (self.reference, *self.accept))
        found = [f"a right answer is rejected: {one}" for one in rights if not one]
        for wrong in self.wrong:
            message = self(wrong.answer).message
            if not message.startswith(f"Not yet: {wrong.name}. "):
                found.append(f"{wrong.name!r} gets the verdict {message!r}")
        return found

    # ------------------------------------------------------------------ running an answer
    def _arguments(self, case: str) -> tuple[Any, ...]:
        """Make the arguments of a case, the same each time."""
        number = list(self.cases).index(case)
        _seed(number)
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
        except NotImplementedError as error:
            # `run` raises this error to say what to write first; the answer raises all others.
            why = error if isinstance(error, UnfinishedError) else _raised(error)
            unfinished = f"the {self.takes} is not finished: {why}"
            return _Outcome(trouble=unfinished, hopeless=True)
        # A KeyboardInterrupt is not caught, so that a reader can stop an endless loop.
        except (Exception, SystemExit) as error:
            return _Outcome(trouble=_raised(error), error=type(error).__name__)

    def _tried(self, answer: Answer) -> dict[str, _Outcome]:
        return {case: self._try(answer, case) for case in self.cases}

    def _try(self, answer: Answer, case: str, *, seed: int = 0) -> _Outcome:
        """Use an answer in one case; `seed` is for the random numbers that it draws itself."""
        arguments = self._arguments(case)
        _seed(seed)
        returned = self._call(answer, arguments)
        if isinstance(returned, _Outcome):
            return returned
        trouble = self._changed(arguments, self._arguments(case))
        if returned is None and not trouble:
            trouble = f"the {self.takes} returns None. Write the missing lines, and return the result"
        if trouble:
            return _Outcome(trouble=trouble, hopeless=True)
        # A list of numbers is one result, unless the exercise asks for several.
        many = isinstance(self.returns, tuple) and len(self.returns) > 0
        if isinstance(returned, list):
            many = many or any(isinstance(one, Tensor) for one in returned)
            returned = tuple(returned) if many else returned
        results: list[Any] = []
        try:
            for one in returned if isinstance(returned, tuple) else (returned,):
                results.append(_as_tensor(one, self.arrays))
        except TypeError as error:
            trouble = f"{self._title(len(results))[0]} is {error}"
            return _Outcome(trouble=trouble, hopeless=True)
        return _Outcome(tuple(results))

    def _changed(self, used: tuple[Any, ...], fresh: tuple[Any, ...]) -> str:
        as_before = self._named(fresh)
        for name, one in self._named(used).items():
            after, before = (
                _Outcome(tuple(tensor.detach() for _, tensor in _named(name, x)))
                for x in (one, as_before[name])
            )
            if not after.agrees(before, 0.0, 0.0):
                return (
                    f"it changes its argument `{name}` in place. Work on a copy, or use operations that "
                    "return a new tensor (no `x[...] = ...`, `x += ...`, or names that end with `_`)"
                )
        return ""

    def _blunder(self, answer: Answer, outcomes: Mapping[str, _Outcome]) -> str:
        """A sentence on a problem that makes a closer look pointless, or ""."""
        troubles = {outcome.trouble for outcome in outcomes.values()}
        for case, outcome in outcomes.items():
            if outcome.hopeless:
                where = f"for {case}, " if len(troubles) > 1 else ""
                return where + outcome.trouble
        fine = [case for case, outcome in outcomes.items() if not outcome.trouble]
        # The last case is seldom the simplest, and a state that an answer keeps has grown by then.
        if not fine or outcomes[fine[-1]].agrees(
            self._try(answer, fine[-1], seed=1), self.atol, self.rtol
        ):
            return ""
        return (
            "called again with the same arguments, it returns different numbers. Does it draw random numbers "
            "(dropout that is always on?), or keep something from the previous call?"
        )

    # ------------------------------------------------------------------ judging the results
    def _problems(
        self, outcomes: Mapping[str, _Outcome], right: Answer
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
            are = "is" if len(wanted) == 1 else "are"
            expected = f"{_results(len(wanted))} ({names}) {are} expected"
            return f"it returns {_results(len(got))}, where {expected}"
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
        numbers = mine.ndim == 0 and torch.bool not in (mine.dtype, right.dtype)
        if (_kind(mine) != _kind(right) and not numbers) or (
            self.same_dtype and mine.dtype != right.dtype
        ):
            return f"{name} has dtype {mine.dtype}, expected {right.dtype}"
        if _same(mine, right, self.atol, self.rtol):
            return ""
        if stray := (mine.isnan() & ~right.isnan()).nonzero().tolist():
            return f"{name} holds NaN, first at {stray[0]}"
        arguments = self._arguments(case)
        for test in self.properties:
            if problem := test(arguments, results):
                return problem
        return f"{name} {_compare(axes, mine, right, self.atol, self.rtol)}"

    def _known(
        self, found: Mapping[str, _Outcome], problems: Mapping[str, str], probe: Answer
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
        start = f"right for {_list(passed[:3])}, wrong" if passed else "wrong"
        return f"{start} for {self._place(fails)}: {problems[fails]}"

    # ------------------------------------------------------------------ gradients
    def _judge_gradients(self, answer: Answer, reference: Answer) -> Verdict:
        """The verdict on an answer whose numbers agree with those of a reference."""
        if not self.gradients:
            return Verdict(True, self._praise(""))
        labels = self.cases if self.gradients is True else self.gradients
        tried = [case for case in self.cases if case in labels]
        found = {case: self._gradients(answer, case) for case in tried}
        if self.detached and all(got.error == "detached" for got in found.values()):
            return Verdict(True, self._praise(", without gradients"))
        problems = {
            case: got.trouble or self._gradient_problem(case, got, reference)
            for case, got in found.items()
        }
        if not any(problems.values()):
            return Verdict(True, self._praise(", with the right gradients"))
        for wrong in self._known(found, problems, self._gradients):
            numbers = self._problems(self._tried(wrong.answer), reference)
            if not any(numbers.values()):
                return _not_yet(f"{wrong.name}. {wrong.cause}")
        case, problem = next(pair for pair in problems.items() if pair[1])
        where = f"but not the gradients, for {self._place(case)}: {problem}"
        return _not_yet(f"the numbers are right, {where}")

    def _gradients(self, answer: Answer, case: str) -> _Outcome:
        """The gradients of the first result for all floating-point arguments."""
        arguments = self._arguments(case)
        leaves = self._leaves(arguments)
        for _, leaf in leaves:
            leaf.requires_grad_()
        returned = self._call(answer, arguments)
        if isinstance(returned, _Outcome):
            return returned
        first = returned[0] if isinstance(returned, (tuple, list)) else returned
        if not isinstance(first, Tensor) or not first.requires_grad:
            causes = "`.detach()`, `.data`, `.item()`, NumPy, `no_grad`"
            trouble = f"no result carries a gradient: was it detached ({causes})?"
            return _Outcome(trouble=trouble, error="detached")
        # The loss is the dot product with fixed numbers, all different.
        ramp = torch.linspace(0.5, 1.5, first.numel()).to(first).view(first.shape)
        total, inputs = (first * ramp).sum(), [leaf for _, leaf in leaves]
        try:
            found = torch.autograd.grad(total, inputs, materialize_grads=True)
        except RuntimeError as error:
            return _Outcome(trouble=_no_way_back(error), error="no way back")
        return _Outcome(found)

    def _leaves(self, arguments: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
        """The floating-point tensors in the arguments, with their names."""
        return [
            (name, tensor)
            for argument, one in self._named(arguments).items()
            for name, tensor in _named(argument, one)
            if tensor.is_floating_point()
        ]

    def _gradient_problem(self, case: str, got: _Outcome, reference: Answer) -> str:
        names = [name for name, _ in self._leaves(self._arguments(case))]
        wanted = self._gradients(reference, case).results
        for name, mine, right in zip(names, got.results, wanted, strict=True):
            if _same(mine, right, self.atol, self.rtol):
                continue
            title = f"the gradient with respect to `{name}`"
            if bool(mine.isnan().any()):
                return f"{title} holds NaN"
            if not bool(mine.any()):
                return f"no gradient reaches `{name}`: is it detached on the way?"
            return f"{title} {_compare((), mine, right, self.atol, self.rtol)}"
        return ""

    # ------------------------------------------------------------------ words
    def _place(self, case: str) -> str:
        """A case in words, with the sizes of its arguments."""
        shapes = [
            f"{name} {tuple(one.shape)}"
            for name, one in self._named(self._arguments(case)).items()
            if isinstance(one, Tensor)
        ]
        return case + (f" ({', '.join(shapes)})" if shapes else "")

    def _title(self, position: int) -> tuple[str, tuple[str, ...]]:
        """Name and axes of a result."""
        titles = (self.returns,) if isinstance(self.returns, str) else self.returns
        title = titles[position] if position < len(titles) else ""
        name, _, inside = title.partition("(")
        axes = tuple(filter(None, map(str.strip, inside.rstrip(") ").split(","))))
        if name.strip():
            return f"`{name.strip()}`", axes
        several = position or len(titles) > 1
        return f"result {position}" if several else "the result", axes

    def _praise(self, gradients: str) -> str:
        labels = list(self.cases)
        if len(labels) == 1:
            return f"Right in the case that was tried: {labels[0]}."
        count = "both" if len(labels) == 2 else f"all {len(labels)}"
        return f"Right in {count} cases{gradients}: {_list(labels)}."


def randn(generator: torch.Generator, *sizes: int) -> Float[Tensor, "..."]:
    """Standard normal float32 numbers of these sizes from a case's generator.

    Raises:
        TypeError, ValueError: a size is not an int, or not positive.

    Example:
        >>> randn(torch.Generator().manual_seed(0), 2, 3).shape
        torch.Size([2, 3])
    """
    for size in sizes:
        _checks.check_positive_int("sizes", size)
    return torch.randn(sizes, generator=generator)


def rows_sum_to_one(position: int = 0) -> Property:
    """A property for `Exercise`: each row of the result at `position` adds up to 1 or is all zeros.

    Raises:
        TypeError: `position` is not an int.

    Example:
        >>> rows_sum_to_one()((), (torch.tensor([[0.5, 0.25]]),))
        'its rows should add up to 1, and row [0] adds up to 0.75'
    """
    _checks.check_type("position", position, int)
    return partial(_sums_to_one, position)


def _sums_to_one(position: int, _: object, results: tuple[Any, ...]) -> str:
    sums = results[position].double().sum(-1)
    off = ((sums - 1).abs() > 1e-3) & results[position].any(-1)
    if not bool(off.any()):
        return ""
    place = off.nonzero()[0].tolist()
    return f"its rows should add up to 1, and row {place} adds up to {sums[tuple(place)].item():.4g}"


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise _checks.wrong_type(name, "callable", value)


def _seed(number: int) -> None:
    """Seed the draws of an answer on a CPU; `torch.manual_seed` is slow, since it looks for other devices."""
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


def _results(number: int) -> str:
    return f"{number} result{'s' * (number != 1)}"


def _list(labels: Sequence[str]) -> str:
    """Join labels as in "a, b and c"; if one contains a comma, semicolons separate them."""
    if len(labels) < 2:
        return "".join(labels)
    if any("," in label for label in labels):
        return "; ".join(labels)
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors in an argument, with names: itself, those in a list, or the parameters of a module."""
    if isinstance(value, Tensor):
        yield name, value
    elif _is_array(value) and value.dtype != object:
        yield name, torch.from_numpy(value)
    elif callable(getattr(value, "named_parameters", None)):
        yield from value.named_parameters()
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _named(name, one)
    elif isinstance(value, (int, float)):
        yield name, torch.tensor(value)


def _is_array(value: object) -> bool:
    """Whether a value comes from NumPy, which need not be installed."""
    return type(value).__module__ == "numpy" and hasattr(value, "__array__")


def _as_tensor(value: Any, arrays: bool) -> Any:
    """Return a result as a detached tensor, or as a string; raise a TypeError if it is neither."""
    if value is None:
        raise TypeError("None")
    if isinstance(value, Tensor):
        if value.is_meta:
            raise TypeError("a tensor on the device `meta`, which holds no numbers")
        if value.is_nested or value.layout != torch.strided:
            raise TypeError("a sparse or nested tensor, not an ordinary one")
        return value.detach().clone()
    if isinstance(value, str) and arrays:
        return value
    with suppress(ImportError, TypeError, ValueError, RuntimeError, BufferError):
        import numpy as np  # for answers that return something other than a tensor

        if arrays and hasattr(value, "__dlpack__") and not _is_array(value):
            return torch.utils.dlpack.from_dlpack(value).detach().clone()
        if arrays and (array := np.asarray(value)).dtype.kind in "biuf":
            return torch.tensor(array)
    with suppress(TypeError, ValueError, RuntimeError):  # NumPy may not be installed
        if arrays and isinstance(value, (int, float, list, tuple)):
            floats = torch.tensor(value).is_floating_point()
            return torch.tensor(value, dtype=torch.float64 if floats else None)
    raise TypeError(f"{_a(value)}, where a torch.Tensor is expected")


def _kind(tensor: Tensor) -> str:
    number = "float" if tensor.is_floating_point() else "integer"
    return "bool" if tensor.dtype == torch.bool else number


def _same(mine: Any, other: Any, atol: float, rtol: float) -> bool:
    """Whether two results are equal within the tolerance, in float64; NaN equals NaN."""
    if isinstance(mine, str) or isinstance(other, str):
        return type(mine) is type(other) and bool(mine == other)
    if mine.shape != other.shape:
        return False
    if "float16" in f"{mine.dtype} {other.dtype}":
        atol, rtol = max(atol, 2e-3), max(rtol, 1e-2)
    mine, other = (x.to("cpu", torch.float64) for x in (mine, other))
    return torch.allclose(mine, other, atol=atol, rtol=rtol, equal_nan=True)


def _raised(error: BaseException) -> str:
    kind = type(error).__name__
    number, piece, text = _line_of(error)
    where = f" in line {number}" if number else ""
    where += f" of your `{piece}`" if piece else ""
    where += f", `{text}`" if text else ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    first = re.sub(r"\b0x[0-9a-fA-F]+\b", "0x…", first)[:200].rstrip(".")
    clue = _clue(error)
    first += f". {clue}" if clue else ""
    return f"it raises {kind}{where}{': ' + first if first else ''}"


def _clue(error: BaseException) -> str:
    """What to write instead, for errors whose own words do not tell a newcomer; "" for all others."""
    said = str(error)
    if isinstance(error, TypeError) and re.search(
        r"^sqrt\(\).*Tensor, not (int|float)", said
    ):
        return "`torch.sqrt` takes a tensor; of a number, take `math.sqrt(…)` or `… ** 0.5`"
    if (
        not isinstance(error, NameError)
        or not error.name
        or error.__traceback__ is None
    ):
        return ""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    if hasattr(trace.tb_frame.f_locals.get("self"), error.name):
        return f"It belongs to the object: write `self.{error.name}`"
    return ""


def _no_way_back(error: RuntimeError) -> str:
    """A clause on why autograd could not compute gradients."""
    if "inplace" in str(error):
        return (
            "the backward pass needs a tensor as it was, and it was changed in place later (`x[t] = ...`, "
            "`x += ...`). Use a copy, `x.clone()`, or join the parts with `torch.cat` or `torch.stack`"
        )
    return f"the backward pass fails: {str(error).strip().splitlines()[0][:200].rstrip('.')}"


def _line_of(error: BaseException) -> tuple[int, str, str]:
    """Number, piece and text of the last line that the reader wrote; (0, "", "") if there is none.

    The piece is the function or class that the line belongs to. Lines of the course's own pieces do not
    count, as they lie in folded cells.
    """
    found, trace = (0, "", ""), error.__traceback__
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        package = str(names.get("__name__")).partition(".")[0]
        piece = code.co_qualname.partition(".")[0]
        theirs = package not in _OURS and not code.co_filename.startswith(
            _NOT_THE_READERS
        )
        if theirs and not hasattr(names.get(piece), COURSES):
            linecache.checkcache(code.co_filename)  # the file may have been edited
            text = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            named = piece if piece.isidentifier() else ""
            found = trace.tb_lineno, named, text.replace("`", "'")[:80]
        trace = trace.tb_next
    return found


def _compare(
    axes: tuple[str, ...], mine: Tensor, right: Tensor, atol: float, rtol: float
) -> str:
    """How two tensors of the same shape differ, as the end of a clause."""
    if right.dtype == torch.bool:
        # A single False is not an inversion.
        if mine.numel() > 1 and torch.equal(mine, ~right):
            return "is inverted: False where True is expected, and vice versa"
        place = (mine != right).nonzero()[0].tolist()
        there = bool(mine[tuple(place)])
        return f"is {there}{_at(place)}, where {not there} is expected"
    mine, right = (x.to("cpu", torch.float64) for x in (mine, right))
    same = partial(_same, other=right, atol=atol, rtol=rtol)
    if not bool(mine.any()):
        return "is zero everywhere"
    scale = float((mine * right).sum() / right.square().sum().clamp(min=1e-30))
    if scale and same(mine / scale):
        return f"is {scale:.3g} times what is expected"
    offset = (mine - right).mean()
    if mine.numel() > 1 and same(mine - offset):
        return f"is what is expected plus {float(offset):.3g}"
    for order in list(permutations(range(mine.ndim)))[1:]:
        if same(mine.permute(order)):
            return "holds the right numbers with its axes swapped"
    titles = [f"axis {axis}" for axis in range(mine.ndim)]
    if len(axes) == mine.ndim:
        titles = [f"{title} ({name})" for title, name in zip(titles, axes, strict=True)]
    for axis, title in enumerate(titles):
        if mine.shape[axis] > 1 and same(mine.flip(axis)):
            return f"holds the right numbers in reverse order along {title}"
    got, wanted = (x.flatten().sort().values for x in (mine, right))
    if mine.numel() > 1 and _same(got, wanted, atol, rtol):
        return "holds the right numbers in a different order: look at transpose, reshape and view"
    near = torch.isclose(mine, right, atol=atol, rtol=rtol, equal_nan=True)
    for axis, title in enumerate(titles):
        good = near.transpose(0, axis).flatten(1).all(1) if mine.ndim > 1 else near
        if bool(good.any()):
            return f"is right at {_places(good)} of {title}, wrong at {_places(~good)}"
    distance = (mine - right).abs().nan_to_num(torch.inf)
    place = [int(i) for i in torch.unravel_index(distance.argmax(), mine.shape)]
    here = tuple(place)
    return f"is {mine[here]:.2g}{_at(place)}, where {right[here]:.2g} is expected"


def _at(place: list[int]) -> str:
    return f" at {place}" if place else ""


def _places(flags: Tensor) -> str:
    places = flags.nonzero().flatten().tolist()
    return ", ".join(map(str, places[:5])) + (", …" if len(places) > 5 else "")
