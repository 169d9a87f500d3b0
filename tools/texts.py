"""Extract, for translators, the texts of the course outside its pages, and list those that are still in code.

    python tools/texts.py FOLDER   write the messages as gettext templates: texts.pot and drawings.pot
    python tools/texts.py --left   list the sentences in code, by file

Sphinx extracts the pages: their text, captions and alternative texts. The questions, the texts of puzzles,
and the step-by-step texts of pictures are Markdown files of the package, which this script reads paragraph by
paragraph; of exercises it reads the mistakes and the labels of the cases, without their code. The labels of
drawings and cards, and what describes drawings, plots and widgets, are read from the stored notebooks. Any
other sentence in code cannot be extracted, unless it is a whole string of JavaScript that stands in
`widgets.po`; tests/book/test_texts.py lists the files that have others, so that none joins them unnoticed.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po
from drawings import labels
from stored_notebooks import ROOT, notebooks

SOURCES = """mha_course/questions/**/*.md mha_course/exercises/*.md mha_course/pictures/*.md
    mha_course/widgets/**/*.md mha_course/_take_home.md""".split()
# The folder of files that list cases and known mistakes, in the form that CONTRIBUTING.md shows.
OF_EXERCISES = "exercises"
CASE = re.compile(r"([^`*].*?): (`+).+\2")
CODE = ("mha_course/**/*.py", "mha_course/widgets/*/*.js")
OF_SCRIPTS = "locale/zh_CN/LC_MESSAGES/widgets.po"
# The marker of a list item, a quotation or a heading, which is not part of the text.
MARKER = re.compile(r"(?:[-*] (?:\[[ x]\] )?|\d+\. |> |#{1,6} |= )")
# The name of a message, as `_messages.py` reads it.
NAMED = re.compile(r"- [a-z][a-z-]*: ")
SENTENCE = re.compile(r"[A-Z“][^\n]*\w+ \w+ \w+[^\n]*[.?!:]$")
JS_STRING = re.compile(r'(["`])((?:(?!\1)[^\\\n]|\\.)*)\1')


def with_strings(code: str, known: Mapping[str, str]) -> str:
    """JavaScript in which each string that is a known message is replaced.

    One word in lower case may also be a value; it is a message only between backticks.
    """

    def replaced(found: re.Match[str]) -> str:
        quote, text = found.groups()
        may_be_value = quote == '"' and re.fullmatch("[a-z]+", text)
        return quote + (text if may_be_value else known.get(text, text)) + quote

    return JS_STRING.sub(replaced, code)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The messages of a Markdown file, with their line numbers."""
    yield from (items if path.parent.name == OF_EXERCISES else paragraphs)(path)


def items(path: Path) -> Iterator[tuple[int, str]]:
    """The mistakes of exercises, each with its cause, the labels of their cases, and messages with names."""
    number, held = 0, ""
    for at, line in enumerate([*path.read_text("utf-8").splitlines(), ""], 1):
        if line.startswith("  ") and held and not line.lstrip().startswith("- "):
            held += f" {line.strip()}"
            continue
        if held:
            case = CASE.fullmatch(held[2:])
            yield number, case[1] if case else NAMED.sub("- ", held, count=1)[2:]
        number, held = at, line if line.startswith("- ") else ""


def paragraphs(path: Path) -> Iterator[tuple[int, str]]:
    """Items, their feedback, cells of tables, and what else is a paragraph."""
    held: list[str] = []
    first, deeper, fenced = 0, False, False
    for number, line in enumerate([*path.read_text("utf-8").splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        words = line.strip() and not (fence or fenced or line.startswith(("#", "|")))
        indented = line.startswith("  ")
        if held and (not words or MARKER.match(line) or indented != deeper):
            yield first, " ".join(held)
            held = []
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            words = [cell for cell in cells if re.search(r"[^\W_]{2}", cell)]
            yield from ((number, cell) for cell in words)
        elif words:
            first, deeper = (first, deeper) if held else (number, indented)
            marker = NAMED.match(line) or MARKER.match(line)
            held.append(line[marker.end() if marker else 0 :].strip())


def template() -> Catalog:
    """The messages of all sources, with their locations."""
    catalog = Catalog(project="course", charset="utf-8")
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        for line, text in messages(path):
            catalog.add(text, locations=[(path.relative_to(ROOT).as_posix(), line)])
    return catalog


def labels_of_drawings() -> Catalog:
    """What the stored drawings say, and what describes plots and widgets, with the pages that show them."""
    catalog = Catalog(project="course", charset="utf-8")
    for path in notebooks():
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            html = [
                "".join(output.get("data", {}).get("text/html", ""))
                for output in cell.get("outputs", [])
            ]
            said = [text for page in html for text in labels(page)]
            image = cell["metadata"].get("mystnb", {}).get("image", {})
            for text in [*said, *filter(None, [image.get("alt")])]:
                catalog.add(text, locations=[(path.relative_to(ROOT).as_posix(), 1)])
    return catalog


def sentences_in(source: str) -> Iterator[str]:
    """The sentences among the strings of Python code, without docstrings and the texts of errors."""
    tree = ast.parse(source)
    silent: set[ast.AST] = set()
    for node in ast.walk(tree):
        exits = isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.exit"
        if exits or isinstance(node, (ast.Raise, ast.Assert)):
            silent |= set(ast.walk(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(node.value)
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for node in strings:
        if isinstance(node.value, str) and node not in silent:
            lines = node.value.splitlines()
            yield from (line for line in lines if SENTENCE.match(line.strip()))


def left_in_code() -> dict[str, list[str]]:
    """Map each file to its sentences that cannot be extracted."""
    found: dict[str, list[str]] = {}
    with (ROOT / OF_SCRIPTS).open("rb") as file:
        known = {message.id for message in read_po(file)}
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".js":
            bare = re.sub(r"(?s:/\*.*?\*/ ?)|(?m:^\s*//.*$)", "", text)
            strings = [match[2] for match in JS_STRING.finditer(bare)]
            own = [one for one in strings if SENTENCE.match(one) and one not in known]
        else:
            own = list(sentences_in(text))
        if own:
            found[path.relative_to(ROOT).as_posix()] = own
    for path in notebooks():
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        own = [part for source in code for part in sentences_in("".join(source))]
        if own:
            found[path.relative_to(ROOT).as_posix()] = own
    return found


def main(arguments: list[str]) -> int:
    """Run from the command line."""
    if arguments == ["--left"]:
        for name, sentences in left_in_code().items():
            print(f"{name}: {len(sentences)}", *sentences, sep="\n    ")
    elif len(arguments) == 1:
        catalogs = {"texts": template(), "drawings": labels_of_drawings()}
        for name, catalog in catalogs.items():
            with (Path(arguments[0]) / f"{name}.pot").open("wb") as file:
                write_po(file, catalog, width=0)
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
