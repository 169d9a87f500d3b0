"""A plugin for pytest with which the library, the exercises and their tests run with the stand-in for torch.

    PYTHONPATH=mha_course/in_page:. pytest -p in_page_world --noconftest tests/library/test_exercises_masks.py

Only what a page does not run is replaced: parts of torch that the library asks about compilers and the like,
the checks of shapes, and what pages show beside the answers.
"""

import sys
import time
from contextlib import nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import torch
import torch.nn.functional as F

assert "in_page" in torch.__file__, "the stand-in must come first in PYTHONPATH"


class Anything:
    """A name that only an annotation uses, or a cell that shows something."""

    def __init__(self, *_, **__):
        pass

    def __class_getitem__(cls, _):
        return cls


class Modules(MetaPathFinder, Loader):
    """Finds modules that begin so, all of whose names are `Anything`."""

    def __init__(self, *beginnings):
        self.beginnings = beginnings

    def find_spec(self, name, *_):
        return ModuleSpec(name, self, is_package=True) if name.startswith(self.beginnings) else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = lambda name: Anything


def never(*_):
    return False


shown = "widgets questions plots pictures experiments measuring training still_learning".split()
sys.meta_path.insert(0, Modules("jaxtyping", *(f"mha_course.{name}" for name in shown)))
sys.meta_path.append(Modules("torch."))  # what the stand-in lacks
torch.compiler = SimpleNamespace(is_compiling=never)
torch._C = SimpleNamespace(_functorch=SimpleNamespace(is_functorch_wrapped_tensor=never))
torch.SymInt = torch.complex64 = Anything
torch.is_autocast_enabled = torch._assert_async = never
torch.Tensor.aminmax = lambda self: (self.amin(), self.amax())
torch.autocast = lambda *_, **__: nullcontext()
time.process_time = lambda: 0.0  # no test measures speed

# What torch reports to modes, such as the checkers' own: each new tensor, and each call of attention.
modes = []


class Mode:
    def __enter__(self):
        modes.append(self)
        return self

    def __exit__(self, *_):
        modes.remove(self)


def watched_made(self, *args, **how):
    result = made(self, *args, **how)
    for mode in [mode for mode in modes if hasattr(mode, "__torch_dispatch__")]:
        mode.__torch_dispatch__(lambda: result, ())
    return result


def watched_attention(*args, **how):
    for mode in [mode for mode in modes if hasattr(mode, "__torch_function__")]:
        mode.__exit__()
        mode.__torch_function__(watched_attention, (), args, how)
        mode.__enter__()
    return attention(*args, **how)


made, torch.Tensor._made = torch.Tensor._made, watched_made
attention, F.scaled_dot_product_attention = F.scaled_dot_product_attention, watched_attention
import torch.autograd  # noqa: E402, with what stands above
import torch.overrides  # noqa: E402
import torch.utils._python_dispatch  # noqa: E402
import torch.utils._pytree  # noqa: E402

# What these modules of the stand-in lack is `Anything`, too.
torch.autograd.__path__ = []
for module in (torch.autograd, torch.nn.utils):
    module.__getattr__ = lambda name: Anything

torch.overrides.TorchFunctionMode = torch.utils._python_dispatch.TorchDispatchMode = Mode
torch.utils._pytree.tree_leaves = lambda result: [result]
tensor = torch.tensor


def with_arrays(data, **how):
    """What the engine makes of a number: it goes through NumPy, which a page does not have."""
    if type(data).__module__ == "numpy":
        how = {"dtype": getattr(torch, str(data.dtype)), **how}
        data = data.tolist()
    return tensor(data, **how)


torch.tensor = with_arrays
