"""What the widgets have in common: how their code is put together and stored, what stands in for it."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from widget_samples import SAMPLES

from mha_course import plots
from mha_course.widgets import HeadExample, HeadExplorer, Question, Quiz, _base, widget_sources
from mha_lib import MultiHeadAttention


@pytest.mark.parametrize(("make", "argument"), [
    (lambda: HeadExplorer(5), "examples"),
    (lambda: Quiz(5), "questions"),
    (lambda: Question("how many?", 5, 1), "choices"),
    (lambda: Question("how many?", [1, 2], 1, feedback=5), "feedback"),
    (lambda: HeadExample("a", 5, torch.ones(1, 6), MultiHeadAttention(6, 3)), "tokens"),
])  # fmt: skip
def test_what_is_no_sequence_is_refused_by_name(make, argument):
    with pytest.raises(TypeError, match=rf"{argument} must be .*5"):
        make()


def test_colab_is_told_of_its_widget_manager(monkeypatch):
    output = types.SimpleNamespace(
        enable_custom_widget_manager=lambda: None,
        _widgets=types.SimpleNamespace(_installed_url="https://manager"),
    )
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    _, metadata = SAMPLES["HeadExplorer"]()._repr_mimebundle_()
    view = metadata["application/vnd.jupyter.widget-view+json"]
    assert view["colab"]["custom_widget_manager"]["url"] == "https://manager"


def test_the_palette_is_that_of_the_figures():
    css = _base.compose_style("head_explorer.js")
    colors = dict(re.findall(r"--mha-([\w-]+): (#\w{6});", css[: css.index("html[data-theme")]))
    assert [colors[role] for role in ("query", "key", "value")] == [plots.QUERY, plots.KEY, plots.VALUE]
    assert tuple(colors[f"head-{head}"] for head in range(8)) == tuple(plots.HEADS)


def test_a_widget_stores_the_code_that_the_package_has_now():
    states = [make().get_state() for make in SAMPLES.values()]
    texts = {state["_anywidget_id"]: {name: state[name] for name in ("_esm", "_css")} for state in states}
    assert widget_sources() == texts


def test_a_composed_module_needs_no_other_file():
    for source in widget_sources().values():
        code = source["_esm"]
        # A program for the reader may contain Python's `import torch`.
        assert not re.search(r"^\s*import\s*([{*\"']|\w+ from\b)", code, re.MULTILINE)
        assert len(re.findall(r"^export default", code, re.MULTILINE)) == 1
        assert "</script" not in code.lower()
        assert "<!--" not in code
        # An SVG element's namespace is a name, not an address.
        asked = re.search(r"\b(fetch|XMLHttpRequest|https?:(?!//www\.w3\.org/2000/svg\"))", code)
        assert not asked, "nothing is asked from the network"
    source = widget_sources()["mha_course.widgets.head_explorer.HeadExplorer"]["_esm"]
    assert source.count("function splitHeads") == 1


def test_an_import_that_cannot_be_composed_is_refused(tmp_path, monkeypatch):
    widget, near, far = (tmp_path / name for name in ("widget.js", "near.js", "far.js"))
    monkeypatch.setattr(_base, "_BROWSER_FILES", {path.name: path for path in (widget, near, far)})
    near.write_text('import { b } from "../shared/far.js";\nexport const a = b;\n')
    far.write_text("export const b = 1;\n")
    for asked in ('* as near from "./near.js"', '{ a as b } from "./near.js"', 'd from "d"'):
        widget.write_text(f"import {asked};\nexport default {{}};\n")
        with pytest.raises(ValueError, match=r"widget\.js may only import"):
            _base.compose_module("widget.js")
    widget.write_text('import { a } from "./near.js";\n// why\nexport default { a };\n')
    whole = "// far.js\nexport const b = 1;\n\n// near.js\nexport const a = b;\n\n"
    whole += "// widget.js\nexport default { a };\n"
    assert _base.compose_module("widget.js") == whole


def test_the_styles_of_one_widget_reach_no_other():
    """A page holds several widgets with their styles. Selectors with attributes are left out."""
    folder = Path(_base.__file__).parent
    modules = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*/*.js")}

    def needed(name):
        found, waiting = set(), [name]
        while waiting:
            module = waiting.pop()
            if module not in found:
                found.add(module)
                waiting += re.findall(r'from "\./(\w+)\.js"', modules[module])
        return found

    classes = re.compile(r"\bmha-[a-z0-9-]+")
    widgets = {name: needed(name) for name, text in modules.items() if "export default" in text}
    made = {
        widget: {name for module in found for name in classes.findall(modules[module])} | {"mha-widget"}
        for widget, found in widgets.items()
    }
    leaks = []
    for path in sorted(folder.glob("*.css")):
        users = [widget for widget, found in widgets.items() if path.stem in found]
        styles = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        for selectors in re.findall(r"([^{}@;]+)\{", styles):
            plain = re.sub(r":(?:is|not|has|where)\((?:[^()]|\([^()]*\))*\)", "", selectors)
            for selector in plain.split(","):
                named = set(classes.findall(selector))
                others = [widget for widget in made if widget not in users and named <= made[widget]]
                if named and others and "[" not in selector:
                    leaks.append(f"{path.name}: {selector.strip()} also styles {', '.join(others)}")
    assert "\n".join(leaks) == ""
