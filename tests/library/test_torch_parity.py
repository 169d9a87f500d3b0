"""Equal to torch: its attention function, and its layer, whose weights `from_torch` copies."""

import math

import oracles
import pytest
import torch
import torch.nn.functional as F
from attention_cases import (
    BATCH,
    BOTH_PATHS,
    EMBED_DIM,
    HEAD_DIM,
    HEADS,
    HIDING_HEADS,
    K_LEN,
    KDIM,
    Q_LEN,
    VALUE_DIM,
    VDIM,
    make_inputs,
    make_layer,
)
from random_tensors import random
from torch import nn

from mha_lib import MultiHeadAttention, causal_mask, dot_product_attention


@BOTH_PATHS
@pytest.mark.parametrize("hide", ["nothing", "mask of heads", "lens, causal"])
def test_attention_equals_torchs_function(hide, need_weights):
    parts = HIDING_HEADS[hide]
    query, key = (random(BATCH, HEADS, Q_LEN, HEAD_DIM), random(BATCH, HEADS, K_LEN, HEAD_DIM, seed=1))
    value = random(BATCH, HEADS, K_LEN, VALUE_DIM, seed=2)
    visible = torch.from_numpy(oracles.visible_pairs(BATCH, HEADS, Q_LEN, K_LEN, **parts))
    expected = F.scaled_dot_product_attention(query, key, value, visible)
    output, _ = dot_product_attention(query, key, value, need_weights=need_weights, **parts)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("widths", [{}, {"kdim": KDIM, "vdim": VDIM}], ids=["same widths", "other widths"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("hide", ["nothing", "mask of heads", "lens", "causal", "mask, lens"])
def test_layer_equals_torchs_layer(hide, batch_first, bias, widths):
    """Outputs, the weights of each head, and gradients of inputs and parameters."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(EMBED_DIM, HEADS, bias=bias, batch_first=batch_first, **widths).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = MultiHeadAttention.from_torch(theirs)
    inputs = [x.requires_grad_() for x in make_inputs(**widths)]
    parts = HIDING_HEADS[hide]
    hidden = torch.from_numpy(~oracles.visible_pairs(BATCH, HEADS, Q_LEN, K_LEN, **parts))

    given = inputs if batch_first else [x.transpose(0, 1) for x in inputs]
    # Torch's mask is True where a query must not attend, and has the heads in its batch axis.
    mask = {"attn_mask": hidden.flatten(0, 1)} if parts else {}
    expected, expected_weights = theirs(*given, average_attn_weights=False, **mask)
    expected = expected if batch_first else expected.transpose(0, 1)
    torch.testing.assert_close(theirs(*given, **mask)[1], expected_weights.mean(1))  # their default
    upstream = random(BATCH, Q_LEN, EMBED_DIM, seed=3)
    expected_gradients = torch.autograd.grad(expected, [*inputs, *theirs.parameters()], upstream)
    theirs_by_name = dict(
        zip([name for name, _ in theirs.named_parameters()], expected_gradients[3:], strict=True)
    )

    for need_weights in (True, False):
        output, weights = ours(*inputs, need_weights=need_weights, **parts)
        torch.testing.assert_close(output, expected)
        if need_weights:
            torch.testing.assert_close(weights, expected_weights)
        gradients = torch.autograd.grad(output, [*inputs, *ours.parameters()], upstream)
        for gradient, other in zip(gradients[:3], expected_gradients[:3], strict=True):
            torch.testing.assert_close(gradient, other)
        named = dict(zip([name for name, _ in ours.named_parameters()], gradients[3:], strict=True))
        for kind in ["weight", "bias"] if bias else ["weight"]:
            own = [named[f"{letter}_proj.{kind}"] for letter in "qkv"]
            if f"in_proj_{kind}" in theirs_by_name:
                torch.testing.assert_close(torch.cat(own), theirs_by_name[f"in_proj_{kind}"])
            else:
                for letter, gradient in zip("qkv", own, strict=True):
                    torch.testing.assert_close(gradient, theirs_by_name[f"{letter}_proj_{kind}"])
            torch.testing.assert_close(named[f"out_proj.{kind}"], theirs_by_name[f"out_proj.{kind}"])


def test_our_mask_equals_an_additive_mask_of_torch():
    """True = may attend here; 0 and -inf are what torch adds to the scores."""
    layer, inputs = make_layer(), make_inputs()
    visible = causal_mask(Q_LEN, K_LEN)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    heads = [layer.split_heads(proj(x)) for proj, x in zip(projections, inputs, strict=True)]
    added = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -math.inf)
    expected = layer.out_proj(layer.merge_heads(F.scaled_dot_product_attention(*heads, added)))
    torch.testing.assert_close(layer(*inputs, visible)[0], expected)


def test_from_torch_copies():
    theirs = nn.MultiheadAttention(EMBED_DIM, HEADS, dropout=0.25, kdim=KDIM, vdim=VDIM).double().eval()
    ours = MultiHeadAttention.from_torch(theirs)
    assert (ours.embed_dim, ours.num_heads, ours.kdim, ours.vdim) == (EMBED_DIM, HEADS, KDIM, VDIM)
    assert ours.dropout == 0.25
    assert not ours.training
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}
    before = theirs.q_proj_weight.clone()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert torch.equal(theirs.q_proj_weight, before)


def test_from_torch_draws_no_random_numbers():
    layer, state = nn.MultiheadAttention(6, 3), torch.random.get_rng_state()
    MultiHeadAttention.from_torch(layer)
    assert torch.equal(torch.random.get_rng_state(), state)
