"""Beyond the training length: rotary models, trained at length 32 and used at lengths 64 and 128.

A causal model of two layers names two tokens at each place: the one 3 back and the one 20 back. After
training only the frequencies of the rotation are changed, in the ways of the literature; some of the models
are also fine-tuned at the new length, each at three learning rates. Controls: a window that hides every
distance which training has not seen; fine-tuning with the old frequencies; and a model that starts the
fine-tuning from nothing.
"""

import copy
import math
from functools import partial
from statistics import fmean

import torch
from common import HELD_OUT_BATCHES, Arm, largest_shares
from torch import nn

from mha_course.training import cross_entropy, fit, predict, seeded
from mha_lib import MultiHeadAttention, apply_rotary

SHORT, STEPS = 500, 2000
RATES, BATCH, TUNING_BATCH, TUNING = (3e-3, 1e-2, 3e-2), 16, 8, (100, 400)
WIDTH, HEADS, LAYERS, LETTERS, BACK = 32, 2, 2, 8, (3, 20)
LENGTH, FAR = 32, 128
HEAD_DIM = WIDTH // HEADS


def batch(generator, batch_size=BATCH, length=LENGTH):
    tokens = torch.randint(LETTERS, (batch_size, length), generator=generator)
    targets = torch.stack([tokens.roll(back, -1) for back in BACK], dim=-1)
    for task, back in enumerate(BACK):
        targets[:, :back, task] = -100
    return tokens, targets


def far_batch(generator):
    return batch(generator, TUNING_BATCH, FAR)


def frequencies(base=10_000.0):
    """Radians per position of each pair (Su et al., 2021, section 3.2.2)."""
    return base ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)


def interpolated(scale, base=10_000.0):
    """Position interpolation: place m becomes m / scale (Chen et al., 2023, equation 4)."""
    return frequencies(base) / scale


def ntk_aware(scale, base=10_000.0):
    """A larger base: the slowest pair is interpolated, the fastest not (Peng et al., 2023, section 3.1)."""
    return frequencies(base * scale ** (HEAD_DIM / (HEAD_DIM - 2)))


def yarn(scale, base=10_000.0, alpha=1.0, beta=32.0):
    """Pairs of less than alpha turns in the training length are interpolated, of more than beta turns kept.

    Peng et al., 2023, section 3.2, "NTK-by-parts".
    """
    turns = LENGTH * frequencies(base) / (2 * math.pi)
    kept = ((turns - alpha) / (beta - alpha)).clamp(0, 1)
    return (1 - kept) * frequencies(base) / scale + kept * frequencies(base)


def yarn_factor(scale):
    """Queries and keys of YaRN are both multiplied by this (Peng et al., 2023, section 3.4)."""
    return 0.1 * math.log(scale) + 1


class Rotary:
    """Turns queries and keys by given frequencies, and stretches them by a factor."""

    def __init__(self, frequencies, factor=1.0):
        self.frequencies, self.factor = frequencies, factor

    def __call__(self, x, _positions=None):
        places = torch.arange(x.shape[-2], dtype=torch.float64)
        angles = torch.outer(places, self.frequencies)
        return self.factor * apply_rotary(x, angles.float())


class TwoLayers(nn.Module):
    """Embedding, two causal attention layers with skip connections, linear read-out."""

    def __init__(self, base=10_000.0):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, WIDTH)
        self.layers = nn.ModuleList(
            MultiHeadAttention(WIDTH, HEADS, rotary=Rotary(frequencies(base)))
            for _ in range(LAYERS)
        )
        self.read_out = nn.Linear(WIDTH, len(BACK) * LETTERS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x, x, x, is_causal=True)[0]
        return self.read_out(x).unflatten(-1, (len(BACK), LETTERS))


def ways(scale, base):
    """What is changed in a trained model: the rotation, and the window of keys that a query sees."""
    factor, plain = yarn_factor(scale), Rotary(frequencies(base))
    return {
        "as trained": (plain, None),
        "interpolated": (Rotary(interpolated(scale, base)), None),
        "NTK-aware": (Rotary(ntk_aware(scale, base)), None),
        "YaRN, beta 32": (Rotary(yarn(scale, base), factor), None),
        "YaRN, beta 4": (Rotary(yarn(scale, base, beta=4.0), factor), None),
        "window of 32": (plain, (LENGTH - 1, 0)),
    }


def changed(models, rotary, window):
    """The same weights, with another rotation or window."""
    models = copy.deepcopy(models)
    for model in models:
        for layer in model.layers:
            layer.rotary, layer.window = rotary, window
    return models


def right(models, length, back=0):
    """Whether each answer is right on 500 new sequences: (models, batch, length, tasks).

    With `back`, an answer counts as right if it is the token that many places before.
    """
    tokens, targets = batch(torch.Generator().manual_seed(10_000), 500, length)
    targets = tokens.roll(back, -1).unsqueeze(-1) if back else targets
    return (predict(models, tokens).argmax(-1) == targets).float()


def fine_tuned(models, steps):
    """Copies of the models after more steps at the new length; of three rates, the best on new batches."""
    runs = {}
    for lr in RATES:
        new, generator = copy.deepcopy(models), torch.Generator().manual_seed(20_000)
        fit(new, far_batch, steps=steps, lr=lr, seed=50)
        losses = []
        for _ in range(HELD_OUT_BATCHES):
            inputs, targets = far_batch(generator)
            losses += [cross_entropy(out, targets) for out in predict(new, inputs)]
        loss = torch.stack(losses).mean().nan_to_num(nan=math.inf)
        runs[lr] = float(loss), new
    best = min(runs, key=lambda lr: runs[lr][0])
    return runs[best][1], best


def shares(name, answers, first):
    """Share of right answers from a place on, for each task."""
    return {
        f"{name}, {back} back": answers[:, :, max(first, back) :, task].mean((1, 2))
        for task, back in enumerate(BACK)
    }


def measure(base, tune, models):
    """Share of right answers at the training length, and at new places of longer texts."""
    found = shares(f"length {LENGTH}", right(models, LENGTH), 0)
    for scale in (2, 4):
        length = scale * LENGTH
        for way, (rotary, window) in ways(scale, base).items():
            answers = right(changed(models, rotary, window), length)
            found |= shares(f"length {length}, {way}", answers, length // 2)
            if way == "interpolated":
                new, back = changed(models, rotary, window), scale * BACK[0]
                named = right(new, length, back)[:, :, length // 2 :, 0].mean((1, 2))
                found[f"length {length}, {way}, {back} back named"] = named
            if way == "as trained" and length == FAR:
                blocks = answers.mean(1).unflatten(1, (-1, 8)).mean(2)
                found["by blocks of 8 places"] = blocks
    for steps in TUNING if tune else ():
        tuned = {
            way: changed(models, *ways(FAR // LENGTH, base)[way])
            for way in ("as trained", "interpolated", "NTK-aware", "YaRN, beta 4")
        }
        tuned["from nothing"] = seeded(TwoLayers, len(models))
        for way, before in tuned.items():
            new, rate = fine_tuned(before, steps)
            name = f"length {FAR}, {way}, {steps} more steps"
            found |= shares(name, right(new, FAR), FAR // 2)
            found[f"{name}, rate"] = torch.full((len(new),), rate)
    return found


ARMS = {
    f"base {base}, {steps} steps": Arm(
        partial(TwoLayers, float(base)),
        batch,
        partial(measure, float(base), base == 10_000 and steps == STEPS),
        steps,
        RATES,
    )
    for base in (10_000, 100, 500_000)
    for steps in (SHORT, STEPS)
}
BAG = largest_shares(FAR - 1, LETTERS)
BOUNDS = {
    "guessing": 1 / LETTERS,
    "most frequent of the visible tokens": {
        f"length {2 * LENGTH}": fmean(BAG[LENGTH : 2 * LENGTH]),
        f"length {FAR}": fmean(BAG[FAR // 2 :]),
    },
}
