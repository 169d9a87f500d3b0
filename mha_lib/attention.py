"""Attention: a softmax turns scores into weights, and the output is the weighted mean of the values.

The mathematics comes first, then the functions that check their arguments and call it. If the weights are not
requested, torch's faster kernel is used (`_fast.py`).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_lib import _checks, _fast, masking
from mha_lib._fast import _Call
from mha_lib.scores import ScoringRule, _compose_rule, scaled_dot_product_score

_scaled_dot_product = _checks.unchecked(scaled_dot_product_score)
_HALF = (torch.float16, torch.bfloat16)
_Pair: TypeAlias = tuple[Tensor, Tensor]  # output, weights


def _read(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: _Call
) -> _Pair:
    """Attention as the chapters teach it: score, softmax over the visible keys, mean of the values."""
    score = call.rule
    if score is None:
        score = partial(_scaled_dot_product, scale=call.scale)
    scores = score(query, key)
    if call.bias is not None:
        scores = scores + _fast.fit_bias(call.bias, scores.dtype)
    softmax = partial(_softmax, sink=call.sink)
    # Their memory may be reused if no other code holds these scores. A compiler manages memory itself.
    own = call.rule is None and call.sink is None
    if own and not torch.compiler.is_compiling() and scores.numel() >= _fast.REUSE_FROM:
        softmax = partial(_fast.softmax, formula=_softmax)
    return _pool(scores, value, mask, call.dropout_p, softmax)


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


def _pool(
    scores: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    softmax: ScoringRule = _softmax,
) -> _Pair:
    """Mean of the values, weighted by the softmax of the scores; also returns the weights before dropout."""
    weights = softmax(scores, mask)
    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
    return kept @ value, weights


def _attend(
    query: Tensor, key: Tensor, value: Tensor, call: _Call
) -> tuple[Tensor, Tensor | None]:
    """Run the readable or the fast path."""
    rule, mask, device = call.rule, call.mask, query.device.type
    if rule is None and device != "meta" and torch.is_autocast_enabled(device):
        # Cast as autocast does, then switch it off, because it would round the scores too.
        dtype, inputs = torch.get_autocast_dtype(device), (query, key, value)
        narrow = (x if x.dtype == torch.float64 else x.to(dtype) for x in inputs)
        query, key, value = narrow
        with torch.autocast(device, enabled=False):
            return _attend(query, key, value, call)
    if mask is not None and not _fast.finite(key, value):
        key, value = _fast.clear_unseen(key, value, mask, call.is_causal)
    if rule is None and not call.need_weights and _fast.KERNEL:
        if torch.compiler.is_compiling():
            return _fast.attend(query, key, value, call), None
        # The kernel has no forward-mode derivatives. Torch raises this error, and the readable path has them.
        with suppress(NotImplementedError):
            return _fast.attend(query, key, value, call), None
    dtype = query.dtype
    if dtype in _HALF:
        query, key, value = query.float(), key.float(), value.float()
    if query.shape[:-2] != key.shape[:-2]:  # groups of query heads share a key head
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    if call.is_causal:
        sizes = (query.shape[-2], key.shape[-2])
        causal = masking._hide_future(*sizes, device=query.device)
        mask = causal if mask is None else mask & causal
    output, weights = _read(query, key.contiguous(), value, mask, call)
    return output.to(dtype), weights.to(dtype) if call.need_weights else None


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
    half = scores.dtype in _HALF
    wide = (scores.float(), value.float()) if half else (scores, value)
    output, weights = _pool(*wide, mask, dropout_p)
    return output.to(scores.dtype), weights.to(scores.dtype)


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
    Half-precision inputs are computed in float32 and returned in their own dtype. Only the path with weights
    can be differentiated twice. On a CPU, torch falls back to a tensor of all weights if `dropout_p` is above
    0, `attn_bias` requires grad, or the values are not as wide as the keys.

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
    rule = _compose_rule(None, scale, softcap)
    call = _Call(mask, bias, is_causal, dropout_p, need_weights, rule, scale)
    return _attend(query, key, value, call)
