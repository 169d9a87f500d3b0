"""Faults as people write them, planted in published attentions: what the judge says of each.

python tests/wild/planted.py [NUMBER ...] prints a line of JSON for each. In planted.json, each is an edit
of the module in which an implementation is, or of another `module`, and a part of the `name` that it should
get; where no name is known, it is empty, and the fault must only be found. One that cannot be found has the
reason: "missed"; or, outside of what is tried, "not_tried" with words that the report must say, or "silent".
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
from pathlib import Path
from queue import Empty
from typing import Any

import torch
from implementations import IMPLEMENTATIONS
from one_module import leave_out, load

from attention_check import check

FAULTS: list[dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def judged(fault: dict[str, str]) -> dict[str, Any]:
    """The verdict on an implementation with a fault."""
    one = next(x for x in IMPLEMENTATIONS if x.name == fault["of"])
    leave_out(one.without)
    name = fault.get("module") or fault["of"].rpartition(".")[0]
    plain = importlib.import_module if name.startswith(("transformers", "monai")) else load
    module = plain(name)
    source = Path(module.__file__ or "").read_text("utf-8")
    if source.count(fault["old"]) < 1:
        return {"of": fault["of"], "status": "no such text", "old": fault["old"]}
    edited = compile(source.replace(fault["old"], fault["new"]), module.__file__ or "", "exec")
    exec(edited, vars(module))  # noqa: S102, these are the packages that are judged
    if "module" in fault:
        importlib.reload(load(fault["of"].rpartition(".")[0]))
    torch.manual_seed(0)
    try:
        layer, options = one.make()
        if fault["of"].startswith("x_clip"):
            layer.causal = True
        report = check(layer, **options)
    except (Exception, SystemExit) as error:
        return {"of": fault["of"], "status": 2, "said": f"{type(error).__name__}: {error}"}
    found = {aspect: str(x) for aspect, x in report.findings.items() if x.kind == "wrong"}
    beside = "; ".join(str(x) for x in report.findings.values() if x.kind != "wrong" and x.message)
    return {
        "of": fault["of"],
        "status": report.status,
        "found": found,
        "contract": report.contract,
        "beside": beside,
    }


def told(fault: dict[str, str], to: Any) -> None:
    to.put(judged(fault))


def main(numbers: list[int]) -> None:
    """Judge the faults of these numbers, by default all, each in a process of its own."""
    context = multiprocessing.get_context("fork")
    for number, fault in enumerate(FAULTS):
        if numbers and number not in numbers:
            continue
        queue = context.Queue()
        process = context.Process(target=told, args=(fault, queue))
        process.start()
        try:
            found = queue.get(timeout=120)
        except Empty:
            found = {"status": "nothing after 120 s"}
            process.kill()
        process.join()
        print(json.dumps({"number": number, "name": fault["name"], **found}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:]])
