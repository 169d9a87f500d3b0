"""Multi-head attention in PyTorch: from nothing, as `nn.MultiheadAttention` and as `mha_lib` has it."""

import math

import program
import torch
from torch import nn
from weights import convert

from mha_lib import MultiHeadAttention as LibraryLayer


# From nothing
def masked_softmax(scores, mask):
    """Softmax over the keys that a query may see; zeros where it may see none."""
    hidden = torch.where(mask.any(dim=-1, keepdim=True), -torch.inf, 0.0)
    scores = torch.where(mask, scores, hidden.to(scores.dtype))
    return scores.softmax(dim=-1) * mask


def build_mask(q_len, k_len, valid_lens=None, is_causal=False):
    """Bool, True = may attend, (batch or 1, 1, q_len, k_len)."""
    mask = torch.ones(1, 1, q_len, k_len, dtype=torch.bool)
    if is_causal:  # the last query sees every key
        mask = mask.tril(diagonal=k_len - q_len)
    if valid_lens is not None:  # (batch,) or (batch, q_len)
        lens = valid_lens.reshape(len(valid_lens), 1, -1, 1)
        mask = mask & (torch.arange(k_len) < lens)
    return mask


class MultiHeadAttention(nn.Module):
    """Project, split into heads, attend, merge."""

    def __init__(self, embed_dim, num_heads, kdim, vdim, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(kdim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(vdim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def split_heads(self, x):
        x = x.reshape(*x.shape[:2], self.num_heads, -1)
        return x.transpose(1, 2)

    def merge_heads(self, x):
        return x.transpose(1, 2).flatten(2)

    def forward(self, query, key, value, valid_lens=None, is_causal=False):
        q = self.split_heads(self.q_proj(query))
        k = self.split_heads(self.k_proj(key))
        v = self.split_heads(self.v_proj(value))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        mask = build_mask(q.shape[2], k.shape[2], valid_lens, is_causal)
        weights = masked_softmax(scores, mask)
        return self.out_proj(self.merge_heads(weights @ v)), weights


# The framework's own layer
def torch_layer(case, dtype):
    """Put the weights into `nn.MultiheadAttention`, whose masks are True where a key is hidden."""
    layer = nn.MultiheadAttention(**case.sizes, batch_first=True, dtype=dtype)
    put(layer, convert(case.weights, "mha_lib", "torch", case.num_heads))

    def call(query, key, value, valid_lens, is_causal):
        keep = build_mask(query.shape[1], key.shape[1], valid_lens, is_causal)
        hide = ~keep.expand(len(query), case.num_heads, -1, -1).flatten(0, 1)
        return layer(query, key, value, attn_mask=hide, average_attn_weights=False)

    return layer, call


def library_layer(case, dtype):
    """Put the weights into the layer of this course."""
    layer = LibraryLayer(**case.sizes, dtype=dtype)
    put(layer, case.weights)

    def call(query, key, value, valid_lens, is_causal):
        return layer(query, key, value, valid_lens=valid_lens, is_causal=is_causal)

    return layer, call


# The program
def layer_from_nothing(case, dtype):
    """Put the weights into the layer from nothing."""
    layer = MultiHeadAttention(**case.sizes).to(dtype)
    put(layer, case.weights)
    return layer, layer


def put(layer, weights):
    """Load the weights of a case, all of them."""
    layer.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})


def way(make, layout):
    """A function that runs a layer on a case, forward and backward."""

    def run(case, dtype):
        layer, call = make(case, getattr(torch, dtype))
        inputs = [torch.tensor(x, requires_grad=True) for x in case.inputs(dtype)]
        lens = None if case.valid_lens is None else torch.tensor(case.valid_lens)
        output, weights = call(*inputs, lens, case.is_causal)
        (output * torch.tensor(case.upstream, dtype=output.dtype)).sum().backward()
        theirs = {name: p.grad.numpy() for name, p in layer.named_parameters()}
        gradients = convert(theirs, layout, "mha_lib", case.num_heads)
        for name, x in zip(("query", "key", "value"), inputs, strict=True):
            gradients[name] = x.grad.numpy()
        found = {"output": output.detach().numpy(), "weights": weights.detach().numpy()}
        assert {str(x.dtype) for x in found.values()} == {dtype}
        return {**found, "gradients": gradients}

    return run


WAYS = {
    "from nothing": way(layer_from_nothing, "mha_lib"),
    "torch.nn.MultiheadAttention": way(torch_layer, "torch"),
    "mha_lib.MultiHeadAttention": way(library_layer, "mha_lib"),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    program.main("PyTorch", {"torch": torch.__version__.split("+")[0]}, WAYS)
