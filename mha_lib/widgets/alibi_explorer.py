"""The ALiBi explorer: a slope for each head, and how far each head attends."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.attention import masked_softmax
from mha_lib.masking import causal_mask
from mha_lib.relative import alibi_bias, alibi_slopes
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Flag, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class AlibiExplorer(Explorer):
    """The penalty that ALiBi puts on distance, head by head, and the weights from this penalty alone.

    Args:
        num_heads: number of heads, 1 to 16.
        length: number of tokens, 2 to 16.
        head: index of the head in the map.
        is_causal: hide the later keys from each query.
        shown: "bias", which is added to the scores, or "weights", the softmax of the bias alone.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range.

    Example:
        >>> explorer = AlibiExplorer(num_heads=4, head=1)
        >>> explorer
        AlibiExplorer(num_heads=4, length=10, head=1)
        >>> explorer.numbers()["slopes"][1].item()
        0.0625
    """

    _module: ClassVar[str] = "alibi_explorer.js"

    num_heads = Whole(8, 1, 16)
    length = Whole(10, 2, 16)
    head = Whole(0, 0, 15)
    is_causal = Flag(True).tag(in_repr=False)
    shown = Choice("weights", ["bias", "weights"]).tag(in_repr=False)

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

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        slopes = alibi_slopes(state.num_heads)
        tables = alibi_bias(state.num_heads, state.length)
        if state.shown == "weights":
            mask = causal_mask(state.length) if state.is_causal else None
            tables = masked_softmax(tables, mask)
        return {
            "slopes": slopes,
            "half_distances": math.log(2) / slopes.double(),
            "table": tables[state.head],
            "by_distance": tables[:, -1].flip(-1),
        }

    def figure(self) -> Figure:
        """The weights or the bias of every head, as a matplotlib Figure."""
        from mha_lib import plots

        settings = {name: getattr(self, name) for name in self._settings}
        heads = [
            self._numbers_at({**settings, "head": head})["table"]
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
