"""The position explorer: the table of sines and cosines, by rows, by columns and by distance."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Number, Whole
from mha_lib.positional import sinusoidal_encoding


class PositionExplorer(Explorer):
    """A sinusoidal encoding: its table, one pair of columns as curves, and how similar two positions are.

    Args:
        num_positions: rows of the table, 2 to 64.
        embed_dim: columns of the table, 1 to 64, even or odd.
        base: the longest wavelength is about 2π * base positions; 1 to 1,000,000. The default is 10, so that
            you can see a wave in each column; most models use 10,000.
        position: the marked row.
        column: the marked column; it belongs to pair number column // 2.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or the table has no such row or column.

    Example:
        >>> explorer = PositionExplorer(num_positions=4, embed_dim=3, position=1, column=1)
        >>> explorer
        PositionExplorer(num_positions=4, embed_dim=3, base=10, position=1, column=1)
        >>> round(explorer.numbers()["cosine"][1].item(), 4)
        0.5403
    """

    _module: ClassVar[str] = "position_explorer.js"

    num_positions = Whole(64, 2, 64)
    embed_dim = Whole(32, 1, 64)
    # With the usual 10 000, most columns of such a short table would be constant stripes.
    base = Number(10.0, 1, 1_000_000)
    position = Whole(0, 0, "num_positions - 1")
    column = Whole(0, 0, "embed_dim - 1")

    @staticmethod
    def _compute(
        num_positions: int, embed_dim: int, base: float, position: int, column: int
    ) -> dict[str, Tensor | None]:
        table = sinusoidal_encoding(num_positions, embed_dim, base=base).double()
        # Columns 2i and 2i + 1 are pair i. If the width is odd, the last pair has only a sine.
        pair = column // 2
        frequency = torch.tensor(base ** (-2 * pair / embed_dim), dtype=torch.float64)
        return {
            "wavelength": 2 * math.pi / frequency,
            "frequency": frequency,
            "encoding": table[position, column],
            "table": table,
            "sine": table[:, 2 * pair],
            "cosine": table[:, 2 * pair + 1 : 2 * pair + 2].flatten(),
            "similarity": table @ table[position],
        }
