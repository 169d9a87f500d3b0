"""Fixtures that several test files share: a headless browser, a web server, the book built once."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent

# No page may leave this machine: every name but the loopback address fails to resolve.
CUT_OFF = ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium without a network: Debian's, or else the one that Playwright installed.

    One for each test file, closed after it: Playwright's event loop would disturb other tests in the process.
    """
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=CUT_OFF + QUIET + sandbox
        )
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


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """The book's HTML, built from nothing with warnings as errors: the folder that holds index.html."""
    output = tmp_path_factory.mktemp("book")
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    done = subprocess.run(
        [jupyter_book, "build", ROOT, "--path-output", output, "-W", "--keep-going"],
        cwd=output,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return output / "_build" / "html"
