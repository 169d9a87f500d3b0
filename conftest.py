"""For all of pytest here: figures are compared as well as texts, and what failed is said in one line.

nbval compares texts only; it learns here to compare figures, pixel by pixel, with a tolerance.
"""

import base64
import io
import os

import numpy as np
import pytest
from nbval.plugin import IPyNbCell
from PIL import Image

# Fonts and edges differ in the last bits from one machine to the next, a wrong curve or colour by much more.
LEVELS, SHARE = 8, 0.01

# Where the Makefile collects what failed. Only this run of pytest writes there, not one that a test starts.
FAILED = os.environ.pop("FAILED", None)

compare_texts = IPyNbCell.compare_outputs


def compare_outputs(self, test, ref, skip_compare=None):
    """Compare a cell's new outputs with the stored ones: texts as nbval does, then the figures."""
    if not compare_texts(self, test, ref, skip_compare):
        return False
    new, stored = (
        [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
        for outputs in (test, ref)
    )
    if len(new) != len(stored):
        self.comparison_traceback.append(
            f"{len(stored)} figures are stored, the cell makes {len(new)}"
        )
        return False
    differences = [difference(*pair) for pair in zip(new, stored, strict=True)]
    self.comparison_traceback += [
        f"figure {n}: {text}" for n, text in enumerate(differences) if text
    ]
    return not any(differences)


def difference(new, stored):
    """Say how two base64-encoded PNG files differ beyond the tolerance, or return None."""
    try:
        images = [
            Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
            for png in (new, stored)
        ]
    except (OSError, ValueError) as error:
        return f"not a picture: {error}"
    if images[0].size != images[1].size:
        return f"{images[1].size} pixels are stored, the cell makes {images[0].size}"
    new_pixels, stored_pixels = (np.asarray(image, dtype=np.int16) for image in images)
    share = (np.abs(new_pixels - stored_pixels).max(axis=-1) > LEVELS).mean()
    if share > SHARE:
        return f"{share:.2%} of the pixels differ by more than {LEVELS} levels"
    return None


IPyNbCell.compare_outputs = compare_outputs


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Say at the end, in one line, how to run just what failed; under `make`, the Makefile says it."""
    yield
    reports = [
        report
        for kind in ("failed", "error")
        for report in terminalreporter.stats.get(kind, [])
    ]
    again = sorted({runs_again(report.nodeid) for report in reports})
    if FAILED:
        with open(FAILED, "a", encoding="utf-8") as collected:
            collected.writelines(f"{name}\n" for name in again)
    elif again:
        terminalreporter.write_line(
            f'To run just what failed: make test ONLY="{" ".join(again)}"'
        )


def runs_again(nodeid):
    """What to name for a failed test: the test with all its cases, or the whole notebook of a cell."""
    name = nodeid.partition("[")[0]
    return name.partition("::")[0] if ".ipynb" in name else name
