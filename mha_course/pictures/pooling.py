"""The pictures of "Attention pooling"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mha_course.pictures.drawing import table
from mha_course.pictures.matrices import NEW_LINE, calculation, matrix
from mha_course.plots import COLORMAP, KEY, QUERY, new_figure

Points = tuple[Tensor, Tensor]
"""Where points lie, and their heights."""

DOT: dict[str, Any] = {"markersize": 3.2, "markeredgewidth": 0}
_MAP: dict[str, Any] = {"cmap": COLORMAP, "vmin": 0, "interpolation": "nearest"}


def by_hand(
    query: float, keys: Tensor, scores: Tensor, weights: Tensor, values: Tensor
) -> Any:
    """Every number of a weighted mean, a row for each key, and the sums below."""
    header = ["key $k$", "value $v$", "$q - k$", "score $s$", "$\\exp s$"]
    columns = [numbers.tolist() for numbers in (keys, values, scores, weights)]
    rows = []
    for (k, v, s, w), e, part in zip(
        zip(*columns, strict=True), scores.exp(), weights * values, strict=True
    ):
        numbers = [f"{k:g}", f"{v:g}", f"{query - k:g}", f"{s:.3f}"]
        rows.append([*numbers, f"{e:.3f}", f"{w:.3f}", f"{part:.2f}"])
    sums = [f"{scores.exp().sum():.3f}", f"{weights.sum():.3f}"]
    sums = [f"**{number}**" for number in (*sums, f"{weights @ values:.2f}")]
    rows.append(["", "", "", "**sum**", *sums])
    return table([*header, "weight $\\alpha$", "$\\alpha v$"], rows, "--:", "--:")


def station(
    products: Sequence[tuple[Tensor, Tensor, Tensor]],
    scores: Tensor,
    weights: Tensor,
    output: Tensor,
) -> Any:
    """Three products make queries, keys and values; a fourth row mixes the values."""
    parts = []
    names = (("travellers", "W_q", "query"), ("things", "W_k", "key"))
    for row, product in zip(
        (*names, ("things", "W_v", "value")), products, strict=True
    ):
        for name, kind, numbers, sign in zip(
            row, (row[2], "plain", row[2]), product, ("@", "=", NEW_LINE), strict=True
        ):
            parts += [matrix(name, numbers, kind, str(tuple(numbers.shape))), sign]
    return calculation(
        "Four rows. Travellers times the matrix W q gives queries; things times W k gives keys; things times "
        "W v gives values. Queries times keys gives scores, the softmax turns them into weights, and weights "
        "times values gives one output for each traveller.",
        *parts,
        matrix("scores", scores, "score", "query @ key.T: (3, 5)"),
        "softmax →",
        matrix("weights", weights, "weight", "rows sum to 1: (3, 5)"),
        "@ value =",
        matrix("output", output, "value", "(3, 2)"),
    )


def learned(before: Tensor, after: Tensor) -> Any:
    """The weights of three travellers before and after training."""
    names = "hungry, late, no wish"
    return calculation(
        "Two maps of weights for three travellers and five things. Before training all weights are near 0.2. "
        "After training the hungry traveller puts nearly all weight on the bakery, the late one shares it "
        "between timetable and clock, and the traveller without a wish gives 0.2 to each.",
        matrix("before training", before.detach(), "weight", names),
        "→",
        matrix("after training", after.detach(), "weight", names),
    )


def _fit(
    axis: Axes, points: Points, truth: Points, estimate: Tensor, wide: float
) -> None:
    """Points, the true curve (dashed) and an estimate of it."""
    axis.plot(*points, "o", color=KEY, **DOT)
    axis.plot(*truth, "--", color="black", linewidth=1)
    axis.plot(truth[0], estimate, color=QUERY, linewidth=wide)


def fits(points: Points, truth: Points, estimates: Mapping[str, Tensor]) -> Figure:
    """The fits of four kernels to the same points."""
    figure, axes = new_figure(2, 2, height=3.1, sharex=True, sharey=True)
    for axis, (name, estimate) in zip(axes.flat, estimates.items(), strict=True):
        _fit(axis, points, truth, estimate, 1.5)
        axis.set_title(name)
    for axis in axes[1]:
        axis.set_xlabel("x")
    for axis in axes[:, 0]:
        axis.set_ylabel("y")
    return figure


def kernel_weights(weights: Mapping[str, Tensor]) -> Figure:
    """The weights of four kernels."""
    figure, axes = new_figure(2, 2, height=2.9, sharex=True, sharey=True)
    for axis, (name, shown) in zip(axes.flat, weights.items(), strict=True):
        image = axis.imshow(shown, vmax=0.3, aspect="auto", **_MAP)
        axis.set_title(name)
        axis.set_xticks([0, 25, 49])
    for axis in axes[1]:
        axis.set_xlabel("keys", color=KEY)
    for axis in axes[:, 0]:
        axis.set_ylabel("queries", color=QUERY)
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def _bandwidth_axis(axis: Axes) -> None:
    ticks = [0.05, 0.2, 0.5, 1, 2]
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("bandwidth")
    axis.set_ylabel("mean squared error")


def sweep(
    bandwidths: Tensor,
    train: Tensor,
    test: Tensor,
    points: Points,
    truth: Points,
    estimates: Mapping[float, Tensor],
) -> Figure:
    """The error over the bandwidth, and the estimates with a narrow, the best and a wide one."""
    figure, (left, right) = new_figure(1, 2, height=2.8)
    left.plot(bandwidths, train, color=KEY, label="training points")
    left.plot(bandwidths, test, color=QUERY, label="true curve (test)")
    left.plot(list(estimates)[1], test.min(), "o", color=QUERY)
    _bandwidth_axis(left)
    above: dict[str, Any] = {"loc": "lower center", "frameon": False}
    above["bbox_to_anchor"] = (0.5, 1)
    left.legend(**above, handlelength=1)
    right.plot(*points, "o", color="#999999", **DOT)
    right.plot(*truth, "--", color="black", linewidth=1)
    colors = ("#b03030", "#222222", "#6a3d9a")
    for (bandwidth, estimate), color in zip(estimates.items(), colors, strict=True):
        name = f"{bandwidth:.2g}"
        right.plot(truth[0], estimate, color=color, linewidth=1.5, label=name)
    right.set_xlabel("x")
    right.set_ylabel("y")
    right.legend(
        **above,
        title="bandwidth",
        ncols=3,
        handlelength=0.7,
        columnspacing=0.7,
        handletextpad=0.4,
    )
    return figure


def learned_bandwidths(
    bandwidths: Tensor, itself: Points, left_out: Points, test: Tensor, best: float
) -> Figure:
    """Two bandwidths during learning, and the errors that they minimise."""
    series = (
        ("point among its own keys", "#b03030", *itself),
        ("leave-one-out", "#222222", *left_out),
    )
    figure, (left, right) = new_figure(1, 2, height=2.6)
    for label, color, trace, errors in series:
        left.plot(trace, color=color, linewidth=1.4)
        right.plot(bandwidths, errors, color=color, label=label)
    left.set_yscale("log")
    left.set_xlabel("step")
    left.set_ylabel("bandwidth")
    right.plot(
        bandwidths, test, color=QUERY, linestyle="--", linewidth=1.2, label="test"
    )
    right.plot(best, left_out[1].min(), "o", color="#222222")
    _bandwidth_axis(right)
    lines, labels = right.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def own_keys(itself: Tensor, left_out: Tensor) -> Figure:
    """The weights with each point among its own keys, and without it."""
    figure, axes = new_figure(1, 2, height=2.4)
    titles = ("itself among its keys", "leave-one-out")
    for axis, title, weights in zip(axes, titles, (itself, left_out), strict=True):
        image = axis.imshow(weights, vmax=0.5, **_MAP)
        axis.set_title(title)
        axis.set_xlabel("keys", color=KEY)
    axes[0].set_ylabel("queries", color=QUERY)
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def three_fits(
    points: Points, truth: Points, estimates: Mapping[str, Tensor]
) -> Figure:
    """Three estimates of a curve, side by side."""
    figure, axes = new_figure(1, 3, height=1.9)
    for axis, (name, estimate) in zip(axes, estimates.items(), strict=True):
        _fit(axis, points, truth, estimate, 1.3)
        axis.set_title(name)
    return figure


def kernels(places: Tensor, heights: Mapping[str, Tensor]) -> Figure:
    """The shapes of four kernels."""
    figure, axes = new_figure(2, 2, height=2.6, sharex=True, sharey=True)
    colors = ("#222222", "#b03030", "#6a3d9a", "#8c6d31")
    panels = zip(axes.flat, heights.items(), colors, strict=True)
    for axis, (name, height), color in panels:
        axis.plot(places, height, color=color)
        axis.fill_between(places, height, color=color, alpha=0.2, linewidth=0)
        axis.set_title(name)
        axis.set_xticks([-2, 0, 2])
    for axis in axes[1]:
        axis.set_xlabel("query − key")
    for axis in axes[:, 0]:
        axis.set_ylabel("$g$")
    return figure


def choices(rows: Mapping[str, tuple[Tensor | None, Tensor]]) -> Any:
    """Bandwidths that several ways choose, and the errors that they lead to: medians and ranges."""

    def spread(numbers: Tensor, digits: int) -> str:
        ends = (numbers.min(), numbers.median(), numbers.max())
        low, middle, high = (f"{number:.{digits}f}" for number in ends)
        return f"{middle} ({low} to {high})"

    header = ["bandwidth chosen by", "bandwidth: median (range)"]
    lines = [
        [name, "" if chosen is None else spread(chosen, 2), spread(errors, 3)]
        for name, (chosen, errors) in rows.items()
    ]
    return table([*header, "test error: median (range)"], lines, "--:")


def diabetes(
    points: Points,
    places: Tensor,
    line: Tensor,
    pooled: Tensor,
    errors: Sequence[Tensor],
) -> Figure:
    """Patients, a straight line and attention pooling through them, and the errors of three ways."""
    figure, (left, right) = new_figure(1, 2, height=2.7, width_ratios=(5, 4))
    left.plot(*points, "o", color="#aaaaaa", markersize=2.4, markeredgewidth=0)
    dashes: dict[str, Any] = {"linestyle": "--", "linewidth": 1.3}
    left.plot(places, line, color="black", label="straight line", **dashes)
    left.plot(places, pooled, color=QUERY, label="attention pooling")
    left.set_xlabel("body mass index (kg/m²)")
    left.set_ylabel("progression after a year")
    left.set_ylim(None, 430)
    left.legend(loc="upper left", frameon=False)
    colors = ("#777777", "black", QUERY)
    for place, (found, color) in enumerate(zip(errors, colors, strict=True)):
        x = place + torch.linspace(-0.2, 0.2, len(found))
        right.plot(x, found, "o", color=color, **DOT)
        right.plot([place - 0.28, place + 0.28], [found.mean()] * 2, color=color)
    right.set_xticks(range(3), ["mean", "line", "pooling"])
    right.set_ylabel("held-out error (RMSE)")
    return figure


def denoised(
    images: Mapping[str, Tensor], weights: Sequence[Tensor], row: int, column: int
) -> Figure:
    """A noisy picture, pooled by position and by content, and where one pixel attends."""
    figure, axes = new_figure(2, 3, height=3.3)
    for axis, (name, image) in zip(axes.flat, images.items(), strict=False):
        axis.imshow(image, cmap="gray", vmin=0, vmax=1)
        axis.set_title(name)
    for axis, shown in zip(axes[1, 1:], weights, strict=True):
        axis.imshow((shown / shown.max()).sqrt(), vmax=1, **_MAP)
        axis.set_title("where it attends")
    for axis in axes.flat:
        axis.axis("off")
    for axis in axes[1]:
        axis.plot(column, row, "s", markerfacecolor="none", markeredgecolor=QUERY)
    return figure


def three_layers(answers: Mapping[str, Sequence[bool]], parameters: int) -> Any:
    """The properties of three layers, as the chapter tested them."""
    header = ["", "attention pooling", "mean pooling", "fully connected"]
    rows = [
        [question, *("yes" if answer else "no" for answer in row)]
        for question, row in answers.items()
    ]
    rows += [
        ["parameters", "0", "0", str(parameters)],
        [
            "the weights are",
            "computed anew for every query",
            "$1/n$",
            "learned, then fixed",
        ],
        [
            "typical use",
            "transformers",
            "making pictures smaller",
            "last layer of a classifier",
        ],
    ]
    return table(header, rows, ":-:")
