"""Scoring functions, compared with loops over every pair of query and key."""

import math

import numpy as np
import oracles
import pytest
import torch
from random_tensors import random

import mha_lib

BATCH, HEADS, Q_LEN, K_LEN, WIDTH, KEY_WIDTH, HIDDEN = 2, 3, 5, 7, 11, 13, 17


RULES = {
    "dot": (mha_lib.dot_product_score, oracles.dot),
    "scaled": (mha_lib.scaled_dot_product_score, lambda q, k: oracles.dot(q, k) / math.sqrt(len(q))),
    "cosine": (mha_lib.cosine_score, oracles.cosine),
    "gaussian": (mha_lib.gaussian_score, lambda q, k: -oracles.dot(q - k, q - k) / 2),
    "narrow gaussian": (
        lambda q, k: mha_lib.gaussian_score(q, k, bandwidth=0.3),
        lambda q, k: -oracles.dot(q - k, q - k) / (2 * 0.3**2),
    ),
}


@pytest.mark.parametrize("lead", [(), (BATCH,), (BATCH, HEADS)], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_scores_equal_the_loop(name, lead):
    ours, rule = RULES[name]
    query, key = random(*lead, Q_LEN, WIDTH), random(*lead, K_LEN, WIDTH, seed=1)
    before = query.clone(), key.clone()
    scores = ours(query, key)
    assert scores.shape == (*lead, Q_LEN, K_LEN)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores, oracles.score_matrix(rule, query, key), rtol=1e-12, atol=1e-12)
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])


@pytest.mark.parametrize("name", RULES)
def test_leading_axes_broadcast(name):
    score = RULES[name][0]
    query, key = random(BATCH, 1, Q_LEN, WIDTH), random(HEADS, K_LEN, WIDTH, seed=1)
    scores = score(query, key)
    assert scores.shape == (BATCH, HEADS, Q_LEN, K_LEN)
    for b in range(BATCH):
        for h in range(HEADS):
            torch.testing.assert_close(scores[b, h], score(query[b, 0], key[h]))


@pytest.mark.parametrize("name", RULES)
def test_gradients_equal_finite_differences(name):
    query, key = (random(3, 2, requires_grad=True), random(5, 2, seed=1, requires_grad=True))
    assert torch.autograd.gradcheck(RULES[name][0], (query, key))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_scores_keep_their_dtype(name, dtype):
    query, key = random(Q_LEN, WIDTH).to(dtype), random(K_LEN, WIDTH, seed=1).to(dtype)
    scores = RULES[name][0](query, key)
    assert scores.dtype == dtype
    exact = oracles.score_matrix(RULES[name][1], query, key)
    # Every rule sums at most WIDTH terms, so its error is a few units in the last place of the largest score.
    tolerance = 4 * torch.finfo(dtype).eps * np.abs(exact).max() * math.sqrt(WIDTH)
    np.testing.assert_allclose(scores.double(), exact, rtol=0, atol=tolerance)


def test_the_scale_comes_before_the_product():
    """In half precision q·k overflows here, q·k / √d does not."""
    query = key = torch.full((1, 64), 60.0, dtype=torch.float16)
    assert mha_lib.dot_product_score(query, key).isinf().all()
    assert mha_lib.scaled_dot_product_score(query, key).item() == pytest.approx(60 * 60 * 64 / 8, rel=1e-3)


def test_cosine_of_a_zero_vector_is_zero():
    scores = mha_lib.cosine_score(torch.zeros(1, WIDTH), torch.ones(K_LEN, WIDTH))
    assert torch.equal(scores, torch.zeros(1, K_LEN))


def test_learned_bandwidth_gets_the_gradient_of_the_formula():
    query, key = random(Q_LEN, 2), random(K_LEN, 2, seed=1)
    bandwidth = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    mha_lib.gaussian_score(query, key, bandwidth).sum().backward()
    exact = oracles.score_matrix(lambda q, k: oracles.dot(q - k, q - k) / 0.7**3, query, key).sum()
    assert bandwidth.grad.item() == pytest.approx(exact, rel=1e-12)


def test_several_bandwidths_at_once():
    query, key = random(Q_LEN, 2), random(K_LEN, 2, seed=1)
    widths = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    together = mha_lib.gaussian_score(query, key, widths[:, None, None])
    for width, scores in zip(widths, together, strict=True):
        torch.testing.assert_close(scores, mha_lib.gaussian_score(query, key, width.item()))


def test_learned_bandwidth_under_vmap():
    """Several models that train at once run under `vmap`, where the sign of a bandwidth cannot be read."""
    query, key, widths = (random(Q_LEN, 2), random(K_LEN, 2, seed=1), torch.tensor([0.2, 1.0, 3.0]).double())
    together = torch.vmap(lambda width: mha_lib.gaussian_score(query, key, width))(widths)
    torch.testing.assert_close(together, mha_lib.gaussian_score(query, key, widths[:, None, None]))


@pytest.mark.parametrize("lead", [(), (BATCH,), (BATCH, HEADS)], ids=str)
@pytest.mark.parametrize(("make", "rule"), [
    (lambda: mha_lib.AdditiveScore(WIDTH, KEY_WIDTH, HIDDEN), oracles.additive),
    (lambda: mha_lib.BilinearScore(WIDTH, KEY_WIDTH), oracles.bilinear),
], ids=["additive", "bilinear"])  # fmt: skip
def test_scores_with_parameters_equal_the_loop(make, rule, lead):
    module = make().double()
    query, key = random(*lead, Q_LEN, WIDTH), random(*lead, K_LEN, KEY_WIDTH, seed=1)
    scores = module(query, key)
    assert scores.shape == (*lead, Q_LEN, K_LEN)
    expected = oracles.score_matrix(rule(module), query, key)
    np.testing.assert_allclose(scores.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (7,), (BATCH, HEADS, Q_LEN, K_LEN)], ids=str)
@pytest.mark.parametrize("cap", [0.5, 3, 50.0])
def test_capped_scores_equal_the_formula(cap, shape):
    scores = 20 * random(*shape)
    before = scores.clone()
    capped = mha_lib.softcap_scores(scores, cap)
    assert torch.equal(scores, before)
    expected = [cap * math.tanh(score / cap) for score in scores.flatten().tolist()]
    np.testing.assert_allclose(capped.flatten(), expected, rtol=1e-14)
    assert capped.shape == shape
    assert (capped.abs() <= cap).all()


def test_small_scores_hardly_change_and_large_ones_keep_their_order():
    cap = 30.0
    small = torch.linspace(-1, 1, 21, dtype=torch.float64)
    torch.testing.assert_close(mha_lib.softcap_scores(small, cap), small, rtol=1e-3, atol=0)
    wide = torch.linspace(-90, 90, 61, dtype=torch.float64)
    assert (mha_lib.softcap_scores(wide, cap).diff() > 0).all()
    assert mha_lib.softcap_scores(torch.tensor([-math.inf, math.inf]), 7.0).tolist() == [-7, 7]
    assert mha_lib.softcap_scores(torch.tensor([math.nan]), 7.0).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)  # fmt: skip
def test_capped_scores_keep_their_dtype(dtype):
    scores = (20 * random(BATCH, K_LEN)).to(dtype)
    capped = mha_lib.softcap_scores(scores, 5)
    assert capped.dtype == dtype
    error = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(capped.double(), 5 * torch.tanh(scores.double() / 5), rtol=error, atol=error)


def test_gradients_of_capped_scores():
    scores = (5 * random(3, 5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: mha_lib.softcap_scores(s, 3.0), (scores,))
    (gradient,) = torch.autograd.grad(mha_lib.softcap_scores(scores, 3.0).sum(), scores)
    torch.testing.assert_close(gradient, 1 - torch.tanh(scores / 3).square())
