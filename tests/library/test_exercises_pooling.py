"""The exercises of chapter 1: right answers pass, wrong ones are refused with their cause.

The answers here are written as a reader would write them, not as the checkers hold them.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from exercise_cells import CHECKS, cells_of, checkers_of

from mha_lib import attention_pooling, dot_product_score, gaussian_score, masked_softmax

PAGE = "01_attention_pooling"
EXERCISES = cells_of(PAGE)


def loops(scores, value):
    output = torch.zeros(len(scores), value.shape[1])
    for q, row in enumerate(scores.tolist()):
        total = sum(math.exp(score) for score in row)
        for k, score in enumerate(row):
            output[q] += math.exp(score) / total * value[k]
    return output


def loops_with_one_total(scores, value):
    output, total = torch.zeros(len(scores), value.shape[1]), 0
    for q, row in enumerate(scores.tolist()):
        total += sum(math.exp(score) for score in row)
        for k, score in enumerate(row):
            output[q] += math.exp(score) / total * value[k]
    return output


def loops_that_replace(scores, value):
    output = torch.zeros(len(scores), value.shape[1])
    for q, row in enumerate(scores.tolist()):
        total = sum(math.exp(score) for score in row)
        for k, score in enumerate(row):
            output[q] = math.exp(score) / total * value[k]
    return output


def loops_over_wrong_values(scores, value):
    output = torch.zeros(len(scores), value.shape[1])
    for q, row in enumerate(scores.tolist()):
        total = sum(math.exp(score) for score in row)
        for score in row:
            output[q] += math.exp(score) / total * value[q]
    return output


def without_keepdim(scores, value):
    weights = torch.exp(scores)
    weights = weights / torch.sum(weights, dim=-1)
    return torch.matmul(weights, value)


def kernel_errors(kernel, hide=True, mean=True, x_over=lambda d, b: d / b):
    """A reader's leave-one-out, by loops over the bandwidths and the points."""

    def errors(x, y, bandwidths):
        found = []
        for b in bandwidths.flatten():
            squares = []
            for i in range(len(x)):
                weights = kernel(x_over(x[:, 0] - x[i, 0], b))
                if hide:
                    weights[i] = 0
                squares.append(((weights * y[:, 0]).sum() / weights.sum() - y[i, 0]) ** 2)
            found.append(sum(squares) / len(squares) if mean else sum(squares))
        return torch.stack(found)

    return errors


def cauchy(u):
    return 1 / (1 + u * u)


def cauchy_as_a_score(x, y, bandwidths):
    mask = ~torch.eye(len(x), dtype=torch.bool)
    return (attention_pooling(cauchy((x - x.T) / bandwidths), y, mask)[0] - y).pow(2).mean((1, 2))


def nearest_and_mean(query, key, value):
    narrow = []
    for q in query:
        distance = (q - key).abs()[:, 0]
        narrow.append(value[distance == distance.min()].mean(0))
    return torch.stack(narrow), torch.stack([value.mean(0)] * len(query))


def first_nearest(query, key, value):
    nearest = torch.stack([(q - key).abs().argmin() for q in query])
    return value[nearest], nearest_and_mean(query, key, value)[1]


def limits_with(narrow=None, wide=None):
    def limits(query, key, value):
        right = nearest_and_mean(query, key, value)
        return (
            right[0] if narrow is None else narrow(right, value),
            right[1] if wide is None else wide(right, value),
        )

    return limits


def others(y):
    return torch.stack([torch.cat([y[:i], y[i + 1 :]]).mean() for i in range(len(y))])[:, None]


def solved_line(query, key, value, bandwidth, weigh=True, at=None, pick=0):
    """Weighted least squares by `lstsq`, one query at a time."""
    rows = []
    for q, k, v in zip(
        query.reshape(-1, *query.shape[-2:]),
        key.reshape(-1, *key.shape[-2:]),
        value.reshape(-1, *value.shape[-2:]),
        strict=True,
    ):
        for place in q:
            root = torch.exp(-((k - place) ** 2) / (4 * bandwidth**2)) if weigh else torch.ones_like(k)
            design = torch.cat([torch.ones_like(k), k - (place if at is None else at)], dim=1)
            rows.append(torch.linalg.lstsq(root * design, root * v).solution[pick])
    return torch.stack(rows).reshape(query.shape)


def standardised(query, key, value, bandwidth):
    query, key = (query - key.mean(0)) / key.std(0), (key - key.mean(0)) / key.std(0)
    weights = torch.exp(-(torch.cdist(query, key) ** 2) / (2 * bandwidth**2))
    return weights @ value / weights.sum(1, keepdim=True)


def pool(query, key, value, bandwidth):
    return attention_pooling(gaussian_score(query, key, bandwidth), value)[0]


def shares(flowers, species, bandwidth, itself=False, divide=True):
    rows = []
    for i, flower in enumerate(flowers):
        totals = [0.0] * (int(species.max()) + 1)
        for j, other in enumerate(flowers):
            if i != j or itself:
                closeness = math.exp(-float((flower - other).square().sum()) / (2 * bandwidth**2))
                totals[species[j]] += closeness
        rows.append([total / sum(totals) for total in totals] if divide else totals)
    return torch.tensor(rows)


def numbered_classes(flowers, species, bandwidth):
    mask = ~torch.eye(len(flowers), dtype=torch.bool)
    values = species[:, None].to(flowers)
    return attention_pooling(gaussian_score(flowers, flowers, bandwidth), values, mask)[0]


def by_autograd(query, key, value):
    def output(query):
        return attention_pooling(dot_product_score(query[None], key), value)[0][0]

    return torch.autograd.functional.jacobian(output, query)


def without_the_mean_key(query, key, value):
    weights = masked_softmax(dot_product_score(query[None], key))[0]
    return sum(torch.outer(w * v, k) for w, v, k in zip(weights, value, key, strict=True))


# Checker -> other right answers.
RIGHT = {
    "check_pooling": [loops, lambda s, v: torch.softmax(s, 1) @ v, lambda s, v: loops(s, v).numpy()],
    "check_pooling_without_loops": [
        lambda s, v: attention_pooling(s, v)[0],
        lambda s, v: (
            (s - s.amax(-1, keepdim=True)).exp().div(s.logsumexp(-1, keepdim=True).exp())
            @ v
            * s.amax(-1, keepdim=True).exp()
        ),
        lambda s, v: torch.einsum("...qk,...kd->...qd", s.softmax(-1), v),
    ],
    "check_left_out_errors": [kernel_errors(cauchy)],
    "check_limits": [nearest_and_mean],
    "check_noise_errors": [
        lambda y: (0, (y - others(y)).square().mean()),
        lambda y: (0.0, (len(y) / (len(y) - 1)) * y.var()),
    ],
    "check_local_line": [solved_line],
    "check_pooling_without_units": [
        standardised,
        lambda q, k, v, b: pool(q / k.std(0, correction=0), k / k.std(0, correction=0), v, b),
    ],
    "check_class_shares": [shares],
    "check_jacobian": [
        by_autograd,
        lambda q, k, v: (
            v.T @ (torch.diag((k @ q).softmax(0)) - torch.outer((k @ q).softmax(0), (k @ q).softmax(0))) @ k
        ),
    ],
}

# Checker -> the beginning of a message -> a wrong answer.
WRONG = {
    "check_pooling": {
        "the sum of the exponentials runs on": loops_with_one_total,
        "only the last key counts": loops_that_replace,
        "the weights are multiplied by the value at the place of the query": loops_over_wrong_values,
        "the softmax runs over the queries": lambda s, v: F.softmax(s, dim=0) @ v,
        "the weights do not add up to 1": lambda s, v: torch.exp(s) @ v,
        "the scores are divided by their sum": lambda s, v: (s / s.sum(1, keepdim=True)) @ v,
        "the exponentials are divided by the sum over all": lambda s, v: s.exp() / s.exp().sum() @ v,
        "only the key with the largest score": lambda s, v: torch.stack([v[row.argmax()] for row in s]),
        "every key counts the same": lambda s, v: torch.stack([v.mean(0)] * len(s)),
        "`output` has shape (2, 3), expected (3, 2)": lambda s, v: loops(s, v).T,
        "it changes its argument `scores`": lambda s, v: s.exp_() / s.sum(-1, keepdim=True) @ v,
    },
    "check_pooling_without_loops": {
        "the sums are divided along the wrong axis": without_keepdim,
        "the axes are counted from the front": lambda s, v: s.softmax(1) @ v,
        "the softmax runs over the queries": lambda s, v: s.exp() / s.exp().sum(-2, keepdim=True) @ v,
        "the weights do not add up to 1": lambda s, v: s.exp() @ v,
        "the scores are divided by their sum": lambda s, v: (s / s.sum(-1, keepdim=True)) @ v,
        "the exponentials are divided by the sum over all": lambda s, v: (
            torch.stack([one.exp() / one.exp().sum() for one in s.reshape(-1, *s.shape[-2:])]).view_as(s) @ v
        ),
    },
    "check_left_out_errors": {
        "each point is among its own keys": kernel_errors(cauchy, hide=False),
        "the kernel was taken for the score": cauchy_as_a_score,
        "the kernel is the Gaussian one": kernel_errors(lambda u: torch.exp(-u * u / 2)),
        "the distance in the kernel is not squared": kernel_errors(lambda u: 1 / (1 + abs(u))),
        "the distance is multiplied by the bandwidth": kernel_errors(cauchy, x_over=lambda d, b: d * b),
        "the squared distance is divided by the bandwidth": kernel_errors(
            lambda u: 1 / (1 + u), x_over=lambda d, b: d**2 / b
        ),
        "the bandwidth is not used": kernel_errors(cauchy, x_over=lambda d, b: d),
        "the squares are added up": kernel_errors(cauchy, mean=False),
        "one number mixes all bandwidths": lambda x, y, b: kernel_errors(cauchy)(x, y, b).mean(),
    },
    "check_limits": {
        "where two keys are equally near": first_nearest,
        "the narrow limit is zero": limits_with(narrow=lambda right, v: 0 * right[0]),
        "the two limits are exchanged": lambda q, k, v: nearest_and_mean(q, k, v)[::-1],
        "the narrow limit takes the key that is farthest": lambda q, k, v: (
            torch.stack([v[(one - k).abs().argmax()] for one in q]),
            nearest_and_mean(q, k, v)[1],
        ),
        "distances are compared with their signs": lambda q, k, v: (
            torch.stack([v[k.argmax()] for _ in q]),
            nearest_and_mean(q, k, v)[1],
        ),
        "the wide limit is the sum": limits_with(wide=lambda right, v: right[1] * len(v)),
        "the wide limit mixes the columns": limits_with(wide=lambda right, v: 0 * right[1] + v.mean()),
        "the wide limit is zero": limits_with(wide=lambda right, v: torch.zeros_like(right[1])),
        "it returns 1 result, where 2 results (`narrow`, `wide`)": lambda q, k, v: nearest_and_mean(q, k, v)[
            0
        ],
    },
    "check_noise_errors": {
        "the left-out error is the variance around the mean of all": lambda y: (
            0,
            ((y - y.mean()) ** 2).mean(),
        ),
        "the left-out error is the sample variance": lambda y: (0, y.std() ** 2),
        "both errors are 0": lambda y: (0, 0),
        "the two errors are exchanged": lambda y: ((y - others(y)).square().mean(), 0),
        "the error with itself among the keys": lambda y: (
            (y - y.mean()).square().mean(),
            (y - others(y)).square().mean(),
        ),
        "the sum of the others is divided": lambda y: (
            0,
            (y - others(y) * (len(y) - 1) / len(y)).square().mean(),
        ),
        "the left-out estimate is 0": lambda y: (0, (y * y).mean()),
        "the squares are added up": lambda y: (0, (y - others(y)).square().sum()),
    },
    "check_local_line": {
        "this is the weighted mean": pool,
        "all keys count the same": lambda q, k, v, b: solved_line(q, k, v, b, weigh=False),
        "the line is read at 0": lambda q, k, v, b: solved_line(q, k, v, b, at=0),
        "this is the slope": lambda q, k, v, b: solved_line(q, k, v, b, pick=1),
        "the weights enter squared": lambda q, k, v, b: solved_line(q, k, v, b / 2**0.5),
        "the denominator lacks": lambda q, k, v, b: solved_line(q, k, v, b) * shrunk(q, k, b),
    },
    "check_pooling_without_units": {
        "the features are not scaled": pool,
        "the queries take part": lambda q, k, v, b: standardised_by(torch.cat([k, q]), q, k, v, b),
        "queries and keys are scaled differently": lambda q, k, v, b: pool(q / q.std(0), k / k.std(0), v, b),
        "only the keys are scaled": lambda q, k, v, b: pool(q, k / k.std(0), v, b),
        "one standard deviation serves all": lambda q, k, v, b: pool(q / k.std(), k / k.std(), v, b),
        "the features are divided by their variance": lambda q, k, v, b: pool(
            q / k.std(0) ** 2, k / k.std(0) ** 2, v, b
        ),
        "the features are divided by their mean": lambda q, k, v, b: pool(q / k.mean(0), k / k.mean(0), v, b),
    },
    "check_class_shares": {
        "each flower is among its own keys": lambda f, s, b: shares(f, s, b, itself=True),
        "the values are the numbers of the classes. ": numbered_classes,
        "the values are the numbers of the classes, and": lambda f, s, b: numbered_classes(f, s, b)[:, 0],
        "only the most likely class": lambda f, s, b: F.one_hot(shares(f, s, b).argmax(1)).float(),
        "the weights do not add up to 1": lambda f, s, b: shares(f, s, b, divide=False),
        "each class is divided by its number": lambda f, s, b: F.normalize(
            shares(f, s, b) / torch.bincount(s), p=1
        ),
        "the shares went through another softmax": lambda f, s, b: F.softmax(shares(f, s, b), dim=1),
        "`shares` has dtype torch.int64, expected torch.float32": lambda f, s, b: shares(f, s, b).long(),
    },
    "check_jacobian": {
        "the mean key is not subtracted": without_the_mean_key,
        "the mean of the keys is not weighted": lambda q, k, v: (
            without_the_mean_key(q, k, v) - torch.outer(v.T @ (k @ q).softmax(0), k.mean(0))
        ),
        "the axes are exchanged": lambda q, k, v: by_autograd(q, k, v).T,
        "all keys have the same weight": lambda q, k, v: by_autograd(0 * q, k, v),
        "the scores are divided by the root": lambda q, k, v: by_autograd(q / math.sqrt(len(q)), k, v),
        "this is the product of the mean value and the mean key": lambda q, k, v: (
            without_the_mean_key(q, k, v) - by_autograd(q, k, v)
        ),
        "the sign is wrong": lambda q, k, v: -by_autograd(q, k, v),
    },
}


def shrunk(query, key, bandwidth):
    """What is left of a local line whose denominator is s2 alone: 1 - s1² / s2."""
    weights = masked_softmax(gaussian_score(query, key, bandwidth))
    offset = key.transpose(-2, -1) - query
    s1, s2 = ((weights * offset**power).sum(-1, keepdim=True) for power in (1, 2))
    return 1 - s1.square() / s2


def standardised_by(patients, query, key, value, bandwidth):
    return pool(query / patients.std(0), key / patients.std(0), value, bandwidth)


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_accepted_and_the_empty_stub_is_not(name):
    assert CHECKS[name].audit() == []
    assert "returns None. Write the missing lines" in CHECKS[name](lambda *_: None).message
    for answer in RIGHT[name]:
        assert CHECKS[name](answer), CHECKS[name](answer)


@pytest.mark.parametrize(("name", "start"), [(name, start) for name in WRONG for start in WRONG[name]])
def test_wrong_answers_are_refused_with_their_cause(name, start):
    verdict = CHECKS[name](WRONG[name][start])
    assert not verdict
    assert start in verdict.message
    if not start.startswith(("`", "it ")):  # those are the engine's own
        assert verdict.message.startswith(f"Not yet: {start}")


def test_every_known_mistake_is_made_here():
    for name, starts in WRONG.items():
        for wrong in CHECKS[name].wrong:
            assert any(f"{wrong.name}. ".startswith(start) for start in starts), wrong.name


def test_the_page_has_nine_exercises_each_with_a_checker_of_its_own():
    assert list(EXERCISES) == list(range(1, 10))
    assert checkers_of(PAGE) == list(RIGHT) == list(WRONG)
