"""The pictures of the chapter on self-attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from mha_course import plots
from mha_course.experiments import Experiment
from mha_course.measuring import milliseconds
from mha_course.pictures.drawing import (
    GREY,
    box,
    curve,
    line,
    picture,
    raised,
    text,
    turned,
)
from mha_course.plots import COLORMAP, HEADS, KEY, QUERY, ROLES, VALUE
from mha_course.training import History

WEIGHTS = "#5e4fa2"


def _cells(
    x: float, y: float, rows: int, columns: int, color: str, row: int | None = None
) -> str:
    """A grid of one colour; `row` is drawn stronger than the others."""
    return "".join(
        f'<rect x="{x + 14 * j}" y="{y + 14 * i}" width="12.5" height="12.5" fill="{color}" '
        f'fill-opacity="{0.9 if i == row else 0.4}"/>'
        for i in range(rows)
        for j in range(columns)
    )


def _mask(x: float, y: float, table: Tensor) -> str:
    """A small mask: filled where a query (row) may see a key (column)."""
    return "".join(
        f'<rect x="{x + 9 * j}" y="{y + 9 * i}" width="8" height="8" fill="{WEIGHTS}" '
        f'fill-opacity="{0.9 if seen else 0.12}"/>'
        for i, row in enumerate(table.tolist())
        for j, seen in enumerate(row)
    )


def roles() -> Any:
    """From X to Q, K and V, to the weights and to the output, with the shapes."""
    parts = [
        text(176, 12, "X: (3, 4)", weight="bold"),
        _cells(148, 18, 3, 4, GREY, row=0),
    ]
    for i, word in enumerate(("sailors", "were", "happy")):
        parts.append(text(142, 29 + 14 * i, word, "end", 11))
    for x, letter, color in ((36, "Q", QUERY), (148, "K", KEY), (260, "V", VALUE)):
        row = 0 if letter == "Q" else None
        parts.append(line([(x / 2 + 88, 62), (x + 28, 92)]))
        parts.append(text(x + 62, 104, raised("W", letter), "start", 11))
        parts.append(_cells(x, 96, 3, 4, color, row=row))
        parts.append(text(x + 62, 124, f"{letter}: (3, 4)", "start", 11))
    parts += [line([(70, 140), (92, 172)]), line([(166, 140), (124, 172)])]
    parts += [_cells(86, 176, 3, 3, WEIGHTS, row=0), text(106, 232, "weights: (3, 3)")]
    parts.append(text(80, 192, "softmax", "end", 11))
    parts.append(text(80, 206, "(Q Kᵀ / √4)", "end", 11))
    parts += [line([(132, 196), (250, 196)]), line([(288, 140), (288, 172)])]
    parts.append(text(190, 190, "weighted means of V", size=11))
    parts += [_cells(260, 176, 3, 4, VALUE, row=0), text(288, 232, "output: (3, 4)")]
    alt = "X, three tokens of width four, is multiplied by three matrices and gives Q, K and V, each three "
    alt += "by four. Q and K give the weights, three by three. The weights and V give the output, three by "
    alt += "four. The first row, of the word sailors, is marked in X, in Q, in the weights and in the output."
    return picture(374, 238, alt, *parts, most=430)


def uses(causal: Tensor) -> Any:
    """Self-attention, causal self-attention (with this mask) and cross-attention side by side."""
    full = torch.ones(6, 6, dtype=torch.bool)
    parts: list[str] = []

    def inputs(x: float, y: float, end: float) -> None:
        for shift, color in ((-14, QUERY), (0, KEY), (14, VALUE)):
            parts.append(line([(x + shift, y), (x + shift, end)], color))

    parts.append(text(84, 12, "source, 6 tokens", weight="bold"))
    parts.append(text(84, 27, "we drink tea with our friends", size=10.5))
    parts.append(text(266, 12, "target so far, 4 tokens", weight="bold"))
    parts.append(text(266, 27, "⟨start⟩ nous buvons du", size=10.5))
    inputs(84, 33, 54)
    inputs(266, 33, 54)
    parts.append(box(8, 56, 152, 104, "", HEADS[7], fill=0.08))
    parts.append(text(84, 73, "self-attention"))
    parts.append(_mask(57, 80, full))
    parts.append(text(84, 150, "mask (6, 6)", size=11))
    parts.append(box(190, 56, 152, 104, "", HEADS[7], fill=0.08))
    parts.append(text(266, 73, "causal self-attention"))
    parts.append(_mask(248, 86, causal))
    parts.append(text(266, 150, "mask (4, 4)", size=11))
    parts.append(line([(84, 160), (84, 196)]))
    parts.append(box(8, 198, 152, 34, "memory (6, 100)", GREY, 12))
    parts.append(line([(266, 160), (266, 196)], QUERY))
    parts.append(box(190, 198, 152, 96, "", HEADS[7], fill=0.08))
    parts.append(text(266, 215, "cross-attention"))
    parts.append(_mask(239, 222, full[:4]))
    parts.append(text(266, 284, "mask (4, 6)", size=11))
    parts.append(line([(160, 210), (188, 210)], KEY))
    parts.append(line([(160, 222), (188, 222)], VALUE))
    parts.append(line([(266, 294), (266, 314)]))
    parts.append(text(266, 328, "output (4, 100)", weight="bold"))
    for i, (name, color) in enumerate(ROLES.items()):
        parts.append(line([(14, 262 + 18 * i), (44, 262 + 18 * i)], color))
        parts.append(text(52, 266 + 18 * i, name, "start", 11))
    alt = "Left, the encoder: six source tokens go as query, key and value into self-attention, whose mask "
    alt += "is full, six by six, and become the memory. Right, the decoder: four target tokens go as query, "
    alt += "key and value into causal self-attention, whose mask is a triangle, four by four. Its result is "
    alt += "the query of cross-attention; key and value come from the memory. The mask there is full, four "
    alt += "by six, and the output has four rows."
    return picture(350, 334, alt, *parts, most=420)


def equivariance(x: Tensor, y: Tensor, moved: Tensor, y_moved: Tensor) -> Any:
    """A layer and a permutation in either order: four maps (3, 8) of vectors."""
    limit = max(x.abs().max().item(), y.abs().max().item())
    parts: list[str] = []

    def heat(
        left: float, top: float, rows: Tensor, names: Sequence[str], title: str
    ) -> None:
        parts.append(text(left + 52, top - 6, title, weight="bold"))
        for i, (name, row) in enumerate(zip(names, rows.tolist(), strict=True)):
            parts.append(text(left - 5, top + 13 + 17 * i, name, "end", 11))
            for j, number in enumerate(row):
                fill = to_hex(colormaps["RdBu_r"](0.5 + number / limit / 2))
                parts.append(
                    f'<rect x="{left + 13 * j}" y="{top + 17 * i}" width="13" height="17" '
                    f'fill="{fill}" stroke="#888" stroke-width="0.4"/>'
                )

    before, after = ("sailors", "near", "teacher"), ("teacher", "near", "sailors")
    heat(56, 22, x, before, "X")
    heat(252, 22, y, before, "f(X)")
    heat(56, 144, moved, after, "P X")
    heat(252, 144, y_moved, after, "f(P X) = P f(X)")
    for top in (47, 169):
        parts += [line([(164, top), (202, top)]), text(183, top - 6, "f")]
    for left in (108, 304):
        parts += [line([(left, 77), (left, 122)]), text(left + 8, 103, "P", "start")]
    alt = "A square of four heatmaps. X holds the vectors of sailors, near, teacher. The layer f leads "
    alt += "right, to f(X). The permutation P leads down, to P X in the reverse order. Both ways end in the "
    alt += "same map at the lower right: f(X) with its first and last row exchanged."
    return picture(362, 200, alt, *parts, most=460)


def answer_in_sight() -> Any:
    """Five inputs, their targets, and the next input, which is itself the answer."""
    words, parts = "the cat sat on the mat".split(), []
    for i in range(5):
        x = 52 + 60 * i
        parts.append(box(x, 8, 52, 26, words[i + 1], GREY))
        parts.append(box(x, 92, 52, 26, words[i], GREY))
    for i in range(3):
        parts.append(line([(78 + 60 * i, 92), (192, 36)], WEIGHTS))
    parts.append(line([(258, 92), (206, 36)], HEADS[1], 2.2, dash="5 4"))
    parts.append(text(46, 25, "target", "end", 11))
    parts.append(text(46, 109, "input", "end", 11))
    parts.append(text(266, 68, "the answer itself", "start", 11))
    alt = "Five inputs: the, cat, sat, on, the. Above each its target, the next word. The target on above "
    alt += "sat may be computed from the, cat and sat. A dashed arrow leads to it from the next input, which "
    alt += "is the answer itself and must stay hidden."
    return picture(360, 124, alt, *parts, most=470)


def flows(flows: Mapping[str, Tensor]) -> Any:
    """How much each of seven outputs depends on each input, for three masks."""
    most = max(flow.max().item() for flow in flows.values())
    parts = [turned(10, 78, "output token", size=11)]
    for m, (name, flow) in enumerate(flows.items()):
        left = 22 + 113 * m
        parts.append(text(left + 49, 16, name, weight="bold"))
        parts.append(text(left + 49, 138, "input token", size=11))
        for i, row in enumerate(flow.tolist()):
            for j, size in enumerate(row):
                fill = to_hex(colormaps[COLORMAP](size / most)) if size else "none"
                parts.append(
                    f'<rect x="{left + 14 * j}" y="{24 + 14 * i}" width="13" height="13" '
                    f'fill="{fill}" stroke="{GREY}" stroke-width="0.6"/>'
                )
    alt = "Three maps of seven outputs against seven inputs; cells without flow are empty. Correct: only the "
    alt += "lower triangle with the diagonal is filled. Inverted: the upper triangle with the diagonal, and "
    alt += "the last row is empty. No mask: everything is filled."
    return picture(352, 144, alt, *parts, most=480)


def leak(
    histories: Mapping[str, History],
    at_once: Mapping[str, Tensor],
    in_use: Mapping[str, Tensor],
    floor: float,
    guessing: float,
) -> Figure:
    """Training losses of three masks, and test losses all at once and one by one."""
    figure, (top, bottom) = plots.new_figure(2, 1, width=4.4, height=4.1)
    colors = HEADS[2], HEADS[5], HEADS[6]
    for color, (name, history) in zip(colors, histories.items(), strict=True):
        top.plot(history.steps, history.losses.mean(0), color=color, label=name)
        low, high = history.losses.aminmax(dim=0)
        top.fill_between(history.steps, low, high, color=color, alpha=0.2, linewidth=0)
    for place, name in enumerate(at_once):
        for offset, color, marker, losses in (
            (-0.14, HEADS[7], "o", at_once),
            (0.14, HEADS[1], "s", in_use),
        ):
            dots = place + offset + torch.linspace(-0.08, 0.08, len(losses[name]))
            bottom.plot(
                dots, losses[name], marker, color=color, markersize=4, alpha=0.8
            )
    bottom.plot([], [], "o", color=HEADS[7], label="all at once")
    bottom.plot([], [], "s", color=HEADS[1], label="one by one")
    names = ("correct", "inverted", "no mask", "inverted, last\nnot scored")
    bottom.set_xticks(range(4), names, fontsize=9)
    for axis in (top, bottom):
        axis.axhline(floor, color="black", linestyle="--", linewidth=1)
        axis.axhline(guessing, color="black", linestyle=":", linewidth=1)
        axis.set(ylabel="loss (nats)", ylim=(0, None))
    top.set(xlabel="training step", title="training")
    top.text(1000, floor + 0.06, "entropy floor", ha="right", fontsize=9)
    top.text(1000, guessing + 0.06, "guessing", ha="right", fontsize=9)
    top.legend(loc="center right", bbox_to_anchor=(1.0, 0.42), fontsize=9)
    bottom.set(title="test", xlim=(-0.5, 3.5))
    bottom.legend(loc="upper left", fontsize=9)
    return figure


def wiring() -> Any:
    """The connections of two convolutions, a recurrent network and self-attention over five tokens."""
    n, mark = 5, HEADS[1]
    parts: list[str] = []
    for m, (first, second, levels) in enumerate(
        (
            ("convolution, k = 3", "two layers", 3),
            ("recurrent network", "one layer", 2),
            ("self-attention", "one layer", 2),
        )
    ):
        left = 16 + 118 * m
        at = [
            [(left + 21 * i, 126 - 88 * level // (levels - 1)) for i in range(n)]
            for level in range(levels)
        ]
        parts.append(text(left + 42, 14, first, size=10, weight="bold"))
        parts.append(text(left + 42, 148, second, size=11))
        for level in range(levels - 1):
            for i in range(n):
                reach = {"s": n, "c": 1, "r": 0}[first[0]]
                for j in range(max(i - reach, 0), min(i + reach + 1, n)):
                    ends = [at[level][j], at[level + 1][i]]
                    parts.append(line(ends, "#b0b0b0", 0.9, tip=False))
        way = {
            "c": [at[0][0], at[1][1], at[-1][2]],
            "r": [at[0][0], *at[-1]],
            "s": [at[0][0], at[-1][-1]],
        }[first[0]]
        parts.append(line(way, mark, 2.6, tip=False))
        for level in range(levels):
            color = (KEY, "#9a9a9a")[0 < level < levels - 1]
            color = QUERY if level == levels - 1 else color
            parts += [
                f'<circle cx="{x}" cy="{y}" r="5.5" fill="{color}"/>'
                for x, y in at[level]
            ]
    alt = "Three wiring diagrams over five tokens, inputs below and outputs above. Convolution: two layers "
    alt += "in which each token is joined to its neighbours below; a marked path climbs from the first token "
    alt += "and is at the middle after two layers. Recurrent network: each output is joined to its input; "
    alt += "a marked path goes through all outputs, from the first to the last. Self-attention: every output "
    alt += "is joined to every input, and one marked line leads from the first to the last."
    return picture(360, 154, alt, *parts, most=520)


def recall_task() -> Any:
    """Twelve letters and a question, with the reach of two convolutions."""
    parts = []
    for i, letter in enumerate("cafgbedhacbg"):
        color = VALUE if i == 7 else GREY
        parts.append(box(6 + 24 * i, 40, 22, 24, letter, color))
    parts.append(box(298, 40, 46, 24, "5 back", QUERY, 11))
    parts.append(curve("M321 38C321 0 185 0 185 36", HEADS[1], 2.2))
    parts.append(line([(151, 86), (294, 86)], tip=False, width=3))
    parts.append(text(222, 102, "6 positions: reach of the convolutions", size=11))
    alt = "Twelve letters in boxes, then the question: 5 back. An arrow leads from the question to "
    alt += "the letter h, five positions before it. A bar marks the six positions that two convolutions "
    alt += "can reach."
    return picture(350, 108, alt, *parts, most=500)


def recall(accuracy: Mapping[str, Tensor], recurrent: str, reach: int) -> Figure:
    """Accuracies (seeds, positions back) of six models; `recurrent` names the recurrent one."""
    figure, axis = plots.new_figure(width=4.4, height=3.1)
    distances = torch.arange(1, 12 + 1)
    for name, color, marker, dashed, label in (
        ("self-attention", HEADS[2], "o", "-", "self-attention"),
        ("2 convolutions", HEADS[1], "s", "-", "2 convolutions"),
        (recurrent, HEADS[5], "^", "-", "recurrent"),
        ("the same, 8,000 steps", HEADS[5], "^", "--", "recurrent, 8,000"),
        ("GRU", HEADS[3], "D", "-", "GRU"),
        ("GRU, 8,000 steps", HEADS[3], "D", "--", "GRU, 8,000"),
    ):
        values, style = accuracy[name], {"color": color, "markersize": 4}
        line = f"{marker}{dashed}"
        axis.plot(distances, values.median(0).values, line, label=label, **style)
        axis.plot(distances, values.T, ".", color=color, markersize=3)
    axis.axhline(1 / 8, color="black", linestyle="--", linewidth=0.9)
    for edge in (reach / 2 + 0.5, reach + 0.5):
        axis.axvline(edge, color=HEADS[1], linestyle=":", linewidth=1.2)
    axis.set_xticks([1, 3, 6, 9, 12])
    axis.text(12.2, 1 / 8 - 0.08, "guessing", ha="right", fontsize=9)
    axis.set(xlabel="positions back", ylabel="share right", ylim=(0, 1.05))
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9)
    return figure


# Milliseconds of a forward pass at five lengths: one thread of an AMD EPYC, torch 2.13.0, 2026-11-23.
_LENGTHS = (128, 256, 512, 1024, 2048)
_MILLISECONDS = {
    "convolution": [0.057, 0.098, 0.213, 0.359, 0.648],
    "recurrent": [1.256, 2.561, 5.259, 10.627, 21.8],
    "attention + projections": [0.192, 0.402, 1.136, 4.269, 18.154],
}


def times(layers: Mapping[str, Callable[[Tensor], Tensor]], measure: bool) -> Figure:
    """How the time of three layers of width 64 grows with the length, as stored or as measured now."""
    found = {}
    for name, stored in _MILLISECONDS.items():
        runs = [partial(layers[name], torch.randn(1, n, 64)) for n in _LENGTHS]
        assert milliseconds(runs[0], repeats=1) > 0  # what measures works
        found[name] = [milliseconds(run) for run in runs] if measure else stored
    growth = {name: taken[-1] / taken[0] for name, taken in found.items()}
    assert max(growth, key=growth.__getitem__) == "attention + projections"
    figure, axis = plots.new_figure(width=4.4, height=3.6)
    for exponent, label in ((1, "∝ n"), (2, "∝ n²")):
        guide = [(n / _LENGTHS[0]) ** exponent for n in _LENGTHS]
        axis.loglog(_LENGTHS, guide, color="#999999", linestyle=":", linewidth=1.2)
        axis.text(2200, guide[-1], label, va="center", fontsize=10, color="#666666")
    for color, marker, (name, taken) in zip(
        (HEADS[1], HEADS[5], HEADS[2]), "os^", found.items(), strict=True
    ):
        label = "self-attention" if "attention" in name else name
        ratios = [t / taken[0] for t in taken]
        axis.loglog(_LENGTHS, ratios, f"{marker}-", color=color, label=label)
    axis.set_xticks(_LENGTHS, _LENGTHS)
    axis.set_yticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axis.minorticks_off()
    axis.set(xlabel="length n", ylabel="time / time at length 128", xlim=(118, 3300))
    axis.legend(loc="upper left", fontsize=9)
    return figure


def reach(flows: Mapping[str, Tensor]) -> Figure:
    """How much each output depends on each input, for four models."""
    figure, axes = plots.new_figure(2, 2, width=4.4, height=4.6)
    for axis, (name, flow) in zip(axes.flat, flows.items(), strict=True):
        shown = torch.where(flow > 0, (flow / flow.max()).clamp(min=1e-3), torch.nan)
        image = axis.imshow(shown.log10(), cmap=COLORMAP, vmin=-3, vmax=0)
        axis.set_title(name)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_xlabel("input token", color=KEY)
        axis.set_ylabel("output token", color=QUERY)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, ticks=[-3, -2, -1, 0])
    bar.ax.set_yticklabels(["≤ 0.001", "0.01", "0.1", "1"], fontsize=9)
    return figure


def induction(
    one: History, two: History, right: Mapping[str, Tensor], bag: float, guessing: float
) -> Figure:
    """Losses of one layer and of two, and accuracies of all arms, with a dot for each seed."""
    ratios = {"height_ratios": [1, 1.25]}
    figure, (top, bottom) = plots.new_figure(
        2, 1, width=4.4, height=5.2, gridspec_kw=ratios
    )
    one_two = (HEADS[5], HEADS[2])
    for color, name, history in zip(
        one_two, ("1 layer", "2 layers"), (one, two), strict=True
    ):
        label = f"{name}, {history.steps[-1]:,} steps"
        top.plot(history.steps, history.losses.mean(0), color=color, label=label)
        low, high = history.losses.aminmax(dim=0)
        top.fill_between(history.steps, low, high, color=color, alpha=0.2, linewidth=0)
    top.set(xlabel="training step", ylabel="loss (nats)", ylim=(0, None))
    top.legend(loc="upper right", fontsize=9)
    labels = {
        "1 layer, 300 steps": "1 layer, 300",
        "1 layer": "1 layer, 2,000",
        "1 layer, 20000 steps": "1 layer, 20,000",
        "1 layer, 8 heads, 20000 steps": "8 heads, 20,000",
        "1 layer, 2 heads": "2 heads, 2,000",
        "1 layer, width 44": "width 44, 2,000",
        "2 layers, 300 steps": "2 layers, 300",
        "2 layers": "2 layers, 2,000",
    }
    for row, arm in enumerate(labels):
        color = one_two[arm.startswith("2 layers")]
        dots = row + torch.linspace(-0.15, 0.15, len(right[arm]))
        bottom.plot(right[arm], dots, "o", color=color, markersize=4, alpha=0.8)
    for bound, name in ((guessing, "guessing"), (bag, "a bag")):
        bottom.axvline(bound, color="black", linestyle="--", linewidth=0.9)
        bottom.text(bound + 0.015, 7.35, name, fontsize=9)
    bottom.set_yticks(range(len(labels)), labels.values(), fontsize=9)
    bottom.invert_yaxis()
    bottom.set(xlabel="letters right", xlim=(0, 1.05))
    return figure


def induction_maps(previous: Tensor, induction: Tensor) -> Figure:
    """The weights of both layers on one sequence."""
    figure, axes = plots.new_figure(1, 2, width=4.4, height=2.4)
    for axis, title, weights in zip(
        axes, ("first layer", "second layer"), (previous, induction), strict=True
    ):
        image = axis.imshow(weights, cmap=COLORMAP, vmin=0, vmax=1)
        axis.set_title(title)
        axis.set_xticks([0, 8, 16], ["1", "9", "17"])
        axis.set_yticks([0, 8, 16], ["1", "9", "17"])
        axis.set_xlabel("key: position", color=KEY)
    axes[0].set_ylabel("query: position", color=QUERY)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    return figure


def row_of_the_blank(
    sentence: Sequence[str],
    maps: Mapping[str, Tensor],
    answers: Mapping[str, Sequence[str]],
) -> None:
    """Print what each head reads at the blank, without and with a causal mask; and the answers."""
    asked = ("sailors", "baker's", "teacher", "station")
    columns = [sentence.index(word) for word in asked]
    blank = sentence.index("___")
    print("weights of the blank, seeing all > causal")
    print("        " + "".join(f"{word:>14s}" for word in asked))
    for head in range(4):
        rows = (weights[head, blank, columns].tolist() for weights in maps.values())
        pairs = "".join(f"{a:7.2f} > {b:.2f}" for a, b in zip(*rows, strict=True))
        print(f"head {head}  {pairs}")
    for name, words in answers.items():
        print(f"{name}: {', '.join(words)}")


def leak_table(*measures: Mapping[str, Tensor]) -> None:
    """Print the medians of three measures of the models with four masks."""
    head = ("at once", "one by one", "names next")
    print(f"{'medians of five seeds':33s}{head[0]:>9s}{head[1]:>12s}{head[2]:>12s}")
    for arm in measures[0]:
        columns = [found[arm].median() for found in measures]
        print(f"{arm:33s}{columns[0]:9.2f}{columns[1]:12.2f}{columns[2]:12.2f}")


def matrices_table(
    found: Mapping[str, Sequence[Tensor]], bounds: Mapping[str, float]
) -> None:
    """Print the accuracies with one matrix for queries and keys, with guesses, and with two matrices."""
    print(f"{'share right, five seeds':29s}one matrix   guesses   two matrices")
    for name, pair in found.items():
        one, two = (f"{right.min():.2f} to {right.max():.2f}" for right in pair)
        print(f"{name:26s}{one:>13s}{bounds[name]:10.2f}{two:>15s}")


def of_recall(runs: Experiment, longer: Experiment) -> tuple[dict[str, Tensor], str]:
    """Accuracies (seeds, positions back) by model, and the name of the recurrent one with its chosen rate."""
    recurrent = f"recurrent, lr {runs.arms['recurrent']['lr']}"
    arms = {
        "self-attention": (runs, "attention"),
        "2 convolutions": (runs, "2 convolutions"),
        recurrent: (runs, "recurrent"),
        "the same, 8,000 steps": (longer, "recurrent, 8000 steps"),
        "GRU": (runs, "gated"),
        "GRU, 8,000 steps": (longer, "gated, 8000 steps"),
    }
    right = "right by places back"
    return {
        name: found.results(arm, right) for name, (found, arm) in arms.items()
    }, recurrent


def recall_table(accuracy: Mapping[str, Tensor]) -> None:
    """Print the median accuracy, (seeds, positions back), of each model."""
    places = next(iter(accuracy.values())).shape[1]
    print(
        "median right, positions back" + "".join(f"{b + 1:5d}" for b in range(places))
    )
    for name, shares in accuracy.items():
        label = f"  {name}" if "same" in name else name
        medians = shares.median(0).values
        print(f"{label:28s}" + "".join(f"{share:5.2f}" for share in medians))


def induction_table(runs: Experiment, correct: Mapping[str, Tensor]) -> None:
    """Print the size, steps, accuracy and last loss of each model."""
    print(
        "share right of the letters that can be known, lowest to highest of all seeds"
    )
    for arm, settings in runs.arms.items():
        loss = runs.history(arm).losses[:, -1].mean()
        low, high = correct[arm].aminmax()
        size = f"{settings['parameters']:6,} parameters, {settings['steps']:,} steps"
        label = arm.removesuffix(f", {settings['steps']} steps")
        seeds = f"{settings['seeds']} seeds"
        print(f"{label:19s}{size:33s}{low:.2f} to {high:.2f}, loss {loss:.2f}, {seeds}")


def rates(runs: Experiment, arm: str, measure: str = "right") -> None:
    """Print a measure of an arm at each learning rate, a number for each seed."""
    for rate, found in runs.arms[arm]["rates"].items():
        print(f"{arm} at {rate}:", *(f"{share:.2f}" for share in found[measure]))
