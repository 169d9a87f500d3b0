"""Python in the page: what the build stores with a page, so that the page can judge a reader's answer.

The page has no torch, only the stand-in in `torch/`. Cases and the results of right answers and of each
known mistake are therefore computed here, with torch, and stored as JSON. `session.py` reads them in the page
and hands them to the engine of the exercises, the same `attention_check._judging`.
"""

from __future__ import annotations

import ast
import base64
import inspect
import sys
import warnings
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch as true_torch  # the stand-in, once imported, is `torch` in this package
from torch import Tensor

from attention_check import _judging, _results
from attention_check._results import Outcome, Verdict, Wrong
from attention_check._texts import _source
from mha_course import built, exercises
from mha_course._classes import part_of, wrong_bias
from mha_course._exercise import Exercise, UnfinishedError
from mha_course._pieces import layer_fault
from mha_course.data import SENTENCE_WORDS
from mha_course.data.book_text import book_text
from mha_course.data.dates import date_batch, decode_target
from mha_course.exercises import multi_head
from mha_lib import _checks

FOLDER = Path(__file__).parent
COURSE, ROOT = FOLDER.parents[:2]

# Files of the course that the page has as they are.
SHARED = "built _classes _elsewhere _exercise _messages _my_gpt _pieces _take_home _whose"
OWN = "above fresh session training"
ENGINE = (_results, _judging)
# The dtypes of the stand-in; only torch supports others.
_DTYPES = {getattr(true_torch, name) for name in "bool int64 float16 float32 float64".split()}


class NotInPageError(Exception):
    """An exercise needs something that the page lacks; the message names it after "needs"."""


def page_sources() -> dict[str, str]:
    """The Python files that the page receives: path in the page -> text."""
    texts = {part: book_text(part) for part in ("train", "test")}
    sources = {
        "mha_lib/__init__.py": "",
        "mha_lib/_checks.py": "\n\n".join(map(inspect.getsource, (_checks.wrong_type, _checks.check_type))),
        "attention_check/__init__.py": "",
        **{f"{one.__name__.replace('.', '/')}.py": inspect.getsource(one) for one in ENGINE},
        "mha_course/__init__.py": "",
        **{f"mha_course/{name}.py": (COURSE / f"{name}.py").read_text("utf-8") for name in SHARED.split()},
        "mha_course/_take_home.md": (COURSE / "_take_home.md").read_text("utf-8"),
        # What the "Try it" cells import from the course.
        "mha_course/notebook.py": "from torch import manual_seed as set_seed\n",
        "mha_course/data/__init__.py": f"SENTENCE_WORDS = {SENTENCE_WORDS!r}\n",
        "mha_course/data/book_text.py": f"book_text = {texts!r}.get\n",
        "english_dates.py": english_dates(),
        **{f"{name}.py": (FOLDER / f"{name}.py").read_text("utf-8") for name in OWN.split()},
    }
    for path in sorted(FOLDER.glob("torch/**/*.py")):
        sources[path.relative_to(FOLDER).as_posix()] = path.read_text("utf-8")
    return sources


def texts_to_learn() -> dict[str, str]:
    """The texts besides the book's that a reader's GPT can learn; a page loads one when it is chosen."""
    modules = "attention cache feed_forward masking multi_head positional relative rotary scores transformer"
    code = [(ROOT / f"mha_lib/{name}.py").read_text("utf-8") for name in modules.split()]
    sonnets = (FOLDER / "sonnets.txt").read_text("utf-8")
    return {"text_sonnets": sonnets, "text_code": "\n\n".join(code)}


def english_dates() -> str:
    """A module with pairs of an English date and the same in ISO 8601; the page has no Babel."""
    parts = []
    for size, held_out in ((2000, False), (100, True)):
        generator = true_torch.Generator().manual_seed(0)
        batch = date_batch(size, held_out=held_out, locales=("en_GB",), generator=generator)
        parts.append([*zip(batch.texts, map(decode_target, batch.target), strict=True)])
    return f"PARTS = TRAIN, HELD_OUT = {parts!r}\n"


def exercise_of(check: str) -> Exercise:
    """The exercise behind a cell that checks an answer, such as `check_positions(add, added=True)`."""
    if "check_multi_head(" in check:
        return _multi_head()
    asked: list[Exercise] = []

    def note(exercise: Exercise, _: object) -> Verdict:
        asked.append(exercise)
        return Verdict(True, "Right.")

    class Anything(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            return getattr(exercises, name, None) or (lambda: None)

    with patch.object(Exercise, "__call__", note):
        exec(compile(check, "check", "exec"), Anything(__builtins__=__builtins__))  # noqa: S102
    if len(asked) != 1:
        raise NotInPageError("more than one comparison")
    return asked[0]


def _multi_head() -> Exercise:
    """The cases of `check_multi_head`, with fixed numbers instead of a layer's own."""
    return Exercise(
        reference=_as_layer(multi_head.multi_head),
        cases={label: partial(_layer_and_inputs, case) for label, case in multi_head._CASES.items()},
        further={label: partial(_layer_and_inputs, case) for label, case in multi_head._FURTHER.items()},
        wrong=[Wrong(one.name, one.cause, _as_layer(one.answer)) for one in multi_head._WRONG],
        returns=("output (batch, q_len, embed_dim)", "weights (batch, num_heads, q_len, k_len)"),
        run=_run_layer,
        properties=(multi_head._hidden_weigh_nothing, multi_head._weights_sum_to_one),
        gradients=True,
        then=layer_fault,
        takes="class",
        atol=1e-4,
        rtol=1e-3,
    )


def _layer_and_inputs(case: Any, generator: Any) -> tuple[Any, ...]:
    """The sizes of a layer and its arguments: a case of chapter 3 with smaller heads."""
    small: dict[Any, Any] = {None: None, 7: 7, 33: 15, 17: 11, 19: 13}
    old = case.sizes
    sizes = small[old.embed_dim], old.num_heads, small[old.kdim], small[old.vdim], old.bias
    key = multi_head._Sizes(*sizes)
    _, *inputs = replace(case, sizes=key).make({key: None}, generator)
    return sizes, *inputs


def _as_layer(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A maker of layers whose call is a formula of chapter 3."""
    own: Any = built.MyMultiHead

    def make(*sizes: Any, **widths: Any) -> Any:
        layer = own(*sizes, **widths)
        own_sizes = multi_head._Sizes(*sizes, **widths)
        made = multi_head._Made(own_sizes, None, None)
        made.layer = layer
        layer.forward = partial(formula, made)
        return layer

    return make


def _run_layer(answer: Any, sizes: tuple[int, ...], query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Make a layer of these sizes, give its projections fixed numbers, and call it."""
    import torch  # here torch, in the page its stand-in

    embed_dim, num_heads, kdim, vdim, bias = sizes
    options = {"kdim": kdim, "vdim": vdim} if kdim else {}
    layer = answer(embed_dim, num_heads, **options, **({"bias": True} if bias else {}))
    layer.eval()
    generator = torch.Generator().manual_seed(0)
    widths = {"q_proj": embed_dim, "k_proj": kdim, "v_proj": vdim, "out_proj": embed_dim}
    for name, width in widths.items():
        proj = part_of(answer, layer, name)
        shape, expected = tuple(proj.weight.shape), (embed_dim, width or embed_dim)
        if shape != expected:
            raise UnfinishedError(
                f"with embed_dim={embed_dim} and num_heads={num_heads}, the weight of `{name}` has shape "
                f"{shape}, expected {expected}, that is (out, in)"
            )
        with torch.no_grad():
            proj.weight.normal_(std=1.5 / expected[1] ** 0.5, generator=generator)
            if (proj.bias is not None) != bool(bias):
                raise UnfinishedError(wrong_bias(name, bool(bias)))
            if proj.bias is not None:
                proj.bias.normal_(std=0.5, generator=generator)
    return layer(query, key, value) if mask is None else layer(query, key, value, mask)


def stored(exercise: Exercise) -> dict[str, Any]:
    """An exercise as JSON: cases, results, mistakes, and the code that uses an answer.

    Raises:
        NotInPageError: it needs what the page lacks.
    """
    kept, left = {}, ["`is_causal`"] if exercise.run is _run_layer else []
    with true_torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a known mistake may do what torch advises against
        for case in exercise.cases:
            arguments = exercise._arguments(case)
            if all(map(_fits, arguments)):
                kept[case] = [_encoded(one) for one in arguments]
            else:
                left.append(case)
        if not kept:
            raise NotInPageError("numbers of another kind")
        beyond = exercise.beyond() if exercise.further else exercise
        further = _further_cases(exercise, beyond)
        tried = partial(_outcomes, exercise, list(kept))
        tried_further = partial(_outcomes, beyond, list(further))
        compared = [case for case in kept if case in exercise._with_gradients()]
        slopes = partial(_slopes, exercise, compared)
        both = exercise.reference, *exercise.accept
        rights = [(tried(one), slopes(one), tried_further(one)) for one in both]
        wrong = [(one, tried(one.answer)) for one in exercise.wrong]
        (first, first_slopes, _), other = rights[0], dict[str, Any]()
        for one in exercise.wrong if compared else []:
            # Only a mistake with the right numbers is known by its gradients.
            two = one.answer, exercise.reference
            pairs = ([exercise._try(each, case) for each in two] for case in reversed(kept))
            if all(got.agrees(right, exercise.atol, exercise.rtol) for got, right in pairs):
                other[one.name] = _differing(slopes(one.answer), first_slopes)
    return {
        "cases": kept,
        "further": further,
        "names": list(inspect.signature(exercise.run or exercise.reference).parameters),
        "rights": rights,
        # A mistake that no case here reveals is one that only torch finds.
        "wrong": [
            [one.name, one.cause, _differing(got, first), other.get(one.name, {})]
            for one, got in wrong
            if got != first or other.get(one.name)
        ],
        "code": _code_of(exercise),
        "left": left,
        "options": {
            name: getattr(exercise, name)
            for name in ("returns", "arrays", "same_dtype", "seeds", "takes", "atol", "rtol", "detached")
        }
        | {"gradients": compared},
    }


def _code_of(exercise: Exercise) -> str:
    """The code that calls an answer, and that looks at what it returns."""
    code: dict[str, str] = {}
    run = _expression(exercise.run, code) if exercise.run else "None"
    properties = [_expression(one, code) for one in exercise.properties]
    then = _expression(exercise.then, code) if exercise.then else "None"
    named = [f"run = {run}", f"then = {then}", f"properties = [{', '.join(properties)}]"]
    return "\n\n".join([*code.values(), *named])


def _further_cases(exercise: Exercise, beyond: Exercise) -> dict[str, Any]:
    """The arguments of further cases, of those for which the reference has a result."""
    further = {}
    for case in exercise.further:
        arguments = beyond._arguments(case)
        right = beyond._try(exercise.reference, case)
        if all(map(_fits, arguments)) and not right.trouble:
            further[case] = [_encoded(one) for one in arguments]
    return further


def _fits(value: Any) -> bool:
    """Whether the stand-in can hold an argument; "meta" is the device without numbers."""
    if isinstance(value, (tuple, list, dict)):
        return all(map(_fits, value.values() if isinstance(value, dict) else value))
    return value.dtype in _DTYPES if isinstance(value, Tensor) else True


def _outcomes(exercise: Exercise, cases: list[str], answer: Any) -> dict[str, Any]:
    """What an answer does in each case, as JSON."""
    return {case: _encoded_outcome(exercise._try(answer, case)) for case in cases}


def _slopes(exercise: Exercise, cases: list[str], answer: Any) -> dict[str, Any]:
    """The gradients of an answer in each case, as JSON."""
    return {case: _encoded_outcome(exercise._gradients(answer, case)) for case in cases}


def _differing(got: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {case: one for case, one in got.items() if one != right[case]}


def _encoded_outcome(outcome: Outcome) -> dict[str, Any]:
    said = {
        "results": [_encoded(one) for one in outcome.results],
        "trouble": outcome.trouble,
        "error": outcome.error,
        "hopeless": outcome.hopeless,
    }
    return {name: value for name, value in said.items() if value}


def _encoded(value: Any) -> Any:
    """A value as JSON; a value of a kind that JSON lacks becomes an object that names the kind."""
    if isinstance(value, Tensor):
        # Other kinds are only results: their numbers are compared as float64.
        dtype = value.dtype if value.dtype in _DTYPES else true_torch.float64
        numbers: Any = value.detach().to(dtype).flatten().tolist()
        if dtype.is_floating_point:
            floats = array("f" if dtype == true_torch.float32 else "d", numbers)
            numbers = base64.b64encode(floats.tobytes()).decode("ascii")
        name = str(dtype).removeprefix("torch.")
        return {"dtype": name, "shape": list(value.shape), "numbers": numbers}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[_encoded(name), _encoded(one)] for name, one in value.items()]}
    if isinstance(value, list):
        return [_encoded(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotInPageError(f"arguments of the type {type(value).__name__}")


def _expression(function: Callable[..., Any], code: dict[str, str]) -> str:
    """How the page names a function; the source of a function outside the engine is added to `code`."""
    if isinstance(function, partial):
        inside = _expression(function.func, code)
        return f"partial({', '.join([inside, *map(repr, function.args)])})"
    name = function.__qualname__
    if not name.isidentifier():
        raise NotInPageError("a function that another function made")
    if function.__module__ not in [module.__name__ for module in ENGINE]:
        code[name] = _source(function, [])
        # `_source` includes functions and classes, but no constants.
        for node in ast.walk(ast.parse(code[name])):
            used = node.id if isinstance(node, ast.Name) else ""
            value = vars(sys.modules[function.__module__]).get(used)
            if isinstance(value, (int, str, tuple)):
                code[used] = f"{used} = {value!r}"
    return name
