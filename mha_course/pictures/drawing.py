"""The vocabulary of all diagrams: vector graphics that follow light and dark mode and shrink with the page.

Each function returns SVG text; `picture` puts such parts together. Lengths are pixels of a picture that is
shown at its full width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from IPython.display import HTML, Markdown
from matplotlib import colormaps
from matplotlib.colors import to_hex

from mha_course.plots import COLORMAP

Axis = tuple[float, float, Iterable[float]]
"""The lowest and the highest number of an axis, and its ticks."""
Curve = tuple[str, str, str, Iterable[float], Iterable[float]]
"""The name, colour and dashes of a curve, and the coordinates of its points."""

GREY = "#8a8a8a"
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
    f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>'
)


def stories(name: str) -> list[str]:
    """The text of each step of a picture: the items below the heading `name` of `steps.md`."""
    words = Path(__file__).with_name("steps.md").read_text(encoding="utf-8")
    section = words.split(f"\n## {name}\n")[1].partition("\n## ")[0]
    return [
        " ".join(item.split()) for item in re.split(r"^- ", section, flags=re.M)[1:]
    ]


def text(
    x: float,
    y: float,
    words: object,
    anchor: str = "middle",
    size: float = 12,
    color: str = "currentColor",
    weight: str = "normal",
) -> str:
    """A line of text; `anchor` says which part of it stands at x: "start", "middle" or "end"."""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{color}" font-weight="{weight}">{words}</text>'
    )


def turned(
    x: float, y: float, words: object, color: str = "currentColor", size: float = 12
) -> str:
    """A line of text that runs upwards, its middle at x and y."""
    return (
        f'<g transform="translate({x:g} {y:g}) rotate(-90)">'
        f"{text(0, 0, words, color=color, size=size)}</g>"
    )


def raised(base: str, exponent: str) -> str:
    """Words with an exponent, for `text` and `box`."""
    return f"{base}<tspan dy='-4' font-size='8'>{exponent}</tspan>"


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    words: str = "",
    color: str = GREY,
    size: float = 12,
    fill: float = 0.18,
) -> str:
    """A rectangle with lines of text in its middle; `fill` is the opacity of its colour."""
    rectangle = (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{color}" '
        f'fill-opacity="{fill}" stroke="{color}" stroke-width="1.3"/>'
    )
    lines = words.split("\n")
    first = y + height / 2 + 0.36 * size - (len(lines) - 1) * 0.6 * size
    return rectangle + "".join(
        text(x + width / 2, round(first + 1.2 * size * i, 1), line, size=size)
        for i, line in enumerate(lines)
        if line
    )


def arrow(x0: float, y0: float, x1: float, y1: float, color: str = GREY) -> str:
    """A straight arrow."""
    return line([(x0, y0), (x1, y1)], color)


def line(
    points: Iterable[tuple[float, float]],
    color: str = GREY,
    width: float = 1.5,
    tip: bool = True,
    dash: str = "",
) -> str:
    """A line through points, with or without the tip of an arrow."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return curve(f"M{path}", color, width, tip, dash)


def curve(
    path: str, color: str = GREY, width: float = 1.5, tip: bool = True, dash: str = ""
) -> str:
    """A curve along an SVG path, with or without the tip of an arrow."""
    end = ' marker-end="url(#tip)"' if tip else ""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" stroke="{color}" stroke-width="{width}" fill="none"{end}{dashes}/>'


def shade(number: float, low: float = 0.0, high: float = 1.0) -> tuple[str, str]:
    """The colour of a number, and that of a text on it; signed numbers get the diverging map."""
    colors = colormaps["RdBu_r" if low < 0 else COLORMAP]
    red, green, blue, _ = colors((number - low) / (high - low))
    light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    return to_hex((red, green, blue)), "black" if light else "white"


def matrix(
    x0: float,
    y0: float,
    rows: Sequence[Sequence[float | None]],
    width: float,
    height: float | None = None,
    low: float = 0.0,
    high: float = 1.0,
    numbers: str = "",
) -> str:
    """A table as coloured cells, edges on whole pixels; `numbers` says how each is written, such as "g"."""
    height, parts = height or width, []
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            if number is None:
                continue
            x, y = x0 + width * j, y0 + height * i
            fill, tone = shade(number, low, high)
            parts.append(
                f'<rect x="{x:g}" y="{y:g}" width="{width + 0.2:g}" height="{height + 0.2:g}" fill="{fill}"/>'
            )
            if numbers:
                middle = x + width / 2, y + height / 2 + 3.5
                parts.append(text(*middle, f"{number:{numbers}}", size=10, color=tone))
    return f'<g shape-rendering="crispEdges">{"".join(parts)}</g>'


def svg(width: float, height: float, alt: str, *parts: str, most: float = 480) -> str:
    """Parts as one graphic, at most `most` pixels wide; `alt` describes it."""
    return (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {width:g} {height:g}" '
        f'style="width:100%;max-width:{most:g}px;display:block;margin:auto" '
        f'font-family="system-ui, sans-serif">{_TIP}{"".join(parts)}</svg>'
    )


def picture(
    width: float, height: float, alt: str, *parts: str, most: float = 480
) -> Any:
    """Parts as one graphic that a cell shows; its arguments are those of `svg`."""
    return HTML(svg(width, height, alt, *parts, most=most))


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    side: str = "---",
    first: str = "---",
) -> Any:
    """Rows of text as a table; `side` and `first` align its columns and the first one, as in Markdown."""
    lines = [header, [first, *[side] * (len(header) - 1)], *rows]
    return Markdown("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))


def row(*drawings: str, width: float = 290, gap: float = 0.8) -> Any:
    """Drawings side by side, or below one another if there is less room for each than `width`."""
    room = "".join(f'<div style="flex:1 1 {width:g}px">{d}</div>' for d in drawings)
    return HTML(f'<div style="display:flex;flex-wrap:wrap;gap:{gap:g}em">{room}</div>')


def chart(
    alt: str,
    curves: Iterable[Curve],
    x: Axis,
    y: Axis,
    xlabel: str,
    ylabel: str,
    title: str = "",
    height: float = 190,
    marks: Iterable[float] = (),
) -> str:
    """A chart of curves, their names below it; `marks` are dashed vertical lines."""
    left, right, top, bottom = 40, 342, 24 if title else 10, height - 38

    def across(number: float) -> float:
        return left + (right - left) * (number - x[0]) / (x[1] - x[0])

    def up(number: float) -> float:
        return bottom - (bottom - top) * (number - y[0]) / (y[1] - y[0])

    middle = (left + right) / 2
    parts = [text(middle, 14, title, weight="bold")] if title else []
    edges = f"M{left} {top}V{bottom}H{right}"
    parts.append(curve(edges, "currentColor", 1, tip=False))
    parts += [text(across(n), bottom + 14, f"{n:g}", size=11) for n in x[2]]
    parts += [text(left - 5, up(n) + 4, f"{n:g}", "end", 11) for n in y[2]]
    parts.append(text(middle, bottom + 30, xlabel, size=11.5))
    parts.append(turned(10, (top + bottom) / 2, ylabel, size=11.5))
    for mark in marks:
        path = f"M{across(mark):.1f} {top}V{bottom}"
        parts.append(curve(path, "currentColor", 1, tip=False, dash="4 3"))
    below, start = bottom + 46, float(left)
    for name, color, dash, xs, ys in curves:
        pairs = zip(xs, ys, strict=True)
        points = [
            (round(across(float(a)), 1), round(up(float(b)), 1)) for a, b in pairs
        ]
        parts.append(line(points, color, 2, tip=False, dash=dash))
        wide = 30 + 6.3 * len(name)
        if start + wide > right:
            below, start = below + 16, left
        key = [(start, below - 4), (start + 20, below - 4)]
        parts.append(line(key, color, 2, tip=False, dash=dash))
        parts.append(text(start + 24, below, name, "start", 11))
        start += wide + 8
    return svg(350, below + 6, alt, *parts, most=420)
