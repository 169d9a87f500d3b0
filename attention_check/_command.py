"""The command, and its other tasks: rotary positions, decoding, results of other languages."""

import argparse
import importlib.metadata
import io
import json
import pkgutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial, wraps
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention_check._aspects import ASPECTS, exercise_of, texts, with_arguments
from attention_check._check import check, finding_in
from attention_check._contract import (
    CHOICES,
    NOT_TRIED,
    Finding,
    Report,
    as_json,
    finding_of,
    first_result,
)
from attention_check._formula import (
    CALLED_WITH,
    NAMES,
    Decoder,
    named_arguments,
    rotate_pairs,
)
from attention_check._judging import Exercise
from attention_check._results import Answer, Verdict, check_callable
from mha_lib import _checks

OPTIONS = (*CHOICES, "scale", "softcap", "window", "tries", "strict", "accept")
OPTIONS += ("projections", "num_heads")
# What may stand before the name of what is judged.
BEFORE = ("discover", "rotary", "decoding")


def _version() -> str:
    """The version that is installed; the modules also run from their folder, where none is."""
    try:
        return importlib.metadata.version("attention-check")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the `arguments` of a command line, by default those of this process; see `--help`.

    The exit status is 0 if nothing is wrong, 1 if something is, 2 if nothing could be tried. "rotary" or
    "decoding" before its name judges a function so; "discover" prints the contract of an attention as TOML.
    In `attention_check.toml`, or below `tool.attention_check` in `pyproject.toml`, it is pinned: another
    contract is then a failure, and options beside it, such as `scale = 1.0`, are used.

    Raises:
        SystemExit: the arguments are invalid.

    Example:
        >>> main(["torch.nn.functional:scaled_dot_product_attention", "--tries", "scores"])
        judged as: function, query, key, value, (batch, heads, len, head_dim) · mask
                   (batch, heads, q_len, k_len), True = visible · causal by `is_causal`
                   · float32 · CPU
        scores         right
        0
    """
    parser = _make_parser()
    given = parser.parse_args(arguments)
    if given.vectors:
        json.dump(vectors(), sys.stdout)
        return 0
    before = given.attention[0] if given.attention[:1] in [[x] for x in BEFORE] else ""
    names = given.attention[bool(before) :]
    if not given.results and (len(names) != 1 or not names[0].partition(":")[2]):
        parser.error("name an attention, as module:function")
    try:
        # What it prints is not the report.
        with limited(given.seconds), redirect_stdout(io.StringIO()):
            report = reported(given, names, before)
    # Whatever somebody's module does when it is imported.
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        if not isinstance(error, (TypeError, ValueError, OSError)):
            said = f"{type(error).__name__}: {said}"
        print(f"could not be tried: {said}", file=sys.stderr)
        return 2
    if before == "discover":
        # A string of JSON is one of TOML too.
        print(f"[{json.dumps(names[0])}]")
        print(f"contract = {json.dumps(report.contract, ensure_ascii=False)}")
        return 0
    told = {"version": _version(), **as_json(report)}
    print(json.dumps(told, ensure_ascii=False) if given.json else report)
    return report.status


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attention_check", description="Is my attention right?"
    )
    add = parser.add_argument
    where = f"[{' or '.join(BEFORE)}] module:function, or module:layer"
    add("attention", nargs="*", help=where)
    for option, choices in CHOICES.items():
        add(f"--{option}", choices=choices)
    paths = "of parts of the layer: q_proj=PATH k_proj=PATH v_proj=PATH out_proj=PATH"
    add("--projections", type=named_path, nargs=4, metavar="NAME=PATH", help=paths)
    add("--num-heads", type=int, help="of a layer that lacks it")
    add("--base", type=float, help="of rotary positions, if not 10,000")
    halves = "rotary: the columns of a pair are half of the width apart"
    add("--halves", dest="interleaved", action="store_false", default=None, help=halves)
    turns = "decoding: queries and keys are rotated by their positions"
    add("--rotary", action="store_true", default=None, help=turns)
    add("--scale", type=float, help="factor of the dot products, if not 1/√head_dim")
    add("--softcap", type=float, help="limit of the scores")
    add("--window", type=side, nargs=2, metavar=("LEFT", "RIGHT"), help="or: all")
    add("--tries", nargs="+", choices=ASPECTS, metavar="ASPECT")
    add(
        "--strict",
        action="store_true",
        help="a convention that differs counts as wrong",
    )
    known = "aspects that may be wrong or differ"
    add("--accept", nargs="+", metavar="ASPECT", help=known)
    add("--json", action="store_true", help="print the report as JSON")
    add("--seconds", type=float, default=120.0, help="give up after this time")
    add("--vectors", action="store_true", help="print the cases as JSON")
    add("--results", metavar="FILE", help="judge a JSON list of outputs")
    add("--version", action="version", version=_version())
    return parser


def side(text: str) -> int | None:
    """A side of a window: a number of keys, or None for "all"."""
    return None if text == "all" else int(text)


def named_path(text: str) -> tuple[str, str]:
    """The name of a projection and its path in the layer: "q_proj=linears.0"."""
    name, _, path = text.partition("=")
    if name not in NAMES or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, path


def reported(
    given: argparse.Namespace, names: Sequence[str], before: str = ""
) -> Report:
    """The report on what a command line names, with what is pinned for it."""
    if given.results:
        found = json.loads(Path(given.results).read_text("utf-8"))
        if not isinstance(found, dict):
            raise TypeError('a file of results holds {"format": …, "results": […]}')
        return check_results(found)
    sys.path.insert(0, "")  # find modules as `python -m` does
    if before in ("rotary", "decoding"):
        return _in_turn(before, pkgutil.resolve_name(names[0]), given)
    pinned = {} if before else pins().get(names[0], {})
    contract = pinned.pop("contract", "")
    if unknown := pinned.keys() - {*OPTIONS}:
        raise ValueError(f"{names[0]} is pinned with {', '.join(sorted(unknown))}")
    for name in OPTIONS:
        value = getattr(given, name)
        if value is not None and value is not False:
            pinned[name] = dict(value) if name == "projections" else value
    if "window" in pinned:
        pinned["window"] = tuple(map(side, map(str, pinned["window"])))
    if before:
        pinned["tries"] = ["scores"]
    report = check(pkgutil.resolve_name(names[0]), **pinned)
    return replace(report, pinned=contract)


def _in_turn(before: str, answer: Any, given: argparse.Namespace) -> Report:
    check_callable(before, answer)
    names = ("base", "interleaved", "rotary")[: 2 + (before == "decoding")]
    told: dict[str, Any] = {
        name: value for name in names if (value := getattr(given, name)) is not None
    }
    make = rotary_exercise if before == "rotary" else decoding_exercise
    said = [before, *(f"{name} {value}" for name, value in told.items())]
    found = finding_in(make(**told), answer)
    return Report({before: found}, " · ".join(said), given.strict)


def pins() -> dict[str, Any]:
    """What is pinned in the current folder: attention -> its contract and options."""
    alone, project = Path("attention_check.toml"), Path("pyproject.toml")
    if alone.is_file():
        return tomllib.loads(alone.read_text("utf-8"))
    if not project.is_file():
        return {}
    tools = tomllib.loads(project.read_text("utf-8")).get("tool", {})
    found: dict[str, Any] = tools.get("attention_check", {})
    return found


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in code that runs for longer, where the system has such an alarm."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds:g} seconds")

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def check_rotary(
    rotate: Callable[..., Any], *, base: float = 10_000.0, interleaved: bool = True
) -> Verdict:
    """Check a function that rotates queries or keys by their positions (Su et al., 2021), and name its fault.

    The function `rotate` takes x (batch, num_heads, len, head_dim) and integer positions (len,); it returns
    x, rotated by the angles position * base^(-2i / head_dim). If `interleaved`, columns 2i and 2i + 1 are a
    pair; otherwise the columns of a pair are half of the width apart.

    Raises:
        TypeError: `rotate` is not callable, `base` is not a number, or `interleaved` not a bool.
        ValueError: `base` is not positive.

    Example:
        >>> from mha_lib import RotaryPositionalEncoding
        >>> assert check_rotary(RotaryPositionalEncoding(14))
        >>> check_rotary(lambda x, positions: RotaryPositionalEncoding(14)(x, positions + 1))
        Not yet: the positions are counted from 1. The first position is 0, and its vectors are not rotated.
    """
    check_callable("rotate", rotate)
    return rotary_exercise(base=base, interleaved=interleaved)(rotate)


def rotary_exercise(*, base: float = 10_000.0, interleaved: bool = True) -> Exercise:
    """The exercise of `check_rotary`."""
    _checks.check_positive("base", base)
    _checks.check_flags(interleaved=interleaved)
    returns = "rotated (batch, num_heads, len, head_dim)"
    # In float32, an angle of 1,000 is precise to three decimal places.
    near: Any = {"atol": 1e-3, "rtol": 1e-3}
    exercise = texts("rotary", reference=rotate_pairs, returns=returns, **near)
    return with_arguments(exercise, {"base": base, "interleaved": interleaved})


def check_decoding(
    start: Callable[[], Callable[..., Any]],
    *,
    rotary: bool = False,
    base: float = 10_000.0,
    interleaved: bool = True,
) -> Verdict:
    """Check causal attention that decodes with a cache, token by token and in chunks, and name its fault.

    The function `start` has no arguments and begins a sequence, with an empty cache. It returns a function of
    query, key and value of the new tokens, each (batch, num_heads, new, head_dim), that returns their output.
    With `rotary`, this function must rotate queries and keys by their positions.
    Arguments and errors are those of `check_rotary`, which explains `base` and `interleaved`.

    Example:
        >>> def start():  # a decoder that keeps nothing
        ...     return lambda query, key, value: dot_product_attention(query, key, value, is_causal=True)
        >>> from mha_lib import dot_product_attention
        >>> check_decoding(start)
        Not yet: only the newest keys are seen. Join the new keys and values with those of the calls before.
    """
    check_callable("start", start)
    told: Any = {"rotary": rotary, "base": base, "interleaved": interleaved}
    return decoding_exercise(**told)(start)


def decoding_exercise(
    *, rotary: bool = False, base: float = 10_000.0, interleaved: bool = True
) -> Exercise:
    """The exercise of `check_decoding`."""
    _checks.check_flags(rotary=rotary, interleaved=interleaved)
    _checks.check_positive("base", base)
    rotated = (
        partial(rotate_pairs, base=base, interleaved=interleaved) if rotary else None
    )

    def run(
        answer: Answer, query: Tensor, key: Tensor, value: Tensor, *sizes: int
    ) -> Tensor:
        step = answer()
        chunks = zip(*(x.split(sizes, 2) for x in (query, key, value)), strict=True)
        return torch.cat(
            [torch.as_tensor(first_result(step(*chunk))) for chunk in chunks], 2
        )

    exercise = texts(
        "decoding",
        reference=Decoder,
        also=texts.mistakes("rotary decoding", Decoder) if rotary else (),
        returns="output (batch, num_heads, len, head_dim)",
        run=run,
        atol=1e-4,
        rtol=1e-3,
    )
    return with_arguments(exercise, {"rotated": rotated})


# Another number when cases change: results of earlier cases are then refused.
FORMAT = "attention conformance 4"
GRADIENTS = tuple(f"gradient of the {name}" for name in CALLED_WITH[:3])


def _plain(value: Any) -> Any:
    """A tensor as nested lists, with "NaN" for NaN, which JSON lacks."""
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return "NaN" if value != value else value


def _exercises() -> dict[str, tuple[Exercise, tuple[str, ...]]]:
    """Aspect -> its exercise, for answers that return arrays, and the names of its arguments."""
    # Options together would be many cases.
    names = [name for name in ASPECTS if name not in ("together", "gradients")]
    found = {name: (exercise_of(name), CALLED_WITH) for name in names}
    taught = exercise_of("gradients")

    def gradients(answer: Answer, query: Any, key: Any, value: Any, *more: Any) -> Any:
        return taught._gradients_of(answer, (query, key, value, *more)).results

    told: Any = {"run": _whole_or_run(gradients), "returns": GRADIENTS}
    turned = rotary_exercise(), ("x", "positions")
    whole = decoding_exercise()
    whole = replace(whole, run=_whole_or_run(whole.run))
    rest = ("query", "key", "value", "chunks")
    return found | {
        "gradients": (replace(taught, gradients=False, **told), CALLED_WITH),
        "rotary": turned,
        "decoding": (whole, rest),
    }


class _Recorded:
    """Results that stand in a file, in the order in which an exercise asks for them."""

    def __init__(self, results: Sequence[Any]) -> None:
        # It calls its answer on every case in turn, on the last one twice, and then on all again.
        self.replies = chain(results, results[-1:], cycle(results))

    def __call__(self, *_: Any) -> Any:
        return next(self.replies)


def _whole_or_run(run: Any) -> Answer:
    """What runs an answer, or takes its results in a case from a file."""

    @wraps(run)
    def either(answer: Answer, *given: Any) -> Any:
        return answer() if isinstance(answer, _Recorded) else run(answer, *given)

    return either


def vectors() -> dict[str, Any]:
    """The cases for a function, in a form that JSON supports, to judge attention in another language.

    In the dict of "format" and "cases", each case has its aspect, `query`, `key`, `value` (batch, num_heads,
    len, head_dim), `mask` (True = may attend, or None), `is_causal` and `sink`; its result is the output. In
    "gradients", it is a list of the gradients of query, key and value, where that of the output rises evenly
    from 0.5 to 1.5; in "rotary", `x` rotated by its `positions`, neighbours in pairs, with the base 10,000;
    in "decoding", the outputs of causal attention whose calls get `chunks` tokens. NaN is the string "NaN".

    Example:
        >>> vectors()["cases"][0]["aspect"]
        'scores'
    """
    found = []
    for aspect, (exercise, names) in _exercises().items():
        for case in exercise.cases:
            made: Any = exercise._arguments(case)
            if names[-1] == "chunks":
                made = [*made[:3], made[3:]]
            own = names is not CALLED_WITH
            said = dict(zip(names, made, strict=True)) if own else named_arguments(made)
            plain = {name: _plain(one) for name, one in said.items()}
            found.append({"aspect": aspect, "case": case, **plain})
    return {"format": FORMAT, "cases": found}


def check_results(results: Sequence[Any] | Mapping[str, Any]) -> Report:
    """Judge the results of an attention in another language for the cases of `vectors`.

    The `results` contain, for each case, its result as nested lists with NaN or "NaN", or None if the
    attention does not support the case, whose aspect is then not tried. In a file they are in a dict that
    says for which cases they are, {"format": …, "results": […]}, with the format of `vectors`.

    Raises:
        TypeError: `results` is neither a list or tuple nor such a dict.
        ValueError: there are more or fewer results than cases, they belong to other cases, or one is not an
            array of numbers.

    Example:
        >>> check_results([None] * len(vectors()["cases"])).findings["masks"]
        not tried: there is no result
    """
    if isinstance(results, Mapping):  # a list is of this very version
        _checks.check_choice("the format of results", results.get("format"), [FORMAT])
        results = results.get("results", ())
    exercises = _exercises()
    number = sum(len(exercise.cases) for exercise, _ in exercises.values())
    if not isinstance(results, (list, tuple)):
        raise _checks.wrong_type("results", "a list", results)
    if len(results) != number:
        rule = f"hold {number} entries, one for each case"
        raise _checks.refusal("results", rule, len(results))
    findings, first = {}, 0
    for aspect, (exercise, _) in exercises.items():
        places = range(first, first := first + len(exercise.cases))
        read = partial(_read, several=aspect == "gradients")
        mine = [read(place, results[place]) for place in places]
        findings[aspect] = Finding(NOT_TRIED, "there is no result")
        if not any(one is None for one in mine):
            findings[aspect] = finding_of(exercise(_Recorded(mine)))
    return Report(findings, f"results, {FORMAT}")


def _read(number: int, result: Any, several: bool) -> Any:
    if result is None:
        return None
    if several and isinstance(result, list):
        return tuple(_read(number, one, False) for one in result)
    try:
        return torch.tensor(_numbers(result), dtype=torch.float64)
    except (TypeError, ValueError) as error:
        rule = f"hold numbers in entry {number}"
        raise _checks.refusal("results", rule, str(error)) from None


def _numbers(value: Any) -> Any:
    """Convert nested lists, in which a string such as "NaN" may stand for a number, to numbers."""
    return [_numbers(one) for one in value] if isinstance(value, list) else float(value)
