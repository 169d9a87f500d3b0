"""The checkers of chapter 2: solutions pass, and each known mistake is named with its cause."""

import math

import pytest
import torch
from exercise_cells import checkers_of

from mha_lib import exercises

STEM = "02_scoring_functions"
NAMES = [
    "check_masked_softmax",
    "check_left_lens_mask",
    "check_triangle",
    "check_score_moments",
    "check_three_masks",
    "check_repaired",
    "check_bilinear_matrix",
    "check_distance_score",
]

# What readers write, right and wrong; None marks a right answer, otherwise the verdict begins with the text.


def left(valid_lens, k_len):
    rows = []
    for lens in valid_lens.tolist():
        of_sample = [[False] * (k_len - n) + [True] * n for n in (lens if isinstance(lens, list) else [lens])]
        rows.append(of_sample)
    return torch.tensor(rows)


def left_without_axis(valid_lens, k_len):
    start = k_len - valid_lens
    return torch.arange(k_len) >= start


def left_strict(valid_lens, k_len):
    visible = torch.arange(1, k_len + 1) > k_len - valid_lens[..., None] + 1
    return visible.unsqueeze(1) if valid_lens.ndim == 1 else visible


def triangle(q_len, k_len):
    return [[j - i <= k_len - q_len for j in range(k_len)] for i in range(q_len)]


def moments(d, mu_q, mu_k, sigma_q, sigma_k):
    """By adding up expectations, term by term."""
    second = (sigma_q**2 + mu_q**2) * (sigma_k**2 + mu_k**2)
    return mu_q * mu_k * d, d * second - d * mu_q**2 * mu_k**2, sigma_k * (d * (sigma_q**2 + mu_q**2)) ** 0.5


def three(valid_lens, length, window):
    places = range(length)
    return torch.tensor(
        [[[j < n and 0 <= i - j < window for j in places] for i in places] for n in valid_lens.tolist()]
    )


def attention(x, valid_lens=None, is_causal=False, *, fill=None, scale=True, polarity=True, join=all):
    """A loop over samples and queries; with `fill`, hidden scores are filled and nothing else is done."""
    outputs = torch.zeros_like(x)
    weights = torch.zeros(len(x), x.shape[1], x.shape[1])
    for b in range(len(x)):
        for i in range(x.shape[1]):
            rules = [[True] * x.shape[1]]
            if valid_lens is not None:
                rules.append([(j < int(valid_lens[b])) == polarity for j in range(x.shape[1])])
            if is_causal:
                rules.append([j <= i for j in range(x.shape[1])])
            rules = rules[1:] or rules
            seen = torch.tensor([join(column) for column in zip(*rules, strict=True)])
            scores = x[b] @ x[b, i] / (math.sqrt(x.shape[2]) if scale else 1.0)
            if fill is not None:
                weights[b, i] = torch.where(seen, scores, fill).softmax(0)
            elif seen.any():
                weights[b, i, seen] = scores[seen].softmax(0)
            outputs[b, i] = weights[b, i] @ x[b]
    return outputs, weights


def with_options(**options):
    return lambda x, valid_lens=None, is_causal=False: attention(x, valid_lens, is_causal, **options)


def distances(query, key, bandwidth=1.0, *, centre=True, factor=2.0):
    if centre:
        middle = torch.cat((query, key)).mean(0)
        query, key = query - middle, key - middle
    squares = (query**2).sum(1, keepdim=True) + (key**2).sum(1) - factor * (query @ key.mT)
    return -0.5 * squares / bandwidth**2


def one_by_one(query, key, bandwidth=1.0):
    return -((query.unsqueeze(1) - key) ** 2).sum(-1) / bandwidth**2 / 2


ANSWERS = [
    ("check_left_lens_mask", left, None),
    ("check_left_lens_mask", left_without_axis, "the lengths have no axis for the keys"),
    ("check_left_lens_mask", left_strict, "one key too few is visible"),
    ("check_left_lens_mask", lambda n, k: left(n, k).flip(-1), "the first keys are visible"),
    ("check_left_lens_mask", lambda n, k: ~left(n, k), "the mask is inverted"),
    (
        "check_left_lens_mask",
        lambda n, k: left(n, k)[:, 0] if n.ndim == 1 else left(n, k),
        "with one length for each sample, the axis of the queries is missing",
    ),
    ("check_triangle", triangle, None),
    ("check_triangle", lambda q, k: torch.ones(q, k).tril().bool(), "the triangle starts at the first key"),
    ("check_triangle", lambda q, k: torch.ones(q, k).tril(k - q) > 0, None),
    ("check_triangle", lambda q, k: torch.ones(q, k).tril(k - q), "the mask holds numbers"),
    ("check_triangle", lambda q, k: torch.ones(q, k).tril(q - k).bool(), "the diagonal moves the wrong way"),
    ("check_triangle", lambda q, k: torch.ones(q, k).tril(k - q - 1).bool(), "no query sees its own key"),
    (
        "check_triangle",
        lambda q, k: torch.ones(q, k).triu(k - q).bool(),
        "the mask shows the future and hides the past",
    ),
    ("check_score_moments", moments, None),
    (
        "check_score_moments",
        lambda *a: (*moments(*a)[:2], moments(*a)[1] ** 0.5),
        "the divisor is the square root of the full variance",
    ),
    (
        "check_score_moments",
        lambda d, *a: (*moments(d, *a)[:2], d**0.5),
        "the divisor is the square root of the width",
    ),
    (
        "check_score_moments",
        lambda d, m, n, s, t: (moments(d, m, n, s, t)[0], d * s**2 * t**2, moments(d, m, n, s, t)[2]),
        "the variance leaves out the means",
    ),
    ("check_three_masks", three, None),
    (
        "check_three_masks",
        lambda n, length, window: torch.stack(
            [
                (torch.arange(length)[:, None] - torch.arange(length) < window)
                | torch.ones(length, length).tril().bool()
                | (torch.arange(length) < one)
                for one in n
            ]
        ),
        'the rules are joined by "or"',
    ),
    ("check_three_masks", lambda n, length, w: three(n, length, w + 1), "the window is one key too wide"),
    ("check_three_masks", lambda n, length, w: three(n, length, length), "there is no window"),
    (
        "check_three_masks",
        lambda n, length, w: (
            (torch.arange(length)[:, None] - torch.arange(length) < w)
            & (torch.arange(length) < n[:, None, None])
        ),
        "the future is visible",
    ),
    ("check_repaired", attention, None),
    ("check_repaired", with_options(fill=-torch.inf), "a sample that is all padding gives NaN"),
    ("check_repaired", with_options(fill=-1e30), "a sample that is all padding attends to all of it"),
    ("check_repaired", with_options(polarity=False), "the tokens are hidden and the padding is seen"),
    ("check_repaired", with_options(join=any), 'lengths and causal mask are joined by "or"'),
    ("check_repaired", with_options(scale=False), "the scores are not scaled"),
    ("check_repaired", lambda x, lens=None, causal=False: attention(x, lens), "`is_causal` is ignored"),
    ("check_bilinear_matrix", lambda a, b: (torch.einsum("ir,jr->ij", a, b), min(*a.shape, len(b))), None),
    ("check_bilinear_matrix", lambda a, b: (b @ a.T, min(*a.shape, len(b))), "W is transposed"),
    (
        "check_bilinear_matrix",
        lambda a, b: (a @ b.T, b.shape[1]),
        "the highest rank is r, even where r is larger than a width",
    ),
    (
        "check_bilinear_matrix",
        lambda a, b: (a @ b.T, torch.linalg.matrix_rank(torch.eye(99)[: len(a), : len(b)])),
        "the highest rank is that of any matrix of this shape",
    ),
    ("check_distance_score", distances, None),
    (
        "check_distance_score",
        lambda q, k, bandwidth=1.0: distances(q, k, bandwidth, centre=False),
        "the scores are right around 0, but wrong around 1000",
    ),
    ("check_distance_score", one_by_one, "the scores are right, but all differences are built"),
    (
        "check_distance_score",
        lambda q, k, bandwidth=1.0: distances(q, k, bandwidth, centre=False, factor=1.0),
        "the dot product is not doubled",
    ),
    ("check_distance_score", lambda q, k, b=1.0: distances(q, k), "the bandwidth is ignored"),
    ("check_distance_score", lambda q, k, b=1.0: q @ k.T / b**2, "the squares are missing"),
]


@pytest.mark.parametrize(
    ("name", "answer", "problem"), ANSWERS, ids=[f"{n}-{p or 'right'}" for n, _, p in ANSWERS]
)
def test_an_answer_gets_its_verdict(name, answer, problem):
    verdict = getattr(exercises, name)(answer)
    assert verdict.right == (problem is None), verdict
    assert verdict.message.startswith(f"Not yet: {problem}. " if problem else "Right in "), verdict


@pytest.mark.parametrize("name", NAMES[1:])
def test_each_checker_is_sound(name):
    check = getattr(exercises, name)
    assert check.audit() == []
    assert len({wrong.name for wrong in check.wrong}) >= 3
    assert not check(lambda *_, **__: None)


def test_the_page_has_these_exercises():
    assert checkers_of(STEM) == NAMES
