"""What the build leaves out of pages and what it stores once: nothing that is needed, and nothing changes."""

import copy
import json
import re
from pathlib import Path

import lighten
import pytest
from PIL import Image
from playwright.sync_api import expect
from widget_page import write_page
from widget_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]

FRAME, A, B = "// frame.js\nlet f;\n\n", "// a.js\nlet a;\n", "// b.js\nlet b;\n"


def page_state(*models):
    """The state of a page as a notebook stores it, from pairs of module and style sheet."""
    return {
        "version_major": 2,
        "state": {
            str(index): {"state": {"_esm": module, "_css": style, "num_heads": index}}
            for index, (module, style) in enumerate(models)
        },
    }


def put_together(state):
    """What the loader makes of shared texts."""
    whole = copy.deepcopy(state)
    texts = whole.pop("texts")
    for model in whole["state"].values():
        for name in ("_esm", "_css"):
            if isinstance(model["state"].get(name), list):
                model["state"][name] = "".join(texts[i] for i in model["state"][name])
    return whole


def test_a_file_is_stored_once_and_nothing_is_lost():
    style = "/* frame.css */\n.x {}\n\n/* a.css */\n.y {}\n"
    state = page_state((FRAME + A, style), (FRAME + B, style), (FRAME + A, style))
    shared = lighten.share_texts(copy.deepcopy(state))
    texts = [FRAME, A, B, "/* frame.css */\n.x {}\n\n", "/* a.css */\n.y {}\n"]
    assert sorted(shared["texts"]) == sorted(texts)
    assert put_together(shared) == state
    # A second run changes nothing.
    assert lighten.share_texts(copy.deepcopy(shared)) == shared


@pytest.mark.parametrize("module", [
    "export default {};",  # no marker
    "let a = 1; // a.js\n",  # not at the beginning of a line
    "  // a.js\nlet a;\n",
    "before\n// a.js\nafter",  # the first line is not a marker
    "// a.js\n// b.js\n",
    "// not a file\nlet a;",
])  # fmt: skip
def test_a_module_of_any_form_comes_back(module):
    state = page_state((module, ""), (module, "p { }"))
    shared = lighten.share_texts(copy.deepcopy(state))
    assert put_together(shared) == state
    assert len(shared["texts"]) == len(set(shared["texts"]))


def test_a_model_without_code_stays_as_it_is():
    state = page_state((FRAME, ""))
    state["state"]["layout"] = {"model_name": "LayoutModel", "state": {"width": "auto"}}
    shared = lighten.share_texts(copy.deepcopy(state))
    assert shared["state"]["layout"] == state["state"]["layout"]


@pytest.mark.slow
@pytest.mark.parametrize("markers", [True, False])
def test_widgets_of_a_lightened_page_show_the_same(reader, tmp_path, markers):
    """Every widget on one page, over HTTP and from disk, as stored by a notebook of now and of before."""

    def remove_markers(states):
        if markers:
            return
        for state in states:
            state["_esm"] = re.sub(r"(?m)^// \w+\.js\n", "", state["_esm"])
            state["_css"] = re.sub(r"(?m)^/\* \w+\.css \*/\n", "", state["_css"])

    widgets = [make() for make in SAMPLES.values()]
    widgets.append(widgets[0])
    seen = []
    for way, over in (("plain", "http"), ("light", "http"), ("light", "file")):
        path = write_page(tmp_path, widgets, alter=remove_markers)
        html = path.read_text(encoding="utf-8")
        if way == "light":
            lean = lighten.lighten_page(html, searches=False, heights={widgets[0].model_id: [300, 200, 100]})
            assert lean.count('class="widget-host"') == len(widgets)
            # The state may contain modules from other tests. They have markers, and each occurs at most once.
            assert len(lean) < len(html) * (0.6 if markers else 1.01)
            assert lean.count("// frame.js") <= 1
            path.write_text(lean, encoding="utf-8")
        page = reader(over).open(path, len(widgets))
        hosts = page.locator(".widget-host[data-widget=ready]")
        expect(hosts).to_have_count(len(widgets))
        assert page.locator(".widget-host").count() == len(widgets)
        seen.append(hosts.evaluate_all("hosts => hosts.map(host => host.innerText)"))
        if way == "light":
            room = page.locator(".widget-host").first.get_attribute("style")
            assert room == "--phone: 300px; --tablet: 200px; --desktop: 100px"
    assert seen[0] == seen[1] == seen[2]


def test_room_is_kept_by_the_name_of_a_widget():
    """A widget that joins the page takes nobody's room."""
    view = '<script type="application/vnd.jupyter.widget-view+json">{{"model_id": "{}"}}</script>'
    html = lighten.reserve_room("".join(map(view.format, ("new", "quiz"))), {"quiz": [3, 2, 1]})
    hosts = re.findall(r'class="widget-host" style="([^"]*)"', html)
    assert hosts == ["", "--phone: 3px; --tablet: 2px; --desktop: 1px"]


def test_a_script_in_a_state_cannot_end_the_page():
    state = page_state(("const a = '</script><b>';", ""))
    text = json.dumps(state).replace("</", r"<\/")
    html = f'<script type="application/vnd.jupyter.widget-state+json">{text}</script></body>'
    lean = lighten.lighten_page(html, searches=False)
    assert lean.count("</script>") == 1
    [script] = re.findall(r">(\{.*\})</script>", lean)
    assert put_together(json.loads(script)) == state


def test_scripts_stay_where_they_are_needed():
    names = ("searchtools", "language_data", "clipboard.min")
    scripts = "".join(f'<script src="../_static/{name}.js?v=1"></script>\n' for name in names)
    scripts += '<script defer src="_static/scripts/fontawesome.js?digest=1"></script>\n'

    def left(html, **kwargs):
        return re.findall(r"(\w+)(?:\.min)?\.js", lighten.lighten_page(html, **kwargs))

    assert left(scripts, searches=False) == ["clipboard"]
    assert left(scripts, searches=True) == ["searchtools", "language_data", "clipboard"]


def test_text_waits_for_no_script_that_acts_later():
    page = """<head><script src="storage.js"></script>
<script src="a/documentation_options.js?v=1"></script><script src="a/doctools.js?v=1"></script>
<script data-prefix="x" src="tabs.js?v=2"></script><script>let a = 1;</script></head>
<script src="loader.js?v=3"></script></body>"""
    assert re.findall(r"<script defer [^>]*", lighten.lighten_page(page, searches=False)) == [
        '<script defer src="a/doctools.js?v=1"',
        '<script defer data-prefix="x" src="tabs.js?v=2"',
    ]
    # Scripts within the search page call functions of the others at once.
    assert "defer" not in lighten.lighten_page(page, searches=True)


@pytest.mark.parametrize(("css", "expected"), [
    (".used{a:b}.unused{a:b}", ".used{a:b}"), (".used,.unused,p{a:b}", ".used,p{a:b}"),
    ("p:not(.unused){a:b}", "p:not(.unused){a:b}"),
    (".used:is(.unused,.x) i{a:b}", ".used:is(.unused,.x) i{a:b}"), (".used.unused{a:b}", ""),
    ('[data-x=".unused"]{a:b}', '[data-x=".unused"]{a:b}'),
    ("@media print{.unused{a:b}.used{a:b}}", "@media print{.used{a:b}}"),
    ("@media print{.unused{a:b}}", ""), (".bs-tooltip-end{a:b}", ".bs-tooltip-end{a:b}"),
    ("@font-face{src:url(a.b)}", "@font-face{src:url(a.b)}"),
    ('@charset "UTF-8";:root{--a:b,c}', '@charset "UTF-8";:root{--a:b,c}'),
    ("@keyframes unused{from{a:b}}", "@keyframes unused{from{a:b}}"),
    ('.used::before{content:"\\f107"}', '.used::before{content:"\\00f107"}'),
])  # fmt: skip
def test_rules_without_a_user_go_and_all_others_stay(css, expected):
    assert lighten.used_rules(css, {"used"}) == expected


PYGMENTS = """
td.linenos .normal { color: inherit; }
html[data-theme="light"] .highlight { background: #fefefe; color: #080808 }
html[data-theme="light"] .highlight .c { color: #515151 } /* Comment */
html[data-theme="light"] .highlight .n { color: #080808 } /* Name */
html[data-theme="light"] .highlight .p { color: #080808 } /* Punctuation */
html[data-theme="light"] .highlight .b { color: #080808; font-weight: bold } /* Bold */
html[data-theme="dark"] .highlight { background: #2b2b2b; color: #F8F8F2 }
html[data-theme="dark"] .highlight .c { color: #FFD900 } /* Comment */
html[data-theme="dark"] .highlight .n { color: #F8F8F2 } /* Name */
html[data-theme="dark"] .highlight .p { color: #FFD900 } /* Punctuation */
html[data-theme="dark"] .highlight .b { color: #F8F8F2; font-weight: bold } /* Bold */
"""


def test_code_keeps_every_colour():
    """Only what looks like all code in both themes loses its element."""
    plain = lighten.plain_tokens(PYGMENTS)
    assert plain == {"n"}
    assert lighten.plain_tokens("") == set()
    html = '<span class="n">x</span><span class="p">(</span><span class="nn">y</span>'
    lean = lighten.lighten_page(html, searches=False, plain=plain)
    assert lean == 'x<span class="p">(</span><span class="nn">y</span>'


def test_code_of_the_book_reads_the_same(book):
    """The book's style sheet has plain tokens; in its pages the rest still has a class of its own."""
    plain = lighten.plain_tokens((book / "_static" / "pygments.css").read_text("utf-8"))
    assert {"n", "p", "w"} <= plain
    assert not plain & {"k", "c1", "s2", "mi", "nf"}
    html = (book / "chapters" / "00_orientation.html").read_text(encoding="utf-8")
    assert '<span class="kn">import</span> sys' in html
    assert not re.search(f'<span class="(?:{"|".join(plain)})">', html)


def test_pictures_say_how_large_they_are(tmp_path):
    (tmp_path / "_images").mkdir()
    Image.new("RGB", (7, 5)).save(tmp_path / "_images" / "a.png")
    before = '<img alt="a" src="../_images/a.png" />'
    before += '<img src="_static/b.png"><img width="3" src="../_images/a.png">'
    (tmp_path / "chapters").mkdir()
    assert lighten.size_images(before, tmp_path / "chapters") == (
        '<img alt="a" src="../_images/a.png" width="7" height="5" />'
        '<img src="_static/b.png"><img width="3" src="../_images/a.png">'
    )
