"""Helpers for chapters: set the seed, show source code, explain solutions, compare with the browser."""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import random
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from IPython.display import Markdown

from mha_course._checks import check_seed
from mha_course._messages import message
from mha_lib._checks import check_type, refusal, wrong_type

WHY = Path(__file__).parent / "questions" / "why"

if TYPE_CHECKING:
    from mha_course.widgets import Explorer


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch with a number in 0..2^32-1.

    Raises:
        TypeError: `seed` is not an int.
        ValueError: `seed` is out of range.

    Example:
        >>> set_seed(7)
        >>> first = torch.rand(1)
        >>> set_seed(7)
        >>> torch.equal(first, torch.rand(1))
        True
    """
    check_seed("seed", seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002, the global state is what a reader's np.random calls use
    torch.manual_seed(seed)


def show_source(*objects: Any) -> Markdown:
    """Show the source code of functions, methods or classes without docstrings, so that it fits on a screen.

    Raises:
        TypeError: an object has no Python source.

    Example:
        >>> print(show_source(set_seed).data.splitlines()[1])
        def set_seed(seed: int) -> None:
    """
    texts = [inspect.cleandoc("\n" + _source(thing)) for thing in objects]
    return Markdown("```python\n" + "\n\n\n".join(texts) + "\n```")


def _source(thing: Any) -> str:
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        kinds = "functions, methods or classes with Python source"
        raise wrong_type("objects", kinds, thing) from None
    text = textwrap.dedent(text)
    lines, drop = text.splitlines(), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first, said = node.body[0], ast.get_docstring(node) is not None
            last = (first.end_lineno or first.lineno) if said else 0
            drop |= {*range(first.lineno, last + 1)}
    # Also remove a blank line that only separates the docstring from the code.
    drop |= {i + 1 for i in drop if i < len(lines) and not lines[i].strip()}
    return "\n".join(line for i, line in enumerate(lines, 1) if i not in drop)


def why(name: str) -> Markdown:
    r"""Show why the tempting answer fails, folded, below a solution.

    The name consists of a page in `mha_course/questions/why/` and a heading there, such as
    "05_positional_encoding/rotary". The heading is the name of the exercise's checker.

    Raises:
        TypeError: `name` is not a str.
        ValueError: there is no such heading, or the page has it twice.

    Example:
        >>> why("02_scoring_functions/masked-softmax").data.splitlines()[0]
        '<details><summary>Why the tempting answer fails</summary>'
    """
    check_type("name", name, str)
    page, _, own = name.partition("/")
    path = WHY / f"{page}.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    parts = re.split(r"^## (\S+)\n", text, flags=re.MULTILINE)[1:]
    names, reasons = parts[::2], parts[1::2]
    if names.count(own) != 1:
        raise refusal("name", f"be one heading of {path.name}, {names}", repr(name))
    summary = "<details><summary>Why the tempting answer fails</summary>"
    reason = reasons[names.index(own)].strip()
    return Markdown(f"{summary}\n\n{reason}\n\n</details>")


@contextlib.contextmanager
def if_installed(*names: str) -> Iterator[None]:
    """Go on without what is not installed: cells that need one of these names are not run.

    If the block raises a `FileNotFoundError`, its message is printed. From then on, a cell that uses one of
    the names, or a name that such a cell would have bound, prints one sentence instead of failing. Outside of
    a notebook the error is raised.

    Example:
        >>> with if_installed("number"):
        ...     number = 3
    """
    import IPython

    try:
        yield
    except FileNotFoundError as error:
        shell = IPython.get_ipython()
        if shell is None:
            raise
        print(message(__file__, "missing", what=error))
        shell.ast_transformers.append(_Without(names))


class _Without(ast.NodeTransformer):
    """Replaces a cell that uses a missing name by a sentence, and adds the names that it would have bound."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.missing = set(names)

    def visit_Module(self, cell: ast.Module) -> ast.Module:
        flag = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        read, bound = _names(compile(cell, "<cell>", "exec", flags=flag))
        lacking = sorted(read & self.missing)
        if not lacking:
            self.missing -= (
                bound  # a reader may bind a name again, with something that is there
            )
            return cell
        imports = (ast.Import, ast.ImportFrom)
        kept: list[ast.stmt] = [part for part in cell.body if isinstance(part, imports)]
        imported = _names(compile(ast.Module(kept, []), "<cell>", "exec"))[1]
        self.missing |= bound - imported
        said = message(__file__, "not-run", names=", ".join(lacking))
        told = ast.parse(f"print({said!r})").body
        return ast.fix_missing_locations(ast.Module([*kept, *told], []))


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """The global names that compiled code reads before it binds them, and those that it binds."""
    read, bound = set[str](), set[str]()
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            bound.add(step.argval)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL") and step.argval not in bound:
            read.add(step.argval)
    for inner in filter(lambda part: isinstance(part, CodeType), code.co_consts):
        read |= _names(inner)[0] - bound  # a function runs later
    return read, bound


def compare_with_browser(widget: Explorer) -> None:
    """Print the largest difference between the numbers that a browser computed for a widget and torch's.

    While a page is built, no browser draws the widget, and nothing is printed.

    Raises:
        TypeError: `widget` is not an `Explorer`.
        ValueError: the browser reported different numbers or shapes than `numbers` has.

    Example:
        >>> from mha_course.widgets import RotationDial
        >>> compare_with_browser(RotationDial())  # not drawn yet: prints nothing
    """
    from mha_course.widgets import Explorer

    check_type("widget", widget, Explorer)
    if (difference := widget.browser_difference()) is not None:
        print(f"largest difference between torch and your browser: {difference:.1e}")
