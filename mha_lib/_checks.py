"""Checks that public functions make before any arithmetic; each error names argument, rule and value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_positive_int(name: str, value: object) -> None:
    """Raise unless `value` is an int above 0 (a bool is not a count)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")


def check_probability(name: str, value: object) -> None:
    """Raise unless `value` is a number in 0..1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}: {value!r}")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")


def check_float_tensor(name: str, value: object, *, axes: str) -> Tensor:
    """Return `value` if it is a floating-point tensor with the named axes, such as "batch, len, embed_dim".

    Axes that start with "..." stand for any number of leading axes.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {value.dtype}")
    names = axes.split(", ")
    open_ended = names[0] == "..."
    rank = len(names) - open_ended
    if value.ndim < rank or (value.ndim > rank and not open_ended):
        raise ValueError(f"{name} must have shape ({axes}), got {tuple(value.shape)}")
    return value


def check_same(what: str, names: Sequence[str], values: Sequence[object]) -> None:
    """Raise unless all `values` are equal; `what` says which property of the arguments `names` they are."""
    if any(value != values[0] for value in values[1:]):
        pairs = ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
        error = TypeError if isinstance(values[0], torch.dtype) else ValueError
        raise error(f"{' and '.join(names)} must have the same {what}, got {pairs}")


def check_same_kind(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise unless all tensors share dtype and device."""
    check_same("dtype", names, [tensor.dtype for tensor in tensors])
    check_same("device", names, [tensor.device for tensor in tensors])
