"""The ablation lab: switch heads of a trained model off, and count what it still gets right."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import traitlets as t
from torch import Tensor, nn

from mha_lib._checks import check_type
from mha_lib.inspection import capture_attention, gate_heads
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Number, Numbers, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HEADS, MAX_LENGTH, MAX_SAMPLES, MAX_VOCAB = 8, 24, 512, 256
"""With larger numbers, the page would be heavy and the maps small."""

ALL_SUBSETS = 4
"""For up to this many heads the table has all subsets; for more heads, only single heads."""


class AblationLab(Explorer):
    """Switches for the heads of trained models, and the share of answers that stay right without them.

    A model embeds tokens, adds positions, attends once, and computes its answers with a linear read-out:
    `model.read_out(model.attention(x, x, x)[0])` with `x = model.positions(model.embedding(tokens))`. The
    browser computes all of it from the weights, for every token of a fixed test batch.

    Args:
        models: a trained model, or several that differ in the number of heads, 1 to 8 each. A model has
            `embedding` (an `nn.Embedding`), `positions` (adds a vector to each position), `attention` (a
            `MultiHeadAttention`) and `read_out` (an `nn.Linear` to one logit for each task and token).
        tokens: the test batch, int64 (samples, len), at most (512, 24).
        targets: right answers, int64 (samples, len, tasks).
        tasks: name of each task.
        num_heads: which of the models is shown; default the first model.
        gates: one number for each head: 0 switches it off, 1 leaves it on; default all 1.
        sample: the sequence whose maps and answers are shown.
        keep: the challenge at the top is met when at least two heads are off and all answers are right in at
            least this share of the places.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: sizes do not fit, a model computes something else, or an argument is outside its range.

    Example:
        >>> from mha_lib import LearnedPositionalEncoding
        >>> from mha_lib.data import pointer_batch
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
    gates = Numbers(None, 0, 1).tag(in_repr=False)
    sample = Whole(0, 0, MAX_SAMPLES - 1).tag(in_repr=False)
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
        check_type("tasks", tasks, Sequence)
        self._tasks = list(tasks)
        if isinstance(tasks, str) or not all(isinstance(name, str) for name in tasks):
            raise TypeError(f"tasks must be a sequence of str, got {tasks!r}")
        self._tokens, self._targets = _check_batch(tokens, targets, len(self._tasks))
        found = [
            _check_model(f"models[{index}]", model, self._tokens, len(self._tasks))
            for index, model in enumerate(listed)
        ]
        self._models = {model.attention.num_heads: model for model in found}
        self._tables: dict[int, Tensor] = {}
        if not found or len(self._models) < len(found):
            raise ValueError(
                "models must hold at least one model, and their numbers of heads must differ, "
                f"got {[model.attention.num_heads for model in found]}"
            )
        self.set_trait(
            "models",
            [{"num_heads": n, **_state(model)} for n, model in self._models.items()],
        )
        self.set_trait(
            "batch",
            {
                "samples": len(self._tokens),
                "length": self._tokens.shape[1],
                "tasks": self._tasks,
                "tokens": _bytes_to_base64(self._tokens),
                "targets": _bytes_to_base64(self._targets),
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
        if proposal.value not in self._models:
            raise TraitValueError(
                f"num_heads must be one of {list(self._models)}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.validate("gates")
    def _check_gates(self, proposal: t.Bunch) -> list[float]:
        gates: list[float] = proposal.value
        if len(gates) != self.num_heads or not set(gates) <= {0.0, 1.0}:
            raise TraitValueError(
                f"gates must hold {self.num_heads} numbers, each 0 or 1, got {gates}"
            )
        return gates

    @t.validate("sample")
    def _check_sample(self, proposal: t.Bunch) -> int:
        last = len(self._tokens) - 1
        if proposal.value > last:
            raise TraitValueError(f"sample must lie in 0..{last}, got {proposal.value}")
        return int(proposal.value)

    @t.observe("num_heads")
    def _fit_gates(self, change: t.Bunch) -> None:
        # All heads are on, unless the gates were set together with the number of heads.
        if len(self.gates) != change.new:
            self.gates = [1.0] * change.new

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        num_heads, sample = state.num_heads, state.sample
        model = self._models[num_heads]
        now = torch.tensor(state.gates, dtype=torch.float64)
        answers = self._answers(model, now)
        if num_heads not in self._tables:
            # The table is cached: no gate and no sample changes it, and each row takes a run of the model.
            self._tables[num_heads] = torch.stack(
                [
                    self._accuracy(self._answers(model, row))
                    for row in _subsets(num_heads)
                ]
            )
        with capture_attention(model) as captured, torch.no_grad():
            model(self._tokens[sample : sample + 1])
        return {
            "accuracy": self._accuracy(answers),
            "subsets": self._tables[num_heads],
            "answers": answers[sample].T,  # (tasks, len)
            "maps": captured["attention"][0],
        }

    def _answers(self, model: _PointerModel, gates: Tensor) -> Tensor:
        """The answers with the heads gated, (samples, len, tasks)."""
        with gate_heads(model.attention, gates), torch.no_grad():
            answers: Tensor = model(self._tokens).argmax(-1)
        return answers

    def _accuracy(self, answers: Tensor) -> Tensor:
        """The accuracy, for each task and for all tasks at once: (tasks + 1,)."""
        right = answers == self._targets
        at_once = right.all(-1).double().mean()
        return torch.cat((right.double().mean((0, 1)), at_once[None]))

    def figure(self) -> Figure:
        """The maps of the heads for the chosen sequence, and the accuracies with the present gates."""
        from mha_lib import plots

        numbers = self.numbers()
        titles = [
            f"head {head}" + ("" if gate else ", off")
            for head, gate in enumerate(self.gates)
        ]
        figure = plots.plot_weights(
            numbers["maps"],
            query_labels=[str(token) for token in self._tokens[self.sample].tolist()],
            values=False,
            titles=titles,
        )
        shares = zip([*self._tasks, "all"], numbers["accuracy"].tolist(), strict=True)
        figure.suptitle(
            "accuracy: " + ", ".join(f"{name} {share:.3f}" for name, share in shares)
        )
        return figure

    def _details(self) -> list[str]:
        off = [head for head, gate in enumerate(self.gates) if gate == 0]
        return [f"off={off}", f"samples={len(self._tokens)}"]


class _PointerModel(nn.Module):
    """A copy of a model as the browser computes it: weights in float32, arithmetic in float64."""

    def __init__(self, model: nn.Module, length: int, num_tasks: int) -> None:
        super().__init__()
        # `_check_model` has checked that these parts exist.
        copied: Any = copy.deepcopy(model).double().eval().requires_grad_(False)
        self.embedding: Tensor = copied.embedding.weight
        width = self.embedding.shape[1]
        # For zeros, the module returns what it adds to every token.
        self.positions: Tensor = (
            copied.positions(torch.zeros(1, length, width, dtype=torch.float64))[0]
            .float()
            .double()
        )
        self.attention: MultiHeadAttention = copied.attention
        self.read_out: nn.Linear = copied.read_out
        self.classes = self.read_out.out_features // num_tasks

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding[tokens] + self.positions
        output, _ = self.attention(x, x, x)
        logits: Tensor = self.read_out(output).unflatten(-1, (-1, self.classes))
        return logits


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
        raise ValueError(
            f"tokens must have shape (samples, len), at most ({MAX_SAMPLES}, {MAX_LENGTH}), got {sizes}"
        )
    wanted = (*sizes, num_tasks)
    if tuple(targets.shape) != wanted or num_tasks == 0:
        raise ValueError(
            f"targets must have shape (samples, len, tasks) = {wanted}, got {tuple(targets.shape)}"
        )
    for name, tensor in (("tokens", tokens), ("targets", targets)):
        if tensor.min() < 0 or tensor.max() >= MAX_VOCAB:
            raise ValueError(
                f"{name} must lie in 0..{MAX_VOCAB - 1}, got {int(tensor.min())}..{int(tensor.max())}"
            )
    return tokens.clone(), targets.clone()


def _check_model(
    name: str, model: nn.Module, tokens: Tensor, num_tasks: int
) -> _PointerModel:
    check_type(name, model, nn.Module)
    parts = {
        "embedding": nn.Embedding,
        "positions": nn.Module,
        "attention": MultiHeadAttention,
        "read_out": nn.Linear,
    }
    for part, kind in parts.items():
        check_type(f"{name}.{part}", getattr(model, part, None), kind)
    assert isinstance(model.embedding, nn.Embedding)
    assert isinstance(model.attention, MultiHeadAttention)
    assert isinstance(model.read_out, nn.Linear)
    attention = model.attention
    counts = (attention.num_heads, attention.num_kv_heads)
    if not counts[0] == counts[1] <= MAX_HEADS:
        raise ValueError(
            f"{name}.attention must have at most {MAX_HEADS} heads, each with keys of its own, got {counts}"
        )
    if attention.score is not None or attention.rotary is not None:
        raise ValueError(
            f"{name}.attention must use the scaled dot product alone, got {attention}"
        )
    if model.read_out.out_features % num_tasks:
        raise ValueError(
            f"{name}.read_out must give the same number of logits for each of {num_tasks} tasks, "
            f"got {model.read_out.out_features}"
        )
    if int(tokens.max()) >= model.embedding.num_embeddings:
        raise ValueError(
            f"tokens must lie below {name}'s {model.embedding.num_embeddings} tokens, got {int(tokens.max())}"
        )
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise TypeError(f"{name} must have float32 parameters")
    seen = _PointerModel(model, tokens.shape[1], num_tasks)
    x = seen.embedding[tokens] + seen.positions
    with torch.no_grad():
        wanted: Any = copy.deepcopy(model).double().eval()
        theirs = wanted.positions(wanted.embedding(tokens))
    if theirs.shape != x.shape or not torch.allclose(theirs, x, atol=1e-6):
        raise ValueError(f"{name}.positions must add one vector to each position")
    return seen


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


def _state(model: _PointerModel) -> dict[str, Any]:
    """The state for the browser: the weights in float32, exact, as base64."""
    tensors: Mapping[str, Tensor | None] = {
        "embedding": model.embedding,
        "positions": model.positions,
        **dict(model.attention.named_parameters()),
        "read_out.weight": model.read_out.weight,
        "read_out.bias": model.read_out.bias,
    }
    return {
        "embed_dim": model.embedding.shape[1],
        "weights": {
            name: base64.b64encode(
                tensor.float().numpy().astype("<f4").tobytes()
            ).decode("ascii")
            for name, tensor in tensors.items()
            if tensor is not None
        },
    }


def _bytes_to_base64(numbers: Tensor) -> str:
    return base64.b64encode(numbers.to(torch.uint8).numpy().tobytes()).decode("ascii")
