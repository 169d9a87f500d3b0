"""Matrices in a row, with signs between them, as in a line of a calculation."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from IPython.display import HTML
from matplotlib import colormaps
from matplotlib.colors import to_hex
from torch import Tensor

from mha_course.plots import COLORMAP, SIGNED_COLORMAP

NEW_LINE = '<span style="flex-basis:100%"></span>'
_ROLES = {"query": "#cfe3f5", "key": "#f9dcc0", "value": "#cdead9"}


def _fill(number: float, kind: str) -> str:
    """Weights run from 0 (viridis), scores around 0 (red and blue), masks are two tones."""
    if math.isnan(number):
        return "#d9d9d9"
    if kind == "weight":
        return to_hex(colormaps[COLORMAP](float(number)))
    if kind == "score":
        return to_hex(colormaps[SIGNED_COLORMAP](0.5 + number / 14))
    if kind == "mask":
        return "#e8e4d8" if number else "#3b3b4f"
    return _ROLES.get(kind, "#eeeeee")


def _written(number: float, kind: str) -> str:
    if kind == "mask":
        return "✓" if number else "✗"
    words = f"{number:.2f}".replace("nan", "NaN")
    return words if kind == "weight" else words.rstrip("0").rstrip(".")


def matrix(title: str, numbers: Tensor, kind: str = "", note: str = "") -> str:
    """One matrix, with its title above and a note below; `kind` decides its colours."""
    rows, columns = numbers.shape
    width, height = 44, 26
    wide, high = max(columns * width, 118), rows * height + 44
    left = (wide - columns * width) / 2
    parts = [
        f'<svg width="{wide:g}" height="{high:g}" viewBox="0 0 {wide:g} {high:g}" '
        'text-anchor="middle" font-size="13" font-family="sans-serif">',
        f'<text x="{wide / 2:g}" y="14" fill="currentColor" font-weight="600">{title}</text>',
        f'<text x="{wide / 2:g}" y="{high - 5:g}" fill="currentColor">{note}</text>',
    ]
    for i, row in enumerate(numbers.tolist()):
        for j, number in enumerate(row):
            color = _fill(number, kind)
            light = sum(int(color[k : k + 2], 16) for k in (1, 3, 5)) > 330
            x, y = left + j * width, 22 + i * height
            parts += [
                f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{height}" '
                f'fill="{color}" stroke="#888"/>',
                f'<text x="{x + width / 2:g}" y="{y + height / 2 + 5:g}" '
                f'fill="{"#111" if light else "#fff"}">{_written(number, kind)}</text>',
            ]
    return "".join(parts) + "</svg>"


def calculation(alt: str, *parts: str) -> Any:
    """Matrices and signs side by side; on a narrow screen they wrap. `alt` describes the picture."""
    signs = [
        part if part.startswith("<") else f'<span style="font-size:15px">{part}</span>'
        for part in parts
    ]
    style = (
        "<style>html[data-theme] .cell_output .text_html:has(.steps)"
        "{background:none!important;color:inherit!important;padding:0!important}</style>"
    )
    box = "display:flex;flex-wrap:wrap;align-items:center;gap:6px 10px;margin:8px 0"
    return HTML(
        f'{style}<div class="steps" role="img" aria-label="{escape(alt)}" style="{box}">'
        + "".join(signs)
        + "</div>"
    )
