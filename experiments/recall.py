"""Recall: predict the letter a given number of positions back, by attention, convolution or recurrence.

Each kind of model, among them a gated recurrent network (GRU), is trained at the same three learning rates.
The best is chosen on sequences that the table does not use. `recall_longer` has four times the steps.
"""

from functools import partial

import torch
import torch.nn.functional as F
from common import Arm, read_out_of
from torch import nn

from mha_course.training import predict
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention

STEPS, BATCH, RATES = 2000, 64, (1e-3, 3e-3, 1e-2)
LETTERS, PLACES, WIDTH = 8, 12, 32


def recall_batch(batch_size, generator):
    """Letters 0..7, then the question: 8 means one position back, 9 means two, ..."""
    letters = torch.randint(LETTERS, (batch_size, PLACES), generator=generator)
    back = torch.randint(1, PLACES + 1, (batch_size, 1), generator=generator)
    answer = letters.gather(1, PLACES - back)[:, 0]
    return torch.cat((letters, LETTERS - 1 + back), dim=1), answer


class AttentionReader(nn.Module):
    """One attention layer with one head."""

    def __init__(self, width):
        super().__init__()
        self.positions = LearnedPositionalEncoding(width, PLACES + 1)
        self.attention = MultiHeadAttention(width, num_heads=1, bias=False)

    def forward(self, x):
        x = self.positions(x)
        return x + self.attention(x, x, x)[0]


class ConvolutionReader(nn.Module):
    """Two causal convolutions of width 4: one reaches 3 positions back, two reach 6."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 4) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            padded = F.pad(x.mT, (3, 0))
            x = x + torch.relu(layer(padded)).mT
        return x


class RecurrentReader(nn.Module):
    """A simple recurrent network."""

    def __init__(self, width):
        super().__init__()
        self.from_input = nn.Linear(width, width)
        self.from_state = nn.Linear(width, width)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        inputs = self.from_input(x)
        for t in range(x.shape[1]):
            state = torch.tanh(inputs[:, t] + self.from_state(state))
        return state[:, None]


class GatedReader(nn.Module):
    """A gated recurrent network, GRU."""

    def __init__(self, width):
        super().__init__()
        self.from_input = nn.Linear(width, 3 * width)
        self.from_state = nn.Linear(width, 3 * width)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        inputs = self.from_input(x)
        for t in range(x.shape[1]):
            reset_x, update_x, new_x = inputs[:, t].chunk(3, -1)
            reset_h, update_h, new_h = self.from_state(state).chunk(3, -1)
            update = torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            state = new + update * (state - new)
        return state[:, None]


class Recall(nn.Module):
    """Embedding, one of the readers, and a read-out at the question."""

    def __init__(self, reader):
        super().__init__()
        self.embed = nn.Embedding(LETTERS + PLACES, WIDTH)
        self.reader = reader(WIDTH)
        self.read_out = read_out_of("MLP", WIDTH, 64, LETTERS)

    def forward(self, tokens):
        return self.read_out(self.reader(self.embed(tokens))[:, -1])


def batch(generator):
    return recall_batch(BATCH, generator)


def measure(models):
    """Share of right answers, of all and by distance, 1 to 12."""
    tokens, answers = recall_batch(12_000, torch.Generator().manual_seed(99))
    back = tokens[:, -1] - LETTERS + 1
    hits = (predict(models, tokens).argmax(-1) == answers).float()
    by_distance = [hits[:, back == d].mean(1) for d in range(1, PLACES + 1)]
    return {
        "right": hits.mean(1),
        "right by places back": torch.stack(by_distance, dim=1),
    }


def arm(reader, steps=STEPS, keep=0):
    make_model = partial(Recall, reader)
    return Arm(make_model, batch, measure, steps=steps, rates=RATES, keep=keep)


ARMS = {
    "attention": arm(AttentionReader, keep=1),
    "2 convolutions": arm(ConvolutionReader),
    "recurrent": arm(RecurrentReader),
    "gated": arm(GatedReader),
}

BOUNDS = {"guessing": 1 / LETTERS, "reach of the convolutions": 6}
