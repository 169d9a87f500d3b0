"""What nbgrader uses of the course: marks from our judge, and a list of grades.

`mha_course.handout` writes an `nbgrader_config.py` that names them. `Judge` stands where nbgrader would run a
submission in a kernel and believe what it prints; here, it runs in the process of `mha_course.grade`.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from nbformat import from_dict
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin
from nbgrader.preprocessors import NbGraderPreprocessor, OverwriteCells
from nbgrader.utils import is_grade, is_solution
from traitlets import Float, Unicode

from mha_course import grade
from mha_course._messages import message

_KEY = "mha_course"
_node: Any = from_dict
_DAY = 24 * 60 * 60
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_COLUMNS = """assignment student_id last_name first_name timestamp late_days
    total max_score look_at""".split()


class PutBack(NbGraderPreprocessor):  # type: ignore[misc]
    """Puts graded cells back that a student has deleted or unlocked; nbgrader would end at some of them."""

    def preprocess(
        self, book: Any, resources: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Change the cells of a submission, before nbgrader looks at them."""
        about = resources["nbgrader"]
        with Gradebook(about["db_url"]) as gradebook:
            there = gradebook.find_notebook(about["notebook"], about["assignment"])
            _put_back(book, there)
        return book, resources


class Judge(NbGraderPreprocessor):  # type: ignore[misc]
    """Writes the verdicts into the graded cells of a submission: an error for what is not right.

    nbgrader makes points of them. What somebody must look at is logged, and kept for the list of grades.
    """

    cell_seconds = Float(60, help="Limit for a cell of a submission").tag(config=True)
    seconds = Float(600, help="Limit for a submission").tag(config=True)
    container = Unicode(help="Image of the container that runs each").tag(config=True)

    def preprocess(
        self, book: Any, resources: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Judge a submission.

        Raises:
            ValueError: a graded cell calls no checker of the course.
        """
        about, place = resources["nbgrader"], Path(resources["metadata"]["path"])
        with Gradebook(about["db_url"]) as gradebook:
            there = gradebook.find_notebook(about["notebook"], about["assignment"])
            sources = [(one.cell_type, one.source) for one in there.source_cells]
        files = [
            one for one in place.iterdir() if one.is_file() and not one.is_symlink()
        ]
        with tempfile.TemporaryDirectory() as folder:
            submission = Path(folder, "submission.ipynb")
            handed_out = Path(folder, "handed_out.ipynb")
            submission.write_text(json.dumps(book), encoding="utf-8")
            cells = [{"cell_type": kind, "source": source} for kind, source in sources]
            handed_out.write_text(json.dumps({"cells": cells}), encoding="utf-8")
            found = grade.grade(
                submission,
                assignment=handed_out,
                files=[one for one in files if one.suffix != ".ipynb"],
                seconds=self.seconds,
                cell_seconds=self.cell_seconds,
                container=self.container,
            )
        for cell in book.cells:
            if is_grade(cell):
                cell.outputs = [_output(found, cell)]
        for trouble in found.troubles:
            self.log.warning(grade._shown(f"{about['student']}: {trouble}"))
        book.metadata[_KEY] = {"troubles": found.troubles, "digests": found.digests}
        return book, resources


def _put_back(book: Any, there: Any) -> None:
    """Put the graded cells back that a student has deleted, or no longer calls graded or locked."""
    points = {one.name: one.max_score for one in there.grade_cells}
    kept, present = [], set[str]()
    for cell in book.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in points and is_grade(cell) and not is_solution(cell):
            present.add(name)
        elif name in points or (is_grade(cell) and name is None):
            continue
        kept.append(cell)
    for one in there.source_cells:
        if one.name in points and one.name not in present:
            made = OverwriteCells().missing_cell_transform(one, points[one.name])
            kept.append(made | {"id": f"again-{one.name}"[:64]})
    book.cells = [_node(cell) for cell in kept]


def _output(found: grade.Grade, cell: Any) -> Any:
    """What stands below a graded cell: the verdict on it, as an error if it is not right."""
    calls = [call for _, call in grade._checks_in([cell.source])]
    if not calls:
        name = cell.metadata.nbgrader.grade_id
        raise ValueError(message(__file__, "no-check", name=name))
    missing = "missing", "it was not reached"
    states = [found.results.get(call, missing) for call in calls]
    for state, why in states:
        if state != "right":
            said = f"{state}: {grade._shown(why)}"
            error = {"ename": state, "evalue": why, "traceback": [said]}
            return _node({"output_type": "error", **error})
    said = f"{states[0][1]}\n"
    return _node({"output_type": "stream", "name": "stdout", "text": said})


class GradesCsv(ExportPlugin):  # type: ignore[misc]
    """The list of grades: for each student the points of each exercise, the total, and the days too late."""

    def export(self, gradebook: Gradebook) -> None:
        """Write the list to `--to`, by default grades.csv.

        Raises:
            ValueError: the grade book has no such assignment.
        """
        names = [one.name for one in gradebook.assignments]
        if unknown := set(self.assignment) - set(names):
            words = {"names": ", ".join(sorted(unknown)), "known": ", ".join(names)}
            raise ValueError(message(__file__, "no-assignment", **words))
        wanted = [one for one in gradebook.assignments if self._has(one.name)]
        columns = [*_COLUMNS]
        for assignment in wanted:
            exercises = [
                cell for book in assignment.notebooks for cell in book.grade_cells
            ]
            columns += [one.name for one in exercises if one.name not in columns]
        with open(self.to or "grades.csv", "w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns, restval="")
            table.writeheader()
            for assignment in wanted:
                for row in self._rows(gradebook, assignment):
                    table.writerow({name: safe(one) for name, one in row.items()})

    def _has(self, name: str) -> bool:
        return not self.assignment or name in self.assignment

    def _rows(self, gradebook: Gradebook, assignment: Any) -> list[dict[str, Any]]:
        """The rows of an assignment, in which equal code of two students is named."""
        rows, found = [], []
        for student in gradebook.students:
            if self.student and student.id not in map(str, self.student):
                continue
            row = {"assignment": assignment.name, "student_id": student.id}
            row |= {"last_name": student.last_name, "first_name": student.first_name}
            row |= {"total": 0, "max_score": assignment.max_score}
            try:
                submission = gradebook.find_submission(assignment.name, student.id)
            except MissingEntry:
                row["look_at"] = message(__file__, "not-handed-in")
            else:
                late = submission.late_submission_penalty
                row["total"] = max(0, submission.score - late)
                row["timestamp"] = submission.timestamp
                row["late_days"] = math.ceil(submission.total_seconds_late / _DAY)
                for book in submission.notebooks:
                    row |= {one.name: one.score for one in book.grades}
            rows.append(row)
            found.append(self._judged(assignment.name, student.id))
        for row, one in zip(rows, grade._with_equals(found), strict=True):
            said = [row.get("look_at", ""), *map(grade._shown, one.troubles)]
            row["look_at"] = " ".join(filter(None, said))
        return rows

    def _judged(self, assignment: str, student: str) -> grade.Grade:
        """What the judge has said about a submission, from the notebooks that it graded."""
        course, found = self.parent.coursedir, grade.Grade(Path(student))
        place = course.format_path(course.autograded_directory, student, assignment)
        for path in sorted(Path(place).glob("*.ipynb")):
            kept = json.loads(path.read_text(encoding="utf-8"))["metadata"].get(_KEY)
            found.troubles += (kept or {}).get("troubles", [])
            found.digests |= (kept or {}).get("digests", {})
        return found


def safe(value: Any) -> Any:
    """A value of a table that no spreadsheet takes for a formula.

    Example:
        >>> safe("=1+1"), safe(1.5)
        ("'=1+1", 1.5)
    """
    is_formula = isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA)
    return f"'{value}" if is_formula else value
