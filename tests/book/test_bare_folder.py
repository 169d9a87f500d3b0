"""A notebook alone in an empty folder, and a Python that has nothing: its first cell says what to install."""

import re
import subprocess
import sys

import pytest
from test_colab import Site


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A new environment, with pip."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def site(tmp_path):
    """The files that the book serves."""
    site = Site(tmp_path / "site")
    yield site
    site.close()


def run(python, folder, source):
    command = [python, "-I", "-c", source]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def pasted(python, folder, site):
    """What happens when a reader pastes the command that the cell prints, here without torch and the rest."""
    said = run(python, folder, site.setup).stderr.partition("ModuleNotFoundError: ")[2]
    assert "The course's packages are missing here." in said
    *_, command = said.strip().splitlines()
    environment = {"PIP_NO_DEPS": "1", "PATH": "/usr/bin:/bin", "HOME": str(site.folder)}
    shell = ["/bin/sh", "-c", command]
    return command, subprocess.run(
        shell, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_command_installs_the_files_with_these_hashes_and_no_others(bare, site, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    kept = {file.name: file.content for file in site.files}
    site.damage()
    command, done = pasted(bare, folder, site)
    assert len(re.findall(r"#sha256=[0-9a-f]{64}", command)) == 3
    assert done.returncode != 0
    assert "HASH" in done.stderr.upper()
    for path in site.folder.rglob("*.whl"):
        path.write_bytes(kept[path.name])
    command, done = pasted(bare, folder, site)
    assert done.returncode == 0, done.stderr
    found = run(bare, folder, "from importlib.metadata import version; print(version('mha-course'))")
    assert found.stdout.strip(), found.stderr
    # What runs now stops at what pip would also have installed, not at the set-up.
    assert "The course's packages" not in run(bare, folder, site.setup).stderr
    assert list(folder.iterdir()) == []
