"""The one definition of a mask: bool, True = may attend, everywhere.

A float mask of zeros and ones is refused: other libraries would *add* it to the scores, and the wrong result
would raise no error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_lib._checks import (
    Device,
    Positions,
    check_bool,
    check_float_tensor,
    check_int,
    check_lens,
    check_no_key_mask,
    check_numbers,
    checked,
    fits,
    unchecked,
)
from mha_lib.positional import _distances


def _check_lens(
    q_len: object,
    k_len: object = None,
    *,
    left: object = None,
    right: object = None,
    **_: object,
) -> None:
    check_lens(q_len=q_len, k_len=k_len, left=left, right=right)


def valid_lens_mask(
    valid_lens: Integer[Tensor, "batch *q_len"], k_len: int
) -> Bool[Tensor, "batch q_len_or_1 {k_len}"]:
    """Mask that lets each query see the first `valid_lens` keys.

    Args:
        valid_lens: integers in 0..k_len, shape (batch,), one for each sample, or (batch, q_len), one for
            each query.
        k_len: number of keys.

    Returns:
        Bool mask, True = may attend, (batch, 1, k_len) or (batch, q_len, k_len).

    Raises:
        TypeError: `valid_lens` is not an integer tensor, or `k_len` is not an int.
        ValueError: `valid_lens` has the wrong rank, or a length lies outside 0..k_len.

    Example:
        >>> valid_lens_mask(torch.tensor([1, 3]), k_len=3).int().tolist()
        [[[1, 0, 0]], [[1, 1, 1]]]
    """
    if type(k_len) is not int or k_len < 0:
        check_lens(k_len=k_len)
    axes, rule = "(batch,) or (batch, q_len)", f"must lie in 0..k_len={k_len}"
    check_numbers("valid_lens", valid_lens, 0, k_len, rule, integers=axes)
    visible = torch.arange(k_len, device=valid_lens.device) < valid_lens.unsqueeze(-1)
    return visible.unsqueeze(1) if valid_lens.ndim == 1 else visible


@checked(_check_lens)
def causal_mask(
    q_len: int, k_len: int | None = None, *, device: Device = None
) -> Bool[Tensor, "{q_len} _"]:
    """Mask that lets a query see the keys up to its own position, and none after it.

    The two sequences end together (bottom-right alignment): the last query sees every key. A single new query
    therefore sees the whole cache of keys.

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
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)


_hide_future = unchecked(causal_mask)


@checked(_check_lens)
def sliding_window_mask(
    q_len: int,
    k_len: int | None = None,
    *,
    left: int | None,
    right: int | None = 0,
    positions: Positions | None = None,
    device: Device = None,
) -> Bool[Tensor, "*batch {q_len} _"]:
    """Mask that lets a query see the keys near its own position (Beltagy et al., 2020, §3.1).

    A query at position p sees the keys at p - left .. p + right. Queries and keys end together, as in
    `causal_mask`, which is the window with left=None and right=0. A causal window of w tokens, the token
    itself among them (Jiang et al., 2023), has left=w - 1.

    Args:
        q_len: number of queries.
        k_len: number of keys; default `q_len`.
        left: how many keys before its own position a query sees, None for all.
        right: how many keys after it, None for all.
        positions: positions of queries and keys, if samples of different lengths share a cache: integers
            (batch, q_len) and (batch, k_len), from `KeyValueCache.positions`.
        device: where the mask is made.

    Returns:
        Bool mask, True = may attend, (q_len, k_len), or (batch, q_len, k_len) with `positions`.

    Raises:
        TypeError: a length or a side of the window is not an int, or a position is not an integer tensor.
        ValueError: a length or a side is negative, or `positions` have the wrong shape.

    Example:
        >>> sliding_window_mask(3, left=1).int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    distance = _distances(q_len, k_len, positions, device)
    visible = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        visible = distance >= -left
    return visible if right is None else visible & (distance <= right)


def build_mask(
    q_len: int,
    k_len: int,
    *,
    attn_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "batch {k_len}"] | None = None,
    valid_lens: Integer[Tensor, "batch *q_len"] | None = None,
    is_causal: bool = False,
    device: Device = None,
) -> Bool[Tensor, "..."] | None:
    """Combine everything that may hide a key: a key is visible only where every part allows it.

    Args:
        q_len: number of queries.
        k_len: number of keys.
        attn_mask: bool, True = may attend, shape (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
        key_mask: bool, True = may attend, (batch, k_len): one row of keys for all queries of a sample.
        valid_lens: integers (batch,) or (batch, q_len), see `valid_lens_mask`.
        is_causal: hide the future, see `causal_mask`.
        device: where a causal mask is made when no tensor is given.

    Returns:
        A bool mask of rank 2, 3 or 4 that broadcasts to (batch, num_heads, q_len, k_len) once `align_mask`
        has aligned it, or None if nothing is hidden.

    Raises:
        TypeError: `attn_mask` or `key_mask` is not bool, or `valid_lens` does not hold integers.
        ValueError: a shape does not fit, or a length lies outside 0..k_len.

    Example:
        >>> build_mask(2, 2, valid_lens=torch.tensor([1]), is_causal=True).int().tolist()
        [[[1, 0], [1, 0]]]
        >>> build_mask(2, 2) is None
        True
    """
    _check_lens(q_len, check_int("k_len", k_len))
    # Assume scores of the smallest shape that fits all masks.
    lead = list(attn_mask.shape[:-2]) if isinstance(attn_mask, Tensor) else []
    for of_samples in (key_mask, valid_lens):
        if isinstance(of_samples, Tensor) and lead[:1] in ([], [1]):
            lead[:1] = of_samples.shape[:1]
    mask = _combine_masks((*lead, q_len, k_len), attn_mask, key_mask, valid_lens)
    if not is_causal or q_len == 1:  # a single query, the last one, sees every key
        return mask
    causal = _hide_future(q_len, k_len, device=device if mask is None else mask.device)
    return causal if mask is None else mask & causal


def _combine_masks(
    shape: Sequence[int],
    attn_mask: Tensor | None,
    key_mask: Tensor | None,
    valid_lens: Tensor | None,
) -> Tensor | None:
    """Combine the masks over scores of `shape` into one that broadcasts to it; None if none is given."""
    heads = (1,) * (len(shape) - 3)
    mask = None
    if attn_mask is not None:
        check_no_key_mask(attn_mask, shape)
        mask = align_mask(attn_mask, shape, name="attn_mask")
    if key_mask is not None:
        check_bool("key_mask", key_mask)
        if len(shape) < 3 or tuple(key_mask.shape) != (shape[0], shape[-1]):
            raise ValueError(
                f"key_mask must have shape (batch, k_len) for scores of shape {tuple(shape)}, "
                f"got {tuple(key_mask.shape)}"
            )
        rows = key_mask.view(shape[0], *heads, 1, shape[-1])
        mask = rows if mask is None else mask & rows
    if valid_lens is not None:
        rows = valid_lens_mask(valid_lens, shape[-1])
        fitting = rows.shape[0] == shape[0] and rows.shape[1] in (1, shape[-2])
        if len(shape) < 3 or not fitting:
            raise ValueError(
                f"valid_lens must have shape (batch,) or (batch, q_len) for scores of shape {tuple(shape)}, "
                f"got {tuple(valid_lens.shape)}"
            )
        rows = rows.unsqueeze(1) if heads else rows
        mask = rows if mask is None else mask & rows
    return mask


def align_mask(
    mask: Bool[Tensor, "..."], shape: Sequence[int], *, name: str = "mask"
) -> Bool[Tensor, "..."]:
    """Align a mask with scores of `shape`: a (batch, q_len, k_len) mask gets a head axis.

    Args:
        mask: bool mask of rank 2, 3 or 4.
        shape: shape of the scores, (..., q_len, k_len).
        name: name of the mask in error messages.

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
    check_bool(name, mask)
    if mask.ndim not in (2, 3, 4):
        raise ValueError(
            f"{name} must have shape (q_len, k_len), (batch, q_len, k_len) or "
            f"(batch, num_heads, q_len, k_len), got {tuple(mask.shape)}"
        )
    aligned = mask.unsqueeze(1) if mask.ndim == 3 and len(shape) == 4 else mask
    # A mask with a batch axis needs scores of its own rank: otherwise its batch axis
    # would be aligned with another axis.
    if aligned.ndim not in (2, len(shape)) or not fits(aligned.shape, shape):
        raise ValueError(
            f"{name} must broadcast to scores of shape {shape}, got a mask of shape {tuple(mask.shape)}"
        )
    return aligned


def align_bias(
    bias: Float[Tensor, "..."], shape: Sequence[int], *, name: str = "attn_bias"
) -> Float[Tensor, "..."]:
    """Check a bias that is added to scores of `shape`.

    A bias of rank 3 over scores of rank 4 is refused: a mask of that rank has a batch axis, while biases
    usually differ by head. Write `bias[None]` or `bias[:, None]` to say which of the two is meant.

    Args:
        bias: floating-point and finite, (q_len, k_len) or of the rank of the scores; axes of size 1
            broadcast. Hide keys with a mask, not with a bias of -inf or of the smallest number of a dtype, as
            other libraries do: a row of only such numbers would get uniform weights. `mask_from_additive`
            turns them into a mask.
        shape: shape of the scores, (..., q_len, k_len).
        name: name of the bias in error messages.

    Returns:
        `bias` itself.

    Raises:
        TypeError: `bias` is not a floating-point tensor.
        ValueError: `bias` does not broadcast to `shape` unambiguously, is not finite, or holds the smallest
            number of a dtype.

    Example:
        >>> align_bias(torch.zeros(1, 7, 3, 5), (2, 7, 3, 5)).shape
        torch.Size([1, 7, 3, 5])
    """
    shape = tuple(shape)
    check_float_tensor(name, bias, axes="..., q_len, k_len")
    if bias.ndim not in (2, len(shape)) or not fits(bias.shape, shape):
        hint = (
            f"; {name}[None] gives it a batch axis, {name}[:, None] a head axis"
            if bias.ndim == 3 and len(shape) == 4
            else ""
        )
        raise ValueError(
            f"{name} must have rank 2 or {len(shape)} and broadcast to scores of shape {shape}, "
            f"got shape {tuple(bias.shape)}{hint}"
        )
    rule = (
        "must be finite, and not a mask in disguise (mask_from_additive converts one)"
    )
    limits = torch.finfo(bias.dtype)
    check_numbers(name, bias, limits.min / 2, limits.max, rule)
    return bias


def _fit_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast the bias to another dtype; what is too large becomes the largest number, not infinity."""
    if bias.dtype == dtype:
        return bias
    limits = torch.finfo(dtype)
    wide = bias.to(torch.promote_types(bias.dtype, dtype))
    return wide.clamp(limits.min, limits.max).to(dtype)
