"""What Otter uses of the course: a plugin by which our judge gives the marks.

`mha_course.handout --for otter` names it in the assignment, so the zip file that `otter assign` makes for
`otter run`, `otter grade` and Gradescope has it. Otter would run a submission in the kernel that also runs
its tests, and unpickle what comes back; here it gets an empty notebook to run, and no log of the submission.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from otter.plugins import AbstractOtterPlugin

from mha_course import grade


class Judge(AbstractOtterPlugin):  # type: ignore[misc]
    """Marks by the course's judge. Its settings name the check of each question, and what was handed out."""

    found: grade.Grade

    def before_grading(self, _: Any) -> None:
        """Judge the submission, and remove what it has brought beside its notebook.

        Otter would unpickle a submission's log in its own process, and its kernel would import modules that
        lie there.
        """
        place = Path(self.submission_path)
        sources = [*self.plugin_config["given"], *self.plugin_config["checks"].values()]
        cells = [{"cell_type": "code", "source": source} for source in sources]
        others = [one for one in place.parent.iterdir() if one != place]
        files = [one for one in others if one.is_file() and not one.is_symlink()]
        with tempfile.TemporaryDirectory() as folder:
            handed_out = Path(folder, "handed_out.ipynb")
            handed_out.write_text(json.dumps({"cells": cells}), encoding="utf-8")
            path = Path(folder, "submission.ipynb")
            shutil.copyfile(place, path)
            self.found = grade.grade(path, assignment=handed_out, files=files)
        for one in others:
            if one.is_dir() and not one.is_symlink():
                if one.name != "tests":
                    shutil.rmtree(one)
            else:
                one.unlink()

    def before_execution(self, submission: Any) -> Any:
        """Give Otter a notebook without cells in the submission's place."""
        submission.cells = []
        kernel = {"name": "python3", "display_name": "Python 3"}
        submission.metadata = type(submission)(kernelspec=kernel)
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
