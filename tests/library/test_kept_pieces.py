"""What a reader wrote in one chapter is used in another: through a file, from one kernel to the next."""

import json
import subprocess
import sys

import nbformat
import pytest
from exercise_cells import CHAPTERS, pieces_of
from IPython.core.interactiveshell import InteractiveShell

from mha_course import built
from mha_course.exercises import keep_pieces, own, use_pieces
from mha_course.exercises.kept import DRAFTS

SESSION = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for source in ["import mha_course, mha_lib", *json.load(sys.stdin)]:
    shell.run_cell(source, store_history=True)
"""
STUB, CHECK, _, SOLUTION = pieces_of("03_multi_head_attention")["split_heads"].values()
# It says so when it is called.
MINE = """\
def split_heads(x, num_heads):
    print("mine is called")
    return torch.stack(x.chunk(num_heads, dim=1 - 2), dim=1)"""
IMPORTS = (
    "import torch\n\nfrom mha_course.exercises import check_split_heads, keep_pieces, solution, use_pieces"
)
KEEP, USE = "keep_pieces('mine.json')", "use_pieces('mine.json')"
GPT = "from mha_course.built import MyGPT\nprint(MyGPT(9, 12, 2, 1, 8)(torch.zeros(1, 8).long()).shape)"


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """What a new session prints that has run these cells: a kernel in a folder, but in this process."""
    monkeypatch.chdir(tmp_path)
    before = dict(vars(built))

    def run(*cells):
        for name, value in (("ACCEPTED", {}), ("FROM_FILE", set())):
            monkeypatch.setattr(own, name, value)
        vars(built).clear()
        vars(built).update(before)
        shell = InteractiveShell.instance()
        shell.events.register("post_run_cell", own.explain_error)
        for cell in (IMPORTS, *cells):
            shell.run_cell(cell, store_history=True)
        shell.events.unregister("post_run_cell", own.explain_error)
        InteractiveShell.clear_instance()
        return capsys.readouterr().out

    yield run
    vars(built).clear()
    vars(built).update(before)


def entry(folder, name="split_heads"):
    return json.loads((folder / "mine.json").read_text(encoding="utf-8"))[DRAFTS + name]


def test_a_piece_of_chapter_3_is_in_the_gpt_of_chapter_7(tmp_path):
    """Each chapter in a process of its own."""

    def said(*cells):
        options = {"cwd": tmp_path, "input": json.dumps([IMPORTS, *cells]), "capture_output": True}
        return subprocess.run(
            [sys.executable, "-c", SESSION], text=True, timeout=300, check=True, **options
        ).stdout

    printed = said(MINE, SOLUTION.source, KEEP)
    assert "Your `split_heads` was accepted, so the page goes on with it.\nAfter the last one, run" in printed
    assert printed.endswith("Kept in mine.json: `split_heads`.\n")
    assert entry(tmp_path) == {"draft": MINE, "accepted": MINE}

    printed = said(USE, GPT)
    told, *calls, shape = printed.strip().splitlines()
    assert told == "The pages go on with your `split_heads`, from mine.json."
    assert set(calls) == {"mine is called"}
    assert len(calls) == 3  # queries, keys and values of one block
    assert shape == "torch.Size([1, 8, 9])"


def test_a_kept_piece_that_fails_later_is_named(tmp_path, said):
    (tmp_path / "mine.json").write_text(
        json.dumps({f"{DRAFTS}split_heads": {"accepted": "def split_heads(x, n):\n    return x.nothing"}})
    )
    printed = said(USE, GPT)
    assert "Your `split_heads`, from the file of your pieces, took part in this." in printed
    assert "your split_heads" in printed  # where the line stands, in the traceback


def test_a_file_gathers_the_pieces_of_several_chapters_and_drafts(tmp_path, said):
    merge = MINE.replace("split_heads", "merge_heads").replace("num_heads", "wrong")
    said(MINE, SOLUTION.source, KEEP)
    printed = said(USE, merge, KEEP)
    assert "Kept in mine.json: `split_heads`." in printed
    assert "Not accepted yet, so kept only as drafts: `merge_heads`." in printed
    assert entry(tmp_path)["accepted"] == MINE
    assert entry(tmp_path, "merge_heads") == {"draft": merge}
    assert "The pages go on with your `split_heads`, from" in said(USE)


def test_a_piece_that_was_right_and_is_now_edited_is_kept_in_both_texts(tmp_path, said):
    edited = MINE.replace("dim=1)", "dim=2)")
    said(MINE, SOLUTION.source, edited, KEEP)
    assert entry(tmp_path) == {"draft": edited, "accepted": MINE}


def test_what_the_page_shows_is_not_the_readers(tmp_path, said):
    cells = nbformat.read(CHAPTERS / "03_multi_head_attention.ipynb", as_version=4).cells
    shown = [cell.source for cell in cells if cell.id == "build-loop"]
    printed = said(STUB.source, SOLUTION.source, *shown, KEEP)
    assert "There is nothing to keep yet" in printed
    assert not (tmp_path / "mine.json").exists()


def test_a_file_of_the_pages_progress_is_used(tmp_path, said):
    """It has answers too, texts that no check has accepted, and drafts of cells that are no pieces."""
    entries = {
        "quiz/03_multi_head_attention": {"answers": {"a": "1"}},
        f"{DRAFTS}split_heads": {"draft": "def split_heads(:", "accepted": f"import torch\n\n\n{MINE}"},
        f"{DRAFTS}merge_heads": {"draft": "def merge_heads(x): return x"},
        f"{DRAFTS}try/1": {"draft": "1 / 0", "accepted": "1 / 0"},
    }
    (tmp_path / "mine.json").write_text(json.dumps(entries))
    printed = said(USE, GPT)
    assert printed.startswith("The pages go on with your `split_heads`, from mine.json.\nmine is called")


def test_a_piece_that_cannot_be_run_leaves_the_course_s(tmp_path, said):
    (tmp_path / "mine.json").write_text(json.dumps({f"{DRAFTS}split_heads": {"accepted": f"{MINE}\n1 / 0"}}))
    printed = said(USE, GPT)
    told = "Your `split_heads` stopped with ZeroDivisionError: division by zero, so the course's is used."
    assert printed.splitlines()[:2] == [told, "mine.json has no piece that a check has accepted."]
    assert printed.splitlines()[2] == "torch.Size([1, 8, 9])"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\x00"])
def test_another_file_is_not_touched(tmp_path, text):
    path = tmp_path / "letters.txt"
    path.write_text(text)
    for function in (keep_pieces, use_pieces):
        with pytest.raises(ValueError, match="letters.txt was not written by `keep_pieces`"):
            function(path)
    assert path.read_text() == text


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file .*away.json: `keep_pieces` writes it"):
        use_pieces(tmp_path / "away.json")
