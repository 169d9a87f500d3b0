"""Make slides of the chapters' figures, widgets and questions, from the built book.

    python tools/slides.py BOOK FOLDER

FOLDER gets `slides.html`, one file that needs no other, and `slides.pdf`, which Chromium prints. A
chapter is a column of slides, as reveal.js calls it. What is on them stands in the chapters only, and the
speaker's notes are the chapter's own paragraphs around what a slide shows.
"""

import base64
import sys
from itertools import dropwhile, takewhile
from pathlib import Path

import yaml
from bs4 import BeautifulSoup
from paper import open_browser
from set_repository import book_address, read_address

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REVEAL = ROOT / "node_modules" / "reveal.js" / "dist"
PAGE = """<!doctype html>
<html lang="en" data-theme="light"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><div class="reveal"><div class="slides">{slides}</div></div><script>{script}</script></body></html>
"""
SLIDE = """<section><h2>{heading}</h2><div class="fits">{content}</div>
<a href="{address}">{place}</a><aside class="notes">{notes}</aside></section>
"""
# What the speaker's notes take over from the chapter.
TEXT = ("p", "ul", "ol", "blockquote")
# What a slide may show: nothing that is folded, and no links through the course.
SHOWN = ".cell_output > figure, .cell_output > img, .cell_output > .text_html, .cell_output > .widget-still"
NOT_SHOWN = (
    "script, .headerlink, .widget-host, .section-number, .caption-number, mjx-math"
)


def chapters():
    """Return the pages of the chapters, in the order of the book."""
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    [part] = [part for part in parts if part["caption"] == "Chapters"]
    return [f"{chapter['file']}.html" for chapter in part["chapters"]]


def read_page(path):
    """Return the text of a page, whose pictures are in it and whose equations are MathML."""
    html = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").article
    for unwanted in html.select(NOT_SHOWN):
        unwanted.decompose()
    for link in html.select("a:not([href^=https])"):
        link.unwrap()
    for image in html.select("img"):
        data = base64.b64encode((path.parent / image["src"]).read_bytes()).decode()
        image["src"] = f"data:image/png;base64,{data}"
        del image["loading"]
    return html


def contents_of(shown):
    """Return the slides that an output fills: each of its questions fills one."""
    questions = shown.select(".text_html > ol > li")
    return [question.decode_contents() for question in questions] or [str(shown)]


def notes_of(block, content=""):
    """Return the answer of a question, and the chapter's text before and after the block that is shown."""

    def is_text(neighbour):
        return neighbour.name in TEXT

    def nearest(neighbours):
        return takewhile(is_text, dropwhile(lambda it: it.name == "div", neighbours))

    answers = BeautifulSoup(content, "html.parser").select("details")
    for summary in [answer.summary for answer in answers]:
        summary.decompose()
    before = reversed([*nearest(block.find_previous_siblings())])
    after = takewhile(is_text, block.find_next_siblings())
    told = [answer.decode_contents() for answer in answers]
    return "".join([*told, *map(str, before), *map(str, after)])


def slides_of(html, address):
    """Return the slides of a page: its title with what one learns, then what it shows."""
    goals = html.blockquote.ul
    title, name = html.h1.decode_contents(), html.h1.text
    first = {"notes": notes_of(html.blockquote), "address": address, "place": name}
    slides = [SLIDE.format(heading=title, content=goals, **first)]
    for shown in html.select(SHOWN):
        if shown.select_one(".way") or shown.find_parent("details"):
            continue
        section = shown.find_parent("section")
        heading = section.find(["h1", "h2", "h3", "h4"]).decode_contents()
        around = {"address": f"{address}#{section['id']}", "place": name}
        cell = shown.find_parent(class_="cell")
        for content in contents_of(shown):
            around["notes"] = notes_of(cell, content)
            slides.append(SLIDE.format(heading=heading, content=content, **around))
    return f"<section>{''.join(slides)}</section>"


def whole(book):
    """Return the slides of all chapters as one page."""
    site = book_address(read_address()[0])
    slides = [
        slides_of(read_page(book / name), f"{site}/{name}") for name in chapters()
    ]
    sheets = [REVEAL / "reset.css", REVEAL / "reveal.css", HERE / "slides.css"]
    scripts = [REVEAL / "reveal.js", REVEAL / "plugin" / "notes.js", HERE / "slides.js"]
    style, script = (
        "\n".join(path.read_text("utf-8") for path in part)
        for part in (sheets, scripts)
    )
    title = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    return PAGE.format(
        title=f"{title}: slides", style=style, script=script, slides="".join(slides)
    )


def print_slides(chromium, page, pdf):
    """Print one slide on each page of a PDF."""
    tab = chromium.new_page()
    tab.goto(f"{page.as_uri()}?print-pdf")
    tab.locator("html[data-fits]").wait_for()
    options = {"prefer_css_page_size": True, "print_background": True}
    tab.pdf(path=pdf, outline=True, tagged=True, **options)
    tab.close()


def main(book, folder):
    """Run from the command line."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder.resolve() / "slides.html"
    page.write_text(whole(book), encoding="utf-8")
    with open_browser() as chromium:
        print_slides(chromium, page, page.with_suffix(".pdf"))
    print(f"The slides are {folder}/slides.html and {folder}/slides.pdf.")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
