"""The 270 heads of a published chat model, SmolLM2-135M-Instruct: where they look, what is lost without them.

Nothing is trained. Each arm is a kind of text, and its five "seeds" are five draws of it. The heads that are
switched off were chosen on a sixth draw, which nothing else uses. The model comes from the wheel that
`requirements-models.txt` pins; only running this script needs it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from common import rounded
from torch import Tensor
from torch.nn import functional as F

from mha_course.data.book_text import book_text
from mha_course.data.published import load_chat_model
from mha_lib import capture_attention

Head = tuple[int, int]  # layer and head, both counted from 0
Draw = tuple[
    Tensor, Tensor
]  # tokens (sequences, len), and the token that is the correct answer, or -100

LAYERS, HEADS, VOCAB = 30, 9, 49_152
DRAWS, CHOOSING = 5, 5  # the draws are numbers 0 to 4; number 5 chooses heads
SEQUENCES, HALF = 2, 40  # the text of a draw: two sequences of 80 tokens
OFF, RANDOM_CHOICES = (
    6,
    20,
)  # heads switched off together; draws of as many random heads
FIRST_QUERY = 8  # where a head looks is averaged from the ninth token on
SINK = 0.5  # a head with more weight than this on the first token, on held-out English
SCORES = ("previous token", "induction", "first token", "same token")

# The six with the highest scores on the draw of random tokens that chooses, best first; a run checks it.
INDUCTION: tuple[Head, ...] = ((18, 6), (17, 3), (17, 4), (18, 7), (23, 2), (17, 5))
PREVIOUS: tuple[Head, ...] = ((16, 0), (11, 1), (2, 1), (19, 3), (22, 1), (1, 2))

# Five groups of nouns, and a sixth that chooses heads; each noun stands with each of the group's other nouns.
NOUNS = (
    (("key", "keys"), ("teacher", "teachers"), ("picture", "pictures")),
    (("doctor", "doctors"), ("letter", "letters"), ("road", "roads")),
    (("dog", "dogs"), ("window", "windows"), ("author", "authors")),
    (("friend", "friends"), ("book", "books"), ("farmer", "farmers")),
    (("ship", "ships"), ("singer", "singers"), ("tree", "trees")),
    (("sailor", "sailors"), ("door", "doors"), ("song", "songs")),
)
OTHERS = (("cabinet", "cabinets"), ("station", "stations"))
VERBS = ((" is", " are"), (" was", " were"))  # singular and plural


@cache
def chat_model() -> tuple[Any, Any]:
    return load_chat_model(max_len=2 * HALF)


def random_twice(draw: int) -> Draw:
    """Random tokens, each sequence said twice. Only what can be copied is predicted: the second half."""
    generator = torch.Generator().manual_seed(draw)
    half = torch.randint(VOCAB, (SEQUENCES, HALF), generator=generator)
    tokens = half.repeat(1, 2)
    answers = tokens.roll(-1, 1)
    answers[:, :HALF], answers[:, -1] = -100, -100
    return tokens, answers


def english(draw: int) -> Draw:
    """Prose from the sections of this book's text that its own models never saw, younger than the chat model.

    Paragraphs with a formula, code or a table are left out, and of a link its text is kept.
    """
    _, tokenizer = chat_model()
    paragraphs = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", book_text("test")).split("\n\n")
    prose = [
        text.replace("*", "")
        for text in paragraphs
        if not set(text) & set("$`\\{}<>|#=")
    ]
    tokens = torch.tensor(tokenizer.encode("\n\n".join(prose)).ids)
    pieces = tokens.unfold(0, 2 * HALF, 2 * HALF)
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
    tokens = pieces[order[draw * SEQUENCES : (draw + 1) * SEQUENCES]]
    answers = tokens.roll(-1, 1)
    answers[:, -1] = -100
    return tokens, answers


def sentences(draw: int) -> tuple[Tensor, Tensor, Tensor]:
    """Beginnings such as "The keys to the cabinet": tokens, whether the subject is plural, and the other.

    All nouns are one token, so all sentences have the same length; the subject is at position 1.
    """
    _, tokenizer = chat_model()
    rows = []
    for subject, other in itertools.product(NOUNS[draw], OTHERS):
        for plural, other_plural in itertools.product((0, 1), (0, 1)):
            text = f"The {subject[plural]} near the {other[other_plural]}"
            rows.append((tokenizer.encode(text).ids, plural, other_plural))
    tokens, plural, other_plural = zip(*rows, strict=True)
    return torch.tensor(tokens), torch.tensor(plural), torch.tensor(other_plural)


@contextmanager
def without(
    heads: Sequence[Head], instead: Mapping[Head, Tensor] | None = None
) -> Iterator[None]:
    """Replace what heads add by zeros, or by a vector for each head, (head_dim,), while the block runs."""
    model, _ = chat_model()

    def replace(_: Any, inputs: tuple[Tensor], layer: int) -> tuple[Tensor]:
        found = inputs[0].unflatten(-1, (HEADS, -1)).clone()
        for head in (head for at, head in heads if at == layer):
            found[..., head, :] = 0.0 if instead is None else instead[layer, head]
        return (found.flatten(-2),)

    layers = {layer for layer, _ in heads}
    hooks = [
        model.encoder.blocks[layer].self_attention.out_proj.register_forward_pre_hook(
            partial(replace, layer=layer)
        )
        for layer in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def hidden(
    tokens: Tensor,
    blind: Tensor | None = None,
    start: Sequence[Tensor] = (),
    first: int = 0,
) -> list[Tensor]:
    """What enters each block, and what leaves the last, each (sequences, len, width).

    Heads that are True in `blind`, (30, 9), may not look at the first token, except from the first token
    itself. Blocks before `first` are not run again: what they gave is in `start`.
    """
    model, _ = chat_model()
    found = list(start[: first + 1]) or [model.embedding(tokens)]
    length = tokens.shape[1]
    for layer in range(first, LAYERS):
        mask = None
        if blind is not None:
            mask = torch.ones(1, HEADS, length, length, dtype=torch.bool)
            mask[:, blind[layer], 1:, 0] = False
        found.append(model.encoder.blocks[layer](found[-1], mask, is_causal=True))
    return found


def loss(
    draw: Draw,
    blind: Tensor | None = None,
    start: Sequence[Tensor] = (),
    first: int = 0,
) -> Tensor:
    """The mean loss of the answers, in nats."""
    model, _ = chat_model()
    tokens, answers = draw
    last = model.encoder.norm(hidden(tokens, blind, start, first)[-1])
    wanted = answers != -100
    return F.cross_entropy(
        F.linear(last[wanted], model.embedding.weight), answers[wanted]
    )


def where_heads_look(tokens: Tensor) -> Tensor:
    """The mean weight on each of `SCORES`, (4, 30, 9), over the queries for which there is such a token."""
    model, _ = chat_model()
    with capture_attention(model) as captured:
        model(tokens)
    maps = torch.stack(
        list(captured.values()), dim=1
    )  # (sequences, layers, heads, q_len, k_len)
    length = tokens.shape[1]
    at = torch.arange(length)
    earlier = at[:, None] > at
    same = (tokens[:, :, None] == tokens[:, None, :]) & earlier
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[
        :, :, :-1
    ]  # the key before this one is the query's own token
    after &= at[:, None] >= at
    previous = (at[:, None] == at + 1).expand_as(same)
    first = (at == 0).expand_as(same)
    found = []
    for seen in (previous, after & earlier, first, same):
        queries = seen.any(-1) & (at >= FIRST_QUERY)  # (sequences, q_len)
        weights = (maps * seen[:, None, None]).sum(-1).permute(0, 3, 1, 2)
        found.append(weights[queries].mean(0))
    return torch.stack(found)


def means_of_heads(tokens: Tensor, heads: Sequence[Head]) -> dict[Head, Tensor]:
    """The mean vector that each head gives on some tokens, before the output projection."""
    model, _ = chat_model()
    found: dict[Head, Tensor] = {}

    def note(_: Any, inputs: tuple[Tensor], layer: int) -> None:
        means = inputs[0].unflatten(-1, (HEADS, -1)).mean((0, 1))
        found.update({(at, head): means[head] for at, head in heads if at == layer})

    blocks = model.encoder.blocks
    hooks = [
        block.self_attention.out_proj.register_forward_pre_hook(
            partial(note, layer=layer)
        )
        for layer, block in enumerate(blocks)
    ]
    hidden(tokens)
    for hook in hooks:
        hook.remove()
    return found


def random_heads(heads: Sequence[Head], choice: int) -> list[Head]:
    """As many other heads of the same layers."""
    generator = torch.Generator().manual_seed(1000 + choice)
    found: list[Head] = []
    for layer in sorted({layer for layer, _ in heads}):
        chosen = [head for at, head in heads if at == layer]
        others = [head for head in range(HEADS) if head not in chosen]
        order = torch.randperm(len(others), generator=generator).tolist()
        found += [(layer, others[i]) for i in order[: len(chosen)]]
    return found


def strongest(scores: Tensor, number: int = OFF) -> tuple[Head, ...]:
    """The heads with the highest numbers in (30, 9), best first."""
    order = scores.flatten().argsort(descending=True)[:number].tolist()
    return tuple(divmod(place, HEADS) for place in order)


def losses_without(
    draw: Draw, heads: Sequence[Head], means: Mapping[Head, Tensor]
) -> dict[str, Tensor]:
    """The loss without some heads, with zeros and with means in their place, and without random heads."""
    start = hidden(draw[0])
    begin = min(layer for layer, _ in heads)
    found = {}
    with without(heads):
        found["zero"] = loss(draw, None, start, begin)
    with without(heads, means):
        found["mean"] = loss(draw, None, start, begin)
    controls = []
    for choice in range(RANDOM_CHOICES):
        with without(random_heads(heads, choice)):
            controls.append(loss(draw, None, start, begin))
    return found | {"random heads": torch.stack(controls)}


def without_one(draw: Draw) -> Tensor:
    """The loss of the first sequence of a draw without each head, (30, 9)."""
    one = draw[0][:1], draw[1][:1]
    start, found = hidden(one[0]), []
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        with without([(layer, head)]):
            found.append(loss(one, None, start, layer))
    return torch.stack(found).view(LAYERS, HEADS)


def blindfolds() -> dict[str, Tensor]:
    """Which heads may not look at the first token: sinks on held-out English, and all other heads."""
    tokens, _ = english(CHOOSING)
    sinks = where_heads_look(tokens)[SCORES.index("first token")] > SINK
    return {"sinks": sinks, "other heads": ~sinks}


def measure_text(make_draw: Callable[[int], Draw]) -> dict[str, Any]:
    """What is measured on a kind of text, with an entry for each draw."""
    chosen = where_heads_look(random_twice(CHOOSING)[0])
    assert strongest(chosen[1]) == INDUCTION, strongest(chosen[1])
    assert strongest(chosen[0]) == PREVIOUS, strongest(chosen[0])
    groups = {"induction heads": INDUCTION, "previous-token heads": PREVIOUS}
    means = means_of_heads(make_draw(CHOOSING)[0], [*INDUCTION, *PREVIOUS])
    blind = blindfolds()
    rows = []
    for number in range(DRAWS):
        draw = make_draw(number)
        row = {"where heads look": where_heads_look(draw[0]), "loss": loss(draw)}
        for name, heads in groups.items():
            for how, found in losses_without(draw, heads, means).items():
                row[f"loss without {name}, {how}"] = found
        for name, which in blind.items():
            row[f"loss, first token hidden from {name}"] = loss(draw, which)
        row["loss of one sequence"] = loss((draw[0][:1], draw[1][:1]))
        row["loss of one sequence without one head"] = without_one(draw)
        rows.append(row)
        print({name: rounded(x) for name, x in row.items() if x.ndim == 0}, flush=True)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def preference(last: Tensor, plural: Tensor) -> Tensor:
    """By how much the logit of the verb that agrees is above the other's, (sentences, pairs of verbs)."""
    model, tokenizer = chat_model()
    verbs = torch.tensor(
        [[tokenizer.encode(verb).ids for verb in pair] for pair in VERBS]
    )[..., 0]
    logits = F.linear(
        model.encoder.norm(last[:, -1]), model.embedding.weight[verbs.flatten()]
    )
    singular, plurals = logits.unflatten(-1, (-1, 2)).unbind(-1)
    return (plurals - singular) * (2 * plural[:, None] - 1)


def preferences_without_one(tokens: Tensor, plural: Tensor) -> Tensor:
    """The mean preference for the verb that agrees, without each head, (30, 9)."""
    start, found = hidden(tokens), []
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        with without([(layer, head)]):
            found.append(
                preference(hidden(tokens, None, start, layer)[-1], plural).mean()
            )
    return torch.stack(found).view(LAYERS, HEADS)


def weights_on_subject(tokens: Tensor) -> Tensor:
    """The mean weight of the last query on the subject, (30, 9)."""
    model, _ = chat_model()
    with capture_attention(model) as captured:
        model(tokens)
    return torch.stack([maps[:, :, -1, 1].mean(0) for maps in captured.values()])


def measure_agreement() -> dict[str, Any]:
    """Does the verb agree with the subject, and which heads carry that? An entry for each group of nouns."""
    tokens, plural, _ = sentences(CHOOSING)
    chosen = strongest(-preferences_without_one(tokens, plural))
    rows = []
    for number in range(DRAWS):
        tokens, plural, other = sentences(number)
        found = preference(hidden(tokens)[-1], plural)  # (sentences, pairs of verbs)
        cases = [found[(plural == a) & (other == b)] for a in (0, 1) for b in (0, 1)]
        row = {
            "right: singular and plural subjects, singular and plural other nouns": torch.stack(
                [(case > 0).float().mean() for case in cases]
            ),
            "preference, in the same four cases": torch.stack(
                [case.mean() for case in cases]
            ),
            "preference": found.mean(),
            "heads chosen": torch.tensor(chosen),
            "weight on the subject": weights_on_subject(tokens),
            "preference without one head": preferences_without_one(tokens, plural),
        }
        for name, heads in {"3": chosen[:3], "6": chosen}.items():
            controls = [random_heads(heads, choice) for choice in range(RANDOM_CHOICES)]
            shares, values = [], []
            for off in (heads, *controls):
                with without(off):
                    found = preference(hidden(tokens)[-1], plural)
                values.append(found.mean())
                shares.append((found > 0).float().mean())
            row[f"preference without {name} heads, then without random ones"] = (
                torch.stack(values)
            )
            row[f"right without {name} heads, then without random ones"] = torch.stack(
                shares
            )
        rows.append(row)
        print(
            {name: rounded(x) for name, x in row.items() if x.numel() < 9}, flush=True
        )
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@dataclass(frozen=True)
class Measured:
    """An arm without training: a published model, measured on five draws of a kind of text."""

    measure: Callable[[], Mapping[str, Any]]
    check_on: Callable[[], Sequence[Tensor]]
    because: str = "the model was trained elsewhere; nothing is trained here"
    steps: int = 0
    seeds: int = DRAWS
    rates: tuple[float, ...] = (0.0,)
    keep: int = 0

    def check(self) -> list[float]:
        """A few numbers of the first draw, which a test computes again."""
        with torch.no_grad():
            return rounded([float(number) for number in self.check_on()])

    def run(self) -> tuple[dict[str, Any], list[Any]]:
        """Measure; return what is stored, and no models."""
        model, _ = chat_model()
        with torch.no_grad():
            results = rounded(dict(self.measure()))
        number = sum(parameter.numel() for parameter in model.parameters())
        content = {"parameters": number, "steps": 0, "lr": 0.0, "seeds": self.seeds}
        return content | {"results": results, "check": self.check()}, []


def losses_of_check(make_draw: Callable[[int], Draw]) -> list[Tensor]:
    draw = make_draw(0)
    found = [loss(draw)]
    for heads in (INDUCTION, PREVIOUS):
        with without(heads):
            found.append(loss(draw))
    return found


def preferences_of_check() -> list[Tensor]:
    tokens, plural, _ = sentences(0)
    return [preference(hidden(tokens)[-1], plural).mean()]


ARMS = {
    "repeated random tokens": Measured(
        partial(measure_text, random_twice), partial(losses_of_check, random_twice)
    ),
    "held-out English": Measured(
        partial(measure_text, english), partial(losses_of_check, english)
    ),
    "agreement": Measured(measure_agreement, preferences_of_check),
}
# The loss of equal probabilities for all tokens.
BOUNDS = {"uniform": float(torch.tensor(VOCAB).log())}
