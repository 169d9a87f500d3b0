"""What a mask means, in one place: bool, True = may attend, everywhere.

A float mask of zeros and ones is refused: other libraries would *add* it to the scores, and a mask that is
added instead of obeyed fails without an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mha_lib._checks import check_int, check_same, check_type, extremes


def _check_len(name: str, value: object) -> None:
    if check_int(name, value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def valid_lens_mask(valid_lens: Tensor, k_len: int) -> Tensor:
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
) -> Tensor:
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
    attn_mask: Tensor | None = None,
    valid_lens: Tensor | None = None,
    is_causal: bool = False,
    device: torch.device | str | None = None,
) -> Tensor | None:
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
    if is_causal:
        causal = causal_mask(q_len, k_len, device=device)
        mask = causal if mask is None else mask & causal
    return mask


def align_mask(mask: Tensor, shape: Sequence[int], *, name: str = "mask") -> Tensor:
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
