"""Build the files that the book serves to Colab: the packages as wheels, and the programs of the frameworks.

    python tools/course_files.py FOLDER

Published notebooks name these files with their SHA-256, so they run exactly the code with which their page
was built. The same sources give the same bytes, because every file has the same date. The files contain no
notebooks, so a hash that a notebook states does not depend on itself.
"""

import functools
import hashlib
import io
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "wheel"  # in the built book
DATE = (2020, 2, 2, 0, 0, 0)  # the date that hatchling gives to files
# What the notebooks of the frameworks need besides their own cells, to compare with loops.
PROGRAMS = """chapters/rosetta/*.py chapters/rosetta/vectors.json tests/oracles.py
    tests/rosetta_cases.py tools/rosetta.py""".split()


@dataclass(frozen=True)
class CourseFile:
    """A file that the book serves: its name and its bytes."""

    name: str
    content: bytes

    @property
    def project(self):
        """The name of the project in a wheel's metadata."""
        return self.name.partition("-")[0].replace("_", "-")

    @property
    def sha256(self):
        """The digest that the notebooks state."""
        return hashlib.sha256(self.content).hexdigest()


def wheels(root=ROOT):
    """Return the wheels of mha_lib, attention_check and mha_course, in this order."""
    return [wheel(root), wheel(root / "attention_check"), wheel(root / "mha_course")]


def wheel(project):
    """Return the wheel of a project as hatchling builds it, with fixed dates."""
    with tempfile.TemporaryDirectory() as folder:
        builder = WheelBuilder(str(project))
        [path] = builder.build(directory=folder, versions=["standard"])
        with zipfile.ZipFile(path) as built:
            files = {name: built.read(name) for name in built.namelist()}
        return CourseFile(Path(path).name, pack(files))


def programs(root=ROOT):
    """Return an archive of what the notebooks of the frameworks need besides their own cells."""
    paths = sorted(path for pattern in PROGRAMS for path in root.glob(pattern))
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    return CourseFile("programs.zip", pack(files))


def pack(files):
    """Return a ZIP archive of files, {name: bytes}, whose bytes depend on nothing else."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # Unix, on every machine
            entry.external_attr = 0o100644 << 16
            packed.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    return archive.getvalue()


def write(folder, root=ROOT):
    """Write the files and SHA256SUMS into a folder, and return the files."""
    files = [*wheels(root), programs(root)]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()  # a wheel of a different version
    for file in files:
        (folder / file.name).write_bytes(file.content)
    lines = [f"{file.sha256}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return files


@functools.cache
def of_this_course():
    """Return the wheels and the programs of this working tree, built once per process."""
    return *wheels(), programs()


if __name__ == "__main__":
    for file in write(Path(sys.argv[1])):
        print(file.sha256, file.name)
