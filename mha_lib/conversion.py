"""Convert to and from other libraries: torch's own layers, and masks that are added to the scores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from mha_lib._checks import check_positive_int, check_type, refusal
from mha_lib.feed_forward import FeedForward

_Layer = TypeVar("_Layer", bound="_AttentionLayer")
_Twin = TypeVar("_Twin", bound="_TorchTwin")

# In a mask that is added to the scores, this number and everything below it mean "hidden".
_HIDDEN = -1e4

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class _AttentionLayer(Protocol):
    """What is read here of a `MultiHeadAttention`, whose module needs this one."""

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kdim: int
    vdim: int
    dropout: float
    training: bool
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> _AttentionLayer:
        """See `MultiHeadAttention.from_torch`."""


def mask_from_additive(mask: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Turn a mask of numbers from another library into ours: bool, True = may attend.

    There are two kinds. One is added to the scores: 0 where a query may attend; -inf, the smallest number of
    a dtype, or any number of at most -10,000 where it may not (torch's float masks, HuggingFace's extended
    masks). The other contains 1 where a query may attend and 0 where it may not (HuggingFace's
    `attention_mask`). A mask of floats that are all 0 is of the first kind and hides nothing; a mask of
    integers is always of the second. The shape is kept; pass a result of (batch, k_len) as `key_mask`.

    Raises:
        TypeError: `mask` is not a tensor, or is bool; torch's bool masks become ours with `~mask`.
        ValueError: `mask` contains other numbers, as a bias does.

    Example:
        >>> mask_from_additive(torch.tensor([0.0, -torch.inf])).tolist()
        [True, False]
        >>> mask_from_additive(torch.tensor([1, 0])).tolist()
        [True, False]
    """
    check_type("mask", mask, Tensor)
    if mask.dtype == torch.bool:
        inverted = "where True hides a key, as in torch, write ~mask"
        raise TypeError(f"mask must hold numbers, got dtype torch.bool; {inverted}")
    ones = mask == 1
    zeros = mask == 0
    hidden = mask <= _HIDDEN
    additive = mask.is_floating_point() and not bool(ones.any())
    fits = (zeros | hidden) if additive else (zeros | ones)
    if not bool(fits.all()):
        odd = mask[~fits].flatten()[0].item()
        rule = "hold 0 and numbers of at most -10000, which are added, or only 0 and 1"
        raise refusal("mask", rule, f"{odd}; attn_bias takes other numbers")
    return ~hidden if additive else ones


def _layer_from_torch(cls: type[_Layer], layer: nn.MultiheadAttention) -> _Layer:
    """See `MultiHeadAttention.from_torch`."""
    check_type("layer", layer, nn.MultiheadAttention)
    if layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn:
        rule = "have add_bias_kv=False and add_zero_attn=False"
        raise refusal("layer", rule, "one that is True")
    ours = cast(_Layer, _made_like(layer, cls))
    for targets, source in _pairs(ours, layer):
        _copy(targets, source)
    return ours


def _layer_to_torch(layer: _AttentionLayer) -> nn.MultiheadAttention:
    """See `MultiHeadAttention.to_torch`."""
    names = ("scale", "softcap", "window", "score", "rotary", "sink", "q_norm")
    extras = [name for name in names if getattr(layer, name) is not None]
    if layer.num_kv_heads != layer.num_heads:
        extras.append("num_kv_heads")
    if layer.num_heads * layer.head_dim != layer.embed_dim:
        extras.append("pruned heads or another head_dim")
    if extras:
        found = ", ".join(extras).replace("q_norm", "qk_norm")
        rule = "have no settings that torch's layer lacks"
        raise refusal("layer", rule, f"one with {found}")
    _check_biases(
        {name: _plain_layer(name, getattr(layer, name)) for name in _PROJECTIONS}
    )
    batch_first = partial(nn.MultiheadAttention, batch_first=True)
    theirs = cast(nn.MultiheadAttention, _made_like(layer, batch_first))
    for sources, target in _pairs(layer, theirs):
        _copy([target], *sources)
    return theirs


def _made_like(
    layer: _AttentionLayer | nn.MultiheadAttention, make: Callable[..., object]
) -> nn.Module:
    """Make a layer with the sizes of `layer` but no numbers; nothing random is drawn."""
    weight = layer.out_proj.weight
    made = make(
        layer.embed_dim,
        layer.num_heads,
        kdim=layer.kdim,
        vdim=layer.vdim,
        dropout=layer.dropout,
        bias=layer.out_proj.bias is not None,
        device="meta",
        dtype=weight.dtype,
    )
    assert isinstance(made, nn.Module)
    return made.to_empty(device=weight.device).train(layer.training)


def _pairs(
    ours: _AttentionLayer, theirs: nn.MultiheadAttention
) -> list[tuple[list[Tensor], Any]]:
    """Pair tensors of our layer with the tensor of torch's layer that contains their rows."""
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    weights = [proj.weight for proj in projections]
    pairs: list[tuple[list[Tensor], Any]] = [(weights, theirs.in_proj_weight)]
    if not theirs._qkv_same_embed_dim:
        separate = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        pairs = [
            ([weight], separate_weight)
            for weight, separate_weight in zip(weights, separate, strict=True)
        ]
    pairs.append(([ours.out_proj.weight], theirs.out_proj.weight))
    if ours.out_proj.bias is not None:
        pairs.append(([proj.bias for proj in projections], theirs.in_proj_bias))
        pairs.append(([ours.out_proj.bias], theirs.out_proj.bias))
    return pairs


def _copy(targets: list[Tensor], *sources: Tensor) -> None:
    """Copy the rows of the sources into the targets, which become trainable if the sources are."""
    trained = [source.requires_grad for source in sources]
    if len(set(trained)) > 1:
        rule = "all be trained or all be frozen, since torch's layer holds them as one parameter"
        raise refusal("q_proj, k_proj and v_proj", rule, f"requires_grad={trained}")
    rows = torch.cat([source.detach() for source in sources])
    parts = rows.split([len(target) for target in targets])
    for target, part in zip(targets, parts, strict=True):
        target.requires_grad_(trained[0])
        with torch.no_grad():
            target.copy_(part)


def _plain_layer(name: str, part: object) -> nn.Linear | nn.LayerNorm:
    """Return `part` if it is a plain linear layer or, for the name of a norm, a plain layer norm."""
    kind: type[nn.Linear | nn.LayerNorm] = nn.Linear
    if "norm" in name:
        kind = nn.LayerNorm
    # A wrapper may be a subclass that has the name of the wrapped class and computes something else.
    if not isinstance(part, kind) or type(part).forward is not kind.forward:
        found = f"{type(part).__name__} of {type(part).__module__}; merge or remove a wrapper first"
        raise refusal(name, f"be a {kind.__name__}", found)
    return part


def _check_plain_linear(attention: _AttentionLayer) -> None:
    """Raise unless the projections of a layer are linear layers whose matrices can be cut into heads."""
    for name in _PROJECTIONS:
        proj = getattr(attention, name)
        # Weight norm removes the parameter but keeps the class; sharding and torchao change its class.
        weight = proj._parameters.get("weight")
        if type(proj) is not nn.Linear or type(weight) is not nn.Parameter:
            held = f"with a weight of {type(weight).__name__}"
            held = "without a weight of its own" if weight is None else held
            rule = "be a plain Linear, so that its matrix can be cut into heads"
            got = f"{type(proj).__name__} {held}"
            raise TypeError(f"attention.{name} must {rule}, got {got}")


def _check_biases(parts: Mapping[str, nn.Module]) -> None:
    """Raise unless all parts have a bias or none of them has one."""
    without = [name for name, part in parts.items() if part.bias is None]
    if 0 < len(without) < len(parts):
        rule = "be in all parts or in none"
        raise refusal("bias", rule, f"none in {', '.join(without)}")


def _one_dropout(module: nn.Module, names: Iterable[str]) -> float:
    """The probability shared by all dropouts of a block."""
    found = {}
    for name in names:
        part = module.get_submodule(name)
        # An attention layer stores its dropout as a number, a dropout layer as its p.
        of_attention = getattr(part, "dropout", 0.0)
        found[name] = getattr(part, "p", of_attention)
    if len(set(found.values())) > 1:
        raise refusal("dropout", "be the same everywhere", found)
    return next(iter(found.values()))


def _activation_name(activation: object) -> str:
    """Our name for the activation in torch's layer."""
    if activation in (torch.relu, F.relu) or isinstance(activation, nn.ReLU):
        return "relu"
    exact = getattr(activation, "approximate", "none") == "none"
    if activation is F.gelu or (isinstance(activation, nn.GELU) and exact):
        return "gelu"
    name = getattr(activation, "__name__", repr(activation))
    raise ValueError(f"activation must be relu or the exact gelu, got {name}")


def _torch_kind(decodes: bool, what: str) -> Any:
    """Torch's class of a block (`what` is "Layer") or of a stack ("")."""
    return getattr(nn, f"Transformer{'Decoder' if decodes else 'Encoder'}{what}")


def _torch_names(decodes: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Map our names to torch's names, for the attention layers and the other layers of a block."""
    attentions = {"self_attention": "self_attn"}
    parts = {"feed_forward.up_proj": "linear1", "feed_forward.down_proj": "linear2"}
    parts["self_attention_norm"] = "norm1"
    parts["feed_forward_norm"] = "norm3" if decodes else "norm2"
    if decodes:
        attentions["cross_attention"] = "multihead_attn"
        parts["cross_attention_norm"] = "norm2"
    return attentions, parts


class _TorchTwin(nn.Module):
    """Base class of blocks and stacks: conversion from torch's module of the same kind, and back."""

    _attention: ClassVar[type[_AttentionLayer]]  # the attention layer of a block

    @classmethod
    def from_torch(cls: type[_Twin], module: nn.Module) -> _Twin:
        """Copy torch's own module of this kind.

        A block copies an `nn.TransformerEncoderLayer` or `nn.TransformerDecoderLayer`, a stack an
        `nn.TransformerEncoder` or `nn.TransformerDecoder`.

        The inputs of the result are (batch, len, embed_dim) whatever `batch_first` is, and in its masks True
        means may attend, the inverse of torch's. Our decoders are always causal, torch's only with a
        `tgt_mask`. The final norm of a stack is copied as it is. A stack without one gets none, even after
        pre-norm layers; one after post-norm layers, as in `nn.Transformer`, is kept. The result has
        its own copy of the weights, with the same dtype, device and mode; frozen parameters stay frozen.

        Raises:
            TypeError: `module`, or a layer of a stack, is not torch's module of this kind.
            ValueError: `module` has a property that ours does not support: an activation other than relu and
                the exact gelu, dropouts that differ, a memory of another width, a wrapper or other module for
                a linear layer or layer norm, no layers, or what `MultiHeadAttention.from_torch` rejects.

        Example:
            >>> from mha_lib import EncoderBlock
            >>> layer = nn.TransformerEncoderLayer(6, 3, 24, batch_first=True).eval()
            >>> x = torch.rand(2, 5, 6)
            >>> torch.allclose(EncoderBlock.from_torch(layer)(x), layer(x), atol=1e-5)
            True
        """
        stack = hasattr(cls, "_block")
        ours: _Twin = (_stack_from_torch if stack else _block_from_torch)(cls, module)
        return ours

    def to_torch(self) -> nn.Module:
        """Copy this module into torch's module of the same kind, see `from_torch`, with `batch_first=True`.

        Raises:
            TypeError: an attention or feed-forward layer was replaced by a different module.
            ValueError: this module has a property that torch's does not support: RMS norms, an activation
                other than relu and the exact gelu, biases in some parts only, dropouts that differ from one
                another, a wrapper around a linear layer, or what `MultiHeadAttention.to_torch` rejects.

        Example:
            >>> from mha_lib import TransformerDecoder
            >>> TransformerDecoder(2, embed_dim=6, num_heads=3, hidden_dim=24).to_torch().num_layers
            2
        """
        stack = hasattr(self, "_block")
        theirs: nn.Module = (_stack_to_torch if stack else _block_to_torch)(self)
        return theirs


def _block_from_torch(cls: Any, layer: Any) -> Any:
    decodes = cls._has_memory
    check_type("module", layer, _torch_kind(decodes, "Layer"))
    attentions, parts = _torch_names(decodes)
    dropouts = [*attentions.values(), "dropout", "dropout1", "dropout2"]
    dropouts += ["dropout3"] if decodes else []
    width = layer.self_attn.embed_dim
    copies: dict[str, Any] = {}
    for ours, theirs in attentions.items():
        copies[ours] = cls._attention.from_torch(getattr(layer, theirs))
        kdim, vdim = copies[ours].kdim, copies[ours].vdim
        if not kdim == vdim == width:
            rule = f"be embed_dim={width}"
            raise refusal(f"kdim and vdim of {theirs}", rule, f"{kdim} and {vdim}")
    for ours, theirs in parts.items():
        copies[ours] = copy.deepcopy(_plain_layer(theirs, getattr(layer, theirs)))
    sizes = (width, layer.self_attn.num_heads, layer.linear1.out_features)
    options = {"dropout": _one_dropout(layer, dropouts), "norm_first": layer.norm_first}
    options |= {"activation": _activation_name(layer.activation), "device": "meta"}
    block = cls(*sizes, **options).train(layer.training)
    for name, part in copies.items():
        block.set_submodule(name, part)
    return block


def _block_to_torch(block: Any) -> Any:
    decodes = block._has_memory
    attentions, parts = _torch_names(decodes)
    check_type("feed_forward", block.feed_forward, FeedForward)
    activation = block.feed_forward.activation
    if activation not in ("relu", "gelu"):
        raise refusal("activation", "be relu or the exact gelu", f"{activation!r}")
    copies: dict[str, nn.Module] = {}
    for ours, theirs in parts.items():
        copies[theirs] = copy.deepcopy(_plain_layer(ours, block.get_submodule(ours)))
    _check_biases(copies | {"self_attn": block.self_attention.q_proj})
    for ours, theirs in attentions.items():
        check_type(ours, getattr(block, ours), block._attention)
        copies[theirs] = getattr(block, ours).to_torch()
    linear = copies["linear1"]
    dropouts = [*attentions, "feed_forward.dropout", "dropout"]
    sizes = (block.embed_dim, block.self_attention.num_heads, linear.out_features)
    options = {"dropout": _one_dropout(block, dropouts), "activation": activation}
    options |= {"norm_first": block.norm_first, "bias": linear.bias is not None}
    options |= {"batch_first": True, "device": "meta"}
    layer = _torch_kind(decodes, "Layer")(*sizes, **options).train(block.training)
    for name, part in copies.items():
        layer.set_submodule(name, part)
    return layer


def _stack_from_torch(cls: Any, stack: Any) -> Any:
    check_type("module", stack, _torch_kind(cls._block._has_memory, ""))
    check_positive_int("num_layers", len(stack.layers))
    blocks = [cls._block.from_torch(layer) for layer in stack.layers]
    heads = blocks[0].self_attention.num_heads
    ours = cls(1, blocks[0].embed_dim, heads, 1, norm_first=False, device="meta")
    ours.train(stack.training)
    ours.blocks[0] = blocks[0]
    ours.blocks.extend(blocks[1:])
    if stack.norm is not None:
        ours.norm = copy.deepcopy(_plain_layer("norm", stack.norm))
    return ours


def _stack_to_torch(stack: Any) -> Any:
    layers = [block.to_torch() for block in stack.blocks]
    decodes = stack._block._has_memory
    options = {} if decodes else {"enable_nested_tensor": False}
    theirs = _torch_kind(decodes, "")(layers[0], 0, **options).train(stack.training)
    theirs.layers.extend(layers)
    theirs.num_layers = len(layers)
    if not isinstance(stack.norm, nn.Identity):
        theirs.norm = copy.deepcopy(_plain_layer("norm", stack.norm))
    return theirs
