"""Cases and known mistakes as an author writes them, in a Markdown file; CONTRIBUTING.md shows the form."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from math import ceil, sqrt
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

import mha_lib
from attention_check._judging import Exercise, randn
from attention_check._results import Answer, Wrong

_Names: TypeAlias = dict[str, Any]
_Edit: TypeAlias = tuple[int, str, str]  # its line, the old text and the new text
_GIVEN = {**vars(mha_lib), "torch": torch, "F": F, "nn": nn, "randn": randn}
_GIVEN |= {"ceil": ceil, "sqrt": sqrt, "partial": partial}
EDIT = re.compile(r"(`+)(.+?)\1 → (.+)")
_NEW = re.compile(r"(`+)(.*?)\1(?: or |$)")
ANSWER = re.compile(r"(`+)(.+)\1")
# Before the cause of what is right elsewhere, and only differs.
_CONVENTION = "*A convention.* "
# The form of each kind of item.
ITEMS = {"mistakes": r"\*\*(.+?)\.\*\*\s*(\S.*)", "cases": r"(.+?): (`+)(.+)\2"}


@dataclass
class _Item:
    """An item of a list, with the line that it begins at and the items below it."""

    line: int
    text: str
    below: list[_Item] = field(default_factory=list)


class Texts:
    """The Markdown file beside a module; a call with the parts that need Python makes an exercise.

    Args:
        module: the name of the module, `__name__`.

    Raises:
        ValueError: an edit or code in the text is wrong; the message begins with file and line.
    """

    kind: type[Exercise] = Exercise  # what a call makes

    def __init__(self, module: str) -> None:
        self._module = vars(sys.modules[module])
        self.path = Path(self._module["__file__"]).with_suffix(".md")
        self._sections: dict[str, tuple[int, list[_Item]]] = {}
        self._read()
        self.unused = set(self._sections)

    def __call__(
        self,
        name: str,
        *,
        reference: Answer,
        also: Sequence[Wrong] = (),
        names: _Names | None = None,
        only_cases: bool = False,
        **options: Any,
    ) -> Exercise:
        """Make an exercise from the cases and mistakes of a section and further options of `Exercise`.

        Mistakes of the sections in `also` come after its own; with `only_cases` there are none. If a function
        makes the exercise, `names` are the local names that the code of the section uses.
        """
        own = () if only_cases else self.mistakes(name, reference, names)
        wrong = (*own, *also)
        cases = options.pop("cases", None) or self.cases(name, names)
        return self.kind(reference=reference, cases=cases, wrong=wrong, **options)

    def cases(self, name: str, names: _Names | None = None) -> dict[str, Answer]:
        """The cases of a section, as a dict from labels to functions of a generator."""
        known = self._names(names)
        return {
            match[1]: self._value(item.line, f"lambda g: ({match[3]})", known)
            for item, match in self._items(name, "cases")
        }

    def mistakes(
        self, name: str, reference: Any = None, names: _Names | None = None
    ) -> tuple[Wrong, ...]:
        """The mistakes of a section; edits apply to the source of `reference`."""
        known = self._names(names)
        return tuple(
            Wrong(
                match[1],
                match[2].removeprefix(_CONVENTION),
                answer,
                match[2].startswith(_CONVENTION),
            )
            for item, match in self._items(name, "mistakes")
            for answer in self._answers(item, reference, known)
        )

    def _names(self, more: _Names | None) -> _Names:
        return {**_GIVEN, **self._module, **(more or {})}

    def _items(self, name: str, kind: str) -> Iterator[tuple[_Item, re.Match[str]]]:
        """The mistakes of a section, which begin with bold text, or its cases."""
        self.unused.discard(name)
        for item in self._sections[name][1]:
            match = re.fullmatch(ITEMS[kind], item.text)
            if match and item.text.startswith("**") == (kind == "mistakes"):
                yield item, match

    def _answers(self, item: _Item, reference: Any, names: _Names) -> list[Answer]:
        """The wrong answers of a mistake: one made by all edits together, or one for each expression."""
        edits = [match for one in item.below if (match := EDIT.fullmatch(one.text))]
        if len(edits) == len(item.below):
            choices = [
                [(one.line, edit[2], new[2]) for new in _NEW.finditer(edit[3])]
                for one, edit in zip(item.below, edits, strict=True)
            ]
            made = partial(self._edited, item.line, reference, names)
            return [made(several) for several in product(*choices)]
        found = ((one.line, ANSWER.fullmatch(one.text)) for one in item.below)
        return [self._value(line, code[2], names) for line, code in found if code]

    def _edited(
        self, line: int, reference: Any, names: _Names, edits: Iterable[_Edit]
    ) -> Answer:
        if reference is None:
            lacking = "there is no reference whose source could be edited"
            raise self._error(line, lacking)
        source = _whole_source(reference)
        for number, old, new in edits:
            old, new = old.replace(r"\n", "\n"), new.replace(r"\n", "\n")
            if (count := source.count(old)) != 1:
                found = f"`{old}` stands {count} times in the reference, not once"
                raise self._error(number, found)
            source = source.replace(old, new)
        space = names | vars(sys.modules[reference.__module__])
        try:
            exec(compile(source, str(self.path), "exec"), space)  # noqa: S102
        except SyntaxError as error:
            raise self._error(line, f"the edited source is wrong: {error}") from error
        answer: Answer = space[reference.__name__]
        return answer

    def _value(self, line: int, code: str, names: _Names) -> Any:
        try:
            return eval(compile(code, str(self.path), "eval"), names)  # noqa: S307
        except Exception as error:
            raise self._error(line, f"`{code}`: {error}") from error

    def _error(self, line: int, problem: str) -> ValueError:
        return ValueError(f"{self.path}:{line}: {problem}")

    def _read(self) -> None:
        """Collect the items of each section; a line with a deeper indentation continues an item."""
        items: list[_Item] = []
        last: _Item | None = None
        # The loader also reads from a wheel that has not been unpacked.
        lines = (
            self._module["__loader__"].get_data(str(self.path)).decode().splitlines()
        )
        for number, line in enumerate(lines, 1):
            start = re.match(r"( *)- (.*)", line)
            if line.startswith("## "):
                if line[3:] in self._sections:
                    raise self._error(number, f"there are two sections {line!r}")
                items, last = [], None
                self._sections[line[3:]] = number, items
            elif start and not (start[1] and last is None):
                last = _Item(number, start[2])
                (items[-1].below if start[1] else items).append(last)
            elif line.startswith("  ") and last is not None:
                last.text += f" {line.strip()}"
            else:
                last = None


@cache
def _whole_source(thing: Any) -> str:
    return _source(thing, [])


def _source(thing: Any, known: list[Any]) -> str:
    """The source of a function or class, preceded by that of everything it uses from its own module."""
    known.append(thing)
    source = textwrap.dedent(inspect.getsource(thing))
    for node in ast.walk(ast.parse(source)):
        name = node.id if isinstance(node, ast.Name) else ""
        used = vars(sys.modules[thing.__module__]).get(name)
        of_code = inspect.isfunction(used) or inspect.isclass(used)
        if of_code and used.__module__ == thing.__module__ and used not in known:
            source = f"{_source(used, known)}\n{source}"
    return source
