"""A training loop for one model, or for several seeds of it at once."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from tqdm.auto import tqdm

from mha_course._checks import check_seed
from mha_lib._checks import (
    check_float_tensor,
    check_positive,
    check_positive_int,
    check_probability,
    check_same,
    check_sizes,
    check_type,
    refusal,
)

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class History:
    """The record of `fit`: the loss of each model at each recorded step.

    Attributes:
        steps: (records,), int64, counted from 1.
        losses: (models, records), each the mean loss over the steps since the previous record.
    """

    steps: Int64[Tensor, " records"]
    losses: Float[Tensor, "models records"]


def cross_entropy(
    logits: Float[Tensor, "*batch classes"], target: Int64[Tensor, "*batch"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of logits (..., classes) against class indices (...), in nats.

    Raises:
        TypeError: `logits` is not a floating-point tensor, or `target` not an int64 tensor.
        ValueError: `target` does not have the shape of `logits` without its last axis.

    Example:
        >>> round(cross_entropy(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)).item(), 4)  # log 4
        1.3863
    """
    check_float_tensor("logits", logits, axes="..., classes")
    check_type("target", target, Tensor)
    if target.dtype != torch.int64:
        raise TypeError(f"target must hold class indices, int64, got {target.dtype}")
    if target.shape != logits.shape[:-1]:
        raise refusal("target", f"have shape {tuple(logits.shape[:-1])}", target)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def seeded(
    factory: Callable[[], nn.Module], num_models: int, *, seed: int = 0
) -> list[nn.Module]:
    """Make models that differ only in their random initialization.

    Model i is the result of `factory()` after `torch.manual_seed(seed + i)`. The global random state is not
    changed.

    Raises:
        TypeError: `num_models` or `seed` is not an int.
        ValueError: `num_models` is not positive, or `seed` is out of range.

    Example:
        >>> first, second = seeded(lambda: nn.Linear(2, 2), 2)
        >>> torch.equal(first.weight, second.weight)
        False
    """
    check_positive_int("num_models", num_models)
    check_seed("seed", seed)
    models = []
    with torch.random.fork_rng(devices=[]):
        for i in range(num_models):
            torch.manual_seed(seed + i)
            models.append(factory())
    return models


def predict(
    models: nn.Module | Sequence[nn.Module], inputs: Shaped[Tensor, "..."]
) -> Shaped[Tensor, "models *output"]:
    """Outputs of models of the same architecture and inputs, (models, *output shape), without gradients.

    Raises:
        TypeError: an entry of `models` is not a module.
        ValueError: there are no models.

    Example:
        >>> predict(seeded(lambda: nn.Linear(3, 5), 2), torch.ones(7, 3)).shape
        torch.Size([2, 7, 5])
    """
    models = _as_list(models)
    with torch.no_grad():
        return torch.stack([model(inputs) for model in models])


def _as_list(models: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    models = [models] if isinstance(models, nn.Module) else list(models)
    if not models:
        raise refusal("models", "hold at least one model", "none")
    for i, model in enumerate(models):
        check_type(f"models[{i}]", model, nn.Module)
    return models


def _progress_bar(steps: int, progress: bool) -> Any:
    """The steps, counted from 1, with a progress bar if one is requested and visible."""
    # tqdm's bar for notebooks does not read this variable itself.
    hidden = not progress or os.environ.get("TQDM_DISABLE") == "1"
    # With None, tqdm decides: it shows a bar in a notebook or a terminal, but not in a pipe.
    return tqdm(range(1, steps + 1), leave=False, disable=hidden or None)


def _clip_each(parameters: Iterable[Tensor], largest: float) -> None:
    """Shorten the gradient of each model to norm `largest`, as `nn.utils.clip_grad_norm_` would do for it."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = [g.square().reshape(len(g), -1).sum(-1) for g in gradients]
    norms = torch.stack(squares).sum(0).sqrt()
    # Like torch, avoid a division by zero and never make a gradient longer.
    factors = (largest / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.reshape(-1, *[1] * (gradient.ndim - 1)))


def _one_cycle(
    optimizer: torch.optim.Optimizer, steps: int, lr: float, warmup: float
) -> torch.optim.lr_scheduler.LRScheduler:
    """The schedule of the learning rate, which rises in the share `warmup` of the steps and then falls."""
    total = max(steps, 2)
    # A warm-up takes at least one and a half steps, because torch divides by its length.
    rising = max(warmup, 1.5 / total) if warmup else 0.0
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    return one_cycle(optimizer, lr, total_steps=total, pct_start=rising)


def _check_alike(models: Sequence[nn.Module]) -> None:
    """Raise unless the models have the same architecture, with parameters of the same shapes."""
    names = [f"models[{i}]" for i in range(len(models))]
    check_same("architecture", names, [str(model) for model in models])
    shapes = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in models]
    check_same("parameters", names, shapes)


def fit(
    models: nn.Module | Sequence[nn.Module],
    make_batch: Callable[[torch.Generator], Batch],
    *,
    steps: int,
    lr: float = 1e-2,
    warmup: float = 0.1,
    clip: float | None = None,
    loss: Callable[[Tensor, Tensor], Float[Tensor, ""]] = cross_entropy,
    seed: int = 0,
    records: int = 50,
    progress: bool = False,
) -> History:
    """Train in place with Adam, a short warm-up and a learning rate that falls to 0 (one-cycle schedule).

    The schedule is that of Smith & Topin (2019) as in `torch.optim.lr_scheduler.OneCycleLR`: Adam's β₁ falls
    from 0.95 to 0.85 while the rate rises from `lr` / 25 to `lr`, and rises again while the rate falls.

    Several models of the same architecture train side by side in one batched computation, which takes little
    more time than one model. Each sees its own data and is updated by its own gradient, as if it were alone.

    Args:
        models: one model, or several of the same architecture; see `seeded`.
        make_batch: function of a `torch.Generator` that returns (inputs, targets).
        steps: number of updates.
        lr: largest learning rate, reached at the end of the warm-up.
        warmup: share of the steps in which the rate rises, at least 0 and below 1.
        clip: largest norm of the gradient of each model, over all its parameters; a longer gradient is
            shortened to this norm (Pascanu et al., 2013). With None, no gradient is clipped.
        loss: function of (outputs, targets) that returns a scalar.
        seed: model i draws its data from a generator with seed + i.
        records: number of entries of the history, at most `steps`.
        progress: show a bar with the mean loss while training, unless TQDM_DISABLE=1 is in the environment.

    Raises:
        TypeError: a setting has the wrong type, or a model is not a module.
        ValueError: a setting is out of range, there are no models, or their architectures differ.

    Example:
        >>> def make_batch(generator):
        ...     x = torch.rand(16, 1, generator=generator)
        ...     return x, 3 * x
        >>> model = nn.Linear(1, 1, bias=False)
        >>> history = fit(model, make_batch, steps=300, lr=0.1, loss=F.mse_loss)
        >>> round(model.weight.item(), 2)
        3.0
    """
    check_sizes(steps=steps, records=records)
    check_positive("lr", lr)
    check_probability("warmup", warmup)
    if warmup == 1:
        raise refusal("warmup", "be less than 1, or the rate never falls", warmup)
    if clip is not None:
        check_positive("clip", clip)
    check_type("progress", progress, bool)
    check_seed("seed", seed)
    models = _as_list(models)
    _check_alike(models)
    records = min(records, steps)
    # All models become one: each parameter gets a leading axis, and `vmap` runs the architecture once.
    # Adam works entry by entry, so the sum of the losses updates each model as its own loss would.
    parameters, buffers = stack_module_state(models)
    architecture = copy.deepcopy(models[0]).to("meta")

    def one_loss(state: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss(functional_call(architecture, state, (inputs,)), targets)

    all_losses = torch.vmap(one_loss, randomness="different")
    optimizer = torch.optim.Adam(list(parameters.values()), lr=lr)
    schedule = _one_cycle(optimizer, steps, lr, warmup)
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(models))]
    marks = torch.linspace(0, steps, records + 1).round().long()[1:]
    kept: list[Tensor] = []
    running, since = torch.zeros(len(models)), 0
    bar = _progress_bar(steps, progress)
    for step in bar:
        batches = [make_batch(generator) for generator in generators]
        inputs, targets = (torch.stack(part) for part in zip(*batches, strict=True))
        optimizer.zero_grad()
        with warnings.catch_warnings():
            # The fused attention kernel has no batched form, so torch runs it model by model, no slower here.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            losses = all_losses((parameters, buffers), inputs, targets)
            losses.sum().backward()
        if clip is not None:
            _clip_each(parameters.values(), clip)
        optimizer.step()
        schedule.step()
        running, since = running + losses.detach(), since + 1
        if step == marks[len(kept)]:
            kept.append(running / since)
            running, since = torch.zeros(len(models)), 0
        if not bar.disable:
            bar.set_postfix(loss=f"{losses.mean().item():.3f}", refresh=False)
    with torch.no_grad():
        for i, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.copy_(parameters[name][i])
    return History(marks, torch.stack(kept, dim=-1))
