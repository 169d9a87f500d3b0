"""Where the heads meet: the output of a trained layer as the sum of the contributions of its heads."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor, nn

from mha_course._checks import check_texts
from mha_course.experiments import load_experiment
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Numbers, Text, Whole, unfit, within
from mha_course.widgets.seen_model import (
    SeenModel,
    check_parts,
    read_seen,  # noqa: F401, the program uses it
    see_model,
    seen_of_state,  # noqa: F401, the program uses it
)
from mha_lib._checks import check_type, refusal
from mha_lib.inspection import capture_attention
from mha_lib.multi_head import MultiHeadAttention

MAX_HEADS, MAX_EMBED_DIM, MAX_WORDS, MAX_VOCAB, MAX_TASKS = 8, 96, 16, 256, 6
"""With larger numbers, the bars would be too thin to see, and the page would be heavy."""

MAX_SENTENCES = 24


class HeadsMeet(Explorer):
    """The contribution of each head of a trained layer to the output of one query, and the resulting answers.

    A model embeds the words, adds positions, attends once, and reads its answers at one query:
    `model.read_out(model.attention(x, x, x)[0][query])` with `x = model.positions(model.embedding(tokens))`.
    The output is the sum over heads of `head_i @ W_i`, where `W_i` is the head's slice of the output
    projection, plus the bias of that projection and, with `residual`, the query's own `x`. The reader chooses
    the query, switches heads off and replaces words; the browser computes everything from the weights.

    Args:
        model: has `embedding` (an `nn.Embedding`), `positions` (adds a vector to each position), `attention`
            (a `MultiHeadAttention`) and `read_out` (an `nn.Linear` to one logit for each task and word).
        sentences: the sentences of the menu, 1 to 24, words separated by single spaces.
        words: name of each token; "" for a token that is not offered, such as padding.
        tasks: names of the questions that the model answers, 1 to 6.
        blank: the word at which the model was trained to answer, and the first query; default None, any word.
        residual: whether the model adds the layer's input to the layer's output.
        stored: experiment, arm and seed of the model's weights, if they are stored. The program under "These
            settings as Python" then loads them instead of containing them.
        text: the sentence that is shown; default the first in the menu.
        query: index of the word from which the heads attend; default that of `blank`, or else the last word.
        gates: one number for each head: 0 switches it off, 1 leaves it on; default all 1.
        coordinate: index of the entry of the output whose sum is written out.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: sizes do not fit, the model has a different structure, or an argument is out of range.

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
    gates = Numbers(None, 0, 1, "model.num_heads", ends=True).tag(in_repr=False)
    coordinate = Whole(0, 0, "model.embed_dim - 1").tag(in_repr=False)

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
                **self._seen.state(),
                "max_len": len(self._seen.positions),
                "words": vocabulary,
                "tasks": names,
                "blank": blank,
                "residual": residual,
                "stored": None if stored is None else list(stored),
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
        return within(proposal, 0, len(self.words) - 1)

    @t.observe("text")
    def _fit_query(self, change: t.Bunch) -> None:
        # In a shorter sentence, the query may be missing.
        if self.query is not None and self.query >= len(change.new.split(" ")):
            self.query = self._default_query()

    def _tokens_of(self, name: str, text: str) -> list[int]:
        """The tokens of a sentence, or an error that calls the sentence `name`."""
        words, most = text.split(" "), len(self._seen.positions)
        if len(words) > most:
            raise unfit(name, f"hold 1 to {most} words", len(words))
        unknown = [word for word in words if word not in self._tokens]
        if unknown:
            rule = "hold words of the model, separated by single spaces"
            raise unfit(name, rule, repr(unknown[0]))
        return [self._tokens[word] for word in words]

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        seen, words = "read_seen(⟨model⟩)", self.model["words"]
        count = len(self.model["tasks"])
        if stored := self.model["stored"]:
            name, arm, seed = (json.dumps(part) for part in stored)
            state = f"load_experiment({name}).state({arm}, seed={seed})"
            seen = f"seen_of_state({state}, {self.model['num_heads']})"
        return {
            "seen": (lambda: self._seen, seen),
            "words": (lambda: words, repr(words)),
            "num_tasks": (lambda: count, str(count)),
            "has_residual": (lambda: self._residual, str(self._residual)),
        }

    @staticmethod
    def _compute(
        text: str,
        query: int,
        gates: list[float],
        seen: SeenModel,
        words: list[str],
        num_tasks: int,
        has_residual: bool,
    ) -> dict[str, Any]:
        x = seen.inputs(torch.tensor([words.index(word) for word in text.split(" ")]))
        layer, heads = seen.attention, seen.attention.num_heads
        with capture_attention(layer) as captured, torch.no_grad():
            layer(x[None], x[None], x[None])
        # One row of weights, one vector and one summand of the output for each head.
        weights = captured[""][0, :, query]
        values = layer.v_proj(x).unflatten(-1, (heads, -1)).transpose(0, 1)
        slices = layer.out_proj.weight.unflatten(1, (heads, -1))
        vectors = (weights.unsqueeze(1) @ values).squeeze(1)
        contributions = torch.einsum("hd,ehd->he", vectors, slices)
        # The heads meet here. The switches reach neither a bias nor a residual, where the model has them.
        output = torch.tensor(gates).double() @ contributions
        bias, residual = layer.out_proj.bias, x[query] if has_residual else None
        if bias is not None:
            output = output + bias
        if residual is not None:
            output = output + residual
        logits = seen.read_out(output).unflatten(0, (num_tasks, -1))
        return {
            "answers": logits.argmax(-1),
            "weights": weights,
            "heads": vectors,
            "contributions": contributions,
            "bias": bias,
            "residual": residual,
            "output": output,
            "logits": logits,
        }

    def _details(self) -> list[str]:
        return [f"off={[head for head, gate in enumerate(self.gates) if gate == 0]}"]


def _num_positions(model: Any, width: int) -> int:
    """The number of positions that a module has, at most 16."""
    for length in range(MAX_WORDS, 0, -1):
        try:
            model.positions(torch.zeros(1, length, width))
        except ValueError:
            continue  # the module has fewer positions
        return length
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
    listed = check_texts(name, names)
    if not 1 <= len(listed) <= most:
        raise refusal(name, f"hold 1 to {most} str", len(listed))
    if not may_be_empty and "" in listed:
        raise refusal(name, "not hold an empty str", listed)
    return listed


def _check_model(model: nn.Module, vocab: int, num_tasks: int) -> SeenModel:
    check_parts("model", model)
    assert isinstance(model.embedding, nn.Embedding)
    assert isinstance(model.attention, MultiHeadAttention)
    assert isinstance(model.read_out, nn.Linear)
    layer = model.attention
    if layer.num_heads > MAX_HEADS or layer.embed_dim > MAX_EMBED_DIM:
        rule = f"have at most {MAX_HEADS} heads and embed_dim at most {MAX_EMBED_DIM}"
        counts = f"{layer.num_heads} and {layer.embed_dim}"
        raise refusal("model.attention", rule, counts)
    for name, weight, rows in (
        ("model.embedding", model.embedding.weight, vocab),
        ("model.read_out.weight", model.read_out.weight, num_tasks * vocab),
    ):
        if weight.shape != (wanted := (rows, layer.embed_dim)):
            rule = f"have shape {wanted} for {vocab} words and {num_tasks} tasks"
            raise refusal(name, rule, weight)
    if not all(p.isfinite().all() for p in model.parameters()):
        raise ValueError("model must have finite parameters, got a NaN or an infinity")
    own_keys = layer.num_kv_heads == layer.num_heads
    if not own_keys or not layer.embed_dim == layer.kdim == layer.vdim:
        rule = "have keys and values of its own for each head"
        raise refusal("model.attention", rule, layer)
    length = _num_positions(model, layer.embed_dim)
    tokens = torch.arange(length) % vocab
    seen = see_model("model", model, length, tokens[None])
    _check_arithmetic(model, seen.inputs(tokens))
    return seen


def _check_arithmetic(model: Any, x: Tensor) -> None:
    """Compare with the browser's formulas, which ignore masks, rotations and other scoring rules."""
    layer: Any = copy.deepcopy(model.attention).double().eval()
    with torch.no_grad():
        _, weights = layer(x[None], x[None], x[None])
        q, k = (
            proj(x).unflatten(-1, (layer.num_heads, -1)).transpose(0, 1)
            for proj in (layer.q_proj, layer.k_proj)
        )
        plain = (q @ k.transpose(-2, -1) / layer.head_dim**0.5).softmax(-1)
    if not torch.allclose(weights[0], plain, atol=1e-6):
        raise refusal("model.attention", "use the scaled dot product alone", layer)


def _check_stored(stored: tuple[str, str, int], model: nn.Module) -> None:
    if not isinstance(stored, tuple) or len(stored) != 3:
        raise TypeError(
            f"stored must be a tuple of experiment, arm and seed, got {stored!r}"
        )
    name, arm, seed = stored
    try:
        state = load_experiment(name).state(arm, seed=seed)
    except (ValueError, TypeError) as error:
        rule = "stored must name the weights of a kept model"
        raise type(error)(f"{rule}, got {stored!r}: {error}") from None
    own = model.state_dict()
    fits = set(state) == set(own) and "positions.encoding" in own
    if not fits or not all(torch.equal(state[key], own[key]) for key in own):
        raise ValueError(f"stored must name the weights of model, got {stored!r}")
