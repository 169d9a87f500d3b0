"""Pictures in stored outputs: images that every front end shows, put back where the book is built.

    python tools/drawings.py [NOTEBOOK ...]

JupyterLab and GitHub remove inline graphics from a notebook that they do not trust, and leave their words in
one line. An image is shown everywhere, but it follows neither a page's colours nor its fonts. A picture that
stands in for a widget until its cell has run says so there; in the built page, the widget is live.
`make notebooks` stores such images; this script does so without a run.
"""

import base64
import re
import sys
from html import escape, unescape
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import nbformat
from PIL import Image
from stored_notebooks import notebooks

INLINE = re.compile(r"<svg\b([^>]*)>(.*?)</svg>", re.DOTALL)
IMAGE = re.compile(r'<img [^>]*src="data:image/svg\+xml;base64,([^"]*)"[^>]*>')
# An image is a document of its own. Its ground has the same scheme as its text, which is readable even where
# the scheme is not that of the page around it.
DOCUMENT = (
    ' xmlns="http://www.w3.org/2000/svg"',
    "<style>svg{color:#111;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#eee;background:#111}}</style>",
)

# What a drawing says, in its labels and to those who cannot see it. Spans stand between drawings of a row.
LABEL = re.compile(r"(<(text|span)\b[^>]*>)(.*?)(?=</\2>)", re.DOTALL)
# The texts of a card: its title in bold, and what is below it.
CARD = re.compile(r"((?:</div>|<(?:div|li|p)\b[^>]*>))([^<]+)(?=<)")
DESCRIPTION = re.compile(r'(\baria-label=")([^"]*)(?=")')

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
STILL = re.compile(
    r'<img [^>]*src="data:image/svg\+xml,[^"]*data:image/png;base64,([\w+/=]*)[^"]*">'
)
NOTE = "This is a picture. Run this cell to use it."
# In dark mode, light and dark change places, and colours stay.
WRAPPED = """\
<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{whole}' viewBox='0 0 {width} {whole}'>
<style>svg{{color:#111;background:#fff}}@media(prefers-color-scheme:dark){{svg{{color:#eee;background:#111}}
image{{filter:invert(.93) hue-rotate(180deg)}}}}</style>
<rect width='100%' height='30' rx='4' fill='currentColor' fill-opacity='.14'/>
<path d='M10 9v12l10-6z' fill='currentColor'/>
<text x='28' y='20' fill='currentColor' font-family='system-ui, sans-serif' font-size='14'>{note}</text>
<image y='36' width='{width}' height='{height}' href='data:image/png;base64,{png}'/></svg>"""


def as_images(html):
    """Return HTML with an image in place of each inline graphic; images stay as they are."""

    def image(match):
        namespace, colors = DOCUMENT
        whole = f"<svg{namespace}{match[1]}>{colors}{match[2]}</svg>"
        data = base64.b64encode(whole.encode()).decode("ascii")
        said = dict(re.findall(r'([\w-]+)="([^"]*)"', match[1]))
        shown = {"alt": said.get("aria-label", "")}
        shown |= {
            name: said[name] for name in ("width", "height", "style") if name in said
        }
        # Where style sheets are removed, the image would fill its line.
        if most := re.search(r"max-width:(\d+)px", said.get("style", "")):
            shown["width"] = most[1]
        attributes = " ".join(f'{name}="{value}"' for name, value in shown.items())
        return f'<img {attributes} src="data:image/svg+xml;base64,{data}">'

    return INLINE.sub(image, html)


def inline(html):
    """Return HTML with each inline graphic that `as_images` has replaced."""

    def graphic(match):
        whole = base64.b64decode(match[1]).decode()
        for addition in DOCUMENT:
            whole = whole.replace(addition, "", 1)
        return whole

    return IMAGE.sub(graphic, html)


def labels(html):
    """Return what the drawings and cards in HTML say; there is nothing to translate in other HTML."""
    html = inline(html)
    if 'class="cards' in html:
        return [found[2] for found in CARD.finditer(html)]
    if not INLINE.search(html):
        return []
    said = [unescape(found[2]) for found in DESCRIPTION.finditer(html)]
    return [found[3] for found in LABEL.finditer(html)] + said


def with_labels(html, known):
    """Return HTML whose inline graphics or cards say what `known` has in place of their words."""
    if 'class="cards' in html:
        return CARD.sub(lambda found: found[1] + known.get(found[2], found[2]), html)
    if not INLINE.search(html):
        return html

    def description(found):
        words = unescape(found[2])
        return found[1] + escape(known.get(words, words))

    html = LABEL.sub(lambda found: found[1] + known.get(found[3], found[3]), html)
    return DESCRIPTION.sub(description, html)


def as_still(png, alt):
    """Return HTML with the picture of a widget, a PNG file in base64, below a line that says what it is."""
    width, height = Image.open(BytesIO(base64.b64decode(png))).size
    sizes = {"width": width, "height": height, "whole": height + 36}
    image = quote(WRAPPED.format(**sizes, note=NOTE, png=png), safe=" '=:/;,+()")
    said = escape(f"{NOTE} {alt}".strip())
    return f'<img alt="{said}" width="{width}" style="max-width:100%" src="data:image/svg+xml,{image}">'


def store_images(cell):
    """Replace the drawings in the outputs of a cell, and what stands in for its widgets, in place."""
    alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
    put_back(cell.outputs)
    for output in cell.outputs:
        data = output.get("data", {})
        if WIDGET_VIEW in data and "image/png" in data:
            data["text/html"] = as_still(data.pop("image/png"), alt)
        elif "text/html" in data:
            data["text/html"] = as_images(data["text/html"])


def put_back(outputs):
    """Put back what `store_images` has replaced, in place."""
    for output in outputs:
        data = output.get("data", {})
        html = "".join(data.get("text/html", ""))
        if still := STILL.fullmatch(html):
            del data["text/html"]
            data["image/png"] = still[1]
        elif html:
            data["text/html"] = inline(html)


def main(arguments):
    """Run from the command line."""
    for path in map(Path, arguments) if arguments else notebooks():
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                store_images(cell)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
