"""A quiz with feedback for each choice, whose answers the author declares and Python computes."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import traitlets as t

from mha_course._checks import check_kept_name
from mha_course.widgets._base import CourseWidget
from mha_course.widgets._traits import unfit
from mha_lib._checks import check_type, refusal

Choice = str | int | float | bool


@dataclass(frozen=True)
class Question:
    """A question with a single correct choice.

    The author declares the correct choice, and the cell with the question computes it as well; if the two
    disagree, the question raises an error. Texts may contain `code` and *emphasis*.

    Args:
        text: the question.
        choices: two or more texts or numbers, all different; or a dict from each to its feedback.
        answer: the correct choice, as the author declares it; an int is an index if all choices are texts.
        feedback: one text for each choice, or one for all; shown after the reader has checked an answer.
        computed: the correct choice, as the cell computes it; None if it cannot be computed.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: there are fewer than two choices, two choices have the same text, the answer is not among
            them or not the computed one, or feedback has the wrong length or is given twice.

    Example:
        >>> choices = {64: "That is one projection.", 256: "Yes, four of 8 times 8."}
        >>> question = Question("How many weights do four projections of width 8 have?", choices, 256,
        ...                     computed=4 * 8**2)
        >>> question.answer_index, question.feedbacks[1]
        (1, 'Yes, four of 8 times 8.')
    """

    text: str
    choices: Sequence[Choice] | Mapping[Choice, str]
    answer: Any  # a Choice, or a tensor or numpy number that contains one
    feedback: Sequence[str] | str = ""
    computed: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.choices, Mapping):
            if self.feedback:
                rule = "stand either in choices or in feedback"
                raise refusal("feedback", rule, f"{self.feedback!r} too")
            object.__setattr__(self, "feedback", list(self.choices.values()))
            object.__setattr__(self, "choices", list(self.choices))
        if not isinstance(self.text, str):
            raise TypeError(f"text must be a str, got {self.text!r}")
        if not self.text.strip():
            raise ValueError(f"text must not be empty, got {self.text!r}")
        check_type("choices", self.choices, Sequence)
        check_type("feedback", self.feedback, Sequence)
        if isinstance(self.choices, str) or not all(
            isinstance(c, (str, int, float)) for c in self.choices
        ):
            rule = "choices must be a sequence of texts or numbers"
            raise TypeError(f"{rule}, got {self.choices!r}")
        if len(self.choices) < 2:
            raise refusal("choices", "hold at least two entries", list(self.choices))
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"choices must all differ, got {list(self.choices)}")
        if isinstance(self.feedback, str):
            pass
        elif not all(isinstance(text, str) for text in self.feedback):
            rule = "feedback must be a str or a sequence of str"
            raise TypeError(f"{rule}, got {self.feedback!r}")
        elif len(self.feedback) != len(self.choices):
            rule = f"hold {len(self.choices)} texts, as choices"
            raise refusal("feedback", rule, len(self.feedback))
        if self.computed is None:
            self._index_of("answer", self.answer)
        elif self._index_of("computed", self.computed) != self.answer_index:
            rule = f"be what the cell computes, {self.computed!r}"
            got = f"{self.answer!r} for the question {self.text!r}"
            raise refusal("answer", rule, got)

    @property
    def labels(self) -> list[str]:
        """The choices as written on the page."""
        return [str(choice) for choice in self.choices]

    @property
    def answer_index(self) -> int:
        """Index of the correct choice."""
        return self._index_of("answer", self.answer)

    def _index_of(self, name: str, value: Any) -> int:
        """Index of the choice that `value` means; error messages call the value `name`."""
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, (str, int, float)):
            rule = "must be a text, a number or an index"
            raise TypeError(f"{name} {rule}, got {value!r}")
        # True equals 1 in Python, but on the page they are two different choices.
        is_bool = isinstance(value, bool)
        all_texts = all(isinstance(choice, str) for choice in self.choices)
        if isinstance(value, int) and not is_bool and all_texts:
            if not 0 <= value < len(self.choices):
                last = len(self.choices) - 1
                rule = f"an index in 0..{last}, as all choices are texts"
                raise refusal(name, f"be one of the texts or {rule}", value)
            return value
        for index, choice in enumerate(self.choices):
            if choice == value and isinstance(choice, bool) == is_bool:
                return index
        raise refusal(name, f"be one of the choices {list(self.choices)}", repr(value))

    @property
    def feedbacks(self) -> list[str]:
        """One text for each choice."""
        one = isinstance(self.feedback, str)
        return [str(self.feedback)] * len(self.choices) if one else list(self.feedback)


class Quiz(CourseWidget):
    """Single-choice questions, each with a button to check it, feedback and a score. Works without a kernel.

    Args:
        questions: one or more `Question`.
        name: name under which the reader's browser stores the checked answers and restores them on the next
            visit, unique among the quizzes of the course; "" if they are not stored.

    Raises:
        TypeError: an entry is not a `Question`, or name is not a str.
        ValueError: there are no questions, two have the same text, or name contains characters other than
            letters, digits, ".", "_" and "-".

    Example:
        >>> quiz = Quiz([Question("Which axis does the softmax run over?", ["queries", "keys"], "keys")])
        >>> quiz
        Quiz(1 question)
        >>> quiz.chosen = [1]
        >>> quiz.score
        1
    """

    _module: ClassVar[str] = "quiz.js"

    questions = t.List(t.Dict(), read_only=True).tag(sync=True)
    chosen = t.List(t.Int(allow_none=True)).tag(sync=True)
    """For each question, the index of the choice that the reader has checked, or None."""
    name = t.Unicode(read_only=True).tag(sync=True)
    """The name under which the browser stores the checked answers; "" if it does not."""

    def __init__(self, questions: Sequence[Question], *, name: str = "") -> None:
        check_type("questions", questions, Sequence)
        self.set_trait("name", check_kept_name(name))
        questions = list(questions)
        for index, question in enumerate(questions):
            if not isinstance(question, Question):
                raise TypeError(
                    f"questions[{index}] must be a Question, got {type(question).__name__}"
                )
        texts = [question.text for question in questions]
        if not texts or len(set(texts)) < len(texts):
            rule = "hold at least one entry, and texts must differ"
            raise refusal("questions", rule, texts)
        self._questions = questions
        self.chosen = [None] * len(questions)
        self.set_trait("questions", [_state(question) for question in questions])
        super().__init__()

    @t.validate("chosen")
    def _check_chosen(self, proposal: t.Bunch) -> list[int | None]:
        counts = [len(question.choices) for question in self._questions]
        value = list(proposal.value)
        in_range = (
            c is None or 0 <= c < count for c, count in zip(value, counts, strict=False)
        )
        if len(value) != len(counts) or not all(in_range):
            rule = f"hold None or an index below {counts} for each question"
            raise unfit("chosen", rule, value)
        return value

    @property
    def score(self) -> int:
        """The number of correctly answered questions."""
        pairs = zip(self.chosen, self._questions, strict=True)
        return sum(choice == question.answer_index for choice, question in pairs)

    def fallback_html(self) -> str:
        """The questions, with folded answers."""
        items = "".join(_item(question) for question in self._questions)
        return f"<ol>{items}</ol>"

    def __repr__(self) -> str:
        count = len(self._questions)
        return f"Quiz({count} question{'s' if count > 1 else ''})"


def _state(question: Question) -> dict[str, Any]:
    return {
        "text": question.text,
        "choices": question.labels,
        "answer": question.answer_index,
        "feedback": question.feedbacks,
    }


def _item(question: Question) -> str:
    choices = "".join(f"<li>{_inline_html(label)}</li>" for label in question.labels)
    right = question.answer_index
    answer, feedback = question.labels[right], question.feedbacks[right]
    return (
        f"<li><p>{_inline_html(question.text)}</p><ul>{choices}</ul><details><summary>Answer</summary>"
        f"<p>{_inline_html(answer)}. {_inline_html(feedback)}</p></details></li>"
    )


def _inline_html(text: str) -> str:
    """Render `code` and *emphasis* as HTML, as frame.js does."""
    text = html.escape(text, quote=False)
    parts = re.split(r"(`[^`]+`|\*[^*\s](?:[^*]*[^*\s])?\*)", text)
    for index in range(1, len(parts), 2):
        tag = "code" if parts[index][0] == "`" else "em"
        parts[index] = f"<{tag}>{parts[index][1:-1]}</{tag}>"
    return "".join(parts)
