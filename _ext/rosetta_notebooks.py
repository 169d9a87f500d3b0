"""Publish notebooks for Colab: copies of the chapters, and the programs in chapters/rosetta.

Besides its pages, the built book contains three folders:

* wheel: the packages and the programs that notebooks fetch;
* _sources: the stored chapters, except that their set-up cells name the wheels with their SHA-256;
* colab: a notebook for each program, with a cell for each definition, under the program's headings. The first
  cell fetches what the programs share; the last one compares all cases with loops.

Continuous integration pushes the notebooks to a branch, because Colab opens only notebooks in a branch.
"""

import re
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import course_files  # noqa: E402
from set_repository import book_address, publish, setup_cell  # noqa: E402

FOLDER = ROOT / "chapters" / "rosetta"
# The programs whose frameworks are installed on Colab.
NAMES = ("pytorch", "jax", "tensorflow", "keras")
PROGRAMS = [f"attention_{name}.py" for name in NAMES]
PARTS = "From nothing|The framework's own layer|The program"
HEADING = re.compile(rf"^# ({PARTS})\n", re.MULTILINE)

INTRODUCTION = """\
# {title}

The build of the course made this notebook of [{file}]({address}/blob/{branch}/chapters/rosetta/{file}).
Run all cells, change a line, and run them again: the last cell says what no longer agrees.

Keep Colab's runtime without an accelerator: GPUs round float32 products more than the comparison allows."""
SETUP = """\
# On Colab this fetches the course's programs, for cases and comparison: the very file
# that this notebook was made with. Elsewhere, clone the course into the folder course.
import hashlib
import io
import sys
import urllib.request
import zipfile
from pathlib import Path

course = Path("course")
if "google.colab" in sys.modules and not course.is_dir():
    book = "{book}"
    programs = "{programs}"
    sha256 = "{sha256}"
    try:
        with urllib.request.urlopen(f"{{book}}/{{programs}}", timeout=60) as answer:
            archive = answer.read()
    except OSError as error:
        reason = f"could not be fetched from {{book}}. Is there a network?"
        raise RuntimeError(f"The course's programs {{reason}} ({{error}})") from None
    if hashlib.sha256(archive).hexdigest() != sha256:
        reason = f"are not those of this notebook: open it again from {{book}}."
        raise RuntimeError(f"The course's programs {{reason}}")
    zipfile.ZipFile(io.BytesIO(archive)).extractall(course)
sys.path[:0] = [str(course / part) for part in ("chapters/rosetta", "tools")]"""
ALL_CASES = """\
## All cases

The answers come from loops over single numbers in float64. \
An error names the first case that differs; the numbers are the largest differences."""
COMPARE = """\
import rosetta

results = {
    case.name: {
        name: {"float32": program.run_case(way, case, "float32")}
        for name, way in WAYS.items()
    }
    for case in program.read_vectors(rosetta.VECTORS)
}
for case, ways in rosetta.compare(results).items():
    for way, found in ways.items():
        print(f"{case}, {way}: {found['float32']}")"""


def notebook_of(path, address, branch, files):
    """Return the notebook of a program.

    `address` is its repository, https://github.com/OWNER/NAME; `files` are the wheels and the programs that
    the book serves.
    """
    *wheels, programs = files
    repository = address.removeprefix("https://github.com/")
    names = {"file": path.name, "address": address, "branch": branch}
    names |= {"book": book_address(repository), "sha256": programs.sha256}
    names |= {"programs": f"{course_files.FOLDER}/{programs.name}"}
    text = path.read_text(encoding="utf-8").partition('\nif __name__ == "__main__":')[0]
    _, title, text = text.split('"""', 2)
    imports, *parts = HEADING.split(text)
    markdown, code = new_markdown_cell, new_code_cell
    cells = [
        markdown(INTRODUCTION.format(title=title.partition(":")[0], **names)),
        code(SETUP.format(**names)),
    ]
    if "import mha_lib" in imports or "from mha_lib" in imports:
        # This program also compares with the course's own layer.
        cells.append(code(setup_cell(repository, wheels)))
    cells.append(code(imports.strip()))
    for heading, part in zip(parts[::2], parts[1::2], strict=True):
        cells.append(markdown(f"## {heading}"))
        cells += [code(definition) for definition in part.strip().split("\n\n\n")]
    cells += [markdown(ALL_CASES), code(COMPARE)]
    for number, cell in enumerate(cells):
        cell.id = f"cell{number:02}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return new_notebook(cells=cells, metadata=kernel)


def write_notebooks(app):
    """Write the files that Colab fetches, and the notebooks that name them, into the finished book."""
    options, book = app.config.html_theme_options, Path(app.outdir)
    *wheels, programs = course_files.write(book / course_files.FOLDER)
    for page in (book / "_sources").rglob("*.ipynb"):
        # Sphinx copies only pages that changed; the wheels may have changed since.
        stored = Path(app.srcdir) / page.relative_to(book / "_sources")
        notebook = nbformat.read(stored, as_version=4)
        publish(page.stem, notebook, wheels)
        nbformat.write(notebook, page)
    (book / "colab").mkdir(exist_ok=True)
    source = (options["repository_url"], options["repository_branch"])
    for name in PROGRAMS:
        notebook = notebook_of(FOLDER / name, *source, [*wheels, programs])
        nbformat.write(notebook, (book / "colab" / name).with_suffix(".ipynb"))
