"""Functions of the gradients of parameters; torch's documentation explains them."""

from __future__ import annotations

from ..._functions import stack, tensor
from ..._memory import need
from ..._tape import GradMode
from ..._tensor import Tensor


def _gradients(parameters):
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    return [one.grad for one in parameters if one.grad is not None]


@GradMode()
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    found, norm_type = _gradients(parameters), float(norm_type)
    if not found:
        return tensor(0.0)
    if norm_type == 2:
        total = found[0].new_full((), sum(one.square().sum().item() for one in found) ** 0.5)
    else:
        total = stack([one.norm(norm_type) for one in found]).norm(norm_type)
    finite = abs(total.item()) < float("inf")
    need(
        finite or not error_if_nonfinite, "the norm of all gradients is not finite, so they cannot be clipped"
    )
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0).item()
    for one in found if factor != 1 else ():
        one.mul_(factor)
    return total


@GradMode()
def clip_grad_value_(parameters, clip_value, foreach=None):
    found = _gradients(parameters)
    need(found, "no parameter has a gradient: call backward first")
    for one in found:
        one.clamp_(-clip_value, clip_value)


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no nn.utils.{name}: open this page in Colab")
