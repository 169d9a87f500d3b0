"""Somebody's attention, called in the same way as the formula."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import torch
from torch import Generator, Tensor, nn

from attention_check._aspects import BUILDS_ON, _inputs
from attention_check._formula import NAMES, Linear, Projections, named_arguments
from attention_check._verdicts import Answer
from mha_lib import _checks

OPTIONS = {"causal": "is_causal", "sinks": "sink"}
CHOICES = {  # the first one is the default
    "layout": ("bhld", "blhd"),
    "mask": ("visible", "hidden", "added"),
    "arrays": ("torch", "numpy"),
}


@dataclass(frozen=True)
class Subject:
    """The attention that is judged, called in the same way as the formula."""

    attention: Answer
    positions_first: bool
    mask: str
    arrays: str

    def __call__(self, *given: Any) -> Any:
        *three, visible, is_causal, sink = named_arguments(given).values()
        inputs = [self._moved(x) for x in three]
        if visible is not None:
            inputs.append(self._convention(visible))
        options: dict[str, Any] = {} if sink is None else {"sink": sink}
        if self.arrays == "numpy":
            inputs = [x.numpy() for x in inputs]  # type: ignore[misc]
            options = {name: x.numpy() for name, x in options.items()}
        if is_causal:
            options["is_causal"] = True
        output = first_result(self.attention(*inputs, **options))
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
        option = OPTIONS.get(aspect, "")
        called = getattr(self.attention, "forward", self.attention)  # for a module
        try:
            parameters = inspect.signature(called).parameters
        except (TypeError, ValueError):  # the function is not written in Python
            unseen = f"its signature hides `{option}`; name {aspect!r} in `tries`"
            return unseen if option else ""
        kinds = [one.kind for one in parameters.values()]
        named = [kind for kind in kinds if kind <= Parameter.POSITIONAL_OR_KEYWORD]
        takes_mask = len(named) > 3 or Parameter.VAR_POSITIONAL in kinds
        if not takes_mask and "masks" in (aspect, *BUILDS_ON[aspect]):
            return "it takes no mask as a fourth argument"
        return f"it takes no `{option}`" if option and option not in parameters else ""


def first_result(returned: Any) -> Any:
    """The output, without weights or a cache."""
    return returned[0] if isinstance(returned, (tuple, list)) else returned


def projections_of(layer: Any, given: Projections | None) -> dict[str, Linear]:
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


def call_torch_layer(layer: nn.MultiheadAttention) -> Answer:
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


@contextmanager
def evaluating(attention: object) -> Iterator[None]:
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
