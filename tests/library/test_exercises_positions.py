"""Chapter 5 and the appendix on positions in depth: other right answers, and what the checkers forbid."""

import math

import pytest
import torch
from exercise_cells import CHECKS, accepts, solution_of

import mha_lib
from mha_lib import LearnedPositionalEncoding


def replaced(embed_dim, max_len):
    layer = LearnedPositionalEncoding(embed_dim, max_len)
    layer.encoding = torch.nn.Parameter(mha_lib.sinusoidal_encoding(max_len, embed_dim))
    return layer


def with_the_future(table, length):
    """What the causal mask hides may hold anything."""
    places = torch.arange(length)
    return table[:, (places[:, None] - places).abs().clamp(max=table.shape[1] - 1)]


def with_permuted_values(layer):
    """Another layer that computes the same function is right as well."""
    new = solution_of("appendix_rotary_details", 1)(layer)
    order = torch.arange(layer.head_dim - 1, -1, -1)
    rows = new.v_proj.weight.data.unflatten(0, (layer.num_heads, layer.head_dim))[:, order]
    columns = new.out_proj.weight.data.unflatten(1, (layer.num_heads, layer.head_dim))[:, :, order]
    new.v_proj.weight.data.copy_(rows.flatten(0, 1))
    new.out_proj.weight.data.copy_(columns.flatten(1))
    return new


def in_place(layer):
    layer.q_proj.weight.data.mul_(2)
    return layer


test_another_right_answer_is_accepted = accepts({
    "check_learned_start": [replaced], "check_slopes": [mha_lib.alibi_slopes],
    "check_distance_bias": [with_the_future], "check_to_halves": [with_permuted_values],
    "check_ntk_base": [lambda d, base, s: math.exp(math.log(base) + math.log(s) * d / (d - 2))],
})  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "problem"), [
    ("check_to_halves", in_place, "changes its argument `layer` in place"),
    ("check_to_halves", lambda layer: torch.zeros(3), "a layer is expected as the result, got Tensor"),
    ("check_learned_start", lambda d, n: 3, "a layer is expected as the result, got int"),
    ("check_stored_entries", lambda d, n: [d * n] * 2, "`entries` has shape (2,), expected (2, 3)"),
])  # fmt: skip
def test_what_no_layer_or_table_may_do_is_said(name, answer, problem):
    assert problem in CHECKS[name](answer).message
