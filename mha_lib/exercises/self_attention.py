"""Checkers for the exercises on self-attention (chapter 4).

Each is an `Exercise`: called with the reader's function, it shows a sentence.
"""

# A wrong answer has the signature of the right one, and often ignores an argument.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mha_lib.attention import dot_product_attention
from mha_lib.exercises.engine import Exercise, Wrong, randn
from mha_lib.masking import causal_mask
from mha_lib.multi_head import MultiHeadAttention

Layer = Callable[[Tensor], Tensor]

# ------------------------------------------------------------------ shapes of cross-attention


def _shapes(
    batch: int, source: int, target: int, width: int, heads: int
) -> tuple[Any, ...]:
    return (batch, target, width), (batch, heads, target, source), 3


check_cross_shapes = Exercise(
    reference=_shapes,
    accept=[lambda *sizes: (*_shapes(*sizes)[:2], -1)],
    returns=("shape of the output", "shape of the weights", "axis that is masked"),
    cases={
        "the sizes of the task": lambda _: (3, 7, 5, 24, 4),
        "3 heads and a source of 11 tokens": lambda _: (2, 11, 13, 15, 3),
    },
    wrong=(
        Wrong(
            "the lengths are taken to count queries",
            "A length says how many keys of a sample are real. Keys are the last axis of the weights.",
            lambda *sizes: (*_shapes(*sizes)[:2], 2),
        ),
        Wrong(
            "the lengths are taken to count samples",
            "There is one length for each sample, and it says how many keys of this sample are real.",
            lambda *sizes: (*_shapes(*sizes)[:2], 0),
        ),
        Wrong(
            "the output is as long as the source",
            "There is one output for each query, and the queries are the target.",
            lambda b, s, t, d, h: ((b, s, d), (b, h, t, s), 3),
        ),
        Wrong(
            "queries and keys are exchanged in the weights",
            "Each query has a row of weights, with one column for each key: (..., target, source).",
            lambda b, s, t, d, h: ((b, t, d), (b, h, s, t), 3),
        ),
        Wrong(
            "the weights have no axis for the heads",
            "Each head has weights of its own: axis 1 counts the heads.",
            lambda b, s, t, d, h: ((b, t, d), (b, t, s), 3),
        ),
        Wrong(
            "the output has the width of a head",
            "The heads are joined again, and the output projection keeps the width.",
            lambda b, s, t, d, h: ((b, t, d // h), (b, h, t, s), 3),
        ),
    ),
)


# ------------------------------------------------------------------ costs


def _below(difference: float) -> float:
    return max(difference, 0)


check_cost_borders = Exercise(
    reference=lambda d, k: (2 * d, _below((k - 4) * d / 2)),
    returns=("border of the projections", "border of the convolution"),
    cases={
        "d = 2 and k = 7": lambda _: (2, 7),
        "d = 13 and k = 3": lambda _: (13, 3),
        "d = 10 and k = 11": lambda _: (10, 11),
    },
    wrong=(
        Wrong(
            "the second border does not count the projections",
            "The whole layer makes 2n²d + 4nd² multiplications: the 4 must appear.",
            lambda d, k: (2 * d, k * d / 2),
        ),
        Wrong(
            "the second border lacks the factor 2 of the attention part",
            "Both the scores and the mixing of values make n²d multiplications.",
            lambda d, k: (2 * d, _below((k - 4) * d)),
        ),
        Wrong(
            "the second border counts three projections",
            "There are four: queries, keys, values and the output.",
            lambda d, k: (2 * d, _below((k - 3) * d / 2)),
        ),
        Wrong(
            "the second border is negative for small kernels",
            "For k <= 4 attention is never the cheaper one. Return 0 then.",
            lambda d, k: (2 * d, (k - 4) * d / 2),
        ),
        Wrong(
            "the first border is upside down",
            "2n²d > 4nd² means n > 2d: divide both sides by 2nd.",
            lambda d, k: (d / 2, _below((k - 4) * d / 2)),
        ),
        Wrong(
            "the first border lacks the factor 2",
            "The square has the factor 2 and the projections the factor 4: their ratio is 2.",
            lambda d, k: (d, _below((k - 4) * d / 2)),
        ),
    ),
)


# ------------------------------------------------------------------ leaks


def _attend(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    output: Tensor = layer(x, x, x, mask)[0]
    return output


def _recurrence(linear: nn.Module, x: Tensor) -> Tensor:
    state, states = torch.zeros_like(x[:, 0]), []
    for token in x.unbind(1):
        state = torch.tanh(token + linear(state))
        states.append(state)
    return torch.stack(states, 1)


def _layer_case(
    make: Callable[[Any, Any, Tensor], Layer],
) -> Callable[[torch.Generator], tuple[Layer, Tensor]]:
    """A case: make(first layer, second layer, causal mask) is what the detector looks at."""

    def case(g: torch.Generator) -> tuple[Layer, Tensor]:
        first, second = MultiHeadAttention(6, 2), MultiHeadAttention(6, 2)
        return make(first, second, causal_mask(5)), randn(g, 1, 5, 6)

    return case


def _recurrent_case(g: torch.Generator) -> tuple[Layer, Tensor]:
    linear = nn.Linear(2, 2)
    return lambda x: _recurrence(linear, x), randn(g, 1, 7, 2)


def _changes(layer: Layer, x: Tensor, start: int, stop: int) -> Tensor:
    """How far each output moves when the inputs from `start` up to `stop` change: (n,)."""
    other = x.detach().clone()
    other[:, start:stop] = 1 - 2 * other[:, start:stop]
    with torch.no_grad():
        return (layer(other) - layer(x)).abs().amax((0, 2))


def _leaks(layer: Layer, x: Tensor) -> bool:
    n = x.shape[1]
    return any(bool((_changes(layer, x, i, n)[:i] > 1e-6).any()) for i in range(1, n))


def _moved_by_the_past(layer: Layer, x: Tensor) -> bool:
    n = x.shape[1]
    return any(bool((_changes(layer, x, 0, i)[i:] > 1e-6).any()) for i in range(1, n))


def _constant_input(layer: Layer, x: Tensor) -> bool:
    with torch.no_grad():
        y = layer(torch.ones_like(x))
    return bool((y[:, 0] - y[:, -1]).abs().max() > 1e-6)


check_leak_detector = Exercise(
    reference=_leaks,
    returns="leaks",
    cases={
        "a causal layer": _layer_case(lambda a, b, mask: lambda x: _attend(a, x, mask)),
        "two causal layers": _layer_case(
            lambda a, b, mask: lambda x: _attend(b, x + _attend(a, x, mask), mask)
        ),
        "a recurrent layer": _recurrent_case,
        "an inverted mask": _layer_case(
            lambda a, b, mask: lambda x: _attend(a, x, ~mask)
        ),
        "no mask": _layer_case(lambda a, b, mask: lambda x: _attend(a, x)),
        "a mask that is one place off": _layer_case(
            lambda a, b, mask: lambda x: _attend(a, x, torch.ones_like(mask).tril(1))
        ),
        "a leak in the second layer": _layer_case(
            lambda a, b, mask: lambda x: _attend(b, _attend(a, x, mask))
        ),
        "a norm over the tokens": _layer_case(
            lambda a, b, mask: lambda x: _attend(a, x - x.mean(1, keepdim=True), mask)
        ),
    },
    wrong=(
        Wrong(
            "it never reports a leak",
            "Shapes show nothing, and a coarse tolerance misses leaks. Change a later input (or take a "
            "derivative), and ask whether an earlier output moves by more than rounding errors.",
            lambda layer, x: False,
        ),
        Wrong(
            "it reports a leak for every layer",
            "The output of a changed token may change, and so may the later ones. Compare only outputs "
            "before the first changed token.",
            lambda layer, x: True,
        ),
        Wrong(
            "it misses a mask that is one place off",
            "Such a mask shows a token its next neighbour and nothing behind it. Look at every pair of an "
            "output and a later input: `triu(1)`, not the corner alone.",
            lambda layer, x: bool(_changes(layer, x, x.shape[1] - 1, x.shape[1])[0] > 1e-6),
        ),
        Wrong(
            "it looks at the past",
            "An output may depend on earlier tokens. In a map (output, input) the future stands above the "
            "diagonal: `triu(1)`.",
            _moved_by_the_past,
        ),
        Wrong(
            "it looks at equal tokens",
            "Means of equal values are equal, whatever the mask. Use the given `x`, whose tokens differ.",
            _constant_input,
        ),
    ),
)  # fmt: skip


# ------------------------------------------------------------------ a mask and an order


def _mask_and_order(*order: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda _: (causal_mask(len(order)), torch.tensor(order))


check_permuted_mask = Exercise(
    reference=lambda mask, order: mask[order][:, order],
    returns="mask (n, n)",
    cases={
        "3 tokens": _mask_and_order(1, 2, 0),
        "5 tokens": _mask_and_order(3, 0, 4, 1, 2),
        "7 tokens and a random mask": lambda g: (
            randn(g, 7, 7) > 0,
            torch.tensor([2, 5, 0, 6, 1, 3, 4]),
        ),
    },
    wrong=(
        Wrong(
            "the mask stays as it is",
            "It is applied at fixed places of the scores, and after the permutation other scores stand "
            "there.",
            lambda mask, order: mask,
        ),
        Wrong(
            "only the rows are permuted",
            "Every token is both query and key: permute the columns too.",
            lambda mask, order: mask[order],
        ),
        Wrong(
            "only the columns are permuted",
            "Every token is both query and key: permute the rows too.",
            lambda mask, order: mask[:, order],
        ),
        Wrong(
            "the permutation is inverted",
            "Token `order[i]` moves to place i, so row i of the new mask is row `order[i]` of the old one.",
            lambda mask, order: mask[order.argsort()][:, order.argsort()],
        ),
        Wrong(
            "the mask is transposed",
            "Rows stay queries and columns stay keys: the mask becomes `P C Pᵀ`.",
            lambda mask, order: mask[order][:, order].T,
        ),
    ),
)


# ------------------------------------------------------------------ a local window


def _window(n: int, r: int, *, before: int = 1, ahead: int = 0) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(before - r).tril(ahead)


def _depth(n: int, r: int) -> int:
    return math.ceil((n - 1) / (r - 1))


check_local_window = Exercise(
    reference=lambda n, r: (_window(n, r), _depth(n, r)),
    returns=("mask (n, n)", "number of layers"),
    cases={
        "n = 5 and r = 2": lambda _: (5, 2),
        "n = 7 and r = 3": lambda _: (7, 3),
        "n = 23 and r = 5": lambda _: (23, 5),
    },
    wrong=(
        Wrong(
            "the number of layers is n / r",
            "Each layer adds r - 1 places, not r: the token itself uses up one. And the first token is "
            "only n - 1 places away.",
            lambda n, r: (_window(n, r), math.ceil(n / r)),
        ),
        Wrong(
            "the number of layers is (n - 1) / r",
            "Each layer adds r - 1 places, not r: the token itself uses up one.",
            lambda n, r: (_window(n, r), math.ceil((n - 1) / r)),
        ),
        Wrong(
            "the number of layers is rounded down",
            "A layer that reaches only a part of the way is needed too: round up.",
            lambda n, r: (_window(n, r), (n - 1) // (r - 1)),
        ),
        Wrong(
            "the window holds r tokens besides the token itself",
            "It sees itself and r - 1 others, r in all: `triu(1 - r)`.",
            lambda n, r: (_window(n, r, before=0), _depth(n, r)),
        ),
        Wrong(
            "the window leaves out the token itself",
            "The diagonal is True: a token sees itself.",
            lambda n, r: (_window(n, r, ahead=-1), _depth(n, r)),
        ),
        Wrong(
            "the window has no end towards the future",
            "Intersect it with the causal mask.",
            lambda n, r: (_window(n, r, ahead=n), _depth(n, r)),
        ),
        Wrong(
            "the window reaches to both sides",
            "A token sees nothing after itself: intersect the band with the causal mask.",
            lambda n, r: (_window(n, r, ahead=r - 1), _depth(n, r)),
        ),
        Wrong(
            "the window lies in the future",
            "Rows are queries. Row i is True at the columns i - r + 1 to i.",
            lambda n, r: (_window(n, r).T, _depth(n, r)),
        ),
    ),
)


# ------------------------------------------------------------------ one token at a time


def _count_keys(answer: Callable[..., Any], layer: Any, x: Tensor) -> Any:
    """The outputs, and how many tokens each call of `k_proj` projects."""
    calls: list[int] = []
    hook = layer.k_proj.register_forward_hook(
        lambda module, inputs, output: calls.append(inputs[0].shape[1])
    )
    try:
        outputs = answer(layer, x)
    finally:
        hook.remove()
    if outputs is None:
        return None
    # Who multiplies by `layer.k_proj.weight` makes no call: then only the outputs count.
    return outputs, torch.tensor(calls or [1] * x.shape[1])


def _steps(
    layer: Any,
    x: Tensor,
    *,
    cached: bool = True,
    heads: int | None = None,
    project: bool = True,
) -> Tensor:
    """One token after the other; the keyword arguments are mistakes."""
    heads = layer.num_heads if heads is None else heads
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs = []

    def split(tokens: Tensor) -> Tensor:
        return torch.stack(tokens.chunk(heads, dim=-1), dim=1)

    for token in x.split(1, dim=1):
        if not cached:
            keys, values = [], []
        keys.append(split(layer.k_proj(token)))
        values.append(split(layer.v_proj(token)))
        mixed, _ = dot_product_attention(
            split(layer.q_proj(token)), torch.cat(keys, 2), torch.cat(values, 2)
        )
        merged = mixed.transpose(1, 2).flatten(2)
        outputs.append(layer.out_proj(merged) if project else merged)
    return torch.cat(outputs, 1)


def _again(layer: Any, x: Tensor) -> Tensor:
    outputs = []
    for end in range(1, x.shape[1] + 1):
        seen = x[:, :end]
        outputs.append(layer(seen, seen, seen, is_causal=True)[0][:, -1:])
    return torch.cat(outputs, 1)


def _outputs_kept(layer: Any, x: Tensor) -> Tensor:
    outputs: list[Tensor] = []
    for token in x.split(1, dim=1):
        memory = torch.cat((*outputs, token), 1)
        outputs.append(layer(token, memory, memory)[0])
    return torch.cat(outputs, 1)


def _at_once(layer: Any, x: Tensor) -> Tensor:
    output: Tensor = layer(x, x, x, is_causal=True)[0]
    return output


def _stream(
    heads: int, width: int, batch: int, length: int
) -> Callable[[torch.Generator], tuple[Any, Tensor]]:
    return lambda g: (
        MultiHeadAttention(width, heads).requires_grad_(False),
        randn(g, batch, length, width),
    )


check_one_by_one = Exercise(
    reference=_steps,
    run=_count_keys,
    returns=("outputs (batch, len, embed_dim)", "tokens per call of `k_proj`"),
    cases={
        "3 heads and 5 tokens": _stream(3, 6, 2, 5),
        "2 heads and 7 tokens": _stream(2, 22, 3, 7),
    },
    wrong=(
        Wrong(
            "the whole layer runs again for each token",
            "The outputs are right, but the keys of earlier tokens are computed again and again. Keep "
            "them, and project only the new token.",
            _again,
        ),
        Wrong(
            "the parallel layer does it all at once",
            "The outputs are right, but at inference time the later tokens do not exist yet. Write the "
            "loop.",
            _at_once,
        ),
        Wrong(
            "earlier keys and values are forgotten",
            "Each token attends to itself alone. Append the new key and value to those of all earlier "
            "tokens.",
            lambda layer, x: _steps(layer, x, cached=False),
        ),
        Wrong(
            "the outputs of earlier steps are kept",
            "Attention has no state: keep the keys and values of the tokens themselves.",
            _outputs_kept,
        ),
        Wrong(
            "there is one wide head",
            "Keys, values and queries must be cut into heads: `layer.split_heads`.",
            lambda layer, x: _steps(layer, x, heads=1),
        ),
        Wrong(
            "the output projection is missing",
            "After `merge_heads` the layer applies `out_proj`.",
            lambda layer, x: _steps(layer, x, project=False),
        ),
        Wrong(
            "each token sees the later ones",
            "Ask with a query before the next key is added: the future has no key yet.",
            lambda layer, x: layer(x, x, x)[0],
        ),
    ),
)


# ------------------------------------------------------------------ how much tokens differ


check_spread = Exercise(
    reference=lambda x: (x - x.mean(1, keepdim=True)).norm() / x.norm(),
    returns="spread",
    cases={
        "5 tokens": lambda g: randn(g, 1, 5, 3) + 0.5,
        "11 tokens": lambda g: 3 * randn(g, 1, 11, 7) - 1,
    },
    wrong=(
        Wrong(
            "the mean is taken within each token",
            "The mean of the tokens is a vector: average over axis 1, which counts them.",
            lambda x: (x - x.mean(-1, keepdim=True)).norm() / x.norm(),
        ),
        Wrong(
            "the mean is taken over all numbers",
            "The mean of the tokens is a vector, not a number: average over axis 1 alone.",
            lambda x: (x - x.mean()).norm() / x.norm(),
        ),
        Wrong(
            "it is not divided by the length of X",
            "Without the division, tokens that shrink look as if they became equal.",
            lambda x: (x - x.mean(1, keepdim=True)).norm(),
        ),
        Wrong(
            "it is the square",
            "The ratio of the lengths is asked for, not that of the squared lengths.",
            lambda x: ((x - x.mean(1, keepdim=True)).norm() / x.norm()) ** 2,
        ),
        Wrong(
            "it is the share of the mean",
            "Subtract the mean from each row first: what remains is how the tokens differ.",
            lambda x: x.mean(1, keepdim=True).expand_as(x).norm() / x.norm(),
        ),
    ),
)


# ------------------------------------------------------------------ an induction head


def _known_letters(answer: Callable[..., Any], tokens: Tensor, num_letters: int) -> Any:
    """The predictions where the letter has occurred before; elsewhere -1."""
    letters = answer(tokens, num_letters)
    if letters is None:
        return None
    letters = torch.as_tensor(letters)
    same = tokens[:, :, None] == tokens[:, None]
    known = same.tril(-1).any(-1)
    return letters.where(known, -1) if letters.shape == tokens.shape else letters


def _two_layers(
    tokens: Tensor,
    num_letters: int,
    *,
    back: int = 1,
    ask: str = "own",
    key: str = "previous",
) -> Tensor:
    """Layer 1 fetches the letter `back` places before, layer 2 compares two of the letters."""
    own = nn.functional.one_hot(tokens, num_letters).float()
    previous = torch.zeros_like(own)
    previous[:, back:] = own[:, :-back]
    letters = {"own": own, "previous": previous}
    found, _ = dot_product_attention(50 * letters[ask], letters[key], own, is_causal=True)  # fmt: skip
    return found.argmax(-1)


def _repeated(
    batch: int, length: int, period: int, num_letters: int
) -> Callable[[torch.Generator], tuple[Tensor, int]]:
    def make(g: torch.Generator) -> tuple[Tensor, int]:
        letters = torch.rand(batch, num_letters, generator=g).argsort(-1)
        return letters[:, torch.arange(length) % period], num_letters

    return make


check_induction_head = Exercise(
    reference=_two_layers,
    run=_known_letters,
    returns="letters (batch, len)",
    cases={
        "a period of 5": _repeated(3, 11, 5, 7),
        "a period of 7": _repeated(2, 19, 7, 13),
    },
    wrong=(
        Wrong(
            "layer 2 fetches the letter itself",
            "It matches the current letter with equal letters. The keys must hold the letter before, "
            "so that the match is one place after the earlier copy.",
            lambda tokens, n: _two_layers(tokens, n, key="own"),
        ),
        Wrong(
            "layer 2 fetches the letter before",
            "Query and key are exchanged: the query is the current letter, the key the previous one.",
            lambda tokens, n: _two_layers(tokens, n, ask="previous", key="own"),
        ),
        Wrong(
            "it skips a letter",
            "Layer 1 looks two places back. Its query names the place directly before.",
            lambda tokens, n: _two_layers(tokens, n, back=2),
        ),
    ),
)
