"""Masked softmax, positions, rotation, cache: functions as readers write them, and their verdicts.

Nothing here is taken from mha_lib: the checkers must accept code that they have never seen.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mha_course.exercises import Exercise, check_cache, check_masked_softmax, check_positions
from mha_course.exercises import softmax_positions_cache as checkers

LOWEST = torch.finfo(torch.float32).min

# Masked softmax


def filled_with_infinity(scores, mask):
    weights = F.softmax(scores.masked_fill(mask.logical_not(), float("-inf")), dim=2)
    return torch.where(mask, weights, torch.zeros_like(weights))


def filled_with_the_lowest(scores, mask):
    wide = torch.where(mask, scores.float(), LOWEST)
    return (torch.softmax(wide, dim=-1) * mask).to(scores.dtype)


def by_hand(scores, mask):
    wide = scores.float().masked_fill(~mask, LOWEST)
    powers = torch.exp(wide - wide.amax(-1, keepdim=True)) * mask
    return (powers / powers.sum(-1, keepdim=True).clamp(min=1e-9)).to(scores.dtype)


def by_the_logarithm(scores, mask):
    wide = scores.float().masked_fill(~mask, LOWEST)
    return ((wide - wide.logsumexp(-1, keepdim=True)).exp() * mask).to(scores.dtype)


def by_loops(scores, mask):
    weights = torch.zeros_like(scores)
    for b in range(scores.shape[0]):
        for q in range(scores.shape[1]):
            if mask[b, q].any():
                weights[b, q, mask[b, q]] = scores[b, q, mask[b, q]].float().softmax(0).to(scores.dtype)
    return weights


def added_lowest(scores, mask):
    wide = scores.float() + torch.zeros(mask.shape).masked_fill(~mask, LOWEST)
    return wide.softmax(-1).masked_fill(~mask, 0).to(scores.dtype)


SOFTMAX_UNKNOWN = {
    "it changes its argument `scores` in place": lambda s, m: s.masked_fill_(~m, -1e4).softmax(-1),
    "it changes its argument `mask` in place": lambda s, m: by_hand(s, m.logical_not_()),
    "a hidden key has weight 0.05": lambda s, m: by_hand(s, m).masked_fill(~m, 0.05),
    "its rows should add up to 1, and row [0, 0] adds up to 0.9": lambda s, m: 0.9 * by_hand(s, m),
    "wrong for scores around -10,000,000": by_the_logarithm,
    "it raises RuntimeError in line": lambda s, m: by_hand(s, m) @ m.float(),
    "wrong for scores in float16": lambda s, m: s.masked_fill(~m, -1e30).softmax(-1) * m,
    "no result carries a gradient": lambda s, m: by_hand(s.detach(), m),
}

# Sinusoidal positions


def table_by_loops(num_positions, embed_dim):
    return torch.tensor(
        [
            [
                (math.cos if c % 2 else math.sin)(p / 10_000 ** (2 * (c // 2) / embed_dim))
                for c in range(embed_dim)
            ]
            for p in range(num_positions)
        ]
    )


def table_by_slices(num_positions, embed_dim):
    table = torch.zeros(num_positions, embed_dim)
    even = torch.arange(0, embed_dim, 2)
    angle = torch.arange(num_positions).unsqueeze(1) * torch.exp(even * (-math.log(10_000.0) / embed_dim))
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle[:, : embed_dim // 2])
    return table


def table_by_shifted_sines(num_positions, embed_dim):
    column = torch.arange(embed_dim)
    pair = torch.div(column, 2, rounding_mode="floor")
    angle = torch.outer(torch.arange(float(num_positions)), 10_000.0 ** (-2 * pair / embed_dim))
    return torch.sin(angle + (column % 2) * math.pi / 2)


def table_in_numpy(num_positions, embed_dim):
    i = np.arange((embed_dim + 1) // 2)
    angle = np.arange(num_positions)[:, None] / 10_000 ** (2 * i / embed_dim)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(num_positions, -1)[:, :embed_dim]


def table_of_complex_numbers(num_positions, embed_dim):
    pairs = (embed_dim + 1) // 2
    angle = torch.arange(num_positions)[:, None] * 10_000.0 ** (-torch.arange(pairs) * 2 / embed_dim)
    turns = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turns).flip(-1).flatten(1)[:, :embed_dim]


TABLE_UNKNOWN = {
    "`table` is zero everywhere": torch.zeros,
    "`table` is 0.5 times what is expected": lambda n, d: 0.5 * table_by_loops(n, d),
    "`table` holds the right numbers in reverse order along axis 0 (num_positions)": lambda n, d: (
        table_by_loops(n, d).flip(0)
    ),
    "`table` has shape (7, 2, 1), expected (7, 2), that is (num_positions, embed_dim)": lambda n, d: (
        table_by_loops(n, d)[..., None]
    ),
}

# Cache


def decoded_from_lists(x, W_q, W_k, W_v):  # noqa: N803
    keys, values, outputs = [], [], []
    for token in x:
        keys.append(token @ W_k)
        values.append(token @ W_v)
        scores = torch.stack(keys) @ (token @ W_q) / math.sqrt(W_k.shape[1])
        outputs.append(scores.softmax(0) @ torch.stack(values))
    return torch.stack(outputs)


def decoded_from_slots(x, W_q, W_k, W_v):  # noqa: N803
    keys = x.new_zeros(len(x), W_k.shape[1])
    values = x.new_zeros(len(x), W_v.shape[1])
    rows = []
    for t, token in enumerate(x):
        keys = torch.cat((keys[:t], (token @ W_k)[None], keys[t + 1 :]))
        values = torch.cat((values[:t], (token @ W_v)[None], values[t + 1 :]))
        scores = keys @ (token @ W_q) / W_k.shape[1] ** 0.5
        rows.append(scores.masked_fill(torch.arange(len(x)) > t, -torch.inf).softmax(-1) @ values)
    return torch.stack(rows)


def decoded_by_concatenation(x, W_q, W_k, W_v):  # noqa: N803
    kept = None
    outputs = []
    for t in range(x.shape[0]):
        new = x[t : t + 1] @ torch.cat((W_k, W_v), 1)
        kept = new if kept is None else torch.cat((kept, new))
        k, v = kept.split([W_k.shape[1], W_v.shape[1]], dim=1)
        outputs.append(F.scaled_dot_product_attention(x[t : t + 1] @ W_q, k, v))
    return torch.cat(outputs)


def decoded_online(x, W_q, W_k, W_v):  # noqa: N803
    """The softmax is summed up key by key."""
    rows = []
    for t in range(len(x)):
        query, total, mixed = x[t] @ W_q * W_k.shape[1] ** -0.5, 0.0, 0.0
        for token in x[: t + 1]:
            power = torch.exp(query @ (token @ W_k))
            total, mixed = total + power, mixed + power * (token @ W_v)
        rows.append(mixed / total)
    return torch.stack(rows)


def never_emptied(x, q, k, v, keys=[], values=[]):  # noqa: B006, the mistake
    outputs = []
    for token in x:
        keys.append((token @ k).detach())
        values.append((token @ v).detach())
        outputs.append((torch.stack(keys) @ (token @ q) / k.shape[1] ** 0.5).softmax(0) @ torch.stack(values))
    return torch.stack(outputs)


class Cache:
    def __init__(self):
        self.pairs = []

    def step(self, query, key, value):
        self.pairs.append((key, value))
        keys, values = map(torch.stack, zip(*self.pairs, strict=True))
        return torch.softmax(keys @ query / len(key) ** 0.5, 0) @ values


def decoded_by_a_class(x, W_q, W_k, W_v):  # noqa: N803
    cache = Cache()
    return torch.stack([cache.step(t @ W_q, t @ W_k, t @ W_v) for t in x])


def with_sigmoids(x, W_q, W_k, W_v):  # noqa: N803
    weights = (x @ W_q @ (x @ W_k).T / W_k.shape[1] ** 0.5).sigmoid().tril()
    return weights / weights.sum(-1, keepdim=True) @ x @ W_v


CACHE_UNKNOWN = {
    "or keep something from the previous call": never_emptied,
    "right for one token, wrong for two tokens (x (2, 7), W_q (7, 3), W_k (7, 3), W_v (7, 5))": with_sigmoids,
}

# Verdicts

TABLES = [table_by_loops, table_by_slices, table_by_shifted_sines, table_in_numpy, table_of_complex_numbers]
CACHES = [decoded_from_lists, decoded_from_slots, decoded_by_concatenation, decoded_online]
RIGHT = {
    check_masked_softmax: [filled_with_infinity, filled_with_the_lowest, by_hand, by_loops, added_lowest],
    check_positions: TABLES,
    partial(check_positions, added=True): [
        lambda x: x + table_by_loops(*x.shape[1:]), lambda x: (x + table_by_slices(*x.shape[1:])).numpy(),
    ],
    check_cache: [*CACHES, decoded_by_a_class],
}  # fmt: skip
UNKNOWN = {
    check_masked_softmax: SOFTMAX_UNKNOWN, check_positions: TABLE_UNKNOWN,
    check_cache: CACHE_UNKNOWN,
}  # fmt: skip


@pytest.mark.parametrize(("check", "answer"), [(check, one) for check, all_ in RIGHT.items() for one in all_])
def test_right_answer_is_accepted(check, answer):
    verdict = check(answer)
    assert verdict, verdict


@pytest.mark.parametrize(
    ("check", "sentence", "answer"),
    [(check, *pair) for check, answers in UNKNOWN.items() for pair in answers.items()],
)
def test_answer_that_is_wrong_in_another_way_gets_a_sentence(check, sentence, answer):
    verdict = check(answer)
    assert not verdict
    assert sentence in verdict.message


@pytest.mark.parametrize("exercise", [one for one in vars(checkers).values() if isinstance(one, Exercise)])
def test_an_exercise_tells_its_known_mistakes_apart(exercise):
    assert exercise.audit() == []
