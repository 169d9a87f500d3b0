"""The whole Transformer, from tokens to tokens; `generation` uses it to write."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._block_inputs import OptionsWithoutDropout, check_caches
from mha_lib.positional import SinusoidalPositionalEncoding
from mha_lib.transformer import (
    DecoderBlockCache,
    TransformerDecoder,
    TransformerEncoder,
)


class EncoderDecoder(nn.Module):
    """The Transformer, which reads a source and predicts each target token (Vaswani et al., 2017, Figure 1).

    Both sequences are embedded, and sinusoidal positions are added. The encoder turns the source into a
    memory. In the decoder, each token of the target attends to earlier tokens and to the memory, and a linear
    layer computes the logits of the token that follows it.

    Arguments and errors are those of `TransformerEncoder`, for both stacks. In addition, `source_vocab` and
    `target_vocab` are the numbers of different tokens in sources and in targets, and `max_len` is the
    greatest length of a source and of a target; all three are positive.

    Example:
        >>> model = EncoderDecoder(7, 5, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2)
        >>> source, target = torch.tensor([[1, 2, 3, 0]]), torch.tensor([[0, 4]])
        >>> model(source, target, source_lens=torch.tensor([3])).shape
        torch.Size([1, 2, 5])
    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        num_layers: int,
        *,
        max_len: int = 1000,
        dropout: float = 0.0,
        **options: Unpack[OptionsWithoutDropout],
    ) -> None:
        super().__init__()
        _checks.check_sizes(source_vocab=source_vocab, target_vocab=target_vocab)
        _checks.check_sizes(embed_dim=embed_dim, max_len=max_len)
        self.max_len = max_len
        sizes = (num_layers, embed_dim, num_heads, hidden_dim)
        self.encoder = TransformerEncoder(*sizes, dropout=dropout, **options)
        self.decoder = TransformerDecoder(*sizes, dropout=dropout, **options)
        self.source_embedding = nn.Embedding(source_vocab, embed_dim)
        self.target_embedding = nn.Embedding(target_vocab, embed_dim)
        self.positions = SinusoidalPositionalEncoding(
            embed_dim, max_len, dropout=dropout
        )
        self.output = nn.Linear(embed_dim, target_vocab)

    def encode(
        self,
        source: Int64[Tensor, "batch source_len"],
        *,
        source_lens: Integer[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch source_len embed_dim"]:
        """Read sources and return the memory for `decode`, (batch, source_len, embed_dim).

        `source` contains tokens, (batch, source_len). `source_lens`, integers (batch,), says how many tokens
        of each source are real, default all; rows of the memory beyond that number are meaningless.

        Raises:
            TypeError: `source` is not an int64 tensor, or `source_lens` does not contain integers.
            ValueError: a shape is wrong, a token or length out of range, or a source longer than `max_len`.
        """
        _check_ids("source", source, self.source_embedding, self.max_len)
        _check_lens_of_tokens("source_lens", source_lens, 0, source)
        x = self.positions(self.source_embedding(source))
        memory: Tensor = self.encoder(x, valid_lens=source_lens)
        return memory

    def decode(
        self,
        target: Int64[Tensor, "batch target_len"],
        memory: Float[Tensor, "batch source_len embed_dim"],
        *,
        source_lens: Integer[Tensor, " batch"] | None = None,
        cache: list[DecoderBlockCache] | None = None,
    ) -> Float[Tensor, "batch new target_vocab"]:
        """Predict the token that follows each token of the targets; no prediction sees a later token.

        Arguments and errors are those of `EncoderDecoder.encode`, which returns the `memory`; the same rules
        hold for `target`, all tokens so far, (batch, target_len). With a `cache` from `decoder.new_cache()`,
        one per batch, only tokens that it does not contain are computed; there must be at least one. The
        result has one row of logits for each computed token: (batch, new, target_vocab).
        """
        _check_ids("target", target, self.target_embedding, self.max_len)
        axes = "batch, source_len, embed_dim"
        _checks.check_width("memory", memory, self.decoder.embed_dim, axes=axes)
        batches = (target.shape[0], memory.shape[0])
        _checks.check_same("batch", ("target", "memory"), batches)
        _check_lens_of_tokens("source_lens", source_lens, 0, memory)
        if cache is not None:
            check_caches(cache, DecoderBlockCache, len(self.decoder.blocks))
            if cache[0].self_attention._forgotten is not None:
                rule = "hold all tokens of the target"
                raise _checks.refusal("cache", rule, "one that has forgotten some")
        past = 0 if cache is None else len(cache[0])
        if past and past >= target.shape[1]:
            rule = f"be longer than what the cache holds, {past}"
            raise _checks.refusal("target", rule, target.shape[1])
        x = self.positions(self.target_embedding(target))[:, past:]
        x = self.decoder(x, memory, memory_valid_lens=source_lens, cache=cache)
        logits: Tensor = self.output(x)
        return logits

    def forward(
        self,
        source: Int64[Tensor, "batch source_len"],
        target: Int64[Tensor, "batch target_len"],
        *,
        source_lens: Integer[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target_len target_vocab"]:
        """Predict the token that follows each token of given targets, as in training (teacher forcing).

        Arguments and errors are those of `EncoderDecoder.encode`; the same rules hold for `target`, tokens
        (batch, target_len), the first of which starts the answer. Row t of the logits,
        (batch, target_len, target_vocab), predicts target t + 1.
        """
        _check_ids("target", target, self.target_embedding, self.max_len)
        memory = self.encode(source, source_lens=source_lens)
        return self.decode(target, memory, source_lens=source_lens)


def _num_embeddings(embedding: nn.Module) -> int:
    """Number of rows of an embedding, even if it is inside a wrapper."""
    size: int | None = getattr(embedding, "num_embeddings", None)
    if size is None:
        sizes = (getattr(part, "num_embeddings", None) for part in embedding.modules())
        size = next((inner for inner in sizes if inner), torch.iinfo(torch.int64).max)
    return size


def _check_ids(name: str, tokens: object, embedding: nn.Module, max_len: int) -> None:
    """Check tokens before they are looked up, because a wrong one may crash the device."""
    _checks.check_type(name, tokens, Tensor)
    assert isinstance(tokens, Tensor)
    if tokens.dtype != torch.int64 or tokens.is_nested:
        found = "a nested tensor" if tokens.is_nested else tokens.dtype
        raise TypeError(f"{name} must hold int64, padded to one length, got {found}")
    if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= max_len:
        rule = f"have shape (batch, len) with a len in 1..max_len={max_len}"
        raise _checks.refusal(name, rule, tuple(tokens.shape))
    size = _num_embeddings(embedding)
    _checks.check_numbers(name, tokens, 0, size - 1, f"lie in 0..{size - 1}")


def _check_lens_of_tokens(name: str, lens: object, least: int, tokens: Tensor) -> None:
    """Raise unless `lens` is None or says how many tokens of each sample, at least `least`, are real."""
    if lens is not None:
        batch, length = tokens.shape[:2]
        rule = f"lie in {least}..{_checks.shown('len', length)}"
        axes = "(batch,)"
        lens = _checks.check_numbers(name, lens, least, length, rule, integers=axes)
        if lens.shape[0] != batch:
            raise _checks.refusal(name, f"have shape ({batch},)", lens)
