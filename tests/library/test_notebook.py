"""The helpers of the chapters: one seed, the source on the page, shapes to predict."""

import ast
import random

import numpy as np
import pytest
import torch

from mha_lib import MultiHeadAttention, causal_mask, masked_softmax, scaled_dot_product_score
from mha_lib.notebook import compare_with_browser, predict_shape, set_seed, show_source
from mha_lib.widgets import RotationDial


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


def test_comments_stay_and_docstrings_can():
    shown = code(show_source(scaled_dot_product_score))
    assert "# Scaling the query takes" in shown
    full = code(show_source(scaled_dot_product_score, docstring=True))
    assert '"""Dot product divided by √d' in full
    assert "def scaled_dot_product_score(" in ast.unparse(ast.parse(full))


def test_methods_are_shown_without_the_indentation_of_their_class():
    assert code(show_source(MultiHeadAttention.merge_heads)).startswith("def merge_heads(")
    assert code(show_source(MultiHeadAttention.from_torch)).startswith("@classmethod\ndef from_torch(")


def test_several_things_stand_one_after_another():
    shown = code(show_source(causal_mask, masked_softmax))
    assert [node.name for node in ast.parse(shown).body] == ["causal_mask", "masked_softmax"]
    assert "\n\n\ndef masked_softmax" in shown


@pytest.mark.parametrize(
    ("guess", "says"),
    [
        ((2, 3, 5), "right: (2, 3, 5)"),
        ((2, 5, 3), "not yet: axis 1 is 3, you said 5; axis 2 is 5, you said 3"),
        ((2, 3, 7), "not yet: axis 2 is 5, you said 7"),
        ((6, 5), "not yet: it has 3 axes, you named 2"),
        ((), "not yet: it has 3 axes, you named 0"),
    ],
)
def test_a_guess_is_told_right_from_wrong(guess, says, capsys):
    predict_shape(torch.zeros(2, 3, 5), guess)
    assert capsys.readouterr().out == says + "\n"


def test_the_shape_itself_is_a_right_guess(capsys):
    x = torch.zeros(2, 3)
    predict_shape(x, x.shape)
    predict_shape(torch.tensor(1.0), ())
    assert capsys.readouterr().out == "right: (2, 3)\nright: ()\n"


def test_a_browser_is_compared_with_torch(capsys):
    dial = RotationDial()
    compare_with_browser(dial)
    assert capsys.readouterr().out == ""  # a page built without a browser says nothing about one
    settings = {name: getattr(dial, name) for name in dial._settings}
    numbers = {name: tensor.tolist() for name, tensor in dial.numbers().items()}
    numbers["rotary_score"] += 0.25
    dial.browser_report = {"settings": settings, "numbers": numbers}
    compare_with_browser(dial)
    assert capsys.readouterr().out.endswith(": 2.5e-01\n")
    with pytest.raises(TypeError, match="widget must be an Explorer, got int"):
        compare_with_browser(3)
