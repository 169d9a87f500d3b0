"""The questions of the pages, one file per page; `quiz("page/name", computed=...)` shows one.

A file is Markdown that an author edits. A heading of the second level names a question, paragraphs contain
it, and a task list offers the choices. The mark declares the correct one, and the text that is indented
below a choice is the feedback on it. Browsers store answers under the name of a question, so each name occurs
once in the course, does not contain the page's name and should not change.

    ## head-width

    How wide is a head if `embed_dim` is 64 and there are 4 heads?

    - [x] 16
      Each head gets a quarter of the width.
    - [ ] 64
      That is the width of all heads together.

Several questions asked together have one name, each under a heading of the third level. An answer to
be typed is declared by a line that begins with "=", with its unit and tolerance; the list then contains the
known wrong answers, numbered items are the hints, and a quotation is the solution.

    = 12288 bytes ± 1 %

A map to be predicted is a table: "x" marks the second state, the table's first cell names both states, and
the list contains the feedback on each row. The cell of a question computes the answer too, and a disagreement
is an error.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mha_course.widgets import MapPrediction, Question, Quiz, TypedAnswer
from mha_lib._checks import check_type

FOLDER = Path(__file__).parent

_CHOICE = re.compile(r"- (?:\[(?P<mark>[ x])\] )?(?P<label>.+)")
_TYPED = re.compile(
    r"= (?P<answer>\([^)]*\)|\S+)(?: (?P<unit>(?!±).+?))?(?: ± (?P<percent>\S+) %)?"
)


class QuestionError(ValueError):
    """A fault in a file of questions; the message begins with the file and the line."""


@dataclass
class Entry:
    """The contents of a file under one heading.

    Attributes:
        name: the heading.
        line: the line of the heading.
        text: the question.
        choices: the items of the list, each with its feedback: right answers, wrong ones, or rows of a map.
        keys: the items that are marked as correct.
        answer: the line that declares an answer to be typed, without its "=".
        hints: the numbered items.
        solution: the quotation.
        table: the rows of the table, each a list of cells.
        parts: the questions below headings of the third level.
        lines: the line of each choice.
    """

    name: str
    line: int
    text: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    answer: re.Match[str] | None = None
    hints: list[str] = field(default_factory=list)
    solution: str = ""
    table: list[list[str]] = field(default_factory=list)
    parts: dict[str, Entry] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


def read_questions(path: Path) -> dict[str, Entry]:
    """Read a file of questions.

    Args:
        path: a Markdown file, as this module's docstring describes it.

    Returns:
        The entries by their names.

    Raises:
        QuestionError: an entry breaks a rule; the message begins with the file and the line.

    Example:
        >>> list(read_questions(FOLDER / "00_orientation.md"))[0]
        'formula-question'
    """
    reader = _Reader(path)
    for reader.number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        reader.read(line)
    for entry in reader.found.values():
        for part in (entry, *entry.parts.values()):
            if fault := _fault(part, part is not entry):
                raise reader.wrong(fault, part.line)
            for choice, feedback in part.choices.items():
                if not feedback:
                    fault = f"the choice {choice!r} has no feedback"
                    raise reader.wrong(fault, part.lines[choice])
    return reader.found


class _Reader:
    """Reads a file line by line; `number` is the number of the line, counted from 1."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self.found: dict[str, Entry] = {}
        self._entry: Entry | None = None
        self._last = ""  # the choice, or "1." for a hint, that indented lines continue

    def wrong(self, what: str, line: int | None = None) -> QuestionError:
        return QuestionError(f"{self.path}:{line or self.number}: {what}")

    def read(self, line: str) -> None:
        if "$" in line:
            raise self.wrong(f"questions typeset no formulas: write d², got {line!r}")
        if line.startswith("#"):
            self._heading(line)
        elif self._entry is None:
            if line.strip():
                raise self.wrong("text stands before the first question")
        elif line.startswith("  ") and line.strip():
            self._continue(self._entry, line.strip())
        elif line.startswith("- "):
            self._choice(self._entry, line)
        elif line.strip():
            self._other(self._entry, line.strip())

    def _heading(self, line: str) -> None:
        if self._entry is None and line.startswith("# "):
            return  # the title of the file
        heading = re.fullmatch(r"(##|###) (\S.*)", line)
        if heading is None:
            raise self.wrong(f"a question begins with ## or ###, got {line!r}")
        level, name = heading.groups()
        if level == "###" and not self.found:
            raise self.wrong("a part needs a question above it")
        among = self.found if level == "##" else list(self.found.values())[-1].parts
        if name in among:
            raise self.wrong(f"two questions have the name {name!r}")
        self._entry = among[name] = Entry(name, self.number)
        self._last = ""

    def _continue(self, entry: Entry, text: str) -> None:
        if self._last == "1.":
            entry.hints[-1] += f" {text}"
        elif self._last:
            entry.choices[self._last] = f"{entry.choices[self._last]} {text}".strip()
        else:
            raise self.wrong("feedback stands below no choice")

    def _choice(self, entry: Entry, line: str) -> None:
        choice = _CHOICE.fullmatch(line)
        if choice is None or re.match(r"\[.?\]", choice["label"]):
            raise self.wrong(f"a choice begins with - [x] or - [ ], got {line!r}")
        self._last = label = choice["label"]
        if label in entry.choices:
            raise self.wrong(f"two choices read {label!r}")
        offers = not (entry.answer or entry.table)
        if offers and choice["mark"] is None:
            raise self.wrong(f"a choice begins with - [x] or - [ ], got {line!r}")
        if not offers and choice["mark"] is not None:
            raise self.wrong("only a choice has a mark, no wrong answer and no row")
        entry.choices[label], entry.lines[label] = "", self.number
        if choice["mark"] == "x":
            entry.keys.append(label)

    def _other(self, entry: Entry, line: str) -> None:
        """A line that is neither a heading nor a choice nor indented."""
        self._last = ""
        if line.startswith("= "):
            if entry.answer or not (typed := _TYPED.fullmatch(line)):
                raise self.wrong(f"the answer is one line, = 8 MB ± 1 %, got {line!r}")
            entry.answer = typed
        elif line.startswith("> "):
            entry.solution = f"{entry.solution} {line[2:]}".strip()
        elif line.startswith("|"):
            if not re.fullmatch(r"[|: -]+", line):
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                entry.table.append(cells)
        elif hint := re.fullmatch(r"\d+\. (.+)", line):
            entry.hints.append(hint[1])
            self._last = "1."
        elif entry.choices or entry.answer or entry.table:
            raise self.wrong("text stands below the answers; feedback is indented")
        else:
            entry.text = f"{entry.text} {line}".strip()


def _fault(entry: Entry, is_part: bool) -> str:
    """The rule that an entry breaks, or ""."""
    name = repr(entry.name)
    if entry.parts:
        asked = entry.text or entry.choices or entry.answer or entry.table
        return f"the question {name} has parts and asks something itself" * bool(asked)
    if not entry.text:
        return f"the question {name} has no text"
    if is_part and (entry.answer or entry.table):
        return f"the part {name} must offer choices"
    if not entry.answer and (entry.hints or entry.solution):
        return f"the question {name} has hints, but no answer to be typed"
    if entry.table:
        return _fault_of_map(entry)
    if entry.answer:
        return ""
    if len(entry.keys) != 1 or len(entry.choices) < 2:
        return (
            f"the question {name} needs one choice marked [x] among two or more, "
            f"got {len(entry.keys)} of {len(entry.choices)}"
        )
    return ""


def _fault_of_map(entry: Entry) -> str:
    header, *rows = entry.table
    if entry.answer or header[0].count(" / ") != 1:
        return f"the table of {entry.name!r} must begin with its two states, a / b"
    for row in rows:
        if len(row) != len(header) or set(row[1:]) - {"x", ""}:
            return f"the row {row[0]!r} must hold {len(header) - 1} cells, x or empty"
    unknown = sorted(entry.choices.keys() - {row[0] for row in rows})
    return f"the list names no row of the table: {unknown}" if unknown else ""


def cards() -> list[dict[str, str]]:
    """Return every question of the course as a card, in the order of the files.

    Returns:
        Dicts of `key`, under which a browser stores the answer, the page's `file` without its ending and its
        title, `page`, the `text`, the options `offered` below it, and the `answer` with its feedback.

    Example:
        >>> cards()[0]["answer"].splitlines()
        ['(3, 7)', 'One row for each query. It is a mean of values, so it is as wide as a value.']
    """
    found = []
    for file, entries in _all_questions().items():
        first_line = (FOLDER / f"{file}.md").read_text("utf-8").partition("\n")[0]
        page = first_line.split("“")[1].rstrip("”")
        for entry in entries.values():
            for part in entry.parts.values() or [entry]:
                kind, offered, answer = _sides(part)
                place = {"key": f"{kind}/{entry.name}", "file": file, "page": page}
                sides = {"text": part.text, "offered": offered, "answer": answer}
                found.append(place | sides)
    return found


def _sides(part: Entry) -> tuple[str, str, str]:
    """The kind of a question, its options, and its answer with the feedback."""
    if part.answer:
        return "typed-answer", "", f"{part.answer[0][2:]}\n{part.solution}".strip()
    if part.table:
        rows = [" | ".join(row) for row in part.table]
        offered = [rows[0], *(row[0] for row in part.table[1:])]
        return "map-prediction", "\n".join(offered), "\n".join(rows)
    offered = [f"• {choice}" for choice in part.choices]
    [key] = part.keys
    return "quiz", "\n".join(offered), f"{key}\n{part.choices[key]}"


@functools.cache
def _all_questions() -> dict[str, dict[str, Entry]]:
    """The questions of each page; raise if two have one name, because browsers would mix up their answers."""
    pages = {path.stem: read_questions(path) for path in sorted(FOLDER.glob("*.md"))}
    places: dict[str, str] = {}
    for page, entries in pages.items():
        for name, entry in entries.items():
            place = f"{FOLDER / page}.md:{entry.line}"
            if name in places:
                what = f"the question {name!r} needs another name, which {places[name]} has"
                raise QuestionError(f"{place}: {what}; browsers store answers under it")
            places[name] = place
    return pages


def quiz(name: str, computed: Any = None) -> Quiz | TypedAnswer | MapPrediction:
    """Show the question of this name; the reader's browser stores the answer under it.

    Args:
        name: the page and the question, such as "03_multi_head_attention/ask-split".
        computed: the correct answer from the cell: the text of a choice, a number, a shape or a map;
            for a question with parts a dict from each part to its answer.

    Returns:
        A `Quiz`, a `TypedAnswer` or a `MapPrediction`.

    Raises:
        TypeError: `name` is not a str.
        QuestionError: two questions of the course have the same name, or an entry breaks a rule.
        ValueError: there is no such question, an answer is not computed, or it differs from the file's.

    Example:
        >>> quiz("00_orientation/formula-question", computed="(3, 7)")
        Quiz(1 question)
    """
    check_type("name", name, str)
    page, _, question = name.partition("/")
    pages = _all_questions()
    if page not in pages:
        raise ValueError(f"name must begin with a page of {list(pages)}, got {page!r}")
    if question not in pages[page]:
        raise ValueError(f"name must be one of {sorted(pages[page])}, got {question!r}")
    entry = pages[page][question]
    try:
        return _asked(entry, computed)
    except ValueError as error:
        place = f"{FOLDER / page}.md:{entry.line}"
        raise ValueError(f"{error}, the question at {place}") from None


def _asked(entry: Entry, computed: Any) -> Quiz | TypedAnswer | MapPrediction:
    """The widget for an entry, which stores its answers under the name of the entry."""
    parts = entry.parts or {entry.name: entry}
    answers = computed if entry.parts else {entry.name: computed}
    if not isinstance(answers, Mapping) or answers.keys() != parts.keys():
        raise ValueError(f"computed must be a dict with {list(parts)}, got {answers!r}")
    missing = [part for part, answer in answers.items() if answer is None]
    if missing:
        raise ValueError(f"computed must hold the answer of {missing}, got None")
    if entry.answer:
        return _typed(entry, computed)
    if entry.table:
        return _map(entry, computed)
    return Quiz(
        [
            Question(
                part.text,
                cast(dict[Any, str], part.choices),
                part.keys[0],
                computed=_choice(part, answers[part.name]),
            )
            for part in parts.values()
        ],
        name=entry.name,
    )


def _choice(part: Entry, answer: Any) -> Any:
    """The choice that an answer means: the same text, the same number, or the one with this index."""
    answer = answer.item() if hasattr(answer, "item") else answer
    if str(answer) in part.choices:
        return str(answer)
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        for label in part.choices:
            if re.fullmatch(r"-?[\d.]+", label) and float(label) == answer:
                return label
    return answer


def _typed(entry: Entry, computed: Any) -> TypedAnswer:
    assert entry.answer is not None
    percent = entry.answer["percent"]
    return TypedAnswer(
        entry.text,
        _value(entry.answer["answer"]),
        computed=computed,
        feedback={_value(label): text for label, text in entry.choices.items()},
        unit=entry.answer["unit"] or "",
        tolerance=float(percent) / 100 if percent else 0,
        hints=entry.hints,
        solution=entry.solution,
        name=entry.name,
    )


def _value(text: str) -> int | float | tuple[int, ...]:
    """A number or a shape as written in a file."""
    if text.startswith("("):
        return tuple(int(size) for size in text.strip("()").split(",") if size.strip())
    return float(text) if re.search(r"[.e]", text) else int(text)


def _map(entry: Entry, computed: Any) -> MapPrediction:
    (states, *columns), *rows = entry.table
    return MapPrediction(
        entry.text,
        [row[0] for row in rows],
        columns,
        [[cell == "x" for cell in row[1:]] for row in rows],
        states=states.split(" / "),
        computed=computed,
        feedback=entry.choices,
        name=entry.name,
    )
