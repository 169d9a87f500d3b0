"""Narrow heads: 32 heads of width 1 on two pointers, with three times the steps of `two_pointers`."""

from functools import partial

from common import Arm, PointerModel
from two_pointers import batch, measure

STEPS, RATES = 6000, (3e-3, 1e-2, 3e-2)


def both_right(models):
    """Share of positions where both answers are right."""
    return {"both right": measure(models)["both right"]}


ARMS = {
    f"linear, 32 heads, {STEPS} steps": Arm(
        partial(PointerModel, 32), batch, both_right, steps=STEPS, rates=RATES
    )
}
BOUNDS = {"guessing": 1 / 64, "both answers are the same token": 13 / 48}
