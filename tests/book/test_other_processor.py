"""Each chapter with the arithmetic of another processor: it must still print and draw what is stored.

torch's plain kernels stand in for those of a processor without vector instructions, and each chapter runs
alone in an empty folder, so nothing that it needs lies beside it by chance.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stored_notebooks import notebooks

ROOT = Path(__file__).resolve().parents[2]
OTHER_PROCESSOR = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
NBVAL = "-m pytest --nbval --nbval-current-env --nbval-cell-timeout 1800 -p no:cacheprovider"
# What compares figures and widgets.
COMPARISON = [ROOT / "conftest.py", ROOT / "tests/stored_outputs.py", *(ROOT / "tools").glob("*.py")]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_chapter_prints_what_is_stored(tmp_path, path):
    shutil.copy(path, tmp_path)
    for file in COMPARISON:
        shutil.copy(file, tmp_path)
    settings = os.environ | OTHER_PROCESSOR | {"TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, *NBVAL.split(), path.name],
        cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
