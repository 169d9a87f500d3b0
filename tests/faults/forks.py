"""Run pytest in many copies of a package: `forks.py JOBS TESTS` takes [[folder, pytest's arguments], ...].

One process imports torch and pytest, once; each copy gets a fork, which imports the package of its folder.
What the forks inherit is frozen; otherwise the garbage collector of each would go through all of torch.
"""

import contextlib
import gc
import importlib.util
import json
import os
import resource
import sys
from pathlib import Path

import hypothesis  # noqa: F401
import jaxtyping  # noqa: F401
import numpy.testing  # noqa: F401
import pytest
import torch._dynamo
import torch.testing

with contextlib.suppress(ImportError):  # what only the widgets and their tests need
    import anywidget  # noqa: F401
    import ipywidgets.embed  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import playwright.sync_api  # noqa: F401
    import sphinx.application  # noqa: F401

with contextlib.suppress(ImportError):  # it imports the modules of models only on request
    from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM  # noqa: F401

LONGEST = 600  # seconds of processor time; a fork that needs more is in an endless loop


def run_tests(folder, arguments, helpers):
    """In a fork: run tests against the package in `folder`, and never return."""
    os.chdir(folder)
    if Path("sound").exists():
        os.environ.pop("PATIENCE", None)  # a slow machine is not a fault
    log = os.open("log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
    sys.path[:0] = [folder, *helpers]
    found = importlib.util.find_spec("mha_lib").origin
    assert found == str(Path(folder, "mha_lib", "__init__.py")), found
    options = ["-x", "-q", "--tb=short", "-rfE", "-p", "no:cacheprovider", "--import-mode=importlib"]
    status = pytest.main([*options, *arguments])
    sys.stdout.flush()
    os._exit(status)


def main(jobs, root):
    torch.testing.assert_close(torch.ones(1), torch.ones(1))
    torch.empty(2, device="meta") + 1
    answers = os.dup(1)  # pytest prints its version there
    os.dup2(2, 1)
    pytest.main(["--version"])
    gc.freeze()
    helpers = [root, str(Path(root, "library"))]
    waiting, running = json.load(sys.stdin), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            folder, arguments = waiting.pop(0)
            child = os.fork()
            if child == 0:
                run_tests(folder, arguments, helpers)
            running[child] = folder
        child, status = os.wait()
        folder = running.pop(child)
        Path(folder, "status").write_text(str(os.waitstatus_to_exitcode(status)))
        os.write(answers, f"{folder}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
