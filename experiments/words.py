"""A model on real words: the blank of an English sentence needs its subject, owner, neighbour and place.

The model is one attention layer and a linear read-out, tested on sentences whose people never occurred
together in training. One head is compared with several at the same number of parameters. The controls for one
head: a read-out of two matrices, with and without a ReLU between them, and three and ten times the steps. It
is also stored where each head looks from the blank, and what is lost without it.
"""

from functools import partial

import torch
from common import Arm, read_out_of, without_each_head
from torch import nn

from mha_course.data import (
    SENTENCE_LENGTH,
    SENTENCE_QUESTIONS,
    SENTENCE_WORDS,
    sentence_batch,
)
from mha_course.training import predict
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, capture_attention

STEPS, LONG, LONGEST = 1500, 4500, 15_000
RATES, BATCH = (1e-3, 3e-3, 1e-2), 32
WIDTH, HIDDEN = 48, 96
PADDING, BLANK = 0, SENTENCE_WORDS.index("___")


class FillIn(nn.Module):
    """Answers the four questions at the blank of a sentence: (batch, 4, words)."""

    def __init__(self, num_heads, read_out="linear"):
        super().__init__()
        words = len(SENTENCE_WORDS)
        answers = len(SENTENCE_QUESTIONS) * words
        self.embedding = nn.Embedding(words, WIDTH)
        self.positions = LearnedPositionalEncoding(WIDTH, max_len=SENTENCE_LENGTH)
        self.attention = MultiHeadAttention(WIDTH, num_heads, bias=False)
        self.read_out = read_out_of(read_out, WIDTH, HIDDEN, answers)

    def forward(self, tokens):
        x = self.positions(self.embedding(tokens))
        valid_lens = (tokens != PADDING).sum(-1)
        output, _ = self.attention(x, x, x, valid_lens=valid_lens)
        at_blank = (tokens == BLANK).to(x.dtype).unsqueeze(-1)
        answers = self.read_out((output * at_blank).sum(1))
        return answers.unflatten(-1, (len(SENTENCE_QUESTIONS), -1))


def batch(generator):
    tokens, targets, _ = sentence_batch(BATCH, generator=generator)
    return tokens, targets


def measure(models):
    """Right answers on held-out sentences, with all heads and without each head; weights from the blank."""
    tokens, targets, sources = sentence_batch(
        4000, held_out=True, generator=torch.Generator().manual_seed(99)
    )
    right = predict(models, tokens).argmax(-1) == targets
    seen, seen_targets, _ = sentence_batch(
        4000, generator=torch.Generator().manual_seed(98)
    )
    right_seen = predict(models, seen).argmax(-1) == seen_targets
    few, blanks = slice(0, 1000), (tokens == BLANK).long().argmax(-1)[:1000]
    weights, ablated = [], []
    for model in models:
        with capture_attention(model) as captured, torch.no_grad():
            model(tokens[few])
        rows = captured["attention"][torch.arange(1000), :, blanks]
        to_sources = rows.take_along_dim(sources[few].unsqueeze(1), dim=-1)
        weights.append(to_sources.mean(0))

        def hits(model=model):
            right = model(tokens[few]).argmax(-1) == targets[few]
            return right.float().mean(0)

        ablated.append(without_each_head(model.attention, hits))
    return {
        "all four right": right.all(-1).float().mean(-1),
        "each right": right.float().mean(1),
        "all four right, people of training": right_seen.all(-1).float().mean(-1),
        "weight on subject, owner, neighbour, place, by head": torch.stack(weights),
        "each right without one head": torch.stack(ablated),
    }


def arm(num_heads, read_out="linear", steps=STEPS, keep=0):
    make_model = partial(FillIn, num_heads, read_out)
    return Arm(make_model, batch, measure, steps, RATES, keep=keep)


ARMS = {
    "4 heads": arm(4, keep=5),
    "2 heads": arm(2),
    "1 head": arm(1),
    "1 head, two matrices": arm(1, "two matrices"),
    "1 head, MLP": arm(1, "MLP"),
    f"1 head, {LONG} steps": arm(1, steps=LONG, keep=1),
    f"1 head, two matrices, {LONG} steps": arm(1, "two matrices", LONG),
    f"1 head, MLP, {LONG} steps": arm(1, "MLP", LONG),
    f"1 head, {LONGEST} steps": arm(1, steps=LONGEST),
}
BOUNDS = {
    "guessing": 1 / 2 / 16 / 16 / 8,
    # A bag of words determines owner and place by their kind of word, but not which of the two other people
    # is the subject: half of the guesses at the neighbour are right, and the verb depends on them.
    "bag of words, all four": 1 / 2,
    "bag of words, each": [3 / 4, 1, 1 / 2, 1],
}
