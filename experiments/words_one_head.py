"""A model on real words with one head, once more: a smaller learning rate and three times the steps.

In `words` some runs with one head get stuck. This gives one head a fairer chance, with either read-out.
"""

from words import BOUNDS as BOUNDS
from words import LONG, arm

RATE = 1e-3

ARMS = {
    "1 head, lr 0.001": arm(1, RATE, steps=LONG, keep=1),
    "1 head, MLP, lr 0.001": arm(1, RATE, "MLP", steps=LONG),
}
