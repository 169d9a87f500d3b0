"""masking.py, compared with a rule that is written out for each pair of a query and a key."""

import itertools

import numpy as np
import oracles
import pytest
import torch

from mha_lib import align_bias, align_mask, build_mask, causal_mask, sliding_window_mask, valid_lens_mask

BATCH, HEADS, Q_LEN, K_LEN = 2, 3, 5, 7


def bools(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


ATTN_MASKS = {
    "none": None, "q k": bools(Q_LEN, K_LEN), "b q k": bools(BATCH, Q_LEN, K_LEN),
    "b h q k": bools(BATCH, HEADS, Q_LEN, K_LEN), "1 k": bools(1, K_LEN),
    "q 1": bools(Q_LEN, 1, seed=3), "b 1 k": bools(BATCH, 1, K_LEN), "1 q k": bools(1, Q_LEN, K_LEN),
    "1 h q k": bools(1, HEADS, Q_LEN, K_LEN), "b 1 q k": bools(BATCH, 1, Q_LEN, K_LEN),
    "1 h 1 k": bools(1, HEADS, 1, K_LEN),
}  # fmt: skip
VALID_LENS = {
    "none": None, "a sample": torch.tensor([3, 7]), "a hidden sample": torch.tensor([0, 4]),
    "a query": torch.tensor([[0, 1, 2, 3, 4], [7, 6, 5, 0, 3]]), "one sample": torch.tensor([4]),
    "b 1": torch.tensor([[2], [6]]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_valid_lens_show_the_first_keys(dtype):
    lens = torch.tensor([0, 1, 5, 7], dtype=dtype)
    mask = valid_lens_mask(lens, K_LEN)
    assert mask.dtype == torch.bool
    assert mask.shape == (4, 1, K_LEN)
    assert mask.tolist() == [[[j < length for j in range(K_LEN)]] for length in lens.tolist()]


def test_lengths_of_an_empty_batch_or_of_no_keys():
    assert valid_lens_mask(torch.zeros(0, dtype=torch.long), K_LEN).shape == (0, 1, K_LEN)
    assert valid_lens_mask(torch.zeros(2, dtype=torch.long), 0).shape == (2, 1, 0)


@pytest.mark.parametrize(("q_len", "k_len"), [*itertools.product([0, 1, 2, 5, 7], repeat=2)])
def test_causal_mask_ends_with_the_last_key(q_len, k_len):
    mask = causal_mask(q_len, k_len)
    assert mask.dtype == torch.bool
    assert mask.shape == (q_len, k_len)
    assert mask.tolist() == [[j <= i + k_len - q_len for j in range(k_len)] for i in range(q_len)]
    if q_len and k_len:
        assert mask[-1].all()


def test_causal_mask_is_square_by_default():
    assert torch.equal(causal_mask(5), causal_mask(5, 5))
    assert torch.equal(causal_mask(5), torch.ones(5, 5).tril().bool())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lens", VALID_LENS)
@pytest.mark.parametrize("mask", ATTN_MASKS)
def test_build_mask_is_the_and_of_all(mask, lens, is_causal):
    hide = {"attn_mask": ATTN_MASKS[mask], "valid_lens": VALID_LENS[lens], "is_causal": is_causal}
    before = {name: part.clone() for name, part in hide.items() if isinstance(part, torch.Tensor)}
    if lens == "one sample" and mask.startswith("b"):  # one length does not fit two samples
        with pytest.raises(ValueError, match=r"valid_lens must have shape .* got \(1,\)"):
            build_mask(Q_LEN, K_LEN, **hide)
        return
    built = build_mask(Q_LEN, K_LEN, **hide)
    if mask == "none" and lens == "none" and not is_causal:
        assert built is None
        return
    shape = (BATCH, HEADS, Q_LEN, K_LEN)
    assert built.dtype == torch.bool
    everywhere = align_mask(built, shape).expand(shape)
    np.testing.assert_array_equal(everywhere.numpy(), oracles.visible_pairs(*shape, **hide))
    assert all(torch.equal(hide[name], part) for name, part in before.items())


def test_build_mask_does_not_hand_out_memory_of_its_parts_when_it_combines():
    mask, lens = bools(Q_LEN, K_LEN), torch.tensor([3, 7])
    before = mask.clone()
    build_mask(Q_LEN, K_LEN, attn_mask=mask, valid_lens=lens, is_causal=True).zero_()
    assert torch.equal(mask, before)


def test_masks_are_made_where_their_parts_are():
    assert build_mask(Q_LEN, K_LEN, is_causal=True, device="meta").is_meta
    assert build_mask(Q_LEN, K_LEN, valid_lens=torch.tensor([3, 7], device="meta"), is_causal=True).is_meta
    assert build_mask(Q_LEN, K_LEN, attn_mask=bools(Q_LEN, K_LEN).to("meta"), is_causal=True).is_meta
    assert causal_mask(Q_LEN, device="meta").is_meta


def test_align_mask_is_a_view():
    mask = bools(BATCH, Q_LEN, K_LEN)
    aligned = align_mask(mask, (BATCH, HEADS, Q_LEN, K_LEN))
    assert aligned.shape == (BATCH, 1, Q_LEN, K_LEN)
    assert aligned.data_ptr() == mask.data_ptr()


def test_the_first_of_three_axes_is_the_batch_even_where_there_are_as_many_heads():
    mask = bools(3, Q_LEN, K_LEN)
    shape = (3, 3, Q_LEN, K_LEN)
    everywhere = align_mask(mask, shape).expand(shape)
    for b, h in itertools.product(range(3), repeat=2):
        assert torch.equal(everywhere[b, h], mask[b])


@pytest.mark.parametrize("right", [None, 0, 1, 9])
@pytest.mark.parametrize("left", [None, 0, 2, 9])
@pytest.mark.parametrize(("q_len", "k_len"), [*itertools.product([0, 1, 5, 7], repeat=2)])
def test_a_window_shows_the_keys_around_a_position(q_len, k_len, left, right):
    mask = sliding_window_mask(q_len, k_len, left=left, right=right)
    assert mask.dtype == torch.bool
    assert mask.shape == (q_len, k_len)
    expected = oracles.visible_pairs(1, 1, q_len, k_len, window=(left, right))
    np.testing.assert_array_equal(mask.numpy(), expected[0, 0])


def test_windows_without_a_side():
    assert torch.equal(sliding_window_mask(5, 7, left=None), causal_mask(5, 7))
    assert sliding_window_mask(5, 7, left=None, right=None).all()
    assert torch.equal(sliding_window_mask(5, left=3), sliding_window_mask(5, 5, left=3))  # fmt: skip
    assert torch.equal(sliding_window_mask(7, left=0), torch.eye(7).bool())
    assert sliding_window_mask(5, 7, left=2, device="meta").is_meta


@pytest.mark.parametrize(("bias", "scores"), [
    *((bias, (2, 3, 5, 7)) for bias in ((5, 7), (1, 7), (5, 1))),
    *((bias, (2, 3, 5, 7)) for bias in ((2, 3, 5, 7), (1, 3, 5, 7), (2, 1, 1, 7))),
    *((bias, (2, 5, 7)) for bias in ((2, 5, 7), (1, 5, 7), (5, 7))), ((5, 7), (5, 7)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_bias_that_fits_is_handed_back(bias, scores, dtype):
    given = torch.ones(bias, dtype=dtype)
    aligned = align_bias(given, scores)
    assert aligned is given
    assert torch.broadcast_shapes(aligned.shape, scores) == scores


@pytest.mark.parametrize(("bias", "scores"), [
    *((bias, (2, 3, 5, 7)) for bias in ((3, 5, 7), (2, 5, 7), (1, 5, 7), (7, 5), (5, 6), (7,))),
    *((bias, (2, 3, 5, 7)) for bias in ((2, 2, 5, 7), (3, 3, 5, 7), (2, 1, 3, 5, 7))),
    ((3, 5, 7), (3, 3, 5, 7)), ((2, 3, 5, 7), (2, 5, 7)), ((2, 5, 7), (5, 7)), ((), (5, 7)),
    ((2, 5, 7), (1, 5, 7)),
])  # fmt: skip
def test_an_ambiguous_bias_is_refused(bias, scores):
    """Three axes against four: is the first that of samples, as in a mask, or of heads, as in ALiBi?"""
    with pytest.raises(ValueError, match=r"attn_bias must .* got") as caught:
        align_bias(torch.zeros(bias), scores)
    hinted = "attn_bias[None] gives it a batch axis" in str(caught.value)
    assert hinted == (len(bias) == 3 and len(scores) == 4)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan], ids=str)
def test_a_bias_hides_nothing(bad):
    bias = torch.zeros(Q_LEN, K_LEN)
    bias[3, 2] = bad
    with pytest.raises(ValueError, match="attn_bias must be finite"):
        align_bias(bias, (BATCH, HEADS, Q_LEN, K_LEN))
    with pytest.raises(ValueError, match="other must be finite"):
        align_bias(bias, (BATCH, HEADS, Q_LEN, K_LEN), name="other")


def test_biases_without_numbers():
    assert align_bias(torch.empty(5, 7, device="meta"), (2, 3, 5, 7)).is_meta
    assert align_bias(torch.ones(0, 7), (2, 3, 0, 7)).shape == (0, 7)
    learned = torch.zeros(5, 7, requires_grad=True)
    assert align_bias(learned, (2, 3, 5, 7)) is learned
    assert torch.vmap(lambda b: align_bias(b, (5, 7)) + 1)(torch.zeros(2, 5, 7)).shape == (2, 5, 7)
