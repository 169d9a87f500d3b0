"""What blocks and stacks are given: their options, and inputs, masks and caches, checked before any work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Sized
from typing import NamedTuple, TypeAlias, TypedDict, TypeVar

from torch import Tensor

from mha_lib import _checks
from mha_lib._checks import Device, DType
from mha_lib.masking import _combine_masks, _MaskArguments, _MaskNames

_MEMORY_NAMES = _MaskNames("memory_mask", "memory_key_mask", "memory_valid_lens")
_Cache = TypeVar("_Cache", bound=Sized)
Window: TypeAlias = tuple[int | None, int | None] | None
Rotary: TypeAlias = Callable[[Tensor, Tensor], Tensor] | None


class OptionsWithoutDropout(TypedDict, total=False):
    """The keyword arguments of a block except its dropout."""

    norm_first: bool
    activation: str
    bias: bool
    norm: str
    layer_norm_eps: float
    attention_bias: bool | Collection[str] | None
    window: Window
    rotary: Rotary
    num_kv_heads: int | None
    head_dim: int | None
    scale: float | Tensor | None
    softcap: float | None
    qk_norm: bool
    sink: bool
    device: Device
    dtype: DType


class BlockOptions(OptionsWithoutDropout, total=False):
    """The keyword arguments of a block, which stacks and models pass on; `EncoderBlock` explains them."""

    dropout: float


def refuse_unknown(layer: str, options: Collection[str]) -> None:
    """Raise if there are options that a layer does not know; the error names those that it knows."""
    for name in options:
        known = ", ".join(sorted(BlockOptions.__optional_keys__))
        raise TypeError(f"{layer} has no option {name!r}, only {known}")


class SelfInputs(NamedTuple):
    """What a self-attention is given, checked: always a batch, with one mask."""

    tokens: Tensor  # (batch, len, embed_dim)
    attn_mask: Tensor | None
    attn_bias: Tensor | None
    valid_lens: Tensor | None  # for the cache, which stores them; else part of the mask


def check_self(
    x: Tensor,
    embed_dim: int,
    num_heads: int,
    masks: _MaskArguments,
    cache: Sized | None,
) -> SelfInputs:
    """Check the inputs of a self-attention before anything is computed; combine its masks once per stack."""
    unbatched = getattr(x, "ndim", 3) == 2
    axes = "len, embed_dim" if unbatched else "batch, len, embed_dim"
    _checks.check_width("x", x, embed_dim, axes=axes)
    if unbatched:
        x, masks = x.unsqueeze(0), masks.with_batch_axis()
    batch, length, _ = x.shape
    if cache is None:
        hidden_by_mask, stored_by_cache = masks.valid_lens, None
        shape = (batch, num_heads, length, length)
    else:
        hidden_by_mask, stored_by_cache = None, masks.valid_lens
        shape = (batch, num_heads, length, len(cache) + length)
    mask = _combine_masks(shape, masks.attn_mask, masks.key_mask, hidden_by_mask)
    return SelfInputs(x, mask, masks.attn_bias, stored_by_cache)


def check_memory(
    x: Tensor, memory: object, num_heads: int, masks: _MaskArguments
) -> tuple[Tensor, Tensor | None]:
    """Check the inputs of a cross-attention before the self-attention runs; combine its masks."""
    axes = "memory_len, embed_dim" if x.ndim == 2 else "batch, memory_len, embed_dim"
    memory = _checks.check_float_tensor("memory", memory, axes=axes)
    names = ("x", "memory")
    _checks.check_same("embed_dim", names, (x.shape[-1], memory.shape[-1]))
    _checks.check_same("batch", names, (x.shape[:-2], memory.shape[:-2]))
    _checks.check_same_kind(names, (x, memory))
    if x.ndim == 2:
        x, memory, masks = x.unsqueeze(0), memory.unsqueeze(0), masks.with_batch_axis()
    shape = (x.shape[0], num_heads, x.shape[1], memory.shape[1])
    mask = _combine_masks(
        shape, masks.attn_mask, masks.key_mask, masks.valid_lens, names=_MEMORY_NAMES
    )
    return memory, mask


def check_caches(
    cache: Sequence[_Cache] | None, kind: type[_Cache], num_layers: int
) -> Sequence[_Cache | None]:
    """Return one cache for each block, or None for each."""
    if cache is None:
        return [None] * num_layers
    _checks.check_type("cache", cache, Sequence)
    for block_cache in cache:
        _checks.check_type("cache[i]", block_cache, kind)
    lengths = [len(block_cache) for block_cache in cache]
    # Neither identities nor lengths are put into a set, which would tie a compiled program to them.
    repeated = sum(
        any(block_cache is earlier for earlier in cache[:i])
        for i, block_cache in enumerate(cache)
    )
    same = all(length == lengths[0] for length in lengths)
    if len(lengths) != num_layers or repeated or not same:
        rule = f"hold one entry for each of the {num_layers} blocks, all of one length"
        different = len(lengths) - repeated
        raise _checks.refusal("cache", rule, f"{different} of lengths {lengths}")
    return cache
