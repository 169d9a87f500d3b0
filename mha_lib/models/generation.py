"""Generate text: one loop for greedy decoding, sampling and beams, decoder-only or encoder–decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor

from mha_lib import _checks
from mha_lib._checks import refusal
from mha_lib._fast import leave_open
from mha_lib.masking import _check_bool
from mha_lib.models.language_models import GPT2, Llama
from mha_lib.models.seq2seq import (
    EncoderDecoder,
    _check_ids,
    _check_lens_of_tokens,
    _num_embeddings,
)


class _Writing(NamedTuple):
    """What the loop needs from a model: its next logits, and a way for rows to continue other rows."""

    logits: Callable[[Tensor], Tensor]  # new tokens (rows, new) -> (rows, vocab)
    follow: Callable[[Tensor], None]


def _write(
    model: _Writing,
    first: Tensor,
    sizes: tuple[int, int, int],
    stops: Sequence[int],
    choose: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Continue each prompt in several rows until all stop; `choose` draws tokens, None stands for a beam.

    Returns the new tokens, (batch, rows, new), and their log-probabilities, (batch, rows).
    """
    batch, rows, max_new = sizes
    tokens = first.new_empty((batch, rows, 0))
    newest, log_probs, ended = first, torch.zeros(()), torch.zeros(())
    stop = torch.tensor(stops, device=first.device)
    start = torch.arange(batch, device=first.device).unsqueeze(1)
    for step in range(max_new):
        logits = model.logits(newest)
        # Sums of log-probabilities in half precision would put beams in the wrong order.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if step == 0:
            # The rows of a prompt begin alike, so it is read only once.
            of_prompts = start.expand(batch, rows).flatten()
            logits = logits[of_prompts]
            if rows > 1:
                model.follow(of_prompts)
            log_probs = logits.new_zeros((batch, rows))
            if choose is None:  # one row is enough where all are the same
                log_probs[:, 1:] = -torch.inf
            ended = torch.zeros_like(log_probs, dtype=torch.bool)
        logits = logits.unflatten(0, (batch, rows))
        steps = logits.log_softmax(-1)
        if choose is not None:
            token = choose(logits.flatten(0, 1)).view(batch, rows)
            token = token.masked_fill(ended, stops[0]) if stops else token
            gain = steps.take_along_dim(token.unsqueeze(-1), -1).squeeze(-1)
            log_probs = log_probs + gain.masked_fill(ended, 0.0)
        else:
            # A row that has ended continues with the stop token only, at no cost.
            steps = steps.masked_fill(ended.unsqueeze(-1), -torch.inf)
            if stops:
                steps[..., stops[0]] = torch.where(ended, 0.0, steps[..., stops[0]])
            vocab = steps.shape[-1]
            log_probs, best = (log_probs.unsqueeze(-1) + steps).flatten(1).topk(rows)
            parent, token = best // vocab, best % vocab
            tokens = tokens.take_along_dim(parent.unsqueeze(-1), dim=1)
            ended = ended.take_along_dim(parent, dim=1)
            model.follow((start * rows + parent).flatten())
        tokens = torch.cat((tokens, token.unsqueeze(-1)), dim=2)
        ended = ended | torch.isin(token, stop)
        if bool(ended.all()):
            break
        newest = token.reshape(-1, 1)
    return tokens, log_probs


def _choice(
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Callable[[Tensor], Tensor]:
    """Check the options; return a function that chooses tokens from logits (batch, vocab), or draws them."""
    if not _checks.check_number("temperature", temperature) >= 0:  # also true of NaN
        raise refusal("temperature", "not be negative", temperature)
    if top_k is not None:
        _checks.check_positive_int("top_k", top_k)
    if top_p is not None:
        _checks.check_probability("top_p", top_p)
        if top_p == 0:
            raise refusal("top_p", "be above 0", top_p)
    if generator is not None:
        _checks.check_type("generator", generator, torch.Generator)
    for name, value in {"top_k": top_k, "top_p": top_p}.items():
        if value is not None and temperature == 0:
            rule = "be None unless temperature is above 0: with 0, no tokens are drawn"
            raise refusal(name, rule, value)

    def choose(logits: Tensor) -> Tensor:
        if temperature == 0:
            return logits.argmax(-1)
        # The greatest becomes 0, so that no quotient overflows; a lower one that does has no chance.
        divisor = max(temperature, torch.finfo(logits.dtype).tiny)
        logits = (logits - logits.amax(-1, keepdim=True)) / divisor
        if top_k is not None:
            least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if top_p is not None:
            # Keep a token if the more probable ones together do not yet reach `top_p`.
            ordered, order = logits.sort(descending=True)
            chances = ordered.softmax(-1)
            out = chances.cumsum(-1) - chances >= top_p
            out[..., 0] = False  # which rounding must not remove
            logits = logits.masked_fill(out.gather(-1, order.argsort()), -torch.inf)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)

    return choose


def _continuing(model: Any, lens: Tensor | None, use_cache: bool) -> _Writing:
    """Prepare a decoder-only model; `lens` are the lengths of the prompts, which are padded on the right.

    Of a compiled model, only the steps run as compiled. Prompts have all kinds of lengths.
    """
    bare = _uncompiled(model)
    cache = bare.new_cache() if use_cache else None
    tokens: list[Tensor] = []  # without a cache: all tokens, padded on the right
    sizes: list[Tensor] = []

    def logits(new: Tensor) -> Tensor:
        rows, count = new.shape
        if not tokens:
            tokens.append(new)
            sizes.append(new.new_full((rows,), count) if lens is None else lens)
            keep = (sizes[0] - 1).unsqueeze(1)
            found = bare(new, valid_lens=lens, cache=cache, logits_to_keep=keep)[1]
        elif cache is not None:
            if bare is not model and len(cache[0]) == tokens[0].shape[1]:
                held = (tensor for block in cache for tensor in block._held)
                leave_open(new, *held)
            found = model(new, cache=cache)[1]
        else:
            last, longer = sizes[0], torch.nn.functional.pad(tokens[0], (0, 1))
            tokens[0] = longer.scatter(1, last.unsqueeze(1), new)
            sizes[0] = last + 1
            keep = last.unsqueeze(1)
            found = bare(tokens[0], valid_lens=sizes[0], logits_to_keep=keep)[1]
        newest: Tensor = found[:, 0]
        return newest

    def follow(rows: Tensor) -> None:
        tokens[0], sizes[0] = tokens[0][rows], sizes[0][rows]
        for block in cache or ():
            block.reorder(rows)

    return _Writing(logits, follow)


def _uncompiled(model: Any) -> Any:
    """The model itself, without the wrapper that `torch.compile` puts around it."""
    return getattr(model, "_orig_mod", model)


def _answering(
    model: EncoderDecoder, memory: Tensor, lens: Tensor | None, use_cache: bool
) -> _Writing:
    """Prepare an encoder-decoder; `lens` are the lengths of the sources."""
    cache = model.decoder.new_cache() if use_cache else None
    tokens: list[Tensor] = []  # all that are written so far
    # The memory of the sources and their lengths, one row for each row of tokens.
    memories, source_lens = [memory], [lens]

    def logits(new: Tensor) -> Tensor:
        tokens[:] = [torch.cat((*tokens, new), dim=1)]
        newest: Tensor = model.decode(
            tokens[0], memories[0], source_lens=source_lens[0], cache=cache
        )
        return newest[:, -1]

    def follow(rows: Tensor) -> None:
        # Only when a beam begins does the number of rows change; later, those of one prompt change places.
        if rows.shape != tokens[0].shape[:1]:
            memories[0] = memories[0][rows]
            if (lengths := source_lens[0]) is not None:
                source_lens[0] = lengths[rows]
        tokens[0] = tokens[0][rows]
        for block in cache or ():
            block.self_attention.reorder(rows)
            block.cross_attention.reorder(rows)

    return _Writing(logits, follow)


@torch.no_grad()
def generate(
    model: GPT2 | Llama | EncoderDecoder,
    tokens: Int64[Tensor, "batch len"],
    *,
    max_new: int,
    source: Int64[Tensor, "batch source_len"] | None = None,
    source_lens: Integer[Tensor, " batch"] | None = None,
    prompt_lens: Integer[Tensor, " batch"] | None = None,
    key_mask: Bool[Tensor, "batch len"] | None = None,
    stop: int | Sequence[int] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    beam_size: int = 1,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> tuple[Int64[Tensor, "batch beam new"], Float[Tensor, "batch beam"]]:
    """Continue prompts, token by token: greedily, by drawing tokens, or with a beam.

    By default, each token is the most probable one. With a `temperature`, each token is drawn from the
    softmax of logits / temperature after first `top_k` (Fan et al., 2018) and then `top_p` (Holtzman
    et al., 2020, §3.1) have removed improbable tokens. With a `beam_size` above 1, every row is continued
    with every token, and the most probable rows are kept; long answers get no bonus. Probabilities are
    computed in float32, or in float64 for a model of that dtype.

    Args:
        model: a `GPT2`, `Llama` or `EncoderDecoder`, which may be compiled (`torch.compile`); call
            `model.eval()` first.
        tokens: prompts (batch, len), padded on one side; for an `EncoderDecoder`, the first tokens of the
            answers.
        max_new: maximum number of new tokens.
        source: the sources that an `EncoderDecoder` reads, (batch, source_len); None for other models.
        source_lens: integers (batch,), how many tokens of each source are real; default all.
        prompt_lens: integers (batch,), how many tokens of each prompt are real, if padding is on the right;
            default all.
        key_mask: bool (batch, len), True for real tokens, if padding is on the left.
        stop: the token or tokens that end an answer; the rest of the row is filled with the first of them.
        temperature: divides the logits before a token is drawn; with 0, no tokens are drawn.
        top_k: draw from the `top_k` most probable tokens.
        top_p: draw from the smallest set of tokens whose probabilities together reach `top_p`.
        beam_size: number of answers for each prompt; above 1, no tokens are drawn.
        num_samples: number of answers that are drawn for each prompt, which is read only once.
        generator: source of random numbers; default torch's own.
        use_cache: compute only the newest token at each step. The answer is the same without a cache, unless
            a `RotaryScaling` of kind "dynamic" changes the angles of earlier tokens as the text grows.

    Returns:
        (answers, log_probs): the new tokens, (batch, beam_size, new), at most `max_new` of them, and their
        log-probabilities under the model, (batch, beam_size), in nats; the most probable answer is first.
        With `num_samples`, the second axis has that size, and answers are in the order of drawing.

    Raises:
        TypeError: `model` is of the wrong class, a number is not an int or float, `tokens` is not int64, or
            `generator` is not a generator.
        ValueError: a number, token or length is out of range, a shape does not fit, prompt and answer exceed
            the model's `max_len`, `beam_size` exceeds the vocabulary, `key_mask` hides more than padding on
            the left, or options contradict each other.

    Example:
        >>> model = GPT2(7, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2, max_len=9).eval()
        >>> prompts, lens = torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1])
        >>> answers, log_probs = generate(model, prompts, prompt_lens=lens, max_new=5)
        >>> answers.shape, log_probs.shape
        (torch.Size([2, 1, 5]), torch.Size([2, 1]))
        >>> alone, _ = generate(model, prompts[1:, :1], max_new=5)
        >>> torch.equal(answers[1:], alone)
        True
        >>> drawn, _ = generate(model, prompts, prompt_lens=lens, max_new=5, temperature=1.0, num_samples=4)
        >>> drawn.shape
        torch.Size([2, 4, 5])
    """
    bare = _uncompiled(model)
    stops: list[int] = list(stop) if isinstance(stop, (Sequence, Set)) else [stop]
    vocab = _check_generation(bare, tokens, source, prompt_lens, stops, max_new)
    if key_mask is not None:
        tokens, prompt_lens = _padded_right(bare, tokens, key_mask, prompt_lens)
    choose = _choice(temperature, top_k, top_p, generator)
    _check_rows(beam_size, num_samples, temperature, vocab)
    _checks.check_type("use_cache", use_cache, bool)
    if isinstance(bare, EncoderDecoder):
        assert source is not None
        memory = bare.encode(source, source_lens=source_lens)
        writing = _answering(bare, memory, source_lens, use_cache)
    elif source_lens is not None:  # it would be ignored; prompt_lens was probably meant
        raise refusal("source_lens", "be None for this model", source_lens)
    else:
        writing = _continuing(model, prompt_lens, use_cache)
    sizes = (tokens.shape[0], max(beam_size, num_samples), max_new)
    return _write(writing, tokens, sizes, stops, None if beam_size > 1 else choose)


def _check_rows(
    beam_size: int, num_samples: int, temperature: float, vocab: int
) -> None:
    """Raise unless each prompt gets one answer, a beam, or several that are drawn."""
    _checks.check_sizes(beam_size=beam_size, num_samples=num_samples)
    if beam_size > vocab:
        raise refusal("beam_size", f"be at most the vocabulary, {vocab}", beam_size)
    if beam_size > 1 and temperature != 0:
        rule = "be 0 with beam_size above 1, because a beam draws no tokens"
        raise refusal("temperature", rule, temperature)
    if num_samples > 1 and temperature == 0:
        rule = "be 1 without a temperature, which would draw different answers"
        raise refusal("num_samples", rule, num_samples)


def _padded_right(
    model: Any, tokens: Tensor, key_mask: object, lens: object
) -> tuple[Tensor, Tensor]:
    """Move padding from the left of the prompts to the right; return tokens and lengths."""
    _check_bool("key_mask", key_mask)
    assert isinstance(key_mask, Tensor)
    if isinstance(model, EncoderDecoder) or lens is not None:
        rule = "be None for an EncoderDecoder and with prompt_lens"
        raise refusal("key_mask", rule, key_mask)
    _checks.check_same("shape", ("tokens", "key_mask"), (tokens.shape, key_mask.shape))
    real, ordered = key_mask.sum(1), key_mask.cummax(1).values
    if not bool((key_mask == ordered).all() and (real > 0).all()):
        rule = "hide only padding on the left, and no whole prompt; prompt_lens is for padding on the right"
        raise refusal("key_mask", rule, key_mask.int().tolist())
    places = torch.arange(tokens.shape[1], device=tokens.device)
    moved = (places - real.unsqueeze(1)) % tokens.shape[1]
    return tokens.gather(1, moved), real


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
    """Write one answer to each source by choosing the most probable token at each step.

    Arguments and errors are those of `generate` for an `EncoderDecoder`, with these exceptions. The token
    `start` begins each answer and is not returned; `end` ends it and fills the rest of its row. The result,
    (batch, answer_len), has at most `max_len` tokens in a row; the model's own `max_len` must allow them.

    Example:
        >>> model = EncoderDecoder(7, 5, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=1)
        >>> greedy_decode(model, torch.tensor([[1, 2, 3]]), start=0, end=1, max_len=4).shape[0]
        1
    """
    answers, _ = _decode(
        model, source, start, end, max_len, source_lens, use_cache=use_cache
    )
    return answers[:, 0]


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
    """Write several answers to each source: the most probable ones that beam search finds.

    Like any beam search, it may miss the most probable answer of all. Long answers get no bonus.

    Arguments and errors are those of `greedy_decode`, with `beam_size` answers to each source, as in
    `generate`; with a `beam_size` of 1, the answer is that of `greedy_decode`. The results are tokens,
    (batch, beam_size, answer_len), and their log-probabilities, (batch, beam_size), in nats, the best first.

    Example:
        >>> model = EncoderDecoder(7, 5, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=1)
        >>> answers, log_probs = beam_decode(
        ...     model, torch.tensor([[1, 2, 3]]), start=0, end=1, max_len=4, beam_size=3
        ... )
        >>> answers.shape[:2], log_probs.shape
        (torch.Size([1, 3]), torch.Size([1, 3]))
    """
    return _decode(model, source, start, end, max_len, source_lens, beam_size=beam_size)


def _decode(
    model: EncoderDecoder,
    source: Tensor,
    start: int,
    end: int,
    max_len: int,
    source_lens: Tensor | None,
    *,
    beam_size: int = 1,
    use_cache: bool = True,
) -> tuple[Tensor, Tensor]:
    """Generate from `start`, after checking the arguments whose names in `generate` differ."""
    bare = _uncompiled(model)
    _checks.check_type("model", bare, EncoderDecoder)
    _checks.check_positive_int("max_len", max_len)
    vocab = _num_embeddings(bare.target_embedding)
    if max_len > (longest := bare.max_len):
        raise refusal("max_len", f"be at most the model's own, {longest}", max_len)
    for name, token in {"start": start, "end": end}.items():
        if not 0 <= _checks.check_int(name, token) < vocab:
            raise refusal(name, f"lie in 0..{vocab - 1}", token)
    first = source.new_full((len(source), 1), start)
    return generate(
        model,
        first,
        source=source,
        source_lens=source_lens,
        max_new=max_len,
        stop=end,
        beam_size=beam_size,
        use_cache=use_cache,
    )


def _check_generation(
    model: object,
    tokens: Tensor,
    source: object,
    prompt_lens: object,
    stops: list[int],
    max_new: int,
) -> int:
    """Check the arguments of `generate`; return the size of the vocabulary."""
    if not isinstance(model, (GPT2, Llama, EncoderDecoder)):
        raise _checks.wrong_type("model", "a GPT2, Llama or EncoderDecoder", model)
    _checks.check_positive_int("max_new", max_new)
    if isinstance(model, EncoderDecoder):
        embedding = model.target_embedding
        if source is None or prompt_lens is not None:
            rule = "be given, and prompt_lens be None, for an EncoderDecoder"
            raise refusal("source", rule, source)
    else:
        embedding = model.embedding
        if source is not None:
            raise refusal("source", "be None for this model", source)
    _check_ids("tokens", tokens, embedding, model.max_len)
    vocab, length = _num_embeddings(embedding), tokens.shape[1]
    if length + max_new - 1 > model.max_len:
        rule = f"leave room for {length} tokens within max_len={model.max_len}"
        raise refusal("max_new", rule, max_new)
    _check_lens_of_tokens("prompt_lens", prompt_lens, 1, tokens)
    for token in stops:
        if not 0 <= _checks.check_int("stop", token) < vocab:
            raise refusal("stop", f"lie in 0..{vocab - 1}", token)
    return vocab
