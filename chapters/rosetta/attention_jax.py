"""Multi-head attention in JAX with Flax NNX: from nothing, and as `nnx.MultiHeadAttention` has it."""

import math

import flax
import jax
import jax.numpy as jnp
import numpy as np
import program
from flax import nnx
from weights import convert


# From nothing
def masked_softmax(scores, mask):
    """Softmax over the keys that a query may see; zeros where it may see none."""
    hidden = jnp.where(mask.any(axis=-1, keepdims=True), -jnp.inf, 0.0)
    scores = jnp.where(mask, scores, hidden.astype(scores.dtype))
    return jax.nn.softmax(scores, axis=-1) * mask


def build_mask(q_len, k_len, valid_lens=None, is_causal=False):
    """Bool, True = may attend, (batch or 1, 1, q_len, k_len)."""
    mask = jnp.ones((1, 1, q_len, k_len), dtype=bool)
    if is_causal:  # the last query sees every key
        mask = jnp.tril(mask, k=k_len - q_len)
    if valid_lens is not None:  # (batch,) or (batch, q_len)
        lens = valid_lens.reshape(len(valid_lens), 1, -1, 1)
        mask = mask & (jnp.arange(k_len) < lens)
    return mask


class MultiHeadAttention(nnx.Module):
    """Project, split into heads, attend, merge."""

    def __init__(self, embed_dim, num_heads, kdim, vdim, bias=False, **kind):
        self.num_heads = num_heads
        self.q_proj = nnx.Linear(embed_dim, embed_dim, use_bias=bias, **kind)
        self.k_proj = nnx.Linear(kdim, embed_dim, use_bias=bias, **kind)
        self.v_proj = nnx.Linear(vdim, embed_dim, use_bias=bias, **kind)
        self.out_proj = nnx.Linear(embed_dim, embed_dim, use_bias=bias, **kind)

    def split_heads(self, x):
        x = x.reshape(*x.shape[:2], self.num_heads, -1)
        return x.transpose(0, 2, 1, 3)

    def merge_heads(self, x):
        x = x.transpose(0, 2, 1, 3)
        return x.reshape(*x.shape[:2], -1)

    def __call__(self, query, key, value, valid_lens=None, is_causal=False):
        q = self.split_heads(self.q_proj(query))
        k = self.split_heads(self.k_proj(key))
        v = self.split_heads(self.v_proj(value))
        scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])
        mask = build_mask(q.shape[2], k.shape[2], valid_lens, is_causal)
        weights = masked_softmax(scores, mask)
        return self.out_proj(self.merge_heads(weights @ v)), weights


# The framework's own layer
def flax_layer(case, dtype):
    """Put the weights into Flax's layer, which keeps attention weights only if told to sow them."""
    sizes = case.sizes
    if sizes["kdim"] != sizes["vdim"]:
        raise program.CannotError("keys and values of unequal widths")
    layer = nnx.MultiHeadAttention(
        case.num_heads,
        in_features=sizes["embed_dim"],
        in_kv_features=sizes["kdim"],
        use_bias=case.bias,
        decode=False,
        **kind_of(dtype),
    )
    put(layer, convert(case.weights, "mha_lib", "flax", case.num_heads))

    def call(layer, query, key, value, valid_lens, is_causal):
        keep = build_mask(query.shape[1], key.shape[1], valid_lens, is_causal)
        output = layer(query, key, value, mask=keep, sow_weights=True)
        sown = nnx.pop(layer, nnx.Intermediate)
        return output, sown["attention_weights"].get_value()[0]

    return layer, call


# The program
def layer_from_nothing(case, dtype):
    """Put the weights into the layer from nothing; Flax stores matrices as (in, out)."""
    layer = MultiHeadAttention(**case.sizes, **kind_of(dtype))
    put(layer, kernels(case.weights))
    return layer, lambda layer, *inputs: layer(*inputs)


def kind_of(dtype):
    """The arguments that every module of Flax takes."""
    return {"rngs": nnx.Rngs(0), "dtype": dtype, "param_dtype": dtype}


def kernels(weights):
    """Our weights as those of `nnx.Linear`, or back."""
    return {
        name.replace("weight", "#").replace("kernel", "weight").replace("#", "kernel"):
            array if name.endswith("bias") else array.T
        for name, array in weights.items()
    }  # fmt: skip


def put(layer, weights):
    """Store the weights of a case, all of them."""
    parameters = nnx.state(layer, nnx.Param)
    flat = nnx.to_flat_state(parameters)
    assert {".".join(path) for path, _ in flat} == set(weights)
    for path, parameter in flat:
        array = weights[".".join(path)]
        assert parameter.get_value().shape == array.shape
        parameter.set_value(jnp.asarray(array, parameter.get_value().dtype))
    nnx.update(layer, parameters)


def way(make, back):
    """A function that runs a layer on a case, forward and backward."""

    def run(case, dtype):
        layer, call = make(case, dtype)
        inputs = [jnp.asarray(x) for x in case.inputs(dtype)]
        lens = None if case.valid_lens is None else jnp.asarray(case.valid_lens)
        upstream = jnp.asarray(case.upstream, dtype)
        graph, parameters, rest = nnx.split(layer, nnx.Param, ...)

        def total(parameters, *inputs):
            layer = nnx.merge(graph, parameters, rest)
            output, weights = call(layer, *inputs, lens, case.is_causal)
            return (output * upstream).sum(), (output, weights)

        derive = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3), has_aux=True))
        (_, (output, weights)), (of_layer, *of_inputs) = derive(parameters, *inputs)
        theirs = {
            ".".join(path): np.asarray(part.get_value())
            for path, part in nnx.to_flat_state(of_layer)
        }
        gradients = back(theirs, case.num_heads)
        gradients.update(zip(("query", "key", "value"), of_inputs, strict=True))
        assert {str(output.dtype), str(weights.dtype)} == {dtype}
        return {"output": output, "weights": weights, "gradients": gradients}

    return run


WAYS = {
    "from nothing": way(layer_from_nothing, lambda theirs, _heads: kernels(theirs)),
    "flax.nnx.MultiHeadAttention": way(
        flax_layer, lambda theirs, heads: convert(theirs, "flax", "mha_lib", heads)
    ),
}

jax.config.update("jax_enable_x64", True)  # else JAX makes float32 of every float64

if __name__ == "__main__":
    versions = {"jax": jax.__version__, "flax": flax.__version__}
    program.main("JAX with Flax NNX", versions, WAYS)
