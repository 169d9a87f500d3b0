"""Write requirements-colab.txt: of all that the course needs on Colab, what is there, at Colab's versions.

    python tools/colab_pins.py [FOLDER]

Colab publishes the list of its packages and its Python in github.com/googlecolab/backend-info; FOLDER is a
clone of it, and by default both files are downloaded. uv looks up which of these packages are needed, and the
hashes of their files. What is missing in Colab's list is left out, since it is missing on Colab too.
"""

import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements-colab.txt"
SOURCE = "https://raw.githubusercontent.com/googlecolab/backend-info/main"
LIST, SYSTEM = "pip-freeze.txt", "os-info.txt"
# What our packages import, what runs notebooks, and the notebook in which ipywidgets 7 shows widgets.
# transformers is for "Models you know".
NEEDED = """torch numpy matplotlib scikit-learn anywidget babel safetensors tokenizers tqdm ipywidgets ipython
    traitlets ipykernel nbclient nbformat notebook transformers""".split()
# What PyPI's torch needs, in versions of its own.
FOR_TORCH = re.compile(r"(nvidia|cuda)-|triton$")
HEAD = """\
# Of all that the course needs on Colab, what is there, at Colab's versions. `make colab-pins` writes this.
# Colab has torch's build for CPUs; PyPI's, with what it needs, is the same release and can be had everywhere.
# Python {python}
"""


def read(name, folder=None):
    """Return the text of a file that Colab publishes."""
    if folder:
        return (folder / name).read_text(encoding="utf-8")
    with urllib.request.urlopen(f"{SOURCE}/{name}", timeout=60) as page:  # noqa: S310, the address is ours
        return page.read().decode()


def versions(listed):
    """Return the version of each package in the output of `pip freeze`; torch is listed with its address."""
    found = dict(re.findall(r"^([\w.-]+)==(\S+)$", listed, re.MULTILINE))
    [found["torch"]] = re.findall(r"^torch @ \S+/torch-([\d.]+)", listed, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found.items()}


def pins(listed, python):
    """Return the text of the file: the needed packages that Colab has, with their hashes."""
    there = versions(listed)
    with tempfile.TemporaryDirectory() as folder:
        constraints, names = Path(folder, "constraints.txt"), Path(folder, "names.in")
        constraints.write_text(
            "".join(
                f"{name}=={version}\n"
                for name, version in there.items()
                if not FOR_TORCH.match(name)
            ),
            encoding="utf-8",
        )
        names.write_text("\n".join(NEEDED), encoding="utf-8")
        uv = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet"]
        options = ["--python", sys.executable, "--python-version", python]
        options += ["--generate-hashes", "--no-annotate", "--no-header"]
        options += ["--constraints", constraints]
        done = subprocess.run(
            [*uv, *options, names], check=True, stdout=subprocess.PIPE, text=True
        )
    entries = re.findall(r"(?m)^([\w.-]+)==(.*(?:\n    --hash=.*)*\n)", done.stdout)
    kept = [
        f"{name}=={rest}"
        for name, rest in entries
        if canonicalize_name(name) in there or FOR_TORCH.match(name)
    ]
    return HEAD.format(python=python) + "".join(kept)


def main(arguments):
    """Run from the command line."""
    folder = Path(arguments[0]) if arguments else None
    [python] = re.findall(r"Python (3\.\d+)", read(SYSTEM, folder))
    PINS.write_text(pins(read(LIST, folder), python), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
