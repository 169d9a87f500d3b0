"""Make slides of the chapters' figures, widgets and questions, from the built book.

    python tools/slides.py BOOK FOLDER

FOLDER gets `slides.html`, one file that needs no other, and `slides.pdf`, which Chromium prints. A
chapter is a column of slides, as reveal.js calls it. What is on them stands in the chapters only, and the
speaker's notes are the chapter's own paragraphs around what a slide shows.
"""

import base64
import copy
import io
import sys
from itertools import dropwhile, takewhile
from pathlib import Path

import yaml
from bs4 import BeautifulSoup
from paper import open_browser
from PIL import Image, ImageStat
from set_repository import book_address, read_address

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REVEAL = ROOT / "node_modules" / "reveal.js" / "dist"
PAGE = """<!doctype html>
<html lang="en" data-theme="light"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><div class="reveal"><div class="slides">{slides}</div></div><script>{script}</script></body></html>
"""
TITLE = """<section class="title"><p>{book}</p><h1>{heading}</h1><a href="{address}">{place}</a>
<aside class="notes">{notes}</aside></section>
"""
SLIDE = """<section><h2>{heading}</h2><div class="fits">{content}</div>
<a href="{address}">{place}</a><aside class="notes">{notes}</aside></section>
"""
# What the speaker's notes take over from the chapter.
TEXT = ("p", "ul", "ol", "blockquote", "details")
# What a slide may show: nothing that is folded, and no links through the course.
SHOWN = ".cell_output > figure, .cell_output > img, .cell_output > .text_html, .cell_output > .widget-still"
NOT_SHOWN = "script, .headerlink, .widget-host, .section-number, mjx-math"


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
        halves = halves_of((path.parent / image["src"]).read_bytes())
        first, *more = [copy.copy(image) for _ in halves]
        for one, content in zip([first, *more], halves, strict=True):
            one["src"] = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            for name in ("loading", "width", "height"):
                del one[name]
        for one in more:
            one["alt"] = ""  # the first half is described as a whole
        image.replace_with(first, *more)
    return html


def halves_of(content):
    """Return a picture, or the halves of one that is much taller than wide, which a slide shows side by side.

    It is cut where a row is most like one colour, so that no line of text is cut.
    """
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    width, height = picture.size
    if height < 1.2 * width:
        return [content]
    gray = picture.convert("L")
    contrast = {
        row: ImageStat.Stat(gray.crop((0, row - 3, width, row + 3))).stddev[0]
        for row in range(int(0.42 * height), int(0.58 * height))
    }
    cut = min(contrast, key=lambda row: (contrast[row], abs(row - height / 2)))
    parts = []
    for box in ((0, 0, width, cut), (0, cut, width, height)):
        file = io.BytesIO()
        picture.crop(box).save(file, "PNG", optimize=True)
        parts.append(file.getvalue())
    return parts


def contents_of(shown):
    """Return the slides that an output fills: each question fills two, the second with the answer."""
    questions = shown.select(".text_html > ol > li")
    found = []
    for content in [one.decode_contents() for one in questions] or [str(shown)]:
        answered = content.replace(
            "<details><summary>Answer", "<details open><summary>Answer"
        )
        found += dict.fromkeys([content, answered])
    return found


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


def slides_of(html, address, book):
    """Return the slides of a page: its title, what one learns, then what it shows."""
    goals = html.blockquote.ul
    title, name = html.h1.decode_contents(), html.h1.text
    first = {"notes": notes_of(html.blockquote), "address": address, "place": name}
    slides = [TITLE.format(book=book, heading=title, **first)]
    slides.append(SLIDE.format(heading="You will learn", content=goals, **first))
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
    title = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    slides = [
        slides_of(read_page(book / name), f"{site}/{name}", title)
        for name in chapters()
    ]
    sheets = [REVEAL / "reset.css", REVEAL / "reveal.css", HERE / "slides.css"]
    sheets.append(book / "_static" / "typefaces.css")
    scripts = [REVEAL / "reveal.js", REVEAL / "plugin" / "notes.js", HERE / "slides.js"]
    style, script = (
        "\n".join(path.read_text("utf-8") for path in part)
        for part in (sheets, scripts)
    )
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
