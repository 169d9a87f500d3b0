"""Attention: a softmax turns scores into weights, and the weights give a mean of the values.

The mathematics comes first, then the functions that check their arguments and call it. If the weights are not
requested, torch's kernel computes the same output faster (`_fast.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_lib import _checks, _fast, masking
from mha_lib.scores import ScoringRule, _compose_rule, scaled_dot_product_score

_scaled_dot_product = _checks.unchecked(scaled_dot_product_score)
_HALF = (torch.float16, torch.bfloat16)


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the visible keys; a row without a visible key becomes zeros."""
    if mask is None:
        return scores.softmax(-1)
    # A row of only -inf would become NaN. Its scores are set to 0, and the mask makes its weights 0.
    fill = torch.where(mask.any(-1, keepdim=True), -torch.inf, 0.0)
    hidden = torch.where(mask, scores, fill)
    return hidden.softmax(-1, dtype=scores.dtype) * mask


def _pool(
    scores: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    softmax: ScoringRule = _softmax,
) -> tuple[Tensor, Tensor]:
    """Mean of the values, weighted by the softmax of the scores; and the weights, before dropout."""
    weights = softmax(scores, mask)
    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
    return kept @ value, weights


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    need_weights: bool,
    rule: ScoringRule | None = None,
    scale: float | Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention on either path. The arguments are already checked, mask and bias aligned with the scores."""
    device = query.device.type
    if rule is None and device != "meta" and torch.is_autocast_enabled(device):
        query, key, value = _fast.narrow(query, key, value)
        how = (is_causal, dropout_p, need_weights, None, scale)
        with torch.autocast(device, enabled=False):  # it would round the scores too
            return _attend(query, key, value, mask, bias, *how)
    if mask is not None and not _checks.finite(key, value):
        key, value = _clear_unseen(key, value, mask, is_causal)
    if rule is None and not need_weights and _fast.KERNEL:
        output = _fast.attend(
            query, key, value, mask, bias, is_causal, scale, dropout_p
        )
        return output, None

    # The readable path: score, mask, softmax, mean, as the chapters teach them.
    dtype = query.dtype
    if dtype in _HALF:
        query, key, value = query.float(), key.float(), value.float()
    if query.shape[:-2] != key.shape[:-2]:  # groups of query heads share a key head
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    if is_causal:
        causal = masking._hide_future(
            query.shape[-2], key.shape[-2], device=query.device
        )
        mask = causal if mask is None else mask & causal
    softmax = _softmax
    if rule is not None:
        scores = rule(query, key)
    else:
        scores = _scaled_dot_product(query, key.contiguous(), scale=scale)
        # No other code holds these scores. A compiler manages memory itself.
        if not torch.compiler.is_compiling() and scores.numel() >= _fast.REUSE_FROM:
            softmax = partial(_fast.softmax, formula=_softmax)
    if bias is not None:
        scores = scores + masking._fit_bias(bias, scores.dtype)
    output, weights = _pool(scores, value, mask, dropout_p, softmax)
    return output.to(dtype), weights.to(dtype) if need_weights else None


def _clear_unseen(
    key: Tensor, value: Tensor, mask: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Set to 0 what no query may see, so that not even a NaN there reaches a result or a gradient."""
    if is_causal and mask.shape[-2] > 1:
        mask = mask & masking._hide_future(
            mask.shape[-2], key.shape[-2], device=mask.device
        )
    seen = mask if mask.shape[-2] == 1 else mask.any(-2, keepdim=True)
    seen = seen.transpose(-2, -1)
    if seen.ndim == 4 and seen.shape[1] > key.shape[1]:  # seen by any head of the group
        seen = seen.unflatten(1, (key.shape[1], -1)).any(2)
    # Unlike torch.where, this keeps the strides, on which torch's choice of a kernel depends.
    return key.masked_fill(~seen, 0.0), value.masked_fill(~seen, 0.0)


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
    _checks.check_pooling(scores, value, dropout_p)
    if mask is not None:
        mask = masking.align_mask(mask, scores.shape)
        # A NaN that no query may see would stay a NaN when it is multiplied by a weight of 0.
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

    With `need_weights` it is `attention_pooling` of `scaled_dot_product_score`, step by step. Without,
    torch's fused kernel computes the same, and the weights never exist as a tensor (Dao et al., 2022). Both
    paths obey the same mask. Half precision is computed in float32 and returned in its own dtype. Only the
    path with weights can be differentiated twice. On a CPU, torch falls back to a tensor of all weights where
    `dropout_p` is above 0, `attn_bias` requires grad, or values are not as wide as keys.

    What a key or a value holds never matters where no query may see the key, not even NaN or infinity. A NaN
    that a query does see is never hidden. If only some queries see it, the other rows are right as long as
    the NaN is in the key and weights are returned; torch's kernel may spread it to other rows.

    Args:
        query: (batch, q_len, d) or (batch, num_heads, q_len, d).
        key: (batch, k_len, d) or (batch, num_kv_heads, k_len, d). Where num_kv_heads divides num_heads,
            query heads share key heads in groups of neighbours (Ainslie et al., 2023).
        value: (batch, k_len, value_dim) or (batch, num_kv_heads, k_len, value_dim).
        attn_mask: bool, True = may attend, (q_len, k_len), (batch, q_len, k_len) or
            (batch, num_heads, q_len, k_len); axes of size 1 broadcast.
        attn_bias: finite numbers that are added to the scores, (q_len, k_len) or of the rank of the scores;
            axes of size 1 broadcast. `alibi_bias` and `T5RelativeBias` return such biases.
        key_mask: bool, True = may attend, (batch, k_len), for all queries of a sample.
        valid_lens: number of visible keys, integers (batch,) or (batch, q_len).
        is_causal: hide the future; queries and keys end together, see `causal_mask`.
        scale: factor of the dot products, a number or a tensor of shape () or (num_heads, 1, 1), which may be
            learned; default 1 / √d.
        softcap: limit for the scores before the bias, see `softcap_scores`. The fused kernel has no softcap,
            so the readable path runs.
        dropout_p: probability that a weight is dropped. As in `F.dropout`, it is applied whenever it is
            above 0.
        need_weights: return the weights as well.

    Returns:
        (output, weights): output (batch, [num_heads,] q_len, value_dim); weights before dropout,
        (batch, [num_heads,] q_len, k_len), or None without `need_weights`. A query that may attend to nothing
        gives zeros.

    Raises:
        TypeError: wrong dtype of a tensor or mask.
        ValueError: shapes do not fit, `attn_mask` could also be meant as (batch, k_len), a length is outside
            0..k_len, `attn_bias` is not finite, `scale` or `softcap` is not positive, or `dropout_p` is
            outside 0..1.

    Example:
        >>> x = torch.ones(2, 3, 4)
        >>> output, weights = dot_product_attention(x, x, x, is_causal=True)
        >>> weights[0, 1].tolist()
        [0.5, 0.5, 0.0]
    """
    given = is_causal, dropout_p, scale, softcap
    _checks.check_attention(query, key, value, *given)
    shape = (*query.shape[:-1], key.shape[-2])
    mask = masking._combine_masks(shape, attn_mask, key_mask, valid_lens)
    bias = None if attn_bias is None else masking.align_bias(attn_bias, shape)
    rule = _compose_rule(None, scale, softcap)
    return _attend(
        query, key, value, mask, bias, is_causal, dropout_p, need_weights, rule, scale
    )


def __getattr__(name: str) -> Any:
    """Return the layer, which used to be defined here; importing it at the top would be circular."""
    if name != "MultiHeadAttention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mha_lib.multi_head import MultiHeadAttention

    return MultiHeadAttention
