"""What a new run of a notebook has in common with what it stores: text, figures, the state of widgets.

The processors of two machines round differently, and training carries the last digits further. How far was
measured with torch's plain kernels in place of the vectorised ones (ATEN_CPU_CAPABILITY=default): one printed
line changed, which says that it may; of the figures three did, all after training, in fewer than 0.7 % of
their tiles; stored states changed in the fifth digit.
"""

import base64
import binascii
import re
from collections.abc import Iterator

import numpy as np
from figures import figure_fault
from run_notebooks import normalise
from stored_notebooks import WIDGET_STATE, WIDGET_VIEW

TILES_AFTER_TRAINING = 0.01
"""The share of tiles that may differ all the same where a cell trains. A curve fills more."""

# A version, such as 2.13.0, is a word.
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?%?(?!\w|[.,]\d)")
AFTER_TRAINING = 0.02
STATE = {"rtol": 1e-3, "atol": 1e-4}


def figures_of(outputs):
    """The figures among the outputs of a cell, as PNG files in base64; the still of a widget is none."""
    found = [output.get("data", {}) for output in outputs]
    return [data["image/png"] for data in found if "image/png" in data and WIDGET_VIEW not in data]


def figure_faults(new, stored, *, trained=False) -> Iterator[str]:
    """How the figures of a new run differ from the stored ones, tile by tile."""
    if len(new) != len(stored):
        yield f"{len(stored)} figures are stored, the cell makes {len(new)}"
        return
    for number, pair in enumerate(zip(new, stored, strict=True)):
        if fault := figure_fault(*pair, share=TILES_AFTER_TRAINING if trained else 0):
            yield f"figure {number}: {fault}"


def text_faults(new, stored) -> Iterator[str]:
    """How printed text differs after training: words not at all, numbers within a tolerance."""
    for kind in ("text", "text/plain", "text/html", "text/markdown"):
        both = ("\n".join(texts(outputs, kind)) for outputs in (new, stored))
        pieces = [re.sub(r"(?<=\(yours may differ\): ).+", "", text) for text in both]
        words = [NUMBER.sub("#", text) for text in pieces]
        if words[0] != words[1]:
            yield f"{kind}: {words[0]!r} where {words[1]!r} is stored (numbers are written as #)"
            continue
        for run, kept in zip(*map(NUMBER.findall, pieces), strict=True):
            if not close(run, kept):
                yield f"{kind}: {run} where {kept} is stored"


def texts(outputs, kind):
    """Texts of one kind; what a widget or figure says about itself in plain text names an address."""
    for output in outputs:
        data = output.get("data", {})
        if kind == "text" and "text" in output:
            yield output["text"]
        elif kind in data and not {WIDGET_VIEW, "image/png"} & data.keys():
            yield data[kind]


def value_of(number):
    """The value of a printed number, a percentage as a share."""
    value = float(number.replace("−", "-").replace(",", "").rstrip("%"))
    return value / 100 if number.endswith("%") else value


def close(new, stored):
    """Whether two printed numbers are equal, or, unless they are whole, nearly equal."""
    percent = stored.endswith("%")
    if new.endswith("%") != percent:
        return False
    if "." not in stored and not percent:
        return value_of(new) == value_of(stored)
    digits = len(stored.rstrip("%").partition("e")[0].partition(".")[2])
    unit = 10.0 ** -(digits + 2 * percent)  # of the last printed digit
    return np.isclose(value_of(new), value_of(stored), rtol=AFTER_TRAINING, atol=1.01 * unit)


def state_of_run(notebook, outputs, states):
    """The widget state that a notebook would store after a run.

    `outputs` maps the ids of cells to their new outputs, `states` is what the kernel's widgets hold.
    """
    again = normalise(notebook)
    for cell in again.cells:
        if cell.id in outputs:
            cell.outputs = outputs[cell.id]
    again.metadata["widgets"] = {WIDGET_STATE: {"state": states}}
    return stored_state(normalise(again))


def stored_state(notebook):
    """The state of the widgets that a notebook shows: model -> name, module and values."""
    return notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})


def state_faults(new, stored, path="") -> Iterator[str]:
    """How two states differ: names, texts and counts not at all, numbers within a tolerance."""
    if isinstance(new, dict) and isinstance(stored, dict):
        for key in sorted(new.keys() | stored.keys()):
            if key not in new or key not in stored:
                yield f"{path}/{key} is {'not made' if key in stored else 'not stored'}"
            else:
                yield from state_faults(new[key], stored[key], f"{path}/{key}")
    elif isinstance(new, list) and isinstance(stored, list):
        if len(new) != len(stored):
            yield f"{path}: {len(stored)} entries are stored, the run has {len(new)}"
        else:
            for index, pair in enumerate(zip(new, stored, strict=True)):
                yield from state_faults(*pair, f"{path}/{index}")
    elif new != stored and not same_numbers(new, stored):
        yield f"{path}: {str(stored)[:60]!r} is stored, the run has {str(new)[:60]!r}"


def same_numbers(new, stored):
    """Whether two different values are numbers, or numbers packed as widgets do, and nearly equal."""
    either = isinstance(new, bool) or isinstance(stored, bool)
    if either or (isinstance(new, int) and isinstance(stored, int)):
        return False  # a count differs
    if isinstance(new, str) and isinstance(stored, str):
        new, stored = unpacked(new), unpacked(stored)
    elif not (isinstance(new, int | float) and isinstance(stored, int | float)):
        return False
    if new is None or stored is None or np.shape(new) != np.shape(stored):
        return False
    return bool(np.allclose(new, stored, **STATE))


def unpacked(text):
    """The float32 numbers that a text holds in base64, or None if it holds none.

    Packed bytes, such as tokens, would be read as numbers far too small or too large for a weight.
    """
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not packed or len(packed) % 4:
        return None
    numbers = np.frombuffer(packed, dtype="<f4")
    sizes = np.abs(numbers[numbers != 0])
    return numbers if ((sizes > 1e-9) & (sizes < 1e9)).all() else None
