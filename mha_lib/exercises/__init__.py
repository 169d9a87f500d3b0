"""Checkers for the exercises of the course: they name the cause of a mistake.

A checker takes the reader's function and returns a `Verdict`, which a notebook shows as one sentence. It
never raises because of what the function does. `engine` says how an answer is judged, and how to write a
checker.
"""

from mha_lib.exercises.bugs import (
    check_escape,
    check_name_the_scale,
    check_one_head,
    check_shortest_suite,
)
from mha_lib.exercises.engine import Exercise, Verdict, Wrong, randn, rows_sum_to_one
from mha_lib.exercises.masks import (
    check_convention,
    check_left_padding,
    check_translate,
)
from mha_lib.exercises.multi_head import check_multi_head
from mha_lib.exercises.parts import (
    check_cache,
    check_masked_softmax,
    check_positions,
    check_rotary,
)
from mha_lib.exercises.scoring import (
    check_bilinear_matrix,
    check_distance_score,
    check_left_lens_mask,
    check_repaired,
    check_score_moments,
    check_three_masks,
    check_triangle,
)

__all__ = [
    "Exercise",
    "Verdict",
    "Wrong",
    "check_bilinear_matrix",
    "check_cache",
    "check_convention",
    "check_distance_score",
    "check_escape",
    "check_left_lens_mask",
    "check_left_padding",
    "check_masked_softmax",
    "check_multi_head",
    "check_name_the_scale",
    "check_one_head",
    "check_positions",
    "check_repaired",
    "check_rotary",
    "check_score_moments",
    "check_shortest_suite",
    "check_three_masks",
    "check_translate",
    "check_triangle",
    "randn",
    "rows_sum_to_one",
]
