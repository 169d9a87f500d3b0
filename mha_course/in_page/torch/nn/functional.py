"""Functions of layers; torch's documentation explains them."""

from __future__ import annotations

import math
from functools import wraps

from .._arguments import checked
from .._functions import rand
from .._memory import BOOL, FLOAT, NeedsTorchError, bool_, int64, need
from .._tape import GradMode, is_recorded, record
from .. import _gradients, _kernels
from .._tensor import Tensor, where


def relu(input, inplace=False):
    return input.relu_() if inplace else input.relu()


def sigmoid(input):
    return input.sigmoid()


def tanh(input):
    return input.tanh()


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    return input.softmax(_usual_axis(input) if dim is None else dim, dtype=dtype)


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    return input.log_softmax(_usual_axis(input) if dim is None else dim, dtype=dtype)


def _usual_axis(input):
    """Return the axis that torch chooses, with a warning, where none is named."""
    return 0 if input.ndim in (0, 1, 3) else 1


def silu(input, inplace=False):
    need(isinstance(input, Tensor), f"silu takes a tensor, got {type(input).__name__}", TypeError)
    made = input._floating("silu", NotImplementedError) * input.sigmoid()
    return input.copy_(made) if inplace else made


def gelu(input, approximate="none"):
    need(approximate in ("none", "tanh"), f"approximate must be 'none' or 'tanh', got {approximate!r}")
    input._floating("gelu", NotImplementedError)
    if approximate == "none":
        return input * 0.5 * (1 + (input / math.sqrt(2)).erf())
    return 0.5 * input * (1 + (math.sqrt(2 / math.pi) * (input + 0.044715 * input**3)).tanh())


def linear(input, weight, bias=None):
    product = input @ weight.t()
    made = product if bias is None else product + bias
    if made._node is not None and bias is not None:
        made._said = "AddmmBackward0" if input.ndim == 2 else "ViewBackward0"
    return made


def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False
):
    need(max_norm is None and not (scale_grad_by_freq or sparse), "such an embedding needs", NeedsTorchError)
    for name, one in {"indices": input, "weight": weight}.items():
        told = f"embedding(): argument '{name}' must be Tensor, not {type(one).__name__}"
        need(isinstance(one, Tensor), told, TypeError)
    need(BOOL < input.dtype.kind < FLOAT and weight.ndim == 2, f"tokens must be integers, got {input.dtype}")
    numbers = input._numbers()
    inside = not numbers or (min(numbers) >= 0 and max(numbers) < len(weight))
    need(inside, f"a token is out of range for {len(weight)} rows", IndexError)
    rows = weight[input] if input.ndim else weight[input].clone()
    if padding_idx is None or not is_recorded((weight,)):
        return rows
    # The row for padding gets no gradient.
    return where((input == padding_idx % len(weight)).unsqueeze(-1), rows.detach(), rows)


def one_hot(tensor, num_classes=-1):
    need(tensor.dtype is int64, f"one_hot takes int64, got {tensor.dtype}")
    numbers = tensor._numbers()
    count = max(numbers, default=-1) + 1 if num_classes == -1 else num_classes
    inside = count > 0 and all(0 <= number < count for number in numbers)
    need(inside, f"numbers must lie in 0..{count - 1}, got {numbers[:5]}")
    return tensor._made([i == number for number in numbers for i in range(count)], (*tensor.shape, count))


def dropout(input, p=0.5, training=True, inplace=False):
    need(0 <= p <= 1, f"p must lie in 0..1, got {p}", ValueError)
    need(not inplace, "dropout in place needs", NeedsTorchError)
    return input * (rand(input.shape) >= p) / (1 - p or 1) if training and p else input


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    need(isinstance(normalized_shape, (tuple, list)), "normalized_shape must be a tuple of ints", TypeError)
    axes = list(range(-len(normalized_shape), 0))
    fits = axes and input.shape[axes[0] :] == tuple(normalized_shape)
    need(fits, f"the last axes of {tuple(input.shape)} are not {tuple(normalized_shape)}")
    flat = input.flatten(axes[0]) if len(axes) > 1 else input
    for name, one in {"weight": weight, "bias": bias}.items():
        if one is not None:
            told = f"{name} must have the shape {tuple(normalized_shape)} and the dtype {input.dtype}"
            need(one.shape == tuple(normalized_shape) and one.dtype is input.dtype, told)
    input._floating("layer_norm", NotImplementedError)
    normed = _normed(flat, eps)
    normed = normed.view(input.shape) if len(axes) > 1 else normed
    normed = normed if weight is None else normed * weight
    return (normed if bias is None else normed + bias).to(input.dtype)


def _normed(input, eps):
    """Return rows with mean 0 and variance 1."""
    if (input.dtype.kind, input.dtype.itemsize) == (FLOAT, 2):
        return _normed(input.float(), eps)
    with GradMode(False):
        row = input.contiguous()
        memory = _kernels.rows("normed", row, eps) if _kernels.serves(input) else None
        if memory is not None:
            made = Tensor._of(memory, input.shape, input.dtype)
        else:
            wide = row.double()
            centred = wide - wide.mean(-1, keepdim=True)
            made = (centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt()).to(input.dtype)
    if not is_recorded((input,)):
        return made
    return record(made, "NativeLayerNorm", (_gradients.of_normed(eps),), (input,), (made.detach(), input))


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    need(out is None, "normalize with out= needs", NeedsTorchError)
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


def _reduced(losses, reduction):
    known = reduction in ("mean", "sum", "none")
    need(known, f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}", ValueError)
    return losses if reduction == "none" else getattr(losses, reduction)()


def cross_entropy(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
    label_smoothing=0.0,
):  # fmt: skip
    """Return the loss for targets that are classes or probabilities of classes, which are along axis 1."""
    told = f"cross_entropy_loss(): argument 'target' (position 2) must be Tensor, not {type(target).__name__}"
    need(isinstance(target, Tensor), told, TypeError)
    need(weight is size_average is reduce is None, "a cross-entropy with weights needs", NeedsTorchError)
    log_probs = (input.movedim(1, -1) if input.ndim > 1 else input).log_softmax(-1)
    if target.dtype.kind == FLOAT:
        need(target.shape == input.shape, f"a target {target.shape} does not fit {input.shape}")
        target = target.movedim(1, -1) if input.ndim > 1 else target
        target = target * (1 - label_smoothing) + label_smoothing / log_probs.shape[-1]
        return _reduced(-(log_probs * target).sum(-1), reduction)
    return _of_classes(log_probs, input, target, ignore_index, reduction, label_smoothing)


def nll_loss(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"
):  # fmt: skip
    told = f"nll_loss_nd(): argument 'target' (position 2) must be Tensor, not {type(target).__name__}"
    need(isinstance(target, Tensor), told, TypeError)
    need(weight is size_average is reduce is None, "a loss with weights needs", NeedsTorchError)
    need(input.ndim > 2 or target.ndim < 2, "0D or 1D target tensor expected")
    log_probs = input.movedim(1, -1) if input.ndim > 1 else input
    return _of_classes(log_probs, input, target, ignore_index, reduction)


def _of_classes(log_probs, input, target, ignore_index, reduction, label_smoothing=0.0):
    """Return the loss for targets that are classes; `log_probs` has these along the last axis."""
    fits = target.shape == log_probs.shape[:-1]
    kind = ValueError if input.ndim < 3 or len(target) != len(input) else RuntimeError
    need(fits, f"a target {target.shape} does not fit {input.shape}", kind)
    need(target.dtype is int64, f"a target of classes is int64, got {target.dtype}")
    numbers = target._numbers()
    ignored = ignore_index in numbers
    counts = target != ignore_index if ignored else None
    classes = where(counts, target, 0) if ignored else target
    numbers = classes._numbers()
    inside = not numbers or (min(numbers) >= 0 and max(numbers) < log_probs.shape[-1])
    need(inside, f"a class lies outside 0..{log_probs.shape[-1] - 1}", IndexError)
    losses = -log_probs.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    if label_smoothing:
        losses = losses * (1 - label_smoothing) - log_probs.mean(-1) * label_smoothing
    if not ignored:
        return _reduced(losses, reduction)
    losses = where(counts, losses, 0.0)
    return losses.sum() / counts.sum() if reduction == "mean" else _reduced(losses, reduction)


def pad(input, pad, mode="constant", value=None):
    right = mode == "constant" and len(pad) % 2 == 0 and len(pad) <= 2 * input.ndim
    need(right, f"pad {pad} does not name pairs of the {input.ndim} axes")
    shape, inside = list(input.shape), [slice(None)] * input.ndim
    for axis, before, after in zip(range(-1, -input.ndim - 1, -1), pad[::2], pad[1::2], strict=False):
        shape[axis] += before + after
        inside[axis] = slice(before, before + input.shape[axis])
    told = f"pad(): argument 'value' must be float, not {type(value).__name__}"
    need(value is None or isinstance(value, (int, float)), told, TypeError)
    made = input.new_full(shape, value or 0)
    made[tuple(inside)] = input
    return made


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    fits = query.ndim > 1 and key.ndim > 1 and value.ndim > 1
    need(fits, f"matrices are expected, got shapes {query.shape} and {key.shape}")
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // key.shape[-3], -3) for x in (key, value))
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale)
    if is_causal:
        need(attn_mask is None, "attn_mask must be None where is_causal is True")
        attn_mask = scores.new_full(scores.shape[-2:], True, dtype=bool_).tril()
    if attn_mask is not None and attn_mask.dtype.kind == BOOL:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        told = f"attn_mask must be bool or {query.dtype}, got {attn_mask.dtype}"
        need(attn_mask.dtype is query.dtype, told)
        scores = scores + attn_mask
    # A query that may see nothing gets zeros.
    weights = scores.softmax(-1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return dropout(weights, dropout_p) @ value


for _name in "gelu linear one_hot pad scaled_dot_product_attention".split():
    globals()[_name] = checked(_name, globals()[_name], is_method=False)


def _titled(name, title):
    """Let a function note under which name torch prints what it made."""
    function = globals()[name]

    @wraps(function)
    def call(*args, **how):
        made = function(*args, **how)
        if made._node is not None and made.ndim != -1:
            made._said = title
        return made

    globals()[name] = call


for _name, _title in {
    "silu": "Silu", "cross_entropy": "NllLoss", "embedding": "Embedding", "layer_norm": "NativeLayerNorm",
    "nll_loss": "NllLoss", "relu": "Relu", "gelu": "Gelu",
}.items():  # fmt: skip
    _titled(_name, f"{_title}Backward0")


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no F.{name}: open this page in Colab")
