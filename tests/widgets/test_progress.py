"""The store of the reader's answers, and the widget that counts, exports, imports and removes them."""

import json
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect
from storage import PREFIX, UNUSABLE, reload, store, stored
from widget_page import write_page

from mha_course import grade
from mha_course.widgets import Progress, Question, Quiz

NO_STORAGE = "This browser keeps no answers: its storage is blocked, full or missing."


def quiz():
    return Quiz([Question("One?", ["a", "b"], 1), Question("Two?", ["c", "d"], 0)], name="first")


def open_page(tab, tmp_path):
    """A quiz with a name, and below it the count of answers."""
    page = tab.open(write_page(tmp_path, [quiz(), Progress()]), 2)
    return page, tab.host(0), tab.host(1)


def answer(host, number, choice):
    host.get_by_role("radio", name=choice, exact=True).check()
    host.get_by_role("button", name=f"Check question {number}").click()


@pytest.mark.parametrize("over", ["http", "disk"])
def test_it_counts_at_once_and_again_later(reader, tmp_path, over):
    page, asked, progress = open_page(reader(over), tmp_path)
    count = progress.locator(".mha-title")
    assert count.inner_text() == "No answer is kept in this browser."
    assert progress.get_by_role("button").all_inner_texts() == ["Import a file"], "nothing else is possible"
    answer(asked, 1, "a")
    assert count.inner_text() == "1 answer is kept in this browser."
    answer(asked, 2, "c")
    assert count.inner_text() == "2 answers are kept in this browser."
    answer(asked, 1, "b")
    assert count.inner_text() == "2 answers are kept in this browser.", "a second try is no second answer"
    store(page, **{"typed-answer__a": '{"attempts": [5]}', "quiz__damaged": "{"})
    page.evaluate("localStorage.setItem('other-book/quiz/a', '7')")
    reload(page, 2)
    assert count.inner_text() == "3 answers are kept in this browser."


def test_it_hears_of_answers_on_another_page(reader, tmp_path):
    page, _, progress = open_page(reader(), tmp_path)
    # The browser notifies every other document of the same site, so a frame can stand in for a second tab.
    page.evaluate(
        """key => document.body.appendChild(document.createElement("iframe"))
          .contentWindow.localStorage.setItem(key, '{"attempts": [5]}')""",
        f"{PREFIX}typed-answer/a",
    )
    expect(progress.locator(".mha-title")).to_have_text("1 answer is kept in this browser.")


@pytest.mark.parametrize("over", ["http", "disk"])
def test_the_exported_file_holds_every_answer(reader, tmp_path, over):
    page, asked, progress = open_page(reader(over), tmp_path)
    answer(asked, 2, "d")
    store(page, **{"typed-answer__a": '{"attempts": [5]}'})
    with page.expect_download() as caught:
        progress.get_by_role("button", name="Export as a file").click()
    assert caught.value.suggested_filename == "multi-head-attention-answers.json"
    text = Path(caught.value.path()).read_text(encoding="utf-8")
    kept = json.loads(text)
    assert [*kept.pop("repeat/quiz/first")] == ["Two?"]
    assert kept == {"quiz/first": {"answers": {"Two?": "d"}}, "typed-answer/a": {"attempts": [5]}}
    assert PREFIX not in text
    expect(progress.get_by_role("status")).to_contain_text("multi-head-attention-answers.json")
    progress.get_by_text("Show what is kept").click()
    reload(page, 2)
    progress.get_by_text("Show what is kept").click()
    assert progress.locator("pre").inner_text() == text, "the same can be read in the page"
    page.evaluate("localStorage.clear()")
    give(page, progress, text, "Imported: 2 answers.")
    assert stored(page) == kept and [*stored(page, days=True)["repeat/quiz/first"]] == ["Two?"]
    give(page, progress, '{"quiz/first": {"answers": {"One?": "a"}}}', "Imported: 1 answer.")
    assert stored(page)["quiz/first"] == {"answers": {"One?": "a", "Two?": "d"}}, "others are kept"
    former = json.dumps({"quiz/00_orientation.closing-quiz": {"answers": {"Three?": "e"}}})
    give(page, progress, former, "Imported: 1 answer.")
    assert stored(page)["quiz/orientation-quiz"] == {"answers": {"Three?": "e"}}, (
        "the file is older than this name"
    )
    before = stored(page)
    for wrong in ("", "[]", "{}", "7", '{"name": "x"}', '{"quiz/a": 7}', '["quiz/a"]', '{"quiz/a": null}'):
        give(page, progress, wrong, "This file has no answers to this course.")
    assert stored(page) == before


def test_an_imported_draft_is_kept_beside_the_one_that_is_here(reader, tmp_path):
    page, _, progress = open_page(reader(), tmp_path)
    long = {"draft": "a longer draft\nof three\nlines", "accepted": "mine"}
    store(page, **{"write-here__MyHead": json.dumps(long), "write-here__same": '{"draft": "x"}'})
    given = {"draft": "short", "accepted": "theirs", "others": [{"text": "older", "from": "another tab"}]}
    file = {"write-here/MyHead": given, "write-here/same": {"draft": "x"}, "write-here/new": {"draft": "y"}}
    give(page, progress, json.dumps(file), "kept beside it, where they differ: MyHead. The editor there")
    kept = stored(page)
    others = kept["write-here/MyHead"].pop("others")
    assert kept == {
        "write-here/MyHead": long,
        "write-here/same": {"draft": "x"},
        "write-here/new": {"draft": "y"},
    }
    assert [other["text"] for other in others] == ["short", "theirs", "older"]
    give(page, progress, json.dumps(file), "Imported: 3 answers. A page")
    assert stored(page)["write-here/MyHead"]["others"] == others, "the same file adds nothing"


def test_what_was_written_is_exported_as_a_notebook_that_the_grader_reads(reader, tmp_path):
    page, _, progress = open_page(reader(), tmp_path)
    button = progress.get_by_role("button", name="Export as a notebook")
    expect(button).to_be_hidden()
    text = "from mha_course.exercises import check_split_heads, solution\n\ndef split_heads(x):\n    return x"
    store(page, **{"write-here__split_heads": json.dumps({"draft": "y", "accepted": text}),
                                                 "write-here__free": '{"draft": "free = 1"}'})  # fmt: skip
    reload(page, 2)
    with page.expect_download() as download:
        button.click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.name == "multi-head-attention-answers.ipynb"
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    start, *sources = [cell.source for cell in book.cells]
    assert start == grade._IN_PAGE
    assert sorted(sources) == sorted([text, "check_split_heads(split_heads)", "free = 1"])
    assert sources.index("check_split_heads(split_heads)") == sources.index(text) + 1


def give(page, progress, text, said):
    with page.expect_file_chooser() as asked:
        progress.get_by_role("button", name="Import a file").click()
    asked.value.set_files({"name": "answers.json", "mimeType": "application/json", "buffer": text.encode()})
    expect(progress.get_by_role("status")).to_contain_text(said)


def test_answers_are_removed_only_after_a_question(reader, tmp_path):
    page, asked, progress = open_page(reader(), tmp_path)
    answer(asked, 1, "a")
    answer(asked, 2, "c")
    page.on("dialog", lambda dialog: pytest.fail(f"a window asks: {dialog.message}"))
    count = progress.locator(".mha-title")
    clear = progress.get_by_role("button", name="Clear …")
    question = progress.get_by_role("group", name="Remove all answers?")
    focused = lambda: page.evaluate("document.activeElement.textContent")  # noqa: E731

    clear.focus()
    page.keyboard.press("Enter")
    expect(question).to_contain_text("Remove 2 answers from this browser? You cannot undo this.")
    assert focused() == "Keep them"
    page.keyboard.press("Enter")
    expect(question).to_be_hidden()
    assert focused() == "Clear …"
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    assert len(stored(page)["quiz/first"]["answers"]) == 2

    store(page, quiz__damaged="{")
    others = [["mha-course", "7"], ["other-book/quiz/a", "7"]]
    page.evaluate("others => others.forEach((item) => localStorage.setItem(...item))", others)
    clear.click()
    progress.get_by_role("button", name="Remove them").click()
    after = "No answer is kept in this browser. "
    after += "A page that is open shows its answers until you load it again."
    assert count.inner_text() == after
    assert focused() == after, "the focus is not lost"
    expect(progress.get_by_role("status")).to_have_text(after)
    assert progress.get_by_role("button").all_inner_texts() == ["Import a file"]
    assert page.evaluate("Object.entries(localStorage).sort()") == others
    assert asked.locator(".mha-score").inner_text() == "1 of 2 correct"
    reload(page, 2)
    assert asked.locator(".mha-score").inner_text() == "0 of 2 correct"
    assert count.inner_text() == "No answer is kept in this browser."


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_browser_without_storage_says_so(reader, tmp_path, kind):
    tab = reader()
    tab.page.add_init_script(UNUSABLE[kind])
    _, asked, progress = open_page(tab, tmp_path)
    text = progress.locator(".mha-title")
    assert text.inner_text().startswith(NO_STORAGE)
    answer(asked, 1, "a")
    assert text.inner_text().startswith(NO_STORAGE)
    assert progress.get_by_role("button").count() == 0
    assert "Nothing is sent" not in progress.inner_text()


def test_answers_in_a_full_storage_can_still_be_exported_and_removed(reader, tmp_path):
    page, asked, progress = open_page(reader(), tmp_path)
    answer(asked, 1, "a")
    page.add_init_script(UNUSABLE["full"])
    reload(page, 2)
    assert progress.locator(".mha-title").inner_text() == "1 answer is kept in this browser."
    with page.expect_download():
        progress.get_by_role("button", name="Export as a file").click()
    progress.get_by_role("button", name="Clear …").click()
    progress.get_by_role("button", name="Remove them").click()
    assert stored(page) == {}


def test_python_knows_its_name_and_its_stand_in():
    assert repr(Progress()) == "Progress()"
    assert "Nothing leaves your machine." in Progress()._repr_mimebundle_()[0]["text/html"]
    for wrong in ("chapter-1", "", 0):
        with pytest.raises(TypeError, match="cards must be a list"):
            Progress(wrong)
