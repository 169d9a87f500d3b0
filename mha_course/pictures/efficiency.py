"""Pictures of what attention costs: tables, tiles, caches, shared key heads, windows, several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from IPython.display import HTML
from matplotlib.figure import Figure
from torch import Tensor

from mha_course.pictures.drawing import (
    GREY,
    arrow,
    box,
    line,
    picture,
    shade,
    stories,
    svg,
    text,
)
from mha_course.plots import HEADS, KEY, QUERY, ROLES, VALUE, new_figure

SCORE = "#5e4fa2"  # neither a role nor a head


def _cells(
    x: float,
    y: float,
    rows: int,
    columns: int,
    color: str,
    cell: float = 7,
    fill: float = 0.5,
) -> str:
    """A matrix as a grid of cells without numbers."""
    return "".join(
        f'<rect x="{x + cell * j}" y="{y + cell * i}" width="{cell - 1}" '
        f'height="{cell - 1}" fill="{color}" fill-opacity="{fill}"/>'
        for i in range(rows)
        for j in range(columns)
    )


def cost() -> Any:
    """The multiplications of one layer, from the tokens to the output."""
    parts = [_cells(146, 6, 6, 4, GREY), text(180, 31, "X: n × d", "start", 12)]
    for j, (name, color) in enumerate((("Q", QUERY), ("K", KEY), ("V", VALUE))):
        x = 44 + 110 * j
        parts.append(arrow(160, 50, x + 14, 92))
        parts.append(_cells(x, 96, 6, 4, color))
        parts.append(text(x + 34, 121, name, "start", 13, weight="bold"))
    parts.append(text(226, 60, "3nd² multiplications", "start", 12))
    parts.append(arrow(58, 140, 88, 178))
    parts.append(arrow(166, 140, 118, 178))
    for i in range(2):
        parts.append(_cells(50 + 58 * i, 182, 6, 6, HEADS[i], fill=0.8))
        parts.append(text(71 + 58 * i, 240, f"head {i}", size=12))
    parts.append(text(174, 205, "h tables of", "start", 12, weight="bold"))
    parts.append(text(174, 221, "n × n weights", "start", 12, weight="bold"))
    parts.append(text(44, 165, "n²d", "end", 12))
    parts.append(arrow(100, 246, 140, 264))
    parts.append(text(106, 264, "n²d", "end", 12))
    parts.append(_cells(146, 262, 6, 4, GREY))
    parts.append(line([(278, 140), (278, 282), (178, 282)]))
    parts.append(text(186, 300, "weighted means: n × d", "start", 12))
    parts.append(arrow(160, 306, 160, 332))
    parts.append(text(168, 326, "nd²", "start", 12))
    parts.append(_cells(146, 336, 6, 4, GREY))
    parts.append(text(180, 361, "output: n × d", "start", 12))
    alt = "X, 6 by 4, goes to Q, K and V of the same size, which takes 3 n d squared multiplications. "
    alt += "Q and K give a table of 6 by 6 weights for each of two heads, with n squared d "
    alt += "multiplications. The tables and V give the weighted means, again with n squared d, and these "
    alt += "the output with n d squared. Only the tables grow with the square of the length."
    return picture(352, 384, alt, *parts)


def growth(width: int = 512, heads: int = 8) -> Figure:
    """Multiplications and memory by the number of tokens."""
    n = torch.logspace(5, 14, 100, base=2)
    figure, (top, bottom) = new_figure(2, 1, width=4.4, height=3.9)
    top.plot(n, 4 * n * width**2, color=GREY, label="projections")
    top.plot(n, 2 * n**2 * width, color=HEADS[5], label="scores and means")
    top.axvline(2 * width, color="#999999", linewidth=1, linestyle="--")
    top.set_ylabel("multiplications")
    bottom.plot(n, 4 * 4 * n * width / 2**20, color=GREY, label="Q, K, V, output")
    bottom.plot(n, 4 * heads * n**2 / 2**20, color=HEADS[5], label="weights")
    bottom.axvline(4 * width / heads, color="#999999", linewidth=1, linestyle="--")
    bottom.set_ylabel("MB in float32")
    for axis in (top, bottom):
        axis.set(xscale="log", yscale="log", xlabel="tokens n")
        axis.set_xticks([32, 256, 1024, 16384], ["32", "256", "1024", "16384"])
        axis.minorticks_off()
        axis.legend(frameon=False)
    return figure


def _tile_picture(step: int) -> list[str]:
    """Two blocks of queries and three blocks of keys; `step` counts tiles row by row."""
    row, column = divmod(step, 3)
    parts = [text(8, 116, "Q", "start", 14, weight="bold")]
    parts.append(text(40, 26, "K", "end", 14, weight="bold"))
    parts.append(text(40, 50, "V", "end", 14, weight="bold"))
    for c in range(3):
        now = 0.95 if c == column else 0.25
        for y, color in ((12, KEY), (36, VALUE)):
            parts.append(_cells(52 + 56 * c, y, 1, 3, color, 18, now))
    for r in range(2):
        now = 0.95 if r == row else 0.25
        done = 0.85 if 3 * r + 2 <= step else 0.15
        parts.append(_cells(26, 66 + 56 * r, 3, 1, QUERY, 18, now))
        parts.append(_cells(310, 66 + 56 * r, 3, 1, GREY, 18, done))
        for c in range(3):
            place = 3 * r + c
            x, y = 52 + 56 * c, 66 + 56 * r
            if place == step:
                parts.append(_cells(x, y, 3, 3, SCORE, 18, 0.85))
            else:
                parts.append(
                    f'<rect x="{x}" y="{y}" width="53" height="53" fill="none" '
                    f'stroke="{GREY}" stroke-dasharray="3 3"/>'
                )
                word = "gone" if place < step else "later"
                parts.append(text(x + 26, y + 31, word, size=12))
        if r == row:
            parts.append(box(230, 72 + 56 * r, 54, 40, "m, ℓ, a", GREY, 12))
    parts.append(text(257, 26, "running", size=12))
    parts.append(text(257, 41, "sums", size=12))
    parts.append(text(318, 41, "output", size=12))
    return parts


def _clickable(
    name: str,
    label: str,
    said: Sequence[str],
    pictures: Sequence[Sequence[str]],
    size: tuple[float, float],
) -> Any:
    """Numbered steps to press; each shows its sentence and its picture."""
    buttons, panels, rules = [], [], []
    for i, (story, parts) in enumerate(zip(said, pictures, strict=True)):
        buttons.append(
            f'<input type="radio" name="{name}" id="{name}-{i}"{" checked" * (i == 0)}>'
            # Without style sheets, the space keeps one number from the next.
            f'<label for="{name}-{i}">{i} </label>'
        )
        drawn = svg(*size, story, *parts)
        panels.append(
            f'<div class="{name}-panel {name}-{i}"><p>{story}</p>{drawn}</div>'
        )
        rules.append(f"#{name}-{i}:checked ~ .{name}-panels .{name}-{i}")
    return HTML(
        f"<style>.{name}-panel{{display:none;min-height:20rem}}"
        f"{','.join(rules)}{{display:block}}.{name}-panel p{{margin:.4rem 0;min-height:3.2em}}"
        f".{name} input{{position:absolute;opacity:0}}.{name} label{{display:inline-block;"
        "min-width:2rem;margin:.15rem;padding:.25rem .4rem;border:1px solid;border-radius:4px;"
        f"text-align:center;cursor:pointer}}.{name} input:checked+label{{background:#1f6fb5;"
        f"color:#fff}}.{name} input:focus-visible+label{{outline:3px solid #d9730d}}"
        f"@media print{{.{name}-panel{{display:block}}}}</style>"
        f'<div class="{name}" role="group" aria-label="{label}">{"".join(buttons)}'
        f'<div class="{name}-panels">{"".join(panels)}</div></div>'
    )


def tiles() -> Any:
    """Six tiles, one after another: only the scores of one tile exist at a time."""
    said = [
        story.format(row=row, column=column)
        for row in range(2)
        for column, story in enumerate(stories("tiles"))
    ]
    pictures = [_tile_picture(step) for step in range(6)]
    label = "Tiles, one after another"
    return _clickable("tile-steps", label, said, pictures, (352, 184))


def weights_so_far(scores: Tensor, rows: Sequence[Tensor]) -> Any:
    """The weights after each of four tiles of two keys: `rows` hold 2, 4, 6 and 8."""
    parts: list[str] = []
    for j, score in enumerate(scores.tolist()):
        x = 60 + 36 * j + 4 * (j // 2)
        parts.append(text(x + 17, 30, f"{score:.1f}".replace("-", "−"), size=12))
        for i, row in enumerate(rows):
            y = 40 + 34 * i
            if j < len(row):
                weight = row[j].item()
                fill, tone = shade(weight)[0], "black" if weight > 0.55 else "white"
                parts.append(
                    f'<rect x="{x}" y="{y}" width="34" height="30" fill="{fill}"/>'
                )
                words = f"{row[j].item():.2f}"
                parts.append(text(x + 17, y + 20, words, size=12, color=tone))
            else:
                parts.append(
                    f'<rect x="{x + 1}" y="{y + 1}" width="32" height="28" fill="none" '
                    f'stroke="{GREY}" stroke-dasharray="3 3"/>'
                )
    for i in range(4):
        parts.append(text(52, 62 + 34 * i, f"tile {i + 1}", "end", 12))
    parts.append(text(206, 12, "scores of eight keys, in tiles of two", size=12))
    alt = "Four rows, one after each tile of two keys, with the weights so far, light where they "
    alt += "are large. Each row sums to 1. The last tile brings the largest score; its weight is "
    alt += (
        f"{rows[3][6].item():.2f}, and all earlier weights shrink by one common factor."
    )
    return picture(362, 176, alt, *parts, most=540)


def cache() -> Any:
    """What five steps of decoding compute, without and with a cache."""
    parts: list[str] = []
    computed: dict[str, int] = {}
    for panel, title in enumerate(("everything again", "with a cache")):
        x0 = 54 + 158 * panel
        parts.append(text(x0 + 66, 16, title, size=13, weight="bold"))
        count = 0
        for step in range(5):
            y = 44 + 32 * step
            for token in range(step + 1):
                x, new = x0 + 28 * token, panel == 0 or token == step
                count += new
                for k, color in enumerate((QUERY, KEY, VALUE)):
                    if not new and k == 0:
                        continue
                    parts.append(
                        f'<rect x="{x}" y="{y + 9 * k}" width="24" height="8" '
                        f'fill="{color}" fill-opacity="{0.95 if new else 0.25}"/>'
                    )
        computed[title] = count
        parts.append(text(x0 + 66, 218, f"{count} tokens computed", size=12))
        for token in range(5):
            parts.append(text(x0 + 12 + 28 * token, 36, token, size=12))
    for step in range(5):
        parts.append(text(46, 62 + 32 * step, f"step {step}", "end", 12))
    assert computed == {"everything again": 15, "with a cache": 5}
    for k, (name, color) in enumerate(ROLES.items()):
        parts.append(
            f'<rect x="{54 + 66 * k}" y="232" width="14" height="8" fill="{color}"/>'
        )
        parts.append(text(72 + 66 * k, 240, name, "start", 12))
    parts.append(text(250, 240, "pale: kept", "start", 12))
    alt = "Five steps of writing, one row for each step. Without a cache step t computes query, key and "
    alt += "value of all tokens up to t, 15 in all. With a cache it computes them for the new token only, "
    alt += "5 in all; the keys and values of earlier tokens are kept, drawn pale."
    return picture(356, 248, alt, *parts, most=540)


def decoding(per_step: Mapping[str, Sequence[int]], crossing: int) -> Figure:
    """Multiplications for one token and for all so far; at `crossing` half of them are not projections."""
    steps = range(1, 2049)
    figure, (top, bottom) = new_figure(2, 1, width=4.4, height=3.8)
    lines = zip(per_step.items(), (HEADS[5], GREY), strict=True)
    for (label, products), color in lines:
        top.plot(steps, products, color=color, label=label)
        bottom.plot(steps, list(accumulate(products)), color=color, label=label)
    top.set(title="for one more token")
    bottom.set(title="for all tokens so far")
    for axis in (top, bottom):
        axis.set(yscale="log", xlabel="tokens", ylabel="multiplications")
    top.axvline(crossing, color="#999999", linewidth=1, linestyle="--")
    bottom.legend(loc="lower right", frameon=False)
    return figure


def sharing() -> Any:
    """Four query heads with four, two and one key heads."""
    parts: list[str] = []
    kinds = (
        ("MHA", "multi-head", 4),
        ("GQA", "grouped-query", 2),
        ("MQA", "multi-query", 1),
    )
    for p, (short, name, shared) in enumerate(kinds):
        y = 132 * p
        title = f"{short}: {name} attention, {shared} key head{'s' * (shared > 1)}"
        parts.append(text(4, y + 16, title, "start", 13, weight="bold"))
        for i in range(4):
            group = i * shared // 4
            middle = 44 + 84 * ((group + 0.5) * 4 / shared - 0.5)
            ends = [(44 + 84 * i, y + 56), (middle, y + 80)]
            parts.append(line(ends, tip=False))
            parts.append(
                f'<rect x="{10 + 84 * i}" y="{y + 28}" width="68" height="28" rx="14" '
                f'fill="{HEADS[i]}" fill-opacity="0.35" stroke="{HEADS[i]}" stroke-width="2"/>'
            )
            parts.append(text(44 + 84 * i, y + 47, f"query {i}", size=12))
        for g in range(shared):
            middle = 44 + 84 * ((g + 0.5) * 4 / shared - 0.5)
            parts.append(box(middle - 36, y + 80, 35, 28, f"K {g}", KEY, 12))
            parts.append(box(middle + 1, y + 80, 35, 28, f"V {g}", VALUE, 12))
    alt = "Four query heads in three arrangements. Multi-head attention: each has its own key head and "
    alt += "value head. Grouped-query attention: query heads 0 and 1 share key head 0, 2 and 3 share key "
    alt += "head 1. Multi-query attention: all four share key head 0."
    return picture(352, 378, alt, *parts, most=520)


def cache_sizes(
    tokens: Tensor, sizes: Mapping[int, Tensor], parameters: float
) -> Figure:
    """GiB of a cache by number of tokens, for several numbers of key heads, beside the parameters."""
    figure, axis = new_figure(width=4.4, height=2.9)
    lines = zip(sizes.items(), ("-", "--", ":"), strict=True)
    for (num_kv_heads, size), style in lines:
        label = f"{num_kv_heads} key head{'s' * (num_kv_heads > 1)}"
        axis.plot(tokens, size, style, color=KEY, label=label)
        axis.annotate(
            f"{size[-1].item():.0f} GiB",
            (tokens[-1], size[-1]),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axis.axhline(parameters, color="black", linewidth=1)
    axis.text(560, 16, "the parameters")
    axis.set(xscale="log", yscale="log", xlabel="tokens in the cache")
    axis.set_ylabel("GiB in half precision")
    axis.set_xticks([512, 4096, 32768, 131072], ["512", "4096", "32768", "131072"])
    axis.minorticks_off()
    axis.legend(loc="lower right", frameon=False)
    return figure


def windows(masks: Mapping[str, Tensor]) -> Any:
    """Four masks over ten keys: causal, two windows, and the last rows of a window."""
    parts: list[str] = []
    for p, (title, mask) in enumerate(masks.items()):
        x0, y0 = 30 + 172 * (p % 2), 24 + 182 * (p // 2)
        parts.append(text(x0 + 65, y0 - 8, title, size=12, weight="bold"))
        parts += [
            f'<rect x="{x0 + 13 * j}" y="{y0 + 13 * i}" width="12" height="12" '
            f'fill="{SCORE}" fill-opacity="{0.9 if seen else 0.12}"/>'
            for i, row in enumerate(mask.tolist())
            for j, seen in enumerate(row)
        ]
        rows = len(mask)
        parts.append(text(x0 + 65, y0 + 13 * rows + 15, "keys", size=12))
        middle = y0 + 6.5 * rows
        parts.append(
            text(x0 - 8, middle, "queries", size=12).replace(
                "<text", f'<text transform="rotate(-90 {x0 - 8} {middle})"'
            )
        )
    alt = "Four masks over ten keys; dark cells are visible. Causal: a full lower triangle. Left 3: a "
    alt += "diagonal band of four. Left 2, right 2: a band of five around the diagonal. The last has "
    alt += "three rows, equal to the last three rows of the band of four; its first four keys are "
    alt += "seen by nobody."
    return picture(346, 354, alt, *parts, most=480)


def ranks() -> Any:
    """Four heads on two processes, whose terms an all-reduce adds."""
    parts = [box(134, 4, 84, 26, "all tokens", GREY, 12)]
    for r in range(2):
        x = 6 + 176 * r
        parts.append(arrow(176, 30, x + 82, 52))
        parts.append(box(x, 54, 164, 148, "", GREY, fill=0.05))
        parts.append(text(x + 82, 72, f"process {r}", size=12, weight="bold"))
        for i in range(2):
            head = 2 * r + i
            parts.append(
                box(x + 8 + 76 * i, 80, 72, 44, f"head {head}", HEADS[head], 12, 0.3)
            )
            parts.append(arrow(x + 44 + 76 * i, 124, x + 44 + 76 * i, 146))
            name = (
                "W<tspan dy='-4' font-size='9'>O</tspan>"
                f"<tspan dx='-6' dy='8' font-size='9'>{head}</tspan>"
            )
            parts.append(
                box(x + 8 + 76 * i, 148, 72, 26, f"· {name}", HEADS[head], 12, 0.1)
            )
        parts.append(text(x + 82, 194, "one term, full width", size=12))
        parts.append(arrow(x + 82, 202, 176, 230))
    parts.append(box(106, 232, 140, 26, "all-reduce: sum", GREY, 12))
    parts.append(text(176, 276, "output, on every process", size=12))
    alt = "Two processes. Both receive all tokens. Process 0 holds heads 0 and 1 and their rows of the "
    alt += "output matrix, process 1 holds heads 2 and 3 and theirs. Each obtains one term of full width; "
    alt += "an all-reduce adds the terms, and every process has the output."
    return picture(352, 284, alt, *parts)


def softcap(scores: Tensor, capped: Mapping[float | None, Tensor]) -> Figure:
    """Capped scores, and the weight that is left for a second key with the score 0."""
    figure, (top, bottom) = new_figure(2, 1, width=4.4, height=3.8)
    colors = (HEADS[1], HEADS[0], "#777777")
    for (cap, bent), color in zip(capped.items(), colors, strict=True):
        label = "no cap" if cap is None else f"cap {cap:.0f}"
        top.plot(scores, bent, color=color, label=label)
        # Two keys: one has the score, the other 0. What is left for the other?
        bottom.plot(scores, torch.sigmoid(-bent.double()), color=color, label=label)
    top.set(xlabel="score", ylabel="score after the cap")
    top.legend(frameon=False)
    bottom.set(xlabel="score of the stronger key", yscale="log")
    bottom.set_ylabel("weight of the weaker")
    return figure
