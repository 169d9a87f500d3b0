"""Figures have numbers, links say them, and how something was measured is folded below it."""

import captions
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from stored_notebooks import ROOT, notebooks

PRINTED = "loss: 0.31\nStill learning after 4,500 steps: 1 head; 2 heads, W_q < W_k.\n"


def figure(name):
    return new_code_cell("draw()", metadata={"mystnb": {"figure": {"caption": "All is blue.", "name": name}}})


def test_every_link_to_a_figure_says_its_number():
    assert captions.main([]) == 0


def test_captions_begin_with_the_number_of_the_chapter_or_the_letter_of_the_appendix():
    page = new_notebook(cells=[figure("fig-a"), new_markdown_cell("text"), figure("fig-b")])
    captions.put_numbers("07_gpt", page)
    shown = [cell.metadata.mystnb.figure.caption for cell in page.cells if cell.cell_type == "code"]
    assert shown == ["**Figure 7.1.** All is blue.", "**Figure 7.2.** All is blue."]
    assert captions.prefix("appendix_training_and_controls") == "B."
    assert captions.prefix("00_orientation") == "0."


def test_names_of_figures_are_of_the_whole_book():
    pages = [nbformat.read(path, as_version=4) for path in notebooks() if path.parent != ROOT]
    names = [name for page in pages for name in captions.figures("01_a", page)]
    assert len(names) == len(set(names)) > 100


@pytest.mark.parametrize(("text", "faults"), [
    ("[Figure 7.2](#fig-b)", []),
    ("[Figure 7.1](#fig-b)", ["[Figure 7.1](#fig-b) is Figure 7.2"]),
    ("[Figure](07_gpt.ipynb#fig-b)", ["[Figure](07_gpt.ipynb#fig-b) is Figure 7.2"]),
    ("[Figure 7.2](#fig-c)", ["[Figure 7.2](#fig-c) leads to no figure"]),
])  # fmt: skip
def test_a_wrong_number_is_named_and_corrected(text, faults):
    new, found = captions.corrected(text, {"fig-a": "Figure 7.1", "fig-b": "Figure 7.2"})
    assert found == faults
    assert new == (text if "fig-c" in text else text.replace("Figure]", "Figure 7.2]").replace("7.1", "7.2"))


@pytest.mark.parametrize("printed", [True, False])
def test_how_something_was_measured_is_folded_below_it(printed):
    outputs = [new_output("stream", text=PRINTED)]
    cells = [new_code_cell("table()", metadata={"measured": "Five seeds."}, outputs=outputs), figure("fig-a")]
    question = new_code_cell('quiz("a")', outputs=[new_output("stream", text=PRINTED.split("\n", 1)[1])])
    page = new_notebook(cells=[*cells, question])
    captions.fold_measurements(page, printed=printed)
    table, fold, last, asked = page.cells
    note = "Still learning after 4,500 steps: 1 head; 2 heads, W_q &lt; W_k."
    assert f"\n\nFive seeds.{' ' + note if printed else ''}\n\n" in fold.source
    assert table.outputs[0].text == ("loss: 0.31\n" if printed else PRINTED)
    assert last == cells[1]
    assert [output.text for output in asked.outputs] == ([] if printed else [PRINTED.split("\n", 1)[1]])
