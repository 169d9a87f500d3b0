"""For pytest: `-p mha_lib.pytest_plugin` provides the fixture `assert_conforms`.

def test_my_attention(assert_conforms):
    assert_conforms(my_attention, mask="hidden")
"""

from collections.abc import Callable
from typing import Any

import pytest

from mha_lib.conformance import check


@pytest.fixture
def assert_conforms() -> Callable[..., None]:
    """A function with the arguments of `conformance.check` that fails with its report."""

    def conforms(attention: Callable[..., Any], **options: Any) -> None:
        report = check(attention, **options)
        assert report, f"\n{report}"

    return conforms
