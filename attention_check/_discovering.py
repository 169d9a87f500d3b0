"""Find out by trying how somebody's attention is called."""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import Parameter
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, nn

from attention_check._aspects import BATCH, HEAD_DIM, HEADS, exercise_of, random_mask
from attention_check._besides import (
    BiasOfFunction,
    measured_bias,
    scales_of,
    turned,
    with_keys,
    with_positions,
)
from attention_check._contract import BY_POSITION, MASK_FORMS, MEANS, Contract
from attention_check._formula import Layer
from attention_check._judging import Exercise
from attention_check._results import nearly_equal

Candidate: TypeAlias = tuple[Contract, Layer | None]
# Names of parameters; all others are told by their position.
INPUTS = ("query q queries xq".split(), "key k keys".split(), "value v values".split())
# One input for keys and values, beside that for queries.
MEMORIES = """memory context encoder_hidden_states key_value_states encoder_output enc_out cond xa y kv x_kv
    source""".split()
MASKS = """mask attn_mask attention_mask key_padding_mask padding_mask src_mask visible allowed valid_lens
    lengths context_mask memory_mask key_mask encoder_attention_mask""".split()
BIASES = "attn_bias position_bias bias rel_pos_bias relative_position_bias".split()
TURNED = ["position_embeddings"]
CAUSAL = "is_causal causal use_causal_mask".split()
SINKS = "sink sinks".split()
NO_MASKS = """dropout dropout_p p scale scaling temperature training need_weights return_weights
    output_attentions return_attention use_cache head_mask rope freqs_cis position_ids positions
    enable_gqa eps""".split()
CACHES = """past_key_values past_key_value layer_past past_kv kv_cache cache
    incremental_state""".split()
OTHERS = {*NO_MASKS, *CACHES, *CAUSAL, *SINKS, *TURNED}


def parameters_of(attention: Any) -> Mapping[str, Parameter] | None:
    """The parameters of a function or of a module's `forward`; None if they cannot be seen."""
    called = attention.forward if isinstance(attention, nn.Module) else attention
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):  # it is not written in Python
        return None
    kinds = {one.kind for one in parameters.values()}
    if (
        isinstance(attention, nn.Module)
        and Parameter.POSITIONAL_OR_KEYWORD not in kinds
    ):
        # A wrapper, such as a compiled or a parallel module, passes on what it is given.
        inside = [*attention.children()]
        if len(inside) == 1:
            return parameters_of(inside[0])
    return parameters


def contract_by_names(attention: Callable[..., Any], is_layer: bool) -> Contract:
    """What the names of the parameters say: inputs, mask, causality and sinks."""
    contract = Contract(attention, layout="bld" if is_layer else "bhld")
    parameters = parameters_of(attention)
    if parameters is None:
        takes = causal_by_trying(attention)
        return replace(
            contract, mask=BY_POSITION, causal="is_causal" if takes else "never"
        )
    by_position = [
        name
        for name, one in parameters.items()
        if one.kind <= Parameter.POSITIONAL_OR_KEYWORD
    ]
    any_number = any(
        one.kind == Parameter.VAR_POSITIONAL for one in parameters.values()
    )
    inputs = [first_of(names, parameters) for names in INPUTS]
    mask = first_of(MASKS, parameters)
    memory = first_of(MEMORIES, parameters) if is_layer and not any(inputs[1:]) else ""
    needed = [
        name
        for name in by_position
        if name not in (mask, memory, *TURNED)
        and parameters[name].default is Parameter.empty
    ]
    one_input = is_layer and not all(inputs) and not any_number and len(needed) == 1
    memory = memory if one_input else ""
    if not mask and not one_input:
        fourth = by_position[3] if len(by_position) > 3 else ""
        default = parameters[fourth].default if fourth else None
        if fourth not in OTHERS and default in (None, Parameter.empty):
            mask = fourth or (BY_POSITION if any_number else "")
    required = mask in parameters and parameters[mask].default is Parameter.empty
    if mask in parameters and parameters[mask].kind == Parameter.POSITIONAL_ONLY:
        mask = BY_POSITION
    named = all(inputs) and all(
        parameters[one].kind != Parameter.POSITIONAL_ONLY for one in inputs
    )
    return replace(
        contract,
        inputs=tuple(inputs) if named and mask != BY_POSITION else (),
        one_input=one_input,
        memory=memory,
        mask=mask,
        mask_required=required,
        causal=first_of(CAUSAL, parameters) or "never",
        sink=first_of(SINKS, parameters),
        turned=first_of(TURNED, parameters) if is_layer else "",
    )


def first_of(names: Sequence[str], parameters: Mapping[str, Parameter]) -> str:
    """The first of these names that is a parameter, or ""."""
    return next((name for name in names if name in parameters), "")


def causal_by_trying(attention: Callable[..., Any]) -> bool:
    """Whether a function whose signature is hidden accepts `is_causal`."""
    with suppress(Exception, SystemExit):
        attention(*torch.zeros(3, 1, 1, 2, 2), is_causal=True)
        return True
    return False


def place_of(attention: object) -> tuple[torch.dtype, str]:
    """The dtype and the device of a layer's first parameter."""
    parameters = (
        attention.parameters() if isinstance(attention, nn.Module) else iter(())
    )
    first = next((one for one in parameters if one.is_floating_point()), None)
    return (torch.float32, "cpu") if first is None else (first.dtype, str(first.device))


def is_quantized(attention: object) -> bool:
    """Whether a part of a layer computes with quantized weights."""
    parts = attention.modules() if isinstance(attention, nn.Module) else ()
    return any("quantized" in type(part).__module__.split(".") for part in parts)


def with_besides(
    attention: object,
    candidates: Sequence[Candidate],
    num_heads: int,
    likely: list[Candidate],
) -> Candidate | None:
    """A candidate that agrees with what a layer or a function may have besides, or None.

    For one token, the output does not depend on positions, so only those that are right there are tried with
    positions; if none agrees, these are the likely ones.
    """
    for contract, layer in candidates:
        several: list[tuple[str, Layer | None]] = [("", layer)]
        if layer is not None and isinstance(attention, nn.Module):
            several += with_keys(attention, layer)
        for said, one in several:
            named = replace(contract, heads=f"{contract.heads} · {said}".rstrip(" ·"))
            if said and agrees(named, one, num_heads):
                return named, one
            if (one is not None and one.null is not None) or not agrees(
                named, one, num_heads, "one query and one key"
            ):
                continue
            likely.append((named, one))
            width = HEAD_DIM if one is None else one.head_dim
            more = [("normalized", x) for x in scales_of(named, num_heads, width)]
            free = "window" not in dict(named.declared)  # another one is a fault
            if one is None and free and (bias := BiasOfFunction(named))[HEADS]:
                more.append(("bias", bias))
            for way in more:
                declared = (*named.declared, way)
                whole = replace(named, declared=declared, positioned=way[0] == "bias")
                if agrees(whole, one, num_heads):
                    return whole, one
            if one is not None:
                found = _with_positions(attention, named, one, num_heads)
                if found is not None:
                    return found
    return None


def explained(
    attention: object,
    likely: Sequence[Candidate],
    others: Sequence[Candidate],
    num_heads: int,
    names_a_fault: Callable[[Contract, Layer | None], bool],
) -> Candidate | None:
    """The first candidate with which a known fault explains the outputs, or None after some time."""
    end = time.thread_time() + 2.0
    kept = attention.named_buffers() if isinstance(attention, nn.Module) else ()
    names = " ".join((*getattr(attention, "__dict__", ()), *dict(kept)))
    turns = any(word in names for word in ("rot", "rope", "freq", "cos"))
    rotated = [
        (
            replace(contract, heads=f"{contract.heads} · rotary, {kind}"),
            turned(layer, kind),
        )
        for contract, layer in likely or others
        for kind in ("halves", "neighbours")
        if layer is not None and layer.turn is None and (turns or contract.turned)
    ]
    for contract, layer in (*rotated, *likely, *others):
        with suppress(Exception, SystemExit):
            exercise = exercise_of("scores", layer, num_heads, contract)
            given = exercise._arguments(next(iter(exercise.cases)))
            output = torch.as_tensor(contract(*given)).detach()
            for wrong in exercise.wrong:
                with suppress(Exception):
                    same = nearly_equal(
                        output, wrong.answer(*given), exercise.atol, exercise.rtol
                    )
                    if same and names_a_fault(contract, layer):
                        return contract, layer
        if time.thread_time() > end:
            break
    return None


def takes_memory(contract: Contract, layer: Layer | None, num_heads: int) -> bool:
    """Whether a layer takes a second input, unless it ignores it and a flag says so."""
    exercise = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    given = exercise._arguments(next(iter(exercise.cases)))
    with suppress(Exception, SystemExit):
        before, after = (
            contract(*given[:1], *(x * y for x in given[1:])) for y in (1.0, -1.0)
        )
        parts = contract.attention.modules()  # type: ignore[attr-defined]
        flags = {
            x for part in parts for name, x in vars(part).items() if "cross" in name
        }
        ignored = torch.equal(before, after) and False in flags
        return bool(before.shape == given[0].shape) and not ignored
    return False


def _with_positions(
    attention: Any, contract: Contract, layer: Layer, num_heads: int
) -> tuple[Contract, Layer] | None:
    """The contract and layer with what depends on positions, if that is right."""
    exercise = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    # With few keys, several rotations give nearly the same numbers.
    given = exercise._arguments("seventy keys")
    with suppress(Exception, SystemExit):
        output = torch.as_tensor(contract(*given)).detach()
        for said, one in with_positions(attention, layer):
            wanted = exercise.reference(*given, **one._asdict())
            if nearly_equal(output, wanted, exercise.atol, exercise.rtol):
                return replace(contract, heads=f"{contract.heads} · {said}"), one
        bias = measured_bias(contract, layer, num_heads)
        one = layer._replace(bias=bias)
        named = replace(contract, heads=f"{contract.heads} · {bias}")
        cases = ("as many queries as keys", "seventy keys")
        if bias is not None and all(agrees(named, one, num_heads, x) for x in cases):
            return named, one
    return None


def tried(
    contract: Contract,
    layer: Layer | None,
    num_heads: int,
    case: str = "as many queries as keys",
) -> tuple[Tensor, Tensor, Exercise] | None:
    """The output of plain attention in a case, that of the formula, and the exercise; or None."""
    exercise = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    with suppress(Exception, SystemExit):
        given = exercise._arguments(case)
        # A tensor that holds no numbers, or is sparse, raises here.
        output = torch.as_tensor(contract(*given)).detach().to("cpu", torch.float64)
        return output.clone().view(output.shape), exercise.reference(*given), exercise
    return None


def agrees(contract: Contract, layer: Layer | None, num_heads: int, *case: str) -> bool:
    """Whether plain attention gives the numbers of the formula, by default with as many queries as keys."""
    found = tried(contract, layer, num_heads, *case)
    return found is not None and nearly_equal(*found[:2], found[2].atol, found[2].rtol)


def runs(contract: Contract, layer: Layer | None, num_heads: int) -> bool:
    """Whether a call returns numbers of the right shape."""
    found = tried(contract, layer, num_heads)
    return found is not None and found[0].shape == found[1].shape


def error_of(candidate: Candidate, num_heads: int) -> float:
    """How far the outputs are from those of the formula, on average; infinitely if a call raises."""
    found = tried(*candidate, num_heads)
    if found is None or found[0].shape != found[1].shape:
        return torch.inf
    return float((found[0] - found[1]).abs().mean().nan_to_num(torch.inf))


def hides_the_future(contract: Contract, layer: Layer | None, num_heads: int) -> bool:
    """Whether the output of the last position alone depends on the last key and value."""
    exercise = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    arguments = exercise._arguments(next(iter(exercise.cases)))
    changed = [x.clone() for x in arguments]
    for x in changed[0 if contract.one_input else 1 :]:
        x[..., -1, :] += 1.0
    with suppress(Exception, SystemExit):
        before, after = (
            torch.as_tensor(contract(*three)).detach() for three in (arguments, changed)
        )
        moved = (before != after).transpose(-2, 0).flatten(1).any(1)
        return bool(moved[-1]) and not bool(moved[:-1].any())
    return False


def with_causality(contract: Contract, layer: Layer | None, num_heads: int) -> Contract:
    """The contract, causal always if the attention cannot see the future and has no argument for that."""
    if contract.causal == "never" and hides_the_future(contract, layer, num_heads):
        return replace(contract, causal="always")
    return contract


def with_mask(
    contract: Contract,
    kind: str,
    layer: Layer | None,
    num_heads: int = HEADS,
    names_a_fault: Callable[[Contract], bool] = lambda _: False,
) -> Contract:
    """The contract with the form of mask that the attention accepts, or without a mask.

    A form whose call raises, or gives an output of another shape, is not that of the attention. A bool means
    "visible" unless declared, because an inverted mask is a fault; numbers that are added cannot be one.
    """
    if not contract.mask:
        return contract
    exercise = exercise_of(
        "scores", layer, num_heads, replace(contract, mask="", mask_required=False)
    )
    arguments = exercise._arguments(next(iter(exercise.cases)))
    kinds = ("visible", "added") if kind == "auto" else (kind,)
    counted = replace(contract, mask_kind="lengths")
    if kind == "lengths":
        return counted
    fits = takes_lengths(counted, exercise, arguments) if kind == "auto" else None
    if (
        fits is not None and "len" in contract.mask
    ):  # its name says what it is, even if it is wrong
        return counted
    lengths = counted if fits else None
    wrong: list[Contract] = []
    for one in _forms_that_run(contract, kinds, exercise, num_heads):
        if not wrong and (one.mask_fits or kind != "auto"):
            return replace(one, mask_fits=True)
        if lengths is not None:
            return lengths
        wrong.append(one)
    if wrong:  # several forms run, so the one whose numbers are those of a known fault is meant
        return next(filter(names_a_fault, wrong), wrong[0])
    if not contract.mask_required:
        for name in masks_of(contract) if kind == "auto" else []:
            found = fitting(replace(contract, mask=name), exercise, num_heads)
            if found is None:
                continue
            if found.mask_kind == "hidden" and "padding" not in name:  # it is inverted
                found = replace(found, mask_kind="visible", mask_fits=False)
            return found
        if contract.mask in MASKS:
            return replace(contract, mask_kind="", mask_fits=False)
        return replace(contract, mask="")
    # What must be given, and takes only lengths, is judged by them even if it is wrong.
    return contract if fits is None else counted


def masks_of(contract: Contract) -> list[str]:
    """The parameters with the name of a mask, except the one in the contract."""
    names = parameters_of(contract.attention) or {}
    return [x for x in MASKS if x in names and x != contract.mask]


def fitting(contract: Contract, exercise: Exercise, num_heads: int) -> Contract | None:
    """The contract with a form of its mask whose numbers are right, if there is one."""
    every = _forms_that_run(contract, tuple(MEANS)[:3], exercise, num_heads)
    return next((one for one in every if one.mask_fits), None)


def mask_in_form(form: str, num_heads: int, q_len: int, k_len: int) -> Tensor:
    """A random mask (BATCH or 1, num_heads or 1, q_len, k_len) that a form can express."""
    samples, heads = BATCH if "b" in form else 1, num_heads if "h" in form else 1
    mask = random_mask(Generator().manual_seed(1), samples, heads, q_len, k_len)
    return mask if "q" in form else mask[..., :1, :].expand_as(mask)


def _forms_that_run(
    contract: Contract, kinds: Sequence[str], exercise: Exercise, num_heads: int
) -> Iterator[Contract]:
    """The contract with each form and kind of mask whose call gives something of the right shape.

    In a form, kinds whose numbers are wrong count only if none is right.
    """
    arguments = exercise._arguments(next(iter(exercise.cases)))
    for form in MASK_FORMS:
        mask = mask_in_form(form, num_heads, *(x.shape[-2] for x in arguments[:2]))
        wanted = exercise.reference(*arguments, mask)
        ran = []
        for kind in kinds:
            one = replace(contract, mask_form=form, mask_kind=kind)
            with suppress(Exception, SystemExit):
                output = torch.as_tensor(one(*arguments, mask)).detach()
                if output.shape != wanted.shape:
                    continue
                fits = nearly_equal(output, wanted, exercise.atol, exercise.rtol)
                if kind == "added":  # and it is not only asked whether it is zero
                    other = replace(one, low=-1.0)(*arguments, mask)
                    less = torch.as_tensor(other).detach()
                    fits = fits and not torch.equal(less, output)
                ran.append(replace(one, mask_fits=fits))
        yield from [one for one in ran if one.mask_fits] or ran


def takes_lengths(
    contract: Contract, exercise: Exercise, arguments: Sequence[Tensor]
) -> bool | None:
    """Whether a number of visible keys for each sample is right as the mask; None if the call raises."""
    q_len, k_len = (x.shape[-2] for x in arguments[:2])
    lengths = torch.arange(BATCH).view(-1, 1, 1, 1) + 2
    mask = (torch.arange(k_len) < lengths).expand(-1, 1, q_len, -1)
    with suppress(Exception, SystemExit):
        output = torch.as_tensor(contract(*arguments, mask)).detach()
        wanted = exercise.reference(*arguments, mask)
        return nearly_equal(output, wanted, exercise.atol, exercise.rtol)
    return None
