"""Helpers for chapters: set the seed, show source code, check guesses, explain, compare with the browser."""

from __future__ import annotations

import inspect
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from mha_lib._checks import check_seed, check_type

if TYPE_CHECKING:
    from IPython.display import Markdown

    from mha_lib.widgets import Explorer


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch.

    Args:
        seed: in 0..2^32-1.

    Raises:
        TypeError: `seed` is not an int.
        ValueError: it is out of range.

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


def show_source(*objects: Any, docstring: bool = False) -> Markdown:
    """Show the source code of functions, methods or classes, highlighted on the page.

    Args:
        objects: what to show, one after another.
        docstring: keep the docstrings; without them the code fits on a screen.

    Returns:
        Markdown that Jupyter displays.

    Raises:
        TypeError: an object has no Python source.

    Example:
        >>> print(show_source(set_seed).data.splitlines()[1])
        def set_seed(seed: int) -> None:
    """
    from IPython.display import Markdown

    texts = [inspect.cleandoc("\n" + _source(thing, docstring)) for thing in objects]
    return Markdown("```python\n" + "\n\n\n".join(texts) + "\n```")


def _source(thing: Any, docstring: bool) -> str:
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        raise TypeError(
            f"objects must be functions, methods or classes with Python source, got {thing!r}"
        ) from None
    if docstring:
        return text
    import ast
    import textwrap

    text = textwrap.dedent(text)
    drop: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, (ast.FunctionDef, ast.ClassDef))
            and ast.get_docstring(node) is not None
        ):
            first = node.body[0]
            drop.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = text.splitlines()
    # A blank line that only separated the docstring is removed with it.
    drop |= {i + 1 for i in drop if i < len(lines) and not lines[i].strip()}
    return "\n".join(
        line for number, line in enumerate(lines, start=1) if number not in drop
    )


def predict_shape(tensor: Shaped[Tensor, "..."], guess: tuple[int, ...]) -> None:
    """Print whether a guess of a tensor's shape is right, and if not, which axis is wrong.

    Args:
        tensor: what was computed.
        guess: your prediction, such as (2, 5, 4, 6).

    Raises:
        TypeError: `tensor` is not a tensor, or `guess` not a tuple of ints.

    Example:
        >>> predict_shape(torch.zeros(2, 3), (2, 3))
        right: (2, 3)
        >>> predict_shape(torch.zeros(2, 3), (2, 4))
        not yet: axis 1 is 3, you said 4
        >>> predict_shape(torch.zeros(2, 3), (6,))
        not yet: it has 2 axes, you named 1
    """
    check_type("tensor", tensor, Tensor)
    if not isinstance(guess, tuple) or not all(isinstance(size, int) for size in guess):
        raise TypeError(f"guess must be a tuple of ints, got {guess!r}")
    shape = tuple(tensor.shape)
    if len(guess) != len(shape):
        print(f"not yet: it has {len(shape)} axes, you named {len(guess)}")
        return
    wrong = [
        f"axis {axis} is {size}, you said {said}"
        for axis, (size, said) in enumerate(zip(shape, guess, strict=True))
        if size != said
    ]
    print("not yet: " + "; ".join(wrong) if wrong else f"right: {shape}")


def why(text: str) -> Markdown:
    r"""Show, below a solution and folded, why the tempting answer fails.

    Args:
        text: Markdown; with mathematics, write it as a raw string.

    Returns:
        Markdown that Jupyter displays.

    Raises:
        TypeError: `text` is not a str.
        ValueError: `text` is empty.

    Example:
        >>> print(why("A sum of scores may be $0$.").data)
        <details><summary>Why the tempting answer fails</summary>
        <BLANKLINE>
        A sum of scores may be $0$.
        <BLANKLINE>
        </details>
    """
    from IPython.display import Markdown

    check_type("text", text, str)
    if not text.strip():
        raise ValueError(f"text must not be empty, got {text!r}")
    summary = "<details><summary>Why the tempting answer fails</summary>"
    return Markdown(f"{summary}\n\n{text.strip()}\n\n</details>")


def compare_with_browser(widget: Explorer) -> None:
    """Print how far the numbers that a browser computed for a widget are from torch's.

    Nothing is printed before a browser has drawn the widget, as in a page that was built without one.

    Args:
        widget: a widget that computes, such as a `HeadExplorer`.

    Raises:
        TypeError: `widget` is not an `Explorer`.
        ValueError: the browser reported other numbers, or other shapes, than Python computes.

    Example:
        >>> from mha_lib.widgets import RotationDial
        >>> compare_with_browser(RotationDial())  # not drawn yet: prints nothing
    """
    from mha_lib.widgets import Explorer

    check_type("widget", widget, Explorer)
    difference = widget.browser_difference()
    if difference is not None:
        print(f"largest difference between torch and your browser: {difference:.1e}")
