"""Blocks and stacks of the Transformer: attention and a feed-forward layer, each with a residual and a norm.

For a decoder-only model, call a `TransformerEncoder` with `is_causal=True`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeAlias, Unpack, cast

from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._block_inputs import (
    BlockOptions,
    Rotary,
    SelfInputs,
    Window,
    check_caches,
    check_memory,
    check_self,
    refuse_unknown,
)
from mha_lib._checks import Device, DType, FactoryKwargs
from mha_lib.cache import KeyValueCache
from mha_lib.conversion import _TorchTwin
from mha_lib.feed_forward import _ACTIVATIONS, FeedForward, RMSNorm
from mha_lib.masking import _MaskArguments
from mha_lib.multi_head import MultiHeadAttention

_NORMS = ("layer", "rms")
_Map: TypeAlias = Callable[[Tensor], Tensor]


def _norm_maker(
    norm: str, embed_dim: int, eps: float, bias: bool, factory_kwargs: FactoryKwargs
) -> Callable[[], nn.Module]:
    """Return a function that makes the norms of a block, all of one kind."""
    if norm == "rms":
        return partial(RMSNorm, embed_dim, eps=eps, **factory_kwargs)
    return partial(nn.LayerNorm, embed_dim, eps, bias=bias, **factory_kwargs)


class _Block(_TorchTwin):
    """Base class of both kinds of block: the layers, each with a residual connection and a norm."""

    _attention = MultiHeadAttention
    _has_memory: ClassVar[bool]  # whether the block also attends to a memory
    cross_attention: MultiHeadAttention
    cross_attention_norm: nn.Module

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
        window: Window = None,
        rotary: Rotary = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | Float[Tensor, "..."] | None = None,
        softcap: float | None = None,
        qk_norm: bool = False,
        sink: bool = False,
        device: Device = None,
        dtype: DType = None,
        **unknown: object,
    ) -> None:
        super().__init__()
        refuse_unknown(type(self).__name__, unknown)
        # The attention layer checks its own arguments. All checks run before any weight is drawn.
        _checks.check_positive_int("hidden_dim", hidden_dim)
        _checks.check_choice("activation", activation, _ACTIVATIONS)
        _checks.check_choice("norm", norm, _NORMS)
        _checks.check_positive("layer_norm_eps", layer_norm_eps)
        self.embed_dim, self.norm_first = embed_dim, norm_first
        factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}

        new_attention = partial(
            MultiHeadAttention,
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dropout=dropout,
            bias=bias if attention_bias is None else attention_bias,
            scale=scale,
            softcap=softcap,
            qk_norm=qk_norm,
            norm_eps=layer_norm_eps,
            sink=sink,
            **factory_kwargs,
        )
        new_norm = _norm_maker(norm, embed_dim, layer_norm_eps, bias, factory_kwargs)
        self.self_attention = new_attention(window=window, rotary=rotary)
        self.self_attention_norm = new_norm()
        if self._has_memory:
            self.cross_attention = new_attention()
            self.cross_attention_norm = new_norm()
        self.feed_forward = FeedForward(
            embed_dim,
            hidden_dim,
            dropout=dropout,
            activation=activation,
            bias=bias,
            **factory_kwargs,
        )
        self.feed_forward_norm = new_norm()
        self.dropout = nn.Dropout(dropout)

    def _residual(self, x: Tensor, norm: _Map, layer: _Map) -> Tensor:
        """Add the output of `layer` to `x`; only this method distinguishes pre-norm from post-norm."""
        dropout: _Map = self.dropout
        if self.norm_first:
            return x + dropout(layer(norm(x)))
        return norm(x + dropout(layer(x)))

    def _attend_to_self(
        self, inputs: SelfInputs, is_causal: bool, cache: KeyValueCache | None
    ) -> Tensor:
        def self_attention(x: Tensor) -> Tensor:
            output: Tensor = self.self_attention(
                x,
                x,
                x,
                inputs.attn_mask,
                attn_bias=inputs.attn_bias,
                valid_lens=inputs.valid_lens,
                is_causal=is_causal,
                cache=cache,
                need_weights=False,
            )[0]
            return output

        return self._residual(inputs.tokens, self.self_attention_norm, self_attention)

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
        num_kv_heads, head_dim: see `MultiHeadAttention`.
        scale, softcap: see `MultiHeadAttention`; layers that are given the same tensor as `scale` share it.
        qk_norm, sink: see `MultiHeadAttention`.
        device, dtype: device and dtype of the parameters; default torch's.
        unknown: any other option is rejected, with a list of these.

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
        masks = _MaskArguments(attn_mask, attn_bias, key_mask, valid_lens)
        heads = self.self_attention.num_heads
        inputs = check_self(x, self.embed_dim, heads, masks, cache)
        tokens = self._attend_to_self(inputs, is_causal, cache)
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
        decoded, projected = None, None
        if cache is not None:
            _checks.check_type("cache", cache, DecoderBlockCache)
            decoded, projected = cache.self_attention, cache.cross_attention
        masks = _MaskArguments(attn_mask, attn_bias, key_mask, valid_lens)
        heads = self.self_attention.num_heads
        inputs = check_self(x, self.embed_dim, heads, masks, decoded)
        masks = _MaskArguments(memory_mask, None, memory_key_mask, memory_valid_lens)
        heads = self.cross_attention.num_heads
        memory, memory_mask = check_memory(x, memory, heads, masks)
        if projected is not None and len(projected) > 0:
            if len(projected) != memory.shape[1]:
                rule = f"be the one in the cache, of length {len(projected)}"
                raise _checks.refusal("memory", rule, f"shape {tuple(memory.shape)}")
            memory = memory[:, :0]  # it has already been projected

        def cross_attention(x: Tensor) -> Tensor:
            output: Tensor = self.cross_attention(
                x, memory, memory, memory_mask, cache=projected, need_weights=False
            )[0]
            return output

        tokens = self._attend_to_self(inputs, is_causal=True, cache=decoded)
        tokens = self._residual(tokens, self.cross_attention_norm, cross_attention)
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
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        _checks.check_positive_int("num_layers", num_layers)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.blocks = nn.ModuleList(
            self._block(embed_dim, num_heads, hidden_dim, **options)
            for _ in range(num_layers)
        )
        self.norm: nn.Module = nn.Identity()
        if self._first_block.norm_first:
            self.norm = copy.deepcopy(self._first_block.feed_forward_norm)

    @property
    def _first_block(self) -> _Block:
        return cast(_Block, self.blocks[0])


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
        caches = check_caches(cache, KeyValueCache, len(self.blocks))
        masks = _MaskArguments(attn_mask, attn_bias, key_mask, valid_lens)
        heads = self._first_block.self_attention.num_heads
        inputs = check_self(x, self.embed_dim, heads, masks, caches[0])
        tokens = inputs.tokens
        for block, block_cache in zip(self.blocks, caches, strict=True):
            tokens = block(
                tokens,
                inputs.attn_mask,
                attn_bias=inputs.attn_bias,
                valid_lens=inputs.valid_lens,
                is_causal=is_causal,
                cache=block_cache,
            )
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
        caches = check_caches(cache, DecoderBlockCache, len(self.blocks))
        decoded = None if caches[0] is None else caches[0].self_attention
        masks = _MaskArguments(attn_mask, attn_bias, key_mask, valid_lens)
        heads = self._first_block.self_attention.num_heads
        inputs = check_self(x, self.embed_dim, heads, masks, decoded)
        masks = _MaskArguments(memory_mask, None, memory_key_mask, memory_valid_lens)
        heads = self._first_block.cross_attention.num_heads
        memory, memory_mask = check_memory(x, memory, heads, masks)
        tokens = inputs.tokens
        for block, block_cache in zip(self.blocks, caches, strict=True):
            tokens = block(
                tokens,
                memory,
                inputs.attn_mask,
                attn_bias=inputs.attn_bias,
                valid_lens=inputs.valid_lens,
                memory_mask=memory_mask,
                cache=block_cache,
            )
        output: Tensor = self.norm(tokens)
        return output.view_as(x)

    def new_cache(self) -> list[DecoderBlockCache]:
        """Make an empty cache for one batch: a `DecoderBlockCache` for each block."""
        return [DecoderBlockCache() for _ in self.blocks]
