"""What our modules import from each other: Python anywhere in a module, JavaScript by its import lines."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("mha_lib", "attention_check", "mha_course")
WIDGETS = ROOT / "mha_course" / "widgets"
IMPORT = re.compile(r"^(?:import|export)\b[^;'\"]*?from\s*[\"'](?:\.|\.\./\w+)/([\w.]+)[\"']", re.MULTILINE)


@cache
def modules():
    """The file of each module of our packages, by its name; the hook that builds wheels is in none."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {name_of(path): path for path in paths if path.stem != "_hatch_build"}


def name_of(path):
    """A module's name: mha_lib.scores, or mha_course.widgets for an __init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(source, package=""):
    """Yield (module, name or None) for each import, also in a function or below `if TYPE_CHECKING`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield from ((module, alias.name) for alias in node.names)


@cache
def python_graph():
    """The modules of ours that each module names, at its top or in a function."""
    graph = {}
    for name, path in modules().items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = set()
        for module, part in imported_names(path.read_text(encoding="utf-8"), package):
            submodule = f"{module}.{part}"
            found.add(submodule if submodule in modules() else module)
        graph[name] = (found & modules().keys()) - {name}
    return graph


@cache
def tools_graph():
    """The tools that each tool imports, by their names: each runs as a script, beside the others."""
    paths = sorted((ROOT / "tools").glob("*.py"))
    names = {path.stem for path in paths}
    return {
        path.stem: {module for module, _ in imported_names(path.read_text(encoding="utf-8"))} & names
        for path in paths
    }


@cache
def browser_files():
    """The scripts and styles of the widgets, by their file names."""
    return {path.name: path for kind in ("js", "css") for path in sorted(WIDGETS.glob(f"*/*.{kind}"))}


@cache
def script_graph():
    """The scripts that each script of the widgets imports, by their file names."""
    scripts = {name: path for name, path in browser_files().items() if path.suffix == ".js"}
    return {name: set(IMPORT.findall(path.read_text(encoding="utf-8"))) for name, path in scripts.items()}


def reachable(graph, start):
    """What a module needs, with itself."""
    found, waiting = set(), [start]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def circles(graph):
    """The groups of modules that need each other, each group sorted."""
    needed = {name: reachable(graph, name) for name in graph}
    groups = {tuple(sorted(other for other in needed[name] if name in needed[other])) for name in graph}
    return sorted(group for group in groups if len(group) > 1)
