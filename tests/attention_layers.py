"""Layers of every kind that the tests ask, with their inputs."""

import functools

import pytest
import torch
from attention_sizes import BATCH, EMBED_DIM, EVEN_DIM, EVEN_HEAD_DIM, HEADS, K_LEN, Q_LEN
from random_tensors import generator, random
from torch import nn

from mha_lib.multi_head import MultiHeadAttention
from mha_lib.relative import ShawScore
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.scores import AdditiveScore, BilinearScore, cosine_score, scaled_dot_product_score


def shaken(module, std=0.4, seed=0):
    """The module in float64, all parameters random: a weight of 1 or a bias of 0 could not be seen."""
    draw = generator(seed)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=std, generator=draw)
    return module


def hidden(lens, length):
    """Torch's padding mask: True = hidden."""
    return torch.arange(length) >= lens.unsqueeze(1)


def make_layer(**options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, HEADS, **options).double()
    for parameter in layer.parameters():  # biases start at 0, where no test could detect them
        nn.init.normal_(parameter, std=0.3)
    return layer


def make_inputs(kdim=EMBED_DIM, vdim=EMBED_DIM):
    query = random(BATCH, Q_LEN, EMBED_DIM)
    return query, random(BATCH, K_LEN, kdim, seed=1), random(BATCH, K_LEN, vdim, seed=2)


def even_layer(dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EVEN_DIM, HEADS, bias=True, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.to(dtype)


def even_inputs(dtype=torch.float64, batch=BATCH, q_len=Q_LEN, k_len=K_LEN):
    lengths = (q_len, k_len, k_len)
    return [random(batch, n, EVEN_DIM, seed=i, dtype=dtype) for i, n in enumerate(lengths)]  # fmt: skip


KINDS = {
    "plain": {},
    "shared keys": {"num_kv_heads": 1},
    "rotary": {"rotary": lambda: RotaryPositionalEncoding(EVEN_HEAD_DIM)},
    "cosine": {"score": lambda: cosine_score},
    "scaled otherwise": {"score": lambda: functools.partial(scaled_dot_product_score, scale=0.1)},
    "additive": {"score": lambda: AdditiveScore(EVEN_HEAD_DIM, EVEN_HEAD_DIM, 17)},
    "bilinear": {"score": lambda: BilinearScore(EVEN_HEAD_DIM, EVEN_HEAD_DIM)},
    "Shaw": {"score": lambda: ShawScore(EVEN_HEAD_DIM, 2)},
    "rotary, shared keys, dropout": {"rotary": lambda: RotaryPositionalEncoding(EVEN_HEAD_DIM),
        "num_kv_heads": 1, "dropout": 0.25},
}  # fmt: skip
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def layer_of(kind, dtype=torch.float64):
    options = {name: part() if callable(part) else part for name, part in KINDS[kind].items()}  # fmt: skip
    return even_layer(dtype, **options)
