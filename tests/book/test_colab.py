"""Each chapter as Colab runs it, without Colab: alone in an empty folder, where torch is and we are not.

The environment is a copy of this one in symbolic links, less our package and anywidget. `google.colab` is a
stub, and git finds a copy of the working tree at the repository's address; only pip's index is the real one.

The chapters also do their arithmetic here as another processor would, and must still print what is stored.

Of the programs in chapters/rosetta the build makes notebooks for the frameworks that Colab has. They run here
with the environments that `make rosetta` makes; `make rosetta CHECK=1` then runs these tests.
"""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
import rosetta
from run_notebooks import notebooks
from set_repository import read_address, setup_cell
from widget_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = notebooks()
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PACKAGES = Path(sysconfig.get_path("purelib"))
OTHER_PROCESSOR = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}

NOT_ON_COLAB = ("mha_lib", "anywidget", "psygnal")
MAY_BE_INSTALLED = {"mha-lib", "anywidget", "psygnal"}

# What anywidget asks of google.colab.
STUB = """
class _widgets:
    _installed_url = "https://example.invalid/manager.js"

def enable_custom_widget_manager():
    pass
"""

NBVAL = "-m pytest --nbval --nbval-current-env --nbval-cell-timeout 1800 -p no:cacheprovider"

INSTALLED = """
import importlib.metadata, json
print(json.dumps({d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}))
"""


def git(*arguments):
    subprocess.run(["git", *map(str, arguments)], check=True, capture_output=True)


class Colab:
    """An environment in which our package is not installed, and a home whose git knows where we are.

    What is installed are the packages of `sites`; the first one that has a package wins.
    """

    def __init__(self, folder, repository, sites=(PACKAGES,)):
        self.folder, self.repository = folder, repository
        venv.create(folder / "venv", symlinks=True, with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        for entry in (entry for site in sites for entry in site.iterdir()):
            lines = entry.read_text().splitlines() if entry.suffix == ".pth" else []
            # An editable install, or the path from an environment of `make rosetta` to the book's.
            leads_here = any(Path(line, "mha_lib").is_dir() or line in map(str, sites) for line in lines)
            there = (self.site / entry.name).is_symlink()
            if not entry.name.startswith(NOT_ON_COLAB) and not leads_here and not there:
                (self.site / entry.name).symlink_to(entry)
        # Not in site-packages, where `google` may be a link to this environment's own.
        package = folder / "stub" / "google" / "colab"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "output.py").write_text(STUB)
        start = f"{folder / 'stub'}\nimport google.colab.output\n"
        (self.site / "colab.pth").write_text(start)
        self.home = folder / "home"
        self.home.mkdir()
        self.serve_repository(repository)

    def serve_repository(self, path):
        name, _ = read_address()
        settings = {f"url.file://{path}.insteadOf": f"https://github.com/{name}", "safe.directory": "*"}
        (self.home / ".gitconfig").unlink(missing_ok=True)
        for key, value in settings.items():
            git("config", "--file", self.home / ".gitconfig", key, value)

    def run(self, *arguments, cwd=None, **settings):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        environment |= {
            "HOME": str(self.home),
            "GIT_TERMINAL_PROMPT": "0",
            "IPYTHONDIR": str(self.home / "ipython"),
            "JUPYTER_PATH": "",
            "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib")),
            "PIP_ROOT_USER_ACTION": "ignore",
            "TQDM_DISABLE": "1",
            **OTHER_PROCESSOR,
            **settings,
        }
        return subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=cwd or self.home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=3600,
        )

    def installed(self):
        return json.loads(self.run("-c", INSTALLED).stdout)

    def validate(self, path, folder):
        """Run a copy of a notebook alone in a folder; every output must be the stored one."""
        folder.mkdir()
        shutil.copy(path, folder)
        shutil.copy(ROOT / "conftest.py", folder)  # which compares figures
        return self.run(*NBVAL.split(), path.name, cwd=folder)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The working tree as a repository of one commit."""
    repository, (_, branch) = tmp_path_factory.mktemp("repository"), read_address()
    git("init", "--quiet", "--initial-branch", branch, repository)
    here = ["--git-dir", repository / ".git", "--work-tree", ROOT]
    git(*here, "add", "--all", ".")
    author = ["-c", "user.name=test", "-c", "user.email=test"]
    git(*here, *author, "commit", "--quiet", "--message", "As it is now")
    return repository


@pytest.fixture(scope="module")
def colab(tmp_path_factory, repository):
    """The environment before the first chapter."""
    return Colab(tmp_path_factory.mktemp("colab"), repository)


def test_the_simulation_is_like_colab(colab):
    assert {"torch", "numpy", "matplotlib"} <= colab.installed().keys()
    assert MAY_BE_INSTALLED.isdisjoint(colab.installed())


def test_set_up_fails_loudly_where_the_package_cannot_be_had(colab, tmp_path):
    colab.serve_repository(tmp_path / "nowhere")
    try:
        done = colab.run("-c", setup_cell(*read_address()))
    finally:
        colab.serve_repository(colab.repository)
    assert done.returncode != 0
    assert "CalledProcessError" in done.stderr


def test_set_up_installs_nothing_elsewhere(colab):
    """Not on Colab, the missing package is an error; nobody's environment is changed unasked."""
    done = colab.run("-c", "import sys\ndel sys.modules['google.colab']\n" + setup_cell(*read_address()))
    assert "ModuleNotFoundError: No module named 'mha_lib'" in done.stderr
    assert MAY_BE_INSTALLED.isdisjoint(colab.installed())


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_runs(colab, tmp_path, path):
    before = colab.installed()
    ours = {name: (colab.site / name).stat().st_mtime_ns for name in ("torch", "numpy", "matplotlib")}

    done = colab.validate(path, tmp_path / "content")

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    after = colab.installed()
    assert "mha-lib" in after
    # torch and all else that was there is as it was, and no more came than has to.
    assert {name: version for name, version in after.items() if name in before} == before
    assert after.keys() - before.keys() <= MAY_BE_INSTALLED
    assert ours == {name: (colab.site / name).stat().st_mtime_ns for name in ours}
    assert all((colab.site / name).is_symlink() for name in ours)
    assert after["torch"] == importlib.metadata.version("torch")


SHOW_ALL = """
import json, sys
sys.path.insert(0, {folder!r})
from widget_samples import SAMPLES

shown = {{}}
for name, make in SAMPLES.items():
    widget = make()
    assert "export default" in widget._esm and "{{" in widget._css, name
    bundle, metadata = widget._repr_mimebundle_()
    shown[name] = [sorted(bundle), metadata]
print(json.dumps(shown))
"""


def test_package_that_was_installed_is_whole(colab):
    """The wheel that pip built from the clone has all widgets, and Colab can show them."""
    show_all = SHOW_ALL.format(folder=str(ROOT / "tests" / "widgets"))
    done = colab.run("-c", setup_cell(*read_address()) + show_all)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown.keys() == SAMPLES.keys()
    for bundle, metadata in shown.values():
        assert WIDGET_VIEW in bundle
        # Under the manager that Colab needs.
        assert metadata[WIDGET_VIEW]["colab"]["custom_widget_manager"]["url"]
    where = colab.run("-c", "import mha_lib; print(mha_lib.__file__)").stdout
    assert str(colab.site) in where


# --------------------------------------------------------------------------------
# The frameworks of chapters/rosetta

spec = importlib.util.spec_from_file_location("rosetta_notebooks", ROOT / "_ext" / "rosetta_notebooks.py")
rosetta_notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rosetta_notebooks)

# Colab runs cells one after another in one namespace, and stops at the first error.
RUN_CELLS = """
space = {{"__name__": "__main__"}}
for source in {cells!r}:
    exec(compile(source, "<cell>", "exec"), space)
"""


def program_of(file):
    """The program that `make rosetta` runs of a file; Keras on JAX, as on Colab."""
    return next(p for p in rosetta.PROGRAMS.values() if p.file == file)


def run_notebook(repository, folder, file, edit=str):
    """Run the cells of a framework's notebook, each edited, alone in a folder."""
    program = program_of(file)
    sites = [PACKAGES]
    if program.environment != "book":
        environment = rosetta.ENVIRONMENTS / program.environment
        assert (environment / "ready").is_file(), (
            f"`make rosetta` makes the environment {program.environment}"
        )
        [own] = environment.glob("lib/python*/site-packages")
        sites = [own, *sites] if (own / "book.pth").is_file() else [own]
    colab, (name, branch) = Colab(folder, repository, sites), read_address()
    path, address = ROOT / "chapters" / "rosetta" / file, f"https://github.com/{name}"
    notebook = rosetta_notebooks.notebook_of(path, address, branch)
    cells = [edit(cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    script = folder / "cells.py"
    script.write_text(RUN_CELLS.format(cells=cells), encoding="utf-8")
    return colab.run(script, cwd=folder, **program.settings)


# Before `make rosetta` has made its environments there is PyTorch alone; `make rosetta CHECK=1` runs all.
RUNNABLE = [
    file
    for file in rosetta_notebooks.PROGRAMS
    if program_of(file).environment == "book" or rosetta.ENVIRONMENTS.is_dir()
]


@pytest.mark.parametrize("file", RUNNABLE)
def test_notebook_of_a_framework_runs(repository, tmp_path, file):
    done = run_notebook(repository, tmp_path, file)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = [line for line in done.stdout.splitlines() if line.startswith("self-attention, ")]
    assert len(shown) == (3 if "pytorch" in file else 2)  # ways to compute


def test_notebook_of_a_framework_says_what_no_longer_agrees(repository, tmp_path):
    def unscaled(source):
        return source.replace("/ math.sqrt(q.shape[-1])", "/ q.shape[-1]")

    done = run_notebook(repository, tmp_path, "attention_pytorch.py", unscaled)
    assert "ValueError: self-attention, from nothing, float32: output differs by" in done.stderr
