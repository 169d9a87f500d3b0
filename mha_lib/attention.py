"""Attention: a softmax turns scores into weights, and the output is the weighted mean of the values.

The formula comes first; then the public functions, which check their arguments and call it. At the end,
`_attend` decides how a call is computed: by this formula or, without weights, by torch's kernel (`_fast.py`).
"""

from __future__ import annotations

from contextlib import suppress

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_lib import _checks, _fast, masking
from mha_lib._fast import AttentionOptions, MaskedSoftmax
from mha_lib.scores import _compose_rule, scaled_dot_product_score

_scaled_dot_product = _checks.unchecked(scaled_dot_product_score)
_HALF = (torch.float16, torch.bfloat16)


def _formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: AttentionOptions,
    softmax: MaskedSoftmax,
) -> tuple[Tensor, Tensor]:
    """Attention as the chapters teach it: score, hide what the mask hides, softmax, weighted mean.

    `softmax` is the function below, or one that computes the same in less memory.
    """
    if options.score is None:
        scores = _scaled_dot_product(query, key, scale=options.scale)
    else:
        scores = options.score(query, key)  # (..., q_len, k_len)
    if options.bias is not None:
        scores = scores + _fast.fit_bias(options.bias, scores.dtype)
    weights = softmax(scores, mask, options.sink)  # (..., q_len, k_len)
    output = _weighted_mean(weights, value, options.dropout_p)
    return output, weights  # (..., q_len, value_dim), (..., q_len, k_len)


def _softmax(scores: Tensor, mask: Tensor | None, sink: Tensor | None = None) -> Tensor:
    """Softmax over the visible keys and the sink of each head; a row without a visible key becomes zeros."""
    if mask is not None:
        # A row of only -inf would become NaN, so its scores are set to 0, and the mask makes its weights 0.
        fill = torch.where(mask.any(-1, keepdim=True), -torch.inf, 0.0)
        scores = torch.where(mask, scores, fill)
    if sink is not None:  # one more score in each row, whose weight is not returned
        column = sink.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(-1, dtype=scores.dtype)
    weights = weights if sink is None else weights[..., :-1]
    return weights if mask is None else weights * mask


def _weighted_mean(weights: Tensor, value: Tensor, dropout_p: float) -> Tensor:
    """Mean of the values; of the weights, some may be dropped, and the others then grow in proportion."""
    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
    return kept @ value


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    valid_lens: Integer[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Softmax over the keys that a query may attend to.

    A query that may attend to nothing gets a row of exact zeros, in the gradient too; other rows sum to 1.
    `scores` is not modified; the weights have its shape and dtype. Half precision is computed in float32.

    Args:
        scores: (..., q_len, k_len).
        mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len).
        valid_lens: integers (batch,) or (batch, q_len); combined with `mask` if both are given.

    Raises:
        TypeError: `scores` is not floating-point, `mask` not bool, `valid_lens` not integer.
        ValueError: a shape does not fit, or a length lies outside 0..k_len.

    Example:
        >>> masked_softmax(torch.zeros(2, 1, 4), valid_lens=torch.tensor([2, 0])).tolist()
        [[[0.5, 0.5, 0.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]]
    """
    _checks.check_float_tensor("scores", scores, axes="..., q_len, k_len")
    visible = masking._combine_masks(scores.shape, None, None, valid_lens)
    if mask is not None:
        mask = masking.align_mask(mask, scores.shape)
        visible = mask if visible is None else mask & visible
    wide = scores.float() if scores.dtype in _HALF else scores
    return _softmax(wide, visible).to(scores.dtype)


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
        dropout_p: probability that a weight is set to 0; the others are multiplied by 1 / (1 - dropout_p).

    Returns:
        (output, weights): (..., q_len, value_dim) and, before dropout, (..., q_len, k_len).

    Raises:
        TypeError: a tensor is not floating-point, or `mask` is not bool.
        ValueError: lengths or shapes do not fit, or `dropout_p` is outside 0..1.

    Example:
        >>> output, weights = attention_pooling(torch.zeros(1, 2), torch.tensor([[1.0], [3.0]]))
        >>> output.item(), weights.tolist()
        (2.0, [[0.5, 0.5]])
    """
    names, tensors = ("scores", "value"), (scores, value)
    _checks.check_float_tensor("scores", scores, axes="..., q_len, k_len")
    _checks.check_float_tensor("value", value, axes="..., k_len, value_dim")
    _checks.check_same_kind(names, tensors)
    _checks.check_same("number of keys", names, (scores.shape[-1], value.shape[-2]))
    _checks.check_leading_axes(names, tensors)
    _checks.check_probability("dropout_p", dropout_p)
    if mask is not None:
        mask = masking.align_mask(mask, scores.shape)
        # A NaN that no query may see would survive a weight of 0, since 0 * NaN is NaN.
        value = torch.where(mask.any(-2).unsqueeze(-1), value, 0.0)
    dtype = scores.dtype
    if dtype in _HALF:
        scores, value = scores.float(), value.float()
    weights = _softmax(scores, mask)
    output = _weighted_mean(weights, value, dropout_p)
    return output.to(dtype), weights.to(dtype)


def dot_product_attention(
    query: Float[Tensor, "*batch q_len d"],
    key: Float[Tensor, "*kv_batch k_len d"],
    value: Float[Tensor, "*kv_batch k_len value_dim"],
    attn_mask: Bool[Tensor, "..."] | None = None,
    *,
    attn_bias: Float[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "batch k_len"] | None = None,
    valid_lens: Integer[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Tensor, "..."] | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = True,
) -> tuple[
    Float[Tensor, "*batch q_len value_dim"], Float[Tensor, "*batch q_len k_len"] | None
]:
    """Scaled dot-product attention, softmax(QKᵀ / √d) V (Vaswani et al., 2017, equation 1).

    With `need_weights`, it is `attention_pooling` of `scaled_dot_product_score`, step by step. Without it,
    torch's fused kernel computes the same output, and the weights never exist as a tensor (Dao et al., 2022).
    Half-precision inputs are computed in float32 and returned in their own dtype. The path with weights can
    be differentiated twice, the fused kernel only once. On a CPU, torch falls back to a tensor of all weights
    if `dropout_p` is above 0, `attn_bias` requires grad, or the values are not as wide as the keys.

    A key that no query may see never affects the result, even if it or its value contains NaN or infinity. A
    NaN that a query does see is never hidden. In torch's kernel, or in a value, it may spoil other rows too.

    Args:
        query: (batch, q_len, d) or (batch, num_heads, q_len, d).
        key: (batch, k_len, d) or (batch, num_kv_heads, k_len, d). If num_kv_heads divides num_heads, groups
            of neighbouring query heads share a key head (Ainslie et al., 2023).
        value: (batch, k_len, value_dim) or (batch, num_kv_heads, k_len, value_dim).
        attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
        attn_bias: finite numbers that are added to the scores, (q_len, k_len) or of the same rank as the
            scores; axes of size 1 broadcast. `alibi_bias` and `T5RelativeBias` return such biases.
        key_mask: bool, True = may attend, (batch, k_len), for all queries of a sample.
        valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
        is_causal: hide the future; queries and keys end together, see `causal_mask`.
        scale: factor for the dot products, a number or a tensor of shape () or (num_heads, 1, 1), which may
            be learned; default 1 / √d.
        softcap: limit for the scores before the bias, see `softcap_scores`; it turns off the fused kernel.
        dropout_p: probability that a weight is dropped; applied whenever it is above 0, as in `F.dropout`.
        need_weights: whether to return the weights as well.

    Returns:
        (output, weights): (batch, [num_heads,] q_len, value_dim) and (batch, [num_heads,] q_len, k_len),
        before dropout, or None without `need_weights`. For a query that sees nothing, both are zeros.

    Raises:
        TypeError: a tensor or mask has the wrong dtype.
        ValueError: shapes do not fit, a length is outside 0..k_len, `attn_bias` is not finite, `scale` or
            `softcap` is not positive, or `dropout_p` is outside 0..1.

    Example:
        >>> x = torch.ones(2, 3, 4)
        >>> output, weights = dot_product_attention(x, x, x, is_causal=True)
        >>> weights[0, 1].tolist()
        [0.5, 0.5, 0.0]
    """
    _checks.check_attention(query, key, value)
    _checks.check_type("is_causal", is_causal, bool)
    _checks.check_probability("dropout_p", dropout_p)
    _checks.check_settings(scale, softcap)
    shape = (*query.shape[:-1], key.shape[-2])
    mask = masking._combine_masks(shape, attn_mask, key_mask, valid_lens)
    bias = None if attn_bias is None else masking.align_bias(attn_bias, shape)
    options = AttentionOptions(
        mask=mask,
        bias=bias,
        is_causal=is_causal,
        dropout_p=dropout_p,
        need_weights=need_weights,
        score=_compose_rule(None, scale, softcap),
        scale=scale,
    )
    return _attend(query, key, value, options)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with the formula or, where nobody needs the weights, with torch's kernel."""
    mask, device, dtype = options.mask, query.device.type, query.dtype
    scaled_dot_product = options.score is None
    if scaled_dot_product and device != "meta" and torch.is_autocast_enabled(device):
        # Cast as autocast does, then switch it off, because it would round the scores too.
        lower = torch.get_autocast_dtype(device)
        narrow = (
            x if x.dtype == torch.float64 else x.to(lower) for x in (query, key, value)
        )
        query, key, value = narrow
        with torch.autocast(device, enabled=False):
            return _attend(query, key, value, options)
    if mask is not None and not _fast.finite(key, value):
        key, value = _fast.clear_unseen(key, value, mask, options.is_causal)
    if scaled_dot_product and not options.need_weights and _fast.KERNEL:
        if torch.compiler.is_compiling():
            return _fast.attend(query, key, value, options), None
        # The kernel has no forward-mode derivatives. Torch raises this error, and the formula has them.
        with suppress(NotImplementedError):
            return _fast.attend(query, key, value, options), None
    if dtype in _HALF:
        query, key, value = query.float(), key.float(), value.float()
    if query.shape[:-2] != key.shape[:-2]:  # groups of query heads share a key head
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    q_len, k_len = query.shape[-2], key.shape[-2]
    if options.is_causal:
        causal = masking._hide_future(q_len, k_len, device=query.device)
        mask = causal if mask is None else mask & causal
    softmax: MaskedSoftmax = _softmax
    # No other code holds the scores of a scaled dot product, so large ones become the weights in place. A
    # compiler manages memory itself.
    may_reuse = scaled_dot_product and not torch.compiler.is_compiling()
    if may_reuse and query.shape[:-1].numel() * k_len >= _fast.REUSE_FROM:
        softmax = _softmax_in_place
    key = key.contiguous()
    output, weights = _formula(query, key, value, mask, options, softmax)
    return output.to(dtype), weights.to(dtype) if options.need_weights else None


def _softmax_in_place(
    scores: Tensor, mask: Tensor | None, sink: Tensor | None
) -> Tensor:
    """Compute the softmax in the memory of the scores, which must not be needed afterwards."""
    return _fast.softmax(scores, mask, sink, formula=_softmax)
