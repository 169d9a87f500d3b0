"""Change the repository's address everywhere, or write the one from _config.yml wherever it belongs.

    python tools/set_repository.py [https://github.com/OWNER/NAME]

The address is in _config.yml, from which the book's links come. It is repeated where a reader or a machine
needs it in full: in the set-up cell of every chapter, in README.md and other pages, and in the packages'
metadata. The text of the set-up cell is defined only here. In git, it names no files; the build adds the
wheels that the book serves, with their SHA-256, to the copies that are published.
"""

import re
import sys
from pathlib import Path

import nbformat
from captions import fold_measurements, put_numbers
from course_files import FOLDER
from nbformat.v4 import new_markdown_cell

ROOT = Path(__file__).resolve().parent.parent
PLACES = """*.md CITATION.cff _config.yml pyproject.toml */pyproject.toml chapters/*.md
    chapters/*.bib index.ipynb chapters/*.ipynb .github/workflows/*.yml locale/**/*.po""".split()
# Where Colab opens notebooks: the branch to which continuous integration pushes what the build has made.
PUBLISHED = "published"
OPENED = re.compile(
    r"(colab\.research\.google\.com/github/[\w.-]+/[\w.-]+/blob/)[\w.-]+/"
)
ADDRESS = re.compile(r"^(  url: )https://github\.com/([\w.-]+/[\w.-]+)$", re.MULTILINE)

SETUP_CELL = """\
# On Colab this installs the course's three packages, the very files that this page
# was made with, and two small ones that they need. Elsewhere it says what to install.
import importlib.util
import subprocess
import sys

names = ("mha_lib", "attention_check", "mha_course")
if None in map(importlib.util.find_spec, names):
    book = "BOOK"
FILES
    if "google.colab" not in sys.modules:
        parts = [f'"{line}"' for line in files.splitlines() if " @ " in line]
        command = " ".join([f'"{sys.executable}" -m pip install', *parts])
        command = command.replace(" --hash=sha256:", "#sha256=")
        raise ModuleNotFoundError(
            "The course's packages are missing here. Paste this into a terminal, then "
            f"restart the kernel and run this cell again:\\n\\n{command}"
        )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--require-hashes", "--only-binary", ":all:", "-r", "/dev/stdin"]
    done = subprocess.run(pip, input=files, capture_output=True, text=True)
    if done.returncode:
        reason = f"could not be installed from {book}. Is there a network?"
        if "HASHES" in done.stderr:
            reason = f"is not the one of this notebook: open it again from {book}."
        raise RuntimeError(f"The course's package {reason}\\n{done.stderr[-1500:]}")

import mha_course  # noqa: F401
import mha_lib  # noqa: F401"""
# In git, the set-up names no files, because each change of the packages changes their hashes.
NO_FILES = """\
    files = ""  # the build of the book writes here what it serves
    if not files:
        reason = f"This copy names no packages; {book} opens one that does."
        raise RuntimeError(f"{reason} `make book` installs them beside it.")"""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
TITLE = "# @title "
# Packages that ours need and Colab lacks. From PyPI, pip accepts only the pinned files.
NOT_ON_COLAB = ("jaxtyping", "wadler-lindig")
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


def book_address(repository):
    """Return where GitHub Pages serves the book of "OWNER/NAME"."""
    owner, name = repository.split("/")
    site = f"https://{owner.lower()}.github.io"
    return site if name.lower() == f"{owner.lower()}.github.io" else f"{site}/{name}"


def setup_cell(repository, wheels=()):
    """Return the source of the first code cell of every chapter; in a published copy, it names the wheels."""
    lines = [
        f"{file.project} @ {{book}}/{FOLDER}/{file.name} --hash=sha256:{file.sha256}\n"
        for file in wheels
    ]
    named = "".join([*lines, *map(pin_of, NOT_ON_COLAB)])
    files = f'    files = f"""\n{named}"""' if wheels else NO_FILES
    return SETUP_CELL.replace("BOOK", book_address(repository)).replace("FILES", files)


def pin_of(package):
    """Return the lines of requirements.txt that pin a package, with the hashes of its files."""
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    [pin] = re.findall(rf"^{package}==(?:.*\\\n)+.*\n", pins, re.MULTILINE)
    return pin


def setup_of_this_course(wheels=()):
    """Return the source of the set-up for the address of this working tree."""
    return setup_cell(read_address()[0], wheels)


def publish(page, notebook, wheels):
    """Write the wheels into the set-up of a stored notebook, in place, for readers to download and open."""
    write_setup_cell(notebook, setup_of_this_course(wheels))
    show_pictures(notebook)
    put_numbers(page, notebook)
    fold_measurements(notebook, printed=False)
    show_captions(notebook)
    title_folds(notebook)


def title_folds(notebook):
    """Begin each folded cell, in place, with the title that its fold has on the page.

    Colab shows such a line as the title of the cell, and JupyterLab the first line, whatever it is: without a
    title it would be the import or the first step of a solution.
    """
    for cell in notebook.cells:
        titled = cell.source.startswith(TITLE)
        if cell.metadata.get("cellView") == "form" and not titled:
            title = cell.metadata.get("mystnb", {}).get("code_prompt_show", "Show code")
            cell.source = f"{TITLE}{title}\n{cell.source}"


def show_captions(notebook):
    """Write the caption of each figure in a cell below it, in place: only the page reads the metadata."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if figure := cell.metadata.get("mystnb", {}).get("figure"):
            text = figure["caption"]
            cells.append(new_markdown_cell(text, id=f"{cell.id}-caption"))
    notebook.cells = cells


def show_pictures(notebook):
    """Leave of each stored widget, in place, what needs no widget manager: a picture of it, or its text.

    A stored notebook has no code of widgets, so no front end can show one before its cell has run.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)


def set_repository(new=None, root=ROOT):
    """Replace the old address by "OWNER/NAME" everywhere, or else renew the copies of the present one."""
    old, _ = read_address(root)
    new = new or old
    config = root / "_config.yml"
    address = rf"\g<1>https://github.com/{new}"
    rewrite(config, ADDRESS.sub(address, config.read_text("utf-8")))
    paths = sorted({path for place in PLACES for path in root.glob(place)})
    for path in paths:
        text = path.read_text(encoding="utf-8")
        # This replaces addresses on GitHub and on Colab.
        text = re.sub(rf"(\bgithub(\.com)?/){re.escape(old)}\b", rf"\g<1>{new}", text)
        text = re.sub(rf"{re.escape(book_address(old))}\b", book_address(new), text)
        text = OPENED.sub(rf"\g<1>{PUBLISHED}/", text)
        if path.suffix == ".ipynb":
            notebook = nbformat.reads(text, as_version=4)
            write_setup_cell(notebook, setup_cell(new))
            text = nbformat.writes(notebook) + "\n"
        rewrite(path, text)


def rewrite(path, text):
    """Write a file unless it has this text already; `make` would install again what has a newer date."""
    if path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_setup_cell(notebook, source):
    """Write the set-up into the cell named "setup", or into a new cell before the first code cell."""
    named = [cell for cell in notebook.cells if cell.id == "setup"]
    if not named:
        kinds = [*(cell.cell_type for cell in notebook.cells), "code"]
        named = [nbformat.v4.new_code_cell(id="setup")]
        notebook.cells.insert(kinds.index("code"), named[0])
    named[0].source = source
    if "remove-input" not in named[0].metadata.get("tags", []):  # not shown at all
        named[0].metadata = nbformat.from_dict(SETUP_METADATA)


def main(arguments):
    """Run from the command line; the exit status is 2 for an invalid address."""
    new = None
    if arguments:
        form = r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?"
        match = re.fullmatch(form, arguments[0])
        if not match:
            rule = "be https://github.com/OWNER/NAME, as Colab opens GitHub only"
            print(f"URL must {rule}, got {arguments[0]!r}")
            return 2
        new = match[1]
    set_repository(new)
    address = read_address()[0]
    print(f"The repository's address is https://github.com/{address}")
    print(f"The book's address is {book_address(address)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
