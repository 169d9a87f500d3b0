"""The text of this book, frozen in one file, as tokens that the course's small language model reads.

`book_text.txt` contains the Markdown of the pages as it was when `tools/freeze_book_text.py` wrote it, under
the book's licence (CC BY 4.0). The book changes; the file does not, because the stored experiment needs it.

The text is divided by whole sections, not by lines: of every ten sections, the fifth is for validation (it
chooses constants and the number of steps), the tenth is held out, and the other eight are for training.

`book_text.json` is a byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019, §2.2) that
was trained only on the training part. Encoding and decoding import HuggingFace's `tokenizers` to read it;
nothing else needs that package.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from mha_lib._checks import (
    check_choice,
    check_numbers,
    check_sizes,
    check_type,
    refusal,
)

TEXT_FILE = Path(__file__).with_name("book_text.txt")
TOKENIZER_FILE = Path(__file__).with_name("book_text.json")
TEXT_SHA256 = "7b2c755d2e1007f24f3a2977e826768fef00c9834b77e02dd73221cdb3a96612"
TOKENIZER_SHA256 = "f975b4600934bd4b697c1b9d5387c3dbdea29200f13b53f01feb8df126ab785a"
VOCAB_SIZE = 512
PARTS = ("train", "validation", "test")
# Before each page, the text has a line with this mark and the page's name.
PAGE_MARK = "%%% "


def split_text(text: str) -> dict[str, list[str]]:
    r"""Divide a text into its sections, and the sections into the three parts.

    A section begins with a heading of the second level (two number signs), or at the start of a page, which
    follows a line that begins with `PAGE_MARK`. Each of `PARTS` has its sections in the book's order.

    Raises:
        TypeError: `text` is not a str.

    Example:
        >>> parts = split_text("".join(f"## Section {i}\n" for i in range(10)))
        >>> len(parts["train"]), parts["validation"], parts["test"]
        (8, ['## Section 4\n'], ['## Section 9\n'])
    """
    check_type("text", text, str)
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    sections = re.split(rf"^(?=## )|^{PAGE_MARK}.*\n+", text, flags=re.MULTILINE)
    for place, section in enumerate(filter(None, sections)):
        part = {4: "validation", 9: "test"}.get(place % 10, "train")
        parts[part].append(section)
    return parts


def book_text(part: str) -> str:
    """The text of one part, with its sections one after the other.

    Raises:
        TypeError: `part` is not a str.
        ValueError: `part` is not one of `PARTS`, or the file is not the frozen one.

    Example:
        >>> book_text("test").splitlines()[0]
        '## One formula'
    """
    check_choice("part", part, PARTS)
    return "".join(split_text(_frozen(TEXT_FILE, TEXT_SHA256))[part])


@functools.cache
def _frozen(path: Path, digest: str) -> str:
    """The contents of a file, which must not have changed."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise refusal(path.name, f"be the frozen file, with SHA-256 {digest}", found)
    return content.decode()


@functools.cache
def _tokenizer() -> Any:
    """The tokenizer of the book."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(_frozen(TOKENIZER_FILE, TOKENIZER_SHA256))


def encode_text(text: str) -> Int64[Tensor, " tokens"]:
    """A text as tokens of the book, in 0..511.

    Any text can be encoded; bytes that never occur together in the training part become separate tokens.

    Raises:
        TypeError: `text` is not a str.

    Example:
        >>> tokens = encode_text("the heads")
        >>> tokens.tolist(), [decode_tokens(token) for token in tokens.split(1)]
        ([83, 257, 394], ['t', 'he', ' heads'])
    """
    check_type("text", text, str)
    return torch.tensor(_tokenizer().encode(text).ids, dtype=torch.int64)


def decode_tokens(tokens: Int64[Tensor, " tokens"]) -> str:
    """The text of a row of tokens, (tokens,) in 0..511; invalid bytes become "\ufffd".

    Raises:
        TypeError: `tokens` is not a tensor of integers.
        ValueError: `tokens` does not have one axis, or a token is out of range.

    Example:
        >>> decode_tokens(encode_text("two heads, 三个头"))
        'two heads, 三个头'
    """
    check_numbers("tokens", tokens, 0, 511, "lie in 0..511", integers="(tokens,)")
    text: str = _tokenizer().decode(tokens.tolist())
    return text


def book_tokens(part: str) -> Int64[Tensor, " tokens"]:
    """One part of the book as tokens.

    Raises:
        TypeError: `part` is not a str.
        ValueError: `part` is not one of `PARTS`, or a file is not the frozen one.

    Example:
        >>> [len(book_tokens(part)) for part in PARTS]
        [131471, 13769, 13397]
    """
    check_choice("part", part, PARTS)
    return _part_tokens(part).clone()


@functools.cache
def _part_tokens(part: str) -> Tensor:
    return encode_text(book_text(part))


def book_batch(
    batch_size: int,
    length: int,
    *,
    part: str = "train",
    generator: torch.Generator | None = None,
) -> tuple[Int64[Tensor, "batch {length}"], Int64[Tensor, "batch {length}"]]:
    """Random passages of the book, each with the same passage one token later.

    Returns:
        (inputs, targets), int64 (batch_size, length); each target is the token that follows the input at the
        same position. Without a generator, torch's global one is used.

    Raises:
        TypeError: a size is not an int, or `part` not a str.
        ValueError: a size is not positive, `part` is not one of `PARTS` or is shorter than `length + 1`, or a
            file is not the frozen one.

    Example:
        >>> inputs, targets = book_batch(3, 5, generator=torch.Generator().manual_seed(0))
        >>> inputs.shape, torch.equal(inputs[:, 1:], targets[:, :-1])
        (torch.Size([3, 5]), True)
    """
    check_sizes(batch_size=batch_size, length=length)
    check_choice("part", part, PARTS)
    tokens = _part_tokens(part)
    starts = len(tokens) - length
    if starts < 1:
        raise refusal("length", f"be less than the part's {len(tokens)} tokens", length)
    first = torch.randint(starts, (batch_size, 1), generator=generator)
    windows = tokens[first + torch.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]
