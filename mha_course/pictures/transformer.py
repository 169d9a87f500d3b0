"""The pictures of "The Transformer" and of "The models you know"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from mha_course.pictures.drawing import GREY, arrow, box, line, picture, text
from mha_course.plots import COLORMAP, HEADS, KEY, QUERY, new_figure

_ATTEND, _FEED, _BLOCK = HEADS[2], HEADS[5], HEADS[7]


def whole() -> Any:
    """The encoder, the memory and the decoder that writes a date."""
    parts = [text(100, 14, "source: 3. März 2021", weight="bold")]
    parts.append(text(290, 14, "target so far: ⟨start⟩2021-", weight="bold"))
    for x, count in ((100, 12), (290, 6)):
        parts.append(arrow(x, 22, x, 40))
        parts.append(box(x - 80, 42, 160, 28, "embedding + positions"))
        parts.append(arrow(x, 70, x, 92))
        parts.append(text(x + 6, 86, f"({count}, 64)", "start", 11))
    decoder = ["causal self-attention", "cross-attention"]
    blocks = (10, "encoder", ["self-attention"]), (200, "decoder", decoder)
    for left, name, layers in blocks:
        names = [*layers, "feed-forward"]
        parts.append(box(left, 94, 180, 30 + 50 * len(names), "", _BLOCK, fill=0.07))
        parts.append(text(left + 90, 111, f"{name} block", weight="bold"))
        parts.append(text(left + 174, 111, "× 2", "end", 11))
        for i, layer in enumerate(names):
            color = _FEED if layer == "feed-forward" else _ATTEND
            words = f"{layer}\n+ residual, norm"
            parts.append(box(left + 12, 120 + 50 * i, 156, 42, words, color))
    parts.append(arrow(100, 224, 100, 244))
    parts.append(box(40, 246, 120, 28, "memory (12, 64)", KEY))
    parts.append(line([(160, 260), (194, 260), (194, 192), (210, 192)], KEY))
    parts.append(text(190, 288, "keys and values", "end", 11))
    parts.append(arrow(290, 274, 290, 296))
    parts.append(text(296, 290, "(6, 64)", "start", 11))
    parts.append(box(230, 298, 120, 28, "linear: (6, 13)"))
    parts.append(arrow(290, 326, 290, 344))
    parts.append(text(290, 358, "next character: 0", weight="bold"))
    alt = (
        "Left, the encoder: 12 letters become 12 vectors of width 64 and pass two blocks of self-attention "
        "and feed-forward; the result is the memory. Right, the decoder: six symbols pass two blocks of "
        "causal self-attention, cross-attention, whose keys and values come from the memory, and "
        "feed-forward. A linear layer gives 13 numbers for each, and the last row predicts the next "
        "character, 0."
    )
    return picture(390, 366, alt, *parts, most=520)


def beam(steps: Sequence[Mapping[str, float]]) -> Any:
    """The partial answers that a beam keeps after each step, with their probabilities, as a tree."""
    parts, places = [], {"": (0, 61)}
    for column, kept in enumerate(steps):
        for row, (beginning, share) in enumerate(kept.items()):
            x, y = 26 + 72 * column, 10 + 44 * row
            places[beginning] = x + 44, y + 17
            parts.append(arrow(*places[beginning[:-1]], x - 2, y + 17))
            parts.append(box(x, y, 44, 34, f"{beginning[-1]}\n{share:.0%}", _ATTEND))
    said = (", ".join(f"{b} {p:.0%}" for b, p in kept.items()) for kept in steps)
    alt = "A tree from left to right; each step keeps: " + "; ".join(said)
    return picture(26 + 72 * len(steps), 142, f"{alt}.", *parts, most=520)


def norms() -> Any:
    """Which numbers share a mean in a layer norm and in a batch norm."""
    parts = []
    for left, title in ((20, "layer norm"), (210, "batch norm")):
        parts.append(text(left + 75, 14, title, weight="bold"))
        for sample, length in enumerate((4, 2)):
            for token in range(4 * sample, 4 * sample + 4):
                empty = token - 4 * sample >= length
                color = GREY if empty else _ATTEND
                for place in range(5):
                    strong = (token if title == "layer norm" else place) == 1
                    shown = 0.9 if strong else 0.12 if empty else 0.3
                    x, y = left + 44 + 21 * place, 26 + 21 * token + 8 * sample
                    parts.append(
                        f'<rect x="{x}" y="{y}" width="19" height="19" fill="{color}" '
                        f'fill-opacity="{shown}"/>'
                    )
            name = f"date {sample + 1}"
            parts.append(text(left + 38, 70 + 92 * sample, name, "end", 11))
    parts.append(text(300, 222, "grey: padding", size=11))
    alt = (
        "Two grids of tokens (rows, two dates of four and two letters, the second padded to four) by entries "
        "of the vector (columns). Layer norm: the cells of one row, one token, share a mean. Batch norm: the "
        "cells of one column share a mean, across both dates and padding."
    )
    return picture(370, 230, alt, *parts, most=460)


def norm_places() -> Any:
    """A layer with its residual connection, the norm after the sum and before the layer."""
    parts = []
    styles = {"layer": (96, 30, _ATTEND), "norm": (96, 30, _FEED), "+": (26, 22, GREY)}
    post, pre = ("layer", "+", "norm"), ("norm", "layer", "+")
    for middle, title, steps in ((80, "post-norm", post), (260, "pre-norm", pre)):
        parts.append(text(middle, 14, title, weight="bold"))
        parts.append(arrow(middle, 22, middle, 42))
        y, plus = 44, 0
        for step in steps:
            width, height, color = styles[step]
            parts.append(box(middle - width / 2, y, width, height, step, color))
            plus = y + 11 if step == "+" else plus
            y += height + 20
            parts.append(arrow(middle, y - 20, middle, y - 2))
        side = middle + 72
        path = [(middle, 32), (side, 32), (side, plus), (middle + 15, plus)]
        parts.append(line(path, _BLOCK, 2))
    alt = (
        "Post-norm: the input passes the layer, is added to the layer's output, and the sum is normalised. "
        "Pre-norm: the input is normalised, passes the layer, and is added to the output; the path from sum "
        "to sum has no norm."
    )
    return picture(350, 190, alt, *parts, most=420)


# The layers of three families from the input up; a star marks what differs from GPT-2. With each: its
# colour, and the first and the last layer of the block that is repeated.
_FAMILIES = {
    "BERT": (
        HEADS[2],
        (1, 4),
        (
            "*tokens + positions\n+ segments, norm",
            "*attention to all",
            "*+, layer norm",
            "feed-forward, GELU",
            "*+, layer norm",
            "*transform, embedding\nas output",
        ),
    ),
    "GPT-2": (
        HEADS[5],
        (1, 5),
        (
            "tokens + positions",
            "layer norm",
            "causal attention",
            "+, layer norm",
            "feed-forward, GELU",
            "+",
            "layer norm",
            "embedding as output",
        ),
    ),
    "Llama": (
        HEADS[6],
        (1, 5),
        (
            "*tokens",
            "*RMS norm",
            "*causal attention,\nrotary positions",
            "*+, RMS norm",
            "*feed-forward, SwiGLU",
            "+",
            "*RMS norm",
            "*matrix as output",
        ),
    ),
}


def families() -> Any:
    """The layers of BERT, GPT-2 and Llama, side by side."""
    parts = []
    for column, (name, (own, (first, last), layers)) in enumerate(_FAMILIES.items()):
        left, y, top = 8 + 152 * column, 30, 0
        parts.append(text(left + 70, 16, name, weight="bold"))
        for i, layer in enumerate(layers):
            words = layer.removeprefix("*")
            height = 34 if "\n" in words else 24
            top = y - 5 if i == first else top
            color, fill = (own, 0.3) if words != layer else (GREY, 0.1)
            parts.append(box(left, y, 140, height, words, color, 11, fill))
            if i < len(layers) - 1:
                parts.append(arrow(left + 70, y + height, left + 70, y + height + 12))
            y += height + 14
            if i == last:
                parts.append(
                    f'<rect x="{left - 5}" y="{top}" width="150" height="{y - 8 - top}" rx="4" '
                    f'fill="none" stroke="{GREY}" stroke-dasharray="4 3"/>'
                )
    alt = (
        "Three stacks side by side. BERT adds positions and segments, lets all tokens see each other, and "
        "normalises after each sum. GPT-2 adds positions, masks the future and normalises before each layer. "
        "Llama adds no positions, turns queries and keys instead, uses RMS norms, a gated feed-forward layer "
        "and an output matrix of its own."
    )
    return picture(462, 334, alt, *parts, most=620)


def induction(maps: Mapping[str, Tensor]) -> Figure:
    """Maps of a model that copies, by title, over twelve random tokens that are repeated once."""
    figure, axes = new_figure(1, 2, width=4.4, height=2.3)
    for axis, (title, weights) in zip(axes, maps.items(), strict=True):
        image = axis.imshow(weights, cmap=COLORMAP, vmin=0, vmax=1)
        axis.set_title(title)
        # The ticks count the positions within each saying.
        axis.set_xticks([0, 6, 12, 18], ["1", "7", "1", "7"])
        axis.set_yticks([0, 6, 12, 18], ["1", "7", "1", "7"])
        axis.set_xlabel("key", color=KEY)
    axes[0].set_ylabel("query", color=QUERY)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    return figure


def copied_places(by_place: Tensor) -> Figure:
    """Weight of two heads by the position of the key, (seeds, two heads, positions)."""
    figure, axis = new_figure(1, 1, width=4.4, height=2.6)
    labels = "second layer: on what followed", "first layer: on the token before"
    for kind, label in enumerate(labels):
        color = HEADS[2 + 3 * kind]
        low, high = by_place[:, kind].aminmax(dim=0)
        places = torch.arange(len(low)) + 2
        axis.plot(places, by_place[:, kind].mean(0), color=color, label=label)
        axis.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)
    axis.axvline(32, color="#888888", linestyle="--", linewidth=1)
    axis.text(33, 0.5, "longest period in training", color="#888888", fontsize=9)
    xlabel = "position of the key, in tokens from the start"
    axis.set(xlabel=xlabel, ylabel="weight", ylim=(0, 1.02))
    axis.legend(loc="lower left", fontsize=9)
    return figure
