"""The picture of the page that translates masks, and the words of its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from mha_course.plots import KEY, QUERY, new_figure

_COLORS = ListedColormap(["#3b3b4f", "#e8e4d8"])
_WORDS = {True: "T", False: "F"}
_SQUARES: dict[str, Callable[[bool], str]] = {
    "bool: SDPA, JAX,\nKeras, ONNX, ours": lambda see: _WORDS[see],
    "bool: attn_mask of\nnn.MultiheadAttention": lambda see: _WORDS[not see],
    "float, added:\nSDPA, JAX bias, ONNX": lambda see: "0" if see else "−∞",
    "extended: inside\nHuggingFace, eager": lambda see: "0" if see else "min",
}
_ROWS_OF_KEYS = {
    "attention_mask\nof HuggingFace": ["1", "1", "1", "0", "0"],
    "key_padding_mask of\nnn.MultiheadAttention": ["F", "F", "F", "T", "T"],
    "query_mask, key_mask\nof Keras": ["T", "T", "T", "F", "F"],
}


def _refused(answer: str) -> bool:
    """Whether a library raised an error."""
    return answer.startswith("error")


def polarity(answer: str) -> str:
    """What True means."""
    return {"visible": "may attend", "hidden": "**hidden**"}.get(answer, answer)


def taken_as(answer: str) -> str:
    """How a library read numbers in place of a bool mask."""
    if _refused(answer):
        return "refused"
    return {"visible": "obeyed", "hidden": "**inverted**"}.get(answer, f"**{answer}**")


def by_adding(answer: str) -> str:
    """How a library read numbers that some libraries add to the scores."""
    return "added" if answer == "visible" else taken_as(answer)


def axes_of(answer: str) -> str:
    """What the three axes of a mask mean."""
    if _refused(answer):  # "... but should be (9, 2, 3)": heads folded into the batch
        return answer.rpartition("but ")[2].rstrip(".")
    return f"{answer}, q, k"


def _draw(
    axis: Axes,
    seen: Sequence[Sequence[bool]],
    entries: Sequence[Sequence[str]],
    title: str,
) -> None:
    """One mask as a grid, with the entry that a library writes in each cell."""
    axis.imshow(seen, cmap=_COLORS, vmin=0, vmax=1, aspect="equal")
    for i, row in enumerate(entries):
        for j, entry in enumerate(row):
            axis.text(
                j,
                i,
                entry,
                ha="center",
                va="center",
                fontsize=9.5,
                color="black" if seen[i][j] else "white",
            )
    axis.set_title(title, fontsize=9.5)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)


def ways_to_write(seen: Sequence[Sequence[bool]]) -> Figure:
    """The mask of one sample, five keys of which three are real, as libraries write it."""
    figure, axes = new_figure(
        4, 2, height=6.2, gridspec_kw={"height_ratios": [5, 5, 1.3, 1.3]}
    )
    for axis, (title, entry) in zip(axes[:2].flat, _SQUARES.items(), strict=True):
        _draw(axis, seen, [[entry(cell) for cell in row] for row in seen], title)
    panels = zip(axes[2:].flat, _ROWS_OF_KEYS.items(), strict=False)
    for axis, (title, entries) in panels:
        _draw(axis, [[True] * 3 + [False] * 2], [entries], title)
    lengths = "valid_lens of this course,\nkey_value_seq_lengths, JAX"
    _draw(axes[3, 1], [[True] * 5], [["", "", "3", "", ""]], lengths)
    axes[3, 1].images[0].set_visible(False)
    axes[0, 0].set_ylabel("queries", color=QUERY)
    axes[0, 0].set_xlabel("keys", color=KEY)
    axes[2, 0].set_xlabel("keys", color=KEY)
    return figure
