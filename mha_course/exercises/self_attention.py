"""Checkers for the exercises on self-attention (chapter 4).

Each is an `Exercise`, which judges the reader's function in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_course._exercise import randn
from mha_course._sizes import Texts
from mha_lib.attention import dot_product_attention
from mha_lib.masking import causal_mask
from mha_lib.multi_head import MultiHeadAttention

exercise = Texts(__name__)

Layer = Callable[[Tensor], Tensor]

# ------------------------------------------------------------------ shapes of cross-attention


def _cross_shapes(
    batch: int, source_len: int, target_len: int, embed_dim: int, num_heads: int
) -> tuple[Any, ...]:
    output = (batch, target_len, embed_dim)
    weights = (batch, num_heads, target_len, source_len)
    return output, weights, 3


check_cross_shapes = exercise(
    "check_cross_shapes",
    reference=_cross_shapes,
    accept=[lambda *sizes: (*_cross_shapes(*sizes)[:2], -1)],
    returns=("shape of the output", "shape of the weights", "axis that is masked"),
)


# ------------------------------------------------------------------ costs


def _borders(d: int, k: int) -> tuple[float, float]:
    return 2 * d, max(0, (k - 4) * d / 2)


check_cost_borders = exercise(
    "check_cost_borders",
    reference=_borders,
    returns=("border of the projections", "border of the convolution"),
)


# ------------------------------------------------------------------ leaks


def _attend(layer: Any, x: Tensor, mask: Tensor | None = None, **options: Any) -> Any:
    return layer(x, x, x, mask, **options)[0]


def _recurrence(linear: nn.Module, x: Tensor) -> Tensor:
    state, states = torch.zeros_like(x[:, 0]), []
    for token in x.unbind(1):
        state = torch.tanh(token + linear(state))
        states.append(state)
    return torch.stack(states, 1)


def _layer_case(
    make: Callable[[Any, Any, Tensor], Layer],
) -> Callable[[torch.Generator], tuple[Layer, Tensor]]:
    """A case: the detector examines make(first layer, second layer, causal mask)."""

    def case(g: torch.Generator) -> tuple[Layer, Tensor]:
        first, second = MultiHeadAttention(6, 2), MultiHeadAttention(6, 2)
        return make(first, second, causal_mask(5)), randn(g, 1, 5, 6)

    return case


def _one_leak(output: int, source: int) -> Callable[..., tuple[Layer, Tensor]]:
    """A case: the mask is causal except for one output, which also sees one later input."""

    def make(first: Any, second: Any, mask: Tensor) -> Layer:
        leaky = mask.clone()
        leaky[output, source] = True
        return lambda x: _attend(first, x, leaky)

    return _layer_case(make)


def _recurrent_case(g: torch.Generator) -> tuple[Layer, Tensor]:
    linear = nn.Linear(2, 2)
    return lambda x: _recurrence(linear, x), randn(g, 1, 7, 2)


def _leaks(layer: Layer, x: Tensor) -> bool:
    for i in range(1, x.shape[1]):
        moved = layer(torch.cat((x[:, :i], 1 - 2 * x[:, i:]), dim=1)) - layer(x)
        if bool((moved[:, :i].abs() > 1e-6).any()):
            return True
    return False


check_leak_detector = exercise("check_leak_detector", reference=_leaks, returns="leaks")


# ------------------------------------------------------------------ a mask and an order


def _mask_and_order(*order: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda _: (causal_mask(len(order)), torch.tensor(order))


check_permuted_mask = exercise(
    "check_permuted_mask",
    reference=lambda mask, order: mask[order][:, order],
    returns="mask (n, n)",
)


# ------------------------------------------------------------------ a local window


def _local_window(n: int, r: int) -> tuple[Tensor, int]:
    return causal_mask(n).triu(1 - r), ceil((n - 1) / (r - 1))


check_local_window = exercise(
    "check_local_window",
    reference=_local_window,
    returns=("mask (n, n)", "number of layers"),
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
    # An answer that uses `layer.k_proj.weight` makes no call, so only its outputs count.
    return outputs, torch.tensor(calls or [1] * x.shape[1])


def _one_by_one(layer: Any, x: Tensor) -> Tensor:
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    for token in x.split(1, dim=1):
        query = layer.split_heads(layer.q_proj(token))
        keys.append(layer.split_heads(layer.k_proj(token)))
        values.append(layer.split_heads(layer.v_proj(token)))
        key, value = torch.cat(keys, dim=2), torch.cat(values, dim=2)
        heads, _ = dot_product_attention(query, key, value)
        outputs.append(layer.out_proj(layer.merge_heads(heads)))
    return torch.cat(outputs, dim=1)


def _stream(
    heads: int, width: int, batch: int, length: int
) -> Callable[[torch.Generator], tuple[Any, Tensor]]:
    return lambda g: (
        MultiHeadAttention(width, heads).requires_grad_(False),
        randn(g, batch, length, width),
    )


check_one_by_one = exercise(
    "check_one_by_one",
    reference=_one_by_one,
    run=_count_keys,
    returns=("outputs (batch, len, embed_dim)", "tokens per call of `k_proj`"),
)


# ------------------------------------------------------------------ how much tokens differ


check_spread = exercise(
    "check_spread",
    reference=lambda x: (x - x.mean(1, keepdim=True)).norm() / x.norm(),
    returns="spread",
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


def _induction_head(tokens: Tensor, num_letters: int) -> Tensor:
    own = F.one_hot(tokens, num_letters).float()
    previous = torch.cat((0 * own[:, :1], own[:, :-1]), dim=1)
    found, _ = dot_product_attention(50 * own, previous, own, is_causal=True)
    return found.argmax(-1)


def _repeated(
    batch: int, length: int, period: int, num_letters: int
) -> Callable[[torch.Generator], tuple[Tensor, int]]:
    def make(g: torch.Generator) -> tuple[Tensor, int]:
        letters = torch.rand(batch, num_letters, generator=g).argsort(-1)
        return letters[:, torch.arange(length) % period], num_letters

    return make


def _in_another_order(g: torch.Generator) -> tuple[Tensor, int]:
    """Letters and then the same ones in another order, so that what follows a letter is not what followed."""
    letters, num_letters = _repeated(5, 7, 7, 11)(g)
    return torch.cat(
        (letters, letters[:, torch.randperm(7, generator=g)]), 1
    ), num_letters


check_induction_head = exercise(
    "check_induction_head",
    reference=_induction_head,
    run=_known_letters,
    returns="letters (batch, len)",
)
