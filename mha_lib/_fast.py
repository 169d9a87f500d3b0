"""Faster ways to compute the same attention: torch's kernel, block-wise masks, memory that is reused.

Nothing here defines what attention computes. With `KERNEL = False` the readable path runs, and all results
stay the same up to rounding; only the use of memory, second derivatives, and the effect of a NaN that only
some queries see, may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib._checks import finite
from mha_lib.masking import _fit_bias, _hide_future

# With fewer keys than a processor adds at once, torch's CPU kernel mistakes a row whose scores are all NaN
# for a hidden row and returns zeros; with a mask it does not.
_KERNEL_KEEPS_NAN_FROM = 16

# Queries per block where a causal mask is combined with padding, so that no q_len * k_len mask is built.
_CAUSAL_BLOCK = 512

# From this many scores on, the weights reuse the memory of the scores; fewer scores are copied faster.
REUSE_FROM = 1 << 14

# Whether torch's kernel may replace the readable path.
KERNEL = True


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Compute the output of attention with torch's kernel, without weights."""
    if query.ndim == 3:  # without a head axis, torch would make a tensor of all weights
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        mask, bias = (
            x if x is None or x.ndim == 2 else x.unsqueeze(1) for x in (mask, bias)
        )
        return attend(query, key, value, mask, bias, is_causal, scale, dropout_p)[:, 0]
    if isinstance(scale, Tensor):
        query, scale = query * scale.to(query.dtype), 1.0
    kernel = partial(_kernel, scale=scale, dropout_p=dropout_p)
    if is_causal and (bias is not None or (mask is not None and mask.shape[-2] > 1)):
        causal = _hide_future(query.shape[-2], key.shape[-2], device=query.device)
        mask, is_causal = causal if mask is None else mask & causal, False
    if bias is not None:
        # On a CPU the kernel accepts a float32 bias for queries in half precision.
        half = query.dtype in (torch.float16, torch.bfloat16)
        bias = _fit_bias(bias, torch.float32 if half and query.is_cpu else query.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
    if is_causal and (mask is not None or query.shape[-2] != key.shape[-2]):
        return _causal_by_blocks(kernel, query, key, value, mask)
    # With as many queries as keys, the kernel's own causal mask is the same as ours.
    return kernel(query, key, value, mask, is_causal=is_causal)


def _causal_by_blocks(
    kernel: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Attend with one block of queries at a time, to the keys up to its last query; all share `mask`."""
    q_len, k_len = query.shape[-2], key.shape[-2]

    def attend_block(queries: Tensor, seen: int) -> Tensor:
        # Queries and keys end together, in a block as in the whole sequence.
        visible = _hide_future(queries.shape[-2], seen, device=query.device)
        if mask is not None:
            visible = visible & mask[..., :seen]
        return kernel(queries, key[..., :seen, :], value[..., :seen, :], visible)

    # A compiled program would be tied to the number of blocks.
    if torch.compiler.is_compiling() or q_len <= _CAUSAL_BLOCK:
        return attend_block(query, k_len)
    outputs: list[Tensor] = []
    for queries in query.split(_CAUSAL_BLOCK, dim=-2):
        done = sum(output.shape[-2] for output in outputs) + queries.shape[-2]
        seen = k_len - q_len + done
        if seen > 0:
            outputs.append(attend_block(queries, seen))
        else:  # these queries come before the first key
            outputs.append(queries.new_zeros(*queries.shape[:-1], value.shape[-1]))
    return torch.cat(outputs, dim=-2)


def _kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool = False,
    scale: float | None,
    dropout_p: float,
) -> Tensor:
    """Call torch's kernel once, keep a visible NaN, and explain why there is no second derivative."""
    compiling = torch.compiler.is_compiling()
    # A branch on the length would tie a compiled program to it.
    few = compiling or key.shape[-2] < _KERNEL_KEEPS_NAN_FROM
    loses_nan = few and mask is None and dropout_p == 0 and query.is_cpu
    mark = loses_nan and (compiling or is_causal)
    if loses_nan and not mark:
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
    if mark:
        lost = _nan_rows(query, key, is_causal=is_causal)
        output = output.masked_fill(lost, torch.nan)
    if output.requires_grad and not compiling:
        node = output.grad_fn
        if node is not None and node.name().startswith("ScaledDotProduct"):
            node.register_hook(_explain_second_derivative)
    return output


def _nan_rows(query: Tensor, key: Tensor, *, is_causal: bool) -> Tensor:
    """Output rows that must be NaN, (batch, heads, q_len, 1): their query is bad, or a key that they see."""
    bad_query = ~query.isfinite().all(-1, keepdim=True)
    bad_key = key.isnan().any(-1, keepdim=True)
    seen = bad_key.cumsum(-2) > 0 if is_causal else bad_key.any(-2, keepdim=True)
    return bad_query | seen.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


class _OnlyOnce(torch.autograd.Function):
    """The identity, whose backward pass raises an error that says what to do."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(*_: Any) -> None:
        """Save nothing; torch.func requires this method."""

    @staticmethod
    def backward(*_: Any) -> Tensor:
        raise RuntimeError(
            "torch's fused attention cannot be differentiated twice; need_weights=True "
            "takes the readable path, which can"
        )


def _explain_second_derivative(
    gradients: tuple[Tensor | None, ...], _: object
) -> tuple[Tensor | None, ...] | None:
    """Hook of the fused kernel's backward pass: does nothing unless that pass builds a graph."""
    if not torch.is_grad_enabled():
        return None
    return tuple(
        gradient if gradient is None else _OnlyOnce.apply(gradient)  # type: ignore[no-untyped-call]
        for gradient in gradients
    )


def narrow(*tensors: Tensor) -> list[Tensor]:
    """Cast the inputs of torch's kernel as autocast does."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [x if x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def softmax(
    scores: Tensor,
    mask: Tensor | None,
    formula: Callable[[Tensor, Tensor | None], Tensor],
) -> Tensor:
    """Compute `formula`, if possible in the memory of the scores, which no other code may still need."""
    if not scores.is_cpu:
        return formula(scores, mask)
    if mask is not None:
        sees = mask.any(-1, keepdim=True)
        if not finite(scores) or not sees.all():
            return formula(scores, mask)
        # A hidden score needs no gradient, since its weight is zero, so autograd need not see the clamp. It
        # takes a fraction of the time of torch.where, but would keep a NaN.
        limit = torch.where(mask, scores.new_full((), torch.inf), -torch.inf)
        with torch.no_grad():
            scores.clamp_(max=limit)
    if not scores.requires_grad:  # forward derivatives and `vmap` raise an error here
        with suppress(RuntimeError):
            return torch.softmax(scores, -1, out=scores)
    return formula(scores, None)
