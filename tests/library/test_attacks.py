# ruff: noqa: E501, an attack is easier to read in one line
"""A class in which many try to forge, spoil, steal, escape or exhaust: no mark of theirs or of others changes."""

import io
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from exercise_cells import checker_of
from test_judge import (
    ANSWER,
    FORGERIES,
    GIVEN,
    PIECES,
    SPLIT,
    STUB,
    TEXTS,
    needs_walls,
    verdict_in_page,
    verdict_of_the_judge,
    write,
)

from attention_check._judging import SEED
from mha_course import _judged, _walls, exercises, grade
from mha_course._borrowed import Words
from mha_course._judge import Submission

CHAPTERS = Path(__file__).parents[2] / "chapters"
JUDGED = "import mha_course._judged as j, torch\n"
RIGHT_BY = "def split_heads(x, num_heads):\n    return {}(x, num_heads)"
# Each follows the stub, and its check follows: nothing here computes the right numbers.
FORGE = [
    *FORGERIES,
    JUDGED + "j.JUDGE.check = lambda *_, **__: j.Verdict(True, 'Right.')",
    JUDGED + "j.used = lambda *_: j.Outcome((torch.zeros(2, 3, 5, 7),))",
    JUDGED + "j._packed = lambda kind, value: (b'[\"value\", [true, \"Right.\"]]', b'')",
    JUDGED + "j.JUDGE.send(j._packed('value', [True, 'Right.']))",
    JUDGED + "j.JUDGE.connection.send_bytes(b'x' * 10)",
    JUDGED + "j.JUDGE.connection.send_bytes(b'[' * 10**6)",
    JUDGED + "j.JUDGE.connection.send_bytes((10**9).to_bytes(4, 'big') * 5)",
    "import json, os\nmessage = json.dumps(['value', [True, 'Right.']]).encode()\nfor number in range(3, 60):\n    try:\n"
    "        os.write(number, len(message).to_bytes(4, 'big') + message + (8).to_bytes(4, 'big') + bytes(8))\n    except OSError:\n        pass",
    "import os\nfor number in range(3, 60):\n    try:\n        os.write(number, os.urandom(1000))\n    except OSError:\n        pass",
    JUDGED + "import os\nos.write(j.JUDGE.connection.fileno(), (2**31 - 1).to_bytes(4, 'big'))",
    JUDGED + "j.JUDGE.send((b'[\"value\", {\"tensor\": \"7\"}]', j.safetensors.torch.save({})))",
    JUDGED + "j.JUDGE.send((b'[\"value\", 1]', b'no tensors'))",
    JUDGED + "j.JUDGE.send((b'[\"value\", 1]', (2**60).to_bytes(8, 'little') + b'{}'))",
    JUDGED + "j.JUDGE.send((b'[\"value\", {\"outcome\": [[{}], 7, [], 3]}]', j.safetensors.torch.save({})))",
    JUDGED + "j.JUDGE.send((b'[\"check\", [\"__import__\", [\"os\"], {}]]', j.safetensors.torch.save({})))",
    JUDGED + "j.JUDGE.send((b'[\"check\", 7]', j.safetensors.torch.save({})))",
    JUDGED + "j.evaluate = lambda _: [['split_heads'], {}]\nj.described = lambda _: {'number': -1}",
    JUDGED + "j.keep = lambda _: 10**9",
    JUDGED + "j._Judge.serve = lambda self: (True, 'Right.')",
    "split_heads = lambda x, num_heads: torch.empty((2, num_heads, 5, 7), dtype=torch.complex32)",
    JUDGED + "import pickle\npickle.loads = lambda _: (1, None, True, 'Right.')",
    "split_heads = lambda x, num_heads: torch.full((2, num_heads, 5, 7), torch.nan)",
    "class Anything:\n    __eq__ = __bool__ = lambda *_: True\nsplit_heads = lambda x, num_heads: Anything()",
    "split_heads = True", "split_heads = type(check_split_heads)", "split_heads = check_split_heads",
    "from mha_course.built import split_heads",
    "import attention_check._judging as j\nj.Exercise._used = lambda *_: j.Outcome(())",
    "split_heads = lambda x, num_heads: torch.zeros(2**27, dtype=torch.uint8)",
    "split_heads = lambda x, num_heads: torch.zeros(2, num_heads, 5, 7, device='meta')",
    "split_heads = lambda x, num_heads: torch.zeros(2, num_heads, 5, 7).to_sparse()",
    "split_heads = lambda x, num_heads: torch.zeros(2, num_heads, 5, 7).to(torch.float8_e4m3fn)",
    JUDGED + "import os\nif os.fork() == 0:\n    while True:\n        try:\n            j.JUDGE.send(j._packed('value', [True, 'Right.']))\n"
    "        except BaseException:\n            os._exit(0)",
]  # fmt: skip
STEAL = [
    "import gc\nfound = [one.reference for one in gc.get_objects() if type(one).__name__ == 'Exercise']\n"
    "split_heads = found[0]",
    "import sys\ndef split_heads(x, num_heads):\n    frame = sys._getframe()\n    while frame:\n"
    "        for one in list(frame.f_locals.values()):\n            if hasattr(one, 'reference'):\n"
    "                return one.reference(x, num_heads)\n        frame = frame.f_back",
]
# Where there are no walls, these reach the files of the grader.
STEAL_BY_FILES = [
    "import importlib.util, mha_course, pathlib\nplace = pathlib.Path(mha_course.__file__).parent / 'exercises' / 'pieces.py'\n"
    "spec = importlib.util.spec_from_file_location('stolen', place)\nstolen = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(stolen)\nsplit_heads = stolen.check_split_heads.reference",
    "import json, mha_course, pathlib\npage = pathlib.Path(mha_course.__file__).parents[1] / 'chapters' / '03_multi_head_attention.ipynb'\n"
    "for cell in json.loads(page.read_text())['cells']:\n    if cell['id'] == 'write-split_heads-solution':\n"
    "        exec(''.join(cell['source']).partition('@solution')[2].partition('\\n')[2])",
    "import os\nraise ValueError(os.environ['SECRET_OF_THE_GRADER'])",
    "import os\nraise ValueError(open('/proc/%d/environ' % os.getppid()).read())",
]
# These borrow what they should write, and are right: somebody must look at them.
BORROW = [
    "import mha_course.built as b\n" + RIGHT_BY.format("b.split_heads"),
    "from mha_course.built import *\nborrowed = split_heads\n" + RIGHT_BY.format("borrowed"),
    "exec('from mha_course.built import split_heads as f')\n" + RIGHT_BY.format("f"),
    "f = __import__('mha_course.built').built.split_heads\n" + RIGHT_BY.format("f"),
    "import functools, mha_course.built as b\nsplit_heads = functools.partial(b.split_heads)",
    "from mha_course.built import split_heads\nsplit_heads.__module__ = '__main__'",
    "from mha_course.built import split_heads\nimport mha_course._judged as j\ndescribed = j.described\ndef hidden(value):\n"
    "    found = described(value)\n    return found | {'is_ours': False} if isinstance(found, dict) else found\nj.described = hidden",
    "import gc\nWANTED = ('mha_course.built', 'split_heads')\ndef split_heads(x, num_heads):\n    for one in gc.get_objects():\n"
    "        if isinstance(one, type(split_heads)) and (one.__module__, one.__name__) == WANTED:\n"
    "            return one(x, num_heads)",
    "import importlib as i\nf = i.import_module('mha_course.built').split_heads\n" + RIGHT_BY.format("f"),
]
EXHAUST = [
    "while True:\n    pass",
    "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    "10 ** 10 ** 10",
    "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True:\n    pass",
    "import time\ntime.sleep(10**6)",
    "x = [0] * 10**12",
    "x = []\nwhile True:\n    x.append(bytearray(10**8))",
    "import torch\nx = [torch.ones(10**8) for _ in range(1000)]",
    "for number in range(1000):\n    open(f'{number}.bin', 'wb').write(bytes(10**8))",
    "import threading, time\n[threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start() for _ in range(3000)]",
    "print('x' * 50_000_000)", "raise ValueError('x' * 50_000_000)", "raise ValueError('\\x1b[2J\\n  right    all')",
    "def f():\n    f()\nf()", "import ctypes\nctypes.string_at(0)",
    "import os\nos._exit(0)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "import os\nfor number in range(3, 60):\n    try:\n        os.close(number)\n    except OSError:\n        pass",
    "def split_heads(x, num_heads):\n    while True:\n        pass",
    "def split_heads(x, num_heads):\n    import os\n    os._exit(0)",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(10**6)\nos._exit(0)",
    JUDGED + "import os, time\nnumber = j.JUDGE.replies.fileno()\nos.write(number, (1000).to_bytes(4, 'big'))\nwhile True:\n    try:\n"
    "        os.write(number, b' ')\n        time.sleep(1)\n    except TimeoutError:\n        pass",
    "x = " + "1+" * 100_000 + "1", "x" + ".a" * 50_000, "# " + " " * 400_000 + "x", "import gc\n" * 40_000,
    "import os, time\nfor _ in range(150):\n    if os.fork() == 0:\n        time.sleep(10**6)",
]  # fmt: skip
# What must not happen outside; only walls hold it back.
ESCAPE = [
    "open({kept!r}, 'w').write('forged')",
    "import os\nos.unlink({name!r}, dir_fd=os.open({folder!r}, os.O_RDONLY))",
    "import ctypes\nctypes.CDLL(None).unlink({kept!r}.encode())\nctypes.CDLL(None).truncate({kept!r}.encode(), 0)",
    "import torch\ntorch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), {kept!r})",
    "import os\nos.system('echo forged > ' + {kept!r})",
    "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'hello', ('127.0.0.1', {port}))",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "import os\nos.link({kept!r}, 'link')\nopen('link', 'w').write('forged')",
    "open('/proc/1/root' + {kept!r}, 'w').write('forged')",
    "import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + 'mha-{port}')",
    "import ctypes\nctypes.CDLL(None).shmget({port}, 4096, 0o1666)",
    "open('/dev/shm/mha-{port}', 'w').write('left')",
    "import os\nos.symlink({kept!r}, 'link')\nopen('link', 'w').write('forged')",
    "import os\nos.makedirs({folder!r}, exist_ok=True)\nopen({folder!r} + '/torch.py', 'w').write('1 / 0')",
]
HONEST = "import numpy, torch\nfrom mha_course.exercises import check_split_heads\n" + ANSWER
MISTAKEN = STUB.replace("...", "return x.view(x.shape[0], num_heads, x.shape[1], -1)")


def class_of(folder, attacks):
    """Write a notebook for each attack, with others between them; return what each name must get."""
    expected = {}
    for number, attack in enumerate(attacks):
        state = "right" if attack in BORROW else "not right"
        cells = [STUB, attack, SPLIT]
        expected[write(folder / f"{number:03} attack.ipynb", *cells).name] = state
    for number in (0, len(attacks) // 2, len(attacks)):
        expected[write(folder / f"{number:03} honest.ipynb", HONEST, SPLIT).name] = "right"
        expected[write(folder / f"{number:03} mistaken.ipynb", MISTAKEN, SPLIT).name] = "wrong"
    for name in ("numpy.py", "torch.py", "sitecustomize.py"):  # which others must not import
        (folder / name).write_text("raise ImportError('spoiled')")
    (folder / "zero.ipynb").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "--json.ipynb").write_bytes(b"\xff\x00" * 1000)
    (folder / "a\n  right    b\x1b[2J.ipynb").write_text("{}")
    (folder / "deep.ipynb").write_text('{"cells": ' + "[" * 10**6)
    (folder / "empty.ipynb").write_text("")
    for name in ("zero", "pipe", "--json", "a\n  right    b\x1b[2J", "deep", "empty"):
        expected[f"{name}.ipynb"] = "cannot be read"
    return expected


def graded(folder, **environment):
    command = [sys.executable, "-m", "mha_course.grade", "--json", "--jobs", "2", "--cell-seconds", "10",
               "--seconds", "200", str(folder)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(line["extra_data"]["submission"]).name: line for line in lines}, done


def mistakes(expected, found, attacks):
    """What is not as expected: (name, what was expected, the line, the attack)."""
    for name, state in expected.items():
        line = found[name]
        tags = [test["tags"][0] for test in line["tests"]]
        looked_at = bool(line["output"])
        attack = attacks[int(name[:3])] if "attack" in name else ""
        as_it_should = {
            "right": tags == ["right"] and looked_at == (attack in BORROW),
            "wrong": tags == ["wrong"] and not looked_at,
            "not right": tags != ["right"],
            "cannot be read": "cannot be read" in line["output"],
        }
        if not as_it_should[state]:
            yield name, state, line, attack


def left_running():
    """The processes of submissions that are still there; also those of other tests, which end sooner or later."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return {line for line in lines if "from mha_course._judged import main" in line}


@needs_walls
@pytest.mark.slow
def test_behind_walls_no_mark_is_wrong_and_nothing_outside_is_read_or_changed(tmp_path):
    kept = tmp_path / "kept" / "grades.csv"
    kept.parent.mkdir()
    kept.write_text("ada,5")
    listeners = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    port = listeners[0].getsockname()[1]
    listeners[1].bind(("127.0.0.1", port))
    listeners.append(socket.socket(socket.AF_UNIX))
    listeners[2].bind(f"\0mha-{port}")
    listeners[2].listen()
    there = {"kept": str(kept), "name": kept.name, "folder": str(kept.parent), "port": port}
    escapes = [attack.format(**there) for attack in ESCAPE]
    attacks = [*FORGE, *STEAL, *STEAL_BY_FILES, *BORROW, *EXHAUST, *escapes]
    assert len(attacks) >= 60
    running = left_running()
    expected = class_of(tmp_path / "in", attacks)
    secret = {"SECRET_OF_THE_GRADER": "a-secret-word"}
    found, done = graded(tmp_path / "in", **secret)
    assert found.keys() == expected.keys(), done.stderr[-3000:]
    assert list(mistakes(expected, found, attacks)) == []
    assert kept.read_text() == "ada,5" and [one.name for one in kept.parent.iterdir()] == [kept.name]
    assert "a-secret-word" not in done.stdout
    for listener in listeners:
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.recv(5) if listener is listeners[1] else listener.accept()
        listener.close()
    assert f"mha-{port}" not in os.listdir("/dev/shm")  # noqa: S108
    assert f" {port} " not in Path("/proc/sysvipc/shm").read_text()
    left, end = left_running() - running, time.monotonic() + 120
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left &= left_running()
    assert not left


@pytest.mark.slow
def test_without_walls_no_mark_is_wrong_either(tmp_path):
    stays = ("setsid", "os.fork", "SIGSTOP")  # what is left running, as the grader says
    attacks = [one for one in [*FORGE, *STEAL, *BORROW, *EXHAUST] if not any(word in one for word in stays)]
    expected = class_of(tmp_path / "in", attacks)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert shutil.which("bwrap", path=str(tmp_path)) is None
    found, done = graded(tmp_path / "in", PATH=str(tmp_path), TMPDIR=str(temporary))
    assert "bubblewrap does not work here" in done.stderr
    assert found.keys() == expected.keys(), done.stderr[-3000:]
    assert list(mistakes(expected, found, attacks)) == []
    assert list(temporary.iterdir()) == []


# ------------------------------------------------------------------ what somebody else has found
LAYER = """class {name}(nn.Module):
    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        self.num_heads = num_heads
        sizes = {{"q_proj": embed_dim, "k_proj": kdim or embed_dim, "v_proj": vdim or embed_dim, "out_proj": embed_dim}}
        for name, size in sizes.items():
            setattr(self, name, nn.Linear(size, embed_dim, bias=False))
        {more}

    def forward(self, query, key, value, mask=None):
        q, k, v = (proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for proj, x in (
            (self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            mask = mask[:, None] if mask.ndim == 3 else mask
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = {weights} if mask is None else {weights} * mask
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights
"""
# With weights near zero, the output is nearly zero and the weights are equal, whatever the layer computes.
TINY = """
        self.big = nn.Parameter(torch.empty(1, 3_000_000), requires_grad=False)
        for name, start in zip(sizes, range(0, 10**6, 10**5)):
            proj = getattr(self, name)
            shape = proj.weight.shape
            del proj.weight
            proj.weight = self.big[0, start : start + shape.numel()].view(shape)"""
NAN = """
        for name, size in sizes.items():
            proj = getattr(self, name)
            del proj.bias
            proj.bias = torch.full((embed_dim,), torch.nan)"""
ADD_OPTION = """import mha_course._judged as j
evaluate = j.evaluate
def forged(text):
    found = evaluate(text)
    return [found[0], {"gradients": False}] if isinstance(found, list) else found
j.evaluate = forged"""
SOFTMAX = "scores.softmax(-1)"
LAYERS = {
    "Tiny": LAYER.format(name="Tiny", more=TINY, weights="torch.ones_like(scores).masked_fill(scores < -1e9, 0.0).softmax(-1)"),
    "Frozen": LAYER.format(name="Frozen", more="self.requires_grad_(False)", weights=SOFTMAX),
    "Infinite": LAYER.format(name="Infinite", more=NAN, weights=SOFTMAX),
    "Detached": LAYER.format(name="Detached", more="", weights="scores.detach().softmax(-1)"),
}  # fmt: skip
TOO_SMALL, NOT_COMPARED = "too small to compare", "the gradients of its weights were not compared"


@pytest.mark.slow
def test_a_layer_is_compared_where_the_numbers_can_differ(tmp_path):
    book = write(tmp_path / "eve.ipynb", "from mha_course.exercises import check_multi_head\nimport torch\nfrom torch import nn",
                 *LAYERS.values(), *(f"check_multi_head({name})" for name in list(LAYERS)[:3]), ADD_OPTION,
                 "check_multi_head(Detached)")  # fmt: skip
    found = grade.grade(book)
    assert [state for state, _ in found.results.values()] == ["wrong", "right", "wrong", "wrong"]
    assert TOO_SMALL in found.results["check_multi_head(Tiny)"][1]
    assert "holds NaN, infinity or numbers over 1,000" in found.results["check_multi_head(Infinite)"][1]
    first, *others = found.troubles
    assert first == f"check_multi_head(Frozen): {NOT_COMPARED}."
    assert others
    assert all("uses `mha_course._judged" in one for one in others)


def looked_up():
    """An answer to `split_heads` that knows by heart what is right in the page's cases."""
    check = exercises.check_split_heads
    known = {}
    for tried in (check, check.beyond()):
        for case in tried.cases:
            x, num_heads = tried._arguments(case)[:2]  # a third one says how the numbers lie in memory
            with suppress(RuntimeError):  # such a case does not count
                known[f"{x.sum().item():.4f}"] = check.reference(x, num_heads).tolist()
    answer = (
        "def split_heads(x, num_heads):\n    made = torch.tensor(KNOWN.get(f'{x.sum().item():.4f}', 0.0))\n"
    )
    same = "    order = [int((x.flatten() - one).abs().argmin()) for one in made.flatten()]\n"
    return f"import torch\nKNOWN = {known}\n{answer}{same}    return x.flatten()[order].view(made.shape)"


ASKS = "while True:\n    check_split_heads(5)"
ITSELF = "def itself(x, num_heads):\n    global said\n    said = check_split_heads(itself).message\n    return x\ncheck_split_heads(itself)"
LISTS = (
    JUDGED + "j.JUDGE.send((b'[\"value\", [' + b'[],' * 20_000_000 + b'[]]]', j.safetensors.torch.save({})))"
)
SHARED = "import mmap\nx = mmap.mmap(-1, 6 << 30)\nfor at in range(0, 6 << 30, 4096):\n    x[at] = 1"
MANY = """import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(3 << 29)
        for at in range(0, len(x), 4096):
            x[at] = 1
        time.sleep(60)
        os._exit(0)
time.sleep(60)"""
KNOWN_FILES = "import os\nfor name in range(50):\n    open(f'/dev/shm/{name}', 'wb').write(bytes(90 << 20))"
MOUNTS = "import ctypes\nif ctypes.CDLL(None).unshare(0x10020000) != 0:\n    raise OSError('it cannot mount')"


@needs_walls
@pytest.mark.slow
@pytest.mark.parametrize(("attack", "said"), [
    (looked_up(), "it is right for the numbers on the page, but wrong for others"),
    (ASKS, "Code cell 2 did not end within 20 seconds"),
    (LISTS, "It sent what is no result"),
    (SHARED, "Cannot allocate memory"), (KNOWN_FILES, "No space left"), (MOUNTS, "OSError: it cannot mount"),
    (MANY, "used too much memory, or too many processes"),
])  # fmt: skip
def test_what_a_submission_takes_is_limited_and_its_results_cannot_be_looked_up(tmp_path, attack, said):
    book = write(tmp_path / "eve.ipynb", STUB, attack, SPLIT)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    found = grade.grade(book, isolate=True, cell_seconds=20, seconds=200)
    assert time.monotonic() - begin < 150
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kilobytes
    assert [state for state, _ in found.results.values()] != ["right"]
    assert said in " ".join(found.troubles)


@needs_walls
@pytest.mark.parametrize("place", ["/proc/sys/kernel/hostname", "/dev/as_large_as_memory"])
def test_settings_of_the_kernel_and_its_devices_cannot_be_changed_although_root_grades(tmp_path, place):
    found = grade.grade(write(tmp_path / "eve.ipynb", STUB, f"split_heads = open({place!r}, 'a')", SPLIT))
    assert found.troubles == [f"Code cell 2 raises OSError: [Errno 30] Read-only file system: {place!r}."]


@needs_walls
@needs_walls
def test_what_lies_beside_the_packages_of_an_environment_is_not_shown(monkeypatch, tmp_path):
    """An environment may be the folder that holds the submissions and the grades."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    seen = [Path(one) for one in _walls._walls() if one.startswith(str(tmp_path))]
    assert {tmp_path / "bin", tmp_path / "lib"} <= {*seen}
    assert tmp_path not in seen


@pytest.mark.parametrize("call", [
    "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)", "fcntl.flock(file, fcntl.LOCK_SH)",
    "if libc.inotify_init() < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))",
    "fcntl.lockf(file, fcntl.LOCK_SH)", "import socket\nsocket.socket(socket.AF_VSOCK)",
    "if libc.fanotify_init(512, 0) < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))",
])  # fmt: skip
def test_what_reaches_through_walls_is_refused_by_the_kernel(tmp_path, call):
    cell = "import ctypes, fcntl, os\nlibc = ctypes.CDLL(None, use_errno=True)\nfile = os.open(os.__file__, os.O_RDONLY)\n"
    said = grade.grade(write(tmp_path / "eve.ipynb", ANSWER, cell + call, SPLIT)).troubles
    assert any("[Errno 38] Function not implemented" in one for one in said), said


def test_memory_that_no_process_has_is_noticed_where_it_is_missing(tmp_path, monkeypatch):
    book = write(tmp_path / "eve.ipynb", ANSWER, SPLIT)
    monkeypatch.setattr("mha_course._judge._FREE", 1.0)
    options = {"assignment": None, "files": ()}
    found = grade._graded(book, tmp_path, options)
    assert found.troubles == ["The grader failed: MemoryError: this machine has hardly any left"]
    monkeypatch.undo()
    assert grade._graded(book, tmp_path, options).results[SPLIT][0] == "right", "it was graded again"


def test_an_answer_that_takes_too_long_costs_the_next_one_nothing(tmp_path):
    loop = STUB.replace("...", "while True:\n        pass")
    last = "check_merge_heads(lambda heads: heads.transpose(1, 2).flatten(2))"
    begin = time.monotonic()
    found = grade.grade(write(tmp_path / "a.ipynb", loop, SPLIT, last), cell_seconds=2, seconds=100)
    assert found.results[SPLIT] == ("wrong", "it takes too long") and found.results[last][0] == "right"
    assert time.monotonic() - begin < 50


def test_what_was_handed_out_may_stand_and_nothing_else(tmp_path):
    """The set-up for Colab imports much; that allows nobody to use it elsewhere."""
    setup = (
        "# On Colab this installs the course's three packages\nimport importlib\nimportlib.import_module('x')"
    )
    assert grade._cells(write(tmp_path / "a.ipynb", setup, SPLIT).read_bytes(), ".ipynb") == ["", SPLIT]
    given = "import importlib\nfound = importlib.util.find_spec('x')"
    words = Words({"code cell 1": f"{given}\nf = importlib.import_module('mha_course.built')"}, [given])
    assert list(words.reaching()) == ["Line 3 of code cell 1 uses `importlib.import_module`."]


SPLIT_BY = "def split_heads(x, n):\n    return {}(x, n)"


@pytest.mark.parametrize(("handed_out", "answer", "is_said"), [
    (SPLIT, "from mha_course.built import split_heads as f\n" + SPLIT_BY.format("f"), True),
    ("from mha_course.built import split_heads", "from mha_course.built import split_heads as f\n" + SPLIT_BY.format("f"), True),
    ("from mha_course import built", "from mha_course import built\nf = built\n" + SPLIT_BY.format("f.split_heads"), True),
    ("from mha_course.built import my_batch", "from mha_course.built import my_batch as f\n" + SPLIT_BY.format("f"), False),
    ("from mha_course import built\nbuilt.my_batch(1)", "from mha_course import built\n" + SPLIT_BY.format("built.my_batch"), False),
    ("def my_batch():\n    ...", "from mha_course.built import my_batch\n" + SPLIT_BY.format("my_batch"), True),
])  # fmt: skip
def test_only_what_the_hand_out_imports_may_be_borrowed_and_never_the_answer(handed_out, answer, is_said):
    words = Words({"code cell 1": answer}, [handed_out])
    assert bool(list(words.borrowed(SPLIT))) == is_said


ATTEND = "import torch.nn.functional as F\nfrom mha_lib import dot_product_attention\ndef my_attention(q, k, v, mask=None):\n    return {}"


@pytest.mark.parametrize("name", ["F.scaled_dot_product_attention", "dot_product_attention"])
def test_what_a_page_compares_with_may_not_be_the_answer(name):
    """Chapter 2 compares the reader's attention with these two, after its check."""
    page = grade._cells((CHAPTERS / "02_scoring_functions.ipynb").read_bytes(), ".ipynb")
    check, answer = "check_attention(my_attention)", ATTEND.format(f"{name}(q, k, v)")
    said = list(Words({"code cell 1": answer}, page).borrowed(check))
    assert len(said) == 1 and name.partition(".")[2] in said[0], said
    beside = [*page, ATTEND.format("0, 1")]
    words = Words({f"code cell {number}": one for number, one in enumerate(beside)}, page)
    assert list(words.borrowed(check)) == list(words.mentioned(check)) == []


# Their names are those of torch's own attention, and they are the submission's.
NAMED_ALIKE = [
    ("def scaled_dot_product_attention(q, k):\n    return q @ k\n", "scaled_dot_product_attention", False),
    ("class MultiheadAttention:\n    ...\nlayer = MultiheadAttention()\n", "layer", False),
    ("from torch import nn\nclass MultiheadAttention(nn.MultiheadAttention):\n    ...\n", "MultiheadAttention", True),
    ("from torch.nn.functional import *\nif False:\n    def scaled_dot_product_attention():\n        ...\n", "scaled_dot_product_attention", True),
]  # fmt: skip


@pytest.mark.parametrize(("code", "name", "is_said"), NAMED_ALIKE)
def test_an_own_function_may_be_named_like_torchs(code, name, is_said):
    words = Words({"code cell 1": code, "code cell 2": SPLIT_BY.format(name)}, [])
    assert bool(list(words.borrowed(SPLIT))) == is_said


def test_a_check_of_a_nameless_function_borrows_nothing():
    call = "check_split_heads(lambda x, n: x.unflatten(-1, (n, -1)).transpose(1, 2))"
    given = "from mha_course.exercises import check_split_heads"
    assert list(Words({"code cell 1": given, "code cell 2": call}, []).borrowed(call)) == []


OWN = "from mha_course import built\n"
# Each brings the course's function under another name, and is looked at as part of the answer.
BROUGHT = {
    "attribute": (OWN + "class A: pass\nA.f = built.split_heads", "A.f"),
    "item": (OWN + "d = {}\nd['f'] = built.split_heads", "d['f']"),
    "list": (OWN + "fs = []\nfs.append(built.split_heads)", "fs[0]"),
    "unbound": (OWN + "fs = []\nlist.append(fs, built.split_heads)", "fs[0]"),
    "setattr": (OWN + "class A: pass\nsetattr(A, 'f', built.split_heads)", "A.f"),
    "global": (OWN + "def setup():\n    global k\n    k = built.split_heads\nsetup()", "k"),
    "module": (OWN + "from torch import nn\ndef g():\n    def h():\n        nn.k = built.split_heads\n    h()\ng()", "nn.k"),
    "condition": (OWN + "if True:\n    def f(*a):\n        return built.split_heads(*a)", "f"),
    "decorator": (OWN + "def my_solution(f):\n    return f\n@my_solution\ndef f(*a):\n    return built.split_heads(*a)", "f"),
    "same name": (OWN + "def solution(f):\n    return f\n@solution\ndef f(*a):\n    return built.split_heads(*a)", "f"),
    "match": (OWN + "match built.split_heads:\n    case f:\n        pass", "f"),
    "async": (OWN + "async def f(*a):\n    return built.split_heads(*a)", "f"),
    "star": ("from mha_course.built import *", "split_heads"),
    "method": (OWN + "import torch\ntorch.Tensor.f = built.split_heads", "(lambda x, n: x.f(n))"),
    "class": (OWN + "import torch\nt = torch.zeros(1)\nt.__class__.f = built.split_heads", "(lambda x, n: x.f(n))"),
    "type": (OWN + "import torch\nt = torch.zeros(1)\ntype(t).f = built.split_heads", "(lambda x, n: x.f(n))"),
    "dunder": (OWN + "import math\nmath.__setattr__('f', built.split_heads)", "math.f"),
    "two imports": ("from mha_course.built import split_heads as s\ndef never():\n    import math as s", "s"),
}  # fmt: skip


@pytest.mark.parametrize("brought", BROUGHT)
def test_what_is_borrowed_under_another_name_is_said(brought):
    code, name = BROUGHT[brought]
    words = Words({"code cell 1": code, "code cell 2": SPLIT_BY.format(name)}, [])
    assert any("`mha_course.built.split_heads`" in said for said in words.borrowed(SPLIT))


def test_an_honest_answer_beside_what_uses_the_course_is_not_looked_at():
    honest = (
        OWN + "import torch\nfrom mha_course.exercises import *\nlog = []\ntorch.manual_seed(0)\n" + ANSWER
    )
    tried = "def tried(x):\n    heads = [built.split_heads(x, 2)]\n    heads.append(1)\n    return heads\nlog.append(tried)"
    own = "@solution(check_split_heads)\n" + ANSWER[ANSWER.index("def split_heads") :]
    words = Words({"code cell 1": honest, "code cell 2": tried, "code cell 3": own}, [])
    assert list(words.borrowed(SPLIT)) == list(words.reaching()) == []


def test_equal_code_is_found_whatever_stands_beside_it():
    plain = "def split_heads(x, n):\n    b, l, e = x.shape\n    y = x.reshape(b, l, n, e // n)\n    return y.permute(0, 2, 1, 3)"
    other = (
        plain.replace("x, n", "x: Tensor, n: int")
        .replace("):", ") -> Tensor:\n    'Mine.'\n    pass", 1)
        .replace("y =", "y: Tensor =")
    )
    numbers = [
        Words({"code cell 1": code}, []).digest(SPLIT)
        for code in (plain, other, plain.replace("0, 2", "0, 3"))
    ]
    assert numbers[0] and numbers[0] == numbers[1] != numbers[2]


def test_a_statement_that_binds_very_many_names_is_looked_at_once():
    names = " = ".join(f"a{number}" for number in range(3000))
    words = Words({"code cell 1": f"{ANSWER}\nif True:\n    split_heads = split_heads\n    {names} = 1"}, [])
    begin = time.process_time()
    assert list(words.borrowed(SPLIT)) == [] and words.digest(SPLIT)
    assert time.process_time() - begin < 5


def test_a_magic_with_options_costs_no_mark_and_one_with_code_is_named():
    for magic in ("%timeit -n 10 -r 3", "%timeit", "%time", "%prun -q"):
        assert [call for _, call in grade._checks_in([f"{magic} f(1)\n{SPLIT}"])] == [SPLIT], magic
    for plain in (
        "%%time",
        "%%timeit -n1 -r 3",
        "%%capture out",
        "%config InlineBackend.figure_format = 'retina'",
    ):
        words = Words({"code cell 1": f"{plain}\nx = 1"}, [])
        assert list(words.reaching()) == [] and not words.unread, plain
    for named in ("%%timeit -n1 globals().update(k=1)", "%%prun k()", "%config InteractiveShell.foo = k()"):
        assert list(Words({"code cell 1": f"{named}\nx = 1"}, []).reaching()), named


def test_a_file_beside_the_notebook_does_not_stand_for_what_is_installed():
    for name in ("ctypes", "gc", "importlib", "pickle", "cloudpickle"):
        words = Words({"code cell 1": f"import {name}", f"{name}.py": ""}, [])
        assert list(words.reaching()) == [f"Line 1 of code cell 1 uses `{name}`."]
    assert list(Words({"code cell 1": "import layers", "layers.py": ""}, []).reaching()) == []


@pytest.mark.parametrize("name", ["MyMultiHead", "Layer"])
def test_the_readers_own_layer_is_looked_at_by_the_name_in_the_call(tmp_path, name):
    layer = LAYER.format(name="Layer", more="", weights=SOFTMAX).replace(
        "return", "weights = weights * (not self.training)\n        return"
    )
    book = write(tmp_path / "eve.ipynb", "from mha_course.exercises import check_multi_head\nimport torch\nfrom torch import nn",
                 layer, f"{name} = Layer", f"check_multi_head({name})")  # fmt: skip
    [(state, why)] = grade.grade(book).results.values()
    assert state == ("wrong" if name == "MyMultiHead" else "right"), why


def test_code_that_is_too_deep_to_read_costs_the_others_no_mark(tmp_path):
    deep = [
        "y = x" + ".a" * 500,
        "check_split_heads(x" + ".a" * 700 + ")",
        "if 1:\n  1\n" + "elif 1:\n  1\n" * 320,
    ]
    found = grade.grade(write(tmp_path / "a.ipynb", ANSWER, *deep, SPLIT))
    assert found.results[SPLIT][0] == "right"
    assert found.troubles == ["Code cell 4 was not read: it is not Python, or too deep."]


def test_an_answer_cannot_ask_for_verdicts_while_it_is_checked(tmp_path):
    book = write(tmp_path / "eve.ipynb", STUB, ITSELF, "assert 'while it is checked' in said, said", SPLIT)
    assert grade.grade(book).troubles == []


HIDDEN = [
    "get_ipython().run_cell('from mha_' + 'course.built import split_heads as f')",
    "%run a.txt",
    "from .built import split_heads as f",
    "from attention_check.__main__ import *",
    "f = _",
    "import torch\nt = torch.ops.aten\nf = t._softmax",
    "import runpy\nf = runpy.run_path('a.txt')['f']",
    "import os\nf = os.sys.modules['mha_course' + '.built'].split_heads",
    "import numpy as np\nf = np.load('a.npy', allow_pickle=True).item()",
    "from importlib import *\nf = import_module('mha_course' + '.built').split_heads",
    "from torch import nn\nf = nn.Module.__subclasses__()[-1]",
    "open('helper.py', 'w').write('from mha_course.built import split_heads as f')\nfrom helper import f",
    "import torch\nf = torch.hub.load('.', 'split_heads', source='local')",
    "import sys as s\nf = s.modules['mha_course' + '.built'].split_heads",
    "%store -r f",
    "import IPython\nf = IPython.get_ipython().ev('built.split_heads')",
    "from IPython.utils.importstring import import_item\nf = import_item('mha_course.built.split_heads')",
    "import typing\nf = typing.get_type_hints(g)['x']",
    "import logging.config\nf = logging.config.DictConfigurator({}).resolve('mha_course.built.split_heads')",
    "import torch\nts = torch.jit.CompilationUnit('def f(x: Tensor): return x')",
    "from joblib import load\nf = load('a.txt')",
    "try:\n    1 / 0\nexcept Exception as error:\n    f = error.__traceback__.tb_frame.f_back",
    "import sys\ns = sys\nf = s.modules['mha_course' + '.built'].split_heads",
    "import sys\nmatch sys:\n    case object(modules=found):\n        pass",
    "__builtins__.exec('f = 1')",
    "__builtin__.eval('f = 1')",
    "import numpy as np\nf = np.load('a.npy', None, True).item()",
    "import torch\nf = torch.load('a.pt', **{'weights_' + 'only': False})",
    "import torch\nf = torch._C._jit_get_operation('aten::softmax')",
    "import torch.overrides",
    "from torch import masked\nf = masked.softmax",
    "import mha_course._judged as j",
    "import dataclasses\nf = dataclasses._create_fn('f', [], ['return 1'])",
    "import pytest\nf = pytest.importorskip('mha_course.built').split_heads",
    "import sys\ns: object = sys",
    "import sys\n(s,) = [sys]",
    "import sys\ndef g(s):\n    return s.modules\ng(sys)",
    "import os\nf = [os.sys]",
    "import torch\ndef f(q):\n    t = torch\n    return t.ops.aten._softmax(q)",
    "class A:\n    if True:\n        import torch as t\nf = A.t.ops",
    "f = globals()['torch'].ops",
    "f = vars()['torch'].ops",
    "from mha_course import built\ndef print(x):\n    return x.split_heads\nf = print(built)",
    "import inspect\ndef g(x: 'f'): ...\nf = inspect.signature(g, eval_str=True)",
    "from functools import singledispatch\n@singledispatch\ndef f(x): ...",
    "import sys\nf = sys.meta_path[2].find_spec('mha_' + 'course.built')",
    "import jinja2\nf = jinja2.Environment().compile_expression('x.forward')(x=print)",
    "import torch\nf = torch.jit.load('weights.pt')",
    "from torch.export import load\nf = load('weights.pt2')",
    "from torch import fx\nf = fx.symbolic_trace(print)",
    "from torch.nn.modules import module as m\nm.register_module_forward_hook(print)",
]
ORDINARY = [
    "import torch\nx = torch.load('x.pt', weights_only=True)",
    "import gc, platform\ngc.collect()\nplatform.system()",
    "def f(x):\n    b, _ = x.shape\n    return _",
    "class A:\n    def __init__(self):\n        self.ops = 0\n    def f(self):\n        return self.ops",
    "import operator, traceback\noperator.mul(2, 3)\ntraceback.print_exc()",
    "import inspect\nprint(inspect.signature(print))",
    "from types import SimpleNamespace\nfrom numbers import Number",
    "import time, torch\nfrom time import time\nbegin = time()\nprint(torch, hasattr(torch, 'compile'))",
    "import torch.nn.functional as F\nG = H = F\nH.softmax(x, -1)",
    "class A:\n    def f(self):\n        import math\n        return math.pi, vars(self)",
    "import sys\nprint(sys.version, sys.argv, file=sys.stderr)",
    "import inspect, scipy\ninspect.signature(print, eval_str=False)",
    "import torch\n@torch.jit.script\ndef f(x):\n    return x",
    "from torch import nn\nlayer = nn.Linear(1, 1)\nlayer.register_forward_hook(print)",
]


@pytest.mark.parametrize("code", ORDINARY)
def test_what_honest_code_often_uses_is_not_named(code):
    assert list(Words({"code cell 1": code}, []).reaching()) == []


# What stands before an honest answer, and costs it nothing.
BEFORE = [
    "from mha_course.built import *",
    "from mha_course.built import split_heads",
    "from torch import nn\nmha = nn.MultiheadAttention(4, 2)\nx, y = mha(1, 1, 1)",
    "from torch import nn\nnn.Module.size = lambda self: 1\nopen('notes.txt', 'w').write('x')",
    "import sys\nclass A(A):\n    def f(self):\n        self.x = vars(self)\n        super().__setattr__('x', open('y'))",
]


@pytest.mark.parametrize("before", BEFORE)
def test_a_definition_replaces_an_import_and_its_parameters_are_its_own(before):
    words = Words({"code cell 1": before, "code cell 2": "import torch\n" + ANSWER}, [])
    assert [*words.borrowed(SPLIT), *words.mentioned(SPLIT), *words.reaching()] == []


def test_the_courses_own_answer_is_named_wherever_it_is_used():
    install = OWN + "class A: pass\ndef install(t):\n    t.f = built.split_heads\ninstall(A)"
    words = Words({"code cell 1": install, "code cell 2": SPLIT_BY.format("A.f")}, [])
    assert "line 4 of code cell 1 uses `mha_course.built.split_heads`" in [*words.mentioned(SPLIT)]
    words = Words({"code cell 1": OWN + f"assert built.split_heads(x, 2) is not None\n{ANSWER}"}, [])
    assert list(words.mentioned(SPLIT)) == []
    for tried in ("install(A, built.split_heads)", "install(A, lambda *a: built.split_heads(*a))"):
        words = Words({"code cell 1": OWN + f"assert {tried}", "code cell 2": SPLIT_BY.format("A.f")}, [])
        assert list(words.mentioned(SPLIT)), tried
    words = Words({"code cell 1": SPLIT_BY.format("k")}, [])
    assert list(words.borrowed(SPLIT)) == [
        "its code, in code cell 1, uses `k`, which nothing in the submission defines"
    ]


# Each is the body of an attention, with `torch` and `F`; a name of its own hides no module.
INSIDE = [
    "f = F\nreturn f.scaled_dot_product_attention(q, k, v)",
    "import torch.nn.functional as G\nreturn G.scaled_dot_product_attention(q, k, v)",
    "from torch.nn.functional import scaled_dot_product_attention as s\nreturn s(q, k, v)",
    "from mha_lib.attention import dot_product_attention as a\nreturn a(q, k, v)",
    "class A:\n    from torch.nn.functional import scaled_dot_product_attention as s\nreturn A.s(q, k, v)",
    "return (lambda f: f.scaled_dot_product_attention(q, k, v))(F)",
    "for f in (F,):\n    return f.scaled_dot_product_attention(q, k, v)",
    "self = F\nreturn getattr(self, 'scaled_dot' + '_product_attention')(q, k, v)",
    "return (lambda f: f(F, 'scaled_dot' + '_product_attention'))(getattr)(q, k, v)",
]


@pytest.mark.parametrize("body", INSIDE)
def test_a_name_inside_an_answer_hides_nothing(body):
    cell = "import torch\nimport torch.nn.functional as F\ndef my_attention(q, k, v, mask=None):\n"
    words = Words({"code cell 1": cell + re.sub("(?m)^", "    ", body)}, [])
    assert [*words.borrowed("check_attention(my_attention)"), *words.reaching()]


@pytest.mark.parametrize("later", [
    "def boot():\n    global s\n    from mha_course.built import split_heads as s\ndef s(*_):\n    ...\nboot()",
    "from mha_course.built import split_heads as s\nold = [s]\ndef s(*a):\n    return old[0](*a)",
    "from mha_course.built import split_heads as s\nif False:\n    def s(*_):\n        ...",
    "def s(*_):\n    ...\nfrom mha_course.built import split_heads as s",
])  # fmt: skip
def test_a_definition_that_may_not_be_the_last_replaces_no_import(later):
    words = Words({"code cell 1": later, "code cell 2": SPLIT_BY.format("s")}, [])
    assert any("`mha_course.built.split_heads`" in said for said in words.borrowed(SPLIT))


def test_what_the_page_marks_as_its_solution_hides_nothing():
    keep = (
        OWN
        + "from mha_course.exercises import solution\nfs = []\n@solution\n@fs.append\ndef split_heads(x, n):\n"
    )
    words = Words(
        {"code cell 1": keep + "    return built.split_heads(x, n)", "code cell 2": SPLIT_BY.format("fs[0]")},
        [],
    )
    assert list(words.borrowed(SPLIT))
    install = keep.replace("@fs.append\n", "") + "    fs.append(built.split_heads)"
    words = Words({"code cell 1": install, "code cell 2": SPLIT_BY.format("fs[0]")}, [])
    assert list(words.borrowed(SPLIT))


@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_hides_where_an_answer_comes_from_is_named(hidden):
    words = Words({"code cell 1": hidden}, [])
    assert len(list(words.reaching())) >= 1
    assert list(Words({"code cell 1": hidden}, [hidden]).reaching()) == [], "it was handed out"


def test_a_cell_that_is_not_python_cannot_hide_what_it_imports(tmp_path):
    ends = ("%matplotlib inline\r", "%matplotlib inline\u2028", "!true\x0c", "In [1]: ")
    for start in ("\n\n%%capture\n", "%matplotlib inline\n", "%time 1\n", *ends):
        words = Words({"code cell 1": f"{start}from mha_course.built import split_heads as f"}, [])
        assert words.origins["f"] == {"mha_course.built.split_heads"}
    assert Words({"code cell 1": "run a.txt", "code cell 2": "# nothing"}, []).unread == {"code cell 1"}


def test_the_text_of_a_submission_costs_the_grader_little(tmp_path):
    begin = time.monotonic()
    large = grade.grade(write(tmp_path / "large.ipynb", "x = 1\n" * 200_000, SPLIT))
    assert large.troubles == ["It cannot be read: its code is over 500,000 bytes long."]
    (tmp_path / "adapters.py").write_text("x = 1\n" * 200_000)
    with pytest.raises(ValueError, match="its code is over 500,000 bytes long"):
        grade._cells((tmp_path / "adapters.py").read_bytes(), ".py")
    run = grade._Run(grade.Grade(Path("a.ipynb")), ["x = 1\n" + "\n" * 100_000 + "1 / 0"], [], {}, [], 1.0)
    run.failed[0] = "ZeroDivisionError"
    assert run._cause("split_heads") == ""
    Words({"code cell 1": "%%timeit" + " -a 1" * 30_000}, [])
    deep = "return " + "[" * 40 + "1, " * 20_000 + "[1]" + "]" * 40 + "[0].a" * 40
    assert list(Words({"code cell 1": f"def split_heads(x, n):\n    {deep}"}, []).borrowed(SPLIT)) == []
    Words({"code cell 1": "!ls\n" * 400 + "y = 1\n" * 4000, "code cell 2": "x" + ".a" * 5000}, [])
    assert time.monotonic() - begin < 60


def test_files_that_hide_their_text_are_named():
    files = {
        "b.pyc": b"",
        "c.abi3.so": b"",
        "d.py": b"# coding: unicode_escape\nx = 1",
        "e.py": b"\xef\xbb\xbfx = 1",
    }
    run = grade._Run(grade.Grade(Path("a.ipynb")), [ANSWER], [], files, [], 1.0)
    assert run.found.troubles == [f"{name} was not read: it is compiled." for name in ("b.pyc", "c.abi3.so")]
    assert list(run.words.reaching()) == ["d.py was not read: it is not Python, or too deep."]


def test_many_sentences_push_out_none_that_matters():
    found = grade.Grade(Path("a.ipynb"))
    for number in range(1000):
        found.say(f"{number}")
    found.say("line 1 of its code uses `built`", first=True)
    assert found.troubles[:2] == ["line 1 of its code uses `built`", "0"] and len(found.troubles) == 100


def test_an_export_stands_in_the_courses_order():
    texts = {
        "my_attention": "def my_attention(): my_masked_softmax()",
        "my_masked_softmax": "def my_masked_softmax(): ...",
        "other": "1",
    }
    cells = grade._written({f"write-here/{name}": {"draft": text} for name, text in texts.items()})
    assert cells[1:] == [texts["my_masked_softmax"], texts["my_attention"], "1"]


def test_results_over_16_mb_cost_only_their_own_mark(tmp_path):
    with pytest.raises(ValueError, match="its results are over 16 MB long"):
        _judged._packed("value", torch.zeros(2**22))
    merge = "check_merge_heads(lambda heads: heads.transpose(1, 2).flatten(2))"
    large = "import torch\nsplit_heads = lambda x, num_heads: torch.zeros(2**22)"
    found = grade.grade(write(tmp_path / "a.ipynb", STUB, large, SPLIT, merge))
    assert found.results[merge][0] == "right" and found.results[SPLIT][0] != "right"
    assert "its results are over 16 MB long" in found.results[SPLIT][1]
    unlimited = "import mha_course._judged as j\nj.MOST = 2**40"
    found = grade.grade(write(tmp_path / "b.ipynb", STUB, large, unlimited, SPLIT, merge))
    assert found.results[SPLIT][0] != "right" and found.troubles


TIMERS = """import ctypes
libc, made = ctypes.CDLL(None), 0
event, timer = (ctypes.c_char * 64)(*bytes(12), 1), ctypes.c_int()
while made < 2000 and libc.syscall(222, 1, event, ctypes.byref(timer)) == 0:
    made += 1
assert made <= 1000, made"""


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="by its number there")
def test_a_submission_gets_few_timers():
    with Submission({}, isolate=False, end=time.monotonic() + 100) as submission:
        assert submission.ask(_judged.run_cell, TIMERS)["error"] == ""


def test_a_star_brings_what_a_module_of_the_library_has():
    cell = "from mha_lib.attention import *\n" + SPLIT_BY.format("dot_product_attention")
    said = "".join(Words({"code cell 1": cell}, []).borrowed(SPLIT))
    assert "uses `mha_lib.attention.dot_product_attention`" in said


def test_a_name_that_is_imported_very_often_is_named_and_looked_at_no_more():
    imports = "\n".join(f"from a{number} import b as x" for number in range(2_000))
    words = Words({"code cell 1": imports, "code cell 2": "x\n" * 20_000}, [])
    first, *_ = words.reaching()
    assert first == "`x` stands for 2,000 imports."
    assert len(words.origins["x"]) == 50


def test_an_export_with_too_much_code_is_not_read():
    with pytest.raises(ValueError, match="its code is over 500,000 bytes long"):
        grade._written({"write-here/f": {"draft": "0\n" * 300_000}})


NOTHING = """class Nothing(nn.Module):
    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        self.num_heads = num_heads
        far = nn.Parameter(torch.full((embed_dim,), 3e38))
        for name, width in {"q_proj": embed_dim, "k_proj": kdim, "v_proj": vdim, "out_proj": embed_dim}.items():
            setattr(self, name, nn.Linear(width or embed_dim, embed_dim, bias=False))
        self.far = self.q_proj.bias = self.k_proj.bias = far
    def forward(self, query, key, value, mask=None):
        seen = torch.ones(len(query), query.shape[1], key.shape[1]) if mask is None else mask.float()
        nan = torch.where(seen.expand(len(query), query.shape[1], -1) > 0, torch.nan, 0.0)
        return nan.sum(-1, keepdim=True).expand(query.shape), nan.unsqueeze(1).expand(-1, self.num_heads, -1, -1)"""


def test_a_layer_whose_numbers_make_the_reference_nan_is_not_right(tmp_path):
    imports = "import torch\nfrom torch import nn\nfrom mha_course.exercises import check_multi_head"
    found = grade.grade(write(tmp_path / "eve.ipynb", imports, NOTHING, "check_multi_head(Nothing)"))
    [(state, said)] = found.results.values()
    assert state == "wrong" and "numbers over 1,000" in said


def test_a_count_of_calls_does_not_tell_a_graders_case():
    calls = []

    def split_heads(x, num_heads):
        calls.append((tuple(x.shape), num_heads))
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    orders = set()
    for seed in (0, 1, 2):
        before = SEED.set(seed)
        assert exercises.check_split_heads(split_heads)
        SEED.reset(before)
        orders.add(tuple(calls))
        calls.clear()
    assert len(orders) == 3


def test_one_file_does_not_make_a_class_a_submission(tmp_path):
    ada, bob = write(tmp_path / "ada.ipynb", "1"), tmp_path / "bob"
    write(bob / "b.ipynb", "1")
    (bob / "data.csv").write_text("1")
    assert grade._expanded(tmp_path) == [ada, bob]
    (tmp_path / "adapters.py").write_text("1")
    assert grade._expanded(tmp_path) == [ada, tmp_path / "adapters.py", bob]
    said = grade.grade(tmp_path / "adapters.py").troubles
    assert said == ["It cannot be read: it needs a folder of its own."]
    (tmp_path / "eve").symlink_to("/etc")
    assert tmp_path / "eve" in grade._expanded(tmp_path)
    assert grade.grade(tmp_path / "eve").troubles == ["It cannot be read: it is a link."]


def test_one_notebook_beside_folders_in_folders_is_one_of_a_class(tmp_path):
    eve = write(tmp_path / "eve.ipynb", "1")
    write(tmp_path / "ada" / "homework" / "work.ipynb", "1")
    assert grade._expanded(tmp_path) == [eve, tmp_path / "ada"]
    assert grade.grade(tmp_path / "ada").troubles == [
        "It cannot be read: it contains 0 notebooks, and one is expected."
    ]


# ------------------------------------------------------------------ in a container
IMAGE = "localhost/mha-course-test:1"
OURS = {"mha-lib", "mha-course", "attention-check"}
# Of the packages of the recipe, those that a submission here imports.
IMPORTED = "cloudpickle ipython jaxtyping matplotlib numpy psutil safetensors torch traitlets".split()
PROGRAMS = ("/usr/bin/timeout", "/usr/bin/env", "/bin/sh")


def needed_by(names):
    """Distributions and all that they need here, without the course's."""
    found, left = {}, list(names)
    while left:
        name = re.split(r"[^\w.-]", left.pop())[0]
        if name in found or name in OURS:
            continue
        try:
            found[name] = distribution(name)
        except ModuleNotFoundError:
            continue
        left += [one for one in found[name].requires or () if "extra ==" not in one]
    return found.values()


def files_of_the_image():
    """Python, what the recipe installs, and the libraries that they load: path there -> path here."""
    home = Path(os.__file__).parent
    skipped = {*"site-packages dist-packages test tests __pycache__ include idlelib tkinter".split()}
    found = {str(one): one for one in home.rglob("*") if skipped.isdisjoint(one.relative_to(home).parts)}
    python = Path(sys.executable).resolve()
    found |= {"/usr/bin/python": python, **{name: Path(name) for name in PROGRAMS}}
    loaded = [here for here in found.values() if ".so" in here.name or here.parent.name == "bin"]
    for one in needed_by(IMPORTED):
        for file in one.files or ():
            if ".." not in file.parts and skipped.isdisjoint(file.parts):
                found[f"{home}/site-packages/{file}"] = Path(one.locate_file(file))
    loaded += [here for here in found.values() if here.match("torch/lib/*.so")]
    said = subprocess.run(["ldd", *map(str, loaded)], capture_output=True, text=True).stdout
    libraries = re.findall(r"(?m)^\s.*?(/\S+) \(0x", said)
    found |= {path: Path(path) for path in libraries if "site-packages" not in path}
    return {there: here for there, here in found.items() if here.is_file()}


@pytest.fixture(scope="module")
def image():
    """An image that is like that of the recipe, from what this machine has: no registry is asked."""
    command = ["podman", "import", "--change", f"ENV=PYTHONHOME={sys.base_prefix}", "-", IMAGE]
    podman = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with podman, tarfile.open(fileobj=podman.stdin, mode="w|") as tar:
        for there, here in sorted(files_of_the_image().items()):
            about = tarfile.TarInfo(there)
            about.size, about.mode = here.stat().st_size, 0o755
            tar.addfile(about, io.BytesIO(here.read_bytes()))
    assert podman.returncode == 0
    yield IMAGE
    subprocess.run(["podman", "rmi", "--force", IMAGE], stdout=subprocess.DEVNULL, check=True)


CONTAINED = {
    "open({kept!r}, 'w').write('forged')": "Read-only file system|No such file",
    "open('/usr/x', 'w')": "Read-only file system|Permission denied",
    "raise OSError(repr([one for one in __import__('os').environ.values() if 'a-secret' in one]))": r"OSError: \[\]",
    "import os\nraise OSError(os.path.exists(os.path.dirname(__import__('mha_course').__file__) + '/exercises'))": "False",
    "import socket\nsocket.create_connection(('1.1.1.1', 53), 3)": "unreachable",
    "for n in range(50):\n    open(f'/dev/shm/{{n}}', 'wb').write(bytes(90 << 20))": "No space left",
    "for n in range(50):\n    open(f'{{n}}.bin', 'wb').write(bytes(90 << 20))": "No space left",
    "import os, time\nfor _ in range(400):\n    if os.fork() == 0:\n        time.sleep(10**6)": "temporarily unavailable",
    "import os\nos.setuid(0)": "not permitted",
    "import mha_course._judged as j, os\nos.write(j.JUDGE.replies.fileno(), os.urandom(10**6))": "It (sent|ended)",
}


@pytest.mark.slow
@pytest.mark.weekly
def test_in_a_container_verdicts_are_the_same_and_nothing_of_this_machine_is_there(
    image, tmp_path, monkeypatch
):
    monkeypatch.setenv("https_proxy", "http://ada:a-secret@127.0.0.1")
    kept = tmp_path / "grades.csv"
    kept.write_text("ada,5")
    with Submission({}, isolate=False, end=time.monotonic() + 600, image=image) as submission:
        submission.ask(_judged.run_cell, GIVEN)
        for name, text in TEXTS:
            check, _ = checker_of(PIECES[name])
            here = verdict_in_page(name, text, check, tmp_path)
            assert verdict_of_the_judge(submission, name, text, check) == here, name
    cells = [one.format(kept=str(kept)) for one in CONTAINED]
    found = grade.grade(write(tmp_path / "in" / "eve.ipynb", ANSWER, *cells, SPLIT), container=image)
    assert found.results[SPLIT][0] == "right", found
    raised = [one for one in found.troubles if one.startswith(("Code cell", "It "))]
    for (attack, said), trouble in zip(CONTAINED.items(), raised, strict=True):
        assert re.search(said, trouble), (attack, trouble)
    assert kept.read_text() == "ada,5"
    listed = subprocess.run(["podman", "ps", "--all", "--quiet"], capture_output=True, text=True)
    assert listed.stdout == ""


@pytest.mark.slow
@pytest.mark.weekly
def test_a_container_ends_in_time_although_its_grader_was_killed(image, tmp_path):
    loop = "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True:\n    pass"
    book = write(tmp_path / "a.ipynb", ANSWER, loop, SPLIT)
    command = [sys.executable, "-c", f"""
import time
from mha_course import _judge, grade
_judge._GRACE = 2
grade.grade(__import__("pathlib").Path({str(book)!r}), container={image!r}, seconds=40)"""]  # fmt: skip
    grader = subprocess.Popen(command)

    def running():
        return subprocess.run(["podman", "ps", "--quiet"], capture_output=True, text=True).stdout.split()

    wait_until(running, 60)
    time.sleep(10)
    grader.kill()
    grader.wait()
    wait_until(lambda: not running(), 90)


def wait_until(happened, seconds):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.5)
