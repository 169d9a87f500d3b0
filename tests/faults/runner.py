"""Plant the faults, run the tests that must notice, and report which did: `make faults` prints the table.

A kind of fault knows how to plant its faults in a copy (`plant`) and how to run tests on such copies (`run`);
the rest of this file knows only verdicts. To add a kind, append it to KINDS.
"""

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "faults")]

import library_faults  # noqa: E402
import planting  # noqa: E402

SOUND = "no fault"  # the copy without a fault, on which all tests must pass


class Verdict(NamedTuple):
    """The outcome of one fault."""

    caught_by: str | None  # the test that failed first
    passed: bool  # all tests passed
    log: str  # what pytest printed, or why the fault could not be planted


class Library:
    """Faults of `mha_lib`, each in a copy of the package."""

    package = TESTS.parent / "mha_lib"
    faults = tuple(library_faults.FAULTS)

    def plant(self, fault, folder):
        """Copy the package into a folder, plant the fault (None: none), and return the tests to run."""
        folder.mkdir()
        (folder / "pytest.ini").write_text("[pytest]\nmarkers = no_shape_checks\n    slow\n")
        leave = shutil.ignore_patterns("__pycache__", "widgets")
        shutil.copytree(self.package, folder / "mha_lib", ignore=leave)
        (folder / "mha_lib" / "widgets").symlink_to(self.package / "widgets")
        if fault is not None:
            path = folder / "mha_lib" / f"{fault.module}.py"
            path.write_text(spoilt(self.package / path.name, fault))
        tests = {test.caught_by for test in ([fault] if fault else self.faults)}
        return [str(TESTS / "library" / test.replace("::", ".py::", 1)) for test in sorted(tests)]

    def run(self, work, jobs):
        """Run [(folder, tests)] and yield each folder when it is done; the files log and status lie in it."""
        # Nothing but pytest itself: no plugins, no options from outside.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
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


KINDS = (Library(),)
FAULTS = [fault for kind in KINDS for fault in kind.faults]


def spoilt(path, fault):
    """The source of a file with the fault in it; an error that names the fault if its place is not found."""
    try:
        return planting.replaced(path.read_text(), fault.function, fault.old, fault.new)
    except (OSError, planting.NotFoundError) as error:
        raise planting.NotFoundError(f"{fault.what}: no place for it in {path.name}: {error}") from error


def verdicts(root, jobs=1):
    """Yield (what is wrong, Verdict) for each kind's sound copy and each fault, as they finish."""
    for number, kind in enumerate(KINDS):
        folders, work = {}, []
        for count, fault in enumerate([None, *kind.faults]):
            what = SOUND if fault is None else fault.what
            folder = root / f"{number}-{count}"
            try:
                work.append((str(folder), kind.plant(fault, folder)))
                folders[str(folder)] = what
            except planting.NotFoundError as error:
                yield what, Verdict(None, False, str(error))
        for folder in kind.run(work, jobs):
            log = Path(folder, "log").read_text()
            failed = re.search(r"^FAILED .*?(test_\w+\.py::.*?)(?: - |$)", log, re.MULTILINE)
            status = int(Path(folder, "status").read_text())
            caught_by = failed[1] if status == 1 and failed else None
            yield folders.pop(folder), Verdict(caught_by, status == 0, log)
            shutil.rmtree(folder)


class Running:
    """The verdicts of a run in the background, by what is wrong."""

    def __init__(self, root, jobs=1):
        self.known, self.coming = {}, queue.Queue()
        threading.Thread(target=self._collect, args=(root, jobs), daemon=True).start()

    def _collect(self, root, jobs):
        try:
            for pair in verdicts(root, jobs):
                self.coming.put(pair)
        except BaseException as error:  # reported by whoever waits
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
    options = parser.parse_args()
    missed = []
    print("| planted fault | caught by |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for what, verdict in verdicts(Path(folder), options.jobs):
            good = verdict.passed if what == SOUND else bool(verdict.caught_by)
            result = "all tests pass" if what == SOUND else f"`{verdict.caught_by}`"
            print(f"| {what} | {result if good else '**NOT CAUGHT**'} |", flush=True)
            if not good:
                missed.append(f"{what}\n{verdict.log[-2000:]}")
    print("\n" + "\n\n".join(missed or [f"All {len(FAULTS)} faults were caught."]))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
