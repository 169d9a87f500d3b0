"""Say what this machine lacks and how to get it, before anything is downloaded.

    python3 tools/machine.py book|test|pdf|epub|slides|dist|browser|colab

`make book` and `make test` run this first, with the Python that will create the environment, however old. The
exit status is 1 if something is missing; with `browser`, if the system has no browser. Anything that `make`
installs itself does not count as missing: Debian's packages where we may install them, and Playwright's own
browser where there is no other. With `colab`, the path of a Python of Colab's version is printed.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)  # the pinned packages support these
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# The libraries that Playwright's browser loads from the system.
LIBRARIES = """libasound.so.2 libatk-1.0.so.0 libatk-bridge-2.0.so.0 libatspi.so.0 libdbus-1.so.3 libgbm.so.1
    libglib-2.0.so.0 libnspr4.so libnss3.so libX11.so.6 libxcb.so.1 libXcomposite.so.1 libXdamage.so.1
    libXext.so.6 libXfixes.so.3 libxkbcommon.so.0 libXrandr.so.2""".split()
DRIVER = "libatomic.so.1"  # for Node, which Playwright's driver and `make check` use

DEBIAN, FEDORA = (
    "chromium-headless-shell fonts-dejavu-core",
    "chromium dejavu-sans-fonts",
)
# Ubuntu's chromium is a snap, which cannot start for tests, so these are for Playwright's own browser.
UBUNTU = """libasound2t64 libatk-bridge2.0-0 libgbm1 libnss3 libxcomposite1 libxdamage1 libxkbcommon0
    libxrandr2 fonts-dejavu-core"""
# How to install on each kind of system: the command, then the packages.
INSTALL = {
    "debian": ("sudo apt-get install", "python3-venv", DEBIAN, "libatomic1"),
    "ubuntu": ("sudo apt-get install", "python3-venv", UBUNTU, "libatomic1"),
    "fedora": ("sudo dnf install", "python3", FEDORA, "libatomic"),
    "macos": ("brew install", "python@3.13", "chromium", "gcc"),
}
KINDS = ("install", "venv", "browser", "driver")
# What the set-up writes: the environment with npm's packages, and each download for a moment.
# What the set-up takes here and in the folder for temporary files, and what the later builds and tests do.
GIGABYTES, TEMPORARY_GIGABYTES = 3.5, 0.5
LATER_GIGABYTES = 0.2


def system(release="/etc/os-release", platform=sys.platform):
    """Return the entry of INSTALL for this system, or None."""
    if platform == "darwin":
        return "macos"
    try:
        text = Path(release).read_text(encoding="utf-8")
    except OSError:
        return None
    kinds = re.findall(r"^(?:ID|ID_LIKE)=\"?([^\"\n]*)", text, re.MULTILINE)
    names = " ".join(sorted(kinds, key=lambda kind: " " in kind)).split()
    names += ["fedora"] if "rhel" in names else []
    return next((name for name in names if name in INSTALL), None)


def python_fault(version=None):
    """Say what is wrong with the version of Python, or return None."""
    version = tuple(version or sys.version_info)[:3]
    if OLDEST <= version[:2] <= NEWEST:
        return None
    old, new, own = (".".join(map(str, v)) for v in (OLDEST, NEWEST, version))
    return f"Python {old} to {new}. This is Python {own}; with another one: make PYTHON=python{new} …"


def unsupported(platform=sys.platform, processor=None):
    """Say why the pinned packages cannot be installed on this system at all, or return None."""
    if platform in ("win32", "cygwin", "msys"):
        return (
            "Linux or macOS. On Windows, the Windows Subsystem for Linux is such a system: run"
            " `wsl --install`, then the same commands in its terminal"
        )
    if platform == "darwin" and (processor or os.uname().machine) == "x86_64":
        return (
            "a Mac with an Apple processor: torch 2.13 has no build for Intel's. The book can be read and run"
            " without a set-up, in a browser and on Colab"
        )
    return None


def unusable_folders(is_set_up=False):
    """Say which folder cannot hold what the set-up, or what comes after it, writes, or return None."""
    for folder, at_first in (
        (".", GIGABYTES),
        (tempfile.gettempdir(), TEMPORARY_GIGABYTES),
    ):
        needed = LATER_GIGABYTES if is_set_up else at_first
        where = os.path.abspath(folder)
        if not os.access(folder, os.W_OK):
            return "the right to write into " + where
        free = shutil.disk_usage(folder).free / 1e9
        if free < needed:
            return f"{needed} GB of free disk for {where}, which has {free:.1f} GB left"
    return None


def browser():
    """Return the path of a browser that the system has, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def lacks(library):
    """Whether the system lacks a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return True
    return False


def may_install():
    """Whether `make` installs Debian's packages itself."""
    return system() == "debian" and os.geteuid() == 0


def has_venv():
    """Whether this Python can create environments, for which Debian has a separate package."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return False
    return True


def python_of_colab():
    """Return the path of a Python of the version that Colab has, fetched by uv if need be, or None."""
    pins = Path("requirements-colab.txt").read_text(encoding="utf-8")
    version = re.findall(r"^# Python (3[.]\d+)$", pins, re.MULTILINE)[0]
    # Such a name in the path may be pyenv's, which runs only what was chosen; its versions lie here.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    known = [
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"{version}.*/bin/python")),
    ]
    for path in filter(None, known):
        ask = [
            str(path),
            "-c",
            "import ensurepip, sys; print(*sys.version_info[:2], sep='.')",
        ]
        said = subprocess.run(
            ask, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        if said.stdout.decode().strip() == version:
            return str(path)
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "python", "install", "--quiet", version], check=False)
    found = subprocess.run(
        [uv, "python", "find", version], stdout=subprocess.PIPE, check=False
    )
    return found.stdout.decode().strip() or None


def missing(command):
    """Return what a command of `make` needs and this machine lacks, as pairs of a kind and a sentence.

    The kind is its name in INSTALL, or None.
    """
    is_set_up = Path(".venv/ready").exists()
    fault = None if is_set_up else unsupported() or python_fault()
    fault = fault or unusable_folders(is_set_up)
    found = [(None, fault)] if fault else []
    if not is_set_up and not fault and not has_venv():
        found.append(("venv", "Python's modules venv and ensurepip"))
    if command == "test" and not shutil.which("git"):
        found.append(("git", "git"))
    if command != "book":
        if sys.platform == "linux" and lacks(DRIVER):
            found.append(("driver", f"the library {DRIVER}, for Node"))
        absent = [name for name in LIBRARIES if lacks(name)]
        if not browser() and sys.platform == "linux" and absent:
            lacking = f"a browser. Playwright's lacks {', '.join(absent)}"
            found.append(("browser", lacking))
    return found


def report(found, kind):
    """Return lines that say what is missing and which command installs it."""
    lines = [f"  needed: {sentence}" for _, sentence in found]
    names = [name for name, _ in found if name]
    if names and kind:
        known = dict(zip(KINDS, INSTALL[kind]), git="git")  # noqa: B905, an old Python has no strict
        packages = " ".join(" ".join(known[name].split()) for name in names)
        lines.append(f"  to get it: {known['install']} {packages}")
    elif names:
        text = "ask your system's package manager, then run this again"
        lines.append(f"  to get it: {text}")
    return lines


def main(arguments):
    """Run from the command line; the exit status is 1 if something is missing."""
    [command] = arguments
    if command == "browser":
        return 0 if browser() else 1
    if command == "colab":
        path = python_of_colab()
        print(
            path or "No Python of Colab's version is here, and uv could not fetch one."
        )
        return 0 if path else 1
    found = missing(command)
    if may_install():
        found = [(name, sentence) for name, sentence in found if name is None]
    if found:
        print(f"`make {command}` has downloaded nothing yet. This machine lacks:")
        print("\n".join(report(found, system())))
        return 1
    if command != "book" and not browser() and not may_install():
        size = "Playwright's own (100 MB) goes into your cache."
        print(f"There is no browser here; {size}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
