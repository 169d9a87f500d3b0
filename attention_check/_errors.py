"""What an answer raises, in words: the error, the line that the author of the answer wrote, and a clue."""

from __future__ import annotations

import linecache
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch

_OURS = ("mha_lib", "attention_check", "mha_course")
COURSES = "_is_the_courses"  # an attribute of what the course has defined in place of a reader's piece
_INSTALLED = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")}
NOT_THE_READERS = (*_INSTALLED, str(Path(torch.__file__).parent), "<frozen")


# Functions of an error that say what to write instead, or "". The course adds some, for newcomers.
CLUES: list[Callable[[BaseException], str]] = []


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
