"""The course's puzzles for `LineOrder`: code from the chapters, with mistakes that people really make.

Their lines, tests, faulty lines and texts are in `puzzles.md`; other correct orders are below.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mha_course.widgets.line_order import Distractor, LineOrder
from mha_lib._checks import check_choice

_PUZZLE = re.compile(
    r"(.+)\n\n((?:.+\n)+)\n```\n([^`]+)```\n\n```\n([^`]+)```\n\n((?:.+\n)+)"
)
_FAULT = re.compile(r"`(.+)` → `(.+)`\n((?:  .+\n)+)")

_ORDERS: dict[str, list[tuple[int, ...]]] = {
    # The line with the smallest number may also come first.
    "masked softmax": [(1, 4, 2, 3, 5, 6, 7)],
    "causal mask": [(1, 2, 3, 5, 4, 6)],
    "merge the heads": [(1, 2, 4, 3, 5)],
    # Values may be projected anywhere before the mix; queries and keys in either order before the scores.
    "forward pass": [
        order
        for first, second in ((2, 3), (3, 2))
        for order in (
            (1, 4, first, second, 5, 6, 7, 8),
            (1, first, 4, second, 5, 6, 7, 8),
            (1, first, second, 4, 5, 6, 7, 8),
            (1, first, second, 5, 4, 6, 7, 8),
            (1, first, second, 5, 6, 4, 7, 8),
        )
        if order != tuple(range(1, 9))
    ],
    # Angles need positions and exponents. The table may be created anywhere before it is filled. Sines and
    # cosines may be filled in in either order.
    "sinusoids": [
        (1, *start[:place], 5, *start[place:], *end, 8)
        for start in ((2, 3, 4), (3, 2, 4))
        for place in (0, 1, 2, 3)
        for end in ((6, 7), (7, 6))
        if (*start, *end, place) != (2, 3, 4, 6, 7, 3)
    ],
    # The angles' cosines and sines may also be computed after the inner function.
    "rotary": [(1, 3, 4, 5, 6, 2, 7, 8, 9)],
    # Keys must exist before the scores, and values before the output.
    "cache step": [(1, 2, 4, 3, 5, 6, 7), (1, 2, 3, 5, 4, 6, 7)],
}


def _read(section: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a puzzle, from its section of the file."""
    [(name, task, lines, test, faults)] = _PUZZLE.findall(section)
    distractors = []
    for item in re.split("^- ", faults, flags=re.MULTILINE)[1:]:
        [(line, text, because)] = _FAULT.findall(item)
        distractors.append(Distractor(text, line, " ".join(because.split())))
    arguments = {
        "task": " ".join(task.split()),
        "lines": lines,
        "distractors": distractors,
        "orders": _ORDERS.get(name, []),
        "test": test,
    }
    return name, arguments


_SECTIONS = Path(__file__).with_suffix(".md").read_text("utf-8").split("\n## ")[1:]
PUZZLES = dict(map(_read, _SECTIONS))
"""The arguments of each puzzle by its name; `puzzle(name)` creates the widget."""


def puzzle(name: str) -> LineOrder:
    """One of the course's puzzles.

    Args:
        name: "masked softmax", "causal mask", "cut into heads", "merge the heads", "forward pass",
            "sinusoids", "rotary" or "cache step"; the browser stores the answer under this name.

    Returns:
        The widget. Creating it runs its test, which takes a moment.

    Raises:
        TypeError: `name` is not a str.
        ValueError: there is no puzzle with this name.

    Example:
        >>> puzzle("masked softmax")
        LineOrder(7 lines, 4 distractors)
    """
    check_choice("name", name, PUZZLES)
    return LineOrder(**PUZZLES[name], name=name)
