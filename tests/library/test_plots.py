"""Figures draw what they are given, in the colours of the course, and are shown once."""

import math
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb

import mha_course
from mha_course import plots
from mha_course.still_learning import Measured


@pytest.fixture(autouse=True)
def strict():
    """A warning of matplotlib would become a block on the page."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert plt.get_fignums() == [], "pyplot must not hold a figure, or Jupyter shows it twice"


def lab(color):
    """CIELAB coordinates, in which distances are as large as they look; below 10, colours look alike."""
    linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)])
    white = np.array([0.95047, 1.0, 1.08883])
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.maximum(to_xyz @ linear / white, 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_no_head_has_the_colour_of_a_role_or_of_another_head():
    assert len(plots.HEADS) == 8
    for i, head in enumerate(plots.HEADS):
        for other in (plots.QUERY, plots.KEY, plots.VALUE, *plots.HEADS[:i]):
            assert np.linalg.norm(lab(head) - lab(other)) > 25, (head, other)


def test_widgets_and_figures_share_their_colours():
    style = (Path(mha_course.__file__).parent / "widgets" / "shared" / "frame.css").read_text(
        encoding="utf-8"
    )
    for i, head in enumerate(plots.HEADS):
        assert f"--mha-head-{i}: {head};" in style


def draw(figure):
    figure.canvas.draw()  # this computes the layout and raises its warnings


def maps_of(figure):
    return [axis for axis in figure.axes if axis.images]


def luminance(color):
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def test_colors_can_be_told_apart_and_read_on_white():
    assert len({plots.QUERY, plots.KEY, plots.VALUE}) == 3
    assert len(set(plots.HEADS)) == len(plots.HEADS) == 8
    for color in (plots.QUERY, plots.KEY, plots.VALUE):  # text in large letters: at least 3 to 1
        assert 1.05 / (luminance(color) + 0.05) >= 3
    assert [plots.head_color(h) for h in range(16)] == list(plots.HEADS) * 2


def test_new_figure_has_the_asked_size():
    figure, axes = plots.new_figure(2, 3, width=5, height=4, sharey=True)
    assert axes.shape == (2, 3)
    assert figure.get_size_inches().tolist() == [5, 4]
    figure, axis = plots.new_figure()
    axis.plot([0, 1])
    draw(figure)


def test_style_stays_inside_the_figure():
    before = dict(plt.rcParams)
    plots.new_figure()
    plots.plot_weights(torch.eye(3))
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 11])
def test_each_map_shows_its_weights(heads):
    weights = torch.rand(heads, 5, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    figure = plots.plot_weights(weights)
    draw(figure)
    maps = maps_of(figure)
    assert len(maps) == heads
    for h, axis in enumerate(maps):
        (image,) = axis.images
        np.testing.assert_allclose(image.get_array(), weights[h].detach(), rtol=1e-6)
        assert image.get_array().shape == (5, 7)  # queries are rows, keys columns
        assert axis.get_title() == f"head {h}"
        assert image.get_clim() == (0, weights.max().item())
    bars = [axis for axis in figure.axes if axis.get_ylabel() == "weight"]
    assert len(bars) == 1
    assert maps[0].get_ylabel() == "queries"
    assert maps[-1].get_xlabel() == "keys"
    assert to_hex(maps[0].yaxis.label.get_color()) == plots.QUERY
    assert to_hex(maps[-1].xaxis.label.get_color()) == plots.KEY
    if heads > 1:
        colors = [plots.HEADS[h % len(plots.HEADS)] for h in range(heads)]
        assert [to_hex(axis.title.get_color()) for axis in maps] == colors


def test_labels_are_at_their_rows_and_columns():
    queries, keys = ["a", "b", "c"], ["one", "two", "three", "four", "five"]
    figure = plots.plot_weights(torch.rand(3, 5), query_labels=queries, key_labels=keys, titles=["one map"])
    draw(figure)
    (axis,) = maps_of(figure)
    assert [text.get_text() for text in axis.get_yticklabels()] == queries
    assert [text.get_text() for text in axis.get_xticklabels()] == keys
    assert (axis.get_yticks().tolist(), axis.get_xticks().tolist()) == ([0, 1, 2], [0, 1, 2, 3, 4])
    assert axis.get_title() == "one map"


def test_small_maps_carry_their_numbers():
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    (axis,) = maps_of(plots.plot_weights(weights))
    assert {text.get_position(): text.get_text() for text in axis.texts} == {
        (0, 0): "0.25", (1, 0): "0.75", (0, 1): "1.00", (1, 1): "0.00"
    }  # fmt: skip
    assert {text.get_text(): text.get_color() for text in axis.texts}["0.00"] == "white"
    assert {text.get_text(): text.get_color() for text in axis.texts}["1.00"] == "black"
    assert not maps_of(plots.plot_weights(torch.rand(7, 7)))[0].texts
    assert len(maps_of(plots.plot_weights(torch.rand(7, 7), values=True))[0].texts) == 49
    assert not maps_of(plots.plot_weights(weights, values=False))[0].texts


def test_scores_can_be_shown_too():
    scores = torch.tensor([[-3.0, 1.0], [2.0, 0.0]])
    figure = plots.plot_weights(scores)
    (axis,) = maps_of(figure)
    assert axis.images[0].get_clim() == (-3, 3), "the map of signed numbers is centred at 0"
    assert axis.images[0].get_cmap().name == "RdBu_r"
    inks = {text.get_text(): text.get_color() for text in axis.texts}
    assert inks == {"-3.00": "white", "1.00": "black", "2.00": "black", "0.00": "black"}
    assert maps_of(plots.plot_weights(scores.abs()))[0].images[0].get_cmap().name == "viridis"
    assert [axis.get_ylabel() for axis in figure.axes][-1] == "score"


def test_nan_and_infinities_can_be_shown():
    """A figure of the course shows what a softmax over only hidden keys gives in other libraries."""
    figure = plots.plot_weights(torch.tensor([[0.25, 0.75], [math.nan, math.nan]]))
    draw(figure)
    (axis,) = maps_of(figure)
    assert axis.images[0].get_clim() == (0, 0.75)
    # A NaN has no colour: on the white page its text must be black.
    assert [text.get_color() for text in axis.texts if text.get_text() == "nan"] == ["black", "black"]
    figure = plots.plot_weights(torch.tensor([[-math.inf, 1.0], [0.0, -math.inf]]))
    draw(figure)
    assert maps_of(figure)[0].images[0].get_clim() == (0, 1)
    draw(plots.plot_weights(torch.full((2, 2), math.nan)))
    draw(plots.plot_weights(torch.zeros(2, 2)))


def test_curves_are_means_with_a_band():
    steps, runs = (torch.tensor([10, 20, 30]), torch.tensor([[3.0, 2.0, 1.0], [5.0, 3.0, 1.0]]))
    figure = plots.plot_curves(steps, {"two runs": runs, "one": torch.ones(3)}, ylabel="nats")
    draw(figure)
    (axis,) = figure.axes
    mean, one = axis.get_lines()
    assert mean.get_ydata().tolist() == [4.0, 2.5, 1.0]
    assert mean.get_xdata().tolist() == [10, 20, 30]
    assert one.get_ydata().tolist() == [1, 1, 1]
    band = axis.collections[0].get_paths()[0].vertices
    assert {(10, 3), (10, 5), (20, 2), (20, 3)} <= {tuple(corner) for corner in band.tolist()}
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["two runs", "one"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("training step", "nats")


def test_no_curve_is_left_out_where_colors_run_out():
    figure = plots.plot_curves(torch.arange(3), {str(n): torch.rand(3) for n in range(11)})
    assert len(figure.axes[0].get_lines()) == 11


def test_dots_of_models_that_were_still_learning_are_hollow():
    fast, slow = torch.tensor([0.9, 1.0]), Measured.of(torch.tensor([0.2, 0.4]), {"slow": 200})
    figure = plots.plot_seeds({"a": {"fast": fast, "slow": slow}}, xlabel="heads")
    draw(figure)
    axis = figure.axes[0]
    drawn = [line for line in axis.get_lines() if len(line.get_ydata())]
    fills = {float(line.get_ydata()[0]): line.get_fillstyle() for line in drawn}
    assert {round(first, 1): fill for first, fill in fills.items()} == {0.9: "full", 0.2: "none"}
    words = [text.get_text() for text in axis.get_legend().get_texts()]
    assert words == ["a", "hollow: still learning"]
    (hollow,) = (line for line in axis.get_legend().get_lines() if line.get_fillstyle() == "none")
    assert hollow.get_color() == "grey"


def test_seeds_are_single_dots():
    linear = {"1": torch.tensor([0.1, 0.3]), "2": torch.tensor([0.9])}
    results = {"linear": linear, "MLP": {"1": torch.tensor([1.0])}}
    figure = plots.plot_seeds(results, xlabel="heads", chance=0.125)
    draw(figure)
    (axis,) = figure.axes
    *dots, chance = axis.get_lines()
    assert sorted(float(y) for line in dots for y in line.get_ydata()) == pytest.approx([0.1, 0.3, 0.9, 1.0])
    for line, near in zip(dots, (0, 1, 0), strict=True):  # each near the tick of its setting
        assert all(abs(x - near) < 0.3 for x in line.get_xdata())
        assert line.get_linestyle() == "None"
    assert set(chance.get_ydata()) == {0.125}
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "2"]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["linear", "MLP", "guessing"]
    assert axis.get_xlabel() == "heads"
