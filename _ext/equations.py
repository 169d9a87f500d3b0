"""Typeset the equations when the book is built, so that readers need no script and nothing moves on loading.

Sphinx writes TeX into the pages, which MathJax would typeset in the browser. This extension runs MathJax once
for all pages, with the environment's Node, and replaces the TeX with the result.
"""

import html
import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from sphinx.errors import ExtensionError

EQUATION = re.compile(
    r'(<(?:span|div) class="math notranslate nohighlight[^"]*"[^>]*>\s*'
    r'(?:<span class="eqno">.*?</a></span>)?)'
    r"(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<display>.*?)\\\])(?=</(?:span|div)>)",
    re.DOTALL,
)
LOADS_MATHJAX = re.compile(
    r"[ ]*<script>window\.MathJax = .*?</script>\n?"
    r'|[ ]*<script [^>]*src="[^"]*/mathjax/[^"]*"></script>\n?'
)
STYLE = "equations.css"

# The styles that MathJax writes into a page for its MathML, and the size of equations relative to the text.
MORE_STYLE = """
mjx-container[jax="CHTML"] { font-size: 107%; position: relative; }
mjx-assistive-mml {
  border: 0; clip: rect(1px, 1px, 1px, 1px); display: block; left: 0; overflow: hidden; padding: 1px 0 0;
  position: absolute; top: 0; user-select: none; width: 100%;
}
mjx-assistive-mml[display="block"] { width: 100%; }
"""


def read_equation(match):
    """Return the TeX of an equation, and whether it is displayed."""
    is_display = match["display"] is not None
    return html.unescape(match["display" if is_display else "inline"]), is_display


def mathjax():
    """Return the folder of MathJax."""
    [package] = find_spec("sphinx-mathjax-offline").submodule_search_locations
    return Path(package, "static", "mathjax")


def set_equations(equations):
    """Typeset equations with MathJax; return the HTML of each and a style sheet for all.

    Raises:
        ExtensionError: MathJax cannot read an equation.
    """
    node = shutil.which("node", path=Path(sys.executable).parent) or "node"
    command = [node, Path(__file__).with_suffix(".cjs"), mathjax(), "mathjax"]
    options = {"capture_output": True, "text": True, "encoding": "utf-8"}
    done = subprocess.run(command, input=json.dumps(equations), **options)
    if done.returncode:
        raise ExtensionError(done.stderr)
    result = json.loads(done.stdout)
    return result["equations"], result["style"]


def set_all_equations(app):
    """Typeset the equations of all pages.

    The style sheet contains the characters that occur anywhere in the book. Sphinx writes only changed pages,
    so the equations of earlier builds are stored beside Sphinx's own files.
    """
    out = Path(app.outdir)
    pages = {}
    for path in sorted(out.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        if LOADS_MATHJAX.search(page):
            pages[path] = page
            if len(EQUATION.findall(page)) != page.count('class="math notranslate'):
                raise ExtensionError(f"{path} has an equation of an unknown form")
    notes = Path(app.doctreedir, "equations.json")
    before = json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else []
    matches = [match for page in pages.values() for match in EQUATION.finditer(page)]
    found = map(read_equation, matches)
    equations = list(dict.fromkeys([*map(tuple, before), *found]))
    if not equations:
        return
    as_html, style = set_equations(equations)
    notes.write_text(json.dumps(equations), encoding="utf-8")
    setting = dict(zip(equations, as_html, strict=True))
    for path, page in pages.items():
        root = "../" * len(path.relative_to(out).parents[1:])
        text = EQUATION.sub(lambda m: m[1] + setting[read_equation(m)], page)
        link = f'<link rel="stylesheet" href="{root}_static/{STYLE}" />\n'
        if 'class="math' in text:
            # Its fonts are decoded at once by the script that stands there in the book's pages.
            places = (
                f'<link rel="stylesheet" href="{root}_static/typefaces.css"',
                "</head>",
            )
            place = next(one for one in places if one in text)
            text = text.replace(place, link + place, 1)
        path.write_text(LOADS_MATHJAX.sub("", text), encoding="utf-8")
    Path(out, "_static", STYLE).write_text(style + MORE_STYLE, encoding="utf-8")
    fonts = mathjax() / "output" / "chtml" / "fonts" / "woff-v2"
    shutil.copytree(fonts, out / "_static" / "mathjax", dirs_exist_ok=True)
