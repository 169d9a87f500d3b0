"""Judge rotary positions, and decoding with a cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_check._aspects import texts, with_arguments
from attention_check._contract import first_result
from attention_check._formula import Decoder, rotate_pairs
from attention_check._judging import Exercise
from attention_check._report import NOT_TRIED, Finding, finding_of
from attention_check._results import Outcome
from attention_check._verdicts import Answer, Verdict, check_callable
from mha_lib import _checks


def check_rotary(
    rotate: Callable[..., Any], *, base: float = 10_000.0, interleaved: bool = True
) -> Verdict:
    """Check a function that rotates queries or keys by their positions (Su et al., 2021), and name its fault.

    The function `rotate` takes x (batch, num_heads, len, head_dim) and integer positions (len,); it returns
    x, rotated by the angles position * base^(-2i / head_dim). If `interleaved`, columns 2i and 2i + 1 are a
    pair; otherwise the columns of a pair are half of the width apart.

    Raises:
        TypeError: `rotate` is not callable, `base` is not a number, or `interleaved` not a bool.
        ValueError: `base` is not positive.

    Example:
        >>> from mha_lib import RotaryPositionalEncoding
        >>> assert check_rotary(RotaryPositionalEncoding(14))
        >>> check_rotary(lambda x, positions: RotaryPositionalEncoding(14)(x, positions + 1))
        Not yet: the positions are counted from 1. The first position is 0, and its vectors are not rotated.
    """
    check_callable("rotate", rotate)
    return rotary_exercise(base=base, interleaved=interleaved)(rotate)


def rotary_exercise(*, base: float = 10_000.0, interleaved: bool = True) -> Exercise:
    """The exercise of `check_rotary`."""
    _checks.check_positive("base", base)
    _checks.check_flags(interleaved=interleaved)
    returns = "rotated (batch, num_heads, len, head_dim)"
    # In float32, an angle of 1,000 is precise to three decimal places.
    near: Any = {"atol": 1e-3, "rtol": 1e-3}
    exercise = texts("rotary", reference=rotate_pairs, returns=returns, **near)
    return with_arguments(exercise, {"base": base, "interleaved": interleaved})


def check_decoding(
    start: Callable[[], Callable[..., Any]],
    *,
    rotary: bool = False,
    base: float = 10_000.0,
    interleaved: bool = True,
) -> Verdict:
    """Check causal attention that decodes with a cache, token by token and in chunks, and name its fault.

    The function `start` has no arguments and begins a sequence, with an empty cache. It returns a function of
    query, key and value of the new tokens, each (batch, num_heads, new, head_dim), that returns their output.
    With `rotary`, this function must rotate queries and keys by their positions.
    Arguments and errors are those of `check_rotary`, which explains `base` and `interleaved`.

    Example:
        >>> def start():  # a decoder that keeps nothing
        ...     return lambda query, key, value: dot_product_attention(query, key, value, is_causal=True)
        >>> from mha_lib import dot_product_attention
        >>> check_decoding(start)
        Not yet: only the newest keys are seen. Join the new keys and values with those of the calls before.
    """
    check_callable("start", start)
    told: Any = {"rotary": rotary, "base": base, "interleaved": interleaved}
    return decoding_exercise(**told)(start)


def decoding_exercise(
    *, rotary: bool = False, base: float = 10_000.0, interleaved: bool = True
) -> Exercise:
    """The exercise of `check_decoding`."""
    _checks.check_flags(rotary=rotary, interleaved=interleaved)
    _checks.check_positive("base", base)
    rotated = (
        partial(rotate_pairs, base=base, interleaved=interleaved) if rotary else None
    )

    def run(
        answer: Answer, query: Tensor, key: Tensor, value: Tensor, *sizes: int
    ) -> Tensor:
        step = answer()
        chunks = zip(*(x.split(sizes, 2) for x in (query, key, value)), strict=True)
        return torch.cat(
            [torch.as_tensor(first_result(step(*chunk))) for chunk in chunks], 2
        )

    exercise = texts(
        "decoding",
        reference=Decoder,
        also=texts.mistakes("rotary decoding", Decoder) if rotary else (),
        returns="output (batch, num_heads, len, head_dim)",
        run=run,
        atol=1e-4,
        rtol=1e-3,
    )
    return with_arguments(exercise, {"rotated": rotated})


def finding_in(exercise: Exercise, answer: Answer) -> Finding:
    """The finding in one of these exercises; a function that always raises was not tried."""
    called = [
        exercise._call(answer, exercise._arguments(case)) for case in exercise.cases
    ]
    raised = [one.trouble for one in called if isinstance(one, Outcome) and one.error]
    if len(raised) == len(called):
        return Finding(NOT_TRIED, raised[0])
    return finding_of(exercise(answer))
