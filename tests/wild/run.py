"""Judge the attentions of packages, each in a process of its own, and print what was found as lines of JSON.

python tests/wild/run.py [NAME ...]

With --write, the verdicts are stored beside this file and in the table of the appendix page.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from queue import Empty
from typing import Any

import table
import torch
from implementations import IMPLEMENTATIONS, Implementation
from one_module import leave_out

from attention_check import check

# A module that needs longer to be imported has a problem that nobody should wait for.
SECONDS = 120


def judged(one: Implementation) -> dict[str, Any]:
    """The contract, the exit status and the findings; or, with the status 2, why there are none."""
    found: dict[str, Any] = {
        "name": one.name,
        "package": one.package,
        "version": importlib.metadata.version(one.package),
        "glue": one.glue,
    }
    try:
        leave_out(one.without)
        torch.manual_seed(0)
        layer, options = one.make()
        start = time.process_time()
        report = check(layer, **options)
    except (Exception, SystemExit) as error:
        return found | {"status": 2, "why": f"{type(error).__name__}: {error}"}
    return found | {
        "glue": one.glue + (1 if options else 0),
        "contract": report.contract,
        "status": report.status,
        "findings": {aspect: str(finding) for aspect, finding in report.findings.items()},
        "seconds": round(time.process_time() - start, 1),
    }


def told(one: Implementation, to: Any) -> None:
    """Judge in a process that ends: what its module prints, changes or replaces is gone with it."""
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        to.put(judged(one))


def judge_all(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Judge these, by default all, one after another; torch is imported once for all."""
    context = multiprocessing.get_context("fork")
    for one in IMPLEMENTATIONS:
        if names and one.name not in names:
            continue
        queue = context.Queue()
        process = context.Process(target=told, args=(one, queue))
        process.start()
        try:
            found = queue.get(timeout=SECONDS)
        except Empty:
            found = {"name": one.name, "status": 2, "why": f"nothing after {SECONDS} s"}
            process.kill()
        process.join()
        yield found


def main(arguments: Sequence[str]) -> None:
    """Run from the command line."""
    names = [one for one in arguments if one != "--write"]
    every = []
    for found in judge_all(names):
        print(json.dumps(found, ensure_ascii=False), flush=True)
        every.append(found)
    if "--write" in arguments:
        table.store(every)


if __name__ == "__main__":
    main(sys.argv[1:])
