"""Writing as a server does it: half precision, padding on the left, samples, a compiled model."""

import math

import pytest
import torch
from attention_marks import HALVES, TRACED
from random_tensors import generator, random
from torch import nn

from mha_lib import GPT2, Bert, EncoderDecoder, Llama, beam_decode, generate, greedy_decode
from mha_lib.models.generation import _choice, _write, _Writing

SIZES = {"embed_dim": 12, "num_heads": 3, "hidden_dim": 17, "num_layers": 2}
MODELS = {
    "GPT-2": lambda: GPT2(19, **SIZES, max_len=64),
    "Llama": lambda: Llama(19, **SIZES, max_len=64, num_kv_heads=1),
    "Bert": lambda: Bert(19, **SIZES, max_len=64),
}
WRITERS = pytest.mark.parametrize("kind", ["GPT-2", "Llama"])
TOKENS = torch.randint(19, (3, 6), generator=generator())
LENS = torch.tensor([6, 2, 3])
# The same prompts with padding on the left.
LEFT = torch.arange(6) >= 6 - LENS[:, None]
PADDED_LEFT = torch.stack([row.roll(6 - n) for row, n in zip(TOKENS, LENS.tolist(), strict=True)])


def made(kind, dtype=torch.float64):
    model, draw = MODELS[kind]().to(dtype).eval(), generator(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5, generator=draw)
    return model


# Half precision


def table_of(logits):
    """A model whose next logits depend on the newest token only."""
    rows = []
    return _Writing(lambda new: (rows.append(new), logits[new[:, -1]])[1], lambda rows: None)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_beams_add_log_probabilities_in_float32(dtype):
    """In half precision, sums of log-probabilities round to ties and the wrong order."""
    logits = (8 * random(19, 19)).to(dtype)
    first = torch.tensor([[3], [5]])
    answers, found = _write(table_of(logits), first, (2, 4, 12), (), None)
    wide, wanted = _write(table_of(logits.double()), first, (2, 4, 12), (), None)
    assert found.dtype == torch.float32
    assert torch.equal(answers, wide)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("options", [
    (1e-3, None, None), (5e-324, None, None), (1e-30, 3, None), (1.0, None, 1e-8),
    (1.0, None, 1e-50), (1e-3, None, 0.5),
], ids=str)  # fmt: skip
def test_nearly_no_temperature_is_greedy_in_half_precision(dtype, options):
    """A quotient above 65504 was infinite, and a nucleus empty whose probability rounds to 0."""
    orders = torch.stack([torch.randperm(19, generator=generator(row)) for row in range(19)])
    logits = (orders / 2 - 4).to(dtype)
    write = (table_of(logits), torch.arange(19)[:, None], (19, 1, 5), ())
    assert torch.equal(_write(*write, _choice(*options, generator()))[0][:, 0, 0], orders.argmax(1))


@WRITERS
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_model_in_half_precision_draws(kind, dtype):
    _, log_probs = generate(made(kind, dtype), TOKENS, max_new=3, temperature=1e-3)
    assert log_probs.dtype == torch.float32 and bool(log_probs.isfinite().all())


def test_a_nucleus_has_its_probability():
    logits = random(1, 50, dtype=torch.bfloat16).repeat(20_000, 1)
    choose = _choice(1.0, None, 0.4, generator())
    tokens = torch.cat([
        _write(table_of(logits[:50]), torch.zeros(2_000, 1, dtype=torch.int64), (2_000, 1, 1), (), choose)[0]
        for _ in range(5)
    ]).flatten()  # fmt: skip
    chances, order = logits[0].double().softmax(-1).sort(descending=True)
    kept = order[: int((chances.cumsum(0) - chances < 0.4).sum())]
    assert set(tokens.tolist()) == set(kept.tolist())


# Padding on the left


@pytest.mark.parametrize("kind", MODELS)
def test_a_mask_moves_positions_past_the_padding(kind):
    model = made(kind)
    found = model(PADDED_LEFT, key_mask=LEFT)[1]
    for row, n in enumerate(LENS.tolist()):
        torch.testing.assert_close(found[row, 6 - n :], model(TOKENS[row, None, :n])[1][0])


@WRITERS
def test_positions_go_on_after_a_cache_with_padding_on_the_left(kind):
    model, cache = made(kind), made(kind).new_cache()
    new = torch.randint(19, (3, 2), generator=generator(2))
    model(PADDED_LEFT, key_mask=LEFT, cache=cache)
    found = model(new, key_mask=nn.functional.pad(LEFT, (0, 2), value=True), cache=cache)[1]
    for row, n in enumerate(LENS.tolist()):
        whole = torch.cat((TOKENS[row, :n], new[row]))[None]
        torch.testing.assert_close(found[row], model(whole)[1][0, n:])


@pytest.mark.parametrize("kind", ["GPT-2", "Bert"])
def test_a_hidden_token_between_others_keeps_its_position(kind):
    model, mask = made(kind), torch.tensor([[True, True, False, True, True, False]] * 3)
    expected = model(TOKENS, key_mask=mask, positions=torch.arange(6))[1]
    torch.testing.assert_close(model(TOKENS, key_mask=mask)[1], expected)


@WRITERS
@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"use_cache": False}], ids=str)
def test_prompts_may_be_padded_on_the_left(kind, options):
    model = made(kind)
    right = generate(model, TOKENS, prompt_lens=LENS, max_new=4, **options)
    left = generate(model, PADDED_LEFT, key_mask=LEFT, max_new=4, **options)
    assert torch.equal(left[0], right[0])
    torch.testing.assert_close(left[1], right[1])


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"key_mask": LEFT.flip(1)}, ValueError, "key_mask must hide only padding on the left, .*prompt_lens"),
    ({"key_mask": LEFT & (LENS[:, None] > 2)}, ValueError, "and no whole prompt"),
    ({"key_mask": LEFT[:, 1:]}, ValueError, "tokens and key_mask must have the same shape"),
    ({"key_mask": LEFT.int()}, TypeError, "key_mask must be a bool tensor"),
    ({"key_mask": LEFT, "prompt_lens": LENS}, ValueError, "key_mask must be None .*with prompt_lens"),
    ({"num_samples": 2}, ValueError, "num_samples must be 1 without a temperature"),
    ({"top_k": 3}, ValueError,
     "top_k must be None unless temperature is above 0: with 0, no tokens are drawn, got 3"),
    ({"top_p": 0.5}, ValueError,
     "top_p must be None unless temperature is above 0: with 0, no tokens are drawn, got 0.5"),
    ({"beam_size": 2, "temperature": 0.5}, ValueError,
     "temperature must be 0 with beam_size above 1, because a beam draws no tokens, got 0.5"),
    ({"num_samples": 0, "temperature": 1.0}, ValueError, "num_samples must be positive"),
    ({"num_samples": 2.0, "temperature": 1.0}, TypeError, "num_samples must be an int"),
])  # fmt: skip
def test_wrong_prompts_and_samples_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        generate(made("GPT-2"), PADDED_LEFT, max_new=2, **options)


# Only the logits that are needed


@WRITERS
def test_logits_of_the_last_tokens_or_of_some_places(kind):
    model = made(kind)
    hidden, every = model(TOKENS)
    for kept in (1, 4, 6):
        found = model(TOKENS, logits_to_keep=kept)
        torch.testing.assert_close(found, (hidden, every[:, -kept:]))
    places = torch.tensor([[5, 0], [1, 1], [2, 4]])
    found = model(TOKENS, logits_to_keep=places)[1]
    torch.testing.assert_close(found, every[torch.arange(3)[:, None], places])


@pytest.mark.parametrize(("kept", "error", "message"), [
    (0, ValueError, r"logits_to_keep must lie in 1\.\.len=6, got 0"),
    (7, ValueError, "got 7"),
    (True, TypeError, "logits_to_keep must be an int"),
    (torch.tensor([[0.0]] * 3), TypeError, "logits_to_keep must hold integers"),
    (torch.tensor([[6]] * 3), ValueError, r"lie in 0\.\.len-1=5"),
    (torch.tensor([[-1]] * 3), ValueError, r"lie in 0\.\.len-1=5"),
    (torch.tensor([[0]]), ValueError, r"places of shape \(batch=3, kept\), got \(1, 1\)"),
    (torch.tensor([0]), ValueError, "places of shape"),
])  # fmt: skip
def test_wrong_numbers_of_logits_are_refused(kept, error, message):
    with pytest.raises(error, match=message):
        made("GPT-2")(TOKENS, logits_to_keep=kept)


@WRITERS
@pytest.mark.parametrize("use_cache", [True, False])
def test_writing_computes_one_row_of_logits_for_each_prompt(kind, use_cache):
    model, rows = made(kind), []
    model._logits = lambda hidden, _logits=model._logits: (rows.append(hidden.shape), _logits(hidden))[1]
    generate(model, TOKENS, prompt_lens=LENS, max_new=3, use_cache=use_cache)
    assert rows == [(3, 1, 12)] * 3


# Several samples


@WRITERS
def test_samples_have_the_probabilities_of_the_model(kind):
    model = made(kind)
    answers, log_probs = generate(
        model, TOKENS, prompt_lens=LENS, max_new=4, temperature=1.0, num_samples=5, generator=generator()
    )
    assert answers.shape == (3, 5, 4) and len({tuple(row) for row in answers[0].tolist()}) > 1
    for row, n in enumerate(LENS.tolist()):
        for answer, found in zip(answers[row], log_probs[row], strict=True):
            whole = torch.cat((TOKENS[row, :n], answer))[None]
            steps = model(whole)[1].log_softmax(-1)[0, n - 1 : -1]
            torch.testing.assert_close(found, steps.gather(1, answer[:, None]).sum())


@pytest.mark.parametrize("options", [{"beam_size": 3}, {"num_samples": 3, "temperature": 1.0}], ids=str)
@pytest.mark.parametrize("use_cache", [True, False])
def test_answers_of_an_encoder_decoder_to_one_source(options, use_cache):
    torch.manual_seed(0)
    model = EncoderDecoder(19, 17, **SIZES).double().eval()
    source, first = TOKENS, torch.zeros(3, 1, dtype=torch.int64)
    answers, log_probs = generate(
        model, first, source=source, source_lens=LENS, max_new=4, use_cache=use_cache,
        generator=generator(), **options,
    )  # fmt: skip
    for row, column in ((0, 0), (1, 2), (2, 1)):
        target = torch.cat((first[row], answers[row, column]))[None]
        steps = model(source[row, None, : LENS[row]], target)[0, :-1].log_softmax(-1)
        expected = steps.gather(1, answers[row, column][:, None]).sum()
        torch.testing.assert_close(log_probs[row, column], expected)
    assert not math.isclose(log_probs[0, 0], log_probs[0, 1])


# Compiled models


@torch.no_grad()
@pytest.mark.newer_torch
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
@TRACED
def test_a_compiled_model_writes(dynamic):
    """`generate` refused it; and it is compiled for steps only, not for each length of a prompt."""
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    model = made("Llama", torch.float32)
    traced = torch.compile(model, fullgraph=True, backend=counting, dynamic=dynamic)
    for rows, options in (
        (slice(1), {}), (slice(1, 3), {}), (slice(3), {"prompt_lens": LENS}),
        (slice(3), {"key_mask": LEFT}), (slice(2), {"beam_size": 2}),
        (slice(1), {"num_samples": 3, "temperature": 1.0}),
    ):  # fmt: skip
        rowwise = {name: x[rows] if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        expected, found = (
            generate(one, TOKENS[rows], max_new=9, generator=generator(), **rowwise)
            for one in (model, traced)
        )
        torch.testing.assert_close(found, expected)
    assert 1 <= len(graphs) <= 4


@TRACED
def test_a_compiled_encoder_decoder_answers():
    """`generate` accepted it, `greedy_decode` and `beam_decode` did not."""
    torch.manual_seed(0)
    model = EncoderDecoder(19, 17, **SIZES).double().eval()
    traced = torch.compile(model, backend="eager")
    given = {"source": TOKENS, "source_lens": LENS, "start": 0, "end": 1, "max_len": 4}
    for decode in (greedy_decode, beam_decode):
        torch.testing.assert_close(decode(traced, **given), decode(model, **given))
    with pytest.raises(TypeError, match="model must be an EncoderDecoder, got GPT2"):
        greedy_decode(torch.compile(made("GPT-2"), backend="eager"), **given)
