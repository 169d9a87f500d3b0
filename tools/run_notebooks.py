"""Run the chapters and store them with their outputs, normalised so that a diff shows only what changed.

    python tools/run_notebooks.py [--jobs N] [NOTEBOOK ...]

Each notebook runs in a fresh kernel, alone in an empty folder, without a network. It must print nothing on
stderr, raise no error and leave no files behind. By default, the landing page and all of chapters/ run.
"""

import argparse
import asyncio
import copy
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import built
import nbformat
from drawings import put_back, store_images
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from stored_notebooks import WIDGET_STATE, WIDGET_VIEW, notebooks, shrink_figure
from widget_code import without_code

# How the state of a widget model refers to another model.
REFERENCE = re.compile('"IPY_MODEL_([^"]+)"')
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
# The first line of an exercise: its number, its stars and its minutes.
PIECE = re.compile(
    r"^\*\*Write `(\w+)`\.\*\*", re.MULTILINE
)  # a part of the reader's own layer
TASK = re.compile(r"(#+ Exercise )\d+( ★{1,3} .* \(\d+ minutes\))")
SOLUTION = {"code_prompt_show": "Show solution", "code_prompt_hide": "Hide solution"}
# A progress bar would stay in the stored output as text, although it disappears from the screen.
NO_BARS = {"TQDM_DISABLE": "1"}
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
NO_NETWORK = dict.fromkeys(PROXIES, "http://127.0.0.1:9")
KEPT = ("tags", "mystnb", "measured", "numbers", "settled")  # of a cell's metadata


def main(arguments=None):
    """Run the notebooks named on the command line; the exit status is 1 if any of them fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args(arguments)
    paths = options.notebooks or notebooks()

    built.main([])  # later pages import what earlier pages define
    with ThreadPoolExecutor(options.jobs) as pool:
        good = list(pool.map(run_and_store, paths))
    return 0 if good and all(good) else 1


def run_and_store(path):
    """Run one notebook and write it back; if it fails, say why and leave the file alone."""
    notebook = nbformat.read(path, as_version=4)
    started = time.monotonic()
    try:
        run(notebook)
    except (CellExecutionError, RunError) as error:
        print(f"{path.name}: FAILED\n{error}", flush=True)
        return False
    stored = normalise(notebook)
    # Only this function needs a browser; the module is also imported where there is none.
    from stills import add_stills

    add_stills(stored)
    nbformat.write(stored, path)
    print(f"{path.name}: {time.monotonic() - started:.1f} s", flush=True)
    return True


class RunError(Exception):
    """A notebook ran to the end, but did something that a chapter must not do."""


def run(notebook, *, timeout=300):
    """Execute a notebook in place. Raises CellExecutionError or RunError."""
    temporary = tempfile.TemporaryDirectory
    with temporary() as folder, temporary() as settings:
        # The author's own IPython start-up files must not reach the stored outputs.
        environment = os.environ | NO_NETWORK | NO_BARS | {"IPYTHONDIR": settings}
        options = {"kernel_name": "python3", "timeout": timeout, "record_timing": False}
        options["extra_arguments"] = ["--log-level=ERROR"]
        options["resources"] = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, **options)
        # Not client.execute, which leaves the event loop of each run open.
        asyncio.run(client.async_execute(env=environment))
        left_behind = sorted(os.listdir(folder))
    if left_behind:
        raise RunError(f"the notebook leaves files behind: {left_behind}")
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                said = f"{cell.source}\n----\n{output.text}"
                raise RunError(f"cell {number} writes to stderr:\n{said}")


def normalise(notebook):
    """Bring a notebook into the form in which it is stored; normalising twice changes nothing.

    Outputs keep their content, figures in 256 colours. Everything that differs between two runs or two
    editors is removed: timestamps, counts, random ids, interface state, the division of a stream into pieces.
    The stored form of a cell does not depend on other cells, so inserting a cell leaves the others unchanged.
    """
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    names = {}  # old id of a widget model -> new id
    name_exercises(notebook.cells)
    for cell in notebook.cells:
        cell.id = cell.get("id") or hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        cell.source = cell.source.rstrip()
        kept = {k: v for k, v in cell.metadata.items() if k in KEPT}
        cell.metadata = nbformat.from_dict(kept)
        fold(cell)
        if cell.cell_type == "code":
            normalise_outputs(cell, names)
    metadata = {k: v for k, v in notebook.metadata.items() if k == "mystnb"}
    metadata |= {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    states = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    shown = shown_models(states, names)
    if shown:
        bundle = {"state": shown, "version_major": 2, "version_minor": 0}
        metadata["widgets"] = {WIDGET_STATE: bundle}
    notebook.metadata = nbformat.from_dict(metadata)
    nbformat.validate(notebook)
    return notebook


def name_exercises(cells):
    """Number the exercises of a page in order, and give their five cells the ids that tests look for.

    The cells are recognised by what an author writes in JupyterLab: a task with stars, or with the name of
    the piece that a reader writes; a stub to fill in, a call of a checker, hints, and a folded solution.
    """
    number, name, parts = 0, "", []
    for cell in cells:
        if cell.cell_type == "markdown" and TASK.match(cell.source):
            number, parts = number + 1, ["stub", "check", "hints", "solution"]
            name = f"ex{number}"
            cell.id = f"{name}-task"
            cell.source = TASK.sub(rf"\g<1>{number}\2", cell.source, count=1)
        elif cell.cell_type == "markdown" and (piece := PIECE.search(cell.source)):
            name, parts = f"write-{piece[1]}", ["stub", "check", "hints", "solution"]
        elif parts and is_part(parts[0], cell):
            cell.id = f"{name}-{parts.pop(0)}"
            if not parts:
                cell.metadata["mystnb"] = cell.metadata.get("mystnb", {}) | SOLUTION


def is_part(part, cell):
    """Whether a cell may be this part of an exercise."""
    if part == "hints":
        return cell.source.startswith("<details><summary>Hint")
    return cell.cell_type == "code" and {
        "stub": cell.source.rstrip().endswith("    ..."),
        "check": re.search(r"^check_\w+\(", cell.source, re.MULTILINE) is not None,
        "solution": "hide-cell" in cell.metadata.get("tags", []),
    }.get(part, False)


def normalise_outputs(cell, names):
    """Bring the outputs of a cell into their stored form; widgets get its id, further ones with a number.

    `names` maps the old ids of widget models to new ones; new entries are added.
    """
    cell.execution_count = None
    cell.outputs = merge_streams(cell.outputs)
    put_back(cell.outputs)
    views = 0
    for output in cell.outputs:
        data = output.get("data", {})
        if "execution_count" in output:
            output.execution_count = None
        if "metadata" in output:
            # The page would draw the figure in the size given there.
            output.metadata = nbformat.from_dict({})
        if "image/png" in data:
            data["image/png"] = shrink_figure(data["image/png"])
        if view := data.get(WIDGET_VIEW):
            views += 1
            name = cell.id if views == 1 else f"{cell.id}.{views}"
            view["model_id"] = names.setdefault(view["model_id"], name)
    store_images(cell)


def fold(cell):
    """Fold a cell in JupyterLab and Colab too if the page folds its source or does not show it.

    The source of a question contains its answer.
    """
    tags = cell.metadata.get("tags", [])
    if {"hide-cell", "hide-input", "remove-cell", "remove-input"} & set(tags):
        cell.metadata["cellView"] = "form"  # Colab's name for hidden source
        cell.metadata["jupyter"] = {"source_hidden": True}
    if "hide-cell" in tags:
        cell.metadata["jupyter"]["outputs_hidden"] = True


def merge_streams(outputs):
    """Join neighbouring pieces of the same stream, because a run divides it at random."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        same = last and output.output_type == "stream" == last.output_type
        if same and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def shown_models(states, names):
    """Return the widget models in outputs, and the models to which they refer, under their new ids.

    `names` maps the old ids of the shown models to new ones; those of the models referred to are added.
    Layouts keep only entries that are set; the others are null, the default. Widgets of ours keep no code.
    """
    shown, waiting = {}, list(names)
    while waiting:
        old = waiting.pop(0)
        if old not in states:
            continue  # a view of a model that is not stored; the tests report it
        text = json.dumps(states[old]["state"])
        for number, other in enumerate(REFERENCE.findall(text), start=1):
            if other not in names:
                names[other] = f"{names[old]}/{number}"
                waiting.append(other)
        renamed = REFERENCE.sub(lambda m: f'"IPY_MODEL_{names[m[1]]}"', text)
        model = states[old] | {"state": json.loads(renamed)}
        if model.get("model_name") == "LayoutModel":
            state = model["state"].items()
            model["state"] = {key: value for key, value in state if value is not None}
        shown[names[old]] = without_code(model)
    return shown


if __name__ == "__main__":
    sys.exit(main())
