"""Which statements of the cells above a text are needed, so that code can be run in the page by itself."""

from __future__ import annotations

import ast
import re
import symtable

DEFINES = ast.FunctionDef | ast.ClassDef
# Calls that change what other statements do.
SETS = {"torch.manual_seed", "torch.set_printoptions", "set_seed"}


def names_of(statement):
    """Return the names that a statement reads, those that it binds, and those whose values it may change."""
    table = symtable.symtable(ast.unparse(statement), "cell", "exec")

    def read(scope):
        own = [one for one in scope.get_symbols() if one.is_referenced()]
        names = {one.get_name() for one in own if scope is table or one.is_global()}
        return names.union(*map(read, scope.get_children()))

    bound = [one for one in table.get_symbols() if one.is_assigned() or one.is_imported()]
    targets = []
    for one in [] if isinstance(statement, DEFINES) else ast.walk(statement):
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            targets.append(ast.unparse(one.value.func))
        elif isinstance(one, ast.Assign):
            targets += map(ast.unparse, one.targets)
        elif isinstance(one, ast.AugAssign):
            targets.append(ast.unparse(one.target) + ".")
    changed = {match[1] for one in targets if (match := re.match(r"(\w+)[.\[]", one))}
    changed -= {"torch"}
    if isinstance(statement, ast.Expr) and SETS & {*targets}:
        changed.add("settings")
    return read(table), {one.get_name() for one in bound}, changed


def statements_of(cell):
    """Return the statements of a cell: [text, names that it reads, binds, and whose values it may change]."""
    found = []
    for statement in ast.parse(cell).body:
        if isinstance(statement, DEFINES):
            statement.decorator_list = []
        parts = [statement]
        if isinstance(statement, ast.Import):
            parts = [ast.Import([one]) for one in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            parts = [ast.ImportFrom(statement.module, [one], statement.level) for one in statement.names]
        found += [[ast.unparse(part), *map(sorted, names_of(part))] for part in parts]
    return found


def needed(statements, text, known=()):
    """Return the lines that a text needs of the statements above it.

    These are the statements that bind or change what it reads. What is `known` is there already.
    """
    wanted, kept = {"settings"}, []
    for statement in ast.parse(text).body[::-1]:
        reads, binds, _ = names_of(statement)
        wanted = wanted - binds | reads
    for line, reads, binds, changes in statements[::-1]:
        if wanted.intersection([*binds, *changes]) and not {*binds} & {*known}:
            kept.append(line)
            wanted = wanted - {*binds} - ({*changes} & {"settings"}) | {*reads}
    return "\n".join(kept[::-1])
