"""The options of attention other than masks: a bias, groups of heads, another scale, a softcap."""

import math

import numpy as np
import oracles
import pytest
import torch
from attention_cases import (
    BATCH,
    BIAS,
    BIASES,
    BOTH_PATHS,
    HEAD_DIM,
    HEADS,
    HIDING,
    HIDING_HEADS,
    K_LEN,
    Q_LEN,
    VALUE_DIM,
    gradients,
    qkv,
    slow,
)
from random_tensors import random

from mha_lib import alibi_bias, dot_product_attention

# a bias


@BOTH_PATHS
@pytest.mark.parametrize("hide", ["nothing", "causal", "mask of heads, lens, causal", "hidden row of a head"])
@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_is_added_to_the_scores(bias, hide, need_weights):
    parts, bias = HIDING_HEADS[hide], BIASES[bias]
    before = bias.clone()
    for value_dim in (HEAD_DIM, VALUE_DIM):
        given = qkv(value_dim=value_dim)
        output, weights = dot_product_attention(*given, attn_bias=bias, need_weights=need_weights, **parts)
        expected, expected_weights = oracles.attention(*given, attn_bias=bias, **parts)
        np.testing.assert_allclose(output, expected, rtol=1e-9, atol=1e-11)
        if need_weights:
            np.testing.assert_allclose(weights, expected_weights, rtol=1e-9, atol=1e-14)
    assert torch.equal(bias, before)


@BOTH_PATHS
def test_a_bias_without_heads(need_weights):
    query, key, value = (x[:, 0] for x in qkv())
    for bias in (BIAS[:, 0], BIAS[:1, 0], BIAS[0, 0]):
        output, _ = dot_product_attention(
            query, key, value, attn_bias=bias, is_causal=True, need_weights=need_weights
        )
        with_heads = bias[:, None] if bias.ndim == 3 else bias
        expected, _ = oracles.attention(
            query[:, None], key[:, None], value[:, None], attn_bias=with_heads, is_causal=True
        )  # fmt: skip
        np.testing.assert_allclose(output, expected[:, 0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("hide", ["nothing", "causal", "hidden row of a head", "hidden sample"])  # fmt: skip
@pytest.mark.parametrize("bias", ["of pairs", "of everything", "of heads"])
def test_both_paths_have_the_same_gradient_of_a_bias(bias, hide):
    """A hidden key contributes nothing to the gradient."""
    parts = HIDING_HEADS[hide]
    visible = torch.from_numpy(oracles.visible_pairs(BATCH, HEADS, Q_LEN, K_LEN, **parts))  # fmt: skip
    gradients = []
    for need_weights in (True, False):
        given = [x.clone().requires_grad_() for x in (*qkv(), BIASES[bias])]
        output, _ = dot_product_attention(*given[:3], attn_bias=given[3], need_weights=need_weights, **parts)
        upstream = random(*output.shape, seed=3)
        gradients.append(torch.autograd.grad(output, given, upstream))
    torch.testing.assert_close(*gradients)
    anyone = visible.sum_to_size((1,) * (4 - BIASES[bias].ndim) + BIASES[bias].shape).reshape(
        BIASES[bias].shape
    )
    for gradient in gradients:
        assert (gradient[3][anyone == 0] == 0).all()
        assert (gradient[3][anyone > 0] != 0).any()


def test_alibi_needs_a_batch_axis():
    """Without one, its heads would be taken for samples if there are equally many."""
    query, key, value = (x.expand(HEADS, -1, -1, -1) for x in (y[:1] for y in qkv()))  # fmt: skip
    bias = alibi_bias(HEADS, Q_LEN, K_LEN)
    with pytest.raises(ValueError, match=r"attn_bias\[None\] gives it a batch axis"):
        dot_product_attention(query, key, value, attn_bias=bias)
    output, _ = dot_product_attention(query, key, value, attn_bias=bias[None])
    expected, _ = oracles.attention(query, key, value, attn_bias=bias[None])
    np.testing.assert_allclose(output, expected, rtol=1e-6)


@BOTH_PATHS
@pytest.mark.parametrize("num_heads", [1, 3, 4, 6])
def test_alibi_in_attention(num_heads, need_weights):
    """Each head decays at its own rate: with queries of zero, the weights are those of the bias alone."""
    query = torch.zeros(1, num_heads, Q_LEN, HEAD_DIM)
    value = torch.eye(K_LEN).expand(1, num_heads, -1, -1)
    key = random(1, num_heads, K_LEN, HEAD_DIM, dtype=torch.float32)
    bias = alibi_bias(num_heads, Q_LEN, K_LEN)[None]
    weights, _ = dot_product_attention(
        query, key, value, attn_bias=bias, is_causal=True, need_weights=need_weights
    )
    visible = oracles.visible_pairs(1, num_heads, Q_LEN, K_LEN, is_causal=True)
    expected = oracles.softmax_rows(oracles.doubles(bias), visible)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)


# groups of heads that share keys and values


@BOTH_PATHS
@pytest.mark.parametrize("hide", ["nothing", "causal", "lens, causal", "mask of samples", "hidden sample"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (6, 3), (3, 1), (6, 6)])
def test_heads_of_a_group_share_keys_and_values(heads, kv_heads, hide, need_weights):
    parts, given = HIDING[hide], qkv(heads=heads, kv_heads=kv_heads)
    output, weights = dot_product_attention(*given, need_weights=need_weights, **parts)
    expected, expected_weights = oracles.attention(*given, **parts)
    np.testing.assert_allclose(output, expected, rtol=1e-10, atol=1e-12)
    if need_weights:
        assert weights.shape == (BATCH, heads, Q_LEN, K_LEN)
        np.testing.assert_allclose(weights, expected_weights, rtol=1e-10, atol=1e-15)


def test_gradients_of_shared_heads_add_up():
    query, key, value = qkv(heads=6, kv_heads=2)
    upstream = random(BATCH, 6, Q_LEN, HEAD_DIM, seed=3)
    wide = [x.repeat_interleave(3, 1).requires_grad_() for x in (key, value)]
    alone, _ = dot_product_attention(query, *wide, is_causal=True)
    each = torch.autograd.grad(alone, wide, upstream)
    expected = [gradient.unflatten(1, (2, 3)).sum(2) for gradient in each]
    for need_weights in (True, False):
        shared = [x.clone().requires_grad_() for x in (key, value)]
        output, _ = dot_product_attention(query, *shared, is_causal=True, need_weights=need_weights)
        own = torch.autograd.grad(output, shared, upstream)
        torch.testing.assert_close([*own], expected)


# scale and softcap


@BOTH_PATHS
@pytest.mark.parametrize(
    "asked", [{"scale": 0.3}, {"scale": 2}, {"softcap": 0.7}, {"softcap": 50.0, "scale": 1.5}], ids=str
)
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal", "hidden sample"])  # fmt: skip
def test_another_scale_and_a_softcap(hide, asked, need_weights):
    parts, given = HIDING_HEADS[hide], qkv()
    for bias in (None, BIAS):
        output, weights = dot_product_attention(
            *given, attn_bias=bias, need_weights=need_weights, **asked, **parts
        )
        expected, expected_weights = oracles.attention(*given, attn_bias=bias, **asked, **parts)  # fmt: skip
        np.testing.assert_allclose(output, expected, rtol=1e-10, atol=1e-12)
        assert (weights is not None) == need_weights
        if need_weights:
            np.testing.assert_allclose(weights, expected_weights, rtol=1e-10, atol=1e-15)  # fmt: skip


@BOTH_PATHS
def test_the_softcap_comes_before_bias_and_mask(need_weights):
    """Order: the cap, then the bias, then the mask. A bias of 9 stays 9, and a hidden key stays hidden."""
    query, key = torch.full((1, 1, 1), 100.0), torch.ones(1, 3, 1)
    value = torch.tensor([[[1.0], [0.0], [50.0]]])
    bias, mask = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[True, True, False]])
    output, _ = dot_product_attention(
        query, key, value, mask, attn_bias=bias, softcap=0.5, need_weights=need_weights
    )
    assert output.item() == pytest.approx(1 / (1 + math.exp(-9)), rel=1e-6)


# all of it at once


@BOTH_PATHS
@pytest.mark.parametrize("kv_heads", [slow(2), 1])
@pytest.mark.parametrize("softcap", [None, slow(1.5)])
def test_gradients_equal_finite_differences(softcap, kv_heads, need_weights):
    """With a learned bias, groups, another scale, a mask and a hidden sample."""
    shapes = (2, 2, 3), (kv_heads, 5, 3), (kv_heads, 5, 3), (2, 2, 5)
    given = [random(2, *s, seed=n).requires_grad_() for n, s in enumerate(shapes)]

    def attend(query, key, value, bias):
        return dot_product_attention(
            query, key, value, attn_bias=bias, valid_lens=torch.tensor([0, 4]),
            is_causal=True, scale=0.8, softcap=softcap, need_weights=need_weights,
        )[0]  # fmt: skip

    assert torch.autograd.gradcheck(attend, given)
    assert (gradients(attend(*given), given[-1])[0][0] == 0).all()
