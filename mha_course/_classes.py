"""What a class that a reader writes must have: its parts, its order of arguments, its weights; and clues.

The page has these functions too, so they use only what its stand-in for torch has.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

from attention_check._results import no_way_back
from mha_course._exercise import CLUES, FaultError, UnfinishedError


def part_of(answer: Any, made: Any, name: str) -> Any:
    """The attribute of an object that an answer has made, or an UnfinishedError that says what to write."""
    if (part := getattr(made, name, None)) is not None:
        return part
    if is_local(answer, name):
        raise UnfinishedError(
            f"`{name}` is only a name inside `__init__`, and no attribute of the object. Keep it there: "
            f"`self.{name} = …`"
        )
    raise UnfinishedError(
        f"`__init__` makes no `{name}`. Write it there first, then `forward`"
    )


def made_by_name(make: Any, *first: Any, **sizes: Any) -> Any:
    """What a class makes of sizes of which later cells, too, give some by name."""
    taken = inspect.signature(make).parameters
    open_ended = any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()
    )
    lacks = [name for name in sizes if name not in taken]
    if lacks and not open_ended:
        raise UnfinishedError(
            f"`__init__` takes no `{lacks[0]}`. Later cells give it by this name: keep the names of the stub"
        )
    check_order(make, *sizes)
    return make(*first, **sizes)


def check_order(answer: Any, *names: str) -> None:
    """Raise a FaultError if parameters of an answer are not in the order of these names, that of the stub."""
    taken = [name for name in inspect.signature(answer).parameters if name in names]
    for name, due in zip(taken, filter(taken.__contains__, names), strict=True):
        if name != due:
            raise FaultError(
                f"`{name}` stands before `{due}` in the first line. Other cells give them by position: keep "
                "the order of the stub"
            )


def unlearned(module: Any, returned: Any) -> str:
    """What is saved and gets no gradient from the first result: names, or "nothing".

    That is a detached parameter, or a buffer that the stored weights of a later page lack.
    """
    first = returned[0] if isinstance(returned, (tuple, list)) else returned
    if getattr(first, "requires_grad", False):
        try:
            # The loss is the dot product with fixed numbers, all different.
            ramp = torch.linspace(0.5, 1.5, first.numel(), dtype=first.dtype)
            (first * ramp.view(first.shape)).sum().backward()
        except RuntimeError as error:
            raise FaultError(no_way_back(error)) from error
    learned = {name for name, one in module.named_parameters() if one.grad is not None}
    return (
        ", ".join(name for name in module.state_dict() if name not in learned)
        or "nothing"
    )


def wrong_bias(name: str, wanted: bool) -> str:
    """A sentence on a projection that has a bias without being asked for one, or has none although asked."""
    if wanted:
        return f"with `bias=True`, `{name}` has no bias. Hand it on: `nn.Linear(…, bias=bias)`"
    return f"without `bias=True`, `{name}` has a bias. Hand it on: `nn.Linear(…, bias=bias)`"


def is_local(answer: Any, name: str) -> bool:
    """Whether `__init__` of a class has a local variable of this name: a `self.` may be forgotten."""
    code = getattr(getattr(answer, "__init__", None), "__code__", None)
    return code is not None and name in code.co_varnames


# What to write instead, by a part of torch's own words.
_CLUES = {
    "Boolean value of Tensor with more than one value": "A tensor holds many answers: ask "
    "`if mask is not None`, and turn each of its booleans over with `~mask`, not with `not`",
    "before Module.__init__()": "The first line of `__init__` is `super().__init__()`",
    "'Tensor' and 'tuple'": "A call that returns several things gives a tuple: take the first by `[0]`",
}


def _clue(error: BaseException) -> str:
    """What to write instead, for errors whose own words do not tell a newcomer; "" for all others."""
    said = str(error)
    if isinstance(error, TypeError) and re.search(
        r"^sqrt\(\).*Tensor, not (int|float)", said
    ):
        return "`torch.sqrt` takes a tensor; of a number, take `math.sqrt(…)` or `… ** 0.5`"
    for sign, clue in _CLUES.items():
        if sign in said:
            return clue
    if (
        not isinstance(error, NameError)
        or not error.name
        or error.__traceback__ is None
    ):
        return ""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    if hasattr(trace.tb_frame.f_locals.get("self"), error.name):
        return f"Write `self.{error.name}`, which belongs to the object"
    return ""


CLUES.append(_clue)
