"""Take the stills of widgets in a book in another language again, because the notebooks hold English ones.

    python tools/paper_stills.py BOOK

The pictures replace those of the built book, so paper, e-readers and pages without scripts show them. The
typefaces are the machine's, because those of `stills.py` have no Chinese characters.
"""

import io
import re
import sys
from pathlib import Path

from paper import ADDRESS, PATIENCE, open_browser
from PIL import Image
from stills import at_rest

# A page whose column is about as wide as the pages of which the English stills are taken.
SIZE = {"width": 820, "height": 2400}
HIDDEN = ".mha-python { display: none !important }"
HOST = 'xpath=preceding-sibling::div[contains(@class, "widget-host")][1]'


def open_page(browser, book):
    """Return a page at whose address the files of the book are."""
    # Without the page's policy, which would forbid HIDDEN.
    page = browser.new_page(viewport=SIZE, reduced_motion="reduce", bypass_csp=True)
    page.set_default_timeout(PATIENCE)

    def answer(route):
        path = book / route.request.url.removeprefix(ADDRESS).partition("?")[0]
        route.fulfill(**({"path": path} if path.is_file() else {"status": 404}))

    page.route("**/*", answer)
    return page


def retake(page, book, path):
    """Replace the pictures of the widgets of one page; return how many there are."""
    html = path.read_text(encoding="utf-8")
    page.goto(ADDRESS + path.relative_to(book).as_posix())
    page.add_style_tag(content=HIDDEN)
    stills = page.locator(".widget-still").filter(has=page.locator("img")).all()
    for still in stills:
        host = still.locator(HOST)
        host.scroll_into_view_if_needed()
        host.locator("xpath=self::*[@data-widget='ready']").wait_for()
        shot = at_rest(lambda host=host: host.screenshot(animations="disabled"))
        source = still.locator("img").get_attribute("src")
        (path.parent / source).write_bytes(shot)
        width, height = Image.open(io.BytesIO(shot)).size
        size = rf'\1 width="{width}" height="{height}"'
        html = re.sub(
            rf'(src="{re.escape(source)}") width="\d+" height="\d+"', size, html
        )
    path.write_text(html, encoding="utf-8")
    return len(stills)


def main(arguments):
    """Run from the command line."""
    [book] = map(Path, arguments)
    with open_browser() as browser:
        page = open_page(browser, book)
        pages = [
            path
            for path in book.rglob("*.html")
            if "widget-still" in path.read_text("utf-8")
        ]
        count = sum(retake(page, book, path) for path in pages)
    print(f"{book}: {count} stills of widgets taken again")


if __name__ == "__main__":
    main(sys.argv[1:])
