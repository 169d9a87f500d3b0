"""Whether two figures look the same: the processors of two machines, or two threads, round differently."""

import base64
import io

import numpy as np
from PIL import Image
from stored_notebooks import shrink_figure

TILE = 16
"""Pixels along the side of a tile: a letter, a dot, or a short piece of a curve fills much of one."""

LEVELS = 6
"""How far the pixels of a tile may be apart on average, of 255 levels. A palette of 256 colours is closer."""

PIXEL_LEVELS, PIXELS = 8, 0.01
"""Of all pixels, at most this share may differ by more than these levels, wherever they are."""

EDGE_LEVELS, EDGE = 32, 0.03
"""A tile also differs if this share of its pixels is so many levels apart: a thin or dotted pale line."""


def figure_fault(new, stored, share=0.0):
    """Say how two PNG files in base64 differ in more than a `share` of their tiles, or return None."""
    try:
        pixels = [pixels_of(shrink_figure(png)) for png in (new, stored)]
    except (OSError, ValueError) as error:
        return f"not a picture: {error}"
    if pixels[0].shape != pixels[1].shape:
        sizes = [f"{image.shape[1]} × {image.shape[0]}" for image in pixels]
        return f"{sizes[1]} pixels are stored, the cell makes {sizes[0]}"
    apart = np.abs(pixels[0] - pixels[1]).max(axis=-1)
    differences = tiles(apart)
    wrong = differences > LEVELS
    if not share:
        wrong |= tiles(apart > EDGE_LEVELS) > EDGE
    if wrong.mean() <= share:
        spread = (apart > PIXEL_LEVELS).mean()  # sparsely, over the whole figure
        if spread > PIXELS and not share:
            return (
                f"{spread:.2%} of the pixels differ by more than {PIXEL_LEVELS} levels"
            )
        return None
    row, column = np.unravel_index((differences * wrong).argmax(), differences.shape)
    return (
        f"{wrong.sum()} of {wrong.size} tiles differ, most at {column * TILE} pixels from the left and "
        f"{row * TILE} from the top, there by {differences.max():.0f} levels"
    )


def pixels_of(png):
    """The colours of a PNG file in base64, (height, width, 4), with a sign so that they can be subtracted."""
    return np.asarray(
        Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA"), dtype=np.int16
    )


def tiles(values):
    """Means of (height, width) over tiles; those at the right and at the bottom may be smaller."""
    rows, columns = (range(0, size, TILE) for size in values.shape)
    sums = np.add.reduceat(
        np.add.reduceat(values.astype(float), rows, axis=0), columns, axis=1
    )
    ones = np.ones_like(values, dtype=float)
    return sums / np.add.reduceat(np.add.reduceat(ones, rows, axis=0), columns, axis=1)
