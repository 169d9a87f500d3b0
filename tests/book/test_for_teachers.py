"""The commands of *For teachers*, run as the page shows them, from the hand-out to the list."""

import csv
import json
import os
import re
import subprocess
import sys
import zipfile
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
    section = PAGE[PAGE.index("### Without either") :]
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


@pytest.mark.slow
def test_the_commands_of_nbgrader_lead_from_monday_to_friday(tmp_path):
    bin_ = CHAPTERS.parent / ".venv-class" / "bin"
    assert (bin_.parent / "ready").is_file(), "`make .venv-class/ready` creates the environment with nbgrader"
    section = PAGE[PAGE.index("### From Monday's hand-out") : PAGE.index("### With Otter")]
    monday, friday = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(CHAPTERS.parent)}
    env["JUPYTER_PATH"] = str(CHAPTERS.parent / ".venv/share/jupyter")  # templates of nbconvert
    options = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-ec", monday], **options)
    assert done.returncode == 0, done.stdout + done.stderr
    book = nbformat.read(tmp_path / "release/heads/heads.ipynb", 4)
    answer = "    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"
    [cell] = [one for one in book.cells if one.id == "split_heads"]
    cell.source = cell.source.replace("    ...", answer)
    archive = tmp_path / "downloaded/heads/archive"
    archive.mkdir(parents=True)
    [time] = re.findall(r"the time, as in `(\w+)`", section)
    name = f"heads_ada_attempt_{time}_heads.ipynb"
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        file.writestr(name, nbformat.writes(book))
    done = subprocess.run(["bash", "-ec", friday], **options)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = csv.DictReader((tmp_path / "grades.csv").open())
    points = [float(row[one]) for one in ("check-MyHead", "check-split_heads", "total")]
    assert (row["student_id"], *points) == ("ada", 0, 1, 1)
    assert row["late_days"] == "0"
    assert (tmp_path / "feedback/ada/heads/heads.html").is_file()
