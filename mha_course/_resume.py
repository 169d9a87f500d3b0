"""What a notebook says after an error: which cells to run first, and which definition is out of date.

Colab ends a session that is left alone. The notebook keeps its text and outputs, the new kernel knows
nothing, and a cell in the middle of a chapter fails with a NameError. IPython calls the functions below after
each cell (see `_kernel`).
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mha_course._messages import message


class Cell(NamedTuple):
    """A cell of a page: a digest of its text, its section, and the names that it binds."""

    digest: str
    section: str
    names: frozenset[str]


class Page(NamedTuple):
    """A page with code: its title and its cells in order."""

    title: str
    cells: list[Cell]


@cache
def pages() -> list[Page]:
    """The pages of the course, from `cells.json`, which `make notebooks` writes."""
    path = Path(__file__).with_name("cells.json")
    stored = json.loads(path.read_text(encoding="utf-8"))
    return [
        Page(page["title"], [_cell(*cell) for cell in page["cells"]])
        for page in stored.values()
    ]


def _cell(text: str, section: str, names: str) -> Cell:
    return Cell(text, section, frozenset(names.split()))


def explain_missing_names(result: Any) -> None:
    """After a cell that failed with a NameError, print which cells to run first.

    IPython calls it after each cell; `result` contains the cell and its error.
    """
    if not isinstance(result.error_in_exec, NameError) or result.info is None:
        return
    from IPython import get_ipython

    known = get_ipython().user_ns.keys() | vars(builtins).keys()
    source = result.info.raw_cell
    unknown = (names_used(source) | {result.error_in_exec.name or ""}) - known
    if told := missing(source, unknown):
        print(told)


def forget_what_has_a_syntax_error(result: Any) -> None:
    """After a cell that Python cannot read, remove what an earlier version of the cell defined, and say so.

    Otherwise the check below would judge the earlier version, and call it right.
    """
    if not isinstance(result.error_before_exec, SyntaxError) or result.info is None:
        return
    from IPython import get_ipython

    names = get_ipython().user_ns
    written = re.findall(r"^(?:def|class) (\w+)", result.info.raw_cell, re.MULTILINE)
    if old := [name for name in written if names.pop(name, None) is not None]:
        print(message(__file__, "not-run", names=_listed(old)))


def digest(source: str) -> str:
    """Return a short digest of the text of a cell, without the title of a published fold."""
    source = re.sub(r"^# @title .*\n", "", source)
    return hashlib.sha256(source.strip().encode()).hexdigest()[:8]


def names_used(source: str) -> set[str]:
    """The names that a cell reads and does not bind itself."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, RecursionError, MemoryError):  # a magic command, or too deep
        return set()
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {
        node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - bound


def missing(source: str, unknown: set[str]) -> str | None:
    """Say which cells to run for the names of a cell that the kernel does not know.

    The page is the one that has this cell; if the reader has changed the cell, the one that defines most of
    its names. Returns None if that page defines none of the unknown names.

    Example:
        >>> missing("model = TwoPointers(2)", {"TwoPointers"}).splitlines()[0]
        'The kernel does not know `TwoPointers`. On the page *Multi-head attention*, run first:'
    """
    page = page_of(source)
    found = [cell for cell in page.cells if cell.names & unknown]
    if not found:
        return None
    names = _listed(sorted(unknown & defined_on(page)))
    lines, left = (
        [message(__file__, "unknown", names=names, page=page.title)],
        set(unknown),
    )
    for cell in found:
        if new := sorted(cell.names & left):
            lines.append(
                message(__file__, "cell", section=cell.section, names=_listed(new))
            )
            left -= cell.names
    if pieces := sorted(unknown & set(built_names())):
        lines.append("  " + message(__file__, "built", names=", ".join(pieces)))
    return "\n".join([*lines, message(__file__, "all-above")])


@cache
def built_names() -> list[str]:
    """The pieces that readers write, by `built.py`, which is read and not imported: it needs torch."""
    tree = ast.parse(Path(__file__).with_name("built.py").read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]


def page_of(source: str) -> Page:
    """The page that has a cell, or else the one that defines most of the words in it.

    A name that few pages define says more about the page.
    """
    own, used = digest(source), set(re.findall(r"[^\W\d]\w*", source))
    same = [page for page in pages() if any(cell.digest == own for cell in page.cells)]
    on_pages = Counter(name for page in pages() for name in defined_on(page))
    return max(
        same or pages(),
        key=lambda page: sum(1 / on_pages[name] for name in used & defined_on(page)),
    )


def defined_on(page: Page) -> set[str]:
    """The names that the cells of a page bind."""
    return {name for cell in page.cells for name in cell.names}


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
