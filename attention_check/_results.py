"""Verdicts, known wrong answers, and results: read as tensors, compared, and their difference in words."""

from __future__ import annotations

import linecache
import re
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from io import StringIO
from itertools import cycle, permutations
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mha_lib import _checks

_OURS = ("mha_lib", "attention_check", "mha_course")
COURSES = "_is_the_courses"  # an attribute of what the course has defined in place of a reader's piece
_INSTALLED = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")}
NOT_THE_READERS = (*_INSTALLED, str(Path(torch.__file__).parent), "<frozen")
# Functions of an error that say what to write instead, or "". The course adds some, for newcomers.
CLUES: list[Callable[[BaseException], str]] = []


@dataclass(frozen=True)
class Outcome:
    """The outcome of an answer in one case: its results, or why there are none."""

    results: tuple[Any, ...] = ()
    trouble: str = ""  # a clause: "it raises ValueError: ..."
    error: str = ""  # the name of the exception
    hopeless: bool = False  # comparing with known wrong answers is pointless

    def agrees(self, other: Outcome, atol: float, rtol: float) -> bool:
        """Whether both raised the same kind of exception or returned the same numbers."""
        if self.trouble or other.trouble:
            return self.error == other.error != ""
        pairs = zip(self.results, other.results, strict=False)
        same = (nearly_equal(mine, theirs, atol, rtol) for mine, theirs in pairs)
        return len(self.results) == len(other.results) and all(same)


def a_kind_of(value: object) -> str:
    """The type of a value with its article: a numpy.ndarray, an int."""
    kind = type(value)
    built_in = kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if built_in else f"{kind.__module__}.{kind.__name__}"
    name = "torch.Tensor" if kind is Tensor else name
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def number_of_results(number: int) -> str:
    return "1 result" if number == 1 else f"{number} results"


def listed(labels: Sequence[str]) -> str:
    """Join labels as in "a, b and c"; if one contains a comma, semicolons separate them."""
    if len(labels) < 2:
        return "".join(labels)
    if any(comma in label for label in labels for comma in ",，"):
        return reduce(lambda start, label: f"{start}; {label}", labels)
    start = reduce(lambda start, label: f"{start}, {label}", labels[:-1])
    return f"{start} and {labels[-1]}"


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors in an argument, with names: itself, those in a list, or the parameters of a module."""
    if isinstance(value, Tensor):
        yield name, value
    elif is_array(value) and value.dtype != object:
        yield name, torch.from_numpy(value)
    elif callable(getattr(value, "named_parameters", None)):
        yield from value.named_parameters()
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(name, one)
    elif isinstance(value, (int, float)):
        yield name, torch.tensor(value)


def is_array(value: object) -> bool:
    """Whether a value comes from NumPy, which need not be installed."""
    return type(value).__module__ == "numpy" and hasattr(value, "__array__")


def as_tensor(value: Any, arrays: bool) -> Any:
    """Return a result as a detached tensor, or as a string; raise a TypeError if it is neither."""
    if value is None:
        raise TypeError("None")
    if isinstance(value, Tensor):
        if value.is_meta:
            raise TypeError("a tensor on the device `meta`, which holds no numbers")
        if value.is_nested or value.layout != torch.strided:
            raise TypeError("a sparse or nested tensor, not an ordinary one")
        return value.detach().clone()
    if isinstance(value, str) and arrays:
        return value
    with suppress(ImportError, TypeError, ValueError, RuntimeError, BufferError):
        import numpy as np  # for answers that return something other than a tensor

        if arrays and hasattr(value, "__dlpack__") and not is_array(value):
            return torch.utils.dlpack.from_dlpack(value).detach().clone()
        if arrays and (array := np.asarray(value)).dtype.kind in "biuf":
            return torch.tensor(array)
    # A tuple of tensors is often a result too many; torch's warning would come before the verdict.
    silent = warnings.catch_warnings(action="ignore")
    with suppress(TypeError, ValueError, RuntimeError), silent:  # NumPy may be missing
        if arrays and isinstance(value, (int, float, list, tuple)):
            floats = torch.tensor(value).is_floating_point()
            return torch.tensor(value, dtype=torch.float64 if floats else None)
    raise TypeError(f"{a_kind_of(value)}, where a torch.Tensor is expected")


def kind_of(tensor: Tensor) -> str:
    if tensor.dtype.is_complex:
        return "complex"
    number = "float" if tensor.is_floating_point() else "integer"
    return "bool" if tensor.dtype == torch.bool else number


def nearly_equal(mine: Any, other: Any, atol: float, rtol: float) -> bool:
    """Whether two results are equal within the tolerance, in float64; NaN equals NaN."""
    if isinstance(mine, str) or isinstance(other, str):
        return type(mine) is type(other) and bool(mine == other)
    if mine.shape != other.shape:
        return False
    if "float16" in f"{mine.dtype} {other.dtype}":
        atol, rtol = max(atol, 2e-3), max(rtol, 1e-2)
    if (
        "int" in f"{mine.dtype} {other.dtype}"
    ):  # a count is exact, as far as float32 can say
        rtol = min(rtol, 1e-7)
    mine, other = (x.to("cpu", torch.float64) for x in (mine, other))
    return torch.allclose(mine, other, atol=atol, rtol=rtol, equal_nan=True)


def compare(
    axes: tuple[str, ...], mine: Tensor, right: Tensor, atol: float, rtol: float
) -> str:
    """How two tensors of the same shape differ, as the end of a clause."""
    if right.dtype == torch.bool:
        # A single False is not an inversion.
        if mine.numel() > 1 and torch.equal(mine, ~right):
            return "is inverted: False where True is expected, and vice versa"
        place = (mine != right).nonzero()[0].tolist()
        there = bool(mine[tuple(place)])
        return f"is {there}{_at(place)}, where {not there} is expected"
    mine, right = (x.to("cpu", torch.float64) for x in (mine, right))
    same = partial(nearly_equal, other=right, atol=atol, rtol=rtol)
    if not bool(mine.any()):
        return "is zero everywhere"
    scale = float((mine * right).sum() / right.square().sum().clamp(min=1e-30))
    if scale and same(mine / scale):
        if mine.numel() == 1 and f"{scale:.3g}" == "1":
            return f"is {float(mine):.12g}, where {float(right):.12g} is expected"
        return f"is {scale:.3g} times what is expected"
    offset = (mine - right).mean()
    if mine.numel() > 1 and same(mine - offset):
        return f"is what is expected plus {float(offset):.3g}"
    for order in list(permutations(range(mine.ndim)))[1:]:
        if same(mine.permute(order)):
            return "holds the right numbers with its axes swapped"
    titles = [f"axis {axis}" for axis in range(mine.ndim)]
    if len(axes) == mine.ndim:
        titles = [f"{title} ({name})" for title, name in zip(titles, axes, strict=True)]
    for axis, title in enumerate(titles):
        if mine.shape[axis] > 1 and same(mine.flip(axis)):
            return f"holds the right numbers in reverse order along {title}"
    got, wanted = (x.flatten().sort().values for x in (mine, right))
    if mine.numel() > 1 and nearly_equal(got, wanted, atol, rtol):
        return "holds the right numbers in a different order: look at transpose, reshape and view"
    near = torch.isclose(mine, right, atol=atol, rtol=rtol, equal_nan=True)
    for axis, title in enumerate(titles):
        good = near.transpose(0, axis).flatten(1).all(1) if mine.ndim > 1 else near
        if bool(good.any()):
            return f"is right at {_places(good)} of {title}, wrong at {_places(~good)}"
    if nearly_equal(mine, right, 2e-3, 2e-3):
        return "is right to about 3 digits only: is a part of it computed in half precision?"
    distance = (mine - right).abs().nan_to_num(torch.inf)
    place = [int(i) for i in torch.unravel_index(distance.argmax(), mine.shape)]
    here = tuple(place)
    is_there, expected = _told_apart(mine[here], right[here])
    return f"is {is_there}{_at(place)}, where {expected} is expected"


def _told_apart(mine: Tensor, right: Tensor) -> list[str]:
    """Two numbers with as many digits as it takes to see that they differ."""
    for digits in (2, 4, 6, 9):
        said = [f"{x.item():.{digits}g}" for x in (mine, right)]
        if said[0] != said[1]:
            break
    return said


def _at(place: list[int]) -> str:
    return f" at {place}" if place else ""


def _places(flags: Tensor) -> str:
    places = flags.nonzero().flatten().tolist()
    return ", ".join(map(str, places[:5])) + (", …" if len(places) > 5 else "")


def seed_draws(number: int) -> None:
    """Seed the draws of an answer on a CPU; `torch.manual_seed` is slow, since it looks for other devices."""
    torch.default_generator.manual_seed(number)


def quietly() -> AbstractContextManager[Any]:
    """What a reader prints in these calls is not shown, because the first call has printed it."""
    return redirect_stdout(StringIO())


def changes(
    tried: Callable[..., Outcome],
    outcomes: Mapping[str, Outcome],
    atol: float,
    rtol: float,
) -> bool:
    """Whether one of many further calls, in as much time as nobody notices, gives other results."""
    end = time.monotonic() + 0.1
    for seed, case in zip(range(2, 26), cycle(outcomes), strict=False):
        with quietly():
            again = tried(case, seed=seed)
        if not outcomes[case].agrees(again, atol, rtol):
            return True
        if time.monotonic() > end:
            break
    return False


def describe_error(error: BaseException) -> str:
    kind = type(error).__name__
    number, piece, text = line_of(error)
    where = f" in line {number}" if number else ""
    where += f" of your `{piece}`" if piece else ""
    where += f", `{text}`" if text else ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    first = re.sub(r"\b0x[0-9a-fA-F]+\b", "0x…", first)[:200].rstrip(".")
    first += "".join(f". {clue}" for one in CLUES if (clue := one(error)))
    return f"it raises {kind}{where}: {first}" if first else f"it raises {kind}{where}"


def no_way_back(error: RuntimeError) -> str:
    """A clause on why autograd could not compute gradients."""
    if "inplace" in str(error) or "changed in place" in str(error):
        return (
            "the backward pass needs a tensor as it was, and it was changed in place later (`x[t] = ...`, "
            "`x += ...`). Use a copy, `x.clone()`, or join the parts with `torch.cat` or `torch.stack`"
        )
    return f"the backward pass fails: {str(error).strip().splitlines()[0][:200].rstrip('.')}"


def line_of(error: BaseException) -> tuple[int, str, str]:
    """Number, piece and text of the last line that the reader wrote; (0, "", "") if there is none.

    The piece is the function or class that the line belongs to. Lines of the course's own pieces do not
    count, as they lie in folded cells.
    """
    found, trace = (0, "", ""), error.__traceback__
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        package = str(names.get("__name__")).partition(".")[0]
        piece = code.co_qualname.partition(".")[0]
        theirs = package not in _OURS and not code.co_filename.startswith(
            NOT_THE_READERS
        )
        if theirs and not hasattr(names.get(piece), COURSES):
            linecache.checkcache(code.co_filename)  # the file may have been edited
            text = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            named = piece if piece.isidentifier() else ""
            found = trace.tb_lineno, named, text.replace("`", "'")[:80]
        trace = trace.tb_next
    return found


Answer: TypeAlias = Callable[..., Any]


# What is said of an answer whose numbers change from call to call, and of one that changes its arguments.
AGAIN = (
    "called again with the same arguments, it returns different numbers. Does it draw random numbers "
    "(dropout that is always on?), or keep something from the previous call?"
)
IN_PLACE = (
    "Work on a copy, or use operations that return a new tensor (no `x[...] = ...`, `x += ...`, or names "
    "that end with `_`)"
)


class UnfinishedError(NotImplementedError):
    """Raised by the `run` of an exercise; its message says what the answer lacks."""


class FaultError(UnfinishedError):
    """Raised by the `run` of an exercise; its message says what is wrong with an answer that is complete."""


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a checker returns: whether an answer is `right`, and a `message` that begins "Right" or "Not yet".

    A verdict is true if the answer is right, and a notebook shows its message.

    Raises:
        TypeError: `right` is not a bool, or `message` not a str.

    Example:
        >>> Verdict(False, "Not yet: the softmax runs over the queries.")
        Not yet: the softmax runs over the queries.
        >>> assert Verdict(True, "Right in all 3 cases.")
    """

    right: bool
    message: str
    fault: Wrong | None = field(default=None, compare=False)  # the known one that it is

    def __post_init__(self) -> None:
        _checks.check_type("right", self.right, bool)
        _checks.check_type("message", self.message, str)

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.message

    def _repr_markdown_(self) -> str:
        """The message, with characters outside code escaped, so that they do not count as formatting."""
        code_or_sign = r"(`[^`]*`)|([\\*_<>$\[\]])"
        return re.sub(code_or_sign, lambda at: at[1] or f"\\{at[2]}", self.message)


@dataclass(frozen=True)
class Wrong:
    """A known wrong answer to an exercise.

    Args:
        name: what is wrong, as a clause: "the softmax runs over the queries".
        cause: one sentence on why it is wrong and what to look at.
        answer: a function that makes this mistake.
        convention: whether it is right elsewhere, so that it only differs.

    Raises:
        TypeError: `name` or `cause` is not a str, or `answer` is not callable.

    Example:
        >>> Wrong("the mask is inverted", "True means: may attend.", lambda mask: ~mask).name
        'the mask is inverted'
    """

    name: str
    cause: str
    answer: Answer = field(repr=False)
    convention: bool = False

    def __post_init__(self) -> None:
        _checks.check_type("name", self.name, str)
        _checks.check_type("cause", self.cause, str)
        check_callable("answer", self.answer)


def check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise _checks.wrong_type(name, "callable", value)


# How a sentence ends, in English and, in a page that is translated, in Chinese.
_ENDS = (".", "?", "!", ".)", "。", "？", "！", "。）")


def not_yet(sentence: str, fault: Wrong | None = None) -> Verdict:
    whole = sentence.endswith(_ENDS)
    told = f"Not yet: {sentence}" if whole else f"Not yet: {sentence}."
    return Verdict(False, told, fault)
