"""What no known fault says: a scale, many keys, other results, and the smallest call that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_check._aspects import exercise_of, made_case
from attention_check._contract import EXCHANGED, Contract
from attention_check._discovering import CACHES, first_of, parameters_of
from attention_check._formula import Layer, products_and_scores, widths_of
from attention_check._judging import Exercise
from attention_check._results import as_tensor, nearly_equal

LENGTHS = ((1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (5, 5), (3, 2), (5, 7), (70, 70))
# Sizes of heads, of query heads and of key heads.
HEADS = ((1, 1), (2, 2), (3, 3), (2, 1), (4, 2))


def smallest_call(
    aspect: str,
    contract: Contract,
    layer: Layer | None,
    exercise: Exercise,
    num_heads: int,
) -> str:
    """A call with few numbers whose output is not that of the formula, and both; or ""."""
    if (
        contract.arrays != "torch"
        or contract.turned
        or (contract.sink and aspect == "sinks")
    ):
        return ""
    for sizes, mask, causal in _small_calls(aspect, contract, layer, num_heads):
        made, code = _drawn(sizes, contract)
        with suppress(Exception, SystemExit):
            given = (*made, mask, causal)
            output = as_tensor(contract(*given), True).double()
            wanted = exercise.reference(*given)
            if nearly_equal(output, wanted, exercise.atol, exercise.rtol):
                continue
            off = (output - wanted).abs().nan_to_num(torch.inf)
            count = int((off > exercise.atol + exercise.rtol * wanted.abs()).sum())
            at = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
            numbers = f"{output[at]:.4g} for {wanted[at]:.4g} at {list(at)}"
            said = f"  # {count} of {off.numel()} numbers differ, by at most {off.max():.2g}: {numbers}"
            return code + _called(contract, given) + said
    return ""


def _small_calls(
    aspect: str, contract: Contract, layer: Layer | None, num_heads: int
) -> Iterator[tuple[list[tuple[int, ...]], Tensor | None, bool]]:
    """Sizes of query, key and value, a mask and whether the future is hidden, from few numbers to many."""
    square = contract.square or contract.causal == "always"
    causal = aspect == "causal" and contract.causal != "always"
    for samples, (q_len, k_len) in ((b, n) for n in LENGTHS for b in (1, 2)):
        if (square and q_len != k_len) or (causal and q_len > k_len):
            continue
        lengths = (q_len, k_len, k_len)
        masks: list[Tensor | None] = [None]
        if aspect in ("masks", "empty rows"):
            masks = [*_masks(aspect, samples, num_heads if layer else 2, q_len, k_len)]
        for mask in masks:
            if layer is not None:
                each = zip(lengths, widths_of(layer), strict=True)
                yield [(samples, n, width) for n, width in each], mask, causal
                continue
            for (heads, key_heads), width in (
                (h, w) for w in (1, 2, 4, 64) for h in HEADS
            ):
                if (heads != key_heads) != (aspect == "shared keys"):
                    continue
                if mask is not None and mask.shape[1] not in (1, heads):
                    continue
                each = zip((heads, key_heads, key_heads), lengths, strict=True)
                yield [(samples, h, n, width) for h, n in each], mask, causal


def _masks(
    aspect: str, samples: int, heads: int, q_len: int, k_len: int
) -> Iterator[Tensor]:
    """Masks that hide the last key, the first ones of the second sample, or keys of the second head."""
    visible = torch.ones(samples, 1, q_len, k_len, dtype=torch.bool)
    if aspect == "empty rows":
        yield visible.index_fill(2, torch.tensor(q_len - 1), False)
        return
    if k_len > 1:
        last = torch.arange(k_len) < k_len - 1
        yield (visible & last)[:1]
        yield visible & last
        if q_len > 1:
            yield visible.tril(k_len - q_len)
        if samples > 1:
            yield torch.cat((visible[:1] & last, visible[1:] & last.flip(0)))
        yield torch.cat(
            [visible & (last if i % 2 else last.flip(0)) for i in range(heads)], 1
        )


def _drawn(
    sizes: list[tuple[int, ...]], contract: Contract
) -> tuple[tuple[Tensor, ...], str]:
    """Query, key and value of the formula, and the code that draws them as the attention takes them."""
    names = _names(contract)
    own = [list(size) for size in sizes[: len(names)]]
    axes = EXCHANGED.get(contract.layout)
    if axes:
        i, j = axes
        for size in own:
            size[i], size[j] = size[j], size[i]
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(size, generator=generator) for size in own]
    drawn = [x.transpose(*axes) if axes else x for x in drawn]
    three = (drawn[0], drawn[min(1, len(drawn) - 1)], drawn[-1])
    kind = "" if contract.dtype == torch.float32 else f".to({contract.dtype})"
    draws = [f"torch.randn({', '.join(map(str, size))}){kind}" for size in own]
    code = f"torch.manual_seed(0); {', '.join(names)} = {', '.join(draws)}; "
    return tuple(x.to(contract.dtype).float() for x in three), code


def _names(contract: Contract) -> str:
    """The letters of the inputs that the attention takes."""
    return "x" if contract.one_input else "qk" if contract.memory else "qkv"


def _called(contract: Contract, given: tuple[Any, ...]) -> str:
    """The call itself, with the arguments that the contract passes."""
    told: list[Any] = []

    def record(*by_position: Any, **options: Any) -> Tensor:
        told.extend((by_position, options))
        return torch.zeros(1, 1, 1, 1)

    replace(contract, attention=record)(*given)
    by_position, options = told
    names = iter(_names(contract))
    arguments = []
    for name, one in [*(("", x) for x in by_position), *options.items()]:
        told_mask = bool(contract.mask) and name == contract.mask
        is_input = isinstance(one, Tensor) and one.is_floating_point() and not told_mask
        said = next(names, "") if is_input else ""
        said = said or (_literal(one) if isinstance(one, Tensor) else repr(one))
        arguments.append(f"{name}={said}" if name else said)
    name = getattr(contract.attention, "__name__", "layer")
    name = name if name.isidentifier() else "attention"
    return f"{name}({', '.join(arguments)})"


def _literal(mask: Tensor) -> str:
    return f"torch.tensor({mask.tolist()})".replace("inf", "torch.inf")


def factor(exercise: Exercise, contract: Contract) -> str:
    """A sentence on the number by which the scores are multiplied, if nothing else is wrong; or ""."""
    given = exercise._arguments(next(iter(exercise.cases)))
    usual = (contract.head_dim or given[0].shape[-1]) ** -0.5

    def scaled(log: float, sign: int, *more: Any) -> Any:
        width = contract.head_dim or more[0].shape[-1]
        return exercise.reference(*more, scale=sign * 2**log / width**0.5)

    def error(log: float, sign: int) -> float:
        return float((scaled(log, sign, *given) - output).abs().sum())

    with suppress(Exception):
        output = torch.as_tensor(contract(*given)).detach().double().cpu()
        found = [
            (error(log, sign), log, sign)
            for sign in (1, -1)
            for log in map(float, range(-8, 9))
        ]
        _, log, sign = min(found)
        for step in range(1, 26):  # nearer and nearer
            near = (log - 2.0**-step, log, log + 2.0**-step)
            log = min(near, key=partial(error, sign=sign))
        answer = partial(scaled, log, sign)
        if replace(exercise, reference=answer, wrong=(), gradients=False)(contract):
            number = f"{sign * 2**log * usual:.4g}"
            return (
                f"the scores are multiplied by {number}, where 1 / √head_dim is {usual:.4g}. If that is "
                f"meant, declare `scale={number}`."
            )
    return ""


OVERFLOW = (
    "it gives NaN or infinity for large scores. Subtract the largest score of a row from all of them before "
    "`exp`, as `softmax` does."
)
DETACHED = (
    "the weights that it returns are detached. A loss that is made of them would teach nothing: detach them "
    "where they are stored"
)
# More keys than kernels take at once: a block has 128, 256 or 512.
MANY_KEYS = 600


def fault_past_blocks(contract: Contract, layer: Layer | None, num_heads: int) -> str:
    """What is wrong with more keys than fit in a block, or ""; a layer may also be limited to fewer."""
    bias = dict(contract.declared).get("bias") if layer is None else layer.bias
    if bias is not None:
        return ""  # its table is as long as the other cases
    widths = None if layer is None else widths_of(layer)
    q_len = MANY_KEYS if contract.square or contract.causal == "always" else 3
    case = {"lengths": (q_len, MANY_KEYS), "samples": 1, "heads": (2, 2), "width": 8}
    plain = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    more = made_case(case, contract, widths, num_heads)
    exercise = replace(plain, cases={f"{MANY_KEYS} keys": more})
    with suppress(Exception, SystemExit):
        contract(*exercise._arguments(f"{MANY_KEYS} keys"))
        if not (verdict := exercise(contract)):
            return verdict.message.removeprefix("Not yet: ")
    return ""


def detaches_weights(
    exercise: Exercise, contract: Contract, layer: Layer | None
) -> bool:
    """Whether the weights that are returned carry no gradient, although the output does."""
    arguments = exercise._arguments(next(iter(exercise.cases)))
    for x in arguments[:3]:
        x.requires_grad_()
    weights = contract.second_result(*arguments)
    if weights is None or weights.requires_grad:
        return False
    query, key = arguments[:2]
    return weights.shape == products_and_scores(query, key, layer)[0].shape


def fault_of_results(
    exercise: Exercise, contract: Contract, layer: Layer | None
) -> str:
    """What is wrong with an output whose numbers are right, or ""."""
    arguments = exercise._arguments(next(iter(exercise.cases)))
    output = contract(*arguments)
    if not isinstance(output, Tensor) or contract.arrays != "torch":
        return ""
    if output.dtype != contract.dtype:
        return f"its output is {output.dtype}, where its inputs are {contract.dtype}."
    if contract.dtype != torch.float16:
        large = torch.as_tensor(contract(*(100 * x for x in arguments)))
        if not bool(large.isfinite().all()):
            return OVERFLOW
    before = output.detach().clone()
    contract(*(-x for x in arguments))
    if not torch.equal(before, output.detach()):
        return "its output is overwritten by the next call. Return a new tensor."
    weights = contract.second_result(*arguments)
    known = _known_weights(arguments, contract, layer)
    if weights is None or all(weights.shape != x.shape for x in known):
        return ""
    if any(
        nearly_equal(weights.detach(), x, exercise.atol, exercise.rtol) for x in known
    ):
        return ""
    return "its second result has the shape of the weights, and other numbers. Return the softmax itself."


def _known_weights(
    arguments: tuple[Any, ...], contract: Contract, layer: Layer | None
) -> list[Tensor]:
    """What may be returned beside the output, none if the weights are not only a softmax.

    Some return the scores instead, before or after they are scaled; some put the heads before the samples.
    """
    if contract.causal == "always" or contract.declared:
        return []
    query, key = arguments[:2]
    products, scaled = products_and_scores(query, key, layer)
    each = (scaled.softmax(-1), scaled, products)
    return [*each, *(x.transpose(0, 1) for x in each)]


def calls_not_tried(
    exercise: Exercise, contract: Contract, layer: Layer | None
) -> dict[str, str]:
    """What is not compared, although it may be wrong: calls in another way, another result; and why."""
    found, parameters = {}, parameters_of(contract.attention) or {}
    if cache := first_of(CACHES, parameters):
        found[f"calls with `{cache}`"] = "no case has a cache"
    memory = parameters.get(contract.memory)
    if memory is not None and memory.default is None:
        found[f"calls without `{contract.memory}`"] = "no case leaves it out"
    arguments = exercise._arguments(next(iter(exercise.cases)))
    second = contract.second_result(*arguments)
    known = _known_weights(arguments, contract, layer)
    if second is not None and all(second.shape != x.shape for x in known):
        found["calls that use its second result"] = "no case knows its numbers"
    return found
