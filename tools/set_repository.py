"""Change the repository's address everywhere, or put the one in _config.yml wherever it belongs.

    python tools/set_repository.py [https://github.com/OWNER/NAME]

The address stands in _config.yml; the book's links come from there. It is repeated where a reader or a
machine needs it in full: the set-up cell of every chapter, README.md and the other pages, the package's
metadata. The text of the set-up cell is defined here, once.
"""

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
PLACES = [
    "*.md",
    "pyproject.toml",
    "chapters/*.md",
    "chapters/*.bib",
    "index.ipynb",
    "chapters/*.ipynb",
    "colab/*.ipynb",
    ".github/workflows/*.yml",
]
ADDRESS = re.compile(r"^(  url: )https://github\.com/([\w.-]+/[\w.-]+)$", re.MULTILINE)

SETUP_CELL = """\
# On Colab this installs the course's package, and nothing that is there already. Elsewhere it does nothing.
import importlib.util
import subprocess
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("mha_lib") is None:
    package = "git+https://github.com/{repository}@{branch}"
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", package])

import mha_lib  # noqa: F401"""
SETUP_METADATA = {
    "tags": ["hide-input"],
    "mystnb": {
        "code_prompt_show": "Show the set-up for Colab",
        "code_prompt_hide": "Hide the set-up for Colab",
    },
    "cellView": "form",
    "jupyter": {"source_hidden": True},
}


def read_address(root=ROOT):
    """Return "OWNER/NAME" and the branch, from _config.yml."""
    text = (root / "_config.yml").read_text(encoding="utf-8")
    branch = re.search(r"^  branch: (\S+)$", text, re.MULTILINE)
    return ADDRESS.search(text)[2], branch[1]


def setup_cell(repository, branch):
    """Return the source of the first code cell of every chapter."""
    return SETUP_CELL.format(repository=repository, branch=branch)


def set_repository(new=None, root=ROOT):
    """Write "OWNER/NAME" into _config.yml and wherever the old one stands; without it renew what derives."""
    old, branch = read_address(root)
    new = new or old
    config = root / "_config.yml"
    config.write_text(
        ADDRESS.sub(rf"\g<1>https://github.com/{new}", config.read_text("utf-8")),
        "utf-8",
    )
    for path in sorted(path for place in PLACES for path in root.glob(place)):
        text = path.read_text(encoding="utf-8")
        for form in (
            "github.com/{0}/{1}",
            "colab.research.google.com/github/{0}/{1}",
            "{0}.github.io/{1}",
        ):
            text = re.sub(
                re.escape(form.format(*old.split("/"))) + r"\b",
                form.format(*new.split("/")),
                text,
            )
        path.write_text(text, encoding="utf-8")
        # The build made the notebooks of programs, which have a set-up of their own.
        if path.suffix == ".ipynb" and path.parent.name != "colab":
            notebook = nbformat.reads(text, as_version=4)
            write_setup_cell(notebook, setup_cell(new, branch))
            nbformat.write(notebook, path)


def write_setup_cell(notebook, source):
    """Put the set-up into the cell named "setup", or into a new one before the first code cell."""
    named = [cell for cell in notebook.cells if cell.id == "setup"]
    if not named:
        first = next(
            (n for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"),
            len(notebook.cells),
        )
        named = [nbformat.v4.new_code_cell(id="setup")]
        notebook.cells.insert(first, named[0])
    named[0].source = source
    if "remove-input" not in named[0].metadata.get("tags", []):  # not shown at all
        named[0].metadata = nbformat.from_dict(SETUP_METADATA)


def main(arguments):
    """Run from the command line; the exit status is 2 for an address that is none."""
    new = None
    if arguments:
        match = re.fullmatch(
            r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", arguments[0]
        )
        if not match:
            print(
                f"URL must be https://github.com/OWNER/NAME, as Colab opens GitHub only, got {arguments[0]!r}"
            )
            return 2
        new = match[1]
    set_repository(new)
    print("The repository's address is https://github.com/" + read_address()[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
