"""What is computed with tensors, number by number: arithmetic, reductions, products, sorting."""

from __future__ import annotations

import math
import operator
from contextlib import ContextDecorator
from itertools import accumulate, chain
from math import inf, prod

from . import _numbers
from ._memory import (
    BOOL,
    FLOAT,
    Device,
    DType,
    NeedsTorchError,
    Strided,
    axis_of,
    bool_,
    broadcast,
    convert,
    float16,
    float32,
    float64,
    int32,
    int64,
    ints,
    need,
    store,
    strides_of,
)
from ._random import default_generator

_DTYPES = {"bool": bool_, "int64": int64}
_OF_NUMBERS = {bool: bool_, int: int64, float: float32}


class GradMode(ContextDecorator):
    """Whether torch would record operations: then a parameter must not be changed in place."""

    enabled = True

    def __init__(self, enabled):
        self._enabled, self._before = enabled, []

    def __enter__(self):
        self._before.append(GradMode.enabled)
        GradMode.enabled = self._enabled

    def __exit__(self, *_):
        GradMode.enabled = self._before.pop()


class no_grad(GradMode):  # noqa: N801, the names are torch's
    """Let parameters be changed in place."""

    def __init__(self):
        super().__init__(False)


class enable_grad(GradMode):  # noqa: N801
    """Do not let parameters be changed in place."""

    def __init__(self):
        super().__init__(True)


def _type_of(number):
    if isinstance(number, complex):
        raise NeedsTorchError("complex numbers need")
    told = f"a tensor or a number is expected, got {type(number).__name__}"
    need(type(number) in _OF_NUMBERS, told, TypeError)
    return _OF_NUMBERS[type(number)]


def result_type(*inputs):
    """Return the dtype of a result: tensors with axes count before those without, and these before numbers."""
    levels = [[], [], []]
    for one in inputs:
        if isinstance(one, Tensor):
            levels[one.ndim == 0].append(one.dtype)
        else:
            levels[2].append(_type_of(one))
    found = [max(level, key=lambda dtype: dtype.rank) for level in levels if level]
    return max(found, key=lambda dtype: dtype.kind)  # the first one of the largest kind


def apply(function, *inputs, common=None, result=None, otherwise=None):
    """Return a function of each number, or of the numbers at the same place after broadcasting.

    The inputs are converted to the dtype `common`, and what the function returns is stored as `result`.
    `otherwise` is called where the function raises an error of arithmetic.
    """
    common = common or result_type(*inputs)
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    shape = broadcast(*(one.shape for one in tensors))
    columns = []
    for one in inputs:
        if isinstance(one, Tensor):
            numbers = (one if one.shape == shape else one.expand(shape))._numbers()
            columns.append(convert(numbers, one.dtype, common))
        else:
            number = one if common.kind < FLOAT else store([one], common)[0]
            columns.append([number] * shape.numel())
    try:
        values = list(map(function, *columns))
    except (ArithmeticError, ValueError):
        if otherwise is None:
            raise
        values = []
        for numbers in zip(*columns, strict=True):
            try:
                values.append(function(*numbers))
            except (ArithmeticError, ValueError):
                values.append(otherwise(*numbers))
    made = together(tensors)._made(values, shape, result or common)
    return made._laid_out_as(tensors)


def together(tensors):
    """Return one of the tensors, whose device is that of the result."""
    there = [one for one in tensors if one.device == "meta"]
    alone = all(one.ndim == 0 or one.device == "meta" for one in tensors)
    need(alone or not there, "tensors are on different devices, cpu and meta")
    return (there or tensors)[0]


class Result(tuple):
    """Results with names, such as `values` and `indices`."""

    __slots__ = ()
    values, indices = (property(operator.itemgetter(i)) for i in range(2))

    def __repr__(self):
        return f"torch.return_types(\nvalues={self[0]},\nindices={self[1]})"


def _read(data):
    """Return the shape, the flat numbers and the dtype of nested numbers."""
    if isinstance(data, Tensor):
        told = f"only tensors with one number can be parts of a list, got {data.numel()}"
        need(data.numel() == 1, told, ValueError)
        return (), data._numbers(), data.dtype
    if not isinstance(data, (list, tuple, range)):
        return (), [data], _type_of(data)
    if not data:
        return (0,), [], float32
    parts = [_read(one) for one in data]
    shapes = {tuple(shape) for shape, _, _ in parts}
    told = f"the rows of a tensor must have one shape, got {sorted(shapes)}"
    need(len(shapes) == 1, told, ValueError)
    dtype = max((dtype for _, _, dtype in parts), key=lambda dtype: dtype.rank)
    return (len(parts), *shapes.pop()), list(chain(*(part[1] for part in parts))), dtype


class Tensor(Strided):
    """Numbers of one dtype with a shape. What its methods do, torch's documentation says."""

    grad, is_leaf, layout = None, True, "torch.strided"
    is_cuda = is_sparse = is_nested = is_quantized = False

    def __new__(cls, *data):
        """Make a float32 tensor of nested numbers or of a shape, as torch does."""
        if len(data) == 1 and not isinstance(data[0], int):
            return cls._from(data[0], float32)
        return cls._from([0.0] * prod(ints(data))).view(ints(data))

    @classmethod
    def _from(cls, data, dtype=None):
        if isinstance(data, Tensor):
            shape, values, found = data.shape, data._numbers(), data.dtype
        else:
            shape, values, found = _read(data)
        dtype = dtype or found
        if shape == () and dtype.kind > BOOL:
            largest = finfo(dtype).max if dtype.kind == FLOAT else 2 ** (8 * dtype.itemsize - 1)
            fits = not largest < abs(values[0]) < inf
            need(fits, f"{values[0]} is too large for {dtype}")
        return Tensor._of(store(convert(values, found, dtype), dtype), shape, dtype)

    @classmethod
    def _index(cls, data):
        return cls._from(data, int64 if data == [] else None)

    def __deepcopy__(self, _):
        pattern = self.shape, self.dtype, self._strides, self._offset
        made = self._like(type(self)._of(self._memory[:], *pattern))
        made.requires_grad = self.requires_grad
        return made

    def _dense(self):
        """Return a copy without gaps in memory."""
        return self._made(self._numbers(), self.shape)

    def _laid_out_as(self, sources):
        """Return this new tensor with its axes in memory in the order that those of its sources have."""
        if all(one.is_contiguous() for one in sources):
            return self
        strides = [one.expand(self.shape)._strides for one in sources]
        order = list(range(self.ndim))[::-1]  # the last axis is the innermost one
        for last in range(1, self.ndim):
            place = last
            for i in range(last)[::-1]:
                pairs = [(step[order[i]], step[order[place]]) for step in strides]
                first = next((p for p in pairs if all(p) and p[0] != p[1]), (0, 0))
                if first[0] > first[1]:
                    order[i], order[place], place = order[place], order[i], i
                elif first[0] < first[1]:
                    break
        order.reverse()
        back = [order.index(axis) for axis in range(self.ndim)]
        return self.permute(order)._dense().permute(back)

    # ------------------------------------------------------------------ conversion
    def to(self, *args, dtype=None, device=None, copy=False, **_):
        for one in args:
            if isinstance(one, DType):
                dtype = one
            elif isinstance(one, Tensor):
                dtype, device = one.dtype, one.device
            elif isinstance(one, str):
                device = one
            else:
                need(one is None or isinstance(one, bool), f"to takes no {one!r}", TypeError)
        dtype = dtype or self.dtype
        device = self.device if device is None else Device(device)
        told = "a tensor on the device meta has no numbers"
        need(device == "meta" or not self.is_meta, told, NotImplementedError)
        if (dtype, device) == (self.dtype, self.device) and not copy:
            return self
        numbers = convert(self._numbers(), self.dtype, dtype)
        made = self._made(numbers, self.shape, dtype)._laid_out_as([self])
        if device == "meta":
            made.device = device
        return made

    def cpu(self):
        return self.to("cpu")

    def clone(self, **_):
        return self._dense()._laid_out_as([self])

    def contiguous(self, **_):
        return self if self.is_contiguous() else self._dense()

    def detach(self):
        view = self._see(self.shape, self._strides)
        view.requires_grad = False
        return view

    def _swap(self, other):
        self._memory, self.shape, self.dtype = other._memory, other.shape, other.dtype
        self._strides, self._offset = other._strides, other._offset
        self.device = other.device
        return self

    data = property(detach, lambda self, other: self._swap(other) and None)

    def requires_grad_(self, requires_grad=True):
        told = f"only floating-point numbers have gradients, got {self.dtype}"
        need(not requires_grad or self.dtype.kind == FLOAT, told)
        self.requires_grad = requires_grad
        return self

    def backward(self, *_, **__):
        raise NeedsTorchError("gradients need")

    def numpy(self, *_, **__):
        raise NeedsTorchError("arrays of NumPy need")

    def tolist(self):
        values = self._numbers()
        need(not self.is_meta, "a tensor on the device meta has no numbers")
        values = list(map(bool, values)) if self.dtype.kind == BOOL else values
        for axis in range(1, self.ndim)[::-1]:
            size, count = self.shape[axis], prod(self.shape[:axis])
            values = [values[i * size : (i + 1) * size] for i in range(count)]
        return values if self.shape else values[0]

    def item(self):
        told = f"a tensor with {self.numel()} numbers is not one number: use any() or all(), or an index"
        need(self.numel() == 1, told)
        return self.reshape(()).tolist()

    def __bool__(self):
        return bool(self.item())

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __index__(self):
        whole = self.dtype.kind < FLOAT and self.numel() == 1
        need(whole, "only a tensor with one integer can be an index", TypeError)
        return int(self.item())

    def __len__(self):
        need(self.ndim, "a tensor without axes has no length", TypeError)
        return self.shape[0]

    def __iter__(self):
        need(self.ndim, "a tensor without axes has no parts", TypeError)
        return iter(self.unbind(0))

    def __format__(self, form):
        return format(self.item() if form and not self.ndim else repr(self), form)

    def __contains__(self, number):
        return bool((self == number).any())

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        told = f"the small stand-in for torch has no Tensor.{name}"
        raise AttributeError(f"{told}: open this page in Colab", name=name, obj=self)

    # ------------------------------------------------------------------ changes in place
    def _may_change(self):
        told = "a parameter, or a view of one, is changed in place: use torch.no_grad()"
        need(not (self.requires_grad and GradMode.enabled), told)

    def _become(self, new):
        """Take the numbers of a result, if they fit."""
        self._may_change()
        told = f"{tuple(new.shape)} {new.dtype} cannot be stored in place of"
        fits = new.shape == self.shape and new.dtype.kind <= self.dtype.kind
        need(fits, f"{told} {tuple(self.shape)} {self.dtype}")
        self._write(convert(new._numbers(), new.dtype, self.dtype))
        return self

    def copy_(self, source, non_blocking=False):
        while source.ndim > self.ndim and source.shape[0] == 1:
            source = source[0]
        return self._become(source.expand(self.shape).to(self.dtype))

    def fill_(self, value):
        one = Tensor._from(value, self.dtype)
        need(one.ndim == 0, f"one number is expected, got shape {tuple(one.shape)}")
        return self.copy_(one)

    def uniform_(self, low=0.0, high=1.0, *, generator=None):
        drawn = (generator or default_generator).uniforms(self.numel(), self.dtype is float64)
        return self._become(self._made([x * (high - low) + low for x in drawn], self.shape))

    def normal_(self, mean=0.0, std=1.0, *, generator=None):
        drawn = (generator or default_generator).normals(self.numel(), self.dtype is float64)
        return self._become(self._made([x * std + mean for x in drawn], self.shape))

    def scatter_(self, dim, index, src):
        if not isinstance(src, Tensor):
            src = Tensor._from(src, self.dtype).expand(index.shape)
        self[self._around(dim, index)] = src[tuple(map(slice, index.shape))]
        return self

    def index_copy(self, dim, index, source):
        copy = self.clone()
        copy.movedim(dim, 0)[index] = source.movedim(dim, 0)
        return copy

    def index_put(self, indices, values):
        copy = self.clone()
        copy[indices] = values
        return copy

    # ------------------------------------------------------------------ number by number
    def sub(self, other):
        bools = _bool_of(self) or _bool_of(other)
        need(not bools, "bool tensors cannot be subtracted: use ^ or ~")
        return apply(operator.sub, self, other)

    def neg(self):
        need(self.dtype.kind > BOOL, "a bool tensor has no negative: use ~")
        return apply(operator.neg, self)

    def bitwise_not(self):
        need(self.dtype.kind < FLOAT, f"~ takes bool or integers, got {self.dtype}", TypeError)
        return apply(operator.not_ if self.dtype.kind == BOOL else operator.invert, self)

    def div(self, other, *, rounding_mode=None):
        common, otherwise = result_type(self, other), _numbers.quotient
        if rounding_mode is None:
            common = common if common.kind == FLOAT else float32
            return apply(operator.truediv, self, other, common=common, otherwise=otherwise)
        told = f"rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}"
        need(rounding_mode in ("floor", "trunc"), told)
        if common.kind == FLOAT:
            return getattr(Tensor.div(self, other), rounding_mode)()
        floors = rounding_mode == "floor"
        return _whole(operator.floordiv if floors else _numbers.towards_zero, self, other)

    def floor_divide(self, other):
        return Tensor.div(self, other, rounding_mode="floor")

    def remainder(self, other):
        if result_type(self, other).kind < FLOAT:
            return _whole(operator.mod, self, other)
        return apply(operator.mod, self, other, otherwise=_numbers.remainder)

    def pow(self, exponent):
        return power(self, exponent)

    def clamp(self, min=None, max=None):
        need(min is not None or max is not None, "clamp needs min or max")
        found = self if min is None else self.maximum(min)
        return found if max is None else found.minimum(max)

    def masked_fill(self, mask, value):
        need(mask.dtype.kind == BOOL, f"masked_fill takes a bool mask, got {mask.dtype}")
        value = Tensor._from(value, self.dtype)
        need(value.ndim == 0, f"one number is expected, got shape {tuple(value.shape)}")
        number = value._numbers()[0]
        fill = lambda x, hidden: number if hidden else x  # noqa: E731
        return apply(fill, self, mask, common=self.dtype)

    def where(self, condition, other):
        return where(condition, self, other)

    def nan_to_num(self, nan=0.0, posinf=None, neginf=None):
        if self.dtype.kind < FLOAT:
            return self.clone()
        top = finfo(self.dtype).max
        ends = {inf: top if posinf is None else posinf}
        ends[-inf] = -top if neginf is None else neginf
        return apply(lambda x: nan if x != x else ends.get(x, x), self)

    def isclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
        told = f"tensors of one dtype are compared, got {self.dtype} and {other.dtype}"
        need(self.dtype is other.dtype, told)

        def close(a, b):
            if a == b or (equal_nan and a != a and b != b):
                return True
            return abs(b) < inf and abs(a - b) <= atol + rtol * abs(b)

        return apply(close, self, other, result=bool_)

    def allclose(self, other, *args, **options):
        return self.isclose(other, *args, **options).all().item()

    def equal(self, other):
        return self.shape == other.shape and self._numbers() == other._numbers()

    # ------------------------------------------------------------------ along axes
    def _reduce(self, function, dim, keepdim=False, dtype=None):
        """Return a function of the numbers along one axis or several; None and () mean all."""
        some = isinstance(dim, int) or dim
        dims = [dim] if isinstance(dim, int) else dim or range(self.ndim)
        gone = [axis_of(one, self.ndim) for one in dims]
        need(len(gone) == len({*gone}), f"an axis is named twice in {dim}")
        kept = [axis for axis in range(self.ndim) if axis not in gone]
        gone = gone if self.ndim else []
        numbers = self.permute(kept + gone)._numbers()
        length = prod(self.shape[axis] for axis in gone)
        starts = [i * length for i in range(prod(self.shape[axis] for axis in kept))]
        try:
            values = [function(numbers[start : start + length]) for start in starts]
        except ValueError:
            told = "of no numbers, none is the largest or the smallest"
            raise (IndexError if some else RuntimeError)(told) from None
        sizes = enumerate(self.shape)
        shape = [1 if i in gone else n for i, n in sizes if keepdim or i in kept]
        return self._made(values, shape, dtype)

    def _along(self, function, dim, dtype=None):
        """Return a tensor in which a function has replaced each row along an axis."""
        if not self.ndim:
            return self[None]._along(function, dim, dtype)[0]
        turned = self.movedim(dim, -1)
        numbers, length = turned._numbers(), turned.shape[-1]
        starts = [i * length for i in range(prod(turned.shape[:-1]))]
        rows = [function(numbers[start : start + length]) for start in starts]
        shape = *turned.shape[:-1], len(rows[0] if rows else function([0] * length))
        made = self._made(list(chain.from_iterable(rows)), shape, dtype)
        return made.movedim(-1, dim).contiguous()

    def var(self, dim=None, unbiased=True, keepdim=False, *, correction=None):
        dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
        less = int(unbiased) if correction is None else correction
        variance = lambda row: _numbers.variance(row, less)  # noqa: E731
        return self._floating("var")._reduce(variance, dim, keepdim)

    def std(self, *args, **options):
        return self.var(*args, **options).sqrt()

    def norm(self, p=2, dim=None, keepdim=False):
        source, p = self._floating("norm").abs(), 2 if p == "fro" else p
        if p == inf:
            return source.amax(dim, keepdim)
        root = lambda row: sum(x**p for x in row) ** (1 / p)  # noqa: E731
        return source._reduce(root, dim, keepdim)

    def _floating(self, name, kind=RuntimeError):
        told = f"{name} takes floating-point numbers, got {self.dtype}"
        need(self.dtype.kind == FLOAT, told, kind)
        return self

    def max(self, dim=None, keepdim=False):
        return self._best(max, dim, keepdim)

    def min(self, dim=None, keepdim=False):
        return self._best(min, dim, keepdim)

    def _best(self, best, dim, keepdim):
        if isinstance(dim, Tensor):
            return self.maximum(dim) if best is max else self.minimum(dim)
        return self._with_places(_numbers.place_of(best), dim, keepdim)

    def median(self, dim=None, keepdim=False):
        return self._with_places(_numbers.middle, dim, keepdim)

    def _with_places(self, place, dim, keepdim):
        values = self._reduce(lambda row: row[place(row)], dim, keepdim)
        if dim is None:
            return values
        return Result((values, self._reduce(place, dim, keepdim, int64)))

    def argsort(self, dim=-1, descending=False, stable=False):
        return self._along(lambda row: _numbers.order(row, descending), dim, int64)

    def sort(self, dim=-1, descending=False, stable=False):
        places = self.argsort(dim, descending)
        return Result((self.gather(dim, places), places))

    def topk(self, k, dim=-1, largest=True, sorted=True):
        length = self.shape[axis_of(dim, self.ndim)] if self.ndim else 1
        need(0 <= k <= length, f"topk: k must lie in 0..{length}, got {k}")
        places = self._along(lambda row: _numbers.order(row, largest)[:k], dim, int64)
        return Result((self.gather(dim, places), places))

    def diff(self, n=1, dim=-1):
        found = self.movedim(dim, -1)
        for _ in range(n):
            after, before = found[..., 1:], found[..., :-1]
            found = after ^ before if found.dtype.kind == BOOL else after - before
        return found.movedim(-1, dim)

    def flip(self, *dims):
        found, axes = self.clone(), [axis_of(dim, self.ndim) for dim in ints(dims)]
        need(len({*axes}) == len(axes), f"flip: an axis is named twice in {dims}")
        for dim in axes:
            found = found._along(lambda row: row[::-1], dim)
        return found

    def roll(self, shifts, dims=None):
        if dims is None:
            return self.flatten().roll(shifts, 0).view(self.shape)
        found, pair = self, [[x] if isinstance(x, int) else x for x in (shifts, dims)]
        for shift, dim in zip(*pair, strict=True):
            turn = lambda row, by=shift: _numbers.rolled(row, by)  # noqa: E731
            found = found._along(turn, dim)
        return found

    # ------------------------------------------------------------------ places
    def _around(self, dim, index):
        """Return integer indices: those of an axis are given, the others count the places of theirs."""
        axis, found = axis_of(dim, self.ndim), []
        told = f"an index {tuple(index.shape)} {index.dtype} does not fit {tuple(self.shape)}"
        need(index.ndim == self.ndim and index.dtype is int64, told)
        for i, size in enumerate(index.shape):
            need(i == axis or size <= self.shape[i], told)
            shape = [size if j == i else 1 for j in range(self.ndim)]
            found.append(index if i == axis else Tensor._index(range(size)).view(shape))
        inside = all(0 <= place < self.shape[axis] for place in index._numbers())
        need(inside, f"an index is out of range for axis {dim} of size {self.shape[axis]}")
        return tuple(found)

    def gather(self, dim, index):
        if not self.ndim:
            return self[None].gather(dim, index[None])[0]
        return self[self._around(dim, index)]

    def index_select(self, dim, index):
        need(index.ndim < 2, f"a vector of places is expected, got {index.ndim} axes", IndexError)
        return self.movedim(dim, 0)[index.reshape(-1)].movedim(0, dim).contiguous()

    def masked_select(self, mask):
        need(mask.dtype.kind == BOOL, f"a bool mask is expected, got {mask.dtype}")
        shape = broadcast(self.shape, mask.shape)
        return self.expand(shape)[mask.expand(shape)]

    def nonzero(self, *, as_tuple=False):
        if as_tuple and not self.ndim:
            return self[None].nonzero(as_tuple=True)
        found = [place for place, value in enumerate(self._numbers()) if value]
        pairs, rows = list(zip(strides_of(self.shape), self.shape, strict=True)), []
        for place in found:
            rows += [place // step % size for step, size in pairs]
        made = self._made(rows, (len(found), self.ndim), int64)
        return made.unbind(1) if as_tuple else made

    def tril(self, diagonal=0):
        return self._triangle(lambda row, column: column - row <= diagonal)

    def triu(self, diagonal=0):
        return self._triangle(lambda row, column: column - row >= diagonal)

    def _triangle(self, keeps):
        need(self.ndim > 1, f"a triangle needs two axes, got {self.ndim}")
        rows, columns = self.shape[-2:]
        kept = [keeps(i, j) for i in range(rows) for j in range(columns)]
        pairs = zip(self._numbers(), kept * prod(self.shape[:-2]), strict=True)
        return self._made([x if keep else 0 for x, keep in pairs], self.shape)

    # ------------------------------------------------------------------ shapes
    mT = property(lambda self: self._matrix().transpose(-2, -1) if self.ndim else self)
    T = property(lambda self: self.permute(*range(self.ndim)[::-1]))
    is_cpu = property(lambda self: self.device == "cpu")
    is_meta = property(lambda self: self.device == "meta")
    dim, nelement, swapaxes = Strided.ndim.fget, Strided.numel, Strided.transpose
    __hash__ = object.__hash__

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[axis_of(dim, self.ndim)]

    def stride(self, dim=None):
        return self._strides if dim is None else self._strides[axis_of(dim, self.ndim)]

    def data_ptr(self):
        return id(self._memory) + self._offset * self.dtype.itemsize

    def t(self):
        need(self.ndim < 3, f"t takes a matrix, got {self.ndim} axes")
        return self.T

    def is_floating_point(self):
        return self.dtype.kind == FLOAT

    def view_as(self, other):
        return self.view(other.shape)

    def expand_as(self, other):
        return self.expand(other.shape)

    def type_as(self, other):
        return self.to(other.dtype)

    def flatten(self, start_dim=0, end_dim=-1):
        first, last = axis_of(start_dim, self.ndim), axis_of(end_dim, self.ndim)
        need(first <= last, f"flatten: axis {start_dim} comes after axis {end_dim}")
        joined = prod(self.shape[first : last + 1])
        return self.reshape(*self.shape[:first], joined, *self.shape[last + 1 :])

    def unflatten(self, dim, sizes):
        axis, sizes = axis_of(dim, self.ndim), ints((sizes,))
        part = self._plain._of((), [self.shape[axis]], self.dtype)._complete(sizes)
        need(sizes, "unflatten needs sizes")
        return self.view(*self.shape[:axis], *part, *self.shape[axis + 1 :])

    def repeat(self, *sizes):
        sizes, new = ints(sizes), len(ints(sizes)) - self.ndim
        told = f"repeat needs a count for each of {self.ndim} axes, got {sizes}"
        need(new >= 0 and min(sizes, default=0) >= 0, told)
        found = self.clone()[(None,) * new]
        for axis, count in enumerate(sizes):
            found = found._along(lambda row, count=count: row * count, axis)
        return found

    def repeat_interleave(self, repeats, dim=None):
        if dim is None:
            return self.flatten().repeat_interleave(repeats, 0)
        size = self.shape[axis_of(dim, self.ndim)]
        counts = [repeats] * size if isinstance(repeats, int) else repeats.tolist()
        told = f"a count for each of {size} entries is needed, got {repeats}"
        need(len(counts) == size and min(counts, default=0) >= 0, told)
        pick = [place for place, count in enumerate(counts) for _ in range(count)]
        return self.index_select(dim, Tensor._index(pick))

    def split(self, split_size_or_sections, dim=0):
        need(self.ndim, "a tensor without axes cannot be split")
        sizes, length = split_size_or_sections, self.shape[axis_of(dim, self.ndim)]
        if isinstance(sizes, int):
            need(sizes > 0 or length == 0 == sizes, f"no parts of size {sizes} can be made")
            starts = range(0, length, sizes or 1)
            sizes = [min(sizes, length - start) for start in starts] or [0]
        told = f"parts of {list(sizes)} do not add up to {length}, the size of axis {dim}"
        need(sum(sizes) == length and min(sizes) >= 0, told)
        ends = zip(accumulate(sizes), sizes, strict=True)
        return tuple(self.narrow(dim, end - size, size) for end, size in ends)

    def chunk(self, chunks, dim=0):
        need(self.ndim and chunks > 0, f"chunk needs an axis and parts, got {chunks}")
        length = self.shape[axis_of(dim, self.ndim)]
        return self.split(max(-(-length // chunks), 1), dim)

    def unbind(self, dim=0):
        axis = axis_of(dim, self.ndim)
        size = self.shape[axis] if self.ndim else 1
        return tuple(self.select(axis, i) for i in range(size))

    def narrow(self, dim, start, length):
        axis = axis_of(dim, self.ndim)
        size = self.shape[axis]
        need(-size <= start <= size, f"narrow starts at {start}, outside {size}", IndexError)
        start = start + size if start < 0 else start
        told = f"{length} entries from {start} do not lie in axis {dim} of size {size}"
        need(0 <= length <= size - start, told)
        return self._slice(axis, slice(start, start + length))

    def diag(self, diagonal=0):
        need(self.ndim in (1, 2), f"a vector or matrix is expected, got {self.ndim} axes")
        if self.ndim == 2:
            return self.diagonal(diagonal).clone()
        size = len(self) + abs(diagonal)
        made = self.new_zeros(size, size)
        made.diagonal(diagonal)._write(self._numbers())
        return made

    def new_zeros(self, *size, dtype=None, **_):
        return self.new_full(ints(size), 0, dtype=dtype)

    def new_full(self, size, fill_value, *, dtype=None, **_):
        return self._made([fill_value] * prod(size), size, dtype)

    # ------------------------------------------------------------------ products
    def matmul(self, other):
        need(isinstance(other, Tensor), f"a tensor is expected, got {other!r}", TypeError)
        told = f"{tuple(self.shape)} {self.dtype} and {tuple(other.shape)} {other.dtype}"
        told += " cannot be multiplied"
        need(self.ndim and other.ndim and self.dtype is other.dtype, told)
        left = self if self.ndim > 1 else self[None]
        right = other.mT if other.ndim > 1 else other[None]
        (rows, inner), columns = left.shape[-2:], right.shape[-2]
        need(inner == right.shape[-1], f"{told}: {inner} columns, {right.shape[-1]} rows")
        need(self.dtype.kind > BOOL, told, NotImplementedError)
        front = broadcast(left.shape[:-2], right.shape[:-2])
        count, starts = prod(front), lambda n: range(0, n * inner, inner or 1)
        a = left.expand(*front, rows, inner)._numbers()
        b = right.expand(*front, columns, inner)._numbers()
        a = [a[i : i + inner] for i in starts(count * rows)] or [[]] * (count * rows)
        b = [b[i : i + inner] for i in starts(count * columns)] or [[]] * (count * columns)
        values = [
            sum(map(operator.mul, row, column))
            for i in range(count)
            for row in a[i * rows : (i + 1) * rows]
            for column in b[i * columns : (i + 1) * columns]
        ]
        made = together([self, other])._made(values, (*front, rows, columns))
        made = made if self.ndim > 1 else made.squeeze(-2)
        return made if other.ndim > 1 else made.squeeze(-1)

    def _matrix(self):
        need(self.ndim != 1, "a vector has no axes to exchange: mT needs matrices")
        return self

    def _product(self, other, *axes):
        found = self.ndim, other.ndim
        need(found == axes, f"tensors with {axes} axes are expected, got {found}")
        return self @ other

    def mm(self, other):
        return self._product(other, 2, 2)

    def bmm(self, other):
        same = self.ndim < 3 or self.shape[0] == other.shape[0]
        need(same, f"batches differ: {tuple(self.shape)} and {tuple(other.shape)}")
        return self._product(other, 3, 3)

    def mv(self, other):
        return self._product(other, 2, 1)

    def dot(self, other):
        return self._product(other, 1, 1)

    def outer(self, other):
        need(self.ndim == other.ndim == 1, "outer takes two vectors")
        return self[:, None] * other


Strided._plain = Tensor


def _bool_of(one):
    return isinstance(one, bool) or (isinstance(one, Tensor) and one.dtype.kind == BOOL)


def _whole(function, a, b):
    """Return a quotient or remainder of integers."""
    try:
        return apply(function, a, b)
    except ZeroDivisionError:
        raise RuntimeError("an integer was divided by zero") from None


def where(condition, input=None, other=None):
    """Return numbers of one tensor where a condition is True, and of another elsewhere."""
    if input is None:
        return condition.nonzero(as_tuple=True)
    need(condition.dtype.kind == BOOL, f"a bool condition is needed, got {condition.dtype}")
    choose, common = (lambda chosen, a, b: a if chosen else b), result_type(input, other)
    pair = (x if isinstance(x, Tensor) else Tensor._from(x, common) for x in (input, other))
    return apply(choose, condition, *pair, common=common)


def power(base, exponent):
    """Return powers of numbers or of tensors."""
    if result_type(base, exponent).kind == FLOAT:
        return apply(math.pow, base, exponent, otherwise=_numbers.power)
    told = "integers cannot be raised to negative powers: convert them to float"
    need(isinstance(exponent, Tensor) or exponent >= 0, told)
    return apply(_numbers.whole_power, base, exponent)


class finfo:  # noqa: N801, the name is torch's
    """Limits of a floating-point dtype."""

    def __init__(self, dtype=float32):
        digits, exponent = {float16: (10, 15), float32: (23, 127)}.get(dtype, (52, 1023))
        self.eps, self.tiny = 2.0**-digits, 2.0 ** (1 - exponent)
        self.max = (2 - self.eps) * 2.0**exponent
        self.min, self.bits = -self.max, 8 * dtype.itemsize


# ------------------------------------------------------------------ methods that tables describe
def _define(name, method):
    method.__name__ = name
    setattr(Tensor, name, method)


def _of_one(name, function, otherwise, floats):
    def method(self):
        known = floats or self.dtype.kind > BOOL or name in ("sign", "square")
        need(known, f"{name} takes numbers, got torch.bool", NotImplementedError)
        common = float32 if floats and self.dtype.kind < FLOAT else self.dtype
        return apply(function, self, common=common, otherwise=otherwise)

    _define(name, method)


def _of_some(name, function, result=None, whole=False):
    def method(self, *other):
        if whole:
            told = f"{name} takes bool or integers, got {result_type(self, *other)}"
            need(result_type(self, *other).kind < FLOAT, told, NotImplementedError)
        return apply(function, self, *other, result=result)

    _define(name, method)


def _of_rows(name, function, rule, along):
    def method(self, dim=None, keepdim=False, *, dtype=None):
        source = self if dtype is None else self.to(dtype)
        kind, result = source.dtype.kind, _DTYPES.get(rule)
        if rule == "float":
            for one in [dim] if isinstance(dim, int) else dim or ():
                axis_of(one, source.ndim)
            source._floating(name, NotImplementedError if along else RuntimeError)
        if rule == "whole" and kind < FLOAT and dtype is None:
            source, result = source.to(int64) if along else source, int64
        if along:
            need(dim is not None, f"{name} needs dim", TypeError)
            return source._along(function, dim, result)
        return source._reduce(function, dim, keepdim, result)

    _define(name, method)


for _name, _pair in _numbers.OF_FLOATS.items():
    _of_one(_name, *_pair, floats=True)
for _name, _pair in _numbers.OF_ANY.items():
    _of_one(_name, *_pair, floats=False)
for _name, _function in _numbers.TESTS.items():
    _of_some(_name, _function, result=bool_)
for _name, _function in _numbers.OF_TWO.items():
    _of_some(_name, _function)
for _name, _function in _numbers.BITS.items():
    _of_some(_name, _function, whole=True)
for _along, _table in ((False, _numbers.REDUCTIONS), (True, _numbers.ALONG)):
    for _name, _pair in _table.items():
        _of_rows(_name, *_pair, _along)
for _name, _dtype in {
    "bool": bool_,
    "int": int32,
    "long": int64,
    "half": float16,
    "float": float32,
    "double": float64,
}.items():
    _define(_name, lambda self, dtype=_dtype: self.to(dtype))


def _in_place(name):
    new = getattr(Tensor, name)
    change = lambda self, *args, **how: self._become(new(self, *args, **how))  # noqa: E731
    _define(f"{name}_", change)
    return change


def _operator(name, method, swapped):
    """Let an operator of Python call a method; what is no number is left to the other side."""

    def operate(self, other):
        if not isinstance(other, (Tensor, int, float)):
            return NotImplemented
        return method(other, self) if swapped else method(self, other)

    _define(f"__{name}__", operate)


_CHANGES = "add sub mul div pow remainder floor_divide clamp masked_fill relu tril triu neg"
for _name in f"{_CHANGES} {' '.join(_numbers.OF_FLOATS)} {' '.join(_numbers.TESTS)}".split():
    _in_place(_name)
for _name, _long in {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    **{name: name for name in "add sub mul pow".split()},
}.items():
    _operator(_name, getattr(Tensor, _long), False)
    _operator(f"r{_name}", getattr(Tensor, _long), True)
    _define(f"__i{_name}__", _in_place(_long))
for _name in "lt le gt ge eq ne".split():
    _operator(_name, getattr(Tensor, _name), False)
Tensor.__neg__, Tensor.__invert__, Tensor.__abs__ = Tensor.neg, Tensor.bitwise_not, Tensor.abs
Tensor.__matmul__, Tensor.logical_not_ = Tensor.matmul, _in_place("logical_not")
Tensor.broadcast_to = Tensor.expand
Tensor.clip, Tensor.abs_, Tensor.zero_ = Tensor.clamp, _in_place("abs"), lambda self: self.fill_(0)
