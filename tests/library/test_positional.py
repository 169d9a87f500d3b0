"""Positions, compared with the papers' formulas in loops, complex numbers, published slopes, HuggingFace."""

import copy
import math

import numpy as np
import oracles
import pytest
import torch
from random_tensors import random

from mha_lib.models.rotary_scaling import RotaryScaling
from mha_lib.positional import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoidal_encoding
from mha_lib.relative import ShawScore, T5RelativeBias, alibi_bias, alibi_slopes, t5_buckets
from mha_lib.rotary import RotaryPositionalEncoding, apply_rotary, rotary_angles
from mha_lib.scores import dot_product_score

BATCH, HEADS, LENGTH, K_LEN, WIDTH = 2, 3, 5, 7, 11
ENCODINGS = [SinusoidalPositionalEncoding, LearnedPositionalEncoding]


# sinusoidal


@pytest.mark.parametrize("width", range(1, 10))
def test_sinusoids_of_every_width_equal_the_formula(width):
    table = sinusoidal_encoding(13, width)
    assert table.dtype == torch.float32
    assert table.shape == (13, width)
    np.testing.assert_allclose(table, oracles.sinusoids(13, width), atol=1e-7)
    other = sinusoidal_encoding(13, width, base=100.0)
    np.testing.assert_allclose(other, oracles.sinusoids(13, width, 100.0), atol=1e-7)


def test_far_positions_are_as_exact_as_near_ones():
    """In float32 an angle of 100 000 radians is off by 0.004; the table is computed in float64."""
    position, width = 100_000, 6
    row = sinusoidal_encoding(position + 1, width)[position]
    angles = [position / 10_000 ** (2 * pair / width) for pair in range(3)]
    np.testing.assert_allclose(row[0::2], [math.sin(angle) for angle in angles], atol=1e-7)
    np.testing.assert_allclose(row[1::2], [math.cos(angle) for angle in angles], atol=1e-7)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_row_is_added_to_each_token(encoding, dtype):
    module = encoding(WIDTH, max_len=K_LEN)
    x = random(BATCH, LENGTH, WIDTH).to(dtype)
    before = x.clone()
    output = module(x)
    assert output.dtype == dtype
    assert torch.equal(x, before)
    for b in range(BATCH):
        for position in range(LENGTH):
            expected = x[b, position] + module.encoding[position].to(dtype)
            assert torch.equal(output[b, position], expected)
    assert not torch.equal(output[0, 0] - x[0, 0], output[0, 1] - x[0, 1])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_whole_table_can_be_used(encoding):
    assert encoding(WIDTH, max_len=LENGTH)(random(BATCH, LENGTH, WIDTH)).shape == (BATCH, LENGTH, WIDTH)
    assert encoding(WIDTH).encoding.shape == (1000, WIDTH)


def test_the_sinusoids_are_a_buffer_that_is_not_stored():
    module = SinusoidalPositionalEncoding(WIDTH, max_len=K_LEN)
    assert torch.equal(module.encoding, sinusoidal_encoding(K_LEN, WIDTH))
    assert dict(module.named_buffers()).keys() == {"encoding"}
    assert not list(module.parameters())
    assert not module.state_dict()
    assert module.to("meta").encoding.is_meta
    assert SinusoidalPositionalEncoding(WIDTH).double().encoding.dtype == torch.float64


def test_learned_positions_are_one_parameter_that_is_stored():
    torch.manual_seed(0)
    module = LearnedPositionalEncoding(WIDTH, max_len=997)
    assert list(module.state_dict()) == ["encoding"]
    assert module.encoding.std().item() == pytest.approx(0.02, rel=0.05)
    module(torch.zeros(BATCH, LENGTH, WIDTH)).sum().backward()
    assert (module.encoding.grad[:LENGTH] == BATCH).all()
    assert (module.encoding.grad[LENGTH:] == 0).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_dropout_of_the_sum_in_training_only(encoding):
    torch.manual_seed(0)
    module, x = (encoding(101, max_len=103, dropout=0.25), torch.full((BATCH, 103, 101), 5.0))
    assert (module(x) == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(module(x).mean(), (x + module.encoding).mean(), rtol=0.02, atol=0)
    module.eval()
    assert torch.equal(module(x), x + module.encoding)


# rotary


HEAD_DIM = 14
PAIRINGS = [True, False]
# One position per token; then one per token and sample, far apart and out of order.
SAME_PLACES = [0, 1, 2, 3, 4]
OWN_PLACES = [[11, 12, 13, 14, 15], [2003, 0, 307, 1, 4099]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_angles_of_given_positions_are_rows_of_the_table(dtype):
    table = rotary_angles(102, HEAD_DIM)
    for positions in ([5, 0, 101], [[7, 7, 1], [0, 99, 100]]):
        angles = rotary_angles(torch.tensor(positions, dtype=dtype), HEAD_DIM)
        assert angles.dtype == torch.float32
        assert torch.equal(angles, table[torch.tensor(positions)])


@pytest.mark.parametrize("interleaved", PAIRINGS)
@pytest.mark.parametrize("rotary_dim", [2, 6, HEAD_DIM])
@pytest.mark.parametrize("places", [SAME_PLACES, OWN_PLACES], ids=["same", "own"])
@pytest.mark.parametrize("lead", [(BATCH,), (BATCH, HEADS)], ids=str)
def test_both_pairings_partial_width_and_given_positions(lead, places, rotary_dim, interleaved):
    x, positions = random(*lead, LENGTH, HEAD_DIM), torch.tensor(places)
    before = x.clone()
    rotary = RotaryPositionalEncoding(HEAD_DIM, base=500.0, rotary_dim=rotary_dim, interleaved=interleaved)
    turned = rotary(x, positions)
    expected = oracles.rotated(before, places, rotary_dim=rotary_dim, interleaved=interleaved, base=500.0)
    np.testing.assert_allclose(turned, expected, atol=1e-10)
    assert torch.equal(turned[..., rotary_dim:], before[..., rotary_dim:])
    assert torch.equal(x, before)
    angles = rotary_angles(positions, rotary_dim, base=500.0, dtype=torch.float64)
    assert torch.equal(apply_rotary(x, angles, interleaved=interleaved), turned)


def test_the_first_places_are_the_default():
    rotary, x = (RotaryPositionalEncoding(HEAD_DIM), random(BATCH, HEADS, LENGTH, HEAD_DIM))
    assert torch.equal(rotary(x), rotary(x, torch.arange(LENGTH)))
    assert torch.equal(rotary(x), rotary(x, torch.arange(LENGTH).expand(1, LENGTH)))
    # A single token, as in decoding, at its position in the text.
    assert torch.equal(rotary(x[:, :, 3:4], torch.tensor([3])), rotary(x)[:, :, 3:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("interleaved", PAIRINGS)
def test_half_precision_distinguishes_far_positions(dtype, interleaved):
    """Above 2048 (256 for bfloat16) not every integer is a half-precision number."""
    rotary = RotaryPositionalEncoding(HEAD_DIM, rotary_dim=6, interleaved=interleaved).to(dtype)
    x, places = random(BATCH, LENGTH, HEAD_DIM).to(dtype), [2049, 4097, 4099, 8191, 3]
    turned = rotary(x, torch.tensor(places))
    assert turned.dtype == dtype
    step = torch.finfo(dtype).eps * x.abs().max().item()
    expected = oracles.rotated(x, places, rotary_dim=6, interleaved=interleaved)
    np.testing.assert_allclose(oracles.doubles(turned), expected, atol=step)
    # Rounded once, at the end.
    assert torch.equal(turned, rotary(x.float(), torch.tensor(places)).to(dtype))
    # The result of half-precision angles.
    angles = rotary_angles(torch.tensor(places), 6).to(dtype).float()
    wrong = apply_rotary(x, angles, interleaved=interleaved)
    assert np.abs(oracles.doubles(wrong) - expected).max() > 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rotation_keeps_single_and_double_precision(dtype):
    x = random(LENGTH, HEAD_DIM).to(dtype)
    assert RotaryPositionalEncoding(HEAD_DIM)(x).dtype == dtype
    assert apply_rotary(x, rotary_angles(LENGTH, HEAD_DIM).double()).dtype == dtype


@pytest.mark.parametrize("interleaved", PAIRINGS)
@pytest.mark.parametrize("rotary_dim", [6, HEAD_DIM])
def test_a_shift_of_all_positions_changes_no_score(rotary_dim, interleaved):
    """Each sample of the batch is shifted by its own number of positions."""
    rotary = RotaryPositionalEncoding(HEAD_DIM, rotary_dim=rotary_dim, interleaved=interleaved)
    query = random(BATCH, HEADS, LENGTH, HEAD_DIM)
    key = random(BATCH, HEADS, K_LEN, HEAD_DIM, seed=1)
    q_places, k_places = torch.arange(2, K_LEN), torch.arange(K_LEN)
    here = dot_product_score(rotary(query, q_places), rotary(key, k_places))
    shift = torch.tensor([[101], [503]])
    there = dot_product_score(rotary(query, q_places + shift), rotary(key, k_places + shift))
    torch.testing.assert_close(there, here, atol=2e-3, rtol=0)
    # If the shifts differ, the distances change.
    apart = dot_product_score(rotary(query, q_places + 1), rotary(key, k_places))
    assert (apart - here).abs().amax((1, 2, 3)).min() > 0.5


def test_a_rotation_turns_the_gradient_back():
    rotary = RotaryPositionalEncoding(HEAD_DIM, rotary_dim=6, interleaved=False)
    x = random(1, LENGTH, HEAD_DIM).requires_grad_()
    assert torch.autograd.gradcheck(rotary, (x,))
    (back,) = torch.autograd.grad(rotary(x), x, rotary(x).detach())
    torch.testing.assert_close(back, x.detach(), atol=1e-6, rtol=0)


def test_rotary_takes_views():
    rotary = RotaryPositionalEncoding(HEAD_DIM, rotary_dim=6)
    x = random(BATCH, LENGTH, HEADS, HEAD_DIM).transpose(1, 2)
    torch.testing.assert_close(rotary(x), rotary(x.contiguous()))
    expanded = random(1, 1, LENGTH, HEAD_DIM).expand(BATCH, HEADS, LENGTH, HEAD_DIM)
    assert torch.equal(rotary(expanded), rotary(expanded.contiguous()))
    for shape in ((0, HEADS, LENGTH, HEAD_DIM), (BATCH, HEADS, 0, HEAD_DIM)):
        assert rotary(torch.zeros(shape)).shape == shape


def test_rotary_stores_nothing():
    rotary = RotaryPositionalEncoding(HEAD_DIM, rotary_dim=6)
    x = random(LENGTH, HEAD_DIM)
    before = rotary(x)
    assert not rotary.state_dict()
    assert not list(rotary.buffers())
    assert torch.equal(copy.deepcopy(rotary)(x), before)
    assert rotary(x.to("meta")).is_meta
    assert "rotary_dim=6" in repr(rotary)
    assert "interleaved=True" in repr(rotary)


def test_rotary_vectorizes():
    """torch.func.vmap over samples with different positions."""
    rotary = RotaryPositionalEncoding(HEAD_DIM)
    x, positions = random(BATCH, HEADS, LENGTH, HEAD_DIM), torch.tensor(OWN_PLACES)
    torch.testing.assert_close(torch.func.vmap(rotary)(x, positions), rotary(x, positions))


# ALiBi


def test_published_slopes():
    """Press et al. (2022): for 8 heads 1/2, 1/4, ... 1/256; for 16 heads also the geometric means between."""
    assert alibi_slopes(8).tolist() == [1 / 2**n for n in range(1, 9)]
    np.testing.assert_allclose(alibi_slopes(16), [2 ** (-n / 2) for n in range(1, 17)], rtol=1e-6)
    # For 12 heads the paper's code takes the 8 slopes of 8 heads, then every second slope of 16 heads.
    assert alibi_slopes(12)[:8].tolist() == alibi_slopes(8).tolist()
    np.testing.assert_allclose(alibi_slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-6)


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 7), (7, 7), (7, 5), (1, 7)])
def test_bias_is_slope_times_distance(q_len, k_len):
    bias = alibi_bias(HEADS, q_len, k_len)
    assert bias.shape == (HEADS, q_len, k_len)
    assert bias.dtype == torch.float32
    for h, slope in enumerate(alibi_slopes(HEADS).tolist()):
        for i in range(q_len):
            for j in range(k_len):
                distance = abs(i + (k_len - q_len) - j)
                assert bias[h, i, j].item() == pytest.approx(-slope * distance, rel=1e-6)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 31, 32, 33])
@pytest.mark.newer_torch
def test_bloom_has_the_same_slopes(num_heads):
    """Bloom's bias grows with the key's position; the softmax of a row makes it equal to ours."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    visible = torch.ones(1, K_LEN, dtype=torch.int64)
    theirs = bloom.build_alibi_tensor(visible, num_heads, torch.float32)
    ours = alibi_bias(num_heads, LENGTH, K_LEN)
    for i in range(LENGTH):
        seen = slice(0, i + K_LEN - LENGTH + 1)
        at_query = theirs[:, :, i + K_LEN - LENGTH]
        torch.testing.assert_close(ours[:, i, seen], theirs[:, 0, seen] - at_query)


# T5

# The first distance of each bucket per side, worked out by hand from 8 * 2^(k / 2) and 16 * 8^(k / 16).
BOTH_WAYS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
ONE_WAY = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def test_buckets_begin_where_the_formula_says():
    row = t5_buckets(1, 200)[0].flip(0).tolist()  # distances 0, 1, 2, ...
    assert [row.index(bucket) for bucket in range(16)] == BOTH_WAYS
    assert row == sorted(row)
    row = t5_buckets(1, 200, bidirectional=False)[0].flip(0).tolist()
    assert [row.index(bucket) for bucket in range(32)] == ONE_WAY
    assert row == sorted(row)


def test_a_distance_on_the_border_begins_its_bucket():
    """6 * 2^k: the logarithms are integers, which floating point may miss."""
    row = t5_buckets(1, 400, num_buckets=24, max_distance=384)[0].flip(0)
    for step in range(1, 6):
        assert row[6 * 2**step - 1] == 6 + step - 1
        assert row[6 * 2**step] == 6 + step


@pytest.mark.newer_torch
def test_huggingface_has_the_same_buckets():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    before, both = torch.arange(-1500, 1), torch.arange(-150, 151)
    for num_buckets in (4, 5, 6, 10, 32, 34, 64, 320):
        for max_distance in (90, 100, 128, 256, 800, 1000):
            for bidirectional in (True, False):
                exact = num_buckets // (4 if bidirectional else 2)
                if max_distance <= exact or (bidirectional and num_buckets % 2):
                    continue
                sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
                buckets = t5.T5Attention._relative_position_bucket
                ours = t5_buckets(1, 1501, bidirectional=bidirectional, **sizes)[0]
                assert torch.equal(ours, buckets(before, bidirectional, **sizes))
                ours = t5_buckets(301, bidirectional=bidirectional, **sizes)[150]
                assert torch.equal(ours, buckets(both, bidirectional, **sizes))


def test_the_bias_of_a_pair_is_its_buckets_number():
    torch.manual_seed(0)
    layer = T5RelativeBias(HEADS, num_buckets=6, max_distance=5)
    bias, buckets = layer(5, 7), t5_buckets(5, 7, num_buckets=6, max_distance=5)
    assert bias.shape == (1, HEADS, 5, 7)
    assert bias.is_contiguous()
    for h, i, j in np.ndindex(HEADS, 5, 7):
        assert bias[0, h, i, j] == layer.table[buckets[i, j], h]
    assert torch.equal(layer(7), layer(7, 7))
    torch.testing.assert_close(layer(7)[:, :, 2:], layer(5, 7))  # the last 5 of 7 queries


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.newer_torch
def test_huggingface_gives_the_same_bias(causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(num_heads=HEADS, d_kv=5, d_model=17, is_decoder=causal)
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    torch.nn.init.normal_(theirs.relative_attention_bias.weight)
    ours = T5RelativeBias(HEADS, bidirectional=not causal)
    ours.load_state_dict({"table": theirs.relative_attention_bias.weight})
    assert torch.equal(ours(29, 151), theirs.compute_bias(29, 151, past_seen_tokens=122))


def test_the_gradient_counts_the_pairs_of_each_bucket():
    layer = T5RelativeBias(HEADS, num_buckets=8, max_distance=6)
    loss_of_head = torch.tensor([1.0, 10.0, 100.0])
    (layer(5, 7).sum((0, 2, 3)) * loss_of_head).sum().backward()
    pairs = t5_buckets(5, 7, num_buckets=8, max_distance=6).flatten().bincount(minlength=8)
    torch.testing.assert_close(layer.table.grad, pairs[:, None] * loss_of_head)


def test_the_tables_start_as_xavier_says():
    torch.manual_seed(0)
    for table in (
        T5RelativeBias(97, num_buckets=101, max_distance=211, bidirectional=False).table,
        ShawScore(head_dim=97, max_distance=50).table,
    ):
        assert table.shape == (101, 97)
        limit = math.sqrt(6 / (101 + 97))
        assert 0.99 * limit < table.max() <= limit
        assert -limit <= table.min() < -0.99 * limit
        assert table.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.03)


@pytest.mark.parametrize("make", [
    lambda: T5RelativeBias(HEADS, num_buckets=6, max_distance=5), lambda: ShawScore(HEAD_DIM, 3),
], ids=["T5", "Shaw"])  # fmt: skip
def test_the_table_is_what_a_checkpoint_holds(make):
    torch.manual_seed(0)
    old, new = make(), make()
    assert list(old.state_dict()) == ["table"]
    assert not torch.equal(old.table, new.table)
    new.load_state_dict(old.state_dict())
    arguments = (5, 7) if isinstance(old, T5RelativeBias) else SHAW
    assert torch.equal(new(*arguments), old(*arguments))
    assert torch.equal(copy.deepcopy(old)(*arguments), old(*arguments))
    new.reset_parameters()
    assert not torch.equal(new.table, old.table)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        other = copy.deepcopy(old).to(dtype)
        arguments = (5, 7) if isinstance(old, T5RelativeBias) else [x.to(dtype) for x in SHAW]
        assert other(*arguments).dtype == dtype
    meta = copy.deepcopy(old).to("meta")
    arguments = (5, 7) if isinstance(old, T5RelativeBias) else [x.to("meta") for x in SHAW]
    assert meta(*arguments).is_meta


# Shaw

SHAW = (random(BATCH, HEADS, LENGTH, HEAD_DIM).float(), random(BATCH, HEADS, K_LEN, HEAD_DIM, seed=1).float())


def slow_shaw(query, key, table):
    """(q·k + q·a) / √d for each query and key, a = table[clip(distance) + max_distance]."""
    query, key, table = (oracles.doubles(x) for x in (query, key, table))
    largest, (q_len, width) = len(table) // 2, query.shape[-2:]
    k_len = key.shape[-2]
    out = np.empty((*query.shape[:-1], k_len))
    for *lead, i, j in np.ndindex(out.shape):
        distance = j - (i + k_len - q_len)
        row = table[max(-largest, min(largest, distance)) + largest]
        q = query[*lead, i]
        out[*lead, i, j] = oracles.dot(q, key[*lead, j]) + oracles.dot(q, row)
    return out / math.sqrt(width)


@pytest.mark.parametrize("max_distance", [1, 3, 11])
@pytest.mark.parametrize(("q_len", "k_len"), [(5, 7), (7, 5), (1, 7), (7, 7)])
@pytest.mark.parametrize("lead", [(), (BATCH,), (BATCH, HEADS)], ids=str)
def test_shaw_equals_the_formula(lead, q_len, k_len, max_distance):
    torch.manual_seed(0)
    score = ShawScore(HEAD_DIM, max_distance).double()
    query, key = random(*lead, q_len, HEAD_DIM), random(*lead, k_len, HEAD_DIM, seed=1)
    before = query.clone(), key.clone()
    scores = score(query, key)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores.detach(), slow_shaw(query, key, score.table), rtol=1e-12, atol=1e-12)
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])


def test_shaw_broadcasts_leading_axes():
    """Keys that all heads share."""
    torch.manual_seed(0)
    score, (query, key) = ShawScore(HEAD_DIM, 3), SHAW
    shared = key[:, :1]
    assert torch.equal(score(query, shared), score(query, shared.expand(-1, HEADS, -1, -1)))


def test_shaw_has_derivatives_and_vectorizes():
    score = ShawScore(6, 2).double()
    query, key = (random(2, 3, 6).requires_grad_(), random(2, 5, 6, seed=1).requires_grad_())

    def with_table(query, key, table):
        return torch.func.functional_call(score, {"table": table}, (query, key))

    inputs = (query, key, score.table)
    assert torch.autograd.gradcheck(with_table, inputs)
    assert torch.autograd.gradgradcheck(with_table, inputs)
    torch.testing.assert_close(torch.func.vmap(score)(query, key), score(query, key))


@pytest.mark.no_shape_checks
def test_positions_compile_as_one_graph():
    torch.manual_seed(0)
    rotary = RotaryPositionalEncoding(HEAD_DIM, rotary_dim=6, interleaved=False)
    bias, score = T5RelativeBias(HEADS), ShawScore(HEAD_DIM, 3)

    def scores(query, key, q_places):
        key = rotary(key)
        query = rotary(query, q_places)
        lengths = query.shape[-2], key.shape[-2]
        extra = t5_buckets(*lengths) + alibi_bias(HEADS, *lengths)
        return score(query, key) + bias(*lengths) + extra

    arguments = (*SHAW, torch.arange(2, 7).expand(BATCH, -1))
    traced = torch.compile(scores, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(*arguments), scores(*arguments))


# scaled rotary


TRAINED = "original_max_position_embeddings"
LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, TRAINED: 8192}
SCALINGS = {
    "linear": (RotaryScaling("linear", 8.0), {}),
    "dynamic": (RotaryScaling("dynamic", 4.0, 16), {}),
    "llama3": (RotaryScaling("llama3", 8.0, 8192), LLAMA_3),
    "llama3, another": (RotaryScaling("llama3", 3.0, 64, low=0.5, high=7.0),
        {"low_freq_factor": 0.5, "high_freq_factor": 7.0, TRAINED: 64}),
    "yarn": (RotaryScaling("yarn", 4.0, 32768), {TRAINED: 32768}),
    "yarn, another": (RotaryScaling("yarn", 4.0, 64, low=2.0, high=5.0, attention_factor=1.5),
        {TRAINED: 64, "beta_slow": 2.0, "beta_fast": 5.0, "attention_factor": 1.5}),
    "yarn, a step": (RotaryScaling("yarn", 4.0, 5), {TRAINED: 5}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.newer_torch
def test_scaled_rotations_equal_transformers(name):
    """Heads and bases of published size; only "dynamic" looks at the length of the text."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama import modeling_llama

    scaling, settings = SCALINGS[name]
    rotary = RotaryPositionalEncoding(128, base=500_000.0, interleaved=False, scaling=scaling)
    config = transformers.LlamaConfig(
        head_dim=128,
        max_position_embeddings=16,
        rope_parameters={
            "rope_type": scaling.kind, "rope_theta": 5e5, "factor": scaling.factor, **settings
        },
    )  # fmt: skip
    for length in (9, 16, 40):
        x = random(BATCH, HEADS, length, 128)
        places = torch.arange(length).unsqueeze(0)
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, places)
        expected, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
        torch.testing.assert_close(rotary(x, places), expected, atol=1e-5, rtol=1e-5)
    plain = RotaryPositionalEncoding(128, base=500_000.0, interleaved=False)
    short = x[:, :, :9]
    assert torch.equal(rotary(short), plain(short)) == (scaling.kind == "dynamic")
    assert rotary(x[:, :, :0]).shape == (BATCH, HEADS, 0, 128)


@pytest.mark.no_shape_checks
@pytest.mark.parametrize("name", ["dynamic", "yarn"])
def test_scaled_rotations_compile_as_one_graph(name):
    torch._dynamo.reset()  # earlier tests of this process have compiled it too, and torch counts them
    rotary = RotaryPositionalEncoding(HEAD_DIM, scaling=SCALINGS[name][0])
    compiled = torch.compile(rotary, fullgraph=True, backend="aot_eager")
    for length in (5, 18, 23):
        x = random(BATCH, HEADS, length, HEAD_DIM)
        torch.testing.assert_close(compiled(x), rotary(x))
