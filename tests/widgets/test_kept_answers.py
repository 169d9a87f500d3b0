"""What the browser keeps of a reader's answers: under a name, undamaged, and only where it can."""

import json
import re

import pytest
from storage import UNUSABLE, reload, store, stored
from widget_page import ROOT, write_page
from widget_samples import SAMPLES

from mha_course import questions
from mha_course.widgets import LineOrder, MapPrediction, Quiz, TypedAnswer

TRUTH = [[True], [False]]


def pick(host):
    host.get_by_role("radio", name="256").check()
    host.get_by_role("button", name="Check question 2").click()


def type_number(host):
    host.get_by_role("textbox").fill("5")
    host.get_by_role("button", name="Check").click()


def mark(host):
    host.get_by_role("gridcell").first.click()


def add_line(host):
    host.locator(".mha-line", has_text="b = a").click()
    host.get_by_role("button", name="Add to the solution").click()
    host.locator(".mha-line", has_text="b = a").click()


# For each widget: how to make one with a name, what a reader does, what Python may send instead, and changes
# after which a stored answer does not fit the question.
KEPT = {
    "quiz": (
        lambda name: Quiz(SAMPLES["Quiz"]()._questions, name=name),
        pick,
        {"chosen": [0, None]},
        [{"answers": 7}, {"answers": {"a": []}}],
    ),
    "typed-answer": (
        lambda name: TypedAnswer("Q", 6, computed=6, hints=["Try."], name=name),
        type_number,
        {"attempts": [6], "typed": "6"},
        [{"question": "?"}, {"attempts": [[5]]}, {"opened": 4}, {"typed": 5}, {"solution_shown": None}],
    ),
    "map-prediction": (
        lambda name: MapPrediction("Q", ["a", "b"], ["c"], TRUTH, computed=TRUTH, name=name),
        mark,
        {"marked": "0 1"},
        [{"question": "?"}, {"rows": ["A", "b"]}, {"columns": ["C"]}, {"marked": "1 0 0"}, {"marked": None}],
    ),
    "line-order": (
        lambda name: LineOrder("Order.", ["a = 1", "b = a", "c = b"], name=name),
        add_line,
        {"answer": {"lines": [[0, 0]], "failed": 1, "helped": 0, "solved": False}},
        [{"lines": [["x = 2", 0]]}, {"lines": [["a = 1", 99]]}, {"lines": [None]}, {"failed": "3"},
         {"helped": 99}],
    ),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KEPT)


def look(host):
    """What a reader sees of the answer: feedback, cells, or the lines with their numbers."""
    return host.locator(".mha-feedback, [role=gridcell], .mha-number, .mha-text").all_text_contents()


@every_kind
def test_an_answer_without_a_name_is_not_kept(show, kind):
    make, answer, *_ = KEPT[kind]
    host = show(make(""))
    before = look(host)
    answer(host)
    assert look(host) != before
    assert host.page.evaluate("localStorage.length") == 0
    reload(host.page)
    assert look(host) == before


@every_kind
def test_an_answer_with_a_name_comes_back_to_this_name(show, kind):
    make, answer, *_ = KEPT[kind]
    one, other = show(make("one"), make("other"))
    before = look(other)
    answer(one)
    after = look(one)
    assert list(stored(one.page)) == [f"{kind}/one"]
    reload(one.page, 2)
    assert (look(one), look(other)) == (after, before)


@every_kind
def test_a_damaged_answer_is_not_used(show, kind):
    make, answer, _, changes = KEPT[kind]
    host = show(make("a"))
    before = look(host)
    answer(host)
    after, [kept] = look(host), stored(host.page).values()
    damaged = ["{", "null", "7", '"a"', "[]", *(json.dumps(kept | change) for change in changes)]
    for text in damaged:
        store(host.page, **{f"{kind}__a": text})
        reload(host.page)
        assert look(host) == before, text
    answer(host)
    reload(host.page)
    assert look(host) == after


@every_kind
@pytest.mark.parametrize("how", UNUSABLE)
def test_an_answer_needs_no_storage(show, kind, how):
    make, answer, *_ = KEPT[kind]
    host = show(make("a"), script=UNUSABLE[how])
    before = look(host)
    answer(host)
    assert look(host) != before


@every_kind
def test_what_python_holds_goes_before_what_is_kept(show, tmp_path, kind):
    make, answer, held, _ = KEPT[kind]
    named, unnamed = make("a"), make("")
    for widget in (named, unnamed):
        widget.set_state(held)
    expected = look(show(unnamed))
    host = show(make("a"))
    answer(host)
    assert look(host) != expected
    write_page(tmp_path, [named])
    reload(host.page)
    assert look(host) == expected


def test_a_renamed_chapter_still_has_its_answers(show, tmp_path, monkeypatch):
    """A question that moves to a file of another name keeps what its reader has answered."""
    ask = lambda page: questions.quiz(f"{page}/formula-question", computed="(3, 7)")  # noqa: E731
    host = show(ask("00_orientation"))
    host.get_by_role("radio", name="(3, 7)").check()
    host.get_by_role("button", name="Check").click()
    answered = look(host)
    renamed = tmp_path / "questions"
    renamed.mkdir()
    text = (questions.FOLDER / "00_orientation.md").read_text(encoding="utf-8")
    (renamed / "02_start_here.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(questions, "FOLDER", renamed)
    questions._all_questions.cache_clear()
    write_page(tmp_path, [ask("02_start_here")])
    questions._all_questions.cache_clear()
    reload(host.page)
    assert look(host) == answered
    assert host.get_by_role("radio", name="(3, 7)").is_checked()


@every_kind
@pytest.mark.parametrize(("former", "name"), [
    ("00_orientation.closing-quiz", "orientation-quiz"),
    ("08_inside_a_transformer.ask-mean-map", "ask-mean-map"), ("index.look-question", "look-question"),
    ("appendix_framework_rosetta.quiz", "frameworks-quiz"),
])  # fmt: skip
def test_an_answer_that_was_stored_under_the_page_comes_back(show, kind, former, name):
    make, answer, *_ = KEPT[kind]
    host = show(make(name))
    answer(host)
    after, [kept] = look(host), stored(host.page).values()
    days = stored(host.page, days=True)
    host.page.evaluate("localStorage.clear()")
    store(host.page, **{f"{kind}__{former}": json.dumps(kept)})
    for turns in days.values():
        store(host.page, **{f"repeat__{kind}__{former}": json.dumps(turns)})
    reload(host.page)
    assert look(host) == after
    assert (stored(host.page), stored(host.page, days=True)) == ({f"{kind}/{name}": kept}, days)


def test_answers_under_both_names_are_joined_and_the_later_ones_stay(show):
    quiz = Quiz(SAMPLES["Quiz"]()._questions, name="orientation-quiz")
    first, second = (question["text"] for question in quiz.questions)
    host = show(quiz)
    labels = [question["choices"] for question in quiz.questions]
    store(host.page, quiz__00_orientation=json.dumps("a key of nobody"))
    former = {"answers": {first: labels[0][0], second: labels[1][0]}}
    store(host.page, **{"quiz__00_orientation.closing-quiz": json.dumps(former)})
    store(host.page, **{"quiz__orientation-quiz": json.dumps({"answers": {first: labels[0][1]}})})
    reload(host.page)
    kept = stored(host.page)
    assert kept == {
        "quiz/00_orientation": "a key of nobody",
        "quiz/orientation-quiz": {"answers": {first: labels[0][1], second: labels[1][0]}},
    }


def test_each_former_key_leads_to_a_question_of_today():
    text = (ROOT / "mha_course/widgets/shared/former_keys.js").read_text(encoding="utf-8")
    names = {card["key"].partition("/")[2] for card in questions.cards()}
    present = re.findall(r'^  "[^"]+": "([^"]+)",$', text, re.MULTILINE)
    assert len(present) > 10
    assert set(present) <= names
