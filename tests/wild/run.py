"""Judge one attention of a package, in a process of its own, and print what was found as JSON.

python tests/wild/run.py NAME
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
import warnings

import torch
from implementations import IMPLEMENTATIONS
from one_module import leave_out

from attention_check import check


def judged(name: str) -> dict[str, object]:
    """The contract, the exit status and the findings that are not "right"."""
    [one] = [one for one in IMPLEMENTATIONS if one.name == name]
    leave_out(one.without)
    torch.manual_seed(0)
    layer, options = one.make()
    start = time.process_time()
    report = check(layer, **options)
    print(f"{time.process_time() - start:.1f} s", file=sys.stderr)
    return {
        "package": one.package,
        "version": importlib.metadata.version(one.package),
        "glue": one.glue + (1 if options else 0),
        "contract": report.contract,
        "status": report.status,
        "findings": {aspect: [found.kind, found.message] for aspect, found in report.findings.items()},
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(judged(sys.argv[1]), ensure_ascii=False))
