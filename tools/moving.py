"""The three pictures of the landing page that move when a reader points at them, recorded from the book.

    python tools/moving.py [write] [gpt] [heads]

`make cards` writes _static/moving/NAME.webp and NAME-dark.webp. Each is a column of frames, through which the
style sheet of the landing page steps: a piece is written and checked, a GPT writes, 270 heads read texts.
The last frame alone, NAME-still.webp, is what the page shows, and loads, until somebody points at it.
"""

import io
import sys

from PIL import Image
from playwright.sync_api import Page
from stills import open_browser
from stored_notebooks import ROOT

BOOK, FOLDER = ROOT / "_build" / "html", ROOT / "_static" / "moving"
SIZE = {"width": 640, "height": 400}  # of what is recorded; shown at about half of it
WIDTH, HEIGHT, FRAMES = 480, 300, 12
MARGIN = 12

ALONE = """.bd-header, .bd-header-article, .skip-link, .write-here-keys { display: none !important; }
.cell:has(.write-here) ~ * { visibility: hidden; }"""
SIGNATURE = "def my_pooling(query, key, value):\n"
WRONG = (
    "    scores = query @ key.T\n",
    "    weights = scores.softmax(-2)\n",
    "    return weights @ value, weights\n",
)


def open_at(page: Page, name: str, selector: str) -> None:
    """Open a page of the book at an element, with nothing above it, or below an editor."""
    page.goto((BOOK / "chapters" / f"{name}.html").as_uri())
    page.add_style_tag(content=ALONE)
    page.locator(".widget-host").first.scroll_into_view_if_needed()
    shown = page.locator(selector).first
    shown.wait_for(state="attached")
    shown.evaluate("it => it.closest('.cell').scrollIntoView()")  # there widgets start
    shown.wait_for()
    shown.evaluate("it => it.scrollIntoView()")
    page.wait_for_timeout(1000)


def frame(page: Page, selector: str) -> Image.Image:
    """What is seen of an element, from its upper left corner."""
    shown = page.locator(selector).first
    left, top = shown.evaluate(
        "it => (({ x, y }) => [x, y])(it.getBoundingClientRect())"
    )
    place = {"x": left - MARGIN, "y": max(0, top - MARGIN)}
    picture = page.screenshot(clip=place | SIZE)
    return Image.open(io.BytesIO(picture)).convert("RGB").resize((WIDTH, HEIGHT))


def written_here(page: Page) -> list[Image.Image]:
    """A piece is written line by line, the check names its mistake, and the corrected piece is accepted."""
    open_at(page, "01_attention_pooling", ".write-here-button[data-check]")
    page.locator(".write-here-button[data-check]").first.click()
    page.locator(".write-here .cm-content").first.wait_for()
    page.locator(".write-here").first.evaluate("it => it.scrollIntoView()")
    frames = []

    def write(text: str) -> None:
        page.locator(".write-here .cm-content").first.click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(text)
        frames.append(frame(page, ".write-here"))

    def check() -> None:
        page.locator(".write-here-main").first.click()
        page.locator(".write-here-right, .write-here-wrong").first.wait_for(
            timeout=60_000
        )
        page.wait_for_timeout(500)
        frames.extend([frame(page, ".write-here")] * 3)

    for lines in range(len(WRONG) + 1):
        write(SIGNATURE + "".join(WRONG[:lines]))
    check()
    write(SIGNATURE + "".join(WRONG).replace("-2", "-1"))
    check()
    return [*frames, frames[-1]]


def written_by_a_gpt(page: Page) -> list[Image.Image]:
    """The GPT of chapter 7 continues a prompt; the last frames hold what it has written."""
    shown = ".widget-host :has(> .mha-unseen-prompt)"
    open_at(page, "07_gpt", shown)
    frames = [frame(page, shown)]
    for _ in range(FRAMES - 1):
        for _ in range(4):
            page.get_by_role("button", name="Next character").first.click()
        page.wait_for_timeout(200)
        frames.append(frame(page, shown))
    return frames


def read_by_heads(page: Page) -> list[Image.Image]:
    """A head of the model of chapter 9, chosen among 270, reads the later tokens of a text one by one."""
    open_at(page, "09_a_model_people_use", ".mha-chat-panes")
    tokens = page.locator(".mha-chat-panes .mha-token-strip label")
    count = tokens.count()
    frames = []
    for token in range(count - FRAMES, count):
        tokens.nth(token).click()
        page.wait_for_timeout(200)
        frames.append(frame(page, ".mha-chat-panes"))
    return frames


RECORDED = {"write": written_here, "gpt": written_by_a_gpt, "heads": read_by_heads}


def main(names: list[str]) -> int:
    """Record these pictures, or all, light and dark."""
    FOLDER.mkdir(exist_ok=True)
    with open_browser() as browser:
        for name in names or RECORDED:
            for scheme, ending in (("light", ""), ("dark", "-dark")):
                window = {"width": 760, "height": 1400}
                page = browser.new_page(viewport=window, color_scheme=scheme)
                frames = RECORDED[name](page)
                page.close()
                column = Image.new("RGB", (WIDTH, HEIGHT * FRAMES))
                for number, picture in enumerate(frames):
                    column.paste(picture, (0, number * HEIGHT))
                for picture, kind in ((column, ""), (frames[-1], "-still")):
                    path = FOLDER / f"{name}{ending}{kind}.webp"
                    picture.save(path, quality=60, method=6)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
