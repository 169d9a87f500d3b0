"""Recall for longer: what do the recurrent networks reach with four times the steps?

They are trained on the same data with the learning rates of `recall`, the simple network with its best rate.
"""

from common import run_arms, run_script
from recall import BOUNDS, STEPS, GatedReader, RecurrentReader, arm

LONG = 4 * STEPS

ARMS = {
    f"recurrent, {LONG} steps": arm(RecurrentReader, 3e-3, LONG),
    f"gated, {LONG} steps": arm(GatedReader, 1e-2, LONG),
}


def run():
    return run_arms(__file__, ARMS, BOUNDS)


if __name__ == "__main__":
    run_script(__file__, run)
