"""Checkers for the appendix on models you know: each is an `Exercise`, data for the engine to judge by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course._exercise import randn
from mha_course._sizes import Texts

exercise = Texts(__name__)


def _count(vocab_size: int, max_len: int, width: int, hidden: int, layers: int) -> int:
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * hidden + hidden + width
    block = attention + feed_forward + 2 * 2 * width
    return (vocab_size + max_len) * width + layers * block + 2 * width


check_gpt2_parameters = exercise(
    "check_gpt2_parameters", reference=_count, returns="parameters"
)


def _loss_again(logits: Tensor, twice: Tensor) -> Tensor:
    half = twice.shape[1] // 2
    return F.cross_entropy(logits[:, half:].transpose(1, 2), twice[:, half + 1 :])


def _case(g: Generator, rows: int, length: int, size: int) -> tuple[Tensor, Tensor]:
    block = torch.randint(size, (rows, length), generator=g)
    return randn(g, rows, 2 * length - 1, size), block.repeat(1, 2)


check_loss_again = exercise(
    "check_loss_again", reference=_loss_again, returns="loss ()"
)


def _mixture(x: Tensor, scores: Tensor, experts: Sequence[Any], top_k: int) -> Tensor:
    shares, chosen = scores.softmax(-1).topk(top_k)
    shares = shares / shares.sum(-1, keepdim=True)
    output = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        rows, ranks = (chosen == number).nonzero(as_tuple=True)
        output[rows] += shares[rows, ranks, None] * expert(x[rows])
    return output


def _experts(g: Generator, tokens: int, width: int, experts: int) -> tuple[Any, ...]:
    """Tokens, the scores of experts, and experts that multiply by a matrix."""
    x, scores = randn(g, tokens, width), randn(g, tokens, experts)
    weights = [randn(g, width, width) for _ in range(experts)]
    return x, scores, [partial(F.linear, weight=weight) for weight in weights]


check_mixture = exercise(
    "check_mixture", reference=_mixture, returns="output (tokens, width)"
)


def _longest_copy(sample: str, text: str) -> int:
    cuts = range(len(sample) + 1)
    return max(j - i for i in cuts for j in cuts if sample[i:j] in text)


check_longest_copy = exercise(
    "check_longest_copy", reference=_longest_copy, returns="characters"
)
