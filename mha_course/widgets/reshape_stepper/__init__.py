"""The reshape stepper: twelve numbers are split into heads and merged, correctly or in wrong ways."""

from __future__ import annotations

from typing import ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Choice, Whole, within

COUNT = 12
"""The number of entries, whatever the shape."""


class ReshapeStepper(Explorer):
    """Twelve numbers, split into heads and merged again, one call after the other.

    x contains 0..11, with a row for each token. The split turns (len, embed_dim) into
    (num_heads, len, head_dim), and the merge undoes the split. Each can be done correctly, with a
    `transpose`, or wrongly, with only a `view` or `reshape`, which gives the same shapes and raises no error.

    Args:
        split: "transpose" divides the last axis and swaps two axes; "view" goes straight to the final shape.
        merge: "transpose" swaps the axes back and joins them; "reshape" goes straight to the final shape.
        length: number of tokens: 2, 3, 4 or 6; embed_dim is 12 / length.
        num_heads: number of heads; divides embed_dim.
        step: number of calls made so far, from 0.
        prediction: the number that a reader predicts for the cell in question, or -1 without a prediction.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

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
    num_heads = Whole(2, 1, 6, divides=f"{COUNT} // length").tag(in_repr=False)
    step = Whole(0, 0, 4)
    prediction = Whole(-1, -1, COUNT - 1).tag(in_repr=False)

    @property
    def embed_dim(self) -> int:
        """Width of a token."""
        return int(COUNT // self.length)

    @t.validate("step")
    def _check_step(self, proposal: t.Bunch) -> int:
        return within(proposal, 0, _count_steps(self.split, self.merge) - 1)

    @t.observe("split", "merge")
    def _fit_step(self, change: t.Bunch) -> None:  # noqa: ARG002, traitlets calls it so
        self.step = min(self.step, _count_steps(self.split, self.merge) - 1)

    @staticmethod
    def _compute(
        split: str, merge: str, length: int, num_heads: int, step: int
    ) -> dict[str, Tensor | None]:
        kind, table = _walk(split, merge, length, num_heads)[step]
        # The numbers in the correct order, in the present shape of the table.
        by_token = torch.arange(COUNT).view(length, num_heads, -1)
        belongs = by_token.transpose(0, 1) if kind == "heads" else by_token
        return {
            "table": table,
            # The numbers in their order in memory, whatever the order of the axes is.
            "memory": table.as_strided((COUNT,), (1,)),
            "strides": torch.tensor(table.stride()),
            "misplaced": (table != belongs.reshape(table.shape)).sum(),
        }

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
