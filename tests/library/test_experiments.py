"""Stored experiments: what is missing, damaged or stale is refused; the rest can be trained again.

The rules are tested on a tiny experiment in a folder of its own. The last tests are about the course's own
experiments: all stored results belong to the present code, and a short training of one seed of each arm gives
what is stored.
"""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

import mha_lib.experiments
from mha_lib.experiments import experiment_names, hashes_of, load_experiment, load_script

FOLDER = mha_lib.experiments._own_folder()

TINY = '''
"""A line that learns a slope."""

import torch
from common import Arm, run_arms, run_script
from torch import nn

from mha_lib.data import noisy_curve

STEPS = 40


def batch(generator):
    split = noisy_curve(8, 2, generator=generator)
    return split.x_train, split.y_train


def measure(models):
    """The slopes."""
    return {"slope": torch.stack([model.weight.detach()[0, 0] for model in models])}


def squares(output, target):
    return (output - target).square().mean()


ARMS = {
    name: Arm(
        lambda: nn.Linear(1, 1), batch, measure, steps=STEPS, lr=lr, seeds=2, keep=keep, loss=squares
    )
    for name, lr, keep in (("fast", 0.1, 1), ("slow", 0.01, 0))
}
BOUNDS = {"flat": 0.5}


def run():
    return run_arms(__file__, ARMS, BOUNDS)


if __name__ == "__main__":
    run_script(__file__, run)
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with one experiment that has run."""
    folder = tmp_path_factory.mktemp("experiments")
    shutil.copy(FOLDER / "common.py", folder)
    (folder / "tiny.py").write_text(TINY, encoding="utf-8")
    run(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of that folder, to be damaged."""
    return shutil.copytree(made, tmp_path / "experiments")


def run(folder, *options):
    command = [sys.executable, str(folder / "tiny.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=FOLDER.parent)


def load(folder, **options):
    return load_experiment("tiny", folder=folder, **options)


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def refused(folder, error=ValueError):
    """The message that names what to run."""
    with pytest.raises(error) as caught:
        load(folder)
    assert "'tiny'" in str(caught.value)
    assert "make experiments ONLY=tiny" in str(caught.value)
    return str(caught.value)


# what comes back


def test_results_curves_bounds_and_models_come_back(folder):
    experiment = load(folder)
    assert list(experiment.arms) == ["fast", "slow"]
    assert experiment.bounds == {"flat": 0.5}
    slopes = experiment.results("fast", "slope")
    assert slopes.shape == (2,)
    history = experiment.history("fast")
    assert history.steps[-1] == 40
    assert history.losses.shape == (2, len(history.steps))
    arm = experiment.arms["slow"]
    assert {name: arm[name] for name in ("parameters", "steps", "lr", "seeds")} == {
        "parameters": 2, "steps": 40, "lr": 0.01, "seeds": 2
    }  # fmt: skip
    model = torch.nn.Linear(1, 1)
    model.load_state_dict(experiment.state("fast"))
    assert model.weight.item() == pytest.approx(slopes[0].item(), rel=1e-3)


def test_it_can_be_trained_again_without_being_stored(folder):
    stored = load(folder)
    shutil.rmtree(folder / "stored")
    again = load(folder, rerun=True)
    assert_close(again.results("fast", "slope"), stored.results("fast", "slope"), rtol=1e-3, atol=1e-3)
    assert_close(again.state("fast")["bias"], stored.state("fast")["bias"], rtol=1e-3, atol=1e-3)
    assert not (folder / "stored").exists()


def test_an_unknown_arm_measure_or_seed_is_named(folder):
    experiment = load(folder)
    for call, name in (
        (lambda: experiment.results("medium", "slope"), "arm"),
        (lambda: experiment.results("fast", "height"), "measure"),
        (lambda: experiment.history("medium"), "arm"),
        (lambda: experiment.state("medium"), "arm"),
        (lambda: experiment.state("slow"), "seed"),
        (lambda: experiment.state("fast", seed=1), "seed"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be "):
            call()


# what is missing or damaged


def test_missing_results_are_refused(folder):
    (folder / "stored" / "tiny.json").unlink()
    assert "no stored results" in refused(folder, FileNotFoundError)


def test_missing_models_are_refused(folder):
    (folder / "stored" / "tiny.safetensors").unlink()
    assert "lacks its models" in refused(folder, FileNotFoundError)


def test_the_book_is_not_built_from_missing_or_damaged_results(folder, monkeypatch, capsys):
    """`make book` first runs this tool, which names each experiment that must be run again."""
    monkeypatch.syspath_prepend(FOLDER.parent / "tools")
    import check_experiments

    monkeypatch.setattr(mha_lib.experiments, "_own_folder", lambda: folder)
    assert check_experiments.main() == 0
    stored = next((folder / "stored").glob("*.json"))
    stored.write_text("{")
    assert check_experiments.main() == 1
    assert f"make experiments ONLY={stored.stem}" in capsys.readouterr().err
    stored.unlink()
    assert check_experiments.main() == 1
    assert "has no stored results" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", '{"digest": 5}', "\x00"])
def test_what_is_not_a_result_is_refused(folder, text):
    (folder / "stored" / "tiny.json").write_text(text, encoding="utf-8")
    assert "damaged" in refused(folder)


def test_a_file_cut_short_is_refused(folder):
    path = folder / "stored" / "tiny.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert "damaged" in refused(folder)


def test_a_number_changed_by_hand_is_refused(folder):
    path = folder / "stored" / "tiny.json"
    slope = json.loads(path.read_text())["arms"]["fast"]["results"]["slope"][0]
    change(path, str(slope), str(slope + 1))
    assert "damaged" in refused(folder)


def test_bytes_that_are_not_text_are_refused(folder):
    (folder / "stored" / "tiny.json").write_bytes(b"\xff\xfe\xfa")
    assert "damaged" in refused(folder)


def test_a_changed_model_is_refused(folder):
    path = folder / "stored" / "tiny.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "models of 'tiny' are damaged" in refused(folder)


# what is stale


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("tiny.py", "STEPS = 40", "STEPS = 50"),
        ("tiny.py", 'return {"slope"', 'return {"slopes"'),
        ("tiny.py", "nn.Linear(1, 1)", "nn.Linear(1, 1, bias=False)"),
        ("common.py", "records=40", "records=20"),
    ],
)
def test_other_code_is_refused(folder, file, old, new):
    change(folder / file, old, new)
    assert "made by other code" in refused(folder)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("tiny.py", "STEPS = 40", "# How long.\nSTEPS = 40"),
        ("tiny.py", '    """The slopes."""\n', ""),
        ("tiny.py", "def batch(generator):", "def batch(generator: torch.Generator) -> tuple:"),
        (
            "tiny.py",
            "return split.x_train, split.y_train",
            "return (\n        split.x_train, split.y_train\n    )",
        ),
        ("common.py", "short training of one seed", "brief training of a single seed"),
    ],
)
def test_comments_docstrings_annotations_and_layout_do_not_count(folder, file, old, new):
    change(folder / file, old, new)
    load(folder)


@pytest.fixture
def library(monkeypatch, tmp_path):
    """A copy of the modules of the library that the hashes cover, where they can be changed."""
    package = FOLDER.parent / "mha_lib" if FOLDER.name == "experiments" else FOLDER.parent
    for name in ("data.py", "dates.py", "book_text.py", "training.py"):
        shutil.copy(package / name, tmp_path)
    monkeypatch.setattr(mha_lib.experiments, "_PACKAGE", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y_train = curve(x_train) + noise", "y_train = curve(x_train) - noise"),
        ("torch.sin(2 * x) + 0.5 * x", "torch.sin(2 * x) + 0.6 * x"),  # called by what is imported
    ],
)
def test_another_version_of_the_data_is_refused(folder, library, old, new):
    load(folder)
    change(library / "data.py", old, new)
    assert "another version of the data" in refused(folder)


def test_another_training_loop_is_refused(folder, library):
    change(library / "training.py", "optimizer.step()", "optimizer.step(); optimizer.step()")
    assert "made by other code" in refused(folder)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("data.py", "tokens.flip(-1)", "tokens.flip(-1).flip(-1)"),  # data of another experiment
        ("data.py", "noise must not be negative", "the noise is negative"),
        ("training.py", 'check_positive("lr", lr)', 'check_positive("learning rate", lr)'),
        ("training.py", "Train in place with Adam", "Train with Adam, in place"),
    ],
)
def test_what_changes_no_result_does_not_count(folder, library, file, old, new):
    change(library / file, old, new)
    load(folder)


def test_code_imported_from_the_same_folder_counts(folder):
    change(folder / "tiny.py", "STEPS = 40", "from settings import STEPS")
    (folder / "settings.py").write_text("STEPS = 40", encoding="utf-8")
    run(folder)
    load(folder)
    (folder / "settings.py").write_text("STEPS = 50", encoding="utf-8")
    assert "made by other code" in refused(folder)


def test_hashes_do_not_depend_on_the_version_of_python(made):
    """The tree is written by hand: fields that another version of Python lacks are left out."""
    code, data = hashes_of(made / "tiny.py")
    assert re.fullmatch("[0-9a-f]{64}", code)
    assert re.fullmatch("[0-9a-f]{64}", data)
    assert mha_lib.experiments._plain(mha_lib.experiments.ast.parse("f(1)")) == [
        "Module",
        {"body": [["Expr", {"value": ["Call", {"args": [["Constant", {"value": 1}]],
                                              "func": ["Name", {"id": "f"}]}]}]]},
    ]  # fmt: skip


# code that was rewritten


def test_the_same_code_in_other_words_can_be_confirmed(folder):
    change(folder / "tiny.py", "(output - target).square().mean()", "((output - target) ** 2).mean()")
    refused(folder)
    run(folder, "--confirm")
    load(folder)


def test_other_code_is_not_confirmed(folder):
    change(folder / "tiny.py", "(output - target).square().mean()", "(output - target).abs().mean()")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(folder, "--confirm")
    assert "Tensor-likes are not close" in caught.value.stderr
    refused(folder)


def test_other_settings_are_not_confirmed(folder):
    change(folder / "tiny.py", "STEPS = 40", "STEPS = 50")
    with pytest.raises(subprocess.CalledProcessError):
        run(folder, "--confirm")


# the course's own


# What `make experiments` has stored; a page that loads another experiment is told to run it.
STORED = sorted(path.stem for path in (FOLDER / "stored").glob("*.json"))


@pytest.mark.parametrize("name", STORED)
def test_stored_results_are_those_of_the_code_that_is_here(name):
    experiment = load_experiment(name)
    for label, arm in experiment.arms.items():
        assert torch.isfinite(experiment.history(label).losses).all()
        for values in arm["results"].values():
            assert len(values) == arm["seeds"] >= 5


def test_nothing_is_stored_without_its_script():
    stored = {path.stem for path in (FOLDER / "stored").iterdir()}
    assert stored <= set(experiment_names())
    assert len(STORED) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
def test_a_short_training_of_each_arm_gives_what_is_stored(name):
    script, stored = load_script(FOLDER / f"{name}.py"), load_experiment(name)
    assert list(script.ARMS) == list(stored.arms)
    for label, arm in script.ARMS.items():
        found = torch.tensor(arm.check())
        assert_close(found, torch.tensor(stored.arms[label]["check"]), rtol=0.01, atol=0.0, msg=label)
