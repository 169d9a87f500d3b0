"""Multi-head attention in PaddlePaddle: from nothing, and as `paddle.nn.MultiHeadAttention` has it."""

import math

import paddle
import program
from paddle import nn
from weights import convert


# From nothing
def masked_softmax(scores, mask):
    """Softmax over the keys that a query may see; zeros where it may see none."""
    hidden = paddle.where(mask.any(axis=-1, keepdim=True), -math.inf, 0.0)
    scores = paddle.where(mask, scores, hidden.astype(scores.dtype))
    return nn.functional.softmax(scores, axis=-1) * mask.astype(scores.dtype)


def build_mask(q_len, k_len, valid_lens=None, is_causal=False):
    """Bool, True = may attend, (batch or 1, 1, q_len, k_len)."""
    mask = paddle.ones([1, 1, q_len, k_len], dtype="bool")
    if is_causal:  # the last query sees every key
        mask = paddle.tril(mask, diagonal=k_len - q_len)
    if valid_lens is not None:  # (batch,) or (batch, q_len)
        lens = valid_lens.reshape([len(valid_lens), 1, -1, 1])
        mask = mask & (paddle.arange(k_len) < lens)
    return mask


class MultiHeadAttention(nn.Layer):
    """Project, split into heads, attend, merge."""

    def __init__(self, embed_dim, num_heads, kdim, vdim, bias=None):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias_attr=bias)
        self.k_proj = nn.Linear(kdim, embed_dim, bias_attr=bias)
        self.v_proj = nn.Linear(vdim, embed_dim, bias_attr=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias_attr=bias)

    def split_heads(self, x):
        x = x.reshape([*x.shape[:2], self.num_heads, -1])
        return x.transpose([0, 2, 1, 3])

    def merge_heads(self, x):
        x = x.transpose([0, 2, 1, 3])
        return x.reshape([*x.shape[:2], -1])

    def forward(self, query, key, value, valid_lens=None, is_causal=False):
        q = self.split_heads(self.q_proj(query))
        k = self.split_heads(self.k_proj(key))
        v = self.split_heads(self.v_proj(value))
        scores = q @ k.transpose([0, 1, 3, 2]) / math.sqrt(q.shape[-1])
        mask = build_mask(q.shape[2], k.shape[2], valid_lens, is_causal)
        weights = masked_softmax(scores, mask)
        return self.out_proj(self.merge_heads(weights @ v)), weights


# The framework's own layer
def paddle_layer(case, _dtype):
    """Put the weights into Paddle's layer, whose Linear stores matrices as (in, out)."""
    sizes = {**case.sizes, "bias_attr": None if case.bias else False}
    del sizes["bias"]
    layer = nn.MultiHeadAttention(**sizes, need_weights=True)
    put(layer, case)

    def call(query, key, value, valid_lens, is_causal):
        keep = build_mask(query.shape[1], key.shape[1], valid_lens, is_causal)
        return layer(query, key, value, attn_mask=keep)

    return layer, call


# The program
def layer_from_nothing(case, _dtype):
    """Put the weights into the layer from nothing."""
    layer = MultiHeadAttention(**{**case.sizes, "bias": None if case.bias else False})
    put(layer, case)
    return layer, layer


def put(layer, case):
    """Load the weights of a case, all of them."""
    weights = convert(case.weights, "mha_lib", "paddle", case.num_heads)
    missing, unexpected = layer.set_state_dict(
        {
            name: paddle.to_tensor(w.copy(), paddle.get_default_dtype())
            for name, w in weights.items()
        }
    )
    assert not missing
    assert not unexpected


def way(make):
    """A function that runs a layer on a case, forward and backward."""

    def run(case, dtype):
        paddle.set_default_dtype(dtype)
        layer, call = make(case, dtype)
        inputs = [paddle.to_tensor(x, stop_gradient=False) for x in case.inputs(dtype)]
        lens = None if case.valid_lens is None else paddle.to_tensor(case.valid_lens)
        output, weights = call(*inputs, lens, case.is_causal)
        (output * paddle.to_tensor(case.upstream, dtype)).sum().backward()
        theirs = {name: p.grad.numpy() for name, p in layer.named_parameters()}
        gradients = convert(theirs, "paddle", "mha_lib", case.num_heads)
        for name, x in zip(("query", "key", "value"), inputs, strict=True):
            gradients[name] = x.grad.numpy()
        found = {"output": output.numpy(), "weights": weights.numpy()}
        assert {str(x.dtype) for x in found.values()} == {dtype}
        return {**found, "gradients": gradients}

    return run


WAYS = {
    "from nothing": way(layer_from_nothing),
    "paddle.nn.MultiHeadAttention": way(paddle_layer),
}

if __name__ == "__main__":
    program.main("PaddlePaddle", {"paddlepaddle": paddle.__version__}, WAYS)
