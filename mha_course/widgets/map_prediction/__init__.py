"""Predict a map of two states cell by cell, then compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import traitlets as t

from mha_course._checks import check_kept_name, check_text, check_texts
from mha_course.widgets._base import CourseWidget
from mha_course.widgets._traits import digits
from mha_course.widgets.quiz import _inline_html
from mha_lib._checks import check_type, refusal

MAX_ROWS, MAX_COLUMNS = 24, 16
"""With more columns, a cell would be too small for a finger on a phone."""


class MapPrediction(CourseWidget):
    """A grid in which the reader predicts, before seeing the truth, which cells are in the second state.

    The reader marks cells with a click, a stroke of the finger, or the keyboard, and then checks. Wrongly
    predicted cells are marked, and a row that contains one shows the author's sentence about it. The reader
    can switch between the prediction and the truth. Texts may contain `code` and *emphasis*.

    Args:
        text: the question.
        rows: the labels of the rows, all different, at most 24: queries, or specimens.
        columns: the labels of the columns, all different, at most 16: keys, or detectors.
        truth: a bool for each row and column, as the author declares it: a nested sequence, an array or a
            tensor.
        states: what False and True mean; at first, every cell is False.
        computed: the truth, as the cell computes it.
        feedback: a dict from the label of a row to the sentence that explains the row.
        name: name under which the reader's browser stores the prediction, unique among the course's widgets
            of this class; "" if it is not stored.

    Raises:
        TypeError: an argument has the wrong type, or truth or computed contain anything other than bools.
        ValueError: truth differs from computed or does not fit the labels, labels or states are empty, too
            many or the same, or feedback names no row.

    Example:
        >>> truth = [[True, False], [True, True]]
        >>> prediction = MapPrediction(
        ...     "Which keys does each query see under a causal mask?",
        ...     ["query 0", "query 1"], ["key 0", "key 1"],
        ...     truth, computed=[[key <= query for key in range(2)] for query in range(2)],
        ...     feedback={"query 0": "Key 1 comes after query 0."},
        ... )
        >>> prediction
        MapPrediction(2 rows, 2 columns)
        >>> prediction.marked = "11 11"
        >>> prediction.num_right
        3
    """

    _module: ClassVar[str] = "map_prediction.js"
    _settings: ClassVar[tuple[str, ...]] = ("marked", "seen")

    task = t.Dict(read_only=True).tag(sync=True)
    name = t.Unicode(read_only=True).tag(sync=True)
    """The name under which the browser stores the prediction; "" if it does not."""
    marked = t.Unicode().tag(sync=True)
    """The prediction: one group of digits for each row, 1 = the second state, such as "110 111"."""
    seen = t.Bool().tag(sync=True)
    """Whether the reader has asked to see the truth."""

    def __init__(
        self,
        text: str,
        rows: Sequence[str],
        columns: Sequence[str],
        truth: Any,
        *,
        states: Sequence[str] = ("hidden", "visible"),
        computed: Any,
        feedback: Mapping[str, str] | None = None,
        name: str = "",
    ) -> None:
        check_text("text", text)
        row_labels = _check_labels("rows", rows, MAX_ROWS)
        column_labels = _check_labels("columns", columns, MAX_COLUMNS)
        self._truth = _check_matrix("truth", truth, row_labels, column_labels)
        found = _check_matrix("computed", computed, row_labels, column_labels)
        for row, label in enumerate(row_labels):
            for column, other in enumerate(column_labels):
                if found[row][column] != self._truth[row][column]:
                    where = f"in row {label!r} and column {other!r}"
                    rule = f"be what the cell computes, {found[row][column]} {where}"
                    raise refusal("truth", rule, self._truth[row][column])
        names = _check_labels("states", states, 2)
        if len(names) != 2:
            raise ValueError(f"states must hold two texts, got {names}")
        reasons = _check_feedback(feedback, row_labels)
        self.set_trait("name", check_kept_name(name))
        truth_digits = _digits(self._truth)
        state = {
            "text": text,
            "rows": row_labels,
            "columns": column_labels,
            "truth": truth_digits,
            "states": names,
            "feedback": reasons,
        }
        self.set_trait("task", state)
        self.marked = truth_digits.replace("1", "0")
        super().__init__()

    @t.validate("marked")
    def _check_marked(self, proposal: t.Bunch) -> str:
        return digits(proposal, len(self._truth), len(self._truth[0]))

    @property
    def num_right(self) -> int:
        """The number of cells that are predicted correctly."""
        truth = _digits(self._truth)
        pairs = zip(self.marked, truth, strict=True)
        return sum(mine == true for mine, true in pairs) - truth.count(" ")

    def fallback_html(self) -> str:
        """The question, with the truth as a table, folded."""
        head = "".join(
            f'<th scope="col">{_inline_html(label)}</th>'
            for label in self.task["columns"]
        )
        body = "".join(
            f'<tr><th scope="row">{_inline_html(label)}</th>'
            + "".join(
                f"<td>{_inline_html(self.task['states'][cell])}</td>" for cell in cells
            )
            + f"<td>{_inline_html(self.task['feedback'].get(label, ''))}</td></tr>"
            for label, cells in zip(self.task["rows"], self._truth, strict=True)
        )
        table = f"<table><thead><tr><td></td>{head}<td></td></tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{_inline_html(self.task['text'])}</p><details><summary>Answer</summary>{table}</details>"

    def __repr__(self) -> str:
        rows, columns = len(self._truth), len(self._truth[0])
        sizes = f"{rows} row{'s' * (rows > 1)}, {columns} column{'s' * (columns > 1)}"
        return f"MapPrediction({sizes})"


def _check_labels(name: str, labels: object, most: int) -> list[str]:
    """Return the labels as a list if they are one to `most` different texts."""
    listed = check_texts(name, labels)
    if not 1 <= len(listed) <= most:
        raise refusal(name, f"hold between 1 and {most} texts", len(listed))
    if len(set(listed)) < len(listed) or not all(label.strip() for label in listed):
        raise ValueError(f"{name} must be different and not empty, got {listed}")
    return listed


def _check_matrix(
    name: str, matrix: Any, rows: list[str], columns: list[str]
) -> list[list[bool]]:
    """Return the matrix as lists if it contains a bool for each row and column."""
    matrix = matrix.tolist() if hasattr(matrix, "tolist") else matrix
    check_type(name, matrix, Sequence)
    listed = [row.tolist() if hasattr(row, "tolist") else row for row in matrix]
    if not all(
        isinstance(row, Sequence) and all(isinstance(cell, bool) for cell in row)
        for row in listed
    ):
        rule = "must hold a sequence of bools for each row"
        raise TypeError(f"{name} {rule}, got {matrix!r}")
    lengths = [len(row) for row in listed]
    if lengths != [len(columns)] * len(rows):
        rule = f"have {len(rows)} rows of {len(columns)}, as rows and columns say"
        raise refusal(name, rule, f"rows of {lengths}")
    return [list(row) for row in listed]


def _check_feedback(feedback: object, rows: list[str]) -> dict[str, str]:
    """Return the feedback if each key is the label of a row and each value is a text."""
    if feedback is None:
        return {}
    check_type("feedback", feedback, Mapping)
    reasons: dict[str, str] = dict(feedback)  # type: ignore[call-overload]
    for label, why in reasons.items():
        if label not in rows:
            raise ValueError(f"a key of feedback must be one of {rows}, got {label!r}")
        check_text(f"feedback[{label!r}]", why)
    return reasons


def _digits(matrix: list[list[bool]]) -> str:
    return " ".join("".join(str(int(cell)) for cell in row) for row in matrix)
