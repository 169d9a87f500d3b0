"""BERT, GPT-2 and Llama: embed tokens, run blocks, predict tokens; `mha_lib.checkpoints` reads their files.

Their constructors show what distinguishes them: norms, activation, positions, biases, shared keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import Device, DType
from mha_lib.cache import KeyValueCache, _new_positions
from mha_lib.feed_forward import _ACTIVATIONS
from mha_lib.masking import _combine_masks
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.seq2seq import _check_ids
from mha_lib.transformer import TransformerEncoder, _check_caches


class _LanguageModel(nn.Module):
    """Base class: the embedding, the blocks, and the output, which may be the embedding again."""

    def __init__(
        self,
        vocab_size: int,
        sizes: tuple[int, int, int, int],
        max_len: int,
        tied: bool,
        **options: Any,
    ) -> None:
        super().__init__()
        _checks.check_sizes(vocab_size=vocab_size, max_len=max_len)
        _checks.check_type("tied", tied, bool)
        place: Any = {"device": options.get("device"), "dtype": options.get("dtype")}
        # The blocks check the other sizes, before any number is drawn.
        self.encoder = TransformerEncoder(*sizes, **options)
        self.max_len = max_len
        self.embedding = nn.Embedding(vocab_size, sizes[1], **place)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.output: nn.Linear | None = None
        if not tied:
            self.output = nn.Linear(sizes[1], vocab_size, bias=False, **place)
            nn.init.normal_(self.output.weight, std=0.02)

    def _logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """How well each token of the vocabulary fits, (batch, len, vocab_size).

        A model without an output matrix of its own compares with the embeddings (Press & Wolf, 2017).
        """
        output = self.embedding if self.output is None else self.output
        return F.linear(hidden, output.weight, bias)

    def _check_call(
        self,
        tokens: Tensor,
        key_mask: Tensor | None,
        valid_lens: Tensor | None,
        cache: Sequence[KeyValueCache] | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Check a call before anything is computed; return the tokens' positions, and what hides keys."""
        first = _check_caches(cache, KeyValueCache, len(self.encoder.blocks))[0]
        past = 0 if first is None else len(first)
        vocab_size = self.embedding.num_embeddings
        _check_ids("tokens", tokens, vocab_size, self.max_len - past)
        batch, length = tokens.shape
        attention: Any = self.encoder.get_submodule("blocks.0.self_attention")
        if first is not None:
            heads = attention.num_kv_heads
            first.check_fits((batch, heads, length, attention.head_dim), valid_lens)
        shape = (batch, attention.num_heads, length, past + length)
        # A cache stores the lengths and hides its padding itself.
        mask = _combine_masks(
            shape, None, key_mask, valid_lens if first is None else None
        )
        positions, _ = _new_positions(first, length, length, tokens.device)
        hide = {"attn_mask": mask, "valid_lens": None if first is None else valid_lens}
        return positions, hide

    def extra_repr(self) -> str:
        """Show in the printed module what its parts do not show."""
        return f"max_len={self.max_len}, tied={self.output is None}"


class _DecoderOnly(_LanguageModel):
    """Base class of the models that predict the next token: their call, with a cache or without."""

    def _embed(self, tokens: Tensor, _positions: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        return x

    def forward(
        self,
        tokens: Int64[Tensor, "batch len"],
        *,
        key_mask: Bool[Tensor, "batch all_keys"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
        cache: Sequence[KeyValueCache] | None = None,
    ) -> tuple[Float[Tensor, "batch len embed_dim"], Float[Tensor, "batch len vocab"]]:
        """Predict what follows each token; no prediction sees a later token.

        Args:
            tokens: int64 (batch, len).
            key_mask: bool, True = may attend, (batch, len), for all queries of a sample. A hidden token still
                has a position of its own.
            valid_lens: number of tokens that are visible, integers (batch,) or (batch, len).
            cache: from `new_cache`, one per batch; it grows by `tokens`, whose positions continue where it
                ends. `key_mask` then spans all its slots; `valid_lens`, (batch,), counts the new tokens.

        Returns:
            (hidden, logits): the last block's output after the final norm, (batch, len, embed_dim), and for
            each token the logits of the one that follows it, (batch, len, vocab_size).

        Raises:
            TypeError: `tokens` is not an int64 tensor, or a mask, length or cache is of the wrong type.
            ValueError: a shape does not fit, a token or length is out of range, or tokens and cache together
                are longer than `max_len`.
        """
        positions, hide = self._check_call(tokens, key_mask, valid_lens, cache)
        x = self._embed(tokens, positions)
        hidden: Tensor = self.encoder(x, is_causal=True, cache=cache, **hide)
        return hidden, self._logits(hidden)

    def new_cache(self) -> list[KeyValueCache]:
        """Make an empty cache for one batch: a `KeyValueCache` for each block."""
        return self.encoder.new_cache()


class GPT2(_DecoderOnly):
    """GPT-2 (Radford et al., 2019, §2.3): causal pre-norm blocks, learned positions, output tied to input.

    Args:
        vocab_size: number of different tokens.
        embed_dim: width of a token.
        num_heads: number of heads of each attention; divides `embed_dim`.
        hidden_dim: width inside the feed-forward layers; four times `embed_dim` in GPT-2.
        num_layers: number of blocks.
        max_len: number of positions, and so the greatest length.
        activation: of the feed-forward layers, see `FeedForward`; not "swiglu".
        layer_norm_eps: what the layer norms add under the root.
        tied: the output matrix is the embedding, as in GPT-2, not a matrix of its own.
        dropout: probability of all dropouts, in training only.
        device: where the parameters are made.
        dtype: of the parameters; default torch's default dtype.

    Raises:
        TypeError: a size is not an int, or another argument is of the wrong type.
        ValueError: a size is not positive, `activation` is "swiglu", or what `EncoderBlock` raises.

    Example:
        >>> model = GPT2(7, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2, max_len=5)
        >>> tokens = torch.tensor([[1, 2, 3, 0]])
        >>> hidden, logits = model(tokens)
        >>> hidden.shape, logits.shape
        (torch.Size([1, 4, 6]), torch.Size([1, 4, 7]))

        Reading token by token gives the same:

        >>> cache = model.new_cache()
        >>> steps = [model(token, cache=cache)[1] for token in tokens.split(1, dim=1)]
        >>> torch.allclose(torch.cat(steps, dim=1), logits, atol=1e-5)
        True
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
        place: Any = {"device": device, "dtype": dtype}
        sizes = (num_layers, embed_dim, num_heads, hidden_dim)
        options = {"dropout": dropout, "activation": activation, "bias": True}
        options |= {"layer_norm_eps": layer_norm_eps, **place}
        super().__init__(vocab_size, sizes, max_len, tied, norm_first=True, **options)
        self.position_embedding = nn.Embedding(max_len, embed_dim, **place)
        nn.init.normal_(self.position_embedding.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens) + self.position_embedding(positions)
        dropped: Tensor = self.dropout(x)
        return dropped


class Llama(_DecoderOnly):
    """Llama (Touvron et al., 2023, §2.2): RMS norms, gated feed-forward, rotary positions, no biases.

    Columns are rotated in pairs that lie half of `head_dim` apart, as in HuggingFace's files. In the files of
    Llama's authors neighbours are a pair; they need other rows of `q_proj` and `k_proj`. Large models share
    keys and values between heads (Touvron et al., 2023b, appendix A.2.1).

    Args:
        vocab_size: number of different tokens.
        embed_dim: width of a token.
        num_heads: number of heads of each attention; divides `embed_dim`, with an even quotient.
        hidden_dim: width inside the feed-forward layers.
        num_layers: number of blocks.
        max_len: the greatest length.
        num_kv_heads: number of key and value heads, see `MultiHeadAttention`; default `num_heads`.
        base: see `RotaryPositionalEncoding`.
        layer_norm_eps: what the RMS norms add under the root.
        tied: the output matrix is the embedding, not a matrix of its own.
        device: where the parameters are made.
        dtype: of the parameters; default torch's default dtype.

    Raises:
        TypeError: a size is not an int, or another argument is of the wrong type.
        ValueError: a size is not positive, or what `EncoderBlock` or `RotaryPositionalEncoding` raises.

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
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        _checks.check_sizes(embed_dim=embed_dim, num_heads=num_heads)
        _checks.check_divisible(embed_dim=embed_dim, num_heads=num_heads)
        rotary = RotaryPositionalEncoding(
            embed_dim // num_heads, base=base, interleaved=False
        )
        sizes = (num_layers, embed_dim, num_heads, hidden_dim)
        options: Any = {"norm": "rms", "activation": "swiglu", "rotary": rotary}
        options |= {"num_kv_heads": num_kv_heads, "layer_norm_eps": layer_norm_eps}
        options |= {"norm_first": True, "device": device, "dtype": dtype}
        super().__init__(vocab_size, sizes, max_len, tied, **options)


class Bert(_LanguageModel):
    """BERT (Devlin et al., 2019, §3): post-norm blocks that see both sides, segments, hidden words as task.

    The output is that of the masked-word task: a linear layer, the activation and a norm, then the embedding
    as output matrix, with a bias for each token. The classifier for pairs of sentences is not part of it.

    Args:
        vocab_size: number of different tokens.
        embed_dim: width of a token.
        num_heads: number of heads of each attention; divides `embed_dim`.
        hidden_dim: width inside the feed-forward layers; four times `embed_dim` in BERT.
        num_layers: number of blocks.
        max_len: number of positions, and so the greatest length.
        num_segments: number of different segments, such as the two sentences of a pair.
        activation: of the feed-forward layers and the output, see `FeedForward`; not "swiglu".
        layer_norm_eps: what the layer norms add under the root.
        device: where the parameters are made.
        dtype: of the parameters; default torch's default dtype.

    Raises:
        TypeError: a size is not an int, or another argument is of the wrong type.
        ValueError: a size is not positive, `activation` is "swiglu", or what `EncoderBlock` raises.

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
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        _checks.check_positive_int("num_segments", num_segments)
        _check_ungated(activation)
        place: Any = {"device": device, "dtype": dtype}
        sizes = (num_layers, embed_dim, num_heads, hidden_dim)
        options = {
            "activation": activation,
            "layer_norm_eps": layer_norm_eps,
            "bias": True,
        }
        options |= {"norm_first": False, **place}
        super().__init__(vocab_size, sizes, max_len, tied=True, **options)
        self.position_embedding = nn.Embedding(max_len, embed_dim, **place)
        self.segment_embedding = nn.Embedding(num_segments, embed_dim, **place)
        self.embedding_norm = nn.LayerNorm(embed_dim, layer_norm_eps, **place)
        self.output_proj = nn.Linear(embed_dim, embed_dim, **place)
        self.output_norm = nn.LayerNorm(embed_dim, layer_norm_eps, **place)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size, **place))
        self.activation = activation
        for part in (self.position_embedding, self.segment_embedding, self.output_proj):
            nn.init.normal_(part.weight, std=0.02)
        nn.init.zeros_(self.output_proj.bias)

    def forward(
        self,
        tokens: Int64[Tensor, "batch len"],
        segments: Int64[Tensor, "batch len"] | None = None,
        *,
        key_mask: Bool[Tensor, "batch len"] | None = None,
        valid_lens: Integer[Tensor, "batch *lens"] | None = None,
    ) -> tuple[Float[Tensor, "batch len embed_dim"], Float[Tensor, "batch len vocab"]]:
        """Predict which token belongs in each place; each prediction sees all visible tokens.

        Args:
            tokens: int64 (batch, len).
            segments: the segment of each token, int64 (batch, len); default 0.
            key_mask: bool, True = may attend, (batch, len), for all queries of a sample.
            valid_lens: number of tokens that are visible, integers (batch,) or (batch, len).

        Returns:
            (hidden, logits): the last block's output, (batch, len, embed_dim), and logits
            (batch, len, vocab_size). Rows of hidden tokens are meaningless.

        Raises:
            TypeError: `tokens` or `segments` is not an int64 tensor, or a mask or length of the wrong type.
            ValueError: a shape does not fit, a token, segment or length is out of range, or the tokens are
                more than `max_len`.
        """
        positions, hide = self._check_call(tokens, key_mask, valid_lens)
        segments = torch.zeros_like(tokens) if segments is None else segments
        num_segments = self.segment_embedding.num_embeddings
        _check_ids("segments", segments, num_segments, self.max_len)
        shapes = (tuple(tokens.shape), tuple(segments.shape))
        _checks.check_same("shape", ("tokens", "segments"), shapes)
        x = self.embedding(tokens) + self.position_embedding(positions)
        x = self.embedding_norm(x + self.segment_embedding(segments))
        hidden: Tensor = self.encoder(x, **hide)
        guess = _ACTIVATIONS[self.activation](self.output_proj(hidden))
        return hidden, self._logits(self.output_norm(guess), self.output_bias)


def _check_ungated(activation: object) -> None:
    ungated = [name for name in _ACTIVATIONS if name != "swiglu"]
    _checks.check_choice("activation", activation, ungated)
