"""What a reader wrote in one chapter is used in another: through a file, from one kernel to the next."""

import json
import re
import subprocess
import sys

import nbformat
import pytest
from exercise_cells import CHAPTERS, MARK, pieces_of
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.manager import start_new_kernel

from mha_course import built
from mha_course.exercises import keep_pieces, own, use_pieces
from mha_course.exercises.kept import DRAFTS, FILE, use_what_is_here

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
        hooks = {"pre_run_cell": [own.tell_whose]}
        hooks["post_run_cell"] = [own.explain_error, own.accept_what_is_right]
        pairs = [(event, one) for event, several in hooks.items() for one in several]
        for pair in pairs:
            shell.events.register(*pair)
        use_what_is_here()
        for cell in (IMPORTS, *cells):
            shell.run_cell(cell, store_history=True)
        for pair in pairs:
            shell.events.unregister(*pair)
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
    assert "Your `split_heads` was accepted, so the page goes on with it.\nFrom now on the course" in printed
    assert printed.endswith("Kept in mine.json: `split_heads`.\n")
    assert entry(tmp_path) == {"draft": MINE, "accepted": MINE}
    (tmp_path / FILE).unlink()

    printed = said(USE, GPT)
    told, whose, *calls, shape = printed.strip().splitlines()
    assert told == "The pages go on with your `split_heads`, from mine.json."
    assert whose == "This uses your `split_heads`, and the course's `MyGPT`."
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
    assert printed.startswith("The pages go on with your `split_heads`, from mine.json.\nThis uses your")
    assert "mine is called" in printed


def test_a_piece_that_cannot_be_run_leaves_the_course_s(tmp_path, said):
    (tmp_path / "mine.json").write_text(
        json.dumps({f"{DRAFTS}split_heads": {"accepted": f"{MINE}\nzero = 1 / 0"}})
    )
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


# What a reader does: write a piece, and check it. The folded solution stays closed.
CHECKED = (MINE, CHECK.source)


def test_a_piece_that_its_check_finds_right_is_used_in_the_other_notebooks_of_the_folder(tmp_path, said):
    printed = said(*CHECKED, GPT)
    told = f"in the other notebooks of this folder too: it is kept in {FILE}."
    assert f"From now on the course uses your `split_heads`, {told}" in printed
    assert "This uses your `split_heads`, and the course's `MyGPT`.\nmine is called" in printed
    assert json.loads((tmp_path / FILE).read_text(encoding="utf-8")) == {
        f"{DRAFTS}split_heads": {"draft": MINE, "accepted": MINE}
    }
    # Another notebook needs no call.
    printed = said(GPT)
    assert printed.startswith(f"The pages go on with your `split_heads`, from {FILE}.\nThis uses your")
    assert "mine is called" in printed


def test_what_is_wrong_or_the_courses_is_not_accepted(tmp_path, said):
    wrong = MINE.replace("dim=1)", "dim=2)")
    assert "From now on" not in said(wrong, CHECK.source)
    assert "From now on" not in said(SOLUTION.source, CHECK.source)
    assert said(GPT).splitlines()[-1] == "torch.Size([1, 8, 9])"
    assert not (tmp_path / FILE).exists()


def test_a_later_wrong_text_leaves_the_accepted_one_in_use(tmp_path, said):
    wrong = MINE.replace("dim=1)", "dim=2)").replace("mine", "wrong")
    assert "wrong is called" not in said(*CHECKED, wrong, CHECK.source, GPT).partition("This uses")[2]


def test_where_a_piece_cannot_be_kept_the_notebook_still_uses_it(tmp_path, said):
    (tmp_path / FILE).write_text("my own notes")
    printed = said(*CHECKED, GPT)
    assert f"{FILE} was not written by `keep_pieces`" in printed
    assert "It could not be kept for others:" in printed
    assert "mine is called" in printed.partition("This uses")[2]
    assert (tmp_path / FILE).read_text() == "my own notes"


def test_opening_a_notebook_runs_nothing_of_the_file_and_the_first_cell_uses_it(tmp_path):
    """In this environment a new kernel imports `mha_course` by itself."""
    text = f"{MINE}\n\n\nran = open('ran', 'w').close()"
    (tmp_path / FILE).write_text(json.dumps({f"{DRAFTS}split_heads": {"accepted": text}}))
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        assert not (tmp_path / "ran").exists()
        printed = []
        client.execute_interactive("1", output_hook=printed.append, timeout=120)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert (tmp_path / "ran").exists()
    told = "".join(message["content"].get("text", "") for message in printed)
    assert "The pages go on with your `split_heads`, from my_pieces.json." in told


def test_what_tries_a_piece_out_in_its_cell_is_not_run_again(tmp_path, said):
    tried = f"{MINE}\n\n\nprint(split_heads(page_only, 2).shape)"
    printed = said("page_only = torch.ones(1, 2, 4)", tried, CHECK.source)
    assert "From now on the course uses" in printed
    assert "The pages go on with your `split_heads`" in said(GPT)


# ------------------------------------------------------------------ all pieces of a reader, on all pages
ATTENTION = {"my_attention", "my_masked_softmax"}
LAYER = ATTENTION | {"MyMultiHead", "split_heads", "merge_heads"}
GPT_PARTS = LAYER | {"MyGPT", "MyEncoderBlock", "my_causal_mask"}
MODEL = "MyGPT(9, 12, 2, 1, 8)"
# A call of each piece that a page imports, and whose marks it prints.
CALLS = {
    "my_attention": ("my_attention(*3 * [torch.ones(1, 2, 4)], torch.ones(2, 2) > 0)", ATTENTION),
    "my_causal_mask": ("my_causal_mask(3)", {"my_causal_mask"}),
    "my_lens_mask": ("my_lens_mask(torch.tensor([1]), 3)", {"my_lens_mask"}),
    "split_heads": ("split_heads(torch.ones(1, 2, 4), 2)", {"split_heads"}),
    "merge_heads": ("merge_heads(torch.ones(1, 2, 2, 2))", {"merge_heads"}),
    "MyMultiHead": ("MyMultiHead(4, 2)(*3 * [torch.ones(1, 2, 4)])", LAYER),
    "MyPositions": ("MyPositions(4, 5)(torch.ones(1, 3, 4))", {"MyPositions"}),
    "MyEncoderBlock": ("MyEncoderBlock(4, 2, 8)(torch.ones(1, 2, 4))", LAYER | {"MyEncoderBlock"}),
    "MyGPT": (f"{MODEL}(torch.zeros(1, 8).long())", GPT_PARTS),
    "my_write": (
        f"import mha_course.built\nmy_write(mha_course.built.{MODEL}, torch.zeros(1).long(), 2)",
        GPT_PARTS | {"my_write", "my_probabilities"},
    ),
    "MySwiGLU": ("MySwiGLU(4, 8)(torch.ones(1, 4))", {"MySwiGLU"}),
    # What the pages show complete: theirs, but of the reader's parts.
    "TwoPointers": ("TwoPointers(2)(torch.zeros(1, 12).long())", LAYER),
}


def imported():
    """The pieces that the visible and folded cells of each page import: {page: [lines]}."""
    found = {}
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                lines = re.findall(
                    r"^from mha_course\.built import (\([^)]*\)|.*)$", cell.source, re.MULTILINE
                )
                found.setdefault(path.stem, []).extend(lines)
    return {page: lines for page, lines in found.items() if lines}


IMPORTED = imported()


@pytest.fixture
def mine(tmp_path):
    """A folder with the accepted pieces of a reader who has written all; each prints its name when called."""
    entries = {}
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for name, cells in pieces_of(path.stem).items():
            text = cells["solution"].source
            text = text[re.search(r"^(?:def|class) ", text, re.MULTILINE).start() :]
            entries[DRAFTS + name] = {"accepted": text + MARK.replace("NAME", name)}
    (tmp_path / FILE).write_text(json.dumps(entries), encoding="utf-8")
    return {name.removeprefix(DRAFTS) for name in entries}


def test_the_chapters_take_pieces_of_earlier_ones():
    chapters = {page[:2] for page in IMPORTED}
    assert chapters >= {"03", "04", "05", "06", "07", "08", "09"}


@pytest.mark.parametrize("page", IMPORTED)
def test_each_page_uses_all_that_the_reader_has_had_accepted_and_says_so(page, said, mine):
    for line in IMPORTED[page]:
        names = re.findall(r"\w+", line)
        assert {*names} & mine <= CALLS.keys()
        for name in [name for name in names if name in CALLS]:
            call, marks = CALLS[name]
            printed = said(f"from mha_course.built import {line}\n{call}")
            told, *rest = printed.partition("This uses your ")[2].splitlines()
            assert {*re.findall(r"^(\w+) is mine$", "\n".join(rest), re.MULTILINE)} == marks
            yours = {*re.findall(r"`(\w+)`", told.partition("the course's")[0])}
            # The model that `my_write` is given is not a name of the cell.
            assert yours >= marks & mine - (GPT_PARTS if name == "my_write" else set())
            assert not mine & {*re.findall(r"`(\w+)`", told.partition("the course's")[2])}


def test_the_model_that_chapter_8_opens_is_made_of_the_readers_pieces(said, mine):
    opens = (
        "from mha_course.exercises import own_gpt\nfrom mha_course.experiments import load_experiment\n"
        'model, characters, text, whose = own_gpt(load_experiment("gpt"))\nprint(whose)\n'
        "model(torch.zeros(1, 8).long()).shape"
    )
    printed = said(opens)
    assert "the stored GPT" in printed
    assert {*re.findall(r"^(\w+) is mine$", printed, re.MULTILINE)} == GPT_PARTS
