"""Every option of a layer together with every other, with and without a cache, against the loop in float64.

An option alone is tested elsewhere. What two of them mean together is where a test is easily forgotten. The
frequencies of scaled rotary positions are those that transformers computes.
"""

import functools
import itertools

import numpy as np
import oracles
import pytest
import torch
from attention_layers import shaken
from random_tensors import random
from torch import nn

from mha_lib import (
    GPT2,
    KeyValueCache,
    Llama,
    MultiHeadAttention,
    RotaryPositionalEncoding,
    T5RelativeBias,
    alibi_bias,
    alibi_slopes,
    cosine_score,
    generate,
    masked_softmax,
)
from mha_lib.models.rotary_scaling import RotaryScaling

BATCH, HEADS, Q_LEN, K_LEN, WIDTH = 2, 4, 2, 6, 24
OLD, NEW = 3, 3  # of the keys, in the cache and beside it: more new keys than queries
REAL = (2, 3)  # old keys of each sample, where samples differ in length
SCALES = torch.tensor([0.2, 0.5, 1.0, 2.0], dtype=torch.float64).view(HEADS, 1, 1)
MASK = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 0, 1, 0, 1, 1]]).bool()
OF_HEADS = (MASK.flip(0) | (torch.arange(HEADS) < 2)[:, None, None])[None]
KEY_MASK = torch.tensor([[1, 0, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]]).bool()
BIAS = random(BATCH, HEADS, Q_LEN, K_LEN, seed=7)

# Six keys are longer than every text "in training", so that each kind of scaling changes their angles.
SCALINGS = {
    "linear": RotaryScaling("linear", 3.0),
    "dynamic": RotaryScaling("dynamic", 3.0, trained_len=2),
    "llama3": RotaryScaling("llama3", 3.0, trained_len=5, low=0.1, high=0.7),
    "yarn": RotaryScaling("yarn", 3.0, trained_len=40, low=0.2, high=3.0),
}

# What the layer is built with.
SETTINGS = {
    "shared keys": {"num_kv_heads": 2},
    "narrow heads": {"head_dim": 4},
    "other widths": {"kdim": 10, "vdim": 7},
    "biases": {"bias": True},
    "a bias of two": {"bias": ("q_proj", "v_proj")},
    "a scale": {"scale": 0.7},
    "a scale of each head": {"scale": SCALES},
    "softcap": {"softcap": 0.8},
    "window": {"window": (2, 0)},
    "open window": {"window": (None, 1)},
    "score": {"score": cosine_score},
    "rotary": {"rotary": {}},
    **{f"rotary, {kind}": {"rotary": {"scaling": scaling}} for kind, scaling in SCALINGS.items()},
    "norms": {"qk_norm": True, "norm_eps": 0.01},
    "sink": {"sink": True},
}
# What a call is given.
CALLS = {
    "causal": {"is_causal": True},
    "mask": {"attn_mask": MASK},
    "mask of heads": {"attn_mask": OF_HEADS},
    "key mask": {"key_mask": KEY_MASK},
    "bias": {"attn_bias": BIAS},
    "ALiBi": {"attn_bias": "ALiBi"},
    "T5": {"attn_bias": "T5"},
}
# How the keys arrive: at once, in two calls, before the queries, and with samples of different lengths.
ARRIVALS = ("at once", "two calls", "no new keys", "ragged")
NAMES = [*SETTINGS, *CALLS]


def fits(*names):
    """Whether two options may be used together."""
    given = [key for name in names for key in SETTINGS.get(name, CALLS.get(name))]
    # A key mask may end a text, on whose length dynamic scaling depends; test_numbers_at_the_edge.py has it.
    apart = {*names} == {"rotary, dynamic", "key mask"}
    return len({*given}) == len(given) and not {"scale", "score"} <= {*given} and not apart


CASES = [(*pair, arrival) for pair in itertools.combinations(NAMES, 2) if fits(*pair) for arrival in ARRIVALS]
# A prime step visits all options and arrivals; pairs that a fault was found in or could hide in join them.
IN_CI = {*CASES[::13], ("window", "rotary, dynamic", "two calls"), ("window", "T5", "ragged")}


def layer_and_rules(names):
    """A layer in float64 with these settings, and the same settings as the loop takes them."""
    options = {key: value for name in names for key, value in SETTINGS.get(name, {}).items()}
    width = options.get("head_dim", WIDTH // HEADS)
    if "rotary" in options:
        options["rotary"] = RotaryPositionalEncoding(width, **options["rotary"])
    layer = shaken(MultiHeadAttention(WIDTH, HEADS, **options), std=0.4, seed=3).double().eval()
    rules = {key: options[key] for key in ("scale", "softcap", "window", "norm_eps") if key in options}
    rules["num_kv_heads"] = layer.num_kv_heads
    if "score" in options:
        rules["rule"] = oracles.cosine
    return layer, rules


def rope_parameters(scaling, base):
    """The settings of a scaling as transformers names them."""
    names = {"low": "low_freq_factor", "high": "high_freq_factor"}
    if scaling.kind == "yarn":
        names = {"low": "beta_slow", "high": "beta_fast", "attention_factor": "attention_factor"}
    if scaling.kind != "dynamic":
        names["trained_len"] = "original_max_position_embeddings"
    given = {theirs: getattr(scaling, ours) for ours, theirs in names.items()}
    given = {name: value for name, value in given.items() if value is not None}
    return {"rope_type": scaling.kind, "rope_theta": base, "factor": scaling.factor, **given}


@functools.cache
def frequencies_of_transformers(scaling, width, length, *, base=10_000.0):
    """How far each pair of columns turns from one token to the next, and the factor of queries and keys."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        head_dim=width,
        max_position_embeddings=scaling.trained_len or 2048,
        rope_parameters=rope_parameters(scaling, base),
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling.kind](config, "cpu", seq_len=length)
    return frequencies.double().numpy(), factor


def turn_of(rotary, old):
    """Turn the rows of one sample as the loop takes it; its first `old` keys came in an earlier call."""

    def turn(x, first):
        if rotary.scaling is None:
            return oracles.rotated(x, first=first)
        end = first + x.shape[-2]
        lengths = [old if row < old else end for row in range(first, end)]
        found = {n: frequencies_of_transformers(rotary.scaling, x.shape[-1], n) for n in {*lengths}}
        _, factor = found[end]
        frequencies = [found[n][0] for n in lengths]
        return factor * oracles.rotated(x, first=first, frequencies=frequencies)

    return turn


def distance_bias(kind, table, keys):
    """The bias of one sample whose last key is at the position of its last query, (1, heads, q_len, keys)."""
    bias = np.empty((1, HEADS, Q_LEN, keys))
    slopes = alibi_slopes(HEADS).tolist()
    for head, i, j in np.ndindex(bias.shape[1:]):
        ahead = j - (i + keys - Q_LEN)
        # Of 32 buckets, distances below 8 have one each, and those ahead begin at 16.
        of_bucket = float(table[abs(ahead) + 16 * (ahead > 0), head])
        bias[0, head, i, j] = -slopes[head] * abs(ahead) if kind == "ALiBi" else of_bucket
    return bias


def expected_of(layer, rules, inputs, call, shown, old, table):
    """Output and weights of each sample alone, with only the keys that it has, from the loop."""
    outputs, weights = [], []
    for sample, slots in enumerate(shown):
        own = dict(rules)
        if layer.rotary is not None:
            own["turn"] = turn_of(layer.rotary, sum(slot < old for slot in slots))
        seen = torch.ones(1, 1, 1, len(slots), dtype=torch.bool)
        if "attn_mask" in call:
            seen = seen & call["attn_mask"][..., slots]
        if "key_mask" in call:
            seen = seen & call["key_mask"][sample, slots]
        own["attn_mask"], own["is_causal"] = seen, call.get("is_causal", False)
        bias = call.get("attn_bias")
        if bias is not None:
            fixed = isinstance(bias, torch.Tensor)
            own["attn_bias"] = (
                bias[sample, None][..., slots] if fixed else distance_bias(bias, table, len(slots))
            )
        query, key, value = (x[sample, None] for x in inputs)
        given = (query, key[:, slots], value[:, slots])
        output, found = oracles.multi_head(*given, layer.state_dict(), HEADS, **own)
        spread = np.zeros((HEADS, Q_LEN, K_LEN))
        spread[..., slots] = found[0]
        outputs.append(output[0])
        weights.append(spread)
    return torch.tensor(np.stack(outputs)), torch.tensor(np.stack(weights))


@pytest.mark.parametrize(
    ("one", "other", "arrival"),
    [pytest.param(*case, marks=() if case in IN_CI else pytest.mark.slow) for case in CASES],
)
def test_two_options_together_are_what_the_loop_computes(one, other, arrival):
    layer, rules = layer_and_rules((one, other))
    call = {key: value for name in (one, other) for key, value in CALLS.get(name, {}).items()}
    table = T5RelativeBias(HEADS).double()
    nn.init.normal_(table.table, generator=torch.Generator().manual_seed(5))
    sizes = (Q_LEN, WIDTH), (K_LEN, layer.kdim), (K_LEN, layer.vdim)
    inputs = [random(BATCH, *size, seed=seed) for seed, size in enumerate(sizes)]
    ragged = arrival == "ragged"
    everything = [*range(K_LEN)]
    shown = [[j for j in everything if not real <= j < OLD] if ragged else everything for real in REAL]
    old = {"at once": 0, "no new keys": K_LEN}.get(arrival, OLD)
    expected = expected_of(layer, rules, inputs, call, shown, old, table.table.detach())
    scaled = getattr(layer.rotary, "scaling", None) is not None
    # Transformers rounds frequencies to float32.
    within = {"atol": 1e-6, "rtol": 1e-5} if scaled else {"atol": 1e-10, "rtol": 1e-8}
    for need_weights in (True, False):
        cache, query, key, value = None, *inputs
        if arrival != "at once":
            cache = KeyValueCache()
            lens = torch.tensor(REAL) if ragged else None
            layer(key.new_zeros(BATCH, 1, WIDTH), key[:, :old], value[:, :old], cache=cache, valid_lens=lens)
            key, value = key[:, old:], value[:, old:]
        asked = dict(call)
        if isinstance(kind := call.get("attn_bias"), str):
            where = None if cache is None else cache.positions(Q_LEN, key.shape[1])
            ragged_where = {"positions": where} if ragged else {}
            bias = (
                alibi_bias(HEADS, Q_LEN, K_LEN, **ragged_where)
                if kind == "ALiBi"
                else table(Q_LEN, K_LEN, **ragged_where)
            )
            asked["attn_bias"] = (bias if bias.ndim == 4 else bias[None]).double()
        output, weights = layer(query, key, value, cache=cache, need_weights=need_weights, **asked)
        torch.testing.assert_close(output, expected[0], **within)
        if need_weights:
            torch.testing.assert_close(weights, expected[1], **within)


# Two settings of a scaling together: few pairs of columns, ramps that are clipped or a step, short training.
OF_SCALINGS = {
    "head_dim": (4, 10, 64),
    "base": (50.0, 500_000.0),
    "factor": (1.0, 40.0),
    "trained_len": (3, 100_000),
    "ramp": ((0.01, 0.02), (1.0, 1.5), (0.001, 5_000.0)),
    "attention_factor": (0.5, 2.0),
}
USED_BY = {
    "linear": ("head_dim", "base", "factor"),
    "dynamic": ("head_dim", "base", "factor", "trained_len"),
    "llama3": ("head_dim", "base", "factor", "trained_len", "ramp"),
    "yarn": tuple(OF_SCALINGS),
}


@pytest.mark.newer_torch
@pytest.mark.parametrize("kind", SCALINGS)
def test_two_settings_of_a_scaling_together_equal_transformers(kind):
    defaults = {"head_dim": 8, "base": 10_000.0, "factor": 4.0, "trained_len": 16, "ramp": (0.5, 3.0)}
    values = [(name, value) for name in USED_BY[kind] for value in OF_SCALINGS[name]]
    for one, other in itertools.combinations(values, 2):
        if one[0] == other[0]:
            continue
        case = {name: defaults.get(name) for name in USED_BY[kind]} | dict([one, other])
        case["low"], case["high"] = case.pop("ramp", (None, None))
        head_dim, base = case.pop("head_dim"), case.pop("base")
        scaling = RotaryScaling(kind, **case)
        rotary = RotaryPositionalEncoding(head_dim, base=base, scaling=scaling).double()
        for length in (2, 50):  # shorter and longer than the texts in training
            x = random(1, length, head_dim, seed=length)
            frequencies, factor = frequencies_of_transformers(scaling, head_dim, length, base=base)
            expected = factor * oracles.rotated(x, frequencies=[frequencies] * length)
            torch.testing.assert_close(
                rotary(x), torch.tensor(expected), atol=2e-5, rtol=1e-5, msg=f"{scaling}, {one}, {other}"
            )


def test_positions_of_queries_that_add_no_keys():
    cache, keys = KeyValueCache(), random(2, 1, 5, 4)
    cache.append(keys, keys)
    assert [x.tolist() for x in cache.positions(2, 0)] == [[3, 4], [0, 1, 2, 3, 4]]
    cache.append(keys[:, :, :2], keys[:, :, :2], valid_lens=torch.tensor([1, 2]))
    queries, keys = cache.positions(1, 0)
    assert queries.tolist() == [[5], [6]]
    assert keys.tolist() == [[0, 1, 2, 3, 4, 5, 5], [0, 1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("kind", [GPT2, Llama])
def test_the_last_token_that_fits_in_max_len(kind):
    model = kind(7, embed_dim=6, num_heads=3, hidden_dim=5, num_layers=1, max_len=6).eval()
    tokens, cache = torch.tensor([[1, 2, 3, 4, 5, 6]]), model.new_cache()
    whole = model(tokens)[1]
    model(tokens[:, :5], cache=cache)
    torch.testing.assert_close(model(tokens[:, 5:], cache=cache)[1], whole[:, 5:])
    with pytest.raises(ValueError, match="tokens must have shape"):
        model(tokens[:, :1], cache=cache)
    assert generate(model, tokens[:, :4], max_new=3)[0].shape == (1, 1, 3)
    with pytest.raises(ValueError, match="max_new must leave room"):
        generate(model, tokens[:, :4], max_new=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_softmax_of_half_precision_is_computed_in_float32(dtype):
    scores = (6 * random(3, 40, 90)).to(dtype)
    lens = torch.tensor([90, 70, 31])
    found = masked_softmax(scores, valid_lens=lens)
    hidden = torch.arange(90) >= lens[:, None, None]
    exact = scores.double().masked_fill(hidden, -torch.inf).softmax(-1)
    limits = torch.finfo(dtype)
    torch.testing.assert_close(found.double(), exact, rtol=0.51 * limits.eps, atol=limits.smallest_normal)


@pytest.mark.parametrize("wrong", [0.5, 1, "yes", torch.zeros(4)])
def test_a_sink_is_a_bool(wrong):
    with pytest.raises(TypeError, match="sink must be a bool"):
        MultiHeadAttention(24, 4, sink=wrong)


def test_a_sink_is_refused_by_torchs_layer():
    with pytest.raises(ValueError, match="one with sink"):
        MultiHeadAttention(24, 4, sink=True).to_torch()
