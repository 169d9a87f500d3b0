"""Keep what a reader wrote: `solution` does not replace it, and after an error, its pieces are named."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

from IPython import get_ipython

from attention_check._errors import COURSES
from attention_check._verdicts import Verdict
from mha_lib import _checks

Piece = TypeVar("Piece", bound=Callable[..., Any])


def solution(check: Callable[..., Verdict]) -> Callable[[Piece], Piece]:
    """Keep what the reader wrote under the same name if `check` accepts it; otherwise, define the solution.

    The folded solution of a page can therefore always be run, and the cells below use whichever is defined.

    Raises:
        TypeError: `check` is not callable.

    Example:
        >>> from mha_course.exercises import check_split_heads
        >>> def split_heads(x, num_heads):  # the reader's
        ...     return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)
        >>> @solution(check_split_heads)
        ... def split_heads(x, num_heads):
        ...     return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        Your `split_heads` was accepted, so the page goes on with it.
    """
    if not callable(check):
        raise _checks.wrong_type("check", "callable", check)
    names = sys._getframe(1).f_globals

    def choose(ours: Piece) -> Piece:
        name = ours.__name__
        own: Piece | None = names.get(name)
        if own is None or hasattr(own, COURSES) or not check(own):
            setattr(ours, COURSES, True)
            return ours
        print(f"Your `{name}` was accepted, so the page goes on with it.")
        return own

    return choose


def explain_error(result: Any) -> None:
    """After a cell that failed, name the reader's pieces that it used, and offer the course's.

    IPython calls it after each cell; `result` contains the cell and its error.
    """
    error = getattr(result, "error_in_exec", None)
    if error is None:
        return
    from mha_course import built

    names = get_ipython().user_ns
    used, trace = set(), error.__traceback__
    while trace is not None:
        used.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    words = {
        node.id
        for node in ast.walk(_parsed(result.info.raw_cell))
        if isinstance(node, ast.Name)
    }
    for name in built.__all__:
        own = names.get(name)
        course = f"`from mha_course.built import {name}`"
        if own is not None and not hasattr(own, COURSES):
            if name not in words and not used & {
                one.__code__ for one in _functions(own)
            }:
                continue
            if own is getattr(built, name) or _same_text(own, getattr(built, name)):
                continue  # imported, or complete on the page and unchanged
            if _is_stub(own):
                print(
                    f"`{name}` is still a stub: write it, or run the folded solution below its check."
                )
            else:
                print(
                    f"Your `{name}` took part in this. To go on with the course's: {course}."
                )


def _parsed(cell: str) -> ast.Module:
    try:
        return ast.parse(cell)
    except (SyntaxError, RecursionError, MemoryError):  # a magic command, or too deep
        return ast.Module([], [])


def _functions(thing: Any) -> list[types.FunctionType]:
    """A function, or the methods of a class."""
    parts = [thing, *vars(thing).values()] if inspect.isclass(thing) else [thing]
    return [one for one in parts if inspect.isfunction(one)]


def _texts(thing: Any) -> list[ast.AST]:
    """The parsed sources of a function or of the methods of a class, as far as they are known."""
    try:
        sources = [inspect.getsource(one) for one in _functions(thing)]
        return [ast.parse(inspect.cleandoc("\n" + source)) for source in sources]
    except (OSError, TypeError, SyntaxError):
        return []


def _same_text(own: Any, ours: Any) -> bool:
    texts = [ast.dump(text) for text in _texts(own)]
    return bool(texts) and texts == [ast.dump(text) for text in _texts(ours)]


def _is_stub(thing: Any) -> bool:
    """Whether the source of a function or class still contains a line of dots."""
    return any(
        isinstance(node, ast.Expr) and getattr(node.value, "value", None) is ...
        for text in _texts(thing)
        for node in ast.walk(text)
    )


if (shell := get_ipython()) is not None:
    shell.events.register("post_run_cell", explain_error)
