"""Do the tests notice? Faults known from real code are planted in a copy of mha_lib, and each must be caught.

Run as a script, this file prints a table of which test caught what: `python tests/test_mutations.py`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "mha_lib"

# fault -> (file, the text as it is, the faulty text, the test files that should notice)
FAULTS = {
    "mask ignored": (
        "attention.py",
        "    if visible is None:",
        "    if True:",
        "attention",
    ),
    "mask ignored in the fused path": (
        "attention.py",
        "query, key, value, mask, dropout_p, kernel_causal",
        "query, key, value, None, dropout_p, kernel_causal",
        "attention",
    ),
    "mask inverted": (
        "attention.py",
        "masked_fill(~visible, ",
        "masked_fill(visible, ",
        "attention",
    ),
    "mask inverted in the fused path": (
        "attention.py",
        "query, key, value, mask, dropout_p, kernel_causal",
        "query, key, value, None if mask is None else ~mask, dropout_p, kernel_causal",
        "attention",
    ),
    "lengths inverted": (
        "masking.py",
        "positions < valid_lens",
        "positions >= valid_lens",
        "masking",
    ),
    "softmax over the queries": (
        "attention.py",
        "return wide.softmax(-1).to(scores.dtype)",
        "return wide.softmax(-2).to(scores.dtype)",
        "attention",
    ),
    "softmax over the queries where there is a mask": (
        "attention.py",
        ".softmax(-1) * visible",
        ".softmax(-2) * visible",
        "attention",
    ),
    "scale by embed_dim": (
        "scores.py",
        "math.sqrt(query.shape[-1])",
        "math.sqrt(query.shape[-1] * (query.shape[1] if query.ndim == 4 else 1))",
        "attention",
    ),
    "scale by embed_dim in the fused path": (
        "attention.py",
        "query, key, value, mask, dropout_p, kernel_causal",
        "query, key, value, mask, dropout_p, kernel_causal, scale=query[0, ..., 0, :].numel() ** -0.5",
        "attention",
    ),
    "no scale": (
        "scores.py",
        "(query / math.sqrt(query.shape[-1]))",
        "query",
        "scores",
    ),
    "no scale in the fused path": (
        "attention.py",
        "query, key, value, mask, dropout_p, kernel_causal",
        "query, key, value, mask, dropout_p, kernel_causal, scale=1.0",
        "attention",
    ),
    "split without transpose": (
        "attention.py",
        "return heads.transpose(1, 2)",
        "return heads.reshape(len(x), -1, x.shape[1], self.head_dim)",
        "attention",
    ),
    "merge without transpose": (
        "attention.py",
        "return x.transpose(1, 2).flatten(2)",
        "return x.reshape(len(x), x.shape[2], -1)",
        "attention",
    ),
    "a head dropped": (
        "attention.py",
        "self.merge_heads(heads)",
        "self.merge_heads(torch.cat((heads[:, :-1], 0 * heads[:, -1:]), 1))",
        "attention",
    ),
    "heads in another order": (
        "attention.py",
        "self.merge_heads(heads)",
        "self.merge_heads(heads.flip(1))",
        "attention",
    ),
    "bottom-right causal made top-left": (
        "masking.py",
        ".tril(k_len - q_len)",
        ".tril()",
        "masking",
    ),
    "torch's top-left causal flag used for any lengths": (
        "attention.py",
        "        and q_len == k_len\n",
        "",
        "attention",
    ),
    "a token does not see itself": (
        "masking.py",
        ".tril(k_len - q_len)",
        ".tril(k_len - q_len - 1)",
        "masking",
    ),
    "causal dropped beside another mask": (
        "masking.py",
        "mask = causal if mask is None else mask & causal",
        "mask = causal if mask is None else mask",
        "masking",
    ),
    "mask or lengths instead of both": (
        "masking.py",
        "mask = mask & (lens",
        "mask = mask | (lens",
        "masking",
    ),
    "fill of -1e9": (
        "attention.py",
        "torch.finfo(wide.dtype).min",
        "-1e9",
        "attention",
    ),
    "fill of -inf": (
        "attention.py",
        "torch.finfo(wide.dtype).min",
        "-torch.inf",
        "attention",
    ),
    "uniform weights in a hidden row": (
        "attention.py",
        ".softmax(-1) * visible",
        ".softmax(-1)",
        "attention",
    ),
    "input overwritten in place": (
        "attention.py",
        "wide.masked_fill(",
        "wide.masked_fill_(",
        "attention",
    ),
    "lengths off by one": (
        "masking.py",
        "positions < valid_lens",
        "positions <= valid_lens",
        "masking",
    ),
    "lengths repeated over heads in the wrong order": (
        "masking.py",
        "aligned = mask.unsqueeze(1) if",
        "aligned = mask.expand(shape[0], -1, -1).repeat(shape[1], 1, 1).unflatten(0, shape[:2]) if",
        "masking",
    ),
    "dropout while evaluating": (
        "attention.py",
        "self.dropout if self.training else 0.0",
        "self.dropout",
        "attention",
    ),
    "weights returned after dropout": (
        "attention.py",
        "return kept @ value, weights",
        "return kept @ value, kept",
        "attention",
    ),
    "shared keys given to the wrong heads": (
        "attention.py",
        "keys.repeat_interleave(group, dim=1)",
        "keys.repeat(1, group, 1, 1)",
        "attention",
    ),
    "torch's projections copied in another order": (
        "attention.py",
        "layer.in_proj_weight.chunk(3)",
        "layer.in_proj_weight.chunk(3)[::-1]",
        "attention",
    ),
    "longer values accepted": (
        "attention.py",
        'check_same("length", ("key", "value"), (key.shape[-2], value.shape[-2]))',
        "pass",
        "bad_input",
    ),
    "sine and cosine swapped": (
        "positional.py",
        "(angles.sin(), angles.cos())",
        "(angles.cos(), angles.sin())",
        "positional",
    ),
    "exponent i instead of 2i": (
        "positional.py",
        "torch.arange(0, dim, 2, dtype=torch.float64) / dim",
        "torch.arange(0, dim, 2, dtype=torch.float64) / (2 * dim)",
        "positional",
    ),
    "positions along the batch": (
        "positional.py",
        "self.encoding[: x.shape[1]]",
        "self.encoding[: x.shape[0], None]",
        "positional",
    ),
    "rotation that is none": (
        "positional.py",
        "even * cos - odd * sin",
        "even * cos + odd * sin",
        "positional",
    ),
    "bandwidth not squared": (
        "scores.py",
        "(2 * bandwidth**2)",
        "(2 * bandwidth)",
        "scores",
    ),
    "all models trained on the same data": (
        "training.py",
        "torch.Generator().manual_seed(seed + i)",
        "torch.Generator().manual_seed(seed + 0 * i)",
        "training",
    ),
    "a hook left behind": (
        "inspection.py",
        "stack.callback(layer.register_forward_hook(after, prepend=True).remove)",
        "layer.register_forward_hook(after, prepend=True)",
        "inspection",
    ),
    "the wrong head pruned": (
        "inspection.py",
        "if head not in heads]",
        "if head != 0 or not heads][: attention.num_heads - len(heads)]",
        "inspection",
    ),
}
UNCHANGED = "nothing"

# One process imports torch, once; each fault gets a fork of it, which imports its own copy of mha_lib.
RUNNER = """
import json, os, sys
import numpy.testing, pytest, torch, torch._dynamo, torch.testing
torch.testing.assert_close(torch.ones(1), torch.ones(1))
torch.empty(2, device="meta") + 1
tests = sys.argv[1]
for folder, files in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        log = os.open("log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1), os.dup2(log, 2)
        sys.path[:0] = [folder, tests]
        import mha_lib
        assert mha_lib.__file__ == os.path.join(folder, "mha_lib", "__init__.py"), mha_lib.__file__
        where = ["-c", "pytest.ini", "--rootdir", tests, "--noconftest", "--import-mode=importlib"]
        status = pytest.main(["-x", "-q", "--tb=no", "-rf", "-p", "no:cacheprovider", *where, *files])
        sys.stdout.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    open(os.path.join(folder, "status"), "w").write(str(status))
"""


def plant(fault, folder):
    """Copy the package into a new folder, put the fault in its place, and return the test files to run."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    shutil.copytree(
        PACKAGE,
        folder / "mha_lib",
        ignore=shutil.ignore_patterns("__pycache__", "widgets"),
    )
    if fault == UNCHANGED:
        files = sorted({files for *_, files in FAULTS.values()})
    else:
        file, right, wrong, files = FAULTS[fault]
        target = folder / "mha_lib" / file
        text = target.read_text()
        assert text.count(right) == 1, (
            f"{fault}: {right!r} occurs {text.count(right)} times in {file}"
        )
        target.write_text(text.replace(right, wrong))
        files = [files]
    return [str(TESTS / f"test_{name}.py") for name in files]


def run_all(root):
    """Fault -> (exit status of pytest, the test that failed first, all that was printed)."""
    folders = {
        fault: root / str(number) for number, fault in enumerate([UNCHANGED, *FAULTS])
    }
    work = [(str(folder), plant(fault, folder)) for fault, folder in folders.items()]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_")
    }
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    command, given = [sys.executable, "-c", RUNNER, str(TESTS)], json.dumps(work)
    subprocess.run(
        command,
        input=given,
        text=True,
        check=True,
        env=environment,
        cwd=root,
        timeout=600,
    )
    verdicts = {}
    for fault, folder in folders.items():
        log = (folder / "log").read_text()
        failed = re.search(
            r"^FAILED .*?(test_\w+\.py::.*?)(?: - |$)", log, re.MULTILINE
        )
        verdicts[fault] = (
            int((folder / "status").read_text()),
            failed and failed[1],
            log,
        )
    return verdicts


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    return run_all(tmp_path_factory.mktemp("faults"))


def test_without_a_fault_all_tests_pass(verdicts):
    status, _, log = verdicts[UNCHANGED]
    assert status == pytest.ExitCode.OK, log


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault, verdicts, record_property):
    status, caught_by, log = verdicts[fault]
    assert status == pytest.ExitCode.TESTS_FAILED, f"{fault} was not caught:\n{log}"
    assert caught_by, log
    record_property("caught by", caught_by)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        verdicts = run_all(Path(folder))
    print("| planted fault | first caught by |\n|---|---|")
    for fault in FAULTS:
        status, caught_by, _ = verdicts[fault]
        print(f"| {fault} | {f'`{caught_by}`' if status == 1 else '**not caught**'} |")
    print(
        f"\nWithout a fault: {'all tests pass' if verdicts[UNCHANGED][0] == 0 else 'TESTS FAIL'}."
    )
