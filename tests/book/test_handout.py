"""An assignment that is made of the exercises of pages: what is in it, and what is refused."""

import builtins
import importlib.util
import json
import re

import nbformat
import pytest
from exercise_cells import CHAPTERS

from mha_course import built, handout
from mha_course._take_home import piece_of

PAGES = [path for path in sorted(CHAPTERS.glob("*.ipynb")) if '-stub"' in path.read_text("utf-8")]
REGION = r"(?s)\n*# BEGIN SOLUTION NO PROMPT\n.*?# END SOLUTION"


def read(text):
    """The cells of a notebook whose form is right, by their ids."""
    book = nbformat.reads(text, 4)
    nbformat.validate(book)
    return {cell.id: cell for cell in book.cells}


def made(tmp_path, monkeypatch, *arguments):
    """The notebook that the command writes, where the tools are installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert handout.main([*arguments, "--to", str(tmp_path), "--name", "heads"]) == 0
    [path] = tmp_path.rglob("*.ipynb")
    return path.read_text(encoding="utf-8")


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        handout.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err.rpartition("error: ")[2].strip()


def test_a_page_gives_the_cells_that_nbgrader_knows(tmp_path, monkeypatch):
    text = made(tmp_path, monkeypatch, "3", "--exercises", "my_head,split_heads", "--points", "2,1.5")
    cells = read(text)
    marks = {name: cell.metadata.get("nbgrader", {}) for name, cell in cells.items()}
    assert list(cells)[:2] == ["setup", "torch"]
    assert [name for name, mark in marks.items() if mark["solution"]] == ["MyHead", "split_heads"]
    points = {name: mark["points"] for name, mark in marks.items() if mark["grade"]}
    assert points == {"check-MyHead": 2, "check-split_heads": 1.5}
    assert all(mark["locked"] != mark["solution"] for mark in marks.values())
    assert cells["check-split_heads"].source == "check_split_heads(split_heads)"
    assert "my_attention" in cells["given-MyHead"].source
    config = (tmp_path / "nbgrader_config.py").read_text(encoding="utf-8")
    assert "mha_course._nbgrader.Judge" in config and '"nbgrader.preprocessors.Execute"' not in config


@pytest.mark.parametrize("tool", ["nbgrader", "otter"])
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_nothing_of_a_solution_is_outside_what_the_tools_remove(page, tool):
    cells = handout.cells_of(page)
    exercises = handout.exercises_of(cells, ())
    book = json.loads(handout._assignment([page], [one.name for one in exercises], [], tool))
    assert all(not cell.get("outputs") for cell in book["cells"])
    assert book["metadata"].keys() == {"kernelspec", "language_info"}
    students = "\n".join(re.sub(REGION, "", cell["source"]) for cell in book["cells"])
    assert "SOLUTION\n" not in students.replace("# BEGIN SOLUTION\n", "").replace("# END SOLUTION\n", "")
    assert "<details>" not in students
    stubs = "".join(one.stub for one in exercises)
    for one in exercises:
        lines = {line.strip() for line in one.solution.splitlines() if len(line.strip()) > 20}
        stated = stubs + one.task + one.check + "".join(one.given)
        lines = {line for line in lines if not line.startswith(("def ", "class ", "from ", "import "))}
        assert lines, one.name
        for line in lines - {line.strip() for line in stated.splitlines()}:
            others = sum(line in part for two in exercises if two is not one for part in two.given)
            assert students.count(line) <= others, (one.name, line)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_an_exercise_gets_all_that_it_needs(page):
    cells = handout.cells_of(page)
    for one in handout.exercises_of(cells, ()):
        text = "\n".join(["import torch\nfrom torch import nn", *one.given, one.source, one.check])
        assert piece_of(text).needs <= vars(builtins).keys(), one.name
        assert one.task and "..." in one.stub
        if one.name in built.__all__:
            assert f"import {one.name}" not in "\n".join(one.given)


def test_several_pages_make_one_notebook_whose_links_lead_to_the_book(tmp_path, monkeypatch):
    cells = read(made(tmp_path, monkeypatch, "2", "mask_rosetta", "--exercises", "my_attention,my_translate"))
    assert {"my_attention", "my_translate"} <= cells.keys()
    text = handout._standing_alone("see [it](02_x.ipynb#a) or [here](#b) {cite:p}`x`", "https://y/", "03_z")
    assert text == "see [it](https://y/02_x.html#a) or [here](https://y/03_z.html#b)"


def test_a_piece_that_is_asked_is_not_given(tmp_path, monkeypatch):
    cells = read(made(tmp_path, monkeypatch, "3", "--exercises", "MyMultiHead,merge_heads"))
    assert "merge_heads" not in cells["given-MyMultiHead"].source
    assert "split_heads" in cells["given-MyMultiHead"].source


def test_otter_gets_its_raw_cells(tmp_path, monkeypatch):
    arguments = "3", "--exercises", "split_heads", "--points", "3", "--for", "otter"
    text = made(tmp_path, monkeypatch, *arguments)
    cells = read(text)
    raw = [cell.source.partition("\n")[0] for cell in cells.values() if cell.cell_type == "raw"]
    assert raw == ["# ASSIGNMENT CONFIG", "# BEGIN QUESTION", "# BEGIN SOLUTION", "# END SOLUTION",
                   "# BEGIN TESTS", "# END TESTS", "# END QUESTION"]  # fmt: skip
    assert "points: 3" in text
    assert cells["split_heads-6"].source.endswith(
        "verdict = check_split_heads(split_heads)\nassert verdict, verdict"
    )


def test_a_set_up_that_installs_nothing_is_said(tmp_path, monkeypatch, capsys):
    page = str(CHAPTERS / "03_multi_head_attention.ipynb")
    made(tmp_path, monkeypatch, page, "--exercises", "split_heads")
    assert "run `make book` first" in capsys.readouterr().err


def test_a_config_of_a_lecturer_stays(tmp_path, monkeypatch, capsys):
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\n")
    made(tmp_path, monkeypatch, "3", "--exercises", "split_heads")
    assert "copy the lines" in capsys.readouterr().err
    assert (tmp_path / "nbgrader_config.py").read_text() == "c = get_config()\n"


X, P = "--exercises", "--points"
WRONG = [
    (["3", X, "split_head"], "There is no exercise split_head here. There are: MyHead, split_heads,"),
    (["3", X, "split_heads,split_heads"], "An exercise is named twice in --exercises"),
    (["3", X, "MyHead", P, "2,1"], "--points has 2 numbers and --exercises 1 names: give"),
    (["3", X, "MyHead", P, "-2"], "--points must be numbers of at least 0, such as 2,1; '-2'"),
    (["3", X, "MyHead", P, "nan"], "--points must be numbers of at least 0, such as 2,1; 'nan'"),
    (["33", X, "MyHead"], "There is no page '33': give a number from 0 to 9"),
    (["README.md", X, "MyHead"], "README.md is not a page of the course: give a notebook"),
    (["3", X, "MyHead", "--name", "../x"], "--name must consist of letters, digits, `_` and `-`"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_wrong_arguments_get_one_sentence(arguments, said, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    if "README.md" in arguments:
        monkeypatch.chdir(CHAPTERS.parent)
    if "--points" in arguments:  # argparse would take -2 for an option
        place = arguments.index("--points")
        arguments = [*arguments[:place], f"--points={arguments[place + 1]}"]
    found = refused(capsys, *arguments, "--to", str(tmp_path))
    assert found.startswith(said)
    assert "\n" not in found and not list(tmp_path.iterdir())


def test_an_assignment_that_was_changed_is_not_overwritten(tmp_path, monkeypatch, capsys):
    made(tmp_path, monkeypatch, "3", "--exercises", "split_heads")
    made(tmp_path, monkeypatch, "3", "--exercises", "split_heads")
    [path] = tmp_path.rglob("*.ipynb")
    path.write_text("mine")
    arguments = "3", "--exercises", "split_heads", "--to", str(tmp_path), "--name", "heads"
    assert "exists already and differs: remove it" in refused(capsys, *arguments)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("tool", "package"), handout._TOOLS.items())
def test_a_tool_that_is_missing_is_named(tool, package, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = refused(capsys, "3", "--exercises", "split_heads", "--for", tool)
    assert found == f"{package} is not installed here: run `pip install {package}`."
