"""What readers read can be extracted for translators, and has one word for one thing.

The files whose sentences cannot be extracted are listed here, and so are the words that have a better one.
"""

import json
import re
from pathlib import Path

import pytest
import texts

from mha_course.questions import FOLDER, read_questions

ROOT = Path(__file__).resolve().parents[2]

# Folder or page -> how many of its sentences are in code: what widgets say, words of pictures, and what
# cells print or pass to a widget. A number may only fall, and no entry may be added. (Chapter 9 speaks to a
# model that reads English: that is English in every language.)
IN_CODE = {
    "mha_course": 1,  # what an exercise with one case says of a right answer
    "mha_course/pictures": 44, "mha_course/exercises": 1, "mha_course/in_page": 4,
    "chapters/02_scoring_functions.ipynb": 2, "chapters/03_multi_head_attention.ipynb": 2,
    "chapters/04_self_attention.ipynb": 2, "chapters/05_positional_encoding.ipynb": 5,
    "chapters/09_a_model_people_use.ipynb": 2,
    "chapters/appendix_efficiency.ipynb": 1, "chapters/appendix_models_you_know.ipynb": 2,
}  # fmt: skip


def said_by(entry):
    """All that a question says."""
    parts = [part for own in (entry, *entry.parts.values()) for part in (own.text, own.solution, *own.hints)]
    pairs = [pair for own in (entry, *entry.parts.values()) for pair in own.choices.items()]
    choices = [item for pair in pairs for item in pair]
    return {text for text in (*parts, *choices) if text}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.md")), ids=lambda path: path.stem)
def test_every_text_of_a_question_is_a_message(path):
    extracted = {text for _, text in texts.messages(path)}
    for entry in read_questions(path).values():
        assert said_by(entry) - extracted == set()


def test_the_template_names_where_a_message_stands(tmp_path):
    assert texts.main([str(tmp_path)]) == 0
    written = (tmp_path / "texts.pot").read_text(encoding="utf-8")
    assert "#: mha_course/questions/00_orientation.md:" in written
    assert "#: mha_course/exercises/scoring.md:" in written
    assert "#: mha_course/questions/why/02_scoring_functions.md:" in written


def test_a_paragraph_a_list_and_a_table_are_messages(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n## name\n\nOne\nsentence.\n\n- [x] right\n  Because\n  of it.\n- [ ] wrong\n\n"
        "1. A hint.\n\n> The way.\n\n| a bc | x |\n|---|---|\n| two words | x |\n\n```\ncode\n```\n"
    )
    found = dict(texts.messages(page))
    assert found == {
        5: "One sentence.", 8: "right", 9: "Because of it.", 11: "wrong", 13: "A hint.", 15: "The way.",
        17: "a bc", 19: "two words",
    }  # fmt: skip


def test_sentences_in_code_are_found_and_no_docstring_is_one():
    source = '''
def speak(name):
    """This docstring is for authors of the course."""
    if not name:
        raise ValueError("The name must say what it is.")
    return ["Here a reader reads what it is.", name]
'''
    assert list(texts.sentences_in(source)) == ["Here a reader reads what it is."]


def too_many(in_code, allowed):
    """What to do where code holds more sentences than are allowed; `in_code` has those of each file."""
    places = {}
    for name, sentences in in_code.items():
        folder = name.rpartition("/")[0]
        if folder.startswith("mha_course/widgets/"):  # all widgets together
            folder = "mha_course/widgets"
        places.setdefault(name if folder == "chapters" else folder, []).extend(sentences)
    for place, sentences in places.items():
        most = allowed.get(place, 0)
        if len(sentences) > most:
            todo = "move new ones into a Markdown file beside the code (tools/texts.py --left lists all)"
            yield f"{place} holds {len(sentences)} sentences in code, at most {most} are allowed: {todo}"


def test_only_these_files_hold_sentences_in_code():
    assert list(too_many(texts.left_in_code(), IN_CODE)) == []


def test_a_new_sentence_in_code_is_told_where_it_belongs():
    found = {
        "mha_course/widgets/quiz/a.js": ["Old."],
        "mha_course/widgets/b.py": ["New."],
        "chapters/c.ipynb": ["New."],
    }
    first, second = too_many(found, {"mha_course/widgets": 1})
    assert first.startswith(
        "mha_course/widgets holds 2 sentences in code, at most 1 are allowed: move new ones into"
    )
    assert second.startswith("chapters/c.ipynb holds 1 sentences in code, at most 0 are allowed: ")


# What we used to write -> what we write. Only what is never right in prose is here: a *place* is also an
# answer of chapter 3, and a head may well be removed alone.
ALONE = "contents|decoder|diagonal|distance|encoder|keys|norm|order|padding|places|positions|training text"
COUNTED = "bytes|characters|examples|images|letters|numbers|pixels|positions|steps|texts|tokens|values"
TERMS = {
    r"(?<!± )(?<![\d.])\d[\d.]* %(?![\w(])": "95%",
    r"\brates? 0\.\d": "a learning rate of 0.03",
    r"\bfrom nothing\b(?! else)": "from scratch",
    r"\b(?:above|at|better than|to|worse than) guessing\b(?! \w)|\bguessing (?:gives|level)\b": "chance",
    r"\bplaces? (?:\$|\d)|\b(?:each|every|mirrored) place\b|\b\d+ places\b": "position",
    r"\b(?:one|two|three|four) places? (?:apart|away|back|before|further|later|off|on|to)\b": "position",
    rf"\b(?:{ALONE}) alone\b(?! (?:breaks|may|would))": "only",
    rf"(?<![\w.,-])[1-9]\d{{3}} (?:{COUNTED})\b": "1,024",
}  # fmt: skip
PROSE = """README.md CONTRIBUTING.md chapters/*.md mha_course/questions/**/*.md mha_course/exercises/*.md
    mha_course/widgets/*.md attention_check/*.md""".split()
NO_TERM = re.compile(r"`[^`]*`|\]\([^)]*\)")


def lines_of(path):
    """The lines of prose of a file, each with its number in the file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield number, line
        return
    for cell in json.loads(text)["cells"]:
        shown = cell["metadata"].get("mystnb", {})
        lines = [shown.get("figure", {}).get("caption", ""), shown.get("image", {}).get("alt", "")]
        for line in cell["source"] if cell["cell_type"] == "markdown" else lines:
            if line:
                yield text[: text.index(json.dumps(line, ensure_ascii=False))].count("\n") + 1, line


def other_terms(paths):
    """Each use of a word that has a better one, with its file and line."""
    for path in paths:
        for number, line in lines_of(path):
            prose = NO_TERM.sub("…", line)
            for old, new in TERMS.items():
                for match in re.finditer(old, prose):
                    yield f"{path.relative_to(path.anchor)}:{number}: “{match[0]}”: write “{new}”"


def test_one_thing_has_one_word():
    paths = [path for pattern in PROSE for path in sorted(ROOT.glob(pattern))]
    paths += [ROOT / "index.ipynb", *sorted((ROOT / "chapters").glob("*.ipynb"))]
    found = [line.replace(f"{ROOT.relative_to(ROOT.anchor)}/", "") for line in other_terms(paths)]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    ["It is right in 95 % of them.", "at the rate 0.01", "written from nothing", "better than guessing.",
     "At place 4 it looks back.", "the token three places back", "at the mirrored place",
     "on the distance alone", "after 2000 steps"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["page.md", "page.ipynb"])
def test_a_word_that_has_a_better_one_is_named_with_file_and_line(tmp_path, planted, kind):
    path = tmp_path / kind
    right = "By `place 4`, 95% in 1,024 steps at a rate of 0.01: one *place*, [there](the-place 3)."
    if kind == "page.md":
        path.write_text(f"# Page\n\n{right}\n{planted}\n")
        line = 4
    else:
        cell = {"cell_type": "markdown", "metadata": {}, "source": [f"{right}\n", planted]}
        path.write_text(json.dumps({"cells": [cell]}, indent=1))
        line = path.read_text().splitlines().index(f'    "{planted}"') + 1
    [found] = other_terms([path])
    assert f"{kind}:{line}: " in found
