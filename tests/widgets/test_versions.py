"""Packages under the widgets in versions that nobody tried: one sentence, never an error inside a class."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mha_course.widgets._versions import TRIED, needed_versions, untried_version

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", TRIED)
def test_the_versions_are_those_of_colab_and_of_the_book(name):
    texts = [(ROOT / file).read_text("utf-8") for file in ("requirements-colab.txt", "requirements.txt")]
    assert TRIED[name] == tuple(re.search(rf"(?m)^{name}==([\w.]+)", text)[1] for text in texts)
    assert untried_version(name) is None


@pytest.mark.parametrize(("found", "tried"), [
    ("5.7.0", False), ("5.7.1", True), ("5.9", True), ("5.10.0rc1", True), ("5.99", False), ("6.0.0", False),
])  # fmt: skip
def test_another_version_is_said(monkeypatch, found, tried):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    said = untried_version("traitlets")
    oldest, newest = TRIED["traitlets"]
    expected = f"traitlets {found} is installed; they were tried with traitlets {oldest} to {newest}."
    assert said == (None if tried else expected)


def test_a_block_that_works_only_warns(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    with pytest.warns(UserWarning, match="traitlets 1.0 is installed"), needed_versions():
        pass


def test_an_error_that_has_nothing_to_do_with_versions_stays():
    with pytest.raises(ZeroDivisionError), needed_versions():
        raise ZeroDivisionError


# A package as it was before a class of ours could be written, under a version that says so.
OLD = """
import importlib.metadata, traitlets
of = importlib.metadata.version
importlib.metadata.version = lambda name: "5.0.5" if name == "traitlets" else of(name)
del traitlets.TraitType
import mha_course.widgets
"""


def test_an_old_package_is_named_before_anything_fails_inside_a_class():
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, timeout=300)
    told = "The widgets of the course cannot be loaded. traitlets 5.0.5 is installed; they were tried with"
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {told}")
    assert "class " not in done.stderr
