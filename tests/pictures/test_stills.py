"""The stills of a page; in a file of their own, because they are taken by a browser of their own."""

import copy

import nbformat
import pytest
from drawings import put_back
from figures import figure_fault
from stills import add_stills
from stored_notebooks import WIDGET_VIEW, notebooks


def stills(notebook):
    outputs = [copy.deepcopy(output) for cell in notebook.cells for output in cell.get("outputs", [])]
    put_back(outputs)
    found = [output.get("data", {}) for output in outputs]
    return [data["image/png"] for data in found if WIDGET_VIEW in data and "text/html" not in data]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_the_stills_of_a_page_are_as_it_shows_its_widgets(path):
    notebook = nbformat.read(path, as_version=4)
    stored = stills(notebook)
    add_stills(notebook)
    assert not any(figure_fault(*pair) for pair in zip(stills(notebook), stored, strict=True))
