"""Functions as readers write them: masked softmax, positions, rotation, cache; right ones and wrong ones.

Nothing here is taken from mha_lib: the checkers must recognise a mistake in code that they have never seen.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

LOWEST = torch.finfo(torch.float32).min

# --------------------------------------------------------------------------------
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


def zeroed_after(scores, mask):
    weights = torch.softmax(scores, dim=-1)
    weights = weights.clone()
    weights[~mask] = 0
    return weights


def renormalised(scores, mask):
    weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
    weights = weights / weights.sum(-1, keepdim=True)
    weights = torch.where(mask, weights, 0.0)
    return weights / torch.sum(weights, dim=-1, keepdim=True)


def one_shift(scores, mask):
    powers = torch.exp(scores - scores[mask].max()) * mask
    total = powers.sum(-1, keepdim=True)
    return torch.where(mask.any(-1, keepdim=True), powers / total, torch.zeros_like(powers))


def one_best(scores, mask):
    best = scores.masked_fill(~mask, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter(-1, best, 1.0) * mask


SOFTMAX_RIGHT = (filled_with_infinity, filled_with_the_lowest, by_hand, by_loops, added_lowest)
SOFTMAX_WRONG = {
    "the softmax runs over the queries": lambda s, m: (
        F.softmax(torch.where(m, s.float(), LOWEST), dim=1) * m
    ).to(s.dtype),
    "the softmax runs over the heads or samples": lambda s, m: (
        F.softmax(torch.where(m, s.float(), LOWEST), dim=0) * m
    ).to(s.dtype),
    "the mask is inverted": lambda s, m: F.softmax(s.masked_fill(m, -torch.inf), -1).masked_fill(m, 0),
    "the mask is not used": lambda s, m: s.log_softmax(-1).exp(),
    "the mask comes after the softmax": zeroed_after,
    "the weights are masked after the softmax and divided again": renormalised,
    "hidden scores are set to 0": lambda s, m: torch.softmax(torch.where(m, s, 0.0), -1),
    "hidden scores are set to 0, and their weights too": lambda s, m: torch.softmax(
        s.masked_fill(~m, 0), -1
    ).masked_fill(~m, 0),
    "the mask is added to the scores as 0 and 1": lambda s, m: F.softmax(m.to(s.dtype) + s, -1),
    "a query that sees nothing gets NaN": lambda s, m: torch.where(m, s, -math.inf).softmax(dim=-1),
    "a query that sees nothing gets equal weights": lambda s, m: (
        torch.where(m, s.float(), LOWEST).softmax(-1).to(s.dtype)
    ),
    "the hidden scores are filled with a number that is not low enough": lambda s, m: s.masked_fill(
        ~m, -10_000
    ).softmax(2),
    "the fill of -1e9 is too small": lambda s, m: s.masked_fill(~m, -1e9).softmax(-1),
    "the exponentials overflow or vanish": lambda s, m: (
        torch.exp(s) * m / torch.sum(torch.exp(s) * m, dim=-1, keepdim=True)
    ),
    "the largest of all scores is subtracted": one_shift,
    "the weights are not divided by their sum": lambda s, m: torch.exp(s).masked_fill(~m, 0),
    "the best key gets all the weight": one_best,
}
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

# --------------------------------------------------------------------------------
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


def fails_at_odd_widths(num_positions, embed_dim):
    table = torch.zeros(num_positions, embed_dim)
    positions = torch.arange(num_positions, dtype=torch.float32).reshape(-1, 1)
    angle = positions / torch.pow(10_000, torch.arange(0, embed_dim, 2) / embed_dim)
    table[:, 0::2], table[:, 1::2] = torch.sin(angle), torch.cos(angle)
    return table


def wavy(exponent, even=math.sin, odd=math.cos, first=0, base=10_000.0):
    """A table by loops with something changed."""
    return lambda n, d: torch.tensor(
        [
            [(odd if c % 2 else even)((p + first) * base ** -exponent(c, d)) for c in range(d)]
            for p in range(n)
        ]
    )


def pairwise(c, d):
    return 2 * (c // 2) / d


TABLE_RIGHT = (
    table_by_loops,
    table_by_slices,
    table_by_shifted_sines,
    table_in_numpy,
    table_of_complex_numbers,
)
TABLE_WRONG = {
    "odd widths are not covered": fails_at_odd_widths,
    "sine and cosine are swapped": wavy(pairwise, math.cos, math.sin),
    "the sines come first and then the cosines": lambda n, d: torch.cat(
        (table_by_loops(n, d)[:, ::2], table_by_loops(n, d)[:, 1::2]), dim=-1
    ),
    "the 2 in the exponent 2i / d is missing": wavy(lambda c, d: (c // 2) / d),
    "the frequency is computed from the column, not from the pair": wavy(lambda c, d: c / d),
    "the exponent is twice too large": wavy(lambda c, d: 2 * c / d),
    "the exponent is divided by d - 1": wavy(lambda c, d: 2 * (c // 2) / (d - 1) if d > 1 else 0),
    "the frequencies grow from column to column": wavy(lambda c, d: -pairwise(c, d)),
    "the positions start at 1": wavy(pairwise, first=1),
    "the base is 1,000": wavy(pairwise, base=1000.0),
    "all columns are sines": wavy(pairwise, odd=math.sin),
    "all columns are cosines": wavy(pairwise, even=math.cos),
    "the table holds the angles themselves": wavy(pairwise, float, float),
    "the axes are exchanged": lambda n, d: table_by_loops(n, d).T,
    "the sizes are exchanged": lambda n, d: table_by_loops(d, n),
    "all positions have the same row": lambda n, d: table_by_loops(2, d)[1].repeat(n, 1),
}
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
ADDED_WRONG = {
    "the encoding is added along the batch axis": lambda x: (
        x + table_by_loops(len(x), x.shape[-1])[:, None, :]
    ),
    "the table is returned without the tokens": lambda x: table_by_loops(*x.shape[1:]).repeat(len(x), 1, 1),
    "the tokens are multiplied by √d": lambda x: x * math.sqrt(x.shape[-1]) + table_by_loops(*x.shape[1:]),
    "nothing is added": lambda x: x.clone(),
    "sine and cosine are swapped": lambda x: x + wavy(pairwise, math.cos, math.sin)(*x.shape[1:]),
    "odd widths are not covered": lambda x: x + fails_at_odd_widths(*x.shape[1:]),
}

# --------------------------------------------------------------------------------
# Rotation


def turned_by_complex_numbers(x, angles):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.exp(1j * angles)).flatten(-2)


def turned_in_slices(x, angles):
    turned = torch.empty_like(x)
    a, b = x[..., ::2], x[..., 1::2]
    turned[..., ::2] = a * torch.cos(angles) - b * torch.sin(angles)
    turned[..., 1::2] = a * torch.sin(angles) + b * torch.cos(angles)
    return turned


def turned_by_repeating(x, angles):
    twice = angles.repeat_interleave(2, dim=-1)
    crossed = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)
    return x * twice.cos() + crossed * twice.sin()


def turned_by_matrices(x, angles):
    rows = torch.stack((angles.cos(), -angles.sin(), angles.sin(), angles.cos()), -1)
    matrices = rows.unflatten(-1, (2, 2))  # (len, pairs, 2, 2)
    return torch.einsum("...lpj,lpij->...lpi", x.unflatten(-1, (-1, 2)), matrices).flatten(-2)


def turned_column_by_column(x, angles):
    columns = []
    for i in range(x.shape[-1] // 2):
        cos, sin = angles[:, i].cos(), angles[:, i].sin()
        columns += [
            x[..., 2 * i] * cos - x[..., 2 * i + 1] * sin,
            x[..., 2 * i] * sin + x[..., 2 * i + 1] * cos,
        ]
    return torch.stack(columns, dim=-1)


def turned_halves(x, angles):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


def pairs(formula):
    """Each pair (a, b) becomes formula(a, b, cos, sin)."""

    def rotate(x, angles):
        columns = []
        for i in range(angles.shape[-1]):
            cos, sin = torch.cos(angles[:, i]), torch.sin(angles[:, i])
            columns += formula(x[..., 2 * i], x[..., 2 * i + 1], cos, sin)
        return torch.stack(columns, -1)

    return rotate


def overwritten(x, angles):
    y = x.clone()
    y[..., ::2] = y[..., ::2] * angles.cos() - y[..., 1::2] * angles.sin()
    y[..., 1::2] = y[..., ::2].clone() * angles.sin() + y[..., 1::2] * angles.cos()
    return y


def wrongly_repeated(x, angles):
    twice = torch.cat((angles, angles), dim=-1)
    crossed = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)
    return x * twice.cos() + crossed * twice.sin()


ROTARY_RIGHT = (
    turned_by_complex_numbers,
    turned_in_slices,
    turned_by_repeating,
    turned_by_matrices,
    turned_column_by_column,
)
ROTARY_WRONG = {
    "the columns of a pair lie half the width apart": turned_halves,
    "the rotation goes the other way": pairs(lambda a, b, c, s: (a * c + b * s, b * c - a * s)),
    "a minus sign is missing": pairs(lambda a, b, c, s: (a * c + b * s, a * s + b * c)),
    "both sines have a minus sign": pairs(lambda a, b, c, s: (a * c - b * s, b * c - a * s)),
    "cosine and sine are exchanged": pairs(lambda a, b, c, s: (a * s - b * c, a * c + b * s)),
    "the second entry uses the first one after its rotation": overwritten,
    "only the cosines are used": lambda x, angles: x * angles.cos().repeat_interleave(2, -1),
    "only the first entry of a pair is rotated": pairs(lambda a, b, c, s: (a * c - b * s, b)),
    "the result holds all first entries and then all second ones": lambda x, angles: torch.cat(
        turned_in_slices(x, angles).unflatten(-1, (-1, 2)).unbind(-1), -1
    ),
    "the angles are repeated in the wrong order": wrongly_repeated,
    "all pairs are rotated by the first angle": lambda x, angles: turned_in_slices(
        x, angles[:, :1].repeat(1, angles.shape[1])
    ),
    "all positions are rotated by the angles of the first one": lambda x, angles: turned_by_repeating(
        x, angles[0]
    ),
    "the angle is doubled": lambda x, angles: turned_in_slices(turned_in_slices(x, angles), angles),
    "the angles are taken as degrees": lambda x, angles: turned_in_slices(x, angles * math.pi / 180),
    "nothing is rotated": lambda x, angles: x.clone(),
}
ROTARY_UNKNOWN = {
    "a rotation keeps the length of each row": lambda x, angles: 1.1 * turned_in_slices(x, angles),
    "right for one pair, five pairs and large angles, wrong for a batch with heads": lambda x, angles: (
        turned_in_slices(x, angles) if x.ndim < 4 else turned_in_slices(x[:1].repeat(2, 1, 1, 1), angles)
    ),
    "but not the gradients, for one pair (x (3, 2), angles (3, 1)): no gradient reaches `angles`": (
        lambda x, angles: turned_in_slices(x, angles.detach())
    ),
}
HALVES_WRONG = {
    "the columns of a pair are neighbours": turned_in_slices,
    "the rotation goes the other way": lambda x, angles: turned_halves(x, -angles),
    "only the cosines are used": lambda x, angles: x * torch.cat((angles, angles), -1).cos(),
}

# --------------------------------------------------------------------------------
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


def decoder(
    *,
    late=False,
    keep=None,
    front=False,
    key_of=None,
    value_of=None,
    query_of=None,
    scale=None,
    weigh=None,
    finish=None,
):
    """The decoder of the page with one line changed."""

    def decode(x, q, k, v):
        keys, values, outputs = [], [], []
        for t, token in enumerate(x):
            key = token @ (key_of(q, k, v) if key_of else k)
            value = token @ v if value_of is None else value_of(token, k)
            if late and not keys:
                outputs.append(torch.zeros_like(value))
                keys.append(key)
                values.append(value)
                continue
            if not late:
                keys.append(key)
                values = [value, *values] if front else [*values, value]
            if keep:
                keys, values = keys[-keep:], values[-keep:]
            query = (token if query_of is None else query_of(x, t)) @ q
            root = scale(x, k, keys) if scale else k.shape[1] ** 0.5
            scores = torch.stack(keys) @ query / root
            weights = weigh(scores) if weigh else scores.softmax(0)
            outputs.append(weights @ torch.stack(values))
            if late:
                keys.append(key)
                values.append(value)
        return finish(outputs) if finish else torch.stack(outputs)

    return decode


def without_a_mask(x, q, k, v):
    return F.scaled_dot_product_attention(x @ q, x @ k, x @ v)


def with_empty_slots(x, q, k, v):
    keys, values, outputs = torch.zeros(len(x), k.shape[1]), torch.zeros(len(x), v.shape[1]), []
    for t, token in enumerate(x):
        keys, values = keys.clone(), values.clone()
        keys[t], values[t] = token @ k, token @ v
        outputs.append((keys @ (token @ q) / k.shape[1] ** 0.5).softmax(0) @ values)
    return torch.stack(outputs)


def never_emptied(x, q, k, v, keys=[], values=[]):  # noqa: B006, the mistake
    outputs = []
    for token in x:
        keys.append((token @ k).detach())
        values.append((token @ v).detach())
        outputs.append((torch.stack(keys) @ (token @ q) / k.shape[1] ** 0.5).softmax(0) @ torch.stack(values))
    return torch.stack(outputs)


CACHE_RIGHT = (
    decoded_from_lists,
    decoded_from_slots,
    decoded_by_concatenation,
    decoded_online,
    decoded_by_a_class,
)
CACHE_WRONG = {
    "every token sees all tokens": without_a_mask,
    "only the newest key is kept": decoder(keep=1),
    "the cache keeps only the last 4 tokens": decoder(keep=4),
    "a token does not see its own key": decoder(late=True),
    "keys and values are in different orders": decoder(front=True),
    "empty slots get weight": with_empty_slots,
    "all tokens use the query of the first one": decoder(query_of=lambda x, t: x[0]),
    "all tokens use the query of the last one": decoder(query_of=lambda x, t: x[-1]),
    "the keys are made with W_q": decoder(key_of=lambda q, k, v: q),
    "the values are the keys": decoder(value_of=lambda token, k: token @ k),
    "the values are not projected": decoder(value_of=lambda token, k: token),
    "the scores are not scaled": decoder(scale=lambda x, k, keys: 1.0),
    "the scores are divided by the root of the wrong width": decoder(
        scale=lambda x, k, keys: x.shape[-1] ** 0.5
    ),
    "the scores are divided by the root of the number of keys": decoder(
        scale=lambda x, k, keys: len(keys) ** 0.5
    ),
    "the scores are divided by the width of a key": decoder(scale=lambda x, k, keys: k.shape[1]),
    "the scores are not turned into weights": decoder(weigh=lambda scores: scores),
    "the weights do not add up to 1": decoder(weigh=torch.exp),
    "all keys have equal weights": decoder(weigh=lambda scores: torch.full_like(scores, 1 / len(scores))),
    "only the last output is returned": decoder(finish=lambda outputs: outputs[-1]),
    "the outputs are in reverse order": decoder(finish=lambda outputs: torch.stack(outputs[::-1])),
}
CACHE_UNKNOWN = {
    "or keep something from the call before": never_emptied,
    "the function returns None": decoder(finish=lambda outputs: None),
    "right for one token, wrong for two tokens (x (2, 7), W_q (7, 3), W_k (7, 3), W_v (7, 5))": decoder(
        weigh=lambda scores: scores.sigmoid() / scores.sigmoid().sum()
    ),
}
