"""Measure how long each page takes to work through: its main path, its exercises, and its deeper sections.

    python tools/minutes.py [--write]

A minute is 180 words of prose or one visible cell; a question takes 3/4, a widget 2 1/2, and a figure or a
displayed equation 1/2. A piece that the reader writes takes 8 with its check, 12 for a large class; an
exercise takes the minutes in its title, and a widget that is worked by hand with a pencil 8. Folded parts do
not count: set-up, solutions, hints. The heads of pages state these minutes. The list on the landing
page and the plans for teachers state those of the path and of the exercises. --write updates all of them,
and a test compares.
"""

import json
import re
import sys
from pathlib import Path

from drawings import IMAGE

ROOT = Path(__file__).resolve().parent.parent
WORDS, CELL, QUESTION, WIDGET, FIGURE = 180, 1, 0.75, 2.5, 0.5
PIECE, LARGE_PIECE, BY_HAND = 8, 12, 8
STUB = re.compile(r"write-(\w+)-(stub|check)")
LARGE_PIECES = {"MyHead", "MyMultiHead", "MyGPT"}
# The widgets that the reader works by hand with a pencil, by what their cells print.
PENCIL = re.compile(r"AttentionStepper\(")
HIDDEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
VIEW = "application/vnd.jupyter.widget-view+json"
# The text in the head of a page, and a row of the landing page's list.
HEAD = re.compile(
    r"\*\*Time\*\*: \d+ minutes(?:, \d+ of them writing code)?"
    r"(?:; \d+ more for all exercises)?(?:; \d+ for \*Going deeper\*)?"
)
ROW = re.compile(
    r"^(\|.*?\((?:chapters/)?(\w+\.ipynb)\).*\| *)\d+(?: \+ \d+)? \|$", re.MULTILINE
)
TEACHERS = ROOT / "chapters" / "appendix_for_teachers.md"  # its plans contain such rows
# An exercise, with the minutes in its title, and what begins another section.
EXERCISE = re.compile(r"#+ .*★.*\b(\d+) minutes")
SECTION = re.compile(r"^(?=#+ )", re.MULTILINE)
# Sections outside the path; each ends at the next heading of its level.
ASIDE = {"Exercises": "exercises", "Going deeper": "deeper"}


def minutes(path, as_read=False):
    """Return the minutes of a page by part: path, exercises, deeper.

    With `as_read`, of somebody who only reads: a piece or a widget to be worked counts as any other cell.
    """
    spent = {"path": 0.0, "exercises": 0.0, "deeper": 0.0}
    part, labelled = "path", False
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            spent[part] += 0.0 if labelled else of_code(cell, as_read)
            continue
        for section in SECTION.split("".join(cell["source"])):
            if heading := re.match(r"## (.*)", section):
                part = ASIDE.get(heading[1].strip(), "path")
            label = None if as_read else EXERCISE.match(section)
            if label:
                spent[part] += int(label[1])
            # An exercise ends where another section begins; its title covers its text, stub, check and hints.
            labelled = bool(label) or (labelled and not SECTION.match(section))
            spent[part] += 0.0 if labelled else of_text(section)
    return spent


def writing(path):
    """Return the minutes in which the reader of a page writes its pieces."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return round(sum(of_code(cell) for cell in cells if STUB.fullmatch(cell["id"])))


def of_text(text):
    """Return the minutes of prose, including displayed equations."""
    text = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    equations = re.findall(r"\$\$.*?\$\$", text, flags=re.DOTALL)
    for equation in equations:
        text = text.replace(equation, "")
    text = re.sub(r"\]\([^)]*\)|\{[\w:]+\}`[^`]*`|\$[^$]*\$|[|#*>-]", " ", text)
    return len(re.findall(r"\w[\w'’]*", text)) / WORDS + FIGURE * len(equations)


def of_code(cell, as_read=False):
    """Return the minutes of a cell: its code, if visible, and its outputs."""
    tags = set(cell["metadata"].get("tags", []))
    if tags & {"hide-cell", "remove-cell"} or cell["id"] == "setup":
        return 0.0
    if not as_read and (piece := STUB.fullmatch(cell["id"])):
        large = piece[1] in LARGE_PIECES
        return float((LARGE_PIECE if large else PIECE) * (piece[2] == "stub"))
    spent = float(CELL * (not tags & HIDDEN))
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = "".join(data.get("text/plain", []))
        if asked := re.match(r"Quiz\((\d+) question", text):
            spent += QUESTION * int(asked[1])
        elif VIEW in data:
            spent += BY_HAND if PENCIL.match(text) and not as_read else WIDGET
        elif "image/png" in data or IMAGE.search("".join(data.get("text/html", []))):
            spent += FIGURE
    return spent


def pages():
    """Return the pages with code, in the order of their names."""
    return [ROOT / "index.ipynb", *sorted(ROOT.glob("chapters/*.ipynb"))]


def said(path):
    """Return the text for the head of a page, such as "50 minutes; 20 more for all exercises"."""
    way, exercises, deeper = (round(n) for n in minutes(path).values())
    own = f", {writing(path)} of them writing code" * (writing(path) > 0)
    more = f"{own}; {exercises} more for all exercises" * (exercises > 0)
    more += f"; {deeper} for *Going deeper*" * (deeper > 0)
    return f"**Time**: {way} minutes{more}"


def with_minutes(path, source):
    """Return the text of a page with up-to-date minutes in its head and in a list of pages."""
    source = HEAD.sub(lambda _: said(path), source)

    return ROW.sub(
        lambda row: f"{row[1]}{in_a_list(ROOT / 'chapters' / row[2])} |", source
    )


def in_a_list(path):
    """Return the minutes of a page in a list of pages, such as "50 + 20": its path and all its exercises."""
    way, exercises, _ = (round(n) for n in minutes(path).values())
    return f"{way} + {exercises}" if exercises else str(way)


def main(arguments=None):
    """Print the minutes of each page, or write them into the pages."""
    if (sys.argv[1:] if arguments is None else arguments) != ["--write"]:
        print("path  exercises  deeper")
        for path in pages():
            spent = [round(n) for n in minutes(path).values()]
            print("{:4} {:10} {:7}  {}".format(*spent, path.stem))
        return
    for path in pages():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = with_minutes(path, "".join(cell["source"]))
                cell["source"] = text.splitlines(keepends=True)
        text = json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    plans = with_minutes(TEACHERS, TEACHERS.read_text(encoding="utf-8"))
    TEACHERS.write_text(plans, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
