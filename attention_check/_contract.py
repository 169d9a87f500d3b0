"""The contract of somebody's attention, by which it is called as the formula is, and the report on it."""

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_check._formula import named_arguments
from attention_check._results import Answer, Verdict, as_tensor, listed
from mha_lib import _checks

CHOICES = {  # the first one is the default
    "layout": ("auto", "bhld", "blhd"),
    "mask": ("auto", "visible", "hidden", "added", "lengths"),
    "arrays": ("torch", "numpy"),
}
# Forms of a mask, the most general first. Along an axis that a form lacks or has as 1, nothing differs.
MASK_FORMS = ("bhqk", "b1qk", "b11k", "bqk", "bk", "qk")
AXES = {"b": "batch", "h": "heads", "q": "q_len", "k": "k_len", "1": "1"}
MEANS = {
    "visible": "True = visible",
    "hidden": "True = hidden",
    "added": "0 or -inf",
    "lengths": "numbers of visible keys",
}
LAYOUTS = {
    "bhld": "(batch, heads, len, head_dim)",
    "blhd": "(batch, len, heads, head_dim)",
    "bld": "(batch, len, width)",
    "lbd": "(len, batch, width)",
    "bdl": "(batch, width, len)",
}
# The axes that a layout exchanges, compared with the formula's own.
EXCHANGED = {"blhd": (1, 2), "lbd": (0, 1), "bdl": (1, 2)}
BY_POSITION = "*"


class InexpressibleError(ValueError):
    """A contract cannot say something, such as a mask for each head; the message gives the reason."""


@dataclass(frozen=True)
class Contract:
    """How an attention is called. It is itself called with the arguments of the formula."""

    attention: Answer
    # The parameters for query, key and value; without them, the three are passed by position.
    inputs: tuple[str, ...] = ()
    one_input: bool = False
    memory: str = ""  # the parameter for keys and values, which are one input
    layout: str = "bhld"
    mask: str = ""  # the parameter, BY_POSITION, or "" if there is none
    mask_kind: str = "visible"  # "" if none is known
    mask_form: str = "bhqk"
    low: float = -torch.inf  # what a mask that is added holds for hidden keys
    mask_fits: bool = True  # whether this kind and form give the right numbers
    mask_required: bool = False
    takes_none: bool = False  # a required mask may be None, when all is seen
    causal: str = "never"  # "always", "never", or the parameter
    sink: str = ""
    arrays: str = "torch"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    quantized: bool = False
    # Where positions matter, those of fewer queries than keys are a convention, so they are not tried.
    positioned: bool = False
    turned: str = ""  # the parameter for cosines and sines of rotary positions
    more: tuple[tuple[str, Any], ...] = ()  # further arguments of every call
    head_dim: int = 0
    heads: str = ""  # for a layer, where its heads and projections were found
    # What its formula has besides, as declared: scale, softcap, window.
    declared: tuple[tuple[str, Any], ...] = ()
    # What its calls have changed of torch's own state, in words.
    changes: set[str] = field(default_factory=set, compare=False)

    @property
    def square(self) -> bool:
        """Whether it can only be tried with as many queries as keys."""
        return self.one_input or self.positioned

    def __str__(self) -> str:
        """The contract on one line: "layer, one input, 12 heads · fused q, k, v · causal always · …"."""
        kind = "layer" if self.heads else "function"
        inputs = "one input" if self.one_input else "query, key, value"
        if self.memory:
            inputs = f"queries from one input, keys and values from `{self.memory}`"
        mask = "no mask"
        if self.mask:
            name = "" if self.mask == BY_POSITION else f"`{self.mask}` "
            form = "b" if self.mask_kind == "lengths" else self.mask_form
            axes = ", ".join(AXES[letter] for letter in form)
            means = f"({axes}), {MEANS.get(self.mask_kind)}"
            mask = f"mask {name}{means if self.mask_kind else 'of an unknown form'}"
        causal = (
            self.causal if self.causal in ("always", "never") else f"by `{self.causal}`"
        )
        dtype = str(self.dtype).removeprefix("torch.")
        parts = [
            f"{kind}, {inputs}, {LAYOUTS[self.layout]}",
            self.heads,
            mask,
            f"causal {causal}",
            *(_said(name, value) for name, value in self.declared),
            f"{dtype}, quantized" if self.quantized else dtype,
        ]
        where = "NumPy" if self.arrays == "numpy" else self.device.upper()
        return " · ".join([*filter(None, parts), where])

    def __call__(self, *given: Any) -> Any:
        return self.output_of(self._returned(*given))

    def output_of(self, returned: Any) -> Any:
        """The output in what a call returns, with the axes of the formula."""
        output = first_result(returned)
        try:
            is_text = isinstance(as_tensor(output, arrays=True), str)
        except TypeError as error:
            raise InexpressibleError(f"it returns {error}") from None
        if is_text:
            raise InexpressibleError("it returns a str, where a tensor is expected")
        if self.layout in ("bhld", "bld"):
            return output
        return torch.as_tensor(output).transpose(*EXCHANGED[self.layout])

    def second_result(self, *given: Any) -> Tensor | None:
        """What is returned beside the output, such as the weights; None if it is no tensor of numbers."""
        returned = self._returned(*given)
        several = isinstance(returned, tuple) and len(returned) > 1
        second = returned[1] if several else None
        is_float = isinstance(second, Tensor) and second.is_floating_point()
        return second if is_float else None

    def _returned(self, *given: Any) -> Any:
        """What the attention returns for the arguments of the formula."""
        query, key, value, visible, is_causal, sink = named_arguments(given).values()
        if visible is None and self.mask_required and not self.takes_none:
            visible = torch.ones(
                len(query), 1, query.shape[-2], key.shape[-2], dtype=torch.bool
            )
        single = self.one_input or self.memory
        positional = [
            self._sent(x) for x in ([query] if single else [query, key, value])
        ]
        options: dict[str, Any] = {}
        if self.memory:
            options[self.memory] = self._sent(key)
        if self.inputs:
            options, positional = dict(zip(self.inputs, positional, strict=True)), []
        if visible is not None or self.takes_none:
            told = None if visible is None else self._told(visible, len(query))
            if self.mask == BY_POSITION:
                positional.append(told)
            else:
                options[self.mask] = told
        if is_causal and self.causal != "always":
            if self.causal == "never":
                raise InexpressibleError("it takes no `is_causal`")
            options[self.causal] = True
        if self.turned:
            options[self.turned] = self.rotation(query.shape[-2])
        if sink is not None:
            if not self.sink:
                raise InexpressibleError("it takes no `sink`")
            options[self.sink] = self._array(self._own(sink))
        options |= self.more
        return watched(self.changes, self.attention, *positional, **options)

    def rotation(self, length: int, *rates: float) -> tuple[Tensor, Tensor]:
        """Cosines and sines (1 or batch, len, head_dim), as HuggingFace's models hand them to layers.

        Of each sample, the positions are multiplied by its own rate, or by 1.
        """
        half = self.head_dim // 2
        paces = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        positions = torch.outer(torch.tensor(rates or [1.0]), torch.arange(length))
        angles = positions.unsqueeze(-1) * paces.repeat(2)
        return self._own(angles.cos()), self._own(angles.sin())

    def _own(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype)

    def _array(self, x: Tensor) -> Any:
        return x.detach().numpy() if self.arrays == "numpy" else x

    def _sent(self, x: Tensor) -> Any:
        """An input with the dtype, the device and the axes that the attention expects."""
        x = self._own(x)
        if self.layout in EXCHANGED:
            x = x.transpose(*EXCHANGED[self.layout])
        return self._array(x)

    def _told(self, visible: Tensor, batch: int) -> Any:
        """A mask (batch or 1, heads or 1, q_len, k_len), True = visible, as the attention expects it."""
        if not self.mask:
            raise InexpressibleError("it takes no mask")
        if not self.mask_kind:
            raise InexpressibleError(f"no form of `{self.mask}` was found that works")
        if self.mask_kind == "lengths":
            return self._array(lengths_of(visible, batch).to(self.device))
        mask = in_form(visible, self.mask_form, batch).to(self.device)
        if self.mask_kind == "hidden":
            mask = ~mask
        elif self.mask_kind == "added":
            mask = torch.zeros(
                mask.shape, dtype=self.dtype, device=self.device
            ).masked_fill(~mask, self.low)
        return self._array(mask)


def input_names(contract: Contract) -> str:
    return "x" if contract.one_input else "qk" if contract.memory else "qkv"


def call_as_code(contract: Contract, given: tuple[Any, ...]) -> str:
    """The call itself, with the arguments that the contract passes."""
    told: list[Any] = []

    def record(*by_position: Any, **options: Any) -> Tensor:
        told.extend((by_position, options))
        return torch.zeros(1, 1, 1, 1)

    replace(contract, attention=record)(*given)
    by_position, options = told
    names = iter(input_names(contract))
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


def _said(name: str, value: Any) -> str:
    if name == "normalized":
        times = "a number of each head" if isinstance(value, Tensor) else f"{value:.4g}"
        return f"queries and keys of length 1, times {times}"
    return str(value) if name == "bias" else f"{name} {value}"


def lengths_of(visible: Tensor, batch: int) -> Tensor:
    """How many keys each sample sees; InexpressibleError if these are not the first ones, for all queries."""
    lengths = visible[:, 0, 0].sum(-1)
    first = torch.arange(visible.shape[-1]) < lengths.view(-1, 1, 1, 1)
    if not torch.equal(first.expand_as(visible), visible):
        raise InexpressibleError("its mask can only hide the last keys of a sample")
    return lengths.expand(batch)


def in_form(visible: Tensor, form: str, batch: int) -> Tensor:
    """A mask of four axes with the axes of a form; InexpressibleError if that would lose something."""
    ones = (
        form
        if len(form) == 4
        else "".join(letter if letter in form else "1" for letter in "bhqk")
    )
    for axis, letter in enumerate(ones):
        if letter == "1":
            first = visible.narrow(axis, 0, 1)
            if not torch.equal(first.expand_as(visible), visible):
                axes = ", ".join(AXES[one] for one in form)
                raise InexpressibleError(f"its mask is ({axes})")
            visible = first
    if form != "bhqk" and ones[0] == "b":
        visible = visible.expand(batch, -1, -1, -1)
    dropped = [
        axis
        for axis, letter in enumerate("bhqk")
        if len(form) < 4 and letter not in form
    ]
    return visible.squeeze(dropped) if dropped else visible


# What a call must leave as it was: how to read it, and how to put it back.
STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "seed": (torch.initial_seed, lambda _: None),  # each call of the judge sets its own
}


def watched(changes: set[str], called: Answer, *given: Any, **options: Any) -> Any:
    """What a call returns; what it changes of torch's state is added to `changes`, and put back."""
    before = {name: read() for name, (read, _) in STATE.items()}
    try:
        return called(*given, **options)
    finally:
        for name, (read, put_back) in STATE.items():
            if read() != before[name]:
                changes.add(name)
                put_back(before[name])


def first_result(returned: Any) -> Any:
    """The output, without weights or a cache."""
    many = isinstance(returned, (list, tuple))
    first = next(iter(returned), None) if many else returned
    # A list of lists of numbers is an output itself.
    return returned if type(first) is type(returned) is list else first


RIGHT, WRONG, DIFFERS, NOT_TRIED = KINDS = ("right", "wrong", "differs", "not tried")


@dataclass(frozen=True, repr=False)
class Finding:
    """The finding in one aspect: its `kind` and, where there is something to say, a `message`.

    The kinds are "right", "wrong", "differs" (a convention: it is right elsewhere) and "not tried". A finding
    is true if it is "right".

    Raises:
        TypeError: `message` is not a str.
        ValueError: `kind` is none of the four.

    Example:
        >>> Finding("not tried", "it takes no mask")
        not tried: it takes no mask
        >>> assert Finding("right")
    """

    kind: str
    message: str = ""
    call: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _checks.check_choice("kind", self.kind, KINDS)
        _checks.check_type("message", self.message, str)
        _checks.check_type("call", self.call, str)

    def __bool__(self) -> bool:
        return self.kind == RIGHT

    def __repr__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def finding_of(verdict: Verdict) -> Finding:
    """A verdict as a finding: what is right elsewhere only differs."""
    if verdict:
        return Finding(RIGHT)
    convention = verdict.fault is not None and verdict.fault.convention
    return Finding(
        DIFFERS if convention else WRONG, verdict.message.removeprefix("Not yet: ")
    )


@dataclass(frozen=True)
class Report:
    """The findings, aspect by aspect; true if something was tried and nothing is wrong.

    Attributes:
        findings: aspect -> `Finding`.
        contract: how the attention was called, in words.
        strict: whether what differs counts as wrong.
        pinned: the contract that was written down earlier; a different one is a failure.
        accept: aspects whose findings are known and no failure.

    Example:
        >>> reason = Finding("not tried", "it takes no `is_causal`")
        >>> report = Report({"scores": Finding("right"), "causal": reason})
        >>> report
        scores         right
        causal         not tried: it takes no `is_causal`
        >>> report.status
        0
    """

    findings: Mapping[str, Finding]
    contract: str = ""
    strict: bool = False
    pinned: str = ""
    accept: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in self.accept:
            _checks.check_choice("accept", name, self.findings)

    @property
    def changed(self) -> bool:
        """Whether the contract is another one than was pinned."""
        return self.pinned not in ("", self.contract)

    @property
    def status(self) -> int:
        """The exit status: 0 if nothing is wrong, 1 if something is, 2 if nothing could be tried."""
        every = self.findings.items()
        kinds = {found.kind for name, found in every if name not in self.accept}
        if self.changed or WRONG in kinds or (self.strict and DIFFERS in kinds):
            return 1
        return 0 if any(found.kind != NOT_TRIED for _, found in every) else 2

    def __bool__(self) -> bool:
        return self.status == 0

    def __repr__(self) -> str:
        folded = partial(textwrap.fill, width=80, break_on_hyphens=False)
        judged = f"judged as: {self.contract}"
        lines = [folded(judged, subsequent_indent=" " * 11)] if self.contract else []
        if self.changed:
            pinned = f"pinned as: {self.pinned}. The contract has changed."
            lines.append(folded(pinned, subsequent_indent=" " * 11))
        for name, found in self.findings.items():
            known = name in self.accept and found.kind in (WRONG, DIFFERS)
            said = f"{name:14} {'accepted, ' * known}{found}"
            lines.append(folded(said, subsequent_indent=" " * 15))
            if found.call:  # one line, so that it can be pasted
                lines += [" " * 15 + "The smallest call that shows it:", found.call]
        return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """A report in a form that JSON supports."""
    found = {
        name: {"verdict": one.kind, "message": one.message}
        | ({"call": one.call} if one.call else {})
        for name, one in report.findings.items()
    }
    pinned = {"pinned": report.pinned} if report.pinned else {}
    return {
        "contract": report.contract,
        **pinned,
        "status": report.status,
        "findings": found,
    }


def report_of_model(
    reports: Mapping[str, Report], strict: bool, accept: Collection[str]
) -> Report:
    """One report on the attention layers of a model, with a finding for each."""
    findings: dict[str, Finding] = {}
    for path, report in reports.items():
        told = report.findings.items()
        kinds = {one.kind for one in report.findings.values()}
        kind = next(one for one in (WRONG, DIFFERS, RIGHT, NOT_TRIED) if one in kinds)
        right = listed([aspect for aspect, one in told if one])
        said = [f"{aspect}: {one.message}" for aspect, one in told if one.kind == kind]
        if kind == RIGHT:
            said = [right]
        elif right:
            said.append(f"Right: {right}.")
        calls = (one.call for _, one in told if one.call)
        findings[path] = Finding(kind, " ".join(said), next(calls, ""))
    contracts = Counter(report.contract for report in reports.values())
    judged = "; ".join(f"{count} × {one}" for one, count in contracts.items())
    return Report(findings, f"model, {judged}", strict, accept=accept)
