"""The mask translator: one mask in the conventions of all libraries, and an array that nobody translated."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.masking import causal_mask
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Text, TraitValueError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LEN = 6
"""With more keys, a mask no longer fits into half the width of a phone."""

CONVENTIONS = {
    "attn_mask": "this course\nattn_mask",
    "key_mask": "this course\nkey_mask",
    "valid_lens": "this course\nvalid_lens",
    "sdpa_mask": "torch SDPA\nattn_mask, bool",
    "sdpa_added": "torch SDPA\nattn_mask, float",
    "module_attn_mask": "nn.MultiheadAttention\nattn_mask",
    "module_key_padding_mask": "nn.MultiheadAttention\nkey_padding_mask",
    "hf_attention_mask": "HuggingFace\nattention_mask",
    "hf_extended": "inside HuggingFace\nattention_mask",
    "jax_mask": "JAX\nmask",
    "jax_lengths": "JAX\nkey_value_seq_lengths",
    "keras_mask": "Keras\nattention_mask",
    "onnx_mask": "ONNX\nattn_mask",
}
"""Each convention of the page by the name of its variable: the library, and the argument."""

ONES = "ones_mask"
"""A mask of 1 and 0 in floating point, which is nobody's convention: people write it with `mask.float()`."""

LENGTHS = ("valid_lens", "jax_lengths")
SAME_ARGUMENT = ("sdpa_added", "hf_extended")
"""Conventions that are another form of an argument that is in the list already."""

ONE_ROW = ("key_mask", "module_key_padding_mask", "hf_attention_mask")
"""Arguments that hold one row of keys for each sample, for all its queries."""

BOOL_ONLY = ("attn_mask", "key_mask", "jax_mask")
TRUE_HIDES = ("module_attn_mask", "module_key_padding_mask")
NO_INTEGERS = ("sdpa_mask", *TRUE_HIDES)
NON_ZERO_SHOWS = ("hf_attention_mask", "keras_mask")

SOURCES = (*(name for name in CONVENTIONS if name not in LENGTHS), ONES)
TARGETS = tuple(name for name in CONVENTIONS if name not in (*LENGTHS, *SAME_ARGUMENT))


class MaskTranslator(Explorer):
    """Paint who may attend to whom, and read the same mask in the conventions of all libraries.

    The page shows each convention of the appendix Mask Rosetta: the argument, its shape, dtype and array, and
    why a convention cannot express the mask where it cannot. The other view passes an array that was written
    in one convention to an argument of another, and marks each cell that is then read wrongly; there the axes
    are adjusted as far as possible and the entries stay as they are.

    Args:
        visible: one group of digits for each of 1 to 6 queries, one digit for each of 2 to 6 keys, 1 = may
            attend, such as "110 111".
        shown: "conventions" or "mistake", the array passed without a translation.
        source: the convention in which the passed array is written, a key of `numbers`, or "ones_mask": 1 and
            0 in floating point.
        target: the convention of the argument that gets the array.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range.

    Example:
        >>> translator = MaskTranslator(visible="110 110")
        >>> numbers = translator.numbers()
        >>> numbers["module_key_padding_mask"].tolist(), numbers["valid_lens"].tolist()
        ([[False, False, True]], [2])
        >>> translator.visible = "100 110"
        >>> "key_mask" in translator.numbers()
        False
    """

    _module: ClassVar[str] = "mask_translator.js"

    visible = Text("111100 111100 111100 111100")
    shown = Choice("conventions", ["conventions", "mistake"])
    source = Choice("module_attn_mask", SOURCES)
    target = Choice("sdpa_mask", TARGETS)

    @t.validate("visible")
    def _check_visible(self, proposal: t.Bunch) -> str:
        rows = proposal.value.split(" ")
        row = f"[01]{{{len(rows[0])}}}"
        fits = len(rows) <= MAX_LEN and 2 <= len(rows[0]) <= MAX_LEN
        if not fits or not re.fullmatch(f"{row}( {row})*", proposal.value):
            raise TraitValueError(
                f"visible must be 1 to {MAX_LEN} groups of 2 to {MAX_LEN} digits 0 or 1, of equal length, "
                f"got {proposal.value!r}"
            )
        return str(proposal.value)

    def mask(self) -> Tensor:
        """The painted mask: (q_len, k_len), bool, True = may attend."""
        return _parse(self.visible)

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        mask = _parse(state.visible)
        if state.shown == "conventions":
            return {"mask": mask, **_written(mask)}
        arrays = {**_written(mask), ONES: mask.float()}
        if state.source not in arrays:
            return {"mask": mask}
        written = arrays[state.source]
        rows = _read(written.reshape(-1, mask.shape[1]), state.target)
        if rows is None or (state.target in ONE_ROW and len(rows) > 1):
            return {"mask": mask, "written": written}
        read = rows.expand_as(mask)
        return {"mask": mask, "written": written, "read": read, "wrong": read != mask}

    def figure(self) -> Figure:
        """The present view as a matplotlib Figure: a panel per convention, or the steps of the mistake."""
        from mha_lib import plots

        numbers = self.numbers()
        mask = numbers["mask"]
        if self.shown == "conventions":
            figure, axes = plots.new_figure(4, 4, width=6.5, height=6.0)
            for axis, (name, title) in zip(
                axes.flat, CONVENTIONS.items(), strict=False
            ):
                seen = None if name in LENGTHS else mask
                _draw(axis, numbers.get(name), seen, title)
            for axis in axes.flat[len(CONVENTIONS) :]:
                axis.set_axis_off()
            return figure
        panels = {
            "mask": (mask, "what is meant\n1: may attend"),
            "written": (mask, f"written as\n{self.source}"),
            "read": (numbers.get("read"), f"read as\n{self.target}"),
            "wrong": (None, "read wrongly\n1: wrong"),
        }
        figure, axes = plots.new_figure(1, 4, width=6.5, height=1.7)
        for axis, (name, (seen, title)) in zip(axes, panels.items(), strict=True):
            _draw(axis, numbers.get(name), seen, title)
        return figure


def _parse(visible: str) -> Tensor:
    return torch.tensor([[digit == "1" for digit in row] for row in visible.split()])


def _written(mask: Tensor) -> dict[str, Tensor]:
    """The array of each convention that can express the mask."""
    lowest = torch.finfo(torch.float32).min
    zeros = torch.zeros(mask.shape)
    arrays = {
        "attn_mask": mask,
        "sdpa_mask": mask,
        "sdpa_added": zeros.masked_fill(~mask, -torch.inf),
        "module_attn_mask": ~mask,
        "hf_extended": zeros.masked_fill(~mask, lowest)[None, None],
        "jax_mask": mask[None, None],
        "keras_mask": mask[None],
        "onnx_mask": mask,
    }
    if (keys := _one_row(mask)) is not None:
        arrays["key_mask"] = keys
        arrays["module_key_padding_mask"] = ~keys
    # A decoder of HuggingFace hides the future by itself; its last query sees all keys that are no padding.
    if keys is None and torch.equal(mask, causal_mask(*mask.shape) & mask[-1]):
        keys = mask[-1:]
    if keys is not None:
        arrays["hf_attention_mask"] = keys.long()
    lengths = mask.sum(-1)
    if torch.equal(mask, torch.arange(mask.shape[1]) < lengths[:, None]):
        if _one_row(mask) is None:
            arrays["valid_lens"] = lengths[None]
        else:
            arrays["valid_lens"] = lengths[:1]
            arrays["jax_lengths"] = lengths[:1].int()
    return {name: arrays[name] for name in CONVENTIONS if name in arrays}


def _one_row(mask: Tensor) -> Tensor | None:
    """The row of keys that all queries see, (1, k_len), or None if they see different keys."""
    return mask[:1] if torch.equal(mask, mask[:1].expand_as(mask)) else None


def _read(rows: Tensor, target: str) -> Tensor | None:
    """Which keys an argument shows if it is given these rows; None if it refuses their dtype."""
    if rows.dtype == torch.bool:
        return ~rows if target in TRUE_HIDES else rows
    if target in BOOL_ONLY or (target in NO_INTEGERS and not rows.is_floating_point()):
        return None
    # What is added hides a key only where it is very negative; all other libraries turn numbers into bool.
    return rows != 0 if target in NON_ZERO_SHOWS else rows > -10_000


def _draw(axis: Axes, array: Tensor | None, seen: Tensor | None, title: str) -> None:
    """Draw an array with its entries, coloured by what a query sees, or a remark that there is none."""
    from mha_lib import plots

    axis.set_title(title, fontsize=7)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    if array is None:
        axis.text(0.5, 0.5, "not possible", ha="center", va="center", fontsize=7)
        return
    rows = array.reshape(-1, array.shape[-1])
    shades = torch.ones(rows.shape) if seen is None else seen[-len(rows) :].float()
    colors = "Purples" if seen is None else plots.COLORMAP
    axis.imshow(shades.numpy(), cmap=colors, vmin=0, vmax=10 if seen is None else 1)
    for query, row in enumerate(rows.tolist()):
        for key, entry in enumerate(row):
            color = "black" if shades[query, key] else "white"
            axis.text(
                *(key, query, _entry(entry)),
                ha="center",
                va="center",
                fontsize=7,
                color=color,
            )


def _entry(entry: float) -> str:
    """An entry of an array in at most three characters."""
    if isinstance(entry, bool):
        return "T" if entry else "F"
    if entry < 0:
        return "−∞" if entry == -torch.inf else "min"
    return f"{entry:.0f}"
