"""The quiz: its questions in Python, answered in a browser."""

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from storage import reload, stored
from widget_page import write_page

from mha_course.widgets import Question, Quiz


def test_a_question_finds_its_answer_by_value_or_by_index():
    assert Question("?", ["a", "b"], "b").answer_index == 1
    assert Question("?", ["a", "b"], 0).answer_index == 0
    assert Question("?", [16, 32, 64], 2 * 16).answer_index == 1
    assert Question("?", [16, 32, 64], torch.tensor(64).sum()).answer_index == 2
    assert Question("?", [0.25, 0.5], np.float64(0.5)).answer_index == 1
    assert Question("?", [True, False], 1 > 2).answer_index == 1
    assert Question("?", [1, True], True).answer_index == 1


def test_an_answer_is_declared_and_computed():
    """Both name the same choice, by its text, its number or its index."""
    assert Question("?", ["a", "b"], "b", computed=1).answer_index == 1
    assert Question("?", [16, 32], 32, computed=torch.tensor(2) * 16).answer_index == 1
    assert Question("?", [False, True], True, computed=torch.tensor(True)).answer_index == 1


def test_feedback_may_stand_beside_its_choice():
    question = Question("?", {"a": "no", "b": "yes"}, "b")
    assert (question.choices, question.feedbacks) == (["a", "b"], ["no", "yes"])
    assert Quiz([question]).questions == Quiz([Question("?", ["a", "b"], 1, ["no", "yes"])]).questions


@pytest.mark.parametrize(("changes", "error", "rule"), [
    ({"text": None}, TypeError, "text must be a str, got None"),
    ({"text": " "}, ValueError, "text must not be empty"),
    ({"choices": "ab"}, TypeError, "choices must be a sequence of texts or numbers"),
    ({"choices": [None, "a"]}, TypeError, "choices must be a sequence of texts or numbers"),
    ({"choices": ["a"]}, ValueError, "choices must hold at least two entries"),
    ({"choices": ["a", "a"]}, ValueError, "choices must all differ"),
    ({"choices": ["1", 1], "answer": 1}, ValueError, "choices must all differ"),
    ({"answer": 2}, ValueError, r"an index in 0\.\.1, as all choices are texts, got 2"),
    ({"answer": -1}, ValueError, "got -1"),
    ({"answer": "c"}, ValueError, r"answer must be one of the choices \['a', 'b'\], got 'c'"),
    ({"answer": None}, TypeError, "answer must be a text, a number or an index, got None"),
    ({"choices": [1, 2], "answer": 1.5}, ValueError, r"answer must be one of the choices \[1, 2\], got 1.5"),
    ({"choices": [1, 2], "answer": True}, ValueError, "got True"),
    ({"feedback": ["only one"]}, ValueError, "feedback must hold 2 texts, as choices, got 1"),
    ({"feedback": ["one", 2]}, TypeError, "feedback must be a str or a sequence of str"),
    ({"computed": "b"}, ValueError,
     r"answer must be what the cell computes, 'b', got 'a' for the question 'Which\?'"),
    ({"computed": 1}, ValueError, "answer must be what the cell computes, 1, got 'a'"),
    ({"computed": "c"}, ValueError, r"computed must be one of the choices \['a', 'b'\], got 'c'"),
    ({"computed": [0]}, TypeError, r"computed must be a text, a number or an index, got \[0\]"),
    ({"choices": {"a": "no", "b": 2}}, TypeError, "feedback must be a str or a sequence of str"),
    ({"choices": {"a": "no", "b": "yes"}, "feedback": "both"}, ValueError, "got 'both' too"),
])  # fmt: skip
def test_a_question_that_cannot_be_asked_is_refused(changes, error, rule):
    with pytest.raises(error, match=rule):
        Question(**{"text": "Which?", "choices": ["a", "b"], "answer": "a", **changes})


@pytest.fixture
def quiz():
    answers = {"no & never": "Look `<here>`.", "yes": "Right: 2 * 3 * 4."}
    first = Question("Is `a < b` *always* true?", answers, 1)
    return Quiz([first, Question("How many?", [16, 32], 2**4, "Count them.")])


def test_the_score_counts_right_answers(quiz):
    assert repr(quiz) == "Quiz(2 questions)"
    assert (quiz.chosen, quiz.score) == ([None, None], 0)
    quiz.set_state({"chosen": [1, 1]})
    assert quiz.score == 1
    quiz.chosen = [1, 0]
    assert quiz.score == 2


@pytest.mark.parametrize("chosen", [[0], [0, 2], [-1, 0], [0, 0, 0]])
def test_a_choice_that_is_not_there_is_refused(quiz, chosen):
    with pytest.raises(ValueError, match=r"chosen must hold None or an index below \[2, 2\]"):
        quiz.chosen = chosen
    assert quiz.chosen == [None, None]


def test_a_quiz_needs_different_questions():
    question = Question("?", ["a", "b"], 0)
    with pytest.raises(ValueError, match="at least one entry"):
        Quiz([])
    with pytest.raises(ValueError, match="texts must differ"):
        Quiz([question, question])
    with pytest.raises(TypeError, match=r"questions\[1\] must be a Question, got str"):
        Quiz([question, "?"])


def test_a_quiz_can_be_read_without_scripts(quiz):
    data, _ = quiz._repr_mimebundle_()
    assert data["text/plain"] == "Quiz(2 questions)"
    assert "image/png" not in data
    html = data["text/html"]
    assert "<p>Is <code>a &lt; b</code> <em>always</em> true?</p>" in html
    assert "<li>no &amp; never</li><li>yes</li>" in html
    assert "<details><summary>Answer</summary><p>yes. Right: 2 * 3 * 4.</p></details>" in html
    assert "<p>16. Count them.</p>" in html
    assert "Look" not in html, "feedback on a wrong choice would confuse here"


def make_quiz():
    widths = {"`embed_dim`": "Too wide.", "`head_dim`": "Yes.", "*none*": "No."}
    first = Question("Which width is under the `√`?", widths, 1)
    return Quiz([first, Question("How many parameters?", [64, 256], 4 * 8**2, "Four matrices of 8 · 8.")])


@pytest.mark.parametrize("over", ["http", "disk"])
def test_a_quiz_is_answered_by_keyboard(show, over):
    host = show(make_quiz(), over=over)
    page = host.page
    assert host.get_by_role("group", name="How many parameters?").count() == 1
    assert host.locator("legend code").inner_text() == "√"
    assert host.locator("em").inner_text() == "none"
    feedback, score = host.locator(".mha-feedback"), host.locator(".mha-score")
    status = host.get_by_role("status")
    first_check = host.get_by_role("button", name="Check question 1")

    first_check.focus()
    page.keyboard.press("Enter")
    assert feedback.nth(0).inner_text() == "Choose an answer first."

    host.get_by_role("radio").nth(0).focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert feedback.nth(0).inner_text() == "Not quite. Too wide."
    expect(status).to_have_text("Question 1: Not quite. Too wide.")
    assert score.inner_text() == "0 of 2 correct"

    host.get_by_role("radio").nth(0).focus()
    page.keyboard.press("ArrowDown")
    assert feedback.nth(0).inner_text() == "", "feedback goes when another answer is picked"
    first_check.focus()
    page.keyboard.press("Space")
    assert feedback.nth(0).inner_text() == "Correct. Yes."
    assert score.inner_text() == "1 of 2 correct"

    host.get_by_role("radio", name="256").check()
    host.get_by_role("button", name="Check question 2").click()
    assert feedback.nth(1).inner_text() == "Correct. Four matrices of 8 · 8."
    assert score.inner_text() == "2 of 2 correct"
    assert feedback.nth(0).inner_text() == "Correct. Yes.", "the first answer stays"


def test_a_quiz_shows_what_python_chose(show):
    quiz = make_quiz()
    quiz.chosen = [2, None]
    host = show(quiz)
    assert host.get_by_role("radio", name="none").is_checked()
    assert host.locator(".mha-feedback").nth(0).inner_text() == "Not quite. No."


def test_a_quiz_with_a_wrong_state_gives_a_message(show):
    host = show(make_quiz(), alter=lambda states: states[0].update(chosen=[7, None]))
    assert "chosen must hold one choice or null for each question" in host.get_by_role("alert").inner_text()


def make_named():
    return Quiz(make_quiz()._questions, name="chapter-3.widths")


@pytest.mark.parametrize("over", ["http", "disk"])
def test_a_quiz_with_a_name_keeps_what_was_checked(show, over):
    host = show(make_named(), over=over)
    page, feedback = host.page, host.locator(".mha-feedback")
    assert stored(page) == {}, "an unanswered quiz is no answer"
    host.get_by_role("radio", name="none").check()
    host.get_by_role("button", name="Check question 1").click()
    host.get_by_role("radio", name="256").check()
    assert stored(page) == {"quiz/chapter-3.widths": {"answers": {"Which width is under the `√`?": "*none*"}}}
    reload(page)
    assert host.get_by_role("radio", name="none").is_checked()
    assert feedback.nth(0).inner_text() == "Not quite. No."
    assert host.locator(".mha-score").inner_text() == "0 of 2 correct"
    assert not host.get_by_role("radio", name="256").is_checked(), "it was picked, but not checked"

    host.get_by_role("radio", name="head_dim").check()
    host.get_by_role("button", name="Check question 1").click()
    reload(page)
    assert feedback.nth(0).inner_text() == "Correct. Yes."
    assert host.locator(".mha-score").inner_text() == "1 of 2 correct"


def test_an_answer_belongs_to_its_texts(reader, tmp_path):
    """Where the author has moved a choice the answer moves with it; where it has gone, nothing is chosen."""
    tab = reader("disk")
    page = tab.open(write_page(tmp_path, [make_named()]), 1)
    for number, choice in ((1, "none"), (2, "256")):
        tab.host().get_by_role("radio", name=choice).check()
        tab.host().get_by_role("button", name=f"Check question {number}").click()
    moved = Question("Which width is under the `√`?", ["*none*", "`embed_dim`", "`head_dim`"], 2)
    other = Question("How many parameters?", [64, 512, 1024], 64)
    write_page(tmp_path, [Quiz([other, moved], name="chapter-3.widths")])
    reload(page)
    assert tab.host().locator(":checked").count() == 1
    assert tab.host().get_by_role("radio", name="none").is_checked()


@pytest.mark.parametrize(("name", "error", "rule"), [
    (None, TypeError, "name must be a str, got NoneType: None"),
    ("a b", ValueError, "name must hold only letters, digits, '.', '_' and '-', got 'a b'"),
    ("a/b", ValueError, "got 'a/b'"),
    ("é", ValueError, "got 'é'"),
])  # fmt: skip
def test_a_name_that_cannot_be_a_key_is_refused(name, error, rule):
    with pytest.raises(error, match=rule):
        Quiz([Question("?", ["a", "b"], 0)], name=name)
