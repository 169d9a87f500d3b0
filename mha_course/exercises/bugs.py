"""Checkers for the bug zoo: which faults there are, and which tests find them.

They are exercises as data; `engine` explains how they judge an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from attention_check._results import Answer, Verdict
from mha_course._elsewhere import Elsewhere
from mha_course._exercise import Exercise
from mha_course._sizes import Texts
from mha_lib import _checks
from mha_lib.multi_head import MultiHeadAttention

exercise = Texts(__name__)

# ------------------------------------------------------------------ which scale

_SCALES = ("head", "width", "none")


class _Layer(MultiHeadAttention):
    """A self-attention layer whose scores are divided by one of three numbers; called with x alone."""

    def __init__(self, width: int, num_heads: int, divide_by: str) -> None:
        scale = {"head": sqrt(num_heads / width), "width": sqrt(1 / width), "none": 1.0}
        super().__init__(width, num_heads, bias=True, scale=scale[divide_by])
        self.note = ""

    def forward(self, x: Tensor, **options: Any) -> Any:  # type: ignore[override]
        return super().forward(x, x, x, **options)


def _with_scale(
    divide_by: str, width: int, num_heads: int, size: float, offset: float, note: str
) -> Callable[[torch.Generator], _Layer]:
    """A case: projections scaled up or down, as training might do; queries and keys with an offset."""

    def make(generator: torch.Generator) -> _Layer:
        layer = _Layer(width, num_heads, divide_by)
        with torch.no_grad():
            layer.q_proj.weight.mul_(size)
            layer.q_proj.bias.fill_(offset)
            layer.k_proj.bias.fill_(offset)
        layer.note = note
        return layer

    return make


def _scale_name(layer: Any) -> str:
    x = torch.randn(2, 5, layer.embed_dim)
    q, k = (layer.split_heads(proj(x)) for proj in (layer.q_proj, layer.k_proj))
    raw, scores = q @ k.transpose(-2, -1), layer(x)[1].log()
    raw, scores = (t - t.mean(-1, keepdim=True) for t in (raw, scores))
    factor = float((raw * scores).sum() / raw.square().sum())  # least squares
    squares = {"head": layer.head_dim, "width": layer.embed_dim, "none": 1}
    return min(squares, key=lambda name: abs(factor * sqrt(squares[name]) - 1))


# Label -> width, heads, factor of the projections, offset, and what to say about a wrong answer.
_SETTINGS: dict[str, tuple[int, int, float, float, str]] = {
    "an offset in queries and keys": (
        33,
        11,
        1.0,
        1.5,
        "Queries and keys have an offset here: compare the logarithm of the weights with the raw products "
        "after subtracting the mean of each row from both",
    ),
    "small projections": (
        15,
        3,
        0.05,
        0.0,
        "The projections are small here, which makes the weights flat with any scale",
    ),
    "large projections": (
        14,
        2,
        5.0,
        0.0,
        "The projections are large here, which makes the weights sharp with any scale",
    ),
}


def _which(answer: Answer, layer: nn.Module) -> Any:
    """The index of the name that an answer returns."""
    with torch.no_grad():
        name = answer(layer)
    if name is None:
        return None
    if name not in _SCALES:
        raise ValueError(f'"head", "width" or "none" is expected, got {name!r}')
    return torch.tensor(_SCALES.index(name))


def _said(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    """A property: whether the answer names the correct divisor and, if not, why that one is correct."""
    layer, name = arguments[0], _SCALES[int(results[0])]
    # It is measured, because an answer could read it from a layer that says it.
    if name == (right := _scale_name(layer)):
        return ""
    return f'it says "{name}", and "{right}" is right. {layer.note}'


check_name_the_scale = exercise(
    "check_name_the_scale",
    reference=_scale_name,
    returns="name",
    run=_which,
    properties=[_said],
    cases={
        f"{label} ({name})": _with_scale(name, *setting)
        for label, setting in _SETTINGS.items()
        for name in _SCALES
    },
)

# ------------------------------------------------------------------ one head

# Specimen -> why it is, or is not, without effect if there is one head.
_ONE_HEAD = {
    "merge without transpose": (True, "with one head there is nothing to exchange"),
    "split without transpose": (True, "with one head there is nothing to exchange"),
    "softmax over the queries": (False, "the axis of the softmax is wrong in any head"),
    "inverted mask": (False, "the mask is inverted in any head"),
    "lengths in wrong order": (
        True,
        "repeated once, the lengths are in the same order either way",
    ),
    "positions along the batch": (
        False,
        "the positions are added before there are heads",
    ),
    "compounded projections": (True, "the first head is right, and it is the only one"),
    "scale by model width": (True, "one head is as wide as the model"),
    "no scale": (False, "one head is divided by the square root of its width, too"),
}
_SPECIMENS = tuple(_ONE_HEAD)


def _chosen(answer: Answer) -> Tensor | None:
    """The names that an answer returns, as a bool for each specimen."""
    names = answer()
    if names is None:
        return None
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in _SPECIMENS:
            raise ValueError(f"no specimen is called {name!r}")
    return torch.tensor([name in names for name in _SPECIMENS])


def _first_mistake(_: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    """A property: what is wrong with the first specimen that is wrong."""
    for (name, (passes, reason)), chosen in zip(
        _ONE_HEAD.items(), results[0].tolist(), strict=True
    ):
        if chosen != passes:
            return f"*{name}* {'passes too' if passes else 'is still found'}: {reason}"
    return ""


def _these(*names: str) -> Answer:
    return lambda: list(names)


_PASS = [name for name, (passes, _) in _ONE_HEAD.items() if passes]

check_one_head = exercise(
    "check_one_head",
    reference=_these(*_PASS),
    cases={"one head": lambda g: ()},
    run=_chosen,
    properties=[_first_mistake],
)

# ------------------------------------------------------------------ the shortest suite

_Found = Mapping[str, Sequence[str]]


def _caught(found: _Found, titles: Sequence[str]) -> set[str]:
    """The specimens that at least one of these detectors finds."""
    return {name for name, finders in found.items() if set(finders) & set(titles)}


def _shortest_suite(found: _Found, titles: Sequence[str]) -> tuple[str, ...]:
    for size in range(len(titles) + 1):
        for suite in combinations(titles, size):
            if _caught(found, suite) == _caught(found, titles):
                return suite
    return tuple(titles)


def _greedy(found: _Found, titles: Sequence[str]) -> tuple[str, ...]:
    """Take the detector that finds most of the remaining faults, until none remain."""
    suite: list[str] = []
    while _caught(found, suite) != _caught(found, titles):
        suite.append(max(titles, key=lambda t: len(_caught(found, [*suite, t]))))
    return tuple(suite)


def _each_finds_something_new(found: _Found, titles: Sequence[str]) -> tuple[str, ...]:
    suite: list[str] = []
    for title in titles:
        if _caught(found, [*suite, title]) != _caught(found, suite):
            suite.append(title)
    return tuple(suite)


def _count(answer: Answer, found: _Found, titles: Sequence[str]) -> Any:
    """What a suite finds, how many detectors it has, and how many of them were not available."""
    suite = answer(found, titles)
    if suite is None:
        return None
    suite = (suite,) if isinstance(suite, str) else tuple(suite)
    return (
        len(_caught(found, [title for title in suite if title in titles])),
        len(suite),
        sum(title not in titles for title in suite),
    )


def _table(**found: str) -> dict[str, list[str]]:
    return {
        name.replace("_", " "): finders.split(", ") if finders else []
        for name, finders in found.items()
    }


def _of_the_page(generator: torch.Generator) -> tuple[_Found, list[str]]:
    mixed = "all ones, permutation, no peeking, padding, alone, reference"
    found = _table(
        merge_without_transpose=mixed,
        split_without_transpose=mixed,
        softmax_over_the_queries="row sums, no peeking, padding, alone, reference",
        inverted_mask="no peeking, padding, alone, reference",
        lengths_in_wrong_order="padding, alone, reference",
        positions_along_the_batch="all ones, permutation, alone, reference",
        compounded_projections="all ones, reference",
        scale_by_model_width="reference",
        no_scale="reference",
    )
    offered = "shape only, row sums, permutation, no peeking, padding, alone"
    return found, offered.split(", ")


def _greedy_fails(generator: torch.Generator) -> tuple[_Found, list[str]]:
    found = _table(
        a="left, middle",
        b="left, middle",
        c="left",
        d="right, middle",
        e="right, middle",
        f="right",
        g="left, middle",
    )
    return found, ["nothing", "middle", "left", "right"]


def _three_needed(generator: torch.Generator) -> tuple[_Found, list[str]]:
    found = _table(
        a="one, all",
        b="one, two, all",
        c="two, all",
        d="two, all",
        e="three, four, all",
        f="three, all",
        g="four, two, all",
        h="all",
        i="three, one, all",
        j="",
        k="all",
    )
    return found, ["four", "one", "two", "three", "none"]


check_shortest_suite = exercise(
    "check_shortest_suite",
    reference=_shortest_suite,
    run=_count,
    returns=("specimens found", "detectors in the suite", "detectors not on offer"),
)

# ------------------------------------------------------------------ escape


def _new(kind: Any) -> nn.Module:
    """A layer of some kind, 15 wide with three heads, always with the same weights."""
    torch.manual_seed(0)
    layer: nn.Module = kind(15, 3)
    return layer


def _tidy(right: Any) -> Any:
    """The class of a layer that sets the padding of the caller's own tensor to zero."""

    class Tidy(right):  # type: ignore[misc]
        def forward(self, x: Tensor, *inputs: Any, **options: Any) -> Any:
            result = super().forward(x, *inputs, **options)
            if options.get("valid_lens") is not None:
                places = torch.arange(x.shape[1])[:, None]
                x.masked_fill_(places >= options["valid_lens"][:, None, None], 0.0)
            return result

    return Tidy


def _changes_its_argument(layer: Any) -> bool:
    x = torch.ones(2, 7, 15)
    layer(x, valid_lens=torch.tensor([5, 3]))
    return bool((x != 1).any())


class _Right(MultiHeadAttention):
    """Self-attention without a fault, called as the reader's layer is."""

    def forward(self, x: Tensor, *, valid_lens: Any = None) -> Any:  # type: ignore[override]
        return super().forward(x, x, x, valid_lens=valid_lens)


def _run_escape(right: Any, detectors: Mapping[str, Answer], answer: Answer) -> Any:
    """Which detectors find the answer's specimen, and whether its own finds it and the right layer."""
    if isinstance(
        right, Elsewhere
    ):  # the known answers are tried here, without the reader's layer
        right, detectors = _Right, dict.fromkeys(detectors, lambda _: False)
    pair = answer()
    if pair is None:
        return None
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"a specimen and a detector are expected, got {pair!r}")
    specimen, detect = pair
    if not isinstance(specimen, type):
        raise ValueError(f"the specimen must be a class, got {specimen!r}")
    with torch.no_grad():
        finds = [bool(test(_new(specimen))) for test in detectors.values()]
        own, innocent = (bool(detect(_new(kind))) for kind in (specimen, right))
    return torch.tensor(finds), torch.tensor(own), torch.tensor(innocent)


def _escape(right: Any, detectors: Mapping[str, Answer]) -> Exercise:
    """The exercise for a correct layer and the detectors that a specimen must escape."""

    def found(_: tuple[Any, ...], results: tuple[Any, ...]) -> str:
        finders = [t for t, finds in zip(detectors, results[0], strict=True) if finds]
        return f"your specimen is found by: {', '.join(finders)}" if finders else ""

    def pair(detect: Answer) -> Answer:
        base = _Right if isinstance(right, Elsewhere) else right
        return lambda: (_tidy(base), detect)

    return exercise(
        "check_escape",
        reference=pair(_changes_its_argument),
        names={"pair": pair},
        cases={f"{len(detectors)} detectors": lambda g: ()},
        run=partial(_run_escape, right, detectors),
        returns=("found", "your specimen", "the right layer"),
        properties=[found],
    )


def check_escape(answer: Any, right: Any, detectors: Mapping[str, Answer]) -> Verdict:
    """Judge a specimen that should pass all detectors, and a new detector that should find it.

    Args:
        answer: function without arguments that returns the specimen, a class, and the detector, a function
            of a layer. Layers are made as specimen(15, 3): 15 wide, with 3 heads.
        right: class of the layer without a fault; layer(x) returns the output and the weights, and
            `valid_lens` can be passed to it.
        detectors: name -> function of a layer that returns True if it finds a fault.

    Returns:
        Whether no detector finds the specimen, the new one does, and it does not accuse the right layer.

    Raises:
        TypeError: `right` is not a class of `nn.Module`, or `detectors` is not a dict of functions.

    Example:
        >>> class Layer(MultiHeadAttention):
        ...     def forward(self, x, valid_lens=None):
        ...         return super().forward(x, x, x, valid_lens=valid_lens)
        >>> class Doubled(Layer):
        ...     def forward(self, x, valid_lens=None):
        ...         output, weights = super().forward(x, valid_lens)
        ...         return 2 * output, weights
        >>> ones = {"shape": lambda layer: layer(torch.ones(2, 7, 15))[0].shape != (2, 7, 15)}
        >>> check_escape(lambda: (Doubled, lambda layer: False), Layer, ones)
        Not yet: your detector does not find your specimen. Does it make the call, and look at the thing, \
in which the two layers differ?
    """
    if isinstance(right, Elsewhere):
        right.doubts.append("the submission brings the right layer and the detectors")
    elif not (isinstance(right, type) and issubclass(right, nn.Module)):
        raise TypeError(f"right must be a class of nn.Module, got {right!r}")
    _checks.check_type("detectors", detectors, dict)
    for detect in detectors.values():
        if not callable(detect):
            raise TypeError(f"detectors must be functions, got {detect!r}")
    return _escape(right, detectors)(answer)
