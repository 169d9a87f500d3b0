"""One matrix for queries and keys, or two? With each token visible to itself, and hidden from itself.

Three tasks for one head: a symmetric relation (mirrored); one that only looks back, under a causal mask
(three back); and one that is not symmetric and has no mask (previous, wrapping around). With one matrix the
scores are symmetric before the softmax, and a token's score with itself is its squared length.
"""

from functools import partial

import torch
from common import Arm, three_back
from torch import nn

from mha_course.data import pointer_batch
from mha_course.training import predict
from mha_lib import LearnedPositionalEncoding, causal_mask, dot_product_attention

STEPS, RATES, BATCH = 500, (6e-3, 2e-2, 6e-2), 32
WIDTH, LETTERS, LENGTH = 32, 8, 12


class OneHead(nn.Module):
    """Embedding, positions, one head with or without a separate matrix for keys, linear read-out."""

    def __init__(self, is_causal, is_shared, hides_itself):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, WIDTH)
        self.positions = LearnedPositionalEncoding(WIDTH, max_len=LENGTH)
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = None if is_shared else nn.Linear(WIDTH, WIDTH, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.read_out = nn.Linear(WIDTH, LETTERS)
        visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        if is_causal:
            visible = causal_mask(LENGTH)
        if hides_itself:
            visible = visible & ~torch.eye(LENGTH, dtype=torch.bool)
        self.register_buffer("visible", visible, persistent=False)

    def forward(self, tokens):
        x = self.positions(self.embedding(tokens))
        query, value = self.q_proj(x), self.v_proj(x)
        key = query if self.k_proj is None else self.k_proj(x)
        output, _ = dot_product_attention(
            query[:, None], key[:, None], value[:, None], self.visible
        )
        return self.read_out(output[:, 0])


def batch(task, generator, batch_size=BATCH):
    if task == "three back":
        return three_back(generator, batch_size)
    tokens, targets = pointer_batch(batch_size, tasks=[task], generator=generator)
    return tokens, targets[..., 0]


TASKS = {"mirrored": False, "three back": True, "previous": False}  # is it causal?


def measure(task, models):
    """Share of right answers."""
    tokens, targets = batch(task, torch.Generator().manual_seed(99), batch_size=2000)
    right = (predict(models, tokens).argmax(-1) == targets)[:, targets != -100]
    return {"right": right.float().mean(-1)}


ARMS = {
    f"{task}, {'one matrix' if is_shared else 'two matrices'}, "
    f"itself {'hidden' if hides_itself else 'visible'}": Arm(
        partial(OneHead, is_causal, is_shared, hides_itself),
        partial(batch, task),
        partial(measure, task),
        steps=STEPS,
        rates=RATES,
    )
    for task, is_causal in TASKS.items()
    for hides_itself in (False, True)
    for is_shared in (False, True)
}
BOUNDS = {"guessing": 1 / LETTERS}
