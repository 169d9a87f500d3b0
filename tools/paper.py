"""Make one PDF or one EPUB of the built book, in the language of its pages.

    python tools/paper.py BOOK TARGET.pdf|TARGET.epub

Chromium gathers the pages (paper.js) and prints them, twice, because only the first print tells on which
pages the places are that the contents and the solutions name. The EPUB has the same text, its equations as
MathML. If epubcheck is installed, it checks the EPUB.
"""

import datetime
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from contextlib import contextmanager
from html import escape
from pathlib import Path

import machine
import matplotlib
import yaml
from playwright.sync_api import Error, sync_playwright
from set_repository import book_address, read_address
from texts import with_strings
from translate import interface

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TYPEFACES = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
ADDRESS = "http://book.test/"
WIDTH, HEIGHT = 642, 956  # the text on a page in pixels, by paper_pages.css
PATIENCE = 900_000  # milliseconds, as a safety net
EPUBCHECK = Path("/usr/share/java/epubcheck.jar")  # from Debian's package

SHEETS = "_static/pygments.css _static/equations.css paper.css paper_pages.css".split()
EMPTY = (
    '<!doctype html><html lang="LANGUAGE" data-theme="light"><meta charset="utf-8">'
    + "".join(f'<link rel="stylesheet" href="{sheet}">' for sheet in SHEETS)
)
CONTAINER = """<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
XHTML = """<!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml" lang="{}"><head><title>{}</title>
<link rel="stylesheet" href="paper.css"/></head><body>{}</body></html>"""
PACKAGE = """<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id"
xml:lang="{language}">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">{site}/{version}</dc:identifier>
<dc:title>{title}</dc:title><dc:creator>{author}</dc:creator><dc:language>{language}</dc:language>
<dc:date>{now:%Y-%m-%d}</dc:date><dc:rights>{rights}</dc:rights>
<meta property="dcterms:modified">{now:%Y-%m-%dT%H:%M:%SZ}</meta>{access}</metadata>
<manifest>{items}</manifest><spine>{spine}</spine></package>"""
RIGHTS = "Text and figures: CC BY 4.0 (creativecommons.org/licenses/by/4.0). Code: MIT."
# What e-readers and libraries are told about who can read the book, in the words of schema.org.
ACCESS = [
    ("accessMode", "textual"), ("accessMode", "visual"), ("accessModeSufficient", "textual"),
    ("accessibilityFeature", "alternativeText"), ("accessibilityFeature", "MathML"),
    ("accessibilityFeature", "structuralNavigation"), ("accessibilityFeature", "tableOfContents"),
    ("accessibilityHazard", "none"),
    ("accessibilitySummary", "Pictures have descriptions, and equations are MathML. Widgets are pictures "
     "or texts, which say where they move: in the book on the web."),
]  # fmt: skip
ITEM = '<item id="i{}" href="{}" media-type="{}" properties="{}"/>'
KINDS = {".xhtml": "application/xhtml+xml", ".css": "text/css", ".png": "image/png"}


def language_of(book):
    """Return the language of a book's pages, such as zh_CN."""
    start = (book / "index.html").read_text("utf-8")[:500]
    found = re.search(r'<html[^>]* lang="([\w-]+)"', start)
    return found[1].replace("-", "_") if found else "en"


def about_the_book(language="en"):
    """Return what the cover says: title, author, version and site; and the language, as browsers name it."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    about = {name: config[name] for name in ("title", "author")}
    about["title"] = interface(language).get(about["title"], about["title"])
    site = book_address(read_address()[0]) + f"/{language}" * (language != "en")
    about |= {"version": project["project"]["version"], "site": site}
    return about | {"language": language.replace("_", "-")}


@contextmanager
def open_browser():
    """Start Chromium; SystemExit says what this machine lacks."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        start = playwright.chromium.launch
        try:
            browser = start(executable_path=machine.browser(), args=sandbox)
        except Error:
            lacks = [("browser", "a browser, Chromium, which prints the pages")]
            lines = machine.report(lacks, machine.system())
            sys.exit("\n".join(["This machine lacks:", *lines]))
        yield browser
        browser.close()


def gather(browser, book):
    """Return a page that shows the whole book; Error names a link that leads nowhere."""
    size = {"width": WIDTH, "height": HEIGHT}
    page = browser.new_page(viewport=size, device_scale_factor=2)
    page.set_default_timeout(PATIENCE)
    page.emulate_media(media="print")

    def answer(route):
        name = route.request.url.removeprefix(ADDRESS)
        places = [folder / name for folder in (book, HERE, TYPEFACES)]
        found = [{"path": path} for path in places if path.is_file()]
        route.fulfill(**(found or [{"status": 404}])[0])

    page.route("**/*", answer)
    language = language_of(book)
    about = about_the_book(language)
    empty = {"body": EMPTY.replace("LANGUAGE", about["language"])}
    page.route(ADDRESS, lambda route: route.fulfill(**empty, content_type="text/html"))
    page.goto(ADDRESS)
    script = (HERE / "paper.js").read_text(encoding="utf-8")
    page.add_script_tag(content=with_strings(script, interface(language)))
    page.evaluate("about => makeBook(about)", about)
    return page


def print_pages(browser, book, numbers):
    """Return a PDF that names these pages, {place: number}; SystemExit says what is cut."""
    page = gather(browser, book)
    page.evaluate("numbers => numberPages(numbers)", numbers)
    if faults := page.evaluate("height => fitBook(height)", HEIGHT):
        sys.exit("\n".join(["This does not fit a page:", *faults]))
    last = bool(numbers)  # the outline comes from the tags, which take time
    options = {"prefer_css_page_size": True, "print_background": True}
    pdf = page.pdf(outline=last, tagged=last, **options)
    page.close()
    return pdf


def page_numbers(file):
    """Return the number of the page of each place to which a link leads."""
    page_of = {page.objgen: number for number, page in enumerate(file.pages, 1)}
    places = file.Root.Dests.items()
    return {name[1:]: page_of[place[0].objgen] for name, place in places}


def look_for_typefaces(language):
    """Say that no typeface here has Chinese characters; SystemExit if the whole book consists of them."""
    if shutil.which("fc-list"):
        command = ["fc-list", ":lang=zh"]
        if not subprocess.run(command, capture_output=True).stdout:
            missing = (
                "No typeface here has Chinese characters. Debian: fonts-wqy-microhei."
            )
            if language != "en":
                sys.exit(missing)
            print(missing)


def write_pdf(browser, book, target):
    """Print the book with its page numbers, and store it in a third of the size."""
    import pikepdf  # only the PDF needs it, and `make test` does not install it

    numbers = {}
    for _ in range(2):
        file = pikepdf.open(io.BytesIO(print_pages(browser, book, numbers)))
        before, numbers = numbers, page_numbers(file)
    if numbers != before:
        sys.exit("The numbers of the pages have moved the pages: see paper_pages.css.")
    file.docinfo["/Author"] = about_the_book()["author"]
    file.save(target, object_stream_mode=pikepdf.ObjectStreamMode.generate)


def write_epub(browser, book, target):
    """Store the pages, their pictures and their style as an EPUB, and check it."""
    page = gather(browser, book)
    cover = page.locator("#cover").screenshot()
    chapters = page.evaluate("() => filesForReaders()")
    language = language_of(book)
    about = {name: escape(text) for name, text in about_the_book(language).items()}
    files = {
        f"{one['name']}.xhtml": XHTML.format(
            about["language"], escape(one["title"]), one["text"]
        )
        for one in chapters
    }
    spine = [f'<itemref idref="i{number}"/>' for number in range(len(files))]
    pictures = sorted(set(re.findall(r'src="(_images/[^"]+)', "".join(files.values()))))
    colors = (book / "_static" / "pygments.css").read_text(encoding="utf-8")
    light = re.findall(r'(?m)^html\[data-theme="light"\] (.*)', colors)
    style = (HERE / "paper.css").read_text(encoding="utf-8")
    files["paper.css"] = "\n".join([style, *light])
    files |= {name: (book / name).read_bytes() for name in pictures}
    files["cover.png"] = cover
    items = []
    for number, (name, text) in enumerate(files.items()):
        marks = {"svg": "<svg", "mathml": "<math", "nav": 'epub:type="toc"'}
        has = [kind for kind in marks if name.endswith("xhtml") and marks[kind] in text]
        has += ["cover-image"] if name == "cover.png" else []
        kind = KINDS[Path(name).suffix]
        item = ITEM.format(number, name, kind, " ".join(has))
        items.append(item.replace(' properties=""', ""))
    known = interface(language)
    access = [
        f'<meta property="schema:{name}">{known.get(text, text)}</meta>'
        for name, text in ACCESS
    ]
    about |= {"items": "".join(items), "spine": "".join(spine)}
    about |= {"rights": known.get(RIGHTS, RIGHTS), "access": "".join(access)}
    package = PACKAGE.format(now=datetime.datetime.now(datetime.UTC), **about)
    files |= {"META-INF/container.xml": CONTAINER, "book.opf": package}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, text in files.items():
            file.writestr(name, text)
    if not EPUBCHECK.exists():
        print("epubcheck is not installed, so nothing has checked the EPUB.")
        return
    command = ["java", "-jar", EPUBCHECK, target, "--failonwarnings"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:] + done.stdout[-1000:])


def main(arguments):
    """Run from the command line."""
    book, target = map(Path, arguments)
    new = target.with_name(f"new-{target.name}")
    write = {".pdf": write_pdf, ".epub": write_epub}[target.suffix]
    look_for_typefaces(language_of(book))
    with open_browser() as browser:
        write(browser, book, new)
    new.replace(target)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
