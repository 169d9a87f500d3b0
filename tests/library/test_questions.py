"""Files of questions: what they declare, what is refused with file and line, what a cell must compute."""

import re

import pytest
import torch

from mha_course import questions
from mha_course.questions import QuestionError, quiz, read_questions
from mha_course.widgets import MapPrediction, Quiz, TypedAnswer

SOUND = """\
# Questions of "A page"

## choice

How wide is a head if `embed_dim` is 64
and there are 4 heads?

- [x] 16
  Each head gets
  a quarter.
- [ ] 64
  That is all of it.

## two

### first

Is it?

- [ ] no
  It is.
- [x] yes
  Indeed.

### second

Which of 0.5 and 2?

- [x] 0.5
  It is smaller.
- [ ] 2
  It is larger.

## shape

Which shape?

= (2, 3)

- (3, 2)
  The other way round.

1. Rows come
   first.
2. Then columns.

> Two rows,
> three columns.

## share

How much?

= 131.5 million bytes ± 1 %

- 263
  Twice as much.

## map

Which test finds which mistake?

| passes / found | shape | sums |
|---|---|---|
| no scale | | x |
| no mask | x | x |

- no scale
  It keeps the shape.
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A function that writes a file of questions as the page "page"."""
    monkeypatch.setattr(questions, "FOLDER", tmp_path)
    questions._all_questions.cache_clear()
    yield lambda text: (tmp_path / "page.md").write_text(text, encoding="utf-8") and tmp_path / "page.md"
    questions._all_questions.cache_clear()


def test_choices_with_their_feedback_and_key(page):
    choice = read_questions(page(SOUND))["choice"]
    assert choice.text == "How wide is a head if `embed_dim` is 64 and there are 4 heads?"
    assert choice.choices == {"16": "Each head gets a quarter.", "64": "That is all of it."}
    assert (choice.keys, choice.line, choice.lines) == (["16"], 3, {"16": 8, "64": 11})


def test_parts_stand_below_their_question(page):
    two = read_questions(page(SOUND))["two"]
    assert {name: part.keys for name, part in two.parts.items()} == {"first": ["yes"], "second": ["0.5"]}
    assert two.parts["second"].text == "Which of 0.5 and 2?"


def test_typed_answer_with_hints_and_solution(page):
    found = read_questions(page(SOUND))
    assert found["shape"].answer["answer"] == "(2, 3)"
    assert found["shape"].hints == ["Rows come first.", "Then columns."]
    assert found["shape"].solution == "Two rows, three columns."
    assert found["share"].answer.groupdict() == {"answer": "131.5", "unit": "million bytes", "percent": "1"}


def test_map_is_a_table(page):
    entry = read_questions(page(SOUND))["map"]
    assert entry.table[0] == ["passes / found", "shape", "sums"]
    assert entry.table[1:] == [["no scale", "", "x"], ["no mask", "x", "x"]]
    assert entry.choices == {"no scale": "It keeps the shape."}


# Fault -> the text that is changed, its replacement, the line in the message, words of the message.
WRONG = {
    "no key": ("- [x] 16", "- [ ] 16", 3, "one choice marked [x] among two or more, got 0 of 2"),
    "two keys": ("- [ ] 64", "- [x] 64", 3, "got 2 of 2"),
    "one choice": ("- [ ] 64\n  That is all of it.\n", "", 3, "got 1 of 1"),
    "a formula": ("Is it?", "Is it $d^2$?", 18, "typeset no formulas: write d², got 'Is it $d^2$?'"),
    "no text": ("Is it?\n", "", 16, "the question 'first' has no text"),
    "two with one name": ("## two", "## choice", 14, "two questions have the name 'choice'"),
    "two parts with one name": ("### second", "### first", 25, "two questions have the name 'first'"),
    "two choices that read the same": ("- [ ] 64", "- [ ] 16", 11, "two choices read '16'"),
    "a choice without feedback": ("  It is larger.\n", "", 31, "the choice '2' has no feedback"),
    "a key without feedback": ("  Indeed.\n", "", 22, "the choice 'yes' has no feedback"),
    "a wrong answer without feedback": ("  The other way round.\n", "", 40, "'(3, 2)' has no feedback"),
    "feedback below no choice": ("Is it?\n", "Is it?\n\n  Yes.\n", 20, "feedback stands below no choice"),
    "feedback that is not indented": ("  That is all", "That is all", 12, "text stands below the answers"),
    "text before the first question": ("# Questions of", "Questions of", 1, "before the first question"),
    "a part before the first question": ("## choice", "### choice", 3, "needs a question above it"),
    "a heading of another level": ("## shape", "#### shape", 34, "a question begins with ## or ###"),
    "a second title": ("## shape", "# shape", 34, "a question begins with ## or ###"),
    "a question with parts that asks": (
        "### first",
        "Well?\n\n### first",
        14,
        "'two' has parts and asks something itself",
    ),
    "a mark of another letter": ("- [x] 16", "- [X] 16", 8, "begins with - [x] or - [ ]"),
    "an empty mark": ("- [ ] 64", "- [] 64", 11, "begins with - [x] or - [ ]"),
    "a choice without a mark": ("- [ ] 64", "- 64", 11, "begins with - [x] or - [ ]"),
    "a marked wrong answer": ("- (3, 2)", "- [x] (3, 2)", 40, "no wrong answer and no row"),
    "a marked row": ("- no scale", "- [ ] no scale", 68, "no wrong answer and no row"),
    "two answers to be typed": ("= (2, 3)", "= (2, 3)\n= (3, 2)", 39, "the answer is one line"),
    "hints of a question with choices": ("- [ ] 64", "1. Divide.\n\n- [ ] 64", 3, "has hints, but no answer"),
    "a solution of a question with choices": ("- [ ] 64", "> 64 / 4\n\n- [ ] 64", 3,
        "has hints, but no answer"),
    "a map without states": ("| passes / found |", "| |", 59, "must begin with its two states"),
    "a row that is too short": ("| no scale | | x |", "| no scale | x |", 59,
        "must hold 2 cells, x or empty"),
    "a cell that is no x": ("| no scale | | x |", "| no scale | | y |", 59, "must hold 2 cells, x or empty"),
    "feedback for no row": ("- no scale", "- no bias", 59, "names no row of the table: ['no bias']"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_fault_is_named_with_file_and_line(page, wrong):
    old, new, line, words = WRONG[wrong]
    assert SOUND.count(old) >= 1
    path = page(SOUND.replace(old, new, 1))
    with pytest.raises(QuestionError, match=f"^{re.escape(f'{path}:{line}: ')}.*{re.escape(words)}"):
        read_questions(path)


def test_typed_part_is_refused(page):
    path = page("## two\n\n### first\n\nHow many?\n\n= 8\n")
    with pytest.raises(QuestionError, match=r"page\.md:3: the part 'first' must offer choices"):
        read_questions(path)


def test_two_questions_of_the_course_with_one_name_are_refused(page, tmp_path):
    """The browser stores answers under the name alone, so one would replace the other."""
    path = page(SOUND)
    (tmp_path / "other.md").write_text(
        "## choice\n\nWhich?\n\n- [x] a\n  Yes.\n- [ ] b\n  No.\n", encoding="utf-8"
    )
    words = f"{path}:3: the question 'choice' needs another name, which {tmp_path / 'other.md'}:1 has"
    with pytest.raises(QuestionError, match=re.escape(words)):
        quiz("page/share", computed=131.0)
    with pytest.raises(QuestionError, match=re.escape(words)):
        questions.cards()


def test_each_question_of_the_course_has_a_name_of_its_own():
    names = {card["key"]: (card["file"], card["key"].partition("/")[2]) for card in questions.cards()}
    assert len(names) > 100
    assert not [key for key, (file, name) in names.items() if file in name]


def test_quiz_asks_what_the_file_declares(page):
    page(SOUND)
    choice = quiz("page/choice", computed=64 // 4)
    assert isinstance(choice, Quiz)
    assert choice.name == "choice"
    assert isinstance(quiz("page/two", computed={"first": "yes", "second": torch.tensor(0.5)}), Quiz)
    assert isinstance(quiz("page/shape", computed=torch.zeros(2, 3).shape), TypedAnswer)
    assert isinstance(quiz("page/share", computed=131.0), TypedAnswer)  # within its tolerance
    found = quiz("page/map", computed=[[False, True], [True, True]])
    assert isinstance(found, MapPrediction)
    assert found.task["feedback"] == {"no scale": "It keeps the shape."}


def test_choice_is_computed_as_text_number_or_index(page):
    page(SOUND)
    for first in ("yes", 1):
        for second in ("0.5", 0.5, 0, torch.tensor(0.5)):
            quiz("page/two", computed={"first": first, "second": second})


@pytest.mark.parametrize(("name", "computed", "words"), [
    ("page/choice", None, "computed must hold the answer of ['choice'], got None"),
    ("page/choice", 64, "must be what the cell computes, '64', got '16'"),
    ("page/choice", "17", "'17'"),
    ("page/two", {"first": "yes"}, "computed must be a dict with ['first', 'second']"),
    ("page/two", "yes", "computed must be a dict with ['first', 'second'], got 'yes'"),
    ("page/two", {"first": "yes", "second": None}, "computed must hold the answer of ['second']"),
    ("page/shape", None, "computed must hold the answer of ['shape'], got None"),
    ("page/shape", (3, 2), "(3, 2)"),
    ("page/share", 263.0, "263"),
    ("page/map", [[True, True], [True, True]], "row 'no scale' and column 'shape'"),
])  # fmt: skip
def test_quiz_refuses_what_the_cell_does_not_compute(page, name, computed, words):
    path = page(SOUND)
    line = SOUND.splitlines().index(f"## {name.partition('/')[2]}") + 1
    place = re.escape(f"the question at {path}:{line}")
    with pytest.raises(ValueError, match=f"{re.escape(words)}.*{place}$"):
        quiz(name, computed=computed)


def test_quiz_refuses_names_of_nothing(page):
    page(SOUND)
    with pytest.raises(TypeError, match="name must be a str"):
        quiz(1)
    with pytest.raises(ValueError, match=r"name must begin with a page of \['page'\], got 'other'"):
        quiz("other/choice", computed=16)
    with pytest.raises(ValueError, match=r"name must be one of \['choice', 'map', .*\], got 'head'"):
        quiz("page/head", computed=16)
