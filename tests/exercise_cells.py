"""The exercises of a page as its notebook holds them: their cells, and their solutions to plant faults in."""

import ast
import re
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import nbformat
import pytest

from mha_course import exercises

CHAPTERS = Path(__file__).resolve().parents[1] / "chapters"
PARTS = ("task", "stub", "check", "hints", "solution")
CHECKS = {name: getattr(exercises, name) for name in exercises.__all__ if name.startswith("check_")}

# A piece with this behind it, in which NAME stands for its name, prints that it is used.
MARK = """

def _marked(name, function):
    def call(*inputs, **options):
        print(f"{name} is mine")
        return function(*inputs, **options)
    return call

if isinstance(NAME, type):
    NAME.__init__ = _marked("NAME", NAME.__init__)
else:
    NAME = _marked("NAME", NAME)
"""


def accepts(right):
    """A test that each answer is right: {name of the checker: answers}."""
    cases = [(name, answer) for name, answers in right.items() for answer in answers]

    @pytest.mark.parametrize(("name", "answer"), cases)
    def test(name, answer):
        assert CHECKS[name](answer), CHECKS[name](answer)

    return test


def judges(answers):
    """A test of verdicts: (name of the checker, answer, how the verdict begins; None if it is right)."""

    @pytest.mark.parametrize(
        ("name", "answer", "problem"), answers, ids=[f"{n}-{p or 'right'}" for n, _, p in answers]
    )
    def test(name, answer, problem):
        verdict = CHECKS[name](answer)
        assert verdict.right == (problem is None), verdict
        assert verdict.message.startswith(f"Not yet: {problem}. " if problem else "Right in "), verdict

    return test


@cache
def read(page):
    return nbformat.read(CHAPTERS / f"{page}.ipynb", as_version=4).cells


@cache
def cells_of(page):
    """Number of each exercise -> part -> cell, in the order of the page."""
    found = {}
    for cell in read(page):
        if match := re.fullmatch(r"ex(\d+)-(\w+)", cell.id):
            found.setdefault(int(match[1]), {})[match[2]] = cell
    return found


@cache
def pieces_of(page):
    """Name of each piece of the reader's own layer that the page lets them write -> part -> cell."""
    found = {}
    for cell in read(page):
        if match := re.fullmatch(r"write-(\w+)-(\w+)", cell.id):
            found.setdefault(match[1], {})[match[2]] = cell
    return found


def checker_of(exercise):
    """Names of the checker and of what it checks, as in `check_mean(my_mean)`."""
    call = re.search(r"^(check_\w+)\(\s*(\w+)", exercise["check"].source, re.MULTILINE)
    return call.groups() if call else (None, None)


def checkers_of(page):
    """The names of a page's checkers, in the order of the exercises."""
    return [checker_of(exercise)[0] for exercise in cells_of(page).values()]


def solved(page, number):
    """The checker of an exercise, and the name of its solution, as in `assert check_mean(mean, axis=1)`."""
    source = cells_of(page)[number]["solution"].source
    name, solution, options = re.search(r"^assert (check_\w+)\((\w+)(.*?)\)", source, re.MULTILINE).groups()
    return partial(CHECKS[name], **eval(f"dict({options[2:]})")), solution  # noqa: S307


def solution_of(page, number, *plants):
    """The solution of an exercise or, by its name, of a piece; `plants` are (old text, new text) to spoil it.

    The functions and imports of the page, up to the solution, are there for it to call.
    """
    space = {}
    for cell in read(page):
        if cell.cell_type != "code" or cell.id == "setup":
            continue
        last = cell.id in (f"ex{number}-solution", f"write-{number}-solution")
        source = cell.source
        for old, new in plants if last else ():
            assert old in source, f"{old!r} is not in the solution"
            source = source.replace(old, new)
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
                with suppress(NameError):  # a default may be a constant of the page, but only for figures
                    exec(compile(ast.Module([node], []), cell.id, "exec"), space)  # noqa: S102
        if last:
            return space[number if number in space else solved(page, number)[1]]
    raise KeyError(number)
