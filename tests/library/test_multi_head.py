"""The multi-head layer: equal to a loop over its heads, and dependent only on what it should depend on."""

import math
import re

import numpy as np
import oracles
import pytest
import torch
from attention_cases import BIASES, HIDING_HEADS
from attention_layers import even_inputs, layer_of, make_inputs, make_layer
from attention_marks import BOTH_PATHS
from attention_sizes import BATCH, EMBED_DIM, EVEN_DIM, HEAD_DIM, HEADS, KDIM, Q_LEN, VDIM
from random_tensors import random

from mha_lib import MultiHeadAttention

LAYERS = {
    "plain": {},
    "bias": {"bias": True},
    "other widths": {"kdim": KDIM, "vdim": VDIM},
    "bias, other widths": {"bias": True, "kdim": KDIM, "vdim": VDIM},
    "heads share one key and value": {"num_kv_heads": 1, "bias": True, "kdim": KDIM, "vdim": VDIM},
}


@BOTH_PATHS
@pytest.mark.parametrize("bias", [None, "of pairs", "of everything", "of heads"])
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal", "hidden queries"])
@pytest.mark.parametrize("options", LAYERS)
def test_layer_equals_the_loop_over_heads(options, hide, bias, need_weights):
    options, parts = LAYERS[options], HIDING_HEADS[hide] | {"attn_bias": bias and BIASES[bias]}
    layer = make_layer(**options)
    inputs = make_inputs(options.get("kdim", EMBED_DIM), options.get("vdim", EMBED_DIM))
    before = [tensor.clone() for tensor in inputs]
    output, weights = layer(*inputs, need_weights=need_weights, **parts)
    expected_output, expected_weights = oracles.multi_head(
        *inputs, layer.state_dict(), HEADS, options.get("num_kv_heads"), **parts
    )
    np.testing.assert_allclose(output.detach(), expected_output, rtol=1e-10, atol=1e-12)
    if need_weights:
        np.testing.assert_allclose(weights.detach(), expected_weights, rtol=1e-10, atol=1e-15)
    else:
        assert weights is None
    assert all(torch.equal(*pair) for pair in zip(inputs, before, strict=True))


# split and merge


def test_split_gives_each_head_its_own_columns():
    layer, x = MultiHeadAttention(EMBED_DIM, HEADS), random(BATCH, Q_LEN, EMBED_DIM)
    heads = layer.split_heads(x)
    assert heads.shape == (BATCH, HEADS, Q_LEN, HEAD_DIM)
    for h in range(HEADS):
        assert torch.equal(heads[:, h], x[:, :, h * HEAD_DIM : (h + 1) * HEAD_DIM])
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(layer.merge_heads(heads), x)


# sizes and layouts


@BOTH_PATHS
@pytest.mark.parametrize(("batch", "q_len", "k_len"), [
    (0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0), (2, 1, 1), (2, 5, 1), (2, 1, 7), (2, 7, 5), (1, 17, 19),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["plain", "shared keys", "rotary", "cosine"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_layer_of_any_lengths(is_causal, kind, batch, q_len, k_len, need_weights):
    layer = layer_of(kind)
    given = [x.requires_grad_() for x in even_inputs(batch=batch, q_len=q_len, k_len=k_len)]
    lens = torch.full((batch,), k_len, dtype=torch.long)
    bias = torch.zeros(q_len, k_len)
    for asked in ({}, {"valid_lens": lens}, {"attn_bias": bias}):
        output, weights = layer(*given, is_causal=is_causal, need_weights=need_weights, **asked)
        assert output.shape == (batch, q_len, EVEN_DIM)
        if need_weights:
            assert weights.shape == (batch, HEADS, q_len, k_len)
        output.sum().backward()
    assert all(x.grad.shape == x.shape and x.grad.isfinite().all() for x in given)
    if kind in ("plain", "shared keys") and batch and k_len:
        expected, _ = oracles.multi_head(
            *given, layer.state_dict(), HEADS, layer.num_kv_heads, is_causal=is_causal
        )
        np.testing.assert_allclose(output.detach(), expected, rtol=1e-10, atol=1e-12)


# parameters


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 6, 30])
def test_the_number_of_heads_does_not_change_the_number_of_parameters(num_heads):
    for bias in (False, True):
        layer = MultiHeadAttention(30, num_heads, bias=bias)
        assert sum(p.numel() for p in layer.parameters()) == 4 * 30 * 30 + 4 * 30 * bias
        assert layer.head_dim == 30 // num_heads


def test_a_new_layer_starts_with_xaviers_weights_and_no_bias():
    torch.manual_seed(0)
    layer = MultiHeadAttention(120, 3, kdim=60, bias=True)
    for proj in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        bound = math.sqrt(6 / (proj.in_features + proj.out_features))
        assert proj.weight.abs().max() <= bound
        assert proj.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert (proj.bias == 0).all()


@pytest.mark.parametrize("bias", [0, 1, 0.5])
def test_a_number_as_bias_is_refused_with_the_names_that_are_meant(bias):
    rule = "bias must be a bool or names of q_proj, k_proj, v_proj, out_proj"
    got = f"{type(bias).__name__}: {bias}"
    with pytest.raises(TypeError, match=f"^{re.escape(rule)}, got {re.escape(got)}$"):
        MultiHeadAttention(EMBED_DIM, HEADS, bias=bias)
