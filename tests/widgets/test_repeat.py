"""Questions come back: on which day, what is then hidden and counted, and the deck of cards."""

import csv
import datetime
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect
from storage import reload, store, stored
from widget_page import ROOT, write_page

from mha_course.questions import cards, quiz
from mha_course.widgets import MapPrediction, Progress, Question, Quiz, TypedAnswer

START = datetime.date(2026, 3, 1)
AGAIN = "You have answered this before. Answer again."
KINDS = {
    "quiz": lambda: Quiz([Question("Q", {"a": "No.", "b": "Yes."}, "b")], name="x"),
    "typed-answer": lambda: TypedAnswer("Q", 6, computed=6, name="x"),
    "map-prediction": lambda: MapPrediction("Q", ["a"], ["c"], [[True]], computed=[[True]], name="x"),
}


def wait(page, days, hour="12:00"):
    page.clock.set_fixed_time(f"{START + datetime.timedelta(days)}T{hour}:00Z")


def turn(page, kind):
    """The row in the table of days, and the day of the answer, counted from the start."""
    found = stored(page, days=True)[f"repeat/{kind}/x"]["Q"]
    return found["step"], (datetime.date.fromisoformat(found["day"]) - START).days


def answer(host, is_right):
    for radio in host.get_by_role("radio").all()[is_right:][:1]:
        radio.check()
    for field in host.get_by_role("textbox").all():
        field.fill("6" if is_right else "5")
    for cell in host.get_by_role("gridcell").all()[: int(is_right)]:
        cell.click()
    host.get_by_role("button", name=re.compile("Check|^See$")).click()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_hidden_and_counts_on_the_day_it_is_due(reader, tmp_path, kind):
    tab, day = reader(), 0
    wait(tab.page, day)
    page, host = tab.open(write_page(tmp_path, [KINDS[kind]()]), 1), tab.host()
    assert AGAIN not in host.inner_text()
    answer(host, False)
    if kind != "map-prediction":  # its first check shows the whole answer
        answer(host, True)
    assert turn(page, kind) == (0, 0), "what follows the feedback does not count"
    for step, gap in [(1, 1), (2, 3), (3, 7), (4, 21), (4, 60), (4, 60), (0, 60), (1, 1)]:
        before = stored(page)
        wait(page, day + gap - 1, "23:59")
        reload(page)
        assert AGAIN not in host.inner_text()
        wait(page, day := day + gap, "00:01")
        reload(page)
        assert AGAIN in host.inner_text()
        assert host.locator(":checked, [data-verdict=right], .mha-is-1").count() == 0
        assert stored(page) == before, "it is hidden, not lost"
        answer(host, step > 0)
        assert AGAIN not in host.inner_text()
        assert turn(page, kind) == (step, day)


def test_a_hidden_answer_stays_when_the_next_question_is_answered(reader, tmp_path):
    asked = Quiz([Question("Q", ["a", "b"], 0), Question("R", ["c", "d"], 0)], name="x")
    tab = reader()
    page = tab.open(write_page(tmp_path, [asked]), 1)
    store(page, quiz__x='{"answers": {"Q": "b"}}', repeat__quiz__x='{"Q": {"step": 0, "day": "2026-01-01"}}')
    reload(page)
    tab.host().get_by_role("radio", name="d").check()
    tab.host().get_by_role("button", name="Check question 2").click()
    assert stored(page) == {"quiz/x": {"answers": {"Q": "b", "R": "d"}}}


def test_progress_leads_to_what_is_due_wrong_answers_first(reader, tmp_path):
    tab, found, name = reader(), cards(), "formula-question"
    wait(tab.page, 30)
    tall = Quiz([Question(f"{n}?", ["a", "b"], 0) for n in range(20)])
    asked = quiz(f"00_orientation/{name}", computed="(3, 7)")
    page, progress = tab.open(write_page(tmp_path, [Progress(found), tall, asked]), 3), tab.host(0)
    assert "repeat" not in progress.inner_text(), "nothing was answered"
    store(page, **{f"quiz__{name}": json.dumps({"answers": {found[0]["text"]: "(3, 5)"}})})
    days = [(1, "03-01"), (3, "03-02"), (0, "03-20"), *[(1, "03-03")] * 10]
    for card, (step, day) in zip([found[0], found[-1], found[1], *found[20:30]], days, strict=True):
        key = f"repeat/{card['key']}"
        turns = stored(page, days=True).get(key, {}) | {card["text"]: {"step": step, "day": f"2026-{day}"}}
        store(page, **{key.replace("/", "__"): json.dumps(turns)})
    reload(page, 3)
    for text in ("today: 13", "in 3, 7 and 21 days, and then every 60", "3 more questions will"):
        expect(progress).to_contain_text(text)
    links = progress.get_by_role("link")
    assert links.count() == 10
    assert links.all_inner_texts()[:3] == [re.sub(r"[`*]", "", found[place]["text"]) for place in (1, 0, -1)]
    assert progress.locator("li").first.inner_text().endswith("Orientation, wrong last time")
    assert links.nth(1).get_attribute("href") == f"{tab.home}chapters/00_orientation.html#{name}"
    assert links.nth(2).get_attribute("href").startswith(f"{tab.home}index.html#look-question")
    page.goto(f"{tab.home}chapters/page.html?#{name}")
    expect(tab.host(2)).to_be_in_viewport()
    answer(tab.host(2), False)
    expect(progress).to_contain_text("today: 12")


@pytest.mark.parametrize(("kept", "is_due", "after"), [
    ({"step": 1, "day": "2026-03-02"}, False, (1, 1)),  # a reader who travelled west
    ({"step": 1, "day": "2026-03-03"}, True, (2, 0)),  # a clock that was wrong
    ({"step": 9, "day": "2026-03-01"}, True, (1, 0)),
    ({"step": 2, "day": "?"}, True, (3, 0)),
    (7, True, (1, 0)),
    (None, False, (1, 0)),  # stored by an older version
])  # fmt: skip
def test_a_wrong_clock_and_damaged_or_missing_days(reader, tmp_path, kept, is_due, after):
    tab = reader()
    wait(tab.page, 0)
    page, host = tab.open(write_page(tmp_path, [KINDS["quiz"]()]), 1), tab.host()
    store(page, quiz__x='{"answers": {"Q": "b"}}', repeat__quiz__x=json.dumps({"Q": kept}))
    reload(page)
    assert (AGAIN in host.inner_text()) == is_due
    if is_due:
        answer(host, True)
    assert turn(page, "quiz") == after


def test_a_day_begins_at_the_readers_midnight(reader, tmp_path):
    tab = reader()
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    wait(tab.page, 0, "16:00")
    tab.open(write_page(tmp_path, [KINDS["quiz"]()]), 1)
    answer(tab.host(), True)
    assert turn(tab.page, "quiz") == (1, 1)


def test_the_deck_holds_the_answered_questions_as_anki_reads_them(reader, tmp_path):
    odd = {
        "key": "quiz/odd.x",
        "file": "odd",
        "page": "Odd",
        "text": 'A "quote"\tand <b>',
        "offered": "",
        "answer": "&amp;",
    }
    asked, tab = quiz("00_orientation/formula-question", computed="(3, 7)"), reader()
    path = write_page(tmp_path, [asked, Progress([*cards(), odd])])
    page, progress = tab.open(path, 2), tab.host(1)
    store(page, **{"repeat__quiz__odd.x": json.dumps({odd["text"]: {"step": 1}})})
    answer(tab.host(0), False)
    with page.expect_download() as caught:
        progress.get_by_role("button", name="Export as a deck").click()
    expect(progress.get_by_role("status")).to_contain_text("2 cards that Anki imports")
    lines = Path(caught.value.path()).read_text(encoding="utf-8").splitlines(keepends=True)
    assert "".join(lines[:4]) == "#separator:tab\n#html:false\n#deck:Multi-head attention\n#tags column:3\n"
    [first, second] = csv.reader(lines[4:], delimiter="\t")
    front = [cards()[0]["text"], "", "• (3, 7)", "• (3, 5)", "• (5, 7)", "• (3, 2)", "", "(Orientation)"]
    assert [first[0].split("\n"), first[2]] == [front, "00_orientation"]
    assert first[1].startswith("(3, 7)\nOne row for each query.")
    assert second == [odd["text"] + "\n\n(Odd)", odd["answer"], "odd"]


def test_the_cards_are_the_questions_of_the_pages():
    kinds, asked = {"Quiz": "quiz", "TypedAnswer": "typed-answer", "MapPrediction": "map-prediction"}, set()
    for path in [ROOT / "index.ipynb", *(ROOT / "chapters").glob("*.ipynb")]:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        states = notebook["metadata"].get("widgets", {}).values()
        for state in (model["state"] for kept in states for model in kept["state"].values()):
            if kind := kinds.get(state.get("_anywidget_id", "").rpartition(".")[2]):
                texts = state.get("questions") or [state.get("question") or state["task"]]
                place = (
                    f"{kind}/{state['name']}",
                    path.stem,
                    notebook["cells"][0]["source"][0].strip("# \n"),
                )
                asked |= {(*place, question["text"]) for question in texts}
    assert {(card["key"], card["file"], card["page"], card["text"]) for card in cards()} == asked
