"""The picture that is shown where the address of a page is sent to somebody: a figure and the title.

    python tools/cards.py [PAGE ...]

`make cards` writes _static/cards/NAME.png, 1200 × 630, from the stored outputs, for each page with a figure;
other pages have the book's. The site's icon for home screens is made in the same way.
"""

import base64
import io
import re
import sys
from html import escape
from pathlib import Path

import nbformat
from drawings import as_images, put_back
from PIL import Image
from stills import open_browser

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "_static"
CARDS = STATIC / "cards"
SIZE = {"width": 1200, "height": 630}
COLORS = 64  # a card is a drawing, so few colours do
CHAPTER = re.compile(r"^(\d\d)_")

# Page: the cell whose output tells most of it, where that is not the first figure; None where no figure can
# be read at this size.
FIGURES = {
    "01_attention_pooling": "cell-20",
    "02_scoring_functions": "cell-47",
    "04_self_attention": "a3902804",
    "05_positional_encoding": "cell-26",
    "06_transformer": "beam-steps",
    "07_gpt": "curve",
    "08_what_heads_learn": "map-figure",
    "appendix_mask_rosetta": "a008",
    "appendix_measurements": None,
    "appendix_training_and_controls": "c083",
    "appendix_efficiency": "cache-figure",
    "appendix_bug_zoo": "zoo-live",
}

CARD = """<!doctype html><meta charset="utf-8"><style>
* {{ box-sizing: border-box; }}
body {{ margin: 0; width: 1200px; height: 630px; padding: 40px 56px; background: #fff; color: #111;
  font-family: system-ui, "DejaVu Sans", sans-serif; display: flex; flex-direction: column; }}
small {{ font-size: 26px; color: #555; }}
h1 {{ font-size: 54px; line-height: 1.15; margin: 4px 0 20px; }}
main {{ flex: 1; min-height: 0; display: flex; align-items: center; justify-content: center; }}
img {{ width: 100% !important; height: 100% !important; max-width: none !important; object-fit: contain; }}
</style><body><small>{above}</small><h1>{title}</h1><main>{figure}</main>"""


def figures_of(notebook):
    """Each cell's name and the HTML of its figure, if it has one."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        put_back(outputs)
        for output in outputs:
            data = output.get("data", {})
            html = "".join(data.get("text/html", ""))
            if "image/png" in data:
                yield (
                    cell.id,
                    f'<img src="data:image/png;base64,{"".join(data["image/png"]).strip()}">',
                )
                break
            if drawing := re.search(r"<svg\b.*?</svg>", html, re.DOTALL):
                yield cell.id, as_images(drawing[0])
                break


def title_of(notebook):
    """The title of a page, which is the heading of its first cell that has one."""
    text = "\n".join(
        cell.source for cell in notebook.cells if cell.cell_type == "markdown"
    )
    return (
        re.search(r"^# (.+)$", text, re.MULTILINE)[1].replace("*", "").replace("`", "")
    )


def card_html(path, notebook, book):
    """The card of a page as HTML; None if the page has no figure for it."""
    figures = dict(figures_of(notebook))
    chosen = FIGURES.get(path.stem, next(iter(figures), None))
    if chosen is None:
        return None
    number = CHAPTER.match(path.stem)
    above = f"{book} · Chapter {int(number[1])}" if number else book
    title = title_of(notebook)
    return CARD.format(
        above=escape(above if path.stem != "index" else ""),
        title=escape(title),
        figure=figures[chosen],
    )


def write_cards(paths):
    """Draw the cards of pages, and the icon."""
    CARDS.mkdir(exist_ok=True)
    book = re.search(
        r"^title: (.+)$", (ROOT / "_config.yml").read_text("utf-8"), re.MULTILINE
    )[1]
    with open_browser() as browser:
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        for path in paths:
            html = card_html(path, nbformat.read(path, as_version=4), book)
            if html is None:
                continue
            page.set_content(html)
            few = (
                Image.open(io.BytesIO(page.screenshot()))
                .convert("RGB")
                .quantize(COLORS)
            )
            few.save(CARDS / f"{path.stem}.png", optimize=True)
        icon = base64.b64encode((STATIC / "favicon.svg").read_bytes()).decode("ascii")
        page.set_viewport_size({"width": 512, "height": 512})
        page.set_content(
            f'<body style="margin:0;background:#fff"><img width="512" src="data:image/svg+xml;base64,{icon}">'
        )
        page.screenshot(path=STATIC / "icon.png")


def main(arguments):
    """Run from the command line."""
    every = [ROOT / "index.ipynb", *sorted(ROOT.glob("chapters/*.ipynb"))]
    write_cards([path for path in every if not arguments or path.stem in arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
