"""Recall for longer: what do the recurrent networks reach with four times the steps?

The simple network runs with the learning rate that was chosen in `recall`; the gated one with two rates, each
for as many steps as there and for four times as many.
"""

from common import run_arms, run_script
from recall import BOUNDS, STEPS, GatedReader, RecurrentReader, arm

LONG = 4 * STEPS

ARMS = {
    f"recurrent, {LONG} steps": arm(RecurrentReader, 3e-3, LONG),
    "gated, lr 0.003": arm(GatedReader, 3e-3),
    f"gated, lr 0.003, {LONG} steps": arm(GatedReader, 3e-3, LONG),
    f"gated, lr 0.01, {LONG} steps": arm(GatedReader, 1e-2, LONG),
}


def run():
    return run_arms(__file__, ARMS, BOUNDS)


if __name__ == "__main__":
    run_script(__file__, run)
