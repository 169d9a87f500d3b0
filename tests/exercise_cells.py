"""The exercises of a page: whether each has all its cells, and its solution, to plant faults in."""

import ast
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import nbformat

from mha_lib import exercises

CHAPTERS = Path(__file__).resolve().parents[1] / "chapters"
PARTS = ("task", "stub", "check", "hints", "solution")
SOLUTION = {"code_prompt_show": "Show solution", "code_prompt_hide": "Hide solution"}


@cache
def read(page):
    return nbformat.read(CHAPTERS / f"{page}.ipynb", as_version=4).cells


def cells_of(page):
    """Number of the exercise -> its cells by name, in the order of the page."""
    found = {}
    for cell in read(page):
        if match := re.fullmatch(r"ex(\d+)-(\w+)", cell.id):
            found.setdefault(int(match[1]), {})[match[2]] = cell
    return found


def faults_of_exercises(page, count):
    """What is missing in the exercises of a page, as sentences."""
    pages = cells_of(page)
    if sorted(pages) != list(range(1, count + 1)):
        yield f"the exercises are {sorted(pages)}"
    for number, cells in pages.items():
        if tuple(cells) != PARTS:
            yield f"exercise {number} has the cells {tuple(cells)}"
            continue
        task, stub, check, hints, solution = (cells[part].source for part in PARTS)
        if not re.search(rf"(\*\*|^#+ (Exercise )?){number}\W+★+.*\d+ minutes", task, re.M):
            yield f"task {number} does not name its number, its stars and its minutes"
        if not re.search(r"^ +\.\.\.$", stub, re.M) or "..." not in stub:
            yield f"stub {number} has no line to fill in"
        name = re.search(r"^(check_\w+)\(", check, re.M)
        if not name or not hasattr(exercises, name[1]):
            yield f"check {number} calls no checker"
            continue
        outputs = str(cells["check"].outputs)
        if "Not yet: " not in outputs:
            yield f"check {number} stores {outputs[:200]}"
        if len(re.findall(r"<details><summary>Hint \d</summary>\n\n.+?\n\n</details>", hints, re.S)) < 3:
            yield f"exercise {number} has fewer than three hints"
        if f"assert {name[1]}(" not in solution or not solution.rstrip().endswith('""")'):
            yield f"solution {number} is not checked, or not explained"
        if "Why the tempting answer fails" not in str(cells["solution"].outputs[-1]):
            yield f"solution {number} shows no explanation"
        data = cells["solution"].metadata
        if "hide-cell" not in data.tags or not data.mystnb.items() >= SOLUTION.items():
            yield f"solution {number} is not folded"
        if any("tempting answer" in text for text in (task, hints)):
            yield f"exercise {number} explains the tempting answer openly"


def solution_of(page, number, *plants):
    """The solution of an exercise as a function; `plants` are pairs (old text, new text) to spoil it with.

    The functions and imports of the page, up to the solution, are there for it to call.
    """
    space = {}
    for cell in read(page):
        if cell.cell_type != "code" or cell.id == "setup":
            continue
        last = cell.id == f"ex{number}-solution"
        source = cell.source
        for old, new in plants if last else ():
            assert old in source, f"{old!r} is not in the solution"
            source = source.replace(old, new)
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
                with suppress(NameError):  # a default that is a constant of the page: for figures only
                    exec(compile(ast.Module([node], []), cell.id, "exec"), space)  # noqa: S102
        if last:
            [name] = re.findall(r"^(?:def|class) (\w+_?[sS]olution)\(", source, re.M)
            return space[name]
    raise KeyError(number)
