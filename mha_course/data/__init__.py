"""Small data sets, generated from a seed or bundled with scikit-learn. Nothing is downloaded.

If a function takes a generator, the default is torch's global one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Float64, Int64, Shaped
from torch import Tensor

from mha_course._checks import check_seed
from mha_lib._checks import (
    check_float_tensor,
    check_number,
    check_numbers,
    check_positive,
    check_positive_int,
    check_sizes,
    check_type,
    refusal,
)

# Each pointer task points to a position in the same sequence; "previous", "next" and
# "opposite" wrap around.
POINTER_TASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "previous": lambda tokens: tokens.roll(1, -1),
    "mirrored": lambda tokens: tokens.flip(-1),
    "next": lambda tokens: tokens.roll(-1, -1),
    "opposite": lambda tokens: tokens.roll(tokens.shape[-1] // 2, -1),
}


def pointer_batch(
    batch_size: int,
    *,
    tasks: Sequence[str] = ("previous", "mirrored"),
    vocab_size: int = 8,
    length: int = 12,
    generator: torch.Generator | None = None,
) -> tuple[
    Int64[Tensor, "{batch_size} {length}"],
    Int64[Tensor, "{batch_size} {length} {len(tasks)}"],
]:
    """Random tokens, and for each token the tokens at the positions to which the tasks point.

    Returns:
        (tokens, targets): int64, (batch_size, length) and (batch_size, length, number of tasks). Tokens are
        uniform in 0..vocab_size-1; `tasks` are names from `POINTER_TASKS`.

    Raises:
        TypeError: a size is not an int.
        ValueError: a size is not positive, or a task is unknown.

    Example:
        >>> tokens, targets = pointer_batch(1, length=3, generator=torch.Generator().manual_seed(0))
        >>> tokens.tolist(), targets[0, :, 0].tolist(), targets[0, :, 1].tolist()
        ([[4, 7, 5]], [5, 4, 7], [5, 7, 4])
    """
    check_sizes(batch_size=batch_size, vocab_size=vocab_size, length=length)
    if not tasks or set(tasks) - set(POINTER_TASKS):
        rule = f"be names from {list(POINTER_TASKS)}, at least one"
        raise refusal("tasks", rule, list(tasks))
    tokens = torch.randint(vocab_size, (batch_size, length), generator=generator)
    return tokens, torch.stack([POINTER_TASKS[task](tokens) for task in tasks], dim=-1)


# The small English of `sentence_batch`. A word's token is its index in `SENTENCE_WORDS`.
PEOPLE = ("doctor", "teacher", "singer", "farmer", "baker", "sailor", "friend", "guest")
PLACES = (
    *("kitchen", "garden", "station", "library"),
    *("harbour", "market", "school", "theatre"),
)
SENTENCE_WORDS: tuple[str, ...] = (
    *("[padding]", "___", "today", "in", "near", "the", "is", "are"),
    *("old", "young", "tall", "kind"),
    *("tired", "late", "happy", "busy"),
    *PLACES,
    *(person + ending for person in PEOPLE for ending in ("", "s")),
    *(person + ending for person in PEOPLE for ending in ("'s", "s'")),
)
SENTENCE_QUESTIONS = ("verb", "owner", "neighbour", "place")
SENTENCE_LENGTH = 15
_WORD = {word: token for token, word in enumerate(SENTENCE_WORDS)}


class Sentences(NamedTuple):
    """Sentences with a blank, the words that answer the questions, and where each answer can be read."""

    tokens: Int64[Tensor, "batch 15"]
    targets: Int64[Tensor, "batch 4"]
    sources: Int64[Tensor, "batch 4"]


def sentence_batch(
    batch_size: int, *, held_out: bool = False, generator: torch.Generator | None = None
) -> Sentences:
    """Small English sentences in which the verb is blank. Is it *is* or *are*? Whose, near whom, and where?

    "today the doctor's old friends near the sailor ___ tired in the garden" has four answers at its blank:
    *are*, because the subject, *friends*, is plural (the sailor, who is next to the verb, is singular);
    the owner, *doctor's*; the neighbour, *sailor*; and the place, *garden*. Every person can be subject,
    owner or neighbour. The place is at the beginning or at the end, and adjectives and *today* are optional,
    so no word has a fixed position.

    Without `held_out`, the sentences are for training; with it, they are for testing. The two kinds differ in
    the people: no three people that occur together in one kind occur together in the other.

    Returns:
        `Sentences`, all int64: tokens (batch_size, 15), indices of `SENTENCE_WORDS`, padded with 0 at the
        end; targets (batch_size, 4), the words that answer the `SENTENCE_QUESTIONS`; sources
        (batch_size, 4), the positions of subject, owner, neighbour and place in the sentence.

    Raises:
        TypeError: `batch_size` is not an int, or `held_out` not a bool.
        ValueError: `batch_size` is not positive.

    Example:
        >>> tokens, targets, _ = sentence_batch(1, generator=torch.Generator().manual_seed(4))
        >>> sentence_text(tokens[0])
        "in the theatre the young guests' farmer near the teachers ___ late"
        >>> sentence_text(targets[0])
        "is guests' teachers theatre"
    """
    check_positive_int("batch_size", batch_size)
    check_type("held_out", held_out, bool)

    def draw(number: int, *shape: int) -> Tensor:
        return torch.randint(number, (batch_size, *shape), generator=generator)

    triples = _people(held_out)
    people = triples[torch.randint(len(triples), (batch_size,), generator=generator)]
    coins = draw(2, 8)
    several, in_front, today = coins[:, :3], coins[:, 3], coins[:, 4]
    adjectives = coins[:, 5:] * (_WORD["old"] + draw(4, 3))
    subject, owner, neighbour = (_WORD["doctor"] + 2 * people + several).T
    owner = owner + (_WORD["doctor's"] - _WORD["doctor"])
    place = _WORD["kitchen"] + draw(len(PLACES))
    slots = (
        today * _WORD["today"],
        *(in_front * word for word in (_WORD["in"], _WORD["the"], place)),
        _WORD["the"],
        adjectives[:, 0],
        owner,
        adjectives[:, 1],
        subject,
        *(_WORD["near"], _WORD["the"]),
        adjectives[:, 2],
        neighbour,
        _WORD["___"],
        _WORD["tired"] + draw(4),
        *((1 - in_front) * word for word in (_WORD["in"], _WORD["the"], place)),
    )
    spaced = torch.zeros(batch_size, len(slots), dtype=torch.long)
    for column, word in enumerate(slots):
        spaced[:, column] = word
    # The words keep their order; the gaps between them become padding at the end.
    order = (spaced == 0).long().argsort(dim=1, stable=True)
    tokens = spaced.gather(1, order)[:, :SENTENCE_LENGTH]
    verb = _WORD["is"] + several[:, 0]
    read = torch.stack((subject, owner, neighbour, place), dim=1)
    sources = (tokens.unsqueeze(1) == read.unsqueeze(2)).long().argmax(-1)
    targets = torch.stack((verb, owner, neighbour, place), dim=1)
    return Sentences(tokens, targets, sources)


def _people(held_out: bool) -> Int64[Tensor, "triples 3"]:
    """Subject, owner and neighbour, all different; the sum of their indices separates the two kinds."""
    triples = itertools.permutations(range(len(PEOPLE)), 3)
    return torch.tensor([t for t in triples if (sum(t) % 5 == 0) == held_out])


def sentence_text(tokens: Int64[Tensor, " words"]) -> str:
    """The words of one sentence of `sentence_batch`, without its padding.

    Raises:
        TypeError: `tokens` is not a tensor of integers.
        ValueError: a token is out of range, or `tokens` does not have one axis.

    Example:
        >>> sentence_text(torch.tensor([5, 24, 6, 12, 0]))
        'the doctor is tired'
    """
    highest = len(SENTENCE_WORDS) - 1
    rule = f"lie in 0..{highest}"
    check_numbers("tokens", tokens, 0, highest, rule, integers="(words,)")
    return " ".join(SENTENCE_WORDS[token] for token in tokens.tolist() if token)


def markov_transition(
    vocab_size: int = 8, *, concentration: float = 0.3, seed: int = 0
) -> Float64[Tensor, "{vocab_size} {vocab_size}"]:
    """Transition matrix of a random source in which each token depends on the one before it.

    The rows are drawn from a Dirichlet distribution; a small concentration makes the source predictable.

    Returns:
        float64 (vocab_size, vocab_size): row = current token, column = next token. Rows sum to 1.

    Raises:
        TypeError: `vocab_size` or `seed` is not an int, `concentration` not a number.
        ValueError: `vocab_size` or `concentration` is not positive, or `seed` is out of range.

    Example:
        >>> markov_transition(3).sum(-1).tolist()
        [1.0, 1.0, 1.0]
    """
    check_positive_int("vocab_size", vocab_size)
    check_positive("concentration", concentration)
    check_seed("seed", seed)
    import numpy as np

    draw = np.random.default_rng(seed).dirichlet
    rows = draw([concentration] * vocab_size, size=vocab_size)
    return torch.from_numpy(rows / rows.sum(-1, keepdims=True))


def markov_batch(
    batch_size: int,
    length: int,
    transition: Float[Tensor, "vocab_size vocab_size"],
    *,
    generator: torch.Generator | None = None,
) -> tuple[
    Int64[Tensor, "{batch_size} {length}"], Int64[Tensor, "{batch_size} {length}"]
]:
    """Sequences from a Markov source, which start with a uniform token, and for each token the next one.

    The matrix (vocab_size, vocab_size) is as from `markov_transition`.

    Returns:
        (tokens, targets): int64, both (batch_size, length); targets[:, t] follows tokens[:, t].

    Raises:
        TypeError: a size is not an int, or `transition` is not a floating-point tensor.
        ValueError: a size is not positive, or `transition` is not a square matrix of probabilities.

    Example:
        >>> tokens, targets = markov_batch(2, 5, markov_transition())
        >>> torch.equal(tokens[:, 1:], targets[:, :-1])
        True
    """
    check_sizes(batch_size=batch_size, length=length)
    _check_transition(transition)
    tokens = torch.randint(len(transition), (batch_size, 1), generator=generator)
    for _ in range(length):
        following = torch.multinomial(transition[tokens[:, -1]], 1, generator=generator)
        tokens = torch.cat((tokens, following), dim=1)
    return tokens[:, :-1], tokens[:, 1:]


def markov_entropy(
    length: int, transition: Float[Tensor, "vocab_size vocab_size"]
) -> float:
    """Entropy floor of `markov_batch`: no model that sees only the past can have a lower expected loss.

    Returns:
        Mean over the positions of H(next token | this token), in nats.

    Raises:
        TypeError: `length` is not an int, or `transition` is not a floating-point tensor.
        ValueError: `length` is not positive, or `transition` is not a square matrix of probabilities.

    Example:
        >>> round(markov_entropy(7, torch.full((4, 4), 0.25)), 4)  # log 4
        1.3863
    """
    check_positive_int("length", length)
    _check_transition(transition)
    row_entropy = torch.special.entr(transition).sum(-1)
    now = torch.full((len(transition),), 1 / len(transition), dtype=transition.dtype)
    total = 0.0
    for _ in range(length):
        total += float(now @ row_entropy)
        now = now @ transition
    return total / length


def _check_transition(transition: Tensor) -> None:
    check_float_tensor("transition", transition, axes="vocab_size, vocab_size")
    if transition.shape[0] != transition.shape[1]:
        raise refusal("transition", "be square", transition)
    sums = transition.sum(-1)
    if (transition < 0).any() or not torch.allclose(sums, torch.ones_like(sums)):
        rule = "hold probabilities, rows that sum to 1"
        raise refusal("transition", rule, transition.tolist())


class Split(NamedTuple):
    """Inputs and targets for training and for testing."""

    x_train: Float32[Tensor, "num_train *x"]
    y_train: Shaped[Tensor, "num_train *y"]
    x_test: Float32[Tensor, "num_test *x"]
    y_test: Shaped[Tensor, "num_test *y"]


def noisy_curve(
    num_train: int = 50,
    num_test: int = 50,
    *,
    noise: float = 0.5,
    generator: torch.Generator | None = None,
) -> Split:
    """Samples of `curve` for training, and the curve itself on a grid from 0 to 5 for the test.

    The x of the samples are uniform in 0..5 and sorted; `noise` is the standard deviation of the noise in y.

    Returns:
        A `Split` of float32 tensors (n, 1): x_train, y_train, x_test, y_test.

    Raises:
        TypeError: a count is not an int, or `noise` not a number.
        ValueError: a count is not positive, or `noise` is negative.

    Example:
        >>> noisy_curve(7, 3).x_test.flatten().tolist()
        [0.0, 2.5, 5.0]
    """
    check_sizes(num_train=num_train, num_test=num_test)
    if not check_number("noise", noise) >= 0:
        raise refusal("noise", "not be negative", noise)
    x_train = (5 * torch.rand(num_train, 1, generator=generator)).sort(0).values
    x_test = torch.linspace(0, 5, num_test).unsqueeze(-1)
    y_train = curve(x_train) + noise * torch.randn(num_train, 1, generator=generator)
    return Split(x_train, y_train, x_test, curve(x_test))


def curve(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The function behind `noisy_curve`: sin 2x + x / 2, two bumps on a slope.

    Example:
        >>> curve(torch.zeros(1)).item()
        0.0
    """
    return torch.sin(2 * x) + 0.5 * x


def digit_tokens(
    patch: int = 2, *, test_fraction: float = 0.25, seed: int = 0
) -> Split:
    """Real handwritten digits, scikit-learn's `load_digits`, cut into square patches, one token each.

    An image has 8 × 8 pixels, and `patch` is the side of a patch. The seed chooses which of the 1797
    images are held out for the test.

    Returns:
        A `Split`: x float32 (images, (8 / patch)², patch²) in 0..1, patches row by row; y int64 (images,).

    Raises:
        TypeError: `patch` or `seed` is not an int, `test_fraction` not a number.
        ValueError: `patch` does not divide 8, or a different argument is out of range.

    Example:
        >>> digit_tokens().x_train.shape
        torch.Size([1347, 16, 4])
    """
    check_positive_int("patch", patch)
    if 8 % patch:
        raise refusal("patch", "divide 8", patch)
    check_seed("seed", seed)
    if not 0 < check_number("test_fraction", test_fraction) < 1:
        raise refusal("test_fraction", "be between 0 and 1", test_fraction)
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32) / 16
    rows = pixels.unfold(1, patch, patch)
    tokens = rows.unfold(2, patch, patch).flatten(3).flatten(1, 2)
    labels = torch.tensor(digits.target)
    options = {"test_size": test_fraction, "random_state": seed}
    train, test = train_test_split(
        range(len(labels)), stratify=digits.target, **options
    )
    return Split(tokens[train], labels[train], tokens[test], labels[test])
