"""`keras.layers.MultiHeadAttention` and its masks, on the backend that KERAS_BACKEND names."""

import importlib
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # before the import
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import masks
import numpy as np
from keras import ops
from masks import KEEP, NOTHING, ONE, ONE_ADDED, PADDING, THREE


def identity(heads, head_dim, **options):
    """A layer that changes nothing before and after it attends: all its matrices are identities."""
    width = heads * head_dim
    layer = keras.layers.MultiHeadAttention(heads, head_dim, use_bias=False, **options)
    layer.build((None, None, width), (None, None, width), (None, None, width))
    for variable in layer.trainable_variables:
        variable.assign(np.eye(width).reshape(variable.shape))
    return layer


def attend(query, key, value, sliding_window=None, **arguments):
    """The layer takes (batch, len, width), in the order query, value, key."""
    batch, heads, q_len, head_dim = query.shape
    layer = identity(heads, head_dim, sliding_window=sliding_window)
    query, value, key = (
        np.swapaxes(x, 1, 2).reshape(batch, -1, heads * head_dim)
        for x in (query, value, key)
    )
    output = layer(query, value, key, **arguments)
    if arguments.get("return_attention_scores"):
        output, _ = output
    output = ops.convert_to_numpy(output).reshape(batch, q_len, heads, head_dim)
    return output.swapaxes(1, 2)


# The calls
ASKED = {
    "the batch": {
        "`attention_mask`, bool": {"attention_mask": KEEP[:, 0]},
        "`attention_mask` of the padding, `use_causal_mask`": {
            "attention_mask": ~PADDING[:, None, :],
            "use_causal_mask": True,
        },
        "`key_mask`, `use_causal_mask`": {
            "key_mask": ~PADDING,
            "use_causal_mask": True,
        },
    },
    "one key": {
        "bool": {"attention_mask": ONE[0]},
        "0 and 1, int": {"attention_mask": ONE[0].astype("int32")},
        "0 and 1, float": {"attention_mask": ONE[0].astype("float32")},
        "0 and −∞": {"attention_mask": ONE_ADDED[0]},
    },
    "three masks": {"rank 3": {"attention_mask": THREE}},
    "two queries, five keys": {
        "`use_causal_mask`": {"use_causal_mask": True},
        "`sliding_window=2`, `use_causal_mask`": {
            "sliding_window": 2,
            "use_causal_mask": True,
        },
    },
    "five queries, five keys": {
        "`sliding_window=2`, `use_causal_mask`": {
            "sliding_window": 2,
            "use_causal_mask": True,
        },
        "`sliding_window=2`": {"sliding_window": 2},
    },
    "nothing": {
        "`attention_mask`, weights asked for": {
            "attention_mask": NOTHING[0],
            "return_attention_scores": True,
        },
        "`attention_mask`, no weights": {"attention_mask": NOTHING[0]},
    },
}


def mask_of_an_embedding():
    """Who sees whom in a sentence of two words and two paddings, where nobody has given a mask."""
    words = keras.layers.Embedding(10, 4, mask_zero=True)(np.array([[1, 2, 0, 0]]))
    layer = keras.layers.MultiHeadAttention(1, 4)
    _, weights = layer(words, words, return_attention_scores=True)
    return masks.pattern(ops.convert_to_numpy(weights))


if __name__ == "__main__":
    found = masks.measure(attend, ASKED)
    found["mask of an embedding"] = mask_of_an_embedding()
    layer = keras.layers.MultiHeadAttention
    backend = keras.backend.backend()
    version = importlib.import_module(backend).__version__.split("+")[0]
    masks.main(
        {"keras": keras.__version__, backend: version},
        {
            "keras.layers.MultiHeadAttention": (
                masks.names(layer.__init__, layer.call),
                found,
            )
        },
    )
