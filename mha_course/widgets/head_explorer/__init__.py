"""The head explorer: a slider for the number of heads, and everything that depends on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
import traitlets as t
from torch import Tensor

from mha_course._checks import check_texts
from mha_course.experiments import load_experiment
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import (
    Choice,
    Flag,
    Text,
    TraitValueError,
    Whole,
    among,
    within,
)
from mha_course.widgets.packing import pack_all, unpack
from mha_lib._checks import check_type, refusal
from mha_lib.attention import attention_pooling
from mha_lib.masking import build_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.scores import scaled_dot_product_score

MAX_TOKENS, MAX_EMBED_DIM = 256, 128
"""With larger numbers, the slider would lag, and the data would make the page heavy."""

MAX_MARKED = 1024
"""If all small maps together have more numbers, the page stores only those of the large map."""

STAGES = ("scores", "masked", "weights", "output")
"""The stages that the maps can show."""

VIEWS = ("one", "both", "difference")
"""What the large map can show: one head, two heads side by side, or their difference."""


StoredModel = tuple[str, str, int]
"""A model that an experiment has stored: the experiment, the arm and the seed."""


@dataclass(frozen=True, eq=False)
class _Task:
    """The tasks that stored models were trained for, and how they answer."""

    names: tuple[str, ...]
    words: tuple[str, ...]
    targets: Tensor  # (len, tasks), -1 if there is no question
    measure: str
    shares: Mapping[int | None, float]  # shares of right answers on new data
    read_outs: Mapping[int | None, tuple[Tensor, Tensor]]
    """(tasks * words, embed_dim) and (tasks * words,): the map from the merged heads to the logits."""

    @property
    def asked(self) -> list[int]:
        """The positions at which a model has to answer."""
        places: list[int] = (self.targets >= 0).any(1).nonzero().flatten().tolist()
        return places


@dataclass(frozen=True, eq=False)
class _Source:
    """Where a program can find the weights of an example."""

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
        tokens: 1 to 256 labels. The large map shows each number as a cell or, beyond 24 tokens, as a pixel.
        x: (len, embed_dim), the query, key and value of the layer; a mapping if layers have different inputs.
        layers: a `MultiHeadAttention`, or a mapping from the number of heads to a layer.
        note: a sentence below the menu that says what to look for; `code` and *emphasis* are allowed.

    Raises:
        TypeError: an argument has the wrong type.
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
        """An example from models that experiments have stored, with their answers.

        A model embeds tokens, adds positions, attends once, and computes its answers with a linear read-out.
        The program under "These settings as Python" names the stored models instead of containing numbers.

        Args:
            label: text in the menu.
            models: (experiment, arm, seed) of a stored model, or a mapping from the number of heads to it.
            tokens: (len,) int64, the input of the models.
            words: the text of each token of the vocabulary.
            note: a sentence below the menu.
            tasks: name of each answer that the models give at a position, if `models` is a mapping; default
                none, and then no answers are shown.
            targets: (len, tasks) int64, the right answers; -1 if there is no question.
            measure: the result of the experiment that says how often the answers are right.
            positions: whether positions are added to the tokens.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: sizes do not fit, or an experiment has no such model or measure.
            FileNotFoundError: an experiment has no stored results.

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
        read = {
            count: _read_stored(count, model, tokens, positions)
            for count, model in entries.items()
        }
        texts = [words[token] for token in tokens.tolist()]
        x: Any = {count: model.x for count, model in read.items()}
        layers: Any = {count: model.layer for count, model in read.items()}
        if not is_mapping:
            x, layers = x[None], layers[None]
        example = cls(label, texts, x, layers, note)
        object.__setattr__(example, "_source", _Source(entries, tokens, positions))
        if tasks:
            assert targets is not None
            answers = _read_task(read, entries, tasks, words, measure)
            task = _Task(tuple(tasks), tuple(words), targets, measure, *answers)
            object.__setattr__(example, "_task", task)
        return example

    def __post_init__(self) -> None:
        for name in ("label", "note"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a str, got {getattr(self, name)!r}")
        if not self.label:
            raise ValueError("label must not be empty, got ''")
        check_texts("tokens", self.tokens)
        if not 1 <= len(self.tokens) <= MAX_TOKENS:
            raise refusal("tokens", f"hold 1 to {MAX_TOKENS} labels", len(self.tokens))
        layers = self._layers
        if not layers:
            raise refusal("layers", "hold at least one layer", "an empty mapping")
        if isinstance(self.x, Mapping) and set(self.x) != set(layers):
            raise refusal("x", f"have the keys of layers, {list(layers)}", list(self.x))
        widths = {
            layer.embed_dim
            for layer in layers.values()
            if isinstance(layer, MultiHeadAttention)
        }
        if len(widths) > 1:
            raise refusal("layers", "have the same embed_dim", sorted(widths))
        for num_heads, layer in layers.items():
            self._check_layer(num_heads, layer)

    def _check_layer(self, num_heads: int | None, layer: object) -> None:
        where = "layers" if num_heads is None else f"layers[{num_heads!r}]"
        if not isinstance(layer, MultiHeadAttention):
            raise TypeError(
                f"{where} must be a MultiHeadAttention, got {type(layer).__name__}"
            )
        if num_heads is not None and layer.num_heads != num_heads:
            raise refusal(where, f"have num_heads={num_heads}", layer.num_heads)
        if layer.num_kv_heads != layer.num_heads:
            counts = f"num_kv_heads={layer.num_kv_heads}, num_heads={layer.num_heads}"
            raise refusal(where, "have as many key heads as query heads", counts)
        if layer.num_heads * layer.head_dim != layer.embed_dim:
            counts = f"num_heads={layer.num_heads}, head_dim={layer.head_dim}"
            rule = f"fill embed_dim={layer.embed_dim} with its heads"
            raise refusal(where, rule, counts)
        if not layer.embed_dim == layer.kdim == layer.vdim:
            sizes = (layer.embed_dim, layer.kdim, layer.vdim)
            raise refusal(where, "have equal embed_dim, kdim and vdim", sizes)
        if layer.embed_dim > MAX_EMBED_DIM:
            rule = f"have embed_dim of at most {MAX_EMBED_DIM}"
            raise refusal(where, rule, layer.embed_dim)
        x = self.x if num_heads is None else self._x(num_heads)
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
        if x.dtype != layer.q_proj.weight.dtype:
            rule = f"x must have the dtype of its layer, {layer.q_proj.weight.dtype}"
            raise TypeError(f"{rule}, got {x.dtype}")
        if x.shape != (len(self.tokens), layer.embed_dim):
            shape = f"(len={len(self.tokens)}, embed_dim={layer.embed_dim})"
            raise refusal("x", f"have shape {shape}", x)
        if not x.isfinite().all():
            raise ValueError("x must be finite, got a NaN or an infinity")

    @property
    def _layers(self) -> Mapping[Any, MultiHeadAttention]:
        """The layers by number of heads; by None if there is only one, which is to be divided."""
        return self.layers if isinstance(self.layers, Mapping) else {None: self.layers}

    def _x(self, num_heads: int) -> Tensor:
        return self.x[num_heads] if isinstance(self.x, Mapping) else self.x

    @property
    def embed_dim(self) -> int:
        """Width of the layers."""
        return next(iter(self._layers.values())).embed_dim

    @property
    def head_counts(self) -> tuple[int, ...]:
        """The numbers of heads at which the slider stops, in order."""
        if isinstance(self.layers, Mapping):
            return tuple(sorted(self.layers))
        width = self.embed_dim
        return tuple(count for count in range(1, width + 1) if width % count == 0)

    def layer(self, num_heads: int) -> MultiHeadAttention:
        """The layer with this number of heads: a trained one, or the only one, divided accordingly.

        Raises:
            ValueError: there is no layer with `num_heads` heads.
        """
        if num_heads not in self.head_counts:
            raise refusal("num_heads", f"be one of {self.head_counts}", num_heads)
        if isinstance(self.layers, Mapping):
            return self.layers[num_heads]
        layer = MultiHeadAttention(
            self.embed_dim, num_heads, bias=self.layers.q_proj.bias is not None
        )
        layer.to(self.layers.q_proj.weight)
        # The shapes of the projections do not depend on the number of heads, so the
        # weights fit unchanged.
        layer.load_state_dict(self.layers.state_dict())
        return layer.eval()

    def input(self, num_heads: int) -> Tensor:
        """(1, len, embed_dim): the input of the layer with this number of heads."""
        return self._x(num_heads).unsqueeze(0)

    def projected(self, num_heads: int) -> dict[str, Tensor]:
        """Query, key and value, each (1, len, embed_dim), from the layer with `num_heads` heads."""
        layer, x = self.layer(num_heads), self.input(num_heads)
        with torch.no_grad():
            return {
                "query": layer.q_proj(x),
                "key": layer.k_proj(x),
                "value": layer.v_proj(x),
            }

    def order(self, num_heads: int) -> tuple[int, ...]:
        """The heads from the sharpest to the most blurred, by their mean largest weight without a mask.

        Args:
            num_heads: one of `head_counts`.

        Example:
            >>> models = {8: ("two_pointers", "linear, 8 heads", 0)}
            >>> HeadExample.stored("a", models, torch.arange(8), list("01234567")).order(8)[-1]
            7
        """
        layer, projected = self.layer(num_heads), self.projected(num_heads)
        query, key = (
            layer.split_heads(projected[name].double()) for name in ("query", "key")
        )
        weights = scaled_dot_product_score(query, key)[0].softmax(-1)
        sharpness = weights.amax(-1).mean(-1)
        # Rounded, so that the order does not depend on last digits, which differ between processors.
        ranks = [(-round(float(x), 4), head) for head, x in enumerate(sharpness)]
        return tuple(head for _, head in sorted(ranks))

    def state(self) -> dict[str, Any]:
        """The state for the browser: the tokens, and the projections q, k and v in float32."""
        groups = (
            [(n,) for n in self.head_counts]
            if isinstance(self.layers, Mapping)
            else [self.head_counts]
        )
        versions = [
            {
                "num_heads": list(head_counts),
                "orders": [list(self.order(n)) for n in head_counts],
                **self.state_of(head_counts[-1]),
            }
            for head_counts in groups
        ]
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

    def state_of(self, num_heads: int) -> dict[str, Any]:
        """The data that the browser needs for a number of heads, and where the model is stored, if it is."""
        count = num_heads if isinstance(self.layers, Mapping) else None
        state: dict[str, Any] = {"parameters": _num_parameters(self.layer(num_heads))}
        state |= pack_all(self.projected(num_heads))
        if self._source is not None:
            state["model"] = list(self._source.models[count])
        if self._task is not None:
            weight, bias = self._task.read_outs[count]
            state["share"] = self._task.shares[count]
            state |= pack_all({"read_out": weight, "read_out_bias": bias})
        return state


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
        parts = [type(part) for part in model] if isinstance(model, tuple) else []
        if parts != [str, str, int]:
            raise TypeError(f"{name} must be (experiment, arm, seed), got {model!r}")
    if not models:
        raise ValueError("models must hold at least one model, got an empty mapping")
    for name, texts in (("words", words), ("tasks", tasks)):
        check_texts(name, texts)
    check_type("tokens", tokens, Tensor)
    if tokens.dtype != torch.int64 or tokens.ndim != 1:
        rule = "be int64 of shape (len,)"
        raise refusal("tokens", rule, f"{tokens.dtype} of shape {tuple(tokens.shape)}")
    if not ((tokens >= 0) & (tokens < len(words))).all():
        raise refusal("tokens", f"lie in 0..{len(words) - 1}", tokens.tolist())
    check_type("measure", measure, str)
    if not tasks:
        return
    if None in models:
        rule = "be a mapping where tasks are given"
        raise refusal("models", rule, repr(models[None]))
    check_type("targets", targets, Tensor)
    assert targets is not None
    wanted = (len(tokens), len(tasks))
    if targets.dtype != torch.int64 or tuple(targets.shape) != wanted:
        rule, shape = f"be int64 of shape (len, tasks) = {wanted}", tuple(targets.shape)
        raise refusal("targets", rule, f"{targets.dtype} of shape {shape}")
    if not ((targets >= -1) & (targets < len(words))).all() or (targets < 0).all():
        rule = f"lie in -1..{len(words) - 1}, and not all be -1"
        raise refusal("targets", rule, targets.tolist())


class _StoredModel(NamedTuple):
    """A stored model for an example: the input of its layer, the layer, and all weights of the model."""

    x: Tensor
    layer: MultiHeadAttention
    state: Mapping[str, Tensor]


def _read_stored(
    num_heads: int | None, model: StoredModel, tokens: Tensor, positions: bool
) -> _StoredModel:
    name, arm, seed = model
    state = load_experiment(name).state(arm, seed)
    x = state["embedding.weight"][tokens]
    if positions:
        x = x + state["positions.encoding"][: len(x)]
    return _StoredModel(x, _layer_of(state, num_heads), state)


def _read_task(
    read: Mapping[int | None, _StoredModel],
    models: Mapping[int | None, StoredModel],
    tasks: Sequence[str],
    words: Sequence[str],
    measure: str,
) -> tuple[dict[int | None, float], dict[int | None, tuple[Tensor, Tensor]]]:
    """The share of right answers and the read-out of each model."""
    shares, read_outs = {}, {}
    wanted = len(tasks) * len(words)
    for count, (_, layer, state) in read.items():
        name, arm, seed = models[count]
        shares[count] = float(load_experiment(name).results(arm, measure)[seed])
        if (rows := len(state["read_out.weight"])) != wanted:
            rule = f"give the read-out's {rows} answers"
            raise refusal("words and tasks", rule, wanted)
        read_outs[count] = _read_out_of(layer, state)
    return shares, read_outs


def _layer_of(state: Mapping[str, Tensor], num_heads: int | None) -> MultiHeadAttention:
    """The attention layer of a stored model; None for `num_heads` means one head until it is divided."""
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
    layer: MultiHeadAttention, state: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The output projection and the read-out as one map, in float32, which is all that the page needs."""
    weight, bias = (state[f"read_out.{part}"].double() for part in ("weight", "bias"))
    if layer.out_proj.bias is not None:
        bias = bias + weight @ layer.out_proj.bias.double()
    return (weight @ layer.out_proj.weight.double()).float(), bias.float()


def _num_parameters(layer: MultiHeadAttention) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def _found(example: HeadExample, num_heads: int) -> dict[str, Any]:
    """The data that the page stores for a number of heads, as the browser passes it to the program."""
    state = example.state_of(num_heads)
    found = {
        "embed_dim": example.embed_dim,
        "length": len(example.tokens),
        **{name: part for name, part in state.items() if name != "model"},
    }
    if (task := example._task) is not None:
        shares = [share for _, share in sorted(task.shares.items())]
        found |= {"asked": task.asked, "tasks": len(task.names), "shares": shares}
    return found


def _stored(found: Mapping[str, Any]) -> Mapping[str, Tensor]:
    name, arm, seed = found["model"]
    return load_experiment(name).state(arm, seed)


def read_projected(found: Mapping[str, Any]) -> list[Tensor]:
    """The queries, keys and values of an example, (len, embed_dim) each, from the page or a stored model."""
    if "query" in found:
        shape = (found["length"], found["embed_dim"])
        names = ("query", "key", "value")
        return [unpack(found[name], *shape).double() for name in names]
    state = _stored(found)
    x = state["embedding.weight"][torch.tensor(found["ids"])]
    if found["positions"]:
        x = x + state["positions.encoding"][: len(x)]
    layer = _layer_of(state, None)
    return [proj(x).double() for proj in (layer.q_proj, layer.k_proj, layer.v_proj)]


def read_answers(found: Mapping[str, Any], merged: Tensor) -> Tensor | None:
    """A model's answers at the asked positions, (tasks, asked), from merged heads; None without tasks."""
    if "asked" not in found:
        return None
    if "read_out" in found:
        weight = unpack(found["read_out"], -1, found["embed_dim"])
        bias = unpack(found["read_out_bias"], -1)
    else:
        state = _stored(found)
        weight, bias = _read_out_of(_layer_of(state, None), state)
    logits = merged[found["asked"]] @ weight.to(merged).T + bias.to(merged)
    answers: Tensor = logits.unflatten(-1, (found["tasks"], -1)).argmax(-1)
    return answers.T


class HeadExplorer(Explorer):
    """A slider over the number of heads, with live maps of every head: scores, mask, weights, output.

    The browser computes all numbers from torch's projections, so the widget also works in a page without a
    kernel. With a kernel, Python can read, set and observe the traits.

    Args:
        examples: one or more `HeadExample`, the choices of the menu.
        example: label of the example that is shown; default the first.
        num_heads: number of heads; default that of the layer, or the smallest above 1 of several layers.
        valid_len: number of visible tokens, like `valid_lens` for a batch of one; default all.
        is_causal: hide the later keys from each query.
        stage: "scores", "masked", "weights" or "output".
        head: index of the head in the large map; default the sharpest head, also after each change of
            `num_heads`.
        view: "one" head, "both" heads side by side, or the "difference" of the two, as |a - b|.
        other: index of the second head; default the sharpest head other than `head`.
        compact: show only `num_heads` and the maps, for a small space.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range; `num_heads` must divide the `embed_dim` of the example.

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
    stage = Choice("weights", STAGES).tag(in_repr=False)
    head = Whole(None, 0, "num_heads - 1").tag(in_repr=False)
    view = Choice("one", VIEWS).tag(in_repr=False)
    other = Whole(None, 0, "num_heads - 1").tag(in_repr=False)
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
            rule = "hold at least one entry, and labels must differ"
            raise refusal("examples", rule, labels)
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
        """The heads of the present layer, with the sharpest first; computed once for each layer."""
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
        return str(among(proposal, self._examples))

    @t.validate("num_heads")
    def _check_num_heads(self, proposal: t.Bunch) -> int:
        example = self._examples[self.example]
        if proposal.value not in example.head_counts:
            raise TraitValueError(
                f"num_heads must divide embed_dim={example.embed_dim} and be one of {example.head_counts}, "
                f"got {proposal.value!r}"
            )
        return int(proposal.value)

    @t.validate("valid_len")
    def _check_valid_len(self, proposal: t.Bunch) -> int:
        return within(proposal, 0, len(self._examples[self.example].tokens))

    @t.observe("example")
    def _fit_to_example(self, change: t.Bunch) -> None:
        """Choose the nearest settings that the new example supports; all tokens stay visible if all were."""
        example = self._examples[change.new]
        counts, length = example.head_counts, len(example.tokens)
        if self.num_heads not in counts:
            fewer = [count for count in counts if count < self.num_heads]
            self.num_heads = max(fewer, default=counts[0])
        before = self._examples.get(change.old)
        all_visible = before is not None and self.valid_len == len(before.tokens)
        self.valid_len = length if all_visible else min(self.valid_len, length)
        self._choose_sharpest()

    @t.observe("num_heads")
    def _fit_to_num_heads(self, _: t.Bunch) -> None:
        self._choose_sharpest()

    def _choose_sharpest(self) -> None:
        """Show the two sharpest heads, unless the browser sent its own choice with the change."""
        if "head" not in self._received:
            self.head, self.other = self._order()[0], self._another(self._order()[0])

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Set all traits from the browser at once."""
        self._received = frozenset(sync_data)
        try:
            super().set_state(sync_data)
        finally:
            self._received = frozenset()

    def weights(self) -> Tensor:
        """Attention weights of the present state, (num_heads, len, len), from the torch layer itself."""
        example = self._examples[self.example]
        layer, x = example.layer(self.num_heads), example.input(self.num_heads)
        lens = torch.tensor([self.valid_len])
        with torch.no_grad():
            _, weights = layer(x, x, x, valid_lens=lens, is_causal=self.is_causal)
        return weights[0]  # type: ignore[no-any-return]

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:
        example, num_heads = self._examples[settings["example"]], settings["num_heads"]
        return {"found": (lambda: _found(example, num_heads), "⟨found⟩")}

    @staticmethod
    def _compute(
        num_heads: int,
        valid_len: int,
        is_causal: bool,
        stage: str,
        head: int,
        view: str,
        other: int,
        found: dict[str, Any],
    ) -> dict[str, Any]:
        layer = MultiHeadAttention(found["embed_dim"], num_heads)
        query, key, value = (
            layer.split_heads(x[None])[0] for x in read_projected(found)
        )
        mask = build_mask(
            *(found["length"], found["length"]),
            valid_lens=torch.tensor([valid_len]),
            is_causal=is_causal,
        )
        scores = scaled_dot_product_score(query, key)
        output, weights = attention_pooling(scores, value, mask)
        masked = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        stages = {"scores": scores, "masked": masked, "weights": weights}
        shown = output if stage == "output" else stages[stage]

        # Both heads are -inf at the same places, where their difference would be NaN.
        seen = shown[head].isfinite()
        difference = torch.where(seen, (shown[head] - shown[other]).abs(), -torch.inf)
        apart = difference[seen] if seen.any() else torch.zeros(1)
        answers = read_answers(found, layer.merge_heads(output[None])[0])
        is_compared = view != "one"
        return {
            "table": difference if view == "difference" else shown[head],
            "other_table": shown[other] if view == "both" else None,
            "max_difference": apart.max() if is_compared else None,
            "mean_difference": apart.mean() if is_compared else None,
            "answers": answers,
            "shares": None if answers is None else found["shares"],
            "head_dim": layer.head_dim,
            "parameters": found["parameters"],
            "shown": shown if shown.numel() <= MAX_MARKED else None,
        }

    def _details(self) -> list[str]:
        return [f"head_dim={self.head_dim}"]
