"""Lines to put in order: the puzzles against the library in Python, and what a reader does in a browser."""

import itertools
import random
import re
import textwrap

import pytest
import torch
from playwright.sync_api import expect
from test_every_widget import too_wide
from widget_page import finger

from mha_course.widgets import Distractor, LineOrder
from mha_course.widgets.puzzles import PUZZLES, puzzle

MATH = "line_order/order_math.js"
MEAN = ["def mean(x):", "    total = sum(x)", "    count = len(x)", "    return total / count"]
CHECK_MEAN = "assert mean([1, 2, 6]) == 3"
SWAPPED = (1, 3, 2, 4)
LARGEST = Distractor("total = max(x)", "total = sum(x)", "The largest number is not the sum.")
every_puzzle = pytest.mark.parametrize("name", PUZZLES)


def rows_of(name):
    """The lines of a puzzle, as pairs of indentation and text: read from the data, without the widget."""
    lines = textwrap.dedent(PUZZLES[name]["lines"]).strip().splitlines()
    return [((len(line) - len(line.lstrip())) // 4, line.strip()) for line in lines]


def code_of(rows):
    return "\n".join("    " * depth + text for depth, text in rows)


def passes(code, test):
    """Whether Python runs the code and then the test."""
    try:
        exec(f"{code}\n{test}", {"torch": torch})  # noqa: S102
    except Exception:
        return False
    return True


# The puzzles


def test_the_puzzles_are_those_of_the_course():
    assert len(PUZZLES) == 8
    for name in PUZZLES:
        assert 5 <= len(rows_of(name)) <= 9
        assert 2 <= len(PUZZLES[name]["distractors"]) <= 4
        assert set(PUZZLES[name]) <= {"task", "lines", "distractors", "orders", "test"}
        reasons = [fault.because for fault in PUZZLES[name]["distractors"]]
        assert len(set(reasons)) == len(reasons)
    assert repr(puzzle("cut into heads")) == "LineOrder(5 lines, 3 distractors)"


@every_puzzle
def test_python_accepts_the_declared_orders_and_no_other(name):
    rows, test = rows_of(name), PUZZLES[name]["test"]
    count = len(rows)
    accepted = {tuple(range(1, count + 1)), *map(tuple, PUZZLES[name].get("orders", ()))}
    assert all(passes(code_of(rows[i - 1] for i in order), test) for order in accepted)
    draw = random.Random(0)
    tried = {tuple(draw.sample(range(2, count + 1), count - 1)) for _ in range(200)}
    # Few random orders are nearly correct, but these are: they are two steps away from an accepted one.
    for order in accepted:
        for _ in range(20):
            near = list(order)
            for _ in range(2):
                near.insert(draw.randrange(count), near.pop(draw.randrange(count)))
            tried.add(tuple(near[1:]) if near[0] == 1 else ())
    for rest in tried - {()}:
        order = (1, *rest)
        assert passes(code_of(rows[i - 1] for i in order), test) == (order in accepted), order


# What the class rejects


def mean(**changes):
    arguments = {
        "task": "Compute the mean.", "lines": MEAN, "distractors": [LARGEST], "orders": [SWAPPED],
        "test": CHECK_MEAN,
    }  # fmt: skip
    return LineOrder(**{**arguments, **changes})


@pytest.mark.parametrize(("changes", "error", "rule"), [
    ({"task": 5}, TypeError, "task must be a str, got int: 5"),
    ({"task": " "}, ValueError, "task must not be empty, got ' '"),
    ({"name": None}, TypeError, "name must be a str, got NoneType: None"),
    ({"lines": 5}, TypeError, "lines must be a Sequence, got int: 5"),
    ({"lines": [*MEAN, 5]}, TypeError, r"lines\[4\] must be a str, got int: 5"),
    ({"lines": MEAN[:2]}, ValueError, "lines must hold at least three lines, got .*'total = sum"),
    ({"lines": [*MEAN, MEAN[1]]}, ValueError, "lines must all differ, got"),
    ({"lines": ["a = 1", "b = 2", "  c = 3"]}, ValueError,
     "lines must be indented by multiples of 4 spaces, got '  c = 3'"),
    ({"lines": "if a:\n\tb = 1\nc = 2"}, ValueError, r".*by multiples of 4 spaces, got '\\tb = 1'"),
    ({"distractors": 5}, TypeError, "distractors must be a Sequence, got int: 5"),
    ({"distractors": ["total = 0"]}, TypeError, r"distractors\[0\] must be a Distractor, got str"),
    ({"distractors": [Distractor("a = 1", "b = 2", "No.")]}, ValueError,
     r"distractors\[0\] must replace one of the lines, got instead_of='b = 2'"),
    ({"distractors": [Distractor("count = len(x)", "total = sum(x)", "No.")]}, ValueError,
     r"distractors\[0\] must differ from all lines, got 'count = len\(x\)'"),
    ({"distractors": [LARGEST, LARGEST]}, ValueError, r"distractors\[1\] must differ from all lines"),
    ({"orders": 5}, TypeError, "orders must be a Sequence, got int: 5"),
    ({"orders": [5]}, TypeError, r"orders\[0\] must be a Sequence, got int: 5"),
    ({"orders": [(0, 1, 2, 3)]}, ValueError,
     r"orders\[0\] must hold each number from 1 to 4 once, got \(0, 1, 2, 3\)"),
    ({"orders": [(1, 2, 2, 4)]}, ValueError, r"orders\[0\] must hold .* once, got \(1, 2, 2, 4\)"),
    ({"orders": [(1, 2, 3, 4)]}, ValueError, r"orders must all differ.*got \(1, 2, 3, 4\) twice"),
    ({"orders": [SWAPPED, SWAPPED]}, ValueError, "orders must all differ"),
    ({"test": 5}, TypeError, "test must be a str or a function, got int: 5"),
])  # fmt: skip
def test_a_puzzle_that_cannot_be_asked_is_refused(changes, error, rule):
    with pytest.raises(error, match=f"^{rule}"):
        mean(**changes)


@pytest.mark.parametrize(("changes", "rule"), [
    ({"test": "assert mean([1, 2, 6]) == 4"},
     r"lines must pass the test in the order \(1, 2, 3, 4\), got AssertionError"),
    ({"orders": [SWAPPED, (1, 4, 2, 3)]}, r"in the order \(1, 4, 2, 3\), got UnboundLocalError"),
    ({"orders": []}, r"orders must hold every order that passes the test, but \(1, 3, 2, 4\) passes it too"),
    ({"distractors": [Distractor("total = sum(list(x))", "total = sum(x)", "It is the same.")]},
     r"distractors must fail .*'total = sum\(list\(x\)\)' passes it in place of 'total = sum\(x\)'"),
    ({"distractors": [Distractor("total = sum(x", "total = sum(x)", "A bracket is missing.")]},
     r"distractors must fail the test, but 'total = sum\(x' is no Python"),
    ({"lines": "def total(x):\n    s = 0\n    for y in x:\n        s += y\n        t = s\n    return t",
      "distractors": [], "orders": [], "test": "assert total([1, 2, 6]) == 9"},
     "lines must fail the test if indented otherwise, but pass it with 't = s' indented by 1"),
])  # fmt: skip
def test_a_puzzle_that_would_tell_an_untruth_is_refused(changes, rule):
    with pytest.raises(ValueError, match=rule):
        mean(**changes)


def test_a_test_may_be_a_function_of_the_code():
    seen = []

    def run(code):
        seen.append(code)
        assert passes(code, CHECK_MEAN)

    assert mean(test=run).code == seen[0] == "\n".join(MEAN) + "\n"
    assert len(seen) > 10
    with pytest.raises(ValueError, match="distractors must fail the test"):
        mean(test=lambda code: None)


@pytest.mark.parametrize("name", ["text", "instead_of", "because"])
def test_a_distractor_is_three_texts(name):
    arguments = {"text": "a", "instead_of": "b", "because": "No."}
    for value, error in ((5, TypeError), ("", ValueError), ("a\nb", ValueError)):
        with pytest.raises(error, match=f"{name} must be .*{re.escape(repr(value))}"):
            Distractor(**{**arguments, name: value})
    with pytest.raises(ValueError, match="text must differ from the line that it replaces, got 'b'"):
        Distractor(" b", "b ", "No.")


def test_a_puzzle_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="name must be one of masked softmax, .*got 'mask'"):
        puzzle("mask")
    with pytest.raises((TypeError, ValueError), match="name must be .*5"):
        puzzle(5)


def test_lines_are_shuffled_by_name_and_never_right():
    lines = ["a = 1", "b = a", "c = b"]
    seen = set()
    for number in range(60):
        widget = LineOrder("?", lines, name=f"name {number}")
        order = tuple(widget.content["shuffled"])
        assert order == tuple(LineOrder("?", lines, name=f"name {number}").content["shuffled"])
        assert sorted(order) == [0, 1, 2] and order != (0, 1, 2)
        seen.add(order)
    assert len(seen) == 5, "every wrong order is met"
    others = list(itertools.permutations((1, 2, 3)))[1:]
    with pytest.raises(ValueError, match="orders must leave an order that is wrong, got 6 accepted ones"):
        LineOrder("?", ["a = 1", "b = 1", "c = 1"], orders=others)


START = {"lines": [], "failed": 0, "helped": 0, "solved": False}


@pytest.mark.parametrize(("changes", "error"), [
    ({"lines": [[5, 0]]}, ValueError), ({"lines": [[0, 0], [0, 1]]}, ValueError),
    ({"lines": [[0, 4]]}, ValueError), ({"lines": [[0, -1]]}, ValueError),
    ({"lines": [[0]]}, ValueError), ({"lines": [[0, 1.0]]}, TypeError), ({"lines": [0]}, TypeError),
    ({"lines": None}, TypeError), ({"failed": -1}, ValueError), ({"failed": True}, TypeError),
    ({"helped": 5}, ValueError), ({"helped": "1"}, TypeError), ({"solved": 1}, TypeError),
    ({"more": 1}, ValueError),
])  # fmt: skip
def test_python_refuses_an_answer_that_cannot_be(changes, error):
    widget = mean()
    assert len(widget.content["steps"]) == 4
    with pytest.raises(error, match="^answer must hold "):
        widget.answer = {**START, **changes}
    assert widget.answer == START
    assert not widget.solved
    widget.answer = {"lines": [[4, 3], [0, 0]], "failed": 7, "helped": 4, "solved": True}
    assert widget.solved


def test_a_puzzle_can_be_read_without_scripts():
    widget = mean(task="The `mean` of <x>.", distractors=[Distractor("a < b", "total = sum(x)", "Not *so*.")])
    data, _ = widget._repr_mimebundle_()
    assert data["text/plain"] == "LineOrder(4 lines, 1 distractor)"
    html = data["text/html"]
    assert html.startswith("<p>The <code>mean</code> of &lt;x&gt;.</p><ul><li><code>")
    texts = re.findall(r"<li><code>([^<]*)</code></li>", html)
    assert sorted(texts) == sorted([*(line.strip() for line in MEAN), "a &lt; b"])
    assert [text for text in texts if text != "a &lt; b"] != [line.strip() for line in MEAN]
    assert "<details><summary>Solution</summary><pre>def mean(x):\n    total = sum(x)\n" in html
    assert "<li><code>a &lt; b</code>: Not <em>so</em>.</li>" in html


# The verdict of a check, compared with a slow search over all accepted orders


JUDGE = """async ([content, answers]) => {
  const { judge } = await import("/line_order/order_math.js");
  return answers.map((lines) => judge(content, { lines, failed: 0, helped: 0, solved: false }));
}"""


@every_puzzle
def test_a_check_finds_the_first_line_that_stands_wrong(math_page, name):
    """The place is the first at which no accepted order goes on like this, with this indentation."""
    rows, draw = rows_of(name), random.Random(1)
    count, faults = len(rows), PUZZLES[name]["distractors"]
    accepted = [list(range(count))] + [[i - 1 for i in order] for order in PUZZLES[name].get("orders", ())]
    answers = [[[i, rows[i][0]] for i in order] for order in accepted]
    for _ in range(300):
        lines = [list(pair) for pair in draw.choice(answers[: len(accepted)])]
        kind = draw.randrange(4)
        if kind == 0:
            lines.insert(draw.randrange(count), lines.pop(draw.randrange(count)))
        elif kind == 1:
            lines[draw.randrange(count)][1] = draw.randrange(3)
        elif kind == 2:
            lines[draw.randrange(count)] = [count + draw.randrange(len(faults)), 1]
        else:
            del lines[draw.randrange(count)]
        answers.append(lines)

    def first_wrong(lines):
        for place, (index, depth) in enumerate(lines):
            before = [i for i, _ in lines[: place + 1]]
            if not any(order[: place + 1] == before for order in accepted) or depth != rows[index][0]:
                return place
        return -1

    verdicts = math_page.evaluate(JUDGE, [puzzle(name).content, answers])
    assert sum(verdict["isRight"] for verdict in verdicts) >= len(accepted)
    for lines, verdict in zip(answers, verdicts, strict=True):
        place = first_wrong(lines)
        assert verdict["place"] == place, lines
        assert verdict["isRight"] == (place == -1 and len(lines) == count)
        if place == -1:
            continue
        index, depth = lines[place]
        assert verdict["text"].startswith(f"Line {place + 1}, `")
        if index >= count:
            fault = faults[index - count]
            assert verdict["text"].endswith(f"`{fault.text}`, has a fault. {fault.because}")
        elif "uses `" in verdict["text"]:
            missing = re.search(r"uses `(\w+)`, which no line above it defines\.", verdict["text"])[1]
            assert re.search(rf"\b{missing}\b", rows[index][1])
            defines = rf"(def .*)?[\w, \[\]:]*\b{missing}\b.*(=|:$)"
            assert not any(re.match(defines, rows[i][1]) for i, _ in lines[:place])
        elif "too early" in verdict["text"]:
            needed = re.search(r"`([^`]*)` belongs above it\.", verdict["text"])[1]
            assert needed in [text for _, text in rows]
            assert needed not in [rows[i][1] for i, _ in lines[: place + 1]]
        else:
            right = rows[index][0]
            assert ("must be indented further" in verdict["text"]) == (depth < right)
            assert ("is indented too far" in verdict["text"]) == (depth > right > 0)
            assert ("must not be indented" in verdict["text"]) == (depth > right == 0)


# In the page: what is visible


class Board:
    """A puzzle in a tab, as a reader sees and uses it."""

    def __init__(self, host):
        self.page, self.host = host.page, host
        self.feedback, self.ending = self.host.locator(".mha-feedback"), self.host.locator(".mha-ending")
        self.status = self.host.get_by_role("status")

    def button(self, name):
        return self.host.get_by_role("button", name=name, exact=True)

    def line(self, text):
        return self.host.locator(".mha-line").filter(has=self.page.get_by_text(text, exact=True))

    def rows(self, title="Your solution"):
        """What a list shows from top to bottom: how far each line is indented, in steps, and its text."""
        lines = (
            self.host.get_by_role("list", name=title, exact=True)
            .locator(".mha-text")
            .evaluate_all(
                """nodes => nodes.map((node) => {
              const range = document.createRange();
              range.selectNodeContents(node);
              const { left, top } = range.getClientRects()[0];
              return { left: left - node.getBoundingClientRect().left, top, text: node.innerText };
            })"""
            )
        )
        assert [line["top"] for line in lines] == sorted(line["top"] for line in lines)
        wide = self.host.evaluate("node => node.clientWidth > 480")
        steps = [line["left"] / (31 if wide else 16) for line in lines]
        assert all(abs(step - round(step)) < 0.1 for step in steps), steps
        return [(round(step), line["text"]) for step, line in zip(steps, lines, strict=True)]

    def add(self, text, depth):
        """With the buttons, at the end of the solution."""
        self.line(text).click()
        self.button("Add to the solution").click()
        for _ in range(9):
            [seen] = [step for step, own in self.rows() if own == text]
            if seen == depth:
                break
            self.button("Indent less" if seen > depth else "Indent more").click()
        self.line(text).click()
        expect(self.line(text)).to_have_attribute("aria-pressed", "false")

    def check(self):
        self.button("Check").click()
        return self.feedback.inner_text()


@pytest.fixture
def board(show):
    return lambda widget, **options: Board(show(widget, **options))


def plain(text):
    return text.replace("`", "")


@every_puzzle
def test_every_puzzle_is_solved_by_keyboard_alone(board, name):
    """From disk; the keys that a reader presses depend only on what is on the page."""
    seen = board(puzzle(name))
    page, press = seen.page, seen.page.keyboard.press
    rows, faults = rows_of(name), PUZZLES[name]["distractors"]
    texts = [text for _, text in rows] + [fault.text for fault in faults]
    assert sorted(text for _, text in seen.rows("Lines")) == sorted(texts)
    assert seen.rows() == []
    focused = lambda: page.evaluate("document.activeElement.querySelector('.mha-text')?.innerText")  # noqa: E731
    press("Tab")
    for number, (depth, text) in enumerate(rows, start=1):
        for key in ["ArrowUp"] * 20 + ["ArrowDown"] * 20:
            if focused() == text:
                break
            press(key)
        assert focused() == text
        press("Space")
        press("ArrowRight")
        assert seen.rows()[-1][1] == text
        for _ in range(5):
            step = seen.rows()[-1][0]
            if step == depth:
                break
            press("ArrowLeft" if step > depth else "ArrowRight")
        words = ["not indented", "indented once", "indented twice"][depth]
        assert focused() == text, "the focus goes with the line"
        expect(seen.line(text)).to_have_accessible_name(f"Line {number} of {number}, {words}: {text}")
        press("Escape")
    assert seen.rows() == rows
    for _ in range(20):
        press("Tab")
        if page.evaluate("document.activeElement.innerText") == "Check":
            break
    expect(seen.ending).to_be_hidden()
    press("Enter")
    expect(seen.ending).to_contain_text("Right: every line is in its place.")
    for fault in faults:
        expect(seen.ending).to_contain_text(f"{fault.text}: {plain(fault.because)}")
    code = seen.ending.locator("pre").inner_text()
    assert code.strip() == code_of(rows)
    assert passes(code, PUZZLES[name]["test"]), "what can be copied runs"


def test_a_check_never_says_only_that_it_is_wrong(board):
    seen = board(mean())
    assert seen.check() == "The solution is empty: put lines into it first."
    assert "so far 0" in seen.host.inner_text(), "an empty solution is no failed check"
    seen.add("return total / count", 0)
    assert seen.check() == "Line 1, return total / count, uses count, which no line above it defines."
    expect(seen.line("return total / count").locator(".mha-grip")).to_have_text("✗")
    seen.line("def mean(x):").click()
    seen.button("Add to the solution").click()
    assert seen.feedback.inner_text() == "", "what a check found is about the lines as they were"
    expect(seen.line("return total / count").locator(".mha-grip")).to_have_text("⠿")
    seen.button("Move up").click()
    seen.line("def mean(x):").click()
    seen.add("count = len(x)", 0)
    seen.line("return total / count").click()
    seen.button("Move down").click()
    seen.line("return total / count").click()
    assert seen.rows() == [(0, "def mean(x):"), (0, "count = len(x)"), (0, "return total / count")]
    assert seen.check() == "Line 2, count = len(x), must be indented further: it belongs inside def mean(x):."
    seen.line("count = len(x)").click()
    seen.button("Indent more").click()
    seen.button("Indent more").click()
    assert (
        seen.check()
        == "Line 2, count = len(x), is indented too far: it belongs directly inside def mean(x):. "
        "You can ask for help now."
    )
    seen.button("Indent less").click()
    assert seen.check() == "Line 3, return total / count, uses total, which no line above it defines."
    seen.line("return total / count").click()
    seen.button("Remove from the solution").click()
    assert seen.check() == "What is there is right so far, but 2 lines are still missing."
    seen.line("def mean(x):").click()
    seen.button("Indent more").click()
    assert seen.check() == "Line 1, def mean(x):, must not be indented, because it is part of no block."
    seen.button("Indent less").click()
    seen.add("total = sum(x)", 1)
    seen.add("return total / count", 1)
    seen.button("Check").click()
    expect(seen.ending).to_contain_text("Right")
    assert seen.feedback.inner_text() == ""
    seen.line("return total / count").click()
    seen.button("Move up").click()
    expect(seen.ending).to_be_hidden()


def test_the_order_alone_can_be_wrong_without_a_name_that_is_missing(board):
    seen = board(LineOrder("Print.", ["print(1)", "print(2)", "print(3)"]))
    for text in ("print(1)", "print(3)", "print(2)"):
        seen.add(text, 0)
    assert seen.check() == "Line 2, print(3), comes too early: print(2) belongs above it."


def test_texts_are_never_read_as_html(board):
    wicked = "<img src=x onerror=alert(1)>"
    lines = ["a = '<b>1</b>'", f"b = '{wicked}'", "c = '<script>alert(1)</script>'"]
    fault = Distractor("d = '<i>'", lines[0], f"Because {wicked} is wrong.")
    seen = board(LineOrder(f"Order {wicked}.", lines, [fault]))
    assert f"Order {wicked}." in seen.host.inner_text()
    assert {text for _, text in seen.rows("Lines")} == {*lines, fault.text}
    seen.add(fault.text, 0)
    assert f"Because {wicked} is wrong." in seen.check()
    seen.button("Start again").click()
    for text in lines:
        seen.add(text, 0)
    seen.button("Check").click()
    assert f"Because {wicked} is wrong." in seen.ending.inner_text()
    assert seen.host.locator("b, img, i, script").count() == 0


# Help


def test_help_grows_after_three_failed_checks(board):
    """It takes faulty lines away one by one, indents, joins, and at last shows the solution."""
    seen = board(LineOrder(**PUZZLES["masked softmax"]))
    rows, faults = rows_of("masked softmax"), PUZZLES["masked softmax"]["distractors"]
    help_, did = seen.button("Help"), seen.host.get_by_role("list", name="What help did")
    seen.add(faults[0].text, 0)
    seen.add(rows[4][1], 0)
    for failed in range(3):
        expect(help_).to_have_attribute("aria-disabled", "true")
        assert f"Help comes after 3 failed checks; so far {failed}." in seen.host.inner_text()
        help_.click(force=True)
        expect(did).to_be_hidden()
        assert len(seen.rows("Lines")) == 9
        seen.check()
    expect(help_).to_have_attribute("aria-disabled", "false")
    assert "8 steps of help left." in seen.host.inner_text()

    for number, fault in enumerate(faults):
        help_.click()
        told = f"Help took away {fault.text}. {plain(fault.because)}"
        assert did.locator("li").nth(number).inner_text() == told
        texts = [text for _, text in seen.rows("Lines") + seen.rows()]
        assert sorted(texts) == sorted([f.text for f in faults[number + 1 :]] + [text for _, text in rows])
        expect(seen.status).to_have_text(told)
    assert {depth for depth, _ in seen.rows("Lines") + seen.rows()} == {0}

    help_.click()
    assert "Help set the indentation" in did.inner_text()
    assert sorted(seen.rows("Lines") + seen.rows()) == sorted(rows)
    assert seen.rows() == [rows[4]]
    seen.line(rows[4][1]).click()
    seen.button("Indent more").click()
    assert seen.rows() == [rows[4]], "and it stays"
    assert "Help has set the indentation." in seen.host.inner_text()

    help_.click()
    assert "Help joined lines into blocks of 2" in did.inner_text()
    assert seen.rows() == rows[4:6], "line 5 has brought line 6 with it"
    expect(seen.host.locator(".mha-line")).to_have_count(4)
    help_.click()
    expect(seen.host.locator(".mha-line")).to_have_count(2)
    assert seen.rows() == rows[4:]
    seen.line(rows[0][1]).click()
    seen.button("Add to the solution").click()
    assert seen.rows() == rows[4:] + rows[:4]
    expect(seen.line(rows[0][1])).to_have_accessible_name(
        re.compile("^Block of 4 lines, lines 4 to 7 of 7, not indented: def my_masked_softmax")
    )
    seen.line(rows[0][1]).click()
    help_.click()
    assert seen.rows() == rows
    assert seen.rows("Lines") == []
    expect(seen.ending).to_contain_text("The solution")
    assert seen.ending.locator("pre").inner_text().strip() == code_of(rows)
    expect(help_).to_have_attribute("aria-disabled", "true")
    assert did.locator("li").count() == 8
    seen.button("Check").click()
    assert "Right" not in seen.host.inner_text(), "help has found it, not the reader"

    seen.button("Start again").click()
    assert seen.rows() == []
    assert len(seen.rows("Lines")) == 11
    expect(did).to_be_hidden()
    expect(seen.ending).to_be_hidden()
    assert "so far 0." in seen.host.inner_text()


def test_blocks_of_help_lead_to_the_end(board):
    """With help up to the blocks, the reader still finds the order."""
    seen = board(LineOrder(**PUZZLES["rotary"]))
    rows = rows_of("rotary")
    seen.add(rows[8][1], 0)
    for _ in range(3):
        seen.check()
    for _ in range(7):
        seen.button("Help").click()
    expect(seen.host.locator(".mha-line")).to_have_count(3)
    for text in (rows[4][1], rows[0][1]):
        seen.line(text).click()
        seen.button("Add to the solution").click()
    for _ in range(2):
        seen.button("Move up").click()
    seen.line(rows[8][1]).click()
    seen.button("Move down").click()
    assert seen.rows() == rows
    seen.button("Check").click()
    expect(seen.ending).to_contain_text("Right: every line is in its place, after 7 steps of help.")


# Pointers


def middle(box):
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_mouse_drags_lines_in_out_and_sideways(board):
    seen = board(mean(), width=1100)
    page, mouse = seen.page, seen.page.mouse

    def drag(text, x, y, *, drop=True):
        box = seen.line(text).bounding_box()
        mouse.move(*middle(box))
        mouse.down()
        mouse.move(*(middle(box)[0] + 9, middle(box)[1]))
        mouse.move(x, y, steps=4)
        if drop:
            mouse.up()

    def over(text, part):
        """A place on the row of a line: above its middle or below."""
        box = seen.line(text).bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + part * box["height"]

    solution = seen.host.get_by_role("list", name="Your solution")
    drag("return total / count", *middle(solution.bounding_box()))
    assert seen.rows() == [(0, "return total / count")]
    drag("def mean(x):", *over("return total / count", 0.2))
    assert seen.rows() == [(0, "def mean(x):"), (0, "return total / count")]
    drag("count = len(x)", *over("return total / count", 0.2))
    assert seen.rows()[1] == (1, "count = len(x)"), "indented as in an editor, after the colon"
    drag("total = sum(x)", *over("count = len(x)", 0.8))
    order = [text for _, text in seen.rows()]
    assert order == ["def mean(x):", "count = len(x)", "total = sum(x)", "return total / count"]
    box = seen.line("return total / count").bounding_box()
    drag("return total / count", middle(box)[0] + 33, middle(box)[1])
    assert seen.rows()[3] == (1, "return total / count")
    drag("total = sum(x)", *over("def mean(x):", 0.2), drop=False)
    expect(solution.locator(".mha-drop")).to_have_count(1)
    page.keyboard.press("Escape")
    mouse.up()
    assert seen.rows()[2] == (1, "total = sum(x)"), "Escape gives the drag up"
    expect(solution.locator(".mha-drop, .mha-drop-end")).to_have_count(0)
    drag("total = sum(x)", *over("count = len(x)", 0.2))
    assert [text for _, text in seen.rows()][1:3] == ["total = sum(x)", "count = len(x)"]
    seen.button("Check").click()
    expect(seen.ending).to_contain_text("Right")
    drag("count = len(x)", *middle(seen.host.get_by_role("list", name="Lines", exact=True).bounding_box()))
    assert len(seen.rows()) == 3
    assert (0, "count = len(x)") in seen.rows("Lines")
    expect(seen.ending).to_be_hidden()
    expect(seen.host.locator(".mha-line[aria-pressed=true]")).to_have_count(0)


# The position to which a page scrolls from another one, after resting there for thirty frames; the same if
# it does not move for a thousand.
UNTIL_AT_REST = """(from) => new Promise((resolve) => {
  let [before, frames] = [from, 0];
  const look = () => {
    frames = scrollY === before ? frames + 1 : 0;
    before = scrollY;
    if (frames < (scrollY === from ? 1000 : 30)) requestAnimationFrame(look);
    else resolve(scrollY);
  };
  look();
})"""


@pytest.mark.parametrize("width", [320, 360])
def test_a_finger_drags_by_the_handle_scrolls_elsewhere_and_taps(board, width):
    seen = board(mean(), width=width)
    page = seen.page
    page.add_style_tag(content="body { padding-block: 900px }")
    touch = finger(page)
    solution = seen.host.get_by_role("list", name="Your solution")

    def move(start, end, steps=6):
        touch("touchStart", *start)
        for part in range(1, steps + 1):
            touch("touchMove", *(a + (b - a) * part / steps for a, b in zip(start, end, strict=True)))
        touch("touchEnd")

    solution.evaluate("node => node.scrollIntoView({ block: 'end' })")
    scrolled = page.evaluate("scrollY")
    grip = seen.line("def mean(x):").locator(".mha-grip")
    assert min(grip.bounding_box()["width"], grip.bounding_box()["height"]) >= 24
    move(middle(grip.bounding_box()), middle(solution.bounding_box()))
    assert seen.rows() == [(0, "def mean(x):")]
    assert page.evaluate("scrollY") == scrolled, "the page stays"

    # A finger on the text of a line scrolls the page and does not move the line.
    x, y = middle(seen.line("total = sum(x)").locator(".mha-text").bounding_box())
    move((x, y), (x, y - 200))
    # A page that is still gliding would take the next touch as a signal to stop.
    assert page.evaluate(UNTIL_AT_REST, scrolled) > scrolled + 50
    assert seen.rows() == [(0, "def mean(x):")]

    line = seen.line("total = sum(x)")
    line.scroll_into_view_if_needed()
    move(middle(line.bounding_box()), middle(line.bounding_box()), steps=1)
    expect(line).to_have_attribute("aria-pressed", "true")
    move(*[middle(seen.button("Add to the solution").bounding_box())] * 2, steps=1)
    expect(line).to_have_accessible_name("Line 2 of 2, indented once: total = sum(x)")
    assert seen.rows() == [(0, "def mean(x):"), (1, "total = sum(x)")]


# What is kept


def test_a_reload_keeps_the_lines_the_help_and_the_end(board):
    name = "merge the heads"
    seen = board(puzzle(name))
    rows = rows_of(name)
    seen.add(rows[1][1], 2)
    for _ in range(3):
        seen.check()
    seen.button("Help").click()

    def reload():
        seen.page.reload()
        expect(seen.page.locator("[data-widget=ready]")).to_have_count(1)

    reload()
    assert seen.rows() == [(2, rows[1][1])]
    assert len(seen.rows("Lines")) == 6, "help has taken one line away"
    assert "5 steps of help left." in seen.host.inner_text()
    seen.line(rows[1][1]).click()
    seen.button("Remove from the solution").click()
    for depth, text in rows:
        if text == rows[1][1]:
            seen.line(text).click()
            seen.line(text).click()
        seen.add(text, depth)
    seen.button("Check").click()
    expect(seen.ending).to_contain_text("Right")
    reload()
    expect(seen.ending).to_contain_text("Right: every line is in its place, after 1 step of help.")
    assert seen.rows() == rows
    seen.button("Start again").click()
    reload()
    assert seen.rows() == []
    expect(seen.ending).to_be_hidden()


# Readers who cannot see it or its colours; small screens; paper


def test_what_happens_is_announced(board):
    seen = board(mean())
    press = seen.page.keyboard.press
    line = seen.line("total = sum(x)")
    place = [text for _, text in seen.rows("Lines")].index("total = sum(x)") + 1
    expect(line).to_have_accessible_name(f"Not used, {place} of 5: total = sum(x)")
    line.focus()
    press("Space")
    told = (
        f"Picked up total = sum(x), not used, {place} of 5. → puts it into the solution, Escape puts it down."
    )
    expect(seen.status).to_have_text(told)
    expect(line).to_have_attribute("aria-pressed", "true")
    press("ArrowUp")
    expect(seen.status).to_have_text("Add puts the line into the solution, and so does →.")
    press("ArrowDown")
    expect(seen.status).to_have_text("total = sum(x) is line 1 of 1, not indented.")
    press("ArrowUp")
    expect(seen.status).to_have_text("total = sum(x) is already the first line.")
    press("ArrowLeft")
    told = "total = sum(x) is at the margin. Remove, or the Delete key, takes it out."
    expect(seen.status).to_have_text(told)
    for words in ("once", "twice", "3 times"):
        press("ArrowRight")
        expect(seen.status).to_have_text(f"total = sum(x) is line 1 of 1, indented {words}.")
    press("ArrowRight")
    expect(seen.status).to_have_text("total = sum(x) cannot be indented further.")
    press("Enter")
    expect(seen.status).to_have_text("Put down total = sum(x), line 1 of 1, indented 3 times.")
    expect(line).to_have_attribute("aria-pressed", "false")
    press("ArrowRight")
    assert seen.rows() == [(3, "total = sum(x)")], "a line that is not picked up stays"
    press("Enter")
    press("Delete")
    expect(seen.status).to_have_text(f"total = sum(x) is not used, {place} of 5.")
    press("Escape")
    seen.button("Move up").click(force=True)
    expect(seen.status).to_have_text("Pick a line first: click it, or press Space on it.")
    seen.add("def mean(x):", 0)
    seen.button("Check").click()
    expect(seen.status).to_have_text("What is there is right so far, but 3 lines are still missing.")
    lists = seen.host.get_by_role("list")
    assert [lists.nth(i).get_attribute("aria-label") for i in range(2)] == ["Lines", "Your solution"]
    expect(seen.host.get_by_role("listitem").filter(has_text="def mean(x):")).to_have_count(1)


@every_puzzle
def test_it_fits_a_small_phone_and_fingers(board, name):
    seen = board(LineOrder(**PUZZLES[name]), width=320)
    for depth, text in rows_of(name):
        seen.add(text, depth)
    assert too_wide(seen.page) == []
    seen.button("Check").click()
    expect(seen.ending).to_contain_text("Right")
    for width in (360, 320):
        seen.page.set_viewport_size({"width": width, "height": 800})
        assert too_wide(seen.page) == []
    for button in seen.host.get_by_role("button").all():
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 24
    # No text is cut off: each line shows all its letters inside its row.
    cut = seen.host.locator(".mha-text").evaluate_all(
        """nodes => nodes.filter((node) => {
          const range = document.createRange();
          range.selectNodeContents(node);
          const row = node.closest(".mha-line").getBoundingClientRect();
          return [...range.getClientRects()].some(
            ({ left, right, bottom }) => right > row.right || left < row.left || bottom > row.bottom
          );
        }).map((node) => node.innerText)"""
    )
    assert cut == []


def test_a_picked_line_and_a_wrong_one_are_seen_without_colours(board):
    seen = board(mean())
    seen.page.emulate_media(forced_colors="active", reduced_motion="reduce")
    seen.add("total = sum(x)", 0)
    line, grip = seen.line("total = sum(x)"), seen.line("total = sum(x)").locator(".mha-grip")
    looks = [line.screenshot()]
    assert grip.inner_text() == "⠿"
    line.click()
    seen.page.mouse.move(0, 0)
    assert grip.inner_text() == "✥"
    expect(line).to_have_css("border-top-style", "double")
    looks.append(line.screenshot())
    line.click()
    seen.check()
    seen.page.mouse.move(0, 0)
    assert grip.inner_text() == "✗"
    looks.append(line.screenshot())
    assert len(set(looks)) == 3


def test_the_reader_s_lines_are_printed(board):
    seen = board(mean(), stills=True)
    seen.add("def mean(x):", 0)
    seen.add("total = max(x)", 1)
    seen.check()
    seen.page.emulate_media(media="print")
    assert seen.rows() == [(0, "def mean(x):"), (1, "total = max(x)")]
    expect(seen.feedback).to_be_visible()
    expect(seen.button("Check")).to_be_hidden()
    expect(seen.button("Start again")).to_be_hidden()
    expect(seen.button("Add to the solution")).to_be_hidden()
    expect(seen.page.locator(".widget-still")).to_be_hidden()


def test_the_code_can_be_copied(board):
    seen = board(mean(), over="http")
    page = seen.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for line in MEAN:
        seen.add(line.strip(), (len(line) - len(line.lstrip())) // 4)
    seen.button("Check").click()
    seen.button("Copy").click()
    expect(seen.status).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "\n".join(MEAN) + "\n"
    # If the browser does not allow copying, the code is selected.
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    seen.button("Copied").click()
    expect(seen.status).to_have_text("The code is selected: copy it with your keyboard.")
    assert page.evaluate("getSelection().toString()").strip() == "\n".join(MEAN)


def test_lines_are_numbered_as_they_stand_and_indented_as_far_as_they_are(board):
    """Of a solution that Python holds, with a faulty line and depths of its own."""
    widget = mean()
    widget.answer = {**START, "lines": [[0, 0], [2, 2], [1, 1]]}
    seen = board(widget)
    solution = seen.host.get_by_role("list", name="Your solution", exact=True)
    assert seen.rows() == [(0, MEAN[0]), (2, MEAN[2].strip()), (1, MEAN[1].strip())]
    assert solution.locator(".mha-number").all_inner_texts() == ["1", "2", "3"]
    assert seen.host.get_by_role("list", name="Lines", exact=True).locator(
        ".mha-number"
    ).all_inner_texts() == [""] * len(seen.rows("Lines"))
    texts = {text for _, text in seen.rows("Lines")}
    assert MEAN[3].strip() in texts and not texts & {MEAN[1].strip(), MEAN[2].strip()}
