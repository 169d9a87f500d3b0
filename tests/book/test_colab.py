"""Each chapter as Colab runs it, without Colab: alone in an empty folder, where torch is and we are not.

The environment is a copy of this one in symbolic links, less what Colab does not have. `google.colab` is a
stub, and the book is served by this machine; only pip's index is the real one.

The chapters also do their arithmetic here as another processor would, and must still print what is stored.

Of the programs in chapters/rosetta the build makes notebooks for the frameworks that Colab has. They run here
with the environments that `make rosetta` makes; `make rosetta CHECK=1` then runs these tests.
"""

import http.server
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sysconfig
import threading
import venv
import zipfile
from pathlib import Path

import course_files
import nbformat
import pytest
import rosetta
import rosetta_notebooks
from packaging.utils import canonicalize_name
from run_notebooks import notebooks
from set_repository import book_address, read_address, setup_of_this_course
from widget_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = notebooks()
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PACKAGES = Path(sysconfig.get_path("purelib"))
BOOK = book_address(read_address()[0])
# The versions of our dependencies in Colab's image, from the list that Colab published last.
COLAB = json.loads(Path(__file__).with_name("colab_pins.json").read_text(encoding="utf-8"))
OTHER_PROCESSOR = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}

NOT_ON_COLAB = ("mha_lib", "mha_course", "jaxtyping", "wadler_lindig")
MAY_BE_INSTALLED = {"mha-lib", "mha-course", "jaxtyping", "wadler-lindig"}

# What anywidget needs from google.colab.
STUB = """
class _widgets:
    _installed_url = "https://example.invalid/manager.js"

def enable_custom_widget_manager():
    pass
"""

NBVAL = "-m pytest --nbval --nbval-current-env --nbval-cell-timeout 1800 -p no:cacheprovider"

INSTALLED = """
import importlib.metadata, json
found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
print(json.dumps({name.replace("_", "-"): version for name, version in found.items()}))
"""


class Site:
    """The book's files for Colab, served by this machine; `asked` are the paths that somebody asked for."""

    def __init__(self, folder):
        self.folder, self.asked = folder, []
        self.files = course_files.write(folder / course_files.FOLDER)
        site = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, directory=str(site.folder), **kwargs)

            def do_GET(self):
                site.asked.append(self.path)
                super().do_GET()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def setup(self):
        """The set-up cell of a published page, for this site."""
        return self.here(setup_of_this_course(self.files[:-1]))

    def here(self, source):
        """The source of a cell that takes this site for the book's."""
        assert source.count(f'"{BOOK}"') == 1
        return source.replace(f'"{BOOK}"', f'"{self.address}"')

    def damage(self):
        """Put another file where each one was; an archive of the same names."""
        for file in self.files:
            with zipfile.ZipFile(io.BytesIO(file.content)) as archive:
                inside = {name: archive.read(name) + b"\n" for name in archive.namelist()}
            (self.folder / course_files.FOLDER / file.name).write_bytes(course_files.pack(inside))

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Colab:
    """An environment in which our package is not installed.

    What is installed are the packages of `sites`; the first one that has a package wins.
    """

    def __init__(self, folder, site, sites=(PACKAGES,)):
        self.folder, self.book = folder, site
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

    def run(self, *arguments, cwd=None, **settings):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        environment |= {
            "HOME": str(self.home),
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
        notebook = nbformat.read(path, as_version=4)
        [setup] = [cell for cell in notebook.cells if cell.id == "setup"]
        setup.source = self.book.setup
        nbformat.write(notebook, folder / path.name)
        # Including what compares figures and widgets.
        for name in ("conftest.py", "tests/stored_outputs.py", "tools/run_notebooks.py", "tools/built.py"):
            shutil.copy(ROOT / name, folder)
        return self.run(*NBVAL.split(), path.name, cwd=folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of the book, whole and in reach."""
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.close()


@pytest.fixture
def own_site(tmp_path):
    """A site that a test may damage or take away."""
    site = Site(tmp_path / "site")
    yield site
    site.close()


@pytest.fixture(scope="module")
def colab(tmp_path_factory, site):
    """The environment before the first chapter."""
    return Colab(tmp_path_factory.mktemp("colab"), site)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, site):
    """An environment in which the package is never installed."""
    return Colab(tmp_path_factory.mktemp("fresh"), site)


def test_the_simulation_is_like_colab(fresh):
    assert {"torch", "numpy", "matplotlib"} <= fresh.installed().keys()
    assert MAY_BE_INSTALLED.isdisjoint(fresh.installed())
    assert MAY_BE_INSTALLED.isdisjoint(COLAB["packages"])
    needed = {canonicalize_name(name.partition("-")[0]) for name in NOT_ON_COLAB}
    assert {canonicalize_name(name) for name in MAY_BE_INSTALLED} == needed


# The set-up cell


def set_up(colab, site, before=""):
    return colab.run("-c", before + site.setup)


def assert_refused(done, colab, *sentences):
    assert done.returncode != 0
    last = done.stderr[done.stderr.index("RuntimeError: ") :]
    assert all(sentence in last for sentence in sentences), last
    assert MAY_BE_INSTALLED.isdisjoint(colab.installed())


def test_another_file_under_the_name_of_a_package_is_not_installed(tmp_path, own_site):
    """Who takes over a name on PyPI could add a file to it."""
    links = tmp_path / "links"
    links.mkdir()
    for package in NOT_ON_COLAB[2:]:
        pins = (ROOT / "requirements.txt").read_text("utf-8")
        [version] = re.findall(rf"(?m)^{package.replace('_', '-')}==(\S+)", pins)
        name = f"{package}-{version}"
        with zipfile.ZipFile(links / f"{name}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{package}/__init__.py", "raise SystemExit('somebody else')")
            metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            wheel.writestr(f"{name}.dist-info/METADATA", metadata)
            wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}.dist-info/RECORD", "")
    colab = Colab(tmp_path, own_site)
    done = colab.run("-c", own_site.setup, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(links))
    assert_refused(done, colab, "is not the one of this notebook", "HASHES")


def test_it_installs_the_files_that_the_page_was_built_with(tmp_path, own_site):
    colab = Colab(tmp_path, own_site)
    done = set_up(colab, own_site)
    assert done.returncode == 0, done.stderr
    wheels = own_site.files[:-1]
    assert own_site.asked == [f"/{course_files.FOLDER}/{file.name}" for file in wheels]
    for name, file in zip(("mha_lib", "mha_course"), wheels, strict=True):
        [origin] = colab.site.glob(f"{name}-*.dist-info/direct_url.json")
        origin = json.loads(origin.read_text(encoding="utf-8"))
        assert origin["archive_info"]["hashes"] == {"sha256": file.sha256}


def test_a_copy_that_names_no_files_says_where_one_is_that_does(fresh, own_site):
    """As in git; somebody may open it on Colab by its address."""
    done = fresh.run("-c", own_site.here(setup_of_this_course()))
    assert_refused(done, fresh, f"This copy names no packages; {own_site.address} opens one that does.")
    assert own_site.asked == []


def test_it_refuses_another_file(fresh, own_site):
    own_site.damage()
    done = set_up(fresh, own_site)
    told = "The course's package is not the one of this notebook: open it again from http"
    assert_refused(done, fresh, told)


def test_it_says_that_the_book_is_out_of_reach(fresh, own_site):
    own_site.close()
    done = set_up(fresh, own_site)
    told = f"The course's package could not be installed from {own_site.address}. "
    assert_refused(done, fresh, told, "Is there a network?")


def test_it_says_that_the_book_is_not_published(fresh, own_site):
    shutil.rmtree(own_site.folder / course_files.FOLDER)
    done = set_up(fresh, own_site)
    assert_refused(done, fresh, f"could not be installed from {own_site.address}. ", "404")


def test_it_leaves_packages_alone_that_are_there(fresh, own_site, tmp_path):
    for package in ("mha_lib", "mha_course"):
        (tmp_path / f"{package}.py").write_text("here = True\n")
    done = set_up(fresh, own_site, f"import sys\nsys.path.append({str(tmp_path)!r})\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert own_site.asked == []


def test_it_installs_nothing_elsewhere(fresh, own_site):
    """Not on Colab, the missing package is an error; nobody's environment is changed unasked."""
    done = set_up(fresh, own_site, "import sys\ndel sys.modules['google.colab']\n")
    assert "ModuleNotFoundError: No module named 'mha_course'" in done.stderr
    assert own_site.asked == []
    assert MAY_BE_INSTALLED.isdisjoint(fresh.installed())


def pip_would_install(python, site, *options):
    """What `pip install` of both wheels would install, by the report of a dry run."""
    wheels = [f"{site.address}/{course_files.FOLDER}/{file.name}" for file in site.files[:-1]]
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", *options, *wheels]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["install"]
    return {canonicalize_name(entry["metadata"]["name"]) for entry in found}


def test_beside_the_versions_of_colab_only_what_is_missing_is_installed(site, tmp_path):
    """pip knows what is installed by its metadata, so a folder of metadata alone is Colab's image to it."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=True)
    [packages] = (tmp_path / "venv").glob("lib/python3.*/site-packages")
    for name, version in COLAB["packages"].items():
        metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    assert pip_would_install(tmp_path / "venv" / "bin" / "python", site) == MAY_BE_INSTALLED


# The chapters


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_runs(colab, tmp_path, path):
    before = colab.installed()
    ours = {name: (colab.site / name).stat().st_mtime_ns for name in ("torch", "numpy", "matplotlib")}

    done = colab.validate(path, tmp_path / "content")

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    after = colab.installed()
    assert {"mha-lib", "mha-course"} <= after.keys()
    # torch and everything else that was installed is unchanged, and nothing unnecessary was added.
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
    """The wheels have all widgets, and Colab can show them."""
    show_all = SHOW_ALL.format(folder=str(ROOT / "tests" / "widgets"))
    done = colab.run("-c", colab.book.setup + show_all)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown.keys() == SAMPLES.keys()
    for bundle, metadata in shown.values():
        assert WIDGET_VIEW in bundle
        # Inside the widget manager that Colab needs.
        assert metadata[WIDGET_VIEW]["colab"]["custom_widget_manager"]["url"]
    where = colab.run("-c", "import mha_course, mha_lib; print(mha_course.__file__, mha_lib.__file__)").stdout
    assert where.count(str(colab.site)) == 2


# The frameworks of chapters/rosetta


# Colab runs cells one after another in one namespace, and stops at the first error.
RUN_CELLS = """
space = {{"__name__": "__main__"}}
for source in {cells!r}:
    exec(compile(source, "<cell>", "exec"), space)
"""


def program_of(file):
    """The program that `make rosetta` runs of a file; Keras on JAX, as on Colab."""
    return next(p for p in rosetta.PROGRAMS.values() if p.file == file)


def run_notebook(site, folder, file, edit=str):
    """Run the cells of a framework's notebook, each edited, alone in a folder, against a site of the book."""
    program = program_of(file)
    sites = [PACKAGES]
    if program.environment != "book":
        environment = rosetta.ENVIRONMENTS / program.environment
        assert (environment / "ready").is_file(), f"`make rosetta` makes {program.environment}"
        sites = [*environment.glob("lib/python*/site-packages"), *sites]  # Colab also has torch
    colab, (name, branch) = Colab(folder, site, sites), read_address()
    path, address = ROOT / "chapters" / "rosetta" / file, f"https://github.com/{name}"
    notebook = rosetta_notebooks.notebook_of(path, address, branch, site.files)
    sources = [edit(cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    cells = [site.here(source) if BOOK in source else source for source in sources]
    script = folder / "cells.py"
    script.write_text(RUN_CELLS.format(cells=cells), encoding="utf-8")
    return colab.run(script, cwd=folder, **program.settings)


# Until `make rosetta` has made its environments, there is only PyTorch; `make rosetta CHECK=1` runs all.
can_run = lambda file: program_of(file).environment == "book" or rosetta.ENVIRONMENTS.is_dir()  # noqa: E731
RUNNABLE = [file for file in rosetta_notebooks.PROGRAMS if can_run(file)]


@pytest.mark.parametrize("file", RUNNABLE)
def test_notebook_of_a_framework_runs(site, tmp_path, file):
    done = run_notebook(site, tmp_path, file)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = [line for line in done.stdout.splitlines() if line.startswith("self-attention, ")]
    assert len(shown) == (3 if "pytorch" in file else 2)  # ways to compute


def test_notebook_of_a_framework_says_what_no_longer_agrees(site, tmp_path):
    def unscaled(source):
        return source.replace("/ math.sqrt(q.shape[-1])", "/ q.shape[-1]")

    done = run_notebook(site, tmp_path, "attention_pytorch.py", unscaled)
    assert "ValueError: self-attention, from nothing, float32: output differs by" in done.stderr


def test_notebook_of_a_framework_refuses_other_programs(own_site, tmp_path):
    own_site.damage()
    done = run_notebook(own_site, tmp_path / "run", "attention_pytorch.py")
    assert "RuntimeError: The course's programs are not those of this notebook: open it again" in done.stderr
    assert not (tmp_path / "run" / "course").exists()


def test_notebook_of_a_framework_says_that_the_book_is_out_of_reach(own_site, tmp_path):
    own_site.close()
    done = run_notebook(own_site, tmp_path / "run", "attention_pytorch.py")
    assert f"RuntimeError: The course's programs could not be fetched from {own_site.address}." in done.stderr
