"""The published sentence model as a file that a page loads: its matrices in 8 bits, and the vocabulary.

The file is a script, because a page that was opened from disk may load nothing else, and text, because a
script is text: each character carries 15 bits. As UTF-16, it is 7% larger than its bytes; base64 would be 33%
larger. Of the 30,522 pieces of words, the file has all names, so that texts are divided correctly, and the
vectors of `ROWS`: all pieces of this book's frozen text, and the first ones of the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mha_course.data.book_text import PARTS, book_text
from mha_course.data.published import load_sentence_model
from mha_course.widgets.packing import round_to_bytes
from mha_lib import Bert

ROWS, POSITIONS = 4_800, 128
_FIRST_UNIT, _BITS = 0x3000, 15  # from here on, 2 ** 15 code units are valid characters
_FIRST_WORD = 999  # the entries of the vocabulary before it are marks and unused
_BOM = b"\xff\xfe"  # says UTF-16 to every browser, whatever the server says


def pack_units(data: bytes) -> str:
    r"""Bytes as a text in which each character carries 15 bits, the highest first.

    Example:
        >>> pack_units(b"\x00\x01"), len(pack_units(bytes(15)))
        ('\u3000\u7000', 8)
    """
    padded = np.frombuffer(data + bytes(-len(data) % _BITS), dtype=np.uint8)
    bits = np.unpackbits(padded).reshape(-1, _BITS)
    units = bits.dot(1 << np.arange(_BITS)[::-1]) + _FIRST_UNIT
    needed = -(-8 * len(data) // _BITS)
    return units[:needed].astype("<u2").tobytes().decode("utf-16-le")


def pack_bert(
    model: Bert, pieces: Sequence[str], kept: Sequence[int]
) -> dict[str, Any]:
    """A BERT without a head as the page reads it, with the vectors of the pieces `kept`, in this order.

    Each matrix becomes bytes with a scale for each row (`round_to_bytes`); vectors stay in float32. Of the
    positions, the first 128 are kept, and of the segments the first.
    """
    rows: dict[str, Any] = {
        "embedding.weight": torch.tensor(kept),
        "position_embedding.weight": slice(POSITIONS),
        "segment_embedding.weight": slice(1),
    }
    shapes, numbers, floats = [], [], []
    for name, parameter in model.named_parameters():
        own = parameter.detach().float()[rows.get(name, slice(None))]
        shapes.append([name, *own.shape])
        if own.ndim == 2:
            rounded, own = round_to_bytes(own)
            numbers.append(rounded.flatten())
        floats.append(own)
    parts = {
        "int8": torch.cat(numbers).numpy().tobytes(),
        "float32": torch.cat(floats).numpy().astype("<f4").tobytes(),
        "kept": np.array(kept, dtype="<u2").tobytes(),
        "pieces": "\n".join(pieces).encode(),
    }
    return {
        "shapes": shapes,
        "num_heads": model.encoder.num_heads,
        "num_layers": len(model.encoder.blocks),
        "sizes": {name: len(data) for name, data in parts.items()},
        **{name: pack_units(data) for name, data in parts.items()},
    }


def rounded_bert(model: Bert) -> Bert:
    """The model, changed: each matrix is rounded as in `pack_bert`, so it computes what the page computes."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            numbers, scales = round_to_bytes(parameter)
            parameter.data = numbers.float() * scales.unsqueeze(1)
    return model


def kept_pieces(tokenizer: Any) -> tuple[list[str], list[int]]:
    """All pieces of the vocabulary, and the numbers of those whose vectors the page has."""
    numbers = tokenizer.get_vocab()
    pieces = sorted(numbers, key=numbers.__getitem__)
    lines = "\n".join(map(book_text, PARTS)).splitlines()
    wanted = {number for line in tokenizer.encode_batch(lines) for number in line.ids}
    wanted |= {numbers[mark] for mark in ("[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    # BERT's vocabulary is sorted by how frequent a piece is in the text from which it was made.
    others = [n for n in range(_FIRST_WORD, len(pieces)) if n not in wanted]
    return pieces, sorted([*wanted, *others[: ROWS - len(wanted)]])


def sentence_file() -> tuple[str, bytes]:
    """Name and contents of the file. The name contains a digest of the contents.

    Raises:
        FileNotFoundError: the model is not installed. The message says how to get it.
    """
    model, tokenizer = load_sentence_model()
    content = pack_bert(model, *kept_pieces(tokenizer))
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    name = f"sentences-{hashlib.sha256(text.encode()).hexdigest()[:12]}.js"
    detail = f'{{"name":"{name}","content":{text}}}'
    script = f'dispatchEvent(new CustomEvent("mha-file",{{detail:{detail}}}));'
    return name, _BOM + script.encode("utf-16-le")
