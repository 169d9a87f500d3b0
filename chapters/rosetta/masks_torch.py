"""This course's attention and both of torch's, and their masks."""

import masks
import numpy as np
import torch
import torch.nn.functional as F
from masks import ADDED, HEADS, KEEP, LENS, NOTHING, ONE, ONE_ADDED, PADDING, THREE
from torch import nn
from torch.nn.attention.bias import causal_lower_right

from mha_lib import dot_product_attention


def tensors(arguments):
    """Arrays as tensors, all else as it is."""
    return {
        name: torch.tensor(x) if isinstance(x, np.ndarray) else x
        for name, x in arguments.items()
    }


def of_the_course(query, key, value, **arguments):
    """Output of `dot_product_attention`."""
    inputs = map(torch.tensor, (query, key, value))
    return dot_product_attention(*inputs, **tensors(arguments))[0]


def of_sdpa(query, key, value, **arguments):
    """Output of `F.scaled_dot_product_attention`."""
    inputs = map(torch.tensor, (query, key, value))
    return F.scaled_dot_product_attention(*inputs, **tensors(arguments))


def of_the_module(query, key, value, **arguments):
    """Output of `nn.MultiheadAttention`, all of whose matrices are identities."""
    _, heads, _, head_dim = query.shape
    width = heads * head_dim
    layer = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(width))
    folded = (
        torch.tensor(x).transpose(1, 2).flatten(2) for x in (query, key, value)
    )  # fmt: skip
    output, _ = layer(*folded, **tensors(arguments))
    return output.detach().unflatten(-1, (heads, head_dim)).transpose(1, 2)


def one_key(name, mask, added, **bias):
    """A mask in each dtype, under the name that it has."""
    dtypes = {"0 and 1, int": "int64", "0 and 1, float": "float32"}
    return {
        "bool": {name: mask},
        **{way: {name: mask.astype(dtype)} for way, dtype in dtypes.items()},
        "0 and −∞": {name: added},
        **bias,
    }


# The calls
COURSE = {
    "the batch": {
        "`attn_mask`, bool": {"attn_mask": KEEP},
        "`valid_lens`, `is_causal`": {"valid_lens": LENS, "is_causal": True},
    },
    "one key": one_key("attn_mask", ONE, ONE_ADDED),
    "three masks": {"rank 3": {"attn_mask": THREE}},
    "two queries, five keys": {"`is_causal`": {"is_causal": True}},
    "nothing": {
        "`attn_mask`": {"attn_mask": NOTHING},
        "`valid_lens=0`": {"valid_lens": np.array([0])},
    },
}
SDPA = {
    "the batch": {
        "`attn_mask`, bool": {"attn_mask": KEEP},
        "`attn_mask`, 0 or −∞": {"attn_mask": ADDED},
    },
    "one key": one_key("attn_mask", ONE, ONE_ADDED),
    "three masks": {"rank 3": {"attn_mask": THREE}},
    "two queries, five keys": {
        "`is_causal`": {"is_causal": True},
        "`causal_lower_right(2, 5)`": {"attn_mask": causal_lower_right(2, 5)},
    },
    "nothing": {
        "`attn_mask`, bool": {"attn_mask": NOTHING},
        "`attn_mask` of −∞": {"attn_mask": np.full(ONE.shape, -np.inf, "float32")},
    },
}
FUTURE = ~np.tri(len(KEEP[0, 0]), dtype=bool)
MODULE = {
    "the batch": {
        "`key_padding_mask`, `attn_mask`, bool": {
            "key_padding_mask": PADDING,
            "attn_mask": FUTURE,
        },
        "`attn_mask`, bool, (batch · heads, q_len, k_len)": {
            "attn_mask": ~KEEP[:, 0].repeat(HEADS, axis=0)
        },
    },
    "one key": one_key("attn_mask", ONE[0, 0], ONE_ADDED[0, 0]),
    "three masks": {"rank 3": {"attn_mask": THREE}},
    "two queries, five keys": {"`is_causal` alone": {"is_causal": True}},
    "nothing": {"`attn_mask`": {"attn_mask": ~NOTHING[0, 0]}},
}
CALLS = {
    "this course": (of_the_course, dot_product_attention, COURSE),
    "torch SDPA": (of_sdpa, None, SDPA),  # a builtin: its signature is in its docstring
    "torch module": (of_the_module, nn.MultiheadAttention.forward, MODULE),
}
OF_SDPA = "query key value attn_mask dropout_p is_causal scale enable_gqa".split()

if __name__ == "__main__":
    torch.set_num_threads(1)
    masks.main(
        {"torch": torch.__version__.split("+")[0]},
        {
            name: (masks.names(call) if call else OF_SDPA, masks.measure(attend, asked))
            for name, (attend, call, asked) in CALLS.items()
        },
    )
