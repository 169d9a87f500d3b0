"""The defaults of `nnx.MultiHeadAttention`, measured."""

import facts
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Flax(facts.Adapter):
    """Flax's layer with its defaults; `rngs` and `in_features` have to be given."""

    name = "flax.nnx.MultiHeadAttention"
    constructor = staticmethod(nnx.MultiHeadAttention.__init__)
    forward = nnx.MultiHeadAttention.__call__
    seed = 0

    def make(self, width=facts.WIDTH, heads=facts.HEADS, dropout=None):
        self.seed += 1
        options = {} if dropout is None else {"dropout_rate": dropout}
        return nnx.MultiHeadAttention(
            heads, width, decode=False, rngs=nnx.Rngs(self.seed), **options
        )

    def call(self, layer, query, key, value, mask=None, training=False, weights=True):
        mask = None if mask is None else jnp.asarray(mask)[None, None]
        output = layer(
            *map(jnp.asarray, (query, key, value)),
            mask=mask,
            deterministic=not training,
            rngs=nnx.Rngs(0),
            **({"sow_weights": True} if weights else {}),
        )
        sown = nnx.pop(layer, nnx.Intermediate)
        found = None
        if "attention_weights" in sown:
            found = np.asarray(sown["attention_weights"].get_value()[0])
        return np.asarray(output), found

    def causal(self, layer, query, key, value):
        layer(*map(jnp.asarray, (query, key, value)), is_causal=True, sow_weights=True)
        return np.asarray(
            nnx.pop(layer, nnx.Intermediate)["attention_weights"].get_value()[0]
        )

    def parameters(self, layer):
        return {
            ".".join(path): np.asarray(part.get_value())
            for path, part in nnx.to_flat_state(nnx.state(layer, nnx.Param))
        }

    def matrices(self, layer):
        query, out = layer.query.kernel.get_value(), layer.out.kernel.get_value()
        width = query.shape[0]
        return np.asarray(query).reshape(width, -1).T, np.asarray(out).reshape(
            -1, width
        ).T


if __name__ == "__main__":
    facts.main([Flax()])
