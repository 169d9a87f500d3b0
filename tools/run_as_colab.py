"""Run every notebook as a reader on Colab does, in the image that Colab publishes.

    python3 tools/run_as_colab.py FOLDER

The folder contains the branch `published`, with notebooks whose set-up cells install the packages that the
book serves. Nothing is compared, because the cells assert what their page claims. This script needs only
what the image has, and installs nothing else.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

# On Colab, the kernel has imported this before the first cell.
LIKE_COLAB = "import google.colab"


def run(path):
    """Run a notebook in an empty folder; return the error of the cell that fails, or None."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(LIKE_COLAB))
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        options = {"kernel_name": "python3", "timeout": 1800, "resources": resources}
        client = NotebookClient(notebook, **options)
        try:
            client.execute()
        except CellExecutionError as error:
            return str(error)
    return None


def main(arguments):
    """Run from the command line; the exit status is 1 if any notebook fails."""
    [folder] = map(Path, arguments)
    paths = [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("chapters/*.ipynb"))]
    paths.append(folder / "colab" / "attention_pytorch.ipynb")
    failed = []
    for path in paths:
        error = run(path)
        print(f"{path.name}: {'FAILED' if error else 'ok'}", flush=True)
        if error:
            print(error, flush=True)
            failed.append(path.name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
