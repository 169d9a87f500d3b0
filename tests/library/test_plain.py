"""The library and the judge can be read: no function and no module is longer than one takes in."""

import ast

import pytest
from imports import modules

LIBRARY = {name: path for name, path in modules().items() if not name.startswith("mha_course")}
# Besides its docstring. The constructors of layers check each of their options by name, a line for each.
FUNCTION, CONSTRUCTOR = 50, 75
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


def private_names(tree):
    """The private functions, classes and constants that a module defines at its top."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in names if name.startswith("_") and not name.startswith("__"))


def shared_names(trees):
    """The private names that several modules define, with these modules."""
    places = {}
    for module, tree in trees.items():
        for name in {*private_names(tree)}:
            places.setdefault(name, []).append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_one_name_means_one_thing():
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in LIBRARY.items()}
    assert shared_names(trees) == {}
    assert sum(len([*private_names(tree)]) for tree in trees.values()) > 150
    two = {"a": ast.parse("def _read(): ..."), "b": ast.parse("_read: int = 1\n_other = 2")}
    assert shared_names(two) == {"_read": ["a", "b"]}
