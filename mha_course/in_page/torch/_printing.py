"""How a tensor is printed: four digits, in columns, the middle of a long axis left out."""

from __future__ import annotations

from math import ceil, inf, prod

from ._memory import BOOL, FLOAT, float32

EDGE, MOST, WIDTH = 3, 1000, 80  # of a long axis, of all numbers, of a line


def shown(tensor):
    """Return the text of a tensor, as `print` shows it."""
    dtype, size = tensor.dtype, tuple(tensor.shape)
    usual, more = dtype.kind in (BOOL, 1) and dtype.itemsize != 4 or dtype is float32, []
    if tensor.is_meta:
        body, more, usual = "...", [f"device='meta', size={size}"], dtype is float32
    elif 0 in size:
        body, usual = "[]", dtype is float32
        more = [f"size={size}"] if tensor.ndim > 1 else []
    else:
        short = tensor.numel() > MOST
        body = _nested(tensor, 7, short, _writer(_seen(tensor, short)))
    more += [] if usual else [f"dtype={dtype}"]
    more += ["requires_grad=True"] if tensor.requires_grad else []
    for part in more:
        last = len(body) - body.rfind("\n") + (7 if "\n" not in body else 0)
        fits = last + len(part) + 3 <= WIDTH
        body += f", {part}" if fits else f",\n       {part}"
    return f"tensor({body})"


def _seen(tensor, short):
    """Return the numbers that are shown."""
    if not tensor.ndim:
        return [tensor.item()]
    if not short:
        return tensor.flatten().tolist()
    size, rows = tensor.shape[0], range(tensor.shape[0])
    rows = rows if size <= 2 * EDGE else [*rows[:EDGE], *rows[-EDGE:]]
    return [x for row in rows for x in _seen(tensor[row], short)]


def _writer(numbers):
    """Return a function that writes each of these numbers with the same width."""
    if not isinstance(numbers[0], float):
        width = max(len(str(x)) for x in numbers)
        return lambda x: str(x).rjust(width)
    finite = [x for x in numbers if x and abs(x) < inf]
    sizes = [abs(x) for x in finite] or [1.0]
    low, high = min(sizes), max(sizes)
    pattern, dot = ".4f", ""
    if finite and (high / low > 1000 or high > 1e8 or low < 1e-4):
        pattern = ".4e"
    elif all(x == ceil(x) for x in finite):
        pattern, dot = ".0f", "."
    width = max((len(f"{x:{pattern}}{dot}") for x in finite), default=1)
    return lambda x: (f"{x:{pattern}}" + dot * (abs(x) < inf)).rjust(width)


def _nested(tensor, indent, short, write):
    if not tensor.ndim:
        return write(tensor.item())
    size = tensor.shape[0]
    cut = short and size > 2 * EDGE
    rows = [*range(EDGE), *range(size - EDGE, size)] if cut else range(size)
    if tensor.ndim > 1:
        parts = [_nested(tensor[row], indent + 1, short, write) for row in rows]
        parts[EDGE:EDGE] = ["..."] if cut else []
        return "[" + ("," + "\n" * (tensor.ndim - 1) + " " * (indent + 1)).join(parts) + "]"
    parts = [write(tensor[row].item()) for row in rows]
    count = max(1, (WIDTH - indent) // (len(parts[0]) + 2))
    parts[EDGE:EDGE] = [" ..."] if cut else []
    lines = [", ".join(parts[i : i + count]) for i in range(0, len(parts), count)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
