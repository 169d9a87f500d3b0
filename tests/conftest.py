"""What several test files share: shape annotations that are enforced, a browser, a web server, the book.

While the tests run, every function of mha_lib that names axes checks its arguments and results against them
(jaxtyping names the axes, beartype checks them), so that no annotation can be wrong. Not checked are

* blocks of `pytest.raises`: they expect the library's own errors, which a check would pre-empt; blocks that
  expect the error of a check are checked;
* tests marked `no_shape_checks`, for tools that trace the library's code, such as torch.compile;
* the library in other processes: in chapters, in copies with planted faults. Only the tests need beartype;
* anything except test_types.py if SHAPE_CHECKS=off: the checks take two thirds of the time, so `make test`
  leaves them to continuous integration and to `make weekly`;
* anything if SHAPE_CHECKS=none, with which the library is also imported in a third of the time.

This file also says which tests are slow: `make test` leaves them to `make test-all`, and this leaves the
slowest to `make weekly`, which runs all that are slow.
"""

import ast
import contextlib
import functools
import http.server
import os
import subprocess
import threading
from fnmatch import fnmatch
from pathlib import Path

import jaxtyping._import_hook
import pytest
from changed import has_its_turn, may_be_broken
from filelock import FileLock
from machine import browser as find_browser
from playwright.sync_api import expect, sync_playwright
from widget_page import Reader, write_page

AXES = ("Bool", "Float", "Int", "Integer", "Shaped")


class FunctionsThatNameAxes(jaxtyping._import_hook.JaxtypingTransformer):
    """Decorate what names axes, but not functions inside functions: that would break torch's graphs."""

    def visit_FunctionDef(self, node):  # noqa: N802, the name is ast's
        inside = any(isinstance(parent, ast.FunctionDef) for parent in self._parents)
        arguments = [*node.args.args, *node.args.kwonlyargs]
        given = [node.returns, *(argument.annotation for argument in arguments)]
        parts = [part for annotation in given if annotation for part in ast.walk(annotation)]
        names_axes = any(isinstance(part, ast.Name) and part.id in AXES for part in parts)
        return super().visit_FunctionDef(node) if names_axes and not inside else node


jaxtyping._import_hook.JaxtypingTransformer = FunctionsThatNameAxes
# An int is accepted where a float is expected, as everywhere in Python.
SHAPE_CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
# This must run before anything imports one of the packages.
if os.environ.get("SHAPE_CHECKS") != "none":
    jaxtyping.install_import_hook(["mha_lib", "attention_check", "mha_course"], SHAPE_CHECKER)

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# Milliseconds after which a test gives up on a browser: a safety net that even a busy machine does not need.
# With a planted fault, tests wait in vain, so they get less time.
PATIENCE = int(os.environ.get("PATIENCE", "300000"))
expect.set_options(timeout=PATIENCE)

# `make test` takes minutes: each behaviour of the library, the book in a browser, each widget once. It leaves
# to `make test-all` what else a change may break: axe, each choice of a question, stored models, what moves
# while a page starts, the set-up for Colab, ONNX, the published model, thousands of snippets in the page's
# Python, details of the widgets that it may break (changed.py).
# That leaves to `make weekly` tests of the same behaviour in more cases or other environments:
#
# * * these files: most planted faults, pictures, other browsers, another processor's arithmetic;
# * what is marked `slow` in a test of the library: inductor, further graphs of a compiler, many random
#   examples where a few represent them, training to the end.
#
# The longest tests come first; otherwise one worker would still run them when the others are done.
WEEKLY = ("pictures/*::*", "book/test_other_processor.py::*", "book/test_other_browsers.py::*",
          "book/test_paper.py::test_the_whole*", "book/test_for_teachers.py::*nbgrader*",
          "wild/test_wild.py::*", "wild/test_planted.py::*")  # fmt: skip
SLOW_FILES = (
    "faults/test_faults.py", "book/test_colab.py", "book/test_other_processor.py",
    "book/test_other_browsers.py", "book/test_accessibility.py", "book/test_stored_models.py",
    "book/test_paper.py", "pictures/*", "wild/test_wild.py", "wild/test_planted.py",
    "library/test_onnx.py", "library/test_other_libraries.py",
    "library/test_chat_model.py", "library/test_sentence_model.py", "library/test_in_page_differential.py",
    "widgets/*",
)  # fmt: skip
FAST = (
    "library/test_in_page_differential.py::test_the_*",
    "widgets/test_widgets.py::*",
    "widgets/test_every_widget.py::test_its_sample_is_of_its_class*",
    "widgets/test_every_widget.py::test_it_shows_the_numbers_of_torch*",
)


def is_slow(path, name=None):
    """Whether a test belongs to `make test-all` by its file; without a name, whether the whole file does."""
    place = path.relative_to(TESTS).as_posix()
    fast = [pattern.partition("::")[2] for pattern in FAST if pattern.startswith(f"{place}::")]
    if fast and (name is None or any(fnmatch(name, pattern) for pattern in fast)):
        return False
    return any(fnmatch(place, pattern) for pattern in SLOW_FILES)


def is_weekly(item):
    """Whether a slow test is left to `make weekly`."""
    place = item.path.relative_to(TESTS).as_posix()
    if place.startswith("widgets/"):
        case = getattr(item, "callspec", None)
        return not may_be_broken(item.path.stem, str(case.params.get("name", "")) if case else "")
    if item.path.stem == "test_faults":
        from runner import is_planted_for_each_push  # copies with a planted fault do not have this file

        case = getattr(item, "callspec", None)
        fault = case.params.get("fault")
        return fault is not None and not (is_planted_for_each_push(fault) and has_its_turn(fault.what))
    known = any(fnmatch(f"{place}::{item.name}", pattern) for pattern in WEEKLY)
    return known or (place.startswith("library/") and not is_slow(item.path, item.name))


def pytest_ignore_collect(collection_path, config):
    """Do not import files of which no test would run."""
    leave = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    return True if leave and TESTS in collection_path.parents and is_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what is slow by its file, and put the files that take longest first."""
    for item in items:
        if is_slow(item.path, item.name):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and is_weekly(item):
            item.add_marker(pytest.mark.weekly)
    widgets = [item for item in items if item.path.name == "test_every_widget.py"]
    whole = config.option.markexpr == "not slow" and len({item.originalname for item in widgets}) > 3
    if whole and all(item.get_closest_marker("slow") for item in widgets):
        raise pytest.UsageError("`make test` has no test of the widgets: see FAST in tests/conftest.py")
    places = [TESTS / pattern for pattern in SLOW_FILES]
    items.sort(key=lambda item: places.index(item.path) if item.path in places else len(places))


# No page may reach another machine: every name but the loopback address fails to resolve.
CUT_OFF = ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def readable_path_alone():
    """If MHA_LIB_READABLE is set, nothing replaces the readable path."""
    if os.environ.get("MHA_LIB_READABLE"):
        from mha_lib import _fast

        _fast.KERNEL, _fast.REUSE_FROM = False, 1 << 60


@contextlib.contextmanager
def no_shape_checks():
    """Switch the shape checks of mha_lib off while the block runs."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Switch the shape checks off where they would be in the way; the module's docstring says where."""
    raises = pytest.raises

    @contextlib.contextmanager
    def raises_of_the_library(*args, **kwargs):
        checked = jaxtyping.TypeCheckError in args
        off = contextlib.nullcontext() if checked else no_shape_checks()
        with off, raises(*args, **kwargs) as caught:
            yield caught

    marked = item.get_closest_marker("no_shape_checks") is not None
    marked |= os.environ.get("SHAPE_CHECKS") == "off" and item.path.name != "test_types.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest, "raises", raises_of_the_library)
        with no_shape_checks() if marked else contextlib.nullcontext():
            return (yield)


@pytest.fixture(scope="session")
def shape_checker():
    """The type checker that is passed to jaxtyping's import hook."""
    return SHAPE_CHECKER


def patient(make):
    """A function that makes a page or a context with `make`, and sets its timeouts to the common limit.

    No page gets its files from a service worker, except where a test asks for one.
    """

    def make_patient(**options):
        made = make(**{"service_workers": "block", **options})
        made.set_default_timeout(PATIENCE)
        return made

    return make_patient


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium without a network: the system's, or else the one that Playwright installed.

    One for each test file, closed after it: Playwright's event loop would disturb other tests in the process.
    """
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        # Debian's headless browser starts a page in a seventh of the time.
        browser = playwright.chromium.launch(executable_path=find_browser(), args=CUT_OFF + QUIET + sandbox)
        browser.new_context, browser.new_page = patient(browser.new_context), patient(browser.new_page)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serve():
    """A function that serves a folder over HTTP on a free port of this machine and returns the address."""
    servers = []

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    def start(folder):
        handler = functools.partial(Silent, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def address(serve, tmp_path_factory):
    """Where the folders of all tests are served."""
    return serve(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def math_page(request, browser, serve):
    """A page at the JavaScript module that a test file names as MATH."""
    page = browser.new_page()
    page.goto(f"{serve(ROOT / 'mha_course' / 'widgets')}/{request.module.MATH}")
    yield page
    page.close()


@pytest.fixture
def reader(browser, address):
    readers = []

    def make(over="http", width=900):
        readers.append(Reader(browser, address, over=over, width=width))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


@pytest.fixture
def show(reader, tmp_path):
    """A function that shows widgets on a page of their own: it returns the host, or a list of several.

    `host.page` is the page, and `script` runs in it before its own.
    """

    def show_widgets(*widgets, over="disk", width=900, script=None, **options):
        tab = reader(over, width=width)
        if script:
            tab.page.add_init_script(script)
        tab.open(write_page(tmp_path, list(widgets), **options), len(widgets))
        return tab.host() if len(widgets) == 1 else [tab.host(index) for index in range(len(widgets))]

    return show_widgets


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """The built book, the folder that holds index.html: brought up to date, with warnings as errors."""
    # One worker builds while the others wait; the folder of all workers is above that of each. The
    # environment is in use and must not be made again, however old it is.
    shared = tmp_path_factory.getbasetemp().parent
    with FileLock(shared / "book.lock"):
        if os.environ.get("BOOK_IS_BUILT") == str(ROOT):  # by the Makefile, just now
            return ROOT / "_build" / "html"
        built = shared / f"book-of-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
        if not built.exists():
            options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 600}
            done = subprocess.run(["make", "-o", ".venv/ready", "book"], **options)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
            built.touch()
    return ROOT / "_build" / "html"
