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
from attention_check._formula import NAMES
from attention_check._report import Report
from attention_check._vectors import (
    check_results,
    decoding_exercise,
    finding_in,
    rotary_exercise,
    vectors,
)
from attention_check._verdicts import check_callable

OPTIONS = (*CHOICES, "scale", "softcap", "window", "tries", "strict", "accept")
OPTIONS += ("projections", "num_heads")
# What may stand before the name of what is judged.
BEFORE = ("discover", "rotary", "decoding")


def _version() -> str:
    """The version that is installed; the modules also run from their folder, where none is."""
    try:
        return importlib.metadata.version("attention-check")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the `arguments` of a command line, by default those of this process; see `--help`.

    The exit status is 0 if nothing is wrong, 1 if something is, 2 if nothing could be tried. "rotary" or
    "decoding" before its name judges a function so; "discover" prints the contract of an attention as TOML.
    In `attention_check.toml`, or below `tool.attention_check` in `pyproject.toml`, it is pinned: another
    contract is then a failure, and options beside it, such as `scale = 1.0`, are used.

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
    before = given.attention[0] if given.attention[:1] in [[x] for x in BEFORE] else ""
    names = given.attention[bool(before) :]
    if not given.results and (len(names) != 1 or not names[0].partition(":")[2]):
        parser.error("an attention is needed, as module:function")
    try:
        # What it prints is not the report.
        with limited(given.seconds), redirect_stdout(io.StringIO()):
            report = reported(given, names, before)
    # Whatever somebody's module does when it is imported.
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        if not isinstance(error, (TypeError, ValueError, OSError)):
            said = f"{type(error).__name__}: {said}"
        print(f"could not be tried: {said}", file=sys.stderr)
        return 2
    if before == "discover":
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
    where = f"[{' or '.join(BEFORE)}] module:function, or module:layer"
    add("attention", nargs="*", help=where)
    for option, choices in CHOICES.items():
        add(f"--{option}", choices=choices)
    paths = "of parts of the layer: q_proj=PATH k_proj=PATH v_proj=PATH out_proj=PATH"
    add("--projections", type=named_path, nargs=4, metavar="NAME=PATH", help=paths)
    add("--num-heads", type=int, help="of a layer that does not say it")
    add("--base", type=float, help="of rotary positions, if not 10,000")
    halves = "rotary: the columns of a pair are half of the width apart"
    add("--halves", dest="interleaved", action="store_false", default=None, help=halves)
    turns = "decoding: queries and keys are rotated by their positions"
    add("--rotary", action="store_true", default=None, help=turns)
    add("--scale", type=float, help="factor of the dot products, if not 1/√head_dim")
    add("--softcap", type=float, help="limit of the scores")
    add("--window", type=side, nargs=2, metavar=("LEFT", "RIGHT"), help="or: all")
    add("--tries", nargs="+", choices=ASPECTS, metavar="ASPECT")
    add(
        "--strict",
        action="store_true",
        help="a convention that differs counts as wrong",
    )
    known = "aspects that may be wrong or differ"
    add("--accept", nargs="+", metavar="ASPECT", help=known)
    add("--json", action="store_true", help="print the report as JSON")
    add("--seconds", type=float, default=120.0, help="give up after this time")
    add("--vectors", action="store_true", help="print the cases as JSON")
    add("--results", metavar="FILE", help="judge a JSON list of outputs")
    add("--version", action="version", version=_version())
    return parser


def side(text: str) -> int | None:
    """A side of a window: a number of keys, or None for "all"."""
    return None if text == "all" else int(text)


def named_path(text: str) -> tuple[str, str]:
    """The name of a projection and its path in the layer: "q_proj=linears.0"."""
    name, _, path = text.partition("=")
    if name not in NAMES or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, path


def reported(
    given: argparse.Namespace, names: Sequence[str], before: str = ""
) -> Report:
    """The report on what a command line names, with what is pinned for it."""
    if given.results:
        found = json.loads(Path(given.results).read_text("utf-8"))
        if not isinstance(found, dict):
            raise TypeError('a file of results holds {"format": …, "results": […]}')
        return check_results(found)
    sys.path.insert(0, "")  # find modules as `python -m` does
    if before in ("rotary", "decoding"):
        return _in_turn(before, pkgutil.resolve_name(names[0]), given)
    pinned = {} if before else pins().get(names[0], {})
    contract = pinned.pop("contract", "")
    if unknown := pinned.keys() - {*OPTIONS}:
        raise ValueError(f"{names[0]} is pinned with {', '.join(sorted(unknown))}")
    for name in OPTIONS:
        value = getattr(given, name)
        if value is not None and value is not False:
            pinned[name] = dict(value) if name == "projections" else value
    if "window" in pinned:
        pinned["window"] = tuple(map(side, map(str, pinned["window"])))
    if before:
        pinned["tries"] = ["scores"]
    report = check(pkgutil.resolve_name(names[0]), **pinned)
    return replace(report, pinned=contract)


def _in_turn(before: str, answer: Any, given: argparse.Namespace) -> Report:
    """The report on a rotation, or on decoding."""
    check_callable(before, answer)
    names = ("base", "interleaved", "rotary")[: 2 + (before == "decoding")]
    told: dict[str, Any] = {
        name: value for name in names if (value := getattr(given, name)) is not None
    }
    make = rotary_exercise if before == "rotary" else decoding_exercise
    said = [before, *(f"{name} {value}" for name, value in told.items())]
    found = finding_in(make(**told), answer)
    return Report({before: found}, " · ".join(said), given.strict)


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
        | ({"call": one.call} if one.call else {})
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
