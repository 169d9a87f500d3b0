"""Exercises of chapter 5 and of the appendix on rotary details: every mistake is refused with its cause.

A mistake is written as a reader makes it: a change in the text of the page's solution.
"""

import ast
import contextlib
import math
import re
import textwrap
import time
from functools import partial
from pathlib import Path

import nbformat
import pytest
import torch

import mha_lib.exercises
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, RotaryPositionalEncoding

CHAPTERS = Path(__file__).resolve().parents[2] / "chapters"


class Page:
    """The exercises of a page, and the functions that it defines."""

    def __init__(self, stem):
        self.notebook = nbformat.read(CHAPTERS / f"{stem}.ipynb", as_version=4)
        self.cells = {cell.id: cell for cell in self.notebook.cells}
        self.numbers = [int(n) for n in re.findall(r"^ex(\d+)-task$", "\n".join(self.cells), re.M)]
        self.names = {"torch": torch}
        for cell in self.notebook.cells[2:]:
            if cell.cell_type == "code" and not cell.id.endswith("-stub"):
                self._define(cell.source)

    def _define(self, source):
        """Imports and functions of a cell; nothing else of it runs."""
        for node in ast.parse(source).body:
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)):
                with contextlib.suppress(NameError):  # a default that another cell computes
                    exec(ast.unparse(node), self.names)  # noqa: S102

    def checked(self, number):
        """Names of checker and function, as in `check_mean(my_mean)`, and what else is passed."""
        call = r"^(check_\w+)\((\w+)(.*)\)$"
        return re.search(call, self.cells[f"ex{number}-check"].source, re.M).groups()

    def solution(self, number):
        """The text of the function that the solution defines."""
        source, name = self.cells[f"ex{number}-solution"].source, self.checked(number)[1]
        [node] = [n for n in ast.parse(source).body if getattr(n, "name", "") == f"{name}_solution"]
        return ast.get_source_segment(source, node).replace(f"{name}_solution", name)

    def run(self, source, name):
        names = dict(self.names)
        exec(textwrap.dedent(source), names)  # noqa: S102
        return names[name]


def answer_with(page, number, mistake):
    """The reader's function: a text of its own, or the solution with (old, new, old, new, ...) replaced."""
    name = page.checked(number)[1]
    if isinstance(mistake, str):
        return page.run(mistake, name)
    source = page.solution(number)
    for old, new in zip(mistake[::2], mistake[1::2], strict=True):
        assert old in source, f"{old!r} is not in the solution"
        source = source.replace(old, new)
    return page.run(source, name)


PAGE = Page("05_positional_encoding")
APPENDIX = Page("appendix_rotary_details")

POWER = "(-2 * (column // 2) / embed_dim)"
ROWS = "[[0, table, 0], [table, 0, table]]"
SHARE = "token / (token + embed_dim / 2)"
MISTAKES = {
    1: {
        "odd widths are not covered": """
            def add_encoding(x):
                table = torch.zeros(x.shape[1:])
                exponents = torch.arange(0, x.shape[2], 2) / x.shape[2]
                angles = torch.arange(x.shape[1])[:, None] / 10_000**exponents
                table[:, 0::2] = angles.sin()
                table[:, 1::2] = angles.cos()
                return x + table
        """,
        "the table is returned without the tokens": ("return x + ", "return 0 * x + "),
        "the frequency is computed from the column": (POWER, "(-column / embed_dim)"),
        "the 2 in the exponent 2i / d is missing": (POWER, "(-(column // 2) / embed_dim)"),
        "the exponent is divided by d - 1": (POWER, "(-2 * (column // 2) / max(embed_dim - 1, 1))"),
        "the encoding is added along the batch axis": (
            "length, embed_dim = x.shape[1:]",
            "length, embed_dim = x.shape[0], x.shape[2]",
            "angle.cos())",
            "angle.cos())[:, None]",
        ),
        "sine and cosine are swapped": ("angle.sin(), angle.cos()", "angle.cos(), angle.sin()"),
        "all columns are sines": ("angle.cos()", "angle.sin()"),
        "the sines come first and then the cosines": """
            def add_encoding(x):
                length, d = x.shape[1:]
                angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, d, 2) / d)
                return x + torch.cat((angles.sin(), angles.cos()), dim=1)[:, :d]
        """,
        "the positions start at 1": ("torch.arange(length)[", "torch.arange(1, length + 1)["),
        "it changes its argument `x` in place": (
            "return x + ", "return x.add_(", "angle.cos())", "angle.cos()))",
        ),
    },
    2: {
        "it is the matrix for the other layout": """
            def concatenated_step_matrix(offset, embed_dim):
                return step_matrix(offset, embed_dim)
        """,
        "it turns backwards": ("(cos, -sin)", "(cos, sin)", "(sin, cos)", "(-sin, cos)"),
        "the exponent lacks the 2": ("torch.arange(0, embed_dim, 2,", "torch.arange(embed_dim // 2,"),
        "all pairs turn equally fast": ("10_000.0 **", "1.0 **"),
    },
    3: {
        "the table still starts as noise": ("layer.encoding.copy_", "layer.encoding.clone().copy_"),
        "the table is not trained": ("return layer", "return layer.requires_grad_(False)"),
        "the sinusoid is added to the noise": ("copy_", "add_"),
        "the size of the start is right, but it is noise": (
            "layer.encoding.copy_(sinusoidal_encoding(max_len, embed_dim))",
            "nn.init.normal_(layer.encoding, std=0.5**0.5)",
        ),
        "cannot assign 'torch.FloatTensor' as parameter": ("layer.encoding.copy_(", "layer.encoding = ("),
    },
    4: {
        "only the queries are shifted": """
            def shift_changes(layer, x, shift):
                n, angles = x.shape[1], rotary_angles(shift + x.shape[1], layer.head_dim)
                q, k, v = (layer.split_heads(p(x)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
                found = []
                for start in (0, shift):
                    a, b = apply_rotary(q, angles[start : start + n]), apply_rotary(k, angles[:n])
                    heads = attention_pooling(scaled_dot_product_score(a, b), v)[0]
                    found.append(layer.out_proj(layer.merge_heads(heads)))
                rows = sinusoidal_encoding(shift + n, x.shape[2])
                added = [layer(*[x + rows[start : start + n]] * 3)[0] for start in (0, shift)]
                return (found[1] - found[0]).abs().max(), (added[1] - added[0]).abs().max()
        """,
        "only the keys are shifted": """
            def shift_changes(layer, x, shift):
                n, angles = x.shape[1], rotary_angles(shift + x.shape[1], layer.head_dim)
                q, k, v = (layer.split_heads(p(x)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
                found = []
                for start in (0, shift):
                    a, b = apply_rotary(q, angles[:n]), apply_rotary(k, angles[start : start + n])
                    heads = attention_pooling(scaled_dot_product_score(a, b), v)[0]
                    found.append(layer.out_proj(layer.merge_heads(heads)))
                rows = sinusoidal_encoding(shift + n, x.shape[2])
                added = [layer(*[x + rows[start : start + n]] * 3)[0] for start in (0, shift)]
                return (found[1] - found[0]).abs().max(), (added[1] - added[0]).abs().max()
        """,
        "nothing was shifted for the sinusoids": ("table[shift:]", "table[:length]"),
        "it is the mean change": (".max()", ".mean()"),
        "the sinusoids are added behind the layer": ("layer(*[x + r] * 3)[0]", "layer(x, x, x)[0] + r"),
    },
    5: {
        "the weights are halved": ("torch.cat(", "0.5 * torch.cat("),
        "it ignores the positions": ("(weight, weight)", "(weight, 0 * weight)"),
        "the copies are stacked along the outputs": ("dim=1", "dim=0"),
        "the copies are interleaved": (
            "torch.cat((weight, weight), dim=1)", "weight.repeat_interleave(2, 1)",
        ),
    },
    6: {
        "the slopes are 2^(-8(h + 1) / H) for every H": """
            def slopes(num_heads):
                return [2 ** (-8 * (h + 1) / num_heads) for h in range(num_heads)]
        """,
        "the additional slopes repeat slopes": ("[0::2]", "[1::2]"),
        "the additional slopes are the next ones": ("[0::2]", ""),
        "the power of two is rounded up": """
            def slopes(num_heads):
                power = 2 ** math.ceil(math.log2(num_heads))
                return [2 ** (-8 * (h + 1) / power) for h in range(num_heads)]
        """,
        "the first exponent is 0": ("(h + 1)", "h"),
        "the slopes are sorted": """
            def slopes(num_heads):
                power = 2 ** int(math.log2(num_heads))
                found = [2 ** (-8 * (h + 1) / power) for h in range(power)]
                found += [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * (num_heads - power), 2)]
                return sorted(found)[::-1]
        """,
    },
    7: {
        "the buffer of the sinusoids is counted in the state dict": (
            ROWS, "[[0, table, table], [table, 0, table]]",
        ),
        "the sinusoids are counted as parameters": (ROWS, "[[table, 0, table], [table, 0, table]]"),
        "the sinusoidal layer holds nothing": (ROWS, "[[0, 0, 0], [table, 0, table]]"),
        "the learned table is counted as a buffer": (ROWS, "[[0, table, 0], [table, table, table]]"),
        "the learned table is not saved": (ROWS, "[[0, table, 0], [table, 0, 0]]"),
        "the two rows are exchanged": (ROWS, "[[table, 0, table], [0, table, 0]]"),
        "`entries` has shape (2,), expected (2, 3)": (ROWS, "[table, table]"),
    },
    8: {
        "it compares lengths": (SHARE, "token**0.5 / (token**0.5 + (embed_dim / 2) ** 0.5)"),
        "the factor is not squared": ("(factor * std) ** 2", "factor * std**2"),
        "the squared length of a row of the table is taken to be d": ("embed_dim / 2", "embed_dim"),
        "the squared length of a token lacks the width": (" * embed_dim\n", "\n"),
        "it is the share of the position": (SHARE, f"1 - {SHARE}"),
        "it is the ratio of token to position": (SHARE, "token / (embed_dim / 2)"),
    },
    9: {
        "the distances have the wrong sign": ("places - places[:, None]", "places[:, None] - places"),
        "the distances are not clipped": (".clamp(-largest, largest)", ""),
        "the offset is missing": ("distance + largest", "distance"),
        "the mean is taken over the queries": ("->bhmd", "->bhnd"),
        "the vectors are added without their weights": ("weights, vectors)", "weights**0, vectors)"),
    },
    10: {
        "the distances have the wrong sign": ("places[:, None] - places", "places - places[:, None]"),
        "distances beyond the last one have no number": (".clamp(0, last)", ""),
        "large distances start again": (".clamp(0, last)", " % (last + 1)"),
        "the numbers belong to the places of the keys": (
            "places[:, None] - places", "0 * places[:, None] + places",
        ),
        "the last number is never used": ("clamp(0, last)", "clamp(0, last - 1)"),
        "all heads have the bias of the first": ("return table[", "return table[:1].repeat(len(table), 1)["),
    },
    11: {
        "the base is multiplied by the scale": (" ** (embed_dim / (embed_dim - 2))", ""),
        "the exponent of the scale is upside down": (
            "embed_dim / (embed_dim - 2)", "(embed_dim - 2) / embed_dim",
        ),
        "the exponent of the scale lacks parentheses": (
            "(embed_dim / (embed_dim - 2))", "embed_dim / (embed_dim - 2)",
        ),
        "the base gets smaller": ("base * scale", "base / scale"),
        "the slowest pair is taken to have the exponent (d - 1) / d": ("embed_dim - 2", "embed_dim - 1"),
        "the old base is raised to a power": ("base * scale", "(base * scale)"),
    },
}  # fmt: skip
OF_THE_APPENDIX = {
    "the pairs are still side by side": "def to_halves(layer): return layer",
    "no weights were reordered": ("rows[:, order]", "rows"),
    "all four projections were reordered": (
        "(result.q_proj, result.k_proj)",
        "(result.q_proj, result.k_proj, result.v_proj, result.out_proj)",
    ),
    "only the queries were reordered": ("(result.q_proj, result.k_proj)", "(result.q_proj,)"),
    "the new order mixes the heads": (
        "proj.weight.unflatten(0, (layer.num_heads, layer.head_dim))",
        "proj.weight[None]",
        "torch.arange(layer.head_dim)",
        "torch.arange(layer.embed_dim)",
        "columns[: old.rotary_dim], columns[old.rotary_dim :]",
        "columns, columns[:0]",
    ),
    "columns that do not turn were reordered": (
        "columns[: old.rotary_dim], columns[old.rotary_dim :]",
        "columns, columns[:0]",
    ),
    "the new layer turns all columns": ("rotary_dim=old.rotary_dim, ", ""),
    "the order is the inverse one": ("rows[:, order]", "rows[:, order.argsort()]"),
    "a layer is expected as the result, got Tensor": "def to_halves(layer): return torch.zeros(3)",
}
CASES = [(PAGE, number, name, MISTAKES[number][name]) for number in MISTAKES for name in MISTAKES[number]]
CASES += [(APPENDIX, 1, name, mistake) for name, mistake in OF_THE_APPENDIX.items()]
EXERCISES = [(PAGE, number) for number in MISTAKES] + [(APPENDIX, 1)]


def check_of(page, number):
    """The checker of an exercise; chapter 5 begins with one that takes an option."""
    check = getattr(mha_lib.exercises, page.checked(number)[0])
    return partial(check, added=True) if check is mha_lib.exercises.check_positions else check


def test_the_exercises_are_all_there():
    assert PAGE.numbers == list(range(1, 12)) == list(MISTAKES)
    assert APPENDIX.numbers == [1]


@pytest.mark.parametrize(("page", "number"), EXERCISES)
def test_the_solution_passes_and_the_stub_does_not(page, number):
    check, name = check_of(page, number), page.checked(number)[1]
    started = time.process_time()
    verdict = check(page.run(page.solution(number), name))
    assert verdict.right, verdict
    assert time.process_time() - started < 2
    stub = page.run(page.cells[f"ex{number}-stub"].source, name)
    assert check(stub).message.startswith("Not yet: the function returns None")


@pytest.mark.parametrize(("page", "number"), EXERCISES[1:])  # the first has tests of its own
def test_the_checker_is_sound(page, number):
    check = check_of(page, number)
    assert len(check.cases) >= 2
    assert len({wrong.name for wrong in check.wrong}) == len(check.wrong) >= 3
    assert check.audit() == []


@pytest.mark.parametrize(("page", "number"), EXERCISES[1:])
def test_every_known_mistake_is_made_above(page, number):
    made = MISTAKES[number] if page is PAGE else OF_THE_APPENDIX
    for wrong in check_of(page, number).wrong:
        assert any(wrong.name.startswith(name) for name in made), wrong.name


@pytest.mark.parametrize(("page", "number", "name", "mistake"), CASES)
def test_each_mistake_is_named(page, number, name, mistake):
    verdict = check_of(page, number)(answer_with(page, number, mistake))
    assert not verdict.right
    assert name in verdict.message


def test_other_right_answers_are_accepted():
    e = mha_lib.exercises
    assert e.check_positions(lambda x: mha_lib.SinusoidalPositionalEncoding(x.shape[2])(x), added=True)
    assert e.check_positions(lambda x: (x + mha_lib.sinusoidal_encoding(*x.shape[1:])).numpy(), added=True)
    assert e.check_slopes(mha_lib.alibi_slopes)
    assert e.check_distance_bias(  # what the causal mask hides may hold anything
        lambda table, n: table[
            :, (torch.arange(n)[:, None] - torch.arange(n)).abs().clamp(max=table.shape[1] - 1)
        ]
    )
    assert e.check_ntk_base(lambda d, base, s: math.exp(math.log(base) + math.log(s) * d / (d - 2)))

    def replaced(embed_dim, max_len):
        layer = LearnedPositionalEncoding(embed_dim, max_len)
        layer.encoding = torch.nn.Parameter(mha_lib.sinusoidal_encoding(max_len, embed_dim))
        return layer

    assert e.check_learned_start(replaced)


def test_values_may_be_permuted_with_the_output_projection():
    """Another layer that computes the same function is right as well."""

    def with_values(layer):
        new = mha_lib.exercises.positions._reordered(layer)
        order = torch.arange(layer.head_dim - 1, -1, -1)
        rows = new.v_proj.weight.data.unflatten(0, (layer.num_heads, layer.head_dim))[:, order]
        columns = new.out_proj.weight.data.unflatten(1, (layer.num_heads, layer.head_dim))[:, :, order]
        new.v_proj.weight.data.copy_(rows.flatten(0, 1))
        new.out_proj.weight.data.copy_(columns.flatten(1))
        return new

    assert mha_lib.exercises.check_to_halves(with_values)


def test_the_layer_of_the_reader_is_not_changed():
    def in_place(layer):
        layer.q_proj.weight.data.mul_(2)
        return layer

    assert "changes its argument `layer` in place" in mha_lib.exercises.check_to_halves(in_place).message
    assert MultiHeadAttention(8, 2, rotary=RotaryPositionalEncoding(4)).rotary.interleaved
