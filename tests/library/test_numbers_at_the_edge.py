"""What is rare and right: far positions, padding and lengths, tangents, sizes that numpy made."""

import copy
import math

import numpy as np
import pytest
import torch
from attention_marks import BOTH_PATHS
from random_tensors import random
from torch.autograd import forward_ad

from mha_lib import (
    GPT2,
    Llama,
    MultiHeadAttention,
    RotaryPositionalEncoding,
    apply_rotary,
    dot_product_attention,
    gate_heads,
    generate,
    rotary_angles,
)
from mha_lib.models.rotary_scaling import RotaryScaling

# Rotations at far positions


@pytest.mark.parametrize("interleaved", [True, False])
def test_far_positions_are_rotated_exactly(interleaved):
    """An angle of a million radians is off by 0.03 in float32."""
    far, x = 1_000_003, random(1, 3, 8)
    rotary = RotaryPositionalEncoding(8, interleaved=interleaved)
    found = rotary(x, far + torch.arange(3))
    for row, pair in np.ndindex(3, 4):
        one, two = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 4)
        angle = (far + row) * 10_000.0 ** (-2 * pair / 8)
        number = complex(x[0, row, one], x[0, row, two]) * complex(math.cos(angle), math.sin(angle))
        assert abs(number - complex(found[0, row, one], found[0, row, two])) < 1e-9
    torch.testing.assert_close(rotary(x.float(), far + torch.arange(3)), found.float())
    angles = rotary_angles(far + torch.arange(3), 8, dtype=torch.float64)
    torch.testing.assert_close(apply_rotary(x, angles, interleaved=interleaved), found)
    assert rotary_angles(3, 8).dtype == torch.float32


def test_angles_in_half_precision_are_refused():
    with pytest.raises(TypeError, match="dtype must be torch.float32 or torch.float64, got dtype"):
        rotary_angles(3, 8, dtype=torch.bfloat16)


# Padding and the length on which dynamic scaling depends

LENS = torch.tensor([24, 6, 15])


def long_reader():
    torch.manual_seed(0)
    scaling = RotaryScaling("dynamic", 4.0, trained_len=5)
    return Llama(19, 12, 3, 17, 2, max_len=96, scaling=scaling).double().eval()


@pytest.mark.parametrize("by", ["valid_lens", "key_mask", "padding on the left", "a cache"])
def test_padding_is_not_counted_by_dynamic_scaling(by):
    """A short sample turned as slowly as the longest of its batch."""
    model, tokens = long_reader(), torch.randint(19, (3, 24), generator=torch.Generator().manual_seed(0))
    left = by == "padding on the left"
    mask = torch.arange(24) < LENS[:, None]
    given = torch.stack(
        [row.roll(24 - n if left else 0) for row, n in zip(tokens, LENS.tolist(), strict=True)]
    )
    options = {
        "valid_lens": {"valid_lens": LENS},
        "key_mask": {"key_mask": mask},
        "padding on the left": {"key_mask": mask.flip(1)},
        "a cache": {"valid_lens": LENS, "cache": model.new_cache()},
    }[by]
    hidden = model(given, **options)[0]
    for row, n in enumerate(LENS.tolist()):
        alone = model(tokens[row, None, :n])[0][0]
        torch.testing.assert_close(hidden[row, 24 - n :] if left else hidden[row, :n], alone)
    if by == "a cache":
        new = tokens[:, :2]
        steps = model(new, cache=options["cache"])[0]
        for row, n in enumerate(LENS.tolist()):
            own = model.new_cache()
            model(tokens[row, None, :n], cache=own)
            torch.testing.assert_close(steps[row], model(new[row, None], cache=own)[0][0])


def test_prompts_of_different_lengths_are_continued_as_if_alone_with_dynamic_scaling():
    model, tokens = long_reader(), torch.randint(19, (3, 24), generator=torch.Generator().manual_seed(1))
    for use_cache in (True, False):
        answers, _ = generate(model, tokens, prompt_lens=LENS, max_new=4, use_cache=use_cache)
        for row, n in enumerate(LENS.tolist()):
            alone, _ = generate(model, tokens[row, None, :n], max_new=4, use_cache=use_cache)
            assert torch.equal(answers[row], alone[0])


# Forward-mode derivatives


@pytest.mark.parametrize("asked", [{}, {"is_causal": True}, {"valid_lens": torch.tensor([3, 20])}], ids=str)
def test_forward_derivatives_without_weights(asked):
    """Torch's kernel has none and raised a bare error."""
    inputs = [random(2, 3, 20, 8, seed=seed) for seed in range(3)]
    tangents = [random(2, 3, 20, 8, seed=seed) for seed in (3, 4, 5)]
    found = []
    for need_weights in (True, False):
        with forward_ad.dual_level():
            dual = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
            output = dot_product_attention(*dual, need_weights=need_weights, **asked)[0]
            found.append(forward_ad.unpack_dual(output))
    torch.testing.assert_close(found[1].primal, found[0].primal)
    torch.testing.assert_close(found[1].tangent, found[0].tangent)

    def attend(*qkv):
        return dot_product_attention(*qkv, need_weights=False, **asked)[0]

    _, tangent = torch.func.jvp(attend, tuple(inputs), tuple(tangents))
    torch.testing.assert_close(tangent, found[0].tangent)


# Copies inside a block that switches heads off


def test_a_copy_made_while_heads_are_gated_is_not_gated():
    layer, x = MultiHeadAttention(12, 3), torch.rand(2, 5, 12)
    expected = layer(x)[0]
    with gate_heads(layer, torch.zeros(3)):
        twin = copy.deepcopy(layer)
        torch.testing.assert_close(twin(x)[0], expected)
        assert not layer(x)[0].any()
    torch.testing.assert_close(layer(x)[0], expected)
    torch.testing.assert_close(twin(x)[0], expected)


# Numbers that numpy made


@pytest.mark.no_shape_checks  # The annotations say `int`; numpy's integers are accepted beside it.
def test_sizes_of_numpy_are_sizes():
    layer = MultiHeadAttention(np.int64(12), np.int32(3), num_kv_heads=np.int64(1), dropout=np.float32(0.5))
    assert (
        type(layer.head_dim) is int
        and layer.extra_repr() == MultiHeadAttention(12, 3, num_kv_heads=1).extra_repr()
    )
    model = GPT2(
        np.int64(19), np.int64(12), np.int64(3), np.int64(7), np.int64(2), max_len=np.int64(9)
    ).eval()
    answers, _ = generate(model, torch.tensor([[1, 2]]), max_new=np.int64(3), stop=np.int64(4))
    assert answers.shape[:2] == (1, 1)
    layer.eval()(torch.rand(1, 4, 12))


def test_a_bool_of_numpy_is_named_as_such():
    with pytest.raises(TypeError, match=r"is_causal must be a bool, got numpy\.bool"):
        MultiHeadAttention(12, 3)(torch.rand(1, 4, 12), is_causal=np.bool_(1))
    for wrong in (np.bool_(1), np.float64(12.0), 12.0, "12", torch.tensor(12)):
        with pytest.raises(TypeError, match="embed_dim must be an int"):
            MultiHeadAttention(wrong, 3)


# Small causal calls


@BOTH_PATHS
@pytest.mark.parametrize("length", [1, 2, 8, 15, 16])
def test_a_small_causal_call_marks_nothing_that_is_finite(length, need_weights, monkeypatch):
    """Marks for NaN took as long as the attention itself; now they are only made where a number is odd."""
    marked = []
    monkeypatch.setattr("mha_lib._fast._nan_rows", lambda *_: marked.append(1))
    x = random(2, 3, length, 4)
    dot_product_attention(x, x, x, is_causal=True, need_weights=need_weights)
    assert not marked
