"""A kernel that is new in the middle of a chapter: a cell that fails says which cells to run first."""

import builtins
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from stored_notebooks import notebooks

from mha_course import _resume as resume

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "The kernel does not know"


def code_cells(path):
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code" and cell.id != "setup"]


def unknown_of(source):
    """The names that a cell takes from cells above it, as far as the page binds them at all."""
    return resume.names_used(source) - vars(builtins).keys()


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_every_cell_that_needs_others_names_its_page_and_their_names(path):
    title = resume.pages()[[page.stem for page in notebooks()].index(path.stem)].title
    cells = [source for source in code_cells(path) if unknown_of(source)]
    told = [resume.missing(source, unknown_of(source)) for source in cells]
    page = next(page for page in resume.pages() if page.title == title)
    on_pages = Counter(cell.digest for page in resume.pages() for cell in page.cells)
    for source, text in zip(cells, told, strict=True):
        if on_pages[resume.digest(source)] > 1:
            continue  # the same line on two pages
        needs = unknown_of(source) & resume.defined_on(page)
        assert bool(needs) == (text is not None), source
        assert not needs or f"On the page *{title}*, run first:" in text
        assert all(f"`{name}`" in text for name in needs)


def test_an_edited_cell_is_known_by_its_names():
    """Of the cells of the path, with a line that the reader has added, nearly nine of ten."""
    right, tried = 0, 0
    for path, page in zip(notebooks(), resume.pages(), strict=True):
        for source in code_cells(path) if path.stem[0] == "0" else []:
            edited = source + "\nprint('mine')"
            if len(unknown_of(source) & resume.defined_on(page)) > 1:
                tried += 1
                right += resume.page_of(edited) is page
    assert tried > 200
    assert right > 0.85 * tried


def test_it_names_the_sections_and_the_pieces():
    used = {"TwoPointers", "pointer_batch", "models"}
    told = resume.missing(" + ".join(used), {"TwoPointers", "pointer_batch"}).splitlines()
    assert (
        told[0]
        == f"{SENTENCE} `TwoPointers`, `pointer_batch`. On the page *Multi-head attention*, run first:"
    )
    assert told[1:3] == [
        f"- in *Your layer learns*, the cell with `{name}`" for name in ("TwoPointers", "pointer_batch")
    ]
    assert told[3] == "  or go on with `from mha_course.built import TwoPointers`"
    assert "run all cells above this one" in told[4]
    assert resume.missing("nobody_has_this", {"nobody_has_this"}) is None


SESSION = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("import mha_course, mha_lib")
for source in {cells!r}:
    shell.run_cell(source)
"""


def said(*cells):
    """What a new kernel prints that has run the set-up and then these cells."""
    source = SESSION.format(cells=list(cells))
    command = [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def test_a_new_kernel_says_so_once():
    [path] = [path for path in notebooks() if path.stem == "03_multi_head_attention"]
    [loop] = [cell for cell in nbformat.read(path, as_version=4).cells if cell.id == "learn-loop"]
    printed = said(loop.source, "print(never_on_a_page)", "1 / 0", "right = 5\nright")
    assert printed.count(SENTENCE) == 1
    assert "`TwoPointers`" in printed


def test_a_kernel_of_this_environment_says_so_before_the_set_up():
    """Nine of ten cells of the path that use what is defined above them, each first in a kernel."""
    config = Path(sys.prefix, "etc", "ipython", "ipython_kernel_config.py")
    assert config.resolve() == ROOT / "tools" / "ipython_kernel_config.py", "`make book` puts the link there"
    cells = [source for path in notebooks() if path.stem[0] == "0" for source in code_cells(path)]
    cells = random.Random(20261128).sample([source for source in cells if unknown_of(source)], 60)
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        told = 0
        for source in cells:
            printed = []
            client.execute_interactive("%reset -f\n" + source, output_hook=printed.append, timeout=300)
            told += any(SENTENCE in message["content"].get("text", "") for message in printed)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert told >= 0.9 * len(cells)


STUB = "def my_mean(x):\n    return x.mean()"


def test_after_a_syntax_error_the_earlier_definition_is_gone():
    """The check below would otherwise say that it is right."""
    told = "This cell did not run, so `my_mean` is not defined until it does."
    printed = said(STUB, STUB.replace("mean()", "mean("), "print('judged', my_mean)")
    assert told in printed
    assert "judged <function" not in printed
    assert "NameError" in printed
    printed = said(STUB, STUB.replace("mean()", "mean("), STUB, "print('judged', my_mean)")
    assert "judged <function my_mean" in printed
    assert told not in said("x = (", "def never_run(:\n    pass", STUB)


def test_the_list_of_cells_is_compact():
    """One line for each cell, so that a diff shows which cell changed."""
    text = (resume.Path(resume.__file__).parent / "cells.json").read_text(encoding="utf-8")
    cells = sum(len(page["cells"]) for page in json.loads(text).values())
    assert text.count("\n") < cells + 3 * len(notebooks())
