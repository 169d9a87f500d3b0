"""The score explorer: a query and keys in the plane, a rule for their scores, and the resulting weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import traitlets as t
from torch import Tensor

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Choice, Flag, Numbers, Whole, unfit
from mha_course.widgets.packing import pack
from mha_lib.attention import masked_softmax
from mha_lib.scores import (
    AdditiveScore,
    BilinearScore,
    cosine_score,
    dot_product_score,
    gaussian_score,
    scaled_dot_product_score,
)

EDGE = 4.0
"""The plane extends from -EDGE to EDGE in both directions."""

SIDE = 33
"""Rows and columns of the map of the score."""

MAX_KEYS = 6

KEYS = (0.5, 2.0, 3.0, 2.0, -2.0, -1.0, 2.5, -1.5, -2.5, 2.5)
"""The initial x and y of each key."""

WIDTHS = (2, 4, 8, 16, 32, 64, 128)
"""The possible values of d; 2 is the plane itself."""

SEED = 158
"""The seed for the coordinates beyond the plane, with which the scores spread as theory predicts."""

BILINEAR = ((0.5, -1.0), (1.0, 0.5))
"""The matrix W of the bilinear score within the plane; beyond it, W is the identity."""

ADDITIVE_QUERY = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, -1.0))
ADDITIVE_KEY = ((1.0, -0.5), (0.5, 1.0), (-1.0, 0.5), (-0.5, -1.0))
ADDITIVE_SCORE = (2.0, 1.0, -1.5, 1.0)
"""W_q, W_k and w of the additive score. Each coordinate beyond the plane, over √d, enters one hidden unit."""


def _coordinates(count: int, d: int) -> Tensor:
    """The coordinates beyond the plane of the query, then of each key, (count, d - 2): one draw for all d."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(1 + MAX_KEYS, WIDTHS[-1] - 2, generator=generator)
    return drawn[:count, : d - 2].double()


def _bilinear(d: int) -> BilinearScore:
    rule = BilinearScore(d, d).double()
    weight = torch.block_diag(torch.tensor(BILINEAR), torch.eye(d - 2))
    rule.load_state_dict({"key_proj.weight": weight})
    return rule


def _additive(d: int) -> AdditiveScore:
    hidden_dim = len(ADDITIVE_SCORE)
    rule = AdditiveScore(d, d, hidden_dim).double()
    beyond = torch.eye(hidden_dim, dtype=torch.float64).repeat(1, d)[:, : d - 2]
    beyond = beyond / math.sqrt(d)
    rule.load_state_dict(
        {
            "query_proj.weight": torch.hstack([torch.tensor(ADDITIVE_QUERY), beyond]),
            "key_proj.weight": torch.hstack([torch.tensor(ADDITIVE_KEY), beyond]),
            "score_proj.weight": torch.tensor([ADDITIVE_SCORE]),
        }
    )
    return rule


def _rule(score: str, d: int, is_scaled: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """The chosen rule of mha_lib.scores."""
    bandwidth = d**0.25 if is_scaled else 1.0  # its square is √d
    dot = scaled_dot_product_score if is_scaled else dot_product_score
    factor = 1 / math.sqrt(d) if is_scaled else 1.0
    rules: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "dot": dot,
        "cosine": cosine_score,
        "gaussian": lambda query, key: gaussian_score(query, key, bandwidth),
        "bilinear": lambda query, key: _bilinear(d)(query, key) * factor,
        "additive": lambda query, key: _additive(d)(query, key),
    }
    return rules[score]


class ScoreExplorer(Explorer):
    """Drag a query and keys in the plane, choose a scoring rule, and read off scores, weights and entropy.

    The plane shows the first two of `d` coordinates. The others are drawn once from a normal distribution,
    for the query and for each key, so dot products grow like √d, as they do for independent entries.

    Args:
        query: x and y of the query, from -4 to 4.
        key: x and y of each key in turn, 2 to 6 keys.
        score: "dot", "cosine", "gaussian", "bilinear" or "additive", as in `mha_lib.scores`.
        d: width of query and keys: 2, 4, 8, 16, 32, 64 or 128.
        is_scaled: divide the dot product and the bilinear score by √d, and set the squared bandwidth of the
            Gaussian to √d instead of 1. The cosine and the additive score do not change.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> explorer = ScoreExplorer(query=[1.0, 1.0], key=[1.0, 1.0, 3.0, 1.0], is_scaled=False)
        >>> explorer
        ScoreExplorer(score='dot', d=2, is_scaled=False)
        >>> explorer.numbers()["scores"].tolist()
        [[2.0, 4.0]]
    """

    _module: ClassVar[str] = "score_explorer.js"

    query = Numbers([1.5, 1.0], -EDGE, EDGE, 2).tag(in_repr=False)
    key = Numbers(KEYS, -EDGE, EDGE).tag(in_repr=False)
    score = Choice("dot", ["dot", "cosine", "gaussian", "bilinear", "additive"])
    d = Whole(2, options=WIDTHS)
    is_scaled = Flag(True)
    extra = t.Unicode(read_only=True).tag(sync=True)
    """The coordinates beyond the plane for the widest query and keys, as float32 in base64."""

    def __init__(self, **settings: Any) -> None:
        self.set_trait("extra", pack(_coordinates(1 + MAX_KEYS, WIDTHS[-1])))
        super().__init__(**settings)

    @t.validate("key")
    def _check_key(self, proposal: t.Bunch) -> list[float]:
        count = len(proposal.value)
        if count % 2 or not 4 <= count <= 2 * MAX_KEYS:
            rule = f"hold x and y of 2 to {MAX_KEYS} keys"
            raise unfit("key", rule, f"{count} numbers")
        return list(proposal.value)

    @staticmethod
    def _compute(
        query: list[float], key: list[float], score: str, d: int, is_scaled: bool
    ) -> dict[str, Tensor | None]:
        rule = _rule(score, d, is_scaled)
        plane = torch.tensor([*query, *key], dtype=torch.float64).view(-1, 2)
        # The coordinates beyond the plane were drawn once.
        rows = torch.hstack([plane, _coordinates(len(plane), d)])
        # In the map of the score they are 0; y is the row, x the column.
        side = torch.linspace(-EDGE, EDGE, SIDE, dtype=torch.float64)
        places = F.pad(torch.cartesian_prod(side, side), (0, d - 2))
        with torch.no_grad():
            scores = rule(rows[:1], rows[1:])
            landscape = rule(rows[:1], places).view(SIDE, SIDE).T
        weights = masked_softmax(scores)
        entropy = torch.special.entr(weights).sum()
        return {
            "weights": weights,
            "scores": scores,
            "entropy": entropy,
            "effective_keys": entropy.exp(),
            "spread": scores.std(correction=0),
            "landscape": landscape,
        }
