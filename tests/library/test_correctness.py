"""What a user of torch expects of attention: every dtype, layout, transform, device and mode, on both paths.

Answers come from the slow loop; where it cannot go (gradients, compilers), from the readable path in float64,
which the loop has checked. Every axis has another prime size.
"""

import copy
import functools
import itertools
import math
import pickle
import shutil

import numpy as np
import oracles
import pytest
import torch
from random_tensors import bools, random
from torch import nn
from torch.export import Dim, export

from mha_lib import (
    AdditiveScore,
    BilinearScore,
    KeyValueCache,
    MultiHeadAttention,
    alibi_bias,
    attention_pooling,
    cosine_score,
    dot_product_attention,
    masked_softmax,
    scaled_dot_product_score,
    sliding_window_mask,
)
from mha_lib.positional import RotaryPositionalEncoding, ShawScore

BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13
EMBED_DIM = 2 * 3 * 5  # heads of even width, as rotary needs them, and 6 heads in groups
BOTH_PATHS = pytest.mark.parametrize("need_weights", [True, False], ids=["readable", "fused"])
HALVES = (torch.bfloat16, torch.float16)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
# torch.compile looks into every function, also into the shape checks of tests/conftest.py.
TRACED = pytest.mark.no_shape_checks


def some_rows_hidden():
    mask = bools(BATCH, HEADS, Q_LEN, K_LEN)
    mask[0, 1, 3] = mask[1, :, 2] = False
    return mask


LENS = torch.tensor([3, 7])
NO_LENS = torch.tensor([0, 4])
BIAS = random(BATCH, HEADS, Q_LEN, K_LEN, seed=7)
# What else attention may be asked for, beside queries, keys and values.
ASKED = {
    "nothing": {},
    "mask": {"attn_mask": bools(BATCH, HEADS, Q_LEN, K_LEN)},
    "hidden rows": {"attn_mask": some_rows_hidden()},
    "lens": {"valid_lens": LENS},
    "causal": {"is_causal": True},
    "window": {"attn_mask": sliding_window_mask(Q_LEN, K_LEN, left=2, right=1)},
    "bias": {"attn_bias": BIAS},
    "bias of pairs": {"attn_bias": BIAS[0, 0]},
    "bias of keys": {"attn_bias": BIAS[:1, :, :1]},
    "bias, hidden rows": {"attn_bias": BIAS, "attn_mask": some_rows_hidden()},
    "bias, hidden sample, causal": {
        "attn_bias": BIAS[0, 0], "valid_lens": NO_LENS, "is_causal": True
    },
    "bias, causal": {"attn_bias": BIAS, "is_causal": True},
    "scale": {"scale": 0.7},
    "scale, lens, causal": {"scale": 0.1, "valid_lens": LENS, "is_causal": True},
    "softcap": {"softcap": 1.5},
    "all": {
        "attn_mask": bools(BATCH, 1, Q_LEN, K_LEN, seed=3), "valid_lens": LENS, "is_causal": True,
        "attn_bias": BIAS[:, :1], "scale": 0.7, "softcap": 2.0,
    },
}  # fmt: skip
EACH_ASKED = pytest.mark.parametrize("asked", ASKED)
# What the fused kernel computes: a softcap takes the readable path.
FUSED = [name for name, parts in ASKED.items() if "softcap" not in parts]


def inputs(dtype=torch.float64, *, kv_heads=HEADS, q_len=Q_LEN, k_len=K_LEN, value_dim=HEAD_DIM):
    """Query, key and value for `dot_product_attention`.

    Values are as wide as keys: on a CPU torch's fused kernel runs for no others, and its slow formula, which
    has other habits, takes its place.
    """
    shapes = (HEADS, q_len, HEAD_DIM), (kv_heads, k_len, HEAD_DIM)
    shapes += ((kv_heads, k_len, value_dim),)
    return [random(BATCH, *s, seed=n, dtype=dtype) for n, s in enumerate(shapes)]


def differentiable(tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def gradients(output, tensors):
    """Gradients of a sum in which every entry of the output has another factor."""
    factors = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
    return torch.autograd.grad(output, tensors, factors.reshape(output.shape))


def exact(query, key, value, **asked):
    output, weights = oracles.attention(query, key, value, **asked)
    return torch.from_numpy(output), torch.from_numpy(weights)


@functools.cache
def exact_for(asked, dtype=torch.float64, **shapes):
    """The loop's answer for `inputs` of that dtype, (output, weights) in float64."""
    return exact(*inputs(dtype, **shapes), **ASKED[asked])


def make_layer(dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, HEADS, bias=True, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.to(dtype)


def make_inputs(dtype=torch.float64, batch=BATCH, q_len=Q_LEN, k_len=K_LEN):
    lengths = (q_len, k_len, k_len)
    return [random(batch, n, EMBED_DIM, seed=i, dtype=dtype) for i, n in enumerate(lengths)]  # fmt: skip


HEAD_WIDTH = EMBED_DIM // HEADS
LAYERS = {
    "plain": {},
    "shared keys": {"num_kv_heads": 1},
    "rotary": {"rotary": lambda: RotaryPositionalEncoding(HEAD_WIDTH)},
    "cosine": {"score": lambda: cosine_score},
    "scaled otherwise": {"score": lambda: functools.partial(scaled_dot_product_score, scale=0.1)},
    "additive": {"score": lambda: AdditiveScore(HEAD_WIDTH, HEAD_WIDTH, 17)},
    "bilinear": {"score": lambda: BilinearScore(HEAD_WIDTH, HEAD_WIDTH)},
    "Shaw": {"score": lambda: ShawScore(HEAD_WIDTH, 2)},
    "rotary, shared keys, dropout": {
        "rotary": lambda: RotaryPositionalEncoding(HEAD_WIDTH),
        "num_kv_heads": 1,
        "dropout": 0.25,
    },
}
EACH_LAYER = pytest.mark.parametrize("kind", LAYERS)


def layer_of(kind, dtype=torch.float64):
    options = {name: part() if callable(part) else part for name, part in LAYERS[kind].items()}  # fmt: skip
    return make_layer(dtype, **options)


# dtypes

ERRORS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # fmt: skip


@BOTH_PATHS
@DTYPES
@EACH_ASKED
@pytest.mark.parametrize(
    "shapes", [{}, {"kv_heads": 1}, {"value_dim": VALUE_DIM}], ids=["own keys", "shared keys", "wider values"]
)
def test_every_dtype_gives_the_loops_answer_in_its_own_dtype(shapes, asked, dtype, need_weights):
    output, weights = dot_product_attention(
        *inputs(dtype, **shapes), need_weights=need_weights, **ASKED[asked]
    )
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
@pytest.mark.parametrize(
    ("dtype", "bias_dtype"),
    [
        pair
        for pair in itertools.product((torch.float64, torch.float32, *HALVES), repeat=2)
        if set(pair) != set(HALVES)  # these two meet in no model
    ],
    ids=str,
)
@pytest.mark.parametrize("hide", [{}, {"is_causal": True}], ids=["", "causal"])
def test_a_bias_of_any_dtype(hide, dtype, bias_dtype, need_weights):
    """float32 biases come from ALiBi whatever the model's dtype; the sum is not rounded to half precision."""
    query, key, value = inputs(dtype)
    bias = BIAS.to(bias_dtype)
    output, _ = dot_product_attention(query, key, value, attn_bias=bias, need_weights=need_weights, **hide)
    expected, _ = exact(query, key, value, attn_bias=bias, **hide)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, rtol=ERRORS[dtype], atol=ERRORS[dtype])


@BOTH_PATHS
@DTYPES
@EACH_LAYER
def test_a_layer_of_every_dtype(kind, dtype, need_weights):
    layer, given = layer_of(kind, dtype).eval(), make_inputs(dtype)
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


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("asked", FUSED)
@pytest.mark.parametrize(("q_len", "k_len", "size"), [(5, 7, 1), (67, 131, 1), (67, 131, 4)])
def test_the_fused_path_is_at_most_twice_as_far_from_the_truth(q_len, k_len, size, asked, dtype):
    """As FlashAttention is judged: its largest error against float64 next to that of the plain formula."""
    parts = dict(ASKED[asked])
    if (q_len, k_len) != (Q_LEN, K_LEN):
        parts = {name: stretched(part, q_len, k_len) for name, part in parts.items()}
    query, key, value = inputs(dtype, q_len=q_len, k_len=k_len)
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
def test_gradients_are_at_most_twice_as_far_from_the_truth(size, is_causal, dtype):
    """The readable path is more precise than half precision's usual formula, which is the judge here."""

    def usual(query, key, value):
        scores = (query / math.sqrt(HEAD_DIM)) @ key.mT
        if is_causal:
            scores = scores.masked_fill(torch.ones(67, 67).triu(1).bool(), -math.inf)
        return scores.softmax(-1) @ value

    def errors(attend):
        given = differentiable(small)
        own = gradients(attend(*given), given)
        return [(g - e).abs().max().item() for g, e in zip(own, expected, strict=True)]

    query, key, value = inputs(dtype, q_len=67, k_len=67)
    small = query * size, key, value
    wide = differentiable([x.double() for x in small])
    expected = gradients(usual(*wide), wide)
    allowed = [2 * error for error in errors(usual)]
    for need_weights in (True, False):
        own = errors(
            lambda *qkv, way=need_weights: dot_product_attention(*qkv, is_causal=is_causal, need_weights=way)[
                0
            ]
        )
        assert all(error <= most for error, most in zip(own, allowed, strict=True))


def stretched(part, q_len, k_len):
    """A mask, bias or lengths for other numbers of queries and keys: the old one, repeated."""
    if not isinstance(part, torch.Tensor) or part.ndim == 1:
        return part
    if part.shape[-2] > 1:
        part = part[..., torch.arange(q_len) % part.shape[-2], :]
    return part[..., torch.arange(k_len) % part.shape[-1]]


# numbers at the edge of what a dtype holds


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
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_layer_whose_scores_go_beyond_65504(dtype, need_weights):
    layer, given = make_layer(torch.float32), make_inputs(torch.float32)
    with torch.no_grad():
        layer.q_proj.weight *= 200
        layer.k_proj.weight *= 200
    halved = copy.deepcopy(layer).to(dtype)
    queries, keys = (
        halved.split_heads(proj(x.to(dtype))).double()
        for proj, x in ((halved.q_proj, given[0]), (halved.k_proj, given[1]))
    )
    assert (queries @ keys.mT).abs().max() / math.sqrt(HEAD_WIDTH) > 65_504
    plain, _ = halved(*(x.to(dtype) for x in given), need_weights=need_weights)
    with torch.autocast("cpu", dtype=dtype):
        cast, _ = layer(*given, need_weights=need_weights)
    for output in (plain, cast):
        assert output.dtype == dtype
        assert output.isfinite().all()


@BOTH_PATHS
@DTYPES
@pytest.mark.parametrize("k_len", [3, 37])
@pytest.mark.parametrize("by", ["scores", "bias"])
def test_the_smallest_scores_win_where_they_are_all_that_is_visible(by, k_len, dtype, need_weights):
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
    """Not -inf, which would make a row of such a bias hidden or NaN."""
    query, key, value = inputs(torch.float32)
    bias = torch.full((Q_LEN, K_LEN), low, dtype=torch.float64)
    bias[:, 2] = 0
    bias[3] = low
    output, _ = dot_product_attention(query, key, value, attn_bias=bias, need_weights=need_weights)
    assert output.isfinite().all()
    seen = [row for row in range(Q_LEN) if row != 3]
    torch.testing.assert_close(output[:, :, seen], value[:, :, 2:3].expand(-1, -1, len(seen), -1))


# autocast


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@EACH_LAYER
def test_autocast_gives_the_same_dtypes_on_both_paths(kind, dtype):
    layer, given = layer_of(kind, torch.float32).eval(), make_inputs(torch.float32)
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
    given = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = dot_product_attention(*given, need_weights=need_weights)
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, exact(*given)[0])


@BOTH_PATHS
def test_autocast_that_is_switched_off_changes_nothing(need_weights):
    given = inputs(torch.float32)
    plain, _ = dot_product_attention(*given, need_weights=need_weights)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        output, _ = dot_product_attention(*given, need_weights=need_weights)
    assert torch.equal(output, plain)


# how the numbers lie in memory


def transposed(x):
    return x.mT.contiguous().mT


def every_other(x):
    """The same numbers, with others between them."""
    return torch.stack((x, x + 100), dim=-1).flatten(-2)[..., ::2]


def offset(x):
    """The same numbers inside a larger tensor."""
    padded = x.new_full([size + 2 for size in x.shape], 99)
    inner = padded[(slice(1, -1),) * x.ndim]
    return inner.copy_(x)


def heads_last(x):
    """As they come from a projection: (batch, len, heads, width), seen with the heads in front."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@BOTH_PATHS
@pytest.mark.parametrize("laid_out", [transposed, every_other, offset, heads_last])
@pytest.mark.parametrize("asked", ["nothing", "bias, hidden rows", "causal"])
def test_the_layout_in_memory_does_not_matter(asked, laid_out, need_weights):
    parts = {
        name: laid_out(part.double()).to(part.dtype) if name == "attn_bias" else part
        for name, part in ASKED[asked].items()
    }
    given = inputs()
    plain = differentiable(given)
    expected, _ = dot_product_attention(*plain, need_weights=need_weights, **ASKED[asked])
    arranged = [laid_out(x) for x in given]
    assert not any(x.is_contiguous() for x in arranged)
    assert all(torch.equal(*pair) for pair in zip(arranged, given, strict=True))
    for x in arranged:
        x.requires_grad_()
    output, _ = dot_product_attention(*arranged, need_weights=need_weights, **parts)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients(output, arranged), gradients(expected, plain))


@BOTH_PATHS
def test_expanded_inputs(need_weights):
    """One query, key, value, mask and bias for all samples and heads; their gradients add up."""
    query, key, value = (x[:1, :1] for x in inputs())
    mask, bias = bools(1, 1, Q_LEN, K_LEN), BIAS[:1, :1]
    small = differentiable((query, key, value, bias))
    repeated = [x.expand(BATCH, HEADS, -1, -1) for x in (*small, mask)]  # no stride there
    assert repeated[0].stride()[:2] == (0, 0)
    q, k, v, b, m = repeated
    output, _ = dot_product_attention(q, k, v, m, attn_bias=b, need_weights=need_weights)  # fmt: skip
    expected, _ = exact(query, key, value, attn_bias=bias, attn_mask=mask)
    torch.testing.assert_close(output, expected.expand_as(output))
    alone = differentiable((query, key, value, bias))
    single, _ = dot_product_attention(*alone[:3], mask, attn_bias=alone[3])
    for own, one in zip(
        torch.autograd.grad(output.sum(), small), torch.autograd.grad(single.sum(), alone), strict=True
    ):
        torch.testing.assert_close(own, one * BATCH * HEADS)


@BOTH_PATHS
def test_a_layer_takes_any_layout(need_weights):
    layer, given = make_layer(), make_inputs()
    expected, _ = layer(*given, need_weights=need_weights)
    for laid_out in (transposed, every_other, offset):
        output, _ = layer(*(laid_out(x) for x in given), need_weights=need_weights)
        torch.testing.assert_close(output, expected)
    same = given[0][:, :1].expand(-1, Q_LEN, -1)
    output, _ = layer(same, *given[1:], need_weights=need_weights)
    torch.testing.assert_close(output, output[:, :1].expand_as(output))


# sizes at the edge


@BOTH_PATHS
@pytest.mark.parametrize(
    ("batch", "q_len", "k_len"),
    [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0), (2, 1, 1), (2, 5, 1), (2, 1, 7), (2, 7, 5), (1, 17, 19)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["plain", "shared keys", "rotary", "cosine"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_layer_of_any_lengths(is_causal, kind, batch, q_len, k_len, need_weights):
    layer = layer_of(kind)
    given = [x.requires_grad_() for x in make_inputs(batch=batch, q_len=q_len, k_len=k_len)]
    lens = torch.full((batch,), k_len, dtype=torch.long)
    bias = torch.zeros(q_len, k_len)
    for asked in ({}, {"valid_lens": lens}, {"attn_bias": bias}):
        output, weights = layer(*given, is_causal=is_causal, need_weights=need_weights, **asked)
        assert output.shape == (batch, q_len, EMBED_DIM)
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
def test_one_key_takes_everything_whatever_it_is(need_weights):
    query, key, value = inputs(k_len=1)
    for asked in ({}, {"is_causal": True}, {"attn_bias": BIAS[..., :1]}, {"scale": 9.0}):  # fmt: skip
        output, weights = dot_product_attention(query, key, value, need_weights=need_weights, **asked)
        seen = slice(-1, None) if "is_causal" in asked else slice(None)
        torch.testing.assert_close(output[:, :, seen], value.expand(-1, -1, Q_LEN, -1)[:, :, seen])
        if need_weights:
            assert (weights[:, :, seen] == 1).all()


# torch.compile and torch.export


@BOTH_PATHS
@pytest.mark.parametrize("asked", ["nothing", "hidden rows", "bias, hidden sample, causal", "all"])
@TRACED
def test_attention_is_one_graph(asked, need_weights):
    def attend(query, key, value, **parts):
        return dot_product_attention(query, key, value, need_weights=need_weights, **parts)[0]

    torch.compiler.reset()
    traced = torch.compile(attend, fullgraph=True, backend="eager")
    output = traced(*inputs(), **ASKED[asked])
    torch.testing.assert_close(output, exact_for(asked)[0])


@BOTH_PATHS
@pytest.mark.parametrize("kind", ["additive", "rotary, shared keys, dropout"])
@TRACED
def test_a_layer_is_one_graph_forward_and_backward(kind, need_weights):
    torch.compiler.reset()
    layer, given = layer_of(kind).eval(), make_inputs()
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    asked = {"valid_lens": LENS, "is_causal": True, "need_weights": need_weights}
    parameters = [*layer.parameters()]
    expected, output = (call(*given, **asked)[0] for call in (layer, traced))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients(output, parameters), gradients(expected, parameters))


@BOTH_PATHS
@TRACED
def test_one_compiled_layer_for_many_lengths(need_weights):
    torch.compiler.reset()
    layer = make_layer()
    traced = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    with torch.no_grad():
        for batch, length in itertools.product((2, 3), (5, 11, 17, 31)):
            x = random(batch, length, EMBED_DIM, seed=length)
            asked = {"is_causal": True, "need_weights": need_weights}
            torch.testing.assert_close(traced(x, x, x, **asked)[0], layer(x, x, x, **asked)[0])


@BOTH_PATHS
@TRACED
def test_decoding_can_be_compiled(need_weights):
    torch.compiler.reset()
    layer = layer_of("rotary")
    traced = torch.compile(layer, fullgraph=True, backend="eager")
    x = random(BATCH, K_LEN, EMBED_DIM)
    whole, _ = layer(x, x, x, is_causal=True)
    cache = KeyValueCache()
    steps = [
        traced(t, t, t, is_causal=True, cache=cache, need_weights=need_weights)[0] for t in x.split(1, dim=1)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert len(cache) == K_LEN


@TRACED
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
def test_inductor_computes_the_same():
    torch.compiler.reset()
    layer = make_layer(torch.float32)
    given = make_inputs(torch.float32)
    traced = torch.compile(layer, fullgraph=True)
    asked = {"valid_lens": LENS, "is_causal": True}
    torch.testing.assert_close(traced(*given, **asked), layer(*given, **asked))


class Decided(nn.Module):
    """A layer whose settings are fixed, so that tensors are all it takes."""

    def __init__(self, layer, **asked):
        super().__init__()
        self.layer, self.asked = layer, asked

    def forward(self, query, memory, lens):
        return self.layer(query, memory, memory, valid_lens=lens, **self.asked)[0]


class OnItself(Decided):
    def forward(self, x):
        return self.layer(x, x, x, **self.asked)[0]


@BOTH_PATHS
@pytest.mark.parametrize("kind", ["shared keys", "rotary", "Shaw"])
@TRACED
def test_export_for_any_batch(kind, need_weights):
    model = Decided(layer_of(kind), is_causal=True, need_weights=need_weights)
    query, memory, _ = make_inputs()
    batch = Dim("batch", min=2, max=64)
    program = export(model, (query, memory, LENS), dynamic_shapes=({0: batch},) * 3)
    for size in (2, 5, 17):
        query, memory, _ = make_inputs(batch=size)
        given = query, memory, torch.arange(size) % (K_LEN + 1)
        torch.testing.assert_close(program.module()(*given), model(*given))


@BOTH_PATHS
@pytest.mark.parametrize(("kind", "is_causal"), [("plain", False), ("shared keys", True), ("rotary", True)])
@pytest.mark.parametrize("example", [7, 19])
@TRACED
def test_export_for_any_batch_and_length(kind, is_causal, example, need_weights):
    model = OnItself(layer_of(kind), is_causal=is_causal, need_weights=need_weights)
    batch = Dim("batch", min=2, max=64)
    length = Dim("length", min=2, max=512)
    x = random(3, example, EMBED_DIM)
    program = export(model, (x,), dynamic_shapes=({0: batch, 1: length},))
    for sizes in ((2, 2), (5, 19), (2, 67)):
        x = random(*sizes, EMBED_DIM, seed=1)
        torch.testing.assert_close(program.module()(x), model(x))


@TRACED
@BOTH_PATHS
@pytest.mark.parametrize("is_causal", [False, True])
def test_nan_is_not_hidden_in_a_compiled_function(is_causal, need_weights):
    """With three keys, fewer than any processor adds at once: that is when torch's kernel hides one."""
    torch.compiler.reset()

    def attend(query, key, value):
        return dot_product_attention(query, key, value, is_causal=is_causal, need_weights=need_weights)[0]

    traced = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for where in range(2):
        given = inputs(q_len=3, k_len=3)
        given[where][0, 1, 0] = math.nan
        assert torch.equal(traced(*given).isnan(), nan_rows(where, is_causal, 3))


# torch.func


@BOTH_PATHS
@EACH_ASKED
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_attention(asked, need_weights):
    def attend(query, key, value):
        return dot_product_attention(query, key, value, need_weights=need_weights, **ASKED[asked])[0]

    query, key, value = inputs()
    many = torch.stack((query, query)), torch.stack((key, key)), torch.stack((value, -value))  # fmt: skip
    expected, _ = exact_for(asked)
    outputs = torch.func.vmap(attend)(*many)
    torch.testing.assert_close(outputs, torch.stack((expected, -expected)))


@BOTH_PATHS
@pytest.mark.parametrize(
    "mapped",
    [["attn_mask"], ["valid_lens"], ["attn_bias"], ["attn_mask", "valid_lens", "attn_bias"]],
    ids=", ".join,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_masks_lengths_and_bias(mapped, need_weights):
    """Queries, keys and values stay the same, so that only what is mapped grows."""
    given = inputs()
    many = {
        "attn_mask": torch.stack([bools(BATCH, HEADS, Q_LEN, K_LEN, seed=n) for n in range(3)]),
        "valid_lens": torch.tensor([[0, 3], [7, 2], [5, 5]]),
        "attn_bias": torch.stack((BIAS, BIAS + 1, -BIAS)),
    }  # fmt: skip

    def attend(*parts):
        hide = dict(zip(mapped, parts, strict=True))
        return dot_product_attention(*given, need_weights=need_weights, **hide)[0]

    together = torch.func.vmap(attend)(*(many[name] for name in mapped))
    for n in range(3):
        expected, _ = exact(*given, **{name: many[name][n] for name in mapped})
        torch.testing.assert_close(together[n], expected)


@BOTH_PATHS
@pytest.mark.parametrize("where", range(3), ids=["query", "key", "value"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_nan_is_not_hidden_under_vmap(where, need_weights):
    given = inputs(q_len=K_LEN)
    given[where][0, 1, 0] = math.nan
    output = torch.func.vmap(lambda *qkv: dot_product_attention(*qkv, need_weights=need_weights)[0])(
        *(x[None] for x in given)
    )[0]
    assert torch.equal(output.isnan(), nan_rows(where, is_causal=False))


@BOTH_PATHS
@pytest.mark.parametrize("asked", FUSED)
def test_func_grad_is_autograds(asked, need_weights):
    def loss(query, key, value):
        output, _ = dot_product_attention(query, key, value, need_weights=need_weights, **ASKED[asked])
        return output.square().sum()

    given = differentiable(inputs())
    expected = torch.autograd.grad(dot_product_attention(*given, **ASKED[asked])[0].square().sum(), given)
    own = torch.func.grad(loss, argnums=(0, 1, 2))(*(x.detach() for x in given))
    torch.testing.assert_close(own, expected)


@BOTH_PATHS
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_sample_at_once(need_weights):
    layer, (query, key, value) = make_layer(), make_inputs()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, *sample):
        one = tuple(x[None] for x in sample)
        asked = {"is_causal": True, "need_weights": need_weights}
        output, _ = torch.func.functional_call(layer, parameters, one, asked)
        return output.square().sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(parameters, query, key, value)
    for b in range(BATCH):
        layer.zero_grad()
        one = [x[b : b + 1] for x in (query, key, value)]
        layer(*one, is_causal=True)[0].square().sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(together[name][b], parameter.grad)


@BOTH_PATHS
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_many_models_at_once(need_weights):
    layers = []
    for n in range(3):
        torch.manual_seed(n)
        layers.append(MultiHeadAttention(EMBED_DIM, HEADS, num_kv_heads=1).double())
    parameters, _ = torch.func.stack_module_state(layers)
    x = random(BATCH, K_LEN, EMBED_DIM)
    asked = {"valid_lens": LENS, "is_causal": True, "need_weights": need_weights}
    outputs = torch.func.vmap(lambda own: torch.func.functional_call(layers[0], own, (x, x, x), asked)[0])(
        parameters
    )
    for layer, output in zip(layers, outputs, strict=True):
        torch.testing.assert_close(output, layer(x, x, x, **asked)[0])


# derivatives


@BOTH_PATHS
@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_gradients_equal_finite_differences(softcap, kv_heads, need_weights):
    """With a bias that is learned, in groups, at another scale, beside a mask and a hidden sample."""
    shapes = (2, 2, 3), (kv_heads, 5, 3), (kv_heads, 5, 3), (2, 2, 5)
    given = [random(2, *s, seed=n).requires_grad_() for n, s in enumerate(shapes)]

    def attend(query, key, value, bias):
        return dot_product_attention(
            query, key, value, attn_bias=bias, valid_lens=torch.tensor([0, 4]),
            is_causal=True, scale=0.8, softcap=softcap, need_weights=need_weights,
        )[0]  # fmt: skip

    assert torch.autograd.gradcheck(attend, given)
    assert (gradients(attend(*given), given[-1])[0][0] == 0).all()


@pytest.mark.parametrize(
    "asked", [{}, {"is_causal": True, "valid_lens": torch.tensor([0, 3])}, {"softcap": 1.5, "scale": 0.8}],
    ids=str
)  # fmt: skip
def test_second_derivatives_of_the_readable_path(asked):
    shapes = (2, 2, 2), (1, 3, 2), (1, 3, 2), (2, 2, 3)
    given = [random(2, *s, seed=n).requires_grad_() for n, s in enumerate(shapes)]

    def attend(query, key, value, bias):
        return dot_product_attention(query, key, value, attn_bias=bias, **asked)

    assert torch.autograd.gradgradcheck(attend, given)


@pytest.mark.parametrize("kind", ["plain", "rotary", "additive"])
def test_second_derivatives_of_the_layer(kind):
    layer, given = layer_of(kind), make_inputs(batch=1, q_len=2, k_len=3)
    given[0].requires_grad_()
    output, _ = layer(*given, is_causal=True)
    (first,) = torch.autograd.grad(output.square().sum(), given[0], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), given[0])
    step = 1e-6 * random(*given[0].shape, seed=9)

    def squares(x):
        x = x.detach().requires_grad_()
        loss = layer(x, *given[1:], is_causal=True)[0].square().sum()
        return torch.autograd.grad(loss, x)[0].square().sum()

    slope = (squares(given[0] + step) - squares(given[0] - step)) / 2
    assert slope.item() == pytest.approx((second * step).sum().item(), rel=1e-5)


@pytest.mark.parametrize("asked", ["nothing", "mask", "causal", "bias, hidden rows"])
def test_the_fused_path_says_what_to_do_for_a_second_derivative(asked):
    given = differentiable(inputs())
    output, _ = dot_product_attention(*given, need_weights=False, **ASKED[asked])
    assert "Flash" in output.grad_fn.name()
    first = torch.autograd.grad(output.square().sum(), given, create_graph=True)
    expected = torch.autograd.grad(dot_product_attention(*given, **ASKED[asked])[0].square().sum(), given)
    torch.testing.assert_close(first, expected)
    for gradient in first:
        with pytest.raises(RuntimeError, match="need_weights=True"):
            torch.autograd.grad(gradient.sum(), given, retain_graph=True)
    assert "differentiated twice" in dot_product_attention.__doc__


@BOTH_PATHS
def test_a_gradient_with_a_graph_that_nobody_follows(need_weights):
    """`create_graph=True` alone is no second derivative, and must not be refused."""
    layer, given = make_layer(), make_inputs()
    parameters = [*layer.parameters()]
    loss = layer(*given, need_weights=need_weights)[0].square().sum()
    own = torch.autograd.grad(loss, parameters, create_graph=True)
    expected = torch.autograd.grad(layer(*given)[0].square().sum(), parameters)
    torch.testing.assert_close([g.detach() for g in own], [*expected])


# saving, copying, moving


@EACH_LAYER
def test_weights_can_be_saved_and_loaded(kind, tmp_path):
    layer, given = layer_of(kind).eval(), make_inputs()
    expected, _ = layer(*given, is_causal=True)
    torch.save(layer.state_dict(), tmp_path / "weights.pt")
    other = layer_of(kind).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert not torch.allclose(other(*given, is_causal=True)[0], expected)
    stored = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert not other.load_state_dict(stored).missing_keys
    assert torch.equal(other(*given, is_causal=True)[0], expected)


def test_only_the_four_projections_are_saved():
    """A rotary encoding computes its angles, so no checkpoint depends on how long they were."""
    parts = itertools.product(("q", "k", "v", "out"), ("weight", "bias"))
    expected = [f"{part}_proj.{kind}" for part, kind in parts]
    for kind in ("plain", "rotary", "cosine", "scaled otherwise"):
        assert list(layer_of(kind).state_dict()) == expected
    assert set(layer_of("bilinear").state_dict()) == {*expected, "score.key_proj.weight"}  # fmt: skip


def state(module):
    """All that a module holds, itself and its parts: names, identities, numbers of changes."""
    found = {}
    for path, part in module.named_modules():
        for name, thing in vars(part).items():
            found[path, name] = id(thing)
            if isinstance(thing, dict):
                found[path, name, "keys"] = list(thing), [id(v) for v in thing.values()]
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):  # fmt: skip
        found[name] = tensor._version, tensor.requires_grad, tensor.grad
    return found


@BOTH_PATHS
@EACH_LAYER
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_nothing_is_left_on_the_layer_after_a_call(training, kind, need_weights):
    layer, given = layer_of(kind).train(training), make_inputs()
    before = state(layer)
    for asked in (
        {},
        {"is_causal": True, "valid_lens": LENS},
        {"attn_bias": BIAS, "attn_mask": bools(Q_LEN, K_LEN)},
        {"cache": KeyValueCache()},
    ):
        output, _ = layer(*given, need_weights=need_weights, **asked)
        assert state(layer) == before
    with pytest.raises(ValueError, match="valid_lens"):
        layer(*given, valid_lens=LENS + 1)  # a refused call neither
    assert state(layer) == before
    output.sum().backward()
    for part in layer.modules():
        assert not part._forward_hooks and not part._forward_pre_hooks
        assert not part._backward_hooks and not part._buffers


@BOTH_PATHS
@EACH_LAYER
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))],  # noqa: S301
    ids=["deepcopy", "pickle"],
)
def test_a_layer_can_be_copied_after_calls(copied, kind, need_weights):
    layer, given = layer_of(kind), make_inputs()
    handle = layer.register_forward_hook(lambda *_: None)
    layer(*given, need_weights=need_weights)[0].sum().backward()
    handle.remove()
    twin = copied(layer)
    assert twin.training == layer.training
    for layer_ in (layer, twin):
        layer_.eval()
    expected, _ = layer(*given, is_causal=True)
    assert torch.equal(twin(*given, is_causal=True)[0], expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert (twin(*given)[0] == 0).all()
    assert torch.equal(layer(*given, is_causal=True)[0], expected)


@BOTH_PATHS
@EACH_LAYER
def test_a_layer_on_the_meta_device(kind, need_weights):
    with torch.device("meta"):
        layer = MultiHeadAttention(
            EMBED_DIM, HEADS,
            **{name: part() if callable(part) else part for name, part in LAYERS[kind].items()},
        )  # fmt: skip
        query, memory = (torch.empty(BATCH, n, EMBED_DIM) for n in (Q_LEN, K_LEN))
        mask, bias = torch.empty(Q_LEN, K_LEN, dtype=torch.bool), torch.empty(Q_LEN, K_LEN)  # fmt: skip
        lens = torch.empty(BATCH, dtype=torch.long)
    assert all(parameter.is_meta for parameter in layer.parameters())
    for asked in (
        {},
        {"attn_mask": mask, "attn_bias": bias, "valid_lens": lens, "is_causal": True},
        {"cache": KeyValueCache(), "is_causal": True},
    ):
        output, weights = layer(query, memory, memory, need_weights=need_weights, **asked)
        assert output.is_meta and output.shape == query.shape
        if need_weights:
            assert weights.shape == (BATCH, HEADS, Q_LEN, K_LEN)
    real = layer.to_empty(device="cpu")
    assert real(*make_inputs(torch.float32))[0].shape == query.shape


@BOTH_PATHS
@EACH_LAYER
def test_a_layer_moves(kind, need_weights):
    """To a dtype and back, and to the device it is on; a GPU where there is one."""
    layer, given = layer_of(kind).eval(), make_inputs()
    expected, _ = layer(*given, is_causal=True, need_weights=need_weights)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        moved = copy.deepcopy(layer).to(device)
        output, _ = moved(*(x.to(device) for x in given), is_causal=True, need_weights=need_weights)
        assert output.device.type == device
        torch.testing.assert_close(output.cpu(), expected)
    back = copy.deepcopy(layer).float().double()
    output, _ = back(*given, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


# dropout, seeds, modes


@BOTH_PATHS
@pytest.mark.parametrize("dropout_p", [0.25, 1.0])
def test_dropout_has_the_same_statistics_on_both_paths(dropout_p, need_weights):
    """With the identity as values the output shows the weights that were used."""
    torch.manual_seed(0)
    length = 67
    query, key = random(BATCH, HEADS, length, 5), random(BATCH, HEADS, length, 5, seed=1)  # fmt: skip
    identity = torch.eye(length, dtype=torch.float64).expand(BATCH, HEADS, -1, -1)
    for hide in ({}, {"is_causal": True}):
        used, _ = dot_product_attention(
            query, key, identity, dropout_p=dropout_p, need_weights=need_weights, **hide
        )
        _, plain = dot_product_attention(query, key, identity, **hide)
        visible = plain > 0
        dropped = (used == 0) & visible
        share = dropped.sum() / visible.sum()
        # Four standard deviations of a share of that many coins.
        assert share.item() == pytest.approx(dropout_p, abs=4 * math.sqrt(0.25 / visible.sum().item()))
        kept = visible & ~dropped
        torch.testing.assert_close(used[kept], plain[kept] / max(1 - dropout_p, 1e-9))
        assert (used[~visible] == 0).all()
        if dropout_p < 1:  # each entry on its own: rows, columns and heads are dropped alike
            for axes in ((0, 1, 2), (0, 1, 3), (0, 2, 3)):
                rates = dropped.double().sum(axes) / visible.double().sum(axes)
                count = visible.double().sum(axes)
                spread = (rates - dropout_p).abs() * count.sqrt()
                assert spread.max() < 3


@BOTH_PATHS
def test_a_seed_fixes_the_result(need_weights):
    layer, given = make_layer(dropout=0.5), make_inputs()

    def run(seed):
        torch.manual_seed(seed)
        output, _ = layer(*given, need_weights=need_weights)
        return output, gradients(output, [*layer.parameters()])

    first, same, other = run(1), run(1), run(2)
    assert torch.equal(first[0], same[0])
    assert all(torch.equal(*pair) for pair in zip(first[1], same[1], strict=True))
    assert not torch.allclose(first[0], other[0])


def test_a_seed_fixes_the_weights_of_a_new_layer():
    def make(seed):
        torch.manual_seed(seed)
        return MultiHeadAttention(EMBED_DIM, HEADS, bias=True).state_dict()

    pairs = zip(make(3).values(), make(3).values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert not torch.equal(make(3)["q_proj.weight"], make(4)["q_proj.weight"])


@BOTH_PATHS
@EACH_LAYER
def test_evaluating_leaves_the_random_state_alone(kind, need_weights):
    layer, given = layer_of(kind), make_inputs()
    for training in (False, True):
        if training and layer.dropout:
            continue
        layer.train(training)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        for asked in ({}, {"is_causal": True}, {"valid_lens": LENS, "attn_bias": BIAS}):
            layer(*given, need_weights=need_weights, **asked)[0].sum().backward()
        assert torch.equal(torch.get_rng_state(), before)


@BOTH_PATHS
def test_dropout_comes_from_the_layer_and_in_training_only(need_weights):
    layer, plain, given = make_layer(dropout=0.5), make_layer(), make_inputs()
    expected, _ = plain(*given, need_weights=need_weights)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert not torch.allclose(layer(*given, need_weights=need_weights)[0], expected)
    assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(layer.eval()(*given, need_weights=need_weights)[0], expected)
    layer.train()
    layer.dropout = 0.0
    assert torch.equal(layer(*given, need_weights=need_weights)[0], expected)


@EACH_LAYER
@pytest.mark.parametrize("hide", [{}, {"valid_lens": NO_LENS, "is_causal": True}], ids=str)  # fmt: skip
@DTYPES
def test_the_same_answer_in_every_mode(dtype, hide, kind):
    """With and without weights, with and without grad, in training without dropout and in evaluation."""
    layer, given = layer_of(kind, dtype), make_inputs(dtype)
    layer.dropout = 0.0
    by_path = []
    for need_weights in (True, False):
        outputs = []
        for training, mode in itertools.product(
            (True, False), (torch.enable_grad, torch.no_grad, torch.inference_mode)
        ):
            layer.train(training)
            with mode():
                output, weights = layer(*given, need_weights=need_weights, **hide)
            assert (weights is not None) == need_weights
            assert output.requires_grad == (mode is torch.enable_grad)
            outputs.append(output.detach().clone())
        assert all(torch.equal(output, outputs[0]) for output in outputs)
        by_path.append(outputs[0])
    error = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype)
    error = error or 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(*by_path, rtol=0, atol=error)


# NaN


def nan_rows(where, is_causal, q_len=K_LEN, place=0):
    """Where the output is NaN when row `place` of query, key or value is, in sample 0, head 1."""
    out = torch.zeros(BATCH, HEADS, q_len, HEAD_DIM, dtype=torch.bool)
    if where == 0:
        out[0, 1, place] = True
    else:
        out[0, 1, place if is_causal else 0 :] = True
    return out


@BOTH_PATHS
@DTYPES
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("where", range(3), ids=["query", "key", "value"])
def test_nan_in_what_is_visible_is_never_hidden(where, is_causal, dtype, need_weights):
    """With few keys and no mask, torch's CPU kernel returns zeros for a row of NaN, as if it were hidden.

    A key or value that is NaN may also reach queries of its head that do not see it: only finite numbers are
    promised to stay hidden, and 0 times NaN is NaN. Nothing else changes.
    """
    asked = {"is_causal": is_causal, "need_weights": need_weights}
    lengths = (1, 2, 7, 8, 15, 16, 17, 37)
    for length, at_end in itertools.product(lengths, (False, True)):
        place = (length - 1) * at_end
        given = inputs(dtype, q_len=length, k_len=length)
        clean, _ = dot_product_attention(*given, **asked)
        given[where][0, 1, place] = math.nan
        output, _ = dot_product_attention(*given, **asked)
        expected = nan_rows(where, is_causal, length, place)
        assert output[expected].isnan().all()
        if where > 0:
            expected[0, 1] = True
        torch.testing.assert_close(output[~expected], clean[~expected], rtol=0, atol=ERRORS[dtype])


@BOTH_PATHS
@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
def test_a_whole_batch_of_nan(bad, need_weights):
    layer = make_layer()
    x = torch.full((BATCH, Q_LEN, EMBED_DIM), bad, dtype=torch.float64)
    assert layer(x, x, x, need_weights=need_weights)[0].isnan().all()
    assert layer(x, x, x, is_causal=True, need_weights=need_weights)[0].isnan().all()


@BOTH_PATHS
@pytest.mark.parametrize("k_len", [3, 7, 37])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_that_overflow_are_not_hidden(is_causal, k_len, need_weights):
    """Finite inputs, infinite scores: inf - inf is NaN, and must not come out as zero."""
    query, key, value = inputs(torch.float32, q_len=k_len, k_len=k_len)
    output, _ = dot_product_attention(
        query.abs() * 1e20, key.abs() * 1e20, value, is_causal=is_causal, need_weights=need_weights
    )  # fmt: skip
    assert output.isnan().all()


@BOTH_PATHS
@pytest.mark.parametrize("asked", FUSED)
def test_gradients_of_nan_are_not_hidden_either(asked, need_weights):
    given = inputs()
    given[0][1, 0, 4] = math.nan
    given = differentiable(given)
    output, _ = dot_product_attention(*given, need_weights=need_weights, **ASKED[asked])  # fmt: skip
    assert output[1, 0, 4].isnan().all()
    for_query, for_key, _ = gradients(output, given)
    assert for_query[1, 0, 4].isnan().all()
    assert for_key[1, 0].isnan().any()


# what torch's kernel would do by itself


@pytest.mark.parametrize("asked", FUSED)
def test_hidden_rows_and_columns_are_zero_in_output_and_gradients(asked):
    """The kernel alone gives NaN, or the mean of all values, where nothing is visible."""
    parts = dict(ASKED[asked])
    learned = "attn_bias" in parts
    visible = torch.from_numpy(
        oracles.visible_pairs(
            BATCH, HEADS, Q_LEN, K_LEN,
            **{name: part for name, part in parts.items() if name not in ("attn_bias", "scale")},
        )
    )  # fmt: skip
    for dtype, need_weights, of_bias in itertools.product(
        (torch.float64, torch.float32, *HALVES), (True, False), {False, learned}
    ):
        given = differentiable(inputs(dtype))
        if learned:
            (bias,) = differentiable([parts["attn_bias"]])
            parts["attn_bias"] = bias.requires_grad_(of_bias)
        output, _ = dot_product_attention(*given, need_weights=need_weights, **parts)
        wanted = [*given, bias] if of_bias else given
        for_query, for_key, for_value, *for_bias = gradients(output, wanted)
        assert (output[~visible.any(-1)] == 0).all()
        assert (for_query[~visible.any(-1)] == 0).all()
        assert (for_key[~visible.any(-2)] == 0).all()
        assert (for_value[~visible.any(-2)] == 0).all()
        assert all(g.isfinite().all() for g in (for_query, for_key, for_value))
        for gradient in for_bias:
            hidden_everywhere = ~visible.sum_to_size(1, 1, Q_LEN, K_LEN).bool()
            if bias.shape == visible.shape:
                assert (gradient[~visible] == 0).all()
            elif bias.ndim == 2:
                assert (gradient[hidden_everywhere[0, 0]] == 0).all()


@BOTH_PATHS
@TRACED
def test_lengths_that_differ_are_refused_also_while_compiling(need_weights):
    query, key, value = inputs()
    attend = functools.partial(dot_product_attention, need_weights=need_weights)
    with pytest.raises(ValueError, match="key and value must have the same length"):
        attend(query, key, value[:, :, :-1])
    torch.compiler.reset()
    traced = torch.compile(attend, backend="eager")
    with pytest.raises(Exception, match="key and value must have the same length"):
        traced(query, key, value[:, :, :-1])


@BOTH_PATHS
@pytest.mark.parametrize("asked", [{}, {"attn_bias": BIAS}, {"valid_lens": LENS}], ids=str)  # fmt: skip
def test_the_future_is_hidden_bottom_right(asked, need_weights):
    """torch's own flag lines queries and keys up at their beginning."""
    query, key, value = inputs()
    output, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights, **asked)
    expected, _ = exact(query, key, value, is_causal=True, **asked)
    torch.testing.assert_close(output, expected)
    by_mask, _ = dot_product_attention(
        query, key, value, sliding_window_mask(Q_LEN, K_LEN, left=None),
        need_weights=need_weights, **asked
    )  # fmt: skip
    torch.testing.assert_close(output, by_mask)


@BOTH_PATHS
@pytest.mark.parametrize("num_heads", [1, 3, 4, 6])
def test_alibi_in_attention(num_heads, need_weights):
    """Each head forgets at its own speed: with queries of zero the weights are those of the bias alone."""
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


def test_pieces_agree_with_the_whole():
    """`masked_softmax` and `attention_pooling` give what `dot_product_attention` gives, in every dtype."""
    for dtype in (torch.float64, torch.float32, *HALVES):
        query, key, value = inputs(dtype)
        mask = some_rows_hidden()
        scores = scaled_dot_product_score(query.double(), key.double()).to(dtype)
        output, weights = attention_pooling(scores, value, mask)
        assert output.dtype == weights.dtype == dtype
        expected, expected_weights = dot_product_attention(query, key, value, mask)
        error = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(weights, expected_weights, rtol=error, atol=error)
        torch.testing.assert_close(output, expected, rtol=error, atol=2 * error)
        assert torch.equal(weights, masked_softmax(scores, mask))
