"""The commands of *For teachers*, run as the page shows them, from the hand-out to the list."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from exercise_cells import CHAPTERS, pieces_of

PAGE = (CHAPTERS / "appendix_for_teachers.md").read_text(encoding="utf-8")
PIECES = pieces_of("03_multi_head_attention")


def answers(name, *parts):
    return [PIECES[name][part].source for part in parts]


@pytest.mark.slow
def test_the_commands_lead_from_the_hand_out_to_the_list(tmp_path):
    section = PAGE[PAGE.index("### From Monday's hand-out") :]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1]
    (tmp_path / "chapters").symlink_to(CHAPTERS)
    wrong = "def split_heads(x, num_heads):\n    return x.unflatten(-1, (num_heads, -1))"
    cells = ["import torch\nfrom mha_course.exercises import check_merge_heads, check_split_heads"]
    cells += [PIECES["merge_heads"]["solution"].source.partition("@solution")[2].partition("\n")[2]]
    cells += [*answers("merge_heads", "check"), wrong, *answers("split_heads", "check")]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    (tmp_path / "submissions").mkdir()
    for student in ("ada", "bob"):
        book.cells[2].source += f"\nname = '{student}'"  # otherwise, equal code would be said
        nbformat.write(book, tmp_path / "submissions" / f"{student}.ipynb")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=os.environ | {"PATH": path},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.search(r"```text\n(.*?)```", section, re.DOTALL)[1].splitlines()
    listed = done.stdout.splitlines()
    for line in shown[1:3]:  # the page shows three exercises of all that it has
        assert line in listed
    assert re.fullmatch(r"submissions/ada.ipynb: 1 of \d+ right", listed[0])
    [line, _] = (tmp_path / "results.jsonl").read_text().splitlines()
    assert sum(test["score"] for test in json.loads(line)["tests"]) == 1
    assert len(list((tmp_path / "graded").glob("*.json"))) == 2
