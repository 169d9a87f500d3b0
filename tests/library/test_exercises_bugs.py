"""The checkers of the bug zoo: solutions pass, and each known mistake is named with its cause."""

import itertools

import pytest
import torch
from exercise_cells import checkers_of

from mha_lib import MultiHeadAttention, exercises
from mha_lib.exercises import bugs

STEM = "appendix_bug_zoo"
NAMES = ["check_name_the_scale", "check_one_head", "check_shortest_suite", "check_escape"]
ONE_HEAD = {
    "merge without transpose",
    "split without transpose",
    "lengths in wrong order",
    "compounded projections",
    "scale by model width",
}


def ratio_of_differences(layer, *, centred=True):
    """The differences of neighbouring scores, instead of scores without their mean."""
    x = torch.randn(3, 7, layer.embed_dim, generator=torch.Generator().manual_seed(5))
    q, k = layer.split_heads(layer.q_proj(x)), layer.split_heads(layer.k_proj(x))
    products, scores = torch.einsum("bhid,bhjd->bhij", q, k), torch.log(layer(x)[1])
    if centred:
        products, scores = products.diff(), scores.diff()
    factor = (products.flatten() @ scores.flatten()) / products.square().sum()
    distances = {
        "none": (factor - 1).abs(),
        "head": (factor * layer.head_dim**0.5 - 1).abs(),
        "width": (factor * layer.embed_dim**0.5 - 1).abs(),
    }
    return min(distances, key=distances.get)


def by_sharpness(layer):
    x = torch.randn(3, 7, layer.embed_dim, generator=torch.Generator().manual_seed(5))
    sharpest = layer(x)[1].max(-1).values.median()
    return "none" if sharpest > 0.7 else "head" if sharpest > 0.25 else "width"


def by_row_sums(layer):
    sums = layer(torch.randn(3, 7, layer.embed_dim))[1].sum(-1)
    return "head" if torch.allclose(sums, torch.ones(())) else "none"


def best_first(found, titles):
    suite, left = [], {name for name in found if set(found[name]) & set(titles)}
    while left:
        best = max(titles, key=lambda title: sum(title in found[name] for name in left))
        suite.append(best)
        left = {name for name in left if best not in found[name]}
    return suite


def smallest(found, titles, wanted=None):
    wanted = wanted or {name for name, by in found.items() if not set(by).isdisjoint(titles)}
    for size in range(1, len(titles) + 1):
        for suite in map(set, itertools.combinations(titles, size)):
            if {name for name, by in found.items() if suite & set(by)} == wanted:
                return suite
    return list(titles)


ANSWERS = [
    ("check_name_the_scale", ratio_of_differences, None),
    ("check_name_the_scale", by_row_sums, 'the answer is always "head"'),
    ("check_name_the_scale", lambda layer: "none", 'the answer is always "none"'),
    (
        "check_name_the_scale",
        lambda layer: {"head": "width", "width": "head"}.get(ratio_of_differences(layer), "none"),
        '"head" and "width" are exchanged',
    ),
    ("check_one_head", lambda: ONE_HEAD, None),
    ("check_one_head", lambda: tuple(ONE_HEAD), None),
    (
        "check_one_head",
        lambda: ["split without transpose", "merge without transpose"],
        "only the faults of cutting and merging are named",
    ),
    ("check_one_head", lambda: [*ONE_HEAD, "no scale"], "scores without a scale are not right with one head"),
    (
        "check_one_head",
        lambda: ONE_HEAD - {"scale by model width"},
        "the scale by the model's width is missing",
    ),
    ("check_shortest_suite", smallest, None),
    ("check_shortest_suite", best_first, "the suite is built by taking the best detector first"),
    ("check_shortest_suite", lambda found, titles: set(titles), "all detectors are returned"),
    (
        "check_shortest_suite",
        lambda found, titles: max(titles, key=lambda t: sum(t in by for by in found.values())),
        "only one detector is returned",
    ),
    (
        "check_shortest_suite",
        lambda found, titles: smallest(found, titles, wanted=set(found)),
        "the search asks for a suite that finds every specimen",
    ),
]


@pytest.mark.parametrize(
    ("name", "answer", "problem"), ANSWERS, ids=[f"{n}-{p or 'right'}" for n, _, p in ANSWERS]
)
def test_an_answer_gets_its_verdict(name, answer, problem):
    verdict = getattr(exercises, name)(answer)
    assert verdict.right == (problem is None), verdict
    assert verdict.message.startswith(f"Not yet: {problem}. " if problem else "Right in "), verdict


@pytest.mark.parametrize("name", NAMES[:3])
def test_each_checker_is_sound(name):
    check = getattr(exercises, name)
    assert check.audit() == []
    assert len({wrong.name for wrong in check.wrong}) >= 3
    assert not check(lambda *_, **__: None)


def test_a_measured_scale_that_is_wrong_is_told_what_spoils_it():
    uncentred = exercises.check_name_the_scale(lambda layer: ratio_of_differences(layer, centred=False))
    assert 'it says "' in repr(uncentred)
    assert "after subtracting the mean of each row from both" in repr(uncentred)

    def but_for(size):
        """Right with an offset, and elsewhere by how sharp the weights are."""
        return lambda layer: (ratio_of_differences if layer.embed_dim != size else by_sharpness)(layer)

    small, large = (repr(exercises.check_name_the_scale(but_for(size))) for size in (15, 14))
    assert 'it says "width", and "head" is right. The projections are small here' in small
    assert 'it says "none", and "head" is right. The projections are large here' in large
    assert '"none" is expected, got 3' in repr(exercises.check_name_the_scale(lambda layer: 3))


def test_other_lists_of_specimens_get_the_reason_for_the_first_mistake():
    verdict = exercises.check_one_head(lambda: {"merge without transpose", "lengths in wrong order"})
    assert "*split without transpose* passes too: with one head there is nothing to exchange" in repr(verdict)
    verdict = exercises.check_one_head(lambda: {*ONE_HEAD, "inverted mask"})
    assert "*inverted mask* is still found: the mask is inverted in any head" in repr(verdict)
    assert "no specimen is called 'no mask'" in repr(exercises.check_one_head(lambda: ["no mask"]))


# ------------------------------------------------------------------ escape


class Layer(MultiHeadAttention):
    """A right layer, called as those of the page."""

    def forward(self, x, *, valid_lens=None):
        return super().forward(x, x, x, valid_lens=valid_lens)


class Doubles(Layer):
    def forward(self, x, *, valid_lens=None):
        output, weights = super().forward(x, valid_lens=valid_lens)
        return 2 * output, weights


class Remembers(Layer):
    """From its second call on, the output is another."""

    calls = 0

    def forward(self, x, *, valid_lens=None):
        self.calls += 1
        output, weights = super().forward(x, valid_lens=valid_lens)
        return output + (self.calls > 1), weights


def tokens():
    return torch.randn(2, 7, 15, generator=torch.Generator().manual_seed(1))


def wrong_output(layer):
    reference = Layer(15, 3)
    reference.load_state_dict(layer.state_dict())
    return not torch.allclose(layer(tokens())[0], reference(tokens())[0], atol=1e-5)


def wrong_row_sums(layer):
    sums = layer(tokens())[1].sum(-1)
    return not torch.allclose(sums, torch.ones(()))


def second_call_differs(layer):
    return not torch.equal(layer(tokens())[0], layer(tokens())[0])


DETECTORS = {"output": wrong_output, "row sums": wrong_row_sums}


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ((Remembers, second_call_differs), "Right in the case that was tried: 2 detectors."),
        ((Doubles, second_call_differs), "your specimen is found by: output"),
        ((Remembers, wrong_output), "your detector does not find your specimen. "),
        (
            (Remembers, lambda layer: torch.tensor(True)),
            "your detector finds a fault in the right layer too.",
        ),
        ((Remembers, lambda layer: not second_call_differs(layer)), "your detector has it backwards. "),
        ((Layer, second_call_differs), "your detector does not find your specimen. "),
        ((Remembers, lambda layer: layer(3)), "it raises"),
        (Remembers, "a specimen and a detector are expected, got <class"),
        ((Remembers(15, 3), second_call_differs), "the specimen must be a class, got"),
        (None, "the function returns None."),
    ],
)
def test_an_escape_gets_its_verdict(pair, sentence):
    verdict = exercises.check_escape(lambda: pair, Layer, DETECTORS)
    assert sentence in verdict.message
    assert verdict.right == sentence.startswith("Right")


def test_the_checker_of_escapes_is_sound():
    assert bugs._escape(Layer, DETECTORS).audit() == []


def test_the_page_has_these_exercises():
    assert checkers_of(STEM) == NAMES
