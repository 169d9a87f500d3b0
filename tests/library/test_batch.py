"""What one submission can cost the grader of a class: no mark of others, and little time and memory."""

import ctypes
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from test_judge import ANSWER, SPLIT, write

from mha_course import _judged, grade
from mha_course._borrowed import Words, parsed
from mha_course._judge import Submission


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
    found = grade.grade(write(tmp_path / "a.ipynb", "import ast\n" * 40_000, "check_split_heads(f)"))
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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_no_name_of_a_file_ends_a_run_whatever_the_screen_can_show(tmp_path, monkeypatch, encoding):
    (tmp_path / "学生→.ipynb").write_text("")
    screens = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", screens[0])
    monkeypatch.setattr(sys, "stderr", screens[1])
    assert grade.main([str(tmp_path / "学生→.ipynb")]) == 1
    assert b"\\u5b66\\u751f\\u2192.ipynb: 0 of 0 right" in screens[0].buffer.getvalue()


@pytest.mark.parametrize("damaged", [
    b"", b"\xff\xfe", b"[" * 10**5, b"[1]", b'{"results": 5}', b'{"results": {"a": ["ri"]}}', None,
    b'{"results": {"a": ["right", 5]}, "troubles": [], "digests": {}}',
    b'{"results": {"a": ["perfect", ""]}, "troubles": [], "digests": {}}',
    b'{"results": {}, "troubles": [5], "digests": {}}', b'{"results": {}, "troubles": [], "digests": [1]}',
])  # fmt: skip
def test_a_damaged_result_is_graded_anew(tmp_path, damaged):
    options = {"assignment": None, "files": ()}
    book = write(tmp_path / "a.ipynb", "1 + 1")
    place = tmp_path / f"{grade._digest(book, options)}.json"
    place.mkdir() if damaged is None else place.write_bytes(damaged)
    for _ in range(2):
        found = grade._graded(book, tmp_path, options)
        assert found.troubles[0] == "It calls no checker, so there is nothing to grade."
        assert json.loads(found.as_json())["tests"] == []
    assert len(found.troubles) == (2 if damaged is None else 1), found.troubles


def test_another_version_of_the_course_grades_anew(tmp_path, monkeypatch):
    options = {"assignment": None, "files": ()}
    before = grade._digest(tmp_path, options)
    assert before == grade._digest(tmp_path, options)
    monkeypatch.setattr(grade.mha_lib, "__version__", "99")
    assert before != grade._digest(tmp_path, options)


def test_a_number_that_is_too_long_to_write_costs_the_others_no_mark(tmp_path):
    long = f"x = 0x{'f' * 5000}"
    words = Words({"code cell 1": ANSWER, "code cell 2": long, "code cell 3": SPLIT}, [long])
    assert words.unread == {"code cell 2"} and list(words.reaching()) == []
    assert words.digest(SPLIT) == "", "it is short"
    assert list(words.borrowed(SPLIT)) == []
    assert list(grade._checks_in([f"{SPLIT[:-1]}, {long[4:]})", SPLIT])) == [(1, SPLIT)]
    (tmp_path / "adapters.py").write_text(f"{long}\n{SPLIT}")
    assert grade._opened(tmp_path / "adapters.py")[0] == [long, SPLIT]


def test_the_case_of_a_name_hides_nobody_and_what_is_not_graded_is_named(tmp_path, capsys):
    for name in ("ada.ipynb", "eve.IPYNB", ".hidden.ipynb", "notes.txt"):
        write(tmp_path / "in" / name, "1 + 1") if "ipynb" in name.lower() else (
            tmp_path / "in" / name
        ).write_text("1")
    (tmp_path / "in" / "bob").mkdir()
    write(tmp_path / "in" / "bob" / "work.Ipynb", "1 + 1")
    (tmp_path / "in" / "eva.JSON").write_text(json.dumps({"write-here/f": {"draft": "f = 1"}}))
    assert grade.main([str(tmp_path / "in")]) == 1
    said = capsys.readouterr()
    assert said.out.count("It calls no checker") == 4 and "cannot be read" not in said.out
    [line] = [line for line in said.err.splitlines() if line.startswith("Not graded: ")]
    assert line == f"Not graded: {tmp_path / 'in' / '.hidden.ipynb'}, {tmp_path / 'in' / 'notes.txt'}"
    assert grade._left_out(tmp_path / "in" / "bob") == []


def test_all_that_a_submission_has_started_ends_with_it():
    start = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)"
    with Submission({}, isolate=False, end=time.monotonic() + 100) as submission:
        assert submission.ask(_judged.run_cell, start)["error"] == ""
        started = psutil.Process(submission.process.pid).children(recursive=True)
        assert started
    psutil.wait_procs(started, 5)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in started)


KEYS = """import ctypes
libc = ctypes.CDLL(None)
found = libc.syscall({number}, 10, -3, b'user', b'mha-mark', 0)
assert found < 0, f'key {{found}}'"""


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="by its numbers there")
def test_the_keys_of_the_session_stay_with_the_grader():
    libc = ctypes.CDLL(None)
    libc.syscall(250, 1, None)
    if libc.syscall(248, b"user", b"mha-mark", b"5", 1, -3) < 0:
        pytest.skip("the kernel holds no keys here")
    with Submission({}, isolate=False, end=time.monotonic() + 100) as submission:
        assert submission.ask(_judged.run_cell, KEYS.format(number=250))["error"] == ""
