"""The path explorer: what a layer costs, and how many layers a signal must pass through."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
import traitlets as t
from torch import Tensor, nn

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Flag, Whole, within
from mha_lib.attention import attention_pooling, dot_product_attention
from mha_lib.multi_head import MultiHeadAttention

LENGTHS = tuple(2**power for power in range(1, 12))
"""The lengths of the curves, from 2 to 2048 tokens."""


class PathExplorer(Explorer):
    """Cost, sequential steps and path length of self-attention, convolutions and a recurrent network.

    The multiplications are those that torch performs. A convolution multiplies k neighbours of each token by
    d × d matrices. A recurrent network multiplies its state by one such matrix at each token except the
    first. Attention computes n² scores from vectors of width d and n² weighted values of that width. The
    length of a path is the number of layers or states that a signal passes through; convolutions are stacked
    until the last token depends on the first. In dilated convolutions, each layer multiplies the spacing by
    (k + 1) / 2, which for k = 3 gives 1, 2, 4, 8. With a larger factor, some tokens would be left out.

    Args:
        n: number of tokens, 2 to 2048.
        d: width of a token, 1 to 1024.
        k: width of the kernel, odd, 3 to 15.
        source: index of the token that sends a signal.
        target: index of the token that receives the signal; None means the last token. If you set it to an
            earlier token than `source`, `source` moves there too.
        with_projections: count the four projections of an attention layer too.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> explorer = PathExplorer(n=64, k=3)
        >>> explorer
        PathExplorer(n=64, d=64, k=3, source=0, target=63)
        >>> explorer.numbers()["longest"].tolist()  # attention, convolution, dilated, recurrence
        [1, 63, 6, 64]
    """

    _module: ClassVar[str] = "path_explorer.js"

    n = Whole(12, 2, LENGTHS[-1])
    d = Whole(64, 1, 1024)
    k = Whole(3, 3, 15, step=2)
    source = Whole(0, 0, "target")
    target = Whole(None, 0, "n - 1")
    with_projections = Flag(False).tag(in_repr=False)

    @t.default("target")
    def _default_target(self) -> int:
        return int(self.n) - 1

    @t.validate("target")
    def _check_target(self, proposal: t.Bunch) -> int:
        return within(proposal, self.source, self.n - 1)

    @t.observe("n")
    def _fit_tokens(self, change: t.Bunch) -> None:
        was_last = self.target == change.old - 1
        target = change.new - 1 if was_last else min(self.target, change.new - 1)
        self.source = min(self.source, target)
        self.target = target

    @staticmethod
    def _compute(
        n: int, d: int, k: int, source: int, target: int, with_projections: bool
    ) -> dict[str, Tensor | None]:
        attention, convolution, recurrence = _count(n, d, k, with_projections)
        longest = _path_lengths(n, k, 0, n - 1)
        # Convolutions are stacked until they span all tokens; of the other kinds, one layer is enough.
        layers = torch.tensor([1, longest[1], longest[2], 1])
        multiplications = torch.tensor(
            [attention, convolution, convolution, recurrence]
        )
        curves = torch.tensor([_count(m, d, k, with_projections) for m in LENGTHS])
        return {
            "multiplications": multiplications,
            # Within a layer, only the states of a recurrent network must wait for one another.
            "steps": torch.tensor([1, 1, 1, longest[3]]),
            "longest": torch.tensor(longest),
            "total": layers * multiplications,
            "path": torch.tensor(_path_lengths(n, k, source, target)),
            "attention": curves[:, 0],
            "convolution": curves[:, 1],
            "recurrence": curves[:, 2],
            "crossover": torch.tensor(_crossover(d, k, with_projections)),
        }


@lru_cache(maxsize=4096)
def _count(n: int, d: int, k: int, with_projections: bool) -> tuple[int, int, int]:
    """Multiplications in a layer of attention, convolution and recurrence, as torch counts them itself."""
    # Imported here because torch takes a second to load it.
    from torch.utils.flop_counter import FlopCounterMode

    def attend(x: Tensor) -> Tensor:
        layer = MultiHeadAttention(d, num_heads=1)
        return (layer(x, x, x) if with_projections else dot_product_attention(x, x, x))[
            0
        ]

    def convolve(x: Tensor) -> Tensor:
        layer = nn.Conv1d(d, d, k, padding=k // 2, bias=False)
        return layer(x.transpose(1, 2))  # type: ignore[no-any-return]

    def step(x: Tensor) -> Tensor:
        return nn.Linear(d, d, bias=False)(x[:, 0])  # type: ignore[no-any-return]

    counts = []
    # Tensors on the device "meta" have a shape but no numbers, so even large layers are counted quickly.
    with torch.device("meta"), torch.no_grad():
        for layer in (attend, convolve, step):
            with FlopCounterMode(display=False) as counter:
                layer(torch.empty(1, n, d))
            counts.append(counter.get_total_flops() // 2)
    attention, convolution, one_step = counts
    return attention, convolution, (n - 1) * one_step


@lru_cache(maxsize=4096)
def _path_lengths(n: int, k: int, source: int, target: int) -> list[int]:
    """Steps until a signal that starts at `source` arrives at `target`, through layers that block nothing."""

    def attend(signal: Tensor, step: int) -> Tensor:  # noqa: ARG001
        return attention_pooling(torch.zeros(n, n), signal[:, None])[0][:, 0]

    def convolve(signal: Tensor, spacing: int) -> Tensor:
        kernel, padding = torch.ones(1, 1, k), spacing * (k // 2)
        return F.conv1d(signal[None], kernel, padding=padding, dilation=spacing)[0]

    def plain(signal: Tensor, step: int) -> Tensor:  # noqa: ARG001
        return convolve(signal, 1)

    def dilated(signal: Tensor, step: int) -> Tensor:
        return convolve(signal, ((k + 1) // 2) ** step)

    def recur(signal: Tensor, step: int) -> Tensor:
        # The signal first enters the state of its own token, then passes from state to state.
        return signal if step == 0 else F.pad(signal, (1, 0))[:-1]

    lengths = []
    for layer in (attend, plain, dilated, recur):
        signal, step = torch.zeros(n), 0
        signal[source] = 1
        while step == 0 or not signal[target]:
            signal, step = (layer(signal, step) > 0).float(), step + 1
        lengths.append(step)
    return lengths


def _crossover(d: int, k: int, with_projections: bool) -> list[int]:
    """The greatest lengths at which attention multiplies at most as often as the other two kinds of layer."""
    n = torch.arange(1, (k + 1) * d + 2)
    attention = 2 * n**2 * d + (4 * n * d**2 if with_projections else 0)
    others = ((n - 1) * d**2, k * n * d**2)
    return [int(((attention <= other) * n).max()) for other in others]
