"""Attention, from the softmax with a mask up to the multi-head layer.

Three short layers: `attention_pooling` turns scores into weights and a weighted mean, `dot_product_attention`
chooses between the readable path and torch's fused kernel, `MultiHeadAttention` projects, splits and merges.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor, nn

from mha_lib._checks import (
    check_float_tensor,
    check_leading_axes,
    check_positive,
    check_positive_int,
    check_probability,
    check_same,
    check_same_kind,
    check_type,
    check_width,
)
from mha_lib._paths import ScoringRule, attend, softmax, widen
from mha_lib.cache import KeyValueCache
from mha_lib.masking import align_bias, align_mask, build_mask
from mha_lib.positional import RotaryPositionalEncoding, ShawScore


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    valid_lens: Integer[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Softmax over the keys that a query may attend to.

    A query that may attend to nothing gets a row of exact zeros, in the gradient too. `scores` is not
    modified. Half precision is computed in float32 and returned in its own dtype.

    Args:
        scores: (..., q_len, k_len).
        mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len).
        valid_lens: integers (batch,) or (batch, q_len); combined with `mask` if both are given.

    Returns:
        Weights of the shape and dtype of `scores`; a row sums to 1, or to 0 where nothing is visible.

    Raises:
        TypeError: `scores` is not floating-point, `mask` not bool, `valid_lens` not integer.
        ValueError: a shape does not fit, or a length lies outside 0..k_len.

    Example:
        >>> masked_softmax(torch.zeros(2, 1, 4), valid_lens=torch.tensor([2, 0])).tolist()
        [[[0.5, 0.5, 0.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]]
    """
    check_float_tensor("scores", scores, axes="..., q_len, k_len")
    if mask is not None:
        mask = align_mask(mask, scores.shape)
    visible = build_mask(
        scores.shape[-2], scores.shape[-1], attn_mask=mask, valid_lens=valid_lens
    )
    if visible is not None:
        visible = align_mask(visible, scores.shape, name="mask and valid_lens")
    return softmax(widen(scores), visible).to(scores.dtype)


def attention_pooling(
    scores: Float[Tensor, "*batch q_len k_len"],
    value: Float[Tensor, "*#batch k_len value_dim"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    dropout_p: float = 0.0,
) -> tuple[
    Float[Tensor, "*batch q_len value_dim"], Float[Tensor, "*batch q_len k_len"]
]:
    """Mean of the values, weighted by the softmax of the scores.

    Args:
        scores: (..., q_len, k_len), from any scoring function.
        value: (..., k_len, value_dim).
        mask: bool, True = may attend, see `masked_softmax`.
        dropout_p: probability that a weight is dropped before the mean; the others grow by
            1 / (1 - dropout_p).

    Returns:
        (output, weights): (..., q_len, value_dim) and (..., q_len, k_len). The weights are those before
        dropout, so that their rows sum to 1.

    Raises:
        TypeError: a tensor is not floating-point, or `mask` is not bool.
        ValueError: lengths or shapes do not fit, or `dropout_p` is outside 0..1.

    Example:
        >>> output, weights = attention_pooling(torch.zeros(1, 2), torch.tensor([[1.0], [3.0]]))
        >>> output.item(), weights.tolist()
        (2.0, [[0.5, 0.5]])
    """
    check_float_tensor("scores", scores, axes="..., q_len, k_len")
    check_float_tensor("value", value, axes="..., k_len, value_dim")
    check_same_kind(("scores", "value"), (scores, value))
    check_same(
        "number of keys", ("scores", "value"), (scores.shape[-1], value.shape[-2])
    )
    check_leading_axes(("scores", "value"), (scores, value))
    check_probability("dropout_p", dropout_p)
    weights = masked_softmax(scores, mask)
    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
    return kept @ value, weights


def dot_product_attention(
    query: Float[Tensor, "*batch q_len d"],
    key: Float[Tensor, "*kv_batch k_len d"],
    value: Float[Tensor, "*kv_batch k_len value_dim"],
    attn_mask: Bool[Tensor, "..."] | None = None,
    *,
    attn_bias: Float[Tensor, "..."] | None = None,
    valid_lens: Integer[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = True,
) -> tuple[
    Float[Tensor, "*batch q_len value_dim"], Float[Tensor, "*batch q_len k_len"] | None
]:
    """Scaled dot-product attention, softmax(QKᵀ / √d) V (Vaswani et al., 2017, equation 1).

    With `need_weights` the readable composition of `scaled_dot_product_score` and `attention_pooling` runs;
    without, torch's fused kernel does, and the weights never exist as a tensor (Dao et al., 2022). Both obey
    the same mask. Half precision is computed in float32 and returned in its own dtype. Only the readable
    path can be differentiated twice. On a CPU, torch falls back to a tensor of all weights where `dropout_p`
    is above 0, `attn_bias` requires grad, or values are not as wide as keys.

    Args:
        query: (batch, q_len, d) or (batch, num_heads, q_len, d).
        key: (batch, k_len, d) or (batch, num_kv_heads, k_len, d). Where num_kv_heads divides num_heads,
            query heads share key heads in groups of neighbours (Ainslie et al., 2023).
        value: (batch, k_len, value_dim) or (batch, num_kv_heads, k_len, value_dim).
        attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
        attn_bias: finite numbers that are added to the scores, (q_len, k_len) or of the rank of the scores;
            axes of size 1 broadcast. `alibi_bias` and `T5RelativeBias` give such.
        valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
        is_causal: hide the future; queries and keys end together, see `causal_mask`.
        scale: factor of the dot products; default 1 / √d.
        softcap: limit for the scores before the bias, see `softcap_scores`. The fused kernel has none, so the
            readable path runs.
        dropout_p: probability that a weight is dropped. As in `F.dropout`, it is applied whenever it is
            above 0.
        need_weights: return the weights as well.

    Returns:
        (output, weights): output (batch, [num_heads,] q_len, value_dim); weights before dropout,
        (batch, [num_heads,] q_len, k_len), or None without `need_weights`. A query that may attend to nothing
        gives zeros.

    Raises:
        TypeError: wrong dtype of a tensor or mask.
        ValueError: shapes do not fit, a length is outside 0..k_len, `attn_bias` is not finite, `scale` or
            `softcap` is not positive, or `dropout_p` is outside 0..1.

    Example:
        >>> x = torch.ones(2, 3, 4)
        >>> output, weights = dot_product_attention(x, x, x, is_causal=True)
        >>> weights[0, 1].tolist()
        [0.5, 0.5, 0.0]
    """
    _check_attention_inputs(query, key, value)
    check_type("is_causal", is_causal, bool)
    check_probability("dropout_p", dropout_p)
    for name, factor in (("scale", scale), ("softcap", softcap)):
        if factor is not None:
            check_positive(name, factor)
    shape = (*query.shape[:-1], key.shape[-2])
    return attend(
        query,
        key,
        value,
        _place_mask(shape, attn_mask, valid_lens),
        None if attn_bias is None else align_bias(attn_bias, shape),
        is_causal=is_causal,
        scale=scale,
        softcap=softcap,
        dropout_p=dropout_p,
        need_weights=need_weights,
    )


def _check_attention_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    names = ("query", "key", "value")
    check_float_tensor("query", query, axes="..., q_len, d")
    check_float_tensor("key", key, axes="..., k_len, d")
    check_float_tensor("value", value, axes="..., k_len, value_dim")
    check_same_kind(names, (query, key, value))
    leading = [tuple(tensor.shape[:-2]) for tensor in (query, key, value)]
    if query.ndim == key.ndim == value.ndim == 4 and query.shape[1] != key.shape[1]:
        check_same("batch and heads", ("key", "value"), leading[1:])
        check_same("batch", ("query", "key"), (query.shape[0], key.shape[0]))
        if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
            raise ValueError(
                "the heads of query must be a multiple of those of key and value, "
                f"got query: {leading[0]}, key: {leading[1]}"
            )
    else:
        check_same("leading axes", names, leading)
    check_same("last axis", ("query", "key"), (query.shape[-1], key.shape[-1]))
    # torch's kernel reads past the key buffer where the values are longer, so this must
    # be refused here.
    check_same("length", ("key", "value"), (key.shape[-2], value.shape[-2]))


def _place_mask(
    shape: tuple[int, ...], attn_mask: Tensor | None, valid_lens: Tensor | None
) -> Tensor | None:
    """What both hide of scores of `shape`, so that it broadcasts."""
    mask = build_mask(shape[-2], shape[-1], attn_mask=attn_mask, valid_lens=valid_lens)
    if mask is None:
        return None
    return align_mask(mask, shape, name="attn_mask and valid_lens")


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own subspace (Vaswani et al., 2017, §3.2.2).

    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), output = [head_1, ..., head_h] W^O. The matrices of all
    heads are stacked in `q_proj`, `k_proj`, `v_proj`: head i owns rows i * head_dim up to (i + 1) * head_dim.

    Args:
        embed_dim: width of queries and of the output.
        num_heads: number of heads; divides `embed_dim`. It does not change the number of parameters.
        num_kv_heads: number of key and value heads, each shared by num_heads / num_kv_heads query heads
            (grouped-query attention, Ainslie et al., 2023); default `num_heads`.
        kdim: width of keys; default `embed_dim`.
        vdim: width of values; default `embed_dim`.
        dropout: probability that a weight is dropped, in training only.
        bias: add a bias in the four projections.
        score: another scoring rule than the scaled dot product, such as `cosine_score`, or a module such as
            `AdditiveScore(head_dim, head_dim, hidden_dim)`, which then belongs to the layer. All heads share
            it, and the readable path runs. A function gets half precision as float32, a module computes in
            its own dtype.
        rotary: turns queries and keys by their positions after they are split into heads. Queries and keys
            end together; with a cache, positions go on where it ends.

    Raises:
        TypeError: a width or count is not an int, `dropout` not a number, `score` cannot be called, or
            `rotary` is no `RotaryPositionalEncoding`.
        ValueError: one is not positive, `num_heads` does not divide `embed_dim`, `num_kv_heads` does not
            divide `num_heads`, `dropout` is outside 0..1, or `rotary` was made for another `head_dim`.

    Example:
        >>> attention = MultiHeadAttention(embed_dim=100, num_heads=5)
        >>> query, memory = torch.ones(2, 4, 100), torch.ones(2, 6, 100)
        >>> output, weights = attention(query, memory, memory, valid_lens=torch.tensor([3, 2]))
        >>> output.shape, weights.shape
        (torch.Size([2, 4, 100]), torch.Size([2, 5, 4, 6]))
    """

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
        score: ScoringRule | None = None,
        rotary: RotaryPositionalEncoding | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        kdim = embed_dim if kdim is None else kdim
        vdim = embed_dim if vdim is None else vdim
        sizes = {
            "embed_dim": embed_dim,
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "kdim": kdim,
            "vdim": vdim,
        }
        for name, size in sizes.items():
            check_positive_int(name, size)
        if embed_dim % num_heads:
            raise ValueError(
                f"embed_dim must be divisible by num_heads, got embed_dim={embed_dim}, num_heads={num_heads}"
            )
        if num_heads % num_kv_heads:
            raise ValueError(
                "num_heads must be divisible by num_kv_heads, "
                f"got num_heads={num_heads}, num_kv_heads={num_kv_heads}"
            )
        check_probability("dropout", dropout)
        if score is not None and not callable(score):
            raise TypeError(
                f"score must be a function of query and key, got {type(score).__name__}: {score!r}"
            )
        head_dim = embed_dim // num_heads
        if rotary is not None:
            check_type("rotary", rotary, RotaryPositionalEncoding)
            if rotary.head_dim != head_dim:
                raise ValueError(
                    f"rotary must be made for head_dim={head_dim}, got one for {rotary.head_dim}"
                )
        self.embed_dim, self.kdim, self.vdim = embed_dim, kdim, vdim
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.score = score
        self.rotary = rotary
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(kdim, num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(vdim, num_kv_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from Xavier's uniform distribution (Glorot & Bengio, 2010), zero the biases."""
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(proj.weight)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)

    def forward(
        self,
        query: Float[Tensor, "batch q_len embed_dim"],
        key: Float[Tensor, "batch k_len kdim"],
        value: Float[Tensor, "batch k_len vdim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        valid_lens: Integer[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
        need_weights: bool = True,
    ) -> tuple[
        Float[Tensor, "batch q_len embed_dim"],
        Float[Tensor, "batch num_heads q_len all_keys"] | None,
    ]:
        """Attend from `query` to `key`, and return the mix of `value`.

        Args:
            query: (batch, q_len, embed_dim).
            key: (batch, k_len, kdim).
            value: (batch, k_len, vdim).
            attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
                (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
            attn_bias: finite numbers that are added to the scores, (q_len, k_len) or
                (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
            valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
            is_causal: hide the future, see `causal_mask`.
            cache: keys and values of earlier tokens. Those of `key` and `value` are appended, and attention
                runs over all: `k_len` of mask, bias and weights is then len(cache) + the length of `key`.
                `valid_lens`, (batch,), still counts the tokens of `key`; the cache remembers it.
            need_weights: return the weights; without them torch's fused kernel runs.

        Returns:
            (output, weights): (batch, q_len, embed_dim) and (batch, num_heads, q_len, k_len), or None for
            the weights.

        Raises:
            TypeError: wrong dtype of a tensor or mask, or `cache` is no `KeyValueCache`.
            ValueError: shapes do not fit, a length lies outside 0..k_len, `attn_bias` is not finite, or
                `cache` belongs to another layer or batch; a cache that is refused stays as it was.
        """
        self._check_inputs(query, key, value)
        check_type("is_causal", is_causal, bool)
        if cache is not None:
            check_type("cache", cache, KeyValueCache)
            sizes = (query.shape[0], self.num_kv_heads, key.shape[1], self.head_dim)
            cache.check_fits(sizes, valid_lens)
            self._check_positions(query, key, cache, valid_lens)
        past = 0 if cache is None else len(cache)
        shape = (query.shape[0], self.num_heads, query.shape[1], past + key.shape[1])
        # Beside a cache, valid_lens is about the new tokens alone, and the cache's affair.
        lens = valid_lens if cache is None else None
        mask = _place_mask(shape, attn_mask, lens)
        bias = None if attn_bias is None else align_bias(attn_bias, shape)

        queries = self.split_heads(self.q_proj(query))
        keys = self.split_heads(self.k_proj(key))
        values = self.split_heads(self.v_proj(value))
        if self.rotary is not None:
            queries, keys = self._turn(self.rotary, queries, keys, cache)
        if cache is not None:
            keys, values, real = cache.append(keys, values, valid_lens=valid_lens)
            if real is not None:
                real = real[:, None, None, :]
                mask = real if mask is None else mask & real
        heads, weights = attend(
            queries,
            keys,
            values,
            mask,
            bias,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
            score=self.score,
        )
        output: Tensor = self.out_proj(self.merge_heads(heads))
        return output, weights

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        weight = self.out_proj.weight
        check_width("query", query, self.embed_dim, axes="batch, q_len, embed_dim")
        # In self-attention all three are one tensor, which is looked at once.
        if key is value is query and self.embed_dim == self.kdim == self.vdim:
            check_same_kind(("query", "the layer's weights"), (query, weight))
            return
        check_width("key", key, self.kdim, axes="batch, k_len, kdim")
        check_width("value", value, self.vdim, axes="batch, k_len, vdim")
        names, tensors = ("query", "key", "value"), (query, key, value)
        check_same_kind((*names, "the layer's weights"), (*tensors, weight))
        check_same("batch", names, [tensor.shape[0] for tensor in tensors])
        check_same("length", names[1:], [tensor.shape[1] for tensor in tensors[1:]])

    def _check_positions(
        self,
        query: Tensor,
        key: Tensor,
        cache: KeyValueCache,
        valid_lens: Tensor | None,
    ) -> None:
        total = len(cache) + key.shape[1]
        if self.rotary is not None and query.shape[1] > total:
            raise ValueError(
                "query must not be longer than all keys where rotary meets a cache, "
                f"got q_len={query.shape[1]}, k_len={total}"
            )
        ragged = valid_lens is not None or cache.visible is not None
        if ragged and isinstance(self.score, ShawScore):
            raise ValueError(
                "valid_lens cannot go with a cache and ShawScore, whose distances would count padding, "
                f"got valid_lens={valid_lens}"
            )

    @staticmethod
    def _turn(
        rotary: RotaryPositionalEncoding,
        queries: Tensor,
        keys: Tensor,
        cache: KeyValueCache | None,
    ) -> tuple[Tensor, Tensor]:
        """Turn queries and keys by their positions: they end together, and begin where the cache ends."""
        q_len, new = queries.shape[2], keys.shape[2]
        longest = max(q_len, new)
        positions = torch.arange(longest, device=queries.device)
        if cache is not None and cache.visible is not None:
            # Each sample has its own end.
            positions = positions + (cache.lens.unsqueeze(1) + new - longest)
        elif cache is not None:
            positions = positions + (len(cache) + new - longest)
        first_query = positions.shape[-1] - q_len
        first_key = positions.shape[-1] - new
        return (
            rotary(queries, positions[..., first_query:]),
            rotary(keys, positions[..., first_key:]),
        )

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
        check_type("x", x, Tensor)
        if x.ndim != 3 or x.shape[-1] % self.head_dim:
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
        check_type("x", x, Tensor)
        if x.ndim != 4 or x.shape[-1] != self.head_dim:
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
        check_type("layer", layer, nn.MultiheadAttention)
        if layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn:
            raise ValueError(
                "layer must have add_bias_kv=False and add_zero_attn=False, got one that is True"
            )
        with torch.device("meta"):  # nothing is drawn
            ours = cls(
                layer.embed_dim,
                layer.num_heads,
                kdim=layer.kdim,
                vdim=layer.vdim,
                dropout=layer.dropout,
                bias=layer.in_proj_bias is not None,
            )
        ours.to_empty(device=layer.out_proj.weight.device)
        weights: Sequence[Tensor] = (
            layer.q_proj_weight,
            layer.k_proj_weight,
            layer.v_proj_weight,
        )
        if layer._qkv_same_embed_dim:
            weights = layer.in_proj_weight.chunk(3)
        ours.to(layer.out_proj.weight)
        with torch.no_grad():
            for proj, weight in zip(
                (ours.q_proj, ours.k_proj, ours.v_proj), weights, strict=True
            ):
                proj.weight.copy_(weight)
            ours.out_proj.weight.copy_(layer.out_proj.weight)
            if layer.in_proj_bias is not None:
                for proj, bias in zip(
                    (ours.q_proj, ours.k_proj, ours.v_proj),
                    layer.in_proj_bias.chunk(3),
                    strict=True,
                ):
                    proj.bias.copy_(bias)
                ours.out_proj.bias.copy_(layer.out_proj.bias)
        return ours.train(layer.training)

    def extra_repr(self) -> str:
        """Say the sizes in the printed module."""
        grouped = (
            f", num_kv_heads={self.num_kv_heads}"
            if self.num_kv_heads != self.num_heads
            else ""
        )
        rule = self.score
        if rule is None or isinstance(rule, nn.Module):
            named = ""  # a module is printed by itself
        else:
            named = f", score={getattr(rule, '__name__', rule)}"
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}{grouped}, "
            f"head_dim={self.head_dim}{named}"
        )
