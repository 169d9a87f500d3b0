"""Recall for longer: what does the simple recurrent network reach with four times the steps?

It runs with the learning rate that was chosen in `recall`, on the same data, with the same measures.
"""

from common import run_arms, run_script
from recall import BOUNDS, STEPS, RecurrentReader, arm

LONG = 4 * STEPS

ARMS = {f"recurrent, {LONG} steps": arm(RecurrentReader, 3e-3, LONG)}


def run():
    return run_arms(__file__, ARMS, BOUNDS)


if __name__ == "__main__":
    run_script(__file__, run)
