"""Gradients of operations: for each input a function of the gradient of the result and of what it needs."""

from __future__ import annotations

from math import inf, log, pi

from . import _kernels
from ._memory import Strided


def _zero(g, *_):
    return g * 0


def _larger(sign):
    """Gradients of `maximum` (1) or `minimum` (-1); two equal numbers share theirs."""

    def of(mine, other):
        def gradient(g, *pair):
            own, against = pair[mine].to(g.dtype), pair[other].to(g.dtype)
            return g * ((own - against if sign > 0 else against - own).sign() * 0.5 + 0.5)

        return gradient

    return of(0, 1), of(1, 0)


def _of_base(g, base, exponent):
    if isinstance(exponent, Strided):
        return (g * exponent * base.pow(exponent - 1)).masked_fill(exponent == 0, 0.0)
    return g * (exponent * base.pow(exponent - 1)) if exponent else g * 0


def _of_exponent(g, base, exponent):
    base = base if isinstance(base, Strided) else exponent * 0 + base
    return (g * base.pow(exponent) * base.log()).masked_fill((base == 0) & (exponent >= 0), 0.0)


# Name -> a function for each input. These need no numbers of their inputs:
LINEAR = {
    "clone": (lambda g, *_: g,),
    "neg": (lambda g, *_: -g,),
    "add": (lambda g, *_: g, lambda g, *_: g),
    "sub": (lambda g, *_: g, lambda g, *_: -g),
    "deg2rad": (lambda g, *_: g * (pi / 180),),
    **dict.fromkeys(["sign", "floor", "ceil", "trunc", "round"], (_zero,)),
}
# These need the result:
OF_RESULT = {
    "exp": (lambda g, out: g * out,),
    "sqrt": (lambda g, out: g / (out * 2),),
    "rsqrt": (lambda g, out: g * out * out * out * -0.5,),
    "tanh": (lambda g, out: g * (1 - out * out),),
    "sigmoid": (lambda g, out: g * out * (1 - out),),
    "relu": (lambda g, out: g * out.sign(),),
}
# These need the inputs:
OF_INPUTS = {
    "log": (lambda g, x: g / x,),
    "log2": (lambda g, x: g / (x * log(2)),),
    "sin": (lambda g, x: g * x.cos(),),
    "cos": (lambda g, x: -(g * x.sin()),),
    "erf": (lambda g, x: g * (x.square().neg().exp() * (2 / pi**0.5)),),
    "abs": (lambda g, x: g * x.sign(),),
    "square": (lambda g, x: g * x * 2,),
    "mul": (lambda g, a, b: g * b, lambda g, a, b: g * a),
    "maximum": _larger(1),
    "minimum": _larger(-1),
    "pow": (_of_base, _of_exponent),
    "remainder": (lambda g, a, b: g, lambda g, a, b: -(g * _floored(a, b))),
    "masked_fill": (lambda g, x, mask, value: g.masked_fill(mask, 0.0), None,
                    lambda g, x, mask, value: g.masked_fill(~mask, 0.0)),
    "nan_to_num": (lambda g, x, *_: g * x.isfinite(),),
    "tril": (lambda g, x, diagonal=0: g.tril(diagonal),),
    "triu": (lambda g, x, diagonal=0: g.triu(diagonal),),
}  # fmt: skip
# A gradient of these needs no numbers of its own input, only of the others.
OF_OTHERS = {"mul", "masked_fill", "tril", "triu"}


def of(name):
    """Return what the gradients of an operation need, and the gradients."""
    for kind, table in {"nothing": LINEAR, "result": OF_RESULT, "inputs": OF_INPUTS}.items():
        if name in table:
            return kind, table[name]
    raise KeyError(name)


def _floored(a, b):
    return a.floor_divide(b) if isinstance(a, Strided) else b * 0 + a // b


def of_quotient(rounding_mode):
    """Return the gradients of a division; one that is rounded has none."""
    if rounding_mode is not None:
        return _zero, _zero
    return lambda g, a, b: g / b, lambda g, a, b: -(g * (a / b) / b)


def of_choice(chosen):
    """Return the gradients of `where`."""
    return None, lambda g: g.masked_fill(~chosen, 0.0), lambda g: g.masked_fill(chosen, 0.0)


def _within(g, x, low, high):
    """The gradient of a clamped tensor passes where it lies within the limits."""
    for limit, beyond in ((low, "lt"), (high, "gt")):
        g = g if limit is None else g.masked_fill(getattr(x, beyond)(limit), 0.0)
    return g


OF_CLAMP = (
    _within,
    lambda g, x, low, high: g.masked_fill(~(x < low if high is None else (x < low) & (low < high)), 0.0),
    lambda g, x, low, high: g.masked_fill(~(x > high if low is None else (x > high) | (low > high)), 0.0),
)


# ------------------------------------------------------------------ along axes
# Name -> a function of the gradient and the result, both with the axes of the input, the input, and its axes.
def _count(x, dims):
    found = 1
    for axis in dims:
        found *= x.shape[axis]
    return found


def _shared(g, out, x, dims):
    """Return the gradient of a largest or smallest number, which equal ones share."""
    best = (x == out).to(g.dtype)
    return g * best / best.sum(dims, True)


def _of_product(g, out, x, dims):
    """Return the gradient of a product: the product of the other numbers, one of which may be 0."""
    zero = x == 0
    many = zero.sum(dims, True)
    others = x.masked_fill(zero, 1.0).prod_along(dims)
    plain = (out / x.masked_fill(zero, 1.0)).masked_fill(many > 0, 0.0)
    return g * (plain + (others * zero).masked_fill(many != 1, 0.0))


REDUCED = {
    "sum": lambda g, out, x, dims: g,
    "mean": lambda g, out, x, dims: g / (_count(x, dims) or 1),
    "prod": _of_product,
    "amax": _shared,
    "amin": _shared,
    "logsumexp": lambda g, out, x, dims: g * (x - out.masked_fill(out == -inf, 0.0)).exp(),
}


def of_variance(less):
    """Return the gradient of a variance."""
    return lambda g, out, x, dims: g * (x - x.mean(dims, True)) * (2 / max(_count(x, dims) - less, 1e-300))


def of_norm(p):
    """Return the gradient of a norm; at 0 it is 0."""

    def gradient(g, out, x, dims):
        if p == inf:
            return _shared(g, out, x.abs(), dims) * x.sign()
        if p == 1:
            return g * x.sign()
        powers = x.sign() * x.abs().pow(p - 1) if p != 2 else x
        return (g * powers / out.pow(p - 1)).masked_fill((out == 0) | ((x == 0) if p < 2 else False), 0.0)

    return gradient


def of_softmax(dim):
    """Return the gradient of a softmax."""
    return _by_rows("softmax", dim, lambda g, out: out * (g - (g * out).sum(dim, True)))


def of_log_softmax(dim):
    """Return the gradient of the logarithm of a softmax."""
    return _by_rows("log_softmax", dim, lambda g, out: g - out.exp() * g.sum(dim, True))


def of_normed(eps):
    """Return the gradient of `normed`, over the last axis."""

    def gradient(g, out, x):
        scale = (x.var(-1, correction=0, keepdim=True) + eps).rsqrt()
        return scale * (g - g.mean(-1, True) - out * (g * out).mean(-1, True))

    return _by_rows("normed", -1, gradient, eps)


def _by_rows(name, dim, definition, extra=0.0):
    """Return a gradient by rows: that of the kernel where there is one, or else its definition."""

    def gradient(g, out, *source):
        is_last = dim in (-1, out.ndim - 1)
        made = _kernels.rows_gradient(name, g, out, *source, extra=extra) if is_last else None
        return definition(g, out, *source) if made is None else made

    return gradient
