"""Blocks and stacks of the Transformer: attention and a feed-forward layer, each with a residual and a norm.

An encoder reads a sequence; a decoder writes one while it attends to the output of the encoder. A
decoder-only model is a `TransformerEncoder` that is called with `is_causal=True`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import Device, DType
from mha_lib.cache import KeyValueCache
from mha_lib.conversion import _TorchTwin
from mha_lib.feed_forward import _ACTIVATIONS, FeedForward, RMSNorm
from mha_lib.masking import _combine_masks
from mha_lib.multi_head import MultiHeadAttention

_NORMS = ("layer", "rms")
_Map: TypeAlias = Callable[[Tensor], Tensor]
# (attn_mask, key_mask, valid_lens)
_Hidden: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]


class _Block(_TorchTwin):
    """Base class of both kinds of block: their layers, with a residual connection and a norm around each."""

    _has_memory: ClassVar[bool]
    """Whether the block attends to a memory as well."""

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
        num_kv_heads: int | None = None,
        scale: float | Float[Tensor, "..."] | None = None,
        softcap: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        rotary: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        # The attention checks its own arguments; all checks come before any weight is drawn.
        _checks.check_positive_int("hidden_dim", hidden_dim)
        _checks.check_choice("activation", activation, _ACTIVATIONS)
        _checks.check_choice("norm", norm, _NORMS)
        _checks.check_positive("layer_norm_eps", layer_norm_eps)
        self.embed_dim, self.norm_first = embed_dim, norm_first
        place: Any = {"device": device, "dtype": dtype}
        kind: Any = {"dropout": dropout, "bias": bias, **place}
        heads: Any = {"num_kv_heads": num_kv_heads, "scale": scale, "softcap": softcap}
        heads |= kind

        def new_norm() -> nn.Module:
            if norm == "rms":
                return RMSNorm(embed_dim, eps=layer_norm_eps, **place)
            return nn.LayerNorm(embed_dim, layer_norm_eps, bias=bias, **place)

        self.self_attention = MultiHeadAttention(
            embed_dim, num_heads, window=window, rotary=rotary, **heads
        )
        self.self_attention_norm = new_norm()
        if self._has_memory:
            self.cross_attention = MultiHeadAttention(embed_dim, num_heads, **heads)
            self.cross_attention_norm = new_norm()
        self.feed_forward = FeedForward(
            embed_dim, hidden_dim, activation=activation, **kind
        )
        self.feed_forward_norm = new_norm()
        self.dropout = nn.Dropout(dropout)

    def _residual(self, x: Tensor, norm: _Map, layer: _Map) -> Tensor:
        """Add the output of `layer` to `x`; only this method distinguishes pre-norm from post-norm."""
        dropout: _Map = self.dropout
        if self.norm_first:
            return x + dropout(layer(norm(x)))
        return norm(x + dropout(layer(x)))

    def _look_at_self(self, x: Tensor, **hide: Any) -> Tensor:
        return self._residual(
            x,
            self.self_attention_norm,
            lambda x: self.self_attention(x, x, x, need_weights=False, **hide)[0],
        )

    def extra_repr(self) -> str:
        """Show in the printed module whether the norm comes first."""
        return f"norm_first={self.norm_first}"


class EncoderBlock(_Block):
    """Self-attention, then a feed-forward layer (Vaswani et al., 2017, §3.1).

    Each of the two has a residual connection and a layer norm (Ba et al., 2016). With the norm before the
    layer, x + f(norm(x)), gradients stay even in deep stacks (Xiong et al., 2020); with the norm after the
    sum, norm(x + f(x)), the order is that of the paper and of BERT. Called with `is_causal=True`, this is the
    block of a decoder-only model.

    Dropout is applied where torch's layers apply it: to the attention weights, to the hidden layer, and to
    what each layer adds.

    Args:
        embed_dim: width of a token.
        num_heads: number of heads; divides `embed_dim`.
        hidden_dim: width inside the feed-forward layer.
        dropout: probability of all dropouts, in training only.
        norm_first: norm before each layer (pre-norm), not after each sum (post-norm).
        activation: of the feed-forward layer, see `FeedForward`.
        bias: add biases in linear layers and layer norms, as the paper and torch do.
        norm: "layer", or "rms", see `RMSNorm`.
        layer_norm_eps: what either kind of norm adds under the root, positive.
        num_kv_heads: see `MultiHeadAttention`.
        scale: see `MultiHeadAttention`; all layers that are given the same tensor share it.
        softcap: see `MultiHeadAttention`.
        window: see `MultiHeadAttention`.
        rotary: see `MultiHeadAttention`. Blocks may share one.
        device: where the parameters are made.
        dtype: of the parameters; default torch's default dtype.

    Raises:
        TypeError: a width or count is not an int, or another argument is of the wrong type.
        ValueError: a width or count is not positive, `num_heads` does not divide `embed_dim`, `dropout` is
            outside 0..1, `activation` or `norm` is unknown, or what `MultiHeadAttention` raises.

    Example:
        >>> block, x = EncoderBlock(embed_dim=6, num_heads=3, hidden_dim=24), torch.rand(2, 5, 6)
        >>> block(x, valid_lens=torch.tensor([3, 5])).shape
        torch.Size([2, 5, 6])
    """

    _has_memory = False

    def forward(
        self,
        x: Float[Tensor, "batch len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch len embed_dim"]:
        """Let the tokens attend to each other, then transform each token.

        Args:
            x: (batch, len, embed_dim).
            attn_mask: bool, True = may attend, (len, len), (batch, len, len) or (batch, num_heads, len, len);
                axes of size 1 broadcast.
            attn_bias: finite numbers that are added to the scores, (len, len) or
                (batch, num_heads, len, len).
            key_mask: bool, True = may attend, (batch, len), for all queries of a sample.
            valid_lens: number of tokens that are visible, integers (batch,) or (batch, len).
            is_causal: hide the future.
            cache: of the block, see `MultiHeadAttention.forward`.

        Returns:
            Tokens (batch, len, embed_dim).

        Raises:
            TypeError: wrong dtype of a tensor or mask, or `cache` is not a `KeyValueCache`.
            ValueError: shapes do not fit, or a length lies outside 0..len.
        """
        if cache is not None:
            _checks.check_type("cache", cache, KeyValueCache)
        hidden = (attn_mask, key_mask, valid_lens)
        hide = _check_self(x, self, hidden, cache)
        x = self._look_at_self(
            x, attn_bias=attn_bias, is_causal=is_causal, cache=cache, **hide
        )
        return self._residual(x, self.feed_forward_norm, self.feed_forward)


@dataclass(frozen=True)
class DecoderBlockCache:
    """What decoding remembers for one `DecoderBlock`: its own tokens, and the memory, projected once.

    `len()` is the number of tokens decoded so far, that is, of slots in `self_attention`.

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

    The memory is the output of an encoder for the source: it supplies the keys and values, the decoder
    supplies the queries. Self-attention never sees the future, neither in training nor in evaluation.
    Residuals, norms and dropout are those of `EncoderBlock`.

    Args:
        embed_dim: width of a token, and of the memory.
        num_heads: number of heads; divides `embed_dim`.
        hidden_dim: width inside the feed-forward layer.
        dropout: probability of all dropouts, in training only.
        norm_first: norm before each layer (pre-norm), not after each sum (post-norm).
        activation: of the feed-forward layer, see `FeedForward`.
        bias: add biases in linear layers and layer norms, as the paper and torch do.
        norm: "layer", or "rms", see `RMSNorm`.
        layer_norm_eps: what either kind of norm adds under the root, positive.
        num_kv_heads: see `MultiHeadAttention`; for both attentions.
        scale: see `MultiHeadAttention`; for both attentions. All layers that are given the same tensor share
            it.
        softcap: see `MultiHeadAttention`; for both attentions.
        window: see `MultiHeadAttention`; for the self-attention.
        rotary: see `MultiHeadAttention`; for the self-attention only, since positions in the memory are those
            of another sequence. Blocks may share one.
        device: where the parameters are made.
        dtype: of the parameters; default torch's default dtype.

    Raises:
        TypeError: a width or count is not an int, or another argument is of the wrong type.
        ValueError: a width or count is not positive, `num_heads` does not divide `embed_dim`, `dropout` is
            outside 0..1, `activation` or `norm` is unknown, or what `MultiHeadAttention` raises.

    Example:
        >>> block = DecoderBlock(embed_dim=6, num_heads=3, hidden_dim=24)
        >>> x, memory = torch.rand(2, 5, 6), torch.rand(2, 7, 6)
        >>> block(x, memory, memory_valid_lens=torch.tensor([7, 4])).shape
        torch.Size([2, 5, 6])
    """

    _has_memory = True

    def forward(
        self,
        x: Float[Tensor, "batch len embed_dim"],
        memory: Float[Tensor, "batch memory_len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        memory_key_mask: Bool[Tensor, "batch memory_len"] | None = None,
        memory_valid_lens: Integer[Tensor, "batch *memory_lens"] | None = None,
        cache: DecoderBlockCache | None = None,
    ) -> Float[Tensor, "batch len embed_dim"]:
        """Let the tokens attend to earlier tokens, then to the memory, then transform each token.

        Args:
            x: (batch, len, embed_dim).
            memory: (batch, memory_len, embed_dim).
            attn_mask: of the self-attention, in addition to the causal mask, which always applies: bool, True
                = may attend, (len, len), (batch, len, len) or (batch, num_heads, len, len).
            attn_bias: of the self-attention, (len, len) or (batch, num_heads, len, len).
            key_mask: bool, True = may attend, (batch, len), for all queries of a sample.
            valid_lens: number of tokens of `x` that are visible, integers (batch,) or (batch, len).
            memory_mask: bool, True = may attend, (len, memory_len), (batch, len, memory_len) or
                (batch, num_heads, len, memory_len).
            memory_key_mask: bool, True = may attend, (batch, memory_len), for all queries of a sample.
            memory_valid_lens: number of visible tokens of `memory`, integers (batch,) or (batch, len).
            cache: of the block. Its self-attention grows by `x`, see `MultiHeadAttention.forward`. The memory
                is projected only in the first call; pass the same memory, and its mask or lengths, each time.

        Returns:
            Tokens (batch, len, embed_dim).

        Raises:
            TypeError: wrong dtype of a tensor or mask, or `cache` is not a `DecoderBlockCache`.
            ValueError: shapes do not fit, a length lies outside its range, or `cache` holds a memory of
                another length.
        """
        own, projected = None, None
        if cache is not None:
            _checks.check_type("cache", cache, DecoderBlockCache)
            own, projected = cache.self_attention, cache.cross_attention
        hide = _check_self(x, self, (attn_mask, key_mask, valid_lens), own)
        hidden = (memory_mask, memory_key_mask, memory_valid_lens)
        memory_mask = _check_memory(x, memory, self, hidden)
        if projected is not None and len(projected) > 0:
            if len(projected) != memory.shape[1]:
                raise ValueError(
                    f"memory must be the one that cache holds, of length {len(projected)}, "
                    f"got shape {tuple(memory.shape)}"
                )
            memory = memory[:, :0]  # nothing is left to project

        def look_at_memory(x: Tensor) -> Tensor:
            output: Tensor = self.cross_attention(
                x, memory, memory, memory_mask, cache=projected, need_weights=False
            )[0]
            return output

        x = self._look_at_self(
            x, attn_bias=attn_bias, is_causal=True, cache=own, **hide
        )
        x = self._residual(x, self.cross_attention_norm, look_at_memory)
        return self._residual(x, self.feed_forward_norm, self.feed_forward)


class _Stack(_TorchTwin):
    """Base class of both stacks: blocks of one kind, and the norm after them."""

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

    Pre-norm blocks do not normalize their output, so a final norm follows the last block; post-norm blocks
    need none. The stack contains no embeddings and no positions.

    Args:
        num_layers: number of blocks.
        embed_dim: width of a token.
        num_heads: number of heads of each block; divides `embed_dim`.
        hidden_dim: width inside the feed-forward layers.
        options: the keyword arguments of `EncoderBlock`, the same for all blocks.

    Raises:
        TypeError: a width or count is not an int, or an option is unknown.
        ValueError: a width or count is not positive, or what `EncoderBlock` raises.

    Example:
        >>> encoder = TransformerEncoder(2, embed_dim=6, num_heads=3, hidden_dim=24, dropout=0.1).eval()
        >>> x = torch.rand(2, 5, 6)
        >>> encoder(x, valid_lens=torch.tensor([3, 5])).shape
        torch.Size([2, 5, 6])

        Decoding in two chunks gives the same as one call:

        >>> cache = encoder.new_cache()
        >>> chunks = [encoder(chunk, is_causal=True, cache=cache) for chunk in x.split([3, 2], dim=1)]
        >>> torch.allclose(torch.cat(chunks, dim=1), encoder(x, is_causal=True), atol=1e-5)
        True
    """

    _block = EncoderBlock

    def forward(
        self,
        x: Float[Tensor, "batch len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
        is_causal: bool = False,
        cache: Sequence[KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch len embed_dim"]:
        """Run `x` through all blocks, each with the same mask.

        Args:
            x: (batch, len, embed_dim).
            attn_mask: bool, True = may attend, (len, len), (batch, len, len) or (batch, num_heads, len, len);
                axes of size 1 broadcast.
            attn_bias: finite numbers that are added to the scores of all blocks, (len, len) or
                (batch, num_heads, len, len).
            key_mask: bool, True = may attend, (batch, len), for all queries of a sample.
            valid_lens: number of tokens that are visible, integers (batch,) or (batch, len).
            is_causal: hide the future. Without it, decoding in chunks does not give the same as one call.
            cache: from `new_cache`, one per batch; it grows by `x`. Mask and bias then span all its slots;
                `valid_lens`, (batch,), counts the tokens of `x`.

        Returns:
            Tokens (batch, len, embed_dim). Those beyond `valid_lens` are meaningless.

        Raises:
            TypeError: wrong dtype of a tensor or mask, or `cache` holds no `KeyValueCache`.
            ValueError: shapes do not fit, a length lies outside 0..len, or `cache` is not from this stack.
        """
        caches = _check_caches(cache, KeyValueCache, len(self.blocks))
        hidden = (attn_mask, key_mask, valid_lens)
        hide = _check_self(x, self.blocks[0], hidden, caches[0])
        for block, own in zip(self.blocks, caches, strict=True):
            x = block(x, attn_bias=attn_bias, is_causal=is_causal, cache=own, **hide)
        output: Tensor = self.norm(x)
        return output

    def new_cache(self) -> list[KeyValueCache]:
        """Make an empty cache for one batch: a `KeyValueCache` for each block."""
        return [KeyValueCache() for _ in self.blocks]


class TransformerDecoder(_Stack):
    """A stack of decoder blocks that all attend to the same memory (Vaswani et al., 2017, §3.1).

    The final norm is as in `TransformerEncoder`.

    Args:
        num_layers: number of blocks.
        embed_dim: width of a token, and of the memory.
        num_heads: number of heads of each attention; divides `embed_dim`.
        hidden_dim: width inside the feed-forward layers.
        options: the keyword arguments of `DecoderBlock`, the same for all blocks.

    Raises:
        TypeError: a width or count is not an int, or an option is unknown.
        ValueError: a width or count is not positive, or what `DecoderBlock` raises.

    Example:
        >>> decoder = TransformerDecoder(2, embed_dim=6, num_heads=3, hidden_dim=24)
        >>> x, memory = torch.rand(2, 5, 6), torch.rand(2, 7, 6)
        >>> whole = decoder(x, memory)

        Decoding token by token gives the same, and projects the memory once:

        >>> cache = decoder.new_cache()
        >>> steps = [decoder(token, memory, cache=cache) for token in x.split(1, dim=1)]
        >>> torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-5)
        True
    """

    _block = DecoderBlock

    def forward(
        self,
        x: Float[Tensor, "batch len embed_dim"],
        memory: Float[Tensor, "batch memory_len embed_dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        memory_key_mask: Bool[Tensor, "batch memory_len"] | None = None,
        memory_valid_lens: Integer[Tensor, "batch *memory_lens"] | None = None,
        cache: Sequence[DecoderBlockCache] | None = None,
    ) -> Float[Tensor, "batch len embed_dim"]:
        """Run `x` through all blocks; none of them sees the future, in training and evaluation alike.

        Args:
            x: (batch, len, embed_dim).
            memory: (batch, memory_len, embed_dim).
            attn_mask: of the self-attention, in addition to the causal mask: bool, True = may attend,
                (len, len), (batch, len, len) or (batch, num_heads, len, len); axes of size 1 broadcast.
            attn_bias: of the self-attention, (len, len) or (batch, num_heads, len, len).
            key_mask: bool, True = may attend, (batch, len), for all queries of a sample.
            valid_lens: number of tokens of `x` that are visible, integers (batch,) or (batch, len).
            memory_mask: bool, True = may attend, (len, memory_len), (batch, len, memory_len) or
                (batch, num_heads, len, memory_len).
            memory_key_mask: bool, True = may attend, (batch, memory_len), for all queries of a sample.
            memory_valid_lens: number of visible tokens of `memory`, integers (batch,) or (batch, len).
            cache: from `new_cache`, one per batch; it grows by `x`. `attn_mask` and `attn_bias` then span all
                its slots; `valid_lens`, (batch,), counts the tokens of `x`. Pass the same memory, and its
                mask or lengths, in each call.

        Returns:
            Tokens (batch, len, embed_dim). Those beyond `valid_lens` are meaningless.

        Raises:
            TypeError: wrong dtype of a tensor or mask, or `cache` holds no `DecoderBlockCache`.
            ValueError: shapes do not fit, a length lies outside its range, or `cache` is not from this stack
                and memory.
        """
        caches = _check_caches(cache, DecoderBlockCache, len(self.blocks))
        hidden = (attn_mask, key_mask, valid_lens)
        hide = _check_self(x, self.blocks[0], hidden, caches[0])
        hidden = (memory_mask, memory_key_mask, memory_valid_lens)
        memory_mask = _check_memory(x, memory, self.blocks[0], hidden)
        hide |= {"attn_bias": attn_bias, "memory_mask": memory_mask}
        for block, own in zip(self.blocks, caches, strict=True):
            x = block(x, memory, cache=own, **hide)
        output: Tensor = self.norm(x)
        return output

    def new_cache(self) -> list[DecoderBlockCache]:
        """Make an empty cache for one batch: a `DecoderBlockCache` for each block."""
        return [DecoderBlockCache() for _ in self.blocks]


def _check_self(
    x: Tensor, block: Any, hidden: _Hidden, cache: Any
) -> dict[str, Tensor | None]:
    """Check a self-attention's inputs before anything is computed; combine its masks once for a stack.

    With a cache, lengths stay lengths, because the cache stores them.
    """
    proj = block.self_attention.q_proj
    _checks.check_tokens(x, block.embed_dim, proj, "batch, len, embed_dim")
    attn_mask, key_mask, lens = hidden
    past, now = (0, lens) if cache is None else (len(cache), None)
    shape = (x.shape[0], block.self_attention.num_heads, x.shape[1], past + x.shape[1])
    mask = _combine_masks(shape, attn_mask, key_mask, now)
    return {"attn_mask": mask, "valid_lens": None if cache is None else lens}


def _check_memory(
    x: Tensor, memory: object, block: Any, hidden: _Hidden
) -> Tensor | None:
    """Check the inputs of a cross-attention before the self-attention runs, and combine its masks."""
    axes = "batch, memory_len, embed_dim"
    memory = _checks.check_float_tensor("memory", memory, axes=axes)
    names = ("x", "memory")
    _checks.check_same("embed_dim", names, (x.shape[2], memory.shape[2]))
    _checks.check_same("batch", names, (x.shape[0], memory.shape[0]))
    _checks.check_same_kind(names, (x, memory))
    shape = (x.shape[0], block.cross_attention.num_heads, x.shape[1], memory.shape[1])
    try:
        return _combine_masks(shape, *hidden)
    except (
        TypeError,
        ValueError,
    ) as error:  # the error names the masks of a self-attention
        names_there = {"attn_mask": "memory_mask", "key_mask": "memory_key_mask"}
        text = re.sub("attn_mask|key_mask", lambda at: names_there[at[0]], str(error))
        raise type(error)(text.replace("valid_lens", "memory_valid_lens")) from None


def _check_caches(cache: Any, kind: type, num_layers: int) -> Any:
    """One cache for each block, or None for each."""
    if cache is None:
        return [None] * num_layers
    _checks.check_type("cache", cache, Sequence)
    for own in cache:
        _checks.check_type("cache[i]", own, kind)
    lengths = [len(own) for own in cache]
    different = len({id(own) for own in cache})
    if not len(lengths) == different == num_layers or len(set(lengths)) != 1:
        raise ValueError(
            f"cache must hold one entry for each of the {num_layers} blocks, all of one length, "
            f"got {different} of lengths {lengths}"
        )
    return cache
