"""Recall for longer: what do the recurrent networks reach with four times the steps?

They are trained on the same data, the simple network at the best rate of `recall`.
"""

from dataclasses import replace

from common import one_rate
from recall import BOUNDS as BOUNDS
from recall import STEPS, GatedReader, RecurrentReader, arm

LONG = 4 * STEPS

ARMS = {
    f"{name}, {LONG} steps": replace(arm(reader, LONG), **one_rate(lr))
    for name, reader, lr in (
        ("recurrent", RecurrentReader, 3e-3),
        ("gated", GatedReader, 1e-2),
    )
}
