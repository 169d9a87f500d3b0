"""Checks of arguments that only the course needs; those of the library are in `mha_lib._checks`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mha_lib._checks import check_int, check_type, refusal


def check_seed(name: str, value: object) -> None:
    """Raise unless `value` is an int that every generator accepts as a seed."""
    if not 0 <= check_int(name, value) < 2**32:
        raise refusal(name, "lie in 0..2^32-1", value)


def check_kept_name(name: object) -> str:
    """Return `name` if a widget can store the reader's answers under it; "" means that it stores none."""
    check_type("name", name, str)
    assert isinstance(name, str)
    if not re.fullmatch(r"[\w.-]*", name, re.ASCII):
        rule = "hold only letters, digits, '.', '_' and '-'"
        raise refusal("name", rule, repr(name))
    return name


def check_text(name: str, text: object) -> None:
    """Raise unless `text` is a str that is not blank."""
    check_type(name, text, str)
    if not str(text).strip():
        raise refusal(name, "not be empty", repr(text))


def check_texts(name: str, texts: Any) -> list[str]:
    """Return `texts` as a list, if it is a sequence of str."""
    check_type(name, texts, Sequence)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{name} must be a sequence of str, got {texts!r}")
    return list(texts)
