"""Checkers for the exercises about positions (chapter 5, and the appendix on positions in depth).

Each is an `Exercise`, which judges the reader's function in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mha_course._sizes import Texts
from mha_lib.attention import dot_product_attention
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.positional import LearnedPositionalEncoding, sinusoidal_encoding
from mha_lib.rotary import RotaryPositionalEncoding, apply_rotary, rotary_angles

exercise = Texts(__name__)

# ------------------------------------------------------------------ a step as a matrix


def _concatenated_step(offset: int, embed_dim: int) -> Tensor:
    """M_k for rows (all sines, all cosines)."""
    exponent = -torch.arange(0, embed_dim, 2) / embed_dim
    angle = offset * 10_000.0**exponent
    cos, sin = angle.cos().diag(), angle.sin().diag()
    return torch.cat((torch.cat((cos, -sin), 1), torch.cat((sin, cos), 1)))


check_concatenated_step = exercise(
    "check_concatenated_step",
    reference=_concatenated_step,
    returns="matrix (embed_dim, embed_dim)",
    atol=1e-4,
)


# ------------------------------------------------------------------ a learned table that starts as sinusoid


def _is_layer(layer: Any) -> None:
    if not isinstance(layer, nn.Module):
        raise TypeError(
            f"a layer is expected as the result, got {type(layer).__name__}"
        )


def _first_rows(answer: Callable[..., Any], embed_dim: int, max_len: int) -> Any:
    """What a new layer adds to zeros, and how many of its numbers are trained."""
    torch.manual_seed(0)  # so that noise can be recognised
    layer = answer(embed_dim, max_len)
    if layer is None:
        return None
    _is_layer(layer)
    trained = [one.numel() for one in layer.parameters() if one.requires_grad]
    return layer(torch.zeros(1, max_len, embed_dim))[0], sum(trained)


def _learned_from_sinusoid(embed_dim: int, max_len: int) -> nn.Module:
    layer = LearnedPositionalEncoding(embed_dim, max_len)
    with torch.no_grad():
        layer.encoding.copy_(sinusoidal_encoding(max_len, embed_dim))
    return layer


check_learned_start = exercise(
    "check_learned_start",
    reference=_learned_from_sinusoid,
    run=_first_rows,
    returns=("rows added (max_len, embed_dim)", "number of trained entries"),
)


# ------------------------------------------------------------------ all positions shifted


def _turned(layer: Any, x: Tensor, of_queries: Tensor, of_keys: Tensor) -> Any:
    """Output of a layer whose queries and keys are turned by these angles."""
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    query, key, value = (layer.split_heads(project(x)) for project in projections)
    query, key = apply_rotary(query, of_queries), apply_rotary(key, of_keys)
    heads, _ = dot_product_attention(query, key, value)
    return layer.out_proj(layer.merge_heads(heads))


def _shift_changes(layer: Any, x: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    length, embed_dim = x.shape[1:]
    angles = rotary_angles(shift + length, layer.head_dim)
    here, there = angles[:length], angles[shift:]
    rotary = _turned(layer, x, there, there) - _turned(layer, x, here, here)
    table = sinusoidal_encoding(shift + length, embed_dim)
    outputs = [layer(*[x + r] * 3)[0] for r in (table[:length], table[shift:])]
    return rotary.abs().max(), (outputs[1] - outputs[0]).abs().max()


check_shift_changes = exercise(
    "check_shift_changes",
    reference=_shift_changes,
    returns=("change with rotary", "change with sinusoids"),
    atol=1e-4,
    rtol=1e-3,
)


# ------------------------------------------------------------------ adding and concatenating


def _concatenated_weight(weight: Tensor) -> Tensor:
    return torch.cat((weight, weight), dim=1)


check_tied_weight = exercise(
    "check_tied_weight",
    reference=_concatenated_weight,
    returns="weight (out, 2 * embed_dim)",
)


# ------------------------------------------------------------------ slopes of ALiBi


def _slopes(num_heads: int) -> list[float]:
    power = 2 ** int(math.log2(num_heads))
    own = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    more = [] if power == num_heads else _slopes(2 * power)[0::2]
    return own + more[: num_heads - power]


check_slopes = exercise("check_slopes", reference=_slopes, returns="slopes (num_heads)")


# ------------------------------------------------------------------ what a checkpoint holds


def _stored_entries(embed_dim: int, max_len: int) -> list[list[int]]:
    table = max_len * embed_dim
    return [[0, table, 0], [table, 0, table]]


check_stored_entries = exercise(
    "check_stored_entries",
    reference=_stored_entries,
    returns="entries (encoding, kind)",
)


# ------------------------------------------------------------------ token or position


def _token_share(std: float, embed_dim: int, factor: float) -> float:
    token, position = (factor * std) ** 2 * embed_dim, embed_dim / 2
    return token / (token + position)


check_token_share = exercise(
    "check_token_share", reference=_token_share, returns="share"
)


# ------------------------------------------------------------------ vectors and biases for distances


def _mean_of_distances(weights: Tensor, table: Tensor) -> Tensor:
    places, largest = torch.arange(weights.shape[-1]), len(table) // 2
    distance = (places - places[:, None]).clamp(-largest, largest)
    vectors = table[distance + largest]  # (len, len, head_dim)
    return torch.einsum("bhmn,mnd->bhmd", weights, vectors)


check_shaw_values = exercise(
    "check_shaw_values",
    reference=_mean_of_distances,
    returns="mean (batch, num_heads, len, head_dim)",
)


def _past_bias(answer: Callable[..., Any], table: Tensor, length: int) -> Any:
    """The bias for past keys; the causal mask hides the entries above the diagonal."""
    bias = answer(table, length)
    return None if bias is None else torch.as_tensor(bias).tril()


def _distance_bias(table: Tensor, length: int) -> Tensor:
    places, last = torch.arange(length), table.shape[1] - 1
    return table[:, (places[:, None] - places).clamp(0, last)]


check_distance_bias = exercise(
    "check_distance_bias",
    reference=_distance_bias,
    run=_past_bias,
    returns="bias (num_heads, len, len)",
)


# ------------------------------------------------------------------ a base that reaches further


def _ntk_base(embed_dim: int, base: float, scale: float) -> Any:
    return base * scale ** (embed_dim / (embed_dim - 2))


check_ntk_base = exercise("check_ntk_base", reference=_ntk_base, returns="base")


# ------------------------------------------------------------------ a checkpoint with the other pairing


def _pairing(answer: Callable[..., Any], layer: Any, x: Tensor) -> Any:
    """Output of the new layer, and whether its pairs are side by side."""
    new = answer(layer)
    if new is None:
        return None
    _is_layer(new)
    return new(x, x, x)[0], new.rotary.interleaved


def _to_halves(layer: Any) -> Any:
    old = layer.rotary
    rotary = RotaryPositionalEncoding(
        old.head_dim, rotary_dim=old.rotary_dim, base=old.base, interleaved=False
    )
    new = MultiHeadAttention(layer.embed_dim, layer.num_heads, rotary=rotary)
    new.load_state_dict(layer.state_dict())
    columns = torch.arange(layer.head_dim)
    turning, still = columns[: old.rotary_dim], columns[old.rotary_dim :]
    order = torch.cat((turning[0::2], turning[1::2], still))
    with torch.no_grad():
        for proj in (new.q_proj, new.k_proj):
            rows = proj.weight.unflatten(0, (layer.num_heads, layer.head_dim))
            proj.weight.copy_(rows[:, order].flatten(0, 1))
    return new


def _rotary_layer(heads: int, head_dim: int, rotary_dim: int, base: float = 1e4) -> Any:
    rotary = RotaryPositionalEncoding(head_dim, rotary_dim=rotary_dim, base=base)
    return MultiHeadAttention(heads * head_dim, heads, rotary=rotary)


check_to_halves = exercise(
    "check_to_halves",
    reference=_to_halves,
    run=_pairing,
    returns=("output (batch, len, embed_dim)", "interleaved"),
    atol=1e-4,
)
