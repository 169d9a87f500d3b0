"""The rotation dial: one pair of columns of a query and a key, rotated by angles or moved by sinusoids."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Choice, Number, Whole
from mha_lib.positional import sinusoidal_encoding
from mha_lib.rotary import apply_rotary, rotary_angles
from mha_lib.scores import dot_product_score

_POSITIONS = 33


def _arrows(degrees: float, head_dim: int) -> Tensor:
    """The same arrow of length 1 in each pair of columns."""
    way = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((way.cos(), way.sin())).repeat(head_dim // 2)


class RotationDial(Explorer):
    """The score of a query and a key at two positions, with rotary encoding or with added sinusoids.

    All pairs of columns of the query contain the same arrow of length 1, and so do those of the key. The dial
    shows one pair.

    Args:
        query_position: position of the query, 0 to 32.
        key_position: position of the key, 0 to 32.
        pair: number of the pair of columns, 0 to head_dim / 2 - 1.
        head_dim: width of query and key, even, 2 to 64.
        base: as in `sinusoidal_encoding`, 1 to 1,000,000.
        query_angle: direction of the query's arrow before its position is applied, in degrees, -180 to 180.
        key_angle: direction of the key's arrow, likewise.
        shown: the score that the curves show, "pair" for the chosen pair or "all" for all pairs.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or `head_dim` is odd.

    Example:
        >>> dial = RotationDial(query_position=5, key_position=3, head_dim=8)
        >>> dial
        RotationDial(query_position=5, key_position=3, pair=0, head_dim=8)
        >>> moved = RotationDial(query_position=25, key_position=23, head_dim=8)
        >>> difference = dial.numbers()["rotary_score"] - moved.numbers()["rotary_score"]
        >>> bool(difference.abs() < 1e-5)
        True
    """

    _module: ClassVar[str] = "rotation_dial.js"

    query_position = Whole(3, 0, _POSITIONS - 1)
    key_position = Whole(5, 0, _POSITIONS - 1)
    pair = Whole(0, 0, "head_dim // 2 - 1")
    head_dim = Whole(16, 2, 64, step=2)
    base = Number(10_000.0, 1, 1_000_000).tag(in_repr=False)
    query_angle = Number(20.0, -180, 180).tag(in_repr=False)
    key_angle = Number(50.0, -180, 180).tag(in_repr=False)
    shown = Choice("pair", ["pair", "all"]).tag(in_repr=False)

    @staticmethod
    def _compute(
        query_position: int,
        key_position: int,
        pair: int,
        head_dim: int,
        base: float,
        query_angle: float,
        key_angle: float,
        shown: str,
    ) -> dict[str, Tensor | None]:
        query, key = _arrows(query_angle, head_dim), _arrows(key_angle, head_dim)
        # Query and key at every position: (positions, head_dim).
        angles = rotary_angles(_POSITIONS, head_dim, base=base).double()
        table = sinusoidal_encoding(_POSITIONS, head_dim, base=base).double()
        turned = [apply_rotary(x.expand(_POSITIONS, -1), angles) for x in (query, key)]
        moved = [query + table, key + table]

        # In the columns of the pair: the query, and all keys. Offset 0 is at query_position.
        columns, place = (
            slice(2 * pair, 2 * pair + 2),
            slice(query_position, query_position + 1),
        )
        (rotary_query, rotary_keys), (added_query, added_keys) = (
            (queries[query_position, columns], keys[:, columns])
            for queries, keys in (turned, moved)
        )
        rotary_pair, added_pair = (
            dot_product_score(queries[place, columns], keys[:, columns])[0]
            for queries, keys in (turned, moved)
        )
        rotary_all, added_all = (
            dot_product_score(queries[place], keys)[0]
            for queries, keys in (turned, moved)
        )
        return {
            "rotary_score": rotary_all[key_position],
            "rotary_pair_score": rotary_pair[key_position],
            "rotary_query": rotary_query,
            "rotary_key": rotary_keys[key_position],
            # The score by offset, from -query_position on: one number for each key position.
            "rotary_by_offset": rotary_pair if shown == "pair" else rotary_all,
            "added_score": added_all[key_position],
            "added_pair_score": added_pair[key_position],
            "added_query": added_query,
            "added_key": added_keys[key_position],
            "added_by_offset": added_pair if shown == "pair" else added_all,
        }
