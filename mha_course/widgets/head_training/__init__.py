"""Training in the page: a layer learns the two pointers, and its heads learn to look at different places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from mha_course.data import POINTER_TASKS
from mha_course.training import cross_entropy
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Choice, Number, Whole
from mha_lib.inspection import capture_attention
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.positional import LearnedPositionalEncoding

TASKS = ("previous", "mirrored")
VOCAB_SIZE, LENGTH, EMBED_DIM, HIDDEN_DIM = 8, 12, 32, 64
BATCH_SIZE, STEPS = 32, 300
# At exactly 13/48 of the positions of these held-out sequences, both answers are the same token.
HELD_OUT, HELD_OUT_SEED = 96, 5
SAME_TOKEN = 13 / 48


class HeadTraining(Explorer):
    """A layer of attention that learns the two pointers while the reader watches, in the reader's browser.

    The model, the data and the optimiser are those of `experiments/two_pointers.py`, with a schedule of 300
    steps. At each of 12 positions, the model must name the previous and the mirrored token. The page shows
    the loss of each step, the share of held-out positions where both answers are right, and the mean
    attention weights of each head. A dotted line at 13/48 marks the share where both are the same token.

    The page draws its random numbers with a small generator of its own (mulberry32), from the distributions
    that PyTorch uses. Its seeds are therefore not torch's; `model` and `batches` give the same numbers here.
    With these numbers, a linear read-out and the learning rate 0.03, one head ends at 13/48 with all ten
    seeds, and two heads get every position right with nine; the tenth, seed 9, also ends at 13/48. With an
    MLP, one head gets every position right with all ten.

    Args:
        num_heads: number of heads of the layer: 1, 2, 4 or 8.
        read_out: what follows the layer: "linear", or "MLP" with one hidden layer of width 64.
        lr: largest learning rate of the one-cycle schedule, 0.001 to 0.1.
        seed: fixes the initial parameters and the data, 0 to 9.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range.

    Example:
        >>> training = HeadTraining(num_heads=2)
        >>> training
        HeadTraining(num_heads=2, read_out='linear', lr=0.03, seed=0)
        >>> training.numbers()["start_maps"].shape
        torch.Size([2, 12, 12])
    """

    _module: ClassVar[str] = "head_training.js"

    num_heads = Whole(1, options=(1, 2, 4, 8))
    read_out = Choice("linear", ["linear", "MLP"])
    lr = Number(0.03, 0.001, 0.1)
    seed = Whole(0, 0, 9)

    _sizes = t.Dict(read_only=True).tag(sync=True)
    """The sizes of task and model, by the names that the browser's code gives them."""

    def __init__(self, **settings: Any) -> None:
        sizes = {
            "vocabSize": VOCAB_SIZE, "length": LENGTH, "embedDim": EMBED_DIM, "hiddenDim": HIDDEN_DIM,
            "batchSize": BATCH_SIZE, "steps": STEPS, "heldOut": HELD_OUT, "heldOutSeed": HELD_OUT_SEED,
        }  # fmt: skip
        self.set_trait("_sizes", sizes)
        super().__init__(**settings)

    def model(self) -> nn.Module:
        """The model before its first step, in float64, as in the page.

        Returns:
            A module from tokens (batch, 12) to logits (batch, 12, 2, 8).
        """
        return start_model(self.num_heads, self.read_out, self.seed)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of the page's 300 steps: tokens (32, 12) and targets (32, 12, 2), both int64."""
        return _batches(self.seed)

    def held_out(self) -> tuple[Tensor, Tensor]:
        """The page's held-out sequences: tokens (96, 12) and targets (96, 12, 2), both int64."""
        return _draw_batch(_PageRandom(HELD_OUT_SEED, 2), HELD_OUT)

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        # The browser computes one step in the page; the program trains to the end.
        return {"steps": (lambda: 1, str(STEPS))}

    @staticmethod
    def _compute(
        num_heads: int, read_out: str, lr: float, seed: int, steps: int
    ) -> dict[str, Any]:
        # The start is that of the page, in float64.
        model = start_model(num_heads, read_out, seed)
        # Share of positions with both answers right, weights on the two positions by head, mean maps.
        start_both_right, start_roles, start_maps = measure(model)
        losses = list(train(model, lr, seed, steps))
        both_right, roles, maps = measure(model)  # noqa: RUF059, the reader of the program
        return {
            "first_loss": losses[0],
            "start_both_right": start_both_right,
            "start_roles": start_roles,
            "start_maps": start_maps,
        }


class _PageRandom:
    """The page's random numbers: the generator mulberry32, a counter whose bits are mixed.

    Args:
        seed: fixes the numbers.
        stream: 0 draws the initial parameters, 1 the batches, 2 the held-out sequences.
    """

    def __init__(self, seed: int, stream: int) -> None:
        self.counter = (seed * 0x9E3779B1 + stream * 0x85EBCA6B) % 2**32

    def uniform(self, *shape: int) -> Tensor:
        """Numbers from 0 to 1, without 1, in float64."""
        low = 2**32 - 1
        count = math.prod(shape)
        counter = (self.counter + torch.arange(1, count + 1) * 0x6D2B79F5) & low
        self.counter = (self.counter + count * 0x6D2B79F5) & low
        # int64 overflows in these products, but their low 32 bits are right.
        bits = (counter ^ counter >> 15) * (counter | 1) & low
        bits ^= bits + ((bits ^ bits >> 7) * (bits | 61) & low) & low
        return ((bits ^ bits >> 14).double() / 2**32).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, in float64, by the method of Box and Muller."""
        radius, angle = self.uniform(*shape, 2).unbind(-1)
        return (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()

    def below(self, count: int, *shape: int) -> Tensor:
        """Whole numbers from 0 to `count` - 1, in int64."""
        scaled: Tensor = count * self.uniform(*shape)
        return scaled.long()


class _PointerModel(nn.Module):
    """The model of `experiments/two_pointers.py`: embedding, positions, one layer of attention, read-out."""

    def __init__(self, num_heads: int, read_out: str) -> None:
        super().__init__()
        answers = len(TASKS) * VOCAB_SIZE
        self.embedding = nn.Embedding(VOCAB_SIZE, EMBED_DIM)
        self.positions = LearnedPositionalEncoding(EMBED_DIM, max_len=LENGTH)
        self.attention = MultiHeadAttention(EMBED_DIM, num_heads)
        self.read_out: nn.Module = nn.Linear(EMBED_DIM, answers)
        if read_out == "MLP":
            first, last = nn.Linear(EMBED_DIM, HIDDEN_DIM), nn.Linear(HIDDEN_DIM, answers)  # fmt: skip
            self.read_out = nn.Sequential(first, nn.ReLU(), last)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.positions(self.embedding(tokens))
        output, _ = self.attention(x, x, x)
        logits: Tensor = self.read_out(output).unflatten(-1, (len(TASKS), -1))
        return logits


def start_model(num_heads: int, read_out: str, seed: int) -> nn.Module:
    """A model whose parameters the page's generator draws, from the distributions that torch uses."""
    # torch also draws initial weights, which are replaced.
    with torch.random.fork_rng(devices=[]):
        model = _PointerModel(num_heads, read_out).double()
    random = _PageRandom(seed, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            part = name.split(".")[0]
            if part in ("embedding", "positions"):
                drawn = random.normal(*parameter.shape)
                drawn *= 1.0 if part == "embedding" else 0.02
            else:
                if part == "attention":  # Xavier's bound; inputs = outputs
                    bound = math.sqrt(3 / EMBED_DIM)
                else:
                    owner = model.get_submodule(name.rpartition(".")[0])
                    assert isinstance(owner, nn.Linear)
                    bound = owner.in_features**-0.5
                drawn = bound * (2 * random.uniform(*parameter.shape) - 1)
            parameter.copy_(drawn)
    return model


def _draw_batch(random: _PageRandom, count: int) -> tuple[Tensor, Tensor]:
    tokens = random.below(VOCAB_SIZE, count, LENGTH)
    return tokens, torch.stack([POINTER_TASKS[task](tokens) for task in TASKS], dim=-1)


def _batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    random = _PageRandom(seed, 1)
    return (_draw_batch(random, BATCH_SIZE) for _ in range(STEPS))


def train(model: nn.Module, lr: float, seed: int, steps: int) -> Iterator[float]:
    """Train in place; return the loss of each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = OneCycleLR(optimizer, lr, STEPS, pct_start=0.1)
    for _, (tokens, targets) in zip(range(steps), _batches(seed), strict=False):
        loss = cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()


def measure(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Share of held-out positions with both answers right; weights on both targets (heads, 2); mean maps."""
    tokens, targets = _draw_batch(_PageRandom(HELD_OUT_SEED, 2), HELD_OUT)
    with capture_attention(model) as captured, torch.no_grad():
        answers = model(tokens).argmax(-1)
    maps = captured["attention"].mean(0)
    place = torch.arange(LENGTH)
    pointed = torch.stack([POINTER_TASKS[task](place) for task in TASKS])
    apart = place[pointed[0] != pointed[1]]
    roles = [maps[:, apart, target[apart]].mean(-1) for target in pointed]
    right = (answers == targets).all(-1).double().mean()
    return right, torch.stack(roles, dim=-1), maps
