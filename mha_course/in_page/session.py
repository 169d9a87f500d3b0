"""Run a reader's text in the page, and judge it by what the book has stored.

Each call of `answer` starts from scratch, so it does not matter what was run before, or whether Python had to
be started again. The names of the course are those of `mha_course.built`; what the reader has written and the
engine has accepted replaces them. Before a cell of the page, the earlier lines that it needs are run.
"""

# ruff: noqa: S102, what a reader writes is run
from __future__ import annotations

import ast
import builtins
import inspect
import io
import json
import linecache
import sys
import traceback
import types
from array import array
from base64 import b64decode
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from math import ceil, sqrt

import torch
import torch.nn.functional as F
from torch import nn

from attention_check import _judging, _results
from attention_check._results import Outcome, Verdict, Wrong, listed

try:
    import above  # as the page has it
except ModuleNotFoundError:
    from mha_course.in_page import above

from mha_course import _classes, _exercise, _pieces, built
from mha_course._exercise import Exercise
from mha_course._whose import used_by

YOURS = "your "  # begins the names of files that hold what the reader has written
FILE = f"{YOURS}code"
# A verdict names no line of these: the reader sees the pieces of the course folded, or not at all.
_results.NOT_THE_READERS += (built.__name__, "the page", "check")
MOST = 20_000  # characters of output that are kept
ONLY_IN_COLAB = "This page has only Python and a small stand-in for torch. Colab has all the rest."


class Stored:
    """The results of an answer in each case when the book was built, as a substitute for that answer.

    `slopes` are its gradients, in the cases whose gradients are compared.
    """

    def __init__(self, names, outcomes, slopes):
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        self.__signature__ = inspect.Signature(parameters)
        self.outcomes, self.slopes = outcomes, slopes

    def __call__(self, *_):
        """Return nothing; this only makes it look like an answer."""


# What an answer printed in each case of the check.
_printed = {}


class StoredExercise(Exercise):
    """An exercise whose right and wrong answers were tried with torch when the book was built."""

    def _try(self, answer, case, *, seed=0):
        if isinstance(answer, Stored):
            return _outcome(**answer.outcomes[case])
        with redirect_stdout(Output()) as printed:
            outcome = super()._try(answer, case, seed=seed)
        _printed.setdefault(case, str(printed))
        return outcome

    def _gradients(self, answer, case):
        if isinstance(answer, Stored):
            return _outcome(**answer.slopes[case])
        with redirect_stdout(Output()):
            return super()._gradients(answer, case)


def loaded(data):
    """The exercise that the build has written as JSON."""
    space = {**vars(_results), **vars(_pieces), **vars(_judging), **vars(_classes), **vars(_exercise)}
    space |= {"torch": torch, "F": F, "nn": nn, "built": built}
    space |= {"ceil": ceil, "sqrt": sqrt, "partial": partial}
    code = "from __future__ import annotations\n" + data["code"]
    exec(compile(code, "exercise", "exec"), space)
    (first, slopes, _), stored = data["rights"][0], partial(Stored, data["names"])
    rights = [stored(got | further, other) for got, other, further in data["rights"]]
    cases, further = (
        {label: partial(_arguments, made) for label, made in data[kind].items()}
        for kind in ("cases", "further")
    )
    exercise = StoredExercise(
        reference=rights[0],
        accept=rights[1:],
        cases=cases,
        further=further,
        wrong=[
            Wrong(name, cause, stored(first | got, slopes | other))
            for name, cause, got, other in data["wrong"]
        ],
        run=space["run"],
        then=space["then"],
        properties=space["properties"],
        **data["options"] | {"returns": _hashable(data["options"]["returns"])},
    )
    return partial(_judged, exercise, data["left"])


def _judged(exercise, left, answer, **_options):
    verdict = exercise(answer)
    if not (verdict and left):
        return verdict
    return Verdict(True, f"{verdict.message} Only Colab compares: {listed(left)}.")


def _arguments(made, _generator):
    return tuple(map(_value, made))


def _outcome(results=(), **said):
    return Outcome(results=tuple(map(_value, results)), **said)


def _hashable(value):
    return tuple(value) if isinstance(value, list) else value


def _value(stored):
    """The value that `_encoded` in the build has encoded."""
    if isinstance(stored, list):
        return [_value(one) for one in stored]
    if not isinstance(stored, dict):
        return stored
    if "dict" in stored:
        return {_value(name): _value(one) for name, one in stored["dict"]}
    if "tuple" in stored:
        return tuple(map(_value, stored["tuple"]))
    dtype, numbers = stored["dtype"], stored["numbers"]
    if isinstance(numbers, str):
        numbers = array("f" if dtype == "float32" else "d", b64decode(numbers)).tolist()
    return torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(stored["shape"])


class Output(io.TextIOBase):
    """Keeps the beginning of what is printed, and counts the rest."""

    def __init__(self):
        self.kept, self.length = [], 0

    def write(self, text):
        """Keep a text, if there is room."""
        if self.length < MOST:
            self.kept.append(text[: MOST - self.length])
        self.length += len(text)
        return len(text)

    def __str__(self):
        more = f"\n… and {self.length - MOST:,} more characters" if self.length > MOST else ""
        return "".join(self.kept) + more


def answer(request):
    """Run or check a text of the reader; the request and the reply are JSON."""
    asked = json.loads(request)
    output, said = Output(), {}
    try:
        with redirect_stdout(output), redirect_stderr(output):
            said = _answered(asked)
    except BaseException as error:
        said = {"error": _told(error)}
    return json.dumps({"output": str(output), **said})


def _answered(asked):
    torch.set_printoptions(profile="default")
    torch.default_generator.manual_seed(67280421310721)  # torch's own initial seed
    # What code does to `builtins` concerns that code alone.
    own = sys.modules["builtins"] = types.ModuleType("builtins")
    vars(own).update(vars(builtins))
    space = {"__name__": "__main__", "__builtins__": vars(own), "input": _no_input}
    checkers = types.ModuleType("mha_course.exercises")
    checkers.solution = lambda _: lambda ours: ours
    if asked["exercise"]:
        space[asked["checker"]] = loaded(json.loads(asked["exercise"]))
        setattr(checkers, asked["checker"], space[asked["checker"]])
    sys.modules[checkers.__name__] = sys.modules["mha_course"].exercises = checkers
    exec(compile(inspect.getsource(built), built.__name__, "exec"), space)
    with redirect_stdout(Output()):
        for name, text in asked["pieces"].items():
            _run(text, YOURS + name, space)
        _offer(space)
        # An answer that is checked must not need the page, because other pages use it.
        if not asked["check"]:
            with suppress(SyntaxError):  # which is told when the text itself is run
                needed = above.needed(asked["statements"], asked["text"], built.__all__)
                _run(needed, "the page", space)
    before = space.get(asked["name"])
    shown = _run(asked["text"], FILE, space)
    used = {"used": used_by(asked["text"], asked["pieces"], space)}
    if not asked["check"]:
        if shown is not None:
            print(repr(shown))
        return used
    if space.get(asked["name"]) is before:
        return {"error": f"The check looks for `{asked['name']}`, and your text does not define it."}
    _printed.clear()
    verdict = _run(asked["check"], "check", space)
    # Once, although the answer ran in each case: in the case that the verdict is about.
    about = [case for case in _printed if case in verdict.message] or [*_printed]
    if about and _printed[about[0]]:
        print(f"In the case {about[0]!r}:\n{_printed[about[0]].rstrip()}")
    return {"right": verdict.right, "verdict": verdict.message, **used}


def _offer(space):
    """Let `from mha_course.built import …` give what was accepted, or else the course's."""
    offered = types.ModuleType(built.__name__)
    vars(offered).update({name: space[name] for name in ("__all__", *built.__all__)})
    sys.modules[built.__name__] = sys.modules["mha_course"].built = offered


def _no_input(*_):
    raise OSError("nobody can type here: `input` has no keyboard")


def _run(text, file, space):
    """Run a text; return the value of its last line if that is an expression."""
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    tree = ast.parse(text, file)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        kept = ast.Assign([ast.Name("_", ast.Store())], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
    exec(compile(tree, file, "exec"), space)
    return space.pop("_", None)


def _told(error):
    """An error with the lines of the reader's own code that led to it."""
    kind, message = type(error).__name__, str(error)
    if isinstance(error, SyntaxError) and error.filename:
        # The compiler knows no text of what was parsed before, such as a `return` outside a function.
        text = error.text or linecache.getline(error.filename, error.lineno)
        message, lines = error.msg, [(error.filename, error.lineno, None, text.strip())]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [(frame.filename, frame.lineno, frame.name, frame.line) for frame in frames]
    told = []
    for file, number, function, line in lines:
        if file.startswith(YOURS):
            whose = "" if file == FILE else f" of your {file.removeprefix(YOURS)}"
            inside = f", in {function}" if function not in (None, "<module>") else ""
            told.append(f"Line {number}{whose}{inside}:\n    {line}")
    told = [*dict.fromkeys(told)]  # a recursion repeats a line
    told.append(f"{kind}: {message}" if message else kind)
    if isinstance(error, ImportError):
        told.append(ONLY_IN_COLAB)
    if isinstance(error, RecursionError):
        told.append("A function calls itself again and again: what should end that?")
    if isinstance(error, MemoryError):
        told.append("Your code asked for more memory than this page has.")
    return "\n".join(told)
