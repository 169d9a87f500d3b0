"""The appendix on mask conventions: answers written in another way than on the page."""

import pytest
import torch
from exercise_cells import CHECKS, judges


def translate(mask, source, target, *, ones=torch.int64):
    """Entry by entry, without the tricks of the page."""
    visible = {"keep": True, "hidden": False, "added": 0.0, "ones": 1}
    meaning = {"keep": (False, True), "hidden": (True, False), "added": (-torch.inf, 0.0), "ones": (0, 1)}
    dtypes = {"keep": torch.bool, "hidden": torch.bool, "added": torch.float32, "ones": ones}
    entries = [meaning[target][entry == visible[source]] for entry in mask.flatten().tolist()]
    return torch.tensor(entries, dtype=dtypes[target]).view(mask.shape)


def left_padded(layer, x, attention_mask):
    length = x.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril() & (attention_mask == 1)[:, None]
    return layer(x, x, x, mask)


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


ANSWERS = [
    ("check_translate", translate, None),
    ("check_translate", lambda *a: translate(*a, ones=torch.int32),
     "the numbers are right, but not the dtype"),
    ("check_left_padding", left_padded, None),
    ("check_convention", convention, None),
    ("check_convention", all_true_and_finite,
     "a mask that is True everywhere cannot tell the conventions apart"),
    ("check_convention", largest, "the largest weight alone cannot tell the conventions apart"),
]  # fmt: skip


test_an_answer_gets_its_verdict = judges(ANSWERS)


@pytest.mark.no_shape_checks
def test_an_integer_mask_is_refused_by_the_layer_and_the_verdict_says_so():
    causal = lambda layer, x, mask: layer(x, x, x, mask[:, None], is_causal=True)  # noqa: E731
    verdict = CHECKS["check_left_padding"](causal)
    assert "attn_mask must be a bool tensor" in verdict.message
