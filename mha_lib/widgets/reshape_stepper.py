"""The reshape stepper: twelve numbers are split into heads and merged, the right way and the wrong ways."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNT = 12
"""How many numbers there are, whatever the shape."""

TOKEN_COLORS = ("#332288", "#117733", "#aa4499", "#7a5c00", "#00686e", "#882255")
"""The fill of a cell shows its token. No head has one of these colours; white text is readable on each."""


class ReshapeStepper(Explorer):
    """Twelve numbers, split into heads and merged again, one call after the other.

    x holds 0..11, one row for each token. The split turns (len, embed_dim) into (num_heads, len, head_dim),
    and the merge undoes the split. Each can be done right, with a `transpose`, or wrong, with only a `view`
    or `reshape`: the shapes are the same, and nothing raises an error.

    Args:
        split: "transpose" divides the last axis and swaps two axes; "view" goes straight to the final shape.
        merge: "transpose" swaps the axes back and joins them; "reshape" goes straight to the final shape.
        length: number of tokens: 2, 3, 4 or 6; embed_dim is 12 / length.
        num_heads: number of heads, divides embed_dim.
        step: how many calls are done, from 0.
        prediction: the number that a reader predicts for the cell in question, or -1 without a prediction.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range.

    Example:
        >>> stepper = ReshapeStepper(step=2)
        >>> stepper
        ReshapeStepper(split='transpose', merge='transpose', step=2, shape=(2, 3, 2))
        >>> stepper.numbers()["table"].tolist()
        [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]
    """

    _module: ClassVar[str] = "reshape_stepper.js"

    split = Choice("transpose", ["transpose", "view"])
    merge = Choice("transpose", ["transpose", "reshape"])
    length = Whole(3, options=(2, 3, 4, 6)).tag(in_repr=False)
    num_heads = Whole(2, 1, 6).tag(in_repr=False)
    step = Whole(0, 0, 4)
    prediction = Whole(-1, -1, COUNT - 1).tag(in_repr=False)

    @property
    def embed_dim(self) -> int:
        """Width of a token."""
        return int(COUNT // self.length)

    @t.validate("num_heads")
    def _check_num_heads(self, proposal: t.Bunch) -> int:
        if self.embed_dim % proposal.value:
            raise TraitValueError(
                f"num_heads must divide embed_dim={self.embed_dim}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.validate("step")
    def _check_step(self, proposal: t.Bunch) -> int:
        last = _count_steps(self.split, self.merge) - 1
        if proposal.value > last:
            raise TraitValueError(f"step must lie in 0..{last}, got {proposal.value}")
        return int(proposal.value)

    @t.observe("length")
    def _fit_heads(self, change: t.Bunch) -> None:
        width = COUNT // change.new
        self.num_heads = max(n for n in range(1, self.num_heads + 1) if width % n == 0)

    @t.observe("split", "merge")
    def _fit_step(self, change: t.Bunch) -> None:  # noqa: ARG002, traitlets calls it so
        self.step = min(self.step, _count_steps(self.split, self.merge) - 1)

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        walk = _walk(state.split, state.merge, state.length, state.num_heads)
        kind, table = walk[state.step]
        # The numbers in the correct order, in the present shape of the table.
        by_token = torch.arange(COUNT).view(state.length, state.num_heads, -1)
        belongs = by_token.transpose(0, 1) if kind == "heads" else by_token
        return {
            "table": table,
            # The numbers in their order in memory, whatever the order of the axes is.
            "memory": table.as_strided((COUNT,), (1,)),
            "strides": torch.tensor(table.stride()),
            "misplaced": (table != belongs.reshape(table.shape)).sum(),
        }

    def figure(self) -> Figure:
        """The tables of all steps, one below the other, as a matplotlib Figure."""
        from mha_lib import plots

        walk = _walk(self.split, self.merge, self.length, self.num_heads)
        heights = [table.shape[-2] + 0.9 for _, table in walk]
        figure, axes = plots.new_figure(
            len(walk),
            1,
            width=5.2,
            height=0.27 * sum(heights) + 0.3,
            gridspec_kw={"height_ratios": heights},
        )
        for index, (axis, (kind, table)) in enumerate(zip(axes, walk, strict=True)):
            blocks = table if table.ndim == 3 else table.unsqueeze(0)
            for block, cells in enumerate(blocks):
                left = block * (cells.shape[1] + 1.4)
                for row, numbers in enumerate(cells.tolist()):
                    for column, number in enumerate(numbers):
                        self._draw_cell(axis, left + column, row, number)
                title = {"input": "x", "merged": "merged", "heads": f"head {block}"}
                axis.text(
                    left,
                    -0.15,
                    title.get(kind, f"token {block}"),
                    fontsize=8,
                    va="bottom",
                )
            shown = "" if index != self.step else "  ← here"
            axis.set_ylabel(
                f"{tuple(table.shape)}{shown}",
                rotation=0,
                ha="right",
                va="center",
                fontsize=8.5,
            )
            axis.set(xlim=(-0.2, 20), ylim=(heights[index] - 0.9, -0.9), aspect="equal")
            axis.set_anchor("W")
            axis.set_xticks([])
            axis.set_yticks([])
            for spine in axis.spines.values():
                spine.set_visible(False)
        figure.suptitle(f"split: {self.split}, merge: {self.merge}", fontsize=10)
        return figure

    def _draw_cell(self, axis: object, x: float, y: int, number: int) -> None:
        from matplotlib.axes import Axes
        from matplotlib.patches import Rectangle

        from mha_lib import plots

        assert isinstance(axis, Axes)
        token, place = divmod(number, self.embed_dim)
        head = place // (self.embed_dim // self.num_heads)
        axis.add_patch(
            Rectangle((x, y), 0.94, 0.74, facecolor=TOKEN_COLORS[token], linewidth=0)
        )
        axis.add_patch(
            Rectangle(
                (x, y + 0.78), 0.94, 0.16, facecolor=plots.head_color(head), linewidth=0
            )
        )
        axis.text(
            x + 0.47,
            y + 0.38,
            str(number),
            ha="center",
            va="center",
            fontsize=8,
            color="white",
        )

    def _details(self) -> list[str]:
        return [f"shape={tuple(self.numbers()['table'].shape)}"]


def _walk(
    split: str, merge: str, length: int, num_heads: int
) -> list[tuple[str, Tensor]]:
    """The table before the first call and after each call, with a name for the order of its axes."""
    width = COUNT // length
    x = torch.arange(COUNT).view(length, width)
    walk = [("input", x)]
    if split == "transpose":
        cut = x.view(length, num_heads, width // num_heads)
        walk += [("cut", cut), ("heads", cut.transpose(0, 1))]
    else:
        walk.append(("heads", x.view(num_heads, length, width // num_heads)))
    if merge == "transpose":
        walk.append(("swapped", walk[-1][1].transpose(0, 1)))
    walk.append(("merged", walk[-1][1].reshape(length, width)))
    return walk


def _count_steps(split: str, merge: str) -> int:
    return 3 + (split == "transpose") + (merge == "transpose")
