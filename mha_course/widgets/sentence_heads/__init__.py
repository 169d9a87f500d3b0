"""The heads of a published sentence model on the reader's own text, which the reader's browser reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import traitlets as t

from mha_course._messages import messages
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Text, Whole, unfit
from mha_course.widgets.packing import pack
from mha_course.widgets.sentence_model import (
    FILE,
    MARKS,
    MEGABYTES,
    POSITIONS,
    PageBert,
    pack_bert,
    published_bert,
    unpack_bert,
)
from mha_lib import Bert
from mha_lib._checks import check_type, refusal
from mha_lib.inspection import capture_attention

TEXT = "the old baker's sailors near the teacher are happy in the station"
MOST_CHARACTERS, STRONGEST = 200, 5
LAYERS, HEADS = 6, 12


class SentenceHeads(Explorer):
    """The 72 heads of all-MiniLM-L6-v2 on a text that the reader types: all maps, and what one head reads.

    In the book, a button loads the model, 14 MB: its matrices in 8 bits and 9,400 of the 30,522 rows of its
    vocabulary in 6. A worker reads the text in the browser, and each weight differs by less than 0.15 from
    that of the float32 model. Until then the page shows the maps of its first text, which Python has stored.
    In a notebook with a kernel, Python reads each text with the whole model and sends the maps.

    Args:
        model: a `Bert` without a head to show instead; then the page contains it, rounded as in the file.
        pieces: the pieces of words that this model knows, in the order of its vocabulary, with `MARKS`.
        text: what is read, 1 to 200 characters and at most 48 pieces of words.
        layer: the layer of the chosen head.
        head: the chosen head.
        query: the piece whose reading is shown, counted from 0; the last if there are fewer.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or `pieces` do not belong to `model`.

    Example:
        >>> bert = Bert(8, 6, 3, 12, 2, max_len=9, head=False)
        >>> heads = SentenceHeads(bert, [*MARKS, "two", "head", "##s"], text="Two heads", query=2)
        >>> heads
        SentenceHeads(text='Two heads', layer=0, head=0, query=2)
        >>> heads.numbers()["reading"].shape  # two marks, and three pieces
        torch.Size([5])
    """

    _module: ClassVar[str] = "sentence_heads.js"

    model = t.Dict(read_only=True).tag(sync=True)
    """The packed model; in the book it is empty until the reader loads the file."""

    answer = t.Dict(read_only=True).tag(sync=True)
    """A text with its pieces and maps, from Python."""

    num_layers = t.Int(LAYERS, read_only=True).tag(sync=True)
    num_heads = t.Int(HEADS, read_only=True).tag(sync=True)
    file = t.Unicode(FILE, read_only=True).tag(sync=True)
    bounds = t.Dict(read_only=True).tag(sync=True)
    sentences = t.Dict(read_only=True).tag(sync=True)
    wanted = t.Bool(False).tag(sync=True)
    """Whether a browser that loads no file asks Python for the maps of each text."""

    text = Text(TEXT)
    layer = Whole(0, 0, "num_layers - 1")
    head = Whole(0, 0, "num_heads - 1")
    query = Whole(0, 0, POSITIONS - 1)

    def __init__(
        self,
        model: Bert | None = None,
        pieces: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        most = POSITIONS
        if model is not None or pieces is not None:
            packed = _check_model(model, pieces)
            self.set_trait("model", packed)
            self._own: PageBert | None = unpack_bert(packed)
            most = len(self._own.model.position_embedding.weight)
            self.set_trait("num_layers", packed["num_layers"])
            self.set_trait("num_heads", packed["num_heads"])
        else:
            self._own = None
        bounds = {"characters": MOST_CHARACTERS, "pieces": most, "megabytes": MEGABYTES}
        self.set_trait("bounds", bounds)
        self.set_trait("sentences", messages(__file__))
        super().__init__(**settings)
        if self._own is None:
            answer = self._answer()
            # Without the model, a page says what is missing only when maps are wanted.
            self.set_trait("answer", {} if "problem" in answer else answer)

    @t.validate("text")
    def _check_text(self, proposal: t.Bunch) -> str:
        count = len(proposal.value)
        if not 1 <= count <= MOST_CHARACTERS:
            raise unfit("text", f"have 1 to {MOST_CHARACTERS} characters", count)
        return str(proposal.value)

    @t.observe("text", "wanted")
    def _send_answer(self, change: t.Bunch) -> None:  # noqa: ARG002
        if self.wanted and self._own is None:
            self.set_trait("answer", self._answer())

    def _answer(self) -> dict[str, Any]:
        """The pieces of the text and all maps, or what is missing."""
        try:
            bert = published_bert()
        except FileNotFoundError as error:
            return {"text": self.text, "problem": str(error)}
        answer = {"text": self.text, "pieces": bert.pieces(self.text), "maps": ""}
        if len(answer["pieces"]) <= POSITIONS:
            with torch.no_grad(), capture_attention(bert.model) as maps:
                bert.model(bert.tokens(self.text))
            # Rounded to a millionth, because the last digits differ from machine to machine.
            steps = (torch.cat(list(maps.values())) * 2**20).round()
            answer["maps"] = pack(steps / 2**20)
        return answer

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        if self._own is None:
            return {"bert": (published_bert, "published_bert()")}
        return {"bert": (lambda: self._own, "unpack_bert(⟨model⟩)")}

    @staticmethod
    def _compute(
        text: str, layer: int, head: int, query: int, bert: PageBert
    ) -> dict[str, Any]:
        with torch.no_grad(), capture_attention(bert.model) as maps:
            bert.model(bert.tokens(text))
        weights = list(maps.values())[layer][0, head].double()
        length = len(weights)
        # On the previous piece, on itself, on the next one, and on the marks at both ends.
        looks = [weights.diagonal(step).sum() / length for step in (-1, 0, 1)]
        looks.append(weights[:, [0, -1]].sum() / length)
        return {
            "reading": weights[min(query, length - 1)],
            "looks": torch.stack(looks),
            "strongest": weights.mean(0).topk(min(STRONGEST, length)).values,
            "weights": weights,
        }


def _check_model(model: object, pieces: object) -> dict[str, Any]:
    """The packed model."""
    check_type("model", model, Bert)
    check_type("pieces", pieces, Sequence)
    assert isinstance(model, Bert)
    assert isinstance(pieces, Sequence)
    names = list(pieces)
    if hasattr(model, "output_bias"):
        raise refusal("model", "be a Bert with head=False", "head=True")
    if model.activation != "gelu" or model.embedding_norm.eps != 1e-12:
        got = f"{model.activation}, {model.embedding_norm.eps}"
        raise refusal("model", "have gelu and layer_norm_eps=1e-12", got)
    rows = len(model.embedding.weight)
    if len(names) != rows or len(set(names)) != rows:
        rule = f"hold {rows} different pieces, one for each row of the vocabulary"
        raise refusal("pieces", rule, f"{len(set(names))} of {len(names)}")
    if missing := [mark for mark in MARKS if mark not in names]:
        raise refusal("pieces", f"hold {', '.join(MARKS)}", f"none of {missing}")
    return pack_bert(model, names, range(rows))
