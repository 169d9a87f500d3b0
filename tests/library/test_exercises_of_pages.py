"""Every exercise of the course: its solution passes, and its checker tells the known mistakes apart."""

import time

import pytest
from exercise_cells import CHAPTERS, CHECKS, checker_of, checkers_of, pieces_of, solution_of, solved

from mha_course.exercises import Exercise, multi_head

PAGES = [path.stem for path in sorted(CHAPTERS.glob("*.ipynb"))]
# These solutions run the bug zoo's detectors, which only its page defines, so that page checks them.
IN_THE_ZOO = {"check_one_head", "check_escape"}
SOLVED = [(page, number) for page in PAGES for number, name in enumerate(checkers_of(page), 1)
          if name not in IN_THE_ZOO]  # fmt: skip
EXERCISES = [name for name, check in CHECKS.items() if isinstance(check, Exercise)]


def test_every_checker_is_used_on_one_page():
    used = [name for page in PAGES for name in checkers_of(page)]
    used += [checker_of(piece)[0] for page in PAGES for piece in pieces_of(page).values()]
    assert set(used) <= set(CHECKS)
    assert all(used.count(name) == 1 for name in EXERCISES)


@pytest.mark.no_shape_checks  # they take most of the time, and a reader's function has no annotations
@pytest.mark.parametrize(("page", "number"), SOLVED)
def test_a_solution_passes_within_two_seconds(page, number):
    check, _ = solved(page, number)
    solution = solution_of(page, number)
    started = time.process_time()
    verdict = check(solution)
    assert verdict.right, verdict
    assert time.process_time() - started < 2


@pytest.mark.parametrize("name", EXERCISES)
def test_a_checker_tells_its_known_mistakes_apart(name):
    check = CHECKS[name]
    assert check.audit() == []
    assert len({wrong.name for wrong in check.wrong}) >= 2
    verdict = check(lambda *_: None)
    assert not verdict
    if check.takes == "function":
        assert "the function returns None. Write the missing lines" in verdict.message


def test_no_case_is_dropped_unnoticed():
    """A checker with fewer cases may still tell its known mistakes apart, but not a reader's others."""
    assert sum(len(CHECKS[name].cases) for name in EXERCISES) >= 295
    code = ("check_name_the_scale", "check_translate", "check_convention")
    assert [len(CHECKS[name].cases) for name in code] == [9, 16, 5]
    assert len({**multi_head._CASES, **multi_head._CAUSAL}) == 14
