"""Operations on tensors, number by number: arithmetic, reductions, products, sorting."""

from __future__ import annotations

import operator
from array import array
from functools import wraps
from itertools import accumulate, chain
from math import inf, prod
from types import SimpleNamespace

from . import _gradients, _kernels, _numbers
from ._memory import (
    BOOL,
    FLOAT,
    INT,
    Device,
    DType,
    NeedsTorchError,
    Strided,
    axis_of,
    bfloat16,
    bool_,
    broadcast,
)
from ._memory import convert, float16, float32, float64, int32, int64, ints, need, places, store, strides_of
from ._arguments import checked
from ._random import default_generator
from ._tape import GradMode, is_recorded, overwrite, record, run_backward

_OF_NUMBERS = {bool: bool_, int: int64, float: float32}


def _type_of(number):
    need(not isinstance(number, complex), "complex numbers need", NeedsTorchError)
    known = type(number) in _OF_NUMBERS
    need(known, f"a tensor or a number is expected, got {type(number).__name__}", TypeError)
    return _OF_NUMBERS[type(number)]


def result_type(*inputs):
    """Return the dtype of a result: tensors with axes come first, then those without, then numbers."""
    levels = [[], [], []]
    for one in inputs:
        tensor = isinstance(one, Tensor)
        levels[one.ndim == 0 if tensor else 2].append(one.dtype if tensor else _type_of(one))
    found = [max(level, key=lambda dtype: dtype.rank) for level in levels if level]
    return max(found, key=lambda dtype: dtype.kind)  # the first one of the largest kind


def promote_types(type1, type2):
    """Return the dtype that holds the numbers of both."""
    pair = (type1, type2)
    if {one.name for one in pair} == {"float16", "bfloat16"}:
        return float32
    return max(pair, key=lambda dtype: dtype.rank)


def apply(function, *inputs, common=None, result=None, otherwise=None, name=None):
    """Return a function of each number, or of the numbers at the same index after broadcasting.

    The inputs are converted to the dtype `common`, and what the function returns is stored as `result`.
    `otherwise` is called where the function raises an error of arithmetic. A `name` may have a kernel.
    """
    common = common or result_type(*inputs)
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    shape = broadcast(*(one.shape for one in tensors)) if len(tensors) > 1 else tensors[0].shape
    if name and common is float32 and result is None and prod(shape) > 1:
        made = _by_kernel(name, inputs, tensors, shape)
        if made is not None:
            return made
    columns = []
    for one in inputs:
        if isinstance(one, Tensor):
            columns.append(convert(one.expand(shape)._numbers(), one.dtype, common))
        else:
            columns.append([store([one], common)[0] if common.kind == FLOAT else one] * prod(shape))
    try:
        values = list(map(function, *columns))
    except (ArithmeticError, ValueError):
        if otherwise is None:
            raise
        values = [_either(function, otherwise, numbers) for numbers in zip(*columns, strict=True)]
    made = same_device(tensors)._made(values, shape, result or common)
    return made if all(one.is_contiguous() for one in tensors) else _laid_out(made, tensors)


def _by_kernel(name, inputs, tensors, shape):
    """Return what a kernel computes from float32 numbers, or None if there is none."""
    like = same_device(tensors)
    if like.is_meta:
        return None
    with GradMode(False):
        same = [_as_float32(one) for one in inputs]
        memory = _kernels.elementwise(name, same, shape)
        if memory is None:
            return None
        made = Tensor._of(memory, shape, float32, device=like.device)
        return made if all(one.is_contiguous() for one in tensors) else _laid_out(made, tensors)


def _as_float32(one):
    if isinstance(one, Tensor):
        return one if one.dtype is float32 else one.to(float32)
    return Tensor._of(array("f", [one]), (), float32)


def _laid_out(made, sources):
    """Return a new tensor with its axes in memory in the order of its sources', as torch chooses it."""
    return _ordered_as(made, [one.expand(made.shape)._strides for one in sources])


def _ordered_as(made, strides):
    """Return a new tensor with its axes in memory in the order that strides have."""
    order = list(range(made.ndim))[::-1]  # from the innermost axis
    for last in range(1, made.ndim):
        place = last
        for i in reversed(range(last)):
            pairs = ((step[order[i]], step[order[place]]) for step in strides)
            a, b = next((pair for pair in pairs if all(pair) and pair[0] != pair[1]), (0, 0))
            if a > b:
                order[i], order[place], place = order[place], order[i], i
            elif a < b:
                break
    order.reverse()
    return made.permute(order)._dense().permute([order.index(axis) for axis in range(made.ndim)])


def _either(function, otherwise, numbers):
    try:
        return function(*numbers)
    except (ArithmeticError, ValueError):
        return otherwise(*numbers)


def same_device(tensors):
    """Return one of the tensors; all that have axes must be on its device."""
    first = max(tensors, key=lambda one: (one.device, one.ndim))
    need(all(one.device == first.device or not one.ndim for one in tensors), "devices differ: cpu and meta")
    return first


class Result(tuple):
    """Results with names, such as those of `sort`."""

    values, indices = (property(operator.itemgetter(i)) for i in range(2))

    def __new__(cls, results, name):
        made = super().__new__(cls, results)
        made.name = name
        return made

    def __repr__(self):
        return f"torch.return_types.{self.name}(\nvalues={self[0]},\nindices={self[1]})"


def as_dtype(dtype):
    """Return the dtype of Python's own type `bool`, `int` or `float`, and anything else as it is."""
    python = {bool: bool_, int: int64, float: float64}
    return python.get(dtype, dtype) if isinstance(dtype, type) else dtype


def _read(data):
    """Return the shape, the flat numbers and the dtype of nested numbers."""
    if isinstance(data, Tensor):
        return (), [data._one()], data.dtype
    if not isinstance(data, (list, tuple, range)):
        strange = data is None or isinstance(data, (set, dict))
        need(not strange, f"Could not infer dtype of {type(data).__name__}")
        large = type(data) is int and not -(2**63) <= data < 2**64
        need(not large, f"{data} has more than 64 bits", ValueError)
        return (), [data], _type_of(data)
    if len(kinds := {*map(type, data)}) == 1 and kinds <= _OF_NUMBERS.keys():
        return (len(data),), [*data], _OF_NUMBERS[kinds.pop()]
    if not data:
        return (0,), [], float32
    need(not any(isinstance(one, str) for one in data), "too many dimensions 'str'", ValueError)
    shapes, values, dtypes = zip(*map(_read, data), strict=True)
    told = f"the rows of a tensor must have one shape, got {sorted({*shapes})}"
    need(len({*shapes}) == 1, told, ValueError)
    return (len(data), *shapes[0]), [*chain(*values)], max(dtypes, key=lambda dtype: dtype.rank)


class Tensor(Strided):
    """Numbers of one dtype with a shape. Torch's documentation explains the methods."""

    layout = "torch.strided"
    is_cuda = is_sparse = is_nested = False
    __hash__ = object.__hash__

    def __new__(cls, *data):
        """Make a float32 tensor of nested numbers or of a shape, as torch does."""
        shape = len(data) != 1 or isinstance(data[0], int)
        return cls._from([0.0] * prod(data)).view(data) if shape else cls._from(data[0], float32)

    @classmethod
    def _from(cls, data, dtype=None):
        whole = isinstance(data, Tensor)
        shape, values, found = (data.shape, data._numbers(), data.dtype) if whole else _read(data)
        dtype = as_dtype(dtype) or found
        need(isinstance(dtype, DType), f"dtype must be torch.dtype, not {type(dtype).__name__}", TypeError)
        if dtype.kind == INT and found.kind == FLOAT and shape == () and not whole:
            need(abs(values[0]) < inf, f"{values[0]} cannot be converted to {dtype}")
        if shape == () and dtype.kind > BOOL and abs(values[0]) < inf:
            top = finfo(dtype).max if dtype.kind == FLOAT else 1 << 8 * dtype.itemsize - 1
            need(abs(values[0]) <= top, f"{values[0]} is too large for {dtype}")
        return Tensor._of(store(convert(values, found, dtype), dtype), shape, dtype)

    @classmethod
    def _index(cls, data):
        return cls._from(data, int64 if data == [] else None)

    def __deepcopy__(self, _):
        where = self._strides, self._offset, self.device
        made = type(self)._of(self._memory[:], self.shape, self.dtype, *where)
        made.requires_grad = self.requires_grad
        return made

    def _dense(self):
        """Return a copy without gaps in memory."""
        memory = _kernels.elementwise("copy", [self], self.shape) if self.dtype is float32 else None
        if memory is None:
            made = self._made(self._numbers(), self.shape)
        else:
            made = self._of(memory, self.shape, self.dtype, device=self.device)
        return record(made, "Clone", (lambda g: g,), (self,)) if is_recorded((self,)) else made

    # ------------------------------------------------------------------ conversion
    def to(self, *args, dtype=None, device=None, copy=False, **_):
        need(not {*_} - {"non_blocking", "memory_format"}, f"to got an unknown {[*_]}", TypeError)
        need(isinstance(copy, bool), f"copy must be bool, got {copy!r}", TypeError)
        for one in filter(lambda one: one is not None, args):
            need(not isinstance(one, bool), "to with True or False by place needs", NeedsTorchError)
            one = as_dtype(one)
            dtype = one if isinstance(one, DType) else one.dtype if isinstance(one, Tensor) else dtype
            device = one if isinstance(one, str) else one.device if isinstance(one, Tensor) else device
            need(isinstance(one, (DType, Tensor, str, bool)), f"to takes no {one!r}", TypeError)
        dtype, device = as_dtype(dtype) or self.dtype, Device(device or self.device)
        need(device in ("cpu", "meta"), f"the device '{device}' needs", NeedsTorchError)
        need(device == "meta" or not self.is_meta, "the device meta has no numbers", NotImplementedError)
        if (dtype, device) == (self.dtype, self.device) and not copy:
            return self
        made = apply(lambda x: x, self, common=dtype, name="copy" if self.dtype is dtype else None)
        made.device = device
        return record(made, "ToCopy", (lambda g: g,), (self,))

    def detach(self):
        with GradMode(False):
            return self._see(self.shape, self._strides)

    def _swap(self, other):
        """Take over the contents of a tensor, but not its class."""
        mine = {name: self.__dict__.get(name) for name in ("_grad", "_needs")}
        kept = {name: value for name, value in mine.items() if value is not None}
        self.__dict__.update(vars(other) | {"_node": None, "_base": None, "_needs": False} | kept)
        return self

    def requires_grad_(self, requires_grad=True):
        need(not requires_grad or self.dtype.kind == FLOAT, f"{self.dtype} has no gradients")
        self.requires_grad = requires_grad
        return self

    def backward(self, gradient=None, retain_graph=False, create_graph=False, inputs=None):
        need(not create_graph and inputs is None, "gradients of gradients, and of chosen inputs, need",
             NeedsTorchError)  # fmt: skip
        told = "this tensor does not require gradients: nothing in it was computed from a parameter"
        need(self.requires_grad, f"{told}, or that was under no_grad() or before detach()")
        count = prod(self.shape)
        told = f"backward begins with one number, such as a loss, and here are {count}: use sum() or mean()"
        need(gradient is not None or count == 1, told)
        gradient = Tensor._from(1, self.dtype).expand(self.shape) if gradient is None else gradient
        need(isinstance(gradient, Tensor), f"a tensor is expected, got {gradient!r}", TypeError)
        told = f"the gradient has the shape {tuple(gradient.shape)}, expected {tuple(self.shape)}"
        need(gradient.shape == self.shape, told)
        run_backward([(self, gradient)], retain_graph)

    def retain_grad(self):
        need(self.requires_grad, "a tensor that does not require gradients keeps none")
        need(self.is_leaf, "gradients of results within a graph need", NeedsTorchError)

    def register_hook(self, hook):
        raise NeedsTorchError("hooks on gradients need")

    def tolist(self):
        need(not self.is_meta, "a tensor on the device meta has no numbers")
        values = [*map(bool, self._numbers())] if self.dtype.kind == BOOL else self._numbers()
        for axis in range(1, self.ndim)[::-1]:
            size, count = self.shape[axis], prod(self.shape[:axis])
            values = [values[i * size : (i + 1) * size] for i in range(count)]
        return values if self.shape else values[0]

    def item(self):
        one = prod(self.shape) == 1 and not self.is_meta
        need(one, f"{prod(self.shape)} numbers are not one: use any(), all() or an index")
        return bool(self._numbers()[0]) if self.dtype.kind == BOOL else self._numbers()[0]

    def _one(self):
        need(prod(self.shape) == 1, f"{prod(self.shape)} numbers are not one: use an index", ValueError)
        return self.item()

    def __index__(self):
        whole = self.dtype.kind < FLOAT and prod(self.shape) == 1
        need(whole, "only a tensor with one integer can be an index", TypeError)
        return int(self.item())

    def __len__(self):
        need(self.ndim, "a tensor without axes has no length and no parts", TypeError)
        return self.shape[0]

    def __format__(self, form):
        if not self.ndim and not self.is_meta:
            return format(self.item(), form)
        need(not form, f"a tensor with {self.ndim} axes takes no format {form!r}", TypeError)
        return repr(self)

    def __getattr__(self, name):
        told = f"the small stand-in for torch has no Tensor.{name}: open this page in Colab"
        raise AttributeError(told, name=name, obj=self)

    # ------------------------------------------------------------------ changes in place
    def _may_change(self):
        root = self if self._base is None else self._base
        frozen = self._recording and root._needs and root.is_leaf
        need(not frozen, "a parameter, or a view of one, is changed in place: use torch.no_grad()")

    def _become(self, new):
        """Take the numbers of a result, if they fit."""
        self._may_change()
        fits = new.shape == self.shape and new.dtype.kind <= self.dtype.kind
        self._said = None
        told = f"{tuple(new.shape)} {new.dtype} does not fit into {tuple(self.shape)} {self.dtype}"
        need(fits, told)
        if is_recorded((self, new)):
            overwrite(self, new)
        if new.dtype is self.dtype and new.is_contiguous() and self.is_contiguous():
            count, start = prod(self.shape), new._offset
            self._memory[self._offset : self._offset + count] = new._memory[start : start + count]
            self._changes[0] += 1
            return self
        self._write(convert(new._numbers(), new.dtype, self.dtype))
        return self

    def _may_write(self):
        single = all(size < 2 or step for size, step in zip(self.shape, self._strides, strict=True))
        need(single, "several places of an expanded tensor are one in memory: use clone()")

    def _noted(self, value, where):
        if is_recorded((self, value)):
            overwrite(self, value, where)

    def copy_(self, src=None, non_blocking=False, *, other=None):
        src = other if src is None else src
        src = src if isinstance(src, Tensor) else Tensor._from(src, self.dtype)
        return self if src is self else self._become(src.expand(self.shape).to(self.dtype))

    def fill_(self, value):
        one = Tensor._from(value, self.dtype)
        need(one.ndim == 0, f"one number is expected, got shape {tuple(one.shape)}")
        if self.requires_grad or 0 not in self._strides:
            return self.copy_(one)
        self._may_change()
        for place in places(self.shape, self._strides, self._offset):
            self._memory[place] = one._memory[0]
        self._changes[0] += 1
        return self

    def uniform_(self, low=0.0, high=1.0, *, generator=None):
        told = f"random numbers cannot be drawn as {self.dtype}"
        need(self.dtype.kind == FLOAT, told, NotImplementedError)
        drawn = (generator or default_generator).uniforms(prod(self.shape), self.dtype is float64)
        if self.dtype is float32:  # both ends are rounded, too
            low, high = store([low, high], float32)
            width = store([high - low], float32)[0]
            return self._drawn([x * width + low for x in drawn])
        return self._drawn([x * (high - low) + low for x in drawn])

    def normal_(self, mean=0.0, std=1.0, *, generator=None):
        told = f"normal numbers cannot be drawn as {self.dtype}"
        need(self.dtype.kind == FLOAT, told, NotImplementedError)
        generator, count = generator or default_generator, prod(self.shape)
        if self.is_contiguous():
            drawn = generator.normals(count, self.dtype is float64)
        else:  # one after the other
            drawn = [generator.normals(1)[0] for _ in range(count)]
        return self._drawn([x * std + mean for x in drawn])

    def _drawn(self, values):
        """Take random numbers in the order of this tensor's memory."""
        order = sorted(range(self.ndim), key=lambda axis: -self._strides[axis])
        new = self._made(values, [self.shape[axis] for axis in order])
        return self._become(new.permute([order.index(axis) for axis in range(self.ndim)]))

    def scatter_(self, dim, index, src):
        self._may_write()
        src = src if isinstance(src, Tensor) else Tensor._from(src, self.dtype).expand(index.shape)
        self[self._around(dim, index)] = src[tuple(map(slice, index.shape))]
        return self

    def scatter(self, dim, index, src):
        return self.contiguous().clone().scatter_(dim, index, src)

    def index_copy(self, dim, index, source):
        need(index.ndim < 2, f"a vector of places is expected, got {index.ndim} axes", IndexError)
        copy = self.contiguous().clone()
        copy.movedim(dim, 0)[index] = source.movedim(dim, 0)
        return copy

    def index_put(self, indices, values):
        copy = self.clone()
        copy[indices] = values
        return copy

    # ------------------------------------------------------------------ number by number
    def sub(self, other):
        bools = [one for one in (self, other) if result_type(one).kind == BOOL]
        need(not bools, "bool tensors cannot be subtracted: use ^ or ~")
        return apply(operator.sub, self, other, name="sub")

    def neg(self):
        need(self.dtype.kind > BOOL, "a bool tensor has no negative: use ~")
        return apply(operator.neg, self, name="neg")

    def __invert__(self):
        need(self.dtype.kind < FLOAT, f"~ takes bool or integers, got {self.dtype}", TypeError)
        return self.bitwise_not()

    def __pos__(self):
        return self

    def _shifted(self, other):
        raise NeedsTorchError("<< and >> need")

    __lshift__ = __rshift__ = _shifted

    def bitwise_not(self):
        told = f"bitwise_not takes bool or integers, got {self.dtype}"
        need(self.dtype.kind < FLOAT, told, NotImplementedError)
        return apply(operator.not_ if self.dtype.kind == BOOL else operator.invert, self)

    def div(self, other, *, rounding_mode=None):
        common, otherwise = result_type(self, other), _numbers.quotient
        whole = {None: operator.truediv, "floor": operator.floordiv, "trunc": _numbers.towards_zero}
        need(rounding_mode in whole, f"rounding_mode must be 'floor' or 'trunc', got {rounding_mode!r}")
        if rounding_mode is None or common.kind == FLOAT:
            common, name = common if common.kind == FLOAT else float32, None if rounding_mode else "div"
            made = apply(whole[rounding_mode], self, other, common=common, otherwise=otherwise, name=name)
            inputs = self, other
            made = record(made, "Div", _gradients.of_quotient(rounding_mode), inputs, inputs)
            made._said = "DivBackward2" if rounding_mode else None
            return made
        return _whole(whole[rounding_mode], self, other)

    def floor_divide(self, other):
        return Tensor.div(self, other, rounding_mode="floor")

    def remainder(self, other):
        if result_type(self, other).kind < FLOAT:
            return _whole(operator.mod, self, other)
        return apply(operator.mod, self, other, otherwise=_numbers.remainder)

    def pow(self, exponent):
        fraction = isinstance(exponent, int) and exponent < 0 and result_type(self).kind < FLOAT
        need(not fraction, "integers cannot be raised to negative powers: convert them to float")
        root = type(exponent) is float and exponent == 0.5
        made = self.sqrt() if root else apply(_numbers.power, self, exponent)
        return made if isinstance(self, Tensor) else made.contiguous()

    def clamp(self, min=None, max=None):
        need(min is not None or max is not None, "clamp needs min or max")
        with GradMode(False):
            found = self if min is None else METHODS["maximum"](self, min)
            found = found if max is None else METHODS["minimum"](found, max)
        inputs = self, min, max
        return record(found, "Clamp", _gradients.OF_CLAMP, inputs, inputs) if is_recorded(inputs) else found

    def masked_fill(self, mask, value):
        need(mask.dtype.kind == BOOL, f"masked_fill takes a bool mask, got {mask.dtype}")
        one = Tensor._from(value, self.dtype)
        need(one.ndim == 0, f"one number is expected, got shape {tuple(one.shape)}")
        choose = lambda hidden, new, x: new if hidden else x
        return apply(choose, mask, one.detach(), self, common=self.dtype, name="where").contiguous()

    def nan_to_num(self, nan=0.0, posinf=None, neginf=None):
        top = finfo(self.dtype).max if self.dtype.kind == FLOAT else 0
        ends = {inf: top if posinf is None else posinf, -inf: -top if neginf is None else neginf}
        return apply(lambda x: nan if x != x else ends.get(x, x), self)

    def isclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
        need(self.dtype is other.dtype, f"one dtype is expected, got {self.dtype} and {other.dtype}")

        def close(a, b):
            if a == b or (equal_nan and a != a and b != b):
                return True
            return abs(b) < inf and abs(a - b) <= atol + rtol * abs(b)

        return apply(close, self, other, result=bool_)

    # ------------------------------------------------------------------ along axes
    def _reduce(self, function, dim, keepdim=False, dtype=None):
        """Return a function of the numbers along one axis or several; None and () mean all."""
        some = isinstance(dim, int) or dim
        dims = [dim] if isinstance(dim, int) else dim or range(self.ndim)
        gone = [axis_of(one, self.ndim) for one in dims]
        need(len(gone) == len({*gone}), f"an axis is named twice in {dim}")
        kept = [axis for axis in range(self.ndim) if axis not in gone]
        rows = self.permute(kept + gone if self.ndim else [])._rows(len(kept))
        try:
            values = [function(row) for row in rows]
        except ValueError:
            kind = IndexError if some or dtype is int64 else RuntimeError
            raise kind("of no numbers, none is the largest or the smallest") from None
        shape = self._without(gone, keepdim)
        return self._made(values, shape, dtype)

    def _without(self, gone, keepdim):
        """Return the shape without some axes."""
        return [1 if i in gone else n for i, n in enumerate(self.shape) if keepdim or i not in gone]

    def _axes(self, dim):
        """Return the numbers of the axes that a reduction names."""
        dims = [dim] if isinstance(dim, int) else dim or range(self.ndim)
        return [axis_of(one, self.ndim) for one in dims] if self.ndim else []

    def _noted_reduction(self, name, made, gradient, dim, keepdim):
        """Put a reduction on the tape."""
        dims = self._axes(dim)
        shape = self._without(dims, True)

        def of_input(g, out, x):
            return gradient(g.reshape(shape), out.reshape(shape), x, dims)

        return _noted_as(name, made, (of_input,), (self,))

    def prod_along(self, dims):
        """Return the product over several axes, which remain with the size 1."""
        return self._reduce(prod, dims, True)

    def _rows(self, axes):
        """Return the list of numbers at each index of the first few axes."""
        numbers, length = self._numbers(), prod(self.shape[axes:])
        return [numbers[i * length : (i + 1) * length] for i in range(prod(self.shape[:axes]))]

    def _along(self, function, dim, dtype=None):
        """Return a tensor in which a function has replaced each row along an axis."""
        if not self.ndim:
            return self[None]._along(function, dim, dtype)[0]
        turned = self.movedim(dim, -1)
        rows = [function(row) for row in turned._rows(self.ndim - 1)]
        size = len(rows[0] if rows else function([0] * turned.shape[-1]))
        made = self._made([*chain(*rows)], (*turned.shape[:-1], size), dtype)
        return made.movedim(-1, dim).contiguous()

    def _floating(self, name, kind=RuntimeError):
        need(self.dtype.kind == FLOAT, f"{name} takes floating-point numbers, got {self.dtype}", kind)
        return self

    def mean(self, dim=None, keepdim=False, *, dtype=None):
        source = self._floating("mean") if dtype is None else self.to(dtype)
        made = source._sum_by_kernel(dim, keepdim)
        if made is None:
            made = source._reduce(_numbers.mean, dim, keepdim)
        else:
            with GradMode(False):
                made = made / (prod(self.shape[axis] for axis in self._axes(dim)) or 0)
        return source._noted_reduction("Mean", made, _gradients.REDUCED["mean"], dim, keepdim)

    def _sum_by_kernel(self, dim, keepdim):
        """Return the sum along axes, or None if there is no kernel."""
        if not _kernels.serves(self):
            return None
        gone = self._axes(dim)
        if len({*gone}) != len(gone):
            return None
        shape = self._without(gone, True)
        memory = _kernels.zeros(prod(shape), float32)
        strides = [0 if i in gone else step for i, step in enumerate(strides_of(shape))]
        _kernels.accumulate(memory, 0, strides, self, self.shape)
        return self._of(memory, self._without(gone, keepdim), float32)

    def var(self, dim=None, unbiased=True, keepdim=False, *, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        less = int(unbiased) if correction is None else correction
        source = self._floating("var")
        made = source._reduce(lambda row: _numbers.variance(row, less), dim, keepdim)
        return source._noted_reduction("Var", made, _gradients.of_variance(less), dim, keepdim)

    def norm(self, p="fro", dim=None, keepdim=False, dtype=None):
        p = 2 if p in ("fro", None) else p
        need(isinstance(p, (int, float)) and p > 0, f"the norm {p!r} needs", NeedsTorchError)
        if dtype is not None:
            dtype = as_dtype(dtype)
            fits = dtype.kind == FLOAT and dtype.rank >= self._floating("norm").dtype.rank
            need(fits, f"norm: a dtype at least as wide as {self.dtype} is expected, got {dtype}")
            return self.to(dtype).norm(p, dim, keepdim)
        root = lambda row: sum(x**p for x in row) ** (1 / p)
        with GradMode(False):
            sizes = self._floating("norm").abs()
            made = sizes._reduce(_numbers.extreme(max) if p == inf else root, dim, keepdim)
        return self._noted_reduction("LinalgVectorNorm", made, _gradients.of_norm(p), dim, keepdim)

    def _soft(self, name, dim, dtype):
        source = self if dtype is None else self.to(dtype)
        axis = axis_of(dim, self.ndim)
        if 0 in self.shape and dtype is not None:
            return source.clone()
        memory = None
        if axis == self.ndim - 1 and _kernels.serves(source):
            memory = _kernels.rows(name, source.detach().contiguous())
        if memory is not None:
            made = self._of(memory, self.shape, float32)
        else:
            with GradMode(False):
                function = getattr(_numbers, name)
                made = source._floating("softmax", NotImplementedError)._along(function, dim)
        if not is_recorded((source,)):
            return made
        gradient = getattr(_gradients, f"of_{name}")(dim)
        return record(made, "Softmax", (gradient,), (source,), (made.detach(),))

    def _best(self, best, dim, keepdim):
        if isinstance(dim, Tensor):
            return self.maximum(dim) if best is max else self.minimum(dim)
        return self._with_places(_numbers.place_of(best), dim, keepdim)

    def _with_places(self, place, dim, keepdim):
        name = {_numbers.middle: "median"}.get(place, "max" if place([0, 1]) else "min")
        values = self._reduce(lambda row: row[place(row)], dim, keepdim)
        if dim is None:
            return self._noted_reduction("Max", values, _gradients.REDUCED["amax"], None, False)
        where = self._reduce(place, dim, keepdim, int64)
        if is_recorded((self,)) and self.ndim:
            index = where if keepdim else where.unsqueeze(dim)
            of_input = lambda g: self._scattered(axis_of(dim, self.ndim), index, g.reshape(index.shape))
            record(values, "Max", (of_input,), (self,))
        return Result((values, where), name)

    def argsort(self, dim=-1, descending=False, stable=False):
        made = self._along(lambda row: _numbers.order(row, descending), dim, int64)
        return made if self.is_contiguous() else _laid_out(made, [self])

    def sort(self, dim=-1, descending=False, stable=False):
        places = self.argsort(dim, descending)
        values = self.gather(dim, places)
        values = values if self.is_contiguous() else _laid_out(values, [self])
        return Result((values, places), "sort")

    def topk(self, k, dim=-1, largest=True, sorted=True):
        length = self.shape[axis_of(dim, self.ndim)] if self.ndim else 1
        need(0 <= k <= length, f"topk: k must lie in 0..{length}, got {k}")
        places = self.argsort(dim, largest).narrow(dim, 0, k).contiguous()
        return Result((self.gather(dim, places), places), "topk")

    def diff(self, n=1, dim=-1):
        turned = self.movedim(dim, -1)
        return (turned[..., 1:] - turned[..., :-1]).movedim(-1, dim)

    def flip(self, *dims):
        found, axes = self.clone(), [axis_of(dim, self.ndim) for dim in ints(dims)]
        need(len({*axes}) == len(axes), f"flip: an axis is named twice in {dims}")
        with GradMode(False):
            for dim in axes:
                found = found._along(lambda row: row[::-1], dim)
            found = found if self.is_contiguous() else _laid_out(found, [self])
        return record(found, "Flip", (lambda g: g.flip(axes),), (self,))

    def roll(self, shifts, dims=None):
        if dims is None:
            return self.flatten().roll(shifts, 0).view(self.shape)
        found, pair = self, [[x] if isinstance(x, int) else x for x in (shifts, dims)]
        for shift, dim in zip(*pair, strict=True):
            size = found.shape[axis_of(dim, found.ndim)] if found.ndim else 1
            found = found.index_select(dim, Tensor._index([(i - shift) % size for i in range(size)]))
        return found

    # ------------------------------------------------------------------ places
    def _check_places(self, dim, index):
        """Raise an error unless integers name places along an axis; return the axis."""
        axis, fits = axis_of(dim, self.ndim), index.ndim == self.ndim and index.dtype is int64
        pairs = enumerate(zip(index.shape, self.shape, strict=False))
        fits = fits and all(i == axis or mine <= own for i, (mine, own) in pairs)
        need(fits, f"an index {tuple(index.shape)} {index.dtype} does not fit {tuple(self.shape)}")
        numbers = index._numbers()
        inside = not numbers or (min(numbers) >= 0 and max(numbers) < self.shape[axis])
        need(inside, f"an index is out of range for axis {dim} of size {self.shape[axis]}")
        return axis

    def _around(self, dim, index):
        """Return integer indices: the given ones for one axis, and for each other axis its own positions."""
        axis = self._check_places(dim, index)
        shapes = [[-1 if j == i else 1 for j in range(self.ndim)] for i in range(self.ndim)]
        counts = [Tensor._from(range(size), int64) for size in index.shape]
        return tuple(index if i == axis else counts[i].reshape(shapes[i]) for i in range(self.ndim))

    def gather(self, dim, index):
        if not self.ndim:
            return self[None].gather(dim, index[None])[0]
        if _kernels.serves(self):
            return self._gathered(self._check_places(dim, index), index)
        return self[self._around(dim, index)].contiguous()

    def _gathered(self, axis, index):
        """Return the numbers at places along an axis, by a kernel."""
        made = self._of(_kernels.gather(self, axis, index), index.shape, float32)
        return record(made, "Gather", (lambda g: self._scattered(axis, index, g),), (self,))

    def _scattered(self, axis, index, source):
        """Add numbers at places along an axis to zeros in the shape of this tensor."""
        memory, strides = _kernels.zeros(prod(self.shape), self.dtype), strides_of(self.shape)
        source = source.contiguous()
        if not _kernels.scatter(memory, strides, axis, index, source):
            kept = [0 if i == axis else step for i, step in enumerate(strides)]
            pairs = zip(places(index.shape, kept), index._numbers(), source._numbers(), strict=True)
            for place, number, value in pairs:
                memory[place + number * strides[axis]] += value
        return self._of(memory, self.shape, self.dtype)

    def _rows_at(self, index):
        """Return `self[index]` for a tensor of integers."""
        # The result of an index keeps the order of the axes in memory; the kernel knows only the usual one.
        numbers = index._numbers() if _kernels.serves(self) and self.is_contiguous() else []
        if numbers and min(numbers) >= 0 and max(numbers) < self.shape[0]:
            flat = index.reshape(-1, *[1] * (self.ndim - 1)).expand(-1, *self.shape[1:])
            return self._gathered(0, flat).view(*index.shape, *self.shape[1:])
        view, *found = self._find(index)
        return view._taken(*found)

    def _taken(self, shape, where, strides=()):
        """Return the numbers at places in memory; strides give the order of axes."""
        made = self._made([self._memory[place] for place in where], shape)
        made = _ordered_as(made, strides) if strides else made
        if not is_recorded((self,)):
            return made
        root = self if self._base is None else self._base

        def of_root(g):
            memory = _kernels.zeros(len(root._memory), root.dtype)
            for place, value in zip(where, g._numbers(), strict=True):
                memory[place] += value
            return self._of(memory, root.shape, root.dtype, root._strides, root._offset)

        return record(made, "Index", (of_root,), (root,))

    def index_select(self, dim, index):
        need(index.ndim < 2, f"a vector of places is expected, got {index.ndim} axes", IndexError)
        return self.movedim(dim, 0)[index.reshape(-1)].movedim(0, dim).contiguous()

    def masked_select(self, mask):
        need(mask.dtype.kind == BOOL, f"a bool mask is expected, got {mask.dtype}")
        shape = broadcast(self.shape, mask.shape)
        return self.expand(shape)[mask.expand(shape)]

    def nonzero(self, *, as_tuple=False):
        if as_tuple:
            return (self if self.ndim else self[None]).nonzero().unbind(1)
        found = [place for place, value in enumerate(self._numbers()) if value]
        pairs = list(zip(strides_of(self.shape), self.shape, strict=True))
        columns = [place // step % size for step, size in pairs for place in found]
        return self._made(columns, (self.ndim, len(found)), int64).permute([1, 0])

    def _triangle(self, keeps):
        need(self.ndim > 1, f"a triangle needs two axes, got {self.ndim}")
        kept = [keeps(j - i) for i in range(self.shape[-2]) for j in range(self.shape[-1])]
        pairs = zip(self._numbers(), kept * prod(self.shape[:-2]), strict=True)
        return self._made([x if keep else 0 for x, keep in pairs], self.shape)

    # ------------------------------------------------------------------ shapes
    def flatten(self, start_dim=0, end_dim=-1):
        first, last = axis_of(start_dim, self.ndim), axis_of(end_dim, self.ndim)
        need(first <= last, f"flatten: axis {start_dim} comes after axis {end_dim}")
        return self.reshape(*self.shape[:first], prod(self.shape[first : last + 1]), *self.shape[last + 1 :])

    def unflatten(self, dim, sizes):
        axis, sizes = axis_of(dim, self.ndim), ints((sizes,))
        need(sizes and self.ndim, "unflatten needs an axis and sizes")
        part = Tensor._of((), [self.shape[axis]], self.dtype)._complete(sizes)
        return self.view(*self.shape[:axis], *part, *self.shape[axis + 1 :])

    def repeat(self, *sizes):
        sizes, new = ints(sizes), len(ints(sizes)) - self.ndim
        right = new >= 0 and min(sizes, default=0) >= 0
        need(right, f"repeat needs a count for each of {self.ndim} axes, got {sizes}")
        with GradMode(False):
            found = self.clone()[(None,) * new]
            for axis, count in enumerate(sizes):
                found = found._along(lambda row, count=count: row * count, axis)
        own = [1] * new + [*self.shape]
        parts = [size for pair in zip(sizes, own, strict=True) for size in pair]
        of_input = lambda g: g.reshape(parts).sum([*range(0, len(parts), 2)]) if parts else g
        return record(found, "Repeat", (of_input,), (self,))

    def repeat_interleave(self, repeats, dim=None):
        if dim is None:
            return self.flatten().repeat_interleave(repeats, 0)
        axis = axis_of(dim, self.ndim)
        need(self.ndim, "a tensor without axes has no entries to repeat", IndexError)
        size = self.shape[axis]
        counts = [repeats] * size if isinstance(repeats, int) else repeats.tolist()
        right = len(counts) == size and min(counts, default=0) >= 0
        need(right, f"a count for each of {size} entries is needed, got {repeats}")
        pick = [place for place, count in enumerate(counts) for _ in range(count)]
        return self.index_select(dim, Tensor._index(pick))

    def split(self, split_size, dim=0):
        need(self.ndim, "a tensor without axes cannot be split")
        told = f"split_size must be an int or a list of ints, got {split_size!r}"
        need(isinstance(split_size, (int, list, tuple)) and split_size is not True, told, TypeError)
        sizes, length = split_size, self.shape[axis_of(dim, self.ndim)]
        if isinstance(sizes, int):
            need(sizes > 0 or length == 0 == sizes, f"no parts of size {sizes} can be made")
            sizes = [min(sizes, length - start) for start in range(0, length, sizes or 1)] or [0]
        right = sum(sizes) == length and min(sizes) >= 0
        need(right, f"parts of {list(sizes)} do not add up to {length}, the size of axis {dim}")
        ends = zip(accumulate(sizes), sizes, strict=True)
        found = tuple(self.narrow(dim, end - size, size) for end, size in ends)
        for one in found:
            one._said = "SplitBackward0" if isinstance(split_size, int) else "SplitWithSizesBackward0"
        return found

    def chunk(self, chunks, dim=0):
        need(self.ndim and chunks > 0, f"chunk needs an axis and parts, got {chunks}")
        length = self.shape[axis_of(dim, self.ndim)]
        return self.split(-(-length // chunks) if length else [0] * chunks, dim)

    def unbind(self, dim=0):
        axis = axis_of(dim, self.ndim)
        return tuple(self.select(axis, i) for i in range(self.shape[axis] if self.ndim else 1))

    def narrow(self, dim, start, length):
        need(self.ndim, "a tensor without axes has no parts")
        need(not isinstance(start, Tensor) or not start.ndim, "start must be one integer")
        axis = axis_of(dim, self.ndim)
        size = self.shape[axis]
        need(-size <= start <= size, f"narrow starts at {start}, outside {size}", IndexError)
        start = start + size if start < 0 else start
        inside = 0 <= length <= size - start
        need(inside, f"{length} entries from {start} do not lie in axis {dim} of size {size}")
        return self._slice(axis, slice(start, start + length))

    def diag(self, diagonal=0):
        need(self.ndim in (1, 2), f"a vector or matrix is expected, got {self.ndim} axes")
        if self.ndim == 2:
            return self.diagonal(diagonal)._dense()
        made = self.new_zeros(2 * [len(self) + abs(diagonal)])
        made.diagonal(diagonal)._write(self._numbers())
        return record(made, "Diag", (lambda g: g.diagonal(diagonal),), (self,))

    def new_full(self, size, fill_value, *, dtype=None, **_):
        need(min(size, default=0) >= 0, f"no size may be negative, got {tuple(size)}")
        return self._made([fill_value] * prod(size), size, dtype)

    # ------------------------------------------------------------------ products
    def matmul(self, other):
        need(isinstance(other, Tensor), f"a tensor is expected, got {type(other).__name__}", TypeError)
        told = f"{tuple(self.shape)} {self.dtype} and {tuple(other.shape)} {other.dtype} cannot be multiplied"
        need(self.ndim and other.ndim and self.dtype is other.dtype, told)
        left, right = self if self.ndim > 1 else self[None], other if other.ndim > 1 else other[:, None]
        need(left.shape[-1] == right.shape[-2], f"{told}: {left.shape[-1]} columns, {right.shape[-2]} rows")
        need(self.dtype.kind > BOOL, told, NotImplementedError)
        made = left._times(right)
        made = made if self.ndim > 1 else made.squeeze(-2)
        return made if other.ndim > 1 else made.squeeze(-1)

    def _times(self, right):
        """Return a product of matrices, on the tape."""
        if right.ndim == 2 and self.ndim > 2:
            rows = self.reshape(prod(self.shape[:-1]), self.shape[-1])
            return rows._times(right).view(*self.shape[:-1], right.shape[-1])
        with GradMode(False):
            made = self._product_of(right)
        gradients = (lambda g, a, b: g._product_of(b.mT), lambda g, a, b: a.mT._product_of(g))
        return (
            record(made, "Mm", gradients, (self, right), (self, right))
            if is_recorded((self, right))
            else made
        )

    def _product_of(self, right):
        """Return a product of matrices, by the kernel or number by number."""
        left, (count, inner), width = self, self.shape[-2:], right.shape[-1]
        front = broadcast(left.shape[:-2], right.shape[:-2])
        like = same_device([self, right])
        if _kernels.serves(self) and right.device == "cpu":
            pair = left.expand(*front, count, inner), right.expand(*front, inner, width)
            flat = [one.reshape(prod(front), *one.shape[-2:]) for one in pair]
            memory = _kernels.product(*flat, (prod(front), count, width))
            return self._of(memory, (*front, count, width), float32)
        rows = left.expand(*front, count, inner)._rows(-1)
        columns = right.mT.expand(*front, width, inner)._rows(-1)
        values = [
            sum(map(operator.mul, row, column))
            for i in range(prod(front))
            for row in rows[i * count : (i + 1) * count]
            for column in columns[i * width : (i + 1) * width]
        ]
        return like._made(values, (*front, count, width))

    def _product(self, other, *axes):
        found = self.ndim, other.ndim
        same = found != (3, 3) or len(self) == len(other)
        need(found == axes and same, f"tensors with {axes} axes are expected, got {found}")
        return self @ other

    def outer(self, other):
        need(self.ndim == other.ndim == 1, "outer takes two vectors")
        return self[:, None] * other


Strided._plain = Tensor


def _whole(function, a, b):
    """Return a quotient or remainder of integers."""
    try:
        return apply(function, a, b)
    except ZeroDivisionError:
        raise RuntimeError("an integer was divided by zero") from None


def where(condition, input=None, other=None):
    """Return numbers of one tensor where a condition is True, and of a second one elsewhere."""
    if input is None:
        return condition.nonzero(as_tuple=True)
    need(isinstance(condition, Tensor), "the condition must be a tensor", TypeError)
    need(condition.dtype.kind == BOOL, f"a bool condition is needed, got {condition.dtype}")
    common = result_type(input, other)
    pair = tuple(x if isinstance(x, Tensor) else Tensor._from(x, common) for x in (input, other))
    choose = lambda chosen, a, b: a if chosen else b
    made = apply(choose, condition, *pair, common=common, name="where")
    if not is_recorded(pair):
        return made
    return record(made, "Where", _gradients.of_choice(condition), (condition, *pair))


def _noted_as(name, made, gradients, inputs):
    """Put a result on the tape, whose gradients are functions of its own, of it and of the inputs."""
    return record(made, name, gradients, inputs, (made.detach(), *inputs)) if is_recorded(inputs) else made


def _on_tape(name):
    """Let a method put its results on the tape."""
    method, (kind, gradients) = getattr(Tensor, name), _gradients.of(name)
    title = "".join(map(str.capitalize, name.split("_")))

    @wraps(method)
    def recorded(*inputs, **how):
        if not is_recorded((*inputs, *how.values())):
            return method(*inputs, **how)
        with GradMode(False):
            made = method(*inputs, **how)
        inputs = (*inputs, *how.values())
        saved = inputs if kind == "inputs" else (made.detach(),) if kind == "result" else ()
        if name in _gradients.OF_OTHERS:
            # What needs no gradient itself keeps the others' numbers from being needed.
            alone = not is_recorded(inputs[1:])
            saved = (
                (None, *inputs[1:])
                if alone
                else inputs
                if is_recorded(inputs[:1])
                else (inputs[0], None, *inputs[2:])
            )
        power = name == "pow" and isinstance(inputs[1], Tensor)
        made = record(made, title, gradients, inputs, saved)
        made._said = "PowBackward1" if power else None
        return made

    setattr(Tensor, name, recorded)


def finfo(dtype=float32):
    """Return the limits of a floating-point dtype."""
    known = {float16: (10, 15), bfloat16: (7, 127), float32: (23, 127), float64: (52, 1023)}
    need(dtype in known, f"finfo takes a floating-point dtype, got {dtype}", TypeError)
    digits, exponent = known[dtype]
    eps = 2.0**-digits
    top = (2 - eps) * 2.0**exponent
    tiny, resolution = 2.0 ** (1 - exponent), {10: 1e-3, 7: 1e-2, 23: 1e-6, 52: 1e-15}[digits]
    more = {"tiny": tiny, "smallest_normal": tiny, "resolution": resolution, "dtype": dtype.name}
    return SimpleNamespace(min=-top, max=top, eps=eps, bits=8 * dtype.itemsize, **more)


def _kron(self, other):
    """Return the product of each number with a whole matrix."""
    usual = self.ndim == other.ndim == 2 and (self.is_contiguous() or len(self) == 1)
    need(usual, "kron of anything but two matrices without gaps needs", NeedsTorchError)
    return (self[:, None, :, None] * other[:, None]).flatten(2).flatten(0, 1)


def _vector(_):
    raise RuntimeError("a vector has no two axes to exchange")


# ------------------------------------------------------------------ methods that tables describe
_SHORT = {
    "mT": property(
        lambda self: _vector(self) if self.ndim == 1 else self.transpose(-2, -1) if self.ndim else self
    ),
    "T": property(lambda self: self.permute([*range(self.ndim)][::-1])),
    "data": property(Tensor.detach, lambda self, other: self._swap(other)),
    "is_cpu": property(lambda self: self.device == "cpu"),
    "is_meta": property(lambda self: self.device == "meta"),
    "swapaxes": Strided.transpose,
    "broadcast_to": Strided.expand,
    "median": lambda self, dim=None, keepdim=False: self._with_places(_numbers.middle, dim, keepdim),
    "dim": lambda self: self.ndim,
    "numel": lambda self: prod(self.shape),
    "size": lambda self, dim=None: self.shape if dim is None else self.shape[axis_of(dim, self.ndim)],
    "stride": lambda self, dim=None: self._strides if dim is None else self._strides[axis_of(dim, self.ndim)],
    "data_ptr": lambda self: id(self._memory) + self._offset * self.dtype.itemsize,
    "is_floating_point": lambda self: self.dtype.kind == FLOAT,
    "cpu": lambda self: self.to("cpu"),
    "clone": lambda self, memory_format=None: apply(lambda x: x, self, name="copy"),
    "contiguous": lambda self, **_: self if self.is_contiguous() else self._dense(),
    "view_as": lambda self, other: self.view(other.shape),
    "expand_as": lambda self, other: self.expand(other.shape),
    "t": lambda self: _vector(self) if self.ndim > 2 else self.T,
    "new_zeros": lambda self, *size, **how: self.new_full(ints(size), 0, **how),
    "new_ones": lambda self, *size, **how: self.new_full(ints(size), 1, **how),
    "new_empty": lambda self, *size, **how: self.new_full(ints(size), 0, **how),
    "clamp_min": lambda self, min: self.clamp(min=min),
    "clamp_max": lambda self, max: self.clamp(max=max),
    "where": lambda self, condition, other: where(condition, self, other),
    "allclose": lambda self, *args, **how: self.isclose(*args, **how).all().item(),
    "equal": lambda self, other: self.shape == other.shape and self._numbers() == other._numbers(),
    "softmax": lambda self, dim, dtype=None: self._soft("softmax", dim, dtype),
    "log_softmax": lambda self, dim, dtype=None: self._soft("log_softmax", dim, dtype),
    "std": lambda self, *args, **how: self.var(*args, **how).sqrt(),
    "max": lambda self, dim=None, keepdim=False: self._best(max, dim, keepdim),
    "min": lambda self, dim=None, keepdim=False: self._best(min, dim, keepdim),
    "tril": lambda self, diagonal=0: self._triangle(lambda right: right <= diagonal),
    "triu": lambda self, diagonal=0: self._triangle(lambda right: right >= diagonal),
    "mm": lambda self, other: self._product(other, 2, 2),
    "bmm": lambda self, other: self._product(other, 3, 3),
    "mv": lambda self, other: self._product(other, 2, 1),
    "dot": lambda self, other: self._product(other, 1, 1),
    "kron": _kron,
    "__bool__": lambda self: bool(self.item()),
    "__float__": lambda self: float(self._one()),
    "__int__": lambda self: int(self._one()),
    "__iter__": lambda self: iter([self[i] for i in range(len(self))]),
    "__contains__": lambda self, number: bool((self == number).any()),
    "__neg__": lambda self: self.neg(),
    "__matmul__": Tensor.matmul,
    "zero_": lambda self: self.fill_(0),
}
_CASTS = {"bool": bool_, "int": int32, "long": int64, "half": float16, "float": float32, "double": float64}
_SHORT |= {name: lambda self, dtype=dtype: self.to(dtype) for name, dtype in _CASTS.items()}
for _name, _short in _SHORT.items():
    setattr(Tensor, _name, _short)


def _by_number(name, function, otherwise=None, *, floats=False, result=None, whole=False):
    def method(self, *others):
        common = result_type(self, *others)
        named = f"{name} takes no {common}"
        wrong = RuntimeError if name == "relu" else NotImplementedError
        need(result or floats or others or common.kind > BOOL or name == "sign", named, wrong)
        if whole and common.kind == FLOAT:
            broadcast(*(one.shape for one in (self, *others) if isinstance(one, Tensor)))
            need(False, named, NotImplementedError)
        common = float32 if floats and common.kind < FLOAT else common
        return apply(function, self, *others, common=common, result=result, otherwise=otherwise, name=name)

    setattr(Tensor, name, method)


def _scaled(method):
    """Let an addition or subtraction multiply what is added by `alpha`."""

    def added(self, other, *, alpha=1):
        if type(alpha) is int and alpha == 1:
            return method(self, other)
        needs_float = isinstance(alpha, float) and result_type(self, other).kind < FLOAT
        need(not needs_float, f"for integers, alpha must be an integer, got {alpha}")
        boolean = alpha is True and result_type(self, other).kind > BOOL
        need(not boolean, "alpha may only be a bool for bool results")
        return method(self, other * alpha)

    return added


def _rounded(self, *, decimals=0):
    if not decimals:
        return _round(self)
    need(self.dtype.kind == FLOAT, "decimals are for floating-point numbers", NotImplementedError)
    factor = 10**decimals
    return _round(self * factor) / factor


def _by_row(name, function, rule, along):
    def method(self, dim=None, keepdim=False, *, dtype=None):
        source, result = self if dtype is None else self.to(dtype), _CASTS.get(rule)
        if rule == "whole" and source.dtype.kind < FLOAT and dtype is None:
            source, result = source.to(int64), int64
        if along:
            back = lambda g: g.flip(dim).cumsum(dim).flip(dim)
            return record(
                source._along(function, dim), "Cumsum", (back if self.ndim else lambda g: g,), (source,)
            )
        made = source._sum_by_kernel(dim, keepdim) if name == "sum" else None
        made = source._reduce(function, dim, keepdim, result) if made is None else made
        if made.dtype.kind < FLOAT or name not in _gradients.REDUCED:
            return made
        return source._noted_reduction(name.capitalize(), made, _gradients.REDUCED[name], dim, keepdim)

    setattr(Tensor, name, method)


for _name, _pair in _numbers.OF_FLOATS.items():
    _by_number(_name, *_pair, floats=True)
for _name, _pair in _numbers.OF_ANY.items():
    _by_number(_name, *_pair)
for _name, _function in _numbers.TESTS.items():
    _by_number(_name, _function, result=bool_)
for _name, _function in _numbers.BITS.items():
    _by_number(_name, _function, whole=True)
for _name, _pair in _numbers.BY_ROW.items():
    _by_row(_name, *_pair)
for _name in [*_gradients.LINEAR, *_gradients.OF_RESULT, *_gradients.OF_INPUTS]:
    _on_tape(_name)
_plain_add, _plain_sub, _round = Tensor.add, Tensor.sub, Tensor.round
_plain_rsqrt = Tensor.rsqrt
# Of a number with 16 bits, torch rounds the root too.
Tensor.rsqrt = lambda self: 1 / self.sqrt() if self.dtype is float16 else _plain_rsqrt(self)
Tensor.round = _rounded


Tensor.__abs__ = Tensor.abs


def _in_place(name):
    new = getattr(Tensor, name)

    def change(self, *args, **how):
        self._may_change()
        if name.startswith("bitwise"):
            shape = broadcast(self.shape, *(one.shape for one in args if isinstance(one, Tensor)))
            need(shape == self.shape, f"a result of shape {tuple(shape)} does not fit {tuple(self.shape)}")
        if name in ("tril", "triu"):
            need(0 not in self._strides, f"{name}_ of an expanded tensor needs", NeedsTorchError)
        # What the tape keeps must not change.
        before = self.clone() if is_recorded((self, *args)) else self
        return self._become(new(before, *args, **how))

    setattr(Tensor, f"{name}_", change)
    return change


def _operator(name, method, swapped=False):
    """Let an operator of Python call a method; an operand that is not a number is left to its own class."""

    def operate(self, other):
        if not isinstance(other, (Tensor, int, float)):
            return NotImplemented
        made = method(other, self) if swapped else method(self, other)
        if name in ("rsub", "rtruediv") and made._node is not None:
            made._said = {"rsub": "RsubBackward1", "rtruediv": "MulBackward0"}[name]
        return made

    setattr(Tensor, f"__{name}__", operate)


_LONG = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}
_LONG |= {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_LONG |= {name: name for name in "add sub mul pow".split()}
Tensor.add, Tensor.sub = _scaled(_plain_add), _scaled(_plain_sub)
_USUAL = {"add": _plain_add, "sub": _plain_sub}  # without the care for `alpha`
for _name, _long in _LONG.items():
    _operator(_name, _USUAL.get(_long) or getattr(Tensor, _long))
    _operator(f"r{_name}", _USUAL.get(_long) or getattr(Tensor, _long), swapped=True)
    setattr(Tensor, f"__i{_name}__", _in_place(_long))
for _name in "lt le gt ge eq ne".split():
    _operator(_name, getattr(Tensor, _name))
_CHANGES = "logical_not clamp masked_fill tril triu neg".split()
for _name in [*_numbers.OF_FLOATS, *_numbers.OF_ANY, *_CHANGES]:
    _in_place(_name)
# What stands above calls methods as they are; a reader's call is checked first.
METHODS = {name: getattr(Tensor, name) for name in dir(Tensor) if name[0] != "_"}
for _name, _method in METHODS.items():
    setattr(Tensor, _name, checked(_name, _method, is_method=True))
