"""Every question of the book: its key is declared and computed; every choice is clicked.

What the page must show is taken from the literals in the notebook's source, not from the stored state.
"""

import ast
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [ROOT / "index.ipynb", *sorted((ROOT / "chapters").glob("*.ipynb"))]


def questions(path):
    """The questions of a notebook: text, choices with feedback, answer, and whether it is computed."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "Question(" in source:
            calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
            found += [question(node) for node in calls if getattr(node.func, "id", "") == "Question"]
    return found


def question(call):
    """One call of `Question`; its arguments are literals, so that an author reads what the page says."""
    names = ("text", "choices", "answer", "feedback", "computed")
    given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
    computed = given.pop("computed", None)
    read = {name: ast.literal_eval(node) for name, node in given.items()}
    assert isinstance(read["choices"], dict), f"feedback stands apart from its choice: {read['text']!r}"
    choices = [str(choice) for choice in read["choices"]]
    texts = all(isinstance(choice, str) for choice in read["choices"])
    by_index = texts and isinstance(read["answer"], int)
    answer = choices[read["answer"]] if by_index else str(read["answer"])
    return {
        "text": read["text"],
        "choices": dict(zip(choices, read["choices"].values(), strict=True)),
        "answer": answer,
        "computed": computed is not None,
    }


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


ASKED = {path: questions(path) for path in NOTEBOOKS}
WITH_QUESTIONS = [path for path in NOTEBOOKS if ASKED[path]]


def test_the_book_asks():
    assert sum(map(len, ASKED.values())) > 40
    texts = [asked["text"] for path in ASKED for asked in ASKED[path]]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("path", WITH_QUESTIONS, ids=lambda path: path.stem)
def test_each_key_is_declared_and_computed(path):
    """The cell computes it too, and `Question` refuses a declared answer that is another one."""
    for asked in ASKED[path]:
        assert asked["answer"] in asked["choices"], asked["text"]
        assert asked["computed"], asked["text"]


@pytest.mark.parametrize("path", WITH_QUESTIONS, ids=lambda path: path.stem)
def test_feedback_belongs_to_its_answer(path):
    """Each choice has a text of its own, and none but the answer's says that it is right."""
    for asked in ASKED[path]:
        texts = list(asked["choices"].values())
        assert len(set(texts)) == len(texts), asked["text"]
        assert all(text.strip() for text in texts), asked["text"]
        for choice, text in asked["choices"].items():
            praised = re.match(r"(Right|Correct|Yes|Exactly)\b", text) is not None
            assert choice == asked["answer"] or not praised, (asked["text"], choice)


@pytest.mark.parametrize("path", WITH_QUESTIONS, ids=lambda path: path.stem)
def test_every_choice_is_answered_with_its_own_feedback(book, serve, browser, path):
    """Each choice of each question is picked and checked: the page says if it is right, and why."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{serve(book)}/{path.relative_to(ROOT).with_suffix('.html')}", wait_until="load")
    groups = page.locator(".mha-questions fieldset")
    expect(groups).to_have_count(len(ASKED[path]))
    correct = [list(asked["choices"]).index(asked["answer"]) for asked in ASKED[path]]
    seen = page.evaluate(ANSWER_EVERYTHING, correct)
    for asked, (legend, answers) in zip(ASKED[path], seen, strict=True):
        assert legend == shown(asked["text"])
        assert answers == [
            [shown(choice), f"{'Correct.' if choice == asked['answer'] else 'Not quite.'} {shown(feedback)}"]
            for choice, feedback in asked["choices"].items()
        ]
    # The mouse answers the last one, first wrong, then right.
    item, asked = page.locator(".mha-questions > li").last, ASKED[path][-1]
    for choice in sorted(asked["choices"], key=lambda choice: choice == asked["answer"]):
        item.locator("label").nth(list(asked["choices"]).index(choice)).click()
        item.get_by_role("button", name="Check").click()
        expect(item.locator(".mha-feedback")).to_contain_text(shown(asked["choices"][choice]))
    quizzes = page.locator(".mha-quiz .mha-score")
    for index in range(quizzes.count()):
        quizzes.nth(index).scroll_into_view_if_needed()  # what is off the screen is not drawn
        expect(quizzes.nth(index)).to_have_text(re.compile(r"^(\d+) of \1 correct$"), use_inner_text=True)
    context.close()
