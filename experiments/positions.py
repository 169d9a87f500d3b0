"""Positions: seven encodings on three tasks, trained at length 12 and tested up to length 48.

The ceilings are exact: the accuracy that a model can reach at each position if it sees the visible tokens as
a bag, without their order. ALiBi also runs with steeper slopes, and two arms with four times the steps.
"""

from functools import partial
from math import comb
from statistics import fmean

import torch
from common import Arm, largest_shares, three_back
from torch import nn

from mha_course.data import pointer_batch
from mha_course.training import predict
from mha_lib import (
    LearnedPositionalEncoding,
    MultiHeadAttention,
    RotaryPositionalEncoding,
    ShawScore,
    SinusoidalPositionalEncoding,
    T5RelativeBias,
    alibi_bias,
)

STEPS, LONG = 500, 2000
RATES, BATCH, LENGTH, FAR = (6e-3, 2e-2, 6e-2), 32, 12, 48
WIDTH, HEADS, LETTERS, CAPITALS, CHANCE = 32, 4, 8, 4, 0.3
HEAD_DIM = WIDTH // HEADS


def mirrored(generator, batch_size=BATCH, length=LENGTH):
    tokens, targets = pointer_batch(
        batch_size, tasks=["mirrored"], length=length, generator=generator
    )
    return tokens, targets[..., 0]


def latest_capital(generator, batch_size=BATCH, length=LENGTH):
    letters = torch.randint(CAPITALS, (batch_size, length), generator=generator)
    capital = torch.rand(batch_size, length, generator=generator) < CHANCE
    capital[:, 0] = True
    place = torch.where(capital, torch.arange(length), 0).cummax(-1).values
    return letters + CAPITALS * capital, letters.gather(-1, place)


class OneLayer(nn.Module):
    """Embedding, one self-attention layer with one of the encodings, linear read-out."""

    def __init__(self, encoding, is_causal, slopes=1.0):
        super().__init__()
        self.encoding, self.is_causal, self.slopes = encoding, is_causal, slopes
        self.embedding = nn.Embedding(LETTERS, WIDTH)
        self.positions = {
            "sinusoidal": lambda: SinusoidalPositionalEncoding(WIDTH, FAR),
            "learned": lambda: LearnedPositionalEncoding(WIDTH, FAR),
        }.get(encoding, nn.Identity)()
        score = ShawScore(HEAD_DIM, max_distance=8) if encoding == "Shaw" else None
        rotary = RotaryPositionalEncoding(HEAD_DIM) if encoding == "rotary" else None
        options = {"bias": False, "score": score, "rotary": rotary}
        self.attention = MultiHeadAttention(WIDTH, HEADS, **options)
        if encoding == "T5":
            self.bias = T5RelativeBias(HEADS, bidirectional=not is_causal)
        self.read_out = nn.Linear(WIDTH, LETTERS)

    def forward(self, tokens):
        x, bias = self.positions(self.embedding(tokens)), None
        if self.encoding == "T5":
            bias = self.bias(x.shape[1])
        if self.encoding == "ALiBi":
            bias = self.slopes * alibi_bias(HEADS, x.shape[1])[None]
        output, _ = self.attention(x, x, x, attn_bias=bias, is_causal=self.is_causal)
        return self.read_out(output)


TASKS = {
    "mirrored": (mirrored, False, 0),
    "three back": (three_back, True, 3),
    "latest capital": (latest_capital, True, 0),
}


def batch(task, generator):
    return TASKS[task][0](generator)


def measure(task, models):
    """Share of right answers at length 12; for causal tasks also at every position up to length 48."""
    make_batch, is_causal, first = TASKS[task]

    def by_place(length):
        generator = torch.Generator().manual_seed(10_000)
        tokens, targets = make_batch(generator, batch_size=2000, length=length)
        return (predict(models, tokens).argmax(-1) == targets).float().mean(1)

    found = {"right": by_place(LENGTH)[:, first:].mean(1)}
    if is_causal:
        far = by_place(FAR)
        found["right, places 12 to 23"] = far[:, 12:24].mean(1)
        found["right, places 24 to 47"] = far[:, 24:].mean(1)
        found["right by place"] = far[:, first:]
    return found


def arm(encoding, task, steps=STEPS, slopes=1.0, keep=0):
    make_model = partial(OneLayer, encoding, TASKS[task][1], slopes)
    options = {"steps": steps, "rates": RATES, "keep": keep}
    return Arm(make_model, partial(batch, task), partial(measure, task), **options)


ENCODINGS = ("none", "sinusoidal", "learned", "rotary", "ALiBi", "T5", "Shaw")
KEPT = {("learned", "mirrored"): 5, ("ALiBi", "latest capital"): 1}
ARMS = {
    f"{task}, {encoding}": arm(encoding, task, keep=KEPT.get((encoding, task), 0))
    for task in TASKS
    for encoding in ENCODINGS
}
for slopes in (2, 4):
    for task in ("three back", "latest capital"):
        ARMS[f"{task}, ALiBi, slopes x{slopes}"] = arm("ALiBi", task, slopes=slopes)
for encoding, task in (("rotary", "mirrored"), ("ALiBi", "three back")):
    ARMS[f"{task}, {encoding}, {LONG} steps"] = arm(encoding, task, LONG)


EIGHT, FOUR = largest_shares(LENGTH, LETTERS), largest_shares(LENGTH, CAPITALS)
# The token three back is any of the earlier tokens, with equal probability.
BAG_THREE_BACK = EIGHT[3:LENGTH]


def bag_latest_capital(place):
    """A capital is its own answer; otherwise the latest is any of the capitals so far, with equal chance."""
    if place == 0:
        return 1.0
    small = sum(
        FOUR[1 + more]
        * comb(place - 1, more)
        * CHANCE**more
        * (1 - CHANCE) ** (place - 1 - more)
        for more in range(place)
    )
    return CHANCE + (1 - CHANCE) * small


BAG_LATEST_CAPITAL = [bag_latest_capital(place) for place in range(LENGTH)]
BOUNDS = {
    "guessing": {"mirrored": 1 / 8, "three back": 1 / 8, "latest capital": 1 / 4},
    "bag of visible tokens": {
        "mirrored": EIGHT[LENGTH - 1],
        "three back": fmean(BAG_THREE_BACK),
        "latest capital": fmean(BAG_LATEST_CAPITAL),
    },
    "bag of visible tokens, by place": {
        "three back": BAG_THREE_BACK,
        "latest capital": BAG_LATEST_CAPITAL,
    },
}
