"""The options of attention other than masks: a bias, groups of heads, another scale, a softcap."""

import numpy as np
import oracles
import pytest
import torch
from attention_cases import BIAS, BIASES, HIDING, HIDING_HEADS, qkv
from attention_marks import BOTH_PATHS, slow
from attention_sizes import BATCH, HEAD_DIM, HEADS, K_LEN, Q_LEN, VALUE_DIM
from random_tensors import gradients, random

from mha_lib import dot_product_attention


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
        asked = {"attn_bias": bias, "is_causal": True, "need_weights": need_weights}
        output, _ = dot_product_attention(query, key, value, **asked)
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
    axes = BIASES[bias].shape
    anyone = visible.sum_to_size((1,) * (4 - len(axes)) + axes).reshape(axes)
    for gradient in gradients:
        assert (gradient[3][anyone == 0] == 0).all()
        assert (gradient[3][anyone > 0] != 0).any()


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
