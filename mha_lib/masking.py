"""The one definition of a mask: bool, True = may attend, everywhere.

A mask of zeros and ones is rejected, because other libraries would *add* it without any error.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_lib import _checks
from mha_lib._checks import Device, Positions, checked, refusal, unchecked
from mha_lib.positional import _distances


class _MaskArguments(NamedTuple):
    """The arguments of a call that say what its queries see, not yet checked."""

    attn_mask: Tensor | None = None
    attn_bias: Tensor | None = None
    key_mask: Tensor | None = None
    valid_lens: Tensor | None = None

    def with_batch_axis(self) -> _MaskArguments:
        """The arguments of one sample as those of a batch of one; rank 2 means (q_len, k_len) already."""
        return _MaskArguments(
            attn_mask=_as_batch(self.attn_mask, if_rank_is_not=2),
            attn_bias=_as_batch(self.attn_bias, if_rank_is_not=2),
            key_mask=_as_batch(self.key_mask),
            valid_lens=_as_batch(self.valid_lens),
        )


def _as_batch(x: Tensor | None, if_rank_is_not: int | None = None) -> Tensor | None:
    if not isinstance(x, Tensor) or x.ndim == if_rank_is_not:
        return x
    return x.unsqueeze(0)


class _MaskNames(NamedTuple):
    """What the errors of a call name its masks."""

    attn_mask: str = "attn_mask"
    key_mask: str = "key_mask"
    valid_lens: str = "valid_lens"


_NAMES = _MaskNames()


def _check_lengths_and_sides(
    q_len: object,
    k_len: object = None,
    *,
    left: object = None,
    right: object = None,
    **_: object,
) -> None:
    _checks.check_lens(q_len=q_len, k_len=k_len, left=left, right=right)


def _check_bool(name: str, mask: object) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{name} must be a bool tensor, True = may attend, got {got}; a mask of zeros and ones would be "
            "added to the scores, so convert it with .bool(), or with mask_from_additive"
        )


def _check_window(window: object) -> None:
    """Raise unless `window` is None or a pair (left, right) of lengths, where None means unlimited."""
    if window is None:
        return
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise _checks.wrong_type("window", "a pair (left, right)", window)
    _checks.check_lens(**{"window[0]": window[0], "window[1]": window[1]})


def _fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of `shape` broadcasts to `target` without changing it."""
    ends = target[len(target) - len(shape) :]
    return all(size in (1, end) for size, end in zip(shape, ends, strict=True))


def valid_lens_mask(
    valid_lens: Integer[Tensor, "batch *q_len"], k_len: int
) -> Bool[Tensor, "batch q_len_or_1 {k_len}"]:
    """Mask that lets each query see the first `valid_lens` of `k_len` keys.

    The lengths are integers in 0..k_len, either one for each sample, (batch,), or one for each query,
    (batch, q_len). The result is bool, True = may attend: (batch, 1, k_len) or (batch, q_len, k_len).

    Raises:
        TypeError: `valid_lens` is not an integer tensor, or `k_len` is not an int.
        ValueError: `valid_lens` has the wrong rank, or a length lies outside 0..k_len.

    Example:
        >>> valid_lens_mask(torch.tensor([1, 3]), k_len=3).int().tolist()
        [[[1, 0, 0]], [[1, 1, 1]]]
    """
    if type(k_len) is not int or k_len < 0:
        _checks.check_lens(k_len=k_len)
    return _mask_from_lens(valid_lens, k_len, "valid_lens")


def _mask_from_lens(valid_lens: Tensor, k_len: int, name: str) -> Tensor:
    """See `valid_lens_mask`; errors call the lengths `name`."""
    axes, rule = "(batch,) or (batch, q_len)", "lie in 0..k_len"
    # The text with its number would tie a compiled program to this k_len.
    if not torch.compiler.is_compiling():
        rule = f"{rule}={k_len}"
    _checks.check_numbers(name, valid_lens, 0, k_len, rule, integers=axes)
    visible = torch.arange(k_len, device=valid_lens.device) < valid_lens.unsqueeze(-1)
    return visible.unsqueeze(1) if valid_lens.ndim == 1 else visible


@checked(_check_lengths_and_sides)
def causal_mask(
    q_len: int, k_len: int | None = None, *, device: Device = None
) -> Bool[Tensor, "{q_len} _"]:
    """Mask that lets each query see the keys up to its own position and none after it.

    The two sequences end together (bottom-right alignment): the last of `q_len` queries sees every one of
    `k_len` keys (default `q_len`). The result is bool, True = may attend, (q_len, k_len), on `device`.

    Raises:
        TypeError, ValueError: a length is not an int, or is negative.

    Example:
        >>> causal_mask(2, 4).int().tolist()
        [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    k_len = q_len if k_len is None else k_len
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)


_hide_future = unchecked(causal_mask)


@checked(_check_lengths_and_sides)
def sliding_window_mask(
    q_len: int,
    k_len: int | None = None,
    *,
    left: int | None,
    right: int | None = 0,
    positions: Positions | None = None,
    device: Device = None,
) -> Bool[Tensor, "*batch {q_len} _"]:
    """Mask that lets each query see the keys near its own position (Beltagy et al., 2020, §3.1).

    A query at position p sees the keys at p - left .. p + right. Queries and keys end together, as in
    `causal_mask`, which is the window with left=None and right=0. A causal window of w tokens that includes
    the token itself (Jiang et al., 2023) has left=w - 1.

    Args:
        q_len: number of queries.
        k_len: number of keys; default `q_len`.
        left: how many keys before its own position a query sees; None for all.
        right: how many keys after its own position a query sees; None for all.
        positions: integers (batch, q_len) and (batch, k_len), from `KeyValueCache.positions`: positions of
            queries and keys if samples of different lengths share a cache.
        device: where the mask is created.

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


def _window_mask(
    window: tuple[int | None, int | None],
    q_len: int,
    k_len: int,
    positions: Positions | None,
    device: Device,
) -> Tensor:
    """The mask of a layer's window (left, right), the same for all heads."""
    left, right = window
    visible = sliding_window_mask(
        q_len, k_len, left=left, right=right, positions=positions, device=device
    )
    return visible.unsqueeze(1) if visible.ndim == 3 else visible


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
    """Combine everything that may hide a key; a key is visible only where every mask allows it.

    Args:
        q_len: number of queries.
        k_len: number of keys.
        attn_mask: bool, True = may attend, shape (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
        key_mask: bool, True = may attend, (batch, k_len): one row of keys for all queries of a sample.
        valid_lens: integers (batch,) or (batch, q_len), see `valid_lens_mask`.
        is_causal: hide the future, see `causal_mask`.
        device: where a causal mask is created when no tensor is given.

    Returns:
        A bool mask that `align_mask` fits to (batch, num_heads, q_len, k_len), or None if nothing is hidden.

    Raises:
        TypeError: `attn_mask` or `key_mask` is not bool, or `valid_lens` does not contain integers.
        ValueError: a shape does not fit, or a length lies outside 0..k_len.

    Example:
        >>> build_mask(2, 2, valid_lens=torch.tensor([1]), is_causal=True).int().tolist()
        [[[1, 0], [1, 0]]]
        >>> build_mask(2, 2) is None
        True
    """
    _checks.check_lens(q_len=q_len, k_len=_checks.check_int("k_len", k_len))
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
    *,
    slots: Tensor | None = None,  # visible in a layer's cache, (batch, k_len)
    window: Tensor | None = None,  # the mask of a layer's window
    names: _MaskNames = _NAMES,
) -> Tensor | None:
    """Combine the masks for scores of `shape` into one that broadcasts to it; None if there are none."""
    heads, masks = (1,) * (len(shape) - 3), [] if window is None else [window]
    if attn_mask is not None:
        masks.append(_align_mask(attn_mask, shape, names))
    if key_mask is not None:
        _check_bool(names.key_mask, key_mask)
        if len(shape) < 3 or tuple(key_mask.shape) != (shape[0], shape[-1]):
            rule = f"have shape (batch, k_len) for scores of shape {tuple(shape)}"
            raise refusal(names.key_mask, rule, key_mask)
    for keys in (key_mask, slots):
        if keys is not None:
            masks.append(keys.view(shape[0], *heads, 1, shape[-1]))
    if valid_lens is not None:
        rows = _mask_from_lens(valid_lens, shape[-1], names.valid_lens)
        fitting = rows.shape[0] == shape[0] and rows.shape[1] in (1, shape[-2])
        if len(shape) < 3 or not fitting:
            rule = "have shape (batch,) or (batch, q_len)"
            rule += f" for scores of shape {tuple(shape)}"
            raise refusal(names.valid_lens, rule, valid_lens)
        masks.append(rows.unsqueeze(1) if heads else rows)
    return functools.reduce(operator.and_, masks) if masks else None


def align_mask(
    mask: Bool[Tensor, "..."], shape: Sequence[int], *, name: str = "mask"
) -> Bool[Tensor, "..."]:
    """Align a mask with scores of `shape`: a (batch, q_len, k_len) mask gets a head axis.

    `mask` is bool, of rank 2, 3 or 4. The result is a view of it that broadcasts to `shape`,
    (..., q_len, k_len), without changing that shape. Errors call the mask `name`.

    Raises:
        TypeError, ValueError: `mask` is not bool, or does not broadcast to `shape`.

    Example:
        >>> align_mask(torch.ones(2, 1, 5, dtype=torch.bool), (2, 7, 3, 5)).shape
        torch.Size([2, 1, 1, 5])
    """
    return _align_mask(mask, shape, _NAMES._replace(attn_mask=name))


def _align_mask(mask: Tensor, shape: Sequence[int], names: _MaskNames) -> Tensor:
    """See `align_mask`; a hint at what two axes would mean names the mask of keys too."""
    shape, name = tuple(shape), names.attn_mask
    _check_bool(name, mask)
    if mask.ndim not in (2, 3, 4):
        rule = "have shape (q_len, k_len), (batch, q_len, k_len) or (batch, num_heads, q_len, k_len)"
        raise refusal(name, rule, mask)
    aligned = mask.unsqueeze(1) if mask.ndim == 3 and len(shape) == 4 else mask
    # A mask with a batch axis needs scores of the same rank, or its axes would not line up with theirs.
    if aligned.ndim not in (2, len(shape)) or not _fits(aligned.shape, shape):
        got = f"a mask of shape {tuple(mask.shape)}"
        if mask.shape == (shape[0], shape[-1]):
            got += f"; two axes mean (q_len, k_len), {names.key_mask}={name} would mean (batch, k_len)"
        raise refusal(name, f"broadcast to scores of shape {shape}", got)
    return aligned


def align_bias(
    bias: Float[Tensor, "..."], shape: Sequence[int], *, name: str = "attn_bias"
) -> Float[Tensor, "..."]:
    """Check a bias that is added to scores of `shape`.

    The bias must be floating-point and finite, and either (q_len, k_len) or of the same rank as the scores;
    axes of size 1 broadcast. It is returned unchanged, and errors call it `name`. For scores of rank 4, a
    bias of rank 3 is rejected, because its first axis could mean samples, as in a mask of that rank, or
    heads, as in most biases. Write `bias[:, None]` for samples or `bias[None]` for heads.

    Other libraries hide keys with -inf or the smallest number of a dtype. Use a mask instead, because a row
    of only such numbers would get uniform weights; `mask_from_additive` turns them into a mask.

    Raises:
        TypeError: `bias` is not a floating-point tensor.
        ValueError: `bias` does not broadcast to `shape` unambiguously, is not finite, or looks like a mask.

    Example:
        >>> align_bias(torch.zeros(1, 7, 3, 5), (2, 7, 3, 5)).shape
        torch.Size([1, 7, 3, 5])
    """
    shape = tuple(shape)
    _checks.check_float_tensor(name, bias, axes="..., q_len, k_len")
    if bias.ndim not in (2, len(shape)) or not _fits(bias.shape, shape):
        rule = f"have rank 2 or {len(shape)} and broadcast to scores of shape {shape}"
        got = f"shape {tuple(bias.shape)}"
        if bias.ndim == 3 and len(shape) == 4:
            got += f"; {name}[None] gives it a batch axis, {name}[:, None] a head axis"
        raise refusal(name, rule, got)
    rule = "be finite, and not a mask in disguise (mask_from_additive converts one)"
    limits = torch.finfo(bias.dtype)
    _checks.check_numbers(name, bias, limits.min / 2, limits.max, rule)
    return bias
