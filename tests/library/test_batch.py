"""What one submission can cost the grader of a class: no mark of others, and little time and memory."""

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_judge import ANSWER, SPLIT, write

from mha_course import grade
from mha_course._borrowed import parsed


def test_a_line_of_spaces_is_read_in_no_time():
    begin = time.process_time()
    assert len(parsed("# " + " " * 400_000 + "x\ny = 1").body) == 1
    assert len(parsed(" " * 400_000 + "x, y\n= 1").body) == 0
    assert time.process_time() - begin < 5
    assert len(parsed("\tfound, rest = !ls\n%run a.txt\nfiles = %sx ls\n").body) == 0
    assert "magic.shell" in grade.ast.unparse(parsed("found, rest = !ls\n%run a.txt"))


@pytest.mark.parametrize(("content", "said"), [
    ('{"cells": [' + "[]," * 6_000_000 + "[]]}", "it has over 5,000,000 parts"),
    ('{"cells": [' + '{"cell_type":"code","source":""},' * 5000 + "{}]}", "it is not a notebook"),
    (json.dumps({"cells": [{"cell_type": "code", "source": ""}] * 5000}), "it has over 1,000 code cells"),
])  # fmt: skip
def test_a_notebook_of_many_parts_takes_little_memory(tmp_path, content, said):
    path = tmp_path / "a.ipynb"
    path.write_text(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert said in grade.grade(path).troubles[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


def test_folders_in_folders_do_not_stop_a_class(tmp_path, monkeypatch):
    ada, bob = (write(tmp_path / f"{name}.ipynb", "1") for name in ("ada", "bob"))
    deep = tmp_path / "eve"
    subprocess.run(["mkdir", "-p", str(deep / "/".join(["d"] * 1500))], check=True)
    write(tmp_path / "locked" / "a.ipynb", "1")
    listed = Path.iterdir

    def iterdir(path):
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert grade._expanded(tmp_path) == [ada, bob, deep, tmp_path / "locked"]
    assert grade.grade(deep).troubles == ["It cannot be read: its folders are too deep."]
    subprocess.run(["rm", "-rf", str(deep)], check=True)


def test_very_many_problems_are_said_only_as_far_as_anybody_reads(tmp_path):
    begin = time.process_time()
    found = grade.grade(write(tmp_path / "a.ipynb", "import gc\n" * 40_000, "check_split_heads(f)"))
    assert len(found.troubles) == 100
    assert time.process_time() - begin < 30


def ends_its_judge(path):
    if path.stem == "eve":
        os.kill(os.getpid(), signal.SIGKILL)
    return grade.Grade(path, {"check": ("right", "")})


@pytest.mark.slow
def test_one_that_ends_the_process_of_its_judge_costs_the_others_no_mark():
    paths = [Path(f"{name}.ipynb") for name in ("ada", "eve", "bob", "cyd")]
    found = list(grade._at_a_time(paths, 2, ends_its_judge))
    assert [one.path for one in found] == paths
    assert [bool(one.results) for one in found] == [True, False, True, True]
    assert found[1].troubles[0].startswith("The grader failed: ")


def test_whom_to_look_at_is_said_of_all_whatever_their_names(tmp_path, capsys):
    names = [os.fsencode(f"{number} {'x' * 60}.ipynb") for number in range(20)] + [b"\xff\n.ipynb"]
    for name in names:
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / os.fsdecode(name)).write_text("")
    assert grade.main([str(tmp_path / "in"), "--results", str(tmp_path / "kept")]) == 1
    said = capsys.readouterr()
    [last] = [line for line in said.err.splitlines() if line.startswith("Look at: ")]
    assert last.count(".ipynb") == 21 and last.endswith("\\udcff\\n.ipynb")
    assert len(said.out.splitlines()) == 42


@pytest.mark.slow
def test_nobody_knows_before_for_which_numbers_an_answer_is_judged(tmp_path):
    """A table beside the notebook could contain the results for numbers that follow from the notebook."""
    book = write(tmp_path / "a.ipynb", ANSWER, SPLIT)
    runs = [grade._Run(grade.Grade(book), [ANSWER], [], {}, [], 1.0) for _ in range(2)]
    assert runs[0].seed != runs[1].seed
    assert grade.grade(book).as_text() == grade.grade(book).as_text()
