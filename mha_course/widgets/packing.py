"""Numbers as text, for the state of a widget: exact, and half as long as decimal text."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import torch
from torch import Tensor


def pack(tensor: Tensor, dtype: torch.dtype = torch.float32) -> str:
    """The numbers of a tensor as base64 of their little-endian bytes.

    Args:
        tensor: of any shape, which is not stored.
        dtype: how the numbers are stored.

    Example:
        >>> pack(torch.tensor([1.0]))
        'AACAPw=='
    """
    numbers = tensor.detach().to("cpu", dtype).contiguous().numpy()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def unpack(text: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The tensor whose numbers `pack` has written.

    Args:
        text: what `pack` returned.
        shape: of the tensor; one of the sizes may be -1.
        dtype: how the numbers are stored.

    Example:
        >>> unpack("AACAPw==", 1)
        tensor([1.])
    """
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype).view(shape)


def pack_all(tensors: Mapping[str, Tensor | None]) -> dict[str, str]:
    """The tensors that are there, each as `pack` writes it in float32, by name.

    Example:
        >>> pack_all({"weight": torch.tensor([1.0]), "bias": None})
        {'weight': 'AACAPw=='}
    """
    return {name: pack(part) for name, part in tensors.items() if part is not None}
