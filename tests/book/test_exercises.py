"""The exercises of all pages as a reader meets them: task, stub, check, hints, solution, in five cells."""

import ast
import copy
import re

import pytest
from exercise_cells import CHAPTERS, CHECKS, PARTS, cells_of, checker_of, pieces_of, read

PAGES = [path.stem for path in sorted(CHAPTERS.glob("*.ipynb")) if cells_of(path.stem)]
PIECES = [(path.stem, name) for path in sorted(CHAPTERS.glob("*.ipynb")) for name in pieces_of(path.stem)]
EXERCISES = [(page, number) for page in PAGES for number in cells_of(page)]
SOLUTION = {"code_prompt_show": "Show solution", "code_prompt_hide": "Hide solution"}


BETWEEN = {("05_positional_encoding", 1)}  # the function that this exercise is about follows its task


def shown(cell):
    """The last text that a cell shows."""
    data = cell.outputs[-1].get("data", {}) if cell.outputs else {}
    return data.get("text/markdown") or data.get("text/plain", "")


def faults(number, cells):
    """What an exercise lacks."""
    if tuple(cells) != PARTS:
        yield f"its cells are {tuple(cells)}"
        return
    task, solution = cells["task"].source, cells["solution"].source
    if not re.match(rf"#+ Exercise {number} ★{{1,3}} .* \(\d+ minutes\)$", task, re.M):
        yield "the task does not name its number, its stars and its minutes"
    name, answer = checker_of(cells)
    yield from lacking(name, answer, cells)
    if not re.search(rf"^assert {name}\(", solution, re.M) or not re.search(r'"\n?\)$', solution):
        yield "the solution does not end with its check and the reason"
    if re.search(rf"^(?:def|class) {answer}\b", solution, re.M):
        yield "the solution replaces the reader's answer"
    if "Why the tempting answer fails" not in shown(cells["solution"]):
        yield "the solution does not say why the tempting answer fails"
    if "tempting answer" in task + cells["hints"].source:
        yield "the tempting answer is explained openly"


def faults_of_piece(answer, cells):
    """What a piece of the reader's own layer lacks."""
    if not {*PARTS[1:]} <= cells.keys():
        yield f"its cells are {tuple(cells)}"
        return
    name, checked = checker_of(cells)
    yield from lacking(name, answer, cells)
    if checked != answer:
        yield f"the check is of {checked}"
    if not re.search(rf"^@solution\({name}\)\n(?:def|class) {answer}\b", cells["solution"].source, re.M):
        yield "the solution does not leave the reader's answer in its place"
    if "build" not in cells["solution"].metadata.get("tags", []):
        yield "the solution is not collected"


def lacking(name, answer, cells):
    """What the stub, the check, the hints or the fold lack."""
    stub, check, hints = (cells[part].source for part in PARTS[1:4])
    if not re.search(r"\n +# .*\n +\.\.\.$", stub):
        yield "the stub does not end with its purpose and a line to fill in"
    if name not in CHECKS:
        yield "the check calls no checker"
        return
    if not re.search(rf"^(?:def|class) {answer}\b", stub, re.M):
        yield f"the stub does not define {answer}"
    if f"import {name}" not in check and name not in stub:
        yield "the checker is not imported"
    # If a class lacks something, the message differs.
    empty = (
        "Not yet: the function returns None"
        if re.split(rf"\b{answer}\b", stub)[0][-4:] == "def "
        else "Not yet: "
    )
    if not shown(cells["check"]).startswith(empty):
        yield f"the empty stub gets the verdict {shown(cells['check'])!r}"
    steps = re.findall(r"<details><summary>Hint (\d)</summary>\n\n.+?\n\n</details>", hints, re.S)
    numbered = [str(step) for step in range(1, len(steps) + 1)]
    if not hints.endswith("</details>") or len(steps) < 3 or steps != numbered:
        yield f"the hints are numbered {steps}: write three or more, from 1, and nothing below the last"
    data = cells["solution"].metadata
    if "hide-cell" not in data.get("tags", []) or not data.get("mystnb", {}).items() >= SOLUTION.items():
        yield "the solution is not folded"


@pytest.mark.parametrize(("page", "number"), EXERCISES)
def test_an_exercise_is_complete(page, number):
    assert list(faults(number, cells_of(page)[number])) == []


@pytest.mark.parametrize("page", PAGES)
def test_exercises_are_numbered_in_order_and_their_cells_stand_together(page):
    ids = [cell.id for cell in read(page) if re.fullmatch(r"ex\d+-\w+", cell.id)]
    numbers = range(1, len(cells_of(page)) + 1)
    assert ids == [f"ex{number}-{part}" for number in numbers for part in PARTS]
    place = [cell.id for cell in read(page)].index
    for number in numbers:
        stub = place(f"ex{number}-stub")
        assert [place(f"ex{number}-{part}") - stub for part in PARTS[1:]] == [0, 1, 2, 3]
        shown_first = (page, number) in BETWEEN
        assert stub - place(f"ex{number}-task") == 1 + shown_first
    text = "\n".join(cell.source for cell in read(page) if cell.cell_type == "markdown")
    assert len(re.findall(r"^#+ Exercise \d.*", text, re.M)) == len(numbers)


@pytest.mark.parametrize(("page", "name"), PIECES)
def test_a_piece_of_the_readers_layer_is_complete(page, name):
    assert list(faults_of_piece(name, pieces_of(page)[name])) == []
    ids = [cell.id for cell in read(page)]
    first = ids.index(f"write-{name}-stub")
    assert ids[first : first + 4] == [f"write-{name}-{part}" for part in PARTS[1:]]
    assert f"**Write `{name}`.**" in read(page)[first - 1].source


@pytest.mark.parametrize(("page", "name"), PIECES)
def test_a_stub_replaces_no_piece_that_the_reader_has_written(page, name):
    stub = ast.parse(pieces_of(page)[name]["stub"].source)
    imported = {one.name for line in stub.body if isinstance(line, ast.ImportFrom) for one in line.names}
    assert not imported & {name for _, name in PIECES}


def test_there_are_exercises_on_most_pages():
    assert len(EXERCISES) + len(PIECES) >= 82
    assert len(PAGES) >= 13


def replace(part, old, new):
    def plant(cells):
        assert old in cells[part].source
        cells[part].source = cells[part].source.replace(old, new, 1)

    return plant


PLANTED = {
    "its cells are": lambda cells: cells.pop("hints"),
    "number, its stars": replace("task", "★", "*"),
    "a line to fill in": replace("stub", "...", "pass"),
    "calls no checker": replace("check", "\ncheck_", "\ntest_"),
    "does not define": replace("stub", "def ", "def other_"),
    "gets the verdict": lambda cells: cells["check"].outputs.clear(),
    "the hints are numbered": replace("hints", "Hint 2", "Hint 3"),
    "does not end with its check": replace("solution", "\nassert check_", "\n# assert check_"),
    "does not say why": lambda cells: cells["solution"].outputs.clear(),
    "explained openly": replace("hints", "Hint 1</summary>\n\n", "Hint 1</summary>\n\nThe tempting answer: "),
    "not folded": lambda cells: cells["solution"].metadata.tags.remove("hide-cell"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_found(fault):
    cells = copy.deepcopy(cells_of("01_attention_pooling")[1])
    assert list(faults(1, cells)) == []
    PLANTED[fault](cells)
    assert any(fault in found for found in faults(1, cells))


def test_planted_fault_of_a_piece_is_found():
    """What only pieces can lack; the rest is planted above."""
    name = "my_lens_mask"
    for plant, fault in (
        (replace("solution", "@solution(check_lens_mask)\n", ""), "does not leave"),
        (replace("check", "my_lens_mask", "my_causal_mask"), "the check is of"),
        (lambda cells: cells["solution"].metadata.tags.remove("build"), "not collected"),
    ):
        cells = copy.deepcopy(pieces_of("02_scoring_functions")[name])
        assert list(faults_of_piece(name, cells)) == []
        plant(cells)
        assert any(fault in found for found in faults_of_piece(name, cells)), fault
