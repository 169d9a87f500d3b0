"""Functions of numbers and of rows of numbers, with torch's results where Python raises an error."""

from __future__ import annotations

import math
import operator
from itertools import accumulate
from math import copysign, inf, nan


def _log(x):
    return nan if x < 0 else -inf


def _whole(function):
    """Return a function that rounds a number; what it makes of a negative one keeps its sign, even 0."""
    return lambda x: x if isinstance(x, int) else copysign(float(function(x)), x)


def quotient(a, b):
    """Return a / b where b may be 0."""
    return a / b if b else nan if a == 0 or a != a else copysign(inf, a) * copysign(1, b)


def towards_zero(a, b):
    """Return a quotient without its fraction."""
    return (
        copysign(math.trunc(a / b), a / b)
        if isinstance(a, float)
        else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    )


def remainder(a, b):
    """Return a % b where b may be 0, and a infinite."""
    return nan if b == 0 or abs(a) == inf else a % b


def power(a, b):
    """Return a to the power b, infinite or NaN where there is no such number."""
    if isinstance(a, int) and isinstance(b, int):
        return a**b if b >= 0 else a ** (b % 2) if abs(a) == 1 else 0
    try:
        return math.pow(a, b)
    except OverflowError:
        return -inf if a < 0 and b % 2 else inf
    except ValueError:
        return nan if a else inf


# Name -> the function, and the result where Python raises an error; integers become floating-point numbers.
OF_FLOATS = {
    "exp": (math.exp, lambda _: inf),
    "log": (math.log, _log),
    "log2": (math.log2, _log),
    "sqrt": (math.sqrt, lambda _: nan),
    "rsqrt": (lambda x: 1 / math.sqrt(x), lambda x: nan if x else copysign(inf, x)),
    "sin": (math.sin, lambda _: nan),
    "cos": (math.cos, lambda _: nan),
    "tanh": (math.tanh, None),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), lambda _: 0.0),
    "erf": (math.erf, None),
    "deg2rad": (math.radians, None),
}
# Integers stay integers.
OF_ANY = {
    "abs": (abs, None),
    "square": (lambda x: x * x, None),
    "sign": (lambda x: (x > 0) - (x < 0), None),
    "floor": (_whole(math.floor), lambda x: x),
    "ceil": (_whole(math.ceil), lambda x: x),
    "trunc": (_whole(math.trunc), lambda x: x),
    "round": (_whole(round), lambda x: x),
    "relu": (lambda x: 0 if x < 0 else x, None),
    "add": (operator.add, None),
    "mul": (operator.mul, None),
    "maximum": (lambda a, b: a if a > b or a != a else b, None),
    "minimum": (lambda a, b: a if a < b or a != a else b, None),
}
# The result is bool.
TESTS = {
    "isnan": lambda x: x != x,
    "isinf": lambda x: abs(x) == inf,
    "isfinite": lambda x: abs(x) < inf,
    "logical_not": operator.not_,
    "logical_and": lambda a, b: bool(a and b),
    "logical_or": lambda a, b: bool(a or b),
    **{name: getattr(operator, name) for name in "lt le gt ge eq ne".split()},
}
BITS = {"bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor}


def place_of(best):
    """Return a function that finds the index of the `max` or `min` of a row, or of its first NaN."""

    def find(row):
        strange = [i for i, x in enumerate(row) if x != x]
        return strange[0] if strange else row.index(best(row))

    return find


def extreme(best):
    """Return a function that finds the `max` or `min` of a row, or a NaN."""
    place = place_of(best)
    return lambda row: row[place(row)]


def order(row, descending=False):
    """Return the indices that sort the numbers; NaN is the largest."""
    keys = [(x != x, x) for x in row]
    return sorted(range(len(row)), key=keys.__getitem__, reverse=descending)


def middle(row):
    """Return the index of the lower one of the middle numbers, or of the first NaN."""
    strange = [i for i, x in enumerate(row) if x != x]
    return strange[0] if strange else order(row)[(len(row) - 1) // 2]


def mean(row):
    """Return the mean; NaN if there are no numbers."""
    return sum(row) / len(row) if row else nan


def variance(row, correction):
    """Return the variance; NaN or infinity if the divisor is 0."""
    centre = mean(row)
    return quotient(sum((x - centre) ** 2 for x in row), max(len(row) - correction, 0)) if row else nan


def logsumexp(row):
    """Return the logarithm of the sum of exponentials."""
    largest = max(row, default=-inf)
    if any(x != x for x in row) or abs(largest) == inf:
        return nan if any(x != x for x in row) else largest
    return largest + math.log(sum(math.exp(x - largest) for x in row))


def log_softmax(row):
    """Return the logarithms of the softmax."""
    total = logsumexp(row)
    return [x - total if abs(total) < inf else nan for x in row]


def softmax(row):
    """Return exponentials divided by their sum."""
    largest = max(row, default=0.0)
    if any(x != x for x in row) or abs(largest) == inf:
        return [nan] * len(row)
    powers = [math.exp(x - largest) for x in row]
    total = sum(powers)
    return [x / total for x in powers]


# Name -> a function of rows, the dtype of its result ("whole": integers become int64), whether rows remain.
BY_ROW = {
    "sum": (sum, "whole", False),
    "prod": (math.prod, "whole", False),
    "any": (any, "bool", False),
    "all": (all, "bool", False),
    "amax": (extreme(max), "", False),
    "amin": (extreme(min), "", False),
    "argmax": (place_of(max), "long", False),
    "argmin": (place_of(min), "long", False),
    "logsumexp": (logsumexp, "", False),
    "cumsum": (lambda row: list(accumulate(row)), "whole", True),
}
