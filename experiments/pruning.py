"""Pruning: which of eight heads can be removed? They are ranked once by ablation, greedily, or at random.

The ten models (seeds) are those of two pointers with eight heads and a linear read-out. The sequences that
rank the heads are not those that measure the result.
"""

import copy
from functools import partial

import torch
from common import Arm, PointerModel, heads
from torch.nn.functional import cross_entropy

from mha_course.data import pointer_batch
from mha_course.training import fit, predict
from mha_lib import gate_heads, prune_heads

STEPS, SHORT, TUNING = 2000, 200, 500
RATES, BATCH, SEEDS, HEADS = (1e-2, 3e-2, 9e-2), 32, 10, 8
RANDOM_ORDERS = 20


def batch(generator):
    return pointer_batch(BATCH, generator=generator)


RANKING = pointer_batch(256, generator=torch.Generator().manual_seed(98))
TEST = pointer_batch(512, generator=torch.Generator().manual_seed(99))


def without(model, off, sequences):
    """Loss and share of positions with both answers right, with some heads switched off."""
    tokens, targets = sequences
    gates = torch.ones(HEADS)
    gates[off] = 0.0
    with gate_heads(model.attention, gates), torch.no_grad():
        logits = model(tokens)
    loss = cross_entropy(logits.flatten(0, -2), targets.flatten())
    right = (logits.argmax(-1) == targets).all(-1).float().mean()
    return float(loss), float(right)


def once(model):
    """Heads by the increase of the loss when only that head is switched off, least important first."""
    return sorted(range(HEADS), key=lambda head: without(model, [head], RANKING)[0])


def greedy(model):
    """Repeatedly switch off the head that costs least, measuring again after each."""
    off = []
    while len(off) < HEADS - 1:
        others = [head for head in range(HEADS) if head not in off]
        costs = [without(model, [*off, head], RANKING)[0] for head in others]
        off.append(others[costs.index(min(costs))])
    return off


def measure(models):
    """Loss and accuracy by number of heads kept, from 8 to 1, for each way to choose them."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for model in models:
        orders = {"once": [once(model)], "greedy": [greedy(model)]}
        orders["random"] = [
            torch.randperm(HEADS, generator=generator).tolist()
            for _ in range(RANDOM_ORDERS)
        ]
        for way, lists in orders.items():
            rows = [[without(model, o[:k], TEST) for k in range(HEADS)] for o in lists]
            loss, right = torch.tensor(rows).mean(0).unbind(1)
            found.setdefault(f"{way}: loss", []).append(loss)
            found.setdefault(f"{way}: both right", []).append(right)
        [first], [other] = orders["once"], orders["greedy"]
        same = [set(first[:k]) == set(other[:k]) for k in range(HEADS)]
        found.setdefault("same heads kept", []).append(same)
    for keep in (2, 1):
        tuned = copy.deepcopy(models)
        for model in tuned:
            off = greedy(model)[: HEADS - keep]
            model.attention = prune_heads(model.attention, off)
        fit(tuned, batch, steps=TUNING, lr=1e-2, seed=50)
        tokens, targets = TEST
        right = (predict(tuned, tokens).argmax(-1) == targets).all(-1)
        found[f"{heads(keep)}, fine-tuned: both right"] = right.float().mean((1, 2))
    return found


ARMS = {
    f"8 heads, {steps} steps": Arm(
        partial(PointerModel, HEADS),
        batch,
        measure,
        steps=steps,
        rates=RATES,
        seeds=SEEDS,
    )
    for steps in (SHORT, STEPS)
}
BOUNDS = {"guessing": 1 / 64, "both answers are the same token": 13 / 48}
