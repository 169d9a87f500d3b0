"""Bug zoo: do layers with one faulty line train? Nine faults on four tasks, five seeds each."""

from functools import partial
from math import sqrt

import torch
from common import Arm
from torch import nn

from mha_course.data import SENTENCE_WORDS, pointer_batch, sentence_batch
from mha_course.training import predict
from mha_lib import MultiHeadAttention

STEPS, LONG = 300, 1500
RATES = (3e-3, 1e-2, 3e-2, 1e-1)
BATCH, LENGTH, WIDTH, HEADS = 32, 12, 32, 4
PADDING, VOCAB = 8, 8


class TakenApart(MultiHeadAttention):
    """The library's layer, divided into steps that a fault can replace one at a time."""

    def __init__(self, embed_dim, num_heads, max_len):
        super().__init__(embed_dim, num_heads, bias=False)
        self.encoding = nn.Parameter(torch.randn(max_len, embed_dim))

    def forward(self, x, *, valid_lens):
        x = self.place(x)
        q, k, v = (
            self.project(proj, x) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = self.compare(q, k)
        lens = self.repeat(valid_lens).view(-1, self.num_heads, 1, 1)
        visible = (torch.arange(scores.shape[-1]) < lens).expand_as(scores)
        return self.out_proj(self.merge_heads(self.weigh(scores, visible) @ v))

    def place(self, x):
        return x + self.encoding[: x.shape[1]]

    def project(self, proj, x):
        return self.split_heads(proj(x))

    def split_heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge_heads(self, x):
        return x.transpose(1, 2).flatten(2)

    def compare(self, q, k):
        return (q / sqrt(self.head_dim)) @ k.transpose(-2, -1)

    def repeat(self, valid_lens):
        """One length per head, as in layers that fold the heads into the batch."""
        return valid_lens.repeat_interleave(self.num_heads)

    def weigh(self, scores, visible):
        filled = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return filled.softmax(-1).masked_fill(~visible, 0.0)


class MergeWithoutTranspose(TakenApart):
    """Heads merged by only a reshape."""

    def merge_heads(self, x):
        return x.reshape(len(x), x.shape[2], -1)


class SplitWithoutTranspose(TakenApart):
    """Heads split by only a reshape."""

    def split_heads(self, x):
        return x.reshape(len(x), self.num_heads, x.shape[1], -1)


class SoftmaxOverQueries(TakenApart):
    """The softmax over the wrong axis."""

    def weigh(self, scores, visible):
        filled = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return filled.softmax(-2).masked_fill(~visible, 0.0)


class InvertedMask(TakenApart):
    """Visible keys are hidden, and hidden keys are visible."""

    def weigh(self, scores, visible):
        filled = scores.masked_fill(visible, torch.finfo(scores.dtype).min)
        return filled.softmax(-1).masked_fill(visible, 0.0)


class LengthsTiled(TakenApart):
    """Lengths repeated over the heads in the wrong order."""

    def repeat(self, valid_lens):
        return valid_lens.repeat(self.num_heads)


class PositionsAlongBatch(TakenApart):
    """Positions added along the batch axis."""

    def place(self, x):
        return x + self.encoding[: x.shape[0], None]


class CompoundedLoop(TakenApart):
    """A loop over heads in which each head projects the projection of the previous head."""

    def project(self, proj, x):
        heads = []
        for i in range(self.num_heads):
            x = proj(x)
            heads.append(x[..., i * self.head_dim : (i + 1) * self.head_dim])
        return torch.stack(heads, dim=1)


class ScaledByWidth(TakenApart):
    """Scores divided by the root of the model's width."""

    def compare(self, q, k):
        return (q / sqrt(self.embed_dim)) @ k.transpose(-2, -1)


class NoScale(TakenApart):
    """Scores not divided."""

    def compare(self, q, k):
        return q @ k.transpose(-2, -1)


class Reader(nn.Module):
    """Embedding, positions and one attention layer of some kind, a linear read-out."""

    def __init__(self, kind, num_tasks, words=VOCAB, padding=PADDING):
        super().__init__()
        self.num_tasks, self.padding = num_tasks, padding
        self.embedding = nn.Embedding(max(words, padding + 1), WIDTH)
        self.attention = kind(WIDTH, HEADS, 64)
        self.read_out = nn.Linear(WIDTH, num_tasks * words)

    def forward(self, tokens):
        valid_lens = (tokens != self.padding).sum(-1)
        output = self.attention(self.embedding(tokens), valid_lens=valid_lens)
        return self.read_out(output).unflatten(-1, (self.num_tasks, -1))


def pad(size, tokens, targets, generator):
    """Keep 3 to 12 tokens, and set no target for the padding."""
    lens = torch.randint(3, LENGTH + 1, (size, 1), generator=generator)
    padding = torch.arange(LENGTH) >= lens
    hidden = targets.masked_fill(padding.unsqueeze(-1), -100)
    return tokens.masked_fill(padding, PADDING), hidden


def copy_batch(generator, size=BATCH):
    tokens, _ = pointer_batch(size, generator=generator)
    return tokens, tokens[..., None]


def padded_copy_batch(generator, size=BATCH):
    return pad(size, *copy_batch(generator, size), generator)


def two_pointer_batch(generator, size=BATCH):
    return pointer_batch(size, generator=generator)


def blank_batch(generator, size=BATCH, held_out=False):
    """Sentences with a blank, and its four answers, which are due at the blank only."""
    tokens, answers, _ = sentence_batch(size, held_out=held_out, generator=generator)
    at_blank = tokens == SENTENCE_WORDS.index("___")
    return tokens, torch.where(at_blank[..., None], answers[:, None], -100)


TASKS = {
    "copy": (copy_batch, STEPS, (1,)),
    "copy with padding": (padded_copy_batch, STEPS, (1,)),
    "two pointers": (two_pointer_batch, STEPS, (2,)),
    "sentences": (blank_batch, LONG, (4, len(SENTENCE_WORDS), 0)),
}
KINDS = {
    "right layer": TakenApart,
    "merge without transpose": MergeWithoutTranspose,
    "split without transpose": SplitWithoutTranspose,
    "softmax over the queries": SoftmaxOverQueries,
    "inverted mask": InvertedMask,
    "lengths in wrong order": LengthsTiled,
    "positions along the batch": PositionsAlongBatch,
    "compounded projections": CompoundedLoop,
    "scale by model width": ScaledByWidth,
    "no scale": NoScale,
}


def batch(task, generator):
    return TASKS[task][0](generator)


def measure(task, models):
    """Share of positions, without padding, where all answers are right; of sentences with new people."""
    shares, options = [], {"held_out": True} if task == "sentences" else {}
    # Batches of 32 as in training: the effect of one fault depends on the place in the batch.
    for seed in range(20):
        generator = torch.Generator().manual_seed(1000 + seed)
        tokens, targets = TASKS[task][0](generator, **options)
        right = (predict(models, tokens).argmax(-1) == targets).all(-1)
        shares.append(right[:, targets[..., 0] >= 0].float().mean(-1))
    return {"right": torch.stack(shares).mean(0)}


def arm(name, task, steps):
    make_model = partial(Reader, KINDS[name], *TASKS[task][2])
    return Arm(make_model, partial(batch, task), partial(measure, task), steps, RATES)


ARMS = {
    f"{name}, {task}" + f", {steps} steps" * (steps > STEPS): arm(name, task, steps)
    for task, (_, steps, _) in TASKS.items()
    for name in KINDS
}
# The arms that do not reach the top accuracy.
for name, task in (
    ("split without transpose", "copy with padding"),
    ("split without transpose", "two pointers"),
    ("inverted mask", "copy with padding"),
):
    ARMS[f"{name}, {task}, {LONG} steps"] = arm(name, task, LONG)
BOUNDS = {
    "guessing": {"copy": 1 / 8, "copy with padding": 1 / 8, "two pointers": 1 / 64},
    "bag of words, sentences": 1 / 2,
}
