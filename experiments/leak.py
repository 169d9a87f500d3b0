"""A language model that reads the future: its loss against the entropy floor, in training and at inference.

Three masks on a Markov source whose entropy is known: the correct causal mask, the inverted mask, no mask. A
control for the inverted mask leaves the last position, where the mask hides everything, out of the loss.
"""

import math
from functools import partial

import torch
from common import Arm
from torch import nn

from mha_course.data import markov_batch, markov_entropy, markov_transition
from mha_course.training import cross_entropy, predict
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, causal_mask

STEPS, RATES, BATCH = 1000, (6e-3, 2e-2, 6e-2), 32
TOKENS, LENGTH = 8, 12
TRANSITION = markov_transition(vocab_size=TOKENS)
MASKS = {
    "correct": causal_mask(LENGTH),
    "inverted": ~causal_mask(LENGTH),
    "no mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool),
}


class NextToken(nn.Module):
    """Predict each next token. The mask decides what a token sees."""

    def __init__(self, visible, width=32, num_heads=2):
        super().__init__()
        self.register_buffer("visible", visible, persistent=False)
        self.embed = nn.Embedding(TOKENS, width)
        self.positions = LearnedPositionalEncoding(width, max_len=LENGTH)
        self.attention = MultiHeadAttention(width, num_heads)
        self.read_out = nn.Linear(width, TOKENS)

    def forward(self, tokens):
        n = tokens.shape[1]
        x = self.positions(self.embed(tokens))
        mixed, _ = self.attention(x, x, x, self.visible[:n, :n])
        return self.read_out(x + mixed)


def batch(generator, is_last_scored=True):
    tokens, targets = markov_batch(BATCH, LENGTH, TRANSITION, generator=generator)
    if not is_last_scored:
        targets[:, -1] = -100
    return tokens, targets


def test_batch():
    generator = torch.Generator().manual_seed(99)
    return markov_batch(2000, LENGTH, TRANSITION, generator=generator)


def one_by_one(model, tokens, targets):
    """Mean loss of a model that is given only the tokens up to a position."""
    losses = []
    for i in range(tokens.shape[1]):
        logits = model(tokens[:, : i + 1])[:, -1]
        losses.append(cross_entropy(logits, targets[:, i]))
    return torch.stack(losses).mean()


def measure(models):
    """Test loss, all positions at once and one by one; how often a model predicts the next token."""
    tokens, targets = test_batch()
    at_once = [cross_entropy(logits, targets) for logits in predict(models, tokens)]
    with torch.no_grad():
        in_use = [one_by_one(model, tokens, targets) for model in models]
    generator = torch.Generator().manual_seed(98)
    noise = torch.randint(TOKENS, (2000, LENGTH), generator=generator)
    named = predict(models, noise)[:, :, :-1].argmax(-1) == noise[:, 1:]
    return {
        "loss all at once": torch.stack(at_once),
        "loss one by one": torch.stack(in_use),
        "names the next token of a random sequence": named.float().mean((1, 2)),
    }


def arm(mask, is_last_scored=True):
    make_batch = partial(batch, is_last_scored=is_last_scored)
    make_model = partial(NextToken, MASKS[mask])
    return Arm(make_model, make_batch, measure, steps=STEPS, rates=RATES)


ARMS = {
    **{name: arm(name) for name in MASKS},
    "inverted, last place not scored": arm("inverted", is_last_scored=False),
}


def bounds():
    """Chance, the entropy of the source, and the loss of the true source on the test sequences."""
    tokens, targets = test_batch()
    return {
        "guessing": math.log(TOKENS),
        "entropy": float(markov_entropy(LENGTH, TRANSITION)),
        "true source": -TRANSITION[tokens, targets].log().mean().item(),
        "names the next token by chance": 1 / TOKENS,
    }


BOUNDS = bounds()
