"""The checkers of the appendix on models: solutions pass, wrong answers are refused with their cause."""

import pytest
import torch
from torch.nn import functional as F

from mha_lib import GPT2
from mha_lib.exercises.models import check_gated_width, check_gpt2_parameters, check_loss_again

CHECKERS = {"parameters": check_gpt2_parameters, "width": check_gated_width, "loss": check_loss_again}


def parameters(vocab_size, max_len, width, hidden, layers):
    model = GPT2(vocab_size, width, 1, hidden, layers, max_len=max_len, device="meta")
    return sum(p.numel() for p in model.parameters())


def with_two_tables(vocab_size, max_len, width, hidden, layers):
    return parameters(vocab_size, max_len, width, hidden, layers) + vocab_size * width


def without_positions(vocab_size, max_len, width, hidden, layers):
    return parameters(vocab_size, max_len, width, hidden, layers) - max_len * width


def without_the_last_norm(vocab_size, max_len, width, hidden, layers):
    return parameters(vocab_size, max_len, width, hidden, layers) - 2 * width


def without_biases(vocab_size, max_len, width, hidden, layers):
    return parameters(vocab_size, max_len, width, hidden, layers) - layers * (5 * width + hidden)


def loss_of(logits, twice, places):
    """The mean of -ln p of the tokens after some places."""
    log_probs = logits.log_softmax(-1)
    return -torch.stack([log_probs[i, p, twice[i, p + 1]] for i in range(len(twice)) for p in places]).mean()


def again(logits, twice):
    half = twice.shape[1] // 2
    return loss_of(logits, twice, range(half, 2 * half - 1))


def from_the_start(logits, twice):
    return loss_of(logits, twice, range(twice.shape[1] - 1))


def of_the_first_saying(logits, twice):
    return loss_of(logits, twice, range(twice.shape[1] // 2 - 1))


def a_place_early(logits, twice):
    half = twice.shape[1] // 2
    return loss_of(logits, twice, range(half - 1, 2 * half - 1))


def not_shifted(logits, twice):
    half = twice.shape[1] // 2
    return F.cross_entropy(logits[:, half:].transpose(1, 2), twice[:, half:-1])


RIGHT = {"parameters": parameters, "width": lambda width: round(width * 8 / 3), "loss": again}
WRONG = {
    ("parameters", with_two_tables): "a matrix of its own",
    ("parameters", without_positions): "positions are not counted",
    ("parameters", without_the_last_norm): "last norm is missing",
    ("parameters", without_biases): "biases",
    ("width", lambda width: width * 4): "third matrix",
    ("width", lambda width: width + width): "halved",
    ("width", lambda width: width * width * 8): "number of parameters",
    ("loss", from_the_start): "first saying counts",
    ("loss", of_the_first_saying): "that of the first saying",
    ("loss", a_place_early): "one place later",
    ("loss", not_shifted): "shift the targets",
}


@pytest.mark.parametrize("name", CHECKERS)
def test_the_solution_passes_and_the_stub_does_not(name):
    assert CHECKERS[name](RIGHT[name])
    assert not CHECKERS[name](lambda *_: ...)
    assert not CHECKERS[name](lambda *_: None)
    assert CHECKERS[name].audit() == []


@pytest.mark.parametrize(("case", "cause"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_answer_is_refused_with_its_cause(case, cause):
    name, answer = case
    verdict = CHECKERS[name](answer)
    assert not verdict
    assert cause in verdict.message
