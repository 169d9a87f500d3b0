"""What people take from the book: the Markdown texts, slides, and a way to report a problem in a section."""

import re
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import slides
from as_markdown import text_of
from bs4 import BeautifulSoup
from feedback import HEADING
from playwright.sync_api import expect

from mha_lib import __version__

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
LISTED = re.compile(r"- \[[^\]]+\]\(([\w/]+\.md)\)")


def texts(book):
    return [*book.glob("*.md"), *book.glob("chapters/*.md")]


def test_a_text_has_all_that_is_visible_and_no_folded_code():
    code = '<div class="highlight-{}"><pre>{}</pre></div>'
    fold = '<details class="above-input"><summary><p>{}</p><p class="expanded">-</p></summary>{}</details>'
    html = r'<h1>A<a class="headerlink" href="#a">#</a></h1><p><span class="math">\(a_i*b*c\)</span></p>'
    html += r'<div class="math"><span class="eqno">(1)</span>\[x &lt; y\]</div>'
    html += fold.format("Show the set-up", code.format("python", "import os"))
    html += fold.format("Show solution", code.format("python", "def f():\n    pass\n\n\nf()"))
    html += code.format("myst-ansi", " 1 2") + '<div role="img" aria-label="Two maps."><svg>3</svg></div>'
    html += '<p><a href="b.html#c" title="B">b</a> <a href="https://e.org/c.html">c</a></p>'
    assert re.split(r"\n\n+", text_of(html).strip(), maxsplit=4) == [
        "# A", "$a_i*b*c$", "$$x < y$$", "**Show solution**",
        "```python\ndef f():\n    pass\n\n\nf()\n```\n\n```text\n 1 2\n```\n\nDiagram: Two maps.\n\n"
        "[b](b.md#c) [c](https://e.org/c.html)",
    ]  # fmt: skip


def test_every_page_is_a_text_that_llms_txt_lists(book):
    title, about, *parts = re.split(r"\n\n(?=>|##)", (book / "llms.txt").read_text("utf-8").strip())
    assert title.startswith("# ") and about.startswith("> ")
    assert [part.split("\n")[0] for part in parts][-2:] == ["## Chapters", "## Appendices"]
    lines = [line for part in parts for line in part.split("\n\n")[1].split("\n")]
    listed = [LISTED.fullmatch(line)[1] for line in lines]
    assert sorted(book / name for name in listed) == sorted(texts(book)) and len(listed) > 20
    for path in texts(book):
        html, text = path.with_suffix(".html").read_text("utf-8"), path.read_text("utf-8")
        link = f'<link rel="alternate" type="text/markdown" href="{path.name}" />'
        assert html.partition("</head>")[0].count(link) == 1
        assert text.count("**Answer**") == html.count("<summary>Answer</summary>"), path
        assert not re.search("model_id|widget-view|# On Colab this installs|<(?:div|span)", text), path
        for target in set(LINK.findall(CODE.sub("", text))):
            parts = urlsplit(target)
            if not parts.scheme and parts.path:
                assert (path.parent / unquote(parts.path)).exists(), (path, target)


def test_every_heading_reports_its_section_and_version(book):
    for path in texts(book):
        html = path.with_suffix(".html").read_text("utf-8")
        found = re.findall(r'<a class="headerlink feedback" href="([^"]*)"', html)
        assert len(found) == len(HEADING.findall(html)) > 0
        for (_, _, _, anchor), address in zip(HEADING.findall(html), found, strict=True):
            about = parse_qs(urlsplit(address.replace("&amp;", "&")).query)
            name = path.relative_to(book).with_suffix(".html")
            assert about["title"] == [f"Issue on page /{name}"]
            assert re.fullmatch(rf"Book {__version__}, section: .+ \({anchor}\)\n\n", about["body"][0])


def test_the_pencil_is_seen_when_asked_for_and_never_in_print(book, browser):
    page = browser.new_page()
    page.goto((book / "chapters" / "about.html").as_uri())
    heading = page.get_by_role("heading", name="Privacy")
    pencil = heading.get_by_role("link", name="Report a problem in this section")
    expect(pencil).to_have_css("opacity", "0")
    heading.hover()
    expect(pencil).to_have_css("opacity", "1")
    page.mouse.move(0, 0)
    pencil.focus()
    for key in ("Shift+Tab", "Tab"):
        page.keyboard.press(key)
    expect(pencil).to_have_css("opacity", "1")
    page.emulate_media(media="print")
    expect(pencil).to_be_hidden()
    phone = browser.new_page(has_touch=True, is_mobile=True, java_script_enabled=False)
    phone.goto((book / "chapters" / "about.html").as_uri())
    expect(phone.locator(".feedback").first).to_have_css("opacity", "1")


@pytest.fixture(scope="module")
def deck(book, browser, tmp_path_factory):
    """The slides, as HTML and as PDF."""
    deck = tmp_path_factory.mktemp("slides") / "slides.html"
    deck.write_text(slides.whole(book), encoding="utf-8")
    slides.print_slides(browser, deck, deck.with_suffix(".pdf"))
    return deck


def test_slides_show_each_figure_and_question_of_the_chapters_and_need_no_other_file(book, deck):
    html = deck.read_text("utf-8")
    assert not re.search(r'(?:src|<link[^>]* href)="(?!data:)', html.partition("<script>")[0])
    assert set(re.findall(r'<a [^>]*href="(\w+)', html)) == {"https"}
    for name in slides.chapters():
        page = slides.read_page(book / name)
        shown = [caption.decode_contents() for caption in page.select("figcaption .caption-text")]
        questions = page.select(".widget-still > .text_html > ol > li > p:first-child")
        shown += [f'<div class="fits">{question}' for question in questions]
        assert [text for text in shown if text not in html] == [], name
    pages = re.findall(rb"/Type /Page\b", deck.with_suffix(".pdf").read_bytes())
    titles = html.count('<section class="title">')
    assert titles == len(slides.chapters()) and html.count("<h2>") + titles == len(pages) > 150
    # Each question has a slide of its own, and the next one shows the answer too.
    folds = BeautifulSoup(html.partition("<script>")[0], "html.parser").select(".fits details")
    answers = [fold.has_attr("open") for fold in folds if fold.summary.text == "Answer"]
    assert sum(answers) * 2 == len(answers) > 100


def test_the_speaker_sees_what_the_chapter_says_and_the_answer_and_the_audience_does_not(deck, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(deck.as_uri())
    for notes in page.locator("aside.notes").all():
        assert notes.text_content().strip()
        expect(notes).to_be_hidden()
    question = page.locator("section", has=page.get_by_text("Answer")).last
    [answer] = question.locator("details p").all_text_contents()
    assert answer in question.locator("aside.notes").text_content()
    with page.expect_popup() as opened:
        page.keyboard.press("s")
    speaker = opened.value
    page.keyboard.press("ArrowRight")
    told = page.locator("section.present > section.present aside.notes").text_content()
    shown = speaker.locator(".speaker-controls-notes .value")
    expect(shown).to_contain_text(told.split("\n")[0])


def test_arrows_lead_through_slides_and_everything_fits(deck, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(deck.as_uri())
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("#/1$"))
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("#/1/3$"))
    too_large = page.evaluate(
        """() => Reveal.getSlides().map((slide) => {
          Reveal.slide(...Object.values(Reveal.getIndices(slide)).slice(0, 2));
          const { left, right, bottom } = slide.querySelector(".fits, h1").getBoundingClientRect();
          const isSmall = slide.querySelector(".fits:has(img)")?.style.zoom < 0.6;
          return left < 0 || right > 1280 || bottom > 700 || isSmall ? slide.innerText : "";
        }).filter(Boolean)"""
    )
    assert too_large == []
    page.goto(f"{deck.as_uri()}?print-pdf")
    expect(page.locator("section:has(> h2)").first).to_have_css("padding-left", "50px")
