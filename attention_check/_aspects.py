"""What attention is tried with, aspect by aspect: cases, and known faults as edits of the formula.

Each *aspect* of attention, such as its masks, is an `Exercise` of `_judging`. `_aspects.md` contains its
cases and known faults.
"""

import functools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, product
from typing import Any

import torch
from torch import Generator, Tensor

from attention_check._contract import Contract, InexpressibleError
from attention_check._formula import (
    Layer,
    attention_layer,
    attention_of_heads,
    widths_of,
)
from attention_check._judging import Exercise, randn
from attention_check._results import Answer, Wrong
from attention_check._texts import Texts

# A fault in an aspect that others build on would appear in them again, and not be recognized there.
BUILDS_ON: dict[str, tuple[str, ...]] = {
    "scores": (),
    "masks": ("scores",),
    "empty rows": ("scores", "masks"),
    "NaN in padding": ("scores", "masks"),
    "causal": ("scores",),
    "shared keys": ("scores",),
    "sinks": ("scores",),
    "together": ("scores",),
    "gradients": ("scores",),
}
ASPECTS = tuple(BUILDS_ON)
# The sizes of the cases: every axis has a different one.
BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM = 2, 3, 5, 7, 11
# Absolute and relative tolerance of a dtype, for outputs of the size of 1.
TOLERANCES = {torch.bfloat16: (3e-2, 5e-2), torch.float16: (5e-3, 2e-2)}
USUAL_TOLERANCE = (2e-5, 1e-4)
texts = Texts(__name__)


def tolerance_of(contract: Contract | None) -> tuple[float, float]:
    """The tolerance for a dtype; weights of 8 bits are about as precise as bfloat16."""
    if contract is None:
        return USUAL_TOLERANCE
    dtype = torch.bfloat16 if contract.quantized else contract.dtype
    return TOLERANCES.get(dtype, USUAL_TOLERANCE)


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
    strided: bool = False,
) -> tuple[Tensor, ...]:
    """Query, key and value of heads or, if widths are given, of a layer.

    Without `corners`, a contract that is always causal gets as many queries as keys: which of its two corners
    is meant otherwise is a question of its own.
    """
    contract = contract or Contract(attention_of_heads)
    square = contract.square or (contract.causal == "always" and not corners)
    if q_len is None:
        q_len = k_len if square else Q_LEN
    if square and q_len != k_len:
        raise InexpressibleError("it has as many queries as keys")
    if widths is not None and (heads, head_dim) != ((HEADS, HEADS), HEAD_DIM):
        raise InexpressibleError("a layer decides on its own heads")
    case: Case = {"lengths": (q_len, k_len), "heads": heads, "width": head_dim}
    case["strided"] = strided
    made: tuple[Tensor, ...] = made_case(case, contract, widths, HEADS)(g)
    return made[:3]


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
        for sample, length in enumerate((6, 5)):
            x[sample, ..., length:, :] = torch.nan
    return three


def random_mask(
    g: Generator, samples: int, heads: int, q_len: int = Q_LEN, k_len: int = K_LEN
) -> Tensor:
    """Draw a mask that shows the first key, and one of any two neighbours, so that each window sees some."""
    mask = torch.rand(samples, heads, q_len, k_len, generator=g) > 0.5
    mask[..., 0] = True
    return mask | ~mask.roll(1, -1)


def _padding(q_len: int = Q_LEN) -> Tensor:
    """Mask for samples of 6 and 5 keys."""
    lens = torch.tensor([6, 5]).view(-1, 1, 1, 1)
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


@functools.cache
def _known(section: str, reference: Answer) -> tuple[Wrong, ...]:
    """The known faults of a section, which take longer to make than an attention to try."""
    return texts.mistakes(section, reference)


def _always_causal(answer: Answer) -> Answer:
    """The same answer, which hides the future whether it is asked to or not."""

    @functools.wraps(answer)
    def causal(*given: Any, **more: Any) -> Any:
        query, key, value, *options = given
        mask, rest = (options[0] if options else None), options[2:]
        return answer(query, key, value, mask, True, *rest, **more)

    return causal


# Options two by two: few calls in which each choice meets each choice of every other option.
Case = dict[str, Any]
AND = ", "  # between the options of a label
# The choices of each option, the usual one first, and what a label says of another one.
TOGETHER: dict[str, Sequence[Any]] = {
    "samples": (2, 1, 3),
    "heads": ((3, 3), (1, 1), (6, 2), (6, 1)),
    "lengths": ((5, 5), (1, 1), (70, 70), (1, 9), (7, 5)),
    "width": (11, 64, 128),
    "value width": (0, 5),
    "mask": ("", "all", "each sample", "each head"),
    "causal": (False, True),
    "sink": (False, True),
    "strided": (False, True),
}
WORDS: dict[str, Callable[[Any], str]] = {
    "samples": lambda n: "one sample" if n == 1 else f"{n} samples",
    "heads": lambda n: (
        f"{n[0]} query heads for {n[1]} key heads" if n[0] > 1 else "one head"
    ),
    "lengths": lambda n: (
        f"{n[0]} queries for {n[1]} keys" if n[0] > 1 else f"one query for {n[1]} keys"
    ),
    "width": lambda n: f"heads of width {n}",
    "value width": lambda _: "values of another width",
    "mask": lambda form: f"a mask for {form}",
    "causal": lambda _: "a hidden future",
    "sink": lambda _: "sinks",
    "strided": lambda _: "tensors that are not contiguous",
}


def pairwise(
    choices: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool]
) -> list[Case]:
    """Few combinations in which each two choices of different options meet, if that is allowed."""
    every = [dict(zip(choices, one, strict=True)) for one in product(*choices.values())]
    every = list(filter(allowed, every))
    every = random.Random(0).sample(every, min(len(every), 500))
    pairs = [{*combinations(one.items(), 2)} for one in every]
    missing = set().union(*pairs)
    found = []
    while missing:
        best = max(range(len(every)), key=lambda i: len(pairs[i] & missing))
        found.append(every[best])
        missing -= pairs[best]
    return found


def cases_together(
    contract: Contract,
    widths: tuple[int, ...] | None,
    num_heads: int,
    conventions: Collection[str],
) -> dict[str, Callable[[Generator], tuple[Any, ...]]]:
    """Cases with options two by two, which the contract can express and whose calls do not raise.

    Aspects in `conventions` are another one than here, or cannot be tried.
    """
    corner = contract.causal == "always" or "causal" in conventions
    square = contract.square or contract.causal == "always"

    def allowed(case: Case) -> bool:
        q_len, k_len = case["lengths"]
        hides = case["causal"] or contract.causal == "always"
        return q_len == k_len or not (square or (hides and (corner or q_len > k_len)))

    making = partial(made_case, contract=contract, widths=widths, num_heads=num_heads)
    usual = {option: some[0] for option, some in TOGETHER.items()}
    known = {"heads": 2 if "shared keys" in conventions else 4}
    known |= {"mask": 1 if "masks" in conventions else 4}
    known |= dict.fromkeys(("heads", "width", "value width"), 1) if widths else {}
    kept = {name: some[: known.get(name, 9)] for name, some in TOGETHER.items()}
    choices = [(name, x) for name, some in kept.items() for x in some]
    raising = {
        pair
        for pair in combinations(choices, 2)
        if (pair[0][0] != pair[1][0] and allowed(case := usual | dict(pair)))
        and not _runs(contract, making(case))
    }
    found = {}
    cases = pairwise(
        kept,
        lambda case: (
            allowed(case) and raising.isdisjoint(combinations(case.items(), 2))
        ),
    )
    for case in cases:
        unusual = [WORDS[name](x) for name, x in case.items() if x != usual[name]]
        found[AND.join(unusual) or "the usual options"] = making(case)
    return found


def blamed(problems: Mapping[str, str]) -> str:
    """The options with which all fails, and without which nothing does; else the first case that fails."""
    failing = [{*case.split(AND)} for case, problem in problems.items() if problem]
    passing = [{*case.split(AND)} for case, problem in problems.items() if not problem]
    common = sorted(set.intersection(*failing))
    for number in (1, 2):
        for some in combinations(common, number):
            if not any({*some} <= case for case in passing):
                return " and ".join(some)
    return next(case for case, problem in problems.items() if problem)


def _runs(contract: Contract, make: Callable[[Generator], tuple[Any, ...]]) -> bool:
    with suppress(Exception, SystemExit):
        contract(*make(Generator().manual_seed(0)))
        return True
    return False


def made_case(
    case: Case, contract: Contract, widths: tuple[int, ...] | None, num_heads: int
) -> Callable[[Generator], tuple[Any, ...]]:
    """What makes the arguments of a case, whose other options are the usual ones."""
    case = {option: some[0] for option, some in TOGETHER.items()} | case

    def make(g: Generator) -> tuple[Any, ...]:
        (q_len, k_len), samples = case["lengths"], case["samples"]
        lengths, heads = (q_len, k_len, k_len), num_heads
        if widths is not None:
            sizes: list[tuple[int, ...]] = [*zip(lengths, widths, strict=True)]
        else:
            heads, key_heads = case["heads"]
            width = case["width"]
            each = (
                (heads, width),
                (key_heads, width),
                (key_heads, case["value width"] or width),
            )
            sizes = [(h, n, w) for n, (h, w) in zip(lengths, each, strict=True)]
        # Numbers that the dtype of the attention can hold.
        drawn: list[Tensor] = [
            randn(g, samples, *size).to(contract.dtype).float() for size in sizes
        ]
        if case["strided"]:
            drawn = [x.mT.contiguous().mT for x in drawn]
        same = (
            (0, 0, 0)
            if contract.one_input
            else (0, 1, 1)
            if contract.memory
            else (0, 1, 2)
        )
        mask, form = None, case["mask"]
        if form:
            axes = (
                1 if form == "all" else samples,
                heads if form == "each head" else 1,
            )
            mask = random_mask(g, *axes, q_len, k_len)
        three = tuple(drawn[i] for i in same)
        if not case["sink"]:
            return *three, mask, case["causal"]
        return *three, mask, case["causal"], randn(g, heads)

    return make


def _together(
    layer: Layer | None,
    num_heads: int,
    contract: Contract | None,
    conventions: Collection[str],
) -> Exercise:
    plain = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    widths = None if layer is None else widths_of(layer)
    called = contract or Contract(plain.reference, mask="mask", causal="is_causal")
    cases = cases_together(called, widths, num_heads, conventions)
    if not cases:
        raise InexpressibleError("no two options can be given together")
    return replace(plain, cases=cases)


def _sections(
    name: str, layer: Layer | None, always: bool, declared: Collection[str]
) -> list[str]:
    """The sections with the known faults of an aspect; `always` means always causal."""
    if name != "scores":
        both = always and name == "masks"
        return ["masks, always causal", name] if both else [name]
    usual = {"scale", "normalized"}.isdisjoint(declared)
    sections = ["usual scale" if usual else "another scale", name]
    sections += ["causal"] if always else []
    sections += [part for part in ("softcap", "window") if part in declared]
    if layer is None:
        return sections
    parts = {
        "layer with a norm": layer.norm,
        "turned layer": layer.turn,
        "output with a bias": layer.linear["out_proj"][1],
        "projections with biases": layer.linear["q_proj"][1],
    }
    sections += ["layer", *(part for part, given in parts.items() if given is not None)]
    if len(layer.linear["k_proj"][0]) < len(layer.linear["q_proj"][0]):
        sections.append("shared keys")
    if len({*widths_of(layer)}) == 1:
        sections.append("layer of one width")  # otherwise, such projections do not fit
    return sections


def exercise_of(
    name: str,
    layer: Layer | None = None,
    num_heads: int = HEADS,
    contract: Contract | None = None,
    only_cases: bool = False,
    conventions: Collection[str] = (),
) -> Exercise:
    """The exercise of one aspect, for functions or for a layer, with the cases that a contract can express.

    With `only_cases` it knows no mistakes, which take longer to make than an attention to try. Options are
    not tried together with aspects that follow other `conventions`.

    Raises:
        InexpressibleError: there is no such case.
    """
    if name == "together":
        return _together(layer, num_heads, contract, conventions)
    more: dict[str, Any] = {"reference": attention_of_heads}
    widths, axes = None, "batch, num_heads, q_len, head_dim"
    always = contract is not None and contract.causal == "always"
    if layer is not None:
        widths = widths_of(layer)
        if name == "sinks":
            raise InexpressibleError("it takes no `sink`")
        more, axes = {"reference": attention_layer}, "batch, q_len, embed_dim"
    names = _makers_of_cases(name, widths, contract, always)
    more["names"] = names | {"num_heads": num_heads}
    more |= {"returns": f"output ({axes})", "gradients": name == "gradients"}
    given: dict[str, Any] = {} if layer is None else layer._asdict()
    given |= {} if contract is None else contract.declared
    plain = texts(name, takes="attention", only_cases=True, **more)
    if not only_cases:
        sections = _sections(name, layer, always, given)
        known = [_known(section, more["reference"]) for section in sections]
        plain = replace(plain, wrong=tuple(chain(*known)))
    exercise = with_arguments(plain, given)
    if always:
        wrong = [
            replace(one, answer=_always_causal(one.answer)) for one in exercise.wrong
        ]
        exercise = replace(
            exercise, reference=_always_causal(exercise.reference), wrong=wrong
        )
    exercise = _expressible(exercise)
    atol, rtol = tolerance_of(contract)
    first = exercise.reference(*exercise._arguments(next(iter(exercise.cases))))
    # Large weights make large outputs, and rounding errors of their size.
    size = max(1.0, float(first.nan_to_num().abs().max()))
    return replace(exercise, atol=atol * size, rtol=rtol)


def _makers_of_cases(
    name: str, widths: tuple[int, ...] | None, contract: Contract | None, always: bool
) -> dict[str, Any]:
    """What the texts of the cases call, for what a contract can express; `always` means always causal."""
    square = contract is not None and contract.square
    q_len = K_LEN if square or (always and name != "causal") else Q_LEN
    corners = name == "causal"
    return {
        "_inputs": partial(_inputs, widths=widths, contract=contract, corners=corners),
        "_large": partial(_large, contract=contract),
        "random_mask": partial(random_mask, q_len=q_len),
        "_padding": partial(_padding, q_len=q_len),
        "_blind": partial(_blind, q_len=q_len),
        "Q_LEN": q_len,
    }


def _expressible(exercise: Exercise) -> Exercise:
    """The exercise with the cases that can be made; if there is none, the error of the first one."""
    kept = {}
    for case, make in exercise.cases.items():
        with suppress(InexpressibleError):
            exercise._arguments(case)
            kept[case] = make
    if not kept:
        exercise._arguments(next(iter(exercise.cases)))
    return replace(exercise, cases=kept)
