"""Take what a reader wrote from one chapter to another, in a file as the page's Progress exports it."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

from mha_course import built
from mha_course._messages import message
from mha_course.exercises import own

FILE = "my_pieces.json"
DRAFTS = "write-here/"
"""How the name of a draft begins in the browser's storage, and so in an exported file."""


def keep_pieces(path: str | Path = FILE) -> None:
    """Write the reader's pieces of this session into a file, beside what it has, and print their names.

    A piece is a name of `mha_course.built` that a cell of the reader's defines. The page's *Progress* imports
    the file too.

    Raises:
        ValueError: there is such a file, but it has something else.

    Example:
        >>> keep_pieces("my_pieces.json")  # outside of a notebook, there is no cell
        There is nothing to keep yet: write a piece first.
    """
    entries = _entries(Path(path)) if Path(path).is_file() else {}
    texts = own.ACCEPTED | own.written()
    if not texts:
        print(message(__file__, "nothing"))
        return
    for name, text in texts.items():
        entry = entries.get(DRAFTS + name, {}) | {"draft": text}
        accepted = own.ACCEPTED.get(name)
        entries[DRAFTS + name] = entry | ({"accepted": accepted} if accepted else {})
    written = json.dumps(entries, indent=2, ensure_ascii=False)
    Path(path).write_text(f"{written}\n", encoding="utf-8")
    _say("kept", [name for name in texts if name in own.ACCEPTED], path)
    _say("drafts", [name for name in texts if name not in own.ACCEPTED], path)


def use_pieces(path: str | Path = FILE) -> None:
    """Let `mha_course.built` give the accepted pieces of a file, which `keep_pieces` or *Progress* wrote.

    Run it before the cells that import them. Pieces that use others then use these too. The file's code is
    run, so open only your own.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has something else.

    Example:
        >>> try:
        ...     use_pieces("nowhere.json")
        ... except FileNotFoundError:
        ...     print("Nothing has been kept yet.")
        Nothing has been kept yet.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(message(__file__, "missing", path=path))
    entries, used = _entries(Path(path)), list[str]()
    for name in built.__all__:
        text = entries.get(DRAFTS + name, {}).get("accepted")
        if isinstance(text, str) and _defined(name, text):
            used.append(name)
            own.ACCEPTED[name] = text
            own.FROM_FILE.add(name)
    _say("used", used, path)
    if not used:
        print(message(__file__, "none", path=path))


def _say(what: str, names: list[str], path: str | Path) -> None:
    if names:
        listed = ", ".join(f"`{name}`" for name in names)
        print(message(__file__, what, names=listed, path=path))


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    """What a file has: a dict for each name of the browser's storage."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        entries = None
    if not isinstance(entries, dict) or not all(
        isinstance(entry, dict) for entry in entries.values()
    ):
        raise ValueError(message(__file__, "form", path=path))
    return entries


def _defined(name: str, text: str) -> bool:
    """Run the text of a piece beside the course's pieces; say if it fails, and leave them as they were."""
    file, space = f"your {name}", vars(built)
    before = dict(space)
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    try:
        exec(compile(text, file, "exec"), space)  # noqa: S102, the reader's own code
    except Exception as error:
        space.clear()
        space.update(before)
        print(
            message(
                __file__, "failed", name=name, error=f"{type(error).__name__}: {error}"
            )
        )
        return False
    return True
