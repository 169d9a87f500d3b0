"""The two paths of attention: one that can be read, one that is fast.

`attend` chooses, in this one place. Its callers have checked all arguments and put mask and bias in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib._checks import all_true, check_float_tensor, check_same, surely_finite
from mha_lib.masking import build_mask, causal_mask
from mha_lib.scores import softcap_scores

# (query, key) -> scores, (..., q_len, d) x (..., k_len, d) -> (..., q_len, k_len)
ScoringRule: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# With fewer keys than a processor adds at once, torch's CPU kernel takes a row whose
# scores are all NaN for a hidden one and returns zeros; given a mask, it does not.
_KERNEL_KEEPS_NAN_FROM = 16

# Scores from which on their memory is used again for the weights.
_WORTH_REUSING = 1 << 14

# Queries that share a mask where causal order meets padding: its memory grows with the
# length, not with its square.
_CAUSAL_BLOCK = 512


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
    readable = need_weights or score is not None or softcap is not None
    path: Callable[..., tuple[Tensor, Tensor | None]] = (
        partial(_readable, score=score, softcap=softcap) if readable else _fused
    )
    with torch.autocast(device, enabled=False) if narrowed else nullcontext():
        output, weights = path(
            query,
            key,
            value,
            mask,
            bias,
            is_causal=is_causal,
            dropout_p=dropout_p,
            scale=scale,
        )
    return output, weights if need_weights else None


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
    scale: float | None,
    score: ScoringRule | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Score and pool, as the chapters teach, without a second round of checks."""
    if is_causal:
        mask = build_mask(
            query.size(-2),
            key.size(-2),
            attn_mask=mask,
            is_causal=True,
            device=query.device,
        )
    if query.shape[:-2] != key.shape[:-2]:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    dtype = query.dtype
    if score is None:
        # `scaled_dot_product_score` without its checks. The product copies keys that are
        # not contiguous, and more slowly.
        query, key = widen(query), widen(key).contiguous()
        query = query / math.sqrt(query.shape[-1]) if scale is None else query * scale
        scores = query @ key.transpose(-2, -1)
    else:  # a rule of the user's; a module has a dtype of its own
        if not isinstance(score, nn.Module):
            query, key = widen(query), widen(key)
        scores = score(query, key)
        check_float_tensor("score(query, key)", scores, axes="..., q_len, k_len")
        names = ("score(query, key)", "the weights")
        shape = (*query.shape[:-1], key.shape[-2])
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
) -> tuple[Tensor, None]:
    """Torch's kernel, and what it does not do by itself."""
    headless = query.ndim == 3
    if headless:  # without a head axis, torch would make a tensor of all weights
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        mask, bias = (
            x if x is None or x.ndim == 2 else x.unsqueeze(1) for x in (mask, bias)
        )
    kernel = partial(_kernel, dropout_p=dropout_p, scale=scale)
    if bias is not None:
        mask = build_mask(
            query.shape[-2],
            key.shape[-2],
            attn_mask=mask,
            is_causal=is_causal,
            device=query.device,
        )
        # On a CPU the kernel takes a bias that is more precise than half-precision
        # queries, elsewhere it does not.
        on_cpu = query.device.type == "cpu"
        bias = _fit(bias, widen(query).dtype if on_cpu else query.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
        output = kernel(query, key, value, mask)
    elif is_causal and (mask is not None or query.shape[-2] != key.shape[-2]):
        output = _causal_by_blocks(kernel, query, key, value, mask)
    else:  # the kernel's own causal path means the same as ours, and needs no mask
        output = kernel(query, key, value, mask, is_causal=is_causal)
    return output.squeeze(1) if headless else output, None


def _causal_by_blocks(
    kernel: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Some queries at a time, with the keys up to the last of them: no mask of q_len * k_len is built."""
    q_len, k_len = query.shape[-2], key.shape[-2]

    def attend_block(queries: Tensor, seen: int) -> Tensor:
        # Queries and keys end together, in the block as in the whole.
        visible = build_mask(
            queries.shape[-2],
            seen,
            attn_mask=None if mask is None else mask[..., :seen],
            is_causal=True,
            device=query.device,
        )
        return kernel(queries, key[..., :seen, :], value[..., :seen, :], visible)

    # A mask of all queries is there already; a compiler would be tied to the number of blocks.
    given = mask is not None and mask.shape[-2] != 1
    if torch.compiler.is_compiling() or given or q_len <= _CAUSAL_BLOCK:
        return attend_block(query, k_len)
    outputs: list[Tensor] = []
    for queries in query.split(_CAUSAL_BLOCK, dim=-2):
        done = sum(output.shape[-2] for output in outputs) + queries.shape[-2]
        seen = k_len - q_len + done
        if seen > 0:
            outputs.append(attend_block(queries, seen))
        else:  # these come before the first key
            outputs.append(queries.new_zeros(*queries.shape[:-1], value.shape[-1]))
    return torch.cat(outputs, dim=-2)


def _kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool = False,
    dropout_p: float,
    scale: float | None,
) -> Tensor:
    """One call of torch's kernel that keeps a NaN and explains why it has no second derivative."""
    compiling = torch.compiler.is_compiling()
    unmasked = mask is None and dropout_p == 0 and query.is_cpu
    if unmasked and not compiling and key.shape[-2] < _KERNEL_KEEPS_NAN_FROM:
        if is_causal:
            mask = causal_mask(query.size(-2), key.size(-2))
            is_causal = False
        else:
            mask = query.new_zeros(1, 1)
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[:-2] != key.shape[:-2],
    )
    if unmasked and compiling:
        # No branch on a length, which would tie a program to it.
        lost = _nan_rows(query, key, is_causal=is_causal)
        output = output.masked_fill(lost, torch.nan)
    if output.requires_grad and not compiling:
        node = output.grad_fn
        if node is not None and node.name().startswith("ScaledDotProduct"):
            node.register_hook(_explain_second_derivative)
    return output


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
    # Small scores are copied in less time than the questions below take.
    owned = (
        owned
        and not torch.compiler.is_compiling()
        and scores.is_cpu
        and scores.numel() >= _WORTH_REUSING
    )
    if visible is None:
        return _softmax_of(scores, in_place=owned)
    in_place = owned and surely_finite(scores)
    sees = visible.any(-1, keepdim=True)
    if in_place and all_true(sees):
        # Several times faster than a fill, but a hidden NaN would stay. A weight of zero
        # has no gradient, so autograd need not know.
        limit = torch.where(visible, scores.new_full((), torch.inf), -torch.inf)
        with torch.no_grad():
            scores.clamp_(max=limit)
        return _softmax_of(scores, in_place=True)
    # A row without a visible key would be NaN: it gets equal scores, and the product with
    # the mask makes its weights zero.
    hidden = torch.where(sees, scores.new_full((), -torch.inf), 0.0)
    return torch.where(visible, scores, hidden).softmax(-1) * visible


def _softmax_of(scores: Tensor, *, in_place: bool) -> Tensor:
    # A derivative could not follow. Forward derivatives and vmap refuse by themselves.
    if in_place and not scores.requires_grad:
        with suppress(RuntimeError):
            return torch.softmax(scores, -1, out=scores)
    return scores.softmax(-1)


def widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
