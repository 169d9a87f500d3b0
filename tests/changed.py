"""Which widgets a change may have broken: what it touches is theirs, or is imported by what is theirs.

A change is what differs from the main branch, committed or not. Where nothing differs, as in a fresh clone of
the main branch, nobody can say what changed: each commit then has its share of the widgets, and `make weekly`
has all.
"""

import os
import re
import subprocess
import zlib
from functools import cache

from imports import ROOT, WIDGETS, browser_files, modules, python_graph, reachable, script_graph

# Files on which every widget and every test of a widget depends.
SHARED = ("_static/widget_loader.js", "tests/conftest.py", "requirements.txt")
SHARES = 4  # of which each commit has one, where nobody can say what changed


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


@cache
def changed_files():
    """The files that differ from the main branch, or from the commit in CHANGED_SINCE."""
    for main in (os.environ.get("CHANGED_SINCE"), "origin/main", "main"):
        if main and (base := git("merge-base", "HEAD", main)):
            return {*git("diff", "--name-only", *base), *git("ls-files", "--others", "--exclude-standard")}
    return set()


@cache
def needed_by(widget):
    """The files on which a widget depends, with its tests; `widget` is the name of its module."""
    python = reachable(python_graph(), f"mha_course.widgets.{widget}")
    source = (WIDGETS / widget / "__init__.py").read_text(encoding="utf-8")
    named = re.findall(r'_module: ClassVar\[str\] = "(\w+\.js)"', source)
    scripts = {script for first in named for script in reachable(script_graph(), first)}
    paths = [modules()[name] for name in python]
    names = scripts | {script.replace(".js", ".css") for script in scripts}
    paths += [browser_files()[name] for name in names & browser_files().keys()]
    tests = ROOT / "tests" / "widgets"
    paths += [path for path in tests.glob("*.py") if not path.name.startswith("test_")]
    paths += [tests / f"test_{widget}.py", tests / "test_every_widget.py"]
    return {path.relative_to(ROOT).as_posix() for path in paths} | {*SHARED}


def widget_of(file, name):
    """The widget that a test is about, by its file, or by the class that it is given; else None."""
    module = re.sub(r"(?<!^)(?=[A-Z])", "_", name.partition(" ")[0]).lower()
    for said in (file.removeprefix("test_"), module):
        if said and (WIDGETS / said / "__init__.py").is_file():
            return said
    return None


@cache
def commit():
    """The number of the commit that is tested."""
    return int("".join(git("rev-parse", "HEAD")) or "0", 16)


def has_its_turn(name):
    """Whether something with this name is in this commit's share; other commits have other shares."""
    return (commit() + zlib.crc32(name.encode())) % SHARES == 0


def may_be_broken(file, name=""):
    """Whether a change may have broken what a test of the widgets looks at."""
    widget = widget_of(file, name)
    if widget is None:
        return True
    if not changed_files():
        return has_its_turn(widget)
    return bool(needed_by(widget) & changed_files())
