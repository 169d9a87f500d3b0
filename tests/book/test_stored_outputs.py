"""A stored notebook that shows something else than its cells make is found: text, figure or widget."""

import base64
import copy
import io
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import numpy as np
import pytest
from figures import figure_fault
from nbformat.v4 import new_code_cell, new_notebook, new_output
from run_notebooks import main
from stored_outputs import state_faults, stored_state, text_faults
from test_notebooks import picture

from mha_course import plots

ROOT = Path(__file__).resolve().parents[2]

COLORS = ("tab:blue", "tab:orange")


def curves(*, height=1.0, colors=COLORS, curves=(0, 1), label="loss", colormap="viridis", shift=0, guide=":"):
    """A figure as chapters draw them: two curves with a legend, a map with its bar, a text."""
    figure, axes = plots.new_figure(1, 2, width=4.4, height=2.2)
    steps = np.linspace(0, 1, 53)
    for curve in curves:
        values = (0.4 + 0.5 * curve) * np.exp(-3 * steps) * height + shift
        axes[0].plot(steps, values, color=colors[curve], label=f"{curve + 1} heads")
    axes[0].set(ylim=(0, 1), xlabel="step", ylabel=label)
    axes[0].axhline(0.2, color="#bbbbbb", linestyle=guide, linewidth=1.2)
    axes[0].legend()
    image = axes[1].imshow(np.outer(steps[::5], steps[::5]), cmap=colormap, vmin=0, vmax=1)
    figure.colorbar(image, ax=axes[1])
    axes[1].text(1, 1, "0.83")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


CHANGES = {
    "a curve at half height": {"height": 0.5}, "one series erased": {"curves": (0,)},
    "two series swapped": {"colors": ("tab:orange", "tab:blue")}, "a label changed": {"label": "lass"},
    "a colour map reversed": {"colormap": "viridis_r"}, "a pale dotted line erased": {"guide": "none"},
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn():
    return curves()


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_figure_is_found(drawn, change):
    assert "tiles differ" in figure_fault(curves(**CHANGES[change]), drawn)


@pytest.mark.parametrize(
    "change", [name for name in CHANGES if name not in ("a label changed", "a pale dotted line erased")]
)
def test_a_changed_figure_is_found_after_training(drawn, change):
    """All but a letter or a pale line, which fill as few tiles as training moves."""
    assert "tiles differ" in figure_fault(curves(**CHANGES[change]), drawn, share=0.01)


def test_a_figure_drawn_again_or_in_fewer_colours_is_the_same(drawn):
    from stored_notebooks import shrink_figure

    assert figure_fault(curves(), drawn) is None
    assert figure_fault(drawn, shrink_figure(drawn)) is None
    # The fifth digit of a curve differs between machines.
    assert figure_fault(curves(shift=1e-5), drawn) is None


def printed(text):
    return [new_output("stream", name="stdout", text=text)]


@pytest.mark.parametrize(("new", "stored", "fault"), [
    ("1,000 steps, 93 %, loss 0.500", "1,000 steps, 93 %, loss 0.501", None),
    ("right: 93%", "right: 94%", None),
    ("loss −2.00", "loss -2.03", None),
    ("0.014", "0.004", "0.014 where 0.004 is stored"),
    ("4,100 tokens", "4,096 tokens", "4,100 where 4,096 is stored"),
    ("right: 93%", "right: 99%", "93% where 99% is stored"),
    ("loss -0.5", "loss 0.5", "-0.5 where 0.5 is stored"),
    ("it rises to 0.5", "it falls to 0.5", "'it rises to #' where 'it falls to #' is stored"),
    ("0.5", "0.5 0.5", "'#' where '# #' is stored"),
    ("nan", "0.5", "'nan' where '#' is stored"),
    ("300 steps (yours may differ): 2021-03-03", "300 steps (yours may differ): (nothing)", None),
    ("60 steps (yours may differ): 1", "300 steps (yours may differ): 1", "60 where 300 is stored"),
    ("torch 2.13.0", "torch 2.13.1", "'torch 2.13.0' where 'torch 2.13.1' is stored"),
])  # fmt: skip
def test_after_training_words_stay_and_numbers_nearly(new, stored, fault):
    found = list(text_faults(printed(new), printed(stored)))
    assert found == [] if fault is None else len(found) == 1 and fault in found[0], found


@pytest.fixture(scope="module")
def shown():
    """The stored states of three pages: widget's name -> its values, the first of each kind."""
    states = {}
    for page in ("index", "chapters/01_attention_pooling", "chapters/08_what_heads_learn"):
        for model in stored_state(nbformat.read(ROOT / f"{page}.ipynb", as_version=4)).values():
            name = str(model["state"].get("_anywidget_id", "")).rpartition(".")[2]
            states.setdefault(name, model["state"])
    return states


def swap(mapping, one, other):
    mapping[one], mapping[other] = mapping[other], mapping[one]


def scaled(text, factor):
    """Numbers packed as widgets pack them, times a factor."""
    numbers = np.frombuffer(base64.b64decode(text), dtype="<f4") * np.float32(factor)
    return base64.b64encode(numbers.tobytes()).decode()


def zeroed(text):
    """As many bytes, all zero."""
    return base64.b64encode(bytes(len(base64.b64decode(text)))).decode()


def first_model(state):
    return state["examples"][0]["versions"][0]


STATES = {
    "another answer of a quiz": ("Quiz", lambda s: s["questions"][0].update(answer=99)),
    "another sentence of a quiz": ("Quiz", lambda s: s["questions"][0].update(question="Which?")),
    "a question less": ("Quiz", lambda s: s["questions"].pop()),
    "values scaled": ("HeadExplorer",
        lambda s: first_model(s).update(value=scaled(first_model(s)["value"], 1.01))),
    "projections swapped": ("HeadExplorer", lambda s: swap(first_model(s), "query", "key")),
    "two tokens swapped": ("HeadExplorer", lambda s: swap(s["examples"][0]["tokens"], 0, 1)),
    "another number of heads": ("HeadExplorer", lambda s: s.update(num_heads=s["num_heads"] * 2)),
    "a flag turned": ("HeadExplorer", lambda s: s.update(is_causal=not s["is_causal"])),
    "another bandwidth": ("PoolingExplorer", lambda s: s.update(bandwidth=s["bandwidth"] * 1.01)),
    "a count a thousandth higher": ("HeadExplorer",
        lambda s: first_model(s).update(parameters=first_model(s)["parameters"] + 4)),
    "other tokens": ("AblationLab", lambda s: s["batch"].update(tokens=zeroed(s["batch"]["tokens"]))),
    "a trait that is gone": ("PoolingExplorer", lambda s: s.pop("kernel")),
}  # fmt: skip


@pytest.mark.parametrize("change", STATES)
def test_a_changed_state_is_found(shown, change):
    name, plant = STATES[change]
    planted = copy.deepcopy(shown[name])
    plant(planted)
    assert list(state_faults(shown[name], planted)) != []


def test_a_state_rounded_elsewhere_is_the_same(shown):
    rounded = copy.deepcopy(shown["HeadExplorer"])
    model = first_model(rounded)
    model["value"] = scaled(model["value"], 1 + 1e-5)
    assert list(state_faults(rounded, shown["HeadExplorer"])) == []


def nbval(notebook, folder, *more):
    """Run nbval on a notebook with the conftest.py of the repository: name of a case -> passed or failed."""
    nbformat.write(notebook, folder / "planted.ipynb")
    shutil.copy(ROOT / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider"]
    arguments = ["--nbval", "--nbval-current-env", "--junitxml", folder / "result.xml", *more, folder]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=240)
    cases = ElementTree.parse(folder / "result.xml").iter("testcase")
    outcome = lambda case: "passed" if case.find("failure") is None else "failed"  # noqa: E731
    return done.stdout, [(case.get("name"), outcome(case)) for case in cases]


def test_nbval_refuses_to_run_a_page_with_the_answers_of_an_author(tmp_path):
    notebook = new_notebook(cells=[new_code_cell("answer = 7")])
    assert [outcome for _, outcome in nbval(notebook, tmp_path)[1]] == ["passed"]
    (tmp_path / "my_pieces.json").write_text("{}")
    assert "holds answers of yours, which the pages would use: move it away." in nbval(notebook, tmp_path)[0]


@pytest.mark.slow
def test_nbval_compares_texts_and_figures(tmp_path):
    """Each cell stores an output; its name says what nbval must find when it runs the cell again."""
    draw = "import base64\nfrom IPython.display import display\n"
    draw += f"display({{'image/png': base64.b64decode('{picture()}')}}, raw=True)"
    exempt = {"metadata": {"tags": ["nbval-ignore-output"]}}

    def figure(**changes):
        return {"outputs": [new_output("display_data", {"image/png": picture(**changes)})]}

    cells = {
        "number the same: passed": ("print(1)", {"outputs": printed("1\n")}),
        "number another: failed": ("print(1)", {"outputs": printed("2\n")}),
        "not run: failed": ("print(1)", {"outputs": []}),
        "edited since: failed": ("print(1 + 1)", {"outputs": printed("1\n")}),
        "prints no more: failed": ("x = 1", {"outputs": printed("1\n")}),
        "warning not stored: failed": ("import sys; print('x', file=sys.stderr)", {"outputs": []}),
        "exception: failed": ("assert 1 == 2", {"outputs": []}),
        "figure the same: passed": (draw, figure()),
        "figure nearly the same: passed": (draw, figure(colour=(33, 121, 178))),
        "figure of another colour: failed": (draw, figure(colour=(214, 39, 40))),
        "figure with a spot: failed": (draw, figure(speck=14)),
        "figure with dust: failed": (draw, figure(dust=29)),
        "figure of another size: failed": (draw, figure(size=(41, 30))),
        "figure that is none: failed": (draw,
            {"outputs": [new_output("display_data", {"image/png": "AAAA"})]}),
        "figure not stored: failed": (draw, {"outputs": []}),
        "figure no longer made: failed": ("pass", figure()),
        "one of two figures: failed": (f"{draw}\n{draw.splitlines()[-1]}", figure()),
        "trained, the last digit another: passed": ("print(0.501)",
            {"outputs": printed("0.503\n"), **exempt}),
        "trained, another number: failed": ("print(0.501)", {"outputs": printed("0.601\n"), **exempt}),
        "trained, no figure: failed": (draw, {"outputs": [], **exempt}),
    }  # fmt: skip
    notebook = new_notebook(
        cells=[new_code_cell(source, **rest) for source, rest in cells.values()],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    out, results = nbval(notebook, tmp_path)
    assert [result for _, result in results] == [name.rpartition(" ")[2] for name in cells], out


@pytest.mark.slow
@pytest.mark.parametrize("is_installed", [True, False])
def test_cells_that_need_a_published_model_are_compared_where_it_is_installed(tmp_path, is_installed):
    tags = {"metadata": {"tags": ["needs-model"]}}
    cells = [
        new_code_cell("print(1)", outputs=printed("2\n"), **tags),
        new_code_cell("print(1)", outputs=printed("2\n")),
    ]
    # Python finds nothing where this entry is None, and a package in the current folder otherwise.
    module = "{}" if is_installed else "{'all_minilm_l6_v2': None}"
    (tmp_path / "with_or_without.py").write_text(f"import sys\nsys.modules |= {module}\n", encoding="utf-8")
    if is_installed:
        (tmp_path / "all_minilm_l6_v2").mkdir()
    out, results = nbval(new_notebook(cells=cells), tmp_path, "-p", "with_or_without")
    found = "failed" if is_installed else "passed"
    assert [result for _, result in results] == [found, "failed"], out


@pytest.mark.slow
def test_nbval_compares_widgets(tmp_path):
    path = tmp_path / "page.ipynb"
    source = "from mha_course.widgets import PoolingExplorer\nPoolingExplorer(bandwidth={})"
    cells = [new_code_cell(source.format(bandwidth)) for bandwidth in (0.5, 0.7)]
    nbformat.write(new_notebook(cells=cells), path)
    assert main([str(path)]) == 0
    stored = nbformat.read(path, as_version=4)
    path.unlink()
    out, results = nbval(stored, tmp_path)
    assert results == [("Cell 0", "passed"), ("Cell 1", "passed"), ("Widgets", "passed")], out

    state = next(model["state"] for model in stored_state(stored).values() if "kernel" in model["state"])
    state["bandwidth"] *= 1.1
    out, results = nbval(stored, tmp_path)
    assert results == [("Cell 0", "passed"), ("Cell 1", "passed"), ("Widgets", "failed")], out
    assert "/bandwidth" in out
    assert "make notebooks" in out
