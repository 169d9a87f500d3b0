"""The whole Transformer, from tokens to tokens, and two ways to write with it: greedy and beam decoding."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib.cache import KeyValueCache
from mha_lib.positional import SinusoidalPositionalEncoding
from mha_lib.transformer import (
    DecoderBlockCache,
    TransformerDecoder,
    TransformerEncoder,
    _check_caches,
)


class EncoderDecoder(nn.Module):
    """The Transformer: reads a source, and predicts each token of a target (Vaswani et al., 2017, Figure 1).

    Both sequences are embedded and get sinusoidal positions. The encoder turns the source into a memory; the
    decoder turns the target into tokens that attend to their own past and to the memory; a linear layer gives
    the logits of the token that follows each.

    Args:
        source_vocab: number of different tokens in sources.
        target_vocab: number of different tokens in targets.
        embed_dim: width of a token.
        num_heads: number of heads of each attention; divides `embed_dim`.
        hidden_dim: width inside the feed-forward layers.
        num_layers: number of blocks in the encoder, and in the decoder.
        max_len: greatest length of a source and of a target.
        dropout: probability of all dropouts, in training only.
        options: further keyword arguments of `EncoderBlock` and `DecoderBlock`, the same for all blocks.

    Raises:
        TypeError: a size is not an int, or an option is unknown.
        ValueError: a size is not positive, or what `EncoderBlock` raises.

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
        **options: Any,
    ) -> None:
        super().__init__()
        _checks.check_sizes(source_vocab=source_vocab, target_vocab=target_vocab)
        _checks.check_sizes(embed_dim=embed_dim, max_len=max_len)
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
        """Read sources: the memory for `decode`.

        Args:
            source: tokens (batch, source_len).
            source_lens: integers (batch,), how many tokens of each source are real; default all.

        Returns:
            The memory, (batch, source_len, embed_dim). Its rows beyond `source_lens` are meaningless.

        Raises:
            TypeError: `source` is not an int64 tensor, or `source_lens` does not hold integers.
            ValueError: wrong shape, a token or a length out of range, or a source longer than `max_len`.
        """
        max_len = len(self.positions.encoding)
        _check_ids("source", source, self.source_embedding.num_embeddings, max_len)
        _check_source_lens(source_lens, *source.shape)
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
        """Predict what follows each token of the targets; no prediction sees a later token.

        Args:
            target: all tokens so far, (batch, target_len).
            memory: from `encode`.
            source_lens: as in `encode`.
            cache: from `decoder.new_cache()`, one per batch: only tokens that it does not hold are computed.

        Returns:
            Logits (batch, new, target_vocab): one row for each token that the cache did not hold.

        Raises:
            TypeError: `target` is not an int64 tensor, or a wrong dtype elsewhere.
            ValueError: wrong shape, a token or a length out of range, a target longer than `max_len`, or one
                that the cache holds whole.
        """
        max_len = len(self.positions.encoding)
        _check_ids("target", target, self.target_embedding.num_embeddings, max_len)
        axes = "batch, source_len, embed_dim"
        _checks.check_width("memory", memory, self.output.in_features, axes=axes)
        _checks.check_same_kind(("memory", "the weights"), (memory, self.output.weight))
        _checks.check_same("batch", ("target", "memory"), (len(target), len(memory)))
        _check_source_lens(source_lens, *memory.shape[:2])
        if cache is not None:
            _check_caches(cache, DecoderBlockCache, len(self.decoder.blocks))
        past = 0 if cache is None else len(cache[0])
        if past and past >= target.shape[1]:
            raise ValueError(
                f"target must be longer than what the cache holds, {past}, got {target.shape[1]}"
            )
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
        """Predict what follows each token of given targets, as training does (teacher forcing).

        Args:
            source: tokens (batch, source_len).
            target: tokens (batch, target_len), the first of which starts the answer.
            source_lens: integers (batch,), how many tokens of each source are real; default all.

        Returns:
            Logits (batch, target_len, target_vocab): row t is the prediction of target t + 1.

        Raises:
            TypeError: a sequence is not an int64 tensor, or `source_lens` does not hold integers.
            ValueError: wrong shape, a token or length out of range, or a sequence longer than `max_len`.
        """
        max_len = len(self.positions.encoding)
        _check_ids("target", target, self.target_embedding.num_embeddings, max_len)
        memory = self.encode(source, source_lens=source_lens)
        return self.decode(target, memory, source_lens=source_lens)


def greedy_decode(
    model: EncoderDecoder,
    source: Int64[Tensor, "batch source_len"],
    *,
    start: int,
    end: int,
    max_len: int,
    source_lens: Integer[Tensor, " batch"] | None = None,
    use_cache: bool = True,
) -> Int64[Tensor, "batch answer_len"]:
    """Write one answer to each source, at each step the most probable token.

    Args:
        model: see `EncoderDecoder`; call `model.eval()` first.
        source: tokens (batch, source_len).
        start: the token that starts each answer; it is not returned.
        end: the token that ends an answer; after it, an answer holds `end` only.
        max_len: greatest number of tokens of an answer.
        source_lens: integers (batch,), how many tokens of each source are real; default all.
        use_cache: compute only the newest token at each step. The answer is the same without it.

    Returns:
        Tokens (batch, answer_len), at most `max_len` of them.

    Raises:
        TypeError: `model` is not an `EncoderDecoder`, a number not an int, or what `encode` raises.
        ValueError: `max_len` is not positive or above the model's, `start` or `end` out of range, or what
            `encode` raises.

    Example:
        >>> model = EncoderDecoder(7, 5, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=1)
        >>> greedy_decode(model, torch.tensor([[1, 2, 3]]), start=0, end=1, max_len=4).shape[0]
        1
    """
    _check_decoding(model, max_len, start=start, end=end)
    with torch.no_grad():
        memory = model.encode(source, source_lens=source_lens)
        cache = model.decoder.new_cache() if use_cache else None
        tokens = source.new_full((len(source), 1), start)
        ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        while tokens.shape[1] <= max_len and not ended.all():
            logits = model.decode(tokens, memory, source_lens=source_lens, cache=cache)
            token = logits[:, -1].argmax(-1).masked_fill(ended, end)
            tokens = torch.cat((tokens, token.unsqueeze(1)), dim=1)
            ended = ended | (token == end)
    return tokens[:, 1:]


def beam_decode(
    model: EncoderDecoder,
    source: Int64[Tensor, "batch source_len"],
    *,
    start: int,
    end: int,
    max_len: int,
    beam_size: int = 4,
    source_lens: Integer[Tensor, " batch"] | None = None,
) -> tuple[Int64[Tensor, "batch beam answer_len"], Float[Tensor, "batch beam"]]:
    """Write several answers to each source: the most probable ones among those that a beam keeps.

    At each step, every answer is continued with every token, and the `beam_size` most probable answers are
    kept. Like every beam, it may miss the most probable answer of all. Probabilities are those of whole
    answers; lengths are not rewarded.

    Args:
        model: see `EncoderDecoder`; call `model.eval()` first.
        source: tokens (batch, source_len).
        start: the token that starts each answer; it is not returned.
        end: the token that ends an answer; after it, an answer holds `end` only.
        max_len: greatest number of tokens of an answer.
        beam_size: number of answers; with 1 the answer is that of `greedy_decode`.
        source_lens: integers (batch,), how many tokens of each source are real; default all.

    Returns:
        (answers, log_probs): tokens (batch, beam_size, answer_len) and the logarithms of their probabilities
        (batch, beam_size), in nats, the most probable first.

    Raises:
        TypeError: `model` is not an `EncoderDecoder`, a number not an int, or what `encode` raises.
        ValueError: a number is not positive or out of range, `beam_size` is larger than the vocabulary, or
            what `encode` raises.

    Example:
        >>> model = EncoderDecoder(7, 5, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=1)
        >>> answers, log_probs = beam_decode(
        ...     model, torch.tensor([[1, 2, 3]]), start=0, end=1, max_len=4, beam_size=3
        ... )
        >>> answers.shape[:2], log_probs.shape
        (torch.Size([1, 3]), torch.Size([1, 3]))
    """
    _check_decoding(model, max_len, start=start, end=end)
    _checks.check_positive_int("beam_size", beam_size)
    vocab = model.output.out_features
    if beam_size > vocab:
        raise ValueError(
            f"beam_size must be at most the vocabulary, {vocab}, got {beam_size}"
        )
    batch = len(source)
    with torch.no_grad():
        memory = model.encode(source, source_lens=source_lens)
        # Every answer of a beam reads the same memory: the beam is folded into the batch.
        memory = memory.repeat_interleave(beam_size, dim=0)
        lens = (
            None
            if source_lens is None
            else source_lens.repeat_interleave(beam_size, dim=0)
        )
        cache = model.decoder.new_cache()
        tokens = source.new_full((batch, beam_size, 1), start)
        # At first all answers are the same, so only one of them may be continued.
        log_probs = memory.new_full((batch, beam_size), -torch.inf)
        log_probs[:, 0] = 0.0
        ended = torch.zeros_like(log_probs, dtype=torch.bool)
        # An answer that has ended continues with `end` only, at no cost.
        only_end = memory.new_full((vocab,), -torch.inf)
        only_end[end] = 0.0
        while tokens.shape[2] <= max_len and not ended.all():
            logits = model.decode(
                tokens.flatten(0, 1), memory, source_lens=lens, cache=cache
            )
            steps = logits[:, -1].log_softmax(-1).unflatten(0, (batch, beam_size))
            steps = torch.where(ended.unsqueeze(-1), only_end, steps)
            sums = (log_probs.unsqueeze(-1) + steps).flatten(1)
            log_probs, best = sums.topk(beam_size)
            parent, token = best // vocab, best % vocab
            tokens = tokens.take_along_dim(parent.unsqueeze(-1), dim=1)
            tokens = torch.cat((tokens, token.unsqueeze(-1)), dim=2)
            ended = ended.take_along_dim(parent, dim=1) | (token == end)
            first = torch.arange(batch, device=source.device) * beam_size
            _follow(cache, (first.unsqueeze(1) + parent).flatten())
    return tokens[:, :, 1:], log_probs


def _follow(cache: list[DecoderBlockCache], rows: Tensor) -> None:
    """Give each row what its new parent remembers."""
    for block in cache:
        for part in (block.self_attention, block.cross_attention):
            _select(part, rows)


def _select(cache: KeyValueCache, rows: Tensor) -> None:
    for name in ("keys", "values", "visible"):
        held = getattr(cache, name)
        if held is not None:
            setattr(cache, name, held[rows])


def _check_decoding(model: object, max_len: object, **tokens: Any) -> None:
    _checks.check_type("model", model, EncoderDecoder)
    _checks.check_positive_int("max_len", max_len)
    assert isinstance(model, EncoderDecoder)
    longest, vocab = len(model.positions.encoding), model.output.out_features
    if isinstance(max_len, int) and max_len > longest:
        raise ValueError(
            f"max_len must be at most the model's own, {longest}, got {max_len}"
        )
    for name, token in tokens.items():
        if not 0 <= _checks.check_int(name, token) < vocab:
            raise ValueError(f"{name} must lie in 0..{vocab - 1}, got {token}")


def _check_ids(name: str, tokens: object, vocab: int, max_len: int) -> None:
    """Check tokens before they are looked up, since a wrong one may crash the device."""
    _checks.check_type(name, tokens, Tensor)
    assert isinstance(tokens, Tensor)
    if tokens.dtype != torch.int64:
        raise TypeError(f"{name} must hold int64, got {tokens.dtype}")
    if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= max_len:
        raise ValueError(
            f"{name} must have shape (batch, len) with a len in 1..max_len={max_len}, "
            f"got {tuple(tokens.shape)}"
        )
    _checks.check_numbers(name, tokens, 0, vocab - 1, f"must lie in 0..{vocab - 1}")


def _check_source_lens(lens: object, batch: int, source_len: int) -> None:
    if lens is None:
        return
    rule = f"must lie in 0..{source_len}"
    lens = _checks.check_numbers(
        "source_lens", lens, 0, source_len, rule, integers="(batch,)"
    )
    if len(lens) != batch:
        raise ValueError(f"source_lens must have shape ({batch},), got ({len(lens)},)")
