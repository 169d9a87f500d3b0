"""The figures of the bug zoo."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from mha_course.plots import HEADS, new_figure


def trained(
    results: Mapping[str, Mapping[str, Tensor]], floors: Mapping[str, float]
) -> Figure:
    """Share of right answers, a row for each layer, a mark for each task and seed; `floors` are dashed."""
    figure, axis = new_figure(height=3.8)
    for i, (task, floor) in enumerate(floors.items()):
        for row, found in enumerate(results.values()):
            rows = [row + 0.24 * (i - 1)] * 5
            label = task if row == 0 else None
            style = {"color": HEADS[i], "alpha": 0.8, "label": label}
            axis.plot(found[task], rows, "os^"[i], markersize=5, **style)
        axis.axvline(floor, color=HEADS[i], linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(results)), results)
    axis.invert_yaxis()
    axis.set(xlim=(-0.03, 1.03), xlabel="answers right")
    axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
    spaces = {"handletextpad": 0, "columnspacing": 1}
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0)}
    axis.legend(**place, ncols=3, frameon=False, **spaces)
    return figure


def detected(
    found: Mapping[str, Collection[str]], detectors: Sequence[str], height: float
) -> Figure:
    """Specimens are rows, detectors columns; a filled mark is a detected fault."""
    figure, axis = new_figure(height=height)
    mark = {"boxstyle": "round", "facecolor": "#1f4e79", "edgecolor": "none"}
    for row, titles in enumerate(found.values()):
        axis.axhspan(row - 0.5, row + 0.5, color="#f1f1f1" if row % 2 else "white")
        for column, title in enumerate(detectors):
            seen = title in titles
            axis.text(
                column,
                row,
                "✓" if seen else "–",
                ha="center",
                va="center",
                fontsize=10,
                color="white" if seen else "#555555",
                bbox=mark if seen else None,
            )
    axis.set_xticks(
        range(len(detectors)), detectors, rotation=60, ha="left", rotation_mode="anchor"
    )
    axis.xaxis.tick_top()
    axis.set_yticks(range(len(found)), found)
    axis.set(xlim=(-0.6, len(detectors) - 0.4), ylim=(len(found) - 0.5, -0.5))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure
