"""Make the environment of the course: Python's packages, npm's, then torch.

    python3 tools/set_up.py [--python PYTHON] [--torch-index ADDRESS]

`make` runs this when the environment is missing or the pins have changed. All packages are checked against
their stored hashes. The small ones come first, so that a network which lets nothing through is noticed before
gigabytes are downloaded. `.venv/ready` contains the folder in which the environment was made: the environment
holds its own path, so it cannot be moved.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

VENV = Path(".venv")
READY = VENV / "ready"
# The set-up writes this first, so an interrupted one is recognised as ours too.
OURS = VENV / "made-by-make"
OWN = (".", "attention_check", "mha_course")
PINS = [f"requirements{kind}.txt" for kind in ("", "-cpu", "-gpu")]
PINS += [f"{name}/pyproject.toml" for name in OWN]
PIP = [".venv/bin/pip", "install", "--quiet", "--no-deps"]
PINNED = [*PIP, "--require-hashes", "--only-binary", ":all:"]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
GIGABYTES_OF_GPU_BUILD = 6


class SetUpError(Exception):
    """What went wrong, as a sentence for whoever ran `make`."""


def is_ready(pins=PINS):
    """Whether the environment is complete, stands where it was made and is newer than all pins."""
    if not READY.exists() or READY.read_text().strip() != os.path.realpath("."):
        return False
    made = READY.stat().st_mtime
    if any(Path(pin).stat().st_mtime > made for pin in pins):
        return False
    return python_starts()


def python_starts():
    """Whether the environment's Python is still there; a link may point to one that is gone."""
    try:
        done = subprocess.run([".venv/bin/python", "-c", ""], check=False)
    except OSError:
        return False
    return done.returncode == 0


def remove_unusable():
    """Remove an environment that cannot be used, if `make` made it.

    Raises:
        SetUpError: somebody else made it.
    """
    if not os.path.lexists(VENV):
        return
    made_in = READY.read_text().strip() if READY.exists() else None
    if made_in == os.path.realpath(".") and python_starts():
        return
    is_ours = OURS.exists() or READY.exists()
    if VENV.is_symlink() or not VENV.is_dir() or not (is_ours or is_empty(VENV)):
        raise SetUpError(
            "There is a .venv here that `make` did not create, and `make` needs that name."
            " Rename or delete it, then run this again."
        )
    if made_in is None:
        print("An earlier set-up was interrupted; it starts again.", flush=True)
    elif made_in != os.path.realpath("."):
        print(
            f"The environment was made in {made_in} and cannot be moved; it is made again.",
            flush=True,
        )
    else:
        print(
            "The environment's Python is gone; the environment is made again.",
            flush=True,
        )
    shutil.rmtree(VENV)


def is_empty(folder):
    """Whether nothing is in a folder."""
    return not any(folder.iterdir())


def create(python):
    """Create an empty environment, as root on Debian with the package that it needs.

    Raises:
        SetUpError: no environment can be created.
    """
    VENV.mkdir()
    OURS.touch()
    make = [python, "-m", "venv", str(VENV)]
    if subprocess.run(make, check=False).returncode == 0:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        get = ["apt-get", "install", "-qq", "-y", "--no-install-recommends"]
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
        subprocess.run([*get, "python3-venv"], env=quiet, check=False)
        if subprocess.run(make, check=False).returncode == 0:
            return
    raise SetUpError(f"{python} could not create an environment; its message is above.")


def run(command, what):
    """Run a command, whose own words remain visible.

    Raises:
        SetUpError: it failed.
    """
    if subprocess.run(command, check=False).returncode:
        raise SetUpError(
            f"{what} could not be installed; the message above says why."
            " Once that is mended, run the same command again."
        )


def install_packages_of_npm():
    """Install what comes from npm, with the environment's own Node."""
    install = [".venv/bin/npm", "ci", "--loglevel=error", "--ignore-scripts"]
    run([*install, "--no-audit", "--no-fund"], "The packages from npm")
    Path("node_modules/.package-lock.json").touch()


def install_torch(index=None):
    """Install torch for CPUs, or PyPI's build for GPUs if the index has no build for CPUs.

    Raises:
        SetUpError: the index cannot be reached, or the installation failed in another way.
    """
    command = [*PINNED, *(["--index-url", index] if index else [])]
    command += ["-r", "requirements-cpu.txt"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return
    # An index that was not reached offers no version at all; one without this build lists others.
    absent = "No matching distribution found for torch" in done.stderr
    reached = "(from versions: none)" not in done.stderr
    if index or not absent or not reached:
        sys.stderr.write(done.stderr)
        raise SetUpError(
            "torch could not be installed; pip's message above says why."
            " Once that is mended, run the same command again."
        )
    free = shutil.disk_usage(".").free / 1e9
    if free < GIGABYTES_OF_GPU_BUILD:
        raise SetUpError(
            f"PyPI has torch for GPUs only. That needs {GIGABYTES_OF_GPU_BUILD} GB, and this disk has"
            f" {free:.1f} GB left. The smaller build: make TORCH_INDEX={CPU_INDEX}"
        )
    print(
        "torch for CPUs is not on PyPI: its build for GPUs comes, some gigabytes."
        f" The smaller one: make TORCH_INDEX={CPU_INDEX}",
        flush=True,
    )
    run([*PINNED, "-r", "requirements-gpu.txt"], "torch")


def main(arguments=None):
    """Run from the command line; the exit status is 1 if the environment is not complete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch-index")
    parser.add_argument("--only-npm", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.only_npm:
            install_packages_of_npm()
            return 0
        if is_ready():  # somebody else has just made it, while this `make` waited
            return 0
        remove_unusable()
        if not VENV.exists():
            create(options.python)
        run([*PINNED, "-r", "requirements.txt"], "The packages in requirements.txt")
        if not Path("node_modules/.package-lock.json").exists():
            install_packages_of_npm()
        install_torch(options.torch_index)
        own = [part for name in OWN for part in ("--editable", name)]
        run([*PIP, "--no-build-isolation", *own], "The course's own packages")
        # matplotlib builds its cache of fonts now; later it would write a notice into a notebook's output.
        run([".venv/bin/python", "-c", "import matplotlib.font_manager"], "matplotlib")
    except SetUpError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    READY.write_text(os.path.realpath(".") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
