"""The checkers of the appendix on masks: solutions pass, and each known mistake is named with its cause."""

import pytest
import torch
from exercise_cells import checkers_of

from mha_lib import exercises

STEM = "appendix_mask_rosetta"
NAMES = ["check_translate", "check_left_padding", "check_convention"]


def translate(mask, source, target, *, hidden=-float("inf"), ones=torch.int64):
    """Entry by entry, without the tricks of the page."""
    visible = {"keep": True, "hidden": False, "added": 0.0, "ones": 1}
    meaning = {"keep": (False, True), "hidden": (True, False), "added": (hidden, 0.0), "ones": (0, 1)}
    dtypes = {"keep": torch.bool, "hidden": torch.bool, "added": torch.float32, "ones": ones}
    entries = [meaning[target][entry == visible[source]] for entry in mask.flatten().tolist()]
    return torch.tensor(entries, dtype=dtypes[target]).view(mask.shape)


def by_bool(mask, source, target):
    keep = ~mask if source == "hidden" else mask.bool()
    return translate(keep, "keep", target)


def by_product(mask, source, target):
    keep = translate(mask, source, "keep")
    return (1 - keep.int()) * float("-inf") if target == "added" else translate(keep, "keep", target)


def left_padded(layer, x, attention_mask):
    length = x.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril() & (attention_mask == 1)[:, None]
    return layer(x, x, x, mask)


def call_left(rule, **options):
    return lambda layer, x, mask: layer(x, x, x, rule(mask), **{"is_causal": True} | options)


def weights(attend, mask):
    size = len(mask)
    query = torch.zeros(1, 1, 1, 3)
    rows = attend(query, torch.zeros(1, 1, size, 3), torch.eye(size)[None, None], mask.view(1, 1, 1, size))
    return rows.flatten()


def convention(attend):
    """With another mask than the page's: two of seven keys."""
    seen = weights(attend, torch.tensor([False, True, False, False, False, True, False]))
    share = round(float(seen[1] + seen[5]), 3)
    return {1.0: "keep", 0.0: "hidden", 0.286: "ignored"}.get(share, "added")


def all_true_and_finite(attend):
    seen = weights(attend, torch.ones(5, dtype=torch.bool))
    return "keep" if torch.allclose(seen.sum(), torch.ones(())) else "hidden"


def largest(attend):
    return "keep" if weights(attend, torch.arange(3) == 1).argmax() == 1 else "hidden"


def answers(**renamed):
    return lambda attend: renamed.get(convention(attend), convention(attend))


ANSWERS = [
    ("check_translate", translate, None),
    ("check_translate", by_bool, "an added mask is read as if any number but 0 were visible"),
    ("check_translate", by_product, "0 times infinity makes NaN"),
    (
        "check_translate",
        lambda *a: translate(*a, hidden=-10000.0),
        "the hidden entries of an added mask are finite",
    ),
    (
        "check_translate",
        lambda *a: translate(*a, hidden=-1e9),
        "the hidden entries of an added mask are finite",
    ),
    (
        "check_translate",
        lambda *a: translate(*a, ones=torch.float32),
        "the numbers are right, but not the dtype",
    ),
    (
        "check_translate",
        lambda *a: translate(*a, ones=torch.int32),
        "the numbers are right, but not the dtype",
    ),
    ("check_translate", lambda mask, *_: mask.clone(), "the mask comes back as it was"),
    (
        "check_translate",
        lambda m, s, t: translate(translate(m, s, "hidden"), "keep", t),
        "every translation inverts",
    ),
    ("check_left_padding", left_padded, None),
    (
        "check_left_padding",
        lambda layer, x, mask: layer(x, x, x, is_causal=True, valid_lens=(mask != 0).sum(1)),
        "the mask was turned into lengths",
    ),
    (
        "check_left_padding",
        call_left(lambda mask: (mask == 0)[:, None]),
        "the padding is seen and the tokens are hidden",
    ),
    (
        "check_left_padding",
        call_left(lambda mask: (mask == 1)[:, None], is_causal=False),
        "there is no causal mask",
    ),
    (
        "check_left_padding",
        call_left(lambda mask: (mask == 1)[..., None]),
        "the mask hides queries instead of keys",
    ),
    ("check_left_padding", call_left(lambda _: None), "the padding is visible"),
    ("check_convention", convention, None),
    (
        "check_convention",
        all_true_and_finite,
        "a mask that is True everywhere cannot tell the conventions apart",
    ),
    ("check_convention", largest, "the largest weight alone cannot tell the conventions apart"),
    ("check_convention", answers(ignored="added"), "a layer that ignores the mask is taken for one that"),
    (
        "check_convention",
        answers(added="ignored"),
        "a layer that adds the mask is taken for one that ignores",
    ),
    ("check_convention", answers(keep="hidden", hidden="keep"), "`keep` and `hidden` are exchanged"),
]


@pytest.mark.parametrize(
    ("name", "answer", "problem"), ANSWERS, ids=[f"{n}-{p or 'right'}" for n, _, p in ANSWERS]
)
def test_an_answer_gets_its_verdict(name, answer, problem):
    verdict = getattr(exercises, name)(answer)
    assert verdict.right == (problem is None), verdict
    assert verdict.message.startswith(f"Not yet: {problem}" if problem else "Right in "), verdict


@pytest.mark.parametrize("name", NAMES)
def test_each_checker_is_sound(name):
    check = getattr(exercises, name)
    assert check.audit() == []
    assert len({wrong.name for wrong in check.wrong}) >= 3
    assert not check(lambda *_, **__: None)


@pytest.mark.no_shape_checks
def test_an_integer_mask_is_refused_by_the_layer_and_the_verdict_says_so():
    verdict = exercises.check_left_padding(call_left(lambda mask: mask[:, None]))
    assert "attn_mask must be a bool tensor" in verdict.message


def test_the_page_has_these_exercises():
    assert checkers_of(STEM) == NAMES
