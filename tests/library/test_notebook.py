"""The helpers of the chapters: one seed, the source on the page, reasons."""

import ast
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from mha_course.notebook import compare_with_browser, if_installed, set_seed, show_source, why
from mha_course.widgets import RotationDial
from mha_lib import MultiHeadAttention, causal_mask, masked_softmax, scaled_dot_product_score


def draw():
    return random.random(), np.random.rand(), torch.rand(3).tolist()  # noqa: NPY002, the state under test


def test_one_seed_for_all_generators():
    set_seed(5)
    first = draw()
    assert draw() != first
    set_seed(5)
    assert draw() == first
    set_seed(6)
    other = draw()
    assert all(a != b for a, b in zip(first, other, strict=True))


def code(markdown):
    text = markdown.data
    assert text.startswith("```python\n")
    assert text.endswith("\n```")
    return text.removeprefix("```python\n").removesuffix("\n```")


@pytest.mark.parametrize(
    "thing", [masked_softmax, MultiHeadAttention, MultiHeadAttention.forward, causal_mask]
)
def test_the_source_shown_is_the_source_without_docstrings(thing):
    import inspect
    import textwrap

    def stripped(text):
        tree = ast.parse(textwrap.dedent(text))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
                del node.body[0]
        return ast.dump(tree)

    shown, original = code(show_source(thing)), inspect.getsource(thing)
    assert '"""' not in shown
    assert stripped(shown) == stripped(original)
    assert {line.strip() for line in shown.splitlines()} <= {line.strip() for line in original.splitlines()}
    assert shown == shown.strip("\n")
    assert "\n\n\n" not in shown


def test_comments_stay():
    assert "# Scaling the query takes" in code(show_source(scaled_dot_product_score))


def test_methods_are_shown_without_the_indentation_of_their_class():
    assert code(show_source(MultiHeadAttention.merge_heads)).startswith("def merge_heads(")
    assert code(show_source(MultiHeadAttention.from_torch)).startswith("@classmethod\ndef from_torch(")


def test_several_things_stand_one_after_another():
    shown = code(show_source(causal_mask, masked_softmax))
    assert [node.name for node in ast.parse(shown).body] == ["causal_mask", "masked_softmax"]
    assert "\n\n\ndef masked_softmax" in shown


def test_a_browser_is_compared_with_torch(capsys):
    dial = RotationDial()
    compare_with_browser(dial)
    assert capsys.readouterr().out == ""  # a page built without a browser does not mention one
    settings = {name: getattr(dial, name) for name in dial._settings}
    numbers = {name: tensor.tolist() for name, tensor in dial.numbers().items()}
    numbers["rotary_score"] += 0.25
    dial.browser_report = {"settings": settings, "numbers": numbers}
    compare_with_browser(dial)
    assert capsys.readouterr().out.endswith(": 2.5e-01\n")
    with pytest.raises(TypeError, match="widget must be an Explorer, got int"):
        compare_with_browser(3)


def test_why_by_name_says_what_the_file_says_below_the_heading():
    found = why("appendix_rotary_details/shaw-values").data
    assert found.startswith("<details>")
    assert "leaves out half of the paper" in found
    assert "##" not in found
    told = "one heading of 05_.*'positions'.*, got '05_positional_encoding/ex12'"
    with pytest.raises(ValueError, match=told):
        why("05_positional_encoding/ex12")
    with pytest.raises(ValueError, match=r"one heading of no_such_page.md, \[\], got 'no_such_page/slopes'"):
        why("no_such_page/slopes")


def test_every_reason_is_shown_by_its_page():
    for path in (Path(__file__).parents[2] / "mha_course" / "questions" / "why").glob("*.md"):
        names = re.findall(r"^## (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        page = (Path(__file__).parents[2] / "chapters" / f"{path.stem}.ipynb").read_text(encoding="utf-8")
        assert names
        assert re.findall(rf'why\(\\"{path.stem}/(\S+)\\"\)', page) == names


def test_cells_that_need_what_is_missing_say_so_and_the_others_run(capsys):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        cells = (
            "from mha_course.notebook import if_installed\n"
            "with if_installed('file'):\n    raise FileNotFoundError('it is not here')",
            "import math\ntwice = [2 * part for part in file]",
            "def size():\n    return len(twice)",
            "print(size())",
            "for twice in (1, 3):\n    pass\nprint(math.isqrt(3 * twice), [size for size in range(2)])",
            "file = [5]",
            "print(file[0] + 1)",
        )
        printed = []
        for cell in cells:
            shell.run_cell(cell).raise_error()
            printed.append(capsys.readouterr().out)
    finally:
        shell.ast_transformers.clear()
        InteractiveShell.clear_instance()
    assert printed[0].startswith("it is not here. The cells below that need it say so")
    for name, text in zip(("file", "twice", "size"), printed[1:4], strict=True):
        assert f"not installed ({name})" in text
    assert printed[4:] == ["3 [0, 1]\n", "", "6\n"]


def test_outside_of_a_notebook_what_is_missing_raises():
    with pytest.raises(FileNotFoundError, match="not here"), if_installed("file"):
        raise FileNotFoundError("not here")


@pytest.mark.no_shape_checks  # as in a reader's notebook
def test_without_the_chat_model_its_chapter_runs_to_the_end_and_shows_what_is_stored(monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    from mha_course.data import published

    def missing():
        raise FileNotFoundError("the chat model is not installed")

    monkeypatch.setattr(published, "chat_file", missing)
    page = Path(__file__).parents[2] / "chapters" / "09_a_model_people_use.ipynb"
    cells = [
        cell for cell in json.loads(page.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    shell = InteractiveShell.instance()
    said = {}
    try:
        for cell in cells:
            shell.run_cell("".join(cell["source"])).raise_error()
            said[cell["id"]] = capsys.readouterr().out
    finally:
        shell.ast_transformers.clear()
        InteractiveShell.clear_instance()
    assert said["file"].startswith("the chat model is not installed")
    skipped = {name for name, text in said.items() if "This cell is not run here" in text}
    assert {"tensors", "ask", "answer", "same", "round", "own-map"} <= skipped
    shown = {"glance-table", "off-table", "sink-table", "agree-table", "explain-table", "ex1-solution"}
    assert shown & skipped == set()
    assert "without six induction heads" in said["off-table"]


@pytest.mark.no_shape_checks  # as in a reader's notebook
def test_without_the_sentence_model_its_section_says_so_and_the_page_goes_on(monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    from mha_course.data import sentences

    def missing():
        raise FileNotFoundError("the sentence model is not installed")

    monkeypatch.setattr(sentences, "sentence_folder", missing)
    page = Path(__file__).parents[2] / "chapters" / "appendix_models_you_know.ipynb"
    cells = {cell["id"]: cell for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]}
    needed = [name for name, cell in cells.items() if "needs-model" in cell["metadata"].get("tags", [])]
    assert needed == ["sentences-load", "sentences-blocks", "sentences-search"]
    before = ["from mha_lib.models.checkpoints import load_checkpoint", "import torch"]
    shell = InteractiveShell.instance()
    said = {}
    try:
        for name in [*before, *needed, "today-table"]:
            shell.run_cell("".join(cells[name]["source"]) if name in cells else name).raise_error()
            said[name] = capsys.readouterr().out
    finally:
        shell.ast_transformers.clear()
        InteractiveShell.clear_instance()
    assert said["sentences-load"].startswith("the sentence model is not installed")
    assert "This cell is not run here" in said["sentences-blocks"]
    assert "This cell is not run here" in said["sentences-search"]
    assert "DeepSeek-V3, 2024" in said["today-table"]
