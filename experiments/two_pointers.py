"""Two pointers: how many heads does a layer need to predict the previous and the mirrored token?

From 1 to 32 heads with the same number of parameters, with three read-outs: linear; an MLP; and the MLP's two
matrices without the ReLU between them, a linear read-out with the parameters of the MLP. The arms that fail
run again with four times the steps.
"""

from functools import partial

import torch
from common import Arm, PointerModel, heads

from mha_course.data import pointer_batch
from mha_course.training import predict
from mha_lib import capture_attention

STEPS, SHORT, LONG = 2000, 200, 8000
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


def arm(num_heads, read_out, steps=STEPS, embed_dim=32, keep=0):
    make_model = partial(PointerModel, num_heads, len(TASKS), read_out, embed_dim)
    return Arm(make_model, batch, measure, steps=steps, rates=RATES, keep=keep)


# Chapters inspect the models of these arms.
KEPT = {("linear", number) for number in (1, 2, 4, 8)} | {("MLP", 1)}
ARMS = {
    f"{read_out}, {heads(number)}": arm(
        number, read_out, keep=5 if (read_out, number) in KEPT else 0
    )
    for read_out, numbers in (
        ("linear", (1, 2, 4, 8, 16, 32)),
        ("MLP", (1, 2, 4, 8, 16, 32)),
        ("two matrices", (1, 2)),
    )
    for number in numbers
}
for number in (1, 2, 8, 16, 32):
    ARMS[f"linear, {heads(number)}, {SHORT} steps"] = arm(number, "linear", SHORT)
ARMS[f"MLP, 32 heads, {SHORT} steps"] = arm(32, "MLP", SHORT)
ARMS[f"linear, 1 head, {LONG} steps"] = arm(1, "linear", LONG)
ARMS["linear, 1 head, width 40"] = arm(1, "linear", embed_dim=40)
ARMS["linear, 2 heads, width 40"] = arm(2, "linear", embed_dim=40)

BOUNDS = {
    "guessing": 1 / 64,
    # Both pointers coincide at 2 of 12 positions; elsewhere the two tokens are equal once in 8. This is where
    # training ends, with one head and a linear read-out, but it is not a bound on them.
    "both answers are the same token": 13 / 48,
    # One mixture, weights 0.8 and 0.2. The answer to the lighter pointer is read off with the factor 5 ** j
    # for token j, so that it is right where the lighter token is the larger: 36 of 64 pairs.
    "one mixture, set by hand": (10 * 36 / 64 + 2) / 12,
    # No mixture whose weights depend only on positions does better than this with a linear read-out. With
    # weights 1 : r, r < 1, it scores token j by P[j, s] + r P[j, t], up to a constant, and must name t.
    # Call (s, t) a double if it is right for s, t and for t, s. The sum of the two conditions is then
    # P[s, s] + P[t, t] < P[s, t] + P[t, s]. If it is right for s, s and for t, t, the opposite holds.
    # Three tokens are never all doubles of one another: of two, the one with the higher score from the third
    # is named instead of the other. So doubles have at most d * (8 - d) edges if d tokens can be right when
    # they coincide. The best d is 5: 28 + 15 of 64 pairs, and 5 of 8 where the pointers coincide.
    "one mixture, at most": (10 * 43 / 64 + 2 * 5 / 8) / 12,
}
