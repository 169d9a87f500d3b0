"""The exercises of a page's notebook: task, stub, check and solution, and what of the page each needs."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha_course._messages import message
from mha_course._resume import built_names
from mha_course._take_home import imports_of, piece_of

_HERE = str(Path(__file__).with_name("handout.py"))
_ROOT = Path(__file__).parent.parent
# The build of the book writes into the set-up what Colab installs.
_FOLDERS = [_ROOT / "_build/html/_sources/chapters", _ROOT / "chapters"]
# Every assignment begins with these.
_TORCH = {"import torch", "from torch import nn"}


@dataclass
class Exercise:
    """An exercise of a page: sources of its cells, and what of the page it needs."""

    name: str  # of what is checked
    task: str
    stub: str
    check: str
    solution: str
    given: list[str]

    @property
    def source(self) -> str:
        """The stub and, marked for both tools, the solution."""
        marks = "# BEGIN SOLUTION NO PROMPT", "# END SOLUTION"
        return f"{self.stub}\n\n\n{marks[0]}\n{self.solution}\n{marks[1]}"


def page_at(page: str) -> Path:
    """The notebook of a page, which is given by its number, its name or its path.

    Raises:
        ValueError: there is no such page.
    """
    if Path(page).is_file():
        return Path(page)
    start = f"{int(page):02}_" if page.isdecimal() else page
    for folder in _FOLDERS:
        for path in sorted(folder.glob("*.ipynb")):
            if path.stem.removeprefix("appendix_") == page or path.stem.startswith(
                start
            ):
                return path
    raise ValueError(message(_HERE, "no-page", page=page))


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook, each with its source as one text.

    Raises:
        ValueError: it is not a notebook.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [one | {"source": "".join(one["source"])} for one in cells]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(message(_HERE, "no-notebook", path=path)) from error


def exercises_of(cells: Sequence[dict[str, Any]], own: Iterable[str]) -> list[Exercise]:
    """The exercises of a page. What defines a name of `own` is not given: students write it themselves."""
    found, parts = [], {str(cell.get("id")): cell["source"] for cell in cells}
    for number, cell in enumerate(cells):
        kind, _, part = str(cell.get("id")).rpartition("-")
        checked = re.search(r"(?m)^check_\w+\((\w+)", parts.get(f"{kind}-check", ""))
        if part != "stub" or not checked:
            continue
        task = parts.get(f"{kind}-task") or cells[number - 1]["source"]
        check, stub = parts[f"{kind}-check"], cell["source"]
        solution = _solution(parts[f"{kind}-solution"], checked[1])
        needs = set.union(*(piece_of(one).needs for one in (stub, check, solution)))
        given = _given(cells[:number], needs - {checked[1], *own})
        found.append(Exercise(checked[1], task, stub, check, solution, given))
    return found


def _solution(source: str, name: str) -> str:
    """The definitions of a solution, without its checks and what it prints, under the name of the stub."""
    kept = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    statements = ast.parse(source).body
    body = [one for one in statements if isinstance(one, kept)]
    asserted = [one.test for one in statements if isinstance(one, ast.Assert)]
    checked = [
        ast.unparse(one.args[0])
        for one in asserted
        if isinstance(one, ast.Call) and ast.unparse(one.func).startswith("check_")
    ]
    for one in body:
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            one.decorator_list = [
                mark for mark in one.decorator_list if "solution" not in ast.dump(mark)
            ]
    answer = checked[0] if checked else name
    renamed = [] if answer == name else [f"{name} = {answer}"]
    used, texts = {name}, list[str]()
    for text in reversed([*map(ast.unparse, body), *renamed]):
        piece = piece_of(text)
        if piece.binds & used:
            texts.append(text)
            used |= piece.needs
    return "\n\n\n".join(reversed(texts))


def _given(above: Sequence[dict[str, Any]], needs: set[str]) -> list[str]:
    """The statements above an exercise that define what it needs, in their order; pieces are the course's.

    Of stubs and solutions, only imports are given.
    """
    texts, imports, pieces = list[str](), list[str](), set(built_names())
    for one in reversed(above):
        is_answer = re.fullmatch(r"(ex\d+|write-\w+)-\w+|setup", str(one.get("id")))
        for node in reversed(_statements(one)):
            lines = imports_of([node])
            imports += [line for bound, line in lines.items() if bound in needs]
            needs = needs - lines.keys()
            piece = piece_of(ast.unparse(node))
            if not lines and not is_answer and piece.binds & (needs - pieces):
                texts.append(ast.unparse(node))
                needs = needs - piece.binds | piece.needs
    if built := sorted(needs & pieces):
        imports.append(f"from mha_course.built import {', '.join(built)}")
    order = sorted(set(imports) - _TORCH, key=lambda one: one.startswith("from"))
    return [*(["\n".join(order)] if order else []), *texts[::-1]]


def _statements(cell: dict[str, Any]) -> list[ast.stmt]:
    try:
        return ast.parse(cell["source"]).body if cell["cell_type"] == "code" else []
    except SyntaxError:  # a magic command
        return []
