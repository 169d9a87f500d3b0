"""New tensors, random draws, and functions of several tensors; torch's documentation explains them."""

from __future__ import annotations

import contextlib
import math
from itertools import accumulate, chain
from functools import reduce
from math import prod
from operator import mul

from ._memory import BOOL, FLOAT, NeedsTorchError, axis_of, bool_, broadcast, float32, int64, ints, need
from ._random import default_generator
from . import _kernels
from ._tape import is_recorded, record
from ._tensor import Tensor, _laid_out, as_dtype, result_type, same_device, where


def tensor(data, *, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=None, **_):
    need(not _, f"tensor got an unexpected {[*_]}", TypeError)
    one = type(data) is float and abs(data) < math.inf  # a large one becomes infinite
    made = (Tensor._from([data], dtype)[0].clone() if one else Tensor._from(data, dtype)).to(device=device)
    return made.requires_grad_() if requires_grad else made


def as_tensor(data, dtype=None, **how):
    return data.to(dtype=dtype) if isinstance(data, Tensor) else tensor(data, dtype=dtype, **how)


def full(size, fill_value, *, dtype=None, **how):
    need(isinstance(size, (tuple, list)), f"size must be a tuple, got {size!r}", TypeError)
    need(min(ints((size,)), default=0) >= 0, f"no size may be negative, got {size}")
    return tensor(Tensor._from(fill_value, dtype).expand(tuple(size)), **how)


def zeros(*size, dtype=None, **how):
    return full(ints(size), 0, dtype=dtype or float32, **how)


def ones(*size, dtype=None, **how):
    return full(ints(size), 1, dtype=dtype or float32, **how)


def arange(start, end=None, step=1, *, dtype=None, **how):
    start, end = (0, start) if end is None else (start, end)
    start, end, step = (x.item() if isinstance(x, Tensor) else x for x in (start, end, step))
    need(step and (end - start) / step >= 0, f"steps of {step} from {start} do not reach {end}")
    told = "a sequence of bool cannot be made"
    need(dtype is None or as_dtype(dtype).kind > BOOL, told, NotImplementedError)
    values = [start + i * step for i in range(math.ceil((end - start) / step))]
    return tensor(values, dtype=dtype or result_type(start, end, step), **how)


def linspace(start, end, steps, **how):
    need(not any(isinstance(x, Tensor) and x.ndim for x in (start, end)), "start and end must be numbers")
    start, end = (x.item() if isinstance(x, Tensor) else x for x in (start, end))
    need(steps >= 0, f"the number of steps must not be negative, got {steps}")
    dtype = as_dtype(how.pop("dtype", None)) or float32
    need(dtype.itemsize > 2, f"steps of {dtype} need", NeedsTorchError)
    values = [start + i * (end - start) / max(steps - 1, 1) for i in range(steps)]
    return tensor(values, dtype=dtype, **how)


def eye(n, m=None, *, dtype=float32, **how):
    columns = n if m is None else m
    need(n >= 0 and columns >= 0, f"no size may be negative, got {n} and {columns}")
    return tensor([i == j for i in range(n) for j in range(columns)], dtype=dtype, **how).view(n, columns)


def rand(*size, generator=None, **how):
    return _drawn(Tensor.uniform_, size, generator, how)


def randn(*size, generator=None, **how):
    return _drawn(Tensor.normal_, size, generator, how)


def _drawn(draw, size, generator, how):
    """Return a new tensor of random numbers."""
    needs = how.pop("requires_grad", False)
    return draw(zeros(*size, **how), generator=generator).requires_grad_(needs)


def _like(make, draw=None):
    """Return a function that makes a tensor with shape, dtype, device and order of axes of a given one."""

    def like(input, *args, memory_format=None, **how):
        given = {name: value for name, value in how.items() if value is not None}
        how = {"dtype": input.dtype, "device": input.device} | given
        needs, generator = how.pop("requires_grad", False), how.pop("generator", None)
        made = make(input.shape, *args, **how)
        made = made if input.is_contiguous() or memory_format else _laid_out(made, [input])
        made = draw(made, generator=generator) if draw else made
        return made.requires_grad_(needs)

    return like


full_like, zeros_like, ones_like = map(_like, (full, zeros, ones))
rand_like, randn_like = _like(zeros, Tensor.uniform_), _like(zeros, Tensor.normal_)
empty, empty_like = zeros, zeros_like


def randint(low, high=None, size=None, *, generator=None, dtype=int64, **how):
    low, high, size = (0, low, high) if size is None else (low, high, size)
    need(min(ints((size,)), default=0) >= 0, f"no size may be negative, got {size}")
    need(high > low, f"randint needs high above low, got {low} and {high}")
    draw = (generator or default_generator).whole
    return tensor([low + draw(high - low) for _ in range(prod(size))], dtype=dtype, **how).view(size)


def randperm(n, *, generator=None, **how):
    need(n >= 0, f"n must not be negative, got {n}")
    told = "a permutation of bool cannot be made"
    need(as_dtype(how.get("dtype")) is not bool_, told, NotImplementedError)
    values, draw = list(range(n)), (generator or default_generator).whole
    for i in range(n - 1):
        j = i + draw(n - i)
        values[i], values[j] = values[j], values[i]
    how["dtype"] = how.get("dtype") or int64
    return tensor(values, **how)


def multinomial(input, num_samples, replacement=False, *, generator=None):
    need(not replacement or num_samples == 1, "draws with replacement need", NeedsTorchError)
    told = f"probabilities are floating-point numbers, got {input.dtype}"
    need(input.dtype.kind == FLOAT, told)
    enough = replacement or 0 < num_samples <= input.shape[-1]
    need(enough, f"{num_samples} of {input.shape[-1]} cannot be drawn without replacement")
    right = (input.isfinite() & (input >= 0)).all() and (input.sum(-1) > 0).all()
    need(right, "probabilities must not be negative, infinite or NaN, nor all 0")
    times, generator = num_samples if replacement else 1, generator or default_generator
    waits = [input._made(generator.exponentials(input.numel()), input.shape) for _ in range(times)]
    return _laid_flat([(input / wait).topk(num_samples // times).indices for wait in waits])


def _laid_flat(parts):
    """Return places that were drawn, in memory without gaps."""
    made = cat(parts, -1)
    return made._made(made._numbers(), made.shape)


def manual_seed(seed):
    return default_generator.manual_seed(seed)


@contextlib.contextmanager
def fork_rng(*_, **__):
    state = default_generator.get_state()
    try:
        yield
    finally:
        default_generator.set_state(state)


def cat(tensors, dim=0):
    need(len(tensors), "cat needs at least one tensor", ValueError)
    parts = [one for one in tensors if one.shape != (0,)] or tensors[:1]
    shape, common = parts[0].shape, result_type(*tensors)
    need(shape, "tensors without axes cannot be joined: use stack")
    axis = axis_of(dim, len(shape))
    for one in parts:
        fits = one.ndim == len(shape) and one.shape == (*shape[:axis], one.shape[axis], *shape[axis + 1 :])
        need(fits, f"{tuple(one.shape)} cannot be joined to {tuple(shape)} along axis {dim}")
    turned = [one.detach().to(common).movedim(axis, 0) for one in parts]
    size, values = sum(map(len, turned)), list(chain(*(one._numbers() for one in turned)))
    made = same_device(parts)._made(values, (size, *turned[0].shape[1:]), common)
    made = made.movedim(0, axis).contiguous()
    ends = list(accumulate(one.shape[axis] for one in parts))
    of_part = lambda end, size: lambda g: g.narrow(axis, end - size, size)
    gradients = [of_part(end, one.shape[axis]) for end, one in zip(ends, parts, strict=True)]
    return record(made, "Cat", gradients, parts)


def stack(tensors, dim=0):
    need(len(tensors), "stack needs at least one tensor")
    axis_of(dim, tensors[0].ndim + 1)
    shapes = {tuple(one.shape) for one in tensors}
    need(len(shapes) == 1, f"stack needs tensors of one shape, got {sorted(shapes)}")
    return cat([one.unsqueeze(dim) for one in tensors], dim)


def hstack(tensors):
    need(len(tensors), "hstack needs at least one tensor")
    parts = [one if one.ndim else one.unsqueeze(0) for one in tensors]
    return cat(parts, int(parts[0].ndim > 1))


def vstack(tensors):
    need(len(tensors), "vstack needs at least one tensor")
    parts = [one if one.ndim else one.unsqueeze(0) for one in tensors]
    return cat([one if one.ndim > 1 else one.unsqueeze(0) for one in parts])


def is_tensor(obj):
    return isinstance(obj, Tensor)


def logaddexp(input, other):
    two = [one.to(result_type(input, other)) for one in (input, other)]
    need(two[0].is_floating_point(), "logaddexp takes no integers", NotImplementedError)
    most, least = two[0].maximum(two[1]), two[0].minimum(two[1])
    return most + where(most == least, most.new_zeros(()), least - most).exp().log1p()


def meshgrid(*tensors, indexing="ij"):
    axes = tensors[0] if isinstance(tensors[0], (list, tuple)) else tensors
    need(indexing in ("ij", "xy"), f"indexing is 'ij' or 'xy', got {indexing!r}")
    need(axes and max(one.ndim for one in axes) < 2, "meshgrid takes tensors of one axis")
    need(len({one.dtype for one in axes}) == 1, "meshgrid takes tensors of one dtype")
    turned = indexing == "xy" and len(axes) > 1
    axes = [axes[1], axes[0], *axes[2:]] if turned else axes
    shape = [one.numel() for one in axes]
    sizes = [[-1 if i == place else 1 for i in range(len(axes))] for place in range(len(axes))]
    grids = [one.reshape(size).expand(shape) for one, size in zip(axes, sizes, strict=True)]
    return tuple([grids[1], grids[0], *grids[2:]] if turned else grids)


def einsum(equation, *operands):
    """Multiply along axes that letters name, and sum over those that the result does not name."""
    operands = operands[0] if isinstance(operands[0], (list, tuple)) else operands
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms, sizes, most, steps = left.split(","), {}, "", []
    told = f"{equation!r} does not fit {[(tuple(x.shape), x.dtype) for x in operands]}"
    need(len(terms) == len(operands) and len({one.dtype for one in operands}) == 1, told)
    for term, one in zip(terms, operands, strict=True):
        # The axes of "..." are called 0, 1, 2 from the last one.
        dots = "".join(map(str, range(one.ndim - len(term.replace("...", "")))))[::-1]
        term, most, step = term.replace("...", dots), max(most, dots, key=len), {}
        need(len(term) == one.ndim, told)
        for label, size, stride in zip(term, one.shape, one._strides, strict=True):
            before = sizes.get(label, 1)
            need(size == before if label in step else 1 in (size, before) or size == before, told)
            sizes[label] = sizes.get(label, 1) if size == 1 else size
            step[label] = step.get(label, 0) + stride * (size != 1 or len(operands) == 1)
        steps.append(step)
    once = sorted(label for label in sizes if label.isalpha() and left.count(label) == 1)
    right = right.replace("...", most) if arrow else most + "".join(once)
    need({*right} <= {*sizes} and len({*right}) == len(right), told)
    labels = [*right, *(label for label in sizes if label not in right)]
    shape, pairs = [sizes[label] for label in labels], zip(operands, steps, strict=True)
    views = [one._see(shape, [step.get(label, 0) for label in labels]) for one, step in pairs]
    if len(views) == 1 and len(labels) == len(right):
        return views[0]
    if is_recorded(operands) or any(map(_kernels.serves, operands)):
        made = reduce(mul, views) if len(views) > 1 else views[0].clone()
    else:
        products = [prod(numbers) for numbers in zip(*(view._numbers() for view in views), strict=True)]
        made = same_device(operands)._made(products, shape)
    if len(shape) == len(right):
        return made
    made = made.flatten(len(right)).sum(-1)
    if len(operands) != 2:
        return made
    # Torch multiplies matrices, whose axes are in this order in memory.
    held = [{*step} for step in steps]
    both = held[0] & held[1]
    alone = next((label for label in right if label not in both), "")
    first = held[alone in held[1]]
    order = sorted(range(len(right)), key=lambda i: (right[i] not in both, right[i] not in first))
    return made.permute(order).contiguous().permute([order.index(i) for i in range(len(right))])


def split(tensor, split_size_or_sections, dim=0):
    return tensor.split(split_size_or_sections, dim)


def norm(input, p="fro", dim=None, keepdim=False, out=None, dtype=None):
    need(out is None, "norm with out= needs", NeedsTorchError)
    return input.norm(p, dim, keepdim, dtype)


def cdist(x1, x2, p=2.0):
    return (x1.unsqueeze(-2) - x2.unsqueeze(-3)).norm(p, -1)


def unravel_index(indices, shape):
    found = []
    for size in shape[::-1]:
        found, indices = [indices % size, *found], indices // size
    return tuple(found)


def broadcast_shapes(*shapes):
    return broadcast(*shapes)
