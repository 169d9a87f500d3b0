"""Mark numbers that come from models that were still learning when their training ended.

The results of `load_experiment` carry a note for each arm that was still learning. The note stays with every
number that is computed from these results. If a notebook cell prints, compares or draws such a number, the
line "Still learning after 200 steps: ..." automatically appears at its end.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from mha_lib._checks import check_float_tensor

# A loss below this share of the first recorded loss is final, since only irrelevant digits still fall.
ARRIVED = 1 / 200
# Over the last third, a fall counts if it is at least 1 % and more than three times its standard error. A
# curve is too noisy to show that it is flat if two more standard errors would be a fall of 10 %.
LEAST_FALL, ERRORS, HIDDEN_FALL = 0.01, 3.0, 0.1


def is_still_learning(losses: Float[Tensor, "seeds records"]) -> bool:
    """Whether models were still learning at the end of training, by the learning curves of several seeds.

    A straight line is fitted to the logarithm of the loss over the last third of the records, for each seed
    and for the mean of the seeds. The models were still learning if one of these lines falls by more than
    the curve's own noise, or if the noise of the mean is large enough to hide a fall. One falling seed is
    enough, because it may reach a loss that the others do not.

    The rule uses the last *third* because the learning rate ends at 0, so every curve ends flat. The falling
    rate also lowers the loss of models that learn nothing new; such arms count as still learning until a
    smaller rate shows otherwise. The rule is careful in one direction only: a flat curve is no proof, because
    some models leave a plateau after ten times the steps, or at a different rate.

    Raises:
        TypeError: `losses` is not a float tensor.
        ValueError: `losses` has the wrong axes.

    Example:
        >>> flat = torch.full((5, 40), 0.7)
        >>> is_still_learning(flat), is_still_learning(flat * torch.linspace(1, 0.8, 40))
        (False, True)
    """
    check_float_tensor("losses", losses, axes="seeds, records")
    losses = losses.double()
    count = losses.shape[1] // 3
    arrived = losses[:, -count:].mean(1) < ARRIVED * losses[:, 0]
    if count < 4 or not losses.isfinite().all():
        return True
    if arrived.all():
        return False
    curves = losses.clamp(min=1e-12).log()[~arrived, -count:]
    curves = torch.cat((curves.mean(0, keepdim=True), curves))
    times = torch.linspace(-0.5, 0.5, count, dtype=torch.float64)
    slopes = curves @ times / times.square().sum()
    noise = curves - curves.mean(1, keepdim=True) - slopes[:, None] * times
    errors = (noise.square().sum(1) / (count - 2) / times.square().sum()).sqrt()
    falls = (-slopes > LEAST_FALL) & (-slopes > ERRORS * errors)
    return bool(falls.any() or -slopes[0] + 2 * errors[0] > HIDDEN_FALL)


class Measured(Tensor):
    """Numbers of an experiment, with notes on the arms that they come from.

    Attributes:
        notes: the arms that were still learning, as a dict from arm to number of steps.

    Example:
        >>> right = Measured.of(torch.tensor([0.2, 0.6]), {"1 head": 200})
        >>> print(f"{right.max():.0%}", right.max().notes)
        60% {'1 head': 200}
    """

    notes: dict[str, int]

    @classmethod
    def of(cls, values: Shaped[Tensor, "..."], notes: dict[str, int]) -> Measured:
        """The same numbers, with notes."""
        measured: Measured = _with_notes(values.as_subclass(cls), notes)
        return measured

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        notes = _notes_of((args, kwargs))
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if getattr(func, "__name__", "") in _READINGS and notes:
            _announce(notes)
        return _with_notes(result, notes)

    def plain(self) -> Shaped[Tensor, "..."]:
        """The same numbers as a tensor without notes."""
        return torch.tensor(self.tolist(), dtype=self.dtype)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.ndim == 0 else self.plain(), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents  # required by the signature of `Tensor`
        return repr(self.plain())

    def __deepcopy__(self, memo: Any) -> Measured:
        return Measured.of(self.plain(), self.notes)


# The methods by which numbers leave a tensor to be printed, compared or drawn.
_READINGS = frozenset("__array__ __bool__ __float__ __int__ item numpy tolist".split())


def _notes_of(value: Any) -> dict[str, int]:
    """The notes of all tensors in nested arguments."""
    if isinstance(value, Measured):
        return getattr(value, "notes", {})
    found: dict[str, int] = {}
    if isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            found |= _notes_of(part)
    return found


def _with_notes(value: Any, notes: dict[str, int]) -> Any:
    if isinstance(value, Measured):
        value.notes = {**getattr(value, "notes", {}), **notes}
    elif isinstance(value, (list, tuple)):
        for part in value:
            _with_notes(part, notes)
    return value


def sentence(notes: dict[str, int]) -> str:
    """The sentences on a page about arms that were still learning; empty if there are none.

    Example:
        >>> print(sentence({"1 head": 200, "2 heads": 200, "1 head, longer": 4500}))
        Still learning after 200 steps: 1 head; 2 heads.
        Still learning after 4,500 steps: 1 head, longer.
    """
    arms: dict[int, list[str]] = {}
    for arm, steps in sorted(notes.items(), key=lambda item: item[1]):
        arms.setdefault(steps, []).append(arm)
    return "\n".join(
        f"Still learning after {steps:,} steps: {'; '.join(names)}."
        for steps, names in arms.items()
    )


_pending: dict[str, int] = {}


def _announce(notes: dict[str, int]) -> None:
    """Print these notes at the end of the running cell, but only in a notebook, where they are read."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is not None:
        if _say not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", _say)
        _pending.update(notes)


def _say(_result: object) -> None:
    if _pending:
        print(sentence(_pending))
        _pending.clear()
