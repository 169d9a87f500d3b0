"""Attention, from the softmax with a mask up to the multi-head layer.

Three short layers: `attention_pooling` turns scores into weights and a weighted mean, `dot_product_attention`
chooses between the readable path and torch's fused kernel, `MultiHeadAttention` projects, splits and merges.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib._checks import (
    check_float_tensor,
    check_leading_axes,
    check_positive_int,
    check_probability,
    check_same,
    check_same_kind,
    check_type,
)
from mha_lib.masking import align_mask, build_mask
from mha_lib.scores import scaled_dot_product_score


def masked_softmax(
    scores: Tensor, mask: Tensor | None = None, *, valid_lens: Tensor | None = None
) -> Tensor:
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
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if visible is None:
        return wide.softmax(-1).to(scores.dtype)
    visible = align_mask(visible, scores.shape, name="mask and valid_lens")
    # The smallest finite number loses against every visible score. In a row without one
    # it would give equal weights, not NaN as -inf would; the product with the mask then
    # makes them zero.
    weights = (
        wide.masked_fill(~visible, torch.finfo(wide.dtype).min).softmax(-1) * visible
    )
    return weights.to(scores.dtype)


def attention_pooling(
    scores: Tensor, value: Tensor, mask: Tensor | None = None, *, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    valid_lens: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    need_weights: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention, softmax(QKᵀ / √d) V (Vaswani et al., 2017, equation 1).

    With `need_weights` the readable composition of `scaled_dot_product_score` and `attention_pooling` runs;
    without, torch's fused kernel does, and the weights never exist as a tensor. Both obey the same mask.

    Args:
        query: (batch, q_len, d) or (batch, num_heads, q_len, d).
        key: (batch, k_len, d) or (batch, num_heads, k_len, d).
        value: (batch, k_len, value_dim) or (batch, num_heads, k_len, value_dim).
        attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
        valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
        is_causal: hide the future; queries and keys end together, see `causal_mask`.
        dropout_p: probability that a weight is dropped. As in `F.dropout`, it is applied whenever it is
            above 0.
        need_weights: return the weights as well.

    Returns:
        (output, weights): output (batch, [num_heads,] q_len, value_dim); weights before dropout,
        (batch, [num_heads,] q_len, k_len), or None without `need_weights`. A query that may attend to nothing
        gives zeros.

    Raises:
        TypeError: wrong dtype of a tensor or mask.
        ValueError: shapes do not fit, a length is outside 0..k_len, or `dropout_p` outside 0..1.

    Example:
        >>> x = torch.ones(2, 3, 4)
        >>> output, weights = dot_product_attention(x, x, x, is_causal=True)
        >>> weights[0, 1].tolist()
        [0.5, 0.5, 0.0]
    """
    _check_attention_inputs(query, key, value)
    check_probability("dropout_p", dropout_p)
    q_len, k_len = query.shape[-2], key.shape[-2]
    # Equal lengths and nothing else hidden: the kernel's own causal path means the same
    # and needs no mask.
    kernel_causal = (
        is_causal
        and not need_weights
        and q_len == k_len
        and attn_mask is None
        and valid_lens is None
    )
    mask = build_mask(
        q_len,
        k_len,
        attn_mask=attn_mask,
        valid_lens=valid_lens,
        is_causal=is_causal and not kernel_causal,
        device=query.device,
    )
    if mask is not None:
        mask = align_mask(
            mask, (*query.shape[:-1], k_len), name="attn_mask and valid_lens"
        )
    if need_weights:
        return attention_pooling(
            scaled_dot_product_score(query, key), value, mask, dropout_p=dropout_p
        )
    output = F.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, kernel_causal
    )
    return output, None


def _check_attention_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    names = ("query", "key", "value")
    check_float_tensor("query", query, axes="..., q_len, d")
    check_float_tensor("key", key, axes="..., k_len, d")
    check_float_tensor("value", value, axes="..., k_len, value_dim")
    check_same_kind(names, (query, key, value))
    check_same(
        "leading axes",
        names,
        [tuple(tensor.shape[:-2]) for tensor in (query, key, value)],
    )
    check_same("last axis", ("query", "key"), (query.shape[-1], key.shape[-1]))
    # torch's kernel reads past the key buffer where the values are longer, so this must
    # be refused here.
    check_same("length", ("key", "value"), (key.shape[-2], value.shape[-2]))


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

    Raises:
        TypeError: a width or count is not an int, `dropout` not a number.
        ValueError: one is not positive, `num_heads` does not divide `embed_dim`, `num_kv_heads` does not
            divide `num_heads`, or `dropout` is outside 0..1.

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
        self.embed_dim, self.kdim, self.vdim = embed_dim, kdim, vdim
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
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
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` to `key`, and return the mix of `value`.

        Args:
            query: (batch, q_len, embed_dim).
            key: (batch, k_len, kdim).
            value: (batch, k_len, vdim).
            attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
                (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
            valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
            is_causal: hide the future, see `causal_mask`.
            need_weights: return the weights; without them torch's fused kernel runs.

        Returns:
            (output, weights): (batch, q_len, embed_dim) and (batch, num_heads, q_len, k_len), or None for
            the weights.

        Raises:
            TypeError: wrong dtype of a tensor or mask.
            ValueError: shapes do not fit, or a length lies outside 0..k_len.
        """
        widths = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        for (name, width), tensor in zip(
            widths.items(), (query, key, value), strict=True
        ):
            length = "q_len" if name == "query" else "k_len"
            check_float_tensor(name, tensor, axes=f"batch, {length}, {width}")
            if tensor.shape[-1] != width:
                raise ValueError(
                    f"{name} must have shape (batch, {length}, {width}), got {tuple(tensor.shape)}"
                )
        weight = self.q_proj.weight
        check_same_kind((*widths, "the layer's weights"), (query, key, value, weight))
        check_same(
            "batch", tuple(widths), (query.shape[0], key.shape[0], value.shape[0])
        )
        check_same("length", ("key", "value"), (key.shape[1], value.shape[1]))
        batch, q_len, k_len = *query.shape[:2], key.shape[1]
        mask = build_mask(q_len, k_len, attn_mask=attn_mask, valid_lens=valid_lens)
        if mask is not None:
            mask = align_mask(
                mask,
                (batch, self.num_heads, q_len, k_len),
                name="attn_mask and valid_lens",
            )

        queries = self.split_heads(self.q_proj(query))
        keys = self.split_heads(self.k_proj(key))
        values = self.split_heads(self.v_proj(value))
        if self.num_kv_heads != self.num_heads:
            group = self.num_heads // self.num_kv_heads
            keys, values = (
                keys.repeat_interleave(group, dim=1),
                values.repeat_interleave(group, dim=1),
            )
        heads, weights = dot_product_attention(
            queries,
            keys,
            values,
            mask,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        output: Tensor = self.out_proj(self.merge_heads(heads))
        return output, weights

    def split_heads(self, x: Tensor) -> Tensor:
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
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
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
        ours = cls(
            layer.embed_dim,
            layer.num_heads,
            kdim=layer.kdim,
            vdim=layer.vdim,
            dropout=layer.dropout,
            bias=layer.in_proj_bias is not None,
        )
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
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}{grouped}, head_dim={self.head_dim}"
