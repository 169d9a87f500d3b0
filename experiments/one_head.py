"""One head or two: how many starts of `TwoPointers`, the model of chapter 3, learn its task, and how soon?

The model is the chapter's own class, from the start that `nn.Embedding` and `nn.Linear` draw. One head and
two have the same number of parameters, twenty seeds at each learning rate, and the same data.
"""

from functools import partial

import torch
from common import Arm, heads

from mha_course.built import TwoPointers
from mha_course.data import pointer_batch
from mha_course.training import predict

STEPS, SHORT = 2000, 200
RATES, BATCH, SEEDS = (5e-3, 1e-2, 2e-2, 4e-2), 32, 20
# A model has learned the task if both answers are right at more than this share of the places.
LEARNED = 0.999


def batch(generator):
    return pointer_batch(BATCH, generator=generator)


def both_right(models, tokens, targets):
    """Share of places where both answers are right, one number for each model."""
    right = predict(models, tokens).argmax(-1) == targets
    return right.all(-1).float().mean((1, 2))


def measure(models):
    tokens, targets = pointer_batch(2000, generator=torch.Generator().manual_seed(99))
    return {"both right": both_right(models, tokens, targets)}


def arm(number, **settings):
    make_model = partial(TwoPointers, number)
    return Arm(make_model, batch, measure, seeds=SEEDS, learned=LEARNED, **settings)


ARMS = {
    f"{heads(number)}, {SHORT} steps": arm(number, steps=SHORT, rates=RATES)
    for number in (1, 2)
}
ARMS[f"1 head, {STEPS} steps"] = arm(
    1, steps=STEPS, rates=RATES[1:3],
    because="shows that one head can; two heads need no such time",
)  # fmt: skip


def most_right(tokens):
    """The most pairs (s, t) of so many tokens for which one mixture names its lighter token t.

    If the weights depend only on the places, a linear read-out scores token j by A[j, s] + r A[j, t] with
    r <= 1, where A contains what the other places add. A pair is right if t has the highest score. With
    r = 1 the pairs (s, t) and (t, s) have the same scores, so one of them is wrong. With r < 1 both may be
    right; then call s and t a double.
    Lemma: if s and t are a double, then for each token w, s and t included, (w, s) or (w, t) is wrong.
    Proof: put u = A[s, t] - A[t, t] and v = A[t, s] - A[s, s]. Since t wins for (s, t) and s for (t, s),
    v > r u and u > r v, so v > r r v, and both are positive. If t won for (w, t) and s for (w, s), then
    A[t, w] - A[s, w] > r u > 0 and A[s, w] - A[t, w] > r v > 0, which cannot both be.
    Without a double, one order of each pair can be right, and each pair of equal tokens: n (n + 1) / 2 for n
    tokens. With a double s, t, take both tokens away. By the lemma (s, s) and (t, t) are wrong, so 2 pairs of
    these two are right. For another w, at most one of (w, s), (w, t) is right. If it is (w, s), then (s, w)
    would make s, w a double, and by the lemma for it (t, w) is wrong, since (t, s) is right. So at most two
    of the four pairs with w are right, and 2 + 2 (n - 2) pairs go with the two tokens.
    """
    if tokens < 2:
        return tokens
    without_doubles = tokens * (tokens + 1) // 2
    with_a_double = most_right(tokens - 2) + 2 + 2 * (tokens - 2)
    return max(without_doubles, with_a_double)


BOUNDS = {
    "guessing": 1 / 64,
    # Both pointers coincide at 2 of 12 positions; elsewhere the two tokens are equal once in 8. This is where
    # most runs with one head and a linear read-out end, but it is not a bound on them.
    "both answers are the same token": 13 / 48,
    # One mixture, weights 0.8 and 0.2. The answer to the lighter pointer is read off with the factor 5 ** j
    # for token j, so that it is right where the lighter token is the larger: 36 of 64 pairs.
    "one mixture, set by hand": (10 * 36 / 64 + 2) / 12,
    # No mixture whose weights depend only on places does better with a linear read-out: at the 10 places
    # where the pointers differ it gets at most `most_right` of the 64 pairs, at the others at most all.
    "one mixture, at most": (10 * most_right(8) / 64 + 2) / 12,
}
