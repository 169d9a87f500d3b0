"""No page says of models that were still learning what only a flat curve or a proof could show.

`tools/check_experiments.py` says how a page is read; `make book` stops where it finds something.
"""

import check_experiments
import claims
import nbformat
import pytest
from check_experiments import unsupported
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

NOTE = "Still learning after 4,500 steps: 1 head, linear; 1 head, MLP.\n"


def test_pages_say_nothing_strong_of_models_that_were_still_learning():
    pages = {path.stem: nbformat.read(path, as_version=4) for path in claims.notebooks()}
    faults = list(unsupported(pages))
    assert not faults, "\n".join(faults)


def page(text, *, caption="", note=NOTE, source="", settled=(), between=()):
    """A page with a cell that shows a number of such models, and a text after it."""
    shown = new_code_cell(
        "...",
        id="results",
        metadata={"mystnb": {"figure": {"caption": caption}}},
        outputs=[new_output("stream", name="stdout", text="right: 0.61\n" + note)],
    )
    said = new_markdown_cell(text, id="said", metadata={"settled": list(settled)})
    if source:
        said.metadata["numbers"] = {"from": [f"0.61 = {source}: right"]}
    return new_notebook(cells=[shown, *between, said])


@pytest.mark.parametrize("word", ["fails", "cannot", "needs help, to", "only", "is a bound", "ceiling"])
def test_the_text_after_such_a_cell(word):
    (fault,) = unsupported({"03_heads": page(f"Heads are good. One head {word} learn this.")})
    assert fault.startswith(f"03_heads, cell said: 'One head {word} learn this.'")
    assert "1 head, linear (4,500 steps); 1 head, MLP (4,500 steps)" in fault


def test_the_caption_of_such_a_cell():
    (fault,) = unsupported({"03_heads": page("", caption="All heads. One head fails.")})
    assert fault.startswith("03_heads, cell results: 'One head fails.'")


ELSEWHERE = [new_code_cell("...", id="other"), new_markdown_cell("## Another section", id="next")]


@pytest.mark.parametrize("between", [ELSEWHERE[:1], ELSEWHERE[1:], ELSEWHERE])
def test_a_paragraph_elsewhere_that_takes_a_number_from_it(between):
    """Also from another page; a paragraph that takes none is free to speak of something else."""
    text = "One head fails. It reaches 0.61.\n\nA bag of words cannot know the order."
    (fault,) = unsupported({"03_heads": page(text, source="results", between=between)})
    assert "'One head fails.'" in fault
    assert not list(unsupported({"03_heads": page(text, between=between)}))
    there = new_notebook(cells=[page(text, source="03_heads/results").cells[-1]])
    (fault,) = unsupported({"03_heads": page(""), "06_what": there})
    assert fault.startswith("06_what, cell said: ")


@pytest.mark.parametrize("text", [
    "One head reaches 0.61.",
    "One head fails within 4,500 steps.",
    "One head fails here, but it was still learning.",
])  # fmt: skip
def test_what_may_be_said(text):
    assert not list(unsupported({"03_heads": page(text)}))


def test_other_steps_are_no_excuse():
    assert list(unsupported({"03_heads": page("One head fails within 500 steps.")}))
    assert list(unsupported({"03_heads": page("4500 words cannot help.")}))


def test_nothing_is_wrong_where_learning_had_ended():
    assert not list(unsupported({"03_heads": page("One head fails.", note="")}))


@pytest.mark.parametrize(("settled", "faults"), [
    ("One head cannot: the mixture is the same for both", 0),
    ("One head cannot: ", 1),  # no reason
    (": it is proved above", 1),
    ("Two heads cannot: the mixture is the same for both", 1),
])  # fmt: skip
def test_what_is_proved_says_by_what(settled, faults):
    pages = {"03_heads": page("One head cannot name both tokens.", settled=[settled])}
    assert len(list(unsupported(pages))) == faults


def test_the_book_is_not_built_then(monkeypatch, tmp_path, capsys):
    path = tmp_path / "page.ipynb"
    nbformat.write(page("One head fails."), path)
    monkeypatch.setattr(check_experiments, "experiment_names", list)
    monkeypatch.setattr(check_experiments, "notebooks", lambda: [path])
    assert check_experiments.main() == 1
    assert "page, cell said: 'One head fails.'" in capsys.readouterr().err
