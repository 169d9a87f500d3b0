"""How many lines each area of the repository has; `make check` ends with the areas that have outgrown theirs.

    python tools/budgets.py [--all]

Whole areas are limited, with some slack, so that unneeded text is deleted; a line is never saved at the price
of a name. If an area needs more room, change its number here, in a commit that says why. With --all, every
area is listed. What a reader must be able to take in has limits of its own: a notebook, a function and a
module of the library (tests/library/test_plain.py).
"""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Area: (lines, files). Each file counts for the first area that matches it; a star also matches folders.
AREAS = {
    "Python in the page": (10_100, ["*in_page*"]),
    "to take along": (
        945,
        ["tools/paper*", "tools/slides*", "_ext/as_markdown.py", "_ext/feedback.py"],
    ),
    "models": (1_960, ["mha_lib/models/*.py"]),
    "judging": (4_558, ["attention_check/*.py"]),
    "what attention is": (4_455, ["mha_lib/*.py"]),
    "exercises": (7_926, ["mha_course/exercises/*", "mha_course/_pieces.py"]),
    "widgets, Python": (7_280, ["mha_course/widgets/*.py"]),
    "widgets, JavaScript and styles": (
        21_150,
        ["mha_course/widgets/*.js", "mha_course/widgets/*.css"],
    ),
    "pictures": (3_800, ["mha_course/pictures/*.py", "mha_course/questions/*.py"]),
    "grading": (
        2_010,
        [
            "mha_course/grade.py",
            "mha_course/_judge*.py",
            "mha_course/_borrowed.py",
            "mha_course/_walls.py",
        ],
    ),
    "course support": (4_668, ["mha_course/*.py", "mha_course/data/*.py"]),
    "languages": (
        720,
        [
            "tools/translate.py",
            "_ext/languages.py",
            "_ext/verdicts.py",
            "_static/languages.js",
        ],
    ),
    "tests": (48_200, ["tests/*.py"]),
    "the rest": (
        15_020,
        ["*.py", "*.js", "*.cjs", "*.mjs", "*.css", "*.pl", "*.yml", "*.toml"],
    ),
}
SLACK = 1.03
MORE = ["Makefile", ".ci/run"]  # files of the rest whose names have no extension
# Generated from counted files, or written by Shakespeare.
UNCOUNTED = (
    "mha_course/built.py",
    "chapters/my_gpt.py",
    "mha_course/in_page/sonnets.txt",
)

# Lines of code in a notebook: all, and those that are neither shown nor a solution.
NOTEBOOK, HIDDEN = 900, 350
HIDES = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def files():
    """Return the files of the repository that are not built, installed or hidden."""
    left_out = {"_build", "node_modules", "dist", "__pycache__"}
    found = []
    for path in sorted(ROOT.rglob("*")):
        name = path.relative_to(ROOT)
        hidden = any(
            part[0] == "." and part not in (".ci", ".github") for part in name.parts
        )
        if not hidden and not left_out & set(name.parts) and path.is_file():
            found.append(name.as_posix())
    return found


def area_of(name):
    """Return the area to which a file counts, or None."""
    if name in MORE:
        return "the rest"
    if name in UNCOUNTED:
        return None
    ours = name.startswith(("mha_lib/", "attention_check/", "mha_course/", "tests/"))
    for area, (_, patterns) in AREAS.items():
        if area == "the rest" and ours and not name.endswith(".toml"):
            return None
        if any(fnmatch(name, pattern) for pattern in patterns):
            return area
    return None


def measured():
    """Yield (what, lines, budget) for each area and notebook."""
    totals = dict.fromkeys(AREAS, 0)
    for name in files():
        if area := area_of(name):
            text = (ROOT / name).read_text(encoding="utf-8")
            totals[area] += text.count("\n")
    for area, lines in totals.items():
        yield area, lines, int(AREAS[area][0] * SLACK)
    for path in [ROOT / "index.ipynb", *sorted(ROOT.glob("chapters/*.ipynb"))]:
        name = path.relative_to(ROOT).as_posix()
        lines, hidden = lines_of_notebook(path)
        yield f"{name}, all code", lines, NOTEBOOK
        yield f"{name}, hidden code", hidden, HIDDEN


def lines_of_notebook(path):
    """Count the lines of a notebook's code, and those that are hidden and not a solution."""
    total = hidden = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and cell["id"] != "setup":
            lines = len("".join(cell["source"]).splitlines())
            total += lines
            prompt = cell["metadata"].get("mystnb", {}).get("code_prompt_show", "")
            folded = bool(HIDES & set(cell["metadata"].get("tags", [])))
            hidden += lines * (folded and prompt != "Show solution")
    return total, hidden


def main(arguments):
    """Run from the command line; the exit status is 1 if anything is over its budget."""
    status = 0
    for what, lines, budget in measured():
        if lines > budget:
            status = 1
            print(f"{what}: {lines} lines, at most {budget}")
        elif arguments == ["--all"]:
            print(f"{what}: {lines} of {budget} lines")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
