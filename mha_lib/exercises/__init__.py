"""Checkers for the exercises of the course: they name the cause of a mistake.

A checker takes the reader's function and returns a `Verdict`, which a notebook shows as one sentence. It
never raises because of what the function does. `engine` says how an answer is judged, and how to write a
checker.
"""

from mha_lib.exercises.engine import Exercise, Verdict, Wrong, randn, rows_sum_to_one
from mha_lib.exercises.multi_head import check_multi_head
from mha_lib.exercises.parts import (
    check_cache,
    check_masked_softmax,
    check_positions,
    check_rotary,
)

__all__ = [
    "Exercise",
    "Verdict",
    "Wrong",
    "check_cache",
    "check_masked_softmax",
    "check_multi_head",
    "check_positions",
    "check_rotary",
    "randn",
    "rows_sum_to_one",
]
