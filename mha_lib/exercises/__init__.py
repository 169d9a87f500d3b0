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
from mha_lib.exercises.models import (
    check_gated_width,
    check_gpt2_parameters,
    check_loss_again,
)
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
from mha_lib.exercises.positions import (
    check_concatenated_step,
    check_distance_bias,
    check_learned_start,
    check_ntk_base,
    check_shaw_values,
    check_shift_changes,
    check_slopes,
    check_stored_entries,
    check_tied_weight,
    check_to_halves,
    check_token_share,
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
from mha_lib.exercises.self_attention import (
    check_cost_borders,
    check_cross_shapes,
    check_induction_head,
    check_leak_detector,
    check_local_window,
    check_one_by_one,
    check_permuted_mask,
    check_spread,
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
    "check_bilinear_matrix",
    "check_cache",
    "check_class_shares",
    "check_concatenated_step",
    "check_convention",
    "check_cost_borders",
    "check_cross_shapes",
    "check_decoder_parameters",
    "check_distance_bias",
    "check_distance_score",
    "check_escape",
    "check_gated_width",
    "check_gpt2_parameters",
    "check_induction_head",
    "check_jacobian",
    "check_leak_detector",
    "check_learned_start",
    "check_left_lens_mask",
    "check_left_out_errors",
    "check_left_padding",
    "check_limits",
    "check_local_line",
    "check_local_window",
    "check_loss_again",
    "check_masked_softmax",
    "check_multi_head",
    "check_name_the_scale",
    "check_noise_errors",
    "check_ntk_base",
    "check_one_by_one",
    "check_one_head",
    "check_permuted_mask",
    "check_pooling",
    "check_pooling_without_loops",
    "check_pooling_without_units",
    "check_positions",
    "check_post_norm",
    "check_repaired",
    "check_rotary",
    "check_score_moments",
    "check_shaw_values",
    "check_shift_changes",
    "check_shortest_suite",
    "check_slopes",
    "check_smooth_loss",
    "check_spread",
    "check_stored_entries",
    "check_three_masks",
    "check_tied",
    "check_tied_weight",
    "check_to_halves",
    "check_token_share",
    "check_translate",
    "check_triangle",
    "randn",
    "rows_sum_to_one",
]
