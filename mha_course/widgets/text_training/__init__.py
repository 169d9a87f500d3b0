"""Training in the page: a small GPT learns the text that a reader types, and writes while it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from mha_course.built import MyGPT
from mha_course.training import cross_entropy
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Text, Whole, unfit
from mha_course.widgets.head_training import _PageRandom

EMBED_DIM, NUM_HEADS, NUM_LAYERS, LENGTH = 32, 4, 1, 32
BATCH_SIZE, STEPS, LR, WARM_UP, DECAY, CLIP = 8, 600, 0.02, 0.05, 0.1, 1.0
FEWEST, MOST = 40, 5000
"""So many characters a text has; a window and what follows it are `LENGTH + 1` of them."""

EVERY, WRITTEN, TEMPERATURE = 25, 120, 0.8
"""After so many steps the model writes so many characters, drawn at this temperature."""

TEXT = " ".join(Path(__file__).with_name("text_training.md").read_text("utf-8").split())


class TextTraining(Explorer):
    """A small GPT that learns the reader's own text, character by character, in the reader's browser.

    The model is `MyGPT` of chapter 7 with one block of four heads, width 32 and windows of 32 characters. It
    is trained as in the chapter: AdamW with a one-cycle schedule of 600 steps and clipped gradients. The page
    shows the loss of each step and, every 25 steps, what the model writes after the first character of the
    text, at temperature 0.8; words that occur in the text are bold. A reader can stop, resume, take single
    steps and look back. A dotted line marks the loss of a model that guesses.

    As in `HeadTraining`, the page draws its random numbers with a generator of its own; `model`, `batches`
    and `numbers` give the same numbers here.

    Args:
        text: what the model learns, 40 to 5,000 characters of any script.
        seed: fixes the initial parameters, the batches and what the model draws, 0 to 99.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range.

    Example:
        >>> training = TextTraining(text="to be or not to be, that is the question")
        >>> training
        TextTraining(seed=0, characters=40)
        >>> training.numbers()["start_sample"].shape
        torch.Size([32])
    """

    _module: ClassVar[str] = "text_training.js"

    text = Text(TEXT).tag(in_repr=False)
    seed = Whole(0, 0, 99)

    _sizes = t.Dict(read_only=True).tag(sync=True)
    """The sizes of model and training, by the names that the browser's code gives them."""

    def __init__(self, **settings: Any) -> None:
        sizes = {
            "embedDim": EMBED_DIM, "numHeads": NUM_HEADS, "numLayers": NUM_LAYERS, "length": LENGTH,
            "isCausal": True, "batchSize": BATCH_SIZE, "steps": STEPS, "lr": LR, "warmUp": WARM_UP,
            "decay": DECAY, "clip": CLIP, "fewest": FEWEST, "most": MOST, "every": EVERY, "written": WRITTEN,
            "temperature": TEMPERATURE,
        }  # fmt: skip
        self.set_trait("_sizes", sizes)
        super().__init__(**settings)

    @t.validate("text")
    def _check_text(self, proposal: t.Bunch) -> str:
        if not FEWEST <= len(proposal.value) <= MOST:
            rule = f"have {FEWEST} to {MOST:,} characters"
            raise unfit("text", rule, len(proposal.value))
        return str(proposal.value)

    def model(self) -> nn.Module:
        """The model before its first step, in float64, as in the page."""
        return start_model(len(set(self.text)), self.seed)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The page's batches, without end: tokens and the tokens after them, both (8, 32) in int64."""
        return _batches(encode(self.text), self.seed)

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        # The browser computes one step in the page; the program trains to the end.
        return {"steps": (lambda: 1, str(STEPS))}

    @staticmethod
    def _compute(text: str, seed: int, steps: int) -> dict[str, Any]:
        # The start is that of the page, in float64.
        alphabet, tokens = sorted(set(text)), encode(text)
        model = start_model(len(alphabet), seed)
        start_sample = write(model, tokens, LENGTH, seed)
        losses = list(train(model, tokens, seed, steps))
        sample = "".join(alphabet[k] for k in write(model, tokens, WRITTEN, seed))  # noqa: F841, the reader of the program
        return {
            "first_loss": losses[0],
            "guess_loss": math.log(len(alphabet)),
            "start_sample": start_sample,
        }

    def _details(self) -> list[str]:
        return [f"characters={len(self.text)}"]


def encode(text: str) -> Tensor:
    """The index of each character in the alphabet of the text, int64 (len,)."""
    ids = {character: token for token, character in enumerate(sorted(set(text)))}
    return torch.tensor([ids[character] for character in text])


def start_model(vocab_size: int, seed: int) -> nn.Module:
    """A model whose parameters the page's generator draws, from the distributions that torch uses."""
    # torch also draws initial weights, which are replaced.
    with torch.random.fork_rng(devices=[]):
        model = MyGPT(vocab_size, EMBED_DIM, NUM_HEADS, NUM_LAYERS, LENGTH).double()
    random = _PageRandom(seed, 0)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.Embedding):
            parameter.data = random.normal(*parameter.shape)
        elif isinstance(owner, nn.Linear):
            drawn = 2 * random.uniform(*parameter.shape) - 1
            parameter.data = owner.in_features**-0.5 * drawn
    return model


def _batches(tokens: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    random = _PageRandom(seed, 1)
    while True:
        starts = random.below(len(tokens) - LENGTH, BATCH_SIZE, 1)
        windows = tokens[starts + torch.arange(LENGTH + 1)]
        yield windows[:, :-1], windows[:, 1:]


def train(model: nn.Module, tokens: Tensor, seed: int, steps: int) -> Iterator[float]:
    """Train in place, with the loop of chapter 7; return the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=DECAY)
    schedule = OneCycleLR(optimizer, LR, STEPS, pct_start=WARM_UP)
    for inputs, targets in islice(_batches(tokens, seed), steps):
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        yield loss.item()


def write(model: nn.Module, tokens: Tensor, count: int, seed: int) -> list[int]:
    """Tokens, the first from the text and the others drawn with the page's own random numbers."""
    written = [int(tokens[0])]
    while len(written) < count:
        with torch.no_grad():
            logits = model(torch.tensor([written[-LENGTH:]]))[0, -1] / TEMPERATURE
        likely, order = logits.softmax(-1).sort(descending=True, stable=True)
        number = _PageRandom(seed, len(written)).uniform(1)
        written.append(int(order[int((likely.cumsum(0) <= number).sum())]))
    return written
