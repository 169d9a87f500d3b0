"""Absolute positions: encodings that are added to the tokens. Rotations and biases have their own modules."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import Device, DType, Positions


def _angles_at(positions: Tensor, dim: int, base: float) -> Tensor:
    """Angle of each pair i of `dim` columns, position * base^(-2i / dim): (..., len, ceil(dim / 2))."""
    # In float64, only the result is rounded. Apple's GPUs do not support float64.
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    exponents = -torch.arange(0, dim, 2, dtype=dtype, device=positions.device) / dim
    return positions.to(dtype).unsqueeze(-1) * float(base) ** exponents


def _check_positions(name: str, positions: object) -> Tensor:
    axes, rule = "(len,) or (batch, len)", "not be negative"
    return _checks.check_numbers(name, positions, 0, math.inf, rule, integers=axes)


def _distances(
    q_len: int, k_len: int | None, positions: Positions | None, device: Device
) -> Int[Tensor, "*batch {q_len} _"]:
    """Key position minus query position; queries and keys end together if no `positions` are given."""
    k_len = q_len if k_len is None else k_len
    if positions is None:
        of_keys = torch.arange(k_len, device=device)
        of_queries = torch.arange(k_len - q_len, k_len, device=device)
    else:
        if not isinstance(positions, (tuple, list)) or len(positions) != 2:
            raise _checks.wrong_type(
                "positions", "a pair of tensors, for queries and keys", positions
            )
        of_queries, of_keys = positions
        for what, given, length in (
            ("queries", of_queries, q_len),
            ("keys", of_keys, k_len),
        ):
            name = f"positions of {what}"
            checked = _check_positions(name, given)
            _checks.check_same("length", (name, what), (checked.shape[-1], length))
    return of_keys.unsqueeze(-2) - of_queries.unsqueeze(-1)


def sinusoidal_encoding(
    num_positions: int, embed_dim: int, *, base: float = 10_000.0
) -> Float[Tensor, "{num_positions} {embed_dim}"]:
    """Table of sines and cosines, one row per position (Vaswani et al., 2017, §3.5).

    Column 2i holds sin(position * w_i) and column 2i + 1 cos(position * w_i), w_i = base^(-2i / embed_dim).
    If `embed_dim` is odd, the last pair has only its sine. The table, float32 (num_positions, embed_dim), is
    computed in float64. Its longest wavelength is about 2π * base positions.

    Raises:
        TypeError, ValueError: a size is not an int or `base` not a number, or one is not positive.

    Example:
        >>> sinusoidal_encoding(2, 3)[0].tolist()
        [0.0, 1.0, 0.0]
    """
    _checks.check_sizes(num_positions=num_positions, embed_dim=embed_dim)
    _checks.check_positive("base", base)
    angles = _angles_at(torch.arange(num_positions), embed_dim, base)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return table[:, :embed_dim].float()


class _PositionalEncoding(nn.Module):
    """Add a row of the table `encoding` (max_len, embed_dim) to each token."""

    encoding: Tensor

    def __init__(
        self,
        embed_dim: int,
        max_len: int = 1000,
        *,
        dropout: float = 0.0,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        _checks.check_sizes(embed_dim=embed_dim, max_len=max_len)
        _checks.check_probability("dropout", dropout)
        self.dropout = nn.Dropout(dropout)
        self._make_table(max_len, embed_dim, device, dtype)

    def _make_table(
        self, max_len: int, embed_dim: int, device: Device, dtype: DType
    ) -> None:
        raise NotImplementedError

    def forward(
        self, x: Float[Tensor, "batch len embed_dim"]
    ) -> Float[Tensor, "batch len embed_dim"]:
        """Add the encodings of positions 0..len-1 to `x` (batch, len, embed_dim).

        Raises:
            TypeError, ValueError: `x` is not floating-point, has a wrong shape, or is longer than the table.
        """
        max_len, embed_dim = self.encoding.shape
        _checks.check_width("x", x, embed_dim, axes="batch, len, embed_dim")
        if x.shape[1] > max_len:
            rule = f"not be longer than max_len={max_len}"
            raise _checks.refusal("x", rule, f"len={x.shape[1]}")
        output: Tensor = self.dropout(x + self.encoding[: x.shape[1]].to(x.dtype))
        return output


class SinusoidalPositionalEncoding(_PositionalEncoding):
    """Add fixed sines and cosines to the tokens (Vaswani et al., 2017, §3.5).

    The table is a buffer, which moves with the module but is neither trained nor in the state dict.

    `embed_dim` is the width of a token, even or odd, and `max_len` is the number of positions in the table,
    float32 by default. `dropout` is the probability that an entry of the sum is dropped, in training only.

    Raises:
        TypeError: a size is not an int, `dropout` not a number.
        ValueError: a size is not positive, `dropout` outside 0..1.

    Example:
        >>> SinusoidalPositionalEncoding(embed_dim=4)(torch.zeros(1, 2, 4))[0, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """

    def _make_table(
        self, max_len: int, embed_dim: int, device: Device, dtype: DType
    ) -> None:
        table = sinusoidal_encoding(max_len, embed_dim).to(device, dtype)
        self.register_buffer("encoding", table, persistent=False)


class LearnedPositionalEncoding(_PositionalEncoding):
    """Add a learned vector for each position to the tokens (Gehring et al., 2017; Devlin et al., 2019).

    Arguments and errors are those of `SinusoidalPositionalEncoding`, but the table is a parameter.

    Example:
        >>> encoding = LearnedPositionalEncoding(embed_dim=4, max_len=10)
        >>> sum(parameter.numel() for parameter in encoding.parameters())
        40
    """

    def _make_table(
        self, max_len: int, embed_dim: int, device: Device, dtype: DType
    ) -> None:
        self.encoding = nn.Parameter(
            torch.empty(max_len, embed_dim, device=device, dtype=dtype)
        )
        nn.init.normal_(self.encoding, std=0.02)
