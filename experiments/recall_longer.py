"""Recall for longer: what do the recurrent networks reach with four times the steps?

They are trained on the same data and at the same rates as in `recall`.
"""

from recall import BOUNDS as BOUNDS
from recall import STEPS, GatedReader, RecurrentReader, arm

LONG = 4 * STEPS

ARMS = {
    f"{name}, {LONG} steps": arm(reader, LONG)
    for name, reader in (("recurrent", RecurrentReader), ("gated", GatedReader))
}
