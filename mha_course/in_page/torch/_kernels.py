"""The few loops that take most of the time, in JavaScript where the page offers it, and else in Python.

A tensor's numbers are in an `array`, in the memory of the page's WebAssembly, so JavaScript reads and writes
the same numbers: it is told addresses. `kernels.js` has these loops for float32; they return what the
definitions in Python return, here and in `_tensor`, up to rounding. A function below that returns None or
False has no kernel.
"""

from __future__ import annotations

from array import array
from math import prod

from ._memory import float32, places, store

try:
    import mha_kernels as _js  # the page's worker offers it
except ImportError:
    _js = None

# In the order of `kernels.js`.
_OPERATIONS = """
    copy neg exp log sqrt rsqrt sin cos tanh sigmoid relu square abs sign
    add sub mul div maximum minimum where
""".split()
_NUMBER_OF = {name: number for number, name in enumerate(_OPERATIONS)}
_ROWS = {"softmax": 0, "log_softmax": 1, "normed": 2}


def use(module):
    """Use these kernels, or none; return those that were used before."""
    global _js
    before, _js = _js, module
    return before


def serves(tensor):
    """Whether there are kernels for the numbers of a tensor."""
    return _js is not None and tensor.dtype is float32 and tensor.device == "cpu" and 0 not in tensor.shape


def zeros(length, dtype):
    """Return memory of so many zeros."""
    return array(dtype.code, [0]) * length


def _address(tensor):
    memory = tensor._memory
    return memory.buffer_info()[0] // memory.itemsize + tensor._offset


def _call(kernel, *numbers):
    block = array("i", numbers)
    kernel(block.buffer_info()[0] >> 2)


def elementwise(name, tensors, shape):
    """Return memory with a function of the numbers of float32 tensors, which broadcast to one shape."""
    if _js is None or name not in _NUMBER_OF:
        return None
    out = zeros(prod(shape), float32)
    inputs = []
    for one in tensors:
        one = one if one.shape == shape else one.expand(shape)
        inputs += [_address(one), *one._strides]
    head = _NUMBER_OF[name], len(tensors), len(shape), out.buffer_info()[0] >> 2
    _call(_js.elementwise, *head, *shape, *inputs)
    return out


def accumulate(memory, offset, strides, source, shape):
    """Add the numbers of a tensor to places in memory; a stride of 0 sums."""
    if _js is not None and source.dtype is float32:
        where = (memory.buffer_info()[0] >> 2) + offset
        _call(_js.accumulate, len(shape), where, _address(source), *shape, *strides, *source._strides)
        return
    if not prod(shape):
        return
    sums = memory.tolist()
    for place, number in zip(places(shape, strides, offset), source._numbers(), strict=True):
        sums[place] += number
    memory[:] = store(sums, source.dtype)


def product(left, right, shape):
    """Return memory with the products of float32 matrices: (batch, n, k) by (batch, k, m)."""
    if _js is None or left.dtype is not float32:
        return None
    out = zeros(prod(shape), float32)
    sizes = *shape, left.shape[-1]
    where = out.buffer_info()[0] >> 2, _address(left), _address(right)
    _call(_js.product, *sizes, *where, *left._strides, *right._strides)
    return out


def rows(name, source, extra=0.0):
    """Return memory with a function of each row of a float32 tensor without gaps."""
    if _js is None or source.dtype is not float32 or not source.is_contiguous():
        return None
    length = source.shape[-1]
    out, more = zeros(prod(source.shape), float32), array("d", [extra])
    count = prod(source.shape[:-1])
    where = out.buffer_info()[0] >> 2, _address(source), more.buffer_info()[0] >> 3
    _call(_js.rows, _ROWS[name], count, length, *where)
    return out


def rows_gradient(name, gradient, result, source=None, extra=0.0):
    """Return the gradient of such a function of a `source`, from that of the result."""
    if not serves(result) or gradient.dtype is not float32:
        return None
    gradient, result = gradient.contiguous(), result.contiguous()
    source = result if source is None else source.contiguous()
    out, more = zeros(prod(result.shape), float32), array("d", [extra])
    sizes = prod(result.shape[:-1]), result.shape[-1]
    where = out.buffer_info()[0] >> 2, *map(_address, (result, gradient, source))
    _call(_js.rowsBack, _ROWS[name], *sizes, *where, more.buffer_info()[0] >> 3)
    return result._plain._of(out, result.shape, float32)


def gather(source, axis, index):
    """Return memory with the numbers at places along an axis; `index`, int64, has one for each result."""
    if _js is None or source.dtype is not float32:
        return None
    out = zeros(prod(index.shape), float32)
    where = out.buffer_info()[0] >> 2, _address(source), _address(index)
    sizes = *index.shape, *source._strides, *index._strides
    _call(_js.gather, index.ndim, axis, *where, *sizes)
    return out


def scatter(memory, strides, axis, index, source):
    """Add the numbers of a tensor without gaps at such places; say whether there is a kernel."""
    if _js is None or source.dtype is not float32:
        return False
    where = _address(source), memory.buffer_info()[0] >> 2, _address(index)
    _call(_js.scatter, index.ndim, axis, *where, *index.shape, *strides, *index._strides)
    return True


def adam(parameter, gradient, first, second, settings):
    """Move parameters by one step of Adam in place; say whether there is a kernel."""
    parts = parameter, gradient, first, second
    if _js is None or any(one.dtype is not float32 or not one.is_contiguous() for one in parts):
        return False
    numbers = array("d", settings)
    _call(_js.adam, prod(parameter.shape), *map(_address, parts), numbers.buffer_info()[0] >> 3)
    return True
