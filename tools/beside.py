"""List the texts that have changed since somebody last read them next to their subject.

    python tools/beside.py           print each text with its subject; the exit status is 1 if there are any
    python tools/beside.py --write   note that both were read

Nothing can run a sentence, so whoever changes a text or its subject reads both. `tools/read.json` contains
eight letters for each pair, which change with either of the two. The pairs are:

- equations, rows of tables and sentences that compare, with the assertions in the cells of their section;
- the caption and the description of a figure with its code, or those of a diagram with its words and
  colours;
- the hints of an exercise with its solution;
- questions, causes of mistakes, reasons and puzzles: each section of a file of texts, in which feedback is
  next to its choice, and a cause is next to the edit that makes the mistake.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import claims
import nbformat
from stored_notebooks import ROOT, notebooks
from texts import SOURCES

READ = ROOT / "tools" / "read.json"
EQUATION = re.compile(r"\$\$.*?\$\$", re.DOTALL)
RELATION = re.compile(
    r"\$[^$]*[=<>≈∝][^$]*\$|\$[^$]*\\(?:[lg]eq?|approx|propto|sim)\b[^$]*\$"
)
ROW = re.compile(r"^\|.*[^\W_].*\|$", re.MULTILINE)
COMPARES = re.compile(
    r"\b(?:than|twice|half|best|worst|first|last|most|least|fewest|only|never|always|fails?|cannot|needs?|without"
    r"|(?:larg|small|high|low|fast|slow|long|short|few|great|strong|weak)e(?:r|st)|better|worse|more|less"
    r"|rises?|falls?|grows?|shrinks?|gains?|loses?|above|below|right|wrong|same|equal)\b",
    re.IGNORECASE,
)
Pair = tuple[str, str]


def pairs() -> dict[str, Pair]:
    """Map the name of each text to the text and its subject."""
    paths = [path for pattern in SOURCES for path in ROOT.glob(pattern)] + notebooks()
    found: dict[str, Pair] = {}
    for path in sorted(paths):
        found |= of(path, path.read_text("utf-8"))
    return found


def of(path: Path, content: str) -> dict[str, Pair]:
    """The texts of a file, in the same form."""
    if path.suffix == ".md":
        return of_file(path.relative_to(ROOT).as_posix(), content)
    return of_page(path.stem, nbformat.reads(content, as_version=4).cells)


def of_file(name: str, text: str) -> dict[str, Pair]:
    """The sections of a file of texts; each is its own subject."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {f"{name}: {section.splitlines()[0]}": (section, "") for section in sections}


def of_page(page: str, cells: Sequence) -> dict[str, Pair]:
    """The texts of a page; `cells` are those of its notebook."""
    found, solutions = {}, {cell.id: cell.source for cell in cells}
    for section in sections_of(cells):
        asserted = "\n".join(line for cell in section for line in asserts(cell))
        for cell in section:
            text, about = "", asserted
            if cell.id.endswith("-hints"):
                text = cell.source
                about = solutions[cell.id.replace("hints", "solution")]
            elif cell.cell_type == "markdown":
                text = "\n".join(claimed(cell))
            elif words := described(cell):
                text, about = words, "\n".join(drawn(cell))
            if text:
                found[f"{page}: {cell.id}"] = text, about
    return found


def sections_of(cells: Sequence) -> Iterator[Sequence]:
    """The cells between two headings of the second level."""
    starts = [0, *(at for at, cell in enumerate(cells) if claims.starts_section(cell))]
    for start, end in zip(starts, [*starts[1:], len(cells)], strict=True):
        yield cells[start:end]


def asserts(cell) -> list[str]:
    """The assertions in a cell, and the answers to questions that it computes."""
    if cell.cell_type != "code":
        return []
    code = claims.without_comments(cell.source)
    computed = re.findall(r"^.*computed=.*$", code, re.MULTILINE)
    return [match[0] for match in claims.ASSERTED.finditer(code)] + computed


def claimed(cell) -> list[str]:
    """The displayed equations and rows of a text, and its sentences that compare or contain a formula."""
    bare = ROW.sub("", EQUATION.sub("", cell.source))
    sentences = [
        " ".join(sentence.split())
        for paragraph in re.split(r"\n\s*\n", bare)
        for sentence in claims.ENDS.split(paragraph)
    ]
    return [
        *EQUATION.findall(cell.source),
        *ROW.findall(cell.source),
        *(text for text in sentences if COMPARES.search(text) or RELATION.search(text)),
    ]


def described(cell) -> str:
    """The caption and the description of a figure or a diagram."""
    shown = cell.metadata.get("mystnb", {})
    texts = [shown.get("figure", {}).get("caption"), shown.get("image", {}).get("alt")]
    texts += re.findall('aria-label="([^"]*)"', diagram(cell))
    return "\n".join(filter(None, texts))


def diagram(cell) -> str:
    """The vector graphics that a cell shows."""
    found = [output.get("data", {}) for output in cell.get("outputs", [])]
    shown = [data.get("text/html", "") for data in found]
    return "\n".join(html for html in shown if "<svg" in html)


def drawn(cell) -> list[str]:
    """The colours and words of a diagram in order, or the code of a figure.

    The code consists of the cell and the functions of `mha_course.pictures` that it calls.
    """
    if svg := diagram(cell):
        return re.findall(r'(?:fill|stroke)="[^"]*"|(?<=>)[^<>]+(?=<)', svg)
    names = set(re.findall(r"\w+\.\w+", cell.source)) & pictures().keys()
    return [cell.source, *(pictures()[name] for name in sorted(names))]


@cache
def pictures() -> Mapping[str, str]:
    """The public functions that draw, by module and name."""
    found = {}
    for path in sorted(ROOT.glob("mha_course/pictures/*.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
                source = ast.get_source_segment(text, node)
                found[f"{path.stem}.{node.name}"] = source or ""
    return found


def fingerprint(pair: Pair) -> str:
    """Eight letters that change with a text or its subject, but not with line breaks."""
    plain = "\0".join(" ".join(part.split()) for part in pair)
    return hashlib.sha256(plain.encode()).hexdigest()[:8]


def unread() -> dict[str, Pair]:
    """The pairs that nobody has read since they changed, and those that were read and are gone."""
    read = json.loads(READ.read_text("utf-8")) if READ.exists() else {}
    now = pairs()
    found = {
        name: now[name] for name in now if read.get(name) != fingerprint(now[name])
    }
    return found | dict.fromkeys(read.keys() - now.keys(), ("", ""))


def main(arguments: list[str]) -> int:
    """Print the pairs that nobody has read since they changed; with `--write`, note that they were read."""
    changed = unread()
    for name, (text, about) in changed.items():
        print(f"{name}: read again:\n{text}\n" + f"beside:\n{about}\n" * bool(about))
    if arguments == ["--write"]:
        read = {name: fingerprint(pair) for name, pair in sorted(pairs().items())}
        READ.write_text(json.dumps(read, indent=0, ensure_ascii=False) + "\n", "utf-8")
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
