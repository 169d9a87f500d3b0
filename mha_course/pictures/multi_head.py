"""The pictures of "Multi-head attention"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import torch
from IPython.display import HTML
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mha_course.pictures.drawing import (
    GREY,
    arrow,
    box,
    curve,
    matrix,
    picture,
    raised,
    shade,
    stories,
    svg,
    text,
)
from mha_course.plots import HEADS, KEY, QUERY, VALUE, new_figure

# Not the colours of heads: these are tokens.
TOKENS = ("#332288", "#117733", "#882255")


def _word(x: float, y: float, word: str, size: float, strong: bool) -> str:
    return text(x, y, word, "end", size, weight="bold" if strong else "normal")


def sentence(
    words: Sequence[str],
    roles: Mapping[int, str],
    blank: int,
    *,
    has_distances: bool = True,
) -> Any:
    """A sentence, one word per line, and arrows from its blank to the words that it asks for."""
    parts = [
        _word(112, 20 + 21 * i, word, 13, i in roles or i == blank)
        for i, word in enumerate(words)
    ]
    start = 16 + 21 * blank
    reaches = zip((60, 78, 40, 60), roles.items(), HEADS, strict=False)
    for reach, (place, role), color in reaches:
        end, away = 16 + 21 * place, abs(place - blank)
        path = f"M120 {start}C{120 + reach} {start} {120 + reach} {end} 121 {end}"
        parts.append(curve(path, color, 2.2))
        distance = (
            f"{away} word{'s' * (away > 1)} {'ahead' if place > blank else 'back'}"
        )
        label = f"{role}, {distance}" if has_distances else role
        parts.append(text(188, end + 4, label, "start", 12.5))
    if not has_distances:
        alt = (
            "The sentence, one word per line. Arrows lead from the blank to sailors, the subject, "
            "to baker's, the owner, to teacher, the neighbour, and to station, the place."
        )
        return picture(262, 262, alt, *parts, most=300)
    alt = (
        "The sentence, one word per line. Arrows lead from the blank to sailors, the subject, "
        "4 words back; to baker's, 5 back; to teacher, 1 back; to station, 4 ahead."
    )
    return picture(345, 262, alt, *parts, most=350)


def columns(
    weights: Tensor, words: Sequence[str], roles: Mapping[int, str], blank: int
) -> Any:
    """The weights from the blank to each word: a column for a single head, then one for each of four."""
    titles = ("1 head", "head 0", "head 1", "head 2", "head 3")
    parts = []
    for j, (title, row) in enumerate(zip(titles, weights.tolist(), strict=True)):
        x = 72 + 44 * j + 10 * (j > 0)
        parts.append(text(x + 21, 14, title, size=11, weight="bold"))
        if j:
            parts.append(
                f'<rect x="{x}" y="19" width="42" height="4" fill="{HEADS[j - 1]}"/>'
            )
        for i, weight in enumerate(row):
            y = 26 + 20 * i
            fill, tone = shade(weight)[0], "black" if weight > 0.55 else "white"
            parts.append(
                f'<rect x="{x}" y="{y}" width="42" height="19" fill="{fill}"/>'
            )
            if weight >= 0.05:
                parts.append(text(x + 21, y + 14, f"{weight:.2f}", size=11, color=tone))
    for i, word in enumerate(words):
        parts.append(_word(66, 40 + 20 * i, word, 12, i in roles or i == blank))
        if i in roles:
            parts.append(text(308, 40 + 20 * i, roles[i], "start", 11))
    seen = [words[i] for i in weights[0].argsort().flip(0) if weights[0, i] >= 0.05]
    alt = (
        "Weights from the blank to each word, a column for each head. The only head of the one-head "
        f"model spreads its weight over {', '.join(seen)}. Of the four heads, head 0 looks at "
        "sailors, head 2 mostly at station, head 3 mostly at teacher."
    )
    return picture(368, 268, alt, *parts, most=400)


def pointers() -> Any:
    """Twelve positions, and the two targets of one of them: the previous and the mirrored position."""
    parts = [
        box(4 + 28 * i, 66, 26, 26, str(i), QUERY if i == 8 else GREY)
        for i in range(12)
    ]
    parts.append(text(241, 110, "query", weight="bold"))
    for end, height, color in ((7, 48, HEADS[0]), (3, -8, HEADS[1])):
        x = 17 + 28 * end
        path = f"M241 64C241 {height} {x} {height} {x} 63"
        parts.append(curve(path, color, 2.4))
    parts.append(text(272, 50, "previous", "start"))
    parts.append(text(170, 10, "mirrored"))
    alt = (
        "Twelve positions in a row. From position 8 one arrow leads to position 7, the previous one, "
        "and one to position 3, the mirrored one."
    )
    return picture(344, 118, alt, *parts, most=360)


def words(sentence: Sequence[str], tokens: Sequence[int], rows: Tensor) -> Any:
    """The words of a sentence, their tokens, and the rows of the table that the tokens choose."""
    titles = ((72, "words"), (119, "tokens"), (248, "rows of the table"))
    parts = [text(x, 14, title, size=11, weight="bold") for x, title in titles]
    for i, (word, token) in enumerate(zip(sentence, tokens, strict=True)):
        y = 36 + 18 * i
        parts.append(_word(92, y, word, 12, word == "the"))
        parts.append(text(119, y, str(token), size=12))
        parts.append(arrow(134, y - 4, 150, y - 4))
    parts.append(matrix(152, 24, rows.tolist(), 16, 18, -3, 3))
    alt = "Twelve words, their tokens, and for each a coloured row of twelve numbers; equal words, equal rows"
    return picture(350, 242, alt, *parts, most=400)


_INPUTS = (("query", "Q", 5, QUERY), ("key", "K", 7, KEY), ("value", "V", 7, VALUE))


def _inputs() -> list[str]:
    """Five queries and seven keys and values of width 12, in two samples."""
    return [
        box(18 + 110 * j, 4, 84, 36, f"{name}\n(2, {length}, 12)", color, 11)
        for j, (name, _, length, color) in enumerate(_INPUTS)
    ]


def head() -> Any:
    """One head: three projections of its own, then attention."""
    parts = _inputs()
    for j, (_, letter, length, color) in enumerate(_INPUTS):
        x = 60 + 110 * j
        parts += [arrow(x, 40, x, 60), arrow(x, 98, x, 134)]
        words = f"{raised('W', letter)}\n(12, 4)"
        parts.append(box(x - 42, 62, 84, 36, words, color, 11))
        parts.append(text(x + 5, 119, f"(2, {length}, 4)", "start", 11))
    parts.append(box(18, 136, 304, 30, "my_attention", HEADS[0]))
    for x, words in ((95, "output (2, 5, 4)"), (245, "weights (2, 5, 7)")):
        parts += [arrow(x, 166, x, 186), text(x, 200, words, weight="bold")]
    alt = "Query, key and value each go through a projection; attention gives the output and the weights"
    return picture(350, 208, alt, *parts, most=400)


def loop() -> Any:
    """Three heads, each with its projections and its attention, side by side."""
    parts = _inputs()
    for i in range(3):
        x, color = 6 + 112 * i, HEADS[i]
        parts += [arrow(60 + 110 * j, 40, x + 17 + 34 * j, 84) for j in range(3)]
        parts.append(box(x, 66, 104, 112, "", color, fill=0.06))
        for j, (letter, tone) in enumerate((("Q", QUERY), ("K", KEY), ("V", VALUE))):
            parts.append(box(x + 4 + 33 * j, 86, 30, 26, raised("W", letter), tone))
            parts.append(arrow(x + 19 + 33 * j, 112, x + 30 + 22 * j, 126))
        parts.append(box(x + 8, 128, 88, 40, f"attention\nhead {i}", color, 12, 0.3))
        parts.append(arrow(x + 52, 178, x + 52, 208))
        parts.append(text(x + 56, 197, "(2, 5, 4)", "start", 11))
        parts.append(box(61 + 76 * i, 210, 76, 28, f"head {i}", color, 12, 0.3))
    parts.append(arrow(175, 238, 175, 264))
    parts.append(text(181, 255, "side by side: (2, 5, 12)", "start", 11))
    parts.append(box(105, 266, 140, 30, "output projection"))
    parts.append(arrow(175, 296, 175, 320))
    parts.append(text(175, 334, "output (2, 5, 12)", weight="bold"))
    alt = (
        "Query, key and value each go to three heads. Each head has its own three projections and its "
        "own attention, and gives a result of width 4. The three results stand side by side, width 12, "
        "and go through the output projection."
    )
    return picture(350, 342, alt, *parts, most=400)


def fused_weights() -> Figure:
    """Which head owns which part of the four matrices."""
    figure, axes = new_figure(1, 2, width=4.6, height=2.05)
    owner = torch.arange(12).unsqueeze(1).expand(12, 12) // 4
    names = ("q_proj, k_proj, v_proj", "out_proj")
    for axis, name in zip(axes.flat, names, strict=True):
        last = name == "out_proj"
        cells = owner.T if last else owner
        axis.imshow(cells.numpy(), cmap=ListedColormap(HEADS[:3]), alpha=0.75)
        axis.set_title(f"{name}: weight", fontsize=10)
        axis.set_xticks([i - 0.5 for i in range(13)], [])
        axis.set_yticks([i - 0.5 for i in range(13)], [])
        axis.grid(color="white", linewidth=0.8)
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
        for head in range(3):
            x, y = (4 * head + 1.5, 5.5) if last else (5.5, 4 * head + 1.5)
            turn = {"rotation": 90 if last else 0, "ha": "center", "va": "center"}
            axis.text(x, y, f"head {head}", fontsize=11, **turn)
        axis.set_xlabel("12 inputs", fontsize=10)
        axis.set_ylabel("12 outputs", fontsize=10)
    return figure


def _numbered(table: Tensor, x0: int, y0: int, title: str) -> str:
    """A table of numbers, each in the colour of its token."""
    parts = [text(x0 + 14 * table.shape[1], y0 - 6, title)]
    for i, row in enumerate(table.tolist()):
        for j, number in enumerate(row):
            x, y = x0 + 28 * j, y0 + 28 * i
            fill = TOKENS[number // 4]
            parts.append(
                f'<rect x="{x}" y="{y}" width="26" height="26" fill="{fill}"/>'
            )
            parts.append(text(x + 13, y + 18, number, size=13, color="white"))
    return "".join(parts)


def reshape(x: Tensor, right: Tensor, wrong: Tensor) -> Any:
    """Twelve numbers of three tokens, cut into two heads correctly and incorrectly."""
    parts = [_numbered(x, 118, 20, "x: one row per token")]
    for i in range(3):
        parts.append(text(110, 38 + 28 * i, f"token {i}", "end"))
    for x0, name, heads in ((16, "right", right), (194, "wrong", wrong)):
        parts.append(text(x0 + 68, 134, name, size=13, weight="bold"))
        for i in range(2):
            parts.append(_numbered(heads[i], x0 + 80 * i, 162, f"head {i}"))
    alt = (
        "Twelve numbers, one colour for each token. Right: each head holds two numbers of each of the "
        "three tokens, one row per token. Wrong: head 0 holds token 0 and half of token 1."
    )
    return picture(346, 250, alt, *parts, most=360)


def _grid(
    x: float,
    y: float,
    opacities: Sequence[Sequence[float]],
    colors: Sequence[str],
    cell: int = 11,
) -> str:
    """Cells of one size, with one colour for each column and an opacity for each cell."""
    return "".join(
        f'<rect x="{x + cell * j:g}" y="{y + cell * i:g}" width="{cell - 1}" height="{cell - 1}" '
        f'fill="{colors[j]}" fill-opacity="{opacity}"/>'
        for i, row in enumerate(opacities)
        for j, opacity in enumerate(row)
    )


# Code, how its result is drawn, and which of the calls that the layer makes gives it.
_STEPS = (
    ("query", "flat", "query0"),
    ("self.q_proj(query)", "owned", "linear0"),
    ("x.unflatten(-1, (3, 4))", "cut", "unflatten0"),
    ("x.transpose(1, 2)", "apart", "transpose0"),
    ("k.transpose(-2, -1)", "keys", "transpose3"),
    ("q @ k.transpose(-2, -1)", "wide", "matmul0"),
    ("my_masked_softmax(scores)", "wide", "softmax0"),
    ("weights @ v", "apart", "matmul1"),
    ("x.transpose(1, 2)", "cut", "transpose4"),
    ("x.flatten(-2)", "owned", "flatten0"),
    ("self.out_proj(output)", "flat", "linear3"),
)


class _Tape(TorchFunctionMode):
    """Records the shape of the result of each call, by the name of the function and its count."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.calls = Counter[str]()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result, name = function(*args, **(kwargs or {})), function.__name__
        if isinstance(result, Tensor):
            self.shapes[f"{name}{self.calls[name]}"] = tuple(result.shape)
            self.calls[name] += 1
        return result


def _step(kind: str) -> str:
    """One sample of a tensor, each column in the colour of the head that owns it."""
    if kind in ("flat", "owned"):
        owners = [HEADS[j // 4] if kind == "owned" else GREY for j in range(12)]
        return _grid(104, 14, [[0.75] * 12] * 5, owners)
    if kind == "cut":
        return "".join(
            _grid(90 + 58 * h, 14, [[0.75] * 4] * 5, [HEADS[h]] * 4) for h in range(3)
        )
    rows, columns = {"apart": (5, 4), "keys": (4, 7), "wide": (5, 7)}[kind]
    parts = []
    for h in range(3):
        x = 60 + 116 * h - 5.5 * columns
        parts.append(_grid(x, 14, [[0.75] * columns] * rows, [HEADS[h]] * columns))
        parts.append(text(60 + 116 * h, 86, f"head {h}"))
    return "".join(parts)


def steps(layer: nn.Module, *inputs: Tensor) -> Any:
    """The steps of a run of the layer behind a row of buttons, each with the shape of its result."""
    buttons, panels, rules = [], [], []
    with _Tape() as tape, torch.no_grad():
        layer(*inputs)
    tape.shapes["query0"] = tuple(inputs[0].shape)
    for i, ((code, kind, call), meaning) in enumerate(
        zip(_STEPS, stories("layer"), strict=True)
    ):
        shape = tape.shapes[call]
        name = f"flow-{i}"
        buttons.append(
            f'<input type="radio" name="flow" id="{name}"{" checked" * (i == 0)}>'
            # Without style sheets, the space keeps one number from the next.
            f'<label for="{name}">{i} </label>'
        )
        drawn = svg(352, 92, f"{meaning} Shape {shape}.", _step(kind), most=520)
        panels.append(
            f'<div class="flow-panel {name}"><p><code>{escape(code)}</code> → <strong>{shape}</strong></p>'
            f"<p>{escape(meaning)}</p>{drawn}</div>"
        )
        rules.append(f"#{name}:checked ~ .flow-panels .{name}")
    return HTML(
        "<style>.flow-panel{display:none;min-height:13.5rem}"
        f"{','.join(rules)}{{display:block}}.flow-panel p{{margin:.4rem 0}}"
        ".flow input{position:absolute;opacity:0}.flow label{display:inline-block;min-width:2rem;"
        "margin:.15rem;padding:.25rem .4rem;border:1px solid;border-radius:4px;text-align:center;"
        "cursor:pointer}.flow input:checked+label{background:#1f6fb5;color:#fff}"
        ".flow input:focus-visible+label{outline:3px solid #d9730d}"
        "@media print{.flow-panel{display:block}}</style>"
        f'<div class="flow" role="group" aria-label="Steps of the layer">{"".join(buttons)}'
        f'<div class="flow-panels">{"".join(panels)}</div></div>'
    )


def _seen(x: float, y: float, table: Tensor) -> str:
    opacities = torch.where(table, 0.9, 0.12).double().mul(100).round().div(100)
    return _grid(x, y, opacities.tolist(), ["#5e4fa2"] * table.shape[1], cell=8)


def masks(causal: Tensor, lengths: Tensor) -> Any:
    """Masks as they are given, and as broadcast over two samples and three heads."""
    parts = []
    rows = (
        ("causal", causal),
        ("lengths 3 and 7", lengths),
        ("both", lengths & causal),
    )
    for b, (name, mask) in enumerate(rows):
        y, full = 26 + 136 * b, mask.expand(2, *causal.shape)
        shape = tuple(mask.shape)
        parts.append(text(4, y - 8, f"{name}: {shape}", "start", weight="bold"))
        own = [mask] if mask.ndim == 2 else list(mask)
        for s, table in enumerate(own):
            shift = 24 if len(own) == 1 else 50 * s + (16 if len(table) == 1 else 0)
            parts.append(_seen(14, y + shift, table))
        parts.append(arrow(80, y + 46, 116, y + 46))
        for s in range(2):
            parts += [_seen(172 + 62 * h, y + 50 * s, full[s]) for h in range(3)]
            parts.append(text(166, y + 24 + 50 * s, f"sample {s}", "end", 11))
        for h in range(3):
            parts.append(text(200 + 62 * h, y - 6, f"head {h}", size=11))
    alt = (
        "Three masks and what broadcasting makes of them, for two samples and three heads. A causal "
        "mask of shape 5 by 7 is the same for all samples and heads. Lengths, 2 by 1 by 7, are one row "
        "for each sample, the same for all queries and heads. Both together, 2 by 5 by 7, are one "
        "matrix for each sample, the same for all heads."
    )
    return picture(360, 424, alt, *parts, most=370)
