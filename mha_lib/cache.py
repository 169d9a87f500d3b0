"""What decoding remembers: the keys and values of the tokens that a layer has already seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from mha_lib import _checks
from mha_lib._checks import Device, Positions
from mha_lib.masking import valid_lens_mask


class KeyValueCache:
    """Keys and values of one attention layer, projected once and kept (Shazeer, 2019, §2.4).

    A layer that is given a cache appends the keys and values of the new tokens and attends to all it holds.
    A sequence can therefore be fed token by token, or in chunks of any size, with the same result as in one
    call. The cache is the only argument that a layer changes; make a new one for each layer and each batch.
    Decode under `torch.no_grad()`: otherwise the cache keeps the graph of every step alive.

    A batch may hold sequences of different lengths: `valid_lens` says how many of a chunk's tokens are real;
    the others become slots that no query sees. Masks and biases of a later call have a column for each slot;
    `positions` gives the position of the token in each slot, for ALiBi, T5 or a window.

    Example:
        >>> from mha_lib import MultiHeadAttention
        >>> attention, x = MultiHeadAttention(6, 3), torch.rand(2, 5, 6)
        >>> whole, _ = attention(x, x, x, is_causal=True)
        >>> cache = KeyValueCache()
        >>> steps = [attention(t, t, t, is_causal=True, cache=cache)[0] for t in x.split(1, dim=1)]
        >>> len(cache), torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-5)
        (5, True)
    """

    keys: Tensor | None
    values: Tensor | None
    visible: Tensor | None

    def __init__(self) -> None:
        self.keys = self.values = self.visible = None

    def __len__(self) -> int:
        """Number of slots in use; a mask for the next call has a column for each, and for each new key."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def lens(self) -> Int[Tensor, " batch"]:
        """Number of real tokens of each sample, int64 (batch,), which is the position of its next token.

        Raises:
            ValueError: the cache is still empty, so the batch size is not known.
        """
        if self.keys is None:
            raise ValueError(
                "lens needs a cache that holds something, got an empty one"
            )
        if self.visible is not None:
            return self.visible.sum(1)
        return torch.full(
            (self.keys.shape[0],), len(self), device=self.keys.device, dtype=torch.int64
        )

    def positions(
        self, q_len: int, new: int | None = None
    ) -> tuple[Int[Tensor, "*batch q_len"], Int[Tensor, "*batch k_len"]]:
        """Positions of queries and keys in the next call, for masks and biases that depend on distance.

        Args:
            q_len: number of queries of the next call.
            new: number of keys that the call adds; default `q_len`.

        Returns:
            Positions of the queries, (q_len,) or (batch, q_len), and of all keys, (len(cache) + new,) or
            (batch, len(cache) + new); with a batch axis where the cache holds samples of different lengths.
            Slots that no query sees have the position of the token before them.

        Raises:
            TypeError: a length is not an int.
            ValueError: a length is negative.

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
        if self.visible is None:
            held = torch.arange(len(self), device=device)
        else:
            held = (self.visible.cumsum(1) - 1).clamp(min=0)
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
        """Add the tokens of a chunk.

        Args:
            keys: (batch, num_kv_heads, new, head_dim), already rotated if the layer rotates its keys.
            values: (batch, num_kv_heads, new, value_dim).
            valid_lens: integers (batch,), how many of the new tokens are real; default all.

        Returns:
            (keys, values, visible): all that the cache holds, new tokens last, and which slots hold a real
            token, bool (batch, k_len), or None where all do.

        Raises:
            TypeError: wrong dtype, or not the dtype of the cache.
            ValueError: the shapes do not fit each other or the cache, another device, or a length outside
                0..new. The cache is then unchanged.
        """
        _checks.check_chunk(keys, values, self.keys, self.values)
        self.check_fits(keys.shape, valid_lens)
        visible = self._append_visible(keys, valid_lens)
        if self.keys is not None and self.values is not None:
            keys = torch.cat((self.keys, keys), dim=2)
            values = torch.cat((self.values, values), dim=2)
        self.keys, self.values, self.visible = keys, values, visible
        return keys, values, visible

    def check_fits(
        self, sizes: Sequence[int], valid_lens: Integer[Tensor, "..."] | None
    ) -> None:
        """Check a chunk before it is computed.

        Args:
            sizes: (batch, num_kv_heads, new, head_dim) of its keys.
            valid_lens: as in `append`.

        Raises:
            TypeError: `valid_lens` does not hold integers.
            ValueError: the sizes do not match the cache, or `valid_lens` has another shape or lies outside
                0..new.
        """
        held = None if self.keys is None else self.keys.shape
        _checks.check_chunk_sizes(tuple(sizes), held, valid_lens)
        if valid_lens is not None:
            valid_lens_mask(valid_lens, sizes[2])

    def _append_visible(self, keys: Tensor, valid_lens: Tensor | None) -> Tensor | None:
        if valid_lens is None and self.visible is None:
            return None
        held, added = self.visible, keys.new_ones(keys.shape[:3:2], dtype=torch.bool)
        if valid_lens is not None:
            added = (
                valid_lens_mask(valid_lens, keys.shape[2]).squeeze(1).to(keys.device)
            )
        if held is None:
            held = keys.new_ones(keys.shape[0], len(self), dtype=torch.bool)
        return torch.cat((held, added), dim=1)

    def _check_call(
        self, sizes: Sequence[int], valid_lens: Tensor | None, turned: int
    ) -> int:
        """Check a layer's call that rotates `turned` queries; return the number of slots in use."""
        _checks.check_type("cache", self, KeyValueCache)
        self.check_fits(sizes, valid_lens)
        total = len(self) + sizes[2]
        if turned > total:
            raise ValueError(
                "query must not be longer than all keys where rotary is used with a cache, "
                f"got q_len={turned}, k_len={total}"
            )
        return len(self)

    def _extend(
        self, keys: Tensor, values: Tensor, mask: Tensor | None, lens: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append, and hide in the mask of the call the slots without a real token."""
        keys, values, visible = self.append(keys, values, valid_lens=lens)
        if visible is not None:
            visible = visible[:, None, None]
            mask = visible if mask is None else mask & visible
        return keys, values, mask


def _new_positions(
    cache: KeyValueCache | None, q_len: int, new: int, device: Device
) -> Positions:
    """Positions of queries and new keys: both end together, and continue where the cache ends."""
    longest = max(q_len, new)
    positions = torch.arange(longest, device=device)
    if cache is not None and cache.visible is not None:  # each sample has its own end
        positions = positions + (cache.lens.unsqueeze(1) + new - longest)
    elif cache is not None:
        positions = positions + (len(cache) + new - longest)
    return positions[..., longest - q_len :], positions[..., longest - new :]


def _slot_positions(
    cache: KeyValueCache | None, q_len: int, k_len: int
) -> Positions | None:
    """`cache.positions` if some slots hold no token, so that slots are not positions; otherwise None."""
    if cache is None or cache.visible is None:
        return None
    return cache.positions(q_len, k_len - len(cache))
