"""For all of pytest here: whole notebooks are compared, and what failed is said in one line.

nbval compares the texts of cells that are not exempt. It learns here to compare figures, what exempt cells
print and draw, and the state of the widgets, which is what readers of the static page interact with.
"""

import json
import os
from importlib.util import find_spec

import pytest
import stored_outputs as stored
from drawings import put_back
from nbval.plugin import IPyNbCell, IPyNbFile

# Where the Makefile collects what failed. Only this run of pytest writes there, not one that a test starts.
FAILED = os.environ.pop("FAILED", None)

# The tag of a cell that trains: its numbers may differ a little.
EXEMPT = "nbval-ignore-output"

# The tag of a cell that runs a published model, without which it prints a sentence instead of its results.
NEEDS_MODEL = "needs-model"
MODEL_PACKAGE = "all_minilm_l6_v2"

READ_STATES = """
import json
from ipywidgets import Widget
print(json.dumps(Widget.get_manager_state()["state"]))
"""

compare_texts = IPyNbCell.compare_outputs
collect_cells = IPyNbFile.collect


def compare_outputs(self, test, ref, skip_compare=None):
    """Compare a cell's new outputs with the stored ones: texts, then figures."""
    tags = self.cell.metadata.get("tags", [])
    put_back(ref)
    if EXEMPT in tags:
        self.comparison_traceback = list(stored.text_faults(test, ref))
    elif not compare_texts(self, test, ref, skip_compare):
        return False
    figures = (stored.figures_of(test), stored.figures_of(ref))
    self.comparison_traceback += stored.figure_faults(*figures, trained=EXEMPT in tags)
    return not self.comparison_traceback


def collect(self):
    """The cells of a notebook, none exempt from every comparison, and then its widgets.

    Only cells that run a published model are not compared where it is not installed.

    Stored cells have no counts, and nbval compares only cells that have one. Each cell gets one here, so a
    cell that was not run, or was edited since, fails by what it stores.
    """
    kept = self.path.with_name("my_pieces.json")
    if kept.exists():
        raise self.CollectError(
            f"{kept} holds answers of yours, which the pages would use: move it away."
        )
    cells = []
    for cell in collect_cells(self):
        tags = cell.cell.metadata.get("tags", [])
        cell.options["check"] = (
            NEEDS_MODEL not in tags or find_spec(MODEL_PACKAGE) is not None
        )
        cell.cell.execution_count = 1
        cells.append(cell)
        yield cell
    if stored.stored_state(self.nb):
        yield WidgetState.from_parent(self, name="Widgets", cells=cells)


class WidgetState(pytest.Item):
    """The state of the widgets at the end of a run is the stored one."""

    def __init__(self, *, cells, **others):
        super().__init__(**others)
        self.cells = cells

    def runtest(self):
        """Read the state from the kernel in which the cells ran."""
        outputs = {item.cell.id: item.test_outputs for item in self.cells}
        if None in outputs.values():
            pytest.skip("cells of this notebook did not run")
        new = stored.state_of_run(self.parent.nb, outputs, self.read_states())
        faults = list(stored.state_faults(new, stored.stored_state(self.parent.nb)))
        assert not faults, "\n".join(faults[:20])

    def read_states(self):
        """What all widgets in the kernel hold, by their ids there."""
        kernel = self.parent.kernel
        request = kernel.execute_cell_input(READ_STATES, allow_stdin=False)
        kernel.await_reply(request, timeout=60)
        printed = ""
        while True:
            message = self.parent.get_kernel_message(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
            elif message["content"].get("execution_state") == "idle":
                return json.loads(printed)

    def repr_failure(self, excinfo):
        """Only the differences: where they were found in here says nothing."""
        return f"The widgets are not as they are stored; run `make notebooks`.\n{excinfo.value}"

    def reportinfo(self):
        """Named as nbval names its cells."""
        return self.path, 0, f"{self.path.name}::Widgets"


IPyNbCell.compare_outputs = compare_outputs
IPyNbFile.collect = collect


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Say at the end, in one line, how to run just what failed; under `make`, the Makefile says it."""
    yield
    stats = terminalreporter.stats
    reports = [*stats.get("failed", []), *stats.get("error", [])]
    again = sorted({runs_again(report.nodeid) for report in reports})
    if FAILED:
        with open(FAILED, "a", encoding="utf-8") as collected:
            collected.writelines(f"{name}\n" for name in again)
    elif again:
        text = f'To run just what failed: make test ONLY="{" ".join(again)}"'
        terminalreporter.write_line(text)


def runs_again(nodeid):
    """What to name for a failed test: the test with all its cases, or the whole notebook of a cell."""
    name = nodeid.partition("[")[0]
    return name.partition("::")[0] if ".ipynb" in name else name
