"""What attention is tried with, aspect by aspect: cases, and known faults as edits of the formula.

Each *aspect* of attention, such as its masks, is an `Exercise` of `_judging`. `_aspects.md` contains its
cases and known faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from attention_check._formula import NAMES, Layer, attention_layer, attention_of_heads
from attention_check._judging import Exercise, randn
from attention_check._texts import Texts

# A fault in an aspect that others build on would appear in them again, and not be recognized there.
BUILDS_ON: dict[str, tuple[str, ...]] = {
    "scores": (),
    "masks": ("scores",),
    "empty rows": ("scores", "masks"),
    "NaN in padding": ("scores", "masks"),
    "causal": ("scores",),
    "shared keys": ("scores",),
    "sinks": ("scores",),
    "gradients": ("scores", "masks", "empty rows"),
}
ASPECTS = tuple(BUILDS_ON)
# The sizes of the cases: every axis has a different one.
BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM = 2, 3, 5, 7, 11
texts = Texts(__name__, few=True)


def _inputs(
    g: Generator,
    q_len: int = Q_LEN,
    k_len: int = K_LEN,
    heads: tuple[int, int] = (HEADS, HEADS),
    head_dim: int = HEAD_DIM,
    widths: tuple[int, ...] | None = None,
) -> tuple[Tensor, ...]:
    """Query, key and value of heads or, if widths are given, of a layer."""
    lens = (q_len, k_len, k_len)
    if widths is not None:
        return tuple(randn(g, BATCH, *size) for size in zip(lens, widths, strict=True))
    sizes = zip((heads[0], heads[1], heads[1]), lens, strict=True)
    return tuple(randn(g, BATCH, *size, head_dim) for size in sizes)


def _large(three: tuple[Tensor, ...], factor: float) -> tuple[Tensor, ...]:
    return factor * three[0], *three[1:]


def _spoiled(three: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Put NaN where the padding is."""
    for x in three[1:]:
        for sample, length in enumerate((5, 3)):
            x[sample, ..., length:, :] = torch.nan
    return three


def _random_mask(g: Generator, samples: int, heads: int) -> Tensor:
    """Draw a mask in which every query sees the first key."""
    mask = torch.rand(samples, heads, Q_LEN, K_LEN, generator=g) > 0.5
    mask[..., 0] = True
    return mask


def _padding() -> Tensor:
    """Mask for samples of 5 and 3 keys."""
    lens = torch.tensor([5, 3]).view(-1, 1, 1, 1)
    return (torch.arange(K_LEN) < lens).expand(-1, 1, Q_LEN, -1)


def _blind(g: Generator, queries: int | slice = slice(None)) -> Tensor:
    """Draw a mask in which these queries of the second sample see nothing."""
    mask = _random_mask(g, BATCH, 1)
    mask[1, :, queries] = False
    return mask


def with_arguments(exercise: Exercise, given: Mapping[str, Any]) -> Exercise:
    """The exercise, with these arguments passed to its answers in addition to those of the cases."""
    right, known = partial(exercise.reference, **given), exercise.wrong
    wrong = [replace(one, answer=partial(one.answer, **given)) for one in known]
    return replace(exercise, reference=right, wrong=wrong)


def exercise_of(
    name: str, layer: Layer | None = None, num_heads: int = HEADS
) -> Exercise:
    """The exercise of one aspect, for functions or for a layer."""
    more: dict[str, Any] = {"reference": attention_of_heads}
    widths, axes = None, "batch, num_heads, q_len, head_dim"
    if layer is not None:
        widths = tuple(layer[0][proj][0].shape[1] for proj in NAMES[:3])
        more, axes = {"reference": attention_layer}, "batch, q_len, embed_dim"
        if name == "scores":
            more["also"] = texts.mistakes("layer", attention_layer)
    more["names"] = {"_inputs": partial(_inputs, widths=widths), "num_heads": num_heads}
    more |= {"returns": f"output ({axes})", "gradients": name == "gradients"}
    given = dict(zip(("linear", "head_dim"), layer or (), strict=False))
    return with_arguments(texts(name, takes="attention", atol=2e-5, **more), given)
