"""Decoding with a cache: any division into chunks gives the result of one call; what does not fit is refused.

Hypothesis draws how sequences are divided into chunks, some of them empty, and how long each sample is.
"""

import copy
import functools
import itertools
import pickle

import pytest
import torch
from attention_marks import BOTH_PATHS
from hypothesis import strategies as st
from random_draws import property_of
from random_tensors import random
from torch import nn

from mha_lib.cache import KeyValueCache
from mha_lib.masking import sliding_window_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.relative import ShawScore, T5RelativeBias, alibi_bias
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.scores import cosine_score

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 11, 14
EMBED_DIM = HEADS * HEAD_DIM


def make_layer(**options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, HEADS, bias=True, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


LAYERS = {
    "plain": {},
    "shared keys": {"num_kv_heads": 1},
    "rotary": {"rotary": RotaryPositionalEncoding(HEAD_DIM)},
    "rotary, halves, shared keys": {
        "rotary": RotaryPositionalEncoding(HEAD_DIM, interleaved=False, rotary_dim=6),
        "num_kv_heads": 1,
    },
    "cosine": {"score": cosine_score},
    "Shaw": {"score": ShawScore(HEAD_DIM, 3)},
}
EACH_LAYER = pytest.mark.parametrize("kind", LAYERS)


@functools.cache
def layer_of(kind):
    return make_layer(**LAYERS[kind])


def t5_bias():
    torch.manual_seed(1)
    made = T5RelativeBias(HEADS, num_buckets=6, max_distance=9, bidirectional=False)
    return made(LENGTH).detach().double()


# Arguments that span all queries and keys, and are sliced to those of a chunk.
SPANS = {
    "nothing": {},
    "alibi": {"attn_bias": alibi_bias(HEADS, LENGTH)[None]},
    "buckets": {"attn_bias": t5_bias()},
    "window": {"attn_mask": sliding_window_mask(LENGTH, left=3)[None]},
    "mask of heads, alibi": {
        "attn_mask": (random(BATCH, HEADS, LENGTH, LENGTH, seed=5) > 0) | torch.eye(LENGTH, dtype=torch.bool),
        "attn_bias": alibi_bias(HEADS, LENGTH)[None],
    },
    "hidden token": {"attn_mask": ((torch.arange(LENGTH) != 4) & (torch.arange(LENGTH) != 6)[:, None])[None]},
}


def part_of(spans, first, last):
    """Rows and columns of masks and biases for queries first..last - 1 and the keys up to there."""
    return {name: part[..., first:last, :last] for name, part in spans.items()}


def decode(layer, x, chunks, spans=None, **asked):
    """Outputs of all chunks, one after the other, joined; the weights of each; the cache."""
    cache, outputs, weights, first = KeyValueCache(), [], [], 0
    for chunk in chunks:
        last = first + chunk
        new = x[:, first:last]
        output, seen = layer(
            new, new, new, is_causal=True, cache=cache, **part_of(spans or {}, first, last), **asked
        )  # fmt: skip
        outputs.append(output)
        weights.append(seen)
        first = last
        assert len(cache) == last
    return torch.cat(outputs, dim=1), weights, cache


@st.composite
def cuts(draw, length=LENGTH):
    """Sizes of chunks that add up to `length`, some of them 0."""
    places = draw(st.lists(st.integers(0, length), max_size=5))
    edges = [0, *sorted(places), length]
    return [after - before for before, after in itertools.pairwise(edges)]


@BOTH_PATHS
@EACH_LAYER
@pytest.mark.parametrize("span", SPANS)
@property_of(chunks=cuts(), few=2, many=12)
def test_decoding_in_any_chunks_equals_one_call(kind, span, need_weights, chunks):
    layer, x, spans = layer_of(kind), random(BATCH, LENGTH, EMBED_DIM), SPANS[span]
    with torch.no_grad():
        whole, all_weights = layer(x, x, x, is_causal=True, **spans)
        output, weights, cache = decode(layer, x, chunks, spans, need_weights=need_weights)  # fmt: skip
    torch.testing.assert_close(output, whole, rtol=1e-10, atol=1e-12)
    assert cache.lens.tolist() == [LENGTH] * BATCH
    first = 0
    for chunk, seen in zip(chunks, weights, strict=True):
        last = first + chunk
        if need_weights:
            torch.testing.assert_close(seen, all_weights[:, :, first:last, :last])
        first = last


@BOTH_PATHS
@EACH_LAYER
@property_of(data=st.data(), few=4, many=12)
def test_samples_of_different_lengths(kind, need_weights, data):
    """Each sample of a ragged batch gives what its real tokens give in one call without padding."""
    layer, batch = layer_of(kind), 3
    cache, chunks = KeyValueCache(), []
    for number in range(data.draw(st.integers(1, 4))):
        new = data.draw(st.integers(0, 4))
        lengths = st.lists(st.integers(0, new), min_size=batch, max_size=batch)
        real = data.draw(st.none() | lengths)
        x = random(batch, new, EMBED_DIM, seed=number)
        lens = None if real is None else torch.tensor(real)
        with torch.no_grad():
            output, weights = layer(
                x, x, x, is_causal=True, cache=cache, valid_lens=lens, need_weights=need_weights
            )  # fmt: skip
        chunks.append((x, output, [new] * batch if real is None else real))
    assert len(cache) == sum(x.shape[1] for x, _, _ in chunks)
    assert cache.lens.tolist() == [sum(real[b] for *_, real in chunks) for b in range(batch)]  # fmt: skip
    if need_weights:
        assert weights.shape[-1] == len(cache)
    for b in range(batch):
        tokens, outputs = (
            torch.cat([chunk[part][b, : chunk[2][b]] for chunk in chunks])[None] for part in (0, 1)
        )
        with torch.no_grad():
            alone, _ = layer(tokens, tokens, tokens, is_causal=True)
        torch.testing.assert_close(outputs, alone, rtol=1e-10, atol=1e-12)


@BOTH_PATHS
def test_a_mask_with_samples_of_different_lengths(need_weights):
    """Both hide: the mask its slot in both samples, the cache the slot of the first that holds no token."""
    layer, cache = layer_of("plain"), KeyValueCache()
    x, step = random(BATCH, 4, EMBED_DIM), random(BATCH, 1, EMBED_DIM, seed=1)
    layer(x, x, x, cache=cache, valid_lens=torch.tensor([3, 4]))
    mask = torch.tensor([[True, False, True, True, True]])
    output, weights = layer(step, step, step, mask, cache=cache, need_weights=need_weights)
    for b, seen in enumerate(([0, 2], [0, 2, 3])):
        own = torch.cat((x[b, seen], step[b]))[None]
        alone, _ = layer(step[b : b + 1], own, own)
        torch.testing.assert_close(output[b], alone[0])
        if need_weights:
            shown = (weights[b] > 0).all(0).all(0)
            assert shown.nonzero().flatten().tolist() == [*seen, 4]


@BOTH_PATHS
@pytest.mark.parametrize("lens", [[5, 5, 5], [5, 3, 4]], ids=["plain", "ragged"])
def test_more_queries_than_new_keys(lens, need_weights):
    """Queries and keys end together, also where a call adds fewer keys than it has queries."""
    layer = layer_of("rotary")
    held, new, query = (random(3, length, EMBED_DIM) for length in (5, 2, 4))
    cache = KeyValueCache()
    layer(held, held, held, cache=cache, valid_lens=torch.tensor(lens) if min(lens) < 5 else None)
    output, _ = layer(query, new, new, cache=cache, need_weights=need_weights)
    for sample, length in enumerate(lens):
        tokens = torch.cat((held[sample, :length], new[sample]))[None]
        alone, _ = layer(query[sample][None], tokens, tokens)
        torch.testing.assert_close(output[sample], alone[0])


@BOTH_PATHS
def test_a_sample_without_any_token_yet(need_weights):
    """Its rows are zeros before the output projection, as wherever nothing is visible."""
    layer, cache = layer_of("plain"), KeyValueCache()
    x = random(BATCH, 2, EMBED_DIM)
    output, _ = layer(x, x, x, cache=cache, valid_lens=torch.tensor([0, 2]), need_weights=need_weights)
    assert torch.equal(output[0], layer.out_proj.bias.expand(2, -1))
    assert cache.lens.tolist() == [0, 2]
    step = random(BATCH, 1, EMBED_DIM, seed=1)
    output, _ = layer(step, step, step, cache=cache, need_weights=need_weights)
    alone, _ = layer(step[:1], step[:1], step[:1])
    torch.testing.assert_close(output[:1], alone)


@BOTH_PATHS
@pytest.mark.parametrize("kind", ["rotary, halves, shared keys", "Shaw"])
def test_gradients_through_the_cache_equal_those_of_one_call(kind, need_weights):
    layer = layer_of(kind)
    x = random(BATCH, LENGTH, EMBED_DIM).requires_grad_()
    wanted = [x, *layer.parameters()]
    factors = random(BATCH, LENGTH, EMBED_DIM, seed=3)
    whole, _ = layer(x, x, x, is_causal=True, **SPANS["alibi"])
    expected = torch.autograd.grad(whole, wanted, factors)
    output, _, _ = decode(layer, x, [4, 1, 0, 6], SPANS["alibi"], need_weights=need_weights)  # fmt: skip
    torch.testing.assert_close(torch.autograd.grad(output, wanted, factors), expected)


@BOTH_PATHS
@pytest.mark.parametrize("lens", [None, torch.tensor([3, 7])], ids=["all", "lens"])
def test_cross_attention_keeps_its_memory(lens, need_weights):
    """Later steps add no keys: they pass a memory of length 0."""
    layer = layer_of("shared keys")
    query, memory = random(BATCH, 5, EMBED_DIM), random(BATCH, 7, EMBED_DIM, seed=1)
    whole, _ = layer(query, memory, memory, valid_lens=lens)
    cache, outputs = KeyValueCache(), []
    for step, own in enumerate(query.split(1, dim=1)):
        given = memory if step == 0 else memory[:, :0]
        output, weights = layer(
            own, given, given, cache=cache, valid_lens=lens if step == 0 else None,
            need_weights=need_weights,
        )  # fmt: skip
        assert weights is None or weights.shape == (BATCH, HEADS, 1, 7)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole)
    assert len(cache) == 7


def test_keys_are_projected_once():
    """This is the benefit of the cache: a step projects one token, not all of them."""
    layer, seen = layer_of("plain"), []
    handle = layer.k_proj.register_forward_hook(lambda _, x, __: seen.append(x[0].shape[1]))  # fmt: skip
    decode(layer, random(BATCH, LENGTH, EMBED_DIM), [5, 1, 1, 4])
    handle.remove()
    assert seen == [5, 1, 1, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)  # fmt: skip
@BOTH_PATHS
def test_decoding_in_every_dtype(dtype, need_weights):
    layer = copy.deepcopy(layer_of("rotary, halves, shared keys")).to(dtype)
    x = random(BATCH, LENGTH, EMBED_DIM, dtype=dtype)
    whole, _ = layer(x, x, x, is_causal=True)
    output, _, cache = decode(layer, x, [6, 1, 4], need_weights=need_weights)
    assert output.dtype == cache.keys.dtype == cache.values.dtype == dtype
    error = 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(output, whole, rtol=0, atol=error)


@BOTH_PATHS
def test_decoding_under_autocast(need_weights):
    layer = copy.deepcopy(layer_of("rotary")).float()
    x = random(BATCH, LENGTH, EMBED_DIM, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole, _ = layer(x, x, x, is_causal=True)
        output, _, cache = decode(layer, x, [6, 1, 4], need_weights=need_weights)
    assert cache.keys.dtype == cache.values.dtype == torch.bfloat16
    torch.testing.assert_close(output, whole, rtol=0, atol=0.2)


# The cache by itself


def keys_and_values(batch=BATCH, heads=HEADS, new=2, width=7, value_width=13, dtype=torch.float32):
    return (
        random(batch, heads, new, width, dtype=dtype),
        random(batch, heads, new, value_width, seed=1, dtype=dtype),
    )


def filled(**options):
    cache = KeyValueCache()
    cache.append(*keys_and_values(new=3), **options)
    return cache


def test_a_cache_grows_at_its_end():
    cache = KeyValueCache()
    assert len(cache) == 0
    first, second = keys_and_values(new=2), [x + 10 for x in keys_and_values(new=5)]
    assert cache.append(*first)[2] is None
    assert torch.equal(cache.keys, first[0]) and torch.equal(cache.values, first[1])
    keys, values, visible = cache.append(*second)
    assert len(cache) == 7
    assert visible is None
    assert torch.equal(keys, torch.cat((first[0], second[0]), dim=2))
    assert torch.equal(values, torch.cat((first[1], second[1]), dim=2))
    assert cache.lens.tolist() == [7, 7]
    assert cache.lens.dtype == torch.int64


def test_slots_that_hold_no_token():
    cache = KeyValueCache()
    cache.append(*keys_and_values(new=2))
    _, _, visible = cache.append(*keys_and_values(new=3), valid_lens=torch.tensor([1, 0]))  # fmt: skip
    assert visible.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    _, _, visible = cache.append(*keys_and_values(new=1))
    assert visible.int().tolist() == [[1, 1, 1, 0, 0, 1], [1, 1, 0, 0, 0, 1]]
    assert cache.lens.tolist() == [4, 3]
    assert len(cache) == 6


def test_what_is_appended_is_not_modified():
    """What the cache held is not modified either: earlier results are unchanged."""
    cache, (keys, values) = KeyValueCache(), keys_and_values()
    copies = keys.clone(), values.clone()
    first = cache.append(keys, values)
    second = cache.append(keys, values)
    assert torch.equal(keys, copies[0]) and torch.equal(values, copies[1])
    assert keys._version == values._version == 0
    assert first[0].shape[2] == 2 and second[0].shape[2] == 4
    assert torch.equal(first[0], copies[0])


@pytest.mark.parametrize("copied", [
    copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache)),  # noqa: S301
], ids=["deepcopy", "pickle"])  # fmt: skip
def test_a_cache_can_be_copied(copied):
    """For a beam search: two continuations of one beginning."""
    layer, x = layer_of("rotary"), random(BATCH, 5, EMBED_DIM)
    cache = KeyValueCache()
    with torch.no_grad():
        layer(x, x, x, cache=cache, valid_lens=torch.tensor([5, 3]))
        twin = copied(cache)
        assert twin.lens.tolist() == [5, 3]
        one, two = (random(BATCH, 1, EMBED_DIM, seed=n) for n in (1, 2))
        expected, _ = layer(two, two, two, cache=copy.deepcopy(cache))
        layer(one, one, one, cache=cache)
        assert len(twin) == 5
        output, _ = layer(two, two, two, cache=twin)
    assert torch.equal(output, expected)


def lengths(*numbers):
    return {"valid_lens": torch.tensor(numbers)}


BAD_APPENDS = {
    "another batch": (lambda: keys_and_values(batch=5), {}, ValueError, "batch.*5"),
    "other heads": (lambda: keys_and_values(heads=1), {}, ValueError, "num_kv_heads.*1"),
    "another head_dim": (lambda: keys_and_values(width=11), {}, ValueError, "head_dim.*11"),
    "another width of values": (lambda: keys_and_values(value_width=7), {}, ValueError, "values.*7"),
    "another dtype": (lambda: keys_and_values(dtype=torch.float64), {}, TypeError, "dtype.*float64"),
    "another device": (lambda: [x.to("meta") for x in keys_and_values()], {}, ValueError, "device.*meta"),
    "keys of rank 3": (lambda: [x[0] for x in keys_and_values()], {}, ValueError, "keys.*shape"),
    "more values": (
        lambda: (keys_and_values()[0], keys_and_values(new=3)[1]), {}, ValueError, "keys and values.*new"
    ),
    "integers": (lambda: [x.long() for x in keys_and_values()], {}, TypeError, "keys.*int64"),
    "no tensors": (lambda: ([1], [2]), {}, TypeError, "keys.*list"),
    "lengths of each query": (
        keys_and_values, lengths([1, 2], [1, 2]), ValueError, r"valid_lens.*\(2, 2\)"
    ),
    "lengths of other samples": (keys_and_values, lengths(1), ValueError, "valid_lens.*2"),
    "too large a length": (keys_and_values, lengths(1, 3), ValueError, "valid_lens.*3"),
    "a negative length": (keys_and_values, lengths(-1, 2), ValueError, "valid_lens.*-1"),
    "lengths that are none": (keys_and_values, lengths(1.0, 2.0), TypeError, "valid_lens.*float32"),
}  # fmt: skip


@pytest.mark.parametrize("held", ["all", "ragged"])
@pytest.mark.parametrize("bad", BAD_APPENDS)
def test_what_does_not_fit_is_refused_and_changes_nothing(bad, held):
    make, options, error, message = BAD_APPENDS[bad]
    cache = filled() if held == "all" else filled(valid_lens=torch.tensor([3, 1]))
    before = cache.keys, cache.values, cache.visible
    with pytest.raises(error, match=message):
        cache.append(*make(), **options)
    assert all(
        now is then
        for now, then in zip((cache.keys, cache.values, cache.visible), before, strict=True)
    )  # fmt: skip
