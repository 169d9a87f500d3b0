"""Positions: seven encodings on three tasks, trained at length 12 and tested up to length 48.

The ceilings are exact: the accuracy that a model can reach at each position if it sees the visible tokens as
a bag, without their order. ALiBi runs again with its slopes doubled and quadrupled, the control for "its
slopes are too flat for this length". Two arms that fail run again with four times the steps.
"""

from fractions import Fraction
from functools import partial
from math import comb, factorial

import torch
from common import Arm, one_rate, run_script
from torch import nn

from mha_course.data import pointer_batch
from mha_course.training import predict
from mha_lib import (
    LearnedPositionalEncoding,
    MultiHeadAttention,
    ShawScore,
    SinusoidalPositionalEncoding,
    T5RelativeBias,
    alibi_bias,
    apply_rotary,
    dot_product_attention,
    rotary_angles,
)

STEPS, LONG = 500, 2000
LR, BATCH, LENGTH, FAR = 2e-2, 32, 12, 48
WIDTH, HEADS, LETTERS, CAPITALS, CHANCE = 32, 4, 8, 4, 0.3
HEAD_DIM = WIDTH // HEADS


def mirrored(generator, batch_size=BATCH, length=LENGTH):
    tokens, targets = pointer_batch(
        batch_size, tasks=["mirrored"], length=length, generator=generator
    )
    return tokens, targets[..., 0]


def three_back(generator, batch_size=BATCH, length=LENGTH):
    tokens = torch.randint(LETTERS, (batch_size, length), generator=generator)
    targets = tokens.roll(3, -1)
    targets[:, :3] = -100
    return tokens, targets


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
        self.attention = MultiHeadAttention(WIDTH, HEADS, bias=False, score=score)
        if encoding == "T5":
            self.bias = T5RelativeBias(HEADS, bidirectional=not is_causal)
        self.read_out = nn.Linear(WIDTH, LETTERS)

    def forward(self, tokens):
        x, layer = self.positions(self.embedding(tokens)), self.attention
        if self.encoding == "rotary":
            angles = rotary_angles(x.shape[1], HEAD_DIM)
            query, key, value = (
                layer.split_heads(proj(x))
                for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
            )
            query, key = apply_rotary(query, angles), apply_rotary(key, angles)
            attended, _ = dot_product_attention(
                query, key, value, is_causal=self.is_causal
            )
            return self.read_out(layer.out_proj(layer.merge_heads(attended)))
        bias = None
        if self.encoding == "T5":
            bias = self.bias(x.shape[1])
        if self.encoding == "ALiBi":
            bias = self.slopes * alibi_bias(HEADS, x.shape[1])[None]
        output, _ = layer(x, x, x, attn_bias=bias, is_causal=self.is_causal)
        return self.read_out(output)


TASKS = {
    "mirrored": (mirrored, False, 0),
    "three back": (three_back, True, 3),
    "latest capital": (latest_capital, True, 0),
}


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
    make_batch, is_causal, _ = TASKS[task]
    return Arm(
        partial(OneLayer, encoding, is_causal, slopes),
        make_batch,
        partial(measure, task),
        steps=steps,
        **one_rate(LR),
        keep=keep,
    )


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


def largest_share(draws, letters):
    """Expected share of the most frequent letter among `draws` uniform letters, computed exactly.

    The chance that no letter occurs more than m times is draws! / letters^draws times the coefficient of
    x^draws in (1 + x + x^2/2! + ... + x^m/m!)^letters.
    """
    total, below = Fraction(0), Fraction(0)
    for most in range(1, draws + 1):
        power = [Fraction(1)] + [Fraction(0)] * draws
        for _ in range(letters):
            power = [
                sum(
                    (power[n - k] / factorial(k) for k in range(min(most, n) + 1)),
                    Fraction(0),
                )
                for n in range(draws + 1)
            ]
        at_most = power[draws] * factorial(draws) / Fraction(letters) ** draws
        total, below = total + most * (at_most - below), at_most
    return total / draws


def bag_three_back(place):
    """The token three back is any of the `place` earlier tokens, with equal chance."""
    return float(largest_share(place, LETTERS))


def bag_latest_capital(place):
    """A capital is its own answer; otherwise the latest is any of the capitals so far, with equal chance."""
    if place == 0:
        return 1.0
    shares = [largest_share(1 + more, CAPITALS) for more in range(place)]
    chances = [
        comb(place - 1, more) * CHANCE**more * (1 - CHANCE) ** (place - 1 - more)
        for more in range(place)
    ]
    small = sum(chance * float(s) for chance, s in zip(chances, shares, strict=True))
    return CHANCE + (1 - CHANCE) * small


def mean(values):
    return sum(values) / len(values)


BOUNDS = {
    "guessing": {"mirrored": 1 / 8, "three back": 1 / 8, "latest capital": 1 / 4},
    "bag of visible tokens": {
        "mirrored": float(largest_share(LENGTH - 1, LETTERS)),
        "three back": mean([bag_three_back(i) for i in range(3, LENGTH)]),
        "latest capital": mean([bag_latest_capital(i) for i in range(LENGTH)]),
    },
    "bag of visible tokens, by place": {
        "three back": [bag_three_back(i) for i in range(3, LENGTH)],
        "latest capital": [bag_latest_capital(i) for i in range(LENGTH)],
    },
}


if __name__ == "__main__":
    run_script(__file__, ARMS, BOUNDS)
