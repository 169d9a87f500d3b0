"""The ALiBi explorer: a slope for each head, and how far a head then looks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.attention import masked_softmax
from mha_lib.masking import causal_mask
from mha_lib.positional import alibi_bias, alibi_slopes
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Flag, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class AlibiExplorer(Explorer):
    """The penalty that ALiBi puts on distance, head by head, and the weights that it alone would give.

    Args:
        num_heads: number of heads, 1 to 16.
        length: number of tokens, 2 to 16.
        head: index of the head in the map.
        is_causal: hide the later keys from each query.
        shown: "bias", what is added to the scores, or "weights", their softmax where all scores are equal.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is outside its range.

    Example:
        >>> explorer = AlibiExplorer(num_heads=4, head=1)
        >>> explorer
        AlibiExplorer(num_heads=4, length=10, head=1)
        >>> explorer.numbers()["slopes"][1].item()
        0.0625
    """

    _module: ClassVar[str] = "alibi_explorer.js"
    _settings: ClassVar[tuple[str, ...]] = (
        "num_heads",
        "length",
        "head",
        "is_causal",
        "shown",
    )

    num_heads = Whole(8, 1, 16)
    length = Whole(10, 2, 16)
    head = Whole(0, 0, 15)
    is_causal = Flag(True)
    shown = Choice("weights", ["bias", "weights"])

    def __init__(
        self,
        *,
        num_heads: int = 8,
        length: int = 10,
        head: int = 0,
        is_causal: bool = True,
        shown: str = "weights",
    ) -> None:
        # One after the other, as the head must be one of num_heads; then the widget opens with all of them.
        self.num_heads, self.length, self.head = num_heads, length, head
        self.is_causal, self.shown = is_causal, shown
        super().__init__()

    @t.validate("head")
    def _check_head(self, proposal: t.Bunch) -> int:
        if proposal.value >= self.num_heads:
            raise TraitValueError(
                f"head must lie in 0..{self.num_heads - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("num_heads")
    def _fit_head(self, change: t.Bunch) -> None:
        self.head = min(self.head, change.new - 1)

    def _compute(
        self, num_heads: int, length: int, head: int, is_causal: bool, shown: str
    ) -> dict[str, Tensor]:
        slopes = alibi_slopes(num_heads)
        tables = alibi_bias(num_heads, length)
        if shown == "weights":
            tables = masked_softmax(tables, causal_mask(length) if is_causal else None)
        return {
            "slopes": slopes,
            "half_distances": math.log(2) / slopes.double(),
            "table": tables[head],
            "by_distance": tables[:, -1].flip(-1),
        }

    def figure(self) -> Figure:
        """The weights or the bias of every head, as a matplotlib Figure."""
        from mha_lib import plots

        settings = {name: getattr(self, name) for name in self._settings}
        heads = [
            self._compute(**{**settings, "head": head})["table"]
            for head in range(self.num_heads)
        ]
        figure = plots.plot_weights(
            torch.stack(heads),
            values=False,
            vmin=None if self.shown == "bias" else 0.0,
            colorbar_label=self.shown.removesuffix("s"),
        )
        figure.suptitle(f"ALiBi, {self.num_heads} heads: {self.shown}")
        return figure

    def __repr__(self) -> str:
        return f"AlibiExplorer(num_heads={self.num_heads}, length={self.length}, head={self.head})"
