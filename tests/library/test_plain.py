"""The code can be read: no function is too long to take in, and no module of the library or the judge."""

import ast
import re

import pytest
from imports import modules

LIBRARY = {name: path for name, path in modules().items() if not name.startswith("mha_course")}
# Besides its docstring. A block passes each of its options on by name, a line for each. `fit` stays as it is,
# because the hash of every stored experiment contains it: a change would require hours of training. The
# calculator shows its `_compute` to readers as one program.
FUNCTION = 50
LONGER = {
    ("mha_lib.transformer", "__init__"): 66,
    ("mha_course.training", "fit"): 65,
    ("mha_course.widgets.cost_calculator", "_compute"): 55,
}
# With docstrings.
MODULE = 475
MOST_ANY = 60


def lines_of(function):
    """The lines of a function without its docstring."""
    first = function.body[0]
    lines = function.end_lineno - function.lineno + 1
    return lines - (first.end_lineno - first.lineno + 1) * (ast.get_docstring(function) is not None)


@pytest.mark.parametrize("name", modules())
def test_functions_and_modules_are_short(name):
    source = modules()[name].read_text(encoding="utf-8")
    assert name not in LIBRARY or source.count("\n") <= MODULE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert lines_of(node) <= LONGER.get((name, node.name), FUNCTION), node.name


def test_few_values_in_the_library_can_be_anything():
    """`Any` switches the checks of types off; it is for files of settings and what torch does not type."""
    paths = [path for name, path in LIBRARY.items() if name.partition(".")[0] == "mha_lib"]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert 0 < len(re.findall(r"\bAny\b", text)) <= MOST_ANY


def names_at_the_top(tree):
    """The functions, classes and constants that a module defines at its top, except names like `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            parts = [part for target in targets if target for part in ast.walk(target)]
            names = [part.id for part in parts if isinstance(part, ast.Name)]
        yield from (name for name in names if not name.startswith("__"))


def shared_names(trees):
    """The names that several modules define, with these modules."""
    places = {}
    for module, tree in trees.items():
        for name in {*names_at_the_top(tree)}:
            places.setdefault(name, []).append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_one_name_means_one_thing():
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in LIBRARY.items()}
    assert shared_names(trees) == {}
    assert sum(len([*names_at_the_top(tree)]) for tree in trees.values()) > 300
    two = {"a": ast.parse("def _read(): ...\nN = 1"), "b": ast.parse("_read: int = 1\n_other, N = 2, 3")}
    assert shared_names(two) == {"_read": ["a", "b"], "N": ["a", "b"]}


# None of these says what a thing is.
WITHOUT_MEANING = {"own", "how", "at", "said", "near", "one", "here", "there"}


def assigned_names(tree):
    """All names that a module gives to arguments and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_names_in_the_library_are_words_of_the_field():
    for name, path in LIBRARY.items():
        if name.partition(".")[0] == "mha_lib":
            assert not WITHOUT_MEANING & {*assigned_names(ast.parse(path.read_text(encoding="utf-8")))}, name
    assert [*assigned_names(ast.parse("def f(at): own = [one for one in at]"))] == ["at", "own", "one"]
