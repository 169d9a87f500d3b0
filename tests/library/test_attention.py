"""`dot_product_attention` on both paths: masks, gradients, sizes, layouts in memory and dropout.

The results are compared with loops over every pair. Every axis has a different prime size,
so that no two axes can be confused.
"""

import math

import numpy as np
import oracles
import pytest
import torch
from attention_cases import ASKED, BIAS, HIDING, HIDING_HEADS, exact, hidden_rows, qkv
from attention_marks import BOTH_PATHS
from attention_sizes import BATCH, HEAD_DIM, HEADS, K_LEN, Q_LEN, VALUE_DIM
from random_tensors import LAYOUTS, bools, differentiable, gradients, random

from mha_lib import dot_product_attention


@BOTH_PATHS
@pytest.mark.parametrize(
    ("lead", "hide"),
    [((BATCH,), hide) for hide in HIDING] + [((BATCH, HEADS), hide) for hide in HIDING_HEADS],
    ids=str,
)
def test_attention_equals_the_loop(lead, hide, need_weights):
    parts = HIDING_HEADS[hide]
    query, key = random(*lead, Q_LEN, HEAD_DIM), random(*lead, K_LEN, HEAD_DIM, seed=1)
    value = random(*lead, K_LEN, VALUE_DIM, seed=2)
    arguments = [query, key, value, *(part for part in parts.values() if part is not True)]
    before = [tensor.clone() for tensor in arguments]

    output, weights = dot_product_attention(query, key, value, need_weights=need_weights, **parts)

    with_heads = [tensor.reshape(BATCH, -1, *tensor.shape[-2:]) for tensor in (query, key, value)]
    expected_output, expected_weights = oracles.attention(*with_heads, **parts)
    np.testing.assert_allclose(output, expected_output.reshape(output.shape), rtol=1e-10, atol=1e-12)
    if need_weights:
        np.testing.assert_allclose(weights, expected_weights.reshape(weights.shape), rtol=1e-10, atol=1e-15)
    else:
        assert weights is None
    hidden = hidden_rows(lead, **parts)
    assert bool(hidden.any()) == ("hidden" in hide)
    assert (output[hidden] == 0).all()
    assert all(torch.equal(*pair) for pair in zip(arguments, before, strict=True))


@pytest.mark.parametrize("hide", ["nothing", "lengths of a batch", "causal"])
def test_forward_derivatives_equal_backward_ones(hide):
    lens = {"lengths of a batch": torch.tensor([3, 0])}.get(hide)
    x, direction = (random(BATCH, K_LEN, HEAD_DIM), random(BATCH, K_LEN, HEAD_DIM, seed=1))

    def attend(x):
        options = {"valid_lens": lens, "is_causal": hide == "causal"}
        return dot_product_attention(x, x, x, **options)[0]

    _, forward = torch.func.jvp(attend, (x,), (direction,))
    jacobian = torch.autograd.functional.jacobian(attend, x)
    torch.testing.assert_close(forward, torch.tensordot(jacobian, direction, dims=3))


@BOTH_PATHS
def test_a_hidden_row_does_not_change_other_samples(need_weights):
    """Even where the visible scores are the smallest numbers that there are."""
    x = random(BATCH, HEADS, Q_LEN, HEAD_DIM, dtype=torch.float32)
    bias = torch.full((Q_LEN, Q_LEN), torch.finfo(torch.float32).min / 4)
    sees_some = torch.tensor([2, 1])
    options = {"attn_bias": bias, "need_weights": need_weights}
    wanted, _ = dot_product_attention(x, x, x, valid_lens=sees_some, **options)
    output, weights = dot_product_attention(x, x, x, valid_lens=sees_some * torch.tensor([1, 0]), **options)
    torch.testing.assert_close(output[0], wanted[0])
    assert (output[1] == 0).all()
    if need_weights:
        assert weights.sum(-1)[0].allclose(torch.ones(HEADS, Q_LEN))


@BOTH_PATHS
def test_no_keys_or_no_queries(need_weights):
    x = torch.ones(BATCH, HEADS, Q_LEN, HEAD_DIM)
    nothing = x[:, :, :0]
    output, _ = dot_product_attention(x, nothing, nothing, need_weights=need_weights)
    assert torch.equal(output, torch.zeros_like(x))
    assert dot_product_attention(nothing, x, x, need_weights=need_weights)[0].shape == nothing.shape


@BOTH_PATHS
def test_attention_without_batch(need_weights):
    query, key = random(Q_LEN, HEAD_DIM), random(K_LEN, HEAD_DIM, seed=1)
    value = random(K_LEN, VALUE_DIM, seed=2)
    output, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    expected, _ = oracles.attention(query[None, None], key[None, None], value[None, None], is_causal=True)
    np.testing.assert_allclose(output, expected[0, 0], rtol=1e-10)


@BOTH_PATHS
@pytest.mark.parametrize("laid_out", LAYOUTS)
@pytest.mark.parametrize("asked", ["nothing", "bias, hidden rows", "causal"])
def test_the_layout_in_memory_does_not_matter(asked, laid_out, need_weights):
    parts = dict(ASKED[asked])
    if (bias := parts.get("attn_bias")) is not None:
        parts["attn_bias"] = laid_out(bias.double()).to(bias.dtype)
    given = qkv()
    plain = differentiable(given)
    expected, _ = dot_product_attention(*plain, need_weights=need_weights, **ASKED[asked])
    arranged = [laid_out(x) for x in given]
    assert not any(x.is_contiguous() for x in arranged)
    assert all(torch.equal(*pair) for pair in zip(arranged, given, strict=True))
    for x in arranged:
        x.requires_grad_()
    output, _ = dot_product_attention(*arranged, need_weights=need_weights, **parts)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients(output, arranged), gradients(expected, plain))


@BOTH_PATHS
def test_expanded_inputs(need_weights):
    """One query, key, value, mask and bias for all samples and heads; their gradients add up."""
    query, key, value = (x[:1, :1] for x in qkv())
    mask, bias = bools(1, 1, Q_LEN, K_LEN), BIAS[:1, :1]
    small = differentiable((query, key, value, bias))
    repeated = [x.expand(BATCH, HEADS, -1, -1) for x in (*small, mask)]  # stride 0
    assert repeated[0].stride()[:2] == (0, 0)
    q, k, v, b, m = repeated
    output, _ = dot_product_attention(q, k, v, m, attn_bias=b, need_weights=need_weights)  # fmt: skip
    expected, _ = exact(query, key, value, attn_bias=bias, attn_mask=mask)
    torch.testing.assert_close(output, expected.expand_as(output))
    alone = differentiable((query, key, value, bias))
    single, _ = dot_product_attention(*alone[:3], mask, attn_bias=alone[3])
    of_all, of_one = torch.autograd.grad(output.sum(), small), torch.autograd.grad(single.sum(), alone)
    for own, one in zip(of_all, of_one, strict=True):
        torch.testing.assert_close(own, one * BATCH * HEADS)


@BOTH_PATHS
@pytest.mark.parametrize("dropout_p", [0.25, 1.0])
def test_dropout_has_the_same_statistics_on_both_paths(dropout_p, need_weights):
    """With the identity as values, the output shows the weights that were used."""
    torch.manual_seed(0)
    length = 67
    query, key = random(BATCH, HEADS, length, 5), random(BATCH, HEADS, length, 5, seed=1)  # fmt: skip
    identity = torch.eye(length, dtype=torch.float64).expand(BATCH, HEADS, -1, -1)
    for hide in ({}, {"is_causal": True}):
        options = {"dropout_p": dropout_p, "need_weights": need_weights}
        used, _ = dot_product_attention(query, key, identity, **options, **hide)
        _, plain = dot_product_attention(query, key, identity, **hide)
        visible = plain > 0
        dropped = (used == 0) & visible
        share = dropped.sum() / visible.sum()
        # Four standard deviations of the share of heads among that many coins.
        assert share.item() == pytest.approx(dropout_p, abs=4 * math.sqrt(0.25 / visible.sum().item()))
        kept = visible & ~dropped
        torch.testing.assert_close(used[kept], plain[kept] / max(1 - dropout_p, 1e-9))
        assert (used[~visible] == 0).all()
        if dropout_p < 1:  # each entry independently: rows, columns and heads are dropped equally often
            for axes in ((0, 1, 2), (0, 1, 3), (0, 2, 3)):
                rates = dropped.double().sum(axes) / visible.double().sum(axes)
                count = visible.double().sum(axes)
                spread = (rates - dropout_p).abs() * count.sqrt()
                assert spread.max() < 3
