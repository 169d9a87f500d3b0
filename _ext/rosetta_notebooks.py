"""Write the programs in chapters/rosetta as notebooks for Colab, into the folder colab.

A notebook has a cell for each definition of its program, under the program's headings. The first cell fetches
what the programs share; the last one compares all cases with loops. Git holds the notebooks because Colab
opens only files in a branch; nobody edits them.
"""

import re
import shutil
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "chapters" / "rosetta"
STORED = ROOT / "colab"
# The programs whose frameworks Colab has installed.
PROGRAMS = [
    f"attention_{name}.py" for name in ("pytorch", "jax", "tensorflow", "keras")
]
HEADING = re.compile(
    r"^# (From nothing|The framework's own layer|The program)\n", re.MULTILINE
)

INTRODUCTION = """\
# {title}

The build of the course made this notebook of [{file}]({address}/blob/{branch}/chapters/rosetta/{file}).
Run all cells, change a line, and run them again: the last cell says what no longer agrees.

Keep Colab's runtime without an accelerator: GPUs round float32 products more than the comparison allows."""
SETUP = """\
# On Colab this fetches the course, for cases and comparison. Elsewhere, clone it into the folder course.
import subprocess
import sys
from pathlib import Path

course = Path("course")
if "google.colab" in sys.modules and not course.is_dir():
    clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", "{branch}"]
    subprocess.check_call([*clone, "{address}", str(course)])
sys.path[:0] = [str(course / part) for part in ("chapters/rosetta", "tools")]"""
PACKAGE = """\
# This program compares with the course's own layer, so the course's package is installed too.
package = "git+{address}@{branch}"
subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", package])"""
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


def notebook_of(path, address, branch):
    """Return the notebook of a program; `address` is its repository, https://github.com/OWNER/NAME."""
    names = {"file": path.name, "address": address, "branch": branch}
    text = path.read_text(encoding="utf-8").partition('\nif __name__ == "__main__":')[0]
    _, title, text = text.split('"""', 2)
    imports, *parts = HEADING.split(text)
    markdown, code = new_markdown_cell, new_code_cell
    cells = [
        markdown(INTRODUCTION.format(title=title.partition(":")[0], **names)),
        code(SETUP.format(**names)),
    ]
    if "import mha_lib" in imports or "from mha_lib" in imports:
        cells.append(code(PACKAGE.format(**names)))
    cells.append(code(imports.strip()))
    for heading, part in zip(parts[::2], parts[1::2], strict=True):
        cells.append(markdown(f"## {heading}"))
        cells += [code(definition) for definition in part.strip().split("\n\n\n")]
    cells += [
        markdown(
            "## All cases\n\nThe answers come from loops over single numbers in float64. "
            "An error names the first case that differs; the numbers are the largest differences."
        ),
        code(COMPARE),
    ]
    for number, cell in enumerate(cells):
        cell.id = f"cell{number:02}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return new_notebook(cells=cells, metadata=kernel)


def stored_text(path, address, branch):
    """Return the text of the stored notebook of a program."""
    return nbformat.writes(notebook_of(path, address, branch)) + "\n"


def write_notebooks(app, exception):
    """Write the notebooks that are missing or outdated, and copy all beside the pages for download."""
    if exception or app.builder.format != "html":
        return
    options = app.config.html_theme_options
    address, branch = options["repository_url"], options["repository_branch"]
    for name in PROGRAMS:
        text = stored_text(FOLDER / name, address, branch)
        path = (STORED / name).with_suffix(".ipynb")
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            STORED.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    shutil.copytree(STORED, Path(app.outdir) / "colab", dirs_exist_ok=True)


def setup(app):
    """Register the above with Sphinx."""
    app.connect("build-finished", write_notebooks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
