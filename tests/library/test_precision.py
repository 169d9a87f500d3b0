"""Every dtype on both paths: half precision, numbers at the edge of what a dtype holds, autocast.

The expected results come from the slow loop; where the loop cannot be used, from the readable path in
float64, which was checked against the loop.
"""

import copy
import itertools
import math

import pytest
import torch
from attention_cases import ASKED, BIAS, EACH_ASKED, FUSED, LENS, exact, exact_for, qkv
from attention_layers import EACH_KIND, even_inputs, layer_of, make_inputs, make_layer
from attention_marks import BOTH_PATHS, DTYPES, ERRORS, HALVES
from attention_sizes import HEAD_DIM, K_LEN, Q_LEN, VALUE_DIM
from random_tensors import differentiable, gradients

from mha_lib import dot_product_attention, dot_product_score


@BOTH_PATHS
@DTYPES
@EACH_ASKED
@pytest.mark.parametrize(
    "shapes", [{}, {"kv_heads": 1}, {"value_dim": VALUE_DIM}], ids=["own keys", "shared keys", "wider values"]
)
def test_attention_in_every_dtype_equals_the_loop(shapes, asked, dtype, need_weights):
    output, weights = dot_product_attention(*qkv(dtype, **shapes), need_weights=need_weights, **ASKED[asked])
    expected, expected_weights = exact_for(asked, dtype, **shapes)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, rtol=ERRORS[dtype], atol=ERRORS[dtype])
    if need_weights:
        assert weights.dtype == dtype
        torch.testing.assert_close(weights.double(), expected_weights, rtol=ERRORS[dtype], atol=ERRORS[dtype])
        assert (weights[expected_weights == 0] == 0).all()
    hidden = (expected_weights == 0).all(-1)
    assert bool(hidden.any()) == ("hidden" in asked)
    assert (output[hidden] == 0).all()


@BOTH_PATHS
@pytest.mark.parametrize(("dtype", "bias_dtype"), [
    pair
    for pair in itertools.product((torch.float64, torch.float32, *HALVES), repeat=2)
    if set(pair) != set(HALVES)  # no model mixes these two
], ids=str)  # fmt: skip
@pytest.mark.parametrize("hide", [{}, {"is_causal": True}], ids=["", "causal"])
def test_a_bias_of_any_dtype(hide, dtype, bias_dtype, need_weights):
    """float32 biases come from ALiBi whatever the model's dtype; the sum is not rounded to half precision."""
    query, key, value = qkv(dtype)
    bias = BIAS.to(bias_dtype)
    output, _ = dot_product_attention(query, key, value, attn_bias=bias, need_weights=need_weights, **hide)
    expected, _ = exact(query, key, value, attn_bias=bias, **hide)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, rtol=ERRORS[dtype], atol=ERRORS[dtype])


@BOTH_PATHS
@DTYPES
@EACH_KIND
def test_a_layer_in_every_dtype(kind, dtype, need_weights):
    layer, given = layer_of(kind, dtype).eval(), even_inputs(dtype)
    output, weights = layer(*given, is_causal=True, need_weights=need_weights)
    assert output.dtype == dtype
    assert weights is None or weights.dtype == dtype
    wide = copy.deepcopy(layer).double()
    expected, _ = wide(*(x.double() for x in given), is_causal=True)
    error = {torch.float64: 0, torch.float32: 1e-5, torch.float16: 0.05, torch.bfloat16: 0.4}  # fmt: skip
    torch.testing.assert_close(output.double(), expected, rtol=1e-9, atol=max(1e-9, error[dtype]))
    output.float().square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == dtype
        assert parameter.grad.isfinite().all()


def stretched(part, q_len, k_len):
    """A mask, bias or lengths for other numbers of queries and keys: the old one, repeated."""
    if not isinstance(part, torch.Tensor) or part.ndim == 1:
        return part
    if part.shape[-2] > 1:
        part = part[..., torch.arange(q_len) % part.shape[-2], :]
    return part[..., torch.arange(k_len) % part.shape[-1]]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("asked", FUSED)
@pytest.mark.parametrize(("q_len", "k_len", "size"), [(5, 7, 1), (67, 131, 1), (67, 131, 4)])
def test_the_fast_path_is_at_most_twice_as_inaccurate(q_len, k_len, size, asked, dtype):
    """As FlashAttention is judged: its largest error against float64 next to that of the plain formula."""
    parts = dict(ASKED[asked])
    if (q_len, k_len) != (Q_LEN, K_LEN):
        parts = {name: stretched(part, q_len, k_len) for name, part in parts.items()}
    query, key, value = qkv(dtype, q_len=q_len, k_len=k_len)
    given = query * size, key, value
    expected, _ = dot_product_attention(*(x.double() for x in given), **parts)
    errors = []
    for need_weights in (True, False):
        output, _ = dot_product_attention(*given, need_weights=need_weights, **parts)
        errors.append((output - expected).abs().max().item())
    readable, fused = errors
    assert 0 < readable < 0.02
    assert fused <= 2 * readable


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", [1, 4])
def test_gradients_are_at_most_twice_as_inaccurate(size, is_causal, dtype):
    """The reference is the usual formula in half precision, since the readable path is more precise."""

    def usual(query, key, value):
        scores = (query / math.sqrt(HEAD_DIM)) @ key.mT
        if is_causal:
            scores = scores.masked_fill(torch.ones(67, 67).triu(1).bool(), -math.inf)
        return scores.softmax(-1) @ value

    def errors(attend):
        given = differentiable(small)
        own = gradients(attend(*given), given)
        return [(g - e).abs().max().item() for g, e in zip(own, expected, strict=True)]

    query, key, value = qkv(dtype, q_len=67, k_len=67)
    small = query * size, key, value
    wide = differentiable([x.double() for x in small])
    expected = gradients(usual(*wide), wide)
    allowed = [2 * error for error in errors(usual)]
    for need_weights in (True, False):
        rest = {"is_causal": is_causal, "need_weights": need_weights}
        own = errors(lambda *qkv, rest=rest: dot_product_attention(*qkv, **rest)[0])
        assert all(error <= most for error, most in zip(own, allowed, strict=True))


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


@BOTH_PATHS
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("hide", [{}, {"valid_lens": torch.tensor([2])}], ids=["", "lens"])  # fmt: skip
@pytest.mark.parametrize("k_len", [3, 37])
def test_scores_beyond_65504_after_the_scaling(k_len, hide, dtype, need_weights):
    """Scores of ±1.8e6 are infinite in float16; computed in float32, the larger one takes everything."""
    query = torch.full((1, 1, 1, 64), 480.0, dtype=dtype)
    key = -torch.ones(1, 1, k_len, 64, dtype=dtype) * 480
    key[0, 0, 1] *= -1
    value = torch.arange(1.0, k_len + 1).to(dtype)[None, None, :, None]
    given = differentiable((query, key, value))
    output, _ = dot_product_attention(*given, need_weights=need_weights, **hide)
    assert output.item() == 2.0
    for_query, for_key, for_value = gradients(output, given)
    assert for_query.isfinite().all() and for_key.isfinite().all()
    assert for_value.flatten().tolist() == [-1.0 * (j == 1) for j in range(k_len)]


@BOTH_PATHS
@DTYPES
@pytest.mark.parametrize("k_len", [3, 37])
@pytest.mark.parametrize("by", ["scores", "bias"])
def test_the_smallest_visible_scores_win_against_hidden_ones(by, k_len, dtype, need_weights):
    """A fill of -1e9 for hidden keys would win against visible scores of -1e9, or share with them."""
    low = -6e4 if dtype == torch.float16 and by == "scores" else -2e9
    value = torch.arange(1.0, k_len + 1).to(dtype)[None, :, None]
    mask = torch.zeros(1, k_len, dtype=torch.bool)
    mask[0, 1] = True
    if by == "scores":
        query = torch.ones(1, 1, 1, dtype=dtype)
        key = torch.zeros(1, k_len, 1, dtype=dtype)
        key[0, 1] = low
        asked = {}
    else:
        query, key = (torch.zeros(1, n, 1, dtype=dtype) for n in (1, k_len))
        bias = torch.zeros(1, k_len, dtype=torch.promote_types(dtype, torch.float32))
        bias[0, 1] = low
        asked = {"attn_bias": bias}
    output, weights = dot_product_attention(query, key, value, mask, need_weights=need_weights, **asked)
    assert output.item() == 2
    if need_weights:
        assert weights.flatten().tolist() == [float(j == 1) for j in range(k_len)]


@BOTH_PATHS
@pytest.mark.parametrize("low", [-3e38, -1e300], ids=str)
def test_a_bias_beyond_what_the_scores_can_hold(low, need_weights):
    """The bias does not become -inf, which would make a row hidden or NaN."""
    query, key, value = qkv(torch.float32)
    bias = torch.full((Q_LEN, K_LEN), low, dtype=torch.float64)
    bias[:, 2] = 0
    bias[3] = low
    output, _ = dot_product_attention(query, key, value, attn_bias=bias, need_weights=need_weights)
    assert output.isfinite().all()
    seen = [row for row in range(Q_LEN) if row != 3]
    torch.testing.assert_close(output[:, :, seen], value[:, :, 2:3].expand(-1, -1, len(seen), -1))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@EACH_KIND
def test_autocast_gives_the_same_dtypes_on_both_paths(kind, dtype):
    layer, given = layer_of(kind, torch.float32).eval(), even_inputs(torch.float32)
    exact_output, _ = copy.deepcopy(layer).double()(*(x.double() for x in given), valid_lens=LENS)
    outputs = []
    for need_weights in (True, False):
        with torch.autocast("cpu", dtype=dtype):
            output, weights = layer(*given, valid_lens=LENS, need_weights=need_weights)
        assert output.dtype == dtype
        assert weights is None or weights.dtype == dtype
        torch.testing.assert_close(output.double(), exact_output, rtol=0, atol=0.4)
        outputs.append(output)
        output.float().square().sum().backward()
        for parameter in layer.parameters():
            assert parameter.grad.dtype == torch.float32
            assert parameter.grad.isfinite().all()
        layer.zero_grad()
    torch.testing.assert_close(*outputs, rtol=0, atol=100 * torch.finfo(dtype).eps)


@BOTH_PATHS
def test_autocast_rounds_neither_scores_nor_bias(need_weights):
    """In bfloat16 a bias of 1001 would become 1000, and two unequal keys equal."""
    query, key = torch.zeros(1, 1, 2), torch.zeros(1, 2, 2)
    value = torch.tensor([[[0.0], [1.0]]])
    bias = torch.tensor([[1000.0, 1001.0]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = dot_product_attention(query, key, value, attn_bias=bias, need_weights=need_weights)
    assert output.dtype == torch.bfloat16
    assert output.item() == pytest.approx(1 / (1 + math.exp(-1)), abs=0.003)


@BOTH_PATHS
def test_autocast_leaves_float64_alone(need_weights):
    given = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = dot_product_attention(*given, need_weights=need_weights)
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, exact(*given)[0])


@BOTH_PATHS
def test_autocast_that_is_switched_off_changes_nothing(need_weights):
    given = qkv(torch.float32)
    plain, _ = dot_product_attention(*given, need_weights=need_weights)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        output, _ = dot_product_attention(*given, need_weights=need_weights)
    assert torch.equal(output, plain)
