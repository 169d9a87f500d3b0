"""Gradients of chosen tensors; torch's documentation explains them."""

from __future__ import annotations

from ._memory import NeedsTorchError, need
from ._tape import run_backward
from ._tensor import Tensor


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=False,
         materialize_grads=False):  # fmt: skip
    need(not create_graph, "gradients of gradients need", NeedsTorchError)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = [grad_outputs] if isinstance(grad_outputs, Tensor) or grad_outputs is None else list(grad_outputs)
    given = given * len(outputs) if grad_outputs is None else given
    for one in [*outputs, *inputs]:
        need(one.requires_grad, "one of the tensors does not require gradients")
    need(all(one._base is None for one in inputs), "the gradient of a view needs", NeedsTorchError)
    scalar = all(one.numel() == 1 or start is not None for one, start in zip(outputs, given, strict=True))
    need(scalar, "gradients begin with one number, such as a loss: use sum() or mean()")
    ones = [Tensor._from(1, one.dtype).expand(one.shape) if start is None else start
            for one, start in zip(outputs, given, strict=True)]  # fmt: skip
    found = run_backward(list(zip(outputs, ones, strict=True)), retain_graph, inputs)
    if materialize_grads:
        return tuple(one._made([0.0] * one.numel(), one.shape) if got is None else got
                     for one, got in zip(inputs, found, strict=True))  # fmt: skip
    unused = any(one is None for one in found)
    need(allow_unused or not unused, "one of the tensors was not used in the graph: set allow_unused=True")
    return tuple(found)


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no autograd.{name}: open this page in Colab")
