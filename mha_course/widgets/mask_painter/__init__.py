"""The mask painter: hide keys from queries, and see how a query without a key affects a training step."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Choice, Flag, Text, Whole, digits
from mha_lib._checks import check_float_tensor, refusal
from mha_lib.attention import masked_softmax
from mha_lib.masking import build_mask

MAX_LEN, MAX_VALUE_DIM = 6, 3
"""With more rows or columns, the weights and outputs would not fit side by side on a phone."""
LEARNING_RATE = 0.1

SCORES = (
    (0.7, -0.4, 1.3, 0.2, -1.1),
    (-0.3, 1.6, 0.5, -0.8, 0.9),
    (1.2, 0.1, -0.6, 1.9, 0.4),
    (0.3, -1.4, 0.8, 1.1, -0.2),
    (-0.9, 0.6, 2.1, -0.1, 1.0),
)
VALUE = ((1.0, 0.0), (0.0, 1.0), (2.0, 0.0), (0.0, 2.0), (-1.0, 1.0))


class MaskPainter(Explorer):
    """Paint over the scores, choose the weights of a query without a key, and take one training step.

    A key is visible where mask, padding and causality allow it, as in `build_mask`. The policies are those of
    chapter 2: zeros (`masked_softmax`), NaN (fill with -infinity) and uniform (fill with the lowest number).
    The step trains one matrix W, (value_dim, value_dim), which starts as the identity:
    output = weights @ (value @ W), loss = the sum of the squared outputs, learning rate 0.1.

    Args:
        scores: (q_len, k_len), at most 6 by 6; default an example of 5 by 5.
        value: (k_len, value_dim), at most 3 wide; default an example.
        painted: one group of digits for each query, 1 = may attend, such as "110 111"; by default, one query
            sees no keys and the others see all keys.
        valid_len: number of visible keys, counted from the first; default all.
        is_causal: hide the later keys from each query.
        policy: "zeros", "nan" or "uniform": the weights of a query without a key.
        is_trained: whether the training step has been taken.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or sizes do not fit.

    Example:
        >>> painter = MaskPainter(torch.zeros(2, 4), torch.ones(4, 1), painted="1110 0000")
        >>> painter.valid_len = 2
        >>> painter
        MaskPainter(painted='1110 0000', valid_len=2, is_causal=False, policy='zeros', is_trained=False)
        >>> painter.numbers()["weights"].tolist()
        [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
        >>> painter.policy, painter.is_trained = "uniform", True
        >>> painter.numbers()["step_of_empty"].item()  # what the query without a key does to W
        -0.2
    """

    _module: ClassVar[str] = "mask_painter.js"

    scores = t.List(t.List(t.Float()), read_only=True).tag(sync=True)
    value = t.List(t.List(t.Float()), read_only=True).tag(sync=True)
    painted = Text(None)
    valid_len = Whole(None, 0, "num_keys")
    num_keys = t.Int(1, read_only=True).tag(sync=True)
    is_causal = Flag(False)
    policy = Choice("zeros", ["zeros", "nan", "uniform"])
    is_trained = Flag(False)

    def __init__(
        self, scores: Tensor | None = None, value: Tensor | None = None, **settings: Any
    ) -> None:
        scores = torch.tensor(SCORES).double() if scores is None else scores
        _check_table("scores", scores, MAX_LEN)
        if value is None:
            value = torch.tensor(VALUE).double()
            value = value.repeat(2, 1)[: scores.shape[1]]
        _check_table("value", value, MAX_VALUE_DIM)
        if len(value) != scores.shape[1]:
            rule = f"have a row for each of {scores.shape[1]} keys"
            raise refusal("value", rule, f"shape {tuple(value.shape)}")
        self.set_trait("scores", scores.detach().tolist())
        self.set_trait("value", value.detach().tolist())
        self.set_trait("num_keys", len(value))
        super().__init__(**settings)

    @t.default("painted")
    def _default_painted(self) -> str:
        """A mask in which the query in the middle sees no keys and all others see all keys."""
        q_len, k_len = len(self.scores), len(self.scores[0])
        rows = ["1" * k_len] * q_len
        rows[q_len // 2] = "0" * k_len
        return " ".join(rows)

    @t.default("valid_len")
    def _default_valid_len(self) -> int:
        return len(self.scores[0])

    @t.validate("painted")
    def _check_painted(self, proposal: t.Bunch) -> str:
        return digits(proposal, len(self.scores), len(self.scores[0]))

    @staticmethod
    def _compute(
        scores: list[list[float]],
        value: list[list[float]],
        painted: str,
        valid_len: int,
        is_causal: bool,
        policy: str,
        is_trained: bool,
    ) -> dict[str, Tensor | None]:
        all_scores = torch.tensor(scores, dtype=torch.float64)
        values = torch.tensor(value, dtype=torch.float64)
        mask = _mask_of(painted, valid_len, is_causal)
        weights = _weights(all_scores, mask)[policy]
        projection = torch.eye(values.shape[1], dtype=torch.float64)  # W
        step_of_seeing = step_of_empty = None
        if is_trained:
            # The loss is a sum over queries, and so its gradient is the sum of two parts.
            sees = mask.any(-1)
            step_of_seeing = _step(weights[sees], values, projection)
            step_of_empty = _step(weights[~sees], values, projection)
            projection = projection + step_of_seeing + step_of_empty
        return {
            "output": weights @ (values @ projection),
            "weights": weights,
            "scores": all_scores.masked_fill(~mask, -torch.inf),
            "step_of_seeing": step_of_seeing,
            "step_of_empty": step_of_empty,
            "projection": projection,
        }


def _mask_of(painted: str, valid_len: int, is_causal: bool) -> Tensor:
    attn_mask = torch.tensor(
        [[digit == "1" for digit in row] for row in painted.split()]
    )
    lengths = torch.tensor([valid_len])
    mask = build_mask(
        *attn_mask.shape, attn_mask=attn_mask, valid_lens=lengths, is_causal=is_causal
    )
    assert mask is not None
    return mask[0]


def _weights(scores: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The weights under each policy; only the policy "nan" gives NaN."""
    lowest = torch.finfo(scores.dtype).min
    return {
        "zeros": masked_softmax(scores, mask),
        "nan": scores.masked_fill(~mask, -torch.inf).softmax(-1),
        "uniform": scores.masked_fill(~mask, lowest).softmax(-1),
    }


def _step(weights: Tensor, value: Tensor, projection: Tensor) -> Tensor:
    """What one step of gradient descent adds to W, (value_dim, value_dim), for some rows of the weights."""
    with torch.enable_grad():
        matrix = projection.clone().requires_grad_()
        loss = (weights @ (value @ matrix)).square().sum()
        (gradient,) = torch.autograd.grad(loss, matrix)
    return -LEARNING_RATE * gradient


def _check_table(name: str, table: Any, max_columns: int) -> None:
    check_float_tensor(name, table, axes="rows, columns")
    rows, columns = table.shape
    if not (1 <= rows <= MAX_LEN and 1 <= columns <= max_columns):
        rule = f"1 to {MAX_LEN} rows and 1 to {max_columns} columns"
        raise ValueError(f"{name} must have {rule}, got shape {tuple(table.shape)}")
    if not table.isfinite().all():
        raise ValueError(f"{name} must be finite, got a NaN or an infinity")
