"""The recipe of the container that runs submissions, and what is said where none can run.

What runs in one is in test_attacks.py: beside attacks that take the whole machine, it would be late.
"""

import re
import tomllib
from pathlib import Path

import pytest
from test_judge import write

from mha_course import grade

ROOT = Path(__file__).resolve().parents[2]
OURS = {"mha-lib", "mha-course", "attention-check"}


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
