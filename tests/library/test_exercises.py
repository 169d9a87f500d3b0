"""Checkers: what is right is accepted, what is wrong is refused with its cause, and nothing raises."""

import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import reader_layers
import torch
import torch.nn.functional as F
from exercise_cells import CHECKS
from reader_layers import AT_ONCE, RIGHT_EDITS, RIGHT_LAYERS, UNKNOWN, WRONG, layer_of

from mha_course.exercises import Exercise, Verdict, Wrong, multi_head, randn, rows_sum_to_one
from mha_course.exercises.multi_head import check_multi_head
from mha_lib import MultiHeadAttention

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
    "value (2, 7)): it raises RuntimeError in line {line} of your `wrong_product`, `return value @": (
        wrong_product
    ),
    "called again with the same arguments, it returns different numbers": drops,
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
    told = "Not yet: the softmax runs over the queries. Use `dim=-1`."
    assert repr(POOLING(lambda s, v: torch.softmax(s, 0) @ v)) == told
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
    assert "a right answer is rejected" in never.audit()[0]


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
    cases = {"any width": lambda g: ()}
    check = Exercise(reference=lambda: (16, "more"), returns=("width", "answer"), cases=cases)
    assert check(lambda: (16.0, "more"))
    assert "`width` is 4 times what is expected" in check(lambda: (64, "more")).message
    assert "`answer` is 'less'" in check(lambda: [16, "less"]).message


def test_properties_come_before_general_differences():
    five = {"five keys": lambda g: randn(g, 3, 5)}
    check = Exercise(reference=lambda s: s.softmax(-1), cases=five, properties=[rows_sum_to_one()])
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
    code = "import sys, mha_lib; print('mha_course.exercises' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "False"


# Known mistakes of every page, in a reader's own style. The audit checks that each edit of a reference gets a
# sentence, and only such rows check that the sentence describes the edit. `reader_layers` contains those of
# whole layers, and the tests of chapters 2 and 4 and of the masks contain more.


def cosines_first(num_positions, embed_dim):
    exponent = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    angle = torch.outer(torch.arange(num_positions), 10_000**-exponent)
    return torch.stack((angle.cos(), angle.sin()), -1).flatten(1)[:, :embed_dim].float()


def without_own_key(x, W_q, W_k, W_v):  # noqa: N803
    scores = x @ W_q @ (x @ W_k).T / W_k.shape[1] ** 0.5
    hidden = torch.ones_like(scores).triu() > 0
    return scores.masked_fill(hidden, -torch.inf).softmax(1).nan_to_num() @ x @ W_v


def copied(model):
    model.output.weight.data.copy_(model.target_embedding.weight.data)
    return model.output.weight.numel()


def loss_of_others(logits, target, smoothing):
    log_probs = logits.log_softmax(-1)
    right = log_probs.gather(-1, target[..., None])[..., 0]
    others = (log_probs.sum(-1) - right) / (logits.shape[-1] - 1)
    return -((1 - smoothing) * right + smoothing * others).mean()


def ranked_once(loss_without, num_heads, count):
    return sorted(range(num_heads), key=lambda head: loss_without([head]))[:count]


NAMED = [
    ("check_pooling", "the softmax runs over the queries", lambda s, v: F.softmax(s, 0) @ v),
    ("check_pooling_without_loops", "the weights do not add up to 1", lambda s, v: s.exp() @ v),
    ("check_noise_errors", "both errors are 0", lambda y: (0, 0)),
    ("check_jacobian", "the mean key is not subtracted",
     lambda q, k, v: v.T @ torch.diag((k @ q).softmax(0)) @ k),
    ("check_masked_softmax", "the mask comes after the softmax", lambda s, m: s.softmax(-1).where(m, 0.0)),
    ("check_masked_softmax", "the mask is inverted",
     lambda s, m: s.masked_fill(m, -torch.inf).softmax(-1).nan_to_num()),
    ("check_head_dim", "the width is rounded down", lambda width, heads: int(width / heads)),
    ("check_free_widths", "the output projection is missing",
     lambda e, h, p, d_k, d_v: (h * (e * p + d_k * p + d_v * p), p / 2)),
    ("check_permuted_mask", "the permutation is inverted",
     lambda mask, order: torch.zeros_like(mask).index_put((order[:, None], order), mask)),
    ("check_spread", "it is the square",
     lambda x: (x - x.mean(1)[:, None]).square().sum() / x.square().sum()),
    ("check_positions", "sine and cosine are swapped", cosines_first),
    ("check_ntk_base", "the base is multiplied by the scale", lambda d, base, scale: base * scale),
    ("check_ntk_base", "the base gets smaller", lambda d, base, s: base / s ** (d / (d - 2))),
    ("check_tied_weight", "the weights are halved", lambda weight: torch.cat((weight, weight), 1) / 2),
    ("check_token_share", "it is the ratio of token to position", lambda s, d, f: (s * f) ** 2 * 2),
    ("check_greedy_pruning", "all heads are ranked once", ranked_once),
    ("check_smooth_loss", "the smoothing is spread only over the other tokens", loss_of_others),
    ("check_smooth_loss", "nothing is smoothed", lambda logits, y, _: F.cross_entropy(logits.mT, y)),
    ("check_tied", "the numbers are copied, and there are still two parameters", copied),
    ("check_one_head_left", "each row switches one head off", lambda heads: 1 - torch.eye(heads)),
    ("check_cache", "a token does not see its own key", without_own_key),
    ("check_join", "both halves get the same weight", lambda o1, z1, o2, z2: (o1 + o2) / 2),
    ("check_torch_causal", "the future is visible", lambda *inputs: F.scaled_dot_product_attention(*inputs)),
    ("check_name_the_scale", 'the answer is always "head"', lambda layer: "head"),
    ("check_shortest_suite", "all detectors are returned", lambda found, titles: list(titles)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake", "answer"), NAMED)
def test_a_mistake_in_other_words_is_named(name, mistake, answer):
    verdict = CHECKS[name](answer)
    assert verdict.message.startswith(f"Not yet: {mistake}. "), verdict


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


@pytest.mark.parametrize("name", RIGHT_LAYERS)
def test_right_layer_of_another_kind_is_accepted(name, tmp_path):
    layer, options = RIGHT_LAYERS[name]
    verdict = check_multi_head(layer_of(tmp_path, *layer) if isinstance(layer, tuple) else layer, **options)
    assert verdict, verdict
    assert ("with the right gradients" in verdict.message) == options.get("gradients", True)


def test_names_of_others_are_found_by_a_mapping(tmp_path):
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    edits = [(f"self.{name} = nn", f"self.inner.{name[0]} = nn") for name in names]
    edits += [(f"self.{name}(", f"self.inner.{name[0]}(") for name in names]
    made = ("super().__init__()", "super().__init__()\n        self.inner = nn.Module()")
    # One of them in a plain list, which torch does not register.
    made = (made[0], f"{made[1]}\n        self.several = [None, self.inner]")
    layer = layer_of(tmp_path, AT_ONCE, made, *edits)
    paths = {"q_proj": "inner.q", "k_proj": "several.1.k", "v_proj": "inner.v.weight", "out_proj": "inner.o"}
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


def test_a_layer_without_a_forward_pass_is_not_finished():
    class NoForward(reader_layers.ListOfHeads):
        forward = torch.nn.Module.forward

    verdict = check_multi_head(NoForward, adapter=reader_layers.of_all_heads)
    assert verdict.message.startswith("Not yet: the layer is not finished: it raises NotImplementedError")


@pytest.mark.no_shape_checks  # they take most of the time
def test_the_checker_of_layers_tells_its_known_mistakes_apart():
    exercise = multi_head._exercise(partial(MultiHeadAttention, bias=True))
    assert exercise.audit() == []
    assert len({wrong.name for wrong in exercise.wrong}) >= 70, "as the page and the checker say"


def test_the_slowest_check_takes_less_than_two_seconds(tmp_path):
    layer = layer_of(tmp_path, *WRONG["no gradient flows through the values"])
    started = time.process_time()
    check_multi_head(layer)
    assert time.process_time() - started < 2, "about 0.3 seconds of one processor"
