"""What Gluon does by default, measured. MXNet 1.9 has no attention layer, so only its `Dense` is asked."""

import json
import math

import facts
import mxnet
import numpy
from mxnet import np, npx
from mxnet.gluon import nn

npx.set_np()


def fresh(width):
    """A `Dense` that has seen one input."""
    dense = nn.Dense(width, flatten=False)
    dense.initialize()
    dense(np.ones((2, 3, width)))
    return dense


def inferred_sizes():
    """The shape of the matrix before the first input and after it, and what a second width gives."""
    dense = nn.Dense(6, flatten=False)
    dense.initialize()
    before = list(dense.weight.shape)
    dense(np.ones((2, 3, 4)))
    after = list(dense.weight.shape)
    return {"before": before, "after": after, "second": second_width(dense)}


def second_width(dense):
    """What the same `Dense` says to inputs of another width."""
    try:
        return str(dense(np.ones((2, 3, 5))).asnumpy().shape)
    except mxnet.base.MXNetError as error:
        lines = [line for line in str(error).splitlines() if "Error" in line]
        return " ".join(lines[-1].split())[:160]


def flattened():
    """The shape that `Dense` gives without `flatten=False`."""
    dense = nn.Dense(6)
    dense.initialize()
    return list(dense(np.ones((2, 3, 4))).shape)


if __name__ == "__main__":
    mxnet.random.seed(0)
    matrices = numpy.stack([fresh(64).weight.data().asnumpy() for _ in range(8)])
    bias = fresh(64).bias.data().asnumpy()
    found = {
        "layers": {},
        "inferred sizes": inferred_sizes(),
        "without flatten=False": flattened(),
        "initialisation of Dense": facts.describe(matrices, 64),
        "biases are zero": bool((bias == 0).all()),
    }
    assert math.isfinite(found["initialisation of Dense"]["std"])
    print(json.dumps(found))
