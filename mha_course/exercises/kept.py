"""Take what a reader wrote from one chapter to another, in a file as the page's Progress exports it."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from mha_course import built
from mha_course._messages import message
from mha_course._take_home import take_home as made_home
from mha_course._take_home import without_the_course
from mha_course.data.book_text import book_text
from mha_course.exercises import own
from mha_course.experiments import Experiment

FILE = "my_pieces.json"
DRAFTS = "write-here/"
"""How the name of a draft begins in the browser's storage, and so in an exported file."""


def keep_and_use(name: str, text: str) -> None:
    """Keep a piece that was just accepted in `FILE`, and let `mha_course.built` give it from now on."""
    path = Path(FILE)
    try:
        entries = _entries(path) if path.is_file() else {}
        entry = entries.get(DRAFTS + name, {}) | {"draft": text, "accepted": text}
        _write(entries | {DRAFTS + name: entry}, path)
    except (OSError, ValueError) as error:
        # The folder cannot be written, or the file is another one.
        print(message(__file__, "unkept", name=name, error=error))
    else:
        print(message(__file__, "accepted", name=name, path=path))
    if _defined(name, text):
        own.FROM_FILE.add(name)


own.KEEPERS.append(keep_and_use)


def use_what_is_here() -> None:
    """Use the pieces of `FILE` if there is one in the folder; a file of another form is named."""
    if Path(FILE).is_file():
        try:
            use_pieces()
        except (OSError, ValueError) as error:
            print(error)


def take_home(path: str | Path = "my_gpt.py") -> None:
    """Write `my_gpt.py` of the reader's accepted pieces, and of the course's where none was accepted.

    The file trains a small GPT on any text and lets it write; it needs only torch. At its head stands which
    pieces are whose, and this is printed too.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:  # outside of a notebook, no piece is the reader's
        ...     take_home(f"{folder}/my_gpt.py")  # doctest: +ELLIPSIS
        The course's are `my_masked_softmax`, `my_causal_mask`, ..., `my_write`.
    """
    home = made_home(own.ACCEPTED)
    Path(path).write_text(home.text, encoding="utf-8")
    print(home.told())


def own_gpt(course: Experiment) -> tuple[nn.Module, str, str, str]:
    """Open the GPT that the reader has trained, if its file is in the folder, or else the course's.

    `my_gpt.py` saves `my_gpt.pt`, and chapter 7 `my_gpt.safetensors`. Of both, the newer one is opened.

    Args:
        course: the experiment "gpt", which has the course's.

    Returns:
        The model, its characters in the order of its tokens, a text that it was not trained on, and whose
        it is.

    Raises:
        ValueError: the file has something else.

    Example:
        >>> from mha_course.experiments import load_experiment
        >>> model, characters, text, whose = own_gpt(load_experiment("gpt"))
        >>> whose, len(characters), text[:14]
        ('the stored GPT', 118, '## One formula')
    """
    text = book_text("test")
    characters = "".join(sorted(set(book_text("train") + text)))
    files = [Path("my_gpt.pt"), Path("my_gpt.safetensors")]
    newest = max(
        filter(Path.is_file, files), key=lambda file: file.stat().st_mtime, default=None
    )
    # Chapter 7's width, heads, blocks and positions.
    sizes = (len(characters), 64, 4, 2, 64)
    try:
        if newest is None:
            state = course.state("GPT")
        elif newest.suffix == ".pt":
            saved = torch.load(newest, map_location="cpu", weights_only=True)
            characters, text = saved["characters"], saved["held_out"]
            sizes, state = saved["sizes"], saved["weights"]
        else:
            state = load_file(newest)
        model = built.MyGPT(*sizes)
        model.load_state_dict(state)
    except (RuntimeError, KeyError, TypeError, SafetensorError, UnpicklingError):
        rule = message(__file__, "wrong-gpt", path=newest)
        raise ValueError(rule) from None
    return model, characters, text, "the stored GPT" if newest is None else "your GPT"


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
    _write(entries, Path(path))
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


def _write(entries: dict[str, dict[str, Any]], path: Path) -> None:
    written = json.dumps(entries, indent=2, ensure_ascii=False)
    path.write_text(f"{written}\n", encoding="utf-8")


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
    """Run the text of a piece beside the course's pieces; say if it fails, and leave them as they were.

    What only tries the piece out is left out, because it may need the page.
    """
    piece, imports = without_the_course(text, {})
    text = "\n".join([*imports.values(), piece.text])
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
