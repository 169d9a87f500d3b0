"""Two pointers: what do the heads of trained models look at, and what does an MLP behind one head change?

From 1 to 8 heads with the same number of parameters, with a linear read-out. One head also has an MLP, and as
its control the MLP's two matrices without the ReLU between them. The positions start close to 0, unlike those
of `one_head`, which counts how often and how soon one head and two learn this task.
"""

from functools import partial

import torch
from common import Arm, PointerModel, heads

from mha_course.data import pointer_batch
from mha_course.training import predict
from mha_lib import capture_attention

STEPS = 2000
RATES, BATCH = (1e-2, 3e-2, 1e-1), 32
TASKS = ("previous", "mirrored")


def batch(generator):
    return pointer_batch(BATCH, tasks=TASKS, generator=generator)


def measure(models):
    """Share of positions where both answers are right; mean weight of each head on either target."""
    tokens, targets = pointer_batch(
        2000, tasks=TASKS, generator=torch.Generator().manual_seed(99)
    )
    right = predict(models, tokens).argmax(-1) == targets
    place = torch.arange(12)
    apart = place[place.roll(1) != place.flip(0)]
    weights = []
    for model in models:
        with capture_attention(model) as captured, torch.no_grad():
            model(tokens[:500])
        maps = captured["attention"].mean(0)
        pointed = (place.roll(1)[apart], place.flip(0)[apart])
        to_places = [maps[:, apart, target].mean(-1) for target in pointed]
        weights.append(torch.stack(to_places, dim=-1))
    return {
        "both right": right.all(-1).float().mean((1, 2)),
        "each right": right.float().mean((1, 2)),
        "weight on previous and mirrored, by head": torch.stack(weights),
    }


def arm(num_heads, read_out, keep=5):
    make_model = partial(PointerModel, num_heads, len(TASKS), read_out)
    return Arm(make_model, batch, measure, steps=STEPS, rates=RATES, keep=keep)


ARMS = {f"linear, {heads(number)}": arm(number, "linear") for number in (1, 2, 4, 8)}
ARMS["MLP, 1 head"] = arm(1, "MLP")
ARMS["two matrices, 1 head"] = arm(1, "two matrices", keep=0)

BOUNDS = {
    # Both pointers coincide at 2 of 12 positions; elsewhere the two tokens are equal once in 8.
    "both answers are the same token": 13 / 48
}
