"""What somebody's layer may have besides projections and softmax: each is found by trying."""

import copy
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from attention_check._aspects import HEADS
from attention_check._contract import RIGHT, WRONG, Contract, Finding
from attention_check._formula import Layer, rotate_pairs, widths_of
from attention_check._judging import Exercise
from attention_check._layers import Order, of_queries
from attention_check._results import nearly_equal

BASES = (10_000.0, 500_000.0, 1_000_000.0, 100.0)
# The longest sequence.
LONGEST = 72


def with_norms(attention: nn.Module, layer: Layer) -> Iterator[tuple[str, Layer]]:
    """The layer with what surrounds its attention, and each in words.

    A norm of the input's width may stand before the projections, after the output or, as in BERT, after a
    residual connection, which may also stand alone.
    """
    yield "adds its input", layer._replace(adds_input=True)
    for name, norm in _norms(attention, layer.linear["q_proj"][0].shape[1]):
        before, after = layer._replace(norm=norm), layer._replace(norm_after=norm)
        ways = [(f"`{name}` before", before)] * (len({*widths_of(layer)}) == 1)
        ways.append((f"`{name}` before queries", before._replace(norms_memory=False)))
        for said, one in ways:
            yield said, one
            yield f"{said} · adds its input", one._replace(adds_input=True)
        yield f"`{name}` after", after
        yield f"adds its input · `{name}` after", after._replace(adds_input=True)


def norms_of(attention: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The norms of vectors of one width, by name."""
    for name, part in attention.named_modules():
        sizes = {parameter.shape for parameter in part.parameters()}
        is_norm = "norm" in f"{name.rpartition('.')[2]} {type(part).__name__}".lower()
        if is_norm and [len(size) for size in sizes] == [1]:
            yield name, part


def _norms(attention: nn.Module, width: int) -> Iterator[tuple[str, Any]]:
    """What the norms of vectors of this width compute, by name."""
    for name, part in norms_of(attention):
        if next(part.parameters()).numel() == width:
            own = copy.deepcopy(part).to("cpu").requires_grad_(False)
            yield name, partial(_normalized, own)


def _normalized(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm gives in its own dtype, on which its epsilon may depend, as float64."""
    own = next(norm.parameters()).dtype
    result: Tensor = norm(x.to(own))
    return result.double()


def with_keys(attention: nn.Module, layer: Layer) -> Iterator[tuple[str, Layer]]:
    """The layer with other keys and values: heads that share them in turn, or learned ones before all."""
    linear, width = layer.linear, layer.head_dim
    heads, shared = (len(linear[name][0]) // width for name in ("q_proj", "k_proj"))
    if 1 < shared < heads:
        yield "key heads shared in turn", layer._replace(tiled=True)
    learned = [
        (name, x.detach().to("cpu", torch.float64))
        for name, x in attention.named_parameters()
        if x.ndim and x.shape[-1] in (width, shared * width)
    ]
    for name, x in learned:
        if len(x) == 2 and x.ndim > 1:
            yield f"`{name}` before the keys", _with_null(layer, x[0], x[1], shared)
    for (name, x), (other, y) in pairwise(learned):
        if x.shape == y.shape and name.rpartition(".")[0] == other.rpartition(".")[0]:
            said = f"`{name}` and `{other}` before the keys"
            yield said, _with_null(layer, x, y, shared)
    settings = [pair for part in attention.modules() for pair in vars(part).items()]
    if any("zero" in name and x is True for name, x in settings):
        zero = torch.zeros(width, dtype=torch.float64)
        yield "a key of zeros", _with_null(layer, zero, zero, 1)


def _with_null(layer: Layer, key: Tensor, value: Tensor, heads: int) -> Layer:
    """The layer with learned keys and values (heads, number, head_dim), or of fewer axes."""
    pair = []
    for x in (key, value):
        x = x.reshape(-1, *x.shape[-2:])[0] if x.ndim > 3 else x
        if x.shape[-1] != layer.head_dim:  # all heads side by side
            x = x.reshape(-1, heads, layer.head_dim).transpose(0, 1)
        pair.append(x.reshape((1,) * (4 - x.ndim) + x.shape))
    return layer._replace(null=(pair[0], pair[1]))


def with_positions(attention: nn.Module, layer: Layer) -> Iterator[tuple[str, Layer]]:
    """The layer with norms of its heads, rotated heads, or both, and each in words."""
    plain = [("", layer)]
    norms = list(_norms(attention, layer.head_dim))
    for query in norms:
        for key in norms:
            of_each = query is not key or len(norms) == 1
            if of_each and "q" in query[0].rpartition(".")[2]:
                said = f"`{query[0]}` and `{key[0]}` of heads"
                plain.append((said, layer._replace(head_norms=(query[1], key[1]))))
    for said, one in plain[1:]:
        yield said, one
    width = layer.head_dim
    shares = (width, 3 * width // 4, width // 2, width // 4)
    parts = [n for n in shares if n > 1 and n % 2 == 0]
    for (said, one), part, base, slower, pairs, sign in product(
        plain, parts, BASES, (1, 2, 4, 8), (False, True), (1, -1)
    ):
        turn = partial(
            _turned, part=part, base=base, pace=sign / slower, interleaved=pairs
        )
        words = [
            said,
            f"rotary, {'neighbours' if pairs else 'halves'}",
            f"base {base:,.0f}" if base != BASES[0] else "",
            f"{part} of {width} columns" if part != width else "",
            f"positions / {slower}" if slower > 1 else "",
            "backwards" if sign < 0 else "",
        ]
        yield ", ".join(filter(None, words)), one._replace(turn=turn)


def turned(layer: Layer, kind: str) -> Layer:
    """The layer with the usual rotation of its heads."""
    usual = partial(_turned, part=layer.head_dim // 2 * 2, base=BASES[0], pace=1.0)
    return layer._replace(turn=partial(usual, interleaved=kind == "neighbours"))


def _turned(
    x: Tensor,
    part: int,
    base: float,
    pace: float,
    interleaved: bool,
    back: bool = False,
) -> Tensor:
    """Heads whose first columns are rotated by their positions, or back."""
    positions = (-pace if back else pace) * torch.arange(x.shape[-2])
    turned = rotate_pairs(x[..., :part], positions, base, interleaved)
    return torch.cat((turned, x[..., part:]), -1)


def _faded(scores: Tensor) -> Tensor:
    """Scores from near to far: what has faded below the precision of weights goes on as before."""
    seen = int(scores.isfinite().sum())
    if 2 < seen < len(scores) and scores[seen - 1] < -15.0:
        slope = (scores[seen - 1] - scores[1]) / (seen - 2)
        steps = torch.arange(1, len(scores) - seen + 1)
        scores = torch.cat((scores[:seen], scores[seen - 1] + slope * steps))
    return scores


@dataclass(frozen=True)
class ByDistance:
    """A bias that depends on the distance of a key: (heads, 2 * LONGEST - 1), from behind to ahead."""

    table: Tensor

    def __call__(self, _: int, q_len: int, k_len: int) -> Tensor:
        """The bias of each query and key; queries and keys end together."""
        distance = torch.arange(k_len) - torch.arange(k_len - q_len, k_len).unsqueeze(1)
        return self.table[:, distance + LONGEST - 1]

    def __str__(self) -> str:
        near = self.table[:, LONGEST - 5 : LONGEST + 4]
        behind = self.table[:, LONGEST - 1] - self.table[:, LONGEST - 2]
        slopes = near - behind.unsqueeze(1) * torch.arange(-4, 5).clamp(max=0)
        visible = self.table[0].isfinite()
        # A slope of 0 may be found as 1e-15.
        if behind.abs().max() > 1e-6 and (slopes[:, :5].std(1) < 1e-4).all():
            listed = ", ".join(f"{x:.3g}" for x in behind[:8])
            return f"ALiBi, slopes {listed}{', …' if len(behind) > 8 else ''}"
        if not visible.all() and (self.table[:, visible].std(1) < 1e-6).all():
            seen = visible.nonzero().flatten() - LONGEST + 1
            return f"window {-int(seen.min())} back, {int(seen.max())} ahead"
        return "a bias by distance"


def measured_bias(
    contract: Contract, layer: Layer, num_heads: int
) -> ByDistance | None:
    """What a layer adds to the scores, if that depends only on the distance of a key from a query.

    In a copy whose queries are zero, the weights are the softmax of the bias; as values are known, and the
    output is linear in the weights, these are the solution of linear equations.
    """
    with suppress(Exception):
        module: Any = copy.deepcopy(contract.attention)
        module.double()
        found = of_queries(module)
        if not isinstance(module, nn.Module) or found is None:
            return None
        projection, parts = found
        orders = [Order(*x) for x in order_of(contract)] if parts == 3 else []

        def without_queries(_: Any, __: Any, rows: Tensor) -> Tensor:
            axis = 1 if isinstance(projection, nn.Conv1d) else -1
            index = torch.arange(rows.shape[axis])
            if orders:
                index = orders[0].cut(index, num_heads)["q"]
            return rows.index_fill(axis, index, 0.0)

        projection.register_forward_hook(without_queries)
        copied = replace(contract, attention=module, dtype=torch.float64)
        weights = _solved(copied, layer, num_heads)
        return None if weights is None else _by_distance(weights)
    return None


class BiasOfFunction(dict[int, ByDistance | None]):
    """What a function adds to the scores, by its number of heads, measured where it is first needed."""

    def __init__(self, contract: Contract) -> None:
        super().__init__()
        self.contract = replace(contract, dtype=torch.float64)

    def __missing__(self, heads: int) -> ByDistance | None:
        """With queries and keys of zeros, and unit vectors as values, the output is the weights."""
        zeros = torch.zeros(1, heads, LONGEST, LONGEST)
        self[heads] = None
        with suppress(Exception, SystemExit):
            output = self.contract(zeros, zeros, torch.eye(LONGEST).expand_as(zeros))
            self[heads] = _by_distance(torch.as_tensor(output).detach().double()[0])
        return self[heads]

    def __call__(self, heads: int, q_len: int, k_len: int) -> Tensor:
        """The bias of each query and key, or zeros if there is none that depends only on their distance."""
        found = self[heads]
        zeros = torch.zeros(heads, q_len, k_len)
        return zeros if found is None else found(heads, q_len, k_len)

    def __str__(self) -> str:
        return str(self[HEADS])


def scales_of(contract: Contract, num_heads: int, width: int) -> Iterator[Any]:
    """The numbers that the products of vectors of length 1 may be multiplied by.

    With 1 / √head_dim, which is for other vectors, all weights would be nearly equal: that is a fault.
    """
    declared = dict(contract.declared).get("scale", 1.0)
    known = [declared, 1.0, 8.0, 10.0, 16.0, 20.0, width**0.5]
    module: Any = contract.attention
    parts = module.modules() if isinstance(module, nn.Module) else ()
    for part in parts:
        for x in (*part.parameters(recurse=False), *vars(part).values()):
            if isinstance(x, Tensor) and x.numel() in (1, num_heads):
                x = x.detach().to("cpu", torch.float64).reshape(-1, 1, 1)
                known += [x.item(), x.exp().item()] if len(x) == 1 else [x, x.exp()]
            elif isinstance(x, float):
                known.append(x)
    for x in known:
        if isinstance(x, Tensor) or (x > 0 and abs(x - width**-0.5) > 1e-6):
            yield x


def order_of(contract: Contract) -> Iterator[tuple[str, str]]:
    """The order of a fused projection, as the contract says it."""
    for said in contract.heads.split(" · "):
        if said.startswith("fused "):
            end = 13 if said.count(", ") > 1 else 10
            yield said[6:end].replace(", ", ""), said[end:]


def _solved(contract: Contract, layer: Layer, num_heads: int) -> Tensor | None:
    """The weights (num_heads, LONGEST, LONGEST) of a layer that have the right values, or None."""
    inner = layer._replace(adds_input=False, norm_after=None)
    width = layer.linear["q_proj"][0].shape[1]
    samples = 2 * -(-num_heads * LONGEST // width)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, LONGEST, width, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        output = torch.as_tensor(contract(x, x, x))
    if layer.norm_after is not None or output.shape != x.shape:
        return None
    if layer.adds_input:
        output = output - x
    # What each key would give if a query saw only that key, in one head.
    out, constant = inner.linear["out_proj"]
    if constant is not None:
        output = output - constant
    given = x if layer.norm is None else layer.norm(x)
    weight, offset = inner.linear["v_proj"]
    values = torch.nn.functional.linear(given, weight, offset)
    values = values.unflatten(-1, (-1, layer.head_dim))
    group = num_heads // values.shape[2]
    values = (
        values.repeat(1, 1, group, 1)
        if layer.tiled
        else values.repeat_interleave(group, 2)
    )
    parts = torch.einsum("nlhd,ehd->nehl", values, out.unflatten(-1, (num_heads, -1)))
    equations = parts.flatten(0, 1).flatten(1)
    wanted = output.transpose(1, 2).flatten(0, 1)
    solution: Tensor = torch.linalg.lstsq(equations, wanted).solution
    if not torch.allclose(equations @ solution, wanted, atol=1e-6):
        return None
    weights: Tensor = solution.unflatten(0, (num_heads, LONGEST)).transpose(1, 2)
    return weights


def _by_distance(weights: Tensor) -> ByDistance | None:
    """The bias whose softmax these weights are, if it depends only on the distance."""
    scores = torch.where(weights > 1e-10, weights, 0.0).log()
    scores = scores - scores.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    sides = scores[:, -1, :-1].flip(-1), scores[:, 0]
    behind, ahead = (torch.stack([_faded(x) for x in side]) for side in sides)
    bias = ByDistance(table := torch.cat((behind.flip(-1), ahead), 1))
    rebuilt = bias(len(weights), LONGEST, LONGEST)
    if not torch.allclose(rebuilt.softmax(-1), weights, atol=1e-8):
        return None
    hidden = table.isneginf()
    behind, ahead = hidden[:, : LONGEST - 1], hidden[:, LONGEST:]
    # Hidden keys are a window, one for all heads; only the future can be hidden alone.
    back, front = (int((~x[0]).sum()) for x in (behind, ahead))
    is_window = bool((hidden == hidden[0]).all()) and front in (0, back, LONGEST - 1)
    return bias if is_window and back > 0 and bool(table.any()) else None


def same(exercise: Exercise, mine: Tensor, wanted: Tensor) -> bool:
    return nearly_equal(mine, wanted, exercise.atol, exercise.rtol)


def with_cache(
    name: str, exercise: Exercise, contract: Contract, layer: Any, _: int
) -> list[Finding]:
    """What the last token gives after calls with those before it, which a cache keeps."""
    if contract.memory:
        contract = replace(contract, one_input=True, memory="")
    whole = exercise._arguments("as many queries as keys")[:3]
    known = {
        "": exercise.reference(*whole, None, True),
        "only the newest key is seen": exercise.reference(
            *(x[..., -1:, :] for x in whole)
        ),
    }
    if layer is not None and layer.turn is not None:

        def again(x: Tensor) -> Tensor:
            return torch.cat([layer.turn(part) for part in x.split((3, 1, 1), -2)], -2)

        turned = exercise.reference(*whole, None, True, turn=again)
        known["the positions begin at 0 in every call"] = turned
    library = sys.modules.get("transformers")
    states: tuple[Any, ...] = ({}, library and library.DynamicCache(), None)
    for state in states:
        with suppress(Exception, SystemExit):
            output = _last_of_steps(name, contract, whole, state)
            alike = (
                said
                for said, wanted in known.items()
                if same(exercise, output, wanted[..., -1:, :])
            )
            said = next(alike, "tokens one by one give other numbers than together")
            if not said:
                return [Finding(RIGHT)]
            if state or "newest" not in said:  # what is returned may be no cache
                return [Finding(WRONG, f"with `{name}`, {said}.")]
    return []


def _last_of_steps(
    name: str, contract: Contract, whole: tuple[Tensor, ...], state: Any
) -> Tensor:
    """The output for the last of 3 + 1 + 1 tokens; a cache is filled, or returned."""
    is_returned = False
    for start, end in ((0, 3), (3, 4), (4, 5)):
        more = {name: state}
        if contract.turned:
            turned = contract.rotation(end)
            more[contract.turned] = tuple(x[:, start:] for x in turned)
        first = 0 if contract.one_input else start
        others = (x[..., first:end, :].contiguous() for x in whole[1:])
        one = replace(contract, more=tuple(more.items()))
        returned = one._returned(whole[0][..., start:end, :].contiguous(), *others)
        is_returned = is_returned or not (start or state)
        if is_returned:
            state = returned[-1] if isinstance(returned, tuple) else None
        if state is None:
            raise ValueError("nothing is kept")
    return torch.as_tensor(one.output_of(returned)).detach()
