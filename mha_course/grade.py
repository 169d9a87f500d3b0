"""Grade the notebooks of a class: what is right, what is wrong and why, and what is missing.

    python -m mha_course.grade [--json] [--assignment NOTEBOOK] [--results FOLDER] [--jobs 2] SUBMISSION ...

A submission is a notebook, a file that *Progress* exported, or a folder with either and the files that it
needs. A folder of submissions stands for all of them. Its exercises are its calls of checkers, such as
`check_head(MyHead)`, or those of the notebook that was handed out. Each submission runs in a process of its
own, and the judge stays outside: it sends arguments, gets numbers back, and compares them here. An exercise
is judged as soon as the cell with its check has run and, if it is not right by then, after the last cell.
Cells after one that fails still run. For code elsewhere, submit a folder with an `adapters.py`, whose
statements run as cells do:

    from mha_course.exercises import check_attention, check_multi_head
    from my_package.layers import Attention, attend
    check_attention(attend)
    check_multi_head(Attention, weights=False)

With --json, each line is the results.json of a submission as Gradescope reads and Otter writes it (nbgrader
has no such file: its grades are in a database). With --results, an interrupted run continues where it
stopped. The exit status is 0 if all submissions were graded, 1 if somebody must look at one of them, and 2
for wrong arguments. It runs on Linux and macOS; on Windows, use WSL.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import os
import re
import secrets
import signal
import stat
import sys
import threading
import time
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent import futures
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mha_lib
from mha_course import _judged, built, exercises
from mha_course._borrowed import Words, parsed
from mha_course._judge import CHECKERS, TOO_LONG, EndedError, RaisedError, Submission
from mha_course._messages import message
from mha_course._walls import can_isolate, check_container
from mha_course.exercises.kept import DRAFTS
from mha_lib._checks import check_type, refusal

_LARGEST, _MOST = 50_000_000, 1000  # bytes and files, or cells, of a submission
_DEEPEST = 20  # folders in one another
# In memory, a part of a notebook takes up to a hundred bytes, and a character of code up to a thousand.
_PARTS, _CODE = 5_000_000, 500_000
_WORDS = 2_000  # of an error
_CUT, _SAID = 500, 100  # characters of a line, and problems of a submission
# How the cell begins that installs the course on Colab: it is not the student's, and is not run.
_SET_UP = "# On Colab this installs the course's three packages"
# What a text that was written in a page finds there.
_IN_PAGE = "import torch\nfrom torch import nn\n\nfrom mha_course.built import *"


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
    # Of the code of right answers: equal ones are found by them.
    digests: dict[str, str] = field(default_factory=dict)

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
            tests.append({**test, "output": _shown(why), "tags": [state]})
        whole = {"tests": tests, "output": " ".join(map(_shown, self.troubles))}
        return json.dumps({**whole, "extra_data": {"submission": str(self.path)}})

    def say(self, trouble: str, *, first: bool = False) -> None:
        """Note, once, what somebody must look at; of very many, those that come first are enough."""
        if trouble not in self.troubles:
            self.troubles.insert(0 if first else len(self.troubles), trouble)
            del self.troubles[_SAID:]


def _shown(line: str) -> str:
    """A line that is not long, without a submission's line breaks and escape sequences."""
    cut = line if len(line) <= _CUT else f"{line[:_CUT]} …"
    escaped = [repr(one)[1:-1] if not one.isprintable() else one for one in cut]
    return "".join(escaped)


def grade(
    path: Path,
    *,
    assignment: Path | None = None,
    seconds: float = 600,
    cell_seconds: float = 60,
    isolate: bool | None = None,
    container: str = "",
    files: Sequence[Path] = (),
) -> Grade:
    """Run a notebook, an `adapters.py` or a folder with either, and judge its exercises.

    Args:
        path: the notebook; a folder or an `adapters.py` brings the files beside it.
        assignment: what was handed out, if its exercises count rather than those that the submission checks.
        seconds: limit for the submission; it is stopped then, and what was judged before counts.
        cell_seconds: limit for a cell, and for judging an exercise; then the next cell runs.
        isolate: separate the submission from files and network by bubblewrap; by default, where that works.
        container: image of a container in which podman or docker runs the submission instead.
        files: files that each submission finds in its folder.

    Raises:
        TypeError: `path` or `assignment` is not a Path.
        ValueError: `assignment` or a file cannot be read, or it calls no checker; a limit is not positive.

    Example:
        >>> grade(Path("no.ipynb")).troubles
        ['It cannot be read: No such file or directory.']
    """
    check_type("path", path, Path)
    check_type("assignment", assignment or path, Path)
    for name, value in {"seconds": seconds, "cell_seconds": cell_seconds}.items():
        if not 0 < value < 1e6:
            raise refusal(name, "be a positive number below a million", value)
    for one in [*files, *filter(None, [assignment])]:
        try:
            _read(one)
        except ValueError as error:
            raise ValueError(f"{one} cannot be read: {error}") from error
    handed_out = _cells(_read(assignment), _kind(assignment)) if assignment else []
    asked = [call for _, call in _checks_in(handed_out)]
    if assignment and not asked:
        raise ValueError(f"assignment must call a checker, and {assignment} does not")
    found, given = Grade(path), {one.name: _read(one) for one in files}
    try:
        cells, beside = _opened(path)
    except ValueError as error:
        found.say(message(__file__, "unreadable", error=error))
        cells, beside = [], {}
    checks = list(_checks_in(cells))
    calls = asked or list(dict.fromkeys(call for _, call in checks))
    if cells and not calls:
        found.say(message(__file__, "no-check"))
    # What lost its check is checked at the end.
    lost = set(calls) - {call for _, call in checks}
    checks += [(len(cells), call) for call in calls if call in lost]
    if cells and calls:
        run = _Run(found, cells, checks, beside | given, handed_out, cell_seconds)
        isolate = can_isolate() if isolate is None else isolate
        run.all(seconds=seconds, isolate=isolate, image=container)
    for call in calls:
        found.results.setdefault(call, ("missing", "it was not reached"))
    found.results = {call: found.results[call] for call in calls}
    return found


# ------------------------------------------------------------------ reading


def _read(path: Path) -> bytes:
    """The bytes of a regular file that is not too large."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_size > _LARGEST:
            raise ValueError(f"it is over {_LARGEST:,} bytes long")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{error.strerror}") from error


def _kind(path: Path) -> str:
    """What kind of file it is, by its name: ".ipynb", however it is written."""
    return path.suffix.lower()


def _opened(path: Path) -> tuple[list[str], dict[str, bytes]]:
    """The cells of a submission, and the files beside it, which only a folder or a program brings."""
    if path.is_symlink():
        raise ValueError("it is a link")
    if _kind(path) == ".py" and len(_expanded(path.parent)) > 1:
        raise ValueError("it needs a folder of its own")
    files: dict[str, bytes] = {}
    if path.is_dir():
        files, work = _files_in(path), _work_in(path)
        programs = [one for one in work if _kind(one) == ".py"]
        if len(programs or work) != 1:
            said = f"it contains {len(work)} notebooks, and one is expected"
            raise ValueError(said)
        [path] = programs or work
    elif _kind(path) == ".py":
        files = _files_in(path.parent)
    cells = _cells(_read(path), _kind(path))
    code = [*cells, *(text for name, text in files.items() if name.endswith(".py"))]
    _check_size(code)
    return cells, files


def _check_size(code: Iterable[Sized]) -> None:
    if sum(map(len, code)) > _CODE:
        raise ValueError(f"its code is over {_CODE:,} bytes long")


def _files_in(folder: Path) -> dict[str, bytes]:
    """The contents of the regular files in a folder, by their paths in it."""
    files: dict[str, bytes] = {}
    for place, folders, names in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) > _DEEPEST:
            raise ValueError("its folders are too deep")
        folders[:] = [one for one in folders if not one.startswith((".", "__"))]
        for one in (Path(place, name) for name in names):
            if one.is_file() and not one.is_symlink():
                files[str(one.relative_to(folder))] = _read(one)
            if len(files) > _MOST or sum(map(len, files.values())) > _LARGEST:
                raise ValueError("it has too many files, or too large ones")
    return files


def _cells(content: bytes, suffix: str) -> list[str]:
    """The sources of the code cells of a notebook, or the statements of a program."""
    if not content.strip():
        raise ValueError("it is empty")
    try:
        text = content.decode("utf-8-sig")
        if suffix == ".py":
            _check_size([text])
            return [_source(text, statement) for statement in ast.parse(text).body]
        if sum(map(text.count, "[{,")) > _PARTS:
            raise ValueError(f"it has over {_PARTS:,} parts")
        book = json.loads(text)
        if suffix == ".json":
            return _written(book)
        if sheets := book.get("worksheets"):  # of nbformat 3
            book = {"cells": [cell for sheet in sheets for cell in sheet["cells"]]}
        code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        if len(code) > _MOST:
            raise ValueError(f"it has over {_MOST:,} code cells")
        texts = ["".join(cell.get("source", cell.get("input"))) for cell in code]
        return ["" if text.startswith(_SET_UP) else text for text in texts]
    except (KeyError, TypeError, AttributeError):
        raise ValueError("it is not a notebook") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{error}") from error


def _source(text: str, statement: ast.stmt) -> str:
    try:
        return ast.unparse(statement)
    except (ValueError, RecursionError):  # a very long number
        return ast.get_source_segment(text, statement) or ""


def _written(entries: Any) -> list[str]:
    """The texts that *Progress* exported, each with its check; that one was accepted is not believed."""
    texts = {
        key.removeprefix(DRAFTS): entry.get("accepted") or entry["draft"]
        for key, entry in entries.items()
        if key.startswith(DRAFTS)
    }
    cells, pieces = [_IN_PAGE], [*vars(built)]
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("a text is expected")
    _check_size(texts.values())
    # In the course's order, so that each text stands before those that use it.
    place = {name: number for number, name in enumerate(pieces)}
    for name, text in sorted(
        texts.items(), key=lambda one: place.get(one[0], len(pieces))
    ):
        cells.append(text)
        for node in ast.walk(parsed(text)):
            for one in node.names if isinstance(node, ast.ImportFrom) else ():
                if name.isidentifier() and one.name in CHECKERS:
                    cells.append(f"{one.name}({name})")
    return cells


def _is_export(path: Path) -> bool:
    """Whether a file is what *Progress* exported."""
    try:
        return _kind(path) == ".json" and f'"{DRAFTS}'.encode() in _read(path)
    except ValueError:
        return False


def _checks_in(cells: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The calls of checkers, with their cells. A checker inside an assert checks the page's own solution."""
    node: Any
    for number, source in enumerate(cells):
        for statement in parsed(source).body:
            if isinstance(statement, (ast.Expr, ast.Assign)):
                for node in ast.walk(statement):
                    if _checker(node) in CHECKERS and node.args:
                        yield number, ast.unparse(node)


def _checker(node: Any) -> str:
    """The name of what is called, without its module; "" if it is no call."""
    function = getattr(node, "func", None)
    return str(getattr(function, "attr", getattr(function, "id", "")))


# ------------------------------------------------------------------ running


@dataclass
class _Run:
    """The cells of a submission in its process, and what the judge finds."""

    found: Grade
    cells: list[str]
    checks: list[tuple[int, str]]
    files: dict[str, bytes]
    handed_out: Sequence[str]
    cell_seconds: float

    def __post_init__(self) -> None:
        self.cells = [*self.cells, ""]  # for what lost its check
        # No file of a submission can contain the results for these numbers.
        self.seed = secrets.randbits(32)
        self.failed: dict[int, str] = {}  # number of a cell -> its error
        sources = {f"code cell {n}": one for n, one in enumerate(self.cells, 1)}
        for name, content in self.files.items():
            if name.endswith(".py"):
                sources[name] = _text(content)
            elif name.endswith((".pyc", ".so")):
                self.found.say(f"{name} was not read: it is compiled.")
        self.words = Words(sources, self.handed_out)

    def all(self, *, seconds: float, **walls: Any) -> None:
        """Run all cells; after one at which the process ends, it starts again without that cell."""
        for reach in self.words.reaching():
            self.found.say(reach)
        left_out, end = set[int](), time.monotonic() + seconds
        while len(left_out) < 4:
            number = 0
            try:
                with Submission(self.files, end=end, **walls) as submission:
                    for number, source in enumerate(self.cells):
                        if number not in left_out:
                            self._cell(submission, number, source)
                    self._afterwards(submission)
                return
            except EndedError as error:
                late = time.monotonic() > end
                how = f"did not end within {seconds:g} seconds" if late else error
                self.found.say(f"It {how}: code cell {number + 1} was running.")
                if late:
                    return
                left_out.add(number)

    def _cell(self, submission: Submission, number: int, source: str) -> None:
        cell, seconds = f"Code cell {number + 1}", self.cell_seconds
        try:
            said = submission.ask(_judged.run_cell, source, seconds=seconds)
            error, by_system = str(said["error"])[:_WORDS], said["by_system"]
            replaced = [name for name in exercises.__all__ if name in said["replaced"]]
        except (EndedError, MemoryError):
            raise
        except Exception as raised:  # a reply may be anything
            error, by_system, replaced = f"{raised}"[:_WORDS], False, []
        for name in replaced:
            self.found.say(f"{cell} replaces `{name}`.")
        if error:
            self.failed[number] = error
        elif f"code cell {number + 1}" in self.words.unread:
            self.found.say(f"{cell} was not read: it is not Python, or too deep.")
        if TOO_LONG in self.failed.get(number, ""):
            submission.check_time()
            self.found.say(f"{cell} did not end within {seconds:g} seconds.")
        elif by_system:  # a wall, or a file that is missing
            self.found.say(f"{cell} raises {error}.")
        for call in [call for at, call in self.checks if at == number]:
            state = self._judge(submission, call)
            if call not in self.found.results or state[0] != "missing":
                self.found.results[call] = state

    def _afterwards(self, submission: Submission) -> None:
        """Judge again what is not right: the answer may be below its check, or have another name."""
        for call, (state, why) in list(self.found.results.items()):
            if state == "right" or why == TOO_LONG:
                continue
            if (again := self._judge(submission, call))[0] == "right":
                self.found.results[call] = again
            elif why == "the stub is not filled in":
                node = _call(call)
                for name in self.words.like(ast.unparse(node.args[0])):
                    node.args[0] = ast.Name(name)
                    if self._judge(submission, ast.unparse(node))[0] == "right":
                        self.found.say(f"{call}: {why}, but `{name}` is right.")

    def _judge(self, submission: Submission, call: str) -> tuple[str, str]:
        """How an exercise stands, and why."""
        node = _call(call)
        try:
            arguments = [_value(submission, one) for one in node.args]
            options = {one.arg: _value(submission, one.value) for one in node.keywords}
            answer = arguments[0] if isinstance(arguments[0], dict) else {}
            if answer.get("is_ours"):
                return "missing", "only the course's own answer is there"
            submission.doubts.clear()
            check = partial(submission.check, _checker(node), arguments, options)
            verdict = check(seconds=self.cell_seconds)
            if not verdict and submission.is_stub(answer):
                return "missing", "the stub is not filled in"
            if not verdict:
                why = verdict.message.removeprefix("Not yet: ")
                lost = re.search(r"name '(\w+)' is not defined", why)
                cause = self._cause(lost[1]) if lost else ""
                return "wrong", why + f" ({cause})" * bool(cause)
            # Nobody can have looked up what these numbers give. A right answer that measures may miss once.
            for seed in (self.seed, self.seed + 1000):
                if again := check(seconds=self.cell_seconds, seed=seed):
                    break
            else:
                self.found.say(f"{call}: {message(__file__, 'only-here')}")
                return "wrong", again.message.removeprefix("Not yet: ")
            borrowed = [*self.words.borrowed(call)]
            if not borrowed and any(call == one for _, one in self.checks):
                borrowed = [*self.words.mentioned(call)]
            for doubt in reversed([*submission.doubts, *borrowed]):
                self.found.say(f"{call}: {doubt}.", first=True)
            self.found.digests[call] = self.words.digest(call)
            return "right", verdict.message
        except (EndedError, MemoryError):
            raise
        except Exception as error:  # a reply may be anything
            kind = "" if isinstance(error, RaisedError) else f"{type(error).__name__}: "
            return "missing", self._cause(ast.unparse(node.args[0])) or f"{kind}{error}"

    def _cause(self, name: str) -> str:
        """Which error kept a name from being defined, or ""."""
        name = re.escape(name)
        line = (
            rf"(?m)^[ \t]*((def|class) +{name}\b|{name} *=|(from|import)\b.*\b{name}\b)"
        )
        causes = [
            why for n, why in self.failed.items() if re.search(line, self.cells[n])
        ]
        return f"its cell raises {causes[-1]}" if causes else ""


def _text(content: bytes) -> str:
    """The text of a program; of one in another encoding, what nobody can read as Python."""
    with suppress(SyntaxError, UnicodeError):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        if encoding in ("utf-8", "utf-8-sig"):
            return content.decode(encoding)
    return "?"


def _call(text: str) -> Any:
    return ast.parse(text, mode="eval").body


def _value(submission: Submission, node: ast.expr) -> Any:
    """An argument of a checker: a literal as it is written, and anything else as it is there."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return submission.ask(_judged.evaluate, ast.unparse(node))


# ------------------------------------------------------------------ a class


def _expanded(path: Path) -> list[Path]:
    """The submissions that a path stands for: itself, or those in a folder of several.

    A folder that is given and has several is a class, so nobody can make it theirs by an `adapters.py` or the
    only notebook beside the folders of others. A folder in it is a student's, who may have more in it.
    """
    if path.is_symlink() or not path.is_dir():
        return [path]
    work, folders = _work_in(path), [one for one in _inside(path) if one.is_dir()]
    is_class = len(work) > 1 or any(map(_has_work, folders))
    return [*work, *folders] if is_class else [path]


def _has_work(folder: Path, deepest: int = 4) -> bool:
    """Whether something in a folder, or in the folders in it, can be graded."""
    below = [one for one in _inside(folder) if one.is_dir() and not one.is_symlink()]
    deeper = deepest > 0 and any(_has_work(one, deepest - 1) for one in below)
    return bool(_work_in(folder)) or deeper


def _work_in(folder: Path) -> list[Path]:
    """The programs, notebooks and exports in a folder: what can be graded."""
    kinds = (".ipynb", ".json")
    found = [
        one
        for one in _inside(folder)
        if _kind(one) in kinds or one.name.lower() == "adapters.py"
    ]
    return [one for one in found if _kind(one) != ".json" or _is_export(one)]


def _left_out(path: Path) -> list[Path]:
    """What is in the folder of a class, and is not graded."""
    graded = _expanded(path)
    with suppress(OSError):
        return [] if graded == [path] else sorted({*path.iterdir()} - {*graded})
    return []


def _inside(folder: Path) -> list[Path]:
    """What is in a folder, if it can be looked into, without what is hidden."""
    try:
        found = sorted(folder.iterdir())
        return [one for one in found if not one.name.startswith((".", "__"))]
    except OSError:
        return []


def _graded(path: Path, results: Path | None, options: dict[str, Any]) -> Grade:
    """Grade a submission, or read what an earlier run has found for the same bytes; it never raises."""
    try:
        place = results and results / f"{_digest(path, options)}.json"
        if place and (before := _kept(path, place)):
            return before
        found = grade(path, **options)
        if place:
            _keep(found, place)
        return found
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Grade(path, troubles=[message(__file__, "failed", error=said)])


def _kept(path: Path, place: Path) -> Grade | None:
    """What an earlier run has kept; None if it is not there, or is damaged."""
    with suppress(Exception):  # it may be anything
        before = json.loads(place.read_text())
        pairs = {call: (state, why) for call, (state, why) in before["results"].items()}
        found = Grade(path, pairs, [*before["troubles"]], {**before["digests"]})
        texts = [
            *found.troubles,
            *found.digests.values(),
            *map("".join, pairs.values()),
        ]
        states = {state for state, _ in pairs.values()} - {"right", "wrong", "missing"}
        if all(isinstance(text, str) for text in texts) and not states:
            return found
    return None


def _keep(found: Grade, place: Path) -> None:
    kept = asdict(found)
    del kept["path"]
    try:
        place.with_suffix(".new").write_text(json.dumps(kept))
        place.with_suffix(".new").replace(place)
    except OSError as error:
        found.say(message(__file__, "not-kept", error=error.strerror))


def _digest(path: Path, options: dict[str, Any]) -> str:
    """A number for all that a grade depends on."""
    try:
        content = _opened(path)
    except ValueError as error:
        content = [str(error)], {}
    read = [_read(one) for one in (options["assignment"], *options["files"]) if one]
    whole = mha_lib.__version__, path, content[0], sorted(content[1].items())
    text = repr((*whole, read, options))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


def _at_a_time(paths: list[Path], jobs: int, work: Any) -> Iterator[Grade]:
    """The grades in the order of the paths, and on the error stream how far it is.

    Judges draw random numbers, so each has a process; what ends it costs no other submission a mark.
    """
    new_judge = partial(futures.ProcessPoolExecutor, 1, get_context("spawn"))
    judges = threading.local()

    def graded(path: Path) -> Grade:
        judges.own = getattr(judges, "own", None) or new_judge()
        try:
            found: Grade = judges.own.submit(work, path).result()
        except futures.BrokenExecutor as error:
            judges.own = None
            return Grade(path, troubles=[message(__file__, "failed", error=error)])
        return found

    with futures.ThreadPoolExecutor(jobs) as threads:
        for number, found in enumerate(threads.map(graded, paths), 1):
            print(_shown(f"{number} of {len(paths)}: {found.path}"), file=sys.stderr)
            yield found


def _with_equals(grades: list[Grade]) -> list[Grade]:
    """The grades, with a sentence where two submissions have the same code for an exercise."""
    same = defaultdict(list)
    for one in grades:
        for call, digest in one.digests.items():
            if digest:
                same[call, digest].append(one)
    for (call, _), several in same.items():
        for one in several if len(several) > 1 else ():
            others = ", ".join(str(other.path) for other in several if other is not one)
            one.say(f"{call}: the same code as in {others}.")
    return grades


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the module's docstring explains the exit status.

    Raises:
        SystemExit: the arguments are wrong; its code is 2.

    Example:
        >>> main(["no.ipynb"])
        no.ipynb: 0 of 0 right
          It cannot be read: No such file or directory.
        1
    """
    parser = argparse.ArgumentParser("mha_course.grade", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("submissions", nargs="+", type=Path)
    add("--json", action="store_true", help="print results.json")
    add("--assignment", type=Path, help="what was handed out")
    add("--seconds", type=float, default=600, help="for each submission")
    add("--cell-seconds", type=float, default=60, help="for each cell")
    add("--files", type=Path, nargs="+", default=[], help="for the folder of each")
    add("--results", type=Path, help="folder that keeps each result")
    said = "run each in a container of podman or docker"
    add("--container", action="store_const", const="mha-course", default="", help=said)
    add("--jobs", type=int, default=1, help="submissions at a time")
    chosen = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # no name of a file ends the run
            stream.reconfigure(errors="backslashreplace")
    names = ("assignment", "seconds", "cell_seconds", "files", "container")
    options = {name: getattr(chosen, name) for name in names}
    try:  # wrong arguments end the run before it begins
        grade(Path(os.devnull), **options)
        if chosen.jobs < 1:
            raise refusal("jobs", "be at least 1", chosen.jobs)
        if chosen.container:
            check_container(chosen.container)
        if chosen.results:
            chosen.results.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(f"{error}")
    if not (chosen.container or can_isolate()):
        print(message(__file__, "no-walls"), file=sys.stderr)
    paths = [one for path in chosen.submissions for one in _expanded(path)]
    paths = list(dict.fromkeys(paths))
    left_out = [str(one) for path in chosen.submissions for one in _left_out(path)]
    if left_out:
        print(f"Not graded: {', '.join(map(_shown, left_out))}", file=sys.stderr)
    options |= {"isolate": can_isolate()}
    work = partial(_graded, results=chosen.results, options=options)
    several = chosen.jobs > 1 and len(paths) > 1
    grades = list(_at_a_time(paths, chosen.jobs, work) if several else map(work, paths))
    for one in _with_equals(grades):
        print(one.as_json() if chosen.json else one.as_text(), flush=True)
    troubled = [_shown(str(one.path)) for one in grades if one.troubles]
    if troubled and len(grades) > 1:
        print(f"Look at: {', '.join(troubled)}", file=sys.stderr)
    return int(bool(troubled))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # folders are removed
    sys.exit(main())
