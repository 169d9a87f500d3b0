"""Is my attention right? Judge any attention against the formula in float64, and name its fault.

In Python, call `check`. From a shell, with exit status 1 if something is wrong (`--help` lists options):

    python -m mha_lib.conformance my_package.my_module:my_attention

For other languages, `--vectors` prints cases as JSON, and `--results FILE` judges the results. In pytest,
`-p mha_lib.pytest_plugin` provides the fixture `assert_conforms`.

Each *aspect* of attention, such as its masks, is an `Exercise` of `_judging`. `conformance.md` contains its
cases and known faults; the faults are edits of the formula below.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Generator, Tensor, nn

from mha_lib import _checks
from mha_lib._judging import Answer, Exercise, Verdict, randn
from mha_lib._judging import _check_callable as check_callable
from mha_lib._texts import Texts

Linear: TypeAlias = tuple[Tensor, Tensor | None]
Projections: TypeAlias = Mapping[str, Any]
Layer: TypeAlias = tuple[Mapping[str, Linear], int]  # projections and head_dim

# A fault in an aspect that others build on would appear in them again, and not be recognized there.
_BUILDS_ON: dict[str, tuple[str, ...]] = {
    "scores": (),
    "masks": ("scores",),
    "empty rows": ("scores", "masks"),
    "NaN in padding": ("scores", "masks"),
    "causal": ("scores",),
    "shared keys": ("scores",),
    "sinks": ("scores",),
    "gradients": ("scores", "masks", "empty rows"),
}
ASPECTS = tuple(_BUILDS_ON)
BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM = 2, 3, 5, 7, 11
FORMAT = "attention conformance 1"
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
_OPTIONS = {"causal": "is_causal", "sinks": "sink"}
_CHOICES = {  # the first one is the default
    "layout": ("bhld", "blhd"),
    "mask": ("visible", "hidden", "added"),
    "arrays": ("torch", "numpy"),
}
_texts = Texts(__name__, few=True)


# ------------------------------------------------------------------ the formula
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    sink: Tensor | None = None,
) -> Tensor:
    """Attention of heads in float64; keys that no query sees are cleared; neighbouring heads share keys."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    q_len, k_len = query.shape[-2], key.shape[-2]
    visible = torch.ones(*query.shape[:-1], k_len, dtype=torch.bool)
    if mask is not None:
        visible = visible & mask
    if is_causal:
        visible = visible.tril(k_len - q_len)  # queries and keys end together
    unseen = ~visible.any(-2).unsqueeze(-1)
    key, value = key.masked_fill(unseen, 0.0), value.masked_fill(unseen, 0.0)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    fill = torch.where(visible.any(-1, keepdim=True), -torch.inf, 0.0)
    weights = torch.where(visible, scores, fill).softmax(-1) * visible
    if sink is None:
        return weights @ value
    # A softmax with an additional logit: exp(sink) joins the denominator, but has no value.
    limit = sink.double().view(-1, 1, 1)
    hidden = scores.masked_fill(~visible, -torch.inf)
    total = hidden.logsumexp(-1, keepdim=True)
    pooled: Tensor = weights * (total - limit).sigmoid() @ value
    return pooled


def _named(given: Sequence[Any]) -> dict[str, Any]:
    """All arguments of the formula by their names."""
    bound = inspect.signature(_attention).bind(*given)
    bound.apply_defaults()
    return bound.arguments


def _layer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    linear: Mapping[str, Linear],
    head_dim: int,
) -> Tensor:
    """The formula between the projections of a layer, in float64."""
    inputs = zip(NAMES[:3], (query, key, value), strict=True)
    projected = [F.linear(x.double(), *linear[name]) for name, x in inputs]
    split = (x.unflatten(-1, (-1, head_dim)).transpose(1, 2) for x in projected)
    query, key, value = split
    heads = _attention(query, key, value, mask, is_causal)
    merged = heads.transpose(1, 2).flatten(-2)
    return F.linear(merged, *linear["out_proj"])


def _rotary(
    x: Tensor, positions: Tensor, base: float = 10_000.0, interleaved: bool = True
) -> Tensor:
    """Rotate pairs of columns by position * base^(-2i / head_dim), in float64."""
    x, half = x.double(), x.shape[-1] // 2
    angles = positions.double().unsqueeze(-1) * base ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, -1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned: Tensor = torch.stack(pair, -1 if interleaved else -2).flatten(-2)
    return turned


class _Decoder:
    """Causal attention with a cache."""

    def __init__(self, rotated: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        self.rotated = rotated
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = sum(part.shape[2] for part in self.keys)
        places = seen + torch.arange(query.shape[2])
        if self.rotated is not None:
            query, key = self.rotated(query, places), self.rotated(key, places)
        self.keys.append(key)
        self.values.append(value)
        keys, values = torch.cat(self.keys, 2), torch.cat(self.values, 2)
        return _attention(query, keys, values, None, True)


# ------------------------------------------------------------------ cases
def _inputs(
    g: Generator,
    q_len: int = Q_LEN,
    k_len: int = K_LEN,
    heads: tuple[int, int] = (HEADS, HEADS),
    head_dim: int = HEAD_DIM,
    widths: tuple[int, ...] | None = None,
) -> tuple[Tensor, ...]:
    """Query, key and value of heads or, if widths are given, of a layer."""
    lens = (q_len, k_len, k_len)
    if widths is not None:
        return tuple(randn(g, BATCH, *size) for size in zip(lens, widths, strict=True))
    sizes = zip((heads[0], heads[1], heads[1]), lens, strict=True)
    return tuple(randn(g, BATCH, *size, head_dim) for size in sizes)


def _large(three: tuple[Tensor, ...], factor: float) -> tuple[Tensor, ...]:
    return factor * three[0], *three[1:]


def _spoiled(three: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Put NaN where the padding is."""
    for x in three[1:]:
        for sample, length in enumerate((5, 3)):
            x[sample, ..., length:, :] = torch.nan
    return three


def _random_mask(g: Generator, samples: int, heads: int) -> Bool[Tensor, "b h q k"]:
    """Draw a mask in which every query sees the first key."""
    mask = torch.rand(samples, heads, Q_LEN, K_LEN, generator=g) > 0.5
    mask[..., 0] = True
    return mask


def _padding() -> Bool[Tensor, "b 1 q k"]:
    """Mask for samples of 5 and 3 keys."""
    lens = torch.tensor([5, 3]).view(-1, 1, 1, 1)
    return (torch.arange(K_LEN) < lens).expand(-1, 1, Q_LEN, -1)


def _blind(g: Generator, queries: int | slice = slice(None)) -> Bool[Tensor, "b 1 q k"]:
    """Draw a mask in which these queries of the second sample see nothing."""
    mask = _random_mask(g, BATCH, 1)
    mask[1, :, queries] = False
    return mask


# ------------------------------------------------------------------ what is judged
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


@dataclass(frozen=True)
class _Subject:
    """The attention that is judged, called in the same way as the formula."""

    attention: Answer
    positions_first: bool
    mask: str
    arrays: str

    def __call__(self, *given: Any) -> Any:
        *three, visible, is_causal, sink = _named(given).values()
        inputs = [self._moved(x) for x in three]
        if visible is not None:
            inputs.append(self._convention(visible))
        options: dict[str, Any] = {} if sink is None else {"sink": sink}
        if self.arrays == "numpy":
            inputs = [x.numpy() for x in inputs]  # type: ignore[misc]
            options = {name: x.numpy() for name, x in options.items()}
        if is_causal:
            options["is_causal"] = True
        output = _first(self.attention(*inputs, **options))
        if output is None or not self.positions_first:
            return output
        return self._moved(torch.as_tensor(output))

    def _moved(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2) if self.positions_first else x

    def _convention(self, visible: Tensor) -> Tensor:
        if self.mask == "added":
            return torch.where(visible, 0.0, -torch.inf)
        return ~visible if self.mask == "hidden" else visible

    def lacks(self, aspect: str) -> str:
        """Why an aspect cannot be tried, or ""."""
        if aspect == "gradients" and self.arrays == "numpy":
            return "NumPy has no gradients"
        if aspect == "shared keys":
            try:
                self(*_inputs(Generator(), heads=(6, 2)))
            except (Exception, SystemExit):
                return "it takes as many key heads as query heads"
        option = _OPTIONS.get(aspect, "")
        called = getattr(self.attention, "forward", self.attention)  # for a module
        try:
            parameters = inspect.signature(called).parameters
        except (TypeError, ValueError):  # the function is not written in Python
            unseen = f"its signature hides `{option}`; name {aspect!r} in `tries`"
            return unseen if option else ""
        kinds = [one.kind for one in parameters.values()]
        named = [kind for kind in kinds if kind <= Parameter.POSITIONAL_OR_KEYWORD]
        takes_mask = len(named) > 3 or Parameter.VAR_POSITIONAL in kinds
        if not takes_mask and "masks" in (aspect, *_BUILDS_ON[aspect]):
            return "it takes no mask as a fourth argument"
        return f"it takes no `{option}`" if option and option not in parameters else ""


def _first(returned: Any) -> Any:
    """The output, without weights or a cache."""
    return returned[0] if isinstance(returned, (tuple, list)) else returned


def _projections(layer: Any, given: Projections | None) -> dict[str, Linear]:
    """Weight (out, in) and bias of each projection, as tensors in float64."""
    if given is None and isinstance(layer, nn.MultiheadAttention):
        weights: Any = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        if layer.in_proj_weight is not None:
            weights = layer.in_proj_weight.chunk(3)
        bias = layer.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        pairs = (*zip(weights, biases, strict=True), layer.out_proj)
        given = dict(zip(NAMES, pairs, strict=True))
    found: dict[str, Linear] = {}
    for name in NAMES:
        one = getattr(layer, name, None) if given is None else given.get(name)
        if one is None:
            rule = f"hold {', '.join(NAMES)}, each an nn.Linear or (weight, bias)"
            raise _checks.refusal("projections", rule, f"none for {name}")
        pair = (one.weight, one.bias) if isinstance(one, nn.Module) else one
        weight, bias = pair if isinstance(pair, (tuple, list)) else (pair, None)
        found[name] = _double(weight), None if bias is None else _double(bias)
    return found


def _double(array: Any) -> Tensor:
    return torch.as_tensor(array).detach().double()


def _torch_layer(layer: nn.MultiheadAttention) -> Answer:
    """Torch's own layer, called with (batch, len, width) and a mask of four axes, True = hidden."""

    def attend(*inputs: Tensor) -> Tensor:
        hidden = inputs[3] if len(inputs) > 3 else None
        if hidden is not None:
            shape = (len(inputs[0]), layer.num_heads, *hidden.shape[2:])
            hidden = hidden.expand(shape).flatten(0, 1)
        three = [x if layer.batch_first else x.transpose(0, 1) for x in inputs[:3]]
        output: Tensor = layer(*three, attn_mask=hidden)[0]
        return output if layer.batch_first else output.transpose(0, 1)

    return attend


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
        _checks.check_choice(name, given, _CHOICES[name])
    for name in tries or ():
        _checks.check_choice("tries", name, ASPECTS)
    subject = _Subject(attention, layout == "blhd", mask, arrays)
    if not isinstance(attention, nn.Module) and projections is None:
        return _judge(subject, tries)
    linear = _projections(attention, projections)
    if num_heads is None:
        num_heads = getattr(attention, "num_heads", None)
    num_heads = _checks.check_int("num_heads", num_heads)
    _checks.check_positive_int("num_heads", num_heads)
    width = linear["q_proj"][0].shape[0]
    _checks.check_divisible(q_proj=width, num_heads=num_heads)
    if isinstance(attention, nn.MultiheadAttention):
        subject = _Subject(_torch_layer(attention), False, "hidden", "torch")
    with _evaluating(attention):
        return _judge(subject, tries, (linear, width // num_heads), num_heads)


@contextmanager
def _evaluating(attention: object) -> Iterator[None]:
    """Switch dropout off for a while."""
    modules = attention.modules() if isinstance(attention, nn.Module) else ()
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _bound(exercise: Exercise, given: Mapping[str, Any]) -> Exercise:
    """The exercise, with these arguments passed to its answers in addition to those of the cases."""
    right, known = partial(exercise.reference, **given), exercise.wrong
    wrong = [replace(one, answer=partial(one.answer, **given)) for one in known]
    return replace(exercise, reference=right, wrong=wrong)


def _aspect(name: str, layer: Layer | None = None, num_heads: int = HEADS) -> Exercise:
    """The exercise of one aspect, for functions or for a layer."""
    more: dict[str, Any] = {"reference": _attention}
    widths, axes = None, "batch, num_heads, q_len, head_dim"
    if layer is not None:
        widths = tuple(layer[0][proj][0].shape[1] for proj in NAMES[:3])
        more, axes = {"reference": _layer}, "batch, q_len, embed_dim"
        if name == "scores":
            more["also"] = _texts.mistakes("layer", _layer)
    more["names"] = {"_inputs": partial(_inputs, widths=widths), "num_heads": num_heads}
    more |= {"returns": f"output ({axes})", "gradients": name == "gradients"}
    given = dict(zip(("linear", "head_dim"), layer or (), strict=False))
    return _bound(_texts(name, takes="attention", atol=2e-5, **more), given)


def _judge(subject: _Subject, tries: Collection[str] | None, *layer: Any) -> Report:
    """Try one aspect after another; `layer` are the arguments of `_aspect` for a layer."""
    findings: dict[str, Verdict | str] = {}
    for name in ASPECTS if tries is None else filter(tries.__contains__, ASPECTS):
        reason = subject.lacks(name) if tries is None else ""
        for one in _BUILDS_ON[name]:
            if isinstance(found := findings.get(one), Verdict) and not found:
                reason = reason or f"mend this first: {one}"
        findings[name] = reason or _aspect(name, *layer)(subject)
    return Report(findings)


# ------------------------------------------------------------------ rotary positions, and decoding
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
    exercise = _texts("rotary", reference=_rotary, returns=returns, **near)
    return _bound(exercise, {"base": base, "interleaved": interleaved})(rotate)


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
    Arguments and errors are those of `conformance.check_rotary`, which explains `base` and `interleaved`.

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
    rotated = partial(_rotary, base=base, interleaved=interleaved) if rotary else None

    def run(
        answer: Answer, query: Tensor, key: Tensor, value: Tensor, *sizes: int
    ) -> Tensor:
        step = answer()
        chunks = zip(*(x.split(sizes, 2) for x in (query, key, value)), strict=True)
        return torch.cat([torch.as_tensor(_first(step(*chunk))) for chunk in chunks], 2)

    exercise = _texts(
        "decoding",
        reference=_Decoder,
        also=_texts.mistakes("rotary decoding", _Decoder) if rotary else (),
        returns="output (batch, num_heads, len, head_dim)",
        run=run,
        atol=1e-4,
        rtol=1e-3,
    )
    return _bound(exercise, {"rotated": rotated})(start)


# ------------------------------------------------------------------ other languages, and the shell
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
        for number, (case, make) in enumerate(_aspect(aspect).cases.items()):
            given = _named(make(Generator().manual_seed(number)))
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
        'there is no result'
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
    findings: dict[str, Verdict | str] = {}
    for aspect, mine in outputs.items():
        # An exercise calls its answer on every case in turn, and on the last one twice.
        replies = iter([*mine, mine[-1]])
        findings[aspect] = "there is no result"
        if not any(one is None for one in mine):
            findings[aspect] = _aspect(aspect)(lambda *_, of=replies: next(of))
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the `arguments` of a command line, by default those of this process; see `--help`.

    The exit status is 0 if everything is right, 1 if something is wrong, 2 if it could not be tried.

    Raises:
        SystemExit: the arguments are invalid.

    Example:
        >>> main(["torch.nn.functional:scaled_dot_product_attention", "--tries", "scores"])
        scores         right
        0
    """
    parser = argparse.ArgumentParser(
        prog="python -m mha_lib.conformance", description="Is my attention right?"
    )
    add = parser.add_argument
    add("attention", nargs="?", help="module:function, or module:layer")
    for option, choices in _CHOICES.items():
        add(f"--{option}", choices=choices, default=choices[0])
    add("--tries", nargs="+", choices=ASPECTS, metavar="ASPECT")
    add("--vectors", action="store_true", help="print the cases as JSON")
    add("--results", metavar="FILE", help="judge a JSON list of outputs")
    given = parser.parse_args(arguments)
    if given.vectors:
        json.dump(vectors(), sys.stdout)
        return 0
    try:
        if given.results:
            report = check_results(json.loads(Path(given.results).read_text("utf-8")))
        else:
            if not (given.attention or "").partition(":")[2]:
                parser.error("an attention is needed, as module:function")
            sys.path.insert(0, "")  # find modules as `python -m` does
            options = {name: getattr(given, name) for name in (*_CHOICES, "tries")}
            report = check(pkgutil.resolve_name(given.attention), **options)
    except (ImportError, AttributeError, OSError, TypeError, ValueError) as error:
        print(f"could not be tried: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
