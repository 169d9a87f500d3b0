"""Numbers in flat memory, and views of it: shapes, strides, indexing and assignment as torch has them."""

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
        super().__init__(f"{what} torch itself: open this page in Colab")


def need(condition, message, kind=RuntimeError):
    """Raise an error unless a condition holds."""
    if not condition:
        raise kind(message)


class DType:
    """The type of a tensor's numbers; a result has the largest `rank` of its inputs."""

    def __init__(self, name, code, kind, rank):
        self.name, self.code, self.kind, self.rank = name, code, kind, rank
        self.itemsize = 2 if name == "float16" else array(code).itemsize if code else 0
        self.is_floating_point, self.is_complex = kind == FLOAT, False

    def __repr__(self):
        return f"torch.{self.name}"

    def __deepcopy__(self, _):
        return self


bool_ = DType("bool", "b", BOOL, 0)
int32, int64 = DType("int32", "i", INT, 1), DType("int64", "q", INT, 2)
float16 = DType("float16", "f", FLOAT, 3)
float32, float64 = DType("float32", "f", FLOAT, 4), DType("float64", "d", FLOAT, 5)
# These have a name only.
uint8, int8, int16 = (DType(name, "", INT, 1) for name in ("uint8", "int8", "int16"))
bfloat16 = DType("bfloat16", "", FLOAT, 3)


class Device(str):
    """Where numbers are: "cpu", or "meta", where there are none."""

    __slots__ = ()
    type, index = property(str), None

    def __new__(cls, name="cpu", *_):
        if name not in ("cpu", "meta"):
            raise NeedsTorchError(f"the device {name!r} needs")
        return super().__new__(cls, name)

    def __repr__(self):
        return f"device(type={str(self)!r})"


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


def store(values, dtype):
    """Put a list of numbers into memory: floats are rounded, integers wrap around."""
    if not dtype.code:
        raise NeedsTorchError(f"numbers of {dtype} need")
    if dtype.kind == BOOL:
        values = list(map(bool, values))
    elif dtype is float16:
        values = list(map(_half, values))
    try:
        return array(dtype.code, values)
    except OverflowError:
        span = 1 << 8 * dtype.itemsize
        return array(dtype.code, [(x + span // 2) % span - span // 2 for x in values])


def _half(value):
    try:
        return struct.unpack("e", struct.pack("e", value))[0]
    except OverflowError:
        return copysign(inf, value)


def convert(values, old, new):
    """Return a list of numbers of one dtype as another dtype holds them."""
    if new.kind == INT and old.kind == FLOAT:
        lowest = -1 << 8 * new.itemsize - 1
        values = [int(x) if abs(x) < inf else lowest for x in values]
    # Only what may lose digits or change its kind needs memory of the new dtype.
    changes = old.rank > new.rank or new.kind > old.kind
    return store(values, new).tolist() if changes else values


def strides_of(shape):
    """Return how far neighbours of each axis are apart where memory has no gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def places(shape, strides, offset=0):
    """Return where each number stands in memory."""
    found = [offset]
    for size, stride in zip(shape, strides, strict=True):
        steps = [i * stride for i in range(size)]
        found = [place + step for place in found for step in steps]
    return found


def broadcast(*shapes, kind=RuntimeError):
    """Return the shape to which all of these can be expanded, or raise an error."""
    result = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        told = " and ".join(str(tuple(shape)) for shape in shapes)
        need(len(sizes) < 2, f"{told} do not fit: sizes {sizes} at axis {axis}", kind)
        result.append(sizes.pop() if sizes else 1)
    return Size(result)


def axis_of(dim, ndim):
    """Return the number of an axis, counted from the front."""
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"dim must be an int, got {dim!r}")
    count, dim = max(ndim, 1), as_int(dim)
    told = f"dim must lie in {-count}..{count - 1}, got {dim}"
    need(-count <= dim < count, told, IndexError)
    return dim % count


def ints(sizes):
    """Return sizes that were passed one by one, or together as a tuple or list."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    for size in sizes:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"sizes must be ints, got {size!r}")
    return tuple(map(as_int, sizes))


def _view_strides(shape, strides, new):
    """Return strides that show the same memory with another shape, or None; the steps are torch's."""
    if 0 in shape or not shape:
        return strides_of(new)
    found, at = [0] * len(new), len(new) - 1
    base, old_count, new_count = strides[-1], 1, 1
    for axis in reversed(range(len(shape))):
        old_count *= shape[axis]
        gap = axis and shape[axis - 1] != 1 and strides[axis - 1] != old_count * base
        if axis == 0 or gap:  # here begins a part of memory without gaps
            while at >= 0 and (new_count < old_count or new[at] == 1):
                found[at] = new_count * base
                new_count *= new[at]
                at -= 1
            if new_count != old_count:
                return None
            base, old_count, new_count = strides[axis - 1], 1, 1
    return tuple(found)


class Strided:
    """Memory, and how to step through it; views share the memory. `Tensor` adds what can be computed."""

    requires_grad, device = False, Device("cpu")

    @classmethod
    def _of(cls, memory, shape, dtype, strides=None, offset=0):
        made = object.__new__(cls)
        made._memory, made.shape, made.dtype = memory, Size(shape), dtype
        made._strides = strides_of(shape) if strides is None else tuple(strides)
        made._offset = offset
        return made

    def _like(self, made):
        """Return a new tensor, after it was put where this one is."""
        if self.device == "meta":
            made.device = self.device
        return made

    def _made(self, values, shape, dtype=None):
        """Return a new tensor of these numbers."""
        dtype = dtype or self.dtype
        return self._like(self._plain._of(store(values, dtype), shape, dtype))

    def _see(self, shape, strides, offset=None):
        """Return a view of the same memory."""
        offset = self._offset if offset is None else offset
        view = self._plain._of(self._memory, shape, self.dtype, strides, offset)
        if self.requires_grad:
            view.requires_grad = True
        return self._like(view)

    ndim = property(lambda self: len(self.shape))

    def numel(self):
        return prod(self.shape)

    def is_contiguous(self):
        pairs = zip(self.shape, self._strides, strides_of(self.shape), strict=True)
        return 0 in self.shape or all(a == b or size == 1 for size, a, b in pairs)

    def _places(self):
        return places(self.shape, self._strides, self._offset)

    def _numbers(self):
        """Return all numbers, in order, as a list."""
        memory = self._memory
        if self.is_contiguous():
            return memory[self._offset : self._offset + self.numel()].tolist()
        return [memory[place] for place in self._places()]

    def _write(self, values):
        """Put numbers into the memory that this tensor sees."""
        pairs = zip(self.shape, self._strides, strict=True)
        told = "several places of an expanded tensor are one in memory: use clone()"
        need(all(size < 2 or stride for size, stride in pairs), told)
        for place, value in zip(self._places(), store(values, self.dtype), strict=True):
            self._memory[place] = value

    # ------------------------------------------------------------------ other views
    def view(self, *shape):
        if shape and isinstance(shape[0], DType):
            raise NeedsTorchError("memory that is read as another dtype needs")
        shape = self._complete(ints(shape))
        strides = _view_strides(self.shape, self._strides, shape)
        told = f"{tuple(self.shape)} with strides {self._strides} cannot be viewed as"
        need(strides is not None, f"{told} {shape} without a copy: use reshape")
        return self._see(shape, strides)

    def reshape(self, *shape):
        shape = self._complete(ints(shape))
        strides = _view_strides(self.shape, self._strides, shape)
        return self._dense().view(shape) if strides is None else self.view(shape)

    def _complete(self, shape):
        """Return a shape with its -1 replaced by what is left."""
        count, known = self.numel(), prod(size for size in shape if size != -1)
        told = f"{tuple(self.shape)} cannot have the shape {shape}"
        need(shape.count(-1) < 2 and min(shape, default=0) >= -1, told)
        if -1 in shape:
            need(known and count % known == 0, told)
            shape = tuple(count // known if size == -1 else size for size in shape)
        need(prod(shape) == count, told)
        return shape

    def permute(self, *dims):
        order = [axis_of(dim, self.ndim) for dim in ints(dims)]
        told = f"permute must name each of {self.ndim} axes once, got {order}"
        need(len(order) == self.ndim == len(set(order)), told)
        strides = [self._strides[axis] for axis in order]
        return self._see([self.shape[axis] for axis in order], strides)

    def transpose(self, dim0, dim1):
        a, b = axis_of(dim0, self.ndim), axis_of(dim1, self.ndim)
        exchanged = {a: b, b: a}
        return self.permute([exchanged.get(axis, axis) for axis in range(self.ndim)])

    def movedim(self, source, destination):
        pair = [[x] if isinstance(x, int) else x for x in (source, destination)]
        start, end = ([axis_of(dim, self.ndim) for dim in dims] for dims in pair)
        told = f"movedim needs different axes, got {source} and {destination}"
        need(len({*start}) == len(start) == len(end) == len({*end}), told)
        there = dict(zip(end, start, strict=True))
        rest = iter([axis for axis in range(self.ndim) if axis not in start])
        order = [there[i] if i in there else next(rest) for i in range(self.ndim)]
        return self.permute(order)

    def expand(self, *shape):
        shape = ints(shape)
        new = len(shape) - self.ndim
        told = f"{tuple(self.shape)} cannot be expanded to {shape}"
        need(new >= 0, told)
        sizes, strides = [1] * new + [*self.shape], [0] * new + [*self._strides]
        for axis, size in enumerate(shape):
            if size != sizes[axis] and not (size == -1 and axis >= new):
                need(sizes[axis] == 1 and size >= 0, told)
                sizes[axis], strides[axis] = size, 0
        return self._see(sizes, strides)

    def unsqueeze(self, dim):
        dim = axis_of(dim, self.ndim + 1)
        last = dim == self.ndim
        step = 1 if last else self.shape[dim] * self._strides[dim]
        shape = [*self.shape[:dim], 1, *self.shape[dim:]]
        return self._see(shape, [*self._strides[:dim], step, *self._strides[dim:]])

    def squeeze(self, dim=None):
        dims = (
            range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
        )
        gone = {axis_of(one, self.ndim) for one in dims}
        kept = [i for i, size in enumerate(self.shape) if i not in gone or size != 1]
        return self._see(
            [self.shape[i] for i in kept], [self._strides[i] for i in kept]
        )

    def diagonal(self, offset=0, dim1=0, dim2=1):
        a, b = axis_of(dim1, self.ndim), axis_of(dim2, self.ndim)
        need(a != b, f"diagonal needs two different axes, got {dim1} and {dim2}")
        down, right = max(-offset, 0), max(offset, 0)
        size = max(min(self.shape[a] - down, self.shape[b] - right), 0)
        start = self._offset + (down * self._strides[a] + right * self._strides[b])
        kept = [i for i in range(self.ndim) if i not in (a, b)]
        strides = [self._strides[i] for i in kept] + [
            self._strides[a] + self._strides[b]
        ]
        return self._see([*(self.shape[i] for i in kept), size], strides, start)

    def unfold(self, dimension, size, step):
        axis = axis_of(dimension, self.ndim)
        told = f"windows of {size}, {step} apart, do not fit into {self.shape[axis]}"
        need(0 <= size <= self.shape[axis] and step > 0, told)
        shape, strides = list(self.shape), [*self._strides, self._strides[axis]]
        shape[axis] = (shape[axis] - size) // step + 1
        strides[axis] *= step
        return self._see([*shape, size], strides)

    # ------------------------------------------------------------------ indexing
    def __getitem__(self, key):
        view, chosen = self._find(key)
        if chosen is None:
            return view
        shape, where = chosen
        return self._made([self._memory[place] for place in where], shape)

    def __setitem__(self, key, value):
        self._may_change()
        view, chosen = self._find(key)
        if not isinstance(value, Strided):
            value = self._plain._from(value, self.dtype)
        if chosen is None:
            while value.ndim > view.ndim and value.shape[0] == 1:
                value = value[0]
            view._write(value.expand(view.shape).to(self.dtype)._numbers())
        else:
            told = f"places of {self.dtype} cannot take {value.dtype}"
            need(value.dtype is self.dtype, told)
            numbers = value.expand(chosen[0])._numbers()
            for place, number in zip(chosen[1], numbers, strict=True):
                self._memory[place] = number

    def _find(self, key):
        """Return the view that ints, slices, None and ... choose; and what index tensors choose, or None."""
        keys = list(key) if isinstance(key, tuple) else [key]
        lists = (list, range, bool)
        keys = [self._plain._index(x) if isinstance(x, lists) else x for x in keys]
        left = self.ndim - sum(map(self._axes_of, keys))
        dots = [i for i, one in enumerate(keys) if one is Ellipsis]
        told = f"too many indices for a tensor with {self.ndim} axes"
        need(left >= 0 and len(dots) < 2, told, IndexError)
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
        return view, view._choose(chosen) if chosen else None

    @staticmethod
    def _axes_of(one):
        """Return how many axes an index takes."""
        if one is None or one is Ellipsis:
            return 0
        if isinstance(one, Strided):
            return one.ndim if one.dtype.kind == BOOL else 1
        told = f"an index must be an int, slice, None, ... or tensor, got {one!r}"
        need(isinstance(one, slice) or hasattr(one, "__index__"), told, TypeError)
        return 1

    def select(self, dim, index):
        axis, number = axis_of(dim, self.ndim), as_int(index)
        self._check(number, axis)
        offset = self._offset + number % self.shape[axis] * self._strides[axis]
        kept = [i for i in range(self.ndim) if i != axis]
        strides = [self._strides[i] for i in kept]
        return self._see([self.shape[i] for i in kept], strides, offset)

    def _check(self, number, axis):
        size = self.shape[axis] if self.shape else 0
        if not -size <= number < size:
            raise IndexError(
                f"index {number} is out of range for axis {axis} of size {size}"
            )

    def _slice(self, axis, one):
        told = f"the step of a slice must be positive, got {one.step}: use flip"
        need(one.step is None or as_int(one.step) > 0, told, ValueError)
        ends = (x if x is None else as_int(x) for x in (one.start, one.stop, one.step))
        start, stop, step = slice(*ends).indices(self.shape[axis])
        shape, strides = list(self.shape), list(self._strides)
        shape[axis] = len(range(start, stop, step))
        strides[axis] *= step
        return self._see(shape, strides, self._offset + start * self._strides[axis])

    def _indices(self, one, axis):
        """Return integer tensors, one for each axis that an index tensor takes."""
        told = f"index tensors must be integers or bool, got {one.dtype}"
        need(one.dtype.kind < FLOAT, told, IndexError)
        if one.dtype.kind == INT:
            return [one]
        mine = self.shape[axis : axis + one.ndim]
        told = f"a mask of shape {tuple(one.shape)} does not fit {tuple(mine)}"
        need(one.shape == mine, told, IndexError)
        return one.nonzero().unbind(1)

    def _choose(self, chosen):
        """Return the shape and the places of what integer tensors choose, by their axes."""
        axes = list(chosen)
        common = broadcast(*(index.shape for index in chosen.values()), kind=IndexError)
        picked = [self._offset] * prod(common)
        for axis, index in chosen.items():
            numbers, size = index.expand(common)._numbers(), self.shape[axis]
            for number in numbers:
                self._check(number, axis)
            steps = [number % size * self._strides[axis] for number in numbers]
            picked = [place + step for place, step in zip(picked, steps, strict=True)]
        # What neighbouring axes choose stays where they were, and otherwise comes first.
        together = axes == list(range(axes[0], axes[0] + len(axes)))
        first = axes[0] if together else 0
        rest = [axis for axis in range(self.ndim) if axis not in chosen]
        shape = [self.shape[axis] for axis in rest]
        strides = [self._strides[axis] for axis in rest]
        before = places(shape[:first], strides[:first])
        after = places(shape[first:], strides[first:])
        where = list(map(sum, product(before, picked, after)))
        return Size([*shape[:first], *common, *shape[first:]]), where
