"""The whole Transformer: torch's own stacks with copied weights, and decoding against exhaustive search.

Every axis has a different prime size.
"""

from itertools import product

import oracles
import pytest
import torch
from random_tensors import generator
from torch import nn
from torch.nn import functional as F

from mha_lib.models.generation import beam_decode, greedy_decode
from mha_lib.models.seq2seq import EncoderDecoder

BATCH, HEADS, HEAD_DIM, HIDDEN, LAYERS = 3, 5, 2, 17, 2
SOURCE_LEN, TARGET_LEN, SOURCE_VOCAB, TARGET_VOCAB = 11, 7, 23, 13
EMBED_DIM = HEADS * HEAD_DIM
START, END = 4, 9
LENS = torch.tensor([11, 3, 7])
SOURCE = torch.randint(SOURCE_VOCAB, (BATCH, SOURCE_LEN), generator=generator())
TARGET = torch.randint(TARGET_VOCAB, (BATCH, TARGET_LEN), generator=generator(1))


def make(target_vocab=TARGET_VOCAB, seed=0, **options):
    """A model in float64 whose parameters are all random, far enough from 0 that answers differ."""
    sizes = (SOURCE_VOCAB, target_vocab, EMBED_DIM, HEADS, HIDDEN, LAYERS)
    model = EncoderDecoder(*sizes, bias=True, **options).double().eval()
    draw = generator(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7, generator=draw)
    # Answers depend on the tokens so far, and do not repeat a single token.
    nn.init.normal_(model.target_embedding.weight, std=5.0, generator=draw)
    return model


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def sinusoids(length):
    return torch.from_numpy(oracles.sinusoids(length, EMBED_DIM))


def torchs(model, source, target, lens):
    """The logits from torch's encoder and decoder."""
    encoder, decoder = model.encoder.to_torch().eval(), model.decoder.to_torch().eval()
    hidden = torch.arange(source.shape[1]) >= lens.unsqueeze(1)
    x = F.embedding(source, model.source_embedding.weight) + sinusoids(source.shape[1])
    memory = encoder(x, src_key_padding_mask=hidden)
    y = F.embedding(target, model.target_embedding.weight) + sinusoids(target.shape[1])
    future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    y = decoder(y, memory, tgt_mask=future, memory_key_padding_mask=hidden)
    return F.linear(y, model.output.weight, model.output.bias)


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_it_equals_torchs_stacks(norm_first):
    model = make(norm_first=norm_first)
    logits = model(SOURCE, TARGET, source_lens=LENS)
    # The library stores its sinusoids in float32.
    torch.testing.assert_close(logits, torchs(model, SOURCE, TARGET, LENS), rtol=1e-5, atol=1e-5)
    assert logits.shape == (BATCH, TARGET_LEN, TARGET_VOCAB)


def test_without_lengths_all_of_the_source_is_read():
    model, whole = make(), torch.full((BATCH,), SOURCE_LEN)
    close(model(SOURCE, TARGET), model(SOURCE, TARGET, source_lens=whole))


@pytest.mark.parametrize("training", [True, False])
def test_no_prediction_sees_a_later_token(training):
    """In training and in evaluation, or the loss on held-out data would be too good to be true."""
    model, other = make().train(training), TARGET.clone()
    other[:, 4:] = (other[:, 4:] + 1) % TARGET_VOCAB
    before, after = (model(SOURCE, target, source_lens=LENS) for target in (TARGET, other))
    close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:])


def test_a_cache_changes_nothing():
    model = make()
    memory, cache = model.encode(SOURCE, source_lens=LENS), model.decoder.new_cache()
    steps = [
        model.decode(TARGET[:, :end], memory, source_lens=LENS, cache=cache)
        for end in (2, 3, 7)  # chunks of two, one and four tokens
    ]
    assert [step.shape[1] for step in steps] == [2, 1, 4]
    close(torch.cat(steps, dim=1), model(SOURCE, TARGET, source_lens=LENS))


def slow_greedy(model, source, end, max_len):
    """One source at a time, everything computed anew at each step."""
    tokens = [START]
    while len(tokens) <= max_len and end not in tokens[1:]:
        tokens.append(int(model(source, torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[1:]


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_decoding(use_cache):
    """With each token of an answer as its end, so that answers end early, late and never."""
    lengths = set()
    for seed in range(3):
        model = make(seed=seed)
        sources = [SOURCE[b : b + 1, : LENS[b]] for b in range(BATCH)]
        for end in set(slow_greedy(model, sources[0], None, 19)):
            options = {"start": START, "end": end, "max_len": 19, "source_lens": LENS}
            answers = greedy_decode(model, SOURCE, use_cache=use_cache, **options)
            expected = [slow_greedy(model, source, end, 19) for source in sources]
            lengths |= {len(tokens) for tokens in expected}
            longest = max(map(len, expected))
            assert answers.tolist() == [tokens + [end] * (longest - len(tokens)) for tokens in expected]
    assert len(lengths) > 3, "answers of several lengths are needed to test their end"


def log_prob(model, source, answer, end=END):
    """Of one answer, up to its first end."""
    rows = model(source, torch.tensor([[START, *answer]]))[0].log_softmax(-1)
    total = 0.0
    for row, token in zip(rows[:-1], answer, strict=True):
        total += row[token].item()
        if token == end:
            break
    return total


def test_a_wide_beam_finds_the_best_answers_of_all():
    """With two steps, a beam as wide as the vocabulary misses nothing, answers of one token included."""
    model = make(target_vocab=11)
    (end,) = slow_greedy(model, SOURCE[:1], None, 1)  # a probable token, so that good answers are short
    options = {"start": START, "end": end, "max_len": 2, "source_lens": LENS}
    answers, log_probs = beam_decode(model, SOURCE, beam_size=11, **options)
    for b in range(BATCH):
        source = SOURCE[b : b + 1, : LENS[b]]
        every = {(first, end if first == end else second) for first, second in product(range(11), repeat=2)}
        best = sorted(((log_prob(model, source, answer, end), answer) for answer in every), reverse=True)
        assert [tuple(answer) for answer in answers[b].tolist()] == [answer for _, answer in best[:11]]
        close(log_probs[b], torch.tensor([value for value, _ in best[:11]], dtype=torch.float64))
    assert (end, end) in [tuple(answer) for answer in answers[0].tolist()]


@pytest.mark.parametrize("beam_size", [1, 3, 5])
def test_probabilities_of_a_beam_are_those_of_its_answers(beam_size):
    """Over many steps, also after the caches of the answers were exchanged."""
    model = make(seed=2)
    options = {"start": START, "end": END, "max_len": 7, "source_lens": LENS}
    answers, log_probs = beam_decode(model, SOURCE, beam_size=beam_size, **options)
    assert answers.shape[:2] == (BATCH, beam_size)
    assert log_probs.diff(dim=1).le(0).all()
    for b, k in product(range(BATCH), range(beam_size)):
        source, answer = SOURCE[b : b + 1, : LENS[b]], answers[b, k].tolist()
        assert log_probs[b, k].item() == pytest.approx(log_prob(model, source, answer), rel=1e-9)
    assert len({tuple(answer) for answer in answers[0].tolist()}) == beam_size


def test_a_beam_of_one_is_greedy():
    for seed in range(3):
        model, ends = make(seed=seed), {"start": START, "end": END, "max_len": 7, "source_lens": LENS}
        answers, _ = beam_decode(model, SOURCE, beam_size=1, **ends)
        assert torch.equal(answers[:, 0], greedy_decode(model, SOURCE, **ends))


def test_a_full_cache_is_refused():
    model = make()
    memory, cache = model.encode(SOURCE), model.decoder.new_cache()
    model.decode(TARGET, memory, cache=cache)
    with pytest.raises(ValueError, match="target must be longer than what the cache holds, 7, got 7"):
        model.decode(TARGET, memory, cache=cache)
