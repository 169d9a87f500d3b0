"""Checks that public functions make before any arithmetic; each error names argument, rule and value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

_Answer = TypeVar("_Answer")


def check_type(name: str, value: object, expected: type) -> None:
    """Raise unless `value` is an instance of `expected`."""
    if not isinstance(value, expected):
        article = "an" if expected.__name__[0] in "AEIOU" else "a"
        raise TypeError(
            f"{name} must be {article} {expected.__name__}, got {type(value).__name__}: {value!r}"
        )


def check_int(name: str, value: object) -> int:
    """Return `value` if it is an int (a bool is not a count), or one that torch.export leaves open."""
    if isinstance(value, torch.SymInt):
        return value  # type: ignore[return-value]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    return value


def check_positive_int(name: str, value: object) -> None:
    """Raise unless `value` is an int above 0."""
    if check_int(name, value) <= 0:
        raise ValueError(f"{name} must be positive, got {value}")


def check_seed(name: str, value: object) -> None:
    """Raise unless `value` is an int that every generator takes as a seed."""
    if not 0 <= check_int(name, value) < 2**32:
        raise ValueError(f"{name} must lie in 0..2^32-1, got {value}")


def check_number(name: str, value: object) -> float:
    """Return `value` if it is an int or a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{name} must be a number, got {type(value).__name__}: {value!r}"
        )
    return value


def check_positive(name: str, value: object) -> None:
    """Raise unless `value` is a finite number above 0."""
    if not 0.0 < check_number(name, value) < math.inf:
        raise ValueError(f"{name} must be positive, got {value}")


def check_probability(name: str, value: object) -> None:
    """Raise unless `value` is a number in 0..1."""
    if not 0.0 <= check_number(name, value) <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")


def check_float_tensor(name: str, value: object, *, axes: str) -> Tensor:
    """Return `value` if it is a floating-point tensor with the named axes, such as "batch, len, embed_dim".

    Axes that start with "..." stand for any number of leading axes.
    """
    open_ended = axes.startswith("...")
    rank = axes.count(",") + 1 - open_ended
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a Tensor, got {type(value).__name__}: {value!r}"
        )
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {value.dtype}")
    if value.ndim < rank or (value.ndim > rank and not open_ended):
        raise ValueError(f"{name} must have shape ({axes}), got {tuple(value.shape)}")
    return value


def check_width(name: str, value: object, width: int, *, axes: str) -> None:
    """Raise unless `value` is a floating-point tensor with the named axes, the last one of size `width`."""
    tokens = check_float_tensor(name, value, axes=axes)
    if tokens.shape[-1] != width:
        raise ValueError(
            f"{name} must have shape ({axes}={width}), got {tuple(tokens.shape)}"
        )


def check_same(what: str, names: Sequence[str], values: Sequence[object]) -> None:
    """Raise unless all `values` are equal; `what` says which property of the arguments `names` they are."""
    for value in values[1:]:
        if value != values[0]:
            break
    else:
        return
    pairs = ", ".join(
        f"{name}: {value}" for name, value in zip(names, values, strict=True)
    )
    error = TypeError if isinstance(values[0], torch.dtype) else ValueError
    raise error(f"{' and '.join(names)} must have the same {what}, got {pairs}")


def check_same_kind(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise unless all tensors share dtype and device."""
    device, dtype = tensors[0].device, tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype or tensor.device != device:
            break
    else:
        return
    check_same("device", names, [tensor.device for tensor in tensors])
    # Under autocast torch itself brings the operands to one dtype.
    if tensors[0].is_meta or not torch.is_autocast_enabled(tensors[0].device.type):
        check_same("dtype", names, [tensor.dtype for tensor in tensors])


def check_leading_axes(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise unless the axes before the last two broadcast."""
    leading = [tensor.shape[:-2] for tensor in tensors]
    if all(axes == leading[0] for axes in leading):
        return
    try:
        torch.broadcast_shapes(*leading)
    except RuntimeError:
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(
            f"the leading axes of {' and '.join(names)} must broadcast, got {shapes}"
        ) from None


def check_pair(query: Tensor, key: Tensor, *, same_dim: bool = True) -> None:
    """Raise unless a scoring rule can take the two; `same_dim` asks for vectors of one width."""
    check_float_tensor("query", query, axes="..., q_len, d")
    check_float_tensor("key", key, axes="..., k_len, d")
    check_same_kind(("query", "key"), (query, key))
    if same_dim:
        check_same("last axis", ("query", "key"), (query.shape[-1], key.shape[-1]))
    check_leading_axes(("query", "key"), (query, key))


def _look(question: Callable[[], _Answer], unknown: _Answer) -> _Answer:
    """Ask about the numbers of a tensor, or say `unknown` where its shape is known but its numbers are not.

    That is so while a compiler traces, under `vmap`, and on the meta device; a check of the numbers is left
    out there.
    """
    if torch.compiler.is_compiling():
        return unknown
    try:
        return question()
    except RuntimeError:
        return unknown


def extremes(values: Tensor) -> tuple[float, float] | None:
    """Smallest and largest number, or None where there are none or they are not known."""
    if values.numel() == 0:
        return None
    return _look(lambda: _extremes(values), None)


def _extremes(values: Tensor) -> tuple[float, float]:
    # One transfer of a few numbers, wherever they are.
    if values.is_floating_point() or values.numel() > 64:
        values = torch.stack(values.aminmax())
    numbers = values.flatten().tolist()
    return min(numbers), max(numbers)


def all_true(values: Tensor) -> bool:
    """Whether all of a bool tensor is true; False also where that is not known."""
    return _look(lambda: bool(values.all()), False)


def surely_finite(values: Tensor) -> bool:
    """Whether no number is NaN or infinite; False also where that is not known."""
    # NaN and infinity outlive a sum. That a sum of large numbers overflows is no harm.
    return _look(lambda: math.isfinite(values.sum().item()), False)
