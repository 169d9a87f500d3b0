"""The command `python -m attention_check`."""

from __future__ import annotations

import argparse
import json
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from attention_check._aspects import ASPECTS
from attention_check._calling import CHOICES
from attention_check._check import check
from attention_check._vectors import check_results, vectors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the `arguments` of a command line, by default those of this process; see `--help`.

    The exit status is 0 if everything is right, 1 if something is wrong, 2 if it could not be tried.

    Raises:
        SystemExit: the arguments are invalid.

    Example:
        >>> main(["torch.nn.functional:scaled_dot_product_attention", "--tries", "scores"])
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
    add("--vectors", action="store_true", help="print the cases as JSON")
    add("--results", metavar="FILE", help="judge a JSON list of outputs")
    given = parser.parse_args(arguments)
    if given.vectors:
        json.dump(vectors(), sys.stdout)
        return 0
    try:
        if given.results:
            report = check_results(json.loads(Path(given.results).read_text("utf-8")))
        else:
            if not (given.attention or "").partition(":")[2]:
                parser.error("an attention is needed, as module:function")
            sys.path.insert(0, "")  # find modules as `python -m` does
            options = {name: getattr(given, name) for name in (*CHOICES, "tries")}
            report = check(pkgutil.resolve_name(given.attention), **options)
    except (ImportError, AttributeError, OSError, TypeError, ValueError) as error:
        print(f"could not be tried: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report else 1
