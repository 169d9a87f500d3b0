"""What is seen of a page before it is opened: in a search engine, and where its address is sent to somebody.

Each page has a description, its own address and a picture (`tools/cards.py` makes them). The site has a list
of its pages for search engines, and a page for addresses that do not exist. None of this loads anything, and
a book that was opened from disk does not use it.
"""

import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import quote

from docutils import nodes
from set_repository import book_address, read_address

SHORTEST, LONGEST = 50, 300  # characters of a description; search engines show fewer
FOLDERS = {"en": "", "zh-CN": "zh_CN/", "zh-TW": "zh_TW/"}  # of the published books
CARDS = Path(__file__).resolve().parent.parent / "_static" / "cards"

NOT_FOUND = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8" />
<meta name="viewport" content="width=device-width" /><meta name="robots" content="noindex" />
<title>This page does not exist · {book}</title>
<style>:root {{ color-scheme: light dark; }}
body {{ font: 1.1rem/1.6 system-ui, sans-serif; max-width: 38rem; margin: 2rem auto; padding: 0 1rem; }}
input, button {{ font: inherit; max-width: 100%; }}</style></head>
<body><main><h1>This page does not exist</h1>
<p>The address may have a typing error, or the page has another name now.
Search the book, or choose a page:</p>
<form action="{home}search.html" role="search"><label>Search for <input name="q" type="search" /></label>
<button>Search</button></form>
<ul>{links}</ul></main></body></html>
"""


def name_address(app, config):
    """Tell Sphinx where the book will be; each page then names its one canonical address."""
    own = FOLDERS[(config.language or "en").replace("_", "-")]
    config.html_baseurl = f"{book_address(read_address()[0])}/{own}"


def text_of(node):
    """The words of a node in one line, formulas as they are written."""
    return re.sub(r"\s+", " ", node.astext()).strip()


def describe(doctree):
    """What one learns on a page or, where it does not say so, its first sentences."""
    for quoted in doctree.findall(nodes.block_quote):
        items = [text_of(item).rstrip(";.") for item in quoted.findall(nodes.list_item)]
        if items and text_of(quoted).startswith("You will learn"):
            return fitting(items, "; ", "You will learn: ") + "."
    for paragraph in doctree.findall(nodes.paragraph):
        text = text_of(paragraph)
        if len(text) >= SHORTEST and not paragraph.parent.get("nb_element"):
            return fitting(re.split(r"(?<=[.!?]) ", text), " ")
    return ""


def fitting(parts, between, start=""):
    """As many whole parts as a description may have, but at least one."""
    text = start + parts[0]
    for part in parts[1:]:
        if len(text + between + part) >= LONGEST:
            break
        text += between + part
    return text


def card_of(pagename):
    """The picture of a page; the book's, if it has none of its own."""
    own = CARDS / f"{Path(pagename).name}.png"
    return own.name if own.is_file() else "index.png"


def tags_of(app, pagename, context, doctree):
    """What a page says of itself in its head."""
    home, book = app.config.html_baseurl, app.config.html_title or app.config.project
    is_home = pagename == app.config.root_doc
    title = book if is_home else unescape(re.sub(r"<[^>]*>", "", context["title"]))
    about = describe(doctree)
    said = {
        "og:type": "website" if is_home else "article",
        "og:site_name": book,
        "og:title": title,
        "og:description": about,
        "og:url": home + app.builder.get_target_uri(pagename),
        "og:image": f"{home}_static/cards/{quote(card_of(pagename))}",
        "og:image:width": "1200",
        "og:image:height": "630",
    }
    tags = [f'<meta name="description" content="{escape(about)}" />']
    tags += [
        f'<meta property="{name}" content="{escape(text)}" />'
        for name, text in said.items()
    ]
    tags.append('<meta name="twitter:card" content="summary_large_image" />')
    tags.append(
        f'<link rel="apple-touch-icon" href="{context["pathto"]("_static/icon.png", 1)}" />'
    )
    return "\n".join(tags)


def alternates(book, page):
    """The addresses of a page in all languages of the published site, for a sitemap."""
    return "".join(
        f'<xhtml:link rel="alternate" hreflang="{language}" href="{escape(book + folder + page)}" />'
        for language, folder in FOLDERS.items()
    )


def write_shared(app):
    """Write the list of pages, what robots may read, and the page for addresses that do not exist."""
    home, folder = app.config.html_baseurl, Path(app.outdir)
    pages = [app.config.root_doc, *app.env.toctree_includes[app.config.root_doc]]
    addresses = [home + app.builder.get_target_uri(page) for page in pages]
    book = home.removesuffix(f"{app.config.language}/")
    entries = "".join(
        f"<url><loc>{escape(address)}</loc>{alternates(book, address.removeprefix(home))}</url>\n"
        for address in addresses
    )
    sitemap = (
        '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" '
        'xmlns:xhtml="http://www.w3.org/1999/xhtml">'
    )
    (folder / "sitemap.xml").write_text(
        f"{sitemap}\n{entries}</urlset>\n", encoding="utf-8"
    )
    (folder / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {home}sitemap.xml\n", encoding="utf-8"
    )
    titles = [escape(app.env.titles[page].astext()) for page in pages]
    links = "".join(
        f'<li><a href="{escape(address)}">{title}</a></li>\n'
        for address, title in zip(addresses, titles, strict=True)
    )
    page = NOT_FOUND.format(book=escape(app.config.project), home=home, links=links)
    (folder / "404.html").write_text(page, encoding="utf-8")
