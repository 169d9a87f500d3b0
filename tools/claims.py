"""List the sentences that state measurements, each with the cells whose outputs its numbers come from.

    python tools/claims.py           say what does not hold; the exit status is 1 if anything does not
    python tools/claims.py --write   list what is new or changed, and print it: read each beside its cells

A sentence of a page, or of the description of a figure, states a measurement where it names a decimal
number, a fraction, a number of thousands, a percentage, or so many of so many. So do captions. Code, formulas
and addresses are left out.
The source of a number is the id of a cell of the page that prints it, in as many digits as the sentence has,
or asserts it; or "experiment: " and a script in whose text it stands (steps, rates, sizes); or "given: " and
a reason, for what is no measurement of this page: a definition, the literature, a release, another page.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from run_notebooks import ROOT, notebooks

from mha_lib.experiments import experiment_names

LEDGER = ROOT / "tests" / "book" / "claims.json"

NUMBER = re.compile(
    r"(?<![\w.,/])[-−+]?\d+(?:/\d+(?:,\d{3})*(?![\w/.]*\d)|(?:,\d{3})*(?:\.\d+)?(?![\w/]))"
)
PRINTED = re.compile(r"(?<![\w.])[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
# What looks like a number and is none of the page's: code, formulas, references, addresses.
NO_PROSE = re.compile(
    r"```.*?```|\$\$.*?\$\$|\{[a-z:]+\}`[^`]*`|`[^`]*`|\$[^$]*\$|\]\([^)]*\)|https?://\S+",
    re.DOTALL,
)
ENDS = re.compile(r"\n\s*\n|(?<=[.!?])\s+(?=[A-Z*])|\n(?=[-|*\d#])")

Claims = dict[str, dict[str, dict[str, str]]]
"""Page -> sentence -> number -> its source, as described above."""


def main(arguments=None):
    """Compare the pages with the list, or bring the list up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", action="store_true", help="list what is new or changed"
    )
    options = parser.parse_args(arguments)
    listed = json.loads(LEDGER.read_text(encoding="utf-8")) if LEDGER.exists() else {}
    if options.write:
        listed = brought_up_to_date(listed)
        text = json.dumps(listed, indent=1, ensure_ascii=False)
        LEDGER.write_text(text + "\n", encoding="utf-8")
    faults = [fault for path in notebooks() for fault in page_faults(path, listed)]
    print(
        "\n".join(faults)
        or "Every measurement in the text is one that its page prints."
    )
    return 1 if faults else 0


def name_of(path: Path) -> str:
    """The name of a page in the list, such as "03_multi_head_attention"."""
    return path.stem


def brought_up_to_date(listed: Claims) -> Claims:
    """The list with the sentences that the pages have now; those known keep what was said of them."""
    now: Claims = {}
    for path in notebooks():
        notebook = nbformat.read(path, as_version=4)
        known = listed.get(name_of(path), {})
        page = now.setdefault(name_of(path), {})
        for place, sentence in sentences(notebook):
            page[sentence] = {
                number: source
                if holds(
                    number, source := known.get(sentence, {}).get(number, ""), notebook
                )
                else nearest(number, place, notebook)
                for number in numbers(sentence)
            }
            if page[sentence] != known.get(sentence):
                print(f"{name_of(path)}: {sentence}\n    {page[sentence]}")
    return now


def page_faults(path: Path, listed: Claims) -> Iterator[str]:
    """What does not hold on one page."""
    notebook = nbformat.read(path, as_version=4)
    stated = dict.fromkeys(sentence for _, sentence in sentences(notebook))
    page = listed.get(name_of(path), {})
    for sentence in stated:
        if sentence not in page:
            yield f"{name_of(path)}: not listed, or changed since it was: {sentence!r}"
    for sentence, sources in page.items():
        if sentence not in stated:
            yield f"{name_of(path)}: listed, but not on the page: {sentence!r}"
        elif sources.keys() != set(numbers(sentence)):
            yield f"{name_of(path)}: listed with other numbers: {sentence!r}"
        for number, source in sources.items():
            if not holds(number, source, notebook):
                yield f"{name_of(path)}: {number} does not come from {source or 'any cell'!r}: {sentence!r}"


def sentences(notebook) -> Iterator[tuple[int, str]]:
    """The sentences of a page that state measurements, each with the number of its cell."""
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            text = cell.source
        else:
            shown = cell.metadata.get("mystnb", {})
            texts = (
                (shown.get("figure", {}), "caption"),
                (shown.get("image", {}), "alt"),
            )
            text = "\n\n".join(kind.get(name, "") for kind, name in texts)
        for sentence in ENDS.split(NO_PROSE.sub("…", text)):
            sentence = " ".join(sentence.split())
            if numbers(sentence):
                yield place, sentence


def numbers(sentence: str) -> list[str]:
    """The numbers of a sentence that look measured, each once, a percentage with its sign."""
    found = []
    for match in NUMBER.finditer(sentence):
        rest = sentence[match.end() :]
        percent = re.match(r"\s?%", rest)
        if (
            percent
            or "." in match[0]
            or "," in match[0]
            or "/" in match[0]
            or re.match(r"\s+of\s+\d", rest)
        ):
            found.append(match[0] + "%" * bool(percent))
    return list(dict.fromkeys(found))


def holds(number: str, source: str, notebook) -> bool:
    """Whether a number of a sentence comes from where the list says."""
    kind, _, rest = source.partition(": ")
    if kind == "given":
        return len(rest) > 8
    if kind == "experiment":
        script = (ROOT / "experiments" / f"{rest}.py").read_text(encoding="utf-8")
        if "/" in number:
            return re.search(r"\s*/\s*".join(number.split("/")), script) is not None
        return value(number) in map(value, PRINTED.findall(script.replace("_", "")))
    return any(cell.id == source and prints(cell, number) for cell in notebook.cells)


def nearest(number: str, place: int, notebook) -> str:
    """The cell nearest to a sentence that prints its number, else an experiment of the page, else ""."""
    order = sorted(enumerate(notebook.cells), key=lambda pair: abs(pair[0] - place))
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    names = [name for name in experiment_names() if f'"{name}"' in code]
    found = [cell.id for _, cell in order if prints(cell, number)]
    found += [
        source
        for name in names
        if holds(number, source := f"experiment: {name}", notebook)
    ]
    return found[0] if found else ""


def prints(cell, number: str) -> bool:
    """Whether a code cell shows a number, or asserts it, rounded to the digits that the text has."""
    if cell.cell_type != "code":
        return False
    if "/" in number:
        over = r"(?<![\w.])" + r"\s*/\s*".join(number.split("/")) + r"(?![\w.])"
        return re.search(over, shown_text(cell)) is not None
    half = 0.5 * 10 ** -len(number.rstrip("%").partition(".")[2]) * (1 + 1e-9)
    factors = (1, 100) if number.endswith("%") else (1,)
    return any(
        abs(abs(value(shown) * factor) - abs(value(number))) <= half
        for shown in PRINTED.findall(shown_text(cell).replace("_", ""))
        for factor in factors
    )


def shown_text(cell) -> str:
    """What a code cell prints or shows as a table, and the lines in which it asserts something."""
    asserted = re.findall(r"^\s*assert .*(?:\n[ \t]+.*)*", cell.source, re.MULTILINE)
    shown = [*asserted]
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        shown.append(output.get("text", ""))
        if "application/vnd.jupyter.widget-view+json" not in data:
            shown += [
                re.sub(r"<[^>]+>", " ", data.get(kind, ""))
                for kind in ("text/plain", "text/html", "text/markdown")
            ]
    return "\n".join(shown)


def value(number: str) -> float:
    """The value of a number as it is printed; that of 5% is 5."""
    return float(number.replace("−", "-").replace(",", "").rstrip("%"))


if __name__ == "__main__":
    sys.exit(main())
