"""The two paths of attention: one that can be read, one that is fast.

`attend` chooses, in this one place. Its callers have checked all arguments and put mask and bias in place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from mha_lib._checks import (
    all_true,
    check_float_tensor,
    check_same,
    may_hold_zero,
    surely_finite,
)
from mha_lib.masking import build_mask
from mha_lib.scores import scaled_dot_product_score, softcap_scores

# (query, key) -> scores, (..., q_len, d) x (..., k_len, d) -> (..., q_len, k_len)
ScoringRule: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# With fewer keys than a processor adds at once, torch's CPU kernel takes a row whose
# scores are all NaN for a hidden one and returns zeros; given a mask, it does not.
_KERNEL_KEEPS_NAN_FROM = 16


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    *,
    is_causal: bool,
    dropout_p: float,
    need_weights: bool,
    scale: float | None = None,
    softcap: float | None = None,
    score: ScoringRule | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Choose the path, in this one place. All arguments are checked, mask and bias aligned."""
    device = query.device.type
    narrowed = score is None and device != "meta" and torch.is_autocast_enabled(device)
    if narrowed:
        # What autocast would do to the kernel's inputs, and nothing else: it would also
        # round the scores and the bias to half precision.
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (
            x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value)
        )
    with torch.autocast(device, enabled=False) if narrowed else nullcontext():
        if need_weights or score is not None or softcap is not None:
            output, weights = _readable(
                query,
                key,
                value,
                mask,
                bias,
                is_causal=is_causal,
                dropout_p=dropout_p,
                score=score,
                scale=scale,
                softcap=softcap,
            )
            return output, weights if need_weights else None
        output = _fused(
            query,
            key,
            value,
            mask,
            bias,
            is_causal=is_causal,
            dropout_p=dropout_p,
            scale=scale,
        )
        return output, None


def _fit(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias in another dtype; what is too large for it becomes its largest number, not infinite."""
    if bias.dtype == dtype:
        return bias
    limits = torch.finfo(dtype)
    wide = bias.to(torch.promote_types(bias.dtype, dtype))
    return wide.clamp(limits.min, limits.max).to(dtype)


def _readable(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    *,
    is_causal: bool,
    dropout_p: float,
    score: ScoringRule | None,
    scale: float | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Score and pool, as the chapters teach, without a second round of checks."""
    shape = (*query.shape[:-1], key.shape[-2])
    mask = build_mask(
        *shape[-2:], attn_mask=mask, is_causal=is_causal, device=query.device
    )
    if query.shape[:-2] != key.shape[:-2]:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    dtype = query.dtype
    if score is None:
        # The product copies keys that are not contiguous, and more slowly.
        query, key = widen(query), widen(key).contiguous()
        scores = scaled_dot_product_score(query, key, scale=scale)
    else:  # a rule of the user's; a module has a dtype of its own
        if not isinstance(score, nn.Module):
            query, key = widen(query), widen(key)
        scores = score(query, key)
        check_float_tensor("score(query, key)", scores, axes="..., q_len, k_len")
        names = ("score(query, key)", "the weights")
        check_same("shape", names, (tuple(scores.shape), shape))
        scores = widen(scores)
    if softcap is not None:
        scores = softcap_scores(scores, softcap)
    if bias is not None:
        scores = scores + _fit(bias, scores.dtype)
    # The product above is nobody else's, what a rule of the user's returns may be.
    weights = softmax(scores, mask, owned=score is None)
    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
    return (kept @ widen(value)).to(dtype), weights.to(dtype)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    *,
    is_causal: bool,
    dropout_p: float,
    scale: float | None,
) -> Tensor:
    """One call of torch's kernel, and what it does not do by itself."""
    headless = query.ndim == 3
    if headless:  # without a head axis, torch would make a tensor of all weights
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        mask, bias = (
            x if x is None or x.ndim == 2 else x.unsqueeze(1) for x in (mask, bias)
        )
    q_len, k_len = query.shape[-2], key.shape[-2]
    # Equal lengths and nothing else hidden: the kernel's own causal path means the same
    # and needs no mask.
    kernel_causal = False  # decided by an if, so that a compiler settles it
    if is_causal and mask is None and bias is None and q_len == k_len:
        kernel_causal = True
    mask = build_mask(
        q_len,
        k_len,
        attn_mask=mask,
        is_causal=is_causal and not kernel_causal,
        device=query.device,
    )
    on_cpu = query.device.type == "cpu"
    if bias is not None:
        # On a CPU the kernel takes a bias that is more precise than half-precision
        # queries, elsewhere it does not.
        bias = _fit(bias, widen(query).dtype if on_cpu else query.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)

    kernel = partial(
        F.scaled_dot_product_attention,
        query,
        key,
        value,
        dropout_p=dropout_p,
        scale=scale,
        enable_gqa=query.shape[:-2] != key.shape[:-2],
    )
    output = kernel(attn_mask=mask, is_causal=kernel_causal)
    if on_cpu and mask is None and dropout_p == 0:
        if torch.compiler.is_compiling():
            # No branch on a length, which would tie a program to it.
            lost = _nan_rows(query, key, is_causal=kernel_causal)
            output = output.masked_fill(lost, torch.nan)
        elif k_len < _KERNEL_KEEPS_NAN_FROM and may_hold_zero(output):
            mask = query.new_ones(q_len, k_len, dtype=torch.bool)
            output = kernel(attn_mask=mask.tril() if kernel_causal else mask)
    if output.requires_grad and not torch.compiler.is_compiling():
        node = output.grad_fn
        if node is not None and node.name().startswith("ScaledDotProduct"):
            node.register_hook(_explain_second_derivative)
    return output.squeeze(1) if headless else output


def _nan_rows(query: Tensor, key: Tensor, *, is_causal: bool) -> Tensor:
    """Rows of the output that must be NaN, (batch, heads, q_len, 1): their query is, or a key they see."""
    bad_query = ~query.isfinite().all(-1, keepdim=True)
    bad_key = key.isnan().any(-1, keepdim=True)
    seen = bad_key.cumsum(-2) > 0 if is_causal else bad_key.any(-2, keepdim=True)
    return bad_query | seen.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


class _OnlyOnce(torch.autograd.Function):
    """The identity, whose derivative is an error that says what to do."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(*_: Any) -> None:
        """Nothing to keep; torch.func asks for this method."""

    @staticmethod
    def backward(*_: Any) -> Tensor:
        raise RuntimeError(
            "torch's fused attention cannot be differentiated twice; need_weights=True "
            "takes the readable path, which can"
        )


def _explain_second_derivative(
    gradients: tuple[Tensor | None, ...], _: object
) -> tuple[Tensor | None, ...] | None:
    """Hook of the fused kernel's backward: does nothing unless a graph of it is made."""
    if not torch.is_grad_enabled():
        return None
    return tuple(
        gradient if gradient is None else _OnlyOnce.apply(gradient)  # type: ignore[no-untyped-call]
        for gradient in gradients
    )


def softmax(scores: Tensor, visible: Tensor | None, *, owned: bool = False) -> Tensor:
    """The softmax itself. Scores that are `owned`, nobody else's, may be overwritten, which saves memory."""
    in_place = owned and scores.device.type == "cpu" and surely_finite(scores)
    if visible is None:
        return _softmax_of(scores, in_place=in_place)
    sees = visible.any(-1, keepdim=True)
    if in_place and all_true(sees):
        # Several times faster than a fill, but a hidden NaN would stay. A weight of zero
        # has no gradient, so autograd need not know.
        limit = torch.where(visible, scores.new_tensor(torch.inf), -torch.inf)
        with torch.no_grad():
            scores.clamp_(max=limit)
        return _softmax_of(scores, in_place=True)
    # A row without a visible key would be NaN: it gets equal scores, and the product with
    # the mask makes its weights zero.
    hidden = torch.where(sees, scores.new_tensor(-torch.inf), 0.0)
    return torch.where(visible, scores, hidden).softmax(-1) * visible


def _softmax_of(scores: Tensor, *, in_place: bool) -> Tensor:
    # Neither kind of derivative could follow.
    followed = (
        scores.requires_grad or forward_ad.unpack_dual(scores).tangent is not None
    )
    if in_place and not followed:
        return torch.softmax(scores, -1, out=scores)
    return scores.softmax(-1)


def widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
