"""The judge of a submission, which runs in a process of its own: calls go there, and numbers come back.

Requests are pickled, since only this side writes them. Replies are never unpickled: each is JSON and
tensors in the format of safetensors, of limited size, and anything else ends the submission. References,
cases and known mistakes stay here. What a check needs there, such as the function that makes a layer and
calls it, is sent as code (`cloudpickle`), because the other process has no `mha_course.exercises`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import matplotlib
import torch
from safetensors.torch import load as tensors_in

try:
    import cloudpickle  # type: ignore[import-untyped]
    import psutil  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    needed = "grading needs `pip install cloudpickle psutil`"
    raise ModuleNotFoundError(needed) from error

from attention_check._judging import SEED
from attention_check._results import Outcome, Verdict
from mha_course import _judged, _walls, exercises, plots  # noqa: F401 (it makes the list of fonts)
from mha_course._elsewhere import Elsewhere
from mha_course.exercises import efficiency, own

# Plain data take up to fifty times their length in the judge's memory; tensors, which it keeps for each case
# and converts, up to eight times.
_HEADER, _TENSORS = 4 * _walls.MEGABYTE, _judged.MOST
_GRACE = 10  # seconds after which what ignores an alarm is ended
_FREE = 0.05  # of the machine's memory, below which nothing can go on
TOO_LONG = "it takes too long"
_HELPERS = {
    "own.solution": own.solution,
    "efficiency.largest_tensor": efficiency.largest_tensor,
}
CHECKERS = [name for name in exercises.__all__ if name.startswith("check_")]

cloudpickle.register_pickle_by_value(exercises)


class EndedError(Exception):
    """The process of a submission has ended, or had to be ended; the message is a clause."""


class RaisedError(Exception):
    """What was asked for has raised an error there; the message is that error, in one line."""


class Submission:
    """A submission in its own process.

    Args:
        files: what is in its folder.
        isolate: whether bubblewrap separates it from everything else.
        end: when its time is over, by `time.monotonic`.
        image: of a container that separates it instead.
    """

    def __init__(
        self, files: dict[str, bytes], *, isolate: bool, end: float, image: str = ""
    ) -> None:
        self.end, self.doubts = end, list[str]()
        self.is_checking, self.check_end = False, inf
        self.folder = tempfile.TemporaryDirectory()
        self.socket, theirs = socket.socketpair()
        self.connection = Connection(os.dup(self.socket.fileno()))
        self.over, self.late = threading.Event(), inf
        self.why: Exception | None = None  # it had to be ended
        left = end - time.monotonic() + 10 * _GRACE
        self.container = _walls.Container(image, left) if image else None
        with tempfile.TemporaryFile() as calls:
            if self.container:
                command, environment = self.container.command, dict(os.environ)
            elif isolate:
                command, environment = _walls.behind_bubblewrap(calls.fileno())
            else:
                command, environment = _walls.alone(self.folder.name)
            self.process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                cwd=self.folder.name,
                env=environment,
                start_new_session=True,
                pass_fds=[calls.fileno()] if isolate else (),
            )
        theirs.close()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            if self.container:
                self.connection.send_bytes(_walls.course())
            folders = {path.partition("/")[0] for path in files}
            given = {name: one for name, one in _fonts().items() if name not in folders}
            given |= files
            self.ask(_judged.start, CHECKERS, _HELPERS, given, seconds=120)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Submission:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, and all that it has started."""
        self.over.set()
        self._kill()
        self.process.wait()
        self.connection.close()
        self.socket.close()
        self.folder.cleanup()

    def _kill(self) -> None:
        if self.container:
            self.container.end()
        with suppress(
            psutil.Error
        ):  # its walls may no longer fall with their outermost process
            for one in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    one.kill()
        with suppress(ProcessLookupError, OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(OSError):  # what it has started may still hold the other end
            self.socket.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        """End the submission when a reply is late, or when it takes too much memory, wherever it keeps it."""
        while not self.over.wait(0.25):
            sizes, memory = _sizes(self.process.pid), psutil.virtual_memory()
            if time.monotonic() > self.late:
                self.why = EndedError("could not be interrupted")
            elif len(sizes) > _walls.PROCESSES or sum(sizes) > _walls.MEMORY:
                self.why = EndedError("used too much memory, or too many processes")
            elif memory.available < _FREE * memory.total:
                self.why = MemoryError("this machine has hardly any left")
            if self.why:
                self._kill()

    # ------------------------------------------------------------------ asking
    def ask(self, function: Any, *arguments: Any, seconds: float = 60) -> Any:
        """Call a function there, and return its result; while it runs, it may ask for verdicts."""
        end = time.monotonic() + min(seconds, self.check_time())
        message: tuple[Any, ...] = function, *arguments
        while True:
            # What asks for verdicts for ever does not begin its time anew with each.
            left = end - time.monotonic()
            if left < -_GRACE:
                raise EndedError("could not be interrupted")
            left = max(left, 1e-6)  # with 0, the alarm would be off
            request = cloudpickle.dumps((left, *message))
            kind, value = self._exchange(request, left + _GRACE)
            if kind == "value":
                return value
            if kind == "raised":
                raise RaisedError(str(value)[:2000])
            try:
                verdict = self.check(*value, seconds=end - time.monotonic())
                message = None, verdict.right, verdict.message
            except (EndedError, MemoryError):
                raise
            except Exception as error:  # what is there may be anything
                message = None, False, f"Not yet: {error}"

    def check_time(self) -> float:
        """Return how many seconds are left, or raise an EndedError."""
        if (left := self.end - time.monotonic()) <= 0:
            raise EndedError("did not end in time")
        return left

    def check(
        self,
        checker: str,
        arguments: Any,
        options: Any,
        *,
        seconds: float = 60,
        seed: int = 0,
    ) -> Verdict:
        """Let a checker of the course judge what is there; `seed` changes the numbers that it draws."""
        if checker not in CHECKERS:
            raise ValueError(f"there is no checker {checker!r}")
        if self.is_checking:  # it could ask what is expected, or never end
            raise ValueError("an answer cannot ask for a verdict while it is checked")
        things: list[Elsewhere] = []
        given, named = self._given(arguments, things), self._given(options, things)
        self.is_checking, self.check_end = True, time.monotonic() + seconds
        before = SEED.set(seed)
        try:
            verdict: Verdict = getattr(exercises, checker)(*given, **named)
        except TimeoutError as error:
            verdict = Verdict(False, f"Not yet: {error}")
        finally:
            self.is_checking, self.check_end = False, inf
            SEED.reset(before)
        self.doubts += [doubt for one in things for doubt in one.doubts]
        return verdict

    def is_stub(self, answer: dict[str, Any]) -> bool:
        """Whether what is there still contains a line of dots."""
        return "number" in answer and bool(
            self.ask(own._is_stub, self._given(answer, []))
        )

    def _given(self, one: Any, things: list[Elsewhere]) -> Any:
        """What stands here for an argument there; `things` collects what is called there."""
        if isinstance(one, list):
            return [self._given(part, things) for part in one]
        if not isinstance(one, dict):
            return one
        if "number" not in one:
            return {name: self._given(part, things) for name, part in one.items()}
        if one["is_callable"]:
            is_module = bool(one["is_module"])
            things.append(Elsewhere(self._use, int(one["number"]), is_module=is_module))
            return things[-1]
        module, name = map(str, one["kind"])
        return type(name, (), {"__module__": module})()

    def _use(self, function: Any, *arguments: Any) -> Any:
        if (left := self.check_end - time.monotonic()) <= 0:
            raise TimeoutError(TOO_LONG)
        return self.ask(_judged.used, function, *arguments, seconds=left)

    def _exchange(self, message: bytes, seconds: float) -> tuple[str, Any]:
        """Send a message, and return the reply; a process that does not reply in time is ended."""
        self.late = time.monotonic() + seconds
        try:
            self.connection.send_bytes(message)
            header = self.connection.recv_bytes(_HEADER)
            return _unpacked(header, self.connection.recv_bytes(_TENSORS))
        except (EOFError, OSError):
            if self.why:
                raise self.why from None
            with suppress(subprocess.TimeoutExpired):
                status = self.process.wait(5)
                raise EndedError(f"ended with status {status}") from None
            raise EndedError("sent what is no result") from None
        except Exception as error:  # a reply may be anything
            raise EndedError("sent what is no result") from error
        finally:
            self.late = inf


def _unpacked(header: bytes, blob: bytes) -> tuple[str, Any]:
    """A reply: plain data in which tensors and outcomes stand; anything unexpected raises an error."""
    tensors = tensors_in(blob)

    def found(one: dict[str, Any]) -> Any:
        if "tensor" in one:
            return tensors[one["tensor"]]
        if "outcome" not in one:
            return one
        results, trouble, error, hopeless = one["outcome"]
        if not all(isinstance(result, (torch.Tensor, str)) for result in results):
            raise ValueError("an outcome contains tensors and strings")
        words = str(trouble)[:2000], str(error)[:200]
        return Outcome(tuple(results), *words, hopeless=hopeless is True)

    kind, value = json.loads(header, object_hook=found)
    return kind, value


def _sizes(process: int) -> list[int]:
    """The bytes of memory of a process and of all that it has started, each with its share of common ones."""
    sizes = list[int]()
    with suppress(psutil.Error):
        whole = psutil.Process(process)
        for one in [whole, *whole.children(recursive=True)]:
            with suppress(psutil.Error):
                memory = one.memory_full_info()
                sizes.append(getattr(memory, "pss", memory.rss))
    return sizes


@cache
def _fonts() -> dict[str, bytes]:
    """The list of fonts that matplotlib keeps, so that no submission looks for them again."""
    kept = Path(matplotlib.get_cachedir()).glob("fontlist-*.json")
    return {path.name: path.read_bytes() for path in kept}
