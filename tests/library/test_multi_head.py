"""The multi-head layer: equal to a loop over its heads, and dependent only on what it should depend on."""

import copy
import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from attention_cases import (
    BATCH,
    BIASES,
    BOTH_PATHS,
    EMBED_DIM,
    EVEN_DIM,
    HEAD_DIM,
    HEADS,
    HIDING_HEADS,
    K_LEN,
    KDIM,
    LENS,
    Q_LEN,
    VDIM,
    even_inputs,
    even_layer,
    layer_of,
    make_inputs,
    make_layer,
)
from random_tensors import every_other, generator, offset, random, transposed

from mha_lib import MultiHeadAttention, masked_softmax, scaled_dot_product_score

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


def test_weights_are_those_of_the_composition():
    layer, (query, key, value) = make_layer(), make_inputs()
    _, weights = layer(query, key, value, valid_lens=LENS)
    scores = scaled_dot_product_score(
        layer.split_heads(layer.q_proj(query)), layer.split_heads(layer.k_proj(key))
    )
    torch.testing.assert_close(weights, masked_softmax(scores, valid_lens=LENS))


@BOTH_PATHS
@pytest.mark.parametrize("bias", ["of pairs", "of everything", "of heads"])
@pytest.mark.parametrize("hide", ["nothing", "mask of heads, lens, causal"])
def test_the_layer_adds_a_bias(hide, bias, need_weights):
    layer, inputs, parts = make_layer(bias=True), make_inputs(), HIDING_HEADS[hide]
    output, _ = layer(*inputs, attn_bias=BIASES[bias], need_weights=need_weights, **parts)  # fmt: skip
    expected, _ = oracles.multi_head(*inputs, layer.state_dict(), HEADS, attn_bias=BIASES[bias], **parts)
    np.testing.assert_allclose(output.detach(), expected, rtol=1e-10, atol=1e-12)


# split and merge


def test_split_gives_each_head_its_own_columns():
    layer, x = MultiHeadAttention(EMBED_DIM, HEADS), random(BATCH, Q_LEN, EMBED_DIM)
    heads = layer.split_heads(x)
    assert heads.shape == (BATCH, HEADS, Q_LEN, HEAD_DIM)
    for h in range(HEADS):
        assert torch.equal(heads[:, h], x[:, :, h * HEAD_DIM : (h + 1) * HEAD_DIM])
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(layer.merge_heads(heads), x)


def test_the_projection_of_a_head_is_a_block_of_rows():
    """Changing the query rows of one head changes the weights of only this head."""
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


# groups of heads that share keys and values


@BOTH_PATHS
def test_heads_share_keys_and_values_in_groups(need_weights):
    layer = MultiHeadAttention(30, 6, num_kv_heads=2, bias=True).double()
    query, memory = random(BATCH, Q_LEN, 30), random(BATCH, K_LEN, 30, seed=1)
    assert layer.k_proj.weight.shape == layer.v_proj.weight.shape == (10, 30)
    output, _ = layer(query, memory, memory, is_causal=True, need_weights=need_weights)
    expected, _ = oracles.multi_head(query, memory, memory, layer.state_dict(), 6, 2, is_causal=True)
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
def test_grouped_heads_equal_plain_heads_with_repeated_matrices(num_kv_heads, need_weights):
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


# what the output must and must not depend on


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
def test_a_sample_alone_equals_the_same_sample_in_a_batch(hide, need_weights):
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
def test_no_query_sees_the_future(need_weights):
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


def test_the_last_query_alone_equals_the_last_row():
    layer, x = make_layer(), random(BATCH, K_LEN, EMBED_DIM)
    for need_weights, hide in itertools.product((True, False), ({}, {"valid_lens": LENS})):
        whole, _ = layer(x, x, x, is_causal=True, need_weights=need_weights, **hide)
        last, _ = layer(x[:, -1:], x, x, is_causal=True, need_weights=need_weights, **hide)
        torch.testing.assert_close(last, whole[:, -1:])


# sizes and layouts


@BOTH_PATHS
@pytest.mark.parametrize(
    ("batch", "q_len", "k_len"),
    [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0), (2, 1, 1), (2, 5, 1), (2, 1, 7), (2, 7, 5), (1, 17, 19)],
)  # fmt: skip
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


@BOTH_PATHS
def test_a_layer_takes_any_layout(need_weights):
    layer, given = even_layer(), even_inputs()
    expected, _ = layer(*given, need_weights=need_weights)
    for laid_out in (transposed, every_other, offset):
        output, _ = layer(*(laid_out(x) for x in given), need_weights=need_weights)
        torch.testing.assert_close(output, expected)
    same = given[0][:, :1].expand(-1, Q_LEN, -1)
    output, _ = layer(same, *given[1:], need_weights=need_weights)
    torch.testing.assert_close(output, output[:, :1].expand_as(output))


# parameters


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
