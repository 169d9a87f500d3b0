"""The projections and heads of somebody's layer: declared, found by their usual names, or fused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_check._formula import NAMES, Layer, Linear, Projections
from attention_check._verdicts import Answer
from mha_lib import _checks

# What layers call their projections and their number of heads.
USUAL = {
    "q_proj": "q_proj query wq w_q W_q W_Q W_query to_q q q_linear query_proj linear_q q_lin w_qs".split(),
    "k_proj": "k_proj key wk w_k W_k W_K W_key to_k k k_linear key_proj linear_k k_lin w_ks".split(),
    "v_proj": "v_proj value wv w_v W_v W_V W_value to_v v v_linear value_proj linear_v v_lin w_vs".split(),
    "out_proj": """out_proj o_proj c_proj proj wo w_o W_o W_O W_0 W_out to_out out out_linear linear_out
        out_lin output_proj fc_out dense fc output o proj_out""".split(),
}
FUSED = "c_attn qkv in_proj qkv_proj query_key_value to_qkv to_qvk Wqkv wqkv W_qkv w_qkv".split()
FUSED_KEYS = "kv to_kv kv_proj c_kv Wkv wkv W_kv w_kv key_value".split()
NUMBERS = (
    "num_heads n_head n_heads nhead heads h num_attention_heads nheads n_h".split()
)
# The order in a fused projection is a convention, so it is found by trying.
ORDERS = {3: ("qkv", "kqv", "qvk", "kvq", "vqk", "vkq"), 2: ("kv", "vk")}
# So is what lies side by side: all queries, what one head has (GPT-NeoX), or one column of each head.
FORMS = ("", " head by head", " column by column")


class Order(NamedTuple):
    """How a fused projection holds queries, keys and values."""

    letters: str = "qkv"
    form: str = ""

    def __str__(self) -> str:
        return f"fused {', '.join(self.letters)}{self.form}"

    def cut(self, rows: Tensor, num_heads: int) -> dict[str, Tensor]:
        """The rows of a fused weight or bias by letter, those of a head side by side."""
        parts = len(self.letters)
        if self.form == FORMS[1]:
            cut = rows.unflatten(0, (num_heads, parts, -1)).unbind(1)
            pieces = tuple(one.flatten(0, 1) for one in cut)
        elif self.form == FORMS[2]:
            cut = rows.unflatten(0, (-1, parts, num_heads)).unbind(1)
            pieces = tuple(one.transpose(0, 1).flatten(0, 1) for one in cut)
        else:
            pieces = rows.chunk(parts)
        return dict(zip(self.letters, pieces, strict=True))


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
    """The number of heads under one of its usual names, in the layer or in one of its parts."""
    parts = layer.modules() if isinstance(layer, nn.Module) else [layer]
    numbers = (getattr(part, name, None) for part in parts for name in NUMBERS)
    return next(
        (one for one in numbers if isinstance(one, int) and not isinstance(one, bool)),
        None,
    )


def projections_of(
    layer: Any,
    given: Projections | None,
    order: Order = Order(),  # noqa: B008 - it cannot be changed
    num_heads: int = 1,
) -> dict[str, Linear]:
    """Weight (out, in) and bias of each projection, as tensors in float64."""
    if given is None and isinstance(layer, nn.Module) and not _all_named(layer):
        inside = [x for x in layer.modules() if isinstance(x, nn.MultiheadAttention)]
        layer = inside[0] if len(inside) == 1 else layer
    if given is None and isinstance(layer, nn.MultiheadAttention):
        weights: Any = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        if layer.in_proj_weight is not None:
            weights = layer.in_proj_weight.chunk(3)
        bias = layer.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        pairs = (*zip(weights, biases, strict=True), layer.out_proj)
        given = dict(zip(NAMES, pairs, strict=True))
    if given is None:
        given = _found(layer, order, num_heads)
    found: dict[str, Linear] = {}
    for name in NAMES:
        if (one := given.get(name)) is None:
            rule = f"hold {', '.join(NAMES)}, each an nn.Linear or (weight, bias)"
            raise _checks.refusal("projections", rule, f"none for {name}")
        found[name] = _weights(one)
    return found


def orders_of(layer: Any, num_heads: int) -> list[Order]:
    """The orders in which one projection may make queries, keys and values, or keys and values; or none."""
    for parts, names in ((3, FUSED), (2, FUSED_KEYS)):
        if (fused := _named(layer, names)) is not None:
            rows = len(_weights(fused)[0])
            forms = FORMS if rows % (parts * num_heads) == 0 else FORMS[:1]
            return [Order(letters, form) for form in forms for letters in ORDERS[parts]]
    return []


def _found(layer: Any, order: Order, num_heads: int) -> dict[str, Any]:
    """What can be found of the four in a layer."""
    found = {name: _named(layer, names) for name, names in USUAL.items()}
    fused = _named(layer, FUSED if len(order.letters) == 3 else FUSED_KEYS)
    if fused is not None:
        weight, bias = _weights(fused)
        weights = order.cut(weight, num_heads)
        biases = {} if bias is None else order.cut(bias, num_heads)
        for letter, piece in weights.items():
            found[f"{letter}_proj"] = (piece, biases.get(letter))
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


def _all_named(layer: nn.Module) -> bool:
    """Whether queries, or all three, are projected by something that has a usual name."""
    return any(_named(layer, names) is not None for names in (USUAL["q_proj"], FUSED))


def _named(layer: Any, names: list[str]) -> Any:
    """The first attribute of these names that is a projection, or the only one in the parts of the layer."""
    for name in names:
        if (one := _projection(getattr(layer, name, None))) is not None:
            return one
    if not isinstance(layer, nn.Module):
        return None
    for name in names:
        inside = [
            found
            for path, part in layer.named_modules()
            if path.rpartition(".")[2] == name
            and (found := _projection(part)) is not None
        ]
        if len(inside) == 1:
            return inside[0]
    return None


def _projection(one: Any) -> Any:
    """What has a weight, or the only linear layer of a module that has none."""
    if isinstance(one, nn.Module) and not isinstance(
        getattr(one, "weight", None), Tensor
    ):
        inside = [part for part in one.modules() if isinstance(part, nn.Linear)]
        one = inside[0] if len(inside) == 1 else None
    return one if isinstance(getattr(one, "weight", None), Tensor) else None


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


def with_norms(attention: nn.Module, layer: Layer) -> Iterator[tuple[str, Layer]]:
    """The layer with what its formula may have besides, and each in words.

    A norm of the input's width may stand before the projections, after the output or, as in BERT, after a
    residual connection, which may also stand alone.
    """
    yield "adds its input", layer._replace(adds_input=True)
    width = layer.linear["q_proj"][0].shape[1]
    for name, part in attention.named_modules():
        shapes = {parameter.shape for parameter in part.parameters()}
        is_norm = "norm" in f"{name.rpartition('.')[2]} {type(part).__name__}".lower()
        if not is_norm or shapes != {(width,)}:
            continue
        norm = partial(_normalized, copy.deepcopy(part).to("cpu").requires_grad_(False))
        yield f"`{name}` before", layer._replace(norm=norm)
        both = layer._replace(norm=norm, adds_input=True)
        yield f"`{name}` before · adds its input", both
        yield f"`{name}` after", layer._replace(norm_after=norm)
        after = layer._replace(adds_input=True, norm_after=norm)
        yield f"adds its input · `{name}` after", after


def _normalized(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm gives in its own dtype, on which its epsilon may depend, as float64."""
    own = next(norm.parameters()).dtype
    result: Tensor = norm(x.to(own))
    return result.double()


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
