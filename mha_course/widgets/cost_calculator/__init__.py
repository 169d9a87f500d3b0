"""The cost calculator: how many users fit in memory, and what attention costs by heads and length."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
import traitlets as t
from torch.utils.flop_counter import FlopCounterMode

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Choice, Flag, Whole
from mha_lib.cache import KeyValueCache
from mha_lib.multi_head import MultiHeadAttention

MAX_HEADS = 128
MILLION, GIGA = 10**6, 10**9
"""A GB is 10⁹ bytes, as on the data sheet of a GPU; 2³⁰ bytes are a GiB."""

CURVE_STEPS = 16


class CostCalculator(Explorer):
    """How many users fit in memory next to the model and its scores, and what the number of heads costs.

    The memory holds the parameters of a model, the scores of one layer for one user, and a cache of keys and
    values for each user. One table of scores is enough, because the layers run one after another and prompts
    are read one at a time. The model consists of self-attention layers without biases, and of other
    parameters. A gigabyte, GB, is 10⁹ bytes.

    The FLOPs are those of the matrix products of the attention layers in one forward pass. A multiplication
    and an addition count as two, and pairs that a causal mask hides count too.

    Args:
        embed_dim: width of the model, 1 to 16384.
        num_heads: number of heads, 1 to 128; divides `embed_dim`.
        num_kv_heads: number of key and value heads; divides `num_heads`; default `num_heads`.
        length: number of tokens of each user, 1 to 1048576.
        score_table: whether memory contains the scores of a layer as a table; a fused kernel, such as
            FlashAttention, computes them in pieces and stores none.
        num_layers: number of attention layers, 1 to 256.
        other_millions: parameters outside the attention layers in millions, 0 to 1000000.
        bytes_per_number: 1, 2, 4 or 8.
        memory_gb: size of the memory in GB, 1 to 100000.
        batch_size: number of sequences of the forward pass, 1 to 1024.
        sweep: the argument that differs from bar to bar, "num_heads" or "num_kv_heads".

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or does not divide the argument that it must divide.

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
    num_heads = Whole(32, 1, MAX_HEADS, divides="embed_dim")
    num_kv_heads = Whole(None, 1, MAX_HEADS, divides="num_heads")
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

    @t.observe("num_heads")
    def _keep_own_keys(self, change: t.Bunch) -> None:
        # If each head had its own keys and the old number no longer divides, each head keeps its own keys.
        if self.num_kv_heads == change.old and change.new % self.num_kv_heads:
            self.num_kv_heads = change.new

    @staticmethod
    def _compute(
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        length: int,
        score_table: bool,
        num_layers: int,
        other_millions: int,
        bytes_per_number: int,
        memory_gb: int,
        batch_size: int,
        sweep: str,
    ) -> dict[str, Any]:
        # The memory holds the model, the scores of one layer and one user, and a cache for each user.
        one = _layer_cost(embed_dim, num_heads, num_kv_heads, length, 1)
        all_parameters = num_layers * one.parameters + MILLION * other_millions
        model_bytes = all_parameters * bytes_per_number
        scores_bytes = one.weights * bytes_per_number if score_table else 0
        user_bytes = num_layers * one.cache * bytes_per_number
        room = memory_gb * GIGA - model_bytes - scores_bytes
        users = max(0, room // user_bytes)

        def total(heads: int, kv_heads: int, tokens: int = length) -> list[int]:
            cost = _layer_cost(embed_dim, heads, kv_heads, tokens, batch_size)
            return [num_layers * n for n in _amounts(cost, bytes_per_number)]

        now = total(num_heads, num_kv_heads)
        shared = sweep == "num_kv_heads"
        heads = {num_heads, num_kv_heads} if shared else {num_heads}
        counts = _swept_counts(num_heads if shared else embed_dim, heads)
        swept = [total(num_heads if shared else count, count) for count in counts]
        columns = torch.tensor(swept, dtype=torch.float64).T
        # The projections treat each token by itself; scores and values grow with the square of the length.
        meeting = embed_dim + num_kv_heads * embed_dim // num_heads
        stride = -(-max(2 * meeting, length * 5 // 4) // CURVE_STEPS)
        lengths = torch.arange(CURVE_STEPS + 1, dtype=torch.float64) * stride
        of_one = total(num_heads, num_kv_heads, 1)
        return {
            "users": users,
            "model_bytes": model_bytes,
            "scores_bytes": scores_bytes,
            "user_bytes": user_bytes,
            "parameters": now[0],
            "projection_flops": now[1],
            "attention_flops": now[2],
            "weights_bytes": now[3],
            "cache_bytes": now[4],
            "crossing": now[1] / now[2] * length,
            "parameters_swept": columns[0],
            "flops_swept": columns[1] + columns[2],
            "weights_swept": columns[3],
            "cache_swept": columns[4],
            "projection_curve": of_one[1] * lengths,
            "attention_curve": of_one[2] * lengths**2,
        }


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


def _amounts(cost: _Cost, bytes_per_number: int) -> list[int]:
    """Parameters, FLOPs of projections and of attention, bytes of weights and cache."""
    amounts = [cost.parameters, cost.projections, cost.attention]
    return [*amounts, cost.weights * bytes_per_number, cost.cache * bytes_per_number]


def _swept_counts(whole: int, present: set[int]) -> list[int]:
    """The numbers of heads to show: the powers of two up to 64 that divide, and the present numbers."""
    return sorted(present | {2**k for k in range(7) if whole % 2**k == 0})
