"""Widgets of the course: a class and an ES module each, alive with a kernel and in the built page without."""

from __future__ import annotations

from mha_lib.widgets._base import CourseWidget
from mha_lib.widgets.head_explorer import HeadExample, HeadExplorer
from mha_lib.widgets.quiz import Question, Quiz

__all__ = ["HeadExample", "HeadExplorer", "Question", "Quiz", "widget_sources"]


def widget_sources() -> dict[str, dict[str, str]]:
    """Browser code of each widget: what a notebook that was run now would store.

    Returns:
        For each value of the stored `_anywidget_id` the stored `_esm` and `_css`.

    Example:
        >>> sorted(widget_sources())
        ['mha_lib.widgets.head_explorer.HeadExplorer', 'mha_lib.widgets.quiz.Quiz']
    """
    return {
        f"{cls.__module__}.{cls.__name__}": {"_esm": cls._esm, "_css": cls._css}
        for cls in CourseWidget.__subclasses__()
        if "_module" in cls.__dict__
    }
