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
from mha_lib.exercises.pooling import (
    check_class_shares,
    check_jacobian,
    check_left_out_errors,
    check_limits,
    check_local_line,
    check_noise_errors,
    check_pooling,
    check_pooling_without_loops,
    check_pooling_without_units,
)
from mha_lib.exercises.transformer import (
    check_beam,
    check_decoder_parameters,
    check_post_norm,
    check_smooth_loss,
    check_tied,
)

__all__ = [
    "Exercise",
    "Verdict",
    "Wrong",
    "check_beam",
    "check_cache",
    "check_class_shares",
    "check_decoder_parameters",
    "check_jacobian",
    "check_left_out_errors",
    "check_limits",
    "check_local_line",
    "check_masked_softmax",
    "check_multi_head",
    "check_noise_errors",
    "check_pooling",
    "check_pooling_without_loops",
    "check_pooling_without_units",
    "check_positions",
    "check_post_norm",
    "check_rotary",
    "check_smooth_loss",
    "check_tied",
    "randn",
    "rows_sum_to_one",
]
