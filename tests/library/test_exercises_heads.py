"""Exercises on several heads: faults in the page's own layer are named, and other right answers pass."""

import torch
from exercise_cells import solution_of

from mha_course import exercises
from mha_lib import MultiHeadAttention

LAYER = "03_multi_head_attention"


def test_the_layer_of_the_page_passes_and_its_faults_are_named():
    check = exercises.check_multi_head
    assert check(solution_of(LAYER, "MyMultiHead"))
    for start, plant in {
        "the mask has no axis for the heads": ("mask = mask.unsqueeze(1)", "pass"),
        "the output projection is forgotten": ("self.out_proj(output), weights", "output, weights"),
        "the heads are merged without a transpose": ("merge_heads(heads)", "heads.reshape(query.shape)"),
    }.items():
        verdict = check(solution_of(LAYER, "MyMultiHead", plant))
        assert verdict.message.startswith(f"Not yet: {start}"), verdict


def test_what_is_returned_is_asked_for_in_words():
    assert "should return a layer, got Tensor" in exercises.check_from_lists(lambda *w: w[3]).message
    ours = MultiHeadAttention(12, 3)
    assert "should return two results" in exercises.check_to_torch(lambda *_: ours).message
    assert "should be an nn.MultiheadAttention" in exercises.check_to_torch(lambda *_: (ours, None)).message
    half = lambda e, h, layers, n: (e // h, (1, h, n, n), 2 * (e**2 + e), layers * h * n**2 / 2**18)  # noqa: E731
    assert "`parameters` is 0.5 times" in exercises.check_layer_sizes(half).message


def test_other_right_answers_pass():
    def by_concatenation(layer, query, key, value):
        return layer(query, key, value)[0]

    assert exercises.check_sum_over_heads(by_concatenation)
    assert exercises.check_free_widths(lambda e, h, p, d_k, d_v: (p * h * (2 * e + d_k + d_v), 0.5 * p))
    visible = lambda lens, n: torch.arange(n) < lens.unsqueeze(1)  # noqa: E731
    assert exercises.check_to_torch(lambda layer, lens, n: (layer.to_torch(), ~visible(lens, n)))


def test_a_tolerance_for_hidden_weights_is_refused():
    def possible(weights, valid_lens):
        hidden = torch.arange(weights.shape[-1]) >= valid_lens[:, None, None, None]
        near = torch.allclose(weights * hidden, torch.zeros(()), atol=1e-6)
        return near and torch.allclose(weights.sum(-1), torch.ones(())) and weights.min() >= 0

    verdict = exercises.check_weight_maps(possible)
    assert verdict.message.startswith("Not yet: hidden weights may be a little above 0. "), verdict
