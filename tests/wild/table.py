"""The stored verdicts, and the rows of the table that the appendix page makes of them."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections import Counter
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
    "right: but not tried for calls": "right",
    "differs: the rows of `to_qvk` are q, k, v, where its name says q, v, k": "`to_qvk` holds q, k, v",
}
# Scores and gradients could be tried in each; a layer decides on its own about shared keys and sinks.
ASPECTS = ("masks", "empty rows", "NaN in padding", "causal")


def printed_by(script: str) -> list[dict[str, Any]]:
    """Run a script of this folder among the packages of others; it prints each finding as a line."""
    root = HERE.parent.parent
    python = root / ".venv-wild" / "bin" / "python"
    assert python.is_file(), "`make .venv-wild/ready` creates the environment with these"
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [python, HERE / script], capture_output=True, text=True, env=environment, check=False
    )
    assert run.stdout, run.stderr[-2000:]
    # Packages print too, while they are imported.
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


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
    judged = found["judged"]
    table = {"date": found["date"], "tried": len(judged), "counts": counts(judged), "rows": rows(judged)}
    text = json.dumps(table, ensure_ascii=False)[1:-1]
    return f'{FIRST}WILD = json.loads(r"""{{\n{text}\n}}""")  # noqa: E501'


def counts(judged: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How often each finding was made of each aspect."""
    return {
        aspect: dict(Counter(short(one["findings"][aspect]) for one in judged.values() if "findings" in one))
        for aspect in ("scores", *ASPECTS, "shared keys", "gradients")
    }


def rows(judged: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Package and version, classes, lines of glue, what was tried, what differs; what agrees is one row."""
    together: dict[tuple[str, ...], list[str]] = {}
    for name, one in judged.items():
        said = one.get("findings", {"": f"wrong: could not be tried, {one.get('why')}"})
        tried = [aspect for aspect in ASPECTS if short(said.get(aspect, "not tried")) != "not tried"]
        differs = [short(text) for text in said.values() if short(text) not in ("right", "not tried")]
        key = (f"{one['package']} {one['version']}", str(one["glue"]), ", ".join(tried), ", ".join(differs))
        together.setdefault(key, []).append(label(name))
    return [
        [package, ", ".join(names), glue, tried or "—", differs or "—"]
        for (package, glue, tried, differs), names in together.items()
    ]


def short(said: str) -> str:
    """A finding in two or three words; one that is wrong stays whole."""
    if said.startswith("not tried"):
        return "not tried"
    return next((words for start, words in SHORT.items() if said.startswith(start)), said)


def label(name: str) -> str:
    """A class by its name or, where it is just called Attention, by the module that it is in."""
    *_, module, kind = name.split(".")
    return f"{module}.{kind}" if kind == "Attention" else kind
