"""The command `python -m attention_check`."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import pkgutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from attention_check._aspects import ASPECTS
from attention_check._check import check
from attention_check._contract import CHOICES
from attention_check._report import Report
from attention_check._vectors import check_results, vectors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the `arguments` of a command line, by default those of this process; see `--help`.

    The exit status is 0 if nothing is wrong, 1 if something is, 2 if nothing could be tried.

    Raises:
        SystemExit: the arguments are invalid.

    Example:
        >>> main(["torch.nn.functional:scaled_dot_product_attention", "--tries", "scores"])
        judged as: function, query, key, value, (batch, heads, len, head_dim) · mask
                   (batch, heads, q_len, k_len), True = visible · causal by `is_causal`
                   · float32 · CPU
        scores         right
        0
    """
    parser = argparse.ArgumentParser(
        prog="python -m attention_check", description="Is my attention right?"
    )
    add = parser.add_argument
    add("attention", nargs="?", help="module:function, or module:layer")
    for option, choices in CHOICES.items():
        add(f"--{option}", choices=choices, default=choices[0])
    add("--tries", nargs="+", choices=ASPECTS, metavar="ASPECT")
    add(
        "--strict",
        action="store_true",
        help="a convention that differs counts as wrong",
    )
    add("--json", action="store_true", help="print the report as JSON")
    add("--seconds", type=float, default=120.0, help="give up after this time")
    add("--vectors", action="store_true", help="print the cases as JSON")
    add("--results", metavar="FILE", help="judge a JSON list of outputs")
    add(
        "--version",
        action="version",
        version=importlib.metadata.version("attention-check"),
    )
    given = parser.parse_args(arguments)
    if given.vectors:
        json.dump(vectors(), sys.stdout)
        return 0
    if not given.results and not (given.attention or "").partition(":")[2]:
        parser.error("an attention is needed, as module:function")
    try:
        # What it prints is not the report.
        with limited(given.seconds), redirect_stdout(io.StringIO()):
            report = reported(given)
    # Whatever somebody's module does when it is imported.
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        kind = (
            ""
            if isinstance(error, (TypeError, ValueError, OSError))
            else f"{type(error).__name__}: "
        )
        print(f"could not be tried: {kind}{said}", file=sys.stderr)
        return 2
    print(json.dumps(as_json(report), ensure_ascii=False) if given.json else report)
    return report.status


def reported(given: argparse.Namespace) -> Report:
    """The report on what a command line names."""
    if given.results:
        return check_results(json.loads(Path(given.results).read_text("utf-8")))
    sys.path.insert(0, "")  # find modules as `python -m` does
    options = {name: getattr(given, name) for name in (*CHOICES, "tries", "strict")}
    return check(pkgutil.resolve_name(given.attention), **options)


def as_json(report: Report) -> dict[str, Any]:
    """A report in a form that JSON supports."""
    found = {
        name: {"verdict": one.kind, "message": one.message}
        for name, one in report.findings.items()
    }
    return {
        "version": importlib.metadata.version("attention-check"),
        "contract": report.contract,
        "status": report.status,
        "findings": found,
    }


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in code that runs for longer, where the system has such an alarm."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds:g} seconds")

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
