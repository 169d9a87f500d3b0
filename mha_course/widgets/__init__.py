"""Widgets of the course. Each is a class and an ES module, and works with a kernel or in the built page."""

from __future__ import annotations

from mha_course.widgets._versions import needed_versions

# First what stands on other packages, so that an unsuitable version is named before anything else fails.
with needed_versions():
    from mha_course.widgets._base import CourseWidget, Explorer

from mha_course.widgets.ablation_lab import AblationLab
from mha_course.widgets.alibi_explorer import AlibiExplorer
from mha_course.widgets.attention_stepper import AttentionStepper
from mha_course.widgets.chat_heads import ChatHeads, map_files
from mha_course.widgets.cost_calculator import CostCalculator
from mha_course.widgets.head_explorer import HeadExample, HeadExplorer
from mha_course.widgets.head_training import HeadTraining
from mha_course.widgets.heads_meet import HeadsMeet
from mha_course.widgets.line_order import Distractor, LineOrder
from mha_course.widgets.map_prediction import MapPrediction
from mha_course.widgets.mask_painter import MaskPainter
from mha_course.widgets.mask_translator import MaskTranslator
from mha_course.widgets.packing import round_to_bytes
from mha_course.widgets.path_explorer import PathExplorer
from mha_course.widgets.pooling_explorer import PoolingExplorer
from mha_course.widgets.position_explorer import PositionExplorer
from mha_course.widgets.progress import Progress
from mha_course.widgets.puzzles import puzzle
from mha_course.widgets.quiz import Question, Quiz
from mha_course.widgets.reshape_stepper import ReshapeStepper
from mha_course.widgets.rotation_dial import RotationDial
from mha_course.widgets.score_explorer import ScoreExplorer
from mha_course.widgets.sentence_heads import SentenceHeads
from mha_course.widgets.text_training import TextTraining
from mha_course.widgets.translator import (
    Translator,
    attention_layers,
    model_files,
    pack_model,
    unpack_model,
)
from mha_course.widgets.typed_answer import TypedAnswer
from mha_course.widgets.writer import Writer

__all__ = [
    "AblationLab",
    "AlibiExplorer",
    "AttentionStepper",
    "ChatHeads",
    "CostCalculator",
    "Distractor",
    "Explorer",
    "HeadExample",
    "HeadExplorer",
    "HeadTraining",
    "HeadsMeet",
    "LineOrder",
    "MapPrediction",
    "MaskPainter",
    "MaskTranslator",
    "PathExplorer",
    "PoolingExplorer",
    "PositionExplorer",
    "Progress",
    "Question",
    "Quiz",
    "ReshapeStepper",
    "RotationDial",
    "ScoreExplorer",
    "SentenceHeads",
    "TextTraining",
    "Translator",
    "TypedAnswer",
    "Writer",
    "attention_layers",
    "pack_model",
    "puzzle",
    "round_to_bytes",
    "unpack_model",
    "widget_files",
    "widget_sources",
]


def widget_files() -> dict[str, str]:
    """The files with large data that pages without Python load, by name.

    Example:
        >>> all(name.endswith(".js") for name in widget_files())
        True
    """
    return model_files() | map_files()


def widget_sources() -> dict[str, dict[str, str]]:
    """Browser code of each widget, as a notebook that is run now would store it.

    Returns:
        A dict from `_anywidget_id` to the `_esm` and `_css` to store.

    Example:
        >>> sorted(widget_sources()["mha_course.widgets.quiz.Quiz"])
        ['_css', '_esm']
    """
    return {
        f"{cls.__module__}.{cls.__name__}": {"_esm": cls._esm, "_css": cls._css}
        for base in (CourseWidget, Explorer)
        for cls in base.__subclasses__()
        if "_module" in cls.__dict__
    }
