"""The rotation dial: a pair of columns of a query and a key, rotated by rotary, moved by added sinusoids."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.positional import sinusoidal_encoding
from mha_lib.rotary import apply_rotary, rotary_angles
from mha_lib.scores import dot_product_score
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Number, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POSITIONS = 33


class RotationDial(Explorer):
    """The score of a query and a key at two positions: rotated by rotary encoding, or with sinusoids added.

    Each pair of columns of the query holds the same arrow of length 1, and so does each pair of the key. The
    dial shows one pair.

    Args:
        query_position: 0 to 32.
        key_position: 0 to 32.
        pair: number of the pair of columns, 0 to head_dim / 2 - 1.
        head_dim: width of query and key, even, 2 to 64.
        base: as in `sinusoidal_encoding`, 1 to 1,000,000.
        query_angle: direction of the query's arrow before its position is applied, in degrees, -180 to 180.
        key_angle: direction of the key's arrow.
        shown: the score that the curves show: "pair" for the chosen pair, or "all" for all pairs.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range, or `head_dim` is odd.

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
    pair = Whole(0, 0, 31)
    head_dim = Whole(16, 2, 64, step=2)
    base = Number(10_000.0, 1, 1_000_000).tag(in_repr=False)
    query_angle = Number(20.0, -180, 180).tag(in_repr=False)
    key_angle = Number(50.0, -180, 180).tag(in_repr=False)
    shown = Choice("pair", ["pair", "all"]).tag(in_repr=False)

    @t.validate("pair")
    def _check_pair(self, proposal: t.Bunch) -> int:
        if proposal.value >= self.head_dim // 2:
            raise TraitValueError(
                f"pair must lie in 0..{self.head_dim // 2 - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("head_dim")
    def _fit_pair(self, change: t.Bunch) -> None:
        self.pair = min(self.pair, change.new // 2 - 1)

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        pair, head_dim, base = state.pair, state.head_dim, state.base
        query, key = (
            torch.tensor(
                [math.cos(math.radians(angle)), math.sin(math.radians(angle))],
                dtype=torch.float64,
            ).repeat(head_dim // 2)
            for angle in (state.query_angle, state.key_angle)
        )
        columns = slice(2 * pair, 2 * pair + 2)
        # Query and key at every position: (positions, head_dim).
        angles = rotary_angles(_POSITIONS, head_dim, base=base).double()
        table = sinusoidal_encoding(_POSITIONS, head_dim, base=base).double()
        numbers = {}
        for name, queries, keys in (
            (
                "rotary",
                apply_rotary(query.expand(_POSITIONS, -1), angles),
                apply_rotary(key.expand(_POSITIONS, -1), angles),
            ),
            ("added", query + table, key + table),
        ):
            here = queries[state.query_position : state.query_position + 1]
            all_scores = dot_product_score(here, keys)[0]
            pair_scores = dot_product_score(here[:, columns], keys[:, columns])[0]
            numbers[f"{name}_query"] = queries[state.query_position, columns]
            numbers[f"{name}_key"] = keys[state.key_position, columns]
            numbers[f"{name}_pair_score"] = pair_scores[state.key_position]
            numbers[f"{name}_score"] = all_scores[state.key_position]
            # The score by offset, from -query_position on: one number for each key position.
            curve = pair_scores if state.shown == "pair" else all_scores
            numbers[f"{name}_by_offset"] = curve
        return numbers

    def figure(self) -> Figure:
        """The dial, and the scores by offset, as a matplotlib Figure."""
        from mha_lib import plots

        numbers = self.numbers()
        figure, axes = plots.new_figure(
            1, 3, width=8.5, height=2.8, width_ratios=(1, 1, 1.6)
        )
        for axis, name, title in zip(
            axes[:2],
            ("rotary", "added"),
            ("rotary: turned", "sinusoid: added"),
            strict=True,
        ):
            for role, angle, color in (
                ("query", self.query_angle, plots.QUERY),
                ("key", self.key_angle, plots.KEY),
            ):
                start = (math.cos(math.radians(angle)), math.sin(math.radians(angle)))
                end = numbers[f"{name}_{role}"].tolist()
                axis.plot([0, start[0]], [0, start[1]], ":", color=color, linewidth=1)
                axis.annotate(
                    "",
                    xy=end,
                    xytext=(0, 0),
                    arrowprops={
                        "arrowstyle": "-|>",
                        "color": color,
                        "linewidth": 2,
                        "shrinkA": 0,
                        "shrinkB": 0,
                    },
                )
                if name == "added":
                    axis.plot(
                        [start[0], end[0]], [start[1], end[1]], color=color, linewidth=1
                    )
            around = torch.linspace(0, 2 * math.pi, 100)
            axis.plot(around.cos(), around.sin(), color="#999999", linewidth=0.8)
            size = 1.2 if name == "rotary" else 2.1
            axis.set(
                xlim=(-size, size), ylim=(-size, size), aspect="equal", title=title
            )
            axis.axis("off")
        offsets = torch.arange(_POSITIONS) - self.query_position
        for name, label, style, color in (
            ("rotary", "rotary", "-", plots.HEADS[5]),
            ("added", "sinusoid added", "--", plots.HEADS[7]),
        ):
            axes[2].plot(
                offsets, numbers[f"{name}_by_offset"], style, color=color, label=label
            )
        axes[2].axvline(
            self.key_position - self.query_position, color="black", linewidth=0.8
        )
        axes[2].set(
            xlabel="offset: key position − query position",
            ylabel="query · key",
            title=f"pair {self.pair}" if self.shown == "pair" else "all pairs",
        )
        axes[2].margins(y=0.2)
        axes[2].legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
        return figure
