"""What pages say of their minutes, and that the path leans on nothing that its reader has not seen."""

import ast
import builtins
import json
import re

import minutes
import pytest

PATH = [path for path in minutes.pages() if re.match("0[1-9]|appendix_(eff|models|train)", path.stem)]


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", minutes.pages(), ids=lambda path: path.stem)
def test_a_page_says_its_minutes(path):
    texts = ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown"]
    written = [minutes.with_minutes(path, text) for text in texts]
    assert written == texts, "run python tools/minutes.py --write"
    if path in PATH:
        assert sum(len(minutes.HEAD.findall(text)) for text in texts) == 1


def test_teachers_read_the_minutes_of_today_and_questions_that_stand_there():
    text = minutes.TEACHERS.read_text(encoding="utf-8")
    assert minutes.with_minutes(minutes.TEACHERS, text) == text, "run python tools/minutes.py --write"
    plans, beliefs = text.partition("## What students believe")[::2]
    assert len(minutes.ROW.findall(plans)) == len(re.findall(r"^\| \d ", plans, re.MULTILINE)) == 13
    quoted = re.findall(r"^\| .* \| \[(.+)\]\((\w+)\.ipynb#", beliefs, re.MULTILINE)
    assert len(quoted) == beliefs.count(".ipynb#")
    for words, page in quoted:
        questions = (minutes.ROOT / "mha_course" / "questions" / f"{page}.md").read_text(encoding="utf-8")
        assert words in " ".join(questions.split()), words


@pytest.mark.parametrize("path", PATH, ids=lambda path: path.stem)
def test_the_path_is_read_in_at_most_fifty_minutes(path):
    assert round(minutes.minutes(path, as_read=True)["path"]) <= 50


def path_of(tmp_path, page, as_read=False):
    """The minutes of the path in these cells."""
    (part := tmp_path / "page").write_text(json.dumps({"cells": page}), encoding="utf-8")
    return minutes.minutes(part, as_read)["path"]


@pytest.mark.parametrize("path", PATH, ids=lambda path: path.stem)
def test_a_sitting_on_the_path_takes_at_most_an_hour(path, tmp_path):
    """A longer page says in its head where the second of two sittings begins."""
    page = cells(path)
    texts = ["".join(cell["source"]) for cell in page]
    said = re.search(r"Take two sittings: the second begins at \[\*(.+?)\*\]\(#", "".join(texts))
    sittings = [page]
    if said:
        [second] = [n for n, text in enumerate(texts) if re.match(f"##+ {said[1]}\n", text)]
        sittings = [page[:second], page[second:]]
    assert max(round(path_of(tmp_path, sitting)) for sitting in sittings) <= 60
    assert bool(said) == (round(path_of(tmp_path, page)) > 60)


@pytest.mark.parametrize(("most", "as_read"), [(100, True), (130, False)])
def test_two_heads_are_computed_soon(tmp_path, most, as_read):
    *before, last = minutes.pages()[1:4]  # the landing page is not counted
    end = [cell["id"] for cell in cells(last)].index("c015") + 1
    spent = sum(minutes.minutes(path, as_read)["path"] for path in before)
    assert spent + path_of(tmp_path, cells(last)[:end], as_read) <= most


def test_minutes_are_counted_by_the_rule():
    page = [
        {"cell_type": "markdown", "id": "a", "source":
            ["one two three " * 60, "\n$$\nx\n$$\n<details>hidden</details>"]},
        {"cell_type": "code", "id": "b", "metadata": {}, "source": ["1"], "outputs": []},
        {"cell_type": "code", "id": "d", "metadata": {"tags": ["remove-input"]}, "source": ["q"],
         "outputs": [{"data": {"text/plain": ["Quiz(4 questions)"]}}, {"data": {"image/png": ""}}]},
    ]  # fmt: skip
    for name in ("my_write", "MyGPT"):
        page += [
            {
                "cell_type": "code",
                "id": f"write-{name}-{part}",
                "metadata": {},
                "source": ["1"],
                "outputs": [],
            }
            for part in ("stub", "check")
        ]
    assert minutes.of_text("".join(page[0]["source"])) == 1 + 0.5
    assert minutes.of_code(page[1]) == 1
    assert minutes.of_code(page[2]) == 4 * 0.75 + 0.5
    assert [minutes.of_code(cell) for cell in page[3:]] == [8, 0, 12, 0]
    by_hand = {"text/plain": ["AttentionStepper(step=1)"], minutes.VIEW: {}}
    assert minutes.of_code(page[2] | {"outputs": [{"data": by_hand}]}) == 8


def test_an_exercise_takes_the_minutes_in_its_title(tmp_path):
    code = {"cell_type": "code", "id": "c", "metadata": {}, "source": ["1"], "outputs": []}
    texts = (
        "## Exercises",
        "### Exercise 1 ★ By hand (10 minutes)\n" + "word " * 90,
        "### Exercise 2 ★★ Again (5 minutes)\n" + "word " * 90,
    )
    page = [cell for text in texts for cell in ({"cell_type": "markdown", "id": "m", "source": [text]}, code)]
    page += [{"cell_type": "markdown", "id": "m", "source": ["<details>a hint</details>"]}, code]
    page += [{"cell_type": "markdown", "id": "m", "source": ["## Quiz"]}, code]
    (tmp_path / "page").write_text(json.dumps({"cells": page}), encoding="utf-8")
    found = minutes.minutes(tmp_path / "page")
    # The cell below the first heading belongs to no exercise yet, and "Quiz" is on the path again.
    assert found == pytest.approx({"exercises": 1 + 10 + 5 + 1 / 180, "path": 1 + 1 / 180, "deeper": 0})
    assert minutes.in_a_list(tmp_path / "page") == "1 + 16"
    (tmp_path / "page").write_text(json.dumps({"cells": [code]}), encoding="utf-8")
    assert minutes.in_a_list(tmp_path / "page") == "1"


def test_a_list_of_pages_gets_the_minutes_of_the_path_and_of_the_exercises():
    page = minutes.pages()[2]
    for old in ("7", "7 + 8"):
        row = minutes.with_minutes(page, f"| [Pooling](chapters/{page.name}) | why? | {old} |")
        assert row == f"| [Pooling](chapters/{page.name}) | why? | {minutes.in_a_list(page)} |"


def names(tree):
    """The names that code binds, and those that it uses."""
    bound, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return bound, used


def unseen(page):
    """Names that visible cells of the path take from hidden ones: {id of the cell: names}."""
    seen, part, found = set(dir(builtins)), "path", {}
    for cell in page:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            for heading in re.findall(r"^## (.*)", source, re.MULTILINE):
                part = minutes.ASIDE.get(heading.strip(), "path")
            continue
        tags = set(cell["metadata"].get("tags", []))
        bound, used = names(ast.parse(source))
        # The solution of a piece is folded, and the stub above it has the same name.
        if cell["id"] == "setup" or (tags & minutes.HIDDEN and "build" not in tags):
            continue
        if part == "path" and (missing := used - seen - bound):
            found[cell["id"]] = missing
        seen |= bound
    return found


@pytest.mark.parametrize("path", PATH, ids=lambda path: path.stem)
def test_a_visible_cell_uses_only_what_is_visible(path):
    assert unseen(cells(path)) == {}


def test_a_name_from_a_hidden_cell_is_found():
    hidden = {"cell_type": "code", "id": "h", "metadata": {"tags": ["hide-input"]}, "source": ["x = 1"]}
    shown = {"cell_type": "code", "id": "s", "metadata": {}, "source": ["print(x)"]}
    assert unseen([hidden, shown]) == {"s": {"x"}}
    assert unseen([hidden | {"metadata": {}}, shown]) == {}
    aside = {"cell_type": "markdown", "id": "m", "source": ["## Going deeper"]}
    assert unseen([hidden, aside, shown]) == {}
