"""Dates in 23 languages to ISO 8601: a whole Transformer, with 1, 2, 4 and 8 heads at equal parameters.

The model reads a date letter by letter and writes it as YYYY-MM-DD. It is tested on days that training never
shows, in the languages of training and in five others. For every model the results also say what is lost
without each head, how much each head matters to the loss, and which letters each head reads while the year,
the month and the day are written.
"""

from functools import partial

import torch
from common import Arm, heads, without_each_head
from torch.nn import functional as F

from mha_course.data.dates import (
    DATE_LETTERS,
    END,
    ISO_SYMBOLS,
    NEW_LOCALES,
    SOURCE_LENGTH,
    START,
    TARGET_LENGTH,
    date_batch,
)
from mha_lib import MultiHeadAttention, capture_attention, head_importance
from mha_lib.models.generation import greedy_decode
from mha_lib.models.seq2seq import EncoderDecoder

STEPS, BATCH, LR = 1500, 64, 3e-3
BECAUSE = "their heads are described; dates_recurrent.py compares, at three rates"
WIDTH, HIDDEN, LAYERS = 64, 256, 2
# Where the year, the month and the day stand in an ISO date.
PARTS = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}


class DateModel(EncoderDecoder):
    """A Transformer whose input is a source and the target so far, side by side in one tensor."""

    def __init__(self, num_heads):
        sizes = (1 + len(DATE_LETTERS), len(ISO_SYMBOLS), WIDTH, num_heads, HIDDEN)
        super().__init__(*sizes, LAYERS, max_len=SOURCE_LENGTH, bias=True)

    def forward(self, both):
        source, target = both[:, :SOURCE_LENGTH], both[:, SOURCE_LENGTH:]
        return super().forward(source, target, source_lens=(source != 0).sum(-1))

    def answer(self, source):
        """The ISO dates of sources, as tokens, (batch, 11)."""
        lens = (source != 0).sum(-1)
        answers = greedy_decode(
            self, source, start=START, end=END, max_len=TARGET_LENGTH, source_lens=lens
        )
        return F.pad(answers, (0, TARGET_LENGTH - answers.shape[1]), value=END)


def both_sides(source, target):
    """Source and target so far in one tensor: the target starts with START and lacks its last token."""
    start = torch.full_like(target[:, :1], START)
    return torch.cat((source, start, target[:, :-1]), dim=1)


def batch(generator):
    dates = date_batch(BATCH, generator=generator)
    return both_sides(dates.source, dates.target), dates.target


def fresh(number, seed, **kind):
    """Dates to test with, the same for every model."""
    return date_batch(number, generator=torch.Generator().manual_seed(seed), **kind)


def exact(answers, target):
    return (answers == target).all(-1).float().mean()


def parts_right(answers, target):
    """Share of answers whose year, month and day are right, (3,)."""
    right = answers == target
    found = [right[:, part].all(-1).float().mean() for part in PARTS.values()]
    return torch.stack(found)


def measure_answers(models):
    """Exact matches on days of training, on held-out days, and on those in languages that are new."""
    seen = fresh(2000, 97)
    test = fresh(2000, 99, held_out=True)
    new = fresh(2000, 98, held_out=True, locales=NEW_LOCALES)
    rows = [torch.tensor([name == own for name in new.locales]) for own in NEW_LOCALES]
    found = {}
    for model in models:
        answers = model.answer(new.source)
        by_language = [exact(answers[these], new.target[these]) for these in rows]
        for name, value in (
            ("held-out dates", exact(model.answer(test.source), test.target)),
            ("dates of training", exact(model.answer(seen.source), seen.target)),
            ("new languages", exact(answers, new.target)),
            ("new languages, by language", torch.stack(by_language)),
            ("new languages: year, month, day", parts_right(answers, new.target)),
        ):
            found.setdefault(name, []).append(value)
    return {name: torch.stack(values) for name, values in found.items()}


def layers_of(model):
    """The attention layers of a model: encoder, then self- and cross-attention of each decoder block."""
    return [part for part in model.modules() if isinstance(part, MultiHeadAttention)]


def measure(models):
    """The answers, and the work of every head."""
    test = fresh(300, 96, held_out=True)
    inputs = both_sides(test.source, test.target)
    ablated, importance, reading = [], [], []
    for model in models:
        layers = layers_of(model)

        def right(model=model):
            return parts_right(model.answer(test.source), test.target)

        without = [without_each_head(layer, right) for layer in layers]
        ablated.append(torch.stack(without))
        importance.append(importance_of(model, inputs, test.target))
        reading.append(where_it_reads(model))
    return {
        **measure_answers(models),
        "year, month, day without one head": torch.stack(ablated),
        "importance": torch.stack(importance),
        "reading": torch.stack(reading),
    }


def importance_of(model, inputs, target):
    """How much the loss depends on each head, (layers, heads)."""

    def loss():
        logits = model(inputs).transpose(1, 2)
        return F.cross_entropy(logits, target, reduction="none").mean(1)

    return torch.stack([head_importance(layer, loss) for layer in layers_of(model)])


def where_it_reads(model):
    """Where the heads of cross-attention look in English dates such as "wednesday, 3 march 2021".

    Returns:
        (blocks, heads, 3, 4): mean weight, while year, month and day are written, on the letters of weekday,
        day, month and year. What is missing from 1 falls on spaces and the comma.
    """
    english = fresh(300, 95, held_out=True, locales=("en_GB",), forms=("full",))
    on_words = torch.zeros(len(english.texts), SOURCE_LENGTH, 4)
    for row, text in enumerate(english.texts):
        place = 0
        for word, letters in enumerate(text.replace(",", " ").split()):
            place = text.index(letters, place)
            on_words[row, place : place + len(letters), word] = 1.0
            place += len(letters)
    with capture_attention(model) as captured, torch.no_grad():
        model(both_sides(english.source, english.target))
    found = []
    for name, weights in captured.items():
        if name.endswith("cross_attention"):
            on = weights @ on_words.unsqueeze(1)
            by_part = [on[:, :, part].mean((0, 2)) for part in PARTS.values()]
            found.append(torch.stack(by_part, dim=1))
    return torch.stack(found)


class Halved(Arm):
    """Stores the models in half precision, which changed none of 1,000 answers, in a file half as large."""

    def run(self):
        content, models = super().run()
        return content, [model.half() for model in models]


ARMS = {
    heads(number): Halved(
        partial(DateModel, number),
        batch,
        measure,
        STEPS,
        (LR,),
        keep=1,
        because=BECAUSE,
    )
    for number in (1, 2, 4, 8)
}
BOUNDS = {"guessing": 1 / 73049}
