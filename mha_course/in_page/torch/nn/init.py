"""Functions that fill parameters; torch's documentation explains them."""

from __future__ import annotations

from .._memory import need
from .._tape import GradMode


@GradMode()
def uniform_(tensor, a=0.0, b=1.0, generator=None):
    return tensor.uniform_(a, b, generator=generator)


@GradMode()
def normal_(tensor, mean=0.0, std=1.0, generator=None):
    return tensor.normal_(mean, std, generator=generator)


def _fans(tensor):
    """Return the sum of what a matrix takes and what it gives."""
    told = "fan in and fan out are those of a matrix, which has two axes"
    need(len(tensor.shape) > 1, told, ValueError)
    return (
        (tensor.shape[0] + tensor.shape[1]) * tensor[0, 0].numel() if tensor.ndim > 2 else sum(tensor.shape)
    )


def xavier_uniform_(tensor, gain=1.0, generator=None):
    bound = gain * (6 / _fans(tensor)) ** 0.5
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    return normal_(tensor, 0.0, gain * (2 / _fans(tensor)) ** 0.5, generator)


@GradMode()
def constant_(tensor, val):
    return tensor.fill_(val)


@GradMode()
def ones_(tensor):
    return tensor.fill_(1.0)


@GradMode()
def zeros_(tensor):
    return tensor.zero_()


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no nn.init.{name}: open this page in Colab")
