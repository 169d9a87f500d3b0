"""Tables and the figure of measured times, from rows of benchmarks/results.json and results_chat.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mha_course.experiments import experiment_names, load_experiment
from mha_course.pictures.drawing import table
from mha_course.plots import HEADS, new_figure

Row = Mapping[str, Any]
FORWARD, BACKWARD = "forward", "forward + backward"
PAIRS = {
    ("mha_lib", "nn.MultiheadAttention"): ("torch's layer", HEADS[0], "o"),
    ("mha_lib, weights", "nn.MultiheadAttention, weights"): (
        "torch's layer, both with weights",
        HEADS[1],
        "s",
    ),
    ("mha_lib", "heads in the batch"): ("heads in the batch", HEADS[5], "^"),
}
"""What is compared with what, and how the figure draws it: label, colour, marker."""


def find_ratio(row: Row, above: str, below: str) -> dict[str, Any]:
    """The ratio of two contestants in a row, with its interval."""
    found: dict[str, Any] = next(
        r for r in row["ratios"] if (r["of"], r["to"]) == (above, below)
    )
    return found


def written(ratio: Row) -> str:
    """A ratio with its interval, never broken over two lines."""
    words = f"{ratio['ratio']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"
    return f'<span style="white-space: nowrap">{words}</span>'


def size_of(row: Row) -> str:
    """Batch, length and width of a row."""
    size = f"{row['batch']} × {row['len']} × {row['embed_dim']}"
    return size.replace(" ", "\N{NO-BREAK SPACE}")


def ratio_table(layers: Iterable[Row], above: str, below: str) -> Any:
    """Two lines for each size, without and with padding."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in layers:
        size = f"{size_of(row)}, {row['num_heads']}"
        size += "" if row["device"] == "cpu" else f" ({row['device']})"
        padding = "yes" if row["padding"] else "no"
        cell = written(find_ratio(row, above, below))
        lines.setdefault((size, padding), {})[row["direction"]] = cell
    header = ("size, heads", "padding", FORWARD, BACKWARD)
    rows = [(*key, cells[FORWARD], cells[BACKWARD]) for key, cells in lines.items()]
    return table(header, rows)


def _draw_row(
    axis: Axes, row: Row, place: float, pair: tuple[str, str], color: str, marker: str
) -> None:
    """A ratio as a marker, hollow with padding, on the line of its interval."""
    found = find_ratio(row, *pair)
    axis.plot([found["low"], found["high"]], [place] * 2, color=color, linewidth=1)
    face = "white" if row["padding"] else color
    style: dict[str, Any] = {"color": color, "markerfacecolor": face, "markersize": 5}
    axis.plot(found["ratio"], place, marker, **style)


def ratio_figure(layers: Sequence[Row]) -> Figure:
    """All ratios with their intervals, by size and direction."""
    sizes = list(dict.fromkeys((r["batch"], r["len"], r["embed_dim"]) for r in layers))
    figure, axes = new_figure(2, 1, width=4.6, height=7.2, sharex=True)
    for axis, way in zip(axes, (FORWARD, BACKWARD), strict=True):
        axis.axvline(1, color="black", linewidth=1)
        for i, (pair, (label, color, marker)) in enumerate(PAIRS.items()):
            for row in layers:
                if row["direction"] == way:
                    place: float = sizes.index(
                        (row["batch"], row["len"], row["embed_dim"])
                    )
                    place += 0.26 * (i - 1) + (0.06 if row["padding"] else -0.06)
                    _draw_row(axis, row, place, pair, color, marker)
            axis.plot([], [], marker, color=color, label=label)
        axis.set(xscale="log", title=way, xlabel="time of our layer / of the other")
        axis.set_xticks([0.25, 0.5, 1, 2], ["1/4", "1/2", "1", "2"])
        axis.minorticks_off()
        axis.set_yticks(range(len(sizes)), [f"{b} × {n} × {w}" for b, n, w in sizes])
        axis.invert_yaxis()
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", frameon=False)
    return figure


def compiled_table(rows: Iterable[Row]) -> Any:
    """Time of each compiled layer relative to the same layer without compilation."""
    names = (
        "mha_lib",
        "mha_lib, weights",
        "nn.MultiheadAttention",
        "heads in the batch",
    )
    lines: list[tuple[str, ...]] = []
    for row in rows:
        size = size_of(row)
        size += ", padding" if row["padding"] else ""
        ratios = (row["ms"][f"{name}, compiled"] / row["ms"][name] for name in names)
        lines.append((size, row["direction"], *(f"{ratio:.2f}" for ratio in ratios)))
    return table(("size", "direction", *(f"`{name}`" for name in names)), lines)


def decoding_table(rows: Iterable[Row]) -> Any:
    """The time of each decoding method, and its ratio to that with a cache."""
    lines = [
        (
            row["device"],
            f"`{name}`" if "Cache" in name else name,
            f"{ms:.0f}",
            next((written(r) for r in row["ratios"] if r["of"] == name), "1"),
        )
        for row in rows
        for name, ms in row["ms"].items()
    ]
    return table(("device", "way", "ms", "time / `KeyValueCache`"), lines)


def chat_table(rows: Iterable[Row]) -> Any:
    """The time of our chat model, relative to that of HuggingFace's with each kind of attention."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        task = f"{row['name']}, {row['batch']} × {row['prompt']}"
        if row["new"] > 1:
            task += f", {row['new']} new"
        task = task.replace(" ", "\N{NO-BREAK SPACE}") + ", padded" * row["padded"]
        ratios = map(written, row["ratios"].values())
        lines.append((row["dtype"], task, *ratios))
    return table(("dtype", "task", "ours / *eager*", "ours / *sdpa*"), lines)


def rates() -> None:
    """Print the median of each arm's first measure at each learning rate; a star marks the chosen rate."""
    for name in experiment_names():
        tried = {k: a for k, a in load_experiment(name).arms.items() if "rates" in a}
        for place, (label, arm) in enumerate(tried.items()):
            *_, measure = next(iter(arm["rates"].values()))
            if place == 0:
                print(f"{name}: {measure}")
            shown = f"  {label:56s}"
            for rate, found in arm["rates"].items():
                by_seed = torch.tensor(found[measure]).view(arm["seeds"], -1)
                star = "*" if float(rate) == arm["lr"] else " "
                shown += f" {rate:>6}: {by_seed.mean(1).median():.2f}{star}"
            print(shown.rstrip())
