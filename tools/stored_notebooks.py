"""Where the stored notebooks are, and what several tools need to know of them."""

import base64
import io
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def notebooks():
    """Return the paths of all notebooks of the book: the landing page and the chapters."""
    return [ROOT / "index.ipynb", *sorted((ROOT / "chapters").glob("*.ipynb"))]


def shrink_figure(png):
    """Return a PNG file in base64 with a palette: a third of the bytes, in colours that look the same.

    Pillow's maximum coverage keeps most colours of our figures exactly, and all within a dozen of 255 levels.
    """
    image = Image.open(io.BytesIO(base64.b64decode(png)))
    if image.mode == "P" or image.convert("RGBA").getextrema()[3] != (255, 255):
        return png  # already done, or transparent
    small, colors = io.BytesIO(), (256, Image.Quantize.MAXCOVERAGE)
    palette = image.convert("RGB").quantize(*colors, dither=Image.Dither.NONE)
    palette.save(small, format="PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode("ascii")
