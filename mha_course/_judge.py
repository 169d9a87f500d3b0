"""The judge of a submission, which runs in a process of its own: calls go there, and plain data come back.

Requests are pickled, since only this side writes them. Replies are never unpickled: each is a header of JSON
and tensors in the format of safetensors, of limited size, and anything else ends the submission. References,
cases and known mistakes stay here. What a check needs there, such as the function that makes a layer and
calls it, is sent as code (`cloudpickle`), because the other process has no `mha_course.exercises`.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import matplotlib
import safetensors.torch
import torch

import attention_check
import mha_lib
from attention_check._elsewhere import Elsewhere
from attention_check._results import Outcome
from attention_check._verdicts import Verdict
from mha_course import _judged, exercises, plots  # noqa: F401 (it makes the list of fonts)
from mha_course.exercises import efficiency, own

_MEGABYTE = 2**20
# What the submission's process may have at most.
LIMITS = {
    "RLIMIT_AS": 12_000 * _MEGABYTE,
    "RLIMIT_FSIZE": 100 * _MEGABYTE,
    "RLIMIT_NPROC": 200,
    "RLIMIT_CORE": 0,
}
_HEADER, _TENSORS, _DISK = 8 * _MEGABYTE, 256 * _MEGABYTE, 500 * _MEGABYTE
_DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_DTYPES |= {torch.bfloat16, torch.float16, torch.float32, torch.float64}
HELPERS = {
    "own.solution": own.solution,
    "efficiency.largest_tensor": efficiency.largest_tensor,
}
_COURSE = Path(__file__).parent
_PACKAGES = [Path(str(one.__file__)).parent for one in (attention_check, mha_lib)]

cloudpickle.register_pickle_by_value(exercises)


class EndedError(Exception):
    """The process of a submission has ended, or had to be ended; the message is a clause."""

    hung = late = False  # it did not answer; all its time is over


def _ended(clause: str, **how: bool) -> EndedError:
    error = EndedError(clause)
    vars(error).update(how)
    return error


class RaisedError(Exception):
    """What was asked for has raised an error there; the message is that error, in one line."""


class Submission:
    """A submission in its own process.

    Args:
        files: what stands in its folder.
        isolate: whether bubblewrap separates it from everything else.
        seconds: how long it may take in all.
    """

    def __init__(
        self, files: dict[str, bytes], *, isolate: bool, seconds: float
    ) -> None:
        self.end = time.monotonic() + 120  # to start
        self.doubts: list[str] = []
        self.folder = None if isolate else tempfile.TemporaryDirectory()
        place = self.folder.name if self.folder else None
        limits = {
            name: most
            for name, most in LIMITS.items()
            if isolate or name != "RLIMIT_NPROC"
        }
        code = "from mha_course._judged import main; main()"
        command = [
            *(_walls() if isolate else ()),
            sys.executable,
            "-c",
            code,
            json.dumps(limits),
        ]
        pipes: Any = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
        }
        pipes |= {
            "cwd": place,
            "env": _environment(place or "/submission"),
            "start_new_session": True,
        }
        self.process = subprocess.Popen(command, **pipes)
        os.set_blocking(self.process.stdin.fileno(), False)  # type: ignore[union-attr]
        checkers = [name for name in exercises.__all__ if name.startswith("check_")]
        try:
            given = files | _fonts()
            self.ask(_judged.start, checkers, HELPERS, given, seconds=120)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.end = time.monotonic() + seconds

    def __enter__(self) -> Submission:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process, and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        if self.folder:
            self.folder.cleanup()

    # ------------------------------------------------------------------ asking
    def ask(self, function: Any, *arguments: Any, seconds: float = 60) -> Any:
        """Call a function there, and return its result; while it runs, it may ask for verdicts."""
        self.check_time()
        seconds = min(seconds, self.end - time.monotonic())
        self._send("ask", seconds, cloudpickle.dumps((function, *arguments)))
        while True:
            try:
                kind, value = self._receive(seconds + 10)
            except (
                ValueError,
                KeyError,
                TypeError,
                RecursionError,
                safetensors.SafetensorError,
            ) as error:
                raise EndedError("sent what is no result") from error
            if kind == "value":
                return value
            if kind == "raised":
                raise RaisedError(str(value)[:2000])
            try:
                verdict = self.check(*value)
                reply = verdict.right, verdict.message
            except (RaisedError, TypeError, ValueError) as error:
                reply = False, f"Not yet: {error}"
            self._send("answer", 0, reply)

    def check_time(self) -> None:
        """Raise an error if all the time of the submission is over."""
        if time.monotonic() > self.end:
            raise _ended("is late", late=True)

    def check(
        self, checker: str, arguments: Sequence[Any], options: dict[str, Any]
    ) -> Verdict:
        """Let a checker of the course judge what is there."""
        if checker not in exercises.__all__ or not checker.startswith("check_"):
            raise ValueError(f"there is no checker {checker!r}")
        given = [self.given(one) for one in arguments]
        named = {str(name): self.given(one) for name, one in options.items()}
        verdict: Verdict = getattr(exercises, checker)(*given, **named)
        found = [one for one in [*given, *named.values()] if isinstance(one, Elsewhere)]
        self.doubts += [doubt for one in found for doubt in one.doubts]
        return verdict

    def given(self, one: Any) -> Any:
        """What stands here for an argument there."""
        if "plain" in one:
            return one["plain"]
        if one["callable"]:
            return Elsewhere(
                self._do, int(one["number"]), is_module=bool(one["is_module"])
            )
        module, name = one["kind"]
        return type(str(name), (), {"__module__": str(module)})()

    def _do(self, function: Any, *arguments: Any) -> Any:
        return self.ask(_judged.used, function, *arguments)

    # ------------------------------------------------------------------ the pipes
    def _send(self, *message: Any) -> None:
        content = cloudpickle.dumps(message)
        left = memoryview(len(content).to_bytes(8, "big") + content)
        pipe = self.process.stdin.fileno()  # type: ignore[union-attr]
        until = time.monotonic() + 60
        while left:
            if not select.select([], [pipe], [], max(0, until - time.monotonic()))[1]:
                raise EndedError("did not listen any more")
            try:
                left = left[os.write(pipe, left) :]
            except BlockingIOError:
                continue
            except OSError:
                raise EndedError(self._how_it_ended()) from None

    def _receive(self, seconds: float) -> tuple[str, Any]:
        until = time.monotonic() + seconds
        sizes = self._read(16, until)
        header, blob = (int.from_bytes(sizes[at : at + 8], "big") for at in (0, 8))
        if header > _HEADER or blob > _TENSORS:
            raise EndedError("sent a result that is too large")
        kind, value = json.loads(self._read(header, until))
        tensors = safetensors.torch.load(self._read(blob, until)) if blob else {}
        return kind, _plain(value, tensors)

    def _read(self, size: int, until: float) -> bytes:
        pipe, found = self.process.stdout.fileno(), bytearray()  # type: ignore[union-attr]
        while len(found) < size:
            if not select.select([pipe], [], [], max(0, until - time.monotonic()))[0]:
                raise _ended(
                    "could not be interrupted",
                    hung=True,
                    late=time.monotonic() > self.end,
                )
            part = os.read(pipe, size - len(found))
            if not part:
                raise EndedError(self._how_it_ended())
            found += part
        return bytes(found)

    def _how_it_ended(self) -> str:
        try:
            return f"ended with status {self.process.wait(5)}"
        except subprocess.TimeoutExpired:
            return "closed its pipe"


def _plain(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """What a header of JSON says, with its tensors and outcomes; anything unexpected raises an error."""
    if isinstance(value, list):
        return [_plain(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "tensor":
        if tensors[content].dtype not in _DTYPES:
            raise ValueError(f"{tensors[content].dtype} is no dtype of a result")
        return tensors[content]
    if kind == "dict":
        return {str(name): _plain(one, tensors) for name, one in content}
    results, trouble, error, hopeless = content
    found = tuple(_plain(one, tensors) for one in results)
    if not all(isinstance(one, (torch.Tensor, str)) for one in found):
        raise ValueError("an outcome holds tensors and strings")
    return Outcome(found, str(trouble)[:2000], str(error)[:200], hopeless is True)


@cache
def _fonts() -> dict[str, bytes]:
    """The list of fonts that matplotlib keeps, so that no submission looks for them again."""
    kept = Path(matplotlib.get_cachedir()).glob("fontlist-*.json")
    return {path.name: path.read_bytes() for path in kept}


# ------------------------------------------------------------------ walls


def _environment(folder: str) -> dict[str, str]:
    """A clean environment: nothing of the grader's own is in it."""
    places = [str(_COURSE.parent), *(str(one.parent) for one in _PACKAGES)]
    found = {
        "MPLBACKEND": "agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    found |= {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
    found |= dict.fromkeys(["HOME", "TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR"], folder)
    return found | {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def _walls() -> list[str]:
    """The beginning of a command that sees Python, its packages and an empty folder, and nothing else."""
    shown = [
        *map(
            Path,
            [
                "/usr",
                "/bin",
                "/lib",
                "/lib32",
                "/lib64",
                "/etc/ld.so.cache",
                "/etc/fonts",
            ],
        )
    ]
    shown += [
        Path(sys.prefix),
        Path(sys.base_prefix),
        Path(sysconfig.get_paths()["purelib"]),
    ]
    shown += [
        Path(sysconfig.get_paths()["platlib"]),
        Path(sys.executable).resolve().parent.parent,
    ]
    shown += _PACKAGES
    found = [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
    ]
    for path in dict.fromkeys([*shown, _COURSE]):
        found += ["--ro-bind-try", str(path), str(path)]
    for hidden in (_COURSE / "exercises", _COURSE / "in_page"):
        found += (
            ["--tmpfs", str(hidden), "--remount-ro", str(hidden)]
            if hidden.exists()
            else []
        )
    for hidden in [_COURSE / "grade.py", _COURSE / "_judge.py"]:
        found += ["--ro-bind", os.devnull, str(hidden)]
    found += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        f"{_DISK}",
        "--tmpfs",
        "/submission",
    ]
    return [*found, "--remount-ro", "/", "--chdir", "/submission", "--"]


def can_isolate() -> bool:
    """Whether bubblewrap is there and allowed to work."""
    if shutil.which("bwrap") is None:
        return False
    done = subprocess.run(
        [*_walls(), sys.executable, "-c", ""],
        env=_environment("/"),
        capture_output=True,
    )
    return done.returncode == 0
