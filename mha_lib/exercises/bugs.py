"""Checkers for the bug zoo: which faults there are, and which tests find them.

They are exercises as data; `engine` says how they judge an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib.exercises.engine import Answer, Exercise, Verdict, Wrong
from mha_lib.multi_head import MultiHeadAttention

# ------------------------------------------------------------------ which scale

_SCALES = ("head", "width", "none")


class _Layer(MultiHeadAttention):
    """A self-attention layer whose scores are divided by one of three numbers; called with x alone."""

    def __init__(self, width: int, num_heads: int, divide_by: str) -> None:
        scale = {"head": sqrt(num_heads / width), "width": sqrt(1 / width), "none": 1.0}
        super().__init__(width, num_heads, bias=True, scale=scale[divide_by])
        self.divide_by, self.note = divide_by, ""

    def forward(self, x: Tensor, **options: Any) -> Any:  # type: ignore[override]
        return super().forward(x, x, x, **options)


def _with_scale(
    divide_by: str, width: int, num_heads: int, size: float, offset: float, note: str
) -> Callable[[torch.Generator], _Layer]:
    """A case: projections made larger or smaller, as training might; queries and keys with an offset."""

    def make(generator: torch.Generator) -> _Layer:
        layer = _Layer(width, num_heads, divide_by)
        with torch.no_grad():
            layer.q_proj.weight.mul_(size)
            layer.q_proj.bias.fill_(offset)
            layer.k_proj.bias.fill_(offset)
        layer.note = note
        return layer

    return make


def _measure(layer: Any, *, centre: bool = True) -> tuple[float, dict[str, float]]:
    """The factor of the scores by least squares, and what each name divides by."""
    x = torch.randn(2, 5, layer.embed_dim)
    q, k = (layer.split_heads(proj(x)) for proj in (layer.q_proj, layer.k_proj))
    raw, scores = q @ k.transpose(-2, -1), layer(x)[1].log()
    if centre:
        raw, scores = (t - t.mean(-1, keepdim=True) for t in (raw, scores))
    divisors = {
        "head": sqrt(layer.head_dim),
        "width": sqrt(layer.embed_dim),
        "none": 1.0,
    }
    return float((raw * scores).sum() / raw.square().sum()), divisors


def _name_the_scale(layer: Any, *, centre: bool = True) -> str:
    factor, divisors = _measure(layer, centre=centre)
    return min(divisors, key=lambda name: abs(factor * divisors[name] - 1))


def _renamed_scale(**other: str) -> Answer:
    return lambda layer: other.get(_name_the_scale(layer), _name_the_scale(layer))


def _by_largest_weight(layer: Any) -> str:
    largest = layer(torch.randn(2, 5, layer.embed_dim))[1].amax(-1).mean()
    return "none" if largest > 0.6 else "head" if largest > 0.3 else "width"


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
    """The number of the name that an answer gives."""
    with torch.no_grad():
        name = answer(layer)
    if name is None:
        return None
    if name not in _SCALES:
        raise ValueError(f'"head", "width" or "none" is expected, got {name!r}')
    return torch.tensor(_SCALES.index(name))


def _said(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    """A property: what the answer says, and why that may be."""
    layer, name = arguments[0], _SCALES[int(results[0])]
    if name == layer.divide_by:
        return ""
    return f'it says "{name}", and "{layer.divide_by}" is right. {layer.note}'


check_name_the_scale = Exercise(
    reference=_name_the_scale,
    returns="name",
    run=_which,
    properties=[_said],
    cases={
        f"{label} ({name})": _with_scale(name, *setting)
        for label, setting in _SETTINGS.items()
        for name in _SCALES
    },
    wrong=(
        Wrong(
            "the answer depends on how large the projections are, not on the scale",
            "Large projections with the right scale give weights as sharp as small ones without a scale; "
            "compare the scores with the raw products q · k.",
            _by_largest_weight,
        ),
        *(
            Wrong(
                f'the answer is always "{name}"', cause, lambda layer, name=name: name
            )
            for name, cause in {
                "head": "Shapes and row sums are the same with any scale; compare the scores with the raw "
                "products q · k.",
                "none": "If a factor was measured, its inverse is the divisor.",
                "width": "Compare the scores with the raw products q · k.",
            }.items()
        ),
        Wrong(
            '"head" and "width" are exchanged',
            "A head is narrower than the model: `head_dim` is embed_dim / num_heads.",
            _renamed_scale(head="width", width="head"),
        ),
        Wrong(
            'a scale by the model\'s width is taken for "head"',
            "That they are scaled at all is not enough: compare the factor with 1 / √embed_dim too.",
            _renamed_scale(width="head"),
        ),
        Wrong(
            "the mean of each row was not subtracted",
            "The logarithm of the weights is the scores *up to a constant for each row*; with an offset in "
            "queries and keys it spoils the comparison.",
            lambda layer: _name_the_scale(layer, centre=False),
        ),
    ),
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


def _chosen(answer: Answer) -> Tensor | None:
    """The names that an answer returns, as a bool for each specimen."""
    names = answer()
    if names is None:
        return None
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in _ONE_HEAD:
            raise ValueError(f"no specimen is called {name!r}")
    return torch.tensor([name in names for name in _ONE_HEAD])


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

check_one_head = Exercise(
    reference=_these(*_PASS),
    cases={"one head": lambda g: ()},
    run=_chosen,
    properties=[_first_mistake],
    wrong=(
        Wrong(
            "the scale by the model's width is missing",
            "With one head, `head_dim` is `embed_dim`, so the two scales are the same.",
            _these(*(name for name in _PASS if name != "scale by model width")),
        ),
        Wrong(
            "the lengths in the wrong order are missing",
            "With one head, `repeat(1)` and `repeat_interleave(1)` are the same.",
            _these(*(name for name in _PASS if name != "lengths in wrong order")),
        ),
        Wrong(
            "scores without a scale are not right with one head",
            "They should still be divided by the square root of the width.",
            _these(*_PASS, "no scale"),
        ),
        Wrong(
            "only the faults of cutting and merging are named",
            "Look at everything that differs between heads: the lengths, the loop, the scale.",
            _these("merge without transpose", "split without transpose"),
        ),
        Wrong(
            "all nine are named",
            "A softmax over the wrong axis is wrong in one head too.",
            _these(*_ONE_HEAD),
        ),
        Wrong(
            "none is named",
            "With one head, a split and a merge have nothing to exchange.",
            _these(),
        ),
        Wrong(
            "these are the faults that are still found",
            "The question is which ones pass all detectors.",
            _these(*(name for name in _ONE_HEAD if name not in _PASS)),
        ),
    ),
)

# ------------------------------------------------------------------ the shortest suite

_Found = Mapping[str, Sequence[str]]


def _caught(found: _Found, titles: Sequence[str]) -> set[str]:
    """The specimens that at least one of these detectors finds."""
    return {name for name, finders in found.items() if set(finders) & set(titles)}


def _shortest(
    found: _Found, titles: Sequence[str], everything: bool = False
) -> tuple[str, ...]:
    wanted = set(found) if everything else _caught(found, titles)
    for size in range(len(titles) + 1):
        for suite in combinations(titles, size):
            if _caught(found, suite) == wanted:
                return suite
    return tuple(titles)


def _greedy(found: _Found, titles: Sequence[str]) -> tuple[str, ...]:
    """Take the detector that finds most of what is left, until nothing is left."""
    suite: list[str] = []
    while _caught(found, suite) != _caught(found, titles):
        suite.append(max(titles, key=lambda t: len(_caught(found, [*suite, t]))))
    return tuple(suite)


def _most(found: _Found, titles: Sequence[str]) -> tuple[str, ...]:
    return (max(titles, key=lambda title: len(_caught(found, [title]))),)


def _each_finds_something_new(found: _Found, titles: Sequence[str]) -> tuple[str, ...]:
    suite: list[str] = []
    for title in titles:
        if _caught(found, [*suite, title]) != _caught(found, suite):
            suite.append(title)
    return tuple(suite)


def _from_all(found: _Found, titles: Sequence[str]) -> tuple[str, ...]:
    """Look at all detectors of the table, also those that are not on offer."""
    every = dict.fromkeys(title for finders in found.values() for title in finders)
    for size in range(len(every) + 1):
        for suite in combinations(every, size):
            if _caught(found, suite) >= _caught(found, titles):
                return suite
    return tuple(titles)


def _count(answer: Answer, found: _Found, titles: Sequence[str]) -> Any:
    """What a suite finds, how many detectors it has, and how many of them were not on offer."""
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


check_shortest_suite = Exercise(
    reference=lambda found, titles: _shortest(found, titles),
    run=_count,
    returns=("specimens found", "detectors in the suite", "detectors not on offer"),
    cases={
        "the table of this page": _of_the_page,
        "a table of seven specimens": _greedy_fails,
        "a table of eleven specimens": _three_needed,
    },
    wrong=(
        Wrong(
            "the suite is built by taking the best detector first",
            "The one that finds most need not be in the smallest suite; try all subsets, small ones first.",
            _greedy,
        ),
        Wrong(
            "only one detector is returned",
            "The one that finds most may not find everything; several may be needed.",
            _most,
        ),
        Wrong(
            "each detector is kept that finds something new, in the order of the list",
            "An early detector may be made superfluous by a later one; try all subsets, small ones first.",
            _each_finds_something_new,
        ),
        Wrong(
            "all detectors are returned",
            "They find everything, but fewer may do.",
            lambda found, titles: tuple(titles),
        ),
        Wrong(
            "detectors are used that are not on offer",
            "Choose from `titles` only; the table also has columns that need a reference.",
            _from_all,
        ),
        Wrong(
            "the search asks for a suite that finds every specimen",
            "Some specimens are found by none of the detectors on offer; compare with what all of `titles` "
            "find together.",
            lambda found, titles: _shortest(found, titles, everything=True),
        ),
    ),
)

# ------------------------------------------------------------------ escape


def _new(kind: Any) -> nn.Module:
    """A layer of some kind, 15 wide with three heads, always with the same weights."""
    torch.manual_seed(0)
    layer: nn.Module = kind(15, 3)
    return layer


def _escape(right: Any, detectors: Mapping[str, Answer]) -> Exercise:
    """The exercise for a layer that is right, and the detectors to escape from."""

    class Tidy(right):  # type: ignore[misc]
        """Sets the padding of the caller's own tensor to zero."""

        def forward(self, x: Tensor, *inputs: Any, **options: Any) -> Any:
            result = super().forward(x, *inputs, **options)
            if options.get("valid_lens") is not None:
                places = torch.arange(x.shape[1])[:, None]
                x.masked_fill_(places >= options["valid_lens"][:, None, None], 0.0)
            return result

    def changed(layer: Any) -> bool:
        x = torch.ones(2, 7, 15)
        layer(x, valid_lens=torch.tensor([5, 3]))
        return bool((x != 1).any())

    def run(answer: Answer) -> Any:
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

    def found(_: tuple[Any, ...], results: tuple[Any, ...]) -> str:
        finders = [t for t, finds in zip(detectors, results[0], strict=True) if finds]
        return f"your specimen is found by: {', '.join(finders)}" if finders else ""

    def pair(detect: Answer) -> Answer:
        return lambda: (Tidy, detect)

    return Exercise(
        reference=pair(changed),
        cases={f"{len(detectors)} detectors": lambda g: ()},
        run=run,
        returns=("found", "your specimen", "the right layer"),
        properties=[found],
        wrong=(
            Wrong(
                "your detector does not find your specimen",
                "Does it make the call, and look at the thing, in which the two layers differ?",
                pair(lambda layer: False),
            ),
            Wrong(
                "your detector finds a fault in the right layer too",
                "It must return False for a layer without a fault.",
                pair(lambda layer: True),
            ),
            Wrong(
                "your detector has it backwards",
                "It returns True for the right layer and False for your specimen; True means a fault.",
                pair(lambda layer: not changed(layer)),
            ),
        ),
    )


def check_escape(
    answer: Any, right: type[nn.Module], detectors: Mapping[str, Answer]
) -> Verdict:
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
    if not (isinstance(right, type) and issubclass(right, nn.Module)):
        raise TypeError(f"right must be a class of nn.Module, got {right!r}")
    _checks.check_type("detectors", detectors, dict)
    for detect in detectors.values():
        if not callable(detect):
            raise TypeError(f"detectors must be functions, got {detect!r}")
    return _escape(right, detectors)(answer)
