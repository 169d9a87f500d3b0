"""The course's puzzles for `LineOrder`: code of the chapters, with faults that people really make.

Each entry of `PUZZLES` holds the arguments of a `LineOrder`, without its name. Its test compares the code
with the library; all sizes in it differ, so that no mistaken axis goes unnoticed.
"""

from __future__ import annotations

from typing import Any

from mha_lib.widgets.line_order import Distractor

_MASKED_SOFTMAX: dict[str, Any] = {
    "task": "The softmax over the keys that a mask shows (True = may attend). A query that sees no key "
    "gets zeros.",
    "lines": """
        def my_masked_softmax(scores, mask=None):
            if mask is None:
                return scores.softmax(-1)
            lowest = torch.finfo(scores.dtype).min
            shown = scores.masked_fill(~mask, lowest)
            weights = shown.softmax(-1)
            return weights * mask
        """,
    "distractors": [
        Distractor(
            "weights = shown.softmax(-2)",
            "weights = shown.softmax(-1)",
            "This softmax runs over the queries: the columns sum to 1, and the weights of a query do not.",
        ),
        Distractor(
            "weights = scores.softmax(-1)",
            "weights = shown.softmax(-1)",
            "Hidden keys then take part in the softmax, and if the mask comes after it, the weights of the "
            "visible "
            "keys no longer sum to 1.",
        ),
        Distractor(
            "shown = scores.masked_fill(mask, lowest)",
            "shown = scores.masked_fill(~mask, lowest)",
            "This mask is inverted: it hides exactly the keys that the query may see.",
        ),
        Distractor(
            "return weights",
            "return weights * mask",
            "A query that sees no key has equal scores, so its weight would be spread evenly over hidden "
            "keys.",
        ),
    ],
    # The smallest number may also be looked up first.
    "orders": [(1, 4, 2, 3, 5, 6, 7)],
    "test": """
from mha_lib import masked_softmax

generator = torch.Generator().manual_seed(0)
scores = torch.randn(2, 3, 5, generator=generator)
mask = torch.rand(2, 3, 5, generator=generator) > 0.4
mask[1, 2] = False
torch.testing.assert_close(my_masked_softmax(scores), masked_softmax(scores))
torch.testing.assert_close(my_masked_softmax(scores, mask), masked_softmax(scores, mask))
""",
}

_CAUSAL_MASK: dict[str, Any] = {
    "task": "The causal mask for `q_len` queries and `k_len` keys that end together: the last query sees "
    "every key.",
    "lines": """
        def my_causal_mask(q_len, k_len=None):
            if k_len is None:
                k_len = q_len
            everything = torch.ones(q_len, k_len, dtype=torch.bool)
            earlier = k_len - q_len
            return everything.tril(earlier)
        """,
    "distractors": [
        Distractor(
            "return everything.tril()",
            "return everything.tril(earlier)",
            "This triangle begins at the top left: with 2 queries and 4 keys, the last query would miss "
            "the two "
            "newest keys.",
        ),
        Distractor(
            "return everything.triu(earlier)",
            "return everything.tril(earlier)",
            "This is the other triangle: each query sees the future and not the past.",
        ),
        Distractor(
            "earlier = q_len - k_len",
            "earlier = k_len - q_len",
            "The sign is wrong: the more keys were there before, the fewer a query would see.",
        ),
        Distractor(
            "everything = torch.ones(k_len, q_len, dtype=torch.bool)",
            "everything = torch.ones(q_len, k_len, dtype=torch.bool)",
            "Queries belong in rows and keys in columns. Where there are as many queries as keys, nobody "
            "notices.",
        ),
    ],
    "orders": [(1, 2, 3, 5, 4, 6)],
    "test": """
from mha_lib import causal_mask

for q_len, k_len in ((2, 5), (5, 3), (3, 3), (1, 7)):
    assert torch.equal(my_causal_mask(q_len, k_len), causal_mask(q_len, k_len))
assert torch.equal(my_causal_mask(5), causal_mask(5))
""",
}

_CUT: dict[str, Any] = {
    "task": "Cut x, (batch, len, embed_dim), into heads, (batch, num_heads, len, head_dim).",
    "lines": """
        def split_heads(x, num_heads):
            batch, length, embed_dim = x.shape
            head_dim = embed_dim // num_heads
            x = x.view(batch, length, num_heads, head_dim)
            return x.transpose(1, 2)
        """,
    "distractors": [
        Distractor(
            "x = x.view(batch, num_heads, length, head_dim)",
            "x = x.view(batch, length, num_heads, head_dim)",
            "This view deals out whole tokens: a head would get a few tokens, cut into pieces, instead of "
            "some columns of every token.",
        ),
        Distractor(
            "return x",
            "return x.transpose(1, 2)",
            "Without the transpose, the heads stay behind the tokens, and attention would mix the heads of "
            "one token.",
        ),
        Distractor(
            "return x.transpose(-2, -1)",
            "return x.transpose(1, 2)",
            "This swaps the heads with their own columns; the token axis stays in front of both.",
        ),
    ],
    "test": """
from mha_lib import MultiHeadAttention

x = torch.arange(2 * 5 * 21).view(2, 5, 21)
assert torch.equal(split_heads(x, 3), MultiHeadAttention(21, 3).split_heads(x))
""",
}

_MERGE: dict[str, Any] = {
    "task": "Merge the heads of x, (batch, num_heads, len, head_dim), into tokens, (batch, len, embed_dim).",
    "lines": """
        def merge_heads(x):
            batch, num_heads, length, head_dim = x.shape
            embed_dim = num_heads * head_dim
            x = x.transpose(1, 2)
            return x.reshape(batch, length, embed_dim)
        """,
    "distractors": [
        Distractor(
            "x = x.contiguous()",
            "x = x.transpose(1, 2)",
            "Without the transpose, the numbers of several tokens of one head end up in one token, in the "
            "right shape.",
        ),
        Distractor(
            "batch, length, num_heads, head_dim = x.shape",
            "batch, num_heads, length, head_dim = x.shape",
            "Before the transpose, axis 1 counts the heads and axis 2 the tokens.",
        ),
        Distractor(
            "return x.sum(2)",
            "return x.reshape(batch, length, embed_dim)",
            "A sum mixes the heads and loses their number of columns; each head must keep columns of its "
            "own.",
        ),
    ],
    "orders": [(1, 2, 4, 3, 5)],
    "test": """
from mha_lib import MultiHeadAttention

x = torch.arange(2 * 3 * 5 * 7).view(2, 3, 5, 7)
assert torch.equal(merge_heads(x), MultiHeadAttention(21, 3).merge_heads(x))
""",
}

_FORWARD: dict[str, Any] = {
    "task": "The forward pass of the layer: project and cut, score, softmax, mix, merge and project. "
    "`split_heads`, "
    "`merge_heads` and `masked_softmax` are there.",
    "lines": """
        def forward(self, query, key, value, mask=None):
            q = split_heads(self.q_proj(query), self.num_heads)
            k = split_heads(self.k_proj(key), self.num_heads)
            v = split_heads(self.v_proj(value), self.num_heads)
            scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
            weights = masked_softmax(scores, mask)
            heads = weights @ v
            return self.out_proj(merge_heads(heads)), weights
        """,
    "distractors": [
        Distractor(
            "scores = q @ k.transpose(-2, -1) / sqrt(query.shape[-1])",
            "scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])",
            "`query` is still as wide as the model. The products run over head_dim columns only, so the "
            "scores "
            "become too small and the weights too flat.",
        ),
        Distractor(
            "v = split_heads(self.k_proj(value), self.num_heads)",
            "v = split_heads(self.v_proj(value), self.num_heads)",
            "This projects the values with the keys' matrix; `v_proj` is never trained. The shapes are the "
            "same, so nothing raises an error.",
        ),
        Distractor(
            "scores = q @ k / sqrt(q.shape[-1])",
            "scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])",
            "Without the transpose, the product does not pair each query with each key; mostly the shapes "
            "do not "
            "even fit.",
        ),
        Distractor(
            "return merge_heads(heads), weights",
            "return self.out_proj(merge_heads(heads)), weights",
            "Without the output projection, no head's result ever meets another's, and `out_proj` is never "
            "trained.",
        ),
    ],
    # Values may be projected anywhere before the mix; queries and keys, in either order, before the scores.
    "orders": [
        order
        for first, second in ((2, 3), (3, 2))
        for order in (
            (1, 4, first, second, 5, 6, 7, 8),
            (1, first, 4, second, 5, 6, 7, 8),
            (1, first, second, 4, 5, 6, 7, 8),
            (1, first, second, 5, 4, 6, 7, 8),
            (1, first, second, 5, 6, 4, 7, 8),
        )
        if order != tuple(range(1, 9))
    ],
    "test": """
from math import sqrt

from mha_lib import MultiHeadAttention, masked_softmax

generator = torch.Generator().manual_seed(0)
layer = MultiHeadAttention(21, 3)
for parameter in layer.parameters():
    parameter.data = torch.randn(parameter.shape, generator=generator) / 3
split_heads = lambda x, num_heads: layer.split_heads(x)
merge_heads = layer.merge_heads
query = torch.randn(2, 5, 21, generator=generator)
memory = torch.randn(2, 11, 21, generator=generator)
mask = torch.rand(2, 1, 5, 11, generator=generator) > 0.3
for actual, expected in zip(forward(layer, query, memory, memory, mask), layer(query, memory, memory, mask)):
    torch.testing.assert_close(actual, expected)
""",
}

_SINUSOIDS: dict[str, Any] = {
    "task": "The table of sinusoidal positions: column 2i holds sin(p · wᵢ) and column 2i + 1 cos(p · wᵢ) "
    "with "
    "wᵢ = base^(−2i / embed_dim).",
    "lines": """
        def sinusoids(num_positions, embed_dim, base=10_000.0):
            positions = torch.arange(num_positions).unsqueeze(-1)
            exponents = torch.arange(0, embed_dim, 2) / embed_dim
            angles = positions * base**-exponents
            table = torch.zeros(num_positions, embed_dim)
            table[:, 0::2] = angles.sin()
            table[:, 1::2] = angles.cos()
            return table
        """,
    "distractors": [
        Distractor(
            "table[:, 1::2] = angles.sin()",
            "table[:, 0::2] = angles.sin()",
            "The sines belong in the even columns. Here odd and even columns are swapped.",
        ),
        Distractor(
            "exponents = torch.arange(embed_dim // 2) / embed_dim",
            "exponents = torch.arange(0, embed_dim, 2) / embed_dim",
            "The exponent is 2i / embed_dim. With i / embed_dim, the slowest wave would turn about a "
            "hundred times "
            "too fast.",
        ),
        Distractor(
            "angles = positions * base**exponents",
            "angles = positions * base**-exponents",
            "Without the minus sign, the later columns turn faster and faster, up to thousands of radians "
            "per token.",
        ),
        Distractor(
            "positions = torch.arange(num_positions)",
            "positions = torch.arange(num_positions).unsqueeze(-1)",
            "Positions must be a column, one row each. As a flat list they are multiplied with the "
            "frequencies one "
            "by one, if the lengths fit at all.",
        ),
    ],
    # Angles need positions and exponents. The table may be made at any time before it is filled. Sines and
    # cosines are filled in in either order.
    "orders": [
        (1, *start[:place], 5, *start[place:], *end, 8)
        for start in ((2, 3, 4), (3, 2, 4))
        for place in (0, 1, 2, 3)
        for end in ((6, 7), (7, 6))
        if (*start, *end, place) != (2, 3, 4, 6, 7, 3)
    ],
    "test": """
from mha_lib import sinusoidal_encoding

torch.testing.assert_close(sinusoids(7, 10), sinusoidal_encoding(7, 10), atol=1e-5, rtol=1e-5)
expected = sinusoidal_encoding(5, 6, base=100.0)
torch.testing.assert_close(sinusoids(5, 6, 100.0), expected, atol=1e-5, rtol=1e-5)
""",
}

_ROTARY: dict[str, Any] = {
    "task": "Attention with rotary positions: each pair of neighbouring columns of queries and keys turns "
    "by its "
    "angle, (len, head_dim / 2).",
    "lines": """
        def rotary_attention(query, key, value, angles):
            cos, sin = angles.cos(), angles.sin()
            def rotate(x):
                first, second = x[..., 0::2], x[..., 1::2]
                pair = (first * cos - second * sin, first * sin + second * cos)
                return torch.stack(pair, dim=-1).flatten(-2)
            scores = rotate(query) @ rotate(key).transpose(-2, -1)
            weights = (scores / sqrt(query.shape[-1])).softmax(-1)
            return weights @ value
        """,
    "distractors": [
        Distractor(
            "return weights @ rotate(value)",
            "return weights @ value",
            "Only the scores need the distance. Rotated values would carry the angle of each key's own "
            "position into "
            "the output.",
        ),
        Distractor(
            "scores = rotate(query) @ key.transpose(-2, -1)",
            "scores = rotate(query) @ rotate(key).transpose(-2, -1)",
            "If only the queries turn, a score depends on where the query stands, and not on the distance "
            "to the key.",
        ),
        Distractor(
            "pair = (first * cos - second * sin, first * sin - second * cos)",
            "pair = (first * cos - second * sin, first * sin + second * cos)",
            "With this sign it is a reflection and no rotation: a score would depend on the sum of both "
            "positions.",
        ),
        Distractor(
            "first, second = x.chunk(2, dim=-1)",
            "first, second = x[..., 0::2], x[..., 1::2]",
            "This pairs columns that lie half a head apart, as GPT-NeoX does. Weights trained with "
            "neighbours as "
            "pairs are wrong for it, and nothing raises an error.",
        ),
    ],
    # The angles' cosines and sines may also be computed after the inner function.
    "orders": [(1, 3, 4, 5, 6, 2, 7, 8, 9)],
    "test": """
from math import sqrt

from mha_lib import apply_rotary, dot_product_attention, rotary_angles

generator = torch.Generator().manual_seed(0)
query, key, value = (torch.randn(2, 3, 5, 14, generator=generator) for _ in range(3))
angles = rotary_angles(5, 14)
turned = apply_rotary(query, angles), apply_rotary(key, angles)
expected, _ = dot_product_attention(*turned, value)
torch.testing.assert_close(rotary_attention(query, key, value, angles), expected)
""",
}

_CACHE: dict[str, Any] = {
    "task": "One step of decoding: project the new token, (1, width), append its key and value to the "
    "cache, and "
    "attend to everything in it.",
    "lines": """
        def decode_step(token, keys, values):
            query, key, value = token @ W_q, token @ W_k, token @ W_v
            keys = torch.cat((keys, key))
            values = torch.cat((values, value))
            scores = query @ keys.T / sqrt(keys.shape[-1])
            output = scores.softmax(-1) @ values
            return output, keys, values
        """,
    "distractors": [
        Distractor(
            "return output, key, value",
            "return output, keys, values",
            "The next step would get the key and value of one token only: nothing earlier stays in the "
            "cache.",
        ),
        Distractor(
            "values = torch.cat((value, values))",
            "values = torch.cat((values, value))",
            "The new value must go to the end, as the new key does. Here each weight falls on the value of "
            "another "
            "token.",
        ),
        Distractor(
            "output = scores.softmax(0) @ values",
            "output = scores.softmax(-1) @ values",
            "There is one query, so a softmax over the queries makes every weight 1: the output is a sum, "
            "not a mean.",
        ),
        Distractor(
            "scores = query @ key.T / sqrt(keys.shape[-1])",
            "scores = query @ keys.T / sqrt(keys.shape[-1])",
            "This scores the new key alone; the query must see every key in the cache.",
        ),
    ],
    # Keys must be there before the scores, values before the output.
    "orders": [(1, 2, 4, 3, 5, 6, 7), (1, 2, 3, 5, 4, 6, 7)],
    "test": """
from math import sqrt

from mha_lib import dot_product_attention

generator = torch.Generator().manual_seed(0)
x = torch.randn(5, 7, generator=generator)
W_q, W_k, W_v = (torch.randn(7, width, generator=generator) for width in (3, 3, 11))
expected, _ = dot_product_attention(
    *((x @ W)[None, None] for W in (W_q, W_k, W_v)), is_causal=True
)
keys, values, outputs = torch.empty(0, 3), torch.empty(0, 11), []
for token in x.split(1):
    output, keys, values = decode_step(token, keys, values)
    outputs.append(output)
torch.testing.assert_close(torch.cat(outputs), expected[0, 0])
torch.testing.assert_close(keys, x @ W_k)
""",
}

PUZZLES: dict[str, dict[str, Any]] = {
    "masked softmax": _MASKED_SOFTMAX,
    "causal mask": _CAUSAL_MASK,
    "cut into heads": _CUT,
    "merge the heads": _MERGE,
    "forward pass": _FORWARD,
    "sinusoids": _SINUSOIDS,
    "rotary": _ROTARY,
    "cache step": _CACHE,
}
"""The arguments of each puzzle by its name; `LineOrder.puzzle(name)` makes the widget."""
