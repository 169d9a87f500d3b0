"""Where a token stands: encodings added to the tokens, rotations of query and key, biases on the scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mha_lib._checks import (
    check_float_tensor,
    check_positive,
    check_positive_int,
    check_probability,
)


def _frequencies(dim: int, base: float) -> Tensor:
    """One frequency for each pair of columns, base^(-2i / dim), in float64 (radians a position)."""
    check_positive("base", base)
    return float(base) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def sinusoidal_encoding(
    num_positions: int, embed_dim: int, *, base: float = 10_000.0
) -> Tensor:
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
    angles = torch.outer(
        torch.arange(num_positions, dtype=torch.float64), _frequencies(embed_dim, base)
    )
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

    def forward(self, x: Tensor) -> Tensor:
        """Add the encodings of positions 0..len-1 to `x` (batch, len, embed_dim).

        Raises:
            TypeError: `x` is not a floating-point tensor.
            ValueError: `x` has another shape, or is longer than the table.
        """
        max_len, embed_dim = self.encoding.shape
        check_float_tensor("x", x, axes="batch, len, embed_dim")
        if x.shape[-1] != embed_dim:
            raise ValueError(
                f"x must have shape (batch, len, embed_dim={embed_dim}), got {tuple(x.shape)}"
            )
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


def rotary_angles(
    num_positions: int, head_dim: int, *, base: float = 10_000.0
) -> Tensor:
    """Angles by which rotary encoding turns each pair of columns (Su et al., 2021, §3.2.2).

    Args:
        num_positions: number of rows.
        head_dim: width of a head; even, since columns turn in pairs.
        base: as in `sinusoidal_encoding`.

    Returns:
        float32 angles in radians, (num_positions, head_dim / 2): position * base^(-2i / head_dim).

    Raises:
        TypeError: a size is not an int, or `base` is not a number.
        ValueError: a size or `base` is not positive, or `head_dim` is odd.

    Example:
        >>> rotary_angles(3, 2).tolist()
        [[0.0], [1.0], [2.0]]
    """
    check_positive_int("num_positions", num_positions)
    check_positive_int("head_dim", head_dim)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, got {head_dim}")
    return torch.outer(
        torch.arange(num_positions, dtype=torch.float64), _frequencies(head_dim, base)
    ).float()


def apply_rotary(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each column pair (2i, 2i + 1) of queries or keys by its position's angle (Su et al., 2021).

    This is equation 34 of the paper: the pairs lie side by side, not half a head apart as in some libraries.
    The dot product of a turned query and a turned key depends on the distance of their positions alone.

    Args:
        x: (..., len, head_dim).
        angles: (len, head_dim / 2), from `rotary_angles`; row p belongs to token p.

    Returns:
        A tensor of the shape and dtype of `x`; lengths of vectors do not change.

    Raises:
        TypeError: not floating-point tensors.
        ValueError: `head_dim` is odd, or `angles` has another shape.

    Example:
        >>> quarter = torch.tensor([[torch.pi / 2]])
        >>> apply_rotary(torch.tensor([[1.0, 0.0]]), quarter).round().tolist()
        [[-0.0, 1.0]]
    """
    check_float_tensor("x", x, axes="..., len, head_dim")
    check_float_tensor("angles", angles, axes="len, pairs")
    if x.shape[-1] % 2:
        raise ValueError(
            f"head_dim, the last axis of x, must be even, got shape {tuple(x.shape)}"
        )
    if tuple(angles.shape) != (x.shape[-2], x.shape[-1] // 2):
        raise ValueError(
            f"angles must have shape (len, head_dim / 2) = ({x.shape[-2]}, {x.shape[-1] // 2}), "
            f"got {tuple(angles.shape)}"
        )
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def alibi_slopes(num_heads: int) -> Tensor:
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


def alibi_bias(num_heads: int, q_len: int, k_len: int | None = None) -> Tensor:
    """Penalty on distance to add to the scores, -slope * |distance| (Press et al., 2022, §3).

    Queries and keys end together, as in `causal_mask`.

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
    slopes = alibi_slopes(num_heads)
    query_position = torch.arange(q_len).unsqueeze(-1) + (k_len - q_len)
    distance = (query_position - torch.arange(k_len)).abs()
    return -slopes[:, None, None] * distance
