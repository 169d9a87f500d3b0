"""Lines of code to put in order (a Parsons problem), among them faulty lines with explanations."""

from __future__ import annotations

import ast
import hashlib
import html
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import traitlets as t

from mha_course._checks import check_text
from mha_course.widgets._base import CourseWidget
from mha_course.widgets._traits import TraitTypeError, unfit
from mha_course.widgets.quiz import _inline_html
from mha_lib._checks import check_type, refusal, wrong_type

Test = str | Callable[[str], object]
_Row = tuple[
    int, str
]  # how far a line is indented, in steps of four spaces, and its text


@dataclass(frozen=True)
class Distractor:
    """A faulty line that looks as if it belonged in the code.

    Args:
        text: the faulty line, without indentation.
        instead_of: the correct line, without indentation.
        because: a sentence that says what the faulty line would do.

    Raises:
        TypeError: an argument is not a str.
        ValueError: an argument is empty, or `text` is the line that it should replace.

    Example:
        >>> fault = Distractor("y = x.softmax(0)", "y = x.softmax(-1)", "The softmax runs over the queries.")
        >>> fault.instead_of
        'y = x.softmax(-1)'
    """

    text: str
    instead_of: str
    because: str

    def __post_init__(self) -> None:
        for name in ("text", "instead_of", "because"):
            value = getattr(self, name)
            check_type(name, value, str)
            if not value.strip() or "\n" in value.strip():
                raise ValueError(f"{name} must be one line of text, got {value!r}")
            object.__setattr__(self, name, value.strip())
        if self.text == self.instead_of:
            rule = "differ from the line that it replaces"
            raise refusal("text", rule, repr(self.text))


class LineOrder(CourseWidget):
    """Lines of code that the reader puts in order and indents. Works without a kernel.

    Some of the lines are faulty. A check names the first line that is wrong and says why. After three failed
    checks, help removes faulty lines, then sets the indentation, then joins neighbouring lines, and finally
    shows the solution. With a `name`, the browser stores the reader's answer.

    `test` proves that the page tells the truth. When the widget is created, the lines must pass the test in
    each accepted order. They must fail it with a faulty line in place of the correct one, with the
    indentation of one line changed by a step, and in each order that is not accepted and differs from the
    given order only by a move of neighbouring lines. The lines must stop in any order, so use no `while`.

    Args:
        task: what the code should do; may contain `code` and *emphasis*.
        lines: the code, indented by multiples of 4 spaces, as one text or one text for each line; at least
            three lines, all different. Empty lines are left out.
        distractors: the faulty lines.
        name: name of the answer in the reader's browser; "" if it is not stored.
        orders: other correct orders, each with all line numbers, counted from 1.
        test: Python code that runs after the lines, in the same namespace, and raises if they are wrong; or a
            function that does the same with the lines as one text. The namespace contains `torch`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: there are fewer than three lines, two lines are the same, an indentation is not a multiple
            of 4, a faulty line replaces none of the lines, an order does not contain each line once, or the
            test does not prove what it should.

    Example:
        >>> code = ["def mean(x):", "    total = sum(x)", "    return total / len(x)"]
        >>> fault = Distractor("total = max(x)", "total = sum(x)", "The largest number is not the sum.")
        >>> LineOrder("Compute the mean.", code, [fault], test="assert mean([1, 2, 6]) == 3")
        LineOrder(3 lines, 1 distractor)
    """

    _module: ClassVar[str] = "line_order.js"
    _settings: ClassVar[tuple[str, ...]] = ("answer",)

    task = t.Unicode(read_only=True).tag(sync=True)
    name = t.Unicode(read_only=True).tag(sync=True)
    content = t.Dict(read_only=True).tag(sync=True)
    """The lines with their names, orders, faulty lines, shuffled indices and steps of help, as plain data."""

    answer = t.Dict().tag(sync=True)
    """The reader's work: `lines`, pairs of an index and an indentation, where indices after those of the
    correct lines mean faulty ones; `failed`, the failed checks; `helped`, the uses of help; `solved`."""

    def __init__(
        self,
        task: str,
        lines: str | Sequence[str],
        distractors: Sequence[Distractor] = (),
        *,
        name: str = "",
        orders: Sequence[Sequence[int]] = (),
        test: str | Callable[[str], object] | None = None,
    ) -> None:
        check_text("task", task)
        check_type("name", name, str)
        rows = _rows(lines)
        faults = _check_distractors(rows, distractors)
        accepted = _check_orders(len(rows), orders)
        _check_test(test)
        if test is not None:
            _prove(rows, accepted, faults, test)
        self.set_trait("task", task)
        self.set_trait("name", name)
        self.set_trait("content", _content(name, rows, accepted, faults))
        self._code = _source(rows)
        self.answer = {"lines": [], "failed": 0, "helped": 0, "solved": False}
        super().__init__()

    @property
    def code(self) -> str:
        """The solution, as one text."""
        return self._code

    @t.validate("answer")
    def _check_answer(self, proposal: t.Bunch) -> dict[str, Any]:
        value, content = proposal.value, self.content
        count = len(content["lines"]) + len(content["distractors"])
        if set(value) != {"lines", "failed", "helped", "solved"}:
            raise unfit("answer", "hold lines, failed, helped and solved", repr(value))
        lines, solved = value["lines"], value["solved"]
        counts = (value["failed"], value["helped"])
        if not isinstance(lines, (list, tuple)) or not isinstance(solved, bool):
            rule = "answer must hold a list of lines and a bool"
            raise TraitTypeError(f"{rule}, got {value!r}")
        pairs = [tuple(row) for row in lines if isinstance(row, (list, tuple))]
        whole = [*counts, *(number for pair in pairs for number in pair)]
        if len(pairs) < len(lines) or any(type(number) is not int for number in whole):
            raise TraitTypeError(f"answer must hold whole numbers, got {value!r}")
        fits = (
            all(len(pair) == 2 for pair in pairs)
            and all(0 <= i < count and 0 <= d <= content["deepest"] for i, d in pairs)
            and len({index for index, _ in pairs}) == len(pairs)
            and counts[0] >= 0
            and 0 <= counts[1] <= len(content["steps"])
        )
        if not fits:
            rule = f"hold different lines below {count}, indented by 0..{content['deepest']}, "
            rule += f"and at most {len(content['steps'])} steps of help"
            raise unfit("answer", rule, repr(value))
        return {**value, "lines": [list(pair) for pair in pairs]}

    @property
    def solved(self) -> bool:
        """Whether the reader's last check found every line correct."""
        return bool(self.answer["solved"])

    def fallback_html(self) -> str:
        """The lines in their shuffled order, and the solution, folded."""
        lines, faults = self.content["lines"], self.content["distractors"]
        texts = [line["text"] for line in [*lines, *faults]]
        shuffled = "".join(
            f"<li><code>{_escape(texts[index])}</code></li>"
            for index in self.content["shuffled"]
        )
        explained = "".join(
            f"<li><code>{_escape(fault['text'])}</code>: {_inline_html(fault['because'])}</li>"
            for fault in faults
        )
        return (
            f"<p>{_inline_html(self.task)}</p><ul>{shuffled}</ul><details><summary>Solution</summary>"
            f"<pre>{_escape(self.code)}</pre><ul>{explained}</ul></details>"
        )

    def __repr__(self) -> str:
        lines, faults = len(self.content["lines"]), len(self.content["distractors"])
        return f"LineOrder({lines} lines, {faults} distractor{'s' * (faults != 1)})"


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


def _rows(lines: str | Sequence[str]) -> list[_Row]:
    """The indentation and the text of each line; raise if they cannot be put in order."""
    if not isinstance(lines, str):
        check_type("lines", lines, Sequence)
        for index, line in enumerate(lines):
            check_type(f"lines[{index}]", line, str)
        lines = "\n".join(lines)
    rows = []
    for line in textwrap.dedent(lines).splitlines():
        text = line.strip()
        spaces = len(line) - len(line.lstrip(" "))
        if spaces % 4 or line[spaces : spaces + 1] == "\t":
            raise refusal("lines", "be indented by multiples of 4 spaces", repr(line))
        if text:
            rows.append((spaces // 4, text))
    texts = [text for _, text in rows]
    if len(rows) < 3:
        raise ValueError(f"lines must hold at least three lines, got {texts}")
    if len(set(texts)) < len(texts):
        raise ValueError(f"lines must all differ, got {texts}")
    return rows


def _check_distractors(
    rows: list[_Row], distractors: Sequence[Distractor]
) -> list[Distractor]:
    """Return the faulty lines; raise if one of them replaces no line or two lines are the same."""
    check_type("distractors", distractors, Sequence)
    texts = [text for _, text in rows]
    for index, fault in enumerate(distractors):
        check_type(f"distractors[{index}]", fault, Distractor)
        if fault.instead_of not in texts:
            got = f"instead_of={fault.instead_of!r}"
            raise refusal(f"distractors[{index}]", "replace one of the lines", got)
        if fault.text in texts:
            rule = "differ from all lines"
            raise refusal(f"distractors[{index}]", rule, repr(fault.text))
        texts.append(fault.text)
    return list(distractors)


def _check_orders(count: int, orders: Sequence[Sequence[int]]) -> list[list[int]]:
    """The accepted orders, as indices: that of the lines first, then the others."""
    check_type("orders", orders, Sequence)
    accepted = [list(range(count))]
    for index, order in enumerate(orders):
        check_type(f"orders[{index}]", order, Sequence)
        if sorted(order) != list(range(1, count + 1)):
            rule = f"hold each number from 1 to {count} once"
            raise refusal(f"orders[{index}]", rule, repr(order))
        if (indices := [number - 1 for number in order]) in accepted:
            rule = "all differ, also from that of the lines"
            raise refusal("orders", rule, f"{order!r} twice")
        accepted.append(indices)
    return accepted


def _check_test(test: object) -> None:
    if test is not None and not isinstance(test, str) and not callable(test):
        raise wrong_type("test", "a str or a function", test)


def _source(rows: Sequence[_Row]) -> str:
    """The code that consists of these lines."""
    return "".join(f"{'    ' * indent}{text}\n" for indent, text in rows)


def _failure(rows: Sequence[_Row], test: Test) -> Exception | None:
    """Run the lines and then the test; return the error that was raised, or None."""
    source = _source(rows)
    try:
        if callable(test):
            test(source)
            return None
        namespace = {"torch": torch, "__name__": "lines"}
        # The code is the author's own, from the cell that creates the widget.
        for part, name in ((source, "lines"), (test, "test")):
            exec(compile(part, f"<{name}>", "exec"), namespace)  # noqa: S102
    except Exception as error:
        return error
    return None


def _prove(
    rows: list[_Row],
    accepted: list[list[int]],
    distractors: list[Distractor],
    test: Test,
) -> None:
    """Raise unless the test passes where the page will say "right" and fails where it will not."""
    for order in accepted:
        numbers = tuple(index + 1 for index in order)
        if error := _failure([rows[index] for index in order], test):
            rule = f"pass the test in the order {numbers}"
            raise refusal("lines", rule, f"{type(error).__name__}: {error}") from error
    for fault in distractors:
        replaced = [
            (indent, fault.text if text == fault.instead_of else text)
            for indent, text in rows
        ]
        error = _failure(replaced, test)
        if error is None or isinstance(error, SyntaxError):
            what = "passes it" if error is None else "is no Python"
            what = f"{what} in place of {fault.instead_of!r}"
            raise ValueError(
                f"distractors must fail the test, but {fault.text!r} {what}"
            )
    for order in _rearranged(len(rows)):
        if order not in accepted and not _failure([rows[i] for i in order], test):
            numbers = tuple(index + 1 for index in order)
            rule = "orders must hold every order that passes the test"
            raise ValueError(f"{rule}, but {numbers} passes it too")
    for index, (indent, text) in enumerate(rows):
        for other in (indent - 1, indent + 1):
            moved = [*rows[:index], (other, text), *rows[index + 1 :]]
            # A block of one line may have any indentation and is still the same program.
            if other >= 0 and not _failure(moved, test) and not _same(moved, rows):
                rule = "lines must fail the test if indented otherwise"
                what = f"pass it with {text!r} indented by {other}"
                raise ValueError(f"{rule}, but {what}")


def _same(rows: Sequence[_Row], others: Sequence[_Row]) -> bool:
    """Whether the two are the same program to Python."""
    first, second = (ast.dump(ast.parse(_source(each))) for each in (rows, others))
    return first == second


def _rearranged(count: int) -> Iterator[list[int]]:
    """All orders that result from moving one or more neighbouring lines."""
    for first in range(count):
        for middle in range(first + 1, count):
            for last in range(middle + 1, count + 1):
                order = [*range(count)]
                order[first:last] = [*range(middle, last), *range(first, middle)]
                yield order


def _content(
    name: str,
    rows: list[_Row],
    accepted: list[list[int]],
    distractors: list[Distractor],
) -> dict[str, Any]:
    """The data that the page needs, in plain form."""
    texts = [text for _, text in rows]
    lines = [{"text": text, "indent": indent, **_names(text)} for indent, text in rows]
    faults = [
        {"text": one.text, "line": texts.index(one.instead_of), "because": one.because}
        for one in distractors
    ]
    steps: list[dict[str, Any]] = [
        {"kind": "remove", "line": len(rows) + index} for index in range(len(faults))
    ]
    if any(indent for indent, _ in rows):
        steps.append({"kind": "indent"})
    size = 1
    while -(-len(rows) // size) > 3 or size == 1:
        size *= 2
        steps.append({"kind": "join", "size": size})
    steps.append({"kind": "show"})
    all_texts = [*texts, *(fault.text for fault in distractors)]
    return {
        "lines": lines,
        "orders": accepted,
        "distractors": faults,
        "shuffled": _shuffled(name, all_texts, accepted),
        "steps": steps,
        "deepest": max(indent for indent, _ in rows) + 2,
    }


def _names(text: str) -> dict[str, list[str]]:
    """The names that a line of Python uses and those that it defines; none if it is incomplete on its own."""
    try:
        tree = ast.parse(f"{text} pass" if text.endswith(":") else text)
    except SyntaxError:
        return {"uses": [], "gives": []}
    uses: set[str] = set()
    gives: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (uses if isinstance(node.ctx, ast.Load) else gives).add(node.id)
        elif isinstance(node, ast.arg):
            gives.add(node.arg)
        elif isinstance(node, ast.FunctionDef):
            gives.add(node.name)
    return {"uses": sorted(uses), "gives": sorted(gives)}


def _shuffled(name: str, texts: list[str], accepted: list[list[int]]) -> list[int]:
    """All indices in an order that depends only on the name and the texts, and is never a correct one."""
    count = len(accepted[0])
    for salt in range(1000):
        digest = lambda index: hashlib.sha256(  # noqa: E731
            f"{name}/{salt}/{texts[index]}".encode()  # noqa: B023, called at once
        ).digest()
        order = sorted(range(len(texts)), key=digest)
        if [index for index in order if index < count] not in accepted:
            return order
    rule = "leave an order that is wrong"
    raise refusal("orders", rule, f"{len(accepted)} accepted ones")
