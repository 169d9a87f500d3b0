"""Masks and inputs as users of torch write them: (batch, k_len), one sample alone, a window, a scale."""

import pytest
import torch
from attention_marks import BOTH_PATHS
from random_tensors import bools, random

from mha_lib.attention import dot_product_attention
from mha_lib.cache import KeyValueCache
from mha_lib.masking import build_mask, causal_mask, sliding_window_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.relative import ShawScore, T5RelativeBias, alibi_bias, t5_buckets
from mha_lib.scores import softcap_scores

BATCH, HEADS, Q_LEN, K_LEN, WIDTH = 2, 3, 5, 7, 33


def layer_of(**settings):
    torch.manual_seed(0)
    return MultiHeadAttention(WIDTH, HEADS, dtype=torch.float64, **settings)


def inputs(q_len=Q_LEN, k_len=K_LEN, batch=BATCH):
    return random(batch, q_len, WIDTH), *(random(batch, k_len, WIDTH, seed=i) for i in (1, 2))


def test_a_key_mask_combines_with_lengths_and_masks():
    lens, key_mask, mask = torch.tensor([6, 3]), bools(BATCH, K_LEN), bools(Q_LEN, K_LEN, seed=1)
    built = build_mask(
        Q_LEN, K_LEN, attn_mask=mask, key_mask=key_mask, valid_lens=lens, is_causal=True
    )  # fmt: skip
    in_length = torch.arange(K_LEN) < lens[:, None]
    wanted = mask & (key_mask & in_length)[:, None] & causal_mask(Q_LEN, K_LEN)
    assert torch.equal(built, wanted)


@BOTH_PATHS
@pytest.mark.parametrize("hide", [
    {}, {"attn_mask": bools(Q_LEN, K_LEN)}, {"attn_mask": bools(HEADS, Q_LEN, K_LEN)},
    {"key_mask": bools(K_LEN)}, {"valid_lens": torch.tensor(4)},
    {"valid_lens": torch.tensor([1, 2, 3, 4, 7]), "is_causal": True},
    {"attn_bias": random(HEADS, Q_LEN, K_LEN, seed=4)},
], ids=lambda hide: " ".join(hide))  # fmt: skip
def test_one_sample_needs_no_batch_axis(hide, need_weights):
    given = [x[0] for x in inputs()]
    output, weights = layer_of()(*given, need_weights=need_weights, **hide)
    shared = {name for name in ("attn_mask", "attn_bias") if name in hide and hide[name].ndim == 2}
    batched = {
        name: part[None] if isinstance(part, torch.Tensor) and name not in shared else part
        for name, part in hide.items()
    }
    wanted, wanted_weights = layer_of()(*(x[None] for x in given), need_weights=need_weights, **batched)
    assert torch.equal(output, wanted[0])
    assert weights is None if not need_weights else torch.equal(weights, wanted_weights[0])
    assert output.shape == (Q_LEN, WIDTH)


@BOTH_PATHS
@pytest.mark.parametrize("scale", [None, 0.3, torch.tensor(0.3), torch.tensor([0.2, 0.3, 0.5]).view(3, 1, 1)])
@pytest.mark.parametrize("softcap", [None, 0.1])
def test_a_scale_takes_the_place_of_the_root_of_d(softcap, scale, need_weights):
    layer = layer_of(scale=scale, softcap=softcap)
    projections = layer.q_proj, layer.k_proj, layer.v_proj
    pairs = zip(projections, inputs(), strict=True)
    query, key, value = (layer.split_heads(proj(x)) for proj, x in pairs)
    scores = query @ key.transpose(-2, -1) * (layer.head_dim**-0.5 if scale is None else scale)
    weights = (scores if softcap is None else softcap_scores(scores, softcap)).softmax(-1)
    output, found = layer(*inputs(), need_weights=need_weights)
    torch.testing.assert_close(output, layer.out_proj(layer.merge_heads(weights @ value)))
    if need_weights:
        torch.testing.assert_close(found, weights)


@BOTH_PATHS
def test_a_scale_can_be_learned(need_weights):
    layer = layer_of(scale=torch.nn.Parameter(torch.ones(HEADS, 1, 1, dtype=torch.float64)))
    assert "scale" in dict(layer.named_parameters())
    layer(*inputs(), need_weights=need_weights)[0].square().sum().backward()
    assert layer.scale.grad.abs().min() > 0
    buffered = layer_of(scale=torch.ones(()))
    assert buffered.half().scale.dtype == torch.float16
    assert "scale" in buffered.state_dict()


@BOTH_PATHS
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [(2, 0), (None, 1), (1, None), (0, 0)])
def test_a_window_hides_what_is_far(window, is_causal, need_weights):
    left, right = window
    mask = sliding_window_mask(Q_LEN, K_LEN, left=left, right=right)
    lens = torch.tensor([K_LEN, 4])
    asked = {"valid_lens": lens, "is_causal": is_causal, "need_weights": need_weights}
    found = layer_of(window=window)(*inputs(), **asked)
    torch.testing.assert_close(found, layer_of()(*inputs(), mask, **asked))


# If samples of different lengths share a cache, distances must be counted in tokens, not slots.


def test_positions_of_a_cache_count_tokens():
    cache, keys = KeyValueCache(), random(BATCH, HEADS, 4, 11)
    queries, held = cache.positions(3)
    assert (queries.tolist(), held.tolist()) == ([0, 1, 2], [0, 1, 2])
    cache.append(keys, keys)
    queries, held = cache.positions(1, 2)
    assert (queries.tolist(), held.tolist()) == ([5], [0, 1, 2, 3, 4, 5])
    cache = KeyValueCache()
    cache.append(keys, keys, valid_lens=torch.tensor([4, 2]))
    queries, held = cache.positions(1)
    assert queries.tolist() == [[4], [2]]
    assert held.tolist() == [[0, 1, 2, 3, 4], [0, 1, 1, 1, 2]]


@BOTH_PATHS
@pytest.mark.parametrize("kind", ["window", "Shaw", "alibi", "T5"])
def test_distances_count_tokens_where_samples_have_different_lengths(kind, need_weights):
    """Decoding with padding in the cache gives what each sample gives alone, in one call."""
    torch.manual_seed(1)
    settings = {"window": {"window": (2, 0)}, "Shaw": {"score": ShawScore(11, 2, dtype=torch.float64)}}
    layer, table = layer_of(**settings.get(kind, {})), T5RelativeBias(HEADS, num_buckets=8, max_distance=4)

    def bias(q_len, k_len, positions=None):
        if kind == "alibi":
            made = alibi_bias(HEADS, q_len, k_len, positions=positions).double()
            return {"attn_bias": made if positions is not None and positions[0].ndim == 2 else made[None]}
        if kind == "T5":
            return {"attn_bias": table(q_len, k_len, positions=positions).double()}
        return {}

    x, lens = random(BATCH, 4, WIDTH, seed=7), torch.tensor([4, 2])
    steps = random(BATCH, 3, WIDTH, seed=8)
    cache, outputs = KeyValueCache(), []
    layer(x, x, x, is_causal=True, cache=cache, valid_lens=lens, **bias(4, 4))
    for step in steps.split(1, dim=1):
        hides = bias(1, len(cache) + 1, cache.positions(1))
        outputs.append(layer(step, step, step, cache=cache, need_weights=need_weights, **hides)[0])
    for sample, length in enumerate(lens.tolist()):
        alone = torch.cat((x[sample, :length], steps[sample]))[None]
        wanted, _ = layer(alone, alone, alone, is_causal=True, **bias(length + 3, length + 3))
        torch.testing.assert_close(torch.cat(outputs, dim=1)[sample], wanted[0, -3:])


def test_helpers_take_positions_of_each_sample():
    queries, keys = torch.tensor([[4], [2]]), torch.tensor([[0, 1, 2, 3, 4], [0, 1, 1, 1, 2]])
    far = (keys[:, None] - queries[:, :, None]).abs()
    slopes = 2.0 ** (-8 * torch.arange(1, 3) / 2)
    bias = alibi_bias(2, 1, 5, positions=(queries, keys))
    torch.testing.assert_close(bias, -slopes[:, None, None] * far[:, None])
    near = sliding_window_mask(1, 5, left=1, positions=(queries, keys))
    assert torch.equal(near, far <= 1)
    buckets = t5_buckets(1, 5, num_buckets=8, max_distance=8, bidirectional=False, positions=(queries, keys))
    assert buckets.tolist() == [[[4, 3, 2, 1, 0]], [[2, 1, 1, 1, 0]]]
    with pytest.raises(ValueError, match="positions of keys"):
        alibi_bias(2, 1, 4, positions=(queries, keys))
    with pytest.raises(TypeError, match="positions of queries must hold integers"):
        alibi_bias(2, 1, 5, positions=(queries.double(), keys))


def test_alibi_is_float32_whatever_the_default(monkeypatch):
    torch.set_default_dtype(torch.float64)
    try:
        assert alibi_bias(2, 3).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert alibi_bias(2, 3, device="meta").is_meta


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_bias_that_is_a_mask_in_disguise_is_refused(dtype):
    """A row hidden only by the smallest number would get uniform weights instead of zeros."""
    x = random(BATCH, Q_LEN, WIDTH).to(torch.float32)
    bias = torch.full((Q_LEN, Q_LEN), torch.finfo(dtype).min, dtype=dtype)
    with pytest.raises(ValueError, match="mask_from_additive"):
        dot_product_attention(x, x, x, attn_bias=bias)


# Values are checked inside compiled functions and vmap too.


@pytest.mark.no_shape_checks
def test_lengths_are_checked_inside_vmap():
    x = random(3, BATCH, Q_LEN, WIDTH)
    lens = torch.tensor([[1, 2], [3, 4], [5, 6]])
    with pytest.raises(ValueError, match=r"valid_lens must lie in 0..k_len=5, got values from 1 to 6"):
        torch.func.vmap(lambda x, lens: dot_product_attention(x, x, x, valid_lens=lens)[0])(x, lens)
    found = torch.func.vmap(lambda x, lens: dot_product_attention(x, x, x, valid_lens=lens)[0])(x, lens - 1)
    wanted = [dot_product_attention(a, a, a, valid_lens=b)[0] for a, b in zip(x, lens - 1, strict=True)]
    torch.testing.assert_close(found, torch.stack(wanted))


@pytest.mark.no_shape_checks
def test_lengths_are_checked_inside_a_compiled_function():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def attend(x, lens):
        return dot_product_attention(x, x, x, valid_lens=lens)[0]

    x, lens = random(BATCH, Q_LEN, WIDTH), torch.tensor([3, 5])
    torch.testing.assert_close(attend(x, lens), dot_product_attention(x, x, x, valid_lens=lens)[0])
    with pytest.raises(RuntimeError, match=r"valid_lens must lie in 0..k_len"):
        attend(x, lens + 1)
