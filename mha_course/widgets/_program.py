"""The settings of a widget as a program that a reader can run to compute its numbers in Python."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_COLUMNS = 88
"""The longest line that the composer writes itself; comments and strings in the source may be longer."""


def compose_program(compute: Callable[..., Any], given: Mapping[str, str]) -> str:
    """Turn the source of `compute` and everything it uses into a program that leaves results in variables.

    The program first imports what it needs from the module of `compute` and copies private definitions. Then
    it sets the parameters, each on its own line. A value that only the page has is written as the name of its
    trait in angle brackets, which the browser replaces: `num_heads = ⟨num_heads⟩`. The body of the function
    follows. Each entry of the returned dict becomes a variable, and the first is printed.

    Args:
        compute: a function whose last statement returns a dict literal.
        given: expressions for the parameters that are not traits of the widget, by name.
    """
    module = _Module(compute.__module__)
    lines = textwrap.dedent(inspect.getsource(compute)).splitlines()
    function = _only_function("\n".join(lines))
    body, returned = _split_body(function, lines)
    parameters = [argument.arg for argument in function.args.args]
    expressions = {name: given.get(name, f"⟨{name}⟩") for name in parameters}
    used = [*_names(function.body)]
    for text in given.values():
        used += _names([ast.parse(re.sub(r"⟨(\w+)⟩", "0", text))])
    copied = module.needed(used)
    parts = [
        module.imports(copied.names),
        "",
        *copied.constants,
        *(f"\n\n{text}\n\n" for text in copied.functions),
        "",
        *(f"{name} = {expression}" for name, expression in expressions.items()),
        "",
        body,
        *returned,
    ]
    text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(parts).strip())
    return re.sub(r"  # (noqa|type: ignore).*", "", text) + "\n"


class _Needed:
    """The imported names, constants and functions of a module that a program needs, each before its user."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.constants: list[str] = []
        self.functions: list[str] = []


class _Module:
    """The names that a module imports and defines."""

    def __init__(self, name: str) -> None:
        self.name = name
        source = inspect.getsource(sys.modules[name])
        self.lines = source.splitlines()
        self.imported: dict[str, str] = {}
        self.defined: dict[str, ast.stmt] = {}
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.imported[bound] = _import_line(node, alias)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for name in _names([node], ast.Store):
                    self.defined[name] = node

    def needed(self, names: Iterable[str]) -> _Needed:
        """Everything that these names need, directly or indirectly."""
        found, seen = _Needed(), set()

        def add(name: str) -> None:
            if name in seen:
                return
            seen.add(name)
            if name in self.imported:
                found.names.add(name)
            elif (node := self.defined.get(name)) is None:
                return
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for other in _names([node]):
                    add(other)
                text = "\n".join(self.lines[node.lineno - 1 : node.end_lineno])
                if text not in found.constants:
                    found.constants.append(text)
            elif not name.startswith("_"):
                found.names.add(name)
            else:
                for other in _names([node]):
                    add(other)
                first = min([node.lineno, *(d.lineno for d in _decorators(node))])
                found.functions.append(
                    "\n".join(self.lines[first - 1 : node.end_lineno])
                )

        for name in names:
            add(name)
        return found

    def imports(self, names: Iterable[str]) -> str:
        """The lines that import these names: the standard library first, then torch, and then the course."""
        grouped: dict[str, list[str]] = {}
        plain: list[str] = []
        for name in sorted(names, key=str.lower):
            line = self.imported.get(name, f"from {self.name} import {name}")
            source, _, what = line.partition(" import ")
            if what:
                grouped.setdefault(source, []).append(what)
            else:
                plain.append(line)
        lines = [_shortened(source, what) for source, what in grouped.items()]
        groups: list[list[str]] = [[], [], []]
        for line in [*sorted(plain), *sorted(lines)]:
            top = line.split()[1].partition(".")[0]
            own = 2 if top.startswith("mha_") else 1
            groups[0 if top in sys.stdlib_module_names else own].append(line)
        return "\n\n".join("\n".join(group) for group in groups if group)


def _shortened(source: str, names: list[str]) -> str:
    """An import, on several lines if one line would be too long for the page."""
    line = f"{source} import {', '.join(names)}"
    if len(line) <= MAX_COLUMNS:
        return line
    return f"{source} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _import_line(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    what = alias.name + (f" as {alias.asname}" if alias.asname else "")
    return (
        f"from {node.module} import {what}"
        if isinstance(node, ast.ImportFrom)
        else f"import {what}"
    )


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


def _names(nodes: Iterable[ast.AST], context: type = ast.Load) -> list[str]:
    """The names that some nodes use or, with `ast.Store`, bind."""
    return [
        node.id
        for top in nodes
        for node in ast.walk(top)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    ]


def _only_function(source: str) -> ast.FunctionDef:
    [function] = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return function


def _split_body(function: ast.FunctionDef, lines: list[str]) -> tuple[str, list[str]]:
    """The body of a function up to its return, and the lines that bind and print its results."""
    statements = function.body
    if isinstance(statements[0], ast.Expr):  # a docstring
        statements = statements[1:]
    last = statements[-1]
    assert isinstance(last, ast.Return)
    assert isinstance(last.value, ast.Dict)
    start = statements[0].lineno - 1
    while lines[start - 1].lstrip().startswith("#"):
        start -= 1
    body = textwrap.dedent("\n".join(lines[start : last.lineno - 1]))
    assigned: list[str] = []
    names = []
    for key, value in zip(last.value.keys, last.value.values, strict=True):
        assert isinstance(key, ast.Constant)
        name = str(key.value)
        names.append(name)
        if isinstance(value, ast.Name) and value.id == name:
            continue
        above = lines[key.lineno - 2].strip()
        assigned += [above] if above.startswith("#") else []
        text = ast.get_source_segment("\n".join(lines), value) or ""
        if value.end_lineno != value.lineno:
            text = ast.unparse(value)
        assigned.append(f"{name} = {text}")
    return body, [*assigned, f"print({names[0]})"]
