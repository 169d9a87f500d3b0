"""Blocks and stacks of the Transformer: attention and a feed-forward layer, each with a residual and a norm.

For a decoder-only model, call a `TransformerEncoder` with `is_causal=True`.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import Device, DType
from mha_lib.cache import KeyValueCache
from mha_lib.conversion import _TorchTwin
from mha_lib.feed_forward import _ACTIVATIONS, FeedForward, RMSNorm
from mha_lib.masking import _combine_masks, _of_one_sample
from mha_lib.multi_head import MultiHeadAttention

_NORMS = ("layer", "rms")
_OF_EVERY_ATTENTION = "num_kv_heads head_dim scale softcap qk_norm sink".split()
_Map: TypeAlias = Callable[[Tensor], Tensor]
_Hidden: TypeAlias = tuple[Tensor | None, ...]  # mask, bias, key mask, lengths


class _Block(_TorchTwin):
    """Base class of both kinds of block: the layers, each with a residual connection and a norm."""

    _attention = MultiHeadAttention
    _has_memory: ClassVar[bool]  # whether the block also attends to a memory

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        norm_first: bool = True,
        activation: str = "relu",
        bias: bool = False,
        norm: str = "layer",
        layer_norm_eps: float = 1e-5,
        attention_bias: bool | Collection[str] | None = None,
        window: tuple[int | None, int | None] | None = None,
        rotary: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: Device = None,
        dtype: DType = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name in options.keys() - set(_OF_EVERY_ATTENTION):
            named = [*inspect.signature(_Block).parameters][:-1]
            known = ", ".join(named + _OF_EVERY_ATTENTION)
            unknown = f"{type(self).__name__} has no option {name!r}"
            raise TypeError(f"{unknown}, only {known}")
        # The attention layer checks its own arguments. All checks run before any weight is drawn.
        _checks.check_positive_int("hidden_dim", hidden_dim)
        _checks.check_choice("activation", activation, _ACTIVATIONS)
        _checks.check_choice("norm", norm, _NORMS)
        _checks.check_positive("layer_norm_eps", layer_norm_eps)
        self.embed_dim, self.norm_first = embed_dim, norm_first
        place: Any = {"device": device, "dtype": dtype}
        attention_bias = bias if attention_bias is None else attention_bias
        heads: Any = {"bias": attention_bias, "norm_eps": layer_norm_eps, **options}
        heads |= {"dropout": dropout, **place}

        def new_norm() -> nn.Module:
            if norm == "rms":
                return RMSNorm(embed_dim, eps=layer_norm_eps, **place)
            return nn.LayerNorm(embed_dim, layer_norm_eps, bias=bias, **place)

        own: Any = {"window": window, "rotary": rotary}
        self.self_attention = MultiHeadAttention(embed_dim, num_heads, **own, **heads)
        self.self_attention_norm = new_norm()
        if self._has_memory:
            self.cross_attention = MultiHeadAttention(embed_dim, num_heads, **heads)
            self.cross_attention_norm = new_norm()
        hidden: Any = {"dropout": dropout, "activation": activation, "bias": bias}
        self.feed_forward = FeedForward(embed_dim, hidden_dim, **hidden, **place)
        self.feed_forward_norm = new_norm()
        self.dropout = nn.Dropout(dropout)

    def _residual(self, x: Tensor, norm: _Map, layer: _Map) -> Tensor:
        """Add the output of `layer` to `x`; only this method distinguishes pre-norm from post-norm."""
        dropout: _Map = self.dropout
        if self.norm_first:
            return x + dropout(layer(norm(x)))
        return norm(x + dropout(layer(x)))

    def _look_at_self(self, x: Tensor, **hide: Any) -> Tensor:
        layer, norm = self.self_attention, self.self_attention_norm
        hide["need_weights"] = False
        return self._residual(x, norm, lambda x: layer(x, x, x, **hide)[0])

    def extra_repr(self) -> str:
        """Show in the printed module whether the norm comes first."""
        return f"norm_first={self.norm_first}"


class EncoderBlock(_Block):
    """Self-attention, then a feed-forward layer (Vaswani et al., 2017, §3.1).

    Both layers have a residual connection and a layer norm (Ba et al., 2016). With the norm before the layer,
    x + f(norm(x)), gradients have similar sizes throughout a deep stack (Xiong et al., 2020). With the norm
    after the sum, norm(x + f(x)), the order is that of the paper and of BERT.

    Args:
        embed_dim, hidden_dim: width of a token, and width inside the feed-forward layer.
        num_heads: number of heads; divides `embed_dim`.
        dropout: probability that a number is dropped, in training only: an attention weight, an entry of the
            hidden layer, or an entry that a layer adds to the residual, as in torch's layers.
        norm_first: whether the norm comes before each layer (pre-norm) or after each sum (post-norm).
        activation: activation of the feed-forward layer, see `FeedForward`.
        bias: whether linear layers and layer norms have a bias, as in the paper and in torch.
        norm: "layer", or "rms", see `RMSNorm`.
        layer_norm_eps: positive number that every norm adds under the root.
        attention_bias: the `bias` of `MultiHeadAttention`; default `bias`.
        window, rotary: see `MultiHeadAttention`. Blocks may share a `rotary`.
        device, dtype: device and dtype of the parameters; default torch's.
        options: `num_kv_heads`, `head_dim`, `scale`, `softcap`, `qk_norm` and `sink`, see
            `MultiHeadAttention`; layers that are given the same tensor as `scale` share it.

    Raises:
        TypeError: a width or count is not an int, or an argument has the wrong type.
        ValueError: a width or count is not positive, `num_heads` does not divide `embed_dim`, `dropout` is
            outside 0..1, `activation` or `norm` is unknown, or `MultiHeadAttention` rejects an argument.

    Example:
        >>> block, x = EncoderBlock(embed_dim=6, num_heads=3, hidden_dim=24), torch.rand(2, 5, 6)
        >>> block(x, valid_lens=torch.tensor([3, 5])).shape
        torch.Size([2, 5, 6])
    """

    _has_memory = False

    def forward(
        self,
        x: Float[Tensor, "*batch len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "*batch len embed_dim"]:
        """Let the tokens attend to each other, then transform each token.

        Arguments and errors are those of `MultiHeadAttention.forward`, with `x` as query, key and value. `x`
        and the result are (batch, len, embed_dim), or (len, embed_dim) for a single sample.
        """
        if cache is not None:
            _checks.check_type("cache", cache, KeyValueCache)
        hidden = (attn_mask, attn_bias, key_mask, valid_lens)
        tokens, hide = _check_self(x, self, hidden, cache)
        tokens = self._look_at_self(tokens, is_causal=is_causal, cache=cache, **hide)
        output = self._residual(tokens, self.feed_forward_norm, self.feed_forward)
        return output.view_as(x)


@dataclass(frozen=True)
class DecoderBlockCache:
    """The cache of one `DecoderBlock`: keys and values of its own tokens and of the memory, projected once.

    `len()` is the number of tokens decoded so far, which is the number of slots in `self_attention`.

    Example:
        >>> block, memory = DecoderBlock(6, 3, 24), torch.rand(2, 7, 6)
        >>> cache = DecoderBlockCache()
        >>> output = block(torch.rand(2, 1, 6), memory, cache=cache)
        >>> len(cache), len(cache.cross_attention)
        (1, 7)
    """

    self_attention: KeyValueCache = field(default_factory=KeyValueCache)
    cross_attention: KeyValueCache = field(default_factory=KeyValueCache)

    def __len__(self) -> int:
        return len(self.self_attention)


class DecoderBlock(_Block):
    """Causal self-attention, attention to a memory, then a feed-forward layer (Vaswani et al., 2017, §3.1).

    The memory, which an encoder returns for the source, supplies the keys and values, and the decoder the
    queries. Self-attention never sees the future. Residuals, norms and dropout are those of `EncoderBlock`.

    Arguments and errors are those of `EncoderBlock`. `window` and `rotary` apply only to the self-attention,
    because the memory is a different sequence with its own positions.

    Example:
        >>> block = DecoderBlock(embed_dim=6, num_heads=3, hidden_dim=24)
        >>> x, memory = torch.rand(2, 5, 6), torch.rand(2, 7, 6)
        >>> block(x, memory, memory_valid_lens=torch.tensor([7, 4])).shape
        torch.Size([2, 5, 6])
    """

    _has_memory = True

    def forward(
        self,
        x: Float[Tensor, "*batch len embed_dim"],
        memory: Float[Tensor, "*batch memory_len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        memory_key_mask: Bool[Tensor, "*batch memory_len"] | None = None,
        memory_valid_lens: Integer[Tensor, "..."] | None = None,
        cache: DecoderBlockCache | None = None,
    ) -> Float[Tensor, "*batch len embed_dim"]:
        """Let the tokens attend to earlier tokens, then to the memory, then transform each token.

        Arguments and errors are those of `EncoderBlock.forward`. They apply to the self-attention, whose
        causal mask is always on. `memory_mask`, `memory_key_mask` and `memory_valid_lens` hide parts of
        `memory`, (batch, memory_len, embed_dim), in the same way. The call appends `x` to `cache`, a
        `DecoderBlockCache`. Only the first call projects the memory, but pass the same memory, with its mask
        or lengths, each time. The result has the shape of `x`.
        """
        own, projected = None, None
        if cache is not None:
            _checks.check_type("cache", cache, DecoderBlockCache)
            own, projected = cache.self_attention, cache.cross_attention
        hidden = (attn_mask, attn_bias, key_mask, valid_lens)
        tokens, hide = _check_self(x, self, hidden, own)
        hidden = (memory_mask, None, memory_key_mask, memory_valid_lens)
        memory, memory_mask = _check_memory(x, memory, self, hidden)
        if projected is not None and len(projected) > 0:
            if len(projected) != memory.shape[1]:
                rule = f"be the one in the cache, of length {len(projected)}"
                raise _checks.refusal("memory", rule, f"shape {tuple(memory.shape)}")
            memory = memory[:, :0]  # it has already been projected

        def look_at_memory(x: Tensor) -> Tensor:
            output: Tensor = self.cross_attention(
                x, memory, memory, memory_mask, cache=projected, need_weights=False
            )[0]
            return output

        tokens = self._look_at_self(tokens, is_causal=True, cache=own, **hide)
        tokens = self._residual(tokens, self.cross_attention_norm, look_at_memory)
        output = self._residual(tokens, self.feed_forward_norm, self.feed_forward)
        return output.view_as(x)


class _Stack(_TorchTwin):
    """Base class of both stacks: blocks of one kind, followed by a norm."""

    _block: ClassVar[type[EncoderBlock | DecoderBlock]]

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        **options: Any,
    ) -> None:
        super().__init__()
        _checks.check_positive_int("num_layers", num_layers)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.blocks = nn.ModuleList(
            self._block(embed_dim, num_heads, hidden_dim, **options)
            for _ in range(num_layers)
        )
        first: Any = self.blocks[0]
        self.norm: nn.Module = nn.Identity()
        if first.norm_first:
            self.norm = copy.deepcopy(first.feed_forward_norm)


class TransformerEncoder(_Stack):
    """A stack of encoder blocks (Vaswani et al., 2017, §3.1); with `is_causal=True`, a decoder-only model.

    After pre-norm blocks, which do not normalize their output, there is a final norm. The stack has no
    embeddings and no positions. Its first argument, `num_layers`, is the number of blocks.
    Arguments and errors are those of `EncoderBlock`, for all blocks.

    Example:
        >>> encoder = TransformerEncoder(2, embed_dim=6, num_heads=3, hidden_dim=24, dropout=0.1).eval()
        >>> x, cache = torch.rand(2, 5, 6), encoder.new_cache()  # decoding in two chunks changes nothing
        >>> chunks = [encoder(chunk, is_causal=True, cache=cache) for chunk in x.split([3, 2], dim=1)]
        >>> torch.allclose(torch.cat(chunks, dim=1), encoder(x, is_causal=True), atol=1e-5)
        True
    """

    _block = EncoderBlock

    def forward(
        self,
        x: Float[Tensor, "*batch len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: Sequence[KeyValueCache] | None = None,
    ) -> Float[Tensor, "*batch len embed_dim"]:
        """Run `x` through all blocks, each with the same mask.

        Arguments and errors are those of `EncoderBlock.forward`, for all blocks. `cache` must come from
        `new_cache`, one per batch; the call appends `x` to it. Mask and bias then cover all its slots, and
        `valid_lens`, (batch,), counts the tokens of `x`. Decoding in chunks gives the same as one call only
        with `is_causal`. The result has the shape of `x`; tokens beyond `valid_lens` are meaningless.
        """
        caches = _check_caches(cache, KeyValueCache, len(self.blocks))
        hidden = (attn_mask, attn_bias, key_mask, valid_lens)
        tokens, hide = _check_self(x, self.blocks[0], hidden, caches[0])
        for block, own in zip(self.blocks, caches, strict=True):
            tokens = block(tokens, is_causal=is_causal, cache=own, **hide)
        output: Tensor = self.norm(tokens)
        return output.view_as(x)

    def new_cache(self) -> list[KeyValueCache]:
        """Make an empty cache for one batch: a `KeyValueCache` for each block."""
        return [KeyValueCache() for _ in self.blocks]


class TransformerDecoder(_Stack):
    """A stack of decoder blocks that all attend to the same memory (Vaswani et al., 2017, §3.1).

    The final norm and `num_layers` are as in `TransformerEncoder`.
    Arguments and errors are those of `EncoderBlock`, for all blocks.

    Example:
        >>> decoder = TransformerDecoder(2, embed_dim=6, num_heads=3, hidden_dim=24)
        >>> decoder(torch.rand(2, 5, 6), torch.rand(2, 7, 6)).shape
        torch.Size([2, 5, 6])
    """

    _block = DecoderBlock

    def forward(
        self,
        x: Float[Tensor, "*batch len embed_dim"],
        memory: Float[Tensor, "*batch memory_len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        memory_key_mask: Bool[Tensor, "*batch memory_len"] | None = None,
        memory_valid_lens: Integer[Tensor, "..."] | None = None,
        cache: Sequence[DecoderBlockCache] | None = None,
    ) -> Float[Tensor, "*batch len embed_dim"]:
        """Run `x` through all blocks, none of which sees the future in training or in evaluation.

        Arguments and errors are those of `DecoderBlock.forward`, for all blocks. `cache`, from `new_cache`,
        and the result are as in `TransformerEncoder.forward`.
        """
        caches = _check_caches(cache, DecoderBlockCache, len(self.blocks))
        hidden = (attn_mask, attn_bias, key_mask, valid_lens)
        tokens, hide = _check_self(x, self.blocks[0], hidden, caches[0])
        hidden = (memory_mask, None, memory_key_mask, memory_valid_lens)
        memory, hide["memory_mask"] = _check_memory(x, memory, self.blocks[0], hidden)
        for block, own in zip(self.blocks, caches, strict=True):
            tokens = block(tokens, memory, cache=own, **hide)
        output: Tensor = self.norm(tokens)
        return output.view_as(x)

    def new_cache(self) -> list[DecoderBlockCache]:
        """Make an empty cache for one batch: a `DecoderBlockCache` for each block."""
        return [DecoderBlockCache() for _ in self.blocks]


def _check_self(
    x: Tensor, block: Any, hidden: _Hidden, cache: Any
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Check the inputs of a self-attention before anything is computed; combine its masks once per stack."""
    one = getattr(x, "ndim", 3) == 2
    axes = "len, embed_dim" if one else "batch, len, embed_dim"
    _checks.check_width("x", x, block.embed_dim, axes=axes)
    if one:
        x, hidden = x[None], _of_one_sample(*hidden)
    attn_mask, attn_bias, key_mask, lens = hidden
    past, now = (0, lens) if cache is None else (len(cache), None)
    shape = (x.shape[0], block.self_attention.num_heads, x.shape[1], past + x.shape[1])
    mask = _combine_masks(shape, attn_mask, key_mask, now)
    lens = None if cache is None else lens  # only the cache needs them
    return x, {"attn_mask": mask, "attn_bias": attn_bias, "valid_lens": lens}


def _check_memory(
    x: Tensor, memory: object, block: Any, hidden: _Hidden
) -> tuple[Tensor, Tensor | None]:
    """Check the inputs of a cross-attention before the self-attention runs; combine its masks."""
    axes = "memory_len, embed_dim" if x.ndim == 2 else "batch, memory_len, embed_dim"
    memory = _checks.check_float_tensor("memory", memory, axes=axes)
    names = ("x", "memory")
    _checks.check_same("embed_dim", names, (x.shape[-1], memory.shape[-1]))
    _checks.check_same("batch", names, (x.shape[:-2], memory.shape[:-2]))
    _checks.check_same_kind(names, (x, memory))
    if x.ndim == 2:
        x, memory, hidden = x[None], memory[None], _of_one_sample(*hidden)
    mask, _, *of_keys = hidden
    shape = (x.shape[0], block.cross_attention.num_heads, x.shape[1], memory.shape[1])
    try:
        return memory, _combine_masks(shape, mask, *of_keys)
    except (TypeError, ValueError) as error:  # its text names masks of a self-attention
        names_there = {"attn_mask": "memory_mask", "key_mask": "memory_key_mask"}
        text = re.sub("attn_mask|key_mask", lambda at: names_there[at[0]], str(error))
        raise type(error)(text.replace("valid_lens", "memory_valid_lens")) from None


def _check_caches(cache: Any, kind: type, num_layers: int) -> Any:
    """Return one cache for each block, or None for each."""
    if cache is None:
        return [None] * num_layers
    _checks.check_type("cache", cache, Sequence)
    for own in cache:
        _checks.check_type("cache[i]", own, kind)
    lengths = [len(own) for own in cache]
    # Neither identities nor lengths are put into a set, which would tie a compiled program to them.
    repeated = sum(
        any(own is other for other in cache[:i]) for i, own in enumerate(cache)
    )
    same = all(length == lengths[0] for length in lengths)
    if len(lengths) != num_layers or repeated or not same:
        rule = f"hold one entry for each of the {num_layers} blocks, all of one length"
        got = f"{len(lengths) - repeated} of lengths {lengths}"
        raise _checks.refusal("cache", rule, got)
    return cache
