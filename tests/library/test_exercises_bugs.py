"""The checkers of the bug zoo: solutions pass, and each known mistake is named with its cause."""

from itertools import combinations

import pytest
import torch

from mha_course import exercises
from mha_course.exercises import bugs
from mha_lib import MultiHeadAttention

ONE_HEAD = {
    "merge without transpose", "split without transpose", "lengths in wrong order",
    "compounded projections", "scale by model width",
}  # fmt: skip


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


def smallest(found, titles):
    def caught(suite):
        return {name for name, by in found.items() if not set(by).isdisjoint(suite)}

    suites = (set(suite) for size in range(len(titles) + 1) for suite in combinations(titles, size))
    return next(suite for suite in suites if caught(suite) == caught(titles))


def test_other_right_answers_are_accepted():
    assert exercises.check_name_the_scale(ratio_of_differences)
    assert exercises.check_one_head(lambda: ONE_HEAD)
    assert exercises.check_one_head(lambda: tuple(ONE_HEAD))
    assert exercises.check_shortest_suite(smallest)


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
    return not torch.allclose(layer(tokens())[1].sum(-1), torch.ones(()))


def second_call_differs(layer):
    return not torch.equal(layer(tokens())[0], layer(tokens())[0])


DETECTORS = {"output": wrong_output, "row sums": wrong_row_sums}


@pytest.mark.parametrize(("pair", "sentence"), [
    ((Remembers, second_call_differs), "Right in the case that was tried: 2 detectors."),
    ((Doubles, second_call_differs), "your specimen is found by: output"),
    ((Remembers, lambda layer: layer(3)), "it raises"),
    (Remembers, "a specimen and a detector are expected, got <class"),
    ((Remembers(15, 3), second_call_differs), "the specimen must be a class, got"),
    (None, "the function returns None."),
])  # fmt: skip
def test_an_escape_gets_its_verdict(pair, sentence):
    verdict = exercises.check_escape(lambda: pair, Layer, DETECTORS)
    assert sentence in verdict.message
    assert verdict.right == sentence.startswith("Right")


def test_the_checker_of_escapes_is_sound():
    assert bugs._escape(Layer, DETECTORS).audit() == []
