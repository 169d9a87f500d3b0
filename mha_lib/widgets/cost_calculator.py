"""The cost calculator: parameters, operations and bytes of attention, against heads and length."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
import traitlets as t
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mha_lib.attention import MultiHeadAttention
from mha_lib.cache import KeyValueCache
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HEADS = 128
BYTES = (1, 2, 4, 8)
CURVE_STEPS = 16


class CostCalculator(Explorer):
    """What attention costs in parameters, FLOPs and bytes, and what of it the number of heads changes.

    The sizes are those of a stack of self-attention layers without biases. FLOPs are those of the matrix
    products in one forward pass, two for each multiply and add; a causal mask is not taken off.

    Args:
        embed_dim: width of the model, 1 to 16384.
        num_heads: number of heads, 1 to 128, divides `embed_dim`.
        num_kv_heads: number of key and value heads, divides `num_heads`; default `num_heads`.
        length: number of tokens, 1 to 1048576.
        batch_size: number of sequences, 1 to 1024.
        num_layers: number of attention layers, 1 to 256.
        bytes_per_number: 1, 2, 4 or 8.
        sweep: what the bars go through, "num_heads" or "num_kv_heads".

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is outside its range, or does not divide the other.

    Example:
        >>> calculator = CostCalculator(embed_dim=64, num_heads=4, length=32, num_layers=1)
        >>> calculator
        CostCalculator(embed_dim=64, num_heads=4, num_kv_heads=4, length=32)
        >>> calculator.numbers()["parameters"].item()
        16384.0
    """

    _module: ClassVar[str] = "cost_calculator.js"
    _settings: ClassVar[tuple[str, ...]] = (
        "embed_dim",
        "num_heads",
        "num_kv_heads",
        "length",
        "batch_size",
        "num_layers",
        "bytes_per_number",
        "sweep",
    )

    embed_dim = Whole(768, 1, 16384)
    num_heads = Whole(12, 1, MAX_HEADS)
    num_kv_heads = Whole(12, 1, MAX_HEADS)
    length = Whole(1024, 1, 1048576)
    batch_size = Whole(1, 1, 1024)
    num_layers = Whole(12, 1, 256)
    bytes_per_number = Whole(2, 1, 8)
    sweep = Choice("num_heads", ["num_heads", "num_kv_heads"])

    def __init__(
        self,
        *,
        embed_dim: int = 768,
        num_heads: int = 12,
        num_kv_heads: int | None = None,
        length: int = 1024,
        batch_size: int = 1,
        num_layers: int = 12,
        bytes_per_number: int = 2,
        sweep: str = "num_heads",
    ) -> None:
        # One after the other, as each rule depends on those before; then the widget opens with all of them.
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.length, self.batch_size = length, batch_size
        self.num_layers, self.bytes_per_number = num_layers, bytes_per_number
        self.sweep = sweep
        super().__init__()

    @t.validate("num_heads", "num_kv_heads")
    def _check_heads(self, proposal: t.Bunch) -> int:
        name = proposal.trait.name
        whole = "embed_dim" if name == "num_heads" else "num_heads"
        if getattr(self, whole) % proposal.value:
            raise TraitValueError(
                f"{name} must divide {whole}={getattr(self, whole)}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.validate("bytes_per_number")
    def _check_bytes(self, proposal: t.Bunch) -> int:
        if proposal.value not in BYTES:
            raise TraitValueError(
                f"bytes_per_number must be one of {BYTES}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("embed_dim")
    def _fit_num_heads(self, change: t.Bunch) -> None:
        self.num_heads = _largest_divisor(change.new, self.num_heads)

    @t.observe("num_heads")
    def _fit_num_kv_heads(self, change: t.Bunch) -> None:
        # A layer without sharing stays one; another keeps about as many.
        most = change.new if self.num_kv_heads == change.old else self.num_kv_heads
        if change.new % self.num_kv_heads:
            self.num_kv_heads = _largest_divisor(change.new, most)

    def _compute(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        length: int,
        batch_size: int,
        num_layers: int,
        bytes_per_number: int,
        sweep: str,
    ) -> dict[str, Tensor]:
        def total(heads: int, kv_heads: int, tokens: int = length) -> list[int]:
            """Parameters, FLOPs of projections and of attention, bytes of weights and cache."""
            cost = _layer_cost(embed_dim, heads, kv_heads, tokens, batch_size)
            parameters, projections, attention, weights, cache = cost
            amounts = [parameters, projections, attention]
            amounts += [weights * bytes_per_number, cache * bytes_per_number]
            return [num_layers * amount for amount in amounts]

        now = torch.tensor(total(num_heads, num_kv_heads), dtype=torch.float64)
        if sweep == "num_heads":
            counts = _counts(embed_dim, [num_heads])
            swept = [total(heads, heads) for heads in counts]
        else:
            counts = _counts(num_heads, [num_heads, num_kv_heads])
            swept = [total(num_heads, kv_heads) for kv_heads in counts]
        parameters, projections, attention, weights, cache = torch.tensor(
            swept, dtype=torch.float64
        ).T
        crossing = embed_dim + num_kv_heads * embed_dim // num_heads
        stride = -(-max(2 * crossing, length * 5 // 4) // CURVE_STEPS)
        # Projections treat each token by itself; scores and values go with the square of the length.
        lengths = stride * torch.arange(CURVE_STEPS + 1, dtype=torch.float64)
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
        if self.sweep == "num_heads":
            counts = _counts(self.embed_dim, [self.num_heads])
        else:
            counts = _counts(self.num_heads, [self.num_heads, self.num_kv_heads])
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
        stride = -(
            -max(2 * int(numbers["crossing"]), self.length * 5 // 4) // CURVE_STEPS
        )
        lengths = [stride * step for step in range(CURVE_STEPS + 1)]
        right.plot(lengths, numbers["projection_curve"], "k--", label="projections")
        right.plot(lengths, numbers["attention_curve"], "k-", label="scores and values")
        right.axvline(self.length, color="0.6", linewidth=1)
        right.set(xlabel="length", ylabel="FLOPs")
        right.legend(fontsize=7.5, frameon=False)
        figure.suptitle(
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        )
        return figure

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{name}={getattr(self, name)}" for name in self._settings[:4]
        )
        return f"CostCalculator({sizes})"


class _Cost(NamedTuple):
    """Of one layer, the last two in numbers, not bytes."""

    parameters: int
    projections: int
    attention: int
    weights: int
    cache: int


@lru_cache(maxsize=4096)
def _layer_cost(
    embed_dim: int, num_heads: int, num_kv_heads: int, length: int, batch_size: int
) -> _Cost:
    """Counted on the layer itself as it runs, on torch's meta device: shapes without numbers."""
    with torch.device("meta"), torch.no_grad():
        layer = MultiHeadAttention(embed_dim, num_heads, num_kv_heads=num_kv_heads)
        x, cache = torch.empty(batch_size, length, embed_dim), KeyValueCache()
        with FlopCounterMode(display=False) as counter:
            _, weights = layer(x, x, x, cache=cache)
    assert weights is not None
    assert cache.keys is not None
    assert cache.values is not None
    flops = counter.get_flop_counts()["Global"]
    # The projections multiply matrices, the heads batches of them.
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


def _counts(whole: int, always: list[int]) -> list[int]:
    """Numbers of heads for the bars: the powers of two up to 64 that divide, and those that must be there."""
    powers = [2**k for k in range(7) if whole % 2**k == 0]
    return sorted({*powers, *always})


def _largest_divisor(whole: int, most: int) -> int:
    return max(n for n in range(1, min(whole, most) + 1) if whole % n == 0)
