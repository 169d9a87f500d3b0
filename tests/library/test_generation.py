"""Writing with decoder-only models: against explicit loops, exhaustive search and transformers."""

import itertools
import tempfile

import pytest
import torch
from random_tensors import generator
from torch import nn

from mha_lib import GPT2, Llama, generate
from mha_lib.models.checkpoints import load_checkpoint

transformers = pytest.importorskip("transformers")

VOCAB, MAX_LEN, NEW = 7, 19, 5
LENS = torch.tensor([3, 1, 5])
PROMPTS = torch.randint(VOCAB, (3, 5), generator=generator())
MODELS = {
    "gpt2": lambda: GPT2(VOCAB, 10, 5, 17, 2, max_len=MAX_LEN),
    "llama": lambda: Llama(VOCAB, 24, 6, 17, 2, max_len=MAX_LEN, num_kv_heads=2),
}
KINDS = pytest.mark.parametrize("kind", MODELS)


def made(kind):
    """A model in float64 with random parameters, far enough from 0 that answers differ."""
    model, draw = MODELS[kind]().double().eval(), generator(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7, generator=draw)
    return model


def log_probs_of(model, tokens):
    """Logarithms of the probabilities of the token that follows each, without a cache."""
    with torch.no_grad():
        return model(tokens)[1].log_softmax(-1)


def greedily(model, prompt):
    for _ in range(NEW):
        token = log_probs_of(model, prompt)[:, -1].argmax(-1, keepdim=True)
        prompt = torch.cat((prompt, token), 1)
    return prompt[:, -NEW:]


@KINDS
def test_ragged_prompts_are_continued_as_if_alone(kind):
    model = made(kind)
    alone = torch.cat([greedily(model, row[None, :n]) for row, n in zip(PROMPTS, LENS.tolist(), strict=True)])
    for use_cache in (True, False):
        answers, log_probs = generate(
            model, PROMPTS, prompt_lens=LENS, max_new=NEW, use_cache=use_cache
        )  # fmt: skip
        assert torch.equal(answers[:, 0], alone)
        for row, length, answer, found in zip(PROMPTS, LENS.tolist(), alone, log_probs, strict=True):
            whole = torch.cat((row[:length], answer))[None]
            steps = log_probs_of(model, whole)[0, length - 1 : -1]
            torch.testing.assert_close(found[0], steps.gather(1, answer[:, None]).sum())


@KINDS
def test_after_a_stop_an_answer_holds_stops_only(kind):
    model = made(kind)
    free, _ = generate(model, PROMPTS, max_new=NEW)
    stop = int(free[0, 0, 1])
    other = (stop + 1) % VOCAB
    answers, _ = generate(model, PROMPTS, max_new=NEW, stop=[stop, other])
    for answer, whole in zip(answers[:, 0].tolist(), free[:, 0].tolist(), strict=True):
        end = next((i for i, token in enumerate(whole) if token in (stop, other)), len(answer))
        assert answer == [*whole[: end + 1], *[stop] * (len(answer) - end - 1)][: len(answer)]
    alone, log_probs = generate(model, PROMPTS[:1], max_new=NEW, stop=stop)
    assert alone.shape == (1, 1, free[0, 0].tolist().index(stop) + 1)
    whole = torch.cat((PROMPTS[0], alone[0, 0]))[None]
    steps = log_probs_of(model, whole)[0, len(PROMPTS[0]) - 1 : -1]
    torch.testing.assert_close(log_probs[0, 0], steps.gather(1, alone[0, 0, :, None]).sum())


@KINDS
@pytest.mark.parametrize("stop", [(), 2], ids=["no stop", "a stop"])
def test_a_wide_beam_finds_the_best_of_all_answers(kind, stop):
    model = made(kind)
    prompts, lens = PROMPTS, LENS
    # Each of the last two steps considers VOCAB answers for each of VOCAB beams, which are all of them.
    answers, log_probs = generate(model, prompts, prompt_lens=lens, max_new=2, stop=stop, beam_size=VOCAB)
    for row, n, found, scores in zip(prompts, lens.tolist(), answers, log_probs, strict=True):
        known = {}
        for pair in itertools.product(range(VOCAB), repeat=2):
            told = (pair[0], pair[0]) if pair[0] == stop else pair
            whole = torch.cat((row[:n], torch.tensor(pair)))[None]
            steps = log_probs_of(model, whole)[0, n - 1 : -1].gather(1, torch.tensor(pair)[:, None])
            known[told] = float(steps[0] if pair[0] == stop else steps.sum())
        best = sorted(known, key=known.get, reverse=True)[:VOCAB]
        assert [tuple(one) for one in found.tolist()] == best
        torch.testing.assert_close(scores.tolist(), [known[one] for one in best])


@KINDS
def test_a_beam_with_a_cache_is_one_without(kind):
    """Answers change places at each step, and their caches must follow."""
    found = [
        generate(made(kind), PROMPTS, prompt_lens=LENS, max_new=5, beam_size=3, use_cache=use_cache)
        for use_cache in (True, False)
    ]
    torch.testing.assert_close(*found)


def pair_of_models(kind):
    """One of transformers' models, and ours with its weights, in float64."""
    none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=10, n_layer=2, n_head=5, n_positions=MAX_LEN, n_inner=17, **none
        )
        theirs = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2}
        sizes["intermediate_size"] = 17
        sizes |= {"vocab_size": VOCAB, "num_hidden_layers": 2, "max_position_embeddings": MAX_LEN}
        config = transformers.LlamaConfig(**sizes, **none)
        theirs = transformers.LlamaForCausalLM(config)
    draw = generator(2)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3, generator=draw)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_checkpoint(folder)
    return theirs.double().eval(), ours.double().eval()


DRAWN = {
    "greedy": {}, "temperature": {"temperature": 0.7}, "top_k": {"temperature": 1.3, "top_k": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.6}, "all": {"temperature": 1.7, "top_k": 5, "top_p": 0.8},
}  # fmt: skip


@KINDS
@pytest.mark.parametrize("options", DRAWN.values(), ids=DRAWN)
@pytest.mark.newer_torch
def test_draws_are_those_of_transformers(kind, options):
    """With the same random numbers; their prompts are padded on the left, ours on the right."""
    theirs, ours = pair_of_models(kind)
    padded, mask = torch.zeros_like(PROMPTS), torch.zeros_like(PROMPTS)
    for i, n in enumerate(LENS.tolist()):
        padded[i, len(PROMPTS[0]) - n :], mask[i, len(PROMPTS[0]) - n :] = PROMPTS[i, :n], 1
    told = {"top_k": 0, **options} if options else {}
    for seed in range(3):
        torch.manual_seed(seed)
        expected = theirs.generate(
            padded, attention_mask=mask, max_new_tokens=NEW, do_sample=bool(options), pad_token_id=0, **told
        )[:, PROMPTS.shape[1] :]
        torch.manual_seed(seed)
        found, _ = generate(ours, PROMPTS, prompt_lens=LENS, max_new=NEW, **options)
        assert torch.equal(found[:, 0], expected)
        draw = generator(seed)
        seeded, _ = generate(ours, PROMPTS, prompt_lens=LENS, max_new=NEW, generator=draw, **options)
        assert torch.equal(seeded, found)


def test_draws_have_the_probabilities_of_the_model():
    model = made("gpt2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    prompt = PROMPTS[:1].expand(20_000, -1)
    answers, log_probs = generate(model, prompt, max_new=1, temperature=1.0, generator=generator())
    expected = log_probs_of(model, PROMPTS[:1])[0, -1]
    shares = answers.flatten().bincount(minlength=VOCAB) / len(prompt)
    # Four standard deviations of the least certain share.
    assert (shares - expected.exp()).abs().max() < 4 * 0.5 / len(prompt) ** 0.5
    torch.testing.assert_close(log_probs[:, 0], expected[answers.flatten()])
