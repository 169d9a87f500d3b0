"""Rotary positions: queries and keys are rotated, so that positions enter dot products only as distances."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import DType
from mha_lib.positional import _angles_at, _check_positions


class _AngleScaling(ABC):
    """How angles are slowed for longer texts. `RotaryScaling`, among the models, has the published ways."""

    attention_factor: float | None  # a factor for queries and keys, None for none

    @abstractmethod
    def _check_base(self, base: float) -> None:
        """Raise unless angles of this base can be slowed."""

    @abstractmethod
    def _slowed(self, angles: Tensor, base: float, positions: Tensor) -> Tensor:
        """Slow the angles (..., len, pairs) of `positions`; the first pair is the fastest."""


def _check_even(name: str, value: object) -> None:
    """Raise unless `value` is an even int above 0."""
    _checks.check_positive_int(name, value)
    if _checks.check_int(name, value) % 2:
        raise _checks.refusal(name, "be even", value)


def rotary_angles(
    num_positions: int | Integer[Tensor, "*batch len"],
    head_dim: int,
    *,
    base: float = 10_000.0,
    dtype: DType = None,
) -> Float[Tensor, "*batch len {head_dim//2}"]:
    """Angles by which rotary encoding rotates each pair of columns (Su et al., 2021, §3.2.2).

    The angles are position * base^(-2i / head_dim), in radians, computed in float64 and returned in `dtype`,
    (len, head_dim / 2) or (batch, len, head_dim / 2). The default is float32, in which an angle of a million
    is off by up to 0.03; with float64, `apply_rotary` takes its sine and cosine before it rounds.

    `num_positions` is either the number of positions, counted from 0, or the positions themselves: integers
    (len,), or (batch, len) if they differ between the samples of a batch. `head_dim` is the even number of
    columns that are rotated in pairs, all of a head or a part. `base` is as in `sinusoidal_encoding`, and
    `dtype` is torch.float32 or torch.float64.

    Raises:
        TypeError: a size is not an int, positions are not integers, `base` is not a number, or `dtype` is
            a different one.
        ValueError: a size or `base` is not positive, a position is negative, or `head_dim` is odd.

    Example:
        >>> rotary_angles(3, 2).tolist()
        [[0.0], [1.0], [2.0]]
        >>> rotary_angles(torch.tensor([[7, 8], [0, 1]]), 2).squeeze(-1).tolist()
        [[7.0, 8.0], [0.0, 1.0]]
        >>> rotary_angles(torch.tensor([1_000_003]), 4, base=100.0, dtype=torch.float64).tolist()
        [[1000003.0, 100000.3]]
    """
    if dtype not in (None, torch.float32, torch.float64):
        raise _checks.wrong_type("dtype", "torch.float32 or torch.float64", dtype)
    if isinstance(num_positions, Tensor):
        positions = _check_positions("num_positions", num_positions)
    else:
        _checks.check_positive_int("num_positions", num_positions)
        positions = torch.arange(num_positions)
    _check_even("head_dim", head_dim)
    _checks.check_positive("base", base)
    return _angles_at(positions, head_dim, base).to(dtype or torch.float32)


def _check_rotary(x: Tensor, angles: Tensor) -> None:
    _checks.check_float_tensor("x", x, axes="..., len, head_dim")
    _checks.check_float_tensor("angles", angles, axes="..., len, pairs")
    if angles.dtype not in (torch.float32, torch.float64):
        why = "since half precision confuses distant positions"
        raise TypeError(f"angles must be float32 or float64, {why}, got {angles.dtype}")
    length, head_dim = x.shape[-2:]
    if head_dim % 2:
        raise _checks.refusal("head_dim, the last axis of x,", "be even", x)
    pairs = angles.shape[-1]
    if angles.ndim > 3 or angles.shape[-2] != length or not 0 < 2 * pairs <= head_dim:
        rule = f"have shape (len, pairs) or (batch, len, pairs) with len={length}"
        rule += f" and 1 to {head_dim // 2} pairs"
        raise _checks.refusal("angles", rule, angles)
    # If x has three or four axes, the first one is the batch.
    batches = (1, x.shape[0]) if x.ndim in (3, 4) else ()
    if angles.ndim == 3 and angles.shape[0] not in batches:
        rule = "go with x (batch, len, head_dim) or (batch, num_heads, len, head_dim) of the same batch"
        got = f"angles of shape {tuple(angles.shape)} and x of shape {tuple(x.shape)}"
        raise _checks.refusal("angles (batch, len, pairs)", rule, got)
    _checks.check_same("device", ("x", "angles"), (x.device, angles.device))


def apply_rotary(
    x: Float[Tensor, "*lead len head_dim"],
    angles: Float[Tensor, "*batch len pairs"],
    *,
    interleaved: bool = True,
) -> Float[Tensor, "*lead len head_dim"]:
    """Rotate each pair of columns of queries or keys by its position's angle (Su et al., 2021, equation 34).

    In the paper and in GPT-J, columns 2i and 2i + 1 are a pair (`interleaved`). In GPT-NeoX and HuggingFace's
    Llama, they are half of the rotated width apart. Weights trained with one pairing fail with the other.

    If there are fewer angles than pairs, only the first columns are rotated, as in GPT-J and GPT-NeoX, and
    the others are unchanged. Half precision is rotated in float32. The result has the shape and dtype of `x`.

    The angles, (len, pairs) or (batch, len, pairs), come from `rotary_angles`; row p belongs to token p of
    `x`, (..., len, head_dim).

    Raises:
        TypeError: `x` is not a floating-point tensor, `angles` is not float32 or float64 (in half precision,
            distant positions would round to the same angle), or `interleaved` is not a bool.
        ValueError: `head_dim` is odd, or `angles` has the wrong shape or is on a different device.

    Example:
        >>> quarter = torch.tensor([[torch.pi / 2]])
        >>> apply_rotary(torch.tensor([[1.0, 0.0]]), quarter).round().tolist()
        [[-0.0, 1.0]]
        >>> apply_rotary(torch.tensor([[1.0, 0.0, 5.0, 6.0]]), quarter).round().tolist()
        [[-0.0, 1.0, 5.0, 6.0]]
    """
    _check_rotary(x, angles)
    _checks.check_type("interleaved", interleaved, bool)
    if angles.ndim == 3 and x.ndim == 4:
        angles = angles.unsqueeze(1)  # all heads of a sample turn alike
    pairs = angles.shape[-1]
    turning, still = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., :pairs], turning[..., pairs:]
    # Rounding a large angle would change it by more than rounding its sine and cosine changes these. Columns
    # in half precision become float32 here.
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    turned = turned.to(x.dtype)
    return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned


class RotaryPositionalEncoding(nn.Module):
    """Rotate queries and keys by the angles of their positions (Su et al., 2021).

    This is `apply_rotary` with `rotary_angles` as a module. It has no parameters and no maximum length,
    because each call computes the angles of its positions, in float64 whatever the dtype of the model.

    Of the `head_dim` columns of a head, the first `rotary_dim` are rotated, by default all; both are even.
    `base` is as in `sinusoidal_encoding`, `interleaved` as in `apply_rotary`. `scaling` makes pairs turn more
    slowly for texts longer than those seen in training.

    Raises:
        TypeError: a width is not an int, `base` is not a number, `interleaved` not a bool, `scaling` not a
            `RotaryScaling`.
        ValueError: a width is odd or not positive, `rotary_dim` larger than `head_dim`, `base` not positive,
            or not above 1 where `scaling` is of the kind "yarn".

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
        scaling: _AngleScaling | None = None,
    ) -> None:
        super().__init__()
        _check_even("head_dim", head_dim)
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        _check_even("rotary_dim", rotary_dim)
        if rotary_dim > head_dim:
            rule = f"not be larger than head_dim={head_dim}"
            raise _checks.refusal("rotary_dim", rule, rotary_dim)
        _checks.check_positive("base", base)
        _checks.check_type("interleaved", interleaved, bool)
        if scaling is not None:
            if not isinstance(scaling, _AngleScaling):
                raise _checks.wrong_type("scaling", "a RotaryScaling", scaling)
            scaling._check_base(base)
        self.head_dim, self.rotary_dim = head_dim, rotary_dim
        self.base, self.interleaved, self.scaling = base, interleaved, scaling

    def forward(
        self,
        x: Float[Tensor, "*lead len head_dim"],
        positions: Integer[Tensor, "*batch len"] | None = None,
    ) -> Float[Tensor, "*lead len head_dim"]:
        """Rotate `x` (..., len, head_dim), queries or keys, by the angles of `positions`.

        `positions` are integers (len,), or (batch, len) if `x` has a batch axis, none negative; default
        0..len-1. The result has the shape and dtype of `x`.

        Raises:
            TypeError: `x` is not floating-point, or `positions` are not integers.
            ValueError: a shape does not fit, or a position is negative.
        """
        _checks.check_width("x", x, self.head_dim, axes="..., len, head_dim")
        length = x.shape[-2]
        if positions is None:
            positions = torch.arange(length, device=x.device)
        else:
            _check_positions("positions", positions)
            batches = (1, x.shape[0]) if x.ndim in (3, 4) else ()
            fits = positions.ndim == 1 or positions.shape[0] in batches
            if positions.shape[-1] != length or not fits:
                rule = "have shape (len,), or (batch, len) where x has a batch axis"
                got = f"{tuple(positions.shape)} for x of shape {tuple(x.shape)}"
                raise _checks.refusal("positions", rule, got)
            devices = (x.device, positions.device)
            _checks.check_same("device", ("x", "positions"), devices)
        angles = _angles_at(positions, self.rotary_dim, self.base)
        if self.scaling is not None:
            angles = self.scaling._slowed(angles, self.base, positions)
        turned = apply_rotary(x, angles, interleaved=self.interleaved)
        if self.scaling is None or self.scaling.attention_factor is None:
            return turned
        return turned * self.scaling.attention_factor

    def extra_repr(self) -> str:
        """Show the settings in the printed module."""
        text = f"head_dim={self.head_dim}, rotary_dim={self.rotary_dim}, "
        text += f"base={self.base:g}, interleaved={self.interleaved}"
        return text if self.scaling is None else f"{text}, scaling={self.scaling}"
