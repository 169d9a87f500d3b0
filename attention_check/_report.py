"""What a judgement consists of: a finding for each aspect, and the contract by which it was judged."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from mha_lib import _checks

RIGHT, WRONG, DIFFERS, NOT_TRIED = KINDS = ("right", "wrong", "differs", "not tried")


@dataclass(frozen=True, repr=False)
class Finding:
    """The finding in one aspect: its `kind` and, where there is something to say, a `message`.

    The kinds are "right", "wrong", "differs" (a convention: it is right elsewhere) and "not tried". A finding
    is true if it is "right".

    Raises:
        TypeError: `message` is not a str.
        ValueError: `kind` is none of the four.

    Example:
        >>> Finding("not tried", "it takes no mask")
        not tried: it takes no mask
        >>> assert Finding("right")
    """

    kind: str
    message: str = ""

    def __post_init__(self) -> None:
        _checks.check_choice("kind", self.kind, KINDS)
        _checks.check_type("message", self.message, str)

    def __bool__(self) -> bool:
        return self.kind == RIGHT

    def __repr__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True)
class Report:
    """The findings, aspect by aspect; true if something was tried and nothing is wrong.

    Attributes:
        findings: aspect -> `Finding`.
        contract: how the attention was called, in words.
        strict: whether what differs counts as wrong.
        pinned: the contract that was written down earlier; another one is a failure of its own.

    Example:
        >>> reason = Finding("not tried", "it takes no `is_causal`")
        >>> report = Report({"scores": Finding("right"), "causal": reason})
        >>> report
        scores         right
        causal         not tried: it takes no `is_causal`
        >>> report.status
        0
    """

    findings: Mapping[str, Finding]
    contract: str = ""
    strict: bool = False
    pinned: str = ""

    @property
    def changed(self) -> bool:
        """Whether the contract is another one than was pinned."""
        return self.pinned not in ("", self.contract)

    @property
    def status(self) -> int:
        """The exit status: 0 if nothing is wrong, 1 if something is, 2 if nothing could be tried."""
        kinds = {found.kind for found in self.findings.values()}
        if self.changed or WRONG in kinds or (self.strict and DIFFERS in kinds):
            return 1
        return 0 if kinds - {NOT_TRIED} else 2

    def __bool__(self) -> bool:
        return self.status == 0

    def __repr__(self) -> str:
        folded = partial(textwrap.fill, width=80, break_on_hyphens=False)
        judged = f"judged as: {self.contract}"
        lines = [folded(judged, subsequent_indent=" " * 11)] if self.contract else []
        if self.changed:
            pinned = f"pinned as: {self.pinned}. The contract has changed."
            lines.append(folded(pinned, subsequent_indent=" " * 11))
        for name, found in self.findings.items():
            lines.append(folded(f"{name:14} {found}", subsequent_indent=" " * 15))
        return "\n".join(lines)
