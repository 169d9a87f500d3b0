"""The exercises of a chapter as they stand in its notebook: task, stub, check, hints, solution."""

import re
from pathlib import Path

import nbformat

from mha_lib import exercises

CHAPTERS = Path(__file__).resolve().parents[1] / "chapters"
KINDS = ("task", "stub", "check", "hints", "solution")
CHECKS = {name: getattr(exercises, name) for name in exercises.__all__ if name.startswith("check_")}


def cells(stem):
    """Number of each exercise -> its five cells by kind; an assertion fails where one is missing."""
    notebook = nbformat.read(CHAPTERS / f"{stem}.ipynb", as_version=4)
    names = [cell.id for cell in notebook.cells]
    found = {}
    for place, name in enumerate(names):
        if re.fullmatch(r"ex\d+-task", name):
            number = name.partition("-")[0]
            assert names[place : place + 5] == [f"{number}-{kind}" for kind in KINDS]
            found[int(number[2:])] = dict(zip(KINDS, notebook.cells[place : place + 5], strict=True))
    headings = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert len(re.findall(r"^#+ Exercise \d+ ★", headings, re.M)) == len(found)
    return found


def checker(exercise):
    """Name of the checker that the check cell calls with the function of the stub."""
    function = re.search(r"^(?:def|class) (\w+)", exercise["stub"].source, re.M)[1]
    found = re.fullmatch(
        rf"from mha_lib\.exercises import (check_\w+)\n\n\1\({function}\)", exercise["check"].source
    )
    assert found, exercise["check"].source
    return found[1]


def assert_complete(number, exercise):
    """Fail if a part of an exercise is not what a reader needs."""
    assert re.match(rf"#+ Exercise {number} ★{{1,3}} .+ \(\d+ minutes\)\n", exercise["task"].source)
    assert re.search(r"^ +\.\.\.$", exercise["stub"].source, re.M)
    assert [output["data"]["text/plain"][:9] for output in exercise["check"].outputs] == ["Not yet: "]
    steps = re.findall(r"<summary>Hint (\d)</summary>\n\n.+\n\n</details>", exercise["hints"].source)
    assert steps == [str(i) for i in range(1, len(steps) + 1)]
    assert len(steps) >= 3
    solution = exercise["solution"]
    assert "hide-cell" in solution.metadata.tags
    assert (solution.metadata.mystnb.code_prompt_show, solution.metadata.mystnb.code_prompt_hide) == (
        "Show solution",
        "Hide solution",
    )
    assert re.search(rf'^assert {checker(exercise)}\(\w+\)\nwhy\(\n? *r"""', solution.source, re.M)
    assert "Why the tempting answer fails" in solution.outputs[-1]["data"]["text/markdown"]
