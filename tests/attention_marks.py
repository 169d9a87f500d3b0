"""Paths and dtypes of attention that tests go through, and what of them is slow."""

import pytest
import torch

BOTH_PATHS = pytest.mark.parametrize("need_weights", [True, False], ids=["readable", "fused"])
HALVES = (torch.bfloat16, torch.float16)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
# The largest allowed difference between attention and the loop, by dtype.
ERRORS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# torch.compile looks into every function, also into the shape checks of tests/conftest.py.
TRACED = pytest.mark.no_shape_checks
SLOW = pytest.mark.slow


def slow(*values):
    """A case that only `make test-all` runs."""
    return pytest.param(*values, marks=SLOW)


# For tests that take seconds on each path; with weights, the traced operations are as in any other function.
FUSED_FIRST = pytest.mark.parametrize("need_weights", [slow(True), False], ids=["readable", "fused"])
