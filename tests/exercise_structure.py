"""The exercises of a page as a reader meets them: task, stub, check, hints, solution."""

import re
from pathlib import Path

import nbformat

CHAPTERS = Path(__file__).resolve().parents[1] / "chapters"
PARTS = ["task", "stub", "check", "hints", "solution"]


def exercises(stem):
    """Number -> part -> cell, for all exercises of a page, in their order on the page."""
    found = {}
    for cell in nbformat.read(CHAPTERS / f"{stem}.ipynb", as_version=4).cells:
        if match := re.fullmatch(r"ex(\d+)-(\w+)", cell.id):
            found.setdefault(int(match[1]), {})[match[2]] = cell
    return found


def verdict(cell):
    """What the check of a page says below its cell."""
    [output] = cell.outputs
    return output.data["text/markdown"]


def faults(stem, names):
    """What is wrong with the exercises of a page; `names` are their checkers, in order."""
    found = exercises(stem)
    if list(found) != list(range(1, len(names) + 1)):
        yield f"{len(names)} exercises in order, got {list(found)}"
    for number, (cells, name) in enumerate(zip(found.values(), names, strict=False), start=1):
        yield from (f"exercise {number}: {fault}" for fault in _faults(cells, name))


def _faults(cells, name):
    if list(cells) != PARTS:
        yield f"its cells are {list(cells)}"
        return
    task, stub, check, hints, solution = cells.values()
    if not re.search(r"★.*\b\d+ minutes", task.source):
        yield "the task says no difficulty and minutes"
    if not re.search(r"\n    # .*\n    \.\.\.$", stub.source):
        yield "the stub does not end with its purpose and dots"
    [function] = re.findall(r"^def (\w+)", stub.source, re.M)
    if not re.fullmatch(rf"{name}\({function}\b.*\)", check.source) or "\n" in check.source:
        yield f"the check is not one line with {name}: {check.source!r}"
    if name not in stub.source:
        yield "the stub does not import the checker"
    if not verdict(check).startswith("Not yet: the function returns None."):
        yield f"the empty stub gets the verdict {verdict(check)!r}"
    numbers = re.findall(r"<details><summary>Hint (\d+)</summary>\n\n.+?\n\n</details>", hints.source, re.S)
    if len(numbers) < 3 or numbers != [str(i + 1) for i in range(len(numbers))]:
        yield f"the hints are numbered {numbers}"
    tags, prompts = solution.metadata.get("tags", []), solution.metadata.get("mystnb", {})
    if "hide-cell" not in tags or prompts.get("code_prompt_show") != "Show solution":
        yield "the solution is not folded"
    if not re.search(rf"^assert {name}\(\s*.*\)\nwhy\(r?\"\"\"\n.*\"\"\"\)$", solution.source, re.M | re.S):
        yield "the solution does not end with its check and the reason"
    if "Why the tempting answer fails" not in str(solution.outputs[-1].get("data", {}).get("text/markdown")):
        yield "the reason is not shown"
    if re.search(rf"def {function}\b", solution.source):
        yield "the solution replaces the reader's function"
