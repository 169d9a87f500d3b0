"""The page's BERT against the library's: pieces of words, final tokens, and the maps of all heads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from mha_course.data.book_text import PARTS, book_text
from mha_course.data.sentences import load_sentence_model
from mha_course.widgets import sentence_model
from mha_course.widgets.packing import round_to_bytes
from mha_course.widgets.sentence_model import (
    MARKS,
    kept_pieces,
    pack_bert,
    pack_units,
    round_vocabulary,
    unpack_bert,
    unpack_units,
)
from mha_lib import Bert, capture_attention

HERE = Path(__file__).parent
MODULE = HERE.parents[1] / "mha_course" / "widgets" / "sentence_heads" / "bert_math.js"
WORDS = "two heads see ##s ##d the sail ##or . , ' a b ##c x 三 头".split()
ODD = (
    "", " ", "\t\n", "Zoë naïve İstanbul ΣΑΣ 三个头 ﬁ", "x\u00adb\u200b c\ufeffd", "[MASK] [mask] [CLS]",
    "a$b+c~d «x» don't", "unaffable " * 3, "a" * 100 + " " + "a" * 101, "🤖 yes 🤖", "ａｂｃ ㎏ ½ ⅓ ١",
    "é\u0301 Å ǆ", "Ünïcödé—dash…‘q’", " \u2028x\u0085y\u3000z", "x\u0000y\ufffdz",
)  # fmt: skip


def in_node(content, texts, **options):
    command = [node_path(), "--no-warnings", HERE / "bert_node.mjs", MODULE.as_uri()]
    given = json.dumps({"content": content, "texts": texts, **options})
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def node_path():
    return Path(sys.prefix) / "bin" / "node"


def small_model(width=12):
    torch.manual_seed(0)
    model = Bert(len([*MARKS, *WORDS]), width, 3, 2 * width, 2, max_len=40, head=False).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.requires_grad_(False)


def of_torch(model, tokens):
    with torch.no_grad(), capture_attention(model) as maps:
        final = model(torch.tensor([tokens]))[0][0]
    return final, torch.stack([weights[0] for weights in maps.values()])


@pytest.mark.parametrize("is_worker", [False, True])
def test_final_tokens_and_maps_are_those_of_the_library(is_worker):
    """With the same rounded matrices, in the page and from nothing but the functions that a worker gets."""
    pieces, model = [*MARKS, *WORDS], small_model()
    kept = [number for number, piece in enumerate(pieces) if piece not in ("sail", "x")]
    content = pack_bert(model, pieces, kept)
    rounded = unpack_bert(content)
    texts = ["Two heads", "the sailors", "A. heads, the sailor's bc x"]
    for found, text in zip(in_node(content, texts, isWorker=is_worker), texts, strict=True):
        final, maps = of_torch(rounded.model, rounded.tokens(text)[0].tolist())
        assert found["pieces"] == rounded.pieces(text)
        assert len(found["pieces"]) > 3, text
        assert found["missing"] == [piece for piece in ("sail", "x") if piece in found["pieces"]]
        assert_close(torch.tensor(found["final"]).double(), final, atol=1e-5, rtol=0)
        assert_close(torch.tensor(found["maps"]).double(), maps, atol=1e-6, rtol=0)


def test_a_packed_model_comes_back_with_each_matrix_rounded():
    pieces, model = [*MARKS, *WORDS], small_model(width=15)
    kept = range(3, len(pieces))
    found = unpack_bert(pack_bert(model, pieces, [1, *kept]))
    assert [piece for piece, row in found.rows.items() if row > 0] == pieces[3:]
    state = found.model.state_dict()
    for name, parameter in model.named_parameters():
        own = parameter[[1, *kept]] if name == "embedding.weight" else parameter[: len(state[name])]
        if own.ndim == 2:
            numbers, scales = (round_vocabulary if name == "embedding.weight" else round_to_bytes)(own)
            assert (numbers.double() * scales.unsqueeze(1) - state[name]).abs().max() < 1e-9
            assert (own - state[name]).abs().max() > 0
            # At most half a step; in the vocabulary, large numbers may be cut.
            apart = (own - state[name]).abs().amax(1) / scales
            assert apart.max() < (0.5001 if name != "embedding.weight" else 32)
            assert (own - state[name]).square().mean().sqrt() < 0.05 * own.std()
        else:
            assert torch.equal(own.double(), state[name])


def test_units_are_valid_characters_and_damage_is_refused():
    for data in (bytes(range(256)) * 3, b"", b"a", torch.arange(65536).numpy().astype("<u2").tobytes()):
        text = pack_units(data)
        ranks = {ord(unit) >> 8 for unit in text}
        assert not ranks & {0, *range(0xD8, 0xE0)}, "quotes, line ends, halves of characters"
        assert len(text) <= len(data)
        assert unpack_units(text, len(data)) == data
    pieces, model = [*MARKS, *WORDS], small_model()
    content = pack_bert(model, pieces, range(len(pieces)))
    first = content["int8"]
    for wrong in (first[:-1], "a" + first[1:], "", first + "三", "\ue0ff" + first, "\ue001" + first[1:]):
        with pytest.raises(AssertionError, match="what was loaded is damaged"):
            in_node(content | {"int8": wrong}, ["two"])


@pytest.fixture(scope="module")
def published():
    return load_sentence_model()


@pytest.fixture(scope="module")
def data():
    return sentence_model.sentence_file()


@pytest.fixture(scope="module")
def packed(data):
    text = data.decode("utf-16")
    return json.loads(text[text.index('"content":') + 10 : -5])


def test_pieces_are_those_of_the_tokenizer_on_1000_lines_of_the_book(published):
    _, tokenizer = published
    lines = [line for line in "\n".join(map(book_text, PARTS)).splitlines() if line.strip()]
    assert len(lines) > 2000
    texts = [*lines[:: len(lines) // 1000][:1000], *ODD]
    small = small_model()
    pieces, kept = kept_pieces(tokenizer)
    assert len(kept) == sentence_model.ROWS
    content = pack_bert(small, pieces, range(5))
    found = in_node(content, texts, onlyPieces=True)
    for text, own in zip(texts, found, strict=True):
        assert own["pieces"] == tokenizer.encode(text).tokens, text


def test_the_file_reads_as_the_float32_model_does_within_a_bound(published, packed):
    """Measured in torch, which computes as the page does (below)."""
    model, tokenizer = published
    page = unpack_bert(packed)
    lines = [line for line in "\n".join(map(book_text, PARTS)).splitlines() if len(line) > 20]
    cosines, largest, mean = [], [], []
    for line in lines[:: len(lines) // 120]:
        tokens = tokenizer.encode(line)
        if len(tokens) > 48 or not set(tokens.tokens) <= page.rows.keys():
            continue
        final, maps = of_torch(model, tokens.ids)
        other, others = of_torch(page.model, page.tokens(line)[0].tolist())
        cosines.append(torch.cosine_similarity(final.mean(0), other.mean(0), dim=0))
        largest.append((maps - others).abs().max())
        mean.append((maps - others).abs().mean())
    assert len(cosines) > 50
    assert min(cosines) > 0.998
    assert max(largest) < 0.15
    assert max(mean) < 0.004


def test_the_file_has_at_most_14_megabytes_and_reads_as_torch_does(packed):
    page = unpack_bert(packed)
    said = [
        "the old baker's sailors near the teacher are happy in the station",
        "Yesterday my grandmother made a chocolate cake for the children in the village",
        "I saw a xylophone and a suitcase",
    ]
    found = in_node(packed, said)
    assert [own["missing"] for own in found][:2] == [[], []]
    assert found[2]["missing"] == ["##ophone", "suitcase"]
    for own, text in zip(found, said, strict=True):
        assert own["pieces"] == page.pieces(text)
        final, maps = of_torch(page.model, page.tokens(text)[0].tolist())
        assert_close(torch.tensor(own["final"]).double(), final, atol=1e-5, rtol=0)
        assert_close(torch.tensor(own["maps"]).double(), maps, atol=1e-5, rtol=0)


def test_the_file_has_the_name_and_the_size_that_pages_say(data):
    assert sentence_model.name_of(data) == sentence_model.FILE, (
        "make this the name, and run the pages with it"
    )
    assert f'"name":"{sentence_model.FILE}"' in data.decode("utf-16")
    assert sentence_model.MEGABYTES - 0.1 < len(data) / 1e6 <= sentence_model.MEGABYTES <= 14
