"""What a judgement consists of: a finding for each aspect, and the contract by which it was judged."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from attention_check._results import listed
from attention_check._verdicts import Verdict
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
    call: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _checks.check_choice("kind", self.kind, KINDS)
        _checks.check_type("message", self.message, str)
        _checks.check_type("call", self.call, str)

    def __bool__(self) -> bool:
        return self.kind == RIGHT

    def __repr__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def finding_of(verdict: Verdict) -> Finding:
    """A verdict as a finding: what is right elsewhere only differs."""
    if verdict:
        return Finding(RIGHT)
    convention = verdict.fault is not None and verdict.fault.convention
    return Finding(
        DIFFERS if convention else WRONG, verdict.message.removeprefix("Not yet: ")
    )


@dataclass(frozen=True)
class Report:
    """The findings, aspect by aspect; true if something was tried and nothing is wrong.

    Attributes:
        findings: aspect -> `Finding`.
        contract: how the attention was called, in words.
        strict: whether what differs counts as wrong.
        pinned: the contract that was written down earlier; another one is a failure of its own.
        accept: aspects whose findings are known and no failure.

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
    accept: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in self.accept:
            _checks.check_choice("accept", name, self.findings)

    @property
    def changed(self) -> bool:
        """Whether the contract is another one than was pinned."""
        return self.pinned not in ("", self.contract)

    @property
    def status(self) -> int:
        """The exit status: 0 if nothing is wrong, 1 if something is, 2 if nothing could be tried."""
        every = self.findings.items()
        kinds = {found.kind for name, found in every if name not in self.accept}
        if self.changed or WRONG in kinds or (self.strict and DIFFERS in kinds):
            return 1
        return 0 if any(found.kind != NOT_TRIED for _, found in every) else 2

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
            known = name in self.accept and found.kind in (WRONG, DIFFERS)
            said = f"{name:14} {'accepted, ' * known}{found}"
            lines.append(folded(said, subsequent_indent=" " * 15))
            if found.call:  # one line, so that it can be pasted
                lines += [" " * 15 + "The smallest call that shows it:", found.call]
        return "\n".join(lines)


def report_of_model(
    reports: Mapping[str, Report], strict: bool, accept: Collection[str]
) -> Report:
    """One report on the attention layers of a model, with a finding for each."""
    findings: dict[str, Finding] = {}
    for path, report in reports.items():
        told = report.findings.items()
        kinds = {one.kind for one in report.findings.values()}
        kind = next(one for one in (WRONG, DIFFERS, RIGHT, NOT_TRIED) if one in kinds)
        right = listed([aspect for aspect, one in told if one])
        said = [f"{aspect}: {one.message}" for aspect, one in told if one.kind == kind]
        if kind == RIGHT:
            said = [right]
        elif right:
            said.append(f"Right: {right}.")
        calls = (one.call for _, one in told if one.call)
        findings[path] = Finding(kind, " ".join(said), next(calls, ""))
    contracts = Counter(report.contract for report in reports.values())
    judged = "; ".join(f"{count} × {one}" for one, count in contracts.items())
    return Report(findings, f"model, {judged}", strict, accept=accept)
