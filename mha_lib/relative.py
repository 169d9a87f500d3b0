"""Relative positions: scores that depend on the distance between query and key (ALiBi, T5, Shaw)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import Device, DType, Positions
from mha_lib.positional import _distances
from mha_lib.scores import _dot_product


def alibi_slopes(
    num_heads: int, *, device: Device = None
) -> Float[Tensor, " {num_heads}"]:
    """Slope of each head's penalty on distance (Press et al., 2022, §3).

    If the number of heads h is a power of two, the slopes are 2^(-8/h), 2^(-16/h), ..., 2^-8. For other
    numbers, the slopes are those of the next lower power of two, followed by every second slope of twice
    that power, as in the paper's code. The slopes are positive, float32 (num_heads,), on `device`.

    Raises:
        TypeError, ValueError: `num_heads` is not an int, or not positive.

    Example:
        >>> alibi_slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    _checks.check_positive_int("num_heads", num_heads)
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    between = range(0, 2 * (num_heads - power), 2)
    slopes += [2.0 ** (-4 * (i + 1) / power) for i in between]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def alibi_bias(
    num_heads: int,
    q_len: int,
    k_len: int | None = None,
    *,
    positions: Positions | None = None,
    device: Device = None,
) -> Float[Tensor, "*batch {num_heads} {q_len} _"]:
    """Penalty on distance, -slope * |distance|, to be added to the scores (Press et al., 2022, §3).

    The bias, float32 and at most 0, is (num_heads, q_len, k_len), or (batch, num_heads, q_len, k_len) with
    `positions`; each head has its own slope. Arguments and errors are those of `sliding_window_mask`; in
    addition, `num_heads` must be positive, like the lengths. Give a layer `attn_bias=alibi_bias(...)[None]`.

    Example:
        >>> alibi_bias(1, 1, 3).tolist()
        [[[-0.0078125, -0.00390625, -0.0]]]
    """
    _checks.check_sizes(q_len=q_len, k_len=q_len if k_len is None else k_len)
    far = _distances(q_len, k_len, positions, device).abs()
    slopes = alibi_slopes(num_heads, device=far.device)
    return -slopes[:, None, None] * far.unsqueeze(-3)


def _bucket_starts(side: int, max_distance: int) -> list[int]:
    """The distances at which the buckets 1 .. side - 1 begin, computed exactly in integers."""
    exact, wide = side // 2, side - side // 2
    starts = list(range(1, exact + 1))
    for step in range(1, wide):
        # The smallest integer at or above exact * (max_distance / exact)^(step / wide). A floating-point
        # guess is corrected by comparing integer powers, which needs no roots.
        start = int(exact * (max_distance / exact) ** (step / wide))
        while start**wide * exact**step < max_distance**step * exact**wide:
            start += 1
        starts.append(start)
    return starts


def t5_buckets(
    q_len: int,
    k_len: int | None = None,
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    positions: Positions | None = None,
    device: Device = None,
) -> Int[Tensor, "*batch {q_len} _"]:
    """Bucket of each distance between a query and a key (Raffel et al., 2020, §2.1).

    Of the n buckets per side, the first m = n // 2 contain one distance each. As in the authors' code, a
    distance r of m or more falls into bucket m + floor((n - m) log(r / m) / log(max_distance / m)), at most
    n - 1. The formula is evaluated in integers, so rounding cannot move a distance to a neighbouring bucket.
    The buckets, int64 in 0..num_buckets - 1, are (q_len, k_len), or (batch, q_len, k_len) with `positions`.

    Args:
        q_len: number of queries.
        k_len: number of keys; default `q_len`. Queries and keys end together, as in `causal_mask`.
        num_buckets: number of buckets, which must be even with `bidirectional`.
        max_distance: the last bucket contains all distances from this one on, and some shorter ones.
        bidirectional: use half of the buckets for keys at or before the query, half for keys after it.
            Otherwise, all are for keys at or before the query, and every key after it falls into bucket 0.
        positions: as in `sliding_window_mask`.
        device: where the buckets are created; with `positions`, on the device of these.

    Raises:
        TypeError: a size is not an int, `bidirectional` not a bool, or a position not an integer tensor.
        ValueError: a size is not positive, `num_buckets` is odd or below 4 if bidirectional, or below 2 if
            not, or `max_distance` leaves no room for the wide buckets.

    Example:
        >>> t5_buckets(1, 9, num_buckets=8, max_distance=8, bidirectional=False).tolist()
        [[7, 7, 6, 5, 4, 3, 2, 1, 0]]
    """
    _checks.check_sizes(q_len=q_len, k_len=q_len if k_len is None else k_len)
    _checks.check_buckets(num_buckets, max_distance, bidirectional)
    side = num_buckets // 2 if bidirectional else num_buckets
    ahead = _distances(q_len, k_len, positions, device)
    starts = torch.tensor(_bucket_starts(side, max_distance), device=ahead.device)
    if not bidirectional:
        return torch.bucketize((-ahead).clamp(min=0), starts, right=True)
    return torch.bucketize(ahead.abs(), starts, right=True) + side * (ahead > 0)


class _DistanceTable(nn.Module):
    """A learned table for distances, with settings that the printed module shows."""

    _settings: ClassVar[tuple[str, ...]]

    def __init__(self, rows: int, columns: int, device: Device, dtype: DType) -> None:
        super().__init__()
        table = torch.empty(rows, columns, device=device, dtype=dtype)
        self.table = nn.Parameter(table)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from Xavier's uniform distribution (Glorot & Bengio, 2010)."""
        nn.init.xavier_uniform_(self.table)

    def extra_repr(self) -> str:
        """Show the settings in the printed module."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self._settings)


class T5RelativeBias(_DistanceTable):
    """A learned bias on the scores for each head and each bucket of distances (Raffel et al., 2020, §2.1).

    In T5, all layers of the encoder share one such table, those of the decoder another, and scores are not
    divided by √d; for a T5 checkpoint, also pass `score=dot_product_score` to the layer. HuggingFace calls
    `table` (num_buckets, num_heads) `relative_attention_bias.weight`. It is initialized as in T5X, the
    authors' later code.
    Arguments and errors are those of `t5_buckets`; `bidirectional` is False for causal attention.

    Example:
        >>> bias = T5RelativeBias(num_heads=3)
        >>> bias(5, 7).shape, bias.table.shape
        (torch.Size([1, 3, 5, 7]), torch.Size([32, 3]))
    """

    _settings = ("num_heads", "num_buckets", "max_distance", "bidirectional")

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        _checks.check_positive_int("num_heads", num_heads)
        _checks.check_buckets(num_buckets, max_distance, bidirectional)
        super().__init__(num_buckets, num_heads, device, dtype)
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def forward(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        positions: Positions | None = None,
    ) -> Float[Tensor, "batch {self.num_heads} {q_len} _"]:
        """Return the `attn_bias`, (1, num_heads, q_len, k_len), or (batch, ...) with `positions`.

        The bias has the dtype of the table. Arguments and errors are those of `t5_buckets`.
        """
        buckets = t5_buckets(
            q_len,
            k_len,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
            positions=positions,
            device=self.table.device,
        )
        # Taking columns of the transposed table is several times faster than permuting rows afterwards.
        bias = self.table.t().index_select(1, buckets.flatten())
        bias = bias.view(self.num_heads, -1, *buckets.shape[-2:])
        return bias.transpose(0, 1)


class ShawScore(_DistanceTable):
    """Scaled dot product with a learned vector for each distance, q·(k + a) / √d (Shaw et al., 2018, eq. 4).

    The vector a belongs to the distance j - i between query i and key j, clipped to
    -max_distance..max_distance. Queries and keys end together, as in `causal_mask`. All heads share one
    table, as in the paper's big model. The paper's second table, for the values (its equation 3), is left
    out, because the paper's ablation finds that the table for the keys alone does as well as both.

    Use it like any other scoring rule: `MultiHeadAttention(..., score=ShawScore(head_dim, max_distance))`.
    The middle row of `table` (2 * max_distance + 1, head_dim) is the vector of distance 0.

    Raises:
        TypeError, ValueError: a size is not an int, or not positive.

    Example:
        >>> score = ShawScore(head_dim=3, max_distance=2)
        >>> score(torch.ones(2, 4, 3), torch.ones(2, 6, 3)).shape, score.table.shape
        (torch.Size([2, 4, 6]), torch.Size([5, 3]))
    """

    _settings = ("head_dim", "max_distance")
    takes_positions = True
    """If its cache contains samples of different lengths, the layer passes the positions of their tokens."""

    def __init__(
        self,
        head_dim: int,
        max_distance: int,
        *,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        _checks.check_sizes(head_dim=head_dim, max_distance=max_distance)
        super().__init__(2 * max_distance + 1, head_dim, device, dtype)
        self.head_dim, self.max_distance = head_dim, max_distance

    def forward(
        self,
        query: Float[Tensor, "*#batch q_len d"],
        key: Float[Tensor, "*#batch k_len d"],
        *,
        positions: Positions | None = None,
    ) -> Float[Tensor, "*batch q_len k_len"]:
        """Score (..., q_len, head_dim) against (..., k_len, head_dim): (..., q_len, k_len).

        Arguments and errors are those of `dot_product_score`, with the width and dtype of the table. With
        `positions`, as in `sliding_window_mask`, query and key are (batch, num_heads, len, head_dim).
        """
        _checks.check_vectors(query, key, (self.head_dim,) * 2)
        q_len, k_len = query.shape[-2], key.shape[-2]
        query = query / math.sqrt(self.head_dim)
        # Score each query once per distance, then pick a score per key: no tensor (q_len, k_len, head_dim).
        by_distance = _dot_product(query, self.table)
        ahead = _distances(q_len, k_len, positions, query.device)
        rows = (ahead + self.max_distance).clamp(0, 2 * self.max_distance)
        rows = rows if rows.ndim == 2 else rows.unsqueeze(1)  # the same for all heads
        rows = rows.expand(*query.shape[:-2], q_len, k_len)
        return _dot_product(query, key) + by_distance.gather(-1, rows)
