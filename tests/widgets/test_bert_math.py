"""The page's BERT against the library's: pieces of words, final tokens, and the maps of all heads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from mha_course.data.book_text import PARTS, book_text
from mha_course.data.published import load_sentence_model
from mha_course.widgets import sentence_model
from mha_course.widgets.sentence_model import kept_pieces, pack_bert, pack_units, rounded_bert
from mha_lib import Bert, capture_attention

HERE = Path(__file__).parent
MODULE = HERE.parents[1] / "mha_course" / "widgets" / "js" / "bert_math.js"
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
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
    model = Bert(len(MARKS + WORDS), width, 3, 2 * width, 2, max_len=40, head=False).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.requires_grad_(False)


def of_torch(model, tokens):
    with torch.no_grad(), capture_attention(model) as maps:
        final = model(torch.tensor([tokens]))[0][0]
    return final, torch.stack([weights[0] for weights in maps.values()])


@pytest.mark.parametrize("is_worker", [False, True])
def test_final_tokens_and_maps_are_those_of_the_library(monkeypatch, is_worker):
    """With the same rounded matrices, in the page and from nothing but the functions that a worker gets."""
    monkeypatch.setattr(sentence_model, "POSITIONS", 40)
    pieces, model = MARKS + WORDS, small_model()
    content = pack_bert(model, pieces, range(len(pieces)))
    rounded_bert(model)
    texts = ["Two heads", "the sailors", "A. heads, the sailor's bc x"]
    for found, text in zip(in_node(content, texts, isWorker=is_worker), texts, strict=True):
        final, maps = of_torch(model.double(), [pieces.index(piece) for piece in found["pieces"]])
        assert len(found["pieces"]) > 3, text
        assert_close(torch.tensor(found["final"]).double(), final, atol=1e-5, rtol=0)
        assert_close(torch.tensor(found["maps"]).double(), maps, atol=1e-6, rtol=0)


def test_units_are_valid_characters_and_damage_is_refused():
    data = bytes(range(256))
    text = pack_units(data)
    assert all(0x3000 <= ord(unit) < 0xB000 for unit in text)
    pieces, model = MARKS + WORDS, small_model()
    content = pack_bert(model, pieces, range(len(pieces)))
    for wrong in (content["int8"][:-1], "a" + content["int8"][1:], ""):
        with pytest.raises(AssertionError, match="what was loaded is damaged"):
            in_node(content | {"int8": wrong}, ["two"])


@pytest.fixture(scope="module")
def published():
    return load_sentence_model()


def test_pieces_are_those_of_the_tokenizer_on_1000_lines_of_the_book(published):
    _, tokenizer = published
    lines = [line for line in "\n".join(map(book_text, PARTS)).splitlines() if line.strip()]
    assert len(lines) > 2000
    texts = [*lines[:: len(lines) // 1000][:1000], *ODD]
    small = small_model()
    content = pack_bert(small, kept_pieces(tokenizer)[0], range(5)) | {"onlyPieces": True}
    found = in_node(content, texts)
    for text, own in zip(texts, found, strict=True):
        assert own["pieces"] == tokenizer.encode(text).tokens, text


def test_rounding_moves_vectors_and_maps_of_the_published_model_only_a_little(published):
    """Measured in torch, which computes as the page does (above)."""
    model, tokenizer = published
    rounded = rounded_bert(load_sentence_model()[0])
    lines = [line for line in "\n".join(map(book_text, PARTS)).splitlines() if len(line) > 20]
    cosines, largest, mean = [], [], []
    for line in lines[:: len(lines) // 100][:100]:
        tokens = tokenizer.encode(line).ids[:64]
        (final, maps), (other, others) = of_torch(model, tokens), of_torch(rounded, tokens)
        cosines.append(torch.cosine_similarity(final.mean(0), other.mean(0), dim=0))
        largest.append((maps - others).abs().max())
        mean.append((maps - others).abs().mean())
    assert min(cosines) > 0.998
    assert max(largest) < 0.12
    assert max(mean) < 0.004


def test_the_file_is_smaller_than_14_megabytes_and_reads_the_sailors_in_node(published):
    name, data = sentence_model.sentence_file()
    assert len(data) < 14_000_000
    text = data.decode("utf-16")
    assert f'"name":"{name}"' in text
    content = json.loads(text[text.index('"content":') + 10 : -4])
    said = "the old baker's sailors near the teacher are singing and nobody knows why"
    [found] = in_node(content, [said])
    assert found["pieces"] == published[1].encode(said).tokens
    final, maps = of_torch(rounded_bert(load_sentence_model()[0]), published[1].encode(said).ids)
    assert_close(torch.tensor(found["final"]), final, atol=2e-4, rtol=0)
    assert_close(torch.tensor(found["maps"]), maps, atol=1e-4, rtol=0)
