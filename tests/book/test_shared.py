"""What search engines see of the book, and those to whom the address of a page is sent."""

import re
import xml.etree.ElementTree as ElementTree
from html import unescape
from pathlib import Path

import pytest
from PIL import Image
from set_repository import book_address, read_address

ROOT = Path(__file__).resolve().parents[2]
HOME = f"{book_address(read_address()[0])}/"
CHAPTERS = re.findall(r"^ +- file: (\S+)$", (ROOT / "_toc.yml").read_text("utf-8"), re.MULTILINE)
PAGES = ["index", *CHAPTERS]


def said(book, page):
    """What the head of a page says: the contents of its tags, by their names."""
    html = (book / f"{page}.html").read_text(encoding="utf-8").partition("</head>")[0]
    tags = re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"', html)
    found = {name: unescape(content) for name, content in tags}
    found["canonical"] = re.search(r'<link rel="canonical" href="([^"]*)"', html)[1]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_a_description_its_one_address_and_a_picture(book, page):
    head = said(book, page)
    assert 50 <= len(head["description"]) <= 330, head["description"]
    assert head["og:description"] == head["description"]
    assert head["og:url"] == head["canonical"] == f"{HOME}{page}.html"
    assert head["og:title"] and "<" not in head["og:title"]
    assert head["og:image"].startswith(HOME)
    picture = Image.open(book / head["og:image"].removeprefix(HOME))
    assert picture.size == (int(head["og:image:width"]), int(head["og:image:height"])) == (1200, 630)
    assert head["twitter:card"] == "summary_large_image"


def test_no_two_pages_describe_themselves_in_the_same_words(book):
    descriptions = [said(book, page)["description"] for page in PAGES]
    assert len(set(descriptions)) == len(PAGES)


def test_every_chapter_of_the_path_has_a_picture_of_its_own(book):
    chapters = [page for page in CHAPTERS if re.match(r"chapters/0[1-9]_", page)]
    assert len(chapters) == 9
    for page in chapters:
        assert said(book, page)["og:image"].endswith(f"/{Path(page).name}.png")


def test_search_engines_get_a_list_of_exactly_the_pages(book):
    listed = ElementTree.parse(book / "sitemap.xml").iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")
    assert sorted(entry.text for entry in listed) == sorted(f"{HOME}{page}.html" for page in PAGES)
    others = ElementTree.parse(book / "sitemap.xml").iter("{http://www.w3.org/1999/xhtml}link")
    chinese = [one.get("href") for one in others if one.get("hreflang") == "zh-CN"]
    assert sorted(chinese) == sorted(f"{HOME}zh_CN/{page}.html" for page in PAGES)
    assert f"Sitemap: {HOME}sitemap.xml" in (book / "robots.txt").read_text(encoding="utf-8")


def test_an_address_that_does_not_exist_offers_a_search_and_every_page(book, browser):
    page = browser.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto((book / "404.html").as_uri())
    assert page.get_by_role("heading").inner_text() == "This page does not exist"
    links = page.get_by_role("link").evaluate_all("links => links.map((link) => link.href)")
    assert links == [f"{HOME}{name}.html" for name in PAGES]
    # GitHub Pages serves this page at any address, so it must not use one that is relative to its own.
    assert page.locator("form").get_attribute("action") == f"{HOME}search.html"
    assert (book / "search.html").is_file()
    assert page.locator("link, script[src], img").count() == 0
    assert complaints == []
    page.close()
