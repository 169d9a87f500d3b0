"""Stored experiments: what is missing, damaged or stale is refused; the rest can be trained again.

The rules are tested on a tiny experiment in a folder of its own. The last tests are about the course's own
experiments: all stored results belong to the present code, and a short training of one seed of each arm gives
what is stored.
"""

import copy
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exercise_cells import read
from random_tensors import generator
from torch.testing import assert_close

import mha_course.data.dates
import mha_course.experiments
from mha_course import built
from mha_course.built import MyTransformer
from mha_course.experiments import digest, experiment_names, hashes_of, load_experiment, load_script
from mha_course.still_learning import Measured, is_still_learning
from mha_course.training import seeded

FOLDER = mha_course.experiments._own_folder()
STORED_FOLDER = Path(mha_course.experiments.__file__).with_name("stored")

TINY = '''
"""A line that learns a slope."""

import torch
from common import Arm
from torch import nn

from mha_course.data import noisy_curve

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
        lambda: nn.Linear(1, 1), batch, measure, steps=STEPS, rates=(lr,), seeds=2, keep=keep, loss=squares,
        because="only what is stored matters",
    )
    for name, lr, keep in (("fast", 0.1, 1), ("slow", 0.01, 0))
}
BOUNDS = {"flat": 0.5}
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
    command = [sys.executable, str(folder / "common.py"), "tiny", *options]
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
        (lambda: experiment.still_learning("medium"), "arm"),
        (lambda: experiment.state("medium"), "arm"),
        (lambda: experiment.state("slow"), "seed"),
        (lambda: experiment.state("fast", seed=1), "seed"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be "):
            call()


# models that were still learning


def curves(kind, *, records=40, noise=0.01):
    """Five learning curves as `fit` records them, (5, records), under a rate that ends at 0."""
    time, log = torch.linspace(0, 1, records), torch.randn(5, records, generator=generator(7))
    plateau = torch.ones(5, 1) * (0.4 + 1.6 * torch.exp(-12 * time))
    shapes = {
        "at a floor": plateau,
        "stuck from the start": torch.full((5, records), 2.08),
        "falling": 2 * torch.exp(-1.5 * time).expand(5, -1),
        "falling slowly": (1.8 - 0.1 * time).expand(5, -1),
        "flat at its very end": (0.4 + (1 - time).clamp(min=0.05) ** 2).expand(5, -1),
        "one seed of five falls": torch.cat((plateau[:4], plateau[4:] * (1 - 0.5 * time))),
        "one seed of five left a plateau": torch.cat((plateau[:4], plateau[4:] * (1 - (time > 0.8) * 0.9))),
        "to 0, long right": 2 * torch.exp(-14 * time).expand(5, -1),
        "rising": plateau * (1 + 0.3 * time),
        "not a number": plateau.where(time < 0.7, torch.nan),
    }  # fmt: skip
    return shapes[kind] * torch.exp(noise * log)


@pytest.mark.parametrize("kind", ["at a floor", "stuck from the start", "to 0, long right", "rising"])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_curves_that_show_that_learning_had_ended(kind, noise):
    assert not is_still_learning(curves(kind, noise=noise))


@pytest.mark.parametrize("kind", [
    "falling", "falling slowly", "flat at its very end", "one seed of five falls",
    "one seed of five left a plateau", "not a number",
])  # fmt: skip
def test_curves_of_models_that_were_still_learning(kind):
    assert is_still_learning(curves(kind))


def test_noise_and_few_records_show_no_end():
    """Noise that could hide a fall of a tenth is no sign of a floor, nor are a few points."""
    assert is_still_learning(curves("at a floor", noise=0.6))
    assert is_still_learning(curves("at a floor", records=11))
    assert not is_still_learning(curves("at a floor", records=12))


def test_a_longer_run_agrees_with_the_rule():
    """Where three times the steps lowered the stored loss, the shorter run is said to be learning."""
    runs = load_experiment("words")
    short, long = (runs.history(arm).losses[:, -1].mean() for arm in ("1 head", "1 head, 4500 steps"))
    assert long < 0.95 * short
    assert runs.still_learning("1 head")
    assert not load_experiment("leak").still_learning("correct")  # at the entropy of its data


def test_numbers_keep_the_notes_of_their_arms():
    one, two = (Measured.of(torch.rand(5, 2), notes) for notes in ({"1 head": 200}, {"2 heads": 300}))
    row, same = next(iter(one)), copy.deepcopy(one)
    sums = 1 - torch.ones(2) @ one.T
    for found in (one[:, 0].median(0).values, one.aminmax().max, one > 0.5, sums, row, same):
        assert found.notes == {"1 head": 200}
    assert torch.stack((one, two)).notes == {"1 head": 200, "2 heads": 300}
    assert f"{one[0, 0]:.2f}" == f"{one[0, 0].item():.2f}"
    assert repr(one) == repr(one.plain())
    assert type(one.plain()) is torch.Tensor


READINGS = {
    "print(f'{x[0]:.2f}')": True,
    "print(*(f'{v:.1f}' for v in x.sort().values))": True,
    "assert x.max() < 1": True,
    "y = float(1 - x.mean())": True,
    "y = x.tolist()": True,
    "x": True,
    "import numpy; y = numpy.asarray(x)": True,  # so does matplotlib
    "y = x.mean()": False,
    "print(len(x), x.shape)": False,
    "print(steady[0].item())": False,
}


@pytest.mark.parametrize("code", READINGS)
def test_a_cell_that_reads_such_a_number_says_so(code):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()
    get_ipython = sys.modules["IPython"].get_ipython
    sys.modules["IPython"].get_ipython = lambda: shell
    try:
        shell.user_ns |= {"x": Measured.of(torch.rand(5), {"1 head": 1500}), "steady": torch.rand(5)}
        with capture_output() as said:
            assert shell.run_cell(code).success
            shell.run_cell("1 + 1")  # once for each cell that reads
    finally:
        sys.modules["IPython"].get_ipython = get_ipython
    assert said.stdout.count("Still learning after 1,500 steps: 1 head.") == READINGS[code]


def test_what_an_experiment_returns_says_it(folder):
    path = folder / "stored" / "tiny.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["digest"]
    content["arms"]["slow"]["curve"]["losses"] = curves("falling").tolist()
    content["arms"]["fast"]["curve"]["losses"] = curves("at a floor").tolist()
    path.write_text(json.dumps({**content, "digest": digest(content)}), encoding="utf-8")
    experiment = load(folder)
    assert experiment.still_learning("slow")
    assert not experiment.still_learning("fast")
    assert experiment.results("slow", "slope").notes == {"slow": 40}
    assert experiment.history("slow").losses.notes == {"slow": 40}
    assert type(experiment.results("fast", "slope")) is torch.Tensor


# what a comparison needs


COMMON = load_script(FOLDER / "common.py")


def doubled(generator):
    x = torch.rand(8, 1, generator=generator)
    return x, 2 * x


def to_zero(generator):
    return torch.ones(8, 1), torch.full((8, 1), -9.0)


def arm(**changes):
    """A line that learns to double, at three rates."""
    settings = {
        "make_model": lambda: torch.nn.Linear(1, 1),
        "make_batch": doubled,
        "measure": lambda models: {
            name: torch.stack([getattr(model, name).detach().reshape(()) for model in models])
            for name in ("weight", "bias")
        },
        "steps": 40,
        "rates": (0.01, 0.03, 0.1),
        "loss": torch.nn.functional.mse_loss,
    }
    return COMMON.Arm(**{**settings, **changes})


@pytest.mark.parametrize("changes", [
    {"rates": (0.01,)},
    {"rates": (0.003, 0.01)},
    {"rates": (0.01, 0.011, 0.012)},  # too close together
    {"rates": (0.0001, 0.01, 1.0)},
    {"seeds": 4},
    {"rates": (0.01,), "because": "no"},
])  # fmt: skip
def test_an_arm_of_a_comparison_has_three_rates_and_five_seeds(changes):
    with pytest.raises(ValueError, match=r"^rates must be at least 3, each 2 .* at least 5 seeds, got"):
        arm(**changes)


def test_an_arm_may_say_why_it_compares_nothing():
    assert arm(rates=(0.01,), seeds=1, because="a page shows the model").seeds == 1


@pytest.mark.parametrize(("name", "value"), [
    ("rates", (0.02, 0.06, 0.2)), ("seeds", 6), ("steps", 100), ("clip", 1.0), ("warmup", 0.2),
    ("loss", torch.nn.functional.l1_loss), ("make_batch", to_zero), ("held_out", to_zero), ("learned", 0.9),
])  # fmt: skip
def test_arms_that_are_compared_are_trained_alike(name, value):
    """Before anything is trained. Steps may differ where labels name them, all else where arms say why."""
    other = arm(**{name: value})
    with pytest.raises(ValueError, match=rf"^'other' has other {name} than 'one': "):
        COMMON.run_arms(FOLDER / "recall.py", {"one": arm(), "other": other}, {})
    COMMON.check_comparison({"one": arm(), "other": dataclasses.replace(other, because="it says why it may")})
    COMMON.check_comparison({"one": arm(), "two": arm(make_model=lambda: torch.nn.Linear(1, 1, bias=False))})
    if name == "steps":
        COMMON.check_comparison({"one, 100 steps": other, "one": arm(), "one, 40 steps": arm()})


@pytest.mark.parametrize(("changes", "rates", "best"), [
    ({}, [0.01, 0.03, 0.1, 0.3, 0.9, 3.0], 0.9),
    ({"rates": (1.0, 3.0, 9.0)}, [0.3, 1.0, 3.0, 9.0], 1.0),
    ({"held_out": to_zero}, [0.0001, 0.0003, 0.0009, 0.003, 0.01, 0.03, 0.1], 0.0001),
])  # fmt: skip
def test_the_best_rate_is_chosen_on_held_out_batches(changes, rates, best):
    """Not on what is measured; and the other rates leave a number per seed of what comes first."""
    chosen = arm(**changes)
    content, models = chosen.run()
    held_out = {lr: sum(found["held-out loss"]) for lr, found in content["rates"].items()}
    assert content["lr"] == float(min(held_out, key=held_out.get)) == best
    assert [*map(float, content["rates"])] == rates
    for found in content["rates"].values():
        assert {name: len(row) for name, row in found.items()} == {"held-out loss": 5, "weight": 5}
    weights = content["results"]["weight"]
    assert content["rates"][str(best)]["weight"] == weights
    assert weights == pytest.approx([model.weight.item() for model in models], rel=1e-3)
    curve = chosen.fit(COMMON.seeded(chosen.make_model, 5), doubled, chosen.steps, 40, best).losses
    assert_close(torch.tensor(content["curve"]["losses"]), curve, rtol=1e-3, atol=1e-3)


def test_held_out_batches_are_new_ones():
    seen, fresh = [], []

    def batch(generator):
        inputs, targets = doubled(generator)
        seen.append(inputs)
        return inputs, targets

    chosen = arm(make_batch=batch)
    chosen.fit([chosen.make_model()], batch, 40, 1, 0.01)
    trained_on, seen[:] = torch.cat(seen), []
    losses, learned = chosen.judge([torch.nn.Linear(1, 1)])
    assert (losses.shape, learned) == ((1,), 0)
    fresh = torch.cat(seen)
    assert len(fresh) >= 320
    assert not torch.isin(fresh, trained_on).any()
    assert chosen.judge([torch.nn.Linear(1, 1)] * 2)[0].isfinite().all()


def test_models_whose_share_of_right_answers_is_large_have_learned():
    """All answers of a position must be right; the share is that of new batches."""

    def batch(generator):
        classes = torch.randint(3, (8, 5, 2), generator=generator)
        return torch.nn.functional.one_hot(classes, 3).float(), classes

    class Sometimes(torch.nn.Module):
        """Right at the first positions only, or in one of two answers only."""

        def __init__(self, positions, answers):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(5, 2, 1))
            with torch.no_grad():
                self.scale[positions:] = -1
                self.scale[:, answers:] = -1

        def forward(self, x):
            return self.scale * x

    models = [Sometimes(*right) for right in ((5, 2), (4, 2), (3, 2), (5, 1))]
    for learned, expected in ((0.9, 1), (0.7, 2), (0.5, 3), (None, 0)):
        chosen = arm(make_batch=batch, loss=mha_course.training.cross_entropy, learned=learned)
        assert chosen.judge(models)[1] == expected


def trained(*losses, learned=0):
    return COMMON.Run([], None, {}, torch.tensor(losses), learned)


def test_the_rate_at_which_most_seeds_learn_is_chosen_and_the_loss_decides_between_equals():
    by_loss = {0.1: trained(1.0, 2.0), 0.3: trained(1.0, 1.0), 0.9: trained(0.5, 9.0)}
    assert COMMON.best_rate(by_loss) == 0.3
    runs = by_loss | {0.9: trained(0.5, 9.0, learned=1)}
    assert COMMON.best_rate(runs) == 0.9
    assert COMMON.best_rate(runs | {2.0: trained(0.1, 9.0, learned=1)}) == 2.0


@pytest.mark.parametrize(("losses", "following"), [
    ({0.01: 3, 0.03: 2, 0.1: 1}, 0.3), ({0.01: 1, 0.03: 2, 0.1: 3}, 0.003),
    ({0.1: 3, 0.01: 2, 0.03: 1}, None), ({0.01: 3, 0.02: 1}, 0.04), ({0.01: 1}, None),
    ({0.01: 9, 0.02: 8, 0.04: 7, 0.08: 6, 0.2: 5, 0.4: 4}, 0.8),
    ({0.01: 9, 0.02: 8, 0.04: 7, 0.08: 6, 0.2: 5, 0.4: 4, 0.8: 3}, None),
])  # fmt: skip
def test_the_grid_goes_on_while_the_best_rate_is_at_its_end(losses, following):
    assert COMMON.next_rate({lr: trained(float(loss)) for lr, loss in losses.items()}) == following


# Nothing in these is compared by what training reaches: chat_heads and chat_maps train nothing, in norms, the
# rate is what the arms vary, and in one_head, the long arm shows what one head can learn. In model_size, the
# rate is that of chapter 7's loop, and the page says that no other was tried.
EXCUSED = {"chat_heads", "chat_maps", "dates", "gpt", "language_model", "model_size", "norms", "one_head"}


def test_an_arm_with_one_rate_says_what_it_compares():
    """Each script's own arms keep the rules, or say why not; no other script may take an excuse."""
    arms = [(name, arm) for name in experiment_names() for arm in load_script(name).ARMS.values()]
    assert {name for name, arm in arms if len(arm.rates) < COMMON.LEAST_RATES or arm.because} == EXCUSED
    assert {arm.rates for name, arm in arms if name == "norms"} == {(1e-3,), (3e-3,), (1e-2,)}
    for name in experiment_names():
        module = load_script(name)
        COMMON.check_comparison(module.ARMS)
        assert isinstance(module.BOUNDS, dict), name  # what `make experiments` stores with the arms


# missing or damaged files


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

    monkeypatch.setattr(mha_course.experiments, "_own_folder", lambda: folder)
    stored = next((folder / "stored").glob("*.json"))
    monkeypatch.setattr(mha_course.experiments, "stored_results", lambda script: stored)
    monkeypatch.setattr(check_experiments, "notebooks", list)  # tests/book/test_still_learning.py reads pages
    assert check_experiments.main() == 0
    stored.write_text("{")
    assert check_experiments.main() == 1
    assert f"make experiments ONLY={stored.stem}" in capsys.readouterr().err
    stored.unlink()
    assert check_experiments.main() == 1
    assert "has no stored results" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny.json", "tiny.safetensors"])
@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_damaged_file_is_refused(folder, name, damage):
    path = folder / "stored" / name
    path.write_bytes(damage(path.read_bytes()))
    assert re.search("(results|models) of 'tiny' are damaged", refused(folder))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", '{"digest": 5}', "\x00", b"\xff\xfe\xfa"])
def test_what_is_not_a_result_is_refused(folder, text):
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "stored" / "tiny.json").write_bytes(data)
    assert "damaged" in refused(folder)


def test_a_number_changed_by_hand_is_refused(folder):
    path = folder / "stored" / "tiny.json"
    slope = json.loads(path.read_text())["arms"]["fast"]["results"]["slope"][0]
    change(path, str(slope), str(slope + 1))
    assert "damaged" in refused(folder)


# what is stale


@pytest.mark.parametrize(("file", "old", "new"), [
    ("tiny.py", "STEPS = 40", "STEPS = 50"),
    ("tiny.py", 'return {"slope"', 'return {"slopes"'),
    ("tiny.py", "nn.Linear(1, 1)", "nn.Linear(1, 1, bias=False)"),
    ("common.py", "self.steps, 40", "self.steps, 20"),
])  # fmt: skip
def test_other_code_is_refused(folder, file, old, new):
    change(folder / file, old, new)
    assert "made by other code" in refused(folder)


@pytest.mark.parametrize(("file", "old", "new"), [
    ("tiny.py", "STEPS = 40", "# How long.\nSTEPS = 40"),
    ("tiny.py", '    """The slopes."""\n', ""),
    ("tiny.py", "def batch(generator):", "def batch(generator: torch.Generator) -> tuple:"),
    ("tiny.py", "return split.x_train, split.y_train",
     "return (\n        split.x_train, split.y_train\n    )"),
    ("common.py", "short training of one seed", "brief training of a single seed"),
])  # fmt: skip
def test_comments_docstrings_annotations_and_layout_do_not_count(folder, file, old, new):
    change(folder / file, old, new)
    load(folder)


@pytest.fixture
def library(monkeypatch, tmp_path):
    """A copy of the modules of the library that the hashes cover, where they can be changed."""
    package = tmp_path / "library" / "mha_course"
    shutil.copytree(Path(mha_course.experiments.__file__).parent / "data", package / "data")
    shutil.copy(Path(mha_course.experiments.__file__).with_name("training.py"), package)
    monkeypatch.setattr(mha_course.experiments, "_PACKAGE", package)
    return package


@pytest.mark.parametrize(("old", "new"), [
    ("y_train = curve(x_train) + noise", "y_train = curve(x_train) - noise"),
    ("torch.sin(2 * x) + 0.5 * x", "torch.sin(2 * x) + 0.6 * x"),  # called by an imported function
])  # fmt: skip
def test_another_version_of_the_data_is_refused(folder, library, old, new):
    load(folder)
    change(library / "data" / "__init__.py", old, new)
    assert "another version of the data" in refused(folder)


def test_another_training_loop_is_refused(folder, library):
    change(library / "training.py", "optimizer.step()", "optimizer.step(); optimizer.step()")
    assert "made by other code" in refused(folder)


@pytest.mark.parametrize(("file", "old", "new"), [
    ("data/__init__.py", "tokens.flip(-1)", "tokens.flip(-1).flip(-1)"),  # data of a different experiment
    ("data/__init__.py", '"not be negative"', '"be positive or 0"'),
    ("training.py", 'check_positive("lr", lr)', 'check_positive("learning rate", lr)'),
    ("training.py", "Train in place with Adam", "Train with Adam, in place"),
])  # fmt: skip
def test_what_changes_no_result_does_not_count(folder, library, file, old, new):
    change(library / file, old, new)
    load(folder)


@pytest.mark.parametrize(("new", "error"), [
    ("from mha_course.date import noisy_curve", FileNotFoundError),
    ("from mha_course.data import noisy_curves", ValueError),
])  # fmt: skip
def test_what_is_imported_must_be_found(folder, new, error):
    """A module or name that was renamed never leaves a hash of nothing."""
    change(folder / "tiny.py", "from mha_course.data import noisy_curve", new)
    with pytest.raises(error, match=new.split()[1 if error is FileNotFoundError else -1].rpartition(".")[2]):
        hashes_of(folder / "tiny.py")


@pytest.mark.parametrize("keeps_name", [True, False])
def test_a_definition_may_move_to_another_module(folder, library, keeps_name):
    """Whether the old module still imports it or the script says where it is now."""
    before = hashes_of(folder / "tiny.py")
    old, new = library / "data" / "__init__.py", library / "data" / "curves.py"
    shutil.copy(old, new)
    if keeps_name:
        old.write_text("from mha_course.data.curves import noisy_curve\n", encoding="utf-8")
    else:
        change(folder / "tiny.py", "from mha_course.data import", "from mha_course.data.curves import")
        old.unlink()
    assert hashes_of(folder / "tiny.py") == before
    change(new, "torch.sin(2 * x) + 0.5 * x", "torch.sin(2 * x) + 0.6 * x")
    code, data = hashes_of(folder / "tiny.py")
    assert code == before[0]
    assert data != before[1]


def test_names_that_are_assigned_together_are_found(folder, library):
    change(folder / "tiny.py", "import noisy_curve", "import END, noisy_curve")
    (library / "data" / "tokens.py").write_text("PAD, START, END = range(3)", encoding="utf-8")
    change(library / "data" / "__init__.py", "import torch\n", TOGETHER)
    before = hashes_of(folder / "tiny.py")
    change(library / "data" / "tokens.py", "range(3)", "range(4, 7)")
    assert hashes_of(folder / "tiny.py")[1] != before[1]


TOGETHER = "import torch\n\nfrom mha_course.data.tokens import END\n"


@pytest.mark.parametrize("name", experiment_names())
def test_what_imports_data_is_signed_with_it(name):
    text = "".join(path.read_text() for path in mha_course.experiments._with_imported(FOLDER / f"{name}.py"))
    assert ("from mha_course.data" in text) == (hashes_of(FOLDER / f"{name}.py")[1] != digest({}))


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
    assert mha_course.experiments._plain(mha_course.experiments.ast.parse("f(1)")) == [
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


def named_pairs(heavy, light, r):
    """Which (s, t) get both answers right from the weights 1 : r; read-outs (..., answer, token)."""
    wins = []
    for read_out, wanted in ((heavy, 0), (light, 1)):
        scores = read_out[..., :, :, None] + r * read_out[..., :, None, :]  # answer, s, t
        wins.append(scores.argmax(-3) == torch.arange(8).view((8, 1) if wanted == 0 else (1, 8)))
    return wins[0] & wins[1]


def most_pairs(tokens):
    """The most right pairs that the lemma of `most_right` leaves, by trying every table of right pairs."""
    tables = torch.arange(2**tokens**2)[:, None] >> torch.arange(tokens**2) & 1
    right = tables.bool().view(-1, tokens, tokens)  # right[w, t]: the pair (w, t) is
    doubles = right & right.mT & ~torch.eye(tokens, dtype=torch.bool)
    broken = (doubles[:, None] & right[..., None] & right[:, :, None]).flatten(1).any(1)
    return int(right[~broken].sum((1, 2)).max())


def test_the_bound_of_one_mixture():
    """Set by hand it reaches the bound; the lemma holds for any read-out; the count from it is exact."""
    runs, identity = load_experiment("one_head"), torch.eye(8, dtype=torch.float64)
    most_right = load_script("one_head").most_right
    right = named_pairs(identity, 5.0 ** torch.arange(8) * identity, 0.25)
    assert right.sum() == 36 == most_right(8)
    assert right.diagonal().all()
    by_hand = (10 * 36 / 64 + 2) / 12
    for bound in ("one mixture, set by hand", "one mixture, at most"):
        assert runs.bounds[bound] == pytest.approx(by_hand, abs=1e-4)
    assert runs.bounds["both answers are the same token"] < 0.5 * by_hand
    assert [most_right(n) for n in (1, 2, 3, 4)] == [most_pairs(n) for n in (1, 2, 3, 4)] == [1, 3, 6, 10]
    generator, most = torch.Generator().manual_seed(0), 0
    for r in (0.1, 0.5, 0.9):
        tried = torch.randn(3000, 8, 8, generator=generator, dtype=torch.float64)
        tried[:1000] = tried[:1000] * 0.1 + 5.0 ** torch.arange(8) * identity
        tried[1000:2000] -= 3 * identity  # low scores for a token itself make more doubles
        right = named_pairs(torch.eye(8) * 100, tried, r)
        doubles = right & right.mT & ~torch.eye(8, dtype=torch.bool)
        assert doubles.any()
        # For a double s, t, no token w has both (w, s) and (w, t) right.
        assert not (doubles[:, None] & right[..., None] & right[:, :, None]).any()
        most = max(most, int(right.sum((1, 2)).max()))
    assert 30 < most <= 36


def test_one_head_trains_the_model_of_chapter_3():
    """Names, starts and sizes are those of the class that the page shows, for every arm and seed."""
    source = next(
        cell.source for cell in read("03_multi_head_attention") if "class TwoPointers" in cell.source
    )
    space = {"nn": torch.nn, "MyMultiHead": built.MyMultiHead}
    exec(source, space)  # noqa: S102
    for label, arm in load_script("one_head").ARMS.items():
        heads = int(label.split()[0])
        for ours, shown in zip(
            seeded(arm.make_model, arm.seeds), seeded(lambda n=heads: space["TwoPointers"](n), arm.seeds),
            strict=True,
        ):  # fmt: skip
            assert type(ours) is built.TwoPointers
            assert ours.attention.num_heads == heads
            expected = dict(shown.named_parameters())
            assert [*dict(ours.named_parameters())] == [*expected]
            assert all(torch.equal(p, expected[name]) for name, p in ours.named_parameters())
        assert arm.seeds >= 20
        stored = load_experiment("one_head").arms[label]
        assert stored["parameters"] == sum(p.numel() for p in expected.values())


# Experiments stored by `make experiments`; for any other, the error tells a page to run it.
STORED = sorted(path.stem for path in STORED_FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", STORED)
def test_stored_results_are_those_of_the_code_that_is_here(name):
    experiment = load_experiment(name)
    for label, arm in experiment.arms.items():
        assert ("curve" in arm) == (arm["steps"] > 0), label
        if "curve" in arm:
            assert torch.isfinite(experiment.history(label).losses).all()
        for values in arm["results"].values():
            # chat_maps measures one published model on one text.
            assert len(values) == arm["seeds"] >= (1 if name == "chat_maps" else 5)


@pytest.mark.parametrize("name", STORED)
def test_the_best_rate_of_each_arm_is_inside_its_grid(name):
    """At an end, a rate that was not tried may be better."""
    for label, arm in json.loads((STORED_FOLDER / f"{name}.json").read_text("utf-8"))["arms"].items():
        if grid := [*map(float, arm.get("rates", ()))]:
            assert min(grid) < arm["lr"] < max(grid), label


def test_nothing_is_stored_without_its_script():
    assert {path.stem for path in STORED_FOLDER.iterdir()} <= set(experiment_names())
    assert len(STORED) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
@pytest.mark.newer_torch
def test_a_short_training_of_each_arm_gives_what_is_stored(name):
    script, stored = load_script(FOLDER / f"{name}.py"), load_experiment(name)
    assert list(script.ARMS) == list(stored.arms)
    for label, arm in script.ARMS.items():
        found = torch.tensor(arm.check())
        assert_close(found, torch.tensor(stored.arms[label]["check"]), rtol=0.01, atol=0.0, msg=label)


@pytest.mark.parametrize("steps", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_the_loop_that_chapter_6_shows_is_the_one_of_its_stored_models(steps):
    """In double precision, in which rounding stays small: each loss and, at the end, each weight."""
    arm, page = load_script("dates").ARMS["2 heads"], {"torch": torch} | vars(mha_course.data.dates)
    exec(next(cell.source for cell in read("06_transformer") if cell.id == "train-live"), page)  # noqa: S102
    (theirs,) = COMMON.seeded(lambda: arm.make_model().double(), 1)
    mine = MyTransformer(160, 13, 64, 2, 256, 2).double()
    mine.load_state_dict(theirs.state_dict())
    page["STEPS"] = steps
    given = mine, *page["optimizer_of"](mine), generator()
    found = arm.fit([theirs], arm.make_batch, steps, steps, arm.rates[0]).losses[0].tolist()
    assert found == pytest.approx([page["one_step"](*given) for _ in range(steps)], abs=1e-6)
    assert_close(dict(theirs.named_parameters()), dict(mine.named_parameters()), atol=1e-4, rtol=0)
