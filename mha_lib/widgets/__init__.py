"""Widgets of the course: each is a class and an ES module, and works with a kernel or in the built page."""

from __future__ import annotations

from mha_lib.widgets._base import CourseWidget, Explorer
from mha_lib.widgets.ablation_lab import AblationLab
from mha_lib.widgets.alibi_explorer import AlibiExplorer
from mha_lib.widgets.attention_stepper import AttentionStepper
from mha_lib.widgets.cost_calculator import CostCalculator
from mha_lib.widgets.head_explorer import HeadExample, HeadExplorer
from mha_lib.widgets.head_training import HeadTraining
from mha_lib.widgets.heads_meet import HeadsMeet
from mha_lib.widgets.line_order import Distractor, LineOrder
from mha_lib.widgets.map_prediction import MapPrediction
from mha_lib.widgets.mask_painter import MaskPainter
from mha_lib.widgets.mask_translator import MaskTranslator
from mha_lib.widgets.path_explorer import PathExplorer
from mha_lib.widgets.pooling_explorer import PoolingExplorer
from mha_lib.widgets.position_explorer import PositionExplorer
from mha_lib.widgets.progress import Progress
from mha_lib.widgets.quiz import Question, Quiz
from mha_lib.widgets.reshape_stepper import ReshapeStepper
from mha_lib.widgets.rotation_dial import RotationDial
from mha_lib.widgets.score_explorer import ScoreExplorer
from mha_lib.widgets.translator import (
    Translator,
    attention_layers,
    pack_model,
    round_to_bytes,
    unpack_model,
)
from mha_lib.widgets.typed_answer import TypedAnswer

__all__ = [
    "AblationLab",
    "AlibiExplorer",
    "AttentionStepper",
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
    "Translator",
    "TypedAnswer",
    "attention_layers",
    "pack_model",
    "round_to_bytes",
    "unpack_model",
    "widget_sources",
]


def widget_sources() -> dict[str, dict[str, str]]:
    """Browser code of each widget: what a notebook that is run now would store.

    Returns:
        The `_esm` and `_css` to store, by `_anywidget_id`.

    Example:
        >>> sorted(widget_sources()["mha_lib.widgets.quiz.Quiz"])
        ['_css', '_esm']
    """
    return {
        f"{cls.__module__}.{cls.__name__}": {"_esm": cls._esm, "_css": cls._css}
        for base in (CourseWidget, Explorer)
        for cls in base.__subclasses__()
        if "_module" in cls.__dict__
    }
