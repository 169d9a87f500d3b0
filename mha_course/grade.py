"""Grade the notebooks of a class: what is right, what is wrong and why, and what is missing.

    python -m mha_course.grade [--json] [--assignment NOTEBOOK] [--seconds 600] SUBMISSION ...

The exercises of a submission are its calls of checkers, such as `check_head(MyHead)`, or those of the
notebook that was handed out. Each submission runs in its own process and folder, and an exercise is
judged as soon as the cell with its check has run. Cells after one that fails still run. For code
elsewhere, submit an `adapters.py` beside it, whose statements run as cells do:

    from mha_course.exercises import check_attention, check_multi_head
    from my_package.layers import Attention, attend
    check_attention(attend)
    check_multi_head(Attention, weights=False)

With --json, each line is the results.json of a submission as Gradescope reads and Otter writes it (nbgrader
has no such file: its grades are in a database). The exit status is 0 if all submissions were graded, 1 if
somebody must look at one of them, and 2 for wrong arguments. Python refuses a submission the network, other
programs and files outside its folder, a guard against accidents: what you do not trust needs a container.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

from attention_check._errors import COURSES
from mha_course import exercises, plots  # noqa: F401 (matplotlib writes caches, which the guard would refuse)
from mha_course.exercises import own
from mha_lib._checks import check_type

# Audit events, which Python raises before it does what they name.
_PROGRAMS = """subprocess.Popen os.system os.exec os.fork os.forkpty
    os.posix_spawn""".split()
_CHANGES = """os.chmod os.link os.mkdir os.remove os.rename os.rmdir os.symlink
    os.truncate shutil.rmtree sqlite3.connect""".split()
_REFUSED = dict.fromkeys(["socket.connect", "socket.getaddrinfo"], "use the network")
_REFUSED |= dict.fromkeys(_PROGRAMS, "start another program")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


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

    def as_text(self) -> str:
        """Return a line for the submission, for each exercise and for each problem."""
        states = [state for state, _ in self.results.values()]
        lines = [f"{self.path}: {states.count('right')} of {len(states)} right"]
        for name, (state, why) in self.results.items():
            lines.append(f"  {state:8} {name}" + f": {why}" * (state != "right"))
        lines += [f"  {trouble}" for trouble in self.troubles]
        return "\n".join(lines).encode(errors="backslashreplace").decode()

    def as_json(self) -> str:
        """Return the line of a results.json, in which each exercise is worth one point."""
        tests = []
        for name, (state, why) in self.results.items():
            score, status = (1, "passed") if state == "right" else (0, "failed")
            test = {"name": name, "score": score, "max_score": 1, "status": status}
            tests.append({**test, "output": why, "tags": [state]})
        whole = {"tests": tests, "output": " ".join(self.troubles)}
        return json.dumps({**whole, "extra_data": {"submission": str(self.path)}})


def grade(path: Path, *, assignment: Path | None = None, seconds: float = 600) -> Grade:
    """Run a notebook or an `adapters.py`, and judge its exercises or those of the assignment.

    Raises:
        TypeError: `path` or `assignment` is not a Path.
        ValueError: `assignment` cannot be read, or calls no checker.

    Example:
        >>> grade(Path("no.ipynb")).troubles
        ["It cannot be read: [Errno 2] No such file or directory: 'no.ipynb'."]
    """
    check_type("path", path, Path)
    check_type("assignment", assignment or path, Path)
    asked = [call for _, call in _checks_in(_cells(assignment))] if assignment else []
    if assignment and not asked:
        raise ValueError(f"assignment must call a checker, and {assignment} does not")
    found, cells, checks = Grade(path), list[str](), list[tuple[int, str]]()
    try:
        cells = _cells(path)
        checks = list(_checks_in(cells))
        if not asked and not checks:
            raise ValueError("It calls no checker, so there is nothing to grade.")
    except ValueError as error:
        found.troubles.append(str(error))
    if assignment:  # what lost its check is checked at the end
        called = {call for _, call in checks}
        checks += [(len(cells), call) for call in asked if call not in called]
    judged = _run_alone(found, cells, checks, seconds) if cells and checks else {}
    for call in asked or [call for _, call in checks]:
        found.results[call] = judged.get(call, ("missing", "it was not reached"))
    return found


def _cells(path: Path) -> list[str]:
    """The sources of the code cells of a notebook, or the statements of a program."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".py":
            return [ast.unparse(statement) for statement in ast.parse(text).body]
        cells = json.loads(text)["cells"]
        return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    except (KeyError, TypeError):
        raise ValueError("It cannot be read: it is not a notebook.") from None
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"It cannot be read: {error}.") from error


def _checks_in(cells: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The calls of checkers, with their cells. A checker inside an assert checks the page's own solution."""
    for number, source in enumerate(cells):
        plain = re.sub(r"\A%%.*\n", "", source)  # without `%%time`
        for statement in own._parsed(TransformerManager().transform_cell(plain)).body:
            for node in ast.walk(statement):
                if isinstance(statement, (ast.Expr, ast.Assign)) and _checker(node):
                    yield number, ast.unparse(node)


def _checker(node: Any) -> str:
    """The name of the checker that is called, or ""."""
    if not isinstance(node, ast.Call) or not node.args:
        return ""
    name = str(getattr(node.func, "attr", getattr(node.func, "id", "")))
    return name if name.startswith("check_") and name in exercises.__all__ else ""


def _run_alone(
    found: Grade, cells: list[str], checks: list[tuple[int, str]], seconds: float
) -> dict[str, tuple[str, str]]:
    """The result of each check, in a separate process; anything else that went wrong is a problem."""
    job = json.dumps([str(found.path.resolve().parent), cells, checks])
    command = [sys.executable, "-c", "from mha_course import grade; grade._work()"]
    settings = {"MPLBACKEND": "agg", "PYTHONDONTWRITEBYTECODE": "1"}
    settings["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    with tempfile.TemporaryDirectory() as folder:
        settings |= {"IPYTHONDIR": folder, "TMPDIR": folder}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        pipes |= {"cwd": folder, "env": os.environ | settings, "input": job.encode()}
        try:
            done = subprocess.run(command, timeout=seconds, **pipes)
            said, status = done.stdout, done.returncode
            end = f"ended with status {status}" if status else ""
        except subprocess.TimeoutExpired as error:
            said, end = error.stdout or b"", f"did not end within {seconds:g} seconds"
    judged, troubles, cell = dict[str, tuple[str, str]](), dict[str, None](), 0
    for line in said.decode().splitlines():
        kind, what, *verdict = json.loads(line)
        if kind == "cell":
            cell = what
        elif kind == "refused":
            troubles[f"Code cell {cell} tried to {what}: refused."] = None
        elif what not in judged or verdict[0] != "missing":
            judged[what] = verdict[0], verdict[1]
    if end:
        troubles[f"It {end}: code cell {cell} was running."] = None
    found.troubles.extend(troubles)
    return judged


def _work() -> None:
    """Run a submission, in its process, and print a line of JSON for each event."""
    beside, cells, checks = json.load(sys.stdin)
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where the submission prints

    def tell(*event: str | int) -> None:
        print(json.dumps(event), file=lines)

    sys.path.insert(0, beside)
    shell = InteractiveShell.instance()
    folder = os.path.realpath(".")
    sys.addaudithook(lambda *event: _guard(folder, tell, *event))
    torch.save = _announced(torch.save)
    safetensors.torch.save_file = _announced(safetensors.torch.save_file)
    failed: dict[str, str] = {}  # source of a cell -> its error
    for number, source in enumerate([*cells, ""]):
        tell("cell", number + 1)
        result = shell.run_cell(source)
        if error := result.error_before_exec or result.error_in_exec:
            failed[source] = _said(error)
        for call in [call for cell, call in checks if cell == number]:
            tell("judged", call, *_judged(shell, call, failed))


def _judged(shell: Any, call: str, failed: dict[str, str]) -> tuple[str, str]:
    """How an exercise stands, and why."""
    node: Any = ast.parse(call, mode="eval").body
    try:
        answer, *more = (shell.ev(ast.unparse(one)) for one in node.args)
        options = {one.arg: shell.ev(ast.unparse(one.value)) for one in node.keywords}
        home = str(getattr(answer, "__module__", "")).partition(".")[0]
        if hasattr(answer, COURSES) or home in ("mha_lib", "mha_course"):
            return "missing", "only the course's own is there"
        verdict = getattr(exercises, _checker(node))(answer, *more, **options)
        if not verdict and own._is_stub(answer):
            return "missing", "the stub is not filled in"
        why = verdict.message.removeprefix("Not yet: ")
        return "right" if verdict else "wrong", why
    except BaseException as error:  # the answer may raise anything
        name = re.escape(ast.unparse(node.args[0]))
        line = rf"(?m)^((def|class) {name}\b|{name} *=)"
        causes = [why for source, why in failed.items() if re.search(line, source)]
        return "missing", f"its cell raises {causes[-1]}" if causes else _said(error)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _announced(save: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which opens its file outside Python, where no hook sees it."""

    def announced(*arguments: Any, **options: Any) -> Any:
        for path in [*arguments, *options.values()]:
            sys.audit("open", path, "wb", os.O_WRONLY)
        return save(*arguments, **options)

    return announced


def _guard(folder: str, tell: Callable[..., None], event: str, given: Any) -> None:
    """Refuse what would have an effect outside a folder."""
    refused = _REFUSED.get(event, "")
    opens = event == "open" and given[2] & _WRITES
    for path in given if event in _CHANGES else given[: int(bool(opens))]:
        if isinstance(path, (str, bytes, os.PathLike)):  # a descriptor was opened
            place = os.path.realpath(os.fsdecode(path))
            if place != os.devnull and os.path.commonpath([place, folder]) != folder:
                refused = f"write {place}"
    if refused:
        tell("refused", refused)
        raise PermissionError(f"a submission may not {refused}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the module's docstring explains the exit status.

    Example:
        >>> main(["no.ipynb"])
        no.ipynb: 0 of 0 right
          It cannot be read: [Errno 2] No such file or directory: 'no.ipynb'.
        1
    """
    parser = argparse.ArgumentParser("mha_course.grade", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("submissions", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print results.json")
    parser.add_argument("--assignment", type=Path, help="what was handed out")
    parser.add_argument("--seconds", type=float, default=600, help="for each")
    chosen, status = parser.parse_args(arguments), 0
    for path in chosen.submissions:
        try:
            found = grade(path, assignment=chosen.assignment, seconds=chosen.seconds)
        except (ValueError, OverflowError) as error:
            parser.error(f"{error}")
        print(found.as_json() if chosen.json else found.as_text(), flush=True)
        status |= bool(found.troubles)
    return status


if __name__ == "__main__":
    sys.exit(main())
