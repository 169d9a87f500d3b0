"""What a page may run: its own scripts, known by their hashes, and nothing that somebody put into it."""

import base64
import hashlib
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import security
from moved import MOVED
from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "chapters/02_scoring_functions.html"
OWN = security.POLICY
PAGE = '<html><head>\n<meta charset="utf-8" />\n{}</head><body>{}</body></html>'


class Tags(HTMLParser):
    """The tags of a page in order, and the text of each script. A tree of a whole book takes far longer."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.scripts, self.is_script = [], [], False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.is_script = tag == "script"
        if self.is_script:
            self.scripts.append([dict(attributes), ""])

    def handle_data(self, data):
        if self.is_script:
            self.scripts[-1][1] += data

    def handle_endtag(self, tag):
        self.is_script = False


def read_policy(html):
    """The rules of a page's policy, by name, as a browser reads them."""
    metas = [attributes for tag, attributes in Tags(html.partition("<body")[0]).tags if tag == "meta"]
    [meta] = [meta for meta in metas if meta.get("http-equiv") == "Content-Security-Policy"]
    rules = (rule.split() for rule in meta["content"].split("; "))
    return {name: values for name, *values in rules}


def digest(script):
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def runs(script):
    return not script.get("src") and script.get("type", "module") in ("module", "text/javascript")


def test_every_page_has_its_policy_before_everything_else(book):
    pages = [path for path in book.rglob("*.html") if "_static" not in path.parts]
    assert len(pages) > 20
    for path in pages:
        html = path.read_text(encoding="utf-8")
        page = Tags(html)
        head = [tag for tag, _ in page.tags].index("head")
        (_, first), (_, second) = page.tags[head + 1 : head + 3]
        assert first.get("charset") == "utf-8", path
        assert second.get("http-equiv") == "Content-Security-Policy", path
        # Exactly the policy of the extension, with exactly the scripts of this page.
        hashes = sorted({digest(text) for attributes, text in page.scripts if runs(attributes)})
        assert len(hashes) > 5 or path.stem in {*MOVED, "404"}, path  # these have no scripts of the theme
        rules = {name: [*values.split(), *hashes * (name == "script-src")] for name, values in OWN.items()}
        assert read_policy(html) == rules, path
        # The page contains nothing that this policy forbids.
        handlers = [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        assert handlers == [], path
        links = [attributes.get("href") or "" for tag, attributes in page.tags if tag == "a"]
        assert [link for link in links if link.startswith("javascript:")] == []
        # Firefox would load the next page in advance, against the policy.
        assert ("link", "next") not in {(tag, attributes.get("rel")) for tag, attributes in page.tags}, path


def test_policy_names_each_script_that_runs_and_no_data():
    data = '<script type="application/json">{"a": 1}</script><script src="a.js"></script>'
    own = "<script>let a = 1;</script>", '<script type="module">let b = 2;</script>'
    html = security.secure(PAGE.format(own[0], data + own[1]))
    hashes = read_policy(html)["script-src"][4:]
    assert hashes == sorted([digest("let a = 1;"), digest("let b = 2;")])
    assert html.index("Content-Security-Policy") < html.index("<script>")


def test_policy_follows_the_page_and_is_written_once():
    html = security.secure(PAGE.format("<script>let a = 1;</script>", ""))
    assert security.secure(html) == html
    changed = security.secure(html.replace("let a = 1;", "let a = 2;"))
    assert read_policy(changed)["script-src"][4:] == [digest("let a = 2;")]


def test_code_of_the_theme_in_attributes_gets_a_name_and_other_code_is_an_error():
    html = security.secure(PAGE.format("", '<p title="onclick"><button onclick="window.print()" class="a">'))
    assert '<p title="onclick"><button data-action="print" class="a">' in html
    with pytest.raises(security.CodeInAttributeError, match=re.escape("'steal()' has no name")):
        security.secure(PAGE.format("", '<img src="x" onerror="steal()">'))
    # Text inside a script or a page's state is not an attribute.
    script = """<script>let text = '<b onclick="a()">';</script>"""
    assert script in security.secure(PAGE.format(script, ""))


INJECTED = {
    "script": "<script>window.injected = 'script'</script>",
    "module": '<script type="module">window.injected = "module"</script>',
    "attribute": '<img src="nothing.png" onerror="window.injected = 1" alt="">',
    "data address": '<script src="data:text/javascript,window.injected=1"></script>',
    "frame": '<iframe srcdoc="<script>parent.injected = 1</script>"></iframe>',
    "foreign script": '<script src="http://127.0.0.1:9/evil.js"></script>',
}


@pytest.fixture(scope="module")
def open_page(browser, book, serve, tmp_path_factory):
    """Open a page of a copy of the book, over HTTP or from disk, with more HTML below its title."""
    folder, pages = tmp_path_factory.mktemp("copy") / "html", []
    shutil.copytree(book, folder)
    root = serve(folder)
    before, title_end, after = (book / CHAPTER).read_text(encoding="utf-8").rpartition("</h1>")

    def make(injected="", over="http"):
        name = f"chapters/page{len(pages)}.html"
        (folder / name).write_text(f"{before}{title_end}{injected}{after}", encoding="utf-8")
        page = browser.new_page()
        pages.append(page)
        page.violations = []
        page.on("console", lambda m: "Content Security Policy" in m.text and page.violations.append(m.text))
        page.goto(f"{root}/{name}" if over == "http" else (folder / name).as_uri(), wait_until="load")
        expect(page.locator('.widget-host[data-widget="ready"]').first).to_be_attached()
        return page

    yield make
    for page in pages:
        page.close()


@pytest.mark.parametrize("over", ["http", "disk"])
def test_injected_scripts_do_not_run_and_those_of_the_page_do(open_page, over):
    page = open_page("".join(INJECTED.values()), over)
    assert page.evaluate("() => window.injected ?? null") is None
    assert len(page.violations) >= len(INJECTED) - 1, page.violations
    # The theme's own, in the page and in files.
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
    assert page.evaluate("() => DOCUMENTATION_OPTIONS.pagename") == CHAPTER.removesuffix(".html")


@pytest.mark.parametrize("kind", INJECTED)
def test_each_way_in_is_closed_and_would_be_open_without_the_policy(open_page, browser, kind):
    if kind in ("script", "module", "attribute", "data address", "frame"):
        bare = browser.new_page()
        bare.set_content(f"<p>{INJECTED[kind]}</p>", wait_until="load")
        expect(bare.locator("p").first).to_be_attached()
        assert bare.evaluate("() => window.injected ?? null") is not None
        bare.close()
    page = open_page(INJECTED[kind])
    assert page.evaluate("() => window.injected ?? null") is None
    assert page.violations


def test_what_a_script_puts_into_the_page_does_not_run(open_page):
    page = open_page()
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.injected = 1";
          document.body.append(script);
          const link = document.createElement("a");
          link.href = "javascript:window.injected = 2";
          document.body.append(link);
          link.click();
          const image = document.createElement("div");
          image.innerHTML = '<button id="trap" onclick="window.injected = 3">';
          document.body.append(image);
          document.getElementById("trap").click();
        }"""
    )
    assert page.evaluate("() => new Promise(done => setTimeout(() => done(window.injected ?? null)))") is None
    assert len(page.violations) == 3


def test_a_widget_may_compute_in_a_worker(open_page):
    page = open_page()
    answer = page.evaluate(
        """() => new Promise((done, fail) => {
          const url = URL.createObjectURL(new Blob(["postMessage(6 * 7)"], { type: "text/javascript" }));
          const worker = new Worker(url);
          worker.onmessage = ({ data }) => done(data);
          worker.onerror = () => fail(new Error("no worker"));
        })"""
    )
    assert answer == 42
    assert page.violations == []


def test_the_buttons_of_the_theme_work(open_page):
    page = open_page()
    page.evaluate("() => { window.print = () => { window.printed = true; }; }")
    page.locator('[data-action="print"]').evaluate("button => button.click()")
    assert page.evaluate("() => window.printed")
    page.locator('[data-action="full-screen"]').locator("visible=true").first.click()
    expect(page.locator(":root:fullscreen")).to_have_count(1)
    assert page.violations == []
