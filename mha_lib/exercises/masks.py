"""Checkers for the appendix on mask conventions.

They are exercises as data; `engine` says how they judge an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from mha_lib.exercises.engine import Answer, Exercise, Wrong, randn
from mha_lib.multi_head import MultiHeadAttention

# ------------------------------------------------------------------ four conventions

_READ: dict[str, Callable[[Tensor], Tensor]] = {
    "keep": lambda mask: mask,
    "hidden": lambda mask: ~mask,
    "added": lambda mask: mask == 0,
    "ones": lambda mask: mask.bool(),
}
_WRITE: dict[str, Callable[[Tensor], Tensor]] = {
    "keep": lambda visible: visible,
    "hidden": lambda visible: ~visible,
    "added": lambda visible: torch.zeros(visible.shape).masked_fill(
        ~visible, -torch.inf
    ),
    "ones": lambda visible: visible.long(),
}


def _translate(mask: Tensor, source: str, target: str) -> Tensor:
    return _WRITE[target](_READ[source](mask))


def _reads(**other: Callable[[Tensor], Tensor]) -> Answer:
    """The right answer, with one convention read otherwise."""
    return lambda mask, source, target: _WRITE[target]((_READ | other)[source](mask))


def _writes(**other: Callable[[Tensor], Tensor]) -> Answer:
    """The right answer, with one convention written otherwise."""
    return lambda mask, source, target: (_WRITE | other)[target](_READ[source](mask))


def _pair(
    source: str, target: str
) -> Callable[[torch.Generator], tuple[Tensor, str, str]]:
    def make(generator: torch.Generator) -> tuple[Tensor, str, str]:
        visible = torch.rand(2, 3, 5, generator=generator) > 0.4
        return _WRITE[source](visible), source, target

    return make


check_translate = Exercise(
    reference=_translate,
    returns="mask (batch, q_len, k_len)",
    cases={f"{a} → {b}": _pair(a, b) for a in _READ for b in _WRITE},
    same_dtype=True,
    wrong=(
        Wrong(
            "0 times infinity makes NaN",
            "`(1 - mask) * -inf` is NaN wherever the mask is 1; fill zeros with -inf where a key is hidden.",
            _writes(added=lambda visible: (1 - visible.float()) * -torch.inf),
        ),
        Wrong(
            "the hidden entries of an added mask are finite",
            "The convention asks for -inf; a finite number fails in float16, or with large scores.",
            _writes(added=lambda visible: (1 - visible.float()) * -1e9),
        ),
        Wrong(
            "the hidden entries of an added mask are finite",
            "The convention asks for -inf; -10000 hides nothing from scores that differ by more.",
            _writes(added=lambda visible: (1 - visible.float()) * -1e4),
        ),
        Wrong(
            "an added mask holds zeros and ones",
            "Added to the scores, a 1 is a bonus and hides nothing: 0 may attend, -inf is hidden.",
            _writes(added=lambda visible: visible.float()),
        ),
        Wrong(
            "an added mask is read as if any number but 0 were visible",
            "`mask.bool()` makes True of -inf and False of 0, which is the wrong way round; compare with 0.",
            _reads(added=lambda mask: mask.bool()),
        ),
        Wrong(
            "an added mask hides what it should show",
            "0 may attend, and -inf is hidden.",
            _writes(added=lambda visible: _WRITE["added"](~visible)),
        ),
        Wrong(
            "`~` is used on integers",
            "`~1` is -2 and `~0` is -1, and both count as True; convert to bool first.",
            _reads(ones=lambda mask: (~mask).bool()),
        ),
        Wrong(
            "zeros and ones are read the wrong way round",
            "1 may attend, and 0 is hidden.",
            _reads(ones=lambda mask: mask == 0),
        ),
        Wrong(
            "zeros and ones are written the wrong way round",
            "1 may attend, and 0 is hidden.",
            _writes(ones=lambda visible: (~visible).long()),
        ),
        Wrong(
            "`hidden` is not inverted",
            "In this convention True means hidden, both where it is read and where it is written.",
            lambda mask, source, target: (_WRITE | {"hidden": lambda v: v})[target](
                (_READ | {"hidden": lambda m: m})[source](mask)
            ),
        ),
        Wrong(
            "every translation inverts",
            "Only `hidden` has the other polarity; first bring the mask to `keep`, then to the target.",
            lambda mask, source, target: _WRITE[target](~_READ[source](mask)),
        ),
        Wrong(
            "the mask comes back as it was",
            "Its form must change from `source` to `target`.",
            lambda mask, source, target: mask,
        ),
        Wrong(
            "the numbers are right, but not the dtype",
            "`keep` and `hidden` are bool, `added` is float32, and `ones` is int64, as tokenizers return it.",
            _writes(ones=lambda visible: visible.float()),
        ),
    ),
)

# ------------------------------------------------------------------ padding on the left


def _decode(
    layer: MultiHeadAttention, x: Tensor, attention_mask: Tensor, **options: Any
) -> Any:
    keep = attention_mask.bool()[:, None, :]
    return layer(x, x, x, keep, **{"is_causal": True} | options)


def _hides_queries(layer: MultiHeadAttention, x: Tensor, attention_mask: Tensor) -> Any:
    return layer(x, x, x, attention_mask.bool()[:, :, None], is_causal=True)


def _without_padding(
    layer: MultiHeadAttention, x: Tensor, attention_mask: Tensor
) -> Any:
    return _decode(layer, x, torch.ones_like(attention_mask))


def _decoder(
    heads: int, *lengths: int, size: int
) -> Callable[[torch.Generator], tuple[Any, ...]]:
    """A case: a layer, tokens, and an attention mask that is padded on the left."""

    def make(generator: torch.Generator) -> tuple[Any, ...]:
        layer = MultiHeadAttention(5 * heads, heads)
        position, lens = torch.arange(size), torch.tensor(lengths)
        mask = (position >= size - lens[:, None]).long()
        return layer, randn(generator, len(lengths), size, 5 * heads), mask

    return make


check_left_padding = Exercise(
    reference=lambda layer, x, attention_mask: _decode(layer, x, attention_mask),
    returns=("output (batch, length, width)", "weights (batch, heads, length, length)"),
    cases={
        "two samples without padding": _decoder(3, 7, 7, size=7),
        "two samples, the second padded": _decoder(3, 7, 4, size=7),
        "five samples, one of them all padding": _decoder(2, 11, 3, 0, 1, 10, size=11),
    },
    wrong=(
        Wrong(
            "the mask was turned into lengths",
            "Lengths show the *first* keys. Their number is right here, but the real keys are the last ones; "
            "pass the mask itself.",
            lambda layer, x, attention_mask: layer(
                x, x, x, valid_lens=attention_mask.sum(-1), is_causal=True
            ),
        ),
        Wrong(
            "the padding is seen and the tokens are hidden",
            "The mask is inverted: in both conventions here, 1 or True means that a key may be attended to.",
            lambda layer, x, attention_mask: _decode(layer, x, 1 - attention_mask),
        ),
        Wrong(
            "there is no causal mask",
            "A decoder's token may not see later tokens; pass `is_causal=True` as well.",
            lambda layer, x, attention_mask: _decode(
                layer, x, attention_mask, is_causal=False
            ),
        ),
        Wrong(
            "the mask hides queries instead of keys",
            "Its new axis must be that of the queries: the shape is (batch, 1, k_len).",
            _hides_queries,
        ),
        Wrong(
            "the padding is visible",
            "The attention mask is not used.",
            _without_padding,
        ),
    ),
)

# ------------------------------------------------------------------ the unknown layer


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, hide: bool, fill: float = -torch.inf
) -> Tensor:
    scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
    return scores.masked_fill(mask == hide, fill).softmax(-1) @ v


def _layers() -> dict[str, Answer]:
    """Label -> a function attend(q, k, v, mask) with some convention."""
    attention = torch.nn.functional.scaled_dot_product_attention
    return {
        "a layer that shows where the mask is True": attention,
        "a layer that hides where the mask is True": lambda q, k, v, mask: _attend(
            q, k, v, mask, True
        ),
        "a layer that adds the mask to the scores": lambda q, k, v, mask: attention(
            q, k, v, mask.to(q.dtype)
        ),
        "a layer that ignores the mask": lambda q, k, v, mask: attention(q, k, v),
        "a layer that hides by -10000": lambda q, k, v, mask: _attend(
            q, k, v, mask, True, -1e4
        ),
    }


def _probe(attend: Answer, *mask: bool) -> Tensor:
    """The weights of one query, seen through values that are the rows of an identity matrix."""
    size = len(mask)
    query, key = torch.zeros(1, 1, 1, size), torch.zeros(1, 1, size, size)
    value = torch.eye(size)[None, None]
    weights: Tensor = attend(query, key, value, torch.tensor(mask)[None, None, None])
    return weights[0, 0, 0]


def _convention(attend: Answer) -> str:
    first = float(_probe(attend, True, False, False, False)[0])
    if first in (0.0, 1.0):
        return "keep" if first else "hidden"
    return "ignored" if abs(first - 0.25) < 1e-3 else "added"


def _renamed(**other: str) -> Answer:
    """The right answer with other words for some conventions."""
    return lambda attend: other.get(_convention(attend), _convention(attend))


def _unless_all_true(nan: str, otherwise: str) -> Answer:
    """Probes with a mask that is True everywhere: a layer that hides there gives NaN, or weights of zero."""

    def answer(attend: Answer) -> str:
        weights = _probe(attend, True, True, True, True)
        return otherwise if float(weights.nan_to_num().sum()) > 0.5 else nan

    return answer


check_convention = Exercise(
    reference=_convention,
    returns="convention",
    cases={
        label: lambda g, label=label: _layers()[label]  # type: ignore[misc]
        for label in _layers()
    },
    wrong=(
        Wrong(
            "a mask that is True everywhere cannot tell the conventions apart",
            "A layer that shows where it is True, one that adds it, and one that ignores it give the same "
            "weights; choose a mask that is True at a minority of the keys.",
            _unless_all_true("hidden", "keep"),
        ),
        *(
            Wrong(
                "the largest weight alone cannot tell the conventions apart",
                "Where the mask is *added*, the key at True has the largest weight too, but not all of it; "
                "look at the weight itself.",
                _renamed(added="keep", ignored=of_equal_weights),
            )
            for of_equal_weights in ("keep", "hidden")
        ),
        Wrong(
            "a layer that ignores the mask is taken for one that adds it",
            "If the mask is ignored, all keys get the same weight; if it is added, those at True get more.",
            _renamed(ignored="added"),
        ),
        Wrong(
            "a layer that adds the mask is taken for one that ignores it",
            "If it is added, a True counts as 1, and its key gets e times the weight of the others.",
            _renamed(added="ignored"),
        ),
        Wrong(
            "a layer that adds the mask is taken for one that obeys it",
            "If it is added, a True counts as 1: its key gets more weight, but the others still get some.",
            _renamed(added="keep"),
        ),
        Wrong(
            "`keep` and `hidden` are exchanged",
            "If the key at True gets all the weight, True means that it may be attended to.",
            _renamed(keep="hidden", hidden="keep"),
        ),
    ),
)
