"""The part of torch.testing that the pages use."""

from __future__ import annotations

from ._functions import as_tensor
from ._memory import float16, float32, float64, need


def assert_close(actual, expected, *, rtol=None, atol=None, equal_nan=False, **_):
    if isinstance(expected, (list, tuple)):
        for pair in zip(actual, expected, strict=True):
            assert_close(*pair, rtol=rtol, atol=atol, equal_nan=equal_nan)
        return
    actual, expected = as_tensor(actual), as_tensor(expected)
    same = actual.shape == expected.shape and actual.dtype is expected.dtype
    need(same, f"{actual.shape} {actual.dtype} is not {expected.shape} {expected.dtype}", AssertionError)
    usual = {float32: (1.3e-6, 1e-5), float64: (1e-7, 1e-7), float16: (1e-3, 1e-5)}.get(actual.dtype, (0, 0))
    close = actual.isclose(expected, *(usual if rtol is None else (rtol, atol)), equal_nan)
    need(close.all(), f"{(~close).sum()} of {close.numel()} numbers are not close", AssertionError)
