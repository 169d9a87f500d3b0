"""The command `python -m attention_check`."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import pkgutil
import signal
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from attention_check._aspects import ASPECTS
from attention_check._check import check
from attention_check._contract import CHOICES
from attention_check._report import Report
from attention_check._vectors import check_results, vectors

OPTIONS = (*CHOICES, "scale", "softcap", "window", "tries", "strict")


def _version() -> str:
    """The version that is installed; the modules also run from their folder, where none is."""
    try:
        return importlib.metadata.version("attention-check")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the `arguments` of a command line, by default those of this process; see `--help`.

    The exit status is 0 if nothing is wrong, 1 if something is, 2 if nothing could be tried. With "discover"
    before the attention, its contract is printed as TOML. In `attention_check.toml`, or below
    `tool.attention_check` in `pyproject.toml`, it is pinned: another contract is then a failure, and options
    written beside it, such as `scale = 1.0`, are used.

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
    parser = _make_parser()
    given = parser.parse_args(arguments)
    if given.vectors:
        json.dump(vectors(), sys.stdout)
        return 0
    discovers = given.attention[:1] == ["discover"]
    names = given.attention[discovers:]
    if not given.results and (len(names) != 1 or not names[0].partition(":")[2]):
        parser.error("an attention is needed, as module:function")
    try:
        # What it prints is not the report.
        with limited(given.seconds), redirect_stdout(io.StringIO()):
            report = reported(given, names, discovers)
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
    if discovers:
        # A string of JSON is one of TOML too.
        print(f"[{json.dumps(names[0])}]")
        print(f"contract = {json.dumps(report.contract, ensure_ascii=False)}")
        return 0
    print(json.dumps(as_json(report), ensure_ascii=False) if given.json else report)
    return report.status


def _make_parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m attention_check", description="Is my attention right?"
    )
    add = parser.add_argument
    add("attention", nargs="*", help="[discover] module:function, or module:layer")
    for option, choices in CHOICES.items():
        add(f"--{option}", choices=choices, default=choices[0])
    add("--scale", type=float, help="factor of the dot products, if not 1/√head_dim")
    add("--softcap", type=float, help="limit of the scores")
    add("--window", type=side, nargs=2, metavar=("LEFT", "RIGHT"), help="or: all")
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
    add("--version", action="version", version=_version())
    return parser


def side(text: str) -> int | None:
    """A side of a window: a number of keys, or None for "all"."""
    return None if text == "all" else int(text)


def reported(
    given: argparse.Namespace, names: Sequence[str], discovers: bool
) -> Report:
    """The report on what a command line names, with what is pinned for it."""
    if given.results:
        return check_results(json.loads(Path(given.results).read_text("utf-8")))
    sys.path.insert(0, "")  # find modules as `python -m` does
    pinned = {} if discovers else pins().get(names[0], {})
    contract = pinned.pop("contract", "")
    if unknown := pinned.keys() - {*OPTIONS}:
        raise ValueError(f"{names[0]} is pinned with {', '.join(sorted(unknown))}")
    for name in OPTIONS:
        value = getattr(given, name)
        if value not in (None, False, "auto") or name not in pinned:
            pinned[name] = value
    if pinned["window"] is not None:
        pinned["window"] = tuple(map(side, map(str, pinned["window"])))
    if discovers:
        pinned["tries"] = ["scores"]
    report = check(pkgutil.resolve_name(names[0]), **pinned)
    return replace(report, pinned=contract)


def pins() -> dict[str, Any]:
    """What is pinned in the current folder: attention -> its contract and options."""
    alone, project = Path("attention_check.toml"), Path("pyproject.toml")
    if alone.is_file():
        return tomllib.loads(alone.read_text("utf-8"))
    if not project.is_file():
        return {}
    tools = tomllib.loads(project.read_text("utf-8")).get("tool", {})
    found: dict[str, Any] = tools.get("attention_check", {})
    return found


def as_json(report: Report) -> dict[str, Any]:
    """A report in a form that JSON supports."""
    found = {
        name: {"verdict": one.kind, "message": one.message}
        for name, one in report.findings.items()
    }
    pinned = {"pinned": report.pinned} if report.pinned else {}
    return {
        "version": _version(),
        "contract": report.contract,
        **pinned,
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
