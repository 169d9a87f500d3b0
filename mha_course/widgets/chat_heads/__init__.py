"""The heads of a chat model: all its maps on a few texts, where they look, and what is lost without each."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import traitlets as t
from jaxtyping import Float, UInt8
from torch import Tensor

from mha_course._messages import messages
from mha_course.experiments import load_experiment
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Choice, Text, Whole, among, within
from mha_course.widgets.packing import pack, unpack
from mha_lib._checks import check_type, refusal

MAPS_FROM, HEADS_FROM = "chat_maps", "chat_heads"
KINDS = ("previous token", "induction", "first token", "same token")
"""What heads may look at, in the order of the scores."""

LOSSES_ON = ("held-out English", "repeated random tokens")
"""The texts on which the loss without each head was measured."""

MAX_LENGTH, STRONGEST = 64, 5


class TextMaps(NamedTuple):
    """The texts of the tokens, and the weights of all heads in 8 bits, where 255 is a weight of 1."""

    tokens: list[str]
    maps: UInt8[Tensor, "layers heads len len"]


class ChatMaps(NamedTuple):
    """The maps of a chat model on some texts, and what was measured of its heads.

    Attributes:
        scores: the weight of each head at each of `KINDS`.
        rises: how much the loss rises without each head, on each of `LOSSES_ON`, in nats.
        texts: the maps, by the names of the texts.
    """

    scores: Float[Tensor, "kinds layers heads"]
    rises: Float[Tensor, "measured layers heads"]
    texts: dict[str, TextMaps]


@functools.cache
def stored_maps() -> ChatMaps:
    """SmolLM2-135M-Instruct on eight texts, with the means over five draws that "chat_heads" has stored."""
    runs, found = load_experiment(HEADS_FROM), load_experiment(MAPS_FROM)
    scores = runs.results(LOSSES_ON[1], "where heads look").mean(0)
    rises = []
    for arm in LOSSES_ON:
        before = runs.results(arm, "loss of one sequence")[:, None, None]
        after = runs.results(arm, "loss of one sequence without one head")
        rises.append((after - before).mean(0))
    texts = {
        name: TextMaps(list(arm["tokens"]), found.state(name)["weights"])
        for name, arm in found.arms.items()
    }
    return ChatMaps(scores, torch.stack(rises), texts)


def pack_maps(maps: ChatMaps) -> dict[str, Any]:
    """The maps as the page stores them: of each map, the bytes on and below its diagonal, row by row."""

    def rounded(numbers: Tensor) -> list[float]:
        return [float(f"{number:.4g}") for number in numbers.flatten().tolist()]

    texts = {}
    for name, (tokens, whole) in maps.texts.items():
        rows, columns = torch.tril_indices(len(tokens), len(tokens))
        texts[name] = {"bytes": pack(whole[:, :, rows, columns], torch.uint8)}
    _, layers, heads = maps.scores.shape
    numbers = {"scores": rounded(maps.scores), "rises": rounded(maps.rises)}
    return {"layers": layers, "heads": heads, **numbers, "texts": texts}


def unpack_maps(packed: Mapping[str, Any]) -> ChatMaps:
    """The maps from `pack_maps`, which leaves out the texts of the tokens."""
    shape, texts = (packed["layers"], packed["heads"]), {}
    for name, text in packed["texts"].items():
        below = unpack(text["bytes"], *shape, -1, dtype=torch.uint8)
        length = math.isqrt(2 * below.shape[-1])
        maps = torch.zeros(*shape, length, length, dtype=torch.uint8)
        rows, columns = torch.tril_indices(length, length)
        maps[:, :, rows, columns] = below
        texts[name] = TextMaps([""] * length, maps)
    scores, rises = (
        torch.tensor(packed[key]).view(-1, *shape) for key in ("scores", "rises")
    )
    return ChatMaps(scores, rises, texts)


@functools.cache
def map_files() -> dict[str, str]:
    """The text, by name, of the file from which a page without Python loads the maps.

    It is a script, because a page that was opened from disk may load nothing else. Its name contains a digest
    of the contents.
    """
    content = json.dumps(pack_maps(stored_maps()), separators=(",", ":"))
    name = f"chat-heads-{hashlib.sha256(content.encode()).hexdigest()[:12]}.js"
    detail = f'{{"name":"{name}","content":{content}}}'
    return {name: f'dispatchEvent(new CustomEvent("mha-file",{{detail:{detail}}}));'}


class ChatHeads(Explorer):
    """All heads of a chat model on a few texts: their maps, what they read, and what is lost without each.

    Nothing is computed with the model in the page. Experiments have stored the weights, in 8 bits, and the
    loss on two other kinds of text without each head. The page loads them when a reader scrolls to them.

    A head is marked with a kind if it has at least 0.4 of its weight there, on random tokens that are said
    twice: the previous token, what followed the earlier copy (induction), the first token, or the same token.

    Args:
        maps: maps to show instead of those of SmolLM2-135M-Instruct; then the page contains them.
        text: name of the text that is shown; default the first.
        layer: the layer of the chosen head.
        head: the chosen head.
        query: position of the token whose reading is shown; default the last.
        kind: the kind of heads that stand out in the grid, "all" or one of `KINDS`.
        measured: the text whose loss without a head the bar below its map shows, one of `LOSSES_ON`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or the maps have different numbers of heads.

    Example:
        >>> few = torch.full((1, 2, 3, 3), 85, dtype=torch.uint8).tril()
        >>> texts = {"letters": TextMaps(["a", " b", " c"], few)}
        >>> maps = ChatMaps(torch.zeros(4, 1, 2), torch.zeros(2, 1, 2), texts)
        >>> heads = ChatHeads(maps, head=1)
        >>> heads
        ChatHeads(text='letters', layer=0, head=1, query=2, kind='all', measured='held-out English')
        >>> heads.numbers()["reading"].shape
        torch.Size([3])
    """

    _module: ClassVar[str] = "chat_heads.js"

    texts = t.List(t.Dict(), read_only=True).tag(sync=True)
    num_layers = t.Int(read_only=True).tag(sync=True)
    num_heads = t.Int(read_only=True).tag(sync=True)
    maps = t.Dict(read_only=True).tag(sync=True)
    """The packed maps; empty until a browser wants those of the experiment."""

    file = t.Unicode(read_only=True).tag(sync=True)
    sentences = t.Dict(read_only=True).tag(sync=True)
    wanted = t.Bool(False).tag(sync=True)
    """Whether a browser that cannot load the file asks Python for the maps."""

    text = Text(None)
    layer = Whole(0, 0, "num_layers - 1")
    head = Whole(0, 0, "num_heads - 1")
    query = Whole(None, 0, MAX_LENGTH - 1)
    kind = Choice("all", ("all", *KINDS))
    measured = Choice(LOSSES_ON[0], LOSSES_ON)

    def __init__(self, maps: ChatMaps | None = None, **settings: Any) -> None:
        self._is_stored = maps is None
        if maps is None:
            maps = stored_maps()
            self.set_trait("file", next(iter(map_files())))
        self._maps = _check_maps(maps)
        said = messages(__file__)
        texts = [
            {"name": name, "about": said.get(_about(name), ""), "tokens": text.tokens}
            for name, text in maps.texts.items()
        ]
        self.set_trait("texts", texts)
        spoken = {k: v for k, v in said.items() if not k.startswith(_about(""))}
        self.set_trait("sentences", spoken)
        _, layers, heads = maps.scores.shape
        self.set_trait("num_layers", layers)
        self.set_trait("num_heads", heads)
        if not self._is_stored:
            self.set_trait("maps", pack_maps(maps))
        super().__init__(**settings)

    @t.default("text")
    def _default_text(self) -> str:
        return next(iter(self._maps.texts))

    @t.default("query")
    def _default_query(self) -> int:
        return len(self._maps.texts[self.text].tokens) - 1

    @t.validate("text")
    def _check_text(self, proposal: t.Bunch) -> str:
        return str(among(proposal, self._maps.texts))

    @t.validate("query")
    def _check_query(self, proposal: t.Bunch) -> int:
        return within(proposal, 0, len(self._maps.texts[self.text].tokens) - 1)

    @t.observe("text")
    def _show_last_token(self, change: t.Bunch) -> None:
        self.query = len(self._maps.texts[change.new].tokens) - 1

    @t.observe("wanted")
    def _send_maps(self, change: t.Bunch) -> None:
        if change.new:
            self.set_trait("maps", pack_maps(self._maps))

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        text = "stored_maps()" if self._is_stored else "unpack_maps(⟨maps⟩)"
        return {"found": (lambda: self._maps, text)}

    @staticmethod
    def _compute(
        text: str, layer: int, head: int, query: int, found: ChatMaps
    ) -> dict[str, Any]:
        weights = found.texts[text].maps[layer, head].double() / 255
        received = weights.mean(0)
        return {
            "reading": weights[query, : query + 1],
            "strongest": received.topk(min(STRONGEST, len(received))).values,
            "scores": found.scores[:, layer, head],
            "rises": found.rises[:, layer, head],
            "weights": weights,
        }


def _about(name: str) -> str:
    """The name of the message about a text."""
    return "about-" + name.lower().replace(",", "").replace(" ", "-")


def _check_maps(maps: object) -> ChatMaps:
    check_type("maps", maps, ChatMaps)
    assert isinstance(maps, ChatMaps)
    shape = tuple(maps.scores.shape[1:])
    if not maps.texts:
        raise refusal("maps", "hold at least one text", maps.texts)
    for name, text in maps.texts.items():
        length = len(text.tokens)
        if not 1 <= length <= MAX_LENGTH:
            raise refusal(
                f"the text {name!r}", f"have 1 to {MAX_LENGTH} tokens", length
            )
        if text.maps.shape != (*shape, length, length):
            rule = f"have shape {(*shape, length, length)}"
            raise refusal(f"the maps of {name!r}", rule, tuple(text.maps.shape))
    return maps
