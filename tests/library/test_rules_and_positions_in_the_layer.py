"""The multi-head layer with another scoring rule, and with rotary or relative positions."""

import functools

import numpy as np
import oracles
import pytest
import torch
from attention_cases import BIAS, HIDING_HEADS
from attention_layers import make_inputs, make_layer
from attention_marks import BOTH_PATHS
from attention_sizes import BATCH, HEAD_DIM, HEADS, K_LEN, Q_LEN
from random_tensors import random
from torch import nn

import mha_lib

RULES = {
    "cosine": (lambda: mha_lib.cosine_score, lambda _: oracles.cosine),
    "dot": (lambda: mha_lib.dot_product_score, lambda _: oracles.dot),
    "the default": (lambda: mha_lib.scaled_dot_product_score, lambda _: None),
    "gaussian": (
        lambda: functools.partial(mha_lib.gaussian_score, bandwidth=2.0),
        lambda _: lambda q, k: -oracles.dot(q - k, q - k) / 8,
    ),
    "additive": (lambda: mha_lib.AdditiveScore(HEAD_DIM, HEAD_DIM, 17), oracles.additive),
    "bilinear": (lambda: mha_lib.BilinearScore(HEAD_DIM, HEAD_DIM), oracles.bilinear),
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
    layer = make_layer(score=mha_lib.AdditiveScore(HEAD_DIM, HEAD_DIM, 17))
    names = [name for name, _ in layer.named_parameters() if name.startswith("score.")]
    assert names == [f"score.{part}_proj.weight" for part in ("query", "key", "score")]
    for need_weights in (True, False):
        layer.zero_grad()
        layer(*make_inputs(), need_weights=need_weights)[0].square().sum().backward()
        assert all(p.grad.abs().sum() > 0 for p in layer.parameters())


@BOTH_PATHS
def test_a_softcap_bends_the_scores_of_a_rule(need_weights):
    """The cap is applied to what the rule gives, as if it were part of the rule."""
    capped = make_layer(score=mha_lib.cosine_score, softcap=0.3)
    expected = make_layer(score=lambda q, k: mha_lib.softcap_scores(mha_lib.cosine_score(q, k), 0.3))
    found, wanted = (layer(*make_inputs(), need_weights=need_weights) for layer in (capped, expected))
    torch.testing.assert_close(found, wanted)


def test_a_rule_sees_all_heads_at_once():
    shapes = []

    def rule(query, key):
        shapes.append((tuple(query.shape), tuple(key.shape)))
        return mha_lib.scaled_dot_product_score(query, key)

    make_layer(score=rule, num_kv_heads=1)(*make_inputs())
    assert shapes == [((BATCH, HEADS, Q_LEN, HEAD_DIM), (BATCH, HEADS, K_LEN, HEAD_DIM))]


@pytest.mark.parametrize(
    "rule",
    [lambda q, k: (q @ k.mT)[..., :-1], lambda q, k: (q @ k.mT)[..., :1],
        lambda q, k: (q @ k.mT)[:, :, :1], lambda q, k: (q @ k.mT)[:, :1],
        lambda q, k: (q @ k.mT)[:1], lambda q, k: (q @ k.mT)[:, 0], lambda q, k: k @ q.mT, lambda q, k: q],
    ids=["keys", "one key", "one query", "one head", "one sample", "no heads", "transposed", "query"],
)  # fmt: skip
def test_scores_of_another_shape_are_refused(rule):
    """Scores that broadcast would give a wrong result without an error."""
    with pytest.raises(ValueError, match="score"):
        make_layer(score=rule)(*make_inputs())


@pytest.mark.parametrize("result", [None, [1.0], torch.ones(1).long()], ids=str)
def test_a_rule_that_returns_no_scores_is_refused(result):
    with pytest.raises(TypeError, match="score"):
        make_layer(score=lambda q, k: result)(*make_inputs())


def make_rotary_layer(**options):
    rotary = mha_lib.RotaryPositionalEncoding(14)
    torch.manual_seed(0)
    layer = mha_lib.MultiHeadAttention(HEADS * 14, HEADS, bias=True, rotary=rotary, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.double()


@BOTH_PATHS
@pytest.mark.parametrize("num_kv_heads", [HEADS, 1])
@pytest.mark.parametrize(("q_len", "k_len"), [(5, 5), (5, 7), (1, 7), (7, 5), (5, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_layer_rotates_queries_and_keys(is_causal, q_len, k_len, num_kv_heads, need_weights):  # fmt: skip
    """Queries and keys end together; values are not rotated."""
    layer = make_rotary_layer(num_kv_heads=num_kv_heads)
    query, memory = (random(BATCH, n, HEADS * 14, seed=n) for n in (q_len, k_len))
    output, _ = layer(query, memory, memory, is_causal=is_causal, need_weights=need_weights)  # fmt: skip
    expected, _ = oracles.multi_head(
        query, memory, memory, layer.state_dict(), HEADS, num_kv_heads,
        turn=lambda x, first: oracles.rotated(x, first=first), is_causal=is_causal,
    )  # fmt: skip
    np.testing.assert_allclose(output.detach(), expected, rtol=0, atol=2e-6)


def test_shaw_in_the_layer():
    """With a table of zeros the score is the scaled dot product, with another table it is not."""
    plain, layer = make_layer(), make_layer(score=mha_lib.ShawScore(HEAD_DIM, 2).double())
    layer.load_state_dict(plain.state_dict(), strict=False)
    inputs = make_inputs()
    expected, _ = plain(*inputs)
    assert (layer(*inputs)[0] - expected).abs().max() > 0.01
    nn.init.zeros_(layer.score.table)
    torch.testing.assert_close(layer(*inputs)[0], expected)
