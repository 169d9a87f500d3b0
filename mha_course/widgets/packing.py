"""Numbers as text for the state of a widget, exact and half as long as decimal text."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def pack(tensor: Tensor, dtype: torch.dtype = torch.float32) -> str:
    """The numbers of a tensor as base64 of their little-endian bytes.

    Args:
        tensor: a tensor; its shape is not stored.
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
        text: the result of `pack`.
        shape: shape of the tensor; one of the sizes may be -1.
        dtype: how the numbers are stored.

    Example:
        >>> unpack("AACAPw==", 1)
        tensor([1.])
    """
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype).view(shape)


def pack_all(tensors: Mapping[str, Tensor | None]) -> dict[str, str]:
    """The tensors that are not None, as `pack` writes them in float32, by name.

    Example:
        >>> pack_all({"weight": torch.tensor([1.0]), "bias": None})
        {'weight': 'AACAPw=='}
    """
    return {name: pack(part) for name, part in tensors.items() if part is not None}


def round_to_bytes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as signed bytes with a scale for each row, whose greatest entry becomes 127 or -127.

    Args:
        matrix: floating-point, (rows, columns).

    Returns:
        (numbers, scales): int8 (rows, columns) and float32 (rows,). The product of a number and the scale of
        its row differs from the entry by at most half a scale.

    Example:
        >>> round_to_bytes(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))[0].tolist()
        [[127, -64], [0, 0]]
    """
    largest = matrix.detach().float().abs().amax(1)
    scales = torch.where(largest > 0, largest, 1.0) / 127
    return (matrix.detach() / scales.unsqueeze(1)).round().to(torch.int8), scales


def pack_parameters(model: nn.Module) -> dict[str, Any]:
    """The parameters of a model in few bytes: matrices with a scale for each row, vectors in float32.

    Returns:
        The names and shapes of the parameters, their numbers in base64, and under "error" the root mean
        square of the rounding errors, relative to that of the matrices.

    Example:
        >>> pack_parameters(nn.Linear(3, 2))["shapes"]
        [['weight', 2, 3], ['bias', 2]]
    """
    shapes, numbers, floats = [], [], []
    squares = torch.zeros(2)
    for name, parameter in model.named_parameters():
        shapes.append([name, *parameter.shape])
        own = parameter.detach().float()
        if own.ndim == 2:
            rounded, scales = round_to_bytes(own)
            numbers.append(rounded.flatten())
            change = own - rounded * scales.unsqueeze(1)
            squares += torch.stack((change.square().sum(), own.square().sum()))
            own = scales
        floats.append(own)
    return {
        "shapes": shapes,
        "int8": pack(torch.cat(numbers), torch.int8),
        "float32": pack(torch.cat(floats)),
        "error": float((squares[0] / squares[1]).sqrt()),
    }


def unpack_parameters(packed: Mapping[str, Any]) -> dict[str, Tensor]:
    """The parameters from `pack_parameters` by name, rounded, in float32."""
    numbers, floats = (
        unpack(packed["int8"], -1, dtype=torch.int8),
        unpack(packed["float32"], -1),
    )
    state = {}
    for name, *shape in packed["shapes"]:
        own, floats = floats[: shape[0]], floats[shape[0] :]
        if len(shape) == 2:
            count = shape[0] * shape[1]
            # A product of 8 and 24 bits is rounded once, so it is the same number on every machine.
            own = numbers[:count].view(shape).float() * own.unsqueeze(1)
            numbers = numbers[count:]
        state[name] = own
    return state
