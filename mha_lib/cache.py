"""The cache for decoding: the keys and values of the tokens that a layer has already seen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Integer, Shaped
from torch import Tensor

from mha_lib import _checks
from mha_lib._checks import Device, DType, Positions
from mha_lib._fast import leave_open
from mha_lib.masking import valid_lens_mask

_Held: TypeAlias = tuple[Tensor, Tensor, Tensor | None]  # keys, values, visible


class KeyValueCache:
    """Keys and values of one attention layer, projected once and kept (Shazeer, 2019, §2.4).

    A layer that is given a cache appends the keys and values of the new tokens and attends to everything in
    the cache. You can therefore feed a sequence token by token, or in chunks of any size, and get the same
    result as in one call. The cache is the only argument that a layer changes; make a new one for each layer
    and each batch. Decode under `torch.no_grad()`; otherwise the cache keeps the graph of every step alive.

    A batch may contain sequences of different lengths. `valid_lens` says how many tokens of a chunk are real;
    the others become slots that no query sees. In later calls, masks and biases have a column for each slot.
    For ALiBi, T5 or a window, `positions` gives the position of the token in each slot.

    Example:
        >>> from mha_lib import MultiHeadAttention
        >>> attention, x = MultiHeadAttention(6, 3), torch.rand(2, 5, 6)
        >>> whole, _ = attention(x, x, x, is_causal=True)
        >>> cache = KeyValueCache()
        >>> steps = [attention(t, t, t, is_causal=True, cache=cache)[0] for t in x.split(1, dim=1)]
        >>> len(cache), torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-5)
        (5, True)
    """

    # Keys, values and `visible`, replaced together so that a cache is never half changed.
    _held: tuple[Shaped[Tensor, "..."] | None, ...] = (None, None, None)
    # How many tokens of each sample are no longer held, (batch,), because positions go on counting them.
    _forgotten: Int[Tensor, " batch"] | None = None

    @property
    def keys(self) -> Tensor | None:
        """Keys of all slots, (batch, num_kv_heads, len, head_dim), already rotated, or None if empty."""
        return self._held[0]

    @keys.setter
    def keys(self, keys: Tensor) -> None:
        self._held = (self._checked("keys", keys), *self._held[1:])

    @property
    def values(self) -> Tensor | None:
        """Values of all slots, (batch, num_kv_heads, len, value_dim), or None if empty."""
        return self._held[1]

    @values.setter
    def values(self, values: Tensor) -> None:
        self._held = (self._held[0], self._checked("values", values), self._held[2])

    @property
    def visible(self) -> Tensor | None:
        """Which slots hold a real token, bool (batch, len); None if all do."""
        return self._held[2]

    def _checked(self, name: str, tensor: Tensor) -> Tensor:
        """Return a replacement for keys or values, which must keep all slots; `positions` counts them."""
        if getattr(tensor, "shape", ())[2:3] != (held := len(self),):
            rule = f"keep the {held} slots of the cache (crop and append change their number)"
            raise _checks.refusal(name, rule, tensor)
        return tensor

    def __deepcopy__(self, memo: dict[int, object]) -> KeyValueCache:
        """Copy the contents, even if they belong to a graph."""
        return copy.copy(self)._change(Tensor.clone)

    def _change(self, change: Callable[[Tensor], Tensor]) -> KeyValueCache:
        self._held = tuple(None if x is None else change(x) for x in self._held)
        return self

    def keep_last(self, length: int) -> KeyValueCache:
        """Forget the slots before the last `length` tokens of every sample; return this cache.

        The positions of later tokens do not change. A layer with `window=(left, 0)` gives the same results if
        the last `left` tokens are kept after each call, so its cache does not grow with the text.

        Raises:
            TypeError, ValueError: `length` is not an int, or is negative.

        Example:
            >>> cache, keys = KeyValueCache(), torch.rand(2, 1, 5, 4)
            >>> _ = cache.append(keys, keys)
            >>> len(cache.keep_last(3)), cache.lens.tolist()
            (3, [5, 5])
        """
        _checks.check_lens(length=_checks.check_int("length", length))
        if self.keys is None:
            return self
        lens, forgotten = self.lens, max(0, len(self) - length)
        if self.visible is not None:
            tokens_up_to = self.visible.cumsum(1)
            old = tokens_up_to <= tokens_up_to[:, -1:] - length
            forgotten = int(old.all(0).sum())
        if forgotten == 0:
            return self
        kept = len(self) - forgotten
        # Slots are the third of four axes in keys and values, and the second of two in `visible`.
        self._change(lambda x: x.narrow(x.ndim // 2, forgotten, kept))
        held = self.keys.shape[2] if self.visible is None else self.visible.sum(1)
        self._forgotten = lens - held
        return self

    def crop(self, length: int) -> KeyValueCache:
        """Forget all slots but the first `length`, as after draft tokens are rejected; return this cache.

        Raises:
            TypeError, ValueError: `length` is not an int, or is negative or larger than the cache.

        Example:
            >>> cache, keys = KeyValueCache(), torch.rand(2, 1, 3, 4)
            >>> _ = cache.append(keys, keys)
            >>> len(cache.crop(2))
            2
        """
        if not 0 <= _checks.check_int("length", length) <= len(self):
            raise _checks.refusal("length", f"lie in 0..len(cache)={len(self)}", length)
        return self._change(lambda tensor: tensor.narrow(tensor.ndim // 2, 0, length))

    def reorder(self, samples: Integer[Tensor, " batch"]) -> KeyValueCache:
        """Rearrange the samples of the batch, as beam search does; return this cache.

        `samples` are integers (batch,): for each sample of the new batch, the index of the old sample that it
        continues. The new batch may be larger or smaller.

        Raises:
            TypeError: `samples` does not contain integers.
            ValueError: `samples` has the wrong shape, or names a sample that does not exist.

        Example:
            >>> cache, keys = KeyValueCache(), torch.rand(2, 1, 3, 4)
            >>> _ = cache.append(keys, keys)
            >>> torch.equal(cache.reorder(torch.tensor([1, 1, 0])).keys, keys[[1, 1, 0]])
            True
        """
        last = 0 if self.keys is None else self.keys.shape[0] - 1
        rule = f"lie in 0..{last}"
        _checks.check_numbers("samples", samples, 0, last, rule, integers="(batch,)")
        if self._forgotten is not None:
            self._forgotten = self._forgotten[samples]
        return self._change(lambda tensor: tensor[samples])

    def to(self, device: Device = None, dtype: DType = None) -> KeyValueCache:
        """Move keys and values to another device or dtype; return this cache.

        Raises:
            RuntimeError: torch does not support that device.

        Example:
            >>> cache, keys = KeyValueCache(), torch.rand(2, 1, 3, 4)
            >>> _ = cache.append(keys, keys)
            >>> cache.to(dtype=torch.bfloat16).values.dtype
            torch.bfloat16
        """
        if self._forgotten is not None:
            self._forgotten = self._forgotten.to(device)
        # `visible`, (batch, len), stays bool.
        return self._change(lambda x: x.to(device, dtype if x.ndim == 4 else None))

    def __len__(self) -> int:
        """Number of slots in use; a mask for the next call has a column for each slot and each new key."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def lens(self) -> Int[Tensor, " batch"]:
        """Number of real tokens of each sample, int64 (batch,); this is the position of its next token.

        Tokens that `keep_last` has forgotten are counted too.

        Raises:
            ValueError: the cache is still empty, so the batch size is not known.
        """
        if (keys := self.keys) is None:
            rule = "lens needs a cache that contains tokens, got an empty one"
            raise ValueError(rule)
        if self.visible is not None:
            held = self.visible.sum(1)
        else:
            held = keys.new_full(keys.shape[:1], len(self), dtype=torch.int64)
        return held if self._forgotten is None else held + self._forgotten

    def positions(
        self, q_len: int, new: int | None = None
    ) -> tuple[Int[Tensor, "*batch q_len"], Int[Tensor, "*batch k_len"]]:
        """Positions of queries and keys in the next call, for masks and biases that depend on distance.

        The call has `q_len` queries and adds `new` keys, by default `q_len`. The positions are (q_len,) and
        (len(cache) + new,), or, if samples differ in length or tokens were forgotten, (batch, q_len) and
        (batch, len(cache) + new). A slot that no query sees has the position of the token before it.

        Raises:
            TypeError, ValueError: a length is not an int, or is negative.

        Example:
            >>> cache, keys = KeyValueCache(), torch.rand(2, 1, 3, 4)
            >>> _ = cache.append(keys, keys, valid_lens=torch.tensor([3, 1]))
            >>> [positions.tolist() for positions in cache.positions(1)]
            [[[3], [1]], [[0, 1, 2, 3], [0, 0, 0, 1]]]
        """
        new = q_len if new is None else new
        _checks.check_lens(q_len=q_len, new=new)
        device = None if self.keys is None else self.keys.device
        queries, keys = _new_positions(self, q_len, new, device)
        held = torch.arange(len(self), device=device)
        if self.visible is not None:
            held = self.visible.cumsum(1) - 1
        if self._forgotten is not None:
            held = held + self._forgotten.unsqueeze(1)
        held = held.clamp(min=0)
        return queries, torch.cat((held, keys), dim=-1)

    def append(
        self,
        keys: Float[Tensor, "batch num_kv_heads new head_dim"],
        values: Float[Tensor, "batch num_kv_heads new value_dim"],
        *,
        valid_lens: Integer[Tensor, " batch"] | None = None,
    ) -> tuple[
        Float[Tensor, "batch num_kv_heads k_len head_dim"],
        Float[Tensor, "batch num_kv_heads k_len value_dim"],
        Bool[Tensor, "batch k_len"] | None,
    ]:
        """Add a chunk of tokens, of which the first `valid_lens`, integers (batch,), are real; default all.

        Keys, (batch, num_kv_heads, new, head_dim), are already rotated if the layer rotates them; values are
        (batch, num_kv_heads, new, value_dim).

        Returns:
            (keys, values, visible): everything in the cache, new tokens last, and which slots hold a real
            token: bool (batch, k_len), or None if all of them do.

        Raises:
            TypeError: a dtype is wrong, or differs from that of the cache.
            ValueError: the shapes do not fit each other or the cache, a device differs, or a length is
                outside 0..new. The cache is then unchanged.
        """
        _checks.check_chunk(keys, values, self._held)
        visible = self._seen(keys.shape, valid_lens, keys.device)
        return self._extend(keys, values, visible)

    def _seen(
        self, sizes: Sequence[int], lens: Tensor | None, device: Device
    ) -> Tensor | None:
        """Check a chunk whose keys have these `sizes`; return `visible` as it will be after the chunk."""
        self.check_fits(sizes, lens)
        past, new, visible = len(self), sizes[2], self.visible
        if visible is not None:
            visible = torch.cat((visible, visible.new_ones(sizes[0], new)), dim=1)
        if lens is not None:
            real = torch.arange(-past, new, device=device) < lens.to(device)[:, None]
            visible = real if visible is None else visible & real
        return visible

    def _extend(self, keys: Tensor, values: Tensor, visible: Tensor | None) -> _Held:
        """Append a chunk that has been checked."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat((self.keys, keys), dim=2)
            values = torch.cat((self.values, values), dim=2)
        else:  # in the layout that `cat` returns, because a compiled program depends on the layout
            layout = torch.contiguous_format
            keys, values = (x.clone(memory_format=layout) for x in (keys, values))
            leave_open(keys, values, visible)
        self._held = keys, values, visible
        return keys, values, visible

    def check_fits(
        self, sizes: Sequence[int], valid_lens: Integer[Tensor, "..."] | None
    ) -> None:
        """Check a chunk with keys of `sizes` (batch, num_kv_heads, new, head_dim) before it is computed.

        Raises:
            TypeError: `valid_lens` does not contain integers.
            ValueError: the sizes do not match the cache, or `valid_lens` is not (batch,) or not in 0..new.
        """
        if self.keys is not None:
            names, held = ("the new keys", "the cache"), self.keys.shape
            both = [(*shape[:2], shape[3]) for shape in (sizes, held)]
            _checks.check_same("(batch, num_kv_heads, head_dim)", names, both)
        if valid_lens is not None:
            if isinstance(valid_lens, Tensor) and valid_lens.shape != (sizes[0],):
                rule = "have shape (batch,) with a cache, the number of real new tokens"
                got = f"{tuple(valid_lens.shape)} for batch={sizes[0]}"
                raise _checks.refusal("valid_lens", rule, got)
            valid_lens_mask(valid_lens, sizes[2])


def _new_positions(
    cache: KeyValueCache | None, q_len: int, new: int, device: Device
) -> Positions:
    """Positions of queries and new keys, which end together and continue where the cache ends."""
    longest = max(q_len, new)
    positions = torch.arange(longest, device=device)
    if cache is not None:  # each sample may have its own end
        alike = cache.visible is None and cache._forgotten is None
        past: int | Tensor = len(cache) if alike else cache.lens.unsqueeze(1)
        positions = positions + (past + new - longest)
    return positions[..., longest - q_len :], positions[..., longest - new :]


def _of_real_tokens(
    positions: Positions, mask: Tensor, cache: KeyValueCache | None
) -> Positions:
    """Positions (batch, len) that do not count padding, for rotations that depend on the length of a sample.

    Padding is what `mask`, (..., q_len, all_keys), hides from every query before or after all visible keys.
    """
    queries, keys = positions
    all_keys = keys
    if cache is not None:
        all_keys = cache.positions(queries.shape[-1], keys.shape[-1])[1]
    real = mask.any(-2)
    real = real.any(1) if real.ndim == 3 else real
    if cache is None or cache.visible is None:
        # Otherwise, positions already begin at the first real token.
        before = (real.cumsum(-1) == 0).sum(-1, keepdim=True)
        queries, keys, all_keys = (x - before for x in (queries, keys, all_keys))
    last = torch.where(real, all_keys, 0).amax(-1, keepdim=True)
    longest = torch.where(real.any(-1, keepdim=True), last, queries[..., -1:])
    queries, keys = (torch.minimum(x, longest).clamp(min=0) for x in (queries, keys))
    return queries, keys
