"""Schedules of the learning rate; torch's documentation explains them."""

from __future__ import annotations

from math import cos, pi

from .._memory import NeedsTorchError, need


class LRScheduler:
    """Sets the rates of an optimizer, now and after each `step`."""

    def __init__(self, optimizer, last_epoch=-1):
        need(last_epoch == -1, "a schedule that continues another needs", NeedsTorchError)
        self.optimizer, self.last_epoch = optimizer, -1
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    def step(self):
        self.last_epoch += 1
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate

    def get_last_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]


class LambdaLR(LRScheduler):
    """The first rate, times a function of the number of the step."""

    def __init__(self, optimizer, lr_lambda, last_epoch=-1):
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [base * self.lr_lambda(self.last_epoch) for base in self.base_lrs]


class StepLR(LRScheduler):
    """The first rate, which shrinks by a factor after every `step_size` steps."""

    def __init__(self, optimizer, step_size, gamma=0.1, last_epoch=-1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """The first rate, which falls along half a cosine."""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_epoch=-1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        share = (1 + cos(pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """A rate that rises and then falls, while the momentum does the opposite (Smith and Topin, 2019)."""

    def __init__(
        self, optimizer, max_lr, total_steps=None, epochs=None, steps_per_epoch=None, pct_start=0.3,
        anneal_strategy="cos", cycle_momentum=True, base_momentum=0.85, max_momentum=0.95, div_factor=25.0,
        final_div_factor=1e4, **options,
    ):  # fmt: skip
        known = anneal_strategy in ("cos", "linear")
        need(known, f"anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}", ValueError)
        need(not any(options.values()), f"a schedule with {options} needs", NeedsTorchError)
        given = total_steps is not None or (epochs is not None and steps_per_epoch is not None)
        need(given, "OneCycleLR needs total_steps, or epochs and steps_per_epoch", ValueError)
        self.total_steps = epochs * steps_per_epoch if total_steps is None else total_steps
        need(self.total_steps > 0, f"total_steps must be positive, got {self.total_steps}", ValueError)
        need(0 <= pct_start <= 1, f"pct_start must lie in 0..1, got {pct_start}", ValueError)
        self._turn, self._linear = pct_start * self.total_steps - 1, anneal_strategy == "linear"
        self._rates = max_lr / div_factor, max_lr, max_lr / div_factor / final_div_factor
        self._momenta = (max_momentum, base_momentum, max_momentum) if cycle_momentum else None
        super().__init__(optimizer)

    def _between(self, start, middle, end):
        last = self.total_steps - 1
        rises = self.last_epoch <= self._turn or self._turn >= last
        first, start, end = (0, start, middle) if rises else (self._turn, middle, end)
        length = (self._turn if rises else last) - first
        share = (self.last_epoch - first) / length
        return start + (end - start) * (share if self._linear else (1 - cos(pi * share)) / 2)

    def get_lr(self):
        told = (
            f"step {self.last_epoch} of a schedule for {self.total_steps} steps: is it too short, or not new?"
        )
        need(self.last_epoch <= self.total_steps, told, ValueError)
        return [self._between(*self._rates) for _ in self.base_lrs]

    def step(self):
        super().step()
        for group in self.optimizer.param_groups if self._momenta else []:
            momentum = self._between(*self._momenta)
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no lr_scheduler.{name}: open this page in Colab")
