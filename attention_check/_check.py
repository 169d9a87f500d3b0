"""Judge attention, rotary positions and decoding, and report on each aspect."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from attention_check._aspects import ASPECTS, BUILDS_ON, HEADS, blamed, exercise_of
from attention_check._besides import with_norms
from attention_check._beyond import besides_right_numbers, in_some_cases, smallest_call
from attention_check._contract import (
    CHOICES,
    DIFFERS,
    NOT_TRIED,
    RIGHT,
    WRONG,
    Contract,
    Finding,
    InexpressibleError,
    Report,
    finding_of,
    report_of_model,
)
from attention_check._discovering import (
    Candidate,
    agrees,
    contract_by_names,
    error_of,
    explained,
    is_quantized,
    place_of,
    runs,
    takes_memory,
    with_besides,
    with_causality,
    with_mask,
)
from attention_check._formula import Layer, Projections
from attention_check._judging import Exercise
from attention_check._layers import (
    Order,
    attentions_in,
    by_shape,
    call_torch_layer,
    distinct,
    evaluating,
    heads_of,
    is_model,
    orders_of,
    projections_of,
)
from attention_check._results import (
    Answer,
    Outcome,
    check_callable,
    describe_error,
    listed,
)
from mha_lib import _checks
from mha_lib.masking import _check_window


def check(
    attention: Callable[..., Any],
    *,
    projections: Projections | None = None,
    num_heads: int | None = None,
    layout: str = "auto",
    mask: str = "auto",
    arrays: str = "torch",
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    tries: Collection[str] | None = None,
    strict: bool = False,
    accept: Collection[str] = (),
) -> Report:
    """Compare an attention with the formula in float64, and name its fault.

    How to call it, and what else its formula has, is found from names and by trying; the report begins
    with it. A function takes query (batch, num_heads, q_len, head_dim), key and value (batch, num_heads,
    k_len, head_dim), or the axes of heads and positions exchanged. A layer takes query (batch, q_len,
    embed_dim), key and value, or one input, or two, the second for keys and values; its own projections are
    used. A mask has up to four axes, (batch or 1, num_heads or 1, q_len, k_len), or fewer. In a model, each
    layer of attention has a finding of its own. The result is the output, or a tuple that begins with it.

    The `Report` says aspect by aspect "right", "wrong" with the fault and its cause, "differs" where it
    follows another convention, or "not tried" with the reason, such as a call that raises.

    Args:
        attention: a function, or a layer: an `nn.MultiheadAttention`, or a module whose projections, together
            or one by one, and number of heads have one of their usual names, such as `q_proj` or `c_attn`.
        projections: for a layer that stores these four elsewhere, a dict from their names to each: an
            `nn.Linear`, a weight (out, in), or (weight, bias), as torch tensors or arrays, or its path in the
            layer, such as "linears.0". With them, any callable counts as a layer.
        num_heads: number of heads of a layer that has no such attribute.
        layout: axes of queries, keys, values and outputs of a function, "bhld" or "blhd"; found by default.
        mask: kind of mask: "visible" (bool, True = may attend), "hidden" (bool, True = may not), "added"
            (0 and -inf, added to the scores), or "lengths" (how many keys each sample sees); by default
            "visible", or one of the last two where only that fits.
        arrays: "torch"; or "numpy", also for JAX, TensorFlow and MLX, whose results are converted.
        scale: what its dot products are multiplied by, if not 1 / √head_dim: 1 for T5.
        softcap: limit of its scores, cap * tanh(scores / cap), as in Gemma 2.
        window: how many keys before and after its own position a query sees, (left, right), None for all.
        tries: which of `ASPECTS` to try; default all.
        strict: whether the report is false also where a convention differs.
        accept: which aspects, or layers of a model, may be wrong or differ: what is found there is reported,
            but is no failure.

    Raises:
        TypeError: `attention` is not callable, or a class; or a number is of the wrong type.
        ValueError: an option is not one of its choices, a number is not positive, or a layer lacks
            projections or a number of heads.

    Example:
        >>> def mine(query, key, value, mask=None):
        ...     scores = query @ key.mT / query.shape[-1] ** 0.5
        ...     if mask is not None:
        ...         scores = scores.masked_fill(mask, -torch.inf)
        ...     return scores.softmax(-1) @ value
        >>> report = check(mine, tries=["scores", "masks"])
        >>> report.findings["scores"]
        right
        >>> print(report.findings["masks"].message[:21])
        the mask is inverted.
        >>> assert check(mine, mask="hidden", tries=["scores", "masks"])
    """
    check_callable("attention", attention)
    if isinstance(attention, type):
        raise _checks.wrong_type(
            "attention", "a function or a layer, not a class", attention
        )
    for name, given in {"layout": layout, "mask": mask, "arrays": arrays}.items():
        _checks.check_choice(name, given, CHOICES[name])
    _checks.check_flags(strict=strict)
    _checks.check_settings(scale, softcap)
    _check_window(window)
    formula = {"scale": scale, "softcap": softcap, "window": window}
    declared = tuple((name, x) for name, x in formula.items() if x is not None)
    for name in tries or ():
        _checks.check_choice("tries", name, ASPECTS)
    if isinstance(attention, nn.Module) and projections is None:
        parts = [*attentions_in(attention)]
        if is_model(attention, parts):
            options: dict[str, Any] = {"mask": mask, "tries": tries, **formula}
            reports = {
                path: check(part, num_heads=num_heads, **options)
                for path, part in parts
            }
            return report_of_model(reports, strict, accept)
        attention = distinct(attention)
    layers: dict[str, Layer | None] = {"": None}
    with evaluating(attention), torch.random.fork_rng(devices=[]):
        if isinstance(attention, nn.Module) or projections is not None:
            layers, num_heads = _layers(attention, projections, num_heads)
        else:
            num_heads = HEADS
        known = Contract(attention, arrays=arrays, declared=declared)
        contract, layer = _discover(known, layers, num_heads, layout, mask)
        names = ASPECTS if tries is None else [x for x in ASPECTS if x in tries]
        findings, contract = _judge_all(names, contract, layer, num_heads)
    return Report(findings, str(contract), strict, accept=accept)


def _layers(
    attention: Any, projections: Projections | None, num_heads: int | None
) -> tuple[dict[str, Layer | None], int]:
    """The projections of a layer, in each order in which a fused one may hold them, and its heads."""
    num_heads = heads_of(attention) if num_heads is None else num_heads
    roles = []
    if projections is None and isinstance(attention, nn.Module):
        try:
            projections_of(attention, None)
        except ValueError:
            roles = [*by_shape(attention)]
    if num_heads is None and not roles:
        projections_of(attention, projections)  # what is no layer at all lacks these
    num_heads = _checks.check_int("num_heads", num_heads)
    _checks.check_positive_int("num_heads", num_heads)
    given = roles or projections is not None
    orders = [] if given else orders_of(attention, num_heads)
    found: dict[str, Layer | None] = {}
    ways = [(f"{order}", projections, order) for order in orders]
    ways = ways or [(said, given, Order()) for said, given in roles]
    for how, parts, order in ways or [("", projections, Order())]:
        linear = projections_of(attention, parts, order, num_heads)
        width = linear["q_proj"][0].shape[0]
        _checks.check_divisible(q_proj=width, num_heads=num_heads)
        said = f"{num_heads} heads" + (f" · {how}" if how else "")
        found[said] = Layer(linear, width // num_heads)
    if isinstance(attention, nn.Module):
        for said, layer in [*found.items()]:
            assert layer is not None
            for besides, whole in with_norms(attention, layer):
                found[f"{said} · {besides}"] = whole
    return found, num_heads


def _discover(
    known: Contract,
    layers: Mapping[str, Layer | None],
    num_heads: int,
    layout: str,
    mask: str,
) -> tuple[Contract, Layer | None]:
    """How an attention is called, and its projections: what is known, named, or right when tried."""
    attention: Any = known.attention
    module = attention
    is_layer = None not in layers.values()
    dtype, device = place_of(attention)
    if isinstance(attention, nn.MultiheadAttention):
        attention, mask = call_torch_layer(attention), "hidden"
    contract = contract_by_names(attention, is_layer)
    contract = replace(
        contract,
        arrays=known.arrays,
        declared=known.declared,
        dtype=dtype,
        device=device,
        quantized=is_quantized(module),
    )
    candidates = [
        (replace(one, heads=said, head_dim=layer.head_dim if layer else 0), layer)
        for one, (said, layer) in product(
            _calls(contract, is_layer, layout), layers.items()
        )
        # Of one input, a norm for queries alone would be a fault.
        if not (one.one_input and layer is not None and not layer.norms_memory)
    ]
    contract, layer = _chosen(module, candidates, num_heads)
    contract = with_causality(contract, layer, num_heads)
    if contract.causal == "never" and not agrees(contract, layer, num_heads):
        # A fault may mix positions, so that what always hides the future does not look like it.
        always = replace(contract, causal="always")
        tried = (
            one for one in (contract, always) if _names_a_fault(one, layer, num_heads)
        )
        contract = next(tried, contract)
    named = partial(_names_a_fault, layer=layer, num_heads=num_heads, aspect="masks")
    return with_mask(contract, mask, layer, num_heads, named), layer


def _chosen(
    module: object, candidates: Sequence[Candidate], num_heads: int
) -> Candidate:
    """The candidate that is right, perhaps with more besides, that a known fault explains, or the nearest."""
    fits = (pair for pair in candidates if agrees(*pair, num_heads))
    found = first = next(fits, None)
    if found is not None and not agrees(*found, num_heads, "seventy keys"):
        found = None  # a window, perhaps, which so few keys do not reach
    likely: list[Candidate] = []
    if found is None:
        found = with_besides(module, candidates, num_heads, likely)
    if found is None and first is None:
        named = partial(_names_a_fault, num_heads=num_heads)
        found = explained(module, likely, candidates, num_heads, named)
    contract, layer = (
        found or first or min(candidates, key=partial(error_of, num_heads=num_heads))
    )
    if layer is not None and (layer.turn is not None or layer.bias is not None):
        contract = replace(contract, positioned=True)
    for one, its in candidates:  # what runs and is wrong is no other contract
        if (one.heads, one.layout) != (contract.heads, contract.layout):
            continue
        if one.takes_none > contract.takes_none and runs(one, its, num_heads):
            contract = replace(contract, takes_none=True)
        if one.memory and contract.one_input and takes_memory(one, its, num_heads):
            contract = replace(contract, memory=one.memory, one_input=False)
    return contract, layer


def _calls(contract: Contract, is_layer: bool, layout: str) -> list[Contract]:
    """The ways to call an attention that its names leave open, the likeliest first."""
    layouts: tuple[str, ...] = ("bld", "lbd", "bdl")
    if not is_layer:
        layouts = ("bhld", "blhd") if layout == "auto" else (layout,)
    inputs = [contract]
    if contract.memory:
        # Two inputs say more than one, if the layer can have them.
        inputs = [replace(contract, one_input=False), replace(contract, memory="")]
    # Some always hide the future, whatever their argument says.
    causal = [*dict.fromkeys((contract.causal, "always"))]
    none = (True, False) if contract.mask_required else (False,)
    return [
        replace(one, layout=axes, causal=hides, takes_none=may_be_none)
        for may_be_none, one, axes, hides in product(none, inputs, layouts, causal)
    ]


def _names_a_fault(
    contract: Contract, layer: Layer | None, num_heads: int, aspect: str = "scores"
) -> bool:
    """Whether the outputs in an aspect are those of a known fault."""
    with suppress(InexpressibleError):
        exercise = exercise_of(aspect, layer, num_heads, contract)
        tried, _ = _without_what_raises(exercise, contract)
        return tried is not None and tried(contract).fault is not None
    return False


def _judge_all(
    names: Collection[str], contract: Contract, layer: Layer | None, num_heads: int
) -> tuple[dict[str, Finding], Contract]:
    """The finding in each aspect, as later ones depend on earlier ones, and what is known of the contract."""
    findings: dict[str, Finding] = {}
    plain = exercise_of("scores", layer, num_heads, contract, only_cases=True)
    for name in names:
        found = _judge(name, contract, layer, num_heads, findings)
        if found.kind == WRONG:
            call = smallest_call(name, contract, layer, plain, num_heads)
            found = replace(found, call=call)
            if name == "scores" and not contract.mask_fits:
                contract = replace(contract, mask_kind="")  # no form could be right
        findings[name] = found
    if contract.changes and (first := next(iter(findings), "")):
        said = f"a call changes torch's {listed(sorted(contract.changes))}, for all that runs later."
        if findings[first].kind != WRONG:
            findings[first] = Finding(WRONG, said)
        else:
            said = f"{findings[first].message} Besides, {said}"
            findings[first] = replace(findings[first], message=said)
    return findings, contract


def _judge(
    name: str,
    contract: Contract,
    layer: Layer | None,
    num_heads: int,
    findings: Mapping[str, Finding],
) -> Finding:
    """Try one aspect, case by case: what raises or cannot be expressed is not tried."""
    for needed in BUILDS_ON[name]:
        if needed in findings and findings[needed].kind == WRONG:
            return Finding(NOT_TRIED, f"fix this first: {needed}")
    if contract.quantized and name in ("empty rows", "NaN in padding", "gradients"):
        return Finding(NOT_TRIED, "quantized numbers have no NaN and no gradients")
    if name == "gradients" and contract.arrays == "numpy":
        return Finding(NOT_TRIED, "NumPy has no gradients")
    try:
        others = [one for one, found in findings.items() if not found]
        exercise = exercise_of(name, layer, num_heads, contract, conventions=others)
    except InexpressibleError as error:
        return Finding(NOT_TRIED, str(error))
    tried, reasons = _without_what_raises(exercise, contract)
    if "masks" in findings and findings["masks"].kind == WRONG:
        for case in exercise.cases:
            given = exercise._arguments(case)
            if any(getattr(x, "dtype", None) == torch.bool for x in given):
                reasons.setdefault(case, "fix this first: masks")
        tried = _without(exercise, reasons)
    if name == "gradients" and tried is not None:
        tried, more = _with_right_numbers(tried, contract)
        reasons = more | reasons
    if name == "shared keys" and next(iter(exercise.cases)) in reasons:
        return Finding(NOT_TRIED, "it takes as many key heads as query heads")
    if tried is None:
        return Finding(NOT_TRIED, next(iter(reasons.values())))
    if verdict := tried(contract):
        found = besides_right_numbers(name, tried, contract, layer, num_heads, reasons)
        left_out = _left_out(reasons)
        if found is None:
            return Finding(RIGHT, left_out)
        told = found.message.rstrip(".")
        both = found.kind == DIFFERS and left_out
        return replace(found, message=f"{told}; {left_out}") if both else found
    if name == "together":
        problems = tried._problems(tried._tried(contract), tried.reference)
        problem = next(filter(None, problems.values()), "it is not the same each time")
        return Finding(WRONG, f"wrong with {blamed(problems)}: {problem}.")
    unnamed = verdict.fault is None and name != "gradients"
    if unnamed and (said := factor(tried, contract) or in_some_cases(tried, contract)):
        return Finding(WRONG, said)
    return finding_of(verdict)


def _left_out(reasons: Mapping[str, str]) -> str:
    """What is left out, as a clause, except cases that a contract cannot express: these are no loss."""
    losses = ("it raises", "fix this first", "no case")
    raised = {case: why for case, why in reasons.items() if why.startswith(losses)}
    clauses = []
    for why in dict.fromkeys(raised.values()):
        cases = [case for case in raised if raised[case] == why]
        said = listed(cases) if len(cases) < 4 else f"{len(cases)} of the cases"
        clauses.append(f"{said}: {why}")
    return f"but not tried for {'; '.join(clauses)}" if clauses else ""


def _without_what_raises(
    exercise: Exercise, contract: Contract
) -> tuple[Exercise | None, dict[str, str]]:
    """The exercise with the cases in which the attention returns something, and why the others are gone."""
    reasons: dict[str, str] = {}
    for case in exercise.cases:
        try:
            contract(*exercise._arguments(case))
        except InexpressibleError as error:
            reasons[case] = str(error)
        except (Exception, SystemExit) as error:
            reasons[case] = describe_error(error)
    return _without(exercise, reasons), reasons


def _with_right_numbers(
    exercise: Exercise, contract: Contract
) -> tuple[Exercise | None, dict[str, str]]:
    """The exercise with the cases in which there is a gradient of the right numbers."""
    problems = exercise._problems(exercise._tried(contract), exercise.reference)
    reasons = {
        case: "its numbers are not those of the formula"
        for case, why in problems.items()
        if why
    }
    for case in exercise.cases.keys() - reasons.keys():
        got = exercise._gradients(contract, case)
        if got.error == "detached" or "use_reentrant" in got.trouble:
            reasons[case] = got.trouble
    return _without(exercise, reasons), reasons


def _without(exercise: Exercise, reasons: Collection[str]) -> Exercise | None:
    kept = {case: make for case, make in exercise.cases.items() if case not in reasons}
    return replace(exercise, cases=kept) if kept else None


def factor(exercise: Exercise, contract: Contract) -> str:
    """A sentence on the number by which the scores are multiplied, if nothing else is wrong; or ""."""
    exercise = _without(exercise, ("heads of width 64",)) or exercise
    given = exercise._arguments(next(iter(exercise.cases)))

    def scaled(times: float, *more: Any) -> Any:
        width = contract.head_dim or more[0].shape[-1]
        return exercise.reference(*more, scale=times / width**0.5)

    def error(times: float) -> float:
        return float((scaled(times, *given) - output).abs().sum())

    with suppress(Exception):
        output = torch.as_tensor(contract(*given)).detach().double().cpu()
        times = min(
            (sign * 2.0**n for sign in (1, -1) for n in range(-8, 9)), key=error
        )
        for step in range(1, 26):  # nearer and nearer
            near = (times * 2.0 ** (way * 2.0**-step) for way in (0, -1, 1))
            times = min(near, key=error)
        answer = partial(scaled, times)
        if replace(exercise, reference=answer, wrong=(), gradients=False)(contract):
            usual = (contract.head_dim or given[0].shape[-1]) ** -0.5
            number = f"{times * usual:.4g}"
            return (
                f"the scores are multiplied by {number}, where 1 / √head_dim is {usual:.4g}. If that is "
                f"meant, declare `scale={number}`."
            )
    return ""


def finding_in(exercise: Exercise, answer: Answer) -> Finding:
    """The finding in one of these exercises; a function that always raises was not tried."""
    called = [
        exercise._call(answer, exercise._arguments(case)) for case in exercise.cases
    ]
    raised = [one.trouble for one in called if isinstance(one, Outcome) and one.error]
    if len(raised) == len(called):
        return Finding(NOT_TRIED, raised[0])
    return finding_of(exercise(answer))
