"""What an author writes about an exercise in Markdown, and what is said where it is wrong."""

import importlib.util
import re
import sys

import pytest
import torch

from mha_course import exercises
from mha_course._sizes import Texts

MODULE = """
class Sum:
    def __init__(self, start):
        self.total = start

    def add(self, number):
        self.total = self.total + number


def double(x):
    total = Sum(0 * x)
    for _ in range(2):
        total.add(x)
    return total.total


def triple(x):
    return 3 * x
"""
TEXT = """# Twice

A paragraph for authors, and `code` in it.

## check_double

- five numbers: `randn(g, 5)`
- a table of 2 rows: `randn(g, 2,
  3)`
- **x is added too often.** Twice means
  two times.
  - `range(2)` → `range(4)` or `range(5)`
- **x is added to 1.** Begin with 0.
  - `0 * x` → `1 + 0 * x`
  - `self.total + number` → `1 + number`
- **x is tripled or squared.** Twice x is `2 * x`.
  - `triple`
  - `lambda x: x**2`
"""
LAST, LAST_TWO = (TEXT[TEXT.index(name) :] for name in ("- **x is tripled", "- **x is added to 1"))


def texts(tmp_path, monkeypatch, text):
    (tmp_path / "twice_exercises.py").write_text(MODULE)
    (tmp_path / "twice_exercises.md").write_text(text)
    spec = importlib.util.spec_from_file_location("twice_exercises", tmp_path / "twice_exercises.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return Texts(module.__name__), module.double


def test_an_exercise_is_made_from_its_text(tmp_path, monkeypatch):
    describe, double = texts(tmp_path, monkeypatch, TEXT)
    check = describe("check_double", reference=double)
    assert check.audit() == []
    assert describe.unused == set()
    assert list(check.cases) == ["five numbers", "a table of 2 rows"]
    assert len(check.wrong) == 5
    for often in (4, 5):
        told = "Not yet: x is added too often. Twice means two times."
        assert check(lambda x, n=often: n * x).message == told
    assert check(lambda x: x + 1).message == "Not yet: x is added to 1. Begin with 0."
    assert torch.equal(check.reference(torch.ones(1)), torch.full((1,), 2.0)), "the reference is as it was"


def test_an_exercise_may_have_just_two_mistakes(tmp_path, monkeypatch):
    describe, double = texts(tmp_path, monkeypatch, TEXT.replace(LAST, ""))
    check = describe("check_double", reference=double)
    assert check.audit() == []
    assert {wrong.name for wrong in check.wrong} == {"x is added too often", "x is added to 1"}


@pytest.mark.parametrize(("old", "new", "line", "problem"), [
    ("## check_double", "## check_doubel", 1, "there is no section `## check_double`"),
    ("`range(2)` → `range(4)`", "`range(3)` → `range(4)`", 12, "`range(3)` stands 0 times in the reference"),
    ("`range(2)` → `range(4)`", "`total` → `sum`", 12, "`total` stands 7 times in the reference"),
    ("`range(2)` → `range(4)`", "`range(2)` → `range(`", 10, "the edited source is wrong"),
    ("  - `range(2)` → `range(4)` or `range(5)`\n", "", 10, "nothing below this mistake says what it does"),
    ("too often.** Twice means\n  two times.", "too often.**", 10, "a mistake is `**its name.** its cause`"),
    ("x is added to 1", "x is added too often", 13, "two mistakes 'x is added too often'"),
    ("a table of 2 rows", "five numbers", 8, "two cases 'five numbers'"),
    ("- five numbers: `randn(g, 5)`", "- five numbers", 7, "a case is a label, a colon, and `arguments`"),
    ("`triple`", "`quadruple`", 17, "name 'quadruple' is not defined"),
    ("`triple`", "triple", 17, "write edits"),
    (LAST_TWO, "", 5, "fewer than two mistakes"),
    ("# Twice", "## check_double", 5, "there are two sections"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_line(tmp_path, monkeypatch, old, new, line, problem):
    assert old in TEXT

    def make():
        describe, double = texts(tmp_path, monkeypatch, TEXT.replace(old, new, 1))
        describe("check_double", reference=double)

    start = f"{tmp_path / 'twice_exercises.md'}:{line}: "
    with pytest.raises(ValueError, match=f"^{re.escape(start)}.*{re.escape(problem)}"):
        make()


def test_every_section_is_used():
    """A section that no exercise has is a name that is written wrongly."""
    found = [module.exercise for module in vars(exercises).values() if hasattr(module, "exercise")]
    assert len(found) >= 10
    # Only `check_escape` makes its exercise when it is called.
    assert {name for one in found for name in one.unused} <= {"check_escape"}
