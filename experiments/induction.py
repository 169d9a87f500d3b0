"""Induction: letters that repeat with an unknown period. What do one and two layers of attention reach?

Which learns it sooner is counted over twenty seeds. Controls for one layer: as many parameters as two, two
heads, and ten times the steps with one head and with eight. A bag's ceiling is exact.
"""

from functools import partial

import torch
from common import Arm
from torch import nn

from mha_course.training import predict
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention

STEPS, SHORT, LONG = 2000, 300, 20_000
MANY = 20  # seeds, where the text says which learns sooner
RATES, BATCH = (7e-3, 2e-2, 6e-2), 32
ALPHABET, LENGTH, PERIODS = 16, 24, (6, 12)


def repeat_batch(batch_size, generator):
    """Letters that repeat with a random period; letters that cannot be known yet have target -100."""
    first, last = PERIODS
    period = torch.randint(first, last + 1, (batch_size, 1), generator=generator)
    letters = torch.rand(batch_size, ALPHABET, generator=generator).argsort(-1)
    place = torch.arange(LENGTH + 1)
    sequence = letters.gather(1, place % period)
    targets = sequence[:, 1:].masked_fill(place[1:] <= period, -100)
    return sequence[:, :-1], targets


class AttentionOnly(nn.Module):
    """Attention with skip connections and a linear read-out, no MLP."""

    def __init__(self, num_layers, num_heads=1, width=32):
        super().__init__()
        self.embed = nn.Embedding(ALPHABET, width)
        self.positions = LearnedPositionalEncoding(width, LENGTH)
        layers = [
            MultiHeadAttention(width, num_heads, bias=False) for _ in range(num_layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.read_out = nn.Linear(width, ALPHABET)

    def forward(self, tokens):
        x = self.positions(self.embed(tokens))
        for layer in self.layers:
            x = x + layer(x, x, x, is_causal=True)[0]
        return self.read_out(x)


def batch(generator):
    return repeat_batch(BATCH, generator)


def measure(models):
    """Share of right answers among the letters that can be known."""
    tokens, targets = repeat_batch(3000, torch.Generator().manual_seed(99))
    scored = targets != -100
    right = (predict(models, tokens).argmax(-1) == targets)[:, scored]
    return {"right": right.float().mean(-1)}


def arm(num_layers, num_heads=1, width=32, steps=STEPS, **settings):
    make_model = partial(AttentionOnly, num_layers, num_heads, width)
    return Arm(make_model, batch, measure, steps=steps, rates=RATES, **settings)


ARMS = {
    f"1 layer, {SHORT} steps": arm(1, steps=SHORT, seeds=MANY),
    "1 layer": arm(1, keep=1),
    "1 layer, width 44": arm(1, width=44),
    "1 layer, 2 heads": arm(1, num_heads=2),
    f"2 layers, {SHORT} steps": arm(2, steps=SHORT, seeds=MANY),
    "2 layers": arm(2, keep=2),
    f"1 layer, {LONG} steps": arm(1, steps=LONG),
    f"1 layer, 8 heads, {LONG} steps": arm(1, num_heads=8, steps=LONG),
}


def bag_of_letters():
    """Highest accuracy for a model that knows how often each letter was seen, and the present letter.

    With period p and t letters seen, t mod p letters were seen once more than the others. The next letter is
    one of the others, each with equal chance; if all were seen equally often, any except the present one.
    """
    chances = []
    for period in range(PERIODS[0], PERIODS[1] + 1):
        for seen in range(period + 1, LENGTH + 1):
            ahead = seen % period
            others = period - ahead if ahead else period - 1
            chances.append(1 / others)
    return sum(chances) / len(chances)


BOUNDS = {
    "guessing": 1 / ALPHABET,
    "bag of visible letters": bag_of_letters(),
    "one letter of those seen": sum(1 / p for p in range(6, 13)) / 7,
}
