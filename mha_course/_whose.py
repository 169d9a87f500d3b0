"""Whose pieces a text uses: the reader's, or the course's. A notebook and the page say it alike."""

from __future__ import annotations

import ast
import types
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from attention_check._results import listed
from mha_course import built


def used_by(text: str, accepted: Collection[str], space: Mapping[str, Any]) -> str:
    """A sentence on whose pieces a text uses, itself or through other pieces; "" if it uses none.

    What only the course's own pieces use of the course is left out. `accepted` has the names of the pieces
    that are the reader's, and `space` all pieces, perhaps with what was made of them.
    """
    tree = ast.parse(text)
    defined = (ast.FunctionDef, ast.ClassDef)
    own = {one.name for one in tree.body if isinstance(one, defined)}
    named = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    waiting, found = {*named}, set[str]()
    # A layer that was made above works with the pieces of its class.
    for kind in {type(space[name]) for name in named & space.keys()}:
        if kind.__module__ in ("__main__", built.__name__):
            waiting |= _names_in(kind)
    while waiting:
        name = waiting.pop()
        if name in built.__all__ and name not in found | own:
            found.add(name)
            waiting |= (names := _names_in(space[name]))
            named |= names if name in accepted else set()
    mine = [f"`{one}`" for one in built.__all__ if one in found and one in accepted]
    rest = (found & named) - {*accepted}
    other = [f"`{one}`" for one in built.__all__ if one in rest]
    if mine and other:
        return f"This uses your {listed(mine)}, and the course's {listed(other)}."
    if mine:
        return f"This uses your {listed(mine)}."
    return f"This uses the course's {listed(other)}." if other else ""


def _names_in(thing: Any) -> set[str]:
    """The global names and attributes that a function, or any method of a class, reads.

    A function that another one has made, as a decorator does, also reads what that one gave it.
    """
    if isinstance(thing, type):
        methods = [
            one for one in vars(thing).values() if isinstance(one, types.FunctionType)
        ]
        return {one.__name__ for one in thing.__bases__}.union(*map(_names_in, methods))
    code = (
        thing if isinstance(thing, types.CodeType) else getattr(thing, "__code__", None)
    )
    inside = (
        [one for one in code.co_consts if isinstance(one, types.CodeType)]
        if code
        else []
    )
    for cell in getattr(thing, "__closure__", None) or ():
        with suppress(ValueError):  # an empty cell
            if isinstance(cell.cell_contents, types.FunctionType):
                inside.append(cell.cell_contents.__code__)
    return {*(code.co_names if code else ())}.union(*map(_names_in, inside))
