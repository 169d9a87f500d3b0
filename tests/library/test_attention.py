"""The softmax with a mask, both paths of attention, and the multi-head layer.

Compared with loops over every pair, with torch's own function and layer, and with what attention must not do.
Every axis has another prime size, so that no two of them can be confused.
"""

import copy
import functools
import itertools
import math

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from random_tensors import bools, generator, random
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mha_lib import (
    AdditiveScore,
    BilinearScore,
    MultiHeadAttention,
    _paths,
    alibi_bias,
    attention_pooling,
    causal_mask,
    cosine_score,
    dot_product_attention,
    dot_product_score,
    gaussian_score,
    masked_softmax,
    scaled_dot_product_score,
    sliding_window_mask,
)
from mha_lib.positional import RotaryPositionalEncoding, ShawScore

BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13
EMBED_DIM, KDIM, VDIM = HEADS * HEAD_DIM, 17, 19
BOTH_PATHS = pytest.mark.parametrize("need_weights", [True, False], ids=["readable", "fused"])


def all_but(mask, *row):
    """The same mask with one row hidden altogether."""
    mask[row] = False
    return mask


LENS, LENS_2D = torch.tensor([3, 7]), torch.tensor([[1, 2, 3, 4, 5], [7, 6, 5, 4, 3]])
HIDING = {
    "nothing": {},
    "mask": {"attn_mask": bools(Q_LEN, K_LEN)},
    "mask of keys": {"attn_mask": bools(1, K_LEN)},
    "mask of samples": {"attn_mask": bools(BATCH, Q_LEN, K_LEN)},
    "mask of keys of samples": {"attn_mask": bools(BATCH, 1, K_LEN)},
    "lens": {"valid_lens": LENS},
    "lens of queries": {"valid_lens": LENS_2D},
    "causal": {"is_causal": True},
    "mask, lens": {"attn_mask": bools(BATCH, Q_LEN, K_LEN), "valid_lens": LENS},
    "mask, causal": {"attn_mask": bools(Q_LEN, K_LEN), "is_causal": True},
    "lens, causal": {"valid_lens": LENS, "is_causal": True},
    "all three": {"attn_mask": bools(Q_LEN, K_LEN), "valid_lens": LENS_2D, "is_causal": True},
    "hidden row": {"attn_mask": all_but(bools(BATCH, Q_LEN, K_LEN), 1, 2)},
    "hidden sample": {"valid_lens": torch.tensor([0, 4])},
    "hidden queries": {"valid_lens": torch.tensor([[0, 2, 0, 3, 4], [7, 0, 5, 0, 3]])},
}
HIDING_HEADS = HIDING | {
    "mask of heads": {"attn_mask": bools(BATCH, HEADS, Q_LEN, K_LEN)},
    "mask of heads alike in samples": {"attn_mask": bools(1, HEADS, Q_LEN, K_LEN)},
    "mask of samples with head axis": {"attn_mask": bools(BATCH, 1, Q_LEN, K_LEN)},
    "mask of heads, lens, causal": {
        "attn_mask": bools(BATCH, HEADS, Q_LEN, K_LEN), "valid_lens": LENS, "is_causal": True
    },
    "hidden row of a head": {"attn_mask": all_but(bools(BATCH, HEADS, Q_LEN, K_LEN), 0, 1, 4)},
}  # fmt: skip


def hidden_rows(lead, q_len=Q_LEN, k_len=K_LEN, **hide):
    """Where a query may attend to nothing: bool of shape (*lead, q_len), lead (batch,) or (batch, heads)."""
    visible = oracles.visible_pairs(lead[0], *(lead[1:] or (1,)), q_len, k_len, **hide)
    return torch.from_numpy(~visible.any(-1)).reshape(*lead, q_len)


# masked_softmax


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
def test_softmax_of_every_dtype(dtype):
    scores, mask = (random(BATCH, Q_LEN, K_LEN, dtype=dtype) * 3, all_but(bools(BATCH, Q_LEN, K_LEN), 0, 3))
    weights = masked_softmax(scores, mask)
    assert weights.dtype == dtype
    exact = oracles.softmax_rows(oracles.doubles(scores), mask.numpy())
    # Half precision is rounded once, at the end: half a unit in the last place, of the smallest numbers too.
    info = torch.finfo(dtype)
    error = {torch.float64: 1e-15, torch.float32: 1e-6}.get(dtype, 0.51 * info.eps)
    np.testing.assert_allclose(
        oracles.doubles(weights), exact, rtol=error, atol=info.smallest_normal * info.eps
    )


@pytest.mark.parametrize(
    ("dtype", "visible"),
    [(torch.float16, -60_000), (torch.bfloat16, -1e30), (torch.float32, -1e30), (torch.float64, -1e300)],
    ids=str,
)
def test_hidden_keys_lose_against_the_smallest_visible_score(dtype, visible):
    """A fill of -1e6 or -1e9 would win here, and put all of the weight on the padding."""
    scores = torch.tensor([[visible, 0.0, 5.0]], dtype=dtype)
    mask = torch.tensor([[True, False, False]])
    assert masked_softmax(scores, mask).tolist() == [[1, 0, 0]]
    # The same beside a row that sees nothing, for which the fill is another.
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


def test_a_hidden_row_is_zero_in_the_gradient_too():
    scores = random(BATCH, Q_LEN, K_LEN, requires_grad=True)
    weights = masked_softmax(scores, valid_lens=torch.tensor([0, 3]))
    assert (weights[0] == 0).all()
    weights.square().sum().backward()
    assert (scores.grad[0] == 0).all()
    assert (scores.grad[1, :, 3:] == 0).all()
    assert (scores.grad[1, :, :3] != 0).all()


def test_softmax_gradient_equals_finite_differences():
    mask = all_but(bools(3, 5), 1)
    scores = random(3, 5, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: masked_softmax(s, mask), (scores,))
    assert torch.autograd.gradgradcheck(lambda s: masked_softmax(s, mask), (scores,))


# attention_pooling


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


@pytest.mark.parametrize("dropout_p", [0.0, 0.25, 0.75, 1.0])
def test_dropout_of_weights(dropout_p):
    """With the identity as values the output shows the weights that were used."""
    torch.manual_seed(0)
    scores = random(BATCH, 101, 103)
    identity = torch.eye(103, dtype=torch.float64).expand(BATCH, 103, 103)
    used, weights = attention_pooling(scores, identity, dropout_p=dropout_p)
    torch.testing.assert_close(weights, scores.softmax(-1))
    dropped = used == 0
    assert dropped.double().mean().item() == pytest.approx(dropout_p, abs=0.01)
    torch.testing.assert_close(used[~dropped], weights[~dropped] / max(1 - dropout_p, 1e-9))


# dot_product_attention


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


@pytest.mark.parametrize("hide", HIDING_HEADS)
def test_both_paths_have_the_same_gradients(hide):
    parts = HIDING_HEADS[hide]
    shapes = (Q_LEN, HEAD_DIM), (K_LEN, HEAD_DIM), (K_LEN, VALUE_DIM)
    inputs = [random(BATCH, HEADS, *s, seed=i).requires_grad_() for i, s in enumerate(shapes)]
    upstream = random(BATCH, HEADS, Q_LEN, VALUE_DIM, seed=3)
    outputs, gradients = [], []
    for need_weights in (True, False):
        output, _ = dot_product_attention(*inputs, need_weights=need_weights, **parts)
        outputs.append(output)
        gradients.append(torch.autograd.grad(output, inputs, upstream))
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)
    visible = torch.from_numpy(oracles.visible_pairs(BATCH, HEADS, Q_LEN, K_LEN, **parts))
    for for_query, for_key, for_value in gradients:
        assert (for_query[~visible.any(-1)] == 0).all()
        assert (for_key[~visible.any(-2)] == 0).all()
        assert (for_value[~visible.any(-2)] == 0).all()


@BOTH_PATHS
def test_attention_gradient_equals_finite_differences(need_weights):
    inputs = [random(2, n, 3, seed=n).requires_grad_() for n in (2, 5, 5)]
    hide = {"valid_lens": torch.tensor([0, 3]), "is_causal": True, "need_weights": need_weights}
    assert torch.autograd.gradcheck(lambda *qkv: dot_product_attention(*qkv, **hide)[0], inputs)


@BOTH_PATHS
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 7), (5, 7), (7, 7), (7, 5), (7, 1)])
def test_causal_attention_for_any_lengths(q_len, k_len, need_weights):
    """Queries and keys end together; torch's own flag aligns them at their beginning."""
    query, key = (random(BATCH, HEADS, q_len, HEAD_DIM), random(BATCH, HEADS, k_len, HEAD_DIM, seed=1))
    value = random(BATCH, HEADS, k_len, VALUE_DIM, seed=2)
    output, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    expected, _ = oracles.attention(query, key, value, is_causal=True)
    np.testing.assert_allclose(output, expected, rtol=1e-10, atol=1e-12)
    assert (output[:, :, : max(q_len - k_len, 0)] == 0).all()


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


@BOTH_PATHS
@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)], ids=str
)
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal", "hidden sample"])
def test_attention_of_every_dtype(hide, dtype, error, need_weights):
    parts = HIDING_HEADS[hide]
    query = random(BATCH, HEADS, Q_LEN, HEAD_DIM, dtype=dtype)
    key = random(BATCH, HEADS, K_LEN, HEAD_DIM, seed=1, dtype=dtype)
    value = random(BATCH, HEADS, K_LEN, VALUE_DIM, seed=2, dtype=dtype)
    output, weights = dot_product_attention(query, key, value, need_weights=need_weights, **parts)
    assert output.dtype == dtype
    assert weights is None or weights.dtype == dtype
    expected, _ = oracles.attention(query, key, value, **parts)
    np.testing.assert_allclose(oracles.doubles(output), expected, rtol=0, atol=error)
    assert (output[hidden_rows((BATCH, HEADS), **parts)] == 0).all()


@BOTH_PATHS
def test_scores_beyond_the_range_of_half_precision(need_weights):
    """q·k is 230 400 here, more than float16 holds, but q·k / √d is not."""
    query = torch.full((1, 1, 1, 64), 60.0, dtype=torch.half)
    key = torch.stack((query[0, 0, 0], -query[0, 0, 0]))[None, None]
    value = torch.tensor([[1.0], [3.0]], dtype=torch.half)[None, None]
    assert dot_product_attention(query, key, value, need_weights=need_weights)[0].item() == 1.0


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
def test_dropout_keeps_the_mean(need_weights):
    torch.manual_seed(0)
    x = random(1, 1, 31, HEAD_DIM)
    value = random(1, 1, 31, 2003, seed=1)
    plain, _ = dot_product_attention(x, x, value, need_weights=need_weights)
    many = torch.stack(
        [dot_product_attention(x, x, value, dropout_p=0.5, need_weights=need_weights)[0] for _ in range(100)]
    )
    assert not torch.equal(many[0], many[1])
    torch.testing.assert_close(many.mean((0, 4)), plain.mean(-1), rtol=0, atol=0.02)


def test_autocast_is_left_to_torch():
    x = random(BATCH, Q_LEN, HEAD_DIM, dtype=torch.float32)
    layer = MultiHeadAttention(HEAD_DIM, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        paths = [dot_product_attention(x, x, x, need_weights=way)[0] for way in (True, False)]
        output, _ = layer(x, x, x)
    assert output.dtype == paths[0].dtype == paths[1].dtype == torch.bfloat16
    torch.testing.assert_close(*paths, rtol=0, atol=0.03)
    torch.testing.assert_close(output.float(), layer(x, x, x)[0], rtol=0, atol=0.05)


# MultiHeadAttention: equal to others


def make_layer(**options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, HEADS, **options).double()
    for parameter in layer.parameters():  # biases start at 0: a test that leaves them there cannot see them
        nn.init.normal_(parameter, std=0.3)
    return layer


def make_inputs(kdim=EMBED_DIM, vdim=EMBED_DIM):
    query = random(BATCH, Q_LEN, EMBED_DIM)
    return query, random(BATCH, K_LEN, kdim, seed=1), random(BATCH, K_LEN, vdim, seed=2)


LAYERS = {
    "plain": {},
    "bias": {"bias": True},
    "other widths": {"kdim": KDIM, "vdim": VDIM},
    "bias, other widths": {"bias": True, "kdim": KDIM, "vdim": VDIM},
    "heads share one key and value": {"num_kv_heads": 1, "bias": True, "kdim": KDIM, "vdim": VDIM},
}


@BOTH_PATHS
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal", "hidden queries"])
@pytest.mark.parametrize("options", LAYERS)
def test_layer_equals_the_loop_over_heads(options, hide, need_weights):
    options, parts = LAYERS[options], HIDING_HEADS[hide]
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


@BOTH_PATHS
def test_heads_share_keys_and_values_in_groups(need_weights):
    layer = MultiHeadAttention(30, 6, num_kv_heads=2, bias=True).double()
    query, memory = random(BATCH, Q_LEN, 30), random(BATCH, K_LEN, 30, seed=1)
    assert layer.k_proj.weight.shape == layer.v_proj.weight.shape == (10, 30)
    output, _ = layer(query, memory, memory, is_causal=True, need_weights=need_weights)
    expected, _ = oracles.multi_head(query, memory, memory, layer.state_dict(), 6, 2, is_causal=True)
    np.testing.assert_allclose(output.detach(), expected, rtol=1e-10, atol=1e-12)


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


# MultiHeadAttention: split and merge


def test_split_gives_each_head_its_own_columns():
    layer, x = MultiHeadAttention(EMBED_DIM, HEADS), random(BATCH, Q_LEN, EMBED_DIM)
    heads = layer.split_heads(x)
    assert heads.shape == (BATCH, HEADS, Q_LEN, HEAD_DIM)
    for h in range(HEADS):
        assert torch.equal(heads[:, h], x[:, :, h * HEAD_DIM : (h + 1) * HEAD_DIM])
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(layer.merge_heads(heads), x)


def test_projections_of_a_head_are_rows_of_the_fused_matrices():
    """Changing the query rows of one head changes the weights of this head alone."""
    layer, inputs = make_layer(), make_inputs()
    before = layer(*inputs)[1]
    for h in range(HEADS):
        changed = copy.deepcopy(layer)
        with torch.no_grad():
            changed.q_proj.weight[h * HEAD_DIM : (h + 1) * HEAD_DIM] += 0.1
        after = changed(*inputs)[1]
        for other in range(HEADS):
            assert torch.allclose(after[:, other], before[:, other]) == (other != h)


def test_every_head_reaches_the_output():
    layer, inputs = make_layer(), make_inputs()
    full = layer(*inputs)[0]
    for h in range(HEADS):
        without = copy.deepcopy(layer)
        with torch.no_grad():
            without.v_proj.weight[h * HEAD_DIM : (h + 1) * HEAD_DIM] = 0
        assert (without(*inputs)[0] - full).abs().max() > 0.1


# MultiHeadAttention: what it must and must not depend on


@BOTH_PATHS
def test_padding_content_does_not_matter(need_weights):
    layer, (query, key, value) = make_layer(), make_inputs()
    padded = torch.arange(K_LEN)[None] >= LENS[:, None]
    other_key, other_value = (x.masked_fill(padded[..., None], 1e3) for x in (key, value))
    output, _ = layer(query, key, value, valid_lens=LENS, need_weights=need_weights)
    other, _ = layer(query, other_key, other_value, valid_lens=LENS, need_weights=need_weights)
    assert torch.equal(output, other)


@BOTH_PATHS
@pytest.mark.parametrize(
    "hide", ["lens", "lens of queries", "mask of samples", "mask of heads, lens, causal"]
)
def test_a_sample_alone_equals_itself_in_a_batch(hide, need_weights):
    """Lengths repeated over heads in the wrong order pass every test with one sample, but not this one."""
    layer, inputs, parts = make_layer(), make_inputs(), HIDING_HEADS[hide]
    together, _ = layer(*inputs, need_weights=need_weights, **parts)
    for b in range(BATCH):
        own = {
            name: part[b : b + 1] if isinstance(part, torch.Tensor) and part.shape[0] == BATCH else part
            for name, part in parts.items()
        }
        alone, _ = layer(*(x[b : b + 1] for x in inputs), need_weights=need_weights, **own)
        torch.testing.assert_close(alone[0], together[b])


@BOTH_PATHS
def test_no_peeking(need_weights):
    """A token depends on itself and those before it, and on nothing after it."""
    layer, x = make_layer(), random(1, K_LEN, EMBED_DIM).requires_grad_()
    output, _ = layer(x, x, x, is_causal=True, need_weights=need_weights)
    for i in range(K_LEN):
        (gradient,) = torch.autograd.grad(output[0, i].sum(), x, retain_graph=True)
        depends = gradient[0].abs().sum(-1) > 0
        assert depends.tolist() == [j <= i for j in range(K_LEN)]


@BOTH_PATHS
def test_permuted_tokens_give_permuted_outputs(need_weights):
    layer, x = make_layer(), random(BATCH, K_LEN, EMBED_DIM)
    order = torch.randperm(K_LEN, generator=generator(0))
    output, _ = layer(x, x, x, need_weights=need_weights)
    permuted, _ = layer(*[x[:, order]] * 3, need_weights=need_weights)
    torch.testing.assert_close(permuted, output[:, order])
    assert not torch.allclose(permuted, output)


@BOTH_PATHS
def test_permuted_memory_changes_nothing(need_weights):
    layer, (query, key, value) = make_layer(), make_inputs()
    order = torch.randperm(K_LEN, generator=generator(0))
    output, _ = layer(query, key, value, need_weights=need_weights)
    permuted, _ = layer(query, key[:, order], value[:, order], need_weights=need_weights)
    torch.testing.assert_close(permuted, output)


def test_weights_are_those_of_the_composition():
    layer, (query, key, value) = make_layer(), make_inputs()
    _, weights = layer(query, key, value, valid_lens=LENS)
    scores = scaled_dot_product_score(
        layer.split_heads(layer.q_proj(query)), layer.split_heads(layer.k_proj(key))
    )
    torch.testing.assert_close(weights, masked_softmax(scores, valid_lens=LENS))


# MultiHeadAttention as a module


@BOTH_PATHS
def test_dropout_in_training_only(need_weights):
    layer, inputs = make_layer(dropout=0.5), make_inputs()
    plain = make_layer()(*inputs)[0]
    torch.manual_seed(0)
    first, second = (layer(*inputs, need_weights=need_weights)[0] for _ in range(2))
    assert not torch.allclose(first, second)
    layer.eval()
    torch.testing.assert_close(layer(*inputs, need_weights=need_weights)[0], plain)


def test_returned_weights_are_those_before_dropout():
    layer, inputs = make_layer(dropout=0.5), make_inputs()
    torch.testing.assert_close(layer(*inputs)[1], make_layer()(*inputs)[1])


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 6, 30])
def test_the_number_of_heads_does_not_change_the_number_of_parameters(num_heads):
    for bias in (False, True):
        layer = MultiHeadAttention(30, num_heads, bias=bias)
        assert sum(p.numel() for p in layer.parameters()) == 4 * 30 * 30 + 4 * 30 * bias
        assert layer.head_dim == 30 // num_heads


def test_parameters_have_the_documented_names():
    names = [f"{letter}_proj.{kind}" for letter in ("q", "k", "v", "out") for kind in ("weight", "bias")]
    assert list(MultiHeadAttention(6, 3, bias=True).state_dict()) == names
    assert list(MultiHeadAttention(6, 3).state_dict()) == [name for name in names if name.endswith("weight")]


def test_a_new_layer_starts_with_xaviers_weights_and_no_bias():
    torch.manual_seed(0)
    layer = MultiHeadAttention(120, 3, kdim=60, bias=True)
    for proj in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        bound = math.sqrt(6 / (proj.in_features + proj.out_features))
        assert proj.weight.abs().max() <= bound
        assert proj.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert (proj.bias == 0).all()


def test_weights_never_stay_on_the_layer():
    layer, inputs = make_layer(), make_inputs()
    attributes = set(vars(layer))
    layer(*inputs)
    assert set(vars(layer)) == attributes


def test_layer_says_its_sizes():
    assert "embed_dim=6, num_heads=3, head_dim=2" in repr(MultiHeadAttention(6, 3))
    assert "num_kv_heads=1" in repr(MultiHeadAttention(6, 3, num_kv_heads=1))


def test_layer_runs_on_shapes_alone():
    layer = MultiHeadAttention(EMBED_DIM, HEADS).to("meta")
    query, memory = (torch.empty(BATCH, n, EMBED_DIM, device="meta") for n in (Q_LEN, K_LEN))
    lens = torch.empty(BATCH, dtype=torch.long, device="meta")
    hide = {"valid_lens": lens, "is_causal": True}
    output, weights = layer(query, memory, memory, **hide)
    assert output.shape == query.shape
    assert weights.shape == (BATCH, HEADS, Q_LEN, K_LEN)
    assert layer(query, memory, memory, need_weights=False, **hide)[0].shape == query.shape


@pytest.mark.no_shape_checks
@BOTH_PATHS
def test_layer_can_be_traced_in_one_graph(need_weights):
    layer, inputs = make_layer(), make_inputs()
    traced = torch.compile(layer, fullgraph=True, backend="eager")
    hide = {"valid_lens": LENS, "is_causal": True, "need_weights": need_weights}
    torch.testing.assert_close(traced(*inputs, **hide)[0], layer(*inputs, **hide)[0])


def test_one_query_over_a_cache_equals_the_last_of_all():
    layer, x = make_layer(), random(BATCH, K_LEN, EMBED_DIM)
    for need_weights, hide in itertools.product((True, False), ({}, {"valid_lens": LENS})):
        whole, _ = layer(x, x, x, is_causal=True, need_weights=need_weights, **hide)
        last, _ = layer(x[:, -1:], x, x, is_causal=True, need_weights=need_weights, **hide)
        torch.testing.assert_close(last, whole[:, -1:])


def test_an_additive_mask_of_torch_means_the_same():
    """True = may attend here; 0 and -inf are what torch adds to the scores."""
    layer, inputs = make_layer(), make_inputs()
    visible = causal_mask(Q_LEN, K_LEN)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    heads = [layer.split_heads(proj(x)) for proj, x in zip(projections, inputs, strict=True)]
    added = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -math.inf)
    expected = layer.out_proj(layer.merge_heads(F.scaled_dot_product_attention(*heads, added)))
    torch.testing.assert_close(layer(*inputs, visible)[0], expected)


# dot_product_attention: a bias, groups of heads, another scale, a cap, windows

BIAS = random(BATCH, HEADS, Q_LEN, K_LEN, seed=5)
BIASES = {
    "of pairs": BIAS[0, 0],
    "of keys": BIAS[0, 0, :1],
    "of queries": BIAS[0, 0, :, :1],
    "of everything": BIAS,
    "of heads": BIAS[:1],
    "of samples": BIAS[:, :1],
    "of keys of heads": BIAS[:1, :, :1],
    "large": 1e4 * BIAS,
}


def parts_of(query_heads=HEADS, kv_heads=HEADS, value_dim=HEAD_DIM):
    """As wide values as keys, so that torch's fused kernel runs."""
    return (
        random(BATCH, query_heads, Q_LEN, HEAD_DIM),
        random(BATCH, kv_heads, K_LEN, HEAD_DIM, seed=1),
        random(BATCH, kv_heads, K_LEN, value_dim, seed=2),
    )


@BOTH_PATHS
@pytest.mark.parametrize("hide", ["nothing", "causal", "mask of heads, lens, causal", "hidden row of a head"])
@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_is_added_to_the_scores(bias, hide, need_weights):
    parts, bias = HIDING_HEADS[hide], BIASES[bias]
    before = bias.clone()
    for value_dim in (HEAD_DIM, VALUE_DIM):
        given = parts_of(value_dim=value_dim)
        output, weights = dot_product_attention(*given, attn_bias=bias, need_weights=need_weights, **parts)
        expected, expected_weights = oracles.attention(*given, attn_bias=bias, **parts)
        np.testing.assert_allclose(output, expected, rtol=1e-9, atol=1e-11)
        if need_weights:
            np.testing.assert_allclose(weights, expected_weights, rtol=1e-9, atol=1e-14)
    assert torch.equal(bias, before)


@BOTH_PATHS
def test_a_bias_without_heads(need_weights):
    query, key, value = (x[:, 0] for x in parts_of())
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
def test_a_bias_is_learned_alike_on_both_paths(bias, hide):
    """A key that is hidden teaches nothing."""
    parts = HIDING_HEADS[hide]
    visible = torch.from_numpy(oracles.visible_pairs(BATCH, HEADS, Q_LEN, K_LEN, **parts))  # fmt: skip
    gradients = []
    for need_weights in (True, False):
        given = [x.clone().requires_grad_() for x in (*parts_of(), BIASES[bias])]
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
    """Without one, its heads would meet the samples wherever there are as many."""
    query, key, value = (x.expand(HEADS, -1, -1, -1) for x in (y[:1] for y in parts_of()))  # fmt: skip
    bias = alibi_bias(HEADS, Q_LEN, K_LEN)
    with pytest.raises(ValueError, match=r"attn_bias\[None\] gives it a batch axis"):
        dot_product_attention(query, key, value, attn_bias=bias)
    output, _ = dot_product_attention(query, key, value, attn_bias=bias[None])
    expected, _ = oracles.attention(query, key, value, attn_bias=bias[None])
    np.testing.assert_allclose(output, expected, rtol=1e-6)


@BOTH_PATHS
@pytest.mark.parametrize("hide", ["nothing", "causal", "lens, causal", "mask of samples", "hidden sample"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (6, 3), (3, 1), (6, 6)])
def test_heads_in_groups(heads, kv_heads, hide, need_weights):
    parts, given = HIDING[hide], parts_of(heads, kv_heads)
    output, weights = dot_product_attention(*given, need_weights=need_weights, **parts)
    expected, expected_weights = oracles.attention(*given, **parts)
    np.testing.assert_allclose(output, expected, rtol=1e-10, atol=1e-12)
    if need_weights:
        assert weights.shape == (BATCH, heads, Q_LEN, K_LEN)
        np.testing.assert_allclose(weights, expected_weights, rtol=1e-10, atol=1e-15)


def test_gradients_of_shared_heads_add_up():
    query, key, value = parts_of(6, 2)
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


@BOTH_PATHS
@pytest.mark.parametrize(
    "asked", [{"scale": 0.3}, {"scale": 2}, {"softcap": 0.7}, {"softcap": 50.0, "scale": 1.5}], ids=str
)
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal", "hidden sample"])  # fmt: skip
def test_another_scale_and_a_cap(hide, asked, need_weights):
    parts, given = HIDING_HEADS[hide], parts_of()
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
def test_the_cap_holds_scores_only(need_weights):
    """Order: the cap, then the bias, then the mask. A bias of 9 stays 9, and a hidden key hidden."""
    query, key = torch.full((1, 1, 1), 100.0), torch.ones(1, 3, 1)
    value = torch.tensor([[[1.0], [0.0], [50.0]]])
    bias, mask = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[True, True, False]])
    output, _ = dot_product_attention(
        query, key, value, mask, attn_bias=bias, softcap=0.5, need_weights=need_weights
    )
    assert output.item() == pytest.approx(1 / (1 + math.exp(-9)), rel=1e-6)


@BOTH_PATHS
@pytest.mark.parametrize("window", [(2, 0), (0, 0), (1, 2), (None, 1), (3, None)], ids=str)  # fmt: skip
def test_attention_in_a_window(window, need_weights):
    given, (left, right) = parts_of(), window
    output, _ = dot_product_attention(
        *given, sliding_window_mask(Q_LEN, K_LEN, left=left, right=right), need_weights=need_weights
    )
    expected, _ = oracles.attention(*given, window=window)
    np.testing.assert_allclose(output, expected, rtol=1e-10, atol=1e-12)


# MultiHeadAttention: bias, groups, scoring rules, rotary


@BOTH_PATHS
@pytest.mark.parametrize("bias", ["of pairs", "of everything", "of heads"])
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal"])
def test_the_layer_adds_a_bias(hide, bias, need_weights):
    layer, inputs, parts = make_layer(bias=True), make_inputs(), HIDING_HEADS[hide]
    output, _ = layer(*inputs, attn_bias=BIASES[bias], need_weights=need_weights, **parts)  # fmt: skip
    expected, _ = oracles.multi_head(*inputs, layer.state_dict(), HEADS, attn_bias=BIASES[bias], **parts)
    np.testing.assert_allclose(output.detach(), expected, rtol=1e-10, atol=1e-12)


@BOTH_PATHS
def test_as_many_key_heads_as_heads_is_plain_multi_head(need_weights):
    plain, grouped = make_layer(bias=True), make_layer(bias=True, num_kv_heads=HEADS)
    assert plain.state_dict().keys() == grouped.state_dict().keys()
    assert repr(plain) == repr(grouped)
    grouped.load_state_dict(plain.state_dict())
    inputs, hide = make_inputs(), HIDING_HEADS["mask of heads, lens, causal"]
    (own, own_weights), (other, other_weights) = (
        layer(*inputs, need_weights=need_weights, **hide) for layer in (grouped, plain)
    )
    assert torch.equal(own, other)
    if need_weights:
        assert torch.equal(own_weights, other_weights)


@BOTH_PATHS
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
def test_shared_heads_are_plain_heads_with_equal_matrices(num_kv_heads, need_weights):
    """Rows of the key and value matrices, repeated for each head of a group, give the same layer."""
    torch.manual_seed(0)
    grouped = MultiHeadAttention(30, 6, num_kv_heads=num_kv_heads, bias=True).double()
    plain = MultiHeadAttention(30, 6, bias=True).double()
    weights = grouped.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        heads = weights[name].unflatten(0, (num_kv_heads, 5))
        weights[name] = heads.repeat_interleave(6 // num_kv_heads, 0).flatten(0, 1)
    plain.load_state_dict(weights)
    query, memory = random(BATCH, Q_LEN, 30), random(BATCH, K_LEN, 30, seed=1)
    own, other = (
        layer(query, memory, memory, valid_lens=LENS, need_weights=need_weights)[0]
        for layer in (grouped, plain)
    )
    torch.testing.assert_close(own, other)


def cosine(q, k):
    return oracles.dot(q, k) / math.sqrt(oracles.dot(q, q) * oracles.dot(k, k))


def additive(module):
    w_q, w_k, w_s = (oracles.doubles(p) for p in module.parameters())
    return lambda q, k: oracles.dot(w_s[0], np.tanh(w_q @ q + w_k @ k))


def bilinear(module):
    (weight,) = (oracles.doubles(p) for p in module.parameters())
    return lambda q, k: oracles.dot(q, weight @ k)


RULES = {
    "cosine": (lambda: cosine_score, lambda _: cosine),
    "dot": (lambda: dot_product_score, lambda _: oracles.dot),
    "gaussian": (
        lambda: functools.partial(gaussian_score, bandwidth=2.0),
        lambda _: lambda q, k: -oracles.dot(q - k, q - k) / 8,
    ),
    "additive": (lambda: AdditiveScore(HEAD_DIM, HEAD_DIM, 17), additive),
    "bilinear": (lambda: BilinearScore(HEAD_DIM, HEAD_DIM), bilinear),
}


@BOTH_PATHS
@pytest.mark.parametrize("num_kv_heads", [HEADS, 1])
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal", "hidden sample"])  # fmt: skip
@pytest.mark.parametrize("name", RULES)
def test_a_layer_with_another_scoring_rule(name, hide, num_kv_heads, need_weights):
    make, rule_of = RULES[name]
    rule, parts = make(), HIDING_HEADS[hide]
    layer = make_layer(score=rule, num_kv_heads=num_kv_heads)
    inputs = make_inputs()
    for bias in (None, BIAS):
        output, weights = layer(*inputs, attn_bias=bias, need_weights=need_weights, **parts)  # fmt: skip
        expected, expected_weights = oracles.multi_head(
            *inputs, layer.state_dict(), HEADS, num_kv_heads, rule=rule_of(rule), attn_bias=bias, **parts
        )  # fmt: skip
        np.testing.assert_allclose(output.detach(), expected, rtol=1e-9, atol=1e-11)
        assert (weights is not None) == need_weights
        if need_weights:
            np.testing.assert_allclose(weights.detach(), expected_weights, rtol=1e-9, atol=1e-13)


def test_a_scoring_module_belongs_to_the_layer_and_learns():
    layer = make_layer(score=AdditiveScore(HEAD_DIM, HEAD_DIM, 17))
    names = [name for name, _ in layer.named_parameters() if name.startswith("score.")]
    assert names == [f"score.{part}_proj.weight" for part in ("query", "key", "score")]
    for need_weights in (True, False):
        layer.zero_grad()
        layer(*make_inputs(), need_weights=need_weights)[0].square().sum().backward()
        assert all(p.grad.abs().sum() > 0 for p in layer.parameters())


def test_the_scaled_dot_product_as_a_rule_is_the_default():
    plain, ruled = make_layer(), make_layer(score=scaled_dot_product_score)
    for own, other in zip(ruled(*make_inputs()), plain(*make_inputs()), strict=True):
        torch.testing.assert_close(own, other)


def test_a_rule_sees_all_heads_at_once():
    shapes = []

    def rule(query, key):
        shapes.append((tuple(query.shape), tuple(key.shape)))
        return scaled_dot_product_score(query, key)

    make_layer(score=rule, num_kv_heads=1)(*make_inputs())
    assert shapes == [((BATCH, HEADS, Q_LEN, HEAD_DIM), (BATCH, HEADS, K_LEN, HEAD_DIM))]


@pytest.mark.parametrize(
    "rule",
    [
        lambda q, k: (q @ k.mT)[..., :-1], lambda q, k: (q @ k.mT)[..., :1],
        lambda q, k: (q @ k.mT)[:, :, :1], lambda q, k: (q @ k.mT)[:, :1],
        lambda q, k: (q @ k.mT)[:1], lambda q, k: (q @ k.mT)[:, 0],
        lambda q, k: k @ q.mT, lambda q, k: q,
    ],
    ids=["keys", "one key", "one query", "one head", "one sample", "no heads", "transposed", "query"],
)  # fmt: skip
def test_scores_of_another_shape_are_refused(rule):
    """Those that broadcast would give an answer, and a wrong one."""
    with pytest.raises(ValueError, match="score"):
        make_layer(score=rule)(*make_inputs())


@pytest.mark.parametrize("mask", [None, bools(Q_LEN, K_LEN)], ids=["", "mask"])
def test_what_a_rule_returns_is_not_modified(mask, monkeypatch):
    """It may be a tensor that the rule keeps, such as scores that were computed before."""
    monkeypatch.setattr(_paths, "_WORTH_REUSING", 0)
    kept = random(BATCH, HEADS, Q_LEN, K_LEN)
    before = kept.clone()
    with torch.no_grad():
        _, weights = make_layer(score=lambda q, k: kept)(*make_inputs(), mask)
    assert torch.equal(kept, before)
    torch.testing.assert_close(weights, masked_softmax(before, mask))


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize(
    "mask",
    [None, causal_mask(Q_LEN, K_LEN), all_but(bools(BATCH, HEADS, Q_LEN, K_LEN), 0, 1, 3)],
    ids=["nothing", "some of each row", "a whole row"],
)  # fmt: skip
def test_scores_whose_memory_is_used_again(mask, is_trained, monkeypatch):
    """Large scores make room for their weights. The numbers are the same, and the derivatives."""
    sizes = ((Q_LEN, HEAD_DIM), (K_LEN, HEAD_DIM), (K_LEN, VALUE_DIM))
    inputs = [random(BATCH, HEADS, *size, seed=i).requires_grad_(is_trained) for i, size in enumerate(sizes)]
    results = []
    for least in (1 << 40, 0):
        monkeypatch.setattr(_paths, "_WORTH_REUSING", least)
        output, weights = dot_product_attention(*inputs, mask)
        results.append([output, weights])
        if is_trained:
            upstream = random(*output.shape, seed=3)
            results[-1] += torch.autograd.grad(output, inputs, upstream)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("result", [None, [1.0], torch.ones(1).long()], ids=str)
def test_scores_that_are_none_are_refused(result):
    with pytest.raises(TypeError, match="score"):
        make_layer(score=lambda q, k: result)(*make_inputs())


def make_turning_layer(**options):
    torch.manual_seed(0)
    rotary = RotaryPositionalEncoding(14)
    layer = MultiHeadAttention(HEADS * 14, HEADS, bias=True, rotary=rotary, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.double()


@BOTH_PATHS
@pytest.mark.parametrize("num_kv_heads", [HEADS, 1])
@pytest.mark.parametrize(("q_len", "k_len"), [(5, 5), (5, 7), (1, 7), (7, 5), (5, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_layer_turns_queries_and_keys(is_causal, q_len, k_len, num_kv_heads, need_weights):  # fmt: skip
    """Queries and keys end together; values are not turned."""
    layer = make_turning_layer(num_kv_heads=num_kv_heads)
    query, memory = (random(BATCH, n, HEADS * 14, seed=n) for n in (q_len, k_len))
    output, _ = layer(query, memory, memory, is_causal=is_causal, need_weights=need_weights)  # fmt: skip
    expected, _ = oracles.multi_head(
        query, memory, memory, layer.state_dict(), HEADS, num_kv_heads,
        turn=lambda x, first: oracles.rotated(x, first=first), is_causal=is_causal,
    )  # fmt: skip
    np.testing.assert_allclose(output.detach(), expected, rtol=0, atol=2e-6)


@BOTH_PATHS
def test_a_turning_layer_sees_distances_only(need_weights):
    """More tokens before the text, which nobody sees, move all positions and change nothing."""
    layer, x = make_turning_layer(), random(BATCH, Q_LEN, HEADS * 14)
    before = random(BATCH, 6, HEADS * 14, seed=1)
    alone, _ = layer(x, x, x, is_causal=True, need_weights=need_weights)
    longer = torch.cat((before, x), dim=1)
    mask = (torch.arange(6 + Q_LEN) >= 6).expand(Q_LEN, -1)
    moved, _ = layer(x, longer, longer, mask, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(moved, alone, rtol=0, atol=1e-5)
    swapped = x.flip(1)
    turned, _ = layer(x[:, -1:], swapped, swapped, need_weights=need_weights)
    plain, _ = layer(x[:, -1:], x, x, need_weights=need_weights)
    assert (turned - plain).abs().max() > 0.01


def test_shaw_in_the_layer():
    """With a table of zeros it is the scaled dot product, and with another it is not."""
    plain, layer = make_layer(), make_layer(score=ShawScore(HEAD_DIM, 2).double())
    layer.load_state_dict(plain.state_dict(), strict=False)
    inputs = make_inputs()
    expected, _ = plain(*inputs)
    assert (layer(*inputs)[0] - expected).abs().max() > 0.01
    nn.init.zeros_(layer.score.table)
    torch.testing.assert_close(layer(*inputs)[0], expected)


@pytest.mark.parametrize("is_causal", [False, True])
def test_few_keys_get_a_mask(is_causal, monkeypatch):
    """With fewer keys than the widest processor adds at once, 16, torch's kernel would hide a NaN."""
    fused, given = torch.nn.functional.scaled_dot_product_attention, []

    def watch(query, key, value, mask=None, **options):
        given.append(mask is not None)
        return fused(query, key, value, mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    for length in (1, 15, 16, 17):
        x = random(BATCH, length, HEAD_DIM, dtype=torch.float32)
        dot_product_attention(x, x, x, is_causal=is_causal, need_weights=False)
    assert given == [True, True, False, False]


class Largest(TorchDispatchMode):
    """The largest number of elements that an operation returned inside the block."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        # What is expanded takes no memory of its own.
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tensors]
        self.numel = max([self.numel, *sizes])
        return result


@pytest.mark.parametrize("hide", ["nothing", "lengths", "causal", "causal and lengths"])
@pytest.mark.parametrize("leading", [(BATCH,), (BATCH, HEADS)], ids=str)
@pytest.mark.parametrize("backward", [False, True])
def test_without_weights_no_tensor_holds_them(leading, hide, backward, monkeypatch):
    """Neither of all pairs, nor a mask of all pairs."""
    if hide == "causal and lengths":
        monkeypatch.setattr(_paths, "_CAUSAL_BLOCK", 64)
    length, width = 509, 8
    x = random(*leading, length, width, dtype=torch.float32).requires_grad_(backward)
    options = {
        "nothing": {},
        "lengths": {"valid_lens": torch.tensor([length - 1, 3])},
        "causal": {"is_causal": True},
        "causal and lengths": {"is_causal": True, "valid_lens": torch.tensor([length - 1, 3])},
    }[hide]
    with Largest() as fused:
        output, _ = dot_product_attention(x, x, x, need_weights=False, **options)
        if backward:
            output.sum().backward()
    with Largest() as readable:
        dot_product_attention(x, x, x, **options)
    assert readable.numel >= math.prod(leading) * length**2
    assert fused.numel < length**2


@pytest.mark.parametrize("num_kv_heads", [HEADS, 1])
@pytest.mark.parametrize("lens", [None, (K_LEN, 2)])
@pytest.mark.parametrize(
    ("q_len", "k_len"), [(17, 17), (17, 23), (23, 17), (40, 6), (6, 40), (11, 1), (0, 5)]
)
def test_causal_queries_in_blocks(q_len, k_len, lens, num_kv_heads, monkeypatch):
    """Where no mask of all pairs is built, outputs and gradients are those of the readable path."""
    monkeypatch.setattr(_paths, "_CAUSAL_BLOCK", 5)
    sizes = ((HEADS, q_len, HEAD_DIM), (num_kv_heads, k_len, HEAD_DIM), (num_kv_heads, k_len, 13))
    inputs = [random(BATCH, *size, seed=i).requires_grad_() for i, size in enumerate(sizes)]
    lens = None if lens is None else torch.tensor(lens).clamp(max=k_len)
    options = {"valid_lens": lens, "is_causal": True}
    found, _ = dot_product_attention(*inputs, need_weights=False, **options)
    wanted, _ = dot_product_attention(*inputs, **options)
    torch.testing.assert_close(found, wanted)
    upstream = random(*wanted.shape, seed=7)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, upstream), torch.autograd.grad(wanted, inputs, upstream)
    )


@BOTH_PATHS
def test_a_hidden_row_leaves_other_samples_alone(need_weights):
    """Even where the visible scores are the smallest numbers that there are."""
    x = random(BATCH, HEADS, Q_LEN, HEAD_DIM, dtype=torch.float32)
    bias = torch.full((Q_LEN, Q_LEN), torch.finfo(torch.float32).min)
    sees_some = torch.tensor([2, 1])
    options = {"attn_bias": bias, "need_weights": need_weights}
    wanted, _ = dot_product_attention(x, x, x, valid_lens=sees_some, **options)
    output, weights = dot_product_attention(x, x, x, valid_lens=sees_some * torch.tensor([1, 0]), **options)
    torch.testing.assert_close(output[0], wanted[0])
    assert (output[1] == 0).all()
    if need_weights:
        assert weights.sum(-1)[0].allclose(torch.ones(HEADS, Q_LEN))


@pytest.mark.parametrize("hide", ["nothing", "lengths of a batch", "causal"])
def test_forward_derivatives_equal_backward_ones(hide):
    lens = {"lengths of a batch": torch.tensor([3, 0])}.get(hide)
    x, direction = (random(BATCH, K_LEN, HEAD_DIM), random(BATCH, K_LEN, HEAD_DIM, seed=1))

    def attend(x):
        options = {"valid_lens": lens, "is_causal": hide == "causal"}
        return dot_product_attention(x, x, x, **options)[0]

    _, forward = torch.func.jvp(attend, (x,), (direction,))
    jacobian = torch.autograd.functional.jacobian(attend, x)
    wanted = torch.tensordot(jacobian, direction, dims=3)
    torch.testing.assert_close(forward, wanted)


def test_a_function_as_rule_gets_half_precision_as_float32():
    """Products beyond 65504 overflow in half precision, and their softmax would be NaN."""
    layer = make_layer(score=dot_product_score).half()
    seen = []
    layer.score = lambda q, k: seen.append((q.dtype, k.dtype)) or dot_product_score(q, k)
    query, key, value = (x.half() * 100 for x in make_inputs())
    output, _ = layer(query, key, value)
    assert seen == [(torch.float32, torch.float32)]
    assert output.dtype == torch.float16
    assert output.isfinite().all()


def test_copying_torchs_layer_draws_nothing():
    layer, state = nn.MultiheadAttention(6, 3), torch.random.get_rng_state()
    MultiHeadAttention.from_torch(layer)
    assert torch.equal(torch.random.get_rng_state(), state)
