"""The defaults of `nn.MultiheadAttention` and of `mha_lib.MultiHeadAttention`, measured."""

import facts
import torch
from torch import nn

from mha_lib import MultiHeadAttention


def array(tensor):
    """A tensor as a numpy array; nothing stays nothing."""
    return None if tensor is None else tensor.detach().numpy()


class Torch(facts.Adapter):
    """`nn.MultiheadAttention` with its defaults, but for `batch_first` where samples come first."""

    name = "torch.nn.MultiheadAttention"
    constructor = staticmethod(nn.MultiheadAttention)
    forward = nn.MultiheadAttention.forward
    batch_first = True

    def make(self, width=facts.WIDTH, heads=facts.HEADS, **options):
        return nn.MultiheadAttention(
            width, heads, batch_first=self.batch_first, **options
        )

    def call(self, layer, query, key, value, mask=None, training=False, weights=True):
        layer.train(training)
        mask = None if mask is None else torch.tensor(mask)
        asked = {"average_attn_weights": False} if weights else {}
        output, found = layer(
            *map(torch.tensor, (query, key, value)), attn_mask=mask, **asked
        )
        return array(output), array(found)

    def causal(self, layer, query, key, value):
        # The flag is a hint for the mask that has to come with it.
        _, weights = layer(*map(torch.tensor, (query, key, value)), is_causal=True)
        return array(weights)

    def parameters(self, layer):
        return {name: array(p) for name, p in layer.named_parameters()}

    def matrices(self, layer):
        return array(layer.in_proj_weight)[: layer.embed_dim], array(
            layer.out_proj.weight
        )


class TorchByDefault(Torch):
    """Only to find the axes that it has where nothing is said."""

    batch_first = False


class Ours(Torch):
    """The layer of this course."""

    name = "mha_lib.MultiHeadAttention"
    constructor = staticmethod(MultiHeadAttention)
    forward = MultiHeadAttention.forward

    def make(self, width=facts.WIDTH, heads=facts.HEADS, **options):
        return MultiHeadAttention(width, heads, **options)

    def call(self, layer, query, key, value, mask=None, training=False, weights=True):  # noqa: ARG002
        layer.train(training)
        mask = None if mask is None else torch.tensor(mask)
        output, found = layer(*map(torch.tensor, (query, key, value)), mask)
        return array(output), array(found)

    def causal(self, layer, query, key, value):
        return array(layer(*map(torch.tensor, (query, key, value)), is_causal=True)[1])

    def lengths(self, layer, query, key, value, lens):
        lens = torch.tensor(lens)
        found = layer(*map(torch.tensor, (query, key, value)), valid_lens=lens)
        return tuple(map(array, found))

    def matrices(self, layer):
        return array(layer.q_proj.weight), array(layer.out_proj.weight)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    axes = facts.where_the_batch_is(TorchByDefault())
    facts.main([Torch(), Ours()], {"axes of nn.MultiheadAttention by default": axes})
