"""The cost calculator: how many users fit in a memory, and what attention costs by heads and length."""

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
from mha_lib.widgets._traits import Choice, Flag, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HEADS = 128
MILLION, GIGA = 10**6, 10**9
"""A GB is 10⁹ bytes, as on the data sheet of a GPU; 2³⁰ bytes are a GiB."""

# The colours of the model and of the scores in the still picture; the caches have those of keys and values.
INK, SCORES = "#444444", "#21918c"
CURVE_STEPS = 16


class CostCalculator(Explorer):
    """How many users a memory holds: model, scores and caches; and what the number of heads costs.

    The memory holds the parameters of a model, the scores of one layer for one user, and a cache of keys and
    values for each user. One table of scores is enough, because the layers follow one another, and prompts
    are read one at a time. The model is a stack of self-attention layers without biases, and other
    parameters. A gigabyte, GB, is 10⁹ bytes.

    The FLOPs are those of the matrix products of the attention layers in one forward pass, two for each
    multiply and add; pairs that a causal mask hides count too.

    Args:
        embed_dim: width of the model, 1 to 16384.
        num_heads: number of heads, 1 to 128, divides `embed_dim`.
        num_kv_heads: number of key and value heads, divides `num_heads`; default `num_heads`.
        length: number of tokens of each user, 1 to 1048576.
        score_table: whether the scores of a layer stand in memory as a table; a fused kernel, such as
            FlashAttention, computes them in pieces and keeps none.
        num_layers: number of attention layers, 1 to 256.
        other_millions: parameters outside the attention layers in millions, 0 to 1000000.
        bytes_per_number: 1, 2, 4 or 8.
        memory_gb: size of the memory in GB, 1 to 100000.
        batch_size: number of sequences of the forward pass, 1 to 1024.
        sweep: what differs from bar to bar, "num_heads" or "num_kv_heads".

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range, or does not divide the argument that it must divide.

    Example:
        Llama 2 with 7 billion parameters, and the same with one key and value head for all heads:

        >>> calculator = CostCalculator(length=4096)
        >>> calculator
        CostCalculator(embed_dim=4096, num_heads=32, num_kv_heads=32, length=4096)
        >>> int(calculator.numbers()["users"])
        30
        >>> calculator.num_kv_heads = 1
        >>> int(calculator.numbers()["users"])
        1006
    """

    _module: ClassVar[str] = "cost_calculator.js"

    embed_dim = Whole(4096, 1, 16384)
    num_heads = Whole(32, 1, MAX_HEADS)
    num_kv_heads = Whole(None, 1, MAX_HEADS)
    length = Whole(4096, 1, 1048576)
    score_table = Flag(True).tag(in_repr=False)
    num_layers = Whole(32, 1, 256).tag(in_repr=False)
    other_millions = Whole(4591, 0, 1_000_000).tag(in_repr=False)
    bytes_per_number = Whole(2, options=(1, 2, 4, 8)).tag(in_repr=False)
    memory_gb = Whole(80, 1, 100_000).tag(in_repr=False)
    batch_size = Whole(1, 1, 1024).tag(in_repr=False)
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
        memory = _memory_use(state)
        projection_curve, attention_curve = of_one[1] * lengths, of_one[2] * lengths**2
        return {
            "model_bytes": torch.tensor(memory.model, dtype=torch.float64),
            "scores_bytes": torch.tensor(memory.scores, dtype=torch.float64),
            "user_bytes": torch.tensor(memory.user, dtype=torch.float64),
            "users": torch.tensor(memory.users, dtype=torch.float64),
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
        """The memory with as many users as fit, for MHA, GQA and MQA, as a matplotlib Figure."""
        from mha_lib import plots

        figure, axis = plots.new_figure(width=6.5, height=2.2)
        counts = _sharing(self)
        for row, kv_heads in enumerate(counts):
            state = {name: getattr(self, name) for name in self._settings}
            memory = _memory_use(SimpleNamespace(**state | {"num_kv_heads": kv_heads}))
            caches = memory.users * memory.user
            left = 0.0
            for size, color, name in (
                (memory.model, INK, "model"),
                (memory.scores, SCORES, "scores"),
                (caches / 2, plots.KEY, "keys of all users"),
                (caches / 2, plots.VALUE, "values of all users"),
            ):
                label = name if row == 0 else None
                axis.barh(row, size / GIGA, left=left, color=color, label=label)
                left += size / GIGA
            people = "user" if memory.users == 1 else "users"
            axis.text(
                1.02 * self.memory_gb, row, f"{memory.users:,} {people}", va="center"
            )
        axis.axvline(self.memory_gb, color="black", linewidth=1)
        axis.set(xlim=(0, 1.25 * self.memory_gb), xlabel="GB")
        axis.set_yticks(
            range(len(counts)),
            [f"{n} key heads" if n > 1 else "1 key head" for n in counts],
        )
        axis.invert_yaxis()
        axis.set_title(
            f"{self.num_heads} heads, {self.length:,} tokens per user, {self.memory_gb} GB"
        )
        axis.legend(
            loc="upper center", bbox_to_anchor=(0.45, -0.3), ncols=4, fontsize=8
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


class _Memory(NamedTuple):
    """Bytes of the model, of one table of scores and of the cache of one user, and the users that fit."""

    model: int
    scores: int
    user: int
    users: int


def _memory_use(state: Any) -> _Memory:
    """What stands in the memory; layer and cache are those of the library, as in `_layer_cost`."""
    layer = _layer_cost(
        state.embed_dim, state.num_heads, state.num_kv_heads, state.length, 1
    )
    size = state.bytes_per_number
    parameters = state.num_layers * layer.parameters + MILLION * state.other_millions
    model = parameters * size
    scores = layer.weights * size if state.score_table else 0
    user = state.num_layers * layer.cache * size
    users = max(0, (state.memory_gb * GIGA - model - scores) // user)
    return _Memory(model, scores, user, users)


def _sharing(state: Any) -> list[int]:
    """Key and value heads from one for each head (MHA) over the present number or groups to one (MQA)."""
    heads, present = state.num_heads, state.num_kv_heads
    between = (
        present if 1 < present < heads else _largest_divisor(heads, -(-heads // 4))
    )
    return sorted({heads, between, 1}, reverse=True)


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
