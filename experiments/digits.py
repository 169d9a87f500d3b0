"""Handwritten digits: what does one attention layer see of an image with one head, and what with four?

The model is one layer over the 16 patches of a digit, a mean over them and a linear read-out. One and four
heads have the same number of parameters; a third setting has no positions. 247 images choose the rate.
"""

from functools import partial

import torch
from common import Arm
from sklearn.linear_model import LogisticRegression
from torch import nn

from mha_course.data import digit_tokens
from mha_course.training import predict
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention

SHORT, STEPS, RATES, BATCH = 250, 2000, (6e-3, 2e-2, 6e-2), 32
DIGITS = digit_tokens(patch=2)
CHOOSING = 247
X_TRAIN, X_CHOOSING = DIGITS.x_train[:-CHOOSING], DIGITS.x_train[-CHOOSING:]
Y_TRAIN, Y_CHOOSING = DIGITS.y_train[:-CHOOSING], DIGITS.y_train[-CHOOSING:]


class DigitModel(nn.Module):
    """One attention layer over the 16 patches of a digit, and one score for each of the ten digits."""

    def __init__(self, num_heads, positions=True, embed_dim=32):
        super().__init__()
        self.embedding = nn.Linear(4, embed_dim)
        self.positions = nn.Identity()
        if positions:
            self.positions = LearnedPositionalEncoding(embed_dim, max_len=16)
        self.attention = MultiHeadAttention(embed_dim, num_heads)
        self.read_out = nn.Linear(embed_dim, 10)

    def forward(self, patches):
        x = self.positions(self.embedding(patches))
        output, _ = self.attention(x, x, x)
        return self.read_out(output.mean(1))


def batch(generator):
    chosen = torch.randint(len(X_TRAIN), (BATCH,), generator=generator)
    return X_TRAIN[chosen], Y_TRAIN[chosen]


def held_out(_generator):
    return X_CHOOSING, Y_CHOOSING


def measure(models):
    """Accuracy on test images and on training images."""
    return {
        name: (predict(models, x).argmax(-1) == y).float().mean(-1)
        for name, x, y in (
            ("test accuracy", DIGITS.x_test, DIGITS.y_test),
            ("training accuracy", X_TRAIN, Y_TRAIN),
        )
    }


def pixels_alone():
    """Test accuracy of a logistic regression on the 64 pixels."""
    train, test = X_TRAIN.flatten(1).numpy(), DIGITS.x_test.flatten(1).numpy()
    regression = LogisticRegression(max_iter=2000).fit(train, Y_TRAIN.numpy())
    return float(regression.score(test, DIGITS.y_test.numpy()))


SETTINGS = {"1 head": (1,), "4 heads": (4,), "4 heads, no positions": (4, False)}
ARMS = {
    f"{name}, {steps} steps": Arm(
        partial(DigitModel, *setting),
        batch,
        measure,
        steps=steps,
        rates=RATES,
        held_out=held_out,
        keep=5 if (name, steps) == ("4 heads", STEPS) else 0,
    )
    for steps in (SHORT, STEPS)
    for name, setting in SETTINGS.items()
}

BOUNDS = {"guessing": 1 / 10, "logistic regression on the pixels": pixels_alone()}
