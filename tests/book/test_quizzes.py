"""Every question of the book: one cell asks it and computes its key; every choice is clicked.

What the page must show is taken from the files of questions and from the cells, not from the stored state.
"""

import ast
import copy
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from mha_course.questions import FOLDER, read_questions

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [ROOT / "index.ipynb", *sorted((ROOT / "chapters").glob("*.ipynb"))]
READ = {path: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in NOTEBOOKS}
DECLARED = {path.stem: read_questions(path) for path in sorted(FOLDER.glob("*.md"))}
WIDGETS = {"Question", "Quiz", "TypedAnswer", "MapPrediction"}


def asked_by(cells):
    """The calls of `quiz`, and of the widgets behind it: (cell's id, call)."""
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and re.search(r"\b(quiz|" + "|".join(WIDGETS) + r")\(", source):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"quiz", *WIDGETS}:
                    yield cell["id"], node


def faults(page, cells, declared):
    """What is wrong with how the cells of a page ask the questions of its file."""
    found, names = [], []
    for cell, call in asked_by(cells):
        if call.func.id in WIDGETS:
            found.append(
                f"{page}, cell {cell}: {call.func.id} is written in the cell, not in questions/{page}.md"
            )
            continue
        name = ast.literal_eval(call.args[0])
        names.append(name)
        folder, _, own = name.partition("/")
        if folder != page or own not in declared:
            found.append(f"{page}, cell {cell}: there is no question {name!r} in questions/{page}.md")
        computed = [k.value for k in call.keywords if k.arg == "computed"] + call.args[1:]
        found += [f"{page}, cell {cell}: {fault}" for fault in faults_of_keys(computed, declared.get(own))]
    for name, entry in declared.items():
        times = names.count(f"{page}/{name}")
        if times != 1:
            found.append(f"questions/{page}.md:{entry.line}: {times} cells ask {name!r}")
    return found


def faults_of_keys(computed, entry):
    """What is wrong with the answers that a cell computes: each is an expression, not what the file says."""
    if not computed:
        return ["the answer is not computed"]
    values = computed
    if entry and entry.parts and isinstance(computed[0], ast.Dict):
        values = computed[0].values
        keys = {ast.literal_eval(key) for key in computed[0].keys}
        if keys != entry.parts.keys():
            return [f"the answers are those of {sorted(keys)}, the parts {sorted(entry.parts)}"]
    return ["an answer is written down, not computed"] * any(isinstance(v, ast.Constant) for v in values)


def offered(page):
    """The choices that a page offers, in the order of its cells: (text, choices with feedback, key)."""
    for _, call in asked_by(READ[page]):
        entry = DECLARED[page.stem][ast.literal_eval(call.args[0]).partition("/")[2]]
        for part in entry.parts.values() or [entry]:
            if part.keys:
                yield part.text, part.choices, part.keys[0]


# Every choice of every question is picked and checked inside the page, the correct one last, which takes a
# hundredth of the time that the mouse needs; what is read is what a reader sees.
ANSWER_EVERYTHING = """(correct) => [...document.querySelectorAll('.mha-questions > li')].map((item, i) => {
  const labels = [...item.querySelectorAll('label')];
  const pick = (label) => {
    label.click();
    [...item.querySelectorAll('button')].find((button) => button.innerText === 'Check').click();
    return [label.innerText.trim(), item.querySelector('.mha-feedback').innerText.trim()];
  };
  const answers = labels.map(pick);
  pick(labels[correct[i]]);
  return [item.querySelector('legend').innerText.trim(), answers];
})"""


def shown(text):
    """How a browser shows a text with `code` and *emphasis*."""
    return re.sub(r"`([^`]+)`|\*([^*\s](?:[^*]*[^*\s])?)\*", lambda match: match[1] or match[2], text)


ASKED = {path: list(offered(path)) for path in NOTEBOOKS}
WITH_QUESTIONS = [path for path in NOTEBOOKS if ASKED[path]]


def test_the_book_asks():
    assert sum(map(len, ASKED.values())) > 40
    texts = [text for path in ASKED for text, _, _ in ASKED[path]]
    assert len(set(texts)) == len(texts)
    assert DECLARED.keys() <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_question_is_asked_by_one_cell_that_computes_its_key(path):
    """The widget then refuses a declared answer that is another one."""
    assert faults(path.stem, READ[path], DECLARED.get(path.stem, {})) == []


PAGE = "03_multi_head_attention"
PLANTED = {
    "no such question": ("/ask-loop", "/ask-lop", "there is no question '03_multi_head_attention/ask-lop'"),
    "a question of another page": (f"{PAGE}/ask-loop", "index/look-question", "there is no question 'index/"),
    "asked twice": ("/ask-loop", "/ask-split", "2 cells ask 'ask-split'"),
    "asked by no cell": ("/ask-loop", "/ask-split", "0 cells ask 'ask-loop'"),
    "not computed": (", computed=found", "", "cell ask-one-head: the answer is not computed"),
    "written down": ("computed=str(found)", 'computed="(2, 4, 10, 16)"', "an answer is written down"),
    "a part is written down": ('"embed-dim": widths[0]', '"embed-dim": 16',
        "cell c109: an answer is written down"),
    "a part is missing": ('"embed-dim": widths[0],', "",
        "the answers are those of ['output-projection', 'someone-merges'"),
    "a widget in the cell": ("quiz(", "Quiz(", "Quiz is written in the cell"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_found(name):
    old, new, words = PLANTED[name]
    cells = copy.deepcopy(READ[ROOT / "chapters" / f"{PAGE}.ipynb"])
    spoiled = 0
    for cell in cells:
        if cell["cell_type"] == "code" and old in (source := "".join(cell["source"])):
            cell["source"] = source.replace(old, new)
            spoiled += 1
    assert spoiled
    assert words in "; ".join(faults(PAGE, cells, DECLARED[PAGE]))


@pytest.mark.parametrize("path", WITH_QUESTIONS, ids=lambda path: path.stem)
def test_feedback_belongs_to_its_answer(path):
    """Each choice has a text of its own, and none but the answer's says that it is right."""
    for asked, choices, key in ASKED[path]:
        texts = list(choices.values())
        assert len(set(texts)) == len(texts), asked
        assert all(text.strip() for text in texts), asked
        for choice, text in choices.items():
            praised = re.match(r"(Right|Correct|Yes|Exactly)\b", text) is not None
            assert choice == key or not praised, (asked, choice)


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_QUESTIONS, ids=lambda path: path.stem)
def test_every_choice_is_answered_with_its_own_feedback(book, serve, browser, path):
    """Each choice of each question is picked and checked: the page says if it is right, and why."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{serve(book)}/{path.relative_to(ROOT).with_suffix('.html')}", wait_until="load")
    expect(page.locator(".mha-questions fieldset")).to_have_count(len(ASKED[path]))
    correct = [list(choices).index(key) for _, choices, key in ASKED[path]]
    seen = page.evaluate(ANSWER_EVERYTHING, correct)
    for (asked, choices, key), (legend, answers) in zip(ASKED[path], seen, strict=True):
        assert legend == shown(asked)
        assert answers == [
            [shown(choice), f"{'Correct.' if choice == key else 'Not quite.'} {shown(feedback)}"]
            for choice, feedback in choices.items()
        ]
    # The mouse answers the last question, first incorrectly, then correctly.
    item, (_, choices, key) = page.locator(".mha-questions > li").last, ASKED[path][-1]
    for choice in sorted(choices, key=lambda choice: choice == key):
        item.locator("label").nth(list(choices).index(choice)).click()
        item.get_by_role("button", name="Check").click()
        expect(item.locator(".mha-feedback")).to_contain_text(shown(choices[choice]))
    quizzes = page.locator(".mha-quiz .mha-score")
    for index in range(quizzes.count()):
        quizzes.nth(index).scroll_into_view_if_needed()  # content off the screen is not drawn
        expect(quizzes.nth(index)).to_have_text(re.compile(r"^(\d+) of \1 correct$"), use_inner_text=True)
    context.close()
