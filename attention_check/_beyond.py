"""What no known fault says: a scale, many keys, further arguments, and the smallest call that shows it."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import Parameter
from itertools import product
from typing import Any

import torch
from torch import Generator, Tensor, nn

from attention_check._aspects import exercise_of, made_case
from attention_check._besides import norms_of, order_of, same, with_cache
from attention_check._contract import (
    BY_POSITION,
    DIFFERS,
    EXCHANGED,
    RIGHT,
    WRONG,
    Contract,
    Finding,
    call_as_code,
    in_form,
    input_names,
)
from attention_check._discovering import (
    BIASES,
    CACHES,
    first_of,
    fitting,
    mask_in_form,
    masks_of,
    parameters_of,
)
from attention_check._formula import Layer, widths_of
from attention_check._judging import Exercise
from attention_check._layers import order_by_name
from attention_check._results import Answer, as_tensor, compare, listed

LENGTHS = ((1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (5, 5), (3, 2), (5, 7), (70, 70))
# Numbers of query heads and of key heads.
HEAD_COUNTS = ((1, 1), (2, 2), (3, 3), (2, 1), (4, 2))


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
    for given in _small_calls(aspect, contract, layer, num_heads):
        with suppress(Exception, SystemExit):
            output = as_tensor(contract(*given), True).double()
            wanted = exercise.reference(*given)
            if same(exercise, output, wanted):
                continue
            off = (output - wanted).abs().nan_to_num(torch.inf)
            count = int((off > exercise.atol + exercise.rtol * wanted.abs()).sum())
            at = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
            numbers = f"{output[at]:.4g} for {wanted[at]:.4g} at {list(at)}"
            said = f"  # {count} of {off.numel()} numbers differ, by at most {off.max():.2g}: {numbers}"
            return (
                _draws_as_code(contract, given) + call_as_code(contract, given) + said
            )
    return ""


def _small_calls(
    aspect: str, contract: Contract, layer: Layer | None, num_heads: int
) -> Iterator[tuple[Any, ...]]:
    """The arguments of calls, from few numbers to many."""
    square = contract.square or contract.causal == "always"
    causal = aspect == "causal" and contract.causal != "always"
    widths = None if layer is None else widths_of(layer)
    sizes = ((1, (1, 1)),) if layer else product((1, 2, 4, 64), HEAD_COUNTS)
    kinds = [
        x for x in sizes if (x[1][0] != x[1][1]) == (aspect == "shared keys") or layer
    ]
    by_mask = aspect in ("masks", "empty rows")
    forms = ("all", "each sample", "each head") if by_mask else ("",)
    for (q_len, k_len), samples in product(LENGTHS, (1, 2)):
        if (square and q_len != k_len) or (causal and q_len > k_len):
            continue
        for form, (width, heads) in product(forms, kinds):
            case: dict[str, Any] = {"lengths": (q_len, k_len), "samples": samples}
            case |= {"width": width, "heads": heads, "mask": form}
            make = made_case(case, contract, widths, num_heads)
            *three, mask, _ = make(Generator().manual_seed(0))
            masks = [mask]
            if by_mask:  # first, one that holds for all queries
                masks = [mask[..., :1, :].repeat(1, 1, q_len, 1), mask]
            for mask in masks:
                if aspect == "empty rows":
                    mask[..., -1, :] = False
                yield *three, mask, causal


def _draws_as_code(contract: Contract, given: tuple[Any, ...]) -> str:
    """The code that draws query, key and value with the seed 0 as the attention takes them."""
    names = input_names(contract)
    axes = EXCHANGED.get(contract.layout)
    kind = "" if contract.dtype == torch.float32 else f".to({contract.dtype})"
    kind += f".transpose{axes}" if axes else ""
    draws = [f"torch.randn{tuple(x.shape)}{kind}" for x in given[: len(names)]]
    return f"torch.manual_seed(0); {', '.join(names)} = {', '.join(draws)}; "


def in_some_cases(exercise: Exercise, contract: Contract) -> str:
    """The known fault that explains most of the cases that fail, and the first one; or ""."""
    outcomes = exercise._tried(contract)
    problems = exercise._problems(outcomes, exercise.reference)
    failing = [case for case, problem in problems.items() if problem]

    def explains(wrong: Answer, case: str) -> bool:
        other = exercise._try(wrong, case)
        return outcomes[case].agrees(other, exercise.atol, exercise.rtol)

    for wrong in exercise.wrong:
        if all(explains(wrong.answer, case) for case in failing[:1]):
            alike = [case for case in failing if explains(wrong.answer, case)]
            if 2 * len(alike) > len(failing):
                return f"for {listed(alike[:3])}, {wrong.name}. {wrong.cause}"
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


def detaches_weights(exercise: Exercise, contract: Contract) -> bool:
    """Whether the weights that are returned carry no gradient, although the output does."""
    arguments = _first(exercise)
    for x in arguments[:3]:
        x.requires_grad_()
    weights = contract.second_result(*arguments)
    if weights is None or weights.requires_grad:
        return False
    scores: Tensor = exercise.reference(*arguments, only_scores=True)
    return weights.shape == scores.shape


def fault_of_results(exercise: Exercise, contract: Contract) -> str:
    """What is wrong with an output whose numbers are right, or ""."""
    arguments = _first(exercise)
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
    known = _known_weights(exercise, contract)
    if weights is None or all(weights.shape != x.shape for x in known):
        return ""
    if any(same(exercise, weights.detach(), x) for x in known):
        return ""
    for x in known:
        mine, there = weights.detach(), x.reshape(weights.shape)
        said = compare((), mine, there, exercise.atol, exercise.rtol)
        if said.startswith("holds the right numbers"):
            return f"its second result {said}."
    return "its second result has the shape of the weights, but other numbers. Return the softmax itself."


def _known_weights(exercise: Exercise, contract: Contract) -> list[Tensor]:
    """What may be returned beside the output, none if the weights are not only a softmax.

    Some return the scores instead, before or after they are scaled; some put the heads before the samples.
    """
    if contract.causal == "always" or contract.declared:
        return []
    given = _first(exercise)
    scaled = exercise.reference(*given, only_scores=True)
    plain = exercise.reference(*given, only_scores=True, bias=None)
    products = plain * (contract.head_dim or given[0].shape[-1]) ** 0.5
    each = (scaled.softmax(-1), scaled, products)
    return [*each, *(x.transpose(0, 1) for x in each)]


def calls_not_tried(
    exercise: Exercise, contract: Contract, also: Collection[str]
) -> dict[str, str]:
    """What is not compared, although it may be wrong: calls in another way, another result; and why.

    Those in `also` are tried.
    """
    found, parameters = {}, parameters_of(contract.attention) or {}
    cache = first_of(CACHES, parameters)
    if cache and cache not in also:
        found[f"calls with `{cache}`"] = "no case has a cache"
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    names = [name for name, one in parameters.items() if one.kind not in several]
    inputs = 1 if contract.one_input or contract.memory else 3
    by_position = 0 if contract.inputs else inputs + (contract.mask == BY_POSITION)
    its = contract.memory, contract.mask, contract.causal, contract.sink
    told = {*names[:by_position], *contract.inputs, *its, contract.turned, cache, *also}
    if untried := [f"`{x}`" for x in names if x not in told]:
        them = "them" if len(untried) > 1 else "it"
        found[f"calls with {', '.join(untried)}"] = f"no case sets {them}"
    memory = parameters.get(contract.memory)
    left_out = memory is not None and memory.default is None
    if left_out and contract.memory not in also:
        found[f"calls without `{contract.memory}`"] = "no case leaves it out"
    arguments = _first(exercise)
    second = contract.second_result(*arguments)
    known = _known_weights(exercise, contract)
    if second is not None and all(second.shape != x.shape for x in known):
        found["calls that use its second result"] = "no case knows its numbers"
    return found


OTHER_ORDER = (
    "the rows of `{0}` are {2}, where its name says {1}. Stored weights of the other order would be read "
    "wrongly, or two of the three are exchanged"
)


def besides_right_numbers(
    name: str,
    tried: Exercise,
    contract: Contract,
    layer: Layer | None,
    num_heads: int,
    reasons: dict[str, str],
) -> Finding | None:
    """What is wrong or differs although the numbers are right, or None; `reasons` gets what is not tried."""
    if name == "gradients" and detaches_weights(tried, contract):
        return Finding(DIFFERS, DETACHED)
    if name != "scores":
        return None
    fault = fault_of_results(tried, contract)
    if fault := fault or fault_past_blocks(contract, layer, num_heads):
        return Finding(WRONG, fault)
    others = arguments_tried(tried, contract, layer, num_heads)
    untried = calls_not_tried(tried, contract, others)
    reasons |= untried
    if not untried and (idle := next(idle_norms(tried, contract), "")):
        said = f"the parameters of `{idle}` change nothing. Is its result used?"
        return Finding(WRONG, said)
    if unlike := [one for one in others.values() if not one]:
        return unlike[0]
    letters = next((x for x, _ in order_of(contract)), "")
    part, says = order_by_name(contract.attention)
    if letters and says not in ("", letters):
        told = OTHER_ORDER.format(part, ", ".join(says), ", ".join(letters))
        return Finding(DIFFERS, told)
    return None


def arguments_tried(
    exercise: Exercise, contract: Contract, layer: Layer | None, num_heads: int
) -> dict[str, Finding]:
    """The finding for each further argument, set or left out, with known numbers."""
    parameters = parameters_of(contract.attention) or {}
    tries: dict[str, Answer] = dict.fromkeys(masks_of(contract), _second_mask)
    biases = [name for name in BIASES if name in parameters]
    biases += [contract.mask] if contract.mask_kind == "added" else []
    tries |= dict.fromkeys(biases, _bias)
    memory = parameters.get(contract.memory)
    if memory is not None and memory.default is None:
        tries[contract.memory] = _without_memory
    tries[contract.turned] = _other_positions
    cache = first_of(CACHES, parameters)
    if not any("cache" in x for x in parameters.keys() - {cache}):
        tries[cache] = with_cache  # others need more than to be handed on
    found = {}
    for name, judged in tries.items():
        with suppress(Exception, SystemExit):
            if one := judged(name, exercise, contract, layer, num_heads):
                found[name] = one[0]
    return found


def _compared(
    exercise: Exercise,
    contract: Contract,
    given: tuple[Any, ...],
    right: dict[str, Any],
    wrong: dict[str, dict[str, Any]],
) -> list[Finding]:
    """The finding for a call, by the options of the formula that give its numbers, or none."""
    output = torch.as_tensor(contract(*given)).detach()
    return [
        Finding(WRONG if said else RIGHT, said)
        for said, options in {"": right, **wrong}.items()
        if same(exercise, output, exercise.reference(*given, **options))
    ]


def _first(exercise: Exercise) -> tuple[Any, ...]:
    """Query, key and value of the first case."""
    return exercise._arguments(next(iter(exercise.cases)))[:3]


def _second_mask(
    name: str, exercise: Exercise, contract: Contract, _: Any, num_heads: int
) -> list[Finding]:
    """What a mask does that is given instead of the first one; True in `key_padding_mask` means hidden."""
    found = fitting(replace(contract, mask=name), exercise, num_heads)
    if found is None:
        return []
    kind, hides = found.mask_kind, "padding" in name or contract.mask_kind == "hidden"
    if kind == "added" or (kind == "hidden") == hides:
        return [Finding(RIGHT)]
    said = f"True in `{name}` means {kind}"
    if not hides and contract.mask_kind == "visible":
        said += f", in `{contract.mask}` visible: it is inverted."
        return [Finding(WRONG, said)]
    return [Finding(DIFFERS, f"{said}, unlike such names elsewhere.")]


def _bias(
    name: str, exercise: Exercise, contract: Contract, layer: Any, num_heads: int
) -> list[Finding]:
    """What numbers do that are added to the scores: a bias alone and beside a mask, or a mask."""
    if "bias" in dict(contract.declared) or (layer and layer.bias):
        return []
    given, is_mask = _first(exercise), name == contract.mask
    samples, q_len, k_len = len(given[0]), given[0].shape[-2], given[1].shape[-2]
    said = f"`{name}` is %s. Add it to the scaled scores."
    for form in [contract.mask_form] if is_mask else ("1hqk", "hqk", "qk"):
        whole = zip("bhqk", (samples, num_heads, q_len, k_len), strict=True)
        sizes = [size if letter in form else 1 for letter, size in whole]
        numbers = -torch.rand(sizes, generator=Generator().manual_seed(0))
        own = contract._array(contract._own(in_form(numbers, form, samples)))
        one = replace(contract, more=((name, own),))
        scaled = numbers / (contract.head_dim or given[0].shape[-1]) ** 0.5
        right, negative, small = (
            {"bias": lambda *_, x=x: x} for x in (numbers, -numbers, scaled)
        )
        known = {said % "subtracted": negative, said % "scaled too": small}
        with suppress(Exception, SystemExit):
            found = _compared(exercise, one, given, right, known)
            beside = contract.mask and contract.mask_fits and not is_mask
            if beside and found == [Finding(RIGHT)]:
                mask = mask_in_form(contract.mask_form, num_heads, q_len, k_len)
                told = f"`{name}` is ignored beside a mask. The scores need both."
                found = _compared(exercise, one, (*given, mask), right, {told: {}})
            if found:
                return found
    return []


def _without_memory(
    name: str, exercise: Exercise, contract: Contract, *_: Any
) -> list[Finding]:
    """What a layer does without its second input: its keys and values then come from the first one."""
    alone = replace(contract, one_input=True, memory="")
    said = f"without `{name}`, keys and values come from the input before its norm."
    given = (_first(exercise)[0],) * 3
    right, known = ({"norms_memory": both} for both in (True, False))
    return _compared(exercise, alone, given, right, {said: known})


def _other_positions(
    name: str, exercise: Exercise, contract: Contract, layer: Layer, _: int
) -> list[Finding]:
    """What other cosines and sines do in a later call, different ones for each sample."""
    turn: Any = layer.turn
    given = _first(exercise)
    contract(*given)

    def at(rate: Any) -> dict[str, Any]:
        return {"turn": partial(turn, pace=turn.keywords["pace"] * rate)}

    own = contract.rotation(given[0].shape[-2], 2.0, 3.0)
    one = replace(contract, more=((name, own),))
    known = {
        f"`{name}` of an earlier call is used, or none. Use that of this call.": at(
            1.0
        ),
        "all samples are rotated by the positions of the first one.": at(2.0),
    }
    right = at(torch.tensor([2.0, 3.0]).view(-1, 1, 1))
    return _compared(exercise, one, given, right, known)


def idle_norms(exercise: Exercise, contract: Contract) -> Iterator[str]:
    """The norms in a layer whose parameters change nothing."""
    module, output = contract.attention, contract(*_first(exercise))
    if not isinstance(module, nn.Module) or not output.requires_grad:
        return
    for name, part in norms_of(module):
        own = [x for x in part.parameters() if x.requires_grad]
        total = output.sum()
        found = torch.autograd.grad(total, own, retain_graph=True, allow_unused=True)
        if own and not any(x is not None for x in found):
            yield name
