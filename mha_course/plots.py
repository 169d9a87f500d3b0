"""Figures of the course: one style, and the same colour for the same thing on every page.

Queries are blue, keys orange, values green; heads have their own palette. In every heatmap, queries are rows
and keys are columns. Functions return a Figure; Jupyter displays it if it is the last line of a cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mha_lib._checks import check_positive_int, check_type, refusal

QUERY, KEY, VALUE = "#1f6fb5", "#d9730d", "#2e8b57"
ROLES = {"query": QUERY, "key": KEY, "value": VALUE}
# No head has the hue of queries, keys or values, so they cannot be confused; most are Paul Tol's "bright".
HEADS = (
    *("#8a4bb8", "#ee6677", "#44b4d4", "#ccbb44"),
    *("#aa3377", "#885522", "#d98cc0", "#777777"),
)
# Weights, and everything else that starts at 0, use the first map; signed numbers the second, centred at 0.
COLORMAP, SIGNED_COLORMAP = "viridis", "RdBu_r"
# In inches. In a figure of this width, the style's text of 9.5 points is 8.7 pixels high on a phone, whose
# screen of 360 pixels leaves 312 for a figure.
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
    """Colour of a head; the palette repeats after eight heads.

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
    """Start a figure in the style of the course. Put it on the last line of the cell to display it once.

    Returns:
        (figure, axes), as from `plt.subplots`, which receives further options, such as `sharey=True`.
        Width and height are in inches; in a wider figure, the text would be too small on a phone.

    Example:
        >>> figure, axis = new_figure()
        >>> line = axis.plot([0, 1], color=QUERY)
    """
    options.setdefault("layout", "constrained")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(width, height), **options)
    # Make pyplot forget the figure, so that Jupyter does not show it a second time.
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
) -> Figure:
    """Heatmaps of weights, one for each leading index, on a common colour scale that begins at 0.

    If there are negative numbers, as in scores, the scale is red and blue and centred at 0.

    Args:
        weights: (q_len, k_len) or (maps, q_len, k_len), such as the heads of one sample.
        query_labels: q_len labels for the rows.
        key_labels: k_len labels for the columns.
        titles: one per map; default "head 0", "head 1", ... for several maps.
        columns: number of maps in a row of the figure; fewer if their text would not fit.
        values: write the numbers into the cells; by default, only if a map has at most 36 cells.

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
        rule = "have shape (q_len, k_len) or (maps, q_len, k_len)"
        raise refusal("weights", rule, weights)
    maps = weights.detach().to(torch.float64).reshape(-1, *weights.shape[-2:])
    count, q_len, k_len = maps.shape
    if titles is None:
        titles = [f"head {i}" for i in range(count)] if weights.ndim == 3 else [""]
    labels = {"query_labels": query_labels, "key_labels": key_labels, "titles": titles}
    for (name, texts), n in zip(labels.items(), (q_len, k_len, count), strict=True):
        if texts is not None and len(texts) != n:
            raise refusal(name, f"have {n} entries", len(texts))
    values = q_len * k_len <= 36 if values is None else values
    # NaN and infinities, which chapters show on purpose, do not fit on a colour scale.
    finite = maps.where(maps.isfinite(), 0.0)
    signed, high = bool((finite < 0).any()), float(finite.abs().max())
    low, colors = (-high, SIGNED_COLORMAP) if signed else (0.0, COLORMAP)

    smallest = 0.31 if values else 0.12 if query_labels or key_labels else 0.0
    # This estimates a width in inches, a little too large rather than too small.
    widths = [0.08 * max(map(len, texts or [""])) for texts in labels.values()]
    figure, axes = _start_maps((count, q_len, k_len), columns, smallest, *widths)
    columns = axes.shape[1]
    for axis in axes.flat[count:]:
        axis.axis("off")
    for i, (axis, one) in enumerate(zip(axes.flat, maps, strict=False)):
        image = axis.imshow(one.numpy(), cmap=colors, vmin=low, vmax=high)
        axis.set_title(titles[i], color=head_color(i) if count > 1 else "black")
        _label_axis(axis, query_labels if i % columns == 0 else None, key_labels)
        if i % columns == 0:
            axis.set_ylabel("queries", color=QUERY)
        if i + columns >= count:
            axis.set_xlabel("keys", color=KEY)
        if values:
            _write_values(axis, one, low, high)
    label = "score" if signed else "weight"
    figure.colorbar(image, ax=axes, label=label, shrink=0.9)
    return figure


def _start_maps(
    shape: tuple[int, int, int], most: int, smallest: float, *texts: float
) -> tuple[Figure, Any]:
    """Start a figure for (count, q_len, k_len) maps, no wider than WIDTH, with at most `columns` in a row.

    Cells are at least `cell` wide; `texts` are the widths of the longest query label, key label and title.
    """
    (count, q_len, k_len), (query_label, key_label, title) = shape, texts
    sides = query_label + 1.0  # left and right of the maps: labels, colour bar
    for columns in range(min(most, count), 0, -1):
        room = (WIDTH - sides) / columns - 0.1
        if room >= max(title, smallest * k_len):
            break
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
    axis: Axes, query_labels: Sequence[str] | None, key_labels: Sequence[str] | None
) -> None:
    axis.spines[:].set_visible(False)
    axis.set(xticks=[], yticks=[])
    if key_labels is not None:
        turn = 90 if max(map(len, key_labels)) > 2 else 0
        axis.set_xticks(range(len(key_labels)), key_labels, rotation=turn)
    if query_labels is not None:
        axis.set_yticks(range(len(query_labels)), query_labels)
    axis.tick_params(length=0)


def _write_values(axis: Axes, cells: Tensor, low: float, high: float) -> None:
    for (row, column), value in np.ndenumerate(cells.numpy()):
        # Viridis is dark below its middle; the map of signed numbers is dark at both ends.
        is_dark = abs(value) > 0.7 * high if low < 0 else value <= (low + high) / 2
        color = "white" if is_dark and np.isfinite(value) else "black"
        text = axis.text(column, row, f"{value:.2f}", color=color)
        text.set(ha="center", va="center", fontsize=STYLE["font.size"])


def plot_curves(
    steps: Shaped[Tensor, " records"],
    curves: dict[str, Shaped[Tensor, "... records"]],
    *,
    ylabel: str = "loss",
) -> Figure:
    """Curves over training: the mean of several runs as a line, all runs as a band from lowest to highest.

    Args:
        steps: (records,), the x axis.
        curves: label -> (records,) or (runs, records).
        ylabel: label of the y axis.

    Raises:
        TypeError: a curve is not a tensor.
        ValueError: the last axis of a curve is not as long as `steps`, or there are no curves.

    Example:
        >>> figure = plot_curves(torch.arange(5), {"three seeds": torch.rand(3, 5)})
    """
    if not curves:
        raise refusal("curves", "hold at least one curve", curves)
    figure, axis = new_figure()
    for i, (label, runs) in enumerate(curves.items()):
        name = f"curves[{label!r}]"
        check_type(name, runs, Tensor)
        if runs.shape[-1] != len(steps):
            raise refusal(name, f"end in {len(steps)} records", runs)
        runs = runs.detach().reshape(-1, len(steps))
        axis.plot(steps, runs.mean(0), color=head_color(i), label=label)
        low, high = runs.aminmax(dim=0)
        axis.fill_between(steps, low, high, color=head_color(i), alpha=0.2, linewidth=0)
    axis.set(xlabel="training step", ylabel=ylabel)
    axis.legend(frameon=False)
    return figure


def fill_of(values: Shaped[Tensor, "..."]) -> Any:
    """How to fill markers: hollow if the models of an experiment were still learning, otherwise full.

    Example:
        >>> fill_of(torch.rand(5))
        'full'
    """
    return "none" if getattr(values, "notes", {}) else "full"


def say_hollow(axis: Axes, drawn: Iterable[Shaped[Tensor, "..."]]) -> None:
    """Explain hollow markers in the legend, if there are any.

    Example:
        >>> figure, axis = new_figure()
        >>> say_hollow(axis, [torch.rand(5)])
    """
    if any(fill_of(values) == "none" for values in drawn):
        (marker,) = axis.plot([], [], "o", color="grey", fillstyle="none")
        marker.set(markersize=4.5, label="hollow: still learning")


def plot_seeds(
    results: dict[str, dict[str, Shaped[Tensor, " _seeds"]]],
    *,
    xlabel: str,
    ylabel: str = "accuracy",
    chance: float | None = None,
) -> Figure:
    """Results of several settings side by side, one dot per seed, so that the spread over seeds is visible.

    Dots of models that were still learning are hollow, and the legend says so.

    Args:
        results: series -> {setting: (seeds,)}, such as {"linear read-out": {"1 head": ...}}.
        xlabel: label of the x axis, which says what the settings are.
        ylabel: label of the y axis, which says what is measured.
        chance: height of a horizontal line at chance level.

    Raises:
        TypeError: the seeds of a setting are not a tensor.
        ValueError: there are no series.

    Example:
        >>> figure = plot_seeds({"linear": {"1": torch.rand(5), "2": torch.rand(5)}}, xlabel="heads")
    """
    if not results:
        raise refusal("results", "hold at least one series", results)
    figure, axis = new_figure()
    settings = list(dict.fromkeys(chain.from_iterable(results.values())))
    for i, (label, series) in enumerate(results.items()):
        offset = (i - (len(results) - 1) / 2) * 0.22
        for j, (setting, seeds) in enumerate(series.items()):
            check_type(f"results[{label!r}][{setting!r}]", seeds, Tensor)
            seeds = seeds.detach().flatten()
            reach = 0.06 if len(seeds) > 1 else 0.0
            spread = torch.linspace(-reach, reach, len(seeds))
            places = settings.index(setting) + offset + spread
            style = {"color": head_color(i), "markersize": 4.5, "alpha": 0.8}
            (dots,) = axis.plot(places, seeds, "os^D"[i % 4], **style)
            dots.set(fillstyle=fill_of(seeds), label=label if j == 0 else None)
    say_hollow(axis, chain(*(series.values() for series in results.values())))
    if chance is not None:
        axis.axhline(chance, color="black", ls="--", lw=1, label="guessing")
    axis.set_xticks(range(len(settings)), settings)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.legend(frameon=False)
    return figure
