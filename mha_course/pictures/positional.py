"""The pictures and tables of the chapter on positional encoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from IPython.display import HTML
from torch import Tensor

from mha_course.pictures.drawing import (
    GREY,
    arrow,
    box,
    chart,
    curve,
    matrix,
    raised,
    row,
    svg,
    text,
    turned,
)
from mha_course.plots import HEADS, KEY, QUERY


def counter(bits: Sequence[Sequence[float]], waves: Sequence[Sequence[float]]) -> Any:
    """A binary counter, and sines whose wavelengths double, for 16 positions."""

    def columns(title: str, below: str, names: Iterable[str], cells: str) -> str:
        parts = [text(150, 14, title, weight="bold")]
        parts += [text(54, 35 + 16 * place, place, "end", 11) for place in range(16)]
        parts.append(cells)
        parts += [
            text(82.5 + 45 * j, 294, name, size=11) for j, name in enumerate(names)
        ]
        parts += [text(150, 312, below, size=11.5), turned(22, 150, "position")]
        alt = (
            f"{title} for positions 0 to 15, one column for each rhythm. The right column "
            "changes fastest; each column to its left is half as fast."
        )
        return svg(270, 318, alt, *parts, most=300)

    lengths = [f"2π · {2**i}" for i in (3, 2, 1, 0)]
    left = matrix(60, 24, bits, 45, 16, numbers="g")
    right = matrix(60, 24, waves, 45, 16, -1.0)
    return row(
        columns("bits", "value of the bit", "8421", left),
        columns("sines", "wavelength in positions", lengths, right),
    )


def waves(table: Tensor) -> Any:
    """Columns 6 to 9 of the table (positions, 32) as curves, and the table as a map."""
    curves = [
        (f"column {c} (pair {c // 2})", HEADS[c // 2 - 3], "5 3" * (c % 2), *points)
        for c in (6, 7, 8, 9)
        for points in [(range(41), table[:41, c].tolist())]
    ]
    left = chart(
        "Four waves over 40 positions. Columns 6 and 7 have a wavelength of about 35 positions, "
        "columns 8 and 9 one of about 63. In each pair the cosine runs a quarter of a wave ahead.",
        curves,
        x=(0, 40, range(0, 41, 10)),
        y=(-1.1, 1.1, (-1, 0, 1)),
        xlabel="position",
        ylabel="encoding",
    )
    parts = [matrix(34, 6, table[0:48:2].tolist(), 9.6, 7, -1.0)]
    parts += [text(29, 13 + 7 * i, 2 * i, "end", 10) for i in range(0, 24, 4)]
    parts += [text(38.8 + 9.6 * c, 188, c, size=10) for c in range(0, 32, 4)]
    parts += [text(188, 204, "column", size=11.5), turned(10, 90, "position")]
    alt = (
        "The table as a map, 32 columns. On the left the colours change quickly from row to row; further "
        "right they change slowly; the right third is the same in every row."
    )
    return row(left, svg(350, 210, alt, *parts, most=420))


def clocks() -> Any:
    """Three pairs of a table of width 32 as clocks, with two equal steps on each."""
    return row(*map(_clock, (1, 2, 3)), width=170, gap=0)


def _clock(pair: int) -> str:
    """The points of one pair at positions 0 to 8 on a circle."""
    frequency = 10_000 ** (-2 * pair / 32)
    parts = [text(100, 14, f"pair {pair}", weight="bold")]

    def at(position: int, reach: float) -> tuple[float, float]:
        # Cosine up and sine to the right, so that the hand runs clockwise.
        angle = frequency * position
        return 100 + reach * math.sin(angle), 108 - reach * math.cos(angle)

    for start, color in ((0, HEADS[0]), (5, HEADS[1])):
        (x0, y0), (x1, y1) = at(start, 66), at(start + 3, 66)
        large = int(3 * frequency > math.pi)
        parts.append(
            f'<path d="M100 108L{x0:.1f} {y0:.1f}A66 66 0 {large} 1 {x1:.1f} {y1:.1f}Z" '
            f'fill="{color}" fill-opacity="0.4"/>'
        )
    parts.append(f'<circle cx="100" cy="108" r="72" fill="none" stroke="{GREY}"/>')
    for position in range(9):
        (x, y), (a, b) = at(position, 72), at(position, 86)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor"/>')
        parts.append(text(round(a, 1), round(b + 4, 1), position, size=11))
    parts.append(text(100, 212, f"{math.degrees(frequency):.0f}° per step"))
    alt = f"A circle with positions 0 to 8 of pair {pair} as points. The wedges from 0 to 3 "
    alt += "and from 5 to 8 span the same angle."
    return svg(200, 220, alt, *parts, most=230)


def head_by_hand(weights: Tensor, words: Sequence[str]) -> Any:
    """The causal weights (2, 12, 12) of a head that finds itself, and of one turned four steps back."""
    drawn = []
    bright = {"not turned": "the diagonal", "turned four steps back": "a line below"}
    for (title, where), head in zip(bright.items(), weights.tolist(), strict=True):
        seen = [line[: i + 1] for i, line in enumerate(head)]
        parts = [text(154, 14, title, weight="bold"), matrix(58, 22, seen, 16)]
        for i, word in enumerate(words):
            parts.append(text(53, 34 + 16 * i, word, "end", 11))
            parts.append(turned(70 + 16 * i, 219 + 2.9 * len(word), word, size=11))
        alt = f"Causal weights, {title}: {where} is bright."
        drawn.append(svg(254, 266, alt, *parts, most=270))
    return row(*drawn)


def equal_content(rotary: Tensor, added: Tensor) -> Any:
    """Scores (12, 12) of equal content: with rotary positions, and with added sinusoids."""
    most = max(float(scores.abs().max()) for scores in (rotary, added))
    drawn = []
    for title, scores, along in (
        ("rotary", rotary, "does not change"),
        ("added sinusoids", added, "changes"),
    ):
        parts = [text(132, 14, title, weight="bold")]
        parts.append(matrix(36, 22, scores.tolist(), 16, low=-most, high=most))
        for place in range(0, 12, 2):
            parts.append(text(30, 34 + 16 * place, place, "end", 11))
            parts.append(text(44 + 16 * place, 228, place, size=11))
        parts.append(text(132, 244, "key position", color=KEY))
        parts.append(turned(10, 118, "query position", QUERY))
        alt = f"Scores, {title}: the colour {along} along the diagonals."
        drawn.append(svg(260, 250, alt, *parts, most=270))
    return row(*drawn)


def learned(sinusoidal: Tensor, learned: Tensor, scores: Tensor) -> Any:
    """Similarities of sinusoidal and of learned rows, and scores between learned positions, (12, 12) each."""
    band = "Similarity of 12 sinusoidal rows: a broad band of large values on the diagonal."
    alone = "Similarity of 12 learned rows: large on the diagonal only."
    anti = "Scores between learned positions: large on the antidiagonal."
    parts = []
    for title, table, alt in (
        ("similarity, sinusoidal", sinusoidal, band),
        ("similarity, learned", learned, alone),
        ("scores, learned", scores, anti),
    ):
        most = float(scores.abs().max()) if table is scores else 1.0
        cells = matrix(34, 22, table.tolist(), 13, low=-most, high=most)
        drawn = [text(110, 14, title, weight="bold"), cells]
        for place in (0, 11):
            drawn.append(text(29, 33 + 13 * place, place, "end", 11))
            drawn.append(text(40 + 13 * place, 191, place, size=11))
        if table is scores:
            drawn += [text(112, 196, "key", color=KEY), turned(14, 100, "query", QUERY)]
        else:
            drawn += [text(112, 196, "position"), turned(14, 100, "position")]
        parts.append(svg(212, 202, alt, *drawn, most=286))
    return row(*parts, width=190, gap=0)


def where() -> Any:
    """Where each encoding acts: at the token, at query and key, or at the score."""
    parts = [
        box(6, 66, 62, 34, "token"),
        arrow(68, 76, 104, 52),
        arrow(68, 90, 104, 116),
    ]
    parts.append(box(106, 34, 64, 34, "query", QUERY))
    parts.append(box(106, 100, 64, 34, "key", KEY))
    parts += [arrow(170, 52, 208, 76), arrow(170, 116, 208, 92)]
    parts.append(box(210, 66, 56, 34, "score"))
    parts += [arrow(266, 83, 288, 83), box(290, 66, 56, 34, "weight")]
    for x, y, end, words in (
        (37, 8, 63, "sinusoidal,\nlearned"),
        (138, 8, 31, "rotary"),
        (238, 8, 63, "Shaw, T5,\nALiBi"),
    ):
        for i, line in enumerate(words.split("\n")):
            parts.append(text(x, y + 4 + 14 * i, line, size=12, weight="bold"))
        parts.append(arrow(x, y + 10 + 14 * words.count("\n"), x, end, HEADS[5]))
    parts.append(curve("M176 12C196 30 190 96 172 110", HEADS[5]))
    alt = "A token gives a query and a key; both give a score, which gives a weight. Sinusoidal and learned "
    alt += "encodings enter at the token, rotary at query and key, Shaw, T5 and ALiBi at the score."
    drawing = svg(350, 142, alt, *parts, most=420)
    return row(drawing)


def buckets(bidirectional: Sequence[int], causal: Sequence[int]) -> Any:
    """T5's buckets of the distances -150 to 150."""
    curves = []
    for name, head, dash, numbers in (
        ("bidirectional", 0, "", bidirectional),
        ("causal", 1, "5 3", causal),
    ):
        xs = [d + side for d in range(-150, 151) for side in (-0.5, 0.5)]
        ys = [bucket for bucket in numbers for _ in range(2)]
        curves.append((name, HEADS[head], dash, xs, ys))
    drawing = chart(
        "Bucket against distance. Bidirectional: from 15 far left down in widening steps to 0 at "
        "distance 0, then a jump to 17 and up to 31. Causal: from 31 far left down to 0, and 0 for "
        "all keys after the query.",
        curves,
        x=(-150, 150, (-128, -64, 0, 64, 128)),
        y=(0, 32, (0, 8, 16, 24, 31)),
        xlabel="key position − query position",
        ylabel="bucket",
        height=210,
    )
    return row(drawing)


def alibi(slopes: Sequence[float], weights: Tensor) -> Any:
    """The weights (heads, 12) of the last query under ALiBi's bias alone, against the distance."""
    curves = [
        (f"head {h}: 1/{1 / slope:.0f}", HEADS[h], "", range(12), line.flip(0).tolist())
        for h, (slope, line) in enumerate(zip(slopes, weights, strict=True))
    ]
    drawing = chart(
        "Weight against distance, one curve for each head. Head 0 falls from 0.23 at distance 0 to 0.01 at "
        "distance 11; the curve of head 3 is nearly flat at 1/12.",
        curves,
        x=(0, 11, range(0, 12, 2)),
        y=(0, 0.25, (0, 0.1, 0.2)),
        xlabel="how far back the key stands",
        ylabel="weight",
    )
    return row(drawing)


def _table(head: str, body: str) -> Any:
    """A table of many narrow columns, which scrolls where it does not fit."""
    return HTML(
        '<div style="overflow-x:auto" tabindex="0"><table class="table table-sm" '
        'style="font-size:.8em;line-height:1.25;white-space:nowrap">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def _cell(shares: Tensor | None) -> str:
    """The median of five seeds, and below it the lowest and the highest if they differ."""
    if shares is None:
        return "<td></td>"
    low, middle, high = (f"{x:.2f}" for x in shares.sort().values[[0, 2, 4]])
    ends = f"{low.removeprefix('0')}–{high.removeprefix('0')}"
    span = f'<br><span style="font-size:.85em">{ends}</span>'
    return f"<td>{middle}{'' if low == high else span}</td>"


def comparison(
    sizes: Mapping[str, int],
    shares: Mapping[str, Iterable[Tensor]],
    bag: Iterable[float],
) -> Any:
    """The parameters that each encoding adds, and its accuracies below the bound for a bag of tokens."""
    acts = {"none": "nowhere", "sinusoidal": "tokens", "learned": "tokens"}
    acts["rotary"] = "query, key"
    names = ["", "acts on", "learned<br>numbers", "mirrored", "three<br>back"]
    names += ["latest<br>capital", "three back,<br>4 × length"]
    names += ["latest cap.,<br>4 × length"]
    head = "".join(f"<th>{name}</th>" for name in names)
    best = "".join(f"<td>{share:.2f}</td>" for share in bag)
    rows = [f"<tr><th>bag, the best<br>without order</th><td></td><td></td>{best}</tr>"]
    rows += [
        f"<tr><th>{name}</th><td>{acts.get(name, 'scores')}</td><td>{size - sizes['none']:,}</td>"
        f"{''.join(map(_cell, shares[name]))}</tr>"
        for name, size in sizes.items()
    ]
    return _table(f"<tr>{head}</tr>", "".join(rows))


_BEYOND = {
    "three back": {
        "none": "follows the bag",
        "sinusoidal": "drops to the bag at position 12 and below it at 13, with single peaks further out",
        "learned": "drops to the bag or below at position 12",
        "Shaw": "stays at 1",
        "T5": "declines from about position 14 on",
        "ALiBi": "stays near 0.3",
        "rotary": "stays near 1 to about position 26 and then drops below the bag",
    },
    "latest capital": {
        "none": "follows the bag",
        "sinusoidal": "drops to the bag or below soon after position 12",
        "learned": "drops to the bag or below soon after position 12",
        "Shaw": "stays near 0.96",
        "T5": "falls to about 0.8",
        "ALiBi": "declines slowly to about 0.95",
        "rotary": "declines after about position 24",
    },
}


def beyond(
    ceilings: Mapping[str, Tensor], medians: Mapping[str, Mapping[str, Tensor]]
) -> Any:
    """Accuracy at each position up to 47, for each task: of a bag, and of each encoding."""
    drawings = []
    for group in (range(3), range(3, 7)):
        for task, bag in ceilings.items():
            first = 48 - len(bag)
            places = range(first, 48)
            curves = [("bag", "#999999", "", places, bag.tolist())]
            alt = f"{task}: accuracy at positions {first} to 47, trained up to position 11."
            for i, (name, line) in enumerate(medians[task].items()):
                if i in group:
                    dash = ("", "6 3", "2 2", "8 2 2 2")[i % 4]
                    curves.append((name, HEADS[i], dash, places, line.tolist()))
                    alt += f" {name} {_BEYOND[task][name]}."
            drawing = chart(
                alt,
                curves,
                x=(0, 48, (0, 12, 24, 36, 48)),
                y=(0, 1.02, (0, 0.5, 1)),
                xlabel="position",
                ylabel="accuracy",
                title=task,
                marks=(11.5,),
            )
            drawings.append(drawing)
    return row(*drawings)


def wavelengths(ways: Mapping[str, Tensor]) -> Any:
    """The wavelengths of eight pairs on a logarithmic axis, a line for each method of stretching."""

    def across(wavelength: float) -> float:
        return 104 + 236 * (math.log10(wavelength) - 0.7) / (6 - 0.7)

    parts, counts = [], []
    for length, name, side in ((32, "L = 32", "end"), (128, "4 L = 128", "start")):
        x = across(length)
        parts.append(curve(f"M{x:.1f} 18V168", "currentColor", 1, False, "4 3"))
        parts.append(text(round(x, 1), 13, name, side, 11))
    for i, (name, lengths) in enumerate(ways.items()):
        y = 34 + 25 * i
        parts.append(text(98, y + 4, name, "end", 11))
        counts.append(f"{name.strip('– ')}: {int((lengths <= 32).sum())}")
        for wavelength in lengths.tolist():
            fill = HEADS[0] if wavelength <= 32 else "none"
            parts.append(
                f'<circle cx="{across(wavelength):.1f}" cy="{y}" r="5" fill="{fill}" '
                f'stroke="{HEADS[0]}" stroke-width="1.6"/>'
            )
    parts.append(curve("M104 168H340", "currentColor", 1, tip=False))
    for power in range(1, 7):
        x = round(across(10**power), 1)
        parts.append(text(x, 183, raised("10", str(power)), size=11))
    parts.append(text(222, 200, "wavelength in positions", size=11.5))
    counted = "Pairs that make a full turn within 32 positions: " + ", ".join(counts)
    alt = "Wavelengths of the eight pairs of a head of width 16 on a logarithmic axis, one row for "
    alt += f"each way. {counted}. Interpolation moves all pairs right, NTK-aware scaling the "
    alt += "slow ones most, YaRN all but the fastest."
    return row(svg(350, 206, alt, *parts, most=420))


def stretched(
    shares: Mapping[str, Iterable[Tensor | None]], floors: Iterable[float]
) -> Any:
    """Accuracy 3 and 20 positions back on longer texts, for each method; None was not measured."""
    names = (
        "length 64",
        "length 128",
        "128, 100<br>more steps",
        "128, 400<br>more steps",
    )
    head = "".join(f'<th colspan="2">{name}</th>' for name in names)
    backs = "<th>3 back</th><th>20 back</th>" * 4
    floor = "".join(f"<td>{share:.2f}</td>" for share in floors)
    body = "".join(
        f"<tr><th>{name}</th>{''.join(map(_cell, cells))}</tr>"
        for name, cells in shares.items()
    )
    return _table(
        f"<tr><th></th>{head}</tr><tr><th></th>{backs}</tr>",
        f"<tr><th>floor: most frequent</th>{floor}</tr>{body}",
    )


def pairs() -> Any:
    """Which columns of a head turn together, in the two orders."""
    parts = []
    for y, name, pair in (
        (8, "side by side", [0, 0, 1, 1, 2, 2, 3, 3]),
        (74, "half a head apart", [0, 1, 2, 3, 0, 1, 2, 3]),
    ):
        parts.append(text(4, y + 10, name, "start", 12.5))
        for column, number in enumerate(pair):
            words, color = f"{column}: ω{'₀₁₂₃'[number]}", HEADS[number]
            parts.append(box(5 + 42 * column, y + 18, 40, 32, words, color, 12.5, 0.35))
    alt = (
        "Eight columns of a head and the frequency that turns them. Side by side: columns 0 and 1 have "
        "frequency 0, columns 2 and 3 frequency 1, and so on. Half a head apart: columns 0 and 4 have "
        "frequency 0, columns 1 and 5 frequency 1, and so on."
    )
    return row(svg(346, 128, alt, *parts, most=520))
