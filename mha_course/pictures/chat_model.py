"""Figures on the heads of a published chat model."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from torch import Tensor

from mha_course.plots import COLORMAP, new_figure


def heads_at_a_glance(scores: Mapping[str, Tensor]) -> Figure:
    """A map for each kind of score, (layers, heads): a row is a layer, the first at the bottom."""
    figure, axes = new_figure(1, len(scores), height=4.6, sharey=True)
    for axis, (name, score) in zip(axes, scores.items(), strict=True):
        image = axis.imshow(
            score.numpy(), cmap=COLORMAP, vmin=0, vmax=1, origin="lower", aspect="auto"
        )
        axis.set_title(name.replace(" ", "\n"))
        axis.set(xlabel="head", xticks=[0, 4, 8], yticks=range(0, len(score), 5))
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="mean weight")
    return figure
