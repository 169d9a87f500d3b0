"""What JupyterLab saves of a chapter is what is stored, as long as the results are the same.

The server of the course's environment calls `keep_stored` before it writes a file (jupyter_server_config.py).
Without it, a mere run would change thousands of lines: counts, random ids of widgets, the code of widgets.
The pictures that stand in for widgets would be lost, and the file would show errors when it is opened again.
JupyterLab would also mark a chapter as changed that somebody has merely opened: when the kernel has started,
it adds the version of Python, and it loads the stored widgets, which have no code and cannot be shown.
`Chapters` therefore hands a chapter over with the version and without such widgets. Each fold gets the title
that it has on the page: JupyterLab shows the first line of what it folds, which may be half of an answer.
"""

from pathlib import Path

import nbformat
from drawings import WIDGET_VIEW
from figures import figure_fault
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelspec import get_kernel_dict
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from run_notebooks import WIDGET_STATE, normalise
from set_repository import TITLE, title_folds
from widget_code import with_code


class Chapters(AsyncLargeFileManager):
    """The files of the server; a chapter is handed over as JupyterLab would change it by opening it."""

    async def get(self, path, *options, **named):
        """Return a file as JupyterLab receives it; the arguments are the server's."""
        model = await super().get(path, *options, **named)
        if is_chapter(model):
            metadata = model["content"]["metadata"]
            metadata |= spoken_here()
            states = metadata.get("widgets", {}).get(WIDGET_STATE, {"state": {}})[
                "state"
            ]
            if not any("_esm" in one["state"] for one in states.values()):
                metadata.pop("widgets", None)
            title_folds(model["content"])
        return model


def spoken_here():
    """Return the entries of a notebook's metadata that JupyterLab writes when this kernel has started."""
    spec = get_kernel_dict()
    names = {"display_name": spec["display_name"], "language": spec["language"]}
    language = nbformat.from_dict(IPythonKernel.language_info)
    return {"kernelspec": names | {"name": "python3"}, "language_info": language}


def is_chapter(model):
    """Whether a file that the server reads or writes is a chapter with its content."""
    cells = (
        model["content"]["cells"]
        if model["type"] == "notebook" and model.get("content")
        else []
    )
    return "setup" in [cell.get("id") for cell in cells]


def keep_stored(model, path, contents_manager, **_):
    """Bring a chapter that is about to be saved into its stored form, in place, and no other file."""
    file = Path(contents_manager.root_dir) / path.strip("/")
    if is_chapter(model) and file.is_file():
        edited = nbformat.from_dict(model["content"])
        stored = nbformat.read(file, as_version=4)
        drop_titles(edited, stored)
        model["content"] = merged(edited, stored)


def drop_titles(edited, stored):
    """Remove from an edited chapter, in place, the titles of folds that `Chapters` has written."""
    titled = {cell.id for cell in stored.cells if cell.source.startswith(TITLE)}
    for cell in edited.cells:
        if cell.source.startswith(TITLE) and cell.id not in titled:
            cell.source = cell.source.partition("\n")[2]


def merged(edited, stored):
    """Return an edited chapter in its stored form, with the widgets that are already stored.

    A widget whose cell has changed has no picture. Only a trusted notebook with code shows it, alive.
    """
    trusted = [cell.metadata.get("trusted", False) for cell in edited.cells]
    new, old = normalise(edited), {cell.id: cell for cell in stored.cells}
    kept = set()
    for cell in new.cells:
        before = old.get(cell.id)
        if before and cell.cell_type == "code" and cell.source == before.source:
            keep_figures(cell.outputs, before.outputs)
        if (
            views(cell)
            and before
            and (cell.source, len(views(cell))) == (before.source, len(views(before)))
        ):
            cell.outputs = before.outputs
            kept |= views(before)
    states = [
        notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {"state": {}})["state"]
        for notebook in (new, stored)
    ]
    made = {
        name: model for name, model in states[0].items() if cell_of(name) not in kept
    }
    state = made | {
        name: model for name, model in states[1].items() if cell_of(name) in kept
    }
    new.metadata.pop("widgets", None)
    if state:
        bundle = {"state": state, "version_major": 2, "version_minor": 0}
        new.metadata["widgets"] = nbformat.from_dict(
            {WIDGET_STATE: with_code(bundle) if made else bundle}
        )
    if made:
        for cell, is_trusted in zip(new.cells, trusted, strict=True):
            cell.metadata["trusted"] = is_trusted
    return new


def keep_figures(outputs, stored):
    """Put stored figures, in place, where new ones look the same: more threads round differently."""
    for new, old in zip(outputs, stored, strict=False):
        pair = [output.get("data", {}).get("image/png") for output in (new, old)]
        if all(pair) and not figure_fault(*pair):
            new.data["image/png"] = pair[1]


def cell_of(name):
    """Return the id of the view to which a stored model belongs: a model of `x` may be `x/1`."""
    return name.partition("/")[0]


def views(cell):
    """Return the ids of the models that a cell shows."""
    found = [
        output.get("data", {}).get(WIDGET_VIEW) for output in cell.get("outputs", [])
    ]
    return {view["model_id"] for view in found if view}
