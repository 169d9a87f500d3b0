"""Multi-head attention as a layer: project, split into heads, attend, merge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor, nn

from mha_lib import _checks, masking
from mha_lib._checks import Device, DType
from mha_lib.attention import _attend
from mha_lib.cache import KeyValueCache, _new_positions, _slot_positions
from mha_lib.scores import ScoringRule, _compose_rule


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own subspace (Vaswani et al., 2017, §3.2.2).

    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), output = [head_1, ..., head_h] W^O. The matrices of all
    heads are stacked in `q_proj`, `k_proj`, `v_proj`: head i owns rows i * head_dim up to (i + 1) * head_dim.

    Args:
        embed_dim: width of queries and of the output.
        num_heads: number of heads; divides `embed_dim` and does not change the number of parameters.
        num_kv_heads: number of key and value heads, each shared by num_heads / num_kv_heads query heads
            (grouped-query attention, Ainslie et al., 2023); default `num_heads`.
        kdim: width of keys; default `embed_dim`.
        vdim: width of values; default `embed_dim`.
        dropout: probability that a weight is dropped, in training only.
        bias: add a bias in the four projections.
        scale: factor of the dot products, a number or a tensor of shape () or (num_heads, 1, 1), which is
            learned if it is an `nn.Parameter`; default 1 / √head_dim.
        softcap: limit for the scores, see `softcap_scores`. With it, the readable path always runs.
        window: how many keys before and after its own position a query sees, (left, right), None for all; see
            `sliding_window_mask`. A window needs a mask of q_len * k_len.
        score: a scoring rule other than the scaled dot product, such as `cosine_score`, or a module such as
            `AdditiveScore(head_dim, head_dim, hidden_dim)`, which then belongs to the layer. All heads share
            the rule, and the readable path always runs. A function receives half precision as float32, a
            module computes in its own dtype.
        rotary: function rotary(x, positions) that rotates queries and keys by their positions after the split
            into heads, such as a `RotaryPositionalEncoding`. Queries and keys end together; with a cache,
            positions continue where the cache ends.
        device: where the parameters are made.
        dtype: of the parameters; default torch's default dtype.

    Raises:
        TypeError: a width or count is not an int, `dropout` not a number, or `score` or `rotary` cannot be
            called.
        ValueError: a width or count is not positive, `num_heads` does not divide `embed_dim`, `num_kv_heads`
            does not divide `num_heads`, `dropout` is outside 0..1, a side of the window is negative, `scale`
            is given together with `score`, or `rotary` was made for another `head_dim`.

    Example:
        >>> attention = MultiHeadAttention(embed_dim=100, num_heads=5)
        >>> query, memory = torch.ones(2, 4, 100), torch.ones(2, 6, 100)
        >>> output, weights = attention(query, memory, memory, valid_lens=torch.tensor([3, 2]))
        >>> output.shape, weights.shape
        (torch.Size([2, 4, 100]), torch.Size([2, 5, 4, 6]))
    """

    scale: float | Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        scale: float | Float[Tensor, "..."] | None = None,
        softcap: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        score: ScoringRule | None = None,
        rotary: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.softcap, self.window = dropout, softcap, window
        sizes = ("embed_dim", "num_heads", "num_kv_heads", "kdim", "vdim")
        _checks.check_sizes(**{name: getattr(self, name) for name in sizes})
        _checks.check_divisible(embed_dim=embed_dim, num_heads=num_heads)
        _checks.check_divisible(num_heads=num_heads, num_kv_heads=self.num_kv_heads)
        self.head_dim = embed_dim // num_heads
        _checks.check_probability("dropout", dropout)
        _checks.check_scoring(score, scale, softcap, num_heads)
        _checks.check_window(window)
        _checks.check_rotary(rotary, self.head_dim)
        self.score, self.rotary = score, rotary
        if isinstance(scale, Tensor) and not isinstance(scale, nn.Parameter):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale
        kind: Any = {"bias": bias, "device": device, "dtype": dtype}
        kv_width = self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(embed_dim, embed_dim, **kind)
        self.k_proj = nn.Linear(self.kdim, kv_width, **kind)
        self.v_proj = nn.Linear(self.vdim, kv_width, **kind)
        self.out_proj = nn.Linear(embed_dim, embed_dim, **kind)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from Xavier's uniform distribution (Glorot & Bengio, 2010), zero the biases."""
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(proj.weight)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)

    def forward(
        self,
        query: Float[Tensor, "*batch q_len embed_dim"],
        key: Float[Tensor, "*batch k_len kdim"],
        value: Float[Tensor, "*batch k_len vdim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
        need_weights: bool = True,
    ) -> tuple[
        Float[Tensor, "*batch q_len embed_dim"],
        Float[Tensor, "*batch num_heads q_len all_keys"] | None,
    ]:
        """Attend from `query` to `key`, and return the weighted mean of `value`.

        Args:
            query: (batch, q_len, embed_dim). If all three inputs lack the batch axis, they are one sample;
                results, masks and lengths then have no batch axis either.
            key: (batch, k_len, kdim).
            value: (batch, k_len, vdim).
            attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
                (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
            attn_bias: finite numbers that are added to the scores, (q_len, k_len) or
                (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
            key_mask: bool, True = may attend, (batch, k_len), for all queries of a sample.
            valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
            is_causal: hide the future, see `causal_mask`.
            cache: keys and values of earlier tokens. Those of `key` and `value` are appended, and the queries
                attend to all: `k_len` of mask, bias and weights is then len(cache) + the length of `key`.
                `valid_lens`, (batch,), still counts the tokens of `key`; the cache remembers it.
            need_weights: return the weights; without them torch's fused kernel runs.

        Returns:
            (output, weights): (batch, q_len, embed_dim) and (batch, num_heads, q_len, k_len), or None for
            the weights.

        Raises:
            TypeError: wrong dtype of a tensor or mask, or `cache` is not a `KeyValueCache`.
            ValueError: shapes do not fit, `attn_mask` could also be meant as (batch, k_len), a length lies
                outside 0..k_len, `attn_bias` is not finite, or `cache` belongs to another layer or batch; a
                cache that is refused is unchanged.
        """
        # A module that replaced a projection (LoRA, quantization) may have no weight tensor.
        weight = getattr(self.q_proj, "weight", None)
        widths = (self.embed_dim, self.kdim, self.vdim)
        _checks.check_layer(query, key, value, widths, weight, is_causal)
        if query.ndim == 2:
            hides = (attn_mask, attn_bias, key_mask, valid_lens)
            given = (query, key, value, hides, is_causal, cache, need_weights)
            return self._attend_one(*given)
        past = 0
        if cache is not None:
            sizes = (query.shape[0], self.num_kv_heads, key.shape[1], self.head_dim)
            turned = 0 if self.rotary is None else query.shape[1]
            past = KeyValueCache._check_call(cache, sizes, valid_lens, turned)
        shape = (query.shape[0], self.num_heads, query.shape[1], past + key.shape[1])
        lens = valid_lens if cache is None else None  # a cache hides its own padding
        mask = masking._combine_masks(shape, attn_mask, key_mask, lens)
        bias = None if attn_bias is None else masking.align_bias(attn_bias, shape)
        rule = None
        if (self.window, self.score, self.softcap) != (None, None, None):
            mask, rule = self._add_settings(mask, shape, cache, query.device)

        queries = self.split_heads(self.q_proj(query))
        keys = self.split_heads(self.k_proj(key))
        values = self.split_heads(self.v_proj(value))
        if self.rotary is not None:
            at = _new_positions(cache, query.shape[1], key.shape[1], query.device)
            queries, keys = self.rotary(queries, at[0]), self.rotary(keys, at[1])
        if cache is not None:
            keys, values, mask = cache._extend(keys, values, mask, valid_lens)
        how = (is_causal, self.dropout * self.training, need_weights, rule, self.scale)
        heads, weights = _attend(queries, keys, values, mask, bias, *how)
        return self.out_proj(self.merge_heads(heads)), weights

    def _attend_one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hides: tuple[Tensor | None, ...],
        *options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Run `forward` on a batch of this one sample, and remove the batch axis."""
        names = ("attn_mask", "attn_bias", "key_mask", "valid_lens")
        batched: dict[str, Any] = dict(zip(names, hides, strict=True))
        for name, x in batched.items():
            shared = name in names[:2] and getattr(x, "ndim", 0) == 2
            batched[name] = x[None] if isinstance(x, Tensor) and not shared else x
        batched |= zip(("is_causal", "cache", "need_weights"), options, strict=True)
        inputs = (query[None], key[None], value[None])
        output, weights = MultiHeadAttention.forward(self, *inputs, **batched)
        return output[0], None if weights is None else weights[0]

    def _add_settings(
        self,
        mask: Tensor | None,
        shape: tuple[int, ...],
        cache: KeyValueCache | None,
        device: torch.device,
    ) -> tuple[Tensor | None, ScoringRule | None]:
        """Add the window to the mask; also return the scoring rule, or None for that of torch's kernel."""
        positions = _slot_positions(cache, *shape[2:])
        rule = _compose_rule(self.score, self.scale, self.softcap, positions)
        if self.window is None:
            return mask, rule
        left, right = self.window
        near = masking.sliding_window_mask(
            *shape[2:], left=left, right=right, positions=positions, device=device
        )
        near = near if positions is None else near.unsqueeze(1)
        return near if mask is None else mask & near, rule

    def split_heads(
        self, x: Shaped[Tensor, "batch len width"]
    ) -> Shaped[Tensor, "batch heads len head_dim"]:
        """Cut the last axis into heads: (batch, len, heads * head_dim) -> (batch, heads, len, head_dim).

        Raises:
            TypeError: `x` is not a tensor.
            ValueError: `x` has another rank, or `head_dim` does not divide its last axis.

        Example:
            >>> MultiHeadAttention(6, 3).split_heads(torch.arange(6).view(1, 1, 6)).tolist()
            [[[[0, 1]], [[2, 3]], [[4, 5]]]]
        """
        if getattr(x, "ndim", 0) != 3 or x.shape[-1] % self.head_dim:
            _checks.check_type("x", x, Tensor)
            raise ValueError(
                f"x must have shape (batch, len, heads * head_dim), head_dim={self.head_dim}, "
                f"got {tuple(x.shape)}"
            )
        batch, length, width = x.shape
        heads = x.view(batch, length, width // self.head_dim, self.head_dim)
        return heads.transpose(1, 2)

    def merge_heads(
        self, x: Shaped[Tensor, "batch heads len head_dim"]
    ) -> Shaped[Tensor, "batch len width"]:
        """Undo `split_heads`: (batch, heads, len, head_dim) -> (batch, len, heads * head_dim).

        Raises:
            TypeError: `x` is not a tensor.
            ValueError: `x` has another rank, or its last axis is not `head_dim`.

        Example:
            >>> attention, x = MultiHeadAttention(6, 3), torch.rand(2, 5, 6)
            >>> torch.equal(attention.merge_heads(attention.split_heads(x)), x)
            True
        """
        if getattr(x, "ndim", 0) != 4 or x.shape[-1] != self.head_dim:
            _checks.check_type("x", x, Tensor)
            raise ValueError(
                f"x must have shape (batch, heads, len, head_dim={self.head_dim}), got {tuple(x.shape)}"
            )
        return x.transpose(1, 2).flatten(2)

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> MultiHeadAttention:
        """Copy the weights of torch's own layer.

        The result takes (batch, len, embed_dim) whatever `layer.batch_first` is, and our masks: True = may
        attend, the inverse of torch's. Torch averages the weights over the heads unless told otherwise; we
        never do.

        Args:
            layer: an `nn.MultiheadAttention` without `add_bias_kv` and `add_zero_attn`.

        Returns:
            A layer of the same dtype, device and mode with its own copy of the weights.

        Raises:
            TypeError: `layer` is not an `nn.MultiheadAttention`.
            ValueError: `layer` adds a bias or a zero to the keys, which this layer cannot express.

        Example:
            >>> ours = MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 3, kdim=5, vdim=7))
            >>> ours.num_heads, ours.k_proj.weight.shape
            (3, torch.Size([6, 5]))
        """
        from mha_lib.conversion import _layer_from_torch

        return _layer_from_torch(cls, layer)

    def to_torch(self) -> nn.MultiheadAttention:
        """Copy into torch's own layer, which returns weights per head only with `average_attn_weights=False`.

        Torch's masks are inverted: True hides a key.

        Returns:
            `nn.MultiheadAttention` with `batch_first=True`, in the mode, dtype and device of this layer; what
            is frozen here is frozen there.

        Raises:
            ValueError: the layer has settings that torch's lacks: shared keys, a scale, softcap, window,
                scoring rule or rotary positions.

        Example:
            >>> MultiHeadAttention(6, 3, kdim=5).to_torch().num_heads
            3
        """
        from mha_lib.conversion import _layer_to_torch

        return _layer_to_torch(self)

    def extra_repr(self) -> str:
        """Say sizes and settings in the printed module."""
        said = {"embed_dim": self.embed_dim, "num_heads": self.num_heads}
        if self.num_kv_heads != self.num_heads:
            said["num_kv_heads"] = self.num_kv_heads
        said["head_dim"] = self.head_dim
        text = ", ".join(f"{name}={number}" for name, number in said.items())
        for name in ("scale", "softcap", "window", "score"):
            setting = getattr(self, name)
            # Modules and parameters are printed by themselves.
            if setting is not None and not isinstance(setting, (nn.Module, Tensor)):
                text += f", {name}={getattr(setting, '__name__', setting)}"
        return text
