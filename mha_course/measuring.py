"""Measure what a layer costs: its longest chain of steps, saved numbers and time. Layers to compare."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_lib import MultiHeadAttention, dot_product_attention
from mha_lib._checks import check_float_tensor, refusal

COMPUTES = ("Mm", "Addmm", "Bmm", "Convolution", "Softmax", "Tanh")


def longest_chain(output: Float[Tensor, "..."]) -> int:
    """Count products, softmax and tanh on the longest path from `output` back to its inputs.

    On any machine, this many steps must run one after another.

    Raises:
        TypeError: `output` is not a floating-point tensor.
        ValueError: it was not computed from a tensor with `requires_grad=True`.

    Example:
        >>> x = torch.ones(2, 2, requires_grad=True)
        >>> longest_chain((x @ x).tanh())
        2
    """
    check_float_tensor("output", output, axes="...")
    if output.grad_fn is None:
        rule = "depend on a tensor with requires_grad=True"
        raise refusal("output", rule, f"a leaf: {output!r}")
    length: dict[Any, int] = {}
    waiting: list[Any] = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]
        if missing := [parent for parent in before if parent not in length]:
            waiting += missing
        else:
            longest = max((length[parent] for parent in before), default=0)
            length[waiting.pop()] = longest + node.name().startswith(COMPUTES)
    return length[output.grad_fn]


def count_saved_numbers(function: Callable[[], Any]) -> int:
    """Count the numbers that torch saves for the backward pass while a function runs.

    Example:
        >>> count_saved_numbers(torch.ones(3, 5, requires_grad=True).exp)
        15
    """
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function()
    del result  # only now may the memory be reused
    return sum(sizes.values())


def milliseconds(function: Callable[[], Any], repeats: int = 25) -> float:
    """Return the shortest time of several runs without gradients, because a busy machine only adds time.

    Example:
        >>> milliseconds(lambda: torch.ones(3), repeats=2) > 0
        True
    """
    with torch.no_grad():
        return 1000 * min(timeit.repeat(function, number=1, repeat=repeats))


def run_recurrence(
    x: Float[Tensor, "1 n d"], recurrence: nn.Module
) -> Float[Tensor, "1 n d"]:
    """States of a recurrent network, h_t = tanh(x_t + W h_{t-1}): (1, n, d).

    Example:
        >>> run_recurrence(torch.zeros(1, 3, 2), nn.Identity()).shape
        torch.Size([1, 3, 2])
    """
    states = [torch.tanh(x[:, 0])]
    for t in range(1, x.shape[1]):
        states.append(torch.tanh(x[:, t] + recurrence(states[-1])))
    return torch.stack(states, dim=1)


def make_layers(
    d: int, k: int = 3
) -> dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], int]]]:
    """Four layers of width d, each with a function that counts its multiplications for n tokens.

    Example:
        >>> layer, multiplications = make_layers(4)["convolution"]
        >>> layer(torch.zeros(1, 5, 4)).shape, multiplications(5)
        (torch.Size([1, 5, 4]), 240)
    """
    convolution = nn.Conv1d(d, d, k, padding=k // 2, bias=False)
    recurrence = nn.Linear(d, d, bias=False)
    attention = MultiHeadAttention(d, num_heads=1)
    return {
        "convolution": (lambda x: convolution(x.mT).mT, lambda n: k * n * d**2),
        "recurrent": (
            lambda x: run_recurrence(x, recurrence),
            lambda n: (n - 1) * d**2,
        ),
        "attention": (
            lambda x: dot_product_attention(x, x, x)[0],
            lambda n: 2 * n**2 * d,
        ),
        "attention + projections": (
            lambda x: attention(x, x, x)[0],
            lambda n: 2 * n**2 * d + 4 * n * d**2,
        ),
    }
