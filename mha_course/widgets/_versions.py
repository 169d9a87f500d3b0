"""The versions of the packages under the widgets that were tried, and a sentence for any others."""

from __future__ import annotations

import importlib.metadata
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mha_course._messages import message

TRIED = {
    "anywidget": ("0.9.21", "0.11.0"),
    "ipywidgets": ("7.7.1", "8.1.9"),
    "traitlets": ("5.7.1", "5.16.1"),
}
"""The oldest and the newest version of each package with which the tests ran: Colab's and the book's."""


@contextmanager
def needed_versions() -> Iterator[None]:
    """Say which package has an untried version: as a warning, or as the error if the block fails.

    Raises:
        ImportError: the block failed, and a package is older or newer than those that were tried.
    """
    untried = [text for name in TRIED if (text := untried_version(name))]
    try:
        yield
    except Exception:
        if untried:
            told = " ".join([message(__file__, "cannot"), *untried])
            raise ImportError(told) from None
        raise
    for text in untried:
        warnings.warn(text, stacklevel=3)


def untried_version(name: str) -> str | None:
    """Return a sentence if a package has a version outside the range that was tried, or None.

    Example:
        >>> untried_version("traitlets") is None
        True
    """
    found = importlib.metadata.version(name)
    oldest, newest = TRIED[name]
    if _numbers(oldest) <= _numbers(found) <= _numbers(newest):
        return None
    return message(
        __file__, "untried", name=name, found=found, oldest=oldest, newest=newest
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version, for comparison: (5, 7, 1) for 5.7.1 and 5.7.1rc2."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
