"""The stored verdicts on public implementations: enough, with little glue, nothing right refused."""

import json
import re
from pathlib import Path

import table
from implementations import IMPLEMENTATIONS

ROOT = Path(__file__).resolve().parent.parent.parent
JUDGED = table.stored()["judged"]


def test_each_implementation_has_a_verdict():
    assert [one.name for one in IMPLEMENTATIONS] == [*JUDGED]
    assert len(JUDGED) >= 40


def test_the_verdicts_are_on_the_pinned_versions():
    pins = "".join((ROOT / f"requirements{kind}.txt").read_text("utf-8") for kind in ("", "-wild"))
    for name, one in JUDGED.items():
        assert re.search(rf"(?m)^{one['package']}=={re.escape(one['version'])}( |$)", pins), name


def test_nearly_all_need_at_most_one_line():
    assert sum(one["glue"] <= 1 for one in JUDGED.values()) >= 36


def test_all_were_tried_and_none_that_is_right_is_refused():
    """Each of these was read beside the formula; one with a fault is entered here, with who found it."""
    assert {name: one["status"] for name, one in JUDGED.items() if one["status"]} == {}


def test_each_difference_has_a_short_name():
    """Otherwise the table of the page would not show it."""
    for name, one in JUDGED.items():
        for said in one["findings"].values():
            short = [start for start in table.SHORT if said.startswith(start)]
            assert short or said == "right" or said.startswith("not tried"), (name, said)


def test_the_page_has_these_verdicts():
    cells = json.loads(table.PAGE.read_text(encoding="utf-8"))["cells"]
    [source] = ["".join(cell["source"]) for cell in cells if cell["id"] == table.CELL]
    assert source == table.source_of_cell()
