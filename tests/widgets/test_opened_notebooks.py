"""A chapter that is opened in JupyterLab and not trusted, as after a download: it can be read."""

import shutil

import nbformat
import pytest
from bs4 import BeautifulSoup
from changed import changed_files
from drawings import IMAGE, NOTE, STILL, WIDGET_VIEW
from lab import open_jupyterlab
from playwright.sync_api import expect
from stored_notebooks import ROOT, notebooks

FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
# Every cell is in the document at once, and nothing runs.
TRACKER = {"windowingMode": "none", "autoStartDefaultKernel": False}


def drawings_of(notebook):
    return [html for cell in notebook.cells for html in html_of(cell) if IMAGE.search(html)]


def stills_of(notebook):
    return [html for cell in notebook.cells for html in html_of(cell) if STILL.fullmatch(html)]


def views_of(notebook):
    return [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if WIDGET_VIEW in output.get("data", {})
    ]


def html_of(cell):
    return [output.get("data", {}).get("text/html", "") for output in cell.get("outputs", [])]


READ = {path.name: nbformat.read(path, as_version=4) for path in notebooks()}
SIZES = "images => images.map((image) => [image.complete && image.naturalWidth > 0, image.clientWidth])"


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory):
    home = tmp_path_factory.mktemp("opened")
    for path in notebooks():
        shutil.copy(path, home)
    with open_jupyterlab(home, {"notebook-extension/tracker": TRACKER}) as address:
        yield address


@pytest.fixture
def opened(browser, jupyterlab):
    page = browser.new_page(viewport={"width": 1280, "height": 900})

    def open_notebook(name):
        page.goto(f"{jupyterlab(name)}&reset")
        expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(len(READ[name].cells))
        return page

    yield open_notebook
    page.close()


def params():
    """All notebooks as cases: those that changed, and three with every kind of output; weekly, the others."""
    often, changed = {"index", "03_multi_head_attention", "appendix_bug_zoo"}, changed_files()
    for path in notebooks():
        always = path.stem in often or path.relative_to(ROOT).as_posix() in changed
        yield pytest.param(path.name, marks=[] if always else pytest.mark.weekly)


@pytest.mark.parametrize("name", list(params()))
def test_a_notebook_that_is_not_trusted_shows_pictures_and_no_answers(opened, name):
    page = opened(name)
    for index, cell in enumerate(READ[name].cells):
        if FOLDED & set(cell.metadata.get("tags", [])):
            code = page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".cm-content:visible")
            expect(code).to_have_count(0)
    stills = page.locator(f".jp-RenderedHTML img[alt^='{NOTE}']")
    expect(stills).to_have_count(len(stills_of(READ[name])))
    assert all(drawn and width > 100 for drawn, width in stills.evaluate_all(SIZES))
    shown = page.locator(".jp-RenderedHTML:has(img[src^='data:image/svg+xml;base64'])")
    stored = drawings_of(READ[name])
    expect(shown).to_have_count(len(stored))
    for output, html in zip(shown.all(), stored, strict=True):
        images = output.locator("img")
        expect(images).to_have_count(len(IMAGE.findall(html)))
        sizes = images.evaluate_all(SIZES)
        assert all(drawn and 20 < width <= 900 for drawn, width in sizes), sizes
        # Its words are those of the text around the drawings: no words of a drawing run together.
        around = BeautifulSoup(html, "html.parser")
        for style in around.find_all("style"):
            style.decompose()
        assert output.inner_text().split() == around.get_text(" ").split()


@pytest.fixture(scope="module")
def with_kernels(tmp_path_factory):
    """A folder with all pages, and JupyterLab with the server settings that `make book` has made."""
    home = tmp_path_factory.mktemp("saved")
    for path in notebooks():
        shutil.copy(path, home)
    with open_jupyterlab(home, {"notebook-extension/tracker": {"windowingMode": "none"}}) as address:
        yield home, address


def runs():
    """All pages as cases: the landing page and chapter 1, and those that changed; weekly, the others."""
    often, changed = {"index", "01_attention_pooling"}, changed_files()
    for path in notebooks():
        always = path.stem in often or path.relative_to(ROOT).as_posix() in changed
        yield pytest.param(path.name, marks=[] if always else pytest.mark.weekly)


def wait_for_the_kernel(page, seconds):
    """Wait until the kernel has had nothing to do for two seconds: between two cells, it has for a moment."""
    quiet = 0
    for _ in range(4 * seconds):
        idle = "(ipykernel) | Idle" in page.locator("#jp-main-statusbar").inner_text()
        quiet = quiet + 1 if idle else 0
        if quiet == 8:
            return
        page.wait_for_timeout(250)
    raise AssertionError(f"the page still runs after {seconds} s")


def compared(path):
    """A stored notebook without what training printed, which nbval does not compare either."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "nbval-ignore-output" in cell.metadata.get("tags", []):
            cell.outputs = []
    return notebook


@pytest.mark.parametrize("name", list(runs()))
def test_a_notebook_that_was_run_and_saved_is_as_it_was_stored(browser, with_kernels, name):
    """Opened again, it shows every picture, and no error in place of a widget."""
    home, address = with_kernels
    path, address = home / name, f"{address(name)}&reset"
    stored, bytes_stored, opened = compared(path), path.read_bytes(), path.stat().st_mtime_ns
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    expect(page.locator("#jp-main-statusbar")).to_contain_text("(ipykernel) | Idle")
    # When the kernel has told its language and its widgets, what was merely opened is not marked as changed.
    page.wait_for_timeout(1500)
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)
    page.locator(".lm-MenuBar-item").filter(has_text="Run").click()
    page.locator(".lm-Menu-item").filter(has_text="Run All Cells").first.click()
    wait_for_the_kernel(page, seconds=600)
    expect(page.locator(".mha-widget")).to_have_count(len(views_of(READ[name])))
    page.keyboard.press("Control+s")
    while path.stat().st_mtime_ns == opened:
        page.wait_for_timeout(100)
    expect(page.locator(".jp-Document .jp-mod-dirty, .jp-mod-dirty")).to_have_count(0)
    assert compared(path) == stored
    trains = stored != READ[name]
    assert trains or path.read_bytes() == bytes_stored

    page.goto(address)
    stills = page.locator(f".jp-RenderedHTML img[alt^='{NOTE}']")
    expect(stills).to_have_count(len(stills_of(READ[name])))
    expect(page.get_by_text("Error displaying widget")).to_have_count(0)
    page.close()
