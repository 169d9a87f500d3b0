"""The mask painter: hide keys from queries, and see what a query without a key does to a training step."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import traitlets as t
from torch import Tensor

from mha_lib._checks import check_float_tensor
from mha_lib.attention import masked_softmax
from mha_lib.masking import build_mask
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Flag, Text, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LEN, MAX_VALUE_DIM = 6, 3
"""With more rows or columns, the weights and their outputs no longer fit side by side on a phone."""
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
    """Paint over the scores, choose what a query without a key gets, and take one training step.

    A key is visible where mask, padding and causality allow it, as in `build_mask`. The policies are those of
    chapter 2: zeros (`masked_softmax`), NaN (fill with -infinity) and uniform (fill with the lowest number).
    The step trains one matrix W, (value_dim, value_dim), which starts as the identity:
    output = weights @ (value @ W), loss = the sum of the squared outputs, learning rate 0.1.

    Args:
        scores: (q_len, k_len), at most 6 by 6; default an example of 5 by 5.
        value: (k_len, value_dim), at most 3 wide; default an example.
        painted: one group of digits for each query, 1 = may attend, such as "110 111"; by default one query
            sees no key and the others see all keys.
        valid_len: how many keys are visible, counted from the first; default all.
        is_causal: hide the later keys from each query.
        policy: "zeros", "nan" or "uniform": the weights of a query without a key.
        is_trained: whether the training step has been taken.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range, or sizes do not fit.

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
    valid_len = Whole(None, 0, MAX_LEN)
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
            raise ValueError(
                f"value must have a row for each of {scores.shape[1]} keys, got shape {tuple(value.shape)}"
            )
        self.set_trait("scores", scores.detach().tolist())
        self.set_trait("value", value.detach().tolist())
        super().__init__(**settings)

    @t.default("painted")
    def _default_painted(self) -> str:
        """All keys are visible to all queries except the one in the middle, which sees none."""
        q_len, k_len = len(self.scores), len(self.scores[0])
        rows = ["1" * k_len] * q_len
        rows[q_len // 2] = "0" * k_len
        return " ".join(rows)

    @t.default("valid_len")
    def _default_valid_len(self) -> int:
        return len(self.scores[0])

    @t.validate("painted")
    def _check_painted(self, proposal: t.Bunch) -> str:
        q_len, k_len = len(self.scores), len(self.scores[0])
        row = f"[01]{{{k_len}}}"
        if not re.fullmatch(f"{row}( {row}){{{q_len - 1}}}", proposal.value):
            raise TraitValueError(
                f"painted must be {q_len} groups of {k_len} digits 0 or 1, got {proposal.value!r}"
            )
        return str(proposal.value)

    @t.validate("valid_len")
    def _check_valid_len(self, proposal: t.Bunch) -> int:
        k_len = len(self.scores[0])
        if proposal.value > k_len:
            raise TraitValueError(
                f"valid_len must lie in 0..{k_len}, got {proposal.value}"
            )
        return int(proposal.value)

    def mask(self) -> Tensor:
        """The painted mask, padding and causality in one mask: (q_len, k_len), bool, True = may attend."""
        return self._mask(self.painted, self.valid_len, self.is_causal)

    def _mask(self, painted: str, valid_len: int, is_causal: bool) -> Tensor:
        rows = [[digit == "1" for digit in row] for row in painted.split()]
        attn_mask = torch.tensor(rows)
        mask = build_mask(
            *attn_mask.shape,
            attn_mask=attn_mask,
            valid_lens=torch.tensor([valid_len]),
            is_causal=is_causal,
        )
        assert mask is not None
        return mask[0]

    def _weights(self, mask: Tensor) -> dict[str, Tensor]:
        """The weights under each policy; only the policy "nan" gives NaN."""
        scores = torch.tensor(self.scores, dtype=torch.float64)
        lowest = torch.finfo(scores.dtype).min
        return {
            "zeros": masked_softmax(scores, mask),
            "nan": scores.masked_fill(~mask, -torch.inf).softmax(-1),
            "uniform": scores.masked_fill(~mask, lowest).softmax(-1),
        }

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        """The numbers of a state; NaN where the policy "nan" leads to NaN.

        The scores are -inf where they are hidden. Only a trained state has the parts of the step.
        """
        mask = self._mask(state.painted, state.valid_len, state.is_causal)
        scores = torch.tensor(self.scores, dtype=torch.float64)
        value = torch.tensor(self.value, dtype=torch.float64)
        weights = self._weights(mask)[state.policy]
        projection = torch.eye(value.shape[1], dtype=torch.float64)
        numbers = {"scores": scores.masked_fill(~mask, -torch.inf), "weights": weights}
        if state.is_trained:
            # The loss is a sum over queries, and so its gradient is the sum of two parts.
            sees = mask.any(-1)
            numbers["step_of_seeing"] = _step(weights[sees], value, projection)
            numbers["step_of_empty"] = _step(weights[~sees], value, projection)
            projection = (
                projection + numbers["step_of_seeing"] + numbers["step_of_empty"]
            )
        output = weights @ (value @ projection)
        return numbers | {"projection": projection, "output": output}

    def figure(self) -> Figure:
        """The mask, and under each policy the weights and W after the step, as a matplotlib Figure."""
        from mha_lib import plots

        mask = self.mask()
        value = torch.tensor(self.value, dtype=torch.float64)
        start = torch.eye(value.shape[1], dtype=torch.float64)
        weights = self._weights(mask)
        trained = [start + _step(table, value, start) for table in weights.values()]
        figure, axes = plots.new_figure(
            *(2, 4), width=6.5, height=3, height_ratios=(2.2, 1)
        )
        titles = ("mask", "zeros", "NaN", "uniform")
        for axis, title, cells in zip(
            axes[0], titles, (mask.double(), *weights.values()), strict=True
        ):
            image = _draw_map(axis, cells, 0 if title == "mask" else 2)
            axis.set(title=title)
            axis.set_xlabel("keys", color=plots.KEY)
        axes[0, 0].set_ylabel("queries", color=plots.QUERY)
        axes[1, 0].axis("off")
        axes[1, 0].text(
            0.5, 0.5, "W after one\ntraining step", ha="center", va="center"
        )
        for axis, cells in zip(axes[1, 1:], trained, strict=True):
            _draw_map(axis, cells, 2, is_plain=True)
        figure.colorbar(image, ax=axes[0], label="weight")
        return figure


def _step(weights: Tensor, value: Tensor, projection: Tensor) -> Tensor:
    """What one step of gradient descent adds to W, (value_dim, value_dim), for some rows of the weights."""
    with torch.enable_grad():
        matrix = projection.clone().requires_grad_()
        loss = (weights @ (value @ matrix)).square().sum()
        (gradient,) = torch.autograd.grad(loss, matrix)
    return -LEARNING_RATE * gradient


def _draw_map(axis: Axes, cells: Tensor, digits: int, is_plain: bool = False) -> Any:
    """Draw a table with its numbers: coloured from 0 to 1, or plain; a NaN is grey."""
    import matplotlib

    from mha_lib import plots

    colors = matplotlib.colormaps[plots.COLORMAP].with_extremes(bad="#d9d9d9")
    shades = torch.full_like(cells, torch.nan) if is_plain else cells
    image = axis.imshow(shades.numpy(), cmap=colors, vmin=0, vmax=1)
    for (query, key), number in np.ndenumerate(cells.numpy()):
        is_dark = not is_plain and number < 0.6
        axis.text(
            *(key, query, f"{number:.{digits}f}".replace("nan", "NaN")),
            ha="center",
            va="center",
            fontsize=6,
            color="white" if is_dark else "black",
        )
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    return image


def _check_table(name: str, table: Any, max_columns: int) -> None:
    check_float_tensor(name, table, axes="rows, columns")
    rows, columns = table.shape
    if not (1 <= rows <= MAX_LEN and 1 <= columns <= max_columns):
        rule = f"1 to {MAX_LEN} rows and 1 to {max_columns} columns"
        raise ValueError(f"{name} must have {rule}, got shape {tuple(table.shape)}")
    if not table.isfinite().all():
        raise ValueError(f"{name} must be finite, got a NaN or an infinity")
