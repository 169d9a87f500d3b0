"""What all experiments share: train the arms with several seeds, store results, curves and models.

A script names its settings at the top, its arms in `ARMS`, and ends with `run_script(__file__, ARMS, ...)`.
Results do not depend on the number of processors: each experiment is one process with one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from mha_lib import LearnedPositionalEncoding, MultiHeadAttention
from mha_lib.experiments import digest, hashes_of
from mha_lib.training import cross_entropy, fit, seeded

Batch = tuple[Tensor, Tensor]
# A short training of one seed, which is stored with the long one and repeated by a test.
CHECK_STEPS, CHECK_RECORDS, CHECK_TOLERANCE = 30, 6, 0.01


@dataclass(frozen=True)
class Arm:
    """One setting: what is trained, on which data, for how long, and what is measured on the trained models.

    Attributes:
        make_model: function without arguments that makes a model.
        make_batch: function of a `torch.Generator` that returns (inputs, targets).
        measure: function of the list of trained models that returns the results: name -> one entry per model.
        steps: number of updates.
        lr: largest learning rate of the one-cycle schedule.
        seeds: number of models, with the seeds 0, 1, ...
        keep: number of models whose parameters are stored.
        loss: function of (outputs, targets).
        warmup: share of the steps in which the rate rises.
        clip: largest norm of each model's gradient; None clips nothing.
    """

    make_model: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], Batch]
    measure: Callable[[list[nn.Module]], Mapping[str, Any]]
    steps: int
    lr: float
    seeds: int = 5
    keep: int = 0
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    warmup: float = 0.1
    clip: float | None = None

    def check(self) -> list[float]:
        """Losses of seed 0 during a short training run, in double precision.

        In single precision, rounding differences between processors may grow within these steps to a quarter
        of the loss; in double precision they stay below the digits that are stored.
        """

        def make_double_batch(generator: torch.Generator) -> Batch:
            inputs, targets = (
                x.double() if x.is_floating_point() else x
                for x in self.make_batch(generator)
            )
            return inputs, targets

        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            history = fit(
                seeded(self.make_model, 1),
                make_double_batch,
                steps=CHECK_STEPS,
                records=CHECK_RECORDS,
                lr=self.lr,
                loss=self.loss,
                warmup=self.warmup,
                clip=self.clip,
            )
        finally:
            torch.set_default_dtype(usual)
        return rounded(history.losses[0])

    def run(self) -> tuple[dict[str, Any], list[nn.Module]]:
        """Train and measure; return what is stored, and the models."""
        models = seeded(self.make_model, self.seeds)
        history = fit(
            models,
            self.make_batch,
            steps=self.steps,
            lr=self.lr,
            loss=self.loss,
            warmup=self.warmup,
            clip=self.clip,
            records=40,
        )
        for model in models:
            model.eval()
        parameters = sum(p.numel() for p in models[0].parameters())
        content = {
            "parameters": parameters,
            "steps": self.steps,
            "lr": self.lr,
            "seeds": self.seeds,
            "results": rounded(self.measure(models)),
            "curve": {
                "steps": history.steps.tolist(),
                "losses": rounded(history.losses),
            },
            "check": self.check(),
        }
        return content, models


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


def rounded(value: Any) -> Any:
    """Tensors as lists, with numbers rounded to four significant digits."""
    if isinstance(value, Mapping):
        return {str(key): rounded(part) for key, part in value.items()}
    if isinstance(value, Tensor):
        return rounded(value.tolist())
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def one_thread() -> None:
    """Make sums the same on every machine: use one thread, keep denormal numbers."""
    torch.set_num_threads(1)


def run_arms(
    script: Path | str, arms: Mapping[str, Arm], bounds: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train all arms of a script. Return what is stored, and the parameters that are kept."""
    one_thread()
    script = Path(script)
    code, data = hashes_of(script)
    start, contents, tensors = time.perf_counter(), {}, {}
    for number, (label, arm) in enumerate(arms.items(), start=1):
        contents[label], models = arm.run()
        for seed, model in enumerate(models[: arm.keep]):
            for name, tensor in model.state_dict().items():
                tensors[f"{label}/{seed}/{name}"] = tensor.contiguous()
        found = {
            name: values
            for name, values in contents[label]["results"].items()
            if not isinstance(values[0], (list, dict))
        }
        seconds = time.perf_counter() - start
        print(
            f"{script.stem}: {number} of {len(arms)}, {seconds:5.0f} s: {label}: {found}"
        )
        sys.stdout.flush()
    content = {
        "name": script.stem,
        "code": code,
        "data": data,
        "torch": torch.__version__.split("+")[0],
        "bounds": rounded(dict(bounds)),
        "arms": contents,
    }
    return content, tensors


def store(
    script: Path | str, content: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write results and models to the folder `stored` next to the script."""
    path = Path(script).parent / "stored" / f"{Path(script).stem}.json"
    path.parent.mkdir(exist_ok=True)
    data = save(tensors) if tensors else b""
    models = path.with_suffix(".safetensors")
    models.write_bytes(data) if tensors else models.unlink(missing_ok=True)
    content = {**content, "models": hashlib.sha256(data).hexdigest() if data else ""}
    write(path, content)


def run_script(
    script: str, run: Callable[[], tuple[dict[str, Any], dict[str, Tensor]]]
) -> None:
    """Entry point of a script: run and store, or with --confirm only compare."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="after code was rewritten but not changed in what it does: train one seed of each arm for some "
        "steps, and keep the stored results if the losses are the same",
    )
    if parser.parse_args().confirm:
        confirm(Path(script))
    else:
        store(script, *run())


def confirm(script: Path) -> None:
    """Give the stored results the hashes of the present code if a short training run of each arm agrees."""
    path = script.parent / "stored" / f"{script.stem}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    arms = sys.modules["__main__"].ARMS
    assert list(arms) == list(content["arms"]), "the arms have changed: run them"
    one_thread()
    for label, arm in arms.items():
        settings = {"steps": arm.steps, "lr": arm.lr, "seeds": arm.seeds}
        stored = content["arms"][label]
        assert settings == {name: stored[name] for name in settings}, label
        torch.testing.assert_close(
            torch.tensor(arm.check()),
            torch.tensor(stored["check"]),
            rtol=CHECK_TOLERANCE,
            atol=0.0,
            msg=lambda text, label=label: f"{label}: {text}",
        )
        print(f"{script.stem}: {label}: the same")
    content["code"], content["data"] = hashes_of(script)
    del content["digest"]
    write(path, content)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write results as JSON, one part per line, with a digest that shows whether the file is intact."""
    text = json.dumps({**content, "digest": digest(content)}, ensure_ascii=False)
    text = text.replace('}, "', '},\n"').replace('"results": ', '\n"results": ')
    path.write_text(text + "\n", encoding="utf-8")
