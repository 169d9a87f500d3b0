"""The attention stepper: the six steps of self-attention, over a sentence of given or of trained vectors."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.attention import attention_pooling
from mha_lib.data import SENTENCE_WORDS
from mha_lib.experiments import load_experiment
from mha_lib.masking import causal_mask
from mha_lib.scores import dot_product_score, scaled_dot_product_score
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Choice, Flag, Text, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_WORDS, MAX_CHARACTERS = 12, 200
EMBED_DIM = 4

SENTENCES = {
    "by hand": "we like tea",
    "trained": "the doctor's friends near the baker ___ late in the garden",
}
"""The sentence with which each kind of vectors begins."""

TRAINED = ("words", "4 heads, lr 0.01", 4)
"""The stored model: name of the experiment, arm and seed."""

VECTORS = {"we": [1, 0, 2, 0], "like": [0, 1, 1, 0], "tea": [1, 1, 0, 1]}
"""The words with vectors made by hand."""

PROJECTIONS = {
    "query": [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]],
    "key": [[0, -1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]],
    "value": [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
}
"""Small whole numbers, so that a reader can follow each step with a pencil. Row i belongs to entry i of x."""

_CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}

STEPS = ("project", "score", "scale", "softmax", "weigh", "add")

# The spaces are written out because Python and JavaScript disagree about which characters are spaces.
_SEPARATORS = re.compile(
    r"[\t-\r \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]+"
)


def _split_words(sentence: str) -> list[str]:
    """The tokens of a sentence: its parts between spaces."""
    return [word for word in _SEPARATORS.split(sentence) if word]


class _Sentence(Text):
    """A str of 1 to MAX_WORDS words; the widget checks that their vectors are known."""

    def limits(self) -> dict[str, Any]:
        """How many words and characters fit."""
        return {"words": MAX_WORDS, "characters": MAX_CHARACTERS}

    def _check(self, value: Any) -> str:
        text = super()._check(value)
        rule = f"have at most {MAX_CHARACTERS} characters"
        self._insist(len(value) <= MAX_CHARACTERS, rule, value)
        fits = 1 <= len(_split_words(value)) <= MAX_WORDS
        self._insist(fits, f"hold 1 to {MAX_WORDS} words", value)
        return text


class _SentenceModel:
    """One attention layer of the model that fills in a blank, with the vectors of words and places."""

    def __init__(self) -> None:
        name, arm, seed = TRAINED
        state = load_experiment(name).state(arm, seed=seed)
        # The first word is the padding, which no reader writes.
        self.words = SENTENCE_WORDS[1:]
        self.num_heads = 4
        self.tensors = {
            "embedding": state["embedding.weight"][1:],
            "positions": state["positions.encoding"][:MAX_WORDS],
            "query": state["attention.q_proj.weight"],
            "key": state["attention.k_proj.weight"],
            "value": state["attention.v_proj.weight"],
        }
        self.embed_dim = self.tensors["embedding"].shape[1]

    def vectors(self, words: list[str]) -> Tensor:
        """The vectors of words at their places, (len, embed_dim) in float64."""
        tokens = [self.words.index(word) for word in words]
        places = self.tensors["positions"][: len(words)]
        return self.tensors["embedding"][tokens].double() + places.double()

    def projections(self, head: int) -> list[Tensor]:
        """What turns vectors into the queries, keys and values of a head: three of (embed_dim, head_dim)."""
        width = self.embed_dim // self.num_heads
        rows = slice(width * head, width * (head + 1))
        return [
            self.tensors[role][rows].double().T for role in ("query", "key", "value")
        ]

    def for_browser(self) -> dict[str, Any]:
        """The words, the sizes and the weights, in float32, exact, as base64."""
        return {
            "words": list(self.words),
            "num_heads": self.num_heads,
            "embed_dim": self.embed_dim,
            "stored": list(TRAINED),
            "weights": {
                name: base64.b64encode(
                    tensor.float().numpy().astype("<f4").tobytes()
                ).decode("ascii")
                for name, tensor in self.tensors.items()
            },
        }


class AttentionStepper(Explorer):
    """Self-attention over a short sentence, one step after the other, with all numbers written out.

    There are two kinds of vectors. Those made by hand are small whole numbers for three words, so that a
    reader can compute every step with a pencil; there is one head. The trained ones are those of the model of
    four heads that fills in the blank of an English sentence (`experiments/words.py`): what its heads look at
    means something.

    Args:
        vectors: "by hand" or "trained".
        sentence: 1 to 12 words that have such vectors; default the sentence of the chapter.
        head: which head of the trained model is shown; by hand there is only head 0.
        query: index of the token whose arithmetic is written out; default the blank, if there is one.
        step: 1 project, 2 score, 3 scale, 4 softmax, 5 weigh, 6 add.
        is_causal: hide the later keys from each query.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range, a word has no vector, or the trained model that the
            course stores is missing or damaged.

    Example:
        >>> stepper = AttentionStepper(sentence="we like tea")
        >>> stepper
        AttentionStepper(vectors='by hand', sentence='we like tea', head=0, query=0, step=1)
        >>> stepper.numbers()["scores"][0].tolist()
        [2.0, 4.0, 0.0]
        >>> trained = AttentionStepper(vectors="trained")
        >>> weights = trained.numbers()["weights"][trained.query]
        >>> trained.words[trained.query], trained.words[weights.argmax()]
        ('___', 'friends')
    """

    _module: ClassVar[str] = "attention_stepper.js"

    vectors = Choice("by hand", list(SENTENCES))
    sentence = _Sentence(None)
    head = Whole(0, 0, 3)
    query = Whole(None, 0, MAX_WORDS - 1)
    step = Whole(1, 1, len(STEPS))
    is_causal = Flag(False).tag(in_repr=False)
    given = t.Dict(VECTORS, read_only=True).tag(sync=True)
    projections = t.Dict(PROJECTIONS, read_only=True).tag(sync=True)
    beginnings = t.Dict(SENTENCES, read_only=True).tag(sync=True)
    trained = t.Dict(read_only=True).tag(sync=True)

    def __init__(self, **settings: Any) -> None:
        self._model: _SentenceModel | None = None
        try:
            self._model = _SentenceModel()
            self.set_trait("trained", self._model.for_browser())
        except (OSError, ValueError) as error:
            # The vectors made by hand are there all the same, and the widget says what is wrong.
            self.set_trait("trained", {"problem": str(error)})
        super().__init__(**settings)

    @property
    def words(self) -> list[str]:
        """The tokens of the sentence."""
        return _split_words(self.sentence)

    @t.default("sentence")
    def _default_sentence(self) -> str:
        return SENTENCES[self.vectors]

    @t.default("query")
    def _default_query(self) -> int:
        return self.words.index("___") if "___" in self.words else 0

    @t.validate("vectors")
    def _check_vectors(self, proposal: t.Bunch) -> str:
        if proposal.value == "trained" and self._model is None:
            raise TraitValueError(
                f"vectors must be 'by hand', because {self.trained['problem']}, got 'trained'"
            )
        return str(proposal.value)

    @t.validate("sentence")
    def _check_sentence(self, proposal: t.Bunch) -> str:
        known = self._known(self.vectors)
        unknown = [word for word in _split_words(proposal.value) if word not in known]
        if unknown:
            raise TraitValueError(
                f"sentence must hold only words that have vectors, {', '.join(known)}, got {unknown[0]!r}"
            )
        return str(proposal.value)

    @t.validate("head")
    def _check_head(self, proposal: t.Bunch) -> int:
        if proposal.value and self.vectors == "by hand":
            raise TraitValueError(
                f"head must be 0 where the vectors are made by hand, got {proposal.value}"
            )
        return int(proposal.value)

    @t.validate("query")
    def _check_query(self, proposal: t.Bunch) -> int:
        if proposal.value >= len(self.words):
            raise TraitValueError(
                f"query must lie in 0..{len(self.words) - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("vectors")
    def _fit_sentence(self, change: t.Bunch) -> None:
        if not set(self.words) <= set(self._known(change.new)):
            self.query = 0
            self.sentence = SENTENCES[change.new]
            self.query = self._default_query()
        if change.new == "by hand":
            self.head = 0

    @t.observe("sentence")
    def _fit_query(self, change: t.Bunch) -> None:
        self.query = min(self.query, len(_split_words(change.new)) - 1)

    def _known(self, vectors: str) -> Sequence[str]:
        """The words that have vectors."""
        if vectors == "by hand" or self._model is None:
            return list(VECTORS)
        return self._model.words

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        def matrix(rows: list[list[int]]) -> Tensor:
            return torch.tensor(rows, dtype=torch.float64)

        words = _split_words(state.sentence)
        if state.vectors == "trained":
            assert self._model is not None
            x = self._model.vectors(words)
            projections = self._model.projections(state.head)
        else:
            x = matrix([VECTORS[word] for word in words])
            projections = [matrix(rows) for rows in PROJECTIONS.values()]
        queries, keys, values = (x @ projection for projection in projections)
        scaled = scaled_dot_product_score(queries, keys)
        mask = causal_mask(len(words)) if state.is_causal else None
        output, weights = attention_pooling(scaled, values, mask)
        return {
            "x": x,
            "query": queries,
            "key": keys,
            "value": values,
            "scores": dot_product_score(queries, keys),
            "scaled": scaled,
            "weights": weights,
            "weighted": weights[state.query][:, None] * values,
            "output": output,
        }

    def figure(self) -> Figure:
        """The steps taken so far for the chosen query, one column per word, as a matplotlib Figure."""
        from mha_lib import plots

        found, words = self.numbers(), self.words
        if self.vectors == "trained":
            return plots.plot_weights(
                found["weights"][None],
                query_labels=words,
                values=False,
                titles=[f"head {self.head} of the trained model"],
            )
        hidden = [self.is_causal and key > self.query for key in range(len(words))]
        rows: list[tuple[int, str, Tensor, str, int]] = [
            (0, "input x", found["x"], "#666666", 0),
            (1, "1  query q", found["query"], plots.QUERY, 0),
            (1, "1  keys k", found["key"], plots.KEY, 0),
            (1, "1  values v", found["value"], plots.VALUE, 0),
            (2, "2  scores q·k", found["scores"][self.query, :, None], "#666666", 0),
            (3, "3  over √4", found["scaled"][self.query, :, None], "#666666", 1),
            (4, "4  softmax", found["weights"][self.query, :, None], "#666666", 2),
            (5, "5  weight × v", found["weighted"], plots.VALUE, 2),
            (6, "6  sum: output", found["output"], plots.VALUE, 2),
        ]
        rows = [row for row in rows if row[0] <= self.step]
        figure, axis = plots.new_figure(
            width=max(3.4, 1.1 + 1.15 * len(words)), height=0.5 + 0.38 * len(rows)
        )
        for place, (_, name, numbers, color, digits) in enumerate(rows):
            only_query = name.endswith(("query q", "output"))
            axis.text(-0.4, -place, name, ha="right", va="center", fontsize=8)
            for token, entries in enumerate(numbers.tolist()):
                if only_query and token != self.query:
                    continue
                if name.endswith("softmax") and hidden[token]:
                    middle = token * 5 + 2
                    axis.text(middle, -place, "hidden", **_CENTRED, fontsize=7)
                    continue
                _draw_entries(axis, token, -place, entries, color, digits)
        for token, word in enumerate(words):
            axis.text(
                token * 5 + 2,
                0.8,
                word,
                **_CENTRED,
                fontsize=8,
                fontweight="bold" if token == self.query else "normal",
                parse_math=False,
            )
        axis.set(xlim=(-4.6, 5 * len(words)), ylim=(-len(rows) + 0.4, 1.3))
        axis.axis("off")
        return figure


def _draw_entries(
    axis: Axes, token: int, y: int, entries: list[float], color: str, digits: int
) -> None:
    start = token * 5 + (EMBED_DIM - len(entries)) / 2
    for place, entry in enumerate(entries):
        axis.barh(
            y,
            1,
            left=start + place,
            height=0.8,
            color=color,
            alpha=0.18,
            edgecolor="white",
        )
        axis.text(
            start + place + 0.5, y, f"{entry:.{digits}f}", **_CENTRED, fontsize=6.5
        )
