"""How many answers the reader's browser keeps, with buttons that export and remove them."""

from __future__ import annotations

from typing import ClassVar

from mha_course.widgets._base import CourseWidget


class Progress(CourseWidget):
    """Counts the answers that the reader's browser keeps, exports them as a file and removes them.

    The answers are those of all pages of the course, given to widgets that have a `name`. They stay in the
    browser that took them: nothing is sent. A reader whose browser cannot store anything is told so.

    Example:
        >>> Progress()
        Progress()
    """

    _module: ClassVar[str] = "progress.js"
    _settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()

    def fallback_html(self) -> str:
        """What a reader without scripts has to know about answers."""
        return (
            "<p>With scripts, this page counts the answers that your browser keeps, exports them as a file "
            "and removes them. Nothing leaves your machine.</p>"
        )

    def __repr__(self) -> str:
        return "Progress()"
