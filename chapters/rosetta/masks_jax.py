"""`jax.nn.dot_product_attention` and its masks."""

import jax
import masks
import numpy as np
from jax.nn import dot_product_attention
from masks import ADDED, KEEP, LENS, NOTHING, ONE, ONE_ADDED, THREE


def attend(query, key, value, **arguments):
    """JAX has the heads behind the length: (batch, len, heads, head_dim)."""
    inputs = (x.swapaxes(1, 2) for x in (query, key, value))
    return dot_product_attention(*inputs, **arguments).swapaxes(1, 2)


# The calls
ASKED = {
    "the batch": {
        "`mask`, bool": {"mask": KEEP},
        "`bias`, 0 or −∞": {"bias": ADDED},
        "`key_value_seq_lengths`, `is_causal`": {
            "key_value_seq_lengths": LENS,
            "is_causal": True,
        },
        "`mask` of the padding, `is_causal`": {
            "mask": KEEP[:, :, -1:],
            "is_causal": True,
        },
    },
    "one key": {
        "bool": {"mask": ONE},
        "0 and 1, int": {"mask": ONE.astype("int32")},
        "0 and 1, float": {"mask": ONE.astype("float32")},
        "0 and −∞": {"mask": ONE_ADDED},
        "0 and −∞, `bias`": {"bias": ONE_ADDED},
    },
    "three masks": {"rank 3": {"mask": THREE}},
    "two queries, five keys": {
        "`is_causal`": {"is_causal": True},
        "`local_window_size=(1, 0)`": {"local_window_size": (1, 0)},
    },
    "five queries, five keys": {
        "`local_window_size=(1, 0)`": {"local_window_size": (1, 0)},
        "`local_window_size=1`": {"local_window_size": 1},
    },
    "nothing": {
        "`mask`": {"mask": NOTHING},
        "`key_value_seq_lengths=0`": {"key_value_seq_lengths": np.array([0])},
        "`bias` of −∞": {"bias": np.full(ONE.shape, -np.inf, "float32")},
    },
}

if __name__ == "__main__":
    found = masks.measure(attend, ASKED)
    masks.main(
        {"jax": jax.__version__},
        {"jax.nn.dot_product_attention": (masks.names(dot_product_attention), found)},
    )
