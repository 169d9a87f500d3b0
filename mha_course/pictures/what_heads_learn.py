"""Figures on what heads learn: pointers, pruning, sentences and digits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mha_course.experiments import Experiment
from mha_course.pictures.self_attention import rates as rates
from mha_course.plots import (
    COLORMAP,
    HEADS,
    KEY,
    fill_of,
    head_color,
    new_figure,
    plot_seeds,
    say_hollow,
)
from mha_lib import capture_attention


def words(rows: Mapping[str, Tensor], labels: Sequence[str]) -> Figure:
    """Rows of weights from the blank, a panel for each model, words below."""
    counts = [len(weights) for weights in rows.values()]
    figure, axes = new_figure(
        2, 1, height=2.9, sharex=True, gridspec_kw={"height_ratios": counts}
    )
    for axis, (name, weights) in zip(axes, rows.items(), strict=True):
        image = axis.imshow(
            weights.numpy(), cmap=COLORMAP, vmin=0, vmax=1, aspect="auto"
        )
        axis.set_title(name, fontsize=9.5, loc="left")
        names = [f"head {head}" for head in range(len(weights))]
        axis.set_yticks(range(len(weights)), names)
        for head, tick in enumerate(axis.get_yticklabels()):
            tick.set_color(head_color(head))
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
        for (row, column), weight in np.ndenumerate(weights.numpy()):
            if weight >= 0.05:
                color = "white" if weight < 0.5 else "black"
                text = f"{weight:.2f}".lstrip("0")  # so that it fits
                axis.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    color=color,
                    fontsize=9.5,
                )
    axes[-1].set_xticks(range(len(labels)), labels, rotation=90, color=KEY)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.9)
    return figure


def sentence_results(
    results: Mapping[str, Mapping[str, Tensor]], bounds: Mapping[str, float]
) -> Figure:
    """A row for each kind of model, a dot for each seed, a vertical line for each bound."""
    figure, axis = new_figure(height=3.2)
    settings = list({name: None for series in results.values() for name in series})
    for i, (label, series) in enumerate(results.items()):
        for name, shares in series.items():
            rows = (
                settings.index(name) + 0.25 * (i - 1) + torch.linspace(-0.06, 0.06, 5)
            )
            (dots,) = axis.plot(shares, rows, "os^"[i], color=HEADS[i], alpha=0.8)
            dots.set(markersize=4.5, fillstyle=fill_of(shares))
        axis.plot([], [], "os^"[i], color=HEADS[i], label=label)
    for (name, bound), style in zip(bounds.items(), ("--", ":"), strict=True):
        axis.axvline(bound, color="black", linestyle=style, linewidth=1, label=name)
    say_hollow(axis, chain(*(series.values() for series in results.values())))
    axis.set_yticks(
        range(len(settings)), [name.replace("\n", " ") for name in settings]
    )
    axis.invert_yaxis()
    axis.set_xlabel("all four answers right")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def digits(results: Mapping[str, Mapping[str, Tensor]], baseline: float) -> Figure:
    """Accuracy on digits beside guessing and logistic regression."""
    seeds = {name: dict(settings) for name, settings in results.items()}
    figure = plot_seeds(seeds, xlabel="", ylabel="test accuracy", chance=0.1)
    figure.axes[0].axhline(
        baseline, color="black", linestyle=":", linewidth=1, label="logistic regression"
    )
    figure.axes[0].legend(loc="lower left", bbox_to_anchor=(0.0, 0.1))
    return figure


def digit_maps(patches: Tensor, received: Tensor) -> Figure:
    """Three images, (3, 16, 4) as patches of 2 × 2 pixels, and what each patch receives from four heads."""
    pixels = patches.view(3, 4, 4, 2, 2).transpose(2, 3).reshape(3, 8, 8)
    figure, axes = new_figure(3, 5, height=2.7)
    for row in range(3):
        for column in range(5):
            axis = axes[row, column]
            axis.axis("off")
            if column == 0:
                axis.imshow(pixels[row].numpy(), cmap="gray_r")
            else:
                shares = received[row, column - 1].numpy()
                image = axis.imshow(
                    shares,
                    vmin=0,
                    vmax=float(received.max()),
                    extent=(-0.5, 7.5, 7.5, -0.5),
                )
                axis.contour(
                    pixels[row].numpy(), levels=[0.5], colors="white", linewidths=1.2
                )
            if row == 0:
                title, color = (
                    ("image", "black")
                    if column == 0
                    else (f"head {column - 1}", head_color(column - 1))
                )
                axis.set_title(title, fontsize=9.5, color=color)
    figure.colorbar(image, ax=axes, label="weight, mean over queries", shrink=0.9)
    return figure


def print_numbers(label: str, numbers: Iterable[float], digits: int = 2) -> None:
    """A label and numbers, such as one for each seed."""
    print(label, *(f"{number:.{digits}f}" for number in numbers))


def learned_table(runs: Experiment, learned: float) -> None:
    """Print for each rate how many seeds have learned a task: more than `learned` of the answers right."""
    arms = list(runs.arms.items())
    rates = sorted({rate for _, arm in arms for rate in arm["rates"]}, key=float)
    title = f"learned, of {arms[0][1]['seeds']} seeds"
    print(f"{title:20} parameters  rate", *(f"{rate:>6}" for rate in rates))
    for name, arm in arms:
        counts = [
            str(sum(share > learned for share in arm["rates"][rate]["both right"]))
            if rate in arm["rates"]
            else "–"
            for rate in rates
        ]
        print(f"{name:20} {arm['parameters']:10}      ", *(f"{c:>6}" for c in counts))


def print_results(results: Mapping[str, Mapping[str, Tensor]], digits: int = 3) -> None:
    """A line for each series and setting, with the numbers of its seeds."""
    for name, settings in results.items():
        for setting, shares in settings.items():
            label = f"{name}, {setting}:".replace("\n", " ")
            print_numbers(f"{label:37}", shares, digits)


def pruning_table(
    kept: Iterable[int], by_rank: Tensor, by_chance: Tensor, tuned: Mapping[str, Tensor]
) -> list[Tensor]:
    """Print the medians of both orders, and the models that were trained further; return the medians."""
    print("heads kept           ", *(f"{count:5}" for count in kept))
    medians = [shares.quantile(0.5, dim=0) for shares in (by_rank, by_chance)]
    for name, row in zip(("ranked by ablation", "random order"), medians, strict=True):
        print(f"{name:21}", *(f"{share:5.2f}" for share in row))
    for name, shares in tuned.items():
        print_numbers(f"{name + ',':8} trained for 500 more steps:", shares)
    return medians


def row_of(
    model: torch.nn.Module, sentence: Tensor, place: int, padding: int = 0
) -> Tensor:
    """Weights of the query at one position of a sentence, (num_heads, len), without the padding."""
    with capture_attention(model) as captured, torch.no_grad():
        model(sentence)
    return captured["attention"][0, :, place, : int((sentence != padding).sum())]


def roles_table(title: str, roles: Iterable[str], rows: Tensor) -> None:
    """Print a number for each head and role."""
    print(f"{title:17}", *(f"{role:>9}" for role in roles))
    for head, row in enumerate(rows):
        print(f"  head {head}          ", *(f"{number:9.2f}" for number in row))


def of_sentences(sentences: Experiment) -> dict[str, dict[str, Tensor]]:
    """Share of sentences with all four answers right, by steps and kind of model."""
    one = "1 head"
    names = {
        1500: ["4 heads", "2 heads", one, f"{one}, two matrices", f"{one}, MLP"],
        4500: [one, f"{one}, two matrices", f"{one}, MLP"],
        15_000: [one],
    }
    return {
        f"{steps:,} steps": {
            name.replace(", ", ",\n"): sentences.results(
                name if steps == 1500 else f"{name}, {steps} steps", "all four right"
            )
            for name in arms
        }
        for steps, arms in names.items()
    }


def best_linear(found: Mapping[str, Mapping[str, Tensor]], without: str) -> float:
    """The best share of one head and a linear read-out, of what `of_sentences` returns but for some steps."""
    return max(
        float(shares.max())
        for steps, settings in found.items()
        for name, shares in settings.items()
        if steps != without and name.startswith("1 head") and "MLP" not in name
    )


def of_digits(runs: Experiment) -> dict[str, dict[str, Tensor]]:
    """Test accuracy on digits, by number of steps and kind of model."""
    return {
        f"{steps:,} steps": {
            name.replace(", ", ",\n"): runs.results(
                f"{name}, {steps} steps", "test accuracy"
            )
            for name in ("1 head", "4 heads", "4 heads, no positions")
        }
        for steps in (250, 2000)
    }


RATES = ("0.001", "0.003", "0.01")


def arrivals(runs: Experiment, *more: str) -> None:
    """Print for each rate how many seeds answer nearly every sentence; `more` names further arms."""
    print(f"{'more than 0.99 right, of 5 seeds':34} rate", *(f"{r:>6}" for r in RATES))
    first = ("4 heads", "1 head", "1 head, 4500 steps")
    for name in (*first, *more, "1 head, 15000 steps"):
        found = [runs.arms[name]["rates"][rate]["all four right"] for rate in RATES]
        counts = [sum(share > 0.99 for share in shares) for shares in found]
        steps = f", {runs.arms[name]['steps']} steps"
        print(f"{name.removesuffix(steps) + steps:39}", *(f"{c:6}" for c in counts))
