# ruff: noqa: E501, an attack is easier to read in one line
"""A submission in a process of its own: verdicts as in the page, and no mark, file or time for a forger."""

import linecache
import os
import pickletools
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import nbformat
import pytest
import torch
from exercise_cells import CHAPTERS, CHECKS, checker_of, pieces_of
from torch import nn
from wrong_pieces import WRONG, text_of

from attention_check._judging import Exercise
from mha_course import _judged, built, exercises, grade
from mha_course._elsewhere import Elsewhere, keep
from mha_course._judge import Submission

PIECES = {name: cells for page in CHAPTERS.glob("*.ipynb") for name, cells in pieces_of(page.stem).items()}
GIVEN = f"""import torch
from torch import nn
from mha_course.built import {", ".join(built.__all__)}"""


@pytest.fixture(scope="module")
def submission():
    with Submission({}, isolate=grade.can_isolate(), end=time.monotonic() + 1000) as made:
        made.ask(_judged.run_cell, GIVEN)
        yield made


def verdict_in_page(name, text, check, tmp_path):
    """What the page says about the piece, whose text stands in a cell of an IPython kernel."""
    space = {"torch": torch, "nn": nn, "__name__": "__main__"}
    space |= {one: getattr(built, one) for one in built.__all__}
    file = str(tmp_path / "cell.py")
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), space)  # noqa: S102
    return CHECKS[check](space[name]).message


def verdict_of_the_judge(submission, name, text, check):
    assert submission.ask(_judged.run_cell, text)["error"] == ""
    answer = submission.ask(_judged.evaluate, name)
    message = submission.check(check, [answer], {}).message
    submission.ask(_judged.run_cell, f"from mha_course.built import {name}")
    return message


TEXTS = [(name, text_of(PIECES[name]["solution"].source, text).strip("\n")) for name, text, _ in WRONG]
TEXTS += [(name, cells["solution"].source.partition("\n@solution")[2].partition("\n")[2])
          for name, cells in PIECES.items() if "\n@solution" in cells["solution"].source]  # fmt: skip


def test_verdicts_words_and_lines_are_those_of_the_page(submission, tmp_path):
    for name, text in TEXTS:
        check, _ = checker_of(PIECES[name])
        here = verdict_in_page(name, text, check, tmp_path)
        said = verdict_of_the_judge(submission, name, text, check)
        if "the call before" in here:
            # The judge makes other calls, and what a layer keeps from them shows in other cases.
            assert said.startswith("Not yet: "), name
        else:
            assert said == here, name


ESCAPE = """from mha_course.exercises import check_escape
from mha_lib import MultiHeadAttention
class Layer(MultiHeadAttention):
    def forward(self, x, valid_lens=None):
        return super().forward(x, x, x, valid_lens=valid_lens)
class Tidy(Layer):
    def forward(self, x, valid_lens=None):
        result = super().forward(x, valid_lens)
        if valid_lens is not None:
            x[torch.arange(x.shape[1]) >= valid_lens[:, None]] = 0
        return result
class Doubled(Layer):
    def forward(self, x, valid_lens=None):
        output, weights = super().forward(x, valid_lens)
        return 2 * output, weights
def changes(layer):
    x = torch.ones(2, 7, 15)
    layer(x, torch.tensor([5, 3]))
    return bool((x != 1).any())
DETECTORS = {"long": lambda layer: layer(torch.ones(2, 7, 15))[0].norm() > layer.v_proj.weight.norm() * 20}
ANSWERS = [lambda: (Tidy, changes), lambda: (Tidy, lambda layer: False), lambda: (Tidy, lambda layer: True),
           lambda: (Tidy, lambda layer: not changes(layer)), lambda: (7, changes), lambda: Tidy,
           lambda: (Layer, changes), lambda: (Doubled, changes)]"""


def test_an_answer_that_needs_the_notebooks_own_layer_is_judged_as_in_the_page(submission):
    space = {"torch": torch, "__name__": "__main__"}
    exec(ESCAPE, space)  # noqa: S102
    assert submission.ask(_judged.run_cell, ESCAPE)["error"] == ""
    verdicts = []
    for number, answer in enumerate(space["ANSWERS"]):
        given = (f"ANSWERS[{number}]", "Layer", "DETECTORS")
        arguments = [submission.ask(_judged.evaluate, one) for one in given]
        submission.doubts.clear()
        verdicts.append(submission.check("check_escape", arguments, {}).message)
        here = space["check_escape"](answer, space["Layer"], space["DETECTORS"]).message
        assert verdicts[-1] == here, number
        assert submission.doubts == ["the submission brings the right layer and the detectors"]
    assert verdicts[0].startswith("Right") and len(set(verdicts)) == 6, verdicts


@pytest.mark.slow
def test_every_known_answer_of_every_exercise_gets_its_verdict_both_ways(submission):
    differ, tried = [], 0
    for name, check in vars(exercises).items():
        if not isinstance(check, Exercise):
            continue
        for answer in [check.reference, *check.accept, *(wrong.answer for wrong in check.wrong)]:
            there = Elsewhere(submission._use, submission.ask(keep, answer))
            differ += [name] if check(there) != check(answer) else []
            tried += 1
    assert tried > 700
    assert not differ


def test_nothing_that_a_check_sends_contains_what_is_expected():
    """The code that uses an answer is sent to its process: neither references nor mistakes go with it."""
    for name, check in vars(exercises).items():
        if isinstance(check, Exercise) and check.run is not None:
            sent = pickletools.genops(cloudpickle.dumps(check.run))
            words = {str(value) for _, value, _ in sent if isinstance(value, str)}
            answers = [check.reference, *(one.answer for one in check.wrong)]
            ours = [one for one in answers if str(one.__module__).startswith("mha_course.exercises")]
            assert not {one.__name__ for one in ours if one.__name__ != "<lambda>"} & words, name
            assert not {"Wrong", "_ONE_HEAD", "Exercise"} & words, name


# ------------------------------------------------------------------ forgers

SPLIT = "check_split_heads(split_heads)"
STUB = "import torch\nfrom mha_course.exercises import *\ndef split_heads(x, num_heads):\n    ..."
ANSWER = STUB.replace("...", "return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)")
needs_walls = pytest.mark.skipif(not grade.can_isolate(), reason="bubblewrap does not work here")


def write(path, *cells):
    path.parent.mkdir(exist_ok=True, parents=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)]), path)
    return path


# Each has got the mark of the stub, or could.
FORGERIES = [
    "import mha_course.grade as g\ng._judged = lambda *_: ('right', '')",
    "import mha_course.exercises as e\ne.check_split_heads = lambda *_: True",
    "check_split_heads.__class__.__call__ = lambda *_, **__: True",
    "torch.allclose = lambda *_, **__: True",
    "import attention_check._results as v\nv.Verdict.__bool__ = lambda self: True",
    "import attention_check._judging as j\nj.nearly_equal = lambda *_: True\nj.Exercise.__call__ = lambda *_: v.Verdict(True, '')",
    "class Yes(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, function, types, args=(), kwargs=None):\n"
    "        return True\nsplit_heads = lambda x, num_heads: torch.zeros(2).as_subclass(Yes)",
    "split_heads = lambda x, num_heads: check_split_heads.reference(x, num_heads)",
    "import pickle, os\nclass Bomb:\n    def __reduce__(self):\n        return os.mkdir, ('bomb',)\n"
    "split_heads = lambda x, num_heads: Bomb()",
    "split_heads = lambda x, num_heads: torch.zeros(1).expand(2**40)",
    "class Equal(str):\n    def __eq__(self, other):\n        return True\nsplit_heads = lambda x, num_heads: Equal('a')",
]


def test_whatever_a_submission_replaces_it_gets_no_mark(tmp_path):
    cells = [cell for forgery in FORGERIES for cell in (forgery, SPLIT)]
    found = grade.grade(write(tmp_path / "a.ipynb", STUB, *cells))
    assert [state for state, _ in found.results.values()] == ["missing"] or (
        found.results[SPLIT][0] == "wrong"
    ), found
    assert "Code cell 4 replaces `check_split_heads`." in found.troubles


# ------------------------------------------------------------------ walls


@needs_walls
@pytest.mark.slow
def test_when_the_grader_is_killed_its_submission_ends(tmp_path):
    path = write(tmp_path / "a.ipynb", ANSWER, "while True:\n    pass\n# a-cell-that-does-not-end", SPLIT)
    command = [sys.executable, "-m", "mha_course.grade", str(path)]
    grader = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = []
    for _ in range(600):
        time.sleep(0.1)
        listed = Path(f"/proc/{grader.pid}/task/{grader.pid}/children")
        children = [int(one) for one in listed.read_text().split()]
        if children and any("_judged" in Path(f"/proc/{one}/cmdline").read_text() for one in children):
            break
    time.sleep(1)
    grader.send_signal(signal.SIGKILL)
    grader.wait()
    for _ in range(100):
        time.sleep(0.1)
        if not any(os.path.exists(f"/proc/{one}") for one in children):
            break
    assert children and not any(os.path.exists(f"/proc/{one}") for one in children)
