"""Reject pages whose experiments are missing, damaged, or from different code or data; say what to run.

Also reject certain claims about models that were still learning: that they fail or cannot do something, that
something is needed or the only way, a bound, a ceiling. A cell that shows a number of such models ends with
"Still learning after 200 steps: ...", which `mha_course.still_learning` prints. The rule applies to the
caption of this cell, to paragraphs that take a number from it, and to the text after it up to the next code
cell or heading. A sentence is accepted if it names the steps ("within 200 steps") or says "still learning".
If it is proved, or is about something else, the metadata of its cell give its first words and the reason:
"settled": ["One head cannot name: see the argument above"].
"""

import re
import sys
from collections.abc import Iterator

import claims
import nbformat
from stored_notebooks import notebooks

from mha_course.experiments import experiment_names, load_experiment

STILL = re.compile(r"^Still learning after ([\d,]+) steps: (.+)\.$", re.MULTILINE)
STRONG = re.compile(
    r"\b(?:fail\w*|cannot|can't|could not|couldn't|unable|never|impossible|needs?|needed|requires?|required"
    r"|only|bound\w*|ceiling\w*)\b",
    re.IGNORECASE,
)


def main():
    """Load every experiment and read every page; the exit status is 1 if something is rejected."""
    failed = 0
    for name in experiment_names():
        try:
            load_experiment(name)
        except (FileNotFoundError, ValueError) as error:
            print(error, file=sys.stderr)
            failed = 1
    pages = {path.stem: nbformat.read(path, as_version=4) for path in notebooks()}
    for fault in unsupported(pages):
        print(fault, file=sys.stderr)
        failed = 1
    return failed


def unsupported(pages) -> Iterator[str]:
    """Each claim about models that were still learning: page, cell, sentence, arms and steps."""
    noted = {
        f"{page}/{cell.id}": found
        for page, notebook in pages.items()
        for cell in notebook.cells
        if (found := notes_of(cell))
    }
    for page, notebook in pages.items():
        before: dict[str, str] = {}
        for cell in notebook.cells:
            if cell.cell_type == "code":
                before = notes_of(cell)
            elif re.search(r"^#{2,} ", cell.source, re.MULTILINE):
                before = {}
            for sentence, arms in spoken_of(cell, page, noted, before):
                if STRONG.search(sentence) and not allowed(sentence, cell, arms):
                    names = "; ".join(f"{arm} ({n} steps)" for arm, n in arms.items())
                    fault = f"{sentence!r} is said of models that were still learning"
                    remedy = "Name the steps, prove it, or train on"
                    yield f"{page}, cell {cell.id}: {fault}: {names}. {remedy}"


def notes_of(cell) -> dict[str, str]:
    """The arms that were still learning and whose numbers a cell shows, with their steps, as in "4,500"."""
    shown = "\n".join(output.get("text", "") for output in cell.get("outputs", []))
    found = STILL.findall(shown)
    return {arm: steps for steps, arms in found for arm in arms.split("; ")}


def spoken_of(cell, page, noted, before) -> Iterator[tuple[str, dict[str, str]]]:
    """The sentences of a cell that are about such arms, with these arms."""
    sources = [source.partition(": ")[0] for _, source in claims.entries(cell)]
    places = [source if "/" in source else f"{page}/{source}" for source in sources]
    stated = [sentence for _, sentence in claims.statements(cell)]
    for sentences in claims.paragraphs(cell):
        arms = dict(before)
        for sentence, place in zip(stated, places, strict=False):
            arms |= noted.get(place, {}) if sentence in sentences else {}
        yield from ((sentence, arms) for sentence in sentences if arms)


def allowed(sentence: str, cell, arms: dict[str, str]) -> bool:
    """Whether a sentence states the steps of one of these arms, or the metadata say what settles it."""
    named = any(re.search(rf"\b{n}\b[^.]*\bsteps\b", sentence) for n in arms.values())
    entries = [entry.partition(": ") for entry in cell.metadata.get("settled", [])]
    settled = any(
        len(reason) > 8 and len(words) > 8 and sentence.startswith(words)
        for words, _, reason in entries
    )
    return "still learning" in sentence or named or settled


if __name__ == "__main__":
    sys.exit(main())
