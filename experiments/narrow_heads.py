"""Narrow heads: 32 heads of width 1 on two pointers, with three times the steps of `two_pointers`."""

from functools import partial

import torch
from common import Arm, PointerModel, run_script

from mha_course.data import pointer_batch
from mha_course.training import predict

STEPS, RATES, BATCH = 6000, (3e-3, 1e-2, 3e-2), 32


def batch(generator):
    return pointer_batch(BATCH, generator=generator)


def measure(models):
    """Share of positions where both answers are right."""
    tokens, targets = pointer_batch(2000, generator=torch.Generator().manual_seed(99))
    right = predict(models, tokens).argmax(-1) == targets
    return {"both right": right.all(-1).float().mean((1, 2))}


ARMS = {
    f"linear, 32 heads, {STEPS} steps": Arm(
        partial(PointerModel, 32), batch, measure, steps=STEPS, rates=RATES
    )
}
BOUNDS = {"guessing": 1 / 64, "both answers are the same token": 13 / 48}


if __name__ == "__main__":
    run_script(__file__, ARMS, BOUNDS)
