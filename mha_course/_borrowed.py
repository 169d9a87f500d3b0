"""What the code of an answer borrows: found in the text, and a digest by which equal answers are found."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from mha_course import built, exercises
from mha_course.exercises.own import _parsed

_OURS = ("mha_lib", "mha_course", "attention_check")
# What does the exercises' work in torch, and what could fetch anything by a name.
_FINISHED = """scaled_dot_product_attention multi_head_attention_forward MultiheadAttention
    TransformerEncoderLayer TransformerDecoderLayer flex_attention""".split()
_HIDES = "exec eval compile __import__ getattr globals vars open".split()
_REACHES = "reference _getframe modules import_module".split()
_FEW = 40  # tokens: shorter answers are equal by chance


class Words:
    """The definitions and imports in the cells of a submission."""

    def __init__(self, cells: Sequence[str], handed_out: Sequence[str]) -> None:
        self.cells = cells
        self.trees = [
            _parsed(TransformerManager().transform_cell(one)) for one in cells
        ]
        self.imports: dict[str, str] = {}  # name in the notebook -> where it comes from
        self.defined: dict[str, list[tuple[int, ast.stmt]]] = {}
        for number, tree in enumerate(self.trees):
            for node in ast.walk(tree):
                self.imports |= _imported(node)
            for statement in tree.body:
                for name in _bound(statement):
                    self.defined.setdefault(name, []).append((number, statement))
        trees = [
            _parsed(TransformerManager().transform_cell(one)) for one in handed_out
        ]
        asserts = [
            one
            for tree in self.trees
            for one in tree.body
            if isinstance(one, ast.Assert)
        ]
        # In an assert, the page checks its own solution.
        self.pages_own = {word for one in asserts for word, _ in _words(one)}
        self.allowed = {
            word for tree in trees for node in tree.body for word, _ in _words(node)
        }

    def bound_in(self, number: int) -> set[str]:
        """The names that a cell binds, as far as its text can be read."""
        if number >= len(self.trees):
            return set()
        found = {name for one in self.trees[number].body for name in _bound(one)}
        for node in ast.walk(self.trees[number]):
            found |= set(_imported(node))
        if not self.trees[number].body:  # it does not parse
            lines = [line.split() for line in self.cells[number].splitlines()]
            found |= {
                line[1].partition("(")[0].strip(":")
                for line in lines
                if line[:1] in (["def"], ["class"])
            }
        return found

    def borrowed(self, call: str, inside: Iterable[str]) -> Iterator[str]:
        """Clauses on what the answer of a call of a checker uses that it was to write."""
        allowed = self.allowed | _words_of_the_solution(call)
        for name in sorted(set(inside) - allowed):
            yield f"the answer is made from the course's `{name}`"
        for number, statement in self._statements(call):
            for word, line in _words(statement):
                whole = self._origin(word)
                last = whole.rpartition(".")[2]
                ours = whole.partition(".")[0] in _OURS and not last.startswith(
                    ("check_", "solution")
                )
                found = ours or last in _FINISHED + _REACHES or whole in _HIDES
                if found and last not in allowed:
                    yield f"line {line} of its code, in code cell {number + 1}, uses `{whole}`"

    def digest(self, call: str) -> str:
        """A number for the text of the answer, without comments and spaces; "" if it is short."""
        trees = [ast.dump(statement) for _, statement in self._statements(call)]
        text = "\n".join(trees)
        return (
            hashlib.sha256(text.encode(errors="replace")).hexdigest()
            if text.count("(") > _FEW
            else ""
        )

    def _statements(self, call: str) -> Iterator[tuple[int, ast.stmt]]:
        """The definitions of an answer and, in turn, of what it uses, without the course's solutions."""
        answer: Any = ast.parse(call, mode="eval").body
        left, known = [word for word, _ in _words(answer.args[0])], set[str]()
        while left:
            name = left.pop().partition(".")[0]
            if name not in known:
                known.add(name)
                for number, statement in self.defined.get(name, ()):
                    if "solution" not in {word for word, _ in _decorators(statement)}:
                        yield number, statement
                        left += [word for word, _ in _words(statement)]

    def _origin(self, word: str) -> str:
        first, dot, rest = word.partition(".")
        known = self.imports.get(first, first)
        if (
            first not in self.imports
            and first not in self.defined
            and "mha_course.built.*" in self.imports
        ):
            known = f"mha_course.built.{first}" if first in built.__all__ else first
        return known + dot + rest


def _words(tree: ast.AST) -> list[tuple[str, int]]:
    """The names in code, dotted ones whole, with their lines."""
    found, inner = [], set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in inner:
            parts, one = [], node
            while isinstance(one, ast.Attribute):
                parts.append(one.attr)
                one = one.value  # type: ignore[assignment]
                inner.add(id(one))
            start = one.id if isinstance(one, ast.Name) else ""
            found.append((".".join([start, *reversed(parts)]), node.lineno))
    return found


def _decorators(statement: ast.stmt) -> list[tuple[str, int]]:
    return [
        word for one in getattr(statement, "decorator_list", ()) for word in _words(one)
    ]


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement defines at the top of a cell."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    stored = (one for one in ast.walk(statement) if isinstance(one, ast.Name))
    return [one.id for one in stored if isinstance(one.ctx, ast.Store)]


def _imported(node: ast.AST) -> dict[str, str]:
    """The names that an import binds, and where they come from."""
    if isinstance(node, ast.Import):
        whole = {one.asname: one.name for one in node.names if one.asname}
        first = [one.name.partition(".")[0] for one in node.names if not one.asname]
        return whole | {name: name for name in first}
    if not isinstance(node, ast.ImportFrom):
        return {}
    places = {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return {
        f"{node.module}.*" if name == "*" else name: place
        for name, place in places.items()
    }


def _words_of_the_solution(call: str) -> set[str]:
    """The words of the course's own answer to an exercise: what it uses, others may use."""
    answer: Any = ast.parse(call, mode="eval").body
    name = str(getattr(answer.func, "attr", getattr(answer.func, "id", "")))
    reference = getattr(getattr(exercises, name, None), "reference", None)
    if name == "check_multi_head":
        reference = built.MyMultiHead
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(reference)))  # type: ignore[arg-type]
    except (TypeError, OSError, SyntaxError):
        return set()
    words = {part for word, _ in _words(tree) for part in word.split(".")}
    return words - {getattr(reference, "__name__", "")}
