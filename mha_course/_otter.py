"""What Otter uses of the course: a plugin by which our judge gives the marks.

`mha_course.handout --for otter` names it in the assignment, so the zip file that `otter assign` makes for
`otter run`, `otter grade` and Gradescope has it. Otter would run a submission in the kernel that also runs
its tests, and unpickle what comes back; here it gets an empty notebook to run, and no log of the submission.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from otter.check.notebook import OTTER_LOG_FILENAME
from otter.plugins import AbstractOtterPlugin

from mha_course import grade


class Judge(AbstractOtterPlugin):  # type: ignore[misc]
    """Marks by the course's judge. Its settings name the check of each question, and what was handed out."""

    found: grade.Grade

    def before_grading(self, _: Any) -> None:
        """Remove the log that a submission brings: Otter would unpickle it in its own process."""
        Path(OTTER_LOG_FILENAME).unlink(missing_ok=True)

    def before_execution(self, submission: Any) -> Any:
        """Judge the submission, and give Otter a notebook without cells in its place."""
        sources = [*self.plugin_config["given"], *self.plugin_config["checks"].values()]
        cells = [{"cell_type": "code", "source": source} for source in sources]
        with tempfile.TemporaryDirectory() as folder:
            handed_out = Path(folder, "handed_out.ipynb")
            handed_out.write_text(json.dumps({"cells": cells}), encoding="utf-8")
            path = Path(folder, "submission.ipynb")
            path.write_text(json.dumps(submission), encoding="utf-8")
            self.found = grade.grade(path, assignment=handed_out)
        submission.cells = []
        return submission

    def after_grading(self, results: Any) -> None:
        """Replace the results of Otter's tests by the verdicts."""
        missing = "missing", "it was not reached"
        for name, test_file in results.results.items():
            call = self.plugin_config["checks"][name]
            state, why = self.found.results.get(call, missing)
            for one in test_file.test_case_results:
                one.passed = state == "right"
                one.message = None if one.passed else grade._shown(f"{state}: {why}")
        results.set_output(" ".join(map(grade._shown, self.found.troubles)))
