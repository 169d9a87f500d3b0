"""The stored verdicts, and the rows of the table that the appendix page makes of them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STORED = HERE / "stored.json"
PAGE = HERE.parent.parent / "chapters" / "appendix_is_my_attention_right.ipynb"
CELL = "wild-results"
FIRST = "# `python tests/wild/run.py --write` writes this cell from tests/wild/stored.json. Do not edit it.\n"
# Beginnings of findings, and what the table says of them.
SHORT = {
    "differs: a query that sees nothing gets NaN": "empty rows: NaN",
    "differs: a query that sees nothing gets a mean of all values": "empty rows: mean",
    "differs: NaN in padding reaches the output": "NaN in padding",
    "right: but not tried for tensors that are not contiguous: it raises": "not contiguous: raises",
}


def stored() -> dict[str, Any]:
    """What was found on the day that it names."""
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def store(found: Iterable[Mapping[str, Any]]) -> None:
    """Store the verdicts of the names that were judged; others stay while they are in the list."""
    from implementations import IMPLEMENTATIONS

    before = stored()["judged"] if STORED.exists() else {}
    new = {one["name"]: {k: v for k, v in one.items() if k not in ("name", "seconds")} for one in found}
    every = before | new
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    judged = {one.name: every[one.name] for one in IMPLEMENTATIONS if one.name in every}
    text = json.dumps({"date": today, "judged": judged}, indent=1, ensure_ascii=False)
    STORED.write_text(text + "\n", encoding="utf-8")
    page = json.loads(PAGE.read_text(encoding="utf-8"))
    for cell in page["cells"]:
        if cell["id"] == CELL:
            cell["source"] = source_of_cell().splitlines(keepends=True)
    PAGE.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def source_of_cell() -> str:
    """The text of the cell from which the page makes its table."""
    found = stored()
    table = {"date": found["date"], "tried": len(found["judged"]), "rows": rows(found["judged"])}
    text = json.dumps(table, ensure_ascii=False)[1:-1]
    return f'{FIRST}WILD = json.loads(r"""{{\n{text}\n}}""")  # noqa: E501'


def rows(judged: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Package and version, classes, lines of glue, what differs, what is wrong; what agrees is one row."""
    together: dict[tuple[str, ...], list[str]] = {}
    for name, one in judged.items():
        said = one.get("findings", {"": f"wrong: could not be tried, {one.get('why')}"})
        wrong = [text.removeprefix("wrong: ") for text in said.values() if text.startswith("wrong")]
        differs = [
            short for text in said.values() for start, short in SHORT.items() if text.startswith(start)
        ]
        key = (f"{one['package']} {one['version']}", str(one["glue"]), ", ".join(differs), " ".join(wrong))
        together.setdefault(key, []).append(label(name))
    return [
        [package, ", ".join(names), glue, differs or "—", wrong or "—"]
        for (package, glue, differs, wrong), names in together.items()
    ]


def label(name: str) -> str:
    """A class by its name or, where it is just called Attention, by the module that it is in."""
    *_, module, kind = name.split(".")
    return f"{module}.{kind}" if kind == "Attention" else kind
