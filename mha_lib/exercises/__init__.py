"""Checkers for the exercises of the course: they name the cause of a mistake.

A checker takes the reader's function and returns a `Verdict`, which a notebook shows as one sentence. It
never raises because of what the function does. `engine` says how an answer is judged, and how to write a
checker.
"""

from mha_lib.exercises.efficiency import (
    check_cache_size,
    check_causal_tiles,
    check_join,
    check_pieces,
    check_share_keys,
    check_slots,
    check_torch_causal,
)
from mha_lib.exercises.engine import Exercise, Verdict, Wrong, randn, rows_sum_to_one
from mha_lib.exercises.heads import (
    check_free_widths,
    check_from_lists,
    check_greedy_pruning,
    check_head_dim,
    check_layer_sizes,
    check_mixtures,
    check_sum_over_heads,
    check_to_torch,
    check_weight_maps,
)
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
    "check_cache_size",
    "check_causal_tiles",
    "check_free_widths",
    "check_from_lists",
    "check_greedy_pruning",
    "check_head_dim",
    "check_join",
    "check_layer_sizes",
    "check_masked_softmax",
    "check_mixtures",
    "check_multi_head",
    "check_pieces",
    "check_positions",
    "check_rotary",
    "check_share_keys",
    "check_slots",
    "check_sum_over_heads",
    "check_to_torch",
    "check_torch_causal",
    "check_weight_maps",
    "randn",
    "rows_sum_to_one",
]
