"""Positions: against the paper's formula in a loop, complex numbers, and published slopes."""

import math

import numpy as np
import oracles
import pytest
import torch

from mha_lib import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
    alibi_bias,
    alibi_slopes,
    apply_rotary,
    causal_mask,
    dot_product_score,
    rotary_angles,
    sinusoidal_encoding,
)

BATCH, HEADS, LENGTH, K_LEN, WIDTH = 2, 3, 5, 7, 11
ENCODINGS = [SinusoidalPositionalEncoding, LearnedPositionalEncoding]


def random(*shape, seed=0):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


# sinusoidal


@pytest.mark.parametrize("width", range(1, 10))
def test_sinusoids_of_every_width_equal_the_formula(width):
    table = sinusoidal_encoding(13, width)
    assert table.dtype == torch.float32
    assert table.shape == (13, width)
    np.testing.assert_allclose(table, oracles.sinusoids(13, width), atol=1e-7)


def test_sinusoids_with_another_base():
    np.testing.assert_allclose(
        sinusoidal_encoding(13, 6, base=100.0),
        oracles.sinusoids(13, 6, 100.0),
        atol=1e-7,
    )


def test_far_positions_are_as_exact_as_near_ones():
    """In float32 an angle of 100 000 radians is off by 0.004; the table is computed in float64."""
    position, width = 100_000, 6
    row = sinusoidal_encoding(position + 1, width)[position]
    angles = [position / 10_000 ** (2 * pair / width) for pair in range(3)]
    np.testing.assert_allclose(
        row[0::2], [math.sin(angle) for angle in angles], atol=1e-7
    )
    np.testing.assert_allclose(
        row[1::2], [math.cos(angle) for angle in angles], atol=1e-7
    )


def test_a_shift_is_a_rotation_of_each_pair():
    """The same rotation takes every row to the row 3 places further on."""
    table, width = sinusoidal_encoding(50, 8).double(), 8
    for pair in range(width // 2):
        angle = 3 / 10_000 ** (2 * pair / width)
        turn = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        ).double()
        rows = table[:, 2 * pair : 2 * pair + 2]
        torch.testing.assert_close(rows[:-3] @ turn.T, rows[3:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
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
    assert encoding(WIDTH, max_len=LENGTH)(random(BATCH, LENGTH, WIDTH)).shape == (
        BATCH,
        LENGTH,
        WIDTH,
    )
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
    module, x = (
        encoding(101, max_len=103, dropout=0.25),
        torch.full((BATCH, 103, 101), 5.0),
    )
    dropped = module(x) == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(
        module(x).mean(), (x + module.encoding).mean(), rtol=0.02, atol=0
    )
    module.eval()
    assert torch.equal(module(x), x + module.encoding)


# rotary


def test_angles_are_position_times_frequency():
    angles = rotary_angles(LENGTH, 6)
    assert angles.dtype == torch.float32
    expected = [
        [position * 10_000 ** (-2 * pair / 6) for pair in range(3)]
        for position in range(LENGTH)
    ]
    np.testing.assert_allclose(angles, expected, rtol=1e-6)


@pytest.mark.parametrize("base", [10_000.0, 100.0])
@pytest.mark.parametrize("lead", [(), (BATCH,), (BATCH, HEADS)], ids=str)
def test_rotation_equals_complex_multiplication(lead, base):
    x = random(*lead, LENGTH, 14)
    before = x.clone()
    turned = apply_rotary(x, rotary_angles(LENGTH, 14, base=base))
    np.testing.assert_allclose(turned, oracles.rotated(before, base), atol=1e-6)
    assert torch.equal(x, before)
    assert turned.dtype == x.dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rotation_keeps_half_precision(dtype):
    x = random(LENGTH, 6).to(dtype)
    turned = apply_rotary(x, rotary_angles(LENGTH, 6))
    assert turned.dtype == dtype
    np.testing.assert_allclose(
        oracles.doubles(turned), oracles.rotated(x), atol=4 * torch.finfo(dtype).eps
    )


def test_rotation_keeps_lengths_and_leaves_the_first_token_alone():
    x = random(BATCH, LENGTH, 14)
    turned = apply_rotary(x, rotary_angles(LENGTH, 14))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    assert torch.equal(turned[:, 0], x[:, 0])


def test_scores_depend_on_the_distance_alone():
    """The same query and key at every pair of places: the score is constant along each diagonal."""
    query, key = (
        random(1, 14).expand(K_LEN, 14),
        random(1, 14, seed=1).expand(K_LEN, 14),
    )
    angles = rotary_angles(K_LEN, 14)
    scores = dot_product_score(apply_rotary(query, angles), apply_rotary(key, angles))
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], atol=1e-5, rtol=0)
    assert scores[0].std() > 0.1


# ALiBi


def test_published_slopes():
    """Press et al. (2022): for 8 heads 1/2, 1/4, ... 1/256; 16 heads have the geometric means in between."""
    assert alibi_slopes(8).tolist() == [1 / 2**n for n in range(1, 9)]
    np.testing.assert_allclose(
        alibi_slopes(16), [2 ** (-n / 2) for n in range(1, 17)], rtol=1e-6
    )
    # For 12 heads the paper's code takes the 8 slopes of 8 heads, then every other one of 16 heads.
    assert alibi_slopes(12)[:8].tolist() == alibi_slopes(8).tolist()
    np.testing.assert_allclose(
        alibi_slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-6
    )


@pytest.mark.parametrize("num_heads", range(1, 34))
def test_slopes_differ_and_lie_between_0_and_1(num_heads):
    slopes = alibi_slopes(num_heads)
    assert slopes.shape == (num_heads,)
    assert slopes.dtype == torch.float32
    assert len(set(slopes.tolist())) == num_heads
    assert ((slopes > 0) & (slopes < 1)).all()


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 7), (7, 7), (7, 5), (1, 7)])
def test_bias_is_slope_times_distance(q_len, k_len):
    bias = alibi_bias(HEADS, q_len, k_len)
    assert bias.shape == (HEADS, q_len, k_len)
    assert bias.dtype == torch.float32
    for h, slope in enumerate(alibi_slopes(HEADS).tolist()):
        for i in range(q_len):
            for j in range(k_len):
                distance = abs(i + (k_len - q_len) - j)
                assert bias[h, i, j].item() == pytest.approx(
                    -slope * distance, rel=1e-6
                )


def test_bias_and_causal_mask_agree_where_the_diagonal_is():
    bias, visible = alibi_bias(HEADS, LENGTH, K_LEN), causal_mask(LENGTH, K_LEN)
    nearest = bias.masked_fill(~visible, -math.inf).argmax(-1)
    assert nearest.tolist() == [[i + K_LEN - LENGTH for i in range(LENGTH)]] * HEADS


def test_bias_is_square_by_default():
    assert torch.equal(alibi_bias(HEADS, LENGTH), alibi_bias(HEADS, LENGTH, LENGTH))
