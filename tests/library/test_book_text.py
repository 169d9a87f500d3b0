"""The book's own text: whole sections are held out, tokens give the text back, a changed file is refused."""

import json
import re
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course.data import book_text as book


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_of_every_ten_sections_eight_are_for_training():
    pages = [f"%%% page{page}\n\n# {page}.0\n### no section\n" for page in range(5)]
    sections = [[f"## {page}.{number}\ntext\n" for number in range(1, 5)] for page in range(5)]
    parts = book.split_text("".join(page + "".join(rest) for page, rest in zip(pages, sections, strict=True)))
    assert [len(parts[part]) for part in book.PARTS] == [20, 3, 2]
    # Five sections per page, the first of which begins where the page does.
    assert parts["validation"] == ["## 0.4\ntext\n", "## 2.4\ntext\n", "## 4.4\ntext\n"]
    assert parts["test"] == ["## 1.4\ntext\n", "## 3.4\ntext\n"]
    assert parts["train"][4] == "# 1.0\n### no section\n"


def test_the_parts_are_the_whole_book_and_share_nothing():
    text = book.TEXT_FILE.read_text(encoding="utf-8")
    assert len(text.encode()) < 400_000
    marks = re.findall(r"^%%% .*\n+", text, flags=re.MULTILINE)
    assert "%%% index\n\n" in marks
    assert "%%% chapters/07_transformer\n\n" in marks
    assert "%%% chapters/glossary\n\n" in marks
    sizes = [len(book.book_text(part)) for part in book.PARTS]
    assert sum(sizes) == len(text) - sum(map(len, marks))
    assert 0.75 < sizes[0] / sum(sizes) < 0.9
    sections = [section for part in book.split_text(text).values() for section in part]
    # Some sections have only a heading and one sentence: their quiz is code.
    assert all(text.count(section) == 1 for section in sections if len(section) > 150)


def test_the_text_is_prose():
    text = book.TEXT_FILE.read_text(encoding="utf-8")
    assert re.findall(r"</?(?:details|summary|span|div|a)\b", text) == []
    assert "plt.show()" not in text


@given(st.text())
def test_any_text_comes_back_from_its_tokens(text):
    tokens = book.encode_text(text)
    assert tokens.dtype == torch.int64
    assert book.decode_tokens(tokens) == text


def test_merges_were_learned_from_the_training_part_only():
    """Two pieces are merged because they stood together in training: that explains every token."""
    vocab = json.loads(book.TOKENIZER_FILE.read_text(encoding="utf-8"))["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(book.VOCAB_SIZE))
    train = book.book_text("train")
    merged = [token for token, number in vocab.items() if number >= 256]
    texts = [book.decode_tokens(torch.tensor([vocab[token]])) for token in merged]
    assert [text for text in texts if "\ufffd" not in text and text not in train] == []


@pytest.mark.parametrize("part", book.PARTS)
def test_the_tokens_of_a_part_are_its_text(part):
    tokens = book.book_tokens(part)
    assert book.decode_tokens(tokens) == book.book_text(part)
    tokens.zero_()  # a caller who changes the tokens does not change the stored ones
    assert book.decode_tokens(book.book_tokens(part)) == book.book_text(part)


@pytest.mark.parametrize("part", book.PARTS)
def test_a_batch_shows_passages_of_its_part(part):
    inputs, targets = book.book_batch(7, 11, part=part, generator=seeded(3))
    assert inputs.shape == targets.shape == (7, 11)
    passages = book.book_tokens(part).unfold(0, 12, 1)
    for row in torch.cat((inputs, targets[:, -1:]), dim=1):
        assert (passages == row).all(-1).any()
    assert_close(inputs[:, 1:], targets[:, :-1])


def test_every_passage_can_be_drawn():
    length = len(book.book_tokens("test")) - 2
    inputs, targets = book.book_batch(53, length, part="test", generator=seeded(5))
    ends = {(row[0].item(), last.item()) for row, last in zip(inputs, targets[:, -1], strict=True)}
    tokens = book.book_tokens("test").tolist()
    assert ends == {(tokens[0], tokens[-2]), (tokens[1], tokens[-1])}


def test_the_same_generator_gives_the_same_batch():
    first, again, other = (book.book_batch(5, 7, generator=seeded(seed))[0] for seed in (2, 2, 3))
    assert_close(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("file", ["TEXT_FILE", "TOKENIZER_FILE"])
def test_a_changed_file_is_refused(monkeypatch, tmp_path, file):
    changed = tmp_path / getattr(book, file).name
    shutil.copy(getattr(book, file), changed)
    with changed.open("a", encoding="utf-8") as opened:
        opened.write(" ")
    monkeypatch.setattr(book, file, changed)
    book._tokenizer.cache_clear()
    with pytest.raises(ValueError, match=f"{changed.name} must be the frozen file"):
        book.book_text("train") if file == "TEXT_FILE" else book.encode_text("a")
