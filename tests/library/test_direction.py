"""Imports have one direction, chapters → mha_course → attention_check → mha_lib, and make no circle."""

import json
import re

import pytest
from imports import PACKAGES, ROOT, circles, imported_names, modules, python_graph, script_graph, tools_graph


def private(names):
    """Of (module, name) pairs, those that say a private name of our packages."""
    said = [f"{module}.{name}" if name else module for module, name in names]
    ours = [name for name in said if name.partition(".")[0] in PACKAGES]
    return [name for name in ours if re.search(r"\._(?!_)", name)]


def against_the_direction(graph):
    """The imports of a package that comes later: the library needs none, and the judge only the library."""
    order = ("mha_lib", "attention_check", "mha_course")
    place = {name: order.index(name.partition(".")[0]) for name in graph}
    return [
        (name, other)
        for name, needed in sorted(graph.items())
        for other in sorted(needed)
        if place[other] > place[name]
    ]


def test_each_package_imports_only_those_before_it():
    assert against_the_direction(python_graph()) == []
    for package, after in (("mha_lib", "attention_check|mha_course"), ("attention_check", "mha_course")):
        paths = [path for name, path in modules().items() if name.partition(".")[0] == package]
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
        assert len(paths) > 10
        assert not re.search(rf"import_module\(\W*({after})", text)


def test_an_import_against_the_direction_is_found():
    graph = {"mha_lib": {"attention_check"}, "attention_check": {"mha_lib", "mha_course"}}
    graph |= {"mha_course": {"mha_lib", "attention_check"}}
    assert against_the_direction(graph) == [("attention_check", "mha_course"), ("mha_lib", "attention_check")]


def floor_of(name):
    """Where a module stands: in the core (what attention is), among the models, or at the entrance."""
    if name == "mha_lib":
        return "entrance"
    return "models" if name.startswith("mha_lib.models") else "core"


def climbs(graph):
    """The imports from the core of what is built from it, directly or through the entrance of the package."""
    return [
        (name, other)
        for name, needed in sorted(graph.items())
        for other in sorted(needed)
        if floor_of(name) == "core" and floor_of(other) != "core"
    ]


def test_the_core_needs_no_model():
    library = {name: needed for name, needed in python_graph().items() if name.startswith("mha_lib")}
    assert climbs(library) == []
    assert len([name for name in library if floor_of(name) == "models"]) > 5
    graph = {"mha_lib.rotary": {"mha_lib.models.seq2seq", "mha_lib.scores"}, "mha_lib.cache": {"mha_lib"}}
    assert climbs(graph) == [("mha_lib.cache", "mha_lib"), ("mha_lib.rotary", "mha_lib.models.seq2seq")]


def test_no_module_imports_in_a_circle():
    assert circles(python_graph()) == []
    assert circles(tools_graph()) == []
    assert sum(map(len, tools_graph().values())) > 10


def test_no_script_imports_in_a_circle():
    assert circles(script_graph()) == []
    assert sum(map(len, script_graph().values())) > 100


PAGES = [ROOT / "index.ipynb", *sorted((ROOT / "chapters").glob("*.ipynb"))]
SCRIPTS = sorted((ROOT / "experiments").glob("*.py"))


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=lambda path: path.name)
def test_chapters_and_experiments_import_public_names(path):
    if path.suffix == ".py":
        sources = [path.read_text(encoding="utf-8")]
    else:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [name for source in sources for name in private(imported_names(source))] == []


@pytest.mark.parametrize(("source", "found"), [
    ("from mha_lib import attention", []),
    ("import mha_lib._fast", ["mha_lib._fast"]),
    ("def f():\n    from mha_lib._checks import check", ["mha_lib._checks.check"]),
    ("from mha_course.plots import _hidden", ["mha_course.plots._hidden"]),
    ("from mha_lib import __version__", []),
    ("from torch import _C", []),
])  # fmt: skip
def test_a_private_name_is_found(source, found):
    assert private(imported_names(source)) == found


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": set()}
    assert circles(graph) == [("a", "b", "c")]
    assert list(imported_names("from . import b\nfrom ..c import d", "p.q")) == [("p.q", "b"), ("p.c", "d")]
    assert list(imported_names("if TYPE_CHECKING:\n    import a\ndef f():\n    import b")) == [
        ("a", None),
        ("b", None),
    ]
