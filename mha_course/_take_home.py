"""Make `my_gpt.py`, the file that readers take home, of their own accepted pieces and of the course's.

It is made as a text from texts, without torch, so that the build of the book, a notebook and the page's own
Python make it alike. A piece that the reader has not had accepted is the course's, and the file says so.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import symtable
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mha_course._messages import message

HERE = Path(__file__).parent
OURS = ("mha_course", "mha_lib", "attention_check")
DEFINES = (ast.FunctionDef, ast.ClassDef)


class Piece(NamedTuple):
    """The text of a piece, the names that it binds at its top, and those that it reads from elsewhere."""

    text: str
    binds: set[str]
    needs: set[str]


@dataclass(frozen=True)
class Home:
    """The file, and whose its pieces are.

    Attributes:
        text: of the file.
        yours: names of the pieces that are the reader's.
        courses: names of those that are the course's.
        left: accepted pieces of the reader that cannot leave their page, with the names that only it has.
    """

    text: str
    yours: list[str]
    courses: list[str]
    left: dict[str, list[str]]

    def told(self) -> str:
        """Whose the pieces are, in a sentence for each kind."""
        said = [
            message(__file__, whose, names=_named(names))
            for whose, names in (("yours", self.yours), ("courses", self.courses))
            if names
        ]
        said += [
            message(__file__, "left", name=name, names=_named(names))
            for name, names in self.left.items()
        ]
        return " ".join(said)


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def take_home(accepted: Mapping[str, str]) -> Home:
    """Make the file from the accepted texts of a reader, by name."""
    course = (HERE / "built.py").read_text(encoding="utf-8")
    script = (HERE / "_my_gpt.py").read_text(encoding="utf-8")
    head, asked, rest = re.split(r"# .*\nfrom mha_course\.built import (.*)\n", script)
    of_script = imports_of(ast.parse(head).body)
    parts = pieces_of(course)
    imports = imports_of(ast.parse(course).body) | of_script

    own, left = dict[str, Piece](), dict[str, list[str]]()
    for name in [name for name in parts if name in accepted]:
        piece, more = without_the_course(accepted[name], imports)
        helpers = set().union(*(one.binds for one in own.values()))
        known = {*parts, *imports, *more, *helpers, *vars(builtins)}
        if unknown := piece.needs - known:
            left[name] = sorted(unknown)
            continue
        imports |= more
        if extends_itself(name, piece.text):
            piece = piece_of(f"{parts[name].text}\n\n\n{piece.text}")
        own[name] = piece

    # Where each name is defined: a reader's piece may use what another one defines beside itself.
    homes = {bound: name for name, piece in own.items() for bound in piece.binds}
    homes |= {name: name for name in parts}
    wanted, waiting = set[str](), asked.split(", ")
    while waiting:
        if (name := homes.get(waiting.pop(), "")) in parts.keys() - wanted:
            wanted.add(name)
            waiting.extend(own.get(name, parts[name]).needs)
    names = [name for name in parts if name in wanted]
    pieces = [own.get(name, parts[name]) for name in names]
    used = of_script.keys() | set().union(*(piece.needs for piece in pieces))

    yours = [name for name in names if name in own]
    courses = [name for name in names if name not in own]
    whose = {"Yours": yours, "The course's": courses}
    lines = [f"# {who}: {', '.join(some)}." for who, some in whose.items() if some]
    top = "\n".join(
        [*fill(lines), "", *grouped(imports[n] for n in imports if n in used)]
    )
    texts = [head[: head.index("import ")] + top, *(one.text for one in pieces)]
    text = "\n\n\n".join([*texts, rest.strip()]) + "\n"
    return Home(
        text, yours, courses, {name: left[name] for name in names if name in left}
    )


def fill(lines: Iterable[str]) -> list[str]:
    """Break comments where they are longer than a line."""
    broken = (textwrap.wrap(line, 88, subsequent_indent="#   ") for line in lines)
    return [part for parts in broken for part in parts]


def pieces_of(course: str) -> dict[str, Piece]:
    """The pieces of the course, by name, from the text of `mha_course.built`."""
    nodes = [one for one in ast.parse(course).body if isinstance(one, DEFINES)]
    texts = {one.name: ast.get_source_segment(course, one) or "" for one in nodes}
    return {name: piece_of(text) for name, text in texts.items()}


def imports_of(statements: Iterable[ast.stmt]) -> dict[str, str]:
    """The lines that import, one for each name that they bind."""
    found = {}
    for node in statements:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for alias in node.names:
            one = copy.copy(node)
            one.names = [alias]
            bound = (alias.asname or alias.name).partition(".")[0]
            found[bound] = ast.unparse(one)
    return found


def without_the_course(
    text: str, imports: Mapping[str, str]
) -> tuple[Piece, dict[str, str]]:
    """A reader's text without what imports the course or only tries the piece out, and what it imports.

    Its other imports belong at the head of the file, unless they give a name of `imports` another meaning.
    """
    tree, more, kept = ast.parse(text), dict[str, str](), list[ast.stmt]()
    for node in tree.body:
        names = imports_of([node])
        if isinstance(node, ast.Expr) or any(map(is_ours, names.values())):
            continue
        if names and all(imports.get(n, line) == line for n, line in names.items()):
            more |= names
        else:
            kept.append(node)
    left_out = {
        number
        for node in tree.body
        if node not in kept
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = text.splitlines()
    rest = [line for i, line in enumerate(lines, start=1) if i not in left_out]
    cleaned, expected = "\n".join(rest).strip(), ast.Module(kept, [])
    try:
        is_same = ast.dump(ast.parse(cleaned)) == ast.dump(expected)
    except SyntaxError:
        is_same = False
    if not is_same:  # two statements share a line
        cleaned = ast.unparse(expected)
    return piece_of(cleaned), more


def is_ours(line: str) -> bool:
    """Whether an import is of the course's packages."""
    return line.split()[1].partition(".")[0] in OURS


def extends_itself(name: str, text: str) -> bool:
    """Whether a reader's class is made from the course's of the same name."""
    return any(
        isinstance(node, ast.ClassDef)
        and name == node.name
        and any(isinstance(base, ast.Name) and base.id == name for base in node.bases)
        for node in ast.parse(text).body
    )


def piece_of(text: str) -> Piece:
    """A text with the names that it binds and needs."""

    def read(scope: symtable.SymbolTable) -> set[str]:
        symbols = [one for one in scope.get_symbols() if one.is_referenced()]
        is_top = scope.get_type() == "module"
        names = {one.get_name() for one in symbols if is_top or one.is_global()}
        return names.union(*map(read, scope.get_children()))

    table = symtable.symtable(text, "piece", "exec")
    symbols = [
        one for one in table.get_symbols() if one.is_assigned() or one.is_imported()
    ]
    binds = {one.get_name() for one in symbols}
    return Piece(text, binds, read(table) - binds)


def grouped(imports: Iterable[str]) -> list[str]:
    """Return lines of imports in the linter's order: Python's own, a blank line, others."""
    order = sorted(imports, key=lambda line: (line.startswith("from"), line))
    own = [line for line in order if line.split()[1] in sys.stdlib_module_names]
    return [*own, "", *(line for line in order if line not in own)]
