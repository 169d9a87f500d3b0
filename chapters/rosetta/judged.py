"""What `attention_check` says of the attentions of torch, JAX, Flax and Keras, and of this course's."""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # before the import

import flax
import jax
import keras
import numpy as np
import torch
import torch.nn.functional as F
from flax import nnx
from torch import nn

from attention_check import check
from mha_lib import MultiHeadAttention, dot_product_attention

WIDTH, HEADS = 33, 3


def of_torch(query, key, value, mask=None, is_causal=False):
    """Torch's function; key heads are shared only where it is asked to."""
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, enable_gqa=True
    )


def of_jax(query, key, value, mask=None, is_causal=False):
    """JAX's function, which has the heads behind the length."""
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask, is_causal=is_causal
    )


def of_flax(query, key, value, mask=None, is_causal=False):
    """Flax's function."""
    return nnx.dot_product_attention(query, key, value, mask=mask, is_causal=is_causal)


def of_keras():
    """The report on Keras' layer, whose kernels are (width, heads, head_dim)."""
    layer = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, use_bias=False)
    layer.build((None, None, WIDTH), (None, None, WIDTH), (None, None, WIDTH))
    kernels = dict(
        zip(
            ("q_proj", "k_proj", "v_proj", "out_proj"),
            map(np.asarray, layer.trainable_variables),
            strict=True,
        )
    )
    projections = {
        name: (
            kernel.reshape(-1, WIDTH).T.copy()
            if name == "out_proj"
            else kernel.reshape(WIDTH, -1).T.copy()
        )
        for name, kernel in kernels.items()
    }

    def attend(query, key, value, mask=None, is_causal=False):
        output = layer(
            query, value, key, attention_mask=mask, use_causal_mask=is_causal
        )
        return np.asarray(output)

    return check(attend, projections=projections, num_heads=HEADS, arrays="numpy")


def reports():
    """Attention -> its report."""
    numpy = {"arrays": "numpy", "layout": "blhd"}
    return {
        "mha_lib.dot_product_attention": check(dot_product_attention),
        "mha_lib.MultiHeadAttention": check(MultiHeadAttention(WIDTH, HEADS)),
        "torch.nn.functional.scaled_dot_product_attention": check(of_torch),
        "torch.nn.MultiheadAttention": check(nn.MultiheadAttention(WIDTH, HEADS)),
        "jax.nn.dot_product_attention": check(of_jax, **numpy),
        "flax.nnx.dot_product_attention": check(of_flax, **numpy),
        "keras.layers.MultiHeadAttention": of_keras(),
    }


def said(found):
    """ "right", the name of the fault, or why it was not tried."""
    if found.kind in ("right", "not tried"):
        return str(found) if found.kind == "not tried" else "right"
    return found.message.partition(". ")[0]


if __name__ == "__main__":
    torch.manual_seed(0)
    keras.utils.set_random_seed(0)
    versions = {"torch": torch.__version__.split("+")[0]}
    versions |= {module.__name__: module.__version__ for module in (jax, flax, keras)}
    found = {
        name: {aspect: said(found) for aspect, found in report.findings.items()}
        for name, report in reports().items()
    }
    print(json.dumps({"versions": versions, "judged": found}, ensure_ascii=False))
