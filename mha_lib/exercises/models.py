"""Checkers for the appendix on models you know: each is an `Exercise`, data for the engine to judge by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_lib.exercises.engine import Exercise, Wrong, randn

# ------------------------------------------------------------------ exercise 1


def _count(
    tables: int = 1,
    positions: int = 1,
    bias: int = 1,
    norms: int = 2,
    last_norm: int = 1,
    per_norm: int = 2,
) -> Callable[[int, int, int, int, int], int]:
    """The parameters of a GPT-2, right with the defaults."""

    def count(
        vocab_size: int, max_len: int, width: int, hidden: int, layers: int
    ) -> int:
        attention = 4 * (width * width + bias * width)
        feed_forward = 2 * width * hidden + bias * (hidden + width)
        block = attention + feed_forward + norms * per_norm * width
        embeddings = (tables * vocab_size + positions * max_len) * width
        return embeddings + layers * block + last_norm * per_norm * width

    return count


check_gpt2_parameters = Exercise(
    reference=_count(),
    returns="parameters",
    cases={
        "one layer": lambda _: (11, 5, 6, 13, 1),
        "three layers": lambda _: (17, 7, 10, 23, 3),
        "the smallest GPT-2": lambda _: (50257, 1024, 768, 3072, 12),
    },
    wrong=(
        Wrong(
            "the output has a matrix of its own",
            "GPT-2's output is the embedding again, so this matrix counts once.",
            _count(tables=2),
        ),
        Wrong(
            "the positions are not counted",
            "GPT-2 learns a vector for each of its positions.",
            _count(positions=0),
        ),
        Wrong(
            "the biases of the linear layers are not counted",
            "Every matrix of a block has a bias: one number for each entry of its output.",
            _count(bias=0),
        ),
        Wrong(
            "a block has only one norm",
            "There is one before the attention and one before the feed-forward layer.",
            _count(norms=1),
        ),
        Wrong(
            "the last norm is missing",
            "In a pre-norm model one more norm follows the last block.",
            _count(last_norm=0),
        ),
        Wrong(
            "a norm has one vector",
            "A layer norm has two: a factor and a bias for each entry. (An RMS norm has one.)",
            _count(per_norm=1),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 2

check_gated_width = Exercise(
    reference=lambda width: 8 * width // 3,
    returns="hidden width",
    cases={"a width of 6": lambda _: (6,), "a width of 96": lambda _: (96,)},
    wrong=(
        Wrong(
            "the hidden width is that of the other layer",
            "SwiGLU has a third matrix: with the same hidden width it is half as large again.",
            lambda width: 4 * width,
        ),
        Wrong(
            "the hidden width is halved",
            "That would be right with four matrices. SwiGLU has three.",
            lambda width: 2 * width,
        ),
        Wrong(
            "the number of parameters is returned",
            "8d² is the size of the whole layer. Divide by the size of its three matrices for each unit.",
            lambda width: 8 * width**2,
        ),
    ),
)

# ------------------------------------------------------------------ exercise 3


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), targets)


def _half(twice: Tensor) -> int:
    return twice.shape[1] // 2


def _case(
    batch: int, length: int, vocab_size: int
) -> Callable[[Generator], tuple[Tensor, Tensor]]:
    def make(generator: Generator) -> tuple[Tensor, Tensor]:
        block = torch.randint(vocab_size, (batch, length), generator=generator)
        return randn(generator, batch, 2 * length - 1, vocab_size), block.repeat(1, 2)

    return make


check_loss_again = Exercise(
    reference=lambda logits, twice: _loss(
        logits[:, _half(twice) :], twice[:, _half(twice) + 1 :]
    ),
    returns="loss ()",
    cases={"one row": _case(1, 5, 7), "three rows": _case(3, 11, 13)},
    wrong=(
        Wrong(
            "the first saying counts too",
            "Nobody can know it. Begin where the second saying begins.",
            lambda logits, twice: _loss(logits, twice[:, 1:]),
        ),
        Wrong(
            "the loss is that of the first saying",
            "Take the second half: from the place of the block's length on.",
            lambda logits, twice: _loss(
                logits[:, : _half(twice) - 1], twice[:, 1 : _half(twice)]
            ),
        ),
        Wrong(
            "each place is compared with its own token",
            "The logits of a place predict the token after it: shift the targets by one.",
            lambda logits, twice: _loss(
                logits[:, _half(twice) :], twice[:, _half(twice) : -1]
            ),
        ),
        Wrong(
            "the prediction of the first token that is said again counts",
            "Before a token has been said again, the repetition cannot be known. Begin one place later.",
            lambda logits, twice: _loss(
                logits[:, _half(twice) - 1 :], twice[:, _half(twice) :]
            ),
        ),
    ),
)
