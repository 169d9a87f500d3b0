"""Data sets, compared with their definitions by counting and enumeration."""

import itertools
import math
import re

import oracles
import pytest
import torch
from random_tensors import generator
from sklearn.datasets import load_digits

from mha_course import data


@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_pointer_targets_are_where_the_task_points(length):
    places = {
        "previous": lambda i: (i - 1) % length,
        "mirrored": lambda i: length - 1 - i,
        "next": lambda i: (i + 1) % length,
        "opposite": lambda i: (i - length // 2) % length,
    }
    assert places.keys() == data.POINTER_TASKS.keys()
    sizes = {"length": length, "vocab_size": 11}
    tokens, targets = data.pointer_batch(7, tasks=tuple(places), **sizes, generator=generator())
    assert tokens.shape == (7, length)
    assert targets.shape == (7, length, 4)
    assert tokens.dtype == targets.dtype == torch.int64
    for b, i, (t, place) in itertools.product(range(7), range(length), enumerate(places.values())):
        assert targets[b, i, t] == tokens[b, place(i)]


def test_tasks_come_in_the_order_asked_for():
    tokens, targets = data.pointer_batch(3, tasks=["next", "previous"], generator=generator())
    assert torch.equal(targets[..., 0], tokens.roll(-1, 1))
    assert torch.equal(targets[..., 1], tokens.roll(1, 1))


def test_pointer_tokens_are_uniform_and_follow_the_generator():
    tokens, _ = data.pointer_batch(1000, vocab_size=5, length=13, generator=generator())
    assert set(tokens.unique().tolist()) == set(range(5))
    assert (tokens.flatten().bincount() / tokens.numel() - 0.2).abs().max() < 0.02
    assert torch.equal(tokens, data.pointer_batch(1000, vocab_size=5, length=13, generator=generator())[0])
    other, _ = data.pointer_batch(1000, vocab_size=5, length=13, generator=generator(1))
    assert not torch.equal(tokens, other)


def test_a_generator_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    data.pointer_batch(2, generator=generator())
    data.markov_batch(2, 3, data.markov_transition(), generator=generator())
    data.noisy_curve(generator=generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_transition_is_a_matrix_of_probabilities_fixed_by_its_seed():
    transition = data.markov_transition(7, concentration=0.3, seed=5)
    assert transition.shape == (7, 7)
    assert transition.dtype == torch.float64
    assert (transition >= 0).all()
    torch.testing.assert_close(transition.sum(1), torch.ones(7).double(), rtol=0, atol=1e-15)
    assert torch.equal(transition, data.markov_transition(7, concentration=0.3, seed=5))
    assert not torch.equal(transition, data.markov_transition(7, concentration=0.3, seed=6))


def test_small_concentration_makes_the_source_predictable():
    sources = [data.markov_transition(8, concentration=c) for c in (0.03, 0.3, 3.0, 300.0)]
    entropies = [data.markov_entropy(5, source) for source in sources]
    assert entropies == sorted(entropies)
    assert entropies[0] < 0.5
    assert entropies[-1] == pytest.approx(math.log(8), abs=0.01)


def test_a_certain_source_counts_round_and_round():
    tokens, targets = data.markov_batch(11, 7, torch.eye(5).roll(1, 1), generator=generator())
    assert tokens.shape == targets.shape == (11, 7)
    assert torch.equal(targets, (tokens + 1) % 5)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_source_follows_the_transition_matrix():
    transition = data.markov_transition(3, concentration=1.0)
    tokens, targets = data.markov_batch(4000, 11, transition, generator=generator())
    first = tokens[:, 0].bincount() / len(tokens)
    torch.testing.assert_close(first, torch.full((3,), 1 / 3), rtol=0, atol=0.03)
    pairs = torch.stack((tokens.flatten(), targets.flatten()))
    counts = torch.zeros(3, 3).index_put(tuple(pairs), torch.ones(()), accumulate=True).double()
    torch.testing.assert_close(counts / counts.sum(1, keepdim=True), transition, rtol=0, atol=0.02)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_entropy_equals_the_sum_over_all_sequences(length):
    absorbing = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double()
    for transition in (data.markov_transition(3, concentration=0.4), absorbing):
        floor = oracles.entropy_floor(length, transition)
        assert data.markov_entropy(length, transition) == pytest.approx(floor)


def test_the_source_itself_pays_its_entropy():
    """The loss of the true probabilities is the floor, on average over many samples."""
    transition = data.markov_transition()
    tokens, targets = data.markov_batch(20_000, 16, transition, generator=generator())
    loss = -transition[tokens, targets].log().mean().item()
    assert loss == pytest.approx(data.markov_entropy(16, transition), abs=0.01)


def test_noisy_curve_samples_the_curve():
    split = data.noisy_curve(31, 17, noise=0, generator=generator())
    assert isinstance(split, data.Split)
    assert [part.shape for part in split] == [(31, 1), (31, 1), (17, 1), (17, 1)]
    assert {part.dtype for part in split} == {torch.float32}
    for x, y in ((split.x_train, split.y_train), (split.x_test, split.y_test)):
        for place, height in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True):
            assert height == pytest.approx(math.sin(2 * place) + place / 2, abs=1e-5)
    assert torch.equal(split.x_train, split.x_train.sort(0).values)
    assert 0 <= split.x_train.min() < split.x_train.max() <= 5
    torch.testing.assert_close(split.x_test.flatten(), torch.linspace(0, 5, 17))


def test_noise_has_the_given_size_and_is_on_the_samples_only():
    split = data.noisy_curve(5000, 17, noise=0.3, generator=generator())
    assert (split.y_train - data.curve(split.x_train)).std().item() == pytest.approx(0.3, rel=0.05)
    assert torch.equal(split.y_test, data.curve(split.x_test))
    again = data.noisy_curve(5000, 17, noise=0.3, generator=generator())
    assert all(torch.equal(*pair) for pair in zip(split, again, strict=True))


SENTENCE = re.compile(
    r"(today )?(in the (?P<front>\w+) )?the ((?:old|young|tall|kind) )?(?P<owner>\w+'s?) "
    r"((?:old|young|tall|kind) )?(?P<subject>\w+) near the ((?:old|young|tall|kind) )?(?P<neighbour>\w+) ___ "
    r"(tired|late|happy|busy)( in the (?P<back>\w+))?"
)


def parsed(sentences):
    """For each sentence its text, and what a reader finds in it."""
    for tokens, targets, sources in zip(*sentences, strict=True):
        text = data.sentence_text(tokens)
        match = SENTENCE.fullmatch(text)
        assert match, text
        yield text, match.groupdict(), data.sentence_text(targets).split(), sources.tolist()


def test_sentences_are_english_and_a_reader_finds_their_answers():
    batch = data.sentence_batch(500, generator=generator())
    for text, found, (verb, owner, neighbour, place), sources in parsed(batch):
        assert (found["front"] is None) != (found["back"] is None)
        assert verb == ("are" if found["subject"].endswith("s") else "is")
        assert owner == found["owner"]
        assert neighbour == found["neighbour"]
        assert place == (found["front"] or found["back"])
        people = [found[role].removesuffix("'s").rstrip("s'") for role in ("subject", "owner", "neighbour")]
        assert len(set(people)) == 3
        assert set(people) <= set(data.PEOPLE)
        words = text.split()
        assert [words[i] for i in sources] == [found["subject"], owner, neighbour, place]


def test_sentences_use_every_word_and_no_word_is_there_twice():
    tokens, targets, _ = data.sentence_batch(4000, generator=generator())
    assert tokens.shape == (4000, data.SENTENCE_LENGTH)
    assert targets.shape == (4000, 4)
    assert tokens.dtype == targets.dtype == torch.int64
    assert len(set(data.SENTENCE_WORDS)) == len(data.SENTENCE_WORDS)
    used = {data.SENTENCE_WORDS[i] for i in torch.cat((tokens.flatten(), targets.flatten())).unique()}
    assert used == set(data.SENTENCE_WORDS)
    lengths = (tokens != 0).sum(-1)
    assert (int(lengths.min()), int(lengths.max())) == (11, data.SENTENCE_LENGTH)


def test_held_out_sentences_speak_of_other_people():
    def people(held_out):
        sentences = data.sentence_batch(20_000, held_out=held_out, generator=generator())
        first = data.SENTENCE_WORDS.index("doctor")
        of_owner = len(data.PEOPLE) * 2
        subject = sentences.tokens.gather(1, sentences.sources[:, :1])[:, 0]
        targets = sentences.targets
        numbers = (subject - first, targets[:, 1] - first - of_owner, targets[:, 2] - first)
        return {tuple(row) for row in (torch.stack(numbers, 1) // 2).tolist()}

    training, test = people(False), people(True)
    assert not training & test
    assert len(training) + len(test) == 8 * 7 * 6
    # Sorted as well, because the same three people in other roles must not occur either.
    assert not {tuple(sorted(p)) for p in training} & {tuple(sorted(p)) for p in test}
    assert 0.15 < len(test) / (8 * 7 * 6) < 0.25


def test_sentences_follow_the_generator():
    one, same, other = (data.sentence_batch(9, generator=generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.tokens, same.tokens)
    assert not torch.equal(one.tokens, other.tokens)


@pytest.mark.parametrize("patch", [1, 2, 4, 8])
def test_patches_put_together_are_the_image(patch):
    split, digits = data.digit_tokens(patch), load_digits()
    side = 8 // patch
    tokens, labels = (torch.cat((split.x_train, split.x_test)), torch.cat((split.y_train, split.y_test)))
    assert tokens.shape == (1797, side**2, patch**2)
    assert tokens.dtype == torch.float32
    assert labels.dtype == torch.int64
    images = torch.empty(1797, 8, 8)
    for row, column in itertools.product(range(side), repeat=2):
        place = images[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
        place.copy_(tokens[:, row * side + column].view(-1, patch, patch))
    # Every image with its label, each exactly once, whatever the order.
    pairs = zip(images, labels.tolist(), strict=True)
    ours = sorted((image.flatten().tolist(), label) for image, label in pairs)
    pairs = zip(digits.images, digits.target, strict=True)
    theirs = sorted(((image / 16).flatten().tolist(), int(label)) for image, label in pairs)
    assert ours == theirs


def test_digits_are_split_evenly_and_the_same_way_every_time():
    split = data.digit_tokens(test_fraction=0.2)
    assert len(split.x_test) == 360
    assert (split.y_test.bincount() / 360 - split.y_train.bincount() / 1437).abs().max() < 0.003
    assert torch.equal(split.x_test, data.digit_tokens(test_fraction=0.2).x_test)
    assert not torch.equal(split.x_test, data.digit_tokens(test_fraction=0.2, seed=1).x_test)
    assert (split.x_train.min(), split.x_train.max()) == (0, 1)
