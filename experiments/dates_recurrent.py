"""The control for the dates: a recurrent encoder-decoder with additive attention (Bahdanau et al., 2015).

It sees the same data as the Transformers of `dates.py`, for as many steps, with as many parameters within one
percent. The encoder reads in both directions; at each step the state of the decoder asks the states of the
encoder. Transformers with one head and with eight are trained here once more, at the same rates.
"""

from functools import partial

import torch
from common import Arm, heads
from dates import STEPS, DateModel, batch, measure_answers
from torch import nn

from mha_course.data.dates import (
    DATE_LETTERS,
    END,
    ISO_SYMBOLS,
    SOURCE_LENGTH,
    START,
    TARGET_LENGTH,
)
from mha_lib import AdditiveScore, attention_pooling, valid_lens_mask

RATES = (1e-3, 3e-3, 1e-2)
EMBED, STATE, SCORE = 64, 96, 64


class Cell(nn.Module):
    """A gated recurrent unit (Cho et al., 2014) as torch computes it, in steps that `vmap` can batch."""

    def __init__(self, width, state):
        super().__init__()
        self.from_input = nn.Linear(width, 3 * state)
        self.from_state = nn.Linear(state, 3 * state)

    def forward(self, x, state):
        new = self.from_input(x).chunk(3, -1)
        old = self.from_state(state).chunk(3, -1)
        reset, update = torch.sigmoid(new[0] + old[0]), torch.sigmoid(new[1] + old[1])
        return (1 - update) * torch.tanh(new[2] + reset * old[2]) + update * state


class RecurrentDates(nn.Module):
    """Reads and writes dates letter by letter; takes and gives what `DateModel` does."""

    def __init__(self):
        super().__init__()
        self.source_embedding = nn.Embedding(1 + len(DATE_LETTERS), EMBED)
        self.target_embedding = nn.Embedding(len(ISO_SYMBOLS), EMBED)
        self.forwards, self.backwards = Cell(EMBED, STATE), Cell(EMBED, STATE)
        self.first = nn.Linear(2 * STATE, STATE)
        self.score = AdditiveScore(STATE, 2 * STATE, SCORE)
        self.cell = Cell(EMBED + 2 * STATE, STATE)
        self.output = nn.Linear(3 * STATE, len(ISO_SYMBOLS))

    def read(self, source):
        """The states of both directions side by side, (batch, len, 192); padding leaves a state as it is."""
        x, real = self.source_embedding(source), (source != 0).unsqueeze(-1)
        places, both = range(source.shape[1]), []
        for cell, order in ((self.forwards, places), (self.backwards, places[::-1])):
            state = x.new_zeros(x.shape[0], STATE)
            states = [state] * len(places)
            for t in order:
                state = torch.where(real[:, t], cell(x[:, t], state), state)
                states[t] = state
            both.append(torch.stack(states, dim=1))
        return torch.cat(both, dim=-1)

    def step(self, token, state, memory, mask):
        """One symbol: the logits of the next one, and the new state."""
        scores = self.score(state.unsqueeze(1), memory)
        context = attention_pooling(scores, memory, mask)[0].squeeze(1)
        x = torch.cat((self.target_embedding(token), context), dim=-1)
        state = self.cell(x, state)
        return self.output(torch.cat((state, context), dim=-1)), state

    def forward(self, both):
        source, target = both[:, :SOURCE_LENGTH], both[:, SOURCE_LENGTH:]
        memory, mask, state = self.start(source)
        logits = []
        for t in range(target.shape[1]):
            one, state = self.step(target[:, t], state, memory, mask)
            logits.append(one)
        return torch.stack(logits, dim=1)

    def start(self, source):
        memory, lens = self.read(source), (source != 0).sum(-1)
        # The final states are those at the last letter (forwards) and at the first (backwards).
        last = memory.take_along_dim((lens - 1)[:, None, None], dim=1)[:, 0, :STATE]
        state = torch.tanh(self.first(torch.cat((last, memory[:, 0, STATE:]), dim=-1)))
        return memory, valid_lens_mask(lens, source.shape[1]), state

    def answer(self, source):
        """The ISO dates of sources, as tokens, (batch, 11)."""
        with torch.no_grad():
            memory, mask, state = self.start(source)
            token = source.new_full((len(source),), START)
            tokens, ended = [], torch.zeros_like(token, dtype=torch.bool)
            for _ in range(TARGET_LENGTH):
                logits, state = self.step(token, state, memory, mask)
                token = logits.argmax(-1).masked_fill(ended, END)
                ended = ended | (token == END)
                tokens.append(token)
        return torch.stack(tokens, dim=1)


MODELS = {heads(number): partial(DateModel, number) for number in (1, 8)}
ARMS = {
    name: Arm(make_model, batch, measure_answers, STEPS, RATES)
    for name, make_model in {"recurrent": RecurrentDates, **MODELS}.items()
}
BOUNDS = {"guessing": 1 / 73049}
