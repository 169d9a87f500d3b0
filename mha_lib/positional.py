"""Where a token stands: encodings added to the tokens, rotations of query and key, biases on the scores."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from mha_lib._checks import (
    check_float_tensor,
    check_int,
    check_pair,
    check_positive,
    check_positive_int,
    check_probability,
    check_same,
    check_same_kind,
    check_type,
    check_width,
    extremes,
)


def _angles(positions: Tensor, dim: int, base: float) -> Tensor:
    """Angle of each pair i of `dim` columns, position * base^(-2i / dim): (..., len, ceil(dim / 2))."""
    # Positions and frequencies are multiplied in float64, so that at most the result is
    # rounded. Apple's GPUs have none.
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    exponents = -torch.arange(0, dim, 2, dtype=dtype, device=positions.device) / dim
    return positions.to(dtype).unsqueeze(-1) * float(base) ** exponents


def _distances(
    q_len: int, k_len: int, device: torch.device | str | None = None
) -> Tensor:
    """Key position minus query position, (q_len, k_len); queries and keys end together."""
    query_position = torch.arange(q_len, device=device) + (k_len - q_len)
    return torch.arange(k_len, device=device) - query_position.unsqueeze(-1)


def sinusoidal_encoding(
    num_positions: int, embed_dim: int, *, base: float = 10_000.0
) -> Float[Tensor, "{num_positions} {embed_dim}"]:
    """Table of sines and cosines, one row a position (Vaswani et al., 2017, §3.5).

    Column 2i holds sin(position * w_i) and column 2i + 1 cos(position * w_i), w_i = base^(-2i / embed_dim).
    Where `embed_dim` is odd the last pair has its sine only.

    Args:
        num_positions: number of rows.
        embed_dim: number of columns, even or odd.
        base: the longest wavelength is about 2π * base positions.

    Returns:
        float32 table (num_positions, embed_dim), computed in float64.

    Raises:
        TypeError: a size is not an int, or `base` is not a number.
        ValueError: a size or `base` is not positive.

    Example:
        >>> sinusoidal_encoding(2, 3)[0].tolist()
        [0.0, 1.0, 0.0]
    """
    check_positive_int("num_positions", num_positions)
    check_positive_int("embed_dim", embed_dim)
    check_positive("base", base)
    angles = _angles(torch.arange(num_positions), embed_dim, base)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return table[:, :embed_dim].float()


class _PositionalEncoding(nn.Module):
    """Add a row of the table `encoding` (max_len, embed_dim) to each token."""

    encoding: Tensor

    def __init__(self, embed_dim: int, max_len: int, dropout: float) -> None:
        super().__init__()
        check_positive_int("embed_dim", embed_dim)
        check_positive_int("max_len", max_len)
        check_probability("dropout", dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch len embed_dim"]
    ) -> Float[Tensor, "batch len embed_dim"]:
        """Add the encodings of positions 0..len-1 to `x` (batch, len, embed_dim).

        Raises:
            TypeError: `x` is not a floating-point tensor.
            ValueError: `x` has another shape, or is longer than the table.
        """
        max_len, embed_dim = self.encoding.shape
        check_width("x", x, embed_dim, axes="batch, len, embed_dim")
        if x.shape[1] > max_len:
            raise ValueError(
                f"x must not be longer than max_len={max_len}, got len={x.shape[1]}"
            )
        output: Tensor = self.dropout(x + self.encoding[: x.shape[1]].to(x.dtype))
        return output


class SinusoidalPositionalEncoding(_PositionalEncoding):
    """Add fixed sines and cosines to the tokens (Vaswani et al., 2017, §3.5).

    The table is a buffer: it moves with the module to another device, and is not trained. It is not stored in
    the state dict, since it can be computed.

    Args:
        embed_dim: width of a token, even or odd.
        max_len: number of positions in the table.
        dropout: probability that an entry of the sum is dropped, in training only.

    Raises:
        TypeError: a size is not an int, `dropout` not a number.
        ValueError: a size is not positive, `dropout` outside 0..1.

    Example:
        >>> SinusoidalPositionalEncoding(embed_dim=4)(torch.zeros(1, 2, 4))[0, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(
        self, embed_dim: int, max_len: int = 1000, *, dropout: float = 0.0
    ) -> None:
        super().__init__(embed_dim, max_len, dropout)
        self.register_buffer(
            "encoding", sinusoidal_encoding(max_len, embed_dim), persistent=False
        )


class LearnedPositionalEncoding(_PositionalEncoding):
    """Add a learned vector for each position to the tokens (Gehring et al., 2017; Devlin et al., 2019).

    Args:
        embed_dim: width of a token.
        max_len: number of positions that have a vector.
        dropout: probability that an entry of the sum is dropped, in training only.

    Raises:
        TypeError: a size is not an int, `dropout` not a number.
        ValueError: a size is not positive, `dropout` outside 0..1.

    Example:
        >>> encoding = LearnedPositionalEncoding(embed_dim=4, max_len=10)
        >>> sum(parameter.numel() for parameter in encoding.parameters())
        40
    """

    def __init__(
        self, embed_dim: int, max_len: int = 1000, *, dropout: float = 0.0
    ) -> None:
        super().__init__(embed_dim, max_len, dropout)
        self.encoding = nn.Parameter(torch.empty(max_len, embed_dim))
        nn.init.normal_(self.encoding, std=0.02)


def _check_positions(name: str, positions: object) -> Tensor:
    """Return `positions` if they are integers (len,) or (batch, len), none of them negative."""
    check_type(name, positions, Tensor)
    assert isinstance(positions, Tensor)
    if (
        positions.is_floating_point()
        or positions.is_complex()
        or positions.dtype == torch.bool
    ):
        raise TypeError(f"{name} must hold integers, got dtype {positions.dtype}")
    if positions.ndim not in (1, 2):
        raise ValueError(
            f"{name} must have shape (len,) or (batch, len), got {tuple(positions.shape)}"
        )
    limits = extremes(positions)
    if limits is not None and limits[0] < 0:
        raise ValueError(f"{name} must not be negative, got {limits[0]}")
    return positions


def _check_even(name: str, value: object) -> None:
    check_positive_int(name, value)
    if check_int(name, value) % 2:
        raise ValueError(f"{name} must be even, got {value}")


def rotary_angles(
    num_positions: int | Integer[Tensor, "*batch len"],
    head_dim: int,
    *,
    base: float = 10_000.0,
) -> Float[Tensor, "*batch len {head_dim//2}"]:
    """Angles by which rotary encoding turns each pair of columns (Su et al., 2021, §3.2.2).

    Args:
        num_positions: number of positions, counted from 0; or the positions themselves, integers (len,), or
            (batch, len) where the samples of a batch stand at different places.
        head_dim: number of columns that turn, even since they turn in pairs: the width of a head, or of that
            part of it which is turned.
        base: as in `sinusoidal_encoding`.

    Returns:
        float32 angles in radians, (len, head_dim / 2) or (batch, len, head_dim / 2):
        position * base^(-2i / head_dim), computed in float64.

    Raises:
        TypeError: a size is not an int, positions are not integers, or `base` is not a number.
        ValueError: a size or `base` is not positive, a position is negative, or `head_dim` is odd.

    Example:
        >>> rotary_angles(3, 2).tolist()
        [[0.0], [1.0], [2.0]]
        >>> rotary_angles(torch.tensor([[7, 8], [0, 1]]), 2).squeeze(-1).tolist()
        [[7.0, 8.0], [0.0, 1.0]]
    """
    if isinstance(num_positions, Tensor):
        positions = _check_positions("num_positions", num_positions)
    else:
        check_positive_int("num_positions", num_positions)
        positions = torch.arange(num_positions)
    _check_even("head_dim", head_dim)
    check_positive("base", base)
    return _angles(positions, head_dim, base).float()


def _check_rotary(x: Tensor, angles: Tensor) -> None:
    check_float_tensor("x", x, axes="..., len, head_dim")
    check_float_tensor("angles", angles, axes="..., len, pairs")
    if angles.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            "angles must be float32 or float64, since half precision mixes up far positions, "
            f"got {angles.dtype}"
        )
    length, head_dim = x.shape[-2:]
    if head_dim % 2:
        raise ValueError(
            f"head_dim, the last axis of x, must be even, got shape {tuple(x.shape)}"
        )
    pairs = angles.shape[-1]
    if angles.ndim > 3 or angles.shape[-2] != length or not 0 < 2 * pairs <= head_dim:
        raise ValueError(
            f"angles must have shape (len, pairs) or (batch, len, pairs) with len={length} "
            f"and 1 to {head_dim // 2} pairs, got {tuple(angles.shape)}"
        )
    # The axes of x must say which one is the batch: it is the first of three or four.
    if angles.ndim == 3 and (
        x.ndim not in (3, 4) or angles.shape[0] not in (1, x.shape[0])
    ):
        raise ValueError(
            "angles (batch, len, pairs) go with x (batch, len, head_dim) or "
            "(batch, num_heads, len, head_dim) of the same batch, got angles of shape "
            f"{tuple(angles.shape)} and x of shape {tuple(x.shape)}"
        )
    check_same("device", ("x", "angles"), (x.device, angles.device))


def apply_rotary(
    x: Float[Tensor, "*lead len head_dim"],
    angles: Float[Tensor, "*batch len pairs"],
    *,
    interleaved: bool = True,
) -> Float[Tensor, "*lead len head_dim"]:
    """Turn each pair of columns of queries or keys by its position's angle (Su et al., 2021, equation 34).

    The dot product of a turned query and a turned key depends on the distance of their positions alone. There
    are two ways to pair the columns. In the paper, and in GPT-J, columns 2i and 2i + 1 are a pair
    (`interleaved`). In GPT-NeoX, and in HuggingFace's Llama, the pair's columns lie half of the turned width
    apart. Weights trained with one are wrong for the other.

    Where there are fewer angles than pairs, only the first columns turn, and the others pass as they are
    (partial width, as in GPT-J and GPT-NeoX). Half precision is turned in float32.

    Args:
        x: (..., len, head_dim).
        angles: float32 or float64, (len, pairs) or (batch, len, pairs), from `rotary_angles`; row p belongs
            to token p. The first 2 * pairs columns turn, at most `head_dim`.
        interleaved: pairs lie side by side; otherwise half of the turned width apart.

    Returns:
        A tensor of the shape and dtype of `x`; lengths of vectors do not change.

    Raises:
        TypeError: `x` is not a floating-point tensor, or `angles` not a float32 or float64 one (rounded to
            half precision, far positions fall together); `interleaved` is not a bool.
        ValueError: `head_dim` is odd, or `angles` has another shape or is on another device.

    Example:
        >>> quarter = torch.tensor([[torch.pi / 2]])
        >>> apply_rotary(torch.tensor([[1.0, 0.0]]), quarter).round().tolist()
        [[-0.0, 1.0]]
        >>> apply_rotary(torch.tensor([[1.0, 0.0, 5.0, 6.0]]), quarter).round().tolist()
        [[-0.0, 1.0, 5.0, 6.0]]
    """
    _check_rotary(x, angles)
    check_type("interleaved", interleaved, bool)
    if angles.ndim == 3 and x.ndim == 4:
        angles = angles.unsqueeze(1)  # the heads of a sample turn alike
    pairs = angles.shape[-1]
    turning, still = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., :pairs], turning[..., pairs:]
    # The angles are float32 at least, so half-precision columns become float32 here.
    cos, sin = angles.cos(), angles.sin()
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    turned = turned.to(x.dtype)
    return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned


class RotaryPositionalEncoding(nn.Module):
    """Turn queries and keys by the angles of their positions (Su et al., 2021).

    This is `apply_rotary` with `rotary_angles` as a module. It has no parameters and stores nothing: the
    angles are computed for the positions at hand, in float32 whatever the dtype of the model, so there is no
    longest text.

    Args:
        head_dim: width of a head, even.
        base: as in `sinusoidal_encoding`.
        rotary_dim: how many columns turn, the first ones; even. Default `head_dim`.
        interleaved: pairs lie side by side (the paper, GPT-J); otherwise half of the turned width apart
            (GPT-NeoX, HuggingFace's Llama).

    Raises:
        TypeError: a width is not an int, `base` is not a number, `interleaved` not a bool.
        ValueError: a width is odd or not positive, `rotary_dim` larger than `head_dim`, or `base` not
            positive.

    Example:
        >>> rotary = RotaryPositionalEncoding(head_dim=2)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> [[round(number, 2) for number in row] for row in rotary(x).tolist()]
        [[1.0, 0.0], [0.54, 0.84]]
        >>> torch.equal(rotary(x[1:], torch.tensor([1])), rotary(x)[1:])
        True
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        rotary_dim: int | None = None,
        interleaved: bool = True,
    ) -> None:
        super().__init__()
        _check_even("head_dim", head_dim)
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        _check_even("rotary_dim", rotary_dim)
        if rotary_dim > head_dim:
            raise ValueError(
                f"rotary_dim must not be larger than head_dim={head_dim}, got {rotary_dim}"
            )
        check_positive("base", base)
        check_type("interleaved", interleaved, bool)
        self.head_dim, self.rotary_dim = head_dim, rotary_dim
        self.base, self.interleaved = base, interleaved

    def forward(
        self,
        x: Float[Tensor, "*lead len head_dim"],
        positions: Integer[Tensor, "*batch len"] | None = None,
    ) -> Float[Tensor, "*lead len head_dim"]:
        """Turn `x` (..., len, head_dim), queries or keys, by the angles of `positions`.

        Args:
            x: (..., len, head_dim); with positions for each sample (batch, len, head_dim) or
                (batch, num_heads, len, head_dim).
            positions: integers (len,) or (batch, len), none negative; default 0..len-1.

        Returns:
            A tensor of the shape and dtype of `x`.

        Raises:
            TypeError: `x` is not floating-point, or `positions` are not integers.
            ValueError: a shape does not fit, or a position is negative.
        """
        check_width("x", x, self.head_dim, axes="..., len, head_dim")
        length = x.shape[-2]
        if positions is None:
            positions = torch.arange(length, device=x.device)
        else:
            _check_positions("positions", positions)
            fits = positions.shape[-1] == length and (
                positions.ndim == 1
                or (x.ndim in (3, 4) and positions.shape[0] in (1, x.shape[0]))
            )
            if not fits:
                raise ValueError(
                    "positions must have shape (len,), or (batch, len) where x has a batch axis, "
                    f"got {tuple(positions.shape)} for x of shape {tuple(x.shape)}"
                )
            check_same("device", ("x", "positions"), (x.device, positions.device))
        angles = _angles(positions, self.rotary_dim, self.base).float()
        return apply_rotary(x, angles, interleaved=self.interleaved)

    def extra_repr(self) -> str:
        """Say the settings in the printed module."""
        return (
            f"head_dim={self.head_dim}, rotary_dim={self.rotary_dim}, "
            f"base={self.base:g}, interleaved={self.interleaved}"
        )


def alibi_slopes(num_heads: int) -> Float[Tensor, " {num_heads}"]:
    """Slope of each head's penalty on distance (Press et al., 2022, §3).

    For a power of two the slopes are 2^(-8/h), 2^(-16/h), ..., 2^-8. For other numbers the paper's code takes
    those of the next lower power of two, then every other slope of twice that power.

    Args:
        num_heads: number of heads.

    Returns:
        float32 slopes (num_heads,), positive.

    Raises:
        TypeError: `num_heads` is not an int.
        ValueError: it is not positive.

    Example:
        >>> alibi_slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    check_positive_int("num_heads", num_heads)
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [
        2.0 ** (-8 * (i + 1) / (2 * power))
        for i in range(0, 2 * (num_heads - power), 2)
    ]
    return torch.tensor(slopes)


def alibi_bias(
    num_heads: int, q_len: int, k_len: int | None = None
) -> Float[Tensor, "{num_heads} {q_len} _"]:
    """Penalty on distance to add to the scores, -slope * |distance| (Press et al., 2022, §3).

    Queries and keys end together, as in `causal_mask`. As the `attn_bias` of an attention layer it needs a
    batch axis: `alibi_bias(...)[None]`.

    Args:
        num_heads: number of heads, each with its own slope.
        q_len: number of queries.
        k_len: number of keys; default `q_len`.

    Returns:
        float32 bias (num_heads, q_len, k_len), at most 0.

    Raises:
        TypeError: a size is not an int.
        ValueError: a size is not positive.

    Example:
        >>> alibi_bias(1, 1, 3).tolist()
        [[[-0.0078125, -0.00390625, -0.0]]]
    """
    k_len = q_len if k_len is None else k_len
    check_positive_int("q_len", q_len)
    check_positive_int("k_len", k_len)
    return -alibi_slopes(num_heads)[:, None, None] * _distances(q_len, k_len).abs()


def _check_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    check_type("bidirectional", bidirectional, bool)
    check_positive_int("num_buckets", num_buckets)
    check_positive_int("max_distance", max_distance)
    if bidirectional and (num_buckets % 2 or num_buckets < 4):
        raise ValueError(
            f"num_buckets must be even and at least 4 where bidirectional, got {num_buckets}"
        )
    if num_buckets < 2:
        raise ValueError(f"num_buckets must be at least 2, got {num_buckets}")
    exact = num_buckets // (4 if bidirectional else 2)
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must be larger than {exact}, the distances with a bucket of their own "
            f"(num_buckets={num_buckets}), got {max_distance}"
        )


def _bucket_starts(side: int, max_distance: int) -> list[int]:
    """Distance at which each of the buckets 1 .. side - 1 begins, exactly, in integers."""
    exact, wide = side // 2, side - side // 2
    starts = list(range(1, exact + 1))
    for step in range(1, wide):
        # The smallest integer at or above exact * (max_distance / exact)^(step / wide). Floating
        # point says nearly where; the comparison without roots settles it.
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
    device: torch.device | str | None = None,
) -> Int[Tensor, "{q_len} _"]:
    """Bucket of each distance between a query and a key (Raffel et al., 2020, §2.1).

    Of the n buckets on a side, the first m = n // 2 hold one distance each; a distance r from m on falls into
    bucket m + floor((n - m) log(r / m) / log(max_distance / m)), at most n - 1. The formula is that of the
    authors' code. It is evaluated in integers, so no rounding moves a distance to another bucket.

    Queries and keys end together, as in `causal_mask`.

    Args:
        q_len: number of queries.
        k_len: number of keys; default `q_len`.
        num_buckets: number of buckets; even where bidirectional.
        max_distance: the last bucket takes every distance from here on, and some before it.
        bidirectional: half of the buckets are for keys at or before the query, half for those after it.
            Otherwise all are for keys before, and every key after the query falls into bucket 0.
        device: where the buckets are made.

    Returns:
        int64 buckets (q_len, k_len) in 0..num_buckets - 1.

    Raises:
        TypeError: a size is not an int, or `bidirectional` is not a bool.
        ValueError: a size is not positive, `num_buckets` is odd or below 4 where bidirectional, below 2
            elsewhere, or `max_distance` leaves no room for the wide buckets.

    Example:
        >>> t5_buckets(1, 9, num_buckets=8, max_distance=8, bidirectional=False).tolist()
        [[7, 7, 6, 5, 4, 3, 2, 1, 0]]
    """
    k_len = q_len if k_len is None else k_len
    check_positive_int("q_len", q_len)
    check_positive_int("k_len", k_len)
    _check_buckets(num_buckets, max_distance, bidirectional)
    side = num_buckets // 2 if bidirectional else num_buckets
    starts = torch.tensor(_bucket_starts(side, max_distance), device=device)
    ahead = _distances(q_len, k_len, device)
    if not bidirectional:
        return torch.bucketize((-ahead).clamp(min=0), starts, right=True)
    return torch.bucketize(ahead.abs(), starts, right=True) + side * (ahead > 0)


class T5RelativeBias(nn.Module):
    """A learned bias on the scores for each head and each bucket of distances (Raffel et al., 2020, §2.1).

    In T5 all layers share one such table, and scores are not divided by √d: a T5 checkpoint needs
    `score=dot_product_score` beside it. `table` (num_buckets, num_heads) is what HuggingFace calls
    `relative_attention_bias.weight`. It is drawn from Xavier's uniform distribution, as in T5X, the authors'
    later code.

    Args:
        num_heads: number of heads.
        num_buckets: see `t5_buckets`.
        max_distance: see `t5_buckets`.
        bidirectional: see `t5_buckets`; False for causal attention.

    Raises:
        TypeError: a size is not an int, or `bidirectional` is not a bool.
        ValueError: a size is not positive, or the sizes do not fit, see `t5_buckets`.

    Example:
        >>> bias = T5RelativeBias(num_heads=3)
        >>> bias(5, 7).shape, bias.table.shape
        (torch.Size([1, 3, 5, 7]), torch.Size([32, 3]))
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_positive_int("num_heads", num_heads)
        _check_buckets(num_buckets, max_distance, bidirectional)
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from Xavier's uniform distribution (Glorot & Bengio, 2010)."""
        nn.init.xavier_uniform_(self.table)

    def forward(
        self, q_len: int, k_len: int | None = None
    ) -> Float[Tensor, "1 {self.num_heads} {q_len} _"]:
        """Return the bias for `q_len` queries and `k_len` keys that end together, an `attn_bias`.

        Args:
            q_len: number of queries.
            k_len: number of keys; default `q_len`.

        Returns:
            Bias (1, num_heads, q_len, k_len), in the dtype of the table.

        Raises:
            TypeError: a length is not an int.
            ValueError: a length is not positive.
        """
        buckets = t5_buckets(
            q_len,
            k_len,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
            device=self.table.device,
        )
        # Columns of the transposed table, so that the result is contiguous; several times
        # faster than rows that are permuted afterwards.
        bias = self.table.t().index_select(1, buckets.flatten())
        return bias.view(1, -1, *buckets.shape)

    def extra_repr(self) -> str:
        """Say the settings in the printed module."""
        return (
            f"num_heads={self.num_heads}, num_buckets={self.num_buckets}, "
            f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        )


class ShawScore(nn.Module):
    """Scaled dot product with a learned vector for each distance, q·(k + a) / √d (Shaw et al., 2018, eq. 4).

    The vector a belongs to the distance j - i between query i and key j, clipped to
    -max_distance..max_distance. Queries and keys end together, as in `causal_mask`. All heads share one
    table, as in the paper. The paper's second table, for the values (its equation 3), is left out: in its
    ablation the one for the keys alone does as well as both.

    It is a scoring rule like the others: `MultiHeadAttention(..., score=ShawScore(head_dim, max_distance))`.
    `table` (2 * max_distance + 1, head_dim) holds the vector of distance 0 in its middle. It is drawn from
    Xavier's uniform distribution, as the projections are.

    Args:
        head_dim: width of a head.
        max_distance: larger distances share the vector of this one.

    Raises:
        TypeError: a size is not an int.
        ValueError: a size is not positive.

    Example:
        >>> score = ShawScore(head_dim=3, max_distance=2)
        >>> score(torch.ones(2, 4, 3), torch.ones(2, 6, 3)).shape, score.table.shape
        (torch.Size([2, 4, 6]), torch.Size([5, 3]))
    """

    def __init__(self, head_dim: int, max_distance: int) -> None:
        super().__init__()
        check_positive_int("head_dim", head_dim)
        check_positive_int("max_distance", max_distance)
        self.head_dim, self.max_distance = head_dim, max_distance
        self.table = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from Xavier's uniform distribution (Glorot & Bengio, 2010)."""
        nn.init.xavier_uniform_(self.table)

    def forward(
        self,
        query: Float[Tensor, "*#batch q_len d"],
        key: Float[Tensor, "*#batch k_len d"],
    ) -> Float[Tensor, "*batch q_len k_len"]:
        """Score (..., q_len, head_dim) against (..., k_len, head_dim): (..., q_len, k_len).

        Raises:
            TypeError: not floating-point tensors of one dtype, that of the table.
            ValueError: a width is wrong, or the leading axes do not broadcast.
        """
        check_pair(query, key)
        check_same_kind(("query", "the table"), (query, self.table))
        widths = query.shape[-1], self.head_dim
        check_same("last axis", ("query", "the table"), widths)
        q_len, k_len = query.shape[-2], key.shape[-2]
        query = query / math.sqrt(self.head_dim)
        # Each query meets each distance once, and each key then picks its own: no tensor
        # (q_len, k_len, head_dim) is built.
        by_distance = query @ self.table.t()
        rows = (_distances(q_len, k_len, query.device) + self.max_distance).clamp(
            0, 2 * self.max_distance
        )
        rows = rows.expand(*query.shape[:-2], q_len, k_len)
        return query @ key.transpose(-2, -1) + by_distance.gather(-1, rows)

    def extra_repr(self) -> str:
        """Say the settings in the printed module."""
        return f"head_dim={self.head_dim}, max_distance={self.max_distance}"
