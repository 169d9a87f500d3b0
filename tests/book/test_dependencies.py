"""What the packages import is named in their metadata, from the lowest version with which the tests ran."""

import importlib.metadata
import re
import sys
import tomllib
from itertools import chain

import nbformat
import pytest
from imports import PACKAGES, ROOT, imported_names, modules
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from stored_notebooks import notebooks

PIN = r"(?m)^([\w.-]+)==([\w.]+)"
PROJECT = ROOT / "mha_course" / "pyproject.toml"
# The build of the book puts these into pages; the wheel does not have them.
IN_PAGE = "mha_course.in_page"
# What a class uses is not in the environment of the book.
OF_CLASSES = {"nbgrader": "nbgrader", "otter": "otter-grader"}


def pins(name):
    """The pinned version of each package in a requirements file."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return {canonicalize_name(package): Version(version) for package, version in re.findall(PIN, text)}


def requirements(extra=None):
    """What the metadata of the course's package names: always, or for an extra."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    named = map(Requirement, texts)
    return {canonicalize_name(requirement.name): requirement.specifier for requirement in named}


def packages_of(sources):
    """The packages, as on PyPI, from which sources import something that is neither Python's nor ours."""
    known = {top: [name] for top, name in OF_CLASSES.items()} | importlib.metadata.packages_distributions()
    tops = {module.partition(".")[0] for source in sources for module, _ in imported_names(source)}
    foreign = tops - sys.stdlib_module_names - set(PACKAGES) - {""}
    return {canonicalize_name(known[top][0]) for top in foreign}


def test_the_course_names_what_it_imports():
    paths = [
        path for name, path in modules().items() if name.startswith("mha_course") and IN_PAGE not in name
    ]
    imported = packages_of(path.read_text(encoding="utf-8") for path in paths)
    assert imported >= {"torch", "traitlets", "ipython", "anywidget"}
    extras = requirements("grading").keys() | requirements("class").keys()
    assert imported <= requirements().keys() | extras
    pinned = pins("requirements.txt") | pins("requirements-class.txt")
    assert requirements("grading") == {name: f">={pinned[name]}" for name in ("cloudpickle", "psutil")}
    names = ["nbformat", *OF_CLASSES.values()]
    assert requirements("class") == {name: f">={pinned[name]}" for name in names}


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_chapter_imports_what_the_course_names(path):
    """On Colab the set-up installs no dependencies, so what no wheel names may be missing there unnoticed."""
    cells = nbformat.read(path, as_version=4).cells
    imported = packages_of(cell.source for cell in cells if cell.cell_type == "code")
    named = requirements().keys() | requirements("published-models").keys()
    assert imported <= named
    assert imported - {"jaxtyping"} <= pins("requirements-colab.txt").keys()


def test_the_lowest_version_is_the_lowest_that_was_tried():
    """Colab's versions and the book's are tried; a lower bound that nobody tried is a guess."""
    colab, book = pins("requirements-colab.txt"), pins("requirements.txt") | pins("requirements-gpu.txt")
    for name, specifier in chain(requirements().items(), requirements("published-models").items()):
        if name not in (
            "mha-lib",
            "attention-check",
            "torch",
            "jaxtyping",
        ):  # the library's: `make oldest` tries them
            assert str(specifier) == f">={min(colab[name], book[name])}", name
