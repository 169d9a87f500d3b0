"""Batch norm in the place of layer norm, for sequences of different lengths with padding.

Small pre-norm encoders learn to reverse a sequence. They differ in the norm alone: a layer norm; a batch norm
over all places of the batch, padding included; a batch norm over the tokens without the padding. Sequences of
one length, which need no padding, are the control. Each model reads the same sequences in mixed batches,
sorted by length, and one by one; with their statistics (training mode) and stored ones (evaluation mode).
"""

from functools import partial

import torch
from common import Arm
from torch import nn

from mha_lib import FeedForward, LearnedPositionalEncoding, MultiHeadAttention

SYMBOLS, LENGTH, SHORTEST, BATCH = 8, 12, 4, 16
PADDING, NO_ANSWER = SYMBOLS, -100
DEPTH, WIDTH, HEADS, HIDDEN = 2, 32, 2, 128
STEPS, RATES = 1200, (1.5e-3, 5e-3, 1.5e-2)
ALONE = 192  # sequences that are also evaluated one by one


def equal_batch(generator, size=BATCH):
    """Sequences of LENGTH symbols, and the same read backwards."""
    tokens = torch.randint(SYMBOLS, (size, LENGTH), generator=generator)
    return tokens, tokens.flip(-1)


def mixed_batch(generator, size=BATCH):
    """Sequences of SHORTEST to LENGTH symbols, padded to LENGTH; nothing is asked of the padding."""
    tokens, _ = equal_batch(generator, size)
    lens = torch.randint(SHORTEST, LENGTH + 1, (size, 1), generator=generator)
    places = torch.arange(LENGTH)
    is_token = places < lens
    backwards = tokens.gather(1, (lens - 1 - places).clamp(min=0))
    return (
        tokens.where(is_token, torch.tensor(PADDING)),
        backwards.where(is_token, torch.tensor(NO_ANSWER)),
    )


def share_right(answers, targets):
    """The share of right answers among the places of (batch, len) of which something is asked."""
    return (answers == targets).sum() / (targets != NO_ANSWER).sum()


class LayerNorm(nn.LayerNorm):
    """A layer norm that is told which tokens are padding, and does not need to know."""

    def forward(self, x, is_token):  # noqa: ARG002
        return super().forward(x)


class BatchNorm(nn.Module):
    """Mean and variance of each place over all tokens: of this batch, or stored ones in evaluation mode."""

    def __init__(self, width, counts_padding):
        super().__init__()
        self.counts_padding, self.seen = counts_padding, None
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x, is_token):
        mean, variance = self.mean, self.variance
        if self.training:
            counted = is_token | self.counts_padding
            share = counted.to(x.dtype) / counted.sum()
            mean = torch.einsum("bn,bnd->d", share, x)
            variance = torch.einsum("bn,bnd->d", share, (x - mean).square())
            if self.seen is not None:
                self.seen.append((mean, variance))
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


def store_statistics(model, make_batch, batches=100):
    """Give the batch norms the mean statistics of batches of training data, and set evaluation mode."""
    norms = [part for part in model.modules() if isinstance(part, BatchNorm)]
    generator = torch.Generator().manual_seed(96)
    model.train()
    for norm in norms:
        norm.seen = []
    with torch.no_grad():
        for _ in range(batches):
            model(make_batch(generator)[0])
    for norm in norms:
        means, variances = zip(*norm.seen, strict=True)
        norm.mean.copy_(torch.stack(means).mean(0))
        norm.variance.copy_(torch.stack(variances).mean(0))
        norm.seen = None
    model.eval()


class Block(nn.Module):
    """A pre-norm encoder block whose norms are told where the padding is."""

    def __init__(self, make_norm):
        super().__init__()
        self.attention_norm, self.feed_forward_norm = make_norm(), make_norm()
        self.attention = MultiHeadAttention(WIDTH, HEADS, bias=True)
        self.feed_forward = FeedForward(WIDTH, HIDDEN, bias=True)

    def forward(self, x, is_token):
        y = self.attention_norm(x, is_token)
        lens = is_token.sum(-1)
        x = x + self.attention(y, y, y, valid_lens=lens, need_weights=False)[0]
        return x + self.feed_forward(self.feed_forward_norm(x, is_token))


class Reverser(nn.Module):
    """Reverse sequences that may end in padding."""

    def __init__(self, make_norm):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS + 1, WIDTH)
        self.positions = LearnedPositionalEncoding(WIDTH, max_len=LENGTH)
        nn.init.normal_(self.positions.encoding)
        self.blocks = nn.ModuleList(Block(make_norm) for _ in range(DEPTH))
        self.norm = make_norm()
        self.read_out = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, tokens):
        is_token = tokens != PADDING
        x = self.positions(self.embed(tokens))
        for block in self.blocks:
            x = block(x, is_token)
        return self.read_out(self.norm(x, is_token))


NORMS = {
    "layer norm": partial(LayerNorm, WIDTH),
    "batch norm with the padding": partial(BatchNorm, WIDTH, counts_padding=True),
    "batch norm without the padding": partial(BatchNorm, WIDTH, counts_padding=False),
}
BATCHES = {"one length": equal_batch, "many lengths": mixed_batch}


def batch(lengths, generator, size=BATCH):
    return BATCHES[lengths](generator, size)


def answers_in_batches(model, tokens):
    """Answers to sequences that are read in batches of the size of training."""
    return torch.cat([model(part).argmax(-1) for part in tokens.split(BATCH)])


def answers_alone(model, tokens):
    """Answers to sequences that are read one by one, without padding; the rest is filled up."""
    answers = torch.full_like(tokens, NO_ANSWER - 1)
    for i, row in enumerate(tokens):
        own = row[row != PADDING]
        answers[i, : len(own)] = model(own[None])[0].argmax(-1)
    return answers


@torch.no_grad()
def measure(make_batch, models):
    """Right answers in training and evaluation mode: in mixed batches, in batches of one length, alone."""
    tokens, targets = make_batch(torch.Generator().manual_seed(99), 32 * BATCH)
    # The same sequences sorted by length, so that a batch holds almost no padding or almost the same.
    order = (tokens != PADDING).sum(-1).argsort(stable=True)
    found = {}
    for model in models:
        store_statistics(model, make_batch)
        for mode in ("training", "evaluation"):
            model.train(mode == "training")
            mixed = answers_in_batches(model, tokens)
            by_length = answers_in_batches(model, tokens[order])
            alone = answers_alone(model, tokens[:ALONE])
            asked = targets[:ALONE] != NO_ANSWER
            other = ((alone != mixed[:ALONE]) & asked).sum() / asked.sum()
            for name, value in (
                ("mixed batches", share_right(mixed, targets)),
                ("sorted by length", share_right(by_length, targets[order])),
                ("alone", share_right(alone, targets[:ALONE])),
                ("other answers alone", other),
            ):
                found.setdefault(f"{name}, {mode} mode", []).append(value.item())
        model.eval()
    return found


def arm(norm, lengths, steps=STEPS):
    make_batch = partial(batch, lengths)
    return Arm(
        partial(Reverser, NORMS[norm]),
        make_batch,
        partial(measure, make_batch),
        steps=steps,
        rates=RATES,
    )


ARMS = {
    f"{norm}, {lengths}": arm(norm, lengths)
    for lengths, norms in (
        ("many lengths", list(NORMS)),
        ("one length", list(NORMS)[:2]),
    )
    for norm in norms
}
BOUNDS = {"guessing": 1 / SYMBOLS}
