"""The number of answers stored in the reader's browser, with buttons to export and remove them."""

from __future__ import annotations

from typing import ClassVar

from mha_course.widgets._base import CourseWidget


class Progress(CourseWidget):
    """Counts the answers that the reader's browser stores, exports them as a file and removes them.

    The answers are those to all widgets with a `name`, on all pages of the course. They stay in the browser,
    and nothing is sent. If the browser cannot store anything, the widget says so.

    Example:
        >>> Progress()
        Progress()
    """

    _module: ClassVar[str] = "progress.js"
    _settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()

    def fallback_html(self) -> str:
        """A note about stored answers for readers without scripts."""
        return (
            "<p>With scripts, this page counts the answers that your browser keeps, exports them as a file "
            "and removes them. Nothing leaves your machine.</p>"
        )

    def __repr__(self) -> str:
        return "Progress()"
