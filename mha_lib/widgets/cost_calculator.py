"""The cost calculator: parameters, operations and bytes of attention, by number of heads and length."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import traitlets as t
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mha_lib.cache import KeyValueCache
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HEADS = 128
CURVE_STEPS = 16


class CostCalculator(Explorer):
    """What attention costs in parameters, FLOPs and bytes, and which costs the number of heads changes.

    The sizes are those of a stack of self-attention layers without biases. The FLOPs are those of the matrix
    products in one forward pass, two for each multiply and add; pairs that a causal mask hides count too.

    Args:
        embed_dim: width of the model, 1 to 16384.
        num_heads: number of heads, 1 to 128, divides `embed_dim`.
        num_kv_heads: number of key and value heads, divides `num_heads`; default `num_heads`.
        length: number of tokens, 1 to 1048576.
        batch_size: number of sequences, 1 to 1024.
        num_layers: number of attention layers, 1 to 256.
        bytes_per_number: 1, 2, 4 or 8.
        sweep: what differs from bar to bar, "num_heads" or "num_kv_heads".

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range, or does not divide the argument that it must divide.

    Example:
        >>> calculator = CostCalculator(embed_dim=64, num_heads=4, length=32, num_layers=1)
        >>> calculator
        CostCalculator(embed_dim=64, num_heads=4, num_kv_heads=4, length=32)
        >>> calculator.numbers()["parameters"].item()
        16384.0
    """

    _module: ClassVar[str] = "cost_calculator.js"

    embed_dim = Whole(768, 1, 16384)
    num_heads = Whole(12, 1, MAX_HEADS)
    num_kv_heads = Whole(None, 1, MAX_HEADS)
    length = Whole(1024, 1, 1048576)
    batch_size = Whole(1, 1, 1024).tag(in_repr=False)
    num_layers = Whole(12, 1, 256).tag(in_repr=False)
    bytes_per_number = Whole(2, options=(1, 2, 4, 8)).tag(in_repr=False)
    sweep = Choice("num_heads", ["num_heads", "num_kv_heads"]).tag(in_repr=False)

    @t.default("num_kv_heads")
    def _default_num_kv_heads(self) -> int:
        return int(self.num_heads)

    @t.validate("num_heads", "num_kv_heads")
    def _check_heads(self, proposal: t.Bunch) -> int:
        name = proposal.trait.name
        whole = "embed_dim" if name == "num_heads" else "num_heads"
        if getattr(self, whole) % proposal.value:
            raise TraitValueError(
                f"{name} must divide {whole}={getattr(self, whole)}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("embed_dim")
    def _fit_num_heads(self, change: t.Bunch) -> None:
        self.num_heads = _largest_divisor(change.new, self.num_heads)

    @t.observe("num_heads")
    def _fit_num_kv_heads(self, change: t.Bunch) -> None:
        # If each head had its own keys, that stays so; otherwise the nearest divisor at or below is taken.
        most = change.new if self.num_kv_heads == change.old else self.num_kv_heads
        if change.new % self.num_kv_heads:
            self.num_kv_heads = _largest_divisor(change.new, most)

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        embed_dim, length = state.embed_dim, state.length
        num_heads, num_kv_heads = state.num_heads, state.num_kv_heads

        def total(heads: int, kv_heads: int, tokens: int = length) -> list[int]:
            """Parameters, FLOPs of projections and of attention, bytes of weights and cache."""
            cost = _layer_cost(embed_dim, heads, kv_heads, tokens, state.batch_size)
            size = state.bytes_per_number
            amounts = [cost.parameters, cost.projections, cost.attention]
            amounts += [cost.weights * size, cost.cache * size]
            return [state.num_layers * amount for amount in amounts]

        now = torch.tensor(total(num_heads, num_kv_heads), dtype=torch.float64)
        counts = _swept_counts(state)
        shared = state.sweep == "num_kv_heads"
        swept = [total(num_heads if shared else count, count) for count in counts]
        parameters, projections, attention, weights, cache = torch.tensor(
            swept, dtype=torch.float64
        ).T
        # The projections treat each token by itself; scores and values grow with the square of the length.
        lengths = torch.tensor(_curve_lengths(state), dtype=torch.float64)
        of_one = total(num_heads, num_kv_heads, 1)
        projection_curve, attention_curve = of_one[1] * lengths, of_one[2] * lengths**2
        return {
            "parameters": now[0],
            "projection_flops": now[1],
            "attention_flops": now[2],
            "weights_bytes": now[3],
            "cache_bytes": now[4],
            "crossing": now[1] / now[2] * length,
            "parameters_swept": parameters,
            "flops_swept": projections + attention,
            "cache_swept": cache,
            "weights_swept": weights,
            "projection_curve": projection_curve,
            "attention_curve": attention_curve,
        }

    def figure(self) -> Figure:
        """Cost against heads, and FLOPs against length, as a matplotlib Figure."""
        from mha_lib import plots

        numbers = self.numbers()
        counts = _swept_counts(self)
        figure, (left, right) = plots.new_figure(1, 2, width=6.8, height=2.6)
        for index, name in enumerate(("parameters", "flops", "cache", "weights")):
            amounts = numbers[f"{name}_swept"]
            left.plot(
                range(len(counts)),
                amounts / amounts[0],
                "os^D"[index] + "-",
                color=plots.HEADS[(0, 2, 5, 6)[index]],
                markersize=4,
                label={"flops": "FLOPs", "weights": "attention weights"}.get(
                    name, name
                ),
            )
        left.set_yscale("log", base=2)
        left.set_xticks(range(len(counts)), counts)
        left.set(xlabel=self.sweep, ylabel="times that of the first")
        left.legend(fontsize=7.5, frameon=False)
        lengths = _curve_lengths(self)
        right.plot(lengths, numbers["projection_curve"], "k--", label="projections")
        right.plot(lengths, numbers["attention_curve"], "k-", label="scores and values")
        right.axvline(self.length, color="0.6", linewidth=1)
        right.set(xlabel="length", ylabel="FLOPs")
        right.legend(fontsize=7.5, frameon=False)
        figure.suptitle(
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        )
        return figure


class _Cost(NamedTuple):
    """The cost of one layer; weights and cache are counted in numbers, not in bytes."""

    parameters: int
    projections: int
    attention: int
    weights: int
    cache: int


@lru_cache(maxsize=4096)
def _layer_cost(
    embed_dim: int, num_heads: int, num_kv_heads: int, length: int, batch_size: int
) -> _Cost:
    """The cost that torch counts while the layer runs on the meta device: shapes without numbers."""
    with torch.device("meta"), torch.no_grad():
        layer = MultiHeadAttention(embed_dim, num_heads, num_kv_heads=num_kv_heads)
        x, cache = torch.empty(batch_size, length, embed_dim), KeyValueCache()
        with FlopCounterMode(display=False) as counter:
            _, weights = layer(x, x, x, cache=cache)
    assert weights is not None
    assert cache.keys is not None
    assert cache.values is not None
    flops = counter.get_flop_counts()["Global"]
    # The projections multiply matrices; the heads multiply batches of matrices.
    attention = sum(
        count for product, count in flops.items() if product == torch.ops.aten.bmm
    )
    return _Cost(
        sum(parameter.numel() for parameter in layer.parameters()),
        counter.get_total_flops() - attention,
        attention,
        weights.numel(),
        cache.keys.numel() + cache.values.numel(),
    )


def _swept_counts(state: Any) -> list[int]:
    """The numbers of heads to show: the powers of two up to 64 that divide, and the present numbers."""
    if state.sweep == "num_heads":
        whole, present = state.embed_dim, {state.num_heads}
    else:
        whole, present = state.num_heads, {state.num_heads, state.num_kv_heads}
    powers = {2**k for k in range(7) if whole % 2**k == 0}
    return sorted(powers | present)


def _curve_lengths(state: Any) -> list[int]:
    """The lengths of the curves, from 0 past the present length and past twice that where both costs meet."""
    crossing = state.embed_dim + state.num_kv_heads * state.embed_dim // state.num_heads
    stride = -(-max(2 * crossing, state.length * 5 // 4) // CURVE_STEPS)
    return [stride * step for step in range(CURVE_STEPS + 1)]


def _largest_divisor(whole: int, most: int) -> int:
    return max(n for n in range(1, min(whole, most) + 1) if whole % n == 0)
