"""To and from other libraries: torch's own layers, and masks that are added to the scores."""

from __future__ import annotations

from typing import TypeVar

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from mha_lib._checks import check_type
from mha_lib.multi_head import MultiHeadAttention

_Layer = TypeVar("_Layer", bound=MultiHeadAttention)

# What is at most this is taken for "hidden" in a mask that is added to scores.
_HIDDEN = -1e4


def mask_from_additive(mask: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Turn a mask of numbers from another library into ours, bool, True = may attend.

    Two kinds exist. One is added to the scores: 0 where a query may attend, -inf, the smallest number of a
    dtype, or another number of at most -10,000 where it may not (torch's float masks, HuggingFace's extended
    masks). The other holds 1 where a query may attend and 0 where it may not (HuggingFace's
    `attention_mask`). A mask of floats that are all 0 is taken for the first kind, so that it hides nothing;
    one of integers is always of the second.

    Args:
        mask: numbers, any shape.

    Returns:
        Bool mask of the same shape. One of shape (batch, k_len) goes in as `key_mask`.

    Raises:
        TypeError: `mask` is not a tensor, or is bool already: torch's own bool masks mean the opposite of
            ours, so write `~mask` for one of those.
        ValueError: it holds other numbers, such as a bias.

    Example:
        >>> mask_from_additive(torch.tensor([0.0, -torch.inf])).tolist()
        [True, False]
        >>> mask_from_additive(torch.tensor([1, 0])).tolist()
        [True, False]
    """
    check_type("mask", mask, Tensor)
    if mask.dtype == torch.bool:
        raise TypeError(
            "mask must hold numbers, got dtype torch.bool; where True hides a key, as in torch, write ~mask"
        )
    ones = mask == 1
    zeros = mask == 0
    hidden = mask <= _HIDDEN
    additive = mask.is_floating_point() and not bool(ones.any())
    fits = (zeros | hidden) if additive else (zeros | ones)
    if not bool(fits.all()):
        odd = mask[~fits].flatten()[0].item()
        raise ValueError(
            "mask must hold 0 and numbers of at most -10000, which are added, or only 0 and 1, "
            f"got {odd}; attn_bias takes other numbers"
        )
    return ~hidden if additive else ones


def _layer_from_torch(cls: type[_Layer], layer: nn.MultiheadAttention) -> _Layer:
    """What `MultiHeadAttention.from_torch` documents."""
    check_type("layer", layer, nn.MultiheadAttention)
    if layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn:
        raise ValueError(
            "layer must have add_bias_kv=False and add_zero_attn=False, got one that is True"
        )
    ours = cls(
        layer.embed_dim,
        layer.num_heads,
        kdim=layer.kdim,
        vdim=layer.vdim,
        dropout=layer.dropout,
        bias=layer.in_proj_bias is not None,
        device="meta",  # nothing is drawn
        dtype=layer.out_proj.weight.dtype,
    ).to_empty(device=layer.out_proj.weight.device)
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    if layer._qkv_same_embed_dim:
        _copy([proj.weight for proj in projections], layer.in_proj_weight)
    else:
        separate = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        for proj, weight in zip(projections, separate, strict=True):
            _copy([proj.weight], weight)
    _copy([ours.out_proj.weight], layer.out_proj.weight)
    if layer.in_proj_bias is not None:
        _copy([proj.bias for proj in projections], layer.in_proj_bias)
        _copy([ours.out_proj.bias], layer.out_proj.bias)
    return ours.train(layer.training)


def _layer_to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """What `MultiHeadAttention.to_torch` documents."""
    extras = {
        "num_kv_heads": layer.num_kv_heads != layer.num_heads,
        **{
            name: getattr(layer, name) is not None
            for name in ("scale", "softcap", "window", "score", "rotary")
        },
    }
    if any(extras.values()):
        found = ", ".join(name for name, there in extras.items() if there)
        raise ValueError(
            f"layer must have no settings that torch's layer has not, got one with {found}"
        )
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    theirs = nn.MultiheadAttention(
        layer.embed_dim,
        layer.num_heads,
        kdim=layer.kdim,
        vdim=layer.vdim,
        dropout=layer.dropout,
        bias=layer.q_proj.bias is not None,
        batch_first=True,
        device=layer.out_proj.weight.device,
        dtype=layer.out_proj.weight.dtype,
    )
    weights = [proj.weight for proj in projections]
    if theirs._qkv_same_embed_dim:
        _copy([theirs.in_proj_weight], *weights)
    else:
        separate = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        for target, weight in zip(separate, weights, strict=True):
            _copy([target], weight)
    _copy([theirs.out_proj.weight], layer.out_proj.weight)
    if theirs.in_proj_bias is not None:
        _copy([theirs.in_proj_bias], *(proj.bias for proj in projections))
        _copy([theirs.out_proj.bias], layer.out_proj.bias)
    return theirs.train(layer.training)


def _copy(targets: list[Tensor], *sources: Tensor) -> None:
    """Copy the rows of the sources into those of the targets, which are trained where a source is."""
    trained = any(source.requires_grad for source in sources)
    rows = torch.cat([source.detach() for source in sources])
    parts = rows.split([len(target) for target in targets])
    for target, part in zip(targets, parts, strict=True):
        target.requires_grad_(trained)
        with torch.no_grad():
            target.copy_(part)
