# ruff: noqa: E501, an answer is easier to read in one line
"""A class of 120 students hands in five exercises each: every mark is the expected one, within the time."""

import json
import os
import subprocess
import sys
import time

import pytest
from test_judge import write

GIVEN = """import torch
from torch import nn
from mha_course.exercises import check_attention, check_causal_mask, check_merge_heads, check_my_masked_softmax, check_split_heads"""
# Checker -> the name it checks, and its answers with how the grader's line on them begins.
ANSWERS = {
    "check_my_masked_softmax": ("my_masked_softmax", [
        ("right", "def {name}(scores, mask=None):\n    if mask is not None:\n        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n    weights = scores.softmax(-1)\n    return weights if mask is None else weights * mask"),
        ("wrong", "def {name}(scores, mask=None):\n    if mask is not None:\n        scores = scores.masked_fill(~mask, float('-inf'))\n    return scores.softmax(-1)"),
        ("wrong", "def {name}(scores, mask):\n    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask"),
    ]),
    "check_causal_mask": ("my_causal_mask", [
        ("right", "def {name}(q_len, k_len=None):\n    return torch.ones(q_len, k := k_len or q_len).tril(k - q_len).bool()"),
        ("right", "def {name}(q_len, k_len=None):\n    k = k_len or q_len\n    return torch.arange(k) <= torch.arange(q_len)[:, None] + k - q_len"),
        ("wrong", "def {name}(q_len, k_len=None):\n    return torch.ones(q_len, k_len or q_len).tril().bool()"),
        ("wrong", "def {name}(q_len, k_len=None):\n    return torch.ones(q_len, k := k_len or q_len).triu(k - q_len).bool()"),
    ]),
    "check_split_heads": ("split_heads", [
        ("right", "def {name}(x, num_heads):\n    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"),
        ("right", "def {name}(x, num_heads):\n    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)"),
        ("right", "import numpy as np\ndef {name}(x, num_heads):\n    return torch.stack([part for part in x.unflatten(-1, (num_heads, -1)).unbind(2)], 1)"),
        ("wrong", "def {name}(x, num_heads):\n    return x.view(x.shape[0], num_heads, x.shape[1], -1)"),
        ("missing", "def {name}(x, num_heads):\n    ..."),
    ]),
    "check_merge_heads": ("merge_heads", [
        ("right", "def {name}(heads):\n    return heads.transpose(1, 2).flatten(2)"),
        ("right", "def {name}(heads):\n    return torch.cat(heads.unbind(1), -1)"),
        ("wrong", "def {name}(heads):\n    return heads.flatten(1, 2)"),
        ("missing", "def {name}(heads)\n    return heads"),
    ]),
    "check_attention": ("my_attention", [
        ("right", "def {name}(query, key, value, mask=None):\n    weights = my_masked_softmax(query @ key.mT / key.shape[-1] ** 0.5, mask)\n    return weights @ value, weights"),
        ("right", "def {name}(query, key, value, mask=None):\n    scores = torch.einsum('...qd,...kd->...qk', query, key) / key.shape[-1] ** 0.5\n    weights = my_masked_softmax(scores, mask)\n    return weights @ value, weights"),
        ("wrong", "def {name}(query, key, value, mask=None):\n    weights = my_masked_softmax(query @ key.mT, mask)\n    return weights @ value, weights"),
    ]),
}  # fmt: skip
SPOILED = ["while True:\n    pass", "import os\nos._exit(0)", "1 / 0", "raise SystemExit", "x = [0] * 10**12"]


def submissions(folder, count):
    """Write the notebooks of a class; return, for each, the states that are expected."""
    expected = {}
    for number in range(count):
        cells, states = [GIVEN], []
        for check, (name, answers) in ANSWERS.items():
            state, text = answers[number % len(answers)]
            # An attention that builds on a wrong softmax is wrong, too.
            softmax_is_right = number % 3 == 0
            if check == "check_attention" and not softmax_is_right:
                cells.append("from mha_course.built import my_masked_softmax")
            cells += [text.format(name=name), f"{check}({name})"]
            states.append(state)
        if number % 12 == 11:  # one in twelve contains a cell that spoils itself
            cells.insert(3, SPOILED[number // 12 % len(SPOILED)])
        path = write(folder / f"student {number:03}.ipynb", *cells)
        expected[str(path)] = states
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("count", [int(os.environ.get("STUDENTS", "12"))])
def test_a_class_gets_its_marks_in_ten_minutes(tmp_path, count):
    expected = submissions(tmp_path / "in", count)
    begin = time.monotonic()
    command = [sys.executable, "-m", "mha_course.grade", "--json", "--jobs", "2", "--cell-seconds", "10",
               "--results", str(tmp_path / "results"), str(tmp_path / "in")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"{count} submissions in {time.monotonic() - begin:.0f} s")
    assert done.returncode == 1, done.stderr
    graded = [json.loads(line) for line in done.stdout.splitlines()]
    states = {one["extra_data"]["submission"]: [test["tags"][0] for test in one["tests"]] for one in graded}
    differ = {path: (found, expected[path]) for path, found in states.items() if found != expected[path]}
    assert states.keys() == expected.keys()
    assert not differ
    assert done.stderr.count(f" of {count}: ") == count
