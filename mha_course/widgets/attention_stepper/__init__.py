"""The attention stepper: the six steps of self-attention, for a sentence of hand-made or trained vectors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_course.data import SENTENCE_WORDS
from mha_course.experiments import load_experiment
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Choice, Flag, Text, Whole, unfit, within
from mha_course.widgets.packing import pack_all
from mha_lib.attention import attention_pooling
from mha_lib.masking import causal_mask
from mha_lib.scores import dot_product_score, scaled_dot_product_score

MAX_WORDS, MAX_CHARACTERS = 12, 200
EMBED_DIM = 4

SENTENCES = {
    "by hand": "sailors were happy",
    "trained": "the old baker's sailors near the teacher ___ happy in the station",
}
"""The first sentence for each kind of vectors."""

TRAINED = ("words", "4 heads", 4)
"""The stored model: name of the experiment, arm and seed."""

VECTORS = {"sailors": [1, 0, 2, 0], "were": [0, 1, 1, 0], "happy": [1, 1, 0, 1]}
"""The words that have hand-made vectors."""

PROJECTIONS = {
    "query": [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]],
    "key": [[0, -1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]],
    "value": [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
}
"""Small whole numbers, so that a reader can check each step with a pencil. Row i belongs to entry i of x."""

STEPS = ("project", "score", "scale", "softmax", "weigh", "add")

# The spaces are written out because Python and JavaScript disagree about which characters are spaces.
_SEPARATORS = re.compile(
    r"[\t-\r \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]+"
)


def split_words(sentence: str) -> list[str]:
    """The tokens of a sentence, which are its parts between spaces."""
    return [word for word in _SEPARATORS.split(sentence) if word]


class _Sentence(Text):
    """A str of 1 to MAX_WORDS words; the widget checks that each has a vector."""

    def __init__(self, default_value: str | None) -> None:
        super().__init__(default_value)
        self._limits |= {"words": MAX_WORDS, "characters": MAX_CHARACTERS}

    def _check(self, value: Any, limits: dict[str, Any]) -> str:
        text = super()._check(value, limits)
        rule = f"have at most {MAX_CHARACTERS} characters"
        self._insist(len(value) <= MAX_CHARACTERS, rule, value)
        fits = 1 <= len(split_words(value)) <= MAX_WORDS
        self._insist(fits, f"hold 1 to {MAX_WORDS} words", value)
        return text


class SentenceModel:
    """The attention layer of the model that fills in a blank, with the vectors of words and positions."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
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
        """The vectors of words at their positions, (len, embed_dim) in float64."""
        tokens = [self.words.index(word) for word in words]
        places = self.tensors["positions"][: len(words)]
        return self.tensors["embedding"][tokens].double() + places.double()

    def projections(self, head: int) -> list[Tensor]:
        """The matrices for the queries, keys and values of a head, three of (embed_dim, head_dim)."""
        width = self.embed_dim // self.num_heads
        rows = slice(width * head, width * (head + 1))
        return [
            self.tensors[role][rows].double().T for role in ("query", "key", "value")
        ]

    def for_browser(self) -> dict[str, Any]:
        """The words, the sizes and the exact float32 weights, as base64."""
        return {
            "words": list(self.words),
            "num_heads": self.num_heads,
            "embed_dim": self.embed_dim,
            "stored": list(TRAINED),
            "weights": pack_all(self.tensors),
        }


class AttentionStepper(Explorer):
    """Self-attention over a short sentence, one step after the other, with all numbers written out.

    There are two kinds of vectors. The hand-made ones are small whole numbers for three words and one head,
    so that a reader can compute every step with a pencil. The trained ones come from a model with four heads
    that fills in the blank of an English sentence (`experiments/words.py`), so its heads look at words for a
    reason.

    Args:
        vectors: "by hand" or "trained".
        sentence: 1 to 12 words that have such vectors; default the sentence of the chapter.
        head: index of the trained model's head that is shown; with hand-made vectors, there is only head 0.
        query: index of the token whose arithmetic is written out; default the blank, if there is one.
        step: 1 project, 2 score, 3 scale, 4 softmax, 5 weigh, 6 add.
        is_causal: hide the later keys from each query.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, a word has no vector, or the course's stored model is
            missing or damaged.

    Example:
        >>> stepper = AttentionStepper(sentence="sailors were happy")
        >>> stepper
        AttentionStepper(vectors='by hand', sentence='sailors were happy', head=0, query=0, step=1)
        >>> stepper.numbers()["scores"][0].tolist()
        [2.0, 4.0, 0.0]
        >>> trained = AttentionStepper(vectors="trained")
        >>> weights = trained.numbers()["weights"][trained.query]
        >>> trained.words[trained.query], trained.words[weights.argmax()]
        ('___', 'sailors')
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
        self._model: SentenceModel | None = None
        try:
            name, arm, seed = TRAINED
            state = load_experiment(name).state(arm, seed=seed)
            self._model = SentenceModel(state)
            self.set_trait("trained", self._model.for_browser())
        except (OSError, ValueError) as error:
            # The hand-made vectors still work, and the widget says what is wrong.
            self.set_trait("trained", {"problem": str(error)})
        super().__init__(**settings)

    @property
    def words(self) -> list[str]:
        """The tokens of the sentence."""
        return split_words(self.sentence)

    @t.default("sentence")
    def _default_sentence(self) -> str:
        return SENTENCES[self.vectors]

    @t.default("query")
    def _default_query(self) -> int:
        return self.words.index("___") if "___" in self.words else 0

    @t.validate("vectors")
    def _check_vectors(self, proposal: t.Bunch) -> str:
        if proposal.value == "trained" and self._model is None:
            rule = f"be 'by hand', because {self.trained['problem']}"
            raise unfit("vectors", rule, "'trained'")
        return str(proposal.value)

    @t.validate("sentence")
    def _check_sentence(self, proposal: t.Bunch) -> str:
        known = self._known(self.vectors)
        unknown = [word for word in split_words(proposal.value) if word not in known]
        if unknown:
            rule = f"hold only words that have vectors, {', '.join(known)}"
            raise unfit("sentence", rule, repr(unknown[0]))
        return str(proposal.value)

    @t.validate("head")
    def _check_head(self, proposal: t.Bunch) -> int:
        if proposal.value and self.vectors == "by hand":
            rule = "be 0 where the vectors are made by hand"
            raise unfit("head", rule, proposal.value)
        return int(proposal.value)

    @t.validate("query")
    def _check_query(self, proposal: t.Bunch) -> int:
        return within(proposal, 0, len(self.words) - 1)

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
        self.query = min(self.query, len(split_words(change.new)) - 1)

    def _known(self, vectors: str) -> Sequence[str]:
        """The words that have vectors."""
        if vectors == "by hand" or self._model is None:
            return list(VECTORS)
        return self._model.words

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        name, arm, seed = TRAINED
        state = f'load_experiment("{name}").state("{arm}", seed={seed})'
        model = f'vectors == "trained" and SentenceModel({state})'
        return {"model": (lambda: self._model, model)}

    @staticmethod
    def _compute(
        vectors: str,
        sentence: str,
        head: int,
        query: int,
        is_causal: bool,
        model: SentenceModel | None,
    ) -> dict[str, Any]:
        words = split_words(sentence)
        if vectors == "trained" and model is not None:
            x, projections = model.vectors(words), model.projections(head)
        else:
            x = torch.tensor([VECTORS[word] for word in words]).double()
            projections = [torch.tensor(rows).double() for rows in PROJECTIONS.values()]
        # 1 project, 2 score, 3 scale
        queries, key, value = (x @ projection for projection in projections)
        scores = dot_product_score(queries, key)
        scaled = scaled_dot_product_score(queries, key)
        # 4 softmax, 5 weigh, 6 add: for all queries at once
        mask = causal_mask(len(words)) if is_causal else None
        output, weights = attention_pooling(scaled, value, mask)
        return {
            "output": output,
            # Step 5 alone, for the chosen query.
            "weighted": weights[query][:, None] * value,
            "x": x,
            "query": queries,
            "key": key,
            "value": value,
            "scores": scores,
            "scaled": scaled,
            "weights": weights,
        }
