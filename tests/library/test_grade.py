# ruff: noqa: E501, a notebook is easier to read with a cell in one line
"""A class is graded: each exercise is right, wrong with its cause, or missing, whatever a submission does."""

import json
import os
from pathlib import Path

import nbformat
import pytest
from exercise_cells import CHAPTERS, cells_of, checker_of, pieces_of

from mha_course import grade
from mha_course.grade import main

PAGE = pieces_of("03_multi_head_attention")
IMPORTS = """import torch
from mha_course.built import my_masked_softmax, my_attention
from mha_course.exercises import (
    check_attention, check_causal_mask, check_head_dim, check_lens_mask, check_merge_heads, check_my_pooling,
    check_split_heads, check_triangle, solution)
"""
RIGHT = """
def my_causal_mask(q_len, k_len=None):
    return torch.ones(q_len, k := k_len or q_len).tril(k - q_len).bool()
"""
CHECK = "check_causal_mask(my_causal_mask)"


def write(path, *cells):
    """A notebook of these cells, or a program."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".py":
        path.write_text("\n".join(cells), encoding="utf-8")
    else:
        made = [nbformat.v4.new_markdown_cell("# Title"), *map(nbformat.v4.new_code_cell, cells)]
        nbformat.write(nbformat.v4.new_notebook(cells=made), path)
    return path


def test_each_exercise_is_right_or_wrong_with_its_cause_or_missing(tmp_path):
    wrong = "def split_heads(x, num_heads):\n    return x.view(*x.shape[:2], num_heads, -1)"
    fails = "1 / 0\ndef my_head_dim(*sizes):\n    return 7"
    replaced = fails.replace("1 / 0", "[][1]")
    cells = [
        IMPORTS, "%precision 3", RIGHT, f"%%time\nprint({CHECK})",
        *(PAGE["merge_heads"][part].source for part in ("stub", "check", "solution")),
        wrong, *(PAGE["split_heads"][part].source for part in ("check", "solution", "check")),
        "check_attention(my_attention)", "check_triangle(my_triangle)", replaced, fails, "check_head_dim(my_head_dim)",
        "def my_lens_mask(lens, k_len)\n    return 1", "check_lens_mask(my_lens_mask)",
        "def asserted(q_len, k_len):\n    return my_causal_mask(q_len, k_len)",
        "assert check_triangle(asserted)",
    ]  # fmt: skip
    found = grade.grade(write(tmp_path / "a.ipynb", *cells))
    assert found.troubles == []
    assert {name[6:-1].partition("(")[2]: state for name, (state, _) in found.results.items()} == {
        "my_causal_mask": "right", "merge_heads": "missing", "split_heads": "wrong",
        "my_attention": "missing", "my_triangle": "missing", "my_head_dim": "missing",
        "my_lens_mask": "missing",
    }  # fmt: skip
    lines = found.as_text().splitlines()
    assert lines[:3] == [
        f"{tmp_path / 'a.ipynb'}: 1 of 7 right",
        "  right    check_causal_mask(my_causal_mask)",
        "  missing  check_merge_heads(merge_heads): the stub is not filled in",
    ]
    assert lines[3].startswith("  wrong    check_split_heads(split_heads): ") and "axis" in lines[3], lines[3]
    assert lines[4:7] == [
        "  missing  check_attention(my_attention): only the course's own answer is there",
        "  missing  check_triangle(my_triangle): NameError: name 'my_triangle' is not defined",
        "  missing  check_head_dim(my_head_dim): its cell raises ZeroDivisionError: division by zero",
    ]
    assert "check_lens_mask(my_lens_mask): its cell raises SyntaxError: expected ':'" in lines[7]


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_exercise_of_a_page_counts(path):
    exercises = [*pieces_of(path.stem).values(), *cells_of(path.stem).values()]
    calls = [call for _, call in grade._checks_in(grade._opened(path)[0])]
    assert {call.partition("(")[0] for call in calls} == {checker_of(exercise)[0] for exercise in exercises}
    assert len(calls) == len(exercises)


# What each cell tries, and how the sentence about it ends, if it gets one.
ELSEWHERE = {
    "open('../mine.txt', 'w')": "Read-only file system: '../mine.txt'.",
    "import os; os.remove({kept!r})": "No such file or directory: {kept!r}.",
    "import shutil, os; shutil.rmtree(os.path.dirname({kept!r}))": "No such file or directory: {folder!r}.",
    "import os; os.rename({kept!r}, 'here')": "No such file or directory: {kept!r} -> 'here'.",
    "import os; os.truncate({kept!r}, 0)": "No such file or directory: {kept!r}.",
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')": "Connection refused>.",
    "open('data.csv')": "No such file or directory: 'data.csv'.",
    "torch.save(torch.ones(2), '../my.pt')": "",
    "from safetensors.torch import save_file; save_file({{}}, filename={kept!r})": "",
    "!rm -rf {kept} && touch ../program.txt": "",
}
needs_walls = pytest.mark.skipif(not grade.can_isolate(), reason="bubblewrap does not work here")


@needs_walls
@pytest.mark.slow
def test_what_would_have_effects_elsewhere_has_none_and_is_said(tmp_path):
    kept = tmp_path / "kept" / "file.txt"
    kept.parent.mkdir()
    kept.write_text("kept")
    harmless = "from pathlib import Path\nPath('a.txt').write_text('b')\nPath('a.txt').unlink()"
    harmless += "\ntorch.save(torch.ones(2), 'a.pt')\nassert torch.load('a.pt').sum() == 2"
    harmless += "\nimport tempfile\ntempfile.TemporaryFile()"
    cells = [cell.format(kept=str(kept), folder=str(kept.parent)) for cell in ELSEWHERE]
    found = grade.grade(write(tmp_path / "a.ipynb", IMPORTS, harmless, *cells, RIGHT, CHECK))
    assert kept.read_text() == "kept"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.ipynb", "kept"]
    assert found.results[CHECK][0] == "right"
    ends = [end.format(kept=str(kept), folder=str(kept.parent)) for end in ELSEWHERE.values() if end]
    assert len(found.troubles) == len(ends), found.troubles
    for number, (trouble, end) in enumerate(zip(found.troubles, ends, strict=True), 3):
        assert trouble.startswith(f"Code cell {number} raises ") and trouble.endswith(end), trouble


@pytest.mark.slow
def test_one_that_cannot_be_graded_does_not_stop_the_others(tmp_path, capsys):
    (tmp_path / "text.ipynb").write_text("Dear teacher")
    (tmp_path / "list.ipynb").write_text("[1, 2]")
    (tmp_path / "old.ipynb").write_text('{"worksheets": []}')
    (tmp_path / "deep.ipynb").write_text(100_000 * "[")
    (tmp_path / "bytes.ipynb").write_bytes(b"\xff\xfe")
    names = "text list old bytes absent empty ends broken.py good deep".split()
    paths = [tmp_path / (name if "." in name else f"{name}.ipynb") for name in names]
    write(paths[5], "1 + 1")
    write(paths[6], IMPORTS, RIGHT, CHECK, "import os\nos._exit(3)", "check_triangle(my_causal_mask)")
    write(paths[7], "def f(:")
    stub = "def my_triangle(*_):\n    ...\ncheck_triangle(my_triangle)"
    write(paths[8], IMPORTS, RIGHT, CHECK, "import sys\nsys.exit(3)", stub)
    assert main(["--json", *map(str, paths)]) == 1
    graded = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["extra_data"]["submission"] for one in graded] == list(map(str, paths))
    said = [one["output"] for one in graded]
    unread = [name for name, one in zip(names, said, strict=True) if one.startswith("It cannot be read: ")]
    assert unread == "text list old bytes absent broken.py deep".split()
    assert said[1] == said[2] == "It cannot be read: it is not a notebook."
    assert said[5] == "It calls no checker, so there is nothing to grade."
    ended = "It ended with status 3: code cell 4 was running."
    assert said[6] == f"Line 2 of code cell 4 uses `os._exit`. {ended}"
    assert said[8] == ""
    tests = graded[8]["tests"]
    assert tests == [
        {"name": CHECK, "score": 1, "max_score": 1, "status": "passed",
         "output": tests[0]["output"], "tags": ["right"]},
        {"name": "check_triangle(my_triangle)", "score": 0, "max_score": 1, "status": "failed",
         "output": "the stub is not filled in", "tags": ["missing"]},
    ]  # fmt: skip
    # After the cell at which it ended, it goes on.
    assert [test["score"] for test in graded[6]["tests"]] == [1, 1]
    assert main([str(paths[8])]) == 0
    assert capsys.readouterr().out.startswith(f"{paths[8]}: 1 of 2 right\n")


def test_one_that_does_not_end_is_stopped(tmp_path):
    path = write(tmp_path / "a.ipynb", IMPORTS, "while True:\n    pass", RIGHT, CHECK)
    found = grade.grade(path, seconds=0.5)
    [said] = found.troubles
    assert said.startswith("It did not end within 0.5 seconds: code cell ")
    assert found.results == {CHECK: ("missing", "it was not reached")}


@pytest.mark.slow
def test_adapters_bring_code_that_is_elsewhere(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "layers.py").write_text(
        "import torch\ndef triangle(q_len, k_len=None):\n"
        "    return torch.ones(q_len, k_len or q_len).tril().bool()"
    )
    path = write(tmp_path / "adapters.py",
        "from mha_course import exercises", "from mine.layers import triangle",
        "from mine.lost import attend", "exercises.check_causal_mask(triangle)",
        "exercises.check_attention(attend)", "def split(x, num_heads):",
        "    return x.unflatten(-1, (num_heads, -1)).mT", "exercises.check_split_heads(split)",
        "exercises.check_my_pooling(len)", "exercises.check_multi_head(split, adapter=7)",
        "def stops(*_):", "    raise KeyboardInterrupt('\\ud800')",
        "exercises.check_triangle(stops)")  # fmt: skip
    found = grade.grade(path)
    assert found.troubles == []
    [triangle, attend, split, pooling, adapter, stops] = found.results.items()
    assert triangle[1][0] == "wrong" and triangle[1][1].startswith("the triangle starts at the first")
    lost = "its cell raises ModuleNotFoundError: No module named 'mine.lost'"
    assert attend[1] == ("missing", lost)
    assert [attend[0], split[1][0], pooling[1][0]] == ["exercises.check_attention(attend)", "wrong", "wrong"]
    assert adapter[1][0] == stops[1][0] == "missing"
    assert adapter[1][1].startswith("TypeError: adapter must be callable")
    assert stops[1][1] == "KeyboardInterrupt: \ud800"
    assert "\\ud800" in found.as_text(), "half a character can be printed"


def test_the_assignment_says_what_counts(tmp_path, capsys):
    handed_out = write(tmp_path / "out.ipynb", CHECK, "check_triangle(my_triangle)")
    submission = write(tmp_path / "a.ipynb", IMPORTS, RIGHT, "check_split_heads(my_causal_mask)")
    assert main([str(submission), "--assignment", str(handed_out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{submission}: 1 of 2 right", f"  right    {CHECK}",
        "  missing  check_triangle(my_triangle): NameError: name 'my_triangle' is not defined",
    ]  # fmt: skip
    write(tmp_path / "nothing.ipynb", "1 + 1")
    for wrong in (
        ["--assignment", f"{tmp_path}/nothing.ipynb"],
        ["--assignment", "no.ipynb"],
        ["--seconds", "inf"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main([str(submission), *wrong])
        assert stopped.value.code == 2
    assert "No such file" in (said := capsys.readouterr().err) and "got inf" in said


SPLIT = """def split_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"""
STUB = "def split_heads(x, num_heads):\n    ..."
LENS = """@torch.compile
def my_lens_mask(valid_lens, k_len):
    return torch.arange(k_len) < valid_lens.reshape(len(valid_lens), -1, 1)"""


def test_what_a_notebook_switches_or_writes_below_its_check_costs_no_mark(tmp_path):
    cells = [
        IMPORTS, "torch.set_default_device('cuda')\ntorch.set_grad_enabled(False)", STUB, "check_split_heads(split_heads)",
        SPLIT, LENS, "check_lens_mask(my_lens_mask)", "from torch import nn\nfrom mha_course.built import merge_heads\nfrom mha_course.exercises import check_multi_head",
        PAGE["MyMultiHead"]["solution"].source.partition("@solution")[2].partition("\n")[2],
        "check_multi_head(MyMultiHead)", "import nowhere\nimport torch.nn.functional as F",
        "def my_triangle(q_len, k_len=None):\n    return nowhere.tril(q_len, k_len)",
        "check_triangle(my_triangle)",
        "def my_merge(heads):\n    return heads.transpose(1, 2).flatten(2)", "def merge_heads(heads):\n    ...",
        "check_merge_heads(merge_heads)",
    ]  # fmt: skip
    found = grade.grade(write(tmp_path / "a.ipynb", *cells))
    states = {call.partition("(")[0]: state for call, (state, _) in found.results.items()}
    assert states == {
        "check_split_heads": "right", "check_lens_mask": "right", "check_multi_head": "right",
        "check_triangle": "wrong", "check_merge_heads": "missing",
    }, found  # fmt: skip
    said = found.results["check_triangle(my_triangle)"][1]
    assert said.endswith("(its cell raises ModuleNotFoundError: No module named 'nowhere')")
    assert found.troubles == [
        "Line 1 of code cell 11 uses `nowhere`.",
        "Line 2 of code cell 12 uses `nowhere.tril`.",
        "check_merge_heads(merge_heads): the stub is not filled in, but `my_merge` is right.",
    ]


def test_a_magic_for_pictures_costs_no_mark(tmp_path):
    magics = ["%matplotlib inline", "%matplotlib", "%matplotlib widget", "%matplotlib qt", "%gui qt"]
    answers = [f"{magic}\n{SPLIT.replace('split', f'split_{n}')}" for n, magic in enumerate(magics)]
    checks = [f"check_split_heads(split_{n}_heads)" for n in range(len(magics))]
    found = grade.grade(write(tmp_path / "a.ipynb", IMPORTS, *answers, *checks))
    assert found.as_text().splitlines()[1:] == [f"  right    {check}" for check in checks]


def test_what_is_borrowed_is_said_with_its_line(tmp_path):
    borrowed = """from mha_course import built as own
def split_heads(x, num_heads):
    return own.split_heads(x, num_heads)"""
    inside = """import torch.nn.functional as F
def my_attention(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    output = F.scaled_dot_product_attention(query, key, value, mask)
    return output, my_masked_softmax(scores, mask)"""
    cells = [IMPORTS, borrowed, "check_split_heads(split_heads)", inside, "check_attention(my_attention)"]
    found = grade.grade(write(tmp_path / "a.ipynb", *cells))
    split, attention = (f"check_{name}" for name in ("split_heads(split_heads)", "attention(my_attention)"))
    start = "of its code, in code cell"
    assert f"{split}: line 3 {start} 2, uses `mha_course.built.split_heads`." in found.troubles
    if found.results[attention][0] == "right":
        torchs = "torch.nn.functional.scaled_dot_product_attention"
        assert f"{attention}: line 4 {start} 4, uses `{torchs}`." in found.troubles


@pytest.mark.slow
def test_a_cell_that_does_not_end_is_left(tmp_path):
    stubborn = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
    cells = [IMPORTS, "while True:\n    pass", RIGHT, CHECK]
    found = grade.grade(write(tmp_path / "a.ipynb", *cells), cell_seconds=2)
    assert found.results[CHECK][0] == "right"
    assert found.troubles == ["Code cell 2 did not end within 2 seconds."]
    cells[1] = stubborn
    found = grade.grade(write(tmp_path / "a.ipynb", *cells), cell_seconds=2)
    assert found.results[CHECK][0] == "right"
    assert found.troubles == ["It could not be interrupted: code cell 2 was running."]


def test_what_is_no_regular_file_is_not_read(tmp_path):
    (tmp_path / "zero.ipynb").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "empty.ipynb").write_text("")
    with open(tmp_path / "large.ipynb", "wb") as file:
        file.truncate(60_000_000)
    said = {
        name: grade.grade(tmp_path / f"{name}.ipynb").troubles[0]
        for name in ("zero", "pipe", "empty", "large")
    }
    assert said["pipe"] == "It cannot be read: it is not a regular file."
    assert said["empty"] == "It cannot be read: it is empty."
    assert said["large"] == "It cannot be read: it is over 50,000,000 bytes long."
    assert said["zero"].startswith("It cannot be read: ")


def test_an_old_notebook_is_read_and_a_name_cannot_write_lines(tmp_path):
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": [CHECK]}]}]}
    (tmp_path / "old.ipynb").write_text(json.dumps(old))
    assert grade._opened(tmp_path / "old.ipynb")[0] == [CHECK]
    forged = grade.Grade(tmp_path / "a\n  right    b\x1b[2J.ipynb", {CHECK: ("wrong", "x" * 50_000_000)})
    lines = forged.as_text().splitlines()
    assert len(lines) == 2 and "\x1b" not in lines[0] and len(lines[1]) < 600
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / "old.ipynb"), "--seconds", "-1"])
    assert stopped.value.code == 2


def test_what_was_written_in_the_page_is_judged_whatever_was_accepted_there(tmp_path):
    right = PAGE["split_heads"]["stub"].source.replace(
        "    ...", "    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"
    )
    forged = PAGE["merge_heads"]["stub"].source.replace("    ...", "    return x.flatten(2)")
    entries = {
        "write-here/split_heads": {"draft": "", "accepted": right},
        "write-here/merge_heads": {"draft": forged, "accepted": forged},
        "write-here/MyHead": {"draft": PAGE["MyHead"]["stub"].source},
        "quiz/orientation-quiz": {"answers": {"One?": "a"}},
    }
    (tmp_path / "ada.json").write_text(json.dumps(entries))
    (tmp_path / "package.json").write_text('{"name": "x"}')
    write(tmp_path / "bob.ipynb", "x = 1")
    assert grade._expanded(tmp_path) == [tmp_path / "ada.json", tmp_path / "bob.ipynb"]
    found = grade.grade(tmp_path / "ada.json")
    assert {name: state for name, (state, _) in found.results.items()} == {
        "check_split_heads(split_heads)": "right", "check_merge_heads(merge_heads)": "wrong",
        "check_head(MyHead)": "missing",
    }  # fmt: skip
    for content in ("[]", '{"write-here/x": 7}', '{"write-here/x": {"draft": 7}}', '{"write-here/x": {}}'):
        (tmp_path / "ada.json").write_text(content)
        assert grade.grade(tmp_path / "ada.json").troubles == ["It cannot be read: it is not a notebook."], (
            content
        )


def test_a_run_that_was_interrupted_goes_on(tmp_path, capsys, monkeypatch):
    for name in "ab":
        write(tmp_path / "in" / f"{name}.ipynb", "1 + 1")
    arguments = [str(tmp_path / "in"), "--results", str(tmp_path / "results")]
    assert main(arguments) == 1
    first = capsys.readouterr()
    assert first.out.count("It calls no checker") == 2 and "Look at: " in first.err
    monkeypatch.setattr(grade, "grade", lambda path, **_: grade.Grade(path, troubles=["again"]))
    write(tmp_path / "in" / "b.ipynb", "1 + 2")
    assert main(arguments) == 1
    second = capsys.readouterr().out
    assert second.count("It calls no checker") == 1 and second.count("again") == 1


@pytest.mark.parametrize("troubled", ["a", "b"])
def test_the_status_says_that_one_needs_a_look_wherever_it_stands(tmp_path, monkeypatch, troubled):
    def graded(path, **_):
        return grade.Grade(path, troubles=["It looks odd."] if path.stem == troubled else [])

    monkeypatch.setattr(grade, "grade", graded)
    paths = [str(write(tmp_path / f"{name}.ipynb", "1")) for name in "abc"]
    assert main(paths) == 1 and main(paths[2:]) == 0


def test_equal_code_in_two_submissions_is_said():
    graded = [grade.Grade(tmp, {CHECK: ("right", "")}, digests={CHECK: digest})
              for tmp, digest in ((Path("a"), "1"), (Path("b"), "1"), (Path("c"), "2"), (Path("d"), ""), (Path("e"), ""))]  # fmt: skip
    said = [one.troubles for one in grade._with_equals(graded)]
    assert said == [[f"{CHECK}: the same code as in b."], [f"{CHECK}: the same code as in a."], [], [], []]
