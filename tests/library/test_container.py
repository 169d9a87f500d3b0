# ruff: noqa: E501, an attack is easier to read in one line
"""Submissions in a container: the same verdicts, and nothing of this machine."""

import io
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from exercise_cells import checker_of
from test_judge import ANSWER, GIVEN, PIECES, SPLIT, TEXTS, verdict_in_page, verdict_of_the_judge, write

from mha_course import _judged, grade
from mha_course._judge import Submission

ROOT = Path(__file__).resolve().parents[2]
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


def test_the_recipe_is_pinned_and_has_all_that_the_course_needs():
    recipe = (ROOT / "mha_course" / "Containerfile").read_text(encoding="utf-8")
    assert re.search(r"(?m)^ARG BASE=\S+:3\.1\d\.\d+-slim-bookworm@sha256:[0-9a-f]{64}$", recipe)
    files = re.findall(r"--require-hashes --only-binary :all:[^&]* -r (\S+)", recipe)
    pinned = "".join((ROOT / name).read_text(encoding="utf-8") for name in files)
    project = tomllib.loads((ROOT / "mha_course" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["grading"]]
    names = {re.split(r"[^\w-]", one)[0] for one in needed} - OURS
    assert names <= set(re.findall(r"(?m)^([\w.-]+)==", pinned))


def test_where_nothing_runs_containers_one_sentence_says_so(tmp_path, monkeypatch, capsys):
    book = write(tmp_path / "a.ipynb", "1")

    def said():
        with pytest.raises(SystemExit) as stopped:
            grade.main([str(book), "--container"])
        assert stopped.value.code == 2
        return capsys.readouterr().err.splitlines()[-1].partition("error: ")[2]

    monkeypatch.setenv("PATH", str(tmp_path))
    assert said() == "--container needs podman or docker, and neither is installed."
    for name, code in {"podman": "echo no such image >&2; exit 125", "docker": "echo 3.9"}.items():
        for other in ("podman", "docker"):
            (tmp_path / other).unlink(missing_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
        start = {
            "podman": "podman cannot run the image mha-course: no such image (",
            "docker": "The image mha-course has Python 3.9, and the grader runs on Python 3.",
        }
        assert said().startswith(start[name])


ATTACKS = {
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
    cells = [one.format(kept=str(kept)) for one in ATTACKS]
    found = grade.grade(write(tmp_path / "in" / "eve.ipynb", ANSWER, *cells, SPLIT), container=image)
    assert found.results[SPLIT][0] == "right", found
    raised = [one for one in found.troubles if one.startswith(("Code cell", "It "))]
    for (attack, said), trouble in zip(ATTACKS.items(), raised, strict=True):
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
