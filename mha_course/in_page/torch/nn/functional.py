"""Functions of layers; torch's documentation says what they do."""

from __future__ import annotations

import math

from .._functions import rand
from .._memory import BOOL, FLOAT, bool_, int64, need
from .._tensor import Tensor, where

relu, sigmoid, tanh = Tensor.relu, Tensor.sigmoid, Tensor.tanh


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    return input.softmax(dim, dtype=dtype)


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    return input.log_softmax(dim, dtype=dtype)


def silu(input):
    return input * input.sigmoid()


def gelu(input, approximate="none"):
    told = f"approximate must be 'none' or 'tanh', got {approximate!r}"
    need(approximate in ("none", "tanh"), told)
    input._floating("gelu", NotImplementedError)
    if approximate == "none":
        return input * 0.5 * (1 + (input / math.sqrt(2)).erf())
    inner = math.sqrt(2 / math.pi) * (input + 0.044715 * input**3)
    return 0.5 * input * (1 + inner.tanh())


def linear(input, weight, bias=None):
    product = input @ weight.t()
    return product if bias is None else product + bias


def embedding(input, weight, padding_idx=None):
    told = f"tokens must be integers, got {input.dtype}"
    need(input.dtype.kind not in (BOOL, FLOAT), told)
    inside = all(0 <= token < len(weight) for token in input._numbers())
    need(inside, f"a token is out of range for {len(weight)} rows", IndexError)
    return weight[input]


def one_hot(tensor, num_classes=-1):
    need(tensor.dtype is int64, f"one_hot takes int64, got {tensor.dtype}")
    numbers = tensor._numbers()
    need(numbers or num_classes > 0, "one_hot needs num_classes where there is no number")
    count = max(numbers) + 1 if num_classes == -1 else num_classes
    inside = all(0 <= number < count for number in numbers)
    need(inside, f"numbers must lie in 0..{count - 1}, got {numbers[:5]}")
    values = [int(number == i) for number in numbers for i in range(count)]
    return tensor._made(values, (*tensor.shape, count))


def dropout(input, p=0.5, training=True):
    need(0 <= p <= 1, f"p must lie in 0..1, got {p}", ValueError)
    if not training or p == 0:
        return input
    return input * (rand(input.shape) >= p) / (1 - p) if p < 1 else input * 0


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    count = len(normalized_shape)
    told = f"the last axes of {tuple(input.shape)} are not {tuple(normalized_shape)}"
    need(count and input.shape[-count:] == tuple(normalized_shape), told)
    axes = list(range(-count, 0))
    wide = input._floating("layer_norm", NotImplementedError).double()
    centred = wide - wide.mean(axes, keepdim=True)
    normed = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    normed = normed if weight is None else normed * weight
    return (normed if bias is None else normed + bias).to(input.dtype)


def normalize(input, p=2.0, dim=1, eps=1e-12):
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    return (normalize(x1, 2, dim, eps) * normalize(x2, 2, dim, eps)).sum(dim)


def _reduced(losses, reduction):
    told = f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}"
    need(reduction in ("mean", "sum", "none"), told, ValueError)
    return losses if reduction == "none" else getattr(losses, reduction)()


def mse_loss(input, target, reduction="mean"):
    return _reduced((input - target).square(), reduction)


def nll_loss(input, target, ignore_index=-100, reduction="mean"):
    return _of_classes(input, target, ignore_index, reduction, 0.0)


def cross_entropy(
    input, target, *, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    log_probs = input.log_softmax(1 if input.ndim > 1 else 0)
    if target.dtype.kind == FLOAT:
        told = f"{tuple(target.shape)} are not the probabilities of {tuple(input.shape)}"
        need(target.shape == input.shape, told)
        axis = 1 if input.ndim > 1 else 0
        count = input.shape[axis]
        target = target * (1 - label_smoothing) + label_smoothing / count
        losses = -(log_probs * target).sum(axis)
        mean = reduction == "mean"
        return losses.sum() / max(losses.numel(), 1) if mean else _reduced(losses, reduction)
    return _of_classes(log_probs, target, ignore_index, reduction, label_smoothing)


def _of_classes(log_probs, target, ignore_index, reduction, smoothing):
    """Return the loss of the classes that a target names, along axis 1."""
    last = log_probs.movedim(1, -1) if log_probs.ndim > 1 else log_probs
    told = f"a target {tuple(target.shape)} does not fit {tuple(log_probs.shape)}"
    need(target.shape == last.shape[:-1], told, ValueError)
    need(target.dtype is int64, f"a target of classes is int64, got {target.dtype}")
    counts, classes = target != ignore_index, last.shape[-1]
    kept = where(counts, target, 0)
    inside = all(0 <= one < classes for one in kept._numbers())
    need(inside, f"a class lies outside 0..{classes - 1}", IndexError)
    losses = -last.gather(-1, kept.unsqueeze(-1)).squeeze(-1)
    losses = losses * (1 - smoothing) - last.mean(-1) * smoothing
    losses = where(counts, losses, 0.0)
    return losses.sum() / counts.sum() if reduction == "mean" else _reduced(losses, reduction)


def pad(input, pad, mode="constant", value=None):
    told = f"pad {pad} does not name pairs of the {input.ndim} axes"
    need(mode == "constant" and len(pad) % 2 == 0 and len(pad) <= 2 * input.ndim, told)
    shape, inside = list(input.shape), [slice(None)] * input.ndim
    for i in range(len(pad) // 2):
        axis, (before, after) = -1 - i, pad[2 * i : 2 * i + 2]
        shape[axis] += before + after
        inside[axis] = slice(before, before + input.shape[axis])
    made = input.new_full(shape, value or 0)
    made[tuple(inside)] = input
    return made


def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    told = f"matrices are expected, got shapes {query.shape} and {key.shape}"
    need(query.ndim > 1 and key.ndim > 1 and value.ndim > 1, told)
    if enable_gqa:
        group = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(group, -3) for x in (key, value))
    scores = query @ key.mT * (scale or 1 / math.sqrt(query.shape[-1] or 1))
    if is_causal:
        need(attn_mask is None, "attn_mask must be None where is_causal is True")
        attn_mask = scores.new_full(scores.shape[-2:], True, dtype=bool_).tril()
    if attn_mask is not None and attn_mask.dtype.kind == BOOL:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        told = f"attn_mask must be bool or of {query.dtype}, got {attn_mask.dtype}"
        need(attn_mask.dtype is query.dtype, told)
        scores = scores + attn_mask
    # A query that may see nothing gets zeros.
    hidden = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.softmax(-1).masked_fill(hidden, 0.0)
    return dropout(weights, dropout_p) @ value
