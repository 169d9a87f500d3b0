"""Exercises on several heads: the solutions pass, and each fault planted in them is named."""

import pytest
import torch
from exercise_cells import cells_of, solution_of

from mha_lib import MultiHeadAttention, exercises
from mha_lib.exercises import Exercise, heads

LAYER, TRAINED = "03_multi_head_attention", "06_what_heads_learn"
PAGES = {LAYER: 8, TRAINED: 2}
CHECKS = {
    "check_sum_over_heads": (LAYER, 1),
    "check_head_dim": (LAYER, 2),
    "check_layer_sizes": (LAYER, 3),
    "check_free_widths": (LAYER, 4),
    "check_from_lists": (LAYER, 5),
    "check_weight_maps": (LAYER, 6),
    "check_to_torch": (LAYER, 7),
    "check_greedy_pruning": (TRAINED, 1),
    "check_mixtures": (TRAINED, 2),
}

# checker -> {start of the message: (text in the page's solution, what a reader may have written instead)}
WRONG = {
    "check_sum_over_heads": {
        "each head takes rows of `out_proj.weight`": (
            "dim=1)\n    output = 0",
            "dim=0)\n    columns = [part.T for part in columns]\n    output = 0",
        ),
        "`out_proj.weight` is split into rows": ("dim=1)", "dim=0)"),
        "the columns of `out_proj.weight` are not transposed": ("head @ w_o_i.T", "head @ w_o_i"),
        "the heads are put side by side": (
            "output = output + head @ w_o_i.T",
            "output = head if isinstance(output, int) else torch.cat((output, head), -1)",
        ),
        "only the last head arrives": ("output = output + head", "output = head"),
        "the contributions are averaged": ("return output", "return output / layer.num_heads"),
        "the scores are divided by the square root of `embed_dim`": (
            "head, _ = my_attention(query @ w_q_i.T,",
            "head, _ = my_attention(query @ w_q_i.T / layer.num_heads**0.5,",
        ),
    },
    "check_head_dim": {
        "the width is rounded down": ("if num_heads <= 0 or embed_dim % num_heads:", "if False:"),
        "only the range of `num_heads` is checked": (
            "num_heads <= 0 or embed_dim % num_heads",
            "not 1 <= num_heads <= embed_dim",
        ),
        "no heads at all end in a `ZeroDivisionError`": (
            "num_heads <= 0 or embed_dim % num_heads",
            "embed_dim % num_heads",
        ),
        "a negative number of heads gets through": ("num_heads <= 0", "num_heads == 0"),
        "the message does not name both numbers": (", got {num_heads} and {embed_dim}", ", got {num_heads}"),
        "the function uses `assert`": ("raise ValueError(", "raise AssertionError("),
        "the function uses a bare `assert`": (
            "if num_heads <= 0 or embed_dim % num_heads:",
            "assert num_heads > 0\n    assert embed_dim % num_heads == 0\n    if False:",
        ),
        "the width is a floating-point number": ("embed_dim // num_heads", "embed_dim / num_heads"),
    },
    "check_layer_sizes": {
        "each head is counted as a whole layer. ": (
            "4 * (embed_dim**2 + embed_dim)",
            "4 * num_heads * embed_dim**2 + 4 * embed_dim",
        ),
        "each head is counted as a whole layer, with": ("= 4 * (embed", "= num_heads * 4 * (embed"),
        "the biases are missing": ("(embed_dim**2 + embed_dim)", "embed_dim**2"),
        "the output projection is missing": ("4 * (embed", "3 * (embed"),
        "the weights of one layer": ("num_layers * num_heads", "num_heads"),
        "the memory counts numbers": ("4 * num_layers", "num_layers"),
        "the memory is in megabytes": ("2**20", "1e6"),
        "the weights have one map": ("(1, num_heads, length, length)", "(1, length, length)"),
    },
    "check_free_widths": {
        "the parameters are those of a layer whose widths": ("h * p * (e + d_k + d_v + e)", "4 * e * e"),
        "keys and values are taken": ("(e + d_k + d_v + e)", "4 * e"),
        "the output projection is missing": ("d_v + e)", "d_v)"),
        "the output projection has one head": ("d_v + e)", "d_v) + p * e"),
        "one head is counted": ("h * p * (", "p * ("),
        "the count is to stay the same with the same": ("p / 2", "p"),
        "the count is to stay the same with twice": ("p / 2", "2 * p"),
    },
    "check_from_lists": {
        "the large matrices are not transposed": ("dim=1).T", "dim=1)"),
        "the matrices of the heads do not fit": ("dim=1).T", "dim=0).T"),
        "`w_o` is not transposed": ("w_o.T", "w_o"),
        "nothing is transposed": (".T)", ")"),
        "the columns of the heads are dealt": (
            "dim=1).T",
            "dim=1).unflatten(1, (len(w_q), -1)).mT.flatten(1).T",
        ),
        "the layer has one head": ("num_heads=len(w_q)", "num_heads=1"),
        "the matrices of keys and values": (
            "def from_lists_solution(w_q, w_k, w_v,",
            "def from_lists_solution(w_q, w_v, w_k,",
        ),
        "the output projection keeps": ("layer.out_proj.weight.copy_(w_o.T)", "pass"),
    },
    "check_weight_maps": {
        "only the sums of the rows": (
            "bool(nothing_hidden_is_seen & rows_sum_to_one & (weights >= 0).all())",
            "bool(rows_sum_to_one)",
        ),
        "only the hidden columns": (
            "nothing_hidden_is_seen & rows_sum_to_one & (weights >= 0).all()",
            "nothing_hidden_is_seen",
        ),
        "negative weights pass": (" & (weights >= 0).all()", ""),
        "the sums run over the queries": ("weights.sum(-1)", "weights.sum(2)"),
        "all heads are asked to look the same": (
            "(weights >= 0).all()",
            "((weights >= 0) & (weights == weights[:, :1])).all()",
        ),
        "all samples are tested with the length of the first": (
            "valid_lens.view(-1, 1, 1, 1)",
            "valid_lens[0]",
        ),
        "only the first sample": (
            "    padding =",
            "    weights, valid_lens = weights[:1], valid_lens[:1]\n    padding =",
        ),
        "every map passes": ("bool(nothing", "True or bool(nothing"),
    },
    "check_to_torch": {
        "the biases are not copied": (
            "return theirs, torch",
            "theirs.in_proj_bias.data *= 0\n    theirs.out_proj.bias.data *= 0\n    return theirs, torch",
        ),
        "the bias of the output projection": (
            "return theirs, torch",
            "theirs.out_proj.bias.data.zero_()\n    return theirs, torch",
        ),
        "the input biases": (
            "return theirs, torch",
            "theirs.in_proj_bias.data.zero_()\n    return theirs, torch",
        ),
        "the mask is not inverted": ("(k_len) >= valid", "(k_len) < valid"),
        "the mask hides one key too few": ("(k_len) >= valid", "(k_len) > valid"),
        "`batch_first=True` is missing": (", batch_first=True", ""),
        "keys and values are stacked": (
            "(layer.q_proj, layer.k_proj, layer.v_proj)",
            "(layer.q_proj, layer.v_proj, layer.k_proj)",
        ),
        "the matrices are transposed": (
            "return theirs, torch",
            "theirs.in_proj_weight.data = torch.cat([proj.weight.T for proj in projections])\n"
            "    theirs.out_proj.weight.data = layer.out_proj.weight.T\n    return theirs, torch",
        ),
        "the output projection keeps": ("theirs.out_proj.weight.copy_(layer.out_proj.weight)", "pass"),
    },
    "check_greedy_pruning": {
        "all heads are ranked once. ": ("loss([*off, head])", "loss([head])"),
        "the most important heads": ("min(candidates", "max(candidates"),
        "all heads are ranked once, the most important": ("loss([*off, head])", "-loss([head])"),
        "a head is switched off twice": ("if head not in off]", "]"),
        "one head too few": ("len(off) < count", "len(off) < count - 1"),
        "`count` heads are kept": ("len(off) < count", "len(off) < num_heads - count"),
        "heads are switched on one by one": (
            "return off",
            "off = list(range(num_heads))\n"
            "    while len(off) > count:\n"
            "        off.remove(min(off, key=lambda head: loss([o for o in off if o != head])))\n"
            "    return off",
        ),
        "the heads are sorted": ("return off", "return sorted(off)"),
    },
    "check_mixtures": {
        "the table says where both answers are right": (
            "(named_a != tokens[:, None]) | (named_b != tokens[None])",
            "(named_a == tokens[:, None]) & (named_b == tokens[None])",
        ),
        "a pair counts only if both": (") | (", ") & ("),
        "only the first answer": (" | (named_b != tokens[None])", ""),
        "only the second answer": ("(named_a != tokens[:, None]) | ", ""),
        "the two weights are exchanged": ("p.unsqueeze(-1)", "1 - p.unsqueeze(-1)"),
        "the second answer uses a mixture": (
            "    return (named_a",
            "    share = 1 - share\n"
            "    named_b = (share * read_b[:, None] + (1 - share) * read_b[None]).argmax(-1)\n"
            "    return (named_a",
        ),
        "both answers come from the first": ("in (read_a, read_b)", "in (read_a, read_a)"),
        "the table is transposed": (
            "(named_a != tokens[:, None]) | (named_b != tokens[None])",
            "((named_a != tokens[:, None]) | (named_b != tokens[None])).T",
        ),
    },
}


@pytest.mark.parametrize("page", PAGES)
def test_every_exercise_is_there(page):
    assert len(cells_of(page)) == PAGES[page]


def test_every_checker_is_used_on_a_page():
    assert set(CHECKS) == {name for name, one in vars(heads).items() if isinstance(one, Exercise)}
    assert set(CHECKS) == set(WRONG)
    every = [(page, number + 1) for page, count in PAGES.items() for number in range(count)]
    assert sorted([*CHECKS.values(), (LAYER, 8)]) == every  # the last is `check_multi_head`, tested elsewhere


@pytest.mark.no_shape_checks  # they take most of the time, and a reader's function has no annotations
@pytest.mark.parametrize("name", CHECKS)
def test_solution_passes_and_each_planted_fault_is_named(name):
    check = getattr(exercises, name)
    assert check(solution_of(*CHECKS[name]))
    messages = set()
    for start, plant in WRONG[name].items():
        verdict = check(solution_of(*CHECKS[name], plant))
        assert not verdict
        assert verdict.message.startswith(f"Not yet: {start}"), verdict
        messages.add(verdict.message)
    assert len(messages) == len(check.wrong) >= 3, "each known wrong answer was planted"
    assert not check(lambda *arguments: None)
    assert check.audit() == []


def test_the_layer_of_the_page_passes_and_its_faults_are_named():
    check = exercises.check_multi_head
    assert check(solution_of(LAYER, 8))
    for start, plant in {
        "the mask has no axis for the heads": ("mask = mask.unsqueeze(1)", "pass"),
        "the output projection is forgotten": ("self.out_proj(merge_heads(heads))", "merge_heads(heads)"),
        "the heads are merged without a transpose": ("merge_heads(heads)", "heads.reshape(query.shape)"),
    }.items():
        verdict = check(solution_of(LAYER, 8, plant))
        assert verdict.message.startswith(f"Not yet: {start}"), verdict


def test_what_is_returned_is_asked_for_in_words():
    assert "should return a layer, got Tensor" in exercises.check_from_lists(lambda *w: w[3]).message
    ours = MultiHeadAttention(12, 3)
    assert "should return two results" in exercises.check_to_torch(lambda *_: ours).message
    assert "should be an nn.MultiheadAttention" in exercises.check_to_torch(lambda *_: (ours, None)).message
    assert (
        "`parameters` is 0.5 times"
        in exercises.check_layer_sizes(
            lambda e, h, layers, n: (e // h, (1, h, n, n), 2 * (e**2 + e), layers * h * n**2 / 2**18)
        ).message
    )


def test_other_right_answers_pass():
    def by_concatenation(layer, query, key, value):
        return layer(query, key, value)[0]

    assert exercises.check_sum_over_heads(by_concatenation)
    assert exercises.check_free_widths(lambda e, h, p, d_k, d_v: (p * h * (2 * e + d_k + d_v), 0.5 * p))
    assert exercises.check_to_torch(
        lambda layer, lens, n: (layer.to_torch(), ~(torch.arange(n) < lens.unsqueeze(1)))
    )
