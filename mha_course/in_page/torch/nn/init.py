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


constant_, zeros_ = GradMode()(Tensor.fill_), GradMode()(Tensor.zero_)
