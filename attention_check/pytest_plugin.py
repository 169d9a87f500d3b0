"""For pytest, which finds this plugin where `attention_check` is installed: fixtures that judge.

def test_my_attention(assert_conforms):
    assert_conforms(my_attention, mask="hidden")
"""

from collections.abc import Callable
from typing import Any

import pytest

import attention_check


def _failing(check: str) -> Callable[..., None]:
    """A function with the arguments of a check, which fails with its report."""

    def conforms(answer: Any, **options: Any) -> None:
        __tracebackhide__ = True
        report = getattr(attention_check, check)(answer, **options)
        if not report:
            pytest.fail(f"\n{report}")

    return conforms


@pytest.fixture
def assert_conforms() -> Callable[..., None]:
    """A function with the arguments of `attention_check.check` that fails with its report."""
    return _failing("check")


@pytest.fixture
def assert_rotary() -> Callable[..., None]:
    """The same with the arguments of `attention_check.check_rotary`."""
    return _failing("check_rotary")


@pytest.fixture
def assert_decoding() -> Callable[..., None]:
    """The same with the arguments of `attention_check.check_decoding`."""
    return _failing("check_decoding")


@pytest.fixture
def assert_results() -> Callable[..., None]:
    """The same with the argument of `attention_check.check_results`."""
    return _failing("check_results")
