"""Judge rotary positions and decoding with a cache, and what other languages write as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import chain, cycle
from typing import Any

import torch
from torch import Tensor

from attention_check._aspects import ASPECTS, exercise_of, texts, with_arguments
from attention_check._contract import first_result
from attention_check._formula import CALLED_WITH, Decoder, named_arguments, rotate_pairs
from attention_check._judging import Exercise
from attention_check._report import NOT_TRIED, Finding, Report, finding_of
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


# Another number when cases change: results of earlier cases are then refused.
FORMAT = "attention conformance 3"
GRADIENTS = tuple(f"gradient of the {name}" for name in CALLED_WITH[:3])


def _plain(value: Any) -> Any:
    """A tensor as nested lists, with "NaN" for NaN, which JSON lacks."""
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return "NaN" if value != value else value


def _exercises() -> dict[str, tuple[Exercise, tuple[str, ...]]]:
    """Aspect -> its exercise, for answers that return arrays, and the names of its arguments."""
    # Options together would be many cases.
    names = [name for name in ASPECTS if name not in ("together", "gradients")]
    found = {name: (exercise_of(name), CALLED_WITH) for name in names}
    taught = exercise_of("gradients")
    wrong = [replace(one, answer=_gradients_of(one.answer)) for one in taught.wrong]
    told: Any = {"wrong": wrong, "returns": GRADIENTS, "gradients": False}
    taught = replace(taught, reference=_gradients_of(taught.reference), **told)
    turned = rotary_exercise(), ("x", "positions")
    whole = decoding_exercise()
    whole = replace(whole, run=_whole_or_run(whole.run))
    rest = ("query", "key", "value", "chunks")
    return found | {
        "gradients": (taught, CALLED_WITH),
        "rotary": turned,
        "decoding": (whole, rest),
    }


def _gradients_of(answer: Answer) -> Answer:
    """What returns the gradients of an attention for query, key and value.

    The gradient of the output rises evenly from 0.5 to 1.5 over all of its numbers.
    """

    @wraps(answer)
    def gradients(*given: Any) -> tuple[Tensor, ...]:
        three = [x.double().requires_grad_() for x in given[:3]]
        output = answer(*three, *given[3:])
        if not output.requires_grad:
            return tuple(map(torch.zeros_like, three))
        ramp = torch.linspace(0.5, 1.5, output.numel()).to(output).view(output.shape)
        return torch.autograd.grad(output, three, ramp, materialize_grads=True)

    return gradients


class _Recorded:
    """Results that stand in a file, in the order in which an exercise asks for them."""

    def __init__(self, results: Sequence[Any]) -> None:
        # It calls its answer on every case in turn, on the last one twice, and then on all again.
        self.replies = chain(results, results[-1:], cycle(results))

    def __call__(self, *_: Any) -> Any:
        return next(self.replies)


def _whole_or_run(run: Any) -> Answer:
    """What runs a decoder, or takes the outputs of all its calls from a file."""

    @wraps(run)
    def either(answer: Answer, *given: Any) -> Any:
        return answer() if isinstance(answer, _Recorded) else run(answer, *given)

    return either


def vectors() -> dict[str, Any]:
    """The cases for a function, in a form that JSON supports, to judge attention in another language.

    In the dict of "format" and "cases", each case has its aspect, `query`, `key`, `value` (batch, num_heads,
    len, head_dim), `mask` (True = may attend, or None), `is_causal` and `sink`; its result is the output. In
    "gradients", it is a list of the gradients of query, key and value, where that of the output rises evenly
    from 0.5 to 1.5; in "rotary", `x` rotated by its `positions`, neighbours in pairs, with the base 10,000;
    in "decoding", the outputs of causal attention whose calls get `chunks` tokens. NaN is the string "NaN".

    Example:
        >>> vectors()["cases"][0]["aspect"]
        'scores'
    """
    found = []
    for aspect, (exercise, names) in _exercises().items():
        for case in exercise.cases:
            made: Any = exercise._arguments(case)
            if names[-1] == "chunks":
                made = [*made[:3], made[3:]]
            own = names is not CALLED_WITH
            said = dict(zip(names, made, strict=True)) if own else named_arguments(made)
            plain = {name: _plain(one) for name, one in said.items()}
            found.append({"aspect": aspect, "case": case, **plain})
    return {"format": FORMAT, "cases": found}


def check_results(results: Sequence[Any] | Mapping[str, Any]) -> Report:
    """Judge the results of an attention in another language for the cases of `vectors`.

    The `results` contain, for each case, its result as nested lists with NaN or "NaN", or None if the
    attention does not support the case, whose aspect is then not tried. In a file they are in a dict that
    says for which cases they are, {"format": …, "results": […]}, with the format of `vectors`.

    Raises:
        TypeError: `results` is neither a list or tuple nor such a dict.
        ValueError: there are more or fewer results than cases, they belong to other cases, or one is not an
            array of numbers.

    Example:
        >>> check_results([None] * len(vectors()["cases"])).findings["masks"]
        not tried: there is no result
    """
    if isinstance(results, Mapping):  # a list is of this very version
        _checks.check_choice("the format of results", results.get("format"), [FORMAT])
        results = results.get("results", ())
    exercises = _exercises()
    number = sum(len(exercise.cases) for exercise, _ in exercises.values())
    if not isinstance(results, (list, tuple)):
        raise _checks.wrong_type("results", "a list", results)
    if len(results) != number:
        rule = f"hold {number} entries, one for each case"
        raise _checks.refusal("results", rule, len(results))
    findings, first = {}, 0
    for aspect, (exercise, _) in exercises.items():
        places = range(first, first := first + len(exercise.cases))
        read = partial(_read, several=aspect == "gradients")
        mine = [read(place, results[place]) for place in places]
        findings[aspect] = Finding(NOT_TRIED, "there is no result")
        if not any(one is None for one in mine):
            findings[aspect] = finding_of(exercise(_Recorded(mine)))
    return Report(findings, f"results, {FORMAT}")


def _read(number: int, result: Any, several: bool) -> Any:
    if result is None:
        return None
    if several and isinstance(result, list):
        return tuple(_read(number, one, False) for one in result)
    try:
        return torch.tensor(_numbers(result), dtype=torch.float64)
    except (TypeError, ValueError) as error:
        rule = f"hold numbers in entry {number}"
        raise _checks.refusal("results", rule, str(error)) from None


def _numbers(value: Any) -> Any:
    """Convert nested lists, in which a string such as "NaN" may stand for a number, to numbers."""
    return [_numbers(one) for one in value] if isinstance(value, list) else float(value)
