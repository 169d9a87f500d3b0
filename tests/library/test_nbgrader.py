"""A class by nbgrader, as a lecturer does it: from the hand-out to the list of grades and the feedback."""

import csv
import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from mha_course import grade

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-class" / "bin"
SHARE = str(ROOT / ".venv/share/jupyter")  # templates of nbconvert
COUNT = int(os.environ.get("STUDENTS", "30"))
NAME = r".*/[^_/]*_(?P<student_id>[^_/]+)_attempt_(?P<timestamp>[0-9T]+)_(?P<file_id>\w+)"
HEAD = """from mha_course.exercises import check_head


class MyHead(nn.Module):
    def __init__(self, embed_dim, head_dim, kdim=None, vdim=None):
        super().__init__()
        self.q_proj = nn.Linear(embed_dim, head_dim, bias={bias})
        self.k_proj = nn.Linear(kdim or embed_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(vdim or embed_dim, head_dim, bias=False)

    def forward(self, query, key, value, mask=None):
        return my_attention(self.q_proj(query), self.k_proj(key), self.v_proj(value), mask)


student = "{student}"
"""
SPLIT = """from mha_course.exercises import check_split_heads


def split_heads(x, num_heads):
    return {answer}
"""
RIGHT = "x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"
# Answers, their points for a head, which is worth 2, and for split_heads, and what the list says of them.
KINDS = [
    ({"MyHead": HEAD.replace("{bias}", "False"), "split_heads": SPLIT.format(answer=RIGHT)}, 2, 1, ""),
    ({"MyHead": HEAD.replace("{bias}", "True"), "split_heads": SPLIT.format(answer="x")}, 0, 0, ""),
    ({}, 0, 0, ""),
    ({"MyHead": "import mha_course.exercises as e\ne.check_head = lambda *a: True\nMyHead = 1"}, 0, 0,
     "replaces `check_head`"),
    ({"split_heads": "import time\ntime.sleep(1000)"}, 0, 0, "did not end within 20 seconds"),
    ({"MyHead": "raise SystemExit", "split_heads": SPLIT.format(answer=RIGHT)}, 0, 1, ""),
    ({}, 0, 0, ""),  # see `spoiled`
]  # fmt: skip


def run(folder, *command):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "JUPYTER_PATH": SHARE, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def spoiled(cells, number):
    """The cells of a student who deletes a check, or who says that another one is an answer."""
    if number % len(KINDS) == 1:
        return [one for one in cells if one["id"] != "check-split_heads"]
    if number % len(KINDS) == 6:
        [check] = [one for one in cells if one["id"] == "check-split_heads"]
        check["source"] = "1.0"
        check["metadata"]["nbgrader"] |= {"solution": True, "locked": False}
        return [one for one in cells if one["id"] not in ("MyHead", "check-MyHead", "split_heads")]
    return cells


def hand_in(folder, ran):
    """Write what a learning platform gives to download: a file for each student, and two malicious ones."""
    released = (folder / "release/heads/heads.ipynb").read_text(encoding="utf-8")
    archive = folder / "downloaded/heads/archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "platform.zip", "w") as file:
        for number in range(COUNT):
            book, answers = json.loads(released), KINDS[number % len(KINDS)][0]
            for cell in book["cells"]:
                if cell["id"] in answers:
                    cell["source"] = answers[cell["id"]].replace("{student}", f"s{number}")
            book["cells"].append({"cell_type": "code", "id": "mark", "metadata": {}, "outputs": [],
                                  "execution_count": None, "source": f"open({str(ran)!r}, 'w')"})  # fmt: skip
            book["cells"] = spoiled(book["cells"], number)
            day = 5 + number % 4  # it is due on the 6th
            name = f"Ada_s{number}_attempt_2026110{day}T173000_heads.ipynb"
            file.writestr(name, json.dumps(book))
        file.writestr("../../../outside_attempt.ipynb", "{}")
        link = zipfile.ZipInfo("x_link_attempt_20261105T173000_heads.ipynb")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        file.writestr(link, "/etc/passwd")


def test_the_name_of_a_file_speaks_for_its_own_student():
    name = "/all/heads_eve_attempt_20261105T173000_heads_ada_attempt_20261105T235959_heads.ipynb"
    assert re.match(NAME, name)["student_id"] == "eve"


@pytest.mark.slow
def test_a_class_goes_from_the_hand_out_to_the_list(tmp_path):
    assert (BIN.parent / "ready").is_file(), "`make .venv-class/ready` creates the environment with nbgrader"
    course, ran = tmp_path / "course", tmp_path / "ran"
    course.mkdir()
    make = "python -m mha_course.handout 3 --exercises my_head,split_heads --points 2,1 --name heads"
    run(course, *make.split())
    with (course / "nbgrader_config.py").open("a") as config:
        config.write("c.Judge.cell_seconds = 20\n")
    run(course, "nbgrader", "generate_assignment", "heads")
    released = (course / "release/heads/heads.ipynb").read_text(encoding="utf-8")
    assert "transpose(1, 2)" not in released and "self.q_proj" not in released
    run(course, *"nbgrader db assignment add heads --duedate".split(), "2026-11-06 18:00:00 UTC")
    run(course, "nbgrader", "db", "student", "add", "s0", "--last-name", "=1+1")
    hand_in(course, ran)
    run(course, "nbgrader", "zip_collect", "heads", f"--FileNameCollectorPlugin.named_regexp={NAME}")
    assert not (tmp_path / "outside_attempt.ipynb").exists()
    assert sorted(os.listdir(tmp_path)) == ["course"]
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "JUPYTER_PATH": SHARE, "OMP_NUM_THREADS": "1"}
    graded = subprocess.run(
        ["nbgrader", "autograde", "heads"], cwd=course, env=env, capture_output=True, text=True
    )
    assert not (ran.exists() and grade.can_isolate()), "a submission ran outside of its process"
    run(course, "nbgrader", "generate_feedback", "heads")
    run(course, "nbgrader", "export")
    rows = {row["student_id"]: row for row in csv.DictReader((course / "grades.csv").open())}
    for number in range(COUNT):
        _, head, split, said = KINDS[number % len(KINDS)]
        row = rows[f"s{number}"]
        found = [float(row[name]) for name in ("check-MyHead", "check-split_heads", "total", "max_score")]
        assert found == [head, split, head + split, 3], (row, graded.stderr[-3000:])
        assert float(row["late_days"]) == max(0, number % 4 - 1)
        assert said in row["look_at"], row
    assert rows["s0"]["last_name"] == "'=1+1"
    pages = [path.read_text("utf-8") for path in course.glob("feedback/s*/heads/heads.html")]
    assert len(pages) == COUNT
    wrong = (course / "feedback/s1/heads/heads.html").read_text(encoding="utf-8")
    assert "wrong: " in wrong
