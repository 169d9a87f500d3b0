"""Multi-head attention in TensorFlow: from nothing, and as the Keras that it brings has it."""

import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before the import
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np
import program
import tensorflow as tf
from weights import convert


# From nothing
def masked_softmax(scores, mask):
    """Softmax over the keys that a query may see; zeros where it may see none."""
    hidden = tf.where(tf.reduce_any(mask, axis=-1, keepdims=True), -math.inf, 0.0)
    scores = tf.where(mask, scores, tf.cast(hidden, scores.dtype))
    return tf.nn.softmax(scores, axis=-1) * tf.cast(mask, scores.dtype)


def build_mask(q_len, k_len, valid_lens=None, is_causal=False):
    """Bool, True = may attend, (batch or 1, 1, q_len, k_len)."""
    mask = tf.ones((1, 1, q_len, k_len), dtype=tf.bool)
    if is_causal:  # the last query sees every key
        mask = tf.range(k_len) <= tf.range(q_len)[:, None] + (k_len - q_len)
    if valid_lens is not None:  # (batch,) or (batch, q_len)
        lens = tf.reshape(valid_lens, (len(valid_lens), 1, -1, 1))
        mask = mask & (tf.range(k_len, dtype=lens.dtype) < lens)
    return mask


class MultiHeadAttention(tf.keras.layers.Layer):
    """Project, split into heads, attend, merge."""

    def __init__(self, embed_dim, num_heads, bias=False, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, kind = num_heads, {"use_bias": bias, "dtype": self.dtype}
        self.q_proj = tf.keras.layers.Dense(embed_dim, **kind)
        self.k_proj = tf.keras.layers.Dense(embed_dim, **kind)
        self.v_proj = tf.keras.layers.Dense(embed_dim, **kind)
        self.out_proj = tf.keras.layers.Dense(embed_dim, **kind)

    def split_heads(self, x):
        x = tf.reshape(x, (*x.shape[:2], self.num_heads, -1))
        return tf.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x):
        x = tf.transpose(x, (0, 2, 1, 3))
        return tf.reshape(x, (*x.shape[:2], -1))

    def call(self, query, key, value, valid_lens=None, is_causal=False):
        q = self.split_heads(self.q_proj(query))
        k = self.split_heads(self.k_proj(key))
        v = self.split_heads(self.v_proj(value))
        scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(q.shape[-1])
        mask = build_mask(q.shape[2], k.shape[2], valid_lens, is_causal)
        weights = masked_softmax(scores, mask)
        return self.out_proj(self.merge_heads(weights @ v)), weights


# The framework's own layer
def keras_layer(case, dtype):
    """Make Keras's layer, called with (query, value, key); its weights exist after `build`."""
    embed_dim = case.sizes["embed_dim"]
    layer = tf.keras.layers.MultiHeadAttention(
        case.num_heads, embed_dim // case.num_heads, use_bias=case.bias, dtype=dtype
    )
    layer.build(case.query.shape, case.value.shape, case.key.shape)
    put(layer, convert(case.weights, "mha_lib", "keras", case.num_heads))

    def call(query, key, value, valid_lens, is_causal):
        keep = build_mask(query.shape[1], key.shape[1], valid_lens, is_causal)
        shape = (len(query), query.shape[1], key.shape[1])
        keep = tf.broadcast_to(tf.reshape(keep, (-1, *keep.shape[-2:])), shape)
        return layer(
            query, value, key, attention_mask=keep, return_attention_scores=True
        )

    return layer, call


# The program
def layer_from_nothing(case, dtype):
    """Put the weights into the layer from nothing; Keras stores matrices as (in, out)."""
    sizes = case.sizes
    layer = MultiHeadAttention(
        sizes["embed_dim"], case.num_heads, case.bias, dtype=dtype
    )
    for name, width in (("q", "embed_dim"), ("k", "kdim"), ("v", "vdim")):
        getattr(layer, f"{name}_proj").build((None, None, sizes[width]))
    layer.out_proj.build((None, None, sizes["embed_dim"]))
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        dense = getattr(layer, name)
        dense.kernel.assign(case.weights[f"{name}.weight"].T)
        if case.bias:
            dense.bias.assign(case.weights[f"{name}.bias"])
    return layer, layer


def name_of(variable):
    """What `weights.py` calls a variable: the end of its path, "query/kernel"."""
    return "/".join(variable.path.split("/")[-2:])


def put(layer, weights):
    """Store the weights of a case, all of them."""
    assert {name_of(variable) for variable in layer.trainable_variables} == set(weights)
    for variable in layer.trainable_variables:
        variable.assign(weights[name_of(variable)])


def gradients_from_nothing(layer, gradients, _num_heads):
    """Gradients of the four `Dense`, by our names."""
    by_variable = {id(v): g for v, g in gradients}
    found = {}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        dense = getattr(layer, name)
        found[f"{name}.weight"] = by_variable[id(dense.kernel)].numpy().T
        if dense.use_bias:
            found[f"{name}.bias"] = by_variable[id(dense.bias)].numpy()
    return found


def gradients_of_own(_layer, gradients, num_heads):
    """Gradients of Keras's layer, by our names."""
    theirs = {name_of(variable): g.numpy() for variable, g in gradients}
    return convert(theirs, "keras", "mha_lib", num_heads)


def way(make, back):
    """A function that runs a layer on a case, forward and backward."""

    def run(case, dtype):
        layer, call = make(case, dtype)
        inputs = [tf.constant(x) for x in case.inputs(dtype)]
        lens = None if case.valid_lens is None else tf.constant(case.valid_lens)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            query, key, value = inputs
            output, weights = call(
                query, key, value, valid_lens=lens, is_causal=case.is_causal
            )
            total = tf.reduce_sum(output * tf.constant(case.upstream, output.dtype))
        variables = layer.trainable_variables
        found = tape.gradient(total, inputs + [v.value for v in variables])
        pairs = list(zip(variables, found[3:], strict=True))
        gradients = back(layer, pairs, case.num_heads)
        for name, gradient in zip(("query", "key", "value"), found, strict=False):
            gradients[name] = np.asarray(gradient)
        assert {output.dtype.name, weights.dtype.name} == {dtype}
        return {"output": output, "weights": weights, "gradients": gradients}

    return run


WAYS = {
    "from nothing": way(layer_from_nothing, gradients_from_nothing),
    "tf.keras.layers.MultiHeadAttention": way(keras_layer, gradients_of_own),
}

if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    versions = {"tensorflow": tf.__version__, "keras": tf.keras.__version__}
    program.main("TensorFlow", versions, WAYS)
