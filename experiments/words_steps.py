"""A model on real words: how many steps does one head need, how many do four, and how many seeds arrive?

One head with a linear read-out is the model that chapter 3 opens with. Both are trained at the same three
learning rates, and one head again for three and ten times the steps.
"""

from functools import partial

from common import Arm, heads
from words import BOUNDS as BOUNDS
from words import LONG, STEPS, FillIn, batch, measure

RATES, LONGEST = (1e-3, 3e-3, 1e-2), 15_000
RUNS = ((4, STEPS), (1, STEPS), (1, LONG), (1, LONGEST))

ARMS = {
    f"{heads(number)}, {steps} steps": Arm(
        partial(FillIn, number),
        batch,
        measure,
        steps=steps,
        rates=RATES,
        keep=int(steps == LONGEST),
    )
    for number, steps in RUNS
}
