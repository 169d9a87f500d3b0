"""Equations are set when the book is built: as glyphs and as MathML, or the build stops."""

from pathlib import Path

import equations
import pytest
from bs4 import BeautifulSoup
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]


def test_an_equation_becomes_glyphs_and_mathml():
    pages = [(r"\frac{a}{b < c}", True), (r"\mathbb{R}^{d}", False)]
    (display, inline), style = equations.set_equations(pages)
    for html, symbols, form in ((display, ["a", "b", "<", "c"], "block"), (inline, ["R", "d"], "inline")):
        soup = BeautifulSoup(html, "html.parser")
        assert soup.select_one("mjx-container > mjx-math")["aria-hidden"] == "true"
        spoken = soup.select_one("mjx-container > mjx-assistive-mml")
        assert spoken["display"] == form
        assert [leaf.text for leaf in spoken.select("mi, mo")] == symbols
        for glyph in soup.select("mjx-c"):
            assert f"mjx-c.{glyph['class'][0]}" in style
    assert 'src: url("mathjax/MathJax_' in style


@pytest.mark.parametrize(
    ("tex", "message"), [(r"\frac{a", "Missing close brace"), (r"\nosuchcommand x", r"\\nosuchcommand")]
)
def test_an_equation_that_cannot_be_set_stops_the_build(tex, message):
    with pytest.raises(ExtensionError, match=message):
        equations.set_equations([("x", False), (tex, True)])


def test_equations_are_found_in_what_sphinx_writes():
    page = r"""<span class="math notranslate nohighlight">\(a &lt; b\)</span>
<div class="math notranslate nohighlight">
\[c\]</div>
<div class="math notranslate nohighlight" id="equation-x">
<span class="eqno">(1)<a class="headerlink" href="#equation-x" title="Link">#</a></span>\[\begin{split}
d \\ e\end{split}\]</div>"""
    found = [equations.read_equation(m) for m in equations.EQUATION.finditer(page)]
    assert found == [("a < b", False), ("c", True), ("\\begin{split}\nd \\\\ e\\end{split}", True)]
    assert equations.EQUATION.sub(r"\1!", page).count("!</") == 3
