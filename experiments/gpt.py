"""A GPT of single characters, trained on the text of this book by the very loop of chapter 7.

Stored are its losses in training and on the held-out sections, and what it writes on the way.
"""

from functools import partial

import torch
from common import Arm

from mha_course.built import MyGPT, my_loss, my_write, train_gpt
from mha_course.data.book_text import book_text
from mha_course.training import History

SIZES = (64, 4, 2, 64)  # width, heads, layers, length
STEPS, LR, RECORDS = 10_000, 0.01, 40
SAMPLED, PROMPT, WRITTEN, TEMPERATURE = (0, 100, 1000, STEPS), "Each head ", 200, 0.8

CHARACTERS = sorted(set(book_text("train") + book_text("test")))


def encode(text):
    return torch.tensor([CHARACTERS.index(character) for character in text])


def decode(tokens):
    return "".join(CHARACTERS[token] for token in tokens)


TRAIN, HELD_OUT = encode(book_text("train")), encode(book_text("test"))


class Watched(Arm):
    """Trains with the loop of the page, one model after another, and notes what they write and lose."""

    def fit(self, models, _make_batch, steps, records, lr):
        every, rows = steps // records, []
        for seed, model in enumerate(models):
            model.samples, model.held_out, losses = [self.sample(model)], [], []
            for step, loss in train_gpt(model, TRAIN, steps, lr, seed):
                losses.append(loss)
                if step in SAMPLED:
                    model.samples.append(self.sample(model))
                if step % every == 0:
                    model.held_out.append(my_loss(model, HELD_OUT))
            rows.append(torch.tensor(losses).view(records, every).mean(1))
        return History(torch.arange(1, records + 1) * every, torch.stack(rows))

    def sample(self, model):
        return decode(my_write(model, encode(PROMPT), WRITTEN, TEMPERATURE))

    def run(self):
        """Half of the digits are enough to write with, and half as much is stored."""
        content, models = super().run()
        return content, [model.half() for model in models]


def measure(models):
    names = {"held-out loss": "held_out", "samples": "samples"}
    return {name: [getattr(m, own) for m in models] for name, own in names.items()}


def no_batch(generator):
    """The loop of the page draws its own batches."""


ARMS = {
    "GPT": Watched(
        partial(MyGPT, len(CHARACTERS), *SIZES),
        no_batch,
        measure,
        steps=STEPS,
        rates=(LR,),
        keep=1,
        because="one model, compared with counts: says what this rate gives",
    )
}

BOUNDS = {}
