"""The heads of a chat model: its stored maps, when they are loaded, and what a reader does with them."""

import gzip
import re

import pytest
import torch
from playwright.sync_api import expect
from widget_page import ByHand, assert_shows_numbers, write_page
from widget_samples import chat_heads as sample

from mha_course.widgets import ChatHeads, chat_heads
from mha_course.widgets.chat_heads import ChatMaps, pack_maps, stored_maps, unpack_maps

NAME = re.compile(r"chat-heads-[0-9a-f]{12}\.js")


@pytest.fixture
def stored(monkeypatch):
    """Small maps in place of those of the experiment, so that a page need not load many."""
    maps = sample()._maps
    monkeypatch.setattr(chat_heads, "stored_maps", lambda: maps)
    chat_heads.map_files.cache_clear()
    yield maps
    chat_heads.map_files.cache_clear()


def test_the_stored_maps_are_those_of_all_heads_on_many_texts_and_fit_a_page():
    maps = stored_maps()
    assert maps.scores.shape == (4, 30, 9)
    assert len(maps.texts) >= 8
    ((name, text),) = chat_heads.map_files().items()
    assert NAME.fullmatch(name)
    assert len(gzip.compress(text.encode())) < 700_000
    for name, text in maps.texts.items():
        length = len(text.tokens)
        sums = text.maps.double().sum(-1) / 255
        assert text.maps.shape == (30, 9, length, length)
        # Each number is rounded, so a row is off by at most half a step for each.
        assert (sums - 1).abs().max() <= length / 510, name
        assert (text.maps.triu(1) == 0).all()
        assert ChatHeads(text=name).texts[list(maps.texts).index(name)]["about"]
    # What a reader of chapter 9 expects to find: in the third round, what followed in the second.
    repeated = maps.texts["A repeated list"]
    induction = repeated.maps[18, 6].double() / 255
    words = torch.arange(12, 20, 2)
    assert [repeated.tokens[word] for word in words] == [repeated.tokens[word - 10] for word in words]
    assert induction[words, words - 9].mean() > 0.5


def test_packed_maps_come_back():
    maps = sample()._maps
    found = unpack_maps(pack_maps(maps))
    for own in ("scores", "rises"):
        close = {"rtol": 1e-3, "atol": 0.0, "check_dtype": False}  # four digits are stored
        torch.testing.assert_close(getattr(found, own), getattr(maps, own), **close)
    for name, text in maps.texts.items():
        assert torch.equal(found.texts[name].maps, text.maps)


def put_file(folder, *, cut=False):
    for name, text in chat_heads.map_files().items():
        kept = text[: len(text) // 2] if cut else text
        (folder / "_static" / name).write_text(kept, encoding="utf-8")


@pytest.mark.parametrize("over", ["http", "disk"])
def test_the_maps_are_loaded_only_when_the_reader_scrolls_to_them(reader, tmp_path, stored, over):
    assert stored.texts
    widget = ChatHeads(layer=1, head=2)
    assert widget.maps == {}
    tab = reader(over)
    path = write_page(tmp_path, [widget])
    tall = path.read_text(encoding="utf-8").replace("<body>", '<body><p style="height: 3000px"></p>')
    path.write_text(tall, encoding="utf-8")
    put_file(tmp_path)
    page = tab.open(path, 1)
    host = tab.host()
    page.wait_for_timeout(300)
    assert not any(NAME.search(url) for url in tab.requests)
    expect(host.locator(".mha-notice")).to_contain_text("are loaded when you scroll here")
    host.scroll_into_view_if_needed()
    expect(host.locator(".mha-notice")).to_be_hidden()
    assert sum(bool(NAME.search(url)) for url in tab.requests) == 1
    assert_shows_numbers(host, widget, widget.numbers().keys() - {"weights"})
    host.get_by_label("text").select_option("more")
    widget.text = "more"
    assert_shows_numbers(host, widget, widget.numbers().keys() - {"weights"})


def test_maps_that_cannot_be_loaded_give_a_sentence_and_another_try(reader, tmp_path, stored):
    assert stored.texts
    widget = ChatHeads()
    tab = reader("http")
    tab.open(write_page(tmp_path, [widget]), 1)
    host = tab.host()
    notice, again = host.locator(".mha-notice"), host.get_by_role("button", name="Try again")
    expect(notice).to_contain_text(
        re.compile(r"The maps could not be loaded: the file chat-heads-\S+ is missing")
    )
    put_file(tmp_path, cut=True)
    again.click()
    expect(notice).to_contain_text("is damaged")
    put_file(tmp_path)
    again.click()
    expect(notice).to_be_hidden()
    assert_shows_numbers(host, widget, {"reading", "strongest"})
    noted = ("404", "Invalid or unexpected token", "Unexpected end of input")
    assert all(any(text in error for text in noted) for error in tab.errors), tab.errors
    tab.errors.clear()


def test_with_a_kernel_python_sends_the_maps(browser, serve, tmp_path, stored):
    assert stored.texts
    page = browser.new_page()
    path = write_page(tmp_path, [sample()])
    page.goto(f"{serve(tmp_path)}/chapters/{path.name}")
    widget = ChatHeads(head=1)
    hand = ByHand(page, widget)
    hand.host.scroll_into_view_if_needed()
    notice = hand.host.locator(".mha-notice")
    expect(notice).to_contain_text("Waiting for the maps, which Python sends.")
    page.wait_for_timeout(300)
    for changes in hand.saved():
        widget.set_state(changes)
    assert widget.maps == pack_maps(stored)
    hand.set(maps=widget.maps)
    expect(notice).to_be_hidden()
    assert_shows_numbers(hand.host, widget, {"reading", "scores"})
    hand.clean_up()
    page.close()


def test_the_arrow_keys_walk_through_layers_and_heads(show):
    widget = sample()
    host = show(widget)
    chosen = lambda: host.locator(".mha-chat-grid input:checked").get_attribute("aria-label")  # noqa: E731
    host.get_by_role("radio", name="Layer 0, head 0,").focus()
    for key, place in (
        ("ArrowRight", (0, 1)), ("ArrowDown", (1, 1)), ("ArrowDown", (2, 1)), ("ArrowLeft", (2, 0)),
        ("ArrowLeft", (2, 0)), ("End", (2, 2)), ("ArrowUp", (1, 2)), ("Home", (1, 0)),
    ):  # fmt: skip
        host.page.keyboard.press(key)
        assert chosen().startswith(f"Layer {place[0]}, head {place[1]},"), key
        assert host.page.evaluate("document.activeElement.checked")
        widget.layer, widget.head = place
        assert_shows_numbers(host, widget, {"reading", "scores", "rises"})


def test_a_kind_of_heads_stands_out_and_what_is_read_and_lost_is_said(show):
    widget = sample()
    host = show(widget)
    numbers = widget._maps.scores.flatten(1)
    kinds = torch.where(numbers.amax(0) >= 0.4, numbers.argmax(0), -1)
    host.get_by_label("show").select_option("induction")
    others = host.locator(".mha-chat-grid label.mha-other")
    assert others.count() == int((kinds != 1).sum())
    host.get_by_role("radio", name="like (2)").check()
    reading = widget._maps.texts["few"].maps[0, 0, 1].double() / 255
    best = int(reading.argmax())
    told = f"“{['We', 'like'][best]}” ({best + 1}) {reading[best]:.2f}"
    expect(host.locator(".mha-caption").first).to_contain_text(f"reads most: {told}")
    rises = widget._maps.rises[:, 0, 0]
    expect(host.locator(".mha-fact")).to_have_text([f"{rise:+.3f}".replace("-", "−") for rise in rises])
    rank = 1 + int((widget._maps.rises[0] > rises[0]).sum())
    rise = f"{rises[0]:.3f}".replace("-", "−")
    spoken = f"{rise} nats on held-out English (rank {rank} of 12)"
    expect(host.locator("[role=status]")).to_contain_text(
        f"Without this head, the loss rises by {spoken} and by"
    )


@pytest.mark.parametrize(("change", "error", "message"), [
    (lambda maps: None, TypeError, r"^maps must be a ChatMaps"),
    (lambda maps: maps._replace(texts={}), ValueError, "maps must hold at least one text"),
    (lambda maps: maps._replace(scores=maps.scores[:, :2]), ValueError,
     r"the maps of 'few' must have shape \(2, 3"),
    (lambda maps: ChatMaps(maps.scores, maps.rises, {"a": maps.texts["few"]._replace(tokens=["x"] * 65)}),
     ValueError, "the text 'a' must have 1 to 64 tokens, got 65"),
])  # fmt: skip
def test_other_maps_are_refused(change, error, message):
    changed = change(sample()._maps)
    with pytest.raises(error, match=message):
        ChatHeads(changed) if changed is not None else ChatHeads(3)
