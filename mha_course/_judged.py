"""The process of a submission, as `grade` starts it: it runs cells, and uses the answers as it is told.

It has what the page gives, but not `mha_course.exercises`: the checkers are stand-ins that ask the judge,
who sends the arguments of each use and gets numbers back. Whatever a submission changes here, the verdict is
reached elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import platform
import resource
import signal
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import safetensors.torch
import torch
from torch import nn

from attention_check._results import COURSES, Outcome, Verdict, Wrong
from mha_course._elsewhere import keep
from mha_course._exercise import Exercise, randn, rows_sum_to_one

_GIGABYTE = 2**30
# Of files that have no name, such as those of `memfd_create`, each may take FSIZE of memory.
_LIMITS = {"FSIZE": _GIGABYTE // 10, "NOFILE": 100, "NPROC": 200, "CORE": 0}
_LIMITS |= {"SIGPENDING": 1000}  # timers count too; macOS has no such limit
_MEMORY = 3 * _GIGABYTE
MOST = 16 * 2**20  # bytes of results, which the judge compares
_PLAIN = (type(None), bool, int, float, str)


class _Judge:
    """The judge, as this process sees it."""

    connection: Connection
    replies: Connection  # the same but in a container, where both ways are pipes
    shell: Any  # of the notebook
    given: dict[str, Any]  # what stands for the checkers, by name

    def serve(self) -> Any:
        """Do what the judge asks for, until it answers a question."""
        while True:
            message = pickle.loads(self.connection.recv_bytes())  # noqa: S301 (the judge wrote it)
            seconds, function, *arguments = message
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            if function is None:
                return arguments
            try:
                reply = _packed("value", function(*arguments))
            except BaseException as error:  # the submission may raise anything
                reply = _packed("raised", said(error))
            self.send(reply)

    def send(self, message: tuple[bytes, bytes]) -> None:
        """Send a message, which no limit of time may tear."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for part in message:
            self.replies.send_bytes(part)

    def check(self, name: str, *arguments: Any, **options: Any) -> Verdict:
        """Let the judge check something, as a cell of the page does."""
        self.send(_packed("check", [name, described([*arguments]), described(options)]))
        right, message = self.serve()
        return Verdict(right, message)


JUDGE = _Judge()


def _packed(kind: str, value: Any) -> tuple[bytes, bytes]:
    """Plain data as JSON, with numbers in place of tensors, and the tensors as safetensors."""
    tensors: dict[str, torch.Tensor] = {}

    def plainly(one: Any) -> dict[str, Any]:
        if isinstance(one, Outcome):
            return {"outcome": [one.results, one.trouble, one.error, one.hopeless]}
        name = f"{len(tensors)}"
        tensors[name] = one.detach().cpu().contiguous().clone()
        return {"tensor": name}

    header = json.dumps([kind, value], default=plainly)
    if len(blob := safetensors.torch.save(tensors)) > MOST:
        raise ValueError("its results are over 16 MB long")
    return header.encode(), blob


def said(error: BaseException) -> str:
    """An error in one line."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}".partition("\n")[0][:2000]
    return type(error).__name__


def described(value: Any) -> Any:
    """A value as the judge gets it: plain data as they are, and anything else by a number."""
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [described(one) for one in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: described(one) for name, one in value.items()}
    kind, home = type(value), str(getattr(value, "__module__", "")).partition(".")[0]
    ours = hasattr(value, COURSES) or home in ("mha_lib", "mha_course")
    return {
        "number": keep(value), "is_callable": callable(value), "is_module": isinstance(value, nn.Module),
        "kind": [kind.__module__, kind.__name__], "is_ours": ours,
    }  # fmt: skip


def evaluate(expression: str) -> Any:
    """The value of an argument of a checker, by the names of the notebook."""
    return described(JUDGE.shell.ev(expression))


def run_cell(source: str) -> dict[str, Any]:
    """Run a cell; return its error, and which checkers it replaced."""
    result = JUDGE.shell.run_cell(source)
    error = result.error_before_exec or result.error_in_exec
    now = vars(sys.modules["mha_course.exercises"])
    return {
        "error": said(error) if error else "", "by_system": isinstance(error, OSError),
        "replaced": [name for name, one in JUDGE.given.items() if now.get(name) is not one],
    }  # fmt: skip


def used(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with gradients and on the CPU, whatever the notebook has switched."""
    with torch.enable_grad(), torch.device("cpu"), torch.random.fork_rng(devices=[]):
        return function(*arguments)


class _StandIn:
    """Stands for a checker: it asks the judge."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *arguments: Any, **options: Any) -> Verdict:
        return JUDGE.check(self.__name__, *arguments, **options)


def start(
    checkers: Sequence[str],
    helpers: dict[str, Callable[..., Any]],
    files: dict[str, bytes],
) -> None:
    """Put the stand-ins in their places, write the submission's files, and open the notebook's shell."""
    exercises: Any = types.ModuleType("mha_course.exercises")
    sys.modules["mha_course.exercises"] = exercises
    exercises.__path__ = []
    JUDGE.given = {name: _StandIn(name) for name in checkers}
    for path, helper in helpers.items():  # such as "own.solution"
        module, _, name = path.partition(".")
        part = types.ModuleType(module)
        sys.modules[f"mha_course.exercises.{module}"] = part
        setattr(part, name, helper)
    JUDGE.given["solution"] = helpers["own.solution"]
    engine = randn, rows_sum_to_one, Verdict, Wrong
    vars(exercises).update(JUDGE.given, **{one.__name__: one for one in engine})
    exercises.Exercise = Exercise
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    # What a notebook says for a GPU has no meaning here, and there is no compiler.
    torch.set_default_device = _no_device  # type: ignore[assignment]
    torch.compile = _as_it_is
    from IPython.core.interactiveshell import InteractiveShell

    JUDGE.shell = InteractiveShell.instance()
    # For `%matplotlib widget` and `%gui`: nobody looks, and what draws may not be installed.
    JUDGE.shell.enable_gui = JUDGE.shell.enable_matplotlib = _no_window
    sys.path.append(os.getcwd())  # what is installed cannot be replaced by a file


def _no_device(_: Any) -> None:
    """Stand for `torch.set_default_device`: there is no other device here."""


def _no_window(gui: Any = None) -> tuple[Any, str]:
    """Stand for what opens windows: there are none here."""
    return gui, "agg"


def _as_it_is(model: Any = None, **_: Any) -> Any:
    """Stand for `torch.compile`, also as a decorator with options."""
    return model if callable(model) else _as_it_is


def _too_long(*_: Any) -> None:
    raise TimeoutError("it takes too long")


def _forget_keys() -> None:
    """On Linux, leave the keys that the kernel holds for the grader's session: no file has them."""
    number = {"x86_64": 250, "aarch64": 219}.get(platform.machine())
    if number and sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a new session has none
            ctypes.CDLL(None).syscall(number, 1, None)


def main() -> None:
    """Set the limits, and serve the judge; what the submission prints goes nowhere."""
    JUDGE.connection, JUDGE.replies = Connection(os.dup(0)), Connection(os.dup(1))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    isolated = sys.argv[1] == "isolated"
    libraries = psutil.Process().memory_info().vms  # their addresses count too
    limits = _LIMITS | {"AS": libraries + _MEMORY}
    for name, most in limits.items():
        if isolated or name != "NPROC":  # outside, it would count all of your processes
            with suppress(ValueError, OSError, AttributeError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    with suppress(OSError, AttributeError):  # on Linux, it ends with the grader
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    _forget_keys()
    signal.signal(signal.SIGALRM, _too_long)
    with suppress(EOFError, OSError):  # the judge has gone
        JUDGE.serve()
    os._exit(0)
