"""Find out by trying how somebody's attention is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import Parameter
from typing import Any

import torch
from torch import Generator, Tensor, nn

from attention_check._aspects import BATCH, HEADS, exercise_of, random_mask
from attention_check._contract import BY_POSITION, FORMS, Contract
from attention_check._formula import Layer
from attention_check._judging import Exercise
from attention_check._results import nearly_equal

# Names of parameters; all others are told by their position.
INPUTS = ("query q queries xq".split(), "key k keys".split(), "value v values".split())
# One input for keys and values, beside that for queries.
MEMORIES = """memory context encoder_hidden_states key_value_states encoder_output enc_out cond xa y kv x_kv
    source""".split()
MASKS = """mask attn_mask attention_mask key_padding_mask padding_mask src_mask visible allowed valid_lens
    lengths""".split()
CAUSAL = "is_causal causal use_causal_mask".split()
SINKS = "sink sinks".split()
NO_MASKS = """dropout dropout_p p scale scaling temperature training need_weights return_weights
    output_attentions return_attention past_key_value layer_past use_cache cache head_mask rope
    freqs_cis position_ids positions enable_gqa eps""".split()
OTHERS = {*NO_MASKS, *CAUSAL, *SINKS}


def parameters_of(attention: Any) -> Mapping[str, Parameter] | None:
    """The parameters of a function or of a module's `forward`; None if they cannot be seen."""
    called = attention.forward if isinstance(attention, nn.Module) else attention
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):  # it is not written in Python
        return None


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
        if name not in (mask, memory) and parameters[name].default is Parameter.empty
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


def agrees(contract: Contract, layer: Layer | None, num_heads: int) -> bool:
    """Whether plain attention, with as many queries as keys, gives the numbers of the formula."""
    exercise = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    case = next(iter(exercise.cases))
    with suppress(Exception, SystemExit):
        output = torch.as_tensor(contract(*exercise._arguments(case)))
        wanted = exercise.reference(*exercise._arguments(case))
        return nearly_equal(output.detach(), wanted, exercise.atol, exercise.rtol)
    return False


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
    contract: Contract, kind: str, layer: Layer | None, num_heads: int = HEADS
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
    lengths = counted if fits else None
    for form in FORMS:
        q_len, k_len = (x.shape[-2] for x in arguments[:2])
        samples, heads = (
            (BATCH if "b" in form else 1),
            (num_heads if "h" in form else 1),
        )
        mask = random_mask(Generator().manual_seed(1), samples, heads, q_len, k_len)
        mask = mask if "q" in form else mask[..., :1, :].expand_as(mask)
        wanted = exercise.reference(*arguments, mask)
        ran: dict[str, bool] = {}
        for one in kinds:
            tried = replace(contract, mask_form=form, mask_kind=one)
            with suppress(Exception, SystemExit):
                output = torch.as_tensor(tried(*arguments, mask)).detach()
                if output.shape == wanted.shape:
                    ran[one] = nearly_equal(
                        output, wanted, exercise.atol, exercise.rtol
                    )
                    if one == "added":  # and it is not only asked whether it is zero
                        less = torch.as_tensor(
                            replace(tried, low=-1.0)(*arguments, mask)
                        ).detach()
                        ran[one] = ran[one] and not torch.equal(less, output)
        if ran:
            right = [one for one, is_right in ran.items() if is_right]
            found = replace(contract, mask_form=form, mask_kind=[*right, *ran][0])
            return found if right or kind != "auto" else lengths or found
    if not contract.mask_required:
        return replace(contract, mask="")
    # What must be given, and takes only lengths, is judged by them even if it is wrong.
    return contract if fits is None else counted


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
