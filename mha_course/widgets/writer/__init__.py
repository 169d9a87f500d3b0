"""The writer: a small GPT that continues a text, character by character, inside the page."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_course.built import MyGPT
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Number, Numbers, Text, Whole, unfit
from mha_course.widgets.head_training import _PageRandom
from mha_course.widgets.packing import pack_parameters, unpack_parameters
from mha_lib._checks import check_type, refusal
from mha_lib.inspection import capture_attention, gate_heads
from mha_lib.models.language_models import GPT2

MAX_HEADS, MAX_LAYERS, MAX_LENGTH = 8, 4, 256
"""With larger numbers, the maps would be too many or too large for a page."""

MAX_PROMPT, MAX_WRITTEN = 1000, 500
"""So many characters a prompt may have, and so many are written."""

LIKELIEST = 8
"""So many of the likeliest next characters are shown."""


class Writer(Explorer):
    """A trained GPT in the page: it continues what a reader types, and shows how it chooses each character.

    The model runs in the browser, with a cache of keys and values, on weights that are rounded to 8 bits; the
    text never leaves the page. The page shows the probabilities from which the next character is drawn, the
    map of each head for the present text, and how both change with heads switched off.

    The model reads as many of the last characters as it has positions. The seed fixes a random number for
    each position, so a character that is undone and drawn again is the same. The next character is the one
    on which this number falls if the probabilities are laid side by side, the largest first.

    Args:
        model: a `MyGPT` of chapter 7, or a `GPT2` with ReLU; its output may be tied to its input.
        alphabet: the characters that the model knows, in the order of its tokens.
        prompt: what the model continues, 1 to 1,000 characters; default the first letter of the alphabet.
        written: what it has written so far, at most 500 characters.
        temperature: divides the logits, 0.1 to 2.
        top_k: number of characters that can be drawn; default all.
        seed: fixes the random number of each position, 0 to 99.
        gates: one number for each head, layer by layer; 0 switches it off; default all 1.
        layer: the layer whose map is shown; default the last.
        head: the head whose map is shown.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the model has a different structure, or an argument is outside its range.

    Example:
        >>> model = MyGPT(3, embed_dim=8, num_heads=2, num_layers=1, max_len=16)
        >>> writer = Writer(model, "ab ", prompt="a b")
        >>> writer
        Writer(prompt='a b', written='', temperature=1, top_k=3, seed=0, off=0)
        >>> writer.numbers()["probabilities"].shape
        torch.Size([3])
    """

    _module: ClassVar[str] = "writer.js"

    packed = t.Dict(read_only=True).tag(sync=True)
    alphabet = t.Unicode(read_only=True).tag(sync=True)
    vocab_size = t.Int(read_only=True).tag(sync=True)
    num_heads = t.Int(read_only=True).tag(sync=True)
    num_layers = t.Int(read_only=True).tag(sync=True)
    prompt = Text(None)
    written = Text("")
    temperature = Number(1.0, 0.1, 2.0)
    top_k = Whole(None, 1, "vocab_size")
    seed = Whole(0, 0, 99)
    gates = Numbers(None, 0, 1, "num_layers * num_heads", ends=True).tag(in_repr=False)
    layer = Whole(None, 0, "num_layers - 1").tag(in_repr=False)
    head = Whole(0, 0, "num_heads - 1").tag(in_repr=False)

    def __init__(
        self, model: GPT2 | MyGPT, alphabet: str | Sequence[str], **settings: Any
    ) -> None:
        checked = _check_model(model)
        characters = _check_alphabet(alphabet, checked.embedding.num_embeddings)
        self.set_trait("packed", pack_writer(checked))
        self.set_trait("alphabet", characters)
        self.set_trait("vocab_size", len(characters))
        self.set_trait("num_heads", checked.encoder.num_heads)
        self.set_trait("num_layers", len(checked.encoder.blocks))
        self._rounded = unpack_writer(self.packed)
        super().__init__(**settings)

    @t.default("prompt")
    def _default_prompt(self) -> str:
        return max(self.alphabet, key=str.isalpha)

    @t.default("top_k")
    def _default_top_k(self) -> int:
        return int(self.vocab_size)

    @t.default("gates")
    def _default_gates(self) -> list[float]:
        return [1.0] * (self.num_layers * self.num_heads)

    @t.default("layer")
    def _default_layer(self) -> int:
        return int(self.num_layers - 1)

    @t.validate("prompt", "written")
    def _check_text(self, proposal: t.Bunch) -> str:
        text, name = str(proposal.value), proposal.trait.name
        low, high = (1, MAX_PROMPT) if name == "prompt" else (0, MAX_WRITTEN)
        if not low <= len(text) <= high:
            raise unfit(name, f"have {low} to {high} characters", len(text))
        if unknown := "".join(sorted(set(text) - set(self.alphabet))):
            rule = "have characters of the alphabet, which the model has seen"
            raise unfit(name, rule, repr(unknown))
        return text

    def model(self) -> GPT2:
        """The model as the page uses it, in float32, with weights that are rounded to 8 bits."""
        return self._rounded

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        return {"model": (self.model, "unpack_writer(⟨packed⟩)")}

    @staticmethod
    def _compute(
        prompt: str,
        written: str,
        temperature: float,
        top_k: int,
        seed: int,
        gates: list[float],
        layer: int,
        head: int,
        alphabet: str,
        model: GPT2,
    ) -> dict[str, Any]:
        # As the page computes: weights of float32, sums in float64.
        model = copy.deepcopy(model).double()
        seen = (prompt + written)[-model.max_len :]
        tokens = torch.tensor([[alphabet.index(character) for character in seen]])
        blocks: Any = model.encoder.blocks
        rows = torch.tensor(gates).double().view(len(blocks), -1)
        with ExitStack() as stack:
            for block, row in zip(blocks, rows, strict=True):
                stack.enter_context(gate_heads(block.self_attention, row))
            captured = stack.enter_context(capture_attention(model))
            logits = model(tokens)[1][0, -1] / temperature
        least = logits.topk(top_k).values[-1]
        probabilities = logits.masked_fill(logits < least, -math.inf).softmax(-1)
        likely, order = probabilities.sort(descending=True, stable=True)
        # The page's own random number of this place; where it falls is what is drawn.
        number = _PageRandom(seed, len(written)).uniform(1)
        drawn = order[int((likely.cumsum(0) <= number).sum())]
        return {
            "probabilities": likely[:LIKELIEST],
            "number": number,
            "drawn": drawn,
            "weights": captured[f"encoder.blocks.{layer}.self_attention"][0, head],
        }

    def _details(self) -> list[str]:
        return [f"off={self.gates.count(0.0)}"]


def pack_writer(model: GPT2) -> dict[str, Any]:
    """A model as the page stores it, with its sizes; see `pack_parameters`."""
    heads, layers = model.encoder.num_heads, len(model.encoder.blocks)
    return {"num_heads": heads, "num_layers": layers} | pack_parameters(model)


def unpack_writer(packed: Mapping[str, Any]) -> GPT2:
    """The model of `pack_writer`, with its rounded weights in float32, as the page uses it."""
    return _model_of(unpack_parameters(packed), packed["num_heads"])


def _model_of(state: Mapping[str, Tensor], num_heads: int) -> GPT2:
    """A model of the page's kind from its parameters, whose shapes give all its sizes except one."""
    vocab_size, width = state["embedding.weight"].shape
    model = GPT2(
        vocab_size,
        width,
        num_heads,
        len(state["encoder.blocks.0.feed_forward.up_proj.weight"]),
        len({name.split(".")[2] for name in state if name.startswith("encoder.b")}),
        max_len=len(state["position_embedding.weight"]),
        activation="relu",
        tied="output.weight" not in state,
    )
    model.load_state_dict(dict(state))
    return model.eval().requires_grad_(False)


def _check_model(model: object) -> GPT2:
    # By its name, because a reader's own `MyGPT` is another class. In the library, `blocks` and `norm` are
    # parts of an `encoder`.
    if isinstance(model, torch.nn.Module) and type(model).__name__ == MyGPT.__name__:
        own, inside = model.state_dict().items(), ("blocks.", "norm.")
        state = {f"encoder.{n}" if n.startswith(inside) else n: w for n, w in own}
        blocks: Any = model.blocks
        model = _model_of(state, blocks[0].self_attention.num_heads)
    check_type("model", model, GPT2)
    assert isinstance(model, GPT2)
    sizes = (model.encoder.num_heads, len(model.encoder.blocks), model.max_len)
    most = (MAX_HEADS, MAX_LAYERS, MAX_LENGTH)
    if any(size > limit for size, limit in zip(sizes, most, strict=True)):
        rule = "have at most {} heads, {} layers and {} positions".format(*most)
        raise refusal("model", rule, sizes)
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise TypeError("model must have float32 parameters")
    # A different activation, norm or scoring rule shows in the parameters or in the logits.
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    tokens = torch.arange(model.max_len).unsqueeze(0) % model.embedding.num_embeddings
    try:
        plain = _model_of(state, sizes[0])
        a, b = (copy.deepcopy(m).double().eval()(tokens)[1] for m in (plain, model))
        same = torch.allclose(a, b, atol=1e-6)
    except (KeyError, RuntimeError, ValueError):
        same = False
    if not same:
        raise refusal("model", "have ReLU and the parts of a GPT2", model)
    return plain


def _check_alphabet(alphabet: object, vocab_size: int) -> str:
    check_type("alphabet", alphabet, Sequence)
    assert isinstance(alphabet, Sequence)
    listed = list(alphabet)
    is_fit = all(isinstance(one, str) and len(one) == 1 for one in listed)
    if not is_fit or not len(set(listed)) == len(listed) == vocab_size:
        rule = f"hold a different character for each of {vocab_size} tokens"
        raise refusal("alphabet", rule, repr(alphabet))
    return "".join(listed)
