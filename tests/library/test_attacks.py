# ruff: noqa: E501, an attack is easier to read in one line
"""A class in which many try to forge, spoil, steal, escape or exhaust: no mark of theirs or of others changes."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_judge import ANSWER, FORGERIES, SPLIT, STUB, needs_walls, write

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
    JUDGED + "import pickle\npickle.loads = lambda _: (1, None, True, 'Right.')",
    "split_heads = lambda x, num_heads: torch.full((2, num_heads, 5, 7), torch.nan)",
    "class Anything:\n    __eq__ = __bool__ = lambda *_: True\nsplit_heads = lambda x, num_heads: Anything()",
    "split_heads = True", "split_heads = type(check_split_heads)", "split_heads = check_split_heads",
    "from mha_course.built import split_heads",
    "import attention_check._judging as j\nj.Exercise._used = lambda *_: j.Outcome(())",
]  # fmt: skip
STEAL = [
    "import gc\nfound = [one.reference for one in gc.get_objects() if type(one).__name__ == 'Exercise']\n"
    "split_heads = found[0]",
    "import sys\ndef split_heads(x, num_heads):\n    frame = sys._getframe()\n    while frame:\n"
    "        for one in list(frame.f_locals.values()):\n            if hasattr(one, 'reference'):\n"
    "                return one.reference(x, num_heads)\n        frame = frame.f_back",
    "import gc, sys\ndef split_heads(x, num_heads):\n    for one in gc.get_objects():\n"
    "        if getattr(one, '__name__', '') in ('split_heads', '_split_heads') and one is not split_heads:\n            return one(x, num_heads)",
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
    "import os, time\nfor _ in range(150):\n    if os.fork() == 0:\n        time.sleep(10**6)",
]  # fmt: skip
# What must not happen outside; only walls hold it back.
ESCAPE = [
    "open({kept!r}, 'w').write('forged')",
    "import os\nos.unlink({name!r}, dir_fd=os.open({folder!r}, os.O_RDONLY))",
    "import ctypes\nctypes.CDLL(None).unlink({kept!r}.encode())",
    "import torch\ntorch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), {kept!r})",
    "import os\nos.system('echo forged > ' + {kept!r})",
    "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'hello', ('127.0.0.1', {port}))",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
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
    """The processes of submissions that are still there."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if "from mha_course._judged import main" in line]


@needs_walls
@pytest.mark.slow
def test_behind_walls_no_mark_is_wrong_and_nothing_outside_is_read_or_changed(tmp_path):
    kept = tmp_path / "kept" / "grades.csv"
    kept.parent.mkdir()
    kept.write_text("ada,5")
    listeners = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    port = listeners[0].getsockname()[1]
    listeners[1].bind(("127.0.0.1", port))
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
            listener.accept() if listener is listeners[0] else listener.recv(5)
        listener.close()
    for _ in range(50):
        time.sleep(0.1)
        if len(left_running()) <= len(running):
            break
    assert len(left_running()) <= len(running)


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
