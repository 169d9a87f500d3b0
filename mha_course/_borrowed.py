"""What the code of an answer borrows: found in its text, with a digest by which equal answers are found."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import mha_lib
from mha_course import built, exercises

_OURS = ("mha_lib", "mha_course", "attention_check")
# What does the exercises' work in torch.
_FINISHED = """scaled_dot_product_attention multi_head_attention_forward MultiheadAttention
    TransformerEncoderLayer TransformerDecoderLayer flex_attention""".split()
# Their names for it in torch's own parts, such as `torch.ops.aten._scaled_dot_product_attention_math`.
_FINISHED_PART = re.compile("(?i)scaled_dot_product|multi_?head|flash_attention")
# In an answer, these may fetch anything.
_BY_NAME = ("getattr", "globals", "locals", "vars", "open")
_ANYWHERE = """exec eval compile __import__ get_ipython
    magic.run magic.alias_magic magic.edit operator.attrgetter operator.methodcaller
    sys._getframe sys.modules""".split()
_MODULES = """importlib inspect gc ctypes pickle _pickle marshal runpy pydoc pkgutil code codeop timeit imp
    zipimport cloudpickle dill joblib shelve copyreg cProfile profile bdb pdb doctest unittest cffi
    multiprocessing subprocess traitlets IPython.core IPython.utils IPython.lib""".split()
_UNPICKLES = ("allow_pickle", "weights_only")
# What an object says of where it comes from.
_INSIDE = """__dict__ __globals__ __builtins__ __getattribute__ __subclasses__ __code__ __closure__
    __loader__ __spec__ tb_frame gi_frame f_back f_globals f_locals""".split()
_MAGIC = r"(?m)^([ \t]*+)([\w, \t]++=[ \t]*+)?(?:%(\w+)|!).*$"
_LONG = 40  # parts of the syntax tree: shorter answers are equal by chance


def parsed(cell: str) -> ast.Module:
    """The statements of a cell, with `magic.run` for `%run`; none if they cannot be read."""
    plain = re.sub(r"\A\s*%%.*\n", "", cell)  # without `%%time`
    timed = re.sub(r"(?m)^([ \t]*)%(?:time|timeit|prun) +", r"\1", plain)
    helped = re.sub(r"(?m)^[ \t]*\?*[\w.]+\?+[ \t]*$", "", timed)
    for text in (plain, re.sub(_MAGIC, _without_magic, helped)):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.parse(text)
    return ast.Module([], [])


def _without_magic(line: re.Match[str]) -> str:
    return f"{line[1]}{line[2] or ''}magic.{line[3] or 'shell'}"


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
        # What IPython may run, although it is not Python.
        self.unread = {
            where
            for where, source in sources.items()
            if not self.trees[where].body and re.sub(r"#.*", "", source).strip()
        }
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
        whole = [pair for node in code for pair in (*_words(node), *_imports(node))]
        self.allowed |= {word for word, _ in whole}

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
                found |= whole.startswith("torch.") and bool(
                    _FINISHED_PART.search(last)
                )
                if found and last not in allowed:
                    yield f"line {line} of its code, in {where}, uses `{whole}`"

    def reaching(self) -> Iterator[str]:
        """Sentences on what could hide from the text where an answer comes from."""
        for where, tree in self.trees.items():
            for word, line in [*_words(tree), *_imports(tree)]:
                whole, parts = self._origin(word), word.split(".")
                reach = parts[-1] == "reference" or not set(_INSIDE).isdisjoint(parts)
                reach |= ".sys.modules" in whole or word in (*_MODULES, *_UNPICKLES)
                for known in _ANYWHERE:
                    reach |= f"{whole}.".startswith((f"{known}.", f"{known}()."))
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
            with suppress(RecursionError):
                found.append((ast.unparse(node), node.lineno))
            start: ast.expr = node
            while isinstance(start, ast.Attribute):
                start = start.value
                inside.add(start)
    return found


def _imports(tree: ast.AST) -> list[tuple[str, int]]:
    """What is imported that may fetch anything, and what is unpickled, with the lines."""
    found = list[tuple[str, int]]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (f"{module}{one.name}." for one in node.names):
                known = [one for one in _MODULES if name.startswith(f"{one}.")]
                found += [(one, node.lineno) for one in known]
        if isinstance(node, ast.keyword) and node.arg in _UNPICKLES:
            found.append((node.arg, node.value.lineno))
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
