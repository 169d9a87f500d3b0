"""Properties that hypothesis checks: on few random arguments in `make test`, on many in `make test-all`."""

import functools
import inspect

import pytest
from hypothesis import HealthCheck, given, settings


def property_of(*, few=20, many=200, **strategies):
    """Make a function of drawn arguments a test; what it takes besides them comes from pytest as usual."""

    def decorate(check):
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
        @functools.wraps(check)
        def test(examples, **others):
            # The same draws in every run and on every machine, however slow it is.
            fixed = settings(
                derandomize=True, database=None, deadline=None, max_examples=examples,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )  # fmt: skip
            fixed(given(**strategies)(check))(**others)

        # The arguments that pytest passes: all except the drawn ones.
        del test.__wrapped__
        given_by_pytest = [name for name in inspect.signature(check).parameters if name not in strategies]
        test.__signature__ = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
                for name in ("examples", *given_by_pytest)
            ]
        )
        return test

    return decorate
