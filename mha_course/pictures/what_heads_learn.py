"""Figures on what heads learn: ablation, importance, pruning, sentences and digits."""

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


def ablation(
    ablated: Mapping[str, Tensor], sixteen: Tensor, subsets: Sequence[Sequence[int]]
) -> Figure:
    """Accuracy by subset of heads that are off: two heads, five seeds; four heads, one seed."""
    figure, (left, right) = new_figure(
        1, 2, height=3.2, gridspec_kw={"width_ratios": [3, 1]}
    )
    for j, (task, marker) in enumerate((("previous", "o"), ("mirrored", "s"))):
        for i, rows in enumerate(ablated.values()):
            spread = torch.linspace(-0.07, 0.07, 5) + 0.26 * (j - 0.5)
            label = task if i == 0 else None
            left.plot(
                i + spread,
                rows[:, j],
                marker,
                color=HEADS[j],
                markersize=4.5,
                alpha=0.8,
                label=label,
            )
    left.axhline(1 / 8, color="black", linestyle="--", linewidth=1, label="guessing")
    left.set_xticks(range(4), ablated)
    left.set(xlabel="heads switched off (of two)", ylabel="answers right")
    left.legend(loc="center left", frameon=False)
    image = right.imshow(sixteen.numpy(), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    names = [", ".join(map(str, off)) or "none" for off in subsets]
    right.set_yticks(range(16), names)
    right.set_xticks([0, 1], ["previous", "mirrored"], rotation=90)
    right.set_ylabel("heads switched off (of four)")
    right.tick_params(length=0)
    figure.colorbar(image, ax=right, label="answers right")
    return figure


def importance(ablation: Tensor, gradient: Tensor, confidence: Tensor) -> Figure:
    """Two cheap measures plotted against the rise in loss, all (seeds, heads)."""
    figure, (left, right) = new_figure(1, 2, height=2.9)
    for axis, measure, name in (
        (left, gradient, "gradient importance"),
        (right, confidence, "confidence"),
    ):
        for seed in range(5):
            style = {
                "color": HEADS[seed],
                "markersize": 4.5,
                "alpha": 0.8,
                "label": f"seed {seed}",
            }
            axis.plot(
                ablation[seed].clamp(min=1e-5), measure[seed], "os^Dv"[seed], **style
            )
        axis.set_xscale("log")
        axis.set(ylabel=name)
    left.set_yscale("log")
    right.legend(loc="lower right", handletextpad=0.1, frameon=False)
    figure.supxlabel("ablation: rise of the loss", fontsize=9.5)
    return figure


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


def four_pointers(
    results: Mapping[str, Mapping[str, Tensor]], guessing: float
) -> Figure:
    """Accuracy at four pointers by number of heads, for two read-outs."""
    return plot_seeds(
        {
            name: {
                n.replace(", ", ",\n").replace(" steps", "\nsteps"): shares
                for n, shares in settings.items()
            }
            for name, settings in results.items()
        },
        xlabel="2,000 steps unless stated otherwise",
        ylabel="all four answers right",
        chance=guessing,
    )


def narrow_heads(
    results: Mapping[str, Mapping[str, Tensor]], guessing: float, floor: float
) -> Figure:
    """Accuracy of heads of width 1 by training steps, beside guessing and one mixture."""
    figure = plot_seeds(
        {name: dict(settings) for name, settings in results.items()},
        xlabel="training steps, 32 heads of width 1",
        ylabel="both answers right",
        chance=guessing,
    )
    figure.axes[0].axhline(
        floor,
        color="black",
        linestyle=":",
        linewidth=1,
        label="both answers are the same",
    )
    figure.axes[0].legend(loc="center left", bbox_to_anchor=(0.02, 0.62))
    return figure


def print_numbers(label: str, numbers: Iterable[float], digits: int = 2) -> None:
    """A label and numbers, such as one for each seed."""
    print(label, *(f"{number:.{digits}f}" for number in numbers))


def print_results(results: Mapping[str, Mapping[str, Tensor]], digits: int = 3) -> None:
    """A line for each series and setting, with the numbers of its seeds."""
    for name, settings in results.items():
        for setting, shares in settings.items():
            label = f"{name}, {setting}:".replace("\n", " ")
            print_numbers(f"{label:37}", shares, digits)


def pointer_table(pointers: Experiment, rows: Iterable[str]) -> None:
    """Parameters, steps and results of settings of the two pointers."""
    print(f"{'setting':26} parameters  steps  both right, five seeds")
    for row in rows:
        arm, shares = pointers.arms[row], pointers.results(row, "both right")
        numbers = "  ".join(f"{share:.3f}" for share in shares)
        print(f"{row:26} {arm['parameters']:10} {arm['steps']:6}  {numbers}")


def weights_table(looked: Mapping[str, Tensor]) -> None:
    """Weights on the previous and the mirrored token: one head, linear and with an MLP, then two heads."""
    for name in ("linear", "MLP"):
        for i, task in enumerate(("previous", "mirrored")):
            label = f"one head, {name:6}: weight on {task}"
            print_numbers(label, looked[name][:, i, 0])
    for seed, (previous, mirrored) in enumerate(looked["two"]):
        first = int(previous.argmax())
        weights = f"{previous[first]:.2f}, head {1 - first} mirrored {mirrored[1 - first]:.2f}"
        print(f"two heads, seed {seed}: head {first} weighs previous {weights}")


def losses_table(alone: Mapping[int, Tensor], excess: Sequence[Tensor]) -> None:
    """The accuracy lost without each head, by number of heads and seed; for four heads, also for pairs."""
    for num_heads, losses in alone.items():
        for seed, row in enumerate(losses):
            numbers = " ".join(f"{loss:.2f}" for loss in row)
            pairs = f"; pairs: +{excess[seed]:.2f} at most" if num_heads == 4 else ""
            print(
                f"{num_heads} heads, seed {seed}, lost without each: {numbers}{pairs}"
            )


def print_ranks(ablation: Tensor, measures: Mapping[str, Tensor]) -> float:
    """Print the rank correlation of each measure with ablation, (seeds, heads); return the lowest."""
    lowest = 1.0
    for name, measure in measures.items():
        pairs = torch.stack((ablation, measure), dim=1)  # (seeds, 2, heads), no ties
        ranks = pairs.argsort(-1).argsort(-1).float()
        found = [float(torch.corrcoef(pair)[0, 1]) for pair in ranks]
        print_numbers(f"rank correlation of {name:10} with ablation, by seed:", found)
        lowest = min(lowest, *found)
    return lowest


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


def of_four_pointers(staircase: Experiment) -> dict[str, dict[str, Tensor]]:
    """Share of positions with all four answers right, by read-out and number of heads."""
    counts = ["1 head", "2 heads", "4 heads"]
    arms = {"linear": [*counts, "2 heads, 8000 steps"]}
    arms["MLP"] = [*counts, "1 head, 8000 steps"]
    return {
        f"{arm} read-out": {
            name: staircase.results(f"{arm}, {name}", "all four right")
            for name in names
        }
        for arm, names in arms.items()
    }


def of_narrow_heads(
    pointers: Experiment, narrow: Experiment
) -> dict[str, dict[str, Tensor]]:
    """Share of positions with both answers right for 32 heads of width 1, by steps."""
    found = {
        f"{arm} read-out": {
            "200": pointers.results(f"{arm}, 32 heads, 200 steps", "both right"),
            "2,000": pointers.results(f"{arm}, 32 heads", "both right"),
        }
        for arm in ("linear", "MLP")
    }
    longest = narrow.results("linear, 32 heads, 6000 steps", "both right")
    found["linear read-out"]["6,000"] = longest
    return found


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
