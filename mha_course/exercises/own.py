"""Keep what a reader wrote: `solution` does not replace it, and after an error, its pieces are named."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

from IPython import get_ipython

from attention_check._results import COURSES, Verdict
from mha_course import _resume
from mha_course._messages import message
from mha_lib import _checks

Piece = TypeVar("Piece", bound=Callable[..., Any])
ACCEPTED: dict[str, str] = {}
"""The pieces of the reader that were accepted: name -> the cell that defines it."""
FROM_FILE = set[str]()
"""The names of those that `mha_course.built` has from a file."""
KEEPERS: list[Callable[[str, str], None]] = []
"""Each is called with the name and the cell of a piece that was accepted; `kept` writes it into a file."""


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
        accept(name)
        return own

    return choose


def accept(name: str) -> None:
    """Note that the reader's piece is right: it is kept in the folder, and `mha_course.built` gives it."""
    text = written().get(name)
    if text is None or ACCEPTED.get(name) == text:
        return
    ACCEPTED[name] = text
    for keep in KEEPERS:
        keep(name, text)


def accept_what_is_right(result: Any) -> None:
    """After a cell whose last line checks a piece of the reader's and finds it right, accept the piece.

    IPython calls it after each cell; `result` contains the cell and its value.
    """
    if not isinstance(result.result, Verdict) or not result.result:
        return
    last = _parsed(result.info.raw_cell).body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        for one in last.value.args[:1]:
            if isinstance(one, ast.Name):
                own = get_ipython().user_ns.get(one.id)
                if getattr(own, "__name__", "") == one.id and not hasattr(own, COURSES):
                    accept(one.id)


def tell_whose(info: Any) -> None:
    """Before a cell that imports pieces, say which of them are the reader's; `info` contains the cell.

    Nothing is said to a reader who has had none accepted.
    """
    from mha_course import built
    from mha_course._whose import used_by

    names = [
        alias.name
        for node in _parsed(info.raw_cell or "").body
        if isinstance(node, ast.ImportFrom) and node.module == built.__name__
        for alias in node.names
    ]
    if ACCEPTED and names:
        print(used_by(", ".join(names), ACCEPTED, vars(built)))


def written() -> dict[str, str]:
    """The last cells of this session in which the reader has defined pieces: name -> the cell's text.

    Cells as the pages have them, and folded solutions, are not the reader's.
    """
    from mha_course import built

    shell, texts = get_ipython(), dict[str, str]()
    known = {cell.digest for page in _resume.pages() for cell in page.cells}
    for source in [] if shell is None else shell.user_ns.get("In", []):
        for node in [] if _resume.digest(source) in known else _parsed(source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if node.name in built.__all__ and "solution(" not in decorators:
                    texts[node.name] = source
    return texts


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
        theirs, is_kept = getattr(built, name), name in FROM_FILE
        own = names.get(name, theirs if is_kept else None)
        if own is None or hasattr(own, COURSES):
            continue
        if name not in words and not used & {one.__code__ for one in _functions(own)}:
            continue
        if not is_kept and (own is theirs or _same_text(own, theirs)):
            continue  # imported, or complete on the page and unchanged
        told = "stub" if _is_stub(own) else "took-part-kept" if is_kept else "took-part"
        print(message(__file__, told, name=name))


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
    shell.events.register("pre_run_cell", tell_whose)
    for after in (explain_error, accept_what_is_right):
        shell.events.register("post_run_cell", after)
