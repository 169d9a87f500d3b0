"""Rotary positions for texts longer than those seen in training: the pairs of columns turn more slowly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib import _checks
from mha_lib.rotary import _AngleScaling

_RAMP = ("trained_len", "low", "high")
# The settings that each kind has besides its factor.
_KINDS: dict[str, tuple[str, ...]] = {
    "linear": (),
    "dynamic": ("trained_len",),
    "llama3": _RAMP,
    "yarn": (*_RAMP, "attention_factor"),
}


@dataclass(frozen=True)
class RotaryScaling(_AngleScaling):
    """How `RotaryPositionalEncoding` slows its pairs of columns so that a model can read longer texts.

    In a longer text, a pair that made less than one turn in training reaches angles that the model never saw.

    - "linear": every pair turns `factor` times more slowly (Chen et al., 2023, §2.3).
    - "dynamic": the slowest pair turns s times more slowly, the fastest as before, and each pair in between
      slows by a power of s. Beyond `trained_len`, s = factor * len / trained_len - (factor - 1) grows with
      the length of the sample (padding not counted). With a `factor` of 1 this is the s of Peng et al. (2023,
      §3.3); the rest is HuggingFace's. Cached keys keep the angles of the call that added them, so longer
      texts give different results with a cache and without one.
    - "llama3": pairs that make fewer than `low` turns within `trained_len` become `factor` times slower,
      those with more than `high` turns are unchanged, and a ramp joins the two (published code of Llama 3.1;
      Peng et al., 2023, §3.2, equations 17 to 20).
    - "yarn": the same, except that the ramp runs over column numbers, as in the authors' code, and queries
      and keys are multiplied by `attention_factor`, which sharpens the weights (ibid., §3.4).

    Args:
        kind: "linear", "dynamic", "llama3" or "yarn".
        factor: how many times longer the texts may be.
        trained_len: the greatest length in training; for all kinds except "linear".
        low, high: numbers of turns; default 1 and 4 for "llama3", 1 and 32 for "yarn".
        attention_factor: for "yarn"; default 0.1 * ln(factor) + 1.

    Raises:
        TypeError: `kind` is not a str, `trained_len` not an int, or any other setting is not a number.
        ValueError: `kind` is unknown, a number is not positive, `low` is not less than `high`, or a setting
            is given that `kind` does not use.

    Example:
        >>> RotaryScaling("llama3", 8.0, trained_len=8192).high
        4.0
    """

    kind: str
    factor: float
    trained_len: int | None = None
    low: float | None = None
    high: float | None = None
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        """Check the settings and fill in the defaults of the kind."""
        _checks.check_choice("kind", self.kind, _KINDS)
        _checks.check_positive("factor", self.factor)
        defaults = {"low": 1.0, "high": 4.0 if self.kind == "llama3" else 32.0}
        defaults["attention_factor"] = 0.1 * math.log(max(self.factor, 1.0)) + 1
        for name in _KINDS["yarn"]:
            value = getattr(self, name)
            if name not in _KINDS[self.kind]:
                if value is not None:
                    raise _checks.refusal(name, f"be None for {self.kind!r}", value)
            elif name == "trained_len":
                _checks.check_positive_int(name, value)
            else:
                value = defaults[name] if value is None else value
                _checks.check_positive(name, value)
                object.__setattr__(self, name, value)
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise _checks.refusal("low", f"be less than high={self.high}", self.low)

    def _check_base(self, base: float) -> None:
        if self.kind == "yarn" and base <= 1:
            raise _checks.refusal("base", "be above 1 for 'yarn'", base)

    def _slowed(self, angles: Tensor, base: float, positions: Tensor) -> Tensor:
        if self.trained_len is None:
            return angles / self.factor
        pairs = angles.shape[-1]
        numbers = torch.arange(pairs, dtype=angles.dtype, device=angles.device)
        if self.low is None or self.high is None:  # "dynamic"
            # Every sample, even an empty one, counts as at least as long as the texts in training.
            last = F.pad(positions, (0, 1), value=self.trained_len - 1).amax(-1)
            longer = (last + 1).to(angles.dtype) / self.trained_len
            slower = (self.factor * longer - (self.factor - 1))[..., None, None]
            return angles * slower ** (-numbers / max(pairs - 1, 1))
        most = self.trained_len / (2 * math.pi)  # turns of the fastest pair in training
        if self.kind == "llama3":
            turns = most * float(base) ** (-numbers / pairs)
            kept = (turns - self.low) / (self.high - self.low)
        else:
            # The (fractional) number of the pair that makes exactly this many turns.
            start, end = (
                pairs * math.log(most / turns) / math.log(base)
                for turns in (self.high, self.low)
            )
            start, end = max(math.floor(start), 0), min(math.ceil(end), 2 * pairs - 1)
            kept = 1 - (numbers - start) / ((end - start) or 0.001)
        kept = kept.clamp(0, 1)
        return angles * (kept + (1 - kept) / self.factor)
