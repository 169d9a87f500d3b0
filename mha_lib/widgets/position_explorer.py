"""The position explorer: the table of sines and cosines, by rows, by columns and by distance."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.positional import sinusoidal_encoding
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Number, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PositionExplorer(Explorer):
    """A sinusoidal encoding: its table, one pair of columns as curves, and how similar two positions are.

    Args:
        num_positions: rows of the table, 2 to 64.
        embed_dim: columns of the table, 1 to 64, even or odd.
        base: the longest wavelength is about 2π * base positions; 1 to 1,000,000. It starts at 10, so that
            each column waves; most models use 10,000.
        position: the row that is marked.
        column: the column that is marked; it belongs to pair number column // 2.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range, or the table has no such row or column.

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
    # With the usual 10 000, most columns of so short a table would be constant: stripes.
    base = Number(10.0, 1, 1_000_000)
    position = Whole(0, 0, 63)
    column = Whole(0, 0, 63)

    @t.validate("position", "column")
    def _check_place(self, proposal: t.Bunch) -> int:
        name = proposal.trait.name
        size = self.num_positions if name == "position" else self.embed_dim
        if proposal.value >= size:
            raise TraitValueError(
                f"{name} must lie in 0..{size - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("num_positions", "embed_dim")
    def _fit_place(self, _change: t.Bunch) -> None:
        self.position = min(self.position, self.num_positions - 1)
        self.column = min(self.column, self.embed_dim - 1)

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        table = sinusoidal_encoding(
            state.num_positions, state.embed_dim, base=state.base
        ).double()
        pair = state.column // 2
        frequency = torch.tensor(
            state.base ** (-2 * pair / state.embed_dim), dtype=torch.float64
        )
        return {
            "table": table,
            "frequency": frequency,
            "wavelength": 2 * math.pi / frequency,
            "encoding": table[state.position, state.column],
            "sine": table[:, 2 * pair],
            # Where the width is odd, the last pair has no cosine.
            "cosine": table[:, 2 * pair + 1 : 2 * pair + 2].flatten(),
            "similarity": table @ table[state.position],
        }

    def figure(self) -> Figure:
        """Table, curves and similarity, as a matplotlib Figure."""
        from mha_lib import plots

        numbers = self.numbers()
        pair = self.column // 2
        figure, axes = plots.new_figure(1, 3, width=8.5, height=2.7)
        image = axes[0].imshow(
            numbers["table"],
            cmap=plots.SIGNED_COLORMAP,
            vmin=-1,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
        )
        figure.colorbar(image, ax=axes[0], shrink=0.9, ticks=(-1, 0, 1))
        # Black on white can be seen on every colour of the table.
        for color, linewidth in (("white", 2.4), ("black", 0.9)):
            axes[0].axhline(self.position, color=color, linewidth=linewidth)
            axes[0].axvline(self.column, color=color, linewidth=linewidth)
        axes[0].set(xlabel="column (embed_dim)", ylabel="position")
        color = plots.HEADS[5]
        axes[1].plot(numbers["sine"], color=color, label=f"{2 * pair}: sin")
        if len(numbers["cosine"]):
            axes[1].plot(
                numbers["cosine"], "--", color=color, label=f"{2 * pair + 1}: cos"
            )
        axes[1].axvline(self.position, color="black", linewidth=0.8)
        axes[1].set(
            xlabel="position", ylim=(-1.1, 1.6), title=f"columns of pair {pair}"
        )
        axes[1].legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
        offsets = torch.arange(self.num_positions) - self.position
        axes[2].plot(offsets, numbers["similarity"], color="black")
        axes[2].axvline(0, color="black", linewidth=0.8)
        axes[2].set(
            xlabel=f"offset from position {self.position}",
            title="dot product of encodings",
        )
        return figure
