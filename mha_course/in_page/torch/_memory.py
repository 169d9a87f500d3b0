"""Numbers in flat memory, and views of it: shapes, strides, indexing and assignment as in torch."""

from __future__ import annotations

import struct
from array import array
from itertools import product
from math import copysign, inf, prod
from operator import index as as_int

BOOL, INT, FLOAT = range(3)  # kinds of numbers, each of which includes the one before


class NeedsTorchError(RuntimeError):
    """Something that only torch itself can do."""

    def __init__(self, what):
        super().__init__(f"{what} torch itself, and here is only a small stand-in: open this page in Colab")


def need(condition, message, kind=RuntimeError):
    """Raise an error unless a condition holds."""
    if not condition:
        raise kind(message)


class DType:
    """The type of a tensor's numbers; a result has the type with the largest `rank`."""

    def __init__(self, name, code, kind, rank, itemsize):
        self.name, self.code, self.kind, self.rank, self.itemsize = name, code, kind, rank, itemsize
        self.is_floating_point, self.is_complex = kind == FLOAT, False

    def __repr__(self):
        return f"torch.{self.name}"

    def __deepcopy__(self, _):
        return self


bool_ = DType("bool", "b", BOOL, 0, 1)
int32, int64 = DType("int32", "i", INT, 1, 4), DType("int64", "q", INT, 2, 8)
float16, float32 = DType("float16", "f", FLOAT, 3, 2), DType("float32", "f", FLOAT, 4, 4)
float64, bfloat16 = DType("float64", "d", FLOAT, 5, 8), DType("bfloat16", "", FLOAT, 3, 2)
uint8, int8, int16 = (DType(name, "", INT, 1, 1) for name in ("uint8", "int8", "int16"))


class Device(str):
    """Where numbers are: "cpu", or "meta", where there are none."""

    __slots__ = ()
    type, index = property(str), None

    def __repr__(self):
        return f"device(type='{self}')"


class Size(tuple):
    """A shape."""

    __slots__ = ()

    def __repr__(self):
        return f"torch.Size({list(self)})"

    def __getitem__(self, key):
        part = super().__getitem__(key)
        return Size(part) if isinstance(key, slice) else part

    def numel(self):
        return prod(self)


def _half(value):
    try:
        return struct.unpack("e", struct.pack("e", value))[0]
    except OverflowError:
        return copysign(inf, value)


def store(values, dtype):
    """Put a list of numbers into memory: floats are rounded, integers wrap around."""
    need(dtype.code, f"{dtype} needs", NeedsTorchError)
    rounded = bool if dtype.kind == BOOL else _half if dtype is float16 else None
    values = list(map(rounded, values)) if rounded else values
    try:
        return array(dtype.code, values)
    except OverflowError:
        half = 1 << 8 * dtype.itemsize - 1
        return array(dtype.code, [(x + half) % (2 * half) - half for x in values])


def convert(values, old, new):
    """Convert a list of numbers from one dtype to another."""
    if new.kind == INT and old.kind == FLOAT:
        values = [int(x) if abs(x) < inf else -1 << 8 * new.itemsize - 1 for x in values]
    # Only a cast that may lose digits or change the kind needs memory of the new dtype.
    return store(values, new).tolist() if old.rank > new.rank or new.kind > old.kind else values


def strides_of(shape):
    """Return the distance between neighbours along each axis in memory without gaps."""
    found, step = [], 1
    for size in reversed([*shape]):
        found.append(step)
        step *= size or 1
    return tuple(found[::-1])


def places(shape, strides, offset=0):
    """Return the position of each number in memory."""
    found = [offset]
    for size, stride in zip(shape, strides, strict=True):
        steps = [i * stride for i in range(size)]
        found = [place + step for place in found for step in steps]
    return found


def broadcast(*shapes, kind=RuntimeError):
    """Return the shape to which all of these can be expanded, or raise an error."""
    if all(shape == shapes[0] for shape in shapes[1:]) and shapes:
        return Size(shapes[0])
    result = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        need(len(sizes) < 2, f"shapes {[*map(tuple, shapes)]} do not fit: {sizes} at axis {axis}", kind)
        result.append(sizes.pop() if sizes else 1)
    return Size(result)


def axis_of(dim, ndim):
    """Return the number of an axis, counted from the front."""
    need(type(dim) is not bool and hasattr(dim, "__index__"), f"dim must be an int, got {dim!r}", TypeError)
    count, dim = max(ndim, 1), as_int(dim)
    need(-count <= dim < count, f"dim must lie in {-count}..{count - 1}, got {dim}", IndexError)
    return dim % count


def ints(sizes):
    """Return sizes that were passed one by one, or together as a tuple or list."""
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    right = all(hasattr(size, "__index__") and type(size) is not bool for size in sizes)
    need(right, f"sizes must be ints, got {sizes}", TypeError)
    return tuple(map(as_int, sizes))


def _view_strides(shape, strides, new):
    """Return strides for the same memory in a new shape, or None, by torch's steps."""
    if 0 in shape or not shape:
        return strides_of(new)
    shape, new = tuple(shape), tuple(new)
    if strides == strides_of(shape):
        return strides_of(new)
    found, at = [0] * len(new), len(new) - 1
    base, old_count, new_count = strides[-1], 1, 1
    for axis in reversed(range(len(shape))):
        old_count *= shape[axis]
        if axis == 0 or (shape[axis - 1] != 1 and strides[axis - 1] != old_count * base):
            # Here begins a part of memory without gaps.
            while at >= 0 and (new_count < old_count or new[at] == 1):
                found[at] = new_count * base
                new_count *= new[at]
                at -= 1
            if new_count != old_count:
                return None
            base, old_count, new_count = strides[axis - 1], 1, 1
    return tuple(found)


class Made:
    """What made a tensor: here only its name is known."""

    def __init__(self, name):
        self._name = name

    def name(self):
        return self._name

    def __repr__(self):
        return f"<{self._name} object>"

    def __getattr__(self, name):
        raise AttributeError(
            f"the small stand-in for torch has no {name} of a grad_fn: open this page in Colab"
        )


class Strided:
    """Memory, and how to step through it; views share the memory. `Tensor` adds the arithmetic."""

    device = Device("cpu")
    # On the tape (see `_tape.py`): a view's root; whether this root requires gradients, and what made it.
    _base, _needs, _node, _recording, _grad, _said = None, False, None, True, None, None
    ndim = property(lambda self: len(self.shape))
    is_leaf = property(lambda self: self.grad_fn is None)

    @property
    def requires_grad(self):
        return self._needs if self._base is None else self._base._needs

    @requires_grad.setter
    def requires_grad(self, needs):
        need(
            not needs or self.dtype.kind == FLOAT,
            f"only floating-point numbers have gradients, not {self.dtype}",
        )
        if needs != self.requires_grad:
            told = "only a leaf, such as a parameter, can stop requiring gradients: use detach()"
            need(needs or self.is_leaf, told)
            self._base, self._needs = None, bool(needs)

    @property
    def grad(self):
        return self._grad

    @grad.setter
    def grad(self, grad):
        if grad is not None:
            told = f"grad must be a tensor or None, got {type(grad).__name__}"
            need(isinstance(grad, Strided), told, TypeError)
            told = f"a gradient of shape {tuple(grad.shape)} does not fit a tensor of {tuple(self.shape)}"
            need(grad.shape == self.shape, told)
        self._grad = grad

    @property
    def grad_fn(self):
        """What made this tensor, or its root if it is a view; a leaf was made by nothing."""
        if self._base is not None and self._base._needs:
            return self._base.grad_fn or Made("ViewBackward0")
        return self._node if self._node is not None and self._node.tensor is None else None

    @classmethod
    def _of(cls, memory, shape, dtype, strides=None, offset=0, device=device):
        made = object.__new__(cls)
        made._memory, made.shape, made.dtype, made.device = memory, Size(shape), dtype, device
        made._strides, made._offset = strides_of(shape) if strides is None else tuple(strides), offset
        made._changes = [0]  # how often the memory was changed in place; views share it
        return made

    def _made(self, values, shape, dtype=None):
        """Return a new tensor of these numbers on the device of this one."""
        dtype = dtype or self.dtype
        return self._plain._of(store(values, dtype), shape, dtype, device=self.device)

    def _see(self, shape, strides, offset=None):
        """Return a view of the same memory."""
        offset = self._offset if offset is None else offset
        view = self._plain._of(self._memory, shape, self.dtype, strides, offset, self.device)
        view._changes = self._changes
        if Strided._recording:
            view._base = self if self._base is None else self._base
        return view

    def is_contiguous(self):
        if self._strides == strides_of(self.shape):
            return True
        pairs = zip(self.shape, self._strides, strides_of(self.shape), strict=True)
        return 0 in self.shape or all(a == b or size == 1 for size, a, b in pairs)

    def _numbers(self):
        """Return all numbers, in order, as a list."""
        if self.is_contiguous():
            return self._memory[self._offset : self._offset + prod(self.shape)].tolist()
        return [self._memory[place] for place in places(self.shape, self._strides, self._offset)]

    def _write(self, values):
        """Write numbers into the memory of this tensor."""
        single = all(size < 2 or step for size, step in zip(self.shape, self._strides, strict=True))
        need(single, "several places of an expanded tensor are one in memory: use clone()")
        self._changes[0] += 1
        stored = store(values, self.dtype)
        if self.is_contiguous():
            self._memory[self._offset : self._offset + len(stored)] = stored
            return
        where = places(self.shape, self._strides, self._offset)
        for place, value in zip(where, stored, strict=True):
            self._memory[place] = value

    # ------------------------------------------------------------------ other views
    def view(self, *shape):
        need(not (shape and isinstance(shape[0], DType)), "memory that is read as another dtype needs",
             NeedsTorchError)  # fmt: skip
        shape = self._complete(ints(shape))
        strides = _view_strides(self.shape, self._strides, shape)
        told = f"{tuple(self.shape)} with strides {self._strides} cannot be viewed as {shape}: use reshape"
        need(strides is not None, told)
        return self._see(shape, strides)

    def reshape(self, *shape):
        shape = self._complete(ints(shape))
        fits = _view_strides(self.shape, self._strides, shape) is not None
        return (self if fits else self._dense()).view(shape)

    def _complete(self, shape):
        """Return a shape with its -1 replaced by the remaining size."""
        count, known = prod(self.shape), prod(size for size in shape if size != -1)
        if -1 in shape and known and count % known == 0 and shape.count(-1) == 1:
            shape = tuple(count // known if size == -1 else size for size in shape)
        fits = prod(shape) == count and min(shape, default=0) >= 0
        need(fits, f"{tuple(self.shape)} cannot have the shape {shape}")
        return shape

    def permute(self, *dims):
        order = [axis_of(dim, self.ndim) for dim in ints(dims)]
        once = len(order) == self.ndim == len({*order})
        need(once, f"each of {self.ndim} axes is to be named once: {dims}")
        return self._see([self.shape[i] for i in order], [self._strides[i] for i in order])

    def transpose(self, dim0, dim1):
        a, b = axis_of(dim0, self.ndim), axis_of(dim1, self.ndim)
        return self.permute([{a: b, b: a}.get(axis, axis) for axis in range(self.ndim)])

    def movedim(self, source, destination):
        pair = [[x] if isinstance(x, int) else x for x in (source, destination)]
        start, end = ([axis_of(dim, self.ndim) for dim in dims] for dims in pair)
        need(len({*start}) == len(start) == len(end) == len({*end}), f"movedim: {pair} do not fit")
        there = dict(zip(end, start, strict=True))
        rest = iter([axis for axis in range(self.ndim) if axis not in start])
        return self.permute([there[i] if i in there else next(rest) for i in range(self.ndim)])

    def expand(self, *shape):
        shape = ints(shape)
        new, told = len(shape) - self.ndim, f"{tuple(self.shape)} cannot be expanded to {shape}"
        need(new >= 0, told)
        sizes, strides = [1] * new + [*self.shape], [0] * new + [*self._strides]
        for axis, size in enumerate(shape):
            if size != sizes[axis] and not (size == -1 and axis >= new):
                need(sizes[axis] == 1 and size >= 0, told)
                sizes[axis], strides[axis] = size, 0
        return self._see(sizes, strides)

    def unsqueeze(self, dim):
        dim = axis_of(dim, self.ndim + 1)
        step = self.shape[dim] * self._strides[dim] if dim < self.ndim else 1
        shape = [*self.shape[:dim], 1, *self.shape[dim:]]
        return self._see(shape, [*self._strides[:dim], step, *self._strides[dim:]])

    def squeeze(self, dim=None):
        dims = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
        gone = {axis_of(one, self.ndim) for one in dims}
        kept = [i for i, size in enumerate(self.shape) if i not in gone or size != 1]
        return self._see([self.shape[i] for i in kept], [self._strides[i] for i in kept])

    def diagonal(self, offset=0, dim1=0, dim2=1):
        a, b = axis_of(dim1, self.ndim), axis_of(dim2, self.ndim)
        need(a != b, f"diagonal needs two different axes, got {dim1} and {dim2}")
        down, right = max(-offset, 0), max(offset, 0)
        size = max(min(self.shape[a] - down, self.shape[b] - right), 0)
        start = self._offset + down * self._strides[a] + right * self._strides[b]
        kept = [i for i in range(self.ndim) if i not in (a, b)]
        strides = [*(self._strides[i] for i in kept), self._strides[a] + self._strides[b]]
        return self._see([*(self.shape[i] for i in kept), size], strides, start)

    def unfold(self, dimension, size, step):
        axis = axis_of(dimension, self.ndim)
        fits = 0 <= size <= self.shape[axis] and step > 0
        need(fits, f"windows of {size}, {step} apart, do not fit into {self.shape[axis]}")
        shape, strides = list(self.shape), [*self._strides, self._strides[axis]]
        shape[axis], strides[axis] = (shape[axis] - size) // step + 1, strides[axis] * step
        return self._see([*shape, size], strides)

    # ------------------------------------------------------------------ indexing
    def __getitem__(self, key):
        if isinstance(key, Strided) and key.dtype.name == "int64" and key.ndim and self.ndim:
            return self._rows_at(key)
        view, *found = self._find(key)
        return view if found[1] is None else view._taken(*found)

    def __setitem__(self, key, value):
        self._may_change()
        view, shape, where, _ = self._find(key)
        told = f"can't assign a {type(value).__name__} to a tensor"
        need(not isinstance(value, (list, tuple, str, range)), told, TypeError)
        value = value if isinstance(value, Strided) else self._plain._from(value, self.dtype)
        while value.ndim > len(view.shape if where is None else shape) and value.shape[0] == 1:
            value = value[0]
        if where is None:
            view.copy_(value)
            return
        need(value.dtype is self.dtype, f"places of {self.dtype} cannot take {value.dtype}")
        value = value.expand(shape)
        self._noted(value, where)
        self._changes[0] += 1
        for place, number in zip(where, value._numbers(), strict=True):
            self._memory[place] = number

    def _find(self, key):
        """Return the view that ints, slices, ... select; shape, positions and strides from tensors."""
        keys = [self._plain._index(x) if isinstance(x, (list, range, bool)) else x
                for x in (key if isinstance(key, tuple) else [key])]  # fmt: skip
        left, dots = self.ndim - sum(map(self._axes_of, keys)), sum(one is Ellipsis for one in keys)
        need(left >= 0 and dots < 2, f"too many indices for a tensor with {self.ndim} axes", IndexError)
        view, axis, chosen = self, 0, {}
        for one in keys:
            if one is Ellipsis:
                axis += left
            elif one is None:
                view, axis = view.unsqueeze(axis), axis + 1
            elif isinstance(one, slice):
                view, axis = view._slice(axis, one), axis + 1
            elif isinstance(one, Strided) and one.dtype.kind == BOOL and not one.ndim:
                view, chosen[axis] = view.unsqueeze(axis), self._plain._index([0] * one.item())
                axis += 1
            elif isinstance(one, Strided) and (one.ndim or one.dtype.kind == FLOAT):
                for part in view._indices(one, axis):
                    chosen[axis], axis = part, axis + 1
            else:
                view = view.select(axis, one)
        return view, *(view._choose(chosen) if chosen else (None, None, None))

    @staticmethod
    def _axes_of(one):
        """Return how many axes an index takes."""
        if one is None or one is Ellipsis:
            return 0
        if isinstance(one, Strided):
            return one.ndim if one.dtype.kind == BOOL else 1
        right = isinstance(one, slice) or hasattr(one, "__index__")
        kind = IndexError if isinstance(one, float) else TypeError
        need(right, f"an index must be an int, slice, None, ... or tensor, got {one!r}", kind)
        return 1

    def select(self, dim, index):
        axis, number = axis_of(dim, self.ndim), as_int(index)
        self._check(number, axis)
        offset = self._offset + number % self.shape[axis] * self._strides[axis]
        kept = [i for i in range(self.ndim) if i != axis]
        return self._see([self.shape[i] for i in kept], [self._strides[i] for i in kept], offset)

    def _check(self, number, axis):
        size = self.shape[axis] if self.shape else 0
        if not -size <= number < size:
            raise IndexError(f"index {number} is out of range for axis {axis} of size {size}")

    def _slice(self, axis, one):
        told = f"the step of a slice must be positive, got {one.step}: use flip"
        need(one.step is None or as_int(one.step) > 0, told, ValueError)
        ends = (x if x is None else as_int(x) for x in (one.start, one.stop, one.step))
        start, stop, step = slice(*ends).indices(self.shape[axis])
        shape, strides = list(self.shape), list(self._strides)
        shape[axis], strides[axis] = len(range(start, stop, step)), strides[axis] * step
        view = self._see(shape, strides, self._offset + start * self._strides[axis])
        view._said = "SliceBackward0"
        return view

    def _indices(self, one, axis):
        """Return integer tensors, one for each axis that an index tensor takes."""
        need(one.dtype.kind < FLOAT, f"index tensors must be integers or bool, got {one.dtype}", IndexError)
        mine = self.shape[axis : axis + one.ndim]
        fits = one.dtype.kind == INT or one.shape == mine
        need(fits, f"a mask of shape {tuple(one.shape)} does not fit {tuple(mine)}", IndexError)
        return [one] if one.dtype.kind == INT else one.nonzero().unbind(1)

    def _choose(self, chosen):
        """Return the shape and the positions of the numbers that integer tensors select, by their axes.

        The strides of this tensor and of the index tensors, for the axes of the result, come last.
        """
        axes, common = list(chosen), broadcast(*(x.shape for x in chosen.values()), kind=IndexError)
        picked = [self._offset] * prod(common)
        for axis, index in chosen.items():
            numbers, size, step = index.expand(common)._numbers(), self.shape[axis], self._strides[axis]
            for number in numbers:
                self._check(number, axis)
            picked = [place + i % size * step for place, i in zip(picked, numbers, strict=True)]
        # The result's axes stay in place if the indexed axes are adjacent; otherwise they come first.
        first = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
        rest = [axis for axis in range(self.ndim) if axis not in chosen]
        shape, strides = [self.shape[axis] for axis in rest], [self._strides[axis] for axis in rest]
        before, after = places(shape[:first], strides[:first]), places(shape[first:], strides[first:])
        where = [sum(three) for three in product(before, picked, after)]
        mine = [*strides[:first], *[0] * len(common), *strides[first:]]
        sides = [0] * first, [0] * (len(shape) - first)
        theirs = [[*sides[0], *x.expand(common)._strides, *sides[1]] for x in chosen.values()]
        return Size([*shape[:first], *common, *shape[first:]]), where, [mine, *theirs]
