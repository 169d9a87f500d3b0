"""What attention is asked in the tests: sizes, masks, biases, layers of every kind, and the loop's answers.

Every axis has another prime size, so that no two of them can be confused. Rotary positions and groups of
heads need even widths; what they are tested with has EVEN in its name.
"""

import functools

import oracles
import pytest
import torch
from random_tensors import bools, random
from torch import nn

from mha_lib import (
    AdditiveScore,
    BilinearScore,
    MultiHeadAttention,
    cosine_score,
    scaled_dot_product_score,
    sliding_window_mask,
)
from mha_lib.positional import RotaryPositionalEncoding, ShawScore

BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13
EMBED_DIM, KDIM, VDIM = HEADS * HEAD_DIM, 17, 19
EVEN_HEAD_DIM = 10
EVEN_DIM = HEADS * EVEN_HEAD_DIM

BOTH_PATHS = pytest.mark.parametrize("need_weights", [True, False], ids=["readable", "fused"])
HALVES = (torch.bfloat16, torch.float16)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
# How far from the loop attention in a dtype may be.
ERRORS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# torch.compile looks into every function, also into the shape checks of tests/conftest.py.
TRACED = pytest.mark.no_shape_checks
SLOW = pytest.mark.slow


def slow(*values):
    """A case that only `make test-all` runs."""
    return pytest.param(*values, marks=SLOW)


# For what takes seconds on each path: with weights, the same operations are traced as in any other function.
FUSED_FIRST = pytest.mark.parametrize("need_weights", [slow(True), False], ids=["readable", "fused"])


# masks


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


# biases, and all that may be asked for

BIAS = random(BATCH, HEADS, Q_LEN, K_LEN, seed=7)
BIASES = {
    "of pairs": BIAS[0, 0],
    "of keys": BIAS[0, 0, :1],
    "of queries": BIAS[0, 0, :, :1],
    "of everything": BIAS,
    "of heads": BIAS[:1],
    "of samples": BIAS[:, :1],
    "of keys of heads": BIAS[:1, :, :1],
    "large": 1e4 * BIAS,
}
# Beside queries, keys and values.
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
    """The loop's answer for `qkv` of that dtype, (output, weights) in float64."""
    return exact(*qkv(dtype, **shapes), **ASKED[asked])


# layers


def make_layer(**options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, HEADS, **options).double()
    for parameter in layer.parameters():  # biases start at 0: a test that leaves them there cannot see them
        nn.init.normal_(parameter, std=0.3)
    return layer


def make_inputs(kdim=EMBED_DIM, vdim=EMBED_DIM):
    query = random(BATCH, Q_LEN, EMBED_DIM)
    return query, random(BATCH, K_LEN, kdim, seed=1), random(BATCH, K_LEN, vdim, seed=2)


def even_layer(dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EVEN_DIM, HEADS, bias=True, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.to(dtype)


def even_inputs(dtype=torch.float64, batch=BATCH, q_len=Q_LEN, k_len=K_LEN):
    lengths = (q_len, k_len, k_len)
    return [random(batch, n, EVEN_DIM, seed=i, dtype=dtype) for i, n in enumerate(lengths)]  # fmt: skip


KINDS = {
    "plain": {},
    "shared keys": {"num_kv_heads": 1},
    "rotary": {"rotary": lambda: RotaryPositionalEncoding(EVEN_HEAD_DIM)},
    "cosine": {"score": lambda: cosine_score},
    "scaled otherwise": {"score": lambda: functools.partial(scaled_dot_product_score, scale=0.1)},
    "additive": {"score": lambda: AdditiveScore(EVEN_HEAD_DIM, EVEN_HEAD_DIM, 17)},
    "bilinear": {"score": lambda: BilinearScore(EVEN_HEAD_DIM, EVEN_HEAD_DIM)},
    "Shaw": {"score": lambda: ShawScore(EVEN_HEAD_DIM, 2)},
    "rotary, shared keys, dropout": {
        "rotary": lambda: RotaryPositionalEncoding(EVEN_HEAD_DIM),
        "num_kv_heads": 1,
        "dropout": 0.25,
    },
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def layer_of(kind, dtype=torch.float64):
    options = {name: part() if callable(part) else part for name, part in KINDS[kind].items()}  # fmt: skip
    return even_layer(dtype, **options)
