"""The pictures of "Orientation"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from IPython.display import HTML

STYLE = (
    "<style>html[data-theme] .cell_output .text_html:has(.cards)"
    "{background:none!important;color:inherit!important;padding:0!important}</style>"
)


def _cards(size: int, items: Iterable[tuple[str, str]]) -> Any:
    """Boxes in a row, each with a title above a note; on a narrow screen they wrap."""
    row = "display:flex;flex-wrap:wrap;gap:10px;margin:8px 0;padding:0;list-style:none"
    box = (
        "flex:1 1 180px;border:1px solid #7a8794;border-radius:8px;padding:8px 10px;margin:0;"
        "text-align:center;font-size:14px;line-height:1.35"
    )
    parts = [
        f'<li style="{box}"><div style="font-size:{size}px;font-weight:600">{title}</div>{note}</li>'
        for title, note in items
    ]
    return HTML(f'{STYLE}<ol class="cards" style="{row}">{"".join(parts)}</ol>')


def formula() -> Any:
    """Which chapter explains which part of the formula of attention."""
    return _cards(
        20,
        [
            (
                '<span class="query">Q</span>',
                "chapter 3: several sets of queries, side by side",
            ),
            ('<span class="key">Kᵀ</span>', "chapter 1: what a query is compared with"),
            ("÷ √d", "chapter 2: why the square root"),
            (
                "softmax",
                "chapter 1: weights of a mean; chapter 2: which keys may count",
            ),
            ('<span class="value">V</span>', "chapter 1: what is averaged"),
            ("Q, K, V", "chapter 4: made from one sequence; chapter 5: its order"),
        ],
    )


def chapters() -> Any:
    """The chapters and what each adds."""
    return _cards(
        15,
        [
            ("1 Attention pooling", "a mean whose weights depend on the query"),
            ("2 Scores and masks", "how a match is measured, and what may be seen"),
            ("3 Multi-head attention", "several means, side by side"),
            ("4 Self-attention", "a sequence attends to itself"),
            ("5 Positional encoding", "the order is added by hand"),
            ("6 The Transformer", "all parts, and a model that writes dates"),
            ("7 A GPT of your own", "a model that writes, and a file to take home"),
            ("8 What heads learn", "what each head does, and which can be removed"),
            ("9 A model people use", "a published chat model, opened"),
        ],
    )


# Each part of the way, with the pieces that a reader has had accepted once it is written.
WAY = {
    "pool": "my_pooling",
    "score": "my_attention",
    "mask": "my_masked_softmax my_lens_mask my_causal_mask",
    "head": "MyHead",
    "heads": "split_heads merge_heads",
    "layer": "MyMultiHead",
    "order": "MyPositions",
    "block": "MyEncoderBlock",
    "model": "MyGPT",
}


def way(before: int, here: int = 0) -> Any:
    """The parts that lead to a model: those of earlier pages, `before`, and those of this one, `here`.

    In the book, a script of the page fills those whose pieces the reader has had accepted.
    """
    row = "display:flex;flex-wrap:wrap;gap:4px;margin:0;padding:0;list-style:none"
    box = "border:1px solid #7a8794;border-radius:9px;padding:0 7px;margin:0;font-size:12px;line-height:16px"
    parts = []
    for number, (name, pieces) in enumerate(WAY.items()):
        now = before <= number < before + here
        look = ";outline:1px solid #7a8794;font-weight:600" * now
        said = f' data-pieces="{pieces}"' + ' aria-current="step"' * now
        parts.append(f'<li style="{box}{look}"{said}>{name}</li>')
    style = (
        "<style>html .cell:has(.way),html .cell .cell_output:has(.way){margin:0!important}"
        ".way .way-done{background:#4c78a8;border-color:#4c78a8!important;color:#fff}"
        ".way-and-caption{align-items:center;display:flex;flex-wrap:wrap;gap:0 8px}"
        ".way-caption{font-size:12px;line-height:18px;margin:0}</style>"
    )
    return HTML(
        f'{STYLE}{style}<div class="way-and-caption"><ol class="cards way" '
        f'aria-label="What you write on the way to a model" style="{row}">{"".join(parts)}</ol>'
        '<p class="way-caption">The parts that you will write.'
        '<span class="way-filled" hidden> Filled: your code passed.</span></p></div>'
    )
