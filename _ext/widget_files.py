"""Put the files with large data of widgets where the widgets look for them.

A page stores what a widget shows first. Further models of the translator, the maps of a chat model, and a
sentence model are scripts in `_static`, which a page can load from a server and from disk, and which are
loaded when needed. The sentence model is in the book where its package is installed (`make models`). Making
its file takes seconds, so the file is kept in `_build`.
"""

import re
import shutil
from pathlib import Path

from sphinx.util import logging

# Their names in a page's state; the digits at the end are a hash of the contents.
NAME = re.compile(r"\b(?:translator-\d+|chat-heads|sentences)-[0-9a-f]{12}\.js\b")

KEPT = Path(__file__).resolve().parent.parent / "_build" / "sentences"

logger = logging.getLogger(__name__)


def names_in_pages(folder):
    """The names of all files that pages of a built book may load, each with one such page."""
    pages = [path for path in folder.rglob("*.html") if "_static" not in path.parts]
    return {
        name: path.relative_to(folder).as_posix()
        for path in pages
        for name in NAME.findall(path.read_text(encoding="utf-8"))
    }


def write_files(app):
    """Write the files, and warn about names that the stored experiment does not have."""
    wanted = names_in_pages(Path(app.outdir))
    static = Path(app.outdir, "_static")
    for old in static.glob("*.js"):
        if NAME.fullmatch(old.name) and old.name not in wanted:
            old.unlink()
    missing = [name for name in wanted if not (static / name).is_file()]
    if not missing:
        return
    # Imported here, because it loads torch, which no other page needs.
    from mha_course.widgets import sentence_model, widget_files

    files = widget_files()
    for name in missing:
        if name == sentence_model.FILE:
            copy_sentence_model(static / name)
        elif name in files:
            (static / name).write_text(files[name], encoding="utf-8")
        else:
            text = "%s asks for %s, which is older: run make notebooks for it"
            logger.warning(text, wanted[name], name)


def copy_sentence_model(path):
    """Write the file of the sentence model, unless the model is not installed."""
    from mha_course.widgets import sentence_model

    kept = KEPT / path.name
    if not kept.is_file():
        try:
            data = sentence_model.sentence_file()
        except FileNotFoundError as error:
            logger.info("%s is left out of the book: %s", path.name, error)
            return
        shutil.rmtree(KEPT, ignore_errors=True)  # of an older model
        KEPT.mkdir(parents=True)
        # A build that is interrupted leaves no file that looks whole.
        half = kept.with_suffix(".half")
        half.write_bytes(data)
        half.rename(kept)
    shutil.copy(kept, path)
