"""Run notebooks as a reader on Colab does, with the packages of Colab's image.

    python3 tools/run_as_colab.py FOLDER [NAME ...]

The folder contains the branch `published`, with notebooks whose set-up cells install the packages that the
book serves; without names, all of them run. No output is compared, because the cells assert what their page
claims, but nothing may be printed on stderr, and each widget must come with what Colab needs to show it.
This script needs only what the image has, and installs nothing else.
"""

import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

# On Colab, the kernel has imported this before the first cell.
LIKE_COLAB = "import google.colab.output"
COLOURS = re.compile(r"\x1b\[[\d;]*m")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def executed(path):
    """Run a notebook in an empty folder and return it with its outputs. Raises CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(LIKE_COLAB))
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        options = {"kernel_name": "python3", "timeout": 1800, "resources": resources}
        NotebookClient(notebook, **options).execute()
    return notebook


def run(path):
    """Run a notebook; return what a reader would complain about, or None."""
    try:
        notebook = executed(path)
    except CellExecutionError as error:
        return COLOURS.sub("", str(error))
    return "\n".join(filter(None, map(complaint, notebook.cells))) or None


def complaint(cell):
    """Return what is wrong with the outputs of a cell that ran, or None."""
    for output in cell.get("outputs", []):
        if output.get("name") == "stderr":
            return f"{cell.source}\n----\nprints on stderr: {output.text}"
        shown = output.get("metadata", {}).get(WIDGET_VIEW, {})
        if WIDGET_VIEW in output.get("data", {}) and "colab" not in shown:
            return f"{cell.source}\n----\nits widget names no manager: Colab cannot show it"
    return None


def main(arguments):
    """Run from the command line; the exit status is 1 if any notebook fails."""
    folder, *names = arguments
    folder = Path(folder)
    paths = [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("chapters/*.ipynb"))]
    paths.append(folder / "colab" / "attention_pytorch.ipynb")
    failed = []
    for path in [folder / name for name in names] or paths:
        fault = run(path)
        print(f"{path.name}: {'FAILED' if fault else 'ok'}", flush=True)
        if fault:
            print(fault, flush=True)
            failed.append(path.name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
