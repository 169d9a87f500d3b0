"""The projections and heads of somebody's layer: declared, found by their usual names, or fused."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from attention_check._formula import NAMES, Linear, Projections
from attention_check._verdicts import Answer
from mha_lib import _checks

# What layers call their projections and their number of heads.
USUAL = {
    "q_proj": "q_proj query wq w_q W_q to_q q q_linear query_proj linear_q q_lin".split(),
    "k_proj": "k_proj key wk w_k W_k to_k k k_linear key_proj linear_k k_lin".split(),
    "v_proj": "v_proj value wv w_v W_v to_v v v_linear value_proj linear_v v_lin".split(),
    "out_proj": """out_proj o_proj c_proj proj wo w_o W_o to_out out out_linear linear_out out_lin
        output_proj fc_out dense fc output""".split(),
}
FUSED = (
    "c_attn qkv in_proj qkv_proj query_key_value to_qkv Wqkv wqkv W_qkv w_qkv".split()
)
FUSED_KEYS = "kv to_kv kv_proj c_kv Wkv wkv W_kv w_kv key_value".split()
NUMBERS = (
    "num_heads n_head n_heads nhead heads h num_attention_heads nheads n_h".split()
)
# The order in a fused projection is a convention, so it is found by trying.
ORDERS = {3: ("qkv", "kqv", "qvk", "kvq", "vqk", "vkq"), 2: ("kv", "vk")}


def distinct(layer: nn.Module) -> nn.Module:
    """The layer, or a copy in which no weights are equal or constant, as they may be before training.

    With such weights, exchanged projections or a forgotten bias would change nothing.

    Raises:
        ValueError: the layer has such weights and cannot be copied.
    """
    weights = [
        (name, x)
        for name, x in layer.named_parameters()
        if x.is_floating_point() and x.numel() > 1
    ]
    idle = [
        name
        for number, (name, x) in enumerate(weights)
        if bool((x == x.flatten()[0]).all())
        or any(
            x.shape == other.shape and torch.equal(x, other)
            for _, other in weights[:number]
        )
    ]
    if not idle:
        return layer
    try:
        changed = copy.deepcopy(layer)
    except Exception as error:
        rule = "have weights that differ from each other and from zero, or be one that can be copied"
        raise _checks.refusal("attention", rule, f"{idle[0]}, and {error}") from None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name in idle:
            weight = changed.get_parameter(name)
            noise = 0.3 * torch.randn(weight.shape, generator=generator)
            weight.add_(noise.to(weight))
    return changed


def heads_of(layer: Any) -> int | None:
    """The number of heads under one of its usual names."""
    numbers = (getattr(layer, name, None) for name in NUMBERS)
    return next(
        (one for one in numbers if isinstance(one, int) and not isinstance(one, bool)),
        None,
    )


def projections_of(
    layer: Any, given: Projections | None, order: str = "qkv"
) -> dict[str, Linear]:
    """Weight (out, in) and bias of each projection, as tensors in float64."""
    if given is None and isinstance(layer, nn.MultiheadAttention):
        weights: Any = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        if layer.in_proj_weight is not None:
            weights = layer.in_proj_weight.chunk(3)
        bias = layer.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        pairs = (*zip(weights, biases, strict=True), layer.out_proj)
        given = dict(zip(NAMES, pairs, strict=True))
    if given is None:
        given = _found(layer, order)
    found: dict[str, Linear] = {}
    for name in NAMES:
        if (one := given.get(name)) is None:
            rule = f"hold {', '.join(NAMES)}, each an nn.Linear or (weight, bias)"
            raise _checks.refusal("projections", rule, f"none for {name}")
        found[name] = _weights(one)
    return found


def orders_of(layer: Any) -> tuple[str, ...]:
    """The orders in which one projection may make queries, keys and values, or keys and values; or none."""
    if _named(layer, FUSED) is not None:
        return ORDERS[3]
    return () if _named(layer, FUSED_KEYS) is None else ORDERS[2]


def _found(layer: Any, order: str) -> dict[str, Any]:
    """What can be found of the four in a layer."""
    found = {name: _named(layer, names) for name, names in USUAL.items()}
    fused = _named(layer, FUSED if len(order) == 3 else FUSED_KEYS)
    if fused is not None:
        weight, bias = _weights(fused)
        parts = len(order)
        biases = (None,) * parts if bias is None else bias.chunk(parts)
        pieces = zip(order, zip(weight.chunk(parts), biases, strict=True), strict=True)
        found |= {f"{letter}_proj": piece for letter, piece in pieces}
    four = [
        one
        for one in _children(layer)
        if isinstance(one, nn.ModuleList) and len(one) == 4
    ]
    if (
        found["q_proj"] is None
        and four
        and all(isinstance(one, nn.Linear) for one in four[0])
    ):
        found = dict(zip(NAMES, four[0], strict=True))
    return found


def _children(layer: Any) -> list[nn.Module]:
    return list(layer.children()) if isinstance(layer, nn.Module) else []


def _named(layer: Any, names: list[str]) -> Any:
    """The first attribute of these names that is a projection; one in an nn.Sequential counts."""
    for name in names:
        one = getattr(layer, name, None)
        if isinstance(one, nn.Sequential):
            inside = [part for part in one if isinstance(part, nn.Linear)]
            one = inside[0] if len(inside) == 1 else None
        if isinstance(getattr(one, "weight", None), Tensor):
            return one
    return None


def _weights(one: Any) -> Linear:
    """Weight (out, in) and bias of a module, a weight or a pair, in float64."""
    pair = (
        (one.weight, getattr(one, "bias", None)) if isinstance(one, nn.Module) else one
    )
    weight, bias = pair if isinstance(pair, (tuple, list)) else (pair, None)
    weight = _double(weight)
    if type(one).__name__ == "Conv1D":  # the transposed linear layer of GPT-2
        weight = weight.mT
    return weight, None if bias is None else _double(bias)


def _double(array: Any) -> Tensor:
    return torch.as_tensor(array).detach().to("cpu", torch.float64)


def call_torch_layer(layer: nn.MultiheadAttention) -> Answer:
    """Torch's own layer, called with (batch, len, width) and a mask of four axes, True = hidden."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        hidden = mask
        if hidden is not None:
            shape = (len(query), layer.num_heads, *hidden.shape[2:])
            hidden = hidden.expand(shape).flatten(0, 1)
        inputs = (query, key, value)
        three = [x if layer.batch_first else x.transpose(0, 1) for x in inputs]
        output: Tensor = layer(*three, attn_mask=hidden)[0]
        return output if layer.batch_first else output.transpose(0, 1)

    return attend
