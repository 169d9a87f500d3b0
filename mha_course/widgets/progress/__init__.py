"""The answers in the reader's browser: counted, repeated on a schedule, exported, imported and removed."""

from __future__ import annotations

from typing import ClassVar

import traitlets as t

from mha_course.widgets._base import CourseWidget
from mha_lib._checks import check_type


class Progress(CourseWidget):
    """Counts, exports, imports and removes the answers in the reader's browser, and links to due questions.

    The answers are those to all widgets with a `name`, on all pages of the course. Another browser can import
    an exported file, and Anki a deck. Nothing is sent. The widget says if the browser cannot store anything.

    Args:
        cards: the questions that may come back, as `mha_course.questions.cards` returns them; default none.

    Example:
        >>> Progress()
        Progress()
    """

    _module: ClassVar[str] = "progress.js"
    _settings: ClassVar[tuple[str, ...]] = ()

    _cards = t.List(t.Dict(), read_only=True).tag(sync=True)
    """The questions that may come back."""

    def __init__(self, cards: list[dict[str, str]] | None = None) -> None:
        cards = [] if cards is None else cards
        check_type("cards", cards, list)
        self.set_trait("_cards", cards)
        super().__init__()

    def fallback_html(self) -> str:
        """A note about stored answers for readers without scripts."""
        return (
            "<p>With scripts, this page counts the answers that your browser keeps, shows which questions to "
            "repeat today, exports both, and imports and removes answers. Nothing leaves your machine.</p>"
        )

    def __repr__(self) -> str:
        return "Progress()"
