"""What JupyterLab saves of a chapter after a run: what was stored, except what the reader has changed."""

import asyncio
import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from run_notebooks import normalise
from saving import Chapters, keep_stored, merged, spoken_here
from stored_notebooks import ROOT, WIDGET_STATE, WIDGET_VIEW
from test_notebooks import picture

STORED = nbformat.read(ROOT / "chapters" / "00_orientation.ipynb", as_version=4)
SHOWN = next(cell.id for cell in STORED.cells if cell.id in STORED.metadata.widgets[WIDGET_STATE]["state"])


def after_a_run():
    """As JupyterLab holds it: counts, ids of this session, no pictures, trusted, the state with its code."""
    notebook = copy.deepcopy(STORED)
    states = {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            cell.execution_count = number
            cell.metadata |= {"trusted": True, "execution": {"iopub.status.busy": "2026"}}
            for output in cell.outputs:
                if view := output.get("data", {}).get(WIDGET_VIEW):
                    output.data.pop("text/html", None)
                    stored = STORED.metadata.widgets[WIDGET_STATE]["state"][view["model_id"]]
                    view["model_id"] = f"session-{number}"
                    states[view["model_id"]] = stored | {"state": stored["state"] | {"_esm": "code"}}
    notebook.metadata.widgets[WIDGET_STATE]["state"] = states
    return notebook


def shown(notebook):
    return next(cell for cell in notebook.cells if cell.id == SHOWN)


def test_a_run_with_the_same_results_is_saved_as_it_was_stored():
    assert merged(after_a_run(), STORED) == STORED


def test_opening_and_saving_changes_nothing():
    assert merged(copy.deepcopy(STORED), STORED) == STORED


@pytest.mark.parametrize("widgets", ["without code", "with code"])
def test_a_chapter_is_opened_as_jupyterlab_would_change_it(tmp_path, widgets):
    """Otherwise it is marked as changed: the kernel has a version, and stored widgets are loaded."""
    notebook = after_a_run() if widgets == "with code" else STORED
    nbformat.write(notebook, tmp_path / "00_orientation.ipynb")
    manager = Chapters(root_dir=str(tmp_path))
    opened = nbformat.from_dict(asyncio.run(manager.get("00_orientation.ipynb"))["content"])
    assert opened.metadata.kernelspec.display_name.endswith("(ipykernel)")
    assert opened.metadata.language_info == spoken_here()["language_info"]
    assert ("widgets" in opened.metadata) == (widgets == "with code")


def test_each_fold_is_opened_with_the_title_of_the_page_and_saved_without_it(tmp_path):
    """JupyterLab shows the first line of what it folds, which would be the beginning of an answer."""
    nbformat.write(STORED, tmp_path / "00_orientation.ipynb")
    manager = Chapters(root_dir=str(tmp_path))
    opened = nbformat.from_dict(asyncio.run(manager.get("00_orientation.ipynb"))["content"])
    folds = [cell for cell in opened.cells if cell.metadata.get("cellView") == "form"]
    assert len(folds) > 5
    assert all(cell.source.startswith("# @title Show ") for cell in folds)
    model = {"type": "notebook", "content": opened}
    keep_stored(model, "00_orientation.ipynb", manager)
    assert model["content"] == STORED


def test_another_notebook_is_opened_as_it_is(tmp_path):
    nbformat.write(new_notebook(cells=[new_code_cell("x = 1")]), tmp_path / "other.ipynb")
    opened = asyncio.run(Chapters(root_dir=str(tmp_path)).get("other.ipynb"))["content"]
    assert opened.metadata == {}


@pytest.mark.parametrize(("colour", "kept"), [((32, 119, 180), True), ((180, 119, 31), False)])
def test_a_figure_that_looks_the_same_stays_as_it_was_stored(colour, kept):
    def drawn(*colours):
        figure = new_output("display_data", {"image/png": picture(*colours), "text/plain": "<Figure>"})
        return normalise(new_notebook(cells=[new_code_cell("draw()", id="draw", outputs=[figure])]))

    stored, edited = drawn(), drawn(colour)
    assert stored != edited
    assert (merged(copy.deepcopy(edited), stored) == stored) is kept
    assert kept or merged(copy.deepcopy(edited), stored) == edited


def test_what_was_written_and_what_it_printed_is_saved():
    notebook = after_a_run()
    written = new_code_cell("print(7)", id="mine", outputs=[new_output("stream", name="stdout", text="7\n")])
    notebook.cells += [new_markdown_cell("A note.", id="note"), written]
    saved = merged(notebook, STORED)
    assert saved.cells[:-2] == STORED.cells
    assert [cell.source for cell in saved.cells[-2:]] == ["A note.", "print(7)"]
    assert saved.cells[-1].outputs[0].text == "7\n"


def test_outputs_that_were_cleared_are_not_put_back():
    notebook = after_a_run()
    shown(notebook).outputs = []
    saved = merged(notebook, STORED)
    assert shown(saved).outputs == []
    assert SHOWN not in saved.metadata.widgets[WIDGET_STATE]["state"]


def test_a_widget_of_a_cell_that_was_changed_is_saved_alive():
    notebook = after_a_run()
    shown(notebook).source += "  # mine"
    saved = merged(notebook, STORED)
    [view] = [o.data[WIDGET_VIEW] for o in shown(saved).outputs if WIDGET_VIEW in o.get("data", {})]
    assert (
        "export default" in saved.metadata.widgets[WIDGET_STATE]["state"][view["model_id"]]["state"]["_esm"]
    )
    assert shown(saved).metadata.trusted


class Manager:
    def __init__(self, folder):
        self.root_dir = str(folder)


@pytest.mark.parametrize("content", [
    {"type": "file", "content": "text"},
    {"type": "notebook", "content": None},
    {"type": "notebook", "content": new_notebook(cells=[new_code_cell("x = 1", execution_count=3)])},
])  # fmt: skip
def test_other_files_stay_as_they_are(tmp_path, content):
    before = copy.deepcopy(content)
    keep_stored(model=content, path="/other.ipynb", contents_manager=Manager(tmp_path))
    assert content == before
