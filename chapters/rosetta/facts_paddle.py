"""The defaults of `paddle.nn.MultiHeadAttention`, measured."""

import facts
import paddle
from paddle import nn


class Paddle(facts.Adapter):
    """Paddle's layer with its defaults."""

    name = "paddle.nn.MultiHeadAttention"
    constructor = staticmethod(nn.MultiHeadAttention.__init__)
    forward = nn.MultiHeadAttention.forward

    def make(self, width=facts.WIDTH, heads=facts.HEADS, **options):
        return nn.MultiHeadAttention(width, heads, **options)

    def call(self, layer, query, key, value, mask=None, training=False, weights=True):
        layer.train() if training else layer.eval()
        mask = None if mask is None else paddle.to_tensor(mask[None, None])
        layer.need_weights = bool(weights)
        found = layer(*map(paddle.to_tensor, (query, key, value)), attn_mask=mask)
        if weights:
            return found[0].numpy(), found[1].numpy()
        return found.numpy(), None

    def parameters(self, layer):
        return {name: p.numpy() for name, p in layer.named_parameters()}

    def matrices(self, layer):
        return layer.q_proj.weight.numpy().T, layer.out_proj.weight.numpy().T


if __name__ == "__main__":
    paddle.seed(0)
    facts.main([Paddle()])
