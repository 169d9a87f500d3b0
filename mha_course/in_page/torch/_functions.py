"""New tensors, random numbers, and functions of several tensors; torch's documentation says what they do."""

from __future__ import annotations

import contextlib
import math
from itertools import chain
from math import prod

from ._memory import (
    axis_of,
    broadcast,
    float16,
    float32,
    float64,
    int64,
    ints,
    need,
)
from ._random import default_generator
from ._tensor import Tensor, result_type, together

__all__ = """
    tensor as_tensor full zeros ones empty full_like zeros_like ones_like empty_like arange linspace eye rand randn rand_like randn_like randint randperm multinomial manual_seed fork_rng cat stack einsum cdist unravel_index promote_types broadcast_shapes broadcast_tensors assert_close
""".split()


def _placed(made, device=None, requires_grad=False, **_):
    made = made if device is None else made.to(device)
    return made.requires_grad_() if requires_grad else made


def tensor(data, *, dtype=None, **how):
    return _placed(Tensor._from(data, dtype), **how)


def as_tensor(data, dtype=None, **how):
    return data.to(dtype) if isinstance(data, Tensor) else tensor(data, dtype=dtype, **how)


def full(size, fill_value, *, dtype=None, **how):
    need(isinstance(size, (tuple, list)), f"size must be a tuple, got {size}", TypeError)
    need(min(ints((size,)), default=0) >= 0, f"no size may be negative, got {size}")
    return _placed(tensor(fill_value, dtype=dtype).expand(*size).contiguous(), **how)


def zeros(*size, dtype=float32, **how):
    return full(ints(size), 0, dtype=dtype or float32, **how)


def ones(*size, dtype=float32, **how):
    return full(ints(size), 1, dtype=dtype or float32, **how)


empty = zeros


def full_like(input, fill_value, *, dtype=None, device=None, **how):
    made = full(input.shape, fill_value, dtype=dtype or input.dtype, **how)
    return made._laid_out_as([input]).to(device or input.device)


def zeros_like(input, **how):
    return full_like(input, 0, **how)


def ones_like(input, **how):
    return full_like(input, 1, **how)


empty_like = zeros_like


def arange(start, end=None, step=1, *, dtype=None, **how):
    start, end = (0, start) if end is None else (start, end)
    numbers = [x.item() if isinstance(x, Tensor) else x for x in (start, end, step)]
    start, end, step = numbers
    need(step and (end - start) / step >= 0, f"arange: {step} does not lead to {end}")
    count = math.ceil((end - start) / step)
    values = [start + i * step for i in range(count)]
    return tensor(values, dtype=dtype or result_type(*numbers), **how)


def linspace(start, end, steps, *, dtype=float32, **how):
    step = (end - start) / max(steps - 1, 1)
    values = [start + i * step for i in range(steps)]
    return tensor(values, dtype=dtype, **how)


def eye(n, m=None, *, dtype=float32, **how):
    columns = n if m is None else m
    need(n >= 0 and columns >= 0, f"no size may be negative, got {n} and {columns}")
    values = [[i == j for j in range(columns)] for i in range(n)]
    return tensor(values, dtype=dtype, **how).view(n, columns)


def rand(*size, generator=None, dtype=float32, **how):
    return _placed(zeros(ints(size), dtype=dtype).uniform_(generator=generator), **how)


def randn(*size, generator=None, dtype=float32, **how):
    return _placed(zeros(ints(size), dtype=dtype).normal_(generator=generator), **how)


def rand_like(input, **how):
    return rand(input.shape, **{"dtype": input.dtype, **how})


def randn_like(input, **how):
    return randn(input.shape, **{"dtype": input.dtype, **how})


def randint(low, high=None, size=None, *, generator=None, dtype=int64, **how):
    if size is None:
        low, high, size = 0, low, high
    need(high > low, f"randint needs high above low, got {low} and {high}")
    draw = (generator or default_generator).whole
    values = [low + draw(high - low) for _ in range(prod(size))]
    return tensor(values, dtype=dtype, **how).view(size)


def randperm(n, *, generator=None, dtype=int64, **how):
    values, draw = list(range(n)), (generator or default_generator).whole
    for i in range(n - 1):
        j = i + draw(n - i)
        values[i], values[j] = values[j], values[i]
    return tensor(values, dtype=dtype, **how)


def multinomial(input, num_samples, replacement=False, *, generator=None):
    told = f"{num_samples} of {input.shape[-1]} cannot be drawn without replacement"
    need(replacement or 0 < num_samples <= input.shape[-1], told)
    told = "probabilities must not be negative, infinite or NaN, nor all 0"
    right = input.isfinite() & (input >= 0)
    need(right.all() and (input.sum(-1) > 0).all(), told)
    generator, drawn = generator or default_generator, []
    for _ in range(num_samples if replacement else 1):
        waits = input._made([generator.exponential() for _ in range(input.numel())], input.shape)
        drawn.append((input / waits).topk(1 if replacement else num_samples).indices)
    return cat(drawn, -1)


def manual_seed(seed):
    return default_generator.manual_seed(seed)


@contextlib.contextmanager
def fork_rng(*_, **__):
    state = default_generator.get_state()
    try:
        yield
    finally:
        default_generator.set_state(state)


# ------------------------------------------------------------------ several tensors
def cat(tensors, dim=0):
    need(len(tensors), "cat needs at least one tensor", ValueError)
    parts = [one for one in tensors if one.shape != (0,)] or tensors[:1]
    shape = parts[0].shape
    need(shape, "tensors without axes cannot be joined: use stack")
    axis = axis_of(dim, len(shape))
    for one in parts:
        other = [*one.shape[:axis], shape[axis], *one.shape[axis + 1 :]]
        told = f"{tuple(one.shape)} cannot be joined to {tuple(shape)} along axis {dim}"
        need(len(one.shape) == len(shape) and tuple(other) == shape, told)
    common = result_type(*tensors)
    turned = [one.to(common).movedim(axis, 0) for one in parts]
    values = list(chain.from_iterable(one._numbers() for one in turned))
    size = sum(map(len, turned))
    made = together(parts)._made(values, (size, *turned[0].shape[1:]), common)
    return made.movedim(0, axis).contiguous()


def stack(tensors, dim=0):
    need(len(tensors), "stack needs at least one tensor")
    axis_of(dim, tensors[0].ndim + 1)
    shapes = {tuple(one.shape) for one in tensors}
    need(len(shapes) == 1, f"stack needs tensors of one shape, got {sorted(shapes)}")
    return cat([one.unsqueeze(dim) for one in tensors], dim)


def einsum(equation, *operands):
    """Multiply along named axes and add up over those that are not in the result; "..." broadcasts."""
    if isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms, sizes, most = left.split(","), {}, ""
    need(len(terms) == len(operands), f"{equation!r} does not name {len(operands)} tensors")
    need(len({one.dtype for one in operands}) == 1, "einsum needs tensors of one dtype")
    steps = []
    for term, one in zip(terms, operands, strict=True):
        # The axes of "..." are called 0, 1, 2 from the last one.
        rest = "".join(map(str, range(one.ndim - len(term.replace("...", "")))))[::-1]
        term, most = term.replace("...", rest), max(most, rest, key=len)
        told = f"{equation!r} does not fit shapes {[tuple(x.shape) for x in operands]}"
        need(len(term) == one.ndim, told)
        steps.append({})
        for label, size, stride in zip(term, one.shape, one._strides, strict=True):
            again = label in steps[-1] and size != sizes[label]
            need(not again and (size == 1 or sizes.get(label, 1) in (1, size)), told)
            sizes[label] = sizes.get(label, 1) if size == 1 else size
            steps[-1][label] = steps[-1].get(label, 0) + stride * (size > 1)
    once = sorted(label for label in sizes if label.isalpha() and left.count(label) == 1)
    right = right.replace("...", most) if arrow else most + "".join(once)
    told = f"the result of {equation!r} must name axes of its terms, each once"
    need(set(right) <= set(sizes) and len(set(right)) == len(right), told)
    labels = [*right, *(label for label in sizes if label not in right)]
    shape = [sizes[label] for label in labels]
    views = [
        one._see(shape, [step.get(label, 0) for label in labels])
        for one, step in zip(operands, steps, strict=True)
    ]
    products = list(map(prod, zip(*(view._numbers() for view in views), strict=True)))
    length, shape = prod(shape[len(right) :]), shape[: len(right)]
    starts = [i * length for i in range(prod(shape))]
    values = [sum(products[start : start + length]) for start in starts]
    return together(operands)._made(values, shape)


def cdist(x1, x2, p=2.0):
    return (x1.unsqueeze(-2) - x2.unsqueeze(-3)).norm(p, -1)


def unravel_index(indices, shape):
    found = []
    for size in shape[::-1]:
        found.append(indices % size)
        indices = indices // size
    return tuple(found[::-1])


def promote_types(a, b):
    return max(a, b, key=lambda one: one.rank)


def broadcast_shapes(*shapes):
    return broadcast(*shapes)


def broadcast_tensors(*tensors):
    shape = broadcast(*(one.shape for one in tensors))
    return tuple(one.expand(shape) for one in tensors)


def assert_close(actual, expected, *, rtol=None, atol=None, equal_nan=False, **_):
    actual, expected = as_tensor(actual), as_tensor(expected)
    told = f"{tuple(actual.shape)} {actual.dtype}, not {tuple(expected.shape)} {expected.dtype}"
    same = actual.shape == expected.shape and actual.dtype is expected.dtype
    need(same, told, AssertionError)
    usual = {float32: (1.3e-6, 1e-5), float64: (1e-7, 1e-7), float16: (1e-3, 1e-5)}
    usual = usual.get(actual.dtype, (0, 0)) if rtol is None else (rtol, atol)
    close = actual.isclose(expected, *usual, equal_nan)
    told = f"{(~close).sum()} of {close.numel()} numbers are not close"
    need(close.all(), told, AssertionError)
