"""Pin the packages in requirements.in and everything they need, with the SHA-256 of each file.

    python tools/lock.py [--upgrade]

uv finds the versions for all Pythons and machines of `tool.uv` in pyproject.toml. A pinned version stays,
unless requirements.in names a different one or --upgrade is given. Six files are written:

* requirements-cpu.txt: only torch for CPUs, because for Linux it comes from PyTorch's own index;
* requirements-gpu.txt, as the alternative: torch for GPUs from PyPI, for Linux, with its dependencies;
* requirements-paper.txt: what only `make pdf` needs, because old systems have no build of it;
* requirements.txt: everything else;
* requirements-class.txt: nbgrader and Otter with what they need beside it, for `make weekly` alone;
* requirements-wild.txt: packages whose attention is judged, without what they need, for `make weekly` too.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = [f"requirements{kind}.txt" for kind in ("", "-cpu", "-gpu", "-paper")]
HEADS = (
    "# Everything but torch, with the SHA-256 of each file. `make lock` writes this from requirements.in.\n",
    "# torch for CPUs, for Linux from PyTorch's own index (TORCH_INDEX). `make lock` writes this.\n",
    "# torch for GPUs, with what it brings, instead of requirements-cpu.txt. `make lock` writes this.\n",
    "# Only for `make pdf`: on a Mac, its newest build needs macOS 15. `make lock` writes this.\n",
)
CLASS = "requirements-class.txt"
FOR_CLASSES = "nbgrader==0.9.6\notter-grader==7.0.0\n"
CLASS_HEAD = "# nbgrader and Otter, with what they need beside requirements.txt. `make lock` writes this.\n"
WILD = "requirements-wild.txt"
WILD_HEAD = "# Packages whose attention is judged (tests/wild), nothing else. `make lock` writes this.\n"
# The last three are what several of the others import.
IN_THE_WILD = """
    axial-attention==0.6.1 bert-pytorch==0.0.1a4 d2l==1.0.3 dalle-pytorch==1.6.6
    diffusers==0.42.1 dinov2==0.0.1.dev2 einops==0.8.2 espnet==202511
    fair-esm==2.0.0 labml-nn==0.5.1 llms-from-scratch==1.0.19
    memory-efficient-attention-pytorch==0.1.6 monai==1.6.1
    open-clip-torch==3.3.0 perceiver-pytorch==0.11.0
    pytorch-pretrained-bert==0.6.2 rotary-embedding-torch==0.9.1
    rtdl-revisiting-models==0.0.2 segment-anything==1.0 self-attention-cv==1.2.3
    speechbrain==1.1.2 tab-transformer-pytorch==0.6.1 timm==1.0.31
    torch-einops-utils==0.2.0 torchscale==0.3.0 torchtune==0.6.1
    vit-pytorch==1.26.14 x-clip==0.14.4 x-transformers==2.31.10
""".split()
# The marker that uv gives to nearly all packages: the systems for which we look for packages.
EVERYWHERE = " ; python_full_version < '3.14' and (sys_platform == 'darwin' or sys_platform == 'linux')"
FOR_PAPER = "pikepdf=="
FOR_GPUS = re.compile(r"(nvidia|cuda)-|triton==")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
# The CPU builds for Linux and the tested Pythons. (On macOS, PyPI's builds are for CPUs too.)
WHEEL = r"torch-{version}(?:%2B|\+)cpu-cp31[123]-cp31[123]-manylinux[^#\"]*\.whl#sha256=([0-9a-f]{{64}})"


def packages(text):
    """Return the entries of a requirements file, each with the lines of its hashes."""
    return re.findall(r"(?m)^[\w.-]+==.*(?:\n    --hash=.*)*\n", text)


def split(text, for_cpus):
    """Divide one lock into the texts of the four files, in the order of NAMES.

    `for_cpus` are the hashes of torch's CPU builds on Linux.
    """
    entries = packages(text.replace(EVERYWHERE, ""))
    [torch] = [entry for entry in entries if entry.startswith("torch==")]
    for_gpus = [entry for entry in entries if FOR_GPUS.match(entry)]
    for_paper = [entry for entry in entries if entry.startswith(FOR_PAPER)]
    apart = [torch, *for_gpus, *for_paper]
    others = [entry for entry in entries if entry not in apart]
    name = f"torch=={version_of(torch)}"
    linux = entry_of(f"{name}+cpu ; sys_platform == 'linux'", for_cpus)
    macos = entry_of(f"{name} ; sys_platform == 'darwin'", hashes_of(torch))
    gpu = "".join([torch, *for_gpus])
    return ["".join(others), linux + macos, gpu, "".join(for_paper)]


def entry_of(requirement, hashes):
    """Return an entry of a requirements file."""
    lines = [f"    --hash=sha256:{value}" for value in sorted(set(hashes))]
    return " \\\n".join([requirement, *lines]) + "\n"


def hashes_of(entry):
    """Return the hashes that an entry states."""
    return re.findall(r"sha256:([0-9a-f]{64})", entry)


def version_of(text):
    """Return the version of torch that a text pins, or None."""
    found = re.search(r"(?m)^torch==(\d[\d.]*)", text)
    return found and found[1]


def hashes_for_cpus(version, index=TORCH_INDEX):
    """Return the hashes that PyTorch's own index states for a version.

    Raises:
        OSError: the index cannot be reached.
    """
    with urllib.request.urlopen(index, timeout=60) as page:  # noqa: S310, the address is ours
        text = page.read().decode()
    return re.findall(WHEEL.format(version=re.escape(version)), text)


def beside(text, pinned):
    """Return the entries of a lock whose packages another one does not have."""
    known = {entry.partition("==")[0] for entry in packages(pinned)}
    entries = packages(text.replace(EVERYWHERE, ""))
    return "".join(one for one in entries if one.partition("==")[0] not in known)


def resolve(pinned, upgrade, source="requirements.in", *more):
    """Return the lock that uv makes from a file, starting from the present pins."""
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock.txt")
        lock.write_text(pinned, encoding="utf-8")
        uv = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet"]
        options = ["--universal", "--python-version", "3.11", "--generate-hashes"]
        options += ["--no-annotate", "--no-header", "--output-file", lock]
        options += ["--upgrade"] if upgrade else []
        subprocess.run([*uv, *options, *more, source], check=True, cwd=ROOT)
        return lock.read_text(encoding="utf-8")


def asked(names, stored, upgrade, *options):
    """Return the lock of these packages, starting from the pins that a file stores."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "asked.in")
        source.write_text(names, encoding="utf-8")
        path = ROOT / stored
        before = path.read_text("utf-8") if path.is_file() else ""
        return resolve(before, upgrade, source, *options)


def main(arguments=None):
    """Run from the command line; the exit status is 1 if the hashes of a new torch are not available."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="newest versions")
    upgrade = parser.parse_args(arguments).upgrade
    files = [ROOT / name for name in NAMES]
    before = [path.read_text("utf-8") if path.is_file() else "" for path in files]
    lock = resolve("".join(before[:1] + before[2:]), upgrade)
    version = version_of(lock)
    try:
        for_cpus = hashes_for_cpus(version)
    except OSError as error:
        if version_of(before[1]) != version:
            print(f"torch {version}: {TORCH_INDEX} states its hashes. {error}")
            return 1
        for_cpus = hashes_of(packages(before[1])[0])
    texts = split(lock, for_cpus)
    for path, head, text in zip(files, HEADS, texts, strict=True):
        path.write_text(head + text, encoding="utf-8")
    pinned = ["--constraints", str(files[0])]
    for_classes = beside(asked(FOR_CLASSES, CLASS, upgrade, *pinned), texts[0])
    (ROOT / CLASS).write_text(CLASS_HEAD + for_classes, encoding="utf-8")
    in_the_wild = asked("\n".join(IN_THE_WILD), WILD, upgrade, "--no-deps")
    (ROOT / WILD).write_text(
        WILD_HEAD + in_the_wild.replace(EVERYWHERE, ""), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
