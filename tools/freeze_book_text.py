"""Write the book's prose and a tokenizer for it to files that the course's small language model reads.

The text is frozen on purpose, because the book changes and the stored experiment belongs to one text. After
freezing again, copy the two printed digests to `mha_course/data/book_text.py` and run `make experiments
ONLY=language_model`.

The text contains the Markdown of the landing page, the chapters, the appendices and the glossary. Code cells,
their outputs, HTML tags and the translations of the glossary are left out.
"""

import hashlib
import json
import re
from pathlib import Path

import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mha_course.data.book_text import (
    PAGE_MARK,
    TEXT_FILE,
    TOKENIZER_FILE,
    VOCAB_SIZE,
    split_text,
)

ROOT = Path(__file__).resolve().parents[1]
# Lists of signatures and of papers are not prose.
LEFT_OUT = ("chapters/api", "chapters/references")


def pages():
    """The names of the pages, in the order of the table of contents."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [name for name in (toc["root"], *listed) if name not in LEFT_OUT]


def prose_of(name):
    """The Markdown of one page, without HTML tags and translations."""
    notebook = ROOT / f"{name}.ipynb"
    if notebook.is_file():
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        parts = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
        text = "\n\n".join(map("".join, parts))
    else:
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r' *<span class="translations">.*$', "", text, flags=re.M)
    text = re.sub(r"<!--.*?-->|</?[a-z]+(?: [^<>]*)?>", "", text, flags=re.S)
    lines = [line.rstrip() for line in text.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def book():
    """All pages in one text, each after a line with its name."""
    return "\n".join(f"{PAGE_MARK}{name}\n\n{prose_of(name)}" for name in pages())


def tokenizer_for(text):
    """A byte-level byte-pair encoding of the training part, which can encode and restore any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    settings = {"vocab_size": VOCAB_SIZE, "show_progress": False}
    settings["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(**settings)
    tokenizer.train_from_iterator(split_text(text)["train"], trainer)
    return tokenizer.to_str()


def main():
    """Write both files."""
    text = book()
    for path, content in ((TEXT_FILE, text), (TOKENIZER_FILE, tokenizer_for(text))):
        path.write_text(content, encoding="utf-8")
        digest = hashlib.sha256(content.encode()).hexdigest()
        print(f"{path.name}: {len(content.encode())} bytes, SHA-256 {digest}")


if __name__ == "__main__":
    main()
