"""Every source that a docstring names is in the bibliography, and every entry of it is cited or named."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = r"[A-Z][\w'’-]+"
AUTHORS = rf"(?:(?:,\s+{NAME})?\s+(?:&|and)\s+{NAME}|\s+et\s+al\.)?"
NAMED = re.compile(rf"({NAME})(?: Team)?{AUTHORS}(?:,\s*|\s+\()((?:19|20)\d\d)[a-z]?\b")
# Two words that stand before a year and name nobody.
NO_AUTHORS = {"March", "May"}


def entries(text):
    """Key of each entry of a bibliography -> (first author's last name, year)."""
    found = {}
    entry = r"(?m)^@\w+\{(\w+), author=\{+(.*?)\}+, .*\byear=\{(\d+)\}"
    for key, author, year in re.findall(entry, text):
        last_name = author.split(" and ")[0].split(",")[0].strip("{}")
        found[key] = last_name.split()[0], year
    return found


def sources_in(code):
    """(name, year) of each source that the docstrings of a module name."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)]
    pairs = [(name, year) for text in texts for name, year in NAMED.findall(text)]
    return {pair for pair in pairs if pair[0] not in NO_AUTHORS}


def modules():
    return [
        path
        for folder in ("mha_lib", "attention_check", "mha_course", "experiments")
        for path in (ROOT / folder).rglob("*.py")
    ]


def named_in_docstrings():
    return set().union(*(sources_in(path.read_text("utf-8")) for path in modules()))


def bibliography():
    return entries((ROOT / "chapters" / "references.bib").read_text("utf-8"))


def cited_in_pages():
    pages = [*(ROOT / "chapters").glob("*.ipynb"), *(ROOT / "chapters").glob("*.md"), ROOT / "index.ipynb"]
    pages += [*(ROOT / "mha_course").rglob("*.md"), *(ROOT / "mha_course").rglob("*.py")]
    cites = [re.findall(r"\{cite:\w\}`([^`]+)`", path.read_text("utf-8")) for path in pages]
    return {key.strip() for page in cites for keys in page for key in keys.split(",")}


def test_sources_of_docstrings_are_in_the_bibliography():
    named = named_in_docstrings()
    assert len(named) > 35
    assert sorted(named - set(bibliography().values())) == []


def test_every_entry_is_cited_on_a_page_or_named_in_a_docstring():
    named = named_in_docstrings()
    unused = [key for key, source in bibliography().items() if source not in named]
    assert sorted(set(unused) - cited_in_pages()) == []


def test_every_key_on_a_page_is_in_the_bibliography():
    assert sorted(cited_in_pages() - set(bibliography())) == []


def test_forms_of_a_source_are_recognised():
    code = '"""One (Ada et al., 2031, §2), two (Bo & Cy, 2032), Di and Ed (2033), Fo, Gi & Hu, 2034b."""'
    assert sources_in(code) == {("Ada", "2031"), ("Bo", "2032"), ("Di", "2033"), ("Fo", "2034")}
    bib = "@misc{ada2031x, author={Ada, A. and Bo, B.}, title={T}, year={2031}}\n"
    bib += "@misc{team2032y, author={{Qi Team}}, title={T}, year={2032}}"
    assert entries(bib) == {"ada2031x": ("Ada", "2031"), "team2032y": ("Qi", "2032")}
