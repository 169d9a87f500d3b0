"""A small stand-in for torch, for readers who run code in a page of the course; it is not torch.

A page without a server cannot load torch, so its Python imports this folder under that name: tensors as
arrays of numbers, in pure Python, with what the chapters teach and a reader may try next. It is compared
with torch, function by function and with every exercise of the course.

As in torch: shapes, dtypes and how they combine, broadcasting, views that share memory, the kinds of
errors, how tensors are printed, from the same seed the same random numbers (uniform, normal, integers,
permutations, `multinomial`, new layers; not dropout), gradients and optimizers. The differences: it is slow;
sums are made in float64 and then rounded. There are no gradients of gradients, GPUs or complex numbers:
these raise a `NeedsTorchError`, or an `AttributeError` that says the same. Torch's documentation explains the
functions.

    _memory     dtypes, memory and views of it, indexing
    _numbers    functions of numbers and of rows of numbers
    _tensor     `Tensor` and its methods
    _tape       what was computed from what, and the way back
    _gradients  the gradient of each operation
    _kernels    the loops that take most of the time, in JavaScript if the page offers it
    _functions  new tensors, random draws, functions of several tensors
    _random     torch's generator
    _printing   how a tensor is printed
    _arguments  what torch's signatures, in `_signatures`, allow
    nn          modules and layers; `nn.functional`, `nn.init`, `nn.utils`
    optim       optimizers and schedules
"""

from __future__ import annotations

from math import e, inf, nan, pi
from types import SimpleNamespace

from . import _functions, _memory, _numbers, _printing
from ._arguments import checked
from ._memory import NeedsTorchError, Size
from ._random import Generator, default_generator
from ._tape import GradMode, set_grad_enabled
from ._tensor import METHODS, Tensor, finfo, promote_types, result_type, where

dtype, device, strided = _memory.DType, _memory.Device, Tensor.layout
no_grad = inference_mode = GradMode
Tensor.__repr__, Tensor.numpy = _printing.shown, lambda self: _printing.Array(self)
set_printoptions = _printing.set_printoptions

# Most functions are methods of the tensor that is their first argument.
_METHODS = """
    add all allclose amax amin any argmax argmin argsort bitwise_not bmm broadcast_to chunk clamp
    clamp_max clamp_min clone cumsum detach diag diagonal diff div dot equal flatten flip
    floor_divide gather index_copy index_put
    index_select isclose kron log_softmax logsumexp masked_fill masked_select matmul max mean median min
    mm movedim mul mv nan_to_num narrow neg nonzero numel outer permute pow prod remainder
    repeat_interleave reshape roll scatter select softmax sort squeeze std sub sum swapaxes t topk
    transpose tril triu unbind unflatten unsqueeze var
""".split()
_NAMES = {name: one for name, one in vars(_memory).items() if isinstance(one, dtype)}
_here = _functions.__name__
_NAMES |= {name: one for name, one in vars(_functions).items() if getattr(one, "__module__", "") == _here}


for _name in [*_METHODS, *_numbers.OF_FLOATS, *_numbers.OF_ANY, *_numbers.TESTS, *_numbers.BITS]:
    _NAMES[_name] = METHODS[_name]
_NAMES |= {"bool": _memory.bool_, "int": _memory.int32, "long": _memory.int64, "half": _memory.float16}
_NAMES["where"] = where
_NAMES |= {"float": _memory.float32, "double": _memory.float64, "concat": _functions.cat}
globals().update({name: checked(name, one, is_method=False) for name, one in _NAMES.items()})

random = SimpleNamespace(fork_rng=_functions.fork_rng)
cuda = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
cuda.manual_seed = cuda.manual_seed_all = lambda seed: None


def is_grad_enabled():
    return Tensor._recording


def enable_grad():
    return GradMode(True)


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no torch.{name}: open this page in Colab")


from . import autograd, nn, optim, testing
