"""The cases and results of other languages as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, cycle
from typing import Any

import torch
from torch import Generator, Tensor

from attention_check._aspects import ASPECTS, exercise_of
from attention_check._check import finding_of
from attention_check._formula import named_arguments
from attention_check._report import NOT_TRIED, Finding, Report
from mha_lib import _checks

FORMAT = "attention conformance 2"


def _plain(value: Any) -> Any:
    """A tensor as nested lists, with "NaN" for NaN, which JSON lacks."""
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return "NaN" if value != value else value


def vectors() -> dict[str, Any]:
    """The cases for a function, in a form that JSON supports, to judge attention in another language.

    In the dict of "format" and "cases", each case has its aspect, `query`, `key`, `value` (batch, num_heads,
    len, head_dim), `mask` (True = may attend, or None), `is_causal` and `sink`. NaN is the string "NaN".

    Example:
        >>> vectors()["cases"][0]["aspect"]
        'scores'
    """
    found = []
    for aspect in ASPECTS[:-1]:  # an array has no gradient
        for number, (case, make) in enumerate(exercise_of(aspect).cases.items()):
            given = named_arguments(make(Generator().manual_seed(number)))
            said = {name: _plain(one) for name, one in given.items()}
            found.append({"aspect": aspect, "case": case, **said})
    return {"format": FORMAT, "cases": found}


def check_results(results: Sequence[Any]) -> Report:
    """Judge the results of an attention in another language for the cases of `vectors`.

    The `results` contain, for each case, the output (batch, num_heads, q_len, head_dim) as nested lists with
    NaN or "NaN", or None if the attention does not support the case, whose aspect is then not tried.

    Raises:
        TypeError: `results` is not a list or tuple.
        ValueError: there are more or fewer results than cases, or one is not an array of numbers.

    Example:
        >>> check_results([None] * len(vectors()["cases"])).findings["masks"]
        not tried: there is no result
    """
    cases = vectors()["cases"]
    if not isinstance(results, (list, tuple)):
        raise _checks.wrong_type("results", "a list", results)
    if len(results) != len(cases):
        rule = f"hold {len(cases)} entries, one for each case"
        raise _checks.refusal("results", rule, len(results))
    outputs: dict[str, list[Tensor | None]] = {aspect: [] for aspect in ASPECTS[:-1]}
    for number, (case, result) in enumerate(zip(cases, results, strict=True)):
        outputs[case["aspect"]].append(_read(number, result))
    findings: dict[str, Finding] = {}
    for aspect, mine in outputs.items():
        # An exercise calls its answer on every case in turn, on the last one twice, and then on all again.
        replies = chain(mine, mine[-1:], cycle(mine))
        findings[aspect] = Finding(NOT_TRIED, "there is no result")
        if not any(one is None for one in mine):
            verdict = exercise_of(aspect)(lambda *_, of=replies: next(of))
            findings[aspect] = finding_of(verdict)
    return Report(findings)


def _read(number: int, result: Any) -> Tensor | None:
    if result is None:
        return None
    try:
        return torch.tensor(_numbers(result), dtype=torch.float64)
    except (TypeError, ValueError) as error:
        rule = f"hold numbers in entry {number}"
        raise _checks.refusal("results", rule, str(error)) from None


def _numbers(value: Any) -> Any:
    """Convert nested lists, in which a string such as "NaN" may stand for a number, to numbers."""
    return [_numbers(one) for one in value] if isinstance(value, list) else float(value)
