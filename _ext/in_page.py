"""Python in the page: a button at each stub that can be written there, and the files that it loads.

Nothing else is on a page before a reader presses the button. Then the page loads `in_page/editor.js`, which
holds CodeMirror and the course's Python files, the file of the page with its stubs and the data that judge
them, and `in_page/python.js`, Pyodide. All are scripts, which a page may load from a server and from disk
alike. npm brings Pyodide and CodeMirror, of the versions and hashes in package-lock.json.
"""

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "mha_course" / "in_page"
MODULES = ROOT / "node_modules"
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
BUTTON = '<button type="button" class="write-here-button" data-stub="{}" hidden>Write it here</button>'

ONLY_IN_COLAB = SOURCES / "only_in_colab.md"
REASON = '<p class="only-in-colab">{}</p>'
CHECKER = re.compile(
    r"^from mha_course\.exercises import (?:\([^)]*\)|.*)\n+", re.MULTILINE
)
STUB = re.compile(r"(write-\w+|ex\d+)-stub")


def reasons():
    """Return why a stub has no button: {(page, name of the stub): sentence}."""
    found = {}
    for part in ONLY_IN_COLAB.read_text(encoding="utf-8").split("\n## ")[1:]:
        sentence, _, listed = part.partition("\n")
        for page, names in re.findall(r"^- (\w+): (.*)", listed, re.MULTILINE):
            found |= {(page, name): sentence for name in names.split(", ")}
    return found


def cells_of(notebook):
    """Return the cells of a notebook: [(id, text)]."""
    cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    return [(cell["id"], "".join(cell["source"])) for cell in cells]


def stubs_of(notebook):
    """Return the stubs of a page: {id without its ending: (text of the stub, text of the check)}."""
    texts = dict(cells_of(notebook))
    names = [match[1] for match in map(STUB.fullmatch, texts) if match]
    return {name: (texts[f"{name}-stub"], texts[f"{name}-check"]) for name in names}


def put_buttons(app, doctree, docname):
    """Put a button below each stub that can be written in the page."""
    notebook = Path(app.env.doc2path(docname))
    if notebook.suffix != ".ipynb":
        return
    names = [STUB.fullmatch(name) for name, _ in cells_of(notebook)]
    why = reasons()
    if any(names):
        style, code = (
            (SOURCES / f"button.{kind}").read_text("utf-8") for kind in ("css", "js")
        )
        doctree += nodes.raw(
            "", f"<style>{style}</style><script>{code}</script>", format="html"
        )
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") == "cell_code" and (
            match := names[cell["cell_index"]]
        ):
            reason = why.get((notebook.stem, match[1]))
            html = (
                REASON.format(reason)
                if reason
                else BUTTON.format(f"{notebook.stem}/{match[1]}")
            )
            cell += nodes.raw("", html, format="html")


def script(name, value):
    """Return a script that adds a value to what the page has loaded."""
    return f"(window.mhaInPage ??= {{}})[{json.dumps(name)}] = {json.dumps(value, ensure_ascii=False)};\n"


def data_of(notebook):
    """Return what the page needs for each of its stubs."""
    from mha_course.in_page import exercise_of, stored

    found, why = {}, reasons()
    for name, (stub, check) in stubs_of(notebook).items():
        if (notebook.stem, name) in why:
            continue
        checker, answer = re.search(
            r"^(check_\w+)\(\s*(\w+)", check, re.MULTILINE
        ).groups()
        stub = CHECKER.sub("", stub)
        data = json.dumps(
            stored(exercise_of(check)), separators=(",", ":"), ensure_ascii=False
        )
        found[name] = {
            "name": answer,
            "stub": stub,
            "check": check,
            "checker": checker,
            "exercise": data,
        }
        found[name]["piece"] = name.startswith("write-")
    return found


def pack_python():
    """Return Pyodide's files, each compressed and in base64."""
    files = {name: (MODULES / "pyodide" / name).read_bytes() for name in PYODIDE}
    lock = json.loads((MODULES / "pyodide" / "pyodide-lock.json").read_bytes())
    files["pyodide-lock.json"] = json.dumps(
        lock | {"packages": {}}
    ).encode()  # none is served
    packed = {
        name: base64.b64encode(gzip.compress(file, mtime=0))
        for name, file in files.items()
    }
    return script(
        "python", {name: text.decode("ascii") for name, text in packed.items()}
    )


def bundle_editor():
    """Return the editor with CodeMirror as one script, after the Python files that go with it."""
    from mha_course.in_page import page_sources

    node = shutil.which("node", path=Path(sys.executable).parent) or "node"
    options = ["--bundle", "--minify", "--target=es2022", "--log-level=warning"]
    command = [
        node,
        MODULES / "esbuild" / "bin" / "esbuild",
        SOURCES / "editor.js",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    chapters = [stubs_of(path) for path in sorted(ROOT.glob("chapters/*.ipynb"))]
    pieces = [
        name.removeprefix("write-")
        for stubs in chapters
        for name in stubs
        if name.startswith("write-")
    ]
    style = (SOURCES / "editor.css").read_text(encoding="utf-8")
    parts = {"sources": page_sources(), "pieces": pieces, "style": style}
    return "".join(map(script, parts, parts.values())) + done.stdout


def write_in_page(app):
    """Write the files that the buttons load."""
    folder = Path(app.outdir, "_static", "in_page")
    folder.mkdir(exist_ok=True)
    if not (folder / "python.js").is_file():
        (folder / "python.js").write_text(pack_python(), encoding="utf-8")
    (folder / "editor.js").write_text(bundle_editor(), encoding="utf-8")
    code = [
        path
        for name in ("mha_lib", "mha_course")
        for path in (ROOT / name).rglob("*.??")
    ]
    for notebook in sorted(Path(app.srcdir, "chapters").glob("*.ipynb")):
        target = folder / f"{notebook.stem}.js"
        changed = max(path.stat().st_mtime for path in [notebook, *code])
        if target.is_file() and target.stat().st_mtime > changed:
            continue
        if data := data_of(notebook):
            target.write_text(script(notebook.stem, data), encoding="utf-8")
