"""Figures of the course: one style, and the same colour for the same thing on every page.

Queries are blue, keys orange, values green; heads have one palette. In every heatmap queries are rows and
keys are columns. Functions return a Figure, which Jupyter displays where it is the last line of a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mha_lib._checks import check_positive_int, check_type

QUERY, KEY, VALUE = "#1f6fb5", "#d9730d", "#2e8b57"
# No hue of a role, so that a head is never taken for queries, keys or values; most are Paul Tol's "bright".
HEADS = (
    "#8a4bb8",
    "#ee6677",
    "#44b4d4",
    "#ccbb44",
    "#aa3377",
    "#885522",
    "#d98cc0",
    "#777777",
)
# Weights, and all else that starts at 0, have the first map; signed numbers the second, centred at 0.
COLORMAP, SIGNED_COLORMAP = "viridis", "RdBu_r"
# Inches. In a figure of this width the text of the style, 9.5 points, is 8.7 pixels high on a phone:
# a screen of 360 pixels leaves 312 to a figure.
WIDTH = 4.6

STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def head_color(head: int) -> str:
    """Colour of a head; after eight heads the palette starts again.

    Example:
        >>> head_color(0) == head_color(8)
        True
    """
    return HEADS[head % len(HEADS)]


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = WIDTH,
    height: float = 2.8,
    **options: Any,
) -> tuple[Figure, Any]:
    """Start a figure in the style of the course. Return it at the end of the cell to display it once.

    Args:
        rows: rows of axes.
        columns: columns of axes.
        width: in inches; in a wider figure the text becomes too small on a phone.
        height: in inches.
        options: passed to `plt.subplots`, such as `sharey=True`.

    Returns:
        (figure, axes) as `plt.subplots` gives them.

    Example:
        >>> figure, axis = new_figure()
        >>> line = axis.plot([0, 1], color=QUERY)
    """
    options.setdefault("layout", "constrained")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(width, height), **options)
    # pyplot forgets the figure, so that Jupyter does not show it a second time; the
    # Figure itself stays usable.
    plt.close(figure)
    return figure, axes


def plot_weights(
    weights: Shaped[Tensor, "*maps q_len k_len"],
    *,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    columns: int = 4,
    values: bool | None = None,
    vmin: float | None = 0.0,
    vmax: float | None = None,
    colorbar_label: str = "weight",
) -> Figure:
    """Heatmaps of weights (or scores), one for each leading index, on one colour scale.

    A scale that reaches below 0 is that of signed numbers: red and blue, centred at 0.

    Args:
        weights: (q_len, k_len) or (maps, q_len, k_len), such as the heads of one sample.
        query_labels: labels of the rows, q_len of them.
        key_labels: labels of the columns, k_len of them.
        titles: one per map; default "head 0", "head 1", ... for several maps.
        columns: maps in a row of the figure; fewer if their text would not fit.
        values: write the numbers into the cells; by default only if a map has at most 36 cells.
        vmin: start of the colour scale; None uses the smallest number.
        vmax: end of the colour scale; None uses the largest number. Below 0, both ends
            move as far from 0 as the farther one.
        colorbar_label: label of the colour bar.

    Returns:
        The figure, with one colour bar.

    Raises:
        TypeError: `weights` is not a tensor, or `columns` not an int.
        ValueError: `weights` has the wrong rank or is empty, `columns` is not positive, or the number of
            labels or titles does not fit.

    Example:
        >>> figure = plot_weights(torch.eye(3).expand(2, 3, 3))
        >>> len(figure.axes)
        3
    """
    check_type("weights", weights, Tensor)
    check_positive_int("columns", columns)
    if weights.ndim not in (2, 3) or weights.numel() == 0:
        raise ValueError(
            f"weights must have shape (q_len, k_len) or (maps, q_len, k_len), got {tuple(weights.shape)}"
        )
    maps = weights.detach().to(torch.float64).reshape(-1, *weights.shape[-2:])
    count, q_len, k_len = maps.shape
    if titles is None:
        titles = [f"head {i}" for i in range(count)] if weights.ndim == 3 else [""]
    for name, labels, expected in (
        ("query_labels", query_labels, q_len),
        ("key_labels", key_labels, k_len),
        ("titles", titles, count),
    ):
        if labels is not None and len(labels) != expected:
            raise ValueError(f"{name} must have {expected} entries, got {len(labels)}")
    values = q_len * k_len <= 36 if values is None else values
    # NaN and infinities, which chapters show on purpose, have no place on a colour
    # scale.
    finite = maps[maps.isfinite()] if maps.isfinite().any() else torch.zeros(1)
    low = float(finite.min()) if vmin is None else vmin
    high = float(finite.max()) if vmax is None else vmax
    if low < 0:
        low, high = -max(-low, high), max(-low, high)

    figure, axes = _start_maps(
        (count, q_len, k_len),
        columns,
        0.31 if values else 0.12 if query_labels or key_labels else 0.0,
        tuple(
            max(map(_width, labels or [""]))
            for labels in (titles, query_labels, key_labels)
        ),
    )
    columns = axes.shape[1]
    image = None
    for i, axis in enumerate(axes.flat):
        if i >= count:
            axis.axis("off")
            continue
        image = axis.imshow(
            maps[i].numpy(),
            cmap=SIGNED_COLORMAP if low < 0 else COLORMAP,
            vmin=low,
            vmax=high,
        )
        axis.set_title(
            titles[i],
            color=head_color(i) if weights.ndim == 3 and count > 1 else "black",
        )
        _label_axis(
            axis, query_labels if i % columns == 0 else None, key_labels, q_len, k_len
        )
        if i % columns == 0:
            axis.set_ylabel("queries", color=QUERY)
        if i + columns >= count:
            axis.set_xlabel("keys", color=KEY)
        if values:
            _write_values(axis, maps[i], low, high)
    assert image is not None
    figure.colorbar(image, ax=axes, label=colorbar_label, shrink=0.9)
    return figure


def _width(text: str) -> float:
    """Width in inches of a text in the size of the style, a little too large rather than too small."""
    return 0.08 * len(text)


def _start_maps(
    shape: tuple[int, int, int], columns: int, smallest: float, texts: tuple[float, ...]
) -> tuple[Figure, Any]:
    """Start a figure for (count, q_len, k_len) maps, no wider than WIDTH, with cells no smaller than asked.

    `texts` are the widths of the longest title, query label and key label.
    """
    count, q_len, k_len = shape
    title, query_label, key_label = texts
    sides = query_label + 1.0  # what is left and right of the maps: labels, colour bar
    columns = min(columns, count)
    while True:
        room = (WIDTH - sides) / columns - 0.1
        if columns == 1 or room >= max(title, smallest * k_len):
            break
        columns -= 1
    cell = min(0.38, room / k_len)
    rows = -(-count // columns)
    return new_figure(
        rows,
        columns,
        width=max(sides + columns * (max(cell * k_len, title) + 0.1), 2.6),
        height=rows * (cell * q_len + 0.35 + key_label) + 0.4,
        squeeze=False,
    )


def _label_axis(
    axis: Axes,
    query_labels: Sequence[str] | None,
    key_labels: Sequence[str] | None,
    q_len: int,
    k_len: int,
) -> None:
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_xticks(range(k_len) if key_labels is not None else [])
    axis.set_yticks(range(q_len) if query_labels is not None else [])
    if key_labels is not None:
        axis.set_xticklabels(
            key_labels, rotation=90 if max(map(len, key_labels)) > 2 else 0
        )
    if query_labels is not None:
        axis.set_yticklabels(query_labels)
    axis.tick_params(length=0)


def _write_values(axis: Axes, cells: Tensor, low: float, high: float) -> None:
    for (row, column), value in np.ndenumerate(cells.numpy()):
        # Viridis is dark below its middle, the map of signed numbers at both ends.
        is_dark = abs(value) > 0.7 * high if low < 0 else value <= (low + high) / 2
        color = "white" if is_dark and np.isfinite(value) else "black"
        axis.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center",
            color=color,
            fontsize=STYLE["font.size"],
        )


def plot_curves(
    steps: Shaped[Tensor, " records"],
    curves: dict[str, Shaped[Tensor, "... records"]],
    *,
    colors: Sequence[str] = HEADS,
    xlabel: str = "training step",
    ylabel: str = "loss",
    floor: float | None = None,
    floor_label: str = "floor",
) -> Figure:
    """Curves over training: the mean of several runs as a line, all runs as a band from lowest to highest.

    Args:
        steps: (records,), the x axis.
        curves: label -> (records,) or (runs, records).
        colors: one per curve; further curves start again with the first colour.
        xlabel: label of the x axis.
        ylabel: label of the y axis.
        floor: draw a horizontal line here.
        floor_label: label of this line.

    Returns:
        The figure.

    Raises:
        TypeError: a curve is not a tensor.
        ValueError: the last axis of a curve is not as long as `steps`, or there is no curve.

    Example:
        >>> figure = plot_curves(torch.arange(5), {"three seeds": torch.rand(3, 5)})
    """
    if not curves:
        raise ValueError(f"curves must hold at least one curve, got {curves}")
    figure, axis = new_figure()
    for (label, runs), color in zip(curves.items(), cycle(colors), strict=False):
        check_type(f"curves[{label!r}]", runs, Tensor)
        if runs.shape[-1] != len(steps):
            raise ValueError(
                f"curves[{label!r}] must end in {len(steps)} records, got shape {tuple(runs.shape)}"
            )
        runs = runs.detach().reshape(-1, len(steps))
        axis.plot(steps, runs.mean(0), color=color, label=label)
        axis.fill_between(
            steps,
            runs.min(0).values,
            runs.max(0).values,
            color=color,
            alpha=0.2,
            linewidth=0,
        )
    if floor is not None:
        axis.axhline(
            floor, color="black", linestyle="--", linewidth=1, label=floor_label
        )
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.legend(frameon=False)
    return figure


def plot_seeds(
    results: dict[str, dict[str, Shaped[Tensor, " _seeds"]]],
    *,
    xlabel: str,
    ylabel: str = "accuracy",
    chance: float | None = None,
) -> Figure:
    """One dot per seed: results of several settings side by side, so that the spread over seeds is visible.

    Args:
        results: series -> {setting: (seeds,)}, such as {"linear read-out": {"1 head": ...}}.
        xlabel: label of the x axis, which says what the settings are.
        ylabel: label of the y axis, which says what is measured.
        chance: draw a horizontal line at chance level.

    Returns:
        The figure.

    Raises:
        TypeError: the seeds of a setting are not a tensor.
        ValueError: there is no series.

    Example:
        >>> figure = plot_seeds({"linear": {"1": torch.rand(5), "2": torch.rand(5)}}, xlabel="heads")
    """
    if not results:
        raise ValueError(f"results must hold at least one series, got {results}")
    figure, axis = new_figure()
    settings = list(
        dict.fromkeys(setting for series in results.values() for setting in series)
    )
    for i, (label, series) in enumerate(results.items()):
        offset = (i - (len(results) - 1) / 2) * 0.22
        for j, (setting, seeds) in enumerate(series.items()):
            check_type(f"results[{label!r}][{setting!r}]", seeds, Tensor)
            seeds = seeds.detach().flatten()
            spread = (
                torch.linspace(-0.06, 0.06, len(seeds))
                if len(seeds) > 1
                else torch.zeros(1)
            )
            axis.plot(
                settings.index(setting) + offset + spread,
                seeds,
                "os^D"[i % 4],
                color=HEADS[i % len(HEADS)],
                markersize=4.5,
                alpha=0.8,
                label=label if j == 0 else None,
            )
    if chance is not None:
        axis.axhline(
            chance, color="black", linestyle="--", linewidth=1, label="guessing"
        )
    axis.set_xticks(range(len(settings)), settings)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.legend(frameon=False)
    return figure
