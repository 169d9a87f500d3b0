"""Multi-head attention in Keras 3, on the backend that KERAS_BACKEND names: from nothing, and its own."""

import math
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # before the import

import keras
import numpy as np
import program
from keras import ops
from weights import convert


# From nothing
def masked_softmax(scores, mask):
    """Softmax over the keys that a query may see; zeros where it may see none."""
    hidden = ops.where(ops.any(mask, axis=-1, keepdims=True), -math.inf, 0.0)
    scores = ops.where(mask, scores, ops.cast(hidden, scores.dtype))
    return ops.softmax(scores, axis=-1) * ops.cast(mask, scores.dtype)


def build_mask(q_len, k_len, valid_lens=None, is_causal=False):
    """Bool, True = may attend, (batch or 1, 1, q_len, k_len)."""
    mask = ops.ones((1, 1, q_len, k_len), dtype="bool")
    if is_causal:  # the last query sees every key
        mask = ops.arange(k_len) <= ops.arange(q_len)[:, None] + (k_len - q_len)
    if valid_lens is not None:  # (batch,) or (batch, q_len)
        lens = ops.reshape(valid_lens, (len(valid_lens), 1, -1, 1))
        mask = ops.logical_and(mask, ops.arange(k_len) < lens)
    return mask


class MultiHeadAttention(keras.Layer):
    """Project, split into heads, attend, merge."""

    def __init__(self, embed_dim, num_heads, bias=False, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, kind = num_heads, {"use_bias": bias, "dtype": self.dtype}
        self.q_proj = keras.layers.Dense(embed_dim, **kind)
        self.k_proj = keras.layers.Dense(embed_dim, **kind)
        self.v_proj = keras.layers.Dense(embed_dim, **kind)
        self.out_proj = keras.layers.Dense(embed_dim, **kind)

    def split_heads(self, x):
        x = ops.reshape(x, (*x.shape[:2], self.num_heads, -1))
        return ops.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x):
        x = ops.transpose(x, (0, 2, 1, 3))
        return ops.reshape(x, (*x.shape[:2], -1))

    def call(self, query, key, value, valid_lens=None, is_causal=False):
        q = self.split_heads(self.q_proj(query))
        k = self.split_heads(self.k_proj(key))
        v = self.split_heads(self.v_proj(value))
        scores = ops.matmul(q, ops.swapaxes(k, -2, -1)) / math.sqrt(q.shape[-1])
        mask = build_mask(q.shape[2], k.shape[2], valid_lens, is_causal)
        weights = masked_softmax(scores, mask)
        return self.out_proj(self.merge_heads(ops.matmul(weights, v))), weights


# The framework's own layer
def keras_layer(case, dtype):
    """Make Keras's layer, called with (query, value, key); its weights exist after `build`."""
    embed_dim = case.sizes["embed_dim"]
    layer = keras.layers.MultiHeadAttention(
        case.num_heads, embed_dim // case.num_heads, use_bias=case.bias, dtype=dtype
    )
    layer.build(case.query.shape, case.value.shape, case.key.shape)
    put(layer, convert(case.weights, "mha_lib", "keras", case.num_heads))

    def call(query, key, value, valid_lens, is_causal):
        keep = build_mask(query.shape[1], key.shape[1], valid_lens, is_causal)
        shape = (len(query), query.shape[1], key.shape[1])
        keep = ops.broadcast_to(ops.reshape(keep, (-1, *keep.shape[-2:])), shape)
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
    layer.built = True
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
        found[f"{name}.weight"] = by_variable[id(dense.kernel)].T
        if dense.use_bias:
            found[f"{name}.bias"] = by_variable[id(dense.bias)]
    return found


def gradients_of_own(_layer, gradients, num_heads):
    """Gradients of Keras's layer, by our names."""
    theirs = {name_of(variable): gradient for variable, gradient in gradients}
    return convert(theirs, "keras", "mha_lib", num_heads)


def derive_with_jax(layer, call, inputs, upstream):
    """Output, weights and gradients: JAX differentiates a function of the variables' values."""
    import jax

    def total(values, inputs):
        pairs = zip(layer.trainable_variables, values, strict=True)
        with keras.StatelessScope(state_mapping=pairs):
            output, weights = call(*inputs)
        return (output * upstream).sum(), (output, weights)

    values = [variable.value for variable in layer.trainable_variables]
    derive = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (_, found), (of_variables, of_inputs) = derive(values, inputs)
    return *found, of_variables, of_inputs


def derive_with_torch(layer, call, inputs, upstream):
    """Output, weights and gradients: torch collects them on the leaves."""
    inputs = [x.requires_grad_() for x in inputs]
    output, weights = call(*inputs)
    (output * upstream).sum().backward()
    of_variables = [variable.value.grad for variable in layer.trainable_variables]
    return output.detach(), weights.detach(), of_variables, [x.grad for x in inputs]


DERIVE = {"jax": derive_with_jax, "torch": derive_with_torch}


def way(make, back):
    """A function that runs a layer on a case, forward and backward."""

    def run(case, dtype):
        layer, call = make(case, dtype)
        lens = None
        if case.valid_lens is not None:
            lens = ops.convert_to_tensor(case.valid_lens, dtype="int32")
        upstream = ops.convert_to_tensor(case.upstream, dtype=dtype)
        inputs = [ops.convert_to_tensor(x, dtype=dtype) for x in case.inputs(dtype)]
        output, weights, of_variables, of_inputs = DERIVE[keras.backend.backend()](
            layer,
            lambda *inputs: call(*inputs, valid_lens=lens, is_causal=case.is_causal),
            inputs,
            upstream,
        )
        pairs = zip(
            layer.trainable_variables, map(np.asarray, of_variables), strict=True
        )
        gradients = back(layer, list(pairs), case.num_heads)
        of_inputs = map(np.asarray, of_inputs)
        gradients.update(zip(("query", "key", "value"), of_inputs, strict=True))
        kinds = {keras.backend.standardize_dtype(x.dtype) for x in (output, weights)}
        assert kinds == {dtype}
        return {"output": output, "weights": weights, "gradients": gradients}

    return run


WAYS = {
    "from nothing": way(layer_from_nothing, gradients_from_nothing),
    "keras.layers.MultiHeadAttention": way(keras_layer, gradients_of_own),
}

BACKEND = keras.backend.backend()
if BACKEND == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)  # else JAX makes float32 of every float64
    version = jax.__version__
else:
    import torch

    torch.set_num_threads(1)
    version = torch.__version__.split("+")[0]

if __name__ == "__main__":
    versions = {"keras": keras.__version__, BACKEND: version}
    # On torch, Keras 3 multiplies matrices in float64 as float32.
    dtypes = ("float32",) if BACKEND == "torch" else program.DTYPES
    program.main(f"Keras on {BACKEND}", versions, WAYS, dtypes)
