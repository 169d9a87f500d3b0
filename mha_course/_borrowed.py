"""What the code of an answer borrows: found in its text, with a digest by which equal answers are found."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

import mha_lib
from mha_course import built, exercises

_OURS = ("mha_lib", "mha_course", "attention_check")
# What does the exercises' work in torch.
_FINISHED = """scaled_dot_product_attention multi_head_attention_forward MultiheadAttention
    TransformerEncoderLayer TransformerDecoderLayer flex_attention""".split()
# In an answer, these may fetch anything.
_BY_NAME = ("getattr", "globals", "vars", "open")
_ANYWHERE = """exec eval compile __import__ importlib inspect gc ctypes pickle marshal
    sys._getframe sys.modules""".split()
_LONG = 40  # parts of the syntax tree: shorter answers are equal by chance


def parsed(cell: str) -> ast.Module:
    """The statements of a cell, without magics; none if they cannot be read."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        plain = re.sub(r"\A%%.*\n", "", cell)  # without `%%time`
        return ast.parse(TransformerManager().transform_cell(plain))
    return ast.Module([], [])


class Words:
    """The definitions and imports of a submission.

    Args:
        sources: where -> code, such as "code cell 3" -> "x = 2".
        handed_out: code that everybody has, whose words may be used.
    """

    def __init__(self, sources: Mapping[str, str], handed_out: Iterable[str]) -> None:
        self.origins: dict[str, str] = {}  # name in the notebook -> where it comes from
        self.defined: dict[str, list[tuple[str, ast.stmt]]] = {}
        self.asserted = set[str]()
        self.trees = {where: parsed(source) for where, source in sources.items()}
        for where, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    self._import(node)
            for statement in tree.body:
                for name in _bound(statement):
                    self.defined.setdefault(name, []).append((where, statement))
                if isinstance(statement, ast.Assert):
                    self.asserted |= _parts(statement)
        code = [node for cell in handed_out for node in parsed(cell).body]
        self.allowed = {part for node in code for part in _parts(node)}

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = str(getattr(node, "module", ""))
        for one in node.names:
            whole = f"{module}.{one.name}".strip(".")
            self.origins[one.asname or one.name] = whole
            everything = {"mha_course.built.*": built, "mha_lib.*": mha_lib}.get(whole)
            for name in getattr(everything, "__all__", ()):
                self.origins[name] = f"{module}.{name}"

    def like(self, name: str) -> list[str]:
        """Other functions with as many parameters; in an assert, the page uses its own."""
        counts = {
            one: len(found[-1][1].args.args)
            for one, found in self.defined.items()
            if isinstance(found[-1][1], ast.FunctionDef) and one not in self.asserted
        }
        return [
            one for one in counts if counts[one] == counts.get(name) and one != name
        ]

    def borrowed(self, call: str) -> Iterator[str]:
        """Clauses on what the answer of a call of a checker uses that it was to write."""
        allowed = self.allowed | _parts_of_the_solution(call)
        for where, code in self._answer(call):
            for word, line in _words(code):
                whole = self._origin(word)
                last = whole.rpartition(".")[2]
                ours = whole.partition(".")[0] in _OURS and last != "solution"
                found = ours and not last.startswith("check_")
                found |= last in _FINISHED or whole in _BY_NAME
                if found and last not in allowed:
                    yield f"line {line} of its code, in {where}, uses `{whole}`"

    def reaching(self) -> Iterator[str]:
        """Sentences on what could hide from the text where an answer comes from."""
        for where, tree in self.trees.items():
            for word, line in _words(tree):
                whole, reach = (
                    self._origin(word),
                    word.rpartition(".")[2] == "reference",
                )
                for known in _ANYWHERE:
                    reach |= f"{whole}.".startswith(f"{known}.")
                if reach and word not in self.allowed:
                    yield f"Line {line} of {where} uses `{whole}`."

    def _origin(self, word: str) -> str:
        first, dot, rest = word.partition(".")
        return self.origins.get(first, first) + dot + rest

    def digest(self, call: str) -> str:
        """A number for the code of an answer, without comments and spaces; "" if it is short."""
        text = "\n".join(ast.dump(statement) for _, statement in self._answer(call))
        long = text.count("(") > _LONG
        return hashlib.sha256(text.encode(errors="replace")).hexdigest() * long

    def _answer(self, call: str) -> Iterator[tuple[str, ast.AST]]:
        """The definitions of an answer and, in turn, of what it uses, without the course's solutions."""
        answer: Any = ast.parse(call, mode="eval").body
        yield "its check", answer.args[0]
        left, known = [word for word, _ in _words(answer.args[0])], set[str]()
        while left:
            name = left.pop().partition(".")[0]
            for where, statement in () if name in known else self.defined.get(name, ()):
                marks = getattr(statement, "decorator_list", ())
                if not any("solution" in ast.unparse(mark) for mark in marks):
                    yield where, statement
                    left += [word for word, _ in _words(statement)]
            known.add(name)


def _words(tree: ast.AST) -> list[tuple[str, int]]:
    """The names in code with their lines, dotted ones whole."""
    found, inside = list[tuple[str, int]](), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and node not in inside:
            found.append((ast.unparse(node), node.lineno))
            start: ast.expr = node
            while isinstance(start, ast.Attribute):
                start = start.value
                inside.add(start)
    return found


def _parts(tree: ast.AST) -> set[str]:
    return {part for word, _ in _words(tree) for part in word.split(".")}


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement defines at the top of a cell."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    stored = (one for one in ast.walk(statement) if isinstance(one, ast.Name))
    return {one.id for one in stored if isinstance(one.ctx, ast.Store)}


def _parts_of_the_solution(call: str) -> set[str]:
    """The words of the course's own answer to an exercise: what it uses, others may use."""
    answer: Any = ast.parse(call, mode="eval").body
    name = str(getattr(answer.func, "attr", getattr(answer.func, "id", "")))
    own = getattr(getattr(exercises, name, None), "reference", None)
    own = built.MyMultiHead if name == "check_multi_head" else own
    with suppress(TypeError, OSError, SyntaxError):
        source = inspect.cleandoc("\n" + inspect.getsource(own))  # type: ignore[arg-type]
        return _parts(ast.parse(source)) - {getattr(own, "__name__", "")}
    return set()
