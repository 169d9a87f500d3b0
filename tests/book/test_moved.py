"""Old addresses lead to the page, and to the section, that was asked for."""

import re
from types import SimpleNamespace

import nbformat
import pytest
from docutils.nodes import make_id
from moved import MOVED, write_moved
from security import secure_pages
from stored_notebooks import ROOT

# The sections that an old address could name.
SECTIONS = {
    "06_what_heads_learn": """two-things-at-once watch-it-learn where-do-the-heads-look
        ablation-switch-heads-off the-importance-of-a-head pruning a-model-on-real-words
        what-one-head-gets-wrong real-data-handwritten-digits attention-is-not-explanation four-pointers
        too-many-heads""",
    "07_transformer": """any-date-to-one-form the-whole-picture residual-connections-add-do-not-replace
        layer-norm-each-token-to-one-scale why-not-batch-norm before-or-after feed-forward-each-token-alone
        the-encoder-block the-decoder-block-three-parts the-whole-model the-shape-tape
        training-all-characters-at-once writing-cache-and-beam every-token-once several-answers-at-once
        does-the-number-of-heads-matter-here""",
    "08_inside_a_transformer": """four-models-that-write-dates where-does-the-decoder-look switch-a-head-off
        zero-or-mean does-a-map-tell-what-matters where-it-fails languages-that-it-never-saw
        the-control-a-recurrent-network warm-up-and-the-place-of-the-norm batch-norm-trained""",
}


def anchors_of(page):
    cells = nbformat.read(ROOT / "chapters" / f"{page}.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return {make_id(heading) for heading in re.findall(r"^##+ (.*)", text, re.MULTILINE)}


def test_every_section_of_an_old_page_is_where_its_address_leads():
    assert {*MOVED} == {*SECTIONS}
    for old, (new, elsewhere) in MOVED.items():
        sections = SECTIONS[old].split()
        assert {*elsewhere} <= {*sections}
        lost = [anchor for anchor in sections if anchor not in anchors_of(elsewhere.get(anchor, new))]
        assert lost == [], old


@pytest.mark.parametrize("scripts", [True, False])
def test_an_old_address_leads_on(browser, tmp_path, monkeypatch, scripts):
    monkeypatch.setitem(MOVED, "old", ("new", {"a": "other"}))
    (tmp_path / "chapters").mkdir()
    for name in ("new", "other"):
        (tmp_path / "chapters" / f"{name}.html").write_text('<meta charset="utf-8" />', encoding="utf-8")
    for step in (write_moved, secure_pages):
        step(SimpleNamespace(outdir=tmp_path))
    with browser.new_context(java_script_enabled=scripts) as context:
        page, folder = context.new_page(), (tmp_path / "chapters").as_uri()
        for asked, found in (("", "new"), ("#b", "new"), ("#a", "other" if scripts else "new")):
            page.goto(f"{folder}/old.html{asked}")
            page.wait_for_url(f"{folder}/{found}.html{asked if scripts else ''}")
