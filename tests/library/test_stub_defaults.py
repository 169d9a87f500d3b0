"""Each default in the signature of a stub is a case of its checker: it is left out once, and given once.

An answer that ignores a default, or has none, would otherwise be accepted, and fail only in the next piece.
"""

import inspect

import in_page as extension
import pytest
from exercise_cells import CHAPTERS, CHECKS, cells_of, checker_of, pieces_of, solution_of, solved

from mha_course import built, in_page

PAGES = [path.stem for path in sorted(CHAPTERS.glob("*.ipynb"))]
STUBS = [(page, name) for page in PAGES for name in (*pieces_of(page), *cells_of(page))]


def parts_of(page, name):
    """The cells of an exercise by its number, or of a piece by its name."""
    return (pieces_of(page) if name in pieces_of(page) else cells_of(page))[name]


def methods_of(thing):
    """The methods of a class whose signatures a reader sees."""
    return {name: vars(thing)[name] for name in ("__init__", "forward") if name in vars(thing)}


def defaults_of(thing):
    """The defaults in the signatures of a function, or of `__init__` and `forward` of a class."""
    methods = methods_of(thing) if inspect.isclass(thing) else {"": thing}
    return {
        (called, name): parameter.default
        for called, method in methods.items()
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def defined(stub, name):
    """What a stub defines under this name."""
    space = {**vars(built)}
    exec(stub, space)  # noqa: S102
    return space[name]


def watched(called, function, defaults, seen):
    """A function that adds (`called`, the argument, "left out" or "given") to `seen` with each call."""
    signature = inspect.signature(function)

    def call(*inputs, **options):
        given = signature.bind(*inputs, **options).arguments
        for method, name in defaults:
            if method == called and name not in given:
                seen.add((method, name, "left out"))
            elif method == called and given[name] is not defaults[method, name]:
                seen.add((method, name, "given"))
        return function(*inputs, **options)

    call.__signature__ = signature
    return call


def never_tried(check, answer, defaults):
    """The defaults that no call of a checker leaves out, or that all of its calls leave out."""
    seen = set()
    if inspect.isclass(answer):
        methods = {name: watched(name, one, defaults, seen) for name, one in methods_of(answer).items()}
        answer = type(answer.__name__, (answer,), methods)
    else:
        answer = watched("", answer, defaults, seen)
    verdict = check(answer)
    assert verdict, verdict
    return {(*key, how) for key in defaults for how in ("left out", "given")} - seen


def with_defaults():
    """Each stub whose signature has defaults: (page, its name or number)."""
    for page, name in STUBS:
        cells = parts_of(page, name)
        _, answer = checker_of(cells)
        if defaults_of(defined(cells["stub"].source, answer)):
            yield page, name


DEFAULTS = [*with_defaults()]


def test_stubs_with_defaults_are_found():
    names = {name for _, name in DEFAULTS}
    assert names >= {"my_masked_softmax", "my_causal_mask", "my_attention", "MyHead", "MyMultiHead"}


@pytest.mark.parametrize(("page", "name"), DEFAULTS)
def test_each_default_of_a_stub_is_tried(page, name):
    check, answer = checker_of(parts_of(page, name))
    defaults = defaults_of(defined(parts_of(page, name)["stub"].source, answer))
    solution = getattr(built, answer, None) or solution_of(page, name)
    check = CHECKS[check] if name in pieces_of(page) else solved(page, name)[0]
    assert never_tried(check, solution, defaults) == set()
    if (page, f"write-{name}") in extension.reasons() or name not in pieces_of(page):
        return
    in_the_page = in_page.exercise_of(parts_of(page, name)["check"].source)
    assert never_tried(in_the_page, solution, defaults) == set()


def test_a_default_that_is_never_tried_is_found():
    def power(x, exponent=2, *, sign=1):
        return sign * x**exponent

    def check(answer):
        return answer(3) == 9 and answer(3, sign=-1) == -9

    found = never_tried(check, power, defaults_of(power))
    assert found == {("", "exponent", "given")}
