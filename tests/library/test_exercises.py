"""Checkers: what is right is accepted, what is wrong is refused with its cause, and nothing raises."""

import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import reader_functions as answers
import reader_layers
import torch
from reader_layers import AT_ONCE, RIGHT_CLASSES, RIGHT_EDITS, UNKNOWN, WRONG, layer_of

from mha_lib import MultiHeadAttention
from mha_lib.exercises import (
    Exercise,
    Verdict,
    Wrong,
    check_cache,
    check_masked_softmax,
    check_multi_head,
    check_positions,
    check_rotary,
    parts,
    randn,
    rows_sum_to_one,
)

POOLING = Exercise(
    reference=lambda scores, value: scores.softmax(-1) @ value,
    returns="output (q_len, value_dim)",
    cases={
        "two keys": lambda g: (randn(g, 3, 2), randn(g, 2, 7)),
        "five keys": lambda g: (randn(g, 3, 5), randn(g, 5, 7)),
    },
    wrong=(
        Wrong("the softmax runs over the queries", "Use `dim=-1`.", lambda s, v: s.softmax(-2) @ v),
        Wrong("no weight is divided", "Divide by the sum.", lambda s, v: s.exp() @ v),
        Wrong(
            "no gradient reaches the scores", "They were detached.", lambda s, v: s.detach().softmax(-1) @ v
        ),
    ),
    gradients=True,
)


def empty_stub(scores, value): ...


def unfinished(scores, value):
    raise NotImplementedError("your code here")


def overwrites(scores, value):
    scores -= 1
    return scores.softmax(-1) @ value


def wrong_product(scores, value):
    return value @ scores


def drops(scores, value):
    return torch.nn.functional.dropout(scores.softmax(-1), 0.5) @ value


def numpy_pooling(scores, value):
    weights = np.exp(scores.numpy())
    return weights / weights.sum(-1, keepdims=True) @ value.numpy()


def right(scores, value):
    return scores.softmax(-1) @ value


BAD = {
    "the function returns None. Write the missing lines, and return the result": empty_stub,
    "the function is not finished: it raises NotImplementedError in line": unfinished,
    "it changes its argument `scores` in place": overwrites,
    "(scores (3, 2), value (2, 7)): it raises RuntimeError in line {line}, `return value @ scores`: mat1": (
        wrong_product
    ),
    "called again with the same arguments, it returns other numbers": drops,
    "takes a function, and was given a torch.Tensor. Pass the function itself": torch.ones(3),
    "takes a function, and was given an int": 3,
    "`output` has shape (7, 3), expected (3, 7), that is (q_len, value_dim)": lambda s, v: right(s, v).T,
    "`output` has dtype torch.int32, expected torch.float32": lambda s, v: right(s, v).int(),
    "`output` holds NaN, first at [0, 0]": lambda s, v: right(s, v) * torch.nan,
    "`output` is a dict, where a torch.Tensor is expected": lambda s, v: {},
    "it returns 2 results, where 1 result (`output`) is expected": lambda s, v: (right(s, v), s),
    "`output` is 'text'": lambda s, v: "text",
    "`output` is zero everywhere": lambda s, v: 0 * right(s, v),
    "`output` is -1 times what is expected": lambda s, v: -right(s, v),
    "`output` is what is expected plus 3": lambda s, v: right(s, v) + 3,
    "`output` holds the right numbers in reverse order along axis 0 (q_len)": lambda s, v: right(s, v).flip(
        0
    ),
    "right for two keys, wrong for five keys (scores (3, 5), value (5, 7))": lambda s, v: right(
        s[:, :2], v[:2]
    ),
    "`output` is right at 1, 2 of axis 0 (q_len), wrong at 0": lambda s, v: torch.cat(
        (v[:1], right(s, v)[1:])
    ),
    "for five keys, the function returns None": lambda s, v: right(s, v) if s.shape[1] == 2 else None,
    "the numbers are right, but not the gradients, for two keys (scores (3, 2), value (2, 7)): "
    "no gradient reaches `value`": lambda s, v: right(s, v.detach()),
    "no result carries a gradient: was it detached": lambda s, v: right(s, v).detach(),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_answer_gets_its_sentence(sentence):
    verdict = POOLING(BAD[sentence])
    line = wrong_product.__code__.co_firstlineno + 1
    assert not verdict
    assert verdict.message.startswith("Not yet: ")
    assert sentence.format(line=line) in verdict.message
    assert "\n" not in verdict.message
    assert POOLING(BAD[sentence]) == verdict, "a check gives the same verdict each time"


def test_known_wrong_answers_are_named_and_right_ones_accepted():
    assert POOLING.audit() == []
    assert repr(POOLING(lambda s, v: torch.softmax(s, 0) @ v)) == (
        "Not yet: the softmax runs over the queries. Use `dim=-1`."
    )
    verdict = POOLING(right)
    assert verdict
    assert verdict.right
    assert repr(verdict) == "Right in both cases, with the right gradients: two keys and five keys."


def test_audit_finds_what_is_wrong_with_an_exercise():
    cases = {"five": lambda g: randn(g, 5)}
    twice = (
        Wrong("one", "Its cause.", lambda x: x + 1),
        Wrong("the same again", "Its cause.", lambda x: 1 + x),
        Wrong("not wrong", "Its cause.", lambda x: 2 * x),
    )
    problems = Exercise(reference=lambda x: x + x, cases=cases, wrong=twice).audit()
    assert [problem.split(" gets")[0] for problem in problems] == ["'the same again'", "'not wrong'"]
    never = Exercise(reference=lambda x: torch.rand(5), cases=cases)
    assert "a right answer is refused" in never.audit()[0]


def test_arrays_are_accepted_unless_the_exercise_wants_tensors():
    options = {"reference": right, "cases": POOLING.cases, "returns": POOLING.returns}
    assert Exercise(**options)(numpy_pooling)
    assert Exercise(**options)(lambda s, v: right(s, v).tolist())
    refused = Exercise(**options, arrays=False)(numpy_pooling)
    assert "`output` is a numpy.ndarray, where a torch.Tensor is expected" in refused.message


def test_one_of_several_conventions_is_enough():
    cases = {"five": lambda g: randn(g, 5), "seven": lambda g: randn(g, 7)}
    check = Exercise(reference=lambda x: x, accept=[lambda x: -x], cases=cases)
    assert check(lambda x: x) and check(lambda x: -x)
    assert not check(lambda x: x if len(x) == 5 else -x), "one convention in each case"


def test_results_may_be_numbers_and_words():
    check = Exercise(
        reference=lambda: (16, "more"), returns=("width", "answer"), cases={"any width": lambda g: ()}
    )
    assert check(lambda: (16.0, "more"))
    assert "`width` is 4 times what is expected" in check(lambda: (64, "more")).message
    assert "`answer` is 'less'" in check(lambda: [16, "less"]).message


def test_properties_come_before_general_differences():
    check = Exercise(
        reference=lambda s: s.softmax(-1),
        cases={"five keys": lambda g: randn(g, 3, 5)},
        properties=[rows_sum_to_one()],
    )
    message = check(lambda s: s.sigmoid()).message
    assert "its rows should add up to 1, and row [0] adds up to" in message


def test_a_backward_pass_that_fails_is_said_in_words():
    def overwrites_what_autograd_needs(scores, value):
        weights = scores.softmax(-1)
        output = weights @ value
        weights[:] = 0
        return output

    def in_the_way_back(scores, value):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise RuntimeError("no gradient here.")

        return Fails.apply(right(scores, value))

    message = POOLING(overwrites_what_autograd_needs).message
    assert "the numbers are right, but not the gradients" in message
    assert "changed in place later" in message
    assert "the backward pass fails: no gradient here." in POOLING(in_the_way_back).message


def test_an_endless_loop_can_be_interrupted():
    def interrupted(scores, value):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        POOLING(interrupted)


def test_a_check_leaves_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    POOLING(drops)
    assert torch.equal(torch.rand(1), expected)


def test_markdown_shows_the_sentence_as_it_is():
    verdict = Verdict(False, "Not yet: `x_1 * y` is 2 * 3 <b> at [0, 1], _really_.")
    assert verdict._repr_markdown_() == (r"Not yet: `x_1 * y` is 2 \* 3 \<b\> at \[0, 1\], \_really\_.")


def test_importing_the_library_does_not_import_the_exercises():
    code = "import sys, mha_lib; print('mha_lib.exercises' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "False"


# --------------------------------------------------------------------------------
# Parts of the layer

PARTS = {
    "masked softmax": (check_masked_softmax, answers.SOFTMAX_RIGHT, answers.SOFTMAX_WRONG),
    "positions": (check_positions, answers.TABLE_RIGHT, answers.TABLE_WRONG),
    "positions, added": (
        partial(check_positions, added=True),
        tuple(lambda x, table=table: x + table(*x.shape[1:]) for table in answers.TABLE_RIGHT),
        answers.ADDED_WRONG,
    ),
    "rotary": (check_rotary, answers.ROTARY_RIGHT, answers.ROTARY_WRONG),
    "rotary, halves": (
        partial(check_rotary, interleaved=False),
        (answers.turned_halves,),
        answers.HALVES_WRONG,
    ),
    "cache": (check_cache, answers.CACHE_RIGHT, answers.CACHE_WRONG),
}
UNKNOWN_ANSWERS = [
    (check, sentence, wrong)
    for check, several in (
        (check_masked_softmax, answers.SOFTMAX_UNKNOWN),
        (check_positions, answers.TABLE_UNKNOWN),
        (check_rotary, answers.ROTARY_UNKNOWN),
        (check_cache, answers.CACHE_UNKNOWN),
    )
    for sentence, wrong in several.items()
]


@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, (_, _, wrong) in PARTS.items() for name in wrong]
)
def test_wrong_answer_is_named(part, name):
    check, _, wrong = PARTS[part]
    assert check(wrong[name]).message.startswith(f"Not yet: {name}. ")


@pytest.mark.parametrize(
    ("part", "number"),
    [(part, number) for part, (_, right, _) in PARTS.items() for number in range(len(right))],
)
def test_right_answer_is_accepted(part, number):
    check, right, _ = PARTS[part]
    verdict = check(right[number])
    assert verdict, verdict


@pytest.mark.parametrize(("check", "sentence", "wrong"), UNKNOWN_ANSWERS)
def test_answer_that_is_wrong_in_another_way_gets_a_sentence(check, sentence, wrong):
    verdict = check(wrong)
    assert not verdict
    assert sentence in verdict.message


@pytest.mark.parametrize("part", PARTS)
def test_empty_stub_fails(part):
    def stub(*arguments): ...

    assert PARTS[part][0](stub).message.startswith("Not yet: the function returns None. ")


def test_the_tables_are_long_enough():
    for part in ("masked softmax", "positions", "rotary", "cache"):
        _, right, wrong = PARTS[part]
        assert len(right) >= 5
        assert len(wrong) >= 10


EXERCISES = {name: thing for name, thing in vars(parts).items() if isinstance(thing, Exercise)}


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_tells_its_known_mistakes_apart(name):
    assert EXERCISES[name].audit() == []
    assert len({wrong.name for wrong in EXERCISES[name].wrong}) >= 3


# --------------------------------------------------------------------------------
# Multi-head attention


@pytest.mark.parametrize("name", WRONG)
def test_wrong_layer_is_named(name, tmp_path):
    verdict = check_multi_head(layer_of(tmp_path, *WRONG[name]))
    assert verdict.message.startswith(f"Not yet: {name}. ")


@pytest.mark.parametrize("sentence", UNKNOWN)
def test_wrong_layer_of_an_unknown_kind_gets_a_sentence(sentence, tmp_path):
    verdict = check_multi_head(layer_of(tmp_path, *UNKNOWN[sentence]))
    assert not verdict
    assert sentence in verdict.message


@pytest.mark.parametrize("name", RIGHT_EDITS)
def test_right_layer_is_accepted(name, tmp_path):
    verdict = check_multi_head(layer_of(tmp_path, *RIGHT_EDITS[name]))
    assert verdict, verdict
    assert "with the right gradients" in verdict.message


@pytest.mark.parametrize("name", RIGHT_CLASSES)
def test_right_layer_of_another_kind_is_accepted(name):
    layer, options = RIGHT_CLASSES[name]
    verdict = check_multi_head(layer, **options)
    assert verdict, verdict
    assert ("with the right gradients" in verdict.message) == options.get("gradients", True)


def test_names_of_others_are_found_by_a_mapping(tmp_path):
    edits = [
        (f"self.{name} = nn", f"self.inner.{name[0]} = nn")
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    ]
    edits += [
        (f"self.{name}(", f"self.inner.{name[0]}(") for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    ]
    made = ("super().__init__()", "super().__init__()\n        self.inner = nn.Module()")
    layer = layer_of(tmp_path, AT_ONCE, made, *edits)
    paths = {"q_proj": "inner.q", "k_proj": "inner.k", "v_proj": "inner.v.weight", "out_proj": "inner.o"}
    assert check_multi_head(layer, adapter=paths)
    lost = check_multi_head(layer, adapter=paths | {"q_proj": "inner.query"})
    assert "were not found ('Module' object has no attribute 'query')" in lost.message


def test_a_layer_of_another_width_and_mistakes_in_it_are_found(tmp_path):
    assert check_multi_head(MultiHeadAttention)
    text, *edits = WRONG["the scores are not scaled"]
    layer = layer_of(
        tmp_path,
        text,
        *edits,
        ("return self.out_proj(output), torch.stack(all_weights, dim=1)", "return self.out_proj(output)"),
    )
    verdict = check_multi_head(layer, weights=False, own_widths=False, gradients=False)
    assert verdict.message.startswith("Not yet: the scores are not scaled. ")


def test_what_is_no_class_gets_a_sentence():
    for what in (MultiHeadAttention(6, 3), 3, None):
        assert "Pass the class itself, without calling it" in check_multi_head(what).message
    assert check_multi_head(lambda *sizes, **widths: None).message == (
        "Not yet: the function that should make a layer returns None. Return the layer."
    )


def test_empty_stub_of_a_layer_is_not_finished():
    class Stub(torch.nn.Module):
        def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
            super().__init__()

    class NoForward(reader_layers.ListOfHeads):
        forward = torch.nn.Module.forward

    assert "the projections of the layer were not found" in check_multi_head(Stub).message
    verdict = check_multi_head(NoForward, adapter=reader_layers.of_all_heads)
    assert verdict.message.startswith("Not yet: the layer is not finished: it raises NotImplementedError")


def test_the_table_of_layers_is_long_enough():
    assert len(WRONG) >= 30
    assert len(RIGHT_EDITS) + len(RIGHT_CLASSES) >= 20


def test_the_slowest_check_takes_less_than_two_seconds(tmp_path):
    layer = layer_of(tmp_path, *WRONG["no gradient flows through the values"])
    started = time.process_time()
    check_multi_head(layer)
    assert time.process_time() - started < 2, "about 0.3 seconds of one processor"
