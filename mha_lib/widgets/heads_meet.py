"""Where the heads meet: the output of a trained layer as a sum of what its heads add."""

from __future__ import annotations

import base64
import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import traitlets as t
from torch import Tensor, nn

from mha_lib._checks import check_type
from mha_lib.experiments import load_experiment
from mha_lib.inspection import capture_attention
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Numbers, Text, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_HEADS, MAX_EMBED_DIM, MAX_WORDS, MAX_VOCAB, MAX_TASKS = 8, 96, 16, 256, 6
"""With larger numbers, the bars would be too thin to see, and the page would be heavy."""

MAX_SENTENCES = 24

_PARTS = {
    "embedding": nn.Embedding,
    "positions": nn.Module,
    "attention": MultiHeadAttention,
    "read_out": nn.Linear,
}
"""The parts of a model, and the class of each."""


class HeadsMeet(Explorer):
    """What each head of a trained layer adds to the output of one query, and the answers read from their sum.

    A model embeds the words, adds positions, attends once, and reads its answers at one query:
    `model.read_out(model.attention(x, x, x)[0][query])` with `x = model.positions(model.embedding(tokens))`.
    The output is the sum over heads of `head_i @ W_i`, where `W_i` is the head's slice of the output
    projection, plus the bias of that projection and, with `residual`, the query's own `x`. The reader chooses
    the query, switches heads off and exchanges words; the browser computes everything from the weights.

    Args:
        model: has `embedding` (an `nn.Embedding`), `positions` (adds a vector to each position), `attention`
            (a `MultiHeadAttention`) and `read_out` (an `nn.Linear` to one logit for each task and word).
        sentences: the sentences of the menu, 1 to 24, words separated by single spaces.
        words: name of each token; "" for a token that is not offered, such as padding.
        tasks: name of each question that the model answers, 1 to 6.
        blank: the word at which the model was trained to answer, and the first query; default None, any word.
        residual: whether the model adds the layer's input to the layer's output.
        stored: experiment, arm and seed whose stored weights the model has. The program under "These settings
            as Python" then loads them instead of containing them.
        text: the sentence that is shown; default the first of the menu.
        query: index of the word from which the heads attend; default that of `blank`, or else the last word.
        gates: one number for each head: 0 switches it off, 1 leaves it on; default all 1.
        coordinate: index of the number of the output whose sum is written out.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: sizes do not fit, the model computes something else, or an argument is outside its range.

    Example:
        >>> from mha_lib import LearnedPositionalEncoding
        >>> model = nn.Module()
        >>> model.embedding, model.positions = nn.Embedding(3, 6), LearnedPositionalEncoding(6, 5)
        >>> model.attention, model.read_out = MultiHeadAttention(6, 2), nn.Linear(6, 3)
        >>> meet = HeadsMeet(model, ["we like tea"], words=("we", "like", "tea"), tasks=["is"], gates=[1, 0])
        >>> meet
        HeadsMeet(text='we like tea', query=2, off=[1])
        >>> numbers = meet.numbers()
        >>> torch.allclose(numbers["output"], numbers["contributions"][0])  # head 1 is off
        True
    """

    _module: ClassVar[str] = "heads_meet.js"

    model = t.Dict(read_only=True).tag(sync=True)
    sentences = t.List(t.Unicode(), read_only=True).tag(sync=True)
    text = Text(None)
    query = Whole(None, 0, MAX_WORDS - 1)
    gates = Numbers(None, 0, 1).tag(in_repr=False)
    coordinate = Whole(0, 0, MAX_EMBED_DIM - 1).tag(in_repr=False)

    def __init__(
        self,
        model: nn.Module,
        sentences: Sequence[str],
        *,
        words: Sequence[str],
        tasks: Sequence[str],
        blank: str | None = None,
        residual: bool = False,
        stored: tuple[str, str, int] | None = None,
        **settings: Any,
    ) -> None:
        vocabulary = _check_words(words)
        names = _check_names("tasks", tasks, MAX_TASKS)
        check_type("residual", residual, bool)
        if blank is not None:
            check_type("blank", blank, str)
            if not blank or blank not in vocabulary:
                raise ValueError(f"blank must be one of words, got {blank!r}")
        self._blank, self._residual = blank, residual
        self._tokens = {word: token for token, word in enumerate(vocabulary) if word}
        self._seen = _check_model(model, len(vocabulary), len(names))
        listed = _check_names("sentences", sentences, MAX_SENTENCES)
        for index, sentence in enumerate(listed):
            self._tokens_of(f"sentences[{index}]", sentence)
        if stored is not None:
            _check_stored(stored, model)
        self.set_trait("sentences", listed)
        self.set_trait(
            "model",
            {
                "num_heads": self._seen.attention.num_heads,
                "embed_dim": self._seen.attention.embed_dim,
                "max_len": len(self._seen.positions),
                "words": vocabulary,
                "tasks": names,
                "blank": blank,
                "residual": residual,
                "stored": None if stored is None else list(stored),
                "weights": self._seen.packed(),
            },
        )
        super().__init__(**settings)

    @property
    def words(self) -> list[str]:
        """The words of the sentence that is shown."""
        return str(self.text).split(" ")

    @t.default("text")
    def _default_text(self) -> str:
        return self.sentences[0]

    @t.default("query")
    def _default_query(self) -> int:
        last = len(self.words) - 1
        return self.words.index(self._blank) if self._blank in self.words else last

    @t.default("gates")
    def _default_gates(self) -> list[float]:
        return [1.0] * self._seen.attention.num_heads

    @t.validate("text")
    def _check_text(self, proposal: t.Bunch) -> str:
        self._tokens_of("text", proposal.value)
        return str(proposal.value)

    @t.validate("query")
    def _check_query(self, proposal: t.Bunch) -> int:
        last = len(self.words) - 1
        if proposal.value > last:
            raise TraitValueError(f"query must lie in 0..{last}, got {proposal.value}")
        return int(proposal.value)

    @t.validate("gates")
    def _check_gates(self, proposal: t.Bunch) -> list[float]:
        gates: list[float] = proposal.value
        count = self._seen.attention.num_heads
        if len(gates) != count or not set(gates) <= {0.0, 1.0}:
            raise TraitValueError(
                f"gates must hold {count} numbers, each 0 or 1, got {gates}"
            )
        return gates

    @t.validate("coordinate")
    def _check_coordinate(self, proposal: t.Bunch) -> int:
        last = self._seen.attention.embed_dim - 1
        if proposal.value > last:
            raise TraitValueError(
                f"coordinate must lie in 0..{last}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("text")
    def _fit_query(self, change: t.Bunch) -> None:
        # In a shorter sentence the query may be missing.
        if self.query is not None and self.query >= len(change.new.split(" ")):
            self.query = self._default_query()

    def _tokens_of(self, name: str, text: str) -> list[int]:
        """The tokens of a sentence, or an error that calls the sentence `name`."""
        words, most = text.split(" "), len(self._seen.positions)
        if len(words) > most:
            raise TraitValueError(
                f"{name} must hold 1 to {most} words, got {len(words)}"
            )
        unknown = [word for word in words if word not in self._tokens]
        if unknown:
            raise TraitValueError(
                f"{name} must hold words of the model, separated by single spaces, got {unknown[0]!r}"
            )
        return [self._tokens[word] for word in words]

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        tokens = torch.tensor(self._tokens_of("text", state.text))
        gates = torch.tensor(state.gates, dtype=torch.float64)
        numbers = self._seen.parts_of_output(tokens, state.query)
        output = gates @ numbers["contributions"]
        # What the switches do not reach: a bias and a residual, where the model has them.
        if self._seen.attention.out_proj.bias is not None:
            numbers["bias"] = self._seen.attention.out_proj.bias
            output = output + numbers["bias"]
        if self._residual:
            numbers["residual"] = self._seen.inputs(tokens)[state.query]
            output = output + numbers["residual"]
        logits = self._seen.read_out(output).unflatten(
            0, (len(self.model["tasks"]), -1)
        )
        return {
            **numbers,
            "output": output,
            "logits": logits,
            "answers": logits.argmax(-1),
        }

    def figure(self) -> Figure:
        """The weights of each head, and the bars of all heads stacked to the output."""
        from mha_lib import plots

        numbers = self.numbers()
        figure, (keys, total) = plots.new_figure(
            2, 1, height=5.2, height_ratios=(1, 1.15)
        )
        _draw_weights(keys, self.words, numbers["weights"], self.query)
        terms = [
            (f"head {head}", plots.head_color(head), row)
            for head, row in enumerate(numbers["contributions"])
            if self.gates[head]
        ]
        others = (("residual", "#444444"), ("bias", "#a0a0a0"))
        terms += [(name, c, numbers[name]) for name, c in others if name in numbers]
        _draw_stack(total, terms, numbers["output"])
        answered = [self.model["words"][token] for token in numbers["answers"]]
        pairs = zip(self.model["tasks"], answered, strict=True)
        total.set_title(
            ", ".join(f"{task}: {word}" for task, word in pairs), fontsize=9
        )
        return figure

    def _details(self) -> list[str]:
        return [f"off={[head for head, gate in enumerate(self.gates) if gate == 0]}"]


class _Seen(nn.Module):
    """A copy of a model as the browser computes it: weights in float32, arithmetic in float64."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # `_check_model` has checked that these parts exist.
        copied: Any = copy.deepcopy(model).double().eval().requires_grad_(False)
        self.embedding: Tensor = copied.embedding.weight
        self.attention: MultiHeadAttention = copied.attention
        self.read_out: nn.Linear = copied.read_out
        self.positions = _table_of(copied.positions, self.embedding.shape[1])

    def inputs(self, tokens: Tensor) -> Tensor:
        """What the layer receives: (len, embed_dim)."""
        return self.embedding[tokens] + self.positions[: len(tokens)]

    def parts_of_output(self, tokens: Tensor, query: int) -> dict[str, Tensor]:
        """The weights of each head, its mean of the values, and what it adds to the output of the query."""
        x, heads = self.inputs(tokens), self.attention.num_heads
        with capture_attention(self.attention) as captured, torch.no_grad():
            self.attention(x[None], x[None], x[None])
        weights = captured[""][0, :, query]
        values = self.attention.v_proj(x).unflatten(-1, (heads, -1)).transpose(0, 1)
        pooled = (weights.unsqueeze(1) @ values).squeeze(1)
        slices = self.attention.out_proj.weight.unflatten(1, (heads, -1))
        added = torch.einsum("hd,ehd->he", pooled, slices)
        return {"weights": weights, "heads": pooled, "contributions": added}

    def packed(self) -> dict[str, str]:
        """The weights for the browser, in float32, exact, as base64 by name."""
        tensors = {
            "embedding": self.embedding,
            "positions": self.positions,
            **dict(self.attention.named_parameters()),
            "read_out.weight": self.read_out.weight,
            "read_out.bias": self.read_out.bias,
        }
        return {
            name: base64.b64encode(
                tensor.float().numpy().astype("<f4").tobytes()
            ).decode("ascii")
            for name, tensor in tensors.items()
            if tensor is not None
        }


def _table_of(positions: nn.Module, width: int) -> Tensor:
    """What the module adds at each position, (len, width), for as many positions as it has, at most 16."""
    for length in range(MAX_WORDS, 0, -1):
        zeros = torch.zeros(1, length, width, dtype=torch.float64)
        try:
            table: Tensor = positions(zeros)[0]
        except ValueError:
            continue  # the module has fewer positions
        return table.float().double()
    raise ValueError("model.positions must have at least one position, got none")


def _check_words(words: Sequence[str]) -> list[str]:
    listed = _check_names("words", words, MAX_VOCAB, may_be_empty=True)
    offered = [word for word in listed if word]
    if len(set(offered)) < len(offered):
        twice = next(word for word in offered if offered.count(word) > 1)
        raise ValueError(f"words must differ, got {twice!r} twice")
    spaced = [word for word in offered if word.split() != [word]]
    if spaced:
        raise ValueError(f"words must not contain spaces, got {spaced[0]!r}")
    return listed


def _check_names(
    name: str, names: Sequence[str], most: int, *, may_be_empty: bool = False
) -> list[str]:
    check_type(name, names, Sequence)
    if isinstance(names, str) or not all(isinstance(entry, str) for entry in names):
        raise TypeError(f"{name} must be a sequence of str, got {names!r}")
    if not 1 <= len(names) <= most:
        raise ValueError(f"{name} must hold 1 to {most} str, got {len(names)}")
    if not may_be_empty and "" in names:
        raise ValueError(f"{name} must not hold an empty str, got {list(names)!r}")
    return list(names)


def _check_model(model: nn.Module, vocab: int, num_tasks: int) -> _Seen:
    check_type("model", model, nn.Module)
    for part, kind in _PARTS.items():
        check_type(f"model.{part}", getattr(model, part, None), kind)
    assert isinstance(model.embedding, nn.Embedding)
    assert isinstance(model.attention, MultiHeadAttention)
    assert isinstance(model.read_out, nn.Linear)
    layer = model.attention
    if layer.num_heads > MAX_HEADS or layer.embed_dim > MAX_EMBED_DIM:
        raise ValueError(
            f"model.attention must have at most {MAX_HEADS} heads and embed_dim at most {MAX_EMBED_DIM}, "
            f"got {layer.num_heads} and {layer.embed_dim}"
        )
    sizes = {
        "model.embedding": (
            tuple(model.embedding.weight.shape),
            (vocab, layer.embed_dim),
        ),
        "model.read_out.weight": (
            tuple(model.read_out.weight.shape),
            (num_tasks * vocab, layer.embed_dim),
        ),
    }
    for name, (found, wanted) in sizes.items():
        if found != wanted:
            raise ValueError(
                f"{name} must have shape {wanted} for {vocab} words and {num_tasks} tasks, got {found}"
            )
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise TypeError("model must have float32 parameters")
    if not all(p.isfinite().all() for p in model.parameters()):
        raise ValueError("model must have finite parameters, got a NaN or an infinity")
    own_keys = layer.num_kv_heads == layer.num_heads
    if not own_keys or not layer.embed_dim == layer.kdim == layer.vdim:
        raise ValueError(
            f"model.attention must have keys and values of its own for each head, got {layer}"
        )
    seen = _Seen(model)
    tokens = torch.arange(len(seen.positions)) % vocab
    _check_arithmetic(model, seen, tokens)
    return seen


def _check_arithmetic(model: nn.Module, seen: _Seen, tokens: Tensor) -> None:
    """Compare with the browser's formulas: masks, rotations and other scores would go unnoticed there."""
    wanted: Any = copy.deepcopy(model).double().eval()
    x, layer = seen.inputs(tokens), seen.attention
    with torch.no_grad():
        theirs = wanted.positions(wanted.embedding(tokens)[None])[0]
        if theirs.shape != x.shape or not torch.allclose(theirs, x, atol=1e-6):
            raise ValueError("model.positions must add one vector to each position")
        _, weights = layer(x[None], x[None], x[None])
        q, k = (
            proj(x).unflatten(-1, (layer.num_heads, -1)).transpose(0, 1)
            for proj in (layer.q_proj, layer.k_proj)
        )
        plain = (q @ k.transpose(-2, -1) / layer.head_dim**0.5).softmax(-1)
    if not torch.allclose(weights[0], plain, atol=1e-6):
        raise ValueError(
            f"model.attention must use the scaled dot product alone, got {layer}"
        )


def _check_stored(stored: tuple[str, str, int], model: nn.Module) -> None:
    if not isinstance(stored, tuple) or len(stored) != 3:
        raise TypeError(
            f"stored must be a tuple of experiment, arm and seed, got {stored!r}"
        )
    name, arm, seed = stored
    try:
        state = load_experiment(name).state(arm, seed=seed)
    except (ValueError, TypeError) as error:
        raise type(error)(
            f"stored must name the weights of a kept model, got {stored!r}: {error}"
        ) from None
    own = model.state_dict()
    fits = set(state) == set(own) and "positions.encoding" in own
    if not fits or not all(torch.equal(state[key], own[key]) for key in own):
        raise ValueError(f"stored must name the weights of model, got {stored!r}")


def _draw_weights(axis: Axes, words: list[str], weights: Tensor, query: int) -> None:
    """The keys from left to right, a bar for each head."""
    from mha_lib import plots

    width = 0.8 / len(weights)
    for head, row in enumerate(weights.tolist()):
        places = [key - 0.4 + (head + 0.5) * width for key in range(len(row))]
        color = plots.head_color(head)
        axis.bar(places, row, width, color=color, label=f"head {head}")
    axis.set_xticks(range(len(words)), words, rotation=60, ha="right", fontsize=8)
    axis.get_xticklabels()[query].set_fontweight("bold")
    axis.set(ylabel="weight", ylim=(0, 1))
    axis.legend(fontsize=7, ncols=4, loc="upper left")


def _draw_stack(
    axis: Axes, terms: list[tuple[str, str, Tensor]], output: Tensor
) -> None:
    """Positive numbers are stacked upwards, negative ones downwards; dots show the sums."""
    tops = {1: torch.zeros_like(output), -1: torch.zeros_like(output)}
    places = list(range(len(output)))
    for name, color, row in terms:
        for sign, top in tops.items():
            part = (row * sign).clamp(min=0) * sign
            label = name if sign > 0 else None
            axis.bar(places, part, 0.8, bottom=top, color=color, label=label)
            top += part
    axis.plot(places, output, ".", color="black", markersize=4, label="sum")
    axis.axhline(0, color="#888888", linewidth=0.6)
    axis.set(xlabel="numbers of the output")
