"""A small stand-in for torch, for readers who run code in a page of the course; it is not torch.

A page without a server cannot load torch, so its Python imports this folder under that name: tensors as lists
of numbers, in Python alone, with what the chapters teach and what a reader tries next. It is checked against
torch, function by function and with every exercise of the course. What is like torch: shapes, dtypes and how
they combine, broadcasting, views that share memory, the kinds of errors, how tensors are printed; from the
same seed also the same random numbers (Mersenne twister, uniform, normal and integer draws, `multinomial` of
one; not dropout). What is not: it is slow, for small sizes; sums are made in float64 and then rounded; and
there are no gradients, devices, complex numbers or training. These raise a `NeedsTorchError`, or an
`AttributeError` that says so. What a function does, torch's documentation says.

    _memory    dtypes, memory and views of it, indexing
    _numbers   functions of numbers and of rows of numbers
    _tensor    `Tensor`: what is computed with them
    _functions new tensors, random draws, functions of several tensors
    _random    torch's generator
    _printing  how a tensor is printed
    nn         modules and layers; `nn.functional`, `nn.init`
"""

from __future__ import annotations

from math import e, inf, nan, pi
from types import SimpleNamespace

from . import _functions, _numbers, _printing
from ._memory import (
    Device,
    DType,
    NeedsTorchError,
    Size,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from ._random import Generator, default_generator
from ._tensor import GradMode, Tensor, enable_grad, finfo, no_grad, power, result_type, where

dtype, device, strided, inference_mode = DType, Device, Tensor.layout, no_grad
half, double, long = float16, float64, int64
Tensor.__repr__ = _printing.shown

# Most functions are methods of the tensor that is their first argument.
_METHODS = """
    add all allclose amax amin any argmax argmin argsort bitwise_and bitwise_not bitwise_or bitwise_xor bmm
    broadcast_to chunk clamp clip clone count_nonzero cumprod cumsum detach diag diagonal diff div dot eq equal
    flatten flip floor_divide gather ge gt index_copy index_put index_select isclose le log_softmax logsumexp
    lt masked_fill masked_select matmul max maximum mean median min minimum mm movedim mul mv nan_to_num narrow
    ne neg nonzero norm numel outer permute prod remainder repeat_interleave reshape roll select softmax sort
    split squeeze std sub sum swapaxes t topk transpose tril triu unbind unflatten unsqueeze var
""".split()
_NAMES = globals()
for _name in [*_METHODS, *_numbers.OF_FLOATS, *_numbers.OF_ANY, *_numbers.TESTS]:
    _NAMES[_name] = getattr(Tensor, _name)
_NAMES |= {n: f for n, f in vars(_functions).items() if n in _functions.__all__}
_NAMES |= {"bool": bool_, "int": int32, "float": float32, "pow": power}
_NAMES |= {name: _NAMES[name[:3]] for name in ("subtract", "multiply", "divide")}
_NAMES |= {"concat": _functions.cat, "concatenate": _functions.cat}

random = SimpleNamespace(fork_rng=_functions.fork_rng)
testing = SimpleNamespace(assert_close=_functions.assert_close)
cuda = SimpleNamespace(is_available=lambda: False)


def is_grad_enabled():
    return GradMode.enabled


def is_tensor(value):
    return isinstance(value, Tensor)


def set_grad_enabled(mode):
    GradMode.enabled = mode


def __getattr__(name):
    told = f"the small stand-in for torch has no torch.{name}: open this page in Colab"
    raise AttributeError(told)


from . import nn  # noqa: E402, it needs what stands above
