"""What a mask means, in one place: bool, True = may attend, everywhere.

A float mask of zeros and ones is refused: other libraries would *add* it to the scores, and a mask that is
added instead of obeyed fails without an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_lib._checks import (
    check_float_tensor,
    check_int,
    check_same,
    check_type,
    extremes,
)


def _check_len(name: str, value: object) -> None:
    if check_int(name, value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def valid_lens_mask(
    valid_lens: Integer[Tensor, "batch *q_len"], k_len: int
) -> Bool[Tensor, "batch q_len_or_1 {k_len}"]:
    """Mask that lets each query see the first `valid_lens` keys.

    Args:
        valid_lens: integers in 0..k_len, shape (batch,) for one length a sample, or (batch, q_len) for one
            length a query.
        k_len: number of keys.

    Returns:
        Bool mask, True = may attend, (batch, 1, k_len) or (batch, q_len, k_len).

    Raises:
        TypeError: `valid_lens` is not an integer tensor, or `k_len` is not an int.
        ValueError: `valid_lens` has another rank, or a length lies outside 0..k_len.

    Example:
        >>> valid_lens_mask(torch.tensor([1, 3]), k_len=3).int().tolist()
        [[[1, 0, 0]], [[1, 1, 1]]]
    """
    _check_len("k_len", k_len)
    check_type("valid_lens", valid_lens, Tensor)
    if (
        valid_lens.is_floating_point()
        or valid_lens.is_complex()
        or valid_lens.dtype == torch.bool
    ):
        raise TypeError(f"valid_lens must hold integers, got dtype {valid_lens.dtype}")
    if valid_lens.ndim not in (1, 2):
        raise ValueError(
            f"valid_lens must have shape (batch,) or (batch, q_len), got {tuple(valid_lens.shape)}"
        )
    limits = extremes(valid_lens)
    if limits is not None and not 0 <= limits[0] <= limits[1] <= k_len:
        raise ValueError(
            f"valid_lens must lie in 0..k_len={k_len}, got values from {limits[0]} to {limits[1]}"
        )
    positions = torch.arange(k_len, device=valid_lens.device)
    visible = positions < valid_lens.unsqueeze(-1)
    return visible.unsqueeze(1) if valid_lens.ndim == 1 else visible


def causal_mask(
    q_len: int, k_len: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "{q_len} _"]:
    """Mask that lets a query see the keys up to its own position, and none after it.

    The two sequences end together (bottom-right alignment): the last query sees every key. So one new query
    over a cache of keys sees the whole cache.

    Args:
        q_len: number of queries.
        k_len: number of keys; default `q_len`.
        device: where the mask is made.

    Returns:
        Bool mask, True = may attend, (q_len, k_len).

    Raises:
        TypeError: a length is not an int.
        ValueError: a length is negative.

    Example:
        >>> causal_mask(2, 4).int().tolist()
        [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    k_len = q_len if k_len is None else k_len
    _check_len("q_len", q_len)
    _check_len("k_len", k_len)
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)


def sliding_window_mask(
    q_len: int,
    k_len: int | None = None,
    *,
    left: int | None,
    right: int | None = 0,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "{q_len} _"]:
    """Mask that lets a query see the keys near its own position (Beltagy et al., 2020, §3.1).

    A query at position p sees the keys at p - left .. p + right. Queries and keys end together, as in
    `causal_mask`, which is the window with left=None and right=0. A causal window of w tokens, the token
    itself among them (Jiang et al., 2023), has left=w - 1.

    Args:
        q_len: number of queries.
        k_len: number of keys; default `q_len`.
        left: how many keys before its own position a query sees, None for all.
        right: how many keys after it, None for all.
        device: where the mask is made.

    Returns:
        Bool mask, True = may attend, (q_len, k_len).

    Raises:
        TypeError: a length or a side of the window is not an int.
        ValueError: one is negative.

    Example:
        >>> sliding_window_mask(3, left=1).int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    k_len = q_len if k_len is None else k_len
    _check_len("q_len", q_len)
    _check_len("k_len", k_len)
    mask = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
    if left is not None:
        _check_len("left", left)
        mask = mask.triu(k_len - q_len - left)
    if right is not None:
        _check_len("right", right)
        mask = mask.tril(k_len - q_len + right)
    return mask


def _check_mask(name: str, mask: object, q_len: int, k_len: int) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{name} must be a bool tensor, True = may attend, got {got}; "
            "a mask of zeros and ones would be added to the scores, so convert it with .bool()"
        )
    if mask.ndim not in (2, 3, 4):
        raise ValueError(
            f"{name} must have shape (q_len, k_len), (batch, q_len, k_len) or "
            f"(batch, num_heads, q_len, k_len), got {tuple(mask.shape)}"
        )
    if mask.shape[-2] not in (1, q_len) or mask.shape[-1] not in (1, k_len):
        raise ValueError(
            f"{name} must end in (q_len, k_len) = ({q_len}, {k_len}), or 1 in their place, "
            f"got shape {tuple(mask.shape)}"
        )
    return mask


def build_mask(
    q_len: int,
    k_len: int,
    *,
    attn_mask: Bool[Tensor, "..."] | None = None,
    valid_lens: Integer[Tensor, "batch *q_len"] | None = None,
    is_causal: bool = False,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "..."] | None:
    """Combine all that may hide a key: a key is visible where every part says so.

    Args:
        q_len: number of queries.
        k_len: number of keys.
        attn_mask: bool, True = may attend, shape (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
        valid_lens: integers (batch,) or (batch, q_len), see `valid_lens_mask`.
        is_causal: hide the future, see `causal_mask`.
        device: where a causal mask is made when neither tensor is given.

    Returns:
        A bool mask of rank 2, 3 or 4 that broadcasts to (batch, num_heads, q_len, k_len) once `align_mask`
        has put it in place, or None where nothing is hidden.

    Raises:
        TypeError: `attn_mask` is not bool, `valid_lens` not integer.
        ValueError: a shape does not fit, or a length lies outside 0..k_len.

    Example:
        >>> build_mask(2, 2, valid_lens=torch.tensor([1]), is_causal=True).int().tolist()
        [[[1, 0], [1, 0]]]
        >>> build_mask(2, 2) is None
        True
    """
    _check_len("q_len", q_len)
    _check_len("k_len", k_len)
    mask: Tensor | None = None
    if attn_mask is not None:
        mask = _check_mask("attn_mask", attn_mask, q_len, k_len)
        device = mask.device
    if valid_lens is not None:
        lens = valid_lens_mask(valid_lens, k_len)
        if lens.shape[1] not in (1, q_len):
            raise ValueError(
                f"valid_lens must have shape (batch,) or (batch, {q_len}), got {tuple(valid_lens.shape)}"
            )
        device = lens.device
        if mask is not None:
            if mask.ndim > 2:
                batches = {mask.shape[0], lens.shape[0]} - {1}
                if len(batches) > 1:
                    check_same(
                        "batch",
                        ("attn_mask", "valid_lens"),
                        (mask.shape[0], lens.shape[0]),
                    )
            mask = mask & (lens.unsqueeze(1) if mask.ndim == 4 else lens)
        else:
            mask = lens
    # A single query is the last one, which sees every key.
    if is_causal and q_len > 1:
        causal = causal_mask(q_len, k_len, device=device)
        mask = causal if mask is None else mask & causal
    return mask


def align_mask(
    mask: Bool[Tensor, "..."], shape: Sequence[int], *, name: str = "mask"
) -> Bool[Tensor, "..."]:
    """Put a mask in place over scores of `shape`: a (batch, q_len, k_len) mask gets its head axis.

    Args:
        mask: bool mask of rank 2, 3 or 4.
        shape: shape of the scores, (..., q_len, k_len).
        name: what an error calls the mask.

    Returns:
        A view of `mask` that broadcasts to `shape` without changing it.

    Raises:
        TypeError: `mask` is not bool.
        ValueError: `mask` does not broadcast to `shape`.

    Example:
        >>> align_mask(torch.ones(2, 1, 5, dtype=torch.bool), (2, 7, 3, 5)).shape
        torch.Size([2, 1, 1, 5])
    """
    shape = tuple(shape)
    _check_mask(name, mask, shape[-2], shape[-1])
    aligned = mask.unsqueeze(1) if mask.ndim == 3 and len(shape) == 4 else mask
    # A mask with a batch axis needs scores of its own rank: elsewhere its batch axis
    # would meet another axis.
    fits = aligned.ndim in (2, len(shape)) and all(
        size in (1, target)
        for size, target in zip(aligned.shape, shape[-aligned.ndim :], strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name} must broadcast to scores of shape {shape}, got a mask of shape {tuple(mask.shape)}"
        )
    return aligned


def align_bias(
    bias: Float[Tensor, "..."], shape: Sequence[int], *, name: str = "attn_bias"
) -> Float[Tensor, "..."]:
    """Check a bias that is added to scores of `shape`.

    A bias of rank 3 over scores of rank 4 is refused: a mask of that rank has a batch axis, while biases
    usually differ by head. `bias[None]` or `bias[:, None]` says which is meant.

    Args:
        bias: floating-point and finite, (q_len, k_len) or of the rank of the scores; axes of size 1
            broadcast. A key is hidden by a mask, not by a bias of -inf.
        shape: shape of the scores, (..., q_len, k_len).
        name: what an error calls the bias.

    Returns:
        `bias` itself.

    Raises:
        TypeError: `bias` is not a floating-point tensor.
        ValueError: it does not broadcast to `shape` in one clear way, or is not finite.

    Example:
        >>> align_bias(torch.zeros(1, 7, 3, 5), (2, 7, 3, 5)).shape
        torch.Size([1, 7, 3, 5])
    """
    shape = tuple(shape)
    check_float_tensor(name, bias, axes="..., q_len, k_len")
    fits = bias.ndim in (2, len(shape)) and all(
        size in (1, target)
        for size, target in zip(bias.shape, shape[-bias.ndim :], strict=True)
    )
    if not fits:
        hint = (
            f"; {name}[None] gives it a batch axis, {name}[:, None] a head axis"
            if bias.ndim == 3 and len(shape) == 4
            else ""
        )
        raise ValueError(
            f"{name} must have rank 2 or {len(shape)} and broadcast to scores of shape {shape}, "
            f"got shape {tuple(bias.shape)}{hint}"
        )
    limits = extremes(bias.detach())
    if limits is not None and not all(map(math.isfinite, limits)):
        raise ValueError(
            f"{name} must be finite (attn_mask hides a key), got values from {limits[0]} to {limits[1]}"
        )
    return bias
