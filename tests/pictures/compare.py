"""Where two pictures look different: by a perceptual difference that leaves antialiasing out (blazediff)."""

import tempfile
from pathlib import Path
from typing import NamedTuple

import blazediff
import numpy as np
from PIL import Image
from scipy import ndimage

THRESHOLD = 0.05
"""How different two colours have to be, of 1 for black and white: half of what is usual."""

NEAR = 3
"""Pixels that differ and are no further apart than twice this belong together."""

SPECK = 8
"""As many pixels are no difference: a newer browser may draw the edge of a letter in another way."""

DIGIT = (12, 15, 125)
"""Width, height and pixels of the largest difference that one digit makes, in bold letters of 18 px."""

LINE = 20
"""Pixels: letters of one line that belong together are at most as high, or as wide where it is upright."""

MOVED = 0.3
"""What a letter that lies a quarter of a pixel further changes, at most, as a share of its own contrast.

A browser draws a letter at one of four places between two pixels. Where the right place is near the middle
of two, a last bit decides, and that is not the same on every processor.
"""

GREY = (128, 128, 128)


class Difference(NamedTuple):
    """Pixels that differ and lie together: their number and the box around them."""

    pixels: int
    left: int
    top: int
    width: int
    height: int

    def may_be_digit(self):
        """Whether it is as small as another digit of a number."""
        width, height, pixels = DIGIT
        return self.width <= width and self.height <= height and self.pixels <= pixels


def differences(new, stored):
    """What differs between two RGB images, largest first: (list of `Difference`, picture with it in red)."""
    size = max(new.width, stored.width), max(new.height, stored.height)
    new, stored = (on_canvas(image, size) for image in (new, stored))
    mask = differing(new, stored)
    blurred = [ndimage.gaussian_filter(np.asarray(image, float), (1, 1, 0)) for image in (new, stored)]
    # Neighbouring pixels are joined before they are counted.
    areas, _ = ndimage.label(ndimage.binary_dilation(mask, iterations=NEAR), np.ones((3, 3)))
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(areas), start=1):
        area = areas[rows, columns] == number
        y, x = np.nonzero(area & mask[rows, columns])
        width, height = int(np.ptp(x)) + 1, int(np.ptp(y)) + 1
        if min(width, height) > LINE or not moved(*(image[rows, columns][area] for image in blurred)):
            left, top = columns.start + int(x.min()), rows.start + int(y.min())
            found.append(Difference(len(x), left, top, width, height))
    picture = np.asarray(stored.convert("L").convert("RGB")) // 3 + 160
    picture[mask] = (220, 0, 0)
    return sorted((area for area in found if area.pixels > SPECK), reverse=True), Image.fromarray(picture)


def moved(new, stored):
    """Whether the blurred pixels of an area differ as little as those of a letter that hardly moved."""
    contrast = np.ptp(stored, axis=0).max()
    return np.abs(new - stored).max() <= MOVED * contrast


def differing(new, stored):
    """Where two images of one size differ visibly: (height, width), bool."""
    if new.tobytes() == stored.tobytes():
        return np.zeros((new.height, new.width), dtype=bool)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("stored.png", "new.png", "mask.png")]
        stored.save(paths[0], compress_level=1)
        new.save(paths[1], compress_level=1)
        options = {"threshold": THRESHOLD, "antialiasing": True, "diff_mask": True}
        if blazediff.compare(*map(str, paths), **options).match_result:
            return np.zeros((new.height, new.width), dtype=bool)
        return np.asarray(Image.open(paths[2]).convert("RGBA"))[..., 3] > 0


def on_canvas(image, size):
    """The image in the upper left corner of a grey canvas."""
    canvas = Image.new("RGB", size, GREY)
    canvas.paste(image, (0, 0))
    return canvas
