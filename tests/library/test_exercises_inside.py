"""The checkers of chapter 8: solutions pass, wrong answers are refused with their cause."""

import pytest
import torch
from exercise_cells import checkers_of

from mha_lib.dates import DATE_LETTERS, encode_source
from mha_lib.exercises.inside import check_mixed_memory, check_one_head_left, check_wide_tokens

CHECKERS = {"gates": check_one_head_left, "memory": check_mixed_memory, "tokens": check_wide_tokens}


def gates(num_heads):
    return torch.stack([(torch.arange(num_heads) == kept).float() for kept in range(num_heads)])


def write(model, memories, lens, owner, place=-1):
    """Greedy decoding; `owner` says which memory and which lengths each step reads."""
    so_far = torch.tensor([[0]])
    for memory, length in owner:
        logits = model.decode(so_far, memories[memory], source_lens=lens[length])
        so_far = torch.cat((so_far, logits[:, place].argmax(-1)[:, None]), dim=1)
    return so_far[0, 1:]


def memory(model, memories, lens, switch, steps):
    return write(model, memories, lens, [(0, 0)] * switch + [(1, 1)] * (steps - switch))


def old_lengths(model, memories, lens, switch, steps):
    return write(model, memories, lens, [(0, 0)] * switch + [(1, 0)] * (steps - switch))


def late(model, memories, lens, switch, steps):
    return write(model, memories, lens, [(0, 0)] * (switch + 1) + [(1, 1)] * (steps - switch - 1))


def exchanged(model, memories, lens, switch, steps):
    return write(model, memories, lens, [(1, 1)] * switch + [(0, 0)] * (steps - switch))


def tokens(text, spaces):
    letters = (" " * spaces).join(text.split(" "))[:40].rstrip()
    row = torch.zeros(40, dtype=torch.int64)
    for place, letter in enumerate(letters):
        row[place] = 1 + DATE_LETTERS.index(letter)
    return row


def shifted(text, spaces):
    row = tokens(text, spaces)
    return torch.where(row > 0, row - 1, row)


RIGHT = {"gates": gates, "memory": memory, "tokens": tokens}
WRONG = {
    ("gates", lambda n: (gates(n) == 0).float()): "keeps one head",
    ("gates", lambda n: torch.ones(n, n)): "torch.zeros",
    ("gates", lambda n: (torch.arange(n) <= torch.arange(n)[:, None]).float()): "more and more",
    ("memory", old_lengths): "lengths of the first",
    ("memory", late): "too late",
    ("memory", exchanged): "exchanged",
    ("tokens", lambda text, spaces: encode_source([(" " * spaces).join(text.split())])[0]): "collapsed",
    ("tokens", shifted): "token 1",
    ("tokens", lambda text, spaces: tokens(text, spaces + 1)): "one space too many",
}


@pytest.mark.parametrize("name", CHECKERS)
def test_the_solution_passes_and_the_stub_does_not(name):
    assert CHECKERS[name](RIGHT[name])
    assert not CHECKERS[name](lambda *_: None)
    assert CHECKERS[name].audit() == []


@pytest.mark.parametrize(("case", "cause"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_answer_is_refused_with_its_cause(case, cause):
    name, answer = case
    verdict = CHECKERS[name](answer)
    assert not verdict
    assert cause in verdict.message


def test_the_page_has_these_exercises():
    assert len(checkers_of("08_inside_a_transformer")) == len(CHECKERS)
