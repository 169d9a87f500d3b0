"""The book to take along: what a reader sees in the PDF and the EPUB of a small book, and of the whole."""

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import paper
import pytest
from bs4 import BeautifulSoup
from PIL import Image
from pypdf import PdfReader

TRIED = "Tried: 7"
LINK = '<a href="{}">link</a>'
NAV = """<nav class="bd-links"><a href="#">Home</a><p class="caption">Chapters</p>
<a href="chapters/one.html">1. One</a><a href="chapters/two.html">2. Two</a></nav>"""
ARTICLE = '<article class="bd-article"><section id="top"><h1>{}</h1>{}</section></article>'
PICTURE = '<img src="../_images/still.png" alt="Bars" {}>'
ONE = f"""<p class="open-in-colab">Open in Colab</p><div class="way-and-caption"><p>chip</p></div>
{LINK.format("two.html#end")}
<div class="widget-still">{PICTURE.format("")}</div><section id="ex"><h2>Exercise</h2><div class="cell">
<pre>def mine(): ...</pre><button class="write-here-button" data-check>Write it here</button></div>
<div class="cell"><pre>check(mine)</pre><div class="cell_output">Not yet: nothing</div></div>
<details><summary>Hint 1</summary><p>Look twice.</p></details>
<details class="above-input"><summary><p class="collapsed">Show solution</p></summary>
<pre>return 42</pre></details><div class="cell"><button class="write-here-button">Try it</button></div>
<div class="cell"><div class="cell_output">{TRIED}</div></div>
<details class="above-input"><summary>Show source</summary><pre>plot()</pre></details></section>"""
ASKED = """<p style="height:745px"></p>
<div class="widget-still"><p>Count.</p></div><div class="widget-still"><ol>
<li>Why?<ul><li>choice 1<li>2<li>3<li>choice 4</ul><details><summary>Answer</summary>3</details></ol></div>"""
TWO = f"""{ASKED}<p id="end">The end. <mjx-container><mjx-math>x</mjx-math><mjx-assistive-mml><math
xmlns="http://www.w3.org/1998/Math/MathML"><mi>x</mi></math></mjx-assistive-mml></mjx-container></p>
{2 * '<svg viewBox="0 0 9 9"><marker id="tip"/><path d="M0 0h9" marker-end="url(#tip)"/></svg>'}"""
LEFT = ["Open in Colab", "Write it here", "Try it", "Show solution", "Show source", "Copy to clipboard",
        "Not yet: nothing", "chip"]  # fmt: skip


@pytest.fixture
def small(tmp_path):
    """A function that makes a book of three pages, two of them with this text."""

    def make(one=ONE, two=TWO):
        for name in ("chapters", "_images", "_static"):
            (tmp_path / name).mkdir(exist_ok=True)
        Image.new("RGB", (90, 60), "teal").save(tmp_path / "_images" / "still.png")
        (tmp_path / "_static" / "pygments.css").write_text(
            'html[data-theme="light"] .highlight .k { color: blue }'
        )
        pages = {"index": ("Home", ""), "chapters/one": ("1. One", one), "chapters/two": ("2. Two", two)}
        for name, page in pages.items():
            (tmp_path / f"{name}.html").write_text(NAV + ARTICLE.format(*page))
        return tmp_path

    return make


CHINESE = """<details><summary>提示 1</summary><p>再看一遍。</p></details><p><em>键</em>与 query</p>
<details class="above-input"><summary><p class="collapsed">显示参考解答</p></summary>
<pre>return 42  # 答案</pre></details>
<details class="above-input"><summary>显示代码</summary><pre>plot()</pre></details>"""


@pytest.fixture
def chinese(small):
    """A small book whose pages are in Chinese."""
    book = small(one=CHINESE, two="<p>值</p>")
    for path in book.rglob("*.html"):
        path.write_text(f'<!DOCTYPE html><html lang="zh-CN">{path.read_text("utf-8")}</html>', "utf-8")
    return book


def chinese_faults(pdf):
    """What keeps a reader from reading, searching or copying the Chinese of a PDF."""
    reader, chinese = PdfReader(pdf), 0
    if reader.root_object.get("/Lang") != "zh-CN":
        yield f"the language is {reader.root_object.get('/Lang')}"
    for number, page in enumerate(reader.pages, 1):
        for font in page["/Resources"].get("/Font", {}).values():
            if "/CharProcs" in font.get_object():  # letters made bold, which are drawings
                continue
            described = font.get_object().get("/DescendantFonts", [font])[0].get_object()["/FontDescriptor"]
            if not {"/FontFile", "/FontFile2", "/FontFile3"} & described.keys():
                yield f"a typeface on page {number} is not embedded"
        chinese += bool(re.search("[\u4e00-\u9fff]", page.extract_text()))
        if radicals := re.findall("[\u2e80-\u2fdf]", page.extract_text()):
            yield f"page {number} cannot be searched: {radicals}"
    if chinese < 0.7 * len(reader.pages):  # the others are code or docstrings
        yield f"only {chinese} of {len(reader.pages)} pages have Chinese"


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """A function that plants a fault in a copy of the scripts and styles."""

    def edit(name, old, new):
        for path in paper.HERE.glob("paper*.*"):
            text = path.read_text(encoding="utf-8")
            assert path.name != name or old in text
            (tmp_path / path.name).write_text(text.replace(old, new) if path.name == name else text, "utf-8")
        monkeypatch.setattr(paper, "HERE", tmp_path)

    return edit


def faults(pdf, book):
    """What a reader of the PDF would miss, or find and not be able to use."""
    reader = PdfReader(pdf)
    texts = [page.extract_text() for page in reader.pages]
    nav = BeautifulSoup((book / "index.html").read_text("utf-8"), "html.parser").select("nav.bd-links a")
    titles = [" ".join(link.get_text().split()) for link in nav]
    pages = [(book / link["href"].replace("#", "index.html")).read_text("utf-8") for link in nav]
    entries = [entry for entry in reader.outline if not isinstance(entry, list)]
    places = {entry.title: reader.get_destination_page_number(entry) + 1 for entry in entries}
    if list(places) != ["Contents", *titles, "Solutions and answers"]:
        yield f"the outline has {list(places)} instead of {titles}"
        return
    if not reader.pages[0].images and "chapters/03" not in str(nav):
        yield "the cover has no picture"
    contents = " ".join(texts[places["Contents"] - 1 : places[titles[0]] - 1])
    for title in places.keys() - {"Contents"}:
        if not re.search(rf"{re.escape(title)}\s*{places[title]}\b", contents):
            yield f"the contents do not say that {title} is on page {places[title]}"
    for number, page in enumerate(reader.pages, 1):
        targets = [note.get_object().get("/Dest", "") for note in page.get("/Annots", [])]
        if any(target and target not in reader.named_destinations for target in targets):
            yield f"a link on page {number} leads nowhere"
        if number > 1 and not re.search(rf"(?m)^{number}$", texts[number - 1]):
            yield f"page {number} has no number"
        if page.mediabox[2:] != pytest.approx([595, 842], abs=1):
            yield f"page {number} is not A4"
    last = places["Solutions and answers"] - 1
    stills = sum(
        bool(still.img) for still in BeautifulSoup("".join(pages), "html.parser").select(".widget-still")
    )
    moved = "".join(pages).count(">Show solution<")
    for pattern, part, least in (
        (r"Solution \d+ · page \d+", texts[:last], moved),
        (r"Solution \d+ · page \d+", texts[last:], moved),
        (r"Move it in the book:", texts, stills),
        (r"In the book:", texts, 1),
    ):
        if (found := len(re.findall(pattern, "".join(part)))) < least:
            yield f"{found} of {least} {pattern}"
    if any(("choice 1" in text) != ("choice 4" in text) for text in texts):
        yield "a question is broken"
    alone = re.findall(r"(?m)^.*$", "\n".join(texts))  # a sentence may name a button
    yield from (f"{word!r} is left" for word in LEFT if word in alone)
    if TRIED in "".join(pages) and TRIED not in alone:
        yield "the output below a cell to be tried is lost"


@pytest.mark.parametrize(("name", "old", "new", "said"), [
    ("paper.js", "", "", None),
    ("paper.js", "style, button, input", "style, input", "'Write it here' is left"),
    ("paper.js", ".cell_output", ".no_such", "'Not yet: nothing' is left"),
    ("paper.js", "way-and-caption", "no_such", "'chip' is left"),
    ("paper.js", "...coverPicture(pages),", "", "the cover has no picture"),
    ("paper.js", "[data-check]", ".write-here-button", "cell to be tried is lost"),
    ("paper.js", "SOLUTION.test(label) &&", "false &&", "0 of 1 Solution"),
    ("paper.js", '"Move it in the book: "', '""', "0 of 1 Move it"),
    ("paper.js", ': "In the book: "', ': ""', "0 of 1 In the book"),
    ("paper.css", ".widget-still li, ", "", "a question is broken"),
    ("paper.js", "numbers[place.dataset.page]", "7", "the contents do not say"),
    ("paper_pages.css", "counter(page)", '""', "has no number"),
    ("paper_pages.css", "ascent-override: 80%; descent-override: 23%;", "", "HomeHome"),
    ("paper_pages.css", "size: A4", "size: A5", "is not A4"),
])  # fmt: skip
def test_the_pdf_has_what_a_reader_needs_and_a_planted_fault_is_seen(small, edited, name, old, new, said):
    edited(name, old, new)
    paper.main([small(), small() / "book.pdf"])
    found = "\n".join(faults(small() / "book.pdf", small()))
    assert said in found if said else not found


@pytest.mark.parametrize(("one", "said"), [
    (f"<table><tr>{'<td>immovable</td>' * 40}</tr></table>", r"one: <table> “immovable.* a page has 642"),
    (PICTURE.format('style="height: 3000px; max-height: none"'), "one: <img> “” is higher than a page"),
    (ONE.replace("alt=", "style=max-width:9px alt="), "one: <img> “” would be too small to read"),
    (LINK.format("two.html#lost"), "#p-two--lost, which is nowhere"),
])  # fmt: skip
def test_what_does_not_fit_or_leads_nowhere_is_named_and_nothing_is_made(small, one, said):
    with pytest.raises((SystemExit, paper.Error), match=said):
        paper.main([small(one=one), small(one=one) / "book.pdf"])
    assert not (small() / "book.pdf").exists()


def test_the_epub_has_all_pages_with_mathml_pictures_and_links(small):
    paper.main([small(), small() / "book.epub"])
    with zipfile.ZipFile(small() / "book.epub") as file:
        names = file.namelist()
        texts = {name: file.read(name).decode() for name in names if name.endswith(".xhtml")}
        package = ElementTree.fromstring(file.read("book.opf"))
        cover = Image.open(file.open("cover.png"))
    assert names[0] == "mimetype"
    assert cover.height > cover.width > 1000 and len(cover.convert("RGB").getcolors(1 << 20)) > 20
    said = {one.get("property") or one.tag.partition("}")[2]: one.text for one in package[0]}
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", said["date"]) and "CC BY 4.0" in said["rights"]
    assert said["schema:accessibilityHazard"] == "none" and "MathML" in said["schema:accessibilitySummary"]
    assert [one.get("href") for one in package[1] if one.get("properties") == "cover-image"] == ["cover.png"]
    assert list(texts) == [f"{name}.xhtml" for name in "cover contents p-index p-one p-two solutions".split()]
    assert "<mi>x</mi>" in texts["p-two.xhtml"] and "mjx-" not in texts["p-two.xhtml"]
    assert "return 42" in texts["solutions.xhtml"] and "return 42" not in texts["p-one.xhtml"]
    for text in texts.values():
        ids = [element.get("id") for element in ElementTree.fromstring(text).iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        for target, place in re.findall(r'(?:href|src)="(?!https?:)([^"#]+)#?([^"]*)"', text):
            assert target in names and (not place or f'id="{place}"' in texts[target])


def test_a_chinese_book_is_chinese_on_paper(chinese):
    paper.main([chinese, chinese / "book.pdf"])
    assert [*chinese_faults(chinese / "book.pdf")] == []
    text = "\n".join(page.extract_text() for page in PdfReader(chinese / "book.pdf").pages)
    for said in ("多头注意力：可以运行的课程", "目录", "再看一遍。", "参考解答与答案", "/zh_CN"):
        assert said in text
    assert len(re.findall(r"参考解答 +1 · 第 +\d+ 页", text)) == 2
    assert "plot()" not in text
    paper.main([chinese, chinese / "book.epub"])
    with zipfile.ZipFile(chinese / "book.epub") as file:
        package, page = (file.read(name).decode() for name in ("book.opf", "p-one.xhtml"))
    assert "<dc:language>zh-CN</dc:language>" in package and "文字与图：CC BY 4.0" in package
    assert 'lang="zh-CN"' in page and "提示 1" in page and "return 42" not in page


def test_without_a_chinese_typeface_a_chinese_book_is_not_made(chinese, tmp_path, monkeypatch):
    (tmp_path / "no_fonts.conf").write_text("<fontconfig></fontconfig>")
    monkeypatch.setenv("FONTCONFIG_FILE", str(tmp_path / "no_fonts.conf"))
    with pytest.raises(
        SystemExit, match="No typeface here has Chinese characters. Debian: fonts-wqy-microhei."
    ):
        paper.main([chinese, chinese / "book.pdf"])
    assert not (chinese / "book.pdf").exists()


def test_an_epub_that_is_not_valid_is_not_made(small, edited):
    edited("paper.js", '"epub:type", "toc"', '"epub:type", "cover"')
    with pytest.raises(SystemExit, match="ERROR.*nav"):
        paper.main([small(), small() / "book.epub"])
    assert not (small() / "book.epub").exists()


def test_without_a_browser_it_says_so(small, monkeypatch):
    monkeypatch.setattr(paper.machine, "browser", lambda: "/no/such/browser")
    with pytest.raises(SystemExit, match=r"lacks:\n  needed: a browser, Chromium"):
        paper.main([small(), Path("book.pdf")])


def test_the_whole_book_is_whole_in_both(book, tmp_path):
    for name in ("book.pdf", "book.epub"):
        paper.main([book, tmp_path / name])
        assert (tmp_path / name).stat().st_size < 20e6
    assert list(faults(tmp_path / "book.pdf", book)) == []


# What overflows the sheet or scrolls, and what must be clicked: both are lost on paper.
TRIED_AND_GONE = """() => [...document.querySelectorAll(
    ".cell:has(> .write-here-button:not([data-check])) + .cell > .cell_output")]
    .filter(output => !output.checkVisibility()).map(output => output.textContent)"""
LOST = """() => [...document.querySelectorAll("article :not(mjx-container *, [aria-hidden])")].filter(
part => {
  const style = getComputedStyle(part), box = part.getBoundingClientRect();
  const cut = style.overflowX !== "visible" && part.scrollWidth > part.clientWidth + 1;
  const button = part.matches("button:not(.mha-line, .mha-cell, .mha-examples *)");
  return part.checkVisibility() && box.width > 1 && (box.right > innerWidth + 1 || cut || button);
}).map((part) => part.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("name", """index chapters/02_scoring_functions chapters/03_multi_head_attention
   chapters/07_gpt chapters/appendix_mask_rosetta chapters/appendix_framework_rosetta""".split())  # fmt: skip
def test_a_single_page_prints_whole_and_without_controls(browser, book, name):
    page = browser.new_page(viewport={"width": 718, "height": 1000})  # A4 without its margins
    page.emulate_media(media="print")
    page.goto((book / f"{name}.html").as_uri())
    page.wait_for_function("!document.querySelector('.widget-host:not([data-widget=ready])')")
    assert page.evaluate(LOST) == page.evaluate(TRIED_AND_GONE) == []
    page.close()
