"""What all experiments share: train the arms with several seeds, store results, curves and models.

A script names its settings at the top, its arms in `ARMS` and what is computed rather than trained in
`BOUNDS`. This file runs it: python experiments/common.py NAME [--confirm].
Results do not depend on the number of processors: each experiment is one process with one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from mha_course.experiments import digest, hashes_of, load_script, stored_results
from mha_course.training import History, cross_entropy, fit, predict, seeded
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, gate_heads

Batch = tuple[Tensor, Tensor]
# A short training of one seed, which is stored with the long one and repeated by a test.
CHECK_STEPS, CHECK_RECORDS, CHECK_TOLERANCE = 30, 6, 0.01
LEAST_RATES, MOST_RATES, LEAST_SEEDS, HELD_OUT_BATCHES = 3, 7, 5, 40


@dataclass(frozen=True)
class Arm:
    """One setting: what is trained, on which data, for how long, and what is measured on the trained models.

    Every rate trains all seeds. Held-out batches choose the one that gives the results: the rate at which
    most seeds learn the task, if the arm says what that means, and among equals the one with the lowest mean
    loss. While it lies at an end of the rates tried, the next rate beyond is tried, too. Of each other rate
    a number per seed is stored.

    Attributes:
        make_model: function without arguments that makes a model.
        make_batch: function of a `torch.Generator` that returns (inputs, targets).
        measure: function of the list of trained models that returns the results: name -> one entry per model.
        steps: number of updates.
        rates: largest learning rates of the one-cycle schedule to begin with, at least three, each 2 to 5
            times the last.
        seeds: number of models for each rate, with the seeds 0, 1, ...; at least five.
        keep: number of models whose parameters are stored.
        loss: function of (outputs, targets).
        warmup: share of the steps in which the rate rises.
        clip: largest norm of each model's gradient; None clips nothing.
        held_out: like `make_batch`, draws the batches that choose the rate. The default draws other batches
            of `make_batch`, which are only new where its data are made up as it goes.
        learned: a model whose share of right answers is larger has learned the task. None chooses by the loss
            alone.
        because: in words, why the arm is no part of a comparison and may have fewer rates or seeds.
    """

    make_model: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], Batch]
    measure: Callable[[list[nn.Module]], Mapping[str, Any]]
    steps: int
    rates: tuple[float, ...]
    seeds: int = 5
    keep: int = 0
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    warmup: float = 0.1
    clip: float | None = None
    held_out: Callable[[torch.Generator], Batch] | None = None
    learned: float | None = None
    because: str = ""

    def __post_init__(self) -> None:
        pairs = zip(self.rates, self.rates[1:], strict=False)
        apart = all(2 <= larger / smaller <= 5 for smaller, larger in pairs)
        enough = len(self.rates) >= LEAST_RATES and self.seeds >= LEAST_SEEDS
        if not (enough and apart) and len(self.because.split()) < 3:
            raise ValueError(
                f"rates must be at least {LEAST_RATES}, each 2 to 5 times the last, with at least "
                f"{LEAST_SEEDS} seeds, got {self.rates} with {self.seeds}; an arm that is no part of a "
                'comparison says in words why: because="..."'
            )

    def fit(self, models, make_batch, steps, records, lr) -> History:
        """Train models for a number of steps, with the settings of this arm."""
        options = {name: getattr(self, name) for name in ("loss", "warmup", "clip")}
        return fit(models, make_batch, steps=steps, records=records, lr=lr, **options)

    def check(self) -> list[float]:
        """Losses of seed 0 during a short training run, in double precision.

        In single precision, rounding differences between processors may grow within these steps to a quarter
        of the loss; in double precision they stay below the digits that are stored.
        """

        def make_double_batch(generator: torch.Generator) -> Any:
            batch = self.make_batch(generator)
            return [x.double() if x.is_floating_point() else x for x in batch]

        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            models, settings = seeded(self.make_model, 1), (CHECK_STEPS, CHECK_RECORDS)
            history = self.fit(models, make_double_batch, *settings, self.rates[0])
        finally:
            torch.set_default_dtype(usual)
        return rounded(history.losses[0])

    def judge(self, models: list[nn.Module]) -> tuple[Tensor, int]:
        """The loss of each model on new batches, inf where it is NaN, and how many have learned the task.

        Neither training nor `measure` uses these batches.
        """
        generator = torch.Generator().manual_seed(123_456_789)
        draw, losses, shares = self.held_out or self.make_batch, [], []
        for _ in range(HELD_OUT_BATCHES):
            inputs, targets = draw(generator)
            found = predict(models, inputs)
            losses.append(torch.stack([self.loss(out, targets) for out in found]))
            if self.learned is not None:
                right = (found.argmax(-1) == targets).all(-1)
                shares.append(right.float().flatten(1).mean(1))
        loss = torch.stack(losses).mean(0).nan_to_num(nan=math.inf)
        if self.learned is None:
            return loss, 0
        return loss, int((torch.stack(shares).mean(0) > self.learned).sum())

    def run_at(self, lr: float) -> Run:
        """Train all seeds at one rate, measure and judge them."""
        models = seeded(self.make_model, self.seeds)
        history = self.fit(models, self.make_batch, self.steps, 40, lr)
        for model in models:
            model.eval()
        results = self.measure(models)
        return Run(models, history, results, *self.judge(models))

    def run(self) -> tuple[dict[str, Any], list[nn.Module]]:
        """Train at each rate and measure; return what is stored, and the models of the best rate."""
        runs = {lr: self.run_at(lr) for lr in self.rates}
        while (lr := next_rate(runs)) is not None:
            runs[lr] = self.run_at(lr)
        best = best_rate(runs)
        models, history, results, *_ = runs[best]
        curve = {"steps": history.steps.tolist(), "losses": rounded(history.losses)}
        number = sum(p.numel() for p in models[0].parameters())
        content = {"parameters": number, "steps": self.steps, "lr": best}
        content |= {"seeds": self.seeds, "results": rounded(results), "curve": curve}
        content |= {"check": self.check()}
        return content | (
            {"rates": rounded(by_rate(runs))} if len(runs) > 1 else {}
        ), models


class Run(NamedTuple):
    """All seeds of an arm at one learning rate."""

    models: list[nn.Module]
    history: History
    results: Mapping[str, Any]
    loss: Tensor
    learned: int


def best_rate(runs: Mapping[float, Run]) -> float:
    """The rate at which most seeds learn; among equals the one with the lowest mean loss."""
    return min(runs, key=lambda lr: (-runs[lr].learned, runs[lr].loss.mean().item()))


def next_rate(runs: Mapping[float, Run]) -> float | None:
    """The rate to try next: beyond the end at which the best rate is, as far as from its neighbour.

    None if the best rate is inside, if an arm has one rate only, or if `MOST_RATES` have been tried.
    """
    tried, best = sorted(runs), best_rate(runs)
    if len(tried) in (1, MOST_RATES) or best not in (tried[0], tried[-1]):
        return None
    neighbour = tried[1] if best == tried[0] else tried[-2]
    return float(f"{best * best / neighbour:.1g}")


def by_rate(runs: Mapping[float, Run]) -> dict[str, dict[str, Any]]:
    """Of each rate, in order: the losses of the seeds and the first quantity that is measured."""
    found = {}
    for lr in sorted(runs):
        first, values = next(iter(runs[lr].results.items()))
        found[str(lr)] = {"held-out loss": runs[lr].loss, first: values}
    return found


class PointerModel(nn.Module):
    """Predicts, at each of 12 positions, the tokens that pointers point to, with one attention layer.

    Args:
        num_heads: number of heads of the layer.
        num_tasks: number of pointers.
        read_out: "linear"; "MLP", with one hidden layer; or "two matrices", the MLP without its ReLU: a
            linear read-out with the parameters of the MLP.
        embed_dim: width of the model.
    """

    def __init__(self, num_heads, num_tasks=2, read_out="linear", embed_dim=32):
        super().__init__()
        self.embedding = nn.Embedding(8, embed_dim)
        self.positions = LearnedPositionalEncoding(embed_dim, max_len=12)
        self.attention = MultiHeadAttention(embed_dim, num_heads, bias=False)
        self.num_tasks = num_tasks
        self.read_out = read_out_of(read_out, embed_dim, 64, num_tasks * 8)

    def forward(self, tokens):
        x = self.positions(self.embedding(tokens))
        output, _ = self.attention(x, x, x)
        return self.read_out(output).unflatten(-1, (self.num_tasks, -1))


def read_out_of(kind: str, width: int, hidden: int, answers: int) -> nn.Module:
    """A linear read-out, an MLP, or the two matrices of the MLP without the ReLU between them."""
    if kind == "linear":
        return nn.Linear(width, answers)
    first, last = nn.Linear(width, hidden), nn.Linear(hidden, answers)
    between = [nn.ReLU()] if kind == "MLP" else []
    return nn.Sequential(first, *between, last)


def heads(number: int) -> str:
    """The number of heads as text for a label."""
    return "1 head" if number == 1 else f"{number} heads"


def three_back(generator, batch_size=32, length=12):
    """Tokens 0..7, and for each the token three places before; there is none for the first three."""
    tokens = torch.randint(8, (batch_size, length), generator=generator)
    targets = tokens.roll(3, -1)
    targets[:, :3] = -100
    return tokens, targets


def largest_shares(most: int, letters: int) -> list[float]:
    """Expected share of the most frequent letter among 0, 1, ... `most` uniform ones; `letters` is 4 or 8.

    The chance that no letter occurs more than m times in n draws is n! / letters^n times the coefficient of
    x^n in (1 + x + x^2/2! + ... + x^m/m!)^letters.
    """
    draws = np.arange(most + 1)
    factorials = np.array([float(math.factorial(n)) for n in draws])
    expected, below = np.zeros(most + 1), np.zeros(most + 1)
    for m in range(1, most + 1):
        power = 1 / factorials[: m + 1]
        for _ in range(letters.bit_length() - 1):
            power = np.convolve(power, power)[: most + 1]
        power = np.pad(power, (0, most + 1 - len(power)))
        at_most = power * factorials / float(letters) ** draws
        expected += m * np.where(draws >= m, at_most - below, 0.0)
        below = at_most
    return (expected / np.maximum(draws, 1)).tolist()


def without_each_head(
    layer: MultiHeadAttention, measure: Callable[[], Tensor]
) -> Tensor:
    """What `measure` gives while each head of a layer in turn is switched off, (heads, ...)."""
    found = []
    for gates in 1 - torch.eye(layer.num_heads):
        with gate_heads(layer, gates), torch.no_grad():
            found.append(measure())
    return torch.stack(found)


def rounded(value: Any) -> Any:
    """Tensors as lists, with numbers rounded to four significant digits."""
    if isinstance(value, Mapping):
        return {str(key): rounded(part) for key, part in value.items()}
    if isinstance(value, Tensor):
        return rounded(value.tolist())
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def check_comparison(arms: Mapping[str, Arm]) -> None:
    """Refuse a script whose arms are not trained alike, apart from those that say why they compare nothing.

    Only the model may differ. Steps may where the label names them, and with them the number of seeds; so may
    the arguments of the function that makes the batches, as in `partial(batch, task)`.
    """
    seen: dict[str, tuple[str, Any]] = {}
    for label, arm in arms.items():
        settings = {
            name: getattr(value, "func", value)
            for name, value in vars(arm).items()
            if name not in ("make_model", "measure", "keep", "because")
        }
        if f"{arm.steps} steps" in label:
            seeds = settings.pop("seeds")
            settings[f"seeds for {settings.pop('steps')} steps"] = seeds
        for name, value in ({} if arm.because else settings).items():
            other, first = seen.setdefault(name, (label, value))
            if value != first:
                raise ValueError(
                    f"{label!r} has other {name} than {other!r}: arms that are compared differ in their "
                    "model only"
                )


def run_arms(script: Path | str, arms: Mapping[str, Arm], bounds: Mapping[str, Any]):
    """Train all arms of a script. Return what is stored, and the parameters that are kept."""
    check_comparison(arms)
    torch.set_num_threads(1)  # makes sums the same on every machine
    script = Path(script)
    code, data = hashes_of(script)
    start, contents, tensors = time.perf_counter(), {}, {}
    for number, (label, arm) in enumerate(arms.items(), start=1):
        contents[label], models = arm.run()
        for seed, model in enumerate(models[: arm.keep]):
            for name, tensor in model.state_dict().items():
                tensors[f"{label}/{seed}/{name}"] = tensor.contiguous()
        done = f"{number} of {len(arms)}, {time.perf_counter() - start:5.0f} s"
        found = contents[label]["results"].items()
        short = {n: row for n, row in found if not isinstance(row[0], list | dict)}
        print(f"{script.stem}: {done}: {label}: {short}", flush=True)
    content = {
        "name": script.stem,
        "code": code,
        "data": data,
        "torch": torch.__version__.split("+")[0],
        "bounds": rounded(dict(bounds)),
        "arms": contents,
    }
    return content, tensors


def store(script: Path | str, content: dict, tensors: dict[str, Tensor]) -> None:
    """Write results and models where `load_experiment` reads them."""
    path = stored_results(Path(script))
    path.parent.mkdir(exist_ok=True)
    data = save(tensors) if tensors else b""
    models = path.with_suffix(".safetensors")
    models.write_bytes(data) if tensors else models.unlink(missing_ok=True)
    content = {**content, "models": hashlib.sha256(data).hexdigest() if data else ""}
    write(path, content)


def confirm(script: Path, arms: Mapping[str, Arm]) -> None:
    """Give the stored results the hashes of the present code if a short training run of each arm agrees."""
    path = stored_results(script)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert list(arms) == list(content["arms"]), "the arms have changed: run them"
    torch.set_num_threads(1)
    check_comparison(arms)
    for label, arm in arms.items():
        stored = content["arms"][label]
        rates = {float(lr) for lr in stored.get("rates", [stored["lr"]])}
        settings = (arm.steps, arm.seeds)
        assert settings == (stored["steps"], stored["seeds"]), label
        assert rates >= {*arm.rates}, label
        found, before = torch.tensor(arm.check()), torch.tensor(stored["check"])
        close = partial(torch.testing.assert_close, rtol=CHECK_TOLERANCE, atol=0.0)
        close(found, before, msg=lambda text, label=label: f"{label}: {text}")
        print(f"{script.stem}: {label}: the same")
    content["code"], content["data"] = hashes_of(script)
    del content["digest"]
    write(path, content)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write results as JSON, one part per line, with a digest that shows whether the file is intact."""
    text = json.dumps({**content, "digest": digest(content)}, ensure_ascii=False)
    text = text.replace('}, "', '},\n"').replace('"results": ', '\n"results": ')
    path.write_text(text + "\n", encoding="utf-8")


def main():
    """Run a script and store its results, or with --confirm only compare."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("name", help="of the script, such as two_pointers")
    help_text = "after code was only rewritten: train a little, keep the results"
    parser.add_argument("--confirm", action="store_true", help=help_text)
    options = parser.parse_args()
    script = Path(__file__).with_name(f"{options.name}.py")
    module = load_script(script)
    if options.confirm:
        confirm(script, module.ARMS)
    else:
        store(script, *run_arms(script, module.ARMS, module.BOUNDS))


if __name__ == "__main__":
    main()
