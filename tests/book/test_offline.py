"""An opened page opens without a network, a new build replaces it, and the book can be installed."""

import json
import re
import shutil

import offline
import pytest
from PIL import Image
from playwright.sync_api import expect

FIRST, SECOND, UNSEEN = (
    f"chapters/{name}.html" for name in ("01_attention_pooling", "glossary", "09_a_model_people_use")
)
# Resolves when the browser keeps a file and all that the page has loaded, in a store of another name.
KEPT = """async ([root, file, other]) => {
  const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
  const files = [root + file, ...loaded.filter((name) => name.startsWith(root))];
  for (;;) {
    for (const name of await caches.keys()) {
      const store = await caches.open(name);
      const found = await Promise.all(files.map((address) => store.match(address)));
      if (name !== other && found.every(Boolean)) return name;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}"""


@pytest.fixture
def served(book, tmp_path, serve):
    """A copy of the book that can be built anew, and where it is served."""
    heavy = shutil.ignore_patterns(
        "sentences-*", "translator-*", "chat-heads-*", "wheel", "colab", "_sources"
    )
    shutil.copytree(book, tmp_path / "course", ignore=heavy)
    return tmp_path / "course", f"{serve(tmp_path)}/course"


@pytest.fixture
def page(browser):
    """A page in a browser that may keep what it has loaded."""
    context = browser.new_context(service_workers="allow")
    yield context.new_page()
    context.close()


def kept(page, root, file, other=""):
    """Wait until the browser keeps a page of the book with its files; return the name of the store."""
    return page.evaluate(KEPT, [f"{root}/", file, other])


def starts(page):
    """The page's title and widgets are there, and equations and text have their own typefaces."""
    expect(page.locator("article h1")).to_be_visible()
    expect(page.locator(".widget-host[data-widget=ready]").first).to_be_attached()
    fonts = "() => [...document.fonts].filter((font) => font.status === 'loaded').map((font) => font.family)"
    assert {"Course Text", "MJXTEX"} <= {name.strip('"') for name in page.evaluate(fonts)}


def test_a_visited_page_opens_without_a_network_and_another_says_what_does(served, page):
    _, root = served
    page.goto(f"{root}/{FIRST}")
    kept(page, root, FIRST)
    page.goto(f"{root}/{SECOND}?highlight=head")
    kept(page, root, SECOND)
    page.context.set_offline(True)
    assert page.evaluate("fetch('nothing.json').then(() => true, () => false)") is False
    page.goto(f"{root}/{FIRST}")
    starts(page)
    page.reload()
    starts(page)
    page.goto(f"{root}/{UNSEEN}")
    expect(page.get_by_role("heading")).to_have_text("This page needs a network once")
    links = page.get_by_role("link")
    # A page that was looked at again, to see whether there is a new one, may stand last.
    hrefs = links.evaluate_all("links => links.map((link) => link.href)")
    assert sorted(hrefs) == sorted(f"{root}/{name}" for name in (FIRST, SECOND))
    links.nth(hrefs.index(f"{root}/{SECOND}")).click()
    expect(page.locator("article h1")).to_contain_text("Glossary")
    page.context.set_offline(False)
    page.goto(f"{root}/{UNSEEN}")
    expect(page.locator("article h1")).to_contain_text("A model people use")


def test_a_new_build_replaces_what_was_kept(served, page):
    folder, root = served
    for name in (FIRST, SECOND):
        page.goto(f"{root}/{name}")
        before = kept(page, root, name)
    for name in (FIRST, SECOND):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("</h1>", ", in a new build</h1>"), encoding="utf-8")
    worker = folder / offline.NAME
    text = worker.read_text(encoding="utf-8").replace(before, f"course-{offline.build_of(folder)}")
    worker.write_text(text, encoding="utf-8")
    page.goto(f"{root}/{SECOND}")  # the new page, at once
    expect(page.locator("article h1")).to_contain_text("in a new build")
    for name in (FIRST, SECOND):
        assert kept(page, root, name, before) == f"course-{offline.build_of(folder)}"
    page.context.set_offline(True)
    page.goto(f"{root}/{FIRST}")  # and the other one, which nobody has opened since
    expect(page.locator("article h1")).to_contain_text("in a new build")
    starts(page)
    names = "async () => { while ((await caches.keys()).length > 1); return caches.keys(); }"
    assert page.evaluate(names) == [f"course-{offline.build_of(folder)}"]


def test_the_book_can_be_installed(served, page):
    folder, root = served
    page.goto(f"{root}/{FIRST}")
    address = page.locator("link[rel=manifest]").get_attribute("href")
    assert address == f"{root}/{offline.MANIFEST}"
    page.context.new_cdp_session(page).send("Page.enable")
    found = page.context.new_cdp_session(page).send("Page.getAppManifest")
    assert found["errors"] == []
    manifest = json.loads(found["data"])
    assert (folder / manifest["start_url"]).is_file()
    [icon] = manifest["icons"]
    assert Image.open(folder / icon["src"]).size == (512, 512)
    errors = page.context.new_cdp_session(page).send("Page.getInstallabilityErrors")["installabilityErrors"]
    # Which browser it is decides whether it offers to install at all.
    assert {error["errorId"] for error in errors} <= {"in-incognito"}


def test_a_book_from_disk_has_no_service_worker_and_does_not_complain(book, page):
    complaints = []
    page.on(
        "console", lambda message: message.type in ("error", "warning") and complaints.append(message.text)
    )
    page.goto((book / FIRST).as_uri())
    starts(page)
    assert page.locator("link[rel=manifest]").count() == 0
    assert complaints == []


def test_a_build_has_its_own_name(tmp_path):
    (tmp_path / "a.html").write_text("a")
    (tmp_path / offline.NAME).write_text("first")
    name = offline.build_of(tmp_path)
    (tmp_path / offline.NAME).write_text("second")
    assert offline.build_of(tmp_path) == name
    (tmp_path / "a.html").write_text("b")
    assert offline.build_of(tmp_path) != name
    assert re.fullmatch(r"\w{16}", name)
