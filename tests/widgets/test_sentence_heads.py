"""The heads of the sentence model on the reader's own text: when the model is loaded, and who reads what."""

import importlib.util
import json
import re
import types
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect
from torch.testing import assert_close
from widget_page import ByHand, assert_shows_numbers, shown, write_page
from widget_samples import sentence_heads as sample

from mha_course.widgets import SentenceHeads, sentence_heads, sentence_model
from mha_course.widgets.sentence_model import MARKS, pack_bert, sentence_file, unpack_bert, word_pieces
from mha_lib import Bert

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"sentences-[0-9a-f]{12}\.js")
WORDS = "the old baker ' s sail ##ors near teacher are happy in station two heads see . a b c".split()
PIXELS = {"weights"}


@pytest.fixture
def installed(monkeypatch):
    """A small model of the published one's shape in its place; the page has no vector for "station"."""
    torch.manual_seed(0)
    pieces = [*MARKS, *WORDS]
    model = Bert(len(pieces), 24, 12, 30, 6, max_len=48, head=False).eval().requires_grad_(False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows = {piece: row for row, piece in enumerate(pieces)}
    bert = sentence_model.PageBert(model, word_pieces(pieces), rows)
    monkeypatch.setattr(sentence_heads, "published_bert", lambda: bert)
    kept = [number for number, piece in enumerate(pieces) if piece != "station"]
    return bert, pack_bert(model, pieces, kept)


def put_file(folder, packed, *, cut=False):
    text = json.dumps(packed, ensure_ascii=False)
    detail = f'{{"name":"{sentence_model.FILE}","content":{text}}}'
    script = f'dispatchEvent(new CustomEvent("mha-file",{{detail:{detail}}}));'
    data = b"\xff\xfe" + script.encode("utf-16-le")
    (folder / "_static" / sentence_model.FILE).write_bytes(data[: len(data) // 4 * 2] if cut else data)


def in_a_worker(states):
    """As a large model."""
    for state in states:
        assert "const SMALL = 1e6" in state["_esm"]
        state["_esm"] = state["_esm"].replace("const SMALL = 1e6", "const SMALL = 0")


def assert_reads(host, bert, text, index=(0, 0), query=0, atol=1e-6):
    """The page shows the row of a head as torch computes it."""
    numbers = SentenceHeads._compute(text, *index, query, bert)
    expect(host.locator(".mha-token-strip label")).to_have_count(len(numbers["reading"]))
    for name in ("reading", "looks", "strongest"):
        assert_close(shown(host, name), numbers[name], atol=atol, rtol=0)


@pytest.mark.parametrize("over", ["http", "disk"])
def test_the_model_is_loaded_by_the_button_and_a_worker_reads_what_is_typed(
    reader, tmp_path, installed, over
):
    bert, packed = installed
    widget = SentenceHeads(query=1)
    assert widget.model == {}
    tab = reader(over)
    page = tab.open(write_page(tmp_path, [widget], alter=in_a_worker), 1)
    put_file(tmp_path, packed)
    host = tab.host()
    button, field = host.get_by_role("button", name="Load the model (14 MB)"), host.get_by_label("your text")
    # The maps of the first text are in the page; for another text, the reader decides.
    assert_shows_numbers(host, widget, widget.numbers().keys() - PIXELS)
    expect(host.locator(".mha-offer")).to_contain_text(f"Below are the maps of “{widget.text}”")
    field.fill("two heads see a teacher")
    expect(button).to_be_visible()
    assert_reads(host, bert, widget.text, query=1)
    assert not any(NAME.search(url) for url in tab.requests)
    button.click()
    expect(button).to_be_hidden()
    expect(host.locator(".mha-notice")).to_be_hidden()
    expect(host.locator("progress")).to_be_hidden()
    own = unpack_bert(packed)
    assert len(page.workers) == 1
    assert_reads(host, own, "two heads see a teacher", query=1)
    # One file and one worker serve all texts.
    field.fill("The teacher's station? 🤖")
    expect(host.locator(".mha-missing")).to_contain_text("It has no vector for “station” and reads [UNK]")
    assert_reads(host, own, "The teacher's station? 🤖", query=1)
    host.get_by_role("radio", name="Layer 5, head 11").check()
    assert_reads(host, own, "The teacher's station? 🤖", (5, 11), query=1)
    host.get_by_role("button", name="Reset").click()
    assert_reads(host, own, widget.text, query=1)
    assert len(page.workers) == 1
    assert sum(bool(NAME.search(url)) for url in tab.requests) == 1
    assert len(shown(host, "reading")) == len(own.pieces(widget.text))


def test_a_file_that_is_missing_or_damaged_gives_a_sentence_and_another_try(reader, tmp_path, installed):
    bert, packed = installed
    tab = reader("http")
    tab.open(write_page(tmp_path, [SentenceHeads()], alter=in_a_worker), 1)
    host = tab.host()
    notice, again = host.locator(".mha-notice"), host.get_by_role("button", name="Try again")
    host.get_by_role("button", name="Load the model").click()
    expect(notice).to_contain_text(
        re.compile(r"the file sentences-\S+ is missing: this copy of the book was")
    )
    expect(notice).to_contain_text("On Colab")
    expect(host.locator("[role=status]")).to_contain_text("was built without it")
    first = len(shown(host, "reading"))
    assert first == len(bert.pieces(SentenceHeads().text)), "the stored maps stay"
    faults = [
        lambda: put_file(tmp_path, packed, cut=True),
        lambda: put_file(tmp_path, packed | {"pieces": packed["pieces"][:-1]}),
        lambda: put_file(tmp_path, packed | {"int8": packed["int8"][:-1]}),  # which the worker finds
        lambda: put_file(tmp_path, packed | {"int8": "a" + packed["int8"][1:]}),
    ]
    for spoil in faults:
        spoil()
        again.click()
        expect(notice).to_contain_text("The model could not be loaded")
        expect(notice).to_contain_text("is damaged")
        expect(again).to_be_visible()
        assert len(shown(host, "reading")) == first
    put_file(tmp_path, packed)
    again.click()
    expect(notice).to_be_hidden()
    assert_reads(host, unpack_bert(packed), SentenceHeads().text)
    noted = ("404", "Invalid or unexpected token", "Unexpected end of input")
    assert all(any(text in error for text in noted) for error in tab.errors), tab.errors
    tab.errors.clear()


def test_a_browser_without_workers_reads_in_the_page(reader, tmp_path, installed):
    _, packed = installed
    tab = reader("http")
    tab.page.add_init_script("window.Worker = class { constructor() { throw new Error('none'); } };")
    page = tab.open(write_page(tmp_path, [SentenceHeads()], alter=in_a_worker), 1)
    put_file(tmp_path, packed)
    host = tab.host()
    host.get_by_role("button", name="Load the model").click()
    host.get_by_label("your text").fill("two teachers are happy")
    expect(host.locator(".mha-token-strip label").nth(1)).to_have_text("two")
    assert_reads(host, unpack_bert(packed), "two teachers are happy")
    assert page.workers == []


@pytest.fixture
def hosted(browser, serve, tmp_path):
    """A function that hosts a widget by hand, on a page without a folder of files, as with a kernel."""
    page = browser.new_page()
    path = write_page(tmp_path, [sample()])
    page.goto(f"{serve(tmp_path)}/chapters/{path.name}")
    hands = []

    def host(widget):
        hands.append(ByHand(page, widget))
        return hands[-1]

    yield host
    for hand in hands:
        hand.clean_up()
    assert page.workers == []
    page.close()


def test_a_new_text_stops_the_reading_of_the_one_before(hosted, installed):
    """The worker is let go with its view, and after each block it hears what was typed meanwhile."""
    widget = SentenceHeads()
    hand = hosted(widget)
    page, packed = hand.page, installed[1]
    page.evaluate(
        """source => {
          const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
          window.reading = import(url);
        }""",
        widget._esm,
    )
    found = page.evaluate(
        """async (packed) => {
          const { bertReader } = await window.reading;
          const heard = [];
          let read = null;
          await new Promise((done) => {
            read = bertReader((answer) => {
              heard.push(answer);
              if (answer.number === 1 && answer.block === 2) read({ number: 2, tokens: [2, 5, 3] });
              if (answer.number === 2 && answer.maps) setTimeout(done, 50);
            });
            read({ packed, number: 1, tokens: [2, 5, 6, 7, 3] });
          });
          return heard.map(({ number, block, maps }) => [number, block ?? `${maps.length} maps`]);
        }""",
        packed,
    )
    assert [entry for entry in found if entry[0] == 1] == [[1, 1], [1, 2]]
    assert [entry for entry in found if entry[0] == 2] == [*([2, n + 1] for n in range(6)), [2, "72 maps"]]


def test_with_a_kernel_python_sends_the_maps_of_each_text(hosted, installed):
    widget = SentenceHeads(text="two heads", head=1)
    hand = hosted(widget)
    host, notice = hand.host, hand.host.locator(".mha-notice")
    expect(host.locator(".mha-offer")).to_be_hidden()
    assert_shows_numbers(host, widget, widget.numbers().keys() - PIXELS)
    for text in ("the old teacher's station", "x", " ", "two heads " * 20, "see"):
        host.get_by_label("your text").fill(text)
        expect(notice).to_contain_text("Waiting for the maps, which Python sends. Below is still: “")
        for changes in hand.saved():
            widget.set_state(changes)
        assert widget.text == text
        hand.set(answer=widget.answer)
        expect(notice).to_be_hidden()
        assert_shows_numbers(host, widget, widget.numbers().keys() - PIXELS)
    length = len(widget.numbers()["reading"])
    for _ in range(100):  # the report follows when the browser has time
        widget.browser_report = hand.report()
        if len(widget.browser_report["numbers"]["reading"]) == length:
            break
        host.page.wait_for_timeout(50)
    assert widget.browser_difference() < 1e-6


def test_without_the_model_a_kernel_says_how_to_get_it(hosted, monkeypatch):
    def missing():
        raise FileNotFoundError("the sentence model is not installed; `make models` installs it")

    monkeypatch.setattr(sentence_heads, "published_bert", missing)
    widget = SentenceHeads()
    assert widget.answer == {}
    hand = hosted(widget)
    expect(hand.host.locator(".mha-notice")).to_contain_text("Waiting for the maps")
    for changes in hand.saved():
        widget.set_state(changes)
    hand.set(answer=widget.answer)
    expect(hand.host.locator(".mha-notice")).to_contain_text(
        "the sentence model is not installed; `make models`"
    )
    assert hand.host.locator(".mha-map-grid").count() == 1
    expect(hand.host.locator(".mha-map-grid")).to_be_hidden()


def test_texts_at_the_edges_are_read_or_refused_in_a_sentence(show):
    widget = sample()
    host = show(widget)
    field, notice, remark = (
        host.get_by_label("your text"),
        host.locator(".mha-notice"),
        host.locator(".mha-remark"),
    )
    before = shown(host, "reading")
    field.fill("")
    expect(remark).to_have_text(f"Type at least one character. Below is still: “{widget.text}”.")
    field.fill("a" * 201)
    expect(remark).to_contain_text("201 characters are too many: the model reads at most 200 here.")
    field.fill("heads " * 10)
    expect(notice).to_contain_text(
        "This text has 12 pieces of words, its two marks included; the model reads"
    )
    expect(notice).to_contain_text("at most 11 here. Shorten it. Below is still: “Two sailors see heads.”")
    assert torch.equal(shown(host, "reading"), before)
    for text in (" ", "三个头 🤖", "\u200b\u0301", "<b>heads</b>", "[MASK] sees [CLS]", "q" * 150):
        field.fill(text)
        expect(notice).to_be_hidden()
        widget.text = text
        assert_shows_numbers(host, widget, widget.numbers().keys() - PIXELS)
    pieces = host.locator(".mha-token-strip label").all_text_contents()
    assert pieces == ["[CLS]", "[UNK]", "[SEP]"]
    field.fill("Two heads")
    host.get_by_role("radio", name="heads (3)").check()
    reading = SentenceHeads._compute("Two heads", 0, 0, 2, widget._own)["reading"]
    best = int(reading.argmax())
    token = ["[CLS]", "two", "heads", "[SEP]"][best]
    told = f"At “heads”, piece 3 of 4, this head reads most: “{token}” ({best + 1}) {reading[best]:.2f}"
    expect(host.locator(".mha-caption").first).to_contain_text(told)
    expect(host.locator("[role=status]")).to_contain_text(f"Maps of “Two heads”. Layer 0, head 0. {told}")


def small(**options):
    return Bert(7, 6, 3, 12, 2, max_len=9, **{"head": False} | options)


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: SentenceHeads(3, MARKS), TypeError, "^model must be a Bert"),
    (lambda: SentenceHeads(small()), TypeError, "^pieces must be a Sequence"),
    (lambda: SentenceHeads(small(head=True), [*MARKS, "a", "b"]), ValueError,
     "model must be a Bert with head=False, got head=True"),
    (lambda: SentenceHeads(small(activation="relu"), [*MARKS, "a", "b"]), ValueError, "model must have gelu"),
    (lambda: SentenceHeads(small(), [*MARKS, "a"]), ValueError, "pieces must hold 7 different pieces"),
    (lambda: SentenceHeads(small(), [*MARKS, "a", "a"]), ValueError, "pieces must hold 7 different pieces"),
    (lambda: SentenceHeads(small(), list("abcdefg")), ValueError, r"pieces must hold \[PAD\], \[UNK\]"),
    (lambda: SentenceHeads(small(), [*MARKS, "a", "b"], text="a " * 8).numbers(), ValueError,
     "text must have at most 9 pieces of words, got 10"),
])  # fmt: skip
def test_other_models_and_long_texts_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_book_has_the_file_where_the_model_is_installed(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("widget_files", ROOT / "_ext" / "widget_files.py")
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    monkeypatch.setattr(files, "KEPT", tmp_path / "kept")
    book = tmp_path / "html"
    (book / "_static").mkdir(parents=True)
    (book / "page.html").write_text(f'"file": "{sentence_model.FILE}"')
    made = []

    def missing():
        raise FileNotFoundError("the sentence model is not installed")

    monkeypatch.setattr(sentence_model, "sentence_file", missing)
    app = types.SimpleNamespace(outdir=str(book))
    files.write_files(app)
    assert list((book / "_static").iterdir()) == []
    monkeypatch.setattr(sentence_model, "sentence_file", lambda: made.append(1) or b"contents")
    for _ in range(3):
        files.write_files(app)
        path = book / "_static" / sentence_model.FILE
        assert path.read_bytes() == b"contents"
        path.unlink()
    assert len(made) == 1
    # A file of an older model goes, in the book and where it was kept.
    (book / "_static" / "sentences-0123456789ab.js").write_bytes(b"old")
    files.write_files(app)
    assert [file.name for file in (book / "_static").iterdir()] == [sentence_model.FILE]


def test_the_published_model_reads_in_the_page_as_in_torch(reader, tmp_path):
    """The file that the book serves, against the same rounded numbers, and against float32."""
    tab = reader("http")
    widget = SentenceHeads()
    page = tab.open(write_page(tmp_path, [widget]), 1)
    data = sentence_file()
    (tmp_path / "_static" / sentence_model.FILE).write_bytes(data)
    text = data.decode("utf-16")
    own = unpack_bert(json.loads(text[text.index('"content":') + 10 : -5]))
    host = tab.host()
    host.get_by_role("button", name="Load the model (14 MB)").click()
    expect(host.locator(".mha-notice")).to_be_hidden()
    assert len(page.workers) == 1
    said = "Yesterday my grandmother made a chocolate cake for the children"
    for text in (widget.text, said):
        host.get_by_label("your text").fill(text)
        expect(host.locator(".mha-notice")).to_be_hidden()
        for layer, head in ((0, 0), (3, 7), (5, 11)):
            host.get_by_role("radio", name=f"Layer {layer}, head {head}", exact=True).check()
            assert_reads(host, own, text, (layer, head), atol=1e-5)
            whole = SentenceHeads._compute(text, layer, head, 0, sentence_model.published_bert())
            assert (shown(host, "reading") - whole["reading"]).abs().max() < 0.15
    expect(host.locator(".mha-missing")).to_be_hidden()


def test_the_chosen_head_of_chapter_9_reads_the_sailors_at_are():
    """What the chapter says; and Python sends the first maps with the page."""
    widget = SentenceHeads(layer=3, head=1, query=10)
    pieces = widget.answer["pieces"]
    assert pieces[10] == "are"
    assert pieces[widget.numbers()["reading"].argmax()] == "sailors"
