"""The projections and heads of somebody's layer: declared, found by their usual names, or by what they do."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import permutations
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_check._formula import NAMES, Linear, Projections
from attention_check._results import Answer
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
ORDER_FORMS = ("", " head by head", " column by column")


class Order(NamedTuple):
    """How a fused projection holds queries, keys and values."""

    letters: str = "qkv"
    form: str = ""

    def __str__(self) -> str:
        return f"fused {', '.join(self.letters)}{self.form}"

    def cut(self, rows: Tensor, num_heads: int) -> dict[str, Tensor]:
        """The rows of a fused weight or bias by letter, those of a head side by side."""
        parts = len(self.letters)
        if self.form == ORDER_FORMS[1]:
            cut = rows.unflatten(0, (num_heads, parts, -1)).unbind(1)
            pieces = tuple(one.flatten(0, 1) for one in cut)
        elif self.form == ORDER_FORMS[2]:
            cut = rows.unflatten(0, (-1, parts, num_heads)).unbind(1)
            pieces = tuple(one.transpose(0, 1).flatten(0, 1) for one in cut)
        else:
            pieces = rows.chunk(parts)
        return dict(zip(self.letters, pieces, strict=True))


PLAIN = Order()


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


def attentions_in(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The smallest parts of a module that hold all projections of an attention, or itself, by name."""
    found = [
        one
        for name, part in module.named_children()
        for one in attentions_in(part, f"{path}.{name}".lstrip("."))
    ]
    with suppress(ValueError):
        if not found and heads_of(module) is not None:
            projections_of(module, None)
            found = [(path, module)]
    yield from found


def is_model(module: nn.Module, parts: Sequence[tuple[str, nn.Module]]) -> bool:
    """Whether a module has several attentions, or other matrices beside those of one: then it is no layer."""
    known = {id(x) for _, part in parts for x in part.parameters()}
    beside = (x for x in module.parameters() if id(x) not in known and x.ndim > 1)
    return len(parts) > 1 or (len(parts) == 1 and any(True for _ in beside))


def heads_of(layer: Any) -> int | None:
    """The number of heads under one of its usual names, in the layer, its parts or its config."""
    parts = [*layer.modules()] if isinstance(layer, nn.Module) else [layer]
    configs = [getattr(part, "config", None) for part in parts]
    for one in (*parts, *configs):
        for name in NUMBERS:
            number = getattr(one, name, None)
            if isinstance(number, int) and not isinstance(number, bool):
                return number
    width = getattr(layer, "head_dim", None)
    query = _named(layer, USUAL["q_proj"])
    if query is None or not isinstance(width, int):
        return None
    return len(_weights(query)[0]) // width


def projections_of(
    layer: Any, given: Projections | None, order: Order = PLAIN, num_heads: int = 1
) -> dict[str, Linear]:
    """Weight (out, in) and bias of each projection, as tensors in float64."""
    if given is None and isinstance(layer, nn.Module) and not _all_named(layer):
        inside = [x for x in layer.modules() if isinstance(x, nn.MultiheadAttention)]
        layer = inside[0] if len(inside) == 1 else layer
    if given is None and _like_torchs(layer):
        if layer.in_proj_weight is not None:
            weights: Any = layer.in_proj_weight.chunk(3)
        else:
            weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        bias = getattr(layer, "in_proj_bias", None)
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
        if isinstance(one, str):
            try:
                one = attrgetter(one)(layer)
            except AttributeError:
                rule = "be the path of a part of the layer"
                raise _checks.refusal(
                    f"the {name} of projections", rule, repr(one)
                ) from None
        found[name] = _weights(one)
    return found


def _like_torchs(layer: Any) -> bool:
    """Whether the weights of queries, keys and values are one parameter, as in torch's own layer."""
    return isinstance(layer, nn.MultiheadAttention) or all(
        isinstance(getattr(layer, name, None), kind)
        for name, kind in (("in_proj_weight", Tensor), ("out_proj", nn.Module))
    )


def orders_of(layer: Any, num_heads: int) -> list[Order]:
    """The orders in which one projection may make queries, keys and values, or keys and values; or none."""
    for parts, names in ((3, FUSED), (2, FUSED_KEYS)):
        if (fused := _named(layer, names)) is not None:
            rows = len(_weights(fused)[0])
            forms = ORDER_FORMS if rows % (parts * num_heads) == 0 else ORDER_FORMS[:1]
            return [Order(letters, form) for form in forms for letters in ORDERS[parts]]
    return []


def order_by_name(layer: Any) -> tuple[str, str]:
    """The name of a fused projection and the order that it says, such as "to_qkv" and "qkv"; or "" twice."""
    for name in (*FUSED, *FUSED_KEYS):
        if _named(layer, [name]) is not None:
            short = name.replace("query", "q").replace("key", "k").replace("value", "v")
            letters = "".join(letter for letter in short if letter in "qkv")
            return (name, letters) if letters else ("", "")
    return "", ""


def by_shape(layer: nn.Module) -> Iterator[tuple[str, Projections]]:
    """Four linear layers in all roles that their shapes allow, and these in words."""
    named = [(name, x) for name, x in layer.named_modules() if _is_linear(x)]
    parts = [(name, _weights(x)) for name, x in named] if len(named) == 4 else []
    for four in permutations(parts, 4):
        query, key, value, last = (one[1][0] for one in four)
        fits = len(query) % len(key) == 0 and len(key) == len(value)
        if fits and last.shape == query.mT.shape:
            said = ", ".join(f"`{name}`" for name, _ in four)
            given = dict(zip(NAMES, (one for _, one in four), strict=True))
            yield f"{said} as q, k, v, output", given


def _is_linear(part: nn.Module) -> bool:
    return _in_width(part) > 0 and not isinstance(part, nn.MultiheadAttention)


def of_queries(layer: nn.Module) -> tuple[nn.Module, int] | None:
    """The module that projects queries, and the number of parts that it makes: 3 if keys and values too."""
    for names, parts in ((FUSED, 3), (USUAL["q_proj"], 1)):
        if isinstance(one := _named(layer, names), nn.Module):
            return one, parts
    return None


def _found(layer: Any, order: Order, num_heads: int) -> dict[str, Any]:
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
    """What is itself a projection, or the only one of the parts of a module that has none."""
    if not isinstance(one, nn.Module):
        return one if isinstance(getattr(one, "weight", None), Tensor) else None
    inside = [part for part in one.modules() if _in_width(part)]
    # A wrapper, such as LoRA's, has several linear layers, and maps vectors as one.
    if inside and (isinstance(one, nn.Linear) or _is_affine(one)):
        return one
    return inside[0] if len(inside) == 1 else None


def _in_width(part: nn.Module) -> int:
    """The width of the vectors that a linear layer takes, maybe a quantized one or a convolution."""
    if type(part).__name__ == "Conv1D":  # the transposed linear layer of GPT-2
        weight: Any = part.weight
        return int(weight.shape[0])
    if isinstance(part, nn.Conv1d):
        return part.in_channels if part.kernel_size == (1,) else 0
    weight = getattr(part, "weight", None)
    if isinstance(weight, Tensor) and weight.ndim == 2:
        return 0 if isinstance(part, nn.Embedding) else int(weight.shape[1])
    width = getattr(part, "in_features", 0)
    return width if isinstance(width, int) else 0


def _mapped(one: nn.Module, rows: Tensor) -> Tensor:
    """What a projection makes of vectors, in float64 where it can be computed so."""
    with suppress(Exception):
        one = copy.deepcopy(one).double()
    first = next(x for x in one.modules() if _in_width(x))
    place = next(iter(one.parameters()), torch.zeros(()))
    given = rows.to(place.device, place.dtype)
    with torch.no_grad():
        if isinstance(first, nn.Conv1d):
            return _double(one(given.mT[None])[0].mT)
        return _double(one(given))


def _is_affine(one: nn.Module) -> bool:
    """Whether a module maps sums of vectors to sums, as a linear layer with a bias does."""
    width = next(filter(None, map(_in_width, one.modules())))
    with suppress(Exception):
        rows = torch.linspace(-9.0, 9.0, 3 * width).sin().view(3, width)
        rows = torch.cat((rows, rows[:1] + rows[1:2] - rows[2:]))
        mapped = _mapped(one, rows)
        return mapped.ndim == 2 and torch.allclose(
            mapped[0] + mapped[1] - mapped[2], mapped[3], atol=0.1
        )
    return False


def _weights(one: Any) -> Linear:
    """Weight (out, in) and bias of a module, a weight or a pair, in float64."""
    plain = getattr(type(one), "forward", None) is nn.Linear.forward
    if isinstance(one, nn.Module) and not plain:
        # By what it does: with additions such as LoRA's, and whichever way its weight is stored.
        width = next(filter(None, map(_in_width, one.modules())))
        constant = _mapped(one, torch.zeros(1, width))[0]
        weight = (_mapped(one, torch.eye(width)) - constant).mT
        return weight, constant if bool(constant.any()) else None
    pair = (one.weight, one.bias) if isinstance(one, nn.Module) else one
    weight, bias = pair if isinstance(pair, (tuple, list)) else (pair, None)
    return _double(weight), None if bias is None else _double(bias)


def _double(array: Any) -> Tensor:
    return torch.as_tensor(array).detach().to("cpu", torch.float64)


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
