"""Functions that fill parameters; torch's documentation explains them."""

from __future__ import annotations

from .._tape import GradMode
from .._tensor import Tensor


@GradMode()
def uniform_(tensor, a=0.0, b=1.0, generator=None):
    return tensor.uniform_(a, b, generator=generator)


@GradMode()
def normal_(tensor, mean=0.0, std=1.0, generator=None):
    return tensor.normal_(mean, std, generator=generator)


def xavier_uniform_(tensor, gain=1.0, generator=None):
    bound = gain * (6 / sum(tensor.shape)) ** 0.5
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    return normal_(tensor, 0.0, gain * (2 / sum(tensor.shape)) ** 0.5, generator)


def ones_(tensor):
    return constant_(tensor, 1.0)


constant_, zeros_ = GradMode()(Tensor.fill_), GradMode()(Tensor.zero_)


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no nn.init.{name}: open this page in Colab")
