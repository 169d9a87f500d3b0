"""The question with a typed answer: what can be typed, what the page says to it, and what it keeps."""

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect
from storage import reload, stored
from widget_page import in_browser

from mha_course.widgets import TypedAnswer

MATH = "typed_answer/typed_math.js"
FEEDBACK = {
    4096: "That is one projection: there are *four*.",
    -16384: "A count is not negative.",
    12_288: "The output projection `W_o` counts, too.",
}
HINTS = ["How many projections are there?", "Each is `embed_dim` by `embed_dim`.", "4 times 64 squared."]


def weights(**changes):
    """A question with everything that a question may have."""
    given_ = {
        "text": "How many weights have four projections of width `64`?", "answer": 16384,
        "computed": 4 * 64**2, "feedback": FEEDBACK, "unit": "weights", "hints": HINTS,
        "solution": "It is `4 * 64 ** 2`.",
    }  # fmt: skip
    return TypedAnswer(**(given_ | changes))


def shape(**changes):
    feedback_ = {(2, 7, 3, 5): "The heads are still behind the length.", (2, 7, 15): "Cut the last axis."}
    computed = torch.zeros(2, 3, 7, 5).shape
    given_ = {"answer": (2, 3, 7, 5), "computed": computed, "feedback": feedback_}
    return TypedAnswer("Which shape have the heads?", **(given_ | changes))


@pytest.mark.parametrize(("answer", "computed"), [
    (5, 5), (5, torch.tensor(5)), (5, np.int64(5)), (5, 5.0), (0.3, 0.1 + 0.2),
    (0.25, torch.tensor([0.25])), ((2, 3), torch.zeros(2, 3).shape), ((2, 3), np.zeros((2, 3)).shape),
    ((), torch.tensor(1.0).shape),
])  # fmt: skip
def test_an_answer_is_declared_and_computed(answer, computed):
    assert repr(TypedAnswer("?", answer, computed=computed)) == f"TypedAnswer({answer!r})"


REFUSED = [
    ({"text": None}, TypeError, "text must be a str, got NoneType: None"),
    ({"text": " "}, ValueError, "text must not be empty, got ' '"),
    ({"answer": "5"}, TypeError, "answer must be a number or a tuple of ints, got str: '5'"),
    ({"answer": True}, TypeError, "answer must be a number or a tuple of ints, got bool: True"),
    ({"answer": [2, 3]}, TypeError, "answer must be a number or a tuple of ints, got list: [2, 3]"),
    ({"answer": float("nan")}, ValueError, "answer must be finite, got nan"),
    ({"answer": float("inf")}, ValueError, "answer must be finite, got inf"),
    ({"answer": 2**53 + 1}, ValueError, "answer must be at most 2^53, so that a browser can hold it"),
    ({"answer": (2, -3)}, ValueError, "answer must be a tuple of ints that are not negative, got (2, -3)"),
    ({"answer": (2, 3.0)}, ValueError, "answer must be a tuple of ints that are not negative"),
    ({"computed": 4}, ValueError, "answer must be what the cell computes, 4, got 5 for the question '?'"),
    ({"computed": (5,)}, ValueError, "answer must be what the cell computes, (5,), got 5"),
    ({"computed": None}, TypeError, "computed must be a number or a tuple of ints, got NoneType: None"),
    ({"computed": torch.zeros(2)}, ValueError, "computed must hold one number, got shape (2,)"),
    ({"answer": (3, 2), "computed": (2, 3)}, ValueError, "answer must be what the cell computes, (2, 3)"),
    ({"answer": 0.5, "computed": 0.51}, ValueError, "answer must be what the cell computes, 0.51, got 0.5"),
    ({"feedback": [4]}, TypeError, "feedback must be a Mapping, got list: [4]"),
    ({"feedback": {"4": "no"}}, TypeError,
     "a key of feedback must be a number or a tuple of ints, got str: '4'"),
    ({"feedback": {(4,): "no"}}, TypeError, "a key of feedback must be a number, as answer is, got (4,)"),
    ({"feedback": {4: ""}}, ValueError, "feedback[4] must not be empty, got ''"),
    ({"feedback": {4: None}}, TypeError, "feedback[4] must be a str, got NoneType: None"),
    ({"feedback": {5: "no"}}, ValueError, "differ from answer 5 by more than the tolerance, got 5"),
    ({"feedback": {5.2: "a"}, "tolerance": 0.05}, ValueError, "differ from answer 5 by more than"),
    ({"feedback": {8: "a", 8.3: "b"}, "tolerance": 0.05}, ValueError,
     "a key of feedback must differ from another key 8 by more than the tolerance, got 8.3"),
    ({"unit": None}, TypeError, "unit must be a str, got NoneType: None"),
    ({"tolerance": "1"}, TypeError, "tolerance must be a number, got str: '1'"),
    ({"tolerance": -0.1}, ValueError, "tolerance must lie in 0..0.5, got -0.1"),
    ({"tolerance": 5}, ValueError, "tolerance must lie in 0..0.5, got 5"),
    ({"tolerance": float("nan")}, ValueError, "tolerance must lie in 0..0.5, got nan"),
    ({"answer": 0, "computed": 0, "tolerance": 0.1}, ValueError, "tolerance must be 0 where the answer is 0"),
    ({"answer": (2,), "computed": (2,), "tolerance": 0.1}, ValueError,
     "tolerance must be 0 where the answer is a shape, got 0.1"),
    ({"hints": "look"}, TypeError, "hints must be a sequence of str, got 'look'"),
    ({"hints": 3}, TypeError, "hints must be a Sequence, got int: 3"),
    ({"hints": ["a", ""]}, ValueError, "hints[1] must not be empty, got ''"),
    ({"solution": None}, TypeError, "solution must be a str, got NoneType: None"),
    ({"name": 3}, TypeError, "name must be a str, got int: 3"),
    ({"name": "a b"}, ValueError, "name must hold only letters, digits, '.', '_' and '-', got 'a b'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "rule"), REFUSED)
def test_a_question_that_cannot_be_asked_is_refused(changes, error, rule):
    with pytest.raises(error, match=re.escape(rule)):
        TypedAnswer(**({"text": "?", "answer": 5, "computed": 5} | changes))


def test_the_last_attempt_counts():
    question = weights()
    assert (question.attempts, question.is_right) == ([], False)
    question.attempts = [4096]
    assert not question.is_right
    question.attempts = [4096, 16384.0]
    assert question.is_right
    sizes = shape()
    sizes.set_state({"attempts": [[2, 7, 3, 5]]})
    assert not sizes.is_right
    sizes.set_state({"attempts": [[2, 7, 3, 5], [2, 3, 7, 5]]})
    assert sizes.is_right


@pytest.mark.parametrize(("make", "trait", "value", "rule"), [
    (weights, "attempts", [[2, 3]], "attempts must hold finite numbers, got [[2, 3]]"),
    (weights, "attempts", [float("inf")], "attempts must hold finite numbers, got [inf]"),
    (shape, "attempts", [5], "attempts must hold a list of sizes for each shape, got [5]"),
    (shape, "attempts", [[2, -1]], "attempts must hold a list of sizes for each shape"),
    (weights, "opened", 4, "opened must lie in 0..3, the number of hints, got 4"),
    (shape, "opened", 1, "opened must lie in 0..0, the number of hints, got 1"),
])  # fmt: skip
def test_a_state_that_cannot_be_is_refused(make, trait, value, rule):
    widget = make()
    before = getattr(widget, trait)
    with pytest.raises(ValueError, match=re.escape(rule)):
        setattr(widget, trait, value)
    assert getattr(widget, trait) == before


def test_a_question_can_be_read_without_scripts():
    html = weights()._repr_mimebundle_()[0]["text/html"]
    assert "<p>How many weights have four projections of width <code>64</code>?</p>" in html
    assert "<summary>Hint 2</summary><p>Each is <code>embed_dim</code> by <code>embed_dim</code>.</p>" in html
    assert "<summary>Answer</summary><p>16,384 weights. It is <code>4 * 64 ** 2</code>.</p>" in html
    assert "one projection" not in html, "feedback on a wrong answer would confuse here"


# What can be typed


@pytest.fixture(scope="module")
def read(math_page):
    """A function that reads texts with a function of the module."""
    run = "return texts.map((text) => m[name](text, how));"
    return lambda name, texts, how=None: in_browser(math_page, run, name=name, texts=texts, how=how or {})


NUMBERS = {
    "5": 5, " 5 ": 5, "+5": 5, "-5": -5, "− 5": -5, "–5": -5, "007": 7, "5.": 5, ".5": 0.5, "0.333": 0.333,
    "1/3": 1 / 3, "1 / 3": 1 / 3, "-1/3": -1 / 3, "1⁄4": 0.25, "7 ÷ 2": 3.5, "1/3/7": 1 / 21, "7/3*3": 7,
    "1e-3": 0.001, "1E3": 1000, "2.5e+2": 250, "1e-5": 1e-5, "10^-5": 1e-5, "10^(-5)": 1e-5, "10 ^ −5": 1e-5,
    "12 288": 12288, "12,288": 12288, "12_288": 12288, "12\u00a0288": 12288, "12\u202f288": 12288,
    "1 234 567": 1234567, "1,234,567.5": 1234567.5, "12,288/2": 6144, "1,000e3": 1e6,
    "2^10": 1024, "2**10": 1024, "2 ** 10": 1024, "2^0.5": 2**0.5, "-2^2": -4, "3 * 2^10": 3072,
    "3×2^10": 3072, "3 x 7": 21, "3 · 7": 21, "4*64^2": 16384, "2^53": 2**53, "2^-10": 2**-10, "2^0": 1,
}  # fmt: skip


def test_numbers_are_read(read):
    found = read("readNumber", list(NUMBERS))
    assert {text: result.get("value") for text, result in zip(NUMBERS, found, strict=True)} == NUMBERS


NO_NUMBERS = """twelve, 5 6, 12 28, 12 2888, 1234 567, 1,234 567, ,5, 5,, 1.2.3, 1..2, ., -, --5, 5-, 5-3,
5+3, 1/0, 0/0, 1/, /3, 1e, e5, 1e999, 2^, ^2, 2^2^2, 2^(3, 2^3), (5), 5 000 00, NaN, Infinity, -inf,
0x10, 9^999, 1e5e5, 5 %%, %, 5!, √2, ½, 5 weights, 1 _000, 1__000, 5 x, x 5, $5, [5]""".replace(
    "\n", " "
).split(", ")


def test_what_is_no_number_is_asked_for_again(read):
    # Commas separate the entries above; these contain one.
    texts = [*NO_NUMBERS, "12,288,5", "1,2345", "0,333", "0,5", "1,5", "3,14 "]
    for text, result in zip(texts, read("readNumber", texts), strict=True):
        assert "value" not in result, (text, result)
        assert result["problem"].endswith("."), text
    asked = "That cannot be read as a number. Type a number, such as 0.25, 1/4, 1e-3, 12,288 or 2^10."
    assert read("readNumber", ["twelve", "1/0", "5 6"]) == [{"problem": asked}] * 3
    comma = "Write a decimal point in place of the comma, which separates groups of three digits here."
    assert read("readNumber", ["0,5", "0,333", "-3,14", "1,5", "1,2345"]) == [{"problem": comma}] * 5
    empty = "Type an answer first: a number, such as 0.25, 1/4, 1e-3, 12,288 or 2^10."
    assert read("readNumber", ["", "  ", "\u00a0"]) == [{"problem": empty}] * 3


def test_percent_and_units_are_read_where_they_are_unambiguous(read):
    share, unit = {"percent": "share"}, {"percent": "unit", "unit": "%"}
    values = lambda texts, how: [result.get("value") for result in read("readNumber", texts, how)]  # noqa: E731
    shares = [0.75, 0.75, 0.75, -0.075, 0.75, 0.005]
    assert values(["75 %", "75%", "0.75", "-7.5 %", "3/4", "1/2 %"], share) == shares
    assert values(["75 %", "75%", "75", "1/2 %"], unit) == [75, 75, 75, 0.5]
    misread = {"problem": "A % sign can be misread here. Write the number without it."}
    assert read("readNumber", ["75 %", "75%"]) == [misread] * 2
    assert read("readNumber", ["75 %"], {"unit": "bytes", "percent": "none"}) == [misread]
    texts = ["4,096 bytes", "4096bytes", "4096 Bytes", "2^12", "bytes", "4096 bits"]
    assert values(texts, {"unit": "bytes"}) == [4096, 4096, 4096, 4096, None, None]


@pytest.mark.parametrize(("answer", "unit", "percent"), [
    (0.75, "", "share"), (-1.0, "", "share"), (75, "%", "unit"), (0.75, "%", "unit"), (75, "", "none"),
    (1, "", "none"), (1.5, "", "none"), (0.75, "s", "none"),
])  # fmt: skip
def test_what_a_percent_sign_means_follows_from_the_answer(answer, unit, percent):
    assert TypedAnswer("?", answer, computed=answer, unit=unit).question["percent"] == percent


SHAPES = {
    "(2, 3, 5)": [2, 3, 5], "2,3,5": [2, 3, 5], "2, 3, 5": [2, 3, 5], "2 x 3 x 5": [2, 3, 5],
    "2×3×5": [2, 3, 5], "2X3X5": [2, 3, 5], "2*3*5": [2, 3, 5], "[2, 3, 5]": [2, 3, 5], "2·3·5": [2, 3, 5],
    "torch.Size([2, 3, 5])": [2, 3, 5], "(2 x 3)": [2, 3], "5": [5], "(5,)": [5], "(5)": [5], "5,": [5],
    "()": [], "[ ]": [], "torch.Size([])": [], "(0, 7)": [0, 7], "12,288": [12, 288],
    " ( 11 ,13 ) ": [11, 13],
}  # fmt: skip
NO_SHAPES = ["2 3 5", "(2, 3", "2, 3)", "(2, 3]", "2,,3", ",", "2, 3 x 5", "2.0, 3", "-2, 3", "b, 3", "2 x",
             "x", "two", "2e1, 3", "2^3, 3", "1/2", "(2)(3)", "9" * 20, "2;3", "Size"]  # fmt: skip


def test_shapes_are_read(read):
    found = read("readShape", list(SHAPES))
    assert {text: result.get("value") for text, result in zip(SHAPES, found, strict=True)} == SHAPES
    expected = "the sizes of all axes, such as (2, 3, 5) or 2 × 3 × 5."
    asked = {"problem": f"That cannot be read as a shape. Type {expected}"}
    assert read("readShape", NO_SHAPES) == [asked] * len(NO_SHAPES)
    assert read("readShape", ["", " "]) == [{"problem": f"Type an answer first: {expected}"}] * 2


SPACE = st.sampled_from(["", " ", "\u00a0", "\u202f", "  "])


@st.composite
def plain_numbers(draw):
    """A number without a sign, with its exact value."""
    whole = draw(st.integers(0, 10**9))
    separator = draw(st.sampled_from(["", " ", ",", "_", "\u202f", "\u00a0"]))
    text = f"{whole:,}".replace(",", separator)
    digits = draw(st.text("0123456789", max_size=5))
    value = Fraction(whole) + (Fraction(int(digits), 10 ** len(digits)) if digits else 0)
    if digits or draw(st.booleans()):
        text += f".{digits}"
    if draw(st.booleans()):
        power = draw(st.integers(-7, 7))
        sign = draw(st.sampled_from(["+", ""] if power >= 0 else [""]))
        text += draw(st.sampled_from("eE")) + sign + str(power)
        value *= Fraction(10) ** power
    return text, value


@st.composite
def typed_numbers(draw):
    """A product or quotient of numbers and powers as a reader may type it, with its exact value."""
    text, value = draw(plain_numbers())
    for _ in range(draw(st.integers(0, 3))):
        operator = draw(st.sampled_from(["*", "/", "×", "·", "÷", " x "]))
        if draw(st.booleans()):
            base, exponent = draw(st.integers(2, 12)), draw(st.integers(-12, 12))
            form = draw(st.sampled_from(["{}^{}", "{}**{}", "{} ^ ({})"]))
            right, factor = form.format(base, exponent), Fraction(base) ** exponent
        else:
            right, factor = draw(plain_numbers())
        divides = operator in "/÷"
        if factor == 0 and divides:
            continue
        value = value / factor if divides else value * factor
        text = f"{text}{draw(SPACE)}{operator}{draw(SPACE)}{right}"
    sign = draw(st.sampled_from(["", "+", "-", "−"]))
    return draw(SPACE) + sign + text + draw(SPACE), -value if sign in ("-", "−") else value


MANY = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@MANY
@given(st.lists(typed_numbers(), min_size=20, max_size=40))
def test_numbers_have_the_value_that_exact_arithmetic_gives_them(read, cases):
    for (text, value), result in zip(cases, read("readNumber", [text for text, _ in cases]), strict=True):
        assert "value" in result, text
        assert result["value"] == pytest.approx(float(value), rel=1e-14, abs=1e-300), text


@MANY
@given(st.lists(st.text("0123456789.,eE+-−*/^x×% _()", max_size=8), min_size=20, max_size=40))
def test_whatever_is_typed_python_reads_the_same_or_the_page_asks_again(read, texts):
    """If Python can evaluate the text as it is, and the page accepts it, both have the same value."""
    for text, result in zip(texts, read("readNumber", texts), strict=True):
        assert ("value" in result) != (result.get("problem", "") != ""), text
        plain = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text)
        if plain:
            value = float(text)
            assert result.get("value") == (value if abs(value) < float("inf") else None), text


@MANY
@given(st.lists(st.lists(st.integers(0, 10**6), max_size=5), min_size=20, max_size=40), st.data())
def test_shapes_are_read_as_python_writes_them(read, cases, data):
    forms = [lambda sizes: str(tuple(sizes)), lambda sizes: str(torch.Size(sizes)), str]
    joined = [",", ", ", " x ", "×", " * "]
    texts = []
    for sizes in cases:
        if sizes and data.draw(st.booleans()):
            texts.append(data.draw(st.sampled_from(joined)).join(map(str, sizes)))
        else:
            texts.append(data.draw(st.sampled_from(forms))(sizes))
    assert read("readShape", texts) == [{"value": sizes} for sizes in cases]


# What the page says


def say(host, text):
    """Type an answer, check it, and read what the page says."""
    host.get_by_role("textbox").fill(text)
    assert feedback(host) == "", "feedback goes while another answer is typed"
    host.get_by_role("button", name="Check").click()
    return feedback(host)


def feedback(host):
    return host.locator(".mha-feedback").inner_text()


def attempts(host):
    return host.locator(".mha-score").inner_text()


def solution(host):
    shown = host.locator(".mha-solution")
    return shown.inner_text() if shown.is_visible() else None


@pytest.mark.parametrize("over", ["http", "disk"])
def test_a_wrong_number_is_told_its_cause_or_its_direction(show, over):
    host = show(weights(), over=over)
    question = "How many weights have four projections of width 64?"
    assert host.get_by_role("textbox", name=question).is_visible()
    assert host.locator(".mha-unit").inner_text() == "weights"
    assert say(host, "4096") == "Not quite. That is one projection: there are four."
    assert host.locator(".mha-feedback em").inner_text() == "four"
    assert say(host, "4,096.0 weights") == "Not quite. That is one projection: there are four."
    assert attempts(host) == "1 attempt", "the same answer in another form is no new attempt"
    assert say(host, "-2^14") == "Not quite. A count is not negative."
    assert say(host, "3 * 64^2") == "Not quite. The output projection W_o counts, too."
    assert say(host, "16383") == "Not quite. Your number is too small."
    assert say(host, "16 385") == "Not quite. Your number is too large."
    assert say(host, "16384.001") == "Not quite. Your number is too large."
    assert attempts(host) == "6 attempts"
    assert solution(host) is None
    assert say(host, "2^14") == "Correct."
    assert attempts(host) == "7 attempts"
    assert solution(host) == "The answer is 16,384 weights. It is 4 * 64 ** 2."
    expect(host.get_by_role("status")).to_have_text("Correct. ")


def test_what_cannot_be_read_is_no_attempt(show):
    host = show(weights())
    for text in ("", "many", "1,5", "75 %"):
        said = say(host, text)
        assert "Not quite" not in said
        assert "Correct" not in said
        assert len(said) > 40
        assert not host.locator(".mha-score").is_visible()
    misread = "A % sign can be misread here. Write the number without it."
    expect(host.get_by_role("status")).to_have_text(misread)
    assert say(host, "5") == "Not quite. Your number is too small."
    say(host, "many")
    assert attempts(host) == "1 attempt"


def test_a_wrong_shape_is_told_its_cause_or_its_axes(show):
    host = show(shape())
    assert say(host, "(2, 7, 3, 5)") == "Not quite. The heads are still behind the length."
    assert say(host, "2 x 7 x 15") == "Not quite. Cut the last axis."
    assert say(host, "2, 3") == "Not quite. Your shape has 2 axes; the right one has more."
    assert say(host, "7") == "Not quite. Your shape has 1 axis; the right one has more."
    assert say(host, "()") == "Not quite. Your shape has 0 axes; the right one has more."
    assert say(host, "2,3,7,5,1") == "Not quite. Your shape has 5 axes; the right one has fewer."
    assert say(host, "2,3,7,6") == "Not quite. The number of axes is right. Counted from 0, axis 3 is not."
    told = "Not quite. The number of axes is right. Counted from 0, axes 1 and 2 are not."
    assert say(host, "2,4,8,5") == told
    assert say(host, "1,1,1,1").endswith("Counted from 0, axes 0, 1, 2 and 3 are not.")
    assert say(host, "(3, 2, 7, 5)") == "Not quite. All sizes are right, but their order is not."
    assert say(host, "seven").startswith("That cannot be read as a shape. Type the sizes of all axes")
    assert say(host, "2×3×7×5") == "Correct."
    assert solution(host) == "The answer is (2, 3, 7, 5)."


def test_a_tolerance_is_relative_and_said(show):
    question = TypedAnswer("How much?", 0.3, computed=0.3, tolerance=0.1, feedback={0.7: "That is the rest."})
    host = show(question)
    assert host.locator(".mha-hint").inner_text().endswith("Up to 10 % off counts as right.")
    for text in ("0.3", "30 %", "0.27", "0.33", "3/10"):
        assert say(host, text) == "Correct.", text
    for text, why in (("0.2699", "too small"), ("0.3301", "too large"), ("-0.3", "too small")):
        assert say(host, text) == f"Not quite. Your number is {why}."
    for text in ("0.7", "0.63", "0.77", "70 %"):
        assert say(host, text) == "Not quite. That is the rest.", text
    assert say(host, "0.78") == "Not quite. Your number is too large."


@pytest.mark.parametrize(("answer", "right", "wrong"), [
    (11, ["11", "1.1*10", "22/2", "11.0"], ["11.00001", "10.9999999"]),
    (10**15 + 1, ["1000000000000001"], ["1e15", "1000000000000002"]),
    (0, ["0", "-0", "0/5", "0.0"], ["1e-9", "-1e-300"]),
    (1 / 3, ["1/3", "0.3333333333"], ["0.333", "1/4"]),
    (-5, ["-5", "−5"], ["5", "-4"]),
])  # fmt: skip
def test_numbers_are_equal_up_to_rounding_alone(show, answer, right, wrong):
    host = show(TypedAnswer("?", answer, computed=answer))
    for text in right:
        assert say(host, text) == "Correct.", text
    for text in wrong:
        assert say(host, text).startswith("Not quite. Your number is too "), text


def test_hints_open_one_at_a_time_and_then_the_solution(show):
    host = show(weights())
    hints, status = host.locator(".mha-hints li"), host.get_by_role("status")
    solve = host.get_by_role("button", name="Show the solution")
    solve.click(force=True)
    assert feedback(host) == "First try once, or open all hints."
    assert solution(host) is None
    assert not host.locator(".mha-hints").is_visible()
    for number in (1, 2, 3):
        host.get_by_role("button", name=f"Hint {number} of 3").click()
        expect(hints).to_have_count(number)
        expect(status).to_have_text(f"Hint {number} of 3: {HINTS[number - 1]}")
        assert hints.all_inner_texts() == [text.replace("`", "") for text in HINTS[:number]]
    host.get_by_role("button", name="No more hints").click(force=True)
    expect(hints).to_have_count(3)
    assert solution(host) is None, "it is still the reader's choice"
    solve.click()
    assert solution(host) == "The answer is 16,384 weights. It is 4 * 64 ** 2."
    assert feedback(host) == "", "who only reads is not told to be right"
    assert not host.locator(".mha-score").is_visible()


def test_the_solution_opens_after_one_attempt(show):
    host = show(shape())
    assert host.get_by_role("button").all_inner_texts() == ["Check", "Show the solution"]  # no hints
    host.get_by_role("button", name="Show the solution").click(force=True)
    assert feedback(host) == "First try once."
    say(host, "many")
    host.get_by_role("button", name="Show the solution").click(force=True)
    assert solution(host) is None, "what cannot be read is no attempt"
    say(host, "2,3")
    host.get_by_role("button", name="Show the solution").click()
    assert solution(host) == "The answer is (2, 3, 7, 5)."


def test_it_is_answered_by_keyboard_and_started_again(show):
    host = show(weights())
    keyboard = host.page.keyboard
    press = lambda *keys: [keyboard.press(key) for key in keys]  # noqa: E731
    press("Tab")
    keyboard.type("4096")
    press("Enter")
    assert feedback(host) == "Not quite. That is one projection: there are four."
    expect(host.get_by_role("status")).to_have_text("Not quite. That is one projection: there are four.")
    assert host.get_by_role("textbox").evaluate("node => node === document.activeElement")
    press("Tab", "Tab", "Enter")
    expect(host.locator(".mha-hints li")).to_have_count(1)
    press("Tab", "Space")
    assert solution(host) is not None
    press("Tab", "Enter")
    assert host.get_by_role("textbox").input_value() == ""
    assert host.get_by_role("textbox").evaluate("node => node === document.activeElement")
    assert (feedback(host), solution(host)) == ("", None)
    assert not host.locator(".mha-hints").is_visible()
    assert not host.locator(".mha-score").is_visible()
    assert not host.get_by_role("button", name="Start again").is_visible()


def test_verdicts_differ_in_word_and_colour(show):
    host = show(weights())
    edge = lambda: host.locator(".mha-body").evaluate("node => getComputedStyle(node).borderLeftColor")  # noqa: E731
    word = lambda: host.locator(".mha-feedback strong").evaluate("node => getComputedStyle(node).color")  # noqa: E731
    for theme in ("light", "dark"):
        host.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        host.get_by_role("textbox").fill("")
        neutral = edge()
        say(host, "5")
        wrong = edge(), word()
        say(host, "16384")
        right = edge(), word()
        assert len({neutral, wrong[0], right[0]}) == 3
        assert wrong[1] != right[1]


def test_the_input_has_room_on_the_smallest_phone(show):
    host = show(weights(unit="multiply-adds per token"), width=320)
    box = host.get_by_role("textbox").bounding_box()
    assert box["width"] > 150
    assert box["height"] >= 34
    assert host.get_by_role("textbox").evaluate("node => parseFloat(getComputedStyle(node).fontSize)") >= 16
    assert host.page.evaluate("document.documentElement.scrollWidth") == 320


@pytest.mark.parametrize("over", ["http", "disk"])
def test_attempts_hints_and_solution_come_back(show, over):
    host = show(weights(name="ch3.weights"), over=over)
    assert stored(host.page) == {}, "an untouched question is no answer"
    say(host, "five")
    assert stored(host.page) == {}
    say(host, "5")
    say(host, "2^12 weights")
    host.get_by_role("button", name="Hint 1 of 3").click()
    expect(host.locator(".mha-hints li")).to_have_count(1)
    kept = {
        "question": "How many weights have four projections of width `64`?", "attempts": [5, 4096],
        "typed": "2^12 weights", "opened": 1, "solution_shown": False,
    }  # fmt: skip
    assert stored(host.page) == {"typed-answer/ch3.weights": kept}
    reload(host.page)
    assert host.get_by_role("textbox").input_value() == "2^12 weights"
    assert feedback(host) == "Not quite. That is one projection: there are four."
    assert attempts(host) == "2 attempts"
    assert host.locator(".mha-hints li").all_inner_texts() == HINTS[:1]
    assert solution(host) is None
    host.get_by_role("button", name="Show the solution").click()
    expect(host.locator(".mha-solution")).to_be_visible()
    reload(host.page)
    assert solution(host) == "The answer is 16,384 weights. It is 4 * 64 ** 2."
    host.get_by_role("button", name="Start again").click()
    expect(host.get_by_role("button", name="Start again")).to_be_hidden()
    assert stored(host.page) == {}
    reload(host.page)
    assert host.get_by_role("textbox").input_value() == ""


def test_a_shape_comes_back(show):
    host = show(shape(name="a"))
    say(host, "2 x 3 x 7 x 5")
    reload(host.page)
    assert (feedback(host), attempts(host)) == ("Correct.", "1 attempt")
    assert host.get_by_role("textbox").input_value() == "2 x 3 x 7 x 5"
