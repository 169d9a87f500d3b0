"""The translator: a whole Transformer inside the page that reads a date and writes it in ISO 8601."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
import traitlets as t
from torch import Tensor

from mha_course.data.dates import (
    DATE_LETTERS,
    END,
    ISO_SYMBOLS,
    SOURCE_LENGTH,
    START,
    TARGET_LENGTH,
    WrittenDates,
    date_batch,
    decode_target,
    encode_source,
    encode_target,
)
from mha_course.experiments import load_experiment
from mha_course.widgets._base import Explorer, Given
from mha_course.widgets._traits import Choice, Flag, Numbers, Text, Whole, among, within
from mha_course.widgets.packing import pack_parameters, unpack_parameters
from mha_lib._checks import check_type, refusal
from mha_lib.inspection import capture_attention, gate_heads
from mha_lib.models.generation import beam_decode, greedy_decode
from mha_lib.models.seq2seq import EncoderDecoder
from mha_lib.multi_head import MultiHeadAttention

MAX_HEADS, MAX_LAYERS, MAX_BEAM = 8, 4, 5
"""With larger numbers, there would be too many maps for a page."""

ATTENTIONS = ("encoder", "decoder", "cross")
"""The three kinds of attention: letters to letters, answer to earlier answer, answer to letters."""

RUNNERS_UP = 5
"""The number of most probable next characters that are shown."""

HELD_OUT = 200
"""The number of held-out dates on which right answers are counted."""

EXPERIMENT = "dates"
"""The experiment whose models are shown unless others are given."""

_GREEDY: dict[str, Any] = {"start": START, "end": END, "max_len": TARGET_LENGTH}


def pack_model(model: EncoderDecoder) -> dict[str, Any]:
    """A model as the page stores it: matrices as bytes with a scale for each row, vectors in float32.

    Args:
        model: the model.

    Returns:
        Its sizes, the names and shapes of its parameters, their numbers in base64, and under "error" the root
        mean square of the rounding errors, relative to that of the matrices.

    Example:
        >>> model = EncoderDecoder(7, 5, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2)
        >>> packed = pack_model(model)
        >>> packed["num_heads"], packed["shapes"][-2:]
        (3, [['output.weight', 5, 6], ['output.bias', 5]])
    """
    return {
        "num_heads": model.encoder.num_heads,
        "num_layers": len(model.encoder.blocks),
        **pack_parameters(model),
    }


def unpack_model(packed: Mapping[str, Any]) -> EncoderDecoder:
    """The model from `pack_model`, with the rounded weights of the page, in float32.

    Args:
        packed: the result of `pack_model`.

    Returns:
        The model, in eval mode.

    Example:
        >>> model = EncoderDecoder(7, 5, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2)
        >>> rounded = unpack_model(pack_model(model))
        >>> (rounded.output.weight - model.output.weight).abs().max().item() < 0.01
        True
    """
    return _model_of(unpack_parameters(packed), packed["num_heads"])


def _model_of(state: Mapping[str, Tensor], num_heads: int) -> EncoderDecoder:
    """A model of the page's kind from its parameters, whose shapes give all sizes except `num_heads`."""
    target_vocab, width = state["output.weight"].shape
    blocks = {name.split(".")[2] for name in state if name.startswith("encoder.blocks")}
    model = EncoderDecoder(
        len(state["source_embedding.weight"]),
        target_vocab,
        width,
        num_heads,
        len(state["encoder.blocks.0.feed_forward.up_proj.weight"]),
        len(blocks),
        max_len=SOURCE_LENGTH,
        bias="encoder.blocks.0.self_attention.q_proj.bias" in state,
    )
    model.load_state_dict(dict(state))
    return model.eval().requires_grad_(False)


@functools.cache
def _trained() -> dict[int, EncoderDecoder]:
    """The models of the stored experiment, by their number of heads."""
    found = load_experiment(EXPERIMENT)
    counts = {arm: int(arm.split()[0]) for arm in found.arms if "head" in arm}
    return {n: _model_of(found.state(arm), n) for arm, n in sorted(counts.items())}


@functools.cache
def _trained_packed(num_heads: int) -> dict[str, Any]:
    return pack_model(_trained()[num_heads])


@functools.cache
def model_files() -> dict[str, str]:
    """The texts, by name, of the files from which a page without Python loads further models.

    Each is a script, because a page that was opened from disk may load nothing else. A name contains the
    number of heads and a digest of the contents.
    """
    files = {}
    for num_heads in _trained():
        content = json.dumps(_trained_packed(num_heads), separators=(",", ":"))
        name = f"translator-{num_heads}-{_digest(content)}.js"
        detail = f'{{"name":"{name}","content":{content}}}'
        files[name] = f'dispatchEvent(new CustomEvent("mha-file",{{detail:{detail}}}));'
    return files


def model_in_file(name: str) -> dict[str, Any]:
    """What a file of `model_files` contains: a model as `pack_model` returns it.

    Args:
        name: the name of the file.

    Raises:
        ValueError: there is no such file, because the trained models have changed since it was written.

    Example:
        >>> model_in_file(next(iter(model_files())))["num_layers"]
        2
    """
    if name not in model_files():
        raise refusal("name", f"be one of {', '.join(model_files())}", repr(name))
    return _trained_packed(int(name.split("-")[1]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class _DateText(Text):
    """A str that the model can read."""

    def _check(self, value: Any, limits: dict[str, Any]) -> str:
        text = super()._check(value, limits)
        try:
            encode_source([text])
        except ValueError as error:
            rule = str(error).removeprefix("texts must ").partition(", got")[0]
            self._insist(False, rule, value)
        return text


class Translator(Explorer):
    """A complete Transformer in the page: a reader types a date in any language, and it answers in ISO 8601.

    The browser runs encoder, decoder with cache, and greedy and beam decoding, on weights that are rounded to
    8 bits. The page shows which letters each head reads while each character of the answer is written, and
    what the model answers with heads switched off.

    By default, the models are those of the stored experiment. The page contains the one that is shown and
    loads others when the slider needs them. If you pass models, the page contains all of them.

    Args:
        models: models to show instead of those of the experiment, which differ in the number of heads: one or
            more `EncoderDecoder`, with pre-norm blocks and ReLU, whose tokens are those of
            `mha_course.data.dates`.
        compact: show only the text, the answer and the letters that are read, without the maps.
        text: a date as people write it, 1 to 40 letters of `DATE_LETTERS`.
        num_heads: number of heads of the model that is shown; default 2, or that of the first model.
        gates: one number for each head (0 switches it off): all heads of the encoder, layer by layer, then
            those of the decoder's self-attention, then those of its cross-attention; default all 1.
        attention: the attention whose weights are shown, "encoder", "decoder" or "cross".
        layer: the layer that is shown; default the last.
        head: the head that is shown.
        step: the character of the answer that is being written, counted from 0; the last if there are fewer.
        letter: with "encoder", the letter that attends to the others; the last if there are fewer.
        beam_size: number of answers that the beam keeps; 1 decodes greedily.
        count_right: also answer held-out dates, and count the right answers.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a model has a different structure, or an argument is out of range.

    Example:
        >>> from mha_course.data.dates import DATE_LETTERS, ISO_SYMBOLS
        >>> sizes = (1 + len(DATE_LETTERS), len(ISO_SYMBOLS), 8, 2, 16, 1)
        >>> translator = Translator(EncoderDecoder(*sizes), text="3 May 2021", beam_size=3)
        >>> translator
        Translator(text='3 May 2021', num_heads=2, beam_size=3, off=0)
        >>> translator.numbers()["reading"].shape  # how much of each letter is read
        torch.Size([10])
    """

    _module: ClassVar[str] = "translator.js"

    models = t.Dict(read_only=True).tag(sync=True)
    head_counts = t.List(t.Int(), read_only=True).tag(sync=True)
    gates_per_head = t.Int(3, read_only=True).tag(sync=True)
    files = t.Dict(read_only=True).tag(sync=True)
    task = t.Dict(read_only=True).tag(sync=True)
    dates = t.Dict(read_only=True).tag(sync=True)
    compact = Flag(False).tag(setting=False)
    text = _DateText("3. März 2021")
    num_heads = Whole(None, 1, MAX_HEADS)
    gates = Numbers(None, 0, 1, "num_heads * gates_per_head", ends=True).tag(
        in_repr=False
    )
    attention = Choice("cross", ATTENTIONS).tag(in_repr=False)
    layer = Whole(None, 0, MAX_LAYERS - 1).tag(in_repr=False)
    head = Whole(0, 0, "num_heads - 1").tag(in_repr=False)
    step = Whole(6, 0, TARGET_LENGTH - 1).tag(in_repr=False)
    letter = Whole(0, 0, SOURCE_LENGTH - 1).tag(in_repr=False)
    beam_size = Whole(1, 1, MAX_BEAM)
    count_right = Flag(False).tag(in_repr=False)

    def __init__(
        self,
        models: EncoderDecoder | Sequence[EncoderDecoder] | None = None,
        *,
        compact: bool = False,
        **settings: Any,
    ) -> None:
        self._is_trained = models is None
        if models is None:
            self._models = _trained()
        else:
            listed = [models] if isinstance(models, EncoderDecoder) else models
            check_type("models", listed, Sequence)
            found = [_check_model(f"models[{i}]", m) for i, m in enumerate(listed)]
            self._models = {model.encoder.num_heads: model for model in found}
            if not found or len(self._models) < len(found):
                rule = "hold at least one model, and their numbers of heads must differ"
                counts = [model.encoder.num_heads for model in found]
                raise refusal("models", rule, counts)
        self._rounded: dict[int, EncoderDecoder] = {}
        self.compact = compact
        self.set_trait("head_counts", sorted(self._models))
        if self._is_trained:
            names = {name.split("-")[1]: name for name in model_files()}
            self.set_trait("files", names)
        else:
            packed = {str(n): pack_model(m) for n, m in self._models.items()}
            self.set_trait("models", packed)
        self.set_trait(
            "task",
            {
                "letters": DATE_LETTERS,
                "symbols": list(ISO_SYMBOLS),
                "start": START,
                "end": END,
                "source_length": SOURCE_LENGTH,
                "target_length": TARGET_LENGTH,
            },
        )
        dates = _held_out()
        answers = [decode_target(target) for target in dates.target]
        self.set_trait("dates", {"texts": list(dates.texts), "answers": answers})
        super().__init__(**settings)

    @t.default("num_heads")
    def _default_num_heads(self) -> int:
        return 2 if 2 in self._models else self.head_counts[0]

    @t.default("gates")
    def _default_gates(self) -> list[float]:
        return [1.0] * (self.gates_per_head * self.num_heads)

    @t.default("layer")
    def _default_layer(self) -> int:
        return self._num_layers(self.num_heads) - 1

    def _num_layers(self, num_heads: int) -> int:
        return len(self._models[num_heads].encoder.blocks)

    @t.validate("num_heads")
    def _check_num_heads(self, proposal: t.Bunch) -> int:
        return int(among(proposal, self.head_counts))

    @t.validate("layer")
    def _check_layer(self, proposal: t.Bunch) -> int:
        return within(proposal, 0, self._num_layers(self.num_heads) - 1)

    @t.observe("num_heads")
    def _fit_to_num_heads(self, change: t.Bunch) -> None:
        """Give the page the model, and choose a layer that the model has."""
        layers = self._num_layers(change.new)
        self.set_trait("gates_per_head", len(ATTENTIONS) * layers)
        if self._is_trained:
            # A page keeps all models that it has received, so only the new one needs to be sent.
            self.set_trait("models", {str(change.new): _trained_packed(change.new)})
        if isinstance(change.old, int):
            self.layer = min(self.layer, layers - 1)

    def model(self, num_heads: int | None = None) -> EncoderDecoder:
        """The model that the page computes with, in float32, with its weights rounded to 8 bits.

        Args:
            num_heads: number of heads of the model; default that of the model that is shown.

        Raises:
            ValueError: there is no model with `num_heads` heads.
        """
        wanted = self.num_heads if num_heads is None else num_heads
        if wanted not in self._models:
            rule = f"be one of {list(self.head_counts)}"
            raise refusal("num_heads", rule, repr(wanted))
        if wanted not in self._rounded:
            self._rounded[wanted] = unpack_model(pack_model(self._models[wanted]))
        return self._rounded[wanted]

    def answer(self) -> str:
        """The answer of the model in the present state, from torch."""
        return decode_target(self.numbers()["tokens"])

    def exact_match(self, *, rounded: bool = True) -> float:
        """The share of held-out dates that the model answers correctly with the present heads.

        Args:
            rounded: whether to use the rounded weights of the page, or those of full precision.
        """
        shown = self.model() if rounded else self._models[self.num_heads]
        model = _in_float64(shown)
        with _gated(model, self.gates):
            return right_answers(model).double().mean().item()

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:
        text = "Translator().model(num_heads)"
        model = text if self._is_trained else "unpack_model(⟨packed⟩)"
        return {
            "model": (lambda: self.model(settings["num_heads"]), model),
            # Only the program needs this count; in Python, call `exact_match`.
            "counts": (lambda: False, "⟨count_right⟩"),
        }

    @staticmethod
    def _compute(
        text: str,
        num_heads: int,  # noqa: ARG004, the program makes the model with it
        gates: list[float],
        attention: str,
        layer: int,
        head: int,
        step: int,
        letter: int,
        beam_size: int,
        model: EncoderDecoder,
        counts: bool,
    ) -> dict[str, Any]:
        model = _in_float64(model)
        source = encode_source([text])
        source = source[:, : int(_lengths(source))]
        with torch.no_grad(), _gated(model, gates):
            if beam_size > 1:
                answers, scores = beam_decode(
                    model, source, beam_size=beam_size, **_GREEDY
                )
                tokens = answers[0, 0]
            else:
                tokens, scores = greedy_decode(model, source, **_GREEDY)[0], None
            tokens = tokens[: int((tokens != END).sum()) + 1]
            written = torch.cat((tokens.new_tensor([START]), tokens[:-1]))
            with capture_attention(model) as captured:
                logits = model(source, written.unsqueeze(0))[0].log_softmax(-1)
            if counts:
                right = right_answers(model)
                print(f"{int(right.sum())} of {len(right)} held-out dates are right")
        log_probs = logits.gather(1, tokens.unsqueeze(1)).sum(0)
        step = min(step, len(tokens) - 1)
        weights = captured[_layer_name(attention, layer)][0, head]
        row = min(letter, source.shape[1] - 1) if attention == "encoder" else step
        seen = step + 1 if attention == "decoder" else len(weights[row])
        return {
            "reading": weights[row, :seen],
            "tokens": tokens,
            "log_probs": log_probs if scores is None else scores[0],
            "probabilities": logits[step].exp().topk(RUNNERS_UP).values,
            "weights": weights,
        }

    def _details(self) -> list[str]:
        return [f"off={self.gates.count(0.0)}"]


def _lengths(source: Tensor) -> Tensor:
    return (source != 0).sum(-1)


@functools.cache
def _held_out() -> WrittenDates:
    """The dates on which right answers are counted; they are the same for every model."""
    generator = torch.Generator().manual_seed(99)
    return date_batch(HELD_OUT, held_out=True, generator=generator)


def right_answers(model: EncoderDecoder) -> Tensor:
    """Which held-out dates a model answers correctly with greedy decoding, bool (HELD_OUT,)."""
    dates = _held_out()
    lens = _lengths(dates.source)
    answers = greedy_decode(model, dates.source, source_lens=lens, **_GREEDY)
    missing = TARGET_LENGTH - answers.shape[1]
    answers = torch.nn.functional.pad(answers, (0, missing), value=END)
    return (answers == dates.target).all(1)


def _layer_name(attention: str, layer: int) -> str:
    """The name of an attention layer in a model."""
    stack = "encoder" if attention == "encoder" else "decoder"
    kind = "cross_attention" if attention == "cross" else "self_attention"
    return f"{stack}.blocks.{layer}.{kind}"


def attention_layers(model: EncoderDecoder) -> list[MultiHeadAttention]:
    """The attention layers of a model in the order of the gates: encoder, decoder, cross, each by layer."""
    names = dict(model.named_modules())
    layers = range(len(model.encoder.blocks))
    found: list[Any] = [
        names[_layer_name(attention, layer)]
        for attention in ATTENTIONS
        for layer in layers
    ]
    return found


@contextmanager
def _gated(model: EncoderDecoder, gates: Sequence[float]) -> Iterator[None]:
    """All heads of a model multiplied by their gates while the block runs."""
    layers = attention_layers(model)
    rows = torch.tensor(gates, dtype=model.output.weight.dtype).view(len(layers), -1)
    with ExitStack() as stack:
        for layer, row in zip(layers, rows, strict=True):
            stack.enter_context(gate_heads(layer, row))
        yield


def _in_float64(model: EncoderDecoder) -> EncoderDecoder:
    """A copy that computes as the page does: weights of float32, sums in float64."""
    return copy.deepcopy(model).double().eval().requires_grad_(False)


def _check_model(name: str, model: object) -> EncoderDecoder:
    check_type(name, model, EncoderDecoder)
    assert isinstance(model, EncoderDecoder)
    sizes = (
        model.source_embedding.num_embeddings,
        model.output.out_features,
        len(model.positions.encoding),
    )
    known = (1 + len(DATE_LETTERS), len(ISO_SYMBOLS))
    if sizes[:2] != known or sizes[2] < SOURCE_LENGTH:
        rule = f"know {known[0]} letters, {known[1]} symbols"
        raise refusal(name, f"{rule} and {SOURCE_LENGTH} positions", sizes)
    counts = (model.encoder.num_heads, len(model.encoder.blocks))
    if counts[0] > MAX_HEADS or counts[1] > MAX_LAYERS:
        rule = f"have at most {MAX_HEADS} heads and {MAX_LAYERS} layers"
        raise refusal(name, rule, counts)
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise TypeError(f"{name} must have float32 parameters")
    # Other norms, activations or scoring rules would show in the parameters or in the logits.
    state = {n: p.detach().clone() for n, p in model.named_parameters()}
    pair = encode_source(["3 may 2021"]), encode_target(["2021-05-03"])
    try:
        plain = _model_of(state, counts[0])
        # A subclass may have a different `forward`; only `encode` and `decode` matter.
        found, wanted = (
            EncoderDecoder.forward(_in_float64(one), *pair) for one in (plain, model)
        )
        same = torch.allclose(found, wanted, atol=1e-6)
    except (KeyError, RuntimeError, ValueError):
        same = False
    if not same:
        rule = "have pre-norm blocks with layer norms, ReLU, and a key for each head"
        raise refusal(name, rule, model)
    return plain
