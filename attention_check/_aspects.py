"""What attention is tried with, aspect by aspect: cases, and known faults as edits of the formula.

Each *aspect* of attention, such as its masks, is an `Exercise` of `_judging`. `_aspects.md` contains its
cases and known faults.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from attention_check._contract import Contract, InexpressibleError
from attention_check._formula import NAMES, Layer, attention_layer, attention_of_heads
from attention_check._judging import Exercise, randn
from attention_check._texts import Texts
from attention_check._verdicts import Answer

# A fault in an aspect that others build on would appear in them again, and not be recognized there.
BUILDS_ON: dict[str, tuple[str, ...]] = {
    "scores": (),
    "masks": ("scores",),
    "empty rows": ("scores", "masks"),
    "NaN in padding": ("scores", "masks"),
    "causal": ("scores",),
    "shared keys": ("scores",),
    "sinks": ("scores",),
    "gradients": ("scores",),
}
ASPECTS = tuple(BUILDS_ON)
# The sizes of the cases: every axis has a different one.
BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM = 2, 3, 5, 7, 11
# Absolute and relative tolerance of a dtype, for outputs of the size of 1.
TOLERANCES = {torch.bfloat16: (3e-2, 5e-2), torch.float16: (5e-3, 2e-2)}
USUAL_TOLERANCE = (2e-5, 1e-4)
texts = Texts(__name__, few=True)


def _inputs(
    g: Generator,
    q_len: int | None = None,
    k_len: int = K_LEN,
    heads: tuple[int, int] = (HEADS, HEADS),
    head_dim: int = HEAD_DIM,
    *,
    widths: tuple[int, ...] | None = None,
    contract: Contract | None = None,
    corners: bool = True,
) -> tuple[Tensor, ...]:
    """Query, key and value of heads or, if widths are given, of a layer.

    Without `corners`, a contract that is always causal gets as many queries as keys: which of its two corners
    is meant otherwise is a question of its own.
    """
    contract = contract or Contract(attention_of_heads)
    square = contract.one_input or (contract.causal == "always" and not corners)
    if q_len is None:
        q_len = k_len if square else Q_LEN
    if square and q_len != k_len:
        raise InexpressibleError("it has as many queries as keys")
    lens = (q_len, k_len, k_len)
    sizes: list[tuple[int, ...]]
    if widths is not None:
        if heads != (HEADS, HEADS) or head_dim != HEAD_DIM:
            raise InexpressibleError("a layer decides on its own heads")
        sizes = [(BATCH, *size) for size in zip(lens, widths, strict=True)]
    else:
        own = zip((heads[0], heads[1], heads[1]), lens, strict=True)
        sizes = [(BATCH, *size, head_dim) for size in own]
    # Numbers that the dtype of the attention can hold.
    drawn = [randn(g, *size).to(contract.dtype).float() for size in sizes]
    if contract.one_input:
        return (drawn[0],) * 3
    return (drawn[0], drawn[1], drawn[1]) if contract.memory else tuple(drawn)


def _large(
    three: tuple[Tensor, ...], factor: float, *, contract: Contract | None = None
) -> tuple[Tensor, ...]:
    if contract is not None and contract.dtype == torch.float16 and factor > 100:
        raise InexpressibleError("float16 ends at 65,504")
    if three[0] is three[1]:
        raise InexpressibleError("its queries are its keys")
    return factor * three[0], *three[1:]


def _spoiled(three: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Put NaN where the padding is."""
    if three[0] is three[1]:
        raise InexpressibleError("its queries are its keys")
    for x in three[1:]:
        for sample, length in enumerate((5, 3)):
            x[sample, ..., length:, :] = torch.nan
    return three


def _strided(three: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same numbers, not contiguous in memory."""
    strided = [x.mT.contiguous().mT for x in three]
    return (strided[0],) * 3 if three[0] is three[1] else tuple(strided)


def random_mask(
    g: Generator, samples: int, heads: int, q_len: int = Q_LEN, k_len: int = K_LEN
) -> Tensor:
    """Draw a mask in which every query sees the first key."""
    mask = torch.rand(samples, heads, q_len, k_len, generator=g) > 0.5
    mask[..., 0] = True
    return mask


def _padding(q_len: int = Q_LEN) -> Tensor:
    """Mask for samples of 5 and 3 keys."""
    lens = torch.tensor([5, 3]).view(-1, 1, 1, 1)
    return (torch.arange(K_LEN) < lens).expand(-1, 1, q_len, -1)


def _blind(
    g: Generator, queries: int | slice = slice(None), q_len: int = Q_LEN
) -> Tensor:
    """Draw a mask in which these queries of the second sample see nothing."""
    mask = random_mask(g, BATCH, 1, q_len)
    mask[1, :, queries] = False
    return mask


def with_arguments(exercise: Exercise, given: Mapping[str, Any]) -> Exercise:
    """The exercise, with these arguments passed to its answers in addition to those of the cases."""
    right, known = partial(exercise.reference, **given), exercise.wrong
    wrong = [replace(one, answer=partial(one.answer, **given)) for one in known]
    return replace(exercise, reference=right, wrong=wrong)


def _always_causal(answer: Answer) -> Answer:
    """The same answer, which hides the future whether it is asked to or not."""

    @functools.wraps(answer)
    def causal(*given: Any, **more: Any) -> Any:
        query, key, value, *options = given
        mask, rest = (options[0] if options else None), options[2:]
        return answer(query, key, value, mask, True, *rest, **more)

    return causal


def exercise_of(
    name: str,
    layer: Layer | None = None,
    num_heads: int = HEADS,
    contract: Contract | None = None,
    only_cases: bool = False,
) -> Exercise:
    """The exercise of one aspect, for functions or for a layer, with the cases that a contract can express.

    With `only_cases` it knows no mistakes, which take longer to make than an attention to try.

    Raises:
        InexpressibleError: there is no such case.
    """
    more: dict[str, Any] = {"reference": attention_of_heads}
    widths, axes = None, "batch, num_heads, q_len, head_dim"
    if layer is not None:
        widths = tuple(layer.linear[proj][0].shape[1] for proj in NAMES[:3])
        if name == "sinks":
            raise InexpressibleError("it takes no `sink`")
        more, axes = {"reference": attention_layer}, "batch, q_len, embed_dim"
        if name == "scores" and not only_cases:
            more["also"] = texts.mistakes("layer", attention_layer)
            if len({*widths}) == 1:  # otherwise, such projections do not fit
                more["also"] += texts.mistakes("layer of one width", attention_layer)
    always = contract is not None and contract.causal == "always"
    names = _makers_of_cases(name, widths, contract, always)
    more["names"] = names | {"num_heads": num_heads}
    more |= {"returns": f"output ({axes})", "gradients": name == "gradients"}
    given: dict[str, Any] = {} if layer is None else layer._asdict()
    given |= {} if contract is None else contract.declared
    more |= {"takes": "attention", "only_cases": only_cases}
    exercise = with_arguments(texts(name, **more), given)
    if always:
        wrong = [
            replace(one, answer=_always_causal(one.answer)) for one in exercise.wrong
        ]
        exercise = replace(
            exercise, reference=_always_causal(exercise.reference), wrong=wrong
        )
    reasons = {case: _inexpressible(exercise, case) for case in exercise.cases}
    kept = {case: make for case, make in exercise.cases.items() if not reasons[case]}
    if not kept:
        raise InexpressibleError(next(iter(reasons.values())))
    exercise = replace(exercise, cases=kept)
    atol, rtol = (
        TOLERANCES.get(contract.dtype, USUAL_TOLERANCE) if contract else USUAL_TOLERANCE
    )
    first = exercise.reference(*exercise._arguments(next(iter(kept))))
    # Large weights make large outputs, and rounding errors of their size.
    size = max(1.0, float(first.nan_to_num().abs().max()))
    return replace(exercise, atol=atol * size, rtol=rtol)


def _makers_of_cases(
    name: str, widths: tuple[int, ...] | None, contract: Contract | None, always: bool
) -> dict[str, Any]:
    """What the texts of the cases call, for what a contract can express; `always` means always causal."""
    one_input = contract is not None and contract.one_input
    q_len = K_LEN if one_input or (always and name != "causal") else Q_LEN
    corners = name == "causal"
    return {
        "_inputs": partial(_inputs, widths=widths, contract=contract, corners=corners),
        "_large": partial(_large, contract=contract),
        "random_mask": partial(random_mask, q_len=q_len),
        "_padding": partial(_padding, q_len=q_len),
        "_blind": partial(_blind, q_len=q_len),
        "Q_LEN": q_len,
    }


def _inexpressible(exercise: Exercise, case: str) -> str:
    """Why a case cannot be made, or ""."""
    try:
        exercise._arguments(case)
    except InexpressibleError as error:
        return str(error)
    return ""
