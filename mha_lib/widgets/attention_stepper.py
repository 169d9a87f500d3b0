"""The attention stepper: the six steps of self-attention, over a sentence that the reader types."""

from __future__ import annotations

import re
import unicodedata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_lib.attention import attention_pooling
from mha_lib.masking import causal_mask
from mha_lib.scores import dot_product_score, scaled_dot_product_score
from mha_lib.widgets._base import Explorer
from mha_lib.widgets._traits import Flag, Text, TraitValueError, Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_WORDS, MAX_CHARACTERS = 8, 200
EMBED_DIM = 4

VECTORS = {"we": [1, 0, 2, 0], "like": [0, 1, 1, 0], "tea": [1, 1, 0, 1]}
"""The words with given vectors; the vectors of all other words are made from their characters."""

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
# Control characters, including those that set the direction of the text, and halves of a surrogate pair.
_REFUSED = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2060-\u206f\ud800-\udfff]"
)
# Characters that only change their neighbours: a word of only these would be invisible.
_UNSEEN = re.compile(r"[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\ufe00-\ufe0f]+")


def _split_words(sentence: str) -> list[str]:
    """The tokens of a sentence: its parts between spaces, with each character in its composed form."""
    composed = unicodedata.normalize("NFC", sentence)
    return [word for word in _SEPARATORS.split(composed) if word]


def _word_vector(word: str) -> list[int]:
    """Four numbers from 0 to 2 for a word: from `VECTORS`, or else from its characters.

    Each character's Unicode number is multiplied by its place in the word, 1 for the first. The remainder of
    the sum divided by 80, plus one, written in base 3, has the four digits of the vector.
    """
    if word in VECTORS:
        return VECTORS[word]
    total = sum(place * ord(character) for place, character in enumerate(word, 1))
    code = 1 + total % 80
    return [code // 27, code // 9 % 3, code // 3 % 3, code % 3]


class _Sentence(Text):
    """A str of 1 to MAX_WORDS words that can be shown."""

    def limits(self) -> dict[str, Any]:
        """How many words and characters fit."""
        return {"words": MAX_WORDS, "characters": MAX_CHARACTERS}

    def _check(self, value: Any) -> str:
        text = super()._check(value)
        rule = f"have at most {MAX_CHARACTERS} characters"
        self._insist(len(value) <= MAX_CHARACTERS, rule, value)
        rule = "hold no control characters"
        self._insist(not _REFUSED.search(value), rule, value)
        words = _split_words(value)
        fits = 1 <= len(words) <= MAX_WORDS
        self._insist(fits, f"hold 1 to {MAX_WORDS} words", value)
        seen = not any(_UNSEEN.fullmatch(word) for word in words)
        self._insist(seen, "hold words that can be seen", value)
        return text


class AttentionStepper(Explorer):
    """Self-attention over a short sentence, one step after the other, with all numbers written out.

    Words become vectors of four small numbers. "we", "like" and "tea" have the vectors of the chapter; the
    vector of any other word is made from its characters. Such a vector has no meaning, but the same word
    always has the same vector. The projections are fixed matrices of small whole numbers, not trained.

    Args:
        sentence: 1 to 8 words, at most 200 characters.
        query: index of the token whose arithmetic is written out.
        step: 1 project, 2 score, 3 scale, 4 softmax, 5 weigh, 6 add.
        is_causal: hide the later keys from each query.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is outside its range.

    Example:
        >>> stepper = AttentionStepper(sentence="we like tea")
        >>> stepper
        AttentionStepper(sentence='we like tea', query=0, step=1)
        >>> stepper.numbers()["scores"][0].tolist()
        [2.0, 4.0, 0.0]
    """

    _module: ClassVar[str] = "attention_stepper.js"

    sentence = _Sentence("we like tea")
    query = Whole(0, 0, MAX_WORDS - 1)
    step = Whole(1, 1, len(STEPS))
    is_causal = Flag(False).tag(in_repr=False)
    vectors = t.Dict(VECTORS, read_only=True).tag(sync=True)
    projections = t.Dict(PROJECTIONS, read_only=True).tag(sync=True)

    @property
    def words(self) -> list[str]:
        """The tokens of the sentence."""
        return _split_words(self.sentence)

    @t.validate("query")
    def _check_query(self, proposal: t.Bunch) -> int:
        if proposal.value >= len(self.words):
            raise TraitValueError(
                f"query must lie in 0..{len(self.words) - 1}, got {proposal.value}"
            )
        return int(proposal.value)

    @t.observe("sentence")
    def _fit_query(self, change: t.Bunch) -> None:
        self.query = min(self.query, len(_split_words(change.new)) - 1)

    def _compute(self, state: SimpleNamespace) -> dict[str, Tensor]:
        def matrix(rows: list[list[int]]) -> Tensor:
            return torch.tensor(rows, dtype=torch.float64)

        words = _split_words(state.sentence)
        x = matrix([_word_vector(word) for word in words])
        queries, keys, values = (x @ matrix(rows) for rows in PROJECTIONS.values())
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
                _in_font(word),
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


def _in_font(word: str) -> str:
    """At most ten characters of a word; an empty box replaces those that matplotlib's own font lacks."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont("DejaVu Sans"))
    short = word if len(word) <= 10 else word[:9] + "…"
    return "".join(c if font.get_char_index(ord(c)) else "□" for c in short)
