"""The ALiBi explorer: a slope for each head, and how far back each head still finds a needle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.relative import alibi_slopes
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Number, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LENGTH = 512


class AlibiExplorer(Explorer):
    """A needle in a long text: one key that matches the query, and the heads that ALiBi's bias lets find it.

    The query is the last token. Before the bias, the score of the needle is `needle_score`, and the score of
    every other key is 0. The bias of a head subtracts its slope for each token between query and key, so each
    head has a reach, `needle_score / slope`: beyond it the query's own token has a higher score.

    Args:
        num_heads: number of heads, 1 to 16.
        length: number of tokens, 2 to 512.
        needle: how many tokens before the query the needle stands, 1 to `length - 1`; default 4, or as
            far as a shorter text allows.
        needle_score: score of the needle before the bias, 0.5 to 12.
        head: index of the emphasised head.
        shown: "bias", the needle's score with its bias, or "weights", its weight after the softmax; both
            at every distance.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range.

    Example:
        >>> explorer = AlibiExplorer(num_heads=4, needle=100)
        >>> explorer
        AlibiExplorer(num_heads=4, length=512, needle=100, needle_score=8, head=0)
        >>> explorer.numbers()["reaches"].tolist()
        [32.0, 128.0, 512.0, 2048.0]
        >>> explorer.numbers()["score_after"].tolist()
        [-17.0, 1.75, 6.4375, 7.609375]
    """

    _module: ClassVar[str] = "alibi_explorer.js"

    num_heads = Whole(8, 1, 16)
    length = Whole(MAX_LENGTH, 2, MAX_LENGTH)
    needle = Whole(None, 1, MAX_LENGTH - 1)
    needle_score = Number(8.0, 0.5, 12.0)
    head = Whole(0, 0, 15)
    shown = Choice("bias", ["bias", "weights"]).tag(in_repr=False)

    @t.default("needle")
    def _default_needle(self) -> int:
        return int(min(4, self.length - 1))

    @t.validate("head")
    def _check_head(self, proposal: t.Bunch) -> int:
        if proposal.value >= self.num_heads:
            raise TraitValueError(
                f"head must lie in 0..{self.num_heads - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.validate("needle")
    def _check_needle(self, proposal: t.Bunch) -> int:
        if proposal.value >= self.length:
            raise TraitValueError(
                f"needle must lie in 1..{self.length - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("num_heads")
    def _fit_head(self, change: t.Bunch) -> None:
        self.head = min(self.head, change.new - 1)

    @t.observe("length")
    def _fit_needle(self, change: t.Bunch) -> None:
        self.needle = min(self.needle, change.new - 1)

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        # In float64, because float32 rounds a penalty of hundreds in its fifth decimal.
        slopes = alibi_slopes(state.num_heads).double()
        bias = -slopes[:, None] * torch.arange(state.length)
        # In row i the needle is i + 1 tokens back: (num_heads, length - 1, length).
        content = state.needle_score * torch.eye(state.length, dtype=torch.float64)[1:]
        scores = content + bias[:, None]
        weights = scores.softmax(-1)
        # Of each row, the entry of the needle: (num_heads, length - 1).
        score_at, weight_at = (
            table[..., 1:].diagonal(dim1=1, dim2=2) for table in (scores, weights)
        )
        return {
            "slopes": slopes,
            "reaches": state.needle_score / slopes,
            "score_after": score_at[:, state.needle - 1],
            "weight_before": content[0].softmax(-1)[1],
            "weight_after": weight_at[:, state.needle - 1],
            "by_distance": score_at if state.shown == "bias" else weight_at,
        }

    def figure(self) -> Figure:
        """The needle's score or weight against distance, a curve for each head, as a matplotlib Figure."""
        from mha_lib import plots

        numbers = self.numbers()
        shows_bias = self.shown == "bias"
        figure, axis = plots.new_figure(height=2.9)
        for head, curve in enumerate(numbers["by_distance"]):
            color, style = plots.head_color(head), "-" if head < 8 else "--"
            distances = range(1, self.length)
            axis.plot(distances, curve, style, color=color, label=f"head {head}")
            axis.plot(self.needle, curve[self.needle - 1], "o", color=color)
        axis.set_xscale("log", base=2)
        axis.axvline(self.needle, color=plots.KEY, linewidth=1, linestyle=":")
        if shows_bias:
            axis.axhline(0, color="black", linewidth=0.8)
            axis.axhline(self.needle_score, color=plots.KEY, linestyle="--")
            axis.set_ylim(-self.needle_score, self.needle_score + 1)
        axis.set(
            title=f"ALiBi, a needle {self.needle} tokens back",
            xlabel="tokens between the query and the needle",
            ylabel=f"{'score' if shows_bias else 'weight'} of the needle",
        )
        axis.xaxis.set_major_formatter(lambda distance, _: f"{distance:g}")
        figure.legend(loc="outside right center", fontsize=7)
        return figure
