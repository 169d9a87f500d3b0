"""The budgets of lines: what counts for which, and what is said where one is exceeded."""

import budgets
import pytest


@pytest.mark.parametrize(("name", "area"), [
    ("mha_lib/scores.py", "what attention is"), ("mha_course/plots.py", "course support"),
    ("attention_check/_texts.py", "judging"),
    ("mha_course/data/dates.py", "course support"), ("mha_course/exercises/masks.py", "exercises"),
    ("mha_course/widgets/quiz.py", "widgets, Python"),
    ("mha_course/widgets/quiz/quiz.css", "widgets, JavaScript and styles"),
    ("tests/library/test_scores.py", "tests"), ("tools/budgets.py", "the rest"),
    (".github/workflows/ci.yml", "the rest"), ("Makefile", "the rest"),
    ("mha_course/stored/dates.json", None), ("chapters/references.bib", None),
])  # fmt: skip
def test_each_file_counts_once(name, area):
    assert budgets.area_of(name) == area


def test_an_area_has_some_slack():
    limits = {what: limit for what, _, limit in budgets.measured() if what in budgets.AREAS}
    assert limits.keys() == budgets.AREAS.keys()
    assert all(1 <= limit / budgets.AREAS[area][0] <= 1.03 for area, limit in limits.items())


def test_what_is_too_long_is_named_with_its_lines(monkeypatch, capsys):
    monkeypatch.setattr(budgets, "measured", lambda: [("tests", 12, 10), ("exercises", 5, 10)])
    assert budgets.main([]) == 1
    assert capsys.readouterr().out == "tests: 12 lines, at most 10\n"
    monkeypatch.setattr(budgets, "measured", lambda: [("exercises", 5, 10)])
    assert budgets.main([]) == 0
