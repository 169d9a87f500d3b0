"""The ablation lab: switch off heads of a trained model, and count the answers that it still gets right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor, nn

from mha_course._checks import check_texts
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Number, Numbers, Whole, among
from mha_course.widgets.packing import pack, unpack  # noqa: F401, the program uses it
from mha_course.widgets.seen_model import (
    SeenModel,
    check_parts,
    read_seen,  # noqa: F401, the program uses it
    see_model,
)
from mha_lib._checks import check_type, refusal
from mha_lib.inspection import capture_attention, gate_heads
from mha_lib.multi_head import MultiHeadAttention

MAX_HEADS, MAX_LENGTH, MAX_SAMPLES, MAX_VOCAB = 8, 24, 512, 256
"""With larger numbers, the page would be too heavy and the maps too small."""

ALL_SUBSETS = 4
"""For up to this many heads, the table has all subsets; for more heads, only single heads."""


class AblationLab(Explorer):
    """Switches for the heads of trained models, and the share of answers that are still right without them.

    A model embeds tokens, adds positions, attends once, and computes its answers with a linear read-out:
    `model.read_out(model.attention(x, x, x)[0])` with `x = model.positions(model.embedding(tokens))`. From
    the weights, the browser computes all of this for every token of a fixed test batch.

    Args:
        models: a trained model, or several that differ in the number of heads, 1 to 8 each. A model has
            `embedding` (an `nn.Embedding`), `positions` (adds a vector to each position), `attention` (a
            `MultiHeadAttention`) and `read_out` (an `nn.Linear` to one logit for each task and token).
        tokens: the test batch, int64 (samples, len), at most (512, 24).
        targets: right answers, int64 (samples, len, tasks).
        tasks: name of each task.
        num_heads: number of heads of the model that is shown; default that of the first model.
        gates: one number for each head: 0 switches it off, 1 leaves it on; default all 1.
        sample: index of the sequence whose maps and answers are shown.
        keep: the reader meets the challenge at the top if at least two heads are off and all answers are
            right at this share of the positions or more.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: sizes do not fit, a model has a different structure, or an argument is out of range.

    Example:
        >>> from mha_lib import LearnedPositionalEncoding
        >>> from mha_course.data import pointer_batch
        >>> model = nn.Module()
        >>> model.embedding, model.positions = nn.Embedding(8, 6), LearnedPositionalEncoding(6, 12)
        >>> model.attention, model.read_out = MultiHeadAttention(6, 2), nn.Linear(6, 16)
        >>> lab = AblationLab(model, *pointer_batch(4), tasks=("previous", "mirrored"), gates=[1, 0])
        >>> lab
        AblationLab(num_heads=2, off=[1], samples=4)
        >>> lab.numbers()["accuracy"].shape  # each task, and all tasks at once
        torch.Size([3])
    """

    _module: ClassVar[str] = "ablation_lab.js"

    models = t.List(t.Dict(), read_only=True).tag(sync=True)
    batch = t.Dict(read_only=True).tag(sync=True)
    num_heads = Whole(None, 1, MAX_HEADS)
    gates = Numbers(None, 0, 1, "num_heads", ends=True).tag(in_repr=False)
    sample = Whole(0, 0, "batch.samples - 1").tag(in_repr=False)
    keep = Number(0.75, 0.0, 1.0).tag(in_repr=False)

    def __init__(
        self,
        models: nn.Module | Sequence[nn.Module],
        tokens: Tensor,
        targets: Tensor,
        *,
        tasks: Sequence[str],
        **settings: Any,
    ) -> None:
        if not isinstance(models, nn.Module):
            check_type("models", models, Sequence)
        listed = [models] if isinstance(models, nn.Module) else list(models)
        self._tasks = check_texts("tasks", tasks)
        self._tokens, self._targets = _check_batch(tokens, targets, len(self._tasks))
        found = [
            _check_model(f"models[{index}]", model, self._tokens, len(self._tasks))
            for index, model in enumerate(listed)
        ]
        self._models = {model.attention.num_heads: model for model in found}
        if not found or len(self._models) < len(found):
            rule = "hold at least one model, and their numbers of heads must differ"
            counts = [model.attention.num_heads for model in found]
            raise refusal("models", rule, counts)
        self.set_trait("models", [model.state() for model in self._models.values()])
        self.set_trait(
            "batch",
            {
                "samples": len(self._tokens),
                "length": self._tokens.shape[1],
                "tasks": self._tasks,
                "tokens": pack(self._tokens, torch.uint8),
                "targets": pack(self._targets, torch.uint8),
            },
        )
        super().__init__(**settings)

    @t.default("num_heads")
    def _default_num_heads(self) -> int:
        return next(iter(self._models))

    @t.default("gates")
    def _default_gates(self) -> list[float]:
        return [1.0] * self.num_heads

    @t.validate("num_heads")
    def _check_num_heads(self, proposal: t.Bunch) -> int:
        return int(among(proposal, self._models))

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:
        return {
            "seen": (lambda: self._models[settings["num_heads"]], "read_seen(⟨model⟩)"),
            "tokens": (lambda: self._tokens, _unpacked("tokens", self._tokens)),
            "targets": (lambda: self._targets, _unpacked("targets", self._targets)),
        }

    @staticmethod
    def _compute(
        gates: list[float],
        sample: int,
        seen: SeenModel,
        tokens: Tensor,
        targets: Tensor,
    ) -> dict[str, Any]:
        # With the heads gated, (samples, len, tasks).
        answers = _answers(seen, tokens, targets, torch.tensor(gates).double())
        with capture_attention(seen) as captured, torch.no_grad():
            seen(tokens[sample : sample + 1])
        return {
            # For each task and for all tasks at once.
            "accuracy": _accuracy(answers, targets),
            "subsets": _table(seen, tokens, targets),
            "answers": answers[sample].T,
            "maps": captured["attention"][0],
        }

    def _details(self) -> list[str]:
        off = [head for head, gate in enumerate(self.gates) if gate == 0]
        return [f"off={off}", f"samples={len(self._tokens)}"]


def _unpacked(name: str, numbers: Tensor) -> str:
    sizes = ", ".join(map(str, numbers.shape))
    return f"unpack(⟨{name}⟩, {sizes}, dtype=torch.uint8).long()"


def _answers(seen: SeenModel, tokens: Tensor, targets: Tensor, gates: Tensor) -> Tensor:
    """The answers with the heads gated, (samples, len, tasks)."""
    with gate_heads(seen.attention, gates), torch.no_grad():
        logits: Tensor = seen(tokens).unflatten(-1, (targets.shape[-1], -1))
    return logits.argmax(-1)


def _accuracy(answers: Tensor, targets: Tensor) -> Tensor:
    """The accuracy, for each task and for all tasks at once: (tasks + 1,)."""
    right = answers == targets
    at_once = right.all(-1).double().mean()
    return torch.cat((right.double().mean((0, 1)), at_once[None]))


# The table is cached, because gates and samples do not change it and each row takes a run of the model.
@lru_cache(maxsize=8)
def _table(seen: SeenModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """The accuracies without some of the heads, (subsets, tasks + 1)."""
    rows = _subsets(seen.attention.num_heads)
    return torch.stack(
        [_accuracy(_answers(seen, tokens, targets, row), targets) for row in rows]
    )


def _check_batch(
    tokens: Tensor, targets: Tensor, num_tasks: int
) -> tuple[Tensor, Tensor]:
    for name, tensor in (("tokens", tokens), ("targets", targets)):
        check_type(name, tensor, Tensor)
        if tensor.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got {tensor.dtype}")
    sizes = tuple(tokens.shape)
    fits = (
        len(sizes) == 2 and 1 <= sizes[0] <= MAX_SAMPLES and 1 <= sizes[1] <= MAX_LENGTH
    )
    if not fits:
        rule = f"have shape (samples, len), at most ({MAX_SAMPLES}, {MAX_LENGTH})"
        raise refusal("tokens", rule, sizes)
    wanted = (*sizes, num_tasks)
    if tuple(targets.shape) != wanted or num_tasks == 0:
        rule = f"have shape (samples, len, tasks) = {wanted}"
        raise refusal("targets", rule, tuple(targets.shape))
    for name, tensor in (("tokens", tokens), ("targets", targets)):
        if tensor.min() < 0 or tensor.max() >= MAX_VOCAB:
            rule = f"lie in 0..{MAX_VOCAB - 1}"
            raise refusal(name, rule, f"{int(tensor.min())}..{int(tensor.max())}")
    return tokens.clone(), targets.clone()


def _check_model(
    name: str, model: nn.Module, tokens: Tensor, num_tasks: int
) -> SeenModel:
    check_parts(name, model)
    assert isinstance(model.embedding, nn.Embedding)
    assert isinstance(model.attention, MultiHeadAttention)
    assert isinstance(model.read_out, nn.Linear)
    attention = model.attention
    counts = (attention.num_heads, attention.num_kv_heads)
    if not counts[0] == counts[1] <= MAX_HEADS:
        rule = f"have at most {MAX_HEADS} heads, each with keys of its own"
        raise refusal(f"{name}.attention", rule, counts)
    if attention.score is not None or attention.rotary is not None:
        rule = "use the scaled dot product alone"
        raise refusal(f"{name}.attention", rule, attention)
    if model.read_out.out_features % num_tasks:
        rule = f"give the same number of logits for each of {num_tasks} tasks"
        raise refusal(f"{name}.read_out", rule, model.read_out.out_features)
    if int(tokens.max()) >= model.embedding.num_embeddings:
        rule = f"lie below {name}'s {model.embedding.num_embeddings} tokens"
        raise refusal("tokens", rule, int(tokens.max()))
    return see_model(name, model, tokens.shape[1], tokens)


def _subsets(num_heads: int) -> Tensor:
    """The rows of the table as gates: all subsets of few heads; for many, none or a single head off."""
    most = num_heads if num_heads <= ALL_SUBSETS else 1
    gates = torch.ones(0, num_heads, dtype=torch.float64)
    for size in range(most + 1):
        for off in combinations(range(num_heads), size):
            row = torch.ones(1, num_heads, dtype=torch.float64)
            row[0, list(off)] = 0.0
            gates = torch.cat((gates, row))
    return gates
