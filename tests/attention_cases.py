"""What attention is asked in the tests: masks, biases, and the loop's answers."""

import functools

import oracles
import pytest
import torch
from attention_sizes import BATCH, HEAD_DIM, HEADS, K_LEN, Q_LEN
from random_tensors import bools, random

from mha_lib.masking import sliding_window_mask


def all_but(mask, *row):
    """The same mask with one row hidden altogether."""
    mask[row] = False
    return mask


def some_rows_hidden():
    mask = bools(BATCH, HEADS, Q_LEN, K_LEN)
    mask[0, 1, 3] = mask[1, :, 2] = False
    return mask


LENS, NO_LENS = torch.tensor([3, 7]), torch.tensor([0, 4])
LENS_2D = torch.tensor([[1, 2, 3, 4, 5], [7, 6, 5, 4, 3]])
HIDING = {
    "nothing": {},
    "mask": {"attn_mask": bools(Q_LEN, K_LEN)},
    "mask of keys": {"attn_mask": bools(1, K_LEN)},
    "mask of samples": {"attn_mask": bools(BATCH, Q_LEN, K_LEN)},
    "mask of keys of samples": {"attn_mask": bools(BATCH, 1, K_LEN)},
    "lens": {"valid_lens": LENS},
    "lens of queries": {"valid_lens": LENS_2D},
    "causal": {"is_causal": True},
    "mask, lens": {"attn_mask": bools(BATCH, Q_LEN, K_LEN), "valid_lens": LENS},
    "mask, causal": {"attn_mask": bools(Q_LEN, K_LEN), "is_causal": True},
    "lens, causal": {"valid_lens": LENS, "is_causal": True},
    "all three": {"attn_mask": bools(Q_LEN, K_LEN), "valid_lens": LENS_2D, "is_causal": True},
    "hidden row": {"attn_mask": all_but(bools(BATCH, Q_LEN, K_LEN), 1, 2)},
    "hidden sample": {"valid_lens": torch.tensor([0, 4])},
    "hidden queries": {"valid_lens": torch.tensor([[0, 2, 0, 3, 4], [7, 0, 5, 0, 3]])},
}
HIDING_HEADS = HIDING | {
    "mask of heads": {"attn_mask": bools(BATCH, HEADS, Q_LEN, K_LEN)},
    "mask of heads alike in samples": {"attn_mask": bools(1, HEADS, Q_LEN, K_LEN)},
    "mask of samples with head axis": {"attn_mask": bools(BATCH, 1, Q_LEN, K_LEN)},
    "mask of heads, lens, causal": {
        "attn_mask": bools(BATCH, HEADS, Q_LEN, K_LEN), "valid_lens": LENS, "is_causal": True
    },
    "hidden row of a head": {"attn_mask": all_but(bools(BATCH, HEADS, Q_LEN, K_LEN), 0, 1, 4)},
}  # fmt: skip


def hidden_rows(lead, q_len=Q_LEN, k_len=K_LEN, **hide):
    """Where a query may attend to nothing: bool of shape (*lead, q_len), lead (batch,) or (batch, heads)."""
    visible = oracles.visible_pairs(lead[0], *(lead[1:] or (1,)), q_len, k_len, **hide)
    return torch.from_numpy(~visible.any(-1)).reshape(*lead, q_len)


BIAS = random(BATCH, HEADS, Q_LEN, K_LEN, seed=7)
BIASES = {
    "of pairs": BIAS[0, 0], "of keys": BIAS[0, 0, :1], "of queries": BIAS[0, 0, :, :1],
    "of everything": BIAS, "of heads": BIAS[:1], "of samples": BIAS[:, :1],
    "of keys of heads": BIAS[:1, :, :1], "large": 1e4 * BIAS,
}  # fmt: skip
# The arguments besides queries, keys and values.
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
# What torch's kernel computes: a softcap takes the readable path.
FUSED = [name for name, parts in ASKED.items() if "softcap" not in parts]


def qkv(dtype=torch.float64, *, heads=HEADS, kv_heads=HEADS, q_len=Q_LEN, k_len=K_LEN, value_dim=HEAD_DIM):
    """Query, key and value for `dot_product_attention`.

    Values are as wide as keys: on a CPU torch's fused kernel runs for no others, and its slow formula, which
    has other habits, takes its place.
    """
    shapes = (heads, q_len, HEAD_DIM), (kv_heads, k_len, HEAD_DIM), (kv_heads, k_len, value_dim)
    return [random(BATCH, *s, seed=n, dtype=dtype) for n, s in enumerate(shapes)]


def exact(query, key, value, **asked):
    output, weights = oracles.attention(query, key, value, **asked)
    return torch.from_numpy(output), torch.from_numpy(weights)


@functools.cache
def exact_for(asked, dtype=torch.float64, **shapes):
    """The loop's answer for `qkv` of that dtype, (output, weights) in float64."""
    return exact(*qkv(dtype, **shapes), **ASKED[asked])
