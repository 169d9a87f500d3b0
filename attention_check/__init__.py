"""Is my attention right? Judge any attention against the formula in float64, and name its fault.

In Python, call `check`. From a shell, with exit status 1 if something is wrong (`--help` lists options):

    python -m attention_check my_package.my_module:my_attention

For other languages, `--vectors` prints cases as JSON, and `--results FILE` judges the results. In pytest, the
plugin `attention_check.pytest_plugin` provides the fixture `assert_conforms`.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Finding", "Report", "__version__", "check", "check_decoding", "check_results", "check_rotary",
    "main", "vectors",
]  # fmt: skip

if TYPE_CHECKING:
    from attention_check._check import check
    from attention_check._command import (
        check_decoding,
        check_results,
        check_rotary,
        main,
        vectors,
    )
    from attention_check._contract import Finding, Report


def __getattr__(name: str) -> Any:
    """Import torch where it is needed first: pytest loads the plugin also for tests that use none of this."""
    if name in __all__:
        from attention_check import _command

        return vars(_command)[name]  # it also uses all others
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
