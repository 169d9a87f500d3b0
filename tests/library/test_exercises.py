"""Checkers: what is right is accepted, what is wrong is refused with its cause, and nothing raises."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from mha_lib.exercises import Exercise, Verdict, Wrong, randn, rows_sum_to_one

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
