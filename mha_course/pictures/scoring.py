"""The pictures of "Scoring functions and masks"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from mha_course import plots
from mha_course.pictures.drawing import GREY, box, picture, table, text
from mha_course.pictures.matrices import NEW_LINE, calculation, matrix
from mha_course.plots import KEY

Measures = Mapping[str, Sequence[Sequence[float]]]
"""What was measured without and with the division by √d: a row for each width."""

_LEGEND: dict[str, Any] = {
    "loc": "upper right",
    "handlelength": 0.8,
    "handletextpad": 0.4,
    "borderaxespad": 0,
    "frameon": False,
}


def terms(scores: Sequence[Tensor], weights: Sequence[Sequence[Tensor]]) -> Figure:
    """The three terms of a Gaussian score, and Gaussian and dot-product weights for two sets of keys."""
    figure, axes = plots.new_figure(1, 3, height=2.5)
    positions = torch.arange(3)
    labels = (r"$q\cdot k$", r"$-\|q\|^2/2$", r"$-\|k\|^2/2$")
    colors = ("#777777", plots.QUERY, plots.KEY)
    for i, (label, term, color) in enumerate(zip(labels, scores, colors, strict=True)):
        x = positions + 0.27 * (i - 1)
        axes[0].bar(x, term, width=0.25, color=color, label=label)
    axes[0].axhline(0, color="black", linewidth=0.8)
    axes[0].set_ylim(-5.5, 12.5)
    axes[0].legend(**_LEGEND)
    axes[0].set_title("terms of\nthe score")
    titles = ("weights", "weights,\nequal norms")
    for axis, (gaussian, dots), title in zip(axes[1:], weights, titles, strict=True):
        axis.bar(
            positions - 0.2, gaussian, width=0.38, color="#555555", label="Gaussian"
        )
        axis.bar(
            positions + 0.2, dots, width=0.38, color="#bbbbbb", label="dot product"
        )
        axis.set_ylim(0, 1.35)
        axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1"] if axis is axes[1] else [""] * 3)
        axis.set_title(title)
    axes[1].legend(**_LEGEND)
    for axis in axes:
        axis.set_xticks([0, 1, 2], ["$k_0$", "$k_1$", "$k_2$"], color=plots.KEY)
    return figure


def pipeline(
    scores: Tensor, scaled: Tensor, mask: Tensor, weights: Tensor, value: Tensor
) -> Any:
    """Scores, scaled, masked, turned into weights, which mix the values."""
    return calculation(
        "Five small matrices in a row. The scores of two queries and four keys are divided by 2; a mask "
        "hides the last two keys from the first query; the softmax gives weights, 0 for hidden keys; the "
        "weights mix the values into two outputs.",
        matrix("scores", scores, "score", "query · key: (2, 4)"),
        "scale →",
        matrix("÷ √d", scaled, "score", "d = 4: (2, 4)"),
        "mask →",
        matrix("mask", mask, "mask", "✓ = may attend: (2, 4)"),
        "softmax →",
        matrix("weights", weights, "weight", "rows sum to 1: (2, 4)"),
        "mix @",
        matrix("values", value, "value", "(4, 1)"),
        "=",
        matrix("output", weights @ value, "value", "(2, 1)"),
    )


def saturation_table(widths: Sequence[int], measured: Measures) -> Any:
    """What the division by √d changes, for each width: without / with."""
    rows = []
    for d, without, scaled in zip(widths, *measured.values(), strict=True):
        pairs = zip(without, scaled, strict=True)
        rows.append([str(d), *(f"{a:.3f} / {b:.3f}" for a, b in pairs)])
    header = ["$d$", "standard deviation of the scores"]
    return table([*header, "largest weight", "sum of the derivatives"], rows)


def masked_softmax(scores: Tensor, mask: Tensor, weights: Tensor) -> Any:
    """Scores of two queries, a mask, and the weights, zeros for the query that sees nothing."""
    return calculation(
        "Two equal rows of scores. Of the second one the mask shows nothing, so its weights are zeros.",
        matrix("scores", scores, "score"),
        "mask →",
        matrix("mask", mask, "mask", "✓ = may attend"),
        "softmax →",
        matrix("weights", weights, "weight", "nothing seen: zeros"),
    )


def seen(texts: Mapping[str, Sequence[str]], mask: Tensor) -> Any:
    """Rows of words, each with its name: those that a mask shows are filled, the others empty."""
    parts, alts = [], []
    for i, (name, words) in enumerate(texts.items()):
        parts.append(text(62, 21 + 28 * i, name, "end"))
        for j, word in enumerate(words):
            tone, fill = (KEY, 0.4) if mask[i, j] else (GREY, 0.0)
            parts.append(box(68 + 50 * j, 4 + 28 * i, 48, 24, word, tone, 11, fill))
        alts.append(f"{name}: the first {int(mask[i].sum())} of {len(words)} shown.")
    width = 70 + 50 * mask.shape[1]
    return picture(width, 6 + 28 * len(mask), " ".join(alts), *parts, most=width)


def broadcast(lengths: Tensor, causal: Tensor) -> Any:
    """A mask of lengths, a causal mask, and their combination, for each of two samples."""
    parts = []
    for i, (length, both) in enumerate(zip(lengths, lengths & causal, strict=True)):
        parts += [
            *([NEW_LINE] if i else []),
            matrix(f"lengths {length.sum()}", length, "mask", "(1, 3), repeated"),
            "&amp;",
            matrix("causal", causal, "mask", "(3, 3), same for all"),
            "=",
            matrix(f"sample {i}", both, "mask", "(3, 3)"),
        ]
    return calculation(
        "For each of two samples, a row of three cells (lengths) and a triangle of three by three cells "
        "(causal) are combined into a mask of three by three cells: a cell is visible where both allow it.",
        *parts,
    )


def masks(shown: Mapping[str, Tensor], weights: Sequence[Tensor]) -> Figure:
    """Masks, and below each the resulting weights."""
    figure, axes = plots.new_figure(2, 5, height=2.1, sharex=True, sharey=True)
    tones = ListedColormap(["#3b3b4f", "#e8e4d8"])
    for column, (name, mask) in enumerate(shown.items()):
        mask_image = axes[0, column].imshow(mask, cmap=tones, vmin=-0.5, vmax=1.5)
        weight_image = axes[1, column].imshow(
            weights[column], cmap=plots.COLORMAP, vmin=0, vmax=1
        )
        axes[0, column].set_title(name)
        axes[1, column].set_xlabel("keys", color=plots.KEY)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("queries", color=plots.QUERY)
    bar = figure.colorbar(mask_image, ax=axes[0], ticks=[0, 1], shrink=0.8)
    bar.ax.set_yticklabels(["hidden", "may attend"])
    figure.colorbar(weight_image, ax=axes[1], label="weight", shrink=0.9)
    return figure


def policies(maps: Mapping[str, Tensor]) -> Any:
    """The results of three policies for a row that sees no key."""
    return calculation(
        "Three maps of weights for three queries and four keys. They agree in the first and last row. The "
        "middle row, which sees no key, is NaN in the first map, 0.25 everywhere in the second, and 0 "
        "everywhere in the third.",
        *(matrix(name, weights, "weight", "(3, 4)") for name, weights in maps.items()),
    )


def landscapes(
    query: Tensor,
    side: Tensor,
    ray: Tensor,
    heights: Mapping[str, tuple[Tensor, Tensor]],
) -> Figure:
    """The score of a query with every key of a plane, and along the ray of the query, for five rules."""
    colors = ["#222222", "#b03030", "#6a3d9a", "#8c6d31", "#777777"]
    figure, axes = plots.new_figure(2, 3, height=3.5)
    slice_axis = axes.flat[5]
    for axis, color, name in zip(axes.flat, colors, heights, strict=False):
        on_plane, along = (height.detach() for height in heights[name])
        image = axis.contourf(
            side,
            side,
            on_plane.view(len(side), -1).T / on_plane.abs().max(),
            levels=torch.linspace(-1, 1, 16).tolist(),
            cmap=plots.SIGNED_COLORMAP,
            antialiased=False,
        )
        for edge, size in (("black", 8), ("white", 7), (plots.QUERY, 5.5)):
            axis.plot(*query, "o", color=edge, markersize=size)
        axis.set_title(name, color=color)
        axis.set_aspect("equal")
        axis.set_xticks([-4, 0, 4])
        axis.set_yticks([-4, 0, 4])
        slice_axis.plot(ray, along, color=color)
    slice_axis.axvline(query.norm(), color=plots.QUERY, linestyle=":", linewidth=1.2)
    slice_axis.set_title("along the ray")
    slice_axis.set_xlabel("place of the key", color=plots.KEY)
    slice_axis.set_ylim(-4.5, 4.5)
    slice_axis.set_xticks([-4, 0, 4])
    slice_axis.set_yticks([-4, 0, 4])
    figure.colorbar(
        image,
        ax=axes,
        label="score / largest |score| in the map",
        ticks=[-1, 0, 1],
        shrink=0.6,
        aspect=40,
        location="bottom",
    )
    return figure


def dropout(row: Tensor, draws: Tensor) -> Figure:
    """A row of weights before dropout, and the first three draws."""
    figure, axes = plots.new_figure(1, 4, height=1.95, sharey=True)
    for i, axis in enumerate(axes):
        weights = row if i == 0 else draws[i - 1]
        axis.bar(range(6), row, color="#d0d0d0")
        if i > 0:
            axis.bar(range(6), weights, width=0.5, color=plots.KEY)
        name = "before" if i == 0 else f"draw {i}"
        axis.set_title(f"{name}\nsum {weights.sum().item():.2f}")
        axis.set_xticks([])
        axis.set_xlabel("keys", color=plots.KEY)
    axes[0].set_ylabel("weight")
    return figure
