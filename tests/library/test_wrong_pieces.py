"""Wrong pieces as newcomers write them are refused, and the verdict names the cause."""

import linecache

import pytest
import torch
from exercise_cells import CHAPTERS, CHECKS, checker_of, pieces_of
from torch import nn
from wrong_pieces import WRONG, text_of

from mha_course import built

PIECES = {name: cells for page in CHAPTERS.glob("*.ipynb") for name, cells in pieces_of(page.stem).items()}
SEEN = {"torch": torch, "nn": nn, **{name: getattr(built, name) for name in built.__all__}}


def written(name, text):
    """The piece that a reader has written in a cell: a text, or a change of the solution."""
    text = text_of(PIECES[name]["solution"].source, text)
    space = {**SEEN, "__name__": "__main__"}
    file = f"<cell of {name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), space)  # noqa: S102
    return space[name]


@pytest.mark.parametrize(("name", "text", "said"), WRONG)
def test_a_wrong_piece_is_refused_and_its_cause_named(name, text, said):
    check, _ = checker_of(PIECES[name])
    assert CHECKS[check](written(name, text)).message.startswith(f"Not yet: {said}")


def test_a_line_is_that_of_the_readers_piece_and_never_of_the_courses():
    broken = written(
        "my_masked_softmax", "def my_masked_softmax(scores, mask=None):\n    return scores.no_such()"
    )
    use = written("my_attention", WRONG_USE)
    use.__globals__["my_masked_softmax"] = broken
    said = CHECKS["check_attention"](use).message
    assert "in line 2 of your `my_masked_softmax`, `return scores.no_such()`" in said
    # The course's own piece, from a folded cell of the page: the last line that the reader sees counts.
    broken._is_the_courses = True
    broken.__globals__["my_masked_softmax"] = broken
    said = CHECKS["check_attention"](use).message
    assert "in line 2 of your `my_attention`, `weights = my_masked_softmax(query, mask)`" in said


WRONG_USE = """def my_attention(query, key, value, mask=None):
    weights = my_masked_softmax(query, mask)
    return weights @ value, weights"""
