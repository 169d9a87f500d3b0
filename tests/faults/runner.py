"""Plant the faults, run the tests that must notice, and report which did: `make faults` prints the table.

A kind of fault knows its files and how to copy what its tests need; the rest of this file knows only faults
and verdicts. To add a kind, append it to KINDS.
"""

import argparse
import functools
import itertools
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "faults")]

import library_faults  # noqa: E402
import planting  # noqa: E402
import widget_faults  # noqa: E402

SOUND = "no fault"  # the copies without a fault, on which all tests must pass
PATIENCE = 8_000  # milliseconds that a test in a browser waits for something that a fault may prevent


class Verdict(NamedTuple):
    """The outcome of one fault."""

    caught_by: str | None  # the test that failed first
    passed: bool  # all tests passed
    log: str  # what pytest printed, or why the fault could not be planted


class Library:
    """Faults of `mha_lib`, and of what `mha_course` trains with, each in a copy of its package."""

    root, tests = TESTS.parent, "library"
    faults = tuple(library_faults.FAULTS)

    def path_of(self, fault):
        """Where the module of a fault is, from the root of the repository."""
        places = [f"mha_lib/{fault.module}.py", f"mha_course/{fault.module}.py"]
        places += [f"mha_course/{fault.module}/__init__.py", f"mha_course/data/{fault.module}.py"]
        return next((Path(place) for place in places if (self.root / place).is_file()), Path(places[0]))

    def copy(self, fault, folder):
        """Copy the package of a fault into a folder; return pytest's settings, and where the tests are."""
        (folder / "pytest.ini").write_text("[pytest]\nmarkers = no_shape_checks\n    slow\n")
        # No fault is planted in large folders.
        large = ("widgets", "exercises", "stored", "pictures", "questions")
        for package in {"mha_lib", self.path_of(fault).parts[0] if fault else "mha_lib"}:
            leave = shutil.ignore_patterns("__pycache__", *large)
            shutil.copytree(self.root / package, folder / package, ignore=leave)
            for name in large:
                if (self.root / package / name).is_dir():
                    (folder / package / name).symlink_to(self.root / package / name)
        return ["-c", "pytest.ini", "--rootdir", str(TESTS), "--noconftest"], TESTS


class Widgets:
    """Faults of the widgets, in Python, JavaScript or styles; their tests look at a page in a browser."""

    root, tests = TESTS.parent, "widgets"
    # The tests expect the code under test beside them.
    copied = ("mha_lib", "attention_check", "mha_course", "tests", "tools", "_ext", "_static")
    faults = tuple(widget_faults.FAULTS)

    def path_of(self, fault):
        """Where the file of a fault is, from the root of the repository."""
        widgets = self.root / "mha_course" / "widgets"
        name = Path(fault.file)
        places = [widgets / name.stem / "__init__.py"] if name.suffix == ".py" else widgets.glob(f"*/{name}")
        found = next(filter(Path.is_file, places), widgets / name)
        return found.relative_to(self.root)

    def copy(self, fault, folder):
        """Copy what a widget consists of into a folder; return pytest's settings, and where the tests are."""
        leave = shutil.ignore_patterns("__pycache__", "faults")
        for path in self.root.iterdir():
            if path.name in self.copied:
                shutil.copytree(path, folder / path.name, ignore=leave)
            elif not path.name.startswith((".", "_build", "node_modules")):
                (folder / path.name).symlink_to(path)
        if fault is None:
            (folder / "sound").touch()  # here no test waits in vain
        return ["-c", str(folder / "pyproject.toml"), "--rootdir", str(folder)], folder / "tests"


def plant(kind, fault, folder, tested=()):
    """Make a copy with a fault; return what pytest is given to run the test that it names.

    Without a fault, these are the tests of the faults in `tested`.
    """
    text = spoilt(kind, fault) if fault else None
    folder.mkdir()
    where, tests = kind.copy(fault, folder)
    if fault:
        (folder / kind.path_of(fault)).write_text(text, encoding="utf-8")
    names = {test.caught_by for test in ([fault] if fault else tested)}
    return [*where, *(f"{tests}/{kind.tests}/{name.replace('::', '.py::', 1)}" for name in sorted(names))]


def spoilt(kind, fault):
    """The source of a file with the fault in it; an error that names the fault if its place is not found."""
    path = kind.root / kind.path_of(fault)
    try:
        return planting.replaced(path.read_text("utf-8"), fault.function, fault.old, fault.new)
    except (OSError, planting.NotFoundError) as error:
        raise planting.NotFoundError(f"{fault.what}: no place for it in {path.name}: {error}") from error


def run(work, jobs):
    """Run [(folder, pytest's arguments)] and yield each folder when it is done: log and status lie in it."""
    # Nothing but pytest itself: no plugins, no options from outside.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"SHAPE_CHECKS": "none", "PATIENCE": str(PATIENCE)}
    forks = subprocess.Popen(
        [sys.executable, str(TESTS / "faults" / "forks.py"), str(jobs), str(TESTS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    with forks:
        json.dump(work, forks.stdin)
        forks.stdin.close()
        for line in forks.stdout:
            yield line.rstrip("\n")
    if forks.returncode:
        raise RuntimeError(f"the process that runs the tests ended with {forks.returncode}")


KINDS = (Library(), Widgets())
FAULTS = [fault for kind in KINDS for fault in kind.faults]


@functools.cache
def listed_for_each_push():
    """The names, or their beginnings, of the faults that stand for their classes, by class."""
    classes = {}
    listing = Path(__file__).with_name("for_each_push.txt").read_text("utf-8").partition("\n\n")[2]
    for line in listing.splitlines():
        if line.startswith(" "):
            classes[list(classes)[-1]].append(line.strip())
        else:
            classes[line] = []
    return classes


def is_planted_for_each_push(fault):
    """Whether a fault stands for its class; a fault of a widget is listed by the beginning of its name."""
    names = [name for names in listed_for_each_push().values() for name in names]
    return any(fault.what == name or ("`" in name and fault.what.startswith(name)) for name in names)


def verdicts(root, jobs=1, wanted=lambda fault: True):
    """Yield (what is wrong, Verdict) for each kind's sound copy and each wanted fault, as they finish."""
    for number, kind in enumerate(KINDS):
        folders, work = {}, []
        name = type(kind).__name__.lower()
        faults = [*filter(wanted, kind.faults)]
        if not faults:
            continue
        for count, fault in enumerate([None, *faults]):
            what = f"{SOUND} ({name})" if fault is None else fault.what
            folder = root / f"{number}-{count}"
            try:
                work.append((str(folder), plant(kind, fault, folder, tested=faults)))
                folders[str(folder)] = what
            except planting.NotFoundError as error:
                yield what, Verdict(None, False, str(error))
        for folder in run(work, jobs):
            log = Path(folder, "log").read_text()
            failed = re.search(r"^(?:FAILED|ERROR) .*?(test_\w+\.py::.*?)(?: - |$)", log, re.MULTILINE)
            status = int(Path(folder, "status").read_text())
            caught_by = failed[1] if status == 1 and failed else None
            yield folders.pop(folder), Verdict(caught_by, status == 0, log)
            shutil.rmtree(folder)


# Tests for faults in pages, stored states, figures and sentences: each plants its own faults, and
# passes if they are detected.
PAGES = (
    "test_notebooks.py::test_planted_fault_is_found",
    "test_exercises.py::test_planted_fault_is_found",
    "test_stored_outputs.py::test_a_changed_figure_is_found",
    "test_stored_outputs.py::test_a_changed_figure_is_found_after_training",
    "test_stored_outputs.py::test_a_changed_state_is_found",
    "test_claims.py::test_planted_fault_is_found",
    "test_claims.py::test_a_source_must_hold",
)


def page_verdicts(root):
    """Yield (what is wrong, Verdict) for the faults that the tests of the pages plant."""
    result = root / "pages.xml"
    tests = [str(TESTS / "book" / test) for test in PAGES]
    command = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(result), *tests]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    for case in ElementTree.parse(result).iter("testcase"):
        name, _, fault = case.get("name").partition("[")
        found = len(case) == 0  # a failed case has child elements
        file = case.get("classname").rpartition(".")[2]
        what = f"{file.removeprefix('test_')}: {fault.removesuffix(']')}"
        yield what, Verdict(f"{file}.py::{name}" if found else None, False, done.stdout)


class Running:
    """The verdicts of a run in the background, by what is wrong."""

    def __init__(self, root, jobs=1, wanted=lambda fault: True):
        self.known, self.coming = {}, queue.Queue()
        threading.Thread(target=self._collect, args=(root, jobs, wanted), daemon=True).start()

    def _collect(self, *arguments):
        try:
            for pair in verdicts(*arguments):
                self.coming.put(pair)
        except BaseException as error:  # `of` raises it again
            self.coming.put(error)
        self.coming.put(RuntimeError("the run ended without a verdict"))

    def of(self, what):
        """Wait for one verdict."""
        while what not in self.known:
            pair = self.coming.get()
            if isinstance(pair, BaseException):
                raise pair
            self.known |= [pair]
        return self.known[what]


def main():
    """Print the table, row by row; the exit status is 1 if a fault was not caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="how many run at the same time")
    parser.add_argument(
        "--only", default="", help="a regular expression: the modules or names of the faults to plant"
    )
    options = parser.parse_args()
    only = re.compile(options.only)
    is_wanted = lambda fault: only.search(f"{getattr(fault, 'module', 'widgets')}: {fault.what}")  # noqa: E731
    missed, count = [], 0
    print("| planted fault | caught by |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = verdicts(Path(folder), options.jobs, is_wanted)
        if not options.only:
            rows = itertools.chain(rows, page_verdicts(Path(folder)))
        for what, verdict in rows:
            sound = what.startswith(SOUND)
            count += not sound
            good = verdict.passed if sound else bool(verdict.caught_by)
            result = "all tests pass" if sound else f"`{verdict.caught_by}`"
            print(f"| {what} | {result if good else '**NOT CAUGHT**'} |", flush=True)
            if not good:
                missed.append(f"{what}\n{verdict.log[-2000:]}")
    print("\n" + "\n\n".join(missed or [f"All {count} faults were caught."]))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
