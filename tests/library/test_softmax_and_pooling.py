"""`masked_softmax` and `attention_pooling`, compared with loops over every row."""

import math

import numpy as np
import oracles
import pytest
import torch
from attention_cases import HIDING, HIDING_HEADS, all_but
from attention_marks import HALVES
from attention_sizes import BATCH, HEADS, K_LEN, Q_LEN, VALUE_DIM
from random_tensors import bools, random

from mha_lib import attention_pooling, masked_softmax


@pytest.mark.parametrize("hide", [name for name, parts in HIDING_HEADS.items() if "is_causal" not in parts])
def test_softmax_equals_the_loop(hide):
    scores = random(BATCH, HEADS, Q_LEN, K_LEN) * 3
    parts = HIDING_HEADS[hide]
    before = scores.clone()
    weights = masked_softmax(scores, parts.get("attn_mask"), valid_lens=parts.get("valid_lens"))
    visible = oracles.visible_pairs(BATCH, HEADS, Q_LEN, K_LEN, **parts)
    np.testing.assert_allclose(weights, oracles.softmax_rows(before, visible), rtol=1e-12, atol=1e-15)
    assert (weights[~torch.from_numpy(visible)] == 0).all()
    assert torch.equal(scores, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_softmax_in_every_dtype(dtype):
    scores, mask = (random(BATCH, Q_LEN, K_LEN, dtype=dtype) * 3, all_but(bools(BATCH, Q_LEN, K_LEN), 0, 3))
    weights = masked_softmax(scores, mask)
    assert weights.dtype == dtype
    exact = oracles.softmax_rows(oracles.doubles(scores), mask.numpy())
    # Half precision is rounded once, at the end: at most half a unit in the last place, even of tiny numbers.
    info = torch.finfo(dtype)
    error = {torch.float64: 1e-15, torch.float32: 1e-6}.get(dtype, 0.51 * info.eps)
    least = info.smallest_normal * info.eps
    np.testing.assert_allclose(oracles.doubles(weights), exact, rtol=error, atol=least)


@pytest.mark.parametrize(("dtype", "visible"), [
    (torch.float16, -60_000), (torch.bfloat16, -1e30), (torch.float32, torch.finfo(torch.float32).min),
    (torch.float64, torch.finfo(torch.float64).min),
], ids=str)  # fmt: skip
def test_hidden_keys_lose_against_the_smallest_visible_score(dtype, visible):
    """A fill of -1e9 would win here, and a fill of the smallest number would share the weight."""
    scores = torch.tensor([[visible, 0.0, 5.0]], dtype=dtype)
    mask = torch.tensor([[True, False, False]])
    assert masked_softmax(scores, mask).tolist() == [[1, 0, 0]]
    # The same with a hidden row, for which the fill value differs.
    weights = masked_softmax(scores.repeat(2, 1), torch.cat((mask, mask & False)))
    assert weights.tolist() == [[1, 0, 0], [0, 0, 0]]


def test_hidden_scores_may_be_anything():
    scores = torch.tensor([[1, 1, math.inf], [1, 1, -math.inf], [1, 1, math.nan]], requires_grad=True)
    weights = masked_softmax(scores, torch.tensor([[True, True, False]]))
    assert weights.tolist() == [[0.5, 0.5, 0.0]] * 3
    (gradient,) = torch.autograd.grad(weights[:, 0].sum(), scores)
    assert gradient.tolist() == [[0.25, -0.25, 0.0]] * 3


def test_large_scores_do_not_overflow():
    assert masked_softmax(torch.tensor([[1e4, 1e4, -1e4]])).tolist() == [[0.5, 0.5, 0.0]]
    assert masked_softmax(torch.tensor([[6e4, 6e4, -6e4]], dtype=torch.half)).tolist() == [[0.5, 0.5, 0.0]]


def test_softmax_gradient_equals_finite_differences():
    mask = all_but(bools(3, 5), 1)
    scores = random(3, 5, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: masked_softmax(s, mask), (scores,))
    assert torch.autograd.gradgradcheck(lambda s: masked_softmax(s, mask), (scores,))


@pytest.mark.parametrize("hide", ["nothing", "mask of samples", "hidden row"])
def test_pooling_equals_the_loop(hide):
    scores, value = random(BATCH, Q_LEN, K_LEN), random(BATCH, K_LEN, VALUE_DIM, seed=1)
    mask = HIDING[hide].get("attn_mask")
    output, weights = attention_pooling(scores, value, mask)
    visible = np.ones(scores.shape, dtype=bool) if mask is None else mask.numpy()
    expected = oracles.softmax_rows(scores, visible)
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(output, oracles.weighted_means(expected, oracles.doubles(value)), rtol=1e-12)


def test_pooling_of_a_pair_without_batch():
    output, weights = attention_pooling(torch.zeros(Q_LEN, K_LEN), torch.eye(K_LEN))
    assert torch.equal(output, weights)
    torch.testing.assert_close(weights, torch.full((Q_LEN, K_LEN), 1 / K_LEN))


def test_values_broadcast_over_heads():
    scores, value = (random(BATCH, HEADS, Q_LEN, K_LEN), random(BATCH, 1, K_LEN, VALUE_DIM, seed=1))
    output, _ = attention_pooling(scores, value)
    for h in range(HEADS):
        torch.testing.assert_close(output[:, h], attention_pooling(scores[:, h], value[:, 0])[0])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_hidden_values_may_be_anything(wrong):
    scores, mask = random(BATCH, Q_LEN, K_LEN), bools(BATCH, Q_LEN, K_LEN)
    mask[0, :, 3] = False
    results = []
    for filler in (0.0, wrong):
        value = random(BATCH, K_LEN, VALUE_DIM, seed=1)
        value[0, 3] = filler
        results.append(attention_pooling(scores, value, mask))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_pooling_rounds_half_precision_once(dtype):
    scores, value = random(BATCH, Q_LEN, 101, dtype=dtype), random(BATCH, 101, VALUE_DIM, seed=1, dtype=dtype)
    wide = attention_pooling(scores.float(), value.float())
    for found, wanted in zip(attention_pooling(scores, value), wide, strict=True):
        assert torch.equal(found, wanted.to(dtype))
