"""Check that the numbers on the pages have sources, and that the sources contain them.

    python tools/claims.py           print what is wrong; the exit status is 1 if anything is
    python tools/claims.py --write   note new numbers beside their text, and print them for you to read

A number, here, is a decimal, a fraction, a number of thousands, a percentage or a count such as 4 of 12, in
the text, in a formula, in a caption or in the description of a figure. The metadata of its cell list the
source of each number, in the order of the text:

    "numbers": {"from": ["18.5 = bandwidths: width 2", "93% = bandwidths: width 4[2]"], "read": "1f2e3d4c"}

- `bandwidths: width 4[2]` is the second number after "width 4" in the only line with these words that the
  cell `bandwidths` prints or asserts, or that its code contains. "line 7" counts lines instead.
- `08_what_heads_learn/widths: one head` is on a different page, `experiments/words.py: STEPS` in a script.
- `by hand: 14 / 3` is computed here.
- `given: …`, with the reason, is not a measurement: a release, the literature, a definition.

A source may have more digits than the text, never fewer. `read` is a fingerprint of the sentences: if their
words change, somebody has to read them again beside their sources. `--write` finds a source only if the same
section contains the number exactly once, with as many digits as the text and at least two, under a label that
shares a word with the sentence. An author names all other sources.
"""

import argparse
import ast
import hashlib
import math
import operator
import re
import sys
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from difflib import SequenceMatcher

import nbformat
from drawings import inline
from nbformat.v4 import new_notebook
from stored_notebooks import ROOT, notebooks

WHOLE = r"\d+(?:,\d{3})*"
# Parts of a text that look like numbers and are not: code, references, addresses.
CODE = r"```.*?```|\{[a-z:]+\}`[^`]*`|`[^`]*`"
FIGURE = r"(?<=\[Figure )[\w.]+(?=\]\()"  # the number of a figure, which tools/captions.py checks
NO_PROSE = re.compile(rf"{CODE}|{FIGURE}|\]\([^)]*\)|https?://\S+", re.DOTALL)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)
STATED = re.compile(
    rf"(?<![\w./])(?<!\d,)[-−+]?(?:{WHOLE}/{WHOLE}(?![\w/.]*\d)|{WHOLE} of {WHOLE}"
    rf"|{WHOLE}(?:\.\d+)?(?![\w/])(?:\s?%)?)"
)
SHOWN = re.compile(
    rf"(?<![\w.])[-−+]?(?:{WHOLE}\s*(?:/|of)\s*{WHOLE}(?![\w.])|(?:{WHOLE}(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?(?:\s?%)?)"
)
ENDS = re.compile(r"\n\s*\n|(?<=[.!?])\s+(?=[A-Z*])|\n(?=[-|*\d#])")
ASSERTED = re.compile(r"^([ \t]*)assert .*(?:\n\1[ \t)\]]+.*)*", re.MULTILINE)
UNKNOWN = "?"  # the source of a number for which nothing was found


def main(arguments=None):
    """Check the pages; with `--write`, first note what is new."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="note what is new")
    options = parser.parse_args(arguments)
    faults = []
    for path in notebooks():
        notebook = nbformat.read(path, as_version=4)
        if options.write and note(notebook, path.stem):
            nbformat.write(notebook, path)
        faults += page_faults(notebook, path.stem)
    print("\n".join(faults) or "Every number in the text comes from where it says.")
    return 1 if faults else 0


def page_faults(notebook, page: str) -> Iterator[str]:
    """The faults of a page: its name, the cell, the number and the sentence."""
    for cell in notebook.cells:
        stated = statements(cell)
        named = entries(cell)
        at = f"{page}, cell {cell.id}"
        said, noted = ([number for number, _ in pairs] for pairs in (stated, named))
        if said != noted:
            yield f"{at}: the text has {said}, its metadata {noted}: {texts(stated)}"
        elif stated and cell.metadata["numbers"].get("read") != fingerprint(stated):
            yield f"{at}: the words changed since they were read: {texts(stated)}"
        for number, source in named:
            sentence = next((text for other, text in stated if other == number), "")
            if fault := not_from(number, source, notebook):
                yield f"{at}: {number}: {fault}: {sentence!r}"


def note(notebook, page: str) -> bool:
    """Update the metadata of a page and print what is new; return whether anything was."""
    changed = False
    for place, cell in enumerate(notebook.cells):
        stated, before, found = statements(cell), cell.metadata.get("numbers"), []
        sources = kept(stated, entries(cell))
        for (number, sentence), source in zip(stated, sources, strict=True):
            if source == UNKNOWN:
                choice = proposals(number, place, notebook)
                source = the_one(number, choice, sentence)
                print(f"{page}, cell {cell.id}: {sentence}\n    {number} = {source}")
                if source == UNKNOWN:
                    print(f"    name one by hand; in this section: {choice or 'none'}")
            found.append(f"{number} = {source}")
        after = {"from": found, "read": fingerprint(stated)} if found else None
        if after != before:
            changed = True
            if before and found == before.get("from"):
                print(f"{page}, cell {cell.id}: read again: {texts(stated)}")
            cell.metadata.pop("numbers", None)
            cell.metadata |= {"numbers": after} if after else {}
    return changed


def kept(stated, named) -> list[str]:
    """The present source of each number of a text, or UNKNOWN.

    If a number changes in its place, it keeps its source, which then gives the new value. Only a reason
    cannot be kept, because it says nothing about a different number.
    """
    new, old = [number for number, _ in stated], [number for number, _ in named]
    places = [("", 0, len(old), 0, len(new))]
    if len(new) != len(old):
        places = SequenceMatcher(None, old, new).get_opcodes()
    found = [UNKNOWN] * len(new)
    for _, start, end, first, last in places:
        if end - start == last - first:
            for place, (number, source) in enumerate(named[start:end], first):
                if number == new[place] or not source.startswith("given: "):
                    found[place] = source
    return found


def entries(cell) -> list[tuple[str, str]]:
    """The numbers in the metadata of a cell, each with its source."""
    noted = cell.metadata.get("numbers", {}).get("from", [])
    return [tuple(entry.partition(" = ")[::2]) for entry in noted]


def statements(cell) -> list[tuple[str, str]]:
    """The numbers of a cell in the order of its text, each with its sentence."""
    return [
        (match[0], sentence)
        for paragraph in paragraphs(cell)
        for sentence in paragraph
        for match in STATED.finditer(sentence)
        if not match[0].lstrip("-−+").isdigit()
    ]


def paragraphs(cell) -> list[list[str]]:
    """The sentences of each paragraph of a text, or of what the metadata of a cell say of its output."""
    text = cell.source
    if cell.cell_type == "code":
        shown = cell.metadata.get("mystnb", {})
        caption = shown.get("figure", {}).get("caption", "")
        alt = shown.get("image", {}).get("alt", "")
        text = "\n\n".join([caption, alt, cell.metadata.get("measured", "")])
    text = FORMULA.sub(in_words, NO_PROSE.sub("…", text))
    return [
        [" ".join(sentence.split()) for sentence in ENDS.split(paragraph)]
        for paragraph in re.split(r"\n\s*\n", text)
    ]


def in_words(formula: re.Match) -> str:
    """A formula without the parts that only TeX needs, so its numbers look as they do in a sentence."""
    text = re.sub(r"[\^_]\w", " ", formula[0].replace("{,}", ",").replace(r"\%", "%"))
    return re.sub(r"\\([a-zA-Z]+|.)|\$|,(?!\d{3})", " ", text)


def texts(stated) -> str:
    """The sentences of a cell, each once."""
    return " ".join(dict.fromkeys(sentence for _, sentence in stated))


def fingerprint(stated) -> str:
    """Eight letters that change with the sentences."""
    return hashlib.sha256(texts(stated).encode()).hexdigest()[:8]


OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
OPERATIONS |= {ast.Div: operator.truediv, ast.Pow: operator.pow}


def computed(node: ast.AST) -> float:
    """The value of arithmetic with numbers and some functions of `math`; nothing else runs."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id="e" | "pi" as name):
            return getattr(math, name)
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATIONS[type(op)](computed(left), computed(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -computed(operand)
        case ast.Call(func=ast.Name(id="exp" | "log" | "sqrt" | "cos" as name)):
            return getattr(math, name)(*map(computed, node.args))
    raise ValueError("not a computation")


def not_from(number: str, source: str, notebook) -> str:
    """What is wrong with the source of a number; "" if nothing is."""
    where, _, name = source.partition(": ")
    if where == "given":
        return "" if len(name) > 8 else "the reason is missing"
    if where == "by hand":
        try:
            there = f"{computed(ast.parse(name, mode='eval').body):.12f}"
            there += "%" * number.endswith("%")
        except (ArithmeticError, KeyError, SyntaxError, TypeError, ValueError) as error:
            return f"{source!r} cannot be computed: {error}"
    else:
        label, place = re.fullmatch(r"(.*?)(?:\[(\d+)\])?", name).groups("1")
        there = named(label, int(place), *lines_at(where, notebook))
    if there is None:
        return f"nothing is called {source!r}"
    return "" if agree(number, there) else f"{source!r} is {there}"


def lines_at(where: str, notebook) -> tuple[list[str], list[str]]:
    """The lines that a place shows, and those of its code."""
    path = ROOT / where
    if where.endswith(".py"):
        return [], code_lines(path.read_text(encoding="utf-8") if path.exists() else "")
    page, _, cell_id = where.rpartition("/")
    if page:
        path = ROOT / "chapters" / f"{page}.ipynb"
        found = path.exists()
        notebook = nbformat.read(path, as_version=4) if found else new_notebook()
    cells = [cell for cell in notebook.cells if cell.id == cell_id]
    return (shown_lines(cells[0]), code_lines(cells[0].source)) if cells else ([], [])


def named(label: str, place: int, shown: list[str], code: list[str]) -> str | None:
    """The number at that place after a label if only one line has the label; otherwise None."""
    if by_count := re.fullmatch(r"line (\d+)", label):
        after = shown[int(by_count[1]) - 1 :][:1]
    else:
        after = after_label(label, shown) or after_label(label, code)
    numbers = SHOWN.findall(after[0]) if len(after) == 1 else []
    return numbers[place - 1] if 0 < place <= len(numbers) else None


def after_label(label: str, lines: list[str]) -> list[str]:
    """The rest of each line that begins with a label or, if none does, contains it."""
    edges = [r"(?<!\w)" * label[:1].isalnum(), r"(?!\w|\.\d)" * label[-1:].isalnum()]
    pattern = re.compile(re.escape(label).join(edges))
    found = [(match, line) for line in lines if (match := pattern.search(line))]
    first = [pair for pair in found if pair[0].start() == 0]
    return [line[match.end() :] for match, line in first or found]


def proposals(number: str, place: int, notebook) -> list[str]:
    """The places where the section of a cell shows a number with as many digits."""
    starts = [at for at, cell in enumerate(notebook.cells) if starts_section(cell)]
    first = max((at for at in starts if at <= place), default=0)
    last = min((at for at in starts if at > place), default=None)
    return [
        f"{cell.id}: {name_of(match, line, at, lines)}"
        for cell in notebook.cells[first:last]
        for lines in [shown_lines(cell)]
        for at, line in enumerate(lines)
        for match in SHOWN.finditer(line)
        if agree(number, match[0], exactly=True)
    ]


def the_one(number: str, found: list[str], sentence: str) -> str:
    """What was found if there is no doubt, otherwise UNKNOWN.

    There is only one place, its label shares a word with the sentence, and the number has two digits.
    """
    label = found[0].partition(": ")[2] if len(found) == 1 else ""
    form = r"[^\W\d_]{3,}"
    words, said = ({*re.findall(form, x.lower())} for x in (label, sentence))
    digits = re.sub(r"\D", "", number).lstrip("0")
    return found[0] if words & said and len(digits) > 1 else UNKNOWN


def starts_section(cell) -> bool:
    """Whether a cell has a heading of the second level."""
    return cell.cell_type == "markdown" and bool(re.search("^## ", cell.source, re.M))


def name_of(number: re.Match, line: str, at: int, lines: list[str]) -> str:
    """A label for a number in a line: the words before it, or before the numbers in front of it."""
    spans = [match.span() for match in SHOWN.finditer(line[: number.end()])]
    befores = [0, *(end for _, end in spans)]
    steps = zip(befores, spans, range(len(spans), 0, -1), strict=False)
    words = [(line[end:start], back) for end, (start, _), back in steps]
    fronts = [(line[:start], len(spans) - at) for at, (start, _) in enumerate(spans)]
    for text, back in [*reversed(words), *fronts]:
        label = text.strip(" ,;:=|([")
        near = (text, back) in fronts or re.search(r"[^\W\d]{4}", label)
        if near and label and named(label, back, lines, []) == number[0]:
            return label + f"[{back}]" * (back > 1)
    return f"line {at + 1}[{len(spans)}]"


def agree(number: str, shown: str, *, exactly=False) -> bool:
    """Whether a number of a text equals a shown number, rounded or, if `exactly`, with as many digits."""
    stated, there = parts(number), parts(shown)
    if len(stated) + len(there) > 2:
        return stated == there
    (stated,), (there,) = stated, there
    if number[0] not in "-−+":
        there = abs(there)
    percent, shown_so = number.endswith("%"), shown.endswith("%")
    scales = [2] * (percent and not shown_so)
    scales += [0] * (percent == shown_so or (not exactly and abs(there) > 1))
    for value in [there.scaleb(scale) for scale in scales]:
        more = stated.as_tuple().exponent - value.as_tuple().exponent
        fits = more == 0 if exactly else more >= 0
        if fits and value.quantize(stated, ROUND_HALF_UP) == stated:
            return True
    return False


def parts(number: str) -> list[Decimal]:
    """The value of a number, or both numbers of a fraction; the value of 5% is 5."""
    plain = number.rstrip("% ").replace("−", "-").replace(",", "")
    return [Decimal(part) for part in re.split(r"\s*(?:/|of)\s*", plain)]


def shown_lines(cell) -> list[str]:
    """The lines that a code cell prints or shows as a table, and its assertions."""
    if cell.cell_type != "code":
        return []
    shown = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "application/vnd.jupyter.widget-view+json" not in data:
            table = re.sub(r"\s+", " ", inline(data.get("text/html", "")))
            table = re.sub(r"<[^>]+>", " ", re.sub(r"</(tr|p|li|div)>", "\n", table))
            plain = data.get("text/markdown") or data.get("text/plain", "")
            shown.append(output.get("text", "") + (table or plain))
    asserted = [match[0] for match in ASSERTED.finditer(without_comments(cell.source))]
    return tidy("\n".join(shown)) + [" ".join(tidy(lines)) for lines in asserted]


def code_lines(code: str) -> list[str]:
    """The lines of code that do something."""
    return tidy(without_comments(code))


def without_comments(code: str) -> str:
    """Code without its comments, which prove nothing."""
    return re.sub(r"(^|\s)#[ !].*", "", code, flags=re.MULTILINE)


def tidy(text: str) -> list[str]:
    """The lines of a text without extra spaces, with numbers without underscores."""
    text = re.sub(r"(?<=\d)_(?=\d)", "", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
