"""Make an assignment of exercises of the course, for nbgrader or Otter.

    python -m mha_course.handout PAGE ... --exercises my_head,split_heads [--points 2,1] [--for otter]

A page is its number, its name or the path of its notebook. The notebook that is written has the set-up for
Colab and, for each exercise, what it needs of the page, its task, its stub with the solution, and its check.
It has no outputs, hints, figures or questions. `nbgrader generate_assignment` or `otter assign` makes the
students' version of it, without the solutions:

    nbgrader: FOLDER/source/NAME/NAME.ipynb, and nbgrader_config.py, with which our judge gives the marks;
    Otter: FOLDER/NAME/NAME.ipynb, whose autograder gives the marks by our judge too.

FOLDER is `--to`, by default the current one, and NAME is `--name`, by default the name of the first page.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mha_course._exercises_of_a_page import Exercise, cells_of, exercises_of, page_at
from mha_course._messages import message
from mha_course._take_home import imports_of

_LINK = r"\]\((?!https?:)([\w-]*)(?:\.ipynb|\.md)?(#[^)\s]*)?\)"
_CITATION = r"\s*\{cite:[pt]\}`[^`]*`"
_TOOLS = {"nbgrader": "nbgrader", "otter": "otter-grader"}


def _notebook(
    cells: Sequence[dict[str, Any]], metadata: dict[str, Any] | None = None
) -> str:
    """The text of a notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    book = {"cells": cells, "metadata": about | (metadata or {})}
    text = json.dumps(
        book | {"nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False
    )
    return text + "\n"


def _cell(name: str, kind: str, source: str, **nbgrader: Any) -> dict[str, Any]:
    """A cell of a notebook; students cannot change it unless nbgrader is told so."""
    marks: dict[str, Any] = {
        "grade": False,
        "solution": False,
        "locked": True,
        "task": False,
    }
    marks |= {"schema_version": 3, "grade_id": name} | nbgrader
    found: dict[str, Any] = {"cell_type": kind, "id": name[:64], "source": source}
    found["metadata"] = {} if kind == "raw" else {"nbgrader": marks}
    code: dict[str, Any] = {"outputs": [], "execution_count": None}
    return found | (code if kind == "code" else {})


def _for_nbgrader(one: Exercise, points: float) -> list[dict[str, Any]]:
    """The cells of an exercise: its stub is the solution's cell, its check is worth the points."""
    return [
        _cell(f"task-{one.name}", "markdown", one.task),
        _cell(one.name, "code", one.source, solution=True, locked=False),
        _cell(f"check-{one.name}", "code", one.check, grade=True, points=points),
    ]


def _for_otter(one: Exercise, points: float) -> list[dict[str, Any]]:
    """The cells of an exercise, between the raw cells that `otter assign` reads."""
    call = ast.unparse(ast.parse(one.check).body[-1])
    imports = "\n".join(imports_of(ast.parse(one.check).body).values())
    test = f"{imports}\nverdict = {call}\nassert verdict, verdict".strip()
    kinds = ["raw", "markdown", "raw", "code", "raw", "raw", "code", "raw", "raw"]
    texts = [
        f"# BEGIN QUESTION\nname: {one.name}\npoints: {points}\ncheck_cell: false",
        one.task,
    ]
    texts += ["# BEGIN SOLUTION", one.source, "# END SOLUTION"]
    texts += ["# BEGIN TESTS", test, "# END TESTS", "# END QUESTION"]
    cells = [
        _cell(f"{one.name}-{number}", kind, text)
        for number, (kind, text) in enumerate(zip(kinds, texts, strict=True))
    ]
    return [*cells, _cell(f"check-{one.name}", "code", one.check)]


def _assignment(
    pages: Sequence[Path], names: Sequence[str], points: Sequence[float], tool: str
) -> str:
    """The notebook from which a tool makes the students' version.

    Raises:
        ValueError: a page cannot be read or has no set-up; an exercise does not exist; the numbers of
            exercises and of points differ.
    """
    read = [cells_of(page) for page in pages]
    known = [one.name for cells in read for one in exercises_of(cells, ())]
    plain = {one.replace("_", "").lower(): one for one in reversed(known)}
    chosen = [plain.get(name.replace("_", "").lower(), "") for name in names]
    if missing := [name for name, one in zip(names, chosen, strict=True) if not one]:
        words = {"names": ", ".join(missing), "known": ", ".join(known)}
        raise ValueError(message(__file__, "no-exercise", **words))
    if len(set(chosen)) < len(chosen):
        raise ValueError(message(__file__, "twice"))
    points = points or [1] * len(chosen)
    if len(points) != len(chosen):
        words = {"points": str(len(points)), "exercises": str(len(chosen))}
        raise ValueError(message(__file__, "points", **words))
    worth = dict(zip(chosen, points, strict=True))
    setup = [one["source"] for one in read[0] if one.get("id") == "setup"]
    if not setup:
        raise ValueError(message(__file__, "no-notebook", path=pages[0]))
    if 'files = ""' in setup[0]:
        print(message(__file__, "no-files"), file=sys.stderr)
    [book] = re.findall(r'book = "(.*?)"', setup[0])
    cells = [_cell("setup", "code", setup[0])]
    cells.append(_cell("torch", "code", "import torch\nfrom torch import nn"))
    for page, there in zip(pages, read, strict=True):
        for one in exercises_of(there, chosen):
            if one.name not in worth:
                continue
            one.task = _standing_alone(one.task, f"{book}/chapters/", page.stem)
            if one.given:
                cells.append(
                    _cell(f"given-{one.name}", "code", "\n\n\n".join(one.given))
                )
            make = _for_otter if tool == "otter" else _for_nbgrader
            cells += make(one, worth[one.name])
    if tool == "otter":
        cells.insert(0, _cell("config", "raw", _otter_config(cells, setup[0], book)))
    return _notebook(cells)


def _otter_config(cells: Sequence[dict[str, Any]], setup: str, book: str) -> str:
    """The settings of `otter assign`: the judge as a plugin, and what Gradescope is to install."""
    names = [str(one["id"]) for one in cells]
    code = dict(zip(names, (one["source"] for one in cells), strict=True))
    checks = {
        name.removeprefix("check-"): ast.unparse(ast.parse(source).body[-1])
        for name, source in code.items()
        if name.startswith("check-")
    }
    given = [
        code[name] for name in names if name == "torch" or name.startswith("given-")
    ]
    wheels = re.findall(r"(?m)^([\w-]+ @ )\{book\}(\S+) --hash=sha256:(\w+)", setup)
    needs = [f"{name}{book}{path}#sha256={digest}" for name, path, digest in wheels]
    plugin = {"mha_course._otter.Judge": {"checks": checks, "given": given}}
    settings = {
        "init_cell": False,  # students need no Otter: their checks are the page's
        "export_cell": False,
        "requirements": [*needs, "cloudpickle", "psutil"],
        "generate": {"plugins": [plugin]},
    }
    lines = [f"{name}: {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(["# ASSIGNMENT CONFIG", *lines])


def _standing_alone(text: str, place: str, page: str) -> str:
    """A text whose links lead to the book, without citations, which only the book can show."""
    text = re.sub(_CITATION, "", text)
    return re.sub(
        _LINK, lambda one: f"]({place}{one[1] or page}.html{one[2] or ''})", text
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Raises:
        SystemExit: the arguments are wrong; its code is 2.

    Example:
        >>> import contextlib
        >>> with contextlib.suppress(SystemExit):  # there is no page 33
        ...     main(["33", "--exercises", "my_head"])
    """
    parser = argparse.ArgumentParser("mha_course.handout", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("pages", nargs="+", metavar="PAGE", help="such as 3")
    add("--exercises", required=True, help="what students write, by commas")
    add("--points", default="", help="of each exercise, by commas; by default 1")
    add("--for", dest="tool", choices=_TOOLS, default="nbgrader")
    add("--name", help="of the assignment")
    add("--to", type=Path, default=Path(), help="folder of the course")
    chosen = parser.parse_args(arguments)
    names = [name.strip() for name in chosen.exercises.split(",")]
    try:
        module, package = chosen.tool, _TOOLS[chosen.tool]
        if importlib.util.find_spec(module) is None:
            raise ValueError(message(__file__, "no-tool", package=package))
        pages = [page_at(page) for page in chosen.pages]
        points = [_points(one) for one in chosen.points.split(",") if chosen.points]
        name = chosen.name or pages[0].stem
        if not re.fullmatch(r"[\w-]+", name, re.ASCII):
            raise ValueError(message(__file__, "name", name=name))
        text = _assignment(pages, names, points, chosen.tool)
        folder = chosen.to / "source" if chosen.tool == "nbgrader" else chosen.to
        place = folder / name / f"{name}.ipynb"
        if place.exists() and place.read_text(encoding="utf-8") != text:
            raise ValueError(message(__file__, "exists", path=place))
        _write(place, text)
        if chosen.tool == "nbgrader":
            config = chosen.to / "nbgrader_config.py"
            lines = Path(__file__).with_name("_nbgrader_config.py").read_text("utf-8")
            if not config.exists():
                _write(config, lines)
            elif lines not in config.read_text(encoding="utf-8"):
                print(message(__file__, "config", path=config), file=sys.stderr)
    except (ValueError, OSError) as error:
        parser.error(f"{error}")
    return 0


def _points(text: str) -> float:
    if not re.fullmatch(r"\s*\d{1,6}(\.\d+)?\s*", text):
        raise ValueError(message(__file__, "no-number", text=text))
    return float(text) if "." in text else int(text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    sys.exit(main())
