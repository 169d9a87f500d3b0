"""Faster ways to compute the same attention: torch's kernel, block-wise masks, memory that is reused.

With `KERNEL = False`, the readable path runs instead. The two paths may differ only in their use of memory,
second derivatives, rounding, and the effect of a NaN that only some queries see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib.masking import _hide_future
from mha_lib.scores import ScoringRule

# With fewer keys than a processor adds at once, torch's CPU kernel mistakes a row whose scores are all NaN
# for a hidden row and returns zeros. With a mask, it does not.
_KERNEL_KEEPS_NAN_FROM = 16

# Queries per block when a causal mask is combined with padding, so that no q_len * k_len mask is built.
_CAUSAL_BLOCK = 512

# From this many scores on, the weights reuse the memory of the scores; with fewer, copying is faster.
REUSE_FROM = 1 << 14

# Whether a program is being exported. Versions of torch before 2.7 cannot say.
_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)

# The product of two numbers below this is far from the largest float32.
_LARGE = 1e18

# Whether torch's kernel may replace the readable path.
KERNEL = True

# (scores, mask, sink) -> weights, all (..., q_len, k_len) but the sink, (num_heads,)
MaskedSoftmax: TypeAlias = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


class AttentionOptions(NamedTuple):
    """How to attend: all arguments of a call except query, key and value, already checked."""

    mask: Tensor | None  # aligned with the scores, as is the bias
    bias: Tensor | None
    is_causal: bool
    dropout_p: float
    need_weights: bool
    score: ScoringRule | None  # None: the scaled dot product of torch's kernel
    scale: float | Tensor | None
    sink: Tensor | None = None  # (num_heads,): a score in every row, without a key


def finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite, and so small that no product of two of them overflows.

    False also where reading the numbers would wait for a GPU or break a graph.
    """
    if torch.compiler.is_compiling() or not tensors[0].is_cpu:
        return False
    # `vmap` raises an error here, and so do fake tensors, which have no numbers.
    with torch.no_grad(), suppress(RuntimeError):
        # A comparison with NaN is False. If the numbers are large but fine, only time is lost.
        norms = map(Tensor.norm, tensors)
        return sum(map(Tensor.item, norms)) < _LARGE
    return False


def fit_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast the bias to `dtype`; a number that is too large becomes the largest finite one, not infinity."""
    if bias.dtype == dtype:
        return bias
    limits = torch.finfo(dtype)
    wide = bias.to(torch.promote_types(bias.dtype, dtype))
    return wide.clamp(limits.min, limits.max).to(dtype)


def attend(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> Tensor:
    """Compute the output of attention with torch's kernel, without weights."""
    if options.sink is not None:
        return _attend_with_sink(query, key, value, options, options.sink)
    mask, bias, is_causal = options.mask, options.bias, options.is_causal
    # Without a head axis, torch would build a tensor of all weights.
    if no_heads := query.ndim == 3:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        mask, bias = (
            x if x is None or x.ndim < 3 else x.unsqueeze(1) for x in (mask, bias)
        )
    scale = options.scale
    if isinstance(scale, Tensor):
        query, scale = query * scale.to(query.dtype), 1.0
    kernel = partial(_kernel, scale=scale, dropout_p=options.dropout_p)
    if is_causal and (bias is not None or (mask is not None and mask.shape[-2] > 1)):
        causal = _hide_future(query.shape[-2], key.shape[-2], device=query.device)
        mask, is_causal = causal if mask is None else mask & causal, False
    if bias is not None:
        # On a CPU the kernel accepts a float32 bias for queries in half precision.
        half = query.dtype in (torch.float16, torch.bfloat16)
        bias = fit_bias(bias, torch.float32 if half and query.is_cpu else query.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
    if is_causal and (mask is not None or query.shape[-2] != key.shape[-2]):
        output = _causal_by_blocks(kernel, query, key, value, mask)
    else:
        # With as many queries as keys, the kernel's own causal mask equals ours.
        output = kernel(query, key, value, mask, is_causal=is_causal)
    return output[:, 0] if no_heads else output


def _attend_with_sink(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, sink: Tensor
) -> Tensor:
    """Attend with an additional key that every query sees; its score is the sink of the head, its value 0."""
    scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
    k_len = key.shape[-2]
    # An additional column holds the sink in the queries, 1 in the new key, and 0 in all other keys.
    column = sink.to(query.dtype).view(-1, 1, 1).expand(*query.shape[:-1], 1)
    query = torch.cat(((query * scale).to(query.dtype), column), dim=-1)
    # Make the values as wide as the keys; otherwise a CPU would build a tensor of all weights.
    key, value = (F.pad(x, (0, 1, 1, 0)) for x in (key, value))
    key[..., 0, -1] = 1.0
    # A mask or bias that broadcasts along the keys must not reach the new key.
    mask, bias = (
        x if x is None else x.expand(*x.shape[:-1], k_len)
        for x in (options.mask, options.bias)
    )
    mask = None if mask is None else F.pad(mask, (1, 0), value=True)
    bias = None if bias is None else F.pad(bias, (1, 0))
    # By name, since `torch.compile` of older versions does not follow `_replace`.
    with_key = AttentionOptions(
        mask=mask,
        bias=bias,
        is_causal=options.is_causal,
        dropout_p=options.dropout_p,
        need_weights=options.need_weights,
        score=options.score,
        scale=1.0,
    )
    return attend(query, key, value, with_key)[..., :-1]


def _causal_by_blocks(
    kernel: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Attend one block of queries at a time, each to the keys up to its last query; all share `mask`."""
    # A compiled program would be tied to the number of blocks.
    whole = torch.compiler.is_compiling() or query.shape[-2] <= _CAUSAL_BLOCK
    outputs = []
    end = key.shape[-2] - query.shape[-2]  # of the keys that a block may see
    for block in (query,) if whole else query.split(_CAUSAL_BLOCK, dim=-2):
        # Queries and keys end together in each block too. A query before the first key sees no keys.
        end = end + block.shape[-2]
        k_len = end if whole else max(end, 0)
        visible = _hide_future(block.shape[-2], k_len, device=query.device)
        if mask is not None:
            visible = visible & mask[..., :k_len]
        outputs.append(
            kernel(block, key[..., :k_len, :], value[..., :k_len, :], visible)
        )
    return outputs[0] if whole else torch.cat(outputs, dim=-2)


def _kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scale: float | None,
    dropout_p: float,
    is_causal: bool = False,
) -> Tensor:
    """Call torch's kernel once, keep a visible NaN, and explain the missing second derivative."""
    compiling = torch.compiler.is_compiling()
    # A branch on the length would tie a compiled program to it.
    few = compiling or key.shape[-2] < _KERNEL_KEEPS_NAN_FROM
    loses_nan = few and mask is None and dropout_p == 0 and query.is_cpu
    mark_nan = loses_nan and (compiling or (is_causal and not finite(query, key)))
    if loses_nan and not compiling and not is_causal:
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
    if mask is not None and _exporting():
        # In ONNX, hidden scores are finite, so a row that sees nothing would become the mean of the values.
        visible = mask if mask.dtype == torch.bool else mask > -torch.inf
        output = output.masked_fill(~visible.any(-1, keepdim=True), 0.0)
    if mark_nan:
        output = output.masked_fill(_nan_rows(query, key, is_causal), torch.nan)
    node = None if compiling else output.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_explain_second_derivative)
    return output


def _nan_rows(query: Tensor, key: Tensor, is_causal: bool) -> Tensor:
    """Output rows that must be NaN, (batch, heads, q_len, 1), due to their query or a key that it sees."""
    bad_query = ~query.isfinite().all(-1, keepdim=True)
    bad_key = key.isnan().any(-1, keepdim=True)
    seen = bad_key.cumsum(-2) > 0 if is_causal else bad_key.any(-2, keepdim=True)
    return bad_query | seen.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


class _OnlyOnce(torch.autograd.Function):
    """The identity; its backward pass raises an error that says what to do."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(*_: object) -> None:
        """Save nothing; torch.func requires this method."""

    @staticmethod
    def backward(*_: object) -> Tensor:
        raise RuntimeError(
            "torch's fused attention cannot be differentiated twice; the readable path can, which runs "
            "with need_weights=True, and in all layers of a model inside capture_attention(model)"
        )


def _explain_second_derivative(
    gradients: tuple[Tensor | None, ...], _: object
) -> tuple[Tensor | None, ...] | None:
    """Hook on the fused kernel's backward pass; it does nothing unless that pass builds a graph."""
    if not torch.is_grad_enabled():
        return None
    once: Callable[[Tensor], Tensor] = _OnlyOnce.apply
    return tuple(x if x is None else once(x) for x in gradients)


def clear_unseen(
    key: Tensor, value: Tensor, mask: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Set keys and values that no query may see to 0, so that no NaN there reaches a result or gradient."""
    if is_causal and mask.shape[-2] > 1:
        mask = mask & _hide_future(mask.shape[-2], key.shape[-2], device=mask.device)
    seen = mask if mask.shape[-2] == 1 else mask.any(-2, keepdim=True)
    seen = seen.transpose(-2, -1)
    if seen.ndim == 4 and seen.shape[1] > key.shape[1]:  # by any head of the group
        seen = seen.unflatten(1, (key.shape[1], -1)).any(2)
    # Unlike torch.where, this keeps the strides, which decide which kernel torch chooses.
    return key.masked_fill(~seen, 0.0), value.masked_fill(~seen, 0.0)


def softmax(
    scores: Tensor, mask: Tensor | None, sink: Tensor | None, *, formula: MaskedSoftmax
) -> Tensor:
    """Compute `formula`, if possible in the memory of the scores, which must not be needed afterwards."""
    if not scores.is_cpu or sink is not None:
        return formula(scores, mask, sink)
    if mask is not None:
        if not finite(scores) or not mask.any(-1).all():
            return formula(scores, mask, sink)
        # Hidden scores have weight 0 and need no gradient, so autograd need not see the clamp. The clamp is
        # much faster than torch.where, but would keep a NaN.
        limit = torch.where(mask, scores.new_full((), torch.inf), -torch.inf)
        with torch.no_grad():
            scores.clamp_(max=limit)
    if not scores.requires_grad:  # forward derivatives and `vmap` raise an error here
        with suppress(RuntimeError):
            return torch.softmax(scores, -1, out=scores)
    return formula(scores, None, None)


def leave_open(*tensors: Tensor | None) -> None:
    """Tell the compiler, where one is loaded, that a batch and length are those of one prompt only."""
    compiler = sys.modules.get("torch._dynamo")  # loading it would take seconds
    if compiler is not None and not torch.compiler.is_compiling():
        for tensor in tensors:
            if tensor is not None:
                compiler.maybe_mark_dynamic(tensor, (0, tensor.ndim // 2))
