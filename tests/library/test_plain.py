"""The library and the judge can be read: no function and no module is longer than one takes in."""

import ast

import pytest
from imports import modules

LIBRARY = {name: path for name, path in modules().items() if not name.startswith("mha_course")}
# Besides its docstring. The constructors of layers check each of their options by name, a line for each.
FUNCTION, CONSTRUCTOR = 50, 70
# With docstrings.
MODULE = 475


def lines_of(function):
    """The lines of a function without its docstring."""
    first = function.body[0]
    lines = function.end_lineno - function.lineno + 1
    return lines - (first.end_lineno - first.lineno + 1) * (ast.get_docstring(function) is not None)


@pytest.mark.parametrize("name", LIBRARY)
def test_functions_and_modules_are_short(name):
    source = LIBRARY[name].read_text(encoding="utf-8")
    assert source.count("\n") <= MODULE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert lines_of(node) <= (CONSTRUCTOR if node.name == "__init__" else FUNCTION), node.name
