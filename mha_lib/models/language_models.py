"""BERT, GPT-2 and Llama: embed tokens, run blocks, predict tokens; `checkpoints` reads their files.

Their constructors show how they differ: in norms, activation, positions, biases and shared keys. They take
tokens, not embeddings, so peft's adapters fit them (LoRA), but not its prompt tuning.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._block_inputs import BlockOptions, check_caches
from mha_lib._checks import Device, DType, FactoryKwargs
from mha_lib.cache import KeyValueCache, _new_positions
from mha_lib.feed_forward import _ACTIVATIONS
from mha_lib.masking import _combine_masks
from mha_lib.models.rotary_scaling import RotaryScaling
from mha_lib.models.seq2seq import _check_ids, _num_embeddings
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.transformer import TransformerEncoder


class _CheckedCall(NamedTuple):
    """What the blocks of a model are given, checked."""

    positions: Tensor  # of the tokens, (len,) or (batch, len)
    attn_mask: Tensor | None
    valid_lens: Tensor | None  # for the cache, which stores them; else part of the mask


class _LanguageModel(nn.Module):
    """Base class: the embedding, the blocks, and the output matrix, which may be the embedding."""

    def __init__(
        self,
        vocab_size: int,
        sizes: tuple[int, int, int, int],
        max_len: int,
        tied: bool,
        head: bool = True,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        _checks.check_sizes(vocab_size=vocab_size, max_len=max_len)
        _checks.check_flags(tied=tied, head=head)
        device, dtype = options.get("device"), options.get("dtype")
        # The blocks check the other sizes before any number is drawn.
        self.encoder = TransformerEncoder(*sizes, **options)
        self.max_len, self.head = max_len, head
        self.embedding = nn.Embedding(vocab_size, sizes[1], device=device, dtype=dtype)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.output: nn.Linear | None = None
        if head and not tied:
            self.output = nn.Linear(
                sizes[1], vocab_size, bias=False, device=device, dtype=dtype
            )
            nn.init.normal_(self.output.weight, std=0.02)

    def _logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """The score of each token of the vocabulary, (batch, len, vocab_size); None without a head.

        A model without its own output matrix uses the embedding instead (Press & Wolf, 2017).
        """
        if not self.head:
            return None
        if self.output is None:
            embed = self.embedding
            if type(embed) is nn.Embedding and embed.weight.device == hidden.device:
                return F.linear(hidden, embed.weight, bias)
            # A wrapper that adapts or fetches the table acts only if the embedding is called.
            tokens = torch.arange(_num_embeddings(embed), device=hidden.device)
            return F.linear(hidden, embed(tokens), bias)
        # The layer is called, not just its matrix used, because it may be wrapped, quantized or sharded.
        logits: Tensor = self.output(hidden)
        return logits

    def _check_call(
        self,
        tokens: Tensor,
        key_mask: Tensor | None,
        valid_lens: Tensor | None,
        cache: Sequence[KeyValueCache] | None,
        positions: Tensor | None,
    ) -> _CheckedCall:
        """Check a call before anything is computed; return the tokens' positions and the masks."""
        first = check_caches(cache, KeyValueCache, len(self.encoder.blocks))[0]
        past = 0 if first is None else len(first)
        forgot = first is not None and first._forgotten is not None
        last = int(first.lens.max()) if first is not None and forgot else past
        _check_ids("tokens", tokens, self.embedding, self.max_len - last)
        batch, length = tokens.shape
        attention = self.encoder._first_block.self_attention
        if first is not None:
            sizes = (batch, attention.num_kv_heads, length, attention.head_dim)
            first.check_fits(sizes, valid_lens)
        shape = (batch, attention.num_heads, length, past + length)
        # A cache stores the lengths and hides its padding itself.
        mask = _combine_masks(
            shape, None, key_mask, valid_lens if first is None else None
        )
        if positions is None:
            positions, _ = _new_positions(first, length, length, tokens.device)
            if key_mask is not None:
                if forgot and hasattr(self, "position_embedding"):
                    rule = "come with positions where the cache has forgotten tokens"
                    raise _checks.refusal("key_mask", rule, "positions=None")
                # A token is as far from the first visible one as without the padding on the left.
                padding = (key_mask.cumsum(1) == 0).sum(1, keepdim=True)
                positions = (positions - padding).clamp(min=0)
        else:
            self._check_token_positions(positions, batch, length)
        return _CheckedCall(positions, mask, None if first is None else valid_lens)

    def _check_token_positions(
        self, positions: object, batch: int, length: int
    ) -> None:
        if not hasattr(self, "position_embedding"):
            why = "rotations depend on distances, which padding does not change"
            raise _checks.refusal("positions", f"be None: {why}", positions)
        rule, axes = f"lie in 0..max_len-1={self.max_len - 1}", "(len,) or (batch, len)"
        numbers = _checks.check_numbers(
            "positions", positions, 0, self.max_len - 1, rule, integers=axes
        )
        if tuple(numbers.shape) not in ((length,), (1, length), (batch, length)):
            rule = f"have shape {axes} for tokens of shape {(batch, length)}"
            raise _checks.refusal("positions", rule, numbers)

    def extra_repr(self) -> str:
        """Show the settings that the printed parts do not show."""
        output = f"tied={self.output is None}" if self.head else "head=False"
        return f"max_len={self.max_len}, {output}"


class _DecoderOnly(_LanguageModel):
    """Base class of the models that predict the next token, with or without a cache."""

    def _embed(self, tokens: Tensor, _positions: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        return x

    def forward(
        self,
        tokens: Int64[Tensor, "batch len"],
        *,
        positions: Integer[Tensor, "*batch len"] | None = None,
        key_mask: Bool[Tensor, "batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
        cache: Sequence[KeyValueCache] | None = None,
        logits_to_keep: int | Integer[Tensor, "batch kept"] | None = None,
    ) -> tuple[
        Float[Tensor, "batch len embed_dim"], Float[Tensor, "batch kept vocab"] | None
    ]:
        """Predict the token that follows each token; no prediction sees a later token.

        Args:
            tokens: int64 (batch, len).
            positions: integers (len,) or (batch, len), the position of each token; default 0, 1, 2, ...,
                counted from the first token that `key_mask` shows. Models with rotary positions take none
                and need none.
            key_mask: bool, True = may attend, (batch, len), for all queries of a sample. Without `positions`,
                hidden tokens after the first visible one are counted in the positions too.
            valid_lens: number of visible tokens, integers (batch,) or (batch, len).
            cache: from `new_cache`, one per batch. `tokens` are appended, and their positions continue where
                it ends. `key_mask` then covers all slots, and `valid_lens`, (batch,), counts the new tokens.
            logits_to_keep: which tokens get logits: how many of the last ones, or their indices, integers
                (batch, kept); default all. Decoding needs only those of the last real token, and
                the others take much memory if the vocabulary is large.

        Returns:
            (hidden, logits): the last block's output after the final norm, (batch, len, embed_dim), and for
            each token that is kept, the logits of the one that follows it, (batch, kept, vocab_size).

        Raises:
            TypeError: `tokens` is not an int64 tensor, or a mask, length or cache is of the wrong type.
            ValueError: a shape does not fit, a token, length or place is out of range, or tokens and cache
                together are longer than `max_len`.
        """
        call = self._check_call(tokens, key_mask, valid_lens, cache, positions)
        _check_kept(logits_to_keep, tokens)
        hidden: Tensor = self.encoder(
            self._embed(tokens, call.positions),
            call.attn_mask,
            valid_lens=call.valid_lens,
            is_causal=True,
            cache=cache,
        )
        kept = hidden
        if isinstance(logits_to_keep, Tensor):
            kept = hidden.take_along_dim(logits_to_keep.long().unsqueeze(-1), dim=1)
        elif logits_to_keep is not None:
            kept = hidden[:, -logits_to_keep:]
        return hidden, self._logits(kept)

    def new_cache(self) -> list[KeyValueCache]:
        """Make an empty cache for one batch: a `KeyValueCache` for each block."""
        return self.encoder.new_cache()


class GPT2(_DecoderOnly):
    """GPT-2 (Radford et al., 2019, §2.3; its code): causal pre-norm blocks, learned positions, tied output.

    Arguments and errors are those of `TransformerEncoder`, with these exceptions. `vocab_size`, positive, is
    the number of different tokens. `max_len`, positive, is the number of positions and therefore the greatest
    length. `activation` must not be "swiglu". `tied` says whether the output matrix is the embedding, as in
    GPT-2, or a separate matrix. In GPT-2, `hidden_dim` is four times `embed_dim`.

    Example:
        >>> model = GPT2(7, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2, max_len=5)
        >>> hidden, logits = model(torch.tensor([[1, 2, 3, 0]]))
        >>> hidden.shape, logits.shape
        (torch.Size([1, 4, 6]), torch.Size([1, 4, 7]))
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        num_layers: int,
        *,
        max_len: int,
        activation: str = "gelu_tanh",
        layer_norm_eps: float = 1e-5,
        tied: bool = True,
        dropout: float = 0.0,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        _check_ungated(activation)
        super().__init__(
            vocab_size,
            (num_layers, embed_dim, num_heads, hidden_dim),
            max_len,
            tied,
            norm_first=True,
            dropout=dropout,
            activation=activation,
            bias=True,
            layer_norm_eps=layer_norm_eps,
            device=device,
            dtype=dtype,
        )
        self.position_embedding = nn.Embedding(
            max_len, embed_dim, device=device, dtype=dtype
        )
        nn.init.normal_(self.position_embedding.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens) + self.position_embedding(positions)
        dropped: Tensor = self.dropout(x)
        return dropped


class Llama(_DecoderOnly):
    """Llama (Touvron et al., 2023, §2.2; its code): RMS norms, gated feed-forward, rotary, no biases.

    Columns are rotated in pairs that lie half of `head_dim` apart, as in HuggingFace's files. In the files of
    Llama's authors, neighbouring columns are a pair, so the rows of `q_proj` and `k_proj` are in a different
    order. Large models share keys and values between heads (Touvron et al., 2023b, appendix A.2.1).

    Arguments and errors are those of `GPT2`, with these exceptions. `num_kv_heads` is as in
    `MultiHeadAttention`, `base` and `scaling` as in `RotaryPositionalEncoding`. The RMS norms add
    `layer_norm_eps`, `tied` is False by default, and the width of a head must be even.

    Later models differ in a few settings, for which see `MultiHeadAttention`. Mistral (Jiang et al., 2023,
    §2) has a `window`; its sliding window of w tokens is (w - 1, 0) here. Qwen2 (Yang et al., 2024, §2.2) has
    `attention_bias` for queries, keys and values. Qwen3 (Yang et al., 2025, §2) has `qk_norm` and sets
    `head_dim` separately. `mlp_bias` adds biases to the feed-forward layers. Without a `head`, there is no
    output matrix, and the logits are None.

    Example:
        >>> model = Llama(
        ...     7, embed_dim=12, num_heads=6, hidden_dim=17, num_layers=2, max_len=5, num_kv_heads=2
        ... )
        >>> model(torch.tensor([[1, 2, 3, 0]]))[1].shape
        torch.Size([1, 4, 7])
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        num_layers: int,
        *,
        max_len: int,
        num_kv_heads: int | None = None,
        base: float = 10_000.0,
        layer_norm_eps: float = 1e-6,
        tied: bool = False,
        head_dim: int | None = None,
        attention_bias: bool | Collection[str] = False,
        mlp_bias: bool = False,
        qk_norm: bool = False,
        window: tuple[int | None, int | None] | None = None,
        scaling: RotaryScaling | None = None,
        head: bool = True,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        _checks.check_sizes(embed_dim=embed_dim, num_heads=num_heads)
        _checks.check_flags(mlp_bias=mlp_bias)
        if head_dim is None:
            _checks.check_divisible(embed_dim=embed_dim, num_heads=num_heads)
            head_dim = embed_dim // num_heads
        super().__init__(
            vocab_size,
            (num_layers, embed_dim, num_heads, hidden_dim),
            max_len,
            tied,
            head,
            norm="rms",
            norm_first=True,
            activation="swiglu",
            rotary=RotaryPositionalEncoding(
                head_dim, base=base, interleaved=False, scaling=scaling
            ),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            layer_norm_eps=layer_norm_eps,
            qk_norm=qk_norm,
            window=window,
            attention_bias=attention_bias,
            bias=mlp_bias,
            device=device,
            dtype=dtype,
        )


class Bert(_LanguageModel):
    """BERT (Devlin et al., 2019, §3): post-norm blocks that see both sides, segments, and masked words.

    The output head is that of the masked-word task: a linear layer, the blocks' activation and a norm, then
    the embedding as output matrix, with a bias for each token. There is no classifier for pairs of sentences.

    Arguments and errors are those of `GPT2`. In addition, `num_segments` is the number of different segments,
    such as the two sentences of a pair. Without a `head`, the logits are None.

    Example:
        >>> model = Bert(7, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2, max_len=5)
        >>> hidden, logits = model(torch.tensor([[1, 2, 3, 0]]), valid_lens=torch.tensor([3]))
        >>> hidden.shape, logits.shape
        (torch.Size([1, 4, 6]), torch.Size([1, 4, 7]))
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        num_layers: int,
        *,
        max_len: int,
        num_segments: int = 2,
        activation: str = "gelu",
        layer_norm_eps: float = 1e-12,
        head: bool = True,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        _checks.check_positive_int("num_segments", num_segments)
        _check_ungated(activation)
        factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}
        super().__init__(
            vocab_size,
            (num_layers, embed_dim, num_heads, hidden_dim),
            max_len,
            tied=True,
            head=head,
            activation=activation,
            layer_norm_eps=layer_norm_eps,
            bias=True,
            norm_first=False,
            **factory_kwargs,
        )
        self.position_embedding = nn.Embedding(max_len, embed_dim, **factory_kwargs)
        self.segment_embedding = nn.Embedding(num_segments, embed_dim, **factory_kwargs)
        self.embedding_norm = nn.LayerNorm(embed_dim, layer_norm_eps, **factory_kwargs)
        self.activation = activation
        drawn = [self.position_embedding.weight, self.segment_embedding.weight]
        if head:
            self.output_proj = nn.Linear(embed_dim, embed_dim, **factory_kwargs)
            self.output_norm = nn.LayerNorm(embed_dim, layer_norm_eps, **factory_kwargs)
            self.output_bias = nn.Parameter(torch.zeros(vocab_size, **factory_kwargs))
            nn.init.zeros_(self.output_proj.bias)
            drawn.append(self.output_proj.weight)
        for weight in drawn:
            nn.init.normal_(weight, std=0.02)

    def forward(
        self,
        tokens: Int64[Tensor, "batch len"],
        segments: Int64[Tensor, "batch len"] | None = None,
        *,
        positions: Integer[Tensor, "*batch len"] | None = None,
        key_mask: Bool[Tensor, "batch len"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
    ) -> tuple[
        Float[Tensor, "batch len embed_dim"], Float[Tensor, "batch len vocab"] | None
    ]:
        """Predict which token belongs at each position; each prediction sees all visible tokens.

        Arguments and errors are those of `GPT2.forward`. In addition, `segments`, int64 (batch, len), is the
        segment of each token, default 0. The results are the last block's output, (batch, len, embed_dim),
        and the logits, (batch, len, vocab_size). Their rows are meaningless for hidden tokens.
        """
        call = self._check_call(tokens, key_mask, valid_lens, None, positions)
        segments = torch.zeros_like(tokens) if segments is None else segments
        _check_ids("segments", segments, self.segment_embedding, self.max_len)
        shapes = (tuple(tokens.shape), tuple(segments.shape))
        _checks.check_same("shape", ("tokens", "segments"), shapes)
        x = self.embedding(tokens) + self.position_embedding(call.positions)
        x = self.embedding_norm(x + self.segment_embedding(segments))
        hidden: Tensor = self.encoder(x, call.attn_mask)
        if not self.head:
            return hidden, None
        predicted = _ACTIVATIONS[self.activation](self.output_proj(hidden))
        return hidden, self._logits(self.output_norm(predicted), self.output_bias)


def _check_kept(kept: object, tokens: Tensor) -> None:
    """Raise unless `kept` is None, a number of tokens, or places of tokens, (batch, kept)."""
    if kept is None:
        return
    batch, length = tokens.shape
    name, rule = "logits_to_keep", f"lie in 0..{_checks.shown('len-1', length - 1)}"
    if not isinstance(kept, Tensor):
        if not 1 <= _checks.check_int(name, kept) <= length:
            raise _checks.refusal(name, f"lie in 1..len={length}", kept)
        return
    axes = "(len,) or (batch, len)"
    places = _checks.check_numbers(name, kept, 0, length - 1, rule, integers=axes)
    if places.ndim != 2 or places.shape[0] != batch:
        rule = f"be a number, or places of shape (batch={batch}, kept)"
        raise _checks.refusal(name, rule, places)


def _check_ungated(activation: object) -> None:
    ungated = [name for name in _ACTIVATIONS if name != "swiglu"]
    _checks.check_choice("activation", activation, ungated)
