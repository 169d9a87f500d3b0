"""For pytest, which finds this plugin where `attention_check` is installed: the fixture `assert_conforms`.

def test_my_attention(assert_conforms):
    assert_conforms(my_attention, mask="hidden")
"""

from collections.abc import Callable
from typing import Any

import pytest

import attention_check


@pytest.fixture
def assert_conforms() -> Callable[..., None]:
    """A function with the arguments of `attention_check.check` that fails with its report."""

    def conforms(attention: Callable[..., Any], **options: Any) -> None:
        report = attention_check.check(attention, **options)
        assert report, f"\n{report}"

    return conforms
