"""Judge attention, rotary positions and decoding, and report on each aspect."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention_check._aspects import (
    ASPECTS,
    BUILDS_ON,
    exercise_of,
    texts,
    with_arguments,
)
from attention_check._calling import (
    CHOICES,
    Subject,
    call_torch_layer,
    evaluating,
    first_result,
    projections_of,
)
from attention_check._formula import Decoder, Projections, rotate_pairs
from attention_check._verdicts import Answer, Verdict, check_callable
from mha_lib import _checks


@dataclass(frozen=True)
class Report:
    """The findings, aspect by aspect; true if no aspect that was tried is wrong.

    The `findings` give, for each aspect, its `Verdict` or the reason why it was not tried.

    Example:
        >>> Report({"scores": Verdict(True, "Right."), "causal": "it takes no `is_causal`"})
        scores         right
        causal         not tried: it takes no `is_causal`
    """

    findings: Mapping[str, Verdict | str]

    def __bool__(self) -> bool:
        verdicts = [one for one in self.findings.values() if isinstance(one, Verdict)]
        return bool(verdicts) and all(verdicts)

    def __repr__(self) -> str:
        lines = (f"{name:14} {self._said(one)}" for name, one in self.findings.items())
        folded = partial(textwrap.fill, width=80, subsequent_indent=" " * 15)
        return "\n".join(folded(line, break_on_hyphens=False) for line in lines)

    @staticmethod
    def _said(found: Verdict | str) -> str:
        if isinstance(found, str):
            return f"not tried: {found}"
        return "right" if found else f"wrong: {found.message.removeprefix('Not yet: ')}"


def check(
    attention: Callable[..., Any],
    *,
    projections: Projections | None = None,
    num_heads: int | None = None,
    layout: str = "bhld",
    mask: str = "visible",
    arrays: str = "torch",
    tries: Collection[str] | None = None,
) -> Report:
    """Compare an attention with the formula in float64, and name its fault.

    A function is called with query (batch, num_heads, q_len, head_dim), key and value
    (batch, num_heads, k_len, head_dim), and, if the case has one, a mask of four axes,
    (batch or 1, num_heads or 1, q_len, k_len), as its fourth argument. It must return the output, or a tuple
    that begins with it. Only functions with such parameters get `is_causal=True` and `sink=` (num_heads,).

    A layer is called with query (batch, q_len, embed_dim), key (batch, k_len, kdim), value
    (batch, k_len, vdim) and the mask. The formula uses the layer's own projections, so the whole is compared.

    The `Report` says aspect by aspect "right", "wrong" with the fault and its cause, or "not tried".

    Args:
        attention: a function, a module with `q_proj`, `k_proj`, `v_proj`, `out_proj` and `num_heads`, or an
            `nn.MultiheadAttention`.
        projections: for a layer that stores these four elsewhere, a dict from their names to each: an
            `nn.Linear`, a weight (out, in), or (weight, bias), as torch tensors or arrays. With them, any
            callable counts as a layer.
        num_heads: number of heads of a layer that has no such attribute.
        layout: axes of queries, keys, values and outputs of a function, "bhld" or "blhd".
        mask: kind of mask: "visible" (bool, True = may attend), "hidden" (bool, True = may not), or "added"
            (0 and -inf, added to the scores).
        arrays: "torch"; or "numpy", also for JAX, TensorFlow and MLX, whose results are converted.
        tries: which of `ASPECTS` to try; default all that the signature allows.

    Raises:
        TypeError: `attention` is not callable.
        ValueError: an option is not one of its choices, or a layer lacks projections or a number of heads.

    Example:
        >>> def mine(query, key, value, mask=None):
        ...     scores = query @ key.mT / query.shape[-1] ** 0.5
        ...     if mask is not None:
        ...         scores = scores.masked_fill(mask, -torch.inf)
        ...     return scores.softmax(-1) @ value
        >>> report = check(mine, tries=["scores", "masks"])
        >>> report.findings["scores"]
        Right in both cases: as many queries as keys and fewer queries than keys.
        >>> print(report.findings["masks"].message[:30])
        Not yet: the mask is inverted.
        >>> assert check(mine, mask="hidden", tries=["scores", "masks"])
    """
    check_callable("attention", attention)
    for name, given in {"layout": layout, "mask": mask, "arrays": arrays}.items():
        _checks.check_choice(name, given, CHOICES[name])
    for name in tries or ():
        _checks.check_choice("tries", name, ASPECTS)
    subject = Subject(attention, layout == "blhd", mask, arrays)
    if not isinstance(attention, nn.Module) and projections is None:
        return _judge(subject, tries)
    linear = projections_of(attention, projections)
    if num_heads is None:
        num_heads = getattr(attention, "num_heads", None)
    num_heads = _checks.check_int("num_heads", num_heads)
    _checks.check_positive_int("num_heads", num_heads)
    width = linear["q_proj"][0].shape[0]
    _checks.check_divisible(q_proj=width, num_heads=num_heads)
    if isinstance(attention, nn.MultiheadAttention):
        subject = Subject(call_torch_layer(attention), False, "hidden", "torch")
    with evaluating(attention):
        return _judge(subject, tries, (linear, width // num_heads), num_heads)


def _judge(subject: Subject, tries: Collection[str] | None, *layer: Any) -> Report:
    """Try one aspect after another; `layer` are the arguments of `exercise_of` for a layer."""
    findings: dict[str, Verdict | str] = {}
    for name in ASPECTS if tries is None else filter(tries.__contains__, ASPECTS):
        reason = subject.lacks(name) if tries is None else ""
        for one in BUILDS_ON[name]:
            if isinstance(found := findings.get(one), Verdict) and not found:
                reason = reason or f"mend this first: {one}"
        findings[name] = reason or exercise_of(name, *layer)(subject)
    return Report(findings)


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
    _checks.check_positive("base", base)
    _checks.check_type("interleaved", interleaved, bool)
    returns = "rotated (batch, num_heads, len, head_dim)"
    # In float32, an angle of 1,000 is precise to three decimal places.
    near: Any = {"atol": 1e-3, "rtol": 1e-3}
    exercise = texts("rotary", reference=rotate_pairs, returns=returns, **near)
    return with_arguments(exercise, {"base": base, "interleaved": interleaved})(rotate)


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
    return with_arguments(exercise, {"rotated": rotated})(start)
