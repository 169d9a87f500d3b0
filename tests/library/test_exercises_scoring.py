"""Chapter 2: right answers written in another way are accepted, and mistakes in unusual code are named."""

import torch
from exercise_cells import judges

# None marks a right answer; otherwise the verdict begins with the text.


def left(valid_lens, k_len):
    rows = []
    for lens in valid_lens.tolist():
        of_sample = [[False] * (k_len - n) + [True] * n for n in (lens if isinstance(lens, list) else [lens])]
        rows.append(of_sample)
    return torch.tensor(rows)


def triangle(q_len, k_len):
    return [[j - i <= k_len - q_len for j in range(k_len)] for i in range(q_len)]


def moments(d, mu_q, mu_k, sigma_q, sigma_k):
    """By adding up expectations, term by term."""
    second = (sigma_q**2 + mu_q**2) * (sigma_k**2 + mu_k**2)
    return mu_q * mu_k * d, d * second - d * mu_q**2 * mu_k**2, sigma_k * (d * (sigma_q**2 + mu_q**2)) ** 0.5


def three(valid_lens, length, window):
    places = range(length)
    near = [[0 <= i - j < window for j in places] for i in places]
    return torch.tensor([[[j < n and row[j] for j in places] for row in near] for n in valid_lens.tolist()])


def attention(x, valid_lens=None, is_causal=False, *, fill=None, join=all):
    """A loop over samples and queries; with `fill`, hidden scores are filled and nothing else is done."""
    outputs = torch.zeros_like(x)
    weights = torch.zeros(len(x), x.shape[1], x.shape[1])
    for b in range(len(x)):
        for i in range(x.shape[1]):
            rules = [[True] * x.shape[1]]
            if valid_lens is not None:
                rules.append([j < int(valid_lens[b]) for j in range(x.shape[1])])
            if is_causal:
                rules.append([j <= i for j in range(x.shape[1])])
            rules = rules[1:] or rules
            seen = torch.tensor([join(column) for column in zip(*rules, strict=True)])
            scores = x[b] @ x[b, i] / x.shape[2] ** 0.5
            if fill is not None:
                weights[b, i] = torch.where(seen, scores, fill).softmax(0)
            elif seen.any():
                weights[b, i, seen] = scores[seen].softmax(0)
            outputs[b, i] = weights[b, i] @ x[b]
    return outputs, weights


def with_options(**options):
    return lambda x, valid_lens=None, is_causal=False: attention(x, valid_lens, is_causal, **options)


def distances(query, key, bandwidth=1.0, *, centre=True):
    if centre:
        middle = torch.cat((query, key)).mean(0)
        query, key = query - middle, key - middle
    squares = (query**2).sum(1, keepdim=True) + (key**2).sum(1) - 2 * (query @ key.mT)
    return -0.5 * squares / bandwidth**2


def one_by_one(query, key, bandwidth=1.0):
    return -((query.unsqueeze(1) - key) ** 2).sum(-1) / bandwidth**2 / 2


ANSWERS = [
    ("check_left_lens_mask", left, None),
    ("check_triangle", triangle, None),
    ("check_triangle", lambda q, k: torch.ones(q, k).tril(k - q) > 0, None),
    ("check_score_moments", moments, None),
    ("check_three_masks", three, None),
    ("check_repaired", attention, None),
    ("check_repaired", with_options(fill=-torch.inf), "a sample that is all padding gives NaN"),
    ("check_repaired", with_options(fill=-1e30), "a sample that is all padding attends to all of it"),
    ("check_repaired", with_options(join=any), 'lengths and causal mask are joined by "or"'),
    ("check_bilinear_matrix", lambda a, b: (torch.einsum("ir,jr->ij", a, b), min(*a.shape, len(b))), None),
    (
        "check_bilinear_matrix",
        lambda a, b: (a @ b.T, torch.linalg.matrix_rank(torch.eye(99)[: len(a), : len(b)])),
        "the highest rank is that of any matrix of this shape",
    ),
    ("check_distance_score", distances, None),
    ("check_distance_score", lambda q, k, bandwidth=1.0: distances(q, k, bandwidth, centre=False),
     "the scores are right around 0, but wrong around 1000"),
    ("check_distance_score", one_by_one, "the scores are right, but all differences are built"),
]  # fmt: skip


test_an_answer_gets_its_verdict = judges(ANSWERS)
