"""The ALiBi explorer: a slope for each head, and how far back each head still finds a needle."""

from __future__ import annotations

from typing import ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Choice, Number, Whole
from mha_lib.relative import alibi_slopes

MAX_LENGTH = 512


class AlibiExplorer(Explorer):
    """A needle in a long text: one key that matches the query, and the heads that find it under ALiBi's bias.

    The query is the last token. Before the bias, the score of the needle is `needle_score`, and the score of
    every other key is 0. The bias of a head subtracts its slope for each token between query and key, so each
    head has a reach, `needle_score / slope`, beyond which the query's own token has a higher score.

    Args:
        num_heads: number of heads, 1 to 16.
        length: number of tokens, 2 to 512.
        needle: distance of the needle before the query in tokens, 1 to `length - 1`; default 4, or as
            far as a shorter text allows.
        needle_score: score of the needle before the bias, 0.5 to 12.
        head: index of the highlighted head.
        shown: "bias", the needle's score with its bias, or "weights", its weight after the softmax; both
            at every distance.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> explorer = AlibiExplorer(num_heads=4, needle=100)
        >>> explorer
        AlibiExplorer(num_heads=4, length=512, needle=100, needle_score=8, head=0)
        >>> explorer.numbers()["reaches"].tolist()
        [32.0, 128.0, 512.0, 2048.0]
        >>> explorer.numbers()["score_after"].tolist()
        [-17.0, 1.75, 6.4375, 7.609375]
    """

    _module: ClassVar[str] = "alibi_explorer.js"

    num_heads = Whole(8, 1, 16)
    length = Whole(MAX_LENGTH, 2, MAX_LENGTH)
    needle = Whole(None, 1, "length - 1")
    needle_score = Number(8.0, 0.5, 12.0)
    head = Whole(0, 0, "num_heads - 1")
    shown = Choice("bias", ["bias", "weights"]).tag(in_repr=False)

    @t.default("needle")
    def _default_needle(self) -> int:
        return int(min(4, self.length - 1))

    @staticmethod
    def _compute(
        num_heads: int, length: int, needle: int, needle_score: float, shown: str
    ) -> dict[str, Tensor | None]:
        # In float64, because float32 rounds a penalty of hundreds in its fifth decimal.
        slopes = alibi_slopes(num_heads).double()
        # For the last query: -slope * distance, (num_heads, length).
        bias = -slopes[:, None] * torch.arange(length)
        # In row i the needle is i + 1 tokens back: (num_heads, length - 1, length).
        content = needle_score * torch.eye(length, dtype=torch.float64)[1:]
        scores = content + bias[:, None]
        weights = scores.softmax(-1)
        # Of each row, the entry of the needle: (num_heads, length - 1).
        score_at = scores[..., 1:].diagonal(dim1=1, dim2=2)
        weight_at = weights[..., 1:].diagonal(dim1=1, dim2=2)
        return {
            "score_after": score_at[:, needle - 1],
            "weight_before": content[0].softmax(-1)[1],
            "weight_after": weight_at[:, needle - 1],
            "by_distance": score_at if shown == "bias" else weight_at,
            "slopes": slopes,
            # At this distance the bias has used up the score.
            "reaches": needle_score / slopes,
        }
