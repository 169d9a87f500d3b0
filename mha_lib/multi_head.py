"""Multi-head attention as a layer: it projects, splits into heads, attends and merges."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor, nn

from mha_lib import _checks, masking
from mha_lib._checks import Device, DType, FactoryKwargs, Positions, refusal
from mha_lib._fast import AttentionOptions
from mha_lib.attention import _attend
from mha_lib.cache import KeyValueCache, _new_positions, _of_real_tokens
from mha_lib.conversion import _PROJECTIONS, _layer_from_torch, _layer_to_torch
from mha_lib.feed_forward import RMSNorm
from mha_lib.masking import _MaskArguments
from mha_lib.scores import ScoringRule, _compose_rule

# The settings that the printed module shows.
_SHOWN = ("embed_dim", "num_heads", "num_kv_heads", "head_dim", "scale", "softcap",
          "window", "score")  # fmt: skip


def _split(x: Tensor, dim: int) -> Tensor:
    return x.view(*x.shape[:2], x.shape[2] // dim, dim).transpose(1, 2)


def _check_rules(
    scale: float | Tensor | None,
    score: ScoringRule | None,
    rotary: Callable[[Tensor, Tensor], Tensor] | None,
    *,
    num_heads: int,
    head_dim: int,
) -> None:
    """Refuse rules of scoring and rotation that do not fit together, or not the heads."""
    _checks.check_function("score", score, "query and key")
    _checks.check_function("rotary", rotary, "x and positions")
    if scale is not None and score is not None:
        raise refusal("scale", "be None where score is given", f"scale={scale}")
    if isinstance(scale, Tensor) and scale.numel() not in (1, num_heads):
        rule = f"hold one number, or one for each of num_heads={num_heads}"
        raise refusal("scale", rule, scale)
    rotary_head_dim = getattr(rotary, "head_dim", head_dim)
    if rotary_head_dim != head_dim:
        rule = f"be made for head_dim={head_dim}"
        raise refusal("rotary", rule, f"one for {rotary_head_dim}")


def _projections_with_bias(bias: bool | Collection[str]) -> Collection[str]:
    """Return the names of the projections that have a bias, or raise the error of a wrong argument."""
    projections = ", ".join(_PROJECTIONS)
    # A number is refused, because 1 might mean True, or one projection.
    if not isinstance(bias, (bool, Collection)):
        raise _checks.wrong_type("bias", f"a bool or names of {projections}", bias)
    if isinstance(bias, bool):
        return _PROJECTIONS if bias else ()
    if not set(bias) <= set(_PROJECTIONS):
        rule = f"be a bool, or name some of {projections}"
        raise refusal("bias", rule, repr(bias))
    return bias


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own subspace (Vaswani et al., 2017, §3.2.2).

    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), output = [head_1, ..., head_h] W^O. The matrices of all
    heads are stacked in `q_proj`, `k_proj`, `v_proj`: head i owns rows i * head_dim up to (i + 1) * head_dim.

    Args:
        embed_dim: width of queries and of the output.
        num_heads: number of heads; divides `embed_dim` unless `head_dim` is given.
        num_kv_heads: number of key and value heads, each shared by num_heads / num_kv_heads query heads
            (grouped-query attention, Ainslie et al., 2023); default `num_heads`.
        head_dim: width of a head; default embed_dim / num_heads.
        kdim, vdim: widths of keys and of values; default `embed_dim`.
        dropout: probability that a weight is dropped, in training only.
        bias: whether the four projections have a bias; or the names of those that have one, such as
            ("q_proj", "k_proj", "v_proj").
        scale: factor for the dot products, a number or a tensor of shape () or (num_heads, 1, 1), which is
            learned if it is an `nn.Parameter`; default 1 / √head_dim.
        softcap: limit for the scores, see `softcap_scores`. It turns off the fused kernel, as `score` does.
        window: how many keys before and after its own position a query sees, (left, right), None for all, as
            in `sliding_window_mask`; it needs a mask of q_len * k_len numbers.
        score: a scoring rule other than the scaled dot product, such as `cosine_score`, or a module such as
            `AdditiveScore(head_dim, head_dim, hidden_dim)`, which becomes part of the layer. All heads share
            it. A function receives half precision as float32; a module computes in its own dtype.
        rotary: function rotary(x, positions) that rotates queries and keys by their positions after the split
            into heads, such as a `RotaryPositionalEncoding`. Queries and keys end together; with a cache,
            positions continue where the cache ends.
        qk_norm: whether to normalize the queries and keys of each head, before they are rotated, with an
            `RMSNorm` whose weight all heads share, so that larger queries and keys do not make the softmax
            sharper (Henry et al., 2020; in this form, Yang et al., 2025, §2).
        norm_eps: positive number that these norms add under the root.
        sink: whether each head learns one more score that takes part in every softmax but has no key and no
            value (OpenAI, 2025, §2.2). If no key matches, the weight goes there, so rows of weights sum
            to less than 1. It starts at 0, which makes the softmax "off by one" (Miller, 2023).
        device, dtype: device and dtype of the parameters; default torch's.

    Raises:
        TypeError: a width or count is not an int, `dropout` or `norm_eps` not a number, a flag not a bool, or
            `score` or `rotary` is not callable.
        ValueError: a width, a count or `norm_eps` is not positive, `num_heads` does not divide `embed_dim`,
            `num_kv_heads` does not divide `num_heads`, `dropout` is outside 0..1, `bias` names no projection,
            a side of `window` is negative, `scale` is given with `score`, or `head_dim` is not `rotary`'s.

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
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool | Collection[str] = False,
        scale: float | Float[Tensor, "..."] | None = None,
        softcap: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        score: ScoringRule | None = None,
        rotary: Callable[[Tensor, Tensor], Tensor] | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        sink: bool = False,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        self._set_sizes(embed_dim, num_heads, num_kv_heads, head_dim, kdim, vdim)
        self.dropout, self.softcap, self.window = dropout, softcap, window
        _checks.check_probability("dropout", dropout)
        _checks.check_settings(scale, softcap)
        _checks.check_flags(qk_norm=qk_norm, sink=sink)
        masking._check_window(window)
        _check_rules(scale, score, rotary, num_heads=num_heads, head_dim=self.head_dim)
        with_bias = _projections_with_bias(bias)
        self.score, self.rotary = score, rotary
        if isinstance(scale, Tensor) and not isinstance(scale, nn.Parameter):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale
        factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}
        self._make_projections(with_bias, factory_kwargs)
        new_norm = partial(RMSNorm, self.head_dim, eps=norm_eps, **factory_kwargs)
        self.q_norm = new_norm() if qk_norm else None
        self.k_norm = new_norm() if qk_norm else None
        self.sink = (
            nn.Parameter(torch.empty(num_heads, **factory_kwargs)) if sink else None
        )
        self.reset_parameters()

    def _set_sizes(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None,
        head_dim: int | None,
        kdim: int | None,
        vdim: int | None,
    ) -> None:
        """Check the sizes and their defaults, and store them as ints of Python, even those of numpy."""
        _checks.check_sizes(embed_dim=embed_dim, num_heads=num_heads)
        if head_dim is None:
            _checks.check_divisible(embed_dim=embed_dim, num_heads=num_heads)
            head_dim = embed_dim // num_heads
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        kdim, vdim = (embed_dim if x is None else x for x in (kdim, vdim))
        _checks.check_sizes(
            num_kv_heads=num_kv_heads, head_dim=head_dim, kdim=kdim, vdim=vdim
        )
        _checks.check_divisible(num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.embed_dim, self.num_heads = int(embed_dim), int(num_heads)
        self.num_kv_heads, self.head_dim = int(num_kv_heads), int(head_dim)
        self.kdim, self.vdim = int(kdim), int(vdim)

    def _make_projections(
        self, with_bias: Collection[str], factory_kwargs: FactoryKwargs
    ) -> None:
        """Make the four linear layers; those that `with_bias` names have a bias."""

        def linear(name: str, in_width: int, out_width: int) -> nn.Linear:
            return nn.Linear(in_width, out_width, name in with_bias, **factory_kwargs)

        width, kv_width = (
            heads * self.head_dim for heads in (self.num_heads, self.num_kv_heads)
        )
        self.q_proj = linear("q_proj", self.embed_dim, width)
        self.k_proj = linear("k_proj", self.kdim, kv_width)
        self.v_proj = linear("v_proj", self.vdim, kv_width)
        self.out_proj = linear("out_proj", width, self.embed_dim)

    def reset_parameters(self) -> None:
        """Draw matrices from Xavier's uniform law (Glorot & Bengio, 2010); biases and sinks become 0."""
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(proj.weight)
        for name, parameter in self.named_parameters():
            if name == "sink" or name.endswith("proj.bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        query: Float[Tensor, "*batch q_len embed_dim"],
        key: Float[Tensor, "*batch k_len kdim"] | None = None,
        value: Float[Tensor, "*batch k_len vdim"] | None = None,
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
            query: (batch, q_len, embed_dim). If none of the three inputs has a batch axis, they are one
                sample; results, masks and lengths then have no batch axis either.
            key: (batch, k_len, kdim); default `query`, so that `layer(x)` is self-attention.
            value: (batch, k_len, vdim); default `key`.
            attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
                (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
            attn_bias: finite numbers that are added to the scores, (q_len, k_len) or
                (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
            key_mask: bool, True = may attend, (batch, k_len), for all queries of a sample.
            valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
            is_causal: hide the future, see `causal_mask`.
            cache: keys and values of earlier tokens. Those of `key` and `value` are appended, and the queries
                attend to all of them: `k_len` of mask, bias and weights is then len(cache) + the length of
                `key`. `valid_lens`, (batch,), still counts the tokens of `key`; the cache stores it.
            need_weights: whether to return the weights; without them, torch's fused kernel runs, unless the
                layer has a `score` or a `softcap`.

        Returns:
            (output, weights): (batch, q_len, embed_dim), and (batch, num_heads, q_len, k_len) or None.

        Raises:
            TypeError: a tensor or mask has the wrong dtype, or `cache` is not a `KeyValueCache`.
            ValueError: shapes do not fit, a length lies outside 0..k_len, `attn_bias` is not finite, or
                `cache` belongs to a different layer or batch; a rejected cache is unchanged.
        """
        key = query if key is None else key
        value = key if value is None else value
        _checks.check_layer(self, query, key, value, is_causal)
        masks = _MaskArguments(attn_mask, attn_bias, key_mask, valid_lens)
        if unbatched := query.ndim == 2:  # from here on, a batch of this one sample
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            masks = masks.with_batch_axis()
        options, slots = self._options_of_call(
            query, key, masks, is_causal, cache, need_weights
        )

        queries = _split(self.q_proj(query), self.head_dim)  # (b, num_heads, q_len, d)
        keys = _split(self.k_proj(key), self.head_dim)  # (b, num_kv_heads, k_len, d)
        values = _split(self.v_proj(value), self.head_dim)  # like the keys
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)  # shapes as before
        if self.rotary is not None:
            # (q_len,) and (k_len,), or (b, q_len) and (b, k_len)
            positions = self._positions(queries, key.shape[1], masks, slots, cache)
            queries = self.rotary(queries, positions[0])  # (b, num_heads, q_len, d)
            keys = self.rotary(keys, positions[1])  # (b, num_kv_heads, k_len, d)
        if cache is not None:
            # (b, num_kv_heads, all_keys, d): all slots of the cache
            _checks.check_chunk(keys, values, cache._held)
            keys, values, _ = cache._extend(keys, values, slots)
        # (b, num_heads, q_len, d) and (b, num_heads, q_len, all_keys)
        heads, weights = _attend(queries, keys, values, options)
        heads = heads.transpose(1, 2).flatten(2)  # (b, q_len, num_heads * d)
        output = self.out_proj(heads)  # (b, q_len, embed_dim)
        if unbatched:
            return output[0], None if weights is None else weights[0]
        return output, weights

    def _options_of_call(
        self,
        query: Tensor,
        key: Tensor,
        masks: _MaskArguments,
        is_causal: bool,
        cache: KeyValueCache | None,
        need_weights: bool,
    ) -> tuple[AttentionOptions, Tensor | None]:
        """Check what the queries see; return the options, and which slots of the cache will be visible."""
        (batch, q_len, _), k_len = query.shape, key.shape[1]
        valid_lens, slots, positions, window = masks.valid_lens, None, None, None
        if cache is not None:
            _checks.check_type("cache", cache, KeyValueCache)
            sizes = (batch, self.num_kv_heads, k_len, self.head_dim)
            slots, valid_lens = cache._seen(sizes, valid_lens, key.device), None
            k_len += len(cache)
            if q_len > k_len and self.rotary is not None:
                rule = "not be longer than all keys where rotary is used with a cache"
                raise refusal("query", rule, f"q_len={q_len}, k_len={k_len}")
            if cache.visible is not None and (self.window, self.score) != (None, None):
                positions = cache.positions(q_len, key.shape[1])
        if self.window is not None:
            window = masking._window_mask(
                self.window, q_len, k_len, positions, query.device
            )
        shape = (batch, self.num_heads, q_len, k_len)
        mask = masking._combine_masks(
            shape,
            masks.attn_mask,
            masks.key_mask,
            valid_lens,
            slots=slots,
            window=window,
        )
        if (bias := masks.attn_bias) is not None:
            bias = masking.align_bias(bias, shape)
        score = None
        if self.score is not None or self.softcap is not None:
            score = _compose_rule(self.score, self.scale, self.softcap, positions)
        options = AttentionOptions(
            mask=mask,
            bias=bias,
            is_causal=is_causal,
            dropout_p=self.dropout * self.training,
            need_weights=need_weights,
            score=score,
            scale=self.scale,
            sink=self.sink,
        )
        return options, slots

    def _positions(
        self,
        queries: Tensor,
        k_len: int,
        masks: _MaskArguments,
        slots: Tensor | None,
        cache: KeyValueCache | None,
    ) -> Positions:
        """Positions of the queries (batch, num_heads, q_len, head_dim) and of `k_len` new keys."""
        positions = _new_positions(cache, queries.shape[2], k_len, queries.device)
        scaling = getattr(self.rotary, "scaling", None)
        if getattr(scaling, "kind", None) != "dynamic":
            return positions
        # What a window hides is text, and what a mask hides from every query is padding.
        past, lens = (0, masks.valid_lens) if cache is None else (len(cache), None)
        shape = (*queries.shape[:3], past + k_len)
        mask = masking._combine_masks(
            shape, masks.attn_mask, masks.key_mask, lens, slots=slots
        )
        if mask is None:
            return positions
        hidden = masks.attn_mask is not None or masks.key_mask is not None
        if hidden and cache is not None and cache._forgotten is not None:
            rule = "hold all tokens where a mask hides padding from dynamic scaling"
            raise refusal("cache", rule, "one that has forgotten some")
        return _of_real_tokens(positions, mask, cache)

    def split_heads(
        self, x: Shaped[Tensor, "batch len width"]
    ) -> Shaped[Tensor, "batch heads len head_dim"]:
        """Split the last axis into heads: (batch, len, heads * head_dim) -> (batch, heads, len, head_dim).

        Raises:
            TypeError, ValueError: `x` is not a tensor, or not of shape (batch, len, heads * head_dim).

        Example:
            >>> MultiHeadAttention(6, 3).split_heads(torch.arange(6).view(1, 1, 6)).tolist()
            [[[[0, 1]], [[2, 3]], [[4, 5]]]]
        """
        dim = self.head_dim
        if getattr(x, "ndim", 0) != 3 or x.shape[-1] % dim:
            _checks.check_type("x", x, Tensor)
            rule = f"have shape (batch, len, heads * head_dim), head_dim={dim}"
            raise refusal("x", rule, x)
        return _split(x, dim)

    def merge_heads(
        self, x: Shaped[Tensor, "batch heads len head_dim"]
    ) -> Shaped[Tensor, "batch len width"]:
        """Undo `split_heads`: (batch, heads, len, head_dim) -> (batch, len, heads * head_dim).

        Raises:
            TypeError, ValueError: `x` is not a tensor, or not of shape (batch, heads, len, head_dim).

        Example:
            >>> attention, x = MultiHeadAttention(6, 3), torch.rand(2, 5, 6)
            >>> torch.equal(attention.merge_heads(attention.split_heads(x)), x)
            True
        """
        if getattr(x, "ndim", 0) != 4 or x.shape[-1] != self.head_dim:
            _checks.check_type("x", x, Tensor)
            rule = f"have shape (batch, heads, len, head_dim={self.head_dim})"
            raise refusal("x", rule, x)
        return x.transpose(1, 2).flatten(2)

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> MultiHeadAttention:
        """Copy the weights of torch's own layer.

        The result has the same dtype, device and mode. Its inputs are (batch, len, embed_dim) whatever
        `layer.batch_first` is, and in its masks True means may attend, the inverse of torch's masks. It never
        averages the weights over the heads, which torch does by default.

        Raises:
            TypeError: `layer` is not an `nn.MultiheadAttention`.
            ValueError: `layer` appends a bias or a zero to the keys, which this layer does not support.

        Example:
            >>> ours = MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 3, kdim=5, vdim=7))
            >>> ours.num_heads, ours.k_proj.weight.shape
            (3, torch.Size([6, 5]))
        """
        return _layer_from_torch(cls, layer)

    def to_torch(self) -> nn.MultiheadAttention:
        """Copy into torch's own layer, which returns weights per head only with `average_attn_weights=False`.

        The copy has `batch_first=True` and the mode, dtype and device of this layer; frozen parameters stay
        frozen. Its masks are inverted: True hides a key.

        Raises:
            ValueError: this layer has a setting that torch's lacks: shared keys, a scale, softcap, window,
                scoring rule or rotary positions.

        Example:
            >>> MultiHeadAttention(6, 3, kdim=5).to_torch().num_heads
            3
        """
        return _layer_to_torch(self)

    def extra_repr(self) -> str:
        """Show sizes and settings in the printed module."""
        settings = {name: getattr(self, name) for name in _SHOWN}
        if self.num_kv_heads == self.num_heads:
            del settings["num_kv_heads"]
        settings["sink"] = None if self.sink is None else True
        # Torch prints modules and parameters itself.
        return ", ".join(
            f"{name}={getattr(setting, '__name__', setting)}"
            for name, setting in settings.items()
            if setting is not None and not isinstance(setting, (nn.Module, Tensor))
        )
