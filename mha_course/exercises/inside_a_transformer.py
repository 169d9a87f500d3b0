"""Checkers for trained Transformers: each is an `Exercise`, data for the engine to judge by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from mha_course._sizes import Texts
from mha_course.data import dates
from mha_lib import EncoderDecoder

exercise = Texts(__name__)

# ------------------------------------------------------------------ chapter 8, exercise 1

check_one_head_left = exercise(
    "check_one_head_left",
    reference=lambda num_heads: torch.eye(num_heads),
    returns="gates (num_heads, num_heads)",
)

# ------------------------------------------------------------------ training and controls, exercise 1


def _mixed(
    model: EncoderDecoder,
    memories: Sequence[Tensor],
    lens: Sequence[Tensor],
    switch: int,
    steps: int,
) -> Tensor:
    so_far = torch.tensor([[dates.START]])
    for step in range(steps):
        one = 0 if step < switch else 1
        logits = model.decode(so_far, memories[one], source_lens=lens[one])
        so_far = torch.cat((so_far, logits[:, -1:].argmax(-1)), dim=1)
    return so_far[0, 1:]


def _two_memories(
    lens: tuple[int, int], switch: int, steps: int
) -> Callable[[Generator], tuple[object, ...]]:
    """A small model with random weights, large enough that memories matter, and two memories."""

    def make(generator: Generator) -> tuple[object, ...]:
        model = EncoderDecoder(7, 11, 6, 2, 13, 1, max_len=23).eval()
        for parameter in model.requires_grad_(False).parameters():
            parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
        longest = max(lens)
        memories = [3 * torch.randn(1, longest, 6, generator=generator) for _ in lens]
        return model, memories, [torch.tensor([n]) for n in lens], switch, steps

    return make


check_mixed_memory = exercise(
    "check_mixed_memory", reference=_mixed, returns="tokens (steps,)"
)

# ------------------------------------------------------------------ training and controls, exercise 2


def _wide_tokens(text: str, spaces: int) -> Tensor:
    wide = text.replace(" ", " " * spaces)[:40].rstrip()
    tokens = [dates.DATE_LETTERS.index(letter) + 1 for letter in wide]
    return torch.tensor(tokens + [0] * (40 - len(tokens)))


check_wide_tokens = exercise(
    "check_wide_tokens", reference=_wide_tokens, returns="tokens (40,)"
)
