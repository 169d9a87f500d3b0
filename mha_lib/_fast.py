"""Faster ways to compute the same attention: torch's kernel, block-wise masks, memory that is reused.

With `KERNEL = False` the readable path runs: only the use of memory, second derivatives, rounding, and the
effect of a NaN that only some queries see, may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib.masking import _hide_future

if TYPE_CHECKING:
    from mha_lib.attention import _Call
    from mha_lib.scores import ScoringRule

# With fewer keys than a processor adds at once, torch's CPU kernel mistakes a row whose scores are all NaN
# for a hidden row and returns zeros; with a mask it does not.
_KERNEL_KEEPS_NAN_FROM = 16

# Queries per block where a causal mask is combined with padding, so that no q_len * k_len mask is built.
_CAUSAL_BLOCK = 512

# From this many scores on, the weights reuse the memory of the scores; fewer scores are copied faster.
REUSE_FROM = 1 << 14

# Whether a program is made for elsewhere. Versions of torch before 2.7 do not say so.
_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)

# Whether torch's kernel may replace the readable path.
KERNEL = True


def finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite; also False where asking would wait for a GPU or break a graph."""
    if torch.compiler.is_compiling() or not tensors[0].is_cpu:
        return False
    # From `vmap` comes an error, and from fake tensors, which have no numbers.
    with torch.no_grad(), suppress(RuntimeError):
        # A NaN or infinity makes the sum non-finite. A sum that overflows only costs time.
        return all(map(math.isfinite, map(Tensor.item, map(torch.sum, tensors))))
    return False


def fit_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast the bias to another dtype; what is too large becomes the largest number, not infinity."""
    if bias.dtype == dtype:
        return bias
    limits = torch.finfo(dtype)
    wide = bias.to(torch.promote_types(bias.dtype, dtype))
    return wide.clamp(limits.min, limits.max).to(dtype)


def attend(query: Tensor, key: Tensor, value: Tensor, call: _Call) -> Tensor:
    """Compute the output of attention with torch's kernel, without weights."""
    if call.sink is not None:
        return _attend_with_sink(query, key, value, call, call.sink)
    mask, bias, is_causal, scale = call.mask, call.bias, call.is_causal, call.scale
    # Without a head axis, torch would make a tensor of all weights.
    if alone := query.ndim == 3:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        pair = (mask, bias)
        mask, bias = (x if x is None or x.ndim < 3 else x[:, None] for x in pair)
    if isinstance(scale, Tensor):
        query, scale = query * scale.to(query.dtype), 1.0
    kernel = partial(_kernel, scale=scale, dropout_p=call.dropout_p)
    if is_causal and (bias is not None or (mask is not None and mask.shape[-2] > 1)):
        causal = _hide_future(query.shape[-2], key.shape[-2], device=query.device)
        mask, is_causal = causal if mask is None else mask & causal, False
    if bias is not None:
        # On a CPU the kernel accepts a float32 bias for queries in half precision.
        half = query.dtype in (torch.float16, torch.bfloat16)
        bias = fit_bias(bias, torch.float32 if half and query.is_cpu else query.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
    if is_causal and (mask is not None or query.shape[-2] != key.shape[-2]):
        output = _causal_by_blocks(kernel, (query, key, value), mask)
    else:
        # With as many queries as keys, the kernel's own causal mask is the same as ours.
        output = kernel(query, key, value, mask, is_causal=is_causal)
    return output[:, 0] if alone else output


def _attend_with_sink(
    query: Tensor, key: Tensor, value: Tensor, call: _Call, sink: Tensor
) -> Tensor:
    """Attend with one key more that every query sees: its score is the sink of the head, its value 0."""
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    k_len = key.shape[-2]
    # One more column holds the sink of the query's head, 1 in the new key, and 0 in all others.
    column = sink.to(query.dtype).view(-1, 1, 1).expand(*query.shape[:-1], 1)
    query = torch.cat(((query * scale).to(query.dtype), column), dim=-1)
    # Values as wide as keys, without which a CPU would make a tensor of all weights.
    key, value = (F.pad(x, (0, 1, 1, 0)) for x in (key, value))
    key[..., 0, -1] = 1.0
    # What broadcasts along the keys must not reach the new one.
    pair = (call.mask, call.bias)
    mask, bias = (x if x is None else x.expand(*x.shape[:-1], k_len) for x in pair)
    mask = None if mask is None else F.pad(mask, (1, 0), value=True)
    bias = None if bias is None else F.pad(bias, (1, 0))
    how = (call.is_causal, call.dropout_p, call.need_weights, call.rule, 1.0)
    return attend(query, key, value, type(call)(mask, bias, *how))[..., :-1]


def _causal_by_blocks(
    kernel: Callable[..., Tensor], inputs: tuple[Tensor, ...], mask: Tensor | None
) -> Tensor:
    """Attend with one block of queries at a time, to the keys up to its last query; all share `mask`."""
    query, key, value = inputs
    # A compiled program would be tied to the number of blocks.
    whole = torch.compiler.is_compiling() or query.shape[-2] <= _CAUSAL_BLOCK
    outputs, seen = [], key.shape[-2] - query.shape[-2]
    for queries in (query,) if whole else query.split(_CAUSAL_BLOCK, dim=-2):
        # Queries and keys end together, in a block as in the whole; before the first key, there are none.
        seen = seen + queries.shape[-2]
        last = seen if whole else max(seen, 0)
        visible = _hide_future(queries.shape[-2], last, device=query.device)
        if mask is not None:
            visible = visible & mask[..., :last]
        shown = (key[..., :last, :], value[..., :last, :])
        outputs.append(kernel(queries, *shown, visible))
    return outputs[0] if whole else torch.cat(outputs, dim=-2)


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any
) -> Tensor:
    """Call torch's kernel once, keep a visible NaN, and explain why there is no second derivative."""
    compiling, is_causal = torch.compiler.is_compiling(), how.get("is_causal", False)
    # A branch on the length would tie a compiled program to it.
    few = compiling or key.shape[-2] < _KERNEL_KEEPS_NAN_FROM
    loses_nan = few and mask is None and how["dropout_p"] == 0 and query.is_cpu
    mark = loses_nan and (compiling or is_causal)
    if loses_nan and not mark:
        mask = query.new_zeros(1, 1)
    how["enable_gqa"] = query.shape[:-2] != key.shape[:-2]
    output = F.scaled_dot_product_attention(query, key, value, mask, **how)
    if mask is not None and _exporting():
        # In ONNX hidden scores are finite: a row that sees nothing would become the mean of the values.
        seen = mask if mask.dtype == torch.bool else mask > -torch.inf
        output = output.masked_fill(~seen.any(-1, keepdim=True), 0.0)
    if mark:
        output = output.masked_fill(_nan_rows(query, key, is_causal), torch.nan)
    node = None if compiling else output.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_explain_second_derivative)
    return output


def _nan_rows(query: Tensor, key: Tensor, is_causal: bool) -> Tensor:
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
            "torch's fused attention cannot be differentiated twice; the readable path can, which runs "
            "with need_weights=True, and in all layers of a model inside capture_attention(model)"
        )


def _explain_second_derivative(gradients: tuple[Any, ...], _: object) -> Any:
    """Hook of the fused kernel's backward pass: does nothing unless that pass builds a graph."""
    if not torch.is_grad_enabled():
        return None
    once: Any = _OnlyOnce.apply
    return tuple(x if x is None else once(x) for x in gradients)


def clear_unseen(
    key: Tensor, value: Tensor, mask: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Set to 0 what no query may see, so that not even a NaN there reaches a result or a gradient."""
    if is_causal and mask.shape[-2] > 1:
        mask = mask & _hide_future(mask.shape[-2], key.shape[-2], device=mask.device)
    seen = mask if mask.shape[-2] == 1 else mask.any(-2, keepdim=True)
    seen = seen.transpose(-2, -1)
    if seen.ndim == 4 and seen.shape[1] > key.shape[1]:  # seen by any head of the group
        seen = seen.unflatten(1, (key.shape[1], -1)).any(2)
    # Unlike torch.where, this keeps the strides, on which torch's choice of a kernel depends.
    return key.masked_fill(~seen, 0.0), value.masked_fill(~seen, 0.0)


def softmax(scores: Tensor, mask: Tensor | None, formula: ScoringRule) -> Tensor:
    """Compute `formula`, if possible in the memory of the scores, which no other code may still need."""
    if not scores.is_cpu:
        return formula(scores, mask)
    if mask is not None:
        if not finite(scores) or not mask.any(-1).all():
            return formula(scores, mask)
        # Hidden scores need no gradient, since their weight is 0, so autograd need not see the clamp, which
        # is much faster than torch.where, but would keep a NaN.
        limit = torch.where(mask, scores.new_full((), torch.inf), -torch.inf)
        with torch.no_grad():
            scores.clamp_(max=limit)
    if not scores.requires_grad:  # forward derivatives and `vmap` raise an error here
        with suppress(RuntimeError):
            return torch.softmax(scores, -1, out=scores)
    return formula(scores, None)
