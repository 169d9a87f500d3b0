"""The mask translator: one mask in the conventions of all libraries, and an array passed untranslated."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import torch
import traitlets as t
from torch import Tensor

from mha_course.widgets._base import Explorer
from mha_course.widgets._traits import Choice, Text, unfit
from mha_lib.masking import causal_mask

MAX_LEN = 6
"""With more keys, a mask would not fit into half the width of a phone."""

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
"""A floating-point mask of 1 and 0, as from `mask.float()`, which is not the convention of any library."""

LENGTHS = ("valid_lens", "jax_lengths")
SAME_ARGUMENT = ("sdpa_added", "hf_extended")
"""Conventions that are a second form of an argument in the list."""

ONE_ROW = ("key_mask", "module_key_padding_mask", "hf_attention_mask")
"""Arguments with one row of keys for each sample, for all its queries."""

BOOL_ONLY = ("attn_mask", "key_mask", "jax_mask")
TRUE_HIDES = ("module_attn_mask", "module_key_padding_mask")
NO_INTEGERS = ("sdpa_mask", *TRUE_HIDES)
NON_ZERO_SHOWS = ("hf_attention_mask", "keras_mask")

SOURCES = (*(name for name in CONVENTIONS if name not in LENGTHS), ONES)
TARGETS = tuple(name for name in CONVENTIONS if name not in (*LENGTHS, *SAME_ARGUMENT))


def _numpy(array: Tensor | None) -> Any:
    """What JAX, Keras and ONNX take."""
    return None if array is None else np.asarray(array)


class MaskTranslator(Explorer):
    """Paint who may attend to whom, and read the same mask in the conventions of all libraries.

    For each convention of the appendix Mask Rosetta, the page shows the argument, its shape, dtype and array,
    or why the convention cannot express the mask. The second view passes an array that was written in one
    convention to an argument of a different one, and marks each cell that is then read wrongly. It adjusts
    the axes as far as possible and leaves the entries unchanged.

    Args:
        visible: one group of digits for each of 1 to 6 queries, one digit for each of 2 to 6 keys, 1 = may
            attend, such as "110 111".
        shown: "conventions", or "mistake" for an array that is passed untranslated.
        source: the convention of the passed array, a key of `numbers`; or "ones_mask" for 1 and 0 in floating
            point.
        target: the convention of the argument that receives the array.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

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
            rule = f"be 1 to {MAX_LEN} groups of 2 to {MAX_LEN} digits 0 or 1"
            raise unfit("visible", f"{rule}, of equal length", repr(proposal.value))
        return str(proposal.value)

    @staticmethod
    def _compute(visible: str, shown: str, source: str, target: str) -> dict[str, Any]:
        mask = _parse(visible)
        arrays = {**_written(mask), "ones_mask": mask.float()}
        # The array that nobody translated, and how another library reads it.
        written = arrays.get(source) if shown == "mistake" else None
        read = None if written is None else _read(written, mask, target)
        of = arrays if shown == "conventions" else {}
        return {
            "mask": mask,
            "attn_mask": of.get("attn_mask"),
            "key_mask": of.get("key_mask"),
            "valid_lens": of.get("valid_lens"),
            "sdpa_mask": of.get("sdpa_mask"),
            "sdpa_added": of.get("sdpa_added"),
            "module_attn_mask": of.get("module_attn_mask"),
            "module_key_padding_mask": of.get("module_key_padding_mask"),
            "hf_attention_mask": of.get("hf_attention_mask"),
            "hf_extended": of.get("hf_extended"),
            "jax_mask": _numpy(of.get("jax_mask")),
            "jax_lengths": _numpy(of.get("jax_lengths")),
            "keras_mask": _numpy(of.get("keras_mask")),
            "onnx_mask": _numpy(of.get("onnx_mask")),
            "written": written,
            "read": read,
            "wrong": None if read is None else read != mask,
        }


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


def _read(written: Tensor, mask: Tensor, target: str) -> Tensor | None:
    """Which keys an argument shows if it is given this array; None if it refuses its dtype or its shape."""
    rows = written.reshape(-1, mask.shape[1])
    if target in ONE_ROW and len(rows) > 1:
        return None
    if rows.dtype == torch.bool:
        read = ~rows if target in TRUE_HIDES else rows
    elif target in BOOL_ONLY or (
        target in NO_INTEGERS and not rows.is_floating_point()
    ):
        return None
    else:
        # What is added hides a key only where it is very negative; others turn numbers into bool.
        read = rows != 0 if target in NON_ZERO_SHOWS else rows > -10_000
    return read.expand_as(mask)
