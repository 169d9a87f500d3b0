"""The GPT of chapter 7 at four widths, trained by the loop of that page, beside models that count.

Only the width changes: the text, the heads, the layers, the window, the rate and the steps stay the same.
Of each model, the loss on the held-out sections is stored. For 2- to 7-grams of the same text, `BOUNDS` give
the numbers that they store and the same loss, at the discount that the validation part chooses.
"""

from functools import partial

import torch
from common import Arm
from gpt import CHARACTERS, HELD_OUT, LR, SIZES, TRAIN, encode

from mha_course.built import MyGPT, my_loss, train_gpt
from mha_course.data.book_text import book_text
from mha_course.training import History

WIDTHS = (8, 16, 32, 64)
STEPS = 5000
LONGEST, DISCOUNTS = 7, (0.5, 0.7, 0.9)  # of the models that count


class Trained(Arm):
    """Trains with the loop of the page, one model after another."""

    def fit(self, models, _make_batch, steps, records, lr):
        every, rows = steps // records, []
        for seed, model in enumerate(models):
            losses = [loss for _, loss in train_gpt(model, TRAIN, steps, lr, seed)]
            rows.append(torch.tensor(losses).view(records, every).mean(1))
        return History(torch.arange(1, records + 1) * every, torch.stack(rows))


def measure(models):
    return {"held-out loss": [my_loss(model, HELD_OUT) for model in models]}


def no_batch(generator):
    """The loop of the page draws its own batches."""


ARMS = {
    f"width {width}": Trained(
        partial(MyGPT, len(CHARACTERS), width, *SIZES[1:]),
        no_batch,
        measure,
        steps=STEPS,
        rates=(LR,),
        because="the loop of chapter 7 as it stands: says what its rate gives at each width",
    )
    for width in WIDTHS
}


def grams(tokens, n):
    """The n-gram that ends at each token of a text, as one number; -1 where the text has too few tokens."""
    numbers = torch.zeros(len(tokens), dtype=torch.long)
    for back in range(n - 1, -1, -1):
        numbers = numbers * len(CHARACTERS) + tokens.roll(back)
    numbers[: n - 1] = -1
    return numbers


def occurrences(wanted, kinds, counts):
    """How often each wanted number was counted."""
    at = torch.searchsorted(kinds, wanted).clamp(max=len(kinds) - 1)
    return counts[at].where(kinds[at] == wanted, 0)


def losses_of_counts(tables, tokens, discount):
    """The mean of -ln p over a text, for 1-grams, 2-grams and so on.

    An n-gram first takes the probability of the (n - 1)-gram, and then corrects it with its own counts.
    """
    p = torch.full((len(tokens),), 1 / len(CHARACTERS), dtype=torch.float64)
    losses = []
    for n, (kinds, counts) in enumerate(tables, start=1):
        found = grams(tokens, n)
        contexts, place = (kinds // len(CHARACTERS)).unique(return_inverse=True)
        context = found.div(len(CHARACTERS), rounding_mode="floor")
        totals = torch.zeros_like(contexts).index_add(0, place, counts)
        total = occurrences(context, contexts, totals)
        followers = occurrences(context, contexts, place.bincount())
        kept = (occurrences(found, kinds, counts) - discount).clamp(min=0)
        corrected = (kept + discount * followers * p) / total
        p = corrected.where(total > 0, p)
        losses.append(-p.log().mean())
    return torch.stack(losses)


def counts():
    """For 2- to 7-grams: the numbers that they store, and their loss on the held-out sections."""
    orders = range(1, LONGEST + 1)
    tables = [grams(TRAIN, n)[n - 1 :].unique(return_counts=True) for n in orders]
    tried, held_out = (
        torch.stack([losses_of_counts(tables, tokens, d) for d in DISCOUNTS])
        for tokens in (encode(book_text("validation")), HELD_OUT)
    )
    losses = held_out.gather(0, tried.argmin(0, keepdim=True))[0]
    numbers = torch.tensor([len(kinds) for kinds, _ in tables]).cumsum(0)
    return {"n": list(orders[1:]), "numbers": numbers[1:], "held-out loss": losses[1:]}


BOUNDS = {"counts": counts()}
