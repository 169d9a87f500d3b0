"""Numbers of figures, as in "Figure 3.1", and the fold *How measured* below what a cell shows.

    python tools/captions.py           names links to figures that say a wrong number, or lead to none
    python tools/captions.py --write   corrects the numbers

A figure is a cell with a caption and a name. Its number begins with that of the chapter, or with the letter
of the appendix. Texts refer to it as [Figure 3.1](#fig-name), which reads well wherever a notebook is opened.
How something was measured stands in the metadata `measured` of its cell, and in the lines "Still learning
after 200 steps: ..." that cells print.
"""

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import yaml
from stored_notebooks import ROOT, notebooks

LINK = re.compile(r"\[Figure[^\]]*\]\((?:[\w.]+)?#([\w-]+)\)")
FOLD = '<details class="measured"><summary>How measured</summary>\n\n{}\n\n</details>'
STILL = re.compile(r"^Still learning after [\d,]+ steps: .+\.\n?", re.MULTILINE)


def prefix(page: str) -> str:
    """What the numbers of a page begin with: "3." for a chapter, "B." for the second appendix."""
    if number := re.match(r"\d+", page):
        return f"{int(number[0])}."
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [Path(entry["file"]).name for entry in contents["parts"][-1]["chapters"]]
    return f"{chr(ord('A') + files.index(page))}."


def figures(page: str, notebook) -> dict[str, str]:
    """The numbers of a page's figures by their names, in the order of the page."""
    shown = (cell["metadata"].get("mystnb", {}) for cell in notebook["cells"])
    names = [one["figure"]["name"] for one in shown if "figure" in one]
    return {
        name: f"Figure {prefix(page)}{number}" for number, name in enumerate(names, 1)
    }


def put_numbers(page: str, notebook) -> None:
    """Let each caption begin with its number, in place."""
    numbers = figures(page, notebook)
    for cell in notebook["cells"]:
        if figure := cell["metadata"].get("mystnb", {}).get("figure"):
            figure["caption"] = f"**{numbers[figure['name']]}.** {figure['caption']}"


def tags_of(cell) -> list[str]:
    """The tags of a cell."""
    tags: list[str] = cell["metadata"].get("tags", [])
    return tags


def printed_below(cell) -> Iterator[str]:
    """Take from a cell's outputs, in place, the lines about models that were still learning."""
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            text = "".join(output["text"])
            yield from (html.escape(line.strip()) for line in STILL.findall(text))
            output["text"] = STILL.sub("", text)


def fold_measurements(notebook, *, printed: bool) -> None:
    """Put how something was measured into a fold below its cell, in place, and what was `printed`."""
    cells = []
    for cell in notebook["cells"]:
        cells.append(cell)
        measured = cell["metadata"].get("measured")
        said = [measured] if measured else []
        notes = [*printed_below(cell)] if printed else []
        # Below a question, they might give the answer away.
        if "quiz(" not in "".join(cell["source"]) and "remove-cell" not in tags_of(
            cell
        ):
            said += notes
        if notes:
            cell["outputs"] = [one for one in cell["outputs"] if one.get("text") != ""]
        if said:
            text = FOLD.format(" ".join(said))
            below = nbformat.v4.new_markdown_cell(text, id=f"{cell['id']}-measured")
            cells.append(below)
    notebook["cells"] = cells


def corrected(source: str, numbers: dict[str, str]) -> tuple[str, list[str]]:
    """A text whose links say the right numbers, and what was wrong with it."""
    faults = []

    def correct(link: re.Match[str]) -> str:
        if link[1] not in numbers:
            faults.append(f"{link[0]} leads to no figure")
            return link[0]
        right = re.sub(r"\[.*\]", f"[{numbers[link[1]]}]", link[0])
        if right != link[0]:
            faults.append(f"{link[0]} is {numbers[link[1]]}")
        return right

    return LINK.sub(correct, source), faults


def main(arguments: list[str]) -> int:
    """Run from the command line."""
    pages = {path: nbformat.read(path, as_version=4) for path in notebooks()}
    numbers: dict[str, str] = {}
    for path, notebook in pages.items():
        if path.stem != "index":
            numbers |= figures(path.stem, notebook)
    wrong = 0
    for path in pages:
        text = path.read_text(encoding="utf-8")
        new, faults = corrected(text, numbers)
        for fault in faults:
            print(f"{path.relative_to(ROOT)}: {fault}")
        if arguments == ["--write"] and new != text:
            path.write_text(new, encoding="utf-8")
        wrong += len(faults)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
