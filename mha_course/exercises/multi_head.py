"""The checker of the layer that readers build in chapter 3."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_check._results import Answer, Verdict, a_kind_of, check_callable, not_yet
from mha_course._classes import is_local, part_of, wrong_bias
from mha_course._elsewhere import Elsewhere, keep, kept
from mha_course._exercise import (
    Exercise,
    UnfinishedError,
    described,
    randn,
    rows_sum_to_one,
)
from mha_course._pieces import layer_fault
from mha_course._sizes import Texts
from mha_lib import _checks
from mha_lib.masking import causal_mask

Adapter: TypeAlias = Mapping[str, str] | Callable[[Any], Mapping[str, Any]]

exercise = Texts(__name__)

NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")

# ------------------------------------------------------------------ the formula, whose edits are the mistakes


def heads_of(x: Tensor, proj: Any, num_heads: int) -> Tensor:
    """Project, then cut the last axis: (batch, num_heads, length, head_dim)."""
    batch, length, _ = x.shape
    return proj(x).reshape(batch, length, num_heads, -1).transpose(1, 2)  # type: ignore[no-any-return]


def merge_heads(heads: Tensor) -> Tensor:
    """Put the heads of a token side by side: (batch, length, embed_dim)."""
    return heads.transpose(1, 2).flatten(2)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Weights over the visible keys, zeros where none is visible."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    return weights if mask is None else weights * mask


def multi_head(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Multi-head attention with the projections of a layer."""
    num_heads, head_dim = layer.sizes.num_heads, layer.sizes.head_dim
    q_len, k_len = query.shape[1], key.shape[1]
    q_proj, k_proj, v_proj, out_proj = layer.projections().values()
    q = heads_of(query, q_proj, num_heads)
    k = heads_of(key, k_proj, num_heads)
    v = heads_of(value, v_proj, num_heads)
    if is_causal:
        mask = torch.ones(q_len, k_len).tril(k_len - q_len).bool()
    if mask is not None and mask.ndim == 3:
        mask = mask.unsqueeze(1)
    scores = q @ k.transpose(-2, -1) / head_dim**0.5
    weights = masked_softmax(scores, mask)
    output = out_proj(merge_heads(weights @ v))
    return output, weights


_WRONG = exercise.mistakes("check_multi_head", multi_head)

# ------------------------------------------------------------------ the reader's layer


class _Sizes(NamedTuple):
    """The sizes of a layer: a different prime for each dimension."""

    embed_dim: int
    num_heads: int
    kdim: int | None = None
    vdim: int | None = None
    bias: bool | None = None

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.embed_dim // self.num_heads

    @property
    def options(self) -> dict[str, int]:
        """The keyword arguments of the constructor."""
        given = {"kdim": self.kdim, "vdim": self.vdim, "bias": self.bias}
        return {name: size for name, size in given.items() if size is not None}

    @property
    def widths(self) -> dict[str, tuple[int, int]]:
        """The shape of each projection's weight, as in `nn.Linear`: (out, in)."""
        inputs = (self.embed_dim, self.kdim, self.vdim, self.embed_dim)
        return {
            name: (self.embed_dim, width or self.embed_dim)
            for name, width in zip(NAMES, inputs, strict=True)
        }


_ONE = _Sizes(7, 1)
_THREE = _Sizes(33, 3)
_OWN_WIDTHS = _Sizes(33, 3, kdim=17, vdim=19)
_BIASES = _Sizes(33, 3, bias=True)


# The standard deviation of weights that are drawn: a fourth of what it is in the widest parameter for all.
_LEAST = 0.03
_MOST = 1_000  # of numbers that an answer sets itself


class _NoLayerError(Exception):
    """The argument does not make a layer that can be checked; the message says why."""


class Projection(NamedTuple):
    """Weight (out, in) and bias of a projection, as in `nn.Linear`."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Return what `nn.Linear` would return."""
        return F.linear(x, *self)


class _Made:
    """A layer that was made for a check; its projections are read again each time, with their gradients."""

    layer: Any = None
    compares = True  # the gradients of the parameters

    def __init__(
        self, sizes: _Sizes, adapter: Adapter | None, call: Answer | None
    ) -> None:
        self.sizes, self.adapter, self.call = sizes, adapter, call

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if self.call is not None:
            return self.call(self.layer, *inputs, **options)
        return self.layer(*inputs, **options)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """The parameters whose gradients are compared: none if the adapter copies them."""
        learns = any(proj.weight.requires_grad for proj in self.projections().values())
        if not isinstance(self.layer, nn.Module) or not learns or not self.compares:
            return []
        return list(self.layer.named_parameters())

    def takes_causal(self) -> bool:
        """Whether the layer's call takes `is_causal`."""
        used = self.call or getattr(self.layer, "forward", self.layer)
        try:
            return "is_causal" in inspect.signature(used).parameters
        except (TypeError, ValueError):  # it is not written in Python
            return False

    def projections(self) -> dict[str, Projection]:
        """The layer's projections by the names in `NAMES`, in that order."""
        if callable(self.adapter):
            found = self.adapter(self.layer)
        else:
            paths = self.adapter or {}
            found = {name: self._at(paths.get(name, name)) for name in NAMES}
        return {name: _projection(found[name]) for name in NAMES}

    def _at(self, path: str) -> Any:
        """The object at a dotted path; a path that ends with ".weight" also gives the bias beside it."""
        thing = self.layer
        for name in path.removesuffix(".weight").split("."):
            thing = thing[int(name)] if name.isdigit() else getattr(thing, name)
        return thing

    def start(self, make: Answer) -> None:
        """Make the layer, and check what can be checked before anything is computed."""
        torch.manual_seed(0)
        sizes = {"embed_dim": self.sizes.embed_dim, "num_heads": self.sizes.num_heads}
        given = ", ".join(
            f"{name}={n}" for name, n in (sizes | self.sizes.options).items()
        )
        try:
            self.layer = make(*sizes.values(), **self.sizes.options)
        except Exception as error:
            raise _NoLayerError(
                f"no layer can be made with {given}: {described(error)}"
            ) from error
        if self.layer is None:
            raise _NoLayerError(
                "the function that should make a layer returns None. Return the layer"
            )
        _randomize(self.layer)
        try:
            found = self.projections()
        except (AttributeError, KeyError, IndexError) as error:
            bare = isinstance(self.layer, nn.Module) and not [*self.layer.parameters()]
            lost = [name for name in NAMES if is_local(make, name)]
            if (bare or lost) and self.adapter is None:
                try:
                    part_of(make, self.layer, (lost or NAMES)[0])
                except UnfinishedError as lacks:
                    raise _NoLayerError(
                        f"the class is not finished: {lacks}"
                    ) from lacks
            raise _NoLayerError(
                f"the projections of the layer were not found ({error}). Call them `q_proj`, `k_proj`, "
                "`v_proj` and `out_proj`, or pass `adapter=`, a mapping from these names to yours"
            ) from error
        except Exception as error:
            raise _NoLayerError(
                f"the projections of the layer could not be read: {described(error)}"
            ) from error
        self._look_at(found)
        if self.adapter is None and isinstance(bias := _bias_of(make), bool):
            wanted = bias if self.sizes.bias is None else self.sizes.bias
            for name, proj in found.items():
                if (proj.bias is not None) != wanted:
                    raise _NoLayerError(wrong_bias(name, wanted))

    def _look_at(self, found: Mapping[str, Projection]) -> None:
        """Reject a projection whose weight has a different shape, or with which nothing can be compared."""
        for name, (weight, bias) in found.items():
            self._look_at_shape(name, tuple(weight.shape))
            for what, one in (("weight", weight), ("bias", bias)):
                # With large ones, scores would overflow in the reference too, and NaN equals NaN.
                if one is not None and not bool((one.abs() <= _MOST).all()):
                    raise _NoLayerError(
                        f"the {what} of `{name}` holds NaN, infinity or numbers over {_MOST:,}"
                    )

    def _look_at_shape(self, name: str, shape: tuple[int, ...]) -> None:
        size = self.sizes
        expected = size.widths[name]
        if shape == expected:
            return
        if name == "out_proj" and shape[-1] == size.head_dim:
            cause = ". Are the heads averaged or added? All of them go in, side by side"
        elif shape[-1] == size.head_dim:
            cause = (
                ". Are the inputs cut into heads before the projection? Cut afterwards"
            )
        elif shape == (size.head_dim, expected[1]):
            cause = (
                ". The projection makes one head only; it must make all heads at once"
            )
        else:
            cause = ""
        raise _NoLayerError(
            f"with embed_dim={size.embed_dim} and num_heads={size.num_heads}, the weight of `{name}` has "
            f"shape {shape}, expected {expected}, that is (out, in){cause}"
        )


class _MadeElsewhere(_Made):
    """A layer in another process, which is told its random weights, and the same weights here.

    Of the parameters that are drawn at random, the other process only says the names and shapes. Which part
    of which parameter a projection is follows from how it lies in memory. A projection that an adapter has
    computed has no such place: its numbers are taken as they are, and somebody must look at it.
    """

    def start(self, make: Any) -> None:
        """Make the layer in its process, and its weights here."""
        found = make.do(_started, self.sizes, self.adapter, self.call, make)
        if isinstance(found, str):
            raise _NoLayerError(found)
        self.number, self.causal, self.compares = (
            found["number"],
            found["causal"],
            found["compares"],
        )
        self.parameters = dict(zip(found["names"], found["tensors"], strict=True))
        self.places = found["places"]
        _draw(self.parameters.items())
        # The other process need not have looked, and with tiny weights, zeros would be right.
        weights = self.projections()
        self._look_at(weights)
        drawn = [
            name for name, (place, _) in self.places.items() if self._is_drawn(place)
        ]
        for name in drawn:
            if weights[name].weight.std() < _LEAST:
                raise _NoLayerError(
                    f"the weight of `{name}` is a small part of a parameter, whose numbers are too small to "
                    "compare results. Make a parameter for each projection, or one for all"
                )
        if len(drawn) < len(self.places):
            make.doubts.append(
                "the weights of the layer are not those that were drawn for it"
            )
        elif not self.compares:
            make.doubts.append("the gradients of its weights were not compared")

    def _is_drawn(self, place: Any) -> bool:
        """Whether a weight is a part, without repetitions, of a parameter that was drawn here."""
        if not isinstance(place, list) or self.parameters[place[0]].ndim < 2:
            return False
        numbered = torch.arange(self.parameters[place[0]].numel())
        if prod(place[1]) > len(numbered):
            return False
        part: Tensor = numbered.as_strided(*place[1:])
        return len(part.unique()) == part.numel()

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """The parameters whose gradients are compared."""
        return list(self.parameters.items()) if self.compares else []

    def takes_causal(self) -> bool:
        """Whether the layer's call takes `is_causal`."""
        return bool(self.causal)

    def projections(self) -> dict[str, Projection]:
        """The projections, as parts of the parameters."""
        return {name: Projection(*map(self._part, self.places[name])) for name in NAMES}

    def _part(self, place: Any) -> Any:
        if not isinstance(
            place, list
        ):  # None, or a tensor that an adapter has computed
            return place
        name, shape, strides, offset = place
        return self.parameters[name].as_strided(shape, strides, offset)

    def __reduce__(self) -> tuple[Any, ...]:
        """Arrive in the other process as the layer that was made there."""
        return kept, (self.number,)


def _started(sizes: _Sizes, adapter: Any, call: Any, make: Answer) -> Any:
    """In the answer's process: make a layer, and describe it; or the sentence on why it cannot be checked."""
    made = _Made(sizes, adapter, call)
    try:
        made.start(make)
    except _NoLayerError as error:
        return str(error)
    own = made.layer.named_parameters() if isinstance(made.layer, nn.Module) else ()
    parameters = {name: one for name, one in own if one.layout == torch.strided}
    places = {
        name: [_place(one, parameters) for one in proj]
        for name, proj in made.projections().items()
    }
    learns = bool(made.named_parameters())
    made.compares = learns and all(
        one is None or isinstance(one, list) for pair in places.values() for one in pair
    )
    return {
        "number": keep(made),
        "causal": made.takes_causal(),
        "compares": made.compares,
        "names": list(parameters),
        "tensors": [one.detach() for one in parameters.values()],
        "places": places,
    }


def _place(part: Any, parameters: Mapping[str, Tensor]) -> Any:
    """Where a projection lies: the parameter's name, shape, strides and offset; or its numbers, or None."""
    if part is None:
        return None
    for name, one in parameters.items():
        same = part.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
        if same and one.is_contiguous() and part.requires_grad == one.requires_grad:
            offset = part.storage_offset() - one.storage_offset()
            return [name, list(part.shape), list(part.stride()), offset]
    return part.detach()


def _bias_of(make: Any) -> Any:
    """The default of `bias` in the signature of what makes a layer; None if there is no `bias`."""
    if isinstance(make, Elsewhere):
        return make.do(_bias_of, make)
    try:
        bias = inspect.signature(make).parameters.get("bias")
    except (TypeError, ValueError):  # it is not written in Python
        return None
    return bias and (bias.default if isinstance(bias.default, bool) else None)


def _needs_mask(make: Any) -> bool:
    """Whether `forward` of a class has a `mask` without a default, so that a call without a mask fails."""
    if isinstance(make, Elsewhere):
        return bool(make.do(_needs_mask, make))
    try:
        mask = inspect.signature(make.forward).parameters.get("mask")
    except (AttributeError, TypeError, ValueError):  # it is no class, or not in Python
        return False
    return mask is not None and mask.default is inspect.Parameter.empty


def _projection(value: Any) -> Projection:
    if isinstance(value, nn.Module):
        value = value.weight, value.bias
    pair = value if isinstance(value, (tuple, list)) else (value, None)
    weight, bias = (
        torch.as_tensor(x, dtype=torch.float32) if isinstance(x, np.ndarray) else x
        for x in pair
    )
    return Projection(weight, bias)


def _randomize(layer: Any) -> None:
    """Set evaluation mode and large random weights, so that no fault hides behind flat weights or zeros."""
    if not isinstance(layer, nn.Module):
        return
    layer.eval()
    _draw(layer.named_parameters())


def _draw(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Fill parameters with random numbers that depend only on their order, names and shapes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in parameters:
            if parameter.ndim > 1:
                parameter.normal_(
                    std=1.5 / parameter.shape[-1] ** 0.5, generator=generator
                )
            elif "bias" in name:
                parameter.normal_(std=0.5, generator=generator)


# ------------------------------------------------------------------ cases


def _padding(_: torch.Generator) -> Tensor:
    return torch.arange(7) < torch.tensor([5, 3])[:, None, None]


def _for_each_sample(generator: torch.Generator) -> Tensor:
    mask = torch.rand(2, 5, 7, generator=generator) > 0.5
    mask[..., 4] = True
    return mask


def _nothing_visible(generator: torch.Generator) -> Tensor:
    mask = _for_each_sample(generator)
    mask[1, 2] = False
    return mask


def _one_key_visible(_: torch.Generator) -> Tensor:
    return torch.eye(5, 7, dtype=torch.bool)


@dataclass(frozen=True)
class _Case:
    """Sizes of the layer and of its inputs, and what is hidden."""

    sizes: _Sizes
    batch: int
    q_len: int
    k_len: int
    mask: Callable[[torch.Generator], Tensor] | None = None
    is_causal: bool = False
    scale: float = 1.0

    def make(
        self, made: Mapping[_Sizes, _Made], generator: torch.Generator
    ) -> tuple[Any, ...]:
        """The layer and its arguments."""
        size = self.sizes
        query = self.scale * randn(generator, self.batch, self.q_len, size.embed_dim)
        key = randn(generator, self.batch, self.k_len, size.kdim or size.embed_dim)
        value = randn(generator, self.batch, self.k_len, size.vdim or size.embed_dim)
        mask = None if self.mask is None else self.mask(generator)
        causal = (True,) if self.is_causal else ()
        return made[size], query, key, value, mask, *causal


_LOW = "scores far below zero"
_CASES = {
    "one head (batch 1)": _Case(_ONE, 1, 5, 5),
    "one head (batch 2)": _Case(_ONE, 2, 5, 7),
    "three heads (batch 1)": _Case(_THREE, 1, 5, 5),
    "three heads (batch 2)": _Case(_THREE, 2, 5, 7),
    "padding": _Case(_THREE, 2, 5, 7, _padding),
    "a hidden future": _Case(_THREE, 2, 5, 5, lambda _: causal_mask(5)),
    "fewer queries than keys": _Case(_THREE, 2, 5, 7, lambda _: causal_mask(5, 7)),
    "a mask for each sample": _Case(_THREE, 2, 5, 7, _for_each_sample),
    "a query that sees nothing": _Case(_THREE, 2, 5, 7, _nothing_visible),
    _LOW: _Case(_THREE, 2, 5, 7, _one_key_visible, scale=1e6),
    "keys and values of other widths": _Case(_OWN_WIDTHS, 2, 5, 7),
    "biases": _Case(_BIASES, 2, 5, 7),
}
_FURTHER = {
    "one query and padding": _Case(_THREE, 2, 1, 7, _padding),
    "more queries than keys": _Case(
        _THREE, 2, 7, 3, lambda _: torch.arange(3) < torch.tensor([2, 1])[:, None, None]
    ),
    "forty tokens": _Case(_ONE, 1, 40, 40, lambda _: causal_mask(40)),
}
_CAUSAL = {
    "is_causal": _Case(_THREE, 2, 5, 5, is_causal=True),
    "is_causal with fewer queries than keys": _Case(_THREE, 2, 5, 7, is_causal=True),
}


def _hidden_weigh_nothing(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    mask = arguments[4]
    if mask is None or len(results) < 2 or results[1].ndim != 4:
        return ""
    mask = mask.unsqueeze(1) if mask.ndim == 3 else mask
    seen = results[1].masked_fill(mask, 0.0).abs() > 1e-6
    if not bool(seen.any()):
        return ""
    place = seen.nonzero()[0].tolist()
    return f"a hidden key has weight {float(results[1][tuple(place)]):.2g}, at {place} of `weights`"


def _weights_sum_to_one(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    problem = rows_sum_to_one(1)(arguments, results) if len(results) > 1 else ""
    return problem.replace("its rows", "the rows of `weights`")


def _layers_of_each_size(
    make: Answer, adapter: Adapter | None, call: Answer | None, own_widths: bool
) -> dict[_Sizes, _Made]:
    """The layers that `make` makes, by their sizes; one has inputs of different widths."""
    tried = [_ONE, _THREE] + [_OWN_WIDTHS] * own_widths
    # A layer need not offer biases; where an adapter reads the weights, it need not read them.
    if adapter is None and isinstance(_bias_of(make), bool):
        tried.append(_BIASES)
    kind = _MadeElsewhere if isinstance(make, Elsewhere) else _Made
    made = {sizes: kind(sizes, adapter, call) for sizes in tried}
    for one in made.values():
        one.start(make)
    return made


def _exercise(
    make: Answer,
    adapter: Adapter | None = None,
    call: Answer | None = None,
    *,
    own_widths: bool = True,
    weights: bool = True,
    gradients: bool = True,
) -> Exercise:
    """The exercise for the layers that `make` makes, one of each size."""
    made = _layers_of_each_size(make, adapter, call, own_widths)
    causal = made[_THREE].takes_causal()
    cases = {
        label: partial(case.make, made)
        for label, case in (_CASES | (_CAUSAL if causal else {})).items()
        if case.sizes in made
    }
    titles = (
        "output (batch, q_len, embed_dim)",
        "weights (batch, num_heads, q_len, k_len)",
    )

    def run(
        answer: Answer,
        layer: _Made,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        *causal: bool,
    ) -> Any:
        options = {"is_causal": True} if causal else {}
        returned = answer(layer, query, key, value, mask, **options)
        alone = not weights and isinstance(returned, (tuple, list))
        return returned[0] if alone and returned else returned

    return Exercise(
        reference=multi_head,
        cases=cases,
        further={label: partial(one.make, made) for label, one in _FURTHER.items()},
        wrong=_WRONG,
        returns=titles if weights else titles[0],
        run=run,
        properties=(_hidden_weigh_nothing, _weights_sum_to_one) if weights else (),
        gradients=[label for label in cases if label != _LOW] if gradients else False,
        takes="layer",
        atol=1e-4,
        rtol=1e-3,
    )


def check_multi_head(
    layer: Callable[..., Any],
    *,
    adapter: Mapping[str, str] | Callable[[Any], Mapping[str, Any]] | None = None,
    call: Callable[..., Any] | None = None,
    own_widths: bool = True,
    weights: bool = True,
    gradients: bool = True,
) -> Verdict:
    """Check a layer of multi-head attention, as built in chapter 3, and name what is wrong with it.

    The layer is made with several sizes, each dimension a different prime, so that swapped axes cannot go
    unnoticed: one head of width 7, then three heads of width 11, and those with keys of width 17 and values
    of width 19. Its weights are replaced by large random numbers, so that no fault hides behind flat weights;
    then its own weights are read, and the result is compared with the formula. Cases are batches of 1 and 2,
    5 queries and 5 or 7 keys, padding of different lengths, a hidden future for as many and for fewer
    queries than keys, a mask for each sample, a query that sees nothing (zeros), and scores far below zero
    with one visible key, where a fill such as -10,000 fails. If a layer can be made with `bias`, it must
    have biases exactly if they are asked for. Queries, keys and values are different random
    numbers. The layer is in evaluation mode. If its call takes `is_causal`, that is tried too. Finally,
    the gradients of the output are compared, for the inputs and for all parameters. A class `MyMultiHead` is
    that of chapter 3, which later chapters use: it must also have no biases by default, keep `num_heads`,
    save nothing besides its projections, and return the same numbers when it is trained.

    About 70 wrong layers are known by name; for other mistakes, the sentence says which cases are right and
    which is the first one that is wrong. The layer may compute in any way and have any structure.

    Args:
        layer: class or function that makes a layer, layer(embed_dim, num_heads), with `kdim` and `vdim` too.
            The layer is called with (query, key, value, mask): (batch, q_len, embed_dim),
            (batch, k_len, kdim), (batch, k_len, vdim), and a mask that is None or bool, True = may attend, of
            shape (q_len, k_len), (batch, 1, k_len) or (batch, q_len, k_len). It returns the output
            (batch, q_len, embed_dim) and the weights (batch, num_heads, q_len, k_len).
        adapter: where the weights are, if not in `q_proj`, `k_proj`, `v_proj` and `out_proj`: a mapping from
            these names to paths such as "attention.W_q", or a function that takes the layer and returns a
            mapping from these names to an `nn.Linear`, a weight (out, in) or a pair of weight and bias.
            Head i owns rows i * head_dim to (i + 1) * head_dim of the first three.
        call: function of (layer, query, key, value, mask) that calls the layer, if its signature differs.
        own_widths: try keys and values whose widths differ from that of the queries.
        weights: the layer returns the weights too; otherwise only the output is compared.
        gradients: compare gradients. A layer that computes with NumPy has none.

    Returns:
        Whether the layer is right; if not, the cause.

    Raises:
        TypeError: `adapter` is neither a mapping nor callable, `call` is not callable, or an
            option is not a bool.
        ValueError: `adapter` is a mapping that names anything other than the four projections.

    Example:
        >>> from mha_lib import MultiHeadAttention
        >>> assert check_multi_head(MultiHeadAttention)
        >>> check_multi_head(lambda *sizes, **widths: MultiHeadAttention(*sizes, **widths, scale=1.0))
        Not yet: the scores are not scaled. Divide them by the square root of head_dim.
    """
    if adapter is not None and not isinstance(adapter, Mapping):
        check_callable("adapter", adapter)
    elif adapter is not None and not set(adapter) <= set(NAMES):
        raise ValueError(f"adapter must map {', '.join(NAMES)}, got {list(adapter)}")
    if call is not None:
        check_callable("call", call)
    flags = {"own_widths": own_widths, "weights": weights, "gradients": gradients}
    for name, flag in flags.items():
        _checks.check_type(name, flag, bool)
    made_already = isinstance(layer, nn.Module) or getattr(layer, "is_module", False)
    if made_already or not callable(layer):
        return not_yet(
            f"this checker takes a class that makes layers, and was given {a_kind_of(layer)}. Pass the class "
            "itself, without calling it, because layers of several sizes are tried"
        )
    if adapter is None and call is None and _needs_mask(layer):
        return not_yet(
            "a call without a mask fails. Later cells make such calls: write `mask=None` in the first line "
            "of `forward`"
        )
    with torch.random.fork_rng(devices=[]):
        try:
            exercise = _exercise(layer, adapter, call, **flags)
        except _NoLayerError as error:
            return not_yet(str(error))
    if isinstance(layer, Elsewhere):
        verdict = exercise(Elsewhere(layer.do, layer.do(_keep_use)))
        fault = layer.do(_piece_fault, layer) if verdict else ""
    else:
        verdict = exercise(_use)
        fault = _piece_fault(layer) if verdict else ""
    return not_yet(fault) if fault else verdict


def _piece_fault(make: Any) -> str:
    """What is wrong with the reader's own layer, by its name, although its numbers are right."""
    own = getattr(sys.modules.get("__main__"), "MyMultiHead", None)  # of the notebook
    if make is not own and getattr(make, "__name__", "") != "MyMultiHead":
        return ""
    with torch.random.fork_rng(devices=[]):
        return layer_fault(make)


def _use(layer: Any, *inputs: Any, **options: Any) -> Any:
    return layer(*inputs, **options)


def _keep_use() -> int:
    """In the answer's process, keep the function by which a layer is called."""
    return keep(_use)
