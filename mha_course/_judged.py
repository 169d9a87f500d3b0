"""The process of a submission, as `grade` starts it: it runs cells, and uses the answers as it is told.

It has what the page gives, but not `mha_course.exercises`: the checkers are stand-ins that ask the judge,
who sends the arguments of each use and gets plain results back. Whatever a submission changes here, the
verdict is reached elsewhere.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import json
import os
import pickle
import resource
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import nn

from attention_check import _judging
from attention_check._elsewhere import keep
from attention_check._errors import COURSES
from attention_check._results import Outcome
from attention_check._verdicts import Verdict, Wrong

# Audit events, which Python raises before it does what they name.
_PROGRAMS = """subprocess.Popen os.system os.exec os.fork os.forkpty
    os.posix_spawn os.spawn""".split()
_CHANGES = """os.chmod os.link os.mkdir os.remove os.rename os.rmdir os.symlink
    os.truncate shutil.rmtree sqlite3.connect""".split()
_NETWORK = "socket.connect socket.getaddrinfo socket.sendto socket.sendmsg socket.bind"
_REFUSED = dict.fromkeys(_NETWORK.split(), "use the network")
_REFUSED |= dict.fromkeys(_PROGRAMS, "start another program")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PLAIN = (type(None), bool, int, float, str)


class _Judged:
    """This process: the pipes to the judge, the notebook's shell, and what went on."""

    requests: BinaryIO
    replies: BinaryIO

    def __init__(self) -> None:
        self.shell: Any = None
        self.refused: dict[str, None] = {}
        self.given: dict[str, Any] = {}  # the stand-ins, by name

    def tell(self, kind: str, value: Any) -> None:
        """Send plain data: a header of JSON, and the tensors in the format of safetensors."""
        tensors: dict[str, torch.Tensor] = {}
        header = json.dumps([kind, _plainly(value, tensors)]).encode()
        blob = safetensors.torch.save(tensors) if tensors else b""
        sizes = len(header).to_bytes(8, "big") + len(blob).to_bytes(8, "big")
        self.replies.write(sizes + header + blob)
        self.replies.flush()

    def serve(self) -> Any:
        """Do what the judge asks for, until it answers a question."""
        while True:
            with within(0):  # a limit that ends here would tear a message
                size = int.from_bytes(self.requests.read(8), "big")
                message = self.requests.read(size)
            if not message:
                os._exit(0)
            kind, seconds, given = pickle.loads(message)  # noqa: S301 (the judge wrote it)
            if kind == "answer":
                return given
            try:
                with within(seconds), torch.random.fork_rng(devices=[]):
                    function, *arguments = pickle.loads(given)  # noqa: S301
                    value = function(*arguments)
                self.tell("value", value)
            except BaseException as error:  # the submission may raise anything
                self.tell("raised", said(error))

    def ask(
        self, checker: str, arguments: Sequence[Any], options: dict[str, Any]
    ) -> Verdict:
        """Let the judge check something, as a cell of the page does."""
        self.tell("check", [checker, *described(arguments, options)])
        right, message = self.serve()
        return Verdict(right, message)


JUDGED = _Judged()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError, again and again, when the seconds have passed; 0 stops the clock for a while."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0 if seconds else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, 1.0 if left else 0)


def _too_long(*_: Any) -> None:
    raise TimeoutError("it takes too long")


def said(error: BaseException) -> str:
    """An error in one line."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}".partition("\n")[0][:2000]
    return type(error).__name__


def _plainly(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Data that JSON can hold, in which numbers stand for tensors."""
    if isinstance(value, torch.Tensor):
        tensors[f"{len(tensors)}"] = value.detach().cpu().contiguous().clone()
        return {"tensor": f"{len(tensors) - 1}"}
    if isinstance(value, Outcome):
        results = [_plainly(one, tensors) for one in value.results]
        return {"outcome": [results, value.trouble, value.error, value.hopeless]}
    if isinstance(value, (list, tuple)):
        return [_plainly(one, tensors) for one in value]
    if isinstance(value, dict):
        return {"dict": [[name, _plainly(one, tensors)] for name, one in value.items()]}
    return value


def described(arguments: Sequence[Any], options: dict[str, Any]) -> list[Any]:
    """Arguments as the judge gets them: plain ones as they are, others by a number."""
    return [
        [_described(one) for one in arguments],
        {name: _described(one) for name, one in options.items()},
    ]


def _described(value: Any) -> dict[str, Any]:
    names = isinstance(value, dict) and all(
        isinstance(x, str) for pair in value.items() for x in pair
    )
    if type(value) in _PLAIN or names:
        return {"plain": value}
    kind = type(value)
    return {
        "number": keep(value), "callable": callable(value), "is_module": isinstance(value, nn.Module),
        "kind": [kind.__module__, kind.__name__],
        "courses": hasattr(value, COURSES) or _is_ours(value),
        "borrows": sorted({one.__name__ for one in _inside(value) if _is_ours(one)}),
    }  # fmt: skip


def _is_ours(value: Any) -> bool:
    home = str(getattr(value, "__module__", "")).partition(".")[0]
    return home in ("mha_lib", "mha_course", "attention_check")


def _inside(value: Any) -> list[Any]:
    """The classes from which a class is derived, and the functions that a function wraps."""
    cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    wrapped = [
        getattr(value, name, None) for name in ("__wrapped__", "func", "__func__")
    ]
    found = [*getattr(value, "__mro__", ()), *wrapped, *cells]
    return [one for one in found if isinstance(one, (type, types.FunctionType))]


def evaluate(call: str) -> list[Any]:
    """The arguments of a call of a checker, by the names of the notebook."""
    node: Any = ast.parse(call, mode="eval").body
    value = JUDGED.shell.ev
    options = {one.arg: value(ast.unparse(one.value)) for one in node.keywords}
    return described([value(ast.unparse(one)) for one in node.args], options)


def run_cell(source: str) -> dict[str, Any]:
    """Run a cell; return its error, what it tried to do, and which checkers it replaced."""
    JUDGED.refused.clear()
    result = JUDGED.shell.run_cell(source)
    error = result.error_before_exec or result.error_in_exec
    module = sys.modules["mha_course.exercises"]
    patched = [
        name
        for name, one in JUDGED.given.items()
        if getattr(module, name, None) is not one
    ]
    return {
        "error": said(error) if error else "",
        "refused": list(JUDGED.refused),
        "patched": patched,
    }


def others_like(stub: Any) -> list[list[Any]]:
    """The notebook's own functions that take as many arguments as a stub, with their names."""
    count = getattr(getattr(stub, "__code__", None), "co_argcount", -1)
    space = JUDGED.shell.user_ns.items()
    own = [(name, one) for name, one in space if isinstance(one, types.FunctionType)]
    alike = [
        pair
        for pair in own
        if pair[1].__code__.co_argcount == count and pair[1] is not stub
    ]
    return [
        [n, _described(x)]
        for n, x in alike
        if x.__module__ == "__main__" and not hasattr(x, COURSES)
    ]


class _StandIn:
    """A checker in this process, which asks the judge."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *arguments: Any, **options: Any) -> Verdict:
        return JUDGED.ask(self.__name__, arguments, options)


def start(
    checkers: Sequence[str],
    helpers: dict[str, Callable[..., Any]],
    files: dict[str, bytes],
) -> None:
    """Put the stand-ins in their places, write the submission's files, and open the notebook's shell."""
    exercises: Any = types.ModuleType("mha_course.exercises")
    exercises.__path__ = []
    JUDGED.given.update(
        {name: _StandIn(name) for name in checkers}, solution=helpers["own.solution"]
    )
    vars(exercises).update(
        JUDGED.given, Exercise=_judging.Exercise, Verdict=Verdict, Wrong=Wrong
    )
    vars(exercises).update(
        randn=_judging.randn, rows_sum_to_one=_judging.rows_sum_to_one
    )
    sys.modules["mha_course.exercises"] = exercises
    for path, helper in helpers.items():
        module, _, name = path.partition(".")
        part = sys.modules.setdefault(
            f"mha_course.exercises.{module}", types.ModuleType(module)
        )
        setattr(part, name, helper)
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    # What a notebook says for a GPU has no meaning here, and there is no compiler.
    torch.set_default_device = _no_device  # type: ignore[assignment]
    torch.compile = _as_it_is
    from IPython.core.interactiveshell import InteractiveShell

    from mha_course import plots  # noqa: F401 (matplotlib looks for fonts, which the guard would refuse)

    JUDGED.shell = InteractiveShell.instance()
    sys.path.insert(0, os.getcwd())
    sys.addaudithook(functools.partial(_guard, os.path.realpath(".")))
    torch.save = _announced(torch.save)
    safetensors.torch.save_file = _announced(safetensors.torch.save_file)


def _no_device(_: Any) -> None:
    """Stand for `torch.set_default_device`: there is no other device here."""


def _as_it_is(model: Any = None, **_: Any) -> Any:
    """Stand for `torch.compile`, also as a decorator with options."""
    return model if callable(model) else _as_it_is


def used(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with gradients and on the CPU, whatever the notebook has switched."""
    with torch.enable_grad(), torch.device("cpu"):
        return function(*arguments)


def _announced(save: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which opens its file outside Python, where no hook sees it."""

    @functools.wraps(save)
    def announced(*arguments: Any, **options: Any) -> Any:
        for path in [*arguments, *options.values()]:
            sys.audit("open", path, "wb", os.O_WRONLY)
        return save(*arguments, **options)

    return announced


def _guard(folder: str, event: str, given: Any) -> None:
    """Refuse, and note, what would have an effect outside a folder."""
    refused = _REFUSED.get(event, "")
    opens = event == "open" and given[2] & _WRITES
    for path in given if event in _CHANGES else given[: int(bool(opens))]:
        if isinstance(path, (str, bytes, os.PathLike)):  # a descriptor was opened
            place = os.path.realpath(os.fsdecode(path))
            if place != os.devnull and os.path.commonpath([place, folder]) != folder:
                refused = f"write {place}"
    if refused:
        JUDGED.refused[refused] = None
        raise PermissionError(f"a submission may not {refused}")


def main() -> None:
    """Set the limits, and serve the judge; what the submission prints goes nowhere."""
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    JUDGED.requests, JUDGED.replies = (
        os.fdopen(requests, "rb"),
        os.fdopen(replies, "wb"),
    )
    limits = json.loads(sys.argv[1])
    for name, most in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (most, most))
    with suppress(
        OSError, AttributeError
    ):  # when the grader ends, the kernel ends this process (Linux)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGALRM, _too_long)
    JUDGED.serve()
