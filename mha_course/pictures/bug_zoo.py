"""The figures of the bug zoo."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from mha_course.experiments import Experiment
from mha_course.plots import HEADS, new_figure

TASKS = ("copy", "copy with padding", "two pointers", "sentences")


def of_zoo(runs: Experiment, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
    """Share of right answers by layer and task; sentences have 1,500 steps."""
    arms = dict(zip(TASKS, (*TASKS[:3], "sentences, 1500 steps"), strict=True))
    of = {n: {t: f"{n}, {arm}" for t, arm in arms.items()} for n in names}
    return {n: {t: runs.results(a, "right") for t, a in of[n].items()} for n in names}


def trained(
    results: Mapping[str, Mapping[str, Tensor]], floors: Mapping[str, float]
) -> Figure:
    """Share of right answers, a row for each layer, a mark for each task and seed; `floors` are dashed."""
    figure, axis = new_figure(height=4.8)
    for i, (task, floor) in enumerate(floors.items()):
        for row, found in enumerate(results.values()):
            rows = [row + 0.19 * (i - 1.5)] * 5
            style = {"color": HEADS[i], "alpha": 0.8, "label": task if not row else ""}
            axis.plot(found[task], rows, "os^D"[i], markersize=5, **style)
        axis.axvline(floor, color=HEADS[i], linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(results)), results)
    axis.invert_yaxis()
    axis.set(xlim=(-0.03, 1.03), xlabel="answers right")
    axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
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
