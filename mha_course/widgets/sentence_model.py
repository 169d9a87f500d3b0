"""The published sentence model as a file that a page loads: its matrices in 8 bits, and the vocabulary.

The file is a script, because a page that was opened from disk may load nothing else, and text, because a
script is text: each character carries 16 bits, which is a tenth of a percent larger than bytes where base64
would be a third larger. Of the 30,522 pieces of words, the file has all names, so that texts are divided
correctly, and the vectors of `ROWS`, in 6 bits: the frequent pieces of this book's frozen text, and the most
frequent ones of the vocabulary.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from mha_course.data.book_text import PARTS, book_text
from mha_course.data.sentences import load_sentence_model
from mha_course.widgets.packing import round_to_bytes
from mha_lib import Bert
from mha_lib._checks import refusal

ROWS, POSITIONS, VOCABULARY_BITS = 9_400, 48, 6
FILE, MEGABYTES = "sentences-291c4f967bb6.js", 14.0
"""Name and size of the file. The digits are those of the SHA-256 of its contents; a test compares them."""

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""What a vocabulary has besides pieces of words."""

_FIRST_WORD = 999  # the entries of the vocabulary before it are marks and unused
_ALSO = ("sailor",)  # the course's own sentence in the singular
_OFTEN = 3  # a piece that occurs so often in the book is in the file, however rare it is elsewhere
_BOM = b"\xff\xfe"  # says UTF-16 to every browser, whatever the server says
# No character begins with these bytes: D8 to DF are halves of characters, 00 has quotes and line ends, and E0
# announces that a byte is one of them. They change places with numbers that are rare in rounded matrices.
_RESERVED = np.array([0x00, *range(0xD8, 0xE1)])
_RARE = np.array([0x80, *range(0x7A, 0x7F), *range(0x82, 0x86)])
_ANNOUNCED, _SECOND = 0xE000, 0x3000


def _swapped() -> np.ndarray[Any, np.dtype[np.uint16]]:
    table = np.arange(256, dtype=np.uint16)
    table[_RESERVED], table[_RARE] = _RARE, _RESERVED
    return table


def pack_units(data: bytes) -> str:
    r"""Bytes as a text in which each character carries two of them, the higher one last.

    Example:
        >>> pack_units(b"\x01\x02"), len(pack_units(bytes(15)))
        ('ȁ', 8)
    """
    units = np.frombuffer(data + bytes(len(data) % 2), dtype="<u2")
    high, low = _swapped()[units >> 8], units & 255
    is_reserved = np.isin(high, _RESERVED)
    first = np.where(
        is_reserved, _ANNOUNCED + np.searchsorted(_RESERVED, high), high << 8 | low
    )
    both = np.stack((first, _SECOND + low), 1)
    kept = np.stack((np.ones_like(is_reserved), is_reserved), 1)
    return both[kept].astype("<u2").tobytes().decode("utf-16-le")


def unpack_units(text: str, count: int) -> bytes:
    r"""The bytes from `pack_units`.

    Example:
        >>> unpack_units(pack_units(b"\x00\xd8\x7a"), 3)
        b'\x00\xd8z'
    """
    units = np.frombuffer(text.encode("utf-16-le"), dtype="<u2")
    announces = units >> 8 == _ANNOUNCED >> 8
    index = np.where(announces, units & 255, 0)
    high = _swapped()[np.where(announces, _RESERVED[index], units >> 8)]
    low = np.where(announces, np.roll(units, -1), units) & 255
    pairs = (high << 8 | low)[~np.roll(announces, 1)]
    return bytes(pairs.astype("<u2").tobytes()[:count])


def round_vocabulary(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as numbers of 6 bits with a scale for each row, like `round_to_bytes`.

    With so few steps, the largest numbers of a row may be cut: of six scales, the one with the smallest error
    is taken.
    """
    top = 2 ** (VOCABULARY_BITS - 1) - 1
    matrix = matrix.detach().float()
    largest = matrix.abs().amax(1, keepdim=True)
    shares = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    scales = torch.where(largest > 0, largest, 1.0) * shares / top  # (rows, 6)
    numbers = [
        (matrix / scale.unsqueeze(1)).round().clamp(-top, top)
        for scale in scales.unbind(1)
    ]
    errors = [
        (rounded * scale.unsqueeze(1) - matrix).square().sum(1)
        for rounded, scale in zip(numbers, scales.unbind(1), strict=True)
    ]
    best = torch.stack(errors, 1).argmin(1)
    rows = torch.arange(len(matrix))
    return torch.stack(numbers, 1)[rows, best].to(torch.int8), scales[rows, best]


def _rounding(name: str) -> Any:
    return round_vocabulary if name == "embedding.weight" else round_to_bytes


def _in_few_bits(numbers: Tensor) -> bytes:
    """Numbers of 6 bits, four of them in three bytes, the first one highest."""
    positive = (numbers.flatten() + 2 ** (VOCABULARY_BITS - 1)).numpy().astype(np.uint8)
    bits = np.unpackbits(positive[:, None], axis=1)[:, 8 - VOCABULARY_BITS :]
    return np.packbits(bits.flatten()).tobytes()


def _from_few_bits(data: bytes, count: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))[: count * VOCABULARY_BITS]
    rows = np.pad(bits.reshape(count, -1), ((0, 0), (8 - VOCABULARY_BITS, 0)))
    numbers = np.packbits(rows, axis=1)[:, 0].astype(np.int8)
    return torch.from_numpy(numbers - 2 ** (VOCABULARY_BITS - 1))


class PageBert(NamedTuple):
    """A BERT with the tokenizer for its texts.

    Attributes:
        model: the model, without a head.
        tokenizer: a `tokenizers.Tokenizer`.
        rows: the row of the vocabulary for each piece that has one.
    """

    model: Bert
    tokenizer: Any
    rows: dict[str, int]

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text, between two marks."""
        return list(self.tokenizer.encode(text).tokens)

    def tokens(self, text: str) -> Int64[Tensor, "1 len"]:
        """The rows of the pieces of a text; a piece without a row is read as [UNK].

        Raises:
            ValueError: the text has too many pieces.
        """
        pieces = self.pieces(text)
        most = min(POSITIONS, len(self.model.position_embedding.weight))
        if len(pieces) > most:
            raise refusal("text", f"have at most {most} pieces of words", len(pieces))
        unknown = self.rows["[UNK]"]
        return torch.tensor([[self.rows.get(piece, unknown) for piece in pieces]])


@functools.cache
def published_bert() -> PageBert:
    """all-MiniLM-L6-v2 with its whole vocabulary, in float32.

    Raises:
        FileNotFoundError: the model is not installed. The message says how to get it.
    """
    model, tokenizer = load_sentence_model()
    return PageBert(model, tokenizer, tokenizer.get_vocab())


def word_pieces(pieces: Sequence[str]) -> Any:
    """BERT's tokenizer for lower case, with these pieces, among them the `MARKS`.

    Example:
        >>> word_pieces([*MARKS, "head", "##s"]).encode("Heads").tokens
        ['[CLS]', 'head', '##s', '[SEP]']
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))  # noqa: S106, the name of a piece
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(mark, numbers[mark]) for mark in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    tokenizer.add_special_tokens([mark for mark in MARKS if mark in numbers])
    return tokenizer


def pack_bert(
    model: Bert, pieces: Sequence[str], kept: Sequence[int]
) -> dict[str, Any]:
    """A BERT without a head as the page reads it, with the vectors of the pieces `kept`, in this order.

    The vocabulary has 6 bits for a number, all other matrices 8, with a scale for each row; vectors stay in
    float32. Of the positions, the first 48 are kept, and of the segments the first.
    """
    rows: dict[str, Any] = {
        "embedding.weight": torch.tensor(kept),
        "position_embedding.weight": slice(POSITIONS),
        "segment_embedding.weight": slice(1),
    }
    shapes, numbers, floats, few = [], [], [], b""
    for name, parameter in model.named_parameters():
        own = parameter.detach().float()[rows.get(name, slice(None))]
        shapes.append([name, *own.shape])
        if own.ndim == 2:
            rounded, own = _rounding(name)(own)
            if name == "embedding.weight":
                few = _in_few_bits(rounded)
            else:
                numbers.append(rounded.flatten())
        floats.append(own)
    parts = {
        "int8": torch.cat(numbers).numpy().tobytes(),
        "few": few,
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


def unpack_bert(packed: Mapping[str, Any]) -> PageBert:
    """The model from `pack_bert`, in float64, in which the page computes."""
    parts = {
        name: unpack_units(packed[name], size) for name, size in packed["sizes"].items()
    }
    numbers = torch.frombuffer(bytearray(parts["int8"]), dtype=torch.int8)
    floats = torch.frombuffer(bytearray(parts["float32"]), dtype=torch.float32)
    sizes = {name: shape for name, *shape in packed["shapes"]}
    state = {}
    for name, shape in sizes.items():
        own, floats = floats[: shape[0]].double(), floats[shape[0] :]
        if len(shape) == 2:
            count = math.prod(shape)
            if name == "embedding.weight":
                rounded = _from_few_bits(parts["few"], count)
            else:
                rounded, numbers = numbers[:count], numbers[count:]
            own = rounded.view(*shape).double() * own.unsqueeze(1)
        state[name] = own
    rows, width = sizes["embedding.weight"]
    model = Bert(
        rows,
        width,
        packed["num_heads"],
        sizes["encoder.blocks.0.feed_forward.up_proj.weight"][0],
        packed["num_layers"],
        max_len=sizes["position_embedding.weight"][0],
        num_segments=1,
        head=False,
    )
    model.double().load_state_dict(state, strict=False)  # a table of indices is left
    pieces = parts["pieces"].decode().split("\n")
    kept = np.frombuffer(parts["kept"], dtype="<u2").tolist()
    own_rows = {pieces[number]: row for row, number in enumerate(kept)}
    return PageBert(model.eval().requires_grad_(False), word_pieces(pieces), own_rows)


def kept_pieces(tokenizer: Any) -> tuple[list[str], list[int]]:
    """All pieces of the vocabulary, and the numbers of those whose vectors the page has."""
    numbers = tokenizer.get_vocab()
    pieces = sorted(numbers, key=numbers.__getitem__)
    lines = "\n".join(map(book_text, PARTS)).splitlines()
    said = Counter(n for line in tokenizer.encode_batch(lines) for n in line.ids)
    wanted = {number for number, times in said.items() if times >= _OFTEN}
    wanted |= {numbers[piece] for piece in (*MARKS, *_ALSO)}
    # BERT's vocabulary is sorted by how frequent a piece is in the text from which it was made. Letters of
    # other scripts come first.
    others = [
        number
        for number in range(_FIRST_WORD, len(pieces))
        if number not in wanted and pieces[number].isascii()
    ]
    return pieces, sorted([*wanted, *others[: ROWS - len(wanted)]])


def sentence_file() -> bytes:
    """The contents of the file.

    Raises:
        FileNotFoundError: the model is not installed. The message says how to get it.
    """
    model, tokenizer = load_sentence_model()
    content = pack_bert(model, *kept_pieces(tokenizer))
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    detail = f'{{"name":"{FILE}","content":{text}}}'
    script = f'dispatchEvent(new CustomEvent("mha-file",{{detail:{detail}}}));'
    return _BOM + script.encode("utf-16-le")


def name_of(data: bytes) -> str:
    """The name that the contents of the file give it; the name in the contents does not count."""
    text = data.decode("utf-16").partition('"content":')[2]
    return f"sentences-{hashlib.sha256(text.encode()).hexdigest()[:12]}.js"
