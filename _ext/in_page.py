"""Python in the page: a button at each stub and cell that can be run there, and the files that it loads.

Nothing else is on a page before a reader presses the button. Then the page loads `in_page/editor.js`, which
holds CodeMirror and the course's Python files, the file of the page with its stubs, its cells and the data
that judge answers, and `in_page/python.js`, Pyodide. All are scripts, which a page may load from a server
and from disk alike. npm brings Pyodide and CodeMirror, of the versions and hashes in package-lock.json.
"""

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from docutils import nodes
from languages import catalog, is_other, with_strings
from verdicts import translated_exercise, translated_sources

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "mha_course" / "in_page"
MODULES = ROOT / "node_modules"
PYODIDE = MODULES / "pyodide"
# Files that Pyodide fetches, and the program that it would import. In a page opened from disk, WebKit's
# workers import nothing, so both programs become part of the worker's own text.
FETCHED, IMPORTED = ("pyodide.asm.wasm", "python_stdlib.zip"), "pyodide.asm.mjs"
AS_PART = (
    "--format=iife",
    "--global-name=pyodideModule",
    "--minify",
    '--define:import.meta.url="https://in-the-page/"',
)
BUTTON = '<button type="button" class="write-here-button" data-stub="{}"{} hidden>{}</button>'

# The cells below which the reader's own pieces are trained: what learns, and the button's label.
TRAINED = {
    ("03_multi_head_attention", "learn-loop"): ("pointers", "Train your layer"),
    ("06_transformer", "train-run"): ("dates", "Train your Transformer"),
    ("07_gpt", "run"): ("gpt", "Train your GPT"),
}
TRAIN = (
    '<button type="button" class="write-here-button" data-train="{}" hidden>{}</button>'
)

ONLY_IN_COLAB, TRY_IT = SOURCES / "only_in_colab.md", SOURCES / "try_it.md"
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


def tried(page):
    """Return the cells of a page that can be tried: {id: code that is added to the cell}."""
    text, found = TRY_IT.read_text(encoding="utf-8"), {}
    lines = rf"^- {page}: ([\w, -]+?)(?: `(.*)`)?$"
    for names, code in re.findall(lines, text, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), code)
    return found


def cells_of(notebook, *, code=False):
    """Return the cells of a notebook, or those with code for the reader: {id: text}."""
    cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    left_out = ("markdown", "setup") if code else ()
    return {
        cell["id"]: "".join(cell["source"])
        for cell in cells
        if not {cell["cell_type"], cell["id"]} & {*left_out}
    }


def stubs_of(notebook):
    """Return the stubs of a page: {id without its ending: (text of the stub, text of the check)}."""
    texts = cells_of(notebook)
    names = [match[1] for match in map(STUB.fullmatch, texts) if match]
    return {name: (texts[f"{name}-stub"], texts[f"{name}-check"]) for name in names}


def put_buttons(app, doctree, docname):
    """Put a button below each stub and each cell that can be run in the page."""
    notebook = Path(app.env.doc2path(docname))
    if notebook.suffix != ".ipynb":
        return
    why, cells, can_be_tried = reasons(), [*cells_of(notebook)], tried(notebook.stem)
    below = {}
    for name in cells:
        if match := STUB.fullmatch(name):
            place = f"{notebook.stem}/{match[1]}"
            reason = why.get((notebook.stem, match[1]))
            button = BUTTON.format(place, " data-check", "Write it here")
            below[name] = REASON.format(reason) if reason else button
        elif (notebook.stem, name) in TRAINED:
            below[name] = TRAIN.format(*TRAINED[notebook.stem, name])
        elif name in can_be_tried:
            # The landing page shows what the chapters offer.
            label = "Write it here" if notebook.stem == "index" else "Try it"
            below[name] = BUTTON.format(f"{notebook.stem}/{name}", "", label)
    if below or "way" in cells:  # the strip of parts shows what was accepted
        style, code = (
            (SOURCES / f"button.{kind}").read_text("utf-8") for kind in ("css", "js")
        )
        if is_other(app):
            code = with_strings(code, catalog(app, "widgets"))
        doctree += nodes.raw(
            "", f"<style>{style}</style><script>{code}</script>", format="html"
        )
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") == "cell_code":
            html = below.get(cell["cell_metadata"]["id"])
            cell += [nodes.raw("", html, format="html")] if html else []


def script(name, value):
    """Return a script that adds a value to what the page has loaded."""
    return f"(window.mhaInPage ??= {{}})[{json.dumps(name)}] = {json.dumps(value, ensure_ascii=False)};\n"


def data_of(notebook, translated=lambda exercise: exercise):
    """Return what the page needs for each of its stubs, and for each cell that can be tried.

    `translated` gives a stored exercise in the language of the page.

    Under "statements" there are those of all cells, of which each stub and cell needs some: it may use what
    the cells above it define.
    """
    from mha_course.in_page import exercise_of, stored
    from mha_course.in_page.above import statements_of

    found, why, statements, above = {}, reasons(), [], {}
    for name, text in cells_of(notebook, code=True).items():
        above[name] = len(statements)
        with suppress(SyntaxError):  # a magic command
            statements += statements_of(text)
    for name, (stub, check) in stubs_of(notebook).items():
        if (notebook.stem, name) in why:
            continue
        checker, answer = re.search(
            r"^(check_\w+)\(\s*(\w+)", check, re.MULTILINE
        ).groups()
        exercise = translated(stored(exercise_of(check)))
        found[name] = {
            "name": answer,
            "stub": CHECKER.sub("", stub),
            "above": above[f"{name}-stub"],
            "check": check,
            "checker": checker,
            "exercise": json.dumps(exercise, separators=(",", ":"), ensure_ascii=False),
            "piece": name.startswith("write-"),
        }
    cells = cells_of(notebook)
    for name, more in tried(notebook.stem).items():
        text = cells[name] + (f"\n\n{more}" if more else "")
        found[name] = {"name": "", "stub": text, "above": above[name]}
    return found | {"statements": statements} if found else found


def pack(content):
    """Return bytes compressed and in base64."""
    return base64.b64encode(gzip.compress(content, mtime=0)).decode("ascii")


def bundle(path, *options):
    """Return a JavaScript module and all that it imports as one script."""
    node = shutil.which("node", path=Path(sys.executable).parent) or "node"
    command = [node, MODULES / "esbuild/bin/esbuild", path, "--log-level=warning"]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"NODE_PATH": str(MODULES)},
    )
    return done.stdout


def bundle_in(app):
    """Return the editor as one script, in the language of the book."""
    options = "--bundle", "--minify", "--target=es2022"
    if not is_other(app):
        return bundle(SOURCES / "editor.js", *options)
    # Afterwards, the variables in its sentences would have other names.
    known, course = catalog(app, "widgets"), SOURCES.parent
    with tempfile.TemporaryDirectory() as folder:
        for path in [*SOURCES.glob("*.js"), *course.glob("widgets/shared/*.js")]:
            copy = Path(folder, path.relative_to(course))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(with_strings(path.read_text("utf-8"), known), "utf-8")
        return bundle(Path(folder, "in_page/editor.js"), *options)


def pack_python():
    """Return Pyodide's programs and the files that it fetches, each packed."""
    programs = [(PYODIDE / "pyodide.js").read_bytes()]
    programs.append(bundle(PYODIDE / IMPORTED, *AS_PART).encode())
    files = {name: (PYODIDE / name).read_bytes() for name in FETCHED}
    lock = json.loads((PYODIDE / "pyodide-lock.json").read_bytes())
    lock |= {"packages": {}}  # none is served
    files["pyodide-lock.json"] = json.dumps(lock).encode()
    packed = {name: pack(content) for name, content in files.items()}
    return script("python", {"programs": [*map(pack, programs)], "files": packed})


def bundle_editor(app):
    """Return the editor with CodeMirror as one script, after the Python files that go with it."""
    from mha_course.experiments import load_experiment
    from mha_course.in_page import page_sources

    sources = page_sources()
    if is_other(app):
        known = [catalog(app, name) for name in ("texts", "verdicts")]
        sources = translated_sources(sources, *known)
    chapters = map(stubs_of, sorted(ROOT.glob("chapters/*.ipynb")))
    names = [name.partition("write-") for stubs in chapters for name in stubs]
    pieces = [name for _, kind, name in names if kind]
    style = (SOURCES / "editor.css").read_text(encoding="utf-8")
    # The held-out loss of the GPT that chapter 7 opens, to stand beside the reader's.
    loss = load_experiment("gpt").results("GPT", "held-out loss")[0, -1].item()
    parts = {"sources": sources, "pieces": pieces, "style": style, "chapterLoss": loss}
    return "".join(map(script, parts, parts.values())) + bundle_in(app)


def write_in_page(app):
    """Write the files that the buttons load."""
    from mha_course.in_page import texts_to_learn

    folder = Path(app.outdir, "_static", "in_page")
    folder.mkdir(exist_ok=True)
    if not (folder / "python.js").is_file():
        (folder / "python.js").write_text(pack_python(), encoding="utf-8")
    (folder / "editor.js").write_text(bundle_editor(app), encoding="utf-8")
    for name, text in texts_to_learn().items():
        (folder / f"{name}.js").write_text(script(name, text), encoding="utf-8")
    packages = ("mha_lib", "attention_check", "mha_course")
    code = [path for name in packages for path in ROOT.glob(f"{name}/**/*.??")]
    pages = sorted(Path(app.srcdir, "chapters").glob("*.ipynb"))
    translated = {}
    if is_other(app):
        known = [catalog(app, name) for name in ("texts", "verdicts")]
        translated = {"translated": lambda one: translated_exercise(one, *known)}
        code += ROOT.glob("locale/**/*.po")
    for notebook in [Path(app.srcdir, "index.ipynb"), *pages]:
        target = folder / f"{notebook.stem}.js"
        changed = max(path.stat().st_mtime for path in [notebook, *code])
        if target.is_file() and target.stat().st_mtime > changed:
            continue
        if data := data_of(notebook, **translated):
            target.write_text(script(notebook.stem, data), encoding="utf-8")
