"""The head explorer: a slider for the number of heads, and everything that depends on it."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib._checks import check_type
from mha_lib.attention import attention_pooling
from mha_lib.experiments import load_experiment
from mha_lib.masking import build_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.scores import scaled_dot_product_score
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Flag, Text, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TOKENS, MAX_EMBED_DIM = 256, 128
"""With larger numbers, the slider would lag, and the data would make the page heavy."""

MAX_MARKED = 1024
"""If all small maps together have more numbers, the page keeps only those of the large map."""

MAX_LABELLED = 24
"""A figure with more tokens omits their labels."""

STAGES = {
    "scores": "scaled score",
    "masked": "masked score",
    "weights": "weight",
    "output": "output",
}
"""What the maps can show, and the name of one of their numbers."""

VIEWS = ("one", "both", "difference")
"""What the large map shows: one head, two heads side by side, or their difference."""


StoredModel = tuple[str, str, int]
"""A model that an experiment has kept: the experiment, the arm and the seed."""


@dataclass(frozen=True, eq=False)
class _Task:
    """What stored models were trained for, and how they answer."""

    names: tuple[str, ...]
    words: tuple[str, ...]
    targets: Tensor  # (len, tasks), -1 where nothing is asked
    measure: str
    shares: Mapping[int | None, float]  # right answers on new data
    read_outs: Mapping[int | None, tuple[Tensor, Tensor]]
    """(tasks * words, embed_dim) and (tasks * words,): from the heads, side by side, to the logits."""

    @property
    def asked(self) -> list[int]:
        """The places where a model is asked something."""
        places: list[int] = (self.targets >= 0).any(1).nonzero().flatten().tolist()
        return places


@dataclass(frozen=True, eq=False)
class _Source:
    """Where a program finds the weights of an example again."""

    models: Mapping[int | None, StoredModel]
    tokens: Tensor  # (len,)
    positions: bool


@dataclass(frozen=True, eq=False)
class HeadExample:
    """One choice in the menu of a `HeadExplorer`: a short sequence and the layers that attend within it.

    With one layer, the explorer divides the same projections into every number of heads that divides their
    width. With a mapping, it shows for each number of heads the layer that was trained with it.

    Args:
        label: text in the menu, unique within a widget.
        tokens: len labels, 1 to 256. The large map has a cell for each number, a pixel beyond 24 tokens.
        x: (len, embed_dim), the query, key and value of the layer; a mapping if layers have different inputs.
        layers: a `MultiHeadAttention`, or a mapping from the number of heads to a layer.
        note: a sentence below the menu that says what to look for; `code` and *emphasis* are allowed.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: sizes do not fit, there are too many tokens or numbers, or a layer shares its key heads.

    Example:
        >>> layer = MultiHeadAttention(embed_dim=6, num_heads=2)
        >>> HeadExample("three words", ["a", "b", "c"], torch.ones(3, 6), layer).head_counts
        (1, 2, 3, 6)
    """

    label: str
    tokens: Sequence[str]
    x: Tensor | Mapping[int, Tensor]
    layers: MultiHeadAttention | Mapping[int, MultiHeadAttention]
    note: str = ""
    _task: _Task | None = field(default=None, init=False, repr=False)
    _source: _Source | None = field(default=None, init=False, repr=False)

    @classmethod
    def stored(
        cls,
        label: str,
        models: StoredModel | Mapping[int, StoredModel],
        tokens: Tensor,
        words: Sequence[str],
        *,
        note: str = "",
        tasks: Sequence[str] = (),
        targets: Tensor | None = None,
        measure: str = "",
        positions: bool = True,
    ) -> HeadExample:
        """An example from models that experiments have stored, with what they answer.

        A model embeds tokens, adds positions, attends once, and computes its answers with a linear read-out.
        The program under "These settings as Python" then names the stored models instead of holding numbers.

        Args:
            label: text in the menu.
            models: (experiment, arm, seed) of a stored model, or a mapping from the number of heads to it.
            tokens: (len,) int64, what the models read.
            words: the text of each token of the vocabulary.
            note: a sentence below the menu.
            tasks: name of each answer that the models give at a place, if `models` is a mapping; default
                none, then nothing is said about answers.
            targets: (len, tasks) int64, the right answers; -1 where nothing is asked.
            measure: the result of the experiment that says how often the answers are right.
            positions: whether positions are added to the tokens.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: sizes do not fit, or an experiment has no such model or measure.
            FileNotFoundError: an experiment has stored nothing.

        Example:
            >>> models = {n: ("two_pointers", f"linear, {n} heads", 0) for n in (2, 4)}
            >>> example = HeadExample.stored("pointers", models, torch.arange(8), list("01234567"))
            >>> example.tokens, example.head_counts
            (['0', '1', '2', '3', '4', '5', '6', '7'], (2, 4))
        """
        is_mapping = isinstance(models, Mapping)
        entries: Any = models if is_mapping else {None: models}
        _check_stored(entries, tokens, words, tasks, targets, measure)
        check_type("positions", positions, bool)
        layers: dict[int | None, MultiHeadAttention] = {}
        inputs: dict[int | None, Tensor] = {}
        read_outs: dict[int | None, tuple[Tensor, Tensor]] = {}
        shares: dict[int | None, float] = {}
        for count, (name, arm, seed) in entries.items():
            experiment = load_experiment(name)
            state = experiment.state(arm, seed)
            x = state["embedding.weight"][tokens]
            inputs[count] = (
                x + state["positions.encoding"][: len(x)] if positions else x
            )
            layers[count] = layer = _layer_of(state, count)
            if tasks:
                shares[count] = float(experiment.results(arm, measure)[seed])
                read_outs[count] = _read_out_of(layer, state, len(tasks) * len(words))
        texts = [words[token] for token in tokens.tolist()]
        if not is_mapping:
            example = cls(label, texts, inputs[None], layers[None], note)
        else:
            example = cls(label, texts, inputs, layers, note)  # type: ignore[arg-type]
        object.__setattr__(example, "_source", _Source(entries, tokens, positions))
        if tasks:
            assert targets is not None
            task = _Task(
                tuple(tasks), tuple(words), targets, measure, shares, read_outs
            )
            object.__setattr__(example, "_task", task)
        return example

    def __post_init__(self) -> None:
        for name in ("label", "note"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a str, got {getattr(self, name)!r}")
        if not self.label:
            raise ValueError("label must not be empty, got ''")
        check_type("tokens", self.tokens, Sequence)
        if isinstance(self.tokens, str) or not all(
            isinstance(token, str) for token in self.tokens
        ):
            raise TypeError(f"tokens must be a sequence of str, got {self.tokens!r}")
        if not 1 <= len(self.tokens) <= MAX_TOKENS:
            raise ValueError(
                f"tokens must hold 1 to {MAX_TOKENS} labels, got {len(self.tokens)}"
            )
        layers = (
            self.layers if isinstance(self.layers, Mapping) else {None: self.layers}
        )
        if not layers:
            raise ValueError(
                "layers must hold at least one layer, got an empty mapping"
            )
        if isinstance(self.x, Mapping) and set(self.x) != set(layers):
            raise ValueError(
                f"x must have the keys of layers, {list(layers)}, got {list(self.x)}"
            )
        widths = {
            layer.embed_dim
            for layer in layers.values()
            if isinstance(layer, MultiHeadAttention)
        }
        if len(widths) > 1:
            raise ValueError(
                f"layers must have the same embed_dim, got {sorted(widths)}"
            )
        for num_heads, layer in layers.items():
            self._check_layer(num_heads, layer)

    def _check_layer(self, num_heads: int | None, layer: object) -> None:
        where = "layers" if num_heads is None else f"layers[{num_heads!r}]"
        if not isinstance(layer, MultiHeadAttention):
            raise TypeError(
                f"{where} must be a MultiHeadAttention, got {type(layer).__name__}"
            )
        if num_heads is not None and layer.num_heads != num_heads:
            raise ValueError(
                f"{where} must have num_heads={num_heads}, got {layer.num_heads}"
            )
        if layer.num_kv_heads != layer.num_heads:
            counts = f"num_kv_heads={layer.num_kv_heads}, num_heads={layer.num_heads}"
            raise ValueError(
                f"{where} must have as many key heads as query heads, got {counts}"
            )
        if layer.num_heads * layer.head_dim != layer.embed_dim:
            counts = f"num_heads={layer.num_heads}, head_dim={layer.head_dim}"
            raise ValueError(
                f"{where} must fill embed_dim={layer.embed_dim} with its heads, got {counts}"
            )
        if not layer.embed_dim == layer.kdim == layer.vdim:
            sizes = (layer.embed_dim, layer.kdim, layer.vdim)
            raise ValueError(
                f"{where} must have equal embed_dim, kdim and vdim, got {sizes}"
            )
        if layer.embed_dim > MAX_EMBED_DIM:
            raise ValueError(
                f"{where} must have embed_dim of at most {MAX_EMBED_DIM}, got {layer.embed_dim}"
            )
        x = (
            self.x[num_heads]
            if isinstance(self.x, Mapping) and num_heads is not None
            else self.x
        )
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
        if x.dtype != layer.q_proj.weight.dtype:
            raise TypeError(
                f"x must have the dtype of its layer, {layer.q_proj.weight.dtype}, got {x.dtype}"
            )
        if x.shape != (len(self.tokens), layer.embed_dim):
            shape = f"(len={len(self.tokens)}, embed_dim={layer.embed_dim})"
            raise ValueError(f"x must have shape {shape}, got {tuple(x.shape)}")
        if not x.isfinite().all():
            raise ValueError("x must be finite, got a NaN or an infinity")

    @property
    def embed_dim(self) -> int:
        """Width of the layers."""
        layers = self.layers if isinstance(self.layers, Mapping) else {0: self.layers}
        return next(iter(layers.values())).embed_dim

    @property
    def head_counts(self) -> tuple[int, ...]:
        """The numbers of heads where the slider stops, in order."""
        if isinstance(self.layers, Mapping):
            return tuple(sorted(self.layers))
        return tuple(
            count
            for count in range(1, self.embed_dim + 1)
            if self.embed_dim % count == 0
        )

    def layer(self, num_heads: int) -> MultiHeadAttention:
        """The layer with this number of heads: the trained one, or the only one, divided into so many heads.

        Raises:
            ValueError: there is no layer with `num_heads` heads.
        """
        if num_heads not in self.head_counts:
            raise ValueError(
                f"num_heads must be one of {self.head_counts}, got {num_heads}"
            )
        if isinstance(self.layers, Mapping):
            return self.layers[num_heads]
        layer = MultiHeadAttention(
            self.embed_dim, num_heads, bias=self.layers.q_proj.bias is not None
        )
        layer.to(self.layers.q_proj.weight)
        # The shapes of the projections do not depend on the number of heads, so the
        # weights fit as they are.
        layer.load_state_dict(self.layers.state_dict())
        return layer.eval()

    def input(self, num_heads: int) -> Tensor:
        """(1, len, embed_dim): the input of the layer with this number of heads."""
        return (self.x[num_heads] if isinstance(self.x, Mapping) else self.x).unsqueeze(
            0
        )

    def projected(self, num_heads: int) -> dict[str, Tensor]:
        """Query, key and value as the layer of `num_heads` heads projects them, each (1, len, embed_dim)."""
        layer, x = self.layer(num_heads), self.input(num_heads)
        with torch.no_grad():
            return {
                "query": layer.q_proj(x),
                "key": layer.k_proj(x),
                "value": layer.v_proj(x),
            }

    def _stages(
        self, num_heads: int, valid_len: int, is_causal: bool, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Every stage for all heads, from the float32 projections that the page has."""
        layer, length = self.layer(num_heads), len(self.tokens)
        query, key, value = (
            layer.split_heads(projected.float().to(dtype))[0]
            for projected in self.projected(num_heads).values()
        )
        lens = torch.tensor([valid_len])
        mask = build_mask(length, length, valid_lens=lens, is_causal=is_causal)
        assert mask is not None
        scores = scaled_dot_product_score(query, key)
        output, weights = attention_pooling(scores, value, mask.expand_as(scores))
        masked = scores.masked_fill(~mask, -math.inf)
        return {
            "scores": scores,
            "masked": masked,
            "weights": weights,
            "output": output,
        }

    def order(self, num_heads: int) -> tuple[int, ...]:
        """The heads from the sharpest to the most blurred: by their mean largest weight, without a mask.

        Args:
            num_heads: one of `head_counts`.

        Example:
            >>> models = {8: ("two_pointers", "linear, 8 heads", 0)}
            >>> HeadExample.stored("a", models, torch.arange(8), list("01234567")).order(8)[-1]
            7
        """
        stages = self._stages(num_heads, len(self.tokens), False, torch.float64)
        sharpness = stages["weights"].amax(-1).mean(-1)
        # Rounded, so that another processor's last digit does not change the order.
        ranks = [(-round(float(x), 4), head) for head, x in enumerate(sharpness)]
        return tuple(head for _, head in sorted(ranks))

    def _answers(self, num_heads: int, output: Tensor) -> Tensor | None:
        """What the model answers where it is asked: (tasks, asked), from the outputs of its heads."""
        if self._task is None:
            return None
        counts = self._task.read_outs
        weight, bias = counts[num_heads if num_heads in counts else None]
        merged = output.transpose(0, 1).flatten(1)[self._task.asked]
        logits = merged @ weight.to(merged).T + bias.to(merged)
        answers: Tensor = logits.unflatten(-1, (len(self._task.names), -1)).argmax(-1)
        return answers.T

    def state(self) -> dict[str, Any]:
        """The state for the browser: tokens and the projections q, k, v in float32."""
        groups = (
            [(n,) for n in self.head_counts]
            if isinstance(self.layers, Mapping)
            else [self.head_counts]
        )
        versions = []
        for head_counts in groups:
            projected = self.projected(head_counts[-1])
            numbers = {name: _to_base64(tensor) for name, tensor in projected.items()}
            count = head_counts[0] if isinstance(self.layers, Mapping) else None
            versions.append(
                {
                    "num_heads": list(head_counts),
                    "orders": [list(self.order(n)) for n in head_counts],
                    "parameters": _num_parameters(self.layer(head_counts[-1])),
                    **numbers,
                    **self._stored_state(count),
                }
            )
        state = {
            "label": self.label,
            "note": self.note,
            "tokens": list(self.tokens),
            "embed_dim": self.embed_dim,
            "versions": versions,
        }
        if self._source is not None:
            state["ids"] = self._source.tokens.tolist()
            state["positions"] = self._source.positions
        if self._task is not None:
            state["task"] = {
                "names": list(self._task.names),
                "words": list(self._task.words),
                "targets": self._task.targets.T.tolist(),
                "measure": self._task.measure,
            }
        return state

    def _stored_state(self, count: int | None) -> dict[str, Any]:
        """What the state of one version holds about its stored model."""
        stored: dict[str, Any] = {}
        if self._source is not None:
            stored["model"] = list(self._source.models[count])
        if self._task is not None:
            weight, bias = self._task.read_outs[count]
            stored["share"] = self._task.shares[count]
            stored["read_out"] = _to_base64(weight)
            stored["read_out_bias"] = _to_base64(bias)
        return stored


def _check_stored(
    models: Mapping[Any, Any],
    tokens: Tensor,
    words: Sequence[str],
    tasks: Sequence[str],
    targets: Tensor | None,
    measure: str,
) -> None:
    for count, model in models.items():
        name = "models" if count is None else f"models[{count!r}]"
        fits = isinstance(model, tuple) and [type(part) for part in model] == [
            str,
            str,
            int,
        ]
        if not fits:
            raise TypeError(f"{name} must be (experiment, arm, seed), got {model!r}")
    if not models:
        raise ValueError("models must hold at least one model, got an empty mapping")
    for name, texts in (("words", words), ("tasks", tasks)):
        check_type(name, texts, Sequence)
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{name} must be a sequence of str, got {texts!r}")
    check_type("tokens", tokens, Tensor)
    if tokens.dtype != torch.int64 or tokens.ndim != 1:
        raise ValueError(
            f"tokens must be int64 of shape (len,), got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    if not ((tokens >= 0) & (tokens < len(words))).all():
        raise ValueError(
            f"tokens must lie in 0..{len(words) - 1}, got {tokens.tolist()}"
        )
    check_type("measure", measure, str)
    if not tasks:
        return
    if None in models:
        raise ValueError(
            f"models must be a mapping where tasks are given, got {models[None]!r}"
        )
    check_type("targets", targets, Tensor)
    assert targets is not None
    wanted = (len(tokens), len(tasks))
    if targets.dtype != torch.int64 or tuple(targets.shape) != wanted:
        raise ValueError(
            f"targets must be int64 of shape (len, tasks) = {wanted}, "
            f"got {targets.dtype} of shape {tuple(targets.shape)}"
        )
    if not ((targets >= -1) & (targets < len(words))).all() or (targets < 0).all():
        raise ValueError(
            f"targets must lie in -1..{len(words) - 1}, and not all be -1, got {targets.tolist()}"
        )


def _layer_of(state: Mapping[str, Tensor], num_heads: int | None) -> MultiHeadAttention:
    """The attention layer of a stored model; `num_heads` of None means one head until it is divided."""
    weights = {
        name.removeprefix("attention."): part
        for name, part in state.items()
        if name.startswith("attention.")
    }
    width = state["embedding.weight"].shape[1]
    bias = "q_proj.bias" in weights
    layer = MultiHeadAttention(width, num_heads or 1, bias=bias)
    layer.load_state_dict(weights)
    return layer.requires_grad_(False).eval()


def _read_out_of(
    layer: MultiHeadAttention, state: Mapping[str, Tensor], rows: int
) -> tuple[Tensor, Tensor]:
    """The output projection and the read-out as one map, in float32: all that the page needs."""
    weight, bias = (state[f"read_out.{part}"].double() for part in ("weight", "bias"))
    if len(weight) != rows:
        raise ValueError(
            f"words and tasks must give the read-out's {len(weight)} answers, got {rows}"
        )
    if layer.out_proj.bias is not None:
        bias = bias + weight @ layer.out_proj.bias.double()
    return (weight @ layer.out_proj.weight.double()).float(), bias.float()


def _num_parameters(layer: MultiHeadAttention) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def _to_base64(tensor: Tensor) -> str:
    """Float32 numbers as base64 of their little-endian bytes: exact, and half as long as decimal text."""
    return base64.b64encode(
        tensor.float().cpu().numpy().astype("<f4").tobytes()
    ).decode("ascii")


class HeadExplorer(Explorer):
    """A slider over the number of heads, with live maps of every head: scores, mask, weights, output.

    All numbers are computed in the browser from the projections that torch made, so the widget also works in
    a page without a kernel. With a kernel the traits can be read, set and observed from Python.

    Args:
        examples: one or more `HeadExample`, the choices of the menu.
        example: label of the example shown; default the first.
        num_heads: number of heads; default that of the layer, or the smallest above 1 of several layers.
        valid_len: how many tokens are visible, as `valid_lens` of a batch of one; default all.
        is_causal: hide the later keys from each query.
        stage: "scores", "masked", "weights" or "output".
        head: index of the head in the large map; default the sharpest head, and so after each change of
            `num_heads`.
        view: "one" head, "both" heads side by side, or the "difference" of the two, as |a - b|.
        other: index of the second head; default the sharpest head other than `head`.
        compact: show only `num_heads` and the maps, for a small space.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range; `num_heads` must divide the `embed_dim` of the example.

    Example:
        >>> layer = MultiHeadAttention(embed_dim=8, num_heads=2)
        >>> explorer = HeadExplorer([HeadExample("three words", ["a", "b", "c"], torch.ones(3, 8), layer)])
        >>> explorer
        HeadExplorer(example='three words', num_heads=2, head_dim=4)
        >>> explorer.num_heads = 4
        >>> explorer.weights().shape
        torch.Size([4, 3, 3])
    """

    _module: ClassVar[str] = "head_explorer.js"

    examples = t.List(t.Dict(), read_only=True).tag(sync=True)
    example = Text(None)
    num_heads = Whole(None, 1, MAX_EMBED_DIM)
    valid_len = Whole(None, 0, MAX_TOKENS).tag(in_repr=False)
    is_causal = Flag(False).tag(in_repr=False)
    stage = Choice("weights", list(STAGES)).tag(in_repr=False)
    head = Whole(None, 0, MAX_EMBED_DIM - 1).tag(in_repr=False)
    view = Choice("one", VIEWS).tag(in_repr=False)
    other = Whole(None, 0, MAX_EMBED_DIM - 1).tag(in_repr=False)
    compact = Flag(False).tag(setting=False)

    def __init__(
        self, examples: Sequence[HeadExample], *, compact: bool = False, **settings: Any
    ) -> None:
        check_type("examples", examples, Sequence)
        for index, entry in enumerate(examples):
            if not isinstance(entry, HeadExample):
                raise TypeError(
                    f"examples[{index}] must be a HeadExample, got {type(entry).__name__}"
                )
        self._examples = {entry.label: entry for entry in examples}
        self._orders: dict[tuple[str, int], tuple[int, ...]] = {}
        self._received: frozenset[str] = frozenset()
        if not examples or len(self._examples) < len(examples):
            labels = [entry.label for entry in examples]
            raise ValueError(
                f"examples must hold at least one entry, and labels must differ, got {labels}"
            )
        self.compact = compact
        self.set_trait("examples", [entry.state() for entry in examples])
        super().__init__(**settings)

    @t.default("example")
    def _default_example(self) -> str:
        return next(iter(self._examples))

    @t.default("num_heads")
    def _default_num_heads(self) -> int:
        example = self._examples[self.example]
        if isinstance(example.layers, MultiHeadAttention):
            return example.layers.num_heads
        counts = example.head_counts
        return next((count for count in counts if count > 1), counts[0])

    @t.default("valid_len")
    def _default_valid_len(self) -> int:
        return len(self._examples[self.example].tokens)

    @t.default("head")
    def _default_head(self) -> int:
        return self._order()[0]

    @t.default("other")
    def _default_other(self) -> int:
        return self._another(self.head)

    def _order(self) -> tuple[int, ...]:
        """The heads of the present layer, the sharpest first; computed once for each layer."""
        place = (self.example, self.num_heads)
        if place not in self._orders:
            self._orders[place] = self._examples[self.example].order(self.num_heads)
        return self._orders[place]

    def _another(self, head: int) -> int:
        """The sharpest head that is not `head`; `head` itself if there is only one."""
        return next((other for other in self._order() if other != head), head)

    @property
    def head_dim(self) -> int:
        """Width of one head, embed_dim / num_heads."""
        width = self._examples[self.example].embed_dim
        return width // int(self.num_heads)

    @t.validate("example")
    def _check_example(self, proposal: t.Bunch) -> str:
        if proposal.value not in self._examples:
            raise TraitValueError(
                f"example must be one of {list(self._examples)}, got {proposal.value!r}"
            )
        return str(proposal.value)

    @t.validate("num_heads")
    def _check_num_heads(self, proposal: t.Bunch) -> int:
        example = self._examples[self.example]
        if proposal.value not in example.head_counts:
            raise TraitValueError(
                f"num_heads must divide embed_dim={example.embed_dim} and be one of {example.head_counts}, "
                f"got {proposal.value!r}"
            )
        return int(proposal.value)

    @t.validate("valid_len", "head", "other")
    def _check_range(self, proposal: t.Bunch) -> int:
        name = proposal.trait.name
        length = len(self._examples[self.example].tokens)
        top = length if name == "valid_len" else self.num_heads - 1
        if proposal.value > top:
            raise TraitValueError(f"{name} must lie in 0..{top}, got {proposal.value}")
        return int(proposal.value)

    @t.observe("example")
    def _fit_to_example(self, change: t.Bunch) -> None:
        """Choose the nearest setting that the new example has; all tokens stay visible if they were."""
        counts, length = (
            self._examples[change.new].head_counts,
            len(self._examples[change.new].tokens),
        )
        if self.num_heads not in counts:
            self.num_heads = max(
                (count for count in counts if count < self.num_heads), default=counts[0]
            )
        before = self._examples.get(change.old)
        all_visible = before is not None and self.valid_len == len(before.tokens)
        self.valid_len = length if all_visible else min(self.valid_len, length)
        self._choose_sharpest()

    @t.observe("num_heads")
    def _fit_to_num_heads(self, _: t.Bunch) -> None:
        self._choose_sharpest()

    def _choose_sharpest(self) -> None:
        """Show the two sharpest heads, unless the browser has sent its own choice with the change."""
        if "head" not in self._received:
            self.head, self.other = self._order()[0], self._another(self._order()[0])

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take traits from the browser, all at once."""
        self._received = frozenset(sync_data)
        try:
            super().set_state(sync_data)
        finally:
            self._received = frozenset()

    def weights(self) -> Tensor:
        """Attention weights of the present state, from the torch layer itself: (num_heads, len, len)."""
        example = self._examples[self.example]
        layer, x = example.layer(self.num_heads), example.input(self.num_heads)
        lens = torch.tensor([self.valid_len])
        with torch.no_grad():
            weights: Tensor = layer(x, x, x, valid_lens=lens, is_causal=self.is_causal)[
                1
            ]
        return weights[0]

    def shown(self) -> Tensor:
        """What the maps show, from torch: (num_heads, len, len), for "output" (num_heads, len, head_dim).

        The score of a hidden key is -inf.
        """
        example = self._examples[self.example]
        stages = example._stages(
            self.num_heads, self.valid_len, self.is_causal, torch.float32
        )
        return stages[self.stage]

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        example, num_heads = self._examples[state.example], state.num_heads
        stages = example._stages(
            num_heads, state.valid_len, state.is_causal, torch.float64
        )
        layer = example.layer(num_heads)
        shown, view = stages[state.stage], state.view
        first, second = shown[state.head], shown[state.other]
        numbers = {
            "head_dim": torch.tensor(layer.head_dim),
            "parameters": torch.tensor(_num_parameters(layer)),
            "table": first,
        }
        if view != "one":
            # Both are -inf at the same places, where their difference would be NaN.
            seen = first.isfinite()
            difference = torch.where(seen, (first - second).abs(), -math.inf)
            apart = difference[seen] if seen.any() else torch.zeros(1)
            numbers |= {"max_difference": apart.max(), "mean_difference": apart.mean()}
            numbers |= (
                {"other_table": second} if view == "both" else {"table": difference}
            )
        answers = example._answers(num_heads, stages["output"])
        if answers is not None and example._task is not None:
            numbers["answers"] = answers
            shares = [share for _, share in sorted(example._task.shares.items())]
            numbers["shares"] = torch.tensor(shares, dtype=torch.float64)
        if shown.numel() <= MAX_MARKED:
            numbers["shown"] = shown
        return numbers

    def figure(self) -> Figure:
        """The maps of all heads in the present state, as a matplotlib Figure."""
        # Imported here, so that importing the widgets does not load matplotlib.
        from mha_lib import plots

        maps = self.shown()
        finite = maps[maps.isfinite()]
        # Scores and outputs are signed, whatever their signs happen to be.
        high = float(finite.abs().max()) if finite.numel() else 0.0
        high = high or 1.0
        low = 0.0 if self.stage == "weights" else -high
        tokens = list(self._examples[self.example].tokens)
        is_output, labelled = (
            self.stage == "output",
            self.num_heads <= 8 and len(tokens) <= MAX_LABELLED,
        )
        figure = plots.plot_weights(
            maps,
            query_labels=tokens if labelled else None,
            key_labels=tokens if labelled and not is_output else None,
            columns=4 if labelled else 8,
            values=False,
            vmin=low,
            vmax=high,
            colorbar_label=STAGES[self.stage],
        )
        for axis in figure.axes:
            if is_output and axis.get_xlabel():
                axis.set_xlabel("output", color=plots.VALUE)
        figure.suptitle(f"num_heads={self.num_heads}, head_dim={self.head_dim}")
        return figure

    def _details(self) -> list[str]:
        return [f"head_dim={self.head_dim}"]
