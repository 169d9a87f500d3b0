"""A class by Otter: what it makes of a hand-out, and its own runner with our judge, as on Gradescope."""

import json
import os
import pickle
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-class" / "bin"
RIGHT = "    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"
FORGED = "import mha_course.exercises as e\ne.check_split_heads = e.check_head = lambda *_: True"


class Mark:
    """What writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def run(folder, *command):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def graded(folder, sources, others):
    """The scores and the words of the results for a submission whose cells of these ids are replaced."""
    book = json.loads((folder / "dist/student/heads.ipynb").read_text(encoding="utf-8"))
    for cell in book["cells"]:
        text = "".join(cell["source"])
        for name, answer in sources.items():
            if f"def {name}(" in text or f"class {name}(" in text:
                cell["source"] = text.replace("    ...", answer)
    with zipfile.ZipFile(folder / "submission.zip", "w") as file:
        file.writestr("heads.ipynb", json.dumps(book))
        for name, content in others.items():
            file.writestr(name, content)
    [autograder] = (folder / "dist/autograder").glob("*autograder*.zip")
    run(folder, "otter", "run", "submission.zip", "-a", str(autograder), "-o", ".", "--no-logo")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    scores = {one["name"].partition(" ")[0]: one.get("score") for one in results["tests"]}
    return scores, json.dumps(results)


def by_run_autograder(folder):
    """The results of `run_autograder` for the last submission, in folders laid out as Gradescope has them.

    The folder `/autograder` is another one here, and the environment with Otter stands for that of mamba.
    """
    place = folder / "autograder"
    for name in ("source", "submission", "results"):
        (place / name).mkdir(parents=True)
    [zipped] = (folder / "dist/autograder").glob("*autograder*.zip")
    zipfile.ZipFile(zipped).extractall(place / "source")
    zipfile.ZipFile(folder / "submission.zip").extractall(place / "submission")
    for script in (place / "source/run_autograder", place / "source/run_otter.py"):
        text = script.read_text(encoding="utf-8")
        assert "/autograder" in text
        script.write_text(text.replace("/autograder", str(place)), encoding="utf-8")
    (place / "submission_metadata.json").write_text("{}", encoding="utf-8")  # Gradescope writes it
    mamba = folder / "bin/mamba"
    mamba.parent.mkdir()
    mamba.write_text("#!/bin/sh\necho 'mamba() { :; }'\n")
    mamba.chmod(0o755)
    start = f"PATH={mamba.parent}:$PATH bash {place}/source/run_autograder"
    run(place, "bash", "-c", start)
    return json.loads((place / "results/results.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_runner_of_otter_takes_the_marks_from_our_judge(tmp_path):
    assert (BIN.parent / "ready").is_file(), "`make .venv-class/ready` creates the environment with Otter"
    make = (
        "python -m mha_course.handout 3 --exercises my_head,split_heads --points 2,1 --name heads --for otter"
    )
    run(tmp_path, *make.split())
    run(tmp_path, "otter", "assign", "--no-run-tests", "heads/heads.ipynb", "dist")
    students = (tmp_path / "dist/student/heads.ipynb").read_text(encoding="utf-8")
    assert "transpose(1, 2)" not in students and "self.q_proj" not in students
    assert "otter" not in students.replace("otter_", "").lower() or "grader.check" not in students
    [autograder] = (tmp_path / "dist/autograder").glob("*autograder*.zip")
    names = set(zipfile.ZipFile(autograder).namelist())
    assert {"setup.sh", "run_autograder", "otter_config.json"} <= names

    scores, _ = graded(tmp_path, {"split_heads": RIGHT}, {})
    assert (scores["split_heads"], scores["MyHead"]) == (1, 0)
    mark = tmp_path / "ran"
    run_it = f"open({str(mark)!r}, 'w')"
    others = {".OTTER_LOG": pickle.dumps(Mark(mark)), "otter.py": run_it, "pickle.py": run_it}
    scores, said = graded(tmp_path, {"split_heads": f"    return x\n\n\n{FORGED}"}, others)
    assert (scores["split_heads"], scores["MyHead"]) == (0, 0)
    assert "wrong: " in said and "replaces `check_split_heads`" in said
    assert not mark.exists(), "what a submission brings beside its notebook ran outside of its process"
    results = by_run_autograder(tmp_path)
    scores = {one["name"].partition(" ")[0]: one.get("score") for one in results["tests"]}
    assert (scores["split_heads"], scores["MyHead"]) == (0, 0) and not mark.exists()
    assert "wrong: " in json.dumps(results)
