"""Checkers for chapter 8, inside a Transformer: each is an `Exercise`, data for the engine to judge by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from mha_lib import EncoderDecoder
from mha_lib.dates import DATE_LETTERS, encode_source
from mha_lib.exercises.engine import Exercise, Wrong

# ------------------------------------------------------------------ exercise 1

check_one_head_left = Exercise(
    reference=lambda num_heads: torch.eye(num_heads),
    returns="gates (num_heads, num_heads)",
    cases={"three heads": lambda _: (3,), "eight heads": lambda _: (8,)},
    wrong=(
        Wrong(
            "each row switches one head off",
            "The exercise keeps one head and switches off all others: one gate of a row is 1.",
            lambda num_heads: 1 - torch.eye(num_heads),
        ),
        Wrong(
            "all heads stay on",
            "A gate of 1 leaves a head as it is. Begin with `torch.zeros`.",
            lambda num_heads: torch.ones(num_heads, num_heads),
        ),
        Wrong(
            "the rows keep more and more heads",
            "Each row keeps one head: set the gates of the earlier ones back to 0.",
            lambda num_heads: torch.ones(num_heads, num_heads).tril(),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 2


def _mixing(
    lens_follow: bool = True, late: int = 0, back: bool = False, place: int = -1
) -> Callable[[EncoderDecoder, Sequence[Tensor], Sequence[Tensor], int, int], Tensor]:
    """A greedy decoder that changes the memory, right with the defaults."""

    def mixed(
        model: EncoderDecoder,
        memories: Sequence[Tensor],
        lens: Sequence[Tensor],
        switch: int,
        steps: int,
    ) -> Tensor:
        tokens = torch.zeros(1, 1, dtype=torch.int64)
        for step in range(steps):
            first = step < switch + late
            one = int(first == back)
            source_lens = lens[one if lens_follow else 0]
            with torch.no_grad():
                logits = model.decode(tokens, memories[one], source_lens=source_lens)
            following = logits[:, place].argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, following), dim=1)
        return tokens[0, 1:]

    return mixed


def _two_memories(
    lens: tuple[int, int], switch: int, steps: int
) -> Callable[[Generator], tuple[object, ...]]:
    """A small model with random weights, large enough that memories matter, and two memories."""

    def make(generator: Generator) -> tuple[object, ...]:
        model = EncoderDecoder(7, 11, 6, 2, 13, 1, max_len=23).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
        longest = max(lens)
        memories = [3 * torch.randn(1, longest, 6, generator=generator) for _ in lens]
        return model, memories, [torch.tensor([n]) for n in lens], switch, steps

    return make


check_mixed_memory = Exercise(
    reference=_mixing(),
    returns="tokens (steps,)",
    cases={
        "a change after 2 of 5 steps": _two_memories((5, 3), 2, 5),
        "a change after 7 of 17 steps": _two_memories((3, 13), 7, 17),
        "a change after 3 of 19 steps": _two_memories((11, 2), 3, 19),
    },
    wrong=(
        Wrong(
            "the second memory is read with the lengths of the first",
            "Each memory has its own length: change both.",
            _mixing(lens_follow=False),
        ),
        Wrong(
            "the memory changes a step too late",
            "Steps count from 0: the first `switch` of them are 0 to `switch - 1`.",
            _mixing(late=1),
        ),
        Wrong(
            "the two memories are exchanged",
            "The answer begins with the first memory.",
            _mixing(back=True),
        ),
        Wrong(
            "the first place is read instead of the last",
            "The logits of the last place predict the next character.",
            _mixing(place=0),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 3


def _row(text: str, spaces: int, first: int = 1, filler: int = 0) -> Tensor:
    wide = text.replace(" ", " " * spaces)[:40].rstrip()
    tokens = [DATE_LETTERS.index(letter) + first for letter in wide]
    return torch.tensor(tokens + [filler] * (40 - len(tokens)))


check_wide_tokens = Exercise(
    reference=_row,
    returns="tokens (40,)",
    cases={
        "one space": lambda _: ("3 march 2021", 1),
        "five spaces": lambda _: ("17 may 1954", 5),
        "a text that is cut": lambda _: ("23 february 1997", 19),
    },
    wrong=(
        Wrong(
            "the spaces are collapsed again",
            "`encode_source` writes several spaces as one. Build the row yourself.",
            lambda text, spaces: encode_source([text.replace(" ", " " * spaces)])[0],
        ),
        Wrong(
            "letters are counted from 0",
            "The token 0 is the padding; the first letter has the token 1.",
            lambda text, spaces: _row(text, spaces, first=0),
        ),
        Wrong(
            "the row is filled with spaces",
            "A space is a letter that the model reads. The padding has the token 0.",
            lambda text, spaces: _row(text, spaces, filler=DATE_LETTERS.index(" ") + 1),
        ),
        Wrong(
            "there is one space too many",
            "`spaces` is the whole number of spaces between two words, not how many are added.",
            lambda text, spaces: _row(text, spaces + 1),
        ),
    ),
)
