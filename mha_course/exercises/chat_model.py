"""Checkers for the chapter on a published chat model: what its file contains, its shared keys, its heads."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import built
from mha_course._classes import part_of
from mha_course._pieces import (
    check_linear,
    check_names,
    looked_at,
    made,
    narrowed,
    trained,
)
from mha_course._sizes import Texts

exercise = Texts(__name__)


def _packed(
    g: Generator, blocks: int, factor: int = -7
) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, minima and bytes of some blocks; the factor of the minima has their sign."""
    scale, least = torch.rand(2, blocks, 1, generator=g).add(0.5).unbind(0)
    numbers = torch.randint(256, (blocks, 16), generator=g)
    return scale, factor * least, numbers.to(torch.uint8)


# Later cells use what the pieces return, so it must be of the page's dtype.
check_dequantize = exercise(
    "check_dequantize",
    reference=built.my_dequantize,
    returns="numbers (blocks, 32)",
    same_dtype=True,
    seeds=False,
    arrays=False,
)


def _run_grouped(
    answer: Any,
    sizes: tuple[Any, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
) -> Any:
    """Make a layer of these sizes, give its projections fixed numbers, and call it.

    Without a base among the sizes, the layer has its default.
    """
    embed_dim, num_heads, num_kv_heads, *base = sizes
    width = embed_dim // num_heads * num_kv_heads
    if not width:  # such a case of other sizes does not count
        raise ValueError(f"heads of width 0 for embed_dim {embed_dim}")
    widths = {"q_proj": embed_dim, "k_proj": width, "v_proj": width}

    layer = made(answer, *sizes[:3], **({"base": base[0]} if base else {}))
    generator = torch.Generator().manual_seed(0)
    for name, out in {**widths, "out_proj": embed_dim}.items():
        part_of(answer, layer, name)
        # A projection as wide as the queries is known by its numbers.
        wide = getattr(layer, name).weight.shape[0] == embed_dim
        height = embed_dim if wide else out
        proj = check_linear(layer, name, height, embed_dim, embed_dim)
        with torch.no_grad():
            proj.weight.normal_(std=0.3, generator=generator)
            if proj.bias is not None:
                proj.bias.fill_(1.0)
    check_names(layer, [*widths, "out_proj"])
    inputs = [x.clone().requires_grad_() for x in (query, key, value)]
    masks = [] if mask is None else [mask]
    returned = layer(*(x.clone() for x in inputs), *masks)
    if not isinstance(returned, (tuple, list)):
        return returned
    return *returned, *trained(layer, returned, inputs)


check_grouped_heads = exercise(
    "check_grouped_heads",
    other_sizes=[1, 17],
    reference=built.MyGroupedHeads,
    returns=(
        "output (batch, len, embed_dim)",
        "weights (batch, num_heads, len, len)",
        "what is saved and gets no gradient",
        "size of each gradient",
    ),
    run=_run_grouped,
    then=partial(looked_at, (12, 6, 2), [(2, 5, 12)] * 3, [5, 5], 0),
    takes="class",
    same_dtype=True,
    seeds=False,
    atol=1e-4,
)

check_row_order = exercise(
    "check_row_order",
    other_sizes=[1, 17],
    reference=built.my_row_order,
    then=partial(narrowed, [(12, 5), 3]),
    returns="weight (num_heads * head_dim, embed_dim)",
    same_dtype=True,
    seeds=False,
    arrays=False,
)


def _count(
    vocab_size: int, width: int, heads: int, key_heads: int, hidden: int, layers: int
) -> int:
    keys_and_values = 2 * width * width // heads * key_heads
    attention = 2 * width * width + keys_and_values
    feed_forward = 3 * width * hidden
    norms = 2 * width
    return vocab_size * width + layers * (attention + feed_forward + norms) + 1 * width


check_chat_parameters = exercise(
    "check_chat_parameters", reference=_count, returns="parameters"
)


def _induction_score(weights: Tensor, length: int) -> Tensor:
    rows = torch.arange(length, 2 * length)
    return weights[..., rows, rows - length + 1].mean(-1)


def _maps(g: Generator, heads: int, length: int) -> tuple[Tensor, int]:
    """Causal weights of some heads over a sequence that is said twice."""
    scores = torch.randn(heads, 2 * length, 2 * length, generator=g)
    hidden = ~built.my_causal_mask(2 * length)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1), length


check_induction_score = exercise(
    "check_induction_score", reference=_induction_score, returns="scores (heads,)"
)
