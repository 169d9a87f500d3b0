"""Norms in training: before or after each layer, with a warm-up, without one, with clipped gradients.

An encoder of eight blocks learns to reverse a sequence. The arms differ in the place of the norm, the
learning rate, the warm-up and clipping. A pre-norm encoder has one more norm after its last block.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from common import Arm
from torch import nn

from mha_course.training import cross_entropy, predict, seeded
from mha_lib import LearnedPositionalEncoding, TransformerEncoder

SYMBOLS, LENGTH, BATCH = 8, 12, 16
DEPTH, WIDTH, HEADS, HIDDEN = 8, 32, 2, 128
STEPS, LONG = 400, 1200
RATES = (1e-3, 3e-3, 1e-2)
BECAUSE = "the rate is what this experiment varies: an arm for each"


def batch(generator, size=BATCH):
    """Sequences of LENGTH symbols, and the same read backwards."""
    tokens = torch.randint(SYMBOLS, (size, LENGTH), generator=generator)
    return tokens, tokens.flip(-1)


def share_right(answers, targets):
    """The share of right answers."""
    return (answers == targets).float().mean()


class Reverser(nn.Module):
    """Embedding, positions, a deep encoder and a read-out."""

    def __init__(self, norm_first, depth=DEPTH):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        self.positions = LearnedPositionalEncoding(WIDTH, max_len=LENGTH)
        nn.init.normal_(self.positions.encoding)
        sizes = (depth, WIDTH, HEADS, HIDDEN)
        self.encoder = TransformerEncoder(*sizes, norm_first=norm_first, bias=True)
        self.read_out = nn.Linear(WIDTH, SYMBOLS)

    def states(self, tokens):
        return self.encoder(self.positions(self.embed(tokens)))

    def forward(self, tokens):
        return self.read_out(self.states(tokens))


def gradients_by_block(model, number):
    """The norm of each block's gradient, of the matrix down_proj, for `number`: a scalar."""
    weights = [block.feed_forward.down_proj.weight for block in model.encoder.blocks]
    return torch.stack([g.norm() for g in torch.autograd.grad(number, weights)])


def gradients(model):
    """Of a random combination of the encoder's outputs, as in chapter 6, and of the loss."""
    generator = torch.Generator().manual_seed(97)
    tokens, targets = batch(generator)
    states = model.states(tokens)
    mix = (states * torch.randn(states.shape, generator=generator)).sum()
    loss = cross_entropy(model(tokens), targets)
    return gradients_by_block(model, mix), gradients_by_block(model, loss)


def likeness(model, tokens):
    """Mean cosine between the encoder's outputs of different places of a sequence; 1 is a collapse."""
    with torch.no_grad():
        states = F.normalize(model.states(tokens), dim=-1)
    cosines = states @ states.mT
    places = tokens.shape[1]
    pairs = cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)
    return (pairs / (places * (places - 1))).mean()


def measure(make_model, models):
    """Right answers and loss; each block's gradient and the likeness of places, at the start and trained."""
    tokens, targets = batch(torch.Generator().manual_seed(99), 500)
    logits = predict(models, tokens)
    fresh = seeded(make_model, len(models))
    found = {
        "right": torch.stack([share_right(a, targets) for a in logits.argmax(-1)]),
        "test loss": torch.stack([cross_entropy(part, targets) for part in logits]),
    }
    for when, group in (("at the start", fresh), ("trained", models)):
        mix, loss = map(torch.stack, zip(*map(gradients, group), strict=True))
        found[f"gradient by block {when}"] = mix
        found[f"gradient of the loss by block {when}"] = loss
        alike = [likeness(model, tokens) for model in group]
        found[f"likeness of places {when}"] = torch.stack(alike)
    return found


def arm(norm, lr, warmup, clip=None, steps=STEPS):
    make_model = partial(Reverser, norm == "pre-norm")
    options = {"warmup": warmup, "clip": clip, "because": BECAUSE}
    return Arm(make_model, batch, partial(measure, make_model), steps, (lr,), **options)


WARMUPS = {"warm-up": 0.1, "no warm-up": 0.0}
ARMS = {
    f"{norm}, lr {lr}, {name}": arm(norm, lr, warmup)
    for lr in RATES
    for norm in ("post-norm", "pre-norm")
    for name, warmup in WARMUPS.items()
}
for lr in RATES:
    short = f"post-norm, lr {lr}"
    ARMS[f"{short}, no warm-up, clip 1"] = arm("post-norm", lr, 0.0, clip=1.0)
    # What is said of a run that fails must hold for a longer one.
    for name, warmup in WARMUPS.items():
        ARMS[f"{short}, {name}, {LONG} steps"] = arm(
            "post-norm", lr, warmup, steps=LONG
        )

BOUNDS = {"guessing": 1 / SYMBOLS, "loss of guessing": math.log(SYMBOLS)}
