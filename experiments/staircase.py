"""Four pointers: previous, mirrored, next and opposite token at every position, by heads and read-out.

Two arms that do not solve the task run again with four times the steps.
"""

from functools import partial

import torch
from common import Arm, PointerModel, heads

from mha_course.data import pointer_batch
from mha_course.training import predict

STEPS, LONG = 2000, 8000
RATES, BATCH = (1e-2, 3e-2, 1e-1), 24
TASKS = ("previous", "mirrored", "next", "opposite")


def batch(generator):
    return pointer_batch(BATCH, tasks=TASKS, generator=generator)


def measure(models):
    """Share of positions where all four answers are right, and for each pointer separately."""
    tokens, targets = pointer_batch(
        2000, tasks=TASKS, generator=torch.Generator().manual_seed(99)
    )
    right = predict(models, tokens).argmax(-1) == targets
    return {
        "all four right": right.all(-1).float().mean((1, 2)),
        "each right": right.float().mean((1, 2)),
    }


def arm(num_heads, read_out, steps=STEPS):
    make_model = partial(PointerModel, num_heads, len(TASKS), read_out)
    return Arm(make_model, batch, measure, steps=steps, rates=RATES)


ARMS = {
    f"{read_out}, {heads(number)}": arm(number, read_out)
    for read_out in ("linear", "MLP")
    for number in (1, 2, 4)
}
for read_out, number in (("linear", 2), ("MLP", 1)):
    ARMS[f"{read_out}, {heads(number)}, {LONG} steps"] = arm(number, read_out, LONG)


def all_four_equal():
    """Share of positions where all four answers are the same token, for random tokens."""
    place = torch.arange(12)
    places = [place.roll(1), place.flip(0), place.roll(-1), place.roll(6)]
    distinct = torch.tensor([len(set(p)) for p in torch.stack(places, -1).tolist()])
    return float((8.0 ** (1 - distinct.double())).mean())


BOUNDS = {"guessing": 8.0**-4, "all four answers are the same token": all_four_equal()}
