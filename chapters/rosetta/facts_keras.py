"""The defaults of Keras's `MultiHeadAttention` on the backend that KERAS_BACKEND names, measured."""

import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before the import, for TensorFlow
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("KERAS_BACKEND", "jax")

import facts
import keras
import numpy as np
from keras import ops


def array(tensor):
    """A tensor of any backend as a numpy array."""
    return None if tensor is None else ops.convert_to_numpy(tensor)


class Keras(facts.Adapter):
    """Keras's layer with its defaults; `key_dim` is the width of one head and has to be given."""

    name = "keras.layers.MultiHeadAttention"
    constructor = staticmethod(keras.layers.MultiHeadAttention)
    forward = keras.layers.MultiHeadAttention.call

    def make(self, width=facts.WIDTH, heads=facts.HEADS, **options):
        layer = keras.layers.MultiHeadAttention(heads, width // heads, **options)
        layer.build((None, None, width), (None, None, width), (None, None, width))
        return layer

    def call(self, layer, query, key, value, mask=None, training=False, weights=True):
        mask = (
            None
            if mask is None
            else ops.convert_to_tensor(mask[None].repeat(len(query), 0))
        )
        query, key, value = map(ops.convert_to_tensor, (query, key, value))
        asked = {"return_attention_scores": True} if weights else {}
        found = layer(
            query, value, key, attention_mask=mask, training=training, **asked
        )
        return tuple(map(array, found)) if weights else (array(found), None)

    def causal(self, layer, query, key, value):
        query, key, value = map(ops.convert_to_tensor, (query, key, value))
        found = layer(
            query, value, key, use_causal_mask=True, return_attention_scores=True
        )
        return array(found[1])

    def parameters(self, layer):
        return {
            "/".join(variable.path.split("/")[-2:]): array(variable.value)
            for variable in layer.trainable_variables
        }

    def matrices(self, layer):
        found = self.parameters(layer)
        query, out = found["query/kernel"], found["attention_output/kernel"]
        return query.reshape(len(query), -1).T, out.reshape(-1, out.shape[-1]).T


def product_of_float64():
    """The dtype of a product of two matrices in float64."""
    matrix = ops.convert_to_tensor(np.eye(2), dtype="float64")
    return keras.backend.standardize_dtype(ops.matmul(matrix, matrix).dtype)


def rounding_of_the_scale():
    """How far 1/√6 is from itself after it was made a float64 tensor, as the layer does with it."""
    scale = 1 / math.sqrt(6)
    return float(f"{abs(float(ops.cast(scale, 'float64')) - scale):.1e}")


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    more = {
        "product of float64": product_of_float64(),
        "rounding of 1/√6": rounding_of_the_scale(),
    }
    facts.main([Keras()], more)
