"""Multi-head attention in MXNet 1.9 with Gluon: from nothing, and with MXNet's own operators.

MXNet was retired in 2023. It has no attention layer, but two pairs of operators from which its last models
were built: they take queries, keys and values interleaved in one array.
"""

import math

import mxnet
import numpy
import program
from mxnet import autograd, np, npx
from mxnet.gluon import nn
from weights import convert

npx.set_np()


# From nothing
def masked_softmax(scores, mask):
    """Softmax over the keys that a query may see; zeros where it may see none."""
    hidden = np.where(mask.max(axis=-1, keepdims=True), -math.inf, 0.0)
    scores = np.where(mask, scores, hidden.astype(scores.dtype))
    return npx.softmax(scores, axis=-1) * mask.astype(scores.dtype)


def build_mask(q_len, k_len, valid_lens=None, is_causal=False):
    """Bool, True = may attend, (batch or 1, 1, q_len, k_len)."""
    mask = np.ones((1, 1, q_len, k_len))
    if is_causal:  # the last query sees every key
        mask = np.tril(mask, k=k_len - q_len)
    if valid_lens is not None:  # (batch,) or (batch, q_len)
        lens = valid_lens.reshape(len(valid_lens), 1, -1, 1)
        mask = mask * (np.arange(k_len) < lens)
    return mask


class MultiHeadAttention(nn.Block):
    """Project, split into heads, attend, merge."""

    def __init__(self, embed_dim, num_heads, bias=False, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, kind = num_heads, {"use_bias": bias, "flatten": False}
        self.q_proj = nn.Dense(embed_dim, **kind)
        self.k_proj = nn.Dense(embed_dim, **kind)
        self.v_proj = nn.Dense(embed_dim, **kind)
        self.out_proj = nn.Dense(embed_dim, **kind)

    def split_heads(self, x):
        x = x.reshape(*x.shape[:2], self.num_heads, -1)
        return x.transpose(0, 2, 1, 3)

    def merge_heads(self, x):
        x = x.transpose(0, 2, 1, 3)
        return x.reshape(*x.shape[:2], -1)

    def forward(self, query, key, value, valid_lens=None, is_causal=False):
        q = self.split_heads(self.q_proj(query))
        k = self.split_heads(self.k_proj(key))
        v = self.split_heads(self.v_proj(value))
        scores = np.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(q.shape[-1])
        mask = build_mask(q.shape[2], k.shape[2], valid_lens, is_causal)
        weights = masked_softmax(scores, mask)
        return self.out_proj(self.merge_heads(np.matmul(weights, v))), weights


# The framework's own operators
def interleaved(parameters, query, keep, num_heads):
    """Self-attention by MXNet's operators: (len, batch, width), heads folded into the batch."""
    nd = mxnet.nd
    stacked = nd.FullyConnected(
        query.as_nd_ndarray().swapaxes(0, 1),
        parameters["qkv_proj.weight"],
        parameters.get("qkv_proj.bias"),
        num_hidden=parameters["qkv_proj.weight"].shape[0],
        no_bias="qkv_proj.bias" not in parameters,
        flatten=False,
    )
    scores = nd.contrib.interleaved_matmul_selfatt_qk(stacked, heads=num_heads)
    fold = (query.shape[0], num_heads, *scores.shape[1:])
    weights = masked_softmax(scores.as_np_ndarray().reshape(fold), keep)
    folded = weights.reshape(-1, *weights.shape[2:]).as_nd_ndarray()
    mixed = nd.contrib.interleaved_matmul_selfatt_valatt(
        stacked, folded, heads=num_heads
    )
    output = nd.FullyConnected(
        mixed.swapaxes(0, 1),
        parameters["out_proj.weight"],
        parameters.get("out_proj.bias"),
        num_hidden=query.shape[-1],
        no_bias="out_proj.bias" not in parameters,
        flatten=False,
    )
    return output.as_np_ndarray(), weights


# The program
def from_nothing(case, dtype):
    """Run the Gluon block, forward and backward. Gluon infers the widths of the inputs in the first call."""
    layer = MultiHeadAttention(case.sizes["embed_dim"], case.num_heads, case.bias)
    layer.initialize()
    layer(*given(case, "float32")[0])  # only float32 can be drawn
    layer.cast(dtype)
    inputs, lens, upstream = given(case, dtype)
    ours = {
        f"{projection}.{kind}": getattr(getattr(layer, projection), kind)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj")
        for kind in ("weight", "bias")[: 1 + case.bias]
    }
    assert ours.keys() == case.weights.keys()
    for name, parameter in ours.items():
        parameter.set_data(np.array(case.weights[name], dtype=dtype))
    output, weights = derive(
        lambda: layer(*inputs, lens, case.is_causal), inputs, upstream
    )
    gradients = {name: parameter.grad().asnumpy() for name, parameter in ours.items()}
    return results(output, weights, gradients, inputs, dtype)


def by_operators(case, dtype):
    """Run the interleaved operators, forward and backward."""
    if not all(numpy.array_equal(case.query, x) for x in (case.key, case.value)):
        raise program.CannotError("anything but self-attention")
    if dtype != "float32":
        raise program.CannotError("float64 on a CPU")
    inputs, lens, upstream = given(case, dtype)
    theirs = convert(case.weights, "mha_lib", "mxnet", case.num_heads)
    parameters = {
        name: mxnet.nd.array(array, dtype=dtype) for name, array in theirs.items()
    }
    keep = build_mask(case.query.shape[1], case.key.shape[1], lens, case.is_causal)
    watched = list(parameters.values())
    output, weights = derive(
        lambda: interleaved(parameters, inputs[0], keep, case.num_heads),
        [*inputs[:1], *watched],
        upstream,
    )
    found = {name: array.grad.asnumpy() for name, array in parameters.items()}
    gradients = convert(found, "mxnet", "mha_lib", case.num_heads)
    return results(output, weights, gradients, [], dtype)


def given(case, dtype):
    """Inputs, lengths and upstream factors as MXNet's arrays."""
    inputs = [np.array(x, dtype=dtype) for x in case.inputs(dtype)]
    lens = None
    if case.valid_lens is not None:
        lens = np.array(case.valid_lens, dtype="float32")  # compared with np.arange
    return inputs, lens, np.array(case.upstream, dtype=dtype)


def derive(call, watched, upstream):
    """Run forward and backward; the gradients stay on what is watched."""
    for array in watched:
        array.attach_grad()
    with autograd.record():
        output, weights = call()
        total = (output * upstream).sum()
    total.backward()
    return output, weights


def results(output, weights, gradients, inputs, dtype):
    """What the program prints of one run."""
    for name, x in zip(("query", "key", "value"), inputs):  # noqa: B905, perhaps none
        gradients[name] = x.grad.asnumpy()
    found = {"output": output.asnumpy(), "weights": weights.asnumpy()}
    assert {str(x.dtype) for x in found.values()} == {dtype}
    return {**found, "gradients": gradients}


WAYS = {
    "from nothing": from_nothing,
    "mxnet.nd.contrib.interleaved_matmul_selfatt": by_operators,
}

if __name__ == "__main__":
    versions = {"mxnet": mxnet.__version__, "numpy": numpy.__version__}
    program.main("MXNet with Gluon", versions, WAYS)
