"""Numbers in the text of the pages are those that their cells print: tools/claims.py says how."""

import copy
import json

import claims
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

LISTED = json.loads(claims.LEDGER.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", claims.notebooks(), ids=claims.name_of)
def test_measurements_in_the_text_come_from_cells(path):
    faults = list(claims.page_faults(path, LISTED))
    assert not faults, "\n".join([*faults, "Read each beside its cells, then: make claims"])


def test_most_sources_are_cells():
    sources = [source for page in LISTED.values() for found in page.values() for source in found.values()]
    assert len(sources) > 300
    assert sum(source.startswith("given: ") for source in sources) < len(sources) / 4


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A small page, and the list that belongs to it."""
    path = tmp_path / "page.ipynb"
    cells = [
        new_markdown_cell("With two heads the loss falls to 18.49. That is 3 times `0.77` and $1.5$."),
        new_code_cell(
            "print(loss)", id="losses", outputs=[new_output("stream", name="stdout", text="18.4917\n")]
        ),
        new_code_cell(
            "draw()\nassert round(share, 2) == 0.93 and one == 13 / 48",
            id="drawing",
            metadata={
                "mystnb": {
                    "image": {"alt": "A curve that rises to 93 % and stays"},
                    "figure": {"caption": "One head stays at 13/48."},
                }
            },
        ),
    ]
    nbformat.write(new_notebook(cells=cells), path)
    monkeypatch.setattr(claims, "notebooks", lambda: [path])
    monkeypatch.setattr(claims, "LEDGER", tmp_path / "claims.json")
    assert claims.main(["--write"]) == 0
    return path


def replace(place, old, new):
    """A change of a page: `old` text of the cell number `place` becomes `new`."""

    def change(notebook):
        if place in ("alt", "caption"):
            shown = notebook.cells[2].metadata.mystnb
            kind = shown.image if place == "alt" else shown.figure
            assert old in kind[place]
            kind[place] = kind[place].replace(old, new)
        elif place == "output":
            notebook.cells[1].outputs[0].text = notebook.cells[1].outputs[0].text.replace(old, new)
        else:
            assert old in notebook.cells[place].source
            notebook.cells[place].source = notebook.cells[place].source.replace(old, new)

    return change


PLANTED = {
    "a digit of the text": (replace(0, "18.49", "19.49"), "changed since it was"),
    "a verdict": (replace(0, "falls", "rises"), "changed since it was"),
    "another subject": (replace(0, "two heads", "one head"), "changed since it was"),
    "a sentence that is gone": (replace(0, "With two heads the loss falls to 18.49.", ""), "not on the page"),
    "a new sentence": (replace(0, "That is", "It was 2.5 before. That is"), "not listed"),
    "what the cell prints": (replace("output", "18.4", "18.5"), "18.49 does not come from 'losses'"),
    "what a cell asserts": (replace(2, "0.93", "0.94"), "93% does not come from 'drawing'"),
    "an assert in a comment": (replace(2, "assert", "# assert"), "93% does not come from 'drawing'"),
    "the description of a figure": (replace("alt", "93 %", "98 %"), "changed since it was"),
    "a fraction in a caption": (replace("caption", "13/48", "15/48"), "changed since it was"),
    "what a cell asserts of a fraction": (
        replace(2, "13 / 48", "15 / 48"),
        "13/48 does not come from 'drawing'",
    ),
    "a verdict in a description": (replace("alt", "rises", "falls"), "changed since it was"),
}


def test_the_list_is_what_the_page_prints(page):
    assert json.loads(claims.LEDGER.read_text(encoding="utf-8")) == {
        "page": {
            "With two heads the loss falls to 18.49.": {"18.49": "losses"},
            "A curve that rises to 93 % and stays": {"93%": "drawing"},
            "One head stays at 13/48.": {"13/48": "drawing"},
        }
    }
    assert claims.main([]) == 0


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_found(page, fault, capsys):
    change, message = PLANTED[fault]
    notebook = nbformat.read(page, as_version=4)
    change(notebook)
    nbformat.write(notebook, page)
    assert claims.main([]) == 1
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("source", ["", "given: ", "given: size", "experiment: common", "drawing", "nowhere"])
def test_a_source_must_hold(page, source):
    listed = copy.deepcopy(json.loads(claims.LEDGER.read_text(encoding="utf-8")))
    listed["page"]["With two heads the loss falls to 18.49."]["18.49"] = source
    (fault,) = claims.page_faults(page, listed)
    assert "18.49 does not come from" in fault


def test_sizes_may_come_from_the_script_of_an_experiment():
    notebook = new_notebook()
    assert claims.holds("4,500", "experiment: words", notebook)
    assert not claims.holds("4,501", "experiment: words", notebook)
