"""Exercises of chapter 4: right answers that are written in another way pass."""

import pytest
import torch

from mha_course import exercises as e
from mha_lib import KeyValueCache


def with_the_cache(layer, x):
    cache = KeyValueCache()
    steps = [layer(t, t, t, is_causal=True, cache=cache)[0] for t in x.split(1, dim=1)]
    return torch.cat(steps, dim=1)


def by_hand(layer, x):
    """Without calling `k_proj`: then nothing can be counted."""
    weights = (layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight)
    query, key, value = (layer.split_heads(x @ weight.T) for weight in weights)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    hidden = torch.ones_like(scores).triu(1).bool()
    heads = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
    return layer.merge_heads(heads) @ layer.out_proj.weight.T


def by_changes(layer, x):
    """A detector without derivatives."""
    for i in range(1, x.shape[1]):
        other = torch.cat((x[:, :i], -3 * x[:, i:]), dim=1)
        if not torch.allclose(layer(other)[:, :i], layer(x)[:, :i], atol=1e-6):
            return True
    return False


def by_one_change(layer, x, sources=None, outputs=slice(None)):
    """As above, but only one input is changed at a time."""
    for i in range(1, x.shape[1]) if sources is None else sources:
        other = x.clone()
        other[:, i] = -3 * x[:, i]
        if not torch.allclose(layer(other)[:, :i][:, outputs], layer(x)[:, :i][:, outputs], atol=1e-6):
            return True
    return False


def by_search(tokens, num_letters):
    """An induction head without attention."""
    found = torch.zeros_like(tokens)
    for row, letters in enumerate(tokens.tolist()):
        for place, letter in enumerate(letters):
            if letter in letters[:place]:
                found[row, place] = letters[letters.index(letter) + 1]
    return found


def test_other_right_answers_are_accepted():
    assert e.check_one_by_one(with_the_cache)
    assert e.check_one_by_one(by_hand)
    assert e.check_leak_detector(by_changes)
    assert e.check_leak_detector(by_one_change)
    assert e.check_induction_head(by_search)
    assert e.check_spread(lambda x: (1 - x.mean(1).square().sum() / x.square().sum() * x.shape[1]) ** 0.5)
    assert e.check_permuted_mask(lambda mask, order: mask.numpy()[order.numpy()][:, order.numpy()])
    assert e.check_cross_shapes(lambda b, s, t, d, h: ([b, t, d], torch.tensor([b, h, t, s]), -1))


@pytest.mark.parametrize(("detector", "sentence"), [
    (lambda layer, x: by_one_change(layer, x, [x.shape[1] - 1]), "it changes only the last input. "),
    (lambda layer, x: by_one_change(layer, x, outputs=slice(1)), "it looks only at output 0. "),
    (lambda layer, x: by_one_change(layer, x, [x.shape[1] - 1], slice(1)),
     "it looks only at output 0 and the last input. "),
    (lambda layer, x: by_one_change(layer, x, [1]),
     "which output 0 sees input 3 (x (1, 5, 6)): `leaks` is False, where True is expected"),
    (lambda layer, x: x.shape[1] == 7 or by_changes(layer, x),
     "wrong for a recurrent layer (x (1, 7, 2)): `leaks` is True, where False is expected"),
])  # fmt: skip
def test_a_detector_that_looks_at_a_part_is_refused(detector, sentence):
    verdict = e.check_leak_detector(detector)
    assert not verdict
    assert sentence in verdict.message
