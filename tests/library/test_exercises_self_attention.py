"""Exercises of chapter 4: every mistake is refused with its cause.

A mistake is written as a reader makes it: a change in the text of the page's solution.
"""

import time

import pytest
import torch
from test_exercises_positions import Page, answer_with

import mha_lib.exercises
from mha_lib import KeyValueCache

PAGE = Page("04_self_attention")

WHOLE = "information_flow(layer, x[0]).triu(1) > 1e-7"
DEPTH = "math.ceil((n - 1) / (r - 1))"
TRIANGLE = "my_causal_mask(n).triu(1 - r)"
MISTAKES = {
    1: {
        "the lengths are taken to count queries": ("weights, 3", "weights, 2"),
        "the lengths are taken to count samples": ("weights, 3", "weights, 0"),
        "the output is as long as the source": (
            "(batch, target_len, embed_dim)", "(batch, source_len, embed_dim)",
        ),
        "queries and keys are exchanged": ("target_len, source_len)", "source_len, target_len)"),
        "the weights have no axis for the heads": ("(batch, num_heads, ", "(batch, "),
        "the output has the width of a head": (", embed_dim)\n", ", embed_dim // num_heads)\n"),
        "wrong for the sizes of the task: `shape of the output` has shape (4,)": (
            "(batch, target_len, embed_dim)",
            "(batch, target_len, num_heads, embed_dim // num_heads)",
        ),
    },
    2: {
        "the second border does not count the projections": ("(k - 4) * d", "k * d"),
        "the second border lacks the factor 2": ("d / 2)", "d)"),
        "the second border counts three projections": ("k - 4", "k - 3"),
        "the second border is negative": ("max(0, (k - 4) * d / 2)", "(k - 4) * d / 2"),
        "the first border is upside down": ("return 2 * d", "return d / 2"),
        "the first border lacks the factor 2": ("return 2 * d", "return d"),
    },
    3: {
        "it never reports a leak": ("> 1e-7", "> 1e7"),
        "it reports a leak for every layer": (".triu(1)", ""),
        "it misses a mask that is one place off": (".triu(1)", "[0, -1]"),
        "it looks at the past": (".triu(1)", ".tril(-1)"),
        "it looks at equal tokens": """
            def leaks(layer, x):
                y = layer(torch.ones_like(x))
                return bool((y[:, 0] - y[:, -1]).abs().max() > 1e-6)
        """,
        "it misses a mask that is one place off. Such": (".triu(1)", ".triu(2)"),
    },
    4: {
        "the mask stays as it is": ("mask[order][:, order]", "mask"),
        "only the rows are permuted": ("[:, order]", ""),
        "only the columns are permuted": ("mask[order]", "mask"),
        "the permutation is inverted": ("return", "order = order.argsort(); return"),
        "the mask is transposed": ("[:, order]", "[:, order].T"),
    },
    5: {
        "the number of layers is n / r": (DEPTH, "math.ceil(n / r)"),
        "the number of layers is (n - 1) / r": (DEPTH, "math.ceil((n - 1) / r)"),
        "the number of layers is rounded down": ("math.ceil", "math.floor"),
        "the window holds r tokens besides": ("triu(1 - r)", "triu(-r)"),
        "the window leaves out the token itself": (TRIANGLE, f"{TRIANGLE}.tril(-1)"),
        "the window has no end towards the future": ("my_causal_mask(n)", "torch.ones(n, n).bool()"),
        "the window reaches to both sides": (
            TRIANGLE,
            "((torch.arange(n)[:, None] - torch.arange(n)).abs() < r)",
        ),
        "the window lies in the future": (TRIANGLE, f"{TRIANGLE}.T"),
        "it returns 1 result, where 2 results": (f", {DEPTH}", ""),
    },
    6: {
        "the whole layer runs again for each token": """
            def one_by_one(layer, x):
                seen = [x[:, : t + 1] for t in range(x.shape[1])]
                return torch.cat([layer(y, y, y, is_causal=True)[0][:, -1:] for y in seen], dim=1)
        """,
        "the parallel layer does it all at once": """
            def one_by_one(layer, x):
                return layer(x, x, x, is_causal=True)[0]
        """,
        "earlier keys and values are forgotten": (
            "torch.cat(keys, dim=2), torch.cat(values, dim=2)", "keys[-1], values[-1]",
        ),
        "the outputs of earlier steps are kept": """
            def one_by_one(layer, x):
                outputs = x[:, :0]
                for token in x.split(1, dim=1):
                    memory = torch.cat((outputs, token), dim=1)
                    outputs = torch.cat((outputs, layer(token, memory, memory)[0]), dim=1)
                return outputs
        """,
        "there is one wide head": (
            "layer.split_heads(layer.q_proj(token))",
            "layer.q_proj(token)[:, None]",
            "layer.split_heads(layer.k_proj(token))",
            "layer.k_proj(token)[:, None]",
            "layer.split_heads(layer.v_proj(token))",
            "layer.v_proj(token)[:, None]",
            "layer.merge_heads(heads)",
            "heads[:, 0]",
        ),
        "the output projection is missing": (
            "layer.out_proj(layer.merge_heads(heads))", "layer.merge_heads(heads)",
        ),
        "each token sees the later ones": """
            def one_by_one(layer, x):
                return layer(x, x, x)[0]
        """,
    },
    7: {
        "the mean is taken within each token": ("mean(1,", "mean(2,"),
        "the mean is taken over all numbers": ("mean(1, keepdim=True)", "mean()"),
        "it is not divided by the length of X": (" / x.norm()", ""),
        "it is the square": ("return", "return 1 / x.norm() *", ".norm() /", ".norm() ** 2 /"),
        "it is the share of the mean": ("x - x.mean(1, keepdim=True)", "x * 0 + x.mean(1, keepdim=True)"),
    },
    8: {
        "layer 2 fetches the letter itself": """
            def induction_head(tokens, num_letters):
                own = torch.eye(num_letters)[tokens]
                found, _ = dot_product_attention(50 * own, own, own, is_causal=True)
                return found.argmax(-1)
        """,
        "layer 2 fetches the letter before": (
            "strength * own, previous_letter, own",
            "strength * previous_letter, own, own",
        ),
        "it skips a letter": """
            def induction_head(tokens, num_letters):
                own = torch.eye(num_letters)[tokens]
                two_back = torch.cat((0 * own[:, :2], own[:, :-2]), dim=1)
                found, _ = dot_product_attention(50 * own, two_back, own, is_causal=True)
                return found.argmax(-1)
        """,
        "`letters` has shape (3, 11, 7), expected (3, 11)": ("found.argmax(-1)", "found"),
    },
}  # fmt: skip
CASES = [(number, name, MISTAKES[number][name]) for number in MISTAKES for name in MISTAKES[number]]


def check_of(number):
    return getattr(mha_lib.exercises, PAGE.checked(number)[0])


def test_the_exercises_are_all_there():
    assert PAGE.numbers == list(range(1, 9)) == list(MISTAKES)


@pytest.mark.parametrize("number", MISTAKES)
def test_the_solution_passes_and_the_stub_does_not(number):
    check, name = check_of(number), PAGE.checked(number)[1]
    started = time.process_time()
    verdict = check(PAGE.run(PAGE.solution(number), name))
    assert verdict.right, verdict
    assert time.process_time() - started < 2
    stub = PAGE.run(PAGE.cells[f"ex{number}-stub"].source, name)
    assert check(stub).message.startswith("Not yet: the function returns None")


@pytest.mark.parametrize("number", MISTAKES)
def test_the_checker_is_sound(number):
    check = check_of(number)
    assert len(check.cases) >= 2
    assert len({wrong.name for wrong in check.wrong}) == len(check.wrong) >= 3
    assert check.audit() == []


@pytest.mark.parametrize("number", MISTAKES)
def test_every_known_mistake_is_made_above(number):
    for wrong in check_of(number).wrong:
        assert any(wrong.name.startswith(name) for name in MISTAKES[number]), wrong.name


@pytest.mark.parametrize(("number", "name", "mistake"), CASES)
def test_each_mistake_is_named(number, name, mistake):
    verdict = check_of(number)(answer_with(PAGE, number, mistake))
    assert not verdict.right
    assert name in verdict.message


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


def by_search(tokens, num_letters):
    """An induction head without attention."""
    found = torch.zeros_like(tokens)
    for row, letters in enumerate(tokens.tolist()):
        for place, letter in enumerate(letters):
            if letter in letters[:place]:
                found[row, place] = letters[letters.index(letter) + 1]
    return found


def test_other_right_answers_are_accepted():
    e = mha_lib.exercises
    assert e.check_one_by_one(with_the_cache)
    assert e.check_one_by_one(by_hand)
    assert e.check_leak_detector(by_changes)
    assert e.check_induction_head(by_search)
    assert e.check_spread(lambda x: (1 - x.mean(1).square().sum() / x.square().sum() * x.shape[1]) ** 0.5)
    assert e.check_permuted_mask(lambda mask, order: mask.numpy()[order.numpy()][:, order.numpy()])
    assert e.check_cross_shapes(lambda b, s, t, d, h: ([b, t, d], torch.tensor([b, h, t, s]), -1))
