"""How a tensor is printed: four digits, in columns, the middle of a long axis left out."""

from __future__ import annotations

from math import ceil, inf

from ._memory import NeedsTorchError, float32, int32, need

options = {"precision": 4, "sci_mode": None}
EDGE, MOST, WIDTH = 3, 1000, 80  # numbers at the ends of a long axis, numbers of all, letters of a line


def set_printoptions(precision=4, sci_mode=None, profile=None):
    options.update(precision=precision, sci_mode=sci_mode)


def shown(tensor):
    """Return the text of a tensor, as `print` shows it."""
    dtype, more = tensor.dtype, []
    usual = dtype is float32 or (not tensor.is_floating_point() and dtype is not int32)
    if tensor.is_meta or 0 in tensor.shape:
        body, usual = "..." if tensor.is_meta else "[]", dtype is float32
        more += ["device='meta'"] if tensor.is_meta else []
        more += [f"size={tuple(tensor.shape)}"] if tensor.is_meta or tensor.ndim > 1 else []
    else:
        short = EDGE if tensor.numel() > MOST else tensor.numel()
        body = _nested(tensor, 7, short, _writer(_seen(tensor, short)))
    more += [] if usual else [f"dtype={dtype}"]
    made_by = tensor.grad_fn
    if made_by is not None:
        more += [f"grad_fn=<{tensor._said or made_by.name()}>"]
    elif tensor.requires_grad:
        more += ["requires_grad=True"]
    for part in more:
        last = len(body) - body.rfind("\n") + (7 if "\n" not in body else 0)
        body += f", {part}" if last + len(part) + 3 <= WIDTH else f",\n       {part}"
    return f"tensor({body})"


def _ends(size, short):
    return range(size) if size <= 2 * short else [*range(short), *range(size - short, size)]


def _seen(tensor, short):
    """Return the numbers that are shown."""
    if not tensor.ndim:
        return [tensor.item()]
    return [x for i in _ends(len(tensor), short) for x in _seen(tensor[i], short)]


def _writer(numbers):
    """Return a function that writes each of these numbers with the same width."""
    if not isinstance(numbers[0], float):
        width = max(len(str(x)) for x in numbers)
        return lambda x: str(x).rjust(width)
    finite = [x for x in numbers if x and abs(x) < inf]
    low, high = min(map(abs, finite), default=1.0), max(map(abs, finite), default=1.0)
    digits, large, whole = options["precision"], options["sci_mode"], all(x == ceil(x) for x in finite)
    large = high / low > 1000 or high > 1e8 or low < 1e-4 if large is None else large
    pattern, dot = (f".{digits}e", "") if large else (".0f", ".") if whole else (f".{digits}f", "")
    width = max((len(f"{x:{pattern}}{dot}") for x in finite), default=1)
    return lambda x: (f"{x:{pattern}}" + dot * (abs(x) < inf)).rjust(width)


def _nested(tensor, indent, short, write):
    if not tensor.ndim:
        return write(tensor.item())
    parts = [_nested(tensor[i], indent + 1, short, write) for i in _ends(len(tensor), short)]
    count = max(1, (WIDTH - indent) // (len(parts[0]) + 2)) if tensor.ndim == 1 else 1
    parts[short:short] = [" ..." if tensor.ndim == 1 else "..."] if len(tensor) > 2 * short else []
    lines = [", ".join(parts[i : i + count]) for i in range(0, len(parts), count)]
    return "[" + ("," + "\n" * max(tensor.ndim - 1, 1) + " " * (indent + 1)).join(lines) + "]"


class Array:
    """What `numpy()` returns: numbers to be rounded and printed, as NumPy prints them; nothing else."""

    def __init__(self, tensor, digits=None):
        need(not tensor.requires_grad, "can't call numpy() on a tensor that requires gradients: use detach()")
        self._tensor, self._digits = tensor, digits

    def round(self, decimals=0):
        return Array(self._tensor, decimals)

    def __repr__(self):
        raise NeedsTorchError("arrays of NumPy need")

    def __str__(self):
        need(self._digits is not None, "arrays of NumPy that are not rounded need", NeedsTorchError)
        numbers = [f"{x:.{self._digits}f}".rstrip("0").split(".") for x in self._tensor.flatten().tolist()]
        left, right = (max(map(len, part), default=0) for part in zip(*numbers, strict=True))
        texts = iter([f"{a.rjust(left)}.{b.ljust(right)}" for a, b in numbers])

        def rows(shape, indent):
            if not shape:
                return next(texts)
            between = "\n" * (len(shape) - 1) + " " * (indent if len(shape) > 1 else 1)
            return f"[{between.join(rows(shape[1:], indent + 1) for _ in range(shape[0]))}]"

        return rows(self._tensor.shape, 1)

    def __getattr__(self, name):
        raise NeedsTorchError("arrays of NumPy need")
